#include "emu.h"
#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <mutex>

namespace kvf_emu {

enum { THREADS_MAX = 1024, WARPS_MAX = THREADS_MAX / 32, SHARED_MAX = 227 << 10, GRID_YZ_MAX = 65535 };

launch_state now;

static struct {
    std::mutex one_at_a_time;
    thread threads[THREADS_MAX];
    int count;
    void (*body)(void *);
    void *arg;
    options chosen;
    bool options_known;
    uint64_t random, switches;
    /* What TSan sees ordering: a block's begin and end, a barrier's rounds, a warp's rounds. */
    char begin, end, barriers[2], warps[WARPS_MAX][2];
} emu;

/* ---- options ---- */

static options from_environment(void) {
    options o = {FORWARD, 1, false};
    const char *order = getenv("KVF_EMU_ORDER"), *copies = getenv("KVF_EMU_COPIES");
    if (order && strcmp(order, "backward") == 0) o.threads = BACKWARD;
    if (order && strncmp(order, "random", 6) == 0) {
        o.threads = RANDOM;
        if (order[6] == ':') o.seed = strtoull(order + 7, nullptr, 10);
    }
    if (copies) o.copies_early = strcmp(copies, "early") == 0;
    return o;
}

void set_options(const options &o) {
    std::lock_guard<std::mutex> lock(emu.one_at_a_time);
    emu.chosen = o;
    emu.options_known = true;
}

/* SplitMix64. */
static uint64_t next_random(void) {
    uint64_t z = (emu.random += 0x9E3779B97F4A7C15u);
    z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9u;
    z = (z ^ (z >> 27)) * 0x94D049BB133111EBu;
    return z ^ (z >> 31);
}

static void arrange(int *places, int count) {
    if (emu.chosen.threads != RANDOM) return;
    for (int i = count - 1; i > 0; i--) std::swap(places[i], places[next_random() % (uint64_t)(i + 1)]);
}

static void number(int *places, int count) {
    for (int i = 0; i < count; i++) places[i] = emu.chosen.threads == BACKWARD ? count - 1 - i : i;
}

/* ---- saying what is wrong ---- */

static bool same_place(const thread *a, const thread *b) {
    return a->at == b->at && a->site == b->site && a->mask == b->mask && a->kind == b->kind;
}

KVF_EMU_PLAIN void stop(const char *why) {
    static const char *const places[] = {"runs", "waits at a barrier", "waits for its warp", "has ended"};
    fprintf(
        stderr, "emulator: %s, in block (%u, %u, %u)\n", why, now.block_index.x, now.block_index.y, now.block_index.z);
    for (int i = 0, from = 0; i < emu.count; i++) {
        const thread *t = &emu.threads[i];
        if (i + 1 < emu.count && same_place(t, t + 1)) continue;
        fprintf(stderr, "  threads %d to %d: %s (place %p, mask %08x, operation %d)\n", from, i, places[t->at], t->site,
            t->mask, t->kind);
        from = i + 1;
    }
    abort();
}

/* ---- threads ---- */

KVF_EMU_PLAIN static void give_way(void) { kvf_fiber_leave(&now.self->fiber); }

KVF_EMU_PLAIN static void thread_main(void) {
    kvf_fiber_entered();
    for (;;) { /* once per block: the fiber is used again */
        kvf_fiber_acquire(&emu.begin);
        emu.body(emu.arg);
        if (now.self->copies_count > 0) stop("a thread ended with cp.async copies that nobody waited for");
        kvf_fiber_release(&emu.end);
        now.self->at = ENDED;
        give_way();
    }
}

KVF_EMU_PLAIN static void run(thread *t) {
    now.self = t;
    emu.switches++;
    kvf_fiber_enter(&t->fiber);
}

KVF_EMU_PLAIN int barrier(const void *site, int predicate) {
    thread *t = now.self;
    char *round = &emu.barriers[t->barriers_passed++ & 1];
    t->at = AT_BARRIER;
    t->site = site;
    t->predicate = predicate;
    kvf_fiber_release(round);
    give_way();
    kvf_fiber_acquire(round);
    return now.predicates;
}

KVF_EMU_PLAIN void with_warp(unsigned mask, int kind, together fn, void *arg, const void *site) {
    thread *t = now.self;
    if (!(mask >> t->lane & 1)) stop("a lane calls a warp operation whose mask leaves it out");
    t->mask = mask;
    t->kind = kind;
    t->fn = fn;
    t->arg = arg;
    t->site = site;
    t->at = AT_WARP;
    /* Only __syncwarp orders memory: shuffles and products exchange registers. */
    char *round = kind == SYNC_WARP ? &emu.warps[t->warp][t->warp_syncs_passed++ & 1] : nullptr;
    if (round) kvf_fiber_release(round);
    give_way();
    if (round) kvf_fiber_acquire(round);
}

/* ---- one warp, one block ---- */

/* Does the operation at which `lane` waits, if all of its mask have come to it. */
KVF_EMU_PLAIN static bool finish_together(thread *warp, int lanes, int lane) {
    const thread *t = &warp[lane];
    unsigned mask = t->mask;
    void *args[32] = {};
    for (int i = 0; i < 32; i++) {
        if (!(mask >> i & 1)) continue;
        if (i >= lanes || warp[i].at != AT_WARP || warp[i].mask != mask || warp[i].kind != t->kind) return false;
        args[i] = warp[i].arg;
    }
    if (t->fn) t->fn(args, mask);
    for (int i = 0; i < lanes; i++)
        if (mask >> i & 1) warp[i].at = RUNS;
    return true;
}

/* Until no lane can go on by itself. Returns whether any ran. */
KVF_EMU_PLAIN static bool run_warp(thread *warp, int lanes) {
    int places[32];
    number(places, lanes);
    for (bool any = false;; any = true) {
        bool ran = false;
        arrange(places, lanes);
        for (int i = 0; i < lanes; i++) {
            if (warp[places[i]].at != RUNS) continue;
            run(&warp[places[i]]);
            ran = true;
        }
        for (int i = 0; i < lanes; i++)
            if (warp[i].at == AT_WARP && finish_together(warp, lanes, i)) ran = true;
        if (!ran) return any;
    }
}

KVF_EMU_PLAIN static void pass_barrier(int ended) {
    const void *site = nullptr;
    if (ended) stop("some threads have ended while others wait at __syncthreads");
    now.predicates = 0;
    for (int i = 0; i < emu.count; i++) {
        thread *t = &emu.threads[i];
        if (site && site != t->site) stop("threads of a block wait at different __syncthreads");
        site = t->site;
        now.predicates += t->predicate;
        t->at = RUNS;
    }
}

KVF_EMU_PLAIN static void begin_block(void) {
    for (size_t i = 0; i < now.shared_bytes; i++) ((volatile unsigned char *)now.shared)[i] = 0xFF;
    for (int i = 0; i < emu.count; i++) {
        thread *t = &emu.threads[i];
        t->at = RUNS;
        t->site = nullptr;
        t->mask = 0;
        t->kind = t->barriers_passed = t->warp_syncs_passed = t->copies_count = t->groups_count = 0;
    }
}

KVF_EMU_PLAIN static void run_block(void) {
    int warps = (emu.count + 31) / 32, places[WARPS_MAX];
    begin_block();
    number(places, warps);
    for (;;) {
        bool ran = false;
        int ended = 0, waiting = 0;
        arrange(places, warps);
        for (int i = 0; i < warps; i++)
            ran |= run_warp(&emu.threads[places[i] * 32], std::min(32, emu.count - places[i] * 32));
        for (int i = 0; i < emu.count; i++) {
            ended += emu.threads[i].at == ENDED;
            waiting += emu.threads[i].at == AT_BARRIER;
        }
        if (ended == emu.count) return;
        if (waiting && waiting + ended == emu.count)
            pass_barrier(ended);
        else if (!ran)
            stop("no thread can go on");
    }
}

/* ---- launches ---- */

static void prepare(dim3 grid, dim3 block, size_t shared_bytes) {
    uint64_t count = (uint64_t)block.x * block.y * block.z;
    bool fits = count >= 1 && count <= THREADS_MAX && shared_bytes <= SHARED_MAX && grid.x && grid.y && grid.z &&
                grid.x <= INT32_MAX && grid.y <= GRID_YZ_MAX && grid.z <= GRID_YZ_MAX;
    if (!fits) {
        fprintf(stderr, "emulator: launch of %u x %u x %u blocks of %u x %u x %u threads, %zu shared bytes\n", grid.x,
            grid.y, grid.z, block.x, block.y, block.z, shared_bytes);
        abort();
    }
    if (!emu.options_known) {
        emu.chosen = from_environment();
        emu.options_known = true;
    }
    emu.random = emu.chosen.seed;
    emu.count = (int)count;
    now.grid = grid;
    now.block = block;
    now.shared_bytes = shared_bytes;
    now.copies_early = emu.chosen.copies_early;
    for (int i = 0; i < emu.count; i++) {
        thread *t = &emu.threads[i];
        unsigned u = (unsigned)i;
        if (!t->fiber.stack) kvf_fiber_create(&t->fiber, thread_main);
        t->index = uint3{u % block.x, u / block.x % block.y, u / (block.x * block.y)};
        t->lane = i & 31;
        t->warp = i >> 5;
    }
}

void launch(dim3 grid, dim3 block, size_t shared_bytes, void (*body)(void *), void *arg) {
    std::lock_guard<std::mutex> lock(emu.one_at_a_time);
    prepare(grid, block, shared_bytes);
    emu.body = body;
    emu.arg = arg;
    uint64_t blocks = (uint64_t)grid.x * grid.y * grid.z;
    for (uint64_t b = 0; b < blocks; b++) {
        uint64_t place = emu.chosen.threads == BACKWARD ? blocks - 1 - b : b;
        now.block_index = uint3{(unsigned)(place % grid.x), (unsigned)(place / grid.x % grid.y),
            (unsigned)(place / ((uint64_t)grid.x * grid.y))};
        void *shared = nullptr;
        if (shared_bytes && posix_memalign(&shared, 1024, shared_bytes) != 0) abort();
        now.shared = (unsigned char *)shared;
        kvf_fiber_release(&emu.begin);
        run_block();
        kvf_fiber_acquire(&emu.end);
        free(shared);
    }
    now.self = nullptr;
}

uint64_t switches(void) {
    uint64_t count = emu.switches;
    emu.switches = 0;
    return count;
}

} // namespace kvf_emu
