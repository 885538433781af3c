/* Page connections under TLS: who is let in and who is not, with which words; certificates that change while
 * connections live; records spoilt on their way; keys that are renewed. That bytes arrive as with any other transport
 * is shown by test_transport.c and test_endpoint.c. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>
#include <arpa/inet.h>
#include <errno.h>
#include <netinet/in.h>
#include <openssl/ssl.h>
#include <pthread.h>
#include <sys/socket.h>
#include <unistd.h>
#include "kvf/endpoint.h"
#include "kvf/log.h"
#include "kvf/rng.h"
#include "kvf/transport.h"
#include "loop.h"
#include "stores.h"
#include "tls.h"

static certs c;
static char logged[8192];
static void keep_log(void *self, kvf_log_level level, const char *component, const char *message) {
    (void)self, (void)level, (void)component;
    size_t used = strlen(logged);
    snprintf(logged + used, sizeof logged - used, "%s\n", message);
}

/* ---------------------------------------------------------------- endpoints */
enum { PAGE_BYTES = 4096 };
static const kvf_identity model = {
    .wire_version = KVF_WIRE_VERSION, .page_bytes = PAGE_BYTES, .numerics = "f32", .kv_type = "f16"};
typedef struct {
    kvf_endpoint *e;
    kvf_link_id link;
    int ups, downs, pages;
    kvf_status reason;
    char text[KVF_TEXT_MAX], transport[16];
    uint8_t page[PAGE_BYTES];
} node;
static void on_up(void *self, kvf_link_id link, const char *peer, uint64_t epoch, const uint8_t nonce[16],
    bool outgoing, const char *transport) {
    node *n = self;
    n->ups++;
    n->link = link;
    snprintf(n->transport, sizeof n->transport, "%s", transport);
}
static void on_down(void *self, kvf_link_id link, const char *peer, kvf_status reason, const char *text) {
    node *n = self;
    n->downs++;
    n->reason = reason;
    snprintf(n->text, sizeof n->text, "%s", text);
}
static void on_frame(void *self, kvf_link_id link, const kvf_frame *f) {}
static kvf_page_verdict on_page(void *self, kvf_link_id link, const kvf_page_header *h, void **target, kvf_landing *l) {
    *target = ((node *)self)->page;
    *l = (kvf_landing){.grant = h->grant};
    return KVF_PAGE_ACCEPT;
}
static void on_landed(void *self, kvf_link_id link, const kvf_landing *l, bool crc_ok) {
    ((node *)self)->pages += crc_ok;
}
static void on_room(void *self, kvf_link_id link) {}

static struct event_base *base;
static node p, d;
static void start(node *n, const char *name, uint64_t epoch, kvf_tls_store *tls, kvf_time_ns connect_timeout_ns) {
    *n = (node){0};
    kvf_endpoint_options o = {.base = base,
        .node = name,
        .epoch = epoch,
        .identity = &model,
        .listen_tcp = "127.0.0.1:0",
        .tls = tls,
        .connect_timeout_ns = connect_timeout_ns,
        .heartbeat_ns = KVF_NS_PER_S,
        .peer_timeout_ns = 60 * KVF_NS_PER_S,
        .callbacks = {n, on_up, on_down, on_frame, on_page, on_landed, on_room}};
    kvf_error err;
    if (kvf_endpoint_create(&o, &n->e, &err) != KVF_OK) fail_msg("%s", err.message);
}
static void begin(kvf_tls_store *of_p, kvf_tls_store *of_d) {
    base = event_base_new();
    logged[0] = 0;
    start(&p, "p1", 11, of_p, 20 * KVF_NS_PER_S);
    start(&d, "d1", 22, of_d, 20 * KVF_NS_PER_S);
}
static void call_at(const char *address) {
    kvf_link_id link;
    assert_int_equal(kvf_endpoint_connect(p.e, "d1", 22, address, "", 0, &link), KVF_OK);
}
static void call(void) { call_at(kvf_endpoint_address(d.e)); }
static void end(void) {
    kvf_endpoint_destroy(p.e);
    kvf_endpoint_destroy(d.e);
    event_base_free(base);
}
static void says(const char *text, const char *words) {
    if (!strstr(text, words)) fail_msg("\"%s\" does not say \"%s\"", text, words);
}
static void in_log(const char *words) { says(logged, words); }

static void both_prove_themselves_and_pages_move(void **state) {
    kvf_tls_store *sp = store_of(&c, "p1", "ca"), *sd = store_of(&c, "d1", "ca");
    begin(sp, sd);
    assert_memory_equal(kvf_endpoint_address(d.e), "tls:127.0.0.1:", 14);
    call();
    LOOP_UNTIL(base, (p.ups && d.ups) || p.downs);
    assert_int_equal(p.downs, 0);
    assert_string_equal(p.transport, "tls");
    uint8_t page[PAGE_BYTES];
    for (int i = 0; i < PAGE_BYTES; i++) page[i] = (uint8_t)(i * 7);
    kvf_page_header h = {.grant = 1, .len_bytes = PAGE_BYTES};
    uint32_t crc;
    assert_int_equal(kvf_endpoint_send_page(p.e, p.link, &h, page, &crc), KVF_OK);
    LOOP_UNTIL(base, d.pages == 1);
    assert_memory_equal(d.page, page, PAGE_BYTES);
    end();
    kvf_tls_store_close(sp);
    kvf_tls_store_close(sd);
}

/* Each side may be the one with the wrong papers; both say why, and the log names whose they are. */
static void another_authority_is_refused(void **state) {
    kvf_tls_store *good = store_of(&c, "both", "ca"), *strange = store_of(&c, "strange", "ca");
    for (int turn = 0; turn < 2; turn++) {
        begin(turn ? strange : good, turn ? good : strange);
        call();
        LOOP_UNTIL(base, p.downs && d.downs);
        assert_int_equal(p.ups + d.ups, 0);
        assert_int_equal(p.reason, KVF_ERR_AUTH);
        assert_int_equal(d.reason, KVF_ERR_AUTH);
        says(turn ? d.text : p.text, "its certificate (strange.example) is refused: ");
        says(turn ? p.text : d.text, "it refuses us: ");
        in_log("its certificate (strange.example) is refused: ");
        end();
    }
    kvf_tls_store_close(good);
    kvf_tls_store_close(strange);
}

/* Names: the node that is called, and the one that a caller claims to be. */
static void a_certificate_for_another_node_is_refused(void **state) {
    kvf_tls_store *sp = store_of(&c, "p1", "ca"), *other = store_of(&c, "d2", "ca");
    begin(sp, other);
    call();
    LOOP_UNTIL(base, p.downs && d.downs);
    assert_int_equal(p.ups + d.ups, 0);
    assert_int_equal(p.reason, KVF_ERR_AUTH);
    says(p.text, "called d1, answered with a certificate for d2");
    end();

    kvf_tls_store *sd = store_of(&c, "d1", "ca");
    begin(other, sd); /* p1 has the papers of d2 */
    call();
    LOOP_UNTIL(base, p.downs && d.downs);
    assert_int_equal(p.ups + d.ups, 0);
    assert_int_equal(d.reason, KVF_ERR_AUTH);
    says(d.text, "refused p1: certificate here is d2, there p1");
    says(p.text, "d1 refuses: certificate there is d2, here p1");
    end();
    kvf_tls_store_close(sp);
    kvf_tls_store_close(sd);
    kvf_tls_store_close(other);
}

static void plain_and_encrypted_nodes_do_not_pair(void **state) {
    kvf_tls_store *s = store_of(&c, "d1", "ca");
    char address[KVF_ADDRESS_MAX];
    begin(NULL, s);
    call(); /* the address says so already */
    LOOP_UNTIL(base, p.downs);
    assert_int_equal(p.reason, KVF_ERR_AUTH);
    says(p.text, "demands TLS, and no certificate is configured here");
    snprintf(address, sizeof address, "tcp:%s", strchr(kvf_endpoint_address(d.e), ':') + 1);
    p.downs = 0;
    call_at(address); /* an address that does not tell the truth */
    LOOP_UNTIL(base, p.downs && d.downs);
    assert_int_equal(d.reason, KVF_ERR_AUTH);
    says(d.text, "it does not speak TLS, and this side demands it");
    says(p.text, "speaks TLS, this side does not");
    end();

    begin(s, NULL);
    call();
    LOOP_UNTIL(base, p.downs);
    assert_int_equal(p.reason, KVF_ERR_AUTH);
    says(p.text, "is not encrypted, and this node demands TLS");
    snprintf(address, sizeof address, "tls:%s", strchr(kvf_endpoint_address(d.e), ':') + 1);
    p.downs = 0;
    call_at(address);
    LOOP_UNTIL(base, p.downs && d.downs);
    says(d.text, "a caller speaks TLS, this side does not");
    says(p.text, "it hung up during the handshake: it may not speak TLS");
    end();
    kvf_tls_store_close(s);
}

/* ---------------------------------------------------------------- strangers with a TLS library of their own */
typedef struct {
    int fd;
    const char *cert; /* NULL: shows none */
    int version_max;
    bool server;
    pthread_t thread;
} stranger;

static void *stranger_main(void *self) {
    stranger *s = self;
    SSL_CTX *context = SSL_CTX_new(TLS_method());
    char path[CERTS_PATH_MAX], file[64];
    if (s->cert) {
        snprintf(file, sizeof file, "%s.pem", s->cert);
        SSL_CTX_use_certificate_file(context, certs_path(&c, file, path), SSL_FILETYPE_PEM);
        snprintf(file, sizeof file, "%s.key", s->cert);
        SSL_CTX_use_PrivateKey_file(context, certs_path(&c, file, path), SSL_FILETYPE_PEM);
    }
    SSL_CTX_set_max_proto_version(context, s->version_max);
    SSL *ssl = SSL_new(context);
    SSL_set_fd(ssl, s->fd);
    char byte;
    if ((s->server ? SSL_accept(ssl) : SSL_connect(ssl)) == 1) SSL_read(ssl, &byte, 1); /* until it is thrown out */
    SSL_free(ssl);
    SSL_CTX_free(context);
    close(s->fd);
    return NULL;
}

static void stranger_start(stranger *s) { assert_int_equal(pthread_create(&s->thread, NULL, stranger_main, s), 0); }

static int connected_to(const char *address) {
    struct sockaddr_in a = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    a.sin_port = htons((uint16_t)strtoul(strrchr(address, ':') + 1, NULL, 10));
    int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    assert_int_equal(connect(fd, (struct sockaddr *)&a, sizeof a), 0);
    return fd;
}

static int listening(char address[KVF_ADDRESS_MAX]) {
    struct sockaddr_in a = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    socklen_t len = sizeof a;
    int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    assert_int_equal(
        bind(fd, (struct sockaddr *)&a, len) | listen(fd, 4) | getsockname(fd, (struct sockaddr *)&a, &len), 0);
    snprintf(address, KVF_ADDRESS_MAX, "tls:127.0.0.1:%u", ntohs(a.sin_port));
    return fd;
}

static void callers_without_good_papers_are_refused(void **state) {
    static const struct {
        const char *cert;
        int version_max;
        const char *words;
    } cases[] = {{NULL, 0, "it shows no certificate"},
        {"expired", 0, "its certificate (p1) is refused: certificate has expired"},
        {"early", 0, "its certificate (p1) is refused: certificate is not yet valid"},
        {"strange", 0, "its certificate (strange.example) is refused: unable to get local issuer certificate"},
        {"p1", TLS1_2_VERSION, "no handshake: unsupported protocol"}};
    kvf_tls_store *s = store_of(&c, "d1", "ca");
    for (size_t i = 0; i < KVF_COUNT_OF(cases); i++) {
        begin(s, s);
        stranger x = {
            .fd = connected_to(kvf_endpoint_address(d.e)), .cert = cases[i].cert, .version_max = cases[i].version_max};
        stranger_start(&x);
        LOOP_UNTIL(base, d.downs);
        says(d.text, cases[i].words);
        assert_int_equal(d.reason, KVF_ERR_AUTH);
        in_log(cases[i].words);
        pthread_join(x.thread, NULL);
        end();
    }
    kvf_tls_store_close(s);
}

static void listeners_without_good_papers_are_left(void **state) {
    static const struct {
        const char *cert, *words;
    } cases[] = {{"expired", "its certificate (p1) is refused: certificate has expired"},
        {"strange", "its certificate (strange.example) is refused: "}};
    kvf_tls_store *s = store_of(&c, "p1", "ca");
    for (size_t i = 0; i < KVF_COUNT_OF(cases); i++) {
        begin(s, s);
        char address[KVF_ADDRESS_MAX];
        int fd = listening(address);
        call_at(address);
        loop_rounds(base, 20);
        stranger x = {.fd = accept(fd, NULL, NULL), .cert = cases[i].cert, .server = true};
        stranger_start(&x);
        LOOP_UNTIL(base, p.downs);
        says(p.text, cases[i].words);
        assert_int_equal(p.reason, KVF_ERR_AUTH);
        pthread_join(x.thread, NULL);
        close(fd);
        end();
    }
    kvf_tls_store_close(s);
}

static void what_is_no_tls_is_named(void **state) {
    static const char *const said[] = {
        "GET / HTTP/1.1\r\n\r\n", "\x90\1\0\0\1\1\0\0\0\0\0\0", "PRI * HTTP/2.0\r\n\r\n"};
    static const size_t lengths[] = {18, 12, 18};
    kvf_tls_store *s = store_of(&c, "d1", "ca");
    for (size_t i = 0; i < KVF_COUNT_OF(said); i++) {
        begin(s, s);
        int fd = connected_to(kvf_endpoint_address(d.e));
        assert_int_equal(send(fd, said[i], lengths[i], 0), lengths[i]);
        LOOP_UNTIL(base, d.downs);
        says(d.text, "TLS with 127.0.0.1:");
        says(d.text, "it does not speak TLS");
        close(fd);
        end();
    }
    begin(s, s); /* and one who answers so */
    char address[KVF_ADDRESS_MAX];
    int fd = listening(address);
    call_at(address);
    loop_rounds(base, 20);
    int peer = accept(fd, NULL, NULL);
    assert_int_equal(send(peer, "HTTP/1.1 400 Bad Request\r\n\r\n", 28, 0), 28);
    LOOP_UNTIL(base, p.downs);
    says(p.text, "it does not speak TLS");
    close(peer);
    close(fd);
    end();
    kvf_tls_store_close(s);
}

/* Silent, and silent after half of the first record. */
static void a_handshake_has_a_deadline(void **state) {
    kvf_tls_store *s = store_of(&c, "d1", "ca");
    for (int half = 0; half < 2; half++) {
        base = event_base_new();
        start(&d, "d1", 22, s, 20 * KVF_NS_PER_MS);
        int fd = connected_to(kvf_endpoint_address(d.e));
        if (half) assert_int_equal(send(fd, "\x16\3\1\2\0\1", 6, 0), 6);
        LOOP_UNTIL(base, d.downs);
        assert_int_equal(d.reason, KVF_ERR_DEADLINE);
        close(fd);
        kvf_endpoint_destroy(d.e);
        event_base_free(base);
    }
    kvf_tls_store_close(s);
}

/* ---------------------------------------------------------------- changes */
static void new_links_use_new_certificates(void **state) {
    certs_copy(&c, "d1.pem", "live.pem");
    certs_copy(&c, "d1.key", "live.key");
    kvf_tls_store *sp = store_of(&c, "p1", "ca"), *live = store_of(&c, "live", "ca");
    begin(sp, live);
    call();
    LOOP_UNTIL(base, p.ups && d.ups);
    kvf_link_id old = p.link;

    certs_copy(&c, "strange.pem", "live.pem");
    certs_copy(&c, "strange.key", "live.key");
    assert_true(kvf_tls_store_check(live));
    call();
    LOOP_UNTIL(base, p.downs == 1);
    says(p.text, "its certificate (strange.example) is refused");

    certs_write(&c, "live.pem", "rubbish"); /* what came last goes on */
    assert_false(kvf_tls_store_check(live));
    call();
    LOOP_UNTIL(base, p.downs == 2);
    says(p.text, "its certificate (strange.example) is refused");

    certs_simple(&c, "ca", "live", "DNS:d1");
    assert_true(kvf_tls_store_check(live));
    uint8_t page[PAGE_BYTES] = {1};
    kvf_page_header h = {.grant = 1, .len_bytes = PAGE_BYTES};
    uint32_t crc;
    assert_int_equal(kvf_endpoint_send_page(p.e, old, &h, page, &crc), KVF_OK);
    LOOP_UNTIL(base, d.pages == 1);
    assert_int_equal(p.downs, 2); /* the first link never felt it */
    call(); /* and gives way to the next */
    LOOP_UNTIL(base, p.ups == 2);
    end();
    kvf_tls_store_close(sp);
    kvf_tls_store_close(live);
}

/* ---------------------------------------------------------------- records */
static void pump(int from, int to, size_t *moved, size_t spoil_at) {
    uint8_t bytes[4096];
    ssize_t got = recv(from, bytes, sizeof bytes, MSG_DONTWAIT);
    if (got <= 0) return;
    if (*moved <= spoil_at && spoil_at < *moved + (size_t)got) bytes[spoil_at - *moved] ^= 4;
    *moved += (size_t)got;
    assert_int_equal(send(to, bytes, (size_t)got, MSG_NOSIGNAL), got);
}

/* A byte that changes between the two is never taken for a page: TLS notices before the CRC has to. */
static void a_record_spoilt_on_its_way_ends_the_link(void **state) {
    kvf_tls_store *sp = store_of(&c, "p1", "ca"), *sd = store_of(&c, "d1", "ca");
    begin(sp, sd);
    char address[KVF_ADDRESS_MAX];
    int fd = listening(address);
    call_at(address);
    loop_rounds(base, 5);
    int near = accept(fd, NULL, NULL), far = connected_to(kvf_endpoint_address(d.e));
    size_t there = 0, back = 0, spoil_at = SIZE_MAX;
    kvf_time_ns patience = kvf_os_now_ns() + LOOP_PATIENCE_NS;
    for (bool sent = false; !d.downs && kvf_os_now_ns() < patience;) {
        event_base_loop(base, EVLOOP_NONBLOCK);
        pump(near, far, &there, spoil_at);
        pump(far, near, &back, SIZE_MAX);
        if (sent || !p.ups) continue;
        uint8_t page[PAGE_BYTES] = {1};
        kvf_page_header h = {.grant = 1, .len_bytes = PAGE_BYTES};
        uint32_t crc;
        assert_int_equal(kvf_endpoint_send_page(p.e, p.link, &h, page, &crc), KVF_OK);
        spoil_at = there + 2000;
        sent = true;
    }
    assert_int_equal(d.downs, 1);
    assert_int_equal(d.reason, KVF_ERR_CORRUPT);
    assert_int_equal(d.pages, 0);
    says(d.text, "bad record mac");
    close(near);
    close(far);
    close(fd);
    end();
    kvf_tls_store_close(sp);
    kvf_tls_store_close(sd);
}

/* Through a socket that takes little at a time, under a key that is renewed every 64 KiB. */
static void keys_are_renewed_and_small_sockets_suffice(void **state) {
    kvf_tls_store *s = store_of(&c, "d1", "ca");
    const kvf_tls_set *set = kvf_tls_store_set(s);
    int fds[2], small = 4096;
    assert_int_equal(socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0, fds), 0);
    for (int i = 0; i < 2; i++) assert_int_equal(setsockopt(fds[i], SOL_SOCKET, SO_SNDBUF, &small, sizeof small), 0);
    tls_conn *a = tls_create(set, fds[0], true, 1 << 16), *b = tls_create(set, fds[1], false, 1 << 16);
    for (tls_progress x = TLS_WAITS, y = TLS_WAITS; x == TLS_WAITS || y == TLS_WAITS;) {
        if (x == TLS_WAITS) x = tls_shake(a);
        if (y == TLS_WAITS) y = tls_shake(b);
        if (x == TLS_FAILED || y == TLS_FAILED) fail_msg("%s | %s", tls_text(a), tls_text(b));
        tls_flush(a);
        tls_flush(b);
    }
    static uint8_t data[3 << 20], got[sizeof data];
    for (size_t i = 0; i < sizeof data; i++) data[i] = (uint8_t)kvf_rng_at(5, 0, i);
    size_t sent = 0, read = 0, waits = 0;
    while (read < sizeof data) {
        size_t left = sizeof data - sent, chunk = KVF_MIN(left, (size_t)100000);
        ssize_t n = chunk ? tls_send(a, data + sent, chunk) : 0;
        if (n > 0) sent += (size_t)n;
        if (n < 0) assert_int_equal(errno, EAGAIN);
        waits += n < 0;
        tls_flush(a);
        n = tls_recv(b, got + read, sizeof got - read);
        assert_true(n > 0 || errno == EAGAIN);
        if (n > 0) read += (size_t)n;
    }
    assert_memory_equal(got, data, sizeof data);
    assert_true(waits > 0);
    assert_in_range(tls_key_updates(a), 30, 48); /* of at least 64 KiB, at most one chunk more */
    tls_destroy(a);
    char rest;
    assert_int_equal(tls_recv(b, &rest, 1), 0); /* a goodbye */
    tls_destroy(b);
    close(fds[0]);
    close(fds[1]);
    kvf_tls_set_release(set);
    kvf_tls_store_close(s);
}

static int setup(void **state) {
    certs_open(&c);
    certs_authority(&c, "ca");
    certs_authority(&c, "foreign");
    certs_simple(&c, "ca", "p1", "DNS:p1");
    certs_simple(&c, "ca", "d1", "DNS:d1,IP:127.0.0.1");
    certs_simple(&c, "ca", "d2", "DNS:d2");
    certs_simple(&c, "ca", "both", "DNS:p1,DNS:d1");
    certs_make(&c, "ca", "expired", "DNS:p1", -7200, -3600);
    certs_make(&c, "ca", "early", "DNS:p1", 3600, 7200);
    certs_simple(&c, "foreign", "strange", "DNS:strange.example");
    kvf_log_set_sink(keep_log, NULL);
    return 0;
}
static int teardown(void **state) {
    kvf_log_set_sink(NULL, NULL);
    certs_close(&c);
    return 0;
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(both_prove_themselves_and_pages_move),
        cmocka_unit_test(another_authority_is_refused),
        cmocka_unit_test(a_certificate_for_another_node_is_refused),
        cmocka_unit_test(plain_and_encrypted_nodes_do_not_pair),
        cmocka_unit_test(callers_without_good_papers_are_refused),
        cmocka_unit_test(listeners_without_good_papers_are_left),
        cmocka_unit_test(what_is_no_tls_is_named),
        cmocka_unit_test(a_handshake_has_a_deadline),
        cmocka_unit_test(new_links_use_new_certificates),
        cmocka_unit_test(a_record_spoilt_on_its_way_ends_the_link),
        cmocka_unit_test(keys_are_renewed_and_small_sockets_suffice),
    };
    return cmocka_run_group_tests(tests, setup, teardown);
}
