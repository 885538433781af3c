#include "kvf/load_goodput.h"
#include <math.h>

enum { TRIALS_MAX = 64 };
static const double FACTOR_MAX = 2, ROUNDING = 1 + 1e-9; /* a mean of two steps is one step away */

void kvf_goodput_begin(kvf_goodput *g, double start, double min, double max, double tolerance) {
    KVF_ASSERT(min > 0 && min <= max && tolerance > 0);
    *g = (kvf_goodput){.min = min, .max = max, .tolerance = tolerance, .factor = 1 + tolerance};
    g->next = start < min ? min : start > max ? max : start;
}

bool kvf_goodput_next(const kvf_goodput *g, double *rate) {
    if (g->over) return false;
    *rate = g->next;
    return true;
}

void kvf_goodput_tell(kvf_goodput *g, bool passed) {
    KVF_ASSERT(!g->over);
    if (passed)
        g->passing = g->next;
    else
        g->failing = g->next;
    g->trials++;
    bool bisects = g->passing > 0 && g->failing > 0;
    if (bisects) {
        g->over = g->failing <= g->passing * (1 + g->tolerance) * ROUNDING;
        g->next = sqrt(g->passing * g->failing);
    } else if (passed) {
        g->over = g->next >= g->max;
        g->next = fmin(g->next * g->factor, g->max);
    } else {
        g->over = g->next <= g->min;
        g->next = fmax(g->next / g->factor, g->min);
    }
    if (!bisects) g->factor = fmin(g->factor * g->factor, FACTOR_MAX);
    if (g->trials == TRIALS_MAX) g->over = true;
}
