/* Arrivals, lengths and prompts of a plan. */
#include "kvf/load_plan.h"
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <cmocka.h>
#include <stdio.h>
#include <stdlib.h>

enum { CONTEXT = 4096, VOCAB = 1000 };

static kvf_load_options poisson(uint32_t requests, double rate) {
    return (kvf_load_options){.seed = 3,
        .vocab = VOCAB,
        .context = CONTEXT,
        .rate = rate,
        .requests = requests,
        .input = {10, 20},
        .output = {5, 5}};
}

static kvf_load_plan made(const kvf_load_options *o) {
    kvf_load_plan p;
    kvf_error err = {0};
    if (kvf_load_plan_make(o, &p, &err) != KVF_OK) fail_msg("%s", err.message);
    return p;
}

static kvf_load_trace read_trace(const char *text) {
    kvf_load_trace t;
    kvf_error err = {0};
    if (kvf_load_trace_parse("t", text, strlen(text), 0, &t, &err) != KVF_OK) fail_msg("%s", err.message);
    return t;
}

/* Of an exponential distribution mean and deviation are equal, and 1/e of all gaps are longer than the mean. */
static void poisson_gaps(void **state) {
    enum { N = 40000 };
    kvf_load_options o = poisson(N, 250);
    kvf_load_plan p = made(&o);
    double sum = 0, squares = 0;
    uint32_t longer = 0, least = UINT32_MAX, most = 0;
    for (uint32_t i = 1; i < N; i++) {
        double gap = (double)(p.requests[i].at_ns - p.requests[i - 1].at_ns) / 1e9;
        assert_true(gap >= 0);
        sum += gap;
        squares += gap * gap;
        longer += gap > 1.0 / 250;
        least = KVF_MIN(least, p.requests[i].input);
        most = KVF_MAX(most, p.requests[i].input);
        assert_int_equal(p.requests[i].output, 5);
    }
    double mean = sum / (N - 1), deviation = sqrt(squares / (N - 1) - mean * mean);
    assert_true(fabs(mean * 250 - 1) < 0.03 && fabs(deviation * 250 - 1) < 0.03);
    assert_true(fabs((double)longer / N - 0.3679) < 0.01);
    assert_true(least == 10 && most == 20 && p.requests[0].at_ns == 0);
    kvf_load_plan_fini(&p);
}

static void prompt(const kvf_load_plan *p, uint32_t i, uint32_t out[CONTEXT]) {
    kvf_load_plan_prompt(p, i, out);
    for (uint32_t k = 0; k < p->requests[i].input; k++) assert_true(out[k] < VOCAB);
}

/* The same plan twice; another salt changes tokens only. */
static void repeats(void **state) {
    static uint32_t a[CONTEXT], b[CONTEXT], c[CONTEXT];
    kvf_load_options o = poisson(50, 10);
    kvf_load_plan p = made(&o), q = made(&o);
    o.salt = 1;
    kvf_load_plan r = made(&o);
    assert_memory_equal(p.requests, q.requests, 50 * sizeof *p.requests);
    assert_memory_equal(p.requests, r.requests, 50 * sizeof *p.requests);
    prompt(&p, 7, a);
    prompt(&q, 7, b);
    prompt(&r, 7, c);
    assert_memory_equal(a, b, p.requests[7].input * sizeof *a);
    assert_memory_not_equal(a, c, 10 * sizeof *a);
    prompt(&p, 8, b);
    assert_memory_not_equal(a, b, 10 * sizeof *a);
    kvf_load_plan_fini(&p);
    kvf_load_plan_fini(&q);
    kvf_load_plan_fini(&r);
}

#define AZURE                                                                                                          \
    "TIMESTAMP,ContextTokens,GeneratedTokens\n2023-01-01 00:00:00,1000,100\n2023-01-01 00:00:01,16000,384\n"           \
    "2023-01-01 00:00:04,1,1\n"

/* One scale for all rows: the longest just fits. Times as recorded, or with the mean rate that was asked for. */
static void azure_scaled(void **state) {
    kvf_load_trace t = read_trace(AZURE);
    kvf_load_options o = {.vocab = VOCAB, .context = CONTEXT, .trace = &t};
    kvf_load_plan p = made(&o);
    assert_true(p.scale == 0.25 && p.cut == 0 && p.block_tokens == 0 && p.count == 3);
    assert_true(p.requests[0].input == 250 && p.requests[0].output == 25);
    assert_true(p.requests[1].input == 4000 && p.requests[1].output == 96);
    assert_true(p.requests[2].input == 1 && p.requests[2].output == 1);
    assert_true(p.requests[1].at_ns == KVF_NS_PER_S && p.requests[2].at_ns == 4 * KVF_NS_PER_S);
    kvf_load_plan_fini(&p);
    o.rate = 5;
    o.scale = 0.5;
    p = made(&o);
    assert_true(p.cut == 1 && p.requests[1].output == 192 && p.requests[1].input == CONTEXT - 192);
    assert_true(p.requests[0].input == 500 && p.requests[2].at_ns == 2 * KVF_NS_PER_S / 5);
    kvf_load_plan_fini(&p);
    kvf_load_trace_fini(&t);
}

static void refused(const kvf_load_options *o, const char *word) {
    kvf_load_plan p;
    kvf_error err = {0};
    assert_int_equal(kvf_load_plan_make(o, &p, &err), KVF_ERR_INVALID);
    if (!strstr(err.message, word)) fail_msg("\"%s\" does not name \"%s\"", err.message, word);
}

/* Lengths of the trace at the times that the same seed gives without one; a trace of one moment will do. */
static void azure_at_poisson_times(void **state) {
    kvf_load_trace t = read_trace("TIMESTAMP,ContextTokens,GeneratedTokens\n2023-01-01 00:00:00,1000,100\n"
                                  "2023-01-01 00:00:00,200,30\n2023-01-01 00:00:00,1,1\n");
    kvf_load_options o = {.seed = 3, .vocab = VOCAB, .context = CONTEXT, .trace = &t, .rate = 5}, own = poisson(3, 5);
    refused(&o, "rate");
    o.poisson = true;
    kvf_load_plan p = made(&o), q = made(&own);
    assert_true(p.count == 3 && p.requests[2].at_ns > 0);
    for (uint32_t i = 0; i < 3; i++) assert_true(p.requests[i].at_ns == q.requests[i].at_ns);
    assert_true(p.requests[0].input == 1000 && p.requests[0].output == 100 && p.requests[1].input == 200);
    o.rate = 0;
    refused(&o, "rate");
    kvf_load_plan_fini(&p);
    kvf_load_plan_fini(&q);
    kvf_load_trace_fini(&t);
}

#define LINE(at, in, out, ids)                                                                                         \
    "{\"timestamp\": " #at ", \"input_length\": " #in ", \"output_length\": " #out ", \"hash_ids\": [" ids "]}\n"

/* Equal ids are equal tokens, in whole blocks of 16; what differs by id differs from its first token. */
static void mooncake_prefixes(void **state) {
    static uint32_t a[CONTEXT], b[CONTEXT], c[CONTEXT];
    kvf_load_trace t = read_trace(LINE(0, 1500, 100, "7, 8, 9") LINE(0, 1100, 10, "7, 8, 10") LINE(9, 512, 1, "8"));
    for (uint32_t context = 200; context <= CONTEXT; context += 150) {
        kvf_load_options o = {.vocab = VOCAB, .context = context, .trace = &t};
        kvf_load_plan p = made(&o);
        uint32_t block = p.block_tokens;
        assert_true(block >= 16 && block % 16 == 0 && block <= 512 && p.scale == block / 512.0);
        if (p.cut == 0) {
            uint32_t part = (uint32_t)floor((1500 - 1024) * p.scale + 0.5);
            assert_int_equal(p.requests[0].input, 2 * block + part);
            assert_int_equal(p.requests[2].input, block);
            prompt(&p, 0, a);
            prompt(&p, 1, b);
            prompt(&p, 2, c);
            assert_memory_equal(a, b, 2 * block * sizeof *a);
            assert_memory_equal(a + block, c, block * sizeof *a);
            assert_memory_not_equal(a, a + block, block * sizeof *a);
            uint32_t same = 0, rest = KVF_MIN(p.requests[1].input, p.requests[0].input) - 2 * block;
            for (uint32_t k = 0; k < rest; k++) same += a[2 * block + k] == b[2 * block + k];
            assert_true(rest && same < rest);
        }
        kvf_load_plan_fini(&p);
    }
    kvf_load_trace_fini(&t);
}

/* Whatever the context, every request fits and has a token each way. */
static void always_fits(void **state) {
    kvf_load_trace t = read_trace(AZURE);
    for (uint32_t context = 2; context < 40; context++) {
        kvf_load_options o = {.vocab = VOCAB, .context = context, .trace = &t, .scale = context % 2 ? 0 : 1};
        kvf_load_plan p = made(&o);
        for (uint32_t i = 0; i < p.count; i++) {
            assert_true(p.requests[i].input >= 1 && p.requests[i].output >= 1);
            assert_true(p.requests[i].input + p.requests[i].output <= context);
        }
        kvf_load_plan_fini(&p);
    }
    kvf_load_trace_fini(&t);
}

static void wrong_options(void **state) {
    kvf_load_options o = poisson(10, 0);
    refused(&o, "rate");
    o.rate = -1;
    refused(&o, "rate");
    o.rate = NAN;
    refused(&o, "rate");
    o = poisson(0, 1);
    refused(&o, "requests");
    o = poisson(10, 1);
    o.input = (kvf_load_range){0, 5};
    refused(&o, "lengths");
    o.input = (kvf_load_range){CONTEXT, CONTEXT};
    refused(&o, "context");
    kvf_load_trace t = read_trace(LINE(3, 1, 1, "1") LINE(3, 1, 1, "1"));
    kvf_load_options at_once = {.vocab = VOCAB, .context = CONTEXT, .trace = &t, .rate = 2};
    refused(&at_once, "rate");
    at_once.rate = 0;
    kvf_load_plan p = made(&at_once);
    assert_true(p.count == 2 && p.requests[1].at_ns == 0 && kvf_load_trace_rate(&t, 0) == 0);
    kvf_load_plan_fini(&p);
    kvf_load_trace_fini(&t);
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(poisson_gaps), cmocka_unit_test(repeats),
        cmocka_unit_test(azure_scaled), cmocka_unit_test(azure_at_poisson_times), cmocka_unit_test(mooncake_prefixes),
        cmocka_unit_test(always_fits), cmocka_unit_test(wrong_options)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
