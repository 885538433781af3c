/* The sample model against its right values (tests/golden/README.md): hidden states, logits, log-probabilities, greedy
 * tokens and perplexity, within the tolerance of each path. KVF_FULL_TESTS=1 runs all prompts and 2,048 tokens of
 * perplexity on every path; without it long ones are cut. */
#include "golden.h"
#include "engine_int.h"
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <cmocka.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

enum { VOCAB = 49152, HIDDEN = 576, LAYERS = 30, TOKENS = 384 };

typedef struct {
    const char *name;
    kvf_precision precision;
    kvf_kv_type kv;
    double mean_max, greedy_max, logprob_mean_max, logprob_max; /* absolute differences of log-probability */
    double hidden_max, logits_max;
} path;
static const path paths[] = {
    {"exact, KV f32", KVF_PRECISION_EXACT, KVF_KV_F32, .0005, .002, .0005, .002, .002, .002},
    {"exact, KV f16", KVF_PRECISION_EXACT, KVF_KV_F16, .002, .03, .002, .03, .03, .03},
    {"fast, KV f16", KVF_PRECISION_FAST, KVF_KV_F16, .03, .6, .06, .8, 5, 2},
};

static bool full(void) { return getenv("KVF_FULL_TESTS") != NULL; }

typedef struct {
    double sum, max;
    size_t count;
} error_stat;
static void note(error_stat *s, double error) {
    s->sum += fabs(error);
    s->max = fmax(s->max, fabs(error));
    s->count++;
}
static double mean(const error_stat *s) { return s->count ? s->sum / (double)s->count : 0; }

typedef struct {
    const float *golden;
    size_t tokens;
    error_stat error[LAYERS + 1];
} hidden_watch;
static void on_hidden(void *self, uint32_t layer, const float *x, uint32_t rows) {
    hidden_watch *w = self;
    if (layer == LAYERS || rows != w->tokens) return; /* the golden last one is after the final norm */
    const float *want = w->golden + layer * w->tokens * HIDDEN;
    for (size_t i = 0; i < w->tokens * HIDDEN; i++) note(&w->error[layer], (double)x[i] - (double)want[i]);
}

static void check_hidden(const path *p, kvf_engine *e, const uint32_t *ids, size_t count) {
    size_t hidden_count, logits_count;
    float *hidden = golden_floats(GOLDEN "smollm2/hidden.f32", &hidden_count);
    float *want = golden_floats(GOLDEN "smollm2/logits.f32", &logits_count), *got = malloc(logits_count * 4);
    assert_int_equal(logits_count, count * VOCAB);
    hidden_watch w = {.golden = hidden, .tokens = count};
    e->watch = on_hidden;
    e->watch_self = &w;
    golden_run(e, ids, 0, (uint32_t)count, TOKENS, true, got, VOCAB);
    e->watch = NULL;
    error_stat logits = {0};
    double worst = 0;
    for (size_t i = 0; i < logits_count; i++) note(&logits, (double)got[i] - (double)want[i]);
    for (size_t i = 0; i < LAYERS; i++) {
        worst = fmax(worst, mean(&w.error[i]));
        if (p->precision == KVF_PRECISION_EXACT && mean(&w.error[i]) > p->hidden_max)
            fail_msg("%s: hidden state before layer %zu differs by %g on average", p->name, i, mean(&w.error[i]));
    }
    printf("%s: hidden worst layer mean %.6f, logits mean %.6f max %.6f\n", p->name, worst, mean(&logits), logits.max);
    assert_true(logits.max <= p->logits_max);
    free(got);
    free(want);
    free(hidden);
}

static void check_logprobs(const path *p, kvf_engine *e, const json_t *lines) {
    float *logits = malloc((size_t)TOKENS * VOCAB * 4);
    error_stat chosen = {0}, top = {0};
    for (size_t n = 0; n < json_array_size(lines); n++) {
        size_t count;
        const json_t *line = json_array_get(lines, n);
        uint32_t *ids = golden_ids(json_object_get(line, "ids"), &count);
        golden_run(e, ids, 0, (uint32_t)count, TOKENS, true, logits, VOCAB);
        for (size_t i = 0; i < count; i++) {
            const float *row = logits + i * VOCAB;
            double shift = golden_logprob(row, VOCAB, 0) - (double)row[0];
            const json_t *want = json_array_get(json_object_get(line, "token_logprobs"), i + 1);
            if (want) note(&chosen, (double)row[ids[i + 1]] + shift - json_real_value(want));
            const json_t *ten = json_array_get(json_object_get(line, "top10"), i);
            for (size_t k = 0; k < json_array_size(ten); k++) {
                const json_t *pair = json_array_get(ten, k);
                note(&top, (double)row[json_integer_value(json_array_get(pair, 0))] + shift -
                               json_number_value(json_array_get(pair, 1)));
            }
        }
        free(ids);
    }
    printf("%s: logprobs mean %.6f max %.6f, top 10 max %.6f\n", p->name, mean(&chosen), chosen.max, top.max);
    assert_true(mean(&chosen) <= p->logprob_mean_max && chosen.max <= p->logprob_max && top.max <= 3 * p->logprob_max);
    free(logits);
}

static void check_greedy(const path *p, kvf_engine *e, const json_t *lines) {
    float *row = malloc((size_t)VOCAB * 4);
    error_stat error = {0};
    size_t differ = 0;
    for (size_t n = 0; n < json_array_size(lines); n++) {
        size_t count, out_count;
        const json_t *line = json_array_get(lines, n);
        uint32_t *ids = golden_ids(json_object_get(line, "ids"), &count);
        uint32_t *out = golden_ids(json_object_get(line, "out"), &out_count);
        if (!full() && p->precision == KVF_PRECISION_EXACT) out_count = KVF_MIN(out_count, (size_t)16);
        golden_run(e, ids, 0, (uint32_t)count, TOKENS, false, row, VOCAB);
        for (size_t i = 0; i < out_count; i++) {
            double gap = json_number_value(json_array_get(json_object_get(line, "gap"), i));
            note(&error, golden_logprob(row, VOCAB, out[i]) -
                             json_number_value(json_array_get(json_object_get(line, "logprob"), i)));
            bool same = golden_argmax(row, VOCAB) == out[i];
            differ += !same;
            if (!same && gap > 2 * p->greedy_max)
                fail_msg("%s: line %zu token %zu differs, gap %g", p->name, n, i, gap);
            golden_run(e, &out[i], (uint32_t)(count + i), 1, 1, false, row, VOCAB);
        }
        free(out);
        free(ids);
    }
    printf("%s: greedy %zu tokens, %zu argmaxes differ, logprob mean %.6f max %.6f\n", p->name, error.count, differ,
        mean(&error), error.max);
    assert_true(mean(&error) <= p->mean_max && error.max <= p->greedy_max);
    free(row);
}

static void check_path(const path *p) {
    kvf_model *m = golden_model(SAMPLE_MODEL, p->precision, getenv("KVFERRY_CPU"));
    kvf_engine *e = golden_engine(m, p->kv, TOKENS, 2);
    printf("%s: %s, %s, %.1f MB packed\n", p->name, kvf_engine_numerics(e), kvf_model_kernels(m),
        (double)kvf_model_packed_bytes(m) / 1e6);
    json_t *logprobs = golden_lines(GOLDEN "smollm2/logprobs.jsonl"),
           *greedy = golden_lines(GOLDEN "smollm2/greedy.jsonl");
    size_t count;
    uint32_t *ids = golden_ids(json_object_get(json_array_get(logprobs, 0), "ids"), &count);
    check_hidden(p, e, ids, count);
    if (!SANITIZED) {
        check_logprobs(p, e, logprobs);
        check_greedy(p, e, greedy);
    }
    free(ids);
    json_decref(greedy);
    json_decref(logprobs);
    kvf_engine_destroy(e);
    kvf_model_close(m);
}
static void exact_f32(void **state) { check_path(&paths[0]); }
static void exact_f16(void **state) { check_path(&paths[1]); }
static void fast_f16(void **state) { check_path(&paths[2]); }

int main(void) {
    if (access(SAMPLE_MODEL, R_OK) != 0) {
        printf("skipped: %s is not there\n", SAMPLE_MODEL);
        return 77;
    }
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(exact_f32), cmocka_unit_test(exact_f16), cmocka_unit_test(fast_f16)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
