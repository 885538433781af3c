/* Splitters against the published expressions (pcre2), UTF-8 against the standard's own examples. No vocabulary needed.
 */
#define PCRE2_CODE_UNIT_WIDTH 8
#include <pcre2.h>
#include "support.h"
#include "kvf/utf8.h"

/* White_Space. pcre2's \s under UCP has U+180E too; the engines the models were trained with follow Unicode. */
#define S_SET "\\x09-\\x0d\\x20\\x85\\xa0\\x{1680}\\x{2000}-\\x{200a}\\x{2028}\\x{2029}\\x{202f}\\x{205f}\\x{3000}"
#define S "[" S_SET "]"
#define NOT_S "[^" S_SET "]"
#define OTHER "[^" S_SET "\\p{L}\\p{N}]"
#define GPT2 "'s|'t|'re|'ve|'m|'ll|'d| ?\\p{L}+| ?\\p{N}+| ?" OTHER "+|" S "+(?!" NOT_S ")|" S "+"
#define AS_LLAMA(digits)                                                                                               \
    "(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\\r\\n\\p{L}\\p{N}]?\\p{L}+|" digits "| ?" OTHER "+[\\r\\n]*|" S "*[\\r\\n]+|" S   \
    "+(?!" NOT_S ")|" S "+"

static uint8_t char_table[KVF_CHAR_TABLE_SIZE];
static bool *agreed; /* by code point: both libraries give it the same class */

static pcre2_code *compile(const char *pattern) {
    int error;
    PCRE2_SIZE at;
    pcre2_code *code =
        pcre2_compile((PCRE2_SPTR)pattern, PCRE2_ZERO_TERMINATED, PCRE2_UTF | PCRE2_UCP, &error, &at, NULL);
    if (!code) fail_msg("pattern at %zu: error %d", (size_t)at, error);
    pcre2_jit_compile(code, PCRE2_JIT_COMPLETE);
    return code;
}

static pcre2_match_data *match_data;

static size_t match_end(pcre2_code *code, const uint8_t *text, size_t len_bytes, size_t at) {
    int rc = pcre2_match(code, text, len_bytes, at, PCRE2_ANCHORED | PCRE2_NO_UTF_CHECK, match_data, NULL);
    return rc > 0 ? pcre2_get_ovector_pointer(match_data)[1] : at;
}

/* Seen through the splitter: a character makes one piece with what follows when both are letters, numbers or signs. */
static kvf_char_class class_of(uint32_t cp) {
    static const struct {
        char next;
        kvf_char_class class;
    } probes[] = {{'a', KVF_CHAR_LETTER}, {'1', KVF_CHAR_NUMBER}, {'!', KVF_CHAR_OTHER}};
    uint8_t text[5];
    size_t n = put_utf8(text, cp);
    kvf_pretok p = {.family = KVF_PRETOK_GPT2, .table = char_table, .text = text, .len_bytes = n + 1};
    for (size_t i = 0; i < KVF_COUNT_OF(probes); i++) {
        text[n] = (uint8_t)probes[i].next;
        if (cp != ' ' && kvf_pretok_next(&p, 0) == n + 1) return probes[i].class;
    }
    return KVF_CHAR_SPACE;
}

static void classes_equal_unicode(void **state) {
    pcre2_code *letter = compile("\\p{L}"), *number = compile("\\p{N}"), *space = compile("\\s"),
               *unassigned = compile("\\p{Cn}"), *white = compile(S);
    uint32_t newer = 0;
    for (uint32_t cp = 0; cp < 0x110000; cp++) {
        if (cp >= 0xD800 && cp < 0xE000) continue;
        uint8_t text[4];
        size_t n = put_utf8(text, cp);
        kvf_char_class want = match_end(letter, text, n, 0)   ? KVF_CHAR_LETTER
                              : match_end(number, text, n, 0) ? KVF_CHAR_NUMBER
                              : match_end(white, text, n, 0)  ? KVF_CHAR_SPACE
                                                              : KVF_CHAR_OTHER;
        assert_int_equal(match_end(white, text, n, 0) != 0, match_end(space, text, n, 0) != 0 && cp != 0x180E);
        agreed[cp] = class_of(cp) == want;
        if (agreed[cp]) continue;
        /* The two libraries' Unicode versions may differ, but only over characters that the older one lacks. */
        if (!match_end(unassigned, text, n, 0)) fail_msg("U+%04X: class %d, not %d", cp, class_of(cp), want);
        newer++;
    }
    print_message("%u characters are newer than pcre2's Unicode\n", newer);
    assert_true(newer < 20000);
    pcre2_code_free(letter);
    pcre2_code_free(number);
    pcre2_code_free(space);
    pcre2_code_free(unassigned);
    pcre2_code_free(white);
}

/* Characters that the expressions treat in their own ways, and a few of every general category. */
typedef struct {
    uint32_t code_points[4096];
    size_t count;
} alphabet;

static void add_category(alphabet *a, const char *category) {
    char pattern[16];
    snprintf(pattern, sizeof pattern, "\\p{%s}", category);
    pcre2_code *code = compile(pattern);
    kvf_rng r = {.seed = 11};
    size_t wanted = a->count + 24;
    for (int tries = 0; tries < 20000 && a->count < wanted; tries++) {
        uint32_t cp = random_code_point(&r);
        uint8_t text[4];
        size_t n = put_utf8(text, cp);
        if (agreed[cp] && match_end(code, text, n, 0)) a->code_points[a->count++] = cp;
    }
    pcre2_code_free(code);
}

static void make_alphabet(alphabet *a) {
    static const char *const categories[] = {"Lu", "Ll", "Lt", "Lm", "Lo", "Mn", "Mc", "Me", "Nd", "Nl", "No", "Pc",
        "Pd", "Ps", "Pe", "Pi", "Pf", "Po", "Sm", "Sc", "Sk", "So", "Zs", "Zl", "Zp", "Cc", "Cf", "Co", "Cn"};
    a->count = 0;
    for (size_t i = 0; i < KVF_COUNT_OF(categories); i++) add_category(a, categories[i]);
}

static buffer random_subject(kvf_rng *r, const alphabet *a) {
    static const uint32_t special[] = {' ', ' ', ' ', '\n', '\r', '\t', '\'', '\'', 's', 'T', 'r', 'E', 'v', 'M', 'l',
        'L', 'd', '1', '2', '.', 0x17F, 0x180E, 0xA0, 0x3000, 0x2028, 0x85, 0x212A, 0x2019, 0x661, 0x300};
    buffer b = {0};
    size_t length = 1 + kvf_rng_below(r, 24), repeat = 0;
    for (uint32_t cp = 0; length > 0; length--) {
        if (repeat > 0)
            repeat--;
        else {
            if (kvf_rng_below(r, 3))
                cp = special[kvf_rng_below(r, KVF_COUNT_OF(special))];
            else
                cp = a->code_points[kvf_rng_below(r, a->count)];
            repeat = kvf_rng_below(r, 4) ? 0 : kvf_rng_below(r, 5);
        }
        uint8_t text[4];
        buffer_put(&b, text, put_utf8(text, cp));
    }
    return b;
}

/* Digits are split off first, so the second expression sees only what lies between, as a text of its own. */
static size_t smollm_end(pcre2_code *number, pcre2_code *gpt2, const uint8_t *text, size_t len_bytes, size_t at) {
    size_t end = match_end(number, text, len_bytes, at);
    if (end > at) return end;
    size_t between = at;
    while (between < len_bytes && match_end(number, text, len_bytes, between) == between) {
        between++;
        while (between < len_bytes && (text[between] & 0xC0) == 0x80) between++;
    }
    return match_end(gpt2, text, between, at);
}

static void compare_family(kvf_pretok_family family, const char *pattern) {
    static alphabet a;
    make_alphabet(&a);
    pcre2_code *code = compile(pattern), *number = compile("\\p{N}");
    kvf_rng r = {.seed = 1000 + (uint64_t)family};
    uint64_t pieces = 0;
    for (int run = 0; run < 60000; run++) {
        buffer b = random_subject(&r, &a);
        kvf_pretok p = {.family = family, .table = char_table, .text = b.bytes, .len_bytes = b.len_bytes};
        for (size_t at = 0; at < b.len_bytes; pieces++) {
            size_t want = family == KVF_PRETOK_SMOLLM ? smollm_end(number, code, b.bytes, b.len_bytes, at)
                                                      : match_end(code, b.bytes, b.len_bytes, at);
            size_t got = kvf_pretok_next(&p, at);
            if (got != want) {
                for (size_t i = 0; i < b.len_bytes; i++) print_message("%02x ", b.bytes[i]);
                fail_msg("%s: piece at %zu ends at %zu, not %zu", kvf_pretok_name(family), at, got, want);
            }
            at = got;
        }
        free(b.bytes);
    }
    print_message("%s: %llu pieces equal\n", kvf_pretok_name(family), (unsigned long long)pieces);
    assert_true(pieces > 100000);
    pcre2_code_free(code);
    pcre2_code_free(number);
}

static void gpt2_equals_its_expression(void **state) { compare_family(KVF_PRETOK_GPT2, GPT2); }
static void smollm_equals_its_expressions(void **state) { compare_family(KVF_PRETOK_SMOLLM, GPT2); }
static void llama3_equals_its_expression(void **state) { compare_family(KVF_PRETOK_LLAMA3, AS_LLAMA("\\p{N}{1,3}")); }
static void qwen2_equals_its_expression(void **state) { compare_family(KVF_PRETOK_QWEN2, AS_LLAMA("\\p{N}")); }

/* TK-06. The Llama 3 vocabulary is not here, so the pieces are checked and not the ids: one piece for each id listed
 * there (or the piece that the ids join to: "DON'T" 85741,17773; "日本語" is one piece of two ids). */
static void llama3_pieces_of_field_case_tk06(void **state) {
    static const struct {
        const char *text, *pieces; /* pieces with bars between */
    } cases[] = {{"\n\n", "\n\n"}, {"\n\n\n\n", "\n\n\n\n"}, {"a\n\n\n\nb", "a|\n\n\n\n|b"}, {"1234567", "123|456|7"},
        {"   hello", "  | hello"}, {"a  \n b", "a|  \n| b"}, {"DON'T", "DON|'T"}, {"\r\n\r\n", "\r\n\r\n"},
        {"\t\tx", "\t|\tx"}, {"\u65e5\u672c\u8a9e", "\u65e5\u672c\u8a9e"}, {"\u3000x", "\u3000x"}};
    for (size_t i = 0; i < KVF_COUNT_OF(cases); i++) {
        const char *text = cases[i].text;
        buffer got = {0};
        kvf_pretok p = {
            .family = KVF_PRETOK_LLAMA3, .table = char_table, .text = (const uint8_t *)text, .len_bytes = strlen(text)};
        for (size_t at = 0; at < p.len_bytes;) {
            size_t end = kvf_pretok_next(&p, at);
            if (at > 0) buffer_put(&got, "|", 1);
            buffer_put(&got, text + at, end - at);
            at = end;
        }
        buffer_put(&got, "", 1);
        assert_string_equal((const char *)got.bytes, cases[i].pieces);
        free(got.bytes);
    }
}

static void names_and_aliases(void **state) {
    static const struct {
        const char *name;
        kvf_pretok_family family;
    } known[] = {{"smollm", KVF_PRETOK_SMOLLM}, {"llama-bpe", KVF_PRETOK_LLAMA3}, {"llama3", KVF_PRETOK_LLAMA3},
        {"llama-v3", KVF_PRETOK_LLAMA3}, {"qwen2", KVF_PRETOK_QWEN2}, {"gpt-2", KVF_PRETOK_GPT2},
        {"default", KVF_PRETOK_GPT2}};
    kvf_pretok_family family;
    for (size_t i = 0; i < KVF_COUNT_OF(known); i++) {
        assert_true(kvf_pretok_find(known[i].name, strlen(known[i].name), &family));
        assert_int_equal(family, known[i].family);
    }
    assert_string_equal(kvf_pretok_name(KVF_PRETOK_LLAMA3), "llama-bpe");
    assert_false(kvf_pretok_find("llama", 5, &family));
    assert_false(kvf_pretok_find("tekken", 6, &family));
    assert_false(kvf_pretok_find("", 0, &family));
}

static void any_bytes_are_covered(void **state) {
    kvf_rng r = {.seed = 5};
    for (int run = 0; run < 4000; run++) {
        buffer b = random_bytes(&r, 1 + kvf_rng_below(&r, 40));
        for (int family = KVF_PRETOK_GPT2; family <= KVF_PRETOK_QWEN2; family++) {
            kvf_pretok p = {
                .family = (kvf_pretok_family)family, .table = char_table, .text = b.bytes, .len_bytes = b.len_bytes};
            size_t at = 0;
            while (at < b.len_bytes) at = kvf_pretok_next(&p, at); /* asserts that it moves and stays inside */
            assert_int_equal(at, b.len_bytes);
        }
        free(b.bytes);
    }
}

/* Unicode 15, tables 3-8 to 3-11: "#" for each U+FFFD. */
static void ill_formed_subparts_of_the_standard(void **state) {
    static const struct {
        const char *bytes, *want;
    } cases[] = {{"\xC0\xAF\xE0\x80\xBF\xF0\x81\x82\x41", "########A"},
        {"\xED\xA0\x80\xED\xBF\xBF\xED\xAF\x41", "########A"}, {"\xF4\x91\x92\x93\xFF\x41\x80\xBF\x42", "#####A##B"},
        {"\xE1\x80\xE2\xF0\x91\x92\xF1\xBF\x41", "####A"}};
    spec s;
    loaded l;
    spec_init(&s, "gpt-2");
    assert_int_equal(load_spec(&l, &s), KVF_OK);
    for (size_t i = 0; i < KVF_COUNT_OF(cases); i++) {
        encoded e = encode(l.tokenizer, cases[i].bytes, strlen(cases[i].bytes), NULL);
        buffer got = stream(l.tokenizer, e.ids, e.count, false), want = {0};
        for (const char *c = cases[i].want; *c; c++)
            buffer_put(&want, *c == '#' ? "\xEF\xBF\xBD" : c, *c == '#' ? 3 : 1);
        assert_int_equal(got.len_bytes, want.len_bytes);
        assert_memory_equal(got.bytes, want.bytes, want.len_bytes);
        size_t bad_at = 99;
        assert_false(kvf_utf8_valid(cases[i].bytes, strlen(cases[i].bytes), &bad_at));
        assert_int_equal(bad_at, 0);
        free(e.ids);
        free(got.bytes);
        free(want.bytes);
    }
    unload(&l);
    spec_fini(&s);
}

static void validity_equals_the_slow_reference(void **state) {
    kvf_rng r = {.seed = 21};
    uint32_t valid = 0, invalid = 0;
    for (int run = 0; run < 20000; run++) {
        buffer b = kvf_rng_below(&r, 2) ? random_bytes(&r, 1 + kvf_rng_below(&r, 6)) : random_text(&r, 4);
        buffer replaced = replace_naive(b.bytes, b.len_bytes);
        bool same = replaced.len_bytes == b.len_bytes && memcmp(replaced.bytes, b.bytes, b.len_bytes) == 0;
        size_t bad_at = 0, same_bytes = 0;
        assert_int_equal(kvf_utf8_valid((const char *)b.bytes, b.len_bytes, &bad_at), same);
        while (!same && same_bytes < b.len_bytes && b.bytes[same_bytes] == replaced.bytes[same_bytes]) same_bytes++;
        if (!same) assert_true(bad_at <= same_bytes && kvf_utf8_valid((const char *)b.bytes, bad_at, NULL));
        *(same ? &valid : &invalid) += 1;
        free(b.bytes);
        free(replaced.bytes);
    }
    assert_true(valid > 5000 && invalid > 5000);
    assert_true(kvf_utf8_valid("", 0, NULL));
}

int main(void) {
    kvf_char_table_fill(char_table);
    agreed = calloc(0x110000, sizeof *agreed);
    match_data = pcre2_match_data_create(4, NULL);
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(classes_equal_unicode), /* first: it fills `agreed` */
        cmocka_unit_test(gpt2_equals_its_expression),
        cmocka_unit_test(smollm_equals_its_expressions),
        cmocka_unit_test(llama3_equals_its_expression),
        cmocka_unit_test(qwen2_equals_its_expression),
        cmocka_unit_test(llama3_pieces_of_field_case_tk06),
        cmocka_unit_test(names_and_aliases),
        cmocka_unit_test(any_bytes_are_covered),
        cmocka_unit_test(ill_formed_subparts_of_the_standard),
        cmocka_unit_test(validity_equals_the_slow_reference),
    };
    int failed = cmocka_run_group_tests_name("tokenizer-text", tests, NULL, NULL);
    pcre2_match_data_free(match_data);
    free(agreed);
    return failed;
}
