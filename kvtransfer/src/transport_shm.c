/* transport_shm.c - frames between two processes of one host. The receiver listens on an abstract Unix socket. To
 * whoever calls it (same user only) it sends one message with three descriptors: a sealed memfd ring that it made and
 * two eventfd bells.
 *
 *   caller (sends pages)                         listener (receives them)
 *   connect ------------------------------------> accept
 *           <----- "KVFS" u32 version, 3 descriptors
 *   ring: bytes of frames, then bell "data" ----> read ring
 *           <------------------- bell "room" ---- when the caller asked for it
 *           <------------ frames over the socket
 * The socket's end is the link's end; what lies in the ring is read first. */
#include "listener.h"
#include "sock.h"
#include "shm_ring.h"
#include "kvf/os.h"
#include <errno.h>
#include <event2/event.h>
#include <fcntl.h>
#include <stdio.h>
#include <sys/eventfd.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#define GREETING "KVFS\1\0\0\0"
#define GREETING_BYTES 8u
#define CONTROL_BYTES (128u << 10) /* staging of the socket direction: frames without payload only */

typedef struct {
    kvf_conn base;
    kvf_transport_env *env;
    bool caller;
    sock s; /* listener: from the start; caller: once the greeting is here */
    int greeting_fd; /* caller, before that */
    struct event *ev_greeting;
    shm_ring ring;
    int bell_data, bell_room;
    struct event *ev_bell; /* on the bell that the other side rings */
    size_t room_wanted;
} shm_conn;

static const kvf_conn_ops shm_conn_ops;
static shm_conn *shm_of(kvf_conn *c) { return (shm_conn *)(void *)c; }

static void shm_release(kvf_conn *c) {
    shm_conn *m = shm_of(c);
    if (m->ev_greeting) event_free(m->ev_greeting);
    if (m->ev_bell) event_free(m->ev_bell);
    sock_fini(&m->s);
    shm_ring_fini(&m->ring);
    if (m->greeting_fd >= 0) close(m->greeting_fd);
    if (m->bell_data >= 0) close(m->bell_data);
    if (m->bell_room >= 0) close(m->bell_room);
    free(m);
}

static shm_conn *shm_conn_new(kvf_transport_env *env, bool caller) {
    shm_conn *m = calloc(1, sizeof *m);
    if (!m) return NULL;
    m->base.ops = &shm_conn_ops;
    m->env = env;
    m->caller = caller;
    m->s.fd = m->greeting_fd = m->bell_data = m->bell_room = -1;
    return m;
}

static void bell_ring(int bell) {
    uint64_t one = 1;
    ssize_t n;
    do n = write(bell, &one, sizeof one);
    while (n < 0 && errno == EINTR); /* full: it is ringing already */
}

/* The other side has rung, or the event was made active to look again. */
static void shm_look(shm_conn *m) {
    if (m->caller) {
        size_t room = shm_ring_room(&m->ring);
        if (m->room_wanted && !m->ring.broken) {
            if (room >= m->room_wanted || !shm_ring_want_room(&m->ring, m->room_wanted)) {
                m->room_wanted = 0;
                conn_tell_room(&m->base);
            }
        }
    } else if (shm_ring_ready(&m->ring) > 0) {
        conn_tell_readable(&m->base);
    }
    if (m->ring.broken) conn_tell_down(&m->base, KVF_ERR_FORMAT, "ring counters out of range");
}

static void shm_on_bell(evutil_socket_t fd, short what, void *self) {
    (void)what;
    shm_conn *m = self;
    uint64_t count;
    ssize_t n = read((int)fd, &count, sizeof count);
    (void)n;
    conn_enter(&m->base);
    if (!m->base.closed && !m->base.told_down) shm_look(m);
    if (conn_leave(&m->base)) shm_release(&m->base);
}

/* The socket has ended: what the peer published before is read first. */
static void shm_before_down(kvf_conn *c) { shm_look(shm_of(c)); }

static bool shm_same_user(int fd) {
    struct ucred peer;
    socklen_t len = sizeof peer;
    return getsockopt(fd, SOL_SOCKET, SO_PEERCRED, &peer, &len) == 0 && peer.uid == geteuid();
}

static kvf_status shm_watch(shm_conn *m, int bell) {
    m->ev_bell = event_new(m->env->base, bell, EV_READ | EV_PERSIST, shm_on_bell, m);
    return m->ev_bell && event_add(m->ev_bell, NULL) == 0 ? KVF_OK : KVF_ERR_NO_MEMORY;
}

/* ---------------------------------------------------------------- calling */
static kvf_status shm_receive_greeting(shm_conn *m, int fds[3]) {
    char text[GREETING_BYTES];
    union {
        struct cmsghdr align;
        char bytes[CMSG_SPACE(3 * sizeof(int))];
    } control;
    struct iovec v = {text, sizeof text};
    struct msghdr msg = {.msg_iov = &v, .msg_iovlen = 1, .msg_control = &control, .msg_controllen = sizeof control};
    ssize_t got = recvmsg(m->greeting_fd, &msg, MSG_DONTWAIT | MSG_CMSG_CLOEXEC);
    if (got < 0) return errno == EAGAIN || errno == EINTR ? KVF_AGAIN : KVF_ERR_PEER_LOST;
    size_t fds_count = 0;
    for (struct cmsghdr *c = CMSG_FIRSTHDR(&msg); c; c = CMSG_NXTHDR(&msg, c)) {
        if (c->cmsg_level != SOL_SOCKET || c->cmsg_type != SCM_RIGHTS) continue;
        size_t n = (c->cmsg_len - CMSG_LEN(0)) / sizeof(int);
        for (size_t i = 0; i < n; i++) {
            int fd;
            memcpy(&fd, CMSG_DATA(c) + i * sizeof fd, sizeof fd);
            if (fds_count < 3)
                fds[fds_count++] = fd;
            else
                close(fd);
        }
    }
    if (got == 0) return KVF_ERR_PEER_LOST;
    return got == GREETING_BYTES && fds_count == 3 && memcmp(text, GREETING, GREETING_BYTES) == 0 ? KVF_OK
                                                                                                  : KVF_ERR_FORMAT;
}

static kvf_status shm_welcome(shm_conn *m, kvf_error *err) {
    int fds[3] = {-1, -1, -1};
    kvf_status status = shm_receive_greeting(m, fds);
    m->bell_data = fds[1];
    m->bell_room = fds[2];
    if (status == KVF_OK)
        status = shm_ring_open(&m->ring, fds[0], err);
    else if (status != KVF_AGAIN)
        kvf_fail(
            err, status, "%s", status == KVF_ERR_FORMAT ? "greeting of an unknown kind" : "peer closed the connection");
    if (fds[0] >= 0) close(fds[0]);
    if (status != KVF_OK) return status;
    /* Whatever these descriptors are, they shall not block us. */
    fcntl(m->bell_data, F_SETFL, O_NONBLOCK);
    fcntl(m->bell_room, F_SETFL, O_NONBLOCK);
    int fd = m->greeting_fd;
    m->greeting_fd = -1;
    event_del(m->ev_greeting);
    status = sock_init(&m->s, m->env->base, fd, CONTROL_BYTES, 0, &m->base, shm_release);
    if (status == KVF_OK) status = shm_watch(m, m->bell_room);
    if (status != KVF_OK) kvf_fail(err, status, "no memory for the connection");
    return status;
}

static void shm_on_greeting(evutil_socket_t fd, short what, void *self) {
    (void)fd;
    (void)what;
    shm_conn *m = self;
    kvf_error err = {0};
    conn_enter(&m->base);
    if (!m->base.closed && !m->base.told_down) {
        kvf_status status = shm_welcome(m, &err);
        if (status == KVF_OK) conn_tell_open(&m->base);
        if (status != KVF_OK && status != KVF_AGAIN) {
            event_del(m->ev_greeting);
            conn_tell_down(&m->base, status, err.message);
        }
    }
    if (conn_leave(&m->base)) shm_release(&m->base);
}

static bool shm_name(const char *where, struct sockaddr_un *out, socklen_t *len) {
    *out = (struct sockaddr_un){.sun_family = AF_UNIX}; /* sun_path[0] = 0: abstract, no file anywhere */
    size_t n = strlen(where);
    if (n == 0 || n > sizeof out->sun_path - 1) return false;
    memcpy(out->sun_path + 1, where, n);
    *len = (socklen_t)(offsetof(struct sockaddr_un, sun_path) + 1 + n);
    return true;
}

static kvf_status shm_dial(kvf_transport_env *env, const char *where, kvf_conn **out, kvf_error *err) {
    struct sockaddr_un address;
    socklen_t len;
    if (!shm_name(where, &address, &len))
        return kvf_fail(err, KVF_ERR_INVALID, "\"%s\" is no name for a socket", where);
    shm_conn *m = shm_conn_new(env, true);
    if (!m) return kvf_fail(err, KVF_ERR_NO_MEMORY, "no memory for the connection");
    m->greeting_fd = socket(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);
    kvf_status status = KVF_ERR_PEER_LOST;
    if (m->greeting_fd < 0 || connect(m->greeting_fd, (struct sockaddr *)&address, len)) {
        kvf_fail(err, status, "connect to shm:%s: %s", where, strerror(errno));
        goto undo_conn;
    }
    if (!shm_same_user(m->greeting_fd)) {
        status = kvf_fail(err, KVF_ERR_AUTH, "shm:%s belongs to another user", where);
        goto undo_conn;
    }
    m->ev_greeting = event_new(env->base, m->greeting_fd, EV_READ | EV_PERSIST, shm_on_greeting, m);
    if (!m->ev_greeting || event_add(m->ev_greeting, NULL)) {
        status = kvf_fail(err, KVF_ERR_NO_MEMORY, "no memory for the connection");
        goto undo_conn;
    }
    *out = &m->base;
    return KVF_OK;
undo_conn:
    shm_release(&m->base);
    return status;
}

/* ---------------------------------------------------------------- listening */
static bool shm_send_greeting(int fd, int memfd, int bell_data, int bell_room) {
    const int fds[3] = {memfd, bell_data, bell_room};
    union {
        struct cmsghdr align;
        char bytes[CMSG_SPACE(sizeof fds)];
    } control;
    memset(&control, 0, sizeof control);
    char text[GREETING_BYTES];
    memcpy(text, GREETING, sizeof text);
    struct iovec v = {text, sizeof text};
    struct msghdr msg = {.msg_iov = &v, .msg_iovlen = 1, .msg_control = &control, .msg_controllen = sizeof control};
    struct cmsghdr *c = CMSG_FIRSTHDR(&msg);
    c->cmsg_level = SOL_SOCKET;
    c->cmsg_type = SCM_RIGHTS;
    c->cmsg_len = CMSG_LEN(sizeof fds);
    memcpy(CMSG_DATA(c), fds, sizeof fds);
    return sendmsg(fd, &msg, MSG_NOSIGNAL | MSG_DONTWAIT) == (ssize_t)GREETING_BYTES;
}

/* fd: taken, whatever happens. */
static shm_conn *shm_answer(kvf_transport_env *env, int fd) {
    int memfd = -1;
    shm_conn *m = shm_same_user(fd) ? shm_conn_new(env, false) : NULL;
    if (!m) {
        close(fd);
        return NULL;
    }
    m->greeting_fd = fd;
    m->bell_data = eventfd(0, EFD_NONBLOCK | EFD_CLOEXEC);
    m->bell_room = eventfd(0, EFD_NONBLOCK | EFD_CLOEXEC);
    bool fine = m->bell_data >= 0 && m->bell_room >= 0 &&
                shm_ring_create(&m->ring, env->staging_bytes, &memfd) == KVF_OK &&
                shm_send_greeting(fd, memfd, m->bell_data, m->bell_room);
    if (memfd >= 0) close(memfd);
    if (fine) {
        m->greeting_fd = -1;
        fine = sock_init(&m->s, env->base, fd, 0, CONTROL_BYTES, &m->base, shm_release) == KVF_OK &&
               shm_watch(m, m->bell_data) == KVF_OK;
        m->s.before_down = shm_before_down;
    }
    if (fine) return m;
    shm_release(&m->base);
    return NULL;
}

static void shm_on_accept(struct evconnlistener *l, evutil_socket_t fd, struct sockaddr *address, int len, void *self) {
    (void)l;
    (void)address;
    (void)len;
    sock_listener *t = self;
    shm_conn *m = shm_answer(t->env, (int)fd);
    if (m) t->accept(t->self, &m->base);
}
static kvf_status shm_listen(
    kvf_transport_env *env, const char *where, kvf_accept_fn accept, void *self, kvf_listener **out, kvf_error *err) {
    char name[64];
    snprintf(name, sizeof name, "kvferry-%016llx", (unsigned long long)kvf_os_random_u64());
    if (!*where) where = name;
    struct sockaddr_un address;
    socklen_t len;
    if (!shm_name(where, &address, &len))
        return kvf_fail(err, KVF_ERR_INVALID, "\"%s\" is no name for a socket", where);
    int fd = socket(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);
    if (fd < 0 || bind(fd, (struct sockaddr *)&address, len)) {
        kvf_fail(err, KVF_ERR_IO, "cannot listen on shm:%s: %s", where, strerror(errno));
        if (fd >= 0) close(fd);
        return KVF_ERR_IO;
    }
    sock_listener *t = sock_listen(env, &kvf_transport_shm, fd, shm_on_accept, accept, self);
    if (!t) return kvf_fail(err, sock_listen_status(), "cannot listen on shm:%s: %s", where, strerror(errno));
    snprintf(t->base.address, sizeof t->base.address, "shm:%s", where);
    *out = &t->base;
    return KVF_OK;
}

/* ---------------------------------------------------------------- tables: the caller writes the ring and reads the
 * socket */
static size_t shm_room(const kvf_conn *c) {
    shm_conn *m = (shm_conn *)(uintptr_t)c;
    if (!m->caller) return bytes_room(&m->s.out);
    return m->ring.map ? shm_ring_room(&m->ring) : 0;
}
static void shm_put(kvf_conn *c, const void *data, size_t len_bytes) {
    shm_conn *m = shm_of(c);
    if (m->caller)
        shm_ring_put(&m->ring, data, len_bytes);
    else
        sock_put(&m->s, data, len_bytes);
}
static void shm_flush(kvf_conn *c) {
    shm_conn *m = shm_of(c);
    if (!m->caller) {
        sock_flush(&m->s);
    } else if (m->ring.map) {
        shm_ring_publish(&m->ring);
        bell_ring(m->bell_data);
    }
}
static void shm_want_room(kvf_conn *c, size_t room_bytes) {
    shm_conn *m = shm_of(c);
    if (!m->caller) {
        sock_want_room(&m->s, room_bytes);
        return;
    }
    m->room_wanted = room_bytes;
    if (!m->ring.map) return;
    bool waits = shm_ring_want_room(&m->ring, room_bytes);
    bell_ring(m->bell_data); /* what was put is published now */
    if (!waits || m->ring.broken) event_active(m->ev_bell, EV_READ, 1);
}
static size_t shm_ready(kvf_conn *c) {
    shm_conn *m = shm_of(c);
    return m->caller ? bytes_used(&m->s.in) : shm_ring_ready(&m->ring);
}
static void shm_peek(kvf_conn *c, size_t at, void *out, size_t len_bytes) {
    shm_conn *m = shm_of(c);
    if (m->caller)
        bytes_peek(&m->s.in, at, out, len_bytes);
    else
        shm_ring_peek(&m->ring, at, out, len_bytes);
}
static void shm_consume(kvf_conn *c, size_t len_bytes) {
    shm_conn *m = shm_of(c);
    if (m->caller)
        sock_consume(&m->s, len_bytes);
    else if (shm_ring_consume(&m->ring, len_bytes))
        bell_ring(m->bell_room);
}
static void shm_close(kvf_conn *c) {
    if (conn_close(c)) shm_release(c);
}

static const kvf_conn_ops shm_conn_ops = {
    .room = shm_room,
    .put = shm_put,
    .flush = shm_flush,
    .want_room = shm_want_room,
    .ready = shm_ready,
    .peek = shm_peek,
    .consume = shm_consume,
    .close = shm_close,
};
const kvf_transport_ops kvf_transport_shm = {
    .name = "shm",
    .listen = shm_listen,
    .unlisten = sock_unlisten,
    .dial = shm_dial,
};
