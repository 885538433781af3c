#include "sim.h"
#include <stdlib.h>

static bool before(const event *a, const event *b) {
    return a->at != b->at ? a->at < b->at : a->sequence < b->sequence;
}

event *sim_push(sim *s, kvf_time_ns at, ev_kind kind, uint32_t node, uint32_t index) {
    if (s->heap_count == s->heap_max) {
        s->heap_max = s->heap_max ? s->heap_max * 2 : 1024;
        s->heap = realloc(s->heap, sizeof *s->heap * s->heap_max);
        KVF_ASSERT(s->heap);
    }
    event e = {.at = KVF_MAX(at, s->now), .sequence = ++s->sequences, .kind = kind, .node = node, .index = index};
    uint32_t i = s->heap_count++;
    for (; i > 0 && before(&e, &s->heap[(i - 1) / 2]); i = (i - 1) / 2) s->heap[i] = s->heap[(i - 1) / 2];
    s->heap[i] = e;
    return &s->heap[i]; /* valid until the next push: fill payload and numbers at once */
}

bool sim_pop(sim *s, event *out) {
    if (s->heap_count == 0) return false;
    *out = s->heap[0];
    event last = s->heap[--s->heap_count];
    uint32_t i = 0;
    for (uint32_t child; (child = 2 * i + 1) < s->heap_count; i = child) {
        if (child + 1 < s->heap_count && before(&s->heap[child + 1], &s->heap[child])) child++;
        if (!before(&s->heap[child], &last)) break;
        s->heap[i] = s->heap[child];
    }
    s->heap[i] = last;
    return true;
}
