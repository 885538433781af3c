/* kvf/engine_bench.h - what `kvferry bench engine` and `kvferry perplexity` do, after their flags are parsed: load a
 * model, measure, print. Blocking; one thread calls. */
#ifndef KVF_ENGINE_BENCH_H
#define KVF_ENGINE_BENCH_H
#include "kvf/engine.h"
#include <stdio.h>

#define KVF_BENCH_LIST_MAX 32
typedef struct {
    uint32_t count; /* 0: the default */
    uint32_t value[KVF_BENCH_LIST_MAX];
} kvf_bench_list;
/* "1,4,16": numbers from 1 to value_max. KVF_ERR_INVALID: err names the list and what is wrong. */
kvf_status kvf_bench_list_parse(
    const char *name, const char *text, uint32_t value_max, kvf_bench_list *out, kvf_error *err);

typedef struct {
    const char *model;
    kvf_model_options load; /* threads 0: all cores */
    kvf_kv_type kv_type;
    kvf_bench_list threads; /* default: the cores this process may use */
    kvf_bench_list prefill; /* prompt lengths; default 512 */
    kvf_bench_list batch; /* decoding sequences; default 1, 4, 16 */
    kvf_bench_list context; /* tokens before them; default 256 */
    uint32_t repetitions; /* best of; default 5 */
    bool no_prefill, no_decode;
    bool json;
} kvf_bench_engine_options;
/* Each figure is the best of the repetitions after a warm-up. A prompt goes through in chunks of 512, one row of logits
 * at the end; a decode step computes one token and its logits for each sequence, each with pages of its own. */
kvf_status kvf_bench_engine(const kvf_bench_engine_options *options, FILE *out, kvf_error *err);

typedef struct {
    const char *model, *file;
    kvf_model_options load;
    kvf_kv_type kv_type;
    uint32_t threads; /* 0: all cores */
    uint32_t tokens; /* of the text; 0: all */
    uint32_t context; /* window; 0: the model's, at most 2048. Windows do not overlap, each starts afresh */
    bool json;
} kvf_perplexity_options;
typedef struct {
    uint64_t tokens, scored; /* scored: all but the first of each window */
    double mean_nll, perplexity, seconds;
} kvf_perplexity_result;
/* result may be NULL. */
kvf_status kvf_perplexity(
    const kvf_perplexity_options *options, FILE *out, kvf_perplexity_result *result, kvf_error *err);
#endif
