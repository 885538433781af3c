/* shm_ring.c - see shm_ring.h. Ordering: a counter is published with release after the bytes are there (or have been
 * copied out) and read with acquire. want_room and consume each write one word and then read the other's: sequentially
 * consistent, or the bell could be missed by both. */
#include "shm_ring.h"
#include "bytes.h"
#include <fcntl.h>
#include <stdatomic.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#define MAGIC 0x5246564bu /* "KVFR" */
#define VERSION 1u
#define HEAD_BYTES 4096u
#define SIZE_MAX_BYTES ((uint64_t)1 << 32)
#define SEALS (F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL)

static _Atomic uint64_t *ring_head(const shm_ring *r) { return (_Atomic uint64_t *)(void *)(r->map + 64); }
static _Atomic uint64_t *ring_tail(const shm_ring *r) { return (_Atomic uint64_t *)(void *)(r->map + 128); }
static _Atomic uint64_t *ring_wanted(const shm_ring *r) { return (_Atomic uint64_t *)(void *)(r->map + 192); }

static kvf_status ring_map(shm_ring *r, int fd, size_t size_bytes) {
    void *map = mmap(NULL, HEAD_BYTES + size_bytes, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    if (map == MAP_FAILED) return KVF_ERR_NO_MEMORY;
    *r = (shm_ring){.map = map, .map_bytes = HEAD_BYTES + size_bytes, .size_bytes = size_bytes};
    return KVF_OK;
}

kvf_status shm_ring_create(shm_ring *r, size_t size_bytes, int *fd) {
    KVF_ASSERT(size_bytes && (size_bytes & (size_bytes - 1)) == 0 && size_bytes <= SIZE_MAX_BYTES);
    /* A memfd does not live in /dev/shm, so that a small mount there (64 MB in containers) is no limit. Pages are
     * claimed now: too little memory is an error here instead of a fault in the middle of a copy. */
    int memfd = memfd_create("kvferry-ring", MFD_CLOEXEC | MFD_ALLOW_SEALING);
    if (memfd < 0) return KVF_ERR_IO;
    kvf_status status = KVF_ERR_NO_MEMORY;
    if (posix_fallocate(memfd, 0, (off_t)(HEAD_BYTES + size_bytes)) || fcntl(memfd, F_ADD_SEALS, SEALS))
        goto undo_memfd;
    status = ring_map(r, memfd, size_bytes);
    if (status != KVF_OK) goto undo_memfd;
    kvf_put_le32(r->map, MAGIC);
    kvf_put_le32(r->map + 4, VERSION);
    kvf_put_le64(r->map + 8, size_bytes);
    *fd = memfd;
    return KVF_OK;
undo_memfd:
    close(memfd);
    return status;
}

kvf_status shm_ring_open(shm_ring *r, int fd, kvf_error *err) {
    struct stat st;
    int seals = fcntl(fd, F_GET_SEALS);
    if (seals < 0 || (seals & SEALS) != SEALS || fstat(fd, &st))
        return kvf_fail(err, KVF_ERR_FORMAT, "ring is not sealed");
    uint64_t size = st.st_size > (off_t)HEAD_BYTES ? (uint64_t)st.st_size - HEAD_BYTES : 0;
    if (size == 0 || (size & (size - 1)) || size > SIZE_MAX_BYTES)
        return kvf_fail(err, KVF_ERR_FORMAT, "ring of %lld bytes", (long long)st.st_size);
    if (ring_map(r, fd, (size_t)size) != KVF_OK) return kvf_fail(err, KVF_ERR_NO_MEMORY, "cannot map the ring");
    if (kvf_get_le32(r->map) == MAGIC && kvf_get_le32(r->map + 4) == VERSION && kvf_get_le64(r->map + 8) == size)
        return KVF_OK;
    shm_ring_fini(r);
    return kvf_fail(err, KVF_ERR_FORMAT, "ring of an unknown kind");
}

void shm_ring_fini(shm_ring *r) {
    if (r->map) munmap(r->map, r->map_bytes);
    *r = (shm_ring){0};
}

size_t shm_ring_room(shm_ring *r) {
    uint64_t tail = atomic_load_explicit(ring_tail(r), memory_order_acquire);
    if (tail - r->seen > r->mine - r->seen) r->broken = true; /* backwards, or beyond what was written */
    if (r->broken) return 0;
    r->seen = tail;
    return r->size_bytes - (size_t)(r->mine - tail);
}

void shm_ring_put(shm_ring *r, const void *data, size_t len_bytes) {
    KVF_ASSERT(!r->broken && len_bytes <= r->size_bytes - (size_t)(r->mine - r->seen));
    bytes_copy_in(r->map + HEAD_BYTES, r->size_bytes, r->mine, data, len_bytes);
    r->mine += len_bytes;
}

void shm_ring_publish(shm_ring *r) { atomic_store_explicit(ring_head(r), r->mine, memory_order_release); }

bool shm_ring_want_room(shm_ring *r, size_t room_bytes) {
    shm_ring_publish(r); /* or the reader could never make the room */
    atomic_store(ring_wanted(r), room_bytes);
    if (r->size_bytes - (size_t)(r->mine - atomic_load(ring_tail(r))) < room_bytes) return true;
    atomic_store(ring_wanted(r), 0);
    return false;
}

size_t shm_ring_ready(shm_ring *r) {
    uint64_t head = atomic_load_explicit(ring_head(r), memory_order_acquire);
    if (head - r->mine > r->size_bytes || head - r->mine < r->seen - r->mine) r->broken = true;
    if (r->broken) return 0;
    r->seen = head;
    return (size_t)(head - r->mine);
}

void shm_ring_peek(const shm_ring *r, size_t at, void *out, size_t len_bytes) {
    KVF_ASSERT(at + len_bytes <= (size_t)(r->seen - r->mine));
    bytes_copy_out(r->map + HEAD_BYTES, r->size_bytes, r->mine + at, out, len_bytes);
}

bool shm_ring_consume(shm_ring *r, size_t len_bytes) {
    KVF_ASSERT(len_bytes <= (size_t)(r->seen - r->mine));
    r->mine += len_bytes;
    atomic_store(ring_tail(r), r->mine);
    /* The sender may have written on since: then it asks again. A nonsensical wish is granted at once. */
    uint64_t wanted = atomic_load(ring_wanted(r)), room = r->size_bytes - (r->seen - r->mine);
    return wanted && (room >= wanted || wanted > r->size_bytes) && atomic_exchange(ring_wanted(r), 0);
}
