/* The discipline of ARCHITECTURE.md, "Same bits": a token's logits are the same bits whatever the chunks, the batch
 * around it, the threads, the blocks it lies in, and the kernels. */
#include "golden.h"
#include "kvf/kernels.h"
#include "kvf/rng.h"
#include "retype.h"
#include <setjmp.h>
#include <stdarg.h>
#include <cmocka.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

#define BF16_TEMPLATE "/tmp/kvferry-bf16-XXXXXX"
enum { SEQUENCES = 5, TOKENS_MAX = 600, BLOCKS = SEQUENCES * 40 };

static kvf_rng rng = {.seed = 7};
static uint32_t below(uint32_t bound) { return (uint32_t)kvf_rng_below(&rng, bound); }

typedef struct {
    uint32_t count, tokens[TOKENS_MAX];
    float *want; /* [count][vocab] */
    uint32_t at, blocks[TOKENS_MAX / KVF_BLOCK_TOKENS + 1];
} sequence;

static void make_sequences(sequence *s, uint32_t longest, uint32_t vocab) {
    for (uint32_t i = 0; i < SEQUENCES; i++) {
        s[i].count = i == 0 ? longest : 1 + below(longest / 2);
        for (uint32_t k = 0; k < s[i].count; k++) s[i].tokens[k] = below(vocab);
        s[i].want = malloc((size_t)s[i].count * vocab * sizeof(float));
        assert_non_null(s[i].want);
    }
}

/* Each sequence alone, in one piece, one thread. */
static void compute_wanted(const kvf_model *m, kvf_kv_type kv, sequence *s, uint32_t vocab) {
    for (uint32_t i = 0; i < SEQUENCES; i++) {
        kvf_engine *e = golden_engine(m, kv, s[i].count, 1);
        golden_run(e, s[i].tokens, 0, s[i].count, s[i].count, true, s[i].want, vocab);
        kvf_engine_destroy(e);
    }
}

static void shuffle_blocks(sequence *s) {
    uint32_t order[BLOCKS], next = 0;
    for (uint32_t i = 0; i < BLOCKS; i++) {
        uint32_t j = below(i + 1);
        order[i] = order[j];
        order[j] = i;
    }
    for (uint32_t i = 0; i < SEQUENCES; i++)
        for (uint32_t k = 0; k < kvf_div_up(s[i].count, KVF_BLOCK_TOKENS); k++) s[i].blocks[k] = order[next++];
}

/* All sequences at once: in each step some of them advance by random chunks, some by one token. */
static void compute_mixed(kvf_engine *e, sequence *s, uint32_t vocab, const char *what) {
    float *logits = malloc((size_t)SEQUENCES * TOKENS_MAX * vocab * sizeof(float));
    assert_non_null(logits);
    for (uint32_t i = 0; i < SEQUENCES; i++) s[i].at = 0;
    for (;;) {
        kvf_engine_run runs[SEQUENCES];
        uint32_t which[SEQUENCES], count = 0;
        bool left = false;
        for (uint32_t i = 0; i < SEQUENCES; i++) {
            uint32_t rest = s[i].count - s[i].at;
            left |= rest > 0;
            if (rest == 0 || below(4) == 0) continue;
            uint32_t n = below(2) ? 1 + below(KVF_MIN(rest, 9u)) : 1 + below(rest);
            which[count] = i;
            runs[count++] = (kvf_engine_run){.tokens = s[i].tokens + s[i].at,
                .count = n,
                .position = s[i].at,
                .blocks = s[i].blocks,
                .logit_rows = 1 + below(n)};
        }
        if (!left) break;
        if (count == 0) continue;
        kvf_engine_step step = {.runs = runs, .runs_count = count, .logits = logits};
        assert_int_equal(kvf_engine_run_step(e, &step), KVF_OK);
        const float *got = logits;
        for (uint32_t r = 0; r < count; r++) {
            sequence *q = &s[which[r]];
            q->at += runs[r].count;
            size_t bytes = (size_t)runs[r].logit_rows * vocab * sizeof(float);
            if (memcmp(got, q->want + (size_t)(q->at - runs[r].logit_rows) * vocab, bytes) != 0)
                fail_msg("%s: logits of sequence %u up to token %u differ", what, which[r], q->at);
            got += (size_t)runs[r].logit_rows * vocab;
        }
    }
    free(logits);
}

static void check_model(const char *path, kvf_precision precision, kvf_kv_type kv, uint32_t longest, int rounds) {
    kvf_model *m = golden_model(path, precision, NULL);
    uint32_t vocab = kvf_model_get_spec(m)->vocab;
    sequence *s = calloc(SEQUENCES, sizeof *s);
    make_sequences(s, longest, vocab);
    compute_wanted(m, kv, s, vocab);
    for (int round = 0; round < rounds; round++) {
        kvf_engine_options options = {.kv_type = kv,
            .blocks = BLOCKS,
            .threads = 1 + (uint32_t)round % 3,
            .tokens_max = SEQUENCES * TOKENS_MAX,
            .sequences_max = SEQUENCES,
            .logit_rows_max = SEQUENCES * TOKENS_MAX};
        kvf_engine *e = NULL;
        kvf_error err = {0};
        if (kvf_engine_create(m, &options, &e, &err) != KVF_OK) fail_msg("%s", err.message);
        shuffle_blocks(s);
        compute_mixed(e, s, vocab, path);
        kvf_engine_destroy(e);
    }
    for (uint32_t i = 0; i < SEQUENCES; i++) free(s[i].want);
    free(s);
    kvf_model_close(m);
}

static void tiny_models(void **state) {
    static const char *const names[] = {"llama", "llama-mha", "llama3-rope", "mistral-wide-head", "qwen2", "qwen3"};
    for (size_t i = 0; i < KVF_COUNT_OF(names); i++) {
        char path[512];
        snprintf(path, sizeof path, GOLDEN "tiny/%s.gguf", names[i]);
        check_model(path, i % 2 ? KVF_PRECISION_EXACT : KVF_PRECISION_FAST, i % 2 ? KVF_KV_F32 : KVF_KV_F16, 560, 6);
        check_model(path, i % 2 ? KVF_PRECISION_FAST : KVF_PRECISION_EXACT, KVF_KV_Q8, 300, 2);
    }
}

static void bf16_model(void **state) {
    char path[] = BF16_TEMPLATE;
    retype_model(GOLDEN "tiny/llama.gguf", path, KVF_DTYPE_BF16, NULL);
    check_model(path, KVF_PRECISION_FAST, KVF_KV_F16, 560, 6);
    check_model(path, KVF_PRECISION_EXACT, KVF_KV_F16, 300, 2);
    kvf_model *m = golden_model(path, KVF_PRECISION_FAST, NULL);
    kvf_engine *e = golden_engine(m, KVF_KV_F16, 16, 1);
    assert_string_equal(kvf_engine_numerics(e), "v1-int8g32-bf16-kvf16");
    kvf_engine_destroy(e);
    kvf_model_close(m);
    unlink(path);
}

static void sample_model(void **state) {
    if (access(SAMPLE_MODEL, R_OK) != 0) {
        print_message("skipped: %s is not there\n", SAMPLE_MODEL);
        skip();
    }
    if (SANITIZED) skip();
    check_model(SAMPLE_MODEL, KVF_PRECISION_FAST, KVF_KV_F16, 60, 3);
    check_model(SAMPLE_MODEL, KVF_PRECISION_EXACT, KVF_KV_F32, 40, 2);
}

/* Every table this processor runs gives the bits of `ref`, whole models through. */
static void all_kernels(void **state) {
    const kvf_kernel_ops *tables[KVF_KERNELS_MAX];
    size_t count = kvf_kernels_list(tables);
    char bf16[] = BF16_TEMPLATE;
    const struct {
        const char *path;
        uint32_t tokens;
    } models[] = {{GOLDEN "tiny/llama.gguf", 300}, {bf16, 150}, {GOLDEN "tiny/qwen3.gguf", 100}, {SAMPLE_MODEL, 3}};
    retype_model(GOLDEN "tiny/llama.gguf", bf16, KVF_DTYPE_BF16, NULL);
    for (size_t i = 0; i < KVF_COUNT_OF(models) * 2; i++) {
        if (access(models[i / 2].path, R_OK) != 0 || (SANITIZED && i / 2 == 3)) continue;
        uint32_t tokens[TOKENS_MAX], n = models[i / 2].tokens;
        float *want = NULL;
        size_t bytes = 0;
        for (size_t k = count; k-- > 0;) {
            kvf_model *m =
                golden_model(models[i / 2].path, i % 2 ? KVF_PRECISION_EXACT : KVF_PRECISION_FAST, tables[k]->name);
            assert_string_equal(kvf_model_kernels(m), tables[k]->name);
            uint32_t vocab = kvf_model_get_spec(m)->vocab;
            for (uint32_t t = 0; t < n; t++) tokens[t] = (t * 71 + 5) % vocab;
            kvf_engine *e = golden_engine(m, KVF_KV_F16, n, 2);
            bytes = (size_t)n * vocab * sizeof(float);
            float *got = malloc(bytes);
            golden_run(e, tokens, 0, n, n, true, got, vocab);
            if (want && memcmp(want, got, bytes) != 0)
                fail_msg("%s: %s differs from ref", models[i / 2].path, tables[k]->name);
            if (want)
                free(got);
            else
                want = got;
            kvf_engine_destroy(e);
            kvf_model_close(m);
        }
        free(want);
    }
    unlink(bf16);
}

static void steps_that_are_wrong(void **state) {
    kvf_model *m = golden_model(GOLDEN "tiny/llama.gguf", KVF_PRECISION_FAST, NULL);
    kvf_engine_options options = {.blocks = 4, .threads = 1, .tokens_max = 20, .sequences_max = 2, .logit_rows_max = 2};
    kvf_engine *e = NULL;
    kvf_error err = {0};
    assert_int_equal(kvf_engine_create(m, &options, &e, &err), KVF_OK);
    uint32_t tokens[32] = {1, 2, 3}, blocks[2] = {3, 1}, bad_token[1] = {320}, bad_block[1] = {4};
    float logits[3 * 320];
    const kvf_engine_run good = {.tokens = tokens, .count = 3, .blocks = blocks, .logit_rows = 2};
    kvf_engine_run bad[7] = {good, good, good, good, good, good, good};
    bad[0].count = 0;
    bad[1].count = 21;
    bad[2].logit_rows = 3;
    bad[3].count = bad[3].logit_rows = 1, bad[3].tokens = bad_token;
    bad[4].blocks = bad_block;
    bad[5].position = kvf_model_get_spec(m)->context_max;
    bad[6].position = UINT32_MAX;
    for (size_t i = 0; i < KVF_COUNT_OF(bad); i++) {
        if (kvf_engine_run_step(e, &(kvf_engine_step){.runs = &bad[i], .runs_count = 1, .logits = logits}) !=
            KVF_ERR_INVALID)
            fail_msg("step %zu was taken", i);
    }
    kvf_engine_run three[3] = {good, good, good};
    assert_int_equal(
        kvf_engine_run_step(e, &(kvf_engine_step){.runs = three, .runs_count = 3, .logits = logits}), KVF_ERR_INVALID);
    assert_int_equal(
        kvf_engine_run_step(e, &(kvf_engine_step){.runs = three, .runs_count = 2, .logits = logits}), KVF_ERR_INVALID);
    assert_int_equal(
        kvf_engine_run_step(e, &(kvf_engine_step){.runs = three, .runs_count = 0, .logits = logits}), KVF_ERR_INVALID);
    assert_int_equal(
        kvf_engine_run_step(e, &(kvf_engine_step){.runs = three, .runs_count = 1, .logits = logits}), KVF_OK);
    kvf_engine_destroy(e);
    options.threads = 0;
    assert_int_equal(kvf_engine_create(m, &options, &e, &err), KVF_ERR_INVALID);
    assert_non_null(strstr(err.message, "threads 0"));
    kvf_model_close(m);
}

/* Sequences whose first blocks are the same ones: their tokens are computed together, over one reading of what they
 * share. The logits are those of each sequence alone, and the bytes read say that sharing happened. */
enum { SHARERS = 9, SHARED_LONGEST = 400 };
static uint64_t decode_sharers(const kvf_model *m, const uint32_t *prefix, const uint32_t common[SHARERS], bool share) {
    enum { STEPS = 20, PAGES = SHARED_LONGEST / 16 + 2 };
    uint32_t vocab = kvf_model_get_spec(m)->vocab, blocks[SHARERS][PAGES], tokens[SHARERS][STEPS], next = 0;
    float *want = malloc((size_t)SHARERS * STEPS * vocab * sizeof(float)),
          *got = malloc((size_t)SHARERS * vocab * sizeof(float));
    kvf_engine_options options = {.kv_type = KVF_KV_F16,
        .blocks = SHARERS * PAGES,
        .threads = 2,
        .tokens_max = SHARED_LONGEST,
        .sequences_max = SHARERS,
        .logit_rows_max = SHARERS};
    kvf_engine *e = NULL;
    assert_int_equal(kvf_engine_create(m, &options, &e, &(kvf_error){0}), KVF_OK);
    for (uint32_t i = 0; i < SHARERS; i++) { /* the first has all of the prefix, another its first common[i] tokens */
        kvf_engine *alone = golden_engine(m, KVF_KV_F16, SHARED_LONGEST + STEPS, 1);
        for (uint32_t k = 0; k < STEPS; k++) tokens[i][k] = below(vocab);
        golden_run(alone, prefix, 0, common[i], common[i], false, got, vocab);
        golden_run(alone, tokens[i], common[i], STEPS, 1, true, want + (size_t)i * STEPS * vocab, vocab);
        kvf_engine_destroy(alone);
        for (uint32_t b = 0; b < PAGES; b++)
            blocks[i][b] = share && i > 0 && b < common[i] / 16 ? blocks[0][b] : next++;
        kvf_engine_run fill = {.tokens = prefix, .count = common[i], .blocks = blocks[i]};
        assert_int_equal(kvf_engine_run_step(e, &(kvf_engine_step){.runs = &fill, .runs_count = 1}), KVF_OK);
    }
    uint64_t before = kvf_engine_kv_read_bytes(e);
    for (uint32_t k = 0; k < STEPS; k++) {
        kvf_engine_run runs[SHARERS];
        for (uint32_t i = 0; i < SHARERS; i++)
            runs[i] = (kvf_engine_run){
                .tokens = &tokens[i][k], .count = 1, .position = common[i] + k, .blocks = blocks[i], .logit_rows = 1};
        kvf_engine_step step = {.runs = runs, .runs_count = SHARERS, .logits = got};
        assert_int_equal(kvf_engine_run_step(e, &step), KVF_OK);
        for (uint32_t i = 0; i < SHARERS; i++)
            if (memcmp(got + (size_t)i * vocab, want + ((size_t)i * STEPS + k) * vocab, vocab * sizeof(float)) != 0)
                fail_msg("token %u of sequence %u, which shares %u, differs", k, i, common[i]);
    }
    uint64_t bytes = kvf_engine_kv_read_bytes(e) - before;
    kvf_engine_destroy(e);
    free(got);
    free(want);
    return bytes;
}

static void sequences_that_share(void **state) {
    static const uint32_t all[SHARERS] = {400, 400, 400, 400, 400, 400, 400, 400, 400};
    static const uint32_t some[SHARERS] = {400, 33, 399, 64, 256, 250, 400, 7, 336};
    uint32_t prefix[SHARED_LONGEST];
    kvf_model *m = golden_model(GOLDEN "tiny/llama.gguf", KVF_PRECISION_FAST, NULL);
    for (uint32_t i = 0; i < SHARED_LONGEST; i++) prefix[i] = below(kvf_model_get_spec(m)->vocab);
    uint64_t apart = decode_sharers(m, prefix, all, false), together = decode_sharers(m, prefix, all, true);
    assert_true(apart >= 6 * together);
    apart = decode_sharers(m, prefix, some, false);
    together = decode_sharers(m, prefix, some, true);
    assert_true(apart > together);
    kvf_model_close(m);
}

/* A private copy of a partly filled block goes on as the original would; layers are announced in order. */
static void note_layer(void *self, uint32_t layer) {
    uint32_t *next = self;
    assert_int_equal(layer, *next);
    *next += 1;
}
static void copied_block_and_layers(void **state) {
    kvf_model *m = golden_model(GOLDEN "tiny/mistral-wide-head.gguf", KVF_PRECISION_EXACT, NULL);
    kvf_engine *e = golden_engine(m, KVF_KV_F16, 100, 2);
    uint32_t tokens[40], blocks[2][3] = {{0, 1, 2}, {0, 4, 5}}, layers = 0;
    float logits[2][320];
    for (uint32_t i = 0; i < 40; i++) tokens[i] = i * 7 % 320;
    kvf_engine_run first = {.tokens = tokens, .count = 25, .blocks = blocks[0]};
    kvf_engine_step step = {.runs = &first, .runs_count = 1, .on_layer = note_layer, .self = &layers};
    assert_int_equal(kvf_engine_run_step(e, &step), KVF_OK);
    assert_int_equal(layers, kvf_model_get_spec(m)->layers);
    kvf_engine_copy_block(e, 4, 1, 9);
    for (int i = 0; i < 2; i++) {
        kvf_engine_run rest = {
            .tokens = tokens + 25, .count = 15, .position = 25, .blocks = blocks[i], .logit_rows = 1};
        assert_int_equal(
            kvf_engine_run_step(e, &(kvf_engine_step){.runs = &rest, .runs_count = 1, .logits = logits[i]}), KVF_OK);
    }
    assert_memory_equal(logits[0], logits[1], sizeof logits[0]);
    assert_int_equal(kvf_engine_page_bytes(e), 2 * 16 * kvf_model_get_spec(m)->kv_heads * 32 * 2);
    kvf_engine_destroy(e);
    kvf_model_close(m);
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(tiny_models), cmocka_unit_test(bf16_model),
        cmocka_unit_test(sample_model), cmocka_unit_test(all_kernels), cmocka_unit_test(steps_that_are_wrong),
        cmocka_unit_test(copied_block_and_layers), cmocka_unit_test(sequences_that_share)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
