#include "cluster.h"
#include "grpc/health/v1/health.pb-c.h"
#include "kvf/utf8.h"
#include <time.h>

static void on_serving(void *self, bool serving) {
    cluster *c = self;
    pthread_mutex_lock(&c->lock);
    c->serving = serving;
    pthread_cond_broadcast(&c->changed);
    pthread_mutex_unlock(&c->lock);
}

static void *run(void *self) {
    cluster *c = self;
    kvf_status status = kvf_router_shell_run(c->shell);
    pthread_mutex_lock(&c->lock);
    c->running = false;
    pthread_cond_broadcast(&c->changed);
    pthread_mutex_unlock(&c->lock);
    return (void *)(intptr_t)status;
}

static void wait_changed(cluster *c, const char *what) { /* under lock */
    struct timespec until;
    clock_gettime(CLOCK_REALTIME, &until);
    until.tv_sec += 60;
    if (pthread_cond_timedwait(&c->changed, &c->lock, &until) != 0) {
        pthread_mutex_unlock(&c->lock);
        fail_msg("waited a minute: %s", what);
    }
}

void cluster_wait_serving(cluster *c, bool serving) {
    pthread_mutex_lock(&c->lock);
    while (c->serving != serving) wait_changed(c, "the router's health does not change");
    pthread_mutex_unlock(&c->lock);
}

static kvf_rpc_channel *connect_to(cluster *c, const char *address) {
    kvf_rpc_channel *channel;
    kvf_rpc_channel_opts co = {.address = address};
    assert_int_equal(kvf_rpc_channel_create(c->rt, &co, &channel), KVF_OK);
    return channel;
}

static void start_shell(cluster *c, const cluster_options *o) {
    kvf_router_shell_node nodes[2];
    kvf_router_shell_options so;
    kvf_router_shell_options_default(&so);
    so.model_path = TINY_PATH;
    so.model_id = "tiny";
    so.core.strict = o->strict;
    so.core.status_timeout_ns = 60 * KVF_NS_PER_S; /* fake nodes have no heartbeat */
    so.core.context_max = o->context_max;
    if (o->requests_max) so.core.requests_max = o->requests_max;
    if (o->queue_max) so.core.queue_max_requests = o->queue_max;
    if (o->stream_buffer_bytes) so.stream_buffer_bytes = o->stream_buffer_bytes;
    if (o->message_bytes_max) so.message_bytes_max = o->message_bytes_max;
    so.core.ready_grace_ns = (o->grace_ms ? o->grace_ms : 10000) * KVF_NS_PER_MS;
    so.core.reconnect_grace_ns = 300 * KVF_NS_PER_MS;
    if (o->drain_ms) so.drain_ns = o->drain_ms * KVF_NS_PER_MS;
    so.node_answer_ns = 500 * KVF_NS_PER_MS;
    so.on_serving = on_serving;
    so.self = c;
    so.nodes = nodes;
    if (!o->no_nodes) {
        nodes[so.nodes_count++] = (kvf_router_shell_node){"d0", KVF_ROLE_DECODE, fake_node_address(&c->decode)};
        if (!o->no_prefill)
            nodes[so.nodes_count++] = (kvf_router_shell_node){"p0", KVF_ROLE_PREFILL, fake_node_address(&c->prefill)};
    }
    kvf_error err = {0};
    if (kvf_router_shell_create(&so, &c->shell, &err) != KVF_OK) fail_msg("%s", err.message);
}

/* A node knows that it was welcomed before the router does. */
static void wait_ready(cluster *c, size_t nodes) {
    for (size_t ready = 0; ready < nodes;) {
        Kvferry__V1__GetClusterRequest r = KVFERRY__V1__GET_CLUSTER_REQUEST__INIT;
        kvf_rpc_result result;
        Kvferry__V1__ClusterState *m = admin_call(c, "GetCluster", &r.base, &result);
        if (!m) fail_msg("GetCluster: %s", result.message);
        ready = 0;
        for (size_t i = 0; i < m->n_nodes; i++)
            if (m->nodes[i]->role != KVFERRY__V1__ROLE__ROLE_ROUTER && m->nodes[i]->epoch &&
                m->nodes[i]->state == KVFERRY__V1__NODE_STATE__NODE_STATE_READY)
                ready++;
        kvf_rpc_message_free(&m->base);
    }
}

void cluster_start(cluster *c, const cluster_options *options) {
    cluster_options none = {0};
    const cluster_options *o = options ? options : &none;
    *c = (cluster){.running = true};
    pthread_mutex_init(&c->lock, NULL);
    pthread_cond_init(&c->changed, NULL);
    tiny_load(&c->model);
    c->prefill.decode = &c->decode;
    for (size_t i = 0; i < FAKE_SCRIPTS_MAX; i++)
        c->prefill.scripts[i] = c->decode.scripts[i] = "ABCDEFGHIJKLMNOPQRSTUVWXYZ";
    fake_node_start(&c->decode, &c->model, "d0", KVF_ROLE_DECODE, NULL);
    fake_node_start(&c->prefill, &c->model, "p0", KVF_ROLE_PREFILL, NULL);
    start_shell(c, o);
    assert_int_equal(pthread_create(&c->thread, NULL, run, c), 0);
    assert_int_equal(kvf_rpc_runtime_create(NULL, &c->rt), KVF_OK);
    c->channel = connect_to(c, kvf_router_shell_address(c->shell));
    c->admin = connect_to(c, kvf_router_shell_admin_address(c->shell));
    if (!o->no_nodes) wait_ready(c, o->no_prefill ? 1 : 2);
}

void cluster_join(cluster *c) {
    pthread_mutex_lock(&c->lock);
    while (c->running) wait_changed(c, "the router does not end");
    pthread_mutex_unlock(&c->lock);
}

void cluster_stop(cluster *c) {
    kvf_router_shell_stop(c->shell);
    kvf_router_shell_stop(c->shell);
    void *status;
    pthread_join(c->thread, &status);
    assert_int_equal((intptr_t)status, KVF_OK);
    kvf_router_shell_destroy(c->shell);
    kvf_rpc_channel_destroy(c->channel);
    kvf_rpc_channel_destroy(c->admin);
    kvf_rpc_runtime_destroy(c->rt);
    fake_node_stop(&c->decode);
    fake_node_stop(&c->prefill);
    front_model_free(&c->model);
    pthread_cond_destroy(&c->changed);
    pthread_mutex_destroy(&c->lock);
}

/* ---- requests ---- */

void ask_init(ask *a, const char *text, uint64_t seed) {
    memset(a, 0, sizeof *a);
    kvferry__v1__generate_request__init(&a->r);
    kvferry__v1__sampling_params__init(&a->sampling);
    kvferry__v1__stop_params__init(&a->stop);
    kvferry__v1__output_options__init(&a->output);
    a->r.sampling = &a->sampling;
    a->r.stop = &a->stop;
    a->r.output = &a->output;
    a->r.input_case = KVFERRY__V1__GENERATE_REQUEST__INPUT_TEXT;
    a->r.text = kvf_proto_text(text);
    a->sampling._seed_case = KVFERRY__V1__SAMPLING_PARAMS___SEED_SEED;
    a->sampling.seed = seed;
    a->output.token_ids = true;
    a->stop.sequences = a->stops;
}

void ask_max(ask *a, uint32_t max) {
    a->stop._max_tokens_case = KVFERRY__V1__STOP_PARAMS___MAX_TOKENS_MAX_TOKENS;
    a->stop.max_tokens = max;
}

void ask_stop(ask *a, const char *stop) { a->stops[a->stop.n_sequences++] = kvf_proto_text(stop); }

/* ---- answers ---- */

static void copy_text(char *out, size_t room, ProtobufCBinaryData text) {
    assert_true(text.len < room);
    if (text.len) memcpy(out, text.data, text.len);
    out[text.len] = 0;
}

static void take_chunk(answer *got, const Kvferry__V1__Chunk *m) {
    uint32_t c = m->index;
    assert_true(c < ANSWER_CHOICES && !got->ended[c]);
    assert_true(kvf_utf8_valid(m->text.data, m->text.len, NULL));
    assert_true(m->text.len || m->n_token_ids || m->n_logprobs); /* none is empty */
    assert_true(got->text_bytes[c] + m->text.len < sizeof got->text[c]);
    if (m->text.len) memcpy(got->text[c] + got->text_bytes[c], m->text.data, m->text.len);
    got->text_bytes[c] += m->text.len;
    for (size_t i = 0; i < m->n_token_ids; i++) got->ids[c][got->ids_count[c]++] = m->token_ids[i];
    got->logprobs[c] += (uint32_t)m->n_logprobs;
    for (size_t i = 0; i < m->n_logprobs; i++) {
        assert_non_null(m->logprobs[i]->chosen);
        assert_true(m->logprobs[i]->chosen->logprob == -0.5f);
        got->tops += (uint32_t)m->logprobs[i]->n_top;
    }
    got->chunks++;
}

static void take_finished(answer *got, const Kvferry__V1__Finished *m) {
    uint32_t c = m->index;
    assert_true(c < ANSWER_CHOICES && !got->ended[c]);
    got->ended[c] = true;
    got->finished++;
    got->reason[c] = m->reason;
    got->finished_seed = m->seed;
    if (m->matched_case == KVFERRY__V1__FINISHED__MATCHED_STOP_TOKEN_ID) got->stop_token[c] = m->stop_token_id;
    if (m->matched_case == KVFERRY__V1__FINISHED__MATCHED_STOP_SEQUENCE)
        copy_text(got->stop_sequence[c], sizeof got->stop_sequence[c], m->stop_sequence);
    assert_non_null(m->usage);
    got->tokens[c] = m->usage->completion_tokens;
    if (m->usage->prompt_tokens) got->usage_prompts++;
    got->usage_prompt += m->usage->prompt_tokens;
    got->usage_cached += m->usage->cached_tokens;
    if (m->timings) {
        got->timings++;
        got->pages = m->timings->pages_moved;
        got->attempts = m->timings->attempts;
    }
}

void answer_take(answer *got, const ProtobufCMessage *message) {
    const Kvferry__V1__GenerateResponse *m = (const void *)message;
    char id[64];
    copy_text(id, sizeof id, m->request_id);
    if (got->request_id[0]) assert_string_equal(id, got->request_id);
    memcpy(got->request_id, id, sizeof id);
    switch (m->event_case) {
    case KVFERRY__V1__GENERATE_RESPONSE__EVENT_ADMITTED:
        assert_true(got->chunks == 0 && got->finished == 0 && got->prompt_items == 0);
        got->admitted++;
        got->prompt_tokens = m->admitted->prompt_tokens;
        got->cached_tokens = m->admitted->cached_tokens;
        got->seed = m->admitted->seed;
        copy_text(got->prefill_node, sizeof got->prefill_node, m->admitted->prefill_node);
        copy_text(got->decode_node, sizeof got->decode_node, m->admitted->decode_node);
        break;
    case KVFERRY__V1__GENERATE_RESPONSE__EVENT_CHUNK: take_chunk(got, m->chunk); break;
    case KVFERRY__V1__GENERATE_RESPONSE__EVENT_FINISHED: take_finished(got, m->finished); break;
    case KVFERRY__V1__GENERATE_RESPONSE__EVENT_PROMPT_LOGPROBS:
        assert_int_equal(m->prompt_logprobs->start, got->prompt_items);
        for (size_t i = 0; i < m->prompt_logprobs->n_items; i++)
            assert_true((m->prompt_logprobs->items[i]->chosen == NULL) == (got->prompt_items + i == 0));
        got->prompt_items += (uint32_t)m->prompt_logprobs->n_items;
        break;
    default: fail_msg("event %d", (int)m->event_case);
    }
}

kvf_rpc_reader *generate_open(cluster *c, const ask *a) {
    kvf_rpc_reader *reader;
    assert_int_equal(
        kvf_rpc_reader_open(c->channel, &kvferry__v1__inference__descriptor, "Generate", &a->r.base, 60000, &reader),
        KVF_OK);
    return reader;
}

answer *generate(cluster *c, const ask *a, kvf_rpc_code want) {
    answer *got = calloc(1, sizeof *got);
    assert_non_null(got);
    kvf_rpc_reader *reader = generate_open(c, a);
    ProtobufCMessage *message;
    while (kvf_rpc_reader_next(reader, &message) == KVF_OK) {
        answer_take(got, message);
        kvf_rpc_message_free(message);
    }
    got->result = *kvf_rpc_reader_result(reader);
    kvf_rpc_reader_close(reader);
    if (got->result.code != want)
        fail_msg("%s: %s, %s is expected", kvf_rpc_code_name(got->result.code), got->result.message,
            kvf_rpc_code_name(want));
    return got;
}

Kvferry__V1__CompleteResponse *complete(cluster *c, const ask *a, kvf_rpc_code want, kvf_rpc_result *result) {
    ProtobufCMessage *message = NULL;
    kvf_rpc_result local;
    if (!result) result = &local;
    kvf_rpc_unary(c->channel, &kvferry__v1__inference__descriptor, "Complete", &a->r.base, 60000, &message, result);
    if (result->code != want)
        fail_msg("%s: %s, %s is expected", kvf_rpc_code_name(result->code), result->message, kvf_rpc_code_name(want));
    return (void *)message;
}

void *admin_call(cluster *c, const char *method, const ProtobufCMessage *request, kvf_rpc_result *result) {
    ProtobufCMessage *message = NULL;
    kvf_rpc_unary(c->admin, &kvferry__v1__cluster__descriptor, method, request, 60000, &message, result);
    return message;
}

int health(cluster *c, bool admin, const char *service) {
    Grpc__Health__V1__HealthCheckRequest request = GRPC__HEALTH__V1__HEALTH_CHECK_REQUEST__INIT;
    request.service = (char *)(uintptr_t)service;
    ProtobufCMessage *message = NULL;
    kvf_rpc_result result;
    if (kvf_rpc_unary(admin ? c->admin : c->channel, &grpc__health__v1__health__descriptor, "Check", &request.base,
            60000, &message, &result) != KVF_OK)
        return -(int)result.code;
    int status = (int)((Grpc__Health__V1__HealthCheckResponse *)(void *)message)->status;
    kvf_rpc_message_free(message);
    return status;
}
