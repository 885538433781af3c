/* Everything that is read or made at start, with each of our calls failing in turn: model file, tokenizer, template,
 * configuration, engine, log. tests/support/fault.h says what is demanded of each run. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>
#include "fault.h"
#include "kvf/engine.h"
#include "kvf/kvferry_config.h"
#include "kvf/log.h"
#include "kvf/model_spec.h"
#include "kvf/os.h"
#include "kvf/template.h"
#include "kvf/tokenizer.h"
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

#define TINY KVF_SOURCE_DIR "/tests/golden/tiny/llama.gguf"

static kvf_status model_file(void *self, kvf_error *err) {
    kvf_gguf *g = NULL;
    kvf_model_spec spec;
    kvf_status status = kvf_gguf_open(self, &g, err);
    if (status != KVF_OK) return status;
    uint64_t hash[2] = {0};
    kvf_gguf_weights_hash(g, hash);
    status = kvf_model_spec_load(g, &spec, err);
    if (status == KVF_OK) kvf_model_spec_free(&spec);
    kvf_gguf_close(g);
    return status;
}

static kvf_status tokenizer(void *self, kvf_error *err) {
    static const char text[] = "a line of text <|im_start|> and more";
    kvf_tokenizer *t = NULL;
    uint32_t *ids = NULL;
    size_t count = 0;
    kvf_status status = kvf_tokenizer_create(self, &t, err);
    if (status != KVF_OK) return status;
    status = kvf_tokenizer_encode(t, text, sizeof text - 1, NULL, 100, &ids, &count);
    if (status == KVF_OK) assert_true(count > 0 && count <= sizeof text);
    free(ids);
    kvf_tokenizer_destroy(t);
    return status;
}

static const char template_source[] =
    "{% macro item(x, k=1) %}<{{ x | upper }}:{{ k }}>{% endmacro %}{% set ns = namespace(n=0) %}"
    "{% for m in messages if m.role != 'tool' %}{% set ns.n = ns.n + 1 %}{{ loop.index }}{{ m.role ~ ': ' }}"
    "{{ m.content | trim | replace('a', 'b') }}{% else %}none{% endfor %}{{ item('q', k=ns.n) }}"
    "{{ [1, 2, 'x'] | join(', ') }}{{ {'a': 1, 'b': [true, none]} | tojson }}{{ messages[0].content[1:3] }}"
    "{{ messages | map(attribute='role') | list | length }}{{ 'abc'.split('b') }}{{ '%d' | format(3) if false else 1.5 "
    "}}";

static kvf_status template_compile(void *self, kvf_error *err) {
    kvf_template *t = NULL;
    kvf_status status = kvf_template_compile(self, strlen(self), &t, err);
    kvf_template_destroy(t);
    return status;
}

typedef struct {
    kvf_template *t;
    json_t *vars, *trusted;
} rendering;
static kvf_status template_render(void *self, kvf_error *err) {
    rendering *r = self;
    kvf_template_output out = {0};
    kvf_template_limits limits;
    kvf_template_limits_default(&limits);
    kvf_status status = kvf_template_render(r->t, r->vars, r->trusted, 0, &limits, &out, err);
    if (status == KVF_OK) {
        assert_non_null(strstr(out.text, "1user: "));
        kvf_template_output_free(&out);
    }
    return status;
}

static const char yaml[] = "# of both roles\nrouter:\n  listen: 127.0.0.1:7400\n  queue_max_requests: 7\n"
                           "  nodes:\n    - {id: p0, role: prefill, address: \"127.0.0.1:1\"}\n"
                           "    - {id: d0, role: decode, address: \"unix:/run/d0\"}\nkv:\n  memory: 64MiB\n";
static const char *yaml_path;

static kvf_status configuration(void *self, kvf_error *err) {
    static const char *const environment[] = {"KVFERRY_ROUTER_QUEUE_MAX_REQUESTS=9", "HOME=/", NULL};
    kvf_config *c = NULL;
    kvf_status status = kvf_config_create(kvf_kvferry_schema(), &c);
    if (status != KVF_OK) return status;
    kvf_status steps[] = {kvf_config_load_file(c, self), kvf_config_load_env(c, environment),
        kvf_config_set_flag(c, "router.queue_max_requests", "8")};
    for (size_t i = 0; i < KVF_COUNT_OF(steps) && status == KVF_OK; i++) status = steps[i];
    if (status == KVF_OK) {
        assert_int_equal(kvf_config_error_count(c), 0);
        assert_int_equal(kvf_config_u32(c, "router.queue_max_requests"), 8);
        assert_int_equal(kvf_config_list_count(c, "router.nodes"), 2);
    } else {
        for (size_t i = 0; i < kvf_config_error_count(c); i++) assert_non_null(kvf_config_error_at(c, i));
    }
    kvf_config_destroy(c);
    return status;
}

/* Two threads, so that one of them may not be had. */
static kvf_status engine(void *self, kvf_error *err) {
    const kvf_model_options mo = {.threads = 2};
    const kvf_engine_options eo = {
        .blocks = 8, .threads = 2, .tokens_max = 32, .sequences_max = 2, .logit_rows_max = 2};
    kvf_model *m = NULL;
    kvf_engine *e = NULL;
    kvf_status status = kvf_model_open(self, &mo, &m, err);
    if (status != KVF_OK) return status;
    status = kvf_engine_create(m, &eo, &e, err);
    if (status == KVF_OK) {
        const uint32_t tokens[] = {1, 2, 3}, blocks[] = {0};
        const kvf_engine_run run = {.tokens = tokens, .count = 3, .blocks = blocks, .logit_rows = 1};
        float *logits = malloc(kvf_model_get_spec(m)->vocab * sizeof *logits);
        if (logits)
            status = kvf_engine_run_step(e, &(kvf_engine_step){.runs = &run, .runs_count = 1, .logits = logits});
        free(logits);
        kvf_engine_destroy(e);
    }
    kvf_model_close(m);
    return status;
}

static void loading(void **state) {
    (void)state;
    fault_each(&(fault_scenario){.name = "model file", .run = model_file, .self = (void *)(uintptr_t)TINY});
    kvf_gguf *g = NULL;
    assert_int_equal(kvf_gguf_open(TINY, &g, NULL), KVF_OK);
    fault_each(&(fault_scenario){.name = "tokenizer", .run = tokenizer, .self = g});
    kvf_gguf_close(g);
    fault_each(
        &(fault_scenario){.name = "engine", .run = engine, .self = (void *)(uintptr_t)TINY, .all_threads = true});
}

static void templates(void **state) {
    (void)state;
    fault_each(&(fault_scenario){
        .name = "template compile", .run = template_compile, .self = (void *)(uintptr_t)template_source});
    rendering r = {.vars = json_loads("{\"messages\":[{\"role\":\"user\",\"content\":\" a cat \"},"
                                      "{\"role\":\"tool\",\"content\":\"x\"}]}",
                       0, NULL),
        .trusted = json_object()};
    assert_int_equal(kvf_template_compile(template_source, sizeof template_source - 1, &r.t, NULL), KVF_OK);
    fault_each(&(fault_scenario){.name = "template render", .run = template_render, .self = &r});
    kvf_template_destroy(r.t);
    json_decref(r.vars);
    json_decref(r.trusted);
}

static void configurations(void **state) {
    (void)state;
    char path[] = "/tmp/kvf-fault.yaml.XXXXXX";
    int fd = mkstemp(path);
    assert_true(fd >= 0 && write(fd, yaml, sizeof yaml - 1) == sizeof yaml - 1);
    close(fd);
    yaml_path = path;
    fault_each(&(fault_scenario){.name = "configuration", .run = configuration, .self = path});
    unlink(path);
}

/* The mailbox and what a process asks of the system: an answer or a default, never an end of the process. */
static kvf_status system_calls(void *self, kvf_error *err) {
    (void)self;
    (void)err;
    kvf_mailbox *m = NULL;
    uint64_t anon, rss;
    uint32_t fds;
    assert_true(kvf_os_cpu_count() >= 1);
    (void)kvf_os_host_id();
    (void)kvf_os_random_u64();
    kvf_os_usage(&anon, &rss, &fds);
    kvf_status status = kvf_mailbox_create(4, &m);
    if (status != KVF_OK) return status;
    assert_int_equal(kvf_mailbox_put(m, &anon), KVF_OK);
    assert_ptr_equal(kvf_mailbox_take(m), &anon);
    kvf_mailbox_destroy(m);
    return KVF_OK;
}
static void systems(void **state) {
    (void)state;
    fault_each(&(fault_scenario){.name = "system", .run = system_calls, .no_repeat = true});
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(loading), cmocka_unit_test(templates),
        cmocka_unit_test(configurations), cmocka_unit_test(systems)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
