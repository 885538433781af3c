/* Golden data of tests/golden, and one sequence driven through an engine. */
#ifndef TEST_GOLDEN_H
#define TEST_GOLDEN_H
#include "kvf/engine.h"
#include <jansson.h>

#define SAMPLE_MODEL KVF_SOURCE_DIR "/models/SmolLM2-135M-Instruct.Q4_1.gguf"
#define GOLDEN KVF_SOURCE_DIR "/tests/golden/"

/* Sanitized kernels are some fifty times slower: long runs of the sample model say nothing new there. */
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
#define SANITIZED 1
#else
#define SANITIZED 0
#endif

uint32_t *golden_ids(const json_t *array, size_t *count); /* malloc'ed */
float *golden_floats(const char *path, size_t *count); /* whole file, malloc'ed */
json_t *golden_lines(const char *path); /* JSON lines as one array */

kvf_model *golden_model(const char *path, kvf_precision precision, const char *kernels);
kvf_engine *golden_engine(const kvf_model *m, kvf_kv_type kv, uint32_t tokens, uint32_t threads);
/* Computes `count` tokens from `position` on, in chunks of at most `chunk`, in blocks 0, 1, 2 ...; logits of the last
 * `wanted` of each chunk go to `logits`, one after another (wanted = chunk: every token's). */
void golden_run(kvf_engine *e, const uint32_t *tokens, uint32_t position, uint32_t count, uint32_t chunk, bool all,
    float *logits, uint32_t vocab);
double golden_logprob(const float *logits, uint32_t vocab, uint32_t token);
uint32_t golden_argmax(const float *logits, uint32_t vocab);
#endif
