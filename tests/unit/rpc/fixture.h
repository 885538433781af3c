/* The server of the rpc tests: kvf.test.v1.Echo in the ways that a test needs. */
#ifndef RPC_FIXTURE_H
#define RPC_FIXTURE_H
#include <pthread.h>
#include <stdatomic.h>
#include "echo.pb-c.h"
#include "kvf/rpc.h"

enum { HELD_MAX = 256, COUNTERS_TIMEOUT_S = 60 };

/* Numbers that callbacks raise and tests wait for. */
typedef struct {
    pthread_mutex_t lock;
    pthread_cond_t changed;
} signal_box;

typedef struct {
    kvf_rpc_runtime *rt;
    kvf_rpc_server *server;
    kvf_rpc_channel *channel;
    signal_box box;
    /* guarded by box */
    kvf_rpc_call *held[HELD_MAX];
    uint32_t held_count, cancelled, released, half_closed, producers;
    size_t buffered_most;
    uint64_t left_ms;
    bool quiet_talk; /* Talk counts but does not echo */
    uint64_t talk_seen;
} fixture;

void fixture_start(fixture *f, const kvf_rpc_server_opts *extra); /* server on 127.0.0.1:0 and a channel to it */
void fixture_stop(fixture *f);
void fixture_serve(fixture *f, const char *address, const kvf_rpc_server_opts *extra);
kvf_rpc_channel *fixture_channel(fixture *f, const char *address);
kvf_span fixture_descriptor_set(void);
const kvf_rpc_method *fixture_methods(fixture *f, kvf_rpc_method out[3]);

void box_init(signal_box *box);
void box_fini(signal_box *box);
void box_add(signal_box *box, uint32_t *counter, uint32_t by);
bool box_wait(signal_box *box, const uint32_t *counter, uint32_t at_least); /* false: a minute went by */
#endif
