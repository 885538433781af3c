/* Bytes from the wire as the rpc module reads them: requests into a bounded arena, error details of a peer.
 * First byte: which reader. */
#include "rpc_int.h"
#include "grpc/reflection/v1/reflection.pb-c.h"
#include "kvferry/v1/kvferry.pb-c.h"
#include "kvf/utf8.h"
#include <stdlib.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static void read_request(const ProtobufCMessageDescriptor *type, const uint8_t *data, size_t size) {
    rpc_arena arena;
    rpc_arena_init(&arena);
    grpc_byte_buffer *bytes = rpc_pack_bytes((kvf_span){data, size});
    ProtobufCMessage *message = rpc_unpack(&arena, type, bytes);
    if (message) grpc_byte_buffer_destroy(rpc_pack(message));
    KVF_ASSERT(arena.total_bytes <= (64 << 10) + 48 * size);
    grpc_byte_buffer_destroy(bytes);
    rpc_arena_clear(&arena);
}

static void read_details(const uint8_t *data, size_t size) {
    grpc_metadata entry;
    memset(&entry, 0, sizeof entry);
    entry.key = grpc_slice_from_static_string(RPC_DETAILS_KEY);
    entry.value = grpc_slice_from_copied_buffer((const char *)data, size);
    grpc_metadata_array trailers = {.count = 1, .capacity = 1, .metadata = &entry};
    kvf_rpc_result result;
    rpc_result_fill(&result, GRPC_STATUS_INTERNAL, entry.value, &trailers);
    KVF_ASSERT(memchr(result.message, 0, sizeof result.message) && memchr(result.reason, 0, sizeof result.reason));
    KVF_ASSERT(result.metadata_count <= KVF_COUNT_OF(result.metadata));
    grpc_slice_unref(entry.value);
}

static void clean_text(const uint8_t *data, size_t size) {
    char *text = malloc(size + 1);
    KVF_ASSERT(text);
    memcpy(text, data, size);
    text[size] = 0;
    rpc_text_clean(text);
    KVF_ASSERT(kvf_utf8_valid(text, strlen(text), NULL));
    free(text);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    if (size < 1) return 0;
    switch (data[0] % 4) {
    case 0: read_details(data + 1, size - 1); break;
    case 1: read_request(&kvferry__v1__generate_request__descriptor, data + 1, size - 1); break;
    case 2: read_request(&grpc__reflection__v1__server_reflection_request__descriptor, data + 1, size - 1); break;
    default: clean_text(data + 1, size - 1); break;
    }
    return 0;
}
