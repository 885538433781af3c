/* product8.cu - weights as e4m3 codes: made, unpacked, and multiplied with few rows of activations.
 *
 * The product is bound by reading the codes. A block has 64 outputs and a span of the inputs, each of its warps 16
 * outputs; codes and activations come through shared memory, STAGES deep, a tile of 128 inputs each. Codes become
 * halves in registers by three integer operations for two of them: bits moved, so that the half is the code's value
 * times 2^-8, which the output's scale takes back. No instruction for e4m3 is used: any GPU from sm_80 on.
 *
 * Spans depend on the matrix's shape alone, and a token's sum on its own column of the tensor core's product: its bits
 * do not depend on the batch. Where there is more than one span, a second launch adds them in order.
 *
 * Order of inputs inside a tile: a lane of a warp takes 16 neighbouring codes of a row, of which tensor cores see four
 * at a time; any order will do that codes and activations share. */
#include "kvf/cuda_f8.h"
#include "f8.h"

#ifndef KVF_PLANT
#define KVF_PLANT 0 /* tests: a mistake that they must see */
#endif

enum {
    WARPS = 4,
    THREADS = WARPS * 32,
    OUTPUTS = WARPS * 16, /* of a block */
    TILE = 128, /* inputs */
    STAGES = 4,
    ROWS = 64, /* of one launch, at most */
    CODES_BYTES = OUTPUTS * TILE,
    ROW_THREADS = 256,
    BLOCKS_WANTED = 264, /* two for each processor of the largest GPU of today */
    TILES_MIN = 4 /* of a span */
};

/* Where 16-byte chunk c of a row of codes (8 of them) or of activations (16) lies: neighbouring rows in other banks. */
KVF_DEVICE uint32_t code_place(uint32_t row, uint32_t c) { return row * TILE + (c ^ (row & 1) << 2) * 16; }
KVF_DEVICE uint32_t x_place(uint32_t row, uint32_t c) { return row * TILE * 2 + (c ^ (row & 1)) * 16; }

/* Tile `k` .. of codes and activations into a stage; what is beyond the matrix or the span becomes zero. */
template <int COLUMNS>
KVF_DEVICE void fetch(const kvf_cuda_f8_product &a, uint8_t *stage, uint32_t output, uint32_t k, uint32_t k_end) {
    for (uint32_t i = threadIdx.x; i < OUTPUTS * TILE / 16; i += THREADS) {
        uint32_t row = i / (TILE / 16), c = i % (TILE / 16), at = k + c * 16;
        bool there = output + row < a.outputs && at < k_end;
        kvf_copy_async16(
            stage + code_place(row, c), there ? a.w + (size_t)(output + row) * a.inputs + at : a.w, there ? 16 : 0);
    }
    const __half *x = (const __half *)a.x;
    for (uint32_t i = threadIdx.x; i < COLUMNS * 8 * TILE / 8; i += THREADS) {
        uint32_t row = i / (TILE / 8), c = i % (TILE / 8), at = k + c * 8;
        bool there = row < a.rows && at < k_end;
        kvf_copy_async16(
            stage + CODES_BYTES + x_place(row, c), there ? x + (size_t)row * a.inputs + at : x, there ? 16 : 0);
    }
}

/* A tile into the warp's sums: 16 outputs by COLUMNS * 8 rows. */
template <int COLUMNS> KVF_DEVICE void multiply(const uint8_t *stage, float sums[COLUMNS][4]) {
    uint32_t warp = threadIdx.x / 32, lane = threadIdx.x % 32, g = lane / 4, t = lane % 4;
    KVF_UNROLL for (uint32_t part = 0; part < 2; part++) {
        uint4 low = *(const uint4 *)(stage + code_place(warp * 16 + g, part * 4 + t));
        uint4 high = *(const uint4 *)(stage + code_place(warp * 16 + g + 8, part * 4 + t));
        const uint32_t *of_low = (const uint32_t *)&low, *of_high = (const uint32_t *)&high;
        KVF_UNROLL for (uint32_t j = 0; j < 4; j++) {
            uint32_t w[4] = {kvf_f8_small(of_low[j], 0), kvf_f8_small(of_high[j], 0), kvf_f8_small(of_low[j], 1),
                kvf_f8_small(of_high[j], 1)};
            KVF_UNROLL for (int i = 0; i < COLUMNS; i++) {
                uint32_t chunk = part * 8 + t * 2 + j / 2;
                const uint2 *x = (const uint2 *)(stage + CODES_BYTES + x_place(i * 8 + g, chunk)) + j % 2;
                uint2 two = *x;
                uint32_t b[2] = {two.x, two.y};
                kvf_mma_f16(sums[i], w, b);
            }
        }
    }
}

/* grid: outputs by OUTPUTS, spans. */
template <int COLUMNS>
static __global__ void __launch_bounds__(THREADS) product(kvf_cuda_f8_product a, uint32_t span_tiles) {
    KVF_SHARED(uint8_t, shared);
    const uint32_t stage_bytes = CODES_BYTES + COLUMNS * 8 * TILE * 2;
    uint32_t output = blockIdx.x * OUTPUTS, k = blockIdx.y * span_tiles * TILE;
    uint32_t k_end = min(a.inputs, k + span_tiles * TILE), tiles = (k_end - k + TILE - 1) / TILE;
    float sums[COLUMNS][4] = {};
    KVF_UNROLL for (uint32_t i = 0; i < STAGES - 1; i++) {
        if (i < tiles) fetch<COLUMNS>(a, shared + i * stage_bytes, output, k + i * TILE, k_end);
        kvf_copy_commit();
    }
    for (uint32_t i = 0; i < tiles; i++) {
        kvf_copy_wait<KVF_PLANT == 1 ? STAGES - 1 : STAGES - 2>();
        if (KVF_PLANT != 2) __syncthreads(); /* the tile is there for all, and all have done with the one before */
        uint32_t next = i + STAGES - 1;
        if (next < tiles) fetch<COLUMNS>(a, shared + next % STAGES * stage_bytes, output, k + next * TILE, k_end);
        kvf_copy_commit();
        multiply<COLUMNS>(shared + i % STAGES * stage_bytes, sums);
    }
    kvf_copy_wait<0>();
    uint32_t lane = threadIdx.x % 32, g = lane / 4, t = lane % 4;
    KVF_UNROLL for (int i = 0; i < COLUMNS; i++) {
        KVF_UNROLL for (uint32_t v = 0; v < 4; v++) {
            uint32_t o = output + threadIdx.x / 32 * 16 + g + v / 2 * 8, row = i * 8 + t * 2 + v % 2;
            if (o >= a.outputs || row >= a.rows) continue;
            float value = sums[i][v] * (a.scales[o] * 256.0f);
            if (gridDim.y == 1)
                ((__half *)a.y)[(size_t)row * a.outputs + o] = __float2half(value);
            else
                a.partial[((size_t)blockIdx.y * a.rows + row) * a.outputs + o] = value;
        }
    }
}

/* grid: outputs by ROW_THREADS, rows. */
static __global__ void __launch_bounds__(ROW_THREADS) add_spans(kvf_cuda_f8_product a, uint32_t spans) {
    uint32_t o = blockIdx.x * ROW_THREADS + threadIdx.x, row = blockIdx.y;
    if (o >= a.outputs) return;
    float sum = 0;
    for (uint32_t s = KVF_PLANT == 3; s < spans; s++) sum += a.partial[((size_t)s * a.rows + row) * a.outputs + o];
    ((__half *)a.y)[(size_t)row * a.outputs + o] = __float2half(sum);
}

/* grid: rows. */
static __global__ void __launch_bounds__(ROW_THREADS)
    pack_rows(uint8_t *codes, float *scales, const __half *from, uint32_t width) {
    KVF_SHARED(float, per_warp);
    from += (size_t)blockIdx.x * width;
    codes += (size_t)blockIdx.x * width;
    float top = 0;
    bool numbers = true;
    for (uint32_t i = threadIdx.x; i < width; i += ROW_THREADS) {
        float v = fabsf(__half2float(from[i]));
        top = fmaxf(top, v);
        numbers = numbers && v <= 65504.0f;
    }
    for (int away = 16; away; away >>= 1) top = fmaxf(top, __shfl_xor_sync(KVF_WARP_ALL, top, away));
    if (!__all_sync(KVF_WARP_ALL, numbers)) top = -1;
    if (threadIdx.x % 32 == 0) per_warp[threadIdx.x / 32] = top;
    if (KVF_PLANT != 4) __syncthreads();
    top = 0;
    for (int i = 0; i < ROW_THREADS / 32; i++) {
        top = per_warp[i] < 0 ? 1e9f : fmaxf(top, per_warp[i]);
    }
    numbers = top < 1e9f;
    float scale = numbers ? kvf_f8_scale(top) : 1.0f;
    for (uint32_t i = threadIdx.x; i < width; i += ROW_THREADS)
        codes[i] = numbers ? kvf_f8_of(__half2float(from[i]) / scale) : 0;
    if (threadIdx.x == 0) scales[blockIdx.x] = numbers ? scale : __uint_as_float(0x7FC00000u);
}

/* 16 codes a thread. grid: rows. */
static __global__ void __launch_bounds__(ROW_THREADS)
    unpack_rows(__half *to, const uint8_t *codes, const float *scales, uint32_t width) {
    __half2 scale = __float2half2_rn(scales[blockIdx.x]);
    for (uint32_t i = threadIdx.x * 16; i < width; i += ROW_THREADS * 16) {
        size_t at = (size_t)blockIdx.x * width + i;
        uint4 c = *(const uint4 *)(codes + at);
        uint2 h0 = kvf_f8_to_halves(c.x, scale), h1 = kvf_f8_to_halves(c.y, scale);
        uint2 h2 = kvf_f8_to_halves(c.z, scale), h3 = kvf_f8_to_halves(c.w, scale);
        *(uint4 *)(to + at) = make_uint4(h0.x, h0.y, h1.x, h1.y);
        *(uint4 *)(to + at + 8) = make_uint4(h2.x, h2.y, h3.x, h3.y);
    }
}

void kvf_cuda_f8_pack(
    uint8_t *codes, float *scales, const kvf_half_bits *from, uint32_t rows, uint32_t width, void *stream) {
    if (rows == 0) return;
    KVF_LAUNCH(pack_rows, dim3(rows), dim3(ROW_THREADS), ROW_THREADS / 32 * sizeof(float), stream, codes, scales,
        (const __half *)from, width);
}

void kvf_cuda_f8_unpack(
    kvf_half_bits *to, const uint8_t *codes, const float *scales, uint32_t rows, uint32_t width, void *stream) {
    if (rows == 0) return;
    KVF_LAUNCH(unpack_rows, dim3(rows), dim3(ROW_THREADS), 0, stream, (__half *)to, codes, scales, width);
}

static uint32_t tiles_of(uint32_t inputs) { return (inputs + TILE - 1) / TILE; }

/* So many tiles of inputs has a block, that there are blocks enough. */
static uint32_t span_tiles_of(uint32_t outputs, uint32_t inputs) {
    uint32_t blocks = (outputs + OUTPUTS - 1) / OUTPUTS, tiles = tiles_of(inputs);
    uint32_t spans = (BLOCKS_WANTED + blocks - 1) / blocks, most = tiles / TILES_MIN;
    if (spans > most) spans = most;
    return spans > 1 ? (tiles + spans - 1) / spans : tiles;
}

size_t kvf_cuda_f8_partial_floats(uint32_t outputs, uint32_t inputs) {
    uint32_t span = span_tiles_of(outputs, inputs), spans = (tiles_of(inputs) + span - 1) / span;
    return spans > 1 ? (size_t)spans * ROWS * outputs : 0;
}

template <int COLUMNS> static void launch(const kvf_cuda_f8_product &a, void *stream) {
    uint32_t span = span_tiles_of(a.outputs, a.inputs), spans = (tiles_of(a.inputs) + span - 1) / span;
    size_t bytes = STAGES * (CODES_BYTES + COLUMNS * 8 * TILE * 2);
    KVF_ALLOW_SHARED((product<COLUMNS>), bytes);
    KVF_LAUNCH(
        (product<COLUMNS>), dim3((a.outputs + OUTPUTS - 1) / OUTPUTS, spans), dim3(THREADS), bytes, stream, a, span);
    if (spans > 1)
        KVF_LAUNCH(add_spans, dim3((a.outputs + ROW_THREADS - 1) / ROW_THREADS, a.rows), dim3(ROW_THREADS), 0, stream,
            a, spans);
}

int kvf_cuda_f8_multiply(const kvf_cuda_f8_product *args, void *stream) {
    kvf_cuda_f8_product a = *args;
    if (a.inputs == 0 || a.inputs % KVF_CUDA_F8_ALIGN) return -1;
    for (uint32_t first = 0; first < args->rows && a.outputs; first += ROWS) {
        a.x = args->x + (size_t)first * a.inputs;
        a.y = args->y + (size_t)first * a.outputs;
        a.rows = args->rows - first < ROWS ? args->rows - first : (uint32_t)ROWS;
        if (a.rows <= 8)
            launch<1>(a, stream);
        else if (a.rows <= 16)
            launch<2>(a, stream);
        else if (a.rows <= 32)
            launch<4>(a, stream);
        else
            launch<8>(a, stream);
    }
    return 0;
}
