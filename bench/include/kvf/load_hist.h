/* kvf/load_hist.h - how often each duration was seen, for percentiles of any number of values in fixed memory.
 *
 * Log-linear buckets over all of uint64: below 2^KVF_HIST_BITS each value has its own; above, every power of two is cut
 * into 2^KVF_HIST_BITS equal ones. A bucket is thus never wider than 1/2^KVF_HIST_BITS of its lowest value, and the
 * middle of a bucket is within KVF_HIST_ERROR of whatever fell into it. Count, least, greatest and sum are exact. Two
 * histograms merge by adding; the result is that of one that saw both. */
#ifndef KVF_LOAD_HIST_H
#define KVF_LOAD_HIST_H
#include "kvf/base.h"
#ifdef __cplusplus
extern "C" {
#endif

enum { KVF_HIST_BITS = 7, KVF_HIST_BUCKETS = (64 - KVF_HIST_BITS + 1) << KVF_HIST_BITS };
#define KVF_HIST_ERROR (0.5 / (1 << KVF_HIST_BITS)) /* relative, of a percentile: 0.39 % */

/* Zero it to begin. */
typedef struct {
    uint64_t count, min, max; /* min and max: of nothing where count is 0 */
    double sum, sum_of_squares;
    uint64_t buckets[KVF_HIST_BUCKETS];
} kvf_hist;

void kvf_hist_add(kvf_hist *h, uint64_t value);
void kvf_hist_merge(kvf_hist *into, const kvf_hist *from);
/* The smallest value that at least `percent` of all are not above, as near as buckets tell; 0 of nothing. */
double kvf_hist_percentile(const kvf_hist *h, double percent);
double kvf_hist_mean(const kvf_hist *h);
double kvf_hist_deviation(const kvf_hist *h); /* of the whole population, as numpy's std */

#ifdef __cplusplus
}
#endif
#endif
