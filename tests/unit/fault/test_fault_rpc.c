/* A runtime, a server, a channel, a call and a session, with each call of ours failing in turn on every thread (gRPC's
 * own memory is its own matter: it stops the process). Servers that stay answer the next call. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>
#include "../rpc/fixture.h"
#include "fault.h"
#include "kvf/log.h"
#include <stdio.h>

static const ProtobufCServiceDescriptor *const echo = &kvf__test__v1__echo__descriptor;

static void say(void *self, kvf_rpc_call *call, const ProtobufCMessage *message) { kvf_rpc_reply(call, message); }
static void talk_message(kvf_rpc_call *call, void *user, const ProtobufCMessage *message) {
    if (kvf_rpc_stream_push(call, message) != KVF_OK) kvf_rpc_abort(call, KVF_RPC_RESOURCE_EXHAUSTED, "cannot answer");
}
static void talk_half_close(kvf_rpc_call *call, void *user) { kvf_rpc_stream_end(call); }
static void talk(void *self, kvf_rpc_call *call, const ProtobufCMessage *message) {
    static const kvf_rpc_call_ops ops = {.on_message = talk_message, .on_half_close = talk_half_close};
    kvf_rpc_call_bind(call, &ops, NULL);
}

static kvf_status serve(kvf_rpc_runtime *rt, kvf_rpc_server **out, kvf_error *err) {
    const kvf_rpc_method methods[] = {
        {.service = echo, .name = "Say", .kind = KVF_RPC_UNARY, .handler = say},
        {.service = echo, .name = "Talk", .kind = KVF_RPC_BIDI, .handler = talk},
    };
    const char *listen[] = {"127.0.0.1:0"};
    kvf_span sets[] = {fixture_descriptor_set()};
    const kvf_rpc_server_opts so = {.listen = listen,
        .listen_count = 1,
        .methods = methods,
        .method_count = KVF_COUNT_OF(methods),
        .descriptor_sets = sets,
        .descriptor_set_count = 1,
        .posted_calls = 1};
    kvf_status status = kvf_rpc_server_start(rt, &so, out, err);
    if (status != KVF_OK) return status;
    status = kvf_rpc_health_set(*out, "later", KVF_RPC_HEALTH_SERVING);
    if (status == KVF_OK) return status;
    kvf_rpc_server_shutdown(*out, 0);
    *out = NULL;
    return status;
}

typedef struct {
    signal_box box;
    uint32_t messages, closed, released;
    kvf_rpc_result result;
} peer;
static void on_message(kvf_rpc_session *session, void *user, const ProtobufCMessage *message) {
    box_add(&((peer *)user)->box, &((peer *)user)->messages, 1);
}
static void on_closed(kvf_rpc_session *session, void *user, const kvf_rpc_result *result) {
    ((peer *)user)->result = *result;
    box_add(&((peer *)user)->box, &((peer *)user)->closed, 1);
}
static void on_release(void *user) { box_add(&((peer *)user)->box, &((peer *)user)->released, 1); }

static kvf_status one_session(kvf_rpc_channel *channel, peer *p) {
    static const kvf_rpc_session_ops ops = {.on_message = on_message, .on_closed = on_closed, .on_release = on_release};
    Kvf__Test__V1__Note note = KVF__TEST__V1__NOTE__INIT;
    kvf_rpc_session *session;
    p->messages = p->closed = p->released = 0;
    kvf_status status = kvf_rpc_session_open(channel, echo, "Talk", 20000, &ops, p, &session);
    if (status != KVF_OK) return status;
    kvf_status pushed = kvf_rpc_session_push(session, &note.base);
    kvf_rpc_session_half_close(session);
    assert_true(box_wait(&p->box, &p->closed, 1));
    kvf_rpc_session_unref(session);
    assert_true(box_wait(&p->box, &p->released, 1));
    if (pushed != KVF_OK) return pushed;
    if (p->result.code == KVF_RPC_OK) assert_int_equal(p->messages, 1);
    return kvf_rpc_status_of(p->result.code);
}

static kvf_status one_call(kvf_rpc_channel *channel) {
    Kvf__Test__V1__Note note = KVF__TEST__V1__NOTE__INIT;
    note.text = (char *)(uintptr_t) "hello";
    ProtobufCMessage *answer = NULL;
    kvf_rpc_result result;
    kvf_status status = kvf_rpc_unary(channel, echo, "Say", &note.base, 20000, &answer, &result);
    if (status == KVF_OK) assert_string_equal(((Kvf__Test__V1__Note *)(void *)answer)->text, "hello");
    kvf_rpc_message_free(answer);
    if (result.code == KVF_RPC_DEADLINE_EXCEEDED) fail_msg("nobody answered");
    return status;
}

/* Everything is made and dropped while calls fail. */
static kvf_status whole_life(void *self, kvf_error *err) {
    peer *p = self;
    kvf_rpc_runtime *rt = NULL;
    kvf_rpc_server *server = NULL;
    kvf_rpc_channel *channel = NULL;
    kvf_status status = kvf_rpc_runtime_create(&(kvf_rpc_runtime_opts){.loops = 1}, &rt);
    if (status != KVF_OK) return status;
    status = serve(rt, &server, err);
    if (status == KVF_OK)
        status =
            kvf_rpc_channel_create(rt, &(kvf_rpc_channel_opts){.address = kvf_rpc_server_address(server, 0)}, &channel);
    if (status == KVF_OK) status = one_call(channel);
    if (status == KVF_OK) status = one_session(channel, p);
    if (channel) kvf_rpc_channel_destroy(channel);
    if (server) kvf_rpc_server_shutdown(server, 1000);
    kvf_rpc_runtime_destroy(rt);
    return status;
}

typedef struct {
    peer p;
    kvf_rpc_channel *channel;
} standing;
static kvf_status calls(void *self, kvf_error *err) {
    standing *s = self;
    (void)err;
    kvf_status status = one_call(s->channel);
    return status == KVF_OK ? one_session(s->channel, &s->p) : status;
}

static void lives(void **state) {
    (void)state;
    peer p = {0};
    box_init(&p.box);
    fault_each(&(fault_scenario){.name = "rpc, whole", .run = whole_life, .self = &p, .all_threads = true});
    box_fini(&p.box);
}

/* The server stays; with one posted call a method that lost it would never answer again. */
static void servers_that_stay(void **state) {
    (void)state;
    standing s = {0};
    kvf_rpc_runtime *rt;
    kvf_rpc_server *server;
    kvf_error err;
    box_init(&s.p.box);
    assert_int_equal(kvf_rpc_runtime_create(&(kvf_rpc_runtime_opts){.loops = 1}, &rt), KVF_OK);
    assert_int_equal(serve(rt, &server, &err), KVF_OK);
    assert_int_equal(
        kvf_rpc_channel_create(rt, &(kvf_rpc_channel_opts){.address = kvf_rpc_server_address(server, 0)}, &s.channel),
        KVF_OK);
    fault_each(&(fault_scenario){
        .name = "rpc, calls", .run = calls, .self = &s, .all_threads = true, .no_repeat = true, .keeps = true});
    kvf_rpc_channel_destroy(s.channel);
    kvf_rpc_server_shutdown(server, 1000);
    kvf_rpc_runtime_destroy(rt);
    box_fini(&s.p.box);
}

int main(void) {
    kvf_log_set_level(KVF_LOG_ERROR);
    const struct CMUnitTest tests[] = {cmocka_unit_test(lives), cmocka_unit_test(servers_that_stay)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
