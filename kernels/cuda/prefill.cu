/* prefill.cu - causal attention of prompts over pages. Bound by arithmetic: tensor cores, 64 query tokens of one head a
 * block, 16 a warp, against a step of tokens at a time, which the block brings to shared memory one step ahead of its
 * use. Steps begin at multiples of their length, so that a token's result does not depend on how a prompt was cut into
 * chunks, nor on what else is in the batch. */
#include "attention.h"
#include "sixteen.h"

enum { WARPS = 4, QUERIES = WARPS * ATTENTION_ROWS, STAGES = 2 };

#ifndef KVF_PLANT
#define KVF_PLANT 0 /* tests: a mistake that they must see */
#endif

template <int DIM, bool F8> struct layout {
    static const int step = DIM > 128 ? 32 : 64; /* tokens; of large heads fewer, or registers would not do */
    static const int tiles = step / 8, pages = step / PAGE_TOKENS;
    static const int tile = step * padded<DIM>::stride; /* keys or values of one step, in halves */
    static const int both = 2 * tile * (int)sizeof(__half);
    static const int stage = F8 ? pages * codes<DIM>::bytes : both;
    static const int ready = STAGES * stage, queries_at = ready + (F8 ? both : 0);
    static const int shared = queries_at + WARPS * queries<DIM>::room * (int)sizeof(__half);
    static_assert(shared <= SHARED_MAX, "more shared memory than every GPU has");
};

/* Tokens from `end` on are zeros. */
template <int DIM, bool F8>
KVF_DEVICE void fetch_step(
    const kvf_cuda_prefill &a, uint8_t *to, const uint32_t *table, uint32_t head, int begin, int end) {
    for (int p = 0; p < layout<DIM, F8>::pages; p++) {
        int first = begin + p * PAGE_TOKENS;
        /* A page past the end is filled with zeros too: any page will do as its source. */
        const uint8_t *page = a.pages + table[(first < end ? first : begin) / PAGE_TOKENS] * a.page_bytes;
        __half *k = (__half *)to + p * PAGE_TOKENS * padded<DIM>::stride;
        if constexpr (F8)
            fetch_codes<DIM>(to + p * codes<DIM>::bytes, page, a.kv_heads, head, end - first, threadIdx.x, WARPS * 32);
        else
            fetch_page<DIM>(k, k + layout<DIM, F8>::tile, page, a.kv_heads, head, end - first, threadIdx.x, WARPS * 32);
    }
}

template <int DIM> KVF_DEVICE void expand_step(__half *k, const uint8_t *from) {
    for (int p = 0; p < layout<DIM, true>::pages; p++) {
        __half *to = k + p * PAGE_TOKENS * padded<DIM>::stride;
        expand_codes<DIM>(to, to + layout<DIM, true>::tile, from + p * codes<DIM>::bytes, threadIdx.x, WARPS * 32);
    }
}

/* Each of this lane's rows sees positions up to its own. */
template <int TILES> KVF_DEVICE void mask(float (*s)[4], int begin, const int *last, float scale, int lane) {
    for (int t = 0; t < TILES; t++) {
        for (int i = 0; i < 4; i++) {
            int at = begin + t * 8 + (lane & 3) * 2 + (i & 1);
            s[t][i] = at <= last[i / 2] + (KVF_PLANT == 3) ? s[t][i] * scale : -INFINITY;
        }
    }
}

/* grid: tiles of QUERIES tokens, heads, runs. Registers before blocks: without the 1, heads of 32 spill. */
template <int DIM, bool F8> static __global__ void __launch_bounds__(WARPS * 32, 1) prefill_tile(kvf_cuda_prefill a) {
    typedef layout<DIM, F8> place;
    KVF_SHARED(uint8_t, shared);
    const int STEP = place::step, TILES = place::tiles;
    kvf_cuda_run run = a.runs[blockIdx.z];
    int warp = threadIdx.x / 32, lane = threadIdx.x % 32, first = blockIdx.x * QUERIES;
    if (first >= (int)run.tokens) return; /* the whole block */
    uint32_t head = blockIdx.y, kv_head = head / (a.heads / a.kv_heads);
    const uint32_t *table = a.block_tables + (size_t)run.sequence * a.table_stride;
    size_t apart = (size_t)a.heads * DIM;
    int mine = first + warp * ATTENTION_ROWS, rows = min((int)ATTENTION_ROWS, (int)run.tokens - mine);
    const __half *q_from = (const __half *)a.q + (run.row + mine) * apart + (size_t)head * DIM;
    queries<DIM> q;
    float out[DIM / 8][4] = {};
    softmax m = softmax_begin();
    load_queries<DIM>(
        &q, (__half *)(shared + place::queries_at) + warp * queries<DIM>::room, q_from, apart, rows, lane, 32);
    __syncwarp();
    int last[2] = {(int)run.position + mine + lane / 4, (int)run.position + mine + lane / 4 + 8};
    int end = run.position + min(first + QUERIES, (int)run.tokens); /* positions that this block looks at */

    fetch_step<DIM, F8>(a, shared, table, kv_head, 0, end);
    kvf_copy_commit();
    for (int begin = 0, stage = 0; begin < end; begin += STEP, stage ^= 1) {
        uint8_t *came = shared + stage * place::stage, *next = shared + (stage ^ 1) * place::stage;
        const __half *k = (const __half *)(F8 ? shared + place::ready : came);
        if (begin + STEP < end) fetch_step<DIM, F8>(a, next, table, kv_head, begin + STEP, end);
        kvf_copy_commit();
        kvf_copy_wait<1>();
        if (KVF_PLANT != 1) __syncthreads(); /* this step's tokens are there, from all threads */
        if constexpr (F8) {
            expand_step<DIM>((__half *)k, came);
            if (KVF_PLANT != 4) __syncthreads();
        }
        if (begin <= (int)run.position + mine + ATTENTION_ROWS - 1) { /* the whole warp, or none of it */
            float s[TILES][4];
            score<DIM, TILES>(s, q, k, lane);
            mask<TILES>(s, begin, last, a.scale * KVF_LOG2_E, lane);
            soften<DIM, TILES>(&m, s, out);
            weigh<DIM, TILES>(out, s, k + place::tile, lane);
        }
        if (KVF_PLANT != 2) __syncthreads(); /* all have read it: it may be filled again */
    }
    kvf_copy_wait<0>();
    kvf_half_bits *to = a.out + (run.row + mine) * apart + (size_t)head * DIM;
    for (int r = 0; r < 2; r++) {
        int row = lane / 4 + 8 * r;
        if (row >= rows) continue;
        for (int d = 0; d < DIM / 8; d++)
            kvf_put_pair(to + row * apart + d * 8 + (lane & 3) * 2, a.out_type, out[d][2 * r] / m.sum[r],
                out[d][2 * r + 1] / m.sum[r]);
    }
}

template <int DIM, bool F8> static void launch(const kvf_cuda_prefill &a, void *stream) {
    KVF_ALLOW_SHARED((prefill_tile<DIM, F8>), (layout<DIM, F8>::shared));
    dim3 grid((a.tokens_max + QUERIES - 1) / QUERIES, a.heads, a.runs_count);
    KVF_LAUNCH((prefill_tile<DIM, F8>), grid, dim3(WARPS * 32), (layout<DIM, F8>::shared), stream, a);
}

template <int DIM> static int launch_for(const kvf_cuda_prefill &a, void *stream) {
    if (a.cell == KVF_CUDA_CELL_F8)
        launch<DIM, true>(a, stream);
    else
        launch<DIM, false>(a, stream);
    return 0;
}

int kvf_cuda_prefill_attention(const kvf_cuda_prefill *args, void *stream) {
    kvf_cuda_prefill a = *args;
    if (a.runs_count == 0 || a.tokens_max == 0) return 0;
    if (a.kv_heads == 0 || a.heads % a.kv_heads) return -1;
    switch (a.head_dim) {
#define LAUNCH(dim)                                                                                                    \
    case dim: return launch_for<dim>(a, stream);
        KVF_CUDA_HEAD_DIMS(LAUNCH)
#undef LAUNCH
    default: return -1;
    }
}
