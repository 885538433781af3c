/* Names of what weights are kept in: those of engine.weights. */
#include "kvf/backend.h"

static const char *const names[] = {
    [KVF_WEIGHTS_AUTO] = "auto", [KVF_WEIGHTS_F16] = "f16", [KVF_WEIGHTS_BF16] = "bf16", [KVF_WEIGHTS_FP8] = "fp8"};

const char *kvf_weights_name(kvf_weights weights) {
    KVF_ASSERT((size_t)weights < KVF_COUNT_OF(names));
    return names[weights];
}

bool kvf_weights_find(const char *name, kvf_weights *out) {
    for (size_t i = 0; i < KVF_COUNT_OF(names); i++) {
        if (strcmp(name, names[i]) != 0) continue;
        *out = (kvf_weights)i;
        return true;
    }
    return false;
}
