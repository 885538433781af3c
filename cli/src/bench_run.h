/* bench_run.h - one run of a plan against a router: sends each request when its time has come, whatever became of the
 * others, and notes when its tokens arrive. One thread sends, one loop of the RPC module receives; a stream costs
 * memory, not a thread. Ends when every request is over: each has a deadline. */
#ifndef KVF_CLI_BENCH_RUN_H
#define KVF_CLI_BENCH_RUN_H
#include "bench_report.h"
#include "client.h"
#include "kvferry/v1/kvferry.pb-c.h"

typedef struct {
    kvf_client *client;
    const kvf_load_plan *plan;
    uint32_t warmup; /* of the plan's first requests: sent, not counted */
    kvf_load_limits limits;
    double stop_share; /* ends at once when fewer than this share of the counted can be inside; 0: goes on */
    bool unloaded; /* each when the one before is over, whatever the plan's times */
    uint64_t timeout_ms; /* of each request */
    Kvferry__V1__Disaggregate disaggregate;
    const char *model; /* "": the only one */
    uint64_t salt; /* keeps cached prefixes of other runs out */
    const char *progress; /* begins a line on stderr that is written again and again; NULL: none */
} kvf_bench_run_options;

typedef struct {
    kvf_load_tally tally;
    uint64_t errors[KVF_BENCH_CODES];
    char first_error[160];
    bool cut_short, interrupted;
} kvf_bench_run_result;

kvf_status kvf_bench_run(const kvf_bench_run_options *o, kvf_bench_run_result *out);
#endif
