/* pages.cu - pages of the pool into a slot and back, with or without their CRC-32C; copies of a block's first
 * positions. Bound by memory: 16-byte accesses, whole lines.
 *
 * The checksum is a remainder of polynomials over GF(2) (bits reflected, as everywhere), so parts may be taken apart:
 * the remainder of a page is the sum of its parts' remainders, each times x^(8 * bytes that follow it). Zeros before a
 * page change nothing. One block takes a page; each thread an equal run of its end-aligned chunks of 16 bytes, byte by
 * byte through a table; then one product per thread with its power, and a sum over the block.
 *
 * The table lies in shared memory 32 times, once per bank, for lanes read different entries in one instruction. A warp
 * reads and writes memory by lines and hands each lane its own run through shared memory. */
#include "kvf/cuda_pages.h"
#include "port.h"

enum { COPY_THREADS = 256, COPY_CHUNKS = 4, BLOCK_TOKENS = 16 };
enum {
    CRC_THREADS = 512,
    CRC_WARPS = CRC_THREADS / 32,
    CRC_POWERS = 9, /* 2^9 threads */
    CRC_BLOCKS_MAX = 528, /* a block makes the table once and takes pages in turn */
    WIDTH = 4, /* chunks of a lane's run that are brought at a time */
    STASH = WIDTH + 1, /* padded: eight lanes read 16 bytes each from different banks */
    TABLE_WORDS = 256 * 32
};
static const size_t CRC_SHARED = TABLE_WORDS * 4 + CRC_THREADS * STASH * 16 + CRC_WARPS * 4;
static const uint32_t POLYNOMIAL = 0x82F63B78u; /* Castagnoli; bit 31 is x^0 */

#ifndef KVF_PLANT
#define KVF_PLANT 0 /* tests: a mistake that they must see */
#endif

/* a * b modulo the polynomial. */
KVF_BOTH uint32_t times(uint32_t a, uint32_t b) {
    uint32_t product = 0;
    KVF_UNROLL_BY(4)
    for (int i = 31; i >= 0; i--) {
        product ^= b & (0u - (a >> i & 1));
        b = b >> 1 ^ (POLYNOMIAL & (0u - (b & 1)));
    }
    return product;
}

/* x^(8 * bytes). */
static uint32_t power_of_bytes(size_t bytes) {
    uint32_t result = 1u << 31, square = 1u << 23; /* 1, x^8 */
    for (; bytes; bytes >>= 1, square = times(square, square))
        if (bytes & 1) result = times(result, square);
    return result;
}

struct pages_plan {
    kvf_cuda_pages a;
    bool to_slot;
    int chunks; /* of 16 bytes in a page */
    int run; /* chunks of one thread */
    uint32_t powers[CRC_POWERS]; /* of one run, of two, of four ... */
    uint32_t whole; /* of a page: what moves the seed over it */
};

struct ends {
    const uint4 *from;
    uint4 *to;
};

KVF_DEVICE ends ends_of(const kvf_cuda_pages &a, bool to_slot, uint32_t i) {
    uint32_t block = a.pages[i].block + (KVF_PLANT == 2 && i > 0);
    uint8_t *page = a.pool + a.pages[i].layer * a.layer_bytes + block * a.page_bytes;
    uint8_t *slot = a.slot + i * a.page_bytes;
    return to_slot ? ends{(const uint4 *)page, (uint4 *)slot} : ends{(const uint4 *)slot, (uint4 *)page};
}

/* grid: pieces of a page, pages. */
static __global__ void __launch_bounds__(COPY_THREADS) copy_pages(kvf_cuda_pages a, bool to_slot) {
    ends e = ends_of(a, to_slot, blockIdx.y);
    uint32_t chunks = (uint32_t)(a.page_bytes / 16), at = blockIdx.x * COPY_THREADS * COPY_CHUNKS + threadIdx.x;
    uint4 v[COPY_CHUNKS];
    for (int i = 0; i < COPY_CHUNKS; i++)
        if (at + i * COPY_THREADS < chunks) v[i] = e.from[at + i * COPY_THREADS];
    for (int i = 0; i < COPY_CHUNKS; i++)
        if (at + i * COPY_THREADS < chunks) e.to[at + i * COPY_THREADS] = v[i];
}

KVF_DEVICE void make_table(uint32_t *table) {
    uint32_t entry = threadIdx.x % 256, s = entry;
    for (int i = 0; i < 8; i++) s = s >> 1 ^ (POLYNOMIAL & (0u - (s & 1)));
    const int copies = 32 * 256 / CRC_THREADS; /* made by one thread; neighbours write to different banks */
    for (int i = 0; i < copies; i++) table[entry * 32 + (threadIdx.x / 256 * copies + i + threadIdx.x) % 32] = s;
}

KVF_DEVICE uint32_t word_through(const uint32_t *column, uint32_t s, uint32_t word) {
    s ^= word;
    for (int i = 0; i < 4; i++) s = s >> 8 ^ column[(s & 255) * 32];
    return s;
}

/* The remainder of this thread's run; the page is copied on the way. */
KVF_DEVICE uint32_t copy_run(const pages_plan &p, const ends &e, const uint32_t *column, uint4 *stash, int lane) {
    int first =
        (int)(threadIdx.x - lane) * p.run - (CRC_THREADS * p.run - p.chunks); /* of the warp, from the page's begin */
    uint32_t s = 0;
    for (int step = 0; step < p.run; step += WIDTH) {
        for (int i = 0; i < WIDTH; i++) {
            int at = i * 32 + lane, row = at / WIDTH, col = at % WIDTH, chunk = first + row * p.run + step + col;
            bool real = step + col < p.run && chunk >= 0;
            uint4 v = make_uint4(0, 0, 0, 0);
            if (real) {
                v = e.from[chunk];
                e.to[chunk] = v;
            }
            stash[row * STASH + col] = v;
        }
        if (KVF_PLANT != 1) __syncwarp();
        for (int i = 0; i < WIDTH && step + i < p.run; i++) {
            uint4 v = stash[lane * STASH + i];
            s = word_through(column, s, v.x);
            s = word_through(column, s, v.y);
            s = word_through(column, s, v.z);
            s = word_through(column, s, v.w);
        }
        __syncwarp(); /* all have read: it may be filled again */
    }
    return s;
}

/* grid: up to CRC_BLOCKS_MAX blocks, which share the pages. */
static __global__ void __launch_bounds__(CRC_THREADS, 2) copy_pages_crc(pages_plan p) {
    KVF_SHARED(uint32_t, table);
    uint4 *stash = (uint4 *)(table + TABLE_WORDS);
    uint32_t *sums = (uint32_t *)(stash + CRC_THREADS * STASH);
    int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
    uint32_t power = 1u << 31, after = CRC_THREADS - 1 - threadIdx.x - (KVF_PLANT == 3 && threadIdx.x == 0);
    KVF_UNROLL
    for (int i = 0; i < CRC_POWERS; i++)
        if (after >> i & 1) power = times(power, p.powers[i]);
    make_table(table);
    __syncthreads();
    for (uint32_t i = blockIdx.x; i < p.a.count; i += gridDim.x) {
        uint32_t s = copy_run(p, ends_of(p.a, p.to_slot, i), table + lane, stash + warp * 32 * STASH, lane);
        s = times(s, power);
        for (int away = 16; away; away >>= 1) s ^= __shfl_xor_sync(KVF_WARP_ALL, s, away);
        if (lane == 0) sums[warp] = s;
        if (KVF_PLANT != 4) __syncthreads();
        if (threadIdx.x == 0) {
            uint32_t sum = times(~p.a.pages[i].seed, p.whole);
            for (int w = 0; w < CRC_WARPS; w++) sum ^= sums[w];
            p.a.crc[i] = ~sum;
        }
        __syncthreads(); /* the sums are read */
    }
}

static void copy(const kvf_cuda_pages *args, bool to_slot, void *stream) {
    kvf_cuda_pages a = *args;
    if (a.count == 0) return;
    uint32_t chunks = (uint32_t)(a.page_bytes / 16);
    if (!a.crc) {
        const uint32_t piece = COPY_THREADS * COPY_CHUNKS;
        KVF_LAUNCH(copy_pages, dim3((chunks + piece - 1) / piece, a.count), dim3(COPY_THREADS), 0, stream, a, to_slot);
        return;
    }
    pages_plan p = {};
    p.a = a;
    p.to_slot = to_slot;
    p.chunks = (int)chunks;
    p.run = (int)((chunks + CRC_THREADS - 1) / CRC_THREADS);
    p.powers[0] = power_of_bytes((size_t)p.run * 16);
    for (int i = 1; i < CRC_POWERS; i++) p.powers[i] = times(p.powers[i - 1], p.powers[i - 1]);
    p.whole = power_of_bytes(a.page_bytes);
    KVF_ALLOW_SHARED(copy_pages_crc, CRC_SHARED);
    uint32_t blocks = min(a.count, (uint32_t)CRC_BLOCKS_MAX);
    KVF_LAUNCH(copy_pages_crc, dim3(blocks), dim3(CRC_THREADS), CRC_SHARED, stream, p);
}

void kvf_cuda_pages_pack(const kvf_cuda_pages *a, void *stream) { copy(a, true, stream); }
void kvf_cuda_pages_unpack(const kvf_cuda_pages *a, void *stream) { copy(a, false, stream); }

/* grid: heads of K, then of V; layers. */
static __global__ void __launch_bounds__(COPY_THREADS) copy_positions(kvf_cuda_copy a) {
    uint32_t head = blockIdx.x, cell_bytes = a.cell == KVF_CUDA_CELL_F16 ? 2 : 1;
    uint8_t *layer = a.pool + blockIdx.y * a.layer_bytes;
    const uint8_t *from = layer + a.from * a.page_bytes;
    uint8_t *to = layer + a.to * a.page_bytes;
    size_t row = (size_t)a.head_dim * cell_bytes, at = head * BLOCK_TOKENS * row;
    for (uint32_t i = threadIdx.x; i < a.tokens * row / 16; i += COPY_THREADS)
        ((uint4 *)(to + at))[i] = ((const uint4 *)(from + at))[i];
    if (a.cell == KVF_CUDA_CELL_F16 || threadIdx.x >= a.tokens) return;
    at = 2 * a.kv_heads * BLOCK_TOKENS * row + (head * BLOCK_TOKENS + threadIdx.x) * sizeof(kvf_half_bits);
    *(kvf_half_bits *)(to + at) = *(const kvf_half_bits *)(from + at);
}

void kvf_cuda_block_copy(const kvf_cuda_copy *args, void *stream) {
    kvf_cuda_copy a = *args;
    if (a.tokens == 0 || a.to == a.from) return;
    KVF_LAUNCH(copy_positions, dim3(2 * a.kv_heads, a.layers), dim3(COPY_THREADS), 0, stream, a);
}
