/* plan.h - a GenerateRequest checked whole and turned into what the core and the assembly of output need. Pure but for
 * malloc and one random seed that the caller hands in; any thread. */
#ifndef FRONT_PLAN_H
#define FRONT_PLAN_H
#include "chat.h"
#include "kvf/sampler.h"

enum { FRONT_LABEL_BYTES_MAX = 256, FRONT_SALT_BYTES_MAX = 256, FRONT_SESSION_BYTES_MAX = 256 };

typedef struct {
    uint32_t context_max;
    uint32_t stop_sequences_max, stop_sequence_bytes_max;
} front_limits;

typedef struct {
    front_prompt prompt;
    uint32_t n;
    bool max_given;
    uint32_t max_tokens;
    int32_t priority;
    kvf_hash128 salt;
    kvf_router_mode mode;
    uint32_t prompt_logprobs; /* 0, or k + 1 */
    bool include_stop, want_ids, want_logprobs, specials_in_text;
    uint32_t top_logprobs, min_tokens;
    const ProtobufCBinaryData *stops; /* in the request */
    uint32_t stops_count;
    kvf_sampling sampling;
} front_plan;

/* random_seed: used where the request names none. On false *f says why and out holds nothing. */
bool front_plan_make(const front_model *m, const front_limits *limits, const Kvferry__V1__GenerateRequest *r,
    uint64_t random_seed, int64_t now_unix, front_plan *out, fault *f);
void front_plan_free(front_plan *p);

/* Also for Tokenize and Detokenize. */
bool front_check_model(const front_model *m, ProtobufCBinaryData name, fault *f);
#endif
