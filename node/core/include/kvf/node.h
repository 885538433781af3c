/* kvf/node.h - the core of a worker: sessions with routers, admission, sequences, engine steps, hand-offs. Both roles
 * are this core; the role decides what routers send here and how large the chunks are.
 *
 * Pure: no socket, clock, thread, random source, floating point or malloc. Feed events with their time, then drain
 * every action with kvf_node_next before the next event. One thread.
 *
 * A request here is one of two legs: RESERVE (decode: wait for pages, or compute alone) or PREFILL (compute, ship,
 * forget).
 *
 *   RESERVE:  QUEUED -> GRANTED -> DECODE -> gone        PREFILL:  COMPUTE -> SHIP -> gone
 *                  \--> COMPUTE --^  (LOCAL)
 *   every state -> gone by Cancel, deadline, lost router, lost grant, preemption, drain.
 *
 * Rules: blocks in a running step's sequences stay pinned until the step is done, whatever is cancelled meanwhile; a
 * block that the step writes is also in use. Tokens are kept until the router has acknowledged them. At most one step
 * runs at a time. Prompt logprobs are kept as tokens are, and a hand-off is committed when the router has all of them:
 * the death of a prefill node after that costs nothing. */
#ifndef KVF_NODE_H
#define KVF_NODE_H
#include "kvf/kvcache.h"
#include "kvf/msg.h"
#include "kvf/xfer.h"

typedef struct kvf_node kvf_node;

typedef struct {
    kvf_node_info info; /* kept; sent in Welcome, its identity names blocks */
    uint32_t blocks, layers, page_bytes, context_max;
    uint32_t requests_max; /* legs held at a time, 1..4096 */
    uint32_t sequences_max; /* sequences held at a time (a request holds n) */
    uint32_t step_sequences_max; /* runs of one step */
    uint32_t step_tokens_max;
    uint32_t chunk_tokens; /* prompt tokens of a step without decodes */
    uint32_t chunk_tokens_mixed; /* prompt tokens of a step that also decodes */
    uint32_t queue_max; /* reservations waiting for room */
    uint32_t sessions_max;
    uint32_t outbox_max; /* tokens and prompt logprobs kept per session until acknowledged */
    uint32_t links_max;
    uint32_t inflight_max; /* pages of one link handed out and not yet reported sent; 0: 256 */
    uint32_t sampling_bytes_max; /* of kvf_work.sampling */
    uint32_t expected_output; /* first estimate of output length, tokens */
    uint32_t events_max; /* block events kept for routers, a power of two */
    uint8_t secret_seed[32]; /* random, from the shell: grant secrets are derived from it */
    kvf_time_ns relink_ttl_ns; /* how long a hand-off whose link broke waits for the next one, below the receivers'
                                  grant_ttl; 0: it ends at once */
    kvf_time_ns grant_ttl_ns, hold_ttl_ns, router_grace_ns, queue_ttl_ns, cancel_memory_ns, status_interval_ns;
} kvf_node_config;

size_t kvf_node_size(const kvf_node_config *config);
/* memory: that many zero bytes, 64-byte aligned, kept. */
kvf_node *kvf_node_init(void *memory, const kvf_node_config *config, kvf_time_ns now);

/* ---- sessions. `session`: an index below sessions_max that the shell gives to a connection; Hello says whose it is.
 */
void kvf_node_on_msg(kvf_node *n, kvf_time_ns now, uint32_t session, const kvf_rmsg *m);
void kvf_node_on_session_down(kvf_node *n, kvf_time_ns now, uint32_t session);
/* No router is remembered under this index: a new connection may have it. */
bool kvf_node_session_free(const kvf_node *n, uint32_t session);

/* ---- links */
void kvf_node_on_link_up(kvf_node *n, kvf_time_ns now, kvf_link_id link, const char *peer, uint64_t peer_epoch,
    const uint8_t nonce[16], bool outgoing);
/* By which transport a link that is up goes; only stats tell it on. */
void kvf_node_on_link_over(kvf_node *n, kvf_link_id link, const char *transport);
/* The shell carries out CONNECT under this link id. */
void kvf_node_on_calling(kvf_node *n, const char *peer, uint64_t peer_epoch, kvf_link_id link);
/* Also for a call that failed (link is KVF_LINK_NONE where it could not even begin). */
void kvf_node_on_link_down(
    kvf_node *n, kvf_time_ns now, kvf_link_id link, const char *peer, kvf_status reason, const char *text);
/* KVF_OK, or why it was dropped (kvf_rx_on_frame). */
kvf_status kvf_node_on_frame(kvf_node *n, kvf_time_ns now, kvf_link_id link, const kvf_frame *f);
kvf_page_verdict kvf_node_on_page(
    kvf_node *n, kvf_time_ns now, kvf_link_id link, const kvf_page_header *header, kvf_landing *landing);
void kvf_node_on_landed(kvf_node *n, kvf_time_ns now, const kvf_landing *landing, bool crc_ok);
/* In place of landed: the payload never came, its link is gone. */
void kvf_node_on_dropped(kvf_node *n, kvf_time_ns now, const kvf_landing *landing);
bool kvf_node_link_waits(const kvf_node *n, kvf_link_id link); /* kvf_tx_waits */
bool kvf_node_link_used(const kvf_node *n, kvf_link_id link); /* by a hand-off or a grant */
void kvf_node_on_page_sent(kvf_node *n, kvf_time_ns now, uint64_t token, bool ok, uint32_t crc);

/* ---- engine */
typedef struct {
    const uint32_t *tokens; /* the whole sequence; the run is tokens[position, position + count) */
    uint32_t position, count;
    uint32_t tokens_count; /* known tokens of the sequence */
    uint32_t prompt_count;
    const uint32_t *blocks; /* physical, covers position + count */
    uint32_t samples; /* choices to sample from the last row; 0: none */
    uint32_t choice_first;
    uint32_t score; /* 0, or k + 1: score the known next token of every row, with k best */
    kvf_span sampling;
} kvf_step_run;
typedef struct {
    uint32_t from, to, tokens;
} kvf_step_copy;
typedef struct {
    uint64_t id;
    const kvf_step_copy *copies; /* before the runs */
    uint32_t copies_count;
    const kvf_step_run *runs;
    uint32_t runs_count;
    uint32_t prefill_tokens, decode_tokens;
} kvf_step; /* everything borrowed until kvf_node_on_step_done */

typedef struct {
    uint32_t run;
    uint32_t choice; /* choice_first + i */
    uint32_t token;
    kvf_end end; /* EOS or STOP_ID, where the token is one and counts */
    kvf_span sample; /* empty: no logprobs wanted */
} kvf_step_sample;
typedef struct {
    uint32_t run;
    uint32_t start, count; /* positions of the scored tokens */
    kvf_span samples;
} kvf_step_scores;
typedef struct {
    kvf_status status;
    const kvf_step_sample *samples; /* in the order of runs and choices */
    uint32_t samples_count;
    const kvf_step_scores *scores;
    uint32_t scores_count;
    kvf_time_ns busy_ns;
} kvf_step_result;
void kvf_node_on_layer(
    kvf_node *n, kvf_time_ns now, uint64_t step, uint32_t layer); /* layers up to this one are in pages */
void kvf_node_on_step_done(kvf_node *n, kvf_time_ns now, uint64_t step, const kvf_step_result *result);

/* ---- time, operators */
void kvf_node_on_time(kvf_node *n, kvf_time_ns now);
kvf_time_ns kvf_node_deadline(const kvf_node *n);
void kvf_node_drain(kvf_node *n, kvf_time_ns now, kvf_time_ns deadline_ns); /* as Drain from a router; SIGTERM */
bool kvf_node_idle(const kvf_node *n); /* nothing running, waiting or unacknowledged */

typedef enum {
    KVF_NODE_STEP,
    KVF_NODE_MSG,
    KVF_NODE_FRAME,
    KVF_NODE_PAGE,
    KVF_NODE_CONNECT,
    KVF_NODE_EXIT
} kvf_node_act_kind;
typedef struct {
    kvf_node_act_kind kind;
    uint32_t session; /* MSG */
    kvf_link_id link; /* FRAME, PAGE */
    union {
        kvf_step step;
        kvf_nmsg msg;
        kvf_frame frame;
        struct {
            kvf_page_header header;
            kvf_block_id block;
            uint64_t token;
        } page;
        struct {
            char peer[KVF_NAME_MAX];
            uint64_t peer_epoch, host_id;
            char address[KVF_ADDRESS_MAX], local_address[KVF_ADDRESS_MAX];
        } connect;
    };
} kvf_node_act; /* pointers inside are borrowed until the next call on this node */
/* link_has_room: see kvf_tx_next. */
bool kvf_node_next(kvf_node *n, bool (*link_has_room)(void *self, kvf_link_id link), void *self, kvf_node_act *act);

void kvf_node_get_stats(const kvf_node *n, kvf_node_stats *out); /* its list is borrowed until the next call */
void kvf_node_get_counts(const kvf_node *n, kvf_kv_counts *kv, kvf_rx_counts *rx);
kvf_status kvf_node_audit(const kvf_node *n, kvf_error *err);
kvf_kv *kvf_node_kv(kvf_node *n); /* for reports and the simulator's checks */
#endif
