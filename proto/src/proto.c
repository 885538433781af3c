#include "kvf/proto.h"

extern const uint8_t kvf_proto_public_begin[], kvf_proto_public_end[];
extern const uint8_t kvf_proto_internal_begin[], kvf_proto_internal_end[];

static kvf_span between(const uint8_t *begin, const uint8_t *end) {
    return (kvf_span){.data = begin, .len_bytes = (size_t)((uintptr_t)end - (uintptr_t)begin)};
}

kvf_span kvf_proto_public_set(void) { return between(kvf_proto_public_begin, kvf_proto_public_end); }

kvf_span kvf_proto_internal_set(void) { return between(kvf_proto_internal_begin, kvf_proto_internal_end); }

bool kvf_proto_text_copy(ProtobufCBinaryData bytes, char *out, size_t out_bytes) {
    KVF_ASSERT(out_bytes > 0);
    out[0] = 0;
    if (bytes.len >= out_bytes) return false;
    if (bytes.len == 0) return true;
    if (memchr(bytes.data, 0, bytes.len)) return false;
    memcpy(out, bytes.data, bytes.len);
    out[bytes.len] = 0;
    return true;
}
