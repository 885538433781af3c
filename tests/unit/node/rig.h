/* A prefill node and a decode node as cores, joined by a lossless wire, with an engine that is a function of the
 * tokens. The test plays the router: it sends kvf_rmsg and finds what came back in a log. Time stands still unless the
 * test moves it. */
#ifndef KVF_TEST_RIG_H
#define KVF_TEST_RIG_H
#include "kvf/node.h"

#define RIG_NODES 2
#define RIG_P 0
#define RIG_D 1
#define RIG_LOG_MAX 4096
#define RIG_VOCAB 1000

typedef struct {
    uint32_t node;
    kvf_n_kind kind;
    kvf_request_id request;
    uint32_t attempt;
    /* the parts that tests ask about */
    uint64_t grant;
    uint8_t secret[16];
    uint32_t missing[600], missing_count;
    uint32_t cached_tokens;
    kvf_status reason;
    kvf_time_ns retry_after_ns; /* REFUSED */
    char field[32], text[KVF_TEXT_MAX];
    bool retryable;
    uint32_t position, token, index;
    kvf_end end;
    bool repeated, clean, at_rest;
    uint32_t pages;
    uint32_t next_position, already_attempt;
    uint64_t number;
    uint32_t count; /* PROMPT_LOGPROBS from `position` on; they have been compared with the positions */
    kvf_prefilling_item items[16]; /* PREFILLING */
    uint32_t items_count;
} rig_entry;

typedef struct {
    kvf_node *node[RIG_NODES];
    void *memory[RIG_NODES];
    kvf_node_config config[RIG_NODES];
    bool step_pending[RIG_NODES];
    kvf_step step[RIG_NODES];
    bool hold_steps; /* steps wait for rig_run_step */
    bool hold_pages; /* pages are lost on the wire while set */
    uint32_t corrupt_pages; /* so many more arrive damaged */
    bool auto_ack;
    bool no_calls; /* calls fail, with vain_reason or PEER_LOST */
    kvf_status vain_reason;
    uint32_t calls_in_vain;
    kvf_time_ns now;
    rig_entry log[RIG_LOG_MAX];
    uint32_t log_count;
    uint32_t steps, copies, connects, links;
    uint64_t computed_tokens[RIG_NODES];
} rig;

void rig_init(rig *r, uint32_t blocks_p, uint32_t blocks_d); /* a hand-off ends with its link */
void rig_init_with(rig *r, uint32_t blocks_p, uint32_t blocks_d, kvf_time_ns relink_ttl_ns);
void rig_fini(rig *r);
void rig_hello(rig *r);
void rig_send(rig *r, uint32_t node, const kvf_rmsg *m); /* and pump */
void rig_pump(rig *r);
void rig_run_step(rig *r, uint32_t node); /* the held one */
void rig_advance(rig *r, kvf_time_ns by);
/* Work over `tokens`; the caller changes fields. */
kvf_work rig_work(uint64_t counter, const uint32_t *tokens, uint32_t count, uint32_t output_max);
void rig_reserve(rig *r, const kvf_work *w);
/* Reserve at D, and when granted Prefill at P. */
void rig_ship(rig *r, const kvf_work *w);
void rig_prefill(rig *r, const kvf_work *w, const rig_entry *granted);
void rig_cancel(rig *r, uint32_t node, kvf_request_id id, uint32_t attempt);
rig_entry *rig_last(rig *r, uint32_t node, kvf_n_kind kind); /* NULL: none */
uint32_t rig_count(const rig *r, uint32_t node, kvf_n_kind kind);
/* Tokens of a choice in order of position, first mention only. Returns the count; *end of the last. */
uint32_t rig_output(const rig *r, kvf_request_id id, uint32_t index, uint32_t *out, kvf_end *end);
/* Asserts that the choice made `length` tokens, those of an undisturbed engine. */
void rig_expect_output(
    rig *r, kvf_request_id id, uint32_t choice, const uint32_t *tokens, uint32_t count, uint32_t length);
uint32_t rig_next_token(const uint32_t *tokens, uint32_t count, uint32_t choice);
void rig_check_audit(rig *r);
void rig_check_at_rest(rig *r);
#endif
