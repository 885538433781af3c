/* sock.c - see sock.h. A failed send is not reported where it happens: the socket turns readable with the same error,
 * and that is where the link ends, once, after the bytes that came before. */
#include "sock.h"
#include "tls.h"
#include <errno.h>
#include <event2/event.h>
#include <stdio.h>
#include <sys/socket.h>
#include <unistd.h>

#define READ_ONCE_BYTES (256u << 10) /* then other links have their turn */

static void sock_end(sock *s, kvf_status reason, const char *text) {
    event_del(s->ev_read);
    event_del(s->ev_write);
    if (s->ev_again) event_del(s->ev_again);
    if (s->before_down) s->before_down(s->conn);
    conn_tell_down(s->conn, reason, text);
}

static void sock_end_errno(sock *s, int error) {
    char text[96];
    if (s->tls && error == EPROTO) {
        sock_end(s, tls_reason(s->tls), tls_text(s->tls));
        return;
    }
    snprintf(text, sizeof text, "connection lost: %s", strerror(error));
    sock_end(s, KVF_ERR_PEER_LOST, text);
}

/* In the next turn of the loop, after the others. */
static void sock_again(sock *s) {
    static const struct timeval now = {0};
    event_add(s->ev_again, &now);
}

static void sock_shake(sock *s) {
    tls_progress progress = tls_shake(s->tls);
    if (progress == TLS_FAILED) {
        sock_end(s, tls_reason(s->tls), tls_text(s->tls));
        return;
    }
    s->shaking = progress == TLS_WAITS;
    if (tls_unsent(s->tls) || (!s->shaking && (s->room_wanted || bytes_used(&s->out) > 0)))
        event_add(s->ev_write, NULL);
    if (s->shaking) return;
    sock_again(s); /* what came with the end of the handshake */
    if (s->tell_open) conn_tell_open(s->conn);
}

/* As recvmsg. *more: it stopped for another reason than that nothing is there. */
static ssize_t sock_take_tls(sock *s, struct iovec *v, int pieces, bool *more) {
    ssize_t total = 0, got = 0;
    for (int i = 0; i < pieces; i++) {
        for (size_t at = 0; at < v[i].iov_len; at += (size_t)got) {
            got = tls_recv(s->tls, (char *)v[i].iov_base + at, v[i].iov_len - at);
            if (got <= 0) {
                *more = got == 0 || errno != EAGAIN;
                return total ? total : got;
            }
            total += got;
        }
    }
    *more = true;
    return total;
}

static ssize_t sock_take(sock *s, struct iovec *v, int pieces, bool *more) {
    if (s->tls) return sock_take_tls(s, v, pieces, more);
    struct msghdr m = {.msg_iov = v, .msg_iovlen = (size_t)pieces};
    return recvmsg(s->fd, &m, MSG_DONTWAIT);
}

static void sock_receive(sock *s) {
    if (s->in.size_bytes == 0) {
        char byte;
        ssize_t got = recv(s->fd, &byte, 1, MSG_DONTWAIT);
        if (got > 0) sock_end(s, KVF_ERR_FORMAT, "bytes where none belong");
        if (got == 0) sock_end(s, KVF_ERR_PEER_LOST, "peer closed the connection");
        if (got < 0 && errno != EAGAIN && errno != EINTR) sock_end_errno(s, errno);
        return;
    }
    if (bytes_room(&s->in) == 0) {
        s->paused = true;
        event_del(s->ev_read);
        return;
    }
    struct iovec v[2];
    int pieces = bytes_pieces(&s->in, false, v);
    if (v[0].iov_len >= READ_ONCE_BYTES) {
        v[0].iov_len = READ_ONCE_BYTES;
        pieces = 1;
    }
    bool more = false;
    ssize_t got = sock_take(s, v, pieces, &more);
    if (s->tls && tls_unsent(s->tls)) event_add(s->ev_write, NULL); /* reading may have to answer */
    if (got > 0) {
        if (more) sock_again(s);
        s->in.head += (size_t)got;
        conn_tell_readable(s->conn);
    } else if (got == 0) {
        bool half = bytes_used(&s->in) > 0;
        sock_end(
            s, KVF_ERR_PEER_LOST, half ? "peer closed the connection inside a frame" : "peer closed the connection");
    } else if (errno != EAGAIN && errno != EINTR) {
        sock_end_errno(s, errno);
    }
}

static void sock_on_readable(evutil_socket_t fd, short what, void *self) {
    (void)fd;
    (void)what;
    sock *s = self;
    kvf_conn *c = s->conn;
    conn_enter(c);
    if (!c->closed && c->told_down) event_del(s->ev_read); /* ended elsewhere, and not closed by its owner yet */
    if (!c->closed && !c->told_down) {
        if (s->shaking)
            sock_shake(s);
        else
            sock_receive(s);
    }
    if (conn_leave(c)) s->release(c);
}

static bool sock_send_tls(sock *s) {
    struct iovec v[2];
    while (bytes_used(&s->out) > 0) {
        bytes_pieces(&s->out, true, v);
        ssize_t sent = tls_send(s->tls, v[0].iov_base, v[0].iov_len);
        if (sent < 0) return errno == EAGAIN;
        bytes_consume(&s->out, (size_t)sent);
    }
    return tls_flush(s->tls) || errno == EAGAIN;
}

static bool sock_send_some(sock *s) {
    struct iovec v[2];
    if (s->tls) return sock_send_tls(s);
    while (bytes_used(&s->out) > 0) {
        struct msghdr m = {.msg_iov = v, .msg_iovlen = (size_t)bytes_pieces(&s->out, true, v)};
        ssize_t sent = sendmsg(s->fd, &m, MSG_DONTWAIT | MSG_NOSIGNAL);
        if (sent < 0 && errno == EINTR) continue;
        if (sent < 0) return errno == EAGAIN;
        bytes_consume(&s->out, (size_t)sent);
    }
    return true;
}

static bool sock_unsent(const sock *s) { return bytes_used(&s->out) > 0 || (s->tls && tls_unsent(s->tls)); }

void sock_flush(sock *s) {
    if (s->fd < 0 || s->shaking || bytes_used(&s->out) == 0) return;
    if (!sock_send_some(s)) {
        event_active(s->ev_read, EV_READ, 1);
        return;
    }
    if (sock_unsent(s) || s->room_wanted) event_add(s->ev_write, NULL);
}

static void sock_on_writable(evutil_socket_t fd, short what, void *self) {
    (void)fd;
    (void)what;
    sock *s = self;
    kvf_conn *c = s->conn;
    conn_enter(c);
    if (!c->closed && !c->told_down && s->shaking) {
        sock_shake(s);
    } else if (!c->closed && !c->told_down) {
        bool fine = sock_send_some(s);
        if (!fine) event_active(s->ev_read, EV_READ, 1);
        if (fine && s->room_wanted && bytes_room(&s->out) >= s->room_wanted) {
            s->room_wanted = 0;
            conn_tell_room(c);
        }
        if (fine && !c->closed && sock_unsent(s)) event_add(s->ev_write, NULL);
    }
    if (conn_leave(c)) s->release(c);
}

void sock_put(sock *s, const void *data, size_t len_bytes) { bytes_put(&s->out, data, len_bytes); }

void sock_want_room(sock *s, size_t room_bytes) {
    s->room_wanted = room_bytes;
    if (s->fd >= 0 && !s->shaking)
        event_add(s->ev_write, NULL); /* writable already: on_room comes in the next round of the loop */
}

void sock_consume(sock *s, size_t len_bytes) {
    bytes_consume(&s->in, len_bytes);
    if (!s->paused || len_bytes == 0) return;
    s->paused = false;
    event_add(s->ev_read, NULL);
    if (s->tls) sock_again(s);
}

kvf_status sock_init(sock *s, struct event_base *base, int fd, size_t in_bytes, size_t out_bytes, kvf_conn *conn,
    void (*release)(kvf_conn *c)) {
    *s = (sock){.fd = fd, .conn = conn, .release = release};
    bool fine = (in_bytes == 0 || bytes_init(&s->in, in_bytes)) && (out_bytes == 0 || bytes_init(&s->out, out_bytes));
    s->ev_read = fine ? event_new(base, fd, EV_READ | EV_PERSIST, sock_on_readable, s) : NULL;
    s->ev_write = fine ? event_new(base, fd, EV_WRITE, sock_on_writable, s) : NULL;
    if (!s->ev_read || !s->ev_write || event_add(s->ev_read, NULL)) {
        sock_fini(s);
        return KVF_ERR_NO_MEMORY;
    }
    return KVF_OK;
}

kvf_status sock_start_tls(sock *s, struct event_base *base, tls_conn *tls, bool tell_open) {
    static const struct timeval now = {0};
    s->tls = tls;
    s->shaking = true;
    s->tell_open = tell_open;
    s->ev_again = evtimer_new(base, sock_on_readable, s);
    return s->ev_again && event_add(s->ev_again, &now) == 0 ? KVF_OK : KVF_ERR_NO_MEMORY;
}

void sock_fini(sock *s) {
    tls_destroy(s->tls);
    if (s->ev_again) event_free(s->ev_again);
    if (s->ev_read) event_free(s->ev_read);
    if (s->ev_write) event_free(s->ev_write);
    if (s->fd >= 0) close(s->fd);
    bytes_fini(&s->in);
    bytes_fini(&s->out);
    *s = (sock){.fd = -1};
}
