/* gemm_int.h - the functions of cuBLASLt that gemm.c calls, so that tests can put others in their place. */
#ifndef KVF_CUDA_GEMM_INT_H
#define KVF_CUDA_GEMM_INT_H
#include "kvf/cuda_gemm.h"
#include <cublasLt.h>
#if CUBLAS_VER_MAJOR < 12
#error "gemm.c: descriptions of products have other signatures before cuBLASLt 12"
#endif

#define KVF_CUBLASLT_FUNCTIONS(X)                                                                                      \
    X(cublasLtGetVersion)                                                                                              \
    X(cublasLtCreate)                                                                                                  \
    X(cublasLtDestroy)                                                                                                 \
    X(cublasLtMatmulDescCreate)                                                                                        \
    X(cublasLtMatmulDescDestroy)                                                                                       \
    X(cublasLtMatmulDescSetAttribute)                                                                                  \
    X(cublasLtMatrixLayoutCreate)                                                                                      \
    X(cublasLtMatrixLayoutDestroy)                                                                                     \
    X(cublasLtMatmulPreferenceCreate)                                                                                  \
    X(cublasLtMatmulPreferenceDestroy)                                                                                 \
    X(cublasLtMatmulPreferenceSetAttribute)                                                                            \
    X(cublasLtMatmulAlgoGetHeuristic)                                                                                  \
    X(cublasLtMatmul)

#define KVF_CUBLASLT_FIELD(name) __typeof__(name) *name;
typedef struct {
    KVF_CUBLASLT_FUNCTIONS(KVF_CUBLASLT_FIELD)
} kvf_cublaslt;

/* As kvf_cuda_gemm_create, over these functions. */
int kvf_cuda_gemm_create_on(kvf_cuda_gemm **out, const kvf_cublaslt *lt, void *workspace, size_t workspace_bytes,
    char *why, size_t why_room_bytes);
/* How often an algorithm was asked for. */
uint64_t kvf_cuda_gemm_searches(const kvf_cuda_gemm *g);
#endif
