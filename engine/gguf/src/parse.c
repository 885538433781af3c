/* Reading the structure of a file nobody vouches for. Invariants:
 * 1. No byte is touched before `need` has said that it is there; sizes are compared by subtraction, never by sum.
 * 2. A table is allocated only after its count was checked against the bytes that its entries take at least.
 * 3. Every refusal names the file, the key, tensor or field, and the reason. */
#include "gguf_int.h"
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>

typedef struct {
    const kvf_gguf *g;
    size_t at;
    kvf_error *err;
    char where[GGUF_PRINTABLE_BYTES + 16]; /* "key 'llama.block_count'" */
} reader;

static kvf_status need(reader *r, uint64_t len_bytes, const char *what) {
    uint64_t left = r->g->size_bytes - r->at;
    if (len_bytes <= left) return KVF_OK;
    return kvf_fail(r->err, KVF_ERR_FORMAT, "%.200s: %s: %s: expected %" PRIu64 " bytes at offset %zu, found %" PRIu64,
        r->g->name, r->where, what, len_bytes, r->at, left);
}

static kvf_status read_u32(reader *r, const char *what, uint32_t *out) {
    kvf_status status = need(r, 4, what);
    if (status) return status;
    *out = kvf_get_le32(r->g->base + r->at);
    r->at += 4;
    return KVF_OK;
}

static kvf_status read_u64(reader *r, const char *what, uint64_t *out) {
    kvf_status status = need(r, 8, what);
    if (status) return status;
    *out = kvf_get_le64(r->g->base + r->at);
    r->at += 8;
    return KVF_OK;
}

static kvf_status read_string(reader *r, const char *what, kvf_span *out) {
    uint64_t len_bytes;
    kvf_status status = read_u64(r, what, &len_bytes);
    if (!status) status = need(r, len_bytes, what);
    if (status) return status;
    *out = (kvf_span){r->g->base + r->at, (size_t)len_bytes};
    r->at += (size_t)len_bytes;
    return KVF_OK;
}

/* A key or tensor name: not empty, bounded, no NUL (names are used as C strings). Sets `where`. */
static kvf_status read_name(reader *r, const char *kind, size_t index, size_t max_bytes, kvf_span *out) {
    snprintf(r->where, sizeof r->where, "%s %zu", kind, index);
    kvf_status status = read_string(r, "name", out);
    if (status) return status;
    if (out->len_bytes == 0 || out->len_bytes > max_bytes || memchr(out->data, 0, out->len_bytes))
        return kvf_fail(r->err, KVF_ERR_FORMAT, "%.200s: %s: name of %zu bytes (allowed: 1 to %zu, none of them zero)",
            r->g->name, r->where, out->len_bytes, max_bytes);
    char text[GGUF_PRINTABLE_BYTES];
    snprintf(r->where, sizeof r->where, "%s '%s'", kind, gguf_printable(*out, text, sizeof text));
    return KVF_OK;
}

size_t gguf_scalar_bytes(uint32_t type) {
    static const uint8_t bytes[] = {[GGUF_U8] = 1,
        [GGUF_I8] = 1,
        [GGUF_U16] = 2,
        [GGUF_I16] = 2,
        [GGUF_U32] = 4,
        [GGUF_I32] = 4,
        [GGUF_F32] = 4,
        [GGUF_BOOL] = 1,
        [GGUF_U64] = 8,
        [GGUF_I64] = 8,
        [GGUF_F64] = 8};
    return type < sizeof bytes ? bytes[type] : 0;
}

int gguf_span_compare(kvf_span a, kvf_span b) {
    int order = memcmp(a.data, b.data, KVF_MIN(a.len_bytes, b.len_bytes));
    return order ? order : (a.len_bytes > b.len_bytes) - (a.len_bytes < b.len_bytes);
}

/* Walks the strings once to check them, then again to note where each starts: only then is their number believed. */
static kvf_status read_string_array(reader *r, uint64_t count, gguf_pair *pair) {
    size_t start = r->at;
    if (count > (r->g->size_bytes - r->at) / 8)
        return need(r, count > UINT64_MAX / 8 ? UINT64_MAX : count * 8, "array count");
    kvf_span text;
    for (uint64_t i = 0; i < count; i++) {
        kvf_status status = read_string(r, "string in array", &text);
        if (status) return status;
    }
    if (r->at - start > UINT32_MAX)
        return kvf_fail(r->err, KVF_ERR_UNSUPPORTED, "%.200s: %s: array of strings of %zu bytes (at most %u are read)",
            r->g->name, r->where, r->at - start, UINT32_MAX);
    pair->value = (kvf_span){r->g->base + start, r->at - start};
    pair->starts = malloc((size_t)KVF_MAX(count, 1) * sizeof *pair->starts);
    if (!pair->starts) return kvf_fail(r->err, KVF_ERR_NO_MEMORY, "%.200s: %s: out of memory", r->g->name, r->where);
    size_t at = 0;
    for (uint64_t i = 0; i < count; i++) {
        pair->starts[i] = (uint32_t)at;
        at += 8 + (size_t)kvf_get_le64((const uint8_t *)pair->value.data + at);
    }
    return KVF_OK;
}

static kvf_status read_array(reader *r, gguf_pair *pair) {
    uint32_t element_type;
    uint64_t count;
    kvf_status status = read_u32(r, "array type", &element_type);
    if (!status) status = read_u64(r, "array count", &count);
    if (status) return status;
    size_t element_bytes = gguf_scalar_bytes(element_type);
    if (element_type == GGUF_STRING) {
        status = read_string_array(r, count, pair);
    } else if (element_bytes == 0) {
        return kvf_fail(r->err, element_type == GGUF_ARRAY ? KVF_ERR_UNSUPPORTED : KVF_ERR_FORMAT,
            "%.200s: %s: array of %s (value type %" PRIu32 ") is not read", r->g->name, r->where,
            element_type == GGUF_ARRAY ? "arrays" : "an unknown type", element_type);
    } else {
        uint64_t bytes = count > UINT64_MAX / element_bytes ? UINT64_MAX : count * element_bytes;
        status = need(r, bytes, "array count");
        if (!status) pair->value = (kvf_span){r->g->base + r->at, (size_t)bytes};
        if (!status) r->at += (size_t)bytes;
    }
    if (status) return status;
    pair->array =
        (kvf_gguf_array){.element_type = element_type, .count = count, .at = pair->value.data, .index = pair->starts};
    return KVF_OK;
}

static kvf_status read_pair(reader *r, size_t index, gguf_pair *pair) {
    kvf_status status = read_name(r, "key", index, GGUF_KEY_BYTES_MAX, &pair->key);
    if (!status) status = read_u32(r, "value type", &pair->type);
    if (status) return status;
    if (pair->type == GGUF_STRING) return read_string(r, "value", &pair->value);
    if (pair->type == GGUF_ARRAY) return read_array(r, pair);
    size_t bytes = gguf_scalar_bytes(pair->type);
    if (bytes == 0)
        return kvf_fail(
            r->err, KVF_ERR_FORMAT, "%.200s: %s: unknown value type %" PRIu32, r->g->name, r->where, pair->type);
    status = need(r, bytes, "value");
    if (status) return status;
    pair->value = (kvf_span){r->g->base + r->at, bytes};
    if (pair->type == GGUF_BOOL && r->g->base[r->at] > 1)
        return kvf_fail(r->err, KVF_ERR_FORMAT, "%.200s: %s: truth value %u is neither 0 nor 1", r->g->name, r->where,
            r->g->base[r->at]);
    r->at += bytes;
    return KVF_OK;
}

static int compare_pairs(const void *a, const void *b) {
    return gguf_span_compare((*(const gguf_pair *const *)a)->key, (*(const gguf_pair *const *)b)->key);
}

static kvf_status read_pairs(reader *r, kvf_gguf *g) {
    for (size_t i = 0; i < g->pairs_count; i++) {
        kvf_status status = read_pair(r, i, &g->pairs[i]);
        if (status) return status;
        g->by_key[i] = &g->pairs[i];
    }
    qsort(g->by_key, g->pairs_count, sizeof *g->by_key, compare_pairs);
    for (size_t i = 1; i < g->pairs_count; i++) {
        char text[GGUF_PRINTABLE_BYTES];
        if (gguf_span_compare(g->by_key[i - 1]->key, g->by_key[i]->key) == 0)
            return kvf_fail(r->err, KVF_ERR_FORMAT, "%.200s: key '%s' is there twice", g->name,
                gguf_printable(g->by_key[i]->key, text, sizeof text));
    }
    return KVF_OK;
}

/* Types of the format that this program does not read, so that a refusal can say what the file holds. */
static const char *foreign_type_name(uint32_t type) {
    static const char *const names[] = {[4] = "Q4_2",
        [5] = "Q4_3",
        [9] = "Q8_1",
        [15] = "Q8_K",
        [16] = "IQ2_XXS",
        [17] = "IQ2_XS",
        [18] = "IQ3_XXS",
        [19] = "IQ1_S",
        [21] = "IQ3_S",
        [22] = "IQ2_S",
        [24] = "I8",
        [25] = "I16",
        [26] = "I32",
        [27] = "I64",
        [28] = "F64",
        [29] = "IQ1_M",
        [34] = "TQ1_0",
        [35] = "TQ2_0"};
    return type < KVF_COUNT_OF(names) && names[type] ? names[type] : "unknown to this program";
}

static kvf_status check_tensor_size(reader *r, const kvf_gguf_tensor *t, uint32_t type, uint64_t *bytes) {
    const kvf_dtype_info *info = kvf_dtype_find(type);
    if (!info)
        return kvf_fail(r->err, KVF_ERR_UNSUPPORTED, "%.200s: %s: type %" PRIu32 " (%s) is not supported", r->g->name,
            r->where, type, foreign_type_name(type));
    uint64_t values = 1;
    for (uint32_t d = 0; d < t->dims_count; d++) {
        if (t->dims[d] == 0 || t->dims[d] > GGUF_DIM_MAX || values > UINT64_MAX / 8 / t->dims[d])
            return kvf_fail(r->err, KVF_ERR_FORMAT, "%.200s: %s: dimension %" PRIu32 " is %" PRIu64 ", which is %s",
                r->g->name, r->where, d, t->dims[d], t->dims[d] == 0 ? "not allowed" : "too large");
        values *= t->dims[d];
    }
    if (t->dims[0] % info->block_values)
        return kvf_fail(r->err, KVF_ERR_FORMAT,
            "%.200s: %s: row of %" PRIu64 " values is not a multiple of the %" PRIu32 " in a block of %s", r->g->name,
            r->where, t->dims[0], info->block_values, info->name);
    /* values <= 2^61 and a value takes at most 4 bytes, so this does not wrap. */
    *bytes = values / info->block_values * info->block_bytes;
    return KVF_OK;
}

/* Leaves the offset in t->data's place: the data section's start is known only after the last entry. */
static kvf_status read_tensor(reader *r, size_t index, kvf_gguf_tensor *t, char *name_out, uint64_t *offset) {
    kvf_span name;
    kvf_status status = read_name(r, "tensor", index, GGUF_TENSOR_NAME_BYTES_MAX, &name);
    if (!status) status = read_u32(r, "number of dimensions", &t->dims_count);
    if (status) return status;
    if (t->dims_count < 1 || t->dims_count > 4)
        return kvf_fail(r->err, KVF_ERR_FORMAT, "%.200s: %s: n_dims is %" PRIu32 " (allowed: 1 to 4)", r->g->name,
            r->where, t->dims_count);
    memcpy(name_out, name.data, name.len_bytes);
    name_out[name.len_bytes] = 0;
    t->name = name_out;
    for (uint32_t d = 0; d < 4; d++) t->dims[d] = 1;
    for (uint32_t d = 0; d < t->dims_count && !status; d++) status = read_u64(r, "dimension", &t->dims[d]);
    uint32_t type = 0;
    if (!status) status = read_u32(r, "type", &type);
    if (!status) status = read_u64(r, "offset", offset);
    if (!status) status = check_tensor_size(r, t, type, &t->bytes);
    if (status) return status;
    t->type = (kvf_dtype)type;
    if (*offset % r->g->alignment)
        return kvf_fail(r->err, KVF_ERR_FORMAT,
            "%.200s: %s: offset %" PRIu64 " is not a multiple of general.alignment %" PRIu64, r->g->name, r->where,
            *offset, r->g->alignment);
    return KVF_OK;
}

static kvf_status place_tensor(
    const kvf_gguf *g, kvf_gguf_tensor *t, uint64_t data_at, uint64_t offset, kvf_error *err) {
    uint64_t data_bytes = data_at < g->size_bytes ? g->size_bytes - data_at : 0;
    uint64_t found = offset < data_bytes ? data_bytes - offset : 0;
    if (t->bytes > found) {
        char text[GGUF_PRINTABLE_BYTES];
        return kvf_fail(err, KVF_ERR_FORMAT,
            "%.200s: tensor '%s': expected %" PRIu64 " bytes at offset %" PRIu64 " of the data section, found %" PRIu64
            " (file of %zu bytes is cut short)",
            g->name, gguf_printable((kvf_span){t->name, strlen(t->name)}, text, sizeof text), t->bytes, offset, found,
            g->size_bytes);
    }
    t->data = g->base + data_at + offset;
    return KVF_OK;
}

static int compare_names(const void *a, const void *b) {
    return strcmp((*(kvf_gguf_tensor *const *)a)->name, (*(kvf_gguf_tensor *const *)b)->name);
}

static int compare_places(const void *a, const void *b) {
    const uint8_t *x = (*(kvf_gguf_tensor *const *)a)->data, *y = (*(kvf_gguf_tensor *const *)b)->data;
    return (x > y) - (x < y);
}

/* Neither a name nor a byte belongs to two tensors. Leaves by_name sorted by name. */
static kvf_status check_tensors_apart(kvf_gguf *g, kvf_error *err) {
    qsort(g->by_name, g->tensors_count, sizeof(void *), compare_places);
    for (size_t i = 1; i < g->tensors_count; i++) {
        const kvf_gguf_tensor *a = g->by_name[i - 1], *b = g->by_name[i];
        if ((const uint8_t *)a->data + a->bytes > (const uint8_t *)b->data)
            return kvf_fail(
                err, KVF_ERR_FORMAT, "%.200s: tensors '%.90s' and '%.90s' overlap", g->name, a->name, b->name);
    }
    qsort(g->by_name, g->tensors_count, sizeof(void *), compare_names);
    for (size_t i = 1; i < g->tensors_count; i++)
        if (strcmp(g->by_name[i - 1]->name, g->by_name[i]->name) == 0)
            return kvf_fail(err, KVF_ERR_FORMAT, "%.200s: tensor '%.90s' is there twice", g->name, g->by_name[i]->name);
    return KVF_OK;
}

static kvf_status read_tensors(reader *r, kvf_gguf *g) {
    /* Names are shorter than the entries they come from, so the rest of the file bounds them, and so does the limit. */
    size_t pool = KVF_MIN(g->size_bytes - r->at, g->tensors_count * (GGUF_TENSOR_NAME_BYTES_MAX + 1)) + 1;
    kvf_status status = KVF_OK;
    uint64_t *offsets = calloc(KVF_MAX(g->tensors_count, (size_t)1), sizeof *offsets);
    g->tensor_names = malloc(pool);
    if (!offsets || !g->tensor_names) {
        status =
            kvf_fail(r->err, KVF_ERR_NO_MEMORY, "%.200s: out of memory for %zu tensors", g->name, g->tensors_count);
        goto undo_offsets;
    }
    size_t names_used = 0;
    for (size_t i = 0; i < g->tensors_count && !status; i++) {
        status = read_tensor(r, i, &g->tensors[i], g->tensor_names + names_used, &offsets[i]);
        if (!status) names_used += strlen(g->tensors[i].name) + 1;
        g->by_name[i] = &g->tensors[i];
    }
    uint64_t data_at = kvf_align_up(r->at, g->alignment);
    for (size_t i = 0; i < g->tensors_count && !status; i++)
        status = place_tensor(g, &g->tensors[i], data_at, offsets[i], r->err);
    if (!status) status = check_tensors_apart(g, r->err);
undo_offsets:
    free(offsets);
    return status;
}

static kvf_status read_header(reader *r, kvf_gguf *g) {
    snprintf(r->where, sizeof r->where, "header");
    uint64_t tensors = 0, pairs = 0;
    kvf_status status = need(r, 4, "magic");
    if (status) return status;
    if (memcmp(g->base, "GGUF", 4) != 0)
        return kvf_fail(r->err, KVF_ERR_FORMAT, "%.200s: not a GGUF file (magic %02x %02x %02x %02x)", g->name,
            g->base[0], g->base[1], g->base[2], g->base[3]);
    r->at = 4;
    status = read_u32(r, "version", &g->version);
    if (status) return status;
    if (g->version != 2 && g->version != 3)
        return kvf_fail(r->err, KVF_ERR_UNSUPPORTED, "%.200s: header: version is %" PRIu32 "%s (read are 2 and 3)",
            g->name, g->version, g->version == 0x02000000 || g->version == 0x03000000 ? ", a big-endian file" : "");
    status = read_u64(r, "tensor_count", &tensors);
    if (!status) status = read_u64(r, "metadata_kv_count", &pairs);
    if (status) return status;
    /* An entry takes at least 13 bytes (empty key, one-byte value) or 33 (empty name, one dimension). */
    uint64_t left = g->size_bytes - r->at;
    if (pairs > GGUF_KEYS_MAX || pairs > left / 13)
        return kvf_fail(r->err, KVF_ERR_FORMAT,
            "%.200s: header: metadata_kv_count is %" PRIu64 " (limit %d, and the file has %" PRIu64 " bytes left)",
            g->name, pairs, GGUF_KEYS_MAX, left);
    if (tensors > GGUF_TENSORS_MAX || tensors > left / 33)
        return kvf_fail(r->err, KVF_ERR_FORMAT,
            "%.200s: header: tensor_count is %" PRIu64 " (limit %d, and the file has %" PRIu64 " bytes left)", g->name,
            tensors, GGUF_TENSORS_MAX, left);
    g->pairs = calloc(KVF_MAX(pairs, 1), sizeof *g->pairs);
    g->by_key = calloc(KVF_MAX(pairs, 1), sizeof *g->by_key);
    g->tensors = calloc(KVF_MAX(tensors, 1), sizeof *g->tensors);
    g->by_name = calloc(KVF_MAX(tensors, 1), sizeof *g->by_name);
    if (!g->pairs || !g->by_key || !g->tensors || !g->by_name)
        return kvf_fail(r->err, KVF_ERR_NO_MEMORY, "%.200s: out of memory for %" PRIu64 " keys and %" PRIu64 " tensors",
            g->name, pairs, tensors);
    g->pairs_count = (size_t)pairs;
    g->tensors_count = (size_t)tensors;
    return KVF_OK;
}

/* The keys that say how the file itself is laid out. */
static kvf_status read_layout_keys(kvf_gguf *g, kvf_error *err) {
    g->alignment = 32;
    if (kvf_gguf_has(g, "general.alignment")) {
        uint64_t alignment;
        if (gguf_find(g, "general.alignment")->type != GGUF_U32 ||
            !kvf_gguf_get_u64(g, "general.alignment", &alignment))
            return kvf_fail(err, KVF_ERR_FORMAT,
                "%.200s: key 'general.alignment' has value type %" PRIu32 ", expected 4 (u32)", g->name,
                gguf_find(g, "general.alignment")->type);
        if (alignment < 32 || alignment > 65536 || (alignment & (alignment - 1)))
            return kvf_fail(err, KVF_ERR_FORMAT,
                "%.200s: key 'general.alignment' is %" PRIu64 " (allowed: powers of two from 32 to 65536)", g->name,
                alignment);
        g->alignment = alignment;
    }
    uint64_t parts;
    if (kvf_gguf_get_u64(g, "split.count", &parts) && parts > 1)
        return kvf_fail(err, KVF_ERR_UNSUPPORTED,
            "%.200s: key 'split.count' is %" PRIu64
            ": one part of a split model; split files are not read, merge them first",
            g->name, parts);
    return KVF_OK;
}

kvf_status gguf_parse(kvf_gguf *g, kvf_error *err) {
    reader r = {.g = g, .err = err};
    kvf_status status = read_header(&r, g);
    if (!status) status = read_pairs(&r, g);
    if (!status) status = read_layout_keys(g, err);
    if (!status) status = read_tensors(&r, g);
    return status;
}
