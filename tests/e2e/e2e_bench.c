/* `kvferry bench serve` against real clusters: its JSON and its page, both trace formats, the search, and a cluster
 * that is killed under it. With the argument "traces": rows of the real traces, which lie outside the repository. */
#include "harness.h"
#include "../support/markup.h"
#include <jansson.h>
#include <math.h>
#include <signal.h>
#include <string.h>
#include <unistd.h>

enum { ARGS_MAX = 40 };
#define CLUSTER_ARGS                                                                                                   \
    (const char *[]) { "--kv-memory", "64MiB", "--threads", "1", NULL }

typedef struct {
    int status;
    json_t *json; /* NULL: none was written */
    char *page; /* NULL: as well */
} outcome;

static void temporary(char path[64]) {
    snprintf(path, 64, "/tmp/kvf-bench-XXXXXX");
    int fd = mkstemp(path);
    assert_true(fd >= 0);
    close(fd);
}

static char *read_and_remove(const char *path) {
    char *text = e2e_read_file(path);
    unlink(path);
    return text;
}

static void begin(
    e2e_process *p, e2e_cluster *c, const char *json, const char *page, const char *const *more, bool wait) {
    const char *argv[ARGS_MAX + 1] = {
        "bench", "serve", "--router", c->serve.grpc, "-o", json, "--html", page, "--timeout", "100s"};
    size_t count = 10;
    for (; *more; more++) {
        assert_true(count < ARGS_MAX);
        argv[count++] = *more;
    }
    if (wait)
        e2e_spawn(p, argv);
    else
        e2e_spawn_nowait(p, argv);
}

static outcome take(e2e_process *p, const char *json, const char *page) {
    outcome o = {.status = e2e_process_wait(p)};
    json_error_t why = {0};
    char *log = read_and_remove(p->log), *text = read_and_remove(json);
    if (log && log[0] && o.status == 0) print_message("%s", log);
    assert_true(log && !strchr(log, '\r')); /* no progress line where nobody sees it */
    if (text && text[0]) {
        o.json = json_loads(text, JSON_REJECT_DUPLICATES, &why);
        if (!o.json) fail_msg("%s: %s", why.text, text);
        assert_true(strchr(text, '\n') == text + strlen(text) - 1);
    }
    o.page = read_and_remove(page);
    free(log);
    free(text);
    return o;
}

static outcome bench(e2e_cluster *c, const char *const *more) {
    char json[64], page[64];
    e2e_process p = {0};
    temporary(json);
    temporary(page);
    begin(&p, c, json, page, more, true);
    return take(&p, json, page);
}

static void done(outcome *o) {
    json_decref(o->json);
    free(o->page);
}

static double number(json_t *j, const char *key) {
    json_t *v = json_object_get(j, key);
    if (!json_is_number(v)) fail_msg("%s is no number", key);
    return json_number_value(v);
}

static double of(json_t *j, const char *what, const char *metric) {
    char key[64];
    snprintf(key, sizeof key, "%s_%s_ms", what, metric);
    return number(j, key);
}

/* Names that scripts for vLLM's benchmark look for, and what must hold between their values. */
static void check_json(json_t *j) {
    static const char *const names[] = {"duration", "completed", "failed", "total_input_tokens", "total_output_tokens",
        "request_throughput", "output_throughput", "total_token_throughput", "max_concurrent_requests", "num_prompts"};
    static const char *const metrics[] = {"ttft", "tpot", "itl", "e2el"};
    static const char *const rising[] = {"min", "p50", "p90", "p95", "p99", "p99.9", "max"};
    for (size_t i = 0; i < KVF_COUNT_OF(names); i++) number(j, names[i]);
    for (size_t m = 0; m < KVF_COUNT_OF(metrics); m++) {
        for (size_t i = 1; i < KVF_COUNT_OF(rising); i++)
            assert_true(of(j, rising[i - 1], metrics[m]) <= of(j, rising[i], metrics[m]));
        assert_true(of(j, "median", metrics[m]) == of(j, "p50", metrics[m]));
        double mean = of(j, "mean", metrics[m]), error = 1e-9 * mean;
        assert_true(mean >= of(j, "min", metrics[m]) - error && mean <= of(j, "max", metrics[m]) + error);
        assert_true(of(j, "std", metrics[m]) >= 0);
        assert_true(of(j, "max", metrics[m]) <= of(j, "max", "e2el"));
    }
    for (size_t i = 0; i < KVF_COUNT_OF(rising); i++)
        assert_true(of(j, rising[i], "ttft") <= of(j, rising[i], "e2el") * 1.01);
    double seconds = number(j, "duration");
    assert_true(fabs(number(j, "request_throughput") * seconds - number(j, "completed")) < 1e-6);
    assert_true(fabs(number(j, "output_throughput") * seconds - number(j, "total_output_tokens")) < 1e-3);
    assert_true(of(j, "max", "e2el") <= seconds * 1000 + 1);
}

static void check_page(const outcome *o) {
    char why[200];
    uint32_t plots = 0;
    assert_non_null(o->page);
    if (markup_wrong(o->page, why)) fail_msg("%s", why);
    for (const char *at = o->page; (at = strstr(at, "<svg")); at++) plots++;
    assert_true(plots >= 5);
    assert_non_null(strstr(o->page, "<polyline points=\"70.0,"));
}

static double tokens_over_time(json_t *j) {
    json_t *list = json_object_get(json_object_get(j, "output_tokens_over_time"), "tokens"), *v;
    size_t i;
    double sum = 0;
    json_array_foreach(list, i, v) sum += json_number_value(v);
    return sum;
}

static void poisson(void **state) {
    e2e_cluster c;
    e2e_start(&c, E2E_TINY("llama"), CLUSTER_ARGS);
    outcome o = bench(&c, (const char *[]){"--rate", "40", "-n", "60", "--warmup", "6", "--input-tokens", "20:40",
                              "--output-tokens", "8", "--slo", "ttft=90s,tpot=90s", "--disaggregate", "always", NULL});
    assert_int_equal(o.status, 0);
    check_json(o.json);
    check_page(&o);
    assert_true(number(o.json, "completed") == 60 && number(o.json, "failed") == 0);
    assert_true(number(o.json, "total_output_tokens") == 480 && tokens_over_time(o.json) == 66 * 8);
    assert_true(number(o.json, "total_input_tokens") >= 1200 && number(o.json, "total_input_tokens") <= 2400);
    assert_true(number(o.json, "request_goodput") == number(o.json, "request_throughput"));
    assert_true(json_object_size(json_object_get(o.json, "errors")) == 0);
    done(&o);
    e2e_assert_clean(&c);
    e2e_stop(&c);
}

static outcome replay(e2e_cluster *c, const char *trace, const char *option, const char *value) {
    char path[64];
    temporary(path);
    FILE *f = fopen(path, "w");
    fputs(trace, f);
    fclose(f);
    outcome o = bench(c, (const char *[]){"--trace", path, "--context", "256", option, value, NULL});
    unlink(path);
    return o;
}

#define AZURE                                                                                                          \
    "TIMESTAMP,ContextTokens,GeneratedTokens\n2023-11-16 18:17:03.9799600,400,112\n2023-11-16 18:17:04.0319600,20,8\n" \
    "2023-11-16 18:17:04.1000000,100,4\n"

/* What a client of another server replays: as many tokens as the run below sends, and none are sent. */
static void dump(e2e_cluster *c, const char *trace) {
    char from[64], to[64];
    e2e_process p = {0};
    json_t *j;
    double prompts = 0, outputs = 0, due_s = -1;
    temporary(from);
    temporary(to);
    FILE *f = fopen(from, "w");
    fputs(trace, f);
    fclose(f);
    e2e_spawn(&p, (const char *[]){"bench", "serve", "--router", c->serve.grpc, "--trace", from, "--context", "256",
                      "--rate", "1", "--dump-workload", to, NULL});
    assert_int_equal(e2e_process_wait(&p), 0);
    f = fopen(to, "r");
    while ((j = json_loadf(f, JSON_REJECT_DUPLICATES | JSON_DISABLE_EOF_CHECK, NULL))) {
        assert_true(number(j, "due_s") >= due_s);
        due_s = number(j, "due_s");
        prompts += (double)json_array_size(json_object_get(j, "prompt"));
        outputs += number(j, "output");
        json_decref(j);
    }
    fclose(f);
    assert_true(prompts == 200 + 10 + 50 && outputs == 56 + 4 + 2);
    assert_true(fabs(due_s - 2) < 1e-6); /* three requests, one a second */
    Kvferry__V1__ClusterState *s = e2e_state(c);
    assert_true(s->requests_finished == 0);
    kvf_rpc_message_free(&s->base);
    unlink(from);
    unlink(to);
    unlink(p.log);
}

static void azure(void **state) {
    e2e_cluster c;
    e2e_start(&c, E2E_TINY("llama"), CLUSTER_ARGS);
    dump(&c, AZURE);
    outcome o = replay(&c, AZURE, "--rate", "30");
    assert_int_equal(o.status, 0);
    check_json(o.json);
    check_page(&o);
    assert_true(number(o.json, "completed") == 3 && number(o.json, "length_scale") == 0.5);
    assert_true(number(o.json, "total_input_tokens") == 200 + 10 + 50);
    assert_true(number(o.json, "total_output_tokens") == 56 + 4 + 2);
    done(&o);
    o = replay(&c, AZURE "2023-11-16 18:17:05,12,many\n", NULL, NULL);
    assert_int_equal(o.status, 1);
    assert_null(o.json);
    done(&o);
    e2e_stop(&c);
}

/* Two prompts that share two of three ids, at one moment, but sent one after the other: the blocks of the first are
 * found. */
static void mooncake_unloaded(void **state) {
    e2e_cluster c;
    e2e_start(&c, E2E_TINY("llama"), CLUSTER_ARGS);
    outcome o = replay(&c,
        "{\"timestamp\": 0, \"input_length\": 1536, \"output_length\": 64, \"hash_ids\": [4, 5, 6]}\n"
        "{\"timestamp\": 0, \"input_length\": 1400, \"output_length\": 64, \"hash_ids\": [4, 5, 7]}\n",
        "--unloaded", NULL);
    assert_int_equal(o.status, 0);
    check_json(o.json);
    assert_true(number(o.json, "prefix_block_tokens") == 80 && number(o.json, "length_scale") == 80.0 / 512);
    assert_true(number(o.json, "total_input_tokens") == 240 + 160 + 59);
    assert_true(number(o.json, "total_output_tokens") == 20);
    assert_true(number(o.json, "total_cached_tokens") == 160);
    assert_true(number(o.json, "max_concurrent_requests") == 1);
    done(&o);
    e2e_assert_clean(&c);
    e2e_stop(&c);
}

static void goodput(void **state) {
    e2e_cluster c;
    e2e_start(&c, E2E_TINY("llama"), CLUSTER_ARGS);
    outcome o = bench(&c, (const char *[]){"--find-goodput", "--ttft", "90s", "--rate", "20", "--max-rate", "50", "-n",
                              "10", "--warmup", "2", "--input-tokens", "16", "--output-tokens", "4", NULL});
    json_t *g = json_object_get(o.json, "goodput");
    assert_int_equal(o.status, 0);
    check_json(o.json);
    check_page(&o);
    assert_true(number(g, "rate") == 50 && json_array_size(json_object_get(g, "trials")) == 6);
    assert_true(json_is_null(json_object_get(g, "failing_rate")) && number(o.json, "request_rate") == 50);
    done(&o);
    o = bench(
        &c, (const char *[]){"--find-goodput", "--ttft", "1us", "--rate", "20", "--min-rate", "10", "-n", "10", NULL});
    g = json_object_get(o.json, "goodput");
    assert_int_equal(o.status, 1); /* no rate holds */
    check_page(&o);
    assert_true(number(g, "rate") == 0 && number(g, "failing_rate") == 10);
    done(&o);
    e2e_assert_clean(&c); /* what was cut short is let go of */
    e2e_stop(&c);
}

static bool some_are_finished(void *self) {
    Kvferry__V1__ClusterState *s = e2e_state(self);
    bool so = s->requests_finished >= 5;
    kvf_rpc_message_free(&s->base);
    return so;
}

/* The cluster dies under the load: what ran and what was still to come is counted as failed, and the run ends. */
static void killed(void **state) {
    char json[64], page[64];
    e2e_cluster c;
    e2e_process p = {0};
    e2e_start(&c, E2E_TINY("llama"), CLUSTER_ARGS);
    temporary(json);
    temporary(page);
    begin(&p, &c, json, page,
        (const char *[]){
            "--rate", "60", "-n", "240", "--input-tokens", "30", "--output-tokens", "20", "--ttft", "90s", NULL},
        false);
    e2e_until("five requests are answered", some_are_finished, &c);
    kill(c.serve.pid, SIGKILL);
    e2e_process_wait(&c.serve);
    e2e_detach(&c);
    outcome o = take(&p, json, page);
    assert_int_equal(o.status, 1); /* nobody reads its stdout */
    assert_non_null(o.json);
    check_page(&o);
    json_t *errors = json_object_get(o.json, "errors");
    double completed = number(o.json, "completed"), failed = number(o.json, "failed");
    print_message("%.0f completed, %.0f failed\n", completed, failed);
    assert_true(completed >= 5 && failed > 0 && completed + failed == 240);
    assert_true(number(errors, "UNAVAILABLE") == failed);
    assert_true(number(o.json, "request_goodput") == number(o.json, "request_throughput"));
    done(&o);
    unlink(c.serve.log);
}

static const char *const traces[] = {
    "azure-2023-code.csv", "azure-2023-conv.csv", "mooncake-conversation.jsonl", "mooncake-synthetic.jsonl"};

static void trace_path(char path[1024], size_t i) {
    const char *shared = getenv("KVF_SHARED");
    snprintf(path, 1024, "%s/traces/%s", shared ? shared : KVF_SOURCE_DIR "/../shared", traces[i]);
}

static void real_traces(void **state) {
    e2e_cluster c;
    e2e_start(&c, E2E_TINY("llama"), CLUSTER_ARGS);
    for (size_t i = 0; i < KVF_COUNT_OF(traces); i++) {
        char path[1024];
        trace_path(path, i);
        outcome o = bench(&c, (const char *[]){"--trace", path, "-n", "30", "--rate", "30", "--context", "1024", NULL});
        assert_int_equal(o.status, 0);
        check_json(o.json);
        assert_true(number(o.json, "completed") == 30);
        print_message("%s: x %.4f, %.0f cut, %.0f + %.0f tokens, %.0f cached\n", traces[i],
            number(o.json, "length_scale"), number(o.json, "cut_to_context"), number(o.json, "total_input_tokens"),
            number(o.json, "total_output_tokens"), number(o.json, "total_cached_tokens"));
        done(&o);
    }
    e2e_assert_clean(&c);
    e2e_stop(&c);
}

int main(int argc, char **argv) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(poisson), cmocka_unit_test(azure),
        cmocka_unit_test(mooncake_unloaded), cmocka_unit_test(goodput), cmocka_unit_test(killed)};
    const struct CMUnitTest real[] = {cmocka_unit_test(real_traces)};
    if (argc < 2) return cmocka_run_group_tests(tests, NULL, NULL);
    for (size_t i = 0; i < KVF_COUNT_OF(traces); i++) {
        char path[1024];
        trace_path(path, i);
        e2e_need_file(path, "trace");
    }
    return cmocka_run_group_tests(real, NULL, NULL);
}
