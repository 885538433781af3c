/* A router process and two real nodes (engine, transfer, wire) in one process: what the client API says of real work.
 */
#include "cluster.h"
#include "kvf/worker.h"

typedef struct {
    cluster c; /* channels only; no fake node is started */
    kvf_worker *workers[2];
    pthread_t threads[2];
} real;

static void *run_worker(void *self) {
    kvf_worker_run(self);
    return NULL;
}

static void *run_router(void *self) {
    kvf_router_shell_run(self);
    return NULL;
}

static void on_serving(void *self, bool serving) {
    cluster *c = self;
    pthread_mutex_lock(&c->lock);
    c->serving = serving;
    pthread_cond_broadcast(&c->changed);
    pthread_mutex_unlock(&c->lock);
}

static void start_worker(real *r, int i, const char *name, kvf_role role) {
    kvf_worker_options o;
    kvf_error err = {0};
    kvf_worker_options_default(&o);
    o.name = name;
    o.role = role;
    o.model_path = TINY_PATH;
    o.threads = 1;
    o.kv_memory_bytes = 16u << 20;
    if (kvf_worker_create(&o, &r->workers[i], &err) != KVF_OK) fail_msg("%s", err.message);
    assert_int_equal(pthread_create(&r->threads[i], NULL, run_worker, r->workers[i]), 0);
}

static kvf_rpc_channel *connect_to(cluster *c, const char *address) {
    kvf_rpc_channel *channel;
    kvf_rpc_channel_opts co = {.address = address};
    assert_int_equal(kvf_rpc_channel_create(c->rt, &co, &channel), KVF_OK);
    return channel;
}

static void real_start(real *r) {
    memset(r, 0, sizeof *r);
    cluster *c = &r->c;
    pthread_mutex_init(&c->lock, NULL);
    pthread_cond_init(&c->changed, NULL);
    start_worker(r, 0, "p0", KVF_ROLE_PREFILL);
    start_worker(r, 1, "d0", KVF_ROLE_DECODE);
    kvf_router_shell_node nodes[] = {{"p0", KVF_ROLE_PREFILL, kvf_worker_control_address(r->workers[0])},
        {"d0", KVF_ROLE_DECODE, kvf_worker_control_address(r->workers[1])}};
    kvf_router_shell_options o;
    kvf_error err = {0};
    kvf_router_shell_options_default(&o);
    o.model_path = TINY_PATH;
    o.nodes = nodes;
    o.nodes_count = 2;
    o.core.strict = true; /* serving: both are there */
    o.on_serving = on_serving;
    o.self = c;
    if (kvf_router_shell_create(&o, &c->shell, &err) != KVF_OK) fail_msg("%s", err.message);
    assert_int_equal(pthread_create(&c->thread, NULL, run_router, c->shell), 0);
    assert_int_equal(kvf_rpc_runtime_create(NULL, &c->rt), KVF_OK);
    c->channel = connect_to(c, kvf_router_shell_address(c->shell));
    c->admin = connect_to(c, kvf_router_shell_admin_address(c->shell));
    cluster_wait_serving(c, true);
}

static void real_stop(real *r) {
    cluster *c = &r->c;
    kvf_router_shell_stop(c->shell);
    pthread_join(c->thread, NULL);
    kvf_router_shell_destroy(c->shell);
    for (int i = 0; i < 2; i++) {
        kvf_worker_stop(r->workers[i]);
        kvf_worker_stop(r->workers[i]);
        pthread_join(r->threads[i], NULL);
        kvf_worker_destroy(r->workers[i]);
    }
    kvf_rpc_channel_destroy(c->channel);
    kvf_rpc_channel_destroy(c->admin);
    kvf_rpc_runtime_destroy(c->rt);
    pthread_cond_destroy(&c->changed);
    pthread_mutex_destroy(&c->lock);
}

/* Nothing is held once requests are over: asked again until it is so. */
static void expect_rest(real *r) {
    kvf_rpc_result result;
    Kvferry__V1__AuditRequest q = KVFERRY__V1__AUDIT_REQUEST__INIT;
    for (bool at_rest = false; !at_rest;) {
        Kvferry__V1__AuditResponse *m = admin_call(&r->c, "Audit", &q.base, &result);
        if (!m) fail_msg("audit: %s", result.message);
        for (size_t i = 0; i < m->n_violations; i++)
            fail_msg("%.*s: %.*s", (int)m->violations[i]->invariant.len, (const char *)m->violations[i]->invariant.data,
                (int)m->violations[i]->detail.len, (const char *)m->violations[i]->detail.data);
        at_rest = m->at_rest;
        kvf_rpc_message_free(&m->base);
    }
}

static char prompt[600]; /* some 37 blocks */

static void ask_real(ask *a, size_t prompt_bytes, uint32_t tokens) {
    ask_init(a, "", 5);
    a->r.text = kvf_proto_bytes(prompt, prompt_bytes);
    a->stop.ignore_eos = true;
    ask_max(a, tokens);
}

static void every_way_gives_the_same(void **state) {
    real *r = *state;
    static const size_t lengths[] = {1, 14, 15, 16, 31, 250, 599};
    for (size_t i = 0; i < KVF_COUNT_OF(lengths); i++) {
        ask a;
        ask_real(&a, lengths[i], 20);
        a.r.disaggregate = KVFERRY__V1__DISAGGREGATE__DISAGGREGATE_NEVER;
        answer *alone = generate(&r->c, &a, KVF_RPC_OK);
        assert_int_equal(alone->tokens[0], 20);
        assert_int_equal(alone->reason[0], KVFERRY__V1__FINISH_REASON__FINISH_REASON_LENGTH);
        assert_string_equal(alone->prefill_node, "");
        char salt[16];
        snprintf(salt, sizeof salt, "way %zu", i); /* so that there is something to ship */
        a.r.cache_salt = kvf_proto_text(salt);
        a.r.disaggregate = KVFERRY__V1__DISAGGREGATE__DISAGGREGATE_ALWAYS;
        answer *split = generate(&r->c, &a, KVF_RPC_OK);
        assert_string_equal(split->prefill_node, "p0");
        assert_true(split->pages > 0);
        assert_memory_equal(split->ids[0], alone->ids[0], sizeof(uint32_t) * 20);
        assert_int_equal(split->text_bytes[0], alone->text_bytes[0]);
        assert_memory_equal(split->text[0], alone->text[0], alone->text_bytes[0]);
        free(alone);
        free(split);
    }
    expect_rest(r);
}

static void choices_equal_their_own_kind(void **state) {
    real *r = *state;
    ask a;
    ask_real(&a, 100, 12);
    a.r.n = 4;
    a.r.disaggregate = KVFERRY__V1__DISAGGREGATE__DISAGGREGATE_ALWAYS;
    answer *first = generate(&r->c, &a, KVF_RPC_OK);
    a.r.disaggregate = KVFERRY__V1__DISAGGREGATE__DISAGGREGATE_NEVER;
    answer *second = generate(&r->c, &a, KVF_RPC_OK);
    for (uint32_t i = 0; i < 4; i++) {
        assert_int_equal(first->tokens[i], 12);
        assert_memory_equal(first->ids[i], second->ids[i], sizeof(uint32_t) * 12);
    }
    assert_memory_not_equal(first->ids[0], first->ids[1], sizeof(uint32_t) * 12);
    free(first);
    free(second);
    expect_rest(r);
}

static void prompts_have_logprobs(void **state) {
    real *r = *state;
    static const size_t lengths[] = {100, 0}; /* 0: BOS alone */
    for (size_t i = 0; i < 2; i++)
        for (int always = 0; always < 2; always++) {
            ask a;
            ask_real(&a, lengths[i], 2);
            a.r.disaggregate =
                always ? KVFERRY__V1__DISAGGREGATE__DISAGGREGATE_ALWAYS : KVFERRY__V1__DISAGGREGATE__DISAGGREGATE_NEVER;
            a.output.top_logprobs = 2;
            a.output._prompt_logprobs_case = KVFERRY__V1__OUTPUT_OPTIONS___PROMPT_LOGPROBS_PROMPT_LOGPROBS;
            a.output.prompt_logprobs = 1;
            Kvferry__V1__CompleteResponse *m = complete(&r->c, &a, KVF_RPC_OK, NULL);
            assert_int_equal(m->n_prompt_logprobs, m->usage->prompt_tokens);
            assert_null(m->prompt_logprobs[0]->chosen);
            for (size_t k = 1; k < m->n_prompt_logprobs; k++) {
                assert_true(m->prompt_logprobs[k]->chosen->logprob <= 0);
                assert_int_equal(m->prompt_logprobs[k]->n_top, 1);
            }
            assert_int_equal(m->completions[0]->n_logprobs, 2);
            assert_int_equal(m->completions[0]->logprobs[0]->n_top, 2);
            assert_true(m->completions[0]->logprobs[0]->chosen->logprob <= 0);
            kvf_rpc_message_free(&m->base);
        }
    expect_rest(r);
}

static void stop_strings_stop_real_work(void **state) {
    real *r = *state;
    ask a;
    ask_real(&a, 50, 40);
    answer *whole = generate(&r->c, &a, KVF_RPC_OK);
    /* A stop from the middle of what it would say. */
    uint32_t cut = 0;
    for (uint32_t i = 10; i + 1 < whole->text_bytes[0] && !cut; i++)
        if (whole->text[0][i] > ' ' && whole->text[0][i] < 127) cut = i;
    assert_true(cut > 0);
    char stop[2] = {whole->text[0][cut], 0};
    ask_stop(&a, stop);
    a.r.disaggregate = KVFERRY__V1__DISAGGREGATE__DISAGGREGATE_ALWAYS;
    answer *got = generate(&r->c, &a, KVF_RPC_OK);
    assert_int_equal(got->reason[0], KVFERRY__V1__FINISH_REASON__FINISH_REASON_STOP_SEQUENCE);
    size_t want = (size_t)(strchr(whole->text[0], stop[0]) - whole->text[0]);
    assert_int_equal(got->text_bytes[0], want);
    assert_memory_equal(got->text[0], whole->text[0], want);
    free(whole);
    free(got);
    expect_rest(r);
}

static void clients_that_leave_leave_nothing(void **state) {
    real *r = *state;
    for (int i = 0; i < 12; i++) {
        ask a;
        ProtobufCMessage *message;
        ask_real(&a, 50 * (size_t)(i + 1) - 1, 2000);
        a.r.disaggregate =
            i % 2 ? KVFERRY__V1__DISAGGREGATE__DISAGGREGATE_ALWAYS : KVFERRY__V1__DISAGGREGATE__DISAGGREGATE_NEVER;
        kvf_rpc_reader *reader = generate_open(&r->c, &a);
        for (int k = 0; k < i % 4; k++) {
            assert_int_equal(kvf_rpc_reader_next(reader, &message), KVF_OK);
            kvf_rpc_message_free(message);
        }
        kvf_rpc_reader_close(reader);
    }
    expect_rest(r);
}

static int setup(void **state) {
    static real r;
    for (size_t i = 0; i < sizeof prompt; i++) prompt[i] = (char)('a' + (i * 7 + i / 26) % 26);
    real_start(&r);
    *state = &r;
    return 0;
}

static int teardown(void **state) {
    real_stop(*state);
    return 0;
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(every_way_gives_the_same),
        cmocka_unit_test(choices_equal_their_own_kind), cmocka_unit_test(prompts_have_logprobs),
        cmocka_unit_test(stop_strings_stop_real_work), cmocka_unit_test(clients_that_leave_leave_nothing)};
    return cmocka_run_group_tests(tests, setup, teardown);
}
