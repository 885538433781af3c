/* workers.h - a few threads for what takes long (tokenising a megabyte, rendering a template): one bounded queue, in
 * order. */
#ifndef FRONT_WORKERS_H
#define FRONT_WORKERS_H
#include "kvf/base.h"

typedef struct worker_job worker_job;
struct worker_job { /* part of the sender's object */
    worker_job *next;
    void (*run)(worker_job *job); /* on a worker; takes the job */
    void (*drop)(worker_job *job); /* instead of run, at the end */
};

typedef struct workers workers;
kvf_status front_workers_create(uint32_t threads, uint32_t jobs_max, workers **out);
void front_workers_stop(workers *w); /* waits for what runs, drops what waits; put is refused from then on */
void front_workers_destroy(workers *w); /* stops first; NULL is fine */
/* Any thread. KVF_AGAIN: full, KVF_ERR_GONE: ending; then the job stays the caller's. */
kvf_status front_workers_put(workers *w, worker_job *job);
#endif
