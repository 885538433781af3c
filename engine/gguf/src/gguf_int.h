/* gguf_int.h - what the parts of the reader share: the parsed file, and how its text is made fit for messages.
 *
 * File (little-endian):
 *   "GGUF" | u32 version | u64 tensor count | u64 key count
 *   key count    x { string key | u32 value type | value }
 *   tensor count x { string name | u32 dims | u64 dim[dims] | u32 type | u64 offset in the data section }
 *   padding to general.alignment | data section
 * string: u64 length, bytes. Array value: u32 element type, u64 count, elements. */
#ifndef KVF_GGUF_INT_H
#define KVF_GGUF_INT_H
#include "kvf/gguf.h"
#include <pthread.h>

enum {
    GGUF_U8 = 0,
    GGUF_I8 = 1,
    GGUF_U16 = 2,
    GGUF_I16 = 3,
    GGUF_U32 = 4,
    GGUF_I32 = 5,
    GGUF_F32 = 6,
    GGUF_BOOL = 7,
    GGUF_STRING = 8,
    GGUF_ARRAY = 9,
    GGUF_U64 = 10,
    GGUF_I64 = 11,
    GGUF_F64 = 12
};

/* Sane limits: far above any real model, low enough that tables of them are a few MB. */
#define GGUF_KEYS_MAX 65536
#define GGUF_TENSORS_MAX 65536
#define GGUF_KEY_BYTES_MAX 65535
#define GGUF_TENSOR_NAME_BYTES_MAX 255
#define GGUF_DIM_MAX ((uint64_t)1 << 40)

typedef struct {
    kvf_span key;
    uint32_t type;
    kvf_span value; /* string: its bytes; array: its elements; else the number */
    kvf_gguf_array array; /* of arrays only */
    uint32_t *starts; /* owned; arrays of strings: offset of each string's length word from value.data */
} gguf_pair;

struct kvf_gguf {
    const uint8_t *base;
    size_t size_bytes;
    void *mapped; /* owned mapping, or NULL */
    void *copy; /* owned aligned copy of memory that was not aligned, or NULL */
    char *name; /* owned: path as given */
    uint32_t version; /* 2 or 3 */
    uint64_t alignment;
    size_t pairs_count, tensors_count;
    gguf_pair *pairs; /* file order */
    const gguf_pair **by_key; /* sorted by key bytes */
    kvf_gguf_tensor *tensors; /* file order */
    kvf_gguf_tensor **by_name; /* sorted by name */
    char *tensor_names; /* pool of NUL-terminated names */
    struct gguf_hash_cache *hash; /* filled at first use, under its own lock */
};

struct gguf_hash_cache {
    pthread_mutex_t lock;
    bool done;
    uint64_t value[2];
};

/* Fills g->version .. g->tensor_names from g->base; on error the caller closes g, which frees what is there. */
kvf_status gguf_parse(kvf_gguf *g, kvf_error *err);
/* Bytes of a number of this type; 0: string, array, or no type at all. */
size_t gguf_scalar_bytes(uint32_t type);
int gguf_span_compare(kvf_span a, kvf_span b);
const gguf_pair *gguf_find(const kvf_gguf *g, const char *key);

/* Bytes from a file as one line of valid, printable UTF-8, cut at a character with "..." when long; returns out. */
const char *gguf_printable(kvf_span text, char *out, size_t out_bytes);
#define GGUF_PRINTABLE_BYTES 96

/* The file mapped read-only. */
kvf_status gguf_map(const char *path, void **at, size_t *len_bytes, kvf_error *err);
void gguf_unmap(void *at, size_t len_bytes);
#endif
