/* After any mixture of finished and abandoned requests nothing is held, memory and descriptors are flat; who leaves
 * stops the work, and a normal end counts no abort (field case AP-08). */
#include "harness.h"
#include <string.h>

typedef struct {
    size_t warm, count, chunk; /* chunk: of requests made at a time, so that their prompts need not all be in memory */
    uint32_t threads, vocab_first, vocab_end, lengths[4], outputs[3];
} load;

typedef struct {
    uint64_t ok, cancelled, expired;
} tally;

static void make_ask(e2e_ask *a, uint32_t *ids, const load *l, uint64_t seed) {
    uint64_t r = seed;
    uint32_t length = l->lengths[e2e_random(&r) % 4];
    for (uint32_t i = 0; i < length; i++)
        ids[i] = l->vocab_first + (uint32_t)(e2e_random(&r) % (l->vocab_end - l->vocab_first));
    e2e_ask_ids(a, ids, length, l->outputs[e2e_random(&r) % 3]);
    a->dis = (Kvferry__V1__Disaggregate)(E2E_AUTO + e2e_random(&r) % 3);
    a->temperature = e2e_random(&r) % 2 ? 0.7f : 0;
    a->ignore_eos = e2e_random(&r) % 2;
    if (e2e_random(&r) % 4 == 0) a->n = 3;
    if (e2e_random(&r) % 4 == 0) a->salt = "salt";
    if (e2e_random(&r) % 8 == 0) a->stops[0] = "e";
    switch (e2e_random(&r) % 9) {
    case 0: a->cancel_at_once = true; break;
    case 1: a->cancel_after = 1 + (uint32_t)(e2e_random(&r) % 6); break;
    case 2: a->deadline_ms = 1 + e2e_random(&r) % 50; break;
    default: break;
    }
}

static void check(const e2e_ask *a, const e2e_answer *got, tally *t) {
    bool leaves = a->cancel_at_once || a->cancel_after || a->deadline_ms;
    switch (got->result.code) {
    case KVF_RPC_OK:
        t->ok++;
        assert_int_equal(got->finished, a->n ? a->n : 1);
        break;
    case KVF_RPC_CANCELLED: t->cancelled++; break;
    case KVF_RPC_DEADLINE_EXCEEDED: t->expired++; break;
    default: fail_msg("%s: %s", kvf_rpc_code_name(got->result.code), got->result.message);
    }
    if (!leaves) assert_int_equal(got->result.code, KVF_RPC_OK);
}

static void run_load(e2e_cluster *c, const load *l, size_t first, size_t count, tally *t) {
    enum { LENGTH_MAX = 4096 };
    uint32_t *ids = malloc(l->chunk * LENGTH_MAX * sizeof *ids);
    e2e_ask *asks = calloc(l->chunk, sizeof *asks);
    e2e_answer *answers = calloc(l->chunk, sizeof *answers);
    assert_true(ids && asks && answers);
    for (size_t done = 0; done < count; done += l->chunk) {
        size_t now = KVF_MIN(l->chunk, count - done);
        for (size_t i = 0; i < now; i++) make_ask(&asks[i], ids + i * LENGTH_MAX, l, 9000 + first + done + i);
        e2e_crowd(c, asks, answers, now, l->threads);
        for (size_t i = 0; i < now; i++) {
            check(&asks[i], &answers[i], t);
            e2e_answer_free(&answers[i]);
        }
    }
    free(ids);
    free(asks);
    free(answers);
}

static void idle_clean(const char *model, const char *const *args, const load *l) {
    e2e_cluster c;
    tally t = {0};
    uint64_t anon[2], fds[2];
    e2e_start(&c, model, args);
    run_load(&c, l, 0, l->warm, &t);
    e2e_assert_clean(&c);
    e2e_usage(&c, &anon[0], &fds[0]);
    run_load(&c, l, l->warm, l->count, &t);
    e2e_assert_clean(&c);
    e2e_usage(&c, &anon[1], &fds[1]);
    print_message("%llu finished, %llu cancelled, %llu past their deadline; anonymous %llu -> %llu KiB, descriptors "
                  "%llu -> %llu\n",
        (unsigned long long)t.ok, (unsigned long long)t.cancelled, (unsigned long long)t.expired,
        (unsigned long long)anon[0], (unsigned long long)anon[1], (unsigned long long)fds[0],
        (unsigned long long)fds[1]);
    assert_true(t.cancelled + t.expired >= (l->warm + l->count) / 9);
    assert_true(fds[1] <= fds[0] + 8);
#ifndef E2E_SANITIZED /* quarantined memory grows by design */
    assert_true(anon[1] <= anon[0] + anon[0] / 8 + 12288);
#endif
    e2e_stop(&c);
}

static void tiny_thousand(void **state) {
    (void)state;
    const char *args[] = {"--kv-memory", "4MiB", "--decode", "2", "--prefill", "2", NULL};
    const load l = {.warm = 500,
        .count = 1000,
        .chunk = 100,
        .threads = 16,
        .vocab_end = 256,
        .lengths = {3, 40, 300, 900},
        .outputs = {1, 8, 40}};
    idle_clean(E2E_TINY("llama"), args, &l);
}

static void tiny_tcp(void **state) {
    (void)state;
    const char *args[] = {"--kv-memory", "2MiB", "--transports=tcp", NULL};
    const load l = {.warm = 100,
        .count = 200,
        .chunk = 100,
        .threads = 24,
        .vocab_end = 256,
        .lengths = {17, 64, 500, 1500},
        .outputs = {1, 8, 100}};
    idle_clean(E2E_TINY("qwen2"), args, &l);
}

static void real_model(void **state) {
    (void)state;
    const char *args[] = {"--kv-memory", "96MiB", NULL};
    const load l = {.warm = 30,
        .count = 150,
        .chunk = 75,
        .threads = 16,
        .vocab_first = 20,
        .vocab_end = 49000,
        .lengths = {3, 20, 60, 300},
        .outputs = {1, 4, 8}};
    idle_clean(E2E_SMOLLM2, args, &l);
}

/* Weights are resident once per host (each process maps the file), and beyond KV memory and packed weights, which are
 * no larger than the file, a process has little memory of its own. */
static void memory_of_its_own(void **state) {
    (void)state;
    static const char *const roles[] = {"router", "prefill-node", "decode-node"};
    enum { KV_KIB = 96 << 10, OWN_KIB = 64 << 10, FILE_KIB = 98362432 >> 10 };
    const char *args[] = {"--kv-memory", "96MiB", NULL};
    const load l = {.warm = 0,
        .count = 40,
        .chunk = 40,
        .threads = 16,
        .vocab_first = 20,
        .vocab_end = 49000,
        .lengths = {3, 20, 60, 300},
        .outputs = {1, 4, 8}};
    e2e_cluster c;
    tally t = {0};
    e2e_start(&c, E2E_SMOLLM2, args);
    run_load(&c, &l, 0, l.count, &t);
    for (size_t i = 0; i < KVF_COUNT_OF(roles); i++) {
        pid_t pid;
        assert_int_equal(e2e_children(&c, roles[i], &pid, 1), 1);
        uint64_t packed = e2e_maps_shared(pid, ".kvfpack") ? 0 : FILE_KIB; /* no cache folder: each node's own */
        uint64_t anon = e2e_anon_kib(pid), large = i ? KV_KIB + packed : 0;
        print_message("%s: %llu KiB anonymous, of which %lld KiB are neither KV nor packed weights\n", roles[i],
            (unsigned long long)anon, (long long)anon - (long long)large);
        assert_true(anon <= large + OWN_KIB);
        assert_true(e2e_maps_shared(pid, "SmolLM2"));
    }
    e2e_stop(&c);
}

/* ---- AP-08 ---- */

static uint64_t cancels(e2e_cluster *c) {
    e2e_counters p, d;
    e2e_node_counters(c, "p0", &p);
    e2e_node_counters(c, "d0", &d);
    return p.cancels + d.cancels;
}

static void normal_ends_are_no_aborts(void **state) {
    (void)state;
    e2e_cluster c;
    e2e_start(&c, E2E_TINY("llama"), NULL);
    uint32_t ids[100];
    for (uint32_t i = 0; i < 100; i++) ids[i] = (i * 7) % 256;
    uint64_t before = cancels(&c);
    for (int dis = E2E_AUTO; dis <= E2E_NEVER; dis++)
        for (uint32_t n = 1; n <= 3; n += 2)
            for (uint32_t max = 1; max <= 9; max += 4) {
                e2e_ask a;
                e2e_answer got;
                e2e_ask_ids(&a, ids, 100, max);
                a.dis = (Kvferry__V1__Disaggregate)dis;
                a.n = n;
                e2e_gen_ok(&c, &a, &got); /* length */
                uint32_t stop = got.choice[0].ids[max / 2];
                e2e_answer_free(&got);
                a.stop_ids = &stop;
                a.stop_ids_count = 1;
                e2e_gen_ok(&c, &a, &got); /* a stop id */
                assert_int_equal(got.choice[0].reason, KVFERRY__V1__FINISH_REASON__FINISH_REASON_STOP_TOKEN);
                e2e_answer_free(&got);
                kvf_rpc_result result;
                Kvferry__V1__CompleteResponse *whole = e2e_complete(&c, &a, &result);
                assert_int_equal(result.code, KVF_RPC_OK);
                kvf_rpc_message_free(&whole->base);
            }
    e2e_assert_clean(&c);
    assert_int_equal(cancels(&c), before);
    e2e_stop(&c);
}

/* Eight prompts of 4,000 tokens, left when they are admitted: most of the work must never be done. */
static void leaving_stops_the_work(void **state) {
    (void)state;
    enum { COUNT = 8, LENGTH = 4000 };
    const char *args[] = {"--threads", "1", "--prefill-chunk-tokens=16", NULL};
    e2e_cluster c;
    e2e_start(&c, E2E_TINY("llama"), args);
    uint32_t *ids = malloc(COUNT * LENGTH * sizeof *ids);
    e2e_ask asks[COUNT];
    e2e_answer got[COUNT];
    uint64_t seed = 8;
    for (size_t i = 0; i < COUNT * LENGTH; i++) ids[i] = (uint32_t)(e2e_random(&seed) % 256);
    for (size_t i = 0; i < COUNT; i++) {
        e2e_ask_ids(&asks[i], ids + i * LENGTH, LENGTH, 50);
        asks[i].dis = i % 2 ? E2E_ALWAYS : E2E_NEVER;
        if (i < COUNT / 2)
            asks[i].cancel_after = 1;
        else
            asks[i].deadline_ms = 20;
    }
    e2e_crowd(&c, asks, got, COUNT, COUNT);
    for (size_t i = 0; i < COUNT; i++) {
        assert_true(got[i].result.code == KVF_RPC_CANCELLED || got[i].result.code == KVF_RPC_DEADLINE_EXCEEDED);
        e2e_answer_free(&got[i]);
    }
    e2e_assert_clean(&c);
    e2e_counters p, d;
    e2e_node_counters(&c, "p0", &p);
    e2e_node_counters(&c, "d0", &d);
    print_message("%llu of %d prompt tokens computed\n", (unsigned long long)(p.prefill_tokens + d.prefill_tokens),
        COUNT * LENGTH);
    assert_true(p.prefill_tokens + d.prefill_tokens < COUNT * LENGTH / 2);
    free(ids);
    e2e_stop(&c);
}

int main(int argc, char **argv) {
    const struct CMUnitTest tiny[] = {
        cmocka_unit_test(tiny_thousand),
        cmocka_unit_test(tiny_tcp),
        cmocka_unit_test(normal_ends_are_no_aborts),
        cmocka_unit_test(leaving_stops_the_work),
    };
    const struct CMUnitTest real[] = {cmocka_unit_test(real_model), cmocka_unit_test(memory_of_its_own)};
    if (argc < 2) return cmocka_run_group_tests(tiny, NULL, NULL);
    e2e_need_file(E2E_SMOLLM2, "sample model");
    return cmocka_run_group_tests(real, NULL, NULL);
}
