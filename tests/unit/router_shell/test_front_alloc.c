/* Each allocation of a request's way in and out fails in turn: a typed error, never a crash or a leak. */
#include "tiny.h"
#include "choice.h"
#include "pack.h"

static uint32_t countdown; /* 0: never; 1: the next one fails */
static uint32_t refused;

static bool refuse(void) {
    if (countdown == 0 || --countdown > 0) return false;
    refused++;
    return true;
}

void *__real_malloc(size_t size);
void *__real_calloc(size_t count, size_t size);
void *__real_realloc(void *old, size_t size);
void *__real_aligned_alloc(size_t align, size_t size);
void *__wrap_malloc(size_t size);
void *__wrap_calloc(size_t count, size_t size);
void *__wrap_realloc(void *old, size_t size);
void *__wrap_aligned_alloc(size_t align, size_t size);
void *__wrap_malloc(size_t size) { return refuse() ? NULL : __real_malloc(size); }
void *__wrap_calloc(size_t count, size_t size) { return refuse() ? NULL : __real_calloc(count, size); }
void *__wrap_realloc(void *old, size_t size) { return refuse() ? NULL : __real_realloc(old, size); }
void *__wrap_aligned_alloc(size_t align, size_t size) { return refuse() ? NULL : __real_aligned_alloc(align, size); }

static front_model model;
static const front_limits limits = {.context_max = 512, .stop_sequences_max = 16, .stop_sequence_bytes_max = 256};

/* What a request does between its arrival and its end; false: it was refused, with *f. */
static bool whole_way(const Kvferry__V1__GenerateRequest *r, fault *f) {
    front_plan plan;
    front_rules rules = {0};
    front_choice choice = {0};
    front_scratch scratch = {0};
    kvf_sample sample = {.top_count = 3};
    if (!front_plan_make(&model, &limits, r, 1, 0, &plan, f)) return false;
    bool ok =
        front_rules_init(&rules, model.tokenizer, &plan) == KVF_OK && front_choice_init(&choice, &rules) == KVF_OK;
    for (uint32_t i = 0; i < 40 && ok; i++)
        ok = front_choice_push(&choice, &rules, 'a' + i % 20, KVF_END_NONE, (kvf_span){&sample, sizeof sample}) !=
             FRONT_NO_MEMORY;
    ok = ok && front_scratch_reserve(&scratch, front_logprobs_bytes(choice.samples, choice.samples_count));
    if (ok)
        assert_non_null(
            front_pack_logprobs(&scratch, model.tokenizer, choice.samples, choice.samples_count)[39]->chosen);
    front_scratch_fini(&scratch);
    front_choice_fini(&choice);
    front_rules_fini(&rules);
    front_plan_free(&plan);
    return ok || front_fault_set(f, KVF_RPC_RESOURCE_EXHAUSTED, "NO_MEMORY", NULL, "out of memory");
}

static void each_fails(const Kvferry__V1__GenerateRequest *r) {
    uint32_t at = 1;
    for (;; at++) {
        fault f = {0};
        countdown = at;
        refused = 0;
        bool ok = whole_way(r, &f);
        countdown = 0;
        if (!refused) {
            assert_true(ok);
            break;
        }
        if (ok) continue; /* it could do without */
        /* Also inside a template: its budget is not to blame, nor is the client. */
        if (strcmp(f.reason, "NO_MEMORY") != 0) fail_msg("allocation %u: %s %s", at, f.reason, f.text);
    }
    assert_true(at > 5);
}

static void requests_survive_each_failing_allocation(void **state) {
    (void)state;
    Kvferry__V1__ChatMessage messages[] = {
        tiny_message("system", "be brief"), tiny_message("user", "hi <|im_end|> there")};
    Kvferry__V1__ChatMessage *list[] = {&messages[0], &messages[1]};
    messages[0].name = kvf_proto_text("n");
    messages[1].tool_calls_json = kvf_proto_text("[1,{\"a\":2}]");
    Kvferry__V1__ChatInput chat = KVFERRY__V1__CHAT_INPUT__INIT;
    chat.n_messages = 2;
    chat.messages = list;
    chat.tools_json = kvf_proto_text("[{\"name\":\"look\"}]");
    chat.template_kwargs_json = kvf_proto_text("{\"mood\":\"good\"}");
    ProtobufCBinaryData stops[] = {kvf_proto_text("nothing like it"), kvf_proto_text("xyzzy")};
    Kvferry__V1__StopParams stop = KVFERRY__V1__STOP_PARAMS__INIT;
    stop.n_sequences = 2;
    stop.sequences = stops;
    Kvferry__V1__OutputOptions output = KVFERRY__V1__OUTPUT_OPTIONS__INIT;
    output.token_ids = output.logprobs = true;
    Kvferry__V1__GenerateRequest r = KVFERRY__V1__GENERATE_REQUEST__INIT;
    r.stop = &stop;
    r.output = &output;
    r.input_case = KVFERRY__V1__GENERATE_REQUEST__INPUT_CHAT;
    r.chat = &chat;
    each_fails(&r);
    r.input_case = KVFERRY__V1__GENERATE_REQUEST__INPUT_TEXT;
    r.text = kvf_proto_text("some text with <|bos|> in it");
    r.parse_special = true;
    each_fails(&r);
    uint32_t ids[] = {1, 2, 3};
    Kvferry__V1__TokenIds token_ids = KVFERRY__V1__TOKEN_IDS__INIT;
    token_ids.n_ids = 3;
    token_ids.ids = ids;
    r.input_case = KVFERRY__V1__GENERATE_REQUEST__INPUT_TOKEN_IDS;
    r.token_ids = &token_ids;
    each_fails(&r);
}

static void models_survive_each_failing_allocation(void **state) {
    (void)state;
    for (uint32_t at = 1;; at++) {
        front_model m;
        kvf_error err = {0};
        countdown = at;
        refused = 0;
        kvf_status status = front_model_load(TINY_PATH, NULL, &m, &err);
        countdown = 0;
        if (status == KVF_OK) front_model_free(&m);
        if (!refused) {
            assert_int_equal(status, KVF_OK);
            assert_true(at > 5);
            break;
        }
        if (status != KVF_OK) assert_int_equal(status, KVF_ERR_NO_MEMORY);
    }
}

static int setup(void **state) {
    (void)state;
    tiny_load(&model);
    tiny_template(&model,
        "{% for t in tools %}{{ t.name }}{% endfor %}{% for m in messages %}<|im_start|>{{ m.role }} {{ m.name }}\n"
        "{{ m.content | trim }}{% for c in m.tool_calls %}{{ c | tojson }}{% endfor %}<|im_end|>\n{% endfor %}{{ mood "
        "}}");
    return 0;
}
static int teardown(void **state) {
    (void)state;
    front_model_free(&model);
    return 0;
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(requests_survive_each_failing_allocation),
        cmocka_unit_test(models_survive_each_failing_allocation)};
    return cmocka_run_group_tests(tests, setup, teardown);
}
