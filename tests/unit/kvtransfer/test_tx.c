/* The sending half, rule by rule. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>
#include <stdio.h>
#include <stdlib.h>
#include "kvf/xfer.h"

enum { LAYERS = 2, PAGE_BYTES = 64, POOL = 16, HOLD = 1000, RELINK = 300, IN_FLIGHT = 3 };
static const kvf_request_id request = {7, 1};
static const uint8_t secret[16] = {1, 2, 3}, nonce[16] = {9, 9};
#define GRANT 0x50002ull

static struct {
    void *kv_memory, *tx_memory;
    kvf_kv *kv;
    kvf_tx *tx;
    kvf_block_id blocks[8];
    kvf_tx_act act;
    bool full[16]; /* links without room */
} w;

static void *zeroed(size_t size_bytes) {
    size_t rounded = (size_bytes + 63) & ~(size_t)63;
    void *p = aligned_alloc(64, rounded);
    assert_non_null(p);
    return memset(p, 0, rounded);
}
static int setup_with(kvf_time_ns relink) {
    kvf_kv_config kc = {.blocks = POOL, .events_max = 16};
    kvf_tx_config tc = {.handoffs_max = 3,
        .blocks_max = 8,
        .layers = LAYERS,
        .page_bytes = PAGE_BYTES,
        .inflight_max = IN_FLIGHT,
        .hold_ttl_ns = HOLD,
        .relink_ttl_ns = relink};
    memset(&w, 0, sizeof w);
    w.kv = kvf_kv_init(w.kv_memory = zeroed(kvf_kv_size(&kc)), &kc);
    w.tx = kvf_tx_init(w.tx_memory = zeroed(kvf_tx_size(&tc)), &tc, w.kv);
    assert_int_equal(kvf_kv_book(w.kv, 8), KVF_OK);
    for (int i = 0; i < 8; i++) assert_int_equal(kvf_kv_take(w.kv, &w.blocks[i]), KVF_OK);
    return 0;
}
static int setup(void **state) { return setup_with(0); }
static int setup_relink(void **state) { return setup_with(RELINK); }
static int teardown(void **state) {
    kvf_error err;
    if (kvf_tx_audit(w.tx, &err) || kvf_kv_audit(w.kv, &err)) fail_msg("%s", err.message);
    free(w.kv_memory);
    free(w.tx_memory);
    return 0;
}
static bool has_room(void *self, kvf_link_id link) { return !w.full[link]; }
static bool next(void) {
    kvf_error err;
    if (kvf_tx_audit(w.tx, &err) || kvf_kv_audit(w.kv, &err)) fail_msg("%s", err.message);
    bool some = kvf_tx_next(w.tx, has_room, NULL, &w.act);
    if (kvf_tx_audit(w.tx, &err) || kvf_kv_audit(w.kv, &err)) fail_msg("%s", err.message);
    return some;
}
static void expect_nothing(void) {
    if (next()) fail_msg("act %d frame %d", w.act.kind, w.act.frame.kind);
}
static void expect_frame(kvf_frame_kind kind, kvf_link_id link) {
    assert_true(next());
    assert_int_equal(w.act.kind, KVF_TX_FRAME);
    assert_int_equal(w.act.frame.kind, kind);
    assert_int_equal(w.act.link, link);
}
static uint64_t expect_page(uint32_t block, uint32_t layer) {
    assert_true(next());
    assert_int_equal(w.act.kind, KVF_TX_PAGE);
    assert_int_equal(w.act.header.block, block);
    assert_int_equal(w.act.header.layer, layer);
    assert_int_equal(w.act.header.len_bytes, PAGE_BYTES);
    return w.act.token;
}
static void expect_end(kvf_tx_id id, kvf_status result) {
    assert_true(next());
    assert_int_equal(w.act.kind, KVF_TX_END);
    assert_int_equal(w.act.id, id);
    assert_int_equal(w.act.result, result);
}
static void answer(kvf_link_id link, kvf_frame_kind kind) {
    kvf_frame f = {.kind = kind, .opened = {GRANT}};
    if (kind == KVF_FRAME_GONE) f.gone.reason = KVF_ERR_DEADLINE;
    kvf_tx_on_frame(w.tx, 100, link, &f);
}
static void answer_missing(kvf_link_id link, const kvf_page_name *pages, uint32_t count) {
    kvf_tx_on_frame(w.tx, 100, link, &(kvf_frame){.kind = KVF_FRAME_MISSING, .missing = {GRANT, count, pages}});
}
static kvf_tx_id start(const uint32_t *missing, uint32_t count) {
    kvf_tx_id id;
    assert_int_equal(kvf_tx_start(w.tx, 0, request, 1, GRANT, secret, missing, count, &id), KVF_OK);
    for (uint32_t i = 0; i < 8; i++) kvf_tx_set_block(w.tx, id, i, w.blocks[i]);
    return id;
}
static kvf_tx_id start_moving(const uint32_t *missing, uint32_t count, kvf_link_id link) {
    kvf_tx_id id = start(missing, count);
    kvf_tx_set_link(w.tx, 0, id, link, nonce);
    expect_frame(KVF_FRAME_OPEN, link);
    answer(link, KVF_FRAME_OPENED);
    return id;
}
static uint32_t uses_of(kvf_block_id block) {
    kvf_block_info info;
    assert_true(kvf_kv_block_at(w.kv, block.index, &info));
    return info.uses;
}
static const uint32_t two[] = {1, 3};

static void a_handoff_goes_its_way(void **state) {
    kvf_tx_id id = start(two, 2);
    kvf_tx_pages_ready(w.tx, id, 0, 4, 0); /* ready before there is a link */
    expect_nothing();
    kvf_tx_set_link(w.tx, 1, id, 4, nonce);
    expect_frame(KVF_FRAME_OPEN, 4);
    uint8_t proof[32];
    kvf_grant_proof(secret, nonce, GRANT, request, 1, 1, proof);
    assert_memory_equal(w.act.frame.open.proof, proof, 32);
    assert_true(w.act.frame.open.grant == GRANT && w.act.frame.open.attempt == 1 && w.act.frame.open.turn == 1);
    expect_nothing(); /* not before OPENED */
    answer(4, KVF_FRAME_OPENED);
    uint64_t a = expect_page(1, 0), b = expect_page(3, 0); /* 0 and 2 are not missing there */
    assert_true(kvf_block_id_equal(w.act.block, w.blocks[3]));
    expect_nothing();
    assert_int_equal(uses_of(w.blocks[1]), 1);
    kvf_tx_on_page_sent(w.tx, 5, a, true, 10);
    kvf_tx_on_page_sent(w.tx, 6, b, true, 20);
    assert_int_equal(uses_of(w.blocks[1]), 0);
    kvf_tx_pages_ready(w.tx, id, 0, 4, 1);
    a = expect_page(1, 1);
    b = expect_page(3, 1);
    kvf_tx_finish(w.tx, 7, id, (kvf_span){"abc", 3});
    kvf_tx_on_page_sent(w.tx, 8, b, true, 40);
    expect_nothing(); /* COMMIT is the last frame: one page is not out yet */
    kvf_tx_on_page_sent(w.tx, 9, a, true, 30);
    expect_frame(KVF_FRAME_COMMIT, 4);
    assert_int_equal(w.act.frame.commit.page_count, 4);
    assert_true(w.act.frame.commit.digest == kvf_page_digest(1, 0, 10) + kvf_page_digest(3, 0, 20) +
                                                 kvf_page_digest(1, 1, 30) + kvf_page_digest(3, 1, 40));
    assert_memory_equal(w.act.frame.commit.payload.data, "abc", 3);
    expect_nothing();
    answer(4, KVF_FRAME_COMMITTED);
    expect_end(id, KVF_OK);
    assert_int_equal(w.act.pages, 4);
    assert_int_equal(w.act.bytes, 4 * PAGE_BYTES);
    assert_int_equal(w.act.first_page_ns, 5);
    assert_int_equal(w.act.finished_ns, 7);
    assert_int_equal(w.act.ended_ns, 100);
    expect_nothing();
    assert_int_equal(kvf_tx_active(w.tx), 0);
    answer(4, KVF_FRAME_COMMITTED); /* again: nobody is there */
    expect_nothing();
}

static void nothing_to_ship_is_committed_at_once(void **state) {
    kvf_tx_id id = start_moving(NULL, 0, 4);
    expect_nothing();
    kvf_tx_finish(w.tx, 1, id, (kvf_span){NULL, 0});
    expect_frame(KVF_FRAME_COMMIT, 4);
    assert_int_equal(w.act.frame.commit.page_count, 0);
}

static void what_is_held_is_not_committed(void **state) {
    kvf_tx_id id = start_moving(NULL, 0, 4);
    kvf_tx_finish(w.tx, 1, id, (kvf_span){NULL, 0});
    kvf_tx_hold(w.tx, 1, id, true);
    expect_nothing();
    assert_true(kvf_tx_deadline(w.tx) == KVF_TIME_NEVER);
    kvf_tx_hold(w.tx, 77, id, false);
    assert_true(kvf_tx_deadline(w.tx) > 77 && kvf_tx_deadline(w.tx) != KVF_TIME_NEVER);
    expect_frame(KVF_FRAME_COMMIT, 4);
}

static void ranges_keep_their_order_and_pages_go_once(void **state) {
    static const uint32_t all[] = {0, 1, 2, 5};
    kvf_tx_id id = start_moving(all, 4, 4);
    kvf_tx_pages_ready(w.tx, id, 5, 1, KVF_TX_ALL_LAYERS);
    kvf_tx_pages_ready(w.tx, id, 0, 2, 1);
    kvf_tx_pages_ready(w.tx, id, 0, 3, 0);
    kvf_tx_pages_ready(w.tx, id, 0, 8, KVF_TX_ALL_LAYERS); /* most of it a second time */
    const uint32_t want[][2] = {{5, 0}, {5, 1}, {0, 1}, {1, 1}, {0, 0}, {1, 0}, {2, 0}, {2, 1}};
    for (size_t i = 0; i < KVF_COUNT_OF(want); i++)
        kvf_tx_on_page_sent(w.tx, 1, expect_page(want[i][0], want[i][1]), true, 0);
    expect_nothing();
    /* More ranges than are kept in order: still nothing is lost. */
    id = start_moving(all, 4, 5);
    for (int i = 0; i < 40; i++) kvf_tx_pages_ready(w.tx, id, 0, 1, 0);
    kvf_tx_pages_ready(w.tx, id, 5, 1, 1);
    for (int n = 0; n < 2; n++) {
        assert_true(next());
        assert_int_equal(w.act.kind, KVF_TX_PAGE);
    }
}

static void flight_is_bounded_per_link_and_links_are_held_back(void **state) {
    static const uint32_t all[] = {0, 1, 2, 3};
    kvf_tx_id a = start_moving(all, 4, 4);
    kvf_tx_pages_ready(w.tx, a, 0, 4, KVF_TX_ALL_LAYERS);
    uint64_t tokens[IN_FLIGHT];
    for (int i = 0; i < IN_FLIGHT; i++) {
        assert_true(next());
        tokens[i] = w.act.token;
    }
    expect_nothing();
    kvf_tx_on_page_sent(w.tx, 1, tokens[0], true, 0);
    assert_true(next());
    expect_nothing();
    w.full[4] = true;
    kvf_tx_on_page_sent(w.tx, 1, tokens[1], true, 0);
    expect_nothing();
    kvf_tx_id b = start(two, 2); /* another link goes on */
    kvf_tx_set_link(w.tx, 0, b, 5, nonce);
    expect_frame(KVF_FRAME_OPEN, 5);
    kvf_tx_cancel(w.tx, 1, a, KVF_ERR_CANCELLED);
    expect_nothing(); /* CANCEL has no room, END waits for the pages */
    w.full[4] = false;
    expect_frame(KVF_FRAME_CANCEL, 4);
}

static void handoffs_of_a_link_take_turns(void **state) {
    kvf_tx_id id[2];
    for (int i = 0; i < 2; i++) {
        assert_int_equal(kvf_tx_start(w.tx, 0, request, 1, GRANT + (uint64_t)i, secret, two, 2, &id[i]), KVF_OK);
        for (uint32_t b = 0; b < 8; b++) kvf_tx_set_block(w.tx, id[i], b, w.blocks[b]);
        kvf_tx_set_link(w.tx, 0, id[i], 4, nonce);
        expect_frame(KVF_FRAME_OPEN, 4);
        kvf_tx_on_frame(w.tx, 0, 4, &(kvf_frame){.kind = KVF_FRAME_OPENED, .opened = {GRANT + (uint64_t)i}});
        kvf_tx_pages_ready(w.tx, id[i], 0, 8, KVF_TX_ALL_LAYERS);
    }
    uint64_t last = 0;
    for (int n = 0; n < 8; n++) {
        assert_true(next());
        assert_true(w.act.header.grant != last);
        last = w.act.header.grant;
        kvf_tx_on_page_sent(w.tx, 1, w.act.token, true, 0);
    }
}

static void a_block_may_be_swapped_while_its_pages_leave(void **state) {
    kvf_tx_id id = start_moving(two, 2, 4);
    kvf_tx_pages_ready(w.tx, id, 1, 1, 0);
    uint64_t token = expect_page(1, 0);
    kvf_tx_set_block(w.tx, id, 1, w.blocks[6]);
    kvf_tx_pages_ready(w.tx, id, 1, 1, 1);
    uint64_t other = expect_page(1, 1);
    assert_true(kvf_block_id_equal(w.act.block, w.blocks[6]));
    assert_int_equal(uses_of(w.blocks[1]), 1);
    assert_int_equal(uses_of(w.blocks[6]), 1);
    kvf_tx_on_page_sent(w.tx, 1, token, true, 0);
    kvf_tx_on_page_sent(w.tx, 1, token, true, 0); /* told twice: once too often is ignored */
    assert_int_equal(uses_of(w.blocks[1]), 0);
    kvf_tx_on_page_sent(w.tx, 1, other, true, 0);
    assert_int_equal(uses_of(w.blocks[6]), 0);
}

static void ship_all(kvf_tx_id id) {
    kvf_tx_pages_ready(w.tx, id, 0, 8, KVF_TX_ALL_LAYERS);
    kvf_tx_finish(w.tx, 50, id, (kvf_span){NULL, 0});
    for (int i = 0; i < 4; i++) {
        assert_true(next());
        assert_int_equal(w.act.kind, KVF_TX_PAGE);
        kvf_tx_on_page_sent(w.tx, 60, w.act.token, true, w.act.header.block);
    }
    expect_frame(KVF_FRAME_COMMIT, w.act.link);
}

static void missing_pages_go_again_and_are_summed_once(void **state) {
    kvf_tx_id id = start_moving(two, 2, 4);
    ship_all(id);
    uint64_t digest = w.act.frame.commit.digest;
    const kvf_page_name names[] = {{3, 1}, {9, 0}, {1, 7}, {1, 0}, {3, 1}, {2, 0}}; /* four of them are nonsense */
    answer_missing(4, names, 6);
    answer_missing(4, names, 6); /* late repetition: not waiting for one */
    uint64_t a = expect_page(1, 0), b = expect_page(3, 1);
    expect_nothing();
    kvf_tx_on_page_sent(w.tx, 70, b, false, 0); /* did not leave: goes once more */
    kvf_tx_on_page_sent(w.tx, 70, a, true, 1);
    kvf_tx_on_page_sent(w.tx, 70, expect_page(3, 1), true, 3);
    expect_frame(KVF_FRAME_COMMIT, 4);
    assert_true(w.act.frame.commit.digest == digest);
    assert_int_equal(w.act.frame.commit.page_count, 4);
    answer(4, KVF_FRAME_COMMITTED);
    expect_end(id, KVF_OK);
    assert_int_equal(w.act.pages, 6);
}

static void a_link_that_spoils_everything_is_given_up(void **state) {
    kvf_tx_id id = start_moving(two, 2, 4);
    ship_all(id);
    const kvf_page_name name = {1, 0};
    int rounds = 1;
    for (;; rounds++) {
        assert_true(rounds < 100);
        answer_missing(4, &name, rounds % 2);
        if (rounds % 2) {
            if (!next() || w.act.kind != KVF_TX_PAGE) break;
            kvf_tx_on_page_sent(w.tx, 70, w.act.token, true, 0);
        }
        if (!next() || w.act.frame.kind != KVF_FRAME_COMMIT) break;
    }
    assert_int_equal(w.act.frame.kind, KVF_FRAME_CANCEL);
    expect_end(id, KVF_ERR_CORRUPT);
}

static void gone_ends_it_without_a_word(void **state) {
    kvf_tx_id id = start_moving(two, 2, 4);
    kvf_tx_pages_ready(w.tx, id, 1, 1, 0);
    uint64_t token = expect_page(1, 0);
    answer(5, KVF_FRAME_GONE); /* another link's */
    expect_nothing();
    answer(4, KVF_FRAME_GONE);
    expect_nothing(); /* a page is still leaving */
    kvf_tx_on_page_sent(w.tx, 200, token, true, 0);
    expect_end(id, KVF_ERR_DEADLINE);
    expect_nothing();
}

static void cancel_from_any_state_is_told_once(void **state) {
    kvf_tx_id id = start(two, 2);
    kvf_tx_cancel(w.tx, 1, id, KVF_ERR_CANCELLED); /* waiting: the receiver has heard nothing yet */
    kvf_tx_cancel(w.tx, 1, id, KVF_ERR_DEADLINE);
    expect_end(id, KVF_ERR_CANCELLED);
    kvf_tx_cancel(w.tx, 1, id, KVF_ERR_CANCELLED);
    expect_nothing();

    id = start(two, 2);
    kvf_tx_set_link(w.tx, 0, id, 4, nonce);
    kvf_tx_cancel(w.tx, 1, id, KVF_ERR_CANCELLED); /* OPEN has not left either */
    expect_end(id, KVF_ERR_CANCELLED);

    id = start_moving(two, 2, 4);
    kvf_tx_pages_ready(w.tx, id, 0, 8, 0);
    uint64_t token = expect_page(1, 0);
    kvf_tx_cancel(w.tx, 1, id, KVF_ERR_CANCELLED);
    expect_frame(KVF_FRAME_CANCEL, 4);
    expect_nothing();
    kvf_tx_pages_ready(w.tx, id, 0, 8, 1); /* the engine has not heard of it yet */
    kvf_tx_finish(w.tx, 2, id, (kvf_span){NULL, 0});
    kvf_tx_on_page_sent(w.tx, 3, token, true, 0);
    expect_end(id, KVF_ERR_CANCELLED);
    expect_nothing();

    id = start_moving(two, 2, 4);
    ship_all(id);
    kvf_tx_cancel(w.tx, 1, id, KVF_ERR_CANCELLED);
    answer(4, KVF_FRAME_COMMITTED); /* crossed on the way */
    expect_frame(KVF_FRAME_CANCEL, 4);
    expect_end(id, KVF_ERR_CANCELLED);
    expect_nothing();
}

static void committed_out_of_nowhere_is_not_believed(void **state) {
    kvf_tx_id id = start_moving(two, 2, 4);
    answer(4, KVF_FRAME_COMMITTED);
    expect_frame(KVF_FRAME_CANCEL, 4);
    expect_end(id, KVF_ERR_GONE);
}

static void a_finished_handoff_is_held_for_a_while_only(void **state) {
    kvf_tx_id id = start_moving(two, 2, 4);
    assert_int_equal(kvf_tx_deadline(w.tx), KVF_TIME_NEVER); /* computing takes as long as it takes */
    ship_all(id);
    assert_int_equal(kvf_tx_deadline(w.tx), 60 + HOLD);
    kvf_tx_on_time(w.tx, 60 + HOLD - 1);
    expect_nothing();
    kvf_tx_on_time(w.tx, 60 + HOLD);
    expect_frame(KVF_FRAME_CANCEL, 4);
    expect_end(id, KVF_ERR_DEADLINE);
    assert_int_equal(kvf_tx_deadline(w.tx), KVF_TIME_NEVER);

    id = start(two, 2); /* finished, and a link never comes */
    kvf_tx_finish(w.tx, 5000, id, (kvf_span){NULL, 0});
    kvf_tx_on_time(w.tx, 5000 + HOLD);
    expect_end(id, KVF_ERR_DEADLINE);
}

static void a_lost_link_ends_its_handoffs(void **state) {
    kvf_tx_id a = start_moving(two, 2, 4);
    kvf_tx_pages_ready(w.tx, a, 1, 1, 0);
    uint64_t token = expect_page(1, 0);
    kvf_tx_cancel(w.tx, 1, a, KVF_ERR_CANCELLED);
    kvf_tx_on_link_down(w.tx, 2, 4);
    expect_nothing(); /* no CANCEL into a dead link */
    kvf_tx_on_page_sent(w.tx, 3, token, false, 0);
    expect_end(a, KVF_ERR_CANCELLED);
    a = start_moving(two, 2, 4);
    kvf_tx_id b = start_moving(two, 2, 5);
    kvf_tx_on_link_down(w.tx, 4, 4);
    expect_end(a, KVF_ERR_PEER_LOST);
    expect_nothing();
    answer(5, KVF_FRAME_GONE);
    expect_end(b, KVF_ERR_DEADLINE);
}

static void a_blip_sends_only_what_it_swallowed(void **state) {
    kvf_tx_id id = start_moving(two, 2, 4);
    kvf_tx_pages_ready(w.tx, id, 0, 8, 0);
    kvf_tx_on_page_sent(w.tx, 1, expect_page(1, 0), true, 1);
    uint64_t token = expect_page(3, 0);
    kvf_tx_on_link_down(w.tx, 2, 4);
    assert_int_equal(kvf_tx_deadline(w.tx), 2 + RELINK);
    kvf_tx_pages_ready(w.tx, id, 1, 1, 1);
    expect_nothing();
    kvf_tx_set_link(w.tx, 3, id, 6, nonce);
    expect_frame(KVF_FRAME_OPEN, 6);
    assert_int_equal(w.act.frame.open.turn, 2);
    answer(6, KVF_FRAME_OPENED);
    kvf_tx_on_page_sent(w.tx, 4, expect_page(1, 1), true, 2);
    expect_nothing(); /* (3, 0) is still being read for the dead link */
    kvf_tx_on_page_sent(w.tx, 5, token, true, 99); /* "sent" into it: counts for nothing */
    kvf_tx_on_page_sent(w.tx, 5, expect_page(3, 0), true, 3);
    kvf_tx_pages_ready(w.tx, id, 3, 1, 1);
    kvf_tx_on_page_sent(w.tx, 5, expect_page(3, 1), true, 4);
    kvf_tx_finish(w.tx, 6, id, (kvf_span){NULL, 0});
    expect_frame(KVF_FRAME_COMMIT, 6);
    assert_true(w.act.frame.commit.digest == kvf_page_digest(1, 0, 1) + kvf_page_digest(1, 1, 2) +
                                                 kvf_page_digest(3, 0, 3) + kvf_page_digest(3, 1, 4));
    /* The answer is lost with the next link; the third one asks for it. */
    kvf_tx_on_link_down(w.tx, 7, 6);
    kvf_tx_set_link(w.tx, 8, id, 7, nonce);
    expect_frame(KVF_FRAME_OPEN, 7);
    assert_int_equal(w.act.frame.open.turn, 3);
    answer(7, KVF_FRAME_COMMITTED);
    expect_end(id, KVF_OK);

    id = start_moving(two, 2, 4);
    kvf_tx_on_link_down(w.tx, 10, 4);
    kvf_tx_on_time(w.tx, 10 + RELINK);
    expect_end(id, KVF_ERR_PEER_LOST);
}

static void slots_are_limited_and_ids_not_reused(void **state) {
    kvf_tx_id id[4];
    for (int i = 0; i < 3; i++)
        assert_int_equal(kvf_tx_start(w.tx, 0, request, 1, GRANT, secret, two, 2, &id[i]), KVF_OK);
    assert_int_equal(kvf_tx_start(w.tx, 0, request, 1, GRANT, secret, two, 2, &id[3]), KVF_AGAIN);
    kvf_tx_cancel(w.tx, 1, id[1], KVF_ERR_CANCELLED);
    expect_end(id[1], KVF_ERR_CANCELLED);
    assert_int_equal(kvf_tx_start(w.tx, 0, request, 1, GRANT, secret, two, 2, &id[3]), KVF_OK);
    assert_int_not_equal(id[3], id[1]);
    kvf_tx_cancel(w.tx, 1, id[1], KVF_ERR_CANCELLED); /* the old name means nobody */
    expect_nothing();
    assert_int_equal(kvf_tx_active(w.tx), 3);
}

int main(void) {
#define T(f) cmocka_unit_test_setup_teardown(f, setup, teardown)
    const struct CMUnitTest tests[] = {
        T(a_handoff_goes_its_way),
        T(nothing_to_ship_is_committed_at_once),
        T(what_is_held_is_not_committed),
        T(ranges_keep_their_order_and_pages_go_once),
        T(flight_is_bounded_per_link_and_links_are_held_back),
        T(handoffs_of_a_link_take_turns),
        T(a_block_may_be_swapped_while_its_pages_leave),
        T(missing_pages_go_again_and_are_summed_once),
        T(a_link_that_spoils_everything_is_given_up),
        T(gone_ends_it_without_a_word),
        T(cancel_from_any_state_is_told_once),
        T(committed_out_of_nowhere_is_not_believed),
        T(a_finished_handoff_is_held_for_a_while_only),
        T(a_lost_link_ends_its_handoffs),
        cmocka_unit_test_setup_teardown(a_blip_sends_only_what_it_swallowed, setup_relink, teardown),
        T(slots_are_limited_and_ids_not_reused),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
