/* The runtime: loops, process-wide settings of gRPC and malloc, where gRPC's log lines go. */
#include "rpc_int.h"
#include <grpc/support/log.h>
#include <dlfcn.h>
#include <malloc.h>
#include <signal.h>
#include <stdlib.h>

static _Thread_local const rpc_loop *current_loop;

bool rpc_loop_is_current(const rpc_loop *loop) { return current_loop == loop; }

rpc_loop *rpc_runtime_pick_loop(kvf_rpc_runtime *rt) {
    return &rt->loops[atomic_fetch_add(&rt->next_loop, 1) % rt->loop_count];
}

gpr_timespec rpc_deadline_after(uint64_t ms) {
    if (ms >= (uint64_t)INT64_MAX / 2000000) return gpr_inf_future(GPR_CLOCK_MONOTONIC);
    return gpr_time_add(gpr_now(GPR_CLOCK_MONOTONIC), gpr_time_from_millis((int64_t)ms, GPR_TIMESPAN));
}

/* What gRPC says of a handshake that failed is OpenSSL's wording without the cause; and it does not say with whom. */
static const char *handshake_words(const char *text) {
    static const struct {
        const char *in, *out;
    } words[] = {
        {"certificate verify failed", "the peer's certificate is refused: another authority, or out of its time"},
        {"wrong version number", "the peer does not speak TLS"}, {"http request", "the peer does not speak TLS"},
        {"peer did not return a certificate", "the peer shows no certificate"},
        {" alert ", "the peer refuses our certificate"}};
    if (!strstr(text, "Handshake failed")) return NULL;
    for (size_t i = 0; i < KVF_COUNT_OF(words); i++)
        if (strstr(text, words[i].in)) return words[i].out;
    return NULL;
}

/* gRPC calls things errors that are a peer's ordinary absence: one level down. */
static void log_line(gpr_log_func_args *args) {
    const char *words = handshake_words(args->message);
    if (words) {
        kvf_log(KVF_LOG_WARN, "tls", "%s (%s)", words, args->message);
        return;
    }
    kvf_log_level level = args->severity == GPR_LOG_SEVERITY_ERROR ? KVF_LOG_WARN : KVF_LOG_DEBUG;
    kvf_log(level, "grpc", "%s", args->message);
}

static void *loop_main(void *self) {
    rpc_loop *loop = self;
    current_loop = loop;
    for (;;) {
        grpc_event event = grpc_completion_queue_next(loop->cq, gpr_inf_future(GPR_CLOCK_MONOTONIC), NULL);
        if (event.type == GRPC_QUEUE_SHUTDOWN) break;
        if (event.type != GRPC_OP_COMPLETE) continue;
        rpc_tag *tag = event.tag;
        RPC_TAG_TAKE(tag);
        tag->fn(tag, event.success != 0);
    }
    return NULL;
}

/* Some builds of abseil (Debian's) watch the order of all locks: time at each lock, and a graph that grows for long.
 * There is no C function for it, and the name differs with the build: where it is not found, all stays as it is. */
static void no_lock_graph(void) {
    static const char name[] = "_ZN4absl7debian329SetMutexDeadlockDetectionModeENS0_15OnDeadlockCycleE";
    void (*set_mode)(int) = NULL;
    void *found = dlsym(RTLD_DEFAULT, name);
    memcpy(&set_mode, &found, sizeof found);
    if (set_mode) set_mode(0); /* kIgnore */
}

/* glibc maps, faults and unmaps every big buffer otherwise; messages of some MiB go 1.4 to 1.7 times as fast with this.
 */
static void tune_malloc(void) {
    mallopt(M_MMAP_THRESHOLD, 32 << 20);
    mallopt(M_TRIM_THRESHOLD, 512 << 20);
    mallopt(M_TOP_PAD, 64 << 20);
    /* Few threads allocate much: what one frees, the others may use, and memory comes to rest sooner. */
    mallopt(M_ARENA_MAX, 2);
}

static void stop_loops(kvf_rpc_runtime *rt, uint32_t started) {
    for (uint32_t i = 0; i < rt->loop_count; i++)
        if (rt->loops[i].cq) grpc_completion_queue_shutdown(rt->loops[i].cq);
    for (uint32_t i = 0; i < rt->loop_count; i++) {
        if (!rt->loops[i].cq) continue;
        if (i < started)
            pthread_join(rt->loops[i].thread, NULL);
        else
            loop_main(&rt->loops[i]); /* drains the queue of a thread that never was */
        grpc_completion_queue_destroy(rt->loops[i].cq);
    }
}

kvf_status kvf_rpc_runtime_create(const kvf_rpc_runtime_opts *opts, kvf_rpc_runtime **out) {
    kvf_status status = KVF_ERR_NO_MEMORY;
    kvf_rpc_runtime *rt = calloc(1, sizeof *rt);
    if (!rt) return status;
    rt->loop_count = opts && opts->loops ? opts->loops : 2;
    rt->loops = calloc(rt->loop_count, sizeof *rt->loops);
    if (!rt->loops) goto undo_runtime;
    if (!opts || !opts->keep_malloc) tune_malloc();
    no_lock_graph();
    pthread_mutex_init(&rt->lock, NULL);
    pthread_cond_init(&rt->idle, NULL);

    rpc_accept_guard();
    /* Every thread made below inherits the mask: signals go to the threads of the application. */
    sigset_t all, before;
    sigfillset(&all);
    pthread_sigmask(SIG_BLOCK, &all, &before);
    gpr_set_log_function(log_line);
    gpr_set_log_verbosity(GPR_LOG_SEVERITY_ERROR);
    grpc_init();
    uint32_t started = 0;
    for (uint32_t i = 0; i < rt->loop_count; i++) rt->loops[i].cq = grpc_completion_queue_create_for_next(NULL);
    while (started < rt->loop_count &&
           pthread_create(&rt->loops[started].thread, NULL, loop_main, &rt->loops[started]) == 0)
        started++;
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    if (started < rt->loop_count) goto undo_loops;
    *out = rt;
    return KVF_OK;

undo_loops:
    stop_loops(rt, started);
    grpc_shutdown();
    pthread_cond_destroy(&rt->idle);
    pthread_mutex_destroy(&rt->lock);
    free(rt->loops);
undo_runtime:
    free(rt);
    return status;
}

uint64_t kvf_rpc_runtime_calls(const kvf_rpc_runtime *rt) {
    kvf_rpc_runtime *mine = (kvf_rpc_runtime *)(uintptr_t)rt;
    pthread_mutex_lock(&mine->lock);
    uint64_t count = mine->session_count;
    pthread_mutex_unlock(&mine->lock);
    return count;
}

void kvf_rpc_runtime_destroy(kvf_rpc_runtime *rt) {
    if (!rt) return;
    rpc_sessions_cancel_all(rt);
    stop_loops(rt, rt->loop_count);
    grpc_shutdown();
    pthread_cond_destroy(&rt->idle);
    pthread_mutex_destroy(&rt->lock);
    free(rt->loops);
    free(rt);
}
