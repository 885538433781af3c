/* Configuration: order of origins, every kind of mistake with its place, and that the sample files are right. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <cmocka.h>
#include <jansson.h>
#include "kvf/kvferry_config.h"

static kvf_config *fresh(void) {
    kvf_config *c = NULL;
    assert_int_equal(kvf_config_create(kvf_kvferry_schema(), &c), KVF_OK);
    return c;
}
static kvf_config *loaded(const char *text) {
    kvf_config *c = fresh();
    kvf_status status = kvf_config_load_text(c, "t.yaml", text, strlen(text));
    for (size_t i = 0; i < kvf_config_error_count(c); i++) print_error("%s\n", kvf_config_error_at(c, i));
    assert_int_equal(status, KVF_OK);
    return c;
}

static void expect_source(const kvf_config *c, const char *key, const char *want) {
    char b[200];
    assert_string_equal(kvf_config_source(c, key, b, sizeof b), want);
}

static void flags_win_over_environment_over_file_over_defaults(void **state) {
    static const char *const env[] = {"PATH=/bin", "KVFERRY_ROUTER_QUEUE_MAX_REQUESTS=20", "KVFERRY_ENGINE_THREADS=3",
        "KVFERRY_NODE_TRANSPORTS=tcp,shm", "KVFERRY_ROUTER_QUEUE_MAX=9", NULL};
    static const char file[] = "router:\n  queue_max_requests: 10\n  admin: 0.0.0.0:80\nengine:\n  threads: 2\n";
    for (int order = 0; order < 2; order++) { /* the order of loading does not matter */
        kvf_config *c = fresh();
        if (order) assert_int_equal(kvf_config_set_flag(c, "threads", "4"), KVF_OK);
        if (order) assert_int_equal(kvf_config_load_env(c, env), KVF_OK);
        assert_int_equal(kvf_config_load_text(c, "t.yaml", file, sizeof file - 1), KVF_OK);
        if (!order) assert_int_equal(kvf_config_load_env(c, env), KVF_OK);
        if (!order) assert_int_equal(kvf_config_set_flag(c, "threads", "4"), KVF_OK);
        assert_int_equal(kvf_config_u32(c, "engine.threads"), 4);
        expect_source(c, "engine.threads", "flag --threads");
        assert_int_equal(kvf_config_u32(c, "router.queue_max_requests"), 20);
        expect_source(c, "router.queue_max_requests", "env KVFERRY_ROUTER_QUEUE_MAX_REQUESTS");
        assert_string_equal(kvf_config_string(c, "router.admin"), "0.0.0.0:80");
        expect_source(c, "router.admin", "t.yaml:3:10");
        expect_source(c, "router.listen", "default");
        expect_source(c, "model.path", "not set");
        assert_int_equal(kvf_config_list_count(c, "node.transports"), 2);
        assert_string_equal(kvf_config_list_string(c, "node.transports", 0), "tcp");
        kvf_config_destroy(c);
    }
}

static void values_have_units_and_types(void **state) {
    kvf_config *c = loaded("kv: {memory: 3GiB}\ntransfer: {grant_ttl: 1500ms}\n"
                           "router:\n  prefill_fallback: false\n  stream_buffer: 65536\n  nodes:\n"
                           "    - {id: p1, role: prefill, address: \"[::1]:7001\"}\n"
                           "    - id: d1\n      role: decode\n      address: unix:/run/kvferry/d1\n"
                           "node:\n  transports:\n    - tcp\n");
    assert_int_equal(kvf_config_u64(c, "kv.memory"), 3ull << 30);
    assert_int_equal(kvf_config_u64(c, "transfer.grant_ttl"), 1500000000ull);
    assert_false(kvf_config_bool(c, "router.prefill_fallback"));
    assert_int_equal(kvf_config_u64(c, "router.stream_buffer"), 65536);
    assert_int_equal(kvf_config_list_count(c, "router.nodes"), 2);
    assert_string_equal(kvf_config_map_string(c, "router.nodes", 0, "address"), "[::1]:7001");
    assert_string_equal(kvf_config_map_string(c, "router.nodes", 1, "role"), "decode");
    assert_int_equal(kvf_config_list_count(c, "node.transports"), 1);
    assert_null(kvf_config_string(c, "model.path"));
    assert_false(kvf_config_is_set(c, "model.path"));
    kvf_config_destroy(c);
    kvf_config_destroy(loaded("")); /* nothing at all is a configuration */
    kvf_config_destroy(loaded("router:\n# all commented out\nlog:\n"));
}

/* Each line of `want` is one error, in order. */
static void expect_errors(const char *text, size_t len, const char *want) {
    kvf_config *c = fresh();
    char *seen = calloc(1, 100000);
    assert_non_null(seen);
    kvf_status status = kvf_config_load_text(c, "t.yaml", text, len);
    for (size_t i = 0; i < kvf_config_error_count(c); i++) {
        strcat(seen, kvf_config_error_at(c, i));
        strcat(seen, "\n");
    }
    if (strcmp(seen, want) != 0) {
        fprintf(stderr, "--- want\n%s--- got\n%s", want, seen);
        fail();
    }
    assert_int_equal(status, KVF_ERR_FORMAT);
    free(seen);
    kvf_config_destroy(c);
}
static void errors(const char *text, const char *want) { expect_errors(text, strlen(text), want); }

static void all_mistakes_are_told_at_once(void **state) {
    errors("router:\n  lisen: 127.0.0.1:1\n  queue_max_requests: many\n  queue_max_tokens: 0\n  listen: localhost\n"
           "  stream_buffer: 1PiB\n  ready_grace: 5\n  listen: \"127.0.0.1:1\"\nengine:\n  precision: fsat\n  threads: "
           "\"4\"\n"
           "  kv_type: [f16]\n  context:\nroutr: {a: 1}\nkv: {memory: {a: 1}}\nloglevel: "
           "info\nlevel: info\n"
           "tls: {cret: x.pem}\nlog: info\nnode: {transports: shm}\ncluster: {insecure_networks: yes}\nfoo: [1, {a: "
           "[2]}]\n",
        "t.yaml:2:3: router.lisen: unknown key, did you mean 'router.listen'?\n"
        "t.yaml:3:23: router.queue_max_requests: 'many' is not valid, expected a whole number\n"
        "t.yaml:4:21: router.queue_max_tokens: out of range, expected 1 to 1099511627776\n"
        "t.yaml:5:11: router.listen: 'localhost' is not valid, expected an address like 127.0.0.1:7000, [::1]:7000 or "
        "unix:/path\n"
        "t.yaml:6:18: router.stream_buffer: '1PiB' is not valid, expected a size like 4096, 64KiB, 512MiB or 2GiB\n"
        "t.yaml:7:16: router.ready_grace: '5' is not valid, expected a duration like 250ms, 3s or 5m\n"
        "t.yaml:8:3: router.listen: is given twice, first in line 5\n"
        "t.yaml:10:14: engine.precision: 'fsat' is not known, expected one of: fast exact, did you mean 'fast'?\n"
        "t.yaml:11:12: engine.threads: is a quoted text, expected a whole number\n"
        "t.yaml:12:12: engine.kv_type: is a list, expected one of: f16 f32 q8 fp8\n"
        "t.yaml:13:11: engine.context: has no value, expected a whole number\n"
        "t.yaml:14:1: routr: unknown key, did you mean 'router'?\n"
        "t.yaml:15:14: kv.memory: is a map, expected a size like 4096, 64KiB, 512MiB or 2GiB\n"
        "t.yaml:16:1: loglevel: unknown key, did you mean 'log.level'?\n"
        "t.yaml:17:1: level: unknown key, did you mean 'log.level'?\n"
        "t.yaml:18:7: tls.cret: unknown key, did you mean 'tls.cert'?\n"
        "t.yaml:19:6: log: is not a map, expected the section's keys below it\n"
        "t.yaml:20:20: node.transports: is one value, expected a list\n"
        "t.yaml:21:30: cluster.insecure_networks: 'yes' is not valid, expected true or false\n"
        "t.yaml:22:1: foo: unknown key\n");
}

static void lists_of_nodes_are_checked(void **state) {
    errors("router:\n  nodes:\n    - {id: a, role: prefil, address: h:1}\n    - {id: b, adress: h:1, role: decode}\n   "
           " - x\n"
           "    - {id: c, role: decode}\n    - {id: a, id: b, role: decode, address: h:70000}\n",
        "t.yaml:3:21: router.nodes[0].role: 'prefil' is not known, expected one of: prefill decode, did you mean "
        "'prefill'?\n"
        "t.yaml:4:15: router.nodes[1]: unknown field 'adress', expected: id role address, did you mean 'address'?\n"
        "t.yaml:5:7: router.nodes[2]: is not a map, expected one with 'id'\n"
        "t.yaml:6:7: router.nodes[3]: lacks 'address', expected its node.control address\n"
        "t.yaml:7:15: router.nodes[4].id: is given twice\n"
        "t.yaml:7:45: router.nodes[4].address: 'h:70000' is not valid, expected an address like 127.0.0.1:7000, "
        "[::1]:7000 or unix:/path\n");
    errors("router:\n  nodes:\n    - {id: a, role: decode, address: h:1}\n    - {id: a, role: decode, address: h:2}\n",
        "t.yaml:3:5: router.nodes: id 'a' is given twice\n");
    errors("node: {transports: [shm, rdma]}\n",
        "t.yaml:1:26: node.transports[1]: 'rdma' is not known, expected one of: cuda_ipc nccl shm tcp\n");
}

typedef void (*print_fn)(FILE *out, const kvf_config *c);
static void print_explain(FILE *out, const kvf_config *c) { kvf_config_explain(c, out); }
static void print_text(FILE *out, const kvf_config *c) { kvf_config_schema_text(kvf_kvferry_schema(), out); }
static void print_json(FILE *out, const kvf_config *c) { kvf_config_schema_json(kvf_kvferry_schema(), out); }
static void print_flags(FILE *out, const kvf_config *c) {
    kvf_config_flags_help(kvf_kvferry_schema(), "router. log.", out);
}
static char *printed(print_fn print, const kvf_config *c) {
    char *text = NULL;
    size_t len = 0;
    FILE *out = open_memstream(&text, &len);
    assert_non_null(out);
    print(out, c);
    fclose(out);
    return text;
}

/* One number stands for itself, a list for each: the same key. */
static void numbers_may_be_one_or_a_list(void **state) {
    static const char key[] = "engine.device_memory_percent";
    static const char *const texts[] = {"", "engine: {device_memory_percent: 70}\n",
        "engine:\n  device_memory_percent: [70, 0, 98]\n", "engine: {device_memory_percent: [5]}\n"};
    static const struct {
        size_t count;
        uint32_t first;
        const char *source, *explained;
    } want[] = {{1, 90, "default", "= 90   (default)\n"}, {1, 70, "t.yaml:1:33", "= 70   (t.yaml:1:33)\n"},
        {3, 70, "t.yaml:2:26", "= [70, 0, 98]   (t.yaml:2:26)\n"}, {1, 5, "t.yaml:1:33", "= 5   (t.yaml:1:33)\n"}};
    for (size_t i = 0; i < KVF_COUNT_OF(texts); i++) {
        kvf_config *c = loaded(texts[i]);
        assert_int_equal(kvf_config_list_count(c, key), want[i].count);
        assert_int_equal(kvf_config_list_u32(c, key, 0), want[i].first);
        if (want[i].count == 3) assert_int_equal(kvf_config_list_u32(c, key, 2), 98);
        expect_source(c, key, want[i].source);
        char *text = printed(print_explain, c);
        assert_non_null(strstr(text, want[i].explained));
        free(text);
        assert_int_equal(kvf_config_set_flag(c, "device-memory-percent", "20,30"), KVF_OK);
        assert_int_equal(kvf_config_list_count(c, key), 2);
        assert_int_equal(kvf_config_list_u32(c, key, 1), 30);
        kvf_config_destroy(c);
    }
    errors("engine: {device_memory_percent: 99}\n",
        "t.yaml:1:33: engine.device_memory_percent: out of range, expected 0 to 98\n");
    errors("engine:\n  device_memory_percent: [50, 99, half, \"7\", [1]]\n",
        "t.yaml:2:31: engine.device_memory_percent[1]: out of range, expected 0 to 98\n"
        "t.yaml:2:35: engine.device_memory_percent[2]: 'half' is not valid, expected a whole number, or a list of "
        "them\n"
        "t.yaml:2:41: engine.device_memory_percent[3]: is a quoted text, expected a whole number, or a list of them\n"
        "t.yaml:2:46: engine.device_memory_percent[4]: is a list, expected a whole number, or a list of them\n");
    errors("engine: {device_memory_percent: []}\n",
        "t.yaml:1:33: engine.device_memory_percent: has no items, expected at least one\n");
    errors("engine: {device_memory_percent: {a: 1}}\n",
        "t.yaml:1:33: engine.device_memory_percent: is a map, expected a whole number, or a list of them\n");
    static const char *const env[] = {"KVFERRY_ENGINE_DEVICE_MEMORY_PERCENT=50,200", NULL};
    kvf_config *c = fresh();
    assert_int_equal(kvf_config_load_env(c, env), KVF_ERR_FORMAT);
    assert_string_equal(kvf_config_error_at(c, 0), "env KVFERRY_ENGINE_DEVICE_MEMORY_PERCENT: "
                                                   "engine.device_memory_percent: out of range, expected 0 to 98");
    assert_int_equal(kvf_config_list_u32(c, key, 0), 90);
    kvf_config_destroy(c);
}

static void what_yaml_can_do_and_we_do_not_is_refused(void **state) {
    errors("log: &l\n  level: info\nrouter: *l\n",
        "t.yaml:1:6: log: an anchor (&name) is refused, expected the value itself\n"
        "t.yaml:3:9: router: an alias (*name) is refused, expected the value itself\n"
        "t.yaml:3:9: router: is not a map, expected the section's keys below it\n");
    errors(
        "log:\n  level: !!str info\n", "t.yaml:2:10: log.level: a tag (!name) is refused, expected the value itself\n");
    errors("log: {level: info}\n---\nlog: {level: debug}\n", "t.yaml:2:1: a second document begins, expected one\n");
    errors("- a\n", "t.yaml:1:1: expected a map of sections\n");
    errors("log:\n\tlevel: info\n",
        "t.yaml:2:1: found character that cannot start any token while scanning for the next token\n");
    errors("log: {level: info\n", "t.yaml:2:1: did not find expected ',' or '}' while parsing a flow mapping\n");
    errors("[a]: b\n", "t.yaml:1:1: expected the name of a key\n");
    expect_errors("log:\n  le\0vel: x\n", 15, "t.yaml:2:5: a byte is NUL or not UTF-8, expected text\n");
    errors("log:\n  level: \xc3(\n", "t.yaml:2:10: a byte is NUL or not UTF-8, expected text\n");
    errors("log:\n  level: \"in\\0fo\"\n",
        "t.yaml:2:10: log.level: is too long or holds a NUL, expected at most 4096 bytes\n");
    char *deep = calloc(1, 300000);
    assert_non_null(deep);
    strcpy(deep, "x: ");
    memset(deep + 3, '[', 1000);
    errors(deep, "t.yaml:1:1: x: unknown key\nt.yaml:1:68: nests deeper than 8 levels\n");
    memset(deep, '#', 299999);
    errors(deep, "t.yaml: has 299999 bytes, expected at most 262144\n");
    free(deep);
}

static void flags_and_variables_are_checked_too(void **state) {
    static const char *const env[] = {"KVFERRY_LOG_LEVEL=loud", "KVFERRY_ROUTER_NODES=x", NULL};
    kvf_config *c = fresh();
    assert_int_equal(kvf_config_load_env(c, env), KVF_ERR_FORMAT);
    assert_int_equal(kvf_config_set_flag(c, "thread", "1"), KVF_ERR_NOT_FOUND);
    assert_int_equal(kvf_config_set_flag(c, "kv-memory", "12"), KVF_ERR_FORMAT);
    assert_int_equal(kvf_config_set_flag(c, "transports", "shm,tpc"), KVF_ERR_FORMAT);
    assert_int_equal(kvf_config_set_flag(c, "transfer.heartbeat", "1s"), KVF_OK); /* any key by its whole name */
    static const char *const want[] = {"env KVFERRY_ROUTER_NODES: router.nodes: can only be set in a file",
        "env KVFERRY_LOG_LEVEL: log.level: 'loud' is not known, expected one of: error warn info debug",
        "flag --thread: there is no such flag, did you mean '--threads'?",
        "flag --kv-memory: kv.memory: out of range, expected 1MiB to 1024TiB",
        "flag --transports: node.transports: 'tpc' is not known, expected one of: cuda_ipc nccl shm tcp, did "
        "you mean 'tcp'?"};
    assert_int_equal(kvf_config_error_count(c), KVF_COUNT_OF(want));
    for (size_t i = 0; i < KVF_COUNT_OF(want); i++) assert_string_equal(kvf_config_error_at(c, i), want[i]);
    assert_int_equal(kvf_config_u64(c, "transfer.heartbeat"), 1000000000ull);
    assert_int_equal(kvf_config_u64(c, "kv.memory"), 512ull << 20); /* what was wrong changed nothing */
    assert_int_equal(kvf_config_load_file(c, "/nonexistent/x.yaml"), KVF_ERR_IO);
    kvf_config_destroy(c);
}

static void addresses(void **state) {
    static const char *const good[] = {
        "127.0.0.1:0", "h:65535", "[::1]:7", "[fe80::1%lo]:7", "unix:/run/x", "0.0.0.0:80", "a-b.c:1"};
    static const char *const bad[] = {"", ":1", "h", "h:", "h:65536", "h:-1", "h:1x", "::1", "::1:7000", "[::1]",
        "[::1]x:1", "[]:1", "unix:", "unix:/", "unix:x", "a b:1", "http://h:1", "[x y]:1",
        "99999999999999999999:99999999999999999999"};
    for (size_t i = 0; i < KVF_COUNT_OF(good); i++)
        if (!kvf_config_address_valid(good[i])) fail_msg("'%s' should be an address", good[i]);
    for (size_t i = 0; i < KVF_COUNT_OF(bad); i++)
        if (kvf_config_address_valid(bad[i])) fail_msg("'%s' should be refused", bad[i]);
}

static void sample_files_are_right(void **state) {
    static const char *const files[] = {"router", "prefill", "decode", "serve"};
    for (size_t i = 0; i < KVF_COUNT_OF(files); i++) {
        char path[300];
        kvf_config *c = fresh();
        snprintf(path, sizeof path, KVF_SOURCE_DIR "/deploy/config/%s.yaml", files[i]);
        kvf_status status = kvf_config_load_file(c, path);
        for (size_t k = 0; k < kvf_config_error_count(c); k++) print_error("%s\n", kvf_config_error_at(c, k));
        assert_int_equal(status, KVF_OK);
        if (i == 0) assert_int_equal(kvf_config_list_count(c, "router.nodes"), 2);
        kvf_config_destroy(c);
    }
}

static void the_schema_is_a_file_that_loads_and_json_that_parses(void **state) {
    kvf_config *c = fresh();
    char *text = printed(print_text, NULL), *json = printed(print_json, NULL);
    kvf_config_destroy(loaded(text)); /* every default is valid where the text shows it */
    json_error_t e;
    json_t *j = json_loads(json, JSON_REJECT_DUPLICATES, &e);
    if (!j) fail_msg("%s at %d:%d", e.text, e.line, e.column);
    size_t keys = 0;
    const char *name;
    json_t *section;
    json_object_foreach(json_object_get(j, "properties"), name, section) keys +=
        json_object_size(json_object_get(section, "properties"));
    assert_int_equal(keys, kvf_kvferry_schema()->count);
    json_decref(j);
    free(json);
    free(text);
    kvf_config_destroy(c);
}

static void explain_names_values_and_origins(void **state) {
    kvf_config *c = loaded("router:\n  nodes: [{id: a, role: decode, address: h:1}]\n");
    assert_int_equal(kvf_config_set_flag(c, "log-level", "debug"), KVF_OK);
    char *text = printed(print_explain, c), *flags = printed(print_flags, c);
    assert_non_null(
        strstr(text, "router.nodes                       = [{id: a, role: decode, address: h:1}]   (t.yaml:2:10)\n"));
    assert_non_null(strstr(text, "log.level                          = debug   (flag --log-level)\n"));
    assert_non_null(strstr(text, "kv.memory                          = 512MiB   (default)\n"));
    assert_non_null(strstr(text, "model.path                         = -   (not set)\n"));
    assert_non_null(strstr(text, "node.transports                    = [cuda_ipc, nccl, shm, tcp]   (default)\n"));
    assert_non_null(
        strstr(flags, "  --log-level NAME                 what is logged to stderr: error warn info debug [info]\n"));
    assert_null(strstr(flags, "kv-memory"));
    free(text);
    free(flags);
    kvf_config_destroy(c);
}

static void the_table_is_sound(void **state) {
    const kvf_config_schema *s = kvf_kvferry_schema();
    for (size_t i = 0; i < s->count; i++) {
        const kvf_config_key *k = &s->keys[i];
        assert_non_null(strchr(k->key, '.'));
        assert_true(k->help && *k->help && !(k->choices && k->initial == NULL));
        for (size_t j = 0; j < i; j++) {
            assert_string_not_equal(k->key, s->keys[j].key);
            if (k->flag && s->keys[j].flag) assert_string_not_equal(k->flag, s->keys[j].flag);
            size_t n = strcspn(k->key, ".") + 1; /* a section's keys stand together */
            if (strncmp(k->key, s->keys[j].key, n) == 0)
                for (size_t m = j; m < i; m++) assert_int_equal(strncmp(k->key, s->keys[m].key, n), 0);
        }
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(flags_win_over_environment_over_file_over_defaults),
        cmocka_unit_test(values_have_units_and_types), cmocka_unit_test(all_mistakes_are_told_at_once),
        cmocka_unit_test(lists_of_nodes_are_checked), cmocka_unit_test(numbers_may_be_one_or_a_list),
        cmocka_unit_test(what_yaml_can_do_and_we_do_not_is_refused),
        cmocka_unit_test(flags_and_variables_are_checked_too), cmocka_unit_test(addresses),
        cmocka_unit_test(sample_files_are_right),
        cmocka_unit_test(the_schema_is_a_file_that_loads_and_json_that_parses),
        cmocka_unit_test(explain_names_values_and_origins), cmocka_unit_test(the_table_is_sound)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
