/* fake_test.h - the fake libraries opened as the product opens the real ones. */
#ifndef KVF_FAKE_TEST_H
#define KVF_FAKE_TEST_H
#include "fake_cuda.h"
#include <stdio.h>
#include <stdlib.h>
#ifdef __cplusplus
extern "C" {
#endif

static const kvf_cuda_libraries fake_libraries = {KVF_FAKE_CUDA_FOLDER "/libcuda.so.1",
    KVF_FAKE_CUDA_FOLDER "/libcudart.so.13", KVF_FAKE_CUDA_FOLDER "/libnccl.so.2"};

static inline void fake_open(kvf_cuda_api *cuda, kvf_nccl_api *nccl) {
    kvf_error err;
    if (kvf_cuda_load(&fake_libraries, cuda, &err) != KVF_OK ||
        (nccl && kvf_nccl_load(&fake_libraries, nccl, &err) != KVF_OK)) {
        fprintf(stderr, "%s\n", err.message);
        exit(1);
    }
}
#ifdef __cplusplus
}
#endif
#endif
