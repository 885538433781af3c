/* A whole router process against fake nodes: what clients get. */
#include "cluster.h"
#include "kvf/request_text.h"

#define ALPHABET "ABCDEFGHIJKLMNOPQRSTUVWXYZ"
enum {
    STOP_TOKEN = KVFERRY__V1__FINISH_REASON__FINISH_REASON_STOP_TOKEN,
    STOP_SEQUENCE = KVFERRY__V1__FINISH_REASON__FINISH_REASON_STOP_SEQUENCE,
    LENGTH = KVFERRY__V1__FINISH_REASON__FINISH_REASON_LENGTH,
    CONTEXT = KVFERRY__V1__FINISH_REASON__FINISH_REASON_CONTEXT_LENGTH
};

static void text_streams(void **state) {
    (void)state;
    cluster c;
    cluster_start(&c, NULL);
    ask a;
    kvf_request_id id;
    ask_init(&a, "prompt", FAKE_SEED(FAKE_SCRIPT, 0));
    answer *got = generate(&c, &a, KVF_RPC_OK);
    assert_int_equal(got->admitted, 1);
    assert_string_equal(got->text[0], ALPHABET);
    assert_int_equal(got->ids_count[0], 27);
    assert_int_equal(got->ids[0][26], TINY_EOS);
    assert_int_equal(got->tokens[0], 27);
    assert_int_equal(got->reason[0], STOP_TOKEN);
    assert_int_equal(got->stop_token[0], TINY_EOS);
    assert_int_equal(got->prompt_tokens, 7);
    assert_int_equal(got->usage_prompt, 7);
    assert_int_equal(got->usage_prompts, 1);
    assert_int_equal(got->timings, 1);
    assert_int_equal(got->attempts, 1);
    assert_int_equal(got->seed, FAKE_SEED(FAKE_SCRIPT, 0));
    assert_int_equal(got->finished_seed, got->seed);
    assert_string_equal(got->decode_node, "d0");
    assert_string_equal(got->prefill_node, "");
    assert_true(kvf_request_id_parse(got->request_id, strlen(got->request_id), &id));
    free(got);
    kvf_router_timeline line;
    assert_int_equal(kvf_router_shell_timelines(c.shell, &line, 1), 1);
    assert_true(kvf_request_id_equal(line.request, id));
    assert_string_equal(line.end, "stop_token");
    assert_true(line.received_ns <= line.prepared_ns && line.prepared_ns <= line.submitted_ns &&
                line.submitted_ns <= line.admitted_ns && line.admitted_ns <= line.first_token_ns &&
                line.first_token_ns <= line.last_token_ns && line.last_token_ns <= line.ended_ns);
    cluster_stop(&c);
}

static void complete_says_the_same(void **state) {
    (void)state;
    cluster c;
    cluster_start(&c, NULL);
    ask a;
    ask_init(&a, "prompt", FAKE_SEED(FAKE_SCRIPT, 0));
    a.r.n = 3;
    a.output.top_logprobs = 2;
    ask_stop(&a, "XYZ");
    answer *got = generate(&c, &a, KVF_RPC_OK);
    Kvferry__V1__CompleteResponse *m = complete(&c, &a, KVF_RPC_OK, NULL);
    assert_int_equal(m->n_completions, 3);
    uint32_t total = 0;
    for (uint32_t i = 0; i < 3; i++) {
        const Kvferry__V1__Completion *one = m->completions[i];
        assert_int_equal(one->index, i);
        assert_int_equal(one->text.len, got->text_bytes[i]);
        assert_memory_equal(one->text.data, got->text[i], one->text.len);
        assert_int_equal(one->n_token_ids, got->ids_count[i]);
        assert_memory_equal(one->token_ids, got->ids[i], sizeof(uint32_t) * one->n_token_ids);
        assert_int_equal(one->n_logprobs, got->logprobs[i]);
        assert_int_equal(one->finished->reason, got->reason[i]);
        assert_int_equal(one->finished->usage->completion_tokens, got->tokens[i]);
        total += got->tokens[i];
    }
    assert_int_equal(m->usage->prompt_tokens, 7);
    assert_int_equal(m->usage->completion_tokens, total);
    assert_int_equal(m->admitted->prompt_tokens, 7);
    assert_true(m->request_id.len > 0);
    kvf_rpc_message_free(&m->base);
    free(got);
    cluster_stop(&c);
}

static void pages_travel_when_asked(void **state) {
    (void)state;
    cluster c;
    cluster_start(&c, NULL);
    ask a;
    ask_init(&a, "a prompt of some length, for two blocks", FAKE_SEED(FAKE_SCRIPT, 0));
    a.r.disaggregate = KVFERRY__V1__DISAGGREGATE__DISAGGREGATE_ALWAYS;
    answer *got = generate(&c, &a, KVF_RPC_OK);
    assert_string_equal(got->text[0], ALPHABET);
    assert_string_equal(got->prefill_node, "p0");
    assert_string_equal(got->decode_node, "d0");
    assert_int_equal(got->pages, 9);
    assert_int_equal(fake_get(&c.prefill, &c.prefill.prefills), 1);
    free(got);
    cluster_stop(&c);
}

static void stop_strings_end_a_choice(void **state) {
    (void)state;
    cluster c;
    cluster_start(&c, NULL);
    ask a;
    ask_init(&a, "prompt", FAKE_SEED(FAKE_SCRIPT, 0));
    ask_stop(&a, "nothing");
    ask_stop(&a, "DEFGHIJ");
    answer *got = generate(&c, &a, KVF_RPC_OK);
    assert_string_equal(got->text[0], "ABC");
    assert_int_equal(got->reason[0], STOP_SEQUENCE);
    assert_string_equal(got->stop_sequence[0], "DEFGHIJ");
    assert_int_equal(got->tokens[0], 10);
    assert_int_equal(got->ids_count[0], 10);
    free(got);
    a.stop.include_stop = true;
    got = generate(&c, &a, KVF_RPC_OK);
    assert_string_equal(got->text[0], "ABCDEFGHIJ");
    free(got);
    /* In a choice that would go on for ever, the node is told: ended well, not an abort. */
    ask_init(&a, "prompt", FAKE_SEED(FAKE_HOLD, 0));
    ask_stop(&a, "x");
    got = generate(&c, &a, KVF_RPC_OK);
    assert_int_equal(got->tokens[0], 1);
    assert_string_equal(got->text[0], "");
    free(got);
    fake_node_wait(&c.decode, &c.decode.finished_cancels, 1);
    assert_int_equal(fake_get(&c.decode, &c.decode.cancels), fake_get(&c.decode, &c.decode.finished_cancels));
    cluster_stop(&c);
}

static void choices_end_on_their_own(void **state) { /* AP-04 */
    (void)state;
    cluster c;
    cluster_start(&c, NULL);
    ask a;
    ask_init(&a, "prompt", FAKE_SEED(FAKE_SCRIPT, 1));
    FAKE_SET(&c.decode, scripts[1], "12345678");
    a.r.n = 8;
    answer *got = generate(&c, &a, KVF_RPC_OK);
    assert_int_equal(got->finished, 8);
    assert_int_equal(got->usage_prompts, 1);
    assert_int_equal(got->timings, 1);
    for (uint32_t i = 0; i < 8; i++) {
        assert_string_equal(got->text[i], &"12345678"[i]);
        assert_int_equal(got->tokens[i], 9 - i);
    }
    free(got);
    cluster_stop(&c);
}

static void lengths_end_a_choice(void **state) {
    (void)state;
    cluster c;
    cluster_options o = {.context_max = 40};
    cluster_start(&c, &o);
    ask a;
    ask_init(&a, "prompt", FAKE_SEED(FAKE_FLOOD, 0));
    ask_max(&a, 5);
    answer *got = generate(&c, &a, KVF_RPC_OK);
    assert_string_equal(got->text[0], "xxxxx");
    assert_int_equal(got->reason[0], LENGTH);
    free(got);
    ask_max(&a, 0);
    got = generate(&c, &a, KVF_RPC_OK);
    assert_int_equal(got->admitted, 1);
    assert_int_equal(got->chunks, 0);
    assert_int_equal(got->reason[0], LENGTH);
    assert_int_equal(got->tokens[0], 0);
    free(got);
    ask_init(&a, "prompt", FAKE_SEED(FAKE_FLOOD, 0));
    got = generate(&c, &a, KVF_RPC_OK);
    assert_int_equal(got->tokens[0], 33); /* 40 - 7 */
    assert_int_equal(got->reason[0], CONTEXT);
    free(got);
    cluster_stop(&c);
}

static void logprobs_arrive(void **state) { /* AP-05 */
    (void)state;
    cluster c;
    cluster_start(&c, NULL);
    ask a;
    ask_init(&a, "prompt", FAKE_SEED(FAKE_SCRIPT, 0));
    a.output.logprobs = true;
    a.output.top_logprobs = 3;
    a.output._prompt_logprobs_case = KVFERRY__V1__OUTPUT_OPTIONS___PROMPT_LOGPROBS_PROMPT_LOGPROBS;
    a.output.prompt_logprobs = 2;
    answer *got = generate(&c, &a, KVF_RPC_OK);
    assert_int_equal(got->logprobs[0], 27);
    assert_int_equal(got->tops, 3 * 27);
    assert_int_equal(got->prompt_items, 7);
    free(got);
    Kvferry__V1__CompleteResponse *m = complete(&c, &a, KVF_RPC_OK, NULL);
    assert_int_equal(m->n_prompt_logprobs, 7);
    assert_null(m->prompt_logprobs[0]->chosen);
    assert_int_equal(m->prompt_logprobs[1]->n_top, 2);
    assert_true(m->prompt_logprobs[6]->chosen->logprob == -2.0f);
    assert_int_equal(m->completions[0]->logprobs[0]->chosen->token.len, 1);
    assert_int_equal(m->completions[0]->logprobs[0]->chosen->token.data[0], 'A');
    kvf_rpc_message_free(&m->base);
    cluster_stop(&c);
}

static void tokens_that_come_together_leave_together(void **state) {
    (void)state;
    cluster c;
    cluster_start(&c, NULL);
    FAKE_SET(&c.decode, steps_per_batch, 100);
    ask a;
    ask_init(&a, "prompt", FAKE_SEED(FAKE_SCRIPT, 0));
    answer *got = generate(&c, &a, KVF_RPC_OK);
    assert_int_equal(got->chunks, 1);
    assert_string_equal(got->text[0], ALPHABET);
    free(got);
    cluster_stop(&c);
}

static void wrong_input_is_typed(void **state) { /* AP-07 */
    (void)state;
    cluster c;
    cluster_options o = {.message_bytes_max = 1 << 20};
    cluster_start(&c, &o);
    ask a;
    answer *got;
    kvf_rpc_result result;
    ask_init(&a, "prompt", 0);
    a.sampling._temperature_case = KVFERRY__V1__SAMPLING_PARAMS___TEMPERATURE_TEMPERATURE;
    a.sampling.temperature = -1;
    got = generate(&c, &a, KVF_RPC_INVALID_ARGUMENT);
    assert_string_equal(got->result.field, "sampling.temperature");
    assert_string_equal(got->result.domain, "kvferry");
    assert_string_equal(got->result.reason, "INVALID_FIELD");
    free(got);
    assert_null(complete(&c, &a, KVF_RPC_INVALID_ARGUMENT, &result));
    assert_string_equal(result.field, "sampling.temperature");
    ask_init(&a, "prompt", 0);
    a.r.model = kvf_proto_text("other");
    free(generate(&c, &a, KVF_RPC_NOT_FOUND));
    char *big = malloc(2 << 20);
    assert_non_null(big);
    memset(big, 'a', 2 << 20);
    ask_init(&a, "", 0);
    a.r.text = kvf_proto_bytes(big, 2 << 20);
    free(generate(&c, &a, KVF_RPC_RESOURCE_EXHAUSTED));
    a.r.text = kvf_proto_bytes(big, 900 << 10); /* fits the message, not the context */
    got = generate(&c, &a, KVF_RPC_INVALID_ARGUMENT);
    assert_string_equal(got->result.reason, "PROMPT_TOO_LONG");
    free(got);
    free(big);
    ask_init(&a, "prompt", FAKE_SEED(FAKE_SCRIPT, 0)); /* it lives on */
    free(generate(&c, &a, KVF_RPC_OK));
    cluster_stop(&c);
}

static void what_nodes_refuse_is_told(void **state) {
    (void)state;
    cluster c;
    cluster_start(&c, NULL);
    ask a;
    ask_init(&a, "prompt", FAKE_SEED(FAKE_FAIL, 0));
    free(generate(&c, &a, KVF_RPC_INTERNAL));
    ask_init(&a, "prompt", FAKE_SEED(FAKE_REFUSE, 0));
    answer *got = generate(&c, &a, KVF_RPC_INVALID_ARGUMENT);
    assert_string_equal(got->result.reason, "DOES_NOT_FIT");
    assert_non_null(strstr(got->result.message, "pool"));
    free(got);
    cluster_stop(&c);
}

static void a_client_that_leaves_stops_the_work(void **state) { /* AP-08 */
    (void)state;
    cluster c;
    cluster_start(&c, NULL);
    ask a;
    ProtobufCMessage *message;
    ask_init(&a, "prompt", FAKE_SEED(FAKE_HOLD, 0));
    kvf_rpc_reader *reader = generate_open(&c, &a);
    assert_int_equal(kvf_rpc_reader_next(reader, &message), KVF_OK); /* Admitted */
    kvf_rpc_message_free(message);
    kvf_rpc_reader_close(reader);
    fake_node_wait(&c.decode, &c.decode.cancels, 1);
    assert_int_equal(fake_get(&c.decode, &c.decode.finished_cancels), 0);
    /* queued at the node, no answer yet */
    ask_init(&a, "prompt", FAKE_SEED(FAKE_SILENT, 0));
    reader = generate_open(&c, &a);
    fake_node_wait(&c.decode, &c.decode.reserves, 2);
    kvf_rpc_reader_cancel(reader);
    assert_int_equal(kvf_rpc_reader_next(reader, &message), KVF_ERR_GONE);
    assert_int_equal(kvf_rpc_reader_result(reader)->code, KVF_RPC_CANCELLED);
    kvf_rpc_reader_close(reader);
    fake_node_wait(&c.decode, &c.decode.cancels, 2);
    /* unary, by deadline */
    ask_init(&a, "prompt", FAKE_SEED(FAKE_HOLD, 0));
    kvf_rpc_result result;
    kvf_rpc_unary(c.channel, &kvferry__v1__inference__descriptor, "Complete", &a.r.base, 100, &message, &result);
    assert_int_equal(result.code, KVF_RPC_DEADLINE_EXCEEDED);
    fake_node_wait(&c.decode, &c.decode.cancels, 3);
    /* and normal ends are no aborts */
    ask_init(&a, "prompt", FAKE_SEED(FAKE_SCRIPT, 0));
    for (int i = 0; i < 5; i++) free(generate(&c, &a, KVF_RPC_OK));
    assert_int_equal(fake_get(&c.decode, &c.decode.cancels) - fake_get(&c.decode, &c.decode.finished_cancels), 3);
    cluster_stop(&c);
}

static void a_slow_reader_ends_alone(void **state) { /* GR-08 */
    (void)state;
    cluster c;
    cluster_options o = {.stream_buffer_bytes = 32 << 10};
    cluster_start(&c, &o);
    ask slow, fast;
    ProtobufCMessage *message;
    ask_init(&slow, "prompt", FAKE_SEED(FAKE_FLOOD, 0));
    slow.r.n = 8;
    slow.output.top_logprobs = 20; /* some 20 MB */
    kvf_rpc_reader *reader = generate_open(&c, &slow);
    assert_int_equal(kvf_rpc_reader_next(reader, &message), KVF_OK);
    kvf_rpc_message_free(message); /* and no more: until the router has given up */
    fake_node_wait(&c.decode, &c.decode.cancels, 1);
    ask_init(&fast, "prompt", FAKE_SEED(FAKE_SCRIPT, 0));
    for (int i = 0; i < 3; i++) free(generate(&c, &fast, KVF_RPC_OK));
    while (kvf_rpc_reader_next(reader, &message) == KVF_OK) kvf_rpc_message_free(message);
    assert_int_equal(kvf_rpc_reader_result(reader)->code, KVF_RPC_RESOURCE_EXHAUSTED);
    kvf_rpc_reader_close(reader);
    kvf_router_timeline lines[4];
    assert_int_equal(kvf_router_shell_timelines(c.shell, lines, 4), 4);
    assert_string_equal(lines[3].end, "SLOW_READER");
    cluster_stop(&c);
}

static void a_full_queue_says_when_to_come_back(void **state) { /* AP-10 */
    (void)state;
    cluster c;
    cluster_options o = {.requests_max = 4};
    cluster_start(&c, &o);
    ask a;
    kvf_rpc_reader *held[4];
    ProtobufCMessage *message;
    ask_init(&a, "prompt", FAKE_SEED(FAKE_HOLD, 0));
    for (int i = 0; i < 4; i++) {
        held[i] = generate_open(&c, &a);
        assert_int_equal(kvf_rpc_reader_next(held[i], &message), KVF_OK);
        kvf_rpc_message_free(message);
    }
    answer *got = generate(&c, &a, KVF_RPC_RESOURCE_EXHAUSTED);
    assert_string_equal(got->result.reason, "QUEUE_FULL");
    assert_true(got->result.retry_after_ms > 0);
    assert_int_equal(got->admitted, 0);
    free(got);
    for (int i = 0; i < 4; i++) kvf_rpc_reader_close(held[i]);
    cluster_stop(&c);
}

static void a_lost_session_is_not_seen_by_clients(void **state) {
    (void)state;
    cluster c;
    cluster_start(&c, NULL);
    ask a;
    ask_init(&a, "prompt", FAKE_SEED(FAKE_DIE, 0));
    answer *got = generate(&c, &a, KVF_RPC_OK);
    assert_string_equal(got->text[0], ALPHABET);
    assert_int_equal(got->tokens[0], 27);
    free(got);
    assert_int_equal(fake_get(&c.decode, &c.decode.deaths), 1);
    cluster_stop(&c);
}

/* ---- the rest of the client API ---- */

static void text_and_ids_go_both_ways(void **state) {
    (void)state;
    cluster c;
    cluster_start(&c, NULL);
    const ProtobufCServiceDescriptor *service = &kvferry__v1__inference__descriptor;
    ProtobufCMessage *message;
    kvf_rpc_result result;
    Kvferry__V1__TokenizeRequest t = KVFERRY__V1__TOKENIZE_REQUEST__INIT;
    t.input_case = KVFERRY__V1__TOKENIZE_REQUEST__INPUT_TEXT;
    t.text = kvf_proto_text("h\xc3\xa9 <|im_end|>");
    t.parse_special = true;
    assert_int_equal(kvf_rpc_unary(c.channel, service, "Tokenize", &t.base, 60000, &message, &result), KVF_OK);
    Kvferry__V1__TokenizeResponse *ids = (void *)message;
    assert_int_equal(ids->token_ids[0], TINY_BOS);
    assert_int_equal(ids->token_ids[ids->n_token_ids - 1], 269);
    Kvferry__V1__DetokenizeRequest d = KVFERRY__V1__DETOKENIZE_REQUEST__INIT;
    d.n_token_ids = ids->n_token_ids - 1;
    d.token_ids = ids->token_ids + 1;
    assert_int_equal(kvf_rpc_unary(c.channel, service, "Detokenize", &d.base, 60000, &message, &result), KVF_OK);
    Kvferry__V1__DetokenizeResponse *text = (void *)message;
    assert_int_equal(text->raw.len, t.text.len);
    assert_memory_equal(text->raw.data, t.text.data, t.text.len);
    assert_int_equal(text->text.len, t.text.len);
    assert_memory_equal(text->text.data, t.text.data, t.text.len);
    kvf_rpc_message_free(message);
    uint32_t half[] = {c.decode.byte_token[0xc3]}, outside[] = {TINY_VOCAB};
    d.n_token_ids = 1;
    d.token_ids = half;
    assert_int_equal(kvf_rpc_unary(c.channel, service, "Detokenize", &d.base, 60000, &message, &result), KVF_OK);
    text = (void *)message;
    assert_int_equal(text->raw.len, 1);
    assert_memory_equal(text->text.data, "\xef\xbf\xbd", 3);
    kvf_rpc_message_free(message);
    d.token_ids = outside;
    assert_int_not_equal(kvf_rpc_unary(c.channel, service, "Detokenize", &d.base, 60000, &message, &result), KVF_OK);
    assert_string_equal(result.field, "token_ids");
    t.text = kvf_proto_text("\xff");
    assert_int_not_equal(kvf_rpc_unary(c.channel, service, "Tokenize", &t.base, 60000, &message, &result), KVF_OK);
    assert_string_equal(result.field, "text");
    kvf_rpc_message_free(&ids->base);
    cluster_stop(&c);
}

static void the_model_is_listed(void **state) {
    (void)state;
    cluster c;
    cluster_options o = {.context_max = 100};
    cluster_start(&c, &o);
    ProtobufCMessage *message;
    kvf_rpc_result result;
    Kvferry__V1__ListModelsRequest r = KVFERRY__V1__LIST_MODELS_REQUEST__INIT;
    assert_int_equal(
        kvf_rpc_unary(c.channel, &kvferry__v1__inference__descriptor, "ListModels", &r.base, 60000, &message, &result),
        KVF_OK);
    Kvferry__V1__ListModelsResponse *m = (void *)message;
    assert_int_equal(m->n_models, 1);
    assert_true(kvf_proto_text_equal(m->models[0]->id, "tiny"));
    assert_true(kvf_proto_text_equal(m->models[0]->architecture, "llama"));
    assert_int_equal(m->models[0]->vocab_size, TINY_VOCAB);
    assert_int_equal(m->models[0]->max_context, 100);
    assert_int_equal(m->models[0]->kv_bytes_per_token, 2 * 2 * 16 * 3 * 2);
    assert_int_equal(m->models[0]->weights_hash.len, 32);
    assert_int_equal(m->models[0]->chat_template_hash.len, 0);
    kvf_rpc_message_free(message);
    /* a model without a template answers text only */
    Kvferry__V1__ChatMessage hi = tiny_message("user", "hi"), *list[] = {&hi};
    Kvferry__V1__ChatInput chat = KVFERRY__V1__CHAT_INPUT__INIT;
    chat.n_messages = 1;
    chat.messages = list;
    ask a;
    ask_init(&a, "", 0);
    a.r.input_case = KVFERRY__V1__GENERATE_REQUEST__INPUT_CHAT;
    a.r.chat = &chat;
    free(generate(&c, &a, KVF_RPC_INVALID_ARGUMENT));
    cluster_stop(&c);
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(text_streams), cmocka_unit_test(complete_says_the_same),
        cmocka_unit_test(pages_travel_when_asked), cmocka_unit_test(stop_strings_end_a_choice),
        cmocka_unit_test(choices_end_on_their_own), cmocka_unit_test(lengths_end_a_choice),
        cmocka_unit_test(logprobs_arrive), cmocka_unit_test(tokens_that_come_together_leave_together),
        cmocka_unit_test(wrong_input_is_typed), cmocka_unit_test(what_nodes_refuse_is_told),
        cmocka_unit_test(a_client_that_leaves_stops_the_work), cmocka_unit_test(a_slow_reader_ends_alone),
        cmocka_unit_test(a_full_queue_says_when_to_come_back), cmocka_unit_test(a_lost_session_is_not_seen_by_clients),
        cmocka_unit_test(text_and_ids_go_both_ways), cmocka_unit_test(the_model_is_listed)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
