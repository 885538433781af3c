/* The golden template cases: what jinja2 prints under transformers' settings, byte for byte; errors name their line. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <cmocka.h>
#include "kvf/template.h"

static json_t *variables(const json_t *one) {
    json_t *vars = json_object(), *value;
    const char *key;
    json_object_set(vars, "messages", json_object_get(one, "messages"));
    json_object_set_new(vars, "add_generation_prompt", json_true());
    json_object_foreach(json_object_get(one, "context"), key, value) json_object_set(vars, key, value);
    return vars;
}

static bool check_case(const json_t *one) {
    const json_t *source = json_object_get(one, "template"), *want = json_object_get(one, "want");
    const char *name = json_string_value(json_object_get(one, "name"));
    kvf_template *t = NULL;
    kvf_template_output out = {0};
    kvf_error err = {0};
    json_t *vars = variables(one);
    kvf_status status = kvf_template_compile(json_string_value(source), json_string_length(source), &t, &err);
    if (status == KVF_OK) status = kvf_template_render(t, vars, NULL, 0, NULL, &out, &err);
    bool ok;
    if (want)
        ok = status == KVF_OK && out.len_bytes == json_string_length(want) &&
             memcmp(out.text, json_string_value(want), out.len_bytes) == 0;
    else
        ok = status != KVF_OK && status != KVF_ERR_INTERNAL && strstr(err.message, "line 1") != NULL;
    if (!ok)
        print_error("%s: status %s, printed [%s], error [%s]\n", name, kvf_status_name(status),
            out.text ? out.text : "", err.message);
    if (status == KVF_OK) kvf_template_output_free(&out);
    kvf_template_destroy(t);
    json_decref(vars);
    return ok;
}

static void golden_cases_are_printed_byte_for_byte(void **state) {
    FILE *f = fopen(KVF_SOURCE_DIR "/tests/golden/templates/cases.jsonl", "r");
    size_t count = 0, failed = 0;
    assert_non_null(f);
    for (json_t *one; (one = json_loadf(f, JSON_DISABLE_EOF_CHECK, NULL)) != NULL; json_decref(one)) {
        count++;
        failed += !check_case(one);
    }
    fclose(f);
    print_message("%zu golden template cases, %zu wrong\n", count, failed);
    assert_int_equal(count, 38);
    assert_int_equal(failed, 0);
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(golden_cases_are_printed_byte_for_byte)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
