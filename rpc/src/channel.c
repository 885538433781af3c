/* Channels and the blocking calls for tools: each blocking call has a completion queue of its own, so that any thread
 * may make one without the loops knowing. */
#include "rpc_int.h"
#include <stdlib.h>

enum { MESSAGE_BYTES = 64 << 20, STREAM_BUFFER_BYTES = 1 << 20, KEEPALIVE_MS = 10000 };

kvf_status kvf_rpc_channel_create(kvf_rpc_runtime *rt, const kvf_rpc_channel_opts *opts, kvf_rpc_channel **out) {
    if (!opts->address) return KVF_ERR_INVALID;
    kvf_status status = rpc_credentials_check(opts->credentials, false, NULL);
    if (status != KVF_OK) return status;
    kvf_rpc_channel *channel = calloc(1, sizeof *channel);
    if (!channel) return KVF_ERR_NO_MEMORY;
    size_t message_bytes = opts->message_bytes_max ? opts->message_bytes_max : MESSAGE_BYTES;
    uint32_t keepalive_ms = opts->keepalive_ms ? opts->keepalive_ms : KEEPALIVE_MS;
    grpc_arg args[] = {
        rpc_arg_int(GRPC_ARG_MAX_RECEIVE_MESSAGE_LENGTH, (int)KVF_MIN(message_bytes, (size_t)INT32_MAX)),
        rpc_arg_int(GRPC_ARG_USE_LOCAL_SUBCHANNEL_POOL, 1), /* else equal channels share one connection */
        rpc_arg_int(GRPC_ARG_ENABLE_HTTP_PROXY, 0), rpc_arg_int(GRPC_ARG_ENABLE_RETRIES, 0),
        rpc_arg_int(
            GRPC_ARG_HTTP2_BDP_PROBE, 0), /* a reader that stops is felt by the writer within one small window */
        rpc_arg_int(GRPC_ARG_KEEPALIVE_TIME_MS, (int)KVF_MIN(keepalive_ms, (uint32_t)INT32_MAX)),
        rpc_arg_int(GRPC_ARG_KEEPALIVE_TIMEOUT_MS, 5000), rpc_arg_int(GRPC_ARG_KEEPALIVE_PERMIT_WITHOUT_CALLS, 1),
        rpc_arg_int(GRPC_ARG_HTTP2_MAX_PINGS_WITHOUT_DATA, 0), /* else idle keepalive stops after two pings */
        rpc_arg_int(GRPC_ARG_INITIAL_RECONNECT_BACKOFF_MS, 100),
        /* Despite its name, what one attempt may take: a busy machine needs more than the library's pause between two.
         */
        rpc_arg_int(GRPC_ARG_MIN_RECONNECT_BACKOFF_MS, 5000), rpc_arg_int(GRPC_ARG_MAX_RECONNECT_BACKOFF_MS, 2000),
        {.type = GRPC_ARG_STRING, .key = (char *)(uintptr_t)GRPC_SSL_TARGET_NAME_OVERRIDE_ARG}, /* the last: may go */
    };
    grpc_channel_args list = {.num_args = KVF_COUNT_OF(args), .args = args};
    const char *peer_name = rpc_channel_peer_name(opts->credentials, opts->address);
    args[KVF_COUNT_OF(args) - 1].value.string = (char *)(uintptr_t)peer_name;
    if (!peer_name) list.num_args--;
    grpc_channel_credentials *credentials = rpc_channel_credentials(opts->credentials, opts->address);
    channel->rt = rt;
    channel->stream_buffer_bytes_max =
        opts->stream_buffer_bytes_max ? opts->stream_buffer_bytes_max : STREAM_BUFFER_BYTES;
    channel->grpc = grpc_channel_create(opts->address, credentials, &list);
    grpc_channel_credentials_release(credentials);
    *out = channel;
    return KVF_OK;
}

void kvf_rpc_channel_destroy(kvf_rpc_channel *channel) {
    if (!channel) return;
    grpc_channel_destroy(channel->grpc);
    free(channel);
}

/* A blocking call of either kind. */
struct kvf_rpc_reader {
    grpc_completion_queue *cq;
    grpc_call *grpc;
    const ProtobufCMethodDescriptor *method;
    grpc_metadata_array headers, trailers;
    grpc_byte_buffer *sent, *received;
    grpc_status_code code;
    grpc_slice text;
    bool over, unread; /* unread: a message could not be parsed, or found no memory */
    bool heard; /* a message came */
    atomic_bool cancelled; /* by us */
    kvf_rpc_result result;
    char start_tag, status_tag, recv_tag; /* their addresses are the tags */
};

static void wait_for(kvf_rpc_reader *reader, void *tag) {
    grpc_completion_queue_pluck(reader->cq, tag, gpr_inf_future(GPR_CLOCK_MONOTONIC), NULL);
}

static void start_batch(kvf_rpc_reader *reader, const grpc_op *ops, size_t count, void *tag) {
    grpc_call_error error = grpc_call_start_batch(reader->grpc, ops, count, tag, NULL);
    KVF_ASSERT(error == GRPC_CALL_OK);
}

static void start_call(kvf_rpc_reader *reader, const ProtobufCMessage *request) {
    grpc_op ops[4];
    memset(ops, 0, sizeof ops);
    reader->sent = rpc_pack(request);
    ops[0].op = GRPC_OP_SEND_INITIAL_METADATA;
    ops[1].op = GRPC_OP_SEND_MESSAGE;
    ops[1].data.send_message.send_message = reader->sent;
    ops[2].op = GRPC_OP_SEND_CLOSE_FROM_CLIENT;
    ops[3].op = GRPC_OP_RECV_INITIAL_METADATA;
    ops[3].data.recv_initial_metadata.recv_initial_metadata = &reader->headers;
    start_batch(reader, ops, 4, &reader->start_tag);
    memset(ops, 0, sizeof ops);
    ops[0].op = GRPC_OP_RECV_STATUS_ON_CLIENT;
    ops[0].data.recv_status_on_client.trailing_metadata = &reader->trailers;
    ops[0].data.recv_status_on_client.status = &reader->code;
    ops[0].data.recv_status_on_client.status_details = &reader->text;
    start_batch(reader, ops, 1, &reader->status_tag);
}

kvf_status kvf_rpc_reader_open(kvf_rpc_channel *channel, const ProtobufCServiceDescriptor *service, const char *method,
    const ProtobufCMessage *request, uint64_t deadline_ms, kvf_rpc_reader **out) {
    grpc_slice path;
    const ProtobufCMethodDescriptor *found;
    if (!rpc_method_find(service, method, &path, &found)) return KVF_ERR_INVALID;
    kvf_rpc_reader *reader = calloc(1, sizeof *reader);
    if (!reader) {
        grpc_slice_unref(path);
        return KVF_ERR_NO_MEMORY;
    }
    reader->method = found;
    reader->cq = grpc_completion_queue_create_for_pluck(NULL);
    grpc_metadata_array_init(&reader->headers);
    grpc_metadata_array_init(&reader->trailers);
    reader->grpc = grpc_channel_create_call(
        channel->grpc, NULL, GRPC_PROPAGATE_DEFAULTS, reader->cq, path, NULL, rpc_deadline_after(deadline_ms), NULL);
    grpc_slice_unref(path);
    start_call(reader, request);
    *out = reader;
    return KVF_OK;
}

static const char unread_text[] = "the peer sent a message that cannot be parsed";

static void end_of_stream(kvf_rpc_reader *reader) {
    wait_for(reader, &reader->status_tag);
    wait_for(reader, &reader->start_tag);
    rpc_result_fill(&reader->result, reader->code, reader->text, &reader->trailers);
    rpc_result_crossed(&reader->result, atomic_load(&reader->cancelled), reader->heard);
    grpc_slice_unref(reader->text);
    if (reader->unread && reader->result.code == KVF_RPC_OK) { /* the peer's end was here before our cancel */
        reader->result.code = KVF_RPC_INTERNAL;
        strcpy(reader->result.message, unread_text);
    }
    reader->over = true;
}

kvf_status kvf_rpc_reader_next(kvf_rpc_reader *reader, ProtobufCMessage **message) {
    while (!reader->over) {
        grpc_op op;
        memset(&op, 0, sizeof op);
        op.op = GRPC_OP_RECV_MESSAGE;
        op.data.recv_message.recv_message = &reader->received;
        start_batch(reader, &op, 1, &reader->recv_tag);
        wait_for(reader, &reader->recv_tag);
        grpc_byte_buffer *bytes = reader->received;
        reader->received = NULL;
        if (!bytes) {
            end_of_stream(reader);
            break;
        }
        reader->heard = true;
        ProtobufCMessage *got = rpc_unpack_alone(reader->method->output, bytes);
        grpc_byte_buffer_destroy(bytes);
        if (got) {
            *message = got;
            return KVF_OK;
        }
        reader->unread = true;
        grpc_call_cancel_with_status(reader->grpc, GRPC_STATUS_INTERNAL, unread_text, NULL);
    }
    return KVF_ERR_GONE;
}

const kvf_rpc_result *kvf_rpc_reader_result(const kvf_rpc_reader *reader) { return &reader->result; }

void kvf_rpc_reader_cancel(kvf_rpc_reader *reader) {
    atomic_store(&reader->cancelled, true);
    grpc_call_cancel(reader->grpc, NULL);
}

void kvf_rpc_reader_close(kvf_rpc_reader *reader) {
    if (!reader) return;
    if (!reader->over) {
        kvf_rpc_reader_cancel(reader);
        end_of_stream(reader);
    }
    grpc_metadata_array_destroy(&reader->headers);
    grpc_metadata_array_destroy(&reader->trailers);
    grpc_byte_buffer_destroy(reader->sent);
    grpc_call_unref(reader->grpc);
    grpc_completion_queue_shutdown(reader->cq);
    grpc_completion_queue_destroy(reader->cq);
    free(reader);
}

kvf_status kvf_rpc_unary(kvf_rpc_channel *channel, const ProtobufCServiceDescriptor *service, const char *method,
    const ProtobufCMessage *request, uint64_t deadline_ms, ProtobufCMessage **response, kvf_rpc_result *result) {
    kvf_rpc_reader *reader;
    kvf_status status = kvf_rpc_reader_open(channel, service, method, request, deadline_ms, &reader);
    if (status != KVF_OK) {
        if (result) {
            memset(result, 0, sizeof *result);
            result->code = kvf_rpc_code_of(status);
        }
        return status;
    }
    ProtobufCMessage *first = NULL, *more = NULL;
    if (kvf_rpc_reader_next(reader, &first) == KVF_OK && kvf_rpc_reader_next(reader, &more) == KVF_OK)
        kvf_rpc_reader_cancel(reader); /* two answers to a unary call */
    if (!reader->over) end_of_stream(reader);
    kvf_rpc_result end = reader->result;
    kvf_rpc_reader_close(reader);
    if (end.code == KVF_RPC_OK && (!first || more)) {
        end.code = KVF_RPC_INTERNAL;
        strcpy(end.message, "the peer did not answer a unary call with one message");
    }
    kvf_rpc_message_free(more);
    if (result) *result = end;
    if (end.code == KVF_RPC_OK) {
        *response = first;
        return KVF_OK;
    }
    kvf_rpc_message_free(first);
    return kvf_rpc_status_of(end.code);
}
