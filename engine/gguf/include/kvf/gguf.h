/* kvf/gguf.h - a GGUF v2/v3 model file, memory-mapped read-only and checked whole before anything of it is believed.
 * Every count, length, offset and size is checked against the file without overflow; a refusal names the file, the key
 * or tensor, and the reason. All processes of a host that open the same file share its pages. Immutable after open; any
 * thread. */
#ifndef KVF_GGUF_H
#define KVF_GGUF_H
#include "kvf/base.h"
#include "kvf/quant.h"
#ifdef __cplusplus
extern "C" {
#endif

typedef struct kvf_gguf kvf_gguf;

typedef struct {
    const char *name; /* NUL-terminated, owned by the kvf_gguf */
    kvf_dtype type;
    uint32_t dims_count;
    uint64_t dims[4]; /* dims[0] is the row length (fastest); unused ones are 1 */
    const void *data; /* borrowed from the mapping; at least 32-byte aligned in the file, so aligned in memory */
    uint64_t bytes;
} kvf_gguf_tensor;

typedef struct {
    uint32_t element_type; /* GGUF value type number */
    uint64_t count;
    const void *at; /* private */
    const void *index; /* private: O(1) access to strings */
} kvf_gguf_array;

kvf_status kvf_gguf_open(const char *path, kvf_gguf **out, kvf_error *err);
/* `data` is kept (borrowed) until close; used by tests and fuzzers. `name` appears in messages. */
kvf_status kvf_gguf_open_memory(const void *data, size_t len_bytes, const char *name, kvf_gguf **out, kvf_error *err);
void kvf_gguf_close(kvf_gguf *g);

const char *kvf_gguf_path(const kvf_gguf *g);
uint32_t kvf_gguf_version(const kvf_gguf *g);
size_t kvf_gguf_tensor_count(const kvf_gguf *g);
const kvf_gguf_tensor *kvf_gguf_tensor_at(const kvf_gguf *g, size_t index);
const kvf_gguf_tensor *kvf_gguf_tensor_find(const kvf_gguf *g, const char *name); /* NULL: absent */

/* Metadata by key. false: absent or of another kind (integers of any width convert when the value fits). */
bool kvf_gguf_has(const kvf_gguf *g, const char *key);
bool kvf_gguf_get_u32(const kvf_gguf *g, const char *key, uint32_t *out);
bool kvf_gguf_get_u64(const kvf_gguf *g, const char *key, uint64_t *out);
bool kvf_gguf_get_f32(const kvf_gguf *g, const char *key, float *out);
bool kvf_gguf_get_bool(const kvf_gguf *g, const char *key, bool *out);
bool kvf_gguf_get_string(const kvf_gguf *g, const char *key, kvf_span *out); /* bytes in the mapping, not terminated */
bool kvf_gguf_get_array(const kvf_gguf *g, const char *key, kvf_gguf_array *out);
bool kvf_gguf_array_string(const kvf_gguf_array *a, uint64_t index, kvf_span *out); /* O(1) */
bool kvf_gguf_array_i64(const kvf_gguf_array *a, uint64_t index, int64_t *out);
bool kvf_gguf_array_f32(const kvf_gguf_array *a, uint64_t index, float *out);

/* XXH3-128 over the tensor data and the keys that change results: names the weights in pairing and block hashes.
 * Computed at first call and kept; safe from several threads. */
void kvf_gguf_weights_hash(const kvf_gguf *g, uint64_t hash[2]);
#ifdef __cplusplus
}
#endif
#endif
