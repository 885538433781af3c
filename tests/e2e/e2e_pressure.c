/* Pools far too small for the load, a thousand clients that leave, no descriptor left, a log that cannot be written
 * (field cases PD-07, GR-09): typed ends, no deadlock, nothing held afterwards. */
#include "harness.h"
#include <arpa/inet.h>
#include <dirent.h>
#include <netinet/in.h>
#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

static void random_ids(uint32_t *ids, size_t count, uint64_t seed) {
    for (size_t i = 0; i < count; i++) ids[i] = (uint32_t)(e2e_random(&seed) % 256);
}

/* ---- PD-07: 64 requests of 20 blocks each before a decode pool of 42, more than half of them shipped ---- */

enum { CROWD = 64, CROWD_PROMPT = 150, CROWD_OUTPUT = 170 };

static void crowd_asks(e2e_ask *asks, uint32_t *ids) {
    random_ids(ids, CROWD * CROWD_PROMPT, 70);
    for (size_t i = 0; i < CROWD; i++) {
        e2e_ask_ids(&asks[i], ids + CROWD_PROMPT * i, CROWD_PROMPT, CROWD_OUTPUT);
        asks[i].dis = i % 3 ? E2E_ALWAYS : E2E_AUTO;
        asks[i].temperature = i % 2 ? 0.8f : 0;
        asks[i].seeded = true;
        asks[i].seed = i;
        asks[i].logprobs = true;
    }
}

/* The longest time in which none of them ended. */
static uint64_t longest_gap_ms(const e2e_answer *got, uint64_t from_ns) {
    uint64_t longest = 0, last = from_ns;
    for (;;) {
        uint64_t next = UINT64_MAX;
        for (size_t i = 0; i < CROWD; i++)
            if (got[i].last_ns > last && got[i].last_ns < next) next = got[i].last_ns;
        if (next == UINT64_MAX) return longest / 1000000;
        longest = next - last > longest ? next - last : longest;
        last = next;
    }
}

static void pools_too_small_for_the_load(void **state) {
    (void)state;
    static uint32_t ids[CROWD * CROWD_PROMPT];
    static e2e_ask asks[CROWD];
    static e2e_answer want[CROWD], got[CROWD];
    const char *roomy[] = {"--kv-type=f32", "--kv-memory", "64MiB", NULL};
    const char *small[] = {"--kv-type=f32", "--kv-memory", "1MiB", "--decode-expected-output=4", NULL};
    e2e_cluster c;
    crowd_asks(asks, ids);
    e2e_start(&c, E2E_TINY("llama-mha"), roomy);
    e2e_crowd(&c, asks, want, CROWD, 8);
    e2e_stop(&c);
    e2e_start(&c, E2E_TINY("llama-mha"), small);
    uint64_t from = e2e_now_ns(), attempts = 0;
    e2e_crowd(&c, asks, got, CROWD, CROWD);
    uint32_t served = 0, refused = 0;
    for (size_t i = 0; i < CROWD; i++) {
        assert_int_equal(want[i].result.code, KVF_RPC_OK);
        if (got[i].result.code == KVF_RPC_OK) {
            served++;
            attempts += got[i].attempts;
            if (!e2e_same(&got[i], &want[i])) fail_msg("request %zu differs from the run with room", i);
        } else {
            refused++;
            bool typed = got[i].result.code == KVF_RPC_RESOURCE_EXHAUSTED || got[i].result.code == KVF_RPC_UNAVAILABLE;
            if (!typed || got[i].result.retry_after_ms == 0)
                fail_msg("request %zu: %s: %s", i, kvf_rpc_code_name(got[i].result.code), got[i].result.message);
        }
    }
    e2e_counters d, p;
    e2e_assert_clean(&c);
    e2e_node_counters(&c, "d0", &d);
    e2e_node_counters(&c, "p0", &p);
    uint64_t gap_ms = longest_gap_ms(got, from);
    print_message("%u served, %u refused with a time; %llu attempts, %llu preemptions, %llu tokens computed for %d, "
                  "longest time without an end %llu ms\n",
        served, refused, (unsigned long long)attempts, (unsigned long long)d.preemptions,
        (unsigned long long)(p.prefill_tokens + d.prefill_tokens), CROWD * CROWD_PROMPT, (unsigned long long)gap_ms);
    assert_true(served >= 40);
    assert_true(d.preemptions <= CROWD * 4);
    assert_true(p.prefill_tokens + d.prefill_tokens <= 6 * CROWD * CROWD_PROMPT); /* bounded work over again */
    assert_true(gap_ms < 30000);
    for (size_t i = 0; i < CROWD; i++) {
        e2e_answer_free(&want[i]);
        e2e_answer_free(&got[i]);
    }
    e2e_stop(&c);
}

/* ---- a thousand clients leave ---- */

enum { LEAVERS = 1000, KILLED = 60, WORKERS = 24 };

typedef struct {
    e2e_cluster c;
    const uint32_t *ids;
    atomic_uint next, ended, cancelled, expired;
} storm;

static void *leave(void *self) {
    storm *s = self;
    for (;;) {
        uint32_t i = atomic_fetch_add(&s->next, 1);
        if (i >= LEAVERS) return NULL;
        uint64_t r = 5000 + i;
        e2e_ask a;
        e2e_answer got;
        e2e_ask_ids(&a, s->ids + e2e_random(&r) % 1000, 1 + e2e_random(&r) % 700, 300);
        a.dis = (Kvferry__V1__Disaggregate)(E2E_AUTO + i % 3);
        if (i % 5 == 0) a.n = 3;
        switch (e2e_random(&r) % 3) {
        case 0: a.cancel_at_once = true; break;
        case 1: a.cancel_after = 1 + (uint32_t)(e2e_random(&r) % 40); break;
        default: a.deadline_ms = 1 + e2e_random(&r) % 150; break;
        }
        e2e_gen(&s->c, &a, &got);
        switch (got.result.code) {
        case KVF_RPC_OK: atomic_fetch_add(&s->ended, 1); break;
        case KVF_RPC_CANCELLED: atomic_fetch_add(&s->cancelled, 1); break;
        case KVF_RPC_DEADLINE_EXCEEDED: atomic_fetch_add(&s->expired, 1); break;
        default: fail_msg("%s: %s", kvf_rpc_code_name(got.result.code), got.result.message);
        }
        e2e_answer_free(&got);
    }
}

/* Processes that are killed while they are answered: their connections end without a word. */
static void kill_clients(storm *s) {
    uint64_t r = 9;
    char router[140];
    snprintf(router, sizeof router, "%s", s->c.serve.grpc);
    const char *argv[] = {
        "complete", "many words about pages and where they go", "-n", "3000", "--ignore-eos", "--router", router, NULL};
    for (int i = 0; i < KILLED; i++) {
        e2e_process p;
        e2e_spawn_nowait(&p, argv);
        uint64_t until = e2e_now_ns() + e2e_random(&r) % 80 * 1000000;
        while (e2e_now_ns() < until) e2e_pause();
        kill(p.pid, SIGKILL);
        e2e_process_wait(&p);
        unlink(p.log);
    }
}

/* Every prefill node has shipped to every decode node: their links hold descriptors, and stay. */
static void warm_links(e2e_cluster *c, uint32_t *ids) {
    enum { COUNT = 48 };
    e2e_ask asks[COUNT];
    e2e_answer got[COUNT];
    for (size_t i = 0; i < COUNT; i++) {
        e2e_ask_ids(&asks[i], ids + 20 * i, 300, 30);
        asks[i].dis = E2E_ALWAYS;
    }
    e2e_crowd(c, asks, got, COUNT, 12);
    for (size_t i = 0; i < COUNT; i++) e2e_answer_free(&got[i]);
    e2e_assert_clean(c);
}

static void a_thousand_clients_leave(void **state) {
    (void)state;
    static uint32_t ids[1700];
    static storm s;
    const char *args[] = {"--kv-memory", "2MiB", "--prefill", "2", "--decode", "2", NULL};
    pthread_t threads[WORKERS];
    uint64_t anon, fds[2];
    e2e_ask a;
    e2e_answer want, got;
    random_ids(ids, 1700, 71);
    s.ids = ids;
    e2e_start(&s.c, E2E_TINY("llama"), args);
    e2e_ask_ids(&a, ids, 500, 60);
    e2e_gen_ok(&s.c, &a, &want);
    warm_links(&s.c, ids);
    e2e_usage(&s.c, &anon, &fds[0]);
    for (size_t i = 0; i < WORKERS; i++) assert_int_equal(pthread_create(&threads[i], NULL, leave, &s), 0);
    kill_clients(&s);
    for (size_t i = 0; i < WORKERS; i++) pthread_join(threads[i], NULL);
    print_message("%u cancelled, %u past their deadline, %u ended before, %d clients killed\n", s.cancelled, s.expired,
        s.ended, KILLED);
    assert_true(s.cancelled + s.expired > LEAVERS / 2);
    e2e_assert_clean(&s.c);
    e2e_usage(&s.c, &anon, &fds[1]);
    assert_true(fds[1] <= fds[0] + 8);
    e2e_gen_ok(&s.c, &a, &got);
    assert_true(e2e_same(&got, &want));
    e2e_answer_free(&want);
    e2e_answer_free(&got);
    e2e_stop(&s.c);
}

/* ---- no descriptor left ---- */

static uint64_t count_fds(pid_t pid) {
    char path[48];
    uint64_t n = 0;
    snprintf(path, sizeof path, "/proc/%d/fd", (int)pid);
    DIR *d = opendir(path);
    while (d && readdir(d)) n++;
    if (d) closedir(d);
    return n > 2 ? n - 2 : 0;
}

/* CPU time so far, user and system. */
static uint64_t cpu_ms(pid_t pid) {
    char path[48];
    unsigned long long user = 0, system = 0;
    snprintf(path, sizeof path, "/proc/%d/stat", (int)pid);
    char *text = e2e_read_file(path);
    const char *p = text ? strrchr(text, ')') : NULL;
    if (p) sscanf(p + 2, "%*c %*d %*d %*d %*d %*d %*u %*u %*u %*u %*u %llu %llu", &user, &system);
    free(text);
    return (user + system) * 1000 / (uint64_t)sysconf(_SC_CLK_TCK);
}

static int connect_to(const char *address) {
    struct sockaddr_in a = {.sin_family = AF_INET};
    const char *colon = strrchr(address, ':');
    char host[64];
    assert_non_null(colon);
    snprintf(host, sizeof host, "%.*s", (int)(colon - address), address);
    a.sin_port = htons((uint16_t)atoi(colon + 1));
    assert_int_equal(inet_pton(AF_INET, host, &a.sin_addr), 1);
    int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    assert_true(fd >= 0);
    assert_int_equal(connect(fd, (struct sockaddr *)&a, sizeof a), 0);
    return fd;
}

/* At most half of one core for a second. */
static void assert_calm(pid_t pid, const char *what) {
    uint64_t from = cpu_ms(pid), until = e2e_now_ns() + 1000000000ull;
    while (e2e_now_ns() < until) e2e_pause();
    uint64_t used = cpu_ms(pid) - from;
    print_message("%s: %llu ms of CPU in a second with 100 connections that find no descriptor\n", what,
        (unsigned long long)used);
    assert_true(used < 500);
}

static bool new_connection_serves(void *self) {
    e2e_cluster other = {.serve = ((e2e_cluster *)self)->serve};
    uint32_t ids[20] = {1, 2, 3};
    e2e_ask a;
    e2e_answer got;
    e2e_attach(&other);
    e2e_ask_ids(&a, ids, 20, 4);
    a.deadline_ms = 2000;
    e2e_gen(&other, &a, &got);
    bool ok = got.result.code == KVF_RPC_OK;
    e2e_answer_free(&got);
    e2e_detach(&other);
    return ok;
}

static void limit_fds(pid_t pid, struct rlimit *before, uint64_t more) {
    assert_int_equal(prlimit(pid, RLIMIT_NOFILE, NULL, before), 0);
    struct rlimit limit = {.rlim_cur = count_fds(pid) + more, .rlim_max = before->rlim_max};
    assert_int_equal(prlimit(pid, RLIMIT_NOFILE, &limit, NULL), 0);
}

static void no_descriptor_left(e2e_cluster *c, pid_t pid, const char *what, const char *address) {
    enum { CONNECTIONS = 100 };
    int fds[CONNECTIONS];
    struct rlimit before;
    uint32_t ids[300];
    e2e_ask a;
    e2e_answer got;
    random_ids(ids, 300, 72);
    e2e_ask_ids(&a, ids, 300, 20);
    a.dis = E2E_ALWAYS;
    e2e_gen_ok(c, &a, &got); /* links are there */
    e2e_answer_free(&got);
    limit_fds(pid, &before, 6);
    for (int i = 0; i < CONNECTIONS; i++) fds[i] = connect_to(address);
    assert_calm(pid, what);
    e2e_gen_ok(c, &a, &got); /* who is in is served */
    e2e_answer_free(&got);
    for (int i = 0; i < CONNECTIONS; i++) close(fds[i]);
    e2e_until("a new connection is served", new_connection_serves, c); /* under the same limit */
    assert_int_equal(prlimit(pid, RLIMIT_NOFILE, &before, NULL), 0);
    e2e_assert_clean(c);
}

/* Where a node takes page connections over TCP: it says so in the log when it is ready. */
static void find_transfer(e2e_cluster *c, const char *node, char *out, size_t out_bytes) {
    char ready[32];
    char *log = e2e_read_file(c->serve.log);
    snprintf(ready, sizeof ready, "%s epoch ", node);
    char *line = log ? strstr(log, ready) : NULL, *at = line ? strstr(line, "transfer tcp:") : NULL;
    if (!at) fail_msg("%s does not say where it listens", node);
    at += strlen("transfer tcp:");
    snprintf(out, out_bytes, "%.*s", (int)strcspn(at, " \""), at);
    free(log);
}

static void descriptors_run_out(void **state) {
    (void)state;
    e2e_cluster c;
    pid_t router, decode;
    char transfer[128];
    e2e_start(&c, E2E_TINY("llama"), NULL);
    assert_int_equal(e2e_children(&c, "router", &router, 1), 1);
    assert_int_equal(e2e_children(&c, "decode-node", &decode, 1), 1);
    find_transfer(&c, "d0", transfer, sizeof transfer);
    no_descriptor_left(&c, router, "router", c.serve.grpc);
    no_descriptor_left(&c, decode, "decode node", transfer);
    e2e_stop(&c);
}

/* ---- a log that cannot be written ---- */

static void make_lines(e2e_cluster *c) { /* each drain is a line of the router, and of the node */
    for (int i = 0; i < 5; i++) {
        Kvferry__V1__DrainRequest d = KVFERRY__V1__DRAIN_REQUEST__INIT;
        Kvferry__V1__UndrainRequest u = KVFERRY__V1__UNDRAIN_REQUEST__INIT;
        ProtobufCMessage *answer = NULL;
        d.node_id = u.node_id = kvf_proto_text("p0");
        kvf_rpc_unary(c->admin, &kvferry__v1__cluster__descriptor, "Drain", &d.base, 10000, &answer, NULL);
        kvf_rpc_message_free(answer);
        answer = NULL;
        kvf_rpc_unary(c->admin, &kvferry__v1__cluster__descriptor, "Undrain", &u.base, 10000, &answer, NULL);
        kvf_rpc_message_free(answer);
    }
}

static void log_cannot_be_written(void **state) {
    (void)state;
    e2e_cluster c;
    pid_t pids[8];
    struct rlimit before[8];
    struct stat st;
    uint32_t ids[300];
    e2e_ask a;
    e2e_answer got;
    e2e_start(&c, E2E_TINY("llama"), NULL);
    size_t count = e2e_children(&c, NULL, pids, 8);
    assert_true(count >= 3);
    assert_int_equal(stat(c.serve.log, &st), 0);
    struct rlimit full = {.rlim_cur = (rlim_t)st.st_size + 30};
    for (size_t i = 0; i < count; i++) {
        assert_int_equal(prlimit(pids[i], RLIMIT_FSIZE, NULL, &before[i]), 0);
        full.rlim_max = before[i].rlim_max;
        assert_int_equal(prlimit(pids[i], RLIMIT_FSIZE, &full, NULL), 0);
    }
    make_lines(&c);
    random_ids(ids, 300, 73);
    e2e_ask_ids(&a, ids, 300, 20);
    e2e_gen_ok(&c, &a, &got);
    e2e_answer_free(&got);
    assert_int_equal(stat(c.serve.log, &st), 0);
    assert_true((uint64_t)st.st_size <= full.rlim_cur);
    for (size_t i = 0; i < count; i++) assert_int_equal(prlimit(pids[i], RLIMIT_FSIZE, &before[i], NULL), 0);
    make_lines(&c);
    char *log = e2e_read_file(c.serve.log);
    assert_non_null(log);
    char *told = strstr(log, "log lines before this one could not be written: ");
    if (!told) fail_msg("nobody tells of the lines that were lost:\n%s", log);
    while (told > log && told[-1] != '"') told--;
    print_message("%.90s\n", told);
    free(log);
    e2e_assert_clean(&c);
    e2e_stop(&c);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(pools_too_small_for_the_load),
        cmocka_unit_test(a_thousand_clients_leave),
        cmocka_unit_test(descriptors_run_out),
        cmocka_unit_test(log_cannot_be_written),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
