/* decode.cu - attention of one token per sequence over its pages. Bound by reading K and V once.
 *
 * The context is cut at every KVF_CUDA_SPLIT positions, wherever a sequence stands in a batch: one block computes one
 * split of one key head, for all the query heads that share it. Its warps take pages in turn, each with its own running
 * maximum, sum and output; they are merged in ascending order, and a second launch folds the splits from the left.
 * So a sequence's result depends on its own context only.
 *
 * A warp keeps STAGES pages under way. Its 16 rows of queries are the group, padded with zeros: keys and values are
 * read from shared memory once for all of it. */
#include "attention.h"
#include "sixteen.h"

enum { STAGES = 2, ROWS = ATTENTION_ROWS, PAGE = PAGE_TOKENS };

#ifndef KVF_PLANT
#define KVF_PLANT 0 /* tests: a mistake that they must see */
#endif

/* Shared memory: the queries if they lie there; per warp its stages and, where codes come, its page as halves. The
 * merge uses the same memory afterwards: per warp and row, output, maximum and sum. */
template <int DIM, bool F8> struct layout {
    static const int warps = DIM > 128 ? 2 : 4;
    static const int tile = PAGE * padded<DIM>::stride; /* K or V of one page and head, in halves */
    static const int page = 2 * tile * (int)sizeof(__half);
    static const int stage = F8 ? codes<DIM>::bytes : page;
    static const int ready = STAGES * stage, warp = ready + (F8 ? page : 0);
    static const int first_warp = queries<DIM>::room * (int)sizeof(__half);
    static const int merge = warps * ROWS * (DIM + 2) * (int)sizeof(float);
    static const int pages = first_warp + warps * warp;
    static const int shared = pages > merge ? pages : merge;
    static_assert(shared <= SHARED_MAX, "more shared memory than every GPU has");
};

template <int DIM, bool F8>
KVF_DEVICE void fetch(const kvf_cuda_decode &a, uint8_t *to, uint32_t block, uint32_t head, int tokens, int lane) {
    const uint8_t *page = a.pages + block * a.page_bytes;
    if constexpr (F8)
        fetch_codes<DIM>(to, page, a.kv_heads, head, tokens, lane, 32);
    else
        fetch_page<DIM>((__half *)to, (__half *)to + layout<DIM, F8>::tile, page, a.kv_heads, head, tokens, lane, 32);
}

/* One page, of which the first `tokens` count. */
template <int DIM>
KVF_DEVICE void attend(
    const __half *k, const queries<DIM> &q, int tokens, float scale, softmax *m, float (*out)[4], int lane) {
    float s[2][4];
    score<DIM, 2>(s, q, k, lane);
    for (int t = 0; t < 2; t++)
        for (int i = 0; i < 4; i++) s[t][i] = t * 8 + (lane & 3) * 2 + (i & 1) < tokens ? s[t][i] * scale : -INFINITY;
    soften<DIM, 2>(m, s, out);
    weigh<DIM, 2>(out, s, k + PAGE * padded<DIM>::stride, lane);
}

/* A warp's state to shared memory: [row][DIM + 2], the last two are maximum and sum. */
template <int DIM> KVF_DEVICE void put_state(float *to, const softmax &m, const float (*out)[4], int lane) {
    for (int r = 0; r < 2; r++) {
        float *row = to + (lane / 4 + 8 * r) * (DIM + 2);
        for (int d = 0; d < DIM / 8; d++) {
            row[d * 8 + (lane & 3) * 2] = out[d][2 * r];
            row[d * 8 + (lane & 3) * 2 + 1] = out[d][2 * r + 1];
        }
        if ((lane & 3) == 0) {
            row[DIM] = m.top[r];
            row[DIM + 1] = m.sum[r];
        }
    }
}

/* Element d of a row, folded over `count` states from the first on; they lie `apart` floats from each other. */
KVF_DEVICE float fold(const float *state, int dim, int d, int count, size_t apart, float *top_out, float *sum_out) {
    float top = -INFINITY, sum = 0, value = 0;
    for (int i = 0; i < count; i++, state += apart) {
        if (state[dim + 1] == 0) continue; /* saw no token */
        float next = fmaxf(top, state[dim]), old = exp2f(top - next), now = exp2f(state[dim] - next);
        sum = sum * old + state[dim + 1] * now;
        value = value * old + state[d] * now;
        top = next;
    }
    *top_out = top;
    *sum_out = sum;
    return value;
}

/* grid: splits, key heads, sequences. */
template <int DIM, bool F8>
static __global__ void __launch_bounds__(layout<DIM, F8>::warps * 32) decode_split(kvf_cuda_decode a) {
    typedef layout<DIM, F8> place;
    const int WARPS = place::warps;
    KVF_SHARED(uint8_t, shared);
    int warp = threadIdx.x / 32, lane = threadIdx.x % 32, group = a.heads / a.kv_heads;
    uint32_t split = blockIdx.x, head = blockIdx.y, seq = blockIdx.z, context = a.contexts[seq];
    if (split * KVF_CUDA_SPLIT >= context) return; /* the whole block */
    const uint32_t *table = a.block_tables + (size_t)seq * a.table_stride;
    int begin = split * (KVF_CUDA_SPLIT / PAGE);
    int end = min(begin + KVF_CUDA_SPLIT / PAGE, (int)((context + PAGE - 1) / PAGE));
    uint8_t *own = shared + place::first_warp + warp * place::warp;
    __half *ready = (__half *)(own + place::ready);
    queries<DIM> q;
    float out[DIM / 8][4] = {};
    softmax m = softmax_begin();
    load_queries<DIM>(&q, (__half *)shared, (const __half *)a.q + ((size_t)seq * a.heads + head * group) * DIM, DIM,
        group, threadIdx.x, WARPS * 32);
    if constexpr (queries<DIM>::in_shared) __syncthreads();

    for (int s = 0; s < STAGES; s++) {
        int page = begin + warp + s * WARPS;
        if (page < end) fetch<DIM, F8>(a, own + s * place::stage, table[page], head, context - page * PAGE, lane);
        kvf_copy_commit();
    }
    for (int page = begin + warp, stage = 0; page < end; page += WARPS, stage = (stage + 1) % STAGES) {
        if (KVF_PLANT != 1) kvf_copy_wait<STAGES - 1>();
        if (KVF_PLANT != 2) __syncwarp(); /* each lane waited for its own copies only */
        uint8_t *came = own + stage * place::stage;
        if constexpr (F8) {
            expand_codes<DIM>(ready, ready + place::tile, came, lane, 32);
            if (KVF_PLANT != 7) __syncwarp(); /* each lane made its own part */
        }
        attend<DIM>(F8 ? ready : (const __half *)came, q, min((int)PAGE, (int)(context - page * PAGE)),
            a.scale * KVF_LOG2_E, &m, out, lane);
        if (KVF_PLANT != 3) __syncwarp(); /* all have read it: it may be filled again */
        int next = page + STAGES * WARPS;
        if (next < end)
            fetch<DIM, F8>(a, came, table[KVF_PLANT == 4 ? begin : next], head, context - next * PAGE, lane);
        kvf_copy_commit();
    }
    kvf_copy_wait<0>();
    __syncthreads(); /* pages are read: the memory is the merge's */
    float *merge = (float *)shared;
    put_state<DIM>(merge + warp * ROWS * (DIM + 2), m, out, lane);
    if (KVF_PLANT != 5) __syncthreads();
    for (int i = threadIdx.x; i < group * DIM; i += WARPS * 32) {
        int row = i / DIM, d = i % DIM;
        float top, sum, value = fold(merge + row * (DIM + 2), DIM, d, WARPS, ROWS * (DIM + 2), &top, &sum);
        float *to = a.partial + (((size_t)seq * a.heads + head * group + row) * gridDim.x + split) * (DIM + 2);
        to[d] = value;
        if (d == 0) {
            to[DIM] = top;
            to[DIM + 1] = sum;
        }
    }
}

/* grid: heads, sequences; one thread a value. */
static __global__ void decode_fold(kvf_cuda_decode a, uint32_t splits_max) {
    uint32_t head = blockIdx.x, seq = blockIdx.y, d = threadIdx.x;
    uint32_t splits = (a.contexts[seq] + KVF_CUDA_SPLIT - 1) / KVF_CUDA_SPLIT;
    if (KVF_PLANT == 6 && splits > 1) splits--;
    size_t row = (size_t)seq * a.heads + head, apart = a.head_dim + 2;
    float top, sum, value = fold(a.partial + row * splits_max * apart, a.head_dim, d, splits, apart, &top, &sum);
    size_t at = row * a.head_dim + d;
    if (a.out_type == KVF_CUDA_BF16)
        ((bf16::value *)a.out)[at] = bf16::of(value / sum);
    else
        ((f16::value *)a.out)[at] = f16::of(value / sum);
}

static uint32_t splits_of(uint32_t context_max) { return (context_max + KVF_CUDA_SPLIT - 1) / KVF_CUDA_SPLIT; }

size_t kvf_cuda_decode_partial_floats(uint32_t sequences, uint32_t heads, uint32_t head_dim, uint32_t context_max) {
    return (size_t)sequences * heads * splits_of(context_max) * (head_dim + 2);
}

template <int DIM, bool F8> static void launch(const kvf_cuda_decode &a, void *stream) {
    uint32_t splits = splits_of(a.context_max);
    dim3 grid(splits, a.kv_heads, a.sequences);
    KVF_ALLOW_SHARED((decode_split<DIM, F8>), (layout<DIM, F8>::shared));
    KVF_LAUNCH((decode_split<DIM, F8>), grid, dim3(layout<DIM, F8>::warps * 32), (layout<DIM, F8>::shared), stream, a);
    KVF_LAUNCH(decode_fold, dim3(a.heads, a.sequences), dim3(DIM), 0, stream, a, splits);
}

template <int DIM> static int launch_for(const kvf_cuda_decode &a, void *stream) {
    if (a.cell == KVF_CUDA_CELL_F8)
        launch<DIM, true>(a, stream);
    else
        launch<DIM, false>(a, stream);
    return 0;
}

int kvf_cuda_decode_attention(const kvf_cuda_decode *args, void *stream) {
    kvf_cuda_decode a = *args;
    if (a.sequences == 0) return 0;
    if (a.kv_heads == 0 || a.heads % a.kv_heads || a.heads / a.kv_heads > KVF_CUDA_GROUP_MAX) return -1;
    switch (a.head_dim) {
#define LAUNCH(dim)                                                                                                    \
    case dim: return launch_for<dim>(a, stream);
        KVF_CUDA_HEAD_DIMS(LAUNCH)
#undef LAUNCH
    default: return -1;
    }
}
