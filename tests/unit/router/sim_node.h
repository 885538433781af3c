/* A cluster of make-believe nodes around a real router core, on one event heap: everything follows from one seed. A
 * node answers Reserve and Prefill, emits tokens that are a function of (prompt, choice, position), keeps results until
 * they are acknowledged, and - as often as the seed wants - refuses, queues, preempts, fails, loses its session or its
 * life, says things twice, or loses the news that its hand-off ended. */
#ifndef SIM_NODE_H
#define SIM_NODE_H
#include "kvf/kvcache.h"
#include "kvf/rng.h"
#include "kvf/router.h"

#define SIM_NODES 6
#define SIM_WORKS 512
#define SIM_CHOICES 4
#define SIM_CONTEXT 128
#define SIM_NAMES 512

typedef struct {
    uint32_t refuse, queue, preempt, fail, link, half_link, twice, drop_session, crash, never, gap,
        rude; /* per 10,000 */
} sim_faults;

typedef enum { W_FREE, W_QUEUED, W_GRANTED, W_RUNNING, W_COMPUTING, W_SHIPPING, W_DONE } sim_work_state;

typedef struct {
    sim_work_state state;
    bool prefill;
    kvf_request_id request;
    uint32_t attempt, n, base, prompt_count, output_max, logprobs, ship_min;
    uint64_t hash; /* of the prompt */
    uint32_t next[SIM_CHOICES];
    bool ended[SIM_CHOICES];
    uint64_t last_batch;
    kvf_time_ns at; /* next step of its life */
    uint32_t ship_node;
    uint64_t ship_epoch, grant;
    uint32_t blocks; /* of the prompt, which are cached when it is computed */
    kvf_hash128 names[SIM_CONTEXT / KVF_KV_BLOCK_TOKENS];
} sim_work;

typedef struct {
    bool alive, draining;
    kvf_role role;
    uint64_t epoch, batch, acked, events_next;
    uint32_t connection; /* generation; odd: up */
    kvf_time_ns to_router_ns, to_node_ns; /* last delivery: sessions are ordered */
    bool greeted;
    kvf_identity identity;
    sim_work works[SIM_WORKS];
    kvf_hash128 names[SIM_NAMES];
    uint32_t names_count;
    struct {
        kvf_request_id request;
        uint32_t attempt;
    } cancelled[256];
    uint32_t cancelled_count;
    uint64_t aborts;
} sim_node;

typedef struct sim_event sim_event;
typedef struct {
    kvf_rng rng;
    kvf_time_ns now;
    uint64_t events_count, sequence, messages;
    sim_event *events; /* heap */
    uint32_t events_len, events_cap;
    sim_node nodes[SIM_NODES];
    uint32_t nodes_count;
    sim_faults faults;
    kvf_router *router;
    void *memory;
    size_t memory_bytes;
    void (*action)(void *self, const kvf_router_action *a);
    void (*wake)(void *self, uint64_t tag);
    void *self;
} sim;

void sim_init(sim *s, uint64_t seed, const kvf_router_config *config, uint32_t prefills, uint32_t decodes);
void sim_fini(sim *s);
bool sim_step(sim *s); /* false: nothing will ever happen */
void sim_after_event(sim *s);
void sim_at(sim *s, kvf_time_ns at, uint64_t tag); /* calls wake */
uint64_t sim_prompt_hash(const uint32_t *tokens, uint32_t count);
uint32_t sim_token(uint64_t hash, uint32_t choice, uint32_t position);
bool sim_token_ends(uint64_t hash, uint32_t choice, uint32_t position);
uint32_t sim_live_works(const sim *s);
bool sim_chance(sim *s, uint32_t per_10000);
#endif
