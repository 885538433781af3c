/* A binary heap of small numbers, each in it at most once, that can be taken out from the middle. Order is given by the
 * user, who makes it total, so that equal runs pop equally. Memory is the user's, zeroed. */
#ifndef KVF_ROUTER_HEAP_H
#define KVF_ROUTER_HEAP_H
#include "kvf/arena.h"

typedef bool (*rt_heap_before_fn)(const void *context, uint32_t a, uint32_t b);

typedef struct {
    uint32_t *items;
    uint32_t *place; /* of each number: index in items + 1; 0: not in the heap */
    uint32_t count, numbers;
    rt_heap_before_fn before;
    const void *context;
} rt_heap;

void rt_heap_layout(rt_heap *h, kvf_arena *arena, uint32_t numbers, rt_heap_before_fn before, const void *context);
static inline bool rt_heap_has(const rt_heap *h, uint32_t number) { return h->place[number] != 0; }
static inline uint32_t rt_heap_top(const rt_heap *h) { return h->count ? h->items[0] : UINT32_MAX; }
void rt_heap_put(rt_heap *h, uint32_t number); /* in already: its order has changed */
void rt_heap_take(rt_heap *h, uint32_t number); /* not in: nothing */
#endif
