/* Two routers on the same nodes, and one of them dies: its clients hear UNAVAILABLE, what it had on the nodes is free
 * when node.router_grace is over, the streams of the other go on untouched, and a new process in its place knows at
 * once what the nodes have cached. */
#include "kinds.h"
#include "parts.h"
#include <signal.h>
#include <string.h>

enum { STREAMS = 5, PREFIXES = 6, PREFIX = 320, GRACE_MS = 600 };

static void start(e2e_parts *k) {
    *k = (e2e_parts){.model = E2E_TINY("llama-mha"),
        .node_args = {"--kv-memory=6MiB", "--prefill-chunk-tokens=64", "--node-heartbeat=50ms", "--router-grace=600ms"},
        .node_env = "KVFERRY_TEST_HOOKS=step_ms=3"};
    e2e_parts_start(k, 2, 2, 2);
}

typedef struct {
    kvf_rpc_reader *reader[STREAMS];
    e2e_answer got[STREAMS];
} streams;

/* Streams that would run for long: half of them still in prefill, half of them decoding. */
static void open_streams(streams *s, e2e_cluster *c, const uint32_t *ids) {
    for (size_t i = 0; i < STREAMS; i++) {
        ProtobufCMessage *message;
        e2e_ask a;
        e2e_ask_ids(&a, ids + i, 600, 3000);
        a.dis = E2E_ALWAYS;
        s->got[i] = (e2e_answer){0};
        s->reader[i] = e2e_open(c, &a);
        while (!s->got[i].admitted || (i % 2 && !s->got[i].choice[0].ids_count)) {
            assert_int_equal(kvf_rpc_reader_next(s->reader[i], &message), KVF_OK);
            e2e_take(&s->got[i], message);
            kvf_rpc_message_free(message);
        }
    }
}

static void all_unavailable(streams *s) {
    for (size_t i = 0; i < STREAMS; i++) {
        ProtobufCMessage *message;
        while (kvf_rpc_reader_next(s->reader[i], &message) == KVF_OK) kvf_rpc_message_free(message);
        assert_int_equal(kvf_rpc_reader_result(s->reader[i])->code, KVF_RPC_UNAVAILABLE);
        kvf_rpc_reader_close(s->reader[i]);
        e2e_answer_free(&s->got[i]);
    }
}

static void fill(uint32_t *ids, size_t count, uint64_t seed) {
    for (size_t i = 0; i < count; i++) ids[i] = (uint32_t)(e2e_random(&seed) % 256);
}

typedef struct {
    e2e_clients *clients;
    uint32_t until;
} more;

static bool answered(void *self) { return atomic_load(&((more *)self)->clients->done) >= ((more *)self)->until; }

/* The other router's clients notice nothing: not an error, not a further attempt. */
static void streams_of_the_other_go_on(void **state) {
    (void)state;
    e2e_parts k;
    e2e_kinds *kinds = calloc(1, sizeof *kinds);
    e2e_clients *clients = calloc(1, sizeof *clients);
    uint32_t ids[600 + STREAMS];
    streams s;
    start(&k);
    fill(ids, KVF_COUNT_OF(ids), 9);
    e2e_kinds_make(kinds, &k.router[1]);
    e2e_clients_start(clients, kinds, &k.router[1], 4, 3);
    for (int round = 0; round < 3; round++) {
        open_streams(&s, &k.router[0], ids);
        /* Closing our channel first would cancel the streams: only the death shall end them. */
        kill(k.router[0].serve.pid, SIGKILL);
        all_unavailable(&s);
        e2e_router_kill(&k, 0);
        e2e_until("some are answered", answered, &(more){clients, atomic_load(&clients->done) + 8});
        e2e_router_start(&k, 0);
        e2e_parts_all_ready(&k);
    }
    e2e_clients_all_well(clients, "the other router");
    assert_int_equal(clients->retried, 0);
    e2e_kinds_free(kinds);
    e2e_assert_clean(&k.router[1]);
    e2e_parts_stop(&k);
    free(clients);
    free(kinds);
}

static bool at_rest(void *self) {
    Kvferry__V1__AuditResponse *a = e2e_audit(self);
    bool rest = a->at_rest;
    assert_int_equal(a->n_violations, 0);
    for (size_t i = 0; i < a->n_nodes; i++) {
        const Kvferry__V1__BlockCounts *b = a->nodes[i]->blocks;
        if (b) rest &= b->pinned + b->in_use + b->booked + b->filling == 0 && a->nodes[i]->running == 0;
    }
    kvf_rpc_message_free(&a->base);
    return rest;
}

static void its_blocks_come_back(void **state) {
    (void)state;
    e2e_parts k;
    streams s;
    uint32_t ids[600 + STREAMS];
    start(&k);
    fill(ids, KVF_COUNT_OF(ids), 10);
    open_streams(&s, &k.router[0], ids);
    assert_false(at_rest(&k.router[1]));
    uint64_t killed_ns = e2e_now_ns();
    kill(k.router[0].serve.pid, SIGKILL);
    all_unavailable(&s);
    assert_false(at_rest(&k.router[1]) && e2e_now_ns() < killed_ns + (uint64_t)GRACE_MS / 2 * 1000000u);
    e2e_until("what the dead router had is free", at_rest, &k.router[1]);
    print_message("a dead router's blocks were free %u ms after its death; its grace is %d ms\n",
        (unsigned)((e2e_now_ns() - killed_ns) / 1000000), GRACE_MS);
    e2e_assert_clean(&k.router[1]);
    e2e_router_kill(&k, 0);
    k.routers = 1; /* only the other is left to stop */
    k.router[0] = k.router[1];
    e2e_parts_stop(&k);
}

/* The directory is soft state: a new router is told by the nodes what they hold, and sends equal prefixes there. */
static void a_new_router_finds_cached_prefixes(void **state) {
    (void)state;
    e2e_parts k;
    uint32_t ids[PREFIXES][PREFIX];
    e2e_answer first[PREFIXES], again;
    start(&k);
    for (size_t i = 0; i < PREFIXES; i++) {
        e2e_ask a;
        fill(ids[i], PREFIX, 100 + i);
        e2e_ask_ids(&a, ids[i], PREFIX, 12);
        a.dis = E2E_ALWAYS;
        e2e_gen_ok(&k.router[0], &a, &first[i]);
    }
    e2e_router_kill(&k, 0);
    e2e_router_start(&k, 0);
    e2e_parts_all_ready(&k);
    for (size_t i = 0; i < PREFIXES; i++) {
        e2e_ask a;
        e2e_ask_ids(&a, ids[i], PREFIX, 12);
        a.dis = E2E_ALWAYS;
        e2e_gen_ok(&k.router[0], &a, &again);
        assert_string_equal(again.decode_node, first[i].decode_node);
        assert_int_equal(again.cached_tokens, (PREFIX - 1) / 16 * 16);
        assert_true(e2e_same(&first[i], &again));
        e2e_answer_free(&again);
        e2e_answer_free(&first[i]);
    }
    e2e_assert_clean(&k.router[0]); /* its directory equals the nodes' truth (I8) */
    e2e_assert_clean(&k.router[1]);
    e2e_parts_stop(&k);
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(streams_of_the_other_go_on),
        cmocka_unit_test(its_blocks_come_back), cmocka_unit_test(a_new_router_finds_cached_prefixes)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
