/* The page pool, and everything a step works in: one device block and its pinned counterpart on the host. */
#include "device_int.h"
#include "kvf/arena.h"
#include <stdlib.h>

/* Zeroed is a pretence: it keeps the host from touching device memory, and nothing here is read before it is written.
 */
#define CARVE(a, type, count) ((type *)kvf_arena_take((a), sizeof(type) * (size_t)(count), CUDA_ALIGN))

static uint32_t tables_width(const cuda_backend *b) {
    return (uint32_t)kvf_div_up(b->spec.context_max, KVF_BLOCK_TOKENS);
}

static void carve_inputs(const cuda_backend *b, kvf_arena *c, cuda_inputs *in) {
    size_t rows = b->options.tokens_max, runs = b->options.sequences_max;
    in->tokens = CARVE(c, uint32_t, rows);
    in->positions = CARVE(c, uint32_t, rows);
    in->row_blocks = CARVE(c, uint32_t, rows);
    in->contexts = CARVE(c, uint32_t, runs);
    in->prefills = CARVE(c, kvf_cuda_run, runs);
    in->tables = CARVE(c, uint32_t, runs * tables_width(b)); /* last: only what a step needs of it is copied */
}

/* Outputs and inputs of the products of a layer. */
enum { LAYER_PRODUCTS = 4 };
static void layer_products(const kvf_model_spec *s, uint32_t out[LAYER_PRODUCTS][2]) {
    uint32_t q = s->heads * s->head_dim, qkv = (s->heads + 2 * s->kv_heads) * s->head_dim;
    const uint32_t shapes[LAYER_PRODUCTS][2] = {
        {qkv, s->hidden}, {s->hidden, q}, {2 * s->ffn, s->hidden}, {s->hidden, s->ffn}};
    memcpy(out, shapes, sizeof shapes);
}

static size_t spans_floats(const cuda_backend *b) {
    uint32_t shapes[LAYER_PRODUCTS][2];
    size_t most = 0;
    layer_products(&b->spec, shapes);
    for (size_t i = 0; i < LAYER_PRODUCTS; i++)
        most = KVF_MAX(most, b->kernels->f8_partial_floats(shapes[i][0], shapes[i][1]));
    return most;
}

/* Room for the largest matrix, or as much of it as is set, at least eight outputs. */
void cuda_size_unpacked(cuda_backend *b, size_t wanted_bytes) {
    enum { DEFAULT_BYTES = 64 << 20 };
    uint32_t shapes[LAYER_PRODUCTS][2];
    size_t largest = 0, longest = 0;
    layer_products(&b->spec, shapes);
    for (size_t i = 0; i < LAYER_PRODUCTS; i++) {
        largest = KVF_MAX(largest, (size_t)shapes[i][0] * shapes[i][1]);
        longest = KVF_MAX(longest, (size_t)shapes[i][1]);
    }
    size_t wanted = (wanted_bytes ? wanted_bytes : DEFAULT_BYTES) / sizeof(kvf_half_bits);
    b->unpacked_values = KVF_MIN(largest, KVF_MAX(wanted, 8 * longest));
}

static void carve_workspace(cuda_backend *b, kvf_arena *c) {
    const kvf_model_spec *s = &b->spec;
    size_t rows = b->options.tokens_max, kept = b->options.logit_rows_max, q = (size_t)s->heads * s->head_dim;
    b->x = CARVE(c, float, rows * s->hidden);
    b->normed = CARVE(c, kvf_half_bits, rows * s->hidden);
    b->qkv = CARVE(c, kvf_half_bits, rows * (s->heads + 2 * s->kv_heads) * s->head_dim);
    b->q = CARVE(c, kvf_half_bits, rows * q);
    b->heads = CARVE(c, kvf_half_bits, rows * q);
    b->gate_up = CARVE(c, kvf_half_bits, rows * 2 * s->ffn);
    b->ffn = CARVE(c, kvf_half_bits, rows * s->ffn);
    b->sum = CARVE(c, kvf_half_bits, rows * s->hidden);
    b->x_kept = CARVE(c, float, kept * s->hidden);
    b->heads_kept = CARVE(c, kvf_half_bits, kept * q);
    b->logits = CARVE(c, float, kept * s->vocab);
    if (b->weights == KVF_WEIGHTS_FP8) {
        b->spans = CARVE(c, float, spans_floats(b));
        b->unpacked = CARVE(c, kvf_half_bits, b->unpacked_values);
    }
    b->partial = CARVE(
        c, float, b->kernels->decode_partial_floats(b->options.sequences_max, s->heads, s->head_dim, s->context_max));
}

static kvf_status make_events(cuda_backend *b, kvf_error *err) {
    b->layer_done = calloc(b->spec.layers, sizeof(kvf_cuda_event));
    if (!b->layer_done) return kvf_fail(err, KVF_ERR_NO_MEMORY, "out of memory");
    for (; b->layers_events < b->spec.layers; b->layers_events++) {
        int error = b->api.event_create(
            &b->layer_done[b->layers_events], KVF_CUDA_EVENT_NO_TIMING | KVF_CUDA_EVENT_BLOCKING_SYNC);
        if (error) return kvf_fail(err, cuda_failed(b, kvf_cuda_symbols.event_create, error), "%s", b->base.trouble);
    }
    return KVF_OK;
}

kvf_status cuda_make_workspace(cuda_backend *b, kvf_error *err) {
    kvf_arena device = {.zeroed = true}, inputs = {.zeroed = true};
    carve_workspace(b, &device);
    carve_inputs(b, &inputs, &b->device);
    b->inputs_bytes = inputs.size_bytes = inputs.used_bytes;
    device.size_bytes = device.used_bytes;
    device.base = cuda_take(b, device.used_bytes);
    inputs.base = b->device_inputs = cuda_take(b, inputs.used_bytes);
    if (!device.base || !inputs.base)
        return kvf_fail(
            err, KVF_ERR_NO_MEMORY, "no room for %zu MiB of workspace: %s", device.size_bytes >> 20, b->base.trouble);
    device.used_bytes = inputs.used_bytes = 0;
    carve_workspace(b, &device);
    carve_inputs(b, &inputs, &b->device);
    int error = b->api.host_take(&b->host_inputs, b->inputs_bytes, 0);
    void *logits = NULL;
    size_t logits_bytes = (size_t)b->spec.vocab * sizeof(float);
    if (!error) error = b->api.host_take(&logits, logits_bytes, 0);
    b->host_logits = logits;
    if (error) return kvf_fail(err, cuda_failed(b, kvf_cuda_symbols.host_take, error), "%s", b->base.trouble);
    kvf_arena host = {.base = b->host_inputs, .size_bytes = b->inputs_bytes, .zeroed = true};
    carve_inputs(b, &host, &b->host);
    b->places = calloc(b->options.sequences_max, sizeof *b->places);
    b->run_rows = calloc(b->options.sequences_max, sizeof *b->run_rows);
    b->scratch = aligned_alloc(64, kvf_align_up(kvf_sample_scratch_bytes(b->spec.vocab), 64));
    if (!b->places || !b->run_rows || !b->scratch) return kvf_fail(err, KVF_ERR_NO_MEMORY, "out of memory");
    kvf_status status = cuda_make_choices(b, err);
    return status == KVF_OK ? make_events(b, err) : status;
}

kvf_status cuda_make_pool(cuda_backend *b, double memory_share, kvf_error *err) {
    uint64_t bytes = b->options.kv_memory_bytes;
    if (memory_share > 0) {
        size_t free_bytes = 0, total_bytes = 0;
        int error = b->api.memory_info(&free_bytes, &total_bytes);
        if (error) return kvf_fail(err, cuda_failed(b, kvf_cuda_symbols.memory_info, error), "%s", b->base.trouble);
        bytes = (uint64_t)((double)free_bytes * memory_share);
    }
    const char *key = memory_share > 0 ? "engine.device_memory_percent" : "kv.memory";
    kvf_status status = kvf_backend_count_blocks(&b->spec, b->options.kv_type, bytes, &b->base.blocks, err);
    if (status != KVF_OK && memory_share > 0)
        return kvf_fail(err, status, "%s: %.0f %% of what weights leave free are %zu MiB, no room for two blocks", key,
            memory_share * 100, (size_t)bytes >> 20);
    if (status != KVF_OK) return status;
    b->layer_bytes = ((size_t)b->base.blocks + 1) * b->base.page_bytes;
    b->pages = cuda_take(b, b->layer_bytes * b->spec.layers);
    if (!b->pages)
        return kvf_fail(err, KVF_ERR_NO_MEMORY, "%s: no room for %zu MiB of pages: %s", key,
            b->layer_bytes * b->spec.layers >> 20, b->base.trouble);
    return KVF_OK;
}
