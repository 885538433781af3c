/* kvf/cuda_sample.h - from rows of logits to tokens, on the device: the definition of kvf/sampler.h. Nothing here waits
 * for the device. Pointers are device memory (or pinned memory that the device may use); `stream` is a cudaStream_t.
 *
 * Equal to kvf_sample_token, given the same logits: exp and log are the same operations, sums have the same order. One
 * thing differs: to find where top-p cuts, weights are added as integers of 2^-40, whatever the order, so that a sum
 * within 1e-7 of top_p may be judged otherwise. Logprobs and ranks are the same bits. */
#ifndef KVF_CUDA_SAMPLE_H
#define KVF_CUDA_SAMPLE_H
#include <stddef.h>
#include <stdint.h>
#ifdef __cplusplus
extern "C" {
#endif

#define KVF_CUDA_VOCAB_MAX (1u << 20)
#define KVF_CUDA_TOP_MAX 20 /* KVF_SAMPLER_TOP_LOGPROBS_MAX */

/* What one token's logit is before the draw. Entries of one token stand together; the last of them says uses and flags
 * other than BIASED. */
enum {
    KVF_CUDA_BIASED = 1, /* `bias` is added */
    KVF_CUDA_SEEN = 2, /* in prompt or output: penalties apply */
    KVF_CUDA_SUPPRESSED = 4 /* never drawn */
};
typedef struct {
    uint32_t token;
    float bias;
    uint32_t uses; /* how often in the output */
    uint32_t flags;
    float raw; /* for the kernel: the model's logit, put back afterwards */
} kvf_cuda_adjustment;

/* One row; fields as in kvf_sampling. */
typedef struct {
    uint64_t random; /* kvf_rng_at(seed, choice, position) */
    float temperature, top_p, min_p;
    float repetition_penalty, presence_penalty, frequency_penalty;
    uint32_t top_k;
    uint32_t want_logprobs; /* 0/1: logprob and rank of the token */
    uint32_t top_logprobs; /* 0..20 */
    uint32_t row; /* of the logits */
    uint32_t adjust_begin, adjust_count; /* in the list of adjustments; no two rows of a launch share entries */
    uint32_t given; /* a token: it is not drawn but scored. KVF_CUDA_DRAW: drawn */
} kvf_cuda_sampling;
#define KVF_CUDA_DRAW UINT32_MAX

typedef struct {
    uint32_t token;
    float logprob;
    uint32_t rank;
} kvf_cuda_token_logprob;

/* Laid out as kvf_sample. */
typedef struct {
    kvf_cuda_token_logprob chosen;
    uint32_t top_count;
    kvf_cuda_token_logprob top[KVF_CUDA_TOP_MAX];
} kvf_cuda_sampled;

typedef struct {
    float *logits; /* [rows][vocab]; as they were, afterwards */
    uint32_t vocab, vocab_used;
    const kvf_cuda_sampling *rows;
    uint32_t rows_count; /* each names another row of the logits, or none of them has adjustments */
    kvf_cuda_adjustment *adjustments;
    void *scratch; /* kvf_cuda_sample_scratch_bytes; aligned to 16 */
    kvf_cuda_sampled *out; /* [rows_count] */
} kvf_cuda_sample;
size_t kvf_cuda_sample_scratch_bytes(uint32_t vocab, uint32_t rows_count);
/* 0, or -1: a vocabulary beyond KVF_CUDA_VOCAB_MAX. */
int kvf_cuda_sample_rows(const kvf_cuda_sample *a, void *stream);
#ifdef __cplusplus
}
#endif
#endif
