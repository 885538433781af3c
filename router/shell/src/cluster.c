/* The admin listener: what one node is asked to do, the state of the cluster, and its watchers. */
#include "cluster.h"
#include "kvf/log.h"
#include "kvf/proto.h"
#include <stdio.h>
#include <stdlib.h>

enum { WATCHERS_MAX = 64, WATCH_MS_DEFAULT = 1000, WATCH_MS_MIN = 100, WATCH_MS_MAX = 3600 * 1000 };

/* ---- calls ---- */

void front_admin_call_free(admin_call *a) {
    kvf_rpc_call_unref(a->call);
    free(a);
}

static void drop_call(inbox_item *item) { front_admin_call_free((admin_call *)(void *)item); }

static void run_call(inbox_item *item, void *shell) {
    (void)shell;
    admin_call *a = (admin_call *)(void *)item;
    a->run(a);
}

void front_admin_fail(admin_call *a, kvf_status status, const char *field, const char *text) {
    kvf_rpc_details details = {.reason = "ADMIN_CALL_FAILED", .field = field};
    kvf_rpc_code code = status == KVF_AGAIN ? KVF_RPC_RESOURCE_EXHAUSTED : kvf_rpc_code_of(status);
    if (status == KVF_AGAIN) details.retry_after_ms = 100;
    kvf_rpc_fail(a->call, code, &details, "%s: %s", text, kvf_status_text(status));
    front_admin_call_free(a);
}

static void hand_over(
    kvf_router_shell *s, kvf_rpc_call *call, const ProtobufCMessage *message, void (*run)(admin_call *)) {
    admin_call *a = calloc(1, sizeof *a);
    if (!a) {
        kvf_rpc_fail(call, KVF_RPC_RESOURCE_EXHAUSTED, NULL, "out of memory");
        return;
    }
    *a = (admin_call){.item = {.run = run_call, .drop = drop_call},
        .shell = s,
        .call = kvf_rpc_call_ref(call),
        .message = message,
        .run = run};
    front_inbox_put(&s->inbox, &a->item);
}

bool front_cluster_find(admin_call *a, ProtobufCBinaryData id, uint32_t *node) {
    kvf_router_node n;
    for (uint32_t i = 0; i < a->shell->config.nodes_max; i++) {
        if (!kvf_router_node_at(a->shell->core, kvf_os_now_ns(), i, &n) || !kvf_proto_text_equal(id, n.id)) continue;
        *node = i;
        return true;
    }
    char text[120];
    snprintf(text, sizeof text, "node_id: no node is called \"%.*s\"", (int)KVF_MIN(id.len, (size_t)64),
        (const char *)id.data);
    front_admin_fail(a, KVF_ERR_NOT_FOUND, "node_id", text);
    return false;
}

static void answer(admin_call *a, kvf_status status, const ProtobufCMessage *message) {
    if (status != KVF_OK) {
        front_admin_fail(a, status, "node_id", "the node cannot be asked");
        return;
    }
    kvf_rpc_reply(a->call, message);
    front_admin_call_free(a);
}

/* ---- state ---- */

static void run_get(admin_call *a) {
    Kvferry__V1__ClusterState *state = front_cluster_state(a->shell);
    answer(a, state ? KVF_OK : KVF_ERR_NO_MEMORY, state ? &state->base : NULL);
    free(state);
}

struct watcher {
    kvf_router_shell *shell;
    kvf_rpc_call *call; /* our reference */
    struct event *timer;
    kvf_time_ns interval_ns, due_ns;
    watcher *next, **link;
};

static void watcher_free(watcher *w) {
    *w->link = w->next;
    if (w->next) w->next->link = w->link;
    w->shell->watchers_count--;
    event_free(w->timer);
    kvf_rpc_call_unref(w->call);
    free(w);
}

/* A slow watcher misses states; one that has gone is noticed here. */
static bool show(watcher *w) {
    Kvferry__V1__ClusterState *state = front_cluster_state(w->shell);
    if (!state) return true;
    kvf_status status = kvf_rpc_stream_push(w->call, &state->base);
    free(state);
    return status != KVF_ERR_GONE;
}

/* Looks once a second whether its client is still there, however rarely that wants to be told. */
static void on_watch(evutil_socket_t fd, short what, void *self) {
    (void)fd;
    (void)what;
    watcher *w = self;
    kvf_time_ns now = kvf_os_now_ns();
    bool due = now >= w->due_ns;
    if (kvf_rpc_call_gone(w->call) || (due && !show(w))) {
        watcher_free(w);
        return;
    }
    if (due) w->due_ns = now + w->interval_ns;
    kvf_time_ns wait = KVF_MIN(w->due_ns - now, (kvf_time_ns)KVF_NS_PER_S);
    struct timeval tv = {.tv_sec = (time_t)(wait / KVF_NS_PER_S), .tv_usec = (suseconds_t)(wait % KVF_NS_PER_S / 1000)};
    front_timer_set(w->timer, &tv);
}

static void run_watch(admin_call *a) {
    kvf_router_shell *s = a->shell;
    const Kvferry__V1__WatchClusterRequest *request = (const void *)a->message;
    uint32_t ms = request->interval_ms ? request->interval_ms : WATCH_MS_DEFAULT;
    ms = KVF_MIN(KVF_MAX(ms, (uint32_t)WATCH_MS_MIN), (uint32_t)WATCH_MS_MAX);
    if (s->watchers_count == WATCHERS_MAX) {
        front_admin_fail(a, KVF_AGAIN, NULL, "64 watchers are connected, the limit");
        return;
    }
    watcher *w = calloc(1, sizeof *w);
    if (w) w->timer = evtimer_new(s->base, on_watch, w);
    if (!w || !w->timer) {
        free(w);
        front_admin_fail(a, KVF_ERR_NO_MEMORY, NULL, "watch");
        return;
    }
    w->shell = s;
    w->call = kvf_rpc_call_ref(a->call);
    w->interval_ns = ms * KVF_NS_PER_MS;
    w->next = s->watchers;
    w->link = &s->watchers;
    if (w->next) w->next->link = &w->next;
    s->watchers = w;
    s->watchers_count++;
    front_admin_call_free(a);
    on_watch(-1, 0, w);
}

/* ---- one node ---- */

static void run_drain(admin_call *a) {
    kvf_router_shell *s = a->shell;
    uint32_t node;
    kvf_router_node n;
    Kvferry__V1__DrainResponse m = KVFERRY__V1__DRAIN_RESPONSE__INIT;
    if (!front_cluster_find(a, ((const Kvferry__V1__DrainRequest *)(const void *)a->message)->node_id, &node)) return;
    kvf_time_ns now = kvf_os_now_ns();
    kvf_status status = kvf_router_drain(s->core, now, node, s->options.drain_ns);
    if (kvf_router_node_at(s->core, now, node, &n)) m.running = n.stats.running;
    kvf_log(KVF_LOG_INFO, "router", "node %s: drain: %s", s->links[node].id, kvf_status_text(status));
    answer(a, status, &m.base);
}

static void run_undrain(admin_call *a) {
    uint32_t node;
    Kvferry__V1__UndrainResponse m = KVFERRY__V1__UNDRAIN_RESPONSE__INIT;
    if (!front_cluster_find(a, ((const Kvferry__V1__UndrainRequest *)(const void *)a->message)->node_id, &node)) return;
    answer(a, kvf_router_undrain(a->shell->core, kvf_os_now_ns(), node), &m.base);
}

static void run_set_role(admin_call *a) {
    uint32_t node;
    const Kvferry__V1__SetRoleRequest *request = (const void *)a->message;
    Kvferry__V1__SetRoleResponse m = KVFERRY__V1__SET_ROLE_RESPONSE__INIT;
    if (!front_cluster_find(a, request->node_id, &node)) return;
    if (request->role != KVFERRY__V1__ROLE__ROLE_PREFILL && request->role != KVFERRY__V1__ROLE__ROLE_DECODE) {
        front_admin_fail(a, KVF_ERR_INVALID, "role", "role: ROLE_PREFILL and ROLE_DECODE are allowed");
        return;
    }
    kvf_log(KVF_LOG_INFO, "router", "node %s: role %d wanted", a->shell->links[node].id, (int)request->role);
    answer(a, kvf_router_set_role(a->shell->core, kvf_os_now_ns(), node, (kvf_role)request->role), &m.base);
}

/* ---- the listener ---- */

#define HANDLER(name, function)                                                                                        \
    static void name(void *shell, kvf_rpc_call *call, const ProtobufCMessage *request) {                               \
        hand_over(shell, call, request, function);                                                                     \
    }
HANDLER(get_handler, run_get)
HANDLER(watch_handler, run_watch)
HANDLER(blocks_handler, front_query_blocks)
HANDLER(drain_handler, run_drain)
HANDLER(undrain_handler, run_undrain)
HANDLER(set_role_handler, run_set_role)
HANDLER(audit_handler, front_query_audit)
HANDLER(flush_handler, front_query_flush)

kvf_status front_cluster_start(kvf_router_shell *s, kvf_error *err) {
    const ProtobufCServiceDescriptor *service = &kvferry__v1__cluster__descriptor;
    const kvf_rpc_method methods[] = {{service, "GetCluster", KVF_RPC_UNARY, get_handler, s},
        {service, "WatchCluster", KVF_RPC_SERVER_STREAM, watch_handler, s},
        {service, "GetBlocks", KVF_RPC_UNARY, blocks_handler, s}, {service, "Drain", KVF_RPC_UNARY, drain_handler, s},
        {service, "Undrain", KVF_RPC_UNARY, undrain_handler, s},
        {service, "SetRole", KVF_RPC_UNARY, set_role_handler, s}, {service, "Audit", KVF_RPC_UNARY, audit_handler, s},
        {service, "FlushCache", KVF_RPC_UNARY, flush_handler, s}};
    const char *listen[] = {s->options.listen_admin};
    kvf_span sets[] = {kvf_proto_public_set()};
    kvf_rpc_credentials credentials = front_listener_credentials(s->options.tls_admin);
    kvf_rpc_server_opts opts = {.listen = listen,
        .listen_count = 1,
        .methods = methods,
        .method_count = KVF_COUNT_OF(methods),
        .descriptor_sets = sets,
        .descriptor_set_count = 1,
        .credentials = &credentials};
    return kvf_rpc_server_start(s->rpc, &opts, &s->admin, err);
}

void front_cluster_stop(kvf_router_shell *s) {
    while (s->watchers) {
        kvf_rpc_fail(s->watchers->call, KVF_RPC_UNAVAILABLE, NULL, "this router is shutting down");
        watcher_free(s->watchers);
    }
    front_query_stop(s);
}
