/* A GenerateRequest as any client may send it: checked, rendered, encoded; what is let through has a prompt within the
 * limits, and its output is assembled from tokens that the input names as well. */
#include "choice.h"
#include "kvf/proto.h"
#include "kvf/utf8.h"
#include <stdio.h>
#include <stdlib.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static const char template_text[] = "{% if tools %}{% for t in tools %}{{ t.name }}{% endfor %}{% endif %}{% for m in "
                                    "messages %}<|im_start|>{{ m.role }} "
                                    "{{ m.name }}\n{{ m.content | trim }}{% for c in m.tool_calls %}{{ c | tojson }}{% "
                                    "endfor %}<|im_end|>\n{% endfor %}"
                                    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}{{ mood }}";

static front_model *model_once(void) {
    static front_model m;
    kvf_error err;
    if (m.gguf) return &m;
    if (front_model_load(KVF_SOURCE_DIR "/tests/golden/tiny/llama.gguf", "tiny", &m, &err) != KVF_OK ||
        kvf_template_compile(template_text, sizeof template_text - 1, &m.chat_template, &err) != KVF_OK) {
        fprintf(stderr, "%s\n", err.message);
        abort();
    }
    m.template_has_tools = true;
    return &m;
}

static void assemble(const front_model *m, const front_plan *plan, const uint8_t *tokens, size_t count) {
    front_rules rules;
    front_choice choice;
    KVF_ASSERT(front_rules_init(&rules, m->tokenizer, plan) == KVF_OK);
    KVF_ASSERT(front_choice_init(&choice, &rules) == KVF_OK);
    for (size_t i = 0; i < count && !choice.ended; i++) {
        kvf_end end = i + 1 == count ? KVF_END_LENGTH : KVF_END_NONE;
        front_choice_push(&choice, &rules, tokens[i], end, (kvf_span){NULL, 0});
        KVF_ASSERT(kvf_utf8_valid(choice.text, choice.text_bytes, NULL));
        if (tokens[i] & 1) front_choice_told(&choice);
    }
    front_choice_close(&choice, &rules);
    front_choice_fini(&choice);
    front_rules_fini(&rules);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    const front_model *m = model_once();
    const front_limits limits = {.context_max = 256, .stop_sequences_max = 16, .stop_sequence_bytes_max = 256};
    Kvferry__V1__GenerateRequest *r = kvferry__v1__generate_request__unpack(NULL, size, data);
    if (!r) return 0;
    front_plan plan;
    fault f;
    if (front_plan_make(m, &limits, r, 1, 0, &plan, &f)) {
        KVF_ASSERT(plan.prompt.count > 0 && plan.prompt.count <= limits.context_max && plan.n >= 1 &&
                   plan.n <= KVF_CHOICES_MAX);
        KVF_ASSERT(!plan.max_given || plan.max_tokens <= limits.context_max - plan.prompt.count);
        for (size_t i = 0; i < plan.prompt.count; i++) KVF_ASSERT(plan.prompt.ids[i] < m->vocab);
        assemble(m, &plan, data, KVF_MIN(size, (size_t)128));
        front_plan_free(&plan);
    } else {
        KVF_ASSERT(f.code != KVF_RPC_OK && f.reason[0] && f.text[0]);
    }
    kvferry__v1__generate_request__free_unpacked(r, NULL);
    return 0;
}
