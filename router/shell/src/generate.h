/* generate.h - one Generate or Complete call, from the handler to its last message.
 *
 *   handler (gRPC loop) -> worker: check, render, tokenise -> inbox -> core: submit -> actions -> over
 *
 * Invariants: one owner at a time besides the call (worker, inbox, then the core's table), which holds one reference;
 * `left` is set by a gRPC loop when the client has gone, and read by whoever owns; after `over` nothing is told. */
#ifndef FRONT_GENERATE_H
#define FRONT_GENERATE_H
#include "shell_int.h"

struct front_request {
    kvf_router_shell *shell;
    kvf_rpc_call *call; /* our reference, given back with the last of ours */
    const Kvferry__V1__GenerateRequest *message; /* lives as long as call */
    bool unary;
    atomic_int refs;
    atomic_bool left;
    worker_job job;
    inbox_item submit_item, left_item;
    kvf_time_ns deadline_ns;
    front_plan plan;
    front_rules rules;
    /* core thread */
    uint32_t slot;
    kvf_request_id id;
    char id_text[KVF_REQUEST_TEXT_MAX];
    front_choice *choices; /* [plan.n] */
    uint32_t untold; /* choices whose Finished has not gone out */
    bool in_dirty, dropped, over; /* dropped: cancelled at the core, what still comes is not told */
    front_request *dirty_next;
    kvf_router_timeline line;
    bool admitted;
    uint32_t cached_tokens;
    kvf_sample *prompt_samples; /* unary: logprobs of the prompt so far */
    uint32_t prompt_samples_count;
};

void front_request_unref(front_request *r);
void front_request_end(front_request *r); /* leaves the table and gives its reference back */

/* ---- tell.c: messages to the client; false: it cannot take them (the request is being cancelled) ---- */
bool front_tell_admitted(front_request *r);
/* samples: kvf_sample[count] at any alignment; NULL: one that is empty */
bool front_tell_prompt_logprobs(front_request *r, uint32_t start, const void *samples, uint32_t count);
bool front_tell_news(front_request *r);
void front_tell_finished(
    front_request *r, const kvf_router_usage *usage); /* all that is left, and the end of the call */
#endif
