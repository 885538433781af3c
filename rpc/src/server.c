/* Servers: start, addresses, the order of shutdown (each step of it matters, see kvf_rpc_server_shutdown). */
#include "rpc_int.h"
#include <stdio.h>
#include <stdlib.h>

enum { MESSAGE_BYTES = 4 << 20, STREAM_BUFFER_BYTES = 256 << 10, POSTED_CALLS = 32 };

void rpc_server_object_gone(kvf_rpc_server *server, bool was_running) {
    pthread_mutex_lock(&server->lock);
    server->objects--;
    if (was_running) server->running--;
    if (server->objects == 0) pthread_cond_broadcast(&server->idle);
    pthread_mutex_unlock(&server->lock);
}

bool rpc_method_find(const ProtobufCServiceDescriptor *service, const char *method, grpc_slice *path,
    const ProtobufCMethodDescriptor **found) {
    const ProtobufCMethodDescriptor *descriptor = protobuf_c_service_descriptor_get_method_by_name(service, method);
    if (!descriptor) return false;
    char text[512];
    int len = snprintf(text, sizeof text, "/%s/%s", service->name, method);
    if (len < 0 || (size_t)len >= sizeof text) return false;
    *path = grpc_slice_from_copied_string(text);
    *found = descriptor;
    return true;
}

static kvf_status make_methods(kvf_rpc_server *server, const kvf_rpc_server_opts *opts, kvf_error *err) {
    size_t builtins = rpc_builtin_methods(server, NULL);
    server->methods = calloc(opts->method_count + builtins + 1, sizeof *server->methods);
    if (!server->methods) return kvf_fail(err, KVF_ERR_NO_MEMORY, "no memory for the method table");
    for (size_t i = 0; i < opts->method_count; i++) {
        const kvf_rpc_method *in = &opts->methods[i];
        grpc_slice path;
        const ProtobufCMethodDescriptor *found;
        if (!in->handler || !rpc_method_find(in->service, in->name, &path, &found))
            return kvf_fail(err, KVF_ERR_INVALID, "service %s has no method %s", in->service->name, in->name);
        char *text = grpc_slice_to_c_string(path);
        grpc_slice_unref(path);
        rpc_method *method = &server->methods[server->method_count++];
        method->path = strdup(text);
        gpr_free(text);
        if (!method->path) return kvf_fail(err, KVF_ERR_NO_MEMORY, "no memory for the method table");
        method->kind = in->kind;
        method->input = found->input;
        method->handler = in->handler;
        method->self = in->self;
        for (size_t k = 0; k + 1 < server->method_count; k++)
            if (strcmp(server->methods[k].path, method->path) == 0)
                return kvf_fail(err, KVF_ERR_INVALID, "method %s stands twice in the table", method->path);
    }
    rpc_method *own = server->methods + server->method_count;
    server->method_count += rpc_builtin_methods(server, own);
    for (size_t i = 0; i < builtins; i++)
        if (!own[i].path) return kvf_fail(err, KVF_ERR_NO_MEMORY, "no memory for the method table");
    server->methods[server->method_count++].builtin = true; /* the catch-all: no path */
    return KVF_OK;
}

static grpc_server *make_grpc_server(const kvf_rpc_server *server, const kvf_rpc_server_opts *opts) {
    grpc_arg args[16];
    size_t count = 0;
    args[count++] =
        rpc_arg_int(GRPC_ARG_MAX_RECEIVE_MESSAGE_LENGTH, (int)KVF_MIN(server->message_bytes_max, (size_t)INT32_MAX));
    args[count++] = rpc_arg_int(GRPC_ARG_ALLOW_REUSEPORT, 0); /* else a second daemon shares the port silently */
    args[count++] = rpc_arg_int(GRPC_ARG_HTTP2_BDP_PROBE, 0); /* windows stay small: a slow reader is felt at once */
    args[count++] = rpc_arg_int(GRPC_ARG_KEEPALIVE_TIME_MS, 10000);
    args[count++] = rpc_arg_int(GRPC_ARG_KEEPALIVE_TIMEOUT_MS, 5000);
    args[count++] = rpc_arg_int(GRPC_ARG_KEEPALIVE_PERMIT_WITHOUT_CALLS, 1);
    args[count++] = rpc_arg_int(GRPC_ARG_HTTP2_MAX_PINGS_WITHOUT_DATA, 0);
    /* Below the keepalive of any client of ours, so that none is sent away for pinging. */
    args[count++] = rpc_arg_int(GRPC_ARG_HTTP2_MIN_RECV_PING_INTERVAL_WITHOUT_DATA_MS, 5000);
    if (opts->streams_max) args[count++] = rpc_arg_int(GRPC_ARG_MAX_CONCURRENT_STREAMS, (int)opts->streams_max);
    grpc_channel_args list = {.num_args = count, .args = args};
    return grpc_server_create(&list, NULL);
}

/* "host:0" becomes "host:port". NULL: no memory. */
static char *real_address(const char *wanted, int port) {
    size_t size = strlen(wanted) + 16;
    char *out = malloc(size);
    if (!out) return NULL;
    const char *colon = strrchr(wanted, ':');
    if (strncmp(wanted, "unix", 4) == 0 || !colon)
        snprintf(out, size, "%s", wanted);
    else
        snprintf(out, size, "%.*s:%d", (int)(colon - wanted), wanted, port);
    return out;
}

static kvf_status lock_unix_path(kvf_rpc_server *server, size_t index, const char *address, kvf_error *err) {
    static const char scheme[] = "unix:";
    if (strncmp(address, scheme, sizeof scheme - 1) != 0) return KVF_OK;
    const char *path = address + sizeof scheme - 1;
    size_t size = strlen(path) + sizeof ".lock";
    char *lock_path = malloc(size);
    if (!lock_path) return kvf_fail(err, KVF_ERR_NO_MEMORY, "no memory to listen on %s", address);
    snprintf(lock_path, size, "%s.lock", path);
    kvf_status status = rpc_unix_lock(lock_path, &server->lock_fds[index]);
    if (status == KVF_OK) {
        server->lock_paths[index] = lock_path;
        return KVF_OK;
    }
    free(lock_path);
    return kvf_fail(err, status, "cannot listen on %s: %s", address,
        status == KVF_ERR_BUSY ? "another server holds it" : "its lock file cannot be made");
}

static kvf_status listen_all(kvf_rpc_server *server, const kvf_rpc_server_opts *opts, kvf_error *err) {
    server->addresses = calloc(opts->listen_count, sizeof *server->addresses);
    server->ports = calloc(opts->listen_count, sizeof *server->ports);
    server->lock_fds = calloc(opts->listen_count, sizeof *server->lock_fds);
    server->lock_paths = calloc(opts->listen_count, sizeof *server->lock_paths);
    server->tls = calloc(opts->listen_count, sizeof *server->tls);
    if (!server->addresses || !server->ports || !server->lock_fds || !server->lock_paths || !server->tls)
        return kvf_fail(err, KVF_ERR_NO_MEMORY, "no memory to listen");
    for (size_t i = 0; i < opts->listen_count; i++) {
        const char *address = opts->listen[i];
        kvf_status status = lock_unix_path(server, i, address, err);
        server->listen_count = i + 1;
        if (status != KVF_OK) return status;
        grpc_server_credentials *credentials = rpc_listener_credentials(opts->credentials, address, &server->tls[i]);
        if (!credentials) return kvf_fail(err, KVF_ERR_NO_MEMORY, "no memory to listen on %s", address);
        int port = grpc_server_add_http2_port(server->grpc, address, credentials);
        grpc_server_credentials_release(credentials);
        if (port <= 0)
            return kvf_fail(err, KVF_ERR_BUSY, "cannot listen on %s: taken, or no address of this host", address);
        server->ports[i] = rpc_is_unix(address) ? 0 : port;
        server->addresses[i] = real_address(address, port);
        if (!server->addresses[i]) return kvf_fail(err, KVF_ERR_NO_MEMORY, "no memory to listen on %s", address);
    }
    return KVF_OK;
}

static void free_server(kvf_rpc_server *server) {
    rpc_health_fini(server);
    rpc_index_destroy(server->index);
    for (size_t i = 0; i < server->listen_count; i++) {
        free(server->addresses[i]);
        if (server->lock_paths[i]) rpc_unix_unlock(server->lock_paths[i], server->lock_fds[i]);
        free(server->lock_paths[i]);
        rpc_listener_tls_free(server->tls[i]);
    }
    free(server->tls);
    free(server->addresses);
    free(server->ports);
    free(server->lock_fds);
    free(server->lock_paths);
    for (size_t i = 0; i < server->method_count; i++) free(server->methods[i].path);
    free(server->methods);
    pthread_cond_destroy(&server->idle);
    pthread_mutex_destroy(&server->lock);
    pthread_mutex_destroy(&server->builtin_lock);
    free(server);
}

static bool has_objects(kvf_rpc_server *server) {
    pthread_mutex_lock(&server->lock);
    bool some = server->objects > 0;
    pthread_mutex_unlock(&server->lock);
    return some;
}

/* Until the server is empty, for at most grace_ms. A call that comes as the shutdown begins may stay in gRPC's own
 * queue, where it would wait for the grace or its deadline: when no call of ours has been left for a while, in which
 * connections had time to say goodbye, what there is goes. */
static bool wait_for_calls(kvf_rpc_server *server, uint64_t grace_ms) {
    enum { LOOK_MS = 20, GOODBYE_MS = 300 };
    uint64_t left_ms = grace_ms, empty_ms = 0;
    for (;;) {
        uint64_t now_ms = KVF_MIN(left_ms, (uint64_t)LOOK_MS);
        grpc_event event = grpc_completion_queue_next(server->shutdown_cq, rpc_deadline_after(now_ms), NULL);
        KVF_ASSERT(event.type == GRPC_OP_COMPLETE || event.type == GRPC_QUEUE_TIMEOUT);
        if (event.type == GRPC_OP_COMPLETE) return true;
        left_ms -= now_ms;
        empty_ms = has_objects(server) ? 0 : empty_ms + now_ms;
        if (left_ms == 0 || empty_ms >= GOODBYE_MS) return false;
    }
}

/* Refuses new calls, waits, cancels the late ones; then no call object is left and the gRPC server can go. The loops go
 * on throughout: their queues belong to the runtime, and starting a batch on a queue that is shut down would be fatal.
 */
static bool stop_grpc(kvf_rpc_server *server, uint64_t grace_ms) {
    grpc_event event;
    grpc_server_shutdown_and_notify(server->grpc, server->shutdown_cq, server);
    bool over = wait_for_calls(server, grace_ms), clean = over || !has_objects(server);
    if (!over) {
        grpc_server_cancel_all_calls(server->grpc);
        event = grpc_completion_queue_next(server->shutdown_cq, gpr_inf_future(GPR_CLOCK_MONOTONIC), NULL);
        KVF_ASSERT(event.type == GRPC_OP_COMPLETE);
    }
    pthread_mutex_lock(&server->lock);
    while (server->objects > 0) pthread_cond_wait(&server->idle, &server->lock);
    pthread_mutex_unlock(&server->lock);
    grpc_server_destroy(server->grpc);
    grpc_completion_queue_shutdown(server->shutdown_cq);
    event = grpc_completion_queue_next(server->shutdown_cq, gpr_inf_future(GPR_CLOCK_MONOTONIC), NULL);
    KVF_ASSERT(event.type == GRPC_QUEUE_SHUTDOWN);
    grpc_completion_queue_destroy(server->shutdown_cq);
    return clean;
}

static kvf_status register_methods(kvf_rpc_server *server, kvf_error *err) {
    for (size_t i = 0; i < server->method_count; i++) {
        rpc_method *method = &server->methods[i];
        if (!method->path) continue;
        method->registered = grpc_server_register_method(server->grpc, method->path, NULL,
            method->kind == KVF_RPC_BIDI ? GRPC_SRM_PAYLOAD_NONE : GRPC_SRM_PAYLOAD_READ_INITIAL_BYTE_BUFFER, 0);
        if (!method->registered) return kvf_fail(err, KVF_ERR_INVALID, "cannot register method %s", method->path);
    }
    return KVF_OK;
}

static bool post_all(kvf_rpc_server *server) {
    for (uint32_t l = 0; l < server->rt->loop_count; l++)
        for (size_t m = 0; m < server->method_count; m++)
            for (uint32_t k = 0; k < (server->methods[m].builtin ? 1 : server->posted_calls); k++)
                if (!rpc_call_post(server, &server->methods[m], &server->rt->loops[l])) return false;
    return true;
}

kvf_status kvf_rpc_server_start(
    kvf_rpc_runtime *rt, const kvf_rpc_server_opts *opts, kvf_rpc_server **out, kvf_error *err) {
    if (opts->listen_count == 0) return kvf_fail(err, KVF_ERR_INVALID, "a server needs an address to listen on");
    kvf_status status = rpc_credentials_check(opts->credentials, true, err);
    if (status != KVF_OK) return status;
    kvf_rpc_server *server = calloc(1, sizeof *server);
    if (!server) return kvf_fail(err, KVF_ERR_NO_MEMORY, "no memory for a server");
    server->rt = rt;
    server->message_bytes_max = opts->message_bytes_max ? opts->message_bytes_max : MESSAGE_BYTES;
    server->stream_buffer_bytes_max =
        opts->stream_buffer_bytes_max ? opts->stream_buffer_bytes_max : STREAM_BUFFER_BYTES;
    server->posted_calls = opts->posted_calls ? opts->posted_calls : POSTED_CALLS;
    pthread_mutex_init(&server->lock, NULL);
    pthread_mutex_init(&server->builtin_lock, NULL);
    pthread_cond_init(&server->idle, NULL);
    status = make_methods(server, opts, err);
    if (status == KVF_OK) status = rpc_index_create(opts, &server->index, err);
    if (status != KVF_OK) goto undo_server;
    status = rpc_health_init(server);
    if (status != KVF_OK) {
        kvf_fail(err, status, "no memory for the health service");
        goto undo_server;
    }

    grpc_completion_queue_attributes attributes = {
        .version = GRPC_CQ_CURRENT_VERSION, .cq_completion_type = GRPC_CQ_NEXT, .cq_polling_type = GRPC_CQ_NON_POLLING};
    server->shutdown_cq =
        grpc_completion_queue_create(grpc_completion_queue_factory_lookup(&attributes), &attributes, NULL);
    server->grpc = make_grpc_server(server, opts);
    for (uint32_t i = 0; i < rt->loop_count; i++)
        grpc_server_register_completion_queue(server->grpc, rt->loops[i].cq, NULL);
    grpc_server_register_completion_queue(server->grpc, server->shutdown_cq, NULL);
    status = register_methods(server, err);
    if (status == KVF_OK) status = listen_all(server, opts, err);
    if (status != KVF_OK) goto undo_grpc;
    grpc_server_start(server->grpc);
    if (!post_all(server)) {
        status = kvf_fail(err, KVF_ERR_NO_MEMORY, "no memory for calls");
        kvf_rpc_server_drain(server); /* a caller may be in already */
        goto undo_grpc;
    }
    *out = server;
    return KVF_OK;

undo_grpc:
    stop_grpc(server, 0);
undo_server:
    free_server(server);
    return status;
}

const char *kvf_rpc_server_address(const kvf_rpc_server *server, size_t index) {
    return index < server->listen_count ? server->addresses[index] : NULL;
}

int kvf_rpc_server_port(const kvf_rpc_server *server, size_t index) {
    return index < server->listen_count ? server->ports[index] : 0;
}

uint64_t kvf_rpc_server_calls(const kvf_rpc_server *server) {
    kvf_rpc_server *mine = (kvf_rpc_server *)(uintptr_t)server;
    pthread_mutex_lock(&mine->lock);
    uint64_t running = mine->running;
    pthread_mutex_unlock(&mine->lock);
    return running;
}

bool kvf_rpc_server_shutdown(kvf_rpc_server *server, uint64_t grace_ms) {
    if (!server) return true;
    kvf_rpc_server_drain(server);
    bool clean = stop_grpc(server, grace_ms);
    free_server(server);
    return clean;
}
