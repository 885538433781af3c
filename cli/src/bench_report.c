/* JSON and the table of `bench serve`. */
#include "bench_report.h"
#include "json.h"
#include "kvf/rpc.h"
#include "table.h"
#include <stdio.h>

#define NS_PER_MS ((double)KVF_NS_PER_MS)

typedef struct {
    const char *key, *title;
    const kvf_hist *hist;
} metric;

static void metrics_of(const kvf_load_tally *t, metric out[4]) {
    out[0] = (metric){"ttft", "TTFT", &t->ttft};
    out[1] = (metric){"tpot", "TPOT", &t->tpot};
    out[2] = (metric){"itl", "ITL", &t->itl};
    out[3] = (metric){"e2el", "E2E", &t->e2e};
}

static double per_s(const kvf_load_tally *t, uint64_t count) {
    return t->duration_s > 0 ? (double)count / t->duration_s : 0;
}

/* ---- JSON ---- */

static void key(kvf_buf *out, const char *name) { kvf_buf_printf(out, ",\"%s\":", name); }
static void add_number(kvf_buf *out, const char *name, double value) {
    key(out, name);
    kvf_json_double(out, value);
}
static void add_count(kvf_buf *out, const char *name, uint64_t value) {
    key(out, name);
    kvf_buf_printf(out, "%llu", (unsigned long long)value);
}
static void add_text(kvf_buf *out, const char *name, const char *value) {
    key(out, name);
    kvf_json_text(out, value);
}
static void add_bool(kvf_buf *out, const char *name, bool value) {
    key(out, name);
    kvf_buf_puts(out, value ? "true" : "false");
}
/* null where `known` is false */
static void add_known(kvf_buf *out, const char *name, bool known, double value) {
    if (known) {
        add_number(out, name, value);
        return;
    }
    key(out, name);
    kvf_buf_puts(out, "null");
}

static void add_metric(kvf_buf *out, const metric *m) {
    static const struct {
        const char *name;
        double percent;
    } percents[] = {{"median", 50}, {"p50", 50}, {"p90", 90}, {"p95", 95}, {"p99", 99}, {"p99.9", 99.9}};
    kvf_buf_printf(out, ",\"mean_%s_ms\":", m->key);
    kvf_json_double(out, kvf_hist_mean(m->hist) / NS_PER_MS);
    kvf_buf_printf(out, ",\"std_%s_ms\":", m->key);
    kvf_json_double(out, kvf_hist_deviation(m->hist) / NS_PER_MS);
    for (size_t i = 0; i < KVF_COUNT_OF(percents); i++) {
        kvf_buf_printf(out, ",\"%s_%s_ms\":", percents[i].name, m->key);
        kvf_json_double(out, kvf_hist_percentile(m->hist, percents[i].percent) / NS_PER_MS);
    }
    kvf_buf_printf(out, ",\"min_%s_ms\":", m->key);
    kvf_json_double(out, (double)m->hist->min / NS_PER_MS);
    kvf_buf_printf(out, ",\"max_%s_ms\":", m->key);
    kvf_json_double(out, (double)m->hist->max / NS_PER_MS);
}

static void add_errors(kvf_buf *out, const kvf_bench_report *r) {
    const char *comma = "";
    kvf_buf_puts(out, ",\"errors\":{");
    for (int code = 0; code < KVF_BENCH_CODES; code++) {
        if (r->errors[code] == 0) continue;
        kvf_buf_printf(out, "%s\"%s\":%llu", comma, code ? kvf_rpc_code_name((kvf_rpc_code)code) : "NO_TOKEN",
            (unsigned long long)r->errors[code]);
        comma = ",";
    }
    kvf_buf_putc(out, '}');
    if (r->first_error[0]) add_text(out, "first_error", r->first_error);
}

static void add_search(kvf_buf *out, const kvf_bench_report *r) {
    kvf_buf_puts(out, ",\"goodput\":{\"rate\":");
    kvf_json_double(out, r->goodput);
    add_number(out, "share", r->share);
    add_number(out, "tolerance", r->tolerance);
    add_known(out, "failing_rate", r->failing_rate > 0, r->failing_rate);
    kvf_buf_puts(out, ",\"trials\":[");
    for (uint32_t i = 0; i < r->trials_count; i++) {
        const kvf_bench_trial *t = &r->trials[i];
        kvf_buf_puts(out, i ? ",{\"rate\":" : "{\"rate\":");
        kvf_json_double(out, t->rate);
        add_bool(out, "passed", t->passed);
        add_bool(out, "cut_short", t->cut_short);
        add_count(out, "counted", t->counted);
        add_count(out, "inside", t->inside);
        add_count(out, "failed", t->failed);
        add_number(out, "p90_ttft_ms", t->ttft_p90_ms);
        add_number(out, "p90_tpot_ms", t->tpot_p90_ms);
        kvf_buf_putc(out, '}');
    }
    kvf_buf_puts(out, "]}");
}

static void add_settings(kvf_buf *out, const kvf_bench_report *r) {
    const kvf_load_plan *p = r->plan;
    kvf_buf_puts(out, "{\"date\":");
    kvf_json_text(out, r->date);
    add_text(out, "backend", "kvferry");
    add_text(out, "endpoint_type", "grpc");
    add_text(out, "label", r->workload);
    add_text(out, "model_id", r->model);
    add_text(out, "tokenizer_id", r->model);
    add_text(out, "router", r->router);
    add_text(out, "disaggregate", r->disaggregate);
    add_count(out, "num_prompts", p->count - r->warmup);
    add_known(out, "request_rate", r->rate > 0, r->rate);
    if (!p->o.trace) add_number(out, "burstiness", 1);
    add_known(out, "max_concurrency", false, 0);
    add_count(out, "seed", p->o.seed);
    add_count(out, "warmup", r->warmup);
    add_number(out, "length_scale", p->scale);
    add_count(out, "prefix_block_tokens", p->block_tokens);
    add_count(out, "cut_to_context", p->cut);
    add_known(out, "ttft_limit_ms", r->limits.ttft_ns > 0, (double)r->limits.ttft_ns / NS_PER_MS);
    add_known(out, "tpot_limit_ms", r->limits.tpot_ns > 0, (double)r->limits.tpot_ns / NS_PER_MS);
    add_bool(out, "interrupted", r->interrupted);
}

static void add_series(kvf_buf *out, const kvf_series *s) {
    kvf_buf_puts(out, ",\"output_tokens_over_time\":{\"slot_s\":");
    kvf_json_double(out, (double)s->slot_ns / (double)KVF_NS_PER_S);
    kvf_buf_puts(out, ",\"tokens\":[");
    for (uint32_t i = 0; i < s->used; i++) kvf_buf_printf(out, i ? ",%.0f" : "%.0f", s->slots[i]);
    kvf_buf_puts(out, "]}");
}

void kvf_bench_report_json(const kvf_bench_report *r, kvf_buf *out) {
    const kvf_load_tally *t = r->tally;
    metric metrics[4];
    metrics_of(t, metrics);
    add_settings(out, r);
    add_number(out, "duration", t->duration_s);
    add_count(out, "completed", t->completed);
    add_count(out, "failed", t->failed);
    add_count(out, "total_input_tokens", t->input_tokens);
    add_count(out, "total_output_tokens", t->output_tokens);
    add_count(out, "total_cached_tokens", t->cached_tokens);
    add_number(out, "request_throughput", per_s(t, t->completed));
    add_known(out, "request_goodput", r->limits.ttft_ns || r->limits.tpot_ns, per_s(t, t->inside));
    add_number(out, "output_throughput", per_s(t, t->output_tokens));
    add_number(out, "total_token_throughput", per_s(t, t->input_tokens + t->output_tokens));
    add_count(out, "max_concurrent_requests", t->peak_running);
    for (size_t i = 0; i < KVF_COUNT_OF(metrics); i++) add_metric(out, &metrics[i]);
    add_number(out, "p99_send_delay_ms", kvf_hist_percentile(&t->late, 99) / NS_PER_MS);
    add_errors(out, r);
    add_series(out, &t->tokens);
    if (r->searched) add_search(out, r);
    kvf_buf_putc(out, '}');
}

/* ---- for people ---- */

static void text_metrics(const kvf_bench_report *r, kvf_buf *out) {
    static const char *const heads[] = {"ms", ">mean", ">p50", ">p90", ">p95", ">p99", ">p99.9", ">max", NULL};
    static const double percents[] = {50, 90, 95, 99, 99.9};
    metric metrics[4];
    kvf_table table;
    metrics_of(r->tally, metrics);
    kvf_table_init(&table, heads);
    for (size_t i = 0; i < KVF_COUNT_OF(metrics); i++) {
        char cells[8][24];
        const char *row[8] = {metrics[i].title};
        const kvf_hist *h = metrics[i].hist;
        for (size_t k = 1; k < KVF_COUNT_OF(row); k++) {
            double ns = k == 1 ? kvf_hist_mean(h) : k == 7 ? (double)h->max : kvf_hist_percentile(h, percents[k - 2]);
            snprintf(cells[k], sizeof cells[k], h->count ? "%.2f" : "-", ns / NS_PER_MS);
            row[k] = cells[k];
        }
        kvf_table_row(&table, row);
    }
    kvf_table_write(&table, out);
    kvf_table_fini(&table);
}

static void text_search(const kvf_bench_report *r, kvf_buf *out) {
    for (uint32_t i = 0; i < r->trials_count; i++) {
        const kvf_bench_trial *t = &r->trials[i];
        kvf_buf_printf(out, "trial %2u: %8.3f requests/s, %llu of %llu inside%s: %s\n", i + 1, t->rate,
            (unsigned long long)t->inside, (unsigned long long)t->counted, t->cut_short ? " when cut short" : "",
            t->passed ? "holds" : "does not hold");
    }
    if (r->goodput <= 0)
        kvf_buf_puts(out, "goodput: none of the rates tried holds\n");
    else if (r->failing_rate > 0)
        kvf_buf_printf(out, "goodput: %.3f requests/s with %.0f %% inside the limits (%.3f does not hold)\n",
            r->goodput, r->share * 100, r->failing_rate);
    else
        kvf_buf_printf(out, "goodput: at least %.3f requests/s, the highest rate tried\n", r->goodput);
}

void kvf_bench_report_text(const kvf_bench_report *r, kvf_buf *out) {
    const kvf_load_tally *t = r->tally;
    if (r->searched) text_search(r, out);
    kvf_buf_printf(out, "%s on %s, %u requests", r->workload, r->model, r->plan->count - r->warmup);
    if (r->rate > 0) kvf_buf_printf(out, " at %.3f/s", r->rate);
    kvf_buf_printf(out, ": %llu completed, %llu failed in %.2f s\n", (unsigned long long)t->completed,
        (unsigned long long)t->failed, t->duration_s);
    if (r->plan->o.trace)
        kvf_buf_printf(out, "lengths x %.4f%s, %u cut to the context\n", r->plan->scale,
            r->plan->block_tokens ? " (whole prefix blocks)" : "", r->plan->cut);
    kvf_buf_printf(out,
        "%.3f requests/s, %.1f tokens/s out, %.1f tokens/s in and out; %llu prompt tokens of %llu cached\n",
        per_s(t, t->completed), per_s(t, t->output_tokens), per_s(t, t->input_tokens + t->output_tokens),
        (unsigned long long)t->cached_tokens, (unsigned long long)t->input_tokens);
    if (r->limits.ttft_ns || r->limits.tpot_ns)
        kvf_buf_printf(out, "%llu of %llu inside the limits, %.3f requests/s\n", (unsigned long long)t->inside,
            (unsigned long long)t->counted, per_s(t, t->inside));
    text_metrics(r, out);
    for (int code = 0; code < KVF_BENCH_CODES; code++)
        if (r->errors[code])
            kvf_buf_printf(out, "failed with %s: %llu\n", code ? kvf_rpc_code_name((kvf_rpc_code)code) : "no token",
                (unsigned long long)r->errors[code]);
    if (r->first_error[0]) kvf_buf_printf(out, "the first: %s\n", r->first_error);
}
