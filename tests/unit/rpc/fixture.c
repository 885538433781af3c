#include "fixture.h"
#include "kvf/proto.h"
#include <stdio.h>
#include <stdlib.h>
#include <time.h>

/* c-ares 1.18 loses the ten bytes of a name like localhost that it resolves; asked for by the leak sanitizer. */
__attribute__((visibility("default"))) const char *__lsan_default_suppressions(void);
const char *__lsan_default_suppressions(void) { return "leak:libcares"; }

extern const uint8_t echo_set_begin[], echo_set_end[];

kvf_span fixture_descriptor_set(void) {
    return (kvf_span){
        .data = echo_set_begin, .len_bytes = (size_t)((uintptr_t)echo_set_end - (uintptr_t)echo_set_begin)};
}

void box_init(signal_box *box) {
    pthread_condattr_t attributes;
    pthread_condattr_init(&attributes);
    pthread_condattr_setclock(&attributes, CLOCK_MONOTONIC);
    pthread_cond_init(&box->changed, &attributes);
    pthread_condattr_destroy(&attributes);
    pthread_mutex_init(&box->lock, NULL);
}

void box_fini(signal_box *box) {
    pthread_cond_destroy(&box->changed);
    pthread_mutex_destroy(&box->lock);
}

void box_add(signal_box *box, uint32_t *counter, uint32_t by) {
    pthread_mutex_lock(&box->lock);
    *counter += by;
    pthread_cond_broadcast(&box->changed);
    pthread_mutex_unlock(&box->lock);
}

bool box_wait(signal_box *box, const uint32_t *counter, uint32_t at_least) {
    struct timespec until;
    clock_gettime(CLOCK_MONOTONIC, &until);
    until.tv_sec += COUNTERS_TIMEOUT_S;
    int late = 0;
    pthread_mutex_lock(&box->lock);
    while (*counter < at_least && !late) late = pthread_cond_timedwait(&box->changed, &box->lock, &until);
    bool there = *counter >= at_least;
    pthread_mutex_unlock(&box->lock);
    return there;
}

/* ---- Say
 * ------------------------------------------------------------------------------------------------------------- */

static void on_cancel(kvf_rpc_call *call, void *user) {
    box_add(&((fixture *)user)->box, &((fixture *)user)->cancelled, 1);
}
static void on_release(void *user) { box_add(&((fixture *)user)->box, &((fixture *)user)->released, 1); }
static const kvf_rpc_call_ops say_ops = {.on_cancel = on_cancel, .on_release = on_release};

static void hold(fixture *f, kvf_rpc_call *call) {
    pthread_mutex_lock(&f->box.lock);
    KVF_ASSERT(f->held_count < HELD_MAX);
    f->held[f->held_count++] = kvf_rpc_call_ref(call);
    f->left_ms = kvf_rpc_call_left_ms(call);
    pthread_cond_broadcast(&f->box.changed);
    pthread_mutex_unlock(&f->box.lock);
}

static void say(void *self, kvf_rpc_call *call, const ProtobufCMessage *message) {
    fixture *f = self;
    const Kvf__Test__V1__Note *note = (const void *)message;
    kvf_rpc_call_bind(call, &say_ops, f);
    if (strcmp(note->text, "hold") == 0) {
        hold(f, call);
    } else if (strcmp(note->text, "drop") == 0) {
        return;
    } else if (strcmp(note->text, "fail") == 0) {
        kvf_rpc_pair pairs[] = {{"limit", "8192"}, {"unit", "tokens"}};
        kvf_rpc_details details = {.reason = "PROMPT_TOO_LONG",
            .metadata = pairs,
            .metadata_count = 2,
            .field = "text",
            .field_text = "too long \xc3\xbc",
            .retry_after_ms = 1500};
        kvf_rpc_fail(call, KVF_RPC_INVALID_ARGUMENT, &details, "prompt has %d tokens\n100%% \xc3\xbc \xff", 9000);
    } else if (strcmp(note->text, "cancel") == 0) { /* as gRPC does with what it has not handed out */
        kvf_rpc_fail(call, KVF_RPC_CANCELLED, NULL, "Cancelled");
    } else if (strcmp(note->text, "peer") == 0) {
        Kvf__Test__V1__Note answer = KVF__TEST__V1__NOTE__INIT;
        answer.text = (char *)(uintptr_t)kvf_rpc_call_peer(call);
        kvf_rpc_reply(call, &answer.base);
    } else if (strncmp(note->text, "proves ", 7) == 0) {
        char who[64];
        if (kvf_rpc_call_proves(call, note->text + 7, who, sizeof who))
            kvf_rpc_reply(call, message);
        else
            kvf_rpc_fail(call, KVF_RPC_PERMISSION_DENIED, NULL, "%s", who);
    } else if (strcmp(note->text, "agent") == 0) {
        Kvf__Test__V1__Note answer = KVF__TEST__V1__NOTE__INIT;
        kvf_span value = {0};
        answer.number = kvf_rpc_call_metadata(call, "no-such-key", &value);
        KVF_ASSERT(kvf_rpc_call_metadata(call, "user-agent", &value));
        answer.payload = kvf_proto_bytes(value.data, value.len_bytes);
        kvf_rpc_reply(call, &answer.base);
    } else {
        kvf_rpc_reply(call, message);
        KVF_ASSERT(kvf_rpc_reply(call, message) == KVF_ERR_GONE);
    }
}

/* ---- Count
 * ----------------------------------------------------------------------------------------------------------- */

typedef struct {
    fixture *f;
    kvf_rpc_call *call;
    Kvf__Test__V1__CountRequest request;
    uint32_t go; /* raised by writable and cancel */
    bool last;
} counting;

static void count_wake(kvf_rpc_call *call, void *user) {
    counting *c = user;
    box_add(&c->f->box, &c->go, 1);
}

static void count_cancel(kvf_rpc_call *call, void *user) {
    counting *c = user;
    box_add(&c->f->box, &c->f->cancelled, 1);
    box_add(&c->f->box, &c->go, 1);
}

static void count_release(void *user) {
    counting *c = user;
    fixture *f = c->f;
    free(c);
    on_release(f);
}

static const kvf_rpc_call_ops count_ops = {
    .on_cancel = count_cancel, .on_writable = count_wake, .on_release = count_release};

static void count_push(counting *c) {
    uint8_t *pad = calloc(1, c->request.pad_bytes + 1);
    for (uint64_t i = 0; i < c->request.count; i++) {
        Kvf__Test__V1__Note note = KVF__TEST__V1__NOTE__INIT;
        note.number = i;
        note.payload = kvf_proto_bytes(pad, c->request.pad_bytes);
        for (;;) {
            pthread_mutex_lock(&c->f->box.lock);
            uint32_t seen = c->go;
            pthread_mutex_unlock(&c->f->box.lock);
            kvf_status status = kvf_rpc_stream_push(c->call, &note.base);
            size_t buffered = kvf_rpc_stream_buffered_bytes(c->call);
            pthread_mutex_lock(&c->f->box.lock);
            if (buffered > c->f->buffered_most) c->f->buffered_most = buffered;
            pthread_mutex_unlock(&c->f->box.lock);
            if (status == KVF_OK) break;
            if (status == KVF_AGAIN && c->request.give_up)
                kvf_rpc_abort(c->call, KVF_RPC_RESOURCE_EXHAUSTED, "slow reader");
            if (status == KVF_ERR_GONE || c->request.give_up || !box_wait(&c->f->box, &c->go, seen + 1)) goto out;
        }
    }
    kvf_rpc_stream_end(c->call);
out:
    free(pad);
}

static void *count_thread(void *self) {
    counting *c = self;
    fixture *f = c->f;
    count_push(c);
    kvf_rpc_call_unref(c->call);
    pthread_mutex_lock(&f->box.lock);
    f->producers--;
    pthread_cond_broadcast(&f->box.changed);
    pthread_mutex_unlock(&f->box.lock);
    return NULL;
}

static void count(void *self, kvf_rpc_call *call, const ProtobufCMessage *message) {
    counting *c = calloc(1, sizeof *c);
    c->f = self;
    c->call = call;
    c->request = *(const Kvf__Test__V1__CountRequest *)(const void *)message;
    kvf_rpc_call_bind(call, &count_ops, c);
    if (c->request.wait) {
        kvf_rpc_stream_push_packed(call, (kvf_span){0}); /* the empty note */
        hold(c->f, call);
        return;
    }
    pthread_mutex_lock(&c->f->box.lock);
    c->f->producers++;
    pthread_mutex_unlock(&c->f->box.lock);
    kvf_rpc_call_ref(call);
    pthread_t thread;
    KVF_ASSERT(pthread_create(&thread, NULL, count_thread, c) == 0);
    pthread_detach(thread);
}

/* ---- Talk
 * ------------------------------------------------------------------------------------------------------------ */

static void talk_message(kvf_rpc_call *call, void *user, const ProtobufCMessage *message) {
    fixture *f = user;
    const Kvf__Test__V1__Note *note = (const void *)message;
    pthread_mutex_lock(&f->box.lock);
    f->talk_seen++;
    bool quiet = f->quiet_talk;
    pthread_mutex_unlock(&f->box.lock);
    if (strcmp(note->text, "hold") == 0)
        hold(f, call);
    else if (!quiet)
        KVF_ASSERT(kvf_rpc_stream_push(call, message) != KVF_AGAIN);
}

static void talk_half_close(kvf_rpc_call *call, void *user) {
    fixture *f = user;
    box_add(&f->box, &f->half_closed, 1);
    kvf_rpc_stream_end(call);
}

static const kvf_rpc_call_ops talk_ops = {
    .on_message = talk_message, .on_half_close = talk_half_close, .on_cancel = on_cancel, .on_release = on_release};

static void talk(void *self, kvf_rpc_call *call, const ProtobufCMessage *message) {
    KVF_ASSERT(!message);
    kvf_rpc_call_bind(call, &talk_ops, self);
}

/* ---- Start and stop
 * -------------------------------------------------------------------------------------------------- */

const kvf_rpc_method *fixture_methods(fixture *f, kvf_rpc_method out[3]) {
    out[0] = (kvf_rpc_method){&kvf__test__v1__echo__descriptor, "Say", KVF_RPC_UNARY, say, f};
    out[1] = (kvf_rpc_method){&kvf__test__v1__echo__descriptor, "Count", KVF_RPC_SERVER_STREAM, count, f};
    out[2] = (kvf_rpc_method){&kvf__test__v1__echo__descriptor, "Talk", KVF_RPC_BIDI, talk, f};
    return out;
}

void fixture_serve(fixture *f, const char *address, const kvf_rpc_server_opts *extra) {
    kvf_rpc_method methods[3];
    kvf_error err;
    kvf_span sets[] = {fixture_descriptor_set(), kvf_proto_public_set()};
    kvf_rpc_server_opts opts = extra ? *extra : (kvf_rpc_server_opts){0};
    opts.listen = &address;
    opts.listen_count = 1;
    opts.methods = fixture_methods(f, methods);
    opts.method_count = 3;
    opts.descriptor_sets = sets;
    opts.descriptor_set_count = 2;
    if (kvf_rpc_server_start(f->rt, &opts, &f->server, &err) != KVF_OK) {
        fprintf(stderr, "%s\n", err.message);
        abort();
    }
}

kvf_rpc_channel *fixture_channel(fixture *f, const char *address) {
    kvf_rpc_channel_opts opts = {.address = address};
    kvf_rpc_channel *channel;
    KVF_ASSERT(kvf_rpc_channel_create(f->rt, &opts, &channel) == KVF_OK);
    return channel;
}

void fixture_start(fixture *f, const kvf_rpc_server_opts *extra) {
    memset(f, 0, sizeof *f);
    box_init(&f->box);
    KVF_ASSERT(kvf_rpc_runtime_create(NULL, &f->rt) == KVF_OK);
    fixture_serve(f, "127.0.0.1:0", extra);
    f->channel = fixture_channel(f, kvf_rpc_server_address(f->server, 0));
}

void fixture_stop(fixture *f) {
    kvf_rpc_channel_destroy(f->channel);
    kvf_rpc_server_shutdown(f->server, 0);
    kvf_rpc_runtime_destroy(f->rt);
    pthread_mutex_lock(&f->box.lock); /* detached producers end by themselves: their calls are gone */
    while (f->producers > 0) pthread_cond_wait(&f->box.changed, &f->box.lock);
    pthread_mutex_unlock(&f->box.lock);
    for (uint32_t i = 0; i < f->held_count; i++) kvf_rpc_call_unref(f->held[i]);
    box_fini(&f->box);
}
