/* A node and a router of the tiny model, made and dropped with each call of ours failing in turn on every thread: a
 * refusal with its reason, or a process that is whole. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>
#include "fault.h"
#include "kvf/log.h"
#include "kvf/router_shell.h"
#include "kvf/worker.h"

#define TINY KVF_SOURCE_DIR "/tests/golden/tiny/llama.gguf"

static kvf_status node(void *self, kvf_error *err) {
    (void)self;
    kvf_worker_options o;
    kvf_worker *w = NULL;
    kvf_worker_options_default(&o);
    o.name = "d0";
    o.model_path = TINY;
    o.threads = 2;
    o.kv_memory_bytes = 1 << 20;
    kvf_status status = kvf_worker_create(&o, &w, err);
    if (status == KVF_OK) {
        assert_non_null(kvf_worker_control_address(w));
        kvf_worker_stop(w);
        kvf_worker_stop(w); /* the second may be the one that finds memory */
        kvf_worker_stop(w);
        assert_int_equal(kvf_worker_run(w), KVF_OK);
    } else {
        assert_true(err->message[0] != 0);
    }
    kvf_worker_destroy(w);
    return status;
}

static kvf_status router(void *self, kvf_error *err) {
    (void)self;
    const kvf_router_shell_node nodes[] = {{.id = "d0", .role = KVF_ROLE_DECODE, .address = "127.0.0.1:1"}};
    kvf_router_shell_options o;
    kvf_router_shell *s = NULL;
    kvf_router_shell_options_default(&o);
    o.model_path = TINY;
    o.nodes = nodes;
    o.nodes_count = 1;
    o.core.requests_max = 8;
    kvf_status status = kvf_router_shell_create(&o, &s, err);
    if (status == KVF_OK) {
        assert_non_null(kvf_router_shell_address(s));
        kvf_router_shell_stop(s);
        kvf_router_shell_stop(s);
        kvf_router_shell_stop(s);
        assert_int_equal(kvf_router_shell_run(s), KVF_OK);
    } else {
        assert_true(err->message[0] != 0);
    }
    kvf_router_shell_destroy(s);
    return status;
}

static void nodes(void **state) {
    (void)state;
    fault_each(&(fault_scenario){.name = "node", .run = node, .all_threads = true, .no_repeat = true});
}
static void routers(void **state) {
    (void)state;
    fault_each(&(fault_scenario){.name = "router", .run = router, .all_threads = true, .no_repeat = true});
}

static void drop_line(void *self, kvf_log_level level, const char *component, const char *message) {}

int main(void) {
    kvf_log_set_sink(drop_line, NULL);
    const struct CMUnitTest tests[] = {cmocka_unit_test(nodes), cmocka_unit_test(routers)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
