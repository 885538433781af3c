/* The right values of tests/golden/smollm2 through gRPC: tokens, chat prompts, greedy choices, log-probabilities, with
 * 8-bit activations
 * (--precision fast) and exact ones. Tolerances: the table in tests/golden/README.md; an argmax must agree where its
 * gap exceeds twice the allowed maximum. Teacher-forced: each step is a request of its own. */
#include "harness.h"
#include <jansson.h>
#include <math.h>
#include <string.h>

#define GOLDEN KVF_SOURCE_DIR "/tests/golden/smollm2/"
enum { LINES_MAX = 256 };

typedef struct {
    json_t *line[LINES_MAX];
    size_t count;
} lines;

static lines read_lines(const char *path) {
    lines l = {.count = 0};
    char *text = e2e_read_file(path), *save;
    assert_non_null(text);
    for (char *s = strtok_r(text, "\n", &save); s; s = strtok_r(NULL, "\n", &save)) {
        assert_true(l.count < LINES_MAX);
        json_error_t err;
        l.line[l.count] = json_loads(s, JSON_ALLOW_NUL, &err);
        assert_non_null(l.line[l.count++]);
    }
    free(text);
    return l;
}

static void free_lines(lines *l) {
    for (size_t i = 0; i < l->count; i++) json_decref(l->line[i]);
}

static size_t ids_of(const json_t *array, uint32_t *out, size_t room) {
    size_t count = json_array_size(array);
    assert_true(count <= room);
    for (size_t i = 0; i < count; i++) out[i] = (uint32_t)json_integer_value(json_array_get(array, i));
    return count;
}

static bool equal_ids(const json_t *array, const uint32_t *ids, size_t count) {
    if (json_array_size(array) != count) return false;
    for (size_t i = 0; i < count; i++)
        if ((uint32_t)json_integer_value(json_array_get(array, i)) != ids[i]) return false;
    return true;
}

static void tokens(e2e_cluster *c) {
    lines l = read_lines(GOLDEN "tokenize.jsonl");
    for (size_t i = 0; i < l.count; i++) {
        const json_t *text = json_object_get(l.line[i], "text"), *plain = json_object_get(l.line[i], "ids_plain");
        if (strlen(json_string_value(text)) != json_string_length(text))
            continue; /* a NUL: the harness has C strings */
        for (int special = 0; special < 2; special++) {
            uint32_t *ids;
            e2e_ask in = {.text = json_string_value(text)};
            size_t count = e2e_tokenize(c, &in, special, 0, &ids, NULL);
            if (!equal_ids(!special && plain ? plain : json_object_get(l.line[i], "ids"), ids, count))
                fail_msg("line %zu", i + 1);
            free(ids);
        }
    }
    free_lines(&l);
}

static void chats(e2e_cluster *c) {
    lines l = read_lines(GOLDEN "chat.jsonl");
    for (size_t i = 0; i < l.count; i++) {
        const json_t *messages = json_object_get(l.line[i], "messages");
        e2e_ask in = {.messages = json_array_size(messages), .max = 1};
        assert_true(in.messages <= E2E_MESSAGES_MAX);
        for (size_t k = 0; k < in.messages; k++) {
            in.roles[k] = json_string_value(json_object_get(json_array_get(messages, k), "role"));
            in.contents[k] = json_string_value(json_object_get(json_array_get(messages, k), "content"));
        }
        uint32_t *ids;
        size_t count = e2e_tokenize(c, &in, false, -1, &ids, NULL);
        if (!equal_ids(json_object_get(l.line[i], "ids"), ids, count)) fail_msg("chat line %zu", i + 1);
        free(ids);
        e2e_answer got;
        e2e_gen_ok(c, &in, &got);
        assert_int_equal(got.prompt_tokens, count);
        e2e_answer_free(&got);
    }
    assert_true(l.count >= 8);
    free_lines(&l);
}

typedef struct {
    double sum, max;
    size_t count;
} error_sum;

static void add_error(error_sum *e, double got, double want) {
    double d = fabs(got - want);
    e->sum += d;
    e->max = KVF_MAX(e->max, d);
    e->count++;
}

static void check_error(const char *what, const error_sum *e, double mean, double max) {
    print_message("%s: %zu values, mean %.4f of %.4f, max %.3f of %.3f\n", what, e->count, e->sum / (double)e->count,
        mean, e->max, max);
    assert_true(e->count > 0 && e->sum / (double)e->count <= mean && e->max <= max);
}

/* Steps step, step + every, ...: shipped and not, in turn; the whole continuations run warm over the prefix cache. */
static void greedy(e2e_cluster *c, size_t every, double mean, double max) {
    lines l = read_lines(GOLDEN "greedy.jsonl");
    error_sum e = {0};
    size_t compared = 0;
    for (size_t i = 0; i < l.count; i++) {
        static uint32_t ids[8192];
        size_t prompt = ids_of(json_object_get(l.line[i], "ids"), ids, 4096);
        const json_t *out = json_object_get(l.line[i], "out"), *gap = json_object_get(l.line[i], "gap");
        const json_t *logprob = json_object_get(l.line[i], "logprob");
        size_t steps = ids_of(out, ids + prompt, 4096);
        for (size_t k = i % every; k < steps; k += every) {
            e2e_ask a;
            e2e_answer got;
            e2e_ask_ids(&a, ids, prompt + k, 1);
            a.logprobs = true;
            a.dis = k % 2 ? E2E_ALWAYS : E2E_AUTO;
            e2e_gen_ok(c, &a, &got);
            bool same = got.choice[0].ids[0] == ids[prompt + k];
            if (json_number_value(json_array_get(gap, k)) > 2 * max) {
                if (!same) fail_msg("line %zu step %zu: %u", i + 1, k, got.choice[0].ids[0]);
                compared++;
            }
            if (same) add_error(&e, got.choice[0].logprobs[0], json_number_value(json_array_get(logprob, k)));
            e2e_answer_free(&got);
        }
    }
    free_lines(&l);
    assert_true(compared >= 10);
    check_error("greedy", &e, mean, max);
}

static void prompt_logprobs(e2e_cluster *c, size_t lines_max, double mean, double max) {
    lines l = read_lines(GOLDEN "logprobs.jsonl");
    error_sum e = {0};
    for (size_t i = 0; i < l.count && i < lines_max; i++) {
        static uint32_t ids[8192];
        size_t count = ids_of(json_object_get(l.line[i], "ids"), ids, 8192);
        const json_t *want = json_object_get(l.line[i], "token_logprobs");
        e2e_ask a;
        e2e_answer got;
        e2e_ask_ids(&a, ids, count, 1);
        a.prompt_logprobs = true;
        a.dis = i % 2 ? E2E_NEVER : E2E_ALWAYS;
        e2e_gen_ok(c, &a, &got);
        assert_int_equal(got.usage_cached, 0);
        assert_int_equal(got.prompt_items, count);
        for (size_t k = 1; k < count; k++)
            add_error(&e, got.prompt_logprobs[k - 1], json_number_value(json_array_get(want, k)));
        e2e_answer_free(&got);
    }
    free_lines(&l);
    check_error("prompt logprobs", &e, mean, max);
}

static void fast(void **state) {
    (void)state;
    const char *args[] = {"--kv-memory", "128MiB", NULL};
    e2e_cluster c;
    e2e_start(&c, E2E_SMOLLM2, args);
    tokens(&c);
    chats(&c);
    greedy(&c, 8, 0.03, 0.6);
    prompt_logprobs(&c, LINES_MAX, 0.06, 0.8);
    e2e_assert_clean(&c);
    e2e_stop(&c);
}

static void exact(void **state) {
    (void)state;
    const char *args[] = {"--kv-memory", "128MiB", "--precision=exact", NULL};
    e2e_cluster c;
    e2e_start(&c, E2E_SMOLLM2, args);
    greedy(&c, 16, 0.002, 0.03);
    prompt_logprobs(&c, 5, 0.002, 0.03);
    e2e_assert_clean(&c);
    e2e_stop(&c);
}

int main(void) {
    e2e_need_file(E2E_SMOLLM2, "sample model");
    const struct CMUnitTest tests[] = {cmocka_unit_test(fast), cmocka_unit_test(exact)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
