/* Same bits: one request gives the same ids, text, logprobs and end whatever surrounds it: alone, in a crowd, cold,
 * warm, shipped or not, over shared memory or TCP, with one thread or two, on one pair of nodes or four nodes (field
 * case SC-03). */
#include "harness.h"
#include <string.h>

enum { JOBS = 24, CROWD = 32, IDS_MAX = 700 };

typedef struct {
    uint32_t ids[JOBS][IDS_MAX];
    e2e_ask asks[JOBS];
    e2e_answer alone[JOBS]; /* the reference: first of all, one at a time, on one node */
    size_t count;
} jobs;

/* Prompts around the block size and longer than a prefill chunk; greedy and seeded; n of 1 and 3; penalties through
 * logit bias. */
static void make_jobs(jobs *j, size_t count, uint32_t vocab_first, uint32_t vocab_end, uint32_t max) {
    static const size_t lengths[] = {1, 15, 16, 17, 33, 200, 700, 48};
    uint64_t seed = 5;
    j->count = count;
    for (size_t i = 0; i < count; i++) {
        size_t length = lengths[i % KVF_COUNT_OF(lengths)];
        for (size_t t = 0; t < length; t++)
            j->ids[i][t] = vocab_first + (uint32_t)(e2e_random(&seed) % (vocab_end - vocab_first));
        e2e_ask *a = &j->asks[i];
        e2e_ask_ids(a, j->ids[i], length, max);
        a->logprobs = true;
        a->dis = KVFERRY__V1__DISAGGREGATE__DISAGGREGATE_NEVER;
        a->temperature = i % 2 ? 0.9f : 0;
        a->seeded = true;
        a->seed = i;
        if (i % 6 == 5) a->n = 3;
        if (i % 5 == 4) {
            a->bias_count = 1;
            a->bias_ids[0] = vocab_first;
            a->bias[0] = 2;
        }
    }
}

static void run_alone(e2e_cluster *c, jobs *j) {
    for (size_t i = 0; i < j->count; i++) e2e_gen_ok(c, &j->asks[i], &j->alone[i]);
}

/* Every job `rounds` times at once in the given modes; the rest of the crowd is the other jobs. Returns pages that
 * travelled. */
static uint64_t compare_crowd(e2e_cluster *c, jobs *j, size_t rounds, int dis, uint32_t threads) {
    size_t count = j->count * rounds;
    e2e_ask *asks = calloc(count, sizeof *asks);
    e2e_answer *answers = calloc(count, sizeof *answers);
    uint64_t pages = 0;
    for (size_t i = 0; i < count; i++) {
        asks[i] = j->asks[i % j->count];
        asks[i].dis = dis >= 0
                          ? (Kvferry__V1__Disaggregate)dis
                          : (Kvferry__V1__Disaggregate)(KVFERRY__V1__DISAGGREGATE__DISAGGREGATE_AUTO + (i * 7 / 3) % 3);
    }
    e2e_crowd(c, asks, answers, count, threads);
    for (size_t i = 0; i < count; i++) {
        if (answers[i].result.code != KVF_RPC_OK)
            fail_msg(
                "job %zu: %s %s", i % j->count, kvf_rpc_code_name(answers[i].result.code), answers[i].result.message);
        if (!e2e_same(&answers[i], &j->alone[i % j->count]))
            fail_msg("job %zu (of %zu ids, mode %d, %u cached, %s) differs from itself alone", i % j->count,
                asks[i].ids_count, (int)asks[i].dis, answers[i].cached_tokens, answers[i].request_id);
        pages += answers[i].pages_moved;
        e2e_answer_free(&answers[i]);
    }
    free(asks);
    free(answers);
    return pages;
}

static void one_by_one(e2e_cluster *c, jobs *j, int dis) { compare_crowd(c, j, 1, dis, 1); }

static void free_jobs(jobs *j) {
    for (size_t i = 0; i < j->count; i++) e2e_answer_free(&j->alone[i]);
    free(j);
}

static jobs *new_jobs(void) {
    jobs *j = calloc(1, sizeof *j);
    assert_non_null(j);
    return j;
}

enum { MIXED = -1 };

static void whole(const char *model, const char *const *args, jobs *j, bool reference, const char *transport) {
    e2e_cluster c;
    e2e_start(&c, model, args);
    if (reference) run_alone(&c, j);
    e2e_flush(&c);
    assert_true(compare_crowd(&c, j, 1, E2E_ALWAYS, 1) > 0); /* cold */
    one_by_one(&c, j, E2E_ALWAYS); /* warm on both nodes */
    one_by_one(&c, j, E2E_NEVER);
    one_by_one(&c, j, E2E_AUTO);
    e2e_flush(&c);
    compare_crowd(&c, j, 4, MIXED, CROWD); /* cold at first */
    compare_crowd(&c, j, 4, MIXED, CROWD); /* warm */
    Kvferry__V1__ClusterState *s = e2e_state(&c);
    assert_true(s->n_pairs >= 1);
    for (size_t i = 0; i < s->n_pairs; i++) assert_true(kvf_proto_text_equal(s->pairs[i]->transport, transport));
    kvf_rpc_message_free(&s->base);
    e2e_assert_clean(&c);
    e2e_stop(&c);
}

static void tiny_shm_and_tcp(void **state) {
    (void)state;
    jobs *j = new_jobs();
    make_jobs(j, JOBS, 0, 256, 24);
    const char *one[] = {"--threads", "1", NULL};
    const char *two[] = {"--threads", "2", "--transports=tcp", NULL};
    whole(E2E_TINY("llama"), one, j, true, "shm");
    whole(E2E_TINY("llama"), two, j, false, "tcp");
    free_jobs(j);
}

static void four_nodes(void **state) {
    (void)state;
    jobs *j = new_jobs();
    make_jobs(j, JOBS, 0, 256, 16);
    const char *base[] = {"--threads", "2", NULL};
    const char *more[] = {"--threads", "1", "--prefill", "2", "--decode", "2", "--prefill-chunk-tokens=16", NULL};
    whole(E2E_TINY("qwen3"), base, j, true, "shm");
    whole(E2E_TINY("qwen3"), more, j, false, "shm");
    free_jobs(j);
}

static void small_pool(void **state) {
    (void)state;
    jobs *j = new_jobs();
    make_jobs(j, 16, 0, 256, 24);
    e2e_cluster c;
    e2e_start(&c, E2E_TINY("mistral-wide-head"), NULL);
    run_alone(&c, j);
    e2e_stop(&c);
    /* Chunks of 64, and a pool of some 120 blocks for a crowd that wants several hundred: many
     * wait. */
    const char *args[] = {"--prefill-chunk-tokens=64", "--kv-memory", "1536KiB", NULL};
    e2e_start(&c, E2E_TINY("mistral-wide-head"), args);
    compare_crowd(&c, j, 2, MIXED, CROWD);
    e2e_assert_clean(&c);
    e2e_stop(&c);
    free_jobs(j);
}

static void exact_arithmetic(void **state) {
    (void)state;
    jobs *j = new_jobs();
    make_jobs(j, 16, 0, 256, 12);
    const char *one[] = {"--threads", "1", "--precision=exact", "--kv-type=f32", NULL};
    const char *two[] = {"--threads", "2", "--precision=exact", "--kv-type=f32", "--transports=tcp", NULL};
    whole(E2E_TINY("qwen2"), one, j, true, "shm");
    whole(E2E_TINY("qwen2"), two, j, false, "tcp");
    free_jobs(j);
}

static void eight_bit_pages(void **state) {
    (void)state;
    jobs *j = new_jobs();
    make_jobs(j, 12, 0, 256, 12);
    const char *one[] = {"--threads", "1", "--kv-type=q8", NULL};
    const char *two[] = {"--threads", "2", "--kv-type=q8", "--transports=tcp", NULL};
    whole(E2E_TINY("qwen3"), one, j, true, "shm");
    whole(E2E_TINY("qwen3"), two, j, false, "tcp");
    free_jobs(j);
}

static void real_model(void **state) {
    (void)state;
    jobs *j = new_jobs();
    make_jobs(j, 8, 20, 49000, 8);
    const char *args[] = {"--kv-memory", "128MiB", NULL};
    e2e_cluster c;
    e2e_start(&c, E2E_SMOLLM2, args);
    run_alone(&c, j);
    e2e_flush(&c);
    assert_true(compare_crowd(&c, j, 1, E2E_ALWAYS, CROWD) > 0);
    compare_crowd(&c, j, 4, MIXED, CROWD);
    e2e_assert_clean(&c);
    e2e_stop(&c);
    free_jobs(j);
}

int main(int argc, char **argv) {
    const struct CMUnitTest tiny[] = {
        cmocka_unit_test(tiny_shm_and_tcp),
        cmocka_unit_test(four_nodes),
        cmocka_unit_test(small_pool),
        cmocka_unit_test(exact_arithmetic),
        cmocka_unit_test(eight_bit_pages),
    };
    const struct CMUnitTest real[] = {cmocka_unit_test(real_model)};
    if (argc < 2) return cmocka_run_group_tests(tiny, NULL, NULL);
    assert_string_equal(argv[1], "smollm2");
    e2e_need_file(E2E_SMOLLM2, "sample model");
    return cmocka_run_group_tests(real, NULL, NULL);
}
