/* The CPU backend: engine/forward computes, engine/sampler chooses. */
#include "kvf/backend.h"
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <unistd.h>

typedef struct {
    kvf_backend base;
    kvf_model *model;
    kvf_engine *engine;
    kvf_cores *cores; /* or NULL */
    uint32_t threads;
    float *logits; /* [logit_rows_max][vocab] */
    void *scratch; /* the sampler's */
} cpu_backend;

static void cpu_destroy(kvf_backend *base) {
    cpu_backend *b = (cpu_backend *)base;
    if (b->engine) kvf_engine_destroy(b->engine);
    if (b->model) kvf_model_close(b->model);
    kvf_cores_close(b->cores);
    free(b->logits);
    free(b->scratch);
    free(b);
}

static kvf_status cpu_run_step(kvf_backend *base, const kvf_backend_step *step) {
    cpu_backend *b = (cpu_backend *)base;
    kvf_engine_step es = {.runs = step->runs,
        .runs_count = step->runs_count,
        .logits = b->logits,
        .on_layer = step->on_layer,
        .self = step->self};
    kvf_status status = kvf_engine_run_step(b->engine, &es);
    if (status != KVF_OK) return status;
    size_t vocab = base->spec->vocab;
    for (uint32_t i = 0; i < step->scores_count; i++) {
        const kvf_backend_score *s = &step->scores[i];
        kvf_sample_score(b->logits + s->row * vocab, (uint32_t)vocab, s->vocab_used, s->token, s->top, s->out);
    }
    for (uint32_t i = 0; i < step->samples_count; i++) {
        kvf_sample_input in = step->samples[i].input;
        in.logits = b->logits + step->samples[i].row * vocab;
        kvf_sample_token(&in, b->scratch, step->samples[i].out);
    }
    return KVF_OK;
}

static void cpu_copy_block(kvf_backend *base, uint32_t to, uint32_t from, uint32_t tokens) {
    kvf_engine_copy_block(((cpu_backend *)base)->engine, to, from, tokens);
}

static void *cpu_page(kvf_backend *base, uint32_t layer, uint32_t block) {
    return kvf_engine_page(((cpu_backend *)base)->engine, layer, block);
}

static const kvf_backend_ops cpu_ops = {
    .destroy = cpu_destroy, .run_step = cpu_run_step, .copy_block = cpu_copy_block, .page = cpu_page};

/* Touches the whole pool now: what kv.memory promises is there, memory stays flat, and no page fault hits a step
 * later. A kernel without MADV_POPULATE_WRITE (before 5.14) does it as pages are used. */
static void commit_pool(cpu_backend *b) {
    const uintptr_t page = (uintptr_t)sysconf(_SC_PAGESIZE);
    for (uint32_t l = 0; l < b->base.spec->layers; l++) {
        uintptr_t first = (uintptr_t)kvf_engine_page(b->engine, l, 0);
        uintptr_t end = (uintptr_t)kvf_engine_page(b->engine, l, b->base.blocks - 1) + b->base.page_bytes;
        first = (first + page - 1) & ~(page - 1);
        end &= ~(page - 1);
        if (end > first && madvise((void *)first, end - first, MADV_POPULATE_WRITE) != 0) return;
    }
}

static kvf_status make_engine(cpu_backend *b, const kvf_backend_options *o, kvf_error *err) {
    if (o->kv_type == KVF_KV_FP8) /* before the model is packed */
        return kvf_fail(
            err, KVF_ERR_UNSUPPORTED, "engine.kv_type: fp8 is for engine.backend cuda, the CPU has f16, f32, q8");
    if (o->weights != KVF_WEIGHTS_AUTO)
        return kvf_fail(err, KVF_ERR_UNSUPPORTED,
            "engine.weights: %s is for engine.backend cuda, the CPU keeps what the file has",
            kvf_weights_name(o->weights));
    kvf_model_options mo = {
        .precision = o->precision, .kernels = o->kernels, .threads = o->threads, .cache_folder = o->cache_folder};
    kvf_status status = kvf_model_open(o->model_path, &mo, &b->model, err);
    if (status != KVF_OK) return status;
    b->base.gguf = kvf_model_get_gguf(b->model);
    b->base.spec = kvf_model_get_spec(b->model);
    status = kvf_backend_count_blocks(b->base.spec, o->kv_type, o->kv_memory_bytes, &b->base.blocks, err);
    if (status != KVF_OK) return status;
    if (o->cores) status = kvf_cores_open(o->cores, o->cores_shared, &b->cores, err);
    if (status != KVF_OK) return status;
    b->threads = b->cores ? KVF_MIN(o->threads, kvf_cores_all(b->cores)) : o->threads;
    kvf_engine_options eo = {.kv_type = o->kv_type,
        .blocks = b->base.blocks,
        .threads = b->threads,
        .cores = b->cores,
        .tokens_max = o->tokens_max,
        .sequences_max = o->sequences_max,
        .logit_rows_max = o->logit_rows_max};
    return kvf_engine_create(b->model, &eo, &b->engine, err);
}

kvf_status kvf_backend_open_cpu(const kvf_backend_options *options, kvf_backend **out, kvf_error *err) {
    cpu_backend *b = calloc(1, sizeof *b);
    if (!b) return kvf_fail(err, KVF_ERR_NO_MEMORY, "out of memory");
    b->base.ops = &cpu_ops;
    kvf_status status = make_engine(b, options, err);
    if (status != KVF_OK) goto undo;
    size_t vocab = b->base.spec->vocab, rows = KVF_MAX(options->logit_rows_max, 1u);
    b->logits = aligned_alloc(64, kvf_align_up(rows * vocab * sizeof(float), 64));
    b->scratch = aligned_alloc(64, kvf_align_up(kvf_sample_scratch_bytes((uint32_t)vocab), 64));
    if (!b->logits || !b->scratch) {
        status = kvf_fail(err, KVF_ERR_NO_MEMORY, "no memory for %zu rows of logits", rows);
        goto undo;
    }
    b->base.page_bytes = kvf_engine_page_bytes(b->engine);
    snprintf(b->base.numerics, sizeof b->base.numerics, "%s", kvf_engine_numerics(b->engine));
    snprintf(b->base.what, sizeof b->base.what, b->cores ? "cpu %s, %u threads, %u on own cores" : "cpu %s, %u threads",
        kvf_model_kernels(b->model), b->threads, b->cores ? kvf_cores_own(b->cores) : 0);
    commit_pool(b);
    *out = &b->base;
    return KVF_OK;
undo:
    cpu_destroy(&b->base);
    return status;
}
