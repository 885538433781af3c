#include "client.h"
#include "signals.h"
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/eventfd.h>
#include <unistd.h>

struct kvf_client {
    const char *address; /* borrowed */
    kvf_rpc_runtime *runtime;
    kvf_rpc_channel *channel;
    bool encrypted;
    kvf_signals *signals;
    int interrupt_fd;
    atomic_bool interrupted;
    pthread_mutex_t lock;
    kvf_rpc_reader *running; /* under lock: what a signal cancels */
};

static void on_signal(void *self, int signal, uint32_t times) {
    kvf_client *c = self;
    if (times > 1) kvf_signals_die(signal);
    atomic_store(&c->interrupted, true);
    pthread_mutex_lock(&c->lock);
    if (c->running) kvf_rpc_reader_cancel(c->running);
    pthread_mutex_unlock(&c->lock);
    uint64_t one = 1;
    if (write(c->interrupt_fd, &one, sizeof one) < 0) return; /* it is readable already */
}

static int open_channel(kvf_client *c, const kvf_client_tls *tls) {
    kvf_rpc_channel_opts opts = {.address = c->address};
    kvf_rpc_credentials credentials = {.mode = KVF_RPC_TLS, .peer_name = tls->name};
    kvf_error err = {0};
    if (tls->ca || tls->cert || tls->key) {
        kvf_tls_files files = {tls->cert, tls->key, tls->ca};
        if (!tls->ca) {
            fputs("kvferry: --tls-cert and --tls-key need --tls-ca: whom to believe\n", stderr);
            return KVF_EXIT_USAGE;
        }
        if (kvf_tls_store_open(&files, &credentials.files, &err) != KVF_OK) {
            fprintf(stderr, "kvferry: %s\n", err.message);
            return KVF_EXIT_FAILED;
        }
        opts.credentials = &credentials;
        c->encrypted = true;
    }
    kvf_status status = kvf_rpc_channel_create(c->runtime, &opts, &c->channel);
    kvf_tls_store_close(credentials.files);
    if (status == KVF_OK) return KVF_EXIT_OK;
    fprintf(stderr, "kvferry: \"%s\" is not an address (host:port or unix:/path)\n", c->address);
    return KVF_EXIT_USAGE;
}

kvf_client *kvf_client_open(const char *address, const kvf_client_tls *tls, int *exit_status) {
    kvf_client *c = calloc(1, sizeof *c);
    *exit_status = KVF_EXIT_FAILED;
    if (!c) return NULL;
    c->address = address;
    pthread_mutex_init(&c->lock, NULL);
    c->interrupt_fd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
    if (c->interrupt_fd < 0 || kvf_signals_start(on_signal, c, &c->signals) != KVF_OK) goto failed;
    if (kvf_rpc_runtime_create(&(kvf_rpc_runtime_opts){.loops = 1}, &c->runtime) != KVF_OK) goto failed;
    *exit_status = open_channel(c, tls);
    if (*exit_status == KVF_EXIT_OK) return c;
    kvf_client_close(c);
    return NULL;
failed:
    fputs("kvferry: cannot start the client\n", stderr);
    kvf_client_close(c);
    return NULL;
}

void kvf_client_close(kvf_client *c) {
    if (!c) return;
    if (c->channel) kvf_rpc_channel_destroy(c->channel);
    if (c->runtime) kvf_rpc_runtime_destroy(c->runtime);
    kvf_signals_stop(c->signals);
    if (c->interrupt_fd >= 0) close(c->interrupt_fd);
    pthread_mutex_destroy(&c->lock);
    free(c);
}

bool kvf_client_interrupted(const kvf_client *c) { return atomic_load(&c->interrupted); }
int kvf_client_interrupt_fd(const kvf_client *c) { return c->interrupt_fd; }
kvf_rpc_channel *kvf_client_channel(kvf_client *c) { return c->channel; }
void kvf_client_reset(kvf_client *c) {
    uint64_t count;
    ssize_t n = read(c->interrupt_fd, &count, sizeof count);
    (void)n; /* empty is fine: it does not block */
    atomic_store(&c->interrupted, false);
    kvf_signals_reset(c->signals);
}

static void set_running(kvf_client *c, kvf_rpc_reader *reader) {
    pthread_mutex_lock(&c->lock);
    c->running = reader;
    pthread_mutex_unlock(&c->lock);
    if (reader && atomic_load(&c->interrupted)) kvf_rpc_reader_cancel(reader);
}

kvf_status kvf_client_stream(kvf_client *c, const ProtobufCServiceDescriptor *service, const char *method,
    const ProtobufCMessage *request, uint64_t deadline_ms, kvf_client_message_fn on_message, void *self,
    kvf_rpc_result *result) {
    kvf_rpc_reader *reader = NULL;
    *result = (kvf_rpc_result){.code = KVF_RPC_INTERNAL};
    kvf_status status = kvf_rpc_reader_open(c->channel, service, method, request, deadline_ms, &reader);
    if (status != KVF_OK) {
        snprintf(result->message, sizeof result->message, "%s", kvf_status_text(status));
        return status;
    }
    set_running(c, reader);
    bool enough = false;
    ProtobufCMessage *message;
    while (kvf_rpc_reader_next(reader, &message) == KVF_OK) {
        if (!enough && !on_message(self, &message)) {
            enough = true;
            kvf_rpc_reader_cancel(reader);
        }
        kvf_rpc_message_free(message);
    }
    set_running(c, NULL);
    *result = *kvf_rpc_reader_result(reader);
    kvf_rpc_reader_close(reader);
    if (enough) result->code = KVF_RPC_OK;
    return result->code == KVF_RPC_OK ? KVF_OK : kvf_rpc_status_of(result->code);
}

/* A unary call is a stream of one message: read as such it can be cancelled from another thread. */
static bool keep_answer(void *self, ProtobufCMessage **message) {
    ProtobufCMessage **answer = self;
    if (*answer) return false;
    *answer = *message;
    *message = NULL;
    return true;
}

ProtobufCMessage *kvf_client_try(kvf_client *c, const ProtobufCServiceDescriptor *service, const char *method,
    const ProtobufCMessage *request, uint64_t deadline_ms, kvf_rpc_result *result) {
    kvf_rpc_result own;
    ProtobufCMessage *answer = NULL;
    if (!result) result = &own;
    kvf_status status = kvf_client_stream(c, service, method, request, deadline_ms, keep_answer, &answer, result);
    if (status == KVF_OK && answer) return answer;
    if (status == KVF_OK) {
        result->code = KVF_RPC_INTERNAL;
        snprintf(result->message, sizeof result->message, "the answer is missing");
    }
    kvf_rpc_message_free(answer);
    return NULL;
}

ProtobufCMessage *kvf_client_call(kvf_client *c, const ProtobufCServiceDescriptor *service, const char *method,
    const ProtobufCMessage *request, uint64_t deadline_ms, int *exit_status) {
    kvf_rpc_result result;
    ProtobufCMessage *answer = kvf_client_try(c, service, method, request, deadline_ms, &result);
    *exit_status = answer ? KVF_EXIT_OK : kvf_client_report(c, &result);
    return answer;
}

/* UNAVAILABLE with an ErrorInfo was said by a router that lives; without one it is the library that found nobody. */
static bool nobody(const kvf_rpc_result *r) { return r->code == KVF_RPC_UNAVAILABLE && !r->reason[0]; }

int kvf_client_exit_status(const kvf_rpc_result *result) {
    if (result->code == KVF_RPC_OK) return KVF_EXIT_OK;
    return nobody(result) ? KVF_EXIT_UNAVAILABLE : KVF_EXIT_FAILED;
}

int kvf_client_report(const kvf_client *c, const kvf_rpc_result *r) {
    int status = kvf_client_exit_status(r);
    if (r->code == KVF_RPC_OK) return status;
    if (nobody(r)) {
        fprintf(stderr, "kvferry: nothing answers at %s (%s)%s\n", c->address, r->message,
            c->encrypted ? "" : "; if it speaks TLS: --tls-ca FILE");
        return status;
    }
    if (r->code == KVF_RPC_CANCELLED && kvf_client_interrupted(c)) {
        fputs("kvferry: cancelled\n", stderr);
        return status;
    }
    if (r->code == KVF_RPC_UNIMPLEMENTED) {
        fprintf(stderr,
            "kvferry: %s does not know this call (%s); a router has two listeners: requests go to its grpc= address, "
            "nodes, kv, top, "
            "audit, drain, role and flush to its admin= address\n",
            c->address, r->message);
        return status;
    }
    fprintf(stderr, "kvferry: %s: %s", kvf_rpc_code_name(r->code), r->message);
    if (r->field[0] && !strstr(r->message, r->field)) fprintf(stderr, " (field %s)", r->field);
    if (r->retry_after_ms) fprintf(stderr, " (try again in %llu ms)", (unsigned long long)r->retry_after_ms);
    fputc('\n', stderr);
    return status;
}
