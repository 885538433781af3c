/* gpu.h - what transports.c and pair.c share: the libraries, the plugin's page kernels and a pool of pages on one
 * device, and the words of the two processes. */
#ifndef KVF_GPU_CHECK_GPU_H
#define KVF_GPU_CHECK_GPU_H
#include "kvf/cuda_api.h"
#include "kvf/cuda_plugin.h"
#include "kvf/lanes.h"

typedef struct {
    uint32_t layers, blocks, page_bytes, slot_pages, slots, rounds;
} gpu_sizes;
typedef struct {
    gpu_sizes sizes;
    kvf_cuda_api cuda;
    kvf_nccl_api nccl;
    char nccl_why[256]; /* "": NCCL is here */
    const kvf_cuda_plugin_table *kernels;
    kvf_page_device device;
    uint8_t *pool;
    uint64_t pool_bytes;
} gpu;

/* KVF_ERR_UNSUPPORTED: there is no GPU, or no library, with the reason. plugin: its path. */
kvf_status gpu_open(gpu *g, const gpu_sizes *sizes, uint32_t device, const char *plugin, kvf_error *err);
void gpu_close(gpu *g);
uint32_t gpu_pages(const gpu *g);
kvf_page_at gpu_page(const gpu *g, uint32_t i); /* the pages in the order in which they are shipped */
/* Memory of the device with a pattern of its own for each page, and how many pages of `memory` differ from it. */
int gpu_fill(gpu *g, void *memory, uint64_t seed);
int gpu_compare(gpu *g, const void *memory, uint64_t seed, uint64_t *differ);
double gpu_now_s(void);

/* ---- two processes ---- */
typedef enum {
    SAY_HANDLE,
    SAY_READY,
    SAY_BATCH,
    SAY_POSTED,
    SAY_FREE,
    SAY_CHECK,
    SAY_CHECKED,
    SAY_FAILED,
    SAY_END
} say;
enum { SLOT_PAGES_MAX = 256, PATIENCE_S = 20 };
typedef struct {
    uint32_t kind, slot, first, count, len_bytes;
    uint64_t number;
    uint8_t bytes[128];
    uint32_t crc[SLOT_PAGES_MAX];
    char text[256];
} gpu_word;
bool gpu_say(int fd, const gpu_word *word);
/* Within PATIENCE_S. false: nobody spoke, or SAY_FAILED came; then the text says why. */
bool gpu_hear(int fd, say kind, gpu_word *out);

/* pair.c: hand-offs of the whole pool over a lane. land: the receiver unpacks; else only the sender works (cuda_ipc).
 */
typedef struct gpu_pair gpu_pair;
gpu_pair *gpu_pair_open(gpu *g, kvf_lane_kind kind, bool sends, int fd, char why[256]);
/* Seconds, or below 0 with the reason. */
double gpu_pair_send(gpu_pair *p, bool land, char why[256]);
/* Answers the sender until SAY_END or SAY_CHECK, which it leaves in *last. */
bool gpu_pair_serve(gpu_pair *p, gpu_word *last, char why[256]);
void gpu_pair_close(gpu_pair *p);
#endif
