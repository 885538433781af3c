/* Reductions in a fixed order: 16 lanes over the row, then halves onto halves. */
#include "sampler_int.h"
#include "kvf/sampler.h"
#include <math.h>

float sampler_max(const float *x, size_t count) {
    float lane[SAMPLER_LANES];
    for (int l = 0; l < SAMPLER_LANES; l++) lane[l] = -INFINITY;
    size_t i = 0;
    for (; i + SAMPLER_LANES <= count; i += SAMPLER_LANES)
        for (int l = 0; l < SAMPLER_LANES; l++) lane[l] = x[i + l] > lane[l] ? x[i + l] : lane[l];
    for (int l = 0; i < count; i++, l++) lane[l] = x[i] > lane[l] ? x[i] : lane[l];
    for (int l = 1; l < SAMPLER_LANES; l++) lane[0] = lane[l] > lane[0] ? lane[l] : lane[0];
    return lane[0];
}

uint32_t sampler_argmax(const float *x, size_t count) {
    float max = sampler_max(x, count);
    for (size_t i = 0; i < count; i++)
        if (x[i] == max) return (uint32_t)i;
    return 0;
}

double sampler_chunk_sum(const float *x, size_t count) {
    KVF_ASSERT(count <= SAMPLER_CHUNK);
    double lane[SAMPLER_LANES] = {0};
    size_t i = 0;
    for (; i + SAMPLER_LANES <= count; i += SAMPLER_LANES)
        for (int l = 0; l < SAMPLER_LANES; l++) lane[l] += (double)x[i + l];
    for (int l = 0; i < count; i++, l++) lane[l] += (double)x[i];
    for (int half = SAMPLER_LANES / 2; half > 0; half /= 2)
        for (int l = 0; l < half; l++) lane[l] += lane[l + half];
    return lane[0];
}

double kvf_log_sum_exp(const float *logits, uint32_t count) {
    float max = sampler_max(logits, count);
    if (!(max >= -FLT_MAX && max <= FLT_MAX)) return (double)max; /* no finite logit, or an infinite one */
    double total = 0.0;
    for (size_t start = 0; start < count; start += SAMPLER_CHUNK) {
        size_t n = KVF_MIN(SAMPLER_CHUNK, count - start);
        float weight[SAMPLER_CHUNK];
        for (size_t i = 0; i < n; i++) weight[i] = sampler_exp(logits[start + i] - max);
        total += sampler_chunk_sum(weight, n);
    }
    return (double)max + sampler_log(total);
}
