/* sock.h - a connected stream socket with private staging each way; tcp is one, shm uses one for its control direction.
 * With sock_start_tls it is encrypted: everything else stays as it is. */
#ifndef KVF_XFER_SOCK_H
#define KVF_XFER_SOCK_H
#include "bytes.h"
#include "conn.h"
struct event;
typedef struct tls_conn tls_conn;

typedef struct {
    int fd; /* owned; -1: none */
    struct event *ev_read, *ev_write, *ev_again; /* again: TLS holds bytes of which the descriptor knows nothing */
    tls_conn *tls; /* owned; NULL: plain */
    bool shaking; /* the TLS handshake is under way */
    bool tell_open; /* on_open is owed when it ends */
    bytes_ring in, out;
    size_t room_wanted;
    bool paused; /* staging is full: nothing is read until something is consumed */
    kvf_conn *conn; /* owner, told about everything */
    void (*release)(kvf_conn *c); /* frees the owner when it was closed from inside a callback */
    void (*before_down)(kvf_conn *c); /* what else has arrived is told first; may be NULL */
} sock;

/* Takes fd (closed on failure too). in_bytes or out_bytes 0: that direction is not used; bytes that arrive then break
 * the link. */
kvf_status sock_init(sock *s, struct event_base *base, int fd, size_t in_bytes, size_t out_bytes, kvf_conn *conn,
    void (*release)(kvf_conn *c));
/* Takes tls, begins its handshake. Fed by the loop until it ends: then on_open, if wanted; on_down if it fails. */
kvf_status sock_start_tls(sock *s, struct event_base *base, tls_conn *tls, bool tell_open);
void sock_fini(sock *s);
void sock_flush(sock *s);
void sock_put(sock *s, const void *data, size_t len_bytes);
void sock_want_room(sock *s, size_t room_bytes);
void sock_consume(sock *s, size_t len_bytes);
#endif
