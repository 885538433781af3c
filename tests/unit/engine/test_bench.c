/* Benchmark and perplexity as the program calls them. */
#include "kvf/engine_bench.h"
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <cmocka.h>
#include <stdlib.h>
#include <unistd.h>

#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
enum { TOKENS_LONG = 64 }; /* sanitized kernels are slow: not run there */
#else
enum { TOKENS_LONG = 2048 };
#endif
#define TINY KVF_SOURCE_DIR "/tests/golden/tiny/llama.gguf"
#define SAMPLE_MODEL KVF_SOURCE_DIR "/models/SmolLM2-135M-Instruct.Q4_1.gguf"
#define TEXT "/usr/share/common-licenses/Apache-2.0"

static void lists(void **state) {
    kvf_bench_list l = {0};
    kvf_error err;
    assert_int_equal(kvf_bench_list_parse("batch", "1,4,16", 100, &l, &err), KVF_OK);
    assert_int_equal(l.count, 3);
    assert_int_equal(l.value[2], 16);
    static const char *const bad[] = {"", "0", "1,", ",1", "1,,2", "x", "-3", "101", "1 2", "99999999999999999999"};
    for (size_t i = 0; i < KVF_COUNT_OF(bad); i++) {
        assert_int_equal(kvf_bench_list_parse("batch", bad[i], 100, &l, &err), KVF_ERR_INVALID);
        assert_non_null(strstr(err.message, "batch"));
        assert_int_equal(l.count, 3);
    }
}

static void bench_prints_json(void **state) {
    char *text = NULL;
    size_t len_bytes = 0;
    FILE *out = open_memstream(&text, &len_bytes);
    kvf_error err = {0};
    kvf_bench_engine_options o = {.model = TINY,
        .prefill = {1, {20}},
        .batch = {2, {1, 3}},
        .context = {1, {40}},
        .threads = {1, {2}},
        .repetitions = 1,
        .json = true};
    if (kvf_bench_engine(&o, out, &err) != KVF_OK) fail_msg("%s", err.message);
    fclose(out);
    double prefill, one, three;
    int end = 0;
    sscanf(text,
        "{\"results\":[{\"kind\":\"prefill\",\"tokens\":20,\"threads\":2,\"tokens_per_s\":%lf},"
        "{\"kind\":\"decode\",\"batch\":1,\"context\":40,\"threads\":2,\"tokens_per_s\":%lf},"
        "{\"kind\":\"decode\",\"batch\":3,\"context\":40,\"threads\":2,\"tokens_per_s\":%lf}]}\n%n",
        &prefill, &one, &three, &end);
    if (end != (int)len_bytes) fail_msg("unexpected: %s", text);
    assert_true(prefill > 0 && one > 0 && three > 0);
    free(text);
}

static void refusals_name_the_reason(void **state) {
    kvf_error err = {0};
    kvf_bench_engine_options o = {.model = TINY, .prefill = {1, {1 << 20}}};
    assert_int_equal(kvf_bench_engine(&o, stdout, &err), KVF_ERR_INVALID);
    assert_non_null(strstr(err.message, "context"));
    o = (kvf_bench_engine_options){.model = "/nonexistent.gguf"};
    assert_true(kvf_bench_engine(&o, stdout, &err) < 0);
    assert_non_null(strstr(err.message, "/nonexistent.gguf"));
    o = (kvf_bench_engine_options){.model = TINY, .load = {.kernels = "mmx"}};
    assert_int_equal(kvf_bench_engine(&o, stdout, &err), KVF_ERR_UNSUPPORTED);
    assert_non_null(strstr(err.message, "mmx"));
    kvf_perplexity_options p = {.model = TINY, .file = "/nonexistent.txt"};
    assert_true(kvf_perplexity(&p, NULL, NULL, &err) < 0);
    assert_non_null(strstr(err.message, "/nonexistent.txt"));
}

/* tests/golden/smollm2/perplexity.json: 2.62437783 over 2,048 tokens, 2.769176572 over the first 512. */
static void perplexity_of_a_licence(void **state) {
    if (access(SAMPLE_MODEL, R_OK) != 0 || access(TEXT, R_OK) != 0) {
        print_message("skipped: %s or %s is not there\n", SAMPLE_MODEL, TEXT);
        skip();
    }
    static const struct {
        kvf_precision precision;
        kvf_kv_type kv;
        uint32_t tokens;
        double nll, percent;
    } paths[] = {{KVF_PRECISION_EXACT, KVF_KV_F32, 512, 2.769176572613603, 0.01},
        {KVF_PRECISION_EXACT, KVF_KV_F16, 512, 2.769176572613603, 0.03},
        {KVF_PRECISION_FAST, KVF_KV_F16, 2048, 2.62437783133606, 0.5},
        {KVF_PRECISION_FAST, KVF_KV_Q8, 512, 2.769176572613603, 0.5},
        {KVF_PRECISION_EXACT, KVF_KV_F32, 2048, 2.62437783133606, 0.01}};
    for (size_t i = 0; i < KVF_COUNT_OF(paths) - (getenv("KVF_FULL_TESTS") ? 0 : 1); i++) {
        if (paths[i].tokens > TOKENS_LONG) continue;
        kvf_perplexity_options o = {.model = SAMPLE_MODEL,
            .file = TEXT,
            .tokens = paths[i].tokens,
            .kv_type = paths[i].kv,
            .load = {.precision = paths[i].precision, .kernels = getenv("KVFERRY_CPU")}};
        kvf_perplexity_result r;
        kvf_error err = {0};
        if (kvf_perplexity(&o, stdout, &r, &err) != KVF_OK) fail_msg("%s", err.message);
        double off = (r.perplexity / exp(paths[i].nll) - 1) * 100;
        print_message("perplexity off by %.4f %%\n", off);
        assert_int_equal(r.scored, paths[i].tokens - 1);
        assert_true(fabs(off) <= paths[i].percent);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(lists), cmocka_unit_test(bench_prints_json),
        cmocka_unit_test(refusals_name_the_reason), cmocka_unit_test(perplexity_of_a_licence)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
