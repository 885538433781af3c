/* Fuzz target: a trace. Whatever it holds: no crash; rows that are in order and in bounds, or an error that begins with
 * file and line; and a plan of any trace that was read fits the context. */
#include "kvf/load_plan.h"
#include <stdlib.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t len_bytes);
int LLVMFuzzerTestOneInput(const uint8_t *data, size_t len_bytes) {
    enum { CONTEXT = 256 };
    kvf_load_trace t;
    kvf_error err = {0};
    if (kvf_load_trace_parse("f", (const char *)data, len_bytes, 1000, &t, &err) != KVF_OK) {
        KVF_ASSERT(err.status == KVF_ERR_FORMAT && strncmp(err.message, "f:", 2) == 0);
        return 0;
    }
    KVF_ASSERT(t.count >= 1 && t.count <= 1000 && t.rows[0].at_ns == 0);
    for (size_t i = 1; i < t.count; i++) KVF_ASSERT(t.rows[i].at_ns >= t.rows[i - 1].at_ns);
    kvf_load_options o = {.vocab = 100, .context = CONTEXT, .trace = &t};
    kvf_load_plan p;
    KVF_ASSERT(kvf_load_plan_make(&o, &p, &err) == KVF_OK);
    for (uint32_t i = 0; i < p.count; i++) {
        uint32_t prompt[CONTEXT];
        KVF_ASSERT(p.requests[i].input >= 1 && p.requests[i].output >= 1 &&
                   p.requests[i].input + p.requests[i].output <= CONTEXT);
        kvf_load_plan_prompt(&p, i, prompt); /* reads the trace's ids: the sanitizer looks */
    }
    kvf_load_plan_fini(&p);
    kvf_load_trace_fini(&t);
    return 0;
}
