/* The name of the weights: a chain of XXH3-128 over what changes results, in an order that does not depend on the
 * file's own: keys sorted (general.architecture and everything under "<architecture>."), then tensors sorted by name.
 * Each link hashes the link before it together with one item, so items cannot run into each other. */
#include "gguf_int.h"
#include "kvf/hash.h"

typedef struct {
    uint8_t bytes[16 + 16 + 16 + 4 + 4 + 32]; /* previous link, two hashes, two words, dims: little-endian */
} link_input;

static kvf_hash128 link_next(
    kvf_hash128 before, kvf_span a, kvf_span b, uint32_t x, uint32_t y, const uint64_t dims[4]) {
    link_input in;
    kvf_hash128 parts[3] = {before, kvf_hash128_of(a.data, a.len_bytes, 1), kvf_hash128_of(b.data, b.len_bytes, 2)};
    for (int i = 0; i < 3; i++) {
        kvf_put_le64(in.bytes + 16 * i, parts[i].lo);
        kvf_put_le64(in.bytes + 16 * i + 8, parts[i].hi);
    }
    kvf_put_le32(in.bytes + 48, x);
    kvf_put_le32(in.bytes + 52, y);
    for (int i = 0; i < 4; i++) kvf_put_le64(in.bytes + 56 + 8 * i, dims ? dims[i] : 0);
    return kvf_hash128_of(in.bytes, sizeof in.bytes, 3);
}

static bool changes_results(const kvf_span key, const kvf_span arch) {
    static const char arch_key[] = "general.architecture";
    if (gguf_span_compare(key, (kvf_span){arch_key, sizeof arch_key - 1}) == 0) return true;
    return arch.len_bytes > 0 && key.len_bytes > arch.len_bytes && memcmp(key.data, arch.data, arch.len_bytes) == 0 &&
           ((const char *)key.data)[arch.len_bytes] == '.';
}

static kvf_hash128 compute(const kvf_gguf *g) {
    kvf_hash128 h = {0, 0};
    kvf_span arch = {"", 0};
    kvf_gguf_get_string(g, "general.architecture", &arch);
    for (size_t i = 0; i < g->pairs_count; i++) {
        const gguf_pair *pair = g->by_key[i];
        if (changes_results(pair->key, arch))
            h = link_next(h, pair->key, pair->value, pair->type, pair->array.element_type, NULL);
    }
    for (size_t i = 0; i < g->tensors_count; i++) {
        const kvf_gguf_tensor *t = g->by_name[i];
        h = link_next(h, (kvf_span){t->name, strlen(t->name)}, (kvf_span){t->data, (size_t)t->bytes}, t->type,
            t->dims_count, t->dims);
    }
    return h;
}

void kvf_gguf_weights_hash(const kvf_gguf *g, uint64_t hash[2]) {
    struct gguf_hash_cache *cache = g->hash;
    pthread_mutex_lock(&cache->lock);
    if (!cache->done) {
        kvf_hash128 h = compute(g);
        cache->value[0] = h.lo;
        cache->value[1] = h.hi;
        cache->done = true;
    }
    hash[0] = cache->value[0];
    hash[1] = cache->value[1];
    pthread_mutex_unlock(&cache->lock);
}
