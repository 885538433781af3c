/* devices.h - what a device can do by its maker's data sheet, and the rates that a node on it should reach (roofline).
 * Pure arithmetic: a plan before there is a machine; `kvferry bench engine` on the machine replaces it.
 *
 *   weights + KV pool     = KVF_DEVICE_MEMORY_SHARE of memory
 *   FLOP of a token       = 2 * params + 4 * layers * heads * head_dim * tokens it looks back at
 *   prefill tokens/s      = KVF_DEVICE_COMPUTE_SHARE * FLOP/s / FLOP of a token (it looks back at half of the prompt)
 *   decode step           = max((weights + batch * context * KV per token) / (KVF_DEVICE_BANDWIDTH_SHARE * bandwidth),
 *                               batch * FLOP of a token / (KVF_DEVICE_COMPUTE_SHARE * FLOP/s)),
 *                           context = prompt + output / 2, batch = requests that fit, KVF_DEVICE_BATCH_MAX at most
 *   decode tokens/s       = batch / decode step
 *
 * The shares are what well-tuned engines reach in practice; they are printed with the result. */
#ifndef KVF_CLI_DEVICES_H
#define KVF_CLI_DEVICES_H
#include "kvf/base.h"

#define KVF_DEVICE_MEMORY_SHARE 0.9
#define KVF_DEVICE_COMPUTE_SHARE 0.5
#define KVF_DEVICE_BANDWIDTH_SHARE 0.75
#define KVF_DEVICE_BATCH_MAX 256

typedef struct {
    const char *name, *title;
    double memory_bytes, bytes_per_s; /* as the data sheet counts: powers of ten */
    double flop_per_s; /* 16-bit tensor cores, dense, f32 sums */
} kvf_device;

#define KVF_DEVICE_NAMES "a100|h100|h200|b200|h20|l40s|l4|a10"
const kvf_device *kvf_device_at(uint32_t index); /* in the order of KVF_DEVICE_NAMES; NULL: no more */

typedef struct {
    double params; /* weights that a token is multiplied with: layers and output head */
    double weight_bytes;
    uint32_t layers, heads, head_dim;
    double kv_token_bytes;
    double prompt, output; /* tokens of a typical request */
} kvf_device_load;

typedef struct {
    double kv_bytes; /* left for pages; <= 0: the weights do not fit */
    double prefill_per_s, decode_per_s;
    double batch, step_s; /* decode */
} kvf_device_rates;
void kvf_device_estimate(const kvf_device *device, const kvf_device_load *load, kvf_device_rates *out);
#endif
