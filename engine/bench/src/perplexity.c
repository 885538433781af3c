/* Mean negative log-likelihood of a text: the engine's yardstick. */
#include "kvf/engine_bench.h"
#include "kvf/os.h"
#include "kvf/sampler.h"
#include "kvf/tokenizer.h"
#include <errno.h>
#include <math.h>
#include <stdlib.h>

enum { CHUNK = 64, CONTEXT_DEFAULT_MAX = 2048, TEXT_BYTES_MAX = 1 << 28 };

static kvf_status read_file(const char *path, char **text, size_t *len_bytes, kvf_error *err) {
    FILE *f = fopen(path, "rb");
    if (!f) return kvf_fail(err, KVF_ERR_IO, "%s: %s", path, strerror(errno));
    kvf_status status = KVF_OK;
    size_t room = 1 << 16, used = 0;
    char *data = malloc(room);
    while (data) {
        used += fread(data + used, 1, room - used, f);
        if (used < room) break;
        if (room >= TEXT_BYTES_MAX) {
            status = kvf_fail(err, KVF_ERR_LIMIT, "%s: more than %d bytes", path, TEXT_BYTES_MAX);
            break;
        }
        char *more = realloc(data, room *= 2);
        if (!more) free(data);
        data = more;
    }
    if (!data) status = kvf_fail(err, KVF_ERR_NO_MEMORY, "%s: out of memory", path);
    if (status == KVF_OK && ferror(f)) status = kvf_fail(err, KVF_ERR_IO, "%s: read error", path);
    fclose(f);
    if (status != KVF_OK) {
        free(data);
        return status;
    }
    *text = data;
    *len_bytes = used;
    return KVF_OK;
}

static kvf_status read_tokens(
    const kvf_perplexity_options *o, const kvf_model *m, uint32_t **ids, size_t *count, kvf_error *err) {
    char *text = NULL;
    size_t len_bytes = 0;
    kvf_status status = read_file(o->file, &text, &len_bytes, err);
    if (status != KVF_OK) return status;
    kvf_tokenizer *t = NULL;
    status = kvf_tokenizer_create(kvf_model_get_gguf(m), &t, err);
    if (status == KVF_OK) {
        status = kvf_tokenizer_encode(t, text, len_bytes, NULL, SIZE_MAX / 8, ids, count);
        if (status != KVF_OK)
            kvf_fail(err, status, "%s: cannot be cut into tokens: %s", o->file, kvf_status_text(status));
        kvf_tokenizer_destroy(t);
    }
    free(text);
    if (status == KVF_OK && *count < 2) {
        free(*ids);
        return kvf_fail(err, KVF_ERR_INVALID, "%s: %zu tokens: at least two are needed", o->file, *count);
    }
    return status;
}

/* Sum of -ln p of ids[1..count) given what stands before them. */
static kvf_status score_window(kvf_engine *e, const kvf_model *m, const uint32_t *ids, uint32_t count,
    const uint32_t *blocks, float *logits, double *nll) {
    uint32_t vocab = kvf_model_get_spec(m)->vocab;
    for (uint32_t at = 0; at < count; at += CHUNK) {
        uint32_t n = KVF_MIN(count - at, (uint32_t)CHUNK);
        kvf_engine_run run = {.tokens = ids + at, .count = n, .position = at, .blocks = blocks, .logit_rows = n};
        kvf_status status = kvf_engine_run_step(e, &(kvf_engine_step){.runs = &run, .runs_count = 1, .logits = logits});
        if (status != KVF_OK) return status;
        for (uint32_t i = 0; i < n && at + i + 1 < count; i++) {
            const float *row = logits + (size_t)i * vocab;
            *nll += kvf_log_sum_exp(row, vocab) - (double)row[ids[at + i + 1]];
        }
    }
    return KVF_OK;
}

static kvf_status score(const kvf_perplexity_options *o, const kvf_model *m, const uint32_t *ids, uint32_t context,
    kvf_perplexity_result *r, kvf_error *err) {
    uint32_t blocks_count = (uint32_t)kvf_div_up(context, KVF_BLOCK_TOKENS);
    kvf_engine_options options = {.kv_type = o->kv_type,
        .blocks = blocks_count,
        .threads = o->threads ? o->threads : KVF_MIN(kvf_os_cpu_count(), 64u),
        .tokens_max = CHUNK,
        .sequences_max = 1,
        .logit_rows_max = CHUNK};
    kvf_engine *e = NULL;
    kvf_status status = kvf_engine_create(m, &options, &e, err);
    if (status != KVF_OK) return status;
    uint32_t *blocks = malloc(blocks_count * sizeof *blocks);
    float *logits = malloc((size_t)CHUNK * kvf_model_get_spec(m)->vocab * sizeof *logits);
    if (!blocks || !logits) status = kvf_fail(err, KVF_ERR_NO_MEMORY, "out of memory");
    for (uint32_t i = 0; blocks && i < blocks_count; i++) blocks[i] = i;
    for (uint64_t at = 0; status == KVF_OK && at + 1 < r->tokens; at += context) {
        uint32_t n = (uint32_t)KVF_MIN(r->tokens - at, (uint64_t)context);
        status = score_window(e, m, ids + at, n, blocks, logits, &r->mean_nll);
        if (status != KVF_OK) kvf_fail(err, status, "a step failed: %s", kvf_status_text(status));
        r->scored += n - 1;
    }
    free(logits);
    free(blocks);
    kvf_engine_destroy(e);
    return status;
}

static kvf_status run(const kvf_perplexity_options *o, const kvf_model *m, kvf_perplexity_result *r, kvf_error *err) {
    uint32_t context_max = kvf_model_get_spec(m)->context_max;
    uint32_t context = o->context ? o->context : KVF_MIN(context_max, (uint32_t)CONTEXT_DEFAULT_MAX);
    if (context < 2 || context > context_max)
        return kvf_fail(err, KVF_ERR_INVALID, "context %u: 2 to %u are possible with this model", context, context_max);
    uint32_t *ids = NULL;
    size_t count = 0;
    kvf_status status = read_tokens(o, m, &ids, &count, err);
    if (status != KVF_OK) return status;
    r->tokens = o->tokens ? KVF_MIN(count, (size_t)o->tokens) : count;
    kvf_time_ns start = kvf_os_now_ns();
    status = r->tokens < 2 ? kvf_fail(err, KVF_ERR_INVALID, "tokens 1: at least two are needed")
                           : score(o, m, ids, context, r, err);
    free(ids);
    if (status != KVF_OK) return status;
    r->mean_nll /= (double)r->scored;
    r->perplexity = exp(r->mean_nll);
    r->seconds = (double)(kvf_os_now_ns() - start) / 1e9;
    return KVF_OK;
}

kvf_status kvf_perplexity(
    const kvf_perplexity_options *options, FILE *out, kvf_perplexity_result *result, kvf_error *err) {
    kvf_model_options load = options->load;
    if (!load.threads) load.threads = KVF_MIN(kvf_os_cpu_count(), 64u);
    kvf_model *m = NULL;
    kvf_status status = kvf_model_open(options->model, &load, &m, err);
    if (status != KVF_OK) return status;
    kvf_perplexity_result r = {0};
    status = run(options, m, &r, err);
    kvf_model_close(m);
    if (status != KVF_OK) return status;
    if (out && options->json)
        fprintf(out, "{\"tokens\":%llu,\"scored\":%llu,\"mean_nll\":%.6f,\"perplexity\":%.6f,\"seconds\":%.3f}\n",
            (unsigned long long)r.tokens, (unsigned long long)r.scored, r.mean_nll, r.perplexity, r.seconds);
    else if (out)
        fprintf(out, "%llu tokens, %llu scored in %.1f s: mean negative log-likelihood %.6f, perplexity %.4f\n",
            (unsigned long long)r.tokens, (unsigned long long)r.scored, r.seconds, r.mean_nll, r.perplexity);
    if (result) *result = r;
    return KVF_OK;
}
