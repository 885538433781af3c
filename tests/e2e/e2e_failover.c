/* kill -9 and SIGSTOP of every node at every moment of a request, while other requests of every kind run: no client
 * sees an error, no token is lost or said twice, and the answers (ids, text, log-probabilities, usage, ends) are those
 * of the undisturbed cluster. e2e_failover [SEED [ROUNDS]] */
#include "kinds.h"
#include "parts.h"
#include <signal.h>
#include <string.h>
#include <unistd.h>

typedef enum { BEFORE_RESERVE, IN_PREFILL, MID_TRANSFER, FIRST_TOKEN, MID_DECODE, MOMENTS } moment;
static const char *const moment_names[] = {
    "before Reserve", "in prefill", "mid-transfer", "at the first token", "mid-decode"};

enum { CLIENTS = 6, PROMPT = 600 };

static uint64_t seed_arg = 1;
static uint32_t rounds_arg = 1;

typedef struct {
    e2e_parts k;
    e2e_kinds kinds;
    uint32_t ids[PROMPT];
    e2e_ask ask;
    e2e_answer want;
    uint32_t cases, retried;
} fixture;

static bool next(kvf_rpc_reader *reader, e2e_answer *out) {
    ProtobufCMessage *message;
    if (kvf_rpc_reader_next(reader, &message) != KVF_OK) return false;
    e2e_take(out, message);
    kvf_rpc_message_free(message);
    return true;
}

static bool waits_for(moment when, const e2e_answer *got) {
    switch (when) {
    case IN_PREFILL:
    case MID_TRANSFER: return got->admitted == 0;
    case FIRST_TOKEN: return got->choice[0].ids_count == 0;
    case MID_DECODE: return got->choice[0].ids_count < 20;
    default: return false;
    }
}

typedef struct {
    e2e_parts *k;
    const char *node;
} state_of;

static bool is_away(void *self) {
    const state_of *o = self;
    Kvferry__V1__ClusterState *s = e2e_state(&o->k->router[0]);
    bool away = e2e_node(s, o->node)->state != KVFERRY__V1__NODE_STATE__NODE_STATE_READY;
    kvf_rpc_message_free(&s->base);
    return away;
}

static void heal(fixture *f, e2e_part *victim, int signal) {
    if (signal == SIGKILL) {
        e2e_process_wait(&victim->process);
        unlink(victim->process.log);
        e2e_part_start(&f->k, victim);
    } else { /* frozen until its leases are over and its work is elsewhere: then it thaws, and must be harmless */
        e2e_until("a frozen node counts as away", is_away, &(state_of){&f->k, victim->id});
        kill(victim->process.pid, SIGCONT);
    }
    e2e_parts_all_ready(&f->k);
}

static void one_case(fixture *f, moment when, bool prefill, int signal) {
    e2e_cluster *c = &f->k.router[0];
    char salt[16];
    snprintf(salt, sizeof salt, "case %u", f->cases++); /* nothing of it is cached */
    f->ask.salt = salt;
    e2e_answer got = {0};
    e2e_part *victim = e2e_part_find(&f->k, prefill ? f->cases % 2 ? "p0" : "p1" : f->cases % 2 ? "d0" : "d1");
    if (when == BEFORE_RESERVE) kill(victim->process.pid, signal);
    kvf_rpc_reader *reader = e2e_open(c, &f->ask);
    while (waits_for(when, &got) && next(reader, &got)) continue;
    if (when != BEFORE_RESERVE) {
        if (when == MID_TRANSFER) e2e_page_lands(c, got.decode_node, e2e_pages_received(c, got.decode_node));
        victim = e2e_part_find(&f->k, prefill ? got.prefill_node : got.decode_node);
        kill(victim->process.pid, signal);
    }
    uint64_t killed_ns = e2e_now_ns();
    while (next(reader, &got)) continue;
    got.result = *kvf_rpc_reader_result(reader);
    kvf_rpc_reader_close(reader);
    if (got.result.code != KVF_RPC_OK || !e2e_kind_same(&f->want, &got))
        fail_msg("%s of %s %s: request %s, %u of %u tokens: %s %s", signal == SIGKILL ? "death" : "freezing",
            victim->id, moment_names[when], got.request_id, got.choice[0].ids_count, f->want.choice[0].ids_count,
            kvf_rpc_code_name(got.result.code), got.result.message);
    print_message("%-8s %s %-18s: answered %4u ms later, attempts %u\n", signal == SIGKILL ? "killed" : "frozen",
        victim->id, moment_names[when], (unsigned)((e2e_now_ns() - killed_ns) / 1000000), (unsigned)got.attempts);
    f->retried += got.attempts > 1;
    e2e_answer_free(&got);
    heal(f, victim, signal);
}

static void every_moment(void **state) {
    (void)state;
    fixture *f = calloc(1, sizeof *f);
    e2e_clients *clients = calloc(1, sizeof *clients);
    f->k = (e2e_parts){.model = E2E_TINY("llama-mha"),
        .node_args = {"--kv-memory=6MiB", "--prefill-chunk-tokens=64", "--node-heartbeat=50ms"},
        .router_args = {"--node-timeout=700ms", "--node-grace=700ms"},
        .node_env = "KVFERRY_TEST_HOOKS=step_ms=5"};
    e2e_parts_start(&f->k, 2, 2, 1);
    e2e_cluster *c = &f->k.router[0];
    e2e_kinds_make(&f->kinds, c);
    uint64_t r = 77;
    for (size_t i = 0; i < PROMPT; i++) f->ids[i] = (uint32_t)(e2e_random(&r) % 256);
    e2e_ask_ids(&f->ask, f->ids, PROMPT, 60);
    f->ask.dis = E2E_ALWAYS;
    f->ask.temperature = 0.8f;
    f->ask.seeded = f->ask.logprobs = true;
    f->ask.frequency = 0.3f;
    e2e_gen_ok(c, &f->ask, &f->want);
    e2e_clients_start(clients, &f->kinds, c, CLIENTS, seed_arg);
    for (uint32_t round = 0; round < rounds_arg; round++)
        for (int when = 0; when < MOMENTS; when++)
            for (int i = 0; i < 4; i++) one_case(f, (moment)when, i & 1, i & 2 ? SIGSTOP : SIGKILL);
    e2e_clients_all_well(clients, "beside them");
    print_message("%u cases, %u of them took more than one attempt\n", f->cases, f->retried);
    assert_true(f->retried > 0);
    e2e_assert_clean(c);
    e2e_answer_free(&f->want);
    e2e_kinds_free(&f->kinds);
    e2e_parts_stop(&f->k);
    free(clients);
    free(f);
}

int main(int argc, char **argv) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(every_moment)};
    if (argc > 1) seed_arg = strtoull(argv[1], NULL, 10);
    if (argc > 2) rounds_arg = (uint32_t)strtoul(argv[2], NULL, 10);
    return cmocka_run_group_tests(tests, NULL, NULL);
}
