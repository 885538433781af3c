/* The event heap, and lists of events that wait for a thaw or for the end of a partition. */
#include "sim.h"
#include <stdlib.h>

static bool before(const event *a, const event *b) {
    return a->at != b->at ? a->at < b->at : a->sequence < b->sequence;
}

static void list_grow(event_list *list) {
    if (list->count < list->max) return;
    list->max = list->max ? list->max * 2 : 64;
    list->events = realloc(list->events, sizeof *list->events * list->max);
    KVF_ASSERT(list->events);
}

static event *heap_put(sim *s, event e) {
    event_list *h = &s->heap;
    list_grow(h);
    uint32_t i = h->count++;
    for (; i > 0 && before(&e, &h->events[(i - 1) / 2]); i = (i - 1) / 2) h->events[i] = h->events[(i - 1) / 2];
    h->events[i] = e;
    return &h->events[i];
}

/* The result is valid until the next push: fill payload and numbers at once. */
event *sim_push(sim *s, kvf_time_ns at, ev_kind kind, uint32_t who, uint32_t index) {
    event e = {.at = KVF_MAX(at, s->now), .sequence = ++s->sequences, .kind = kind, .who = who, .index = index};
    if (who != SIM_NOBODY) e.incarnation = s->process[who].incarnation;
    return heap_put(s, e);
}

bool sim_pop(sim *s, event *out) {
    event_list *h = &s->heap;
    if (h->count == 0) return false;
    *out = h->events[0];
    event last = h->events[--h->count];
    uint32_t i = 0;
    for (uint32_t child; (child = 2 * i + 1) < h->count; i = child) {
        if (child + 1 < h->count && before(&h->events[child + 1], &h->events[child])) child++;
        if (!before(&h->events[child], &last)) break;
        h->events[i] = h->events[child];
    }
    h->events[i] = last;
    return true;
}

void sim_hold(event_list *list, const event *e) {
    list_grow(list);
    list->events[list->count++] = *e;
}

/* All of them now, in their order. What was sent after them comes later by its own time. */
void sim_release(sim *s, event_list *list) {
    for (uint32_t i = 0; i < list->count; i++) {
        event e = list->events[i];
        e.at = s->now;
        e.sequence = ++s->sequences;
        e.arrived = true;
        heap_put(s, e);
    }
    list->count = 0;
}

void sim_list_free(event_list *list) {
    for (uint32_t i = 0; i < list->count; i++) free(list->events[i].payload);
    free(list->events);
    *list = (event_list){0};
}
