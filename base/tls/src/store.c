/* store.c - see kvf/tls.h. Files are judged by building the context that connections will use: what OpenSSL refuses
 * here it would refuse there. */
#include "kvf/tls.h"
#include "kvf/log.h"
#include <errno.h>
#include <fcntl.h>
#include <openssl/err.h>
#include <openssl/pem.h>
#include <openssl/ssl.h>
#include <openssl/x509v3.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <unistd.h>

enum { CERT, KEY, CA, FILES };
#define FILE_BYTES_MAX (1 << 20)
static const char *const component = "tls";

/* Which version of a file was read; zeros: it was not there. */
typedef struct {
    dev_t device;
    ino_t inode;
    off_t size;
    struct timespec modified, changed;
} version;

typedef struct {
    kvf_tls_set base; /* first */
    atomic_uint refs;
    char *text[FILES];
    size_t text_bytes[FILES];
} counted_set;

struct kvf_tls_store {
    char *path[FILES]; /* NULL: not named */
    pthread_mutex_t lock; /* guards what follows */
    version seen[FILES]; /* also of files that were refused, so that each is said once */
    counted_set *now;
};

/* ---------------------------------------------------------------- files */
static version version_of(const struct stat *st) {
    return (version){st->st_dev, st->st_ino, st->st_size, st->st_mtim, st->st_ctim};
}

static bool same_time(struct timespec a, struct timespec b) { return a.tv_sec == b.tv_sec && a.tv_nsec == b.tv_nsec; }

static bool same_version(const version *a, const version *b) {
    return a->device == b->device && a->inode == b->inode && a->size == b->size &&
           same_time(a->modified, b->modified) && same_time(a->changed, b->changed);
}

static kvf_status read_file(
    const char *path, bool secret, version *seen, char **text, size_t *text_bytes, kvf_error *err) {
    *seen = (version){0};
    int fd = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK); /* a FIFO in its place must not stop us */
    struct stat st;
    if (fd < 0) return kvf_fail(err, KVF_ERR_IO, "%s: cannot be read: %s", path, strerror(errno));
    kvf_status status = KVF_OK;
    char *bytes = NULL;
    if (fstat(fd, &st)) {
        status = kvf_fail(err, KVF_ERR_IO, "%s: cannot be read: %s", path, strerror(errno));
        goto undo_fd;
    }
    *seen = version_of(&st);
    if (!S_ISREG(st.st_mode) || st.st_size > FILE_BYTES_MAX) {
        status = kvf_fail(err, KVF_ERR_FORMAT, "%s: is no file of PEM text", path);
        goto undo_fd;
    }
    bytes = malloc((size_t)st.st_size + 1);
    if (!bytes) {
        status = kvf_fail(err, KVF_ERR_NO_MEMORY, "%s: no memory to read it", path);
        goto undo_fd;
    }
    size_t used = 0;
    while (used < (size_t)st.st_size) {
        ssize_t got = read(fd, bytes + used, (size_t)st.st_size - used);
        if (got < 0 && errno == EINTR) continue;
        if (got < 0) status = kvf_fail(err, KVF_ERR_IO, "%s: cannot be read: %s", path, strerror(errno));
        if (got <= 0) break;
        used += (size_t)got;
    }
    bytes[used] = 0;
    if (status == KVF_OK && secret && (st.st_mode & S_IROTH))
        kvf_log(KVF_LOG_WARN, component, "%s: the key can be read by every user of this host (mode %03o)", path,
            (unsigned)st.st_mode & 0777);
    if (status != KVF_OK) {
        OPENSSL_cleanse(bytes, used);
        free(bytes);
    } else {
        *text = bytes;
        *text_bytes = used;
    }
undo_fd:
    close(fd);
    return status;
}

/* ---------------------------------------------------------------- judging */
static const char *openssl_reason(void) {
    const char *reason = ERR_reason_error_string(ERR_peek_last_error());
    return reason ? reason : "unknown reason";
}

static int no_passphrase(char *buffer, int size, int writing, void *self) {
    (void)buffer, (void)size, (void)writing;
    *(bool *)self = true; /* it was asked for */
    return -1;
}

static X509 *next_certificate(BIO *bio) { return PEM_read_bio_X509(bio, NULL, NULL, NULL); }

/* What PEM reading left behind after the last certificate is "no start line": the end, not an error. */
static bool at_end(void) {
    unsigned long error = ERR_peek_last_error();
    return ERR_GET_LIB(error) == ERR_LIB_PEM && ERR_GET_REASON(error) == PEM_R_NO_START_LINE;
}

static kvf_status judge_dates(const char *path, const X509 *x, kvf_error *err) {
    bool late = X509_cmp_current_time(X509_get0_notAfter(x)) < 0;
    if (!late && X509_cmp_current_time(X509_get0_notBefore(x)) <= 0) return KVF_OK;
    const ASN1_TIME *when = late ? X509_get0_notAfter(x) : X509_get0_notBefore(x);
    char text[64] = "?";
    BIO *bio = BIO_new(BIO_s_mem());
    if (bio && ASN1_TIME_print(bio, when) == 1) text[BIO_read(bio, text, sizeof text - 1)] = 0;
    BIO_free(bio);
    return kvf_fail(
        err, KVF_ERR_INVALID, "%s: the certificate %s %s", path, late ? "has expired on" : "is not valid before", text);
}

static kvf_status use_certificate(SSL_CTX *context, const char *path, const char *text, kvf_error *err) {
    BIO *bio = BIO_new_mem_buf(text, -1);
    X509 *own = bio ? next_certificate(bio) : NULL;
    kvf_status status = KVF_OK;
    if (!own) {
        status = kvf_fail(err, KVF_ERR_FORMAT, "%s: holds no certificate in PEM form", path);
    } else if (SSL_CTX_use_certificate(context, own) != 1) {
        status = kvf_fail(err, KVF_ERR_FORMAT, "%s: the certificate is refused: %s", path, openssl_reason());
    } else {
        status = judge_dates(path, own, err);
    }
    for (X509 *more; status == KVF_OK && (more = next_certificate(bio));) {
        if (SSL_CTX_add1_chain_cert(context, more) != 1)
            status = kvf_fail(err, KVF_ERR_FORMAT, "%s: its chain is refused: %s", path, openssl_reason());
        X509_free(more);
    }
    if (status == KVF_OK && !at_end())
        status = kvf_fail(err, KVF_ERR_FORMAT, "%s: its chain is malformed: %s", path, openssl_reason());
    X509_free(own);
    BIO_free(bio);
    return status;
}

static kvf_status use_key(SSL_CTX *context, const char *path, const char *text, const char *cert_path, kvf_error *err) {
    bool asked = false;
    BIO *bio = BIO_new_mem_buf(text, -1);
    EVP_PKEY *key = bio ? PEM_read_bio_PrivateKey(bio, NULL, no_passphrase, &asked) : NULL;
    kvf_status status = KVF_OK;
    if (!key)
        status = asked
                     ? kvf_fail(err, KVF_ERR_FORMAT, "%s: the key is encrypted; keys must be without passphrase", path)
                     : kvf_fail(err, KVF_ERR_FORMAT, "%s: holds no private key in PEM form", path);
    else if (SSL_CTX_use_PrivateKey(context, key) != 1 || SSL_CTX_check_private_key(context) != 1)
        status = kvf_fail(err, KVF_ERR_INVALID, "%s: is not the key of the certificate in %s", path, cert_path);
    EVP_PKEY_free(key);
    BIO_free(bio);
    return status;
}

static kvf_status use_authority(SSL_CTX *context, const char *path, const char *text, kvf_error *err) {
    BIO *bio = BIO_new_mem_buf(text, -1);
    uint32_t count = 0;
    kvf_status status = KVF_OK;
    for (X509 *x; bio && status == KVF_OK && (x = next_certificate(bio)); count++) {
        if (X509_STORE_add_cert(SSL_CTX_get_cert_store(context), x) != 1)
            status = kvf_fail(err, KVF_ERR_FORMAT, "%s: an authority is refused: %s", path, openssl_reason());
        X509_free(x);
    }
    if (status == KVF_OK && count == 0)
        status = kvf_fail(err, KVF_ERR_FORMAT, "%s: holds no authority's certificate in PEM form", path);
    else if (status == KVF_OK && !at_end())
        status = kvf_fail(err, KVF_ERR_FORMAT, "%s: is malformed: %s", path, openssl_reason());
    BIO_free(bio);
    return status;
}

/* Others of the cluster will refuse it, but which authority they have is not known here: said, not refused. */
static void warn_unless_signed(SSL_CTX *context, const char *cert_path, const char *ca_path) {
    X509_STORE_CTX *check = X509_STORE_CTX_new();
    STACK_OF(X509) *chain = NULL;
    SSL_CTX_get0_chain_certs(context, &chain);
    if (check &&
        X509_STORE_CTX_init(check, SSL_CTX_get_cert_store(context), SSL_CTX_get0_certificate(context), chain) &&
        X509_verify_cert(check) != 1)
        kvf_log(KVF_LOG_WARN, component, "%s: is not signed by an authority of %s: %s", cert_path, ca_path,
            X509_verify_cert_error_string(X509_STORE_CTX_get_error(check)));
    X509_STORE_CTX_free(check);
}

/* Both ends of a page connection are ours: TLS 1.3 only, so there is no renegotiation, and no resumption either, so
 * that every connection is judged by the certificates of its own moment. */
static SSL_CTX *make_context(void) {
    SSL_CTX *context = SSL_CTX_new(TLS_method());
    if (!context) return NULL;
    SSL_CTX_set_mode(context, SSL_MODE_ENABLE_PARTIAL_WRITE | SSL_MODE_ACCEPT_MOVING_WRITE_BUFFER);
    SSL_CTX_set_session_cache_mode(context, SSL_SESS_CACHE_OFF);
    SSL_CTX_set_num_tickets(context, 0);
    SSL_CTX_set_verify(context, SSL_VERIFY_PEER | SSL_VERIFY_FAIL_IF_NO_PEER_CERT, NULL);
    if (SSL_CTX_set_min_proto_version(context, TLS1_3_VERSION) != 1 ||
        SSL_CTX_set_ciphersuites(
            context, "TLS_AES_128_GCM_SHA256:TLS_AES_256_GCM_SHA384:TLS_CHACHA20_POLY1305_SHA256") != 1) {
        SSL_CTX_free(context);
        return NULL;
    }
    return context;
}

static void set_free(counted_set *set) {
    if (!set) return;
    for (int i = 0; i < FILES; i++) {
        if (set->text[i]) OPENSSL_cleanse(set->text[i], set->text_bytes[i]);
        free(set->text[i]);
    }
    SSL_CTX_free(set->base.context);
    free(set);
}

static kvf_status set_judge(const kvf_tls_store *s, counted_set *set, kvf_error *err) {
    SSL_CTX *context = set->base.context = make_context();
    if (!context) return kvf_fail(err, KVF_ERR_INTERNAL, "OpenSSL makes no TLS 1.3 context: %s", openssl_reason());
    kvf_status status = KVF_OK;
    if (s->path[CERT]) status = use_certificate(context, s->path[CERT], set->text[CERT], err);
    if (status == KVF_OK && s->path[KEY]) status = use_key(context, s->path[KEY], set->text[KEY], s->path[CERT], err);
    if (status == KVF_OK && s->path[CA]) status = use_authority(context, s->path[CA], set->text[CA], err);
    if (status == KVF_OK && s->path[CERT] && s->path[CA]) warn_unless_signed(context, s->path[CERT], s->path[CA]);
    return status;
}

/* Under the lock, or before anybody else knows the store. s->seen is renewed even when the files are refused. */
static kvf_status load(kvf_tls_store *s, counted_set **out, kvf_error *err) {
    ERR_clear_error();
    counted_set *set = calloc(1, sizeof *set);
    if (!set) return kvf_fail(err, KVF_ERR_NO_MEMORY, "no memory for certificates");
    kvf_status status = KVF_OK;
    for (int i = 0; i < FILES; i++) {
        kvf_error one;
        version seen = {0};
        if (!s->path[i]) continue;
        kvf_status got = read_file(s->path[i], i == KEY, &seen, &set->text[i], &set->text_bytes[i], &one);
        s->seen[i] = seen;
        if (got != KVF_OK && status == KVF_OK) status = kvf_fail(err, got, "%s", one.message);
    }
    if (status == KVF_OK) status = set_judge(s, set, err);
    ERR_clear_error();
    if (status != KVF_OK) {
        set_free(set);
        return status;
    }
    set->base.cert = set->text[CERT];
    set->base.key = set->text[KEY];
    set->base.ca = set->text[CA];
    set->base.generation = s->now ? s->now->base.generation + 1 : 1;
    atomic_init(&set->refs, 1);
    *out = set;
    return KVF_OK;
}

/* ---------------------------------------------------------------- the store */
kvf_status kvf_tls_store_open(const kvf_tls_files *files, kvf_tls_store **out, kvf_error *err) {
    const char *paths[FILES] = {files->cert, files->key, files->ca};
    if (!files->cert != !files->key)
        return kvf_fail(err, KVF_ERR_INVALID, "%s: %s", files->cert ? files->cert : files->key,
            files->cert ? "a certificate without its key" : "a key without its certificate");
    kvf_tls_store *s = calloc(1, sizeof *s);
    if (!s) return kvf_fail(err, KVF_ERR_NO_MEMORY, "no memory for certificates");
    pthread_mutex_init(&s->lock, NULL);
    kvf_status status = KVF_OK;
    for (int i = 0; i < FILES; i++) {
        if (!paths[i]) continue;
        s->path[i] = strdup(paths[i]);
        if (!s->path[i]) status = kvf_fail(err, KVF_ERR_NO_MEMORY, "no memory for certificates");
    }
    if (status == KVF_OK) status = load(s, &s->now, err);
    if (status != KVF_OK) {
        kvf_tls_store_close(s);
        return status;
    }
    *out = s;
    return KVF_OK;
}

void kvf_tls_store_close(kvf_tls_store *s) {
    if (!s) return;
    if (s->now) kvf_tls_set_release(&s->now->base);
    for (int i = 0; i < FILES; i++) free(s->path[i]);
    pthread_mutex_destroy(&s->lock);
    free(s);
}

static bool changed(const kvf_tls_store *s) {
    for (int i = 0; i < FILES; i++) {
        struct stat st;
        if (!s->path[i]) continue;
        version now = stat(s->path[i], &st) == 0 ? version_of(&st) : (version){0};
        if (!same_version(&now, &s->seen[i])) return true;
    }
    return false;
}

bool kvf_tls_store_check(kvf_tls_store *s) {
    kvf_error err;
    counted_set *fresh = NULL, *old = NULL;
    pthread_mutex_lock(&s->lock);
    if (changed(s)) {
        if (load(s, &fresh, &err) == KVF_OK) {
            old = s->now;
            s->now = fresh;
            kvf_log(KVF_LOG_INFO, component, "certificates have been read again: new connections use generation %llu",
                (unsigned long long)fresh->base.generation);
        } else {
            kvf_log(KVF_LOG_ERROR, component, "%s; new connections go on with generation %llu", err.message,
                (unsigned long long)s->now->base.generation);
        }
    }
    pthread_mutex_unlock(&s->lock);
    if (old) kvf_tls_set_release(&old->base);
    return fresh != NULL;
}

const kvf_tls_set *kvf_tls_store_set(kvf_tls_store *s) {
    pthread_mutex_lock(&s->lock);
    counted_set *set = s->now;
    atomic_fetch_add(&set->refs, 1);
    pthread_mutex_unlock(&s->lock);
    return &set->base;
}

void kvf_tls_set_release(const kvf_tls_set *set) {
    counted_set *mine = (counted_set *)(uintptr_t)set;
    if (mine && atomic_fetch_sub(&mine->refs, 1) == 1) set_free(mine);
}
