/* Opening a model: the file is checked by kvf_gguf and kvf_model_spec, then every matrix is packed once into one block
 * of memory (the image): matrices first, each aligned to 64, then the small vectors in f32. Offsets into the image
 * depend only on the file, so an image can be shared (image.c). After packing the file is read again only for embedding
 * rows. */
#include "engine_int.h"
#include <stdatomic.h>
#include <stdlib.h>

/* Walks all tensors twice with the same code: once to measure the image, once to fill in pointers. */
typedef struct {
    kvf_model *m;
    uint8_t *base; /* NULL while measuring */
    bool filled; /* the image has its contents already, and cannot be written */
    size_t used;
} layout;

static void lay_matrix(layout *l, kvf_packed *p, const kvf_gguf_tensor *t) {
    if (!l->base) kvf_pack_plan(p, t->type, t->data, (uint32_t)t->dims[1], (uint32_t)t->dims[0]);
    l->used = kvf_align_up(l->used, 64);
    if (l->base) p->data = l->base + l->used;
    l->used += (size_t)p->pairs * p->pair_bytes;
}

static void lay_vector(layout *l, const float **v, const kvf_gguf_tensor *t) {
    if (!t) return;
    size_t count = (size_t)(t->dims[0] * t->dims[1]);
    l->used = kvf_align_up(l->used, 64);
    if (l->base) {
        if (!l->filled) kvf_dequant_row(t->type, t->data, (float *)(void *)(l->base + l->used), count);
        *v = (const float *)(const void *)(l->base + l->used);
    }
    l->used += count * sizeof(float);
}

static void lay_model(layout *l) {
    kvf_model *m = l->m;
    for (uint32_t i = 0; i < m->spec.layers; i++) {
        const kvf_model_layer *t = &m->spec.layer[i];
        kvf_layer_weights *w = &m->layer[i];
        lay_matrix(l, &w->q, t->attn_q);
        lay_matrix(l, &w->k, t->attn_k);
        lay_matrix(l, &w->v, t->attn_v);
        lay_matrix(l, &w->o, t->attn_output);
        lay_matrix(l, &w->gate, t->ffn_gate);
        lay_matrix(l, &w->up, t->ffn_up);
        lay_matrix(l, &w->down, t->ffn_down);
    }
    lay_matrix(l, &m->head, m->spec.output);
    m->packed_bytes = l->used;
    for (uint32_t i = 0; i < m->spec.layers; i++) {
        const kvf_model_layer *t = &m->spec.layer[i];
        kvf_layer_weights *w = &m->layer[i];
        lay_vector(l, &w->attn_norm, t->attn_norm);
        lay_vector(l, &w->ffn_norm, t->ffn_norm);
        lay_vector(l, &w->q_bias, t->attn_q_bias);
        lay_vector(l, &w->k_bias, t->attn_k_bias);
        lay_vector(l, &w->v_bias, t->attn_v_bias);
        lay_vector(l, &w->q_norm, t->attn_q_norm);
        lay_vector(l, &w->k_norm, t->attn_k_norm);
    }
    lay_vector(l, &m->output_norm, m->spec.output_norm);
}

/* One task: some pairs of panels of one matrix. */
enum { PACK_PAIRS = 8 };
typedef struct {
    const kvf_packed *p;
    const kvf_gguf_tensor *t;
    _Atomic bool *failed;
} pack_job;

static void pack_task(void *context, uint32_t task, uint32_t thread) {
    const pack_job *job = context;
    uint32_t begin = task * PACK_PAIRS, end = KVF_MIN(begin + PACK_PAIRS, job->p->pairs);
    void *scratch = malloc(kvf_pack_scratch_bytes(job->p));
    if (!scratch) {
        atomic_store(job->failed, true);
        return;
    }
    uint8_t *dst = (uint8_t *)(uintptr_t)job->p->data + begin * job->p->pair_bytes;
    kvf_pack_pairs(job->p, job->t->type, job->t->data, begin, end, dst, scratch);
    free(scratch);
}

static void pack_matrix(kvf_pool *pool, const kvf_packed *p, const kvf_gguf_tensor *t, _Atomic bool *failed) {
    pack_job job = {p, t, failed};
    kvf_pool_run(pool, pack_task, &job, (uint32_t)kvf_div_up(p->pairs, PACK_PAIRS));
}

static kvf_status pack_model(kvf_model *m, uint32_t threads) {
    kvf_pool *pool = NULL;
    kvf_status status = kvf_pool_create(threads, NULL, &pool);
    if (status != KVF_OK) return status;
    _Atomic bool failed = false;
    for (uint32_t i = 0; i < m->spec.layers; i++) {
        const kvf_model_layer *t = &m->spec.layer[i];
        const kvf_layer_weights *w = &m->layer[i];
        pack_matrix(pool, &w->q, t->attn_q, &failed);
        pack_matrix(pool, &w->k, t->attn_k, &failed);
        pack_matrix(pool, &w->v, t->attn_v, &failed);
        pack_matrix(pool, &w->o, t->attn_output, &failed);
        pack_matrix(pool, &w->gate, t->ffn_gate, &failed);
        pack_matrix(pool, &w->up, t->ffn_up, &failed);
        pack_matrix(pool, &w->down, t->ffn_down, &failed);
    }
    pack_matrix(pool, &m->head, m->spec.output, &failed);
    kvf_pool_destroy(pool);
    return atomic_load(&failed) ? KVF_ERR_NO_MEMORY : KVF_OK;
}

static void note_need(const kvf_model *m, kvf_needs *need, const kvf_packed *p) {
    if (m->precision == KVF_PRECISION_FAST && kvf_pack_is_quantised(p->kind))
        need->q = true;
    else
        need->f32 = true;
    if (m->precision == KVF_PRECISION_FAST && p->kind == KVF_PACK_BF16) need->bf16 = true;
}

static void note_needs(kvf_model *m) {
    for (uint32_t i = 0; i < m->spec.layers; i++) {
        const kvf_layer_weights *w = &m->layer[i];
        const kvf_packed *hidden[] = {&w->q, &w->k, &w->v, &w->gate, &w->up};
        for (size_t j = 0; j < KVF_COUNT_OF(hidden); j++) note_need(m, &m->need_hidden, hidden[j]);
        note_need(m, &m->need_heads, &w->o);
        note_need(m, &m->need_ffn, &w->down);
    }
    note_need(m, &m->need_head, &m->head);
}

static kvf_status check_model(const kvf_model *m, const char *path, kvf_error *err) {
    const kvf_model_spec *s = &m->spec;
    if (s->head_dim % 2 != 0 || s->head_dim > 256)
        return kvf_fail(
            err, KVF_ERR_UNSUPPORTED, "%s: head size %u: an even number up to 256 is needed", path, s->head_dim);
    if (s->kv_heads == 0 || s->heads % s->kv_heads != 0)
        return kvf_fail(err, KVF_ERR_UNSUPPORTED, "%s: %u heads over %u key/value heads", path, s->heads, s->kv_heads);
    if (s->rope_dims % 2 != 0 || s->rope_dims > s->head_dim)
        return kvf_fail(
            err, KVF_ERR_UNSUPPORTED, "%s: %u rotated dimensions of a head of %u", path, s->rope_dims, s->head_dim);
    return KVF_OK;
}

static kvf_status build(kvf_model *m, const char *path, const kvf_model_options *options, kvf_error *err) {
    kvf_status status = kvf_gguf_open(path, &m->gguf, err);
    if (status != KVF_OK) return status;
    status = kvf_model_spec_load(m->gguf, &m->spec, err);
    if (status != KVF_OK) return status;
    status = check_model(m, path, err);
    if (status != KVF_OK) return status;
    m->layer = calloc((size_t)m->spec.layers + 1, sizeof *m->layer);
    m->rope_frequency = calloc(m->spec.rope_dims / 2 + 1, sizeof *m->rope_frequency);
    if (!m->layer || !m->rope_frequency) return kvf_fail(err, KVF_ERR_NO_MEMORY, "%s: out of memory", path);
    kvf_rope_frequencies(
        m->spec.rope_base, m->spec.rope_scale, m->spec.rope_factors, m->spec.rope_dims, m->rope_frequency);
    layout measure = {.m = m};
    lay_model(&measure);
    uint64_t hash[2] = {0, 0};
    if (options->cache_folder) kvf_gguf_weights_hash(m->gguf, hash);
    status = kvf_image_open(options->cache_folder, hash, measure.used, &m->image);
    if (status != KVF_OK)
        return kvf_fail(err, status, "%s: no memory for %zu bytes of packed weights", path, measure.used);
    layout place = {.m = m, .base = m->image.data, .filled = m->image.filled};
    lay_model(&place);
    note_needs(m);
    if (m->image.filled) return KVF_OK;
    status = pack_model(m, options->threads ? KVF_MIN(options->threads, 64u) : 1);
    if (status != KVF_OK) return kvf_fail(err, status, "%s: could not pack the weights", path);
    kvf_image_publish(&m->image);
    return KVF_OK;
}

kvf_status kvf_model_open(const char *path, const kvf_model_options *options, kvf_model **out, kvf_error *err) {
    const kvf_kernel_ops *ops = kvf_kernels_find(options->kernels);
    if (!ops)
        return kvf_fail(
            err, KVF_ERR_UNSUPPORTED, "kernels \"%s\": unknown, or this processor cannot run them", options->kernels);
    kvf_model *m = calloc(1, sizeof *m);
    if (!m) return kvf_fail(err, KVF_ERR_NO_MEMORY, "%s: out of memory", path);
    m->ops = ops;
    m->precision = options->precision;
    kvf_status status = build(m, path, options, err);
    if (status != KVF_OK) {
        kvf_model_close(m);
        return status;
    }
    *out = m;
    return KVF_OK;
}

void kvf_model_close(kvf_model *m) {
    if (!m) return;
    kvf_image_close(&m->image);
    free(m->rope_frequency);
    free(m->layer);
    kvf_model_spec_free(&m->spec);
    if (m->gguf) kvf_gguf_close(m->gguf);
    free(m);
}

const kvf_model_spec *kvf_model_get_spec(const kvf_model *m) { return &m->spec; }
const kvf_gguf *kvf_model_get_gguf(const kvf_model *m) { return m->gguf; }
const char *kvf_model_kernels(const kvf_model *m) { return m->ops->name; }
uint64_t kvf_model_packed_bytes(const kvf_model *m) { return m->image.data_bytes; }
bool kvf_model_packed_is_shared(const kvf_model *m) { return m->image.shared; }
