/* Processes that start, die, come back and drain; files that are refused (field cases SC-08, GR-06, MF-01, MF-02). */
#include "harness.h"
#include "grpc/health/v1/health.pb-c.h"
#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <string.h>
#include <unistd.h>

static void random_ids(uint32_t *ids, size_t count, uint64_t seed) {
    for (size_t i = 0; i < count; i++) ids[i] = (uint32_t)(e2e_random(&seed) % 256);
}

/* ---- model files ---- */

static void refused(const char *path, const char *command, const char *expected) {
    const char *serve[] = {"serve", "--model", path, "--listen", "127.0.0.1:0", NULL};
    const char *node[] = {command, "--model", path, "--control", "127.0.0.1:0", NULL};
    e2e_process p;
    e2e_spawn(&p, strcmp(command, "serve") == 0 ? serve : node);
    assert_false(p.ready);
    int status = e2e_process_wait(&p);
    char *log = e2e_read_file(p.log);
    if (status <= 0 || status >= 128 || !strstr(log, expected))
        fail_msg("%s %s: exit %d, %s", command, path, status, log);
    assert_null(strstr(p.out, "ready"));
    free(log);
    unlink(p.log);
}

static void write_file(const char *path, const void *data, size_t bytes) {
    FILE *f = fopen(path, "wb");
    assert_non_null(f);
    assert_int_equal(fwrite(data, 1, bytes, f), bytes);
    assert_int_equal(fclose(f), 0);
}

static void bad_model_files(void **state) {
    (void)state;
    char path[] = "/tmp/kvf-e2e-bad.gguf.XXXXXX";
    close(mkstemp(path));
    FILE *f = fopen(E2E_TINY("llama"), "rb");
    assert_non_null(f);
    fseek(f, 0, SEEK_END);
    size_t bytes = (size_t)ftell(f);
    rewind(f);
    uint8_t *good = malloc(bytes);
    assert_int_equal(fread(good, 1, bytes, f), bytes);
    fclose(f);
    static const char *const commands[] = {"serve", "prefill-node", "decode-node"};
    for (size_t i = 0; i < KVF_COUNT_OF(commands); i++) {
        refused("/nonexistent/model.gguf", commands[i], "/nonexistent/model.gguf");
        write_file(path, good, 0);
        refused(path, commands[i], path);
        write_file(path, "not a model, but a text that is long enough", 43);
        refused(path, commands[i], path);
        write_file(path, good, bytes - 1); /* the tensor and both sizes are named */
        refused(path, commands[i], "tensor");
        write_file(path, good, bytes / 2);
        refused(path, commands[i], "tensor");
        write_file(path, good, 100);
        refused(path, commands[i], path);
    }
    uint8_t *bad = malloc(bytes);
    memcpy(bad, good, bytes);
    memset(bad + 8, 0xff, 8); /* number of tensors */
    write_file(path, bad, bytes);
    refused(path, "serve", path);
    memcpy(bad, good, bytes);
    for (size_t i = 0; i + 5 < 400; i++) /* the architecture's name */
        if (memcmp(bad + i, "llama", 5) == 0 && memcmp(bad + i - 8, "\5\0\0\0\0\0\0\0", 8) == 0)
            memcpy(bad + i, "lambo", 5);
    write_file(path, bad, bytes);
    refused(path, "serve", "lambo");
    free(bad);
    free(good);
    unlink(path);
}

/* ---- single processes ---- */

typedef struct {
    char dir[32];
    char p0[96], d0[96], node_p0[128], node_d0[128];
    e2e_process p, d;
    e2e_cluster c; /* c.serve is the router */
} parts;

static void parts_start(parts *k, const char *fallback) {
    *k = (parts){.dir = "/tmp/kvf-e2e-XXXXXX"};
    assert_non_null(mkdtemp(k->dir));
    snprintf(k->p0, sizeof k->p0, "--control=unix:%s/p0.sock", k->dir);
    snprintf(k->d0, sizeof k->d0, "--control=unix:%s/d0.sock", k->dir);
    snprintf(k->node_p0, sizeof k->node_p0, "--node=p0,prefill,unix:%s/p0.sock", k->dir);
    snprintf(k->node_d0, sizeof k->node_d0, "--node=d0,decode,unix:%s/d0.sock", k->dir);
    const char *argv[] = {"router", "--model", E2E_TINY("llama"), "--listen", "127.0.0.1:0", "--admin", "127.0.0.1:0",
        k->node_p0, k->node_d0, fallback, "--ready-grace", "300ms", NULL};
    e2e_spawn(&k->c.serve, argv);
    assert_true(k->c.serve.ready);
    e2e_attach(&k->c);
}

static void start_node(parts *k, bool prefill) {
    const char *argv[] = {prefill ? "prefill-node" : "decode-node", "--model", E2E_TINY("llama"),
        prefill ? "--node-id=p0" : "--node-id=d0", prefill ? k->p0 : k->d0, NULL};
    e2e_process *p = prefill ? &k->p : &k->d;
    e2e_spawn(p, argv);
    if (!p->ready) fail_msg("no node: %s", p->log);
}

static void parts_stop(parts *k) {
    e2e_detach(&k->c);
    assert_int_equal(e2e_process_stop(&k->c.serve), 0);
    assert_int_equal(e2e_process_stop(&k->p), 0);
    assert_int_equal(e2e_process_stop(&k->d), 0);
    rmdir(k->dir);
}

static bool serving(void *self) { return e2e_health(((parts *)self)->c.client, "readiness") == KVF_RPC_HEALTH_SERVING; }
static bool not_serving(void *self) {
    return e2e_health(((parts *)self)->c.client, "readiness") == KVF_RPC_HEALTH_NOT_SERVING;
}

static uint32_t ready_nodes(parts *k) {
    Kvferry__V1__ClusterState *s = e2e_state(&k->c);
    uint32_t ready = 0;
    for (size_t i = 0; i < s->n_nodes; i++)
        ready += s->nodes[i]->role != KVFERRY__V1__ROLE__ROLE_ROUTER &&
                 s->nodes[i]->state == KVFERRY__V1__NODE_STATE__NODE_STATE_READY;
    kvf_rpc_message_free(&s->base);
    return ready;
}

static bool one_ready(void *self) { return ready_nodes(self) == 1; }
static bool both_ready(void *self) { return ready_nodes(self) == 2; }

static void sc_08(const char *flag, bool strict) {
    parts k;
    uint32_t ids[600];
    e2e_ask a;
    e2e_answer want, got;
    random_ids(ids, 600, 8);
    parts_start(&k, flag);
    start_node(&k, false);
    e2e_until("the decode node is taken up", one_ready, &k);
    if (!strict) e2e_until("a decode node alone serves", serving, &k);
    e2e_ask_ids(&a, ids, 600, 16);
    for (int dis = E2E_AUTO; dis <= E2E_ALWAYS; dis++) {
        a.dis = (Kvferry__V1__Disaggregate)dis;
        e2e_gen(&k.c, &a, &got);
        assert_int_equal(got.result.code, strict ? KVF_RPC_UNAVAILABLE : KVF_RPC_OK);
        if (strict) {
            print_message("refused: %s\n", got.result.message);
            assert_non_null(strstr(got.result.message, "prefill"));
        } else if (dis == E2E_AUTO) {
            want = got;
            continue;
        } else {
            assert_true(e2e_same(&want, &got));
        }
        e2e_answer_free(&got);
    }
    Kvferry__V1__AuditResponse *audit = e2e_audit(&k.c);
    assert_int_equal(audit->n_violations, 0);
    assert_false(audit->at_rest); /* p0 cannot be asked */
    kvf_rpc_message_free(&audit->base);
    start_node(&k, true); /* no restart of anything else */
    e2e_until("the prefill node is taken up", both_ready, &k);
    e2e_until("both nodes serve", serving, &k);
    a.salt = "cold";
    a.dis = E2E_ALWAYS;
    e2e_gen_ok(&k.c, &a, &got);
    assert_true(got.pages_moved > 0);
    if (!strict) {
        assert_memory_equal(got.choice[0].ids, want.choice[0].ids, 16 * 4);
        e2e_answer_free(&want);
    }
    e2e_answer_free(&got);
    e2e_assert_clean(&k.c);
    parts_stop(&k);
}

static void no_prefill_node_strict(void **state) {
    (void)state;
    sc_08("--prefill-fallback=false", true);
}
static void no_prefill_node_fallback(void **state) {
    (void)state;
    sc_08("--prefill-fallback=true", false);
}

/* ---- GR-06 ---- */

typedef struct {
    kvf_rpc_reader *reader;
    int seen[16];
    atomic_uint count;
} watcher;

static void *watch(void *self) {
    watcher *w = self;
    ProtobufCMessage *message;
    while (kvf_rpc_reader_next(w->reader, &message) == KVF_OK) {
        uint32_t n = atomic_load(&w->count);
        if (n < KVF_COUNT_OF(w->seen))
            w->seen[n] = (int)((Grpc__Health__V1__HealthCheckResponse *)(void *)message)->status;
        atomic_store(&w->count, n + 1);
        kvf_rpc_message_free(message);
    }
    return NULL;
}

static void *long_stream(void *self) {
    parts *k = self;
    static e2e_answer got;
    uint32_t ids[20];
    random_ids(ids, 20, 3);
    e2e_ask a;
    e2e_ask_ids(&a, ids, 20, 3000);
    e2e_gen(&k->c, &a, &got);
    return &got;
}

static bool one_runs(void *self) {
    Kvferry__V1__ClusterState *s = e2e_state(&((parts *)self)->c);
    uint32_t running = 0;
    for (size_t i = 0; i < s->n_nodes; i++) running += s->nodes[i]->running;
    kvf_rpc_message_free(&s->base);
    return running > 0;
}

static void health_over_a_life(void **state) {
    (void)state;
    parts k;
    watcher w = {0};
    pthread_t thread, stream;
    parts_start(&k, "--prefill-fallback=true");
    assert_int_equal(e2e_health(k.c.client, ""), KVF_RPC_HEALTH_NOT_SERVING);
    assert_int_equal(e2e_health(k.c.client, "readiness"), KVF_RPC_HEALTH_NOT_SERVING);
    assert_int_equal(e2e_health(k.c.client, "liveness"), KVF_RPC_HEALTH_SERVING);
    Grpc__Health__V1__HealthCheckRequest r = GRPC__HEALTH__V1__HEALTH_CHECK_REQUEST__INIT;
    assert_int_equal(kvf_rpc_reader_open(k.c.client, &grpc__health__v1__health__descriptor, "Watch", &r.base,
                         KVF_RPC_NO_DEADLINE, &w.reader),
        KVF_OK);
    assert_int_equal(pthread_create(&thread, NULL, watch, &w), 0);
    start_node(&k, true);
    start_node(&k, false);
    e2e_until("both nodes are there", both_ready, &k);
    e2e_until("serving", serving, &k);
    kill(k.p.pid, SIGKILL);
    kill(k.d.pid, SIGKILL);
    e2e_process_wait(&k.p);
    e2e_process_wait(&k.d);
    unlink(k.p.log);
    unlink(k.d.log);
    e2e_until("no node: not serving", not_serving, &k);
    assert_int_equal(e2e_health(k.c.client, "liveness"), KVF_RPC_HEALTH_SERVING);
    start_node(&k, true);
    start_node(&k, false);
    e2e_until("both nodes are back", both_ready, &k);
    e2e_until("serving again", serving, &k);
    assert_int_equal(pthread_create(&stream, NULL, long_stream, &k), 0);
    e2e_until("a request runs", one_runs, &k);
    kill(k.c.serve.pid, SIGTERM);
    e2e_answer *got;
    pthread_join(stream, (void **)(void *)&got);
    if (got->result.code != KVF_RPC_OK) fail_msg("a running request was cut by the drain: %s", got->result.message);
    assert_int_equal(got->choice[0].ids_count, 3000);
    e2e_answer_free(got);
    pthread_join(thread, NULL); /* the watch ended by itself */
    assert_int_equal(e2e_process_wait(&k.c.serve), 0);
    static const int want[] = {KVF_RPC_HEALTH_NOT_SERVING, KVF_RPC_HEALTH_SERVING, KVF_RPC_HEALTH_NOT_SERVING,
        KVF_RPC_HEALTH_SERVING, KVF_RPC_HEALTH_NOT_SERVING};
    assert_int_equal(atomic_load(&w.count), KVF_COUNT_OF(want));
    assert_memory_equal(w.seen, want, sizeof want);
    kvf_rpc_reader_close(w.reader);
    e2e_detach(&k.c);
    assert_int_equal(e2e_process_stop(&k.p), 0);
    assert_int_equal(e2e_process_stop(&k.d), 0);
    unlink(k.c.serve.log);
    rmdir(k.dir);
}

/* ---- children that die ---- */

enum { CLIENTS = 4 };

typedef struct {
    e2e_cluster *c;
    const e2e_ask *ask;
    const e2e_answer *want;
    atomic_bool stop;
    atomic_uint next, done, failed, differ;
    char first_error[600];
} traffic;

static void *client(void *self) {
    traffic *t = self;
    while (!atomic_load(&t->stop)) {
        uint32_t i = atomic_fetch_add(&t->next, 1) % CLIENTS;
        e2e_answer got;
        e2e_gen(t->c, &t->ask[i], &got);
        if (got.result.code == KVF_RPC_OK) {
            atomic_fetch_add(&t->done, 1);
            if (!e2e_same(&got, &t->want[i])) atomic_fetch_add(&t->differ, 1);
        } else if (atomic_fetch_add(&t->failed, 1) == 0) {
            snprintf(t->first_error, sizeof t->first_error, "%s: %s", kvf_rpc_code_name(got.result.code),
                got.result.message);
        }
        e2e_answer_free(&got);
    }
    return NULL;
}

typedef struct {
    e2e_cluster *c;
    const char *role;
    pid_t old;
    traffic *t;
    uint32_t done;
} waiting;

static bool started_again(void *self) {
    waiting *w = self;
    pid_t pid;
    return e2e_children(w->c, w->role, &pid, 1) == 1 && pid != w->old;
}

static bool three_more(void *self) {
    waiting *w = self;
    return atomic_load(&w->t->done) >= w->done + 3;
}

static bool all_nodes(void *self) {
    Kvferry__V1__ClusterState *s = e2e_state(((waiting *)self)->c);
    bool ready = true;
    for (size_t i = 0; i < s->n_nodes; i++) ready &= s->nodes[i]->state == KVFERRY__V1__NODE_STATE__NODE_STATE_READY;
    kvf_rpc_message_free(&s->base);
    return ready;
}

static void dying_children(void **state) {
    (void)state;
    static const char *const roles[] = {"prefill-node", "decode-node", "prefill-node", "decode-node"};
    e2e_cluster c;
    uint32_t ids[CLIENTS][400];
    e2e_ask asks[CLIENTS];
    e2e_answer want[CLIENTS];
    pthread_t threads[CLIENTS];
    e2e_start(&c, E2E_TINY("llama"), NULL);
    for (size_t i = 0; i < CLIENTS; i++) {
        random_ids(ids[i], 400, i);
        e2e_ask_ids(&asks[i], ids[i], 400 - 60 * i, 60);
        asks[i].dis = i % 2 ? E2E_AUTO : E2E_ALWAYS;
        asks[i].temperature = i < 2 ? 0 : 0.8f;
        asks[i].seeded = true;
        e2e_gen_ok(&c, &asks[i], &want[i]);
    }
    traffic t = {.c = &c, .ask = asks, .want = want};
    for (size_t i = 0; i < CLIENTS; i++) assert_int_equal(pthread_create(&threads[i], NULL, client, &t), 0);
    for (size_t i = 0; i < KVF_COUNT_OF(roles); i++) {
        waiting w = {.c = &c, .role = roles[i], .t = &t, .done = atomic_load(&t.done)};
        e2e_until("requests are answered", three_more, &w);
        assert_int_equal(e2e_children(&c, roles[i], &w.old, 1), 1);
        kill(w.old, SIGKILL);
        e2e_until("serve starts it again", started_again, &w);
        e2e_until("the router takes it up", all_nodes, &w);
        w.done = atomic_load(&t.done);
        e2e_until("requests are answered after the death", three_more, &w);
    }
    atomic_store(&t.stop, true);
    for (size_t i = 0; i < CLIENTS; i++) pthread_join(threads[i], NULL);
    print_message("4 kills: %u answered, %u of them differ, %u failed%s%s\n", atomic_load(&t.done),
        atomic_load(&t.differ), atomic_load(&t.failed), t.failed ? ", first: " : "", t.first_error);
    assert_int_equal(atomic_load(&t.differ), 0); /* what ends well is right */
    e2e_answer got;
    for (size_t i = 0; i < CLIENTS; i++) {
        e2e_gen_ok(&c, &asks[i], &got);
        assert_true(e2e_same(&got, &want[i]));
        e2e_answer_free(&got);
        e2e_answer_free(&want[i]);
    }
    e2e_assert_clean(&c);
    e2e_stop(&c);
}

static void dying_router(void **state) {
    (void)state;
    e2e_cluster c;
    uint32_t ids[300];
    e2e_ask a;
    e2e_answer want, got;
    e2e_start(&c, E2E_TINY("llama"), NULL);
    random_ids(ids, 300, 1);
    e2e_ask_ids(&a, ids, 300, 20);
    a.dis = E2E_ALWAYS;
    e2e_gen_ok(&c, &a, &want);
    waiting w = {.c = &c, .role = "router"};
    kvf_rpc_reader *running = e2e_open(&c, &(e2e_ask){.ids = ids, .ids_count = 300, .max = 3000, .ignore_eos = true});
    ProtobufCMessage *message;
    assert_int_equal(kvf_rpc_reader_next(running, &message), KVF_OK);
    kvf_rpc_message_free(message);
    assert_int_equal(e2e_children(&c, "router", &w.old, 1), 1);
    kill(w.old, SIGKILL);
    while (kvf_rpc_reader_next(running, &message) == KVF_OK) kvf_rpc_message_free(message);
    assert_int_equal(kvf_rpc_reader_result(running)->code, KVF_RPC_UNAVAILABLE);
    kvf_rpc_reader_close(running);
    e2e_until("serve starts the router again", started_again, &w);
    parts k = {.c = c}; /* the same addresses */
    e2e_until("it serves", serving, &k);
    e2e_until("it knows its nodes", all_nodes, &w);
    e2e_gen_ok(&c, &a, &got);
    assert_true(e2e_same(&want, &got));
    e2e_answer_free(&got);
    e2e_answer_free(&want);
    e2e_assert_clean(&c); /* what the dead router had running is cancelled */
    e2e_stop(&c);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(bad_model_files),
        cmocka_unit_test(no_prefill_node_strict),
        cmocka_unit_test(no_prefill_node_fallback),
        cmocka_unit_test(health_over_a_life),
        cmocka_unit_test(dying_children),
        cmocka_unit_test(dying_router),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
