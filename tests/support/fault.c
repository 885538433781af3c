#include "fault.h"
#include <setjmp.h>
#include <stdarg.h>
#include <cmocka.h>
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/random.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

enum { HELD_MAX = 1 << 16, PATIENCE_S = 30 };

static _Atomic bool armed;
static _Atomic uint64_t calls, failing;
static _Atomic bool from_there_on, everywhere;
static pthread_t armed_by;
static const char *_Atomic first_failed = "";
static char now_running[128]; /* for the alarm */

bool fault_hits(const char *call) {
    if (!atomic_load(&armed)) return false;
    if (!atomic_load(&everywhere) && !pthread_equal(pthread_self(), armed_by)) return false;
    uint64_t n = atomic_fetch_add(&calls, 1) + 1, at = atomic_load(&failing);
    if (at == 0 || n < at || (n > at && !atomic_load(&from_there_on))) return false;
    if (n == at) atomic_store(&first_failed, call);
    return true;
}

void fault_arm(uint64_t nth, fault_mode mode, bool all_threads) {
    armed_by = pthread_self();
    atomic_store(&first_failed, "");
    atomic_store(&calls, 0);
    atomic_store(&failing, nth);
    atomic_store(&from_there_on, mode == FAULT_FROM_THERE_ON);
    atomic_store(&everywhere, all_threads);
    atomic_store(&armed, true);
}
uint64_t fault_disarm(void) {
    atomic_store(&armed, false);
    return atomic_load(&calls);
}
const char *fault_last(void) { return atomic_load(&first_failed); }

/* ---------------------------------------------------------------- blocks that are held */

static struct {
    void *at;
    const char *call;
} held[HELD_MAX]; /* open addressing; a freed place keeps a mark, so that chains stay whole */
static char gone_mark;
static size_t held_used;
static pthread_mutex_t held_lock = PTHREAD_MUTEX_INITIALIZER;

static size_t held_place(const void *p) { return ((uintptr_t)p >> 4) * 0x9e3779b97f4a7c15u >> 48; }

static void *took(void *p, const char *call) {
    if (!p || !atomic_load(&armed)) return p;
    pthread_mutex_lock(&held_lock);
    size_t i = held_place(p);
    while (held[i].at && held[i].at != &gone_mark) i = (i + 1) % HELD_MAX;
    KVF_ASSERT(++held_used < HELD_MAX / 2);
    held[i].at = p;
    held[i].call = call;
    pthread_mutex_unlock(&held_lock);
    return p;
}
static void gave(void *p) {
    if (!p) return;
    pthread_mutex_lock(&held_lock);
    for (size_t i = held_place(p); held_used && held[i].at; i = (i + 1) % HELD_MAX) {
        if (held[i].at != p) continue;
        held[i].at = &gone_mark;
        held_used--;
        break;
    }
    pthread_mutex_unlock(&held_lock);
}
size_t fault_held(char *text, size_t text_bytes) {
    size_t count = 0, used = 0;
    pthread_mutex_lock(&held_lock);
    for (size_t i = 0; i < HELD_MAX; i++) {
        if (!held[i].at || held[i].at == &gone_mark) continue;
        count++;
        if (used < text_bytes) used += (size_t)snprintf(text + used, text_bytes - used, " %s", held[i].call);
    }
    pthread_mutex_unlock(&held_lock);
    return count;
}
static void held_forget(void) {
    pthread_mutex_lock(&held_lock);
    memset(held, 0, sizeof held);
    held_used = 0;
    pthread_mutex_unlock(&held_lock);
}

/* ---------------------------------------------------------------- what is led through here */

#define FAULT_MEMORY(name, parameters, arguments)                                                                      \
    void *__real_##name parameters;                                                                                    \
    void *__wrap_##name parameters;                                                                                    \
    void *__wrap_##name parameters {                                                                                   \
        if (fault_hits(#name)) {                                                                                       \
            errno = ENOMEM;                                                                                            \
            return NULL;                                                                                               \
        }                                                                                                              \
        return took(__real_##name arguments, #name);                                                                   \
    }
#define FAULT_CALL(result, name, parameters, arguments, failure, error)                                                \
    result __real_##name parameters;                                                                                   \
    result __wrap_##name parameters;                                                                                   \
    result __wrap_##name parameters {                                                                                  \
        if (fault_hits(#name)) {                                                                                       \
            errno = error;                                                                                             \
            return failure;                                                                                            \
        }                                                                                                              \
        return __real_##name arguments;                                                                                \
    }

FAULT_MEMORY(malloc, (size_t n), (n))
FAULT_MEMORY(calloc, (size_t n, size_t size), (n, size))
FAULT_MEMORY(aligned_alloc, (size_t align, size_t n), (align, n))
FAULT_MEMORY(strdup, (const char *s), (s))
FAULT_MEMORY(strndup, (const char *s, size_t n), (s, n))

void *__real_realloc(void *old, size_t n);
void *__wrap_realloc(void *old, size_t n);
void __real_free(void *p);
void __wrap_free(void *p);
void *__wrap_realloc(void *old, size_t n) {
    if (fault_hits("realloc")) {
        errno = ENOMEM;
        return NULL;
    }
    gave(old); /* first: what is given back may be handed out to another thread at once */
    return took(__real_realloc(old, n), "realloc");
}
void __wrap_free(void *p) {
    gave(p);
    __real_free(p);
}

FAULT_CALL(void *, mmap64, (void *at, size_t n, int prot, int flags, int fd, off_t offset),
    (at, n, prot, flags, fd, offset), MAP_FAILED, ENOMEM)
FAULT_CALL(int, madvise, (void *at, size_t n, int advice), (at, n, advice), -1, EINVAL)
FAULT_CALL(int, memfd_create, (const char *name, unsigned flags), (name, flags), -1, EMFILE)
ssize_t __real_getrandom(void *out, size_t n, unsigned flags);
ssize_t __wrap_getrandom(void *out, size_t n, unsigned flags);
ssize_t __wrap_getrandom(void *out, size_t n, unsigned flags) { /* only ever interrupted, never for good */
    if (fault_hits("getrandom") && atomic_load(&calls) == atomic_load(&failing)) {
        errno = EINTR;
        return -1;
    }
    return __real_getrandom(out, n, flags);
}
int __real_posix_fallocate64(int fd, off_t offset, off_t n);
int __wrap_posix_fallocate64(int fd, off_t offset, off_t n);
int __wrap_posix_fallocate64(int fd, off_t offset, off_t n) {
    return fault_hits("posix_fallocate") ? ENOSPC : __real_posix_fallocate64(fd, offset, n);
}
FAULT_CALL(int, fstat64, (int fd, struct stat *st), (fd, st), -1, EIO)
FAULT_CALL(int, stat64, (const char *path, struct stat *st), (path, st), -1, EIO)
FAULT_CALL(int, flock, (int fd, int operation), (fd, operation), -1, ENOLCK)
FAULT_CALL(FILE *, fopen64, (const char *path, const char *mode), (path, mode), NULL, EMFILE)
FAULT_CALL(ssize_t, read, (int fd, void *out, size_t n), (fd, out, n), -1, EIO)
ssize_t __real_write(int fd, const void *in, size_t n);
ssize_t __wrap_write(int fd, const void *in, size_t n);
ssize_t __wrap_write(int fd, const void *in, size_t n) {
    if (!fault_hits("write")) return __real_write(fd, in, n);
    char path[48], what[32] = "";
    snprintf(path, sizeof path, "/proc/self/fd/%d", fd);
    bool bell = readlink(path, what, sizeof what - 1) > 0 && strstr(what, "eventfd");
    if (bell && atomic_load(&calls) != atomic_load(&failing)) return __real_write(fd, in, n);
    errno = bell ? EINTR : ENOSPC; /* nothing else happens to an eventfd that is not full, and not for good */
    return -1;
}
FAULT_CALL(ssize_t, recv, (int fd, void *out, size_t n, int flags), (fd, out, n, flags), -1, ECONNRESET)
FAULT_CALL(ssize_t, recvmsg, (int fd, struct msghdr *m, int flags), (fd, m, flags), -1, ECONNRESET)
FAULT_CALL(ssize_t, sendmsg, (int fd, const struct msghdr *m, int flags), (fd, m, flags), -1, ECONNRESET)
FAULT_CALL(int, socket, (int domain, int type, int protocol), (domain, type, protocol), -1, EMFILE)
FAULT_CALL(int, bind, (int fd, const struct sockaddr *a, socklen_t n), (fd, a, n), -1, EADDRINUSE)
FAULT_CALL(int, connect, (int fd, const struct sockaddr *a, socklen_t n), (fd, a, n), -1, ECONNREFUSED)
FAULT_CALL(int, getsockname, (int fd, struct sockaddr *a, socklen_t *n), (fd, a, n), -1, ENOBUFS)
FAULT_CALL(
    int, getsockopt, (int fd, int level, int name, void *out, socklen_t *n), (fd, level, name, out, n), -1, ENOBUFS)
FAULT_CALL(
    int, setsockopt, (int fd, int level, int name, const void *v, socklen_t n), (fd, level, name, v, n), -1, ENOBUFS)
FAULT_CALL(int, eventfd, (unsigned value, int flags), (value, flags), -1, EMFILE)
int __real_pthread_create(pthread_t *t, const pthread_attr_t *a, void *(*run)(void *), void *self);
int __wrap_pthread_create(pthread_t *t, const pthread_attr_t *a, void *(*run)(void *), void *self);
int __wrap_pthread_create(pthread_t *t, const pthread_attr_t *a, void *(*run)(void *), void *self) {
    return fault_hits("pthread_create") ? EAGAIN : __real_pthread_create(t, a, run, self);
}
int __real_open64(const char *path, int flags, ...);
int __wrap_open64(const char *path, int flags, ...);
int __wrap_open64(const char *path, int flags, ...) {
    va_list args;
    va_start(args, flags);
    unsigned mode = flags & O_CREAT ? va_arg(args, unsigned) : 0;
    va_end(args);
    if (fault_hits("open")) {
        errno = EMFILE;
        return -1;
    }
    return __real_open64(path, flags, mode);
}
size_t __real_fread(void *out, size_t size, size_t n, FILE *f);
size_t __wrap_fread(void *out, size_t size, size_t n, FILE *f);
size_t __wrap_fread(void *out, size_t size, size_t n, FILE *f) {
    if (fault_hits("fread")) { /* a directory in its place: the stream itself meets the error */
        int fd = __real_open64("/", O_RDONLY);
        if (fd >= 0) dup2(fd, fileno(f));
        if (fd >= 0) close(fd);
    }
    return __real_fread(out, size, n, f);
}

int __real_fcntl64(int fd, int command, ...);
int __wrap_fcntl64(int fd, int command, ...);
int __wrap_fcntl64(int fd, int command, ...) {
    va_list args;
    va_start(args, command);
    long value = va_arg(args, long);
    va_end(args);
    if (fault_hits("fcntl")) {
        errno = EINVAL;
        return -1;
    }
    return __real_fcntl64(fd, command, value);
}

/* ---------------------------------------------------------------- the driver */

static int descriptors(void) {
    int n = 0;
    DIR *d = opendir("/proc/self/fd");
    while (d && readdir(d)) n++;
    if (d) closedir(d);
    return n;
}

static void hangs(int signal) {
    (void)signal;
    static const char text[] = "hangs: ";
    ssize_t ignored = __real_write(STDERR_FILENO, text, sizeof text - 1);
    ignored = __real_write(STDERR_FILENO, now_running, strlen(now_running));
    ignored = __real_write(STDERR_FILENO, " at ", 4);
    ignored = __real_write(STDERR_FILENO, fault_last(), strlen(fault_last()));
    ignored = __real_write(STDERR_FILENO, "\n", 1);
    (void)ignored;
    abort();
}

static bool names_the_want(const fault_scenario *s, kvf_status status) {
    switch (status) {
    case KVF_ERR_INVALID:
    case KVF_ERR_FORMAT:
    case KVF_ERR_MISMATCH: return s->input_may_be_blamed;
    default: return status < 0 && strcmp(kvf_status_name(status), kvf_status_name((kvf_status)-9999)) != 0;
    }
}

/* false: the run needed fewer calls than k. */
static bool one_run(const fault_scenario *s, uint64_t k, fault_mode mode, int descriptors_before, uint64_t *failed) {
    kvf_error err = {0};
    char leaks[512] = "";
    snprintf(now_running, sizeof now_running, "%s, call %llu%s", s->name, (unsigned long long)k,
        mode == FAULT_ONCE ? "" : " and all later ones");
    if (getenv("KVF_FAULT_TRACE")) print_message("%s\n", now_running);
    alarm(PATIENCE_S);
    held_forget();
    fault_arm(k, mode, s->all_threads);
    kvf_status status = s->run(s->self, &err);
    uint64_t seen = fault_disarm();
    alarm(0);
    bool reached = *fault_last() != 0;
    if (fault_held(leaks, sizeof leaks) && !s->keeps)
        fail_msg("%s (%s): still held:%s", now_running, fault_last(), leaks);
    for (int i = 0; i < 5000 && descriptors() != descriptors_before; i++) /* gRPC closes some a little later */
        nanosleep(&(struct timespec){.tv_nsec = 1000000}, NULL);
    if (descriptors() != descriptors_before)
        fail_msg("%s (%s): %d descriptors, %d before", now_running, fault_last(), descriptors(), descriptors_before);
    if (!reached && status != KVF_OK)
        fail_msg("%s: nothing failed, and it says %s %s", now_running, kvf_status_name(status), err.message);
    if (status != KVF_OK && !names_the_want(s, status))
        fail_msg("%s (%s): ended with %s %s", now_running, fault_last(), kvf_status_name(status), err.message);
    *failed += status != KVF_OK;
    (void)seen;
    return reached;
}

/* gRPC closes some a little later: not before their number has rested for a while is it one to compare with. */
static int descriptors_at_rest(void) {
    enum { REST_MS = 300, PATIENCE_MS = 5000 };
    int count = descriptors();
    for (int ms = 0, rested = 0; ms < PATIENCE_MS && rested < REST_MS; ms++, rested++) {
        nanosleep(&(struct timespec){.tv_nsec = 1000000}, NULL);
        int now = descriptors();
        if (now != count) rested = 0;
        count = now;
    }
    return count;
}

void fault_each(const fault_scenario *s) {
    signal(SIGALRM, hangs);
    kvf_error err = {0};
    assert_int_equal(s->run(s->self, &err), KVF_OK); /* what is made once for the whole process is made now */
    assert_int_equal(s->run(s->self, &err), KVF_OK);
    int before = descriptors_at_rest();
    for (int mode = FAULT_ONCE; mode <= (s->no_repeat ? FAULT_ONCE : FAULT_FROM_THERE_ON); mode++) {
        uint64_t k = 1, failed = 0;
        while (one_run(s, k, (fault_mode)mode, before, &failed)) k++;
        print_message("%s: %llu calls failed in turn%s, %llu of them ended the run with a status\n", s->name,
            (unsigned long long)(k - 1), mode == FAULT_ONCE ? "" : " with all after them", (unsigned long long)failed);
        assert_true(k > 1 && failed > 0);
    }
    if (s->run(s->self, &err) != KVF_OK) fail_msg("%s: afterwards %s", s->name, err.message);
}
