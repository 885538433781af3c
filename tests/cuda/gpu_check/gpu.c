#include "gpu.h"
#include <dlfcn.h>
#include <errno.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/socket.h>
#include <time.h>

enum { CHUNK_BYTES = 4 << 20 };

double gpu_now_s(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + (double)t.tv_nsec * 1e-9;
}

static kvf_cuda_pages move_of(const gpu *g, const kvf_page_at *pages, uint32_t count, uint8_t *slot, uint32_t *crc) {
    _Static_assert(sizeof(kvf_page_at) == sizeof(kvf_cuda_page), "one layout");
    return (kvf_cuda_pages){.pool = g->pool,
        .layer_bytes = (size_t)g->sizes.blocks * g->sizes.page_bytes,
        .page_bytes = g->sizes.page_bytes,
        .slot = slot,
        .pages = (const kvf_cuda_page *)(const void *)pages,
        .count = count,
        .crc = crc};
}
static void pack(
    void *self, const kvf_page_at *pages, uint32_t count, uint8_t *slot, uint32_t *crc, kvf_cuda_stream stream) {
    kvf_cuda_pages a = move_of(self, pages, count, slot, crc);
    ((gpu *)self)->kernels->pages_pack(&a, stream);
}
static void unpack(
    void *self, const kvf_page_at *pages, uint32_t count, uint8_t *slot, uint32_t *crc, kvf_cuda_stream stream) {
    kvf_cuda_pages a = move_of(self, pages, count, slot, crc);
    ((gpu *)self)->kernels->pages_unpack(&a, stream);
}

static kvf_status open_kernels(gpu *g, const char *plugin, kvf_error *err) {
    void *library = dlopen(plugin, RTLD_NOW | RTLD_LOCAL | RTLD_NODELETE);
    if (!library) {
        const char *text = dlerror();
        return kvf_fail(err, KVF_ERR_INVALID, "no device code: %s", text ? text : plugin);
    }
    void *symbol = dlsym(library, KVF_CUDA_PLUGIN_SYMBOL);
    kvf_cuda_plugin_entry entry = NULL;
    memcpy(&entry, &symbol, sizeof entry);
    g->kernels = entry ? entry(KVF_CUDA_PLUGIN_ABI) : NULL;
    return g->kernels ? KVF_OK : kvf_fail(err, KVF_ERR_INVALID, "%s is of another version", plugin);
}

kvf_status gpu_open(gpu *g, const gpu_sizes *sizes, uint32_t device, const char *plugin, kvf_error *err) {
    kvf_error nccl;
    void *pool = NULL;
    memset(g, 0, sizeof *g);
    g->sizes = *sizes;
    kvf_status status = kvf_cuda_load(NULL, &g->cuda, err);
    if (status == KVF_OK) status = kvf_cuda_usable(&g->cuda, device, err);
    if (status != KVF_OK) return status;
    status = open_kernels(g, plugin, err);
    if (status != KVF_OK) return status;
    if (kvf_nccl_load(NULL, &g->nccl, &nccl) != KVF_OK)
        snprintf(g->nccl_why, sizeof g->nccl_why, "%.255s", nccl.message);
    g->pool_bytes = (uint64_t)sizes->layers * sizes->blocks * sizes->page_bytes;
    int error = g->cuda.device_set((int)device);
    if (!error) error = g->cuda.memory_take(&pool, g->pool_bytes);
    if (error) return kvf_fail(err, KVF_ERR_NO_MEMORY, "%s", kvf_cuda_text(&g->cuda, "cudaMalloc", error));
    g->pool = pool;
    g->device = (kvf_page_device){.cuda = &g->cuda,
        .nccl = g->nccl_why[0] ? NULL : &g->nccl,
        .ipc = true,
        .device = device,
        .pack = pack,
        .unpack = unpack,
        .self = g};
    return KVF_OK;
}
/* The libraries stay: threads of theirs may be on their way out. */
void gpu_close(gpu *g) {
    if (g->pool) (void)g->cuda.memory_give(g->pool);
    g->pool = NULL;
}

uint32_t gpu_pages(const gpu *g) { return g->sizes.layers * g->sizes.blocks; }
kvf_page_at gpu_page(const gpu *g, uint32_t i) {
    /* Blocks of a sequence lie anywhere in the pool: 37 has no factor in common with their number, a power of two. */
    return (kvf_page_at){i * 37 % g->sizes.blocks, i / g->sizes.blocks, i};
}

static void pattern(uint64_t *words, uint64_t first, size_t count, uint64_t seed) {
    for (size_t i = 0; i < count; i++) words[i] = (first + i + seed * 0x9E3779B97F4A7C15u) * 0xBF58476D1CE4E5B9u;
}

/* `memory` chunk by chunk: filled, or compared. */
static int sweep(gpu *g, uint8_t *memory, uint64_t seed, uint64_t *differ) {
    uint64_t *want = malloc(CHUNK_BYTES), *have = malloc(CHUNK_BYTES);
    int error = want && have ? 0 : KVF_CUDA_OUT_OF_MEMORY;
    for (uint64_t at = 0; at < g->pool_bytes && !error; at += CHUNK_BYTES) {
        size_t len = (size_t)KVF_MIN(g->pool_bytes - at, (uint64_t)CHUNK_BYTES);
        pattern(want, at / 8, len / 8, seed);
        if (!differ) {
            error = g->cuda.copy(memory + at, want, len, KVF_CUDA_HOST_TO_DEVICE);
            continue;
        }
        error = g->cuda.copy(have, memory + at, len, KVF_CUDA_DEVICE_TO_HOST);
        for (size_t page = 0; page < len && !error; page += g->sizes.page_bytes)
            *differ += memcmp((char *)want + page, (char *)have + page, KVF_MIN(len - page, g->sizes.page_bytes)) != 0;
    }
    free(want);
    free(have);
    /* A copy from pageable memory may return before it is on the device. */
    return error ? error : g->cuda.device_synchronize();
}
int gpu_fill(gpu *g, void *memory, uint64_t seed) { return sweep(g, memory, seed, NULL); }
int gpu_compare(gpu *g, const void *memory, uint64_t seed, uint64_t *differ) {
    *differ = 0;
    return sweep(g, (uint8_t *)(uintptr_t)memory, seed, differ);
}

bool gpu_say(int fd, const gpu_word *word) {
    return send(fd, word, sizeof *word, MSG_NOSIGNAL) == (ssize_t)sizeof *word;
}
bool gpu_hear(int fd, say kind, gpu_word *out) {
    struct pollfd p = {.fd = fd, .events = POLLIN};
    int ready = poll(&p, 1, PATIENCE_S * 1000);
    ssize_t n = ready == 1 ? recv(fd, out, sizeof *out, 0) : -1;
    if (n == (ssize_t)sizeof *out && out->kind == (uint32_t)kind) return true;
    if (n == (ssize_t)sizeof *out && out->kind == SAY_FAILED) return false;
    snprintf(out->text, sizeof out->text, "%s",
        ready == 0 ? "the other process says nothing"
        : n == 0   ? "the other process has ended"
                   : "the other process says something else");
    return false;
}
