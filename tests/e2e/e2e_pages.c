/* KV pages through a whole cluster: what is cached, shared, copied, preempted (field cases KV-01, KV-03, KV-05, KV-06,
 * KV-07). */
#include "harness.h"
#include <string.h>

enum { BLOCK = 16 };

static void random_ids(uint32_t *ids, size_t count, uint64_t seed) {
    for (size_t i = 0; i < count; i++) ids[i] = (uint32_t)(e2e_random(&seed) % 256);
}

/* Counts reach the router with the next heartbeat: an audit asks the node itself. */
static uint64_t sealed_now(e2e_cluster *c, const char *node) {
    Kvferry__V1__AuditResponse *a = e2e_audit(c);
    uint64_t count = UINT64_MAX;
    for (size_t i = 0; i < a->n_nodes; i++)
        if (kvf_proto_text_equal(a->nodes[i]->id, node)) count = a->nodes[i]->blocks->sealed;
    kvf_rpc_message_free(&a->base);
    assert_true(count != UINT64_MAX);
    return count;
}

/* KV-01: the same prompt again, then one token more, for lengths around three blocks. */
static void hits_around_block_ends(e2e_cluster *c, int dis, uint32_t first, uint32_t last) {
    for (uint32_t length = first; length <= last; length++) {
        uint32_t ids[64];
        random_ids(ids, 64, 1000 * (uint64_t)dis + length);
        e2e_ask a;
        e2e_ask_ids(&a, ids, length, 4);
        a.dis = (Kvferry__V1__Disaggregate)dis;
        a.logprobs = true;
        e2e_answer cold, warm, longer, longer_cold;
        e2e_gen_ok(c, &a, &cold);
        e2e_gen_ok(c, &a, &warm);
        assert_int_equal(cold.usage_cached, 0);
        assert_true(e2e_same(&cold, &warm));
        assert_int_equal(warm.usage_cached, BLOCK * ((length - 1) / BLOCK));
        assert_int_equal(warm.usage_prompt, length);
        a.ids_count = length + 1;
        e2e_gen_ok(c, &a, &longer);
        assert_int_equal(longer.usage_cached, BLOCK * (length / BLOCK));
        a.salt = "nobody else's";
        e2e_gen_ok(c, &a, &longer_cold);
        assert_int_equal(longer_cold.usage_cached, 0);
        assert_true(e2e_same(&longer, &longer_cold));
        e2e_answer_free(&cold);
        e2e_answer_free(&warm);
        e2e_answer_free(&longer);
        e2e_answer_free(&longer_cold);
    }
}

static void kv_01(void **state) {
    (void)state;
    e2e_cluster c;
    e2e_start(&c, E2E_TINY("llama"), NULL);
    hits_around_block_ends(&c, E2E_NEVER, 1, 49);
    hits_around_block_ends(&c, E2E_ALWAYS, 1, 49);
    e2e_assert_clean(&c);
    e2e_stop(&c);
}

/* KV-03: equal tokens under different salts never meet, on either node. */
static void kv_03(void **state) {
    (void)state;
    static const char *const salts[] = {NULL, "x", "y"};
    e2e_cluster c;
    e2e_start(&c, E2E_TINY("llama"), NULL);
    for (int dis = E2E_AUTO; dis <= E2E_NEVER; dis++) {
        uint32_t ids[64];
        random_ids(ids, 64, (uint64_t)dis);
        e2e_ask a;
        e2e_ask_ids(&a, ids, 64, 4);
        a.dis = (Kvferry__V1__Disaggregate)dis;
        for (uint32_t round = 0; round < 2; round++)
            for (size_t i = 0; i < KVF_COUNT_OF(salts); i++) {
                e2e_answer got;
                a.salt = salts[i];
                e2e_gen_ok(&c, &a, &got);
                assert_int_equal(got.usage_cached, round ? 48 : 0);
                e2e_answer_free(&got);
            }
    }
    /* The same 3 full blocks under 3 salts are 9 blocks with 9 names on each node that holds them. */
    Kvferry__V1__GetBlocksResponse *b = e2e_blocks(&c, "d0");
    assert_false(b->truncated);
    for (size_t i = 0; i < b->n_blocks; i++)
        for (size_t k = 0; k < i; k++)
            assert_false(
                b->blocks[i]->prefix_hash.len && b->blocks[i]->prefix_hash.len == b->blocks[k]->prefix_hash.len &&
                memcmp(b->blocks[i]->prefix_hash.data, b->blocks[k]->prefix_hash.data, b->blocks[i]->prefix_hash.len) ==
                    0);
    kvf_rpc_message_free(&b->base);
    e2e_assert_clean(&c);
    e2e_stop(&c);
}

/* tiny/llama-mha with KV in f32: 1,536 bytes a token, 24 KiB a block. */
#define BLOCKS(text_of_bytes) "--kv-type=f32", "--kv-memory", text_of_bytes

/* KV-05: 50 blocks of 16 tokens. */
static void kv_05(void **state) {
    (void)state;
    const char *args[] = {BLOCKS("1228800"), NULL};
    e2e_cluster c;
    e2e_start(&c, E2E_TINY("llama-mha"), args);
    Kvferry__V1__ClusterState *s = e2e_state(&c);
    assert_int_equal(e2e_node(s, "d0")->blocks->total, 50);
    kvf_rpc_message_free(&s->base);
    uint32_t ids[2][900];
    random_ids(ids[0], 900, 1);
    random_ids(ids[1], 900, 2);
    for (int dis = E2E_AUTO; dis <= E2E_NEVER; dis++) {
        e2e_ask a;
        e2e_ask_ids(&a, ids[0], 900, 4);
        a.dis = (Kvferry__V1__Disaggregate)dis;
        e2e_refused(&c, &a, KVF_RPC_INVALID_ARGUMENT, NULL);
        e2e_ask_ids(&a, ids[0], 700, 200);
        a.dis = (Kvferry__V1__Disaggregate)dis;
        e2e_refused(&c, &a, KVF_RPC_INVALID_ARGUMENT, NULL);
        e2e_ask pair[2];
        e2e_answer got[2];
        for (int i = 0; i < 2; i++) {
            e2e_ask_ids(&pair[i], ids[i], 450, 100);
            pair[i].dis = (Kvferry__V1__Disaggregate)dis;
        }
        e2e_crowd(&c, pair, got, 2, 2);
        for (int i = 0; i < 2; i++) {
            if (got[i].result.code != KVF_RPC_OK) fail_msg("mode %d: %s", dis, got[i].result.message);
            assert_int_equal(got[i].choice[0].ids_count, 100);
            e2e_answer_free(&got[i]);
        }
    }
    e2e_assert_clean(&c);
    e2e_stop(&c);
}

/* KV-06: room for one and a half of two streams whose length is not known before: preempted and taken up again, byte
 * for byte. */
static void kv_06(void **state) {
    (void)state;
    uint32_t ids[3][300];
    e2e_ask asks[6];
    e2e_answer alone[6], got[6];
    for (size_t i = 0; i < 3; i++) random_ids(ids[i], 300, 60 + i);
    for (size_t i = 0; i < 6; i++) {
        e2e_ask_ids(&asks[i], ids[i % 3], 300, 600);
        asks[i].logprobs = true;
        asks[i].temperature = i < 3 ? 0 : 0.8f;
        asks[i].seeded = true;
        asks[i].seed = 7;
        asks[i].dis = i % 2 ? E2E_ALWAYS : E2E_NEVER;
    }
    e2e_cluster c;
    const char *plenty[] = {BLOCKS("64MiB"), NULL};
    e2e_start(&c, E2E_TINY("llama-mha"), plenty);
    for (size_t i = 0; i < 6; i++) e2e_gen_ok(&c, &asks[i], &alone[i]);
    e2e_stop(&c);
    const char *args[] = {BLOCKS("2211840"), "--decode-expected-output=16", NULL}; /* 90 blocks: one and a half of 57 */
    e2e_start(&c, E2E_TINY("llama-mha"), args);
    e2e_crowd(&c, asks, got, 6, 6);
    uint64_t preemptions;
    e2e_counters n;
    e2e_node_counters(&c, "d0", &n);
    preemptions = n.preemptions;
    for (size_t i = 0; i < 6; i++) {
        if (got[i].result.code != KVF_RPC_OK) fail_msg("stream %zu: %s", i, got[i].result.message);
        assert_true(e2e_same(&alone[i], &got[i]));
        assert_int_equal(got[i].choice[0].completion_tokens, 600);
        e2e_answer_free(&got[i]);
        e2e_answer_free(&alone[i]);
    }
    print_message("%llu preemptions\n", (unsigned long long)preemptions);
    assert_true(preemptions >= 3);
    assert_true(preemptions <= 600); /* far below one per token */
    e2e_assert_clean(&c);
    e2e_stop(&c);
}

/* KV-07: choices of one request share the prompt's pages and nothing else. */
static void kv_07(void **state) {
    (void)state;
    e2e_cluster c;
    e2e_start(&c, E2E_TINY("llama"), NULL);
    uint32_t ids[20];
    random_ids(ids, 20, 7);
    for (int dis = E2E_AUTO; dis <= E2E_NEVER; dis++) {
        e2e_ask a;
        e2e_ask_ids(&a, ids, 20, 24);
        a.dis = (Kvferry__V1__Disaggregate)dis;
        a.temperature = 1;
        a.seeded = true;
        a.seed = 7;
        a.bias_count = 1;
        a.bias_ids[0] = 'q';
        a.bias[0] = 3;
        e2e_answer one, three, again;
        e2e_gen_ok(&c, &a, &one);
        a.n = 3;
        e2e_gen_ok(&c, &a, &three);
        e2e_gen_ok(&c, &a, &again);
        assert_true(e2e_same(&three, &again));
        assert_true(one.choice[0].ids_count == 24 && memcmp(one.choice[0].ids, three.choice[0].ids, 24 * 4) == 0);
        for (int i = 1; i < 3; i++) assert_memory_not_equal(three.choice[0].ids, three.choice[i].ids, 24 * 4);
        assert_memory_not_equal(three.choice[1].ids, three.choice[2].ids, 24 * 4);
        assert_int_equal(three.usage_prompt, 20);
        e2e_answer_free(&one);
        e2e_answer_free(&three);
        e2e_answer_free(&again);
        a.n = 8;
        a.temperature = 0;
        e2e_gen_ok(&c, &a, &again);
        for (int i = 1; i < 8; i++) assert_memory_equal(again.choice[0].ids, again.choice[i].ids, 24 * 4);
        e2e_answer_free(&again);
    }
    e2e_assert_clean(&c);
    e2e_stop(&c);
}

/* The second of two conversations with an equal prefix of 1,000 tokens adds only what differs. */
static void shared_prefix(e2e_cluster *c, const char *node, int dis, uint64_t seed, bool holds_output) {
    enum { PREFIX = 1000, LENGTH = 1100, OUT = 20 };
    uint32_t ids[2][LENGTH];
    random_ids(ids[0], LENGTH, seed);
    memcpy(ids[1], ids[0], sizeof ids[0]);
    random_ids(ids[1] + PREFIX, LENGTH - PREFIX, seed + 1);
    ids[1][PREFIX] = (ids[0][PREFIX] + 1) % 256;
    e2e_answer got;
    e2e_ask a;
    e2e_flush(c);
    uint64_t before = sealed_now(c, node);
    e2e_ask_ids(&a, ids[0], LENGTH, OUT);
    a.dis = (Kvferry__V1__Disaggregate)dis;
    e2e_gen_ok(c, &a, &got);
    assert_string_equal(got.decode_node, "d0");
    e2e_answer_free(&got);
    e2e_assert_clean(c);
    uint64_t after_first = sealed_now(c, node);
    a.ids = ids[1];
    e2e_gen_ok(c, &a, &got);
    assert_int_equal(got.usage_cached, BLOCK * (PREFIX / BLOCK));
    if (dis == E2E_ALWAYS)
        assert_true(got.pages_moved > 0 && got.pages_moved <= 3 * (uint64_t)(LENGTH / BLOCK - PREFIX / BLOCK + 1));
    e2e_answer_free(&got);
    e2e_assert_clean(c);
    uint64_t after_second = sealed_now(c, node);
    /* Full blocks of what is kept: prompt and, where it is decoded, output (the last token is never written). */
    uint64_t full = (LENGTH + (holds_output ? OUT - 1 : 0)) / BLOCK;
    assert_int_equal(before, 0);
    assert_int_equal(after_first, full);
    assert_int_equal(after_second, full + full - PREFIX / BLOCK);
}

static void prefix_is_held_once(void **state) {
    (void)state;
    e2e_cluster c;
    e2e_start(&c, E2E_TINY("llama"), NULL);
    shared_prefix(&c, "d0", E2E_NEVER, 10, true);
    shared_prefix(&c, "d0", E2E_ALWAYS, 20, true);
    shared_prefix(&c, "p0", E2E_ALWAYS, 30, false);
    e2e_stop(&c);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(kv_01),
        cmocka_unit_test(kv_03),
        cmocka_unit_test(kv_05),
        cmocka_unit_test(kv_06),
        cmocka_unit_test(kv_07),
        cmocka_unit_test(prefix_is_held_once),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
