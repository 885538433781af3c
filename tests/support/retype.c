#include "retype.h"
#include "kvf/gguf.h"
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <cmocka.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

enum { BLOCK = 32, Q8_BYTES = 34, MILLION_BF16 = 0x4974 };

static uint8_t *read_whole(const char *path, size_t *len_bytes) {
    FILE *f = fopen(path, "rb");
    assert_non_null(f);
    assert_int_equal(fseek(f, 0, SEEK_END), 0);
    *len_bytes = (size_t)ftell(f);
    rewind(f);
    uint8_t *bytes = aligned_alloc(64, (size_t)kvf_align_up(*len_bytes, 64));
    assert_non_null(bytes);
    assert_int_equal(fread(bytes, 1, *len_bytes, f), *len_bytes);
    fclose(f);
    return bytes;
}

/* Where the header says the tensor's type: behind its name, the number of its dimensions and these. */
static uint8_t *type_of(uint8_t *bytes, size_t len_bytes, const kvf_gguf_tensor *t) {
    uint8_t pattern[80] = {0};
    size_t name_bytes = strlen(t->name);
    assert_true(name_bytes + 8 <= sizeof pattern);
    kvf_put_le64(pattern, name_bytes);
    memcpy(pattern + 8, t->name, name_bytes);
    uint8_t *at = memmem(bytes, len_bytes, pattern, name_bytes + 8);
    assert_non_null(at);
    at += name_bytes + 8;
    assert_int_equal(kvf_get_le32(at), t->dims_count);
    at += 4 + 8 * t->dims_count;
    assert_int_equal(kvf_get_le32(at), KVF_DTYPE_F16);
    return at;
}

static void to_bf16(uint8_t *values, size_t count) {
    for (size_t i = 0; i < count; i++) {
        float v = kvf_f16_to_f32(kvf_get_le16(values + 2 * i));
        uint32_t bits;
        memcpy(&bits, &v, sizeof bits);
        kvf_put_le16(values + 2 * i, (uint16_t)((bits + 0x7FFF + (bits >> 16 & 1)) >> 16));
    }
}

/* Blocks are shorter than what they replace: the gap behind them is nobody's. */
static void to_q8(uint8_t *values, size_t count) {
    for (size_t b = 0; b < count / BLOCK; b++) {
        float v[BLOCK], top = 0;
        for (size_t i = 0; i < BLOCK; i++) {
            v[i] = kvf_f16_to_f32(kvf_get_le16(values + 2 * (b * BLOCK + i)));
            top = fmaxf(top, fabsf(v[i]));
        }
        uint8_t *to = values + b * Q8_BYTES;
        uint16_t scale = kvf_f32_to_f16(top / 127);
        float by = kvf_f16_to_f32(scale);
        kvf_put_le16(to, scale);
        for (size_t i = 0; i < BLOCK; i++) to[2 + i] = (uint8_t)(int8_t)(by > 0 ? lrintf(v[i] / by) : 0);
    }
}

void retype_model(const char *in, char *out, kvf_dtype type, const char *huge) {
    size_t len_bytes;
    uint8_t *bytes = read_whole(in, &len_bytes);
    kvf_gguf *g;
    kvf_error err;
    bool huge_was_there = huge == NULL;
    if (kvf_gguf_open_memory(bytes, len_bytes, in, &g, &err) != KVF_OK) fail_msg("%s", err.message);
    for (size_t i = 0; i < kvf_gguf_tensor_count(g); i++) {
        const kvf_gguf_tensor *t = kvf_gguf_tensor_at(g, i);
        if (t->type != KVF_DTYPE_F16) continue;
        uint8_t *values = bytes + ((const uint8_t *)t->data - bytes);
        size_t count = (size_t)(t->bytes / 2);
        kvf_put_le32(type_of(bytes, len_bytes, t), (uint32_t)type);
        if (type == KVF_DTYPE_BF16)
            to_bf16(values, count);
        else
            to_q8(values, count);
        if (huge && strcmp(t->name, huge) == 0) {
            assert_int_equal(type, KVF_DTYPE_BF16);
            kvf_put_le16(values + 2 * (count - 1), MILLION_BF16);
            huge_was_there = true;
        }
    }
    assert_true(huge_was_there);
    kvf_gguf_close(g);
    int file = mkstemp(out);
    assert_true(file >= 0);
    assert_int_equal(write(file, bytes, len_bytes), (ssize_t)len_bytes);
    close(file);
    free(bytes);
}
