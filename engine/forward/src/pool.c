/* Thread pool of one engine.
 *
 * A job's tasks are cut into one stretch per thread. A stretch is one 64-bit word: job number, first and last task
 * nobody has taken yet. Its owner takes from the front, so it walks straight through memory; who has run out takes from
 * the back of others'. Taking is a compare-and-swap. The other fields of a job are written before its stretches and
 * change only when all its tasks are done; so a thread that holds a task may read them, however late it came. The
 * caller takes tasks too and waits only for tasks somebody holds: a worker that sleeps, or never gets a core, delays
 * nothing. */
#include "pool.h"
#include "kvf/os.h"
#include <pthread.h>
#include <sched.h>
#include <stdatomic.h>
#include <stdlib.h>

enum { TASK_MASK = (1 << 20) - 1, JOB_MASK = (1 << 24) - 1 };
enum { SPINS_BEFORE_SLEEP = 4000, SPINS_BEFORE_YIELD = 2000 };

struct kvf_pool {
    _Alignas(64) _Atomic uint32_t job;
    struct stretch {
        _Alignas(64) _Atomic uint64_t word; /* job << 40 | end << 20 | begin */
    } * stretches; /* [threads] */
    _Alignas(64) _Atomic uint32_t done; /* finished tasks of the job */
    _Alignas(64) _Atomic(kvf_pool_fn) fn;
    _Atomic(void *) context;
    _Alignas(64) _Atomic uint32_t sleepers;
    _Atomic bool stop;
    uint32_t threads, started;
    bool may_spin; /* false when there are fewer cores than threads */
    bool pin;
    pthread_mutex_t lock;
    pthread_cond_t wake;
    struct worker {
        kvf_pool *pool;
        uint32_t index;
        pthread_t thread;
    } * workers;
};

static inline void pause_cpu(void) {
#if defined(__x86_64__) || defined(__i386__)
    __builtin_ia32_pause();
#elif defined(__aarch64__)
    __asm__ volatile("yield");
#endif
}

static uint64_t stretch_word(uint32_t job, uint32_t begin, uint32_t end) {
    return (uint64_t)(job & JOB_MASK) << 40 | (uint64_t)end << 20 | begin;
}

/* Takes one task of a stretch; false when it has none left, or belongs to another job. */
static bool take(struct stretch *s, uint32_t job, bool front, uint32_t *task) {
    uint64_t word = atomic_load_explicit(&s->word, memory_order_acquire);
    for (;;) {
        uint32_t begin = word & TASK_MASK, end = word >> 20 & TASK_MASK;
        if ((uint32_t)(word >> 40) != (job & JOB_MASK) || begin >= end) return false;
        uint64_t rest = front ? stretch_word(job, begin + 1, end) : stretch_word(job, begin, end - 1);
        if (!atomic_compare_exchange_weak_explicit(&s->word, &word, rest, memory_order_acq_rel, memory_order_acquire))
            continue;
        *task = front ? begin : end - 1;
        return true;
    }
}

static void work(kvf_pool *p, uint32_t job, uint32_t thread) {
    for (uint32_t i = 0; i < p->threads; i++) {
        uint32_t owner = (thread + i) % p->threads, task;
        while (take(&p->stretches[owner], job, i == 0, &task)) {
            kvf_pool_fn fn = atomic_load_explicit(&p->fn, memory_order_relaxed);
            fn(atomic_load_explicit(&p->context, memory_order_relaxed), task, thread);
            atomic_fetch_add_explicit(&p->done, 1, memory_order_release);
        }
    }
}

/* Waits for another job than `seen`. */
static void wait_for_job(kvf_pool *p, uint32_t seen) {
    for (uint32_t i = 0; p->may_spin && i < SPINS_BEFORE_SLEEP; i++) {
        if (atomic_load_explicit(&p->job, memory_order_acquire) != seen) return;
        pause_cpu();
    }
    pthread_mutex_lock(&p->lock);
    atomic_fetch_add(&p->sleepers, 1);
    while (atomic_load(&p->job) == seen && !atomic_load(&p->stop)) pthread_cond_wait(&p->wake, &p->lock);
    atomic_fetch_sub(&p->sleepers, 1);
    pthread_mutex_unlock(&p->lock);
}

static void pin_to(uint32_t index) {
#if defined(__linux__)
    cpu_set_t allowed, one;
    if (sched_getaffinity(0, sizeof allowed, &allowed) != 0) return;
    uint32_t count = (uint32_t)CPU_COUNT(&allowed), want = count ? index % count : 0;
    for (int cpu = 0; cpu < CPU_SETSIZE; cpu++) {
        if (!CPU_ISSET(cpu, &allowed) || want-- > 0) continue;
        CPU_ZERO(&one);
        CPU_SET(cpu, &one);
        pthread_setaffinity_np(pthread_self(), sizeof one, &one);
        return;
    }
#endif
}

static void *worker_main(void *argument) {
    struct worker *w = argument;
    kvf_pool *p = w->pool;
    if (p->pin) pin_to(w->index);
    uint32_t seen = 0;
    while (!atomic_load(&p->stop)) {
        uint32_t job = atomic_load_explicit(&p->job, memory_order_acquire);
        if (job == seen) {
            wait_for_job(p, seen);
            continue;
        }
        seen = job;
        work(p, job, w->index);
    }
    return NULL;
}

kvf_status kvf_pool_create(uint32_t threads, bool pin, kvf_pool **out) {
    KVF_ASSERT(threads >= 1);
    kvf_pool *p = aligned_alloc(64, sizeof *p);
    if (!p) return KVF_ERR_NO_MEMORY;
    memset(p, 0, sizeof *p);
    p->threads = threads;
    p->pin = pin;
    p->may_spin = kvf_os_cpu_count() >= threads;
    pthread_mutex_init(&p->lock, NULL);
    pthread_cond_init(&p->wake, NULL);
    p->workers = calloc(threads, sizeof *p->workers);
    p->stretches = aligned_alloc(64, threads * sizeof *p->stretches);
    if (!p->workers || !p->stretches) goto undo_pool;
    memset(p->stretches, 0, threads * sizeof *p->stretches);
    for (p->started = 0; p->started + 1 < threads; p->started++) {
        struct worker *w = &p->workers[p->started];
        *w = (struct worker){.pool = p, .index = p->started + 1};
        if (pthread_create(&w->thread, NULL, worker_main, w) != 0) goto undo_pool;
    }
    *out = p;
    return KVF_OK;
undo_pool:
    kvf_pool_destroy(p);
    return KVF_ERR_NO_MEMORY;
}

void kvf_pool_destroy(kvf_pool *p) {
    if (!p) return;
    pthread_mutex_lock(&p->lock);
    atomic_store(&p->stop, true);
    atomic_fetch_add(&p->job, 1); /* spinners leave their wait; no stretch carries this number */
    pthread_cond_broadcast(&p->wake);
    pthread_mutex_unlock(&p->lock);
    for (uint32_t i = 0; i < p->started; i++) pthread_join(p->workers[i].thread, NULL);
    pthread_cond_destroy(&p->wake);
    pthread_mutex_destroy(&p->lock);
    free(p->stretches);
    free(p->workers);
    free(p);
}

uint32_t kvf_pool_threads(const kvf_pool *p) { return p->threads; }
uint32_t kvf_pool_sleepers(kvf_pool *p) { return atomic_load(&p->sleepers); }

void kvf_pool_run(kvf_pool *p, kvf_pool_fn fn, void *context, uint32_t tasks) {
    if (p->threads == 1 || tasks <= 1) {
        for (uint32_t i = 0; i < tasks; i++) fn(context, i, 0);
        return;
    }
    uint32_t job = atomic_load_explicit(&p->job, memory_order_relaxed) + 1;
    KVF_ASSERT(tasks <= TASK_MASK);
    atomic_store_explicit(&p->fn, fn, memory_order_relaxed);
    atomic_store_explicit(&p->context, context, memory_order_relaxed);
    atomic_store_explicit(&p->done, 0, memory_order_relaxed);
    for (uint64_t i = 0; i < p->threads; i++)
        atomic_store_explicit(&p->stretches[i].word,
            stretch_word(job, (uint32_t)(i * tasks / p->threads), (uint32_t)((i + 1) * tasks / p->threads)),
            memory_order_release);
    atomic_store(&p->job, job); /* sequentially consistent with the count of sleepers */
    if (atomic_load(&p->sleepers) > 0) {
        pthread_mutex_lock(&p->lock);
        pthread_cond_broadcast(&p->wake);
        pthread_mutex_unlock(&p->lock);
    }
    work(p, job, 0);
    for (uint32_t i = 0; atomic_load_explicit(&p->done, memory_order_acquire) != tasks; i++) {
        if (!p->may_spin || i > SPINS_BEFORE_YIELD)
            sched_yield();
        else
            pause_cpu();
    }
}
