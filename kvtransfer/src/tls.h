/* tls.h - one TLS 1.3 connection over a non-blocking socket that somebody else owns. It behaves as recv and send do, so
 * that sock.c can treat both alike; records leave in batches, and no buffer grows. */
#ifndef KVF_XFER_TLS_H
#define KVF_XFER_TLS_H
#include "kvf/tls.h"
#include <sys/types.h>

typedef struct tls_conn tls_conn;
typedef enum { TLS_OPEN, TLS_WAITS, TLS_FAILED } tls_progress;

/* set: borrowed. fd: kept. calls: we dialled. key_update_bytes: sent under one key; 0: what the cipher bears. */
tls_conn *tls_create(const kvf_tls_set *set, int fd, bool calls, uint64_t key_update_bytes);
void tls_destroy(tls_conn *t); /* says goodbye as far as the socket takes it; NULL is fine */

tls_progress tls_shake(tls_conn *t); /* the handshake, as far as it goes now */
/* -1 with errno: EAGAIN; EPROTO: TLS has failed for good, tls_reason and tls_text say why; else the socket's error. */
ssize_t tls_recv(tls_conn *t, void *out, size_t len_bytes); /* 0: the peer has closed */
ssize_t tls_send(tls_conn *t, const void *data, size_t len_bytes);
/* Hands the socket what is encrypted. True: nothing is left; else errno as above. */
bool tls_flush(tls_conn *t);
bool tls_unsent(const tls_conn *t); /* something waits for the socket to be writable */

kvf_status tls_reason(const tls_conn *t);
const char *tls_text(const tls_conn *t);
/* Whether the peer's certificate, which was verified, is for `name`. Else the names that it is for, in who. */
bool tls_proves(const tls_conn *t, const char *name, char *who, size_t who_bytes);
uint64_t tls_key_updates(const tls_conn *t); /* of ours, for tests */
#endif
