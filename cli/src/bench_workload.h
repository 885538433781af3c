/* bench_workload.h - the requests of a plan as JSON lines, so that another server's client replays the same load:
 *   {"due_s":SECONDS SINCE THE START,"output":TOKENS,"prompt":[TOKEN IDS]}
 * Times stretch with the rate: of a plan for one request a second they are divided by whatever rate is wanted. */
#ifndef KVF_CLI_BENCH_WORKLOAD_H
#define KVF_CLI_BENCH_WORKLOAD_H
#include "buf.h"
#include "kvf/load_plan.h"
#include <stdio.h>

/* Of request i, its newline too. ids: room for its prompt. */
void kvf_bench_workload_line(const kvf_load_plan *p, uint32_t i, uint32_t *ids, kvf_buf *out);
/* KVF_ERR_NO_MEMORY, KVF_ERR_IO */
kvf_status kvf_bench_workload_write(const kvf_load_plan *p, FILE *f);
#endif
