#include "choice.h"
#include <stdlib.h>

kvf_status front_choice_init(front_choice *c, const front_rules *rules) {
    *c = (front_choice){0};
    kvf_detok_init(&c->detok, rules->tokenizer, rules->plan->specials_in_text);
    return KVF_OK;
}

void front_choice_fini(front_choice *c) {
    free(c->text);
    free(c->ids);
    free(c->samples);
    free(c->held);
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

/* ---- stop strings ----
 * The stop that is complete at the earliest byte wins; of two that end there, the longer one. So it does not matter how
 * the text is cut into tokens. Held back is the longest end of the text that begins some stop. */

/* Index of the longest stop that the held text ends with, or stops_count. */
static uint32_t complete_stop(const front_choice *c, const front_plan *p) {
    uint32_t best = p->stops_count;
    for (uint32_t i = 0; i < p->stops_count; i++) {
        size_t len = p->stops[i].len;
        if (len > c->held_bytes || (best < p->stops_count && p->stops[best].len >= len)) continue;
        if (memcmp(c->held + c->held_bytes - len, p->stops[i].data, len) == 0) best = i;
    }
    return best;
}

static size_t longest_beginning(const front_choice *c, const front_plan *p) {
    size_t best = 0;
    for (uint32_t i = 0; i < p->stops_count; i++) {
        size_t most = KVF_MIN(p->stops[i].len - 1, c->held_bytes);
        for (size_t len = most; len > best; len--)
            if (memcmp(c->held + c->held_bytes - len, p->stops[i].data, len) == 0) best = len;
    }
    return best;
}

static bool release(front_choice *c, size_t keep_bytes) {
    size_t out = c->held_bytes - keep_bytes;
    if (!emit(c, c->held, out)) return false;
    if (keep_bytes) memmove(c->held, c->held + out, keep_bytes);
    c->held_bytes = keep_bytes;
    return true;
}

typedef enum { FED, MATCHED, NO_MEMORY } feed_result;

static feed_result feed(front_choice *c, const front_plan *p, const char *text, size_t len_bytes, bool match) {
    if (!p->stops_count || !match) return emit(c, text, len_bytes) ? FED : NO_MEMORY;
    if (!grow((void **)&c->held, &c->held_room, c->held_bytes + len_bytes, 1)) return NO_MEMORY;
    for (size_t i = 0; i < len_bytes; i++) {
        c->held[c->held_bytes++] = text[i];
        uint32_t stop = complete_stop(c, p);
        if (stop == p->stops_count) continue;
        c->stop_index = stop;
        if (!p->include_stop) c->held_bytes -= p->stops[stop].len;
        return release(c, 0) ? MATCHED : NO_MEMORY;
    }
    return release(c, longest_beginning(c, p)) ? FED : NO_MEMORY;
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
    /* Stop strings, like end tokens, do not count below min_tokens. */
    feed_result result = feed(c, rules->plan, out, len, c->tokens > rules->plan->min_tokens);
    if (out != small) free(out);
    return result;
}

static feed_result flush(front_choice *c, const front_rules *rules) {
    char tail[12];
    size_t len = kvf_detok_finish(&c->detok, tail);
    feed_result result = feed(c, rules->plan, tail, len, c->tokens > rules->plan->min_tokens);
    if (result == FED && !release(c, 0)) result = NO_MEMORY;
    return result;
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
