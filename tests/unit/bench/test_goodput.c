/* The search, against systems whose limit is known. */
#include "kvf/load_goodput.h"
#include "kvf/rng.h"
#include <setjmp.h>
#include <stdarg.h>
#include <cmocka.h>

static uint32_t search(kvf_goodput *g, double limit) {
    double rate;
    while (kvf_goodput_next(g, &rate)) {
        assert_true(rate >= g->min && rate <= g->max);
        kvf_goodput_tell(g, rate <= limit);
    }
    return g->trials;
}

static void finds_any_limit(void **state) {
    static const double starts[] = {0.02, 1, 37, 9000};
    for (double limit = 0.011; limit < 9000; limit *= 1.7)
        for (size_t i = 0; i < KVF_COUNT_OF(starts); i++) {
            kvf_goodput g;
            kvf_goodput_begin(&g, starts[i], 0.01, 10000, 0.05);
            uint32_t trials = search(&g, limit);
            assert_true(g.passing <= limit && g.failing > limit && g.failing <= g.passing * 1.05);
            assert_true(trials <= 24 + 5); /* 24 steps span all rates, five more make 5 % of a factor of two */
        }
}

static void a_good_guess_is_cheap(void **state) {
    for (double limit = 0.72; limit < 1.4; limit *= 1.01) {
        kvf_goodput g;
        kvf_goodput_begin(&g, 1, 0.01, 10000, 0.05);
        uint32_t trials = search(&g, limit), most = limit > 0.96 && limit < 1.05 ? 2 : 4 + 2;
        assert_true(trials <= most);
        assert_true(g.passing <= limit && g.failing > limit && g.failing <= g.passing * 1.05);
    }
}

static void beyond_both_ends(void **state) {
    kvf_goodput g;
    kvf_goodput_begin(&g, 1, 0.25, 8, 0.05);
    search(&g, 1000);
    assert_true(g.passing == 8 && g.failing == 0);
    kvf_goodput_begin(&g, 1, 0.25, 8, 0.05);
    search(&g, 0.1);
    assert_true(g.passing == 0 && g.failing == 0.25);
    kvf_goodput_begin(&g, 100, 0.25, 8, 0.05); /* a start outside is moved inside */
    search(&g, 1000);
    assert_true(g.passing == 8 && g.trials == 1);
}

/* A system that is of another mind each time: the search ends, and its answer is a rate that passed. */
static void noise_ends(void **state) {
    for (uint64_t seed = 0; seed < 200; seed++) {
        kvf_rng r = {.seed = seed};
        kvf_goodput g;
        double rate, highest = 0;
        kvf_goodput_begin(&g, 1, 1e-3, 1e4, 0.01);
        while (kvf_goodput_next(&g, &rate)) {
            bool passed = kvf_rng_below(&r, 2) == 0;
            if (passed) highest = KVF_MAX(highest, rate);
            kvf_goodput_tell(&g, passed);
        }
        assert_true(g.trials <= 64 && g.passing == highest);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(finds_any_limit), cmocka_unit_test(a_good_guess_is_cheap),
        cmocka_unit_test(beyond_both_ends), cmocka_unit_test(noise_ends)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
