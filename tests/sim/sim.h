/* A whole cluster on one event heap: the shipped cores of router and nodes, a network with delays and faults, engines
 * whose page contents are a function of the tokens before them. One seed decides everything; the same seed gives the
 * same trace hash on every machine.
 *
 * What is checked: after every event every node's audit (I1-I3, I6); at every engine step, that each position a
 * sequence attends to holds exactly the value of its own tokens (I4: no page of another request, none that is not
 * committed); at every token a client is given, that it is the undisturbed one, gap-free (I5); at the end, that every
 * request has ended, nothing is pinned, booked or in use (I6), and that the directory equals the nodes' truth (I8).
 *
 * Not modelled: the kernel, gRPC, real time, threads, the bytes of frames (tests/unit/kvtransfer does those). */
#ifndef KVF_SIM_H
#define KVF_SIM_H
#include "kvf/node.h"
#include "kvf/rng.h"
#include "kvf/router.h"

#define SIM_NODES_MAX 6
#define SIM_LINKS_MAX 4096
#define SIM_REQUESTS_MAX 64
#define SIM_LAYERS 2
#define SIM_VOCAB 500
#define SIM_CONTEXT 256
#define SIM_PAGE_BYTES (KVF_KV_BLOCK_TOKENS * 8)

typedef enum {
    EV_SUBMIT,
    EV_CANCEL,
    EV_TO_NODE, /* a router's message arrives */
    EV_TO_ROUTER, /* a node's message arrives */
    EV_SESSION_DOWN,
    EV_SESSION_UP,
    EV_LINK_UP,
    EV_LINK_DOWN,
    EV_FRAME,
    EV_PAGE,
    EV_LANDED,
    EV_LAYER,
    EV_STEP_DONE,
    EV_TIMER_NODE,
    EV_TIMER_ROUTER,
    EV_CRASH,
    EV_RESTART,
    EV_DRAIN,
    EV_HEAL
} ev_kind;

typedef struct {
    kvf_time_ns at;
    uint64_t sequence;
    ev_kind kind;
    uint32_t node; /* whom it concerns */
    uint32_t incarnation; /* of that node (or of the session) when it was made; an older one is dropped */
    uint32_t index; /* request, link, layer ... */
    uint64_t number;
    void *payload; /* freed with the event */
} event;

typedef struct {
    uint64_t slot[SIM_LAYERS][KVF_KV_BLOCK_TOKENS];
} sim_block;

typedef struct {
    kvf_page_header header;
    uint64_t slot[KVF_KV_BLOCK_TOKENS];
    kvf_landing landing;
} sim_page;

typedef struct {
    bool alive;
    uint32_t incarnation; /* counts starts */
    kvf_node *core;
    void *memory;
    size_t memory_bytes;
    kvf_node_config config;
    sim_block *pages;
    bool step_running;
    kvf_step step;
    uint32_t slowness; /* 1: normal */
    kvf_time_ns timer_at;
    bool session_up;
    uint32_t session; /* counts sessions */
    kvf_time_ns to_node_last, to_router_last; /* sessions keep order */
} sim_node;

typedef struct {
    uint32_t from, to; /* nodes */
    uint32_t from_incarnation, to_incarnation;
    bool up;
    kvf_time_ns forward_last, back_last;
} sim_link;

typedef struct {
    uint32_t tokens[SIM_CONTEXT];
    uint32_t prompt_count, n, output_max;
    bool submitted, admitted, over, cancelled, failed;
    kvf_status fail_status;
    kvf_request_id id;
    uint32_t got[KVF_CHOICES_MAX]; /* tokens given to the client */
    bool choice_over[KVF_CHOICES_MAX];
    uint32_t stop_at[KVF_CHOICES_MAX]; /* a stop string matches with this many tokens; 0: never */
    uint32_t out[KVF_CHOICES_MAX][SIM_CONTEXT];
    kvf_router_mode mode;
    int32_t priority;
    uint64_t salt;
    kvf_time_ns deadline;
} sim_request;

typedef struct {
    uint64_t seed;
    kvf_rng rng;
    kvf_time_ns now;
    event *heap;
    uint32_t heap_count, heap_max;
    uint64_t sequences, events;
    kvf_router *router;
    void *router_memory;
    kvf_time_ns router_timer_at;
    sim_node node[SIM_NODES_MAX];
    uint32_t nodes, prefill_nodes;
    sim_link link[SIM_LINKS_MAX];
    uint32_t links;
    sim_request request[SIM_REQUESTS_MAX];
    uint32_t requests, over;
    bool faults;
    bool healed;
    uint32_t corrupt_ppm; /* of pages */
    uint64_t trace_hash;
    uint64_t audits_asked, audits_answered;
    bool verbose;
    /* counters of the report */
    uint64_t pages_moved, pages_corrupted, crashes, cuts, blips, tokens, finished, failed, cancelled, checked_positions;
} sim;

/* Runs one seed to its end. false: a check failed; what, is in failure. */
bool sim_run(sim *s, uint64_t seed, bool faults, bool verbose);
void sim_fail(sim *s, const char *fmt, ...) KVF_PRINTF(2, 3) KVF_NORETURN;
const char *sim_failure(void);

/* heap.c */
event *sim_push(sim *s, kvf_time_ns at, ev_kind kind, uint32_t node, uint32_t index);
bool sim_pop(sim *s, event *out);
/* clone.c: deep copies in one malloc */
kvf_rmsg *sim_clone_rmsg(const kvf_rmsg *m);
kvf_nmsg *sim_clone_nmsg(const kvf_nmsg *m);
kvf_frame *sim_clone_frame(const kvf_frame *f);
/* engine.c */
uint64_t sim_chain(uint64_t before, uint32_t token);
uint32_t sim_next_token(const uint32_t *tokens, uint32_t count, uint32_t choice, bool *eos);
void sim_engine_begin(sim_node *n);
void sim_engine_layer(sim *s, sim_node *n, uint32_t layer);
void sim_engine_finish(sim *s, sim_node *n, kvf_step_result *result);
#endif
