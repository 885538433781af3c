/* pack.h - what clients are told, as protobuf messages. Messages point into a scratch that the next call reuses. */
#ifndef FRONT_PACK_H
#define FRONT_PACK_H
#include "choice.h"

typedef struct {
    uint8_t *base;
    size_t size_bytes, used_bytes;
} front_scratch;
void front_scratch_fini(front_scratch *s);

/* Logprobs of samples as messages, each with its own k best beside the chosen. Room was reserved. */
Kvferry__V1__TokenLogprobs **front_pack_logprobs(
    front_scratch *s, const kvf_tokenizer *t, const kvf_sample *samples, uint32_t count);
/* Bytes that front_pack_logprobs takes; reserve for all before the first, as reserving moves the scratch. */
size_t front_logprobs_bytes(const kvf_sample *samples, uint32_t count);
bool front_scratch_reserve(front_scratch *s, size_t bytes); /* and empties it */
void *front_scratch_take(front_scratch *s, size_t bytes);

void front_pack_finished(Kvferry__V1__Finished *out, Kvferry__V1__Usage *usage, const front_choice *c, uint32_t index,
    const front_plan *plan);
void front_pack_timings(Kvferry__V1__Timings *out, const kvf_router_usage *u);
const char *front_end_name(const front_choice *c); /* "stop_token" */
#endif
