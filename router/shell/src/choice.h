/* choice.h - one choice of a request on its way to the client: tokens in, text out.
 *
 *   token -> detok (whole UTF-8 only) -> stop matcher (holds back what may become a stop) -> text not yet told
 *
 * Invariants: joined texts are the same whatever is told at once; ids and logprobs are told with their token, their
 * text may follow later; after the end nothing is added. One thread. */
#ifndef FRONT_CHOICE_H
#define FRONT_CHOICE_H
#include "kvf/stop.h"
#include "plan.h"

typedef struct {
    kvf_detok detok;
    kvf_stop_stream *stop; /* owned; NULL: no stop strings */
    /* not yet told */
    char *text;
    size_t text_bytes, text_room;
    uint32_t *ids;
    kvf_sample *samples;
    uint32_t ids_count, ids_room, samples_count, samples_room;
    /* so far */
    uint32_t tokens; /* that count */
    bool ended, told; /* told: Finished went out */
    Kvferry__V1__FinishReason reason;
    uint32_t stop_token; /* STOP_TOKEN */
    uint32_t stop_index; /* STOP_SEQUENCE */
} front_choice;

typedef struct {
    const kvf_tokenizer *tokenizer;
    const front_plan *plan;
    kvf_stop_set *stops; /* owned; NULL: none */
} front_rules;
/* plan: kept. KVF_ERR_NO_MEMORY. */
kvf_status front_rules_init(front_rules *rules, const kvf_tokenizer *tokenizer, const front_plan *plan);
void front_rules_fini(front_rules *rules); /* after its choices */

typedef enum {
    FRONT_GOES_ON,
    FRONT_ENDED, /* with this token, as the node said */
    FRONT_STOPPED, /* by a stop string: the core has to be told */
    FRONT_NO_MEMORY
} front_pushed;

kvf_status front_choice_init(front_choice *c, const front_rules *rules);
void front_choice_fini(front_choice *c);
/* sample: a kvf_sample or empty. Not after the end. */
front_pushed front_choice_push(front_choice *c, const front_rules *rules, uint32_t token, kvf_end end, kvf_span sample);
/* The request is over without this choice having had an end of its own (max_tokens 0). */
void front_choice_close(front_choice *c, const front_rules *rules);
static inline bool front_choice_has_news(const front_choice *c) {
    return c->text_bytes || c->ids_count || c->samples_count;
}
void front_choice_told(front_choice *c); /* forgets what was told */
#endif
