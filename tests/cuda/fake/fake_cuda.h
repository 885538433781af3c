/* fake_cuda.h - what tests ask of the fake CUDA runtime, NCCL and cuBLASLt (tests/cuda/fake), besides the functions of
 * kvf/cuda_api.h that it implements under their real names.
 *
 * A stream is a thread that runs what was queued, in order; device memory is one sparse file in memory, filled with
 * 0xFF when taken, so that another process can map what it is given a handle for. Kernels come from the emulator
 * through fake_cuda_enqueue.
 *
 * | behaviour                                                  | as the real one                                    |
 * | cudaGetDeviceCount leaves *count alone when it fails       | yes                                                |
 * | cudaFree waits for the whole device                        | yes                                                |
 * | a sticky error answers every later call but a few getters  | yes                                                |
 * | queued work after a sticky error                           | dropped; on a device: undefined                    |
 * | copies from and to pageable memory                         | always asynchronous: stricter                      |
 * | a copy outside live device memory                          | refused at the call: kinder                        |
 * | ncclGroupEnd of a non-blocking communicator                | in progress; queued by a helper thread, later      |
 * | ncclSend before the peer's ncclRecv                        | the stream waits                                   |
 * | a dead peer                                                | the stream spins until ncclCommAbort (NVLink, SHM) |
 * | a send to oneself without its receive in the same group    | refused, as there                                  |
 * | sizes that differ                                          | an asynchronous error; real: hang or corruption    |
 * | an own memory handle opened in the process that made it    | works; real: refused                               |
 * | cublasLtMatmul of memory that is not a device's, or of an  | refused, with a sentence on stderr; real: anything |
 * |   algorithm found for another shape                        |                                                    |
 * | two streams                                                | always progress by themselves; real: no promise    |
 *
 * Environment, read at the first call: KVF_FAKE_CUDA_DEVICES (1), _MEMORY bytes of a device (1 GiB), _DRIVER and
 * _RUNTIME versions (13000), _CAPABILITY (90), _DELAY_US random delay before each queued operation (0), _FAULTS
 * "cudaMalloc:3=2,kernel:1=sticky700,ncclSend:2=hang,ncclCommInitRankConfig:1=6": the third cudaMalloc fails with 2 ...
 */
#ifndef KVF_FAKE_CUDA_H
#define KVF_FAKE_CUDA_H
#include "kvf/cuda_api.h"
#ifdef __cplusplus
extern "C" {
#endif
#define FAKE_API __attribute__((visibility("default")))

/* A fault of a call ("cudaMalloc", "ncclSend", ...) or of a queued operation ("copy", "kernel", "transfer"), of "any"
 * of them but calls that only look (queries, getters of errors), or of any "call" that neither looks nor gives back.
 * FAIL: the nth call from now on answers `error` (an operation: makes it sticky; cublasLtGetVersion: the version it
 * tells). STICKY: the same, and so does every later call. HANG: the nth call, or operation, returns only after
 * fake_cuda_release. DIE: the process is killed there.
 */
typedef enum { FAKE_FAIL, FAKE_STICKY, FAKE_HANG, FAKE_DIE } fake_fault_kind;
FAKE_API void fake_cuda_fault(const char *function, uint32_t nth, fake_fault_kind kind, int error);
/* Lets everything that hangs go on; a call answers KVF_CUDA_UNKNOWN. */
FAKE_API void fake_cuda_release(void);
FAKE_API uint32_t fake_cuda_hanging(void); /* how many calls and operations hang */

/* As after the start of a process: no faults, no sticky error, the environment's settings, nothing counted as done.
 * Memory in use stays. */
FAKE_API void fake_cuda_reset(void);
typedef struct {
    uint32_t devices, capability;
    int driver_number, runtime_number, nccl_number;
    int init_error; /* of cuInit; 0: it starts */
    uint64_t memory_bytes; /* of a device */
    uint32_t delay_us;
    /* cudaFree and cudaIpcCloseMemHandle wait for no stream: for two nodes in one process, of which one must not wait
     * for what the other does. Kept by fake_cuda_reset. */
    bool free_at_once;
} fake_cuda_settings;
FAKE_API void fake_cuda_set(const fake_cuda_settings *settings);
FAKE_API void fake_cuda_get(fake_cuda_settings *settings);

typedef struct {
    uint64_t memory_bytes; /* of the devices, in use */
    uint32_t allocations, host_allocations, streams, events, opened_handles, graphs, comms;
    uint32_t contexts; /* a bit for each device that cudaSetDevice has named since the last reset */
    uint32_t products; /* handles, descriptions, layouts and preferences of cuBLASLt */
    uint64_t copies, kernels, sends, recvs; /* operations done since the last reset */
    uint64_t calls; /* that a rule for "call" would have counted, since then */
} fake_cuda_counts;
FAKE_API void fake_cuda_count(fake_cuda_counts *out);

/* Queues run(arg) on a stream (NULL: the default one) as a kernel; `drop` frees arg when it is over, or when the graph
 * that captured it is. run may be called many times. Answers as a launch does. */
FAKE_API int fake_cuda_enqueue(kvf_cuda_stream stream, void (*run)(void *arg), void (*drop)(void *arg), void *arg);
#ifdef __cplusplus
}
#endif
#endif
