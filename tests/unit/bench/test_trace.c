/* Both formats: what is read, and that each kind of mistake is told with file, line and field. */
#include "kvf/load_trace.h"
#include <setjmp.h>
#include <stdarg.h>
#include <cmocka.h>
#include <stdio.h>
#include <stdlib.h>

#define COLUMNS "TIMESTAMP,ContextTokens,GeneratedTokens\n"
#define ROW "{\"timestamp\": 5, \"input_length\": 700, \"output_length\": 3, \"hash_ids\": [1, 2]}\n"

static kvf_status parse(const char *text, size_t rows_max, kvf_load_trace *t, kvf_error *err) {
    *err = (kvf_error){0};
    return kvf_load_trace_parse("t.x", text, strlen(text), rows_max, t, err);
}

static void azure(void **state) {
    kvf_load_trace t;
    kvf_error err;
    assert_int_equal(parse(COLUMNS "2023-11-16 18:17:03.9799600,4808,10\r\n\n2023-11-16 18:17:04.0319600,3180,8\n"
                                   "2023-11-17 00:00:00,1,16777216",
                         0, &t, &err),
        KVF_OK);
    assert_int_equal(t.format, KVF_LOAD_AZURE);
    assert_int_equal(t.count, 3);
    assert_null(t.hashes);
    assert_true(t.rows[0].at_ns == 0 && t.rows[0].input == 4808 && t.rows[0].output == 10);
    assert_true(t.rows[1].at_ns == 52 * KVF_NS_PER_MS);
    assert_true(t.rows[2].at_ns == (5 * 3600 + 42 * 60 + 56) * KVF_NS_PER_S + 20040000);
    assert_true(t.input_max == 4808 && t.output_max == 16777216 && t.total_max == 16777217);
    kvf_load_trace_fini(&t);
}

/* Other columns, another order, zones, leap days and the turn of a year. */
static void azure_variants(void **state) {
    kvf_load_trace t;
    kvf_error err;
    assert_int_equal(parse("GeneratedTokens , id,TIMESTAMP,ContextTokens\n7,x,2024-02-28T23:59:59.5+00:00,9\n"
                           "8,,2024-03-01 00:00:00Z,10\n9,y,2025-01-01 00:00:00.000+00:00,11\n",
                         2, &t, &err),
        KVF_OK);
    assert_int_equal(t.count, 2);
    assert_true(t.rows[0].input == 9 && t.rows[0].output == 7);
    assert_true(t.rows[1].at_ns == 86400 * KVF_NS_PER_S + KVF_NS_PER_S / 2);
    kvf_load_trace_fini(&t);
}

static void mooncake(void **state) {
    kvf_load_trace t;
    kvf_error err;
    assert_int_equal(parse("\xef\xbb\xbf" ROW "{\"hash_ids\":[18446744073709551615],\"type\":{\"a\":[\"}\\\"\",null]},"
                           "\"output_length\":1,\"input_length\":512,\"timestamp\":7.25}",
                         0, &t, &err),
        KVF_OK);
    assert_int_equal(t.format, KVF_LOAD_MOONCAKE);
    assert_int_equal(t.count, 2);
    assert_int_equal(t.hashes_count, 3);
    assert_true(t.rows[0].at_ns == 0 && t.rows[0].input == 700 && t.rows[0].output == 3 && t.rows[0].hash_first == 0);
    assert_true(t.rows[1].at_ns == 2250000 && t.rows[1].hash_first == 2);
    assert_true(t.hashes[0] == 1 && t.hashes[1] == 2 && t.hashes[2] == UINT64_MAX);
    kvf_load_trace_fini(&t);
}

static const struct {
    const char *text, *begins;
} wrong[] = {
    {"", "t.x:0: file: "},
    {"\n\n", "t.x:2: file: "},
    {COLUMNS, "t.x:1: file: "},
    {"TIMESTAMP,ContextTokens\n", "t.x:1: GeneratedTokens: "},
    {"TIMESTAMP,TIMESTAMP,ContextTokens,GeneratedTokens\n", "t.x:1: TIMESTAMP: "},
    {COLUMNS "2023-11-16 18:17:03,1\n", "t.x:2: row: 2 cells under 3"},
    {COLUMNS "\n2023-11-16 18:17:03,x,1\n", "t.x:3: ContextTokens: \"x\""},
    {COLUMNS "2023-11-16 18:17:03,0,1\n", "t.x:2: ContextTokens: \"0\""},
    {COLUMNS "2023-11-16 18:17:03,1,99999999999999999999\n", "t.x:2: GeneratedTokens: "},
    {COLUMNS "2023-11-16 18:17:03,1,-1\n", "t.x:2: GeneratedTokens: \"-1\""},
    {COLUMNS "2023-13-16 18:17:03,1,1\n", "t.x:2: TIMESTAMP: "},
    {COLUMNS "2023-04-31 18:17:03,1,1\n", "t.x:2: TIMESTAMP: "},
    {COLUMNS "2023-02-30 18:17:03,1,1\n", "t.x:2: TIMESTAMP: "},
    {COLUMNS "2023-11-16,1,1\n", "t.x:2: TIMESTAMP: "},
    {COLUMNS "2023-11-16 24:17:03,1,1\n", "t.x:2: TIMESTAMP: "},
    {COLUMNS "2023-11-16 18:17:03.,1,1\n", "t.x:2: TIMESTAMP: "},
    {COLUMNS "2023-11-16 18:17:03 x,1,1\n", "t.x:2: TIMESTAMP: "},
    {COLUMNS "2023-11-16 18:17:03,1,1\n2023-11-16 18:17:02,1,1\n", "t.x:3: TIMESTAMP: earlier"},
    {ROW "x\n", "t.x:2: row: not a JSON object"},
    {ROW "{\"timestamp\": 4, \"input_length\": 1, \"output_length\": 1, \"hash_ids\": [1]}",
        "t.x:2: timestamp: earlier"},
    {"{\"timestamp\": -4, \"input_length\": 1, \"output_length\": 1, \"hash_ids\": [1]}", "t.x:1: timestamp: \"-4\""},
    {"{\"timestamp\": 4e3, \"input_length\": 1, \"output_length\": 1, \"hash_ids\": [1]}", "t.x:1: timestamp: \"4e3\""},
    {"{\"timestamp\": 4, \"input_length\": 0, \"output_length\": 1, \"hash_ids\": []}", "t.x:1: input_length: \"0\""},
    {"{\"timestamp\": 4, \"input_length\": 1, \"output_length\": \"1\", \"hash_ids\": []}", "t.x:1: output_length: "},
    {"{\"timestamp\": 4, \"input_length\": 1, \"output_length\": 1.5, \"hash_ids\": []}",
        "t.x:1: output_length: \"1.5\""},
    {"{\"timestamp\": 4, \"input_length\": 513, \"output_length\": 1, \"hash_ids\": [1]}",
        "t.x:1: hash_ids: 1 ids for 513"},
    {"{\"timestamp\": 4, \"input_length\": 1, \"output_length\": 1, \"hash_ids\": [a]}", "t.x:1: hash_ids: \"a\""},
    {"{\"timestamp\": 4, \"input_length\": 1, \"output_length\": 1, \"hash_ids\": 7}", "t.x:1: hash_ids: \"7\""},
    {"{\"timestamp\": 4, \"input_length\": 1, \"output_length\": 1, \"hash_ids\": [1", "t.x:1: hash_ids: the list"},
    {"{\"timestamp\": 4, \"input_length\": 1, \"hash_ids\": [1]}", "t.x:1: output_length: missing"},
    {"{\"timestamp\": 4, \"timestamp\": 4}", "t.x:1: timestamp: twice"},
    {"{\"timestamp\": 4, \"chat\": [}", "t.x:1: chat: its value"},
    {"{\"timestamp\": 4, \"c\": [[[[[[[[[[[[[[[[[1]]]]]]]]]]]]]]]]]}", "t.x:1: c: its value"},
    {"{\"timestamp\": 4", "t.x:1: row: the object"},
    {"{\"timestamp", "t.x:1: row: not a member"},
    {"{}", "t.x:1: timestamp: missing"},
    {"{\"timestamp\": 4, \"input_length\": 1, \"output_length\": 1, \"hash_ids\": [1]} {}", "t.x:1: row: something"},
};

static void mistakes(void **state) {
    for (size_t i = 0; i < KVF_COUNT_OF(wrong); i++) {
        kvf_load_trace t = {.count = 77};
        kvf_error err;
        kvf_status status = parse(wrong[i].text, 0, &t, &err);
        if (status != KVF_ERR_FORMAT || strncmp(err.message, wrong[i].begins, strlen(wrong[i].begins)) != 0)
            fail_msg("case %zu: \"%s\", expected \"%s...\"", i, err.message, wrong[i].begins);
        assert_int_equal(t.count, 77); /* written only on success */
    }
}

/* Rows after those that are wanted are not looked at. */
static void only_what_is_wanted(void **state) {
    kvf_load_trace t;
    kvf_error err;
    assert_int_equal(parse(ROW ROW "rubbish", 2, &t, &err), KVF_OK);
    assert_int_equal(t.count, 2);
    kvf_load_trace_fini(&t);
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(azure), cmocka_unit_test(azure_variants),
        cmocka_unit_test(mooncake), cmocka_unit_test(mistakes), cmocka_unit_test(only_what_is_wanted)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
