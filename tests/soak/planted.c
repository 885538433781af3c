/* planted.c - kvferry-planted: the program with one mistake in it, to see whether the soak notices. Never installed.
 *
 *   KVFERRY_PLANT=CORE.NUMBER   a mistake of a core, as kvferry-sim-mutants plants them (tests/sim/mutants_list.h)
 *   KVFERRY_PLANT=NAME          one of the names below: mistakes of the shells, which no simulator runs
 *
 * The cores are those of kvferry-sim-mutants; the shells are the product's, with a few of their calls led through here
 * by the linker. */
#include "kvf/kvcache.h"
#include "kvf/node.h"
#include "kvf/router.h"
#include "mutant_vars.h"
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>
#include <unistd.h>

int sim_mutant_kvcache, sim_mutant_xfer, sim_mutant_node, sim_mutant_router;

enum { LEAK_BYTES = 100, BLOCK_EVERY = 10000 };
static bool block_leak, router_leak, node_leak, descriptor_leak, no_page_crc, token_loss;
static atomic_uint unpins;
static bool session_ended; /* the router's core thread only */
static void *volatile leaked; /* so that no compiler may leave the malloc out */
static volatile int descriptor;

static bool choose(const char *name) {
    static const struct {
        const char *name;
        bool *chosen;
    } shells[] = {{"block-leak", &block_leak}, {"router-memory-leak", &router_leak}, {"node-memory-leak", &node_leak},
        {"descriptor-leak", &descriptor_leak}, {"no-page-crc", &no_page_crc}, {"token-loss", &token_loss}};
    static const struct {
        const char *name;
        int *chosen;
    } cores[] = {{"kvcache.%d", &sim_mutant_kvcache}, {"xfer.%d", &sim_mutant_xfer}, {"node.%d", &sim_mutant_node},
        {"router.%d", &sim_mutant_router}};
    for (size_t i = 0; i < KVF_COUNT_OF(shells); i++)
        if (strcmp(shells[i].name, name) == 0) return *shells[i].chosen = true;
    for (size_t i = 0; i < KVF_COUNT_OF(cores); i++) {
        size_t prefix = strlen(cores[i].name) - 2;
        if (strncmp(cores[i].name, name, prefix) == 0) return (*cores[i].chosen = atoi(name + prefix)) > 0;
    }
    return strcmp(name, "nothing") == 0;
}

__attribute__((constructor)) static void plant(void) {
    const char *name = getenv("KVFERRY_PLANT");
    if (name && choose(name)) return;
    fprintf(stderr, "kvferry-planted: KVFERRY_PLANT names no mistake\n");
    _exit(2);
}

/* ---- led through here ---- */

/* A node keeps one block in so many for ever. */
void __real_kvf_kv_unpin(kvf_kv *kv, kvf_block_id block);
void __wrap_kvf_kv_unpin(kvf_kv *kv, kvf_block_id block);
void __wrap_kvf_kv_unpin(kvf_kv *kv, kvf_block_id block) {
    if (block_leak && atomic_fetch_add(&unpins, 1) % BLOCK_EVERY == BLOCK_EVERY - 1) return;
    __real_kvf_kv_unpin(kv, block);
}

static void leak(bool chosen) {
    if (chosen) leaked = calloc(1, LEAK_BYTES);
}

/* 100 bytes for each request that is let in. */
kvf_status __real_kvf_router_submit(
    kvf_router *r, kvf_time_ns now, const kvf_router_request *request, kvf_request_id *id, kvf_refusal *refusal);
kvf_status __wrap_kvf_router_submit(
    kvf_router *r, kvf_time_ns now, const kvf_router_request *request, kvf_request_id *id, kvf_refusal *refusal);
kvf_status __wrap_kvf_router_submit(
    kvf_router *r, kvf_time_ns now, const kvf_router_request *request, kvf_request_id *id, kvf_refusal *refusal) {
    leak(router_leak);
    return __real_kvf_router_submit(r, now, request, id, refusal);
}

/* 100 bytes for each Reserve. */
void __real_kvf_node_on_msg(kvf_node *n, kvf_time_ns now, uint32_t session, const kvf_rmsg *m);
void __wrap_kvf_node_on_msg(kvf_node *n, kvf_time_ns now, uint32_t session, const kvf_rmsg *m);
void __wrap_kvf_node_on_msg(kvf_node *n, kvf_time_ns now, uint32_t session, const kvf_rmsg *m) {
    leak(node_leak && m->kind == KVF_R_RESERVE);
    __real_kvf_node_on_msg(n, now, session, m);
}

/* A descriptor for each connection that is taken (rpc/src/accept_guard.c takes all of them by syscall). */
long __real_syscall(long number, ...);
long __wrap_syscall(long number, long a, long b, long c, long d, long e, long f);
long __wrap_syscall(long number, long a, long b, long c, long d, long e, long f) {
    long got = __real_syscall(number, a, b, c, d, e, f);
    if (descriptor_leak && number == SYS_accept4 && got >= 0) descriptor = dup((int)got);
    return got;
}

/* A page that was damaged on its way counts as whole. */
void __real_kvf_node_on_landed(kvf_node *n, kvf_time_ns now, const kvf_landing *landing, bool crc_ok);
void __wrap_kvf_node_on_landed(kvf_node *n, kvf_time_ns now, const kvf_landing *landing, bool crc_ok);
void __wrap_kvf_node_on_landed(kvf_node *n, kvf_time_ns now, const kvf_landing *landing, bool crc_ok) {
    __real_kvf_node_on_landed(n, now, landing, crc_ok || no_page_crc);
}

/* The first token after a node's session has ended is not handed to its client. */
void __real_kvf_router_on_session_down(kvf_router *r, kvf_time_ns now, uint32_t node);
void __wrap_kvf_router_on_session_down(kvf_router *r, kvf_time_ns now, uint32_t node);
void __wrap_kvf_router_on_session_down(kvf_router *r, kvf_time_ns now, uint32_t node) {
    session_ended = true;
    __real_kvf_router_on_session_down(r, now, node);
}
bool __real_kvf_router_next(kvf_router *r, kvf_time_ns now, kvf_router_action *action);
bool __wrap_kvf_router_next(kvf_router *r, kvf_time_ns now, kvf_router_action *action);
bool __wrap_kvf_router_next(kvf_router *r, kvf_time_ns now, kvf_router_action *action) {
    bool more = __real_kvf_router_next(r, now, action);
    if (!token_loss || !more || !session_ended || action->kind != KVF_ROUTER_TOKEN) return more;
    session_ended = false;
    return __real_kvf_router_next(r, now, action);
}
