#include "workers.h"
#include <pthread.h>
#include <signal.h>
#include <stdlib.h>

struct workers {
    pthread_mutex_t lock;
    pthread_cond_t changed;
    worker_job *head, *tail;
    uint32_t count, jobs_max;
    bool ending;
    uint32_t threads_count;
    pthread_t threads[];
};

static void *work(void *self) {
    workers *w = self;
    pthread_mutex_lock(&w->lock);
    for (;;) {
        while (!w->head && !w->ending) pthread_cond_wait(&w->changed, &w->lock);
        if (w->ending) break;
        worker_job *job = w->head;
        w->head = job->next;
        if (!w->head) w->tail = NULL;
        w->count--;
        pthread_mutex_unlock(&w->lock);
        job->run(job);
        pthread_mutex_lock(&w->lock);
    }
    pthread_mutex_unlock(&w->lock);
    return NULL;
}

/* Signals are for the thread that waits for them, never for these. */
static kvf_status start_threads(workers *w, uint32_t threads) {
    sigset_t all, before;
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &before);
    while (w->threads_count < threads && pthread_create(&w->threads[w->threads_count], NULL, work, w) == 0)
        w->threads_count++;
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    return w->threads_count == threads ? KVF_OK : KVF_ERR_NO_MEMORY;
}

kvf_status front_workers_create(uint32_t threads, uint32_t jobs_max, workers **out) {
    KVF_ASSERT(threads > 0 && jobs_max > 0);
    workers *w = calloc(1, sizeof *w + sizeof(pthread_t) * threads);
    if (!w) return KVF_ERR_NO_MEMORY;
    w->jobs_max = jobs_max;
    pthread_mutex_init(&w->lock, NULL);
    pthread_cond_init(&w->changed, NULL);
    if (start_threads(w, threads) != KVF_OK) {
        front_workers_destroy(w);
        return KVF_ERR_NO_MEMORY;
    }
    *out = w;
    return KVF_OK;
}

void front_workers_stop(workers *w) {
    pthread_mutex_lock(&w->lock);
    w->ending = true;
    worker_job *left = w->head;
    w->head = w->tail = NULL;
    w->count = 0;
    pthread_cond_broadcast(&w->changed);
    pthread_mutex_unlock(&w->lock);
    for (uint32_t i = 0; i < w->threads_count; i++) pthread_join(w->threads[i], NULL);
    w->threads_count = 0;
    while (left) {
        worker_job *next = left->next;
        left->drop(left);
        left = next;
    }
}

void front_workers_destroy(workers *w) {
    if (!w) return;
    front_workers_stop(w);
    pthread_cond_destroy(&w->changed);
    pthread_mutex_destroy(&w->lock);
    free(w);
}

kvf_status front_workers_put(workers *w, worker_job *job) {
    job->next = NULL;
    pthread_mutex_lock(&w->lock);
    kvf_status status = w->ending ? KVF_ERR_GONE : KVF_AGAIN;
    if (!w->ending && w->count < w->jobs_max) {
        if (w->tail)
            w->tail->next = job;
        else
            w->head = job;
        w->tail = job;
        w->count++;
        pthread_cond_signal(&w->changed);
        status = KVF_OK;
    }
    pthread_mutex_unlock(&w->lock);
    return status;
}
