#include "chat.h"
#include "kvf/utf8.h"
#include <stdio.h>
#include <stdlib.h>

#define BAD(f, field, ...) front_fault_set(f, KVF_RPC_INVALID_ARGUMENT, "INVALID_FIELD", field, __VA_ARGS__)

void front_prompt_free(front_prompt *p) {
    free(p->ids);
    free(p->rendered);
    *p = (front_prompt){0};
}

bool front_check_utf8(ProtobufCBinaryData text, const char *field, fault *f) {
    size_t at;
    if (kvf_utf8_valid((const char *)text.data, text.len, &at)) return true;
    return BAD(f, field, "%s: byte %zu is not UTF-8", field, at);
}

/* ---- ids ---- */

static bool no_memory(fault *f) {
    return front_fault_set(f, KVF_RPC_RESOURCE_EXHAUSTED, "NO_MEMORY", NULL, "out of memory");
}

static bool encode(const front_model *m, const char *field, const char *text, size_t len_bytes, const uint8_t *trusted,
    front_bos bos, size_t ids_max, front_prompt *out, fault *f) {
    const kvf_tokenizer_info *info = kvf_tokenizer_get_info(m->tokenizer);
    uint32_t *ids = NULL;
    size_t count = 0;
    kvf_status status = kvf_tokenizer_encode(m->tokenizer, text, len_bytes, trusted, ids_max, &ids, &count);
    if (status == KVF_ERR_LIMIT)
        return front_fault_set(f, KVF_RPC_INVALID_ARGUMENT, "PROMPT_TOO_LONG", field,
            "%s: the prompt has more than %zu tokens, the limit", field, ids_max);
    if (status == KVF_ERR_NO_MEMORY) return no_memory(f);
    if (status != KVF_OK)
        return front_fault_set(f, KVF_RPC_INTERNAL, "TOKENIZER", NULL, "tokenizer: %s", kvf_status_text(status));
    bool wanted = info->bos != KVF_TOKEN_NONE && (bos == BOS_YES || (bos == BOS_AS_MODEL && info->add_bos));
    if (wanted && (count == 0 || ids[0] != info->bos)) {
        uint32_t *longer = realloc(ids, (count + 1) * sizeof *ids);
        if (!longer) {
            free(ids);
            return no_memory(f);
        }
        memmove(longer + 1, longer, count * sizeof *longer);
        longer[0] = info->bos;
        ids = longer;
        count++;
    }
    out->ids = ids;
    out->count = count;
    return true;
}

bool front_encode_text(const front_model *m, ProtobufCBinaryData text, bool parse_special, front_bos bos,
    size_t ids_max, front_prompt *out, fault *f) {
    if (!front_check_utf8(text, "text", f)) return false;
    uint8_t *trusted = NULL;
    if (parse_special && text.len) {
        trusted = malloc(text.len);
        if (!trusted) return no_memory(f);
        memset(trusted, 1, text.len);
    }
    bool ok = encode(m, "text", (const char *)text.data, text.len, trusted, bos, ids_max, out, f);
    free(trusted);
    return ok;
}

/* ---- chat as JSON ---- */

static bool known_role(ProtobufCBinaryData role) {
    static const char *const roles[] = {"system", "developer", "user", "assistant", "tool"};
    for (size_t i = 0; i < KVF_COUNT_OF(roles); i++)
        if (role.len == strlen(roles[i]) && memcmp(role.data, roles[i], role.len) == 0) return true;
    return false;
}

static bool parse_json(ProtobufCBinaryData text, const char *field, bool array, json_t **out, fault *f) {
    json_error_t error;
    json_t *value = json_loadb((const char *)text.data, text.len, 0, &error);
    if (!value) return BAD(f, field, "%s is not JSON: byte %d: %.100s", field, error.position, error.text);
    if (array ? !json_is_array(value) : !json_is_object(value)) {
        json_decref(value);
        return BAD(f, field, "%s must be a JSON %s", field, array ? "array" : "object");
    }
    *out = value;
    return true;
}

/* An empty field comes without bytes, which jansson would take for a failure. */
static json_t *json_bytes(ProtobufCBinaryData text) {
    return json_stringn_nocheck(text.len ? (const char *)text.data : "", text.len);
}

static bool check_message_utf8(const Kvferry__V1__ChatMessage *message, size_t index, fault *f) {
    const struct {
        const char *name;
        ProtobufCBinaryData text;
    } rows[] = {{"role", message->role}, {"content", message->content}, {"name", message->name},
        {"tool_calls_json", message->tool_calls_json}, {"tool_call_id", message->tool_call_id}};
    for (size_t i = 0; i < KVF_COUNT_OF(rows); i++) {
        char field[64];
        snprintf(field, sizeof field, "chat.messages[%zu].%s", index, rows[i].name);
        if (!front_check_utf8(rows[i].text, field, f)) return false;
    }
    return true;
}

static bool message_json(const Kvferry__V1__ChatMessage *message, size_t index, json_t **out, fault *f) {
    char field[64];
    if (!check_message_utf8(message, index, f)) return false;
    if (!known_role(message->role)) {
        snprintf(field, sizeof field, "chat.messages[%zu].role", index);
        return BAD(f, field, "%s is \"%.*s\" (allowed: system, developer, user, assistant, tool)", field,
            (int)KVF_MIN(message->role.len, (size_t)40), (const char *)message->role.data);
    }
    json_t *object = json_object();
    bool ok = object && json_object_set_new(object, "role", json_bytes(message->role)) == 0 &&
              json_object_set_new(object, "content", json_bytes(message->content)) == 0;
    if (ok && message->name.len) ok = json_object_set_new(object, "name", json_bytes(message->name)) == 0;
    if (ok && message->tool_call_id.len)
        ok = json_object_set_new(object, "tool_call_id", json_bytes(message->tool_call_id)) == 0;
    if (ok && message->tool_calls_json.len) {
        json_t *calls;
        snprintf(field, sizeof field, "chat.messages[%zu].tool_calls_json", index);
        if (!parse_json(message->tool_calls_json, field, true, &calls, f)) {
            json_decref(object);
            return false;
        }
        ok = json_object_set_new(object, "tool_calls", calls) == 0;
    }
    if (!ok) {
        json_decref(object);
        return no_memory(f);
    }
    *out = object;
    return true;
}

static bool messages_json(const Kvferry__V1__ChatInput *chat, json_t *vars, fault *f) {
    json_t *list = json_array();
    if (!list || json_object_set_new(vars, "messages", list) != 0) return no_memory(f);
    for (size_t i = 0; i < chat->n_messages; i++) {
        json_t *message = NULL;
        if (!message_json(chat->messages[i], i, &message, f)) return false;
        if (json_array_append_new(list, message) != 0) return no_memory(f);
    }
    return true;
}

/* Names that say what the request is: template_kwargs_json must not be a second way to say it. */
static bool reserved(const char *name) {
    static const char *const names[] = {
        "messages", "tools", "documents", "add_generation_prompt", "bos_token", "eos_token"};
    for (size_t i = 0; i < KVF_COUNT_OF(names); i++)
        if (strcmp(name, names[i]) == 0) return true;
    return false;
}

static bool add_kwargs(const Kvferry__V1__ChatInput *chat, json_t *vars, fault *f) {
    static const char field[] = "chat.template_kwargs_json";
    if (!front_check_utf8(chat->template_kwargs_json, field, f)) return false;
    if (!chat->template_kwargs_json.len) return true;
    json_t *kwargs;
    if (!parse_json(chat->template_kwargs_json, field, false, &kwargs, f)) return false;
    const char *name;
    json_t *value;
    bool ok = true;
    json_object_foreach(kwargs, name, value) {
        if (reserved(name)) {
            ok = BAD(f, field, "%s: \"%s\" is set by the request itself", field, name);
            break;
        }
    }
    if (ok && json_object_update(vars, kwargs) != 0) ok = no_memory(f);
    json_decref(kwargs);
    return ok;
}

static bool add_tools(const front_model *m, const Kvferry__V1__ChatInput *chat, json_t *vars, fault *f) {
    static const char field[] = "chat.tools_json";
    if (!front_check_utf8(chat->tools_json, field, f)) return false;
    json_t *tools = NULL;
    if (chat->tools_json.len) {
        if (!m->template_has_tools) return BAD(f, field, "%s: this model's chat template has no tools", field);
        if (!parse_json(chat->tools_json, field, true, &tools, f)) return false;
    }
    return json_object_set_new(vars, "tools", tools ? tools : json_null()) == 0 || no_memory(f);
}

/* ---- rendering ---- */

static bool is_space(char c) { return c == ' ' || c == '\t' || c == '\n' || c == '\r'; }

/* Where the last message's own text ends in what was rendered; 0: it is not there. Only bytes that come from messages
 * count, so that words of the template are not taken for it. */
static size_t end_of_text(const kvf_template_output *out, const char *text, size_t len_bytes) {
    if (len_bytes == 0 || len_bytes > out->len_bytes) return 0;
    for (size_t at = out->len_bytes - len_bytes + 1; at-- > 0;) {
        if (out->trusted[at] || out->trusted[at + len_bytes - 1]) continue;
        if (memcmp(out->text + at, text, len_bytes) == 0) return at + len_bytes;
    }
    return 0;
}

static bool cut_after_final(const Kvferry__V1__ChatInput *chat, kvf_template_output *out, fault *f) {
    ProtobufCBinaryData content = chat->messages[chat->n_messages - 1]->content;
    const char *text = (const char *)content.data;
    size_t len = content.len;
    size_t end = end_of_text(out, text, len);
    if (!end) { /* many templates trim */
        while (len && is_space(text[len - 1])) len--;
        while (len && is_space(*text)) text++, len--;
        end = end_of_text(out, text, len);
    }
    if (!end)
        return BAD(f, "chat.continue_final_message",
            "chat.continue_final_message: the template does not print the last message's text");
    out->len_bytes = end;
    return true;
}

static bool render(
    const front_model *m, const Kvferry__V1__ChatInput *chat, int64_t now_unix, kvf_template_output *out, fault *f) {
    json_t *vars = json_object();
    if (!vars) return no_memory(f);
    bool generation = chat->_add_generation_prompt_case == KVFERRY__V1__CHAT_INPUT___ADD_GENERATION_PROMPT__NOT_SET
                          ? !chat->continue_final_message
                          : chat->add_generation_prompt;
    bool ok = messages_json(chat, vars, f) && add_tools(m, chat, vars, f) && add_kwargs(chat, vars, f);
    if (ok && (json_object_set_new(vars, "documents", json_null()) != 0 ||
                  json_object_set_new(vars, "add_generation_prompt", json_boolean(generation)) != 0))
        ok = no_memory(f);
    if (ok) {
        kvf_error err;
        kvf_template_limits limits;
        kvf_template_limits_default(&limits);
        kvf_status status = kvf_template_render(m->chat_template, vars, m->trusted_vars, now_unix, &limits, out, &err);
        if (status == KVF_ERR_NO_MEMORY)
            ok = no_memory(f);
        else if (status != KVF_OK)
            ok = front_fault_set(f, KVF_RPC_INVALID_ARGUMENT,
                status == KVF_ERR_INVALID ? "TEMPLATE_REFUSES"
                : status == KVF_ERR_LIMIT ? "TEMPLATE_LIMIT"
                                          : "TEMPLATE_ERROR",
                "chat", "chat template: %.360s", err.message);
    }
    json_decref(vars);
    return ok;
}

bool front_encode_chat(const front_model *m, const Kvferry__V1__ChatInput *chat, front_bos bos, size_t ids_max,
    int64_t now_unix, front_prompt *out, fault *f) {
    if (!m->chat_template) return BAD(f, "chat", "chat: %s", m->template_why);
    if (chat->n_messages == 0) return BAD(f, "chat.messages", "chat.messages: at least one message is needed");
    if (chat->continue_final_message && chat->_add_generation_prompt_case && chat->add_generation_prompt)
        return BAD(f, "chat.continue_final_message",
            "chat.continue_final_message and chat.add_generation_prompt exclude each other");
    kvf_template_output text = {0};
    if (!render(m, chat, now_unix, &text, f)) return false;
    bool ok = !chat->continue_final_message || cut_after_final(chat, &text, f);
    if (ok) ok = encode(m, "chat", text.text, text.len_bytes, text.trusted, bos, ids_max, out, f);
    if (ok) {
        out->rendered = malloc(text.len_bytes + 1);
        if (out->rendered) {
            memcpy(out->rendered, text.text, text.len_bytes);
            out->rendered[text.len_bytes] = 0;
            out->rendered_bytes = text.len_bytes;
        } else {
            front_prompt_free(out);
            ok = no_memory(f);
        }
    }
    kvf_template_output_free(&text);
    return ok;
}
