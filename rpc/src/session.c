/* Client calls with callbacks. A session is over when its status has come and the last message has been read:
 *   OPEN -> (status | end of messages, in any order) -> on_closed -> on_release. */
#include "rpc_int.h"
#include <stdio.h>
#include <stdlib.h>

struct kvf_rpc_session {
    rpc_flow flow;
    atomic_uint refs; /* library 1 + application */
    kvf_rpc_runtime *rt; /* not after finish */
    kvf_rpc_session *next, **link; /* list of the runtime; guarded by rt->lock */
    const ProtobufCMessageDescriptor *output;
    const kvf_rpc_session_ops *app_ops;
    void *user;
    rpc_tag open_tag, status_tag, recv_tag;
    grpc_metadata_array headers, trailers;
    grpc_byte_buffer *received;
    grpc_status_code code;
    grpc_slice text;
    bool has_status, read_all, heard; /* loop only */
    atomic_bool cancelled; /* by us */
    grpc_status_code lost; /* a message came and could not be read, why; OK: none. Loop only */
    rpc_arena arena;
};

static void session_put(kvf_rpc_session *session) {
    if (atomic_fetch_sub(&session->refs, 1) != 1) return;
    if (session->app_ops->on_release) session->app_ops->on_release(session->user);
    rpc_flow_fini(&session->flow);
    rpc_arena_clear(&session->arena);
    free(session);
}

static size_t end_ops(rpc_flow *flow, grpc_op *ops) {
    (void)flow;
    ops[0].op = GRPC_OP_SEND_CLOSE_FROM_CLIENT;
    return 1;
}

static void writable(rpc_flow *flow) {
    kvf_rpc_session *session = RPC_OUTER(flow, kvf_rpc_session, flow);
    if (session->app_ops->on_writable) session->app_ops->on_writable(session, session->user);
}

/* The slices of status and metadata live as long as the grpc_call: closed() has read them before this. */
static void finish(rpc_flow *flow) {
    kvf_rpc_session *session = RPC_OUTER(flow, kvf_rpc_session, flow);
    kvf_rpc_runtime *rt = session->rt;
    grpc_metadata_array_destroy(&session->headers);
    grpc_metadata_array_destroy(&session->trailers);
    if (session->has_status) grpc_slice_unref(session->text);
    if (session->received) grpc_byte_buffer_destroy(session->received);
    pthread_mutex_lock(&rt->lock);
    *session->link = session->next;
    if (session->next) session->next->link = session->link;
    rt->session_count--;
    if (rt->session_count == 0) pthread_cond_broadcast(&rt->idle);
    pthread_mutex_unlock(&rt->lock);
    session_put(session);
}

static const rpc_flow_ops flow_ops = {.end_ops = end_ops, .writable = writable, .finish = finish};

static const char *unread_text(grpc_status_code why) {
    return why == GRPC_STATUS_RESOURCE_EXHAUSTED ? "no memory for a message"
                                                 : "the peer sent a message that cannot be parsed";
}

static void close_if_over(kvf_rpc_session *session) {
    if (!session->has_status || !session->read_all) return;
    kvf_rpc_result result;
    rpc_result_fill(&result, session->code, session->text, &session->trailers);
    rpc_result_crossed(&result, atomic_load(&session->cancelled), session->heard);
    if (session->lost != GRPC_STATUS_OK && result.code == KVF_RPC_OK) { /* the peer's end was here before our cancel */
        result.code = (kvf_rpc_code)session->lost;
        snprintf(result.message, sizeof result.message, "%s", unread_text(session->lost));
    }
    pthread_mutex_lock(&session->flow.lock);
    rpc_flow_close(&session->flow);
    pthread_mutex_unlock(&session->flow.lock);
    if (session->app_ops->on_closed) session->app_ops->on_closed(session, session->user, &result);
}

static void on_open(rpc_tag *tag, bool ok) {
    (void)ok; /* a failure comes as status */
    kvf_rpc_session *session = RPC_OUTER(tag, kvf_rpc_session, open_tag);
    rpc_flow_done(&session->flow);
}

static void on_status(rpc_tag *tag, bool ok) {
    (void)ok;
    kvf_rpc_session *session = RPC_OUTER(tag, kvf_rpc_session, status_tag);
    session->has_status = true;
    close_if_over(session);
    rpc_flow_done(&session->flow);
}

static void read_next(kvf_rpc_session *session) { /* under lock */
    grpc_op op;
    memset(&op, 0, sizeof op);
    op.op = GRPC_OP_RECV_MESSAGE;
    op.data.recv_message.recv_message = &session->received;
    rpc_flow_start(&session->flow, &op, 1, &session->recv_tag);
}

static void on_recv(rpc_tag *tag, bool ok) {
    kvf_rpc_session *session = RPC_OUTER(tag, kvf_rpc_session, recv_tag);
    grpc_byte_buffer *bytes = session->received;
    session->received = NULL;
    if (!ok || !bytes) {
        session->read_all = true;
        close_if_over(session);
    } else {
        session->heard = true;
        ProtobufCMessage *message = rpc_unpack(&session->arena, session->output, bytes);
        if (!message) session->lost = session->arena.no_memory ? GRPC_STATUS_RESOURCE_EXHAUSTED : GRPC_STATUS_INTERNAL;
        if (message && session->app_ops->on_message) session->app_ops->on_message(session, session->user, message);
        rpc_arena_clear(&session->arena);
        pthread_mutex_lock(&session->flow.lock);
        if (!message) grpc_call_cancel_with_status(session->flow.grpc, session->lost, unread_text(session->lost), NULL);
        read_next(session);
        pthread_mutex_unlock(&session->flow.lock);
    }
    if (bytes) grpc_byte_buffer_destroy(bytes);
    rpc_flow_done(&session->flow);
}

static void start(kvf_rpc_session *session) { /* under lock */
    grpc_op ops[2];
    memset(ops, 0, sizeof ops);
    ops[0].op = GRPC_OP_SEND_INITIAL_METADATA;
    ops[1].op = GRPC_OP_RECV_INITIAL_METADATA;
    ops[1].data.recv_initial_metadata.recv_initial_metadata = &session->headers;
    session->flow.headers_sent = true;
    rpc_flow_start(&session->flow, ops, 2, &session->open_tag);
    memset(ops, 0, sizeof ops);
    ops[0].op = GRPC_OP_RECV_STATUS_ON_CLIENT;
    ops[0].data.recv_status_on_client.trailing_metadata = &session->trailers;
    ops[0].data.recv_status_on_client.status = &session->code;
    ops[0].data.recv_status_on_client.status_details = &session->text;
    rpc_flow_start(&session->flow, ops, 1, &session->status_tag);
    read_next(session);
}

kvf_status kvf_rpc_session_open(kvf_rpc_channel *channel, const ProtobufCServiceDescriptor *service, const char *method,
    uint64_t deadline_ms, const kvf_rpc_session_ops *ops, void *user, kvf_rpc_session **out) {
    grpc_slice path;
    const ProtobufCMethodDescriptor *found;
    if (!rpc_method_find(service, method, &path, &found)) return KVF_ERR_INVALID;
    kvf_rpc_session *session = calloc(1, sizeof *session);
    if (!session) {
        grpc_slice_unref(path);
        return KVF_ERR_NO_MEMORY;
    }
    kvf_rpc_runtime *rt = channel->rt;
    rpc_flow_init(&session->flow, &flow_ops, rpc_runtime_pick_loop(rt), channel->stream_buffer_bytes_max);
    atomic_init(&session->refs, 2);
    session->rt = rt;
    session->output = found->output;
    session->app_ops = ops;
    session->user = user;
    session->open_tag.fn = on_open;
    session->status_tag.fn = on_status;
    session->recv_tag.fn = on_recv;
    grpc_metadata_array_init(&session->headers);
    grpc_metadata_array_init(&session->trailers);
    rpc_arena_init(&session->arena);

    pthread_mutex_lock(&rt->lock);
    session->next = rt->sessions;
    session->link = &rt->sessions;
    if (session->next) session->next->link = &session->next;
    rt->sessions = session;
    rt->session_count++;
    pthread_mutex_unlock(&rt->lock);

    *out = session; /* before any callback can come */
    pthread_mutex_lock(&session->flow.lock);
    session->flow.grpc = grpc_channel_create_call(channel->grpc, NULL, GRPC_PROPAGATE_DEFAULTS, session->flow.loop->cq,
        path, NULL, rpc_deadline_after(deadline_ms), NULL);
    start(session);
    pthread_mutex_unlock(&session->flow.lock);
    grpc_slice_unref(path);
    return KVF_OK;
}

kvf_rpc_session *kvf_rpc_session_ref(kvf_rpc_session *session) {
    atomic_fetch_add(&session->refs, 1);
    return session;
}

void kvf_rpc_session_unref(kvf_rpc_session *session) { session_put(session); }

kvf_status kvf_rpc_session_push(kvf_rpc_session *session, const ProtobufCMessage *message) {
    return rpc_flow_push(&session->flow, rpc_pack(message), true);
}

kvf_status kvf_rpc_session_push_packed(kvf_rpc_session *session, kvf_span message) {
    return rpc_flow_push(&session->flow, rpc_pack_bytes(message), true);
}

void kvf_rpc_session_half_close(kvf_rpc_session *session) {
    pthread_mutex_lock(&session->flow.lock);
    if (!session->flow.ended) {
        session->flow.ended = true;
        rpc_flow_kick(&session->flow);
    }
    pthread_mutex_unlock(&session->flow.lock);
}

void kvf_rpc_session_cancel(kvf_rpc_session *session) {
    atomic_store(&session->cancelled, true);
    pthread_mutex_lock(&session->flow.lock);
    session->flow.ended = true;
    if (session->flow.grpc) grpc_call_cancel(session->flow.grpc, NULL);
    pthread_mutex_unlock(&session->flow.lock);
}

size_t kvf_rpc_session_buffered_bytes(kvf_rpc_session *session) {
    pthread_mutex_lock(&session->flow.lock);
    size_t bytes = session->flow.queued_bytes + session->flow.sending_bytes;
    pthread_mutex_unlock(&session->flow.lock);
    return bytes;
}

void rpc_sessions_cancel_all(kvf_rpc_runtime *rt) {
    pthread_mutex_lock(&rt->lock);
    /* finish() unlinks under this lock, so every session of the list is alive. Taking a flow's lock inside is safe
     * because nothing takes rt->lock while it holds a flow's. */
    for (kvf_rpc_session *session = rt->sessions; session; session = session->next) kvf_rpc_session_cancel(session);
    while (rt->session_count > 0) pthread_cond_wait(&rt->idle, &rt->lock);
    pthread_mutex_unlock(&rt->lock);
}
