/* Percentiles against sorted values, from ranges of every kind; merging; the ends. */
#include "kvf/load_hist.h"
#include "kvf/rng.h"
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <cmocka.h>
#include <stdlib.h>

enum { COUNT = 5000 };
static const double percents[] = {0, 1, 10, 50, 90, 95, 99, 99.9, 99.99, 100};

static int by_value(const void *a, const void *b) {
    uint64_t x = *(const uint64_t *)a, y = *(const uint64_t *)b;
    return x < y ? -1 : x > y;
}

static void compare(const kvf_hist *h, uint64_t *values, size_t count) {
    qsort(values, count, sizeof *values, by_value);
    assert_int_equal(h->count, count);
    assert_true(h->min == values[0] && h->max == values[count - 1]);
    double sum = 0;
    for (size_t i = 0; i < count; i++) sum += (double)values[i];
    assert_true(fabs(kvf_hist_mean(h) * (double)count - sum) <= 1e-9 * sum);
    for (size_t i = 0; i < KVF_COUNT_OF(percents); i++) {
        size_t rank = (size_t)ceil((double)count * percents[i] / 100 * (1 - 1e-12));
        double exact = (double)values[rank ? rank - 1 : 0], got = kvf_hist_percentile(h, percents[i]);
        if (fabs(got - exact) > KVF_HIST_ERROR * exact)
            fail_msg("p%g of %zu values: %g, exactly %g", percents[i], count, got, exact);
    }
}

/* Values of up to `bits` bits, so that every power of two is met as often. */
static uint64_t any_value(kvf_rng *r, uint32_t bits) { return kvf_rng_next(r) >> (64 - 1 - kvf_rng_below(r, bits)); }

static void within_the_error(void **state) {
    static uint64_t values[COUNT];
    for (uint64_t seed = 0; seed < 40; seed++) {
        static kvf_hist h;
        kvf_rng r = {.seed = seed};
        size_t count = 1 + kvf_rng_below(&r, seed < 10 ? 12 : COUNT);
        h = (kvf_hist){0};
        for (size_t i = 0; i < count; i++) kvf_hist_add(&h, values[i] = any_value(&r, 1 + (uint32_t)seed % 63));
        compare(&h, values, count);
    }
}

static void merged_is_the_whole(void **state) {
    static kvf_hist parts[3], whole;
    static uint64_t values[COUNT];
    kvf_rng r = {.seed = 7};
    for (size_t i = 0; i < COUNT; i++) {
        values[i] = any_value(&r, 40);
        kvf_hist_add(&parts[kvf_rng_below(&r, 2)], values[i]); /* the third stays empty */
    }
    kvf_hist_merge(&whole, &parts[2]);
    kvf_hist_merge(&whole, &parts[0]);
    kvf_hist_merge(&whole, &parts[1]);
    compare(&whole, values, COUNT);
    static kvf_hist low, high;
    kvf_hist_add(&low, 3);
    kvf_hist_add(&high, 900);
    kvf_hist_merge(&high, &low);
    assert_true(high.min == 3 && high.max == 900 && high.count == 2);
}

static void ends(void **state) {
    static kvf_hist h;
    assert_true(kvf_hist_percentile(&h, 50) == 0 && kvf_hist_mean(&h) == 0 && kvf_hist_deviation(&h) == 0);
    kvf_hist_add(&h, UINT64_MAX);
    kvf_hist_add(&h, 0);
    assert_true(h.min == 0 && h.max == UINT64_MAX);
    assert_true(kvf_hist_percentile(&h, 50) == 0);
    assert_true(kvf_hist_percentile(&h, 100) == (double)UINT64_MAX);
}

static void small_values_are_exact(void **state) {
    static kvf_hist h;
    for (uint64_t v = 1; v <= 100; v++) kvf_hist_add(&h, v);
    for (int p = 1; p <= 100; p++) assert_true(kvf_hist_percentile(&h, p) == p);
    assert_true(fabs(kvf_hist_deviation(&h) - 28.86607) < 1e-5);
}

/* 99.9 % of 41,000 are 40,959, although 41000 * 99.9 / 100 comes out above. */
static void ranks_are_decimal(void **state) {
    static kvf_hist h;
    for (uint32_t i = 0; i < 41000; i++) kvf_hist_add(&h, i < 40959 ? 1 : 100);
    assert_true(kvf_hist_percentile(&h, 99.9) == 1);
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(within_the_error), cmocka_unit_test(merged_is_the_whole),
        cmocka_unit_test(ends), cmocka_unit_test(small_values_are_exact), cmocka_unit_test(ranks_are_decimal)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
