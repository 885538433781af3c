/* The control listener: one bidi stream per router. gRPC loops decode and hand over; the core thread owns slots and
 * answers. */
#include "worker_int.h"
#include "kvf/log.h"
#include "kvf/proto.h"
#include "kvf/wire.h"
#include <kvferry/internal/v1/node.pb-c.h>
#include <stdlib.h>

/* ------------------------------------------------------------------ shared between gRPC loops and the core thread */

static void session_unref(session *s) {
    if (atomic_fetch_sub(&s->refs, 1) != 1) return;
    free(atomic_load(&s->closed_item));
    free(s);
}

/* Core thread. The call keeps the session until its own last reference is gone, so ours must go first. */
void session_drop_call(session *s) {
    if (!s->call) return;
    kvf_rpc_call_unref(s->call);
    s->call = NULL;
}

void inbox_free(inbox_item *item) {
    if (item->session) session_unref(item->session);
    free(item->arena);
    free(item);
}

/* Blocks never: a full inbox means that the core is far behind, and the router's stream is ended rather than left to
 * wait. */
static void put(kvf_rpc_call *call, session *s, inbox_item *item) {
    item->session = s;
    atomic_fetch_add(&s->refs, 1);
    if (kvf_mailbox_put(s->worker->inbox, item) == KVF_OK) return;
    kvf_rpc_abort(
        call, KVF_RPC_RESOURCE_EXHAUSTED, "the node's inbox is full"); /* the core learns it at its next push */
    inbox_free(item);
}

static void say_closed(kvf_rpc_call *call, session *s) {
    inbox_item *item = atomic_exchange(&s->closed_item, NULL);
    if (!item) return; /* said already */
    item->kind = INBOX_CLOSED;
    put(call, s, item);
}

/* Who has a certificate speaks under its name only. */
static bool may_say(kvf_rpc_call *call, const kvf_rmsg *message) {
    char who[128];
    if (message->kind != KVF_R_HELLO || kvf_rpc_call_proves(call, message->hello.router, who, sizeof who)) return true;
    kvf_log(KVF_LOG_WARN, "session", "%s says that it is router %s, its certificate is for %s: refused",
        kvf_rpc_call_peer(call), message->hello.router, who);
    kvf_rpc_fail(call, KVF_RPC_PERMISSION_DENIED, NULL, "the certificate is for %s, not for router %s", who,
        message->hello.router);
    return false;
}

/* The protobuf message is borrowed until on_message returns, so its bytes are packed into the item's own memory and
 * read there. Few messages need much room: who always took the most would touch other pages of the heap each time, and
 * the process would grow until it has touched them all. */
static kvf_status keep(inbox_item *item, const ProtobufCMessage *message, kvf_error *err) {
    size_t packed = protobuf_c_message_get_packed_size(message), room_most = packed * 6 + 65536;
    for (size_t room = 2 * packed + 2048;; room = KVF_MIN(2 * room, room_most)) {
        size_t size = (size_t)kvf_align_up(packed, 64) + (size_t)kvf_align_up(room, 64);
        free(item->arena);
        item->arena = aligned_alloc(64, size);
        if (!item->arena) return KVF_ERR_NO_MEMORY;
        protobuf_c_message_pack(message, item->arena);
        kvf_arena arena = {.base = item->arena, .size_bytes = size, .used_bytes = (size_t)kvf_align_up(packed, 64)};
        kvf_status status = kvf_wire_rmsg_parse((kvf_span){item->arena, packed}, &arena, &item->message, err);
        if (status != KVF_ERR_NO_ROOM || room == room_most) return status;
    }
}

static void refuse(kvf_rpc_call *call, kvf_status status, const kvf_error *err) {
    if (status == KVF_ERR_NO_MEMORY) {
        kvf_rpc_abort(call, KVF_RPC_RESOURCE_EXHAUSTED, "out of memory");
        return;
    }
    const char *text = status == KVF_ERR_NO_ROOM ? "message too large" : err->message;
    kvf_log(KVF_LOG_WARN, "session", "a router's message is refused: %s", text);
    kvf_rpc_fail(call, KVF_RPC_INVALID_ARGUMENT, NULL, "%s", text);
}

static void on_message(kvf_rpc_call *call, void *user, const ProtobufCMessage *message) {
    session *s = user;
    kvf_error err = {0};
    inbox_item *item = calloc(1, sizeof *item);
    if (!item) {
        kvf_rpc_abort(call, KVF_RPC_RESOURCE_EXHAUSTED, "out of memory");
        return;
    }
    item->kind = INBOX_MESSAGE;
    kvf_status status = keep(item, message, &err);
    if (status != KVF_OK) refuse(call, status, &err);
    if (status == KVF_OK && may_say(call, &item->message)) {
        put(call, s, item);
        return;
    }
    inbox_free(item);
    if (status != KVF_ERR_NO_MEMORY) say_closed(call, s);
}

static void on_half_close(kvf_rpc_call *call, void *user) {
    kvf_rpc_stream_end(call);
    say_closed(call, user);
}

static void on_cancel(kvf_rpc_call *call, void *user) { say_closed(call, user); }

static void on_release(void *user) { session_unref(user); }

static void on_session(void *self, kvf_rpc_call *call, const ProtobufCMessage *request) {
    static const kvf_rpc_call_ops ops = {
        .on_message = on_message, .on_half_close = on_half_close, .on_cancel = on_cancel, .on_release = on_release};
    (void)request;
    if (progress_stalled(self)) {
        kvf_rpc_fail(call, KVF_RPC_UNAVAILABLE, NULL, "this node makes no progress");
        return;
    }
    session *s = calloc(1, sizeof *s);
    inbox_item *closed = calloc(1, sizeof *closed);
    if (!s || !closed) {
        free(s);
        free(closed);
        kvf_rpc_fail(call, KVF_RPC_RESOURCE_EXHAUSTED, NULL, "out of memory");
        return;
    }
    s->worker = self;
    s->call = kvf_rpc_call_ref(call);
    s->slot = NO_SLOT;
    atomic_init(&s->closed_item, closed);
    atomic_init(&s->refs, 1);
    kvf_rpc_call_bind(call, &ops, s);
}

/* ------------------------------------------------------------------ core thread */

void session_forget(kvf_worker *w, uint32_t slot) {
    session *s = w->sessions[slot];
    w->sessions[slot] = NULL;
    s->slot = NO_SLOT;
    session_drop_call(s);
    session_unref(s);
}

static void close_session(kvf_worker *w, session *s) {
    uint32_t slot = s->slot;
    if (slot == NO_SLOT) {
        session_drop_call(s);
        return;
    }
    session_forget(w, slot);
    kvf_node_on_session_down(w->core, kvf_os_now_ns(), slot);
}

void session_close_all(kvf_worker *w, const char *text) {
    for (uint32_t i = 0; i < SESSIONS_MAX; i++) {
        session *s = w->sessions[i];
        if (!s) continue;
        kvf_rpc_abort(s->call, KVF_RPC_UNAVAILABLE, text);
        close_session(w, s);
    }
}

static bool give_slot(kvf_worker *w, session *s) {
    for (uint32_t i = 0; i < SESSIONS_MAX; i++) {
        if (w->sessions[i] || !kvf_node_session_free(w->core, i)) continue;
        atomic_fetch_add(&s->refs, 1);
        w->sessions[i] = s;
        s->slot = i;
        return true;
    }
    kvf_rpc_fail(s->call, KVF_RPC_RESOURCE_EXHAUSTED, NULL, "this node already serves %d routers", SESSIONS_MAX);
    return false;
}

void session_take(kvf_worker *w, inbox_item *item) {
    session *s = item->session;
    if (item->kind == INBOX_CLOSED) {
        kvf_log(KVF_LOG_INFO, "session", "router stream %u has ended", s->slot);
        close_session(w, s);
        return;
    }
    if (!s->call || kvf_rpc_call_gone(s->call)) return; /* over, or its end is on the way */
    if (s->slot == NO_SLOT) {
        if (item->message.kind != KVF_R_HELLO) {
            kvf_rpc_fail(s->call, KVF_RPC_FAILED_PRECONDITION, NULL, "the first message of a session is Hello");
            return;
        }
        if (!give_slot(w, s)) return;
        kvf_log(KVF_LOG_INFO, "session", "router %s epoch %016llx is on stream %u", item->message.hello.router,
            (unsigned long long)item->message.hello.router_epoch, s->slot);
    }
    kvf_node_on_msg(w->core, kvf_os_now_ns(), s->slot, &item->message);
}

void session_send(kvf_worker *w, uint32_t slot, const kvf_nmsg *m) {
    session *s = slot < SESSIONS_MAX ? w->sessions[slot] : NULL;
    if (!s) return;
    size_t bytes = (size_t)kvf_align_up(kvf_wire_nmsg_bytes(m), 64);
    uint8_t *memory = aligned_alloc(64, bytes);
    kvf_arena arena = {.base = memory, .size_bytes = bytes};
    kvf_span packed;
    kvf_status status = memory ? kvf_wire_nmsg_pack(m, &arena, &packed) : KVF_ERR_NO_MEMORY;
    if (status == KVF_OK) status = kvf_rpc_stream_push_packed(s->call, packed);
    free(memory);
    if (status == KVF_OK) return;
    /* Gone, or the router does not read: cut it loose, it learns what it missed when it says Hello again. */
    kvf_log(status == KVF_ERR_GONE ? KVF_LOG_DEBUG : KVF_LOG_WARN, "session",
        "router stream %u: message %d not sent: %s", slot, (int)m->kind, kvf_status_text(status));
    kvf_rpc_abort(s->call, KVF_RPC_RESOURCE_EXHAUSTED, "the session's send buffer is full");
    close_session(w, s);
}

kvf_status session_server_start(kvf_worker *w, kvf_error *err) {
    kvf_rpc_runtime_opts ro = {.loops = 1};
    if (kvf_rpc_runtime_create(&ro, &w->rpc) != KVF_OK) return kvf_fail(err, KVF_ERR_INTERNAL, "cannot start gRPC");
    const kvf_rpc_method methods[] = {{.service = &kvferry__internal__v1__node__descriptor,
        .name = "Session",
        .kind = KVF_RPC_BIDI,
        .handler = on_session,
        .self = w}};
    const char *listen[] = {w->options.listen};
    kvf_span sets[] = {kvf_proto_internal_set()};
    kvf_rpc_credentials credentials = {.mode = KVF_RPC_TLS, .files = w->options.tls, .demand_certificates = true};
    kvf_rpc_server_opts so = {.listen = listen,
        .listen_count = 1,
        .methods = methods,
        .method_count = 1,
        .descriptor_sets = sets,
        .descriptor_set_count = 1,
        .credentials = w->options.tls ? &credentials : NULL,
        .message_bytes_max = 64u << 20,
        .stream_buffer_bytes_max = 16u << 20};
    kvf_status status = kvf_rpc_server_start(w->rpc, &so, &w->control, err);
    if (status != KVF_OK) return status;
    static const char *const names[] = {"", "liveness", "readiness", "kvferry.internal.v1.Node"};
    for (size_t i = 0; i < KVF_COUNT_OF(names); i++)
        if (kvf_rpc_health_set(w->control, names[i], KVF_RPC_HEALTH_SERVING) != KVF_OK)
            return kvf_fail(err, KVF_ERR_NO_MEMORY, "no memory for the health service");
    return KVF_OK;
}
