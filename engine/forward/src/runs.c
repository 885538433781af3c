/* What a step may ask of an engine, and what names its pages have, whatever computes it. */
#include "kvf/engine.h"

static const char *const kv_type_names[] = {"f16", "f32", "fp8", "q8"};
const char *kvf_kv_type_name(kvf_kv_type type) { return kv_type_names[type]; }
bool kvf_kv_type_find(const char *name, kvf_kv_type *out) {
    for (size_t i = 0; i < KVF_COUNT_OF(kv_type_names); i++) {
        if (strcmp(name, kv_type_names[i]) != 0) continue;
        *out = (kvf_kv_type)i;
        return true;
    }
    return false;
}

static bool run_fits(const kvf_model_spec *s, const kvf_engine_limits *l, const kvf_engine_run *run) {
    if (run->count == 0 || run->count > l->tokens_max || run->logit_rows > run->count) return false;
    if (run->position > s->context_max || run->count > s->context_max - run->position) return false;
    for (uint32_t i = 0; i < run->count; i++)
        if (run->tokens[i] >= s->vocab) return false;
    for (uint32_t i = 0; i <= (run->position + run->count - 1) / KVF_BLOCK_TOKENS; i++)
        if (run->blocks[i] >= l->blocks) return false;
    return true;
}

bool kvf_engine_runs_fit(
    const kvf_model_spec *spec, const kvf_engine_limits *limits, const kvf_engine_run *runs, uint32_t runs_count) {
    if (runs_count == 0 || runs_count > limits->sequences_max) return false;
    uint32_t rows = 0, logits = 0;
    for (uint32_t r = 0; r < runs_count; r++) {
        if (!run_fits(spec, limits, &runs[r]) || runs[r].count > limits->tokens_max - rows ||
            runs[r].logit_rows > limits->logit_rows_max - logits)
            return false;
        rows += runs[r].count;
        logits += runs[r].logit_rows;
    }
    return true;
}
