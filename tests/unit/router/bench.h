/* A router core and scripted nodes: a test says what a node says, and looks at what the router did since it last
 * looked. */
#ifndef BENCH_H
#define BENCH_H
#include "router_int.h"
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <cmocka.h>

#define MS KVF_NS_PER_MS
#define BENCH_ACTIONS 4096

typedef struct {
    kvf_router_action a;
    kvf_rmsg m; /* of SEND; its tokens and lists are copied below */
    uint32_t tokens[2048];
    uint32_t tokens_count;
    kvf_live live[16];
} bench_action;

typedef struct {
    kvf_router *r;
    void *memory;
    kvf_time_ns now;
    bench_action *actions;
    uint32_t count;
    uint64_t batch;
    uint64_t started_ns; /* what a Welcome says of its process */
    uint64_t events_next; /* what a Welcome says; 0: 1, a node with nothing cached */
} bench;

void bench_config(kvf_router_config *c);
void bench_open(bench *b, const kvf_router_config *c);
void bench_close(bench *b);
void bench_drain(bench *b);
void bench_forget(bench *b); /* what was done so far */
void bench_at(bench *b, kvf_time_ns now); /* lets time pass, timer by timer */

/* Adds node `i` ("n<i>") and brings it up, ready. */
void bench_node(bench *b, uint32_t i, kvf_role role);
void bench_welcome(bench *b, uint32_t i, const char *name, kvf_role role, uint64_t epoch, const char *numerics);
void bench_down(bench *b, uint32_t i);
void bench_up(bench *b, uint32_t i);
void bench_say(bench *b, uint32_t i, const kvf_nmsg *m);
void bench_status(bench *b, uint32_t i, kvf_role role, kvf_node_state state);

kvf_request_id bench_submit(bench *b, uint32_t prompt, uint32_t output, kvf_router_mode mode);
kvf_status bench_try(bench *b, kvf_router_request in, kvf_request_id *id, kvf_refusal *why);
kvf_router_request bench_request(uint32_t prompt, uint32_t output, kvf_router_mode mode);

/* Answers to the last Reserve or Prefill sent to node i (of request id when given by *_of). */
void bench_granted(bench *b, uint32_t i, const kvf_rmsg *reserve, uint32_t cached);
void bench_local(bench *b, uint32_t i, const kvf_rmsg *reserve);
void bench_simple(bench *b, uint32_t i, const kvf_work *w, kvf_n_kind kind);
void bench_refused(bench *b, uint32_t i, const kvf_work *w, kvf_status reason, kvf_time_ns retry_after_ns);
void bench_failed(bench *b, uint32_t i, const kvf_work *w, kvf_stage stage, bool retryable);
void bench_shipped(bench *b, uint32_t i, const kvf_work *w, kvf_status result);
void bench_token(
    bench *b, uint32_t i, const kvf_work *w, uint32_t index, uint32_t position, uint32_t token, kvf_end end);

/* The n-th action since the last forget that fits, or NULL. */
const bench_action *bench_find(const bench *b, kvf_router_action_kind kind, uint32_t nth);
const bench_action *bench_sent(const bench *b, uint32_t node, kvf_r_kind kind, uint32_t nth);
uint32_t bench_count(const bench *b, kvf_router_action_kind kind);
uint32_t bench_count_sent(const bench *b, uint32_t node, kvf_r_kind kind);
/* The one Reserve (Prefill) since the last forget; exactly one. */
const bench_action *bench_one(const bench *b, kvf_r_kind kind);
kvf_router_counters bench_counters(const bench *b);

/* Names of the first `blocks` blocks of tokens, as a node with these numerics calls them; and a node's word that it has
 * stored (or dropped) such blocks, at most 64. */
void bench_names(const char *numerics, const uint32_t *tokens, uint32_t blocks, kvf_hash128 *names);
void bench_blocks(bench *b, uint32_t node, uint64_t first, bool stored, const kvf_hash128 *names, uint32_t count);
#endif
