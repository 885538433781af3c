/* shell_int.h - what the parts of a router process share. Everything belongs to the core thread, but for: options,
 * model and limits (constant), inbox, workers, lines (locked), serving (atomic), and where a field says otherwise. */
#ifndef SHELL_INT_H
#define SHELL_INT_H
#include "choice.h"
#include "inbox.h"
#include "kvf/arena.h"
#include "kvf/os.h"
#include "kvf/request_text.h"
#include "kvf/router_shell.h"
#include "pack.h"
#include "timeline.h"
#include "workers.h"
#include <event2/event.h>
#include <stdatomic.h>

#define NO_SLOT UINT32_MAX

typedef struct front_request front_request;
typedef struct node_session node_session;
typedef struct gather gather;
typedef struct watcher watcher;

/* One configured node. */
typedef struct {
    kvf_router_shell *shell;
    bool used;
    char id[KVF_NAME_MAX], address[KVF_ADDRESS_MAX];
    kvf_role role;
    kvf_rpc_channel *channel;
    node_session *session; /* our reference; NULL: waiting for `retry` */
    struct event *retry;
    uint32_t failures;
} node_link;

typedef struct {
    front_request *request;
    uint32_t generation;
} request_slot;

struct kvf_router_shell {
    kvf_router_shell_options options;
    char name[KVF_NAME_MAX];
    front_model model;
    front_limits limits;
    void *core_memory;
    size_t core_bytes;
    kvf_router *core;
    kvf_router_config config;
    struct event_base *base;
    struct event *inbox_event, *timer, *drain_event;
    inbox inbox;
    workers *workers;
    timelines lines;
    kvf_rpc_runtime *rpc;
    kvf_rpc_server *clients, *admin;
    request_slot *slots; /* [slots_count] */
    uint32_t *free_slots, slots_count, free_count, live;
    front_request *dirty; /* have something to tell */
    front_scratch scratch;
    kvf_arena send_arena; /* one message to a node */
    node_link links[KVF_ROUTER_NODES_MAX];
    gather *gathers;
    watcher *watchers;
    uint32_t watchers_count;
    uint64_t next_query;
    uint64_t ejections; /* of pairs, that the log has */
    bool draining, leaving;
    uint32_t stops;
    atomic_bool serving;
    atomic_uint ready; /* nodes */
};

/* ---- shell.c ---- */
kvf_rpc_credentials front_listener_credentials(kvf_tls_store *tls);
/* A timer that finds no memory fires at once: early is harmless, never is not. */
static inline void front_timer_set(struct event *timer, const struct timeval *tv) {
    if (evtimer_add(timer, tv) != 0) event_active(timer, EV_TIMEOUT, 1);
}
void front_shell_drain(kvf_router_shell *s); /* carries out what the core wants; after every event given to it */
void front_shell_pump(kvf_router_shell *s); /* the same, tells clients, sets the timer: at the end of every callback */

/* ---- generate.c: requests that make tokens ---- */
void front_generate_handler(void *shell, kvf_rpc_call *call, const ProtobufCMessage *request);
void front_complete_handler(void *shell, kvf_rpc_call *call, const ProtobufCMessage *request);
void front_generate_act(kvf_router_shell *s, const kvf_router_action *action);
void front_generate_flush(kvf_router_shell *s); /* tells clients what came since */
void front_generate_fail_all(kvf_router_shell *s, kvf_rpc_code code, const char *text);

/* ---- inference.c: the client listener ---- */
kvf_status front_inference_start(kvf_router_shell *s, kvf_error *err);

/* ---- nodes.c: sessions to nodes ---- */
kvf_status front_nodes_start(kvf_router_shell *s, kvf_error *err);
void front_nodes_stop(kvf_router_shell *s);
void front_nodes_send(kvf_router_shell *s, uint32_t node, const kvf_rmsg *message);
void front_nodes_close(kvf_router_shell *s, uint32_t node);

/* ---- cluster.c, query.c: the admin listener ---- */
kvf_status front_cluster_start(kvf_router_shell *s, kvf_error *err);
void front_cluster_stop(kvf_router_shell *s);
#endif
