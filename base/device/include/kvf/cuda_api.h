/* kvf/cuda_api.h - the functions of the CUDA driver, the CUDA runtime and NCCL that this program calls, found at run
 * time. No header of the toolkit is needed to build, no library to start.
 *
 * Types are ours and equal in layout to theirs (tests/cuda/test_abi.c compares where the toolkit is). Functions whose
 * signature or structure differs between the versions that we accept are left out, or marked optional and guarded by
 * the version. Calls return the library's own numbers; kvf_cuda_text and kvf_nccl_text put them into words. */
#ifndef KVF_CUDA_API_H
#define KVF_CUDA_API_H
#include "kvf/base.h"
#ifdef __cplusplus
extern "C" {
#endif

#define KVF_CUDA_DEVICES_MAX 16
#define KVF_CUDA_RUNTIME_MIN 12000 /* version numbers are major * 1000 + minor * 10 */
#define KVF_CUDA_RUNTIME_END 14000
#define KVF_CUDA_CAPABILITY_MIN 80 /* major * 10 + minor */
#define KVF_NCCL_MIN 21800 /* major * 10000 + minor * 100 + patch */

typedef struct kvf_cuda_stream_of *kvf_cuda_stream;
typedef struct kvf_cuda_event_of *kvf_cuda_event;
typedef struct kvf_cuda_graph_of *kvf_cuda_graph;
typedef struct kvf_cuda_graph_exec_of *kvf_cuda_graph_exec;
typedef struct {
    char bytes[64];
} kvf_cuda_ipc_handle;
typedef void (*kvf_cuda_host_fn)(void *self);

enum { /* cudaError_t, as far as we tell them apart */
    KVF_CUDA_OK = 0,
    KVF_CUDA_INVALID_VALUE = 1,
    KVF_CUDA_OUT_OF_MEMORY = 2,
    KVF_CUDA_DRIVER_TOO_OLD = 35,
    KVF_CUDA_NO_DEVICE = 100,
    KVF_CUDA_INVALID_DEVICE = 101,
    KVF_CUDA_INVALID_CONTEXT = 201,
    KVF_CUDA_MAP_FAILED = 205,
    KVF_CUDA_INVALID_HANDLE = 400,
    KVF_CUDA_NOT_READY = 600,
    KVF_CUDA_ILLEGAL_ADDRESS = 700,
    KVF_CUDA_LAUNCH_TIMEOUT = 702,
    KVF_CUDA_LAUNCH_FAILED = 719,
    KVF_CUDA_CAPTURE_UNSUPPORTED = 900,
    KVF_CUDA_CAPTURE_INVALIDATED = 901,
    KVF_CUDA_CAPTURE_UNJOINED = 904,
    KVF_CUDA_CAPTURE_ISOLATION = 905,
    KVF_CUDA_UNKNOWN = 999
};
enum { KVF_CUDA_HOST_TO_HOST, KVF_CUDA_HOST_TO_DEVICE, KVF_CUDA_DEVICE_TO_HOST, KVF_CUDA_DEVICE_TO_DEVICE };
enum {
    KVF_CUDA_STREAM_NON_BLOCKING = 1,
    KVF_CUDA_EVENT_BLOCKING_SYNC = 1,
    KVF_CUDA_EVENT_NO_TIMING = 2,
    KVF_CUDA_HOST_PORTABLE = 1,
    KVF_CUDA_IPC_LAZY_PEER = 1,
    KVF_CUDA_CAPTURE_THREAD_LOCAL = 1
};
enum { /* cudaDeviceAttr */
    KVF_CUDA_ATTR_SHARED_BYTES = 8,
    KVF_CUDA_ATTR_PROCESSORS = 16,
    KVF_CUDA_ATTR_INTEGRATED = 18,
    KVF_CUDA_ATTR_MAJOR = 75,
    KVF_CUDA_ATTR_MINOR = 76,
    KVF_CUDA_ATTR_SHARED_OPTIN_BYTES = 97
};

/* X(field, symbol, parameters): all return int. */
#define KVF_CUDA_DRIVER_FUNCTIONS(X)                                                                                   \
    X(init, cuInit, (unsigned flags))                                                                                  \
    X(version, cuDriverGetVersion, (int *version))                                                                     \
    X(device_get, cuDeviceGet, (int *device, int ordinal))                                                             \
    X(device_name, cuDeviceGetName, (char *name, int room_bytes, int device))                                          \
    X(device_memory, cuDeviceTotalMem_v2, (size_t * total_bytes, int device))

#define KVF_CUDA_RUNTIME_FUNCTIONS(X)                                                                                  \
    X(runtime_version, cudaRuntimeGetVersion, (int *version))                                                          \
    X(driver_version, cudaDriverGetVersion, (int *version))                                                            \
    X(device_count, cudaGetDeviceCount, (int *count))                                                                  \
    X(device_set, cudaSetDevice, (int device))                                                                         \
    X(device_current, cudaGetDevice, (int *device))                                                                    \
    X(device_attribute, cudaDeviceGetAttribute, (int *value, int attribute, int device))                               \
    X(device_bus_id, cudaDeviceGetPCIBusId, (char *id, int room_bytes, int device))                                    \
    X(device_synchronize, cudaDeviceSynchronize, (void))                                                               \
    X(device_peer, cudaDeviceCanAccessPeer, (int *can, int device, int peer))                                          \
    X(memory_info, cudaMemGetInfo, (size_t * free_bytes, size_t * total_bytes))                                        \
    X(last_error, cudaGetLastError, (void))                                                                            \
    X(peek_error, cudaPeekAtLastError, (void))                                                                         \
    X(memory_take, cudaMalloc, (void **out, size_t len_bytes))                                                         \
    X(memory_give, cudaFree, (void *memory))                                                                           \
    X(host_take, cudaHostAlloc, (void **out, size_t len_bytes, unsigned flags))                                        \
    X(host_give, cudaFreeHost, (void *memory))                                                                         \
    X(host_register, cudaHostRegister, (void *memory, size_t len_bytes, unsigned flags))                               \
    X(host_unregister, cudaHostUnregister, (void *memory))                                                             \
    X(copy, cudaMemcpy, (void *to, const void *from, size_t len_bytes, int kind))                                      \
    X(copy_async, cudaMemcpyAsync, (void *to, const void *from, size_t len_bytes, int kind, kvf_cuda_stream stream))   \
    X(fill_async, cudaMemsetAsync, (void *to, int value, size_t len_bytes, kvf_cuda_stream stream))                    \
    X(stream_priorities, cudaDeviceGetStreamPriorityRange, (int *least, int *greatest))                                \
    X(stream_create, cudaStreamCreateWithPriority, (kvf_cuda_stream * out, unsigned flags, int priority))              \
    X(stream_destroy, cudaStreamDestroy, (kvf_cuda_stream stream))                                                     \
    X(stream_synchronize, cudaStreamSynchronize, (kvf_cuda_stream stream))                                             \
    X(stream_query, cudaStreamQuery, (kvf_cuda_stream stream))                                                         \
    X(stream_wait, cudaStreamWaitEvent, (kvf_cuda_stream stream, kvf_cuda_event event, unsigned flags))                \
    X(event_create, cudaEventCreateWithFlags, (kvf_cuda_event * out, unsigned flags))                                  \
    X(event_destroy, cudaEventDestroy, (kvf_cuda_event event))                                                         \
    X(event_record, cudaEventRecord, (kvf_cuda_event event, kvf_cuda_stream stream))                                   \
    X(event_query, cudaEventQuery, (kvf_cuda_event event))                                                             \
    X(event_synchronize, cudaEventSynchronize, (kvf_cuda_event event))                                                 \
    X(event_elapsed, cudaEventElapsedTime, (float *ms, kvf_cuda_event from, kvf_cuda_event to))                        \
    X(host_call, cudaLaunchHostFunc, (kvf_cuda_stream stream, kvf_cuda_host_fn fn, void *self))                        \
    X(ipc_export, cudaIpcGetMemHandle, (kvf_cuda_ipc_handle * out, void *memory))                                      \
    X(ipc_open, cudaIpcOpenMemHandle, (void **out, kvf_cuda_ipc_handle handle, unsigned flags))                        \
    X(ipc_close, cudaIpcCloseMemHandle, (void *memory))                                                                \
    X(capture_begin, cudaStreamBeginCapture, (kvf_cuda_stream stream, int mode))                                       \
    X(capture_end, cudaStreamEndCapture, (kvf_cuda_stream stream, kvf_cuda_graph * out))                               \
    X(graph_instantiate, cudaGraphInstantiateWithFlags,                                                                \
        (kvf_cuda_graph_exec * out, kvf_cuda_graph graph, unsigned long long flags))                                   \
    X(graph_launch, cudaGraphLaunch, (kvf_cuda_graph_exec exec, kvf_cuda_stream stream))                               \
    X(graph_destroy, cudaGraphDestroy, (kvf_cuda_graph graph))                                                         \
    X(graph_exec_destroy, cudaGraphExecDestroy, (kvf_cuda_graph_exec exec))
/* The same, returning const char *. */
#define KVF_CUDA_RUNTIME_TEXTS(X)                                                                                      \
    X(error_name, cudaGetErrorName, (int error))                                                                       \
    X(error_text, cudaGetErrorString, (int error))

typedef struct kvf_nccl_comm_of *kvf_nccl_comm;
typedef struct {
    char bytes[128];
} kvf_nccl_id;
/* The part of ncclConfig_t that 2.18 has; newer libraries fill in the rest themselves. */
typedef struct {
    size_t size;
    unsigned magic, version;
    int blocking, cga_cluster_size, ctas_min, ctas_max;
    const char *net_name;
    int split_share;
} kvf_nccl_config;
#define KVF_NCCL_UNSET INT32_MIN
#define KVF_NCCL_CONFIG                                                                                                \
    {                                                                                                                  \
        sizeof(kvf_nccl_config), 0xcafebeef, KVF_NCCL_MIN, KVF_NCCL_UNSET, KVF_NCCL_UNSET, KVF_NCCL_UNSET,             \
            KVF_NCCL_UNSET, NULL, KVF_NCCL_UNSET                                                                       \
    }
enum { /* ncclResult_t */
    KVF_NCCL_OK,
    KVF_NCCL_CUDA_ERROR,
    KVF_NCCL_SYSTEM_ERROR,
    KVF_NCCL_INTERNAL_ERROR,
    KVF_NCCL_INVALID_ARGUMENT,
    KVF_NCCL_INVALID_USAGE,
    KVF_NCCL_REMOTE_ERROR,
    KVF_NCCL_IN_PROGRESS
};
#define KVF_NCCL_BYTES 1 /* ncclUint8 */
#define KVF_NCCL_FUNCTIONS(X)                                                                                          \
    X(version, ncclGetVersion, (int *version))                                                                         \
    X(id, ncclGetUniqueId, (kvf_nccl_id * out))                                                                        \
    X(init, ncclCommInitRankConfig,                                                                                    \
        (kvf_nccl_comm * out, int ranks, kvf_nccl_id id, int rank, kvf_nccl_config *config))                           \
    X(finalize, ncclCommFinalize, (kvf_nccl_comm comm))                                                                \
    X(destroy, ncclCommDestroy, (kvf_nccl_comm comm))                                                                  \
    X(abort, ncclCommAbort, (kvf_nccl_comm comm))                                                                      \
    X(async_error, ncclCommGetAsyncError, (kvf_nccl_comm comm, int *result))                                           \
    X(group_begin, ncclGroupStart, (void))                                                                             \
    X(group_end, ncclGroupEnd, (void))                                                                                 \
    X(send, ncclSend,                                                                                                  \
        (const void *from, size_t count, int type, int peer, kvf_nccl_comm comm, kvf_cuda_stream stream))              \
    X(recv, ncclRecv, (void *to, size_t count, int type, int peer, kvf_nccl_comm comm, kvf_cuda_stream stream))
#define KVF_NCCL_TEXTS(X)                                                                                              \
    X(error_text, ncclGetErrorString, (int result))                                                                    \
    X(last_error, ncclGetLastError, (kvf_nccl_comm comm))

#define KVF_CUDA_INT_FIELD(field, symbol, parameters) int(*field) parameters;
#define KVF_CUDA_TEXT_FIELD(field, symbol, parameters) const char *(*field)parameters;
#define KVF_CUDA_INT_PROTOTYPE(field, symbol, parameters) int symbol parameters;
#define KVF_CUDA_TEXT_PROTOTYPE(field, symbol, parameters) const char *symbol parameters;

typedef struct {
    uint32_t index;
    char name[64];
    uint32_t capability; /* 90: sm_90 */
    uint32_t processors;
    uint64_t total_bytes;
} kvf_cuda_device;

typedef struct {
    KVF_CUDA_RUNTIME_FUNCTIONS(KVF_CUDA_INT_FIELD)
    KVF_CUDA_RUNTIME_TEXTS(KVF_CUDA_TEXT_FIELD)
    struct {
        KVF_CUDA_DRIVER_FUNCTIONS(KVF_CUDA_INT_FIELD)
    } driver;
    int driver_number, runtime_number; /* versions found */
    uint32_t devices_count;
    kvf_cuda_device devices[KVF_CUDA_DEVICES_MAX];
    void *libraries[2];
} kvf_cuda_api;

typedef struct {
    KVF_NCCL_FUNCTIONS(KVF_CUDA_INT_FIELD)
    KVF_NCCL_TEXTS(KVF_CUDA_TEXT_FIELD)
    int number;
    void *library;
} kvf_nccl_api;

/* Names or paths for dlopen; NULL: the usual names. */
typedef struct {
    const char *driver, *runtime, *nccl;
} kvf_cuda_libraries;

/* Opens driver and runtime and looks at the devices, without a context on any: that takes half a gigabyte of each, and
 * is for who uses one. KVF_ERR_UNSUPPORTED with a sentence that names what is missing or
 * too old: driver, runtime, GPU. A device below sm_80 is listed; using it is refused by kvf_cuda_usable. */
kvf_status kvf_cuda_load(const kvf_cuda_libraries *libraries, kvf_cuda_api *out, kvf_error *err);
void kvf_cuda_unload(kvf_cuda_api *api);
/* "CUDA runtime 13.0, driver 13.1, GPU 0 NVIDIA H200 (sm_90, 139 GiB), GPU 1 ...", cut where there is no room. */
const char *kvf_cuda_found(const kvf_cuda_api *api, char *out, size_t room_bytes);
kvf_status kvf_cuda_usable(const kvf_cuda_api *api, uint32_t device, kvf_error *err);
kvf_status kvf_nccl_load(const kvf_cuda_libraries *libraries, kvf_nccl_api *out, kvf_error *err);
void kvf_nccl_unload(kvf_nccl_api *api);

/* What each function of the runtime is called there: kvf_cuda_symbols.copy_async is "cudaMemcpyAsync". */
#define KVF_CUDA_NAME_FIELD(field, symbol, parameters) const char *field;
typedef struct {
    KVF_CUDA_RUNTIME_FUNCTIONS(KVF_CUDA_NAME_FIELD)
} kvf_cuda_names;
extern const kvf_cuda_names kvf_cuda_symbols;

/* "cudaMalloc: out of memory (cudaErrorMemoryAllocation)", borrowed until the thread's next call. */
const char *kvf_cuda_text(const kvf_cuda_api *api, const char *call, int error);
const char *kvf_nccl_text(const kvf_nccl_api *api, const char *call, int result);
/* After which nothing of this process works on the device any more: the process must end. */
bool kvf_cuda_is_sticky(int error);
#ifdef __cplusplus
}
#endif
#endif
