/* emu.h - runs CUDA kernel source on the CPU: one fiber per CUDA thread, blocks one after another. C++.
 *
 * A warp's lanes run one at a time, each until it waits or ends, so that warps and lanes are as far apart as the
 * program allows: what is missing between them shows. Warp operations happen when all lanes of their mask have come.
 * Shared memory is allocated per block, to the byte, and filled with 0xFF (a NaN), so that sanitizers and arithmetic
 * see what was never written. Copies of cp.async happen as late as the program's waits allow, or at once: a program
 * must be right under both.
 *
 * Stops the process with the state of every thread when a kernel breaks a rule of CUDA: threads of a block at different
 * barriers, a thread that ended while others wait for it, a warp operation whose lanes never all come, a shuffle from a
 * lane outside the mask, a misaligned cp.async or ldmatrix, a launch beyond the limits.
 *
 * Not shown: registers, bank conflicts, timing, weak memory order, __threadfence, waiting for another block. */
#ifndef KVF_EMU_H
#define KVF_EMU_H
#include "fiber.h"
#include <cstddef>
#include <cstdint>
#include <vector_types.h>

namespace kvf_emu {

enum order { FORWARD, BACKWARD, RANDOM };

struct options {
    order threads; /* of lanes, warps and blocks */
    uint64_t seed; /* RANDOM */
    bool copies_early;
};
/* For the launches that follow. Unset: from KVF_EMU_ORDER (forward, backward, random:SEED) and KVF_EMU_COPIES (late,
 * early). */
void set_options(const options &o);

enum state { RUNS, AT_BARRIER, AT_WARP, ENDED };

/* What the lanes of a warp do together, once all of them have come: `args` by lane. */
typedef void (*together)(void *args[32], unsigned mask);

struct copy {
    void *to;
    const void *from;
    int bytes, from_bytes; /* the rest is zero */
};

struct thread {
    kvf_fiber fiber;
    uint3 index;
    int lane, warp;
    state at;
    const void *site; /* where it waits */
    unsigned mask;
    int kind;
    together fn;
    void *arg;
    int predicate; /* given to a barrier */
    int barriers_passed, warp_syncs_passed; /* parity: two objects, or a waiter would see the next round's release */
    copy copies[64];
    int copies_count, groups[16], groups_count;
};

struct launch_state {
    thread *self;
    dim3 grid, block;
    uint3 block_index;
    unsigned char *shared;
    size_t shared_bytes;
    bool copies_early;
    int predicates; /* sum over the block, of the barrier just passed */
};
extern launch_state now;

/* Runs grid x block threads of `body` to the end. One launch at a time in a process: others wait. */
void launch(dim3 grid, dim3 block, size_t shared_bytes, void (*body)(void *), void *arg);

int barrier(const void *site, int predicate); /* returns the sum of predicates */
void with_warp(unsigned mask, int kind, together fn, void *arg, const void *site);
[[noreturn]] void stop(const char *why);

enum { SYNC_WARP = 1, SHUFFLE, BALLOT, MATRIX_PRODUCT, LOAD_MATRIX };

uint64_t shuffle(unsigned mask, uint64_t value, int lane, const void *site);
unsigned ballot(unsigned mask, int predicate, const void *site);
/* mma.sync.m16n8k16 row.col, f32 sums; load_matrix: 8x8 matrices of 16-bit values, `count` of them. */
void matrix_product(float *d, const uint32_t *a, const uint32_t *b, bool bf16, const void *site);
void load_matrix(uint32_t *r, const void *row, int count, bool transposed, const void *site);
void copy_async(void *to, const void *from, int bytes, int from_bytes);
void copy_commit(void);
void copy_wait(int keep_groups);

/* Stack switches since the last call: what a launch costs here. */
uint64_t switches(void);

} // namespace kvf_emu
#endif
