#include "support.h"
#include "kvf/utf8.h"

void buffer_put(buffer *b, const void *bytes, size_t len_bytes) {
    if (b->len_bytes + len_bytes > b->capacity) {
        b->capacity = 2 * (b->len_bytes + len_bytes) + 64;
        b->bytes = realloc(b->bytes, b->capacity);
        assert_non_null(b->bytes);
    }
    if (len_bytes > 0) memcpy(b->bytes + b->len_bytes, bytes, len_bytes);
    b->len_bytes += len_bytes;
}

size_t put_utf8(uint8_t *out, uint32_t cp) {
    if (cp < 0x80) return out[0] = (uint8_t)cp, 1;
    if (cp < 0x800) return out[0] = (uint8_t)(0xC0 | cp >> 6), out[1] = (uint8_t)(0x80 | (cp & 63)), 2;
    if (cp < 0x10000) {
        out[0] = (uint8_t)(0xE0 | cp >> 12);
        out[1] = (uint8_t)(0x80 | (cp >> 6 & 63));
        out[2] = (uint8_t)(0x80 | (cp & 63));
        return 3;
    }
    out[0] = (uint8_t)(0xF0 | cp >> 18);
    out[1] = (uint8_t)(0x80 | (cp >> 12 & 63));
    out[2] = (uint8_t)(0x80 | (cp >> 6 & 63));
    out[3] = (uint8_t)(0x80 | (cp & 63));
    return 4;
}

uint32_t random_code_point(kvf_rng *r) {
    static const uint32_t below[] = {0x80, 0x80, 0x80, 0x800, 0x10000, 0x110000};
    uint32_t cp;
    do cp = (uint32_t)kvf_rng_below(r, below[kvf_rng_below(r, KVF_COUNT_OF(below))]);
    while (cp >= 0xD800 && cp < 0xE000);
    return cp;
}

buffer random_text(kvf_rng *r, size_t characters) {
    buffer b = {0};
    for (size_t i = 0; i < characters; i++) {
        uint8_t bytes[4];
        buffer_put(&b, bytes, put_utf8(bytes, random_code_point(r)));
    }
    return b;
}

buffer random_bytes(kvf_rng *r, size_t count) {
    buffer b = {0};
    for (size_t i = 0; i < count; i++) {
        /* Half of them from the bytes that make and break UTF-8. */
        uint8_t byte = (uint8_t)kvf_rng_next(r);
        static const uint8_t edges[] = {0xE0, 0xA0, 0x80, 0xED, 0x9F, 0xBF, 0xF0, 0x90, 0xF4, 0x8F, 0xC2, 0xC0, 0xF5};
        if (kvf_rng_below(r, 2)) byte = edges[kvf_rng_below(r, KVF_COUNT_OF(edges))];
        buffer_put(&b, &byte, 1);
    }
    return b;
}

/* --- vocabularies --- */

static char *copy_text(const char *text) {
    char *copy = malloc(strlen(text) + 1);
    assert_non_null(copy);
    return strcpy(copy, text);
}

uint32_t spec_token(spec *s, const char *text, int32_t type) {
    size_t n = s->tokens_count;
    s->tokens = realloc(s->tokens, (n + 1) * sizeof *s->tokens);
    s->types = realloc(s->types, (n + 1) * sizeof *s->types);
    assert_true(s->tokens && s->types);
    s->tokens[n] = copy_text(text);
    s->types[n] = type;
    s->types_count = s->tokens_count = n + 1;
    return (uint32_t)n;
}

void spec_merge(spec *s, const char *merge) {
    s->merges = realloc(s->merges, (s->merges_count + 1) * sizeof *s->merges);
    assert_non_null(s->merges);
    s->merges[s->merges_count++] = copy_text(merge);
    char joined[512];
    const char *space = strchr(merge, ' ');
    snprintf(joined, sizeof joined, "%.*s%s", (int)(space - merge), merge, space + 1);
    for (size_t i = 0; i < s->tokens_count; i++)
        if (strcmp(s->tokens[i], joined) == 0) return;
    spec_token(s, joined, KVF_TOKEN_NORMAL);
}

void spec_doubling(spec *s, const char *letter, int depth) {
    char run[256] = "", merge[512];
    strcpy(run, letter);
    for (int i = 0; i < depth; i++) {
        snprintf(merge, sizeof merge, "%s %s", run, run);
        spec_merge(s, merge);
        memmove(run + strlen(run), run, strlen(run) + 1);
    }
}

void spec_init(spec *s, const char *pre) {
    *s = (spec){.model = "gpt2", .pre = pre, .bos = -1, .eos = -1, .eot = -1, .add_bos = -1};
    uint32_t next = 256;
    for (uint32_t byte = 0; byte < 256; byte++) {
        bool own = (byte >= '!' && byte <= '~') || (byte >= 0xA1 && byte <= 0xAC) || byte >= 0xAE;
        uint8_t text[5] = {0};
        put_utf8(text, own ? byte : next++);
        spec_token(s, (const char *)text, KVF_TOKEN_NORMAL);
    }
}

void spec_fini(spec *s) {
    for (size_t i = 0; i < s->tokens_count; i++) free(s->tokens[i]);
    for (size_t i = 0; i < s->merges_count; i++) free(s->merges[i]);
    free(s->tokens);
    free(s->types);
    free(s->merges);
}

enum { GGUF_U32 = 4, GGUF_I32 = 5, GGUF_BOOL = 7, GGUF_STRING = 8, GGUF_ARRAY = 9 };

static void put_u32(buffer *b, uint32_t v) {
    uint8_t bytes[4];
    kvf_put_le32(bytes, v);
    buffer_put(b, bytes, 4);
}

static void put_u64(buffer *b, uint64_t v) {
    uint8_t bytes[8];
    kvf_put_le64(bytes, v);
    buffer_put(b, bytes, 8);
}

static void put_string(buffer *b, const char *text) {
    put_u64(b, strlen(text));
    buffer_put(b, text, strlen(text));
}

static void put_key(buffer *b, uint64_t *keys, const char *key, uint32_t type) {
    put_string(b, key);
    put_u32(b, type);
    ++*keys;
}

static void put_strings(buffer *b, uint64_t *keys, const char *key, char **texts, size_t count, bool as_numbers) {
    put_key(b, keys, key, GGUF_ARRAY);
    put_u32(b, as_numbers ? GGUF_I32 : GGUF_STRING);
    put_u64(b, count);
    for (size_t i = 0; i < count; i++) {
        if (as_numbers)
            put_u32(b, (uint32_t)i);
        else
            put_string(b, texts[i]);
    }
}

static void put_id(buffer *b, uint64_t *keys, const char *key, int64_t id) {
    if (id < 0) return;
    put_key(b, keys, key, GGUF_U32);
    put_u32(b, (uint32_t)id);
}

static buffer spec_write(const spec *s) {
    buffer body = {0}, file = {0};
    uint64_t keys = 0;
    if (s->model) put_key(&body, &keys, "tokenizer.ggml.model", GGUF_STRING), put_string(&body, s->model);
    if (s->pre) put_key(&body, &keys, "tokenizer.ggml.pre", GGUF_STRING), put_string(&body, s->pre);
    if (!s->no_tokens)
        put_strings(&body, &keys, "tokenizer.ggml.tokens", s->tokens, s->tokens_count, s->tokens_are_numbers);
    if (!s->no_types) {
        put_key(&body, &keys, "tokenizer.ggml.token_type", GGUF_ARRAY);
        put_u32(&body, s->types_are_strings ? GGUF_STRING : GGUF_I32);
        put_u64(&body, s->types_count);
        for (size_t i = 0; i < s->types_count; i++) {
            if (s->types_are_strings)
                put_string(&body, "1");
            else
                put_u32(&body, (uint32_t)s->types[i]);
        }
    }
    if (!s->no_merges)
        put_strings(&body, &keys, "tokenizer.ggml.merges", s->merges, s->merges_count, s->merges_are_numbers);
    put_id(&body, &keys, "tokenizer.ggml.bos_token_id", s->bos);
    put_id(&body, &keys, "tokenizer.ggml.eos_token_id", s->eos);
    put_id(&body, &keys, "tokenizer.ggml.eot_token_id", s->eot);
    if (s->add_bos == 2) put_key(&body, &keys, "tokenizer.ggml.add_bos_token", GGUF_STRING), put_string(&body, "yes");
    if (s->add_bos == 0 || s->add_bos == 1) {
        uint8_t flag = (uint8_t)s->add_bos;
        put_key(&body, &keys, "tokenizer.ggml.add_bos_token", GGUF_BOOL);
        buffer_put(&body, &flag, 1);
    }
    buffer_put(&file, "GGUF", 4);
    put_u32(&file, 3);
    put_u64(&file, 0);
    put_u64(&file, keys);
    buffer_put(&file, body.bytes, body.len_bytes);
    while (file.len_bytes % 32) buffer_put(&file, "", 1);
    free(body.bytes);
    return file;
}

kvf_status load_spec(loaded *l, const spec *s) {
    *l = (loaded){.file = spec_write(s)};
    kvf_status opened = kvf_gguf_open_memory(l->file.bytes, l->file.len_bytes, "made.gguf", &l->gguf, &l->error);
    if (opened != KVF_OK) fail_msg("the file does not open: %s", l->error.message);
    return kvf_tokenizer_create(l->gguf, &l->tokenizer, &l->error);
}

kvf_status load_file(loaded *l, const char *path) {
    *l = (loaded){0};
    kvf_status status = kvf_gguf_open(path, &l->gguf, &l->error);
    return status != KVF_OK ? status : kvf_tokenizer_create(l->gguf, &l->tokenizer, &l->error);
}

void unload(loaded *l) {
    kvf_tokenizer_destroy(l->tokenizer);
    if (l->gguf) kvf_gguf_close(l->gguf);
    free(l->file.bytes);
    *l = (loaded){0};
}

/* --- encoding and decoding --- */

encoded encode(const kvf_tokenizer *t, const void *text, size_t len_bytes, const uint8_t *trusted) {
    encoded e = {0};
    kvf_status status = kvf_tokenizer_encode_counted(t, text, len_bytes, trusted, SIZE_MAX, &e.ids, &e.count, &e.work);
    assert_int_equal(status, KVF_OK);
    return e;
}

buffer pieces_of(const kvf_tokenizer *t, const uint32_t *ids, size_t count) {
    buffer b = {0};
    for (size_t i = 0; i < count; i++) {
        kvf_span bytes;
        assert_true(kvf_tokenizer_piece(t, ids[i], &bytes));
        buffer_put(&b, bytes.data, bytes.len_bytes);
    }
    return b;
}

void check_round_trip(const kvf_tokenizer *t, const void *text, size_t len_bytes) {
    encoded e = encode(t, text, len_bytes, NULL);
    buffer back = pieces_of(t, e.ids, e.count);
    assert_int_equal(back.len_bytes, len_bytes);
    if (len_bytes > 0) assert_memory_equal(back.bytes, text, len_bytes);
    for (size_t i = 0; i < e.count; i++) assert_int_equal(t->vocab.types[e.ids[i]], KVF_TOKEN_NORMAL);
    free(e.ids);
    free(back.bytes);
}

static size_t naive_merge(const kvf_tokenizer *t, uint32_t *ids, size_t count) {
    for (;;) {
        uint32_t best = KVF_TOKEN_NONE;
        size_t at = 0;
        for (size_t i = 0; i + 1 < count; i++) {
            uint32_t rank = kvf_merges_rank(&t->merges, ids[i], ids[i + 1]);
            if (rank < best) best = rank, at = i;
        }
        if (best == KVF_TOKEN_NONE) return count;
        ids[at] = t->merges.items[best].merged;
        memmove(ids + at + 1, ids + at + 2, (count - at - 2) * sizeof *ids);
        count--;
    }
}

encoded naive_encode(const kvf_tokenizer *t, const void *text, size_t len_bytes) {
    encoded e = {.ids = malloc((len_bytes + 1) * sizeof *e.ids)};
    const uint8_t *bytes = text;
    kvf_pretok p = {.family = t->family, .table = t->char_table, .text = bytes, .len_bytes = len_bytes};
    for (size_t at = 0; at < len_bytes;) {
        size_t end = kvf_pretok_next(&p, at), count = 0;
        uint32_t whole = t->whole_pieces ? kvf_vocab_find(&t->vocab, false, bytes + at, end - at) : KVF_TOKEN_NONE;
        if (whole != KVF_TOKEN_NONE)
            e.ids[e.count + count++] = whole;
        else
            for (size_t i = at; i < end; i++)
                if (t->byte_ids[bytes[i]] != KVF_TOKEN_NONE) e.ids[e.count + count++] = t->byte_ids[bytes[i]];
        e.count += naive_merge(t, e.ids + e.count, count);
        at = end;
    }
    return e;
}

/* Well-formed by decoding, and by writing the value again in the shortest form. */
static bool is_character(const uint8_t *bytes, size_t n) {
    static const uint8_t mask[5] = {0, 0x7F, 0x1F, 0x0F, 0x07};
    uint32_t cp = bytes[0] & mask[n];
    for (size_t i = 1; i < n; i++) cp = cp << 6 | (bytes[i] & 63);
    uint8_t again[4];
    return cp < 0x110000 && !(cp >= 0xD800 && cp < 0xE000) && put_utf8(again, cp) == n && memcmp(again, bytes, n) == 0;
}

/* Can these bytes be the beginning of a character of n bytes? */
static bool can_become(const uint8_t *bytes, size_t have, size_t n) {
    static const uint8_t tails[] = {0x80, 0x8F, 0x90, 0x9F, 0xA0, 0xBF};
    uint8_t whole[4];
    memcpy(whole, bytes, have);
    if (have == n) return is_character(whole, n);
    for (size_t i = 0; i < KVF_COUNT_OF(tails); i++) {
        whole[have] = tails[i];
        if (can_become(whole, have + 1, n)) return true;
    }
    return false;
}

buffer replace_naive(const uint8_t *bytes, size_t len_bytes) {
    buffer out = {0};
    for (size_t at = 0; at < len_bytes;) {
        size_t whole = 0, subpart = 1;
        for (size_t n = 1; n <= 4 && at + n <= len_bytes && !whole; n++)
            if (is_character(bytes + at, n)) whole = n;
        for (size_t have = 1; have < 4 && at + have <= len_bytes && !whole; have++)
            for (size_t n = have + 1; n <= 4; n++)
                if (can_become(bytes + at, have, n)) subpart = have;
        if (whole)
            buffer_put(&out, bytes + at, whole);
        else
            buffer_put(&out, "\xEF\xBF\xBD", 3);
        at += whole ? whole : subpart;
    }
    return out;
}

buffer stream(const kvf_tokenizer *t, const uint32_t *ids, size_t count, bool specials_in_text) {
    buffer joined = {0};
    kvf_detok d;
    kvf_detok_init(&d, t, specials_in_text);
    for (size_t i = 0; i <= count; i++) {
        size_t bound = i < count ? kvf_detok_bound(&d, ids[i]) : 12;
        char *delta = malloc(bound); /* exact, so that the address sanitizer sees a byte too many */
        size_t written = i < count ? kvf_detok_push(&d, ids[i], delta) : kvf_detok_finish(&d, delta);
        assert_true(written <= bound);
        assert_true(kvf_utf8_valid(delta, written, NULL));
        buffer_put(&joined, delta, written);
        free(delta);
    }
    return joined;
}
