/* kvf/sampler.h - from logits to one token. Stateless: everything it needs is in its arguments, and its random number
 * is kvf_rng_at(seed, choice, position), so the same request gives the same token whoever computes it, in any batch.
 *
 * Order: logit bias; repetition, presence and frequency penalties (over the tokens so far); suppress end tokens below
 * min_tokens; temperature; top-k; top-p; min-p; draw. temperature <= 1e-4 is greedy (lowest id wins ties); top_p <= 0
 * is greedy. Own exp/log (bit-equal on every machine); sums in a fixed order. */
#ifndef KVF_SAMPLER_H
#define KVF_SAMPLER_H
#include "kvf/base.h"
#ifdef __cplusplus
extern "C" {
#endif

#define KVF_SAMPLER_BIAS_MAX 300
#define KVF_SAMPLER_TOP_LOGPROBS_MAX 20
#define KVF_SAMPLER_STOP_IDS_MAX 64
#define KVF_SAMPLER_BIAS_LIMIT 1000.0f
#define KVF_SAMPLER_LOGPROB_MIN (-9999.0f) /* floor of what is reported, so that JSON never meets an infinity or NaN   \
                                            */

typedef struct {
    uint32_t token;
    float bias;
} kvf_logit_bias;

/* Fixed size and plain data: cores carry it as opaque bytes. All fields checked by kvf_sampling_check. */
typedef struct {
    uint64_t seed;
    float temperature; /* >= 0 */
    float top_p; /* (0, 1]; 1: off; 0: greedy */
    float min_p; /* [0, 1] */
    float repetition_penalty; /* > 0; 1: off. Counts prompt and output (as CTRL, Keskar 2019) */
    float presence_penalty; /* [-2, 2]; output only */
    float frequency_penalty; /* [-2, 2]; output only */
    uint32_t top_k; /* 0: off; above the vocabulary: off */
    uint32_t top_logprobs; /* 0..20 */
    uint32_t bias_count;
    uint32_t stop_ids_count;
    uint32_t want_logprobs; /* 0/1 */
    uint32_t ignore_eos; /* 0/1: end tokens are sampled like any other and do not end the request */
    uint32_t min_tokens; /* below this many output tokens, end tokens and stop ids are not sampled */
    uint32_t stop_ids[KVF_SAMPLER_STOP_IDS_MAX];
    kvf_logit_bias bias[KVF_SAMPLER_BIAS_MAX];
} kvf_sampling;

void kvf_sampling_defaults(kvf_sampling *s); /* temperature 1, everything else off */
/* KVF_ERR_INVALID: err names the field, its value and the limit. vocab bounds the ids. */
kvf_status kvf_sampling_check(const kvf_sampling *s, uint32_t vocab, kvf_error *err);

typedef struct {
    uint32_t token;
    float logprob; /* of the raw model distribution (before temperature, bias and penalties), natural log */
    uint32_t rank; /* 1 = most likely */
} kvf_token_logprob;

typedef struct {
    kvf_token_logprob chosen; /* logprob and rank valid when want_logprobs or top_logprobs */
    uint32_t top_count;
    kvf_token_logprob top[KVF_SAMPLER_TOP_LOGPROBS_MAX]; /* most likely first */
} kvf_sample;

typedef struct {
    const kvf_sampling *sampling; /* borrowed */
    const float *logits; /* [vocab], borrowed, not changed */
    uint32_t vocab;
    uint32_t vocab_used; /* ids at and above this are padding: never sampled, never reported */
    const uint32_t *tokens; /* prompt + output so far, borrowed */
    uint32_t tokens_count; /* = position of the token to be sampled */
    uint32_t prompt_count; /* tokens[prompt_count..] are output */
    uint32_t choice; /* index of choice n: the stream of random numbers */
    const uint32_t *end_ids; /* end-of-sequence ids of the model */
    uint32_t end_ids_count;
} kvf_sample_input;

/* Bytes of scratch one thread needs for `vocab`, aligned to 4 or more; contents are never read back. */
size_t kvf_sample_scratch_bytes(uint32_t vocab);
/* A logit that is NaN counts as -infinity. Where every token is ruled out the lowest id is taken. */
void kvf_sample_token(const kvf_sample_input *in, void *scratch, kvf_sample *out);
/* Logprobs of a known next token (prompt logprobs, perplexity): log-softmax of raw logits. */
void kvf_sample_score(
    const float *logits, uint32_t vocab, uint32_t vocab_used, uint32_t token, uint32_t top, kvf_sample *out);
/* mean-free helpers shared with perplexity: natural log of sum(exp(logits)), fixed order of summation */
double kvf_log_sum_exp(const float *logits, uint32_t count);
#ifdef __cplusplus
}
#endif
#endif
