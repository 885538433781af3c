/* Which field differs decides what an operator does next, so the first difference is named rather than a hash compared.
 */
#include "kvf/msg.h"
#include <inttypes.h>
#include <stdio.h>

static const char *u32_differs(const char *name, uint32_t a, uint32_t b, char a_text[64], char b_text[64]) {
    if (a == b) return NULL;
    snprintf(a_text, 64, "%" PRIu32, a);
    snprintf(b_text, 64, "%" PRIu32, b);
    return name;
}

static const char *hash_differs(
    const char *name, const uint64_t a[2], const uint64_t b[2], char a_text[64], char b_text[64]) {
    if (a[0] == b[0] && a[1] == b[1]) return NULL;
    snprintf(a_text, 64, "%016" PRIx64 "%016" PRIx64, a[1], a[0]);
    snprintf(b_text, 64, "%016" PRIx64 "%016" PRIx64, b[1], b[0]);
    return name;
}

static const char *text_differs(const char *name, const char *a, const char *b, char a_text[64], char b_text[64]) {
    if (strcmp(a, b) == 0) return NULL;
    snprintf(a_text, 64, "%s", a);
    snprintf(b_text, 64, "%s", b);
    return name;
}

const char *kvf_identity_differs(const kvf_identity *a, const kvf_identity *b, char a_text[64], char b_text[64]) {
    const char *name;
#define U32(field)                                                                                                     \
    if ((name = u32_differs(#field, a->field, b->field, a_text, b_text))) return name
    U32(wire_version);
    if ((name = hash_differs("weights_hash", a->weights_hash, b->weights_hash, a_text, b_text))) return name;
    if ((name = hash_differs("tokenizer_hash", a->tokenizer_hash, b->tokenizer_hash, a_text, b_text))) return name;
    U32(block_tokens);
    if ((name = text_differs("kv_type", a->kv_type, b->kv_type, a_text, b_text))) return name;
    U32(layout);
    U32(layers);
    U32(heads);
    U32(kv_heads);
    U32(head_dim);
    U32(vocab);
    U32(rope_dims);
    U32(rope_base_bits);
    U32(rope_style);
    U32(page_bytes);
    U32(context_max);
#undef U32
    return text_differs("numerics", a->numerics, b->numerics, a_text, b_text);
}
