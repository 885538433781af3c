/* kvf/cuda_backend.h - a kvf_backend on a CUDA device: weights in f16, bf16 or fp8, pages in device memory, activations
 * between products in f16, or in bf16 where weights are, the residual stream in f32.
 *
 * Tokens agree with the CPU's wherever the gap between the two best logits is clear (docs/gpu.md, "Tolerances");
 * bits need not, and a row's bits may depend on the batch (cuBLASLt chooses by shape). */
#ifndef KVF_CUDA_BACKEND_H
#define KVF_CUDA_BACKEND_H
#include "kvf/backend.h"
#include "kvf/cuda_api.h"

typedef struct {
    const kvf_cuda_libraries *libraries; /* NULL: the usual names */
    const char *plugin; /* path; NULL: libkvferry-cuda.so beside the program, then where the loader looks */
    uint32_t device;
    /* For benchmarks: a model without a file. Tensors have types and dims and no data: matrices become noise, vectors
     * ones. Borrowed while the backend lives; options.model_path is then only a name. */
    const kvf_model_spec *shape;
    /* Where weights are fp8: room that those of large products are unpacked into, part by part; 0: 64 MiB. */
    size_t unpacked_bytes;
    double memory_share; /* 0: the pool is as options say; else this share of what is free after the weights */
} kvf_cuda_backend_options;

/* KVF_ERR_UNSUPPORTED: err names what is missing (driver, runtime, GPU, plugin, a kernel for this model's shape). */
kvf_status kvf_backend_open_cuda(
    const kvf_backend_options *options, const kvf_cuda_backend_options *cuda, kvf_backend **out, kvf_error *err);

/* What AUTO comes to for this model; any other is itself. */
kvf_weights kvf_cuda_weights_kept(const kvf_model_spec *spec, kvf_weights wanted);
/* Device memory of the model itself: matrices as kept, vectors and angles of rotation in f32. */
uint64_t kvf_cuda_model_bytes(const kvf_model_spec *spec, kvf_weights kept);

/* For whoever moves its pages: the runtime it uses, and launches on any stream from any thread. Page i of the list lies
 * at slot + i * page_bytes; crc[i] is its checksum; list and sums in pinned memory of the host. A page is whole when
 * its step has told of its layer. */
const kvf_cuda_api *kvf_cuda_backend_api(const kvf_backend *b);
uint32_t kvf_cuda_backend_device(const kvf_backend *b);
void kvf_cuda_backend_pack(const kvf_backend *b, const void *pages, uint32_t count, uint8_t *slot, uint32_t *crc,
    kvf_cuda_stream stream); /* pages: kvf_cuda_page of kvf/cuda_pages.h */
void kvf_cuda_backend_unpack(
    const kvf_backend *b, const void *pages, uint32_t count, uint8_t *slot, uint32_t *crc, kvf_cuda_stream stream);
#endif
