/* watch.c - one thread that looks at the files of some stores: reading and judging certificates never holds up a thread
 * that serves. */
#include "kvf/tls.h"
#include <pthread.h>
#include <stdlib.h>
#include <time.h>

struct kvf_tls_watch {
    pthread_t thread;
    pthread_mutex_t lock;
    pthread_cond_t told;
    bool stop; /* guarded by lock */
    kvf_time_ns period_ns;
    uint32_t count;
    kvf_tls_store *stores[KVF_TLS_WATCH_MAX];
};

static void add_ns(struct timespec *t, kvf_time_ns ns) {
    ns += (kvf_time_ns)t->tv_nsec;
    t->tv_sec += (time_t)(ns / KVF_NS_PER_S);
    t->tv_nsec = (long)(ns % KVF_NS_PER_S);
}

static void *watch_main(void *self) {
    kvf_tls_watch *w = self;
    struct timespec next;
    clock_gettime(CLOCK_MONOTONIC, &next);
    pthread_mutex_lock(&w->lock);
    for (;;) {
        add_ns(&next, w->period_ns);
        while (!w->stop && pthread_cond_timedwait(&w->told, &w->lock, &next) == 0) continue;
        if (w->stop) break;
        pthread_mutex_unlock(&w->lock);
        for (uint32_t i = 0; i < w->count; i++) kvf_tls_store_check(w->stores[i]);
        clock_gettime(CLOCK_MONOTONIC, &next);
        pthread_mutex_lock(&w->lock);
    }
    pthread_mutex_unlock(&w->lock);
    return NULL;
}

kvf_status kvf_tls_watch_start(
    kvf_tls_store *const *stores, uint32_t count, kvf_time_ns period_ns, kvf_tls_watch **out) {
    if (count > KVF_TLS_WATCH_MAX) return KVF_ERR_LIMIT;
    kvf_tls_watch *w = calloc(1, sizeof *w);
    if (!w) return KVF_ERR_NO_MEMORY;
    w->period_ns = period_ns;
    for (uint32_t i = 0; i < count; i++)
        if (stores[i]) w->stores[w->count++] = stores[i];
    pthread_condattr_t attributes;
    pthread_condattr_init(&attributes);
    pthread_condattr_setclock(&attributes, CLOCK_MONOTONIC);
    pthread_cond_init(&w->told, &attributes);
    pthread_condattr_destroy(&attributes);
    pthread_mutex_init(&w->lock, NULL);
    if (pthread_create(&w->thread, NULL, watch_main, w) != 0) {
        pthread_cond_destroy(&w->told);
        pthread_mutex_destroy(&w->lock);
        free(w);
        return KVF_ERR_NO_MEMORY;
    }
    *out = w;
    return KVF_OK;
}

void kvf_tls_watch_stop(kvf_tls_watch *w) {
    if (!w) return;
    pthread_mutex_lock(&w->lock);
    w->stop = true;
    pthread_cond_signal(&w->told);
    pthread_mutex_unlock(&w->lock);
    pthread_join(w->thread, NULL);
    pthread_cond_destroy(&w->told);
    pthread_mutex_destroy(&w->lock);
    free(w);
}
