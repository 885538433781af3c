/* Shared by the two directions of the codec. */
#ifndef KVF_WIRE_INT_H
#define KVF_WIRE_INT_H
#include "kvf/wire.h"
#include "kvferry/internal/v1/node.pb-c.h"

#define PB(name) Kvferry__Internal__V1__##name

/* NULL: the arena is full. */
static inline void *wire_take(kvf_arena *a, size_t len_bytes) {
    size_t at = (size_t)kvf_align_up(a->used_bytes, 16);
    if (at > a->size_bytes || len_bytes > a->size_bytes - at) return NULL;
    return kvf_arena_take(a, len_bytes, 16);
}

/* Same names on both sides, so that one list serves writing and reading. */
#define WIRE_STATS_NUMBERS(X)                                                                                          \
    X(running)                                                                                                         \
    X(waiting)                                                                                                         \
    X(waiting_tokens)                                                                                                  \
    X(blocks_total)                                                                                                    \
    X(blocks_free)                                                                                                     \
    X(blocks_filling) X(blocks_sealed) X(blocks_pinned) X(blocks_in_use) X(blocks_booked) X(blocks_evictable)          \
        X(waste_ppm) X(prefill_tokens) X(decode_tokens) X(prefill_busy_ns) X(decode_busy_ns) X(pages_sent)             \
            X(bytes_sent) X(pages_received) X(bytes_received) X(frames_rejected) X(preemptions) X(cancels)             \
                X(evictions) X(cache_hit_tokens) X(events_next)
#define WIRE_IDENTITY_NUMBERS(X)                                                                                       \
    X(wire_version)                                                                                                    \
    X(block_tokens)                                                                                                    \
    X(layers)                                                                                                          \
    X(heads)                                                                                                           \
    X(kv_heads) X(head_dim) X(vocab) X(page_bytes) X(context_max) X(layout) X(rope_dims) X(rope_base_bits) X(rope_style)
#define WIRE_WORK_NUMBERS(X)                                                                                           \
    X(attempt)                                                                                                         \
    X(prompt_count)                                                                                                    \
    X(n)                                                                                                               \
    X(choice_base) X(output_max) X(output_max_given) X(priority) X(time_left_ns) X(ship_min) X(prompt_logprobs) X(alone)
#endif
