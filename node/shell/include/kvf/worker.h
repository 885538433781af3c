/* kvf/worker.h - a node process: the node core, its engine thread, its links and its control listener.
 *
 * Threads: the caller's runs the core and the links (one libevent base); one thread computes steps; gRPC loops only
 * decode and hand over. They meet in one mailbox. */
#ifndef KVF_WORKER_H
#define KVF_WORKER_H
#include "kvf/backend.h"
#include "kvf/base.h"
#include "kvf/engine.h"
#include "kvf/msg.h"
#include "kvf/tls.h"

typedef struct {
    const char *name;
    kvf_role role;
    const char *model_path;
    kvf_precision precision;
    kvf_weights weights;
    kvf_kv_type kv_type;
    const char *kernels; /* NULL: best */
    const char *cache_folder; /* of packed weights; NULL: none */
    const char *backend; /* "cpu", "cuda", or "auto": cuda where it can be used */
    uint32_t device; /* of the host, for cuda */
    double device_memory_share; /* for KV blocks, of what the weights leave free; 0: kv_memory_bytes */
    const char *plugin; /* device code; NULL: beside the program */
    uint32_t threads; /* 0: all cores this process may use */
    const char *cores, *cores_shared; /* as kvf_backend_options */
    uint32_t context_max; /* 0: what the model says */
    uint64_t kv_memory_bytes;
    const char *listen; /* control, "127.0.0.1:0" or "unix:/path" */
    const char *listen_transfer; /* "127.0.0.1:0"; NULL: no TCP */
    const char *advertise_host; /* NULL: as listened */
    kvf_tls_store *tls; /* kept; of control and page connections; NULL: plain. Unix sockets and shm are always plain */
    bool shm;
    bool cuda_ipc, nccl; /* for pages in device memory, beside shm and TCP */
    uint32_t comms_max; /* communicators of NCCL */
    kvf_time_ns comm_idle_ns; /* after which one is closed */
    bool allow_unequal_numerics;
    /* Tokens of a prompt computed at a time, and beside tokens of answers; 0: 256 and 32, on a device 2048 and 512. */
    uint32_t chunk_tokens, chunk_tokens_mixed;
    uint32_t sequences_max, requests_max, queue_max, expected_output;
    kvf_time_ns grant_ttl_ns, hold_ttl_ns, router_grace_ns, queue_ttl_ns, heartbeat_ns, peer_timeout_ns,
        status_interval_ns, drain_ns;
    kvf_time_ns stall_limit_ns; /* no progress of core or engine thread for so long: NOT_SERVING, no sessions */
} kvf_worker_options;
void kvf_worker_options_default(kvf_worker_options *o);

typedef struct kvf_worker kvf_worker;
/* Loads the model and listens; err says what is wrong and with which file or address. */
kvf_status kvf_worker_create(const kvf_worker_options *options, kvf_worker **out, kvf_error *err);
const char *kvf_worker_control_address(const kvf_worker *w);
/* Serves until kvf_worker_stop has drained it (or, at the second stop, at once), or a newer epoch has replaced it. */
kvf_status kvf_worker_run(kvf_worker *w);
void kvf_worker_stop(kvf_worker *w); /* any thread, not a signal handler; call twice to stop now */
void kvf_worker_destroy(kvf_worker *w);
#endif
