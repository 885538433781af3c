#include "pack.h"
#include "kvf/proto.h"
#include <stdlib.h>

enum { SCRATCH_ALIGN = 16 };

void front_scratch_fini(front_scratch *s) {
    free(s->base);
    *s = (front_scratch){0};
}

bool front_scratch_reserve(front_scratch *s, size_t bytes) {
    enum { KEEP = 1 << 20 }; /* a huge answer must not hold its memory for ever */
    s->used_bytes = 0;
    if (bytes <= s->size_bytes && (s->size_bytes <= KEEP || bytes > KEEP)) return true;
    size_t size = kvf_align_up(bytes > KEEP ? bytes : KVF_MIN(bytes * 2 + 4096, (size_t)KEEP), 64);
    uint8_t *fresh = aligned_alloc(64, size);
    if (!fresh) return bytes <= s->size_bytes;
    free(s->base);
    s->base = fresh;
    s->size_bytes = size;
    return true;
}

void *front_scratch_take(front_scratch *s, size_t bytes) {
    size_t at = s->used_bytes;
    s->used_bytes += kvf_align_up(bytes, SCRATCH_ALIGN);
    KVF_ASSERT(s->used_bytes <= s->size_bytes);
    return s->base + at;
}

/* ---- logprobs ---- */

static size_t padded(size_t bytes) { return kvf_align_up(bytes, SCRATCH_ALIGN); }

size_t front_logprobs_bytes(const kvf_sample *samples, uint32_t count) {
    size_t bytes = padded(sizeof(void *) * count) + 64;
    for (uint32_t i = 0; i < count; i++) {
        uint32_t top = KVF_MIN(samples[i].top_count, (uint32_t)KVF_SAMPLER_TOP_LOGPROBS_MAX);
        bytes += padded(sizeof(Kvferry__V1__TokenLogprobs)) + padded(sizeof(void *) * top) +
                 (top + 1) * padded(sizeof(Kvferry__V1__TokenLogprob));
    }
    return bytes;
}

static Kvferry__V1__TokenLogprob *pack_one(front_scratch *s, const kvf_tokenizer *t, const kvf_token_logprob *in) {
    Kvferry__V1__TokenLogprob *out = front_scratch_take(s, sizeof *out);
    kvferry__v1__token_logprob__init(out);
    out->token_id = in->token;
    out->logprob = in->logprob;
    out->rank = in->rank;
    kvf_span piece;
    if (kvf_tokenizer_piece(t, in->token, &piece)) out->token = kvf_proto_bytes(piece.data, piece.len_bytes);
    return out;
}

Kvferry__V1__TokenLogprobs **front_pack_logprobs(
    front_scratch *s, const kvf_tokenizer *t, const kvf_sample *samples, uint32_t count) {
    Kvferry__V1__TokenLogprobs **list = front_scratch_take(s, sizeof *list * count);
    for (uint32_t i = 0; i < count; i++) {
        Kvferry__V1__TokenLogprobs *one = front_scratch_take(s, sizeof *one);
        kvferry__v1__token_logprobs__init(one);
        one->chosen = pack_one(s, t, &samples[i].chosen);
        one->n_top = KVF_MIN(samples[i].top_count, (uint32_t)KVF_SAMPLER_TOP_LOGPROBS_MAX);
        one->top = front_scratch_take(s, sizeof *one->top * one->n_top);
        for (size_t k = 0; k < one->n_top; k++) one->top[k] = pack_one(s, t, &samples[i].top[k]);
        list[i] = one;
    }
    return list;
}

/* ---- ends ---- */

static uint64_t us(kvf_time_ns ns) { return ns / KVF_NS_PER_US; }

void front_pack_timings(Kvferry__V1__Timings *out, const kvf_router_usage *u) {
    kvferry__v1__timings__init(out);
    out->queue_us = us(u->queue_ns);
    out->prefill_us = us(u->prefill_ns);
    out->transfer_us = us(u->transfer_ns);
    out->ttft_us = us(u->ttft_ns);
    out->decode_us = us(u->decode_ns);
    out->pages_moved = u->pages;
    out->bytes_moved = u->bytes;
    out->attempts = u->attempts;
}

void front_pack_finished(Kvferry__V1__Finished *out, Kvferry__V1__Usage *usage, const front_choice *c, uint32_t index,
    const front_plan *plan) {
    kvferry__v1__finished__init(out);
    kvferry__v1__usage__init(usage);
    usage->completion_tokens = c->tokens;
    out->index = index;
    out->reason = c->reason;
    out->usage = usage;
    out->seed = plan->sampling.seed;
    if (c->reason == KVFERRY__V1__FINISH_REASON__FINISH_REASON_STOP_TOKEN) {
        out->matched_case = KVFERRY__V1__FINISHED__MATCHED_STOP_TOKEN_ID;
        out->stop_token_id = c->stop_token;
    } else if (c->reason == KVFERRY__V1__FINISH_REASON__FINISH_REASON_STOP_SEQUENCE) {
        out->matched_case = KVFERRY__V1__FINISHED__MATCHED_STOP_SEQUENCE;
        out->stop_sequence = plan->stops[c->stop_index];
    }
}

const char *front_end_name(const front_choice *c) {
    switch (c->reason) {
    case KVFERRY__V1__FINISH_REASON__FINISH_REASON_STOP_TOKEN: return "stop_token";
    case KVFERRY__V1__FINISH_REASON__FINISH_REASON_STOP_SEQUENCE: return "stop_sequence";
    case KVFERRY__V1__FINISH_REASON__FINISH_REASON_LENGTH: return "length";
    case KVFERRY__V1__FINISH_REASON__FINISH_REASON_CONTEXT_LENGTH: return "context_length";
    default: return "?";
    }
}
