/* Reports of `bench serve`: JSON that another parser reads, pages that are closed in themselves, also of runs in which
 * nothing went well and of names that mean something in either. */
#include "cli_test.h"
#include "bench_report.h"
#include "bench_workload.h"
#include "../../support/markup.h"
#include <jansson.h>
#include <math.h>
#include <stdlib.h>

static const char nasty[] = "a\"b<c>&\n\xff";

typedef struct {
    kvf_load_plan plan;
    kvf_load_tally tally;
    kvf_bench_trial trials[2];
    kvf_bench_report report;
} fixture;

static fixture *make(uint32_t answers) {
    fixture *f = calloc(1, sizeof *f);
    assert_non_null(f);
    f->plan.count = 7;
    f->plan.scale = 1;
    kvf_series_begin(&f->tally.tokens, KVF_NS_PER_S);
    kvf_series_begin(&f->tally.arrivals, KVF_NS_PER_S);
    for (uint32_t i = 0; i < answers; i++) {
        kvf_hist_add(&f->tally.ttft, (i + 1) * KVF_NS_PER_MS);
        kvf_series_add(&f->tally.tokens, i * KVF_NS_PER_S, 3);
    }
    f->tally.completed = answers;
    f->tally.duration_s = answers;
    f->report = (kvf_bench_report){.router = nasty,
        .model = nasty,
        .workload = nasty,
        .disaggregate = "auto",
        .plan = &f->plan,
        .tally = &f->tally,
        .trials = f->trials};
    return f;
}

static json_t *read_back(const kvf_bench_report *r) {
    kvf_buf b = {0};
    json_error_t why;
    kvf_bench_report_json(r, &b);
    json_t *j = json_loads(b.text, JSON_REJECT_DUPLICATES, &why);
    if (!j) fail_msg("%s: %s", why.text, b.text);
    kvf_buf_fini(&b);
    return j;
}

static void check_page(const kvf_bench_report *r) {
    kvf_buf b = {0};
    char why[200];
    kvf_bench_report_html(r, &b);
    if (markup_wrong(b.text, why)) fail_msg("%s", why);
    assert_null(strstr(b.text, "nan"));
    assert_null(strstr(b.text, "inf"));
    kvf_buf_fini(&b);
}

static double number(json_t *j, const char *key) {
    json_t *v = json_object_get(j, key);
    if (!json_is_number(v)) fail_msg("%s is no number", key);
    return json_number_value(v);
}

static void of_nothing(void **state) {
    fixture *f = make(0);
    f->report.errors[0] = 3;
    f->report.errors[14] = 4;
    json_t *j = read_back(&f->report);
    assert_true(number(j, "completed") == 0 && number(j, "p99_ttft_ms") == 0 && number(j, "request_throughput") == 0);
    assert_true(
        json_is_null(json_object_get(j, "request_goodput")) && json_is_null(json_object_get(j, "request_rate")));
    assert_true(number(json_object_get(j, "errors"), "UNAVAILABLE") == 4);
    assert_true(number(json_object_get(j, "errors"), "NO_TOKEN") == 3);
    json_decref(j);
    check_page(&f->report);
    f->report.searched = true;
    check_page(&f->report);
    json_decref(read_back(&f->report));
    free(f);
}

static void of_a_search(void **state) {
    fixture *f = make(100);
    f->report.searched = true;
    f->report.limits = (kvf_load_limits){.ttft_ns = 90 * KVF_NS_PER_MS};
    f->report.trials_count = 2;
    f->trials[0] = (kvf_bench_trial){.rate = 2, .counted = 10, .inside = 9, .passed = true};
    f->trials[1] = (kvf_bench_trial){.rate = 4, .cut_short = true};
    f->report.goodput = 2;
    f->tally.inside = 90;
    json_t *j = read_back(&f->report), *g = json_object_get(j, "goodput");
    assert_true(number(j, "p90_ttft_ms") >= 89.6 && number(j, "p90_ttft_ms") <= 90.4);
    assert_true(number(j, "request_goodput") == 0.9 && number(j, "ttft_limit_ms") == 90);
    assert_true(number(g, "rate") == 2 && json_array_size(json_object_get(g, "trials")) == 2);
    assert_true(json_is_null(json_object_get(g, "failing_rate")));
    json_decref(j);
    check_page(&f->report);
    free(f);
}

/* The check of pages itself can fail. */
static void pages_that_are_wrong(void **state) {
    static const char *const wrong[] = {
        "<p>", "</p>", "<p><b></p></b>", "<p", "<p>http://x</p>", "<p><a b=\"\" src=\"\"/></p>"};
    char why[200];
    for (size_t i = 0; i < KVF_COUNT_OF(wrong); i++) assert_non_null(markup_wrong(wrong[i], why));
    assert_null(markup_wrong("<!DOCTYPE html><p class=\"x\">a<br/><b>c</b></p>", why));
}

/* Each line is one request of the plan, with the very tokens that would be sent. */
static void a_workload(void **state) {
    enum { N = 40, LONGEST = 30 };
    kvf_load_options o = {
        .seed = 5, .vocab = 70000, .context = 99, .rate = 1, .requests = N, .input = {1, LONGEST}, .output = {2, 9}};
    kvf_load_plan p;
    kvf_error err = {0};
    uint32_t ids[LONGEST];
    char *text = NULL;
    size_t len_bytes;
    FILE *f = open_memstream(&text, &len_bytes);
    assert_int_equal(kvf_load_plan_make(&o, &p, &err), KVF_OK);
    assert_int_equal(kvf_bench_workload_write(&p, f), KVF_OK);
    fclose(f);
    char *line = text;
    for (uint32_t i = 0; i < N; i++) {
        char *end = strchr(line, '\n');
        assert_non_null(end);
        *end = 0;
        json_error_t why;
        json_t *j = json_loads(line, JSON_REJECT_DUPLICATES, &why), *prompt = json_object_get(j, "prompt");
        assert_true(fabs(number(j, "due_s") * 1e9 - (double)p.requests[i].at_ns) < 1);
        assert_true(number(j, "output") == p.requests[i].output);
        assert_int_equal(json_array_size(prompt), p.requests[i].input);
        kvf_load_plan_prompt(&p, i, ids);
        for (uint32_t at = 0; at < p.requests[i].input; at++)
            assert_int_equal(json_integer_value(json_array_get(prompt, at)), ids[at]);
        json_decref(j);
        line = end + 1;
    }
    assert_int_equal(*line, 0);
    free(text);
    f = fopen("/dev/full", "w");
    setbuf(f, NULL);
    assert_int_equal(kvf_bench_workload_write(&p, f), KVF_ERR_IO);
    fclose(f);
    kvf_load_plan_fini(&p);
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(a_workload), cmocka_unit_test(of_nothing),
        cmocka_unit_test(of_a_search), cmocka_unit_test(pages_that_are_wrong)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
