/* Frames byte for byte. The golden bytes were made by another implementation (a few lines of Python: struct, a bitwise
 * CRC-32C, hmac), from the tables in kvtransfer/README.md. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>
#include <stdio.h>
#include <stdlib.h>
#include "kvf/frame.h"

static const char *const golden[] = {
    NULL,
    /* HELLO */
    "8100000001010000663ee617027031bc0a000000000000026431ef0d0000000000000300000000000000010000001111"
    "000000000000222200000000000033330000000000004444000000000000100000001e00000009000000030000004000"
    "000000c00000003000000020000001000000400000000050c347010000000a6631362d617678322d3103663136",
    /* WELCOME */
    "7e00000002010000b3aff59d026431ef0d000000000000000102030405060708090a0b0c0d0e0f010000001111000000000000222200000000"
    "000033330000000000004444000000000000100000001e00000009000000030000004000000000c00000003000000020000001000000400000"
    "000050c347010000000a6631362d617678322d3103663136",
    /* REFUSE */ "11000000030100007d5b3c87d7ffffff066c6179657273023330023331",
    /* OPEN */
    "4000000004010000503e9047030001000000000077770000000000002a00000000000000020000000400000064656667"
    "68696a6b6c6d6e6f707172737475767778797a7b7c7d7e7f80818283",
    /* OPENED */ "08000000050100008c2a269c0300010000000000",
    /* PAGE */ "1830000006010000187271d10300010000000000050000001d00000000300000bebafeca",
    /* COMMIT */ "1d00000007010000069e85e20300010000000000b004000005000000efcdab89674523016669727374",
    /* COMMITTED */ "08000000080100000d79f2e60300010000000000",
    /* MISSING */ "1c0000000901000073d1d275030001000000000002000000050000001d0000000600000000000000",
    /* GONE */ "0c0000000a010000d32cbe080300010000000000f7ffffff",
    /* CANCEL */ "080000000b0100005d0560b50300010000000000",
    /* RENEW */ "000000000c010000e1720fa4",
    /* LANE */ "160000000d010000fc6022530100000004000000800000000600000068616e646c65",
    /* BATCH */
    "300000000e0100003cc5e3b607000000020000000300010000000000050000001d000000bebafeca0400010000000000060000000000000034"
    "120000",
    /* SLOT */ "080000000f010000689fed010700000002000000",
};
#define KINDS KVF_FRAME_SLOT

static kvf_frame frame_of(kvf_frame_kind kind) {
    static const kvf_page_name names[2] = {{5, 29}, {6, 0}};
    static uint8_t batch[2 * KVF_FRAME_BATCH_PAGE_BYTES];
    const kvf_identity identity = {.wire_version = 1,
        .weights_hash = {0x1111, 0x2222},
        .tokenizer_hash = {0x3333, 0x4444},
        .numerics = "f16-avx2-1",
        .block_tokens = 16,
        .layers = 30,
        .heads = 9,
        .kv_heads = 3,
        .head_dim = 64,
        .vocab = 49152,
        .page_bytes = 12288,
        .context_max = 8192,
        .layout = 1,
        .rope_dims = 64,
        .rope_base_bits = 0x47c35000,
        .rope_style = 1,
        .kv_type = "f16"};
    kvf_frame f = {.kind = kind};
    const uint64_t grant = 0x10003;
    switch (kind) {
    case KVF_FRAME_HELLO:
        snprintf(f.hello.node, sizeof f.hello.node, "p1");
        snprintf(f.hello.peer, sizeof f.hello.peer, "d1");
        f.hello.epoch = 0xabc;
        f.hello.peer_epoch = 0xdef;
        f.hello.generation = 3;
        f.hello.identity = identity;
        break;
    case KVF_FRAME_WELCOME:
        snprintf(f.welcome.node, sizeof f.welcome.node, "d1");
        f.welcome.epoch = 0xdef;
        for (int i = 0; i < 16; i++) f.welcome.nonce[i] = (uint8_t)i;
        f.welcome.identity = identity;
        break;
    case KVF_FRAME_REFUSE:
        f.refuse.reason = KVF_ERR_MISMATCH;
        snprintf(f.refuse.field, sizeof f.refuse.field, "layers");
        snprintf(f.refuse.mine, sizeof f.refuse.mine, "30");
        snprintf(f.refuse.yours, sizeof f.refuse.yours, "31");
        break;
    case KVF_FRAME_OPEN:
        f.open.grant = grant;
        f.open.request = (kvf_request_id){0x7777, 42};
        f.open.attempt = 2;
        f.open.turn = 4;
        for (int i = 0; i < 32; i++) f.open.proof[i] = (uint8_t)(100 + i);
        break;
    case KVF_FRAME_PAGE: f.page = (kvf_page_header){grant, 5, 29, 12288, 0xcafebabe}; break;
    case KVF_FRAME_COMMIT:
        f.commit.grant = grant;
        f.commit.page_count = 1200;
        f.commit.digest = 0x0123456789abcdef;
        f.commit.payload = (kvf_span){"first", 5};
        break;
    case KVF_FRAME_MISSING:
        f.missing.grant = grant;
        f.missing.count = 2;
        f.missing.pages = names;
        break;
    case KVF_FRAME_GONE:
        f.gone.grant = grant;
        f.gone.reason = KVF_ERR_DEADLINE;
        break;
    case KVF_FRAME_RENEW: break;
    case KVF_FRAME_LANE:
        f.lane.step = KVF_LANE_OFFER;
        f.lane.slots = 4;
        f.lane.slot_pages = 128;
        f.lane.bytes = (kvf_span){"handle", 6};
        break;
    case KVF_FRAME_BATCH:
        f.batch.seq = 7;
        f.batch.count = 2;
        kvf_batch_page_put(batch, &(kvf_page_header){grant, 5, 29, 12288, 0xcafebabe});
        kvf_batch_page_put(batch + KVF_FRAME_BATCH_PAGE_BYTES, &(kvf_page_header){grant + 1, 6, 0, 12288, 0x1234});
        f.batch.pages = batch;
        break;
    case KVF_FRAME_SLOT:
        f.slot.seq = 7;
        f.slot.news = KVF_SLOT_FREE;
        break;
    default: f.opened.grant = grant;
    }
    return f;
}

static size_t bytes_of(const char *hex, uint8_t *out) {
    size_t n = strlen(hex) / 2;
    for (size_t i = 0; i < n; i++) {
        unsigned v;
        sscanf(hex + 2 * i, "%2x", &v);
        out[i] = (uint8_t)v;
    }
    return n;
}

static void frames_are_written_as_the_tables_say(void **state) {
    for (int kind = 1; kind <= KINDS; kind++) {
        uint8_t want[512], got[512];
        size_t len = bytes_of(golden[kind], want);
        kvf_frame f = frame_of((kvf_frame_kind)kind);
        assert_int_equal(kvf_frame_encode(&f, got, sizeof got), len);
        assert_memory_equal(got, want, len);
        for (size_t room = 0; room < len; room++) assert_int_equal(kvf_frame_encode(&f, got, room), 0);
    }
}

static void frames_are_read_back(void **state) {
    for (int kind = 1; kind <= KINDS; kind++) {
        uint8_t bytes[512], again[512];
        static kvf_page_name names[KVF_FRAME_MISSING_MAX];
        size_t len = bytes_of(golden[kind], bytes);
        kvf_frame_kind measured;
        uint32_t whole;
        assert_int_equal(kvf_frame_measure(bytes, 12288, &measured, &whole), KVF_OK);
        assert_int_equal(measured, kind);
        assert_int_equal(whole, len + (kind == KVF_FRAME_PAGE ? 12288 : 0));
        kvf_frame f;
        assert_int_equal(kvf_frame_decode((kvf_span){bytes, len}, names, &f), KVF_OK);
        assert_int_equal(f.kind, kind);
        assert_int_equal(kvf_frame_encode(&f, again, sizeof again), len); /* every field came through */
        assert_memory_equal(again, bytes, len);
    }
    uint8_t bytes[512];
    kvf_frame f;
    size_t len = bytes_of(golden[KVF_FRAME_HELLO], bytes);
    assert_int_equal(kvf_frame_decode((kvf_span){bytes, len}, NULL, &f), KVF_OK);
    char a[64], b[64];
    kvf_frame want = frame_of(KVF_FRAME_HELLO);
    assert_null(kvf_identity_differs(&f.hello.identity, &want.hello.identity, a, b));
    assert_string_equal(f.hello.node, "p1");
    assert_string_equal(f.hello.peer, "d1");
}

/* Cut anywhere, lengthened, or one bit turned: never accepted, never read past the end (exact allocations, for the
 * sanitizer). */
static void spoilt_frames_are_refused(void **state) {
    static kvf_page_name names[KVF_FRAME_MISSING_MAX];
    for (int kind = 1; kind <= KINDS; kind++) {
        uint8_t bytes[512];
        size_t len = bytes_of(golden[kind], bytes);
        kvf_frame f;
        for (size_t cut = 0; cut < len; cut++) {
            uint8_t *exact = malloc(cut ? cut : 1);
            assert_non_null(exact);
            memcpy(exact, bytes, cut);
            assert_int_equal(kvf_frame_decode((kvf_span){exact, cut}, names, &f), KVF_ERR_FORMAT);
            /* The same with a head that admits to the cut, and a right CRC: the fields do not fit. */
            if (cut >= KVF_FRAME_HEAD_BYTES) {
                kvf_put_le32(exact, (uint32_t)(cut - KVF_FRAME_HEAD_BYTES));
                kvf_put_le32(exact + 8, kvf_crc32c(kvf_crc32c(0, exact, 8), exact + 12, cut - 12));
                assert_int_equal(kvf_frame_decode((kvf_span){exact, cut}, names, &f), KVF_ERR_FORMAT);
            }
            free(exact);
        }
        for (size_t bit = 0; bit < 8 * len; bit++) {
            uint8_t *exact = malloc(len);
            assert_non_null(exact);
            memcpy(exact, bytes, len);
            exact[bit / 8] ^= (uint8_t)(1 << bit % 8);
            assert_true(kvf_frame_decode((kvf_span){exact, len}, names, &f) < 0);
            free(exact);
        }
        bytes[len] = 0;
        assert_int_equal(kvf_frame_decode((kvf_span){bytes, len + 1}, names, &f), KVF_ERR_FORMAT);
    }
}

static void fields_out_of_bounds_are_refused_in_both_directions(void **state) {
    static uint8_t bytes[KVF_FRAME_BYTES_MAX + 64];
    static kvf_page_name names[KVF_FRAME_MISSING_MAX + 1];
    static uint8_t payload[KVF_FRAME_COMMIT_PAYLOAD_MAX + 1];
    kvf_frame f = {.kind = KVF_FRAME_COMMIT, .commit.payload = {payload, KVF_FRAME_COMMIT_PAYLOAD_MAX}}, out;
    assert_int_equal(kvf_frame_encode(&f, bytes, sizeof bytes), KVF_FRAME_BYTES_MAX);
    assert_int_equal(kvf_frame_decode((kvf_span){bytes, KVF_FRAME_BYTES_MAX}, names, &out), KVF_OK);
    f.commit.payload.len_bytes++;
    assert_int_equal(kvf_frame_encode(&f, bytes, sizeof bytes), 0);
    f = (kvf_frame){.kind = KVF_FRAME_MISSING, .missing = {1, KVF_FRAME_MISSING_MAX, names}};
    size_t len = kvf_frame_encode(&f, bytes, sizeof bytes);
    assert_true(len > 0);
    assert_int_equal(kvf_frame_decode((kvf_span){bytes, len}, names, &out), KVF_OK);
    f.missing.count++;
    assert_int_equal(kvf_frame_encode(&f, bytes, sizeof bytes), 0);
    /* A count that the bytes do not hold. */
    kvf_put_le32(bytes + 20, UINT32_MAX);
    kvf_put_le32(bytes + 8, kvf_crc32c(kvf_crc32c(0, bytes, 8), bytes + 12, len - 12));
    assert_int_equal(kvf_frame_decode((kvf_span){bytes, len}, names, &out), KVF_ERR_FORMAT);
    f = frame_of(KVF_FRAME_HELLO);
    memset(f.hello.node, 'x', sizeof f.hello.node); /* no NUL */
    assert_int_equal(kvf_frame_encode(&f, bytes, sizeof bytes), 0);
    /* Heads alone. */
    kvf_frame_kind kind;
    uint32_t whole;
    uint8_t head[KVF_FRAME_HEAD_BYTES] = {0, 0, 0, 0, KVF_FRAME_RENEW, 1};
    assert_int_equal(kvf_frame_measure(head, 0, &kind, &whole), KVF_OK);
    head[5] = 2;
    assert_int_equal(kvf_frame_measure(head, 0, &kind, &whole), KVF_ERR_UNSUPPORTED);
    head[5] = 1;
    head[4] = 0;
    assert_int_equal(kvf_frame_measure(head, 0, &kind, &whole), KVF_ERR_FORMAT);
    head[4] = KINDS + 1;
    assert_int_equal(kvf_frame_measure(head, 0, &kind, &whole), KVF_ERR_FORMAT);
    head[4] = KVF_FRAME_PAGE;
    assert_int_equal(kvf_frame_measure(head, 12288, &kind, &whole), KVF_ERR_FORMAT); /* no room for the page header */
    kvf_put_le32(head, 24 + 12288);
    assert_int_equal(kvf_frame_measure(head, 12288, &kind, &whole), KVF_OK);
    kvf_put_le32(head, 24 + 12289);
    assert_int_equal(kvf_frame_measure(head, 12288, &kind, &whole), KVF_ERR_FORMAT);
    kvf_put_le32(head, UINT32_MAX);
    assert_int_equal(kvf_frame_measure(head, UINT32_MAX / 2, &kind, &whole), KVF_ERR_FORMAT);
}

static kvf_status reread(const kvf_frame *f, size_t change_at, uint32_t value, kvf_frame *out) {
    static uint8_t bytes[KVF_FRAME_BYTES_MAX + 64];
    size_t len = kvf_frame_encode(f, bytes, sizeof bytes);
    assert_true(len > 0);
    if (change_at) {
        kvf_put_le32(bytes + change_at, value);
        kvf_put_le32(bytes + 8, kvf_crc32c(kvf_crc32c(0, bytes, 8), bytes + 12, len - 12));
    }
    return kvf_frame_decode((kvf_span){bytes, len}, NULL, out);
}

static void frames_of_lanes_stay_within_their_bounds(void **state) {
    static uint8_t pages[(KVF_FRAME_BATCH_MAX + 1) * KVF_FRAME_BATCH_PAGE_BYTES], small[64];
    kvf_frame out, f = {.kind = KVF_FRAME_BATCH, .batch = {1, KVF_FRAME_BATCH_MAX, pages}};
    kvf_page_header h = {9, 8, 7, 4096, 6}, got;
    kvf_batch_page_put(pages + (KVF_FRAME_BATCH_MAX - 1) * KVF_FRAME_BATCH_PAGE_BYTES, &h);
    assert_int_equal(reread(&f, 0, 0, &out), KVF_OK);
    kvf_batch_page_get(&out, KVF_FRAME_BATCH_MAX - 1, 4096, &got);
    assert_memory_equal(&got, &h, sizeof h);
    assert_int_equal(reread(&f, 16, KVF_FRAME_BATCH_MAX - 1, &out), KVF_ERR_FORMAT); /* bytes are left */
    assert_int_equal(reread(&f, 16, KVF_FRAME_BATCH_MAX + 1, &out), KVF_ERR_FORMAT);
    assert_int_equal(reread(&f, 16, 0, &out), KVF_ERR_FORMAT);
    f.batch.count = 0;
    assert_int_equal(kvf_frame_encode(&f, small, sizeof small), 0);
    f = frame_of(KVF_FRAME_LANE);
    assert_int_equal(reread(&f, 12, 0, &out), KVF_ERR_FORMAT); /* no such step */
    assert_int_equal(reread(&f, 12, KVF_LANE_NOT + 1, &out), KVF_ERR_FORMAT);
    f.lane.bytes = (kvf_span){pages, KVF_FRAME_LANE_BYTES_MAX};
    assert_int_equal(reread(&f, 0, 0, &out), KVF_OK);
    f.lane.bytes.len_bytes++;
    assert_int_equal(kvf_frame_encode(&f, pages, sizeof pages), 0);
    f = frame_of(KVF_FRAME_SLOT);
    assert_int_equal(reread(&f, 16, 0, &out), KVF_ERR_FORMAT);
    assert_int_equal(reread(&f, 16, KVF_SLOT_FREE + 1, &out), KVF_ERR_FORMAT);
    /* Lanes of HELLO and WELCOME: written only where there are any. */
    f = frame_of(KVF_FRAME_HELLO);
    size_t without = kvf_frame_encode(&f, pages, sizeof pages);
    f.hello.lanes = 6;
    assert_int_equal(kvf_frame_encode(&f, pages, sizeof pages), without + 4);
    assert_int_equal(reread(&f, 0, 0, &out), KVF_OK);
    assert_int_equal(out.hello.lanes, 6);
    assert_int_equal(reread(&f, without, 0, &out), KVF_ERR_FORMAT);
    f = frame_of(KVF_FRAME_WELCOME);
    f.welcome.lanes = 4;
    assert_int_equal(reread(&f, 0, 0, &out), KVF_OK);
    assert_int_equal(out.welcome.lanes, 4);
}

static void an_unknown_reason_still_means_gone(void **state) {
    uint8_t bytes[64];
    kvf_frame f;
    size_t len = bytes_of(golden[KVF_FRAME_GONE], bytes);
    kvf_put_le32(bytes + 20, 12345);
    kvf_put_le32(bytes + 8, kvf_crc32c(kvf_crc32c(0, bytes, 8), bytes + 12, len - 12));
    assert_int_equal(kvf_frame_decode((kvf_span){bytes, len}, NULL, &f), KVF_OK);
    assert_int_equal(f.gone.reason, KVF_ERR_GONE);
}

static void checks_bind_bytes_to_their_place(void **state) {
    uint8_t page[64];
    for (int i = 0; i < 64; i++) page[i] = (uint8_t)i;
    kvf_page_header h = {.grant = 0x10003, .block = 5, .layer = 29, .len_bytes = sizeof page};
    uint32_t crc = kvf_page_crc(&h, 0xdef, page);
    assert_int_equal(crc, 0xf5a90376);
    kvf_page_header o = h;
    o.grant++;
    assert_int_not_equal(kvf_page_crc(&o, 0xdef, page), crc);
    o = h;
    o.block = 6;
    assert_int_not_equal(kvf_page_crc(&o, 0xdef, page), crc);
    o = h;
    o.layer = 28;
    assert_int_not_equal(kvf_page_crc(&o, 0xdef, page), crc);
    assert_int_not_equal(kvf_page_crc(&h, 0xdee, page), crc);
    assert_true(kvf_page_digest(5, 29, 0xcafebabe) == 0x7eca6d53a64a93ac);
    assert_true(kvf_page_digest(29, 5, 0xcafebabe) != kvf_page_digest(5, 29, 0xcafebabe));
}

static void a_proof_depends_on_all_it_names(void **state) {
    uint8_t secret[16], nonce[16], proof[32], other[32], want[32];
    for (int i = 0; i < 16; i++) secret[i] = (uint8_t)(i + 1), nonce[i] = (uint8_t)i;
    bytes_of("72d9260fa0596838c2ca61ef7b9e1fdec738ca8e0f1acafc1046b0d00b240e0c", want);
    kvf_request_id r = {0x7777, 42};
    kvf_grant_proof(secret, nonce, 0x10003, r, 2, 4, proof);
    assert_memory_equal(proof, want, 32);
    kvf_grant_proof(secret, nonce, 0x10003, r, 3, 4, other);
    assert_memory_not_equal(other, proof, 32);
    kvf_grant_proof(secret, nonce, 0x10004, r, 2, 4, other);
    assert_memory_not_equal(other, proof, 32);
    kvf_grant_proof(secret, nonce, 0x10003, (kvf_request_id){0x7777, 43}, 2, 4, other);
    assert_memory_not_equal(other, proof, 32);
    kvf_grant_proof(secret, nonce, 0x10003, r, 2, 5, other);
    assert_memory_not_equal(other, proof, 32);
    nonce[15] ^= 1;
    kvf_grant_proof(secret, nonce, 0x10003, r, 2, 4, other);
    assert_memory_not_equal(other, proof, 32);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(frames_are_written_as_the_tables_say),
        cmocka_unit_test(frames_are_read_back),
        cmocka_unit_test(spoilt_frames_are_refused),
        cmocka_unit_test(fields_out_of_bounds_are_refused_in_both_directions),
        cmocka_unit_test(frames_of_lanes_stay_within_their_bounds),
        cmocka_unit_test(an_unknown_reason_still_means_gone),
        cmocka_unit_test(checks_bind_bytes_to_their_place),
        cmocka_unit_test(a_proof_depends_on_all_it_names),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
