/* The plan of a run: everything that a seed decides before the first event. A plan can be written as text and read
 * again, so that a failing one can be cut down to what matters and kept. Latencies are not in it: they are drawn, by
 * connection and count, from `seed`, so that taking a request or a fault away leaves the others' as they were. */
#ifndef KVF_SIM_PLAN_H
#define KVF_SIM_PLAN_H
#include "kvf/base.h"
#include "kvf/rng.h"

#define PLAN_NODES_MAX 6
#define PLAN_ROUTERS_MAX 2
#define PLAN_REQUESTS_MAX 48
#define PLAN_FAULTS_MAX 64
#define PLAN_CONTEXT 256
#define PLAN_VOCAB 500
#define PLAN_NEVER UINT64_MAX

typedef struct {
    uint64_t seed;
    uint64_t prefill, decode, routers;
    uint64_t latency_us; /* of a message, at most, in a good hour */
    uint64_t queue_max; /* of each router */
    uint64_t lease_ms; /* of grants and hand-offs; heartbeats come four times as often */
    uint64_t weak_names; /* names of blocks are one of eight: only equal tokens tell them apart */
    uint64_t heal_us; /* from then on nothing goes wrong any more */
} plan_world;

typedef struct {
    uint64_t blocks, step_sequences, chunk_mixed, queue, expected, slow, requests;
    uint64_t offset_ns; /* of its host's clock */
    uint64_t drift_ppm; /* 1,000,000: runs true */
} plan_node;

typedef struct {
    uint64_t at_us, router;
    uint64_t prompt, family, shared, content; /* tokens: `shared` of the family's, then those that content makes */
    uint64_t n, output, mode, priority, salt, stop, logprobs;
    uint64_t deadline_us, cancel_us; /* after at_us; 0: none */
    uint64_t slow_reader; /* the cancel comes from the router's own front end */
} plan_request;

#define PLAN_FAULT_LIST(X)                                                                                             \
    X(crash) /* node dies, starts again after for_us; arg 6: never, if another one lives */                            \
    X(router_crash)                                                                                                    \
    X(session_cut) /* router, node */                                                                                  \
    X(link_cut) /* node, peer: in both directions */                                                                   \
    X(part_links) /* node, peer: nothing passes for for_us */                                                          \
    X(part_session) /* router, node */                                                                                 \
    X(part_host) /* node: from everybody */                                                                            \
    X(freeze) /* node */                                                                                               \
    X(router_freeze)                                                                                                   \
    X(slow) /* node computes arg times slower */                                                                       \
    X(lag) /* node's connections are arg times slower */                                                               \
    X(drain)                                                                                                           \
    X(undrain)                                                                                                         \
    X(role) /* arg: 1 prefill, 2 decode */                                                                             \
    X(flush)                                                                                                           \
    X(replace) /* a new process under node's name; the old one lives on; arg: its sessions may reach the old one */    \
    X(corrupt) /* the next arg pages that land on node have a bit flipped */                                           \
    X(torn) /* staging of the next arg pages is overwritten while it is read */                                        \
    X(repeat) /* for for_us, arg of 100 messages to and from node come twice */                                        \
    X(forge) /* for for_us, arg of 100 frames to node come again on another link, pages with other bytes */            \
    X(step_fails) /* the next arg steps of node */                                                                     \
    X(alter) /* the next page that lands on node comes with other bytes and the checksum of those */

typedef enum {
#define PLAN_FAULT_ENUM(name) FAULT_##name,
    PLAN_FAULT_LIST(PLAN_FAULT_ENUM)
#undef PLAN_FAULT_ENUM
        FAULT_KINDS
} fault_kind;

/* When: at a time, or right after the nth event of a kind on its node from that time on. */
#define PLAN_TRIGGER_LIST(X)                                                                                           \
    X(time)                                                                                                            \
    X(message)                                                                                                         \
    X(answer)                                                                                                          \
    X(frame)                                                                                                           \
    X(page)                                                                                                            \
    X(landed)                                                                                                          \
    X(send)                                                                                                            \
    X(sent) X(step) X(layer) X(step_done) X(said) X(told) /* by the node: a message, a frame that has just left it */

typedef enum {
#define PLAN_TRIGGER_ENUM(name) TRIGGER_##name,
    PLAN_TRIGGER_LIST(PLAN_TRIGGER_ENUM)
#undef PLAN_TRIGGER_ENUM
        TRIGGER_KINDS
} trigger_kind;

typedef struct {
    uint64_t kind, at_us, on, of, nth; /* of: kind of message or frame, 0: any */
    uint64_t node, peer, router, for_us, arg;
} plan_fault;

typedef struct {
    plan_world world;
    plan_node node[PLAN_NODES_MAX];
    plan_request request[PLAN_REQUESTS_MAX];
    plan_fault fault[PLAN_FAULTS_MAX];
    uint32_t requests, faults;
} plan;

static inline uint32_t plan_nodes(const plan *p) { return (uint32_t)(p->world.prefill + p->world.decode); }
uint32_t plan_prompt_token(const plan_request *q, uint32_t position);
const char *plan_fault_name(uint64_t kind);

void plan_of_seed(plan *p, uint64_t seed, bool faults);
void plan_print(const plan *p, void *file); /* a FILE */
/* false: *text says what is wrong. */
bool plan_read(plan *p, void *file, char text[160]);

/* Cuts p down while `fails` says that it still fails. Returns how often it asked. */
uint32_t plan_shrink(plan *p, bool (*fails)(void *self, const plan *p), void *self);
#endif
