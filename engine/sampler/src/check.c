/* Sampling parameters: defaults and limits. A value is refused by name, never mended silently. */
#include "kvf/sampler.h"
#include <float.h>
#include <inttypes.h>

void kvf_sampling_defaults(kvf_sampling *s) {
    *s = (kvf_sampling){.temperature = 1.0f, .top_p = 1.0f, .repetition_penalty = 1.0f};
}

/* The comparisons are written so that a NaN fails them. */
static kvf_status check_reals(const kvf_sampling *s, kvf_error *err) {
    const struct {
        const char *name;
        float value, min, max;
        bool above_min; /* the minimum itself is not allowed */
        const char *allowed;
    } rows[] = {
        {"temperature", s->temperature, 0.0f, FLT_MAX, false, "0 or more"},
        {"top_p", s->top_p, 0.0f, 1.0f, false, "0 to 1"},
        {"min_p", s->min_p, 0.0f, 1.0f, false, "0 to 1"},
        {"repetition_penalty", s->repetition_penalty, 0.0f, FLT_MAX, true, "more than 0"},
        {"presence_penalty", s->presence_penalty, -2.0f, 2.0f, false, "-2 to 2"},
        {"frequency_penalty", s->frequency_penalty, -2.0f, 2.0f, false, "-2 to 2"},
    };
    for (size_t i = 0; i < KVF_COUNT_OF(rows); i++) {
        bool good = rows[i].value >= rows[i].min && rows[i].value <= rows[i].max;
        if (!good || (rows[i].above_min && rows[i].value == rows[i].min))
            return kvf_fail(
                err, KVF_ERR_INVALID, "%s is %g (allowed: %s)", rows[i].name, (double)rows[i].value, rows[i].allowed);
    }
    return KVF_OK;
}

static kvf_status check_counts(const kvf_sampling *s, kvf_error *err) {
    const struct {
        const char *name;
        uint32_t value, max;
    } rows[] = {
        {"top_logprobs", s->top_logprobs, KVF_SAMPLER_TOP_LOGPROBS_MAX},
        {"logit_bias entries", s->bias_count, KVF_SAMPLER_BIAS_MAX},
        {"stop token_ids", s->stop_ids_count, KVF_SAMPLER_STOP_IDS_MAX},
        {"want_logprobs", s->want_logprobs, 1},
        {"ignore_eos", s->ignore_eos, 1},
    };
    for (size_t i = 0; i < KVF_COUNT_OF(rows); i++)
        if (rows[i].value > rows[i].max)
            return kvf_fail(err, KVF_ERR_INVALID, "%s is %" PRIu32 " (allowed: 0 to %" PRIu32 ")", rows[i].name,
                rows[i].value, rows[i].max);
    return KVF_OK;
}

kvf_status kvf_sampling_check(const kvf_sampling *s, uint32_t vocab, kvf_error *err) {
    kvf_status status = check_reals(s, err);
    if (!status) status = check_counts(s, err);
    if (status) return status;
    for (uint32_t i = 0; i < s->stop_ids_count; i++)
        if (s->stop_ids[i] >= vocab)
            return kvf_fail(err, KVF_ERR_INVALID,
                "stop token_ids[%" PRIu32 "] is %" PRIu32 " (vocabulary has %" PRIu32 ")", i, s->stop_ids[i], vocab);
    for (uint32_t i = 0; i < s->bias_count; i++) {
        const kvf_logit_bias *b = &s->bias[i];
        if (b->token >= vocab)
            return kvf_fail(err, KVF_ERR_INVALID,
                "logit_bias[%" PRIu32 "] token_id is %" PRIu32 " (vocabulary has %" PRIu32 ")", i, b->token, vocab);
        if (!(b->bias >= -KVF_SAMPLER_BIAS_LIMIT && b->bias <= KVF_SAMPLER_BIAS_LIMIT))
            return kvf_fail(err, KVF_ERR_INVALID, "logit_bias[%" PRIu32 "] bias is %g (allowed: -%g to %g)", i,
                (double)b->bias, (double)KVF_SAMPLER_BIAS_LIMIT, (double)KVF_SAMPLER_BIAS_LIMIT);
    }
    return KVF_OK;
}
