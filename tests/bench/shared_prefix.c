/* What it saves that sequences share the pages of a prefix: steps of decoding over shared and over separate copies of
 * the same pages, alternating, best of each. shared_prefix MODEL [SEQUENCES [PREFIX [THREADS]]] KVFERRY_CPU names the
 * kernels. */
#include "kvf/engine.h"
#include "kvf/os.h"
#include <stdio.h>
#include <stdlib.h>

enum { SEQUENCES_MAX = 64, CHUNK = 512, STEPS = 6, ROUNDS = 6, OWN_PAGES = 4 };

typedef struct {
    kvf_engine *e;
    uint32_t sequences, prefix, pages;
    uint32_t *tokens, *blocks[2]; /* separate, shared: [sequences][pages] */
    float *logits;
} bench;

static bool fill(bench *b) {
    for (uint32_t at = 0; at < b->prefix; at += CHUNK) {
        kvf_engine_run run = {.tokens = b->tokens + at,
            .count = KVF_MIN(b->prefix - at, (uint32_t)CHUNK),
            .position = at,
            .blocks = b->blocks[0]};
        if (kvf_engine_run_step(b->e, &(kvf_engine_step){.runs = &run, .runs_count = 1}) != KVF_OK) return false;
    }
    for (uint32_t i = 1; i < b->sequences; i++)
        for (uint32_t k = 0; k < kvf_div_up(b->prefix, KVF_BLOCK_TOKENS); k++)
            kvf_engine_copy_block(b->e, b->blocks[0][i * b->pages + k], b->blocks[0][k], KVF_BLOCK_TOKENS);
    return true;
}

static bool decode(bench *b, bool shared, double *best_ms, uint64_t *bytes) {
    kvf_engine_run runs[SEQUENCES_MAX];
    for (uint32_t step = 0; step < STEPS; step++) {
        for (uint32_t i = 0; i < b->sequences; i++)
            runs[i] = (kvf_engine_run){.tokens = b->tokens + step + i,
                .count = 1,
                .position = b->prefix + step,
                .blocks = b->blocks[shared] + i * b->pages,
                .logit_rows = 1};
        uint64_t before = kvf_engine_kv_read_bytes(b->e);
        kvf_time_ns start = kvf_os_now_ns();
        kvf_engine_step s = {.runs = runs, .runs_count = b->sequences, .logits = b->logits};
        if (kvf_engine_run_step(b->e, &s) != KVF_OK) return false;
        double ms = (double)(kvf_os_now_ns() - start) / 1e6;
        if (*best_ms == 0 || ms < *best_ms) *best_ms = ms;
        *bytes = kvf_engine_kv_read_bytes(b->e) - before;
    }
    return true;
}

static int run(bench *b) {
    double ms[2] = {0};
    uint64_t bytes[2];
    if (!fill(b)) return 1;
    for (int round = 0; round < ROUNDS; round++)
        if (!decode(b, false, &ms[0], &bytes[0]) || !decode(b, true, &ms[1], &bytes[1])) return 1;
    printf("%u sequences behind %u tokens: a step with separate pages %.1f ms, %.1f MB of KV read; with shared pages "
           "%.1f ms, %.1f MB: %.2fx faster, %.1fx fewer bytes\n",
        b->sequences, b->prefix, ms[0], (double)bytes[0] / 1e6, ms[1], (double)bytes[1] / 1e6, ms[0] / ms[1],
        (double)bytes[0] / (double)bytes[1]);
    return 0;
}

int main(int argc, char **argv) {
    if (argc < 2) return 64;
    bench b = {
        .sequences = argc > 2 ? (uint32_t)atoi(argv[2]) : 16, .prefix = argc > 3 ? (uint32_t)atoi(argv[3]) : 2000};
    uint32_t threads = argc > 4 ? (uint32_t)atoi(argv[4]) : KVF_MIN(kvf_os_cpu_count(), 64u);
    if (b.sequences < 1 || b.sequences > SEQUENCES_MAX || b.prefix < 1 || b.prefix > 1u << 20) return 64;
    kvf_model *m = NULL;
    kvf_error err = {0};
    kvf_model_options load = {.kernels = getenv("KVFERRY_CPU"), .threads = threads};
    if (kvf_model_open(argv[1], &load, &m, &err) != KVF_OK) goto failed;
    b.pages = (uint32_t)kvf_div_up(b.prefix, KVF_BLOCK_TOKENS) + OWN_PAGES;
    size_t count = (size_t)b.sequences * b.pages;
    kvf_engine_options options = {.blocks = (uint32_t)count,
        .threads = threads,
        .tokens_max = CHUNK,
        .sequences_max = b.sequences,
        .logit_rows_max = b.sequences};
    if (kvf_engine_create(m, &options, &b.e, &err) != KVF_OK) goto failed;
    uint32_t vocab = kvf_model_get_spec(m)->vocab;
    b.tokens = calloc(b.prefix + SEQUENCES_MAX + STEPS, sizeof *b.tokens);
    b.logits = calloc((size_t)b.sequences * vocab, sizeof *b.logits);
    for (int i = 0; i < 2; i++) b.blocks[i] = calloc(count, sizeof(uint32_t));
    if (!b.tokens || !b.logits || !b.blocks[0] || !b.blocks[1]) return 1;
    for (uint32_t i = 0; i < b.prefix + SEQUENCES_MAX + STEPS; i++) b.tokens[i] = (i * 7919u + 13) % vocab;
    for (size_t i = 0; i < count; i++) {
        b.blocks[0][i] = (uint32_t)i;
        b.blocks[1][i] = (uint32_t)(i % b.pages < b.prefix / KVF_BLOCK_TOKENS ? i % b.pages : i);
    }
    return run(&b);
failed:
    fprintf(stderr, "%s\n", err.message);
    return 1;
}
