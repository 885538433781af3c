/* rings.c - bit errors in shared memory: written from outside into the rings that a node has mapped, between the
 * sender's copy into a ring and the receiver's copy out of it. Nothing in the program helps with it; where the system
 * does not let a parent reach into its child, nothing is turned, and the report says 0. */
#include "soak.h"
#include <inttypes.h>
#include <string.h>
#include <sys/uio.h>

/* As kvtransfer/src/shm_ring.c lays them out. */
enum { HEAD_BYTES = 4096, HEAD_AT = 64, TAIL_AT = 128, RINGS_MAX = 32 };

typedef struct {
    uint64_t at, data_bytes;
} ring;

static uint32_t rings_of(pid_t pid, ring out[RINGS_MAX]) {
    char path[48], line[512];
    uint32_t count = 0;
    snprintf(path, sizeof path, "/proc/%d/maps", (int)pid);
    FILE *f = fopen(path, "r");
    if (!f) return 0;
    while (count < RINGS_MAX && fgets(line, sizeof line, f)) {
        uint64_t from, to;
        if (!strstr(line, "memfd:kvferry-ring") || sscanf(line, "%" SCNx64 "-%" SCNx64, &from, &to) != 2) continue;
        if (to - from > HEAD_BYTES) out[count++] = (ring){from, to - from - HEAD_BYTES};
    }
    fclose(f);
    return count;
}

static bool peek(pid_t pid, uint64_t at, void *out, size_t len_bytes) {
    struct iovec here = {out, len_bytes}, there = {(void *)(uintptr_t)at, len_bytes};
    return process_vm_readv(pid, &here, 1, &there, 1, 0) == (ssize_t)len_bytes;
}

static bool flip(pid_t pid, uint64_t at, uint32_t bit) {
    uint8_t byte;
    if (!peek(pid, at, &byte, 1)) return false;
    byte ^= (uint8_t)(1u << bit);
    struct iovec here = {&byte, 1}, there = {(void *)(uintptr_t)at, 1};
    return process_vm_writev(pid, &here, 1, &there, 1, 0) == 1;
}

static bool flip_unread(pid_t pid, const ring *r, uint64_t *random) {
    uint64_t words[(TAIL_AT - HEAD_AT) / 8 + 1];
    if (!peek(pid, r->at + HEAD_AT, words, sizeof words)) return false;
    uint64_t head = words[0], tail = words[(TAIL_AT - HEAD_AT) / 8];
    if (head == tail || head - tail > r->data_bytes) return false;
    uint64_t at = (tail + e2e_random(random) % (head - tail)) & (r->data_bytes - 1);
    return flip(pid, r->at + HEAD_BYTES + at, (uint32_t)(e2e_random(random) % 8));
}

uint32_t rings_scribble(pid_t pid, uint64_t *random) {
    enum { SPAN_NS = 8000000, FLIPS_MOST = 4 }; /* few at a time: a link with an error in every page moves nothing */
    ring rings[RINGS_MAX];
    uint32_t count = rings_of(pid, rings), flips = 0;
    uint64_t end = e2e_now_ns() + SPAN_NS;
    while (count && flips < FLIPS_MOST && e2e_now_ns() < end)
        for (uint32_t i = 0; i < count && flips < FLIPS_MOST; i++) flips += flip_unread(pid, &rings[i], random);
    return flips;
}
