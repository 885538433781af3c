/* Health (field case GR-06) and reflection. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>
#include <stdio.h>
#include <stdlib.h>
#include "fixture.h"
#include "grpc/health/v1/health.pb-c.h"
#include "grpc/reflection/v1/reflection.pb-c.h"
#include "grpc/reflection/v1alpha/reflection.pb-c.h"
#include "kvf/proto.h"

static const ProtobufCServiceDescriptor *const health = &grpc__health__v1__health__descriptor;
enum { SERVING = 1, NOT_SERVING = 2, SERVICE_UNKNOWN = 3 };

static int check(fixture *f, const char *service, kvf_rpc_code *code) {
    Grpc__Health__V1__HealthCheckRequest request = GRPC__HEALTH__V1__HEALTH_CHECK_REQUEST__INIT;
    request.service = (char *)(uintptr_t)service;
    ProtobufCMessage *answer;
    kvf_rpc_result result;
    int status = -1;
    if (kvf_rpc_unary(f->channel, health, "Check", &request.base, KVF_RPC_NO_DEADLINE, &answer, &result) == KVF_OK) {
        status = (int)((Grpc__Health__V1__HealthCheckResponse *)(void *)answer)->status;
        kvf_rpc_message_free(answer);
    }
    *code = result.code;
    return status;
}

static kvf_rpc_reader *watch(fixture *f, const char *service) {
    Grpc__Health__V1__HealthCheckRequest request = GRPC__HEALTH__V1__HEALTH_CHECK_REQUEST__INIT;
    request.service = (char *)(uintptr_t)service;
    kvf_rpc_reader *reader;
    assert_int_equal(
        kvf_rpc_reader_open(f->channel, health, "Watch", &request.base, KVF_RPC_NO_DEADLINE, &reader), KVF_OK);
    return reader;
}

static int next_status(kvf_rpc_reader *reader) {
    ProtobufCMessage *message;
    if (kvf_rpc_reader_next(reader, &message) != KVF_OK) return -1;
    int status = (int)((Grpc__Health__V1__HealthCheckResponse *)(void *)message)->status;
    kvf_rpc_message_free(message);
    return status;
}

static void health_follows_the_protocol(void **state) {
    static const char *const ours = "kvf.test.v1.Echo";
    fixture f;
    kvf_rpc_code code;
    fixture_start(&f, NULL);
    /* Not serving before somebody says so. */
    assert_int_equal(check(&f, "", &code), NOT_SERVING);
    assert_int_equal(check(&f, ours, &code), NOT_SERVING);
    assert_int_equal(check(&f, "nope", &code), -1);
    assert_int_equal(code, KVF_RPC_NOT_FOUND);

    kvf_rpc_reader *one = watch(&f, ours), *two = watch(&f, ours), *unknown = watch(&f, "later");
    assert_int_equal(next_status(one), NOT_SERVING);
    assert_int_equal(next_status(two), NOT_SERVING);
    assert_int_equal(next_status(unknown), SERVICE_UNKNOWN);
    kvf_rpc_health_set(f.server, ours, KVF_RPC_HEALTH_SERVING);
    kvf_rpc_health_set(f.server, ours, KVF_RPC_HEALTH_SERVING); /* no change: not told again */
    kvf_rpc_health_set(f.server, "later", KVF_RPC_HEALTH_SERVING);
    assert_int_equal(check(&f, ours, &code), SERVING);
    assert_int_equal(next_status(one), SERVING);
    assert_int_equal(next_status(unknown), SERVING);
    kvf_rpc_health_set(f.server, ours, KVF_RPC_HEALTH_NOT_SERVING);
    kvf_rpc_health_set(f.server, ours, KVF_RPC_HEALTH_SERVING);
    assert_int_equal(next_status(one), NOT_SERVING);
    assert_int_equal(next_status(one), SERVING);
    kvf_rpc_reader_close(one); /* a watcher that leaves */

    /* Draining: told once, then the watch is ended by us, and checks go on being answered. */
    kvf_rpc_server_drain(f.server);
    kvf_rpc_health_set(f.server, ours, KVF_RPC_HEALTH_SERVING);
    static const int seen[] = {SERVING, NOT_SERVING, SERVING, NOT_SERVING, -1};
    for (size_t i = 0; i < KVF_COUNT_OF(seen); i++) assert_int_equal(next_status(two), seen[i]);
    assert_int_equal(kvf_rpc_reader_result(two)->code, KVF_RPC_UNAVAILABLE);
    kvf_rpc_reader_close(two);
    assert_int_equal(next_status(unknown), NOT_SERVING);
    assert_int_equal(next_status(unknown), -1);
    kvf_rpc_reader_close(unknown);
    assert_int_equal(check(&f, ours, &code), NOT_SERVING);
    kvf_rpc_reader *late = watch(&f, ours);
    assert_int_equal(next_status(late), NOT_SERVING);
    assert_int_equal(next_status(late), -1);
    kvf_rpc_reader_close(late);
    fixture_stop(&f);
}

static void watchers_do_not_hold_up_a_shutdown(void **state) {
    fixture f;
    fixture_start(&f, NULL);
    kvf_rpc_reader *reader = watch(&f, "");
    assert_int_equal(next_status(reader), NOT_SERVING);
    assert_true(kvf_rpc_server_shutdown(f.server, 600000));
    assert_int_equal(next_status(reader), -1);
    kvf_rpc_reader_close(reader);
    f.server = NULL;
    fixture_stop(&f);
}

/* ---- Reflection
 * ------------------------------------------------------------------------------------------------------ */

typedef struct {
    signal_box box;
    uint32_t answers, closed, released;
    char text[4096]; /* what the answers said */
    size_t files;
    kvf_rpc_result result;
} reflected;

static void on_answer(kvf_rpc_session *session, void *user, const ProtobufCMessage *message) {
    reflected *r = user;
    const Grpc__Reflection__V1__ServerReflectionResponse *response = (const void *)message;
    size_t used = strlen(r->text);
    char *end = r->text + used;
    size_t room = sizeof r->text - used;
    switch (response->message_response_case) {
    case GRPC__REFLECTION__V1__SERVER_REFLECTION_RESPONSE__MESSAGE_RESPONSE_LIST_SERVICES_RESPONSE:
        for (size_t i = 0; i < response->list_services_response->n_service; i++) {
            int n = snprintf(end, room, "%s;", response->list_services_response->service[i]->name);
            end += n;
            room -= (size_t)n;
        }
        break;
    case GRPC__REFLECTION__V1__SERVER_REFLECTION_RESPONSE__MESSAGE_RESPONSE_FILE_DESCRIPTOR_RESPONSE: {
        const Grpc__Reflection__V1__FileDescriptorResponse *files = response->file_descriptor_response;
        r->files += files->n_file_descriptor_proto;
        /* FileDescriptorProto.name is its first field: tag, length, text */
        const uint8_t *first = files->file_descriptor_proto[0].data;
        snprintf(end, room, "%.*s;", (int)first[1], (const char *)first + 2);
        break;
    }
    case GRPC__REFLECTION__V1__SERVER_REFLECTION_RESPONSE__MESSAGE_RESPONSE_ALL_EXTENSION_NUMBERS_RESPONSE:
        snprintf(end, room, "extensions;");
        break;
    default: snprintf(end, room, "error %d;", response->error_response->error_code); break;
    }
    box_add(&r->box, &r->answers, 1);
}

static void on_reflection_closed(kvf_rpc_session *session, void *user, const kvf_rpc_result *result) {
    ((reflected *)user)->result = *result;
    box_add(&((reflected *)user)->box, &((reflected *)user)->closed, 1);
}

static const kvf_rpc_session_ops reflection_ops = {.on_message = on_answer, .on_closed = on_reflection_closed};

typedef Grpc__Reflection__V1__ServerReflectionRequest question;
#define ASK(field, kind, value)                                                                                        \
    do {                                                                                                               \
        question q = GRPC__REFLECTION__V1__SERVER_REFLECTION_REQUEST__INIT;                                            \
        q.message_request_case = GRPC__REFLECTION__V1__SERVER_REFLECTION_REQUEST__MESSAGE_REQUEST_##kind;              \
        q.field = (char *)(uintptr_t)(value);                                                                          \
        assert_int_equal(kvf_rpc_session_push(session, &q.base), KVF_OK);                                              \
        assert_true(box_wait(&r.box, &r.answers, ++asked));                                                            \
    } while (0)

static void ask_everything(fixture *f, const ProtobufCServiceDescriptor *service) {
    reflected r = {0};
    uint32_t asked = 0;
    kvf_rpc_session *session;
    box_init(&r.box);
    assert_int_equal(kvf_rpc_session_open(f->channel, service, "ServerReflectionInfo", KVF_RPC_NO_DEADLINE,
                         &reflection_ops, &r, &session),
        KVF_OK);
    ASK(list_services, LIST_SERVICES, "");
    assert_string_equal(r.text, "kvf.test.v1.Echo;grpc.health.v1.Health;grpc.reflection.v1.ServerReflection;"
                                "grpc.reflection.v1alpha.ServerReflection;");
    static const struct {
        const char *symbol, *file;
    } symbols[] = {{"kvf.test.v1.Echo", "echo.proto;"}, {"kvf.test.v1.Echo.Say", "echo.proto;"},
        {"kvf.test.v1.Note", "echo.proto;"}, {"kvf.test.v1.Note.number", "echo.proto;"},
        {"kvferry.v1.Inference.Generate", "kvferry/v1/kvferry.proto;"},
        {"kvferry.v1.ROLE_PREFILL", "kvferry/v1/kvferry.proto;"},
        {"kvferry.v1.GenerateRequest.input", "kvferry/v1/kvferry.proto;"},
        {"grpc.health.v1.HealthCheckResponse.ServingStatus", "grpc/health/v1/health.proto;"},
        {"grpc.health.v1.HealthCheckResponse.SERVING", "grpc/health/v1/health.proto;"}, {"kvf.test.v1.Not", "error 5;"},
        {"kvf.test.v1", "error 5;"}, {"", "error 5;"}};
    for (size_t i = 0; i < KVF_COUNT_OF(symbols); i++) {
        r.text[0] = 0;
        ASK(file_containing_symbol, FILE_CONTAINING_SYMBOL, symbols[i].symbol);
        assert_string_equal(r.text, symbols[i].file);
    }
    r.text[0] = 0;
    ASK(file_by_filename, FILE_BY_FILENAME, "kvferry/v1/kvferry.proto");
    ASK(file_by_filename, FILE_BY_FILENAME, "no/such.proto");
    ASK(all_extension_numbers_of_type, ALL_EXTENSION_NUMBERS_OF_TYPE, "kvf.test.v1.Note");
    ASK(all_extension_numbers_of_type, ALL_EXTENSION_NUMBERS_OF_TYPE, "kvf.test.v1.Nothing");
    assert_string_equal(r.text, "kvferry/v1/kvferry.proto;error 5;extensions;error 5;");
    kvf_rpc_session_half_close(session);
    assert_true(box_wait(&r.box, &r.closed, 1));
    assert_int_equal(r.result.code, KVF_RPC_OK);
    kvf_rpc_session_unref(session);
    box_fini(&r.box);
}

static void reflection_answers_in_both_versions(void **state) {
    /* Same wire format: the v1 messages travel through the v1alpha path as well, so a table for it is made here. */
    ProtobufCServiceDescriptor alpha = grpc__reflection__v1alpha__server_reflection__descriptor;
    ProtobufCMethodDescriptor method = alpha.methods[0];
    method.output = &grpc__reflection__v1__server_reflection_response__descriptor;
    alpha.methods = &method;
    fixture f;
    fixture_start(&f, NULL);
    ask_everything(&f, &grpc__reflection__v1__server_reflection__descriptor);
    ask_everything(&f, &alpha);
    /* A stream left open does not hold up a shutdown. */
    reflected r = {0};
    box_init(&r.box);
    kvf_rpc_session *session;
    uint32_t asked = 0;
    assert_int_equal(kvf_rpc_session_open(f.channel, &grpc__reflection__v1__server_reflection__descriptor,
                         "ServerReflectionInfo", KVF_RPC_NO_DEADLINE, &reflection_ops, &r, &session),
        KVF_OK);
    ASK(list_services, LIST_SERVICES, "");
    assert_true(kvf_rpc_server_shutdown(f.server, 600000));
    assert_true(box_wait(&r.box, &r.closed, 1));
    assert_int_equal(r.result.code, KVF_RPC_UNAVAILABLE);
    kvf_rpc_session_unref(session);
    f.server = NULL;
    fixture_stop(&f);
    box_fini(&r.box);
}

static void published_set_keeps_optional_and_string(void **state) {
    kvf_span set = kvf_proto_public_set();
    assert_true(set.len_bytes > 1000);
    /* The synthetic oneof of a proto3 optional is "_top_p", and it is in the published file as protoc makes it. */
    assert_non_null(memmem(set.data, set.len_bytes, "_top_p", 6));
    assert_non_null(memmem(set.data, set.len_bytes, "kvferry/v1;kvferryv1", 20));
    char name[8];
    assert_true(kvf_proto_text_copy(kvf_proto_text("abc"), name, sizeof name));
    assert_string_equal(name, "abc");
    assert_false(kvf_proto_text_copy(kvf_proto_text("12345678"), name, sizeof name));
    assert_false(kvf_proto_text_copy(kvf_proto_bytes("a\0b", 3), name, sizeof name));
    assert_true(kvf_proto_text_equal(kvf_proto_text("abc"), "abc"));
    assert_false(kvf_proto_text_equal(kvf_proto_bytes("abc\0", 4), "abc"));
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(health_follows_the_protocol),
        cmocka_unit_test(watchers_do_not_hold_up_a_shutdown),
        cmocka_unit_test(reflection_answers_in_both_versions),
        cmocka_unit_test(published_set_keeps_optional_and_string),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
