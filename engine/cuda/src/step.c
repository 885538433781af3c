/* A step from its check to its tokens: laid out on the host, copied over in one go, queued, and waited for once. */
#include "device_int.h"

enum { CONTEXT_STEP = 256 };

/* Bounds of contexts come in few sizes, so that few graphs are recorded: powers of two from 256 on. */
static uint32_t context_bound(const cuda_backend *b, uint32_t context) {
    uint32_t bound = CONTEXT_STEP;
    while (bound < context) bound *= 2;
    return KVF_MIN(bound, (uint32_t)kvf_align_up(b->spec.context_max, KVF_BLOCK_TOKENS));
}

/* So do counts of runs: 1, 2, 4, 8, then by 8, from 64 on by 16. Rows that nobody asked for are of the spare block. */
static uint32_t decodes_bound(const cuda_backend *b, uint32_t decodes) {
    uint32_t bound = 1;
    while (bound < decodes && bound < 8) bound *= 2;
    if (decodes > 8) bound = (uint32_t)kvf_align_up(decodes, decodes <= 64 ? 8 : 16);
    uint32_t most = KVF_MIN(b->options.sequences_max, KVF_MIN(b->options.tokens_max, b->options.logit_rows_max));
    return KVF_MAX(decodes, KVF_MIN(bound, most));
}

static void place_runs(cuda_backend *b, const kvf_backend_step *step) {
    uint32_t placed = 0, context = 0;
    b->rows = b->decodes = b->prefills = b->prefill_tokens_max = b->logits_count = 0;
    for (uint32_t pass = 0; pass < 2; pass++) {
        for (uint32_t r = 0; r < step->runs_count; r++) {
            const kvf_engine_run *run = &step->runs[r];
            if ((run->count == 1) != (pass == 0)) continue;
            b->places[placed++] = (cuda_place){.run = r, .row = b->rows};
            b->run_rows[r] = b->rows;
            b->rows += run->count;
            b->logits_count += run->logit_rows;
            context = KVF_MAX(context, run->position + run->count);
            if (pass == 0) {
                b->decodes++;
            } else {
                b->prefills++;
                b->prefill_tokens_max = KVF_MAX(b->prefill_tokens_max, run->count);
            }
        }
    }
    b->is_decode = b->prefills == 0 && b->logits_count == b->rows;
    if (b->is_decode) b->rows = b->decodes = b->logits_count = decodes_bound(b, b->decodes);
    b->context_max = context_bound(b, context);
    b->table_stride = (uint32_t)kvf_div_up(b->context_max, KVF_BLOCK_TOKENS);
}

static void fill_inputs(cuda_backend *b, const kvf_backend_step *step) {
    const cuda_inputs *in = &b->host;
    for (uint32_t p = 0; p < step->runs_count; p++) {
        const kvf_engine_run *run = &step->runs[b->places[p].run];
        uint32_t row = b->places[p].row, blocks = (run->position + run->count - 1) / KVF_BLOCK_TOKENS + 1;
        for (uint32_t i = 0; i < run->count; i++) {
            in->tokens[row + i] = run->tokens[i];
            in->positions[row + i] = run->position + i;
            in->row_blocks[row + i] = run->blocks[(run->position + i) / KVF_BLOCK_TOKENS];
        }
        memcpy(in->tables + (size_t)p * b->table_stride, run->blocks, blocks * sizeof *run->blocks);
        if (p < b->decodes)
            in->contexts[p] = run->position + 1;
        else
            in->prefills[p - b->decodes] =
                (kvf_cuda_run){.row = row, .tokens = run->count, .position = run->position, .sequence = p};
    }
    for (uint32_t p = step->runs_count; b->is_decode && p < b->decodes; p++) {
        in->tokens[p] = in->positions[p] = 0;
        in->contexts[p] = 1;
        in->row_blocks[p] = in->tables[(size_t)p * b->table_stride] = b->base.blocks; /* the spare one */
    }
}

static kvf_status send_inputs(cuda_backend *b) {
    size_t used = (size_t)((uint8_t *)b->host.tables - (uint8_t *)b->host_inputs) +
                  (size_t)(b->decodes + b->prefills) * b->table_stride * sizeof(uint32_t);
    KVF_ASSERT(used <= b->inputs_bytes);
    CUDA_TRY(b, copy_async, b->device_inputs, b->host_inputs, used, KVF_CUDA_HOST_TO_DEVICE, b->stream);
    return KVF_OK;
}

/* Layers are told of as they end; the device goes on meanwhile. */
static kvf_status follow_layers(cuda_backend *b, const kvf_backend_step *step) {
    for (uint32_t layer = 0; layer < b->spec.layers; layer++) {
        CUDA_TRY(b, event_synchronize, b->layer_done[layer]);
        step->on_layer(step->self, layer);
    }
    return KVF_OK;
}

static kvf_status queue_step(cuda_backend *b, const kvf_backend_step *step, bool events) {
    kvf_status status = send_inputs(b);
    if (status != KVF_OK) return status;
    bool recorded = b->is_decode && !b->is_warming_up;
    status = recorded ? cuda_queue_decode(b, step) : cuda_queue_forward(b, step, events);
    if (status != KVF_OK) return status;
    status = cuda_queue_choices(b, step);
    if (status != KVF_OK) return status;
    int error = b->api.last_error(); /* of a launch */
    return error ? cuda_failed(b, "a kernel's launch (cudaGetLastError)", error) : KVF_OK;
}

kvf_status cuda_run_step(kvf_backend *base, const kvf_backend_step *step) {
    cuda_backend *b = (cuda_backend *)base;
    base->trouble[0] = 0;
    const kvf_backend_options *o = &b->options;
    kvf_engine_limits limits = {base->blocks, o->tokens_max, o->sequences_max, o->logit_rows_max};
    if (!kvf_engine_runs_fit(base->spec, &limits, step->runs, step->runs_count)) return KVF_ERR_INVALID;
    CUDA_TRY(b, device_set, b->ordinal); /* of this thread */
    place_runs(b, step);
    fill_inputs(b, step);
    bool events = step->on_layer && b->prefills > 0;
    kvf_status status = queue_step(b, step, events);
    if (status == KVF_OK && events) status = follow_layers(b, step);
    int error = b->api.stream_synchronize(b->stream); /* also after a failure: nothing may run on behind it */
    if (error && (status == KVF_OK || kvf_cuda_is_sticky(error))) /* a product may have failed first: not of itself */
        status = cuda_failed(b, kvf_cuda_symbols.stream_synchronize, error);
    if (status != KVF_OK) return status;
    if (step->on_layer && !events) step->on_layer(step->self, b->spec.layers - 1);
    return cuda_take_choices(b, step);
}
