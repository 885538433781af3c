/* A whole cluster on one event heap: the shipped cores of routers and nodes, a network with latencies and faults,
 * engines whose page contents are a function of the tokens before them. A plan (plan.h), made from one seed or read
 * from a file, decides everything; the same plan gives the same trace hash on every machine.
 *
 * Processes: two for every node's name (place), the second of which lives only while a replacement and the old one
 * overlap, and the routers. Each has its own clock. A frozen process handles nothing; what comes for it waits in order,
 * and the first event after the thaw still sees the time at which it froze.
 *
 * What is checked, and when, stands in check.c. Not modelled: the kernel, gRPC, threads, the bytes of frames
 * (tests/unit/kvtransfer does those). */
#ifndef KVF_SIM_H
#define KVF_SIM_H
#include "kvf/node.h"
#include "kvf/router.h"
#include "plan.h"

#define SIM_PLACES PLAN_NODES_MAX
#define SIM_NODES (2 * SIM_PLACES) /* processes of nodes */
#define SIM_PROCESSES (SIM_NODES + PLAN_ROUTERS_MAX)
#define SIM_NOBODY UINT32_MAX
#define SIM_NONE UINT32_MAX
#define SIM_LAYERS 2
#define SIM_PAGE_BYTES (KVF_KV_BLOCK_TOKENS * 8)
#define SIM_BLOCKS_MAX 64
#define SIM_SLOTS 6 /* sessions of a node */
#define SIM_GRANTS_MAX 64
#define SIM_MS ((kvf_time_ns)KVF_NS_PER_MS)
#define SIM_US ((kvf_time_ns)KVF_NS_PER_US)

/* Times of leases, all much shorter than the shells', in the same order. */
#define SIM_PEER_TIMEOUT_NS (250 * SIM_MS)
#define SIM_ROUTER_GRACE_NS (300 * SIM_MS)
#define SIM_QUEUE_TTL_NS (500 * SIM_MS)
#define SIM_KEEPALIVE_NS (400 * SIM_MS) /* a node drops a router's stream that is silent for so long */
#define SIM_STATUS_NS (25 * SIM_MS)
#define SIM_STATUS_TIMEOUT_NS (200 * SIM_MS)
#define SIM_RECONNECT_GRACE_NS (50 * SIM_MS)
#define SIM_READY_GRACE_NS (1000 * SIM_MS)
#define SIM_STALL_NS (300 * SIM_MS)
#define SIM_SILENCE_NS (3000 * SIM_MS) /* no client is without news for so long while some node serves its router */

typedef enum {
    EV_SUBMIT,
    EV_CANCEL,
    EV_TO_NODE, /* a router's message arrives */
    EV_TO_ROUTER, /* a node's message arrives */
    EV_NODE_SIDE_DOWN, /* of a session */
    EV_ROUTER_SIDE_DOWN,
    EV_CONNECT, /* the router calls a node (again) */
    EV_LINK_UP,
    EV_LINK_DOWN,
    EV_FRAME,
    EV_PAGE,
    EV_LANDED,
    EV_SENT,
    EV_LAYER,
    EV_STEP_DONE,
    EV_HEARTBEAT,
    EV_TIMER,
    EV_FAULT,
    EV_DEAD_PEERS, /* whoever has been out of reach for too long is given up */
    EV_RELEASE, /* a partition heals */
    EV_THAW,
    EV_START,
    EV_HEAL,
    EV_OPERATOR
} ev_kind;

typedef struct {
    kvf_time_ns at;
    uint64_t sequence;
    ev_kind kind;
    uint32_t who; /* process, or nobody */
    uint32_t incarnation; /* of that process when the event was made; an older one is dropped */
    uint32_t index; /* request, session, link, layer, fault */
    uint64_t number;
    bool arrived; /* has left the network: no partition holds it */
    void *payload; /* freed with the event */
} event;

typedef struct {
    event *events;
    uint32_t count, max;
} event_list;

typedef struct {
    bool alive, frozen, stale_clock;
    uint32_t incarnation; /* counts starts */
    uint64_t offset_ns, drift_ppm;
    kvf_time_ns frozen_at, timer_at;
    event_list held;
} process;

typedef struct {
    uint64_t slot[SIM_LAYERS][KVF_KV_BLOCK_TOKENS];
} sim_block;

typedef struct {
    kvf_page_header header;
    uint64_t slot[KVF_KV_BLOCK_TOKENS];
    kvf_landing landing;
    bool torn;
} sim_page;

typedef struct {
    kvf_node_act act; /* of kind PAGE */
    uint64_t slot[KVF_KV_BLOCK_TOKENS];
} sim_sending;

/* An attempt that a node has given back or up, on this session. */
typedef struct {
    kvf_request_id request;
    uint32_t attempt, session;
} sim_end;

/* What was seen of a grant at the last check. */
typedef struct {
    uint64_t id;
    uint32_t turn;
    bool unopened; /* and its router's session was up */
} sim_grant;

/* A page that has landed with other bytes than were sent, and their checksum. */
typedef struct {
    uint64_t grant; /* 0: none */
    kvf_block_id block;
    uint32_t layer, slot;
    uint64_t flipped;
} sim_altered;

typedef struct {
    kvf_node *core;
    void *memory;
    size_t memory_bytes;
    kvf_node_config config;
    sim_block *pages;
    uint64_t pool_hash; /* of the pool's records at the last audit */
    uint32_t verified[SIM_BLOCKS_MAX]; /* generation of a named block whose pages have been compared with the truth */
    uint64_t checks;
    uint32_t generation[SIM_BLOCKS_MAX]; /* of a block that is not free, else 0 */
    bool step_running;
    kvf_step step;
    uint32_t slow;
    uint32_t session[SIM_SLOTS]; /* that has this slot, or none */
    uint32_t uses[SIM_BLOCKS_MAX]; /* operations under way on each block */
    sim_end ended[16];
    uint32_t ended_count;
    sim_grant grant[SIM_GRANTS_MAX];
    uint32_t corrupt_next, torn_next, step_fails_next;
    bool alter_next;
    sim_altered altered;
    uint64_t altered_grants[16]; /* the last ones */
    uint32_t altered_count;
    uint32_t repeat_percent, forge_percent, lag;
    kvf_time_ns repeat_until, forge_until, lag_until, slow_until;
} sim_node;

typedef struct {
    kvf_router *core;
    void *memory;
    size_t memory_bytes;
    uint32_t session[SIM_PLACES]; /* the last one to each place, or none */
    uint64_t epoch, audits_asked, audits_answered;
    uint64_t hand_backs_said, hand_backs_heard;
    kvf_time_ns unserved; /* when no node was in reach, last */
} sim_router;

typedef struct {
    uint32_t router, place, node; /* node: process */
    uint32_t router_incarnation, node_incarnation;
    uint32_t slot; /* at the node; none before Hello */
    bool cut, router_down, node_down;
    bool loses[2]; /* the cut swallows what is on its way to the router, to the node */
    kvf_time_ns node_down_at;
    kvf_time_ns to_node_last, to_router_last; /* a session keeps order */
    uint64_t drawn;
    event_list held;
} sim_session;

typedef struct {
    uint32_t end[2]; /* processes: caller, called */
    uint32_t incarnation[2];
    bool cut, up[2], down[2];
    bool loses[2]; /* the cut swallows what is on its way to each end */
    uint32_t sending; /* pages on their way out of the caller */
    kvf_time_ns last[2]; /* arrival of the last frame to each end */
    uint64_t drawn;
    event_list held;
} sim_link;

typedef struct {
    const plan_request *plan;
    kvf_time_ns submitted_at, told_at; /* told_at: of its last token, else submitted */
    bool submitted, admitted, over, cancelled;
    kvf_request_id id;
    uint32_t router_incarnation;
    uint32_t got[KVF_CHOICES_MAX]; /* tokens given to the client */
    uint64_t chain[KVF_CHOICES_MAX];
    bool choice_over[KVF_CHOICES_MAX];
    uint32_t counted; /* tokens of all choices that are to be on the account */
    uint32_t logprobs_next;
    uint32_t deaths; /* of nodes in a step that held it, since its last token */
    uint32_t engine_failures; /* of steps that held it, in an attempt that had given no token yet */
    bool fresh; /* no token has come since the last attempt began */
    uint32_t harms_before;
} sim_request;

typedef struct {
    uint64_t requests, finished, cancelled, failed, refused, lost_with_router, tokens;
    uint64_t events, checked_positions, checked_pages, audits;
    uint64_t pages_moved, frames_late, thawed_late;
    uint64_t faults[FAULT_KINDS];
    uint64_t pages_corrupted, pages_torn, pages_altered, repeated, forged, superseded;
    uint64_t sim_ns;
} sim_counts;

typedef struct {
    const plan *plan;
    kvf_time_ns now;
    event_list heap;
    uint64_t sequences, event_number;
    process process[SIM_PROCESSES];
    sim_node node[SIM_NODES];
    uint32_t place_node[SIM_PLACES]; /* process that answers at the place's address */
    sim_router router[PLAN_ROUTERS_MAX];
    sim_session *session;
    uint32_t sessions, sessions_max;
    sim_link *link;
    uint32_t links, links_max;
    kvf_time_ns link_blocked[SIM_PLACES][SIM_PLACES]; /* until */
    kvf_time_ns session_blocked[PLAN_ROUTERS_MAX][SIM_PLACES];
    uint32_t fault_left[PLAN_FAULTS_MAX]; /* events until it strikes; 0: struck, or by time */
    sim_request request[PLAN_REQUESTS_MAX];
    uint32_t requests, over;
    uint64_t followed; /* by check_before_hello: bit per request of the node */
    uint32_t dirty; /* bit per process whose core has heard something */
    bool healed, harmed; /* harmed: something struck that may cost attempts */
    uint32_t harms; /* that have struck */
    bool gone[SIM_PLACES]; /* died for good */
    uint64_t trace;
    kvf_rng rng; /* of what is drawn outside connections */
    bool verbose;
    uint64_t break_at;
    sim_counts count;
} sim;

/* world.c. false: a check failed; what, is in sim_failure. */
bool sim_run(sim *s, const plan *p);
void sim_fail(const sim *s, const char *fmt, ...) KVF_PRINTF(2, 3) KVF_NORETURN;
const char *sim_failure(void);
kvf_time_ns sim_clock(const sim *s, uint32_t who); /* what that process reads now */
kvf_time_ns sim_when(const sim *s, uint32_t who, kvf_time_ns local); /* the time at which its clock says so */
void sim_note(sim *s, uint64_t what);
uint64_t sim_draw(const sim *s, uint32_t stream, uint64_t *drawn, uint64_t below);
void sim_trace(const sim *s, const char *fmt, ...) KVF_PRINTF(2, 3);
#define TRACE(s, ...)                                                                                                  \
    do {                                                                                                               \
        if ((s)->verbose) sim_trace((s), __VA_ARGS__);                                                                 \
    } while (0)
static inline kvf_time_ns us(uint64_t n) { return n * KVF_NS_PER_US; }
static inline uint64_t below(sim *s, uint64_t n) { return kvf_rng_below(&s->rng, n); }
static inline uint32_t place_of(uint32_t node) { return node % SIM_PLACES; }
static inline uint32_t router_process(uint32_t router) { return SIM_NODES + router; }
static inline void touch(sim *s, uint32_t who) { s->dirty |= 1u << who; }

/* heap.c */
event *sim_push(sim *s, kvf_time_ns at, ev_kind kind, uint32_t who, uint32_t index);
bool sim_pop(sim *s, event *out);
void sim_hold(event_list *list, const event *e);
void sim_release(sim *s, event_list *list);
void sim_list_free(event_list *list);
/* clone.c: deep copies in one malloc */
kvf_rmsg *sim_clone_rmsg(const kvf_rmsg *m);
kvf_nmsg *sim_clone_nmsg(const kvf_nmsg *m);
kvf_frame *sim_clone_frame(const kvf_frame *f);
/* sessions.c: between routers and nodes */
void session_to_node(sim *s, uint32_t router, uint32_t place, const kvf_rmsg *m);
void session_to_router(sim *s, uint32_t node, uint32_t slot, const kvf_nmsg *m);
void session_cut(sim *s, uint32_t index, bool known);
void session_cut_of(sim *s, uint32_t who, bool known);
bool session_blocked(const sim *s, const sim_session *c);
void on_connect(sim *s, uint32_t router, uint32_t place);
void on_to_node(sim *s, const event *e);
void on_to_router(sim *s, const event *e);
void on_session_side_down(sim *s, const event *e);
/* links.c: between nodes */
void link_call(sim *s, uint32_t node, const kvf_node_act *a);
void link_cut(sim *s, uint32_t index, bool known);
void link_cut_of(sim *s, uint32_t node, bool known);
bool link_blocked(const sim *s, const sim_link *l);
bool link_has_room(void *node_and_sim, kvf_link_id link);
void link_send_frame(sim *s, uint32_t node, kvf_link_id link, const kvf_frame *f);
void link_send_page(sim *s, uint32_t node, const kvf_node_act *a);
void on_sent(sim *s, event *e);
void on_link(sim *s, const event *e);
void on_frame(sim *s, const event *e);
void on_page(sim *s, event *e);
void on_landed(sim *s, const event *e);
void on_heartbeat(sim *s, uint32_t node);
/* nodes.c */
void node_make(sim *s, uint32_t node);
void node_start(sim *s, uint32_t node);
void node_die(sim *s, uint32_t node);
void node_drain_actions(sim *s, uint32_t node);
void on_layer(sim *s, const event *e);
void on_step_done(sim *s, const event *e);
/* routers.c: routers and their clients */
void router_make(sim *s, uint32_t router);
void router_start(sim *s, uint32_t router);
void router_die(sim *s, uint32_t router);
void router_drain_actions(sim *s, uint32_t router);
void on_submit(sim *s, uint32_t request);
void on_cancel(sim *s, uint32_t request);
/* faults.c */
void faults_arm(sim *s);
void fault_hook(sim *s, trigger_kind on, uint64_t of, uint32_t node);
void on_fault(sim *s, uint32_t fault);
void on_dead_peers(sim *s, uint32_t fault);
void on_release(sim *s);
void on_thaw(sim *s, uint32_t who);
void heal(sim *s);
void on_operator(sim *s);
void note_service(sim *s);
/* engine.c */
uint64_t sim_root(uint64_t salt);
uint64_t sim_chain(uint64_t before, uint32_t token);
uint64_t sim_kept(uint64_t chain, uint32_t layer);
uint64_t sim_logprob(uint64_t chain, uint32_t token);
uint32_t sim_next_token(uint64_t chain, uint32_t prompt_count, uint32_t choice, bool *eos);
void sim_engine_begin(sim_node *n);
void sim_engine_layer(sim *s, uint32_t node, uint32_t layer);
void sim_engine_finish(sim_node *n, kvf_step_result *result);
/* check_node.c, check_router.c */
void check_node(sim *s, uint32_t node);
void check_node_pages(sim *s, uint32_t node); /* every named block of the cache against the truth */
void check_started(sim *s, uint32_t node, kvf_request_id id); /* a hand-off has been committed: its pages */
void check_node_at_rest(sim *s, uint32_t node);
void count_deaths(sim *s, uint32_t node, bool failed); /* the running step dies with its node */
void check_flushed(sim *s, uint32_t node);
void check_forgotten(sim *s, uint32_t router); /* its time is over: no node holds anything of it */
bool node_sends(const sim *s, uint32_t node); /* a hand-off is open: its link's heartbeat matters */
void check_router(sim *s, uint32_t router);
void check_before_hello(sim *s, uint32_t node, uint32_t router);
void check_after_hello(sim *s, uint32_t node, uint32_t router); /* what ran and is followed still runs */
bool router_follows(const sim *s, uint32_t router, uint32_t place, kvf_request_id id, uint32_t attempt);
void check_router_at_end(sim *s, uint32_t router);
void check_answer(sim *s, uint32_t router, uint32_t place, const kvf_nmsg *m); /* that is about to be heard */
#endif
