/* bench serve: options, files and the search around runs of bench_run.h. */
#include "bench_run.h"
#include "bench_workload.h"
#include "cmd.h"
#include "kvf/load_goodput.h"
#include "kvf/os.h"
#include "kvf/proto.h"
#include "term.h"
#include "units.h"
#include <math.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <time.h>

enum { REQUESTS_DEFAULT = 100, TRACE_BYTES_MAX = 1 << 30 };
static const char *const modes[] = {"auto", "always", "never"};

typedef struct {
    const char *router, *model, *trace, *input, *output, *html, *json_file, *workload;
    kvf_arg_texts slo;
    kvf_client_tls tls;
    uint32_t requests, warmup, context, disaggregate;
    double rate, scale, share, tolerance, rate_min, rate_max;
    uint64_t seed, timeout_ns, duration_ns, ttft_ns, tpot_ns;
    bool find, json, unloaded, poisson;
} options;

static const options defaults = {.router = KVF_CLI_ROUTER,
    .model = "",
    .input = "128",
    .output = "32",
    .timeout_ns = 120 * KVF_NS_PER_S,
    .share = 90,
    .tolerance = 5,
    .rate_min = 0.01,
    .rate_max = 10000};

/* Everything of one invocation. */
typedef struct {
    const kvf_command *command;
    const options *o;
    const kvf_args *args;
    kvf_client *client;
    kvf_load_limits limits;
    kvf_load_options load;
    kvf_load_trace trace;
    char model[128];
    uint64_t salt; /* of this process: a second run finds nothing of the first in the cache */
    kvf_load_plan plan;
    kvf_bench_run_result *result, *best;
    kvf_load_plan best_plan;
    kvf_bench_trial trials[KVF_BENCH_TRIALS_MAX];
    uint32_t trials_count;
    kvf_goodput search;
    bool interrupted;
} bench;

/* ---- options ---- */

static int parse_range(bench *b, const char *option, const char *text, kvf_load_range *out) {
    char *end;
    unsigned long min = strtoul(text, &end, 10), max = min;
    bool digit = text[0] >= '0' && text[0] <= '9';
    if (digit && *end == ':' && end[1] >= '0' && end[1] <= '9') max = strtoul(end + 1, &end, 10);
    if (!digit || *end || min < 1 || max < min || max > KVF_LOAD_TOKENS_MAX)
        return kvf_cmd_usage(
            b->command, "--%s: \"%.40s\" is not N or MIN:MAX tokens, from 1 to %d", option, text, KVF_LOAD_TOKENS_MAX);
    *out = (kvf_load_range){(uint32_t)min, (uint32_t)max};
    return KVF_EXIT_OK;
}

/* "ttft=500ms,tpot=50ms" */
static int parse_slo(bench *b, const char *text) {
    while (*text) {
        char part[64];
        size_t len = strcspn(text, ",");
        kvf_error err = {0};
        snprintf(part, sizeof part, "%.*s", (int)KVF_MIN(len, sizeof part - 1), text);
        text += len + (text[len] == ',');
        bool ttft = strncmp(part, "ttft=", 5) == 0;
        if (!ttft && strncmp(part, "tpot=", 5) != 0)
            return kvf_cmd_usage(b->command, "--slo: \"%s\" is neither ttft=TIME nor tpot=TIME", part);
        if (kvf_units_parse_duration("--slo", part + 5, ttft ? &b->limits.ttft_ns : &b->limits.tpot_ns, &err) != KVF_OK)
            return kvf_cmd_usage(b->command, "%s", err.message);
    }
    return KVF_EXIT_OK;
}

static bool given(const bench *b, const char *name) { return kvf_args_given(b->command, b->args, name); }

static int check_combinations(bench *b) {
    const options *o = b->o;
    bool limits = b->limits.ttft_ns || b->limits.tpot_ns;
    if (o->unloaded && (o->find || given(b, "rate")))
        return kvf_cmd_usage(b->command, "--unloaded has no rate: neither --rate nor --find-goodput goes with it");
    if (!o->trace && !given(b, "rate") && !o->find && !o->unloaded)
        return kvf_cmd_usage(
            b->command, "--rate R (requests per second), --trace FILE, --unloaded or --find-goodput is needed");
    if (given(b, "rate") && !(o->rate > 0)) return kvf_cmd_usage(b->command, "--rate must be above 0");
    if (o->trace && (given(b, "input-tokens") || given(b, "output-tokens")))
        return kvf_cmd_usage(b->command, "lengths come from the trace: --scale changes them, not --input-tokens or "
                                         "--output-tokens");
    if (o->poisson && (!o->trace || (!given(b, "rate") && !o->find)))
        return kvf_cmd_usage(b->command, "--poisson gives a --trace times of its own, at a --rate");
    if (!o->trace && given(b, "scale")) return kvf_cmd_usage(b->command, "--scale is for a --trace");
    if (given(b, "requests") && given(b, "duration"))
        return kvf_cmd_usage(b->command, "either --requests or --duration");
    if (given(b, "duration") && !given(b, "rate") && !o->find)
        return kvf_cmd_usage(b->command, "--duration needs --rate");
    if (o->find && !limits) return kvf_cmd_usage(b->command, "--find-goodput needs a limit: --ttft or --tpot");
    if (o->workload && (o->find || o->json || o->json_file || o->html))
        return kvf_cmd_usage(
            b->command, "--dump-workload sends nothing: there is no result, and nothing to be searched");
    if (o->find && o->rate_min > o->rate_max) return kvf_cmd_usage(b->command, "--min-rate is above --max-rate");
    return KVF_EXIT_OK;
}

static int read_options(bench *b) {
    b->limits = (kvf_load_limits){b->o->ttft_ns, b->o->tpot_ns};
    b->load =
        (kvf_load_options){.seed = b->o->seed, .rate = b->o->rate, .scale = b->o->scale, .poisson = b->o->poisson};
    int status = parse_range(b, "input-tokens", b->o->input, &b->load.input);
    if (status == KVF_EXIT_OK) status = parse_range(b, "output-tokens", b->o->output, &b->load.output);
    for (uint32_t i = 0; i < b->o->slo.count && status == KVF_EXIT_OK; i++) status = parse_slo(b, b->o->slo.text[i]);
    return status == KVF_EXIT_OK ? check_combinations(b) : status;
}

/* ---- files ---- */

static int read_trace(bench *b) {
    if (!b->o->trace) return KVF_EXIT_OK;
    kvf_buf text = {0};
    char part[65536];
    size_t n;
    kvf_error err = {0};
    FILE *f = fopen(b->o->trace, "rb");
    while (f && (n = fread(part, 1, sizeof part, f)) > 0 && text.len_bytes <= TRACE_BYTES_MAX)
        kvf_buf_add(&text, part, n);
    bool readable = f && !ferror(f) && text.len_bytes <= TRACE_BYTES_MAX;
    if (f) fclose(f);
    size_t rows = b->o->requests ? (size_t)b->o->requests + b->o->warmup : 0;
    kvf_status status = KVF_ERR_IO;
    if (readable)
        status = kvf_load_trace_parse(b->o->trace, text.text ? text.text : "", text.len_bytes, rows, &b->trace, &err);
    else
        kvf_fail(&err, KVF_ERR_IO, "%s: cannot be read, or more than 1 GiB", b->o->trace);
    kvf_buf_fini(&text);
    if (status != KVF_OK) return kvf_cmd_failed(&err);
    b->load.trace = &b->trace;
    return KVF_EXIT_OK;
}

static bool write_file(const char *path, const kvf_buf *text) {
    FILE *f = fopen(path, "wb");
    bool ok = f && fwrite(text->text, 1, text->len_bytes, f) == text->len_bytes;
    if (f && fclose(f) != 0) ok = false;
    if (!ok) fprintf(stderr, "kvferry: %s: cannot be written\n", path);
    return ok;
}

/* ---- the cluster ---- */

static int ask_model(bench *b) {
    Kvferry__V1__ListModelsRequest ask = KVFERRY__V1__LIST_MODELS_REQUEST__INIT;
    int status;
    ProtobufCMessage *m =
        kvf_client_call(b->client, &kvferry__v1__inference__descriptor, "ListModels", &ask.base, 30000, &status);
    if (!m) return status;
    const Kvferry__V1__ListModelsResponse *models = (const void *)m;
    status = KVF_EXIT_FAILED;
    for (size_t i = 0; i < models->n_models && status != KVF_EXIT_OK; i++) {
        const Kvferry__V1__ModelInfo *info = models->models[i];
        if (b->o->model[0] && !kvf_proto_text_equal(info->id, b->o->model)) continue;
        kvf_proto_text_copy(info->id, b->model, sizeof b->model);
        b->load.vocab = info->vocab_size;
        b->load.context = b->o->context ? KVF_MIN(b->o->context, info->max_context) : info->max_context;
        status = KVF_EXIT_OK;
    }
    if (status != KVF_EXIT_OK) fprintf(stderr, "kvferry: the router serves no model \"%s\"\n", b->o->model);
    kvf_rpc_message_free(m);
    return status;
}

/* ---- runs ---- */

/* Of one run, warm-up included. */
static uint32_t requests_at(const bench *b, double rate) {
    const options *o = b->o;
    double counted = o->requests ? o->requests : REQUESTS_DEFAULT;
    if (o->duration_ns) counted = ceil(rate * (double)o->duration_ns / (double)KVF_NS_PER_S);
    if (!o->requests && !o->duration_ns && o->trace && !o->find) return 0; /* all rows */
    return (uint32_t)fmin(fmax(counted, 1) + o->warmup, KVF_LOAD_REQUESTS_MAX);
}

static int make_plan(bench *b, double rate) {
    kvf_error err = {0};
    b->load.rate = rate;
    b->load.requests = requests_at(b, rate);
    b->load.salt = b->trials_count;
    if (kvf_load_plan_make(&b->load, &b->plan, &err) != KVF_OK) return kvf_cmd_usage(b->command, "%s", err.message);
    if (b->plan.count > b->o->warmup) return KVF_EXIT_OK;
    return kvf_cmd_usage(
        b->command, "--warmup %u leaves none of the %u requests to be counted", b->o->warmup, b->plan.count);
}

static int run_plan(bench *b, const char *what) {
    kvf_bench_run_options run = {.client = b->client,
        .plan = &b->plan,
        .warmup = b->o->warmup,
        .limits = b->limits,
        .stop_share = b->o->find ? b->o->share / 100 : 0,
        .unloaded = b->o->unloaded,
        .timeout_ms = kvf_div_up(b->o->timeout_ns, KVF_NS_PER_MS),
        .disaggregate =
            (Kvferry__V1__Disaggregate)(KVFERRY__V1__DISAGGREGATE__DISAGGREGATE_AUTO + (int)b->o->disaggregate),
        .model = b->o->model,
        .salt = b->salt + b->trials_count,
        .progress = kvf_term_is(stderr) ? what : NULL};
    if (kvf_bench_run(&run, b->result) == KVF_OK) return KVF_EXIT_OK;
    fputs("kvferry: no memory for this many requests\n", stderr);
    return KVF_EXIT_FAILED;
}

static bool judge_trial(bench *b, double rate) {
    const kvf_load_tally *t = &b->result->tally;
    kvf_bench_trial *trial = &b->trials[b->trials_count++];
    *trial = (kvf_bench_trial){.rate = rate,
        .ttft_p90_ms = kvf_hist_percentile(&t->ttft, 90) / (double)KVF_NS_PER_MS,
        .tpot_p90_ms = kvf_hist_percentile(&t->tpot, 90) / (double)KVF_NS_PER_MS,
        .counted = t->counted,
        .inside = t->inside,
        .failed = t->failed,
        .cut_short = b->result->cut_short};
    trial->passed = !trial->cut_short && (double)t->inside >= b->o->share / 100 * (double)t->counted - 1e-9;
    return trial->passed;
}

/* What is reported in detail: the highest rate that passed, or, where none did, the last. */
static void keep_best(bench *b, bool passed) {
    if (!passed && b->search.passing > 0) {
        kvf_load_plan_fini(&b->plan);
        return;
    }
    kvf_bench_run_result *other = b->best;
    b->best = b->result;
    b->result = other;
    kvf_load_plan_fini(&b->best_plan);
    b->best_plan = b->plan;
    b->plan = (kvf_load_plan){0};
}

static int find_goodput(bench *b) {
    double rate = b->o->rate > 0 ? b->o->rate : b->o->trace ? kvf_load_trace_rate(&b->trace, 0) : 1;
    int status = KVF_EXIT_OK;
    kvf_goodput_begin(&b->search, rate > 0 ? rate : 1, b->o->rate_min, b->o->rate_max, b->o->tolerance / 100);
    while (status == KVF_EXIT_OK && kvf_goodput_next(&b->search, &rate)) {
        char what[64];
        snprintf(what, sizeof what, "trial %u at %.3f/s, ", b->trials_count + 1, rate);
        status = make_plan(b, rate);
        if (status == KVF_EXIT_OK) status = run_plan(b, what);
        if (status != KVF_EXIT_OK) break;
        b->interrupted = b->result->interrupted;
        bool passed = !b->interrupted && judge_trial(b, rate);
        keep_best(b, passed);
        if (b->interrupted)
            status = KVF_EXIT_FAILED;
        else
            kvf_goodput_tell(&b->search, passed);
    }
    if (status == KVF_EXIT_OK && b->search.passing <= 0) status = KVF_EXIT_FAILED;
    return status;
}

static int run_once(bench *b) {
    int status = make_plan(b, b->o->rate);
    if (status == KVF_EXIT_OK) status = run_plan(b, "");
    if (status != KVF_EXIT_OK) return status;
    keep_best(b, true);
    b->interrupted = b->best->interrupted;
    return b->interrupted || b->best->tally.completed == 0 ? KVF_EXIT_FAILED : KVF_EXIT_OK;
}

static int dump_workload(bench *b) {
    int status = make_plan(b, b->o->rate);
    if (status != KVF_EXIT_OK) return status;
    FILE *f = fopen(b->o->workload, "wb");
    kvf_status written = f ? kvf_bench_workload_write(&b->plan, f) : KVF_ERR_IO;
    if (f && fclose(f) != 0) written = KVF_ERR_IO;
    if (written == KVF_OK) return KVF_EXIT_OK;
    fprintf(stderr, "kvferry: %s: %s\n", b->o->workload, kvf_status_text(written));
    return KVF_EXIT_FAILED;
}

/* ---- results ---- */

static void fill_report(const bench *b, kvf_bench_report *r) {
    *r = (kvf_bench_report){.router = b->o->router,
        .model = b->model,
        .workload = b->o->trace ? b->o->trace : "poisson",
        .disaggregate = modes[b->o->disaggregate],
        .plan = &b->best_plan,
        .warmup = b->o->warmup,
        .limits = b->limits,
        .tally = &b->best->tally,
        .interrupted = b->interrupted,
        .searched = b->o->find,
        .goodput = b->search.passing,
        .share = b->o->share / 100,
        .tolerance = b->o->tolerance / 100,
        .failing_rate = b->search.failing,
        .trials = b->trials,
        .trials_count = b->trials_count};
    r->rate = b->best_plan.o.rate;
    if (r->rate <= 0 && b->o->trace) r->rate = kvf_load_trace_rate(&b->trace, b->best_plan.count);
    memcpy(r->errors, b->best->errors, sizeof r->errors);
    memcpy(r->first_error, b->best->first_error, sizeof r->first_error);
    time_t now = (time_t)(kvf_os_wall_ns() / KVF_NS_PER_S);
    struct tm t;
    if (gmtime_r(&now, &t)) strftime(r->date, sizeof r->date, "%Y%m%d-%H%M%S", &t);
}

static int tell(const bench *b, int status) {
    kvf_bench_report report;
    kvf_buf json = {0}, text = {0}, html = {0};
    fill_report(b, &report);
    kvf_bench_report_json(&report, &json);
    kvf_buf_putc(&json, '\n');
    kvf_bench_report_text(&report, &text);
    const kvf_buf *shown = b->o->json ? &json : &text;
    fwrite(shown->text, 1, shown->len_bytes, stdout);
    bool ok = !b->o->json_file || write_file(b->o->json_file, &json);
    if (b->o->html) {
        kvf_bench_report_html(&report, &html);
        if (!write_file(b->o->html, &html)) ok = false;
    }
    kvf_buf_fini(&json);
    kvf_buf_fini(&text);
    kvf_buf_fini(&html);
    return ok ? status : KVF_EXIT_FAILED;
}

static int run_on_cluster(bench *b) {
    int status;
    b->client = kvf_client_open(b->o->router, &b->o->tls, &status);
    if (!b->client) return status;
    b->result = calloc(1, sizeof *b->result);
    b->best = calloc(1, sizeof *b->best);
    b->salt = kvf_os_random_u64();
    status = b->result && b->best ? ask_model(b) : KVF_EXIT_FAILED;
    if (status == KVF_EXIT_OK) status = b->o->workload ? dump_workload(b) : b->o->find ? find_goodput(b) : run_once(b);
    if (b->best_plan.count) status = tell(b, status);
    kvf_load_plan_fini(&b->plan);
    kvf_load_plan_fini(&b->best_plan);
    free(b->result);
    free(b->best);
    kvf_client_close(b->client);
    return status;
}

static int run(const kvf_command *command, const void *opts, const kvf_args *args) {
    bench b = {.command = command, .o = opts, .args = args};
    int status = read_options(&b);
    if (status == KVF_EXIT_OK) status = read_trace(&b);
    if (status == KVF_EXIT_OK) status = run_on_cluster(&b);
    kvf_load_trace_fini(&b.trace);
    return status;
}

#define AT(f) offsetof(options, f)
static const kvf_arg rows[] = {
    {"router", 'r', KVF_ARG_TEXT, "HOST:PORT", "the router's client address (default " KVF_CLI_ROUTER ")", AT(router),
        0, 0, "KVFERRY_ROUTER", false},
    KVF_CLIENT_TLS_ROWS(options, tls),
    {"model", 'm', KVF_ARG_TEXT, "ID", "where the router serves several", AT(model), 0, 0, NULL, false},
    {"rate", 0, KVF_ARG_F64, "R", "requests per second: Poisson, or a trace's times stretched to it", AT(rate), 0, 1e6,
        NULL, false},
    {"trace", 0, KVF_ARG_TEXT, "FILE", "replay FILE: Azure (CSV) or Mooncake (JSON lines)", AT(trace), 0, 0, NULL,
        false},
    {"poisson", 0, KVF_ARG_FLAG, "", "lengths of the trace, but Poisson arrivals at --rate", AT(poisson), 0, 0, NULL,
        false},
    {"requests", 'n', KVF_ARG_U32, "N", "how many are counted (default 100; of a trace: all)", AT(requests), 1,
        KVF_LOAD_REQUESTS_MAX, NULL, false},
    {"duration", 0, KVF_ARG_DURATION, "TIME", "as many as the rate makes in TIME", AT(duration_ns), 0, 0, NULL, false},
    {"warmup", 0, KVF_ARG_U32, "N", "before them N more of the same, not counted (in each trial)", AT(warmup), 0, 1e6,
        NULL, false},
    {"input-tokens", 0, KVF_ARG_TEXT, "N|MIN:MAX", "prompt lengths, drawn evenly (default 128)", AT(input), 0, 0, NULL,
        false},
    {"output-tokens", 0, KVF_ARG_TEXT, "N|MIN:MAX", "output lengths (default 32)", AT(output), 0, 0, NULL, false},
    {"scale", 0, KVF_ARG_F64, "X", "lengths of a trace times X (default: so that the longest fits)", AT(scale), 1e-6,
        1e3, NULL, false},
    {"context", 0, KVF_ARG_U32, "N", "fit lengths into N tokens instead of the model's context", AT(context), 2, 1e9,
        NULL, false},
    {"seed", 's', KVF_ARG_U64, "S", "of times, lengths and tokens (default 0)", AT(seed), 0, 0, NULL, false},
    {"timeout", 0, KVF_ARG_DURATION, "TIME", "a request that takes longer has failed (default 2m)", AT(timeout_ns), 0,
        0, NULL, false},
    {"disaggregate", 0, KVF_ARG_CHOICE, "auto|always|never", "of each request (default auto)", AT(disaggregate), 0, 0,
        NULL, false},
    {"ttft", 0, KVF_ARG_DURATION, "TIME", "limit of the time to the first token", AT(ttft_ns), 0, 0, NULL, false},
    {"tpot", 0, KVF_ARG_DURATION, "TIME", "limit of the time per further token", AT(tpot_ns), 0, 0, NULL, false},
    {"slo", 0, KVF_ARG_TEXTS, "ttft=TIME,tpot=TIME", "both in one", AT(slo), 0, 0, NULL, false},
    {"find-goodput", 0, KVF_ARG_FLAG, "",
        "search the highest rate with enough requests inside the limits;\n"
        "starts at --rate (1, or the trace's own)",
        AT(find), 0, 0, NULL, false},
    {"unloaded", 0, KVF_ARG_FLAG, "",
        "one request at a time, each sent when the one before is over: what a\n"
        "lone request sees",
        AT(unloaded), 0, 0, NULL, false},
    {"share", 0, KVF_ARG_F64, "PERCENT", "how many are enough (default 90)", AT(share), 1, 100, NULL, false},
    {"tolerance", 0, KVF_ARG_F64, "PERCENT",
        "the search ends when the rates that hold and do not are this near "
        "(default 5)",
        AT(tolerance), 0.1, 100, NULL, false},
    {"min-rate", 0, KVF_ARG_F64, "R", "lowest rate to try (default 0.01)", AT(rate_min), 1e-6, 1e6, NULL, false},
    {"max-rate", 0, KVF_ARG_F64, "R", "highest (default 10000)", AT(rate_max), 1e-6, 1e6, NULL, false},
    {"json", 0, KVF_ARG_FLAG, "", "JSON instead of a table", AT(json), 0, 0, NULL, false},
    {"output", 'o', KVF_ARG_TEXT, "FILE", "write the JSON to FILE too", AT(json_file), 0, 0, NULL, false},
    {"html", 0, KVF_ARG_TEXT, "FILE", "write a page with plots, complete in itself", AT(html), 0, 0, NULL, false},
    {"dump-workload", 0, KVF_ARG_TEXT, "FILE",
        "send nothing: write the requests to FILE as JSON lines (due_s, output,\n"
        "prompt), for clients of other servers",
        AT(workload), 0, 0, NULL, false},
};

const kvf_command kvf_cmd_bench_serve = {
    .name = "bench serve",
    .positional = "",
    .summary = "load on a running cluster: latencies, throughput, goodput",
    .about =
        "Open loop: each request is sent when it is due, whatever became of the others, and its latency counts from\n"
        "then. Exit status 1 when nothing completed, no rate held, or it was interrupted; failed requests are in the\n"
        "result.",
    .rows = rows,
    .rows_count = KVF_COUNT_OF(rows),
    .options_bytes = sizeof(options),
    .defaults = &defaults,
    .run = run,
};
