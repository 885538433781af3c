/* One token from one row of logits. The work goes over candidate lists in order of id, so that sums have one order
 * whatever was cut away before; cutting finds a boundary by counting passes over the keys (no sort): the cost does not
 * depend on k or p.
 *
 * Invariants: 1. ids >= vocab_used are never looked at. 2. A token of weight 0 is never drawn. 3. The most likely token
 * always stays, so a draw always has something to draw from unless no logit is finite, and then the choice is greedy.
 */
#include "kvf/sampler.h"
#include "kvf/rng.h"
#include "sampler_int.h"
#include <math.h>

#define GREEDY_TEMPERATURE 1e-4f

typedef struct {
    float *own; /* [vocab] room for logits that differ from the model's */
    uint32_t *key; /* [vocab] logits as integers of the same order */
    float *weight; /* [vocab] e^((logit - max) / temperature) */
    uint32_t *id; /* [vocab] ids of the candidates; before there are any: marks of seen tokens */
    const float *z; /* logits of the candidates, at first the model's or `own` */
    bool id_valid; /* false: candidate i is token i */
    size_t count;
} work;

size_t kvf_sample_scratch_bytes(uint32_t vocab) { return (size_t)vocab * 16 + 64; }

static void work_init(work *w, const kvf_sample_input *in, void *scratch) {
    KVF_ASSERT((uintptr_t)scratch % 4 == 0);
    size_t n = in->vocab;
    w->own = scratch;
    w->key = (uint32_t *)scratch + n;
    w->weight = (float *)scratch + 2 * n;
    w->id = (uint32_t *)scratch + 3 * n;
    w->z = in->logits;
    w->count = in->vocab_used;
    w->id_valid = false;
}

static bool has_penalties(const kvf_sampling *s) {
    return s->repetition_penalty != 1.0f || s->presence_penalty != 0.0f || s->frequency_penalty != 0.0f;
}

static bool below_min_tokens(const kvf_sample_input *in) {
    return in->tokens_count - in->prompt_count < in->sampling->min_tokens;
}

/* Adjusted logits stay finite, or -infinity. */
static float keep_finite(float x) {
    if (!(x >= -FLT_MAX)) return -INFINITY;
    return x > FLT_MAX ? FLT_MAX : x;
}

#define SEEN 0x80000000u

static void apply_penalties(work *w, const kvf_sample_input *in) {
    const kvf_sampling *s = in->sampling;
    /* marks: how often a token is in the output, and whether it is anywhere. */
    memset(w->id, 0, in->vocab_used * sizeof *w->id);
    for (uint32_t i = 0; i < in->tokens_count; i++) {
        uint32_t token = in->tokens[i];
        if (token >= in->vocab_used) continue;
        w->id[token] = (w->id[token] + (i >= in->prompt_count)) | SEEN;
    }
    for (uint32_t i = 0; i < in->tokens_count; i++) {
        uint32_t token = in->tokens[i];
        if (token >= in->vocab_used || w->id[token] == 0) continue;
        uint32_t uses = w->id[token] & ~SEEN;
        float x = w->own[token];
        x = x > 0.0f ? x / s->repetition_penalty : x * s->repetition_penalty;
        if (uses > 0) x = (x - s->presence_penalty) - s->frequency_penalty * (float)uses;
        w->own[token] = keep_finite(x);
        w->id[token] = 0; /* once */
    }
}

static void suppress(work *w, const kvf_sample_input *in, const uint32_t *ids, uint32_t count) {
    for (uint32_t i = 0; i < count; i++)
        if (ids[i] < in->vocab_used) w->own[ids[i]] = -INFINITY;
}

/* Bias, penalties, minimum length; the usual request has none of them and its logits are not copied. */
static void adjust(work *w, const kvf_sample_input *in) {
    const kvf_sampling *s = in->sampling;
    bool penalties = has_penalties(s) && in->tokens_count > 0, too_short = below_min_tokens(in);
    if (s->bias_count == 0 && !penalties && !too_short) return;
    memcpy(w->own, in->logits, in->vocab_used * sizeof *w->own);
    w->z = w->own;
    for (uint32_t i = 0; i < s->bias_count; i++)
        if (s->bias[i].token < in->vocab_used)
            w->own[s->bias[i].token] = keep_finite(w->own[s->bias[i].token] + s->bias[i].bias);
    if (penalties) apply_penalties(w, in);
    if (too_short) {
        if (!s->ignore_eos) suppress(w, in, in->end_ids, in->end_ids_count);
        suppress(w, in, s->stop_ids, s->stop_ids_count);
    }
}

/* Integers in the order of the floats; both zeros equal, NaN lowest. */
static void make_keys(work *w) {
    for (size_t i = 0; i < w->count; i++) {
        float x = w->z[i] + 0.0f;
        uint32_t bits;
        memcpy(&bits, &x, 4);
        bits ^= (bits >> 31) ? UINT32_MAX : 0x80000000u;
        w->key[i] = x == x ? bits : 0;
    }
}

static void make_weights(work *w, float temperature) {
    float max = sampler_max(w->z, w->count);
    const float *z = w->z;
    float *weight = w->weight;
    size_t count = w->count;
    for (size_t i = 0; i < count; i++) weight[i] = sampler_exp((z[i] - max) / temperature);
}

static double total_weight(const work *w) {
    double total = 0.0;
    for (size_t start = 0; start < w->count; start += SAMPLER_CHUNK)
        total += sampler_chunk_sum(w->weight + start, KVF_MIN(SAMPLER_CHUNK, w->count - start));
    return total;
}

/* Keys above `key` stay, and of those equal to it the first `ties`. */
typedef struct {
    uint32_t key;
    size_t ties;
} cut;

/* The smallest set of the highest keys whose mass reaches target, or all. Mass: 1 each, or the weights. Three passes
 * fix the key of the last member 11, 11 and 10 bits at a time: each adds up the mass of every value the next bits can
 * take. */
static cut find_cut(const work *w, bool by_weight, double target) {
    static const struct {
        int shift;
        uint32_t buckets;
    } passes[3] = {{21, 2048}, {10, 2048}, {0, 1024}};
    uint32_t prefix = 0, prefix_mask = 0;
    double above = 0.0;
    for (int pass = 0; pass < 3; pass++) {
        double mass[2048] = {0};
        bool used[2048] = {false};
        uint32_t last = passes[pass].buckets - 1, bucket = last;
        for (size_t i = 0; i < w->count; i++) {
            if ((w->key[i] & prefix_mask) != prefix) continue;
            uint32_t b = w->key[i] >> passes[pass].shift & last;
            mass[b] += by_weight ? (double)w->weight[i] : 1.0;
            used[b] = true;
        }
        /* Finer sums may round to just short of target: then the last member is in the lowest bucket in use. */
        double sum = above;
        for (uint32_t b = last + 1; b-- > 0;) {
            if (!used[b]) continue;
            bucket = b;
            above = sum;
            sum += mass[b];
            if (sum >= target) break;
        }
        prefix |= bucket << passes[pass].shift;
        prefix_mask |= last << passes[pass].shift;
    }
    cut c = {.key = prefix, .ties = 0};
    for (size_t i = 0; i < w->count && (above < target || c.ties == 0); i++) {
        if (w->key[i] != prefix) continue;
        above += by_weight ? (double)w->weight[i] : 1.0;
        c.ties++;
    }
    return c;
}

/* Moves candidate i to place `to` <= i. */
static void keep(work *w, size_t i, size_t to, bool with_weight) {
    uint32_t id = w->id_valid ? w->id[i] : (uint32_t)i;
    float z = w->z[i];
    w->own[to] = z;
    w->key[to] = w->key[i];
    if (with_weight) w->weight[to] = w->weight[i];
    w->id[to] = id;
}

static void apply_cut(work *w, cut c, bool with_weight) {
    size_t kept = 0, ties = 0;
    for (size_t i = 0; i < w->count; i++) {
        if (w->key[i] < c.key || (w->key[i] == c.key && ties >= c.ties)) continue;
        ties += w->key[i] == c.key;
        keep(w, i, kept++, with_weight);
    }
    w->z = w->own;
    w->id_valid = true;
    w->count = kept;
}

/* The first candidate at which the running sum passes uniform * total: chunk sums lead to its chunk, then its members
 * are walked. */
static size_t draw(const work *w, double total, double uniform) {
    double target = uniform * total, sum = 0.0, before = 0.0;
    size_t first = 0;
    for (size_t start = 0; start < w->count; start += SAMPLER_CHUNK) {
        double chunk = sampler_chunk_sum(w->weight + start, KVF_MIN(SAMPLER_CHUNK, w->count - start));
        if (!(chunk > 0.0)) continue;
        first = start;
        before = sum;
        sum += chunk;
        if (sum > target) break;
    }
    /* Members are added in another order than in the chunk's sum; where that falls short it is the last one of weight.
     */
    size_t end = KVF_MIN(first + SAMPLER_CHUNK, w->count), last = first;
    for (size_t i = first; i < end; i++) {
        if (!(w->weight[i] > 0.0f)) continue;
        last = i;
        before += (double)w->weight[i];
        if (before > target) break;
    }
    return last;
}

static uint32_t sample(work *w, const kvf_sample_input *in) {
    const kvf_sampling *s = in->sampling;
    if (s->temperature <= GREEDY_TEMPERATURE || s->top_p <= 0.0f || s->top_k == 1)
        return sampler_argmax(w->z, w->count);
    bool cut_k = s->top_k > 0 && s->top_k < w->count, cut_p = s->top_p < 1.0f;
    if (cut_k || cut_p) make_keys(w);
    if (cut_k) apply_cut(w, find_cut(w, false, (double)s->top_k), false);
    make_weights(w, s->temperature);
    double total = total_weight(w);
    if (!(total > 0.0)) return w->id_valid ? w->id[sampler_argmax(w->z, w->count)] : sampler_argmax(w->z, w->count);
    if (cut_p) apply_cut(w, find_cut(w, true, (double)s->top_p * total), true);
    if (s->min_p > 0.0f)
        for (size_t i = 0; i < w->count; i++) w->weight[i] = w->weight[i] >= s->min_p ? w->weight[i] : 0.0f;
    if (cut_p || s->min_p > 0.0f) total = total_weight(w);
    double uniform = (double)(kvf_rng_at(s->seed, in->choice, in->tokens_count) >> 11) * 0x1p-53;
    size_t chosen = draw(w, total, uniform);
    return w->id_valid ? w->id[chosen] : (uint32_t)chosen;
}

void kvf_sample_token(const kvf_sample_input *in, void *scratch, kvf_sample *out) {
    KVF_ASSERT(in->vocab_used > 0 && in->vocab_used <= in->vocab);
    KVF_ASSERT(in->prompt_count <= in->tokens_count);
    work w;
    work_init(&w, in, scratch);
    adjust(&w, in);
    uint32_t token = sample(&w, in);
    KVF_ASSERT(token < in->vocab_used);
    *out = (kvf_sample){.chosen = {.token = token}};
    if (in->sampling->want_logprobs || in->sampling->top_logprobs)
        kvf_sample_score(in->logits, in->vocab, in->vocab_used, token, in->sampling->top_logprobs, out);
}
