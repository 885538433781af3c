/* Metadata values: a number is read as what the file calls it and given out as what the caller asks for, when it fits.
 */
#include "gguf_int.h"

/* Any integer the format knows, as sign and magnitude. */
typedef struct {
    bool negative;
    uint64_t magnitude;
} integer;

static bool integer_at(uint32_t type, const uint8_t *p, integer *out) {
    int64_t s;
    switch (type) {
    case GGUF_U8: *out = (integer){false, p[0]}; return true;
    case GGUF_U16: *out = (integer){false, kvf_get_le16(p)}; return true;
    case GGUF_U32: *out = (integer){false, kvf_get_le32(p)}; return true;
    case GGUF_U64: *out = (integer){false, kvf_get_le64(p)}; return true;
    case GGUF_I8: s = (int8_t)p[0]; break;
    case GGUF_I16: s = (int16_t)kvf_get_le16(p); break;
    case GGUF_I32: s = (int32_t)kvf_get_le32(p); break;
    case GGUF_I64: s = (int64_t)kvf_get_le64(p); break;
    default: return false;
    }
    *out = (integer){s < 0, s < 0 ? 0 - (uint64_t)s : (uint64_t)s};
    return true;
}

static bool i64_at(uint32_t type, const uint8_t *p, int64_t *out) {
    integer v;
    if (!integer_at(type, p, &v) || v.magnitude > (uint64_t)INT64_MAX + v.negative) return false;
    *out = v.negative ? (int64_t)(0 - v.magnitude) : (int64_t)v.magnitude;
    return true;
}

static bool f32_at(uint32_t type, const uint8_t *p, float *out) {
    integer v;
    if (type == GGUF_F32) {
        uint32_t bits = kvf_get_le32(p);
        memcpy(out, &bits, 4);
        return true;
    }
    if (type == GGUF_F64) {
        uint64_t bits = kvf_get_le64(p);
        double d;
        memcpy(&d, &bits, 8);
        if (d - d == 0.0 && (d > 0x1.fffffep127 || d < -0x1.fffffep127)) return false; /* finite, but not as a float */
        *out = (float)d;
        return true;
    }
    if (!integer_at(type, p, &v) || v.magnitude > 1u << 24) return false; /* beyond that floats skip integers */
    *out = v.negative ? -(float)v.magnitude : (float)v.magnitude;
    return true;
}

bool kvf_gguf_has(const kvf_gguf *g, const char *key) { return gguf_find(g, key) != NULL; }

bool kvf_gguf_get_u64(const kvf_gguf *g, const char *key, uint64_t *out) {
    const gguf_pair *pair = gguf_find(g, key);
    integer v;
    if (!pair || !integer_at(pair->type, pair->value.data, &v) || v.negative) return false;
    *out = v.magnitude;
    return true;
}

bool kvf_gguf_get_u32(const kvf_gguf *g, const char *key, uint32_t *out) {
    uint64_t wide;
    if (!kvf_gguf_get_u64(g, key, &wide) || wide > UINT32_MAX) return false;
    *out = (uint32_t)wide;
    return true;
}

bool kvf_gguf_get_f32(const kvf_gguf *g, const char *key, float *out) {
    const gguf_pair *pair = gguf_find(g, key);
    return pair && f32_at(pair->type, pair->value.data, out);
}

bool kvf_gguf_get_bool(const kvf_gguf *g, const char *key, bool *out) {
    const gguf_pair *pair = gguf_find(g, key);
    if (!pair || pair->type != GGUF_BOOL) return false;
    *out = *(const uint8_t *)pair->value.data != 0;
    return true;
}

bool kvf_gguf_get_string(const kvf_gguf *g, const char *key, kvf_span *out) {
    const gguf_pair *pair = gguf_find(g, key);
    if (!pair || pair->type != GGUF_STRING) return false;
    *out = pair->value;
    return true;
}

bool kvf_gguf_get_array(const kvf_gguf *g, const char *key, kvf_gguf_array *out) {
    const gguf_pair *pair = gguf_find(g, key);
    if (!pair || pair->type != GGUF_ARRAY) return false;
    *out = pair->array;
    return true;
}

bool kvf_gguf_array_string(const kvf_gguf_array *a, uint64_t index, kvf_span *out) {
    if (a->element_type != GGUF_STRING || index >= a->count) return false;
    const uint8_t *p = (const uint8_t *)a->at + ((const uint32_t *)a->index)[index];
    *out = (kvf_span){p + 8, (size_t)kvf_get_le64(p)};
    return true;
}

static const uint8_t *element_at(const kvf_gguf_array *a, uint64_t index) {
    return index < a->count ? (const uint8_t *)a->at + index * gguf_scalar_bytes(a->element_type) : NULL;
}

bool kvf_gguf_array_i64(const kvf_gguf_array *a, uint64_t index, int64_t *out) {
    const uint8_t *p = element_at(a, index);
    return p && i64_at(a->element_type, p, out);
}

bool kvf_gguf_array_f32(const kvf_gguf_array *a, uint64_t index, float *out) {
    const uint8_t *p = element_at(a, index);
    return p && f32_at(a->element_type, p, out);
}
