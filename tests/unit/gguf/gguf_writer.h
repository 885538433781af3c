/* gguf_writer.h - makes small GGUF files in memory, good ones and ones with exactly one fault. Test code: running out
 * of room stops the test. Keys and tensors named in `skip` are left out, so that a test can put its own instead. */
#ifndef KVF_TEST_GGUF_WRITER_H
#define KVF_TEST_GGUF_WRITER_H
#include "kvf/base.h"
#include <stdio.h>
#include <stdlib.h>

typedef struct {
    const char *name;
    uint32_t dims_count, type;
    uint64_t dims[4];
    uint64_t offset; /* in the data section */
    uint64_t bytes; /* taken in the data section */
    const float *data; /* NULL: a pattern from the name */
} writer_tensor;

typedef struct {
    uint8_t keys[1 << 16];
    size_t keys_bytes;
    uint64_t keys_count;
    writer_tensor tensors[128];
    size_t tensors_count;
    uint64_t data_bytes;
    uint32_t version, alignment;
    const char *skip[8];
    uint64_t claim_keys, claim_tensors; /* 0: the truth */
    uint8_t *file; /* made by writer_finish, aligned to 64, owned by the writer */
    size_t file_bytes;
} writer;

static inline writer *writer_new(void) {
    writer *w = calloc(1, sizeof *w);
    KVF_ASSERT(w);
    w->version = 3;
    w->alignment = 32;
    return w;
}

static inline void writer_free(writer *w) {
    free(w->file);
    free(w);
}

static inline bool writer_skips(const writer *w, const char *name) {
    for (size_t i = 0; i < KVF_COUNT_OF(w->skip); i++)
        if (w->skip[i] && strcmp(w->skip[i], name) == 0) return true;
    return false;
}

/* Leaves out what is named from now on. */
static inline void writer_skip(writer *w, const char *name) {
    for (size_t i = 0; i < KVF_COUNT_OF(w->skip); i++) {
        if (w->skip[i]) continue;
        w->skip[i] = name;
        return;
    }
    KVF_ASSERT(!"room for one more skip");
}

static inline void writer_raw(writer *w, const void *data, size_t len_bytes) {
    KVF_ASSERT(w->keys_bytes + len_bytes <= sizeof w->keys);
    memcpy(w->keys + w->keys_bytes, data, len_bytes);
    w->keys_bytes += len_bytes;
}
static inline void writer_raw_u32(writer *w, uint32_t v) {
    uint8_t b[4];
    kvf_put_le32(b, v);
    writer_raw(w, b, 4);
}
static inline void writer_raw_u64(writer *w, uint64_t v) {
    uint8_t b[8];
    kvf_put_le64(b, v);
    writer_raw(w, b, 8);
}
static inline void writer_raw_string(writer *w, const char *s) {
    writer_raw_u64(w, strlen(s));
    writer_raw(w, s, strlen(s));
}

/* Key and value type; the value follows by writer_raw. */
static inline bool writer_key(writer *w, const char *key, uint32_t type) {
    if (writer_skips(w, key)) return false;
    writer_raw_string(w, key);
    writer_raw_u32(w, type);
    w->keys_count++;
    return true;
}
static inline void writer_u32(writer *w, const char *key, uint32_t v) {
    if (writer_key(w, key, 4)) writer_raw_u32(w, v);
}
static inline void writer_u64(writer *w, const char *key, uint64_t v) {
    if (writer_key(w, key, 10)) writer_raw_u64(w, v);
}
static inline void writer_f32(writer *w, const char *key, float v) {
    uint32_t bits;
    memcpy(&bits, &v, 4);
    if (writer_key(w, key, 6)) writer_raw_u32(w, bits);
}
static inline void writer_string(writer *w, const char *key, const char *v) {
    if (writer_key(w, key, 8)) writer_raw_string(w, v);
}
static inline void writer_strings(writer *w, const char *key, uint32_t count, const char *prefix) {
    if (!writer_key(w, key, 9)) return;
    writer_raw_u32(w, 8);
    writer_raw_u64(w, count);
    for (uint32_t i = 0; i < count; i++) {
        char text[32];
        snprintf(text, sizeof text, "%s%u", prefix, i);
        writer_raw_string(w, text);
    }
}

/* An f32 tensor; rows 0: a vector. Fields of the result may be changed until writer_finish. */
static inline writer_tensor *writer_tensor_add(writer *w, const char *name, uint64_t columns, uint64_t rows) {
    static writer_tensor dropped;
    if (writer_skips(w, name)) return &dropped;
    KVF_ASSERT(w->tensors_count < KVF_COUNT_OF(w->tensors));
    writer_tensor *t = &w->tensors[w->tensors_count++];
    *t = (writer_tensor){.name = name,
        .dims_count = rows ? 2 : 1,
        .dims = {columns, rows ? rows : 1, 1, 1},
        .offset = w->data_bytes,
        .bytes = columns * (rows ? rows : 1) * 4};
    w->data_bytes = kvf_align_up(w->data_bytes + t->bytes, w->alignment);
    return t;
}

static inline void writer_append(writer *w, const void *data, size_t len_bytes) {
    memcpy(w->file + w->file_bytes, data, len_bytes);
    w->file_bytes += len_bytes;
}
static inline void writer_append_int(writer *w, uint64_t v, size_t bytes) {
    uint8_t b[8];
    kvf_put_le64(b, v);
    writer_append(w, b, bytes);
}

static inline void writer_fill(writer *w, const writer_tensor *t, uint8_t *at) {
    if (t->data) {
        memcpy(at, t->data, t->bytes);
        return;
    }
    uint32_t state = (uint32_t)strlen(t->name) * 2654435761u;
    for (uint64_t i = 0; i + 4 <= t->bytes; i += 4) {
        float v = (float)((state = state * 1664525u + 1013904223u) >> 8) * 0x1p-24f - 0.5f;
        memcpy(at + i, &v, 4);
    }
}

static inline void writer_finish(writer *w) {
    size_t room = w->keys_bytes + w->tensors_count * 512 + w->data_bytes + w->alignment + 64;
    w->file = aligned_alloc(64, (size_t)kvf_align_up(room, 64));
    KVF_ASSERT(w->file);
    memset(w->file, 0, room);
    writer_append(w, "GGUF", 4);
    writer_append_int(w, w->version, 4);
    writer_append_int(w, w->claim_tensors ? w->claim_tensors : w->tensors_count, 8);
    writer_append_int(w, w->claim_keys ? w->claim_keys : w->keys_count, 8);
    writer_append(w, w->keys, w->keys_bytes);
    for (size_t i = 0; i < w->tensors_count; i++) {
        const writer_tensor *t = &w->tensors[i];
        writer_append_int(w, strlen(t->name), 8);
        writer_append(w, t->name, strlen(t->name));
        writer_append_int(w, t->dims_count, 4);
        for (uint32_t d = 0; d < t->dims_count && d < 4; d++) writer_append_int(w, t->dims[d], 8);
        writer_append_int(w, t->type, 4);
        writer_append_int(w, t->offset, 8);
    }
    if (w->tensors_count > 0) {
        size_t data_at = (size_t)kvf_align_up(w->file_bytes, w->alignment);
        for (size_t i = 0; i < w->tensors_count; i++) {
            const writer_tensor *t = &w->tensors[i];
            if (t->offset < w->data_bytes && t->bytes <= w->data_bytes - t->offset)
                writer_fill(w, t, w->file + data_at + t->offset);
        }
        w->file_bytes = data_at + (size_t)w->data_bytes;
    }
}

/* --- a whole model --- */

typedef struct {
    const char *arch;
    uint32_t layers, hidden, heads, kv_heads, head_dim, ffn, vocab;
    bool tied, biases, norms;
} writer_shape;

/* Names live as long as the program: tensors keep pointers. */
static inline const char *writer_layer_name(uint32_t layer, const char *suffix) {
    static char names[256][40];
    static size_t used;
    for (size_t i = 0; i < used; i++) {
        char want[40];
        snprintf(want, sizeof want, "blk.%u.%s", layer, suffix);
        if (strcmp(names[i], want) == 0) return names[i];
    }
    KVF_ASSERT(used < KVF_COUNT_OF(names));
    snprintf(names[used], sizeof names[used], "blk.%u.%s", layer, suffix);
    return names[used++];
}

static inline void writer_model(writer *w, const writer_shape *s) {
    char key[64];
#define KEY(suffix) (snprintf(key, sizeof key, "%s.%s", s->arch, suffix), key)
    writer_string(w, "general.architecture", s->arch);
    writer_string(w, "general.name", "test model");
    writer_u32(w, KEY("block_count"), s->layers);
    writer_u32(w, KEY("embedding_length"), s->hidden);
    writer_u32(w, KEY("feed_forward_length"), s->ffn);
    writer_u32(w, KEY("context_length"), 512);
    writer_u32(w, KEY("attention.head_count"), s->heads);
    writer_u32(w, KEY("attention.head_count_kv"), s->kv_heads);
    if (s->head_dim * s->heads != s->hidden) writer_u32(w, KEY("attention.key_length"), s->head_dim);
    writer_f32(w, KEY("attention.layer_norm_rms_epsilon"), 1e-5f);
#undef KEY
    uint64_t q = (uint64_t)s->heads * s->head_dim, kv = (uint64_t)s->kv_heads * s->head_dim;
    writer_tensor_add(w, "token_embd.weight", s->hidden, s->vocab);
    writer_tensor_add(w, "output_norm.weight", s->hidden, 0);
    if (!s->tied) writer_tensor_add(w, "output.weight", s->hidden, s->vocab);
    for (uint32_t i = 0; i < s->layers; i++) {
        writer_tensor_add(w, writer_layer_name(i, "attn_norm.weight"), s->hidden, 0);
        writer_tensor_add(w, writer_layer_name(i, "attn_q.weight"), s->hidden, q);
        writer_tensor_add(w, writer_layer_name(i, "attn_k.weight"), s->hidden, kv);
        writer_tensor_add(w, writer_layer_name(i, "attn_v.weight"), s->hidden, kv);
        writer_tensor_add(w, writer_layer_name(i, "attn_output.weight"), q, s->hidden);
        if (s->biases) {
            writer_tensor_add(w, writer_layer_name(i, "attn_q.bias"), q, 0);
            writer_tensor_add(w, writer_layer_name(i, "attn_k.bias"), kv, 0);
            writer_tensor_add(w, writer_layer_name(i, "attn_v.bias"), kv, 0);
        }
        if (s->norms) {
            writer_tensor_add(w, writer_layer_name(i, "attn_q_norm.weight"), s->head_dim, 0);
            writer_tensor_add(w, writer_layer_name(i, "attn_k_norm.weight"), s->head_dim, 0);
        }
        writer_tensor_add(w, writer_layer_name(i, "ffn_norm.weight"), s->hidden, 0);
        writer_tensor_add(w, writer_layer_name(i, "ffn_gate.weight"), s->hidden, s->ffn);
        writer_tensor_add(w, writer_layer_name(i, "ffn_up.weight"), s->hidden, s->ffn);
        writer_tensor_add(w, writer_layer_name(i, "ffn_down.weight"), s->ffn, s->hidden);
    }
}
#endif
