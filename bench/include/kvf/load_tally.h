/* kvf/load_tally.h - what the answers add up to.
 *
 *   due ----> sent ----> first token ----> ... ----> last token ----> end
 * All times count from `due`, when the request was to be sent, not from when it was: a generator or a server that falls
 * behind must not hide its own delay (coordinated omission).
 *   TTFT  first token - due
 *   E2E   end - due
 *   TPOT  (last token - first token) / (tokens - 1), of requests with at least two tokens
 *   ITL   gaps between messages that bring tokens
 * A request that failed is in none of these, and outside of every limit. Requests of the warm-up are not counted. */
#ifndef KVF_LOAD_TALLY_H
#define KVF_LOAD_TALLY_H
#include "kvf/load_hist.h"
#ifdef __cplusplus
extern "C" {
#endif

typedef struct {
    kvf_time_ns due_ns, sent_ns, first_ns, last_ns, end_ns; /* first, last: 0 before any token */
    uint32_t input, output_asked, tokens, cached;
    bool over, ok; /* ok: it ended well, with a token at least */
} kvf_load_answer;

/* 0: no limit */
typedef struct {
    kvf_time_ns ttft_ns, tpot_ns;
} kvf_load_limits;

double kvf_load_tpot_ns(const kvf_load_answer *a); /* 0 of fewer than two tokens */
/* Whether an answer that is over is inside; a request with one token has no TPOT and is inside that limit. */
bool kvf_load_inside(const kvf_load_limits *l, const kvf_load_answer *a);
/* Whether it is clear already that it will not be. */
bool kvf_load_lost(const kvf_load_limits *l, const kvf_load_answer *a, kvf_time_ns now);

/* A quantity over time, in at most KVF_SERIES_SLOTS slots: when they do not reach, each two become one. */
enum { KVF_SERIES_SLOTS = 240 };
typedef struct {
    uint64_t slot_ns;
    uint32_t used;
    double slots[KVF_SERIES_SLOTS];
} kvf_series;
void kvf_series_begin(kvf_series *s, uint64_t slot_ns);
void kvf_series_add(kvf_series *s, uint64_t at_ns, double amount);

typedef struct {
    kvf_hist ttft, tpot, itl, e2e, late; /* ns; late: sent - due, how well the generator kept its times */
    uint64_t counted, completed, failed, inside;
    uint64_t input_tokens, output_tokens, cached_tokens; /* of the completed */
    uint64_t peak_running; /* requests at once, warm-up too */
    double duration_s; /* from the first counted request's time to the last one's end */
    kvf_series tokens, arrivals; /* over the run, warm-up too */
} kvf_load_tally;

/* Fills everything but itl and tokens, which a runner adds to as messages come. All answers must be over.
 * start_ns: of the run. */
void kvf_load_tally_take(kvf_load_tally *t, const kvf_load_answer *answers, uint32_t count, uint32_t warmup,
    const kvf_load_limits *limits, kvf_time_ns start_ns);

#ifdef __cplusplus
}
#endif
#endif
