/* The model's weights in device memory: one allocation, walked twice with the same code, once to measure. Matrices
 * become f16 or bf16: blocks of quantised types on the device, the same bits as on the host; f32 and bf16 on the host,
 * where a weight beyond the range of what it is kept in is seen and refused. With engine.weights fp8 those of layers go
 * on from f16 to codes. */
#include "device_int.h"
#include "kvf/arena.h"
#include "kvf/kernels.h"
#include "kvf/quant.h"
#include "kvf/rng.h"
#include <math.h>
#include <stdlib.h>

enum { CHUNK_VALUES = 1 << 20, POSITIONS_A_CHUNK = 4096 };

typedef struct {
    cuda_backend *b;
    kvf_arena arena; /* without base while measuring */
    void *staging; /* device, [CHUNK_VALUES] of 16 bits: raw blocks, or noise */
    kvf_half_bits *unpacked; /* device, [CHUNK_VALUES]: rows on their way to codes; NULL where there are none */
    bool staging_is_noise;
    float *f32; /* [CHUNK_VALUES] */
    kvf_half_bits *sixteen; /* [CHUNK_VALUES]: f16 or bf16 */
    kvf_status status;
    kvf_error *err;
} loader;

static void *place(loader *l, size_t len_bytes) { return kvf_arena_take(&l->arena, len_bytes, CUDA_ALIGN); }

static void failed(loader *l, const char *call, int error) {
    l->status = kvf_fail(l->err, cuda_failed(l->b, call, error), "%s", l->b->base.trouble);
}

/* In the order of the stream's kernels: a plain copy of pageable memory may return before the device has it, and this
 * stream does not wait for it. Waited for, because `from` is filled again. */
static void upload(loader *l, void *to, const void *from, size_t len_bytes) {
    const cuda_backend *b = l->b;
    const char *call = kvf_cuda_symbols.copy_async;
    int error = b->api.copy_async(to, from, len_bytes, KVF_CUDA_HOST_TO_DEVICE, b->stream);
    if (!error) {
        call = kvf_cuda_symbols.stream_synchronize;
        error = b->api.stream_synchronize(b->stream);
    }
    if (error) failed(l, call, error);
}

/* To nearest, ties to even. */
static kvf_half_bits bf16_of(float value) {
    uint32_t bits;
    memcpy(&bits, &value, sizeof bits);
    return (kvf_half_bits)((bits + 0x7FFF + (bits >> 16 & 1)) >> 16);
}

static bool to_f16(const float *from, kvf_half_bits *to, size_t count) {
    bool fits = true;
    for (size_t i = 0; i < count; i++) {
        to[i] = kvf_f32_to_f16(from[i]);
        fits &= (to[i] & 0x7C00) != 0x7C00;
    }
    return fits;
}

static bool to_bf16(const float *from, kvf_half_bits *to, size_t count) {
    bool fits = true;
    for (size_t i = 0; i < count; i++) {
        to[i] = bf16_of(from[i]);
        fits &= isfinite(from[i]) && (to[i] & 0x7F80) != 0x7F80;
    }
    return fits;
}

static bool all_finite_bf16(const uint16_t *values, size_t count) {
    uint32_t wrong = 0;
    for (size_t i = 0; i < count; i++) wrong |= (values[i] & 0x7F80) == 0x7F80;
    return !wrong;
}

static void refuse_range(loader *l, const kvf_gguf_tensor *t) {
    l->status = kvf_fail(l->err, KVF_ERR_UNSUPPORTED,
        l->b->type == KVF_CUDA_BF16 ? "tensor %s has values beyond the range of bf16"
                                    : "tensor %s has values beyond the range of f16: engine.weights: bf16 keeps them",
        t->name);
}

/* Raw blocks go over as they are. Waited for: the next blocks come into the same staging. */
static void upload_blocks(loader *l, kvf_half_bits *to, const uint8_t *from, const kvf_gguf_tensor *t, size_t count) {
    cuda_backend *b = l->b;
    const kvf_dtype_info *info = kvf_dtype_find(t->type);
    upload(l, l->staging, from, count / info->block_values * info->block_bytes);
    if (l->status != KVF_OK) return;
    if (b->kernels->dequantise(to, b->type, (uint32_t)t->type, l->staging, count, b->stream) != 0) {
        l->status =
            kvf_fail(l->err, KVF_ERR_UNSUPPORTED, "tensor %s: the device does not read type %s", t->name, info->name);
        return;
    }
    const char *call = "a kernel's launch (cudaGetLastError)";
    int error = b->api.last_error();
    if (!error) {
        call = kvf_cuda_symbols.stream_synchronize;
        error = b->api.stream_synchronize(b->stream);
    }
    if (error) failed(l, call, error);
}

/* A model without a file: values in (-1/32, 1/32), the same block over and over. */
static void make_noise(loader *l, kvf_half_bits *to, size_t count) {
    bool bf16 = l->b->type == KVF_CUDA_BF16;
    for (uint32_t i = 0; !l->staging_is_noise && i < CHUNK_VALUES; i++) {
        float value = (float)(int32_t)(uint32_t)(kvf_rng_at(1, 0, i) >> 32) * (1.0f / 32 / 2147483648.0f);
        l->sixteen[i] = bf16 ? bf16_of(value) : kvf_f32_to_f16(value);
    }
    if (!l->staging_is_noise) upload(l, l->staging, l->sixteen, CHUNK_VALUES * sizeof *l->sixteen);
    l->staging_is_noise = true;
    for (size_t at = 0; at < count && l->status == KVF_OK; at += CHUNK_VALUES) {
        size_t bytes = KVF_MIN(count - at, (size_t)CHUNK_VALUES) * sizeof *to;
        int error = l->b->api.copy_async(to + at, l->staging, bytes, KVF_CUDA_DEVICE_TO_DEVICE, l->b->stream);
        if (error) failed(l, kvf_cuda_symbols.copy_async, error);
    }
}

/* `count` rows from `row` on, as f16 or bf16. */
static void upload_rows(loader *l, kvf_half_bits *to, const kvf_gguf_tensor *t, size_t row, size_t count) {
    size_t width = (size_t)t->dims[0];
    if (!t->data) {
        make_noise(l, to, count * width);
        return;
    }
    const kvf_dtype_info *info = kvf_dtype_find(t->type);
    size_t row_bytes = width / info->block_values * info->block_bytes;
    const uint8_t *from = (const uint8_t *)t->data + row * row_bytes;
    if (t->type != KVF_DTYPE_F32 && t->type != KVF_DTYPE_BF16) {
        upload_blocks(l, to, from, t, count * width);
        return;
    }
    bool bf16 = l->b->type == KVF_CUDA_BF16;
    if (bf16 && t->type == KVF_DTYPE_BF16) { /* as it is; tensors lie aligned in the file */
        if (all_finite_bf16((const uint16_t *)(const void *)from, count * width))
            upload(l, to, from, count * row_bytes);
        else
            refuse_range(l, t);
        return;
    }
    for (size_t i = 0; i < count; i++) kvf_dequant_row(t->type, from + i * row_bytes, l->f32 + i * width, width);
    if ((bf16 ? to_bf16 : to_f16)(l->f32, l->sixteen, count * width))
        upload(l, to, l->sixteen, count * width * sizeof *to);
    else
        refuse_range(l, t);
}

static size_t rows_at_once(const kvf_gguf_tensor *t) { return KVF_MAX(CHUNK_VALUES / t->dims[0], (size_t)1); }

static void upload_matrix(loader *l, kvf_half_bits *to, const kvf_gguf_tensor *t) {
    size_t rows = (size_t)t->dims[1], step = rows_at_once(t);
    for (size_t row = 0; row < rows && l->status == KVF_OK; row += step)
        upload_rows(l, to + row * t->dims[0], t, row, KVF_MIN(step, rows - row));
}

static void upload_codes(loader *l, uint8_t *codes, float *scales, const kvf_gguf_tensor *t) {
    size_t width = (size_t)t->dims[0], rows = (size_t)t->dims[1], step = rows_at_once(t);
    for (size_t row = 0; row < rows && l->status == KVF_OK; row += step) {
        size_t count = KVF_MIN(step, rows - row);
        upload_rows(l, l->unpacked, t, row, count);
        if (l->status != KVF_OK) return;
        l->b->kernels->f8_pack(
            codes + row * width, scales + row, l->unpacked, (uint32_t)count, (uint32_t)width, l->b->stream);
    }
}

/* Up to three matrices of the same width, one below the other. */
static const kvf_half_bits *lay_matrices(loader *l, const kvf_gguf_tensor *const *t, size_t count) {
    size_t values = 0;
    for (size_t i = 0; i < count; i++) values += (size_t)(t[i]->dims[0] * t[i]->dims[1]);
    kvf_half_bits *to = place(l, values * sizeof *to), *at = to;
    for (size_t i = 0; to && i < count && l->status == KVF_OK; i++) {
        upload_matrix(l, at, t[i]);
        at += t[i]->dims[0] * t[i]->dims[1];
    }
    return to;
}

/* Matrices of a layer, one below the other: as lay_matrices, or as codes and their scales. */
static cuda_matrix lay_product(loader *l, const kvf_gguf_tensor *const *t, size_t count) {
    if (!l->unpacked) return (cuda_matrix){.w = lay_matrices(l, t, count)};
    size_t values = 0, rows = 0;
    for (size_t i = 0; i < count; i++) {
        rows += (size_t)t[i]->dims[1];
        values += (size_t)(t[i]->dims[0] * t[i]->dims[1]);
    }
    uint8_t *codes = place(l, values), *at = codes;
    float *scales = place(l, rows * sizeof *scales), *scales_at = scales;
    for (size_t i = 0; scales && i < count && l->status == KVF_OK; i++) {
        upload_codes(l, at, scales_at, t[i]);
        at += t[i]->dims[0] * t[i]->dims[1];
        scales_at += t[i]->dims[1];
    }
    return (cuda_matrix){.w = codes, .scales = scales};
}

/* Up to three vectors one after the other; NULL where the model has none. */
static const float *lay_vectors(loader *l, const kvf_gguf_tensor *const *t, size_t count) {
    if (!t[0]) return NULL;
    size_t values = 0;
    for (size_t i = 0; i < count; i++) values += (size_t)(t[i]->dims[0] * t[i]->dims[1]);
    float *to = place(l, values * sizeof *to), *at = to;
    for (size_t i = 0; to && i < count && l->status == KVF_OK; i++) {
        size_t len = (size_t)(t[i]->dims[0] * t[i]->dims[1]);
        KVF_ASSERT(len <= CHUNK_VALUES);
        if (t[i]->data)
            kvf_dequant_row(t[i]->type, t[i]->data, l->f32, len);
        else
            for (size_t j = 0; j < len; j++) l->f32[j] = 1;
        upload(l, at, l->f32, len * sizeof *at);
        at += len;
    }
    return to;
}
static const float *lay_vector(loader *l, const kvf_gguf_tensor *t) { return lay_vectors(l, &t, 1); }

static void lay_layer(loader *l, cuda_layer *w, const kvf_model_layer *t) {
    const kvf_gguf_tensor *qkv[] = {t->attn_q, t->attn_k, t->attn_v}, *o[] = {t->attn_output},
                          *gate_up[] = {t->ffn_gate, t->ffn_up}, *down[] = {t->ffn_down},
                          *bias[] = {t->attn_q_bias, t->attn_k_bias, t->attn_v_bias};
    w->qkv = lay_product(l, qkv, 3);
    w->o = lay_product(l, o, 1);
    w->gate_up = lay_product(l, gate_up, 2);
    w->down = lay_product(l, down, 1);
    w->qkv_bias = lay_vectors(l, bias, 3);
    w->attn_norm = lay_vector(l, t->attn_norm);
    w->ffn_norm = lay_vector(l, t->ffn_norm);
    w->q_norm = lay_vector(l, t->attn_q_norm);
    w->k_norm = lay_vector(l, t->attn_k_norm);
}

/* [position][rope_dims]: cosines, then sines, as the CPU computes them. */
static const float *lay_angles(loader *l) {
    const kvf_model_spec *s = &l->b->spec;
    float *to = place(l, (size_t)s->context_max * s->rope_dims * sizeof *to);
    if (!to) return NULL;
    double *frequency = calloc(s->rope_dims / 2 + 1, sizeof *frequency);
    float *chunk = malloc((size_t)POSITIONS_A_CHUNK * s->rope_dims * sizeof *chunk);
    if (!frequency || !chunk) {
        l->status = kvf_fail(l->err, KVF_ERR_NO_MEMORY, "out of memory");
    } else {
        kvf_rope_frequencies(s->rope_base, s->rope_scale, s->rope_factors, s->rope_dims, frequency);
        for (uint32_t first = 0; first < s->context_max && l->status == KVF_OK; first += POSITIONS_A_CHUNK) {
            uint32_t count = KVF_MIN((uint32_t)POSITIONS_A_CHUNK, s->context_max - first);
            for (uint32_t i = 0; i < count; i++)
                kvf_rope_angles(frequency, s->rope_dims / 2, first + i, chunk + (size_t)i * s->rope_dims);
            upload(l, to + (size_t)first * s->rope_dims, chunk, (size_t)count * s->rope_dims * sizeof *chunk);
        }
    }
    free(frequency);
    free(chunk);
    return to;
}

static void lay_model(loader *l) {
    cuda_backend *b = l->b;
    const kvf_model_spec *s = &b->spec;
    l->arena.used_bytes = 0;
    b->embedding = lay_matrices(l, &s->embedding, 1);
    b->head.w = s->head_tied ? b->embedding : lay_matrices(l, &s->output, 1);
    for (uint32_t i = 0; i < s->layers; i++) lay_layer(l, &b->layer[i], &s->layer[i]);
    b->output_norm = lay_vector(l, s->output_norm);
    b->cos_sin = lay_angles(l);
}

/* What plans count (kept.c) is what is laid out, but for gaps: a layer has at most 14 pieces, and there are 4 more. */
static void assert_planned(const cuda_backend *b, size_t laid_bytes) {
    size_t planned_bytes = kvf_cuda_model_bytes(&b->spec, b->weights);
    KVF_ASSERT(laid_bytes >= planned_bytes);
    KVF_ASSERT(laid_bytes - planned_bytes <= ((size_t)b->spec.layers * 14 + 4) * CUDA_ALIGN);
}

/* What kernels have met on the way. */
static void finish(loader *l) {
    int error = l->b->api.last_error();
    if (error && l->status == KVF_OK) failed(l, "a kernel's launch (cudaGetLastError)", error);
    error = l->b->api.stream_synchronize(l->b->stream);
    if (error && l->status == KVF_OK) failed(l, kvf_cuda_symbols.stream_synchronize, error);
}

kvf_status cuda_load_weights(cuda_backend *b, kvf_error *err) {
    loader l = {.b = b, .err = err, .arena = {.zeroed = true}}; /* a pretence: the host touches nothing of it */
    size_t widest = KVF_MAX(b->spec.ffn, KVF_MAX(b->spec.hidden, b->spec.heads * b->spec.head_dim));
    size_t room = KVF_MAX((size_t)CHUNK_VALUES, widest);
    b->layer = calloc(b->spec.layers, sizeof *b->layer);
    l.f32 = malloc(room * sizeof *l.f32);
    l.sixteen = malloc(room * sizeof *l.sixteen);
    int error = b->api.memory_take(&l.staging, room * sizeof(kvf_half_bits)); /* no packed type has more bits */
    if (!error && b->weights == KVF_WEIGHTS_FP8)
        error = b->api.memory_take((void **)&l.unpacked, room * sizeof(kvf_half_bits));
    if (error) {
        failed(&l, kvf_cuda_symbols.memory_take, error);
        goto end;
    }
    if (!b->layer || !l.f32 || !l.sixteen) {
        l.status = kvf_fail(err, KVF_ERR_NO_MEMORY, "out of memory");
        goto end;
    }
    lay_model(&l);
    l.arena.size_bytes = l.arena.used_bytes;
    assert_planned(b, l.arena.size_bytes);
    l.arena.base = cuda_take(b, l.arena.size_bytes);
    if (l.arena.base) {
        lay_model(&l);
        finish(&l);
    } else {
        l.status = kvf_fail(err, KVF_ERR_NO_MEMORY, "%s: no room for %zu MiB of weights: %s", b->options.model_path,
            l.arena.size_bytes >> 20, b->base.trouble);
    }
end:
    if (l.staging) b->api.memory_give(l.staging); /* waits for the device */
    if (l.unpacked) b->api.memory_give(l.unpacked);
    free(l.f32);
    free(l.sixteen);
    return l.status;
}
