/* fault.h - why a call is refused, as its client will read it: code, reason for programs, field, one sentence for
 * people. */
#ifndef FAULT_H
#define FAULT_H
#include "kvf/router.h"
#include "kvf/rpc.h"

typedef struct {
    kvf_rpc_code code;
    char reason[40]; /* ErrorInfo: "PROMPT_TOO_LONG" */
    char field[64]; /* BadRequest; empty: none */
    char text[400];
    uint64_t retry_after_ms; /* RetryInfo; 0: waiting does not help */
} fault;

/* Always returns false, so that a check can end with `return front_fault_set(...)`. field may be NULL. Text from users
 * is cut to what fits and is never trusted to be UTF-8. */
bool front_fault_set(fault *f, kvf_rpc_code code, const char *reason, const char *field, const char *fmt, ...)
    KVF_PRINTF(5, 6);
/* What the core says of a request: its refusals and failures. */
void front_fault_of_refusal(fault *f, const kvf_refusal *why);
/* This router is shutting down; another may serve. */
void front_fault_draining(fault *f, uint64_t retry_after_ms);
void front_fault_send(kvf_rpc_call *call, const fault *f);
#endif
