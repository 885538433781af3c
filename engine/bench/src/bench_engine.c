/* Tokens per second of one engine. */
#include "kvf/engine_bench.h"
#include "kvf/os.h"
#include <stdlib.h>

enum { CHUNK = 512, DECODE_STEPS = 12 };

kvf_status kvf_bench_list_parse(
    const char *name, const char *text, uint32_t value_max, kvf_bench_list *out, kvf_error *err) {
    kvf_bench_list list = {0};
    for (const char *at = text;; at++) {
        char *end;
        unsigned long v = *at >= '0' && *at <= '9' ? strtoul(at, &end, 10) : 0;
        if (v < 1 || v > value_max)
            return kvf_fail(
                err, KVF_ERR_INVALID, "%s: \"%s\": numbers from 1 to %u, separated by commas", name, text, value_max);
        if (list.count == KVF_BENCH_LIST_MAX)
            return kvf_fail(err, KVF_ERR_INVALID, "%s: more than %d numbers", name, KVF_BENCH_LIST_MAX);
        list.value[list.count++] = (uint32_t)v;
        at = end;
        if (*at == '\0') break;
        if (*at != ',')
            return kvf_fail(
                err, KVF_ERR_INVALID, "%s: \"%s\": numbers from 1 to %u, separated by commas", name, text, value_max);
    }
    *out = list;
    return KVF_OK;
}

typedef struct {
    const kvf_bench_engine_options *options;
    kvf_bench_list threads, prefill, batch, context;
    uint32_t repetitions, results;
    FILE *out;
    const kvf_model *m;
    kvf_engine *e;
    uint32_t blocks_per_sequence, batch_max;
    uint32_t *tokens, *blocks; /* [longest], [batch_max][blocks_per_sequence] */
    kvf_engine_run *runs;
    float *logits;
} bench;

static uint32_t largest(const kvf_bench_list *list) {
    uint32_t most = 0;
    for (uint32_t i = 0; i < list->count; i++) most = KVF_MAX(most, list->value[i]);
    return most;
}
static kvf_bench_list or_default(kvf_bench_list list, kvf_bench_list fallback) { return list.count ? list : fallback; }

static kvf_status prefill(bench *b, uint32_t count) {
    for (uint32_t at = 0; at < count; at += CHUNK) {
        uint32_t n = KVF_MIN(count - at, (uint32_t)CHUNK);
        kvf_engine_run run = {
            .tokens = b->tokens + at, .count = n, .position = at, .blocks = b->blocks, .logit_rows = at + n == count};
        kvf_status status =
            kvf_engine_run_step(b->e, &(kvf_engine_step){.runs = &run, .runs_count = 1, .logits = b->logits});
        if (status != KVF_OK) return status;
    }
    return KVF_OK;
}

static kvf_status decode(bench *b, uint32_t batch, uint32_t context) {
    for (uint32_t step = 0; step < DECODE_STEPS; step++) {
        for (uint32_t i = 0; i < batch; i++)
            b->runs[i] = (kvf_engine_run){.tokens = b->tokens + (step + i) % CHUNK,
                .count = 1,
                .position = context + step,
                .blocks = b->blocks + (size_t)i * b->blocks_per_sequence,
                .logit_rows = 1};
        kvf_status status =
            kvf_engine_run_step(b->e, &(kvf_engine_step){.runs = b->runs, .runs_count = batch, .logits = b->logits});
        if (status != KVF_OK) return status;
    }
    return KVF_OK;
}

static void report(bench *b, const char *kind, uint32_t batch, uint32_t tokens, uint32_t threads, double per_second) {
    bool is_prefill = batch == 0;
    if (b->options->json) {
        fprintf(b->out, "%s{\"kind\":\"%s\",", b->results++ ? "," : "", kind);
        if (is_prefill)
            fprintf(b->out, "\"tokens\":%u,", tokens);
        else
            fprintf(b->out, "\"batch\":%u,\"context\":%u,", batch, tokens);
        fprintf(b->out, "\"threads\":%u,\"tokens_per_s\":%.1f}", threads, per_second);
        return;
    }
    if (b->results++ == 0) fprintf(b->out, "%-8s %8s %6s %8s %12s\n", "kind", "tokens", "batch", "threads", "tokens/s");
    fprintf(b->out, "%-8s %8u %6u %8u %12.1f\n", kind, tokens, KVF_MAX(batch, 1u), threads, per_second);
    fflush(b->out);
}

static kvf_status measure(bench *b, uint32_t batch, uint32_t tokens, uint32_t threads) {
    double best = 0;
    if (batch > 0) { /* real keys and values: one prompt, copied for every sequence */
        kvf_status status = prefill(b, tokens);
        if (status != KVF_OK) return status;
        for (uint32_t i = 1; i < batch; i++)
            for (uint32_t k = 0; k < kvf_div_up(tokens, KVF_BLOCK_TOKENS); k++)
                kvf_engine_copy_block(
                    b->e, b->blocks[(size_t)i * b->blocks_per_sequence + k], b->blocks[k], KVF_BLOCK_TOKENS);
    }
    for (uint32_t i = 0; i <= b->repetitions; i++) { /* the first is the warm-up */
        kvf_time_ns start = kvf_os_now_ns();
        kvf_status status = batch ? decode(b, batch, tokens) : prefill(b, tokens);
        if (status != KVF_OK) return status;
        double seconds = (double)(kvf_os_now_ns() - start) / 1e9;
        double count = batch ? (double)batch * DECODE_STEPS : (double)tokens;
        if (i > 0) best = KVF_MAX(best, count / seconds);
    }
    report(b, batch ? "decode" : "prefill", batch, tokens, threads, best);
    return KVF_OK;
}

static kvf_status measure_all(bench *b, uint32_t threads) {
    kvf_status status = KVF_OK;
    for (uint32_t i = 0; status == KVF_OK && !b->options->no_prefill && i < b->prefill.count; i++)
        status = measure(b, 0, b->prefill.value[i], threads);
    for (uint32_t c = 0; !b->options->no_decode && c < b->context.count; c++)
        for (uint32_t i = 0; status == KVF_OK && i < b->batch.count; i++)
            status = measure(b, b->batch.value[i], b->context.value[c], threads);
    return status;
}

static kvf_status allocate(bench *b, uint32_t longest) {
    const kvf_model_spec *s = kvf_model_get_spec(b->m);
    b->batch_max = largest(&b->batch);
    b->blocks_per_sequence = (uint32_t)kvf_div_up(longest, KVF_BLOCK_TOKENS);
    size_t blocks = (size_t)b->batch_max * b->blocks_per_sequence;
    b->tokens = calloc(KVF_MAX(longest, 2u * CHUNK), sizeof *b->tokens);
    b->blocks = calloc(blocks, sizeof *b->blocks);
    b->runs = calloc(b->batch_max, sizeof *b->runs);
    b->logits = calloc((size_t)b->batch_max * s->vocab, sizeof *b->logits);
    if (!b->tokens || !b->blocks || !b->runs || !b->logits) return KVF_ERR_NO_MEMORY;
    for (uint32_t i = 0; i < KVF_MAX(longest, 2u * CHUNK); i++) b->tokens[i] = (i * 7919u + 13) % s->vocab;
    for (size_t i = 0; i < blocks; i++) b->blocks[i] = (uint32_t)i;
    return KVF_OK;
}

static kvf_status run_all(bench *b, kvf_error *err) {
    const kvf_model_spec *s = kvf_model_get_spec(b->m);
    uint32_t longest = KVF_MAX(largest(&b->prefill), largest(&b->context) + DECODE_STEPS);
    if (longest > s->context_max)
        return kvf_fail(err, KVF_ERR_INVALID, "%u tokens: the model's context is %u", longest, s->context_max);
    kvf_status status = allocate(b, longest);
    if (status != KVF_OK) return kvf_fail(err, status, "out of memory");
    if (b->options->json) fprintf(b->out, "{\"results\":[");
    for (uint32_t i = 0; status == KVF_OK && i < b->threads.count; i++) {
        kvf_engine_options options = {.kv_type = b->options->kv_type,
            .blocks = b->batch_max * b->blocks_per_sequence,
            .threads = b->threads.value[i],
            .tokens_max = KVF_MAX((uint32_t)CHUNK, b->batch_max),
            .sequences_max = b->batch_max,
            .logit_rows_max = b->batch_max};
        status = kvf_engine_create(b->m, &options, &b->e, err);
        if (status != KVF_OK) return status;
        if (i == 0 && !b->options->json)
            fprintf(b->out, "%s: %s, kernels %s, %.1f MB of packed weights\n", s->name, kvf_engine_numerics(b->e),
                kvf_model_kernels(b->m), (double)kvf_model_packed_bytes(b->m) / 1e6);
        status = measure_all(b, options.threads);
        kvf_engine_destroy(b->e);
        if (status != KVF_OK) return kvf_fail(err, status, "a step failed: %s", kvf_status_text(status));
    }
    if (b->options->json) fprintf(b->out, "]}\n");
    return KVF_OK;
}

kvf_status kvf_bench_engine(const kvf_bench_engine_options *options, FILE *out, kvf_error *err) {
    bench b = {.options = options, .out = out, .repetitions = options->repetitions ? options->repetitions : 5};
    b.threads = or_default(options->threads, (kvf_bench_list){1, {KVF_MIN(kvf_os_cpu_count(), 64u)}});
    b.prefill = or_default(options->prefill, (kvf_bench_list){1, {512}});
    b.batch = or_default(options->batch, (kvf_bench_list){3, {1, 4, 16}});
    b.context = or_default(options->context, (kvf_bench_list){1, {256}});
    kvf_model_options load = options->load;
    if (!load.threads) load.threads = KVF_MIN(kvf_os_cpu_count(), 64u);
    kvf_model *m = NULL;
    kvf_status status = kvf_model_open(options->model, &load, &m, err);
    if (status != KVF_OK) return status;
    b.m = m;
    status = run_all(&b, err);
    free(b.logits);
    free(b.runs);
    free(b.blocks);
    free(b.tokens);
    kvf_model_close(m);
    return status;
}
