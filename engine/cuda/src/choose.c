/* From rows of logits to tokens and scores. The device samples (kvf/cuda_sample.h, the definition of kvf/sampler.h) and
 * only what it chose comes to the host. What it has no room for, a step with very many adjusted logits, is sampled
 * on the host from a copy of the row: the same tokens, later. */
#include "device_int.h"
#include "kvf/rng.h"
#include <stdlib.h>

_Static_assert(sizeof(kvf_cuda_sampled) == sizeof(kvf_sample), "results are taken as they lie");
_Static_assert(offsetof(kvf_cuda_sampled, top) == offsetof(kvf_sample, top), "results are taken as they lie");

enum { ADJUSTMENTS_A_ROW = 1024 }; /* on average; a request with penalties has one for each token it has seen */

static size_t choices_bytes(const cuda_backend *b, cuda_choices *c, uint8_t *base) {
    size_t rows = kvf_align_up(b->choices_max * sizeof *c->rows, 256);
    size_t adjustments = kvf_align_up(b->adjustments_max * sizeof *c->adjustments, 256);
    c->rows = (kvf_cuda_sampling *)(void *)base;
    c->adjustments = (kvf_cuda_adjustment *)(void *)(base + rows);
    c->results = (kvf_cuda_sampled *)(void *)(base + rows + adjustments);
    return rows + adjustments + b->choices_max * sizeof *c->results;
}

kvf_status cuda_make_choices(cuda_backend *b, kvf_error *err) {
    b->choices_max = b->options.logit_rows_max + b->options.sequences_max;
    b->adjustments_max = b->options.sequences_max * ADJUSTMENTS_A_ROW;
    cuda_choices measure;
    size_t bytes = choices_bytes(b, &measure, NULL);
    b->device_choices_memory = cuda_take(b, bytes);
    b->sample_scratch = cuda_take(b, b->kernels->sample_scratch_bytes(b->spec.vocab, b->choices_max));
    b->choice_out = calloc(b->choices_max, sizeof(kvf_sample *));
    int error = b->api.host_take(&b->host_choices_memory, bytes, 0);
    if (error) return kvf_fail(err, cuda_failed(b, kvf_cuda_symbols.host_take, error), "%s", b->base.trouble);
    if (!b->device_choices_memory || !b->sample_scratch || !b->choice_out)
        return kvf_fail(err, KVF_ERR_NO_MEMORY, "no room for a sampler: %s", b->base.trouble);
    choices_bytes(b, &b->device_choices, b->device_choices_memory);
    choices_bytes(b, &b->host_choices, b->host_choices_memory);
    return KVF_OK;
}

/* ------------------------------------------------------------------ adjustments of one row */

/* The order of entries of one token is the order in which they were added: it counts for biases. */
static int by_token(const void *a, const void *b) {
    const kvf_cuda_adjustment *x = a, *y = b;
    if (x->token != y->token) return x->token < y->token ? -1 : 1;
    return x->uses < y->uses ? -1 : x->uses > y->uses;
}

/* While entries are collected, `uses` numbers them, and `raw` is how often the entry's token is used by it. */
static bool add(cuda_backend *b, const kvf_sample_input *in, uint32_t token, uint32_t flags, float bias, bool used) {
    if (token >= in->vocab_used) return true;
    if (b->adjustments_count == b->adjustments_max) return false;
    uint32_t at = b->adjustments_count++;
    b->host_choices.adjustments[at] =
        (kvf_cuda_adjustment){.token = token, .bias = bias, .uses = at, .flags = flags, .raw = used ? 1 : 0};
    return true;
}

static bool add_ids(cuda_backend *b, const kvf_sample_input *in, const uint32_t *ids, uint32_t count) {
    bool room = true;
    for (uint32_t i = 0; i < count; i++) room &= add(b, in, ids[i], KVF_CUDA_SUPPRESSED, 0, false);
    return room;
}

/* Entries from `begin` on, sorted; those of one token that add no bias become one, which says all of its flags. */
static void merge(cuda_backend *b, uint32_t begin) {
    kvf_cuda_adjustment *list = b->host_choices.adjustments;
    uint32_t end = b->adjustments_count, kept = begin;
    qsort(list + begin, end - begin, sizeof *list, by_token);
    for (uint32_t i = begin; i < end;) {
        uint32_t token = list[i].token, flags = 0, uses = 0;
        for (; i < end && list[i].token == token; i++) {
            flags |= list[i].flags & ~(uint32_t)KVF_CUDA_BIASED;
            uses += list[i].raw > 0;
            if (list[i].flags & KVF_CUDA_BIASED)
                list[kept++] = (kvf_cuda_adjustment){.token = token, .bias = list[i].bias, .flags = KVF_CUDA_BIASED};
        }
        bool biased = kept > begin && list[kept - 1].token == token;
        if (!biased) list[kept++] = (kvf_cuda_adjustment){.token = token};
        list[kept - 1].flags |= flags;
        list[kept - 1].uses = uses;
    }
    b->adjustments_count = kept;
}

/* False: no room. */
static bool adjust(cuda_backend *b, const kvf_sample_input *in) {
    const kvf_sampling *s = in->sampling;
    uint32_t begin = b->adjustments_count;
    bool room = true;
    for (uint32_t i = 0; i < s->bias_count; i++)
        room &= add(b, in, s->bias[i].token, KVF_CUDA_BIASED, s->bias[i].bias, false);
    if (s->repetition_penalty != 1.0f || s->presence_penalty != 0.0f || s->frequency_penalty != 0.0f)
        for (uint32_t i = 0; room && i < in->tokens_count; i++)
            room &= add(b, in, in->tokens[i], KVF_CUDA_SEEN, 0, i >= in->prompt_count);
    if (in->tokens_count - in->prompt_count < s->min_tokens) {
        if (!s->ignore_eos) room &= add_ids(b, in, in->end_ids, in->end_ids_count);
        room &= add_ids(b, in, s->stop_ids, s->stop_ids_count);
    }
    if (room)
        merge(b, begin);
    else
        b->adjustments_count = begin;
    return room;
}

/* ------------------------------------------------------------------ a step */

static void add_sample(cuda_backend *b, const kvf_backend_sample *want) {
    const kvf_sample_input *in = &want->input;
    const kvf_sampling *s = in->sampling;
    uint32_t begin = b->adjustments_count;
    if (b->choices_count == b->choices_max || !adjust(b, in)) return; /* take_choices does it on the host */
    b->host_choices.rows[b->choices_count] =
        (kvf_cuda_sampling){.random = kvf_rng_at(s->seed, in->choice, in->tokens_count),
            .temperature = s->temperature,
            .top_p = s->top_p,
            .min_p = s->min_p,
            .repetition_penalty = s->repetition_penalty,
            .presence_penalty = s->presence_penalty,
            .frequency_penalty = s->frequency_penalty,
            .top_k = s->top_k,
            .want_logprobs = s->want_logprobs,
            .top_logprobs = s->top_logprobs,
            .row = want->row,
            .adjust_begin = begin,
            .adjust_count = b->adjustments_count - begin,
            .given = KVF_CUDA_DRAW};
    b->choice_out[b->choices_count++] = want->out;
}

static void add_score(cuda_backend *b, const kvf_backend_score *want) {
    if (b->choices_count == b->choices_max) return;
    b->host_choices.rows[b->choices_count] = (kvf_cuda_sampling){
        .row = want->row, .want_logprobs = 1, .top_logprobs = want->top, .given = want->token, .repetition_penalty = 1};
    b->choice_out[b->choices_count++] = want->out;
}

static kvf_status launch(cuda_backend *b, uint32_t vocab_used, uint32_t first, uint32_t end) {
    if (first == end) return KVF_OK;
    kvf_cuda_sample a = {.logits = b->logits,
        .vocab = b->spec.vocab,
        .vocab_used = vocab_used,
        .rows = b->device_choices.rows + first,
        .rows_count = end - first,
        .adjustments = b->device_choices.adjustments,
        .scratch = b->sample_scratch,
        .out = b->device_choices.results + first};
    return b->kernels->sample_rows(&a, b->stream) == 0 ? KVF_OK : KVF_ERR_UNSUPPORTED;
}

/* Rows of one launch that have adjustments must differ: choices of one sequence follow each other, and each begins a
 * launch of its own. */
static kvf_status launch_all(cuda_backend *b, uint32_t vocab_used, uint32_t samples) {
    const kvf_cuda_sampling *rows = b->host_choices.rows;
    uint32_t first = 0;
    for (uint32_t i = 1; i < samples; i++) {
        if (rows[i].row != rows[i - 1].row || b->adjustments_count == 0) continue;
        kvf_status status = launch(b, vocab_used, first, i);
        if (status != KVF_OK) return status;
        first = i;
    }
    kvf_status status = launch(b, vocab_used, first, samples);
    return status == KVF_OK ? launch(b, vocab_used, samples, b->choices_count) : status;
}

kvf_status cuda_queue_choices(cuda_backend *b, const kvf_backend_step *step) {
    b->choices_count = b->adjustments_count = 0;
    for (uint32_t i = 0; i < step->samples_count; i++) add_sample(b, &step->samples[i]);
    uint32_t samples = b->choices_count;
    for (uint32_t i = 0; i < step->scores_count; i++) add_score(b, &step->scores[i]);
    if (b->choices_count == 0) return KVF_OK;
    uint32_t vocab_used =
        step->samples_count ? step->samples[0].input.vocab_used : step->scores[0].vocab_used; /* of the model */
    const cuda_choices *d = &b->device_choices, *h = &b->host_choices;
    CUDA_TRY(b, copy_async, d->rows, h->rows, b->choices_count * sizeof *h->rows, KVF_CUDA_HOST_TO_DEVICE, b->stream);
    if (b->adjustments_count)
        CUDA_TRY(b, copy_async, d->adjustments, h->adjustments, b->adjustments_count * sizeof *h->adjustments,
            KVF_CUDA_HOST_TO_DEVICE, b->stream);
    kvf_status status = launch_all(b, vocab_used, samples);
    if (status != KVF_OK) return status;
    CUDA_TRY(b, copy_async, h->results, d->results, b->choices_count * sizeof *h->results, KVF_CUDA_DEVICE_TO_HOST,
        b->stream);
    return KVF_OK;
}

static kvf_status fetch_row(cuda_backend *b, uint32_t row) {
    CUDA_TRY(b, copy, b->host_logits, b->logits + (size_t)row * b->spec.vocab, b->spec.vocab * sizeof(float),
        KVF_CUDA_DEVICE_TO_HOST);
    return KVF_OK;
}

/* Wants that did not become choices are known by where their results go: choices keep the order of wants. */
kvf_status cuda_take_choices(cuda_backend *b, const kvf_backend_step *step) {
    uint32_t next = 0;
    kvf_status status = KVF_OK;
    for (uint32_t i = 0; status == KVF_OK && i < step->samples_count; i++) {
        const kvf_backend_sample *want = &step->samples[i];
        if (next < b->choices_count && b->choice_out[next] == want->out) {
            memcpy(want->out, &b->host_choices.results[next++], sizeof *want->out);
            continue;
        }
        status = fetch_row(b, want->row);
        kvf_sample_input in = want->input;
        in.logits = b->host_logits;
        if (status == KVF_OK) kvf_sample_token(&in, b->scratch, want->out);
    }
    for (uint32_t i = 0; status == KVF_OK && i < step->scores_count; i++) {
        const kvf_backend_score *want = &step->scores[i];
        if (next < b->choices_count && b->choice_out[next] == want->out) {
            memcpy(want->out, &b->host_choices.results[next++], sizeof *want->out);
            continue;
        }
        status = fetch_row(b, want->row);
        if (status == KVF_OK)
            kvf_sample_score(b->host_logits, b->spec.vocab, want->vocab_used, want->token, want->top, want->out);
    }
    return status;
}
