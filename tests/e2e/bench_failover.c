/* How long failures go unnoticed, in figures, on a cluster of tiny models: for operators and for docs/reliability.md,
 * not a test. bench_failover [KILLS [FREEZES]]
 *
 * noticed     from the signal to the moment when the router counts the node as lost (asked about every millisecond)
 * next token  from the signal to the next token of a stream that the victim was decoding
 * reclaimed   from noticed to the moment when no other node holds a block, or has booked one, for the request that the
 *             victim was in the middle of; its client has left, so that nobody goes on with it */
#include "kinds.h"
#include "parts.h"
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

enum { PROMPT = 600, MAX = 1000 };

typedef struct {
    double ms[MAX];
    uint32_t count;
} figures;

static void add(figures *f, uint64_t from_ns, uint64_t to_ns) {
    f->ms[f->count++ % MAX] = (double)(to_ns - from_ns) / 1e6;
}

static int by_value(const void *a, const void *b) {
    double x = *(const double *)a, y = *(const double *)b;
    return x < y ? -1 : x > y;
}

static void print(const char *what, figures *f) {
    if (!f->count) return;
    qsort(f->ms, f->count, sizeof *f->ms, by_value);
    printf("%-34s n %3u   p50 %7.1f ms   max %7.1f ms\n", what, f->count, f->ms[f->count / 2], f->ms[f->count - 1]);
    fflush(stdout);
}

static void pause_ms(long ms) { nanosleep(&(struct timespec){.tv_nsec = ms * 1000000}, NULL); }

typedef struct {
    e2e_parts k;
    uint32_t ids[PROMPT];
    uint64_t salts;
    figures noticed[2], token[2], reclaimed[2]; /* by signal: KILL, STOP */
} bench;

static bool lost(bench *b, const char *node) {
    Kvferry__V1__ClusterState *s = e2e_state(&b->k.router[0]);
    bool yes = e2e_node(s, node)->state == KVFERRY__V1__NODE_STATE__NODE_STATE_LOST;
    kvf_rpc_message_free(&s->base);
    return yes;
}

static bool others_hold(bench *b, const char *victim) {
    Kvferry__V1__ClusterState *s = e2e_state(&b->k.router[0]);
    uint64_t held = 0;
    for (size_t i = 0; i < s->n_nodes; i++) {
        const Kvferry__V1__NodeStatus *n = s->nodes[i];
        if (!n->blocks || kvf_proto_text_equal(n->id, victim)) continue;
        held += n->blocks->pinned + n->blocks->in_use + n->blocks->filling + n->blocks->booked;
    }
    kvf_rpc_message_free(&s->base);
    return held != 0;
}

static kvf_rpc_reader *open_stream(bench *b, uint32_t tokens, char *salt) {
    e2e_ask a;
    e2e_ask_ids(&a, b->ids, PROMPT, tokens);
    a.dis = E2E_ALWAYS;
    sprintf(salt, "%llu", (unsigned long long)b->salts++);
    a.salt = salt;
    return e2e_open(&b->k.router[0], &a);
}

static bool next(kvf_rpc_reader *reader, e2e_answer *got) {
    ProtobufCMessage *message;
    if (kvf_rpc_reader_next(reader, &message) != KVF_OK) return false;
    e2e_take(got, message);
    kvf_rpc_message_free(message);
    return true;
}

static void heal(bench *b, e2e_part *p, bool frozen) {
    if (frozen) {
        kill(p->process.pid, SIGCONT);
    } else {
        e2e_process_wait(&p->process);
        unlink(p->process.log);
        e2e_part_start(&b->k, p);
    }
    e2e_parts_all_ready(&b->k);
    e2e_assert_clean(&b->k.router[0]);
}

/* The decode node of a running stream: when does the stream go on? Read here, so the token's time is the client's. */
static void of_a_stream(bench *b, bool frozen) {
    char salt[24];
    e2e_answer got = {0};
    kvf_rpc_reader *reader = open_stream(b, 60, salt);
    while (got.choice[0].ids_count < 20 && next(reader, &got)) continue;
    e2e_part *p = e2e_part_find(&b->k, got.decode_node);
    uint64_t from = e2e_now_ns();
    kill(p->process.pid, frozen ? SIGSTOP : SIGKILL);
    /* What had left the node before is read at once; the gap is the longest wait. */
    uint64_t last = from, longest = 0;
    while (next(reader, &got)) {
        uint64_t now = e2e_now_ns();
        longest = KVF_MAX(longest, now - last);
        last = now;
    }
    if (kvf_rpc_reader_result(reader)->code != KVF_RPC_OK) fail_msg("%s", kvf_rpc_reader_result(reader)->message);
    add(&b->token[frozen], 0, longest);
    kvf_rpc_reader_close(reader);
    e2e_answer_free(&got);
    heal(b, p, frozen);
}

/* A node in the middle of a hand-off, while its client leaves. */
static void of_a_hand_off(bench *b, bool prefill, bool frozen) {
    char salt[24];
    e2e_answer got = {0};
    kvf_rpc_reader *reader = open_stream(b, 60, salt);
    while (!got.admitted && next(reader, &got)) continue;
    while (!others_hold(b, "")) pause_ms(1);
    e2e_part *p = e2e_part_find(&b->k, prefill ? got.prefill_node : got.decode_node);
    uint64_t from = e2e_now_ns();
    kill(p->process.pid, frozen ? SIGSTOP : SIGKILL);
    kvf_rpc_reader_cancel(reader);
    while (!lost(b, p->id)) pause_ms(1);
    uint64_t noticed = e2e_now_ns();
    while (others_hold(b, p->id)) pause_ms(1);
    add(&b->noticed[frozen], from, noticed);
    add(&b->reclaimed[frozen], noticed, e2e_now_ns());
    while (next(reader, &got)) continue;
    kvf_rpc_reader_close(reader);
    e2e_answer_free(&got);
    heal(b, p, frozen);
}

static uint32_t kills_arg = 24, freezes_arg = 8;

static void measure(void **state) {
    (void)state;
    bench *b = calloc(1, sizeof *b);
    assert_non_null(b);
    b->k = (e2e_parts){.model = E2E_TINY("llama-mha"),
        .node_args = {"--kv-memory=6MiB", "--prefill-chunk-tokens=64"},
        .node_env = "KVFERRY_TEST_HOOKS=step_ms=5"};
    e2e_parts_start(&b->k, 2, 2, 1);
    for (size_t i = 0; i < PROMPT; i++) b->ids[i] = (uint32_t)(e2e_random(&b->salts) % 256);
    for (int frozen = 0; frozen < 2; frozen++) {
        for (uint32_t i = 0; i < (frozen ? freezes_arg : kills_arg); i++) {
            of_a_hand_off(b, i & 1, frozen);
            of_a_stream(b, frozen);
        }
    }
    printf("node.heartbeat 200ms, router.node_timeout 1500ms, router.node_grace 2s; an engine step takes 5 ms\n");
    print("SIGKILL: noticed", &b->noticed[0]);
    print("SIGKILL: blocks free, after that", &b->reclaimed[0]);
    print("SIGKILL: a stream's gap", &b->token[0]);
    print("SIGSTOP: noticed", &b->noticed[1]);
    print("SIGSTOP: blocks free, after that", &b->reclaimed[1]);
    print("SIGSTOP: a stream's gap", &b->token[1]);
    e2e_parts_stop(&b->k);
    free(b);
}

int main(int argc, char **argv) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(measure)};
    if (argc > 1) kills_arg = (uint32_t)strtoul(argv[1], NULL, 10);
    if (argc > 2) freezes_arg = (uint32_t)strtoul(argv[2], NULL, 10);
    return cmocka_run_group_tests(tests, NULL, NULL);
}
