/* Every kind of work once, before anybody asks: a runtime loads a kernel when it is first launched, and may wait for
 * the whole device to do so, which is no good beside a transfer that waits for its peer, nor while a graph is
 * recorded. And what this GPU cannot run is told at the start, not to the first request. */
#include "device_int.h"

enum { PROMPT = 3 };

/* A prompt, then a single token: all kernels of a step, and the sampler. */
static kvf_status run_steps(cuda_backend *b) {
    static const uint32_t tokens[PROMPT] = {0}, block = 0;
    kvf_sampling sampling;
    kvf_sampling_defaults(&sampling);
    sampling.top_k = 2;
    sampling.top_p = 0.5f;
    sampling.want_logprobs = true;
    sampling.top_logprobs = 1;
    sampling.repetition_penalty = 1.1f;
    const uint32_t counts[] = {KVF_MIN((uint32_t)PROMPT, b->options.tokens_max), 1};
    for (size_t i = 0; i < KVF_COUNT_OF(counts); i++) {
        kvf_sample out;
        kvf_engine_run run = {.tokens = tokens, .count = counts[i], .blocks = &block, .logit_rows = 1};
        kvf_backend_sample want = {.input = {.sampling = &sampling,
                                       .vocab = b->spec.vocab,
                                       .vocab_used = b->spec.vocab,
                                       .tokens = tokens,
                                       .tokens_count = counts[i],
                                       .prompt_count = counts[i]},
            .out = &out};
        kvf_backend_step step = {.runs = &run, .runs_count = 1, .samples = &want, .samples_count = 1};
        kvf_status status = cuda_run_step(&b->base, &step);
        if (status != KVF_OK) return status;
    }
    return KVF_OK;
}

/* A page to the spare block and back, as if that were a slot. */
static kvf_status move_page(cuda_backend *b) {
    kvf_cuda_page *page = b->host_inputs; /* pinned, and idle now */
    uint8_t *slot = b->pages + (size_t)b->base.blocks * b->base.page_bytes;
    uint32_t *crc = (uint32_t *)(void *)(page + 1);
    KVF_ASSERT(b->inputs_bytes >= sizeof *page + sizeof *crc);
    *page = (kvf_cuda_page){.block = 0};
    kvf_cuda_backend_pack(&b->base, page, 1, slot, crc, b->stream);
    kvf_cuda_backend_unpack(&b->base, page, 1, slot, crc, b->stream);
    b->base.ops->copy_block(&b->base, 1, 0, 1);
    int error = b->api.last_error();
    if (error) return cuda_failed(b, "a kernel's launch (cudaGetLastError)", error);
    CUDA_TRY(b, stream_synchronize, b->stream);
    return KVF_OK;
}

kvf_status cuda_warm_up(cuda_backend *b, kvf_error *err) {
    b->is_warming_up = true;
    kvf_status status = run_steps(b);
    if (status == KVF_OK) status = move_page(b);
    b->is_warming_up = false;
    return status == KVF_OK ? KVF_OK : kvf_fail(err, status, "%s", b->base.trouble);
}
