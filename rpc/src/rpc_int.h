/* Private to rpc: tags, loops, the sending half that server calls and client sessions share, packing.
 *
 * Locks, outermost first: server->builtin_lock, flow->lock, server->lock. runtime->lock comes before flow->lock.
 * Application callbacks run with none of them held. grpc_call_start_batch is only called under flow->lock (it is not
 * thread-safe by itself). */
#ifndef KVF_RPC_INT_H
#define KVF_RPC_INT_H
#include "kvf/rpc.h"
#include "kvf/log.h"
#include <grpc/grpc.h>
#include <grpc/byte_buffer.h>
#include <grpc/byte_buffer_reader.h>
#include <grpc/grpc_security.h>
#include <grpc/slice.h>
#include <grpc/support/alloc.h>
#include <grpc/support/time.h>
#include <pthread.h>
#include <stdatomic.h>

#define RPC_OUTER(pointer, type, member) ((type *)(void *)((char *)(pointer)-offsetof(type, member)))

/* libgrpc is not instrumented: tell ThreadSanitizer that a tag carries its object from start_batch to next. */
#if defined(__SANITIZE_THREAD__)
#define RPC_TSAN 1
#elif defined(__has_feature)
#if __has_feature(thread_sanitizer)
#define RPC_TSAN 1
#endif
#endif
#ifdef RPC_TSAN
void __tsan_acquire(void *);
void __tsan_release(void *);
#define RPC_TAG_GIVE(tag) __tsan_release(tag)
#define RPC_TAG_TAKE(tag) __tsan_acquire(tag)
#else
#define RPC_TAG_GIVE(tag) ((void)0)
#define RPC_TAG_TAKE(tag) ((void)0)
#endif

/* What goes through a completion queue: a member of the object it is about. */
typedef struct rpc_tag rpc_tag;
struct rpc_tag {
    void (*fn)(rpc_tag *tag, bool ok);
};

typedef struct {
    grpc_completion_queue *cq;
    pthread_t thread;
} rpc_loop;

struct kvf_rpc_runtime {
    rpc_loop *loops;
    uint32_t loop_count;
    atomic_uint next_loop;
    pthread_mutex_t lock;
    pthread_cond_t idle;
    kvf_rpc_session *sessions; /* live ones; guarded by lock */
    uint64_t session_count;
};
void rpc_accept_guard(void); /* accept_guard.c: before anything listens */
bool rpc_loop_is_current(const rpc_loop *loop);
rpc_loop *rpc_runtime_pick_loop(kvf_rpc_runtime *rt);
void rpc_sessions_cancel_all(kvf_rpc_runtime *rt); /* and waits for their end */
gpr_timespec rpc_deadline_after(uint64_t ms); /* KVF_RPC_NO_DEADLINE: the infinite future */

/* ---- Memory of unpacked messages: freed as a whole, and bounded, because a few wire bytes can ask for much more. */
typedef struct rpc_chunk rpc_chunk;
typedef struct {
    rpc_chunk *chunks;
    size_t at, end; /* room in the newest chunk */
    size_t total_bytes, limit_bytes;
    bool no_memory; /* the system refused, not the limit */
    ProtobufCAllocator allocator; /* allocator_data points back here: an arena never moves */
} rpc_arena;
void rpc_arena_init(rpc_arena *arena);
void rpc_arena_clear(rpc_arena *arena);
/* NULL: malformed, or more than 48 bytes of memory per wire byte. bytes may be NULL (no message): NULL. */
ProtobufCMessage *rpc_unpack(rpc_arena *arena, const ProtobufCMessageDescriptor *type, grpc_byte_buffer *bytes);
/* The same into malloc, freed by kvf_rpc_message_free. */
ProtobufCMessage *rpc_unpack_alone(const ProtobufCMessageDescriptor *type, grpc_byte_buffer *bytes);
grpc_byte_buffer *rpc_pack(const ProtobufCMessage *message);
grpc_byte_buffer *rpc_pack_bytes(kvf_span bytes);

/* ---- Status details. */
#define RPC_DETAILS_KEY "grpc-status-details-bin"
/* Serialised google.rpc.Status; an empty slice when details is NULL or says nothing. */
grpc_slice rpc_details_pack(kvf_rpc_code code, const char *message, const kvf_rpc_details *details);
void rpc_result_fill(
    kvf_rpc_result *result, grpc_status_code code, grpc_slice message, const grpc_metadata_array *trailers);
/* A call that crosses its server's shutdown is cancelled by gRPC itself, before the application has seen it: CANCELLED
 * that nobody here asked for, without a reason and before anything came, becomes UNAVAILABLE. */
void rpc_result_crossed(kvf_rpc_result *result, bool cancelled_here, bool heard);
void rpc_text_clean(char *text); /* bytes that are not UTF-8 become '?', so that foreign clients can read it */

/* ---- Flow: the sending half of a call, and its life on the completion queue.
 *
 * A bounded queue that any thread fills; only the loop sends. Sends go one at a time; a message that others already
 * wait behind gets BUFFER_HINT, the last of the queue never. The owner ends a flow once; its end operations (server:
 * status, client: half close) ride on the last message. The flow is finished when the peer's end has been seen (closed)
 * and no tag is outstanding: then the grpc_call goes, and finish() gives back the library's reference. */
typedef struct rpc_out rpc_out;
typedef struct rpc_flow rpc_flow;
typedef struct {
    size_t (*end_ops)(rpc_flow *flow, grpc_op *ops); /* under lock; at most 2 ops */
    void (*writable)(rpc_flow *flow);
    void (*finish)(rpc_flow *flow);
} rpc_flow_ops;

struct rpc_flow {
    pthread_mutex_t lock;
    const rpc_flow_ops *ops;
    rpc_loop *loop;
    grpc_call *grpc; /* NULL before the call exists and after it is finished */
    uint32_t outstanding; /* tags in the completion queue */
    rpc_tag send_tag, wake_tag;
    rpc_out *head, *tail;
    size_t queued_bytes, sending_bytes, limit_bytes;
    grpc_byte_buffer *sending;
    bool send_busy, wake_busy;
    bool headers_wanted, headers_sent;
    bool ended; /* the owner said so: no more pushes */
    bool end_sent; /* end_ops are in a batch */
    bool closed; /* the peer's end was seen: nothing may be started any more */
    bool refused; /* a push got KVF_AGAIN since the last writable() */
};
void rpc_flow_init(rpc_flow *flow, const rpc_flow_ops *ops, rpc_loop *loop, size_t limit_bytes);
void rpc_flow_fini(rpc_flow *flow);
void rpc_flow_start(rpc_flow *flow, const grpc_op *ops, size_t count, rpc_tag *tag); /* under lock */
/* Takes bytes. bounded: apply the limit. Not under lock. */
kvf_status rpc_flow_push(rpc_flow *flow, grpc_byte_buffer *bytes, bool bounded);
kvf_status rpc_flow_append(rpc_flow *flow, grpc_byte_buffer *bytes); /* under lock; takes bytes unless it fails */
void rpc_flow_kick(rpc_flow *flow); /* under lock: have the loop send what there is */
void rpc_flow_done(rpc_flow *flow); /* not under lock: one tag has been dealt with */
void rpc_flow_drop(rpc_flow *flow); /* under lock: forgets what waits */
void rpc_flow_close(rpc_flow *flow); /* under lock: the peer's end was seen */

/* ---- Server. */
typedef struct {
    char *path;
    void *registered; /* NULL: the catch-all */
    kvf_rpc_kind kind;
    const ProtobufCMessageDescriptor *input;
    kvf_rpc_handler_fn handler;
    void *self;
    bool builtin;
    atomic_uint owed; /* calls that could not be posted for lack of memory: posted when one ends or begins */
} rpc_method;

typedef struct rpc_health_entry rpc_health_entry;
typedef struct rpc_watcher rpc_watcher;
typedef struct rpc_index rpc_index;
typedef struct rpc_listener_tls rpc_listener_tls;

struct kvf_rpc_server {
    kvf_rpc_runtime *rt;
    grpc_server *grpc;
    grpc_completion_queue *shutdown_cq;
    rpc_method *methods;
    size_t method_count;
    size_t message_bytes_max, stream_buffer_bytes_max;
    uint32_t posted_calls;
    char **addresses;
    int *ports, *lock_fds;
    char **lock_paths;
    rpc_listener_tls **tls; /* [listen_count], NULL: plain */
    size_t listen_count;

    pthread_mutex_t lock;
    pthread_cond_t idle;
    uint64_t objects; /* calls posted or running; guarded by lock */
    uint64_t running; /* of the application's methods; guarded by lock */

    pthread_mutex_t builtin_lock;
    bool draining; /* guarded by builtin_lock, as all below */
    rpc_health_entry *health;
    rpc_watcher *watchers; /* calls that a drain ends: health watches and reflection streams */
    rpc_index *index; /* constant after start */
};

struct kvf_rpc_call {
    rpc_flow flow;
    atomic_uint refs; /* library 1 + application */
    atomic_uint app_refs; /* handler or bidi stream 1 + application's own */
    kvf_rpc_server *server; /* not after finish */
    rpc_method *method; /* not after finish, but for kind and input, which are copied */
    kvf_rpc_kind kind;
    const ProtobufCMessageDescriptor *input;
    rpc_tag new_tag, close_tag, recv_tag;
    grpc_call_details details; /* catch-all only */
    bool has_details;
    grpc_metadata_array metadata;
    grpc_byte_buffer *received;
    gpr_timespec deadline;
    int cancelled;
    char *path, *peer;
    rpc_arena arena;
    ProtobufCMessage *request;
    const kvf_rpc_call_ops *app_ops;
    void *user;
    /* how it ends; written under flow.lock before flow.ended */
    kvf_rpc_code code;
    grpc_slice text, status_bytes;
    grpc_metadata trailer;
    bool aborted;
};
bool rpc_call_post(kvf_rpc_server *server, rpc_method *method, rpc_loop *loop); /* false: no memory */
void rpc_server_object_gone(kvf_rpc_server *server, bool was_running); /* the last touch of server by a call */

/* Health and reflection: methods that every server has. */
size_t rpc_builtin_methods(kvf_rpc_server *server, rpc_method *out); /* out NULL: counts only; a path NULL: no memory */
kvf_status rpc_health_init(kvf_rpc_server *server);
void rpc_health_fini(kvf_rpc_server *server);
kvf_status rpc_index_create(const kvf_rpc_server_opts *opts, rpc_index **out, kvf_error *err);
void rpc_index_destroy(rpc_index *index);
void rpc_reflection_handler(void *self, kvf_rpc_call *call, const ProtobufCMessage *request);

/* A call that a drain has to end. Holds a reference; leaves the list once, by whoever is first of cancel and drain. */
struct rpc_watcher {
    rpc_watcher *next, **link; /* link NULL: not in the list */
    kvf_rpc_server *server;
    kvf_rpc_call *call;
    char *service; /* NULL: reflection */
    int last; /* status last sent */
};
/* False: draining or no memory, and the call has been failed. */
bool rpc_watcher_add(
    kvf_rpc_server *server, kvf_rpc_call *call, const kvf_rpc_call_ops *ops, const char *service, rpc_watcher **out);
void rpc_watcher_cancelled(kvf_rpc_call *call, void *user);
void rpc_watcher_release(void *user);

/* ---- Channels. */
struct kvf_rpc_channel {
    kvf_rpc_runtime *rt;
    grpc_channel *grpc;
    size_t stream_buffer_bytes_max;
};
/* The path and descriptors of service.method; false: no such method. path: gpr-owned slice of the caller's. */
bool rpc_method_find(const ProtobufCServiceDescriptor *service, const char *method, grpc_slice *path,
    const ProtobufCMethodDescriptor **found);

/* ---- Credentials. */
bool rpc_is_unix(const char *address);
kvf_status rpc_credentials_check(const kvf_rpc_credentials *c, bool listener, kvf_error *err);
/* *out: NULL for a plain one; else what gRPC asks at each connection, freed after the server. */
grpc_server_credentials *rpc_listener_credentials(
    const kvf_rpc_credentials *c, const char *address, rpc_listener_tls **out);
void rpc_listener_tls_free(rpc_listener_tls *l);
grpc_channel_credentials *rpc_channel_credentials(const kvf_rpc_credentials *c, const char *address);
const char *rpc_channel_peer_name(const kvf_rpc_credentials *c, const char *address); /* NULL: the address's host */

/* Holds "path.lock" so that no second server takes the socket at path. KVF_ERR_BUSY: somebody does. */
kvf_status rpc_unix_lock(const char *lock_path, int *fd);
void rpc_unix_unlock(const char *lock_path, int fd);

static inline grpc_arg rpc_arg_int(const char *key, int value) {
    grpc_arg arg;
    memset(&arg, 0, sizeof arg);
    arg.type = GRPC_ARG_INTEGER;
    arg.key = (char *)(uintptr_t)key;
    arg.value.integer = value;
    return arg;
}
#endif
