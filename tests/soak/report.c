/* report.c - the figures of a soak, for people and as JSON. */
#include "soak.h"
#include <jansson.h>
#include <string.h>

static int by_value(const void *a, const void *b) {
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

static double detected(soak *s, double part) {
    cluster *c = &s->c;
    if (!c->detections) return 0;
    qsort(c->detected_ms, c->detections, sizeof *c->detected_ms, by_value);
    return c->detected_ms[(size_t)(part * (double)(c->detections - 1))];
}

static uint32_t sum_of(const atomic_uint *list) {
    uint32_t sum = 0;
    for (size_t i = 0; i < PLANS; i++) sum += atomic_load(&list[i]);
    return sum;
}

static uint32_t faults_of(const soak *s) {
    uint32_t sum = 0;
    for (size_t i = 0; i < FAULTS; i++) sum += s->c.faults[i];
    return sum;
}

static void text_requests(soak *s, FILE *to) {
    const tally *t = load_tally(s->l);
    fprintf(to, "requests: %u of %u kinds: %u answered, %u left by their clients, %u refused as they should be\n",
        sum_of(t->asked), load_kinds(s->l), sum_of(t->answered), sum_of(t->left), sum_of(t->refused));
    for (size_t i = 0; i < PLANS; i++)
        fprintf(to, "  %-12s %6u asked, %6u answered, %6u left, %6u refused\n", plan_names[i], t->asked[i],
            t->answered[i], t->left[i], t->refused[i]);
    fprintf(to, "tokens: %llu compared with the undisturbed answers, %llu different\n", t->tokens_compared,
        t->tokens_different);
    fprintf(to, "attempts: %u requests were answered by more than one (%llu more in all)\n", t->several_attempts,
        t->attempts_more);
    fprintf(to,
        "sent away: %u times by a full queue, %u times by a router that died or ended; %u requests began late\n",
        t->queue_full, t->router_lost, t->late);
}

static void text_faults(soak *s, FILE *to) {
    uint64_t bytes, flips, cuts;
    proxy_totals(s->c.net, &bytes, &flips, &cuts);
    fprintf(to, "faults: %u, and %u times nobody could be spared:", faults_of(s), s->c.impossible);
    for (size_t i = 0; i < FAULTS; i++) fprintf(to, "%s %s %u", i ? "," : "", fault_names[i], s->c.faults[i]);
    fprintf(to,
        "\nproxy: %llu bytes passed on, %llu bits turned, %llu connections cut; %u bits turned in shared memory\n",
        (unsigned long long)bytes, (unsigned long long)flips, (unsigned long long)cuts, s->c.ring_flips);
    fprintf(to, "deaths seen by routers: %u, after %.0f ms at the median, %.0f ms at most; %u not within 3 s\n",
        s->c.detections, detected(s, 0.5), detected(s, 1), s->c.undetected);
    fprintf(to, "replaced processes that woke up: %u ended by themselves, %u heard of nobody\n", s->c.old_ended,
        s->c.old_killed);
    fprintf(to, "longest end after SIGTERM: %.1f s\n", (double)s->c.longest_end_ns / 1e9);
}

static void text_rest(soak *s, FILE *to) {
    const tally *t = load_tally(s->l);
    fprintf(to, "longest time without anything for anybody: %.2f s; within one stream: %.2f s\n",
        (double)measure_longest_silence_ns(s->m) / 1e9, (double)atomic_load(&t->longest_silence_ns) / 1e9);
    fprintf(to,
        "last processes of the nodes: %llu preemptions, %llu evictions, %llu pages sent, %llu frames rejected\n",
        (unsigned long long)s->counters.preemptions, (unsigned long long)s->counters.evictions,
        (unsigned long long)s->counters.pages_sent, (unsigned long long)s->counters.frames_rejected);
    fprintf(to, "blocks leaked: %llu (%llu audited, %u violations)\n", (unsigned long long)s->leaked,
        (unsigned long long)s->blocks_checked, s->violations);
    static const char *const names[] = {[ROLE_PREFILL] = "prefill nodes", "decode nodes", "routers"};
    for (member_role role = ROLE_PREFILL; role <= ROLE_ROUTER; role++) {
        trend a = measure_role(s->m, role, 0), b = measure_role(s->m, role, 1);
        fprintf(to,
            "memory of all %s together: %+.0f bytes a request (%+.0f to %+.0f) in the first half of the calm, %+.0f "
            "(%+.0f to %+.0f) in the second, %.0f requests\n",
            names[role], a.slope, a.low, a.high, b.slope, b.low, b.high, b.span);
    }
    for (uint32_t i = 0; i < MEMBERS; i++) {
        trend a = measure_anon(s->m, i), f = measure_fds(s->m, i);
        fprintf(to,
            "%s: %u starts, %.0f KiB; slope in the calm %+.0f KiB/min (%+.0f to %+.0f), descriptors %+.2f/min "
            "(%+.2f to %+.2f)\n",
            s->c.m[i].id, s->c.m[i].starts, measure_last_anon(s->m, i), a.slope, a.low, a.high, f.slope, f.low, f.high);
    }
}

void report_text(soak *s, FILE *to) {
    fprintf(to, "seed %llu, %u seconds\n", (unsigned long long)s->o.seed, s->o.seconds);
    text_requests(s, to);
    text_faults(s, to);
    text_rest(s, to);
    fprintf(to, "failures: %u\n", s->journal.count);
    for (uint32_t i = 0; i < KVF_MIN(s->journal.count, (uint32_t)FAILURES_KEPT); i++)
        fprintf(to, "  %s\n", s->journal.text[i]);
}

/* ---- JSON ---- */

static json_t *json_requests(soak *s) {
    const tally *t = load_tally(s->l);
    json_t *all = json_object();
    for (size_t i = 0; i < PLANS; i++)
        json_object_set_new(all, plan_names[i],
            json_pack("{sisisisi}", "asked", (int)t->asked[i], "answered", (int)t->answered[i], "left", (int)t->left[i],
                "refused", (int)t->refused[i]));
    return all;
}

static json_t *json_faults(soak *s) {
    json_t *all = json_object();
    for (size_t i = 0; i < FAULTS; i++) json_object_set_new(all, fault_names[i], json_integer(s->c.faults[i]));
    return all;
}

static json_t *json_roles(soak *s) {
    static const char *const names[] = {[ROLE_PREFILL] = "prefill", "decode", "router"};
    json_t *all = json_object();
    for (member_role role = ROLE_PREFILL; role <= ROLE_ROUTER; role++) {
        trend a = measure_role(s->m, role, 0), b = measure_role(s->m, role, 1);
        json_object_set_new(all, names[role],
            json_pack("{sfs[fff]sfs[fff]}", "requests_first_half", a.span, "bytes_per_request_first_half", a.slope,
                a.low, a.high, "requests", b.span, "bytes_per_request", b.slope, b.low, b.high));
    }
    return all;
}

static json_t *json_processes(soak *s) {
    json_t *all = json_array();
    for (uint32_t i = 0; i < MEMBERS; i++) {
        trend a = measure_anon(s->m, i), f = measure_fds(s->m, i);
        json_array_append_new(
            all, json_pack("{sssisfs[fff]s[fff]si}", "id", s->c.m[i].id, "starts", (int)s->c.m[i].starts, "anon_kib",
                     measure_last_anon(s->m, i), "anon_kib_per_min", a.slope, a.low, a.high, "fds_per_min", f.slope,
                     f.low, f.high, "points", (int)a.points));
    }
    return all;
}

bool report_json(soak *s, const char *path) {
    const tally *t = load_tally(s->l);
    json_t *failures = json_array();
    for (uint32_t i = 0; i < KVF_MIN(s->journal.count, (uint32_t)FAILURES_KEPT); i++)
        json_array_append_new(failures, json_string(s->journal.text[i]));
    json_t *root = json_pack("{sIsisososIsI}", "seed", (json_int_t)s->o.seed, "seconds", (int)s->o.seconds, "requests",
        json_requests(s), "faults", json_faults(s), "tokens_compared", (json_int_t)t->tokens_compared,
        "tokens_different", (json_int_t)t->tokens_different);
    if (!root) return false;
    json_object_update_new(
        root, json_pack("{sisisisIsIsi}", "queue_full", (int)t->queue_full, "router_lost", (int)t->router_lost,
                  "several_attempts", (int)t->several_attempts, "preemptions", (json_int_t)s->counters.preemptions,
                  "blocks_leaked", (json_int_t)s->leaked, "audit_violations", (int)s->violations));
    json_object_update_new(
        root, json_pack("{sfsfsfsfsi}", "longest_silence_s", (double)measure_longest_silence_ns(s->m) / 1e9,
                  "longest_stream_silence_s", (double)t->longest_silence_ns / 1e9, "detected_ms_median",
                  detected(s, 0.5), "detected_ms_max", detected(s, 1), "undetected", (int)s->c.undetected));
    json_object_update_new(root, json_pack("{sososiso}", "memory", json_roles(s), "processes", json_processes(s),
                                     "failures", (int)s->journal.count, "first_failures", failures));
    int failed = json_dump_file(root, path, JSON_INDENT(2));
    json_decref(root);
    return failed == 0;
}
