/* Requests that are wrong: refused by field, with the limit in the text; requests that are right become what they say.
 */
#include "tiny.h"
#include "plan.h"
#include "kvf/request_text.h"
#include <math.h>

static front_model model;
static const front_limits limits = {.context_max = 64, .stop_sequences_max = 16, .stop_sequence_bytes_max = 256};

typedef struct {
    Kvferry__V1__GenerateRequest r;
    Kvferry__V1__SamplingParams sampling;
    Kvferry__V1__StopParams stop;
    Kvferry__V1__OutputOptions output;
    Kvferry__V1__TokenIds ids;
    uint32_t numbers[512];
} request;

static void request_ids(request *q, uint32_t count) {
    kvferry__v1__generate_request__init(&q->r);
    kvferry__v1__sampling_params__init(&q->sampling);
    kvferry__v1__stop_params__init(&q->stop);
    kvferry__v1__output_options__init(&q->output);
    kvferry__v1__token_ids__init(&q->ids);
    q->r.sampling = &q->sampling;
    q->r.stop = &q->stop;
    q->r.output = &q->output;
    q->r.input_case = KVFERRY__V1__GENERATE_REQUEST__INPUT_TOKEN_IDS;
    q->r.token_ids = &q->ids;
    q->ids.n_ids = count;
    q->ids.ids = q->numbers;
    for (uint32_t i = 0; i < count; i++) q->numbers[i] = 'a' + i % 26;
}

static void max_tokens(request *q, uint32_t max) {
    q->stop._max_tokens_case = KVFERRY__V1__STOP_PARAMS___MAX_TOKENS_MAX_TOKENS;
    q->stop.max_tokens = max;
}

static front_plan plan_of(const request *q) {
    front_plan p;
    fault f = {0};
    if (!front_plan_make(&model, &limits, &q->r, 7, 0, &p, &f)) fail_msg("%s", f.text);
    return p;
}

static fault fault_of(const request *q) {
    front_plan p;
    fault f = {0};
    assert_false(front_plan_make(&model, &limits, &q->r, 7, 0, &p, &f));
    return f;
}

static void refused(const request *q, const char *field, const char *limit) {
    fault f = fault_of(q);
    assert_int_equal(f.code, KVF_RPC_INVALID_ARGUMENT);
    assert_string_equal(f.field, field);
    if (!strstr(f.text, limit)) fail_msg("\"%s\" does not name %s", f.text, limit);
}

static void the_plain_request_is_the_default_one(void **state) {
    (void)state;
    request q;
    request_ids(&q, 3);
    q.r.sampling = NULL;
    q.r.stop = NULL;
    q.r.output = NULL;
    front_plan p = plan_of(&q);
    assert_int_equal(p.n, 1);
    assert_false(p.max_given);
    assert_int_equal(p.prompt.count, 3);
    assert_true(p.sampling.temperature == 1.0f);
    assert_int_equal(p.sampling.seed, 7);
    assert_int_equal(p.mode, KVF_ROUTER_AUTO);
    assert_int_equal(p.prompt_logprobs, 0);
    assert_true(p.salt.lo == 0 && p.salt.hi == 0);
    front_plan_free(&p);
}

static void fields_arrive(void **state) {
    (void)state;
    request q;
    request_ids(&q, 3);
    uint32_t stop_ids[] = {5, 9};
    ProtobufCBinaryData stops[] = {kvf_proto_text("x"), kvf_proto_text("yz")};
    Kvferry__V1__LogitBias bias = KVFERRY__V1__LOGIT_BIAS__INIT, *bias_list[] = {&bias};
    bias.token_id = 12;
    bias.bias = -3;
    q.sampling.n_logit_bias = 1;
    q.sampling.logit_bias = bias_list;
    q.sampling._seed_case = KVFERRY__V1__SAMPLING_PARAMS___SEED_SEED;
    q.sampling.seed = 0;
    q.sampling._temperature_case = KVFERRY__V1__SAMPLING_PARAMS___TEMPERATURE_TEMPERATURE;
    q.sampling.temperature = 0;
    max_tokens(&q, 10);
    q.stop.min_tokens = 4;
    q.stop.n_token_ids = 2;
    q.stop.token_ids = stop_ids;
    q.stop.n_sequences = 2;
    q.stop.sequences = stops;
    q.stop.ignore_eos = q.stop.include_stop = true;
    q.output.top_logprobs = 3;
    q.output.token_ids = q.output.special_tokens_in_text = true;
    q.output._prompt_logprobs_case = KVFERRY__V1__OUTPUT_OPTIONS___PROMPT_LOGPROBS_PROMPT_LOGPROBS;
    q.r.n = 32;
    q.r.priority = -4;
    q.r.cache_salt = kvf_proto_text("s");
    q.r.disaggregate = KVFERRY__V1__DISAGGREGATE__DISAGGREGATE_NEVER;
    front_plan p = plan_of(&q);
    assert_int_equal(p.sampling.seed, 0);
    assert_true(p.sampling.temperature == 0);
    assert_int_equal(p.sampling.stop_ids_count, 2);
    assert_int_equal(p.sampling.stop_ids[1], 9);
    assert_int_equal(p.sampling.bias_count, 1);
    assert_int_equal(p.sampling.bias[0].token, 12);
    assert_true(p.sampling.bias[0].bias == -3);
    assert_int_equal(p.sampling.ignore_eos, 1);
    assert_int_equal(p.sampling.min_tokens, 4);
    assert_int_equal(p.sampling.top_logprobs, 3);
    assert_int_equal(p.sampling.want_logprobs, 1);
    assert_true(p.max_given && p.max_tokens == 10 && p.include_stop && p.want_ids && p.specials_in_text);
    assert_int_equal(p.prompt_logprobs, 1); /* k + 1 */
    assert_int_equal(p.stops_count, 2);
    assert_int_equal(p.n, 32);
    assert_int_equal(p.priority, -4);
    assert_true(p.salt.lo || p.salt.hi);
    assert_int_equal(p.mode, KVF_ROUTER_NEVER);
    front_plan_free(&p);
}

static void prompts_that_are_wrong(void **state) {
    (void)state;
    request q;
    request_ids(&q, 0);
    refused(&q, "token_ids", "empty");
    request_ids(&q, 2);
    q.numbers[1] = TINY_VOCAB;
    refused(&q, "token_ids", "320");
    q.numbers[1] = UINT32_MAX;
    refused(&q, "token_ids", "4294967295");
    request_ids(&q, 65);
    refused(&q, "token_ids", "64");
    request_ids(&q, 1);
    q.r.input_case = KVFERRY__V1__GENERATE_REQUEST__INPUT__NOT_SET;
    refused(&q, "input", "token_ids");
    q.r.input_case = KVFERRY__V1__GENERATE_REQUEST__INPUT_TEXT;
    q.r.text = kvf_proto_text("");
    q.r._add_bos_case = KVFERRY__V1__GENERATE_REQUEST___ADD_BOS_ADD_BOS;
    q.r.add_bos = false;
    refused(&q, "text", "empty");
    q.r.text = kvf_proto_text("ab\xc3(");
    refused(&q, "text", "2");
}

static void one_rule_for_the_context(void **state) { /* AP-06 */
    (void)state;
    static const struct {
        uint32_t prompt, max;
        bool given, ok;
    } rows[] = {{63, 1, true, true}, {64, 1, true, false}, {60, 10, true, false}, {60, 0, false, true},
        {60, 4, true, true}, {64, 0, false, false}, {64, 0, true, true}, {60, UINT32_MAX, true, false}};
    for (size_t i = 0; i < KVF_COUNT_OF(rows); i++) {
        request q;
        request_ids(&q, rows[i].prompt);
        if (rows[i].given) max_tokens(&q, rows[i].max);
        if (rows[i].ok) {
            front_plan p = plan_of(&q);
            assert_int_equal(p.prompt.count, rows[i].prompt);
            front_plan_free(&p);
        } else {
            refused(&q, rows[i].given ? "stop.max_tokens" : "input", "64");
        }
    }
}

static void reals_that_are_wrong(void **state) { /* AP-04 */
    (void)state;
    static const struct {
        const char *field;
        size_t case_at, value_at;
        float values[4];
    } rows[] = {
#define ROW(name, ...)                                                                                                 \
    {"sampling." #name, offsetof(request, sampling._##name##_case), offsetof(request, sampling.name), __VA_ARGS__}
        ROW(temperature, {-1, NAN, INFINITY, -0.5f}), ROW(top_p, {1.5f, NAN, -0.1f, INFINITY}),
        ROW(min_p, {1.5f, NAN, -0.1f, INFINITY}), ROW(repetition_penalty, {0, NAN, -1, INFINITY}),
        ROW(presence_penalty, {-2.5f, NAN, 2.5f, INFINITY}), ROW(frequency_penalty, {-2.5f, NAN, 2.5f, INFINITY})};
    for (size_t i = 0; i < KVF_COUNT_OF(rows); i++)
        for (size_t k = 0; k < 4; k++) {
            request q;
            request_ids(&q, 1);
            *(int *)(void *)((char *)&q + rows[i].case_at) = 1;
            *(float *)(void *)((char *)&q + rows[i].value_at) = rows[i].values[k];
            refused(&q, rows[i].field, "allowed");
        }
}

static void counts_that_are_wrong(void **state) {
    (void)state;
    request q;
    ProtobufCBinaryData stops[500];
    for (size_t i = 0; i < 500; i++) stops[i] = kvf_proto_text("x");
    request_ids(&q, 1);
    q.stop.sequences = stops;
    q.stop.n_sequences = 500;
    refused(&q, "stop.sequences", "16");
    char longer[258];
    memset(longer, 'x', sizeof longer);
    q.stop.n_sequences = 2;
    stops[1] = kvf_proto_bytes(longer, 257);
    refused(&q, "stop.sequences[1]", "256");
    stops[1] = kvf_proto_text("");
    refused(&q, "stop.sequences[1]", "empty");
    stops[1] = kvf_proto_text("\xff");
    refused(&q, "stop.sequences[1]", "UTF-8");
    request_ids(&q, 1);
    q.stop.n_token_ids = KVF_SAMPLER_STOP_IDS_MAX + 1;
    q.stop.token_ids = q.numbers;
    refused(&q, "stop.token_ids", "64");
    q.stop.n_token_ids = 1;
    q.numbers[0] = 1; /* the prompt's as well */
    uint32_t outside = TINY_VOCAB;
    q.stop.token_ids = &outside;
    refused(&q, "stop.token_ids", "320");
    request_ids(&q, 1);
    q.output.top_logprobs = 21;
    refused(&q, "output.top_logprobs", "20");
    request_ids(&q, 1);
    q.output._prompt_logprobs_case = KVFERRY__V1__OUTPUT_OPTIONS___PROMPT_LOGPROBS_PROMPT_LOGPROBS;
    q.output.prompt_logprobs = 21;
    refused(&q, "output.prompt_logprobs", "20");
    request_ids(&q, 1);
    q.r.n = 33;
    refused(&q, "n", "32");
    request_ids(&q, 1);
    max_tokens(&q, 5);
    q.stop.min_tokens = 6;
    refused(&q, "stop.min_tokens", "5");
}

static void what_is_not_built_is_refused(void **state) {
    (void)state;
    request q;
    Kvferry__V1__Constraint constraint = KVFERRY__V1__CONSTRAINT__INIT;
    request_ids(&q, 1);
    q.r.constraint = &constraint;
    refused(&q, "constraint", "not built");
    request_ids(&q, 1);
    q.r.disaggregate = (Kvferry__V1__Disaggregate)7;
    refused(&q, "disaggregate", "7");
}

static void texts_that_are_wrong(void **state) {
    (void)state;
    char longer[300];
    memset(longer, 'x', sizeof longer);
    static const struct {
        const char *field;
        size_t at;
    } rows[] = {{"cache_salt", offsetof(request, r.cache_salt)}, {"label", offsetof(request, r.label)},
        {"session", offsetof(request, r.session)}};
    for (size_t i = 0; i < KVF_COUNT_OF(rows); i++) {
        request q;
        request_ids(&q, 1);
        ProtobufCBinaryData *text = (ProtobufCBinaryData *)(void *)((char *)&q + rows[i].at);
        *text = kvf_proto_bytes(longer, sizeof longer);
        refused(&q, rows[i].field, "256");
        *text = kvf_proto_text("\xed\xa0\x80");
        refused(&q, rows[i].field, "UTF-8");
    }
}

static void an_unknown_model_is_not_found(void **state) {
    (void)state;
    request q;
    request_ids(&q, 1);
    q.r.model = kvf_proto_text("gpt-9");
    fault f = fault_of(&q);
    assert_int_equal(f.code, KVF_RPC_NOT_FOUND);
    assert_string_equal(f.reason, "UNKNOWN_MODEL");
    q.r.model = kvf_proto_text(model.id);
    front_plan p = plan_of(&q);
    front_plan_free(&p);
    q.r.model = kvf_proto_text("\xff");
    assert_int_equal(fault_of(&q).code, KVF_RPC_INVALID_ARGUMENT);
}

static void request_ids_go_both_ways(void **state) {
    (void)state;
    static const kvf_request_id ids[] = {{0x7f03a1b2c3d4e5f6, 12}, {1, UINT64_MAX}, {UINT64_MAX, 1}};
    static const char *const wrong[] = {"", "7f03a1b2c3d4e5f6", "7f03a1b2c3d4e5f6-", "7f03a1b2c3d4e5f6-0",
        "7f03a1b2c3d4e5f6-012", "7F03a1b2c3d4e5f6-12", "7f03a1b2c3d4e5f6-12 ", "7f03a1b2c3d4e5f6-18446744073709551616",
        "7f03a1b2c3d4e5f612"};
    char text[KVF_REQUEST_TEXT_MAX], hash_text[KVF_HASH_TEXT_MAX];
    for (size_t i = 0; i < KVF_COUNT_OF(ids); i++) {
        kvf_request_id back;
        kvf_request_id_format(ids[i], text);
        assert_true(kvf_request_id_parse(text, strlen(text), &back));
        assert_true(kvf_request_id_equal(back, ids[i]));
    }
    kvf_request_id_format(ids[0], text);
    assert_string_equal(text, "7f03a1b2c3d4e5f6-12");
    for (size_t i = 0; i < KVF_COUNT_OF(wrong); i++) {
        kvf_request_id back;
        assert_false(kvf_request_id_parse(wrong[i], strlen(wrong[i]), &back));
    }
    kvf_hash128 hash = {.lo = 0x0123456789abcdef, .hi = 0xfedcba9876543210}, back;
    kvf_hash_format(hash, hash_text);
    assert_string_equal(hash_text, "fedcba98765432100123456789abcdef");
    assert_true(kvf_hash_parse(hash_text, 32, &back) && kvf_hash128_equal(hash, back));
    assert_false(kvf_hash_parse(hash_text, 31, &back));
}

static int setup(void **state) {
    (void)state;
    tiny_load(&model);
    return 0;
}
static int teardown(void **state) {
    (void)state;
    front_model_free(&model);
    return 0;
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(the_plain_request_is_the_default_one),
        cmocka_unit_test(fields_arrive), cmocka_unit_test(prompts_that_are_wrong),
        cmocka_unit_test(one_rule_for_the_context), cmocka_unit_test(reals_that_are_wrong),
        cmocka_unit_test(counts_that_are_wrong), cmocka_unit_test(what_is_not_built_is_refused),
        cmocka_unit_test(texts_that_are_wrong), cmocka_unit_test(an_unknown_model_is_not_found),
        cmocka_unit_test(request_ids_go_both_ways)};
    return cmocka_run_group_tests(tests, setup, teardown);
}
