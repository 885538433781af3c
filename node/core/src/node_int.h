/* What the files of the node core share: the records and the calls between its rooms. */
#ifndef KVF_NODE_INT_H
#define KVF_NODE_INT_H
#include "kvf/arena.h"
#include "kvf/decode_plan.h"
#include "kvf/node.h"
#include "kvf/prefill_plan.h"

/* Planted faults for the simulator (0 in every product build): 1 Hello leaves requests that it does not list; 2 blocks
 * given back under a running step; 3 and under a send; 4 tokens not said again after a reconnect; 5 one batch too many
 * acknowledged; 6 an end overtakes the tokens before it; 7 a hit pinned without room; 8 nothing left to compute; 9
 * booked room kept; 10 the last, partly filled page not shipped; 11 a page shipped before its layer is done; 12 a grant
 * not renewed while the prefill node queues; 13 a lower attempt followed; 14 landed pages kept though the prompt has
 * grown; 15 a lost router's requests kept; 16 a late Cancel hits the next attempt; 17 Failed where the sender has said
 * why; 18 salt not in the root; 19 prompt logprobs not said again; 20 a hand-off committed before its scores are
 * acknowledged; 21 a Reserve of what has ended here taken on. */
#ifndef KVF_MUTANT
#define KVF_MUTANT 0
#endif
#define MUTANT(n) (KVF_MUTANT == (n))

#define NONE UINT32_MAX
#define SCORE_ROWS_MAX                                                                                                 \
    16 /* rows of logits a scoring run may ask for in one step: bounds the engine's logits memory                      \
        */
#define SCORE_RUNS_MAX 32 /* results of scoring runs kept for a session: bounds the messages that say them again */
#define BYPASS_MAX 16 /* reservations that may overtake a queue head that does not fit */

typedef enum {
#define STATE(name) REQ_##name,
#define MOVE(from, to, event)
#include "request_moves.h"
#undef STATE
#undef MOVE
} req_state;
typedef enum { LEG_RESERVE, LEG_PREFILL } req_leg;
typedef enum { SEQ_FREE, SEQ_HELD, SEQ_PREFILL, SEQ_DECODE, SEQ_DONE } seq_state;

typedef struct {
    seq_state state;
    uint32_t req;
    uint32_t choice;
    uint32_t count; /* tokens known */
    uint32_t computed; /* positions whose K and V are in pages */
    uint32_t blocks_count; /* blocks held (each with a pin of ours) */
    uint32_t sealed_count; /* leading blocks that are SEALED */
    uint32_t emitted; /* tokens made in this attempt */
    uint64_t last_step;
    uint32_t last_place; /* at the last pick, see decode_plan.h */
    bool in_step;
    uint32_t *tokens; /* [context_max] */
    kvf_block_id *block; /* [blocks_per_seq] */
    uint32_t *physical; /* the same as the engine wants them */
} node_seq;

typedef struct {
    req_state state;
    req_leg leg;
    uint32_t session;
    uint64_t arrival;
    kvf_request_id id;
    uint32_t attempt;
    uint32_t prompt_count, tokens_count; /* tokens_count: what Reserve or Prefill brought */
    uint32_t n, choice_base, output_max;
    bool output_max_given;
    int32_t priority;
    kvf_time_ns deadline;
    kvf_time_ns accepted_at, computing_at, computed_at;
    kvf_hash128 root;
    uint32_t ship_min, prompt_logprobs;
    uint32_t booked; /* units of room that are ours and not spent */
    uint32_t cached; /* tokens found in the cache */
    uint32_t seq[KVF_CHOICES_MAX];
    uint32_t live; /* choices that have not ended */
    bool in_queue; /* counted in n->queued */
    bool alone; /* kvf_work.alone, until it has made a token here */
    bool ending; /* release when the running step is done */
    uint32_t bypassed; /* times a younger reservation was admitted before this one */
    uint32_t sampling_bytes;
    uint8_t *sampling; /* [sampling_bytes_max] */
    /* RESERVE */
    uint64_t grant; /* while GRANTED */
    uint32_t *missing; /* [blocks_per_seq]: the blocks that this grant lists */
    uint32_t missing_count;
    uint8_t secret[16];
    kvf_time_ns queue_until;
    /* PREFILL */
    kvf_tx_id tx;
    bool tx_active;
    bool linked; /* it has had a link */
    bool held; /* the commit waits until the router has the prompt logprobs */
    uint32_t relinks; /* links that broke under it */
    uint32_t link_slot; /* of `links` while waiting for the link */
    char peer[KVF_NAME_MAX];
    uint32_t ready_layers; /* of the running step's blocks, already told to tx */
} node_req;

typedef struct {
    bool used; /* a router is known here */
    bool up;
    char router[KVF_NAME_MAX];
    uint64_t router_epoch;
    kvf_time_ns down_since;
    uint64_t events_sent; /* block events the router has been sent, up to this number */
    bool snapshot_due;
    uint64_t batch_next; /* number of the next token batch */
    bool prefilling_due; /* what the engine is at has changed */
    uint32_t prefilling_said; /* prompts that the last Prefilling named */
    uint32_t out_head, out_count, out_sent; /* ring of items; the first out_sent are in flight, unacknowledged */
    uint32_t score_runs; /* results of scoring runs in it */
} node_session;

typedef struct {
    kvf_token_item item; /* sample.data points at sample */
    uint64_t batch; /* 0: not sent yet */
    bool score, run_begins; /* score: the logprob of a prompt's position */
    uint8_t sample[KVF_SAMPLE_BYTES_MAX];
} out_item;

/* WAITING: the link broke, hand-offs wait for the next, and a call has failed: called again at redial_at. */
typedef enum { LINK_FREE, LINK_CALLING, LINK_UP, LINK_WAITING } link_state;
typedef struct {
    link_state state;
    bool outgoing;
    kvf_link_id id;
    char peer[KVF_NAME_MAX];
    uint64_t peer_epoch, host_id;
    uint8_t nonce[16];
    char address[KVF_ADDRESS_MAX], local_address[KVF_ADDRESS_MAX]; /* of an outgoing one */
    kvf_time_ns redial_at;
} node_link;

typedef struct {
    kvf_request_id id;
    uint32_t attempt; /* 0: all */
    uint16_t failed; /* status of a prefill leg: the router has been told so; else OK */
    uint16_t stage;
    kvf_time_ns until;
} cancel_note;

#define CANCEL_NOTES 1024 /* cancelled, ended here by themselves, or failed as prefill legs */

struct kvf_node {
    kvf_node_config config;
    kvf_node_state state;
    kvf_role role;
    kvf_time_ns now;
    kvf_kv *kv;
    kvf_rx *rx;
    kvf_tx *tx;
    node_req *reqs;
    node_seq *seqs;
    node_session *sessions;
    out_item *outbox; /* [sessions_max][outbox_max] */
    uint32_t outboxes_touched; /* those of the first so many sessions */
    node_link *links;
    cancel_note cancels[CANCEL_NOTES];
    uint32_t cancel_next;
    uint32_t queued; /* reservations waiting for room */
    uint64_t arrivals, secret_counter;
    kvf_decode_estimate estimate;
    kvf_time_ns drain_until;
    kvf_time_ns status_at;

    /* the running step */
    bool step_running;
    uint64_t step_id, alone_step; /* alone_step: the last one that was kept for one request */
    uint32_t step_layer; /* layers done + 1 so far */
    kvf_step_run *runs;
    uint32_t *run_seq;
    uint32_t runs_count;
    kvf_step_copy *copies;
    uint32_t copies_count; /* at most config.sequences_max */
    uint32_t step_copies; /* the first so many belong to the running step; later ones wait for the next */
    kvf_block_id *copy_blocks; /* targets, in use until the step is done */
    uint32_t step_prefill, step_decode;

    /* scratch of the planners */
    kvf_prefill_candidate *prefill_candidates;
    kvf_prefill_run *prefill_runs;
    uint32_t *prefill_scratch;
    kvf_decode_candidate *decode_candidates;
    kvf_decode_holder *holders;
    uint32_t *decode_picks;
    uint32_t *index_scratch; /* [max(requests_max, sequences_max)] */
    uint32_t *emit_planned; /* [sessions_max]: tokens that the step being planned may emit */
    kvf_block_id *hits; /* [blocks_per_seq] */

    /* actions waiting to be drained, and the bytes they point at (reset when all are out) */
    kvf_node_act *acts;
    uint32_t acts_max, acts_head, acts_count;
    uint8_t *scratch;
    size_t scratch_bytes, scratch_used;

    kvf_node_stats stats; /* only the counters that nothing else keeps */
    kvf_rejected rejected[KVF_REJECTED_MAX]; /* by peer */
    uint32_t rejected_count;
    kvf_link_over links_told[KVF_LINKS_TOLD_MAX]; /* outgoing ones that are up */
    kvf_link_id links_told_id[KVF_LINKS_TOLD_MAX];
    uint32_t links_told_count;
    bool exit_due;
};

/* node_out.c: actions, token outbox, block events, status */
kvf_node_act *node_act(kvf_node *n, kvf_node_act_kind kind);
void *node_scratch(kvf_node *n, size_t len_bytes);
kvf_nmsg *node_msg(kvf_node *n, uint32_t session, kvf_n_kind kind); /* NULL: that session is down */
kvf_nmsg *node_msg_req(kvf_node *n, const node_req *r, kvf_n_kind kind);
void node_fail(
    kvf_node *n, node_req *r, kvf_stage stage, kvf_status reason, const char *peer, bool retryable, const char *text);
void node_refuse(kvf_node *n, uint32_t session, const kvf_work *w, kvf_status reason, const char *field,
    const char *text, kvf_time_ns retry_after);
void node_emit_token(kvf_node *n, node_req *r, uint32_t choice, uint32_t position, uint32_t token, kvf_end end,
    bool repeated, kvf_span sample);
void node_emit_scores(kvf_node *n, node_req *r, uint32_t start, uint32_t count, kvf_span samples);
bool node_scores_wait(const kvf_node *n, const node_req *r); /* not all are acknowledged */
void node_flush_tokens(kvf_node *n); /* what is unsent: PROMPT_LOGPROBS, then one TOKENS per session */
void node_resend_tokens(kvf_node *n, uint32_t session);
void node_ack_tokens(kvf_node *n, uint32_t session, uint64_t number);
bool node_outbox_full(const kvf_node *n, uint32_t session, uint32_t items);
void node_drop_tokens(kvf_node *n, uint32_t session, kvf_request_id id, uint32_t attempt); /* which nobody wants now */
void node_publish(kvf_node *n); /* block events and, when due, status to every session that is up */
void node_send_status(kvf_node *n, uint32_t session);
void node_say_prefilling(kvf_node *n, uint32_t session); /* when it is due */

/* node_req.c: records */
node_req *node_find(kvf_node *n, kvf_request_id id, req_leg leg);
uint32_t node_req_index(const kvf_node *n, const node_req *r);
void node_req_set_state(node_req *r, req_state to); /* by the table request_moves.h */
node_req *node_req_new(
    kvf_node *n, uint32_t session, const kvf_work *w, req_leg leg); /* NULL: no slot; sequences taken */
void node_release(kvf_node *n, node_req *r); /* gives everything back; waits for the running step where it must */
bool node_in_step(const kvf_node *n, const node_req *r);
node_seq *node_first_seq(kvf_node *n, const node_req *r);
void node_seq_add_block(node_seq *s, kvf_block_id id);
void node_seq_set_block(node_seq *s, uint32_t logical, kvf_block_id id);
void node_seal(kvf_node *n, node_req *r, node_seq *s); /* seals every block that is full up to `computed` */
void node_note_cancel(kvf_node *n, kvf_request_id id, uint32_t attempt);
void node_note_failed(kvf_node *n, const node_req *r, kvf_stage stage, kvf_status reason);
const cancel_note *node_has_failed(const kvf_node *n, const kvf_work *w); /* as the prefill node of this attempt */
bool node_was_cancelled(const kvf_node *n, kvf_request_id id, uint32_t attempt);

/* node_admit.c */
void node_on_reserve(kvf_node *n, uint32_t session, const kvf_work *w);
void node_on_prefill(kvf_node *n, uint32_t session, const kvf_work *w, const kvf_ship_to *to);
void node_admit_queued(kvf_node *n);

/* node_ship.c */
void node_on_rx(kvf_node *n, const kvf_rx_act *a); /* COMMITTED, LOST */
void node_on_tx_end(kvf_node *n, const kvf_tx_act *a);
void node_start_shipping(kvf_node *n, node_req *r, const kvf_ship_to *to);
void node_ship_first(
    kvf_node *n, node_req *r, const kvf_step_sample *samples, uint32_t count); /* the prompt is computed */
void node_links_on_time(kvf_node *n);
kvf_time_ns node_links_deadline(const kvf_node *n);
void node_tell_layers(kvf_node *n); /* final pages of the running step, layers below step_layer */

/* node_step.c */
void node_plan(kvf_node *n); /* starts a step when none runs and there is work */
void node_begin_choices(kvf_node *n, node_req *r, const kvf_step_sample *samples, uint32_t count, bool repeated);

#endif
