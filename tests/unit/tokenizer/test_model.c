/* Made vocabularies and the tiny models: refusals, control tokens, round trips, work, failing allocations. */
#include <pthread.h>
#include "support.h"

/* --- refusals --- */

typedef void (*spoil_fn)(spec *s);

static void spoil_model(spec *s) { s->model = "llama"; }
static void spoil_no_model(spec *s) { s->model = NULL; }
static void spoil_pre(spec *s) { s->pre = "tekken"; }
static void spoil_no_pre(spec *s) { s->pre = NULL; }
static void spoil_no_tokens(spec *s) { s->no_tokens = true; }
static void spoil_token_numbers(spec *s) { s->tokens_are_numbers = true; }
static void spoil_all_tokens(spec *s) {
    for (size_t i = 0; i < s->tokens_count; i++) free(s->tokens[i]);
    s->tokens_count = s->types_count = 0;
}
static void spoil_empty_token(spec *s) { spec_token(s, "", KVF_TOKEN_NORMAL); }
static void spoil_empty_control(spec *s) { spec_token(s, "", KVF_TOKEN_CONTROL); }
static void spoil_double_token(spec *s) { spec_token(s, "a", KVF_TOKEN_NORMAL); }
static void spoil_double_control(spec *s) {
    spec_token(s, "<|x|>", KVF_TOKEN_CONTROL);
    spec_token(s, "<|x|>", KVF_TOKEN_USER_DEFINED);
}
static void spoil_long_control(spec *s) {
    char text[KVF_CONTROL_BYTES_MAX + 2];
    memset(text, 'x', sizeof text);
    text[sizeof text - 1] = 0;
    spec_token(s, text, KVF_TOKEN_CONTROL);
}
static void spoil_no_types(spec *s) { s->no_types = true; }
static void spoil_few_types(spec *s) { s->types_count--; }
static void spoil_type_strings(spec *s) { s->types_are_strings = true; }
static void spoil_type_zero(spec *s) { s->types[7] = 0; }
static void spoil_type_seven(spec *s) { s->types[7] = 7; }
static void spoil_type_negative(spec *s) { s->types[7] = -1; }
static void spoil_no_merges(spec *s) { s->no_merges = true; }
static void spoil_merge_numbers(spec *s) {
    spec_merge(s, "a b");
    s->merges_are_numbers = true;
}
static void add_merge(spec *s, const char *text) {
    spec_merge(s, "p q");
    strcpy(s->merges[s->merges_count - 1] = realloc(s->merges[s->merges_count - 1], strlen(text) + 1), text);
}
static void spoil_merge_product(spec *s) { add_merge(s, "a b"); }
static void spoil_merge_one_word(spec *s) { add_merge(s, "ab"); }
static void spoil_merge_three_words(spec *s) { add_merge(s, "a b c"); }
static void spoil_merge_no_left(spec *s) { add_merge(s, " b"); }
static void spoil_merge_no_right(spec *s) { add_merge(s, "a "); }
static void spoil_merge_empty(spec *s) { add_merge(s, ""); }
static void spoil_merge_letter(spec *s) { add_merge(s, "p \xE6\xB0\xB4"); }
static void spoil_merge_long(spec *s) { add_merge(s, "aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa bbbbbbbbbbbbbbbbbbbbbb"); }
static void spoil_merge_twice(spec *s) {
    spec_merge(s, "a b");
    spec_merge(s, "a b");
}
static void spoil_merge_to_control(spec *s) {
    spec_merge(s, "a b");
    s->types[s->tokens_count - 1] = KVF_TOKEN_CONTROL;
}
static void spoil_bos(spec *s) { s->bos = (int64_t)s->tokens_count; }
static void spoil_eos(spec *s) { s->eos = UINT32_MAX; }
static void spoil_eot(spec *s) { s->eot = 70000; }
static void spoil_add_bos_string(spec *s) { s->add_bos = 2; }
static void spoil_add_bos_without(spec *s) { s->add_bos = 1; }

static void hostile_vocabularies_are_refused_by_name(void **state) {
    static const struct {
        spoil_fn spoil;
        kvf_status status;
        const char *message; /* a part of it */
    } cases[] = {
        {spoil_model, KVF_ERR_UNSUPPORTED, "tokenizer.ggml.model \"llama\""},
        {spoil_no_model, KVF_ERR_FORMAT, "tokenizer.ggml.model is missing"},
        {spoil_pre, KVF_ERR_UNSUPPORTED, "tokenizer.ggml.pre \"tekken\""},
        {spoil_no_pre, KVF_ERR_FORMAT, "tokenizer.ggml.pre is missing"},
        {spoil_no_tokens, KVF_ERR_FORMAT, "tokenizer.ggml.tokens is missing"},
        {spoil_token_numbers, KVF_ERR_FORMAT, "tokenizer.ggml.tokens is no list of strings"},
        {spoil_all_tokens, KVF_ERR_FORMAT, "tokenizer.ggml.tokens has 0 entries"},
        {spoil_empty_token, KVF_ERR_FORMAT, "tokenizer.ggml.tokens[256] is empty"},
        {spoil_empty_control, KVF_ERR_FORMAT, "tokenizer.ggml.tokens[256] is empty"},
        {spoil_double_token, KVF_ERR_FORMAT, "tokenizer.ggml.tokens[97] and [256] are both \"a\""},
        {spoil_double_control, KVF_ERR_FORMAT, "tokenizer.ggml.tokens[256] and [257] are both \"<|x|>\""},
        {spoil_long_control, KVF_ERR_FORMAT, "tokenizer.ggml.tokens[256] is a control token of 513 bytes"},
        {spoil_no_types, KVF_ERR_FORMAT, "tokenizer.ggml.token_type is missing"},
        {spoil_few_types, KVF_ERR_FORMAT, "tokenizer.ggml.token_type has 255 entries, tokenizer.ggml.tokens 256"},
        {spoil_type_strings, KVF_ERR_FORMAT, "tokenizer.ggml.token_type is no list of integers"},
        {spoil_type_zero, KVF_ERR_FORMAT, "tokenizer.ggml.token_type[7] is 0"},
        {spoil_type_seven, KVF_ERR_FORMAT, "tokenizer.ggml.token_type[7] is 7"},
        {spoil_type_negative, KVF_ERR_FORMAT, "tokenizer.ggml.token_type[7] is -1"},
        {spoil_no_merges, KVF_ERR_FORMAT, "tokenizer.ggml.merges is missing"},
        {spoil_merge_numbers, KVF_ERR_FORMAT, "tokenizer.ggml.merges is no list of strings"},
        {spoil_merge_product, KVF_ERR_FORMAT, "tokenizer.ggml.merges[0] \"a b\" makes a token that is not"},
        {spoil_merge_one_word, KVF_ERR_FORMAT, "tokenizer.ggml.merges[0] \"ab\" is not two tokens"},
        {spoil_merge_three_words, KVF_ERR_FORMAT, "tokenizer.ggml.merges[0] \"a b c\" is not two tokens"},
        {spoil_merge_no_left, KVF_ERR_FORMAT, "tokenizer.ggml.merges[0] \" b\" is not two tokens"},
        {spoil_merge_no_right, KVF_ERR_FORMAT, "tokenizer.ggml.merges[0] \"a \" is not two tokens"},
        {spoil_merge_empty, KVF_ERR_FORMAT, "tokenizer.ggml.merges[0] \"\" is not two tokens"},
        {spoil_merge_letter, KVF_ERR_FORMAT,
            "tokenizer.ggml.merges[0] \"p ???\" has a character that stands for no byte"},
        {spoil_merge_long, KVF_ERR_FORMAT,
            "tokenizer.ggml.merges[0] \"aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa bbbbbbb...\""},
        {spoil_merge_twice, KVF_ERR_FORMAT, "tokenizer.ggml.merges[1] \"a b\" stands in the list twice"},
        {spoil_merge_to_control, KVF_ERR_FORMAT, "tokenizer.ggml.merges[0] \"a b\" makes a token that is not among"},
        {spoil_bos, KVF_ERR_FORMAT, "tokenizer.ggml.bos_token_id is 256, but there are 256 tokens"},
        {spoil_eos, KVF_ERR_FORMAT, "tokenizer.ggml.eos_token_id is 4294967295"},
        {spoil_eot, KVF_ERR_FORMAT, "tokenizer.ggml.eot_token_id is 70000"},
        {spoil_add_bos_string, KVF_ERR_FORMAT, "tokenizer.ggml.add_bos_token is no boolean"},
        {spoil_add_bos_without, KVF_ERR_FORMAT, "add_bos_token is true, but there is no tokenizer.ggml.bos_token_id"},
    };
    for (size_t i = 0; i < KVF_COUNT_OF(cases); i++) {
        spec s;
        loaded l;
        spec_init(&s, "gpt-2");
        cases[i].spoil(&s);
        kvf_status status = load_spec(&l, &s);
        if (status != cases[i].status || l.tokenizer || l.error.status != status ||
            !strstr(l.error.message, cases[i].message) || !strstr(l.error.message, "made.gguf: "))
            fail_msg("case %zu: %s: %s", i, kvf_status_name(status), l.error.message);
        unload(&l);
        spec_fini(&s);
    }
}

static void a_merge_that_cannot_happen_is_ignored(void **state) {
    spec s;
    loaded l;
    spec_init(&s, "gpt-2");
    spec_merge(&s, "t h");
    spec_merge(&s, "th xy"); /* nothing makes "xy" */
    assert_int_equal(load_spec(&l, &s), KVF_OK);
    encoded e = encode(l.tokenizer, "thxy", 4, NULL);
    assert_int_equal(e.count, 3);
    assert_int_equal(e.ids[0], 256);
    free(e.ids);
    unload(&l);
    spec_fini(&s);
}

/* --- what creation finds out --- */

static void info_names_the_ends_and_bos(void **state) {
    spec s;
    loaded l;
    spec_init(&s, "llama3");
    s.bos = spec_token(&s, "<|begin_of_text|>", KVF_TOKEN_CONTROL);
    s.eot = spec_token(&s, "<|eot_id|>", KVF_TOKEN_CONTROL);
    uint32_t end = spec_token(&s, "<|end_of_text|>", KVF_TOKEN_CONTROL);
    s.eos = spec_token(&s, "<|my_own_end|>", KVF_TOKEN_CONTROL);
    spec_token(&s, "<|im_end|>", KVF_TOKEN_UNUSED); /* no control token, so no end */
    assert_int_equal(load_spec(&l, &s), KVF_OK);
    const kvf_tokenizer_info *info = kvf_tokenizer_get_info(l.tokenizer);
    assert_string_equal(info->pre_name, "llama-bpe");
    assert_int_equal(info->vocab_size, 261);
    assert_true(info->add_bos); /* the family's habit where the file does not say */
    assert_int_equal(info->bos, s.bos);
    assert_int_equal(info->eos, s.eos);
    assert_int_equal(info->end_ids_count, 3);
    assert_int_equal(info->end_ids[0], s.eot);
    assert_int_equal(info->end_ids[1], end);
    assert_int_equal(info->end_ids[2], s.eos);
    unload(&l);
    s.add_bos = 0;
    s.bos = s.eos = s.eot = -1;
    assert_int_equal(load_spec(&l, &s), KVF_OK);
    info = kvf_tokenizer_get_info(l.tokenizer);
    assert_false(info->add_bos);
    assert_int_equal(info->bos, KVF_TOKEN_NONE);
    assert_int_equal(info->eos, KVF_TOKEN_NONE);
    assert_int_equal(info->end_ids_count, 2);
    unload(&l);
    spec_fini(&s);
}

static void hash_of(spec *s, uint64_t hash[2]) {
    loaded l;
    assert_int_equal(load_spec(&l, s), KVF_OK);
    memcpy(hash, kvf_tokenizer_get_info(l.tokenizer)->hash, 16);
    unload(&l);
}

static void the_hash_tells_vocabularies_apart(void **state) {
    spec s;
    uint64_t hashes[6][2], again[2];
    spec_init(&s, "gpt-2");
    hash_of(&s, hashes[0]);
    s.pre = "qwen2";
    hash_of(&s, hashes[1]);
    uint32_t id = spec_token(&s, "ab", KVF_TOKEN_NORMAL);
    hash_of(&s, hashes[2]);
    s.types[id] = KVF_TOKEN_CONTROL;
    hash_of(&s, hashes[3]);
    s.types[id] = KVF_TOKEN_NORMAL;
    spec_merge(&s, "a b");
    hash_of(&s, hashes[4]);
    spec_merge(&s, "b a");
    hash_of(&s, hashes[5]);
    hash_of(&s, again);
    assert_memory_equal(hashes[5], again, 16);
    for (int i = 0; i < 6; i++)
        for (int j = 0; j < i; j++) assert_memory_not_equal(hashes[i], hashes[j], 16);
    /* Another name of the same family cuts the same, so it is the same tokenizer. */
    s.pre = "deepseek-r1-qwen";
    hash_of(&s, again);
    assert_memory_equal(hashes[5], again, 16);
    spec_fini(&s);
}

/* --- control tokens --- */

static void check_marked(const loaded *l, const char *text, const char *marks, const uint32_t *want, size_t count) {
    uint8_t mask[64];
    size_t n = strlen(text);
    assert_true(strlen(marks) == n && n <= sizeof mask);
    for (size_t i = 0; i < n; i++) mask[i] = marks[i] == '1';
    encoded e = encode(l->tokenizer, text, n, mask);
    if (e.count != count || memcmp(e.ids, want, count * sizeof *want) != 0) {
        for (size_t i = 0; i < e.count; i++) print_message("%u ", e.ids[i]);
        fail_msg("other ids for \"%s\" marked %s", text, marks);
    }
    free(e.ids);
}

static void control_tokens_only_where_trusted_longest_first(void **state) {
    spec s;
    loaded l;
    spec_init(&s, "llama-bpe");
    spec_merge(&s, "a b"); /* 256 */
    uint32_t lt = spec_token(&s, "<a", KVF_TOKEN_CONTROL), ltb = spec_token(&s, "<ab>", KVF_TOKEN_CONTROL),
             user = spec_token(&s, "<u>", KVF_TOKEN_USER_DEFINED), word = spec_token(&s, "STOP", KVF_TOKEN_CONTROL),
             letter = spec_token(&s, "ab", KVF_TOKEN_CONTROL);
    spec_token(&s, "<n>", KVF_TOKEN_UNUSED);
    assert_int_equal(load_spec(&l, &s), KVF_OK);
    check_marked(&l, "<ab>", "1111", (uint32_t[]){ltb}, 1);
    check_marked(&l, "<ab>", "1110", (uint32_t[]){lt, 'b', '>'}, 3);
    check_marked(&l, "<ab>", "0111", (uint32_t[]){'<', letter, '>'}, 3);
    check_marked(&l, "<ab>", "0000", (uint32_t[]){'<', 256, '>'}, 3);
    check_marked(&l, "x<ab", "1111", (uint32_t[]){'x', lt, 'b'}, 3);
    check_marked(&l, "<u><u>", "111011", (uint32_t[]){user, '<', 'u', '>'}, 4);
    check_marked(&l, "<n>", "111", (uint32_t[]){'<', 'n', '>'}, 3);
    /* A whole piece equal to a control token's text is still text (llama-bpe looks whole pieces up). */
    check_marked(&l, "STOP", "0000", (uint32_t[]){'S', 'T', 'O', 'P'}, 4);
    check_marked(&l, "STOP", "1111", (uint32_t[]){word}, 1);
    check_marked(&l, "STOPSTOP", "11110000", (uint32_t[]){word, 'S', 'T', 'O', 'P'}, 5);
    /* Text on both sides of an edge of trust is one text. */
    check_marked(&l, "qab", "100", (uint32_t[]){'q', 256}, 2);
    check_marked(&l, "qab", "110", (uint32_t[]){'q', 256}, 2);
    assert_int_equal(kvf_tokenizer_find(l.tokenizer, "ab", 2), letter);
    assert_int_equal(kvf_tokenizer_find(l.tokenizer, "<u>", 3), user);
    assert_int_equal(kvf_tokenizer_find(l.tokenizer, "<x>", 3), KVF_TOKEN_NONE);
    assert_int_equal(kvf_tokenizer_find(l.tokenizer, "", 0), KVF_TOKEN_NONE);
    unload(&l);
    spec_fini(&s);
}

static void whole_pieces_are_taken_without_merging_in_llama_bpe_only(void **state) {
    static const char *const families[] = {"llama-bpe", "qwen2", "gpt-2", "smollm"};
    for (size_t i = 0; i < KVF_COUNT_OF(families); i++) {
        spec s;
        loaded l;
        spec_init(&s, families[i]);
        uint32_t whole = spec_token(&s, "xyz", KVF_TOKEN_NORMAL); /* no merge makes it */
        assert_int_equal(load_spec(&l, &s), KVF_OK);
        encoded e = encode(l.tokenizer, "xyz", 3, NULL);
        assert_int_equal(e.count, i == 0 ? 1 : 3);
        assert_int_equal(e.ids[0], i == 0 ? whole : 'x');
        free(e.ids);
        unload(&l);
        spec_fini(&s);
    }
}

static void limits_and_empty_texts(void **state) {
    spec s;
    loaded l;
    spec_init(&s, "gpt-2");
    uint32_t control = spec_token(&s, "<c>", KVF_TOKEN_CONTROL);
    assert_int_equal(load_spec(&l, &s), KVF_OK);
    uint32_t mark = 0, *ids = &mark;
    size_t count = 77;
    uint8_t trusted[9] = {1, 1, 1, 1, 1, 1, 1, 1, 1};
    assert_int_equal(kvf_tokenizer_encode(l.tokenizer, "abcd", 4, NULL, 3, &ids, &count), KVF_ERR_LIMIT);
    assert_int_equal(kvf_tokenizer_encode(l.tokenizer, "<c><c><c>", 9, trusted, 2, &ids, &count), KVF_ERR_LIMIT);
    assert_int_equal(kvf_tokenizer_encode(l.tokenizer, "a", 1, NULL, 0, &ids, &count), KVF_ERR_LIMIT);
    assert_ptr_equal(ids, &mark); /* outputs only on success */
    assert_int_equal(count, 77);
    assert_int_equal(kvf_tokenizer_encode(l.tokenizer, "<c><c><c>", 9, trusted, 3, &ids, &count), KVF_OK);
    assert_int_equal(count, 3);
    assert_int_equal(ids[2], control);
    free(ids);
    assert_int_equal(kvf_tokenizer_encode(l.tokenizer, NULL, 0, NULL, 0, &ids, &count), KVF_OK);
    assert_null(ids);
    assert_int_equal(count, 0);
    kvf_span piece;
    assert_false(kvf_tokenizer_piece(l.tokenizer, 257, &piece));
    assert_false(kvf_tokenizer_piece(l.tokenizer, KVF_TOKEN_NONE, &piece));
    assert_false(kvf_tokenizer_is_control(l.tokenizer, KVF_TOKEN_NONE));
    unload(&l);
    spec_fini(&s);
}

/* --- streaming --- */

static void hidden_tokens_and_held_bytes(void **state) {
    spec s;
    loaded l;
    char out[64];
    kvf_detok d;
    spec_init(&s, "gpt-2");
    uint32_t control = spec_token(&s, "<c>", KVF_TOKEN_CONTROL), user = spec_token(&s, "<u>", KVF_TOKEN_USER_DEFINED),
             unused = spec_token(&s, "<n>", KVF_TOKEN_UNUSED);
    assert_int_equal(load_spec(&l, &s), KVF_OK);
    kvf_detok_init(&d, l.tokenizer, false);
    assert_int_equal(kvf_detok_push(&d, 0xF0, out), 0);
    assert_int_equal(kvf_detok_push(&d, 0x9F, out), 0);
    assert_int_equal(kvf_detok_push(&d, control, out), 0);
    assert_int_equal(kvf_detok_push(&d, unused, out), 0);
    assert_int_equal(kvf_detok_push(&d, 999, out), 0); /* no such id */
    assert_int_equal(kvf_detok_push(&d, 0x99, out), 0);
    assert_int_equal(kvf_detok_push(&d, 0x82, out), 4);
    assert_memory_equal(out, "\xF0\x9F\x99\x82", 4);
    assert_int_equal(kvf_detok_push(&d, 0xF0, out), 0);
    assert_int_equal(kvf_detok_push(&d, user, out), 6);
    assert_memory_equal(out, "\xEF\xBF\xBD<u>", 6);
    assert_int_equal(kvf_detok_finish(&d, out), 0);
    kvf_detok_push(&d, 0xE2, out);
    assert_int_equal(kvf_detok_finish(&d, out), 3);
    assert_memory_equal(out, "\xEF\xBF\xBD", 3);
    assert_int_equal(kvf_detok_finish(&d, out), 0);
    kvf_detok_init(&d, l.tokenizer, true);
    assert_int_equal(kvf_detok_push(&d, control, out), 3);
    assert_memory_equal(out, "<c>", 3);
    assert_true(kvf_tokenizer_is_control(l.tokenizer, control) && kvf_tokenizer_is_control(l.tokenizer, unused));
    assert_false(kvf_tokenizer_is_control(l.tokenizer, user) || kvf_tokenizer_is_control(l.tokenizer, 'a'));
    unload(&l);
    spec_fini(&s);
}

/* --- tiny models --- */

static const char *const tiny_names[] = {"llama", "llama-mha", "llama3-rope", "mistral-wide-head", "qwen2", "qwen3"};

static void check_random(const kvf_tokenizer *t, uint64_t seed) {
    kvf_rng r = {.seed = seed};
    for (int run = 0; run < 1500; run++) {
        buffer b =
            kvf_rng_below(&r, 2) ? random_text(&r, kvf_rng_below(&r, 50)) : random_bytes(&r, kvf_rng_below(&r, 50));
        check_round_trip(t, b.bytes, b.len_bytes);
        encoded e = encode(t, b.bytes, b.len_bytes, NULL);
        buffer streamed = stream(t, e.ids, e.count, false), at_once = replace_naive(b.bytes, b.len_bytes);
        assert_int_equal(streamed.len_bytes, at_once.len_bytes);
        if (at_once.len_bytes) assert_memory_equal(streamed.bytes, at_once.bytes, at_once.len_bytes);
        encoded slow = naive_encode(t, b.bytes, b.len_bytes);
        assert_int_equal(e.count, slow.count);
        if (e.count) assert_memory_equal(e.ids, slow.ids, e.count * sizeof *e.ids);
        free(b.bytes);
        free(e.ids);
        free(slow.ids);
        free(streamed.bytes);
        free(at_once.bytes);
    }
}

static void tiny_models_give_every_text_back(void **state) {
    static const uint32_t want[] = {257, 32, 107, 261, 32, 115, 258, 103, 263, 32, 104, 265, 111};
    static const uint32_t want_qwen[] = {257, 32, 107, 261, 32, 115, 258, 103, 32, 257, 32, 104, 265, 111};
    for (size_t i = 0; i < KVF_COUNT_OF(tiny_names); i++) {
        char path[512];
        loaded l;
        snprintf(path, sizeof path, "%s/tests/golden/tiny/%s.gguf", KVF_SOURCE_DIR, tiny_names[i]);
        if (load_file(&l, path) != KVF_OK) fail_msg("%s", l.error.message);
        const kvf_tokenizer_info *info = kvf_tokenizer_get_info(l.tokenizer);
        bool qwen = strncmp(tiny_names[i], "qwen", 4) == 0;
        assert_string_equal(info->pre_name, qwen ? "qwen2" : "llama-bpe");
        assert_int_equal(info->add_bos, !qwen);
        assert_int_equal(info->bos, 266);
        assert_int_equal(info->end_ids_count, 2);
        assert_int_equal(info->end_ids[0], 267);
        assert_int_equal(info->end_ids[1], 269);
        /* " the" is one token only where whole pieces are looked up: no merge of the list leads there. */
        encoded e = encode(l.tokenizer, "the king sang the hero", 22, NULL);
        assert_int_equal(e.count, qwen ? 14 : 13);
        assert_memory_equal(e.ids, qwen ? want_qwen : want, e.count * sizeof *e.ids);
        free(e.ids);
        check_random(l.tokenizer, 40 + i);
        unload(&l);
    }
}

/* --- work --- */

static void init_doubling(spec *s, const char *pre) {
    spec_init(s, pre);
    spec_doubling(s, "a", 6);
    spec_doubling(s, "^", 6);
    spec_doubling(s, "\xC4\xA0", 6); /* the letter of the space */
    spec_merge(s, "aa a"); /* makes overlaps compete */
    spec_merge(s, "\xC3\xA4 \xC2\xB8"); /* e4 b8: the beginning of many CJK characters */
}

static void check_work(const kvf_tokenizer *t, const buffer *text) {
    encoded e = encode(t, text->bytes, text->len_bytes, NULL);
    uint64_t log2_bytes = 1;
    while ((1ull << log2_bytes) < text->len_bytes) log2_bytes++;
    assert_true(e.work.characters <= 4 * text->len_bytes);
    assert_true(e.work.merging.lookups <= 3 * text->len_bytes);
    assert_true(e.work.merging.compares <= 8 * text->len_bytes * log2_bytes);
    free(e.ids);
    size_t head_bytes = KVF_MIN(text->len_bytes, (size_t)2000);
    encoded head = encode(t, text->bytes, head_bytes, NULL), slow = naive_encode(t, text->bytes, head_bytes);
    assert_int_equal(head.count, slow.count);
    assert_memory_equal(head.ids, slow.ids, slow.count * sizeof *slow.ids);
    free(head.ids);
    free(slow.ids);
}

/* TK-07 for every family; also a run that no splitter cuts with letters in random order, and spaces between line
 * breaks. */
static void long_runs_cost_near_linear_work_in_every_family(void **state) {
    static const char *const families[] = {"llama-bpe", "qwen2", "gpt-2", "smollm"};
    static const char *const units[] = {"a", "^", " ", "\n ", "1", "\xE4\xB8\xAD", "'s", "ab", "\xC2\xA0"};
    for (size_t i = 0; i < KVF_COUNT_OF(families); i++) {
        spec s;
        loaded l;
        init_doubling(&s, families[i]);
        assert_int_equal(load_spec(&l, &s), KVF_OK);
        for (size_t j = 0; j < KVF_COUNT_OF(units); j++) {
            buffer text = {0};
            while (text.len_bytes < 100000) buffer_put(&text, units[j], strlen(units[j]));
            check_work(l.tokenizer, &text);
            free(text.bytes);
        }
        kvf_rng r = {.seed = i};
        buffer mixed = {0};
        while (mixed.len_bytes < 100000) buffer_put(&mixed, kvf_rng_below(&r, 4) ? "a" : "b", 1);
        check_work(l.tokenizer, &mixed);
        free(mixed.bytes);
        unload(&l);
        spec_fini(&s);
    }
}

typedef struct {
    const kvf_tokenizer *tokenizer;
    buffer text;
    kvf_status status;
} small_stack_job;

static void *encode_on_small_stack(void *argument) {
    small_stack_job *job = argument;
    uint32_t *ids;
    size_t count;
    job->status = kvf_tokenizer_encode(
        job->tokenizer, (const char *)job->text.bytes, job->text.len_bytes, NULL, SIZE_MAX, &ids, &count);
    if (job->status == KVF_OK) free(ids);
    return NULL;
}

/* TK-07: the stack does not grow with the text; a thread with 256 KiB encodes a run of a million. */
static void a_long_run_needs_no_stack(void **state) {
    spec s;
    loaded l;
    pthread_attr_t attributes;
    pthread_t thread;
    small_stack_job job = {.status = KVF_ERR_INTERNAL};
    init_doubling(&s, "llama-bpe");
    assert_int_equal(load_spec(&l, &s), KVF_OK);
    job.tokenizer = l.tokenizer;
    for (int i = 0; i < 1000000; i++) buffer_put(&job.text, "^", 1);
    assert_int_equal(pthread_attr_init(&attributes), 0);
    assert_int_equal(pthread_attr_setstacksize(&attributes, 256 << 10), 0);
    assert_int_equal(pthread_create(&thread, &attributes, encode_on_small_stack, &job), 0);
    assert_int_equal(pthread_join(thread, NULL), 0);
    assert_int_equal(job.status, KVF_OK);
    pthread_attr_destroy(&attributes);
    free(job.text.bytes);
    unload(&l);
    spec_fini(&s);
}

/* --- failing allocations --- */

static void every_allocation_may_fail(void **state) {
    spec s;
    loaded l;
    init_doubling(&s, "llama-bpe");
    spec_token(&s, "<c>", KVF_TOKEN_CONTROL);
    assert_int_equal(load_spec(&l, &s), KVF_OK);
    kvf_status status = KVF_ERR_NO_MEMORY;
    uint64_t failures = 0;
    for (uint64_t n = 1; status != KVF_OK; n++) {
        kvf_tokenizer *t = NULL;
        size_t before = alloc_now_bytes;
        alloc_fail_at = alloc_calls + n;
        status = kvf_tokenizer_create(l.gguf, &t, &l.error);
        alloc_fail_at = 0;
        assert_true(status == KVF_OK || (status == KVF_ERR_NO_MEMORY && !t));
        failures += status != KVF_OK;
        kvf_tokenizer_destroy(t);
        assert_int_equal(alloc_now_bytes, before);
    }
    assert_true(failures >= 10);
    char text[400];
    uint8_t trusted[400];
    memset(text, 'b', sizeof text);
    memset(trusted, 1, sizeof trusted);
    status = KVF_ERR_NO_MEMORY;
    failures = 0;
    for (uint64_t n = 1; status != KVF_OK; n++) {
        uint32_t *ids = NULL;
        size_t count, before = alloc_now_bytes;
        alloc_fail_at = alloc_calls + n;
        status = kvf_tokenizer_encode(l.tokenizer, text, sizeof text, trusted, SIZE_MAX, &ids, &count);
        alloc_fail_at = 0;
        assert_true(status == KVF_OK || (status == KVF_ERR_NO_MEMORY && !ids));
        failures += status != KVF_OK;
        free(ids);
        assert_int_equal(alloc_now_bytes, before);
    }
    assert_true(failures >= 5);
    unload(&l);
    spec_fini(&s);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(hostile_vocabularies_are_refused_by_name),
        cmocka_unit_test(a_merge_that_cannot_happen_is_ignored),
        cmocka_unit_test(info_names_the_ends_and_bos),
        cmocka_unit_test(the_hash_tells_vocabularies_apart),
        cmocka_unit_test(control_tokens_only_where_trusted_longest_first),
        cmocka_unit_test(whole_pieces_are_taken_without_merging_in_llama_bpe_only),
        cmocka_unit_test(limits_and_empty_texts),
        cmocka_unit_test(hidden_tokens_and_held_bytes),
        cmocka_unit_test(tiny_models_give_every_text_back),
        cmocka_unit_test(long_runs_cost_near_linear_work_in_every_family),
        cmocka_unit_test(a_long_run_needs_no_stack),
        cmocka_unit_test(every_allocation_may_fail),
    };
    return cmocka_run_group_tests_name("tokenizer-model", tests, NULL, NULL);
}
