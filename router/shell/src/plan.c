#include "plan.h"
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>

#define BAD(f, field, ...) front_fault_set(f, KVF_RPC_INVALID_ARGUMENT, "INVALID_FIELD", field, __VA_ARGS__)

void front_plan_free(front_plan *p) { front_prompt_free(&p->prompt); }

bool front_check_model(const front_model *m, ProtobufCBinaryData name, fault *f) {
    if (!front_check_utf8(name, "model", f)) return false;
    if (front_model_is(m, name)) return true;
    return front_fault_set(f, KVF_RPC_NOT_FOUND, "UNKNOWN_MODEL", "model",
        "model: \"%.*s\" is not served here, \"%.100s\" is", (int)KVF_MIN(name.len, (size_t)80),
        (const char *)name.data, m->id);
}

static bool check_text(ProtobufCBinaryData text, const char *field, size_t max_bytes, fault *f) {
    if (text.len > max_bytes) return BAD(f, field, "%s has %zu bytes, the limit is %zu", field, text.len, max_bytes);
    return front_check_utf8(text, field, f);
}

/* ---- sampling ---- */

/* The sampler names its own fields; clients know them by these paths. */
static const char *path_of(const char *message) {
    static const struct {
        const char *starts, *path;
    } rows[] = {{"temperature", "sampling.temperature"}, {"top_p", "sampling.top_p"}, {"min_p", "sampling.min_p"},
        {"repetition_penalty", "sampling.repetition_penalty"}, {"presence_penalty", "sampling.presence_penalty"},
        {"frequency_penalty", "sampling.frequency_penalty"}, {"top_logprobs", "output.top_logprobs"},
        {"stop token_ids", "stop.token_ids"}, {"logit_bias", "sampling.logit_bias"}};
    for (size_t i = 0; i < KVF_COUNT_OF(rows); i++)
        if (strncmp(message, rows[i].starts, strlen(rows[i].starts)) == 0) return rows[i].path;
    return "sampling";
}

static void take_params(const Kvferry__V1__SamplingParams *in, kvf_sampling *s) {
    if (in->_temperature_case) s->temperature = in->temperature;
    if (in->_top_p_case) s->top_p = in->top_p;
    if (in->_top_k_case) s->top_k = in->top_k;
    if (in->_min_p_case) s->min_p = in->min_p;
    if (in->_repetition_penalty_case) s->repetition_penalty = in->repetition_penalty;
    if (in->_presence_penalty_case) s->presence_penalty = in->presence_penalty;
    if (in->_frequency_penalty_case) s->frequency_penalty = in->frequency_penalty;
    if (in->_seed_case) s->seed = in->seed;
}

static bool make_sampling(
    const front_model *m, const Kvferry__V1__GenerateRequest *r, uint64_t random_seed, front_plan *p, fault *f) {
    kvf_sampling *s = &p->sampling;
    const Kvferry__V1__SamplingParams *in = r->sampling;
    kvf_sampling_defaults(s);
    s->seed = random_seed;
    if (in) {
        take_params(in, s);
        if (in->n_logit_bias > KVF_SAMPLER_BIAS_MAX)
            return BAD(f, "sampling.logit_bias", "sampling.logit_bias has %zu entries, the limit is %d",
                in->n_logit_bias, KVF_SAMPLER_BIAS_MAX);
        for (size_t i = 0; i < in->n_logit_bias; i++)
            s->bias[s->bias_count++] = (kvf_logit_bias){in->logit_bias[i]->token_id, in->logit_bias[i]->bias};
    }
    if (r->stop) {
        if (r->stop->n_token_ids > KVF_SAMPLER_STOP_IDS_MAX)
            return BAD(f, "stop.token_ids", "stop.token_ids has %zu entries, the limit is %d", r->stop->n_token_ids,
                KVF_SAMPLER_STOP_IDS_MAX);
        for (size_t i = 0; i < r->stop->n_token_ids; i++) s->stop_ids[s->stop_ids_count++] = r->stop->token_ids[i];
        s->ignore_eos = r->stop->ignore_eos != 0;
        s->min_tokens = r->stop->min_tokens;
    }
    s->top_logprobs = p->top_logprobs;
    s->want_logprobs = p->want_logprobs;
    kvf_error err;
    if (kvf_sampling_check(s, m->vocab, &err) == KVF_OK) return true;
    const char *path = path_of(err.message);
    const char *dot = strchr(path, '.');
    return BAD(f, path, "%.*s%.300s", dot ? (int)(dot - path) + 1 : 0, path, err.message);
}

/* ---- stop, output, the rest ---- */

static bool make_stop(const front_limits *limits, const Kvferry__V1__StopParams *in, front_plan *p, fault *f) {
    if (!in) return true;
    p->max_given = in->_max_tokens_case != KVFERRY__V1__STOP_PARAMS___MAX_TOKENS__NOT_SET;
    p->max_tokens = in->max_tokens;
    p->min_tokens = in->min_tokens;
    p->include_stop = in->include_stop;
    uint32_t most = p->max_given ? p->max_tokens : limits->context_max;
    if (in->min_tokens > most)
        return BAD(f, "stop.min_tokens", "stop.min_tokens is %" PRIu32 ", the limit is %s of %" PRIu32, in->min_tokens,
            p->max_given ? "stop.max_tokens" : "the context", most);
    if (in->n_sequences > limits->stop_sequences_max)
        return BAD(f, "stop.sequences", "stop.sequences has %zu entries, the limit is %" PRIu32, in->n_sequences,
            limits->stop_sequences_max);
    for (size_t i = 0; i < in->n_sequences; i++) {
        char field[48];
        snprintf(field, sizeof field, "stop.sequences[%zu]", i);
        if (in->sequences[i].len == 0) return BAD(f, field, "%s is empty", field);
        if (!check_text(in->sequences[i], field, limits->stop_sequence_bytes_max, f)) return false;
    }
    p->stops = in->sequences;
    p->stops_count = (uint32_t)in->n_sequences;
    return true;
}

static bool make_output(const Kvferry__V1__OutputOptions *in, front_plan *p, fault *f) {
    if (!in) return true;
    p->want_ids = in->token_ids;
    p->top_logprobs = in->top_logprobs;
    p->want_logprobs = in->logprobs || in->top_logprobs;
    p->specials_in_text = in->special_tokens_in_text;
    if (in->top_logprobs > KVF_SAMPLER_TOP_LOGPROBS_MAX)
        return BAD(f, "output.top_logprobs", "output.top_logprobs is %" PRIu32 ", the limit is %d", in->top_logprobs,
            KVF_SAMPLER_TOP_LOGPROBS_MAX);
    if (!in->_prompt_logprobs_case) return true;
    if (in->prompt_logprobs > KVF_SAMPLER_TOP_LOGPROBS_MAX)
        return BAD(f, "output.prompt_logprobs", "output.prompt_logprobs is %" PRIu32 ", the limit is %d",
            in->prompt_logprobs, KVF_SAMPLER_TOP_LOGPROBS_MAX);
    p->prompt_logprobs = in->prompt_logprobs + 1;
    return true;
}

static bool make_mode(const Kvferry__V1__GenerateRequest *r, front_plan *p, fault *f) {
    switch ((int)r->disaggregate) {
    case KVFERRY__V1__DISAGGREGATE__DISAGGREGATE_UNSPECIFIED:
    case KVFERRY__V1__DISAGGREGATE__DISAGGREGATE_AUTO: p->mode = KVF_ROUTER_AUTO; return true;
    case KVFERRY__V1__DISAGGREGATE__DISAGGREGATE_ALWAYS: p->mode = KVF_ROUTER_ALWAYS; return true;
    case KVFERRY__V1__DISAGGREGATE__DISAGGREGATE_NEVER: p->mode = KVF_ROUTER_NEVER; return true;
    default: return BAD(f, "disaggregate", "disaggregate is %d, 0 to 3 are defined", (int)r->disaggregate);
    }
}

static bool make_rest(const Kvferry__V1__GenerateRequest *r, front_plan *p, fault *f) {
    p->n = r->n ? r->n : 1;
    p->priority = r->priority;
    if (r->n > KVF_CHOICES_MAX) return BAD(f, "n", "n is %" PRIu32 ", the limit is %d", r->n, KVF_CHOICES_MAX);
    if (r->constraint) return BAD(f, "constraint", "constraint: constrained output is not built yet");
    if (!check_text(r->cache_salt, "cache_salt", FRONT_SALT_BYTES_MAX, f)) return false;
    if (!check_text(r->label, "label", FRONT_LABEL_BYTES_MAX, f)) return false;
    if (!check_text(r->session, "session", FRONT_SESSION_BYTES_MAX, f)) return false;
    if (r->cache_salt.len) {
        /* Seeded, so that a salt never equals another kind of name; zero means "none". */
        static const uint64_t salt_kind = 0x73616c74; /* "salt" */
        p->salt = kvf_hash128_of(r->cache_salt.data, r->cache_salt.len, salt_kind);
        if (!p->salt.lo && !p->salt.hi) p->salt.lo = 1;
    }
    return make_mode(r, p, f);
}

/* ---- input ---- */

static bool take_ids(
    const front_model *m, const Kvferry__V1__TokenIds *in, const front_limits *limits, front_prompt *out, fault *f) {
    if (in->n_ids > limits->context_max)
        return front_fault_set(f, KVF_RPC_INVALID_ARGUMENT, "PROMPT_TOO_LONG", "token_ids",
            "token_ids: the prompt has %zu tokens, the limit is %" PRIu32, in->n_ids, limits->context_max);
    for (size_t i = 0; i < in->n_ids; i++)
        if (in->ids[i] >= m->vocab)
            return BAD(
                f, "token_ids", "token_ids[%zu] is %" PRIu32 ", the vocabulary has %" PRIu32, i, in->ids[i], m->vocab);
    if (in->n_ids == 0) return true;
    out->ids = malloc(in->n_ids * sizeof *out->ids);
    if (!out->ids) return front_fault_set(f, KVF_RPC_RESOURCE_EXHAUSTED, "NO_MEMORY", NULL, "out of memory");
    memcpy(out->ids, in->ids, in->n_ids * sizeof *out->ids);
    out->count = in->n_ids;
    return true;
}

static bool make_prompt(const front_model *m, const front_limits *limits, const Kvferry__V1__GenerateRequest *r,
    int64_t now_unix, front_plan *p, fault *f) {
    front_bos bos = r->_add_bos_case ? (r->add_bos ? BOS_YES : BOS_NO) : BOS_AS_MODEL;
    const char *field;
    bool ok;
    switch (r->input_case) {
    case KVFERRY__V1__GENERATE_REQUEST__INPUT_TEXT:
        field = "text";
        ok = front_encode_text(m, r->text, r->parse_special, bos, limits->context_max, &p->prompt, f);
        break;
    case KVFERRY__V1__GENERATE_REQUEST__INPUT_CHAT:
        field = "chat";
        ok = front_encode_chat(m, r->chat, bos, limits->context_max, now_unix, &p->prompt, f);
        break;
    case KVFERRY__V1__GENERATE_REQUEST__INPUT_TOKEN_IDS:
        field = "token_ids";
        ok = take_ids(m, r->token_ids, limits, &p->prompt, f);
        break;
    default: return BAD(f, "input", "input: one of text, chat and token_ids is needed");
    }
    if (!ok) return false;
    if (p->prompt.count == 0) return BAD(f, field, "%s: the prompt is empty", field);
    return true;
}

/* The same rule as the core's, with the client's own field names. */
static bool check_context(const front_limits *limits, const front_plan *p, fault *f) {
    size_t prompt = p->prompt.count, context = limits->context_max;
    uint32_t least = p->max_given ? p->max_tokens : 1;
    if (prompt > context || (prompt == context && !p->max_given))
        return front_fault_set(f, KVF_RPC_INVALID_ARGUMENT, "PROMPT_TOO_LONG", "input",
            "input: the prompt has %zu tokens, the context of %zu leaves no room for output", prompt, context);
    if (least > context - prompt)
        return front_fault_set(f, KVF_RPC_INVALID_ARGUMENT, "CONTEXT_EXCEEDED", "stop.max_tokens",
            "stop.max_tokens: %zu tokens of prompt and max_tokens of %" PRIu32 " exceed the context of %zu", prompt,
            least, context);
    return true;
}

bool front_plan_make(const front_model *m, const front_limits *limits, const Kvferry__V1__GenerateRequest *r,
    uint64_t random_seed, int64_t now_unix, front_plan *out, fault *f) {
    *out = (front_plan){0};
    /* What is cheap first: tokenising is the bulk of the work. */
    bool ok = front_check_model(m, r->model, f) && make_rest(r, out, f) && make_stop(limits, r->stop, out, f) &&
              make_output(r->output, out, f) && make_sampling(m, r, random_seed, out, f) &&
              make_prompt(m, limits, r, now_unix, out, f) && check_context(limits, out, f);
    if (!ok) front_plan_free(out);
    return ok;
}
