/* Bytes from a peer: the first one says which direction. What is taken must come back unchanged from a second trip. */
#include "kvf/wire.h"
#include <stdlib.h>

#define ARENA_BYTES (4u << 20)

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static void trip(kvf_span bytes, bool router, kvf_arena *arena, kvf_arena *other) {
    kvf_rmsg r;
    kvf_nmsg n;
    kvf_error err;
    kvf_span first, second;
    arena->used_bytes = other->used_bytes = 0;
    kvf_status got = router ? kvf_wire_rmsg_parse(bytes, arena, &r, &err) : kvf_wire_nmsg_parse(bytes, arena, &n, &err);
    if (got != KVF_OK) {
        KVF_ASSERT(err.message[0]);
        return;
    }
    got = router ? kvf_wire_rmsg_pack(&r, other, &first) : kvf_wire_nmsg_pack(&n, other, &first);
    KVF_ASSERT(got == KVF_OK);
    arena->used_bytes = 0; /* `first` borrows nothing */
    got = router ? kvf_wire_rmsg_parse(first, arena, &r, &err) : kvf_wire_nmsg_parse(first, arena, &n, &err);
    KVF_ASSERT(got == KVF_OK);
    got = router ? kvf_wire_rmsg_pack(&r, other, &second) : kvf_wire_nmsg_pack(&n, other, &second);
    KVF_ASSERT(got == KVF_OK && first.len_bytes == second.len_bytes);
    KVF_ASSERT(memcmp(first.data, second.data, first.len_bytes) == 0);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    static uint8_t *memory;
    if (!memory) memory = aligned_alloc(64, 2 * (size_t)ARENA_BYTES);
    if (!memory || size == 0 || size > ARENA_BYTES / 256) return 0;
    kvf_arena arena = {.base = memory, .size_bytes = ARENA_BYTES};
    kvf_arena other = {.base = memory + ARENA_BYTES, .size_bytes = ARENA_BYTES};
    trip((kvf_span){data + 1, size - 1}, data[0] == 'r', &arena, &other);
    return 0;
}
