/* Server calls: from the posted request to the last reference. Rules for the application: kvf/rpc.h; for flows:
 * rpc_int.h. */
#include "rpc_int.h"
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>

static void call_put(kvf_rpc_call *call) {
    if (atomic_fetch_sub(&call->refs, 1) != 1) return;
    if (call->app_ops && call->app_ops->on_release) call->app_ops->on_release(call->user);
    rpc_flow_fini(&call->flow);
    rpc_arena_clear(&call->arena);
    free(call->path);
    free(call->peer);
    free(call);
}

/* ---- What the flow asks for
 * ------------------------------------------------------------------------------------------ */

static size_t end_ops(rpc_flow *flow, grpc_op *ops) {
    kvf_rpc_call *call = RPC_OUTER(flow, kvf_rpc_call, flow);
    ops[0].op = GRPC_OP_SEND_STATUS_FROM_SERVER;
    ops[0].data.send_status_from_server.status = (grpc_status_code)call->code;
    ops[0].data.send_status_from_server.status_details = &call->text;
    if (GRPC_SLICE_LENGTH(call->status_bytes) > 0) {
        call->trailer.key = grpc_slice_from_static_string(RPC_DETAILS_KEY);
        call->trailer.value = call->status_bytes;
        ops[0].data.send_status_from_server.trailing_metadata_count = 1;
        ops[0].data.send_status_from_server.trailing_metadata = &call->trailer;
    }
    return 1;
}

static void writable(rpc_flow *flow) {
    kvf_rpc_call *call = RPC_OUTER(flow, kvf_rpc_call, flow);
    if (call->app_ops && call->app_ops->on_writable) call->app_ops->on_writable(call, call->user);
}

static void free_grpc_parts(kvf_rpc_call *call) {
    grpc_metadata_array_destroy(&call->metadata);
    if (call->has_details) grpc_call_details_destroy(&call->details);
    grpc_slice_unref(call->text);
    grpc_slice_unref(call->status_bytes);
    if (call->received) grpc_byte_buffer_destroy(call->received);
}

/* A method without a posted call would keep its callers waiting for good. */
static void post_owed(kvf_rpc_server *server, rpc_loop *loop) {
    for (size_t i = 0; i < server->method_count; i++) {
        rpc_method *method = &server->methods[i];
        uint32_t owed = atomic_load(&method->owed);
        while (owed > 0)
            if (atomic_compare_exchange_weak(&method->owed, &owed, owed - 1)) {
                if (rpc_call_post(server, method, loop)) continue;
                atomic_fetch_add(&method->owed, 1);
                return;
            }
    }
}

static void finish(rpc_flow *flow) {
    kvf_rpc_call *call = RPC_OUTER(flow, kvf_rpc_call, flow);
    bool was_running = !call->method->builtin;
    free_grpc_parts(call);
    post_owed(call->server, flow->loop);
    rpc_server_object_gone(call->server, was_running);
    if (call->kind == KVF_RPC_BIDI) kvf_rpc_call_unref(call);
    call_put(call);
}

static const rpc_flow_ops flow_ops = {.end_ops = end_ops, .writable = writable, .finish = finish};

/* ---- Events
 * ---------------------------------------------------------------------------------------------------------- */

static void on_close(rpc_tag *tag, bool ok) {
    (void)ok;
    kvf_rpc_call *call = RPC_OUTER(tag, kvf_rpc_call, close_tag);
    pthread_mutex_lock(&call->flow.lock);
    bool tell = call->cancelled && !call->flow.ended;
    rpc_flow_close(&call->flow);
    pthread_mutex_unlock(&call->flow.lock);
    if (tell && call->app_ops && call->app_ops->on_cancel) call->app_ops->on_cancel(call, call->user);
    rpc_flow_done(&call->flow);
}

static void read_next(kvf_rpc_call *call) { /* under lock */
    grpc_op op;
    if (call->flow.ended || call->flow.closed) return;
    memset(&op, 0, sizeof op);
    op.op = GRPC_OP_RECV_MESSAGE;
    op.data.recv_message.recv_message = &call->received;
    rpc_flow_start(&call->flow, &op, 1, &call->recv_tag);
}

static void half_closed(kvf_rpc_call *call) {
    if (call->app_ops && call->app_ops->on_half_close)
        call->app_ops->on_half_close(call, call->user);
    else
        kvf_rpc_stream_end(call);
}

/* Memory that we lack is not the caller's mistake. */
static void fail_unread(kvf_rpc_call *call) {
    if (call->arena.no_memory)
        kvf_rpc_fail(call, KVF_RPC_RESOURCE_EXHAUSTED, NULL, "no memory for the message");
    else
        kvf_rpc_fail(call, KVF_RPC_INVALID_ARGUMENT, NULL, "cannot parse the message as %s", call->input->name);
}

static void on_recv(rpc_tag *tag, bool ok) {
    kvf_rpc_call *call = RPC_OUTER(tag, kvf_rpc_call, recv_tag);
    grpc_byte_buffer *bytes = call->received;
    call->received = NULL;
    if (kvf_rpc_call_gone(call)) goto out; /* what still comes in is of no interest */
    if (!bytes) {
        if (ok) half_closed(call);
        goto out;
    }
    ProtobufCMessage *message = rpc_unpack(&call->arena, call->input, bytes);
    if (!message) {
        fail_unread(call);
        rpc_arena_clear(&call->arena);
        goto out;
    }
    if (call->app_ops && call->app_ops->on_message) call->app_ops->on_message(call, call->user, message);
    rpc_arena_clear(&call->arena);
    pthread_mutex_lock(&call->flow.lock);
    read_next(call);
    pthread_mutex_unlock(&call->flow.lock);
out:
    if (bytes) grpc_byte_buffer_destroy(bytes);
    rpc_flow_done(&call->flow);
}

static char *copy_slice(grpc_slice slice) {
    char *text = malloc(GRPC_SLICE_LENGTH(slice) + 1);
    if (!text) return NULL;
    memcpy(text, GRPC_SLICE_START_PTR(slice), GRPC_SLICE_LENGTH(slice));
    text[GRPC_SLICE_LENGTH(slice)] = 0;
    return text;
}

static void arm_close(kvf_rpc_call *call) {
    grpc_op op;
    memset(&op, 0, sizeof op);
    op.op = GRPC_OP_RECV_CLOSE_ON_SERVER;
    op.data.recv_close_on_server.cancelled = &call->cancelled;
    pthread_mutex_lock(&call->flow.lock);
    rpc_flow_start(&call->flow, &op, 1, &call->close_tag);
    pthread_mutex_unlock(&call->flow.lock);
}

static void dispatch(kvf_rpc_call *call) {
    rpc_method *method = call->method;
    if (!call->path) {
        kvf_rpc_fail(call, KVF_RPC_RESOURCE_EXHAUSTED, NULL, "no memory for the call");
        return;
    }
    if (!method->registered) {
        rpc_text_clean(call->path);
        kvf_rpc_fail(call, KVF_RPC_UNIMPLEMENTED, NULL, "unknown method %.200s", call->path);
        return;
    }
    if (call->kind == KVF_RPC_BIDI) {
        pthread_mutex_lock(&call->flow.lock);
        call->flow.headers_wanted = true; /* a client may wait for headers before it says anything */
        rpc_flow_kick(&call->flow);
        pthread_mutex_unlock(&call->flow.lock);
        method->handler(method->self, call, NULL);
        pthread_mutex_lock(&call->flow.lock);
        read_next(call);
        pthread_mutex_unlock(&call->flow.lock);
        return;
    }
    call->request = rpc_unpack(&call->arena, call->input, call->received);
    bool came = call->received != NULL;
    if (came) grpc_byte_buffer_destroy(call->received);
    call->received = NULL;
    if (call->request)
        method->handler(method->self, call, call->request);
    else if (came)
        fail_unread(call);
    else
        kvf_rpc_fail(call, KVF_RPC_INVALID_ARGUMENT, NULL, "the request message is missing");
}

static void on_new(rpc_tag *tag, bool ok) {
    kvf_rpc_call *call = RPC_OUTER(tag, kvf_rpc_call, new_tag);
    kvf_rpc_server *server = call->server;
    if (!ok) { /* the server shuts down; there is no call */
        call->flow.outstanding = 0;
        free_grpc_parts(call);
        call_put(call);
        rpc_server_object_gone(server, false);
        return;
    }
    if (!rpc_call_post(server, call->method, call->flow.loop)) atomic_fetch_add(&call->method->owed, 1);
    if (call->has_details) {
        call->path = copy_slice(call->details.method);
        call->deadline = call->details.deadline;
    } else {
        call->path = strdup(call->method->path);
    }
    if (!call->method->builtin) {
        pthread_mutex_lock(&server->lock);
        server->running++;
        pthread_mutex_unlock(&server->lock);
    }
    arm_close(call);
    if (call->kind == KVF_RPC_BIDI) kvf_rpc_call_ref(call); /* given back by finish */
    kvf_rpc_call_ref(call);
    dispatch(call);
    kvf_rpc_call_unref(call);
    rpc_flow_done(&call->flow);
}

bool rpc_call_post(kvf_rpc_server *server, rpc_method *method, rpc_loop *loop) {
    kvf_rpc_call *call = calloc(1, sizeof *call);
    if (!call) return false;
    rpc_flow_init(&call->flow, &flow_ops, loop, server->stream_buffer_bytes_max);
    call->flow.outstanding = 1; /* new_tag */
    atomic_init(&call->refs, 1);
    call->server = server;
    call->method = method;
    call->kind = method->kind;
    call->input = method->input;
    call->text = grpc_empty_slice();
    call->status_bytes = grpc_empty_slice();
    call->new_tag.fn = on_new;
    call->close_tag.fn = on_close;
    call->recv_tag.fn = on_recv;
    rpc_arena_init(&call->arena);
    grpc_metadata_array_init(&call->metadata);
    pthread_mutex_lock(&server->lock);
    server->objects++;
    pthread_mutex_unlock(&server->lock);

    grpc_call_error error;
    if (!method->registered) {
        call->has_details = true;
        grpc_call_details_init(&call->details);
    }
    RPC_TAG_GIVE(&call->new_tag); /* from here on the loop may have it */
    if (method->registered) {
        error = grpc_server_request_registered_call(server->grpc, method->registered, &call->flow.grpc, &call->deadline,
            &call->metadata, method->kind == KVF_RPC_BIDI ? NULL : &call->received, loop->cq, loop->cq, &call->new_tag);
    } else {
        error = grpc_server_request_call(
            server->grpc, &call->flow.grpc, &call->details, &call->metadata, loop->cq, loop->cq, &call->new_tag);
    }
    KVF_ASSERT(error == GRPC_CALL_OK);
    return true;
}

/* ---- For the application
 * --------------------------------------------------------------------------------------------- */

void kvf_rpc_call_bind(kvf_rpc_call *call, const kvf_rpc_call_ops *ops, void *user) {
    KVF_ASSERT(!call->app_ops);
    call->app_ops = ops;
    call->user = user;
}

kvf_rpc_call *kvf_rpc_call_ref(kvf_rpc_call *call) {
    atomic_fetch_add(&call->refs, 1);
    atomic_fetch_add(&call->app_refs, 1);
    return call;
}

void kvf_rpc_call_unref(kvf_rpc_call *call) {
    if (atomic_fetch_sub(&call->app_refs, 1) == 1 && !kvf_rpc_call_gone(call))
        kvf_rpc_fail(call, KVF_RPC_INTERNAL, NULL, "the handler dropped the call without an answer");
    call_put(call);
}

kvf_status kvf_rpc_reply(kvf_rpc_call *call, const ProtobufCMessage *message) {
    if (kvf_rpc_call_gone(call)) return KVF_ERR_GONE;
    grpc_byte_buffer *bytes = rpc_pack(message);
    pthread_mutex_lock(&call->flow.lock);
    bool gone = call->flow.ended || call->flow.closed;
    kvf_status status = gone ? KVF_ERR_GONE : rpc_flow_append(&call->flow, bytes);
    if (status == KVF_OK) {
        bytes = NULL;
        call->flow.ended = true;
        rpc_flow_kick(&call->flow);
    }
    pthread_mutex_unlock(&call->flow.lock);
    if (bytes) grpc_byte_buffer_destroy(bytes);
    if (status == KVF_ERR_NO_MEMORY) kvf_rpc_fail(call, KVF_RPC_RESOURCE_EXHAUSTED, NULL, "no memory for the answer");
    return status;
}

kvf_status kvf_rpc_fail(kvf_rpc_call *call, kvf_rpc_code code, const kvf_rpc_details *details, const char *fmt, ...) {
    char text[512]; /* gRPC takes 8 KiB of trailers, and the text goes out up to three times */
    va_list args;
    va_start(args, fmt);
    vsnprintf(text, sizeof text, fmt, args);
    va_end(args);
    rpc_text_clean(text);
    if (kvf_rpc_call_gone(call)) return KVF_ERR_GONE;
    grpc_slice packed = rpc_details_pack(code, text, details);
    pthread_mutex_lock(&call->flow.lock);
    bool gone = call->flow.ended || call->flow.closed;
    if (!gone) {
        call->code = code;
        call->text = grpc_slice_from_copied_string(text);
        call->status_bytes = packed;
        call->flow.ended = true;
        rpc_flow_kick(&call->flow);
    }
    pthread_mutex_unlock(&call->flow.lock);
    if (gone) grpc_slice_unref(packed);
    return gone ? KVF_ERR_GONE : KVF_OK;
}

kvf_status kvf_rpc_abort(kvf_rpc_call *call, kvf_rpc_code code, const char *text) {
    pthread_mutex_lock(&call->flow.lock);
    bool gone = !call->flow.grpc || call->flow.closed || call->aborted;
    if (!gone) {
        call->aborted = true;
        call->flow.ended = true;
        call->flow.end_sent = true; /* the cancel carries the status: send nothing more */
        rpc_flow_drop(&call->flow);
        grpc_call_cancel_with_status(call->flow.grpc, (grpc_status_code)code, text, NULL);
    }
    pthread_mutex_unlock(&call->flow.lock);
    return gone ? KVF_ERR_GONE : KVF_OK;
}

kvf_status kvf_rpc_stream_push(kvf_rpc_call *call, const ProtobufCMessage *message) {
    if (kvf_rpc_call_gone(call)) return KVF_ERR_GONE;
    return rpc_flow_push(&call->flow, rpc_pack(message), true);
}

kvf_status kvf_rpc_stream_push_packed(kvf_rpc_call *call, kvf_span message) {
    if (kvf_rpc_call_gone(call)) return KVF_ERR_GONE;
    return rpc_flow_push(&call->flow, rpc_pack_bytes(message), true);
}

kvf_status kvf_rpc_stream_end(kvf_rpc_call *call) {
    pthread_mutex_lock(&call->flow.lock);
    bool gone = call->flow.ended || call->flow.closed;
    if (!gone) {
        call->flow.ended = true;
        rpc_flow_kick(&call->flow);
    }
    pthread_mutex_unlock(&call->flow.lock);
    return gone ? KVF_ERR_GONE : KVF_OK;
}

size_t kvf_rpc_stream_buffered_bytes(kvf_rpc_call *call) {
    pthread_mutex_lock(&call->flow.lock);
    size_t bytes = call->flow.queued_bytes + call->flow.sending_bytes;
    pthread_mutex_unlock(&call->flow.lock);
    return bytes;
}

bool kvf_rpc_call_gone(kvf_rpc_call *call) {
    pthread_mutex_lock(&call->flow.lock);
    bool gone = call->flow.ended || call->flow.closed || !call->flow.grpc;
    pthread_mutex_unlock(&call->flow.lock);
    return gone;
}

uint64_t kvf_rpc_call_left_ms(kvf_rpc_call *call) {
    if (gpr_time_cmp(call->deadline, gpr_inf_future(call->deadline.clock_type)) == 0) return UINT64_MAX;
    gpr_timespec left = gpr_time_sub(call->deadline, gpr_now(call->deadline.clock_type));
    int64_t ms = left.tv_sec * 1000 + left.tv_nsec / 1000000;
    return ms > 0 ? (uint64_t)ms : 0;
}

const char *kvf_rpc_call_peer(kvf_rpc_call *call) {
    pthread_mutex_lock(&call->flow.lock);
    if (!call->peer && call->flow.grpc) {
        char *peer = grpc_call_get_peer(call->flow.grpc);
        call->peer = strdup(peer);
        gpr_free(peer);
    }
    const char *out = call->peer ? call->peer : "unknown";
    pthread_mutex_unlock(&call->flow.lock);
    return out;
}

const char *kvf_rpc_call_path(const kvf_rpc_call *call) { return call->path; }

bool kvf_rpc_call_metadata(kvf_rpc_call *call, const char *key, kvf_span *value) {
    for (size_t i = 0; i < call->metadata.count; i++) {
        if (grpc_slice_str_cmp(call->metadata.metadata[i].key, key) != 0) continue;
        value->data = GRPC_SLICE_START_PTR(call->metadata.metadata[i].value);
        value->len_bytes = GRPC_SLICE_LENGTH(call->metadata.metadata[i].value);
        return true;
    }
    return false;
}
