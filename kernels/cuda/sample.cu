/* sample.cu - one block a row of logits: from them to a token by the definition of engine/sampler, operation by
 * operation where bits depend on it. Candidates stay in order of id; weights lie by id. Cuts are found by counting, 11,
 * 11 and 10 bits of the keys at a time.
 *
 * Sums of weights: chunks of 256 candidates, 16 lanes each, then halves onto halves, then chunks in ascending order, in
 * double. The mass that a cut looks for is added as integers, in any order. */
#include "kvf/cuda_sample.h"
#include "port.h"

enum { THREADS = 512, WARPS = THREADS / 32, CHUNK = 256, LANES = 16, BUCKETS = 2048, NONE = 0x7FFFFFFF };
static const float GREEDY_TEMPERATURE = 1e-4f, LOGPROB_MIN = -9999.0f, FLOAT_MAX = 3.402823466e38f;
static const float MASS_UNITS = 1099511627776.0f; /* 2^40 of weight 1: with 2^20 tokens far from 2^64 */

#ifndef KVF_PLANT
#define KVF_PLANT 0 /* tests: a mistake that they must see */
#endif

typedef unsigned long long u64;

/* ---- exp and log of engine/sampler ---- */

KVF_DEVICE float madd(float a, float b, float c) { return __fadd_rn(__fmul_rn(a, b), c); }

/* e^x for x <= 0; NaN, and what would be subnormal, gives 0. */
KVF_DEVICE float exp_of(float x) {
    if ((__float_as_uint(x) & 0x7FFFFFFFu) >= 0x42AE0000u) return 0; /* 87 and beyond */
    float shifted = madd(x, 0x1.715476p0f, 0x1.8p23f), n = __fsub_rn(shifted, 0x1.8p23f);
    float r = __fsub_rn(__fsub_rn(x, __fmul_rn(n, 0x1.62e4p-1f)), __fmul_rn(n, 0x1.7f7d1cp-20f));
    float p = madd(1.0f / 5040, r, 1.0f / 720);
    p = madd(p, r, 1.0f / 120);
    p = madd(p, r, 1.0f / 24);
    p = madd(p, r, 1.0f / 6);
    p = madd(p, r, 0.5f);
    p = madd(p, r, 1.0f);
    p = madd(p, r, 1.0f);
    return __fmul_rn(p, __uint_as_float((__float_as_uint(shifted) - 0x4B400000u + 127u) << 23));
}

KVF_DEVICE double log_of(double x) {
    u64 bits = (u64)__double_as_longlong(x);
    int e = (int)(bits >> 52) - 1023;
    double m = __longlong_as_double((long long)((bits & 0xFFFFFFFFFFFFFull) | 0x3FF0000000000000ull));
    if (m > 0x1.6a09e667f3bcdp0) {
        m *= 0.5;
        e++;
    }
    double f = __ddiv_rn(m - 1.0, m + 1.0), f2 = __dmul_rn(f, f), sum = 0;
    for (int k = 23; k >= 1; k -= 2) sum = __dadd_rn(__dmul_rn(sum, f2), __ddiv_rn(1.0, (double)k));
    return __dadd_rn(__dmul_rn(__dmul_rn(2.0, f), sum), __dmul_rn((double)e, 0x1.62e42fefa39efp-1));
}

/* ---- one row at work ---- */

struct best {
    float z;
    uint32_t id;
};

struct cut { /* keys above `key` stay, and of those equal to it the first `ties` */
    uint32_t key, ties;
    u64 above; /* mass of the keys above, while it is being found */
};

struct board { /* in shared memory */
    best bests[WARPS];
    uint32_t above[WARPS], ties[WARPS];
    cut found;
    double total;
    uint32_t token;
    uint32_t used[BUCKETS / 32];
    u64 mass[BUCKETS];
    float members[CHUNK];
};

struct work {
    float *z; /* by id */
    float *weight; /* by id */
    uint32_t *lists[2];
    const uint32_t *ids; /* of the candidates, ascending; NULL: candidate i is token i */
    uint32_t count;
    float max, temperature, min_p;
    board *b;
    double *chunks; /* [chunks of the vocabulary], shared */
};

KVF_DEVICE uint32_t id_of(const work &w, uint32_t i) { return w.ids ? w.ids[i] : i; }

/* Of equals the lower id is better; a NaN is never. */
KVF_DEVICE bool better(best a, best b) { return a.z > b.z || (a.z == b.z && a.id < b.id); }

/* The best of all tokens that come after `after` in that order; id UINT32_MAX: there is none. */
KVF_DEVICE best find_best(const work &w, uint32_t vocab, best after) {
    best mine = {-INFINITY, UINT32_MAX};
    for (uint32_t i = threadIdx.x; i < vocab; i += THREADS) {
        best x = {w.z[i], i};
        if (better(after, x) && better(x, mine)) mine = x;
    }
    for (int away = 16; away; away >>= 1) {
        best other = {__shfl_xor_sync(KVF_WARP_ALL, mine.z, away), __shfl_xor_sync(KVF_WARP_ALL, mine.id, away)};
        if (better(other, mine)) mine = other;
    }
    __syncthreads(); /* earlier readers are done */
    if (threadIdx.x % 32 == 0) w.b->bests[threadIdx.x / 32] = mine;
    __syncthreads();
    for (int i = 0; i < WARPS; i++)
        if (better(w.b->bests[i], mine)) mine = w.b->bests[i];
    return mine;
}
KVF_DEVICE best find_best(const work &w, uint32_t vocab) { return find_best(w, vocab, best{INFINITY, 0}); }

/* Integers in the order of the floats; both zeros equal, NaN lowest. */
KVF_DEVICE uint32_t key_of(float z) {
    uint32_t bits = __float_as_uint(__fadd_rn(z, 0.0f));
    bits ^= bits >> 31 ? UINT32_MAX : 0x80000000u;
    return z == z ? bits : 0;
}
KVF_DEVICE float of_key(uint32_t key) { return __uint_as_float(key ^ (key >> 31 ? 0x80000000u : UINT32_MAX)); }

KVF_DEVICE float weight_of(const work &w, float z) { return exp_of(__fdiv_rn(__fsub_rn(z, w.max), w.temperature)); }

/* ---- sums ---- */

/* Into w.chunks; `value` of each of `count`. Ends with a barrier. */
template <class F> KVF_DEVICE void sum_chunks(const work &w, uint32_t count, F value) {
    uint32_t chunks = (count + CHUNK - 1) / CHUNK, lane = threadIdx.x % LANES;
    __syncthreads(); /* earlier readers are done */
    for (uint32_t first = threadIdx.x / 32 * 2; first < chunks; first += WARPS * 2) {
        uint32_t chunk = first + threadIdx.x % 32 / LANES; /* two of a warp */
        double sum = 0;
        for (uint32_t i = chunk * CHUNK + lane; i < count && i < (chunk + 1) * CHUNK; i += LANES)
            sum = __dadd_rn(sum, (double)value(i));
        for (int half = LANES / 2; half; half >>= 1)
            sum = __dadd_rn(sum, __shfl_down_sync(KVF_WARP_ALL, sum, half, LANES));
        if (lane == 0 && chunk < chunks) w.chunks[chunk] = sum;
    }
    __syncthreads();
}

/* The sum of the chunks in ascending order, in every thread. */
KVF_DEVICE double total_of(const work &w, uint32_t count) {
    if (threadIdx.x == 0) {
        double total = 0;
        for (uint32_t i = 0; i < (count + CHUNK - 1) / CHUNK; i++) total = __dadd_rn(total, w.chunks[i]);
        w.b->total = total;
    }
    __syncthreads();
    return w.b->total;
}

/* What candidate i weighs after min-p. */
KVF_DEVICE float standing(const work &w, uint32_t i) {
    float v = w.weight[id_of(w, i)];
    return v >= w.min_p ? v : 0;
}

KVF_DEVICE double total_standing(const work &w) {
    sum_chunks(w, w.count, [&](uint32_t i) { return standing(w, i); });
    return total_of(w, w.count);
}

/* ---- cuts ---- */

/* By warp 0: the bucket, from the highest, in which the mass reaches target, or the lowest in use. */
KVF_DEVICE void choose_bucket(const work &w, u64 target, int shift, int buckets) {
    board *b = w.b;
    int lane = threadIdx.x, each = buckets / 32, high = buckets - 1 - lane * each, lowest = NONE;
    u64 sum = 0;
    for (int i = high; i > high - each; i--) {
        sum += b->mass[i];
        if (b->used[i / 32] >> (i % 32) & 1) lowest = i;
    }
    u64 reach = sum, above = b->found.above;
    for (int by = 1; by < 32; by <<= 1) {
        u64 other = __shfl_up_sync(KVF_WARP_ALL, reach, by);
        if (lane >= by) reach += other;
    }
    uint32_t enough = __ballot_sync(KVF_WARP_ALL, above + reach >= target);
    uint32_t in_use = __ballot_sync(KVF_WARP_ALL, lowest != NONE);
    __syncwarp(); /* all have read what is known */
    if (lane != (enough ? __ffs((int)enough) - 1 : 31 - __clz((int)in_use))) return;
    int chosen = lowest;
    above += reach - sum;
    for (int i = high; i > high - each; i--) {
        bool last = enough ? above + b->mass[i] >= target : i == lowest;
        if (last && (b->used[i / 32] >> (i % 32) & 1)) {
            chosen = i;
            break;
        }
        above += b->mass[i];
    }
    b->found.key |= (uint32_t)chosen << shift;
    b->found.above = above;
}

/* The smallest set of the highest keys whose mass reaches target, or all. Mass: 1 each, or the weights. */
KVF_DEVICE cut find_cut(const work &w, bool by_weight, u64 target) {
    board *b = w.b;
    uint32_t known = 0; /* bits of the key that are fixed */
    __syncthreads(); /* earlier readers are done */
    if (threadIdx.x == 0) b->found = cut{0, 0, 0};
    for (int pass = 0; pass < 3; pass++) {
        int shift = pass == 0 ? 21 : pass == 1 ? 10 : 0, buckets = pass == 2 ? BUCKETS / 2 : BUCKETS;
        for (int i = threadIdx.x; i < buckets; i += THREADS) b->mass[i] = 0;
        for (int i = threadIdx.x; i < buckets / 32; i += THREADS) b->used[i] = 0;
        __syncthreads();
        uint32_t prefix = b->found.key;
        for (uint32_t i = threadIdx.x; i < w.count; i += THREADS) {
            uint32_t id = id_of(w, i), key = key_of(w.z[id]), at = key >> shift & (buckets - 1);
            if ((key & known) != prefix) continue;
            atomicAdd(&b->mass[at], by_weight ? __float2ull_rn(w.weight[id] * MASS_UNITS) : (u64)1);
            atomicOr(&b->used[at / 32], 1u << (at % 32));
        }
        __syncthreads();
        if (threadIdx.x < 32) choose_bucket(w, target, shift, buckets);
        if (KVF_PLANT != 1) __syncthreads();
        known |= (uint32_t)(buckets - 1) << shift;
    }
    cut c = b->found;
    u64 one = by_weight ? __float2ull_rn(weight_of(w, of_key(c.key)) * MASS_UNITS) : 1;
    u64 need = target > c.above ? target - c.above : 1;
    u64 ties = one ? (need + one - 1) / one : UINT32_MAX;
    c.ties = (uint32_t)(ties < UINT32_MAX ? ties : UINT32_MAX) + (KVF_PLANT == 2);
    return c;
}

/* Candidates that the cut leaves, in order, into `to`. A warp takes a run of them. */
KVF_DEVICE void apply_cut(work *w, cut c, uint32_t *to) {
    uint32_t warp = threadIdx.x / 32, lane = threadIdx.x % 32, below = (1u << lane) - 1;
    uint32_t each = (w->count + THREADS - 1) / THREADS * 32, begin = min(w->count, warp * each);
    uint32_t end = min(w->count, begin + each), above = 0, ties = 0;
    for (uint32_t i = begin; i < end; i += 32) {
        uint32_t key = i + lane < end ? key_of(w->z[id_of(*w, i + lane)]) : 0;
        above += __popc(__ballot_sync(KVF_WARP_ALL, i + lane < end && key > c.key));
        ties += __popc(__ballot_sync(KVF_WARP_ALL, i + lane < end && key == c.key));
    }
    if (lane == 0) {
        w->b->above[warp] = above;
        w->b->ties[warp] = ties;
    }
    __syncthreads();
    uint32_t place = 0, tie = 0, all_above = 0, all_ties = 0;
    for (uint32_t v = 0; v < WARPS; v++) {
        if (v == warp) {
            place = all_above + min(all_ties, c.ties);
            tie = all_ties;
        }
        all_above += w->b->above[v];
        all_ties += w->b->ties[v];
    }
    for (uint32_t i = begin; i < end; i += 32) {
        uint32_t id = i + lane < end ? id_of(*w, i + lane) : 0, key = i + lane < end ? key_of(w->z[id]) : 0;
        bool equal = i + lane < end && key == c.key;
        uint32_t equals = __ballot_sync(KVF_WARP_ALL, equal);
        bool stays = (i + lane < end && key > c.key) || (equal && tie + __popc(equals & below) < c.ties);
        uint32_t all = __ballot_sync(KVF_WARP_ALL, stays);
        if (stays) to[place + __popc(all & below)] = id;
        place += __popc(all);
        tie += __popc(equals);
    }
    w->ids = to;
    w->count = all_above + min(all_ties, c.ties);
    __syncthreads();
}

/* ---- the draw ---- */

/* The first candidate at which the running sum passes uniform * total; w.chunks holds the sums. */
KVF_DEVICE uint32_t draw(const work &w, double total, u64 random) {
    board *b = w.b;
    double target = __dmul_rn(__dmul_rn((double)(long long)(random >> 11), 0x1p-53), total), before = 0;
    if (threadIdx.x == 0) {
        double sum = 0;
        uint32_t first = 0;
        for (uint32_t i = 0; i < (w.count + CHUNK - 1) / CHUNK; i++) {
            if (!(w.chunks[i] > 0)) continue;
            first = i * CHUNK;
            before = sum;
            sum = __dadd_rn(sum, w.chunks[i]);
            if (sum > target) break;
        }
        b->token = first;
    }
    __syncthreads();
    uint32_t first = b->token, end = min(w.count - first, (uint32_t)CHUNK);
    if (threadIdx.x < end) b->members[threadIdx.x] = standing(w, first + threadIdx.x);
    __syncthreads();
    if (threadIdx.x == 0) {
        uint32_t last = 0; /* where sums in this order fall short: the last one of weight */
        for (uint32_t i = 0; i < end; i++) {
            if (!(b->members[i] > 0)) continue;
            last = i;
            before = __dadd_rn(before, (double)b->members[i]);
            if (before > target) break;
        }
        b->token = id_of(w, first + last);
    }
    __syncthreads();
    return b->token;
}

KVF_DEVICE uint32_t choose(work *w, const kvf_cuda_sampling &s) {
    best top = find_best(*w, w->count);
    uint32_t greedy = top.id == UINT32_MAX ? 0 : top.id;
    if (s.temperature <= GREEDY_TEMPERATURE || s.top_p <= 0 || s.top_k == 1) return greedy;
    bool cut_p = s.top_p < 1.0f;
    w->max = top.z;
    w->temperature = s.temperature;
    w->min_p = 0;
    if (s.top_k > 0 && s.top_k < w->count) apply_cut(w, find_cut(*w, false, s.top_k), w->lists[0]);
    for (uint32_t i = threadIdx.x; i < w->count; i += THREADS) {
        uint32_t id = id_of(*w, i);
        w->weight[id] = weight_of(*w, w->z[id]);
    }
    double total = total_standing(*w);
    if (!(total > 0)) return greedy;
    if (cut_p) {
        double target = __dmul_rn(__dmul_rn((double)s.top_p, total), (double)MASS_UNITS);
        apply_cut(w, find_cut(*w, true, __double2ull_ru(target)), w->lists[1]);
    }
    w->min_p = s.min_p;
    if (cut_p || s.min_p > 0) total = total_standing(*w);
    return draw(*w, total, s.random);
}

/* ---- adjusted logits ---- */

KVF_DEVICE float keep_finite(float x) {
    if (!(x >= -FLOAT_MAX)) return -INFINITY;
    return x > FLOAT_MAX ? FLOAT_MAX : x;
}

KVF_DEVICE float penalised(float x, const kvf_cuda_sampling &s, uint32_t uses) {
    x = x > 0 ? __fdiv_rn(x, s.repetition_penalty) : __fmul_rn(x, s.repetition_penalty);
    if (uses > 0) x = __fsub_rn(__fsub_rn(x, s.presence_penalty), __fmul_rn(s.frequency_penalty, (float)uses));
    return keep_finite(x);
}

/* Each run of entries of one token by one thread. restore: puts the model's logit back. */
KVF_DEVICE void adjust(const kvf_cuda_sample &a, const kvf_cuda_sampling &s, float *z, bool restore) {
    kvf_cuda_adjustment *list = a.adjustments + s.adjust_begin;
    for (uint32_t i = threadIdx.x; i < s.adjust_count; i += THREADS) {
        uint32_t token = list[i].token, last = i;
        if ((i > 0 && list[i - 1].token == token) || token >= a.vocab_used) continue;
        if (restore) {
            z[token] = list[i].raw;
            continue;
        }
        float x = list[i].raw = z[token];
        for (uint32_t j = i; j < s.adjust_count && list[j].token == token; last = j++)
            if (list[j].flags & KVF_CUDA_BIASED) x = keep_finite(__fadd_rn(x, list[j].bias));
        if (list[last].flags & KVF_CUDA_SEEN) x = penalised(x, s, list[last].uses);
        z[token] = list[last].flags & KVF_CUDA_SUPPRESSED ? -INFINITY : x;
    }
    __syncthreads();
}

/* ---- logprobs ---- */

KVF_DEVICE float logprob_of(float z, double log_sum) {
    float v = (float)__dsub_rn((double)z, log_sum);
    return v >= LOGPROB_MIN ? v : LOGPROB_MIN;
}

/* 1 + tokens above; of equals the lower id is above. A NaN is below all. */
KVF_DEVICE uint32_t rank_of(const work &w, uint32_t count, uint32_t token, float z) {
    uint32_t above = 0;
    for (uint32_t i = threadIdx.x; i < count; i += THREADS) above += i < token ? w.z[i] >= z : w.z[i] > z;
    for (int away = 16; away; away >>= 1) above += __shfl_xor_sync(KVF_WARP_ALL, above, away);
    __syncthreads(); /* earlier readers are done */
    if (threadIdx.x % 32 == 0) w.b->above[threadIdx.x / 32] = above;
    __syncthreads();
    above = 0;
    for (int i = 0; i < WARPS; i++) above += w.b->above[i];
    return z == z ? 1 + above : count;
}

KVF_DEVICE void score(work *w, uint32_t count, const kvf_cuda_sampling &s, uint32_t token, kvf_cuda_sampled *out) {
    best top = find_best(*w, count);
    double log_sum = top.z; /* no finite logit, or an infinite one */
    if (top.z >= -FLOAT_MAX && top.z <= FLOAT_MAX) {
        const float *z = w->z;
        sum_chunks(*w, count, [=](uint32_t i) { return exp_of(__fsub_rn(z[i], top.z)); });
        log_sum = __dadd_rn((double)top.z, log_of(total_of(*w, count)));
    }
    uint32_t rank = rank_of(*w, count, token, w->z[token]), found = 0;
    if (threadIdx.x == 0) out->chosen = kvf_cuda_token_logprob{token, logprob_of(w->z[token], log_sum), rank};
    for (; found < s.top_logprobs && top.id != UINT32_MAX; top = find_best(*w, count, top)) {
        if (threadIdx.x == 0) out->top[found] = kvf_cuda_token_logprob{top.id, logprob_of(top.z, log_sum), found + 1};
        found++;
    }
    if (threadIdx.x == 0) out->top_count = found;
}

/* grid: rows. */
static __global__ void __launch_bounds__(THREADS) sample_rows(kvf_cuda_sample a) {
    KVF_SHARED(board, b);
    kvf_cuda_sampling s = a.rows[blockIdx.x];
    kvf_cuda_sampled *out = a.out + blockIdx.x;
    uint32_t *scratch = (uint32_t *)a.scratch + (size_t)blockIdx.x * 3 * a.vocab, token = s.given;
    work w = {};
    w.z = a.logits + (size_t)s.row * a.vocab;
    w.weight = (float *)scratch;
    w.lists[0] = scratch + a.vocab;
    w.lists[1] = scratch + 2 * (size_t)a.vocab;
    w.count = a.vocab_used;
    w.b = b;
    w.chunks = (double *)(b + 1);
    if (token == KVF_CUDA_DRAW) {
        if (s.adjust_count) adjust(a, s, w.z, false);
        token = choose(&w, s);
        __syncthreads(); /* all have read the adjusted logits */
        if (s.adjust_count) adjust(a, s, w.z, true);
    }
    if (threadIdx.x == 0) {
        out->chosen = kvf_cuda_token_logprob{token, 0, 0};
        out->top_count = 0;
    }
    if (s.want_logprobs || s.top_logprobs) score(&w, a.vocab_used, s, token, out);
}

size_t kvf_cuda_sample_scratch_bytes(uint32_t vocab, uint32_t rows_count) {
    return (size_t)vocab * rows_count * 3 * sizeof(uint32_t);
}

int kvf_cuda_sample_rows(const kvf_cuda_sample *args, void *stream) {
    kvf_cuda_sample a = *args;
    if (a.vocab > KVF_CUDA_VOCAB_MAX || a.vocab_used > a.vocab || a.vocab_used == 0) return -1;
    if (a.rows_count == 0) return 0;
    size_t shared = sizeof(board) + (size_t)(a.vocab_used + CHUNK - 1) / CHUNK * sizeof(double);
    KVF_ALLOW_SHARED(sample_rows, shared);
    KVF_LAUNCH(sample_rows, dim3(a.rows_count), dim3(THREADS), shared, stream, a);
    return 0;
}
