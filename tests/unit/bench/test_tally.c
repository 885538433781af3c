/* What answers add up to, worked out by hand. */
#include "kvf/load_tally.h"
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <cmocka.h>

#define MS KVF_NS_PER_MS
enum { START_MS = 1000 };

/* Times in ms after the start; sent two later than due. */
static kvf_load_answer answer(uint64_t due, uint64_t first, uint64_t last, uint32_t tokens) {
    uint64_t base = START_MS * MS;
    return (kvf_load_answer){.due_ns = base + due * MS,
        .sent_ns = base + (due + 2) * MS,
        .first_ns = base + first * MS,
        .last_ns = base + last * MS,
        .end_ns = base + (last + 1) * MS,
        .input = 10,
        .tokens = tokens,
        .cached = 4,
        .over = true,
        .ok = true};
}

static void sums(void **state) {
    static kvf_load_tally t;
    kvf_series_begin(&t.arrivals, 10 * MS);
    const kvf_load_limits limits = {.ttft_ns = 50 * MS, .tpot_ns = 10 * MS};
    kvf_load_answer a[] = {
        answer(0, 5, 500, 100), /* warm-up */
        answer(10, 60, 100, 5), /* just inside both: 50 and 10 */
        answer(20, 71, 75, 2), /* TTFT 51: outside */
        answer(30, 40, 84, 5), /* TPOT 11: outside */
        answer(40, 90, 90, 1), /* one token has no TPOT */
        answer(50, 55, 56, 2), /* failed below */
    };
    a[5].ok = false;
    kvf_load_tally_take(&t, a, 6, 1, &limits, START_MS * MS);
    assert_true(t.counted == 5 && t.completed == 4 && t.failed == 1 && t.inside == 2);
    assert_true(t.input_tokens == 40 && t.output_tokens == 13 && t.cached_tokens == 16);
    assert_true(t.ttft.count == 4 && t.ttft.min == 10 * MS && t.ttft.max == 51 * MS);
    assert_true(t.tpot.count == 3 && t.tpot.min == 4 * MS && t.tpot.max == 11 * MS);
    assert_true(t.e2e.count == 4 && t.e2e.max == 91 * MS && t.e2e.min == 51 * MS);
    assert_true(t.late.count == 5 && t.late.max == 2 * MS);
    assert_true(fabs(t.duration_s - 0.091) < 1e-12); /* due at 10, the last ended at 101 */
    assert_int_equal(t.peak_running, 6);
    assert_true(t.arrivals.used == 6 && t.arrivals.slots[5] == 1);
}

/* A request that was sent late is late for its user too: the clock started when it was due. */
static void late_sending_is_not_hidden(void **state) {
    static kvf_load_tally t;
    kvf_series_begin(&t.arrivals, MS);
    kvf_load_answer a = answer(0, 1005, 1005, 1);
    a.sent_ns = a.due_ns + 1000 * MS;
    kvf_load_tally_take(&t, &a, 1, 0, &(kvf_load_limits){0}, START_MS * MS);
    assert_true(t.ttft.max == 1005 * MS && t.late.max == 1000 * MS && t.inside == 1);
}

static void peaks(void **state) {
    static kvf_load_tally t;
    kvf_series_begin(&t.arrivals, MS);
    kvf_load_answer a[] = {answer(0, 5, 9, 1), answer(10, 11, 19, 1), answer(12, 13, 14, 1), answer(20, 21, 22, 1)};
    kvf_load_tally_take(&t, a, 2, 0, &(kvf_load_limits){0}, START_MS * MS);
    assert_int_equal(t.peak_running, 1); /* one ends as the other begins */
    kvf_load_tally_take(&t, a, 4, 0, &(kvf_load_limits){0}, START_MS * MS);
    assert_int_equal(t.peak_running, 2);
}

static void lost_early(void **state) {
    const kvf_load_limits l = {.ttft_ns = 50 * MS, .tpot_ns = 10 * MS};
    kvf_load_answer a = answer(0, 0, 0, 0);
    a.over = a.ok = false;
    a.first_ns = 0;
    assert_false(kvf_load_lost(&l, &a, a.due_ns + 50 * MS));
    assert_true(kvf_load_lost(&l, &a, a.due_ns + 51 * MS));
    a.first_ns = a.due_ns + 20 * MS;
    assert_false(kvf_load_lost(&l, &a, a.due_ns + 5000 * MS));
    a.over = true;
    assert_true(kvf_load_lost(&l, &a, a.due_ns + 1)); /* it failed */
    assert_false(kvf_load_lost(&(kvf_load_limits){0}, &(kvf_load_answer){.due_ns = 1}, 1000 * MS));
}

static void series_folds(void **state) {
    static kvf_series s;
    kvf_series_begin(&s, 10);
    double total = 0;
    for (uint64_t at = 0; at < 100000; at += 7) {
        kvf_series_add(&s, at, 2);
        total += 2;
    }
    kvf_series_add(&s, 5, 1); /* an old moment, after folding */
    double sum = 0;
    for (uint32_t i = 0; i < KVF_SERIES_SLOTS; i++) sum += s.slots[i];
    assert_true(sum == total + 1 && s.slot_ns == 640 && s.used == 100000 / 640 + 1);
    assert_true(fabs(s.slots[3] - 2.0 * 640 / 7) <= 2);
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(sums), cmocka_unit_test(late_sending_is_not_hidden),
        cmocka_unit_test(peaks), cmocka_unit_test(lost_early), cmocka_unit_test(series_folds)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
