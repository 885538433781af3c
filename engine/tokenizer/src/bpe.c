/* bpe.c - loads and checks tokenizer.ggml.merges; merges pieces. */
#include "bpe.h"
#include <stdlib.h>

static uint32_t pair_slot(const kvf_merges *m, uint32_t left, uint32_t right) {
    uint64_t mixed = ((uint64_t)left << 32 | right) * 0x9E3779B97F4A7C15ull;
    uint32_t slot = (uint32_t)(mixed >> 32) & m->slots_mask;
    for (;; slot = (slot + 1) & m->slots_mask) {
        uint32_t rank = m->slots[slot];
        if (rank == KVF_VOCAB_NONE || (m->items[rank].left == left && m->items[rank].right == right)) return slot;
    }
}

uint32_t kvf_merges_rank(const kvf_merges *m, uint32_t left, uint32_t right) {
    return m->slots[pair_slot(m, left, right)];
}

void kvf_merges_fini(kvf_merges *m) {
    free(m->items);
    free(m->slots);
    *m = (kvf_merges){0};
}

/* Reads one "left right". joined: room for twice the longest token. */
static const char *parse_merge(const kvf_vocab *v, kvf_span text, uint8_t *joined, kvf_merge *out) {
    const uint8_t *bytes = text.data;
    const uint8_t *space = text.len_bytes > 0 ? memchr(bytes, ' ', text.len_bytes) : NULL;
    if (!space) return "is not two tokens and a space";
    size_t left_text = (size_t)(space - bytes), right_text = text.len_bytes - left_text - 1;
    if (left_text == 0 || right_text == 0 || memchr(space + 1, ' ', right_text)) return "is not two tokens and a space";
    static const char makes_unknown[] = "makes a token that is not among the ordinary ones of tokenizer.ggml.tokens";
    /* A letter takes at most two bytes, so anything longer makes no token and need not be read. */
    size_t left_bytes, right_bytes;
    if (left_text + right_text > 2 * (size_t)v->longest_bytes) return makes_unknown;
    if (!kvf_vocab_unletter(bytes, left_text, joined, &left_bytes) ||
        !kvf_vocab_unletter(space + 1, right_text, joined + left_bytes, &right_bytes))
        return "has a character that stands for no byte";
    out->left = kvf_vocab_find(v, false, joined, left_bytes);
    out->right = kvf_vocab_find(v, false, joined + left_bytes, right_bytes);
    out->merged = kvf_vocab_find(v, false, joined, left_bytes + right_bytes);
    return out->merged == KVF_VOCAB_NONE ? makes_unknown : NULL;
}

/* A merge with a part that is no token can never happen: every merge of the list makes a token, so the part never
 * arises. Files have such leftovers of training; they are kept out of the table. */
static bool is_reachable(const kvf_merge *merge) {
    return merge->left != KVF_VOCAB_NONE && merge->right != KVF_VOCAB_NONE;
}

static kvf_status load_merges(kvf_merges *m, const kvf_gguf *g, const kvf_gguf_array *array, const kvf_vocab *v,
    uint8_t *joined, kvf_error *err) {
    char quoted[KVF_QUOTE_MAX];
    for (uint32_t rank = 0; rank < m->count; rank++) {
        kvf_span text;
        kvf_merge *merge = &m->items[rank];
        if (!kvf_gguf_array_string(array, rank, &text))
            return kvf_fail(
                err, KVF_ERR_FORMAT, "%.200s: tokenizer.ggml.merges is no list of strings", kvf_gguf_path(g));
        const char *wrong = parse_merge(v, text, joined, merge);
        if (!wrong && !is_reachable(merge)) continue;
        uint32_t slot = wrong ? 0 : pair_slot(m, merge->left, merge->right);
        /* Readers of these files differ on whether the first or the last of two counts. */
        if (!wrong && m->slots[slot] != KVF_VOCAB_NONE) wrong = "stands in the list twice";
        if (wrong)
            return kvf_fail(err, KVF_ERR_FORMAT, "%.200s: tokenizer.ggml.merges[%u] \"%s\" %s", kvf_gguf_path(g), rank,
                kvf_vocab_quote(text, quoted), wrong);
        m->slots[slot] = rank;
    }
    return KVF_OK;
}

kvf_status kvf_merges_init(kvf_merges *m, const kvf_gguf *g, const kvf_vocab *v, kvf_error *err) {
    kvf_gguf_array array;
    *m = (kvf_merges){0};
    if (!kvf_gguf_get_array(g, "tokenizer.ggml.merges", &array))
        return kvf_fail(err, KVF_ERR_FORMAT, "%.200s: tokenizer.ggml.merges is missing or no list", kvf_gguf_path(g));
    if (array.count > KVF_VOCAB_TOKENS_MAX)
        return kvf_fail(err, KVF_ERR_FORMAT, "%.200s: tokenizer.ggml.merges has %llu entries, more than %u",
            kvf_gguf_path(g), (unsigned long long)array.count, KVF_VOCAB_TOKENS_MAX);
    m->count = (uint32_t)array.count;
    uint32_t slots = 2;
    while (slots < 2 * m->count) slots *= 2;
    m->slots_mask = slots - 1;
    m->items = calloc((size_t)m->count + 1, sizeof *m->items);
    m->slots = malloc((size_t)slots * sizeof *m->slots);
    uint8_t *joined = malloc(2 * (size_t)v->longest_bytes);
    kvf_status status;
    if (m->items && m->slots && joined) {
        memset(m->slots, 0xFF, (size_t)slots * sizeof *m->slots);
        status = load_merges(m, g, &array, v, joined, err);
    } else {
        status = kvf_fail(err, KVF_ERR_NO_MEMORY, "no memory for %u merges", m->count);
    }
    free(joined);
    if (status != KVF_OK) kvf_merges_fini(m);
    return status;
}

void kvf_bpe_fini(kvf_bpe *b) {
    free(b->ids);
    free(b->previous);
    free(b->next);
    free(b->heap);
    *b = (kvf_bpe){0};
}

kvf_status kvf_bpe_reserve(kvf_bpe *b, size_t symbols) {
    if (symbols <= b->capacity) return KVF_OK;
    if (symbols >= UINT32_MAX / 2) return KVF_ERR_LIMIT;
    size_t capacity = KVF_MAX(symbols, KVF_MIN(2 * b->capacity, (size_t)UINT32_MAX / 2));
    capacity = KVF_MAX(capacity, (size_t)64);
    kvf_bpe_work work = b->work;
    kvf_bpe_fini(b); /* nothing of the piece before is needed */
    b->work = work;
    b->ids = malloc(capacity * sizeof *b->ids);
    b->previous = malloc(capacity * sizeof *b->previous);
    b->next = malloc(capacity * sizeof *b->next);
    b->heap = malloc(2 * capacity * sizeof *b->heap);
    if (!b->ids || !b->previous || !b->next || !b->heap) return KVF_ERR_NO_MEMORY;
    b->capacity = capacity;
    return KVF_OK;
}

static void heap_push(kvf_bpe *b, uint64_t entry) {
    KVF_ASSERT(b->heap_count < 2 * b->capacity);
    size_t at = b->heap_count++;
    for (; at > 0; at = (at - 1) / 2) {
        b->work.compares++;
        if (b->heap[(at - 1) / 2] <= entry) break;
        b->heap[at] = b->heap[(at - 1) / 2];
    }
    b->heap[at] = entry;
}

static uint64_t heap_pop(kvf_bpe *b) {
    KVF_ASSERT(b->heap_count > 0);
    uint64_t top = b->heap[0], last = b->heap[--b->heap_count];
    size_t at = 0;
    for (size_t child = 1; child < b->heap_count; child = 2 * at + 1) {
        b->work.compares += 2;
        if (child + 1 < b->heap_count && b->heap[child + 1] < b->heap[child]) child++;
        if (b->heap[child] >= last) break;
        b->heap[at] = b->heap[child];
        at = child;
    }
    b->heap[at] = last;
    return top;
}

static void offer(kvf_bpe *b, const kvf_merges *m, uint32_t at, uint32_t next) {
    b->work.lookups++;
    uint32_t rank = kvf_merges_rank(m, b->ids[at], b->ids[next]);
    if (rank != KVF_VOCAB_NONE) heap_push(b, (uint64_t)rank << 32 | at);
}

size_t kvf_bpe_merge(kvf_bpe *b, const kvf_merges *m, size_t count) {
    KVF_ASSERT(count <= b->capacity);
    if (count < 2) return count;
    const uint32_t end = (uint32_t)count;
    b->heap_count = 0;
    for (uint32_t i = 0; i < end; i++) {
        b->previous[i] = i - 1;
        b->next[i] = i + 1;
    }
    for (uint32_t i = 0; i + 1 < end; i++) offer(b, m, i, i + 1);
    while (b->heap_count > 0) {
        uint64_t entry = heap_pop(b);
        const kvf_merge *merge = &m->items[entry >> 32];
        uint32_t at = (uint32_t)entry, next = b->next[at];
        /* A symbol only ever grows or goes, so equal ids mean that the entry is still true. */
        if (b->ids[at] != merge->left || next == end || b->ids[next] != merge->right) continue;
        b->ids[at] = merge->merged;
        b->ids[next] = KVF_VOCAB_NONE;
        b->next[at] = b->next[next];
        if (b->next[at] != end) b->previous[b->next[at]] = at;
        if (at != 0) offer(b, m, b->previous[at], at);
        if (b->next[at] != end) offer(b, m, at, b->next[at]);
    }
    size_t left = 0;
    for (uint32_t at = 0; at != end; at = b->next[at]) b->ids[left++] = b->ids[at];
    return left;
}
