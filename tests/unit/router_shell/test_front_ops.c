/* A whole router process against fake nodes: what operators see and do. */
#include "cluster.h"
#include "kvf/request_text.h"

enum { SERVING = 1, NOT_SERVING = 2 };
static const char *const services[] = {"", "readiness", "kvferry.v1.Inference"};

static void expect_health(cluster *c, int want) {
    for (size_t i = 0; i < KVF_COUNT_OF(services); i++) {
        assert_int_equal(health(c, false, services[i]), want);
        assert_int_equal(health(c, true, services[i]), want);
    }
    assert_int_equal(health(c, false, "liveness"), SERVING);
    assert_int_equal(health(c, true, "liveness"), SERVING);
    assert_int_equal(health(c, false, "nope"), -KVF_RPC_NOT_FOUND);
}

static void health_follows_the_nodes(void **state) { /* GR-06 */
    (void)state;
    cluster c;
    cluster_options o = {.no_nodes = true, .grace_ms = 50};
    cluster_start(&c, &o);
    ask a;
    expect_health(&c, NOT_SERVING);
    assert_false(kvf_router_shell_serving(c.shell));
    ask_init(&a, "prompt", FAKE_SEED(FAKE_SCRIPT, 0));
    answer *got = generate(&c, &a, KVF_RPC_UNAVAILABLE);
    assert_string_equal(got->result.reason, "NODE_UNAVAILABLE");
    assert_true(got->result.retry_after_ms > 0);
    free(got);
    kvf_router_shell_add_node(c.shell, "d0", KVF_ROLE_DECODE, fake_node_address(&c.decode));
    cluster_wait_serving(&c, true);
    expect_health(&c, SERVING);
    free(generate(&c, &a, KVF_RPC_OK));
    fake_node_stop(&c.decode);
    cluster_wait_serving(&c, false);
    expect_health(&c, NOT_SERVING);
    cluster_stop(&c);
}

static void strict_routers_want_both_roles(void **state) { /* SC-08 */
    (void)state;
    cluster c;
    cluster_options o = {.no_nodes = true, .strict = true, .grace_ms = 50};
    cluster_start(&c, &o);
    ask a;
    ask_init(&a, "prompt", FAKE_SEED(FAKE_SCRIPT, 0));
    a.r.disaggregate = KVFERRY__V1__DISAGGREGATE__DISAGGREGATE_ALWAYS;
    kvf_router_shell_add_node(c.shell, "d0", KVF_ROLE_DECODE, fake_node_address(&c.decode));
    fake_node_wait(&c.decode, &c.decode.hellos, 1);
    free(generate(&c, &a, KVF_RPC_UNAVAILABLE));
    assert_int_equal(health(&c, false, "readiness"), NOT_SERVING);
    kvf_router_shell_add_node(c.shell, "p0", KVF_ROLE_PREFILL, fake_node_address(&c.prefill));
    cluster_wait_serving(&c, true);
    free(generate(&c, &a, KVF_RPC_OK));
    cluster_stop(&c);
}

static void a_node_that_moves_is_found(void **state) {
    (void)state;
    cluster c;
    cluster_options o = {.no_prefill = true};
    cluster_start(&c, &o);
    ask a;
    ask_init(&a, "prompt", FAKE_SEED(FAKE_SCRIPT, 0));
    free(generate(&c, &a, KVF_RPC_OK));
    static fake_node second;
    memset(&second, 0, sizeof second);
    second.epoch = 99;
    for (size_t i = 0; i < FAKE_SCRIPTS_MAX; i++) second.scripts[i] = "second";
    fake_node_start(&second, &c.model, "d0", KVF_ROLE_DECODE, NULL);
    kvf_router_shell_add_node(c.shell, "d0", KVF_ROLE_DECODE, fake_node_address(&second));
    fake_node_wait(&second, &second.hellos, 1);
    answer *got = generate(&c, &a, KVF_RPC_OK);
    assert_string_equal(got->text[0], "second");
    free(got);
    kvf_router_shell_remove_node(c.shell, "d0");
    cluster_wait_serving(&c, false);
    cluster_stop(&c);
    fake_node_stop(&second);
}

static void a_node_of_another_model_gets_nothing(void **state) {
    (void)state;
    cluster c;
    cluster_options o = {.no_nodes = true, .grace_ms = 50};
    cluster_start(&c, &o);
    FAKE_SET(&c.decode, weights_hash_xor, 1);
    kvf_router_shell_add_node(c.shell, "d0", KVF_ROLE_DECODE, fake_node_address(&c.decode));
    fake_node_wait(&c.decode, &c.decode.hellos, 1);
    ask a;
    ask_init(&a, "prompt", FAKE_SEED(FAKE_SCRIPT, 0));
    free(generate(&c, &a, KVF_RPC_UNAVAILABLE));
    assert_int_equal(fake_get(&c.decode, &c.decode.reserves), 0);
    cluster_stop(&c);
}

/* ---- the end ---- */

static void read_rest(kvf_rpc_reader *reader, answer *got) {
    ProtobufCMessage *message;
    while (kvf_rpc_reader_next(reader, &message) == KVF_OK) {
        answer_take(got, message);
        kvf_rpc_message_free(message);
    }
    got->result = *kvf_rpc_reader_result(reader);
    kvf_rpc_reader_close(reader);
}

static void draining_lets_streams_end(void **state) { /* OP-03 */
    (void)state;
    cluster c;
    cluster_start(&c, NULL);
    ask a;
    ProtobufCMessage *message;
    answer *got = calloc(1, sizeof *got);
    ask_init(&a, "prompt", FAKE_SEED(FAKE_SLOW_END, 0));
    kvf_rpc_reader *reader = generate_open(&c, &a);
    assert_int_equal(kvf_rpc_reader_next(reader, &message), KVF_OK);
    answer_take(got, message);
    kvf_rpc_message_free(message);
    kvf_router_shell_stop(c.shell);
    cluster_wait_serving(&c, false);
    expect_health(&c, NOT_SERVING);
    answer *late = generate(&c, &a, KVF_RPC_UNAVAILABLE);
    assert_string_equal(late->result.reason, "DRAINING");
    free(late);
    fake_release(&c.decode);
    read_rest(reader, got);
    assert_int_equal(got->result.code, KVF_RPC_OK);
    assert_string_equal(got->text[0], "ABCDEFGHIJKLMNOPQRSTUVWXYZ");
    assert_int_equal(got->finished, 1);
    free(got);
    cluster_join(&c);
    cluster_stop(&c);
}

static void draining_has_an_end(void **state) {
    (void)state;
    cluster c;
    cluster_options o = {.drain_ms = 100};
    cluster_start(&c, &o);
    ask a;
    answer *got = calloc(1, sizeof *got);
    ask_init(&a, "prompt", FAKE_SEED(FAKE_HOLD, 0));
    kvf_rpc_reader *reader = generate_open(&c, &a);
    fake_node_wait(&c.decode, &c.decode.reserves, 1);
    kvf_router_shell_stop(c.shell);
    read_rest(reader, got);
    assert_int_equal(got->result.code, KVF_RPC_UNAVAILABLE);
    free(got);
    cluster_join(&c);
    cluster_stop(&c);
}

static void a_second_stop_is_now(void **state) {
    (void)state;
    cluster c;
    cluster_start(&c, NULL);
    ask a;
    answer *got = calloc(1, sizeof *got);
    ask_init(&a, "prompt", FAKE_SEED(FAKE_HOLD, 0));
    kvf_rpc_reader *reader = generate_open(&c, &a);
    fake_node_wait(&c.decode, &c.decode.reserves, 1);
    kvf_router_shell_stop(c.shell);
    kvf_router_shell_stop(c.shell);
    cluster_join(&c);
    read_rest(reader, got);
    assert_int_equal(got->result.code, KVF_RPC_UNAVAILABLE);
    free(got);
    cluster_stop(&c);
}

/* ---- the admin API ---- */

static void the_cluster_is_shown(void **state) {
    (void)state;
    cluster c;
    cluster_start(&c, NULL);
    ask a;
    kvf_rpc_result result;
    ask_init(&a, "a prompt of some length, for two blocks", FAKE_SEED(FAKE_SCRIPT, 0));
    a.r.disaggregate = KVFERRY__V1__DISAGGREGATE__DISAGGREGATE_ALWAYS;
    free(generate(&c, &a, KVF_RPC_OK));
    Kvferry__V1__GetClusterRequest r = KVFERRY__V1__GET_CLUSTER_REQUEST__INIT;
    Kvferry__V1__ClusterState *m = admin_call(&c, "GetCluster", &r.base, &result);
    assert_non_null(m);
    assert_int_equal(m->n_nodes, 3); /* the router is the last */
    assert_true(kvf_proto_text_equal(m->nodes[0]->id, "d0"));
    assert_int_equal(m->nodes[0]->role, KVFERRY__V1__ROLE__ROLE_DECODE);
    assert_int_equal(m->nodes[0]->state, KVFERRY__V1__NODE_STATE__NODE_STATE_READY);
    assert_int_equal(m->nodes[0]->epoch, c.decode.epoch);
    assert_int_equal(m->nodes[0]->blocks->total, 10000);
    assert_true(m->nodes[0]->waste_ratio == 0.5f);
    assert_true(m->nodes[0]->prefill_tokens_per_s == 100.0);
    assert_true(kvf_proto_text_equal(m->nodes[0]->address, fake_node_address(&c.decode)));
    assert_int_equal(m->nodes[1]->role, KVFERRY__V1__ROLE__ROLE_PREFILL);
    assert_int_equal(m->nodes[2]->role, KVFERRY__V1__ROLE__ROLE_ROUTER);
    assert_int_equal(m->n_pairs, 1);
    assert_true(kvf_proto_text_equal(m->pairs[0]->prefill_node, "p0"));
    assert_true(kvf_proto_text_equal(m->pairs[0]->transport, "tcp"));
    assert_int_equal(m->pairs[0]->pages_moved, 9);
    assert_int_equal(m->requests_finished, 1);
    kvf_rpc_message_free(&m->base);
    Kvferry__V1__WatchClusterRequest w = KVFERRY__V1__WATCH_CLUSTER_REQUEST__INIT;
    w.interval_ms = 100;
    kvf_rpc_reader *reader;
    ProtobufCMessage *message;
    assert_int_equal(
        kvf_rpc_reader_open(c.admin, &kvferry__v1__cluster__descriptor, "WatchCluster", &w.base, 60000, &reader),
        KVF_OK);
    fake_reject(&c.decode, "p0", 5);
    uint64_t rejected = 0;
    for (int i = 0; i < 2 || (rejected != 5 && i < 600); i++) {
        assert_int_equal(kvf_rpc_reader_next(reader, &message), KVF_OK);
        m = (Kvferry__V1__ClusterState *)(void *)message;
        assert_int_equal(m->n_nodes, 3);
        rejected = m->pairs[0]->frames_rejected;
        kvf_rpc_message_free(message);
    }
    assert_int_equal(rejected, 5);
    kvf_rpc_reader_close(reader);
    cluster_stop(&c);
}

static void nodes_are_told_what_operators_want(void **state) {
    (void)state;
    cluster c;
    cluster_start(&c, NULL);
    kvf_rpc_result result;
    void *m;
    Kvferry__V1__DrainRequest d = KVFERRY__V1__DRAIN_REQUEST__INIT;
    Kvferry__V1__UndrainRequest u = KVFERRY__V1__UNDRAIN_REQUEST__INIT;
    Kvferry__V1__SetRoleRequest s = KVFERRY__V1__SET_ROLE_REQUEST__INIT;
    Kvferry__V1__FlushCacheRequest f = KVFERRY__V1__FLUSH_CACHE_REQUEST__INIT;
    d.node_id = u.node_id = s.node_id = kvf_proto_text("d0");
    assert_non_null(m = admin_call(&c, "Drain", &d.base, &result));
    kvf_rpc_message_free(m);
    fake_node_wait(&c.decode, &c.decode.drains, 1);
    assert_non_null(m = admin_call(&c, "Undrain", &u.base, &result));
    kvf_rpc_message_free(m);
    fake_node_wait(&c.decode, &c.decode.undrains, 1);
    s.role = KVFERRY__V1__ROLE__ROLE_PREFILL;
    assert_non_null(m = admin_call(&c, "SetRole", &s.base, &result));
    kvf_rpc_message_free(m);
    s.role = KVFERRY__V1__ROLE__ROLE_ROUTER;
    assert_null(admin_call(&c, "SetRole", &s.base, &result));
    assert_int_equal(result.code, KVF_RPC_INVALID_ARGUMENT);
    assert_string_equal(result.field, "role");
    assert_non_null(m = admin_call(&c, "FlushCache", &f.base, &result)); /* all */
    assert_int_equal(((Kvferry__V1__FlushCacheResponse *)m)->blocks_freed, 14);
    kvf_rpc_message_free(m);
    f.node_id = kvf_proto_text("p0");
    assert_non_null(m = admin_call(&c, "FlushCache", &f.base, &result));
    assert_int_equal(((Kvferry__V1__FlushCacheResponse *)m)->blocks_freed, 7);
    kvf_rpc_message_free(m);
    d.node_id = kvf_proto_text("d7");
    assert_null(admin_call(&c, "Drain", &d.base, &result));
    assert_int_equal(result.code, KVF_RPC_NOT_FOUND);
    assert_string_equal(result.field, "node_id");
    cluster_stop(&c);
}

static void audits_gather_what_nodes_say(void **state) {
    (void)state;
    cluster c;
    cluster_start(&c, NULL);
    kvf_rpc_result result;
    Kvferry__V1__AuditRequest r = KVFERRY__V1__AUDIT_REQUEST__INIT;
    Kvferry__V1__AuditResponse *m = admin_call(&c, "Audit", &r.base, &result);
    assert_non_null(m);
    assert_int_equal(m->n_violations, 0);
    assert_int_equal(m->blocks_checked, 20000);
    assert_true(m->at_rest);
    assert_int_equal(m->n_nodes, 2);
    kvf_rpc_message_free(&m->base);
    FAKE_SET(&c.decode, dirty_audit, true);
    m = admin_call(&c, "Audit", &r.base, &result);
    assert_non_null(m);
    assert_int_equal(m->n_violations, 1);
    assert_true(kvf_proto_text_equal(m->violations[0]->node_id, "d0"));
    assert_true(kvf_proto_text_equal(m->violations[0]->invariant, "I1"));
    kvf_rpc_message_free(&m->base);
    FAKE_SET(&c.decode, dirty_audit, false);
    FAKE_SET(&c.decode, mute_audit, true); /* the answer does not wait for ever */
    m = admin_call(&c, "Audit", &r.base, &result);
    assert_non_null(m);
    assert_int_equal(m->n_violations, 1);
    assert_true(kvf_proto_text_equal(m->violations[0]->invariant, "answer"));
    assert_false(m->at_rest);
    kvf_rpc_message_free(&m->base);
    FAKE_SET(&c.decode, mute_audit, false);
    ask a;
    ProtobufCMessage *message;
    ask_init(&a, "prompt", FAKE_SEED(FAKE_HOLD, 0));
    kvf_rpc_reader *reader = generate_open(&c, &a);
    assert_int_equal(kvf_rpc_reader_next(reader, &message), KVF_OK);
    kvf_rpc_message_free(message);
    m = admin_call(&c, "Audit", &r.base, &result);
    assert_non_null(m);
    assert_false(m->at_rest);
    kvf_rpc_message_free(&m->base);
    kvf_rpc_reader_close(reader);
    cluster_stop(&c);
}

static void blocks_are_listed(void **state) {
    (void)state;
    cluster c;
    cluster_start(&c, NULL);
    kvf_rpc_result result;
    Kvferry__V1__GetBlocksRequest r = KVFERRY__V1__GET_BLOCKS_REQUEST__INIT;
    Kvferry__V1__GetBlocksResponse *m = admin_call(&c, "GetBlocks", &r.base, &result);
    assert_non_null(m);
    assert_int_equal(m->n_blocks, 2);
    assert_false(m->truncated);
    kvf_rpc_message_free(&m->base);
    r.node_id = kvf_proto_text("p0");
    r.request_id = kvf_proto_text("7f03a1b2c3d4e5f6-12");
    r.prefix_hash = kvf_proto_text("00000000000000020000000000000001");
    m = admin_call(&c, "GetBlocks", &r.base, &result);
    assert_non_null(m);
    assert_int_equal(m->n_blocks, 1);
    const Kvferry__V1__BlockInfo *b = m->blocks[0];
    assert_true(kvf_proto_text_equal(b->node_id, "p0"));
    assert_int_equal(b->block, 7);
    assert_int_equal(b->generation, 3);
    assert_true(kvf_proto_text_equal(b->state, "sealed"));
    assert_true(kvf_proto_text_equal(b->prefix_hash, "00000000000000020000000000000001"));
    assert_int_equal(b->n_request_ids, 1);
    assert_true(kvf_proto_text_equal(b->request_ids[0], "7f03a1b2c3d4e5f6-12"));
    kvf_rpc_message_free(&m->base);
    r.limit = 1;
    r.node_id = kvf_proto_text("");
    m = admin_call(&c, "GetBlocks", &r.base, &result);
    assert_non_null(m);
    assert_int_equal(m->n_blocks, 1);
    assert_true(m->truncated);
    kvf_rpc_message_free(&m->base);
    r.request_id = kvf_proto_text("12");
    assert_null(admin_call(&c, "GetBlocks", &r.base, &result));
    assert_string_equal(result.field, "request_id");
    r.request_id = kvf_proto_text("");
    r.prefix_hash = kvf_proto_text("xyz");
    assert_null(admin_call(&c, "GetBlocks", &r.base, &result));
    assert_string_equal(result.field, "prefix_hash");
    cluster_stop(&c);
}

static void the_admin_api_is_not_on_the_client_port(void **state) {
    (void)state;
    cluster c;
    cluster_start(&c, NULL);
    Kvferry__V1__GetClusterRequest r = KVFERRY__V1__GET_CLUSTER_REQUEST__INIT;
    ProtobufCMessage *message;
    kvf_rpc_result result;
    kvf_rpc_unary(c.channel, &kvferry__v1__cluster__descriptor, "GetCluster", &r.base, 60000, &message, &result);
    assert_int_equal(result.code, KVF_RPC_UNIMPLEMENTED);
    cluster_stop(&c);
}

static void a_router_that_cannot_start_says_why(void **state) {
    (void)state;
    kvf_router_shell_options o;
    kvf_router_shell *shell = NULL;
    kvf_error err = {0};
    kvf_router_shell_options_default(&o);
    o.model_path = "/nowhere/model.gguf";
    assert_int_not_equal(kvf_router_shell_create(&o, &shell, &err), KVF_OK);
    assert_non_null(strstr(err.message, "/nowhere/model.gguf"));
    o.model_path = TINY_PATH;
    o.listen = "127.0.0.1:notaport";
    assert_int_not_equal(kvf_router_shell_create(&o, &shell, &err), KVF_OK);
    assert_non_null(strstr(err.message, "notaport"));
    o.listen = "127.0.0.1:0";
    o.core.requests_max = 0;
    assert_int_equal(kvf_router_shell_create(&o, &shell, &err), KVF_ERR_INVALID);
    assert_non_null(strstr(err.message, "requests_max"));
    kvf_router_shell_options_default(&o);
    o.model_path = TINY_PATH;
    o.stop_sequences_max = 1000;
    assert_int_equal(kvf_router_shell_create(&o, &shell, &err), KVF_ERR_INVALID);
    assert_null(shell);
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(health_follows_the_nodes),
        cmocka_unit_test(strict_routers_want_both_roles), cmocka_unit_test(a_node_that_moves_is_found),
        cmocka_unit_test(a_node_of_another_model_gets_nothing), cmocka_unit_test(draining_lets_streams_end),
        cmocka_unit_test(draining_has_an_end), cmocka_unit_test(a_second_stop_is_now),
        cmocka_unit_test(the_cluster_is_shown), cmocka_unit_test(nodes_are_told_what_operators_want),
        cmocka_unit_test(audits_gather_what_nodes_say), cmocka_unit_test(blocks_are_listed),
        cmocka_unit_test(the_admin_api_is_not_on_the_client_port),
        cmocka_unit_test(a_router_that_cannot_start_says_why)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
