/* size: the memory bill. */
#include "cmd.h"
#include "devices.h"
#include "json.h"
#include "kvf/cuda_backend.h"
#include "kvf/model_spec.h"
#include "sizing.h"
#include "units.h"
#include <math.h>
#include <stddef.h>
#include <stdio.h>

enum { DTYPE_F16, DTYPE_BF16, DTYPE_F32, DTYPE_FP8, DTYPE_F8, DTYPE_Q8 };
/* fp8: as nodes keep it, one f16 scale a head and position; f8: bare. q8: 8-bit values, one f16 scale per 32 of them.
 */
static const double element_bytes[] = {
    [DTYPE_F16] = 2, [DTYPE_BF16] = 2, [DTYPE_F32] = 4, [DTYPE_FP8] = 1, [DTYPE_F8] = 1, [DTYPE_Q8] = 34.0 / 32};
static const char *const dtype_names[] = {"f16", "bf16", "f32", "fp8", "f8", "q8"};

typedef struct {
    const char *model;
    uint32_t layers, heads, kv_heads, head_dim, dtype, weights, context, block_tokens, chunk;
    uint32_t device; /* 0: none, else 1 + its index */
    uint64_t memory;
    double link, params, prefill_rate, decode_rate, prompt, output;
    bool json;
} options;

_Static_assert(KVF_WEIGHTS_AUTO == 0 && KVF_WEIGHTS_F16 == 1 && KVF_WEIGHTS_BF16 == 2 && KVF_WEIGHTS_FP8 == 3,
    "options.weights is the index of a choice");

/* Prompt and output: means of the Azure 2023 conversation trace. */
static const options defaults = {.block_tokens = 16, .chunk = 2048, .prompt = 1155, .output = 211};
/* Where neither a rate nor a device is named: an 8B model in bf16 on a current data-centre GPU. */
enum { PREFILL_RATE = 50000, DECODE_RATE = 4000 };

/* What a token is multiplied with: not the embedding table, unless it is the output head too. */
static double count_params(const kvf_gguf *g, const kvf_model_spec *spec) {
    double params = 0;
    for (size_t i = 0; i < kvf_gguf_tensor_count(g); i++) {
        const kvf_gguf_tensor *t = kvf_gguf_tensor_at(g, i);
        if (t == spec->embedding && !spec->head_tied) continue;
        params += (double)(t->dims[0] * t->dims[1] * t->dims[2] * t->dims[3]);
    }
    return params;
}

/* *kept: what a device keeps of the file, which is not the file's own format. */
static kvf_status from_model(const options *o, kvf_sizing_in *in, kvf_device_load *load, kvf_weights *kept, char *name,
    size_t name_bytes, kvf_error *err) {
    kvf_gguf *g;
    kvf_model_spec spec;
    kvf_status status = kvf_gguf_open(o->model, &g, err);
    if (status != KVF_OK) return status;
    status = kvf_model_spec_load(g, &spec, err);
    if (status == KVF_OK) {
        snprintf(name, name_bytes, "%s", spec.name);
        in->layers = spec.layers;
        in->kv_heads = spec.kv_heads;
        in->head_dim = spec.head_dim;
        if (!in->context) in->context = spec.context_max;
        load->heads = spec.heads;
        load->params = count_params(g, &spec);
        *kept = kvf_cuda_weights_kept(&spec, (kvf_weights)o->weights);
        load->weight_bytes = (double)kvf_cuda_model_bytes(&spec, *kept);
        kvf_model_spec_free(&spec);
    }
    kvf_gguf_close(g);
    return status;
}

static void field(kvf_buf *out, const char *name, double v) {
    kvf_buf_printf(out, "%s\"%s\":", out->len_bytes > 1 ? "," : "", name);
    kvf_json_double(out, v);
}

static void print_json(const options *o, const kvf_sizing_in *in, const kvf_sizing_out *out,
    const kvf_device_load *load, kvf_weights kept) {
    kvf_buf b = {0};
    kvf_buf_putc(&b, '{');
    field(&b, "layers", in->layers);
    field(&b, "kv_heads", in->kv_heads);
    field(&b, "head_dim", in->head_dim);
    kvf_buf_puts(&b, ",\"dtype\":");
    kvf_json_text(&b, dtype_names[o->dtype]);
    field(&b, "kv_bytes_per_token", (double)out->token_bytes);
    field(&b, "page_bytes", (double)out->page_bytes);
    field(&b, "block_bytes", (double)out->block_bytes);
    field(&b, "context", in->context);
    field(&b, "kv_bytes_per_conversation", (double)out->conversation_bytes);
    if (o->device) {
        kvf_buf_puts(&b, ",\"weights\":");
        kvf_json_text(&b, kvf_weights_name(kept));
        field(&b, "weight_bytes", load->weight_bytes);
    }
    if (in->memory_bytes) {
        field(&b, "memory_bytes", (double)in->memory_bytes);
        field(&b, "conversations", (double)out->conversations);
        field(&b, "tokens_held", (double)out->tokens_held);
    }
    field(&b, "prefill_tokens_per_s", in->prefill_per_s);
    field(&b, "decode_tokens_per_s", in->decode_per_s);
    field(&b, "link_bytes_per_s_to_hide_hand_off", out->hide_bytes_per_s);
    if (in->link_bytes_per_s > 0) {
        field(&b, "link_bytes_per_s", in->link_bytes_per_s);
        field(&b, "transfer_s", out->transfer_s);
        field(&b, "prefill_s", out->prefill_s);
        field(&b, "exposed_s", out->exposed_s);
        kvf_buf_printf(&b, ",\"hidden\":%s", out->hidden ? "true" : "false");
    }
    field(&b, "prompt_tokens", in->prompt);
    field(&b, "output_tokens", in->output);
    field(&b, "prefill_node_s_per_request", out->prefill_node_s);
    field(&b, "decode_node_s_per_request", out->decode_node_s);
    kvf_buf_printf(&b, ",\"prefill_to_decode\":[%u,%u]}", out->ratio_prefill, out->ratio_decode);
    puts(b.text);
    kvf_buf_fini(&b);
}

static void print_link(const kvf_sizing_in *in, const kvf_sizing_out *out) {
    char a[KVF_UNITS_TEXT], b[KVF_UNITS_TEXT], c[KVF_UNITS_TEXT];
    printf("hand-off hidden by     %s (%.0f Gbit/s) or more, at %s prompt tokens/s of one prefill node\n",
        kvf_units_rate(out->hide_bytes_per_s, a), ceil(out->hide_bytes_per_s * 8 / 1e9),
        kvf_units_count(in->prefill_per_s, b));
    if (in->link_bytes_per_s <= 0) return;
    printf("  over %-16s  a prompt of %s tokens computes %s", kvf_units_rate(in->link_bytes_per_s, a),
        kvf_units_count(in->prompt, b), kvf_units_seconds(out->prefill_s, c));
    printf(", travels %s", kvf_units_seconds(out->transfer_s, a));
    printf(out->hidden ? ": hidden but for the last layer, %s\n" : ": not hidden, adds %s\n",
        kvf_units_seconds(out->exposed_s, b));
}

static void print_bill(const options *o, const kvf_sizing_in *in, const kvf_sizing_out *out, const char *name) {
    char a[KVF_UNITS_TEXT], b[KVF_UNITS_TEXT];
    printf("model                  %s%s%u layers, %u KV heads of %u, KV in %s\n", name, *name ? ": " : "", in->layers,
        in->kv_heads, in->head_dim, dtype_names[o->dtype]);
    printf("KV per token           %s\n", kvf_units_bytes((double)out->token_bytes, a));
    printf("  per page             %s (one layer of a block of %u tokens)\n",
        kvf_units_bytes((double)out->page_bytes, a), in->block_tokens);
    printf("  per conversation     %s (%s tokens)\n", kvf_units_bytes((double)out->conversation_bytes, a),
        kvf_units_count(in->context, b));
    if (in->memory_bytes) {
        printf("in %-18s  %llu conversations of that length", kvf_units_bytes((double)in->memory_bytes, a),
            (unsigned long long)out->conversations);
        printf(", %s tokens in all\n", kvf_units_count((double)out->tokens_held, b));
    }
    print_link(in, out);
    printf(
        "prefill : decode nodes %u : %u (a request holds a prefill node for ", out->ratio_prefill, out->ratio_decode);
    printf("%s, a decode node for %s of its time)\n", kvf_units_seconds(out->prefill_node_s, a),
        kvf_units_seconds(out->decode_node_s, b));
    printf("  assumed              --prefill-rate %.0f --decode-rate %.0f --prompt %.0f --output %.0f\n",
        in->prefill_per_s, in->decode_per_s, in->prompt, in->output);
}

/* Rates and pool that were not said follow from the device's data sheet. */
static kvf_status from_device(
    const options *o, kvf_sizing_in *in, kvf_device_load *load, kvf_weights kept, kvf_error *err) {
    const kvf_device *d = kvf_device_at(o->device - 1);
    if (load->params <= 0)
        return kvf_fail(err, KVF_ERR_INVALID, "--device needs --model FILE, or --params with the shape");
    load->layers = in->layers;
    load->head_dim = in->head_dim;
    load->kv_token_bytes = 2.0 * in->layers * in->kv_heads * (in->head_dim * in->element_bytes + in->scale_bytes);
    load->prompt = in->prompt;
    load->output = in->output;
    kvf_device_rates rates;
    kvf_device_estimate(d, load, &rates);
    char a[KVF_UNITS_TEXT], b[KVF_UNITS_TEXT];
    if (rates.batch < 1)
        return kvf_fail(err, KVF_ERR_NO_ROOM, "%s: weights of %s leave no room for one request in %.0f %% of its %s",
            d->title, kvf_units_bytes(load->weight_bytes, a), KVF_DEVICE_MEMORY_SHARE * 100,
            kvf_units_bytes(d->memory_bytes, b));
    if (!in->memory_bytes) in->memory_bytes = (uint64_t)rates.kv_bytes;
    if (in->prefill_per_s <= 0) in->prefill_per_s = rates.prefill_per_s;
    if (in->decode_per_s <= 0) in->decode_per_s = rates.decode_per_s;
    if (o->json) return KVF_OK;
    printf("device                 %s: %s, %s, %.0f TFLOP/s in 16 bits; %.1f B weights as %s in %s\n", d->title,
        kvf_units_bytes(d->memory_bytes, a), kvf_units_rate(d->bytes_per_s, b), d->flop_per_s / 1e12,
        load->params / 1e9, kvf_weights_name(kept), kvf_units_bytes(load->weight_bytes, (char[KVF_UNITS_TEXT]){0}));
    printf("  assumed reached      %.0f %% of memory, %.0f %% of FLOP/s, %.0f %% of bandwidth; decode batch %.0f, step "
           "%s\n",
        KVF_DEVICE_MEMORY_SHARE * 100, KVF_DEVICE_COMPUTE_SHARE * 100, KVF_DEVICE_BANDWIDTH_SHARE * 100, rates.batch,
        kvf_units_seconds(rates.step_s, a));
    return KVF_OK;
}

static int run(const kvf_command *command, const void *opts, const kvf_args *args) {
    const options *o = opts;
    kvf_sizing_in in = {.layers = o->layers,
        .kv_heads = o->kv_heads,
        .head_dim = o->head_dim,
        .element_bytes = element_bytes[o->dtype],
        .scale_bytes = o->dtype == DTYPE_FP8 ? 2 : 0,
        .block_tokens = o->block_tokens,
        .context = o->context,
        .chunk_tokens = o->chunk,
        .memory_bytes = o->memory,
        .link_bytes_per_s = o->link,
        .prefill_per_s = o->prefill_rate,
        .decode_per_s = o->decode_rate,
        .prompt = o->prompt,
        .output = o->output};
    kvf_weights kept = o->weights ? (kvf_weights)o->weights : KVF_WEIGHTS_BF16;
    kvf_device_load load = {.params = o->params,
        .weight_bytes = (kept == KVF_WEIGHTS_FP8 ? 1 : 2) * o->params,
        .heads = o->heads ? o->heads : o->kv_heads};
    char name[128] = "";
    kvf_error err;
    bool shape = o->layers && o->kv_heads && o->head_dim;
    if (o->model && !shape) {
        if (from_model(o, &in, &load, &kept, name, sizeof name, &err) != KVF_OK) return kvf_cmd_failed(&err);
    } else if (!shape) {
        return kvf_cmd_usage(command, "give --model FILE, or --layers, --kv-heads and --head-dim");
    }
    if (!in.context) in.context = 8192;
    if (o->device && from_device(o, &in, &load, kept, &err) != KVF_OK) return kvf_cmd_failed(&err);
    if (in.prefill_per_s <= 0) in.prefill_per_s = PREFILL_RATE;
    if (in.decode_per_s <= 0) in.decode_per_s = DECODE_RATE;
    kvf_sizing_out out;
    kvf_sizing(&in, &out);
    if (o->json)
        print_json(o, &in, &out, &load, kept);
    else
        print_bill(o, &in, &out, name);
    return KVF_EXIT_OK;
}

#define AT(f) offsetof(options, f)
static const kvf_arg rows[] = {
    {"model", 'm', KVF_ARG_TEXT, "FILE", "take the shape from this model file", AT(model), 0, 0, "KVFERRY_MODEL",
        false},
    {"layers", 0, KVF_ARG_U32, "N", "or say it: layers,", AT(layers), 1, 1000, NULL, false},
    {"kv-heads", 0, KVF_ARG_U32, "N", "heads of K and V,", AT(kv_heads), 1, 100000, NULL, false},
    {"head-dim", 0, KVF_ARG_U32, "N", "values of one head", AT(head_dim), 1, 100000, NULL, false},
    {"heads", 0, KVF_ARG_U32, "N", "heads of Q (default: as of K and V),", AT(heads), 1, 100000, NULL, false},
    {"params", 0, KVF_ARG_F64, "N", "weights like 8e9: for --device", AT(params), 1, 1e14, NULL, false},
    {"device", 0, KVF_ARG_CHOICE, "none|" KVF_DEVICE_NAMES,
        "one GPU a node: rates and room from its data sheet where not said below", AT(device), 0, 0, NULL, false},
    {"weights", 0, KVF_ARG_CHOICE, "auto|f16|bf16|fp8", "what the device keeps matrices in (engine.weights)",
        AT(weights), 0, 0, NULL, false},
    {"dtype", 0, KVF_ARG_CHOICE, "f16|bf16|f32|fp8|f8|q8",
        "what K and V are kept in (default f16; fp8: with a scale a head and position)", AT(dtype), 0, 0, NULL, false},
    {"context", 'c', KVF_ARG_U32, "N", "tokens of one conversation (default: the model's, or 8192)", AT(context), 1,
        1e9, NULL, false},
    {"block-tokens", 0, KVF_ARG_U32, "N", "tokens of one block (default 16)", AT(block_tokens), 1, 4096, NULL, false},
    {"memory", 0, KVF_ARG_SIZE, "SIZE", "KV memory of one node: how many conversations fit", AT(memory), 0, 0, NULL,
        false},
    {"link", 0, KVF_ARG_RATE, "RATE", "between the nodes, like 100Gbit/s: is the hand-off hidden?", AT(link), 0, 0,
        NULL, false},
    {"prefill-rate", 0, KVF_ARG_F64, "N", "prompt tokens per second of one prefill node (default 50000)",
        AT(prefill_rate), 1e-3, 1e12, NULL, false},
    {"decode-rate", 0, KVF_ARG_F64, "N", "tokens per second of one decode node, its whole batch (default 4000)",
        AT(decode_rate), 1e-3, 1e12, NULL, false},
    {"prompt", 0, KVF_ARG_F64, "N", "tokens of a typical prompt (default 1155: Azure conversations)", AT(prompt), 1,
        1e9, NULL, false},
    {"output", 0, KVF_ARG_F64, "N", "tokens of a typical answer (default 211)", AT(output), 1, 1e9, NULL, false},
    {"chunk", 0, KVF_ARG_U32, "N", "prompt tokens computed at a time (default 2048)", AT(chunk), 1, 1e6, NULL, false},
    {"json", 0, KVF_ARG_FLAG, "", "one line of JSON", AT(json), 0, 0, NULL, false},
};
const kvf_command kvf_cmd_size = {
    .name = "size",
    .positional = "",
    .summary = "the memory bill: KV bytes, conversations that fit, link rate, prefill:decode ratio",
    .about = "  KV per token          = 2 x layers x kv-heads x head-dim x bytes of dtype\n"
             "  link hides hand-off   = KV per token x prefill-rate (pages leave as fast as they are made)\n"
             "  prefill : decode      = prompt / prefill-rate : output / decode-rate (node time one request takes on "
             "each side)\n"
             "Measure the rates with: kvferry bench engine --model FILE",
    .rows = rows,
    .rows_count = KVF_COUNT_OF(rows),
    .options_bytes = sizeof(options),
    .defaults = &defaults,
    .run = run,
};
