/* soak.c - kvferry-soak: load and faults for a while, load without faults for a while, rest; then the report.
 *
 *   kvferry-soak [--seconds N] [--calm N] [--seed N] [--rate N] [--attempts N] [--often FAULT]...
 *                [--report FILE.json] [--log FILE]
 *
 * Ends with 0 only when nothing failed: no client saw an error that it may not see, no token differs from the
 * undisturbed answer, nothing is held at rest, no process ended by itself, memory and descriptors do not grow. */
#include "soak.h"
#include <getopt.h>
#include <signal.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

enum {
    THREADS = 64,
    FAULT_LOW_MS = 1000,
    FAULT_HIGH_MS = 5000,
    CALM_LEAST_S = 30,
    FAILURES_TOO_MANY = 100,
    WARM_MOST_S = 60,
    REST_MOST_S = 60
};
/* What growth may be, by the low end of the interval. Memory is judged by the processes of a role together, where at
 * least so many requests came in each half of the calm, and in both: a leak goes on, an allocator comes to rest. */
static const double bytes_per_request_max = 64, requests_least = 750, fds_per_min_max = 2;

/* ---- what happened ---- */

static void write_entry(journal *j, FILE *to, const char *prefix, const char *text) {
    if (!to) return;
    fprintf(to, "%9.3f %s%s\n", (double)(e2e_now_ns() - j->start_ns) / 1e9, prefix, text);
    fflush(to);
}

void journal_say(journal *j, const char *format, ...) {
    char text[700];
    va_list args;
    va_start(args, format);
    vsnprintf(text, sizeof text, format, args);
    va_end(args);
    pthread_mutex_lock(&j->lock);
    write_entry(j, j->log, "", text);
    pthread_mutex_unlock(&j->lock);
}

void journal_fail(journal *j, const char *format, ...) {
    char text[700];
    va_list args;
    va_start(args, format);
    vsnprintf(text, sizeof text, format, args);
    va_end(args);
    pthread_mutex_lock(&j->lock);
    if (j->count < FAILURES_KEPT) {
        snprintf(j->text[j->count], sizeof j->text[0], "%9.3f s: %s", (double)(e2e_now_ns() - j->start_ns) / 1e9, text);
        write_entry(j, stdout, "FAILURE ", text);
    }
    j->count++;
    write_entry(j, j->log, "FAILURE ", text);
    pthread_mutex_unlock(&j->lock);
}

/* ---- outages ---- */

void outage_begin(outages *o, bool graceful) {
    pthread_mutex_lock(&o->lock);
    assert_true(o->count < OUTAGES_MAX);
    o->item[o->count].from_ns = e2e_now_ns();
    o->item[o->count].to_ns = UINT64_MAX;
    o->item[o->count++].graceful = graceful;
    pthread_mutex_unlock(&o->lock);
}

void outage_end(outages *o) {
    enum { CLIENTS_CONNECT_NS = 5 };
    pthread_mutex_lock(&o->lock);
    if (o->count) o->item[o->count - 1].to_ns = e2e_now_ns() + CLIENTS_CONNECT_NS * 1000000000ull;
    pthread_mutex_unlock(&o->lock);
}

void outage_thaw(outages *o) {
    enum { CLIENTS_BEAR_MS = 4500 };
    pthread_mutex_lock(&o->lock);
    bool borne = o->count && e2e_now_ns() - o->item[o->count - 1].from_ns < CLIENTS_BEAR_MS * 1000000ull;
    if (borne) o->count--;
    pthread_mutex_unlock(&o->lock);
    if (!borne) outage_end(o);
}

bool outage_excuses(outages *o, uint64_t from_ns, uint64_t to_ns, bool begun) {
    bool excused = false;
    pthread_mutex_lock(&o->lock);
    for (uint32_t i = 0; i < o->count && !excused; i++)
        excused = o->item[i].from_ns <= to_ns && o->item[i].to_ns >= from_ns && !(begun && o->item[i].graceful);
    pthread_mutex_unlock(&o->lock);
    return excused;
}

/* ---- the run ---- */

static void storm(soak *s, uint64_t until_ns) {
    uint64_t next = e2e_now_ns() + FAULT_LOW_MS * 1000000ull;
    while (e2e_now_ns() < until_ns && s->journal.count < FAILURES_TOO_MANY) {
        cluster_mend(&s->c, false);
        load_watch(s->l);
        if (e2e_now_ns() >= next) {
            cluster_fault(&s->c);
            next = e2e_now_ns() + (FAULT_LOW_MS + cluster_roll(&s->c, FAULT_HIGH_MS - FAULT_LOW_MS)) * 1000000u;
        }
        e2e_pause();
    }
}

static void calm(soak *s, uint64_t until_ns) {
    while (e2e_now_ns() < until_ns && s->journal.count < FAILURES_TOO_MANY) {
        cluster_mend(&s->c, false); /* nothing is due: this only looks whether somebody ended */
        load_watch(s->l);
        e2e_pause();
    }
}

static void prepare(soak *s) {
    proxy *net = proxy_create();
    s->journal.start_ns = e2e_now_ns();
    s->c.journal = &s->journal;
    s->c.net = net;
    s->c.random = s->o.seed;
    s->c.attempts_max = s->o.attempts;
    memcpy(s->c.often, s->o.often, sizeof s->c.often);
    cluster_start(&s->c);
    load_options lo = {.seed = s->o.seed, .threads = THREADS, .per_s = s->o.rate, .journal = &s->journal, .net = net};
    for (uint32_t r = 0; r < ROUTERS; r++) {
        lo.outages[r] = &s->c.outages[r];
        snprintf(lo.address[r], sizeof lo.address[r], "%s", s->c.m[NODES + r].control);
        assert_true(proxy_lane(net, "127.0.0.1", 0, lo.address[r], &lo.fragile_lane[r]));
    }
    s->l = load_create(&lo);
    s->m = measure_start(&s->c, (tally *)(uintptr_t)load_tally(s->l));
}

static void execute(soak *s) {
    uint64_t start = e2e_now_ns(), total = s->o.seconds * 1000000000ull;
    uint64_t calm_ns = KVF_MAX(total / 4, KVF_MIN(total / 3, (uint64_t)CALM_LEAST_S * 1000000000u));
    if (s->o.calm) calm_ns = KVF_MIN(s->o.calm * 1000000000ull, total);
    load_start(s->l);
    storm(s, start + total - calm_ns);
    journal_say(&s->journal, "no more faults");
    cluster_mend(&s->c, true);
    journal_say(&s->journal, "all are ready");
    load_hurry(s->l, true); /* who has just started shall have met the worst before it is judged */
    calm(s, e2e_now_ns() + KVF_MIN(calm_ns / 4, (uint64_t)WARM_MOST_S * 1000000000u));
    load_hurry(s->l, false);
    calm(s, e2e_now_ns() + KVF_MIN(calm_ns / 6, (uint64_t)REST_MOST_S * 1000000000u));
    journal_say(&s->journal, "all are warm");
    measure_calm(s->m);
    calm(s, KVF_MAX(start + total, e2e_now_ns() + calm_ns / 2));
    measure_stop(s->m);
    load_stop(s->l);
    journal_say(&s->journal, "no more load");
    s->clean = cluster_audit(&s->c, &s->blocks_checked, &s->leaked, &s->violations);
    if (s->clean && !load_check_all(s->l)) journal_fail(&s->journal, "the mended cluster does not answer as it should");
    s->clean = s->clean && cluster_audit(&s->c, &s->blocks_checked, &s->leaked, &s->violations);
    if (!s->clean) journal_fail(&s->journal, "the cluster is not clean at rest");
    cluster_counters(&s->c, &s->counters);
}

static void judge_slopes(soak *s) {
    static const char *const names[] = {[ROLE_PREFILL] = "prefill nodes", "decode nodes", "routers"};
    for (member_role role = ROLE_PREFILL; role <= ROLE_ROUTER; role++) {
        trend a = measure_role(s->m, role, 0), b = measure_role(s->m, role, 1);
        if (KVF_MIN(a.span, b.span) >= requests_least && KVF_MIN(a.low, b.low) > bytes_per_request_max)
            journal_fail(&s->journal, "%s: memory grows by %.0f, then %.0f bytes with each request", names[role],
                a.slope, b.slope);
    }
    for (uint32_t i = 0; i < MEMBERS; i++) {
        trend f = measure_fds(s->m, i);
        if (f.low > fds_per_min_max && f.low * f.span > fds_per_min_max)
            journal_fail(
                &s->journal, "%s: descriptors grow by %.1f a minute, at least %.1f", s->c.m[i].id, f.slope, f.low);
    }
}

static void finish(soak *s) {
    load_destroy(s->l);
    cluster_stop(&s->c);
    proxy_destroy(s->c.net);
    measure_destroy(s->m);
    if (s->journal.log) fclose(s->journal.log);
}

/* ---- interrupted ---- */

static soak *running; /* for the handler only */

/* Processes of a soak that was told to end would live on: nobody else knows them. */
static void on_signal(int number) {
    for (uint32_t i = 0; i < MEMBERS; i++) {
        if (running->c.m[i].p.pid > 0) kill(running->c.m[i].p.pid, SIGKILL);
        if (running->c.m[i].old.pid > 0) kill(running->c.m[i].old.pid, SIGKILL);
    }
    _exit(128 + number);
}

static void end_with_children(soak *s) {
    static const int numbers[] = {SIGINT, SIGTERM, SIGHUP};
    running = s;
    for (size_t i = 0; i < KVF_COUNT_OF(numbers); i++) signal(numbers[i], on_signal);
}

/* ---- options ---- */

static int usage(void) {
    fprintf(stderr, "kvferry-soak [--seconds N] [--seed N] [--report FILE] [--log FILE] [--rate N] [--attempts N]\n"
                    "             [--calm N] [--often FAULT]...\n");
    return 2;
}

static bool choose_often(options *o, const char *name) {
    for (size_t i = 0; i < FAULTS; i++)
        if (strcmp(fault_names[i], name) == 0) return o->often[i] = true;
    return false;
}

static int parse(int argc, char **argv, options *o) {
    static const struct option names[] = {{"seconds", required_argument, NULL, 's'},
        {"seed", required_argument, NULL, 'e'}, {"report", required_argument, NULL, 'r'},
        {"log", required_argument, NULL, 'l'}, {"rate", required_argument, NULL, 'q'},
        {"attempts", required_argument, NULL, 'a'}, {"calm", required_argument, NULL, 'c'},
        {"often", required_argument, NULL, 'o'}, {NULL, 0, NULL, 0}};
    for (int c; (c = getopt_long(argc, argv, "", names, NULL)) != -1;) switch (c) {
        case 's': o->seconds = (uint32_t)strtoul(optarg, NULL, 10); break;
        case 'e': o->seed = strtoull(optarg, NULL, 10); break;
        case 'r': o->report = optarg; break;
        case 'l': o->log = optarg; break;
        case 'q': o->rate = strtod(optarg, NULL); break;
        case 'c': o->calm = (uint32_t)strtoul(optarg, NULL, 10); break;
        case 'o':
            if (!choose_often(o, optarg)) return usage();
            break;
        case 'a': o->attempts = (uint32_t)strtoul(optarg, NULL, 10); break;
        default: return usage();
        }
    return optind < argc || o->seconds == 0 || o->rate <= 0 ? usage() : 0;
}

int main(int argc, char **argv) {
    soak *s = calloc(1, sizeof *s);
    if (!s) return 1;
    s->o = (options){.seconds = 120, .attempts = 3, .rate = 20, .seed = 1};
    int wrong = parse(argc, argv, &s->o);
    if (wrong) return wrong;
    setvbuf(stdout, NULL, _IOLBF, 0);
    if (s->o.log && !(s->journal.log = fopen(s->o.log, "w"))) return usage();
    pthread_mutex_init(&s->journal.lock, NULL);
    printf("kvferry-soak --seconds %u --seed %llu --rate %g --attempts %u\n", s->o.seconds,
        (unsigned long long)s->o.seed, s->o.rate, s->o.attempts);
    end_with_children(s);
    prepare(s);
    execute(s);
    judge_slopes(s);
    report_text(s, stdout);
    if (s->o.report && !report_json(s, s->o.report)) journal_fail(&s->journal, "cannot write %s", s->o.report);
    finish(s);
    int status = s->journal.count ? 1 : 0;
    printf("%s\n", status ? "FAILED" : "passed");
    free(s);
    return status;
}
