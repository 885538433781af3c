/* grpc.health.v1, and the list of long calls that a drain ends: health watches and reflection streams.
 * All answers of a watch are pushed under builtin_lock, so a watcher sees the changes in their order, each once. */
#include "rpc_int.h"
#include "grpc/health/v1/health.pb-c.h"
#include "grpc/reflection/v1/reflection.pb-c.h"
#include <stdlib.h>

enum { SERVICE_UNKNOWN = 3 };

struct rpc_health_entry {
    rpc_health_entry *next;
    kvf_rpc_health health;
    char name[];
};

static rpc_health_entry *find(kvf_rpc_server *server, const char *service) {
    for (rpc_health_entry *entry = server->health; entry; entry = entry->next)
        if (strcmp(entry->name, service) == 0) return entry;
    return NULL;
}

static kvf_status put(kvf_rpc_server *server, const char *service, kvf_rpc_health health) {
    rpc_health_entry *entry = find(server, service);
    if (!entry) {
        size_t name_bytes = strlen(service) + 1;
        entry = malloc(sizeof *entry + name_bytes);
        if (!entry) return KVF_ERR_NO_MEMORY;
        memcpy(entry->name, service, name_bytes);
        entry->next = server->health;
        server->health = entry;
    }
    entry->health = health;
    return KVF_OK;
}

/* ---- Watchers
 * -------------------------------------------------------------------------------------------------------- */

static bool leave(rpc_watcher *watcher) { /* under builtin_lock; true: the caller has the list's reference now */
    if (!watcher->link) return false;
    *watcher->link = watcher->next;
    if (watcher->next) watcher->next->link = watcher->link;
    watcher->link = NULL;
    return true;
}

static void tell(rpc_watcher *watcher, int status) { /* under builtin_lock */
    if (!watcher->service || watcher->last == status) return;
    Grpc__Health__V1__HealthCheckResponse response = GRPC__HEALTH__V1__HEALTH_CHECK_RESPONSE__INIT;
    response.status = (Grpc__Health__V1__HealthCheckResponse__ServingStatus)status;
    if (kvf_rpc_stream_push(watcher->call, &response.base) == KVF_OK) watcher->last = status;
}

bool rpc_watcher_add(
    kvf_rpc_server *server, kvf_rpc_call *call, const kvf_rpc_call_ops *ops, const char *service, rpc_watcher **out) {
    rpc_watcher *watcher = calloc(1, sizeof *watcher);
    if (watcher && service) watcher->service = strdup(service);
    if (!watcher || (service && !watcher->service)) {
        free(watcher);
        kvf_rpc_fail(call, KVF_RPC_RESOURCE_EXHAUSTED, NULL, "no memory to watch");
        return false;
    }
    watcher->server = server;
    watcher->call = call;
    kvf_rpc_call_bind(call, ops, watcher);
    *out = watcher;
    pthread_mutex_lock(&server->builtin_lock);
    bool draining = server->draining;
    if (service) {
        rpc_health_entry *entry = find(server, service);
        tell(watcher, entry ? (int)entry->health : SERVICE_UNKNOWN);
    }
    if (!draining) {
        kvf_rpc_call_ref(call);
        watcher->next = server->watchers;
        watcher->link = &server->watchers;
        if (watcher->next) watcher->next->link = &watcher->next;
        server->watchers = watcher;
    }
    pthread_mutex_unlock(&server->builtin_lock);
    if (draining) kvf_rpc_fail(call, KVF_RPC_UNAVAILABLE, NULL, "the server is draining");
    return !draining;
}

void rpc_watcher_cancelled(kvf_rpc_call *call, void *user) {
    rpc_watcher *watcher = user;
    pthread_mutex_lock(&watcher->server->builtin_lock);
    bool mine = leave(watcher);
    pthread_mutex_unlock(&watcher->server->builtin_lock);
    if (mine) kvf_rpc_call_unref(call);
}

void rpc_watcher_release(void *user) {
    rpc_watcher *watcher = user;
    KVF_ASSERT(!watcher->link);
    free(watcher->service);
    free(watcher);
}

void kvf_rpc_server_drain(kvf_rpc_server *server) {
    rpc_watcher *ended = NULL;
    pthread_mutex_lock(&server->builtin_lock);
    server->draining = true;
    for (rpc_health_entry *entry = server->health; entry; entry = entry->next)
        entry->health = KVF_RPC_HEALTH_NOT_SERVING;
    while (server->watchers) {
        rpc_watcher *watcher = server->watchers;
        if (watcher->service && find(server, watcher->service)) tell(watcher, KVF_RPC_HEALTH_NOT_SERVING);
        leave(watcher);
        watcher->next = ended;
        ended = watcher;
    }
    pthread_mutex_unlock(&server->builtin_lock);
    while (ended) {
        rpc_watcher *watcher = ended;
        ended = watcher->next;
        kvf_rpc_call *call = watcher->call;
        kvf_rpc_fail(call, KVF_RPC_UNAVAILABLE, NULL, "the server is draining");
        kvf_rpc_call_unref(call); /* may free the watcher */
    }
}

/* ---- Health
 * ---------------------------------------------------------------------------------------------------------- */

static void check(void *self, kvf_rpc_call *call, const ProtobufCMessage *message) {
    kvf_rpc_server *server = self;
    const Grpc__Health__V1__HealthCheckRequest *request = (const void *)message;
    Grpc__Health__V1__HealthCheckResponse response = GRPC__HEALTH__V1__HEALTH_CHECK_RESPONSE__INIT;
    pthread_mutex_lock(&server->builtin_lock);
    rpc_health_entry *entry = find(server, request->service);
    if (entry) response.status = (Grpc__Health__V1__HealthCheckResponse__ServingStatus)entry->health;
    pthread_mutex_unlock(&server->builtin_lock);
    if (entry)
        kvf_rpc_reply(call, &response.base);
    else
        kvf_rpc_fail(call, KVF_RPC_NOT_FOUND, NULL, "unknown service \"%.200s\"", request->service);
}

static const kvf_rpc_call_ops watch_ops = {.on_cancel = rpc_watcher_cancelled, .on_release = rpc_watcher_release};

static void watch(void *self, kvf_rpc_call *call, const ProtobufCMessage *message) {
    const Grpc__Health__V1__HealthCheckRequest *request = (const void *)message;
    rpc_watcher *watcher;
    rpc_watcher_add(self, call, &watch_ops, request->service, &watcher);
}

kvf_status kvf_rpc_health_set(kvf_rpc_server *server, const char *service, kvf_rpc_health health) {
    kvf_status status = KVF_OK;
    pthread_mutex_lock(&server->builtin_lock);
    if (!server->draining) {
        status = put(server, service, health);
        for (rpc_watcher *watcher = server->watchers; watcher; watcher = watcher->next)
            if (watcher->service && strcmp(watcher->service, service) == 0) tell(watcher, (int)health);
    }
    pthread_mutex_unlock(&server->builtin_lock);
    return status;
}

kvf_status rpc_health_init(kvf_rpc_server *server) {
    kvf_status status = put(server, "", KVF_RPC_HEALTH_NOT_SERVING);
    for (size_t i = 0; i < server->method_count && status == KVF_OK; i++) {
        const rpc_method *method = &server->methods[i];
        if (method->builtin || !method->path) continue;
        char name[256];
        size_t len = (size_t)(strrchr(method->path, '/') - method->path) - 1; /* "/service/method" */
        if (len >= sizeof name) continue;
        memcpy(name, method->path + 1, len);
        name[len] = 0;
        status = put(server, name, KVF_RPC_HEALTH_NOT_SERVING);
    }
    return status;
}

void rpc_health_fini(kvf_rpc_server *server) {
    KVF_ASSERT(!server->watchers);
    while (server->health) {
        rpc_health_entry *next = server->health->next;
        free(server->health);
        server->health = next;
    }
}

size_t rpc_builtin_methods(kvf_rpc_server *server, rpc_method *out) {
    static const struct {
        const char *path;
        kvf_rpc_kind kind;
        const ProtobufCMessageDescriptor *input;
        kvf_rpc_handler_fn handler;
    } table[] = {
        {"/grpc.health.v1.Health/Check", KVF_RPC_UNARY, &grpc__health__v1__health_check_request__descriptor, check},
        {"/grpc.health.v1.Health/Watch", KVF_RPC_SERVER_STREAM, &grpc__health__v1__health_check_request__descriptor,
            watch},
        /* v1alpha has the same wire format, so one codec does for both */
        {"/grpc.reflection.v1.ServerReflection/ServerReflectionInfo", KVF_RPC_BIDI,
            &grpc__reflection__v1__server_reflection_request__descriptor, rpc_reflection_handler},
        {"/grpc.reflection.v1alpha.ServerReflection/ServerReflectionInfo", KVF_RPC_BIDI,
            &grpc__reflection__v1__server_reflection_request__descriptor, rpc_reflection_handler},
    };
    for (size_t i = 0; out && i < KVF_COUNT_OF(table); i++) {
        out[i] = (rpc_method){.path = strdup(table[i].path),
            .kind = table[i].kind,
            .input = table[i].input,
            .handler = table[i].handler,
            .self = server,
            .builtin = true};
    }
    return KVF_COUNT_OF(table);
}
