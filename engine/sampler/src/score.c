/* Log-probabilities and ranks under the raw model distribution. */
#include "kvf/sampler.h"
#include "sampler_int.h"

static float logprob_of(float logit, double log_sum) {
    float value = (float)((double)logit - log_sum);
    return value >= KVF_SAMPLER_LOGPROB_MIN ? value : KVF_SAMPLER_LOGPROB_MIN; /* NaN and -infinity too */
}

/* 1 + tokens above; of equals the lower id is above. A NaN is below all. */
static uint32_t rank_of(const float *logits, uint32_t count, uint32_t token, float logit) {
    if (!(logit == logit)) return count;
    uint32_t rank = 1, before = KVF_MIN(token, count);
    for (uint32_t i = 0; i < before; i++) rank += logits[i] >= logit;
    for (uint32_t i = before; i < count; i++) rank += logits[i] > logit;
    return rank;
}

/* The `top` best, best first, of equals the lowest id first. */
static uint32_t find_top(
    const float *logits, uint32_t count, uint32_t top, uint32_t ids[KVF_SAMPLER_TOP_LOGPROBS_MAX]) {
    uint32_t found = 0;
    for (uint32_t i = 0; i < count && top > 0; i++) {
        float x = logits[i];
        if (found == top ? !(x > logits[ids[top - 1]]) : !(x == x)) continue;
        uint32_t at = found < top ? found++ : top - 1;
        for (; at > 0 && x > logits[ids[at - 1]]; at--) ids[at] = ids[at - 1];
        ids[at] = i;
    }
    return found;
}

void kvf_sample_score(
    const float *logits, uint32_t vocab, uint32_t vocab_used, uint32_t token, uint32_t top, kvf_sample *out) {
    KVF_ASSERT(token < vocab && vocab_used <= vocab);
    KVF_ASSERT(top <= KVF_SAMPLER_TOP_LOGPROBS_MAX);
    double log_sum = kvf_log_sum_exp(logits, vocab_used);
    out->chosen = (kvf_token_logprob){.token = token,
        .logprob = logprob_of(logits[token], log_sum),
        .rank = rank_of(logits, vocab_used, token, logits[token])};
    uint32_t ids[KVF_SAMPLER_TOP_LOGPROBS_MAX];
    out->top_count = find_top(logits, vocab_used, top, ids);
    for (uint32_t i = 0; i < out->top_count; i++)
        out->top[i] =
            (kvf_token_logprob){.token = ids[i], .logprob = logprob_of(logits[ids[i]], log_sum), .rank = i + 1};
}
