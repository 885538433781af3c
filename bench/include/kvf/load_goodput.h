/* kvf/load_goodput.h - the highest rate that a system holds, by bisection.
 *
 *   from `start`: go up while trials pass, down while they fail, within [min, max], by factors of 1 + tolerance and
 *   then each time the square of the last, 2 at most (the right guess costs two trials, and no rate is tried that is
 *   far too low, whose trial takes long); once one rate passes and one above fails, try their geometric mean, until
 *   failing / passing <= 1 + tolerance.
 *
 * The answer is the highest rate that passed, so it is at most `tolerance` below one that did not. It never ends with a
 * rate that was not tried. At most 64 trials, whatever they say. */
#ifndef KVF_LOAD_GOODPUT_H
#define KVF_LOAD_GOODPUT_H
#include "kvf/base.h"
#ifdef __cplusplus
extern "C" {
#endif

typedef struct {
    double min, max, tolerance; /* 0 < min <= max, tolerance > 0 */
    double passing, failing; /* highest that passed, lowest that failed above it; 0: none yet */
    double next, factor;
    uint32_t trials;
    bool over;
} kvf_goodput;

void kvf_goodput_begin(kvf_goodput *g, double start, double min, double max, double tolerance);
bool kvf_goodput_next(const kvf_goodput *g, double *rate); /* false: over */
void kvf_goodput_tell(kvf_goodput *g, bool passed); /* of the trial at the rate that next gave */

#ifdef __cplusplus
}
#endif
#endif
