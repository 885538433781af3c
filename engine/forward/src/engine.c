/* An engine: its page pool, its workspace, and the checks a step must pass before anything is written. */
#include "engine_int.h"
#include <math.h>
#include <stdio.h>
#include <stdlib.h>

/* Carves the workspace; run once with base NULL to measure. The map is zeroed by the system, and must be: the padding
 * of activation rows is never written. */
typedef struct {
    uint8_t *base;
    size_t used;
} carver;
static void *carve(carver *c, size_t len_bytes) {
    c->used = kvf_align_up(c->used, 64);
    void *at = c->base ? c->base + c->used : NULL;
    c->used += len_bytes;
    return at;
}
#define CARVE(c, type, count) ((type *)carve((c), sizeof(type) * (size_t)(count)))

static void carve_activations(carver *c, kvf_activations *a, size_t rows, uint32_t width, kvf_needs need) {
    a->groups = (uint32_t)kvf_div_up(width, KVF_GROUP);
    a->need = need;
    a->f32 = need.f32 ? CARVE(c, float, rows * a->groups * KVF_GROUP) : NULL;
    a->q = need.q ? CARVE(c, int8_t, rows * a->groups * KVF_GROUP) : NULL;
    a->scale = need.q ? CARVE(c, kvf_group_scale, rows * a->groups) : NULL;
    a->bf16 = need.bf16 ? CARVE(c, uint16_t, rows * a->groups * KVF_GROUP) : NULL;
}

static size_t scratch_bytes_of(const kvf_model_spec *s) {
    uint32_t group = s->heads / s->kv_heads;
    size_t attention = kvf_attention_scratch_floats(kvf_tile_tokens(s) * group, s->head_dim);
    size_t row = kvf_align_up(KVF_MAX(s->hidden, s->heads * s->head_dim), KVF_GROUP);
    size_t ffn = (size_t)KVF_FFN_ROWS * KVF_GROUP * 4; /* gate, up, codes and scales of a tile */
    return kvf_align_up(KVF_MAX(attention, KVF_MAX(row, ffn)) * sizeof(float), 64);
}

static void carve_workspace(kvf_engine *e, carver *c) {
    const kvf_model *m = e->m;
    const kvf_model_spec *s = &m->spec;
    size_t rows = e->options.tokens_max, logits = KVF_MAX(e->options.logit_rows_max, 1u);
    e->rows = CARVE(c, kvf_row, rows);
    e->tiles = CARVE(c, kvf_tile, rows);
    e->gathered = CARVE(c, kvf_attention_token, rows);
    e->lone = CARVE(c, kvf_lone_run, rows);
    e->cos_sin = CARVE(c, float, rows * s->rope_dims);
    e->x = CARVE(c, float, rows * s->hidden);
    e->qkv = CARVE(c, float, rows *(s->heads + 2 * s->kv_heads) * s->head_dim);
    e->heads = CARVE(c, float, rows * s->heads * s->head_dim);
    carve_activations(c, &e->hidden_in, rows, s->hidden, m->need_hidden);
    carve_activations(c, &e->heads_in, rows, s->heads * s->head_dim, m->need_heads);
    carve_activations(c, &e->ffn_in, rows, s->ffn, m->need_ffn);
    carve_activations(c, &e->head_in, logits, s->hidden, m->need_head);
    e->scratch_bytes = scratch_bytes_of(s);
    e->scratch = carve(c, e->scratch_bytes * e->options.threads);
}

static kvf_status check_options(const kvf_engine_options *o, kvf_error *err) {
    if (o->threads < 1 || o->threads > 64)
        return kvf_fail(err, KVF_ERR_INVALID, "engine: threads %u: 1 to 64 are possible", o->threads);
    if (o->blocks < 1) return kvf_fail(err, KVF_ERR_INVALID, "engine: blocks 0: at least one is needed");
    if (o->tokens_max < 1 || o->tokens_max > 1u << 20)
        return kvf_fail(err, KVF_ERR_INVALID, "engine: tokens_max %u: 1 to 1048576 are possible", o->tokens_max);
    if (o->kv_type == KVF_KV_FP8) return kvf_fail(err, KVF_ERR_UNSUPPORTED, "engine: the CPU keeps no fp8");
    if (o->sequences_max < 1) return kvf_fail(err, KVF_ERR_INVALID, "engine: sequences_max 0: at least one is needed");
    return KVF_OK;
}

static kvf_status map_memory(kvf_engine *e, kvf_error *err) {
    const kvf_model_spec *s = &e->m->spec;
    e->page_bytes = (size_t)2 * s->kv_heads * KVF_BLOCK_TOKENS * kvf_cell_row_bytes(e->cell, s->head_dim);
    if (e->page_bytes > SIZE_MAX / 4 / s->layers / e->options.blocks)
        return kvf_fail(err, KVF_ERR_INVALID, "engine: %u blocks do not fit an address space", e->options.blocks);
    e->pages_bytes = e->page_bytes * s->layers * e->options.blocks;
    void *at = NULL;
    if (kvf_memory_map(e->pages_bytes, false, &at) != KVF_OK)
        return kvf_fail(err, KVF_ERR_NO_MEMORY, "engine: no memory for %zu bytes of KV pages", e->pages_bytes);
    e->pages = at;
    carver measure = {0};
    carve_workspace(e, &measure);
    if (kvf_memory_map(measure.used, true, &at) != KVF_OK)
        return kvf_fail(err, KVF_ERR_NO_MEMORY, "engine: no memory for %zu bytes of workspace", measure.used);
    e->workspace = at;
    e->workspace_bytes = measure.used;
    carver place = {.base = e->workspace};
    carve_workspace(e, &place);
    return KVF_OK;
}

static const char *activations_name(const kvf_model *m) {
    if (m->precision != KVF_PRECISION_FAST) return "f32";
    bool bf16 = m->need_hidden.bf16 || m->need_heads.bf16 || m->need_ffn.bf16 || m->need_head.bf16;
    return bf16 ? "int8g32-bf16" : "int8g32";
}

kvf_status kvf_engine_create(const kvf_model *m, const kvf_engine_options *options, kvf_engine **out, kvf_error *err) {
    kvf_status status = check_options(options, err);
    if (status != KVF_OK) return status;
    kvf_engine *e = calloc(1, sizeof *e);
    if (!e) return kvf_fail(err, KVF_ERR_NO_MEMORY, "engine: out of memory");
    e->m = m;
    e->options = *options;
    e->options.logit_rows_max = KVF_MAX(options->logit_rows_max, 1u);
    e->cell = options->kv_type == KVF_KV_F16   ? KVF_CELL_F16
              : options->kv_type == KVF_KV_F32 ? KVF_CELL_F32
                                               : KVF_CELL_Q8;
    e->score_scale = 1.0f / sqrtf((float)m->spec.head_dim);
    snprintf(e->numerics, sizeof e->numerics, "v1-%s-kv%s", activations_name(m), kvf_kv_type_name(options->kv_type));
    status = map_memory(e, err);
    if (status != KVF_OK) goto undo_engine;
    status = kvf_pool_create(options->threads, options->cores, &e->pool);
    if (status != KVF_OK) {
        kvf_fail(err, status, "engine: could not start %u threads", options->threads);
        goto undo_engine;
    }
    *out = e;
    return KVF_OK;
undo_engine:
    kvf_engine_destroy(e);
    return status;
}

void kvf_engine_destroy(kvf_engine *e) {
    if (!e) return;
    kvf_pool_destroy(e->pool);
    kvf_memory_unmap(e->workspace, e->workspace_bytes);
    kvf_memory_unmap(e->pages, e->pages_bytes);
    free(e);
}

const char *kvf_engine_numerics(const kvf_engine *e) { return e->numerics; }
size_t kvf_engine_page_bytes(const kvf_engine *e) { return e->page_bytes; }
uint64_t kvf_engine_kv_read_bytes(const kvf_engine *e) {
    return atomic_load_explicit(&e->kv_read_bytes, memory_order_relaxed);
}

void *kvf_engine_page(kvf_engine *e, uint32_t layer, uint32_t block) {
    KVF_ASSERT(layer < e->m->spec.layers && block < e->options.blocks);
    return e->pages + ((size_t)layer * e->options.blocks + block) * e->page_bytes;
}

void kvf_engine_copy_block(kvf_engine *e, uint32_t to, uint32_t from, uint32_t tokens) {
    KVF_ASSERT(tokens <= KVF_BLOCK_TOKENS);
    const kvf_model_spec *s = &e->m->spec;
    size_t head_bytes = e->page_bytes / 2 / s->kv_heads, used_bytes = head_bytes / KVF_BLOCK_TOKENS * tokens;
    for (uint32_t layer = 0; layer < s->layers; layer++) {
        uint8_t *dst = kvf_engine_page(e, layer, to), *src = kvf_engine_page(e, layer, from);
        for (uint32_t i = 0; to != from && i < 2 * s->kv_heads; i++)
            memcpy(dst + i * head_bytes, src + i * head_bytes, used_bytes);
    }
}

/* Numbers rows and attention tiles; KVF_ERR_INVALID before anything but the workspace was written. */
static kvf_status lay_out_step(kvf_engine *e, const kvf_engine_step *step) {
    const kvf_engine_options *o = &e->options;
    kvf_engine_limits limits = {o->blocks, o->tokens_max, o->sequences_max, o->logit_rows_max};
    if (!kvf_engine_runs_fit(&e->m->spec, &limits, step->runs, step->runs_count)) return KVF_ERR_INVALID;
    e->rows_count = e->logits_count = 0;
    for (uint32_t r = 0; r < step->runs_count; r++) {
        const kvf_engine_run *run = &step->runs[r];
        e->logits_count += run->logit_rows;
        for (uint32_t i = 0; i < run->count; i++) {
            uint32_t position = run->position + i;
            e->rows[e->rows_count++] = (kvf_row){
                .token = run->tokens[i], .position = position, .block = run->blocks[position / KVF_BLOCK_TOKENS]};
        }
    }
    return e->logits_count > 0 && !step->logits ? KVF_ERR_INVALID : KVF_OK;
}

kvf_status kvf_engine_run_step(kvf_engine *e, const kvf_engine_step *step) {
    kvf_status status = lay_out_step(e, step);
    if (status != KVF_OK) return status;
    e->step = step;
    kvf_lay_tiles(e, false);
    kvf_pool_begin(e->pool);
    kvf_forward(e);
    kvf_pool_end(e->pool);
    e->step = NULL;
    return KVF_OK;
}
