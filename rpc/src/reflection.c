/* grpc.reflection.v1 and v1alpha over embedded FileDescriptorSets. A file goes out as the bytes that protoc wrote; only
 * names and imports are read here (kvf/descriptor.proto). The index never changes after start. */
#include "rpc_int.h"
#include "grpc/reflection/v1/reflection.pb-c.h"
#include "kvf/descriptor.pb-c.h"
#include <stdlib.h>

typedef struct {
    Kvf__Descriptor__File *file;
    ProtobufCBinaryData raw; /* points into a set of the index */
} indexed_file;

struct rpc_index {
    Kvf__Descriptor__FileSet **sets;
    size_t set_count;
    indexed_file *files;
    size_t file_count;
};

static size_t find_file(const rpc_index *index, const char *name) { /* file_count: absent */
    for (size_t i = 0; i < index->file_count; i++)
        if (strcmp(index->files[i].file->name, name) == 0) return i;
    return index->file_count;
}

void rpc_index_destroy(rpc_index *index) {
    if (!index) return;
    for (size_t i = 0; i < index->file_count; i++) kvf__descriptor__file__free_unpacked(index->files[i].file, NULL);
    for (size_t i = 0; i < index->set_count; i++) kvf__descriptor__file_set__free_unpacked(index->sets[i], NULL);
    free(index->files);
    free(index->sets);
    free(index);
}

static kvf_status add_set(rpc_index *index, const Kvf__Descriptor__FileSet *set) {
    indexed_file *files = realloc(index->files, (index->file_count + set->n_file + 1) * sizeof *files);
    if (!files) return KVF_ERR_NO_MEMORY;
    index->files = files;
    for (size_t i = 0; i < set->n_file; i++) {
        Kvf__Descriptor__File *file = kvf__descriptor__file__unpack(NULL, set->file[i].len, set->file[i].data);
        if (!file) return KVF_ERR_INVALID;
        if (find_file(index, file->name) < index->file_count) { /* sets may overlap */
            kvf__descriptor__file__free_unpacked(file, NULL);
            continue;
        }
        files[index->file_count++] = (indexed_file){.file = file, .raw = set->file[i]};
    }
    return KVF_OK;
}

kvf_status rpc_index_create(const kvf_rpc_server_opts *opts, rpc_index **out, kvf_error *err) {
    rpc_index *index = calloc(1, sizeof *index);
    if (index) index->sets = calloc(opts->descriptor_set_count + 1, sizeof *index->sets);
    if (!index || !index->sets) {
        free(index);
        return kvf_fail(err, KVF_ERR_NO_MEMORY, "no memory for the descriptor sets");
    }
    for (size_t i = 0; i < opts->descriptor_set_count; i++) {
        kvf_span span = opts->descriptor_sets[i];
        Kvf__Descriptor__FileSet *set = kvf__descriptor__file_set__unpack(NULL, span.len_bytes, span.data);
        if (set) index->sets[index->set_count++] = set;
        kvf_status status = set ? add_set(index, set) : KVF_ERR_INVALID;
        if (status != KVF_OK) {
            rpc_index_destroy(index);
            return kvf_fail(err, status, "descriptor set %zu %s", i,
                status == KVF_ERR_NO_MEMORY ? "finds no memory" : "is malformed");
        }
    }
    *out = index;
    return KVF_OK;
}

/* ---- Symbols
 * --------------------------------------------------------------------------------------------------------- */

/* If path is name or goes on below it, what is left after it ("" for name itself); NULL otherwise. */
static const char *below(const char *path, const char *name) {
    size_t len = strlen(name);
    if (strncmp(path, name, len) != 0) return NULL;
    if (path[len] == 0) return path + len;
    return path[len] == '.' ? path + len + 1 : NULL;
}

static bool names_hold(Kvf__Descriptor__Named *const *named, size_t count, const char *name) {
    for (size_t i = 0; i < count; i++)
        if (strcmp(named[i]->name, name) == 0) return true;
    return false;
}

/* Values of an enum live beside it, not below it. */
static bool enums_hold(Kvf__Descriptor__Enum *const *enums, size_t count, const char *path) {
    for (size_t i = 0; i < count; i++)
        if (strcmp(enums[i]->name, path) == 0 || names_hold(enums[i]->value, enums[i]->n_value, path)) return true;
    return false;
}

/* Recursion as deep as messages are nested in our own files. */
static bool messages_hold(Kvf__Descriptor__Message *const *messages, size_t count, const char *path) {
    for (size_t i = 0; i < count; i++) {
        const Kvf__Descriptor__Message *message = messages[i];
        const char *rest = below(path, message->name);
        if (!rest) continue;
        if (!*rest || messages_hold(message->nested_type, message->n_nested_type, rest) ||
            enums_hold(message->enum_type, message->n_enum_type, rest) ||
            names_hold(message->field, message->n_field, rest) ||
            names_hold(message->oneof_decl, message->n_oneof_decl, rest))
            return true;
    }
    return false;
}

static bool services_hold(Kvf__Descriptor__Service *const *services, size_t count, const char *path) {
    for (size_t i = 0; i < count; i++) {
        const char *rest = below(path, services[i]->name);
        if (rest && (!*rest || names_hold(services[i]->method, services[i]->n_method, rest))) return true;
    }
    return false;
}

static size_t find_symbol(const rpc_index *index, const char *symbol) {
    for (size_t i = 0; i < index->file_count; i++) {
        const Kvf__Descriptor__File *file = index->files[i].file;
        const char *path = *file->package ? below(symbol, file->package) : symbol;
        if (!path || !*path) continue;
        if (messages_hold(file->message_type, file->n_message_type, path) ||
            enums_hold(file->enum_type, file->n_enum_type, path) || services_hold(file->service, file->n_service, path))
            return i;
    }
    return index->file_count;
}

/* ---- Answers
 * --------------------------------------------------------------------------------------------------------- */

typedef Grpc__Reflection__V1__ServerReflectionResponse response_message;

static void answer_error(kvf_rpc_call *call, response_message *response, kvf_rpc_code code, const char *text) {
    Grpc__Reflection__V1__ErrorResponse error = GRPC__REFLECTION__V1__ERROR_RESPONSE__INIT;
    error.error_code = (int32_t)code;
    error.error_message = (char *)(uintptr_t)text;
    response->message_response_case = GRPC__REFLECTION__V1__SERVER_REFLECTION_RESPONSE__MESSAGE_RESPONSE_ERROR_RESPONSE;
    response->error_response = &error;
    kvf_rpc_stream_push(call, &response->base);
}

/* The file and, after it, everything it imports, each once. */
static void answer_file(kvf_rpc_call *call, response_message *response, const rpc_index *index, size_t at) {
    if (at == index->file_count) {
        answer_error(call, response, KVF_RPC_NOT_FOUND, "no such file or symbol");
        return;
    }
    Grpc__Reflection__V1__FileDescriptorResponse files = GRPC__REFLECTION__V1__FILE_DESCRIPTOR_RESPONSE__INIT;
    size_t *order = calloc(index->file_count, sizeof *order), count = 0;
    ProtobufCBinaryData *raw = calloc(index->file_count, sizeof *raw);
    bool *seen = calloc(index->file_count, sizeof *seen);
    if (!order || !raw || !seen) {
        answer_error(call, response, KVF_RPC_RESOURCE_EXHAUSTED, "no memory for the answer");
        goto out;
    }
    order[count++] = at;
    seen[at] = true;
    for (size_t i = 0; i < count; i++) {
        const Kvf__Descriptor__File *file = index->files[order[i]].file;
        raw[i] = index->files[order[i]].raw;
        for (size_t k = 0; k < file->n_dependency; k++) {
            size_t next = find_file(index, file->dependency[k]);
            if (next == index->file_count || seen[next]) continue;
            seen[next] = true;
            order[count++] = next;
        }
    }
    files.n_file_descriptor_proto = count;
    files.file_descriptor_proto = raw;
    response->message_response_case =
        GRPC__REFLECTION__V1__SERVER_REFLECTION_RESPONSE__MESSAGE_RESPONSE_FILE_DESCRIPTOR_RESPONSE;
    response->file_descriptor_response = &files;
    kvf_rpc_stream_push(call, &response->base);
out:
    free(seen);
    free(raw);
    free(order);
}

/* The services that this server serves, which may be fewer than its files describe. */
static void answer_services(kvf_rpc_call *call, response_message *response, const kvf_rpc_server *server) {
    Grpc__Reflection__V1__ListServiceResponse list = GRPC__REFLECTION__V1__LIST_SERVICE_RESPONSE__INIT;
    Grpc__Reflection__V1__ServiceResponse *services = calloc(server->method_count, sizeof *services);
    Grpc__Reflection__V1__ServiceResponse **pointers = calloc(server->method_count, sizeof *pointers);
    bool fine = services && pointers;
    for (size_t i = 0; i < server->method_count && fine; i++) {
        const char *path = server->methods[i].path;
        if (!path) continue;
        char *name = strndup(path + 1, (size_t)(strrchr(path, '/') - path) - 1);
        size_t k = 0;
        fine = name != NULL;
        if (!fine) break;
        while (k < list.n_service && strcmp(services[k].name, name) != 0) k++;
        if (k < list.n_service) {
            free(name);
            continue;
        }
        grpc__reflection__v1__service_response__init(&services[k]);
        services[k].name = name;
        pointers[k] = &services[k];
        list.n_service++;
    }
    list.service = pointers;
    response->message_response_case =
        GRPC__REFLECTION__V1__SERVER_REFLECTION_RESPONSE__MESSAGE_RESPONSE_LIST_SERVICES_RESPONSE;
    response->list_services_response = &list;
    if (fine)
        kvf_rpc_stream_push(call, &response->base);
    else
        answer_error(call, response, KVF_RPC_RESOURCE_EXHAUSTED, "no memory for the answer");
    for (size_t i = 0; i < list.n_service; i++) free(services[i].name);
    free(pointers);
    free(services);
}

static void answer_extensions(
    kvf_rpc_call *call, response_message *response, const rpc_index *index, const char *type) {
    if (find_symbol(index, type) == index->file_count) {
        answer_error(call, response, KVF_RPC_NOT_FOUND, "no such type");
        return;
    }
    Grpc__Reflection__V1__ExtensionNumberResponse none = GRPC__REFLECTION__V1__EXTENSION_NUMBER_RESPONSE__INIT;
    none.base_type_name = (char *)(uintptr_t)type; /* our files define no extensions */
    response->message_response_case =
        GRPC__REFLECTION__V1__SERVER_REFLECTION_RESPONSE__MESSAGE_RESPONSE_ALL_EXTENSION_NUMBERS_RESPONSE;
    response->all_extension_numbers_response = &none;
    kvf_rpc_stream_push(call, &response->base);
}

static void on_message(kvf_rpc_call *call, void *user, const ProtobufCMessage *message) {
    const kvf_rpc_server *server = ((rpc_watcher *)user)->server;
    const Grpc__Reflection__V1__ServerReflectionRequest *request = (const void *)message;
    response_message response = GRPC__REFLECTION__V1__SERVER_REFLECTION_RESPONSE__INIT;
    if (kvf_rpc_stream_buffered_bytes(call) > server->stream_buffer_bytes_max / 2) {
        kvf_rpc_abort(call, KVF_RPC_RESOURCE_EXHAUSTED, "the client does not read its answers");
        rpc_watcher_cancelled(call, user);
        return;
    }
    response.valid_host = request->host;
    response.original_request = (Grpc__Reflection__V1__ServerReflectionRequest *)(uintptr_t)request;
    switch (request->message_request_case) {
    case GRPC__REFLECTION__V1__SERVER_REFLECTION_REQUEST__MESSAGE_REQUEST_FILE_BY_FILENAME:
        answer_file(call, &response, server->index, find_file(server->index, request->file_by_filename));
        break;
    case GRPC__REFLECTION__V1__SERVER_REFLECTION_REQUEST__MESSAGE_REQUEST_FILE_CONTAINING_SYMBOL:
        answer_file(call, &response, server->index, find_symbol(server->index, request->file_containing_symbol));
        break;
    case GRPC__REFLECTION__V1__SERVER_REFLECTION_REQUEST__MESSAGE_REQUEST_LIST_SERVICES:
        answer_services(call, &response, server);
        break;
    case GRPC__REFLECTION__V1__SERVER_REFLECTION_REQUEST__MESSAGE_REQUEST_ALL_EXTENSION_NUMBERS_OF_TYPE:
        answer_extensions(call, &response, server->index, request->all_extension_numbers_of_type);
        break;
    case GRPC__REFLECTION__V1__SERVER_REFLECTION_REQUEST__MESSAGE_REQUEST_FILE_CONTAINING_EXTENSION:
        answer_error(call, &response, KVF_RPC_NOT_FOUND, "no extensions are defined here");
        break;
    default: answer_error(call, &response, KVF_RPC_INVALID_ARGUMENT, "the request names nothing"); break;
    }
}

static void on_half_close(kvf_rpc_call *call, void *user) {
    kvf_rpc_stream_end(call);
    rpc_watcher_cancelled(call, user); /* leave the list */
}

static const kvf_rpc_call_ops ops = {.on_message = on_message,
    .on_half_close = on_half_close,
    .on_cancel = rpc_watcher_cancelled,
    .on_release = rpc_watcher_release};

void rpc_reflection_handler(void *self, kvf_rpc_call *call, const ProtobufCMessage *request) {
    (void)request;
    rpc_watcher *watcher;
    rpc_watcher_add(self, call, &ops, NULL, &watcher);
}
