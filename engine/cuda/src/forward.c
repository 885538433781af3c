/* One step of the model on the device, queued on one stream without waiting for anything; start at its end.
 *
 * Rows in the device's order: runs of one token first, for decode attention takes a row a sequence. After the last
 * layer's keys and values are stored only rows whose logits are wanted go on. */
#include "device_int.h"
#include <math.h>
#include <stdio.h>

/* cublasStatus_t, as far as products meet it. */
static const char *product_error(int error) {
    switch (error) {
    case 1: return "CUBLAS_STATUS_NOT_INITIALIZED";
    case 3: return "CUBLAS_STATUS_ALLOC_FAILED";
    case 7: return "CUBLAS_STATUS_INVALID_VALUE";
    case 8: return "CUBLAS_STATUS_ARCH_MISMATCH";
    case 13: return "CUBLAS_STATUS_EXECUTION_FAILED";
    case 14: return "CUBLAS_STATUS_INTERNAL_ERROR";
    case 15: return "CUBLAS_STATUS_NOT_SUPPORTED";
    default: return "cublasStatus_t";
    }
}

static kvf_status multiply_sixteen(cuda_backend *b, const kvf_cuda_product *p) {
    int error = b->kernels->gemm_run(b->gemm, p, b->stream);
    if (error == 0) return KVF_OK;
    snprintf(b->base.trouble, sizeof b->base.trouble, "GPU: matrix product %u x %u x %u: %s (%d)", p->rows, p->outputs,
        p->inputs, product_error(error), error);
    return KVF_ERR_INTERNAL;
}

/* Over codes: few rows by the kernel that reads them as they are, else part by part unpacked. */
static kvf_status multiply_codes(cuda_backend *b, const cuda_matrix *m, const kvf_cuda_product *p) {
    const uint8_t *codes = m->w;
    if (p->rows <= KVF_CUDA_F8_FEW) {
        kvf_cuda_f8_product few = {.w = codes,
            .scales = m->scales,
            .x = p->x,
            .y = p->y,
            .rows = p->rows,
            .outputs = p->outputs,
            .inputs = p->inputs,
            .partial = b->spans};
        return b->kernels->f8_multiply(&few, b->stream) == 0 ? KVF_OK : KVF_ERR_UNSUPPORTED;
    }
    uint32_t step = (uint32_t)KVF_MIN(b->unpacked_values / p->inputs, (size_t)p->outputs) / 8 * 8;
    kvf_cuda_product part = *p;
    part.w = b->unpacked;
    part.y_stride = p->outputs;
    for (uint32_t first = 0; first < p->outputs; first += step) {
        part.outputs = KVF_MIN(step, p->outputs - first);
        part.y = (kvf_half_bits *)p->y + first;
        b->kernels->f8_unpack(
            b->unpacked, codes + (size_t)first * p->inputs, m->scales + first, part.outputs, p->inputs, b->stream);
        kvf_status status = multiply_sixteen(b, &part);
        if (status != KVF_OK) return status;
    }
    return KVF_OK;
}

static kvf_status multiply(cuda_backend *b, const cuda_matrix *m, const kvf_half_bits *x, void *y, bool f32,
    uint32_t rows, uint32_t outputs, uint32_t inputs) {
    kvf_cuda_product p = {.w = m->w,
        .x = x,
        .y = y,
        .y_is_f32 = f32,
        .is_bf16 = b->type == KVF_CUDA_BF16,
        .rows = rows,
        .outputs = outputs,
        .inputs = inputs};
    return m->scales ? multiply_codes(b, m, &p) : multiply_sixteen(b, &p);
}
#define TRY(call)                                                                                                      \
    do {                                                                                                               \
        kvf_status status_ = (call);                                                                                   \
        if (status_ != KVF_OK) return status_;                                                                         \
    } while (0)

static uint8_t *pages_of(const cuda_backend *b, uint32_t layer) { return b->pages + layer * b->layer_bytes; }

static void store_qkv(cuda_backend *b, uint32_t layer) {
    const kvf_model_spec *s = &b->spec;
    const cuda_layer *w = &b->layer[layer];
    kvf_cuda_qkv a = {.qkv = b->qkv,
        .type = b->type,
        .bias = w->qkv_bias,
        .q_norm = w->q_norm,
        .k_norm = w->k_norm,
        .eps = s->rms_eps,
        .cos_sin = b->cos_sin,
        .pairs = s->rope_dims / 2,
        .halves = s->rope_style == KVF_ROPE_HALVES,
        .heads = s->heads,
        .kv_heads = s->kv_heads,
        .head_dim = s->head_dim,
        .rows = b->rows,
        .positions = b->device.positions,
        .blocks = b->device.row_blocks,
        .q = b->q,
        .pages = pages_of(b, layer),
        .page_bytes = b->base.page_bytes,
        .cell = b->cell};
    b->kernels->qkv_store(&a, b->stream);
}

static void attend(cuda_backend *b, uint32_t layer) {
    const kvf_model_spec *s = &b->spec;
    float scale = 1.0f / sqrtf((float)s->head_dim);
    if (b->decodes) {
        kvf_cuda_decode a = {.out = b->heads,
            .out_type = b->type,
            .q = b->q,
            .pages = pages_of(b, layer),
            .page_bytes = b->base.page_bytes,
            .cell = b->cell,
            .block_tables = b->device.tables,
            .table_stride = b->table_stride,
            .contexts = b->device.contexts,
            .context_max = b->context_max,
            .sequences = b->decodes,
            .heads = s->heads,
            .kv_heads = s->kv_heads,
            .head_dim = s->head_dim,
            .scale = scale,
            .partial = b->partial};
        b->kernels->decode_attention(&a, b->stream);
    }
    if (b->prefills) {
        kvf_cuda_prefill a = {.out = b->heads,
            .out_type = b->type,
            .q = b->q,
            .pages = pages_of(b, layer),
            .page_bytes = b->base.page_bytes,
            .cell = b->cell,
            .block_tables = b->device.tables,
            .table_stride = b->table_stride,
            .runs = b->device.prefills,
            .runs_count = b->prefills,
            .tokens_max = b->prefill_tokens_max,
            .heads = s->heads,
            .kv_heads = s->kv_heads,
            .head_dim = s->head_dim,
            .scale = scale};
        b->kernels->prefill_attention(&a, b->stream);
    }
}

/* Rows whose logits are wanted, in the step's order, from `from` to `to`. */
static kvf_status keep_rows(
    cuda_backend *b, const kvf_backend_step *step, void *to, const void *from, size_t row_bytes) {
    uint32_t kept = 0;
    for (uint32_t r = 0; r < step->runs_count;) {
        const kvf_engine_run *run = &step->runs[r];
        uint32_t row = b->run_rows[r] + run->count - run->logit_rows, count = run->logit_rows;
        for (r++; r < step->runs_count; r++) { /* neighbours go in one copy */
            const kvf_engine_run *next = &step->runs[r];
            if (count == 0 || b->run_rows[r] + next->count - next->logit_rows != row + count) break;
            count += next->logit_rows;
        }
        if (count)
            CUDA_TRY(b, copy_async, (uint8_t *)to + kept * row_bytes, (const uint8_t *)from + row * row_bytes,
                count * row_bytes, KVF_CUDA_DEVICE_TO_DEVICE, b->stream);
        kept += count;
    }
    return KVF_OK;
}

static kvf_status feed_forward(
    cuda_backend *b, const cuda_layer *w, float *x, const kvf_half_bits *heads, uint32_t rows) {
    const kvf_model_spec *s = &b->spec;
    TRY(multiply(b, &w->o, heads, b->sum, false, rows, s->hidden, s->heads * s->head_dim));
    b->kernels->rms_norm(b->normed, x, b->sum, b->type, w->ffn_norm, s->rms_eps, rows, s->hidden, b->stream);
    TRY(multiply(b, &w->gate_up, b->normed, b->gate_up, false, rows, 2 * s->ffn, s->hidden));
    b->kernels->swiglu(b->ffn, b->gate_up, b->type, rows, s->ffn, b->stream);
    return multiply(b, &w->down, b->ffn, b->sum, false, rows, s->hidden, s->ffn);
}

kvf_status cuda_queue_forward(cuda_backend *b, const kvf_backend_step *step, bool events) {
    const kvf_model_spec *s = &b->spec;
    const kvf_half_bits *heads = b->heads, *add = NULL;
    float *x = b->x;
    uint32_t rows = b->rows;
    b->kernels->embed(x, b->embedding, b->type, b->device.tokens, rows, s->hidden, b->stream);
    for (uint32_t layer = 0; layer < s->layers; layer++) {
        const cuda_layer *w = &b->layer[layer];
        b->kernels->rms_norm(b->normed, x, add, b->type, w->attn_norm, s->rms_eps, rows, s->hidden, b->stream);
        TRY(multiply(
            b, &w->qkv, b->normed, b->qkv, false, rows, (s->heads + 2 * s->kv_heads) * s->head_dim, s->hidden));
        store_qkv(b, layer);
        if (events) CUDA_TRY(b, event_record, b->layer_done[layer], b->stream);
        bool last = layer + 1 == s->layers;
        if (last && b->logits_count == 0) return KVF_OK;
        attend(b, layer);
        if (last && b->logits_count < rows) {
            size_t heads_bytes = (size_t)s->heads * s->head_dim * sizeof *heads;
            TRY(keep_rows(b, step, b->heads_kept, b->heads, heads_bytes));
            TRY(keep_rows(b, step, b->x_kept, b->x, s->hidden * sizeof *x));
            heads = b->heads_kept;
            x = b->x_kept;
            rows = b->logits_count;
        }
        TRY(feed_forward(b, w, x, heads, rows));
        add = b->sum;
    }
    b->kernels->rms_norm(b->normed, x, add, b->type, b->output_norm, s->rms_eps, rows, s->hidden, b->stream);
    return multiply(b, &b->head, b->normed, b->logits, true, rows, s->vocab, s->hidden);
}
