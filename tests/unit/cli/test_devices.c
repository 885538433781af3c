/* Rates of a device from its data sheet: figures worked out by hand. */
#include "cli_test.h"
#include "devices.h"
#include <math.h>
#include <string.h>

static kvf_device_load seven_billion(void) {
    return (kvf_device_load){.params = 6.6e9,
        .weight_bytes = 13.5e9,
        .layers = 32,
        .heads = 32,
        .head_dim = 128,
        .kv_token_bytes = 524288,
        .prompt = 1000,
        .output = 200};
}

static const kvf_device plain = {"x", "X", 100e9, 1e12, 400e12};

static void close_to(double value, double expected) { assert_true(fabs(value / expected - 1) < 1e-9); }

static void prefill_is_bound_by_compute(void **state) {
    kvf_device_load load = seven_billion();
    kvf_device_rates rates;
    kvf_device_estimate(&plain, &load, &rates);
    /* 2 * 6.6e9 + 4 * 32 * 32 * 128 * 500 = 13.2e9 + 0.262144e9 FLOP a token, 200e12 of them a second. */
    close_to(rates.prefill_per_s, 200e12 / 13.462144e9);
}

static void decode_reads_weights_once_and_every_page(void **state) {
    kvf_device_load load = seven_billion();
    kvf_device_rates rates;
    kvf_device_estimate(&plain, &load, &rates);
    close_to(rates.kv_bytes, 90e9 - 13.5e9);
    assert_true(rates.batch == 121); /* 76.5e9 / (524288 * 1200) = 121.6 */
    close_to(rates.step_s, (13.5e9 + 121 * 1100 * 524288.0) / 0.75e12);
    close_to(rates.decode_per_s, 121 / rates.step_s);
}

static void a_large_batch_of_a_small_cache_is_bound_by_compute(void **state) {
    kvf_device_load load = seven_billion();
    kvf_device_rates rates;
    kvf_device slow = plain;
    slow.flop_per_s = 4e12;
    load.kv_token_bytes = 1024;
    kvf_device_estimate(&slow, &load, &rates);
    assert_true(rates.batch == KVF_DEVICE_BATCH_MAX);
    close_to(rates.step_s, 256 * (13.2e9 + 4.0 * 32 * 32 * 128 * 1100) / 2e12);
}

static void weights_that_do_not_fit_give_no_rate(void **state) {
    kvf_device_load load = seven_billion();
    kvf_device_rates rates;
    load.weight_bytes = 90e9;
    kvf_device_estimate(&plain, &load, &rates);
    assert_true(rates.kv_bytes <= 0 && rates.batch == 0 && rates.decode_per_s == 0);
}

static void names_and_rows_agree(void **state) {
    const char *name = KVF_DEVICE_NAMES;
    uint32_t i = 0;
    for (const kvf_device *d; (d = kvf_device_at(i)); i++) {
        size_t len_bytes = strcspn(name, "|");
        assert_int_equal(strlen(d->name), len_bytes);
        assert_memory_equal(d->name, name, len_bytes);
        assert_true(d->memory_bytes > 0 && d->bytes_per_s > 0 && d->flop_per_s > 0);
        name += len_bytes + (name[len_bytes] == '|');
    }
    assert_int_equal(*name, 0);
    assert_true(i >= 8);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(prefill_is_bound_by_compute),
        cmocka_unit_test(decode_reads_weights_once_and_every_page),
        cmocka_unit_test(a_large_batch_of_a_small_cache_is_bound_by_compute),
        cmocka_unit_test(weights_that_do_not_fit_give_no_rate),
        cmocka_unit_test(names_and_rows_agree),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
