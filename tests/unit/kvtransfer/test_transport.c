/* One suite over every transport: what kvf/transport.h promises about connections. Then what only shm and tcp have. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>
#include <arpa/inet.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>
#include "kvf/rng.h"
#include "kvf/transport.h"
#include "bytes.h"
#include "loop.h"
#include "shm_ring.h"
#include "stores.h"

typedef struct peer peer;
struct peer {
    kvf_conn *conn;
    int opened, readable, roomy, down;
    kvf_status reason;
    char text[160];
    int close_on; /* 1: in on_open, 2: in on_readable, 3: in on_room, 4: in on_down */
};
typedef struct {
    const kvf_transport_ops *ops;
    const char *where;
    kvf_transport_env env;
    kvf_listener *listener;
    peer caller, called;
} pair;

static void maybe_close(peer *p, int here) {
    if (p->close_on != here) return;
    p->conn->ops->close(p->conn);
    p->conn = NULL;
}
static void on_open(void *self) {
    peer *p = self;
    p->opened++;
    maybe_close(p, 1);
}
static void on_readable(void *self) {
    peer *p = self;
    p->readable++;
    maybe_close(p, 2);
}
static void on_room(void *self) {
    peer *p = self;
    p->roomy++;
    maybe_close(p, 3);
}
static void on_down(void *self, kvf_status reason, const char *text) {
    peer *p = self;
    p->down++;
    p->reason = reason;
    snprintf(p->text, sizeof p->text, "%s", text);
    maybe_close(p, 4);
}
static void watch(peer *p, kvf_conn *c) {
    p->conn = c;
    c->events = (kvf_conn_events){
        .self = p, .on_open = on_open, .on_readable = on_readable, .on_room = on_room, .on_down = on_down};
}
static void accepted(void *self, kvf_conn *c) {
    pair *t = self;
    watch(&t->called, c);
}

static certs folder;
static kvf_tls_store *tls; /* of a node that is called d1 */

static void pair_listen(pair *t, const kvf_transport_ops *ops, const char *where) {
    *t = (pair){.ops = ops,
        .where = where,
        .env = {.base = event_base_new(), .staging_bytes = 1 << 17, .tls = tls, .tls_key_update_bytes = 1 << 20}};
    t->env.loopback = kvf_loopback_create();
    kvf_error err;
    if (ops->listen(&t->env, where, accepted, t, &t->listener, &err) != KVF_OK) fail_msg("%s", err.message);
}
static void pair_dial(pair *t) {
    kvf_error err;
    kvf_conn *c;
    if (t->ops->dial(&t->env, strchr(t->listener->address, ':') + 1, &c, &err) != KVF_OK) fail_msg("%s", err.message);
    watch(&t->caller, c);
    LOOP_UNTIL(t->env.base, t->caller.opened && t->called.conn);
}
static void pair_fini(pair *t) {
    if (t->caller.conn) t->caller.conn->ops->close(t->caller.conn);
    if (t->called.conn) t->called.conn->ops->close(t->called.conn);
    if (t->listener) t->ops->unlisten(t->listener);
    kvf_transport_env_fini(&t->env);
    kvf_loopback_destroy(t->env.loopback);
    event_base_free(t->env.base);
}

static const struct {
    const kvf_transport_ops *ops;
    const char *where;
} all[] = {{&kvf_transport_loopback, ""}, {&kvf_transport_shm, ""}, {&kvf_transport_tcp, "127.0.0.1:0"},
    {&kvf_transport_tls, "127.0.0.1:0"}};
#define FOR_ALL(t)                                                                                                     \
    for (size_t one = 0; one < KVF_COUNT_OF(all); one++)                                                               \
        for (pair t##_storage, *t = (pair_listen(&t##_storage, all[one].ops, all[one].where), &t##_storage); t;        \
             pair_fini(t), t = NULL)

/* A long stream in pieces of any size, the writer faster than the reader: nothing lost, nothing moved. */
static void stream_one_way(pair *t, peer *from, peer *to, uint64_t seed) {
    kvf_rng rng = {seed, 0};
    const uint64_t total = 6u << 20;
    uint64_t written = 0, read = 0;
    uint8_t chunk[20000], got[20000];
    bool asked = false;
    int rooms = from->roomy;
    while (read < total) {
        for (int burst = 0; burst < 8 && written < total; burst++) {
            uint64_t wish = 1 + kvf_rng_below(&rng, sizeof chunk);
            size_t len = (size_t)KVF_MIN(total - written, wish);
            if (asked && from->roomy == rooms) break;
            if (asked) assert_true(from->conn->ops->room(from->conn) >= sizeof chunk);
            asked = false;
            if (from->conn->ops->room(from->conn) < len) {
                from->conn->ops->want_room(from->conn, sizeof chunk);
                asked = true;
                rooms = from->roomy;
                break;
            }
            for (size_t i = 0; i < len; i++) chunk[i] = (uint8_t)((written + i) * 31 + ((written + i) >> 8));
            from->conn->ops->put(from->conn, chunk, len);
            written += len;
        }
        from->conn->ops->flush(from->conn);
        event_base_loop(t->env.base, EVLOOP_NONBLOCK);
        size_t ready = to->conn->ops->ready(to->conn);
        size_t wish = (size_t)kvf_rng_below(&rng, sizeof got) + 1, len = KVF_MIN(ready, wish);
        if (len == 0) continue;
        to->conn->ops->peek(to->conn, 0, got, len);
        for (size_t i = 0; i < len; i++) {
            uint8_t want = (uint8_t)((read + i) * 31 + ((read + i) >> 8));
            if (got[i] != want) fail_msg("byte %llu of the stream", (unsigned long long)(read + i));
        }
        to->conn->ops->consume(to->conn, len);
        read += len;
    }
    assert_int_equal(to->conn->ops->ready(to->conn), 0);
}
static void bytes_keep_their_order(void **state) {
    FOR_ALL(t) {
        pair_dial(t);
        stream_one_way(t, &t->caller, &t->called, 1);
        stream_one_way(t, &t->called, &t->caller, 2);
        assert_int_equal(t->caller.down + t->called.down, 0);
        assert_true(t->called.readable > 0 && t->caller.readable > 0);
    }
}

static void a_slow_reader_holds_the_writer_back(void **state) {
    FOR_ALL(t) {
        pair_dial(t);
        static uint8_t block[8192];
        kvf_conn *c = t->caller.conn;
        uint64_t written = 0;
        for (int idle = 0; idle < 50;) { /* until nothing moves any more */
            if (c->ops->room(c) >= sizeof block) {
                c->ops->put(c, block, sizeof block);
                written += sizeof block;
                idle = 0;
            } else {
                idle++;
            }
            c->ops->flush(c);
            event_base_loop(t->env.base, EVLOOP_NONBLOCK);
        }
        assert_in_range(written, t->env.staging_bytes - sizeof block, 64u << 20); /* bounded */
        c->ops->want_room(c, t->env.staging_bytes / 2);
        loop_rounds(t->env.base, 20);
        assert_int_equal(t->caller.roomy, 0);
        uint64_t read = 0;
        kvf_time_ns patience = kvf_os_now_ns() + LOOP_PATIENCE_NS;
        while (read < written) {
            assert_true(kvf_os_now_ns() < patience);
            size_t ready = t->called.conn->ops->ready(t->called.conn);
            t->called.conn->ops->consume(t->called.conn, ready);
            read += ready;
            event_base_loop(t->env.base, EVLOOP_NONBLOCK);
        }
        LOOP_UNTIL(t->env.base, t->caller.roomy > 0);
        assert_int_equal(t->caller.roomy, 1);
        assert_true(c->ops->room(c) >= t->env.staging_bytes / 2);
    }
}

static void the_end_is_told_once_after_the_last_bytes(void **state) {
    FOR_ALL(t) {
        pair_dial(t);
        kvf_conn *c = t->caller.conn;
        c->ops->put(c, "half a fra", 10);
        c->ops->flush(c);
        c->ops->close(c);
        t->caller.conn = NULL;
        LOOP_UNTIL(t->env.base, t->called.down);
        assert_int_equal(t->called.conn->ops->ready(t->called.conn), 10);
        loop_rounds(t->env.base, 20);
        assert_int_equal(t->called.down, 1);
        assert_int_equal(t->called.reason, KVF_ERR_PEER_LOST);
        assert_true(t->called.text[0] != 0);
    }
    FOR_ALL(t) {
        pair_dial(t);
        t->called.conn->ops->close(t->called.conn);
        t->called.conn = NULL;
        LOOP_UNTIL(t->env.base, t->caller.down);
        if (t->caller.conn->ops->room(t->caller.conn) >= 4) t->caller.conn->ops->put(t->caller.conn, "more", 4);
        t->caller.conn->ops->flush(t->caller.conn); /* into nothing */
        loop_rounds(t->env.base, 20);
        assert_int_equal(t->caller.down, 1);
    }
}

static void a_connection_may_be_closed_from_any_callback(void **state) {
    for (int here = 1; here <= 4; here++) {
        FOR_ALL(t) {
            t->caller.close_on = here == 1 || here == 3 ? here : 0;
            t->called.close_on = here == 2 || here == 4 ? here : 0;
            pair_dial(t);
            if (here == 2) {
                t->caller.conn->ops->put(t->caller.conn, "x", 1);
                t->caller.conn->ops->flush(t->caller.conn);
                LOOP_UNTIL(t->env.base, !t->called.conn && t->caller.down);
            } else if (here == 3) {
                t->caller.conn->ops->want_room(t->caller.conn, 1);
                LOOP_UNTIL(t->env.base, !t->caller.conn && t->called.down);
            } else if (here == 4) {
                t->caller.conn->ops->close(t->caller.conn);
                t->caller.conn = NULL;
                LOOP_UNTIL(t->env.base, !t->called.conn);
            } else {
                LOOP_UNTIL(t->env.base, !t->caller.conn && t->called.down);
            }
        }
    }
}

static void no_descriptor_is_left_behind(void **state) {
    int before = open_descriptors();
    for (int n = 0; n < 20; n++) FOR_ALL(t) pair_dial(t);
    for (int n = 0; n < 5; n++) FOR_ALL(t) { /* closed before it was open */
            kvf_error err;
            kvf_conn *c;
            assert_int_equal(t->ops->dial(&t->env, strchr(t->listener->address, ':') + 1, &c, &err), KVF_OK);
            c->ops->close(c);
            loop_rounds(t->env.base, 10);
        }
    assert_int_equal(open_descriptors(), before);
}

static void calling_nobody_is_told(void **state) {
    FOR_ALL(t) {
        char address[KVF_ADDRESS_MAX];
        memcpy(address, t->listener->address, sizeof address);
        t->ops->unlisten(t->listener);
        t->listener = NULL;
        kvf_error err = {0};
        kvf_conn *c = NULL;
        if (t->ops->dial(&t->env, strchr(address, ':') + 1, &c, &err) != KVF_OK) {
            assert_true(err.message[0] != 0);
            continue;
        }
        watch(&t->caller, c);
        LOOP_UNTIL(t->env.base, t->caller.down);
        assert_int_equal(t->caller.reason, KVF_ERR_PEER_LOST);
        assert_non_null(strstr(t->caller.text, "refused"));
    }
}

/* ---------------------------------------------------------------- shm */
static uint64_t *word_at(shm_ring *r, size_t at) { return (uint64_t *)(void *)(r->map + at); }

static void hostile_counters_never_lead_outside(void **state) {
    static const uint64_t lies[] = {UINT64_MAX, 1ull << 63, (64u << 10) + 1, 1ull << 32};
    for (size_t i = 0; i < KVF_COUNT_OF(lies); i++) {
        shm_ring reader, writer;
        int fd;
        kvf_error err;
        assert_int_equal(shm_ring_create(&reader, 64 << 10, &fd), KVF_OK);
        assert_int_equal(shm_ring_open(&writer, fd, &err), KVF_OK);
        close(fd);
        *word_at(&writer, 64) = lies[i];
        assert_int_equal(shm_ring_ready(&reader), 0);
        assert_true(reader.broken);
        *word_at(&writer, 64) = 10; /* too late */
        assert_int_equal(shm_ring_ready(&reader), 0);
        *word_at(&reader, 128) = lies[i];
        assert_int_equal(shm_ring_room(&writer), 0);
        assert_true(writer.broken);
        shm_ring_fini(&reader);
        shm_ring_fini(&writer);
    }
}

static void memory_that_could_shrink_is_refused(void **state) {
    shm_ring ring;
    kvf_error err;
    int fd = memfd_create("x", MFD_CLOEXEC | MFD_ALLOW_SEALING);
    assert_int_equal(ftruncate(fd, 4096 + 65536), 0);
    assert_int_equal(shm_ring_open(&ring, fd, &err), KVF_ERR_FORMAT); /* not sealed */
    assert_int_equal(fcntl(fd, F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL), 0);
    assert_int_equal(shm_ring_open(&ring, fd, &err), KVF_ERR_FORMAT); /* no head */
    close(fd);
    fd = memfd_create("x", MFD_CLOEXEC | MFD_ALLOW_SEALING);
    assert_int_equal(ftruncate(fd, 4096 + 65536 + 1), 0);
    assert_int_equal(fcntl(fd, F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL), 0);
    assert_int_equal(shm_ring_open(&ring, fd, &err), KVF_ERR_FORMAT); /* no power of two */
    close(fd);
    fd = open("/dev/null", O_RDWR | O_CLOEXEC);
    assert_int_equal(shm_ring_open(&ring, fd, &err), KVF_ERR_FORMAT);
    close(fd);
    assert_int_equal(shm_ring_create(&ring, 64 << 10, &fd), KVF_OK);
    assert_int_not_equal(ftruncate(fd, 0), 0); /* ours cannot shrink */
    close(fd);
    shm_ring_fini(&ring);
}

static int raw_shm(const pair *t, int fds[3]) {
    struct sockaddr_un a = {.sun_family = AF_UNIX};
    const char *name = strchr(t->listener->address, ':') + 1;
    memcpy(a.sun_path + 1, name, strlen(name));
    int fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
    assert_int_equal(
        connect(fd, (struct sockaddr *)&a, (socklen_t)(offsetof(struct sockaddr_un, sun_path) + 1 + strlen(name))), 0);
    LOOP_UNTIL(t->env.base, t->called.conn);
    char text[8];
    union {
        struct cmsghdr align;
        char bytes[CMSG_SPACE(3 * sizeof(int))];
    } control;
    struct iovec v = {text, sizeof text};
    struct msghdr m = {.msg_iov = &v, .msg_iovlen = 1, .msg_control = &control, .msg_controllen = sizeof control};
    assert_int_equal(recvmsg(fd, &m, 0), 8);
    memcpy(fds, CMSG_DATA(CMSG_FIRSTHDR(&m)), 3 * sizeof(int));
    return fd;
}

static void a_hostile_caller_loses_its_link_only(void **state) {
    for (int how = 0; how < 2; how++) {
        pair t;
        pair_listen(&t, &kvf_transport_shm, "");
        int fds[3], fd = raw_shm(&t, fds);
        if (how == 0) { /* a counter out of range */
            uint64_t one = 1;
            uint8_t *map = mmap(NULL, 4096, PROT_READ | PROT_WRITE, MAP_SHARED, fds[0], 0);
            assert_true(map != MAP_FAILED);
            *(uint64_t *)(void *)(map + 64) = 1ull << 40;
            assert_int_equal(write(fds[1], &one, 8), 8);
            munmap(map, 4096);
        } else { /* bytes on the socket, where only its end says something */
            assert_int_equal(write(fd, "x", 1), 1);
        }
        LOOP_UNTIL(t.env.base, t.called.down);
        assert_int_equal(t.called.reason, KVF_ERR_FORMAT);
        for (int i = 0; i < 3; i++) close(fds[i]);
        close(fd);
        loop_rounds(t.env.base, 20);
        assert_int_equal(t.called.down, 1);
        pair_fini(&t);
    }
}

/* A listener that is none of ours: whatever it sends, the caller ends the link. */
static void a_hostile_listener_is_left(void **state) {
    for (int how = 0; how < 4; how++) {
        struct sockaddr_un a = {.sun_family = AF_UNIX};
        char name[64];
        snprintf(name, sizeof name, "kvferry-test-%d-%llu", how, (unsigned long long)kvf_os_random_u64());
        memcpy(a.sun_path + 1, name, strlen(name));
        int fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
        assert_int_equal(
            bind(fd, (struct sockaddr *)&a, (socklen_t)(offsetof(struct sockaddr_un, sun_path) + 1 + strlen(name))), 0);
        assert_int_equal(listen(fd, 4), 0);
        int before = open_descriptors();
        pair t = {.env = {.base = event_base_new(), .staging_bytes = 1 << 17}};
        kvf_error err;
        kvf_conn *c;
        assert_int_equal(kvf_transport_shm.dial(&t.env, name, &c, &err), KVF_OK);
        watch(&t.caller, c);
        int peer_fd = accept(fd, NULL, NULL);
        union {
            struct cmsghdr align;
            char bytes[CMSG_SPACE(8 * sizeof(int))];
        } control;
        memset(&control, 0, sizeof control);
        int count = how == 1 ? 8 : 3, fds[8];
        for (int i = 0; i < 8; i++) fds[i] = fd;
        char text[8] = "KVFS\1\0\0";
        if (how == 2) text[0] = 'X';
        struct iovec v = {text, sizeof text};
        struct msghdr m = {.msg_iov = &v, .msg_iovlen = 1};
        if (how != 3) {
            m.msg_control = &control;
            m.msg_controllen = CMSG_SPACE((size_t)count * sizeof(int));
            struct cmsghdr *h = CMSG_FIRSTHDR(&m);
            h->cmsg_level = SOL_SOCKET;
            h->cmsg_type = SCM_RIGHTS;
            h->cmsg_len = CMSG_LEN((size_t)count * sizeof(int));
            memcpy(CMSG_DATA(h), fds, (size_t)count * sizeof(int));
        }
        assert_int_equal(sendmsg(peer_fd, &m, 0), 8);
        LOOP_UNTIL(t.env.base, t.caller.down);
        assert_int_equal(t.caller.reason, KVF_ERR_FORMAT);
        close(peer_fd);
        c->ops->close(c);
        event_base_free(t.env.base);
        assert_int_equal(open_descriptors(), before);
        close(fd);
    }
}

/* ---------------------------------------------------------------- tcp */
static void addresses_are_taken_apart_and_put_together(void **state) {
    static const struct {
        const char *text, *host;
        int port;
    } good[] = {{"127.0.0.1:7001", "127.0.0.1", 7001}, {"[::1]:7001", "::1", 7001}, {"[fe80::1%lo]:1", "fe80::1%lo", 1},
        {"localhost:0", "localhost", 0}, {":65535", "", 65535}, {"decode-0.svc:80", "decode-0.svc", 80}};
    static const char *const bad[] = {"", "host", "::1", "::1:7001", "[::1]", "[::1:7001", "host:", "host:-1",
        "host:65536", "host:80x", "host: 80", "[::1]x:80", "host:99999999999999999999"};
    char host[KVF_ADDRESS_MAX], back[KVF_ADDRESS_MAX], want[KVF_ADDRESS_MAX];
    uint16_t port;
    kvf_error err;
    for (size_t i = 0; i < KVF_COUNT_OF(good); i++) {
        assert_int_equal(kvf_address_split(good[i].text, host, &port, &err), KVF_OK);
        assert_string_equal(host, good[i].host);
        assert_int_equal(port, good[i].port);
        assert_int_equal(kvf_address_join("tcp", host, port, back), KVF_OK);
        snprintf(want, sizeof want, "tcp:%s", good[i].text);
        assert_string_equal(back, want);
    }
    for (size_t i = 0; i < KVF_COUNT_OF(bad); i++) {
        assert_int_equal(kvf_address_split(bad[i], host, &port, &err), KVF_ERR_INVALID);
        assert_non_null(strstr(err.message, bad[i]));
    }
    char many[300];
    memset(many, 'a', sizeof many);
    memcpy(many + 290, ":1", 3);
    assert_int_equal(kvf_address_split(many, host, &port, &err), KVF_ERR_INVALID);
}

static void names_and_ipv6_are_reached(void **state) {
    pair t;
    pair_listen(&t, &kvf_transport_tcp, "127.0.0.1:0");
    kvf_error err;
    kvf_conn *c;
    char name[64];
    snprintf(
        name, sizeof name, "localhost:%s", strrchr(t.listener->address, ':') + 1); /* ::1 refuses, 127.0.0.1 answers */
    assert_int_equal(kvf_transport_tcp.dial(&t.env, name, &c, &err), KVF_OK);
    watch(&t.caller, c);
    LOOP_UNTIL(t.env.base, t.caller.opened || t.caller.down);
    if (t.caller.down) fail_msg("%s", t.caller.text);
    pair_fini(&t);

    int probe = socket(AF_INET6, SOCK_STREAM | SOCK_CLOEXEC, 0);
    struct sockaddr_in6 six = {.sin6_family = AF_INET6, .sin6_addr = IN6ADDR_LOOPBACK_INIT};
    bool have_six = probe >= 0 && bind(probe, (struct sockaddr *)&six, sizeof six) == 0;
    if (probe >= 0) close(probe);
    if (!have_six) {
        print_message("no IPv6 loopback here: that half was not run\n");
        return;
    }
    pair_listen(&t, &kvf_transport_tcp, "[::1]:0");
    assert_memory_equal(t.listener->address, "tcp:[::1]:", 10);
    pair_dial(&t);
    pair_fini(&t);
}

static void a_dial_may_be_given_up_at_any_moment(void **state) {
    int before = open_descriptors();
    for (int rounds = 0; rounds < 4; rounds++) {
        pair t = {.env = {.base = event_base_new(), .staging_bytes = 1 << 17}};
        kvf_error err;
        kvf_conn *c;
        static const char *const targets[] = {"127.0.0.1:1", "localhost:1", "no-such-host.invalid:1", "[::1]:1"};
        for (size_t i = 0; i < KVF_COUNT_OF(targets); i++) {
            assert_int_equal(kvf_transport_tcp.dial(&t.env, targets[i], &c, &err), KVF_OK);
            loop_rounds(t.env.base, rounds);
            c->ops->close(c);
        }
        loop_rounds(t.env.base, 5);
        kvf_transport_env_fini(&t.env);
        loop_rounds(t.env.base, 5);
        event_base_free(t.env.base);
    }
    assert_int_equal(open_descriptors(), before);
}

static int setup(void **state) {
    certs_open(&folder);
    certs_authority(&folder, "ca");
    certs_simple(&folder, "ca", "d1", "DNS:d1");
    tls = store_of(&folder, "d1", "ca");
    return 0;
}
static void an_empty_ring_begins_again(void **state) {
    enum { SIZE = 4096, PIECE = 100 };
    bytes_ring r;
    uint8_t in[PIECE], out[PIECE];
    memset(in, 7, sizeof in);
    assert_true(bytes_init(&r, SIZE));
    memset(r.data, 0, SIZE);
    for (int i = 0; i < 100; i++) {
        bytes_put(&r, in, PIECE);
        bytes_peek(&r, 0, out, PIECE);
        assert_memory_equal(in, out, PIECE);
        bytes_consume(&r, PIECE);
    }
    assert_int_equal(r.data[PIECE - 1], 7);
    assert_int_equal(r.data[PIECE], 0); /* never touched */
    bytes_fini(&r);
}

static int teardown(void **state) {
    kvf_tls_store_close(tls);
    certs_close(&folder);
    return 0;
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(bytes_keep_their_order),
        cmocka_unit_test(an_empty_ring_begins_again),
        cmocka_unit_test(a_slow_reader_holds_the_writer_back),
        cmocka_unit_test(the_end_is_told_once_after_the_last_bytes),
        cmocka_unit_test(a_connection_may_be_closed_from_any_callback),
        cmocka_unit_test(no_descriptor_is_left_behind),
        cmocka_unit_test(calling_nobody_is_told),
        cmocka_unit_test(hostile_counters_never_lead_outside),
        cmocka_unit_test(memory_that_could_shrink_is_refused),
        cmocka_unit_test(a_hostile_caller_loses_its_link_only),
        cmocka_unit_test(a_hostile_listener_is_left),
        cmocka_unit_test(addresses_are_taken_apart_and_put_together),
        cmocka_unit_test(names_and_ipv6_are_reached),
        cmocka_unit_test(a_dial_may_be_given_up_at_any_moment),
    };
    return cmocka_run_group_tests(tests, setup, teardown);
}
