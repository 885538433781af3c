/* transport_tcp.c - frames over TCP: one socket, staging each way in private memory, whole batches per system call.
 * Two transports: "tcp" is plain, "tls" the same under TLS 1.3 with the certificates that env->tls holds when a
 * connection is made. */
#include "listener.h"
#include "sock.h"
#include "tcp_dial.h"
#include "tls.h"
#include <errno.h>
#include <event2/event.h>
#include <netdb.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <stdio.h>
#include <sys/socket.h>
#include <unistd.h>

typedef struct {
    kvf_conn base;
    kvf_transport_env *env;
    tcp_dial *dial; /* while connecting */
    bool calls;
    sock s;
} tcp_conn;

static const kvf_conn_ops tcp_conn_ops, tls_conn_ops;

static tcp_conn *tcp_of(kvf_conn *c) { return (tcp_conn *)(void *)c; }

static void tcp_release(kvf_conn *c) {
    tcp_conn *t = tcp_of(c);
    if (t->dial) tcp_dial_cancel(t->dial);
    sock_fini(&t->s);
    free(t);
}

static tcp_conn *tcp_conn_new(kvf_transport_env *env, bool encrypted, bool calls) {
    tcp_conn *t = calloc(1, sizeof *t);
    if (!t) return NULL;
    t->base.ops = encrypted ? &tls_conn_ops : &tcp_conn_ops;
    t->env = env;
    t->calls = calls;
    t->s.fd = -1;
    return t;
}

static kvf_status tcp_adopt(tcp_conn *t, int fd) {
    int on = 1;
    setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &on, sizeof on);
    kvf_status status =
        sock_init(&t->s, t->env->base, fd, t->env->staging_bytes, t->env->staging_bytes, &t->base, tcp_release);
    if (status != KVF_OK || t->base.ops == &tcp_conn_ops) return status;
    const kvf_tls_set *set = kvf_tls_store_set(t->env->tls);
    tls_conn *tls = tls_create(set, fd, t->calls, t->env->tls_key_update_bytes);
    kvf_tls_set_release(set);
    status = tls ? sock_start_tls(&t->s, t->env->base, tls, t->calls) : KVF_ERR_NO_MEMORY;
    if (status != KVF_OK) sock_fini(&t->s);
    return status;
}

static void tcp_on_dialled(void *self, int fd, const char *text) {
    tcp_conn *t = self;
    t->dial = NULL;
    conn_enter(&t->base);
    if (fd < 0)
        conn_tell_down(&t->base, KVF_ERR_PEER_LOST, text);
    else if (tcp_adopt(t, fd) != KVF_OK)
        conn_tell_down(&t->base, KVF_ERR_NO_MEMORY, "no memory for the connection");
    else if (!t->s.tls)
        conn_tell_open(&t->base);
    if (conn_leave(&t->base)) tcp_release(&t->base);
}

static kvf_status dial_as(kvf_transport_env *env, bool encrypted, const char *where, kvf_conn **out, kvf_error *err) {
    char host[KVF_ADDRESS_MAX];
    uint16_t port;
    kvf_status status = kvf_address_split(where, host, &port, err);
    if (status != KVF_OK) return status;
    tcp_conn *t = tcp_conn_new(env, encrypted, true);
    if (!t) return kvf_fail(err, KVF_ERR_NO_MEMORY, "no memory for the connection");
    status = tcp_dial_start(env, host, port, tcp_on_dialled, t, &t->dial, err);
    if (status != KVF_OK) {
        free(t);
        return status;
    }
    *out = &t->base;
    return KVF_OK;
}

static kvf_status tcp_dial_to(kvf_transport_env *env, const char *where, kvf_conn **out, kvf_error *err) {
    return dial_as(env, false, where, out, err);
}

static kvf_status tls_dial_to(kvf_transport_env *env, const char *where, kvf_conn **out, kvf_error *err) {
    if (!env->tls) return kvf_fail(err, KVF_ERR_AUTH, "%s demands TLS, and no certificate is configured here", where);
    return dial_as(env, true, where, out, err);
}

/* ---------------------------------------------------------------- accepting */
static void tcp_on_accept(struct evconnlistener *l, evutil_socket_t fd, struct sockaddr *address, int len, void *self) {
    (void)l;
    (void)address;
    (void)len;
    sock_listener *t = self;
    tcp_conn *c = tcp_conn_new(t->env, t->base.ops == &kvf_transport_tls, false);
    if (!c) {
        close((int)fd);
    } else if (tcp_adopt(c, (int)fd) != KVF_OK) {
        free(c);
    } else {
        t->accept(t->self, &c->base);
    }
}

static int tcp_bind(const char *host, uint16_t port, char *text, size_t text_size) {
    char service[8];
    snprintf(service, sizeof service, "%u", port);
    struct addrinfo hints = {.ai_family = AF_UNSPEC, .ai_socktype = SOCK_STREAM, .ai_flags = AI_PASSIVE}, *list = NULL;
    int failed = getaddrinfo(*host ? host : NULL, service, &hints, &list);
    if (failed) snprintf(text, text_size, "%s", gai_strerror(failed));
    int fd = -1;
    for (struct addrinfo *i = list; i && fd < 0; i = i->ai_next) {
        int on = 1;
        fd = socket(i->ai_family, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);
        if (fd < 0) continue;
        setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &on, sizeof on);
        if (bind(fd, i->ai_addr, i->ai_addrlen) == 0) break;
        snprintf(text, text_size, "%s", strerror(errno));
        close(fd);
        fd = -1;
    }
    if (list) freeaddrinfo(list);
    return fd;
}

static kvf_status listen_as(kvf_transport_env *env, const kvf_transport_ops *ops, const char *where,
    kvf_accept_fn accept, void *self, kvf_listener **out, kvf_error *err) {
    char host[KVF_ADDRESS_MAX], text[96] = "no address";
    uint16_t port;
    kvf_status status = kvf_address_split(where, host, &port, err);
    if (status != KVF_OK) return status;
    int fd = tcp_bind(host, port, text, sizeof text);
    if (fd < 0) return kvf_fail(err, KVF_ERR_IO, "cannot listen on %s: %s", where, text);
    sock_listener *t = sock_listen(env, ops, fd, tcp_on_accept, accept, self);
    if (!t) return kvf_fail(err, sock_listen_status(), "cannot listen on %s: %s", where, strerror(errno));
    struct sockaddr_storage bound;
    socklen_t len = sizeof bound;
    char service[8] = "0";
    getsockname(fd, (struct sockaddr *)&bound, &len);
    getnameinfo((struct sockaddr *)&bound, len, NULL, 0, service, sizeof service, NI_NUMERICSERV);
    status = kvf_address_join(ops->name, host, (uint16_t)strtoul(service, NULL, 10), t->base.address);
    if (status != KVF_OK) {
        sock_unlisten(&t->base);
        return kvf_fail(err, status, "cannot listen on %s: the address is too long", where);
    }
    *out = &t->base;
    return KVF_OK;
}

static kvf_status tcp_listen(
    kvf_transport_env *env, const char *where, kvf_accept_fn accept, void *self, kvf_listener **out, kvf_error *err) {
    return listen_as(env, &kvf_transport_tcp, where, accept, self, out, err);
}

static kvf_status tls_listen(
    kvf_transport_env *env, const char *where, kvf_accept_fn accept, void *self, kvf_listener **out, kvf_error *err) {
    if (!env->tls) return kvf_fail(err, KVF_ERR_INVALID, "cannot listen on %s: TLS without a certificate", where);
    return listen_as(env, &kvf_transport_tls, where, accept, self, out, err);
}

/* ---------------------------------------------------------------- tables */
static size_t tcp_room(const kvf_conn *c) {
    const sock *s = &((const tcp_conn *)(const void *)c)->s;
    return s->fd >= 0 ? bytes_room(&s->out) : 0;
}
static void tcp_put(kvf_conn *c, const void *data, size_t len_bytes) { sock_put(&tcp_of(c)->s, data, len_bytes); }
static void tcp_flush(kvf_conn *c) { sock_flush(&tcp_of(c)->s); }
static void tcp_want_room(kvf_conn *c, size_t room_bytes) { sock_want_room(&tcp_of(c)->s, room_bytes); }
static size_t tcp_ready(kvf_conn *c) { return bytes_used(&tcp_of(c)->s.in); }
static void tcp_peek(kvf_conn *c, size_t at, void *out, size_t len_bytes) {
    bytes_peek(&tcp_of(c)->s.in, at, out, len_bytes);
}
static void tcp_consume(kvf_conn *c, size_t len_bytes) { sock_consume(&tcp_of(c)->s, len_bytes); }
static void tcp_close(kvf_conn *c) {
    if (conn_close(c)) tcp_release(c);
}

static bool tcp_proves(kvf_conn *c, const char *name, char *who, size_t who_bytes) {
    return tls_proves(tcp_of(c)->s.tls, name, who, who_bytes);
}

#define BOTH                                                                                                           \
    .room = tcp_room, .put = tcp_put, .flush = tcp_flush, .want_room = tcp_want_room, .ready = tcp_ready,              \
    .peek = tcp_peek, .consume = tcp_consume, .close = tcp_close
static const kvf_conn_ops tcp_conn_ops = {BOTH};
static const kvf_conn_ops tls_conn_ops = {BOTH, .proves = tcp_proves};
const kvf_transport_ops kvf_transport_tcp = {
    .name = "tcp",
    .listen = tcp_listen,
    .unlisten = sock_unlisten,
    .dial = tcp_dial_to,
};
const kvf_transport_ops kvf_transport_tls = {
    .name = "tls",
    .listen = tls_listen,
    .unlisten = sock_unlisten,
    .dial = tls_dial_to,
};
