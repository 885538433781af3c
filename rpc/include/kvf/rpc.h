/* kvf/rpc.h - gRPC servers and clients for the rest of the tree: the only module that sees a gRPC header.
 *
 * A runtime owns N loops. A loop is one thread with one completion queue; every call belongs to one loop, and all
 * callbacks of one call come from that loop's thread, one at a time, never while a lock of this module is held.
 * Callbacks must not block and must not compute for long: other calls of that loop wait meanwhile.
 *
 * Life of a call on the server:
 *   handler -> (push | message)* -> ended by reply, fail, stream_end or abort, or GONE by cancel -> on_release.
 * 1. Every function on a call may be used by any thread that holds a reference.
 * 2. The first of reply, fail, stream_end, abort, cancel wins; what comes later answers KVF_ERR_GONE and does nothing.
 * 3. on_cancel comes at most once, and only when the call was cancelled (client, deadline, dead connection, forced
 * shutdown) before the application ended it. It may run at the same time as another thread ends the call.
 * 4. on_release comes exactly once, last, from whichever thread dropped the last reference: free your state there.
 * 5. References outlive connection, server and runtime: a late push on a dead call is KVF_ERR_GONE, never an accident.
 *
 * Messages are protobuf-c messages. Outgoing ones are borrowed: packed before the function returns. */
#ifndef KVF_RPC_H
#define KVF_RPC_H
#include "kvf/base.h"
#include "kvf/tls.h"
#include <protobuf-c/protobuf-c.h>
#ifdef __cplusplus
extern "C" {
#endif

/* ---- Status
 * ------------------------------------------------------------------------------------------------------------ */

/* The codes of gRPC, with its numbers. */
typedef enum {
    KVF_RPC_OK = 0,
    KVF_RPC_CANCELLED = 1,
    KVF_RPC_UNKNOWN = 2,
    KVF_RPC_INVALID_ARGUMENT = 3,
    KVF_RPC_DEADLINE_EXCEEDED = 4,
    KVF_RPC_NOT_FOUND = 5,
    KVF_RPC_ALREADY_EXISTS = 6,
    KVF_RPC_PERMISSION_DENIED = 7,
    KVF_RPC_RESOURCE_EXHAUSTED = 8,
    KVF_RPC_FAILED_PRECONDITION = 9,
    KVF_RPC_ABORTED = 10,
    KVF_RPC_OUT_OF_RANGE = 11,
    KVF_RPC_UNIMPLEMENTED = 12,
    KVF_RPC_INTERNAL = 13,
    KVF_RPC_UNAVAILABLE = 14,
    KVF_RPC_DATA_LOSS = 15,
    KVF_RPC_UNAUTHENTICATED = 16
} kvf_rpc_code;

const char *kvf_rpc_code_name(kvf_rpc_code code); /* "INVALID_ARGUMENT"; "?" outside the list */
kvf_rpc_code kvf_rpc_code_of(kvf_status status); /* what a status of ours looks like to a client */
kvf_status kvf_rpc_status_of(kvf_rpc_code code); /* what a code from a peer means to us */

typedef struct {
    const char *key, *value;
} kvf_rpc_pair;

/* Goes out as google.rpc.Status in grpc-status-details-bin. All borrowed; zero it and fill what applies. */
typedef struct {
    const char *reason; /* ErrorInfo.reason, "UPPER_SNAKE"; NULL: no ErrorInfo */
    const char *domain; /* ErrorInfo.domain; NULL: "kvferry" */
    const kvf_rpc_pair *metadata; /* ErrorInfo.metadata */
    size_t metadata_count;
    const char *field; /* BadRequest: the offending field, "sampling.top_p"; NULL: no BadRequest */
    const char *field_text; /* its description; NULL: the status message */
    uint64_t retry_after_ms; /* RetryInfo; 0: none */
} kvf_rpc_details;

/* How a call ended, as the client sees it. Plain data, nothing to free; over-long texts are cut. CANCELLED is what this
 * side asked for, or what the server's application said: a call that crosses its server's end is UNAVAILABLE. */
typedef struct {
    kvf_rpc_code code;
    bool refused; /* UNAVAILABLE because nothing listens at the address: no server process is there */
    char message[512];
    char reason[64], domain[64]; /* "": no ErrorInfo came */
    struct {
        char key[32], value[128];
    } metadata[8];
    uint32_t metadata_count;
    char field[128], field_text[256]; /* "": no BadRequest came */
    uint64_t retry_after_ms; /* 0: no RetryInfo came */
} kvf_rpc_result;

/* ---- Runtime
 * ----------------------------------------------------------------------------------------------------------- */

typedef struct kvf_rpc_runtime kvf_rpc_runtime;
typedef struct {
    uint32_t loops; /* 0: 2 */
    bool keep_malloc; /* default false: set glibc's malloc up for the whole process: big messages need higher mmap and
                         trim thresholds, and with two arenas memory comes to rest sooner */
} kvf_rpc_runtime_opts;

/* Starts the loops with every signal blocked in them. opts may be NULL. A process forks before this or not at all.
 * gRPC's own log lines go to kvf_log as component "grpc". */
kvf_status kvf_rpc_runtime_create(const kvf_rpc_runtime_opts *opts, kvf_rpc_runtime **out);
/* Servers must be shut down and channels destroyed before. Cancels sessions that still live, waits for the end of every
 * call, joins the loops. Not from a callback. */
void kvf_rpc_runtime_destroy(kvf_rpc_runtime *rt);
uint64_t kvf_rpc_runtime_calls(const kvf_rpc_runtime *rt); /* client calls not yet over, for tests and metrics */

/* Who we are and whom we believe. Unix sockets are plain in either mode. */
typedef enum { KVF_RPC_INSECURE = 0, KVF_RPC_TLS } kvf_rpc_security;
typedef struct {
    kvf_rpc_security mode;
    kvf_tls_store *files; /* kept. A listener looks at each connection what is in it, a channel when it is made */
    bool demand_certificates; /* listener: callers must show a certificate of the files' ca */
    /* Channel: the name that the peer's certificate must carry; NULL: the host of the address. Borrowed. */
    const char *peer_name;
} kvf_rpc_credentials;

/* ---- Server
 * ------------------------------------------------------------------------------------------------------------ */

typedef struct kvf_rpc_server kvf_rpc_server;
typedef struct kvf_rpc_call kvf_rpc_call;

typedef enum { KVF_RPC_UNARY, KVF_RPC_SERVER_STREAM, KVF_RPC_BIDI } kvf_rpc_kind;

/* Starts one call. call: borrowed; a handler that goes on later takes its own reference. request: lives as long as the
 * call; NULL for BIDI. A unary or server-stream call whose last application reference goes before it was ended fails
 * INTERNAL. */
typedef void (*kvf_rpc_handler_fn)(void *self, kvf_rpc_call *call, const ProtobufCMessage *request);

typedef struct {
    const ProtobufCServiceDescriptor *service; /* &kvferry__v1__inference__descriptor */
    const char *name; /* "Generate" */
    kvf_rpc_kind kind;
    kvf_rpc_handler_fn handler;
    void *self; /* kept, handed to handler */
} kvf_rpc_method;

typedef struct {
    const char *const *listen; /* "127.0.0.1:0", "[::1]:0", "0.0.0.0:9000", "unix:/run/x.sock" */
    size_t listen_count;
    const kvf_rpc_method *methods; /* borrowed (copied); descriptors kept for ever */
    size_t method_count;
    const kvf_span *descriptor_sets; /* serialised FileDescriptorSets for reflection; bytes kept until shutdown */
    size_t descriptor_set_count;
    size_t message_bytes_max; /* received message; 0: 4 MiB. Longer: RESOURCE_EXHAUSTED */
    size_t stream_buffer_bytes_max; /* waiting to be sent, per call; 0: 256 KiB */
    uint32_t streams_max; /* concurrent calls per connection; 0: gRPC's default. More wait in the client */
    uint32_t posted_calls; /* per loop and method; 0: 32 */
    const kvf_rpc_credentials *credentials; /* borrowed; NULL: insecure */
} kvf_rpc_server_opts;

/* Binds, starts, serves. Health and reflection (v1 and v1alpha) are built in; unknown methods are UNIMPLEMENTED.
 * All health names start NOT_SERVING. Errors: KVF_ERR_INVALID (opts), KVF_ERR_BUSY (address taken), with text in err.
 */
kvf_status kvf_rpc_server_start(
    kvf_rpc_runtime *rt, const kvf_rpc_server_opts *opts, kvf_rpc_server **out, kvf_error *err);
/* Where listen[index] really is: "127.0.0.1:41234" or "unix:/run/x.sock". Lives as long as the server. */
const char *kvf_rpc_server_address(const kvf_rpc_server *server, size_t index);
int kvf_rpc_server_port(const kvf_rpc_server *server, size_t index); /* 0 for unix sockets */

typedef enum { KVF_RPC_HEALTH_SERVING = 1, KVF_RPC_HEALTH_NOT_SERVING = 2 } kvf_rpc_health;
/* Sets one name ("", "readiness", "kvferry.v1.Inference"...), adding it if new. Any thread. Ignored while draining. */
kvf_status kvf_rpc_health_set(kvf_rpc_server *server, const char *service, kvf_rpc_health health);

/* Every name becomes NOT_SERVING, health watchers and reflection streams end; calls go on and new ones are still taken.
 * Any thread, may be repeated. */
void kvf_rpc_server_drain(kvf_rpc_server *server);
/* Drains, refuses new calls, gives running ones grace_ms to end, cancels the rest (on_cancel), waits for them, frees
 * server. Blocks; not from a callback. True: nothing had to be cancelled. */
bool kvf_rpc_server_shutdown(kvf_rpc_server *server, uint64_t grace_ms);
uint64_t kvf_rpc_server_calls(const kvf_rpc_server *server); /* calls of the method table running now */

/* ---- Server calls
 * ------------------------------------------------------------------------------------------------------ */

typedef struct {
    /* BIDI: message is borrowed until return. The next one is read after that. */
    void (*on_message)(kvf_rpc_call *call, void *user, const ProtobufCMessage *message);
    /* BIDI: the client sends no more (a cancel may follow). NULL: the call ends OK. */
    void (*on_half_close)(kvf_rpc_call *call, void *user);
    void (*on_cancel)(kvf_rpc_call *call, void *user);
    void (*on_writable)(
        kvf_rpc_call *call, void *user); /* a push was refused with KVF_AGAIN, now half the room is free */
    void (*on_release)(void *user);
} kvf_rpc_call_ops;

/* Inside the handler only, once. ops: kept (static); any member may be NULL. */
void kvf_rpc_call_bind(kvf_rpc_call *call, const kvf_rpc_call_ops *ops, void *user);
kvf_rpc_call *kvf_rpc_call_ref(kvf_rpc_call *call);
void kvf_rpc_call_unref(kvf_rpc_call *call);

/* Ends a unary call with OK and its answer (no size limit of ours applies). */
kvf_status kvf_rpc_reply(kvf_rpc_call *call, const ProtobufCMessage *message);
/* Ends any call with an error, after what was already pushed. details may be NULL. */
kvf_status kvf_rpc_fail(kvf_rpc_call *call, kvf_rpc_code code, const kvf_rpc_details *details, const char *fmt, ...)
    KVF_PRINTF(4, 5);
/* Ends any call with an error at once: what waits unsent is dropped. For slow readers. Details do not travel this way.
 * Works also on a call that was ended by the application but whose last messages cannot go out. */
kvf_status kvf_rpc_abort(kvf_rpc_call *call, kvf_rpc_code code, const char *text);

/* Queues one message of a stream. KVF_AGAIN: it would exceed stream_buffer_bytes_max (nothing is queued; one message
 * larger than that limit is let through when the queue is empty). KVF_ERR_GONE: ended or cancelled. Messages that wait
 * together leave together. */
kvf_status kvf_rpc_stream_push(kvf_rpc_call *call, const ProtobufCMessage *message);
kvf_status kvf_rpc_stream_push_packed(kvf_rpc_call *call, kvf_span message); /* borrowed: copied */
/* Ends a stream with OK, after what was pushed. */
kvf_status kvf_rpc_stream_end(kvf_rpc_call *call);
size_t kvf_rpc_stream_buffered_bytes(kvf_rpc_call *call); /* queued and in flight */

bool kvf_rpc_call_gone(kvf_rpc_call *call); /* ended or cancelled: pushing is pointless */
uint64_t kvf_rpc_call_left_ms(kvf_rpc_call *call); /* to the client's deadline; UINT64_MAX: none, 0: passed */
const char *kvf_rpc_call_peer(kvf_rpc_call *call); /* "ipv4:127.0.0.1:5000"; lives as long as the call */
/* Whether the caller's certificate is for `name`; who: whom it is for instead. True on connections that have none
 * because none was demanded. */
bool kvf_rpc_call_proves(kvf_rpc_call *call, const char *name, char *who, size_t who_bytes);
const char *kvf_rpc_call_path(const kvf_rpc_call *call); /* "/kvferry.v1.Inference/Generate" */
/* First value of a request metadata key (lower case); false: absent. Inside the handler only;
 * value is borrowed until it returns. */
bool kvf_rpc_call_metadata(kvf_rpc_call *call, const char *key, kvf_span *value);

/* ---- Client
 * ------------------------------------------------------------------------------------------------------------ */

typedef struct kvf_rpc_channel kvf_rpc_channel;
typedef struct {
    const char *address; /* "host:port", "unix:/path" */
    size_t message_bytes_max; /* received; 0: 64 MiB */
    size_t stream_buffer_bytes_max; /* per session; 0: 1 MiB */
    uint32_t keepalive_ms; /* 0: 10 s (+5 s to give up). Servers of other makes may want >= 5 min */
    const kvf_rpc_credentials *credentials; /* borrowed; NULL: insecure */
} kvf_rpc_channel_opts;

/* One connection of its own (never shared with another channel), made when first used, made again after a loss (100 ms
 * to 2 s between tries). Takes no proxy from the environment and retries nothing by itself. */
kvf_status kvf_rpc_channel_create(kvf_rpc_runtime *rt, const kvf_rpc_channel_opts *opts, kvf_rpc_channel **out);
void kvf_rpc_channel_destroy(kvf_rpc_channel *channel); /* running sessions keep the connection until they end */

/* Deadlines below are in ms from now; KVF_RPC_NO_DEADLINE for none. */
#define KVF_RPC_NO_DEADLINE UINT64_MAX

/* One blocking call. KVF_OK: *response is the caller's (kvf_rpc_message_free). Otherwise result->code says why (never
 * OK) and the status is kvf_rpc_status_of it. result may be NULL. Not from a callback. */
kvf_status kvf_rpc_unary(kvf_rpc_channel *channel, const ProtobufCServiceDescriptor *service, const char *method,
    const ProtobufCMessage *request, uint64_t deadline_ms, ProtobufCMessage **response, kvf_rpc_result *result);
void kvf_rpc_message_free(ProtobufCMessage *message); /* NULL is fine */

/* Blocking reader of a server stream, one thread at a time (cancel: any thread). */
typedef struct kvf_rpc_reader kvf_rpc_reader;
kvf_status kvf_rpc_reader_open(kvf_rpc_channel *channel, const ProtobufCServiceDescriptor *service, const char *method,
    const ProtobufCMessage *request, uint64_t deadline_ms, kvf_rpc_reader **out);
/* KVF_OK: *message is the caller's (kvf_rpc_message_free). KVF_ERR_GONE: over, kvf_rpc_reader_result says how. */
kvf_status kvf_rpc_reader_next(kvf_rpc_reader *reader, ProtobufCMessage **message);
const kvf_rpc_result *kvf_rpc_reader_result(const kvf_rpc_reader *reader); /* valid after KVF_ERR_GONE */
void kvf_rpc_reader_cancel(kvf_rpc_reader *reader);
void kvf_rpc_reader_close(kvf_rpc_reader *reader); /* cancels if it still runs, then frees */

/* A client call with callbacks: any kind of method, made for bidi streams between router and nodes. */
typedef struct kvf_rpc_session kvf_rpc_session;
typedef struct {
    void (*on_message)(
        kvf_rpc_session *session, void *user, const ProtobufCMessage *message); /* borrowed until return */
    void (*on_writable)(kvf_rpc_session *session, void *user); /* as for server calls */
    /* Exactly once, after the last on_message: how it ended. UNAVAILABLE: peer lost or not reachable. */
    void (*on_closed)(kvf_rpc_session *session, void *user, const kvf_rpc_result *result);
    void (*on_release)(void *user); /* exactly once, last */
} kvf_rpc_session_ops;

/* out: one reference of the caller's. ops: kept (static). Callbacks may come before this returns. KVF_ERR_INVALID: no
 * such method; then no callback comes, on_release neither. */
kvf_status kvf_rpc_session_open(kvf_rpc_channel *channel, const ProtobufCServiceDescriptor *service, const char *method,
    uint64_t deadline_ms, const kvf_rpc_session_ops *ops, void *user, kvf_rpc_session **out);
kvf_rpc_session *kvf_rpc_session_ref(kvf_rpc_session *session);
void kvf_rpc_session_unref(kvf_rpc_session *session);
/* Any thread. KVF_AGAIN: over stream_buffer_bytes_max. KVF_ERR_GONE: closed or half-closed. */
kvf_status kvf_rpc_session_push(kvf_rpc_session *session, const ProtobufCMessage *message);
kvf_status kvf_rpc_session_push_packed(kvf_rpc_session *session, kvf_span message);
void kvf_rpc_session_half_close(kvf_rpc_session *session); /* after what was pushed */
void kvf_rpc_session_cancel(kvf_rpc_session *session); /* on_closed follows, with CANCELLED unless it was over */
size_t kvf_rpc_session_buffered_bytes(kvf_rpc_session *session);

#ifdef __cplusplus
}
#endif
#endif
