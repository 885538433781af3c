/* kvf/prefill_plan.h - which prompts a prefill step computes, and how much of each. Pure: same input, same plan.
 *
 * A step costs about as much time as it has tokens, and no prompt's first token comes before its step has ended. Hence:
 *   1. Order: higher priority, then fewer tokens remaining, then fewer served, then earlier arrival.
 *   2. The prompt that came first of all has at least a quarter of the budget in every step, whatever its priority and
 * length: nobody starves, since whoever is behind it becomes the first one day.
 *   3. A step in which some prompt ends takes in only further prompts that end within a quarter of the budget, and the
 *      first comer's quarter: anything else would only delay that end. A step in which none ends is filled.
 *   4. A run ends on a block boundary of absolute position or at the end of its prompt, so that its pages are final.
 * What is left of the budget and does not reach a boundary stays unused; only the quarter of rule 2 is rounded up to
 * one. */
#ifndef KVF_PREFILL_PLAN_H
#define KVF_PREFILL_PLAN_H
#include "kvf/base.h"

#ifdef __cplusplus
extern "C" {
#endif

typedef struct {
    uint64_t id; /* the caller's; not looked at */
    uint64_t arrival; /* sequence number, lower came first */
    uint32_t remaining; /* tokens to compute; 0: left out */
    uint32_t position; /* absolute position of the next token to compute */
    uint32_t served; /* tokens granted recently, decayed as the caller likes; only parts equals */
    int32_t priority; /* higher first */
} kvf_prefill_candidate;

typedef struct {
    uint32_t tokens_max; /* of one step, >= 16 */
    uint32_t runs_max; /* >= 1; with 1 the step belongs to whoever came first */
} kvf_prefill_budget;

typedef struct {
    uint32_t candidate; /* index into candidates */
    uint32_t tokens; /* 1 .. remaining */
} kvf_prefill_run;

/* Writes at most runs_max runs, each of another candidate, at most tokens_max tokens together, and returns how many (>=
 * 1 if any candidate has tokens remaining). scratch: `count` words. O(count log count). */
uint32_t kvf_prefill_plan(const kvf_prefill_candidate *candidates, uint32_t count, kvf_prefill_budget budget,
    uint32_t *scratch, kvf_prefill_run *runs);

#ifdef __cplusplus
}
#endif
#endif
