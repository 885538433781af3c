/* kvf/load_plan.h - which request is sent when, and of which tokens: a function of options and seed, nothing else.
 *
 * Open loop: a request has its time whatever became of the others.
 *   Poisson  gaps are exponential with mean 1/rate; lengths are drawn evenly from a range
 *   trace    times of the trace, or stretched to a mean of `rate`, or (`poisson`) gaps as above, for a piece too
 *            short to have a rate of its own; lengths times one scale for all rows: the shape of the workload stays.
 * With prefix ids a block of 512 tokens becomes one of block_tokens, a multiple of 16 (whole KV blocks), and the scale
 * is block_tokens/512 for prompts and outputs alike: equal ids are equal tokens, others are not. What exceeds the
 * context all the same is cut, prompt first, and counted.
 *
 * Tokens are drawn from the vocabulary; a request without ids shares no prefix with any other of the same `salt`, and
 * plans of different salts share none at all. */
#ifndef KVF_LOAD_PLAN_H
#define KVF_LOAD_PLAN_H
#include "kvf/load_trace.h"
#ifdef __cplusplus
extern "C" {
#endif

enum { KVF_LOAD_BLOCK_TOKENS = 16, KVF_LOAD_REQUESTS_MAX = 1 << 22 };

typedef struct {
    uint32_t min, max; /* at least 1 */
} kvf_load_range;

typedef struct {
    uint64_t seed, salt; /* salt: of a trial; times and lengths do not depend on it */
    uint32_t vocab, context; /* of the model; prompt + output stay within context */
    double rate; /* requests per second; 0: the trace's own times */
    uint32_t requests; /* 0: all rows of the trace */
    const kvf_load_trace *trace; /* borrowed as long as the plan; NULL: Poisson */
    bool poisson; /* with a trace: its lengths, at times of our own; rate > 0 */
    double scale; /* 0: the largest up to 1 at which the longest row fits */
    kvf_load_range input, output; /* Poisson only */
} kvf_load_options;

typedef struct {
    uint64_t at_ns; /* since the start of the run */
    uint32_t input, output;
    size_t hash_first; /* of the trace */
} kvf_load_request;

typedef struct {
    kvf_load_options o;
    kvf_load_request *requests; /* owned, in the order of time */
    uint32_t count, cut; /* cut: how many were longer than the context */
    uint32_t block_tokens; /* of a prefix id; 0: there are none */
    double scale; /* that was taken */
} kvf_load_plan;

/* KVF_ERR_INVALID with err: options that make no plan; it names what has to change. */
kvf_status kvf_load_plan_make(const kvf_load_options *o, kvf_load_plan *out, kvf_error *err);
void kvf_load_plan_fini(kvf_load_plan *p);
/* The prompt of request i, `input` tokens into out. */
void kvf_load_plan_prompt(const kvf_load_plan *p, uint32_t i, uint32_t *out);
/* Requests per second of the trace as it was recorded; 0: all at one moment. */
double kvf_load_trace_rate(const kvf_load_trace *t, size_t rows);

#ifdef __cplusplus
}
#endif
#endif
