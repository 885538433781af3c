/* Whether this node gets on. A listener that answers proves nothing: gRPC loops go on when the thread behind them
 * hangs.
 *
 * The core thread is alive while its own timer runs; the engine thread is, while no step runs or the running one
 * finishes a layer now and then (an idle node and a long prompt are well). A watch thread looks at both. When either
 * has stood still for the stall limit, every health name is NOT_SERVING, the log says which thread and for how long,
 * and routers lose their sessions - closed by the core thread, or, where that one hangs, by its silence - and get no
 * new one. All of it ends when the thread goes on.
 *
 * Work of a device that has not ended for twice the limit does not end: then the process does, and whoever started it
 * starts another. */
#include "worker_int.h"
#include "kvf/log.h"
#include <inttypes.h>
#include <time.h>

enum { LOOKS = 5 }; /* within one stall limit */

bool progress_stalled(const kvf_worker *w) { return atomic_load(&w->progress.stalled); }

static void set_health(kvf_worker *w, bool serving) {
    static const char *const names[] = {"", "liveness", "readiness", "kvferry.internal.v1.Node"};
    for (size_t i = 0; i < KVF_COUNT_OF(names); i++)
        kvf_rpc_health_set(w->control, names[i], serving ? KVF_RPC_HEALTH_SERVING : KVF_RPC_HEALTH_NOT_SERVING);
}

static void look(kvf_worker *w) {
    kvf_time_ns now = kvf_os_now_ns(), limit = w->options.stall_limit_ns, seen = atomic_load(&w->progress.core_ns);
    kvf_time_ns core = now > seen ? now - seen : 0, engine = compute_stalled_ns(w->compute, now);
    bool stalled = core >= limit || engine >= limit;
    /* Seen at two looks: a process that was frozen finds the clock far ahead. */
    if (w->backend->in_device_memory && progress_stalled(w) && engine >= 2 * limit)
        worker_device_lost(w, "an engine step does not end");
    if (stalled == progress_stalled(w)) return;
    atomic_store(&w->progress.stalled, stalled);
    set_health(w, !stalled);
    if (stalled)
        kvf_log(KVF_LOG_ERROR, "node", "not serving: the %s thread has made no progress for %" PRIu64 " ms",
            core >= limit ? "core" : "engine", (uint64_t)((core >= limit ? core : engine) / KVF_NS_PER_MS));
    else
        kvf_log(KVF_LOG_WARN, "node", "serving again: core and engine threads make progress");
}

static void *watch(void *self) {
    kvf_worker *w = self;
    kvf_time_ns step = w->options.stall_limit_ns / LOOKS;
    pthread_mutex_lock(&w->progress.lock);
    while (!w->progress.stop) {
        kvf_time_ns at = kvf_os_now_ns() + step;
        struct timespec t = {.tv_sec = (time_t)(at / KVF_NS_PER_S), .tv_nsec = (long)(at % KVF_NS_PER_S)};
        pthread_cond_timedwait(&w->progress.changed, &w->progress.lock, &t);
        if (!w->progress.stop) look(w);
    }
    pthread_mutex_unlock(&w->progress.lock);
    return NULL;
}

/* Core thread. */
static void on_beat(evutil_socket_t fd, short what, void *self) {
    (void)fd;
    (void)what;
    kvf_worker *w = self;
    hooks_hang(w->hooks.hang_core);
    atomic_store(&w->progress.core_ns, kvf_os_now_ns());
    if (progress_stalled(w)) session_close_all(w, "this node makes no progress");
}

kvf_status progress_start(kvf_worker *w) {
    struct timeval beat = {.tv_sec = (time_t)(w->options.stall_limit_ns / LOOKS / KVF_NS_PER_S),
        .tv_usec = (suseconds_t)(w->options.stall_limit_ns / LOOKS % KVF_NS_PER_S / 1000)};
    atomic_store(&w->progress.core_ns, kvf_os_now_ns());
    w->progress.beat = event_new(w->base, -1, EV_PERSIST, on_beat, w);
    if (!w->progress.beat || event_add(w->progress.beat, &beat) != 0) return KVF_ERR_NO_MEMORY;
    pthread_condattr_t monotonic;
    pthread_condattr_init(&monotonic);
    pthread_condattr_setclock(&monotonic, CLOCK_MONOTONIC);
    pthread_mutex_init(&w->progress.lock, NULL);
    pthread_cond_init(&w->progress.changed, &monotonic);
    pthread_condattr_destroy(&monotonic);
    w->progress.running = pthread_create(&w->progress.thread, NULL, watch, w) == 0;
    return w->progress.running ? KVF_OK : KVF_ERR_NO_MEMORY;
}

void progress_stop(kvf_worker *w) {
    if (w->progress.running) {
        pthread_mutex_lock(&w->progress.lock);
        w->progress.stop = true;
        pthread_cond_signal(&w->progress.changed);
        pthread_mutex_unlock(&w->progress.lock);
        pthread_join(w->progress.thread, NULL);
        pthread_cond_destroy(&w->progress.changed);
        pthread_mutex_destroy(&w->progress.lock);
    }
    if (w->progress.beat) event_free(w->progress.beat);
}
