/* The CPU backend does what every backend must do. */
#include "backend_cases.h"
#include <setjmp.h>
#include <stdarg.h>
#include <cmocka.h>
#include <stdio.h>

static const char *const names[] = {"llama", "llama-mha", "llama3-rope", "mistral-wide-head", "qwen2", "qwen3"};
static const backend_under_test cpu = {.open = kvf_backend_open_cpu, .clear_gap = 0.05};

static void golden_tokens(void **state) { backend_gives_golden_tokens(&cpu, names, KVF_COUNT_OF(names)); }
static void batches_change_nothing(void **state) { backend_batches_change_nothing(&cpu); }
static void scores(void **state) { backend_scores_agree_with_the_cpu(&cpu); }
static void copies(void **state) { backend_copies_a_part_of_a_block(&cpu); }
static void refusals(void **state) { backend_refuses_what_it_cannot(&cpu); }

static void fp8_is_for_devices(void **state) {
    kvf_backend_options o = {.model_path = "no file is looked for", .threads = 1, .kv_type = KVF_KV_FP8};
    kvf_backend *b = NULL;
    kvf_error err;
    assert_int_equal(kvf_backend_open_cpu(&o, &b, &err), KVF_ERR_UNSUPPORTED);
    assert_non_null(strstr(err.message, "engine.kv_type: fp8"));
    o.kv_type = KVF_KV_F16;
    for (kvf_weights w = KVF_WEIGHTS_F16; w <= KVF_WEIGHTS_FP8; w++) {
        char text[64];
        snprintf(text, sizeof text, "engine.weights: %s is for engine.backend cuda", kvf_weights_name(w));
        o.weights = w;
        assert_int_equal(kvf_backend_open_cpu(&o, &b, &err), KVF_ERR_UNSUPPORTED);
        assert_non_null(strstr(err.message, text));
    }
    kvf_weights w = KVF_WEIGHTS_FP8;
    assert_true(kvf_weights_find("bf16", &w) && w == KVF_WEIGHTS_BF16);
    assert_false(kvf_weights_find("bf8", &w));
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(golden_tokens), cmocka_unit_test(batches_change_nothing),
        cmocka_unit_test(scores), cmocka_unit_test(copies), cmocka_unit_test(refusals),
        cmocka_unit_test(fp8_is_for_devices)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
