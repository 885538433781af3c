/* Option tables: forms, kinds, ranges, precedence, help, suggestions; units. */
#include "args.h"
#include "cli_test.h"
#include "units.h"
#include <stdlib.h>

typedef struct {
    bool loud;
    const char *model;
    kvf_arg_texts stop;
    uint32_t count, mode;
    int32_t priority;
    uint64_t seed, memory, wait_ns;
    double heat, link;
} options;
#define AT(f) offsetof(options, f)
static const kvf_arg rows[] = {
    {"loud", 'l', KVF_ARG_FLAG, "", "say more", AT(loud), 0, 0, NULL, false},
    {"model", 'm', KVF_ARG_TEXT, "FILE", "the file", AT(model), 0, 0, "KVF_TEST_MODEL", false},
    {"stop", 0, KVF_ARG_TEXTS, "TEXT", "end there", AT(stop), 0, 0, NULL, false},
    {"count", 'n', KVF_ARG_U32, "N", "how many", AT(count), 1, 10, "KVF_TEST_COUNT", false},
    {"priority", 0, KVF_ARG_I32, "P", "first", AT(priority), 0, 0, NULL, false},
    {"seed", 0, KVF_ARG_U64, "S", "luck", AT(seed), 0, 0, NULL, false},
    {"memory", 0, KVF_ARG_SIZE, "SIZE", "room", AT(memory), 0, 0, NULL, false},
    {"wait", 0, KVF_ARG_DURATION, "TIME", "patience", AT(wait_ns), 0, 0, NULL, false},
    {"heat", 't', KVF_ARG_F64, "T", "warmth", AT(heat), 0, 0, NULL, false},
    {"link", 0, KVF_ARG_RATE, "RATE", "wire", AT(link), 0, 0, NULL, false},
    {"mode", 0, KVF_ARG_CHOICE, "auto|always|never", "how", AT(mode), 0, 0, NULL, false},
    {"secret", 0, KVF_ARG_FLAG, "", "ours", AT(loud), 0, 0, NULL, true},
};
static const options defaults = {.count = 3, .heat = 1};
static const kvf_command command = {.name = "test",
    .positional = "[TEXT]",
    .positional_max = 1,
    .summary = "a test",
    .rows = rows,
    .rows_count = KVF_COUNT_OF(rows),
    .options_bytes = sizeof(options),
    .defaults = &defaults};

static kvf_args args;
static kvf_error err;
static const char *help;

#define PARSE(o, ...) parse(o, (char *[]){__VA_ARGS__, NULL})
static kvf_status parse(options *o, char **argv) {
    int argc = 0;
    while (argv[argc]) argc++;
    kvf_args_fini(&args);
    *o = defaults;
    err = (kvf_error){0};
    return kvf_args_parse(&command, argc, argv, o, &args, &help, &err);
}
static bool says(const char *text) { return strstr(err.message, text) != NULL; }

static void forms_are_equal(void **state) {
    options o;
    assert_int_equal(PARSE(&o, "--model", "a", "-n", "4", "-l", "text"), KVF_OK);
    assert_string_equal(o.model, "a");
    assert_int_equal(o.count, 4);
    assert_true(o.loud);
    assert_int_equal(args.positional_count, 1);
    assert_string_equal(args.positional[0], "text");
    assert_int_equal(PARSE(&o, "text", "--model=b", "-n5"), KVF_OK);
    assert_string_equal(o.model, "b");
    assert_int_equal(o.count, 5);
    assert_int_equal(PARSE(&o, "-l", "--no-loud"), KVF_OK);
    assert_false(o.loud);
    assert_int_equal(PARSE(&o, "--model=", "--", "--loud"), KVF_OK);
    assert_string_equal(o.model, "");
    assert_string_equal(args.positional[0], "--loud");
    assert_int_equal(PARSE(&o, "-"), KVF_OK);
    assert_string_equal(args.positional[0], "-");
}

static void kinds_are_checked(void **state) {
    options o;
    assert_int_equal(PARSE(&o, "--priority", "-3", "--seed", "18446744073709551615", "-t", "-0.5", "--mode", "never",
                         "--memory", "2GiB", "--wait", "1.5s", "--link", "100Gbit/s", "--stop", "a", "--stop=b"),
        KVF_OK);
    assert_int_equal(o.priority, -3);
    assert_true(o.seed == UINT64_MAX);
    assert_true(o.heat == -0.5);
    assert_int_equal(o.mode, 2);
    assert_true(o.memory == 2ull << 30);
    assert_true(o.wait_ns == 1500 * KVF_NS_PER_MS);
    assert_true(o.link == 12.5e9);
    assert_int_equal(o.stop.count, 2);
    assert_string_equal(o.stop.text[1], "b");
    static const struct {
        char *name, *value, *want;
    } bad[] = {{"-n", "0", "1 to 10"}, {"-n", "11", "1 to 10"}, {"-n", "4x", "4x"}, {"-n", "", "whole number"},
        {"--seed", "-1", "2^64"}, {"--seed", "18446744073709551616", "2^64"}, {"-t", "nan", "number"},
        {"-t", "inf", "number"}, {"--mode", "sometimes", "auto|"}, {"--mode", "alw", "auto|"},
        {"--memory", "2 apples", "size"}, {"--wait", "10", "duration"}, {"--link", "10GB", "rate"},
        {"--priority", "2147483648", "whole number"}};
    for (size_t i = 0; i < KVF_COUNT_OF(bad); i++) {
        assert_int_equal(PARSE(&o, bad[i].name, bad[i].value), KVF_ERR_INVALID);
        assert_true(says(bad[i].want));
    }
}

static void mistakes_name_what_was_meant(void **state) {
    options o;
    assert_int_equal(PARSE(&o, "--modle", "x"), KVF_ERR_INVALID);
    assert_true(says("did you mean --model?"));
    assert_int_equal(PARSE(&o, "--zzz"), KVF_ERR_INVALID);
    assert_true(says("--zzz") && !says("did you mean"));
    assert_int_equal(PARSE(&o, "--secre"), KVF_ERR_INVALID);
    assert_false(says("secret")); /* hidden ones are not suggested */
    assert_int_equal(PARSE(&o, "-z"), KVF_ERR_INVALID);
    assert_true(says("-z"));
    assert_int_equal(PARSE(&o, "--model"), KVF_ERR_INVALID);
    assert_true(says("--model FILE"));
    assert_int_equal(PARSE(&o, "--model", "--loud"), KVF_ERR_INVALID);
    assert_int_equal(PARSE(&o, "a", "b"), KVF_ERR_INVALID);
    assert_true(says("\"b\""));
    assert_int_equal(PARSE(&o, "-lx"), KVF_ERR_INVALID);
    assert_string_equal(kvf_nearest("heath", (const char *const[]){"audit", "health", "top"}, 3), "health");
    assert_null(kvf_nearest("xyzzy", (const char *const[]){"audit", "health", "top"}, 3));
}

static void flags_beat_environment_beats_defaults(void **state) {
    options o;
    assert_int_equal(PARSE(&o, "x"), KVF_OK);
    assert_int_equal(o.count, 3);
    assert_false(kvf_args_given(&command, &args, "count"));
    setenv("KVF_TEST_COUNT", "7", 1);
    assert_int_equal(PARSE(&o, "x"), KVF_OK);
    assert_int_equal(o.count, 7);
    assert_true(kvf_args_given(&command, &args, "count"));
    assert_int_equal(PARSE(&o, "-n", "2"), KVF_OK);
    assert_int_equal(o.count, 2);
    setenv("KVF_TEST_COUNT", "99", 1);
    assert_int_equal(PARSE(&o, "x"), KVF_ERR_INVALID);
    assert_true(says("environment KVF_TEST_COUNT"));
    assert_int_equal(PARSE(&o, "--help"), KVF_OK); /* help must come all the same */
    assert_non_null(help);
    unsetenv("KVF_TEST_COUNT");
}

static char *help_text(const char *word) {
    char *text = NULL;
    size_t size = 0;
    FILE *f = open_memstream(&text, &size);
    kvf_args_print_help(&command, word, f);
    fclose(f);
    return text;
}

static void help_comes_from_the_rows(void **state) {
    options o;
    assert_int_equal(PARSE(&o, "--help=wire", "--nonsense"), KVF_OK);
    assert_string_equal(help, "wire");
    char *text = help_text("");
    for (size_t i = 0; i < KVF_COUNT_OF(rows); i++) {
        char flag[40];
        snprintf(flag, sizeof flag, "--%s", rows[i].name);
        assert_int_equal(strstr(text, flag) != NULL, !rows[i].hidden);
    }
    assert_non_null(strstr(text, "[KVF_TEST_MODEL]"));
    free(text);
    text = help_text("wire");
    assert_non_null(strstr(text, "--link RATE"));
    assert_null(strstr(text, "--model"));
    free(text);
}

static void units_read_and_write(void **state) {
    uint64_t n;
    double rate;
    char out[KVF_UNITS_TEXT];
    static const struct {
        const char *text;
        uint64_t bytes;
    } sizes[] = {{"0", 0}, {"4096", 4096}, {"4096B", 4096}, {"1KiB", 1024}, {"1K", 1024}, {"1kB", 1000},
        {"512MiB", 512ull << 20}, {"1.5GiB", 3ull << 29}, {"2 TiB", 2ull << 40}, {"3Gi", 3ull << 30}};
    for (size_t i = 0; i < KVF_COUNT_OF(sizes); i++) {
        assert_int_equal(kvf_units_parse_size("x", sizes[i].text, &n, NULL), KVF_OK);
        assert_true(n == sizes[i].bytes);
    }
    static const char *const wrong[] = {"", "-1", "GiB", "1XiB", "1KiBs", "nan", "inf", "1e300", "0x10", "99999999TiB"};
    for (size_t i = 0; i < KVF_COUNT_OF(wrong); i++)
        assert_int_equal(kvf_units_parse_size("x", wrong[i], &n, NULL), KVF_ERR_INVALID);
    assert_int_equal(kvf_units_parse_rate("x", "10Gbps", &rate, NULL), KVF_OK);
    assert_true(rate == 1.25e9);
    assert_int_equal(kvf_units_parse_rate("x", "1GiB/s", &rate, NULL), KVF_OK);
    assert_true(rate == 1073741824.0);
    assert_int_equal(kvf_units_parse_rate("x", "5/s", &rate, NULL), KVF_ERR_INVALID);
    assert_string_equal(kvf_units_bytes(524288, out), "512 KiB");
    assert_string_equal(kvf_units_bytes(1.5 * 1024, out), "1.50 KiB");
    assert_string_equal(kvf_units_rate(6.5536e9, out), "6.55 GB/s");
    assert_string_equal(kvf_units_seconds(0.0851, out), "85.1 ms");
    assert_string_equal(kvf_units_count(19366, out), "19,366");
    assert_string_equal(kvf_units_count(1234567, out), "1,234,567");
    assert_string_equal(kvf_units_count(12.34, out), "12.3");
}

static int teardown(void **state) {
    kvf_args_fini(&args);
    return 0;
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(forms_are_equal), cmocka_unit_test(kinds_are_checked),
        cmocka_unit_test(mistakes_name_what_was_meant), cmocka_unit_test(flags_beat_environment_beats_defaults),
        cmocka_unit_test(help_comes_from_the_rows), cmocka_unit_test(units_read_and_write)};
    return cmocka_run_group_tests(tests, NULL, teardown);
}
