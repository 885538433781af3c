/* tiny.h - the model of these tests: tests/golden/tiny/llama.gguf (bytes are tokens, BOS 266, EOS 267, <|im_start|>
 * 268,
 * <|im_end|> 269, 320 ids, context 4,096), which has no chat template: tests give it one. */
#ifndef ROUTER_SHELL_TINY_H
#define ROUTER_SHELL_TINY_H
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>
#include <stdio.h>
#include <stdlib.h>
#include "model.h"
#include "kvf/proto.h"

#define TINY_PATH KVF_SOURCE_DIR "/tests/golden/tiny/llama.gguf"
enum { TINY_BOS = 266, TINY_EOS = 267, TINY_VOCAB = 320 };

static inline void tiny_load(front_model *m) {
    kvf_error err = {0};
    if (front_model_load(TINY_PATH, NULL, m, &err) != KVF_OK) fail_msg("%s", err.message);
}

static inline void tiny_template(front_model *m, const char *source) {
    kvf_error err = {0};
    if (m->chat_template) kvf_template_destroy(m->chat_template);
    if (kvf_template_compile(source, strlen(source), &m->chat_template, &err) != KVF_OK) fail_msg("%s", err.message);
    m->template_has_tools = strstr(source, "tools") != NULL;
}

static inline Kvferry__V1__ChatMessage tiny_message(const char *role, const char *content) {
    Kvferry__V1__ChatMessage m = KVFERRY__V1__CHAT_MESSAGE__INIT;
    m.role = kvf_proto_text(role);
    m.content = kvf_proto_text(content);
    return m;
}
#endif
