#include "fault.h"
#include <stdarg.h>
#include <stdio.h>

bool front_fault_set(fault *f, kvf_rpc_code code, const char *reason, const char *field, const char *fmt, ...) {
    *f = (fault){.code = code};
    snprintf(f->reason, sizeof f->reason, "%s", reason);
    snprintf(f->field, sizeof f->field, "%s", field ? field : "");
    va_list args;
    va_start(args, fmt);
    vsnprintf(f->text, sizeof f->text, fmt, args);
    va_end(args);
    return false;
}

static const char *reason_of(const kvf_refusal *why) {
    switch (why->status) {
    case KVF_AGAIN: return "QUEUE_FULL";
    case KVF_ERR_PEER_LOST: return "NODE_UNAVAILABLE";
    case KVF_ERR_CANCELLED: return "CANCELLED";
    case KVF_ERR_DEADLINE: return "DEADLINE_EXCEEDED";
    case KVF_ERR_LIMIT: return "LIMIT_REACHED";
    case KVF_ERR_NO_ROOM: return "DOES_NOT_FIT";
    case KVF_ERR_INVALID: return "INVALID_FIELD";
    default: return "FAILED";
    }
}

void front_fault_of_refusal(fault *f, const kvf_refusal *why) {
    kvf_rpc_code code;
    switch (why->status) {
    case KVF_AGAIN: code = KVF_RPC_RESOURCE_EXHAUSTED; break;
    case KVF_ERR_INVALID:
    case KVF_ERR_NO_ROOM: code = KVF_RPC_INVALID_ARGUMENT; break; /* can never fit: waiting does not help */
    case KVF_ERR_CANCELLED:
    case KVF_ERR_DEADLINE:
    case KVF_ERR_LIMIT:
    case KVF_ERR_NO_MEMORY:
    case KVF_ERR_PEER_LOST: code = kvf_rpc_code_of(why->status); break;
    default: code = KVF_RPC_INTERNAL; /* whatever happened between nodes is no fault of the client */
    }
    front_fault_set(f, code, reason_of(why), code == KVF_RPC_INVALID_ARGUMENT ? why->field : NULL, "%s",
        why->text[0] ? why->text : kvf_status_text(why->status));
    f->retry_after_ms = kvf_div_up(why->retry_after_ns, KVF_NS_PER_MS);
}

void front_fault_draining(fault *f, uint64_t retry_after_ms) {
    front_fault_set(f, KVF_RPC_UNAVAILABLE, "DRAINING", NULL, "this router is shutting down");
    f->retry_after_ms = retry_after_ms;
}

void front_fault_send(kvf_rpc_call *call, const fault *f) {
    kvf_rpc_details details = {
        .reason = f->reason, .field = f->field[0] ? f->field : NULL, .retry_after_ms = f->retry_after_ms};
    kvf_rpc_fail(call, f->code, &details, "%s", f->text);
}
