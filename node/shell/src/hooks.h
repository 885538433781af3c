/* hooks.h - what tests may do to a node process that cannot be done from outside: see hooks.c. */
#ifndef KVF_HOOKS_H
#define KVF_HOOKS_H
#include "kvf/base.h"

typedef struct {
    bool poisoned;
    uint32_t poison; /* token id */
    uint64_t step_ms; /* before each engine step: slept so long */
    char hang_core[108], hang_engine[108]; /* files; "": none */
} hooks;

void hooks_read(hooks *out); /* from KVFERRY_TEST_HOOKS; a line of the log says when there are any */
void hooks_hang(const char *file); /* returns when there is no such file */
bool hooks_poisonous(const hooks *h, const uint32_t *tokens, uint32_t count);
#endif
