/* bytes.h - a ring of bytes with a power-of-two size: private staging of sockets and of the loopback, and the copying
 * half of the shared-memory ring. head and tail count bytes since the ring was last empty; head - tail <= size always.
 * An empty ring begins again at its first byte, so that little traffic touches little of it. */
#ifndef KVF_XFER_BYTES_H
#define KVF_XFER_BYTES_H
#include "kvf/base.h"
#include <stdlib.h>
#include <sys/uio.h>

typedef struct {
    uint8_t *data;
    size_t size_bytes;
    uint64_t head, tail;
} bytes_ring;

static inline bool bytes_init(bytes_ring *r, size_t size_bytes) {
    KVF_ASSERT(size_bytes && (size_bytes & (size_bytes - 1)) == 0);
    *r = (bytes_ring){.data = malloc(size_bytes), .size_bytes = size_bytes};
    return r->data != NULL;
}
static inline void bytes_fini(bytes_ring *r) {
    free(r->data);
    *r = (bytes_ring){0};
}
static inline size_t bytes_used(const bytes_ring *r) { return (size_t)(r->head - r->tail); }
static inline size_t bytes_room(const bytes_ring *r) { return r->size_bytes - bytes_used(r); }

/* The copying alone: positions are masked, so that no index can leave the memory. */
static inline void bytes_copy_in(uint8_t *data, size_t size_bytes, uint64_t at, const void *from, size_t len_bytes) {
    size_t offset = (size_t)at & (size_bytes - 1), first = KVF_MIN(len_bytes, size_bytes - offset);
    KVF_ASSERT(len_bytes <= size_bytes);
    memcpy(data + offset, from, first);
    memcpy(data, (const uint8_t *)from + first, len_bytes - first);
}
static inline void bytes_copy_out(const uint8_t *data, size_t size_bytes, uint64_t at, void *to, size_t len_bytes) {
    size_t offset = (size_t)at & (size_bytes - 1), first = KVF_MIN(len_bytes, size_bytes - offset);
    KVF_ASSERT(len_bytes <= size_bytes);
    memcpy(to, data + offset, first);
    memcpy((uint8_t *)to + first, data, len_bytes - first);
}

static inline void bytes_put(bytes_ring *r, const void *from, size_t len_bytes) {
    KVF_ASSERT(len_bytes <= bytes_room(r));
    bytes_copy_in(r->data, r->size_bytes, r->head, from, len_bytes);
    r->head += len_bytes;
}
static inline void bytes_peek(const bytes_ring *r, size_t at, void *to, size_t len_bytes) {
    KVF_ASSERT(at + len_bytes <= bytes_used(r));
    bytes_copy_out(r->data, r->size_bytes, r->tail + at, to, len_bytes);
}
static inline void bytes_consume(bytes_ring *r, size_t len_bytes) {
    KVF_ASSERT(len_bytes <= bytes_used(r));
    r->tail += len_bytes;
    if (r->tail == r->head) r->head = r->tail = 0;
}
/* The free (or used) part as one or two pieces for a system call. */
static inline int bytes_pieces(const bytes_ring *r, bool used, struct iovec v[2]) {
    size_t len = used ? bytes_used(r) : bytes_room(r);
    size_t offset = (size_t)(used ? r->tail : r->head) & (r->size_bytes - 1),
           first = KVF_MIN(len, r->size_bytes - offset);
    v[0] = (struct iovec){r->data + offset, first};
    v[1] = (struct iovec){r->data, len - first};
    return len - first ? 2 : 1;
}
#endif
