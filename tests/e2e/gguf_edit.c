/* Layout of a GGUF file (v3, little-endian): "GGUF" u32 version, u64 tensors, u64 pairs; pairs: key, u32 type, value;
 * tensor infos (offsets count from the start of the data, so they stay valid when the head grows); padding to 32; data.
 */
#include "gguf_edit.h"
#include "harness.h"
#include <string.h>

enum { ALIGN = 32, STRING = 8, ARRAY = 9, BOOL = 7 };

typedef struct {
    const uint8_t *at;
} cursor;

static uint64_t take(cursor *c, size_t bytes) {
    uint64_t value = 0;
    memcpy(&value, c->at, bytes);
    c->at += bytes;
    return value;
}

static void skip_value(cursor *c, uint32_t type) {
    static const uint8_t sizes[] = {1, 1, 2, 2, 4, 4, 4, 1, 0, 0, 8, 8, 8};
    assert_true(type < sizeof sizes);
    if (type == STRING) {
        uint64_t len = take(c, 8);
        c->at += len;
    } else if (type == ARRAY) {
        uint32_t item = (uint32_t)take(c, 4);
        for (uint64_t n = take(c, 8); n > 0; n--) skip_value(c, item);
    } else {
        c->at += sizes[type];
    }
}

static void skip_tensor(cursor *c) {
    uint64_t name = take(c, 8);
    c->at += name;
    uint32_t dims = (uint32_t)take(c, 4);
    c->at += 8 * (uint64_t)dims + 4 + 8;
}

static void put(FILE *f, const void *data, size_t bytes) { assert_int_equal(fwrite(data, 1, bytes, f), bytes); }
static void put_u64(FILE *f, uint64_t v) { put(f, &v, 8); }
static void put_u32(FILE *f, uint32_t v) { put(f, &v, 4); }
static void put_text(FILE *f, const char *text) {
    put_u64(f, strlen(text));
    put(f, text, strlen(text));
}

static const char template_key[] = "tokenizer.chat_template", bos_key[] = "tokenizer.ggml.add_bos_token";

static bool is_key(const uint8_t *pair, const char *key) {
    uint64_t len;
    memcpy(&len, pair, 8);
    return len == strlen(key) && memcmp(pair + 8, key, len) == 0;
}

static uint8_t *read_all(const char *path, size_t *bytes) {
    FILE *f = fopen(path, "rb");
    assert_non_null(f);
    assert_int_equal(fseek(f, 0, SEEK_END), 0);
    *bytes = (size_t)ftell(f);
    rewind(f);
    uint8_t *data = malloc(*bytes);
    assert_non_null(data);
    assert_int_equal(fread(data, 1, *bytes, f), *bytes);
    fclose(f);
    return data;
}

void gguf_edit(const char *in, const char *out, const char *template, int add_bos) {
    size_t bytes;
    uint8_t *file = read_all(in, &bytes);
    cursor c = {file + 4};
    uint32_t version = (uint32_t)take(&c, 4);
    uint64_t tensors = take(&c, 8), pairs = take(&c, 8), kept = 0;
    FILE *f = fopen(out, "wb");
    assert_non_null(f);
    put(f, "GGUF", 4);
    put_u32(f, version);
    put_u64(f, tensors);
    put_u64(f, 0); /* pairs: below */
    for (uint64_t i = 0; i < pairs; i++) {
        const uint8_t *start = c.at;
        uint64_t key = take(&c, 8);
        c.at += key;
        uint32_t type = (uint32_t)take(&c, 4);
        skip_value(&c, type);
        if (is_key(start, template_key) || is_key(start, bos_key)) continue;
        put(f, start, (size_t)(c.at - start));
        kept++;
    }
    if (template) {
        put_text(f, template_key);
        put_u32(f, STRING);
        put_text(f, template);
        kept++;
    }
    if (add_bos >= 0) {
        put_text(f, bos_key);
        put_u32(f, BOOL);
        put(f, add_bos ? "\1" : "\0", 1);
        kept++;
    }
    const uint8_t *infos = c.at;
    for (uint64_t i = 0; i < tensors; i++) skip_tensor(&c);
    put(f, infos, (size_t)(c.at - infos));
    while (ftell(f) % ALIGN) put(f, "", 1);
    size_t data = ((size_t)(c.at - file) + ALIGN - 1) / ALIGN * ALIGN;
    put(f, file + data, bytes - data);
    assert_int_equal(fseek(f, 16, SEEK_SET), 0);
    put_u64(f, kept);
    assert_int_equal(fclose(f), 0);
    free(file);
}
