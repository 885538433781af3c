/* The prefill planner: rules in kvf/prefill_plan.h. One pass to find the first comer, one heap of the others, read from
 * its top until the budget is spent; usually only a few are read. */
#include "kvf/prefill_plan.h"
#include "kvf/kvcache.h"

#define BLOCK ((uint32_t)KVF_KV_BLOCK_TOKENS)

typedef struct {
    const kvf_prefill_candidate *candidates;
    kvf_prefill_run *runs;
    uint32_t run_count;
    uint32_t tokens_left; /* of the budget, without what is kept for the first comer */
    uint32_t tokens_small; /* rule 3: a prompt of this many may join a step in which another ends */
    bool ends_one; /* some run of this step ends its prompt */
} plan;

static bool before(const kvf_prefill_candidate *c, uint32_t a, uint32_t b) {
    if (c[a].priority != c[b].priority) return c[a].priority > c[b].priority;
    if (c[a].remaining != c[b].remaining) return c[a].remaining < c[b].remaining;
    if (c[a].served != c[b].served) return c[a].served < c[b].served;
    if (c[a].arrival != c[b].arrival) return c[a].arrival < c[b].arrival;
    return a < b;
}

static void sift_down(const kvf_prefill_candidate *c, uint32_t *heap, uint32_t size, uint32_t at) {
    for (;;) {
        uint32_t child = 2 * at + 1;
        if (child >= size) return;
        if (child + 1 < size && before(c, heap[child + 1], heap[child])) child++;
        if (!before(c, heap[child], heap[at])) return;
        uint32_t swap = heap[at];
        heap[at] = heap[child];
        heap[child] = swap;
        at = child;
    }
}

static uint32_t heap_build(const kvf_prefill_candidate *c, uint32_t count, uint32_t *heap) {
    uint32_t size = 0;
    for (uint32_t i = 0; i < count; i++)
        if (c[i].remaining > 0) heap[size++] = i;
    for (uint32_t i = size / 2; i-- > 0;) sift_down(c, heap, size, i);
    return size;
}

static uint32_t heap_pop(const kvf_prefill_candidate *c, uint32_t *heap, uint32_t *size) {
    uint32_t top = heap[0];
    heap[0] = heap[--*size];
    sift_down(c, heap, *size, 0);
    return top;
}

/* The most of c that fits into `tokens`: all of it, or up to the last block boundary within; 0 when there is none. */
static uint32_t fit(const kvf_prefill_candidate *c, uint32_t tokens) {
    if (c->remaining <= tokens) return c->remaining;
    uint32_t past = (uint32_t)(((uint64_t)c->position + tokens) % BLOCK);
    return past >= tokens ? 0 : tokens - past;
}

/* What rule 2 keeps for c: a quarter of the budget, up to the next boundary. */
static uint32_t quarter(const kvf_prefill_candidate *c, uint32_t tokens_max) {
    uint64_t end = kvf_align_up((uint64_t)c->position + tokens_max / 4, BLOCK);
    uint64_t tokens = end - c->position;
    return fit(c, (uint32_t)KVF_MIN(tokens, tokens_max));
}

static void add(plan *p, uint32_t candidate, uint32_t tokens) {
    p->runs[p->run_count++] = (kvf_prefill_run){.candidate = candidate, .tokens = tokens};
    p->ends_one |= tokens == p->candidates[candidate].remaining;
}

/* Rule 3: would such a run delay a prompt that ends in this step for too little in return? */
static bool delays(const plan *p, const kvf_prefill_candidate *c, uint32_t tokens) {
    return p->ends_one && (tokens < c->remaining || tokens > p->tokens_small);
}

static uint32_t first_comer(const kvf_prefill_candidate *c, const uint32_t *of, uint32_t count) {
    uint32_t first = of[0];
    for (uint32_t i = 1; i < count; i++)
        if (c[of[i]].arrival < c[first].arrival || (c[of[i]].arrival == c[first].arrival && of[i] < first))
            first = of[i];
    return first;
}

uint32_t kvf_prefill_plan(const kvf_prefill_candidate *candidates, uint32_t count, kvf_prefill_budget budget,
    uint32_t *scratch, kvf_prefill_run *runs) {
    KVF_ASSERT(budget.tokens_max >= BLOCK && budget.runs_max >= 1);
    uint32_t size = heap_build(candidates, count, scratch);
    if (size == 0) return 0;
    uint32_t first = first_comer(candidates, scratch, size);
    uint32_t kept = quarter(&candidates[first], budget.tokens_max);
    plan p = {.candidates = candidates, .runs = runs, .tokens_left = budget.tokens_max - kept};
    p.tokens_small = budget.tokens_max / 4;
    bool first_placed = false;
    /* The first comer's place among the runs is kept too. */
    while (size > 0 && p.run_count + !first_placed < budget.runs_max) {
        uint32_t i = heap_pop(candidates, scratch, &size);
        const kvf_prefill_candidate *c = &candidates[i];
        uint32_t room = p.tokens_left + (i == first ? kept : 0);
        uint32_t tokens = fit(c, room);
        if (i == first) {
            if (delays(&p, c, tokens)) continue; /* only its quarter, below */
            first_placed = true;
        } else if (tokens == 0 || delays(&p, c, tokens)) {
            continue;
        }
        p.tokens_left = room - tokens;
        add(&p, i, tokens);
        if (p.tokens_left == 0) break;
    }
    if (!first_placed) {
        const kvf_prefill_candidate *c = &candidates[first];
        uint32_t tokens = fit(c, p.tokens_left + kept);
        add(&p, first, delays(&p, c, tokens) ? kept : tokens);
    }
    return p.run_count;
}
