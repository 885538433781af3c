#include "kv_fixture.h"

static void a_new_pool_is_free_and_whole(void **state) {
    kvf_kv *kv = pool_new(5, 8);
    kvf_kv_counts c = count(kv);
    assert_int_equal(c.total, 5);
    assert_int_equal(c.free, 5);
    assert_int_equal(c.filling + c.sealed + c.pinned + c.in_use + c.evictable + c.booked, 0);
    assert_int_equal(kvf_kv_room(kv), 5);
    for (uint32_t i = 0; i < 5; i++) {
        kvf_block_info info = info_of(kv, (kvf_block_id){i, 1});
        assert_int_equal(info.id.generation, 1);
        assert_int_equal(info.state, KVF_BLOCK_FREE);
    }
    kvf_block_info info;
    assert_false(kvf_kv_block_at(kv, 5, &info));
    pool_drop(kv);
}

static void one_block_is_a_pool(void **state) {
    kvf_kv *kv = pool_new(1, 1);
    for (uint32_t round = 1; round <= 3; round++) {
        kvf_block_id id = seal_under(kv, take_one(kv), KVF_BLOCK_NONE, 100 * round);
        assert_int_equal(id.generation, round);
        kvf_kv_unpin(kv, id);
        pool_check(kv);
    }
    assert_int_equal(count(kv).evictions, 2);
    pool_drop(kv);
}

static void booking_is_refused_without_room_and_changes_nothing(void **state) {
    kvf_kv *kv = pool_new(4, 8);
    assert_int_equal(kvf_kv_book(kv, 3), KVF_OK);
    assert_int_equal(kvf_kv_book(kv, 2), KVF_AGAIN);
    assert_int_equal(kvf_kv_book(kv, UINT32_MAX), KVF_AGAIN);
    assert_int_equal(count(kv).booked, 3);
    assert_int_equal(kvf_kv_book(kv, 0), KVF_OK);
    assert_int_equal(kvf_kv_book(kv, 1), KVF_OK);
    assert_int_equal(kvf_kv_room(kv), 0);
    kvf_kv_unbook(kv, 4);
    assert_int_equal(kvf_kv_room(kv), 4);
    pool_drop(kv);
}

static void taking_spends_what_was_booked_and_nothing_else(void **state) {
    kvf_kv *kv = pool_new(3, 8);
    kvf_block_id id;
    assert_int_equal(kvf_kv_take(kv, &id), KVF_ERR_NO_ROOM);
    assert_int_equal(kvf_kv_book(kv, 3), KVF_OK);
    for (uint32_t i = 0; i < 3; i++) {
        assert_int_equal(kvf_kv_take(kv, &id), KVF_OK);
        assert_int_equal(count(kv).booked, 2 - i);
        assert_int_equal(kvf_kv_room(kv), 0);
    }
    assert_int_equal(kvf_kv_take(kv, &id), KVF_ERR_NO_ROOM);
    pool_drop(kv);
}

static void dropping_a_filling_block_frees_it_under_a_new_generation(void **state) {
    kvf_kv *kv = pool_new(2, 8);
    kvf_block_id id = take_one(kv);
    kvf_kv_set_filled(kv, id, 5);
    kvf_kv_unpin(kv, id);
    kvf_block_info info = info_of(kv, id);
    assert_int_equal(info.state, KVF_BLOCK_FREE);
    assert_int_equal(info.id.generation, id.generation + 1);
    assert_int_equal(count(kv).slots_empty, 0);
    assert_int_equal(kvf_kv_pin(kv, id), KVF_ERR_STALE);
    assert_int_equal(kvf_kv_use_begin(kv, id), KVF_ERR_STALE);
    pool_drop(kv);
}

static void a_free_block_cannot_be_pinned_even_with_its_generation(void **state) {
    kvf_kv *kv = pool_new(2, 8);
    assert_int_equal(kvf_kv_pin(kv, (kvf_block_id){0, 1}), KVF_ERR_STALE);
    assert_int_equal(kvf_kv_use_begin(kv, (kvf_block_id){0, 1}), KVF_ERR_STALE);
    assert_int_equal(kvf_kv_pin(kv, KVF_BLOCK_NONE), KVF_ERR_STALE);
    pool_drop(kv);
}

static void a_use_keeps_a_dropped_block_from_reuse(void **state) {
    kvf_kv *kv = pool_new(1, 8);
    kvf_block_id id = take_one(kv);
    assert_int_equal(kvf_kv_use_begin(kv, id), KVF_OK);
    assert_int_equal(kvf_kv_use_begin(kv, id), KVF_OK);
    kvf_kv_unpin(kv, id);
    assert_int_equal(info_of(kv, id).state, KVF_BLOCK_FILLING);
    assert_int_equal(kvf_kv_book(kv, 1), KVF_AGAIN); /* its room comes back only with the last use */
    kvf_kv_use_end(kv, id);
    assert_int_equal(kvf_kv_book(kv, 1), KVF_AGAIN);
    pool_check(kv);
    kvf_kv_use_end(kv, id);
    assert_int_equal(info_of(kv, id).state, KVF_BLOCK_FREE);
    assert_int_equal(kvf_kv_book(kv, 1), KVF_OK);
    kvf_kv_unbook(kv, 1);
    pool_drop(kv);
}

static void a_pin_taken_in_time_saves_a_block_in_use(void **state) {
    kvf_kv *kv = pool_new(1, 8);
    kvf_block_id id = take_one(kv);
    assert_int_equal(kvf_kv_use_begin(kv, id), KVF_OK);
    kvf_kv_unpin(kv, id);
    assert_int_equal(kvf_kv_pin(kv, id), KVF_OK);
    kvf_kv_use_end(kv, id);
    assert_int_equal(info_of(kv, id).state, KVF_BLOCK_FILLING);
    kvf_kv_unpin(kv, id);
    pool_drop(kv);
}

static void waste_follows_filled_slots_and_never_grows_back(void **state) {
    kvf_kv *kv = pool_new(3, 8);
    kvf_block_id a = take_one(kv), b = take_one(kv);
    assert_int_equal(count(kv).slots_empty, 32);
    kvf_kv_set_filled(kv, a, 10);
    assert_int_equal(count(kv).slots_empty, 22);
    kvf_kv_set_filled(kv, a, 4);
    assert_int_equal(count(kv).slots_empty, 22);
    kvf_kv_set_filled(kv, a, 16);
    a = seal_under(kv, a, KVF_BLOCK_NONE, 0);
    assert_int_equal(count(kv).slots_empty, 16);
    kvf_kv_unpin(kv, b);
    assert_int_equal(count(kv).slots_empty, 0);
    kvf_kv_unpin(kv, a);
    pool_drop(kv);
}

static void pinning_a_cached_block_needs_room(void **state) {
    kvf_kv *kv = pool_new(2, 8);
    kvf_block_id a = take_one(kv);
    a = seal_under(kv, a, KVF_BLOCK_NONE, 0);
    kvf_kv_unpin(kv, a);
    assert_int_equal(kvf_kv_pin_cost(kv, &a, 1), 1);
    assert_int_equal(kvf_kv_book(kv, 2), KVF_OK); /* one free block and the cached one are promised now */
    assert_int_equal(kvf_kv_pin(kv, a), KVF_AGAIN);
    assert_int_equal(kvf_kv_use_begin(kv, a), KVF_AGAIN); /* a use would hold it just as a pin does */
    assert_int_equal(info_of(kv, a).pins + info_of(kv, a).uses, 0);
    kvf_kv_unbook(kv, 1);
    assert_int_equal(kvf_kv_pin(kv, a), KVF_OK);
    assert_int_equal(kvf_kv_room(kv), 0);
    assert_int_equal(kvf_kv_pin_cost(kv, &a, 1), 0);
    assert_int_equal(kvf_kv_pin(kv, a), KVF_OK); /* a second pin costs nothing */
    kvf_kv_unpin(kv, a);
    kvf_kv_unpin(kv, a);
    kvf_kv_unbook(kv, 1);
    pool_drop(kv);
}

static void a_send_that_outlives_its_pins_keeps_room_away_until_it_ends(void **state) {
    kvf_kv *kv = pool_new(3, 8);
    kvf_block_id c[3];
    chain_new(kv, 0, 3, c);
    assert_int_equal(kvf_kv_use_begin(kv, c[1]), KVF_OK);
    chain_unpin(kv, c, 3);
    /* c[2] may go; c[1] is being read, and c[0] cannot be evicted before it. */
    assert_int_equal(count(kv).evictable, 1);
    assert_int_equal(kvf_kv_book(kv, 2), KVF_AGAIN);
    kvf_block_id x = take_one(kv);
    assert_int_equal(x.index, c[2].index);
    pool_check(kv);
    kvf_kv_use_end(kv, c[1]);
    assert_int_equal(count(kv).evictable, 2);
    assert_int_equal(take_one(kv).index, c[1].index);
    assert_int_equal(take_one(kv).index, c[0].index);
    pool_drop(kv);
}

static void holders_may_let_go_in_any_order(void **state) {
    kvf_kv *kv = pool_new(4, 8);
    kvf_block_id c[4];
    chain_new(kv, 0, 4, c);
    kvf_kv_unpin(kv, c[0]);
    kvf_kv_unpin(kv, c[2]);
    kvf_kv_unpin(kv, c[1]);
    assert_int_equal(count(kv).evictable, 0);
    pool_check(kv);
    kvf_kv_unpin(kv, c[3]);
    assert_int_equal(count(kv).evictable, 4);
    for (uint32_t i = 4; i-- > 0;) assert_int_equal(take_one(kv).index, c[i].index);
    pool_drop(kv);
}

static void eviction_is_leaf_first_then_least_recently_let_go(void **state) {
    kvf_kv *kv = pool_new(6, 16);
    kvf_block_id a[3], b[3];
    chain_new(kv, 0, 3, a);
    chain_new(kv, 100000, 3, b);
    chain_unpin(kv, a, 3);
    chain_unpin(kv, b, 3);
    assert_int_equal(kvf_kv_pin(kv, a[0]), KVF_OK); /* touched again: the youngest now */
    kvf_kv_unpin(kv, a[0]);
    const kvf_block_id order[6] = {a[2], a[1], b[2], b[1], b[0], a[0]};
    for (uint32_t i = 0; i < 6; i++) assert_int_equal(take_one(kv).index, order[i].index);
    assert_int_equal(count(kv).evictions, 6);
    pool_drop(kv);
}

static void free_blocks_are_used_before_cached_ones(void **state) {
    kvf_kv *kv = pool_new(2, 8);
    kvf_block_id a = seal_under(kv, take_one(kv), KVF_BLOCK_NONE, 0);
    kvf_kv_unpin(kv, a);
    kvf_block_id b = take_one(kv);
    assert_int_not_equal(b.index, a.index);
    assert_int_equal(count(kv).evictions, 0);
    kvf_kv_unpin(kv, b);
    pool_drop(kv);
}

static void a_chain_is_pinned_from_its_first_block_on(void **state) {
    kvf_kv *kv = pool_new(3, 8);
    kvf_block_id c[2];
    chain_new(kv, 0, 2, c);
    chain_unpin(kv, c, 2);
    assert_int_equal(kvf_kv_pin(kv, c[1]), KVF_ERR_INVALID);
    assert_int_equal(kvf_kv_use_begin(kv, c[1]), KVF_ERR_INVALID);
    assert_int_equal(kvf_kv_pin(kv, c[0]), KVF_OK);
    assert_int_equal(kvf_kv_pin(kv, c[1]), KVF_OK);
    chain_unpin(kv, c, 2);
    pool_drop(kv);
}

static void a_full_pool_still_lets_booked_growth_through(void **state) {
    kvf_kv *kv = pool_new(8, 16);
    assert_int_equal(kvf_kv_book(kv, 2), KVF_OK); /* a running sequence's growth */
    kvf_block_id c[6];
    chain_new(kv, 0, 6, c);
    assert_int_equal(kvf_kv_book(kv, 1), KVF_AGAIN); /* nobody else gets in */
    kvf_block_id id;
    assert_int_equal(kvf_kv_take(kv, &id), KVF_OK);
    assert_int_equal(kvf_kv_take(kv, &id), KVF_OK);
    pool_drop(kv);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_new_pool_is_free_and_whole),
        cmocka_unit_test(one_block_is_a_pool),
        cmocka_unit_test(booking_is_refused_without_room_and_changes_nothing),
        cmocka_unit_test(taking_spends_what_was_booked_and_nothing_else),
        cmocka_unit_test(dropping_a_filling_block_frees_it_under_a_new_generation),
        cmocka_unit_test(a_free_block_cannot_be_pinned_even_with_its_generation),
        cmocka_unit_test(a_use_keeps_a_dropped_block_from_reuse),
        cmocka_unit_test(a_pin_taken_in_time_saves_a_block_in_use),
        cmocka_unit_test(waste_follows_filled_slots_and_never_grows_back),
        cmocka_unit_test(pinning_a_cached_block_needs_room),
        cmocka_unit_test(a_send_that_outlives_its_pins_keeps_room_away_until_it_ends),
        cmocka_unit_test(holders_may_let_go_in_any_order),
        cmocka_unit_test(eviction_is_leaf_first_then_least_recently_let_go),
        cmocka_unit_test(free_blocks_are_used_before_cached_ones),
        cmocka_unit_test(a_chain_is_pinned_from_its_first_block_on),
        cmocka_unit_test(a_full_pool_still_lets_booked_growth_through),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
