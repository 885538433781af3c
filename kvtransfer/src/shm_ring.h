/* shm_ring.h - a ring of bytes in memory shared by two processes: the receiver makes it, the sender writes it.
 *
 * Shared page (each field written by one side):
 *     0  u32 magic "KVFR", u32 version
 *     8  u64 size of the data area, a power of two
 *    64  u64 head: bytes written since the start          (sender)
 *   128  u64 tail: bytes taken since the start            (receiver)
 *   192  u64 room wanted, bytes: the sender waits for the bell; 0: it does not   (sender sets, receiver clears)
 *  4096  data
 * Each side keeps its own counter in private memory and only publishes it. The other side's is a number to be judged:
 * outside [tail, tail + size] the peer is broken or hostile and the link ends. Positions are masked before memory is
 * touched, so that no number can lead outside. The memory is sealed against resizing: neither side can make the other
 * fault. */
#ifndef KVF_XFER_SHM_RING_H
#define KVF_XFER_SHM_RING_H
#include "kvf/base.h"

typedef struct {
    uint8_t *map;
    size_t map_bytes, size_bytes;
    uint64_t mine; /* head when writing, tail when reading */
    uint64_t seen; /* the other side's counter, as last judged */
    bool broken;
} shm_ring;

/* The receiver: makes the memory; *fd is to be handed to the sender and closed. */
kvf_status shm_ring_create(shm_ring *r, size_t size_bytes, int *fd);
/* The sender: takes nothing on trust (seals, length, head of the shared page). fd stays the caller's. */
kvf_status shm_ring_open(shm_ring *r, int fd, kvf_error *err);
void shm_ring_fini(shm_ring *r);

/* Writing. room is 0 when broken. */
size_t shm_ring_room(shm_ring *r);
void shm_ring_put(shm_ring *r, const void *data, size_t len_bytes);
void shm_ring_publish(shm_ring *r);
/* Asks for the bell; false: there is room_bytes already and no bell will come. */
bool shm_ring_want_room(shm_ring *r, size_t room_bytes);

/* Reading. ready is 0 when broken. */
size_t shm_ring_ready(shm_ring *r);
void shm_ring_peek(const shm_ring *r, size_t at, void *out, size_t len_bytes);
bool shm_ring_consume(shm_ring *r, size_t len_bytes); /* true: the sender waits for the bell */
#endif
