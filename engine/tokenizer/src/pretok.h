/* pretok.h - where a text is cut before merging: hand-written equals of the regular expressions that each model family
 * publishes (README.md has them). Private to the tokenizer.
 *
 * Invariants: every call moves forward; the cuts of a text depend on the text alone; over a whole text each character
 * is looked at a bounded number of times, so runs of any length cost linear time and no stack. */
#ifndef KVF_TOKENIZER_PRETOK_H
#define KVF_TOKENIZER_PRETOK_H
#include "kvf/base.h"

typedef enum { KVF_PRETOK_GPT2, KVF_PRETOK_SMOLLM, KVF_PRETOK_LLAMA3, KVF_PRETOK_QWEN2 } kvf_pretok_family;

/* Family of a tokenizer.ggml.pre name (borrowed) or one of its aliases. false: unknown. */
bool kvf_pretok_find(const char *name, size_t len_bytes, kvf_pretok_family *out);
const char *kvf_pretok_name(kvf_pretok_family family);

/* What the expressions can tell apart: \p{L}, \p{N}, White_Space and the rest. */
typedef enum { KVF_CHAR_OTHER, KVF_CHAR_LETTER, KVF_CHAR_NUMBER, KVF_CHAR_SPACE, KVF_CHAR_END } kvf_char_class;
#define KVF_CHAR_TABLE_SIZE 65536u
void kvf_char_table_fill(uint8_t table[KVF_CHAR_TABLE_SIZE]);

typedef struct {
    kvf_pretok_family family;
    const uint8_t *table; /* filled by kvf_char_table_fill; kept */
    const uint8_t *text; /* kept; bytes that are not UTF-8 count as U+FFFD, one per maximal ill-formed subpart */
    size_t len_bytes;
    uint64_t steps; /* characters looked at so far */
} kvf_pretok;

/* End of the piece that begins at `at` (< len_bytes). */
size_t kvf_pretok_next(kvf_pretok *p, size_t at);
#endif
