/* Requests and answers. */
#include "harness.h"
#include "kvf/utf8.h"
#include <pthread.h>
#include <stdatomic.h>
#include <string.h>

#define SERVICE (&kvferry__v1__inference__descriptor)

static uint64_t deadline_of(const e2e_ask *a) { return a->deadline_ms ? a->deadline_ms : E2E_WAIT_MS; }

/* A GenerateRequest with everything that it points at. */
typedef struct {
    Kvferry__V1__GenerateRequest r;
    Kvferry__V1__SamplingParams sampling;
    Kvferry__V1__StopParams stop;
    Kvferry__V1__OutputOptions output;
    Kvferry__V1__TokenIds ids;
    Kvferry__V1__ChatInput chat;
    Kvferry__V1__ChatMessage messages[E2E_MESSAGES_MAX], *message_list[E2E_MESSAGES_MAX];
    Kvferry__V1__LogitBias bias[E2E_BIAS_MAX], *bias_list[E2E_BIAS_MAX];
    ProtobufCBinaryData stops[E2E_STOPS_MAX];
} request;

static void make_chat(request *q, const e2e_ask *a) {
    kvferry__v1__chat_input__init(&q->chat);
    for (size_t i = 0; i < a->messages; i++) {
        kvferry__v1__chat_message__init(&q->messages[i]);
        q->messages[i].role = kvf_proto_text(a->roles[i]);
        q->messages[i].content = kvf_proto_text(a->contents[i]);
        q->message_list[i] = &q->messages[i];
    }
    q->chat.messages = q->message_list;
    q->chat.n_messages = a->messages;
}

static void make_input(request *q, const e2e_ask *a) {
    if (a->text) {
        q->r.input_case = KVFERRY__V1__GENERATE_REQUEST__INPUT_TEXT;
        q->r.text = kvf_proto_text(a->text);
    } else if (a->messages) {
        make_chat(q, a);
        q->r.input_case = KVFERRY__V1__GENERATE_REQUEST__INPUT_CHAT;
        q->r.chat = &q->chat;
    } else {
        kvferry__v1__token_ids__init(&q->ids);
        q->ids.ids = (uint32_t *)(uintptr_t)a->ids;
        q->ids.n_ids = a->ids_count;
        q->r.input_case = KVFERRY__V1__GENERATE_REQUEST__INPUT_TOKEN_IDS;
        q->r.token_ids = &q->ids;
    }
}

static void make_penalties(request *q, const e2e_ask *a) {
    if (a->repetition != 0) {
        q->sampling._repetition_penalty_case = KVFERRY__V1__SAMPLING_PARAMS___REPETITION_PENALTY_REPETITION_PENALTY;
        q->sampling.repetition_penalty = a->repetition;
    }
    if (a->presence != 0) {
        q->sampling._presence_penalty_case = KVFERRY__V1__SAMPLING_PARAMS___PRESENCE_PENALTY_PRESENCE_PENALTY;
        q->sampling.presence_penalty = a->presence;
    }
    if (a->frequency != 0) {
        q->sampling._frequency_penalty_case = KVFERRY__V1__SAMPLING_PARAMS___FREQUENCY_PENALTY_FREQUENCY_PENALTY;
        q->sampling.frequency_penalty = a->frequency;
    }
}

static void make_sampling(request *q, const e2e_ask *a) {
    kvferry__v1__sampling_params__init(&q->sampling);
    q->sampling._temperature_case = KVFERRY__V1__SAMPLING_PARAMS___TEMPERATURE_TEMPERATURE;
    q->sampling.temperature = a->temperature;
    if (a->seeded) {
        q->sampling._seed_case = KVFERRY__V1__SAMPLING_PARAMS___SEED_SEED;
        q->sampling.seed = a->seed;
    }
    if (a->top_k) {
        q->sampling._top_k_case = KVFERRY__V1__SAMPLING_PARAMS___TOP_K_TOP_K;
        q->sampling.top_k = a->top_k;
    }
    if (a->top_p_given) {
        q->sampling._top_p_case = KVFERRY__V1__SAMPLING_PARAMS___TOP_P_TOP_P;
        q->sampling.top_p = a->top_p;
    }
    make_penalties(q, a);
    for (size_t i = 0; i < a->bias_count; i++) {
        kvferry__v1__logit_bias__init(&q->bias[i]);
        q->bias[i].token_id = a->bias_ids[i];
        q->bias[i].bias = a->bias[i];
        q->bias_list[i] = &q->bias[i];
    }
    q->sampling.logit_bias = q->bias_list;
    q->sampling.n_logit_bias = a->bias_count;
    q->r.sampling = &q->sampling;
}

static void make_stop(request *q, const e2e_ask *a) {
    kvferry__v1__stop_params__init(&q->stop);
    if (a->max || a->max_zero) {
        q->stop._max_tokens_case = KVFERRY__V1__STOP_PARAMS___MAX_TOKENS_MAX_TOKENS;
        q->stop.max_tokens = a->max;
    }
    for (size_t i = 0; i < E2E_STOPS_MAX && a->stops[i]; i++)
        q->stops[q->stop.n_sequences++] = kvf_proto_text(a->stops[i]);
    q->stop.sequences = q->stops;
    q->stop.token_ids = (uint32_t *)(uintptr_t)a->stop_ids;
    q->stop.n_token_ids = a->stop_ids_count;
    q->stop.ignore_eos = a->ignore_eos;
    q->stop.include_stop = a->include_stop;
    q->r.stop = &q->stop;
}

static void make(request *q, const e2e_ask *a) {
    memset(q, 0, sizeof *q);
    kvferry__v1__generate_request__init(&q->r);
    make_input(q, a);
    make_sampling(q, a);
    make_stop(q, a);
    kvferry__v1__output_options__init(&q->output);
    q->output.token_ids = true;
    q->output.logprobs = a->logprobs;
    q->output.top_logprobs = a->top_logprobs;
    if (a->prompt_logprobs)
        q->output._prompt_logprobs_case = KVFERRY__V1__OUTPUT_OPTIONS___PROMPT_LOGPROBS_PROMPT_LOGPROBS;
    q->r.output = &q->output;
    q->r.n = a->n;
    q->r.priority = a->priority;
    q->r.disaggregate = a->dis;
    if (a->salt) q->r.cache_salt = kvf_proto_text(a->salt);
    if (a->label) q->r.label = kvf_proto_text(a->label);
}

void e2e_ask_ids(e2e_ask *a, const uint32_t *ids, size_t count, uint32_t max) {
    *a = (e2e_ask){.ids = ids, .ids_count = count, .max = max, .ignore_eos = true};
}

/* ---- answers ---- */

static void *grow(void *old, size_t bytes) {
    void *larger = realloc(old, bytes);
    assert_non_null(larger);
    return larger;
}

static void copy_text(char *out, size_t room, ProtobufCBinaryData text) {
    assert_true(text.len < room);
    if (text.len) memcpy(out, text.data, text.len);
    out[text.len] = 0;
}

static void take_chunk(e2e_answer *out, const Kvferry__V1__Chunk *m) {
    assert_true(m->index < E2E_CHOICES_MAX);
    e2e_choice *h = &out->choice[m->index];
    assert_false(h->finished);
    assert_true(kvf_utf8_valid(m->text.data, m->text.len, NULL));
    if (!out->first_ns) out->first_ns = e2e_now_ns();
    h->chunks++;
    h->text = grow(h->text, h->text_bytes + m->text.len + 1);
    if (m->text.len) memcpy(h->text + h->text_bytes, m->text.data, m->text.len);
    h->text[h->text_bytes += m->text.len] = 0;
    if (m->n_token_ids) {
        h->ids = grow(h->ids, (h->ids_count + m->n_token_ids) * sizeof *h->ids);
        memcpy(h->ids + h->ids_count, m->token_ids, m->n_token_ids * sizeof *h->ids);
        h->ids_count += (uint32_t)m->n_token_ids;
    }
    if (m->n_logprobs) h->logprobs = grow(h->logprobs, (h->logprobs_count + m->n_logprobs) * sizeof *h->logprobs);
    for (size_t i = 0; i < m->n_logprobs; i++) {
        assert_non_null(m->logprobs[i]->chosen);
        h->logprobs[h->logprobs_count++] = m->logprobs[i]->chosen->logprob;
        h->tops += (uint32_t)m->logprobs[i]->n_top;
    }
}

static void take_finished(e2e_answer *out, const Kvferry__V1__Finished *m) {
    assert_true(m->index < E2E_CHOICES_MAX);
    e2e_choice *h = &out->choice[m->index];
    assert_false(h->finished);
    h->finished = true;
    out->finished++;
    h->reason = m->reason;
    if (m->matched_case == KVFERRY__V1__FINISHED__MATCHED_STOP_TOKEN_ID) h->stop_token = m->stop_token_id;
    if (m->matched_case == KVFERRY__V1__FINISHED__MATCHED_STOP_SEQUENCE)
        copy_text(h->stop_sequence, sizeof h->stop_sequence, m->stop_sequence);
    assert_non_null(m->usage);
    h->completion_tokens = m->usage->completion_tokens;
    out->usage_prompts += m->usage->prompt_tokens != 0;
    out->usage_prompt += m->usage->prompt_tokens;
    out->usage_cached += m->usage->cached_tokens;
    if (!m->timings) return;
    out->pages_moved = m->timings->pages_moved;
    out->bytes_moved = m->timings->bytes_moved;
    out->transfer_us = m->timings->transfer_us;
    out->attempts = m->timings->attempts;
}

static void take_prompt_logprobs(e2e_answer *out, const Kvferry__V1__PromptLogprobs *m) {
    assert_int_equal(m->start, out->prompt_items);
    for (size_t i = 0; i < m->n_items; i++) {
        assert_true((m->items[i]->chosen == NULL) == (out->prompt_items == 0));
        out->prompt_items++;
        if (!m->items[i]->chosen) continue;
        out->prompt_logprobs =
            grow(out->prompt_logprobs, (out->prompt_logprobs_count + 1) * sizeof *out->prompt_logprobs);
        out->prompt_logprobs[out->prompt_logprobs_count++] = m->items[i]->chosen->logprob;
    }
}

void e2e_take(e2e_answer *out, const ProtobufCMessage *message) {
    const Kvferry__V1__GenerateResponse *m = (const void *)message;
    char id[64];
    copy_text(id, sizeof id, m->request_id);
    if (out->request_id[0]) assert_string_equal(id, out->request_id);
    memcpy(out->request_id, id, sizeof id);
    switch (m->event_case) {
    case KVFERRY__V1__GENERATE_RESPONSE__EVENT_ADMITTED:
        assert_int_equal(out->admitted++, 0);
        out->prompt_tokens = m->admitted->prompt_tokens;
        out->cached_tokens = m->admitted->cached_tokens;
        out->seed = m->admitted->seed;
        copy_text(out->prefill_node, sizeof out->prefill_node, m->admitted->prefill_node);
        copy_text(out->decode_node, sizeof out->decode_node, m->admitted->decode_node);
        break;
    case KVFERRY__V1__GENERATE_RESPONSE__EVENT_CHUNK: take_chunk(out, m->chunk); break;
    case KVFERRY__V1__GENERATE_RESPONSE__EVENT_FINISHED: take_finished(out, m->finished); break;
    case KVFERRY__V1__GENERATE_RESPONSE__EVENT_PROMPT_LOGPROBS: take_prompt_logprobs(out, m->prompt_logprobs); break;
    default: fail_msg("event %d", (int)m->event_case);
    }
    if (m->event_case != KVFERRY__V1__GENERATE_RESPONSE__EVENT_ADMITTED)
        assert_int_equal(out->admitted, 1); /* it comes first */
}

void e2e_answer_free(e2e_answer *a) {
    for (size_t i = 0; i < E2E_CHOICES_MAX; i++) {
        free(a->choice[i].ids);
        free(a->choice[i].text);
        free(a->choice[i].logprobs);
    }
    free(a->prompt_logprobs);
    *a = (e2e_answer){0};
}

static bool same_choice(const e2e_choice *a, const e2e_choice *b) {
    return a->ids_count == b->ids_count && a->text_bytes == b->text_bytes && a->logprobs_count == b->logprobs_count &&
           a->reason == b->reason && a->completion_tokens == b->completion_tokens &&
           (a->ids_count == 0 || memcmp(a->ids, b->ids, a->ids_count * sizeof *a->ids) == 0) &&
           (a->text_bytes == 0 || memcmp(a->text, b->text, a->text_bytes) == 0) &&
           (a->logprobs_count == 0 || memcmp(a->logprobs, b->logprobs, a->logprobs_count * sizeof *a->logprobs) == 0);
}

bool e2e_same(const e2e_answer *a, const e2e_answer *b) {
    if (a->finished != b->finished || a->result.code != b->result.code) return false;
    for (size_t i = 0; i < E2E_CHOICES_MAX; i++)
        if (!same_choice(&a->choice[i], &b->choice[i])) return false;
    return true;
}

/* ---- calls ---- */

kvf_rpc_reader *e2e_open(e2e_cluster *c, const e2e_ask *a) {
    request q;
    make(&q, a);
    kvf_rpc_reader *reader = NULL;
    assert_int_equal(kvf_rpc_reader_open(c->client, SERVICE, "Generate", &q.r.base, deadline_of(a), &reader), KVF_OK);
    return reader;
}

void e2e_gen(e2e_cluster *c, const e2e_ask *a, e2e_answer *out) {
    *out = (e2e_answer){0};
    kvf_rpc_reader *reader = e2e_open(c, a);
    ProtobufCMessage *message;
    uint32_t seen = 0;
    if (a->cancel_at_once) kvf_rpc_reader_cancel(reader);
    while (kvf_rpc_reader_next(reader, &message) == KVF_OK) {
        e2e_take(out, message);
        kvf_rpc_message_free(message);
        if (++seen == a->cancel_after) kvf_rpc_reader_cancel(reader);
    }
    out->result = *kvf_rpc_reader_result(reader);
    out->last_ns = e2e_now_ns();
    kvf_rpc_reader_close(reader);
}

void e2e_gen_ok(e2e_cluster *c, const e2e_ask *a, e2e_answer *out) {
    e2e_gen(c, a, out);
    if (out->result.code != KVF_RPC_OK) fail_msg("%s: %s", kvf_rpc_code_name(out->result.code), out->result.message);
    assert_int_equal(out->finished, a->n ? a->n : 1);
    assert_int_equal(out->usage_prompts, 1);
}

void e2e_refused(e2e_cluster *c, const e2e_ask *a, kvf_rpc_code code, const char *field) {
    e2e_answer out;
    e2e_gen(c, a, &out);
    if (out.result.code != code || (field && strncmp(out.result.field, field, strlen(field)) != 0))
        fail_msg("%s in %s: %s; %s in %s is expected", kvf_rpc_code_name(out.result.code), out.result.field,
            out.result.message, kvf_rpc_code_name(code), field ? field : "any field");
    assert_true(strlen(out.result.message) < 4096 && out.result.message[0]);
    assert_int_equal(out.finished, 0);
    e2e_answer_free(&out);
}

typedef struct {
    e2e_cluster *c;
    const e2e_ask *asks;
    e2e_answer *answers;
    size_t count;
    atomic_size_t next;
} crowd;

static void *crowd_member(void *self) {
    crowd *k = self;
    for (size_t i; (i = atomic_fetch_add(&k->next, 1)) < k->count;) e2e_gen(k->c, &k->asks[i], &k->answers[i]);
    return NULL;
}

void e2e_crowd(e2e_cluster *c, const e2e_ask *asks, e2e_answer *answers, size_t count, uint32_t threads) {
    pthread_t ids[64];
    crowd k = {.c = c, .asks = asks, .answers = answers, .count = count};
    assert_true(threads <= 64);
    for (uint32_t i = 0; i < threads; i++) assert_int_equal(pthread_create(&ids[i], NULL, crowd_member, &k), 0);
    for (uint32_t i = 0; i < threads; i++) pthread_join(ids[i], NULL);
}

Kvferry__V1__CompleteResponse *e2e_complete(e2e_cluster *c, const e2e_ask *a, kvf_rpc_result *result) {
    request q;
    make(&q, a);
    ProtobufCMessage *message = NULL;
    kvf_rpc_unary(c->client, SERVICE, "Complete", &q.r.base, deadline_of(a), &message, result);
    return (void *)message;
}

size_t e2e_tokenize(
    e2e_cluster *c, const e2e_ask *input, bool special, int add_bos, uint32_t **ids, kvf_rpc_result *result) {
    request q;
    Kvferry__V1__TokenizeRequest t = KVFERRY__V1__TOKENIZE_REQUEST__INIT;
    make(&q, input);
    if (input->text) {
        t.input_case = KVFERRY__V1__TOKENIZE_REQUEST__INPUT_TEXT;
        t.text = q.r.text;
    } else {
        t.input_case = KVFERRY__V1__TOKENIZE_REQUEST__INPUT_CHAT;
        t.chat = &q.chat;
    }
    t.parse_special = special;
    if (add_bos >= 0) {
        t._add_bos_case = KVFERRY__V1__TOKENIZE_REQUEST___ADD_BOS_ADD_BOS;
        t.add_bos = add_bos;
    }
    ProtobufCMessage *message = NULL;
    kvf_rpc_result local;
    *ids = NULL;
    if (!result) result = &local;
    if (kvf_rpc_unary(c->client, SERVICE, "Tokenize", &t.base, E2E_WAIT_MS, &message, result) != KVF_OK) {
        if (result == &local) fail_msg("Tokenize: %s", local.message);
        return 0;
    }
    const Kvferry__V1__TokenizeResponse *m = (const void *)message;
    size_t count = m->n_token_ids;
    *ids = grow(NULL, (count + 1) * sizeof **ids);
    if (count) memcpy(*ids, m->token_ids, count * sizeof **ids);
    kvf_rpc_message_free(message);
    return count;
}

char *e2e_detokenize(e2e_cluster *c, const uint32_t *ids, size_t count) {
    Kvferry__V1__DetokenizeRequest d = KVFERRY__V1__DETOKENIZE_REQUEST__INIT;
    d.token_ids = (uint32_t *)(uintptr_t)ids;
    d.n_token_ids = count;
    ProtobufCMessage *message = NULL;
    kvf_rpc_result result;
    if (kvf_rpc_unary(c->client, SERVICE, "Detokenize", &d.base, E2E_WAIT_MS, &message, &result) != KVF_OK)
        fail_msg("Detokenize: %s", result.message);
    const Kvferry__V1__DetokenizeResponse *m = (const void *)message;
    char *text = grow(NULL, m->text.len + 1);
    copy_text(text, m->text.len + 1, m->text);
    kvf_rpc_message_free(message);
    return text;
}
