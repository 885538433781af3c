#include "timeline.h"
#include "kvf/log.h"
#include "kvf/request_text.h"
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>

kvf_status front_timelines_init(timelines *t, uint32_t capacity) {
    *t = (timelines){.capacity = KVF_MAX(capacity, 1u)};
    t->ring = calloc(t->capacity, sizeof *t->ring);
    if (!t->ring) return KVF_ERR_NO_MEMORY;
    /* Touched now, as it will be anyway: memory does not grow with the first requests. */
    for (uint32_t i = 0; i < t->capacity; i++) t->ring[i].choices = 1;
    pthread_mutex_init(&t->lock, NULL);
    return KVF_OK;
}

void front_timelines_fini(timelines *t) {
    if (!t->ring) return;
    pthread_mutex_destroy(&t->lock);
    free(t->ring);
    t->ring = NULL;
}

static double ms(kvf_time_ns ns) { return (double)ns / (double)KVF_NS_PER_MS; }

static void log_one(const kvf_router_timeline *one) {
    const kvf_router_usage *u = &one->usage;
    char id[KVF_REQUEST_TEXT_MAX];
    uint32_t steps = u->completion_tokens > one->choices ? u->completion_tokens / one->choices - 1 : 0;
    kvf_request_id_format(one->request, id);
    kvf_log(KVF_LOG_INFO, "router",
        "req %s prompt %" PRIu32 " cached %" PRIu32 " out %" PRIu32
        " via %s%s%s prepare %.1fms queue %.1fms prefill %.1fms "
        "transfer %.1fms (exposed %.1fms) ttft %.1fms tpot %.2fms total %.1fms pages %" PRIu64 " bytes %" PRIu64
        " attempts %" PRIu32 " end %s",
        id, u->prompt_tokens, u->cached_tokens, u->completion_tokens, one->prefill_node,
        one->prefill_node[0] ? "->" : "", one->decode_node[0] ? one->decode_node : "-",
        ms(one->submitted_ns - one->received_ns), ms(u->queue_ns), ms(u->prefill_ns), ms(u->transfer_ns),
        ms(u->exposed_ns), ms(u->ttft_ns), steps ? ms(u->decode_ns) / steps : 0.0, ms(one->ended_ns - one->received_ns),
        u->pages, u->bytes, u->attempts, one->end);
}

void front_timelines_add(timelines *t, const kvf_router_timeline *one) {
    log_one(one);
    pthread_mutex_lock(&t->lock);
    t->ring[t->next] = *one;
    t->next = (t->next + 1) % t->capacity;
    t->count = KVF_MIN(t->count + 1, t->capacity);
    pthread_mutex_unlock(&t->lock);
}

uint32_t front_timelines_copy(timelines *t, kvf_router_timeline *out, uint32_t max) {
    pthread_mutex_lock(&t->lock);
    uint32_t count = KVF_MIN(max, t->count);
    for (uint32_t i = 0; i < count; i++) out[i] = t->ring[(t->next + t->capacity - 1 - i) % t->capacity];
    pthread_mutex_unlock(&t->lock);
    return count;
}
