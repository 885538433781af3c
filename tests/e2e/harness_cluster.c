/* A cluster: start, stop, and the operator's questions. */
#include "harness.h"
#include "grpc/health/v1/health.pb-c.h"
#include "kvf/msg.h"
#include "kvferry/internal/v1/node.pb-c.h"
#include <pthread.h>
#include <string.h>
#include <unistd.h>

#define CLUSTER (&kvferry__v1__cluster__descriptor)

static kvf_rpc_channel *connect_to(e2e_cluster *c, const char *address) {
    kvf_rpc_channel *channel = NULL;
    kvf_rpc_channel_opts o = {.address = address, .credentials = c->credentials};
    assert_int_equal(kvf_rpc_channel_create(c->rt, &o, &channel), KVF_OK);
    return channel;
}

void e2e_attach(e2e_cluster *c) {
    assert_int_equal(kvf_rpc_runtime_create(NULL, &c->rt), KVF_OK);
    c->client = connect_to(c, c->serve.grpc);
    c->admin = connect_to(c, c->serve.admin);
}

void e2e_detach(e2e_cluster *c) {
    kvf_rpc_channel_destroy(c->client);
    kvf_rpc_channel_destroy(c->admin);
    kvf_rpc_runtime_destroy(c->rt);
    c->client = c->admin = NULL;
    c->rt = NULL;
}

void e2e_start(e2e_cluster *c, const char *model, const char *const *more) {
    const char *argv[E2E_ARGS_MAX + 1] = {"serve", "--model", model, "--listen", "127.0.0.1:0"};
    size_t count = 5;
    for (; more && *more; more++) {
        assert_true(count < E2E_ARGS_MAX);
        argv[count++] = *more;
    }
    *c = (e2e_cluster){0};
    e2e_spawn(&c->serve, argv);
    if (!c->serve.ready) {
        char *log = e2e_read_file(c->serve.log);
        print_message("%s\n", log ? log : "");
        free(log);
        fail_msg("serve printed no ready line: %s", c->serve.out);
    }
    e2e_attach(c);
}

void e2e_stop(e2e_cluster *c) {
    e2e_detach(c);
    char log[64];
    snprintf(log, sizeof log, "%s", c->serve.log);
    int status = e2e_process_stop(&c->serve);
    if (status != 0) fail_msg("serve ended with %d, its log is %s", status, log);
}

static void *admin_call(e2e_cluster *c, const char *method, const ProtobufCMessage *request) {
    ProtobufCMessage *message = NULL;
    kvf_rpc_result result;
    if (kvf_rpc_unary(c->admin, CLUSTER, method, request, E2E_WAIT_MS, &message, &result) != KVF_OK)
        fail_msg("%s: %s %s", method, kvf_rpc_code_name(result.code), result.message);
    return message;
}

Kvferry__V1__ClusterState *e2e_state(e2e_cluster *c) {
    Kvferry__V1__GetClusterRequest r = KVFERRY__V1__GET_CLUSTER_REQUEST__INIT;
    return admin_call(c, "GetCluster", &r.base);
}

const Kvferry__V1__NodeStatus *e2e_node(const Kvferry__V1__ClusterState *s, const char *id) {
    for (size_t i = 0; i < s->n_nodes; i++)
        if (kvf_proto_text_equal(s->nodes[i]->id, id)) return s->nodes[i];
    fail_msg("no node %s", id);
    return NULL;
}

Kvferry__V1__AuditResponse *e2e_audit(e2e_cluster *c) {
    Kvferry__V1__AuditRequest r = KVFERRY__V1__AUDIT_REQUEST__INIT;
    return admin_call(c, "Audit", &r.base);
}

static uint64_t held(const Kvferry__V1__NodeStatus *n) {
    if (!n->blocks) return 0; /* the router */
    return n->blocks->pinned + n->blocks->in_use + n->blocks->filling + n->blocks->booked + n->running + n->waiting;
}

static bool at_rest(void *self) {
    Kvferry__V1__AuditResponse *a = e2e_audit(self);
    bool rest = a->at_rest || a->n_violations;
    for (size_t i = 0; i < a->n_nodes; i++) rest &= held(a->nodes[i]) == 0;
    kvf_rpc_message_free(&a->base);
    return rest;
}

static void show(const Kvferry__V1__AuditResponse *a) {
    print_message("%s\n", a->at_rest ? "at rest" : "not at rest");
    for (size_t i = 0; i < a->n_violations; i++) {
        const Kvferry__V1__Violation *v = a->violations[i];
        print_message("violation: %.*s %.*s %.*s\n", (int)v->node_id.len, (const char *)v->node_id.data,
            (int)v->invariant.len, (const char *)v->invariant.data, (int)v->detail.len, (const char *)v->detail.data);
    }
    for (size_t i = 0; i < a->n_nodes; i++) {
        const Kvferry__V1__NodeStatus *n = a->nodes[i];
        if (!n->blocks) continue;
        print_message(
            "%.*s: running %u waiting %u, of %u blocks %u free %u filling %u sealed %u pinned %u in use %u booked\n",
            (int)n->id.len, (const char *)n->id.data, n->running, n->waiting, (unsigned)n->blocks->total,
            (unsigned)n->blocks->free, (unsigned)n->blocks->filling, (unsigned)n->blocks->sealed,
            (unsigned)n->blocks->pinned, (unsigned)n->blocks->in_use, (unsigned)n->blocks->booked);
    }
}

void e2e_assert_clean(e2e_cluster *c) {
    uint64_t end = e2e_now_ns() + (uint64_t)E2E_WAIT_MS / 2 * 1000000u;
    while (!at_rest(c) && e2e_now_ns() < end) e2e_pause();
    Kvferry__V1__AuditResponse *a = e2e_audit(c);
    bool clean = a->n_violations == 0 && a->at_rest && a->n_nodes >= 1;
    for (size_t i = 0; i < a->n_nodes; i++) {
        const Kvferry__V1__BlockCounts *b = a->nodes[i]->blocks;
        clean &= held(a->nodes[i]) == 0 && (!b || b->free + b->sealed == b->total);
    }
    if (!clean) show(a);
    kvf_rpc_message_free(&a->base);
    if (!clean) fail_msg("the cluster does not come to rest, or is not clean");
}

Kvferry__V1__GetBlocksResponse *e2e_blocks(e2e_cluster *c, const char *node) {
    Kvferry__V1__GetBlocksRequest r = KVFERRY__V1__GET_BLOCKS_REQUEST__INIT;
    r.node_id = kvf_proto_text(node);
    r.limit = 100000;
    return admin_call(c, "GetBlocks", &r.base);
}

void e2e_flush(e2e_cluster *c) {
    Kvferry__V1__FlushCacheRequest r = KVFERRY__V1__FLUSH_CACHE_REQUEST__INIT;
    void *answer = admin_call(c, "FlushCache", &r.base);
    kvf_rpc_message_free(answer);
}

int e2e_health(kvf_rpc_channel *channel, const char *service) {
    Grpc__Health__V1__HealthCheckRequest r = GRPC__HEALTH__V1__HEALTH_CHECK_REQUEST__INIT;
    r.service = (char *)(uintptr_t)service;
    ProtobufCMessage *message = NULL;
    kvf_rpc_result result;
    if (kvf_rpc_unary(channel, &grpc__health__v1__health__descriptor, "Check", &r.base, 10000, &message, &result) !=
        KVF_OK)
        return -(int)result.code;
    int status = (int)((Grpc__Health__V1__HealthCheckResponse *)(void *)message)->status;
    kvf_rpc_message_free(message);
    return status;
}

/* ---- a node's own counters ---- */

typedef struct {
    pthread_mutex_t lock;
    pthread_cond_t changed;
    e2e_counters counters;
    bool known, released;
} probe;

static void probe_message(kvf_rpc_session *session, void *user, const ProtobufCMessage *message) {
    (void)session;
    probe *p = user;
    const Kvferry__Internal__V1__NodeMessage *m = (const void *)message;
    const Kvferry__Internal__V1__Stats *s = NULL;
    if (m->kind_case == KVFERRY__INTERNAL__V1__NODE_MESSAGE__KIND_WELCOME) s = m->welcome->stats;
    if (m->kind_case == KVFERRY__INTERNAL__V1__NODE_MESSAGE__KIND_STATUS) s = m->status;
    if (!s) return;
    pthread_mutex_lock(&p->lock);
    p->counters = (e2e_counters){.cancels = s->cancels,
        .preemptions = s->preemptions,
        .evictions = s->evictions,
        .pages_sent = s->pages_sent,
        .pages_received = s->pages_received,
        .frames_rejected = s->frames_rejected,
        .cache_hit_tokens = s->cache_hit_tokens,
        .prefill_tokens = s->prefill_tokens,
        .decode_tokens = s->decode_tokens};
    p->known = true;
    pthread_cond_broadcast(&p->changed);
    pthread_mutex_unlock(&p->lock);
}

static void probe_closed(kvf_rpc_session *session, void *user, const kvf_rpc_result *result) {
    (void)session, (void)user, (void)result;
}

static void probe_release(void *user) {
    probe *p = user;
    pthread_mutex_lock(&p->lock);
    p->released = true;
    pthread_cond_broadcast(&p->changed);
    pthread_mutex_unlock(&p->lock);
}

void e2e_node_counters(e2e_cluster *c, const char *node, e2e_counters *out) {
    static const kvf_rpc_session_ops ops = {
        .on_message = probe_message, .on_closed = probe_closed, .on_release = probe_release};
    Kvferry__V1__ClusterState *state = e2e_state(c);
    char address[256];
    assert_true(kvf_proto_text_copy(e2e_node(state, node)->address, address, sizeof address));
    kvf_rpc_message_free(&state->base);
    kvf_rpc_channel *channel = connect_to(c, address);
    probe p = {.known = false};
    pthread_mutex_init(&p.lock, NULL);
    pthread_cond_init(&p.changed, NULL);
    kvf_rpc_session *session = NULL;
    assert_int_equal(kvf_rpc_session_open(channel, &kvferry__internal__v1__node__descriptor, "Session",
                         KVF_RPC_NO_DEADLINE, &ops, &p, &session),
        KVF_OK);
    Kvferry__Internal__V1__Hello hello = KVFERRY__INTERNAL__V1__HELLO__INIT;
    Kvferry__Internal__V1__RouterMessage m = KVFERRY__INTERNAL__V1__ROUTER_MESSAGE__INIT;
    hello.router = "e2e-probe";
    hello.router_epoch = e2e_now_ns(); /* each probe is a newer start of the same router */
    hello.wire_version = KVF_WIRE_VERSION;
    m.kind_case = KVFERRY__INTERNAL__V1__ROUTER_MESSAGE__KIND_HELLO;
    m.hello = &hello;
    kvf_rpc_session_push(session, &m.base);
    pthread_mutex_lock(&p.lock);
    struct timespec end;
    clock_gettime(CLOCK_REALTIME, &end);
    end.tv_sec += 30;
    while (!p.known && pthread_cond_timedwait(&p.changed, &p.lock, &end) == 0) continue;
    bool known = p.known;
    *out = p.counters;
    pthread_mutex_unlock(&p.lock);
    kvf_rpc_session_cancel(session);
    kvf_rpc_session_unref(session);
    pthread_mutex_lock(&p.lock);
    while (!p.released) pthread_cond_wait(&p.changed, &p.lock);
    pthread_mutex_unlock(&p.lock);
    kvf_rpc_channel_destroy(channel);
    pthread_cond_destroy(&p.changed);
    pthread_mutex_destroy(&p.lock);
    if (!known) fail_msg("node %s says nothing of itself", node);
}

uint64_t e2e_pages_received(e2e_cluster *c, const char *node) {
    e2e_counters now;
    e2e_node_counters(c, node, &now);
    return now.pages_received;
}

typedef struct {
    e2e_cluster *c;
    const char *node;
    uint64_t before;
} landing;

static bool a_page_has_landed(void *self) {
    const landing *l = self;
    return e2e_pages_received(l->c, l->node) > l->before;
}

void e2e_page_lands(e2e_cluster *c, const char *node, uint64_t before) {
    e2e_until("a page lands", a_page_has_landed, &(landing){c, node, before});
}
