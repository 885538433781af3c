/* kvf/decode_plan.h - three decisions of a decode node: who runs in this step, who gives way when no room is left, how
 * long an output is expected to be. Pure: same input, same answer. */
#ifndef KVF_DECODE_PLAN_H
#define KVF_DECODE_PLAN_H
#include "kvf/base.h"

#ifdef __cplusplus
extern "C" {
#endif

/* Who runs. With no more sequences than places all run. Else higher priority first, then whoever ran longest ago, then
 * earlier arrival; but up to a quarter of the places (at least one) goes first to those who have waited
 * KVF_DECODE_WAIT_STEPS_MAX steps or more, whatever their priority, longest wait first: a low priority is slow, never
 * forgotten. */
#define KVF_DECODE_WAIT_STEPS_MAX 64

typedef struct {
    uint64_t last_step; /* number of the step it last ran in; of one that never ran, the step before it became ready */
    uint64_t arrival; /* sequence number, lower came first */
    uint32_t last_place; /* its index in out[] of that step, 0 if it never ran: without it, equals would not get equal
                            shares */
    int32_t priority; /* higher first */
} kvf_decode_candidate;

/* Writes min(count, sequences_max) different indices into out[]. step: number of the step being planned, above every
 * last_step. Results of a step do not depend on the order of out[], only later turns do. O(count x sequences_max)
 * compares, O(count) when all fit. */
uint32_t kvf_decode_pick(
    const kvf_decode_candidate *candidates, uint32_t count, uint64_t step, uint32_t sequences_max, uint32_t *out);

/* Who gives way. Lowest priority, then latest arrival, among those that made progress since they (re)started here: each
 * preemption is then paid for by at least one token, so that a pool too small for all cannot spin. Only when nobody
 * made progress, any of them. The caller lists only sequences whose going frees room; the one that asks is among them
 * and may be the answer. */
#define KVF_DECODE_NOBODY UINT32_MAX

typedef struct {
    uint64_t arrival;
    int32_t priority;
    uint32_t progress; /* tokens made since it (re)started on this node */
} kvf_decode_holder;

/* Index of the one to preempt; KVF_DECODE_NOBODY for count 0. */
uint32_t kvf_decode_preempt(const kvf_decode_holder *holders, uint32_t count);

/* Expected output length: what admission books beyond the prompt where the client names no small limit. An exponential
 * average of the lengths of finished outputs (each new one weighs 1/16), in 1/65536 tokens, kept between floor and
 * ceiling. */
typedef struct {
    uint64_t average_scaled;
    uint32_t floor_tokens, ceiling_tokens;
} kvf_decode_estimate;

/* 1 <= floor <= ceiling; initial is clamped between them. */
void kvf_decode_estimate_init(
    kvf_decode_estimate *estimate, uint32_t floor_tokens, uint32_t ceiling_tokens, uint32_t initial_tokens);
/* An output ended by itself or by its limit; not one cut short by a cancel or a failure, which says nothing about
 * lengths. */
void kvf_decode_estimate_add(kvf_decode_estimate *estimate, uint32_t output_tokens);
/* max_tokens: the request's limit, 0: none given. Never more than the limit. */
uint32_t kvf_decode_estimate_expected(const kvf_decode_estimate *estimate, uint32_t max_tokens);

#ifdef __cplusplus
}
#endif
#endif
