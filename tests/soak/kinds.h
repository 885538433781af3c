/* kinds.h - the requests of the soak and what each is answered when nothing is disturbed. */
#ifndef KVF_SOAK_KINDS_H
#define KVF_SOAK_KINDS_H
#include "harness.h"

enum { KINDS = 72, PROMPT_MAX = 900, OVERSIZE = 5000 };

typedef struct {
    uint32_t ids[PROMPT_MAX];
    char text[160], stop[8];
    uint32_t stop_id;
    e2e_ask ask;
    e2e_answer want;
} kind;

/* All from the seed; answered by a cluster of one node each, which is started and stopped here. */
kind *kinds_create(uint64_t seed);
void kinds_destroy(kind *kinds);
/* Compares what came with what should: all of it when the answer is whole, else as far as it went. What differs is said
 * in text. */
typedef struct {
    uint64_t compared, different; /* tokens */
    char text[300]; /* empty: all is as it should be */
} verdict;
void kind_compare(const kind *k, const e2e_answer *got, bool whole, verdict *v);

#endif
