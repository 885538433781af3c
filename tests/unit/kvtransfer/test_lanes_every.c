/* One thing goes wrong at every place in turn: each call that either node makes to CUDA or NCCL fails, or never
 * returns; the process that sends, or the one that receives, is killed at each of its calls and operations. Whatever it
 * was, the next link ships, pages are right, nothing is left. test_lanes_every [STRIDE [hang]]   every STRIDE-th place
 * (ctest: few; 1: all of them); hang: calls that never return, too, which takes minutes */
#include "lanes_pair.h"

#ifdef KVF_SANITIZED
static uint32_t stride = 41;
#else
static uint32_t stride = 11;
#endif
static bool hangs;

/* Dialled again, where what went wrong has ended the call itself. */
static void link_somehow(pair *t) {
    for (int tries = 0; t->p.link == KVF_LINK_NONE; tries++) {
        uint32_t downs = t->p.downs;
        if (tries == 4) fail_msg("%s: no link comes up", t->kind);
        pair_dial(t);
        LOOP_UNTIL(t->base, t->p.link != KVF_LINK_NONE || t->p.downs > downs);
    }
}
static void go_on_somehow(pair *t) {
    for (int cuts = 0;; cuts++) {
        LOOP_UNTIL(t->base, t->ended || t->p.link == KVF_LINK_NONE);
        if (t->ended) break;
        if (cuts == 4) fail_msg("%s: a hand-off does not get on", t->kind);
        link_somehow(t);
        kvf_tx_set_link(t->p.tx, kvf_os_now_ns(), t->tx, t->p.link, t->p.nonces[t->p.link & 0xff]);
        handoff_pump(&t->p);
    }
    ship_end(t);
}

/* ---------------------------------------------------------------- calls */
static const char *const kinds[] = {"nccl", "cuda_ipc", "shm", "tcp"};

/* The nth call from now on, of both nodes of this process. false: there is no such call. */
static bool a_call_goes_wrong(const char *kind, uint32_t n, fake_fault_kind how) {
    struct event_base *base = event_base_new();
    pair t;
    pair_open(&t, kind, base, 1);
    fake_cuda_fault("call", n, how, 1);
    fake_cuda_counts before, after;
    fake_cuda_count(&before);
    link_somehow(&t);
    ship_begin(&t);
    if (how == FAKE_HANG) {
        LOOP_UNTIL(base, t.ended || t.p.link == KVF_LINK_NONE);
        if (fake_cuda_hanging()) LOOP_UNTIL(base, t.p.lost[0] || t.d.lost[0]);
        fake_cuda_release(); /* a process would have ended */
    }
    go_on_somehow(&t);
    fake_cuda_count(&after);
    if (how == FAKE_FAIL && (t.p.lost[0] || t.d.lost[0])) fail_msg("%s: call %u is told as a lost device", kind, n);
    fake_cuda_reset();
    pair_close(&t);
    event_base_free(base);
    if (clean_end(NULL)) fail_msg("%s: call %u went wrong, and something is left", kind, n);
    return after.calls - before.calls >= n;
}
static void any_call_may_fail(void **state) {
    for (size_t k = 0; k < KVF_COUNT_OF(kinds); k++) {
        uint32_t n = 1 + (uint32_t)k % stride, count = 0;
        for (; a_call_goes_wrong(kinds[k], n, FAKE_FAIL); n += stride) count++;
        printf("%s: %u of %u calls failed, one at a time\n", kinds[k], count, n);
        assert_true(count > 0);
    }
}
static void any_call_may_never_return(void **state) {
    for (size_t k = 0; k < KVF_COUNT_OF(kinds); k++) {
        uint32_t n = 1, count = 0;
        for (; a_call_goes_wrong(kinds[k], n, FAKE_HANG); n += stride) count++;
        printf("%s: %u of %u calls never returned\n", kinds[k], count, n);
    }
}

/* ---------------------------------------------------------------- processes */
static void place(char out[32], uint32_t n) { snprintf(out, 32, "any:%u=die", n); }

static void a_sender_may_die_anywhere(void **state) {
    for (size_t k = 0; k < KVF_COUNT_OF(kinds); k++) {
        struct event_base *base = event_base_new();
        pair t = {.base = base, .kind = kinds[k], .slots = SLOTS, .names = {"p1", "d1"}};
        char faults[32];
        uint32_t deaths = 0, n = 1 + (uint32_t)k % stride;
        node_open(&t, 1, 22, 0);
        for (;; n += stride, deaths++) {
            place(faults, n);
            offer(&t);
            int status = child_end(&t, child_start(&t, faults));
            if (WIFEXITED(status) && WEXITSTATUS(status) == 0) break; /* it has fewer */
            if (!WIFSIGNALED(status) || WTERMSIG(status) != SIGKILL) fail_msg("%s: status %d", faults, status);
            uint32_t spent = 0;
            if (!t.committed && !t.lost)
                (void)kvf_rx_revoke(t.d.rx, kvf_os_now_ns(), t.grant, KVF_ERR_PEER_LOST, &spent);
            if (t.committed)
                for (uint32_t b = t.landed_count; b-- > 0;) kvf_kv_unpin(t.d.kv, t.landed[b]);
            else
                kvf_kv_unbook(t.d.kv, BLOCKS - spent);
            LOOP_UNTIL(base, free_blocks(&t.d) == POOL);
            assert_string_equal(t.d.lost, "");
        }
        assert_true(t.committed);
        assert_int_equal(t.bad, 0);
        assert_true(deaths > 0);
        printf("%s: %u of %u places at which the sender died\n", t.kind, deaths, n);
        handoff_close(&t.d);
        event_base_free(base);
    }
}

/* argv: kind, serial, descriptor that addresses and grant are written to. Ends when its sender has left. */
static int receiver_main(char **argv) {
    static pair t;
    t = (pair){.base = event_base_new(),
        .kind = argv[2],
        .slots = SLOTS,
        .names = {"p1", "d1"},
        .serial = strtoull(argv[3], NULL, 10) - 1};
    node_open(&t, 1, 200 + t.serial, 0);
    fake_cuda_settings s;
    fake_cuda_get(&s);
    s.free_at_once = false;
    fake_cuda_set(&s);
    offer(&t);
    dprintf(atoi(argv[4]), "%s %s %llu\n", kvf_endpoint_address(t.d.e), kvf_endpoint_local_address(t.d.e),
        (unsigned long long)t.grant);
    close(atoi(argv[4]));
    LOOP_UNTIL(t.base, t.d.downs);
    bool fine = t.committed && t.bad == 0;
    handoff_close(&t.d);
    event_base_free(t.base);
    return fine ? 0 : 5;
}
typedef struct {
    pid_t pid;
    bool told;
    char address[128], local[128];
    unsigned long long grant;
} receiver;
static void receiver_start(receiver *r, const pair *t, const char *faults) {
    char serial[24], fd[16];
    int fds[2];
    assert_int_equal(pipe(fds), 0);
    snprintf(serial, sizeof serial, "%llu", (unsigned long long)t->serial);
    snprintf(fd, sizeof fd, "%d", fds[1]);
    fflush(NULL);
    r->pid = fork();
    assert_true(r->pid >= 0);
    if (r->pid == 0) {
        close(fds[0]);
        setenv("KVF_FAKE_CUDA_FAULTS", faults, 1);
        execl("/proc/self/exe", "test_lanes_every", "receiver", t->kind, serial, fd, (char *)NULL);
        _exit(9);
    }
    close(fds[1]);
    FILE *f = fdopen(fds[0], "r");
    assert_non_null(f);
    r->told = fscanf(f, "%127s %127s %llu", r->address, r->local, &r->grant) == 3; /* it may be dead already */
    fclose(f);
}
/* true: linked. */
static bool receiver_call(pair *t, const receiver *r) {
    kvf_link_id link;
    uint32_t downs = t->p.downs;
    bool near = is(t, "cuda_ipc") || is(t, "shm");
    if (!r->told || kvf_endpoint_connect(t->p.e, "d1", 200 + t->serial - 1, r->address, near ? r->local : "",
                        kvf_os_host_id(), &link) != KVF_OK)
        return false;
    LOOP_UNTIL(t->base, t->p.link != KVF_LINK_NONE || t->p.downs > downs);
    return t->p.link != KVF_LINK_NONE;
}
/* The status of its process. */
static int ship_to_receiver(pair *t, const char *faults) {
    receiver r;
    t->serial++;
    t->ended = false;
    receiver_start(&r, t, faults);
    if (receiver_call(t, &r)) {
        t->grant = r.grant;
        send_from(t);
        compute(t);
        LOOP_UNTIL(t->base, t->ended || t->p.link == KVF_LINK_NONE);
        if (!t->ended) kvf_tx_cancel(t->p.tx, kvf_os_now_ns(), t->tx, KVF_ERR_PEER_LOST);
        handoff_pump(&t->p);
        LOOP_UNTIL(t->base, t->ended && free_blocks(&t->p) == POOL);
        if (t->p.link != KVF_LINK_NONE) {
            kvf_endpoint_close(t->p.e, t->p.link);
            t->p.link = KVF_LINK_NONE;
        }
    }
    return child_end(t, r.pid);
}
static void a_receiver_may_die_anywhere(void **state) {
    for (size_t k = 0; k < KVF_COUNT_OF(kinds); k++) {
        struct event_base *base = event_base_new();
        pair t = {.base = base, .kind = kinds[k], .slots = SLOTS, .names = {"p1", "d1"}};
        char faults[32];
        uint32_t deaths = 0, n = 1 + (uint32_t)k % stride;
        node_open(&t, 0, 11, 30 * KVF_NS_PER_S);
        for (;; n += stride, deaths++) {
            place(faults, n);
            int status = ship_to_receiver(&t, faults);
            if (WIFEXITED(status) && WEXITSTATUS(status) == 0) break;
            if (!WIFSIGNALED(status) || WTERMSIG(status) != SIGKILL) fail_msg("%s: status %d", faults, status);
            kvf_error err;
            if (kvf_kv_audit(t.p.kv, &err) || kvf_tx_audit(t.p.tx, &err)) fail_msg("%s: %s", faults, err.message);
            assert_string_equal(t.p.lost, "");
        }
        assert_int_equal(t.result, KVF_OK);
        assert_true(deaths > 0);
        printf("%s: %u of %u places at which the receiver died\n", t.kind, deaths, n);
        handoff_close(&t.p);
        event_base_free(base);
    }
}

int main(int argc, char **argv) {
    kvf_log_set_sink(say_nothing, NULL);
    if (argc == 7 && strcmp(argv[1], "child") == 0) return child_main(argv);
    if (argc == 5 && strcmp(argv[1], "receiver") == 0) return receiver_main(argv);
    if (argc > 1) stride = KVF_MAX((uint32_t)strtoul(argv[1], NULL, 10), 1u);
    hangs = argc > 2 && strcmp(argv[2], "hang") == 0;
#define TEST(name) cmocka_unit_test_setup_teardown(name, clean, clean_end)
    const struct CMUnitTest all[] = {
        TEST(any_call_may_fail),
        TEST(a_sender_may_die_anywhere),
        TEST(a_receiver_may_die_anywhere),
    };
    const struct CMUnitTest hanging[] = {TEST(any_call_may_never_return)};
    return hangs ? cmocka_run_group_tests(hanging, NULL, NULL) : cmocka_run_group_tests(all, NULL, NULL);
}
