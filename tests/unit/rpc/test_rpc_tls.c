/* Control connections under TLS: who is let in and who is not, what the log and the client say about it, and
 * certificates that change while calls go on. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>
#include <arpa/inet.h>
#include <netinet/in.h>
#include <signal.h>
#include <signal.h>
#include <openssl/err.h>
#include <openssl/ssl.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/socket.h>
#include <unistd.h>
#include "certs.h"
#include "fixture.h"
#include "kvf/log.h"

static const ProtobufCServiceDescriptor *const echo = &kvf__test__v1__echo__descriptor;
static certs c;

static pthread_mutex_t log_lock = PTHREAD_MUTEX_INITIALIZER;
static char logged[16384];
static void keep_log(void *self, kvf_log_level level, const char *component, const char *message) {
    (void)self, (void)level;
    pthread_mutex_lock(&log_lock);
    size_t used = strlen(logged);
    snprintf(logged + used, sizeof logged - used, "%s: %s\n", component, message);
    pthread_mutex_unlock(&log_lock);
}
static void forget_log(void) {
    pthread_mutex_lock(&log_lock);
    logged[0] = 0;
    pthread_mutex_unlock(&log_lock);
}
/* gRPC's threads may say it a little later than the client hears. */
static void in_log(const char *words) {
    for (int tries = 0; tries < 6000; tries++) {
        pthread_mutex_lock(&log_lock);
        bool found = strstr(logged, words) != NULL;
        pthread_mutex_unlock(&log_lock);
        if (found) return;
        usleep(10000);
    }
    fail_msg("the log does not say \"%s\":\n%s", words, logged);
}

static kvf_tls_store *store(const char *name, const char *ca) {
    char p[3][CERTS_PATH_MAX], file[3][64];
    snprintf(file[0], 64, "%s.pem", name ? name : "");
    snprintf(file[1], 64, "%s.key", name ? name : "");
    snprintf(file[2], 64, "%s.pem", ca);
    for (int i = 0; i < 3; i++) certs_path(&c, file[i], p[i]);
    kvf_tls_store *s = NULL;
    kvf_error err;
    if (kvf_tls_store_open(&(kvf_tls_files){name ? p[0] : NULL, name ? p[1] : NULL, p[2]}, &s, &err) != KVF_OK)
        fail_msg("%s", err.message);
    return s;
}

typedef struct {
    fixture f;
    kvf_tls_store *files;
} served;
static void serve(served *s, const char *name, const char *ca, bool demand) {
    s->files = store(name, ca);
    kvf_rpc_credentials credentials = {.mode = KVF_RPC_TLS, .files = s->files, .demand_certificates = demand};
    fixture_start(&s->f, &(kvf_rpc_server_opts){.credentials = &credentials});
}
static void serve_end(served *s) {
    fixture_stop(&s->f);
    kvf_tls_store_close(s->files);
}

/* A channel with these papers. */
static kvf_rpc_channel *channel_as(served *s, const char *name, const char *ca, const char *peer) {
    kvf_tls_store *files = store(name, ca);
    kvf_rpc_credentials credentials = {.mode = KVF_RPC_TLS, .files = files, .peer_name = peer};
    kvf_rpc_channel_opts opts = {.address = kvf_rpc_server_address(s->f.server, 0), .credentials = &credentials};
    kvf_rpc_channel *channel;
    assert_int_equal(kvf_rpc_channel_create(s->f.rt, &opts, &channel), KVF_OK);
    kvf_tls_store_close(files); /* a channel keeps what it has taken */
    return channel;
}

static kvf_rpc_code ask(kvf_rpc_channel *channel, const char *text, kvf_rpc_result *result) {
    kvf_rpc_result own;
    Kvf__Test__V1__Note note = KVF__TEST__V1__NOTE__INIT;
    ProtobufCMessage *answer = NULL;
    if (!result) result = &own;
    note.text = (char *)(uintptr_t)text;
    kvf_rpc_unary(channel, echo, "Say", &note.base, 60000, &answer, result);
    kvf_rpc_message_free(answer);
    return result->code;
}

static void refused(served *s, const char *name, const char *ca, const char *peer, const char *words) {
    kvf_rpc_result r;
    kvf_rpc_channel *channel = channel_as(s, name, ca, peer);
    assert_int_equal(ask(channel, "x", &r), KVF_RPC_UNAVAILABLE);
    if (!strstr(r.message, words)) fail_msg("\"%s\" does not say \"%s\"", r.message, words);
    kvf_rpc_channel_destroy(channel);
}

static void both_prove_themselves(void **state) {
    served s;
    serve(&s, "d1", "ca", true);
    static const char *const names[] = {NULL, "d1"}; /* the address, 127.0.0.1, or the node's name */
    for (size_t i = 0; i < KVF_COUNT_OF(names); i++) {
        kvf_rpc_channel *channel = channel_as(&s, "r1", "ca", names[i]);
        kvf_rpc_result r;
        if (ask(channel, "hello", &r) != KVF_RPC_OK) fail_msg("%s", r.message);
        assert_int_equal(ask(channel, "proves r1", &r), KVF_RPC_OK);
        assert_int_equal(ask(channel, "proves r2", &r), KVF_RPC_PERMISSION_DENIED);
        assert_string_equal(r.message, "r1");
        kvf_rpc_channel_destroy(channel);
    }
    serve_end(&s);
}

static void a_listener_for_clients_asks_for_no_certificate(void **state) {
    served s;
    serve(&s, "d1", "ca", false);
    kvf_rpc_channel *channel = channel_as(&s, NULL, "ca", NULL);
    kvf_rpc_result r;
    if (ask(channel, "hello", &r) != KVF_RPC_OK) fail_msg("%s", r.message);
    assert_int_equal(ask(channel, "proves anybody", &r), KVF_RPC_OK);
    kvf_rpc_channel_destroy(channel);
    serve_end(&s);
}

static void who_is_not_to_be_believed_is_refused(void **state) {
    served s;
    serve(&s, "d1", "ca", true);
    forget_log();
    refused(&s, "r1", "foreign", NULL, "certificate"); /* our peer's authority is not ours */
    refused(&s, "r1", "ca", "d2", "d2"); /* another node than the one we call */
    forget_log();
    kvf_rpc_channel *channel = channel_as(&s, "strange", "ca", NULL); /* we are of another authority */
    assert_int_equal(ask(channel, "x", NULL), KVF_RPC_UNAVAILABLE);
    kvf_rpc_channel_destroy(channel);
    in_log("the peer's certificate is refused");
    forget_log();
    channel = channel_as(&s, NULL, "ca", NULL); /* or show nothing */
    assert_int_equal(ask(channel, "x", NULL), KVF_RPC_UNAVAILABLE);
    kvf_rpc_channel_destroy(channel);
    in_log("the peer shows no certificate");
    serve_end(&s);
}

static void plain_and_encrypted_do_not_meet(void **state) {
    served s;
    kvf_rpc_result r;
    serve(&s, "d1", "ca", true);
    forget_log();
    assert_int_equal(ask(s.f.channel, "x", &r), KVF_RPC_UNAVAILABLE); /* the fixture's own is plain */
    in_log("the peer does not speak TLS");
    serve_end(&s);

    fixture f;
    fixture_start(&f, NULL);
    s = (served){.f = f};
    forget_log();
    refused(&s, "r1", "ca", NULL, "");
    in_log("the peer does not speak TLS");
    fixture_stop(&f);
}

static void unix_sockets_stay_plain(void **state) {
    served s;
    char address[CERTS_PATH_MAX + 8], path[CERTS_PATH_MAX];
    snprintf(address, sizeof address, "unix:%s", certs_path(&c, "sock", path));
    s.files = store("d1", "ca");
    kvf_rpc_credentials credentials = {.mode = KVF_RPC_TLS, .files = s.files, .demand_certificates = true};
    fixture_start(&s.f, NULL);
    kvf_rpc_server *first = s.f.server;
    fixture_serve(&s.f, address, &(kvf_rpc_server_opts){.credentials = &credentials});
    kvf_rpc_channel *plain = fixture_channel(&s.f, address), *told = channel_as(&s, "r1", "ca", NULL);
    assert_int_equal(ask(plain, "x", NULL), KVF_RPC_OK);
    assert_int_equal(ask(told, "x", NULL), KVF_RPC_OK);
    kvf_rpc_channel_destroy(plain);
    kvf_rpc_channel_destroy(told);
    kvf_rpc_server_shutdown(first, 0);
    serve_end(&s);
}

static void new_connections_use_new_certificates(void **state) {
    certs_copy(&c, "d1.pem", "live.pem");
    certs_copy(&c, "d1.key", "live.key");
    served s;
    serve(&s, "live", "ca", true);
    kvf_rpc_channel *old = channel_as(&s, "r1", "ca", "d1");
    kvf_rpc_result r;
    if (ask(old, "hello", &r) != KVF_RPC_OK) fail_msg("%s", r.message);
    certs_simple(&c, "ca", "live", "DNS:renamed");
    assert_true(kvf_tls_store_check(s.files));
    kvf_rpc_channel *fresh = channel_as(&s, "r1", "ca", "renamed");
    if (ask(fresh, "hello", &r) != KVF_RPC_OK) fail_msg("%s", r.message);
    refused(&s, "r1", "ca", "d1", "d1");
    assert_int_equal(ask(old, "hello", &r), KVF_RPC_OK); /* the old connection never felt it */
    certs_write(&c, "live.key", "rubbish");
    assert_false(kvf_tls_store_check(s.files));
    kvf_rpc_channel *later = channel_as(&s, "r1", "ca", "renamed");
    assert_int_equal(ask(later, "hello", &r), KVF_RPC_OK);
    kvf_rpc_channel_destroy(old);
    kvf_rpc_channel_destroy(fresh);
    kvf_rpc_channel_destroy(later);
    serve_end(&s);
}

/* ---- a library that is not gRPC ---- */

static int raw_socket(const char *address) {
    struct sockaddr_in a = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    a.sin_port = htons((uint16_t)strtoul(strrchr(address, ':') + 1, NULL, 10));
    int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    assert_int_equal(connect(fd, (struct sockaddr *)&a, sizeof a), 0);
    return fd;
}

static SSL *raw_ssl(const char *name, int fd) {
    char path[CERTS_PATH_MAX], file[64];
    SSL_CTX *context = SSL_CTX_new(TLS_method());
    if (name) {
        snprintf(file, sizeof file, "%s.pem", name);
        assert_int_equal(SSL_CTX_use_certificate_file(context, certs_path(&c, file, path), SSL_FILETYPE_PEM), 1);
        snprintf(file, sizeof file, "%s.key", name);
        assert_int_equal(SSL_CTX_use_PrivateKey_file(context, certs_path(&c, file, path), SSL_FILETYPE_PEM), 1);
    }
    SSL *ssl = SSL_new(context);
    SSL_CTX_free(context);
    SSL_set_alpn_protos(ssl, (const unsigned char *)"\2h2", 3);
    SSL_set_fd(ssl, fd);
    return ssl;
}

/* What a caller gets from the server: settings of HTTP/2 if it is let in, nothing but the end if not. */
static bool let_in(served *s, const char *name) {
    int fd = raw_socket(kvf_rpc_server_address(s->f.server, 0));
    SSL *ssl = raw_ssl(name, fd);
    char bytes[64];
    bool in = SSL_connect(ssl) == 1 && SSL_write(ssl, "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\0\0\0\4\0\0\0\0\0", 33) == 33 &&
              SSL_read(ssl, bytes, sizeof bytes) > 0;
    SSL_free(ssl);
    close(fd);
    ERR_clear_error();
    return in;
}

static void a_certificate_out_of_its_time_is_refused(void **state) {
    served s;
    serve(&s, "d1", "ca", true);
    assert_true(let_in(&s, "r1"));
    forget_log();
    assert_false(let_in(&s, "expired"));
    in_log("the peer's certificate is refused");
    assert_false(let_in(&s, "early"));
    assert_false(let_in(&s, NULL));
    serve_end(&s);
}

static void *raw_server(void *self) {
    int fd = accept(*(int *)self, NULL, NULL);
    SSL *ssl = raw_ssl("expired", fd);
    char byte;
    if (SSL_accept(ssl) == 1) SSL_read(ssl, &byte, 1);
    SSL_free(ssl);
    close(fd);
    return NULL;
}

static void a_server_out_of_its_time_is_left(void **state) {
    struct sockaddr_in a = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    socklen_t len = sizeof a;
    int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    assert_int_equal(
        bind(fd, (struct sockaddr *)&a, len) | listen(fd, 4) | getsockname(fd, (struct sockaddr *)&a, &len), 0);
    pthread_t thread;
    assert_int_equal(pthread_create(&thread, NULL, raw_server, &fd), 0);
    kvf_rpc_runtime *rt;
    assert_int_equal(kvf_rpc_runtime_create(NULL, &rt), KVF_OK);
    char address[64];
    snprintf(address, sizeof address, "127.0.0.1:%u", ntohs(a.sin_port));
    kvf_tls_store *files = store("r1", "ca");
    kvf_rpc_credentials credentials = {.mode = KVF_RPC_TLS, .files = files};
    kvf_rpc_channel *channel;
    assert_int_equal(
        kvf_rpc_channel_create(rt, &(kvf_rpc_channel_opts){.address = address, .credentials = &credentials}, &channel),
        KVF_OK);
    kvf_rpc_result r;
    forget_log();
    assert_int_equal(ask(channel, "x", &r), KVF_RPC_UNAVAILABLE);
    in_log("the peer's certificate is refused");
    kvf_rpc_channel_destroy(channel);
    pthread_join(thread, NULL);
    close(fd);
    kvf_rpc_runtime_destroy(rt);
    kvf_tls_store_close(files);
}

static void credentials_that_cannot_work_are_refused(void **state) {
    kvf_tls_store *only_ca = store(NULL, "ca");
    kvf_rpc_runtime *rt;
    kvf_rpc_channel *channel;
    kvf_rpc_server *server;
    kvf_error err;
    assert_int_equal(kvf_rpc_runtime_create(NULL, &rt), KVF_OK);
    kvf_rpc_credentials none = {.mode = KVF_RPC_TLS}, bare = {.mode = KVF_RPC_TLS, .files = only_ca};
    const char *listen[] = {"127.0.0.1:0"};
    assert_int_equal(
        kvf_rpc_channel_create(rt, &(kvf_rpc_channel_opts){.address = "127.0.0.1:1", .credentials = &none}, &channel),
        KVF_ERR_INVALID);
    assert_int_equal(
        kvf_rpc_server_start(
            rt, &(kvf_rpc_server_opts){.listen = listen, .listen_count = 1, .credentials = &bare}, &server, &err),
        KVF_ERR_INVALID);
    assert_non_null(strstr(err.message, "needs a certificate"));
    kvf_rpc_runtime_destroy(rt);
    kvf_tls_store_close(only_ca);
}

static int setup(void **state) {
    certs_open(&c);
    certs_authority(&c, "ca");
    certs_authority(&c, "foreign");
    certs_simple(&c, "ca", "d1", "DNS:d1,IP:127.0.0.1");
    certs_simple(&c, "ca", "r1", "DNS:r1");
    certs_simple(&c, "foreign", "strange", "DNS:strange.example");
    certs_make(&c, "ca", "expired", "DNS:r1,IP:127.0.0.1", -7200, -3600);
    certs_make(&c, "ca", "early", "DNS:r1", 3600, 7200);
    kvf_log_set_sink(keep_log, NULL);
    return 0;
}
static int teardown(void **state) {
    kvf_log_set_sink(NULL, NULL);
    certs_close(&c);
    return 0;
}

int main(void) {
    signal(SIGPIPE, SIG_IGN); /* of the raw OpenSSL here; gRPC's sockets raise none */
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(both_prove_themselves),
        cmocka_unit_test(a_listener_for_clients_asks_for_no_certificate),
        cmocka_unit_test(who_is_not_to_be_believed_is_refused),
        cmocka_unit_test(plain_and_encrypted_do_not_meet),
        cmocka_unit_test(unix_sockets_stay_plain),
        cmocka_unit_test(new_connections_use_new_certificates),
        cmocka_unit_test(a_certificate_out_of_its_time_is_refused),
        cmocka_unit_test(a_server_out_of_its_time_is_left),
        cmocka_unit_test(credentials_that_cannot_work_are_refused),
    };
    return cmocka_run_group_tests(tests, setup, teardown);
}
