/* accept4 of the whole process, in front of libc's.
 *
 * gRPC's listener ends for good at the first accept that fails for want of a descriptor, and says so only in a log
 * line: the process lives on and nobody reaches it any more. So no accept may fail like that. One descriptor is kept in
 * reserve: it is given up for a moment, those who wait are taken and closed at once - a clear outcome, they may come
 * again - and the caller hears EAGAIN, as if nobody had come. Errors of a connection that died in the queue are no
 * errors of the listener either. */
#include "rpc_int.h"
#include <errno.h>
#include <fcntl.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <unistd.h>

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static int reserve = -1; /* guarded by lock, as all below */
static uint64_t turned_away;
static gpr_timespec told;

void rpc_accept_guard(void) {
    pthread_mutex_lock(&lock);
    if (reserve < 0) reserve = open("/dev/null", O_RDONLY | O_CLOEXEC);
    pthread_mutex_unlock(&lock);
}

static int real_accept(int fd, struct sockaddr *address, socklen_t *len, int flags) {
    return (int)syscall(SYS_accept4, fd, address, len, flags);
}

/* Under lock. At most one line a second. */
static void tell(void) {
    gpr_timespec now = gpr_now(GPR_CLOCK_MONOTONIC);
    if (told.tv_sec && now.tv_sec - told.tv_sec < 1) return;
    told = now;
    kvf_log(KVF_LOG_WARN, "rpc", "no descriptor left for new connections: %llu turned away so far",
        (unsigned long long)turned_away);
}

static void turn_away(int fd) {
    pthread_mutex_lock(&lock);
    if (reserve >= 0) close(reserve);
    for (int got; reserve >= 0 && (got = real_accept(fd, NULL, NULL, SOCK_CLOEXEC)) >= 0; turned_away++) close(got);
    if (reserve >= 0) tell();
    reserve = open("/dev/null", O_RDONLY | O_CLOEXEC);
    pthread_mutex_unlock(&lock);
}

/* In the program's own symbol table, where shared libraries find it before libc's. Under another name in C: libc's
 * header gives accept4 a type that standard C cannot repeat. */
__attribute__((visibility("default"))) int rpc_accept4(
    int fd, struct sockaddr *address, socklen_t *len, int flags) __asm__("accept4");
int rpc_accept4(int fd, struct sockaddr *address, socklen_t *len, int flags) {
    for (;;) {
        int got = real_accept(fd, address, len, flags);
        if (got >= 0) return got;
        switch (errno) {
        case ECONNABORTED:
        case EPROTO:
        case ENETDOWN:
        case ENETUNREACH:
        case EHOSTDOWN:
        case EHOSTUNREACH:
        case ENONET:
        case ENOPROTOOPT: continue; /* that one is gone; the next */
        case EMFILE:
        case ENFILE: turn_away(fd); break;
        case ENOBUFS:
        case ENOMEM: break;
        default: return -1;
        }
        errno = EAGAIN;
        return -1;
    }
}
