#include "backend_cases.h"
#include <jansson.h>
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <cmocka.h>
#include <stdio.h>
#include <stdlib.h>

#define TINY KVF_SOURCE_DIR "/tests/golden/tiny/"
enum { VOCAB = 320, TOKENS_MAX = 800, SEQUENCES_MAX = 8, BLOCKS = 128, BLOCKS_A_SEQUENCE = 64 };

static kvf_backend *open_at(const backend_under_test *t, const char *path) {
    kvf_backend_options o = {.model_path = path,
        .precision = KVF_PRECISION_EXACT,
        .threads = 2,
        .kv_type = t->kv_type,
        .weights = t->weights,
        .kv_memory_bytes = 16u << 20,
        .tokens_max = TOKENS_MAX,
        .sequences_max = SEQUENCES_MAX,
        .logit_rows_max = TOKENS_MAX};
    kvf_backend *b = NULL;
    kvf_error err;
    if (t->open(&o, &b, &err) != KVF_OK) fail_msg("%s: %s", path, err.message);
    assert_true(b->blocks >= BLOCKS);
    return b;
}

static kvf_backend *open_tiny(const backend_under_test *t, const char *name) {
    char path[512];
    snprintf(path, sizeof path, TINY "%s.gguf", name);
    return open_at(t, path);
}

/* One sequence: what it holds so far and where. */
typedef struct {
    uint32_t tokens[TOKENS_MAX], count, computed;
    uint32_t blocks[BLOCKS_A_SEQUENCE];
} sequence;

static void sequence_begin(sequence *s, uint32_t first_block, const uint32_t *tokens, uint32_t count) {
    memset(s, 0, sizeof *s);
    memcpy(s->tokens, tokens, count * sizeof *tokens);
    s->count = count;
    for (uint32_t i = 0; i < BLOCKS_A_SEQUENCE; i++) s->blocks[i] = first_block + i;
}

static kvf_engine_run run_of(const sequence *s, uint32_t count, uint32_t logit_rows) {
    return (kvf_engine_run){.tokens = s->tokens + s->computed,
        .count = count,
        .position = s->computed,
        .blocks = s->blocks,
        .logit_rows = logit_rows};
}

static kvf_backend_sample sample_of(const sequence *s, uint32_t row, const kvf_sampling *sampling, kvf_sample *out) {
    return (kvf_backend_sample){.row = row,
        .input = {.sampling = sampling,
            .vocab = VOCAB,
            .vocab_used = VOCAB,
            .tokens = s->tokens,
            .tokens_count = s->count,
            .prompt_count = s->count},
        .out = out};
}

static void run(kvf_backend *b, const kvf_backend_step *step) { assert_int_equal(b->ops->run_step(b, step), KVF_OK); }

/* Computes all that is left of each sequence in one step and appends the token that follows. */
static void step_all(kvf_backend *b, sequence *const *s, uint32_t count, const kvf_sampling *sampling) {
    kvf_engine_run runs[SEQUENCES_MAX];
    kvf_backend_sample samples[SEQUENCES_MAX];
    kvf_sample out[SEQUENCES_MAX];
    for (uint32_t i = 0; i < count; i++) {
        runs[i] = run_of(s[i], s[i]->count - s[i]->computed, 1);
        samples[i] = sample_of(s[i], i, sampling, &out[i]);
    }
    run(b, &(kvf_backend_step){.runs = runs, .runs_count = count, .samples = samples, .samples_count = count});
    for (uint32_t i = 0; i < count; i++) {
        s[i]->computed = s[i]->count;
        s[i]->tokens[s[i]->count++] = out[i].chosen.token;
    }
}

static uint32_t *read_ids(const json_t *array, uint32_t *count) {
    *count = (uint32_t)json_array_size(array);
    uint32_t *ids = malloc((*count + 1) * sizeof *ids);
    assert_non_null(ids);
    for (uint32_t i = 0; i < *count; i++) ids[i] = (uint32_t)json_integer_value(json_array_get(array, i));
    return ids;
}

static uint32_t check_golden(
    kvf_backend *b, const json_t *golden, const kvf_sampling *greedy, const char *name, double clear_gap) {
    uint32_t count, wanted_count, compared = 0;
    uint32_t *ids = read_ids(json_object_get(golden, "ids"), &count);
    uint32_t *wanted = read_ids(json_object_get(golden, "greedy"), &wanted_count);
    sequence s;
    sequence_begin(&s, 1, ids, count);
    for (uint32_t i = 0; i < wanted_count; i++) {
        double gap = json_real_value(json_array_get(json_object_get(golden, "gap"), i));
        step_all(b, (sequence *[]){&s}, 1, greedy);
        uint32_t token = s.tokens[s.count - 1];
        if (gap > clear_gap && token != wanted[i])
            fail_msg("%s, %u tokens: greedy token %u is %u, not %u", name, count, i, token, wanted[i]);
        compared += gap > clear_gap;
        s.tokens[s.count - 1] = wanted[i]; /* beyond a toss-up follow the golden text */
    }
    free(wanted);
    free(ids);
    return compared;
}

void backend_gives_golden_tokens(const backend_under_test *t, const char *const *names, size_t names_count) {
    kvf_sampling greedy;
    kvf_sampling_defaults(&greedy);
    greedy.temperature = 0;
    for (size_t n = 0; n < names_count; n++) {
        char path[512];
        snprintf(path, sizeof path, TINY "%s.json", names[n]);
        json_t *golden = json_load_file(path, 0, NULL);
        assert_non_null(golden);
        kvf_backend *b = open_tiny(t, names[n]);
        uint32_t compared = 0;
        for (size_t i = 0; i < json_array_size(golden); i++)
            compared += check_golden(b, json_array_get(golden, i), &greedy, names[n], t->clear_gap);
        printf("%s, %s: %u tokens with a clear gap, all as they should be\n", names[n], b->numerics, compared);
        assert_true(compared > 0);
        kvf_backend_destroy(b);
        json_decref(golden);
    }
}

static void some_tokens(uint32_t *ids, uint32_t count, uint32_t seed) {
    for (uint32_t i = 0; i < count; i++) ids[i] = (i * 37 + seed * 101 + i * i % 13) % VOCAB;
}

/* Prompts of 1, 16, 17 and 40 tokens, alone and then in one batch, chunked and not: the same tokens. */
void backend_batches_change_nothing(const backend_under_test *t) {
    static const uint32_t lengths[] = {1, 16, 17, 40};
    enum { N = 4, STEPS = 6 };
    kvf_sampling sampled;
    kvf_sampling_defaults(&sampled);
    sampled.seed = 5;
    sampled.top_k = 40;
    sampled.top_p = 0.9f;
    kvf_backend *b = open_tiny(t, "llama");
    sequence *alone = calloc(N, sizeof *alone), *batch = calloc(N, sizeof *batch);
    assert_true(alone && batch);
    sequence *all[N];
    for (uint32_t i = 0; i < N; i++) {
        uint32_t ids[64];
        some_tokens(ids, lengths[i], i);
        sequence_begin(&alone[i], 1, ids, lengths[i]);
        for (uint32_t j = 0; j < STEPS; j++) step_all(b, (sequence *[]){&alone[i]}, 1, &sampled);
        sequence_begin(&batch[i], 1 + i * 8, ids, lengths[i]);
        all[i] = &batch[i];
    }
    /* The longest in chunks first, a part of its prompt in a step of its own. */
    kvf_engine_run chunk = run_of(&batch[3], 21, 0);
    run(b, &(kvf_backend_step){.runs = &chunk, .runs_count = 1});
    batch[3].computed = 21;
    for (uint32_t j = 0; j < STEPS; j++) step_all(b, all, N, &sampled);
    for (uint32_t i = 0; i < N; i++)
        for (uint32_t j = 0; j < STEPS; j++)
            if (alone[i].tokens[lengths[i] + j] != batch[i].tokens[lengths[i] + j])
                fail_msg("sequence %u: token %u differs in a batch", i, j);
    free(alone);
    free(batch);
    kvf_backend_destroy(b);
}

/* In steps of `part` tokens; out[i]: of token i + 1. */
static void score_prompt(kvf_backend *b, const uint32_t *ids, uint32_t count, uint32_t part, kvf_sample *out) {
    sequence *s = malloc(sizeof *s);
    kvf_backend_score *wants = calloc(count, sizeof *wants);
    assert_true(s && wants);
    sequence_begin(s, 1, ids, count);
    for (; s->computed < count; s->computed += part) {
        uint32_t now = KVF_MIN(part, count - s->computed), wanted = 0;
        for (uint32_t i = s->computed; i + 1 < count && wanted < now; i++)
            wants[wanted++] = (kvf_backend_score){
                .row = i - s->computed, .vocab_used = VOCAB, .token = ids[i + 1], .top = 2, .out = &out[i]};
        kvf_engine_run r = run_of(s, now, now);
        run(b, &(kvf_backend_step){.runs = &r, .runs_count = 1, .scores = wants, .scores_count = wanted});
    }
    free(wants);
    free(s);
}

void backend_scores_agree_with_the_cpu(const backend_under_test *t) {
    enum { COUNT = 50 };
    static const backend_under_test cpu = {.open = kvf_backend_open_cpu};
    uint32_t ids[COUNT];
    some_tokens(ids, COUNT, 3);
    kvf_sample *want = calloc(COUNT, sizeof *want), *got = calloc(COUNT, sizeof *got);
    assert_true(want && got);
    kvf_backend *a = open_tiny(&cpu, "qwen3"), *b = open_tiny(t, "qwen3");
    score_prompt(a, ids, COUNT, COUNT, want);
    score_prompt(b, ids, COUNT, COUNT, got);
    double most = 0;
    for (uint32_t i = 0; i + 1 < COUNT; i++) {
        double off = fabs((double)want[i].chosen.logprob - (double)got[i].chosen.logprob);
        most = fmax(most, off);
        if (!(off <= t->logprob_tolerance)) fail_msg("logprob of position %u is off by %g", i + 1, off);
        assert_int_equal(got[i].chosen.token, ids[i + 1]);
        assert_int_equal(got[i].top_count, 2);
    }
    printf("%s: logprobs of a prompt are off by %.3g at most\n", b->numerics, most);
    kvf_backend_destroy(a);
    kvf_backend_destroy(b);
    free(want);
    free(got);
}

static uint32_t compare_scores(
    const kvf_sample *want, const kvf_sample *got, uint32_t count, const backend_under_test *t, const char *what) {
    uint32_t clear = 0;
    double most = 0;
    for (uint32_t i = 0; i < count; i++) {
        const kvf_token_logprob *w = want[i].top, *g = got[i].top;
        double off = fabs((double)want[i].chosen.logprob - (double)got[i].chosen.logprob);
        most = fmax(most, off);
        if (!(off <= t->logprob_tolerance)) fail_msg("%s: logprob of position %u is off by %g", what, i + 1, off);
        if (!(w[0].logprob - w[1].logprob > (float)t->clear_gap)) continue;
        if (g[0].token != w[0].token)
            fail_msg("%s: after position %u %u is best, not %u", what, i, g[0].token, w[0].token);
        clear++;
    }
    printf("%s: logprobs are off by %.3g at most, %u of %u best tokens are clear\n", what, most, clear, count);
    return clear;
}

void backend_agrees_with_the_cpu_over(const backend_under_test *t, const char *path) {
    enum { COUNT = 48 };
    static const backend_under_test cpu = {.open = kvf_backend_open_cpu};
    uint32_t ids[COUNT];
    for (uint32_t i = 0; i < COUNT; i++) ids[i] = (i * 37 + i * i % 13) % (VOCAB - 1);
    kvf_sample *want = calloc(COUNT, sizeof *want), *got = calloc(COUNT, sizeof *got);
    assert_true(want && got);
    kvf_backend *a = open_at(&cpu, path), *b = open_at(t, path);
    score_prompt(a, ids, COUNT, COUNT, want);
    score_prompt(b, ids, COUNT, COUNT, got);
    assert_true(compare_scores(want, got, COUNT - 1, t, "at once") > COUNT / 4);
    score_prompt(b, ids, COUNT, 1, got);
    compare_scores(want, got, COUNT - 1, t, "token by token");
    kvf_backend_destroy(a);
    kvf_backend_destroy(b);
    free(want);
    free(got);
}

void backend_scores_whole_or_in_parts(const backend_under_test *t, double tolerance) {
    enum { COUNT = 200, PART = 60 };
    uint32_t ids[COUNT];
    some_tokens(ids, COUNT, 4);
    kvf_sample *whole = calloc(COUNT, sizeof *whole), *parts = calloc(COUNT, sizeof *parts);
    assert_true(whole && parts);
    kvf_backend *b = open_tiny(t, "qwen3");
    score_prompt(b, ids, COUNT, COUNT, whole);
    score_prompt(b, ids, COUNT, PART, parts);
    double most = 0;
    for (uint32_t i = 0; i + 1 < COUNT; i++) {
        assert_true(parts[i].top_count == 2);
        most = fmax(most, fabs((double)whole[i].chosen.logprob - (double)parts[i].chosen.logprob));
    }
    printf("%s: logprobs of a prompt in parts are off by %.3g at most\n", b->numerics, most);
    if (!(most <= tolerance)) fail_msg("a prompt in parts: logprobs are off by %g", most);
    kvf_backend_destroy(b);
    free(whole);
    free(parts);
}

/* 24 tokens; the second block's first 8 positions are copied to another block, which then holds a private tail. */
void backend_copies_a_part_of_a_block(const backend_under_test *t) {
    uint32_t ids[24];
    some_tokens(ids, 24, 9);
    kvf_sampling greedy;
    kvf_sampling_defaults(&greedy);
    greedy.temperature = 0;
    kvf_backend *b = open_tiny(t, "llama");
    sequence *s = malloc(sizeof *s), *copy = malloc(sizeof *copy);
    assert_true(s && copy);
    sequence_begin(s, 1, ids, 24);
    step_all(b, (sequence *[]){s}, 1, &greedy);
    b->ops->copy_block(b, 20, 2, 8);
    *copy = *s;
    copy->blocks[1] = 20;
    for (uint32_t i = 0; i < 5; i++) step_all(b, (sequence *[]){s}, 1, &greedy);
    for (uint32_t i = 0; i < 5; i++) step_all(b, (sequence *[]){copy}, 1, &greedy);
    assert_int_equal(s->count, copy->count);
    assert_memory_equal(s->tokens, copy->tokens, s->count * sizeof *s->tokens);
    free(s);
    free(copy);
    kvf_backend_destroy(b);
}

void backend_refuses_what_it_cannot(const backend_under_test *t) {
    kvf_backend_options o = {.model_path = TINY "llama.gguf",
        .precision = KVF_PRECISION_EXACT,
        .threads = 1,
        .kv_memory_bytes = 100,
        .tokens_max = 8,
        .sequences_max = 2,
        .logit_rows_max = 2};
    kvf_backend *b = NULL;
    kvf_error err;
    assert_int_equal(t->open(&o, &b, &err), KVF_ERR_INVALID);
    assert_non_null(strstr(err.message, "kv.memory: 100 bytes"));
    o.model_path = TINY "no-such-model.gguf";
    assert_true(t->open(&o, &b, &err) != KVF_OK);
    assert_non_null(strstr(err.message, "no-such-model.gguf"));

    b = open_tiny(t, "llama");
    uint32_t block = b->blocks, bad = VOCAB, good = 1;
    kvf_engine_run r = {.tokens = &good, .count = 1, .blocks = &block, .logit_rows = 0};
    kvf_backend_step step = {.runs = &r, .runs_count = 1};
    assert_int_equal(b->ops->run_step(b, &step), KVF_ERR_INVALID); /* a block beyond the pool */
    block = 1;
    r.tokens = &bad;
    assert_int_equal(b->ops->run_step(b, &step), KVF_ERR_INVALID); /* a token beyond the vocabulary */
    r.tokens = &good;
    step.runs_count = 0;
    assert_int_equal(b->ops->run_step(b, &step), KVF_ERR_INVALID);
    kvf_backend_destroy(b);
}
