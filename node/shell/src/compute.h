/* compute.h - the engine thread: takes one step at a time, reports layers and results through a mailbox. */
#ifndef KVF_COMPUTE_H
#define KVF_COMPUTE_H
#include "hooks.h"
#include "kvf/backend.h"
#include "kvf/node.h"
#include "kvf/os.h"

typedef struct compute compute;
typedef struct {
    kvf_backend *backend; /* kept */
    uint32_t vocab_used;
    const uint32_t *end_ids; /* kept */
    uint32_t end_ids_count;
    uint32_t rows_max; /* rows of logits in one step */
    uint32_t samples_max; /* tokens sampled in one step */
    /* Called on the engine thread, must not block: wake the core. */
    void (*wake)(void *self);
    void *self;
    hooks hooks;
} compute_options;

kvf_status compute_create(const compute_options *options, compute **out);
void compute_destroy(compute *c); /* joins; a running step is finished first */

void compute_start(compute *c, const kvf_step *step); /* core thread; one at a time; step's arrays stay until done */
/* Core thread, after wake: layers done so far (0: none yet) of the running step. */
uint32_t compute_layers_done(compute *c);
/* Any thread: how long the running step has neither begun nor finished a layer; 0: no step runs. */
kvf_time_ns compute_stalled_ns(compute *c, kvf_time_ns now);
/* True once per step: the result, valid until the next compute_start. */
bool compute_finished(compute *c, kvf_step_result *result);
#endif
