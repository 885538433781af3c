/* Messages to the client of one request. A stream that refuses a message has a slow reader or none any more: its
 * request is cancelled at the core, whose FAILED ends the call. */
#include "generate.h"
#include "kvf/proto.h"
#include <stdlib.h>

static bool push(front_request *r, Kvferry__V1__GenerateResponse *m) {
    m->request_id = kvf_proto_text(r->id_text);
    kvf_status status = kvf_rpc_stream_push(r->call, &m->base);
    if (status == KVF_OK) return true;
    r->dropped = true;
    kvf_router_cancel(
        r->shell->core, kvf_os_now_ns(), r->id, status == KVF_ERR_GONE ? KVF_CANCEL_CLIENT : KVF_CANCEL_SLOW_READER);
    return false;
}

static bool no_memory(front_request *r) {
    r->dropped = true;
    kvf_router_cancel(r->shell->core, kvf_os_now_ns(), r->id, KVF_CANCEL_SLOW_READER);
    return false;
}

static void fill_admitted(const front_request *r, Kvferry__V1__Admitted *m) {
    kvferry__v1__admitted__init(m);
    m->prompt_tokens = (uint32_t)r->plan.prompt.count;
    m->cached_tokens = r->cached_tokens;
    m->prefill_node = kvf_proto_text(r->line.prefill_node);
    m->decode_node = kvf_proto_text(r->line.decode_node);
    m->seed = r->plan.sampling.seed;
}

bool front_tell_admitted(front_request *r) {
    if (r->unary) return true;
    Kvferry__V1__Admitted admitted;
    Kvferry__V1__GenerateResponse m = KVFERRY__V1__GENERATE_RESPONSE__INIT;
    fill_admitted(r, &admitted);
    m.event_case = KVFERRY__V1__GENERATE_RESPONSE__EVENT_ADMITTED;
    m.admitted = &admitted;
    return push(r, &m);
}

/* ---- prompt logprobs ---- */

static const kvf_sample empty_sample; /* the first token of a prompt: nothing chosen, nothing beside it */

static bool keep_prompt(front_request *r, const void *samples, uint32_t count) {
    uint32_t total = r->prompt_samples_count + count;
    kvf_sample *grown = realloc(r->prompt_samples, sizeof *grown * total);
    if (!grown) return no_memory(r);
    memcpy(grown + r->prompt_samples_count, samples, sizeof *grown * count);
    r->prompt_samples = grown;
    r->prompt_samples_count = total;
    return true;
}

bool front_tell_prompt_logprobs(front_request *r, uint32_t start, const void *samples, uint32_t count) {
    enum { ITEMS_MAX = 32 }; /* of one message, so that none is large */
    kvf_sample some[ITEMS_MAX]; /* unaligned in the message they came with */
    front_scratch *scratch = &r->shell->scratch;
    bool none = !samples;
    if (none) samples = &empty_sample;
    if (r->unary) return keep_prompt(r, samples, count);
    for (uint32_t at = 0; at < count; at += ITEMS_MAX) {
        uint32_t n = KVF_MIN(count - at, (uint32_t)ITEMS_MAX);
        memcpy(some, (const uint8_t *)samples + sizeof *some * at, sizeof *some * n);
        if (!front_scratch_reserve(scratch, front_logprobs_bytes(some, n))) return no_memory(r);
        Kvferry__V1__PromptLogprobs part = KVFERRY__V1__PROMPT_LOGPROBS__INIT;
        part.start = start + at;
        part.n_items = n;
        part.items = front_pack_logprobs(scratch, r->rules.tokenizer, some, n);
        if (none) part.items[0]->chosen = NULL;
        Kvferry__V1__GenerateResponse m = KVFERRY__V1__GENERATE_RESPONSE__INIT;
        m.event_case = KVFERRY__V1__GENERATE_RESPONSE__EVENT_PROMPT_LOGPROBS;
        m.prompt_logprobs = &part;
        if (!push(r, &m)) return false;
    }
    return true;
}

/* ---- chunks ---- */

static bool tell_chunk(front_request *r, uint32_t index) {
    front_choice *c = &r->choices[index];
    front_scratch *scratch = &r->shell->scratch;
    Kvferry__V1__Chunk chunk = KVFERRY__V1__CHUNK__INIT;
    chunk.index = index;
    chunk.text = kvf_proto_bytes(c->text, c->text_bytes);
    chunk.n_token_ids = c->ids_count;
    chunk.token_ids = c->ids;
    if (c->samples_count) {
        if (!front_scratch_reserve(scratch, front_logprobs_bytes(c->samples, c->samples_count))) return no_memory(r);
        chunk.n_logprobs = c->samples_count;
        chunk.logprobs = front_pack_logprobs(scratch, r->rules.tokenizer, c->samples, c->samples_count);
    }
    Kvferry__V1__GenerateResponse m = KVFERRY__V1__GENERATE_RESPONSE__INIT;
    m.event_case = KVFERRY__V1__GENERATE_RESPONSE__EVENT_CHUNK;
    m.chunk = &chunk;
    if (!push(r, &m)) return false;
    front_choice_told(c);
    return true;
}

/* The last Finished of a request carries the prompt's share of usage and the timings. */
static bool tell_end(front_request *r, uint32_t index, const kvf_router_usage *last) {
    front_choice *c = &r->choices[index];
    Kvferry__V1__Finished finished;
    Kvferry__V1__Usage usage;
    Kvferry__V1__Timings timings;
    front_pack_finished(&finished, &usage, c, index, &r->plan);
    if (last) {
        usage.prompt_tokens = last->prompt_tokens;
        usage.cached_tokens = last->cached_tokens;
        front_pack_timings(&timings, last);
        finished.timings = &timings;
    }
    Kvferry__V1__GenerateResponse m = KVFERRY__V1__GENERATE_RESPONSE__INIT;
    m.event_case = KVFERRY__V1__GENERATE_RESPONSE__EVENT_FINISHED;
    m.finished = &finished;
    if (!push(r, &m)) return false;
    c->told = true;
    r->untold--;
    return true;
}

bool front_tell_news(front_request *r) {
    if (r->unary) return true;
    for (uint32_t i = 0; i < r->plan.n; i++)
        if (front_choice_has_news(&r->choices[i]) && !tell_chunk(r, i)) return false;
    /* One end is kept back for the request's own. */
    for (uint32_t i = 0; i < r->plan.n && r->untold > 1; i++)
        if (r->choices[i].ended && !r->choices[i].told && !tell_end(r, i, NULL)) return false;
    return true;
}

/* ---- the end ---- */

static void fill_completion(front_request *r, uint32_t index, Kvferry__V1__Completion *m,
    Kvferry__V1__Finished *finished, Kvferry__V1__Usage *usage) {
    front_choice *c = &r->choices[index];
    kvferry__v1__completion__init(m);
    front_pack_finished(finished, usage, c, index, &r->plan);
    m->index = index;
    m->text = kvf_proto_bytes(c->text, c->text_bytes);
    m->n_token_ids = c->ids_count;
    m->token_ids = c->ids;
    m->n_logprobs = c->samples_count;
    if (c->samples_count)
        m->logprobs = front_pack_logprobs(&r->shell->scratch, r->rules.tokenizer, c->samples, c->samples_count);
    m->finished = finished;
}

static void reply(front_request *r, const kvf_router_usage *u) {
    uint32_t n = r->plan.n;
    Kvferry__V1__Completion completions[KVF_CHOICES_MAX], *list[KVF_CHOICES_MAX];
    Kvferry__V1__Finished finished[KVF_CHOICES_MAX];
    Kvferry__V1__Usage usages[KVF_CHOICES_MAX], usage = KVFERRY__V1__USAGE__INIT;
    Kvferry__V1__Timings timings;
    Kvferry__V1__Admitted admitted;
    Kvferry__V1__CompleteResponse m = KVFERRY__V1__COMPLETE_RESPONSE__INIT;
    size_t bytes = front_logprobs_bytes(r->prompt_samples, r->prompt_samples_count);
    for (uint32_t i = 0; i < n; i++) bytes += front_logprobs_bytes(r->choices[i].samples, r->choices[i].samples_count);
    if (!front_scratch_reserve(&r->shell->scratch, bytes)) {
        fault f;
        front_fault_set(
            &f, KVF_RPC_RESOURCE_EXHAUSTED, "NO_MEMORY", NULL, "out of memory for an answer of %zu bytes", bytes);
        front_fault_send(r->call, &f);
        return;
    }
    for (uint32_t i = 0; i < n; i++) {
        fill_completion(r, i, &completions[i], &finished[i], &usages[i]);
        list[i] = &completions[i];
        usage.completion_tokens += r->choices[i].tokens;
    }
    usage.prompt_tokens = usages[n - 1].prompt_tokens = u->prompt_tokens;
    usage.cached_tokens = usages[n - 1].cached_tokens = u->cached_tokens;
    front_pack_timings(&timings, u);
    finished[n - 1].timings = &timings;
    fill_admitted(r, &admitted);
    m.request_id = kvf_proto_text(r->id_text);
    m.admitted = &admitted;
    m.n_prompt_logprobs = r->prompt_samples_count;
    if (r->prompt_samples_count) {
        m.prompt_logprobs =
            front_pack_logprobs(&r->shell->scratch, r->rules.tokenizer, r->prompt_samples, r->prompt_samples_count);
        m.prompt_logprobs[0]->chosen = NULL;
    }
    m.n_completions = n;
    m.completions = list;
    m.usage = &usage;
    kvf_rpc_reply(r->call, &m.base);
}

void front_tell_finished(front_request *r, const kvf_router_usage *usage) {
    if (r->unary) {
        reply(r, usage);
        return;
    }
    if (!r->dropped) front_tell_news(r);
    for (uint32_t i = 0; i < r->plan.n && !r->dropped; i++)
        if (!r->choices[i].told) tell_end(r, i, r->untold == 1 ? usage : NULL);
    if (!r->dropped)
        kvf_rpc_stream_end(r->call);
    else
        kvf_rpc_abort(
            r->call, KVF_RPC_RESOURCE_EXHAUSTED, "the client reads too slowly: the end of its output found no room");
}
