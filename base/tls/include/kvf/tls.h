/* kvf/tls.h - certificate, key and authority of this process: read from PEM files, judged before they are used, read
 * again when they change.
 *
 * A store names up to three files. What it holds at one time is a set: immutable, counted, with a generation. Whoever
 * makes a connection asks for the set of that moment; connections that exist keep theirs. A changed file that cannot be
 * used is logged with its name, and the set stays what it was. Any thread may call anything. */
#ifndef KVF_TLS_H
#define KVF_TLS_H
#include "kvf/base.h"
#ifdef __cplusplus
extern "C" {
#endif
struct ssl_ctx_st; /* OpenSSL's SSL_CTX */
struct x509_st; /* X509 */

typedef struct {
    const char *cert; /* ours, then what signed it up to the authority; NULL (with key): we show none */
    const char *key; /* not encrypted */
    const char *ca; /* whom we believe; NULL: nobody is asked for a certificate */
} kvf_tls_files;

typedef struct {
    uint64_t generation; /* 1 for the first set of a store, higher for later ones */
    const char *cert, *key, *ca; /* PEM text; NULL where no file is named */
    struct ssl_ctx_st *context; /* of both, for connections between nodes: TLS 1.3, each side must prove itself */
} kvf_tls_set;

typedef struct kvf_tls_store kvf_tls_store;
/* err names the file: unreadable, no certificate or key in it, expired, key of another certificate, key behind a
 * passphrase. KVF_ERR_INVALID where only one of cert and key is named. */
kvf_status kvf_tls_store_open(const kvf_tls_files *files, kvf_tls_store **out, kvf_error *err);
void kvf_tls_store_close(kvf_tls_store *s); /* NULL is fine; sets that others hold live on */

/* Looks whether a file is another one or another version; then reads all of them. True: there is a newer set. Costs one
 * stat a file: call it about once a second. */
bool kvf_tls_store_check(kvf_tls_store *s);

const kvf_tls_set *kvf_tls_store_set(kvf_tls_store *s); /* a reference: the caller's to release */
void kvf_tls_set_release(const kvf_tls_set *set); /* NULL is fine */

/* A thread that checks these stores every period_ns; NULLs among them are passed over. Stores: kept until stop. */
#define KVF_TLS_WATCH_MAX 4
typedef struct kvf_tls_watch kvf_tls_watch;
kvf_status kvf_tls_watch_start(
    kvf_tls_store *const *stores, uint32_t count, kvf_time_ns period_ns, kvf_tls_watch **out);
void kvf_tls_watch_stop(kvf_tls_watch *w); /* NULL is fine */

/* Whether a certificate that has been verified is for `name` (subject alternative names; wildcards count). Else who:
 * the names that it is for. */
bool kvf_tls_names(const struct x509_st *certificate, const char *name, char *who, size_t who_bytes);
bool kvf_tls_names_pem(kvf_span pem, const char *name, char *who, size_t who_bytes);
#ifdef __cplusplus
}
#endif
#endif
