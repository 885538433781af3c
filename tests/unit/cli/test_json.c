/* Messages as JSON: checked by reading them back with another implementation (jansson) and byte for byte where that
 * matters. */
#include "cli_test.h"
#include "json.h"
#include "kvf/proto.h"
#include "kvferry/v1/kvferry.pb-c.h"
#include <jansson.h>
#include <math.h>

static const char *text_of(const ProtobufCMessage *m, kvf_buf *b) {
    b->len_bytes = 0;
    kvf_json_message(b, m);
    return b->text;
}

static void scalars_keep_their_names_and_defaults(void **state) {
    kvf_buf b = {0};
    Kvferry__V1__BlockCounts counts = KVFERRY__V1__BLOCK_COUNTS__INIT;
    counts.total = UINT64_MAX;
    assert_string_equal(text_of(&counts.base, &b), "{\"total\":18446744073709551615,\"free\":0,\"filling\":0,"
                                                   "\"sealed\":0,\"pinned\":0,\"in_use\":0,\"booked\":0}");
    Kvferry__V1__AuditResponse audit = KVFERRY__V1__AUDIT_RESPONSE__INIT;
    assert_string_equal(
        text_of(&audit.base, &b), "{\"violations\":[],\"blocks_checked\":0,\"at_rest\":false,\"nodes\":[]}");
    kvf_buf_fini(&b);
}

static void enums_lists_and_messages(void **state) {
    kvf_buf b = {0};
    Kvferry__V1__NodeStatus node = KVFERRY__V1__NODE_STATUS__INIT, *nodes[] = {&node};
    node.id = kvf_proto_text("p0");
    node.role = KVFERRY__V1__ROLE__ROLE_PREFILL;
    node.state = (Kvferry__V1__NodeState)77;
    node.waste_ratio = 0.1f;
    node.decode_tokens_per_s = NAN;
    node.prefill_tokens_per_s = INFINITY;
    Kvferry__V1__ClusterState s = KVFERRY__V1__CLUSTER_STATE__INIT;
    s.n_nodes = 1;
    s.nodes = nodes;
    json_t *j = json_loads(text_of(&s.base, &b), JSON_REJECT_DUPLICATES, NULL);
    assert_non_null(j);
    const json_t *n = json_array_get(json_object_get(j, "nodes"), 0);
    assert_string_equal(json_string_value(json_object_get(n, "id")), "p0");
    assert_string_equal(json_string_value(json_object_get(n, "role")), "ROLE_PREFILL");
    assert_int_equal(json_integer_value(json_object_get(n, "state")), 77);
    assert_true(json_is_null(json_object_get(n, "decode_tokens_per_s")));
    assert_true(json_is_null(json_object_get(n, "prefill_tokens_per_s")));
    assert_null(json_object_get(n, "blocks")); /* a message that is absent */
    assert_non_null(strstr(b.text, "\"waste_ratio\":0.1,")); /* shortest, not 0.100000001 */
    json_decref(j);
    kvf_buf_fini(&b);
}

static void oneofs_show_what_is_set(void **state) {
    kvf_buf b = {0};
    Kvferry__V1__SamplingParams s = KVFERRY__V1__SAMPLING_PARAMS__INIT;
    assert_string_equal(text_of(&s.base, &b), "{\"logit_bias\":[]}");
    s._temperature_case = KVFERRY__V1__SAMPLING_PARAMS___TEMPERATURE_TEMPERATURE;
    s.temperature = 0;
    assert_string_equal(text_of(&s.base, &b), "{\"temperature\":0,\"logit_bias\":[]}");
    Kvferry__V1__Finished f = KVFERRY__V1__FINISHED__INIT;
    f.matched_case = KVFERRY__V1__FINISHED__MATCHED_STOP_SEQUENCE;
    f.stop_sequence = kvf_proto_text("\n\n");
    text_of(&f.base, &b);
    assert_non_null(strstr(b.text, "\"stop_sequence\":\"\\n\\n\""));
    assert_null(strstr(b.text, "stop_token_id"));
    kvf_buf_fini(&b);
}

static void bytes_are_text_where_they_can_be(void **state) {
    kvf_buf b = {0};
    static const char nul[] = "a\0b\x7F\"\\\t\u00e9";
    Kvferry__V1__TokenLogprob p = KVFERRY__V1__TOKEN_LOGPROB__INIT;
    p.token = kvf_proto_bytes(nul, sizeof nul - 1);
    text_of(&p.base, &b);
    assert_non_null(strstr(b.text, "\"a\\u0000b\\u007f\\\"\\\\\\u0009\u00e9\""));
    p.token = kvf_proto_bytes(" \xF0\x9F\x98", 4); /* the beginning of an emoji */
    text_of(&p.base, &b);
    assert_non_null(strstr(b.text, "\"token\":[32,240,159,152]"));
    b.len_bytes = 0;
    kvf_json_string(&b, "x\xFFy\xED\xA0\x80", 6);
    assert_string_equal(b.text, "\"x\uFFFDy\uFFFD\uFFFD\uFFFD\"");
    kvf_buf_fini(&b);
}

static void numbers_read_back_the_same(void **state) {
    static const double values[] = {0, -0.5, 1e-300, 1.0 / 3, 188743680, 9007199254740993.0, 1e300, 6.5536e9};
    for (size_t i = 0; i < KVF_COUNT_OF(values); i++) {
        kvf_buf b = {0};
        kvf_json_double(&b, values[i]);
        assert_true(strtod(b.text, NULL) == values[i]);
        kvf_buf_fini(&b);
    }
    kvf_buf b = {0};
    kvf_json_double(&b, 188743680);
    assert_string_equal(b.text, "188743680");
    b.len_bytes = 0;
    kvf_json_float(&b, -0.3010300099849701f);
    assert_true(strtof(b.text, NULL) == -0.3010300099849701f);
    kvf_buf_fini(&b);
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(scalars_keep_their_names_and_defaults),
        cmocka_unit_test(enums_lists_and_messages), cmocka_unit_test(oneofs_show_what_is_set),
        cmocka_unit_test(bytes_are_text_where_they_can_be), cmocka_unit_test(numbers_read_back_the_same)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
