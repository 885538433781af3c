/* Thread pool of one engine.
 *
 * A job's tasks are cut into one stretch per thread. A stretch is one 64-bit word: job number, first and last task
 * nobody has taken yet. Its owner takes from the front, so it walks straight through memory; who has run out takes from
 * the back of others'. Taking is a compare-and-swap. The other fields of a job are written before its stretches and
 * change only when all its tasks are done; so a thread that holds a task may read them, however late it came. The
 * caller takes tasks too and waits only for tasks somebody holds: a worker that sleeps, or never gets a core, delays
 * nothing.
 *
 * Workers on borrowed cores (kvf/cores.h) take part only while the core is theirs: they look before each task, have no
 * stretch of a job that begins without them, and are not woken for it. */
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
    kvf_cores *cores; /* or NULL */
    pthread_t driver; /* who called begin last: is on its cores */
    bool driver_bound;
    pthread_mutex_t lock;
    struct worker {
        kvf_pool *pool;
        uint32_t index;
        pthread_t thread;
        pthread_cond_t wake;
        _Atomic bool asleep;
    } * workers; /* [threads]: that of thread i is at i - 1 */
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

static bool may_compute(const kvf_pool *p, uint32_t thread) {
    return !p->cores || thread == 0 || kvf_cores_may_use(p->cores, thread);
}

static void work(kvf_pool *p, uint32_t job, uint32_t thread) {
    for (uint32_t i = 0; i < p->threads; i++) {
        uint32_t owner = (thread + i) % p->threads, task;
        while (may_compute(p, thread) && take(&p->stretches[owner], job, i == 0, &task)) {
            kvf_pool_fn fn = atomic_load_explicit(&p->fn, memory_order_relaxed);
            fn(atomic_load_explicit(&p->context, memory_order_relaxed), task, thread);
            atomic_fetch_add_explicit(&p->done, 1, memory_order_release);
        }
    }
}

/* Waits for another job than `seen`; a borrowed core is given back before sleeping. */
static void wait_for_job(struct worker *w, uint32_t seen) {
    kvf_pool *p = w->pool;
    for (uint32_t i = 0; p->may_spin && i < SPINS_BEFORE_SLEEP && may_compute(p, w->index); i++) {
        if (atomic_load_explicit(&p->job, memory_order_acquire) != seen) return;
        pause_cpu();
    }
    if (p->cores) kvf_cores_give_back(p->cores, w->index);
    pthread_mutex_lock(&p->lock);
    atomic_store(&w->asleep, true);
    atomic_fetch_add(&p->sleepers, 1);
    while (atomic_load(&p->job) == seen && !atomic_load(&p->stop)) pthread_cond_wait(&w->wake, &p->lock);
    atomic_fetch_sub(&p->sleepers, 1);
    atomic_store(&w->asleep, false);
    pthread_mutex_unlock(&p->lock);
}

static void *worker_main(void *argument) {
    struct worker *w = argument;
    kvf_pool *p = w->pool;
    if (p->cores) kvf_cores_bind(p->cores, w->index);
    uint32_t seen = 0;
    while (!atomic_load(&p->stop)) {
        uint32_t job = atomic_load_explicit(&p->job, memory_order_acquire);
        if (job == seen) {
            wait_for_job(w, seen);
            continue;
        }
        seen = job;
        if (!p->cores || kvf_cores_take(p->cores, w->index)) work(p, job, w->index);
    }
    if (p->cores) kvf_cores_give_back(p->cores, w->index);
    return NULL;
}

/* Wakes those of the sleepers that may compute: all of them when the pool ends. */
static void wake_workers(kvf_pool *p, bool all) {
    pthread_mutex_lock(&p->lock);
    for (uint32_t i = 0; i < p->started; i++) {
        struct worker *w = &p->workers[i];
        if (all || (atomic_load(&w->asleep) && may_compute(p, w->index))) pthread_cond_signal(&w->wake);
    }
    pthread_mutex_unlock(&p->lock);
}

kvf_status kvf_pool_create(uint32_t threads, kvf_cores *cores, kvf_pool **out) {
    KVF_ASSERT(threads >= 1 && (!cores || threads <= kvf_cores_all(cores)));
    kvf_pool *p = aligned_alloc(64, sizeof *p);
    if (!p) return KVF_ERR_NO_MEMORY;
    memset(p, 0, sizeof *p);
    p->threads = threads;
    p->cores = cores;
    p->may_spin = kvf_os_cpu_count() >= threads;
    pthread_mutex_init(&p->lock, NULL);
    p->workers = calloc(threads, sizeof *p->workers);
    p->stretches = aligned_alloc(64, threads * sizeof *p->stretches);
    if (!p->workers || !p->stretches) goto undo_pool;
    memset(p->stretches, 0, threads * sizeof *p->stretches);
    for (p->started = 0; p->started + 1 < threads; p->started++) {
        struct worker *w = &p->workers[p->started];
        w->pool = p;
        w->index = p->started + 1;
        pthread_cond_init(&w->wake, NULL);
        if (pthread_create(&w->thread, NULL, worker_main, w) != 0) goto undo_worker;
    }
    *out = p;
    return KVF_OK;
undo_worker:
    pthread_cond_destroy(&p->workers[p->started].wake);
undo_pool:
    kvf_pool_destroy(p);
    return KVF_ERR_NO_MEMORY;
}

void kvf_pool_destroy(kvf_pool *p) {
    if (!p) return;
    atomic_store(&p->stop, true);
    atomic_fetch_add(&p->job, 1); /* spinners leave their wait; no stretch carries this number */
    wake_workers(p, true);
    for (uint32_t i = 0; i < p->started; i++) {
        pthread_join(p->workers[i].thread, NULL);
        pthread_cond_destroy(&p->workers[i].wake);
    }
    pthread_mutex_destroy(&p->lock);
    free(p->stretches);
    free(p->workers);
    free(p);
}

uint32_t kvf_pool_threads(const kvf_pool *p) { return p->threads; }
uint32_t kvf_pool_sleepers(kvf_pool *p) { return atomic_load(&p->sleepers); }

void kvf_pool_begin(kvf_pool *p) {
    if (!p->cores) return;
    if (!p->driver_bound || !pthread_equal(p->driver, pthread_self())) {
        kvf_cores_bind(p->cores, 0);
        p->driver = pthread_self();
        p->driver_bound = true;
    }
    kvf_cores_begin(p->cores);
}
void kvf_pool_end(kvf_pool *p) {
    if (p->cores) kvf_cores_end(p->cores);
}

/* Stretches for those who may compute now; the others' are empty. How many there are. */
static uint32_t cut(kvf_pool *p, uint32_t job, uint32_t tasks) {
    uint64_t may = 0;
    for (uint32_t i = 0; i < p->threads; i++)
        if (may_compute(p, i)) may |= 1ull << i;
    uint64_t parts = (uint64_t)__builtin_popcountll(may), part = 0;
    if (parts == 1) return 1;
    for (uint32_t i = 0; i < p->threads; i++) {
        uint64_t next = part + (may >> i & 1);
        atomic_store_explicit(&p->stretches[i].word,
            stretch_word(job, (uint32_t)(part * tasks / parts), (uint32_t)(next * tasks / parts)),
            memory_order_release);
        part = next;
    }
    return (uint32_t)parts;
}

void kvf_pool_run(kvf_pool *p, kvf_pool_fn fn, void *context, uint32_t tasks) {
    KVF_ASSERT(tasks <= TASK_MASK);
    uint32_t job = atomic_load_explicit(&p->job, memory_order_relaxed) + 1;
    if (p->threads > 1 && tasks > 1) {
        atomic_store_explicit(&p->fn, fn, memory_order_relaxed);
        atomic_store_explicit(&p->context, context, memory_order_relaxed);
        atomic_store_explicit(&p->done, 0, memory_order_relaxed);
    }
    if (p->threads == 1 || tasks <= 1 || cut(p, job, tasks) == 1) {
        for (uint32_t i = 0; i < tasks; i++) fn(context, i, 0);
        return;
    }
    atomic_store(&p->job, job); /* sequentially consistent with the flags of sleepers */
    if (atomic_load(&p->sleepers) > 0) wake_workers(p, false);
    work(p, job, 0);
    for (uint32_t i = 0; atomic_load_explicit(&p->done, memory_order_acquire) != tasks; i++) {
        if (!p->may_spin || i > SPINS_BEFORE_YIELD)
            sched_yield();
        else
            pause_cpu();
    }
}
