/* Opening and closing a model file, and looking up what it holds. */
#include "gguf_int.h"
#include <stdlib.h>

/* Takes `mapped` and `copy`: they go with the object, also on failure. */
static kvf_status open_parts(
    const void *data, size_t len_bytes, void *mapped, void *copy, const char *name, kvf_gguf **out, kvf_error *err) {
    kvf_status status;
    kvf_gguf *g = calloc(1, sizeof *g);
    struct gguf_hash_cache *hash = calloc(1, sizeof *hash);
    char *name_copy = strdup(name);
    if (!g || !hash || !name_copy) {
        status = kvf_fail(err, KVF_ERR_NO_MEMORY, "%.200s: out of memory", name);
        free(name_copy);
        free(hash);
        free(g);
        if (mapped) gguf_unmap(mapped, len_bytes);
        free(copy);
        return status;
    }
    pthread_mutex_init(&hash->lock, NULL);
    g->base = data;
    g->size_bytes = len_bytes;
    g->mapped = mapped;
    g->copy = copy;
    g->name = name_copy;
    g->hash = hash;
    status = gguf_parse(g, err);
    if (status) {
        kvf_gguf_close(g);
        return status;
    }
    *out = g;
    return KVF_OK;
}

kvf_status kvf_gguf_open(const char *path, kvf_gguf **out, kvf_error *err) {
    void *mapped;
    size_t len_bytes;
    kvf_status status = gguf_map(path, &mapped, &len_bytes, err);
    return status ? status : open_parts(mapped, len_bytes, mapped, NULL, path, out, err);
}

kvf_status kvf_gguf_open_memory(const void *data, size_t len_bytes, const char *name, kvf_gguf **out, kvf_error *err) {
    /* Tensor data promises alignment; memory that breaks the promise is copied to where it holds. */
    if ((uintptr_t)data % 32 == 0) return open_parts(data, len_bytes, NULL, NULL, name, out, err);
    void *copy = aligned_alloc(64, (size_t)kvf_align_up(len_bytes + 1, 64));
    if (!copy) return kvf_fail(err, KVF_ERR_NO_MEMORY, "%.200s: out of memory for %zu bytes", name, len_bytes);
    if (len_bytes > 0) memcpy(copy, data, len_bytes);
    return open_parts(copy, len_bytes, NULL, copy, name, out, err);
}

void kvf_gguf_close(kvf_gguf *g) {
    if (!g) return;
    for (size_t i = 0; i < g->pairs_count; i++) free(g->pairs[i].starts);
    free(g->pairs);
    free(g->by_key);
    free(g->tensors);
    free(g->by_name);
    free(g->tensor_names);
    pthread_mutex_destroy(&g->hash->lock);
    free(g->hash);
    free(g->name);
    if (g->mapped) gguf_unmap(g->mapped, g->size_bytes);
    free(g->copy);
    free(g);
}

const char *kvf_gguf_path(const kvf_gguf *g) { return g->name; }
uint32_t kvf_gguf_version(const kvf_gguf *g) { return g->version; }
size_t kvf_gguf_tensor_count(const kvf_gguf *g) { return g->tensors_count; }

const kvf_gguf_tensor *kvf_gguf_tensor_at(const kvf_gguf *g, size_t index) {
    KVF_ASSERT(index < g->tensors_count);
    return &g->tensors[index];
}

static int compare_tensor(const void *name, const void *slot) {
    return strcmp(name, (*(kvf_gguf_tensor *const *)slot)->name);
}

const kvf_gguf_tensor *kvf_gguf_tensor_find(const kvf_gguf *g, const char *name) {
    kvf_gguf_tensor **slot = bsearch(name, g->by_name, g->tensors_count, sizeof *g->by_name, compare_tensor);
    return slot ? *slot : NULL;
}

static int compare_key(const void *key, const void *slot) {
    return gguf_span_compare(*(const kvf_span *)key, (*(const gguf_pair *const *)slot)->key);
}

const gguf_pair *gguf_find(const kvf_gguf *g, const char *key) {
    kvf_span span = {key, strlen(key)};
    const gguf_pair **slot = bsearch(&span, g->by_key, g->pairs_count, sizeof *g->by_key, compare_key);
    return slot ? *slot : NULL;
}
