/* A pool of threads for work cut into numbered tasks. Which thread does which task, and how many threads there are, is
 * invisible in the results: tasks write to disjoint places. Idle workers spin for some microseconds and then sleep. */
#ifndef KVF_ENGINE_POOL_H
#define KVF_ENGINE_POOL_H
#include "kvf/cores.h"

typedef struct kvf_pool kvf_pool;
/* `thread` is 0 (the caller of run) .. threads-1: names scratch memory. */
typedef void (*kvf_pool_fn)(void *context, uint32_t task, uint32_t thread);

/* cores: where they compute (kept until destroy; `threads` is then at most kvf_cores_all), or NULL: wherever the system
 * puts them. */
kvf_status kvf_pool_create(uint32_t threads, kvf_cores *cores, kvf_pool **out);
void kvf_pool_destroy(kvf_pool *p); /* NULL is fine */
uint32_t kvf_pool_threads(const kvf_pool *p);
uint32_t kvf_pool_sleepers(kvf_pool *p); /* workers asleep now */
/* Around the runs of a step where there are cores: from the first thread, which moves to its own cores. */
void kvf_pool_begin(kvf_pool *p);
void kvf_pool_end(kvf_pool *p);
/* Runs tasks 0..tasks-1 and returns when all are done. One caller at a time. Runs everything itself when tasks is 1. */
void kvf_pool_run(kvf_pool *p, kvf_pool_fn fn, void *context, uint32_t tasks);
#endif
