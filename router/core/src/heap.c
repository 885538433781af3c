#include "heap.h"

void rt_heap_layout(rt_heap *h, kvf_arena *arena, uint32_t numbers, rt_heap_before_fn before, const void *context) {
    *h = (rt_heap){.numbers = numbers, .before = before, .context = context};
    h->items = KVF_ARENA_NEW(arena, uint32_t, numbers);
    h->place = KVF_ARENA_NEW(arena, uint32_t, numbers);
}

static void set_at(rt_heap *h, uint32_t at, uint32_t number) {
    h->items[at] = number;
    h->place[number] = at + 1;
}

static void up(rt_heap *h, uint32_t at) {
    uint32_t number = h->items[at];
    while (at > 0) {
        uint32_t parent = (at - 1) / 2;
        if (!h->before(h->context, number, h->items[parent])) break;
        set_at(h, at, h->items[parent]);
        at = parent;
    }
    set_at(h, at, number);
}

static void down(rt_heap *h, uint32_t at) {
    uint32_t number = h->items[at];
    for (;;) {
        uint32_t child = 2 * at + 1;
        if (child >= h->count) break;
        if (child + 1 < h->count && h->before(h->context, h->items[child + 1], h->items[child])) child++;
        if (!h->before(h->context, h->items[child], number)) break;
        set_at(h, at, h->items[child]);
        at = child;
    }
    set_at(h, at, number);
}

void rt_heap_put(rt_heap *h, uint32_t number) {
    KVF_ASSERT(number < h->numbers);
    if (!rt_heap_has(h, number)) {
        KVF_ASSERT(h->count < h->numbers);
        set_at(h, h->count, number);
        h->count++;
    }
    up(h, h->place[number] - 1);
    down(h, h->place[number] - 1);
}

void rt_heap_take(rt_heap *h, uint32_t number) {
    KVF_ASSERT(number < h->numbers);
    if (!rt_heap_has(h, number)) return;
    uint32_t at = h->place[number] - 1;
    h->place[number] = 0;
    h->count--;
    if (at == h->count) return;
    uint32_t moved = h->items[h->count];
    set_at(h, at, moved);
    up(h, at);
    down(h, h->place[moved] - 1);
}
