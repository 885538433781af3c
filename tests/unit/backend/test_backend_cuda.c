/* The CUDA backend on the fake runtime and the emulator: what every backend must do, and what only a device can get
 * wrong. */
#include "backend_cases.h"
#include "fake_cuda.h"
#include "retype.h"
#include "kvf/cuda_backend.h"
#include <setjmp.h>
#include <stdarg.h>
#include <cmocka.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

static const kvf_cuda_libraries fakes = {KVF_FAKE_CUDA_FOLDER "/libcuda.so.1", KVF_FAKE_CUDA_FOLDER "/libcudart.so.13",
    KVF_FAKE_CUDA_FOLDER "/libnccl.so.2"};
static const char plugin[] = KVF_FAKE_CUDA_FOLDER "/libkvferry-cuda.so";

static kvf_status open_on_fakes(const kvf_backend_options *options, kvf_backend **out, kvf_error *err) {
    return kvf_backend_open_cuda(options, &(kvf_cuda_backend_options){.libraries = &fakes, .plugin = plugin}, out, err);
}
/* f16 activations against f32: logits of these models differ by up to 0.01. */
static const backend_under_test cuda = {.open = open_on_fakes, .clear_gap = 0.05, .logprob_tolerance = 0.02};
/* Keys and values as e4m3 keep four bits. */
static const backend_under_test fp8 = {
    .open = open_on_fakes, .kv_type = KVF_KV_FP8, .clear_gap = 0.3, .logprob_tolerance = 0.25};
/* Weights as e4m3, and those of large products unpacked in many parts. */
static kvf_status open_in_parts(const kvf_backend_options *options, kvf_backend **out, kvf_error *err) {
    return kvf_backend_open_cuda(
        options, &(kvf_cuda_backend_options){.libraries = &fakes, .plugin = plugin, .unpacked_bytes = 3000}, out, err);
}
static const backend_under_test weights8 = {
    .open = open_in_parts, .weights = KVF_WEIGHTS_FP8, .clear_gap = 0.3, .logprob_tolerance = 0.4};
/* bf16 keeps eight bits, of weights and of activations. */
static const backend_under_test bf16 = {
    .open = open_on_fakes, .weights = KVF_WEIGHTS_BF16, .clear_gap = 0.15, .logprob_tolerance = 0.1};
/* What the file has. */
static const backend_under_test as_filed = {.open = open_on_fakes, .clear_gap = 0.15, .logprob_tolerance = 0.1};
static const char *const names[] = {"llama", "llama3-rope", "mistral-wide-head", "qwen2", "qwen3"};

static void golden_tokens(void **state) { backend_gives_golden_tokens(&cuda, names, KVF_COUNT_OF(names)); }
static void golden_tokens_fp8(void **state) { backend_gives_golden_tokens(&fp8, names, 2); }
static void batches_change_nothing(void **state) { backend_batches_change_nothing(&cuda); }
static void scores(void **state) { backend_scores_agree_with_the_cpu(&cuda); }
static void copies(void **state) { backend_copies_a_part_of_a_block(&cuda); }
static void golden_tokens_weights8(void **state) { backend_gives_golden_tokens(&weights8, names, 2); }
static void scores_weights8(void **state) { backend_scores_agree_with_the_cpu(&weights8); }
/* In one step by unpacking, in parts by the kernel that multiplies codes: the same values of weights. */
static void parts_weights8(void **state) { backend_scores_whole_or_in_parts(&weights8, 0.02); }
static void batches_weights8(void **state) { backend_batches_change_nothing(&weights8); }
static void golden_tokens_bf16(void **state) { backend_gives_golden_tokens(&bf16, names, 2); }
static void scores_bf16(void **state) { backend_scores_agree_with_the_cpu(&bf16); }
static void batches_bf16(void **state) { backend_batches_change_nothing(&bf16); }
static void batches_fp8(void **state) { backend_batches_change_nothing(&fp8); }
static void scores_fp8(void **state) { backend_scores_agree_with_the_cpu(&fp8); }
static void copies_fp8(void **state) { backend_copies_a_part_of_a_block(&fp8); }
static void refusals(void **state) { backend_refuses_what_it_cannot(&cuda); }

static const kvf_backend_options small = {.model_path = KVF_SOURCE_DIR "/tests/golden/tiny/llama.gguf",
    .kv_memory_bytes = 1u << 20,
    .threads = 1,
    .tokens_max = 32,
    .sequences_max = 4,
    .logit_rows_max = 4};

static kvf_backend *open_small(void) {
    kvf_backend *b = NULL;
    kvf_error err;
    if (open_on_fakes(&small, &b, &err) != KVF_OK) fail_msg("%s", err.message);
    return b;
}

#define RETYPED "/tmp/kvf-retyped-XXXXXX"

static void opens_as(const char *path, kvf_weights weights, const char *numerics, const char *what) {
    kvf_backend_options o = small;
    kvf_backend *b = NULL;
    kvf_error err;
    o.model_path = path;
    o.weights = weights;
    if (open_on_fakes(&o, &b, &err) != KVF_OK) fail_msg("%s", err.message);
    assert_string_equal(b->numerics, numerics);
    if (!strstr(b->what, what)) fail_msg("\"%s\" does not say \"%s\"", b->what, what);
    kvf_backend_destroy(b);
}

static void does_not_open(const char *path, kvf_weights weights, const char *why) {
    kvf_backend_options o = small;
    kvf_backend *b = NULL;
    kvf_error err;
    o.model_path = path;
    o.weights = weights;
    assert_int_equal(open_on_fakes(&o, &b, &err), KVF_ERR_UNSUPPORTED);
    if (!strstr(err.message, why)) fail_msg("\"%s\" does not say \"%s\"", err.message, why);
}

/* Nodes of different arithmetic have different names for it: they do not pair unasked. */
static void numerics_say_what_weights_are(void **state) {
    char path[] = RETYPED;
    retype_model(small.model_path, path, KVF_DTYPE_BF16, NULL);
    opens_as(path, KVF_WEIGHTS_AUTO, "v1-cuda-bf16-kvf16", "(sm_90), bf16 weights");
    opens_as(path, KVF_WEIGHTS_F16, "v1-cuda-f16-kvf16", "(sm_90), f16 weights");
    opens_as(path, KVF_WEIGHTS_FP8, "v1-cuda-w8-kvf16", "(sm_90), fp8 weights");
    opens_as(small.model_path, KVF_WEIGHTS_AUTO, "v1-cuda-f16-kvf16", "f16 weights");
    opens_as(small.model_path, KVF_WEIGHTS_BF16, "v1-cuda-bf16-kvf16", "bf16 weights");
    unlink(path);
}

static void a_file_in_bf16(void **state) {
    char path[] = RETYPED;
    retype_model(small.model_path, path, KVF_DTYPE_BF16, NULL);
    backend_agrees_with_the_cpu_over(&as_filed, path);
    unlink(path);
}

/* In the row of a token that nobody asks for: f16 does not have it, bf16 does. */
static void values_beyond_f16(void **state) {
    static const char why[] = "tensor token_embd.weight has values beyond the range of f16: engine.weights: bf16";
    char path[] = RETYPED;
    retype_model(small.model_path, path, KVF_DTYPE_BF16, "token_embd.weight");
    does_not_open(path, KVF_WEIGHTS_F16, why);
    does_not_open(path, KVF_WEIGHTS_FP8, why);
    opens_as(path, KVF_WEIGHTS_AUTO, "v1-cuda-bf16-kvf16", "bf16 weights");
    backend_agrees_with_the_cpu_over(&as_filed, path);
    unlink(path);
}

static void a_quantised_file_as_bf16(void **state) {
    char path[] = RETYPED;
    retype_model(small.model_path, path, KVF_DTYPE_Q8_0, NULL);
    opens_as(path, KVF_WEIGHTS_AUTO, "v1-cuda-f16-kvf16", "f16 weights");
    backend_agrees_with_the_cpu_over(&bf16, path);
    unlink(path);
}

/* Figures by hand: llama has 3 layers of 64, 4 heads of 16 over 2, ffn 160, vocabulary 320 twice, context 1024. */
static void bytes_of_the_model(void **state) {
    kvf_backend *b = open_small();
    const kvf_model_spec *s = b->spec;
    assert_true(s->layers == 3 && s->hidden == 64 && s->heads == 4 && s->kv_heads == 2 && s->head_dim == 16 &&
                s->ffn == 160 && s->vocab == 320 && !s->head_tied);
    uint64_t layer = 64 * 64 * 2 + 32 * 64 * 2 + 160 * 64 * 3, outputs = 64 + 32 + 32 + 64 + 160 + 160 + 64;
    uint64_t vectors = (3 * 2 * 64 + 64 + (uint64_t)s->context_max * s->rope_dims) * 4;
    assert_int_equal(kvf_cuda_model_bytes(s, KVF_WEIGHTS_F16), (2 * 320 * 64 + 3 * layer) * 2 + vectors);
    assert_int_equal(kvf_cuda_model_bytes(s, KVF_WEIGHTS_BF16), (2 * 320 * 64 + 3 * layer) * 2 + vectors);
    assert_int_equal(kvf_cuda_model_bytes(s, KVF_WEIGHTS_FP8), 2 * 320 * 64 * 2 + 3 * (layer + 4 * outputs) + vectors);
    kvf_backend_destroy(b);
}

static void says_what_is_missing(const kvf_cuda_backend_options *o, const char *what) {
    kvf_backend *b = NULL;
    kvf_error err;
    kvf_status status = kvf_backend_open_cuda(&small, o, &b, &err);
    assert_true(status == KVF_ERR_UNSUPPORTED || status == KVF_ERR_NOT_FOUND);
    if (!strstr(err.message, what)) fail_msg("\"%s\" does not name \"%s\"", err.message, what);
}

static void what_is_missing_is_named(void **state) {
    const kvf_cuda_libraries no_driver = {.driver = "/nowhere/libcuda.so.1"};
    const kvf_cuda_libraries no_runtime = {.driver = fakes.driver, .runtime = "/nowhere/libcudart.so.13"};
    says_what_is_missing(&(kvf_cuda_backend_options){.libraries = &no_driver, .plugin = plugin}, "no NVIDIA driver");
    says_what_is_missing(&(kvf_cuda_backend_options){.libraries = &no_runtime, .plugin = plugin}, "no CUDA runtime");
    says_what_is_missing(
        &(kvf_cuda_backend_options){.libraries = &fakes, .plugin = "/nowhere/x.so"}, "no device code here: /nowhere");
    says_what_is_missing(&(kvf_cuda_backend_options){.libraries = &fakes, .plugin = fakes.driver}, "not one of ours");
    says_what_is_missing(
        &(kvf_cuda_backend_options){.libraries = &fakes, .plugin = KVF_OTHER_PLUGIN}, "of another version");
    says_what_is_missing(&(kvf_cuda_backend_options){.libraries = &fakes, .plugin = plugin, .device = 7},
        "engine.devices: no GPU 7 here, there are 0 to 0");
    kvf_backend_options f32 = small;
    f32.kv_type = KVF_KV_F32;
    kvf_backend *b = NULL;
    kvf_error err;
    assert_int_equal(open_on_fakes(&f32, &b, &err), KVF_ERR_UNSUPPORTED);
    assert_non_null(strstr(err.message, "engine.kv_type: a GPU keeps"));
    fake_cuda_settings s;
    fake_cuda_get(&s);
    s.capability = 75;
    fake_cuda_set(&s);
    says_what_is_missing(&(kvf_cuda_backend_options){.libraries = &fakes, .plugin = plugin}, "sm_75");
    fake_cuda_reset();
}

/* The text of a failing call names it as the runtime's manual does, or what is known: a kernel fails later. */
static void says_call(const char *text, const char *call) {
    static const char *const products[] = {"cublasLt", "matrix product", "CUBLAS_STATUS"};
    bool named = strstr(text, call) != NULL || (strncmp(call, "cuda", 4) != 0 && strstr(text, "cuda"));
    bool part = strcmp(call, "cudaMemcpyAsync") == 0 || strcmp(call, "cudaStreamSynchronize") == 0;
    named |= part && strstr(text, "cudaMemcpy:"); /* the fake's is made of these */
    for (size_t i = 0; i < KVF_COUNT_OF(products); i++)
        named |= strncmp(call, "cublasLt", 8) == 0 && strstr(text, products[i]);
    if (!named) fail_msg("\"%s\" does not name %s", text, call);
}

/* Steps of 1 to 8 runs need four recordings: those between are filled with rows that nobody asked for. */
static void few_recordings(void **state) {
    enum { RUNS = 8 };
    uint32_t tokens[RUNS], blocks[RUNS];
    kvf_backend_options o = small;
    o.sequences_max = o.logit_rows_max = RUNS;
    kvf_backend *b = NULL;
    kvf_error err;
    if (open_on_fakes(&o, &b, &err) != KVF_OK) fail_msg("%s", err.message);
    kvf_sampling greedy;
    kvf_sampling_defaults(&greedy);
    greedy.temperature = 0;
    kvf_sample first[RUNS], out[RUNS];
    fake_cuda_counts before, after;
    fake_cuda_count(&before);
    for (uint32_t n = RUNS; n > 0; n--) {
        kvf_engine_run runs[RUNS];
        kvf_backend_sample wants[RUNS];
        for (uint32_t i = 0; i < n; i++) {
            tokens[i] = 40 + i;
            blocks[i] = i;
            runs[i] = (kvf_engine_run){.tokens = &tokens[i], .count = 1, .blocks = &blocks[i], .logit_rows = 1};
            wants[i] = (kvf_backend_sample){.row = i,
                .input =
                    {.sampling = &greedy, .vocab = 320, .vocab_used = 320, .tokens = &tokens[i], .tokens_count = 1},
                .out = n == RUNS ? &first[i] : &out[i]};
        }
        kvf_backend_step step = {.runs = runs, .runs_count = n, .samples = wants, .samples_count = n};
        assert_int_equal(b->ops->run_step(b, &step), KVF_OK);
        for (uint32_t i = 0; i < n && n < RUNS; i++) assert_int_equal(out[i].chosen.token, first[i].chosen.token);
    }
    fake_cuda_count(&after);
    assert_int_equal(after.graphs - before.graphs, 4); /* of 1, 2, 4 and 8 */
    kvf_backend_destroy(b);
}

/* A device that cannot do something says so when it is opened, before anybody asks for a token. */
static void kernels_are_tried_at_the_start(void **state) {
    fake_cuda_counts before, after;
    kvf_backend *b = open_small();
    fake_cuda_count(&before);
    kvf_backend_destroy(b);
    b = open_small();
    fake_cuda_count(&after);
    uint64_t kernels = after.kernels - before.kernels, of_weights = 2 + 3 * 7, of_a_step = 3 * 9;
    assert_true(kernels > of_weights + 2 * of_a_step);
    kvf_backend_destroy(b);
    kvf_error err = {.message = ""};
    fake_cuda_fault("kernel", (uint32_t)kernels, FAKE_FAIL, 209); /* the last: no kernel image for this device */
    assert_int_equal(open_on_fakes(&small, &b, &err), KVF_ERR_INTERNAL);
    says_call(err.message, "kernel");
    fake_cuda_reset();
}

/* A context takes half a gigabyte of a device: a node has one on its own only. */
static void other_devices_are_left_alone(void **state) {
    fake_cuda_settings s;
    fake_cuda_counts counts;
    kvf_backend *b = NULL;
    kvf_error err;
    fake_cuda_reset();
    fake_cuda_get(&s);
    s.devices = 3;
    fake_cuda_set(&s);
    kvf_cuda_backend_options second = {.libraries = &fakes, .plugin = plugin, .device = 1};
    if (kvf_backend_open_cuda(&small, &second, &b, &err) != KVF_OK) fail_msg("%s", err.message);
    assert_non_null(strstr(b->what, "cuda:1 Fake 1 (sm_90), f16 weights"));
    fake_cuda_count(&counts);
    assert_int_equal(counts.contexts, 1u << 1);
    kvf_backend_destroy(b);
    fake_cuda_reset();
}

/* Each call to the runtime fails once while a backend is opened, used and closed: a status, a text, nothing held. */
static void every_call_may_fail(void **state) {
    static const char *const calls[] = {"cudaMalloc", "cudaHostAlloc", "cudaMemcpy", "cudaStreamCreateWithPriority",
        "cudaEventCreateWithFlags", "cudaMemcpyAsync", "cudaEventRecord", "cudaEventSynchronize",
        "cudaStreamSynchronize", "cudaStreamBeginCapture", "cudaStreamEndCapture", "cudaGraphInstantiateWithFlags",
        "cudaGraphLaunch", "cudaSetDevice", "kernel", "copy", "cublasLtCreate", "cublasLtMatmulDescCreate",
        "cublasLtMatmulDescSetAttribute", "cublasLtMatrixLayoutCreate", "cublasLtMatmulPreferenceCreate",
        "cublasLtMatmulPreferenceSetAttribute", "cublasLtMatmulAlgoGetHeuristic", "cublasLtMatmul"};
    static const uint32_t tokens[] = {1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15, 16, 17, 18, 19, 20};
    static const uint32_t blocks[] = {1, 2};
    fake_cuda_counts before, after;
    fake_cuda_count(&before);
    for (size_t c = 0; c < 2 * KVF_COUNT_OF(calls); c++) {
        size_t i = c / 2;
        bool failed = true, when_open = c % 2;
        bool operation = strcmp(calls[i], "kernel") == 0 || strcmp(calls[i], "copy") == 0; /* such errors stay */
        int error = operation ? KVF_CUDA_LAUNCH_FAILED : KVF_CUDA_INVALID_VALUE;
        for (uint32_t nth = 1; failed && nth <= 3; nth++) {
            kvf_backend *b = NULL;
            kvf_error err = {.message = ""};
            kvf_sampling greedy;
            kvf_sampling_defaults(&greedy);
            kvf_sample out;
            if (!when_open) fake_cuda_fault(calls[i], nth, FAKE_FAIL, error);
            failed = open_on_fakes(&small, &b, &err) != KVF_OK;
            if (failed) says_call(err.message, calls[i]);
            if (when_open) fake_cuda_fault(calls[i], nth, FAKE_FAIL, error);
            for (uint32_t step = 0; b && !b->broken && step < 2; step++) { /* a prompt, then one token */
                kvf_engine_run r = {.tokens = step ? &tokens[19] : tokens,
                    .count = step ? 1 : 19,
                    .position = step ? 19 : 0,
                    .blocks = blocks,
                    .logit_rows = 1};
                kvf_backend_sample want = {.input = {.sampling = &greedy,
                                               .vocab = 320,
                                               .vocab_used = 320,
                                               .tokens = tokens,
                                               .tokens_count = 20,
                                               .prompt_count = 20},
                    .out = &out};
                kvf_backend_step s = {.runs = &r, .runs_count = 1, .samples = &want, .samples_count = 1};
                kvf_status status = b->ops->run_step(b, &s);
                failed |= status != KVF_OK;
                if (status != KVF_OK) says_call(b->trouble, calls[i]);
                if (status != KVF_OK && !b->broken) assert_int_equal(b->ops->run_step(b, &s), KVF_OK);
            }
            kvf_backend_destroy(b);
            fake_cuda_reset();
            fake_cuda_count(&after);
            if (operation) before = after; /* a broken device takes nothing back; the process ends */
            if (after.allocations != before.allocations || after.host_allocations != before.host_allocations ||
                after.streams != before.streams || after.events != before.events || after.graphs != before.graphs ||
                after.products != before.products)
                fail_msg("%s failing at call %u: something is still held", calls[i], nth);
        }
    }
}

/* Samples of the same row with adjustments, together and one by one; and one that the device has no room for. */
static void adjusted_choices(void **state) {
    enum { CHOICES = 3, MANY = 5000, VOCAB = 320 };
    uint32_t prompt[20], ids[VOCAB], blocks[] = {1, 2}, *many = malloc(MANY * sizeof *many);
    assert_non_null(many);
    for (uint32_t i = 0; i < 20; i++) prompt[i] = i + 1;
    for (uint32_t i = 0; i < VOCAB; i++) ids[i] = i;
    for (uint32_t i = 0; i < MANY; i++) many[i] = i * 7 % 200;
    kvf_backend *b = open_small();
    kvf_sampling s, greedy;
    kvf_sampling_defaults(&s);
    s.seed = 11;
    s.presence_penalty = 0.7f;
    s.repetition_penalty = 1.3f;
    s.min_tokens = 4;
    s.stop_ids[s.stop_ids_count++] = 7;
    s.bias[s.bias_count++] = (kvf_logit_bias){9, 3.0f};
    s.bias[s.bias_count++] = (kvf_logit_bias){9, -1.0f};
    kvf_sample together[CHOICES], alone, host, device;
    kvf_backend_sample want[CHOICES];
    for (uint32_t i = 0; i < CHOICES; i++)
        want[i] = (kvf_backend_sample){.input = {.sampling = &s,
                                           .vocab = VOCAB,
                                           .vocab_used = VOCAB,
                                           .tokens = prompt,
                                           .tokens_count = 20,
                                           .prompt_count = 18,
                                           .choice = i},
            .out = &together[i]};
    kvf_engine_run r = {.tokens = prompt, .count = 20, .blocks = blocks, .logit_rows = 1};
    kvf_backend_step step = {.runs = &r, .runs_count = 1, .samples = want, .samples_count = CHOICES};
    assert_int_equal(b->ops->run_step(b, &step), KVF_OK);
    assert_true(together[0].chosen.token != together[1].chosen.token ||
                together[0].chosen.token != together[2].chosen.token); /* the adjustments leave a choice */
    for (uint32_t i = 0; i < CHOICES; i++) {
        kvf_backend_sample one = want[i];
        one.out = &alone;
        step.samples = &one;
        step.samples_count = 1;
        assert_int_equal(b->ops->run_step(b, &step), KVF_OK);
        assert_int_equal(alone.chosen.token, together[i].chosen.token);
    }
    kvf_sampling_defaults(&greedy);
    greedy.temperature = 0;
    greedy.repetition_penalty = 2.0f;
    kvf_backend_sample one = want[0];
    one.input.sampling = &greedy;
    one.input.tokens = many; /* 5000 entries: more than this backend has room for */
    one.input.tokens_count = one.input.prompt_count = MANY;
    one.out = &host;
    step.samples = &one;
    assert_int_equal(b->ops->run_step(b, &step), KVF_OK);
    one.input.tokens = ids; /* the same 200 tokens, each once */
    one.input.tokens_count = one.input.prompt_count = 200;
    one.out = &device;
    assert_int_equal(b->ops->run_step(b, &step), KVF_OK);
    assert_int_equal(host.chosen.token, device.chosen.token);
    kvf_backend_destroy(b);
    free(many);
}

static void a_broken_device_is_told(void **state) {
    kvf_backend *b = open_small();
    uint32_t token = 1, block = 1;
    kvf_engine_run r = {.tokens = &token, .count = 1, .blocks = &block, .logit_rows = 1};
    kvf_backend_step s = {.runs = &r, .runs_count = 1};
    assert_int_equal(b->ops->run_step(b, &s), KVF_OK);
    fake_cuda_fault("kernel", 1, FAKE_FAIL, KVF_CUDA_ILLEGAL_ADDRESS);
    assert_int_equal(b->ops->run_step(b, &s), KVF_ERR_INTERNAL);
    assert_true(b->broken);
    assert_non_null(strstr(b->trouble, "cudaErrorIllegalAddress"));
    kvf_backend_destroy(b);
    fake_cuda_reset();
}

/* Products are the plugin's own, by gemm.c over a cuBLASLt: what that refuses is said, with the shape. */
static void failing_products_are_named(void **state) {
    fake_cuda_fault("cublasLtGetVersion", 1, FAKE_FAIL, 120304);
    says_what_is_missing(&(kvf_cuda_backend_options){.libraries = &fakes, .plugin = plugin},
        "matrix products: cuBLASLt has version 120304");
    kvf_backend *b = open_small();
    uint32_t token = 1, blocks[] = {0, 1};
    kvf_engine_run r[2]; /* of which there are as many rows as no step had before */
    for (uint32_t i = 0; i < 2; i++)
        r[i] = (kvf_engine_run){.tokens = &token, .count = 1, .blocks = &blocks[i], .logit_rows = 1};
    kvf_backend_step s = {.runs = r, .runs_count = 2};
    fake_cuda_fault("cublasLtMatmulAlgoGetHeuristic", 1, FAKE_FAIL, 15);
    assert_int_equal(b->ops->run_step(b, &s), KVF_ERR_INTERNAL);
    assert_non_null(strstr(b->trouble, "matrix product 2 x 128 x 64: CUBLAS_STATUS_NOT_SUPPORTED"));
    fake_cuda_fault("cublasLtMatmul", 2, FAKE_FAIL, 13);
    assert_int_equal(b->ops->run_step(b, &s), KVF_ERR_INTERNAL);
    assert_non_null(strstr(b->trouble, "CUBLAS_STATUS_EXECUTION_FAILED"));
    assert_false(b->broken);
    assert_int_equal(b->ops->run_step(b, &s), KVF_OK);
    kvf_backend_destroy(b);
    fake_cuda_reset();
}

/* The device breaks, and a product is the first to notice, in numbers of its own. */
static void a_device_that_breaks_in_a_product_is_told(void **state) {
    kvf_backend *b = open_small();
    uint32_t tokens[] = {1, 2}, block = 1; /* a prompt: no capture, which a broken device never gives back */
    kvf_engine_run r = {.tokens = tokens, .count = 2, .blocks = &block, .logit_rows = 1};
    kvf_backend_step s = {.runs = &r, .runs_count = 1};
    fake_cuda_fault("cublasLtMatmul", 3, FAKE_STICKY, KVF_CUDA_ILLEGAL_ADDRESS);
    assert_int_equal(b->ops->run_step(b, &s), KVF_ERR_INTERNAL);
    assert_true(b->broken);
    assert_non_null(strstr(b->trouble, "cudaErrorIllegalAddress")); /* and of what */
    kvf_backend_destroy(b);
    fake_cuda_reset();
}

/* Number formats bring no threads of their own, and the thread sanitizer takes minutes over the emulator. */
#ifdef __SANITIZE_THREAD__
enum { WITH_FORMATS = 0 };
#else
enum { WITH_FORMATS = 1 };
#endif

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(golden_tokens), cmocka_unit_test(batches_change_nothing),
        cmocka_unit_test(scores), cmocka_unit_test(copies), cmocka_unit_test(refusals),
        cmocka_unit_test(what_is_missing_is_named), cmocka_unit_test(few_recordings),
        cmocka_unit_test(kernels_are_tried_at_the_start), cmocka_unit_test(other_devices_are_left_alone),
        cmocka_unit_test(every_call_may_fail), cmocka_unit_test(adjusted_choices),
        cmocka_unit_test(a_broken_device_is_told), cmocka_unit_test(failing_products_are_named),
        cmocka_unit_test(a_device_that_breaks_in_a_product_is_told)};
    const struct CMUnitTest formats[] = {cmocka_unit_test(golden_tokens_fp8), cmocka_unit_test(batches_fp8),
        cmocka_unit_test(scores_fp8), cmocka_unit_test(copies_fp8), cmocka_unit_test(golden_tokens_weights8),
        cmocka_unit_test(scores_weights8), cmocka_unit_test(parts_weights8), cmocka_unit_test(batches_weights8),
        cmocka_unit_test(golden_tokens_bf16), cmocka_unit_test(scores_bf16), cmocka_unit_test(batches_bf16),
        cmocka_unit_test(numerics_say_what_weights_are), cmocka_unit_test(a_file_in_bf16),
        cmocka_unit_test(values_beyond_f16), cmocka_unit_test(a_quantised_file_as_bf16),
        cmocka_unit_test(bytes_of_the_model)};
    int failed = cmocka_run_group_tests(tests, NULL, NULL);
    if (WITH_FORMATS) failed += cmocka_run_group_tests(formats, NULL, NULL);
    return failed;
}
