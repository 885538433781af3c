/* Messages to byte buffers and back, and the arena that unpacked messages live in. */
#include "rpc_int.h"
#include <stdlib.h>

enum {
    ARENA_ALIGN = 16,
    ARENA_CHUNK_MIN = 2048,
    ARENA_CHUNK_MAX = 256 << 10,
    ARENA_PER_WIRE_BYTE = 48,
    ARENA_FREE = 64 << 10
};

struct rpc_chunk {
    rpc_chunk *next;
    size_t size_bytes;
};

static size_t chunk_head(void) { return (size_t)kvf_align_up(sizeof(rpc_chunk), ARENA_ALIGN); }

static void *arena_alloc(void *self, size_t size_bytes) {
    rpc_arena *arena = self;
    size_t need = (size_t)kvf_align_up(size_bytes ? size_bytes : 1, ARENA_ALIGN);
    if (need < size_bytes || need > arena->limit_bytes - arena->total_bytes) return NULL;
    if (!arena->chunks || need > arena->end - arena->at) {
        size_t grown = arena->chunks ? arena->chunks->size_bytes * 2 : ARENA_CHUNK_MIN;
        size_t size = KVF_MAX(need + chunk_head(), KVF_MIN(grown, (size_t)ARENA_CHUNK_MAX));
        rpc_chunk *chunk = malloc(size);
        if (!chunk) {
            arena->no_memory = true;
            return NULL;
        }
        chunk->next = arena->chunks;
        chunk->size_bytes = size;
        arena->chunks = chunk;
        arena->at = chunk_head();
        arena->end = size;
    }
    void *out = (char *)arena->chunks + arena->at;
    arena->at += need;
    arena->total_bytes += need;
    return out;
}

static void arena_free(void *self, void *memory) {
    (void)self;
    (void)memory; /* the whole arena is dropped at once */
}

void rpc_arena_init(rpc_arena *arena) {
    memset(arena, 0, sizeof *arena);
    arena->allocator.alloc = arena_alloc;
    arena->allocator.free = arena_free;
    arena->allocator.allocator_data = arena;
}

void rpc_arena_clear(rpc_arena *arena) {
    while (arena->chunks) {
        rpc_chunk *next = arena->chunks->next;
        free(arena->chunks);
        arena->chunks = next;
    }
    arena->at = arena->end = arena->total_bytes = 0;
    arena->no_memory = false;
}

static ProtobufCMessage *unpack(
    rpc_arena *arena, const ProtobufCMessageDescriptor *type, const uint8_t *data, size_t len_bytes) {
    if (!arena) return protobuf_c_message_unpack(type, NULL, len_bytes, data);
    arena->limit_bytes = arena->total_bytes + ARENA_FREE + len_bytes * ARENA_PER_WIRE_BYTE;
    return protobuf_c_message_unpack(type, &arena->allocator, len_bytes, data);
}

static ProtobufCMessage *unpack_buffer(
    rpc_arena *arena, const ProtobufCMessageDescriptor *type, grpc_byte_buffer *bytes) {
    if (!bytes) return NULL;
    if (bytes->type == GRPC_BB_RAW && bytes->data.raw.compression == GRPC_COMPRESS_NONE &&
        bytes->data.raw.slice_buffer.count == 1) { /* usual: read in place */
        grpc_slice *slice = &bytes->data.raw.slice_buffer.slices[0];
        return unpack(arena, type, GRPC_SLICE_START_PTR(*slice), GRPC_SLICE_LENGTH(*slice));
    }
    grpc_byte_buffer_reader reader;
    if (!grpc_byte_buffer_reader_init(&reader, bytes)) return NULL;
    grpc_slice all = grpc_byte_buffer_reader_readall(&reader);
    ProtobufCMessage *message = unpack(arena, type, GRPC_SLICE_START_PTR(all), GRPC_SLICE_LENGTH(all));
    grpc_slice_unref(all);
    grpc_byte_buffer_reader_destroy(&reader);
    return message;
}

ProtobufCMessage *rpc_unpack(rpc_arena *arena, const ProtobufCMessageDescriptor *type, grpc_byte_buffer *bytes) {
    return unpack_buffer(arena, type, bytes);
}

ProtobufCMessage *rpc_unpack_alone(const ProtobufCMessageDescriptor *type, grpc_byte_buffer *bytes) {
    return unpack_buffer(NULL, type, bytes);
}

void kvf_rpc_message_free(ProtobufCMessage *message) {
    if (message) protobuf_c_message_free_unpacked(message, NULL);
}

static grpc_byte_buffer *wrap(grpc_slice slice) {
    grpc_byte_buffer *bytes = grpc_raw_byte_buffer_create(&slice, 1);
    grpc_slice_unref(slice);
    return bytes;
}

grpc_byte_buffer *rpc_pack(const ProtobufCMessage *message) {
    grpc_slice slice = grpc_slice_malloc(protobuf_c_message_get_packed_size(message));
    protobuf_c_message_pack(message, GRPC_SLICE_START_PTR(slice));
    return wrap(slice);
}

grpc_byte_buffer *rpc_pack_bytes(kvf_span bytes) {
    return wrap(grpc_slice_from_copied_buffer(bytes.data, bytes.len_bytes));
}
