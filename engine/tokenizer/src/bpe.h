/* bpe.h - the merge list, and merging one piece of text with it. Private to the tokenizer.
 *
 * The rule: among all neighbours that have a merge, merge the one whose merge stands first in the list, the leftmost of
 * equals; again until there is none. A heap over (rank, position) does it in n log n; entries that merging has made
 * untrue are dropped when they come up. */
#ifndef KVF_TOKENIZER_BPE_H
#define KVF_TOKENIZER_BPE_H
#include "vocab.h"

typedef struct {
    uint32_t left, right, merged;
} kvf_merge;

typedef struct {
    uint32_t count; /* the index of a merge is its rank */
    kvf_merge *items;
    uint32_t *slots; /* open addressing over (left, right) -> rank; KVF_VOCAB_NONE is free */
    uint32_t slots_mask;
} kvf_merges;

/* g and v are not needed afterwards. On failure m is empty. */
kvf_status kvf_merges_init(kvf_merges *m, const kvf_gguf *g, const kvf_vocab *v, kvf_error *err);
void kvf_merges_fini(kvf_merges *m);
uint32_t kvf_merges_rank(const kvf_merges *m, uint32_t left, uint32_t right); /* KVF_VOCAB_NONE: they do not merge */

typedef struct {
    uint64_t lookups; /* pairs looked up */
    uint64_t compares; /* of heap entries */
} kvf_bpe_work;

/* Memory of one encoding, grown to the longest piece. Start zeroed. */
typedef struct {
    size_t capacity; /* symbols */
    uint32_t *ids, *previous, *next; /* symbols as a doubly linked list over positions */
    uint64_t *heap; /* rank << 32 | position; 2 * capacity entries */
    size_t heap_count;
    kvf_bpe_work work;
} kvf_bpe;

void kvf_bpe_fini(kvf_bpe *b);
kvf_status kvf_bpe_reserve(kvf_bpe *b, size_t symbols);
/* Merges b->ids[0..count) in place and returns how many are left. Reserved before. */
size_t kvf_bpe_merge(kvf_bpe *b, const kvf_merges *m, size_t count);
#endif
