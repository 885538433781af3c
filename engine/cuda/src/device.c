/* Opens the libraries, the plugin and the device, and puts a backend together. */
#include "device_int.h"
#include "kvf/kernels.h"
#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

enum { GEMM_WORKSPACE_BYTES = 32 << 20 };

kvf_status cuda_failed(cuda_backend *b, const char *call, int error) {
    snprintf(b->base.trouble, sizeof b->base.trouble, "GPU: %s", kvf_cuda_text(&b->api, call, error));
    b->base.broken |= kvf_cuda_is_sticky(error);
    (void)b->api.last_error(); /* told now: the next step is not to find it as its own */
    return error == KVF_CUDA_OUT_OF_MEMORY ? KVF_ERR_NO_MEMORY : KVF_ERR_INTERNAL;
}

void *cuda_take(cuda_backend *b, size_t len_bytes) {
    KVF_ASSERT(b->allocations_count < ALLOCATIONS_MAX);
    void *memory = NULL;
    int error = b->api.memory_take(&memory, KVF_MAX(len_bytes, (size_t)256));
    if (error) {
        cuda_failed(b, "cudaMalloc", error);
        return NULL;
    }
    b->allocations[b->allocations_count++] = memory;
    return memory;
}

/* The folder of the running program, with a slash. */
static bool program_folder(char *out, size_t room_bytes) {
    ssize_t n = readlink("/proc/self/exe", out, room_bytes - 1);
    if (n <= 0) return false;
    out[n] = 0;
    char *slash = strrchr(out, '/');
    if (!slash) return false;
    slash[1] = 0;
    return true;
}

static void *open_plugin_file(const char *wanted, char *why, size_t why_room_bytes) {
    char folder[4096], path[4096 + 64];
    void *library = NULL;
    if (!wanted && program_folder(folder, sizeof folder)) {
        snprintf(path, sizeof path, "%s%s", folder, KVF_CUDA_PLUGIN_FILE);
        if (access(path, R_OK) == 0) wanted = path;
    }
    /* NODELETE: threads of the runtime may be inside its code for a moment after the last stream has ended. */
    library = dlopen(wanted ? wanted : KVF_CUDA_PLUGIN_FILE, RTLD_NOW | RTLD_LOCAL | RTLD_NODELETE);
    const char *text = library ? NULL : dlerror();
    if (!library) snprintf(why, why_room_bytes, "%s", text ? text : KVF_CUDA_PLUGIN_FILE);
    return library;
}

static kvf_status open_plugin(cuda_backend *b, const char *wanted, kvf_error *err) {
    char why[256];
    b->plugin = open_plugin_file(wanted, why, sizeof why);
    if (!b->plugin) return kvf_fail(err, KVF_ERR_UNSUPPORTED, "no device code here: %s", why);
    void *symbol = dlsym(b->plugin, KVF_CUDA_PLUGIN_SYMBOL);
    if (!symbol)
        return kvf_fail(err, KVF_ERR_UNSUPPORTED, "the CUDA plugin has no %s: not one of ours", KVF_CUDA_PLUGIN_SYMBOL);
    kvf_cuda_plugin_entry entry;
    memcpy(&entry, &symbol, sizeof entry);
    b->kernels = entry(KVF_CUDA_PLUGIN_ABI);
    if (!b->kernels || b->kernels->table_bytes != sizeof *b->kernels)
        return kvf_fail(err, KVF_ERR_UNSUPPORTED, "the CUDA plugin is of another version than this program");
    return KVF_OK;
}

static kvf_status check_shape(const cuda_backend *b, kvf_error *err) {
    const kvf_model_spec *s = &b->spec;
    const char *path = b->options.model_path;
    if (s->kv_heads == 0 || s->heads % s->kv_heads != 0)
        return kvf_fail(err, KVF_ERR_UNSUPPORTED, "%s: %u heads over %u key/value heads", path, s->heads, s->kv_heads);
    if (!kvf_cuda_has_attention(s->head_dim, s->heads / s->kv_heads))
        return kvf_fail(err, KVF_ERR_UNSUPPORTED, "%s: no attention kernel for heads of %u, %u to a key head", path,
            s->head_dim, s->heads / s->kv_heads);
    if (s->hidden % 8 || s->ffn % 8 || s->vocab % 8)
        return kvf_fail(err, KVF_ERR_UNSUPPORTED, "%s: hidden %u, ffn %u, vocabulary %u: the GPU needs multiples of 8",
            path, s->hidden, s->ffn, s->vocab);
    if (b->weights == KVF_WEIGHTS_FP8 &&
        (s->hidden % KVF_CUDA_F8_ALIGN || s->ffn % KVF_CUDA_F8_ALIGN || s->heads * s->head_dim % KVF_CUDA_F8_ALIGN))
        return kvf_fail(err, KVF_ERR_UNSUPPORTED, "engine.weights: %s: hidden %u, ffn %u: fp8 needs multiples of %d",
            path, s->hidden, s->ffn, KVF_CUDA_F8_ALIGN);
    if (b->options.kv_type != KVF_KV_F16 && b->options.kv_type != KVF_KV_FP8)
        return kvf_fail(err, KVF_ERR_UNSUPPORTED, "engine.kv_type: a GPU keeps keys and values in f16 or fp8, not %s",
            kvf_kv_type_name(b->options.kv_type));
    return KVF_OK;
}

static kvf_status open_device(cuda_backend *b, const kvf_cuda_backend_options *cuda, kvf_error *err) {
    kvf_status status = kvf_cuda_load(cuda->libraries, &b->api, err);
    if (status == KVF_OK) status = kvf_cuda_usable(&b->api, cuda->device, err);
    if (status == KVF_ERR_NOT_FOUND)
        return kvf_fail(
            err, status, "engine.devices: no GPU %u here, there are 0 to %u", cuda->device, b->api.devices_count - 1);
    if (status == KVF_OK) status = open_plugin(b, cuda->plugin, err);
    if (status != KVF_OK) return status;
    b->ordinal = (int)cuda->device;
    const char *call = kvf_cuda_symbols.device_set;
    int error = b->api.device_set(b->ordinal);
    if (!error) {
        call = kvf_cuda_symbols.stream_create;
        error = b->api.stream_create(&b->stream, KVF_CUDA_STREAM_NON_BLOCKING, 0);
    }
    if (error) return kvf_fail(err, KVF_ERR_UNSUPPORTED, "%s", kvf_cuda_text(&b->api, call, error));
    void *workspace = cuda_take(b, GEMM_WORKSPACE_BYTES);
    if (!workspace) return kvf_fail(err, KVF_ERR_NO_MEMORY, "%s", b->base.trouble);
    char why[256] = "out of memory";
    if (b->kernels->gemm_create(&b->gemm, workspace, GEMM_WORKSPACE_BYTES, why, sizeof why) != 0)
        return kvf_fail(err, KVF_ERR_UNSUPPORTED, "matrix products: %s", why);
    return KVF_OK;
}

static kvf_status open_model(cuda_backend *b, const kvf_model_spec *shape, kvf_error *err) {
    if (shape) {
        b->spec = *shape;
    } else {
        kvf_status status = kvf_gguf_open(b->options.model_path, &b->gguf, err);
        if (status == KVF_OK) status = kvf_model_spec_load(b->gguf, &b->spec, err);
        if (status != KVF_OK) return status;
        b->spec_is_ours = true;
    }
    b->base.gguf = b->gguf;
    b->base.spec = &b->spec;
    b->weights = kvf_cuda_weights_kept(&b->spec, b->options.weights);
    b->type = b->weights == KVF_WEIGHTS_BF16 ? KVF_CUDA_BF16 : KVF_CUDA_F16;
    b->cell = b->options.kv_type == KVF_KV_FP8 ? KVF_CUDA_CELL_F8 : KVF_CUDA_CELL_F16;
    b->base.page_bytes = kvf_cuda_page_bytes(b->spec.kv_heads, b->spec.head_dim, b->cell);
    kvf_status status = check_shape(b, err);
    if (status == KVF_OK) KVF_ASSERT(b->base.page_bytes == kvf_kv_page_bytes(&b->spec, b->options.kv_type));
    return status;
}

static void cuda_destroy(kvf_backend *base) {
    cuda_backend *b = (cuda_backend *)base;
    if (b->stream) {
        b->api.device_set(b->ordinal);
        b->api.stream_synchronize(b->stream);
        cuda_drop_graphs(b);
    }
    if (b->gemm) b->kernels->gemm_destroy(b->gemm);
    for (uint32_t i = 0; i < b->layers_events; i++) b->api.event_destroy(b->layer_done[i]);
    if (b->host_inputs) b->api.host_give(b->host_inputs);
    if (b->host_logits) b->api.host_give(b->host_logits);
    if (b->host_choices_memory) b->api.host_give(b->host_choices_memory);
    while (b->allocations_count) b->api.memory_give(b->allocations[--b->allocations_count]);
    if (b->stream) b->api.stream_destroy(b->stream);
    if (b->plugin) dlclose(b->plugin);
    kvf_cuda_unload(&b->api);
    free(b->layer_done);
    free(b->layer);
    free(b->places);
    free(b->run_rows);
    free(b->scratch);
    free(b->choice_out);
    if (b->spec_is_ours) kvf_model_spec_free(&b->spec);
    if (b->gguf) kvf_gguf_close(b->gguf);
    free(b);
}

static void cuda_copy_block(kvf_backend *base, uint32_t to, uint32_t from, uint32_t tokens) {
    cuda_backend *b = (cuda_backend *)base;
    kvf_cuda_copy copy = {.pool = b->pages,
        .layer_bytes = b->layer_bytes,
        .page_bytes = base->page_bytes,
        .layers = b->spec.layers,
        .kv_heads = b->spec.kv_heads,
        .head_dim = b->spec.head_dim,
        .cell = b->cell,
        .to = to,
        .from = from,
        .tokens = tokens};
    (void)b->api.device_set(b->ordinal); /* of this thread; the step that follows meets the same error */
    if (to != from) b->kernels->block_copy(&copy, b->stream);
}

static void *cuda_page(kvf_backend *base, uint32_t layer, uint32_t block) {
    cuda_backend *b = (cuda_backend *)base;
    KVF_ASSERT(layer < b->spec.layers && block < base->blocks);
    return b->pages + layer * b->layer_bytes + block * base->page_bytes;
}

const kvf_cuda_api *kvf_cuda_backend_api(const kvf_backend *base) { return &((const cuda_backend *)base)->api; }
uint32_t kvf_cuda_backend_device(const kvf_backend *base) { return (uint32_t)((const cuda_backend *)base)->ordinal; }

static kvf_cuda_pages pages_of(const cuda_backend *b, const void *pages, uint32_t count, uint8_t *slot, uint32_t *crc) {
    return (kvf_cuda_pages){.pool = b->pages,
        .layer_bytes = b->layer_bytes,
        .page_bytes = b->base.page_bytes,
        .slot = slot,
        .pages = pages,
        .count = count,
        .crc = crc};
}

void kvf_cuda_backend_pack(
    const kvf_backend *base, const void *pages, uint32_t count, uint8_t *slot, uint32_t *crc, kvf_cuda_stream stream) {
    const cuda_backend *b = (const cuda_backend *)base;
    kvf_cuda_pages a = pages_of(b, pages, count, slot, crc);
    b->kernels->pages_pack(&a, stream);
}

void kvf_cuda_backend_unpack(
    const kvf_backend *base, const void *pages, uint32_t count, uint8_t *slot, uint32_t *crc, kvf_cuda_stream stream) {
    const cuda_backend *b = (const cuda_backend *)base;
    kvf_cuda_pages a = pages_of(b, pages, count, slot, crc);
    b->kernels->pages_unpack(&a, stream);
}

static const kvf_backend_ops cuda_ops = {
    .destroy = cuda_destroy, .run_step = cuda_run_step, .copy_block = cuda_copy_block, .page = cuda_page};

/* Numerics say what activations and weights are rounded to: f16, bf16, or w8, which is f16 over codes. */
static void name_backend(cuda_backend *b) {
    const kvf_cuda_device *d = &b->api.devices[b->ordinal];
    bool fp8_kv = b->options.kv_type == KVF_KV_FP8;
    snprintf(b->base.numerics, sizeof b->base.numerics, "v1-cuda-%s-kv%s",
        b->weights == KVF_WEIGHTS_FP8 ? "w8" : kvf_weights_name(b->weights), kvf_kv_type_name(b->options.kv_type));
    snprintf(b->base.what, sizeof b->base.what, "cuda:%d %.24s (sm_%u), %s weights%s", b->ordinal, d->name,
        d->capability, kvf_weights_name(b->weights), fp8_kv ? ", fp8 KV" : "");
}

kvf_status kvf_backend_open_cuda(
    const kvf_backend_options *options, const kvf_cuda_backend_options *cuda, kvf_backend **out, kvf_error *err) {
    cuda_backend *b = calloc(1, sizeof *b);
    if (!b) return kvf_fail(err, KVF_ERR_NO_MEMORY, "out of memory");
    b->base.ops = &cuda_ops;
    b->base.in_device_memory = true;
    b->options = *options;
    b->options.logit_rows_max = KVF_MAX(options->logit_rows_max, 1u);
    kvf_status status = open_device(b, cuda, err);
    if (status == KVF_OK) status = open_model(b, cuda->shape, err);
    if (status == KVF_OK) status = cuda_load_weights(b, err);
    if (status == KVF_OK) cuda_size_unpacked(b, cuda->unpacked_bytes);
    if (status == KVF_OK) status = cuda_make_workspace(b, err);
    if (status == KVF_OK) status = cuda_make_pool(b, cuda->memory_share, err);
    if (status == KVF_OK) status = cuda_warm_up(b, err);
    if (status != KVF_OK) {
        cuda_destroy(&b->base);
        return status;
    }
    name_backend(b);
    *out = &b->base;
    return KVF_OK;
}
