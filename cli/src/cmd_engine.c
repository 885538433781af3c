/* perplexity, bench engine: the engine's own yardsticks. */
#include "cmd.h"
#include "kvf/engine_bench.h"
#include <stddef.h>
#include <stdio.h>

enum { LIST_MAX = 1 << 20 };

typedef struct {
    const char *model, *file, *kernels, *threads, *prefill, *batch, *context_list;
    uint32_t precision, kv_type, threads_one, tokens, context, repetitions;
    bool json, no_prefill, no_decode;
} options;

static const kvf_kv_type kv_types[] = {KVF_KV_F16, KVF_KV_F32, KVF_KV_Q8}; /* of --kv-type */

static kvf_model_options load_options(const options *o) {
    return (kvf_model_options){.precision = o->precision ? KVF_PRECISION_EXACT : KVF_PRECISION_FAST,
        .kernels = o->kernels,
        .threads = o->threads_one};
}

static int failed(const kvf_command *command, kvf_status status, const kvf_error *err) {
    return status == KVF_ERR_INVALID ? kvf_cmd_usage(command, "%s", err->message) : kvf_cmd_failed(err);
}

static int run_perplexity(const kvf_command *command, const void *opts, const kvf_args *args) {
    const options *o = opts;
    if (!o->model) return kvf_cmd_usage(command, "--model FILE is needed");
    if (!o->file) return kvf_cmd_usage(command, "--file TEXT is needed");
    kvf_perplexity_options p = {.model = o->model,
        .file = o->file,
        .load = load_options(o),
        .kv_type = kv_types[o->kv_type],
        .threads = o->threads_one,
        .tokens = o->tokens,
        .context = o->context,
        .json = o->json};
    kvf_error err = {0};
    kvf_status status = kvf_perplexity(&p, stdout, NULL, &err);
    return status == KVF_OK ? KVF_EXIT_OK : failed(command, status, &err);
}

static int run_bench_engine(const kvf_command *command, const void *opts, const kvf_args *args) {
    const options *o = opts;
    if (!o->model) return kvf_cmd_usage(command, "--model FILE is needed");
    kvf_bench_engine_options b = {.model = o->model,
        .load = load_options(o),
        .kv_type = kv_types[o->kv_type],
        .repetitions = o->repetitions,
        .no_prefill = o->no_prefill,
        .no_decode = o->no_decode,
        .json = o->json};
    kvf_error err = {0};
    const struct {
        const char *name, *text;
        uint32_t max;
        kvf_bench_list *list;
    } lists[] = {{"--threads", o->threads, 64, &b.threads}, {"--prefill", o->prefill, LIST_MAX, &b.prefill},
        {"--batch", o->batch, 4096, &b.batch}, {"--context", o->context_list, LIST_MAX, &b.context}};
    for (size_t i = 0; i < KVF_COUNT_OF(lists); i++) {
        if (!lists[i].text) continue;
        kvf_status status = kvf_bench_list_parse(lists[i].name, lists[i].text, lists[i].max, lists[i].list, &err);
        if (status != KVF_OK) return failed(command, status, &err);
    }
    kvf_status status = kvf_bench_engine(&b, stdout, &err);
    return status == KVF_OK ? KVF_EXIT_OK : failed(command, status, &err);
}

#define AT(f) offsetof(options, f)
#define MODEL_ROWS                                                                                                     \
    {"model", 'm', KVF_ARG_TEXT, "FILE", "the model file (GGUF)", AT(model), 0, 0, "KVFERRY_MODEL", false},            \
        {"kernels", 0, KVF_ARG_TEXT, "NAME", "ref, avx2, ... (default: the best of this CPU)", AT(kernels), 0, 0,      \
            "KVFERRY_CPU", false},                                                                                     \
        {"precision", 0, KVF_ARG_CHOICE, "fast|exact", "8-bit or f32 activations (default fast)", AT(precision), 0, 0, \
            NULL, false},                                                                                              \
        {"kv-type", 0, KVF_ARG_CHOICE, "f16|f32|q8", "what K and V are kept in (default f16)", AT(kv_type), 0, 0,      \
            NULL, false},                                                                                              \
    {                                                                                                                  \
        "json", 0, KVF_ARG_FLAG, "", "JSON", AT(json), 0, 0, NULL, false                                               \
    }

static const kvf_arg perplexity_rows[] = {
    MODEL_ROWS,
    {"file", 'f', KVF_ARG_TEXT, "FILE", "the text", AT(file), 0, 0, NULL, false},
    {"tokens", 'n', KVF_ARG_U32, "N", "of the text's beginning (default: all)", AT(tokens), 0, 0, NULL, false},
    {"context", 'c', KVF_ARG_U32, "N", "tokens of one window (default: the model's, at most 2048)", AT(context), 0, 0,
        NULL, false},
    {"threads", 0, KVF_ARG_U32, "N", "default: the cores this process may use", AT(threads_one), 1, 64,
        "KVFERRY_THREADS", false},
};
const kvf_command kvf_cmd_perplexity = {
    .name = "perplexity",
    .positional = "",
    .summary = "mean negative log-likelihood and perplexity of a text",
    .rows = perplexity_rows,
    .rows_count = KVF_COUNT_OF(perplexity_rows),
    .options_bytes = sizeof(options),
    .run = run_perplexity,
};

static const kvf_arg bench_rows[] = {
    MODEL_ROWS,
    {"threads", 0, KVF_ARG_TEXT, "LIST", "default: the cores this process may use", AT(threads), 0, 0, NULL, false},
    {"prefill", 0, KVF_ARG_TEXT, "LIST", "prompt lengths (default 512)", AT(prefill), 0, 0, NULL, false},
    {"batch", 0, KVF_ARG_TEXT, "LIST", "sequences decoded together (default 1,4,16)", AT(batch), 0, 0, NULL, false},
    {"context", 0, KVF_ARG_TEXT, "LIST", "tokens before them (default 256)", AT(context_list), 0, 0, NULL, false},
    {"repetitions", 0, KVF_ARG_U32, "N", "best of N (default 3)", AT(repetitions), 1, 1000, NULL, false},
    {"no-prefill", 0, KVF_ARG_FLAG, "", "decode only", AT(no_prefill), 0, 0, NULL, false},
    {"no-decode", 0, KVF_ARG_FLAG, "", "prefill only", AT(no_decode), 0, 0, NULL, false},
};
const kvf_command kvf_cmd_bench_engine = {
    .name = "bench engine",
    .positional = "",
    .summary = "prefill and decode tokens per second of one engine",
    .rows = bench_rows,
    .rows_count = KVF_COUNT_OF(bench_rows),
    .options_bytes = sizeof(options),
    .run = run_bench_engine,
};
