/* tls.c - see tls.h. OpenSSL reads and writes through a BIO of ours: it never raises SIGPIPE, gathers records, and
 * tells apart what OpenSSL's own does not: an end without a goodbye, an error of the socket, a peer that speaks no TLS.
 */
#include "tls.h"
#include <errno.h>
#include <netdb.h>
#include <openssl/bio.h>
#include <openssl/err.h>
#include <openssl/ssl.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/socket.h>
#include <sys/uio.h>

#define OUT_BYTES (128u << 10) /* eight records in one system call */
#define IN_BYTES (128u << 10) /* OpenSSL's own reading ahead moves what is left to the front at every record */
/* AES-GCM bears 2^24.5 full records under one key (RFC 8446, 5.5); this is 2^22 of them. */
#define KEY_UPDATE_BYTES (64ull << 30)
enum { RECORD_HANDSHAKE = 22, RECORD_ALERT = 21 }; /* first byte of what a peer says that does speak TLS */

struct tls_conn {
    SSL *ssl;
    BIO_METHOD *method;
    int fd;
    bool calls, open, eof, failed;
    int first_byte; /* -1: nothing has come */
    int io_error; /* of the socket; 0: none */
    uint64_t key_bytes, key_bytes_max, key_updates;
    size_t out_head, out_used; /* in `out`: encrypted, not taken by the socket yet */
    size_t in_head, in_used; /* in `in`: taken from the socket, not asked for by OpenSSL yet */
    kvf_status reason;
    char peer[80], who[160], text[640];
    uint8_t out[OUT_BYTES], in[IN_BYTES];
};

/* ---------------------------------------------------------------- the socket below */
static bool would_wait(int error) { return error == EAGAIN || error == EWOULDBLOCK; }

bool tls_flush(tls_conn *t) {
    while (t->out_head < t->out_used) {
        ssize_t sent = send(t->fd, t->out + t->out_head, t->out_used - t->out_head, MSG_DONTWAIT | MSG_NOSIGNAL);
        if (sent < 0 && errno == EINTR) continue;
        if (sent < 0) {
            if (!would_wait(errno)) t->io_error = errno;
            return false;
        }
        t->out_head += (size_t)sent;
    }
    t->out_head = t->out_used = 0;
    return true;
}

bool tls_unsent(const tls_conn *t) { return t->out_head < t->out_used; }

/* A broken socket looks full to OpenSSL: what the peer said before (its reason to leave) can then still be read. */
static int bio_write(BIO *bio, const char *data, int len) {
    tls_conn *t = BIO_get_data(bio);
    BIO_clear_retry_flags(bio);
    if (len <= 0) return 0;
    if (sizeof t->out - t->out_used < (size_t)len) {
        tls_flush(t);
        memmove(t->out, t->out + t->out_head, t->out_used - t->out_head);
        t->out_used -= t->out_head;
        t->out_head = 0;
    }
    size_t room = sizeof t->out - t->out_used, taken = KVF_MIN(room, (size_t)len);
    if (taken == 0) {
        BIO_set_retry_write(bio);
        return -1;
    }
    memcpy(t->out + t->out_used, data, taken);
    t->out_used += taken;
    return (int)taken;
}

static int bio_read(BIO *bio, char *out, int len) {
    tls_conn *t = BIO_get_data(bio);
    BIO_clear_retry_flags(bio);
    if (len <= 0) return 0;
    size_t held = t->in_used - t->in_head, wish = (size_t)len;
    if (held > 0) {
        size_t given = KVF_MIN(held, wish);
        memcpy(out, t->in + t->in_head, given);
        t->in_head += given;
        return (int)given;
    }
    struct iovec v[2] = {{out, wish}, {t->in, sizeof t->in}};
    struct msghdr m = {.msg_iov = v, .msg_iovlen = 2};
    ssize_t got;
    do got = recvmsg(t->fd, &m, MSG_DONTWAIT);
    while (got < 0 && errno == EINTR);
    if (got > 0) {
        size_t first = KVF_MIN((size_t)got, wish);
        if (t->first_byte < 0) t->first_byte = (uint8_t)out[0];
        t->in_head = 0;
        t->in_used = (size_t)got - first;
        return (int)first;
    }
    if (got == 0)
        t->eof = true;
    else if (would_wait(errno))
        BIO_set_retry_read(bio);
    else
        t->io_error = errno;
    return (int)got;
}

static long bio_ctrl(BIO *bio, int command, long number, void *pointer) {
    (void)bio, (void)number, (void)pointer;
    return command == BIO_CTRL_FLUSH; /* the end of a flight: flushed when OpenSSL returns */
}

static BIO *make_bio(tls_conn *t) {
    t->method = BIO_meth_new(BIO_TYPE_SOURCE_SINK, "kvferry socket");
    if (!t->method || !BIO_meth_set_write(t->method, bio_write) || !BIO_meth_set_read(t->method, bio_read) ||
        !BIO_meth_set_ctrl(t->method, bio_ctrl))
        return NULL;
    BIO *bio = BIO_new(t->method);
    if (!bio) return NULL;
    BIO_set_data(bio, t);
    BIO_set_init(bio, 1);
    return bio;
}

/* ---------------------------------------------------------------- names and reasons */
/* Only to keep the names of a certificate that is refused: OpenSSL forgets it. */
static int on_verify(int fine, X509_STORE_CTX *check) {
    SSL *ssl = X509_STORE_CTX_get_ex_data(check, SSL_get_ex_data_X509_STORE_CTX_idx());
    tls_conn *t = SSL_get_app_data(ssl);
    if (!fine && !t->who[0]) kvf_tls_names(X509_STORE_CTX_get0_cert(check), "", t->who, sizeof t->who);
    return fine;
}

bool tls_proves(const tls_conn *t, const char *name, char *who, size_t who_bytes) {
    return kvf_tls_names(SSL_get0_peer_certificate(t->ssl), name, who, who_bytes);
}

static bool is_tls(const tls_conn *t) {
    return t->first_byte < 0 || t->first_byte == RECORD_HANDSHAKE || (t->calls && t->first_byte == RECORD_ALERT);
}

static void fail(tls_conn *t, kvf_status reason, const char *what, const char *detail) {
    t->failed = true;
    t->reason = reason;
    snprintf(t->text, sizeof t->text, "TLS with %s: %s%s", t->peer, what, detail);
}

/* OpenSSL hangs up without a word on who speaks no TLS; a plain node of ours recognises this alert and says so. */
static void say_tls(tls_conn *t) {
    static const uint8_t alert[] = {RECORD_ALERT, 3, 3, 0, 2, 2, 70}; /* fatal, protocol_version */
    if (t->calls || sizeof t->out - t->out_used < sizeof alert) return;
    memcpy(t->out + t->out_used, alert, sizeof alert);
    t->out_used += sizeof alert;
    tls_flush(t);
}

static void explain(tls_conn *t) {
    unsigned long error = ERR_peek_error();
    int code = ERR_GET_REASON(error);
    const char *reason = ERR_reason_error_string(error);
    char what[240];
    if (!reason) reason = "unknown reason";
    if (!t->open && !is_tls(t)) {
        say_tls(t);
        fail(t, KVF_ERR_AUTH, "it does not speak TLS, and this side demands it", "");
    } else if (code == SSL_R_CERTIFICATE_VERIFY_FAILED) {
        snprintf(what, sizeof what, "its certificate (%s) is refused: ", t->who);
        fail(t, KVF_ERR_AUTH, what, X509_verify_cert_error_string(SSL_get_verify_result(t->ssl)));
    } else if (code == SSL_R_PEER_DID_NOT_RETURN_A_CERTIFICATE) {
        fail(t, KVF_ERR_AUTH, "it shows no certificate", "");
    } else if (code >= SSL_AD_REASON_OFFSET) {
        fail(t, KVF_ERR_AUTH, "it refuses us: ", reason);
    } else if (t->open) {
        fail(t, KVF_ERR_CORRUPT, "", reason); /* a record that was spoilt on its way, or a peer gone mad */
    } else {
        fail(t, KVF_ERR_AUTH, "no handshake: ", reason);
    }
}

kvf_status tls_reason(const tls_conn *t) { return t->reason; }
const char *tls_text(const tls_conn *t) { return t->text; }

/* ---------------------------------------------------------------- the connection */
tls_conn *tls_create(const kvf_tls_set *set, int fd, bool calls, uint64_t key_update_bytes) {
    tls_conn *t = malloc(sizeof *t);
    if (!t) return NULL;
    memset(t, 0, offsetof(tls_conn, out));
    t->fd = fd;
    t->calls = calls;
    t->first_byte = -1;
    t->key_bytes_max = key_update_bytes ? key_update_bytes : KEY_UPDATE_BYTES;
    ERR_clear_error();
    t->ssl = SSL_new(set->context);
    BIO *bio = t->ssl ? make_bio(t) : NULL;
    if (!bio) {
        tls_destroy(t);
        return NULL;
    }
    SSL_set_bio(t->ssl, bio, bio);
    SSL_set_app_data(t->ssl, t);
    SSL_set_verify(t->ssl, SSL_get_verify_mode(t->ssl), on_verify);
    if (calls)
        SSL_set_connect_state(t->ssl);
    else
        SSL_set_accept_state(t->ssl);
    struct sockaddr_storage a;
    socklen_t len = sizeof a;
    char host[56] = "?", port[8] = "?";
    if (getpeername(fd, (struct sockaddr *)&a, &len) == 0)
        getnameinfo((struct sockaddr *)&a, len, host, sizeof host, port, sizeof port, NI_NUMERICHOST | NI_NUMERICSERV);
    snprintf(t->peer, sizeof t->peer, strchr(host, ':') ? "[%s]:%s" : "%s:%s", host, port);
    return t;
}

void tls_destroy(tls_conn *t) {
    if (!t) return;
    ERR_clear_error();
    if (t->open && !t->failed && !t->io_error && !t->eof) {
        if (SSL_in_init(t->ssl)) SSL_do_handshake(t->ssl); /* a new key that has not been told yet */
        SSL_shutdown(t->ssl);
    }
    if (!t->io_error) tls_flush(t);
    SSL_free(t->ssl);
    BIO_meth_free(t->method);
    ERR_clear_error();
    free(t);
}

tls_progress tls_shake(tls_conn *t) {
    if (t->failed) return TLS_FAILED;
    ERR_clear_error();
    int done = SSL_do_handshake(t->ssl), error = SSL_get_error(t->ssl, done);
    bool sent = tls_flush(t); /* an alert too */
    if (done == 1) {
        t->open = true;
        return TLS_OPEN;
    }
    if ((error == SSL_ERROR_WANT_READ || error == SSL_ERROR_WANT_WRITE) && (sent || !t->io_error)) return TLS_WAITS;
    if (!is_tls(t) || (error == SSL_ERROR_SSL && !t->eof))
        explain(t);
    else if (t->io_error)
        fail(t, KVF_ERR_PEER_LOST, "connection lost: ", strerror(t->io_error));
    else
        fail(t, KVF_ERR_PEER_LOST, "it hung up during the handshake", t->calls ? ": it may not speak TLS" : "");
    ERR_clear_error();
    return TLS_FAILED;
}

/* Outcome of a call that moved nothing, as errno. */
static ssize_t stopped(tls_conn *t, int result) {
    int error = SSL_get_error(t->ssl, result);
    tls_flush(t);
    if (error == SSL_ERROR_WANT_READ || error == SSL_ERROR_WANT_WRITE) {
        errno = t->io_error ? t->io_error : EAGAIN;
    } else if (t->io_error) {
        errno = t->io_error;
    } else {
        explain(t);
        errno = EPROTO;
    }
    ERR_clear_error();
    return -1;
}

ssize_t tls_recv(tls_conn *t, void *out, size_t len_bytes) {
    size_t got = 0;
    if (t->failed) {
        errno = EPROTO;
        return -1;
    }
    ERR_clear_error();
    int result = SSL_read_ex(t->ssl, out, len_bytes, &got);
    if (result == 1) return (ssize_t)got;
    if (t->eof || SSL_get_error(t->ssl, result) == SSL_ERROR_ZERO_RETURN) { /* a frame that was cut shows itself */
        ERR_clear_error();
        return 0;
    }
    /* Sending has failed before, and nothing is left to read. */
    return stopped(t, result);
}

ssize_t tls_send(tls_conn *t, const void *data, size_t len_bytes) {
    size_t sent = 0;
    if (t->failed || t->io_error) {
        errno = t->failed ? EPROTO : t->io_error;
        return -1;
    }
    ERR_clear_error();
    int result = SSL_write_ex(t->ssl, data, len_bytes, &sent);
    if (result != 1) return stopped(t, result);
    t->key_bytes += sent;
    if (t->key_bytes >= t->key_bytes_max && SSL_key_update(t->ssl, SSL_KEY_UPDATE_NOT_REQUESTED) == 1) {
        t->key_bytes = 0;
        t->key_updates++;
    }
    return (ssize_t)sent;
}

uint64_t tls_key_updates(const tls_conn *t) { return t->key_updates; }
