/* The receiving half, rule by rule. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>
#include <stdio.h>
#include <stdlib.h>
#include "kvf/xfer.h"

enum { LAYERS = 2, PAGE_BYTES = 64, POOL = 16, TTL = 1000 };
static const kvf_request_id request = {7, 1};
static const uint8_t secret[16] = {1, 2, 3}, nonce[16] = {9, 9};

static struct {
    void *kv_memory, *rx_memory;
    kvf_kv *kv;
    kvf_rx *rx;
    kvf_rx_act acts[64];
    kvf_page_name names[64];
    uint32_t logical[16];
    kvf_block_id blocks[16];
    int acts_count;
    uint64_t digest;
} w;

static void *zeroed(size_t size_bytes) {
    size_t rounded = (size_bytes + 63) & ~(size_t)63;
    void *p = aligned_alloc(64, rounded);
    assert_non_null(p);
    return memset(p, 0, rounded);
}
static int setup(void **state) {
    kvf_kv_config kc = {.blocks = POOL, .events_max = 16};
    kvf_rx_config rc = {.grants_max = 3,
        .blocks_max = 8,
        .layers = LAYERS,
        .page_bytes = PAGE_BYTES,
        .epoch = 5,
        .grant_ttl_ns = TTL,
        .tombstones_max = 4};
    memset(&w, 0, sizeof w);
    w.kv = kvf_kv_init(w.kv_memory = zeroed(kvf_kv_size(&kc)), &kc);
    w.rx = kvf_rx_init(w.rx_memory = zeroed(kvf_rx_size(&rc)), &rc, w.kv);
    return 0;
}
static int teardown(void **state) {
    free(w.kv_memory);
    free(w.rx_memory);
    return 0;
}
static void audit(void) {
    kvf_error err;
    if (kvf_rx_audit(w.rx, &err) || kvf_kv_audit(w.kv, &err)) fail_msg("%s", err.message);
}
static int drain(void) {
    audit();
    w.acts_count = 0;
    while (kvf_rx_next(w.rx, &w.acts[w.acts_count])) {
        kvf_rx_act *a = &w.acts[w.acts_count++];
        if (a->kind == KVF_RX_FRAME && a->frame.kind == KVF_FRAME_MISSING)
            memcpy(w.names, a->frame.missing.pages, a->frame.missing.count * sizeof w.names[0]);
        if (a->kind == KVF_RX_COMMITTED) {
            memcpy(w.logical, a->logical, a->blocks_count * sizeof w.logical[0]);
            memcpy(w.blocks, a->blocks, a->blocks_count * sizeof w.blocks[0]);
        }
    }
    audit();
    return w.acts_count;
}
static void expect_frame(int at, kvf_frame_kind kind, kvf_link_id link, kvf_status reason) {
    assert_true(at < w.acts_count);
    assert_int_equal(w.acts[at].kind, KVF_RX_FRAME);
    assert_int_equal(w.acts[at].frame.kind, kind);
    assert_int_equal(w.acts[at].link, link);
    if (kind == KVF_FRAME_GONE) assert_int_equal(w.acts[at].frame.gone.reason, reason);
}
static uint64_t offer(uint32_t attempt, uint32_t count) {
    static const uint32_t missing[8] = {1, 2, 4, 7, 8, 9, 10, 11};
    uint64_t grant;
    assert_int_equal(kvf_kv_book(w.kv, count), KVF_OK);
    assert_int_equal(kvf_rx_offer(w.rx, 0, request, attempt, secret, missing, count, &grant), KVF_OK);
    w.digest = 0;
    return grant;
}
static kvf_frame open_frame(uint64_t grant, uint32_t attempt, uint32_t turn) {
    kvf_frame f = {
        .kind = KVF_FRAME_OPEN, .open = {.grant = grant, .request = request, .attempt = attempt, .turn = turn}};
    kvf_grant_proof(secret, nonce, grant, request, attempt, turn, f.open.proof);
    return f;
}
static void open_turn(uint64_t grant, uint32_t attempt, kvf_link_id link, uint32_t turn) {
    kvf_frame f = open_frame(grant, attempt, turn);
    kvf_rx_on_frame(w.rx, 0, link, nonce, &f);
    assert_int_equal(drain(), 1);
    expect_frame(0, KVF_FRAME_OPENED, link, 0);
}
static void open_grant(uint64_t grant, uint32_t attempt, kvf_link_id link) { open_turn(grant, attempt, link, 1); }
static kvf_page_verdict begin(uint64_t grant, kvf_link_id link, uint32_t block, uint32_t layer, kvf_landing *l) {
    kvf_page_header h = {grant, block, layer, PAGE_BYTES, block * 100 + layer};
    return kvf_rx_on_page(w.rx, 0, link, &h, l);
}
static kvf_page_verdict land(uint64_t grant, kvf_link_id link, uint32_t block, uint32_t layer) {
    kvf_landing l;
    kvf_page_verdict v = begin(grant, link, block, layer, &l);
    if (v == KVF_PAGE_ACCEPT) {
        kvf_rx_on_landed(w.rx, 0, &l, true);
        w.digest += kvf_page_digest(block, layer, l.crc);
    }
    audit();
    return v;
}
static void commit(uint64_t grant, kvf_link_id link, uint32_t count, uint64_t digest) {
    kvf_frame f = {.kind = KVF_FRAME_COMMIT, .commit = {grant, count, digest, {"tok", 3}}};
    kvf_rx_on_frame(w.rx, 0, link, nonce, &f);
    drain();
}
static kvf_kv_counts counts(void) {
    kvf_kv_counts c;
    kvf_kv_count(w.kv, &c);
    return c;
}

static void blocks_are_taken_when_their_first_page_arrives(void **state) {
    uint64_t g = offer(1, 2);
    open_grant(g, 1, 3);
    assert_int_equal(counts().free, POOL);
    assert_int_equal(counts().booked, 2);
    kvf_landing l;
    assert_int_equal(begin(g, 3, 1, 0, &l), KVF_PAGE_ACCEPT);
    assert_int_equal(counts().booked, 1);
    assert_int_equal(counts().in_use, 1);
    assert_int_equal(counts().slots_empty, 0); /* counted full; only the last block's fill is the caller's to tell */
    kvf_rx_on_landed(w.rx, 0, &l, true);
    assert_int_equal(counts().in_use, 0);
    assert_int_equal(land(g, 3, 1, 1), KVF_PAGE_ACCEPT);
    assert_int_equal(counts().booked, 1);
    assert_int_equal(land(g, 3, 2, 0), KVF_PAGE_ACCEPT);
    assert_int_equal(counts().slots_empty, KVF_KV_BLOCK_TOKENS);
    uint32_t spent;
    assert_int_equal(kvf_rx_revoke(w.rx, 0, g, KVF_ERR_CANCELLED, &spent), KVF_OK);
    assert_int_equal(spent, 2);
    assert_int_equal(counts().free, POOL);
}

static void a_grant_opens_by_proof_only(void **state) {
    uint64_t g = offer(1, 1);
    assert_int_equal(land(g, 3, 1, 0), KVF_PAGE_NOT_YOURS); /* not opened */
    kvf_frame bad[6];
    for (int i = 0; i < 6; i++) bad[i] = open_frame(g, 1, 1);
    bad[0].open.proof[31] ^= 1;
    bad[1].open.attempt = 2;
    bad[2].open.request.counter = 2;
    kvf_grant_proof(secret, secret, g, request, 1, 1, bad[3].open.proof); /* over another link's nonce */
    bad[4] = open_frame(g + (1 << 16), 1, 1);
    bad[5].open.turn = 2; /* the turn is proven too: nobody else can open later ones */
    for (int i = 0; i < 6; i++) {
        kvf_rx_on_frame(w.rx, 0, 3, nonce, &bad[i]);
        assert_int_equal(drain(), 1);
        expect_frame(0, KVF_FRAME_GONE, 3, i == 4 ? KVF_ERR_GONE : KVF_ERR_AUTH);
        assert_int_equal(land(g, 3, 1, 0), KVF_PAGE_NOT_YOURS);
    }
    kvf_rx_counts c;
    kvf_rx_count(w.rx, &c);
    assert_int_equal(c.opens_refused, 6);
    open_grant(g, 1, 3);
    assert_int_equal(land(g, 3, 1, 0), KVF_PAGE_ACCEPT);
}

static void pages_are_judged_by_link_list_and_length(void **state) {
    uint64_t g = offer(1, 2);
    open_grant(g, 1, 3);
    kvf_landing l;
    assert_int_equal(land(g, 4, 1, 0), KVF_PAGE_NOT_YOURS);
    assert_int_equal(land(g, 3, 3, 0), KVF_PAGE_NOT_LISTED);
    assert_int_equal(land(g, 3, 4, 0), KVF_PAGE_NOT_LISTED);
    assert_int_equal(land(g, 3, 1, LAYERS), KVF_PAGE_NOT_LISTED);
    assert_int_equal(land(g, 3, UINT32_MAX, 0), KVF_PAGE_NOT_LISTED);
    assert_int_equal(land(g + 1, 3, 1, 0), KVF_PAGE_GONE);
    assert_int_equal(land(0, 3, 1, 0), KVF_PAGE_GONE);
    assert_int_equal(land(UINT64_MAX, 3, 1, 0), KVF_PAGE_GONE);
    kvf_page_header h = {g, 1, 0, PAGE_BYTES - 1, 0};
    assert_int_equal(kvf_rx_on_page(w.rx, 0, 3, &h, &l), KVF_PAGE_BAD_LENGTH);
    h.len_bytes = 0;
    assert_int_equal(kvf_rx_on_page(w.rx, 0, 3, &h, &l), KVF_PAGE_BAD_LENGTH);
    assert_int_equal(counts().free, POOL);
    assert_int_equal(land(g, 3, 1, 0), KVF_PAGE_ACCEPT);
    assert_int_equal(land(g, 3, 1, 0), KVF_PAGE_DUPLICATE);
    assert_int_equal(begin(g, 3, 1, 1, &l), KVF_PAGE_ACCEPT);
    kvf_landing second;
    assert_int_equal(begin(g, 3, 1, 1, &second), KVF_PAGE_DUPLICATE); /* its copy is under way */
    kvf_rx_on_landed(w.rx, 0, &l, false);
    assert_int_equal(land(g, 3, 1, 1), KVF_PAGE_ACCEPT); /* it was spoilt: the next one is welcome */
    kvf_rx_counts c;
    kvf_rx_count(w.rx, &c);
    assert_int_equal(c.pages_landed, 2);
    assert_int_equal(c.bytes_landed, 2 * PAGE_BYTES);
    assert_int_equal(c.pages_duplicate, 2);
    assert_int_equal(c.pages_corrupt, 1);
    assert_int_equal(c.pages_rejected, 10);
}

static void a_whole_request_is_committed_and_handed_over(void **state) {
    uint64_t g = offer(1, 2);
    open_grant(g, 1, 3);
    for (uint32_t layer = 0; layer < LAYERS; layer++)
        for (uint32_t b = 2; b >= 1; b--) assert_int_equal(land(g, 3, b, layer), KVF_PAGE_ACCEPT);
    commit(g, 3, 4, w.digest);
    assert_int_equal(w.acts_count, 2);
    assert_int_equal(w.acts[0].kind, KVF_RX_COMMITTED);
    assert_int_equal(w.acts[0].grant, g);
    assert_int_equal(w.acts[0].attempt, 1);
    assert_int_equal(w.acts[0].blocks_count, 2);
    assert_int_equal(w.acts[0].payload.len_bytes, 3);
    assert_memory_equal(w.acts[0].payload.data, "tok", 3);
    assert_int_equal(w.logical[0], 1);
    assert_int_equal(w.logical[1], 2);
    expect_frame(1, KVF_FRAME_COMMITTED, 3, 0);
    assert_int_equal(counts().pinned, 2);
    assert_int_equal(land(g, 3, 1, 0), KVF_PAGE_GONE); /* closed to frames */
    uint32_t spent;
    assert_int_equal(kvf_rx_revoke(w.rx, 0, g, KVF_ERR_CANCELLED, &spent), KVF_ERR_NOT_FOUND);
    /* Said again, or asked by a sender that missed the answer, on any link. */
    commit(g, 3, 4, w.digest);
    assert_int_equal(w.acts_count, 1);
    expect_frame(0, KVF_FRAME_COMMITTED, 3, 0);
    kvf_frame f = open_frame(g, 1, 2);
    kvf_rx_on_frame(w.rx, 0, 8, nonce, &f);
    assert_int_equal(drain(), 1);
    expect_frame(0, KVF_FRAME_COMMITTED, 8, 0);
    kvf_kv_unpin(w.kv, w.blocks[1]);
    kvf_kv_unpin(w.kv, w.blocks[0]);
    assert_int_equal(counts().free, POOL);
}

static void a_commit_without_pages_or_blocks_works_too(void **state) {
    uint64_t grant;
    assert_int_equal(kvf_rx_offer(w.rx, 0, request, 1, secret, NULL, 0, &grant), KVF_OK);
    open_grant(grant, 1, 3);
    commit(grant, 3, 0, 0);
    assert_int_equal(w.acts_count, 2);
    assert_int_equal(w.acts[0].kind, KVF_RX_COMMITTED);
    assert_int_equal(w.acts[0].blocks_count, 0);
}

static void missing_pages_are_named(void **state) {
    uint64_t g = offer(1, 2);
    open_grant(g, 1, 3);
    land(g, 3, 1, 1);
    commit(g, 3, 4, 123);
    assert_int_equal(w.acts_count, 1);
    expect_frame(0, KVF_FRAME_MISSING, 3, 0);
    assert_int_equal(w.acts[0].frame.missing.count, 3);
    const kvf_page_name want[3] = {{1, 0}, {2, 0}, {2, 1}};
    assert_memory_equal(w.names, want, sizeof want);
    land(g, 3, 1, 0);
    land(g, 3, 2, 0);
    land(g, 3, 2, 1);
    commit(g, 3, 4, w.digest);
    assert_int_equal(w.acts_count, 2);
}

/* All pages are here and the sums differ: sending again cannot help, landed pages are never rewritten. */
static void a_wrong_digest_or_count_ends_the_grant(void **state) {
    for (int how = 0; how < 2; how++) {
        uint64_t g = offer(1, 1);
        open_grant(g, 1, 3);
        land(g, 3, 1, 0);
        land(g, 3, 1, 1);
        commit(g, 3, how ? 3 : 2, how ? w.digest : w.digest + 1);
        assert_int_equal(w.acts_count, 2);
        assert_int_equal(w.acts[0].kind, KVF_RX_LOST);
        assert_int_equal(w.acts[0].reason, KVF_ERR_CORRUPT);
        assert_int_equal(w.acts[0].blocks_spent, 1);
        expect_frame(1, KVF_FRAME_GONE, 3, KVF_ERR_CORRUPT);
        assert_int_equal(counts().free, POOL);
    }
}

static void a_commit_waits_for_copies_under_way(void **state) {
    uint64_t g = offer(1, 1);
    kvf_landing l;
    open_grant(g, 1, 3);
    land(g, 3, 1, 0);
    assert_int_equal(begin(g, 3, 1, 1, &l), KVF_PAGE_ACCEPT);
    uint64_t digest = w.digest + kvf_page_digest(1, 1, l.crc);
    commit(g, 3, 2, digest);
    assert_int_equal(w.acts_count, 0);
    kvf_rx_on_landed(w.rx, 0, &l, true);
    assert_int_equal(drain(), 2);
    assert_int_equal(w.acts[0].kind, KVF_RX_COMMITTED);
    kvf_kv_unpin(w.kv, w.blocks[0]);

    g = offer(1, 1);
    open_grant(g, 1, 3);
    land(g, 3, 1, 0);
    assert_int_equal(begin(g, 3, 1, 1, &l), KVF_PAGE_ACCEPT);
    commit(g, 3, 2, digest);
    kvf_rx_on_landed(w.rx, 0, &l, false); /* the copy is spoilt: named as missing */
    assert_int_equal(drain(), 1);
    expect_frame(0, KVF_FRAME_MISSING, 3, 0);
}

static void commits_of_other_links_are_not_heard(void **state) {
    uint64_t g = offer(1, 1);
    commit(g, 3, 2, 0); /* not opened */
    assert_int_equal(w.acts_count, 0);
    open_grant(g, 1, 3);
    land(g, 3, 1, 0);
    land(g, 3, 1, 1);
    commit(g, 4, 2, w.digest);
    assert_int_equal(w.acts_count, 0);
    commit(g, 3, 2, w.digest);
    assert_int_equal(w.acts_count, 2);
    commit(g + (1 << 16), 3, 2, w.digest); /* never existed */
    assert_int_equal(w.acts_count, 1);
    expect_frame(0, KVF_FRAME_GONE, 3, KVF_ERR_GONE);
}

static void a_blip_costs_nothing(void **state) {
    uint64_t g = offer(1, 1);
    open_grant(g, 1, 3);
    land(g, 3, 1, 0);
    kvf_rx_on_link_down(w.rx, 10, 3);
    assert_int_equal(drain(), 0);
    assert_int_equal(land(g, 3, 1, 1), KVF_PAGE_NOT_YOURS);
    open_turn(g, 1, 5, 2);
    assert_int_equal(land(g, 3, 1, 1), KVF_PAGE_NOT_YOURS); /* the old link has lost it */
    assert_int_equal(land(g, 5, 1, 0), KVF_PAGE_DUPLICATE);
    assert_int_equal(land(g, 5, 1, 1), KVF_PAGE_ACCEPT);
    kvf_rx_on_link_down(w.rx, 20, 3); /* late news of the old one */
    commit(g, 5, 2, w.digest);
    assert_int_equal(w.acts_count, 2);
}

/* What the model found (docs/reliability.md): an OPEN that was under way on a cut link must not take the grant from
 * the link that replaced it, at whatever moment it comes. */
static void a_late_open_takes_nothing_from_the_link_that_came_after(void **state) {
    uint64_t g = offer(1, 1);
    kvf_frame late = open_frame(g, 1, 1);
    open_turn(g, 1, 5, 2); /* the second link was quicker */
    assert_int_equal(land(g, 5, 1, 0), KVF_PAGE_ACCEPT);
    kvf_rx_on_frame(w.rx, 0, 3, nonce, &late);
    assert_int_equal(drain(), 0); /* not answered: its sender may be back on that link under a later turn */
    assert_int_equal(land(g, 3, 1, 1), KVF_PAGE_NOT_YOURS);
    open_turn(g, 1, 5, 2); /* said twice on the right link */
    kvf_rx_on_link_down(w.rx, 10, 5);
    kvf_frame again = open_frame(g, 1, 2);
    kvf_rx_on_frame(w.rx, 20, 3, nonce, &late); /* the newer link is down too: still not the old one's */
    kvf_rx_on_frame(w.rx, 20, 5, nonce, &again);
    assert_int_equal(drain(), 0);
    assert_int_equal(land(g, 3, 1, 1), KVF_PAGE_NOT_YOURS);
    kvf_rx_counts c;
    kvf_rx_count(w.rx, &c);
    assert_int_equal(c.opens_late, 3);
    open_turn(g, 1, 3, 3); /* back on the first link: a later turn, so it is welcome, and what landed stays */
    assert_int_equal(land(g, 3, 1, 0), KVF_PAGE_DUPLICATE);
    assert_int_equal(land(g, 3, 1, 1), KVF_PAGE_ACCEPT);
    commit(g, 3, 2, w.digest);
    assert_int_equal(w.acts_count, 2);
    kvf_frame asks = open_frame(g, 1, 4); /* COMMITTED was lost with the link */
    kvf_rx_on_frame(w.rx, 30, 6, nonce, &asks);
    assert_int_equal(drain(), 1);
    expect_frame(0, KVF_FRAME_COMMITTED, 6, 0);
    kvf_kv_unpin(w.kv, w.blocks[0]);
}

/* Turns are counted by one sender of one grant: the next attempt begins again. */
static void the_next_attempt_begins_with_its_own_first_turn(void **state) {
    uint64_t g = offer(1, 1), next;
    open_turn(g, 1, 3, 7);
    uint32_t missing[8], count;
    assert_int_equal(kvf_rx_reoffer(w.rx, 0, g, 2, secret, &next, missing, &count), KVF_OK);
    drain();
    open_turn(next, 2, 4, 1);
    assert_int_equal(land(next, 4, 1, 0), KVF_PAGE_ACCEPT);
}

static void leases(void **state) {
    uint64_t a = offer(1, 1), b = offer(1, 1);
    assert_int_equal(kvf_rx_deadline(w.rx), TTL);
    kvf_rx_renew(w.rx, 500, a); /* the router's word counts while nobody has opened */
    open_grant(b, 1, 3);
    kvf_rx_renew(w.rx, 500, b);
    kvf_rx_on_time(w.rx, TTL - 1);
    assert_int_equal(drain(), 0);
    kvf_rx_on_time(w.rx, TTL);
    assert_int_equal(drain(), 2);
    assert_int_equal(w.acts[0].kind, KVF_RX_LOST);
    assert_int_equal(w.acts[0].grant, b);
    assert_int_equal(w.acts[0].reason, KVF_ERR_DEADLINE);
    expect_frame(1, KVF_FRAME_GONE, 3, KVF_ERR_DEADLINE);
    kvf_kv_unbook(w.kv, 1);
    assert_int_equal(land(b, 3, 1, 0), KVF_PAGE_GONE);

    open_grant(a, 1, 3);
    kvf_rx_on_frame(w.rx, 1400, 4, nonce, &(kvf_frame){.kind = KVF_FRAME_RENEW}); /* another link's heartbeat */
    kvf_rx_on_frame(w.rx, 1400, 3, nonce, &(kvf_frame){.kind = KVF_FRAME_RENEW});
    assert_int_equal(kvf_rx_deadline(w.rx), 1400 + TTL);
    kvf_rx_on_link_down(w.rx, 1500, 3);
    kvf_rx_renew(w.rx, 2000, a); /* its sender is gone: no word of the router's brings it back */
    kvf_rx_on_time(w.rx, 1400 + TTL);
    assert_int_equal(drain(), 1);
    assert_int_equal(w.acts[0].reason, KVF_ERR_PEER_LOST);
    kvf_kv_unbook(w.kv, 1);
    assert_int_equal(kvf_rx_deadline(w.rx), KVF_TIME_NEVER);
    assert_int_equal(kvf_rx_open_grants(w.rx), 0);
}

static void late_frames_are_answered_from_the_tombstones(void **state) {
    uint64_t g = offer(1, 1);
    uint32_t spent;
    open_grant(g, 1, 3);
    land(g, 3, 1, 0);
    assert_int_equal(kvf_rx_revoke(w.rx, 0, g, KVF_ERR_STALE, &spent), KVF_OK);
    assert_int_equal(drain(), 1);
    expect_frame(0, KVF_FRAME_GONE, 3, KVF_ERR_STALE); /* told at once */
    commit(g, 3, 2, 0);
    expect_frame(0, KVF_FRAME_GONE, 3, KVF_ERR_STALE); /* and again */
    assert_int_equal(land(g, 3, 1, 1), KVF_PAGE_GONE);
    for (int i = 0; i < 4; i++) { /* the ring is 4 long: after that only "gone" is left */
        uint64_t next = offer(1, 1);
        assert_int_equal(kvf_rx_revoke(w.rx, 0, next, KVF_ERR_CANCELLED, &spent), KVF_OK);
        assert_int_equal(spent, 0);
        kvf_kv_unbook(w.kv, 1);
    }
    commit(g, 3, 2, 0);
    expect_frame(0, KVF_FRAME_GONE, 3, KVF_ERR_GONE);
}

static void a_cancel_frees_at_once_and_a_copy_under_way_later(void **state) {
    uint64_t g = offer(1, 1);
    kvf_landing l;
    open_grant(g, 1, 3);
    land(g, 3, 1, 0);
    assert_int_equal(begin(g, 3, 1, 1, &l), KVF_PAGE_ACCEPT);
    kvf_frame f = {.kind = KVF_FRAME_CANCEL, .cancel = {g}};
    kvf_rx_on_frame(w.rx, 0, 4, nonce, &f); /* not his */
    assert_int_equal(drain(), 0);
    kvf_rx_on_frame(w.rx, 0, 3, nonce, &f);
    assert_int_equal(drain(), 1);
    assert_int_equal(w.acts[0].kind, KVF_RX_LOST);
    assert_int_equal(w.acts[0].reason, KVF_ERR_CANCELLED);
    assert_int_equal(w.acts[0].blocks_spent, 1);
    kvf_rx_on_frame(w.rx, 0, 3, nonce, &f);
    assert_int_equal(drain(), 0);
    assert_int_equal(counts().free, POOL - 1); /* the copy may still write */
    uint64_t next = offer(2, 1); /* the slot's next tenant must not notice */
    open_grant(next, 2, 3);
    kvf_rx_on_landed(w.rx, 0, &l, true);
    audit();
    assert_int_equal(counts().free, POOL);
    assert_int_equal(land(next, 3, 1, 1), KVF_PAGE_ACCEPT);
}

static void a_higher_attempt_keeps_what_has_landed(void **state) {
    uint64_t g = offer(1, 3), next;
    uint32_t missing[3], count;
    kvf_landing under_way;
    open_grant(g, 1, 3);
    land(g, 3, 1, 0);
    land(g, 3, 1, 1); /* block 1 is whole */
    land(g, 3, 2, 0); /* block 2 half */
    assert_int_equal(begin(g, 3, 2, 1, &under_way), KVF_PAGE_ACCEPT);
    assert_int_equal(kvf_rx_reoffer(w.rx, 0, g, 1, secret, &next, missing, &count), KVF_ERR_STALE);
    assert_int_equal(kvf_rx_reoffer(w.rx, 0, g, 2, secret, &next, missing, &count), KVF_OK);
    assert_int_equal(count, 2);
    assert_true(missing[0] == 2 && missing[1] == 4);
    assert_int_equal(drain(), 1);
    expect_frame(0, KVF_FRAME_GONE, 3, KVF_ERR_STALE);
    assert_int_equal(land(g, 3, 4, 0), KVF_PAGE_GONE);
    kvf_rx_on_landed(w.rx, 0, &under_way, true); /* verified under the old grant: it stays */
    audit();
    open_grant(next, 2, 6);
    w.digest = 0;
    assert_int_equal(land(next, 6, 1, 0), KVF_PAGE_NOT_LISTED);
    assert_int_equal(land(next, 6, 2, 0), KVF_PAGE_DUPLICATE);
    w.digest += kvf_page_digest(2, 0, 200);
    land(next, 6, 4, 0);
    land(next, 6, 4, 1);
    /* (2, 1) is here, but only its repeat tells which CRC the new sender gives it. */
    commit(next, 6, 4, 0);
    expect_frame(0, KVF_FRAME_MISSING, 6, 0);
    assert_int_equal(w.acts[0].frame.missing.count, 1);
    assert_true(w.names[0].block == 2 && w.names[0].layer == 1);
    assert_int_equal(land(next, 6, 2, 1), KVF_PAGE_DUPLICATE);
    w.digest += kvf_page_digest(2, 1, 201);
    commit(next, 6, 4, w.digest);
    assert_int_equal(w.acts_count, 2);
    assert_int_equal(w.acts[0].kind, KVF_RX_COMMITTED);
    assert_int_equal(w.acts[0].blocks_count, 3); /* carried ones too */
    assert_int_equal(w.acts[0].blocks_spent, 3);
    assert_int_equal(w.acts[0].attempt, 2);
    assert_int_equal(kvf_rx_reoffer(w.rx, 0, next, 3, secret, &next, missing, &count), KVF_ERR_NOT_FOUND);
}

static void grants_and_room_have_limits(void **state) {
    uint64_t g[4];
    static const uint32_t one[1] = {0};
    for (int i = 0; i < 3; i++) assert_int_equal(kvf_rx_offer(w.rx, 0, request, 1, secret, one, 1, &g[i]), KVF_OK);
    assert_int_equal(kvf_rx_offer(w.rx, 0, request, 1, secret, one, 1, &g[3]), KVF_AGAIN);
    assert_true(g[0] != g[1] && g[1] != g[2]);
    /* A flood of nonsense fills the queue of answers and nothing else; real grants still get theirs. */
    kvf_frame bad = open_frame(1ull << 40, 1, 1), good = open_frame(g[1], 1, 1);
    for (int i = 0; i < 5000; i++) kvf_rx_on_frame(w.rx, 0, 3, nonce, &bad);
    kvf_rx_on_frame(w.rx, 0, 3, nonce, &good);
    kvf_rx_act a;
    assert_true(kvf_rx_next(w.rx, &a));
    assert_int_equal(a.frame.kind, KVF_FRAME_OPENED);
    int answers = 0;
    while (kvf_rx_next(w.rx, &a)) answers++;
    assert_in_range(answers, 1, 500);
}

int main(void) {
#define T(f) cmocka_unit_test_setup_teardown(f, setup, teardown)
    const struct CMUnitTest tests[] = {
        T(blocks_are_taken_when_their_first_page_arrives),
        T(a_grant_opens_by_proof_only),
        T(pages_are_judged_by_link_list_and_length),
        T(a_whole_request_is_committed_and_handed_over),
        T(a_commit_without_pages_or_blocks_works_too),
        T(missing_pages_are_named),
        T(a_wrong_digest_or_count_ends_the_grant),
        T(a_commit_waits_for_copies_under_way),
        T(commits_of_other_links_are_not_heard),
        T(a_blip_costs_nothing),
        T(a_late_open_takes_nothing_from_the_link_that_came_after),
        T(the_next_attempt_begins_with_its_own_first_turn),
        T(leases),
        T(late_frames_are_answered_from_the_tombstones),
        T(a_cancel_frees_at_once_and_a_copy_under_way_later),
        T(a_higher_attempt_keeps_what_has_landed),
        T(grants_and_room_have_limits),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
