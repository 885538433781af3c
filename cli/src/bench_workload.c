#include "bench_workload.h"
#include "json.h"
#include <stdlib.h>

void kvf_bench_workload_line(const kvf_load_plan *p, uint32_t i, uint32_t *ids, kvf_buf *out) {
    const kvf_load_request *r = &p->requests[i];
    kvf_load_plan_prompt(p, i, ids);
    kvf_buf_puts(out, "{\"due_s\":");
    kvf_json_double(out, (double)r->at_ns / (double)KVF_NS_PER_S);
    kvf_buf_printf(out, ",\"output\":%u,\"prompt\":[", r->output);
    for (uint32_t at = 0; at < r->input; at++) kvf_buf_printf(out, at ? ",%u" : "%u", ids[at]);
    kvf_buf_puts(out, "]}\n");
}

kvf_status kvf_bench_workload_write(const kvf_load_plan *p, FILE *f) {
    uint32_t longest = 1;
    for (uint32_t i = 0; i < p->count; i++) longest = KVF_MAX(longest, p->requests[i].input);
    uint32_t *ids = malloc((size_t)longest * sizeof *ids);
    if (!ids) return KVF_ERR_NO_MEMORY;
    kvf_status status = KVF_OK;
    for (uint32_t i = 0; i < p->count && status == KVF_OK; i++) {
        kvf_buf line = {0};
        kvf_bench_workload_line(p, i, ids, &line);
        if (fwrite(line.text, 1, line.len_bytes, f) != line.len_bytes) status = KVF_ERR_IO;
        kvf_buf_fini(&line);
    }
    free(ids);
    return status;
}
