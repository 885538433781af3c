#include "signals.h"
#include <poll.h>
#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <sys/eventfd.h>
#include <sys/signalfd.h>
#include <unistd.h>

struct kvf_signals {
    kvf_signals_fn fn;
    void *self;
    int signal_fd, stop_fd;
    pthread_t thread;
    atomic_uint times;
};

static sigset_t block(void) {
    sigset_t set;
    sigemptyset(&set);
    sigaddset(&set, SIGINT);
    sigaddset(&set, SIGTERM);
    sigaddset(&set, SIGHUP);
    pthread_sigmask(SIG_BLOCK, &set, NULL);
    return set;
}
void kvf_signals_block(void) { (void)block(); }

static void *watch(void *arg) {
    kvf_signals *s = arg;
    struct pollfd fds[2] = {{s->signal_fd, POLLIN, 0}, {s->stop_fd, POLLIN, 0}};
    for (;;) {
        if (poll(fds, 2, -1) < 0) continue;
        if (fds[1].revents) return NULL;
        struct signalfd_siginfo info;
        if (read(s->signal_fd, &info, sizeof info) != (ssize_t)sizeof info) continue;
        s->fn(s->self, (int)info.ssi_signo, atomic_fetch_add(&s->times, 1) + 1);
    }
}

kvf_status kvf_signals_start(kvf_signals_fn fn, void *self, kvf_signals **out) {
    kvf_signals *s = calloc(1, sizeof *s);
    if (!s) return KVF_ERR_NO_MEMORY;
    s->fn = fn;
    s->self = self;
    sigset_t set = block();
    s->signal_fd = signalfd(-1, &set, SFD_CLOEXEC | SFD_NONBLOCK);
    s->stop_fd = eventfd(0, EFD_CLOEXEC);
    if (s->signal_fd < 0 || s->stop_fd < 0) goto undo_fds;
    if (pthread_create(&s->thread, NULL, watch, s) != 0) goto undo_fds;
    *out = s;
    return KVF_OK;
undo_fds:
    if (s->signal_fd >= 0) close(s->signal_fd);
    if (s->stop_fd >= 0) close(s->stop_fd);
    free(s);
    return KVF_ERR_IO;
}

void kvf_signals_reset(kvf_signals *s) { atomic_store(&s->times, 0); }

void kvf_signals_stop(kvf_signals *s) {
    if (!s) return;
    uint64_t one = 1;
    ssize_t written = write(s->stop_fd, &one, sizeof one);
    KVF_ASSERT(written == (ssize_t)sizeof one);
    pthread_join(s->thread, NULL);
    close(s->signal_fd);
    close(s->stop_fd);
    free(s);
}

void kvf_signals_die(int signal_number) {
    sigset_t set;
    sigemptyset(&set);
    sigaddset(&set, signal_number);
    signal(signal_number, SIG_DFL);
    pthread_sigmask(SIG_UNBLOCK, &set, NULL);
    raise(signal_number);
    _exit(1);
}
