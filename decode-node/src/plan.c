/* The decode role's decisions: rules in kvf/decode_plan.h. */
#include "kvf/decode_plan.h"

enum { WEIGHT_SHIFT = 4, SCALE_SHIFT = 16 };

/* `overdue`: compare as those do who have waited too long, priority aside. */
static bool before(const kvf_decode_candidate *a, const kvf_decode_candidate *b, bool overdue) {
    if (!overdue && a->priority != b->priority) return a->priority > b->priority;
    if (a->last_step != b->last_step) return a->last_step < b->last_step;
    if (a->last_place != b->last_place) return a->last_place < b->last_place;
    return a->arrival < b->arrival;
}

static bool is_overdue(const kvf_decode_candidate *c, uint64_t step) {
    return step - c->last_step > KVF_DECODE_WAIT_STEPS_MAX;
}

/* Keeps best[0 .. *size), at most size_max of them, sorted; puts i where it belongs or drops it. Equal candidates stay
 * in index order. */
static void insert(
    const kvf_decode_candidate *c, uint32_t i, bool overdue, uint32_t *best, uint32_t *size, uint32_t size_max) {
    uint32_t at = *size;
    while (at > 0 && before(&c[i], &c[best[at - 1]], overdue)) at--;
    if (at == size_max) return;
    if (*size < size_max) ++*size;
    for (uint32_t j = *size - 1; j > at; j--) best[j] = best[j - 1];
    best[at] = i;
}

static bool contains(const uint32_t *list, uint32_t count, uint32_t i) {
    for (uint32_t j = 0; j < count; j++)
        if (list[j] == i) return true;
    return false;
}

uint32_t kvf_decode_pick(
    const kvf_decode_candidate *candidates, uint32_t count, uint64_t step, uint32_t sequences_max, uint32_t *out) {
    if (count <= sequences_max) {
        for (uint32_t i = 0; i < count; i++) out[i] = i;
        return count;
    }
    uint32_t late = 0, late_max = KVF_MIN(KVF_MAX(sequences_max / 4, 1u), sequences_max);
    for (uint32_t i = 0; i < count; i++) {
        KVF_ASSERT(candidates[i].last_step < step);
        if (is_overdue(&candidates[i], step)) insert(candidates, i, true, out, &late, late_max);
    }
    uint32_t rest = 0, rest_max = sequences_max - late;
    for (uint32_t i = 0; i < count; i++)
        if (!contains(out, late, i)) insert(candidates, i, false, out + late, &rest, rest_max);
    return late + rest;
}

static bool gives_way(const kvf_decode_holder *a, const kvf_decode_holder *b) {
    bool a_moved = a->progress > 0, b_moved = b->progress > 0;
    if (a_moved != b_moved) return a_moved;
    if (a->priority != b->priority) return a->priority < b->priority;
    return a->arrival > b->arrival;
}

uint32_t kvf_decode_preempt(const kvf_decode_holder *holders, uint32_t count) {
    if (count == 0) return KVF_DECODE_NOBODY;
    uint32_t chosen = 0;
    for (uint32_t i = 1; i < count; i++)
        if (gives_way(&holders[i], &holders[chosen])) chosen = i;
    return chosen;
}

static uint32_t clamp(const kvf_decode_estimate *e, uint64_t tokens) {
    return (uint32_t)KVF_MIN(KVF_MAX(tokens, e->floor_tokens), e->ceiling_tokens);
}

void kvf_decode_estimate_init(
    kvf_decode_estimate *estimate, uint32_t floor_tokens, uint32_t ceiling_tokens, uint32_t initial_tokens) {
    KVF_ASSERT(floor_tokens >= 1 && floor_tokens <= ceiling_tokens);
    *estimate = (kvf_decode_estimate){.floor_tokens = floor_tokens, .ceiling_tokens = ceiling_tokens};
    estimate->average_scaled = (uint64_t)clamp(estimate, initial_tokens) << SCALE_SHIFT;
}

void kvf_decode_estimate_add(kvf_decode_estimate *estimate, uint32_t output_tokens) {
    uint64_t old = estimate->average_scaled, sample = (uint64_t)clamp(estimate, output_tokens) << SCALE_SHIFT;
    estimate->average_scaled =
        sample >= old ? old + ((sample - old) >> WEIGHT_SHIFT) : old - ((old - sample) >> WEIGHT_SHIFT);
}

uint32_t kvf_decode_estimate_expected(const kvf_decode_estimate *estimate, uint32_t max_tokens) {
    uint64_t rounded_up = (estimate->average_scaled + (1u << SCALE_SHIFT) - 1) >> SCALE_SHIFT;
    uint32_t expected = clamp(estimate, rounded_up);
    return max_tokens > 0 ? KVF_MIN(expected, max_tokens) : expected;
}
