/* control.c - a sorted list of the special texts, narrowed byte by byte. */
#include "control.h"
#include <stdlib.h>

typedef struct {
    kvf_span bytes;
    uint32_t id;
} entry;

static int compare_entries(const void *a, const void *b) {
    const entry *x = a, *y = b;
    int order = memcmp(x->bytes.data, y->bytes.data, KVF_MIN(x->bytes.len_bytes, y->bytes.len_bytes));
    if (order != 0) return order;
    return (x->bytes.len_bytes > y->bytes.len_bytes) - (x->bytes.len_bytes < y->bytes.len_bytes);
}

static bool is_special(const kvf_vocab *v, uint32_t id) {
    return v->types[id] == KVF_TOKEN_CONTROL || v->types[id] == KVF_TOKEN_USER_DEFINED;
}

kvf_status kvf_controls_init(kvf_controls *c, const kvf_gguf *g, const kvf_vocab *v, kvf_error *err) {
    *c = (kvf_controls){0};
    uint32_t count = 0;
    for (uint32_t id = 0; id < v->count; id++) {
        if (!is_special(v, id)) continue;
        count++;
        if (kvf_vocab_bytes(v, id).len_bytes > KVF_CONTROL_BYTES_MAX)
            return kvf_fail(err, KVF_ERR_FORMAT,
                "%.200s: tokenizer.ggml.tokens[%u] is a control token of %zu bytes, more than %u", kvf_gguf_path(g), id,
                kvf_vocab_bytes(v, id).len_bytes, KVF_CONTROL_BYTES_MAX);
    }
    entry *entries = malloc(((size_t)count + 1) * sizeof *entries);
    c->ids = malloc(((size_t)count + 1) * sizeof *c->ids);
    if (!entries || !c->ids) {
        free(entries);
        kvf_controls_fini(c);
        return kvf_fail(err, KVF_ERR_NO_MEMORY, "no memory for %u control tokens", count);
    }
    for (uint32_t id = 0; id < v->count; id++)
        if (is_special(v, id)) entries[c->count++] = (entry){kvf_vocab_bytes(v, id), id};
    qsort(entries, c->count, sizeof *entries, compare_entries);
    for (uint32_t i = 0; i < c->count; i++) {
        c->ids[i] = entries[i].id;
        c->first[*(const uint8_t *)entries[i].bytes.data] = true;
    }
    free(entries);
    return KVF_OK;
}

void kvf_controls_fini(kvf_controls *c) {
    free(c->ids);
    *c = (kvf_controls){0};
}

/* First of [low, high) whose byte at `depth` is >= byte; all of them are longer than depth and equal before it. */
static uint32_t lower_bound(
    const kvf_controls *c, const kvf_vocab *v, uint32_t low, uint32_t high, size_t depth, uint32_t byte) {
    while (low < high) {
        uint32_t middle = low + (high - low) / 2;
        if (((const uint8_t *)kvf_vocab_bytes(v, c->ids[middle]).data)[depth] < byte)
            low = middle + 1;
        else
            high = middle;
    }
    return low;
}

uint32_t kvf_controls_match(
    const kvf_controls *c, const kvf_vocab *v, const uint8_t *text, const uint8_t *trusted, size_t len_bytes) {
    uint32_t best = KVF_VOCAB_NONE, low = 0, high = c->count;
    if (len_bytes == 0 || !c->first[text[0]]) return best;
    for (size_t depth = 0; low < high; depth++) {
        /* Sorted order puts the one that ends here before those that go on; no two are equal. */
        if (kvf_vocab_bytes(v, c->ids[low]).len_bytes == depth) best = c->ids[low++];
        if (depth == len_bytes || !trusted[depth]) break;
        low = lower_bound(c, v, low, high, depth, text[depth]);
        high = lower_bound(c, v, low, high, depth, text[depth] + 1u);
    }
    return best;
}
