/* device_engine: tokens per second of the device engine on a model of a given shape, weights made on the device.
 *   device_engine [--shape 8b|tiny] [--prefill N] [--batches 1,16,256] [--context N] [--device N] [--plugin FILE]
 * [--weights f16|bf16|fp8] [--kv-type f16|fp8] [--json FILE] Needs no model file, no gRPC. Exit 77 where there is no
 * device, with the reason. --json: a line for each rate is added to FILE as it is measured, of the form of
 * gpu_check/rows.h. */
#include "kvf/cuda_backend.h"
#include <stdio.h>
#include <stdlib.h>
#include <time.h>

enum { STEPS = 24, BATCHES_MAX = 16 };

typedef struct {
    const char *name;
    uint32_t layers, hidden, heads, kv_heads, head_dim, ffn, vocab;
} shape;
static const shape shapes[] = {{"8b", 32, 4096, 32, 8, 128, 14336, 128256}, {"1b", 16, 2048, 32, 8, 64, 8192, 128256},
    {"tiny", 2, 64, 4, 2, 16, 160, 320}};

typedef struct {
    const shape *shape;
    uint32_t prefill, context, batches[BATCHES_MAX], batches_count, device;
    const char *plugin, *json;
    kvf_weights weights;
    bool fp8_kv;
} settings;

typedef struct {
    kvf_backend *b;
    uint32_t *tokens, *blocks;
    uint32_t blocks_a_sequence;
    kvf_engine_run *runs;
    kvf_backend_sample *wants;
    kvf_sample *out;
    kvf_sampling greedy;
} bench;

static kvf_gguf_tensor tensors[16];
static kvf_model_layer layers[64];
static kvf_model_spec model;

static kvf_gguf_tensor *tensor(uint32_t inputs, uint32_t outputs) {
    static uint32_t count;
    kvf_gguf_tensor *t = &tensors[count++];
    t->type = KVF_DTYPE_F16;
    t->dims[0] = inputs;
    t->dims[1] = outputs;
    return t;
}

static kvf_model_spec *make_spec(const shape *s, uint32_t context) {
    kvf_model_spec *m = &model;
    m->layer = layers;
    m->arch = KVF_ARCH_LLAMA;
    m->layers = s->layers, m->hidden = s->hidden, m->heads = s->heads, m->kv_heads = s->kv_heads;
    m->head_dim = m->rope_dims = s->head_dim, m->ffn = s->ffn, m->vocab = s->vocab, m->context_max = context;
    m->rms_eps = 1e-5f, m->rope_base = 500000, m->rope_scale = 1;
    m->embedding = tensor(s->hidden, s->vocab);
    m->output = tensor(s->hidden, s->vocab);
    m->output_norm = tensor(s->hidden, 1);
    kvf_model_layer l = {.attn_norm = tensor(s->hidden, 1),
        .ffn_norm = tensor(s->hidden, 1),
        .attn_q = tensor(s->hidden, s->heads * s->head_dim),
        .attn_k = tensor(s->hidden, s->kv_heads * s->head_dim),
        .attn_v = tensor(s->hidden, s->kv_heads * s->head_dim),
        .attn_output = tensor(s->heads * s->head_dim, s->hidden),
        .ffn_gate = tensor(s->hidden, s->ffn),
        .ffn_up = tensor(s->hidden, s->ffn),
        .ffn_down = tensor(s->ffn, s->hidden)};
    for (uint32_t i = 0; i < s->layers; i++) m->layer[i] = l;
    return m;
}

static kvf_time_ns now_ns(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (kvf_time_ns)t.tv_sec * KVF_NS_PER_S + (kvf_time_ns)t.tv_nsec;
}

static void run(bench *n, uint32_t count, uint32_t samples) {
    for (uint32_t i = 0; i < samples; i++)
        n->wants[i] = (kvf_backend_sample){.row = i,
            .input = {.sampling = &n->greedy, .vocab = n->b->spec->vocab, .vocab_used = n->b->spec->vocab},
            .out = &n->out[i]};
    kvf_status status = n->b->ops->run_step(
        n->b, &(kvf_backend_step){.runs = n->runs, .runs_count = count, .samples = n->wants, .samples_count = samples});
    if (status == KVF_OK) return;
    fprintf(stderr, "a step failed: %s: %s\n", kvf_status_text(status), n->b->trouble);
    exit(1);
}

static double prefill(bench *n, uint32_t count) {
    double best = 0;
    for (int i = 0; i < 4; i++) { /* the first warms up */
        n->runs[0] = (kvf_engine_run){.tokens = n->tokens, .count = count, .blocks = n->blocks, .logit_rows = 1};
        kvf_time_ns begin = now_ns();
        run(n, 1, 1);
        double rate = count / ((double)(now_ns() - begin) * 1e-9);
        if (i > 0 && rate > best) best = rate;
    }
    return best;
}

static double decode(bench *n, uint32_t batch, uint32_t context) {
    kvf_time_ns best = KVF_TIME_NEVER;
    for (int step = 0; step < STEPS; step++) {
        for (uint32_t i = 0; i < batch; i++)
            n->runs[i] = (kvf_engine_run){.tokens = n->tokens + i,
                .count = 1,
                .position = context - 1,
                .blocks = n->blocks + (size_t)i * n->blocks_a_sequence,
                .logit_rows = 1};
        kvf_time_ns begin = now_ns();
        run(n, batch, batch);
        kvf_time_ns took = now_ns() - begin;
        if (step > 3 && took < best) best = took;
    }
    return batch / ((double)best * 1e-9);
}

static void tell(const settings *s, const char *what, double rate) {
    FILE *json = s->json ? fopen(s->json, "a") : NULL;
    printf("%s: %.1f tokens/s\n", what, rate);
    fflush(stdout);
    if (!json) return;
    fprintf(json, "{\"name\":\"engine, %s, %s weights, %s KV, %s\",\"value\":%.6g,\"unit\":\"tokens/s\"}\n",
        s->shape->name, kvf_weights_name(s->weights), s->fp8_kv ? "fp8" : "f16", what, rate);
    fclose(json);
}

/* fp8 or f16, and nothing else. */
static bool parse_type(const char *value, bool *fp8) {
    *fp8 = strcmp(value, "fp8") == 0;
    return *fp8 || strcmp(value, "f16") == 0;
}

static bool parse(int argc, char **argv, settings *s) {
    *s = (settings){
        .shape = &shapes[0], .prefill = 4096, .context = 1024, .batches = {1, 4, 16, 64, 128, 256}, .batches_count = 6};
    for (int i = 1; i + 1 < argc; i += 2) {
        const char *key = argv[i], *value = argv[i + 1];
        if (strcmp(key, "--shape") == 0) {
            s->shape = NULL;
            for (size_t j = 0; j < KVF_COUNT_OF(shapes); j++)
                if (strcmp(shapes[j].name, value) == 0) s->shape = &shapes[j];
            if (!s->shape) return false;
        } else if (strcmp(key, "--prefill") == 0) {
            s->prefill = (uint32_t)strtoul(value, NULL, 10);
        } else if (strcmp(key, "--context") == 0) {
            s->context = (uint32_t)strtoul(value, NULL, 10);
        } else if (strcmp(key, "--device") == 0) {
            s->device = (uint32_t)strtoul(value, NULL, 10);
        } else if (strcmp(key, "--plugin") == 0) {
            s->plugin = value;
        } else if (strcmp(key, "--weights") == 0) {
            if (!kvf_weights_find(value, &s->weights)) return false;
        } else if (strcmp(key, "--kv-type") == 0) {
            if (!parse_type(value, &s->fp8_kv)) return false;
        } else if (strcmp(key, "--json") == 0) {
            s->json = value;
        } else if (strcmp(key, "--batches") == 0) {
            s->batches_count = 0;
            for (char *at = (char *)value; *at && s->batches_count < BATCHES_MAX; at += *at == ',')
                s->batches[s->batches_count++] = (uint32_t)strtoul(at, &at, 10);
        } else {
            return false;
        }
    }
    for (uint32_t i = 0; i < s->batches_count; i++)
        if (s->batches[i] == 0) return false;
    return argc % 2 == 1 && s->prefill && s->context && s->batches_count;
}

static void allocate(bench *n, const settings *s, uint32_t batch_max) {
    n->blocks_a_sequence = (uint32_t)kvf_div_up(s->context, KVF_BLOCK_TOKENS);
    uint32_t longest = KVF_MAX(s->prefill, batch_max),
             prompt_blocks = (uint32_t)kvf_div_up(s->prefill, KVF_BLOCK_TOKENS);
    uint32_t blocks = KVF_MAX(prompt_blocks, batch_max * n->blocks_a_sequence);
    n->tokens = calloc(longest, sizeof *n->tokens);
    n->blocks = calloc(blocks, sizeof *n->blocks);
    n->runs = calloc(batch_max, sizeof *n->runs);
    n->wants = calloc(batch_max, sizeof *n->wants);
    n->out = calloc(batch_max, sizeof *n->out);
    if (!n->tokens || !n->blocks || !n->runs || !n->wants || !n->out) exit(1);
    for (uint32_t i = 0; i < longest; i++) n->tokens[i] = (i * 7919u + 13) % s->shape->vocab;
    for (uint32_t i = 0; i < blocks; i++) n->blocks[i] = (i * 31 + 7) % blocks; /* shuffled, as in a pool of use */
    for (uint32_t i = 0; i < blocks; i++) n->blocks[i] = n->blocks[i] % n->b->blocks;
}

int main(int argc, char **argv) {
    settings s;
    if (!parse(argc, argv, &s)) {
        fprintf(stderr,
            "usage: device_engine [--shape 8b|1b|tiny] [--prefill N] [--batches 1,16] [--context N] [--device N] "
            "[--plugin FILE] [--json FILE] [--weights f16|bf16|fp8] [--kv-type f16|fp8]\n");
        return 2;
    }
    uint32_t batch_max = 1;
    for (uint32_t i = 0; i < s.batches_count; i++) batch_max = KVF_MAX(batch_max, s.batches[i]);
    uint64_t blocks = KVF_MAX(kvf_div_up(s.prefill, 16), (uint64_t)batch_max * kvf_div_up(s.context, 16)) + 1;
    kvf_backend_options o = {.model_path = s.shape->name,
        .kv_memory_bytes = blocks * 2 * s.shape->kv_heads * s.shape->head_dim * 16 * 2 * s.shape->layers,
        .weights = s.weights,
        .kv_type = s.fp8_kv ? KVF_KV_FP8 : KVF_KV_F16,
        .tokens_max = KVF_MAX(s.prefill, batch_max),
        .sequences_max = batch_max,
        .logit_rows_max = batch_max};
    kvf_cuda_backend_options cuda = {.plugin = s.plugin,
        .device = s.device,
        .shape = make_spec(s.shape, (uint32_t)kvf_align_up(KVF_MAX(s.prefill, s.context), 256))};
    bench n = {0};
    kvf_error err;
    kvf_status status = kvf_backend_open_cuda(&o, &cuda, &n.b, &err);
    if (status != KVF_OK) {
        fprintf(stderr, "%s: %s\n", status == KVF_ERR_UNSUPPORTED ? "skipped" : "failed", err.message);
        return status == KVF_ERR_UNSUPPORTED ? 77 : 1;
    }
    kvf_sampling_defaults(&n.greedy);
    n.greedy.temperature = 0;
    allocate(&n, &s, batch_max);
    printf("%s, shape %s\n", n.b->what, s.shape->name);
    char name[96];
    snprintf(name, sizeof name, "prefill of %u", s.prefill);
    tell(&s, name, prefill(&n, s.prefill));
    for (uint32_t i = 0; i < s.batches_count; i++) {
        snprintf(name, sizeof name, "decode of %u at context %u", s.batches[i], s.context);
        tell(&s, name, decode(&n, s.batches[i], s.context));
    }
    kvf_backend_destroy(n.b);
    free(n.tokens);
    free(n.blocks);
    free(n.runs);
    free(n.wants);
    free(n.out);
    return 0;
}
