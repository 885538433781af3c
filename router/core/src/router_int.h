/* Inside of the router's core.
 *
 * Three kinds of things:
 *   request  what a client submitted; ends in one FINISHED or FAILED.
 *   seq      one choice of a request: its tokens, how it ended. requests_max of them; choice 0 of a request is its
 * first. leg      a unit of work that nodes know by an id of its own; it lives in the seq of its first choice. At first
 * one leg computes all choices; a retry after tokens were accepted makes one leg of each choice that goes on, because
 * the work then differs.
 *
 *   leg: NONE -> WAITING -> RESERVING -> GRANTED -> PREFILLING -> DECODING -> NONE
 *                  ^  ^        |  \-> QUEUED -^          (LOCAL: RESERVING or QUEUED -> DECODING)
 *                  |  \- HELD -+-----------------------------/   any failure, hand-back or refusal
 *
 *   WAITING    in the router's queue, ordered by priority, hand-backs first, arrival
 *   HELD       nobody could take it; looked at again at its timer, or when a node becomes ready
 *   RESERVING  Reserve sent (or about to be), no answer
 *   QUEUED     the decode node keeps it in its own queue
 *   GRANTED    a grant without a prefill node yet
 *   PREFILLING Prefill sent
 *   DECODING   the decode node has said that it goes on alone
 *
 * Invariants: a leg counts at its decode node (and prefill node) from sending until it leaves; every node that was told
 * about an attempt either said that it is over or gets a Cancel; a seq is appended to only at its next position;
 * counters of waiting work equal the legs that wait. rt_check (tests, KVF_SLOW_CHECKS) walks all of them. */
#ifndef KVF_ROUTER_INT_H
#define KVF_ROUTER_INT_H
#include "kvf/router.h"
#include "kvf/arena.h"
#include "kvf/kvcache.h"
#include "directory.h"
#include "heap.h"

/* Planted faults for the simulator (0 in every product build): 1 words about another attempt believed; 2 the decode
 * node that is left gets no Cancel; 3 a token said again is given again; 4 legs of a lost node wait on; 5 a retired
 * process taken back; 6 a retry's prompt grows by what was accepted; 7 a split choice starts as the first; 8 names
 * removed stay in the directory; 9 so do those of a lost node; 10 Hello forgets the attempt before; 11 lost tokens of a
 * running attempt waited for; 12 a hand-back counts as a failure; 13 the attempt before forgotten at the same node; 14
 * silence after a reconnect not asked about; 15 an unanswered Reserve not sent again; 16 new tokens no progress; 17 one
 * batch too many acknowledged; 18 a late grant gets no Cancel; 19 nor does the grant of a Reserve that came twice; 20
 * the process that is met later is the newer one. */
#ifndef KVF_MUTANT
#define KVF_MUTANT 0
#endif
#define MUTANT(n) (KVF_MUTANT == (n))

#define RT_NONE UINT32_MAX
#define RT_RETIRED_MAX 8
#define RT_ADMIN_MAX 256
#define RT_PROBE_NS                                                                                                    \
    (500 * KVF_NS_PER_MS) /* how long a node that ought to be decoding may be silent before it is asked */
#define RT_SLOW_TIMES 8 /* a page waited so many times longer than the best pair's */
#define RT_SLOW_HANDOFFS 2 /* in a row */
#define RT_LATE_NS (100 * KVF_NS_PER_MS) /* a timer this late: the router itself was not running */
#define RT_EJECTED_NS (500 * KVF_NS_PER_MS) /* who asked for shipping waits for a pair that is set aside for less */
#define RT_HOLD_NS (20 * KVF_NS_PER_MS) /* how soon a held leg is looked at again when no event wakes it */

typedef enum {
#define STATE(name) RT_LEG_##name,
#define MOVE(from, to, event)
#include "leg_moves.h"
#undef STATE
#undef MOVE
} rt_leg_state;

#define RT_NOTES                                                                                                       \
    4 /* engines that may be at a leg at once, as far as is known: those of attempts that were left too                \
       */
#define RT_STORM 16
#define RT_STRAY_BACKOFF_MAX_NS KVF_NS_PER_S
#define RT_STRAY_SPANS_MAX 10 /* config.stray_span_ns each: strays while processes die end after so many */

/* `node` has said that its engine is at tokens [first, end) of this attempt. It holds until the node says otherwise. */
typedef struct {
    uint32_t node, attempt, first, end;
    uint64_t said; /* number of that node's Prefilling; 0: no note */
} rt_note;

typedef struct {
    rt_leg_state state;
    rt_leg_state left; /* what it was before it left its decode node, until it is something again; else NONE */
    kvf_request_id id;
    uint32_t n, choice_base;
    uint32_t attempt; /* that is followed; 0: none yet */
    uint32_t attempt_last; /* highest ever used */
    uint32_t old_attempt; /* at the same decode node, replaced by `attempt` without an answer yet; 0: none */
    uint32_t failures; /* attempts that nodes called failed and that gave no new token */
    /* In a row, without a new token: */
    uint32_t deaths; /* processes that died computing it, while there is a position that all of them were at */
    uint32_t deaths_all; /* the same, wherever they were */
    uint32_t death_first, death_end, death_node; /* what they have in common; the last of them */
    kvf_time_ns death_since; /* the first of deaths_all */
    uint32_t links_lost; /* hand-offs in a row that failed on the way: the decode node has given no new token */
    uint32_t strays; /* attempts that came to nothing through no fault of it, as far as one can see */
    kvf_time_ns stray_since;
    rt_note notes[RT_NOTES];
    bool running; /* the decode node has said that it decodes */
    uint32_t handbacks; /* times it was preempted */
    uint32_t outputs_base; /* output tokens that were part of this attempt's work: said again, it is the same work */
    bool progress; /* this attempt gave a new token */
    bool retry; /* goes before others of its priority */
    bool local_only; /* no further try to ship it */
    uint32_t decode, prefill; /* nodes of this attempt, RT_NONE */
    bool decode_told,
        prefill_told; /* a message of this attempt has been sent there, and it has not said that it is over */
    bool unverified; /* the decode node may have given it up without our hearing of it */
    kvf_time_ns heard_ns; /* last token while unverified */
    bool shipped; /* the prefill node has said how the hand-off ended */
    bool ended_here; /* a choice was ended by the router: the node does not know */
    uint32_t ship_min; /* of this attempt */
    uint64_t avoid; /* nodes that failed it */
    uint64_t impossible; /* nodes that can never hold it */
    uint64_t tried; /* nodes that said "not now" since it last was admitted */
    uint64_t arrival;
    kvf_time_ns unready_since; /* no node could be chosen since (rt_awake); KVF_TIME_NEVER: not so */
    kvf_time_ns grant_until; /* GRANTED: when to stop looking for a prefill node */
    kvf_time_ns stall_ns; /* PREFILLING: when the hand-off has to be over; 0: the first token is not here yet */
    kvf_time_ns admitted_ns; /* of this attempt */
    uint64_t grant;
    uint8_t secret[16];
    uint32_t missing_count, cached_tokens;
    uint32_t prefill_load; /* tokens that count at the prefill node until its first token */
    uint64_t model, numerics; /* hashes of what made the tokens so far, 0: none yet */
    bool counted_waiting, first_reserve;
    bool reserve_due, prefill_due, in_sends;
    uint32_t sends_next;
} rt_leg;

typedef struct {
    uint32_t request; /* RT_NONE: free */
    uint32_t choice, next; /* next seq of the same request */
    uint32_t output_count;
    bool ended, prompt_here;
    uint32_t leg; /* seq in which the leg that computes this choice lives; RT_NONE: none */
    uint64_t generation; /* ids made from this place */
    rt_leg l;
} rt_seq;

typedef struct {
    bool used, closed, failed; /* closed: nothing but the last action is to come */
    bool admitted, admitted_due, finish_waits;
    kvf_request_id id;
    uint64_t client;
    uint32_t n, prompt_count, output_max;
    bool output_max_given, prompt_only;
    int32_t priority;
    kvf_time_ns submit_ns, deadline_ns;
    kvf_time_ns first_admitted_ns, first_token_ns, last_token_ns; /* KVF_TIME_NEVER: not yet */
    kvf_hash128 salt;
    kvf_router_mode mode;
    uint32_t prompt_logprobs, prompt_logprobs_next;
    uint32_t sampling_bytes;
    uint32_t first_seq, open_choices;
    uint32_t prefill_node, decode_node, cached_tokens;
    kvf_router_usage usage;
    kvf_refusal why;
    bool in_events;
    uint32_t events_next;
} rt_request;

typedef struct {
    bool used, up, welcomed, known, lost, bad;
    char id[KVF_NAME_MAX], refused[KVF_TEXT_MAX];
    kvf_role hint;
    kvf_node_info info;
    kvf_node_stats stats;
    uint64_t model, numerics; /* hashes of info.identity */
    uint64_t retired[RT_RETIRED_MAX];
    uint32_t retired_count;
    kvf_time_ns heard_ns, down_ns, closed_until_ns;
    bool hello_due, snapshot_due, superseded_due, close_due, ack_due;
    uint64_t ack_number;
    bool events_synced, events_lagged, snapshot_running, snapshot_compares;
    uint64_t events_next, snapshot_next;
    rt_dir_difference difference;
    bool difference_valid;
    uint64_t prefilling_said; /* number of its last Prefilling; grows also when its process is gone */
    bool full; /* its last answer to a Reserve was Queued or "not now" */
    uint32_t reserving, queued, decoding, prefilling; /* legs of this router there */
    uint64_t prefill_load;
    uint64_t others_load; /* tokens that wait there for other routers, as of its last report: that report is too old to
                             say anything of our own */
} rt_node;

typedef struct {
    bool refused, numerics_only;
    uint32_t failures;
    bool probing; /* its one request after an ejection is under way */
    const char *why; /* it was set aside last; static text */
    uint32_t slow; /* hand-offs in a row that took much longer a page than others' */
    uint64_t page_ns; /* mean waiting for a page after computing, of late; 0: unknown */
    kvf_time_ns until_ns;
    uint64_t pages, bytes;
    /* Frames that the decode node's process of this epoch has rejected, and those of its processes before. */
    uint64_t rejected_epoch, rejected_now, rejected_before;
    char transport[KVF_TRANSPORT_MAX]; /* of the link that the prefill node has told of last; "": it has none */
} rt_pair;

typedef struct {
    uint32_t node, attempt;
    kvf_request_id request;
    bool finished;
} rt_cancel;

typedef struct {
    uint32_t node;
    kvf_rmsg msg; /* of a kind without pointers */
} rt_admin;

struct kvf_router {
    kvf_router_config config;
    kvf_time_ns now;
    kvf_time_ns slept_ns; /* in all, while timers were due */
    rt_seq *seqs;
    uint32_t *tokens; /* requests_max * context_max */
    uint32_t *missing; /* requests_max * missing_max */
    uint8_t *sampling; /* requests_max * KVF_SAMPLING_MAX */
    uint32_t missing_max;
    rt_request *requests;
    uint32_t *free_seqs, *free_requests;
    uint32_t free_seqs_count, free_requests_count, fresh_seqs, fresh_requests; /* fresh: never used from here on */
    rt_node *nodes;
    rt_pair *pairs; /* [prefill * nodes_max + decode] */
    rt_directory directory;
    rt_heap queue; /* seqs whose leg is WAITING */
    rt_heap timers; /* seqs, then requests, then nodes */
    kvf_time_ns *timer_at;
    rt_cancel *cancels;
    uint32_t cancels_mask, cancels_head, cancels_count;
    rt_admin *admin;
    uint32_t admin_head, admin_count;
    uint32_t events_head, events_tail, sends_head, sends_tail; /* lists of requests and seqs with something to say */
    uint64_t arrivals;
    uint32_t queued_legs; /* QUEUED */
    uint32_t rotate_decode, rotate_prefill; /* ties go round */
    bool pump_due;
    bool any_died;
    kvf_time_ns died_ns; /* valid when any_died: the last death of a process */
    kvf_time_ns storm[RT_STORM]; /* when processes died of nothing that is known; a ring */
    uint32_t storm_count;
    uint64_t nodes_due; /* bit per node that may have a message or a close to give: looked at, then cleared */
    const kvf_nmsg *batch; /* message whose items are being told */
    uint32_t batch_node, batch_at;
    kvf_live *live;
    kvf_rmsg out;
    int64_t retry_budget; /* in millionths of an attempt; below 0: attempts that wait their turn */
    kvf_time_ns retry_budget_ns; /* credited until then */
    kvf_router_counters counters;
};

/* ---- requests.c ---- */
rt_seq *rt_seq_of(kvf_router *r, kvf_request_id part); /* the seq whose leg has this id, or NULL */
rt_request *rt_request_by(const kvf_router *r, kvf_request_id id); /* live request, or NULL */
static inline uint32_t rt_seq_index(const kvf_router *r, const rt_seq *s) { return (uint32_t)(s - r->seqs); }
static inline rt_request *rt_request_at(const kvf_router *r, const rt_seq *s) { return &r->requests[s->request]; }
static inline uint32_t *rt_seq_tokens(const kvf_router *r, const rt_seq *s) {
    return r->tokens + (size_t)rt_seq_index(r, s) * r->config.context_max;
}
void rt_seq_prompt_copy(kvf_router *r, rt_seq *s); /* its storage begins with the prompt */
kvf_request_id rt_seq_new_id(kvf_router *r, rt_seq *s);
rt_seq *rt_seq_choice(kvf_router *r, const rt_request *q, uint32_t choice);
void rt_request_say(kvf_router *r, rt_request *q); /* it has an action to give */
void rt_request_fail(
    kvf_router *r, rt_request *q, kvf_status status, const char *field, const char *text, kvf_time_ns retry_after_ns);
void rt_request_free(kvf_router *r, rt_request *q);
void rt_choice_end(kvf_router *r, rt_seq *s, bool ended_here); /* may finish leg and request */
void rt_request_on_time(kvf_router *r, rt_request *q);
void rt_request_heard(kvf_router *r, rt_request *q); /* what an ended request waited for may have come */

/* ---- legs.c ---- */
void rt_leg_wait(kvf_router *r, rt_seq *s); /* to the queue */
void rt_leg_hold(kvf_router *r, rt_seq *s, kvf_time_ns until_ns);
void rt_leg_reserve(kvf_router *r, rt_seq *s, uint32_t node, uint32_t ship_min);
void rt_leg_prefill(kvf_router *r, rt_seq *s, uint32_t node, uint32_t load);
void rt_leg_admitted(kvf_router *r, rt_seq *s);
void rt_request_admitted(kvf_router *r, rt_request *q); /* its client hears so, once */
void rt_leg_decoding(kvf_router *r, rt_seq *s);
void rt_leg_set_state(kvf_router *r, rt_seq *s, rt_leg_state state);
void rt_leg_leave_prefill(kvf_router *r, rt_seq *s, bool finished);
void rt_leg_leave(kvf_router *r, rt_seq *s, bool finished); /* both nodes; with Cancels where they are owed */
void rt_leg_stop_decoding(kvf_router *r, rt_seq *s); /* all choices have ended, though the leg stays */
void rt_leg_drop(kvf_router *r, rt_seq *s, bool finished); /* leave, and it is no more */
void rt_leg_verify(kvf_router *r, rt_seq *s); /* asks its decode node, should that stay silent */
void rt_leg_first_token(kvf_router *r, rt_seq *s); /* of the prefill node: the hand-off is all that is left */
void rt_leg_on_time(kvf_router *r, rt_seq *s);
void rt_leg_send(kvf_router *r, rt_seq *s);
void rt_cancel_push(kvf_router *r, uint32_t node, kvf_request_id id, uint32_t attempt, bool finished);

/* What an attempt that ended so says of its request. */
typedef enum {
    RT_STRAY, /* nothing: it was there when something else went wrong */
    RT_FAULT, /* a node failed it: counts, unless the attempt gave a new token */
    RT_DEATH, /* a process died of it, perhaps: rt_suspect_died has counted it */
    RT_HANDBACK /* it was given back: preempted, or the node drains */
} rt_blame;

typedef struct {
    rt_blame what;
    bool same_decode; /* the decode node is not to blame: its verified pages stay */
    bool link; /* pages could not pass: may go on, so that the next attempt needs leave of the retry budget */
    uint32_t blame; /* node to avoid, RT_NONE */
    kvf_status reason;
    const char *stage, *text;
} rt_failure;
/* The attempt is over; the leg goes on in a next one, or its request fails. */
void rt_leg_failed(kvf_router *r, rt_seq *s, const rt_failure *why);

/* false: one more has ended the request. */
bool rt_leg_may_go_on(kvf_router *r, rt_seq *s, const rt_failure *why);

/* ---- suspects.c ---- */
void rt_suspects_told(kvf_router *r, uint32_t node, const kvf_nmsg *msg);
bool rt_suspect_died(kvf_router *r, rt_seq *s, uint32_t node); /* true: this leg was in the engine there; counted */
void rt_suspect_cleared(rt_leg *l); /* a new token */
bool rt_suspect_guilty(const kvf_router *r, const rt_leg *l);
void rt_suspects_nobody(kvf_router *r); /* a process died, and nobody is to blame */
bool rt_suspect_alone(const kvf_router *r, const rt_leg *l); /* one more death ends it: nobody shares its steps */

/* ---- assign.c ---- */
void rt_pump(kvf_router *r);
void rt_assign_prefill(kvf_router *r, rt_seq *s); /* for a GRANTED leg */
bool rt_node_ready(const kvf_router *r, const rt_node *n);
kvf_role rt_node_role(const rt_node *n);
uint64_t rt_nodes_ready(const kvf_router *r, kvf_role role);
uint64_t rt_prefills_for(const kvf_router *r, uint32_t decode); /* that may ship there now */
uint32_t rt_idle_decode(kvf_router *r, const rt_seq *s); /* a node with room that has not been asked, RT_NONE */

bool rt_queue_before(const void *context, uint32_t a, uint32_t b); /* order of the queue */

/* ---- nodes.c ---- */
void rt_node_on_time(kvf_router *r, uint32_t node);
void rt_node_arm(kvf_router *r, uint32_t node);
void rt_node_on_welcome(kvf_router *r, uint32_t node, const kvf_nmsg *msg);
void rt_node_on_status(kvf_router *r, uint32_t node, const kvf_node_stats *stats);
void rt_node_on_events(kvf_router *r, uint32_t node, const kvf_nmsg *msg);
void rt_node_on_snapshot(kvf_router *r, uint32_t node, const kvf_nmsg *msg);
void rt_nodes_wake(kvf_router *r); /* held legs look again */
uint32_t rt_hello_live(kvf_router *r, uint32_t node);
static inline rt_pair *rt_pair_of(const kvf_router *r, uint32_t prefill, uint32_t decode) {
    return &r->pairs[(size_t)prefill * r->config.nodes_max + decode];
}
void rt_pair_failed(kvf_router *r, uint32_t prefill, uint32_t decode, const char *why); /* why: static text */
/* A hand-off has ended well: how well, compared with those of other pairs. again: pages sent more than once. */
void rt_pair_shipped(
    kvf_router *r, uint32_t prefill, uint32_t decode, uint64_t pages, uint64_t again, kvf_time_ns exposed_ns);

/* ---- retries.c ---- */
kvf_time_ns rt_jitter(const kvf_router *r, kvf_time_ns span, uint64_t a, uint64_t b); /* 3/4 to 5/4 of span */
void rt_retry_credit(kvf_router *r); /* a new request */
kvf_time_ns rt_retry_wait(kvf_router *r); /* takes leave for one more attempt; how long it has to wait */

/* ---- replies.c, tokens.c ---- */
static inline bool rt_answers_reserve(const rt_leg *l) {
    return l->state == RT_LEG_RESERVING || l->state == RT_LEG_QUEUED;
}
void rt_leg_local(kvf_router *r, rt_seq *s, uint32_t cached_tokens); /* the decode node computes all of it */
void rt_on_reply(kvf_router *r, uint32_t node, const kvf_nmsg *msg);
bool rt_batch_next(kvf_router *r, kvf_router_action *action);
void rt_batch_begin(kvf_router *r, uint32_t node, const kvf_nmsg *msg);
bool rt_admitted_action(rt_request *q, kvf_router_action *a); /* false: none is due */

/* ---- time (router.c) ---- */
void rt_clock(kvf_router *r, kvf_time_ns now); /* first of all, in every call */
/* For limits of what others fail to do: a time in which this router was frozen is not theirs. */
static inline kvf_time_ns rt_awake(const kvf_router *r) { return r->now - r->slept_ns; }
static inline uint32_t rt_timer_seq(const kvf_router *r, const rt_seq *s) { return rt_seq_index(r, s); }
static inline uint32_t rt_timer_request(const kvf_router *r, const rt_request *q) {
    return r->config.requests_max + (uint32_t)(q - r->requests);
}
static inline uint32_t rt_timer_node(const kvf_router *r, uint32_t node) { return 2 * r->config.requests_max + node; }
void rt_timer_set(kvf_router *r, uint32_t timer, kvf_time_ns at_ns); /* KVF_TIME_NEVER: off */

static inline kvf_time_ns rt_after(kvf_time_ns now, kvf_time_ns span_ns) {
    return span_ns > KVF_TIME_NEVER - now ? KVF_TIME_NEVER : now + span_ns;
}

/* Walks every invariant of this page; a broken one is an assertion. */
void rt_check(const kvf_router *r);
#endif
