/* harness.h - real kvferry processes under test, seen only from outside: their sockets, their exit status and /proc.
 *
 * The program is $KVFERRY (ctest sets it). One e2e_cluster is one `kvferry serve`; its log goes to a file of its own
 * that is shown when a test fails. Every helper fails the running cmocka test with the reason; none sleeps for a fixed
 * time: what takes time is polled until it is so, up to a generous limit. Asks and answers are plain data; an answer is
 * freed with e2e_answer_free. */
#ifndef KVF_E2E_HARNESS_H
#define KVF_E2E_HARNESS_H
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>
#include "kvf/proto.h"
#include "kvf/rpc.h"
#include "kvferry/v1/kvferry.pb-c.h"
#include <stdio.h>
#include <stdlib.h>
#include <sys/types.h>

enum {
    E2E_ARGS_MAX = 32,
    E2E_CHOICES_MAX = 16,
    E2E_STOPS_MAX = 8,
    E2E_BIAS_MAX = 64,
    E2E_MESSAGES_MAX = 16,
    E2E_SKIP = 77
};
enum { E2E_WAIT_MS = 120000 }; /* of everything that is waited for */

#define E2E_TINY(name) KVF_SOURCE_DIR "/tests/golden/tiny/" name ".gguf"
#define E2E_SMOLLM2 KVF_SOURCE_DIR "/models/SmolLM2-135M-Instruct.Q4_1.gguf"
/* Exits 77 with the reason when the file is not there. */
void e2e_need_file(const char *path, const char *what);

/* ---- processes ---- */

typedef struct {
    pid_t pid;
    char log[64]; /* stderr goes here */
    char out[2048]; /* stdout up to its ready line, or all of it where none came */
    char grpc[128], admin[128], control[128]; /* of the ready line; empty where it names none */
    bool ready;
} e2e_process;

/* argv: what follows `kvferry`, NULL at the end. Waits for the ready line or for the end of stdout. */
void e2e_spawn(e2e_process *p, const char *const *argv);
void e2e_spawn_nowait(e2e_process *p, const char *const *argv); /* ready stays false */
/* env: one more "NAME=value" of its environment; NULL: none. */
void e2e_spawn_env(e2e_process *p, const char *const *argv, const char *env);
int e2e_process_wait(e2e_process *p); /* until it ends: exit status, or 256 + signal */
int e2e_process_stop(e2e_process *p); /* TERM, then wait; shows nothing */
char *e2e_read_file(const char *path); /* whole, NUL at the end; freed by the caller */

typedef struct {
    e2e_process serve;
    kvf_rpc_runtime *rt;
    kvf_rpc_channel *client, *admin;
    const kvf_rpc_credentials *credentials; /* of both channels; borrowed; NULL: plain */
} e2e_cluster;

/* `serve --model MODEL --listen 127.0.0.1:0` and more arguments (NULL at the end; NULL: none). */
void e2e_start(e2e_cluster *c, const char *model, const char *const *more);
void e2e_attach(e2e_cluster *c); /* connects to c->serve, which somebody else started */
void e2e_detach(e2e_cluster *c); /* closes the connections only */
void e2e_stop(e2e_cluster *c); /* serve must end with 0 */

/* ---- requests ---- */

#define E2E_AUTO KVFERRY__V1__DISAGGREGATE__DISAGGREGATE_AUTO
#define E2E_ALWAYS KVFERRY__V1__DISAGGREGATE__DISAGGREGATE_ALWAYS
#define E2E_NEVER KVFERRY__V1__DISAGGREGATE__DISAGGREGATE_NEVER

typedef struct {
    const uint32_t *ids;
    size_t ids_count;
    const char *text; /* when there are no ids */
    const char *roles[E2E_MESSAGES_MAX], *contents[E2E_MESSAGES_MAX]; /* when there is neither */
    size_t messages;
    uint32_t max; /* 0: not given */
    bool max_zero; /* given as 0 */
    Kvferry__V1__Disaggregate dis;
    float temperature; /* always given */
    bool seeded, ignore_eos, include_stop;
    uint64_t seed;
    uint32_t n, top_k;
    const char *stops[E2E_STOPS_MAX];
    const uint32_t *stop_ids;
    size_t stop_ids_count;
    uint32_t bias_ids[E2E_BIAS_MAX];
    float bias[E2E_BIAS_MAX];
    size_t bias_count;
    const char *salt, *label;
    bool logprobs;
    uint32_t top_logprobs;
    bool prompt_logprobs;
    int32_t priority;
    uint64_t deadline_ms; /* 0: two minutes */
    uint32_t cancel_after; /* messages; 0: never */
    bool cancel_at_once; /* before anything has come */
    bool top_p_given;
    float top_p;
    float repetition, presence, frequency; /* penalties; 0: not given */
} e2e_ask;

typedef struct {
    uint32_t *ids, ids_count;
    char *text;
    size_t text_bytes;
    float *logprobs;
    uint32_t logprobs_count, tops, chunks;
    uint32_t reason, stop_token, completion_tokens;
    char stop_sequence[64];
    bool finished;
} e2e_choice;

typedef struct {
    char request_id[64], prefill_node[64], decode_node[64];
    uint32_t admitted, prompt_tokens, cached_tokens; /* as admitted */
    uint32_t usage_prompt, usage_cached, usage_prompts; /* as finished; prompts: how many Finished counted the prompt */
    uint64_t seed, pages_moved, bytes_moved, transfer_us, attempts;
    e2e_choice choice[E2E_CHOICES_MAX];
    uint32_t finished;
    float *prompt_logprobs; /* [0] is of the second token */
    uint32_t prompt_logprobs_count, prompt_items;
    uint64_t first_ns, last_ns; /* CLOCK_MONOTONIC of the first chunk and of the end */
    kvf_rpc_result result;
} e2e_answer;

void e2e_ask_ids(e2e_ask *a, const uint32_t *ids, size_t count, uint32_t max); /* greedy, end of sequence ignored */
void e2e_gen(e2e_cluster *c, const e2e_ask *a, e2e_answer *out); /* whatever the end is */
void e2e_gen_ok(e2e_cluster *c, const e2e_ask *a, e2e_answer *out); /* must end with OK and every choice finished */
void e2e_refused(e2e_cluster *c, const e2e_ask *a, kvf_rpc_code code, const char *field); /* field: NULL: any */
void e2e_answer_free(e2e_answer *a);
/* All at once, `threads` at a time; answers in the order of the asks. */
void e2e_crowd(e2e_cluster *c, const e2e_ask *asks, e2e_answer *answers, size_t count, uint32_t threads);
bool e2e_same(const e2e_answer *a, const e2e_answer *b); /* ids, text, logprobs bit by bit, ends */
kvf_rpc_reader *e2e_open(e2e_cluster *c, const e2e_ask *a); /* for tests that read by themselves */
void e2e_take(e2e_answer *out, const ProtobufCMessage *message);
Kvferry__V1__CompleteResponse *e2e_complete(e2e_cluster *c, const e2e_ask *a, kvf_rpc_result *result);
/* Text: NULL with messages of chat. ids: freed by the caller. */
size_t e2e_tokenize(
    e2e_cluster *c, const e2e_ask *input, bool special, int add_bos, uint32_t **ids, kvf_rpc_result *result);
char *e2e_detokenize(e2e_cluster *c, const uint32_t *ids, size_t count);

/* ---- the cluster from the operator's side ---- */

Kvferry__V1__ClusterState *e2e_state(e2e_cluster *c); /* kvf_rpc_message_free */
const Kvferry__V1__NodeStatus *e2e_node(const Kvferry__V1__ClusterState *s, const char *id);
Kvferry__V1__AuditResponse *e2e_audit(e2e_cluster *c);
/* Until nothing runs; then: no violation, nothing pinned, in use, filling or booked, on any node. */
void e2e_assert_clean(e2e_cluster *c);
Kvferry__V1__GetBlocksResponse *e2e_blocks(e2e_cluster *c, const char *node);
void e2e_flush(e2e_cluster *c);
int e2e_health(kvf_rpc_channel *channel, const char *service); /* serving status, or minus the code */

/* Counters of one node, which the public API does not show: asked as a second router on the node's own listener. */
typedef struct {
    uint64_t cancels, preemptions, evictions, pages_sent, pages_received, frames_rejected, cache_hit_tokens,
        prefill_tokens, decode_tokens;
} e2e_counters;
void e2e_node_counters(e2e_cluster *c, const char *node, e2e_counters *out);
uint64_t e2e_pages_received(e2e_cluster *c, const char *node);
void e2e_page_lands(e2e_cluster *c, const char *node, uint64_t before); /* waits for more pages than `before` */

/* ---- /proc ---- */

size_t e2e_children(
    e2e_cluster *c, const char *role, pid_t *out, size_t max); /* role: "router", "prefill-node"...; NULL: all */
void e2e_usage(e2e_cluster *c, uint64_t *anon_kib, uint64_t *fds); /* summed over serve and its children */

uint64_t e2e_anon_kib(pid_t pid); /* anonymous resident memory */
uint64_t e2e_fds(pid_t pid);
bool e2e_maps_shared(pid_t pid, const char *file); /* maps file read-only, no page of it is its own copy */

/* ---- small things ---- */

uint64_t e2e_random(uint64_t *state); /* splitmix64: a test's seed is an argument */
uint64_t e2e_now_ns(void);
void e2e_pause(void); /* between two looks at something that is waited for */
typedef bool (*e2e_until_fn)(void *self);
void e2e_until(const char *what, e2e_until_fn so, void *self);

#endif
