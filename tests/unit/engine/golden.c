#include "golden.h"
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <cmocka.h>
#include <stdio.h>
#include <stdlib.h>

uint32_t *golden_ids(const json_t *array, size_t *count) {
    *count = json_array_size(array);
    uint32_t *ids = malloc((*count + 1) * sizeof *ids);
    assert_non_null(ids);
    for (size_t i = 0; i < *count; i++) ids[i] = (uint32_t)json_integer_value(json_array_get(array, i));
    return ids;
}

float *golden_floats(const char *path, size_t *count) {
    FILE *f = fopen(path, "rb");
    assert_non_null(f);
    fseek(f, 0, SEEK_END);
    *count = (size_t)ftell(f) / 4;
    rewind(f);
    float *data = malloc(*count * 4);
    assert_non_null(data);
    assert_int_equal(fread(data, 4, *count, f), *count);
    fclose(f);
    return data;
}

json_t *golden_lines(const char *path) {
    FILE *f = fopen(path, "rb");
    assert_non_null(f);
    json_t *all = json_array(), *line;
    while ((line = json_loadf(f, JSON_DISABLE_EOF_CHECK, NULL))) json_array_append_new(all, line);
    fclose(f);
    assert_true(json_array_size(all) > 0);
    return all;
}

kvf_model *golden_model(const char *path, kvf_precision precision, const char *kernels) {
    kvf_model *m = NULL;
    kvf_error err = {0};
    kvf_model_options options = {.precision = precision, .kernels = kernels, .threads = 2};
    if (kvf_model_open(path, &options, &m, &err) != KVF_OK) fail_msg("%s", err.message);
    return m;
}

kvf_engine *golden_engine(const kvf_model *m, kvf_kv_type kv, uint32_t tokens, uint32_t threads) {
    kvf_engine *e = NULL;
    kvf_error err = {0};
    kvf_engine_options options = {.kv_type = kv,
        .blocks = (uint32_t)kvf_div_up(tokens, KVF_BLOCK_TOKENS) + 1,
        .threads = threads,
        .tokens_max = tokens,
        .sequences_max = 64,
        .logit_rows_max = tokens};
    if (kvf_engine_create(m, &options, &e, &err) != KVF_OK) fail_msg("%s", err.message);
    return e;
}

void golden_run(kvf_engine *e, const uint32_t *tokens, uint32_t position, uint32_t count, uint32_t chunk, bool all,
    float *logits, uint32_t vocab) {
    uint32_t blocks[1024];
    for (uint32_t i = 0; i < KVF_COUNT_OF(blocks); i++) blocks[i] = i;
    for (uint32_t at = 0; at < count; at += chunk) {
        uint32_t n = KVF_MIN(chunk, count - at), wanted = all ? n : at + n == count;
        kvf_engine_run run = {
            .tokens = tokens + at, .count = n, .position = position + at, .blocks = blocks, .logit_rows = wanted};
        kvf_engine_step step = {.runs = &run, .runs_count = 1, .logits = logits};
        assert_int_equal(kvf_engine_run_step(e, &step), KVF_OK);
        logits += (size_t)wanted * vocab;
    }
}

double golden_logprob(const float *logits, uint32_t vocab, uint32_t token) {
    double max = logits[golden_argmax(logits, vocab)], sum = 0;
    for (uint32_t i = 0; i < vocab; i++) sum += (double)expf((float)(logits[i] - max));
    return logits[token] - max - log(sum);
}

uint32_t golden_argmax(const float *logits, uint32_t vocab) {
    uint32_t best = 0;
    for (uint32_t i = 1; i < vocab; i++)
        if (logits[i] > logits[best]) best = i;
    return best;
}
