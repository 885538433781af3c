/* kvf/cuda_api.h against the toolkit's and NCCL's own headers: signatures, sizes, numbers. All at compile time; built
 * where those headers are. */
#include "kvf/cuda_api.h"
#include <cuda_runtime_api.h>
#include <stdio.h>
#if __has_include(<nccl.h>)
#include <nccl.h>
#define WITH_NCCL 1
#endif

#define SAME(a, b) _Static_assert((long long)(a) == (long long)(b), #a)
/* Their function is what ours was written after; ints stand for their enums, pointers for their handles. */
#define IS(function, ...)                                                                                              \
    _Static_assert(__builtin_types_compatible_p(__typeof__(&function), cudaError_t(*) __VA_ARGS__), #function)

IS(cudaRuntimeGetVersion, (int *));
IS(cudaDriverGetVersion, (int *));
IS(cudaGetDeviceCount, (int *));
IS(cudaSetDevice, (int));
IS(cudaGetDevice, (int *));
IS(cudaDeviceGetAttribute, (int *, enum cudaDeviceAttr, int));
IS(cudaDeviceGetPCIBusId, (char *, int, int));
IS(cudaDeviceSynchronize, (void));
IS(cudaDeviceCanAccessPeer, (int *, int, int));
IS(cudaMemGetInfo, (size_t *, size_t *));
IS(cudaGetLastError, (void));
IS(cudaPeekAtLastError, (void));
IS(cudaMalloc, (void **, size_t));
IS(cudaFree, (void *));
IS(cudaHostAlloc, (void **, size_t, unsigned));
IS(cudaFreeHost, (void *));
IS(cudaHostRegister, (void *, size_t, unsigned));
IS(cudaHostUnregister, (void *));
IS(cudaMemcpy, (void *, const void *, size_t, enum cudaMemcpyKind));
IS(cudaMemcpyAsync, (void *, const void *, size_t, enum cudaMemcpyKind, cudaStream_t));
IS(cudaMemsetAsync, (void *, int, size_t, cudaStream_t));
IS(cudaDeviceGetStreamPriorityRange, (int *, int *));
IS(cudaStreamCreateWithPriority, (cudaStream_t *, unsigned, int));
IS(cudaStreamDestroy, (cudaStream_t));
IS(cudaStreamSynchronize, (cudaStream_t));
IS(cudaStreamQuery, (cudaStream_t));
IS(cudaStreamWaitEvent, (cudaStream_t, cudaEvent_t, unsigned));
IS(cudaEventCreateWithFlags, (cudaEvent_t *, unsigned));
IS(cudaEventDestroy, (cudaEvent_t));
IS(cudaEventRecord, (cudaEvent_t, cudaStream_t));
IS(cudaEventQuery, (cudaEvent_t));
IS(cudaEventSynchronize, (cudaEvent_t));
IS(cudaEventElapsedTime, (float *, cudaEvent_t, cudaEvent_t));
IS(cudaLaunchHostFunc, (cudaStream_t, cudaHostFn_t, void *));
IS(cudaIpcGetMemHandle, (cudaIpcMemHandle_t *, void *));
IS(cudaIpcOpenMemHandle, (void **, cudaIpcMemHandle_t, unsigned));
IS(cudaIpcCloseMemHandle, (void *));
IS(cudaStreamBeginCapture, (cudaStream_t, enum cudaStreamCaptureMode));
IS(cudaStreamEndCapture, (cudaStream_t, cudaGraph_t *));
IS(cudaGraphInstantiateWithFlags, (cudaGraphExec_t *, cudaGraph_t, unsigned long long));
IS(cudaGraphLaunch, (cudaGraphExec_t, cudaStream_t));
IS(cudaGraphDestroy, (cudaGraph_t));
IS(cudaGraphExecDestroy, (cudaGraphExec_t));

SAME(sizeof(cudaError_t), sizeof(int));
SAME(sizeof(cudaStream_t), sizeof(kvf_cuda_stream));
SAME(sizeof(cudaIpcMemHandle_t), sizeof(kvf_cuda_ipc_handle));
SAME(cudaErrorInvalidValue, KVF_CUDA_INVALID_VALUE);
SAME(cudaErrorMemoryAllocation, KVF_CUDA_OUT_OF_MEMORY);
SAME(cudaErrorInsufficientDriver, KVF_CUDA_DRIVER_TOO_OLD);
SAME(cudaErrorNoDevice, KVF_CUDA_NO_DEVICE);
SAME(cudaErrorInvalidDevice, KVF_CUDA_INVALID_DEVICE);
SAME(cudaErrorDeviceUninitialized, KVF_CUDA_INVALID_CONTEXT);
SAME(cudaErrorMapBufferObjectFailed, KVF_CUDA_MAP_FAILED);
SAME(cudaErrorInvalidResourceHandle, KVF_CUDA_INVALID_HANDLE);
SAME(cudaErrorNotReady, KVF_CUDA_NOT_READY);
SAME(cudaErrorIllegalAddress, KVF_CUDA_ILLEGAL_ADDRESS);
SAME(cudaErrorLaunchTimeout, KVF_CUDA_LAUNCH_TIMEOUT);
SAME(cudaErrorLaunchFailure, KVF_CUDA_LAUNCH_FAILED);
SAME(cudaErrorStreamCaptureUnsupported, KVF_CUDA_CAPTURE_UNSUPPORTED);
SAME(cudaErrorStreamCaptureInvalidated, KVF_CUDA_CAPTURE_INVALIDATED);
SAME(cudaErrorStreamCaptureUnjoined, KVF_CUDA_CAPTURE_UNJOINED);
SAME(cudaErrorStreamCaptureIsolation, KVF_CUDA_CAPTURE_ISOLATION);
SAME(cudaErrorUnknown, KVF_CUDA_UNKNOWN);
SAME(cudaMemcpyHostToDevice, KVF_CUDA_HOST_TO_DEVICE);
SAME(cudaMemcpyDeviceToHost, KVF_CUDA_DEVICE_TO_HOST);
SAME(cudaMemcpyDeviceToDevice, KVF_CUDA_DEVICE_TO_DEVICE);
SAME(cudaStreamNonBlocking, KVF_CUDA_STREAM_NON_BLOCKING);
SAME(cudaEventBlockingSync, KVF_CUDA_EVENT_BLOCKING_SYNC);
SAME(cudaEventDisableTiming, KVF_CUDA_EVENT_NO_TIMING);
SAME(cudaHostAllocPortable, KVF_CUDA_HOST_PORTABLE);
SAME(cudaIpcMemLazyEnablePeerAccess, KVF_CUDA_IPC_LAZY_PEER);
SAME(cudaStreamCaptureModeThreadLocal, KVF_CUDA_CAPTURE_THREAD_LOCAL);
SAME(cudaDevAttrMaxSharedMemoryPerBlock, KVF_CUDA_ATTR_SHARED_BYTES);
SAME(cudaDevAttrMultiProcessorCount, KVF_CUDA_ATTR_PROCESSORS);
SAME(cudaDevAttrIntegrated, KVF_CUDA_ATTR_INTEGRATED);
SAME(cudaDevAttrComputeCapabilityMajor, KVF_CUDA_ATTR_MAJOR);
SAME(cudaDevAttrComputeCapabilityMinor, KVF_CUDA_ATTR_MINOR);
SAME(cudaDevAttrMaxSharedMemoryPerBlockOptin, KVF_CUDA_ATTR_SHARED_OPTIN_BYTES);

#ifdef WITH_NCCL
#define IS_NCCL(function, ...)                                                                                         \
    _Static_assert(__builtin_types_compatible_p(__typeof__(&function), ncclResult_t(*) __VA_ARGS__), #function)
IS_NCCL(ncclGetVersion, (int *));
IS_NCCL(ncclGetUniqueId, (ncclUniqueId *));
IS_NCCL(ncclCommInitRankConfig, (ncclComm_t *, int, ncclUniqueId, int, ncclConfig_t *));
IS_NCCL(ncclCommFinalize, (ncclComm_t));
IS_NCCL(ncclCommDestroy, (ncclComm_t));
IS_NCCL(ncclCommAbort, (ncclComm_t));
IS_NCCL(ncclCommGetAsyncError, (ncclComm_t, ncclResult_t *));
IS_NCCL(ncclGroupStart, (void));
IS_NCCL(ncclGroupEnd, (void));
IS_NCCL(ncclSend, (const void *, size_t, ncclDataType_t, int, ncclComm_t, cudaStream_t));
IS_NCCL(ncclRecv, (void *, size_t, ncclDataType_t, int, ncclComm_t, cudaStream_t));
SAME(sizeof(ncclUniqueId), sizeof(kvf_nccl_id));
SAME(ncclUint8, KVF_NCCL_BYTES);
SAME(ncclInProgress, KVF_NCCL_IN_PROGRESS);
SAME(ncclRemoteError, KVF_NCCL_REMOTE_ERROR);
SAME(ncclInvalidUsage, KVF_NCCL_INVALID_USAGE);
SAME(NCCL_CONFIG_UNDEF_INT, KVF_NCCL_UNSET);
#define AT(theirs, ours) SAME(offsetof(ncclConfig_t, theirs), offsetof(kvf_nccl_config, ours))
AT(size, size);
AT(magic, magic);
AT(version, version);
AT(blocking, blocking);
AT(cgaClusterSize, cga_cluster_size);
AT(minCTAs, ctas_min);
AT(maxCTAs, ctas_max);
AT(netName, net_name);
AT(splitShare, split_share);
#endif

int main(void) {
    printf("kvf/cuda_api.h agrees with CUDA %d.%d", CUDART_VERSION / 1000, CUDART_VERSION % 1000 / 10);
#ifdef WITH_NCCL
    printf(" and NCCL %d.%d", NCCL_MAJOR, NCCL_MINOR);
#endif
    printf("\n");
    return 0;
}
