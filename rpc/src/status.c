/* Codes, texts, and the details of an error: google.rpc.Status packed into a trailer and read back. */
#include "rpc_int.h"
#include "google/rpc/error_details.pb-c.h"
#include "google/rpc/status.pb-c.h"
#include "kvf/utf8.h"
#include <stdio.h>
#include <stdlib.h>

static const char type_error_info[] = "type.googleapis.com/google.rpc.ErrorInfo";
static const char type_bad_request[] = "type.googleapis.com/google.rpc.BadRequest";
static const char type_retry_info[] = "type.googleapis.com/google.rpc.RetryInfo";

const char *kvf_rpc_code_name(kvf_rpc_code code) {
    static const char *const names[] = {"OK", "CANCELLED", "UNKNOWN", "INVALID_ARGUMENT", "DEADLINE_EXCEEDED",
        "NOT_FOUND", "ALREADY_EXISTS", "PERMISSION_DENIED", "RESOURCE_EXHAUSTED", "FAILED_PRECONDITION", "ABORTED",
        "OUT_OF_RANGE", "UNIMPLEMENTED", "INTERNAL", "UNAVAILABLE", "DATA_LOSS", "UNAUTHENTICATED"};
    return (unsigned)code < KVF_COUNT_OF(names) ? names[code] : "?";
}

kvf_rpc_code kvf_rpc_code_of(kvf_status status) {
    switch (status) {
    case KVF_OK: return KVF_RPC_OK;
    case KVF_AGAIN:
    case KVF_ERR_BUSY:
    case KVF_ERR_PEER_LOST: return KVF_RPC_UNAVAILABLE;
    case KVF_ERR_INVALID:
    case KVF_ERR_FORMAT: return KVF_RPC_INVALID_ARGUMENT;
    case KVF_ERR_NOT_FOUND: return KVF_RPC_NOT_FOUND;
    case KVF_ERR_UNSUPPORTED: return KVF_RPC_UNIMPLEMENTED;
    case KVF_ERR_NO_ROOM:
    case KVF_ERR_LIMIT:
    case KVF_ERR_NO_MEMORY: return KVF_RPC_RESOURCE_EXHAUSTED;
    case KVF_ERR_STALE:
    case KVF_ERR_GONE: return KVF_RPC_ABORTED;
    case KVF_ERR_CANCELLED: return KVF_RPC_CANCELLED;
    case KVF_ERR_DEADLINE: return KVF_RPC_DEADLINE_EXCEEDED;
    case KVF_ERR_CORRUPT: return KVF_RPC_DATA_LOSS;
    case KVF_ERR_MISMATCH: return KVF_RPC_FAILED_PRECONDITION;
    case KVF_ERR_AUTH: return KVF_RPC_UNAUTHENTICATED;
    case KVF_ERR_IO:
    case KVF_ERR_INTERNAL: break;
    }
    return KVF_RPC_INTERNAL;
}

kvf_status kvf_rpc_status_of(kvf_rpc_code code) {
    switch (code) {
    case KVF_RPC_OK: return KVF_OK;
    case KVF_RPC_CANCELLED: return KVF_ERR_CANCELLED;
    case KVF_RPC_INVALID_ARGUMENT:
    case KVF_RPC_OUT_OF_RANGE: return KVF_ERR_INVALID;
    case KVF_RPC_DEADLINE_EXCEEDED: return KVF_ERR_DEADLINE;
    case KVF_RPC_NOT_FOUND: return KVF_ERR_NOT_FOUND;
    case KVF_RPC_ALREADY_EXISTS: return KVF_ERR_BUSY;
    case KVF_RPC_PERMISSION_DENIED:
    case KVF_RPC_UNAUTHENTICATED: return KVF_ERR_AUTH;
    case KVF_RPC_RESOURCE_EXHAUSTED: return KVF_ERR_LIMIT;
    case KVF_RPC_FAILED_PRECONDITION: return KVF_ERR_MISMATCH;
    case KVF_RPC_ABORTED: return KVF_ERR_GONE;
    case KVF_RPC_UNIMPLEMENTED: return KVF_ERR_UNSUPPORTED;
    case KVF_RPC_UNAVAILABLE: return KVF_ERR_PEER_LOST;
    case KVF_RPC_DATA_LOSS: return KVF_ERR_CORRUPT;
    case KVF_RPC_UNKNOWN:
    case KVF_RPC_INTERNAL: break;
    }
    return KVF_ERR_INTERNAL;
}

void rpc_text_clean(char *text) {
    size_t len_bytes = strlen(text);
    for (size_t i = 0; i < len_bytes;) {
        kvf_utf8_step step = kvf_utf8_step_at((const uint8_t *)text + i, len_bytes - i);
        if (step.kind == KVF_UTF8_WHOLE) {
            i += step.len_bytes;
        } else {
            text[i++] = '?';
        }
    }
}

/* Cut at a whole character. */
static void copy_text(char *out, size_t out_bytes, const void *text, size_t len_bytes) {
    size_t n = KVF_MIN(len_bytes, out_bytes - 1);
    if (n < len_bytes)
        while (n > 0 && (((const uint8_t *)text)[n] & 0xc0) == 0x80) n--;
    if (n) memcpy(out, text, n);
    out[n] = 0;
}

/* ---- Packing
 * --------------------------------------------------------------------------------------------------------- */

static void add_detail(
    Google__Rpc__Status *status, Google__Protobuf__Any *any, const char *type, const ProtobufCMessage *m) {
    uint8_t *data = malloc(protobuf_c_message_get_packed_size(m) + 1);
    if (!data) return; /* code and text say it without */
    google__protobuf__any__init(any);
    any->type_url = (char *)(uintptr_t)type;
    any->value.len = protobuf_c_message_pack(m, data);
    any->value.data = data;
    status->details[status->n_details++] = any;
}

static void add_error_info(Google__Rpc__Status *status, Google__Protobuf__Any *any, const kvf_rpc_details *details) {
    enum { PAIRS_MAX = 16 };
    Google__Rpc__ErrorInfo info = GOOGLE__RPC__ERROR_INFO__INIT;
    Google__Rpc__ErrorInfo__MetadataEntry entries[PAIRS_MAX], *list[PAIRS_MAX];
    size_t count = KVF_MIN(details->metadata_count, (size_t)PAIRS_MAX);
    info.reason = (char *)(uintptr_t)details->reason;
    info.domain = (char *)(uintptr_t)(details->domain ? details->domain : "kvferry");
    for (size_t i = 0; i < count; i++) {
        google__rpc__error_info__metadata_entry__init(&entries[i]);
        entries[i].key = (char *)(uintptr_t)details->metadata[i].key;
        entries[i].value = (char *)(uintptr_t)details->metadata[i].value;
        list[i] = &entries[i];
    }
    info.n_metadata = count;
    info.metadata = list;
    add_detail(status, any, type_error_info, &info.base);
}

static void add_bad_request(
    Google__Rpc__Status *status, Google__Protobuf__Any *any, const kvf_rpc_details *details, const char *message) {
    Google__Rpc__BadRequest bad = GOOGLE__RPC__BAD_REQUEST__INIT;
    Google__Rpc__BadRequest__FieldViolation field = GOOGLE__RPC__BAD_REQUEST__FIELD_VIOLATION__INIT, *list = &field;
    field.field = (char *)(uintptr_t)details->field;
    field.description = (char *)(uintptr_t)(details->field_text ? details->field_text : message);
    bad.n_field_violations = 1;
    bad.field_violations = &list;
    add_detail(status, any, type_bad_request, &bad.base);
}

static void add_retry_info(Google__Rpc__Status *status, Google__Protobuf__Any *any, uint64_t ms) {
    Google__Rpc__RetryInfo retry = GOOGLE__RPC__RETRY_INFO__INIT;
    Google__Protobuf__Duration delay = GOOGLE__PROTOBUF__DURATION__INIT;
    delay.seconds = (int64_t)(ms / 1000);
    delay.nanos = (int32_t)(ms % 1000 * KVF_NS_PER_MS);
    retry.retry_delay = &delay;
    add_detail(status, any, type_retry_info, &retry.base);
}

grpc_slice rpc_details_pack(kvf_rpc_code code, const char *message, const kvf_rpc_details *details) {
    if (!details || (!details->reason && !details->field && !details->retry_after_ms)) return grpc_empty_slice();
    Google__Protobuf__Any any[3], *list[3];
    Google__Rpc__Status status = GOOGLE__RPC__STATUS__INIT;
    status.code = (int32_t)code;
    status.message = (char *)(uintptr_t)message;
    status.details = list;
    if (details->reason) add_error_info(&status, &any[status.n_details], details);
    if (details->field) add_bad_request(&status, &any[status.n_details], details, message);
    if (details->retry_after_ms) add_retry_info(&status, &any[status.n_details], details->retry_after_ms);
    grpc_slice out = grpc_slice_malloc(google__rpc__status__get_packed_size(&status));
    google__rpc__status__pack(&status, GRPC_SLICE_START_PTR(out));
    for (size_t i = 0; i < status.n_details; i++) free(any[i].value.data);
    return out;
}

/* ---- Reading
 * --------------------------------------------------------------------------------------------------------- */

static void read_error_info(kvf_rpc_result *result, const Google__Protobuf__Any *any) {
    Google__Rpc__ErrorInfo *info = google__rpc__error_info__unpack(NULL, any->value.len, any->value.data);
    if (!info) return;
    copy_text(result->reason, sizeof result->reason, info->reason, strlen(info->reason));
    copy_text(result->domain, sizeof result->domain, info->domain, strlen(info->domain));
    for (size_t i = 0; i < info->n_metadata && result->metadata_count < KVF_COUNT_OF(result->metadata); i++) {
        const char *key = info->metadata[i]->key, *value = info->metadata[i]->value;
        uint32_t at = result->metadata_count++;
        copy_text(result->metadata[at].key, sizeof result->metadata[at].key, key, strlen(key));
        copy_text(result->metadata[at].value, sizeof result->metadata[at].value, value, strlen(value));
    }
    google__rpc__error_info__free_unpacked(info, NULL);
}

static void read_bad_request(kvf_rpc_result *result, const Google__Protobuf__Any *any) {
    Google__Rpc__BadRequest *bad = google__rpc__bad_request__unpack(NULL, any->value.len, any->value.data);
    if (!bad) return;
    if (bad->n_field_violations > 0) {
        const Google__Rpc__BadRequest__FieldViolation *first = bad->field_violations[0];
        copy_text(result->field, sizeof result->field, first->field, strlen(first->field));
        copy_text(result->field_text, sizeof result->field_text, first->description, strlen(first->description));
    }
    google__rpc__bad_request__free_unpacked(bad, NULL);
}

static void read_retry_info(kvf_rpc_result *result, const Google__Protobuf__Any *any) {
    Google__Rpc__RetryInfo *retry = google__rpc__retry_info__unpack(NULL, any->value.len, any->value.data);
    if (!retry) return;
    const Google__Protobuf__Duration *delay = retry->retry_delay;
    if (delay && delay->seconds >= 0 && delay->seconds < INT32_MAX && delay->nanos >= 0)
        result->retry_after_ms = (uint64_t)delay->seconds * 1000 + (uint64_t)delay->nanos / KVF_NS_PER_MS;
    google__rpc__retry_info__free_unpacked(retry, NULL);
}

/* The library tells why it could not connect only in words. */
static bool nothing_listens(const kvf_rpc_result *result) {
    return result->code == KVF_RPC_UNAVAILABLE && strncmp(result->message, "failed to connect", 17) == 0 &&
           (strstr(result->message, "Connection refused") || strstr(result->message, "No such file or directory"));
}

void rpc_result_fill(
    kvf_rpc_result *result, grpc_status_code code, grpc_slice message, const grpc_metadata_array *trailers) {
    memset(result, 0, sizeof *result);
    result->code = (kvf_rpc_code)code;
    copy_text(result->message, sizeof result->message, GRPC_SLICE_START_PTR(message), GRPC_SLICE_LENGTH(message));
    result->refused = nothing_listens(result);
    for (size_t i = 0; i < trailers->count; i++) {
        if (grpc_slice_str_cmp(trailers->metadata[i].key, RPC_DETAILS_KEY) != 0) continue;
        grpc_slice bytes = trailers->metadata[i].value;
        Google__Rpc__Status *status =
            google__rpc__status__unpack(NULL, GRPC_SLICE_LENGTH(bytes), GRPC_SLICE_START_PTR(bytes));
        for (size_t k = 0; status && k < status->n_details; k++) {
            const Google__Protobuf__Any *any = status->details[k];
            if (strcmp(any->type_url, type_error_info) == 0) read_error_info(result, any);
            if (strcmp(any->type_url, type_bad_request) == 0) read_bad_request(result, any);
            if (strcmp(any->type_url, type_retry_info) == 0) read_retry_info(result, any);
        }
        if (status) google__rpc__status__free_unpacked(status, NULL);
        break;
    }
}

void rpc_result_crossed(kvf_rpc_result *result, bool cancelled_here, bool heard) {
    if (result->code != KVF_RPC_CANCELLED || cancelled_here || heard || result->reason[0] || result->field[0]) return;
    result->code = KVF_RPC_UNAVAILABLE;
    snprintf(result->message, sizeof result->message, "the server went away before it took the call");
}
