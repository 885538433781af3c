/* The endpoint over every transport: pairing, frames and pages in order, back-pressure, the ends of links, hostile
 * callers. With KVF_TEST_LANES the pages lie on the fake device, and the same is asked of every lane. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>
#include <arpa/inet.h>
#include <inttypes.h>
#include <netinet/in.h>
#include <signal.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>
#include "endpoint_world.h"
#include "kvf/log.h"

static world w;

static void both_sides_learn_the_same_of_a_link(void **state) {
    FOR_ALL(kind) {
        world_pair(&w, kind);
        assert_true(w.p.outgoing && !w.d.outgoing);
        assert_string_equal(w.p.peer, "d1");
        assert_string_equal(w.d.peer, "p1");
        assert_int_equal(w.p.peer_epoch, 22);
        assert_int_equal(w.d.peer_epoch, 11);
        assert_string_equal(w.p.transport, transport_of(kind));
        assert_string_equal(w.d.transport, transport_of(kind));
        assert_memory_equal(w.p.nonce, w.d.nonce, 16);
        uint8_t first[16];
        memcpy(first, w.p.nonce, 16);
        kvf_link_id link, old = w.p.link;
        kvf_endpoint_close(w.p.e, old);
        LOOP_UNTIL(w.base, w.d.downs == 1);
        assert_int_equal(w.p.downs, 0); /* closed by us: no callback */
        assert_int_equal(call(&w, "d1", 22, &link), KVF_OK);
        LOOP_UNTIL(w.base, w.p.ups == 2 && w.d.ups == 2);
        assert_int_not_equal(link, old);
        assert_memory_not_equal(first, w.p.nonce, 16);
        assert_int_equal(kvf_endpoint_send_frame(w.p.e, old, &(kvf_frame){.kind = KVF_FRAME_RENEW}), KVF_ERR_NOT_FOUND);
        assert_false(kvf_endpoint_has_room(w.p.e, old));
        world_end(&w);
    }
}

static void frames_arrive_as_they_were_said(void **state) {
    FOR_ALL(kind) {
        world_pair(&w, kind);
        static uint8_t payload[KVF_FRAME_COMMIT_PAYLOAD_MAX];
        for (size_t i = 0; i < sizeof payload; i++) payload[i] = (uint8_t)(i * 7);
        kvf_frame f = {.kind = KVF_FRAME_COMMIT,
            .commit = {.grant = 5, .page_count = 6, .digest = 7, .payload = {payload, sizeof payload}}};
        assert_int_equal(kvf_endpoint_send_frame(w.p.e, w.p.link, &f), KVF_OK);
        LOOP_UNTIL(w.base, w.d.frames == 1); /* without flush: the loop does it */
        assert_true(w.d.last.kind == KVF_FRAME_COMMIT && w.d.last.commit.digest == 7);
        assert_memory_equal(w.d.payload, payload, sizeof payload);
        kvf_page_name names[KVF_FRAME_MISSING_MAX];
        for (uint32_t i = 0; i < KVF_FRAME_MISSING_MAX; i++) names[i] = (kvf_page_name){i, i + 1};
        f = (kvf_frame){
            .kind = KVF_FRAME_MISSING, .missing = {.grant = 5, .count = KVF_FRAME_MISSING_MAX, .pages = names}};
        assert_int_equal(kvf_endpoint_send_frame(w.d.e, w.d.link, &f), KVF_OK);
        kvf_endpoint_flush(w.d.e);
        LOOP_UNTIL(w.base, w.p.frames == 1);
        assert_memory_equal(w.p.names, names, sizeof names);
        world_end(&w);
    }
}

static void thousands_of_pages_arrive_whole_and_in_order(void **state) {
    FOR_ALL(kind) {
        world_pair(&w, kind);
        static uint8_t page[PAGE_BYTES];
        int refused = 0;
        for (uint32_t n = 0; n < PAGES;) {
            kvf_page_header h = {.grant = 1, .block = n, .layer = n % 30, .len_bytes = PAGE_BYTES};
            uint32_t crc = 0;
            fill(page, n);
            int rooms = w.p.rooms;
            if (send_page(&w, &h, page, &crc) == KVF_AGAIN) {
                kvf_endpoint_flush(w.p.e);
                refused++;
                LOOP_UNTIL(w.base, w.p.rooms > rooms);
#ifndef KVF_TEST_LANES /* frames of pages that had been packed may have taken it already */
                assert_true(kvf_endpoint_has_room(w.p.e, w.p.link));
#endif
                continue;
            }
            assert_int_equal(crc, kvf_page_crc(&h, 22, page));
            memset(page, 0xee, sizeof page); /* KVF_OK: ours again */
            if (n % 16 == 0) kvf_endpoint_flush(w.p.e);
            n++;
        }
        LOOP_UNTIL(w.base, w.d.pages + w.d.pages_bad >= PAGES);
        assert_int_equal(w.d.pages, PAGES);
        assert_int_equal(w.d.pages_bad, 0);
        assert_true(refused > 0); /* 120 MB went through 4 MB of staging */
        world_end(&w);
    }
}

/* PD-08: whatever differs is named with both values on both sides, and no link comes up. */
static void pairs_that_do_not_fit_are_refused_with_both_values(void **state) {
    for (int field = 0; field < 17; field++) {
        FOR_ALL(kind) {
            world_open(&w, kind);
            kvf_identity other = model;
            const char *name = "", *mine = NULL, *yours = NULL;
            switch (field) {
#define U32(n, f, v)                                                                                                   \
    case n:                                                                                                            \
        other.f = v;                                                                                                   \
        name = #f;                                                                                                     \
        mine = NULL;                                                                                                   \
        break
                U32(0, block_tokens, 32);
                U32(1, layers, 31);
                U32(2, heads, 8);
                U32(3, kv_heads, 9);
                U32(4, head_dim, 128);
                U32(5, vocab, 300);
                U32(6, page_bytes, 4096);
                U32(7, context_max, 2048);
                U32(8, layout, 2);
                U32(9, rope_dims, 32);
                U32(10, rope_base_bits, 0x461c4000);
                U32(11, rope_style, 0);
                U32(12, wire_version, 2);
#undef U32
            case 13:
                other.weights_hash[1] = 99;
                name = "weights_hash";
                mine = "00000000000000020000000000000001";
                break;
            case 14:
                other.tokenizer_hash[0] = 99;
                name = "tokenizer_hash";
                mine = "00000000000000040000000000000003";
                break;
            case 15:
                snprintf(other.kv_type, sizeof other.kv_type, "f32");
                name = "kv_type";
                mine = "f16";
                yours = "f32";
                break;
            default:
                snprintf(other.numerics, sizeof other.numerics, "other");
                name = "numerics";
                mine = model.numerics;
                yours = "other";
            }
            kvf_endpoint_options o = options_for(&w, &w.p, "p1", 11);
            o.identity = &other;
            node_start(&w.p, &o);
            o = options_for(&w, &w.d, "d1", 22);
            node_start(&w.d, &o);
            kvf_link_id link;
            assert_int_equal(call(&w, "d1", 22, &link), KVF_OK);
            LOOP_UNTIL(w.base, w.p.downs && w.d.downs);
            loop_rounds(w.base, 10);
            assert_int_equal(w.p.downs, 1);
            assert_int_equal(w.d.downs, 1);
            assert_int_equal(w.p.ups + w.d.ups, 0);
            assert_int_equal(w.p.reason, KVF_ERR_MISMATCH);
            assert_int_equal(w.d.reason, KVF_ERR_MISMATCH);
            char expected[64], a[64], b[64];
            assert_string_equal(kvf_identity_differs(&model, &other, a, b), name);
            if (mine) assert_string_equal(a, mine);
            if (yours) assert_string_equal(b, yours);
            snprintf(expected, sizeof expected, "%s ", name);
            const node *sides[] = {&w.p, &w.d};
            for (int i = 0; i < 2; i++)
                if (!strstr(sides[i]->text, expected) || !strstr(sides[i]->text, a) || !strstr(sides[i]->text, b))
                    fail_msg("\"%s\" does not name %s, %s and %s", sides[i]->text, name, a, b);
            world_end(&w);
        }
    }
}

static void unequal_numerics_pair_only_where_both_allow_it(void **state) {
    for (int allowed = 0; allowed < 4; allowed++) {
        world_open(&w, "tcp");
        kvf_identity other = model;
        snprintf(other.numerics, sizeof other.numerics, "other");
        kvf_endpoint_options o = options_for(&w, &w.p, "p1", 11);
        o.identity = &other;
        o.allow_unequal_numerics = allowed & 1;
        node_start(&w.p, &o);
        o = options_for(&w, &w.d, "d1", 22);
        o.allow_unequal_numerics = allowed >> 1;
        node_start(&w.d, &o);
        kvf_link_id link;
        assert_int_equal(call(&w, "d1", 22, &link), KVF_OK);
        LOOP_UNTIL(w.base, allowed == 3 ? w.p.ups && w.d.ups : w.p.downs);
        assert_int_equal(w.p.ups, allowed == 3);
        world_end(&w);
    }
}

static void another_node_or_an_older_epoch_is_refused(void **state) {
    FOR_ALL(kind) {
        world_start(&w, kind);
        kvf_link_id link;
        assert_int_equal(call(&w, "d2", 22, &link), KVF_OK);
        LOOP_UNTIL(w.base, w.p.downs == 1);
        assert_int_equal(w.p.reason, KVF_ERR_MISMATCH);
        assert_true(strstr(w.p.text, "d1") && strstr(w.p.text, "d2"));
        assert_int_equal(call(&w, "d1", 21, &link), KVF_OK);
        LOOP_UNTIL(w.base, w.p.downs == 2);
        assert_int_equal(w.p.reason, KVF_ERR_STALE);
        assert_true(strstr(w.p.text, "0000000000000015") && strstr(w.p.text, "0000000000000016"));
        assert_int_equal(w.p.ups + w.d.ups, 0);
        world_end(&w);
    }
}

static void calls_that_cannot_work_are_told_once(void **state) {
    world_start(&w, "tcp");
    kvf_link_id link;
    assert_int_equal(kvf_endpoint_connect(w.p.e, "d1", 22, "127.0.0.1:1", "", 0, &link), KVF_ERR_INVALID);
    assert_int_equal(kvf_endpoint_connect(w.p.e, "d1", 22, "tcp:127.0.0.1", "", 0, &link), KVF_ERR_INVALID);
    assert_int_equal(kvf_endpoint_connect(w.p.e, "d1", 22, "", "", 0, &link), KVF_ERR_INVALID);
    assert_int_equal(kvf_endpoint_connect(w.p.e, "", 22, "tcp:127.0.0.1:1", "", 0, &link), KVF_ERR_INVALID);
    assert_int_equal(w.p.downs, 0);
    assert_int_equal(kvf_endpoint_connect(w.p.e, "d1", 22, "tcp:127.0.0.1:1", "", 0, &link), KVF_OK);
    LOOP_UNTIL(w.base, w.p.downs == 1);
    assert_int_equal(w.p.reason, KVF_ERR_PEER_LOST);
    /* The local address of a node that is gone: its other one is tried at once. */
    assert_int_equal(
        kvf_endpoint_connect(w.p.e, "d1", 22, kvf_endpoint_address(w.d.e), "shm:kvferry-none", kvf_os_host_id(), &link),
        KVF_OK);
    LOOP_UNTIL(w.base, w.p.ups == 1);
    assert_string_equal(w.p.transport, "tcp");
    /* Of another host: shm is not tried. */
    assert_int_equal(kvf_endpoint_connect(w.p.e, "d1", 22, kvf_endpoint_address(w.d.e),
                         kvf_endpoint_local_address(w.d.e), kvf_os_host_id() + 1, &link),
        KVF_OK);
    LOOP_UNTIL(w.base, w.p.ups == 2);
    assert_string_equal(w.p.transport, "tcp");
    world_end(&w);
}

static void endpoints_that_could_not_be_reached_are_not_made(void **state) {
    world_open(&w, "tcp");
    static const char *const bad[] = {"0.0.0.0:0", "[::]:0", ":0", "nonsense", "127.0.0.1:70000", "192.0.2.1:0"};
    for (size_t i = 0; i < KVF_COUNT_OF(bad); i++) {
        kvf_endpoint_options o = options_for(&w, &w.p, "p1", 11);
        kvf_error err = {0};
        o.listen_tcp = bad[i];
        assert_true(kvf_endpoint_create(&o, &w.p.e, &err) < 0);
        assert_true(err.message[0] != 0);
    }
    kvf_endpoint_options o = options_for(&w, &w.p, "p1", 11);
    o.listen_tcp = "0.0.0.0:0";
    o.advertise_host = "node-7.example";
    node_start(&w.p, &o);
    assert_memory_equal(kvf_endpoint_address(w.p.e), "tcp:node-7.example:", 19);
    w.d.e = NULL;
    world_end(&w);
}

/* ---------------------------------------------------------------- callers that are none of ours */
typedef struct {
    kvf_conn *conn;
    kvf_transport_env env;
    int opened, down;
} stranger;
static void s_open(void *self) { ((stranger *)self)->opened++; }
static void s_down(void *self, kvf_status reason, const char *text) {
    (void)reason;
    (void)text;
    ((stranger *)self)->down++;
}
static void s_ignore(void *self) { (void)self; }
static void stranger_call(stranger *s) {
    *s = (stranger){.env = {.base = w.base, .staging_bytes = 1 << 17, .loopback = w.hub, .tls = tls}};
    const char *kind = stream_of(w.kind);
    const kvf_transport_ops *ops = strcmp(kind, "tcp") == 0   ? &kvf_transport_tcp
                                   : strcmp(kind, "tls") == 0 ? &kvf_transport_tls
                                   : strcmp(kind, "shm") == 0 ? &kvf_transport_shm
                                                              : &kvf_transport_loopback;
    bool tcp = ops == &kvf_transport_tcp || ops == &kvf_transport_tls;
    const char *address = tcp                         ? kvf_endpoint_address(w.d.e)
                          : ops == &kvf_transport_shm ? kvf_endpoint_local_address(w.d.e)
                                                      : "loopback:d1";
    kvf_error err;
    if (ops->dial(&s->env, strchr(address, ':') + 1, &s->conn, &err) != KVF_OK) fail_msg("%s", err.message);
    s->conn->events = (kvf_conn_events){
        .self = s, .on_open = s_open, .on_down = s_down, .on_readable = s_ignore, .on_room = s_ignore};
    LOOP_UNTIL(w.base, s->opened);
}
static void stranger_say(stranger *s, const void *data, size_t len) {
    s->conn->ops->put(s->conn, data, len);
    s->conn->ops->flush(s->conn);
}
static size_t hello_of(uint64_t epoch, uint64_t generation, uint8_t out[512]) {
    kvf_frame f = {.kind = KVF_FRAME_HELLO,
        .hello = {
            .node = "p9", .epoch = epoch, .peer = "d1", .peer_epoch = 22, .generation = generation, .identity = model}};
    return kvf_frame_encode(&f, out, 512);
}
static size_t hello_bytes(uint8_t out[512]) { return hello_of(99, 1, out); }
static void stranger_pair(stranger *s) {
    uint8_t hello[512];
    stranger_call(s);
    stranger_say(s, hello, hello_bytes(hello));
    LOOP_UNTIL(w.base, w.d.ups == 1);
}

static void stranger_hello(stranger *s, uint64_t epoch, uint64_t generation) {
    uint8_t hello[512];
    stranger_call(s);
    stranger_say(s, hello, hello_of(epoch, generation, hello));
}

/* What a cut or frozen connection still had under way is not heard once its caller has called again. */
static void the_newest_connection_of_a_caller_ends_its_older_ones(void **state) {
    FOR_ALL(kind) {
        world_start(&w, kind);
        stranger old, young, late, next;
        uint8_t bytes[64];
        kvf_frame cancel = {.kind = KVF_FRAME_CANCEL, .cancel = {.grant = 1}};
        size_t len = kvf_frame_encode(&cancel, bytes, sizeof bytes);
        stranger_hello(&old, 99, 4);
        LOOP_UNTIL(w.base, w.d.ups == 1);
        stranger_hello(&young, 99, 5);
        LOOP_UNTIL(w.base, w.d.ups == 2 && old.down == 1);
        assert_int_equal(w.d.downs, 1);
        assert_int_equal(w.d.reason, KVF_ERR_STALE);
        assert_non_null(strstr(w.d.text, "newer connection"));
        stranger_say(&old, bytes, len);
        stranger_hello(&late, 99, 4); /* made before the newer one, arrives after it */
        LOOP_UNTIL(w.base, w.d.downs == 2);
        assert_int_equal(w.d.reason, KVF_ERR_STALE);
        assert_true(strstr(w.d.text, "generation") && strstr(w.d.text, "5") && strstr(w.d.text, "4"));
        stranger_hello(&next, 99, 6);
        LOOP_UNTIL(w.base, w.d.ups == 3 && young.down == 1);
        stranger_say(&next, bytes, len);
        LOOP_UNTIL(w.base, w.d.frames >= 1);
        loop_rounds(w.base, 20);
        assert_int_equal(w.d.frames, 1); /* of the newest only */
        assert_int_equal(w.d.ups, 3);
        stranger *all[] = {&old, &young, &late, &next};
        for (int i = 0; i < 4; i++) all[i]->conn->ops->close(all[i]->conn);
        world_end(&w);
    }
}

/* A process of the same name has started; the old one, thawed, does not get its place back while the new one is here.
 */
static void a_new_process_of_a_node_ends_the_links_of_the_old_one(void **state) {
    FOR_ALL(kind) {
        world_start(&w, kind);
        stranger old, young, thawed, after;
        stranger_hello(&old, 99, 7);
        LOOP_UNTIL(w.base, w.d.ups == 1);
        stranger_hello(&young, 100, 1);
        LOOP_UNTIL(w.base, w.d.ups == 2 && old.down == 1);
        assert_int_equal(w.d.reason, KVF_ERR_STALE);
        assert_non_null(strstr(w.d.text, "another process"));
        stranger_hello(&thawed, 99, 8);
        LOOP_UNTIL(w.base, w.d.downs == 2);
        assert_int_equal(w.d.reason, KVF_ERR_STALE);
        assert_true(strstr(w.d.text, "caller_epoch") && strstr(w.d.text, "0000000000000063"));
        assert_int_equal(w.d.ups, 2);
        assert_int_equal(young.down, 0);
        /* Were it the other way round, the router would have told: nobody is shut out for ever. */
        young.conn->ops->close(young.conn);
        LOOP_UNTIL(w.base, w.d.downs == 3);
        stranger_hello(&after, 99, 9);
        LOOP_UNTIL(w.base, w.d.ups == 3);
        old.conn->ops->close(old.conn);
        thawed.conn->ops->close(thawed.conn);
        after.conn->ops->close(after.conn);
        world_end(&w);
    }
}

static void hostile_bytes_end_the_link_with_a_reason(void **state) {
    for (int how = 0; how < 9; how++) {
        FOR_ALL(kind) {
            world_start(&w, kind);
            stranger s;
            uint8_t bytes[512];
            kvf_frame page = {.kind = KVF_FRAME_PAGE, .page = {.grant = 1, .len_bytes = PAGE_BYTES}};
            kvf_frame renew = {.kind = KVF_FRAME_RENEW}, opened = {.kind = KVF_FRAME_OPENED};
            size_t len = 0;
            kvf_status reason = KVF_ERR_FORMAT;
            if (how >= 5)
                stranger_pair(&s);
            else
                stranger_call(&s);
            switch (how) {
            case 0: /* another protocol */ memcpy(bytes, "GET / HTTP/1.1\r\n\r\n", len = 18); break;
            case 1: /* before HELLO */
            case 5:
                len = kvf_frame_encode(how == 1 ? &renew : &opened, bytes, sizeof bytes);
                break; /* of the other direction */
            case 2: /* a length of 4 GB */
                len = hello_bytes(bytes);
                kvf_put_le32(bytes, UINT32_MAX);
                break;
            case 3: /* a bit turned on the way */
                len = hello_bytes(bytes);
                bytes[20] ^= 1;
                reason = KVF_ERR_CORRUPT;
                break;
            case 4: /* another wire version */
                len = hello_bytes(bytes);
                bytes[5] = 9;
                reason = KVF_ERR_MISMATCH;
                break;
            case 6: /* longer than any page */
                page.page.len_bytes = PAGE_BYTES + 1;
                len = kvf_frame_encode(&page, bytes, sizeof bytes);
                break;
            case 7: /* head and page header disagree about the length */
                len = kvf_frame_encode(&page, bytes, sizeof bytes);
                kvf_put_le32(bytes, KVF_FRAME_PAGE_BYTES - KVF_FRAME_HEAD_BYTES + 16);
                kvf_put_le32(bytes + 8,
                    kvf_crc32c(kvf_crc32c(0, bytes, 8), bytes + KVF_FRAME_HEAD_BYTES, len - KVF_FRAME_HEAD_BYTES));
                memset(bytes + len, 0, 16);
                len += 16;
                break;
            default: /* HELLO twice */ len = hello_bytes(bytes);
            }
            stranger_say(&s, bytes, len);
            LOOP_UNTIL(w.base, w.d.downs == 1);
            assert_int_equal(w.d.reason, reason);
            assert_true(w.d.text[0] != 0);
            if (how == 4)
                assert_true(strstr(w.d.text, "wire_version") && strstr(w.d.text, "9") && strstr(w.d.text, "1"));
            if (how != 4) LOOP_UNTIL(w.base, s.down == 1); /* (a refused one may read the refusal first) */
            s.conn->ops->close(s.conn);
            loop_rounds(w.base, 20);
            assert_int_equal(w.d.downs, 1);
            assert_int_equal(w.d.frames + w.d.pages + w.d.pages_bad, 0);
            world_end(&w);
        }
    }
}

static void spoilt_pages_are_told_and_refused_ones_skipped(void **state) {
    FOR_ALL(kind) {
        world_start(&w, kind);
        stranger s;
        stranger_pair(&s);
        static uint8_t bytes[KVF_FRAME_PAGE_BYTES + PAGE_BYTES];
        for (uint32_t n = 0; n < 4; n++) {
            kvf_frame page = {.kind = KVF_FRAME_PAGE, .page = {.grant = 1, .block = n, .len_bytes = PAGE_BYTES}};
            fill(bytes + KVF_FRAME_PAGE_BYTES, n);
            page.page.crc = kvf_page_crc(
                &page.page, n == 2 ? 23 : 22, bytes + KVF_FRAME_PAGE_BYTES); /* 2: meant for another epoch */
            kvf_frame_encode(&page, bytes, sizeof bytes);
            if (n == 1) bytes[KVF_FRAME_PAGE_BYTES + 77] ^= 4;
            stranger_say(&s, bytes, sizeof bytes);
        }
        LOOP_UNTIL(w.base, w.d.pages + w.d.pages_bad == 4);
        assert_int_equal(w.d.pages_bad, 2);
        w.d.verdict = KVF_PAGE_DUPLICATE;
        stranger_say(&s, bytes, sizeof bytes);
        kvf_frame cancel = {.kind = KVF_FRAME_CANCEL, .cancel = {.grant = 1}};
        uint8_t more[64];
        stranger_say(&s, more, kvf_frame_encode(&cancel, more, sizeof more));
        LOOP_UNTIL(w.base, w.d.frames == 1);
        assert_int_equal(w.d.pages + w.d.pages_bad, 4);
        w.d.verdict = KVF_PAGE_ACCEPT; /* closed from inside on_page: the copy did not happen, and is told as failed */
        w.d.close_on_page = true;
        stranger_say(&s, bytes, sizeof bytes);
        LOOP_UNTIL(w.base, s.down == 1);
        assert_int_equal(w.d.pages, 2);
        assert_int_equal(w.d.downs, 0);
        s.conn->ops->close(s.conn);
        world_end(&w);
    }
}

static void a_caller_that_dies_inside_a_frame_is_told_once(void **state) {
    FOR_ALL(kind) {
        world_start(&w, kind);
        stranger s;
        stranger_pair(&s);
        uint8_t bytes[1024] = {0};
        kvf_frame page = {.kind = KVF_FRAME_PAGE, .page = {.grant = 1, .len_bytes = PAGE_BYTES}};
        kvf_frame_encode(&page, bytes, sizeof bytes);
        stranger_say(&s, bytes, sizeof bytes);
        loop_rounds(w.base, 5);
        s.conn->ops->close(s.conn);
        LOOP_UNTIL(w.base, w.d.downs);
        loop_rounds(w.base, 20);
        assert_int_equal(w.d.downs, 1);
        assert_int_equal(w.d.reason, KVF_ERR_PEER_LOST);
        assert_int_equal(w.d.pages + w.d.pages_bad, 0);
        world_end(&w);
    }
}

#ifndef KVF_TEST_LANES /* (test_lanes.c kills processes with lanes) */
/* A real process, killed while it sends pages as fast as it can. */
static void a_killed_process_is_told_once(void **state) {
    for (int shm = 0; shm < 2; shm++) {
        world_open(&w, shm ? "shm" : "tcp");
        kvf_endpoint_options o = options_for(&w, &w.d, "d1", 22);
        o.loopback = NULL;
        node_start(&w.d, &o);
        char address[KVF_ADDRESS_MAX], local[KVF_ADDRESS_MAX];
        snprintf(address, sizeof address, "%s", kvf_endpoint_address(w.d.e));
        snprintf(local, sizeof local, "%s", shm ? kvf_endpoint_local_address(w.d.e) : "");
        pid_t child = fork();
        assert_true(child >= 0);
        if (child == 0) {
            static world c;
            static uint8_t page[PAGE_BYTES];
            world_open(&c, "tcp");
            kvf_endpoint_options co = options_for(&c, &c.p, "p1", 11);
            node_start(&c.p, &co);
            kvf_link_id link;
            kvf_endpoint_connect(c.p.e, "d1", 22, address, local, kvf_os_host_id(), &link);
            for (uint32_t n = 0;;) {
                event_base_loop(c.base, EVLOOP_NONBLOCK);
                kvf_page_header h = {.grant = 1, .block = n, .len_bytes = PAGE_BYTES};
                uint32_t crc;
                fill(page, n);
                if (c.p.ups && kvf_endpoint_send_page(c.p.e, link, &h, page, &crc) == KVF_OK) n++;
                if (c.p.downs) _exit(1);
            }
        }
        LOOP_UNTIL(w.base, w.d.pages > 100);
        kill(child, SIGKILL);
        int status;
        waitpid(child, &status, 0);
        LOOP_UNTIL(w.base, w.d.downs);
        loop_rounds(w.base, 20);
        assert_int_equal(w.d.downs, 1);
        assert_int_equal(w.d.reason, KVF_ERR_PEER_LOST);
        assert_int_equal(w.d.pages_bad, 0);
        assert_string_equal(w.d.transport, w.kind);
        world_end(&w);
    }
}

#endif

/* ---------------------------------------------------------------- time */
static void a_silent_peer_is_given_up_and_a_quiet_one_is_not(void **state) {
    FOR_ALL(kind) {
        world_open(&w, kind);
        kvf_endpoint_options o = options_for(&w, &w.p, "p1", 11);
        o.heartbeat_ns = 2 * KVF_NS_PER_MS;
        node_start(&w.p, &o);
        o = options_for(&w, &w.d, "d1", 22);
        o.heartbeat_ns = 2 * KVF_NS_PER_MS;
        node_start(&w.d, &o);
        kvf_link_id link;
        assert_int_equal(call(&w, "d1", 22, &link), KVF_OK);
        LOOP_UNTIL(w.base, w.p.renews >= 5 && w.d.renews >= 5);
        assert_int_equal(w.p.downs + w.d.downs, 0);
        world_end(&w);

        world_open(&w, kind);
        w.p.e = NULL;
        o = options_for(&w, &w.d, "d1", 22);
        o.peer_timeout_ns = 30 * KVF_NS_PER_MS;
        node_start(&w.d, &o);
        stranger s;
        stranger_pair(&s); /* says HELLO, then nothing */
        LOOP_UNTIL(w.base, w.d.downs);
        assert_int_equal(w.d.reason, KVF_ERR_PEER_LOST);
        assert_non_null(strstr(w.d.text, "nothing heard"));
        s.conn->ops->close(s.conn);
        world_end(&w);
    }
}

static void a_call_that_nobody_takes_ends_in_time(void **state) {
    world_open(&w, "tcp");
    kvf_endpoint_options o = options_for(&w, &w.p, "p1", 11);
    o.connect_timeout_ns = 20 * KVF_NS_PER_MS;
    node_start(&w.p, &o);
    int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    struct sockaddr_in a = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    socklen_t len = sizeof a;
    assert_int_equal(
        bind(fd, (struct sockaddr *)&a, len) | listen(fd, 1) | getsockname(fd, (struct sockaddr *)&a, &len), 0);
    char address[64];
    snprintf(address, sizeof address, "tcp:127.0.0.1:%u", ntohs(a.sin_port));
    kvf_link_id link;
    assert_int_equal(kvf_endpoint_connect(w.p.e, "d1", 22, address, "", 0, &link), KVF_OK);
    LOOP_UNTIL(w.base, w.p.downs);
    assert_int_equal(w.p.reason, KVF_ERR_DEADLINE);
    close(fd);
    w.d.e = NULL;
    world_end(&w);

    /* The called side does not wait for a HELLO for ever either. */
    world_open(&w, "tcp");
    w.p.e = NULL;
    o = options_for(&w, &w.d, "d1", 22);
    o.connect_timeout_ns = 20 * KVF_NS_PER_MS;
    node_start(&w.d, &o);
    stranger s;
    stranger_call(&s);
    LOOP_UNTIL(w.base, w.d.downs == 1 && s.down == 1);
    assert_int_equal(w.d.reason, KVF_ERR_DEADLINE);
    s.conn->ops->close(s.conn);
    world_end(&w);
}

static void descriptors_return_to_where_they_were(void **state) {
    int before = open_descriptors();
    for (int n = 0; n < 10; n++) FOR_ALL(kind) {
            world_pair(&w, kind);
            kvf_link_id link;
            for (int i = 0; i < 5; i++) {
                assert_int_equal(call(&w, i % 2 ? "d1" : "d2", 22, &link), KVF_OK);
                if (i == 3) kvf_endpoint_close(w.p.e, link);
                loop_rounds(w.base, 3 * i);
            }
            world_end(&w);
        }
    assert_int_equal(open_descriptors(), before);
}

#ifndef KVF_TEST_LANES
static void links_beyond_the_table_are_refused(void **state) {
    world_start(&w, "loopback");
    kvf_link_id link;
    int made = 0;
    while (call(&w, "d1", 22, &link) == KVF_OK && made < 1000) made++;
    assert_in_range(made, 100, 999);
    /* Of one caller one link lives, in whatever order they were heard. */
    LOOP_UNTIL(
        w.base, w.p.downs == made - 1 && w.d.downs == made - 1 && kvf_endpoint_has_room(w.p.e, link)); /* the newest */
    world_end(&w);
}
#endif

static one_store store;
static int setup(void **state) {
    one_store_open(&store, "DNS:p1,DNS:p9,DNS:d1,DNS:d2");
    tls = store.tls;
    return 0;
}
static int teardown(void **state) {
    one_store_close(&store);
    return 0;
}

int main(void) {
    kvf_log_set_level(KVF_LOG_ERROR);
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(both_sides_learn_the_same_of_a_link),
        cmocka_unit_test(frames_arrive_as_they_were_said),
        cmocka_unit_test(thousands_of_pages_arrive_whole_and_in_order),
        cmocka_unit_test(pairs_that_do_not_fit_are_refused_with_both_values),
        cmocka_unit_test(unequal_numerics_pair_only_where_both_allow_it),
        cmocka_unit_test(another_node_or_an_older_epoch_is_refused),
        cmocka_unit_test(calls_that_cannot_work_are_told_once),
        cmocka_unit_test(endpoints_that_could_not_be_reached_are_not_made),
        cmocka_unit_test(the_newest_connection_of_a_caller_ends_its_older_ones),
        cmocka_unit_test(a_new_process_of_a_node_ends_the_links_of_the_old_one),
        cmocka_unit_test(hostile_bytes_end_the_link_with_a_reason),
        cmocka_unit_test(spoilt_pages_are_told_and_refused_ones_skipped),
        cmocka_unit_test(a_caller_that_dies_inside_a_frame_is_told_once),
#ifndef KVF_TEST_LANES
        cmocka_unit_test(a_killed_process_is_told_once),
        cmocka_unit_test(links_beyond_the_table_are_refused),
#endif
        cmocka_unit_test(a_silent_peer_is_given_up_and_a_quiet_one_is_not),
        cmocka_unit_test(a_call_that_nobody_takes_ends_in_time),
        cmocka_unit_test(descriptors_return_to_where_they_were),
    };
    return cmocka_run_group_tests(tests, setup, teardown);
}
