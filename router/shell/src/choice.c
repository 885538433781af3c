#include "choice.h"
#include <stdlib.h>

enum { STOP_ALIGN = 16 };

static void *stop_memory(size_t bytes) { return aligned_alloc(STOP_ALIGN, kvf_align_up(bytes, STOP_ALIGN)); }

kvf_status front_rules_init(front_rules *rules, const kvf_tokenizer *tokenizer, const front_plan *plan) {
    *rules = (front_rules){.tokenizer = tokenizer, .plan = plan};
    if (!plan->stops_count) return KVF_OK;
    kvf_span list[KVF_STOP_STRINGS_MAX];
    KVF_ASSERT(plan->stops_count <= KVF_COUNT_OF(list));
    for (uint32_t i = 0; i < plan->stops_count; i++) list[i] = (kvf_span){plan->stops[i].data, plan->stops[i].len};
    void *memory = stop_memory(kvf_stop_set_size(list, plan->stops_count));
    if (!memory) return KVF_ERR_NO_MEMORY;
    rules->stops = kvf_stop_set_init(memory, list, plan->stops_count, plan->include_stop);
    return KVF_OK;
}

void front_rules_fini(front_rules *rules) {
    free(rules->stops);
    *rules = (front_rules){0};
}

kvf_status front_choice_init(front_choice *c, const front_rules *rules) {
    *c = (front_choice){0};
    kvf_detok_init(&c->detok, rules->tokenizer, rules->plan->specials_in_text);
    if (!rules->stops) return KVF_OK;
    void *memory = stop_memory(kvf_stop_stream_size(rules->stops));
    if (!memory) return KVF_ERR_NO_MEMORY;
    c->stop = kvf_stop_stream_init(memory, rules->stops);
    return KVF_OK;
}

void front_choice_fini(front_choice *c) {
    free(c->text);
    free(c->ids);
    free(c->samples);
    free(c->stop);
    *c = (front_choice){0};
}

void front_choice_told(front_choice *c) { c->text_bytes = c->ids_count = c->samples_count = 0; }

/* ---- room: doubled, and kept for the next message ---- */

static bool grow(void **array, size_t *room, size_t need, size_t size) {
    if (need <= *room) return true;
    size_t more = KVF_MAX(need, KVF_MAX(*room * 2, (size_t)16));
    void *grown = realloc(*array, size * more);
    if (!grown) return false;
    *array = grown;
    *room = more;
    return true;
}

static bool emit(front_choice *c, const char *text, size_t len_bytes) {
    if (!grow((void **)&c->text, &c->text_room, c->text_bytes + len_bytes, 1)) return false;
    if (len_bytes) memcpy(c->text + c->text_bytes, text, len_bytes);
    c->text_bytes += len_bytes;
    return true;
}

static bool add_id(front_choice *c, uint32_t token) {
    size_t room = c->ids_room;
    if (!grow((void **)&c->ids, &room, c->ids_count + 1u, sizeof *c->ids)) return false;
    c->ids_room = (uint32_t)room;
    c->ids[c->ids_count++] = token;
    return true;
}

static bool add_sample(front_choice *c, kvf_span sample) {
    size_t room = c->samples_room;
    if (sample.len_bytes != sizeof *c->samples) return true; /* a node that was not asked, or forgot */
    if (!grow((void **)&c->samples, &room, c->samples_count + 1u, sizeof *c->samples)) return false;
    c->samples_room = (uint32_t)room;
    memcpy(&c->samples[c->samples_count++], sample.data, sizeof *c->samples); /* unaligned in its message */
    return true;
}

/* ---- text ---- */

typedef enum { FED, MATCHED, NO_MEMORY } feed_result;

static feed_result take(front_choice *c, const kvf_stop_out *out) {
    for (size_t i = 0; i < KVF_COUNT_OF(out->emit); i++)
        if (!emit(c, out->emit[i].data, out->emit[i].len_bytes)) return NO_MEMORY;
    if (!out->matched) return FED;
    c->stop_index = out->stop;
    return MATCHED;
}

/* Stop strings, like end tokens, do not count below min_tokens. */
static feed_result feed(front_choice *c, const front_rules *rules, const char *text, size_t len_bytes) {
    kvf_stop_out out;
    if (!c->stop || c->tokens <= rules->plan->min_tokens) return emit(c, text, len_bytes) ? FED : NO_MEMORY;
    kvf_stop_feed(c->stop, c->tokens - 1, (kvf_span){text, len_bytes}, &out);
    return take(c, &out);
}

/* ---- tokens ---- */

/* The text of a token that ends the choice is not part of the answer, unless the client wants to see such tokens. */
static bool shows(const front_rules *rules, uint32_t token, kvf_end end) {
    if (end != KVF_END_EOS && end != KVF_END_STOP_ID) return true;
    if (rules->plan->specials_in_text) return true;
    return end == KVF_END_STOP_ID && rules->plan->include_stop && !kvf_tokenizer_is_control(rules->tokenizer, token);
}

static feed_result feed_token(front_choice *c, const front_rules *rules, uint32_t token) {
    enum { SMALL = 512 };
    char small[SMALL], *out = small;
    size_t bound = kvf_detok_bound(&c->detok, token);
    if (bound > sizeof small) out = malloc(bound);
    if (!out) return NO_MEMORY;
    size_t len = kvf_detok_push(&c->detok, token, out);
    feed_result result = feed(c, rules, out, len);
    if (out != small) free(out);
    return result;
}

static feed_result flush(front_choice *c, const front_rules *rules) {
    char tail[12];
    kvf_stop_out out;
    size_t len = kvf_detok_finish(&c->detok, tail);
    feed_result result = feed(c, rules, tail, len);
    if (result != FED || !c->stop) return result;
    kvf_stop_flush(c->stop, &out);
    return take(c, &out);
}

static void end(front_choice *c, Kvferry__V1__FinishReason reason) {
    c->ended = true;
    c->reason = reason;
}

static Kvferry__V1__FinishReason reason_of(const front_rules *rules, kvf_end why) {
    if (why == KVF_END_EOS || why == KVF_END_STOP_ID) return KVFERRY__V1__FINISH_REASON__FINISH_REASON_STOP_TOKEN;
    return rules->plan->max_given ? KVFERRY__V1__FINISH_REASON__FINISH_REASON_LENGTH
                                  : KVFERRY__V1__FINISH_REASON__FINISH_REASON_CONTEXT_LENGTH;
}

front_pushed front_choice_push(
    front_choice *c, const front_rules *rules, uint32_t token, kvf_end why, kvf_span sample) {
    KVF_ASSERT(!c->ended);
    c->tokens++;
    if (rules->plan->want_ids && !add_id(c, token)) return FRONT_NO_MEMORY;
    if (rules->plan->want_logprobs && !add_sample(c, sample)) return FRONT_NO_MEMORY;
    feed_result fed = shows(rules, token, why) ? feed_token(c, rules, token) : FED;
    if (fed == FED && why != KVF_END_NONE) fed = flush(c, rules);
    if (fed == NO_MEMORY) return FRONT_NO_MEMORY;
    if (fed == MATCHED) {
        end(c, KVFERRY__V1__FINISH_REASON__FINISH_REASON_STOP_SEQUENCE);
        return FRONT_STOPPED;
    }
    if (why == KVF_END_NONE) return FRONT_GOES_ON;
    c->stop_token = token;
    end(c, reason_of(rules, why));
    return FRONT_ENDED;
}

void front_choice_close(front_choice *c, const front_rules *rules) {
    if (c->ended) return;
    flush(c, rules);
    end(c, reason_of(rules, KVF_END_LENGTH));
}
