/* The six tiny models against transformers in f32: the architectures, both rotations, biases, head norms, wide heads.
 */
#include "golden.h"
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <cmocka.h>
#include <stdio.h>
#include <stdlib.h>

static const char *const names[] = {"llama", "llama-mha", "llama3-rope", "mistral-wide-head", "qwen2", "qwen3"};
enum { VOCAB = 320, TOKENS = 800 };

/* Largest error of the last logits; every position's argmax and every greedy token must agree where that is not a
 * toss-up. */
static double check_prompt(kvf_engine *e, const json_t *golden, const char *name, double allowed) {
    size_t count, greedy_count;
    uint32_t *ids = golden_ids(json_object_get(golden, "ids"), &count);
    uint32_t *greedy = golden_ids(json_object_get(golden, "greedy"), &greedy_count);
    float *logits = malloc(count * VOCAB * sizeof *logits);
    assert_non_null(logits);
    golden_run(e, ids, 0, (uint32_t)count, TOKENS, true, logits, VOCAB);
    const float *last = logits + (count - 1) * VOCAB;
    double worst = 0, toss_up = fmax(2 * allowed, 0.02); /* two logits may move against each other */
    for (size_t i = 0; i < VOCAB; i++)
        worst = fmax(worst, fabs(last[i] - json_real_value(json_array_get(json_object_get(golden, "last_logits"), i))));
    if (!(worst <= allowed)) fail_msg("%s, %zu tokens: last logits differ by %g", name, count, worst);
    for (size_t i = 0; i < count; i++) {
        uint32_t want = (uint32_t)json_integer_value(json_array_get(json_object_get(golden, "argmax"), i));
        const float *row = logits + i * VOCAB;
        float gap = row[golden_argmax(row, VOCAB)] - row[want];
        if (gap > toss_up) fail_msg("%s: argmax of position %zu of %zu: off by %g", name, i, count, (double)gap);
    }
    float row[VOCAB];
    memcpy(row, last, sizeof row);
    for (size_t i = 0; i < greedy_count; i++) {
        double gap = json_real_value(json_array_get(json_object_get(golden, "gap"), i));
        if (gap > toss_up && golden_argmax(row, VOCAB) != greedy[i]) fail_msg("%s: greedy token %zu differs", name, i);
        golden_run(e, &greedy[i], (uint32_t)(count + i), 1, 1, true, row, VOCAB);
    }
    free(logits);
    free(greedy);
    free(ids);
    return worst;
}

static void check_all(kvf_precision precision, kvf_kv_type kv, double allowed) {
    for (size_t n = 0; n < KVF_COUNT_OF(names); n++) {
        char path[512];
        snprintf(path, sizeof path, GOLDEN "tiny/%s.json", names[n]);
        json_t *golden = json_load_file(path, 0, NULL);
        assert_non_null(golden);
        snprintf(path, sizeof path, GOLDEN "tiny/%s.gguf", names[n]);
        kvf_model *m = golden_model(path, precision, NULL);
        kvf_engine *e = golden_engine(m, kv, TOKENS, 2);
        double worst = 0;
        for (size_t i = 0; i < json_array_size(golden); i++)
            worst = fmax(worst, check_prompt(e, json_array_get(golden, i), names[n], allowed));
        printf("%s, %s: last logits within %.6f\n", names[n], kvf_engine_numerics(e), worst);
        kvf_engine_destroy(e);
        kvf_model_close(m);
        json_decref(golden);
    }
}

static void exact_with_f32_pages(void **state) { check_all(KVF_PRECISION_EXACT, KVF_KV_F32, 0.001); }
static void exact_with_f16_pages(void **state) { check_all(KVF_PRECISION_EXACT, KVF_KV_F16, 0.01); }
/* Their matrices are f16, which have no 8-bit product: fast must be as good. */
static void fast_with_f16_pages(void **state) { check_all(KVF_PRECISION_FAST, KVF_KV_F16, 0.01); }
static void exact_with_q8_pages(void **state) { check_all(KVF_PRECISION_EXACT, KVF_KV_Q8, 0.1); }

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(exact_with_f32_pages), cmocka_unit_test(exact_with_f16_pages),
        cmocka_unit_test(fast_with_f16_pages), cmocka_unit_test(exact_with_q8_pages)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
