/* kvf/utf8.h - bytes that may or may not be UTF-8 (well-formed: Unicode 15, table 3-7). */
#ifndef KVF_UTF8_H
#define KVF_UTF8_H
#include "kvf/base.h"
#ifdef __cplusplus
extern "C" {
#endif

typedef enum {
    KVF_UTF8_WHOLE, /* one well-formed character */
    KVF_UTF8_CUT, /* all bytes given are the beginning of a character */
    KVF_UTF8_BAD, /* a maximal ill-formed subpart: what one U+FFFD stands for */
} kvf_utf8_kind;

typedef struct {
    kvf_utf8_kind kind;
    uint32_t len_bytes; /* 1..4, bytes this step covers */
    uint32_t code_point; /* WHOLE only, else U+FFFD */
} kvf_utf8_step;

/* count_bytes >= 1. */
kvf_utf8_step kvf_utf8_step_at(const uint8_t *bytes, size_t count_bytes);

/* bad_at (may be NULL): where the first ill-formed sequence begins. */
bool kvf_utf8_valid(const void *text, size_t len_bytes, size_t *bad_at);
#ifdef __cplusplus
}
#endif
#endif
