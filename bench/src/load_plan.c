#include "kvf/load_plan.h"
#include "kvf/rng.h"
#include <math.h>
#include <stdlib.h>

/* Streams of random numbers under one seed. */
enum { STREAM_GAP = 1, STREAM_INPUT, STREAM_OUTPUT, STREAM_TOKENS };

double kvf_load_trace_rate(const kvf_load_trace *t, size_t rows) {
    size_t n = rows && rows < t->count ? rows : t->count;
    uint64_t span_ns = t->rows[n - 1].at_ns;
    return span_ns ? (double)(n - 1) * (double)KVF_NS_PER_S / (double)span_ns : 0;
}

static double unit(const kvf_load_options *o, uint64_t stream, uint64_t i) { /* in (0, 1] */
    return ((double)(kvf_rng_at(o->seed, stream, i) >> 11) + 1) * 0x1p-53;
}

static uint32_t draw(const kvf_load_options *o, uint64_t stream, uint64_t i, kvf_load_range range) {
    double span = (double)range.max - range.min + 1;
    return range.min + (uint32_t)KVF_MIN((1 - unit(o, stream, i)) * span, span - 1);
}

static void poisson_times(kvf_load_plan *p) {
    double at_s = 0;
    for (uint32_t i = 0; i < p->count; i++) {
        if (i) at_s += -log(unit(&p->o, STREAM_GAP, i)) / p->o.rate;
        p->requests[i].at_ns = (uint64_t)(at_s * (double)KVF_NS_PER_S);
    }
}

static void plan_lengths(kvf_load_plan *p) {
    for (uint32_t i = 0; i < p->count; i++) {
        kvf_load_request *r = &p->requests[i];
        r->input = draw(&p->o, STREAM_INPUT, i, p->o.input);
        r->output = draw(&p->o, STREAM_OUTPUT, i, p->o.output);
    }
}

static uint32_t scaled(uint32_t tokens, double scale) {
    double t = floor(tokens * scale + 0.5);
    return t < 1 ? 1 : (uint32_t)t;
}

/* Whole blocks keep their size; only what is left over after them is rounded. */
static uint32_t scaled_input(const kvf_load_plan *p, uint32_t tokens) {
    if (p->block_tokens == 0) return scaled(tokens, p->scale);
    uint32_t whole = (tokens - 1) / KVF_LOAD_HASH_TOKENS;
    uint32_t last = scaled(tokens - whole * KVF_LOAD_HASH_TOKENS, p->scale);
    return whole * p->block_tokens + KVF_MIN(last, p->block_tokens);
}

static void choose_scale(kvf_load_plan *p) {
    const kvf_load_trace *t = p->o.trace;
    p->scale = p->o.scale;
    if (p->scale == 0) p->scale = KVF_MIN(1.0, (double)p->o.context / t->total_max);
    if (!t->hashes) return;
    double blocks = floor(p->scale * KVF_LOAD_HASH_TOKENS / KVF_LOAD_BLOCK_TOKENS + 1e-9);
    p->block_tokens = (uint32_t)KVF_MAX(blocks, 1.0) * KVF_LOAD_BLOCK_TOKENS;
    p->scale = (double)p->block_tokens / KVF_LOAD_HASH_TOKENS;
}

static void cut(kvf_load_plan *p, kvf_load_request *r) {
    if ((uint64_t)r->input + r->output <= p->o.context) return;
    p->cut++;
    r->output = KVF_MIN(r->output, p->o.context - 1);
    r->input = KVF_MIN(r->input, p->o.context - r->output);
}

static void plan_trace(kvf_load_plan *p) {
    const kvf_load_trace *t = p->o.trace;
    double stretch = p->o.rate > 0 && !p->o.poisson ? kvf_load_trace_rate(t, p->count) / p->o.rate : 1;
    choose_scale(p);
    for (uint32_t i = 0; i < p->count; i++) {
        const kvf_load_row *row = &t->rows[i];
        p->requests[i] = (kvf_load_request){.at_ns = (uint64_t)((double)row->at_ns * stretch),
            .input = scaled_input(p, row->input),
            .output = scaled(row->output, p->scale),
            .hash_first = row->hash_first};
    }
}

static bool range_ok(kvf_load_range r) { return r.min >= 1 && r.min <= r.max && r.max <= KVF_LOAD_TOKENS_MAX; }

static kvf_status check(const kvf_load_options *o, uint32_t count, kvf_error *err) {
    if (o->vocab == 0 || o->context < 2)
        return kvf_fail(err, KVF_ERR_INVALID, "the model has no room for a prompt and an output");
    if (!(o->rate >= 0) || !isfinite(o->rate)) return kvf_fail(err, KVF_ERR_INVALID, "rate: %g is not one", o->rate);
    if (!(o->scale >= 0) || o->scale > 1e3) return kvf_fail(err, KVF_ERR_INVALID, "scale: %g is not one", o->scale);
    if (count == 0 || count > KVF_LOAD_REQUESTS_MAX)
        return kvf_fail(err, KVF_ERR_INVALID, "requests: from 1 to %d", KVF_LOAD_REQUESTS_MAX);
    if (o->trace && !o->poisson) {
        if (o->rate > 0 && kvf_load_trace_rate(o->trace, count) == 0 && count > 1)
            return kvf_fail(err, KVF_ERR_INVALID,
                "rate: the first %u rows of the trace come at one moment and cannot be stretched to a rate", count);
        return KVF_OK;
    }
    if (o->rate == 0) return kvf_fail(err, KVF_ERR_INVALID, "rate: it must be above 0 where times are not a trace's");
    if ((double)count / o->rate > 1e9) return kvf_fail(err, KVF_ERR_INVALID, "rate: %g takes decades", o->rate);
    if (o->trace) return KVF_OK;
    if (!range_ok(o->input) || !range_ok(o->output))
        return kvf_fail(err, KVF_ERR_INVALID, "lengths: MIN:MAX with 1 <= MIN <= MAX <= %d", KVF_LOAD_TOKENS_MAX);
    if ((uint64_t)o->input.max + o->output.max > o->context)
        return kvf_fail(err, KVF_ERR_INVALID, "input and output of up to %u and %u tokens exceed the context of %u",
            o->input.max, o->output.max, o->context);
    return KVF_OK;
}

kvf_status kvf_load_plan_make(const kvf_load_options *o, kvf_load_plan *out, kvf_error *err) {
    size_t rows = o->trace ? o->trace->count : o->requests;
    size_t count = o->requests ? KVF_MIN((size_t)o->requests, rows) : rows;
    kvf_status status = check(o, (uint32_t)KVF_MIN(count, (size_t)UINT32_MAX), err);
    if (status != KVF_OK) return status;
    kvf_load_plan p = {.o = *o, .count = (uint32_t)count, .scale = 1};
    p.requests = calloc(count, sizeof *p.requests);
    if (!p.requests) return kvf_fail(err, KVF_ERR_NO_MEMORY, "no memory for %zu requests", count);
    if (o->trace)
        plan_trace(&p);
    else
        plan_lengths(&p);
    if (!o->trace || o->poisson) poisson_times(&p);
    for (uint32_t i = 0; i < p.count; i++) cut(&p, &p.requests[i]);
    *out = p;
    return KVF_OK;
}

void kvf_load_plan_fini(kvf_load_plan *p) {
    free(p->requests);
    *p = (kvf_load_plan){0};
}

void kvf_load_plan_prompt(const kvf_load_plan *p, uint32_t i, uint32_t *out) {
    const kvf_load_request *r = &p->requests[i];
    uint64_t seed = kvf_rng_at(p->o.seed, STREAM_TOKENS, p->o.salt);
    for (uint32_t at = 0; at < r->input; at++) {
        /* Ids take even streams, requests without them odd ones. */
        uint64_t stream =
            p->block_tokens ? p->o.trace->hashes[r->hash_first + at / p->block_tokens] * 2 : (uint64_t)i * 2 + 1;
        uint64_t counter = p->block_tokens ? at % p->block_tokens : at;
        out[at] = (uint32_t)(((kvf_rng_u128)kvf_rng_at(seed, stream, counter) * p->o.vocab) >> 64);
    }
}
