#include "kvf/load_hist.h"
#include <math.h>

static uint32_t bucket_of(uint64_t value) {
    if (value >> KVF_HIST_BITS == 0) return (uint32_t)value;
    uint32_t shift = 63 - (uint32_t)__builtin_clzll(value) - KVF_HIST_BITS;
    return ((shift + 1) << KVF_HIST_BITS) + (uint32_t)((value >> shift) - (1u << KVF_HIST_BITS));
}

static double middle_of(uint32_t bucket) {
    uint32_t power = bucket >> KVF_HIST_BITS, within = bucket & ((1u << KVF_HIST_BITS) - 1);
    if (power == 0) return within;
    uint32_t shift = power - 1;
    uint64_t low = (uint64_t)(within + (1u << KVF_HIST_BITS)) << shift;
    return (double)low + 0.5 * (double)(((uint64_t)1 << shift) - 1); /* of whole numbers low .. low + 2^shift - 1 */
}

void kvf_hist_add(kvf_hist *h, uint64_t value) {
    uint32_t bucket = bucket_of(value);
    KVF_ASSERT(bucket < KVF_HIST_BUCKETS);
    h->min = h->count ? KVF_MIN(h->min, value) : value;
    h->max = KVF_MAX(h->max, value);
    h->count++;
    h->sum += (double)value;
    h->sum_of_squares += (double)value * (double)value;
    h->buckets[bucket]++;
}

void kvf_hist_merge(kvf_hist *into, const kvf_hist *from) {
    if (from->count == 0) return;
    into->min = into->count ? KVF_MIN(into->min, from->min) : from->min;
    into->max = KVF_MAX(into->max, from->max);
    into->count += from->count;
    into->sum += from->sum;
    into->sum_of_squares += from->sum_of_squares;
    for (uint32_t i = 0; i < KVF_HIST_BUCKETS; i++) into->buckets[i] += from->buckets[i];
}

double kvf_hist_percentile(const kvf_hist *h, double percent) {
    if (h->count == 0) return 0;
    /* Percents are decimals: 99.9 % of 1,000 is 999, although the product may come out a little above. */
    double exact = ceil((double)h->count * percent / 100 * (1 - 1e-12));
    uint64_t rank = exact < 1 ? 1 : exact > (double)h->count ? h->count : (uint64_t)exact, seen = 0;
    if (rank == 1) return (double)h->min;
    if (rank == h->count) return (double)h->max;
    uint32_t i = 0;
    while ((seen += h->buckets[i]) < rank) i++;
    double value = middle_of(i);
    return value < (double)h->min ? (double)h->min : value > (double)h->max ? (double)h->max : value;
}

double kvf_hist_mean(const kvf_hist *h) { return h->count ? h->sum / (double)h->count : 0; }

double kvf_hist_deviation(const kvf_hist *h) {
    double mean = kvf_hist_mean(h), variance = h->count ? h->sum_of_squares / (double)h->count - mean * mean : 0;
    return variance > 0 ? sqrt(variance) : 0; /* rounding may take it below */
}
