/* Threads that hang while the listener of their node answers (field case OP-02), and requests that kill whoever
 * computes them. A node that stands still with work at hand is NOT_SERVING within its stall limit and its work goes on
 * elsewhere; an idle node and a long prompt that steps are SERVING; a node that goes on again is used again. */
#include "kinds.h"
#include "parts.h"
#include <signal.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

enum { STALL_MS = 600, PROMPT = 600 };

typedef struct {
    e2e_parts k;
    char files[40], file[4][64], env[4][160];
    uint32_t ids[PROMPT];
    e2e_ask ask;
    e2e_answer want;
} fixture;

/* Two prefill, two decode nodes; each hangs while its file is there. */
static void start(fixture *f, const char *hook, const char *more, uint32_t tokens) {
    *f = (fixture){.files = "/tmp/kvf-e2e-hang-XXXXXX"};
    assert_non_null(mkdtemp(f->files));
    f->k = (e2e_parts){.model = E2E_TINY("llama"),
        .node_args = {"--kv-memory=4MiB", "--prefill-chunk-tokens=64", "--node-heartbeat=50ms", "--stall-limit=600ms"},
        .router_args = {"--node-timeout=700ms", "--node-grace=700ms"}};
    for (size_t i = 0; i < 4; i++) {
        snprintf(f->file[i], sizeof f->file[i], "%s/%zu", f->files, i);
        snprintf(f->env[i], sizeof f->env[i], "KVFERRY_TEST_HOOKS=%s=%s %s", hook, f->file[i], more);
        f->k.node[i].env = f->env[i];
    }
    e2e_parts_start(&f->k, 2, 2, 1);
    uint64_t r = 5;
    for (size_t i = 0; i < PROMPT; i++) f->ids[i] = (uint32_t)(e2e_random(&r) % 256);
    e2e_ask_ids(&f->ask, f->ids, PROMPT, tokens);
    f->ask.dis = E2E_ALWAYS;
    f->ask.logprobs = true;
    e2e_gen_ok(&f->k.router[0], &f->ask, &f->want);
}

static void stop(fixture *f) {
    e2e_assert_clean(&f->k.router[0]);
    e2e_answer_free(&f->want);
    e2e_parts_stop(&f->k);
    assert_int_equal(rmdir(f->files), 0);
}

static void hang(fixture *f, size_t node, bool on) {
    FILE *file = on ? fopen(f->file[node], "w") : NULL;
    if (on) {
        assert_non_null(file);
        fclose(file);
    } else {
        assert_int_equal(unlink(f->file[node]), 0);
    }
}

typedef struct {
    fixture *f;
    size_t node;
    int want;
} health_of;

/* Of the node itself, under every name. */
static bool health_is(void *self) {
    const health_of *h = self;
    static const char *const names[] = {"", "liveness", "readiness", "kvferry.internal.v1.Node"};
    char address[120];
    snprintf(address, sizeof address, "unix:%s", h->f->k.node[h->node].socket);
    kvf_rpc_channel *channel = NULL;
    kvf_rpc_channel_opts o = {.address = address};
    assert_int_equal(kvf_rpc_channel_create(h->f->k.router[0].rt, &o, &channel), KVF_OK);
    bool all = true;
    for (size_t i = 0; i < KVF_COUNT_OF(names); i++) all &= e2e_health(channel, names[i]) == h->want;
    kvf_rpc_channel_destroy(channel);
    return all;
}

static bool three_ready(void *self) { return e2e_parts_ready(&((fixture *)self)->k, 0) == 3; }

/* The node of `letter` that the next request goes to is stuck before it gets there: the request is answered all the
 * same. */
static void stuck(fixture *f, bool prefill) {
    size_t first = prefill ? 0 : 2;
    char salt[16];
    snprintf(salt, sizeof salt, "%d", prefill);
    f->ask.salt = salt;
    e2e_answer got = {0};
    kvf_rpc_reader *reader = e2e_open(&f->k.router[0], &f->ask);
    ProtobufCMessage *message;
    size_t node = SIZE_MAX;
    while (kvf_rpc_reader_next(reader, &message) == KVF_OK) {
        e2e_take(&got, message);
        kvf_rpc_message_free(message);
        if (node != SIZE_MAX || (!prefill && got.choice[0].ids_count < 5)) continue;
        const char *id = prefill ? got.prefill_node : got.decode_node;
        node = first + (id[1] == '1');
        hang(f, node, true);
    }
    assert_int_equal(kvf_rpc_reader_result(reader)->code, KVF_RPC_OK);
    kvf_rpc_reader_close(reader);
    assert_true(e2e_kind_same(&f->want, &got));
    e2e_until("a stuck node is not serving", health_is, &(health_of){f, node, KVF_RPC_HEALTH_NOT_SERVING});
    e2e_until("the router counts it as away", three_ready, f);
    e2e_answer_free(&got);
    e2e_gen_ok(&f->k.router[0], &f->ask, &got); /* with what is left */
    assert_true(e2e_kind_same(&f->want, &got));
    e2e_answer_free(&got);
    char *log = e2e_read_file(f->k.node[node].process.log);
    assert_non_null(strstr(log, "has made no progress for"));
    free(log);
    hang(f, node, false);
    e2e_until("it serves again", health_is, &(health_of){f, node, KVF_RPC_HEALTH_SERVING});
    e2e_parts_all_ready(&f->k);
}

static void engine_hangs(void **state) {
    (void)state;
    fixture f;
    start(&f, "hang_engine", "step_ms=10", 40);
    stuck(&f, true);
    stuck(&f, false);
    stop(&f);
}

static void core_hangs(void **state) {
    (void)state;
    fixture f;
    start(&f, "hang_core", "step_ms=10", 40);
    stuck(&f, true);
    stuck(&f, false);
    stop(&f);
}

typedef struct {
    fixture *f;
    uint64_t until_ns;
    uint32_t looks;
} watching;

static bool never_doubted(void *self) {
    watching *w = self;
    for (size_t i = 0; i < 4; i++) assert_true(health_is(&(health_of){w->f, i, KVF_RPC_HEALTH_SERVING}));
    w->looks++;
    return e2e_now_ns() >= w->until_ns && w->looks > 20; /* a busy machine looks seldom: then for longer */
}

/* An engine that would hang, but has nothing to do, is idle; and 100 ms steps are progress under a limit of 600. */
static void idle_and_slow_are_well(void **state) {
    (void)state;
    fixture f;
    start(&f, "hang_engine", "step_ms=100", 4);
    for (size_t i = 0; i < 4; i++) hang(&f, i, true);
    watching w = {.f = &f, .until_ns = e2e_now_ns() + 3ull * STALL_MS * 1000000u};
    e2e_until("three limits pass", never_doubted, &w);
    for (size_t i = 0; i < 4; i++) hang(&f, i, false);
    f.ask.salt = "slow"; /* ten chunks: one second of prefill */
    e2e_answer got = {0};
    kvf_rpc_reader *reader = e2e_open(&f.k.router[0], &f.ask);
    ProtobufCMessage *message;
    while (kvf_rpc_reader_next(reader, &message) == KVF_OK) {
        e2e_take(&got, message);
        kvf_rpc_message_free(message);
        w.until_ns = 0;
        never_doubted(&w);
    }
    kvf_rpc_reader_close(reader);
    assert_true(e2e_same(&f.want, &got) && got.attempts == 1);
    e2e_answer_free(&got);
    stop(&f);
}

/* ---- poison ---- */

enum { POISON = 262, INNOCENTS = 5 };

typedef struct {
    e2e_parts *k;
    const e2e_ask *ask;
    e2e_answer got;
    atomic_bool over;
} poisoning;

static void *ask_poison(void *self) {
    poisoning *p = self;
    e2e_gen(&p->k->router[0], p->ask, &p->got);
    atomic_store(&p->over, true);
    return NULL;
}

static bool is_dead(const e2e_part *p) {
    siginfo_t info = {0};
    return waitid(P_PID, (id_t)p->process.pid, &info, WEXITED | WNOHANG | WNOWAIT) == 0 && info.si_pid != 0;
}

/* As a supervisor would. Returns how many had died. */
static uint32_t revive(e2e_parts *k) {
    uint32_t dead = 0;
    for (size_t i = 0; i < k->nodes; i++) {
        if (!is_dead(&k->node[i])) continue;
        assert_int_equal(e2e_process_wait(&k->node[i].process), 256 + SIGABRT);
        unlink(k->node[i].process.log);
        e2e_part_start(k, &k->node[i]);
        dead++;
    }
    return dead;
}

/* A request that kills whoever computes it is failed after three of them, with a reason that says so; the innocent ones
 * beside it, whose nodes die under them, are all answered as on a quiet cluster. */
static void poison(void **state) {
    (void)state;
    static const int modes[] = {E2E_ALWAYS, E2E_NEVER}; /* kills prefill nodes, kills decode nodes */
    e2e_parts k = {.model = E2E_TINY("llama-mha"),
        .node_args = {"--kv-memory=6MiB", "--prefill-chunk-tokens=64", "--node-heartbeat=50ms"},
        .node_env = "KVFERRY_TEST_HOOKS=poison=262 step_ms=5"};
    e2e_kinds *kinds = calloc(1, sizeof *kinds);
    e2e_clients *clients = calloc(1, sizeof *clients);
    e2e_parts_start(&k, 2, 2, 1);
    e2e_kinds_make(kinds, &k.router[0]);
    e2e_clients_start(clients, kinds, &k.router[0], INNOCENTS, 5);
    for (size_t i = 0; i < KVF_COUNT_OF(modes); i++) {
        uint32_t ids[200] = {0}, deaths = 0;
        e2e_ask a;
        ids[150] = POISON;
        e2e_ask_ids(&a, ids, 200, 20);
        a.dis = (Kvferry__V1__Disaggregate)modes[i];
        poisoning p = {.k = &k, .ask = &a};
        pthread_t thread;
        assert_int_equal(pthread_create(&thread, NULL, ask_poison, &p), 0);
        while (!atomic_load(&p.over)) {
            deaths += revive(&k);
            e2e_pause();
        }
        pthread_join(thread, NULL);
        deaths += revive(&k);
        print_message("%u deaths: %s %s\n", deaths, kvf_rpc_code_name(p.got.result.code), p.got.result.message);
        assert_int_not_equal(p.got.result.code, KVF_RPC_OK);
        assert_int_equal(p.got.choice[0].ids_count, 0);
        assert_non_null(strstr(p.got.result.message, "died while computing"));
        assert_int_equal(deaths, 3);
        e2e_answer_free(&p.got);
        e2e_parts_all_ready(&k);
    }
    e2e_clients_all_well(clients, "the innocent");
    e2e_assert_clean(&k.router[0]);
    e2e_kinds_free(kinds);
    e2e_parts_stop(&k);
    free(clients);
    free(kinds);
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(engine_hangs), cmocka_unit_test(core_hangs),
        cmocka_unit_test(idle_and_slow_are_well), cmocka_unit_test(poison)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
