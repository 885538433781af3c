#include "kv_fixture.h"

static uint32_t matched(kvf_kv *kv, kvf_hash128 root, const uint32_t *tokens, uint32_t blocks_max, kvf_block_id *out) {
    uint32_t n = kvf_kv_match(kv, root, tokens, blocks_max, out);
    pool_check(kv);
    return n;
}

static void a_prefix_is_found_up_to_the_first_difference(void **state) {
    kvf_kv *kv = pool_new(8, 16);
    kvf_block_id c[3], hit[4];
    chain_new(kv, 0, 3, c);
    uint32_t tokens[64];
    for (uint32_t i = 0; i < 64; i++) tokens[i] = 1000 * (i / 16) + i % 16;
    assert_int_equal(matched(kv, root_a(), tokens, 4, hit), 3);
    for (uint32_t i = 0; i < 3; i++) assert_block_equal(hit[i], c[i]);
    assert_int_equal(matched(kv, root_a(), tokens, 2, hit), 2);
    assert_int_equal(matched(kv, root_a(), tokens, 0, hit), 0);
    for (uint32_t i = 0; i < 48; i++) { /* any one token counts, and only from its block on */
        tokens[i]++;
        assert_int_equal(matched(kv, root_a(), tokens, 3, hit), i / 16);
        tokens[i]--;
    }
    assert_int_equal(count(kv).hits, 3 + 2 + 16 * (0 + 1 + 2));
    assert_int_equal(count(kv).misses, 1 + 16 * (3 + 2 + 1));
    pool_drop(kv);
}

/* KV-01: the second run of a prompt of L tokens finds 16 * floor((L - 1) / 16) of them, never all. */
static void a_whole_cached_prompt_still_leaves_a_token_to_compute(void **state) {
    kvf_kv *kv = pool_new(8, 16);
    kvf_block_id c[4], hit[4];
    chain_new(kv, 0, 4, c);
    uint32_t tokens[64];
    for (uint32_t i = 0; i < 64; i++) tokens[i] = 1000 * (i / 16) + i % 16;
    for (uint32_t length = 1; length <= 49; length++) {
        uint32_t n = matched(kv, root_a(), tokens, (length - 1) / KVF_KV_BLOCK_TOKENS, hit);
        assert_true(16 * n < length && length - 16 * n <= 16);
        static const uint32_t at[] = {16, 17, 32, 33, 48, 49}, cached[] = {0, 16, 16, 32, 32, 48};
        for (size_t i = 0; i < KVF_COUNT_OF(at); i++)
            if (at[i] == length) assert_int_equal(16 * n, cached[i]);
    }
    pool_drop(kv);
}

/* KV-03: equal tokens under other identities are other blocks, whatever role a string plays. */
static void identities_numerics_and_salts_do_not_share(void **state) {
    const char *const parts[][3] = {{"model", "f16", ""}, {"model", "f16", "x"}, {"model", "x", ""}, {"x", "f16", ""},
        {"modelf16", "", ""}, {"model", "", "f16"}, {"", "modelf16", ""}, {"", "", "modelf16"}, {"", "", ""}};
    enum { ROOTS = KVF_COUNT_OF(parts) };
    kvf_hash128 root[ROOTS];
    kvf_kv *kv = pool_new(2 * ROOTS, 64);
    tokens16 t = tokens_from(5);
    kvf_block_id ids[ROOTS], hit;
    for (size_t i = 0; i < ROOTS; i++) {
        root[i] = kvf_kv_root(span_of(parts[i][0]), span_of(parts[i][1]), span_of(parts[i][2]));
        assert_int_equal(matched(kv, root[i], t.t, 1, &hit), 0);
        kvf_block_id id = take_one(kv);
        assert_int_equal(kvf_kv_seal(kv, id, root[i], KVF_BLOCK_NONE, t.t, &ids[i]), KVF_OK);
        assert_block_equal(ids[i], id);
    }
    for (size_t i = 0; i < ROOTS; i++) {
        assert_int_equal(matched(kv, root[i], t.t, 1, &hit), 1);
        assert_block_equal(hit, ids[i]);
    }
    assert_int_equal(count(kv).duplicates_dropped, 0);
    pool_drop(kv);
}

static void equal_tokens_under_another_parent_are_another_block(void **state) {
    kvf_kv *kv = pool_new(4, 8);
    kvf_block_id a = seal_under(kv, take_one(kv), KVF_BLOCK_NONE, 0),
                 b = seal_under(kv, take_one(kv), KVF_BLOCK_NONE, 50);
    kvf_block_id c = take_one(kv), d = take_one(kv);
    assert_block_equal(seal_under(kv, c, a, 7), c);
    assert_block_equal(seal_under(kv, d, b, 7), d);
    assert_int_equal(count(kv).duplicates_dropped, 0);
    pool_drop(kv);
}

static void names_are_the_same_everywhere(void **state) {
    tokens16 t = tokens_from(1);
    kvf_hash128 root = root_a(), next = kvf_kv_next(root, t.t);
    assert_true(kvf_hash128_equal(root, root_a()));
    assert_true(kvf_hash128_equal(next, kvf_kv_next(root, t.t)));
    assert_false(kvf_hash128_equal(next, kvf_kv_next(next, t.t)));
    /* Made with Python's hashlib and xxhash from the layout in src/index.c: a change of either breaks every router. */
    assert_int_equal(root.lo, 0x5c7014f02837486cull);
    assert_int_equal(root.hi, 0x41b505621a4439acull);
    assert_int_equal(next.lo, 0xba9b4c391c86c565ull);
    assert_int_equal(next.hi, 0x11c54293af203f5bull);
}

static void a_twin_takes_over_the_pin_and_the_copy_is_freed(void **state) {
    kvf_kv *kv = pool_new(4, 8);
    kvf_block_id a = take_one(kv), b = take_one(kv);
    a = seal_under(kv, a, KVF_BLOCK_NONE, 0);
    assert_block_equal(seal_under(kv, b, KVF_BLOCK_NONE, 0), a);
    assert_int_equal(info_of(kv, a).pins, 2);
    assert_int_equal(info_of(kv, b).state, KVF_BLOCK_FREE);
    assert_int_equal(info_of(kv, b).id.generation, b.generation + 1);
    assert_int_equal(count(kv).duplicates_dropped, 1);
    kvf_kv_unpin(kv, a);
    kvf_kv_unpin(kv, a);
    pool_drop(kv);
}

static void the_copy_outlives_its_swap_while_something_uses_it(void **state) {
    kvf_kv *kv = pool_new(4, 8);
    kvf_block_id a = seal_under(kv, take_one(kv), KVF_BLOCK_NONE, 0), b = take_one(kv);
    assert_int_equal(kvf_kv_use_begin(kv, b), KVF_OK);
    assert_block_equal(seal_under(kv, b, KVF_BLOCK_NONE, 0), a);
    kvf_block_info info = info_of(kv, b);
    assert_int_equal(info.state, KVF_BLOCK_SEALED);
    assert_false(info.indexed);
    assert_int_equal(info.pins, 0);
    pool_check(kv);
    kvf_kv_use_end(kv, b);
    assert_int_equal(info_of(kv, b).state, KVF_BLOCK_FREE);
    pool_drop(kv);
}

static void a_copy_with_a_second_holder_stays_his(void **state) {
    kvf_kv *kv = pool_new(4, 8);
    kvf_block_id a = seal_under(kv, take_one(kv), KVF_BLOCK_NONE, 0), b = take_one(kv);
    assert_int_equal(kvf_kv_pin(kv, b), KVF_OK); /* a grant that is sending it */
    assert_block_equal(seal_under(kv, b, KVF_BLOCK_NONE, 0), a);
    assert_int_equal(info_of(kv, b).pins, 1);
    kvf_kv_unpin(kv, b);
    assert_int_equal(info_of(kv, b).state, KVF_BLOCK_FREE);
    pool_drop(kv);
}

static void a_full_pool_swaps_when_the_copy_pays_for_its_twin(void **state) {
    kvf_kv *kv = pool_new(2, 8);
    kvf_block_id b = take_one(kv), a = seal_under(kv, take_one(kv), KVF_BLOCK_NONE, 0);
    kvf_kv_unpin(kv, a);
    assert_int_equal(kvf_kv_book(kv, 1), KVF_OK);
    assert_int_equal(kvf_kv_room(kv), 0);
    assert_block_equal(seal_under(kv, b, KVF_BLOCK_NONE, 0), a);
    assert_int_equal(kvf_kv_room(kv), 0);
    assert_int_equal(info_of(kv, b).state, KVF_BLOCK_FREE);
    kvf_kv_unbook(kv, 1);
    kvf_kv_unpin(kv, a);
    pool_drop(kv);
}

static void a_copy_in_use_is_kept_privately_when_its_twin_has_no_room(void **state) {
    kvf_kv *kv = pool_new(3, 8);
    kvf_block_id b = take_one(kv), a = seal_under(kv, take_one(kv), KVF_BLOCK_NONE, 0), now;
    kvf_kv_unpin(kv, a);
    assert_int_equal(kvf_kv_use_begin(kv, b), KVF_OK);
    assert_int_equal(kvf_kv_book(kv, 2), KVF_OK);
    tokens16 t = tokens_from(0);
    assert_int_equal(kvf_kv_seal(kv, b, root_a(), KVF_BLOCK_NONE, t.t, &now), KVF_AGAIN);
    assert_block_equal(now, b);
    assert_int_equal(info_of(kv, b).state, KVF_BLOCK_SEALED);
    assert_false(info_of(kv, b).indexed);
    assert_int_equal(info_of(kv, a).pins, 0);
    assert_int_equal(count(kv).duplicates_dropped, 0);
    pool_check(kv);
    /* What follows a private block is private. */
    kvf_block_id c;
    assert_int_equal(kvf_kv_take(kv, &c), KVF_OK);
    assert_block_equal(seal_under(kv, c, b, 9), c);
    assert_false(info_of(kv, c).indexed);
    kvf_kv_use_end(kv, b);
    kvf_kv_unpin(kv, c);
    kvf_kv_unpin(kv, b);
    assert_int_equal(count(kv).evictable + count(kv).free, 3);
    kvf_kv_unbook(kv, count(kv).booked);
    pool_drop(kv);
}

static void sealing_refuses_what_it_cannot_name(void **state) {
    kvf_kv *kv = pool_new(6, 8);
    kvf_block_id a = seal_under(kv, take_one(kv), KVF_BLOCK_NONE, 0), b = take_one(kv), c = take_one(kv),
                 now = KVF_BLOCK_NONE;
    tokens16 t = tokens_from(3);
    assert_int_equal(kvf_kv_seal(kv, a, root_a(), KVF_BLOCK_NONE, t.t, &now), KVF_ERR_INVALID); /* sealed already */
    assert_int_equal(kvf_kv_seal(kv, b, root_a(), c, t.t, &now), KVF_ERR_INVALID); /* parent still filling */
    assert_int_equal(kvf_kv_seal(kv, b, root_a(), b, t.t, &now), KVF_ERR_INVALID);
    kvf_kv_unpin(kv, c);
    assert_int_equal(kvf_kv_seal(kv, b, root_a(), c, t.t, &now), KVF_ERR_STALE);
    assert_int_equal(kvf_kv_seal(kv, c, root_a(), a, t.t, &now), KVF_ERR_STALE);
    kvf_kv_unpin(kv, a);
    assert_int_equal(
        kvf_kv_seal(kv, b, root_a(), a, t.t, &now), KVF_ERR_INVALID); /* parent could be evicted any time */
    assert_int_equal(info_of(kv, b).state, KVF_BLOCK_FILLING);
    assert_int_equal(now.index, KVF_KV_NO_BLOCK);
    kvf_kv_unpin(kv, b);
    pool_drop(kv);
}

static void flushing_forgets_names_and_frees_what_nobody_holds(void **state) {
    kvf_kv *kv = pool_new(8, 32);
    kvf_block_id a[2], b[3], hit[3], f = take_one(kv);
    chain_new(kv, 0, 2, a);
    chain_new(kv, 100000, 3, b);
    chain_unpin(kv, a, 2);
    kvf_kv_unpin(kv, b[0]); /* held only by its children */
    assert_int_equal(kvf_kv_use_begin(kv, b[2]), KVF_OK); /* and b[2] only by a use */
    kvf_kv_unpin(kv, b[2]);
    assert_int_equal(kvf_kv_flush(kv), 3); /* a[0], a[1], b[0] */
    pool_check(kv);
    kvf_kv_counts c = count(kv);
    assert_int_equal(c.free, 5);
    assert_int_equal(c.sealed, 2);
    assert_int_equal(c.evictable, 0);
    tokens16 t = tokens_from(100000);
    assert_int_equal(matched(kv, root_a(), t.t, 1, hit), 0);
    kvf_kv_use_end(kv, b[2]);
    assert_int_equal(info_of(kv, b[2]).state, KVF_BLOCK_FREE);
    assert_block_equal(seal_under(kv, f, b[1], 1), f); /* the running sequence goes on, unnamed */
    assert_false(info_of(kv, f).indexed);
    kvf_kv_unpin(kv, f);
    kvf_kv_unpin(kv, b[1]);
    assert_int_equal(count(kv).free, 8);
    assert_int_equal(kvf_kv_flush(kv), 0);
    pool_drop(kv);
}

static void events_are_numbered_without_a_gap_and_tell_the_whole_index(void **state) {
    kvf_kv *kv = pool_new(2, 8);
    kvf_kv_event e;
    assert_int_equal(kvf_kv_event_next(kv), 1);
    assert_false(kvf_kv_event_at(kv, 0, &e));
    assert_false(kvf_kv_event_at(kv, 1, &e));
    kvf_block_id c[2];
    chain_new(kv, 0, 2, c);
    kvf_hash128 name0 = info_of(kv, c[0]).name, name1 = info_of(kv, c[1]).name;
    chain_unpin(kv, c, 2);
    kvf_kv_unpin(kv, take_one(kv)); /* evicts the leaf */
    assert_int_equal(kvf_kv_event_next(kv), 4);
    const kvf_kv_event want[3] = {{1, true, name0}, {2, true, name1}, {3, false, name1}};
    for (uint64_t i = 0; i < 3; i++) {
        assert_true(kvf_kv_event_at(kv, i + 1, &e));
        assert_int_equal(e.number, want[i].number);
        assert_int_equal(e.stored, want[i].stored);
        assert_true(kvf_hash128_equal(e.name, want[i].name));
    }
    kvf_block_info info;
    assert_true(kvf_kv_block_find(kv, name0, &info));
    assert_block_equal(info.id, c[0]);
    assert_false(kvf_kv_block_find(kv, name1, &info));
    pool_drop(kv);
}

static void a_reader_that_fell_behind_the_ring_takes_a_snapshot(void **state) {
    kvf_kv *kv = pool_new(8, 4);
    kvf_block_id c[6];
    chain_new(kv, 0, 6, c);
    kvf_kv_event e;
    assert_false(kvf_kv_event_at(kv, 1, &e));
    assert_false(kvf_kv_event_at(kv, 2, &e));
    for (uint64_t n = 3; n <= 6; n++) assert_true(kvf_kv_event_at(kv, n, &e) && e.number == n);
    assert_false(kvf_kv_event_at(kv, 7, &e));
    /* The snapshot is valid at event_next: what it lists is what all events up to there made. */
    uint32_t named = 0;
    kvf_block_info info;
    for (uint32_t i = 0; kvf_kv_block_at(kv, i, &info); i++) named += info.indexed;
    assert_int_equal(named, 6);
    assert_int_equal(kvf_kv_event_next(kv), 7);
    pool_drop(kv);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_prefix_is_found_up_to_the_first_difference),
        cmocka_unit_test(a_whole_cached_prompt_still_leaves_a_token_to_compute),
        cmocka_unit_test(identities_numerics_and_salts_do_not_share),
        cmocka_unit_test(equal_tokens_under_another_parent_are_another_block),
        cmocka_unit_test(names_are_the_same_everywhere),
        cmocka_unit_test(a_twin_takes_over_the_pin_and_the_copy_is_freed),
        cmocka_unit_test(the_copy_outlives_its_swap_while_something_uses_it),
        cmocka_unit_test(a_copy_with_a_second_holder_stays_his),
        cmocka_unit_test(a_full_pool_swaps_when_the_copy_pays_for_its_twin),
        cmocka_unit_test(a_copy_in_use_is_kept_privately_when_its_twin_has_no_room),
        cmocka_unit_test(sealing_refuses_what_it_cannot_name),
        cmocka_unit_test(flushing_forgets_names_and_frees_what_nobody_holds),
        cmocka_unit_test(events_are_numbered_without_a_gap_and_tell_the_whole_index),
        cmocka_unit_test(a_reader_that_fell_behind_the_ring_takes_a_snapshot),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
