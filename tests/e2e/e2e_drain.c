/* SIGTERM to each role with streams running and requests waiting (field cases OP-03, GR-03): what runs ends as if
 * nothing had happened, new work is refused or goes elsewhere, health watches are closed, the exit status is 0; a
 * second SIGTERM ends a process at once. */
#include "grpc/health/v1/health.pb-c.h"
#include "kinds.h"
#include "parts.h"
#include <pthread.h>
#include <signal.h>
#include <string.h>
#include <unistd.h>

enum { STREAMS = 10, PROMPT = 300 };

typedef struct {
    e2e_parts k;
    uint32_t ids[STREAMS][PROMPT];
    e2e_ask ask[STREAMS];
    e2e_answer want[STREAMS], got[STREAMS];
    pthread_t threads[STREAMS];
    atomic_uint next, first_token;
} fixture;

/* With one decode node of four places, six of ten streams wait. */
static fixture *start(size_t nodes, uint32_t tokens) {
    fixture *f = calloc(1, sizeof *f);
    assert_non_null(f);
    f->k = (e2e_parts){.model = E2E_TINY("llama"),
        .node_args = {"--kv-memory=6MiB", "--prefill-chunk-tokens=64", "--node-heartbeat=50ms"},
        .node_env = "KVFERRY_TEST_HOOKS=step_ms=4"};
    if (nodes == 1) f->k.node_args[3] = "--kv-memory=1MiB";
    e2e_parts_start(&f->k, nodes, nodes, 1);
    for (size_t i = 0; i < STREAMS; i++) {
        uint64_t r = i + 50;
        for (size_t t = 0; t < PROMPT; t++) f->ids[i][t] = (uint32_t)(e2e_random(&r) % 256);
        e2e_ask_ids(&f->ask[i], f->ids[i], PROMPT, tokens);
        f->ask[i].dis = E2E_ALWAYS;
        f->ask[i].seeded = f->ask[i].logprobs = true;
        f->ask[i].temperature = 0.9f;
    }
    if (tokens <= 200) e2e_crowd(&f->k.router[0], f->ask, f->want, STREAMS, STREAMS);
    for (size_t i = 0; i < STREAMS; i++) {
        if (tokens <= 200) assert_int_equal(f->want[i].result.code, KVF_RPC_OK);
        f->ask[i].salt = "once more"; /* no prefix is cached */
    }
    return f;
}

static void *stream(void *self) {
    fixture *f = self;
    uint32_t i = atomic_fetch_add(&f->next, 1);
    e2e_answer *got = &f->got[i];
    kvf_rpc_reader *reader = e2e_open(&f->k.router[0], &f->ask[i]);
    ProtobufCMessage *message;
    while (kvf_rpc_reader_next(reader, &message) == KVF_OK) {
        bool first = got->choice[0].ids_count == 0;
        e2e_take(got, message);
        kvf_rpc_message_free(message);
        if (first && got->choice[0].ids_count) atomic_fetch_add(&f->first_token, 1);
    }
    got->result = *kvf_rpc_reader_result(reader);
    kvf_rpc_reader_close(reader);
    return NULL;
}

typedef struct {
    fixture *f;
    uint32_t count;
} running;

static bool run(void *self) { return atomic_load(&((running *)self)->f->first_token) >= ((running *)self)->count; }

static void open_streams(fixture *f, uint32_t running_count) {
    for (size_t i = 0; i < STREAMS; i++) assert_int_equal(pthread_create(&f->threads[i], NULL, stream, f), 0);
    e2e_until("streams run", run, &(running){f, running_count});
}

static uint32_t join(fixture *f) {
    uint32_t attempts = 0;
    for (size_t i = 0; i < STREAMS; i++) pthread_join(f->threads[i], NULL);
    for (size_t i = 0; i < STREAMS; i++) attempts = KVF_MAX(attempts, (uint32_t)f->got[i].attempts);
    return attempts;
}

static void all_as_wanted(fixture *f) {
    for (size_t i = 0; i < STREAMS; i++) {
        const e2e_answer *got = &f->got[i];
        if (got->result.code != KVF_RPC_OK || !e2e_kind_same(&f->want[i], got))
            fail_msg("stream %zu, %u tokens: %s %s", i, got->choice[0].ids_count, kvf_rpc_code_name(got->result.code),
                got->result.message);
    }
}

static void end(fixture *f) {
    for (size_t i = 0; i < STREAMS; i++) {
        e2e_answer_free(&f->want[i]);
        e2e_answer_free(&f->got[i]);
    }
    free(f);
}

static void node_drains(const char *id) {
    fixture *f = start(2, 150);
    e2e_part *p = e2e_part_find(&f->k, id);
    open_streams(f, p->prefill ? 1 : STREAMS / 2);
    kill(p->process.pid, SIGTERM);
    assert_int_equal(e2e_process_wait(&p->process), 0);
    uint32_t attempts = join(f);
    all_as_wanted(f);
    print_message("%s left, its streams ended: %u attempts at most\n", id, attempts);
    if (!p->prefill) assert_int_equal(attempts, 1); /* a prompt that waited on a prefill node may be sent elsewhere */
    unlink(p->process.log);
    e2e_part_start(&f->k, p);
    e2e_parts_all_ready(&f->k);
    e2e_assert_clean(&f->k.router[0]);
    e2e_parts_stop(&f->k);
    end(f);
}

static void a_decode_node_drains(void **state) {
    (void)state;
    node_drains("d0");
}

static void a_prefill_node_drains(void **state) {
    (void)state;
    node_drains("p1");
}

/* Twice: now. Its streams go on at the other. */
static void a_node_is_told_twice(void **state) {
    (void)state;
    fixture *f = start(2, 200);
    e2e_part *d0 = e2e_part_find(&f->k, "d0");
    open_streams(f, STREAMS);
    uint64_t told_ns = e2e_now_ns();
    kill(d0->process.pid, SIGTERM);
    e2e_pause(); /* two at once would be one */
    kill(d0->process.pid, SIGTERM);
    assert_int_equal(e2e_process_wait(&d0->process), 0);
    print_message("told twice, gone after %u ms\n", (unsigned)((e2e_now_ns() - told_ns) / 1000000));
    join(f);
    all_as_wanted(f);
    unlink(d0->process.log);
    e2e_part_start(&f->k, d0);
    e2e_parts_all_ready(&f->k);
    e2e_assert_clean(&f->k.router[0]);
    e2e_parts_stop(&f->k);
    end(f);
}

/* ---- the router ---- */

typedef struct {
    e2e_cluster *c;
    pthread_t thread;
    atomic_bool stop;
    atomic_uint taken, refused, other;
} knocker;

/* Keeps opening streams, as clients do that do not know of the drain. */
static void *knock(void *self) {
    knocker *n = self;
    static const uint32_t ids[4] = {1, 2, 3, 4};
    while (!atomic_load(&n->stop)) {
        e2e_ask a;
        e2e_answer got;
        e2e_ask_ids(&a, ids, 4, 2);
        a.deadline_ms = 20000;
        a.priority = 10; /* not behind the waiting ones */
        e2e_gen(n->c, &a, &got);
        if (got.result.code == KVF_RPC_OK)
            atomic_fetch_add(&n->taken, 1);
        else if (got.result.code == KVF_RPC_UNAVAILABLE)
            atomic_fetch_add(&n->refused, 1);
        else if (atomic_fetch_add(&n->other, 1) == 0)
            print_message("not refused: %s %s\n", kvf_rpc_code_name(got.result.code), got.result.message);
        e2e_answer_free(&got);
        e2e_pause();
    }
    return NULL;
}

static void the_router_drains(void **state) {
    (void)state;
    fixture *f = start(1, 150);
    e2e_cluster *c = &f->k.router[0];
    kvf_rpc_reader *watch;
    ProtobufCMessage *message;
    Grpc__Health__V1__HealthCheckRequest r = GRPC__HEALTH__V1__HEALTH_CHECK_REQUEST__INIT;
    assert_int_equal(kvf_rpc_reader_open(c->client, &grpc__health__v1__health__descriptor, "Watch", &r.base,
                         KVF_RPC_NO_DEADLINE, &watch),
        KVF_OK);
    open_streams(f, 1);
    Kvferry__V1__ClusterState *s = e2e_state(c);
    print_message("%u requests wait\n", (unsigned)s->queued);
    kvf_rpc_message_free(&s->base);
    knocker n = {.c = c};
    assert_int_equal(pthread_create(&n.thread, NULL, knock, &n), 0);
    kill(c->serve.pid, SIGTERM);
    join(f);
    all_as_wanted(f); /* those that waited too */
    int seen[4] = {0}, count = 0;
    while (kvf_rpc_reader_next(watch, &message) == KVF_OK) { /* ended by the router */
        assert_true(count < 4);
        seen[count++] = (int)((Grpc__Health__V1__HealthCheckResponse *)(void *)message)->status;
        kvf_rpc_message_free(message);
    }
    kvf_rpc_reader_close(watch);
    assert_int_equal(count, 2);
    assert_int_equal(seen[0], KVF_RPC_HEALTH_SERVING);
    assert_int_equal(seen[1], KVF_RPC_HEALTH_NOT_SERVING);
    assert_int_equal(e2e_process_wait(&c->serve), 0);
    atomic_store(&n.stop, true);
    pthread_join(n.thread, NULL);
    print_message("meanwhile %u requests were taken, %u refused\n", n.taken, n.refused);
    assert_true(n.refused > 0);
    assert_int_equal(n.other, 0);
    e2e_router_start_again(&f->k, 0);
    e2e_assert_clean(c);
    e2e_parts_stop(&f->k);
    end(f);
}

static void the_router_is_told_twice(void **state) {
    (void)state;
    fixture *f = start(1, 400); /* long enough to be cut */
    e2e_cluster *c = &f->k.router[0];
    open_streams(f, 1);
    uint64_t told_ns = e2e_now_ns();
    kill(c->serve.pid, SIGTERM);
    e2e_pause();
    kill(c->serve.pid, SIGTERM);
    join(f);
    for (size_t i = 0; i < STREAMS; i++) assert_int_equal(f->got[i].result.code, KVF_RPC_UNAVAILABLE);
    assert_int_equal(e2e_process_wait(&c->serve), 0);
    print_message("told twice, gone after %u ms\n", (unsigned)((e2e_now_ns() - told_ns) / 1000000));
    e2e_router_start_again(&f->k, 0);
    e2e_assert_clean(c); /* the new router's Hello frees what the old one had */
    e2e_parts_stop(&f->k);
    end(f);
}

static bool is_done(void *self) {
    Kvferry__V1__ClusterState *s = e2e_state(self);
    bool done = s->requests_finished == 2;
    kvf_rpc_message_free(&s->base);
    return done;
}

/* The request is over for the router, most of its answer still lies there, and the client reads on for seconds. */
static void the_router_waits_for_slow_readers(void **state) {
    (void)state;
    e2e_parts k = {.model = E2E_TINY("llama")};
    e2e_parts_start(&k, 1, 1, 1);
    e2e_cluster *c = &k.router[0];
    uint32_t ids[20] = {0};
    e2e_ask a;
    e2e_answer want, got = {0};
    e2e_ask_ids(&a, ids, 20, 700);
    a.logprobs = true;
    a.top_logprobs = 20;
    e2e_gen_ok(c, &a, &want);
    kvf_rpc_reader *reader = e2e_open(c, &a);
    e2e_until("the request is over", is_done, c);
    kill(c->serve.pid, SIGTERM);
    ProtobufCMessage *message;
    while (kvf_rpc_reader_next(reader, &message) == KVF_OK) {
        e2e_take(&got, message);
        kvf_rpc_message_free(message);
        if (got.choice[0].ids_count < 200) e2e_pause();
    }
    got.result = *kvf_rpc_reader_result(reader);
    if (got.result.code != KVF_RPC_OK)
        fail_msg("%u of 700 tokens, then %s", got.choice[0].ids_count, got.result.message);
    assert_true(e2e_same(&want, &got));
    kvf_rpc_reader_close(reader);
    assert_int_equal(e2e_process_wait(&c->serve), 0);
    e2e_router_start_again(&k, 0);
    e2e_parts_stop(&k);
    e2e_answer_free(&want);
    e2e_answer_free(&got);
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(a_decode_node_drains), cmocka_unit_test(a_prefill_node_drains),
        cmocka_unit_test(a_node_is_told_twice), cmocka_unit_test(the_router_drains),
        cmocka_unit_test(the_router_is_told_twice), cmocka_unit_test(the_router_waits_for_slow_readers)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
