/* kvf/proto.h - helpers around the generated messages ("kvferry/v1/kvferry.pb-c.h" and the like) and the descriptor
 * sets that reflection serves. Which C types the generator makes of the published file: proto/README.md. */
#ifndef KVF_PROTO_H
#define KVF_PROTO_H
#include "kvf/base.h"
#include <protobuf-c/protobuf-c.h>
#ifdef __cplusplus
extern "C" {
#endif

/* Serialised FileDescriptorSets, imports included; static. Both hold health and reflection. */
kvf_span kvf_proto_public_set(void); /* kvferry.v1 */
kvf_span kvf_proto_internal_set(void); /* kvferry.internal.v1, for the node control listener */

/* Text as the generated copy holds it. Borrowed: the message points at the caller's bytes. */
static inline ProtobufCBinaryData kvf_proto_bytes(const void *data, size_t len_bytes) {
    ProtobufCBinaryData out;
    out.len = len_bytes;
    out.data = (uint8_t *)(uintptr_t)data;
    return out;
}
static inline ProtobufCBinaryData kvf_proto_text(const char *text) {
    return kvf_proto_bytes(text, text ? strlen(text) : 0);
}
static inline kvf_span kvf_proto_span(ProtobufCBinaryData bytes) {
    kvf_span out;
    out.data = bytes.data;
    out.len_bytes = bytes.len;
    return out;
}
static inline bool kvf_proto_text_equal(ProtobufCBinaryData bytes, const char *text) {
    return bytes.len == strlen(text) && (bytes.len == 0 || memcmp(bytes.data, text, bytes.len) == 0);
}
/* Copies as a C string; false (and out empty) when it does not fit or holds a NUL byte: such a text is no name of ours.
 */
bool kvf_proto_text_copy(ProtobufCBinaryData bytes, char *out, size_t out_bytes);
#ifdef __cplusplus
}
#endif
#endif
