/* timeline.h - what the last finished requests went through: a ring for people who ask, one log line each. */
#ifndef FRONT_TIMELINE_H
#define FRONT_TIMELINE_H
#include "kvf/router_shell.h"
#include <pthread.h>

typedef struct {
    pthread_mutex_t lock;
    kvf_router_timeline *ring;
    uint32_t capacity, next, count;
} timelines;
kvf_status front_timelines_init(timelines *t, uint32_t capacity);
void front_timelines_fini(timelines *t);
void front_timelines_add(timelines *t, const kvf_router_timeline *one); /* also logs it */
uint32_t front_timelines_copy(timelines *t, kvf_router_timeline *out, uint32_t max);
#endif
