/* Stop strings (field case AP-01): the named cases, then random texts against a search that tries everything. */
#include "kvf/rng.h"
#include "kvf/stop.h"
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <cmocka.h>

typedef struct {
    void *set_memory, *stream_memory;
    kvf_stop_stream *stream;
    char text[8192]; /* emitted */
    size_t len_bytes;
    kvf_stop_out last;
    bool matched;
    uint32_t position;
} choice;

static void open_choice(choice *c, const char *const *stops, uint32_t count, bool include) {
    kvf_span spans[KVF_STOP_STRINGS_MAX];
    for (uint32_t i = 0; i < count; i++) spans[i] = (kvf_span){stops[i], strlen(stops[i])};
    memset(c, 0, sizeof *c);
    c->set_memory = malloc(kvf_stop_set_size(spans, count));
    assert_non_null(c->set_memory);
    kvf_stop_set *set = kvf_stop_set_init(c->set_memory, spans, count, include);
    c->stream_memory = malloc(kvf_stop_stream_size(set));
    assert_non_null(c->stream_memory);
    c->stream = kvf_stop_stream_init(c->stream_memory, set);
    c->position = 100;
}

static void close_choice(choice *c) {
    free(c->set_memory);
    free(c->stream_memory);
}

static void append(choice *c) {
    for (int i = 0; i < 2; i++) {
        assert_true(c->len_bytes + c->last.emit[i].len_bytes < sizeof c->text);
        if (c->last.emit[i].len_bytes) memcpy(c->text + c->len_bytes, c->last.emit[i].data, c->last.emit[i].len_bytes);
        c->len_bytes += c->last.emit[i].len_bytes;
    }
}

static void feed(choice *c, const char *text, size_t len_bytes) {
    char *exact = malloc(len_bytes + 1);
    assert_non_null(exact);
    memcpy(exact, text, len_bytes);
    kvf_stop_feed(c->stream, c->position++, (kvf_span){exact, len_bytes}, &c->last);
    append(c);
    free(exact);
    c->matched |= c->last.matched;
}

static void feed_all(choice *c, const char *const *pieces) {
    for (; *pieces && !c->matched; pieces++) feed(c, *pieces, strlen(*pieces));
    if (!c->matched) {
        kvf_stop_flush(c->stream, &c->last);
        append(c);
    }
}

static void expect(choice *c, const char *text, bool matched, uint32_t end_position) {
    assert_int_equal(c->len_bytes, strlen(text));
    assert_memory_equal(c->text, text, c->len_bytes);
    assert_int_equal(c->matched, matched);
    if (matched) assert_int_equal(c->last.end_position, end_position);
    close_choice(c);
}

#define LIST(...)                                                                                                      \
    (const char *const[]) { __VA_ARGS__, NULL }

static void over_tokens(void **state) {
    (void)state;
    choice c;
    open_choice(&c, LIST("DEFGHIJ"), 1, false);
    feed_all(&c, LIST("AB", "CD", "E", "FGH", "I", "JK", "L"));
    assert_int_equal(c.last.cut_position, 101); /* "CD" is emitted in part */
    expect(&c, "ABC", true, 106);
}

static void inside_token(void **state) {
    (void)state;
    choice c;
    open_choice(&c, LIST("EF"), 1, false);
    feed_all(&c, LIST("ABC", "DEFG", "H"));
    assert_int_equal(c.last.cut_position, 101);
    expect(&c, "ABCD", true, 102);
}

static void included(void **state) {
    (void)state;
    choice c;
    open_choice(&c, LIST("EF"), 1, true);
    feed_all(&c, LIST("ABC", "DE", "FG", "H"));
    assert_int_equal(c.last.cut_position, 102); /* its "G" is not emitted */
    expect(&c, "ABCDEF", true, 103);
    open_choice(&c, LIST("EF"), 1, true);
    feed_all(&c, LIST("ABCDE", "F", "G"));
    assert_int_equal(c.last.cut_position, 102);
    expect(&c, "ABCDEF", true, 102);
}

static void overlapping(void **state) {
    (void)state;
    choice c;
    open_choice(&c, LIST("ABCD", "BC"), 2, false); /* BC ends first */
    feed_all(&c, LIST("xABCD"));
    assert_int_equal(c.last.stop, 1);
    expect(&c, "xA", true, 101);
    open_choice(&c, LIST("BC", "ABC"), 2, false); /* both end at C: the longer */
    feed_all(&c, LIST("xA", "B", "CD"));
    assert_int_equal(c.last.stop, 1);
    expect(&c, "x", true, 103);
    open_choice(&c, LIST("aab"), 1, false); /* a false start is let go but for its useful end */
    feed(&c, "aa", 2);
    assert_int_equal(c.len_bytes, 0);
    feed(&c, "a", 1);
    assert_int_equal(c.len_bytes, 1);
    feed(&c, "b", 1);
    expect(&c, "a", true, 103);
}

static void cjk(void **state) {
    (void)state;
    choice c;
    open_choice(&c, LIST("日本。"), 1, false);
    feed_all(&c, LIST("今日は", "日", "日", "本", "。終"));
    expect(&c, "今日は日", true, 105);
    open_choice(&c, LIST("本語"), 1, false);
    feed(&c, "日本", 6);
    assert_int_equal(c.len_bytes, 3); /* whole characters only */
    feed_all(&c, LIST("人"));
    expect(&c, "日本人", false, 0);
}

static void no_match(void **state) {
    (void)state;
    choice c;
    open_choice(&c, LIST("END"), 1, false);
    feed_all(&c, LIST("E", "", "N", "E", "EN"));
    expect(&c, "ENEEN", false, 0);
    open_choice(&c, LIST("x"), 0, false);
    feed(&c, "anything", 8);
    assert_int_equal(c.len_bytes, 8);
    close_choice(&c);
}

static void limits(void **state) {
    (void)state;
    static char big[KVF_STOP_BYTES_MAX + 1];
    kvf_span many[KVF_STOP_STRINGS_MAX + 1];
    for (uint32_t i = 0; i <= KVF_STOP_STRINGS_MAX; i++) many[i] = (kvf_span){"x", 1};
    kvf_error err;
    assert_int_equal(kvf_stop_check(many, KVF_STOP_STRINGS_MAX, &err), KVF_OK);
    assert_int_equal(kvf_stop_check(many, KVF_STOP_STRINGS_MAX + 1, &err), KVF_ERR_INVALID);
    many[1] = (kvf_span){"", 0};
    assert_int_equal(kvf_stop_check(many, 2, &err), KVF_ERR_INVALID);
    many[1] = (kvf_span){big, sizeof big};
    assert_int_equal(kvf_stop_check(many, 2, &err), KVF_ERR_INVALID);
    assert_non_null(strstr(err.message, "512"));
}

/* ---- against a search that tries everything ---- */

static bool ends_with(const char *text, size_t len_bytes, const char *end) {
    size_t end_bytes = strlen(end);
    return end_bytes <= len_bytes && memcmp(text + len_bytes - end_bytes, end, end_bytes) == 0;
}

/* How much of the end of the text may begin a stop. */
static size_t held_of(const char *text, size_t len_bytes, char stops[][8], uint32_t count) {
    size_t best = 0;
    for (uint32_t i = 0; i < count; i++)
        for (size_t k = 1; k < strlen(stops[i]) && k <= len_bytes; k++)
            if (k > best && memcmp(text + len_bytes - k, stops[i], k) == 0) best = k;
    return best;
}

static void random_texts(void **state) {
    (void)state;
    uint32_t matches = 0;
    for (uint64_t seed = 1; seed <= 4000; seed++) {
        kvf_rng rng = {.seed = seed};
        char stops[4][8], text[64];
        const char *list[4];
        uint32_t count = 1 + (uint32_t)kvf_rng_below(&rng, 4);
        for (uint32_t i = 0; i < count; i++) {
            size_t len_bytes = 1 + kvf_rng_below(&rng, 6);
            for (size_t k = 0; k < len_bytes; k++) stops[i][k] = (char)('a' + kvf_rng_below(&rng, 2));
            stops[i][len_bytes] = 0;
            list[i] = stops[i];
        }
        size_t len_bytes = kvf_rng_below(&rng, sizeof text);
        for (size_t k = 0; k < len_bytes; k++) text[k] = (char)('a' + kvf_rng_below(&rng, 3));
        size_t stop_at = 0, stop_bytes = 0; /* the first end of a stop, and the longest there */
        for (size_t end = 1; end <= len_bytes && !stop_at; end++)
            for (uint32_t i = 0; i < count; i++)
                if (ends_with(text, end, stops[i]) && strlen(stops[i]) > stop_bytes) {
                    stop_at = end;
                    stop_bytes = strlen(stops[i]);
                }
        bool include = kvf_rng_below(&rng, 2);
        choice c;
        open_choice(&c, list, count, include);
        size_t at = 0;
        while (at < len_bytes && !c.matched) {
            size_t piece = kvf_rng_below(&rng, 5);
            piece = KVF_MIN(piece, len_bytes - at);
            feed(&c, text + at, piece);
            at += piece;
            if (!c.matched) assert_int_equal(c.len_bytes, at - held_of(text, at, stops, count));
        }
        if (!c.matched) {
            kvf_stop_flush(c.stream, &c.last);
            append(&c);
        }
        assert_int_equal(c.matched, stop_at != 0);
        size_t expected = !stop_at ? len_bytes : include ? stop_at : stop_at - stop_bytes;
        assert_int_equal(c.len_bytes, expected);
        assert_memory_equal(c.text, text, expected);
        matches += c.matched;
        close_choice(&c);
    }
    assert_true(matches > 1000);
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(over_tokens), cmocka_unit_test(inside_token),
        cmocka_unit_test(included), cmocka_unit_test(overlapping), cmocka_unit_test(cjk), cmocka_unit_test(no_match),
        cmocka_unit_test(limits), cmocka_unit_test(random_texts)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
