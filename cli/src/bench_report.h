/* bench_report.h - what `bench serve` says about a run: JSON with the names that vLLM's benchmark of a server uses (and
 * more), a table for people, a page of HTML with plots that needs nothing but itself. Pure. */
#ifndef KVF_CLI_BENCH_REPORT_H
#define KVF_CLI_BENCH_REPORT_H
#include "buf.h"
#include "kvf/load_plan.h"
#include "kvf/load_tally.h"

enum { KVF_BENCH_TRIALS_MAX = 64, KVF_BENCH_CODES = 17 };

typedef struct {
    double rate, ttft_p90_ms, tpot_p90_ms;
    uint64_t counted, inside, failed;
    bool passed, cut_short; /* cut short: ended when it could not pass any more */
} kvf_bench_trial;

typedef struct {
    const char *router, *model, *workload; /* workload: "poisson" or the trace's file */
    const char *disaggregate;
    char date[32]; /* "20261130-031500" */
    const kvf_load_plan *plan;
    double rate; /* requests per second as planned; 0: all at once */
    uint32_t warmup;
    kvf_load_limits limits;
    const kvf_load_tally *tally;
    uint64_t errors[KVF_BENCH_CODES]; /* by gRPC code; index 0: ended well without a token */
    char first_error[160];
    bool interrupted;
    /* of a search: */
    bool searched;
    double goodput, share, tolerance,
        failing_rate; /* goodput 0: not even the lowest rate; failing_rate 0: none failed */
    const kvf_bench_trial *trials;
    uint32_t trials_count;
} kvf_bench_report;

void kvf_bench_report_json(const kvf_bench_report *r, kvf_buf *out); /* one object, no newline */
void kvf_bench_report_text(const kvf_bench_report *r, kvf_buf *out);
void kvf_bench_report_html(const kvf_bench_report *r, kvf_buf *out);
#endif
