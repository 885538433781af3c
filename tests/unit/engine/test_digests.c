/* Digests of the bits of logits, kept in tests/unit/engine/digests.txt: equal numerics ids give equal bits on every
 * processor and in every release. Whoever changes a rounding changes the id (`v1`), then this file
 * (the test prints the lines). */
#include "golden.h"
#include "kvf/hash.h"
#include "retype.h"
#include <setjmp.h>
#include <stdarg.h>
#include <cmocka.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

enum { TOKENS = 40, SAMPLE_TOKENS = 10 };
typedef struct {
    const char *path;
    uint32_t tokens;
    kvf_precision precision;
    kvf_kv_type kv;
    bool in_bf16; /* its matrices rewritten */
} digest_case;
static const digest_case cases[] = {
    {GOLDEN "tiny/llama.gguf", TOKENS, KVF_PRECISION_EXACT, KVF_KV_F32, false},
    {GOLDEN "tiny/llama3-rope.gguf", TOKENS, KVF_PRECISION_EXACT, KVF_KV_F16, false},
    {GOLDEN "tiny/qwen2.gguf", TOKENS, KVF_PRECISION_EXACT, KVF_KV_F16, false},
    {GOLDEN "tiny/qwen3.gguf", TOKENS, KVF_PRECISION_EXACT, KVF_KV_F16, false},
    {GOLDEN "tiny/llama.gguf", TOKENS, KVF_PRECISION_FAST, KVF_KV_F16, true},
    {SAMPLE_MODEL, SAMPLE_TOKENS, KVF_PRECISION_EXACT, KVF_KV_F16, false},
    {SAMPLE_MODEL, SAMPLE_TOKENS, KVF_PRECISION_FAST, KVF_KV_F16, false},
};

/* "FILE NUMERICS DIGEST" of tokens 0, 7, 14 ... */
static void line_of(const digest_case *c, char *line, size_t size) {
    char rewritten[] = "/tmp/kvf-digests-XXXXXX";
    if (c->in_bf16) retype_model(c->path, rewritten, KVF_DTYPE_BF16, NULL);
    kvf_model *m = golden_model(c->in_bf16 ? rewritten : c->path, c->precision, getenv("KVFERRY_CPU"));
    uint32_t vocab = kvf_model_get_spec(m)->vocab, tokens[TOKENS];
    kvf_engine *e = golden_engine(m, c->kv, c->tokens, 2);
    float *logits = malloc((size_t)c->tokens * vocab * sizeof *logits);
    assert_non_null(logits);
    for (uint32_t i = 0; i < c->tokens; i++) tokens[i] = i * 7 % vocab;
    golden_run(e, tokens, 0, c->tokens, c->tokens, true, logits, vocab);
    uint64_t digest = kvf_hash64_of(logits, (size_t)c->tokens * vocab * sizeof *logits, 0);
    snprintf(
        line, size, "%s %s %016llx\n", strrchr(c->path, '/') + 1, kvf_engine_numerics(e), (unsigned long long)digest);
    printf("%s: %s", kvf_model_kernels(m), line);
    free(logits);
    kvf_engine_destroy(e);
    kvf_model_close(m);
    if (c->in_bf16) unlink(rewritten);
}

static void digests_are_those_of_every_machine(void **state) {
    char known[4096] = "", line[256];
    FILE *f = fopen(KVF_SOURCE_DIR "/tests/unit/engine/digests.txt", "r");
    assert_non_null(f);
    assert_true(fread(known, 1, sizeof known - 1, f) > 0);
    fclose(f);
    for (size_t i = 0; i < KVF_COUNT_OF(cases); i++) {
        if (access(cases[i].path, R_OK) != 0) continue; /* the sample model is fetched, not in the tree */
        line_of(&cases[i], line, sizeof line);
        if (!strstr(known, line)) fail_msg("bits differ from those in digests.txt: %s", line);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(digests_are_those_of_every_machine)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
