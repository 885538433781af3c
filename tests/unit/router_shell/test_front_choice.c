/* Tokens in, text out: stop strings over token borders, characters over token borders, ends, what is counted. */
#include "tiny.h"
#include "choice.h"
#include "kvf/utf8.h"

static front_model model;
static uint32_t byte_token[256];

typedef struct {
    front_plan plan;
    ProtobufCBinaryData stops[4];
    front_rules rules;
    front_choice choice;
    char text[256]; /* told so far */
    size_t text_bytes;
} subject;

static void subject_init(subject *s) {
    memset(s, 0, sizeof *s);
    s->plan.n = 1;
    s->plan.max_given = s->plan.want_ids = true;
    s->plan.stops = s->stops;
}

/* With what the plan says by now. */
static void begin(subject *s) {
    if (s->rules.plan) return;
    assert_int_equal(front_rules_init(&s->rules, model.tokenizer, &s->plan), KVF_OK);
    assert_int_equal(front_choice_init(&s->choice, &s->rules), KVF_OK);
}

static void add_stop(subject *s, const char *text) { s->stops[s->plan.stops_count++] = kvf_proto_text(text); }

static void tell(subject *s) {
    front_choice *c = &s->choice;
    assert_true(kvf_utf8_valid(c->text, c->text_bytes, NULL));
    if (c->text_bytes) memcpy(s->text + s->text_bytes, c->text, c->text_bytes);
    s->text_bytes += c->text_bytes;
    s->text[s->text_bytes] = 0;
    front_choice_told(c);
}

static front_pushed push(subject *s, uint32_t token, kvf_end end) {
    begin(s);
    front_pushed result = front_choice_push(&s->choice, &s->rules, token, end, (kvf_span){NULL, 0});
    tell(s);
    return result;
}

/* Byte by byte; returns how many tokens it took. */
static uint32_t say(subject *s, const char *text, kvf_end last) {
    for (size_t i = 0; text[i]; i++)
        if (push(s, byte_token[(uint8_t)text[i]], text[i + 1] ? KVF_END_NONE : last) == FRONT_STOPPED) break;
    return s->choice.tokens;
}

static void told(subject *s, const char *want) {
    assert_string_equal(s->text, want);
    front_choice_fini(&s->choice);
    front_rules_fini(&s->rules);
}

static void text_without_stops_passes(void **state) {
    (void)state;
    subject s;
    subject_init(&s);
    assert_int_equal(say(&s, "hello", KVF_END_LENGTH), 5);
    assert_int_equal(s.choice.reason, KVFERRY__V1__FINISH_REASON__FINISH_REASON_LENGTH);
    told(&s, "hello");
    subject_init(&s);
    s.plan.max_given = false;
    say(&s, "hi", KVF_END_LENGTH);
    assert_int_equal(s.choice.reason, KVFERRY__V1__FINISH_REASON__FINISH_REASON_CONTEXT_LENGTH);
    told(&s, "hi");
}

static void a_stop_over_tokens_is_cut_and_counted(void **state) { /* AP-01 */
    (void)state;
    subject s;
    subject_init(&s);
    add_stop(&s, "DEFGHIJ");
    assert_int_equal(say(&s, "ABCDEFGHIJKL", KVF_END_NONE), 10);
    assert_true(s.choice.ended);
    assert_int_equal(s.choice.reason, KVFERRY__V1__FINISH_REASON__FINISH_REASON_STOP_SEQUENCE);
    told(&s, "ABC");
    subject_init(&s);
    s.plan.include_stop = true;
    add_stop(&s, "DEF");
    say(&s, "ABCDEFG", KVF_END_NONE);
    told(&s, "ABCDEF");
}

static void what_only_looked_like_a_stop_comes_out(void **state) {
    (void)state;
    subject s;
    subject_init(&s);
    add_stop(&s, "aab");
    say(&s, "aaa", KVF_END_NONE);
    assert_string_equal(s.text, "a"); /* "aa" may go on */
    say(&s, "c", KVF_END_NONE);
    assert_string_equal(s.text, "aaac");
    say(&s, "aa", KVF_END_LENGTH);
    told(&s, "aaacaa");
    subject_init(&s);
    add_stop(&s, "aab");
    say(&s, "aaaab", KVF_END_NONE);
    told(&s, "aa");
}

static void of_two_stops_the_first_complete_one_wins(void **state) {
    (void)state;
    subject s;
    subject_init(&s);
    add_stop(&s, "CDEFG");
    add_stop(&s, "EF");
    say(&s, "ABCDEFGH", KVF_END_NONE);
    assert_int_equal(s.choice.stop_index, 1);
    told(&s, "ABCD");
    subject_init(&s);
    add_stop(&s, "EF");
    add_stop(&s, "DEF");
    say(&s, "ABCDEFGH", KVF_END_NONE);
    assert_int_equal(s.choice.stop_index, 1); /* both end here: the longer */
    told(&s, "ABC");
}

static void a_stop_inside_one_token_is_found(void **state) {
    (void)state;
    uint32_t longest = 0;
    kvf_span piece = {NULL, 0}, one;
    for (uint32_t id = 256; id < 266; id++)
        if (kvf_tokenizer_piece(model.tokenizer, id, &one) && one.len_bytes > piece.len_bytes) {
            piece = one;
            longest = id;
        }
    assert_true(piece.len_bytes >= 2);
    const char *bytes = piece.data;
    subject s;
    subject_init(&s);
    char stop[2] = {bytes[0], 0};
    add_stop(&s, stop);
    assert_int_equal(push(&s, longest, KVF_END_NONE), FRONT_STOPPED);
    assert_int_equal(s.choice.ids_count, 0); /* told with it */
    assert_int_equal(s.choice.tokens, 1);
    told(&s, "");
}

static void the_same_whatever_is_told_at_once(void **state) {
    (void)state;
    static const char text[] = "xx<stop xx< <<stop>yy";
    for (int every = 1; every < 8; every++) {
        subject s;
        subject_init(&s);
        add_stop(&s, "<stop>");
        begin(&s);
        for (size_t i = 0; text[i]; i++) {
            front_pushed p =
                front_choice_push(&s.choice, &s.rules, byte_token[(uint8_t)text[i]], KVF_END_NONE, (kvf_span){NULL, 0});
            if ((int)i % every == 0) tell(&s);
            if (p == FRONT_STOPPED) break;
        }
        tell(&s);
        told(&s, "xx<stop xx< <");
    }
}

static void characters_come_whole(void **state) { /* TK-01 */
    (void)state;
    subject s;
    subject_init(&s);
    say(&s, " \xf0\x9f\x98", KVF_END_NONE);
    assert_string_equal(s.text, " ");
    say(&s, "\x8a!", KVF_END_LENGTH);
    told(&s, " \xf0\x9f\x98\x8a!");
    subject_init(&s);
    say(&s, "a\xf0\x9f\x98", KVF_END_LENGTH);
    assert_int_equal(s.choice.tokens, 4);
    told(&s, "a\xef\xbf\xbd"); /* cut: one replacement character */
    subject_init(&s);
    add_stop(&s, "\xe5\xad\x97");
    say(&s, "\xe6\xbc\xa2\xe5\xad\x97\xe3", KVF_END_NONE);
    told(&s, "\xe6\xbc\xa2");
}

static void end_tokens_are_counted_not_shown(void **state) { /* PD-09a */
    (void)state;
    subject s;
    subject_init(&s);
    assert_int_equal(push(&s, TINY_EOS, KVF_END_EOS), FRONT_ENDED);
    assert_int_equal(s.choice.reason, KVFERRY__V1__FINISH_REASON__FINISH_REASON_STOP_TOKEN);
    assert_int_equal(s.choice.stop_token, TINY_EOS);
    assert_int_equal(s.choice.tokens, 1);
    told(&s, "");
    subject_init(&s);
    s.plan.specials_in_text = true;
    push(&s, TINY_EOS, KVF_END_EOS);
    told(&s, "<|eos|>");
    subject_init(&s);
    say(&s, "ab", KVF_END_STOP_ID);
    told(&s, "a");
    subject_init(&s);
    s.plan.include_stop = true;
    say(&s, "ab", KVF_END_STOP_ID);
    told(&s, "ab");
    subject_init(&s); /* an end token that is ignored is no end: control text stays hidden */
    say(&s, "a", KVF_END_NONE);
    push(&s, TINY_EOS, KVF_END_NONE);
    say(&s, "b", KVF_END_LENGTH);
    told(&s, "ab");
}

static void stops_wait_for_min_tokens(void **state) {
    (void)state;
    subject s;
    subject_init(&s);
    add_stop(&s, "aa");
    s.plan.min_tokens = 3;
    assert_int_equal(say(&s, "aaaaaa", KVF_END_NONE), 5);
    told(&s, "aaa");
}

static void a_stop_and_an_end_in_one_token(void **state) {
    (void)state;
    subject s;
    subject_init(&s);
    add_stop(&s, "bc");
    say(&s, "abc", KVF_END_LENGTH);
    assert_int_equal(s.choice.reason, KVFERRY__V1__FINISH_REASON__FINISH_REASON_STOP_SEQUENCE);
    told(&s, "a");
}

static void nothing_wanted_is_an_end_too(void **state) {
    (void)state;
    subject s;
    subject_init(&s);
    begin(&s);
    front_choice_close(&s.choice, &s.rules);
    assert_int_equal(s.choice.reason, KVFERRY__V1__FINISH_REASON__FINISH_REASON_LENGTH);
    assert_int_equal(s.choice.tokens, 0);
    tell(&s);
    told(&s, "");
}

static int setup(void **state) {
    (void)state;
    tiny_load(&model);
    for (uint32_t id = 0; id < TINY_VOCAB; id++) {
        kvf_span piece;
        if (kvf_tokenizer_piece(model.tokenizer, id, &piece) && piece.len_bytes == 1)
            byte_token[*(const uint8_t *)piece.data] = id;
    }
    return 0;
}
static int teardown(void **state) {
    (void)state;
    front_model_free(&model);
    return 0;
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(text_without_stops_passes),
        cmocka_unit_test(a_stop_over_tokens_is_cut_and_counted),
        cmocka_unit_test(what_only_looked_like_a_stop_comes_out),
        cmocka_unit_test(of_two_stops_the_first_complete_one_wins), cmocka_unit_test(a_stop_inside_one_token_is_found),
        cmocka_unit_test(the_same_whatever_is_told_at_once), cmocka_unit_test(characters_come_whole),
        cmocka_unit_test(end_tokens_are_counted_not_shown), cmocka_unit_test(stops_wait_for_min_tokens),
        cmocka_unit_test(a_stop_and_an_end_in_one_token), cmocka_unit_test(nothing_wanted_is_an_end_too)};
    return cmocka_run_group_tests(tests, setup, teardown);
}
