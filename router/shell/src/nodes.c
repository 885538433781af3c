/* Sessions to nodes.
 *
 *   idle --timer--> probing --answer--> open --closed--> idle (with a timer)
 *                      \-- no answer --> idle
 *
 * The probe is a health check on the same connection: the core hears of a session only when there is a peer. A node
 * whose session has ended is tried again almost at once: where nothing listens any more its process is gone, and the
 * core need not wait for it; where it answers, the connection has only blipped. */
#include "grpc/health/v1/health.pb-c.h"
#include "kvf/log.h"
#include "kvf/wire.h"
#include "kvferry/internal/v1/node.pb-c.h"
#include "shell_int.h"
#include <stdio.h>
#include <stdlib.h>

enum {
    PROBE_MS = 2000,
    RETRY_FIRST_MS = 10, /* after a session: a dying process closes its connections before its listener */
    BACKOFF_MIN_MS = 50,
    BACKOFF_MAX_MS = 1000,
    INBOX_MAX = 1 << 16, /* past it a session is dropped: the node says again what was not acknowledged */
    SEND_BUFFER_BYTES = 64 << 20,
    ARENA_MAX_BYTES = 1 << 28
};

struct node_session {
    kvf_router_shell *shell;
    kvf_rpc_session *rpc; /* our reference */
    uint32_t index;
    bool probe;
    atomic_int refs; /* the link's, the library's, one per inbox item */
    inbox_item closed_item;
    kvf_rpc_code code; /* how it closed */
    bool refused;
    char text[256];
    bool open; /* core thread: the core knows it */
    bool welcomed; /* core thread: something came */
};

typedef struct {
    inbox_item item;
    node_session *session;
    kvf_nmsg message;
    kvf_arena arena; /* what message points into: its bytes first, then what was made of them */
} node_message;

static void session_put(node_session *n) {
    if (atomic_fetch_sub(&n->refs, 1) != 1) return;
    free(n);
}

/* ---- gRPC loops ---- */

static void on_probe_message(kvf_rpc_session *session, void *user, const ProtobufCMessage *message) {
    (void)session;
    (void)user;
    (void)message; /* that it answers is enough */
}

static void run_message(inbox_item *item, void *shell);

static void drop_message(inbox_item *item) {
    node_message *m = (node_message *)(void *)((char *)item - offsetof(node_message, item));
    free(m->arena.base);
    session_put(m->session);
    free(m);
}

/* The message is ours only until the callback returns: its bytes are kept, and read again where they lie. */
static kvf_status keep(node_message *m, const ProtobufCMessage *message, kvf_error *err) {
    size_t bytes = protobuf_c_message_get_packed_size(message);
    for (size_t room = 4 * bytes + 4096;; room *= 2) {
        size_t size = kvf_align_up(kvf_align_up(bytes, 64) + room, 64);
        free(m->arena.base);
        m->arena = (kvf_arena){.base = aligned_alloc(64, size), .size_bytes = size};
        if (!m->arena.base) return KVF_ERR_NO_MEMORY;
        kvf_span packed = {m->arena.base, protobuf_c_message_pack(message, m->arena.base)};
        m->arena.used_bytes = kvf_align_up(bytes, 64);
        kvf_status status = kvf_wire_nmsg_parse(packed, &m->arena, &m->message, err);
        if (status != KVF_ERR_NO_ROOM || room > ARENA_MAX_BYTES) return status;
    }
}

static void on_message(kvf_rpc_session *session, void *user, const ProtobufCMessage *message) {
    node_session *n = user;
    kvf_error err = {0};
    node_message *m = front_inbox_count(&n->shell->inbox) < INBOX_MAX ? calloc(1, sizeof *m) : NULL;
    if (!m) {
        kvf_log(KVF_LOG_WARN, "router", "node %u: too many messages wait, its session is dropped", n->index);
        kvf_rpc_session_cancel(session);
        return;
    }
    m->item = (inbox_item){.run = run_message, .drop = drop_message};
    m->session = n;
    atomic_fetch_add(&n->refs, 1);
    if (keep(m, message, &err) == KVF_OK) {
        front_inbox_put(&n->shell->inbox, &m->item);
        return;
    }
    kvf_log(KVF_LOG_WARN, "router", "node %u: malformed message, its session is dropped: %s", n->index, err.message);
    drop_message(&m->item);
    kvf_rpc_session_cancel(session);
}

static void run_closed(inbox_item *item, void *shell);

static void drop_closed(inbox_item *item) {
    session_put((node_session *)(void *)((char *)item - offsetof(node_session, closed_item)));
}

static void on_closed(kvf_rpc_session *session, void *user, const kvf_rpc_result *result) {
    (void)session;
    node_session *n = user;
    n->code = result->code;
    n->refused = result->refused;
    snprintf(n->text, sizeof n->text, "%.250s", result->message);
    n->closed_item = (inbox_item){.run = run_closed, .drop = drop_closed};
    atomic_fetch_add(&n->refs, 1);
    front_inbox_put(&n->shell->inbox, &n->closed_item);
}

static void on_release(void *user) { session_put(user); }

static const kvf_rpc_session_ops probe_ops = {
    .on_message = on_probe_message, .on_closed = on_closed, .on_release = on_release};
static const kvf_rpc_session_ops session_ops = {
    .on_message = on_message, .on_closed = on_closed, .on_release = on_release};

/* ---- core thread ---- */

static void forget_session(node_link *l) {
    node_session *n = l->session;
    if (!n) return;
    l->session = NULL;
    kvf_rpc_session_cancel(n->rpc);
    kvf_rpc_session_unref(n->rpc);
    session_put(n);
}

static void retry_later(node_link *l) {
    uint32_t shift = KVF_MIN(l->failures, 8u);
    uint64_t ms = KVF_MIN((uint64_t)BACKOFF_MIN_MS << shift, (uint64_t)BACKOFF_MAX_MS);
    if (l->failures == 0) ms = RETRY_FIRST_MS;
    ms += kvf_os_random_u64() % (ms / 2 + 1); /* routers must not all come at once */
    struct timeval tv = {.tv_sec = (time_t)(ms / 1000), .tv_usec = (suseconds_t)(ms % 1000 * 1000)};
    l->failures++;
    front_timer_set(l->retry, &tv);
}

/* A channel that failed waits longer and longer before it connects again; how long to wait is decided here, so a fresh
 * one. It also takes the certificates of now. */
static kvf_status fresh_channel(kvf_router_shell *s, node_link *l) {
    kvf_rpc_credentials credentials = {.mode = KVF_RPC_TLS, .files = s->options.tls, .peer_name = l->id};
    kvf_rpc_channel_opts opts = {.address = l->address,
        .stream_buffer_bytes_max = SEND_BUFFER_BYTES,
        .credentials = s->options.tls ? &credentials : NULL};
    kvf_rpc_channel *channel;
    kvf_status status = kvf_rpc_channel_create(s->rpc, &opts, &channel);
    if (status != KVF_OK) return status;
    if (l->channel) kvf_rpc_channel_destroy(l->channel);
    l->channel = channel;
    return KVF_OK;
}

static void open_session(kvf_router_shell *s, uint32_t index, bool probe) {
    node_link *l = &s->links[index];
    KVF_ASSERT(l->used && !l->session);
    node_session *n = calloc(1, sizeof *n);
    if (!n) {
        retry_later(l);
        return;
    }
    n->shell = s;
    n->index = index;
    n->probe = probe;
    atomic_init(&n->refs, 2);
    l->session = n;
    kvf_status status = probe ? kvf_rpc_session_open(l->channel, &grpc__health__v1__health__descriptor, "Check",
                                    PROBE_MS, &probe_ops, n, &n->rpc)
                              : kvf_rpc_session_open(l->channel, &kvferry__internal__v1__node__descriptor, "Session",
                                    KVF_RPC_NO_DEADLINE, &session_ops, n, &n->rpc);
    if (status != KVF_OK) {
        l->session = NULL;
        free(n);
        retry_later(l);
        return;
    }
    if (probe) {
        Grpc__Health__V1__HealthCheckRequest request = GRPC__HEALTH__V1__HEALTH_CHECK_REQUEST__INIT;
        kvf_rpc_session_push(n->rpc, &request.base);
        kvf_rpc_session_half_close(n->rpc);
    } else {
        n->open = true;
        kvf_router_on_session_up(s->core, kvf_os_now_ns(), index);
    }
}

static void on_retry(evutil_socket_t fd, short what, void *self) {
    (void)fd;
    (void)what;
    node_link *l = self;
    kvf_router_shell *s = l->shell;
    if (l->used && !l->session) {
        if (l->failures) fresh_channel(s, l); /* no memory: the old one serves */
        open_session(s, (uint32_t)(l - s->links), true);
    }
    front_shell_pump(s);
}

static void run_message(inbox_item *item, void *shell) {
    node_message *m = (node_message *)(void *)((char *)item - offsetof(node_message, item));
    kvf_router_shell *s = shell;
    node_session *n = m->session;
    node_link *l = &s->links[n->index];
    if (l->session == n) { /* else it is of a session that is over */
        if (!n->welcomed && m->message.kind == KVF_N_WELCOME)
            kvf_log(KVF_LOG_INFO, "router", "node %s at %s: session up, epoch %016llx", m->message.welcome.info.node,
                l->address, (unsigned long long)m->message.welcome.info.epoch);
        n->welcomed = true;
        l->failures = 0;
        kvf_router_on_msg(s->core, kvf_os_now_ns(), n->index, &m->message);
        front_shell_drain(s); /* the core reads the message until then */
    }
    drop_message(item);
}

/* Whoever answers at all is there; these say that nobody does. */
static bool nobody(kvf_rpc_code code) {
    return code == KVF_RPC_UNAVAILABLE || code == KVF_RPC_DEADLINE_EXCEEDED || code == KVF_RPC_CANCELLED;
}

static void run_closed(inbox_item *item, void *shell) {
    node_session *n = (node_session *)(void *)((char *)item - offsetof(node_session, closed_item));
    kvf_router_shell *s = shell;
    node_link *l = &s->links[n->index];
    if (l->session == n) {
        bool probed = n->probe && !nobody(n->code);
        if (n->open) {
            kvf_log(KVF_LOG_WARN, "router", "node %s at %s: session closed: %s: %s", l->id, l->address,
                kvf_rpc_code_name(n->code), n->text);
            kvf_router_on_session_down(s->core, kvf_os_now_ns(), n->index);
        } else if (!probed && l->failures == 0) {
            kvf_log(KVF_LOG_WARN, "router", "node %s at %s does not answer: %s", l->id, l->address, n->text);
        }
        if (n->probe && n->refused) kvf_router_on_node_gone(s->core, kvf_os_now_ns(), n->index);
        forget_session(l);
        if (probed)
            open_session(s, n->index, false);
        else
            retry_later(l);
    }
    session_put(n);
}

static kvf_status push(kvf_router_shell *s, node_session *n, const kvf_rmsg *message) {
    size_t need = kvf_align_up(kvf_wire_rmsg_bytes(message), 64);
    if (need > s->send_arena.size_bytes) {
        free(s->send_arena.base);
        s->send_arena = (kvf_arena){.base = aligned_alloc(64, need * 2), .size_bytes = need * 2};
        if (!s->send_arena.base) s->send_arena.size_bytes = 0;
    }
    if (!s->send_arena.base) return KVF_ERR_NO_MEMORY;
    s->send_arena.used_bytes = 0;
    Kvferry__Internal__V1__RouterMessage *out;
    kvf_status status = kvf_wire_rmsg_encode(message, &s->send_arena, &out);
    return status == KVF_OK ? kvf_rpc_session_push(n->rpc, &out->base) : status;
}

void front_nodes_send(kvf_router_shell *s, uint32_t node, const kvf_rmsg *message) {
    node_session *n = s->links[node].session;
    if (!n || !n->open) return; /* it has just closed: the core hears of it next */
    kvf_status status = push(s, n, message);
    if (status == KVF_OK || status == KVF_ERR_GONE) return; /* gone: on_closed is on the way */
    kvf_log(KVF_LOG_WARN, "router", "node %s: message %d not sent: %s; its session is dropped", s->links[node].id,
        (int)message->kind, kvf_status_text(status));
    kvf_rpc_session_cancel(n->rpc);
}

void front_nodes_close(kvf_router_shell *s, uint32_t node) {
    node_session *n = s->links[node].session;
    if (n && n->open) kvf_rpc_session_cancel(n->rpc);
}

/* ---- members ---- */

static kvf_status connect_link(kvf_router_shell *s, node_link *l, const char *address) {
    snprintf(l->address, sizeof l->address, "%s", address);
    kvf_status status = fresh_channel(s, l);
    if (status != KVF_OK) return status;
    l->failures = 0;
    struct timeval now = {0, 0};
    front_timer_set(l->retry, &now);
    return KVF_OK;
}

static node_link *find_link(kvf_router_shell *s, const char *id, const char *address) {
    for (uint32_t i = 0; i < s->config.nodes_max; i++) {
        node_link *l = &s->links[i];
        if (l->used && (id[0] ? strcmp(l->id, id) == 0 : strcmp(l->address, address) == 0)) return l;
    }
    return NULL;
}

static kvf_status add(kvf_router_shell *s, const char *id, kvf_role role, const char *address) {
    node_link *l = find_link(s, id, address);
    if (l) {
        if (strcmp(l->address, address) == 0 && l->session && l->session->open) return KVF_OK;
        bool open = l->session && l->session->open;
        forget_session(l);
        if (open) kvf_router_on_session_down(s->core, kvf_os_now_ns(), (uint32_t)(l - s->links));
        kvf_log(KVF_LOG_INFO, "router", "node %s is now at %s", id, address);
        return connect_link(s, l, address);
    }
    uint32_t index = 0;
    while (index < s->config.nodes_max && s->links[index].used) index++;
    if (index == s->config.nodes_max) return KVF_ERR_LIMIT;
    l = &s->links[index];
    *l = (node_link){.shell = s, .role = role};
    snprintf(l->id, sizeof l->id, "%s", id);
    l->retry = evtimer_new(s->base, on_retry, l);
    if (!l->retry) return KVF_ERR_NO_MEMORY;
    kvf_status status = kvf_router_add_node(s->core, kvf_os_now_ns(), index, id, role);
    if (status == KVF_OK) {
        status = connect_link(s, l, address);
        if (status != KVF_OK) kvf_router_remove_node(s->core, kvf_os_now_ns(), index);
    }
    if (status != KVF_OK) {
        event_free(l->retry);
        l->retry = NULL;
        return status;
    }
    l->used = true;
    return KVF_OK;
}

static void remove_link(kvf_router_shell *s, node_link *l) {
    forget_session(l);
    kvf_router_remove_node(s->core, kvf_os_now_ns(), (uint32_t)(l - s->links));
    kvf_rpc_channel_destroy(l->channel);
    event_free(l->retry);
    *l = (node_link){0};
}

typedef struct {
    inbox_item item;
    char id[KVF_NAME_MAX], address[KVF_ADDRESS_MAX];
    kvf_role role;
    bool remove;
} member_change;

static void drop_change(inbox_item *item) { free(item); }

static void run_change(inbox_item *item, void *shell) {
    member_change *c = (member_change *)(void *)item;
    kvf_router_shell *s = shell;
    node_link *l = c->remove ? find_link(s, c->id, "") : NULL;
    kvf_status status = KVF_OK;
    if (l)
        remove_link(s, l);
    else if (!c->remove)
        status = add(s, c->id, c->role, c->address);
    if (status != KVF_OK)
        kvf_log(KVF_LOG_ERROR, "router", "node %s at %s is not added: %s", c->id, c->address, kvf_status_text(status));
    free(c);
}

static kvf_status put_change(kvf_router_shell *s, const char *id, kvf_role role, const char *address, bool remove) {
    if (strlen(id) >= KVF_NAME_MAX || strlen(address) >= KVF_ADDRESS_MAX || (!remove && !address[0]))
        return KVF_ERR_INVALID;
    member_change *c = calloc(1, sizeof *c);
    if (!c) return KVF_ERR_NO_MEMORY;
    c->item = (inbox_item){.run = run_change, .drop = drop_change};
    c->role = role;
    c->remove = remove;
    snprintf(c->id, sizeof c->id, "%s", id);
    snprintf(c->address, sizeof c->address, "%s", address);
    front_inbox_put(&s->inbox, &c->item);
    return KVF_OK;
}

kvf_status kvf_router_shell_add_node(kvf_router_shell *s, const char *id, kvf_role role, const char *address) {
    return put_change(s, id ? id : "", role, address, false);
}

kvf_status kvf_router_shell_remove_node(kvf_router_shell *s, const char *id) {
    return id[0] ? put_change(s, id, 0, "", true) : KVF_ERR_INVALID;
}

kvf_status front_nodes_start(kvf_router_shell *s, kvf_error *err) {
    for (uint32_t i = 0; i < s->options.nodes_count; i++) {
        const kvf_router_shell_node *n = &s->options.nodes[i];
        const char *id = n->id ? n->id : "";
        if (strlen(id) >= KVF_NAME_MAX || strlen(n->address) >= KVF_ADDRESS_MAX)
            return kvf_fail(err, KVF_ERR_INVALID, "nodes[%u]: id or address is too long", i);
        kvf_status status = add(s, id, n->role, n->address);
        if (status != KVF_OK)
            return kvf_fail(err, status, "nodes[%u] %s at %s: %s", i, id, n->address, kvf_status_text(status));
    }
    return KVF_OK;
}

void front_nodes_stop(kvf_router_shell *s) {
    for (uint32_t i = 0; i < KVF_ROUTER_NODES_MAX; i++) {
        node_link *l = &s->links[i];
        if (!l->used) continue;
        forget_session(l);
        kvf_rpc_channel_destroy(l->channel);
        event_free(l->retry);
        l->used = false;
    }
}
