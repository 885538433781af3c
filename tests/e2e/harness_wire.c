/* A forwarder between two Unix sockets that a test can cut, hold or lead elsewhere; and a way to cut the sockets that
 * two processes share. One thread per wire; it holds the lock but for poll and for moving bytes. */
#include "parts.h"
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <poll.h>
#include <pthread.h>
#include <string.h>
#include <sys/eventfd.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/un.h>
#include <unistd.h>

enum { PAIRS_MAX = 32, CHUNK = 1 << 16 };

typedef struct {
    int fd[2]; /* -1: no pair here; [0] came to us, [1] we called */
    bool ended[2]; /* this end sends no more */
} pair;

struct e2e_wire {
    pthread_t thread;
    pthread_mutex_t lock;
    int listener, wake;
    char from[112], to[112];
    bool stop, hold, refuse;
    pair pairs[PAIRS_MAX];
};

static struct sockaddr_un address_of(const char *path) {
    struct sockaddr_un a = {.sun_family = AF_UNIX};
    assert_true(strlen(path) < sizeof a.sun_path);
    strcpy(a.sun_path, path);
    return a;
}

static void drop(pair *p) {
    close(p->fd[0]);
    close(p->fd[1]);
    p->fd[0] = p->fd[1] = -1;
}

/* ---- the thread ---- */

static void take_connection(e2e_wire *w) {
    int in = accept4(w->listener, NULL, NULL, SOCK_CLOEXEC);
    if (in < 0) return;
    struct sockaddr_un a = address_of(w->to);
    int out = w->refuse ? -1 : socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
    if (out < 0 || connect(out, (struct sockaddr *)&a, sizeof a) != 0) {
        if (out >= 0) close(out);
        close(in);
        return;
    }
    for (size_t i = 0; i < PAIRS_MAX; i++) {
        if (w->pairs[i].fd[0] >= 0) continue;
        w->pairs[i] = (pair){.fd = {in, out}};
        return;
    }
    close(in);
    close(out);
}

/* Both ends of a pair are read only when the other takes bytes: what a slow reader does not take waits at the writer.
 */
static void move(pair *p, int side) {
    static _Thread_local uint8_t bytes[CHUNK];
    ssize_t got = recv(p->fd[side], bytes, sizeof bytes, MSG_DONTWAIT);
    if (got < 0 && (errno == EAGAIN || errno == EINTR)) return;
    if (got <= 0) {
        p->ended[side] = true;
        if (got < 0 || p->ended[!side] || shutdown(p->fd[!side], SHUT_WR) != 0) drop(p);
        return;
    }
    for (ssize_t at = 0; at < got;) {
        ssize_t sent = send(p->fd[!side], bytes + at, (size_t)(got - at), MSG_NOSIGNAL);
        if (sent < 0 && errno == EINTR) continue;
        if (sent <= 0) {
            drop(p);
            return;
        }
        at += sent;
    }
}

static void *forward(void *self) {
    e2e_wire *w = self;
    for (;;) {
        struct pollfd fds[2 + 2 * PAIRS_MAX] = {{w->wake, POLLIN, 0}, {w->listener, POLLIN, 0}};
        size_t count = 2;
        struct {
            pair *p;
            int side;
        } of[2 + 2 * PAIRS_MAX];
        pthread_mutex_lock(&w->lock);
        bool stop = w->stop;
        for (size_t i = 0; i < PAIRS_MAX && !w->hold; i++)
            for (int side = 0; side < 2; side++) {
                pair *p = &w->pairs[i];
                if (p->fd[0] < 0 || p->ended[side]) continue;
                fds[count] = (struct pollfd){p->fd[side], POLLIN, 0};
                of[count].p = p;
                of[count++].side = side;
            }
        pthread_mutex_unlock(&w->lock);
        if (stop) return NULL;
        if (poll(fds, count, -1) < 0) continue;
        pthread_mutex_lock(&w->lock);
        uint64_t woken;
        if (fds[0].revents && read(w->wake, &woken, sizeof woken) < 0) woken = 0;
        for (size_t i = 2; i < count && !w->hold; i++)
            if (fds[i].revents && of[i].p->fd[of[i].side] == fds[i].fd) move(of[i].p, of[i].side);
        if (fds[1].revents) take_connection(w);
        pthread_mutex_unlock(&w->lock);
    }
}

/* ---- what tests say ---- */

static void say(e2e_wire *w) {
    uint64_t one = 1;
    ssize_t written = write(w->wake, &one, sizeof one);
    assert_int_equal(written, sizeof one);
    pthread_mutex_unlock(&w->lock);
}

static void cut_all(e2e_wire *w) {
    for (size_t i = 0; i < PAIRS_MAX; i++)
        if (w->pairs[i].fd[0] >= 0) drop(&w->pairs[i]);
}

e2e_wire *e2e_wire_open(const char *from, const char *to) {
    e2e_wire *w = calloc(1, sizeof *w);
    assert_non_null(w);
    for (size_t i = 0; i < PAIRS_MAX; i++) w->pairs[i].fd[0] = w->pairs[i].fd[1] = -1;
    snprintf(w->from, sizeof w->from, "%s", from);
    snprintf(w->to, sizeof w->to, "%s", to);
    struct sockaddr_un a = address_of(from);
    w->listener = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
    w->wake = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
    assert_int_equal(bind(w->listener, (struct sockaddr *)&a, sizeof a), 0);
    assert_int_equal(listen(w->listener, 64), 0);
    pthread_mutex_init(&w->lock, NULL);
    assert_int_equal(pthread_create(&w->thread, NULL, forward, w), 0);
    return w;
}

void e2e_wire_close(e2e_wire *w) {
    pthread_mutex_lock(&w->lock);
    w->stop = true;
    say(w);
    pthread_join(w->thread, NULL);
    cut_all(w);
    close(w->listener);
    close(w->wake);
    unlink(w->from);
    pthread_mutex_destroy(&w->lock);
    free(w);
}

void e2e_wire_cut(e2e_wire *w) {
    pthread_mutex_lock(&w->lock);
    cut_all(w);
    say(w);
}

void e2e_wire_hold(e2e_wire *w, bool hold) {
    pthread_mutex_lock(&w->lock);
    w->hold = hold;
    say(w);
}

void e2e_wire_refuse(e2e_wire *w, bool refuse) {
    pthread_mutex_lock(&w->lock);
    w->refuse = refuse;
    if (refuse) cut_all(w);
    say(w);
}

void e2e_wire_lead(e2e_wire *w, const char *to) {
    pthread_mutex_lock(&w->lock);
    snprintf(w->to, sizeof w->to, "%s", to);
    say(w);
}

size_t e2e_wire_connections(e2e_wire *w) {
    size_t count = 0;
    pthread_mutex_lock(&w->lock);
    for (size_t i = 0; i < PAIRS_MAX; i++) count += w->pairs[i].fd[0] >= 0;
    pthread_mutex_unlock(&w->lock);
    return count;
}

/* ---- sockets of other processes ---- */

static bool is_wanted(int fd, bool listeners) {
    struct sockaddr_storage a;
    socklen_t len = sizeof a, size = sizeof(int);
    int accepts = 0;
    if (!listeners) return getpeername(fd, (struct sockaddr *)&a, &len) == 0;
    return getsockopt(fd, SOL_SOCKET, SO_ACCEPTCONN, &accepts, &size) == 0 && accepts &&
           getsockname(fd, (struct sockaddr *)&a, &len) == 0 && a.ss_family != AF_UNIX;
}

/* Duplicates of the connected stream sockets, or of the TCP listeners, of a process; -1: not allowed. */
static int sockets_of(pid_t pid, bool listeners, int *out, int max) {
    char path[64];
    snprintf(path, sizeof path, "/proc/%d/fd", (int)pid);
    int pidfd = (int)syscall(SYS_pidfd_open, pid, 0), count = 0;
    DIR *d = opendir(path);
    for (struct dirent *e; pidfd >= 0 && count >= 0 && d && (e = readdir(d));) {
        char link[320], target[64] = "";
        snprintf(link, sizeof link, "%s/%s", path, e->d_name);
        if (e->d_name[0] == '.' || readlink(link, target, sizeof target - 1) < 0) continue;
        if (strncmp(target, "socket:", 7) != 0 || count == max) continue;
        int fd = (int)syscall(SYS_pidfd_getfd, pidfd, atoi(e->d_name), 0);
        if (fd < 0 && (errno == EPERM || errno == ENOSYS)) {
            while (count > 0) close(out[--count]);
            count = -1;
        } else if (fd >= 0 && is_wanted(fd, listeners)) {
            out[count++] = fd;
        } else if (fd >= 0) {
            close(fd);
        }
    }
    if (d) closedir(d);
    if (pidfd >= 0) close(pidfd);
    return pidfd < 0 ? -1 : count;
}

static bool connected(int a, pid_t other, const int *others, int count) {
    struct ucred who;
    socklen_t len = sizeof who;
    struct sockaddr_storage peer;
    socklen_t peer_len = sizeof peer;
    if (getpeername(a, (struct sockaddr *)&peer, &peer_len) != 0) return false;
    if (peer.ss_family == AF_UNIX) return getsockopt(a, SOL_SOCKET, SO_PEERCRED, &who, &len) == 0 && who.pid == other;
    for (int i = 0; i < count; i++) {
        struct sockaddr_storage name;
        socklen_t name_len = sizeof name;
        if (getsockname(others[i], (struct sockaddr *)&name, &name_len) == 0 && name_len == peer_len &&
            memcmp(&name, &peer, name_len) == 0)
            return true;
    }
    return false;
}

int e2e_cut_between(pid_t one, pid_t other) {
    int a[256], b[256], cut = 0;
    int a_count = sockets_of(one, false, a, 256), b_count = sockets_of(other, false, b, 256);
    for (int i = 0; i < a_count; i++)
        if (connected(a[i], other, b, b_count)) cut += shutdown(a[i], SHUT_RDWR) == 0;
    bool allowed = a_count >= 0 && b_count >= 0;
    while (a_count > 0) close(a[--a_count]);
    while (b_count > 0) close(b[--b_count]);
    return allowed ? cut : -1;
}

int e2e_shut_listeners(pid_t pid) {
    int fds[64], count = sockets_of(pid, true, fds, 64), shut = 0;
    for (int i = 0; i < count; i++) {
        shut += shutdown(fds[i], SHUT_RDWR) == 0;
        close(fds[i]);
    }
    return count < 0 ? -1 : shut;
}
