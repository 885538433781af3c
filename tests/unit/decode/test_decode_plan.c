#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>
#include "kvf/decode_plan.h"
#include "kvf/rng.h"

enum { MANY = 64 };

static void all_run_when_all_fit(void **state) {
    kvf_decode_candidate c[3] = {{.last_step = 1}, {.last_step = 2}, {.last_step = 0}};
    uint32_t out[3];
    assert_int_equal(kvf_decode_pick(c, 3, 3, 3, out), 3);
    assert_int_equal(kvf_decode_pick(c, 3, 3, 99, out), 3);
    for (uint32_t i = 0; i < 3; i++) assert_int_equal(out[i], i);
    assert_int_equal(kvf_decode_pick(c, 0, 3, 8, out), 0);
    assert_int_equal(kvf_decode_pick(c, 3, 3, 0, out), 0);
}

static void longest_ago_runs_first_among_equals(void **state) {
    kvf_decode_candidate c[4] = {{.last_step = 4, .arrival = 1}, {.last_step = 3, .arrival = 2},
        {.last_step = 3, .arrival = 0}, {.last_step = 4, .arrival = 0}};
    uint32_t out[3];
    assert_int_equal(kvf_decode_pick(c, 4, 5, 3, out), 3);
    assert_int_equal(out[0], 2);
    assert_int_equal(out[1], 1);
    assert_int_equal(out[2], 3);
}

static void priority_comes_first_until_someone_waited_too_long(void **state) {
    kvf_decode_candidate c[3] = {{.last_step = 99, .priority = 1}, {.last_step = 99, .priority = 1}, {.last_step = 36}};
    uint32_t out[2];
    assert_int_equal(kvf_decode_pick(c, 3, 100, 2, out), 2); /* missed 63 steps */
    assert_int_equal(out[0], 0);
    assert_int_equal(out[1], 1);
    c[2].last_step = 35; /* 64 */
    assert_int_equal(kvf_decode_pick(c, 3, 100, 2, out), 2);
    assert_int_equal(out[0], 2);
    assert_int_equal(out[1], 0);
}

static void the_late_get_no_more_than_a_quarter(void **state) {
    kvf_decode_candidate c[MANY];
    uint32_t out[16], late = 0;
    for (uint32_t i = 0; i < MANY; i++)
        c[i] = (kvf_decode_candidate){.last_step = i < 32 ? 999 : i, .priority = i < 32, .arrival = i};
    assert_int_equal(kvf_decode_pick(c, MANY, 1000, 16, out), 16);
    for (uint32_t i = 0; i < 16; i++) late += out[i] >= 32;
    assert_int_equal(late, 4);
}

/* Random crowds over many steps: nobody waits longer than the bound, equals get equal shares. */
static void nobody_starves_and_equals_share(void **state) {
    kvf_rng rng = {.seed = 5};
    for (uint32_t round = 0; round < 60; round++) {
        uint32_t count = 2 + (uint32_t)kvf_rng_below(&rng, MANY - 1), places = 1 + (uint32_t)kvf_rng_below(&rng, 24);
        kvf_decode_candidate c[MANY];
        uint32_t runs[MANY] = {0}, out[MANY], priorities = round % 3 == 0 ? 1 : 3, steps = 3000;
        for (uint32_t i = 0; i < count; i++)
            c[i] = (kvf_decode_candidate){.arrival = i, .priority = (int32_t)kvf_rng_below(&rng, priorities)};
        for (uint64_t step = 1; step <= steps; step++) {
            uint32_t n = kvf_decode_pick(c, count, step, places, out);
            assert_int_equal(n, KVF_MIN(count, places));
            bool seen[MANY] = {false};
            for (uint32_t i = 0; i < n; i++) {
                assert_true(out[i] < count && !seen[out[i]]);
                seen[out[i]] = true;
                uint64_t wait_max = KVF_DECODE_WAIT_STEPS_MAX + 1 + kvf_div_up(count, KVF_MAX(places / 4, 1u));
                assert_true(step - c[out[i]].last_step <= wait_max);
                c[out[i]].last_step = step;
                c[out[i]].last_place = i;
                runs[out[i]]++;
            }
        }
        for (uint32_t i = 0; i < count; i++) {
            assert_true(runs[i] > 0);
            /* Equals differ by one turn. */
            assert_true(priorities > 1 || runs[i] + 1 >= (uint64_t)steps * KVF_MIN(places, count) / count);
        }
    }
}

static void the_lowest_then_latest_with_progress_gives_way(void **state) {
    kvf_decode_holder h[] = {{.arrival = 1, .priority = 0, .progress = 5}, {.arrival = 3, .priority = 0, .progress = 1},
        {.arrival = 2, .priority = 0, .progress = 9}, {.arrival = 9, .priority = 1, .progress = 9}};
    assert_int_equal(kvf_decode_preempt(h, 4), 1);
    h[2].priority = -1;
    assert_int_equal(kvf_decode_preempt(h, 4), 2);
    h[2].progress = 0; /* just restarted: sparing it is what ends the circle */
    assert_int_equal(kvf_decode_preempt(h, 4), 1);
    assert_int_equal(kvf_decode_preempt(h + 2, 1), 0); /* the only one */
    assert_int_equal(kvf_decode_preempt(h, 0), KVF_DECODE_NOBODY);
    for (uint32_t i = 0; i < 4; i++) h[i].progress = 0;
    assert_int_equal(kvf_decode_preempt(h, 4), 2);
}

/* KV-05, KV-06: two sequences that grow in a pool for one and a half. Whoever asks for a block that is not there makes
 * someone give way; the loser starts again from its tokens. Both end, with few preemptions for each token made. */
static void a_pool_too_small_for_two_finishes_both(void **state) {
    enum { POOL = 45, PROMPT = 19, LENGTH = 32 }; /* blocks; a step makes one block's worth */
    uint32_t made[2] = {0}, held[2] = {PROMPT, PROMPT}, progress[2] = {0}, preempted = 0, steps = 0;
    bool active[2] = {true, true};
    while (made[0] < LENGTH - PROMPT || made[1] < LENGTH - PROMPT) {
        assert_true(++steps < 200);
        for (uint32_t i = 0; i < 2; i++) {
            if (made[i] == LENGTH - PROMPT) continue;
            if (!active[i]) { /* waits for room for what it has and one more */
                if (held[0] + held[1] + PROMPT + made[i] + 1 > POOL) continue;
                active[i] = true;
                held[i] = PROMPT + made[i];
                progress[i] = 0;
            }
            if (held[0] + held[1] == POOL) {
                kvf_decode_holder h[2];
                uint32_t of[2], n = 0;
                for (uint32_t j = 0; j < 2; j++)
                    if (active[j]) of[n] = j, h[n++] = (kvf_decode_holder){.arrival = j, .progress = progress[j]};
                uint32_t v = of[kvf_decode_preempt(h, n)];
                active[v] = false;
                held[v] = 0;
                preempted++;
                if (v == i) continue;
            }
            held[i]++;
            made[i]++;
            progress[i]++;
            if (made[i] == LENGTH - PROMPT) active[i] = false, held[i] = 0;
        }
    }
    assert_in_range(preempted, 1, made[0] + made[1]);
}

static void the_estimate_follows_and_stays_in_bounds(void **state) {
    kvf_decode_estimate e;
    kvf_decode_estimate_init(&e, 32, 1024, 256);
    assert_int_equal(kvf_decode_estimate_expected(&e, 0), 256);
    assert_int_equal(kvf_decode_estimate_expected(&e, 10), 10);
    assert_int_equal(kvf_decode_estimate_expected(&e, 4000), 256);
    kvf_decode_estimate_add(&e, 272);
    assert_int_equal(kvf_decode_estimate_expected(&e, 0), 257);
    for (uint32_t i = 0; i < 400; i++) kvf_decode_estimate_add(&e, 100);
    assert_in_range(kvf_decode_estimate_expected(&e, 0), 100, 101);
    for (uint32_t i = 0; i < 400; i++) kvf_decode_estimate_add(&e, 1);
    assert_in_range(kvf_decode_estimate_expected(&e, 0), 32, 33);
    for (uint32_t i = 0; i < 400; i++) kvf_decode_estimate_add(&e, UINT32_MAX);
    assert_in_range(kvf_decode_estimate_expected(&e, 0), 1023, 1024);
    kvf_decode_estimate_init(&e, 32, 1024, 5);
    assert_int_equal(kvf_decode_estimate_expected(&e, 0), 32);
}

static void the_estimate_of_mixed_lengths_is_near_their_mean(void **state) {
    kvf_rng rng = {.seed = 3};
    kvf_decode_estimate e;
    kvf_decode_estimate_init(&e, 1, 4096, 4096);
    uint64_t sum = 0;
    for (uint32_t i = 0; i < 2000; i++) {
        kvf_decode_estimate_add(&e, (uint32_t)kvf_rng_below(&rng, 401));
        if (i >= 1000) sum += kvf_decode_estimate_expected(&e, 0);
    }
    assert_in_range(sum / 1000, 190, 212);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(all_run_when_all_fit),
        cmocka_unit_test(longest_ago_runs_first_among_equals),
        cmocka_unit_test(priority_comes_first_until_someone_waited_too_long),
        cmocka_unit_test(the_late_get_no_more_than_a_quarter),
        cmocka_unit_test(nobody_starves_and_equals_share),
        cmocka_unit_test(the_lowest_then_latest_with_progress_gives_way),
        cmocka_unit_test(a_pool_too_small_for_two_finishes_both),
        cmocka_unit_test(the_estimate_follows_and_stays_in_bounds),
        cmocka_unit_test(the_estimate_of_mixed_lengths_is_near_their_mean),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
