/* Development driver: the two library commands without the rest of the program.
 *   engine_dev bench MODEL [threads prefill batch context [exact]]      lists as "1,2"
 *   engine_dev perplexity MODEL FILE [tokens [exact]]
 * KVFERRY_CPU names the kernels, KVFERRY_CACHE a folder of packed weights. */
#include "kvf/engine_bench.h"
#include <stdlib.h>

static int finish(kvf_status status, const kvf_error *err) {
    if (status == KVF_OK) return 0;
    fprintf(stderr, "%s\n", err->message);
    return status == KVF_ERR_INVALID ? 64 : 1;
}

static int bench(int argc, char **argv, kvf_precision precision) {
    kvf_error err = {0};
    kvf_bench_engine_options o = {.model = argv[2],
        .load = {.precision = precision, .kernels = getenv("KVFERRY_CPU"), .cache_folder = getenv("KVFERRY_CACHE")}};
    kvf_bench_list *lists[] = {&o.threads, &o.prefill, &o.batch, &o.context};
    static const char *const names[] = {"threads", "prefill", "batch", "context"};
    for (int i = 0; i < 4 && i + 3 < argc; i++) {
        kvf_status status = kvf_bench_list_parse(names[i], argv[i + 3], 1 << 20, lists[i], &err);
        if (status != KVF_OK) return finish(status, &err);
    }
    return finish(kvf_bench_engine(&o, stdout, &err), &err);
}

int main(int argc, char **argv) {
    if (argc < 3) return 64;
    kvf_error err = {0};
    bool exact = strcmp(argv[argc - 1], "exact") == 0;
    kvf_precision precision = exact ? KVF_PRECISION_EXACT : KVF_PRECISION_FAST;
    if (strcmp(argv[1], "bench") == 0) return bench(exact ? argc - 1 : argc, argv, precision);
    if (argc < 4) return 64;
    kvf_perplexity_options o = {.model = argv[2],
        .file = argv[3],
        .load = {.precision = precision, .kernels = getenv("KVFERRY_CPU")},
        .kv_type = exact ? KVF_KV_F32 : KVF_KV_F16,
        .tokens = argc > 4 ? (uint32_t)atoi(argv[4]) : 0};
    return finish(kvf_perplexity(&o, stdout, NULL, &err), &err);
}
