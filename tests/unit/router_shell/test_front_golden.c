/* The sample model's own template and tokenizer: prompts equal the golden ones. */
#include "tiny.h"
#include "chat.h"
#include <unistd.h>

static const char model_path[] = KVF_SOURCE_DIR "/models/SmolLM2-135M-Instruct.Q4_1.gguf";
static const char chats_path[] = KVF_SOURCE_DIR "/tests/golden/smollm2/chat.jsonl";

static void check_line(const front_model *m, const json_t *line) {
    const json_t *messages = json_object_get(line, "messages"), *ids = json_object_get(line, "ids");
    size_t count = json_array_size(messages);
    Kvferry__V1__ChatMessage all[16], *list[16];
    assert_in_range(count, 1, KVF_COUNT_OF(all));
    for (size_t i = 0; i < count; i++) {
        const json_t *one = json_array_get(messages, i), *content = json_object_get(one, "content");
        kvferry__v1__chat_message__init(&all[i]);
        all[i].role = kvf_proto_text(json_string_value(json_object_get(one, "role")));
        all[i].content = kvf_proto_bytes(json_string_value(content), json_string_length(content));
        list[i] = &all[i];
    }
    Kvferry__V1__ChatInput chat = KVFERRY__V1__CHAT_INPUT__INIT;
    chat.n_messages = count;
    chat.messages = list;
    front_prompt p = {0};
    fault f;
    if (!front_encode_chat(m, &chat, BOS_AS_MODEL, 8192, 0, &p, &f)) fail_msg("%s", f.text);
    assert_string_equal(p.rendered, json_string_value(json_object_get(line, "prompt")));
    assert_int_equal(p.count, json_array_size(ids));
    for (size_t i = 0; i < p.count; i++) assert_int_equal(p.ids[i], json_integer_value(json_array_get(ids, i)));
    front_prompt_free(&p);
}

static void chats_equal_the_golden_ones(void **state) {
    (void)state;
    front_model m;
    kvf_error err = {0};
    if (front_model_load(model_path, "smol", &m, &err) != KVF_OK) fail_msg("%s", err.message);
    FILE *file = fopen(chats_path, "r");
    assert_non_null(file);
    char *text = NULL;
    size_t room = 0;
    uint32_t lines = 0;
    while (getline(&text, &room, file) > 0) {
        json_t *line = json_loads(text, 0, NULL);
        assert_non_null(line);
        check_line(&m, line);
        json_decref(line);
        lines++;
    }
    assert_int_equal(lines, 8);
    free(text);
    fclose(file);
    front_model_free(&m);
}

int main(void) {
    if (access(model_path, R_OK) != 0) {
        printf("skipped: %s is not here (scripts/demo fetches it)\n", model_path);
        return 77;
    }
    const struct CMUnitTest tests[] = {cmocka_unit_test(chats_equal_the_golden_ones)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
