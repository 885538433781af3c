#include "devices.h"
#include <math.h>

#define TERA 1e12
#define GIGA 1e9

/* NVIDIA's data sheets: A100 80GB SXM, H100 SXM, H200 SXM, B200 (one of an HGX board), H20, L40S, L4, A10. Figures
 * with sparsity are halved. */
static const kvf_device devices[] = {
    {"a100", "A100 80GB SXM", 80 * GIGA, 2.039 * TERA, 312 * TERA},
    {"h100", "H100 SXM", 80 * GIGA, 3.35 * TERA, 989 * TERA},
    {"h200", "H200 SXM", 141 * GIGA, 4.8 * TERA, 989 * TERA},
    {"b200", "B200", 180 * GIGA, 7.7 * TERA, 2250 * TERA},
    {"h20", "H20", 96 * GIGA, 4.0 * TERA, 148 * TERA},
    {"l40s", "L40S", 48 * GIGA, 0.864 * TERA, 362 * TERA},
    {"l4", "L4", 24 * GIGA, 0.3 * TERA, 121 * TERA},
    {"a10", "A10", 24 * GIGA, 0.6 * TERA, 125 * TERA},
};

const kvf_device *kvf_device_at(uint32_t index) { return index < KVF_COUNT_OF(devices) ? &devices[index] : NULL; }

static double token_flop(const kvf_device_load *l, double looks_back) {
    return 2 * l->params + 4.0 * l->layers * l->heads * l->head_dim * looks_back;
}

void kvf_device_estimate(const kvf_device *d, const kvf_device_load *l, kvf_device_rates *out) {
    *out = (kvf_device_rates){.kv_bytes = d->memory_bytes * KVF_DEVICE_MEMORY_SHARE - l->weight_bytes};
    double flop_per_s = d->flop_per_s * KVF_DEVICE_COMPUTE_SHARE;
    out->prefill_per_s = flop_per_s / token_flop(l, l->prompt / 2);
    out->batch = floor(fmin(out->kv_bytes / (l->kv_token_bytes * (l->prompt + l->output)), KVF_DEVICE_BATCH_MAX));
    if (out->batch < 1) {
        out->batch = 0;
        return;
    }
    double context = l->prompt + l->output / 2;
    double bytes = l->weight_bytes + out->batch * context * l->kv_token_bytes;
    out->step_s =
        fmax(bytes / (d->bytes_per_s * KVF_DEVICE_BANDWIDTH_SHARE), out->batch * token_flop(l, context) / flop_per_s);
    out->decode_per_s = out->batch / out->step_s;
}
