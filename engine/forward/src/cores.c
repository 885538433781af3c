/* Lending of cores; cores.h says what for.
 *
 * A word `busy_until` per core: 0, or a time of the monotonic clock (one for all processes of a host) up to which the
 * owner wants it, KVF_TIME_NEVER while a step runs. Times, because between two steps there is a gap of some
 * microseconds in which nobody should move in. `borrower`: process id of who has it, 0: nobody. */
#include "kvf/cores.h"
#include "kvf/os.h"
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

enum { THREADS_MAX = 64, LINGER_NS = 1000000 };

typedef struct {
    _Alignas(64) _Atomic uint64_t busy_until;
    _Atomic uint32_t borrower;
} core_word;
_Static_assert(sizeof(core_word) * KVF_CORES_MAX == KVF_CORES_FILE_BYTES, "a line per core");

struct kvf_cores {
    core_word *words; /* [KVF_CORES_MAX], or NULL */
    uint32_t own, all, me;
    uint16_t core[KVF_CORES_MAX]; /* of thread i; own cores first */
};

/* A number of the list; false: none is there. */
static bool number(const char **at, uint32_t *out) {
    uint32_t v = 0;
    if (**at < '0' || **at > '9') return false;
    for (; **at >= '0' && **at <= '9'; ++*at) v = v < KVF_CORES_MAX ? v * 10 + (uint32_t)(**at - '0') : v;
    *out = v;
    return v < KVF_CORES_MAX;
}

static kvf_status parse(const char *text, bool wanted[KVF_CORES_MAX], kvf_error *err) {
    for (const char *at = text;; at++) {
        uint32_t first, last;
        bool ok = number(&at, &first);
        last = first;
        if (ok && *at == '-') {
            at++;
            ok = number(&at, &last);
        }
        if (!ok || last < first || (*at && *at != ','))
            return kvf_fail(err, KVF_ERR_INVALID, "engine.cores: \"%.80s\" is no list like 0-3,8", text);
        for (uint32_t i = first; i <= last; i++) wanted[i] = true;
        if (!*at) return KVF_OK;
    }
}

static kvf_status choose(kvf_cores *c, const char *own, kvf_error *err) {
    bool wanted[KVF_CORES_MAX] = {false};
    kvf_status status = parse(own, wanted, err);
    if (status != KVF_OK) return status;
    cpu_set_t set;
    if (sched_getaffinity(0, sizeof set, &set) != 0) return kvf_fail(err, KVF_ERR_IO, "no list of cores to be had");
    for (uint32_t pass = 0; pass < 2; pass++) { /* own cores, then the others */
        for (uint32_t cpu = 0; cpu < KVF_CORES_MAX && c->all < THREADS_MAX; cpu++) {
            bool allowed = cpu < CPU_SETSIZE && CPU_ISSET(cpu, &set);
            if (pass == 0 && wanted[cpu] && !allowed)
                return kvf_fail(err, KVF_ERR_INVALID, "engine.cores: core %u is not one this process may use", cpu);
            if (!allowed || wanted[cpu] != (pass == 0) || (pass == 1 && !c->words)) continue;
            c->core[c->all++] = (uint16_t)cpu;
        }
        if (pass == 0) c->own = c->all;
    }
    return KVF_OK;
}

static kvf_status map_shared(kvf_cores *c, const char *path, kvf_error *err) {
    struct stat st;
    int fd = open(path, O_RDWR | O_CLOEXEC);
    if (fd < 0) return kvf_fail(err, KVF_ERR_IO, "engine.cores_shared: %s: %s", path, strerror(errno));
    kvf_status status = KVF_OK;
    void *at = MAP_FAILED;
    if (fstat(fd, &st) != 0 || st.st_size != KVF_CORES_FILE_BYTES)
        status = kvf_fail(err, KVF_ERR_INVALID, "engine.cores_shared: %s has not %d bytes", path, KVF_CORES_FILE_BYTES);
    else
        at = mmap(NULL, KVF_CORES_FILE_BYTES, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    if (status == KVF_OK && at == MAP_FAILED)
        status = kvf_fail(err, KVF_ERR_NO_MEMORY, "engine.cores_shared: %s cannot be mapped", path);
    if (status == KVF_OK) c->words = at;
    close(fd);
    return status;
}

kvf_status kvf_cores_open(const char *own, const char *shared, kvf_cores **out, kvf_error *err) {
    kvf_cores *c = calloc(1, sizeof *c);
    if (!c) return kvf_fail(err, KVF_ERR_NO_MEMORY, "out of memory");
    c->me = (uint32_t)getpid();
    kvf_status status = shared ? map_shared(c, shared, err) : KVF_OK;
    if (status == KVF_OK) status = choose(c, own, err);
    if (status != KVF_OK) {
        kvf_cores_close(c);
        return status;
    }
    /* An earlier process of this node may have died in a step. */
    for (uint32_t i = 0; c->words && i < c->own; i++) atomic_store(&c->words[c->core[i]].busy_until, 0);
    *out = c;
    return KVF_OK;
}

void kvf_cores_close(kvf_cores *c) {
    if (!c) return;
    if (c->words) munmap(c->words, KVF_CORES_FILE_BYTES);
    free(c);
}

uint32_t kvf_cores_own(const kvf_cores *c) { return c->own; }
uint32_t kvf_cores_all(const kvf_cores *c) { return c->all; }

void kvf_cores_bind(const kvf_cores *c, uint32_t thread) {
    cpu_set_t set;
    CPU_ZERO(&set);
    if (thread >= c->own) CPU_SET(c->core[thread], &set);
    /* Among own cores the system may choose: it knows what else runs there. */
    for (uint32_t i = 0; thread < c->own && i < c->own; i++) CPU_SET(c->core[i], &set);
    pthread_setaffinity_np(pthread_self(), sizeof set, &set);
}

/* Who borrowed a core and died has it no more. */
static void forget_dead(kvf_cores *c) {
    for (uint32_t i = c->own; i < c->all; i++) {
        uint32_t who = atomic_load_explicit(&c->words[c->core[i]].borrower, memory_order_relaxed);
        if (who && who != c->me && kill((pid_t)who, 0) != 0 && errno == ESRCH)
            atomic_compare_exchange_strong(&c->words[c->core[i]].borrower, &who, 0);
    }
}

static void want(kvf_cores *c, uint64_t until_ns) {
    for (uint32_t i = 0; i < c->own; i++)
        atomic_store_explicit(&c->words[c->core[i]].busy_until, until_ns, memory_order_release);
}
void kvf_cores_begin(kvf_cores *c) {
    if (!c->words) return;
    want(c, KVF_TIME_NEVER);
    forget_dead(c);
}
void kvf_cores_end(kvf_cores *c) {
    if (c->words) want(c, kvf_os_now_ns() + LINGER_NS);
}

static bool idle(const core_word *w) {
    uint64_t until = atomic_load_explicit(&w->busy_until, memory_order_acquire);
    return until == 0 || (until != KVF_TIME_NEVER && until <= kvf_os_now_ns());
}
bool kvf_cores_may_use(const kvf_cores *c, uint32_t thread) {
    KVF_ASSERT(thread < c->all);
    if (thread < c->own) return true;
    const core_word *w = &c->words[c->core[thread]];
    uint32_t who = atomic_load_explicit(&w->borrower, memory_order_relaxed);
    return (who == 0 || who == c->me) && idle(w);
}
bool kvf_cores_take(kvf_cores *c, uint32_t thread) {
    KVF_ASSERT(thread < c->all);
    if (thread < c->own) return true;
    core_word *w = &c->words[c->core[thread]];
    uint32_t nobody = 0;
    if (!idle(w)) return false;
    return atomic_load(&w->borrower) == c->me || atomic_compare_exchange_strong(&w->borrower, &nobody, c->me);
}
void kvf_cores_give_back(kvf_cores *c, uint32_t thread) {
    if (thread < c->own) return;
    uint32_t me = c->me;
    atomic_compare_exchange_strong(&c->words[c->core[thread]].borrower, &me, 0);
}
