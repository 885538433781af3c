/* The sending half of a call; states and rules in rpc_int.h. */
#include "rpc_int.h"
#include <stdlib.h>

struct rpc_out {
    rpc_out *next;
    grpc_byte_buffer *bytes;
    size_t len_bytes;
};

static void on_sent(rpc_tag *tag, bool ok);
static void on_wake(rpc_tag *tag, bool ok);

void rpc_flow_init(rpc_flow *flow, const rpc_flow_ops *ops, rpc_loop *loop, size_t limit_bytes) {
    memset(flow, 0, sizeof *flow);
    pthread_mutex_init(&flow->lock, NULL);
    flow->ops = ops;
    flow->loop = loop;
    flow->limit_bytes = limit_bytes;
    flow->send_tag.fn = on_sent;
    flow->wake_tag.fn = on_wake;
}

void rpc_flow_drop(rpc_flow *flow) {
    while (flow->head) {
        rpc_out *out = flow->head;
        flow->head = out->next;
        grpc_byte_buffer_destroy(out->bytes);
        free(out);
    }
    flow->tail = NULL;
    flow->queued_bytes = 0;
}

void rpc_flow_fini(rpc_flow *flow) {
    KVF_ASSERT(!flow->grpc && flow->outstanding == 0);
    rpc_flow_drop(flow);
    pthread_mutex_destroy(&flow->lock);
}

void rpc_flow_start(rpc_flow *flow, const grpc_op *ops, size_t count, rpc_tag *tag) {
    KVF_ASSERT(flow->grpc);
    flow->outstanding++;
    RPC_TAG_GIVE(tag);
    grpc_call_error error = grpc_call_start_batch(flow->grpc, ops, count, tag, NULL);
    KVF_ASSERT(error == GRPC_CALL_OK);
}

/* On the loop, under lock. Starts the next send if there is something to send and none is under way. */
static void pump(rpc_flow *flow) {
    if (!flow->grpc || flow->closed || flow->send_busy || flow->end_sent) return;
    grpc_op ops[4];
    size_t count = 0;
    memset(ops, 0, sizeof ops);
    rpc_out *out = flow->head;
    bool end_now = flow->ended && (!out || !out->next);
    if (!out && !end_now && (!flow->headers_wanted || flow->headers_sent)) return;
    /* Headers in one batch with a hinted message are held back with it, and the batch ends only when they are written:
     * such a batch waits for the next keepalive ping. */
    bool may_hint = flow->headers_sent;
    if (!flow->headers_sent) {
        ops[count++].op = GRPC_OP_SEND_INITIAL_METADATA;
        flow->headers_sent = true;
    }
    if (out) {
        flow->head = out->next;
        if (!flow->head) flow->tail = NULL;
        flow->queued_bytes -= out->len_bytes;
        flow->sending_bytes = out->len_bytes;
        flow->sending = out->bytes;
        ops[count].op = GRPC_OP_SEND_MESSAGE;
        ops[count].data.send_message.send_message = out->bytes;
        if (flow->head && may_hint) ops[count].flags = GRPC_WRITE_BUFFER_HINT;
        count++;
        free(out);
    }
    if (end_now) {
        count += flow->ops->end_ops(flow, ops + count);
        flow->end_sent = true;
    }
    flow->send_busy = true;
    rpc_flow_start(flow, ops, count, &flow->send_tag);
}

static void on_sent(rpc_tag *tag, bool ok) {
    rpc_flow *flow = RPC_OUTER(tag, rpc_flow, send_tag);
    pthread_mutex_lock(&flow->lock);
    if (flow->sending) grpc_byte_buffer_destroy(flow->sending);
    flow->sending = NULL;
    flow->sending_bytes = 0;
    flow->send_busy = false;
    if (!ok)
        rpc_flow_drop(flow); /* the stream is broken; its close is on the way */
    else
        pump(flow);
    bool writable = ok && flow->refused && !flow->ended && !flow->closed &&
                    flow->queued_bytes + flow->sending_bytes <= flow->limit_bytes / 2;
    if (writable) flow->refused = false;
    pthread_mutex_unlock(&flow->lock);
    if (writable) flow->ops->writable(flow);
    rpc_flow_done(flow);
}

static void on_wake(rpc_tag *tag, bool ok) {
    (void)ok;
    rpc_flow *flow = RPC_OUTER(tag, rpc_flow, wake_tag);
    pthread_mutex_lock(&flow->lock);
    flow->wake_busy = false;
    pump(flow);
    pthread_mutex_unlock(&flow->lock);
    rpc_flow_done(flow);
}

void rpc_flow_kick(rpc_flow *flow) {
    if (!flow->grpc || flow->closed || flow->send_busy || flow->wake_busy) return; /* who is under way pumps anyway */
    if (rpc_loop_is_current(flow->loop)) {
        pump(flow);
        return;
    }
    flow->wake_busy = true;
    rpc_flow_start(flow, NULL, 0, &flow->wake_tag);
}

kvf_status rpc_flow_append(rpc_flow *flow, grpc_byte_buffer *bytes) {
    rpc_out *out = malloc(sizeof *out);
    if (!out) return KVF_ERR_NO_MEMORY;
    out->next = NULL;
    out->bytes = bytes;
    out->len_bytes = grpc_byte_buffer_length(bytes);
    if (flow->tail)
        flow->tail->next = out;
    else
        flow->head = out;
    flow->tail = out;
    flow->queued_bytes += out->len_bytes;
    return KVF_OK;
}

kvf_status rpc_flow_push(rpc_flow *flow, grpc_byte_buffer *bytes, bool bounded) {
    kvf_status status = KVF_OK;
    size_t len_bytes = grpc_byte_buffer_length(bytes);
    pthread_mutex_lock(&flow->lock);
    size_t waiting = flow->queued_bytes + flow->sending_bytes;
    if (flow->ended || flow->closed || !flow->grpc) {
        status = KVF_ERR_GONE;
    } else if (bounded && waiting > 0 && waiting + len_bytes > flow->limit_bytes) {
        flow->refused = true;
        status = KVF_AGAIN;
    } else {
        status = rpc_flow_append(flow, bytes);
        if (status == KVF_OK) {
            bytes = NULL;
            rpc_flow_kick(flow);
        }
    }
    pthread_mutex_unlock(&flow->lock);
    if (bytes) grpc_byte_buffer_destroy(bytes);
    return status;
}

void rpc_flow_close(rpc_flow *flow) {
    flow->closed = true;
    rpc_flow_drop(flow);
}

void rpc_flow_done(rpc_flow *flow) {
    grpc_call *over = NULL;
    pthread_mutex_lock(&flow->lock);
    KVF_ASSERT(flow->outstanding > 0);
    flow->outstanding--;
    if (flow->outstanding == 0 && flow->closed) {
        over = flow->grpc;
        flow->grpc = NULL;
    }
    pthread_mutex_unlock(&flow->lock);
    if (!over) return;
    grpc_call_unref(over);
    flow->ops->finish(flow);
}
