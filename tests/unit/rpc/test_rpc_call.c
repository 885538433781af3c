/* Server calls, against our own blocking client. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>
#include "fixture.h"
#include "kvf/proto.h"
#include "kvf/utf8.h"
#include "kvferry/v1/kvferry.pb-c.h"

static const ProtobufCServiceDescriptor *const echo = &kvf__test__v1__echo__descriptor;

static kvf_status ask(
    fixture *f, const char *text, uint64_t deadline_ms, Kvf__Test__V1__Note **answer, kvf_rpc_result *result) {
    Kvf__Test__V1__Note note = KVF__TEST__V1__NOTE__INIT;
    note.text = (char *)(uintptr_t)text;
    note.number = 42;
    ProtobufCMessage *message = NULL;
    kvf_status status = kvf_rpc_unary(f->channel, echo, "Say", &note.base, deadline_ms, &message, result);
    if (answer)
        *answer = (void *)message;
    else
        kvf_rpc_message_free(message);
    return status;
}

static kvf_rpc_reader *count_to(fixture *f, uint64_t count, uint32_t pad_bytes, bool wait, bool give_up) {
    Kvf__Test__V1__CountRequest request = KVF__TEST__V1__COUNT_REQUEST__INIT;
    request.count = count;
    request.pad_bytes = pad_bytes;
    request.wait = wait;
    request.give_up = give_up;
    kvf_rpc_reader *reader;
    assert_int_equal(
        kvf_rpc_reader_open(f->channel, echo, "Count", &request.base, KVF_RPC_NO_DEADLINE, &reader), KVF_OK);
    return reader;
}

/* Reads to the end; every message must have the next number. */
static uint64_t read_all(kvf_rpc_reader *reader) {
    uint64_t got = 0;
    ProtobufCMessage *message;
    while (kvf_rpc_reader_next(reader, &message) == KVF_OK) {
        assert_int_equal(((Kvf__Test__V1__Note *)(void *)message)->number, got);
        got++;
        kvf_rpc_message_free(message);
    }
    return got;
}

static void unary_call_is_answered(void **state) {
    fixture f;
    Kvf__Test__V1__Note *answer;
    kvf_rpc_result result;
    fixture_start(&f, NULL);
    assert_int_equal(ask(&f, "hello", 60000, &answer, &result), KVF_OK);
    assert_string_equal(answer->text, "hello");
    assert_int_equal(answer->number, 42);
    assert_int_equal(result.code, KVF_RPC_OK);
    kvf_rpc_message_free(&answer->base);
    assert_int_equal(ask(&f, "peer", 60000, &answer, NULL), KVF_OK);
    assert_memory_equal(answer->text, "ipv4:127.0.0.1:", 15);
    kvf_rpc_message_free(&answer->base);
    assert_int_equal(ask(&f, "agent", 60000, &answer, NULL), KVF_OK);
    assert_int_equal(answer->number, 0);
    assert_true(answer->payload.len > 4);
    assert_memory_equal(answer->payload.data, "grpc", 4);
    kvf_rpc_message_free(&answer->base);
    assert_true(box_wait(&f.box, &f.released, 3));
    fixture_stop(&f);
}

/* A few wire bytes per sub-message ask for a hundred bytes of memory each: the server does not go along. */
static void inflated_message_is_refused(void **state) {
    enum { EMPTY_MESSAGES = 1 << 20 };
    fixture f;
    kvf_rpc_result r;
    fixture_start(&f, NULL);
    kvf_rpc_method method = *fixture_methods(&f, (kvf_rpc_method[3]){0});
    method.service = &kvferry__v1__inference__descriptor;
    method.name = "Complete";
    const char *listen = "127.0.0.1:0";
    kvf_rpc_server_opts opts = {.listen = &listen, .listen_count = 1, .methods = &method, .method_count = 1};
    kvf_rpc_server *server;
    assert_int_equal(kvf_rpc_server_start(f.rt, &opts, &server, NULL), KVF_OK);
    kvf_rpc_channel *channel = fixture_channel(&f, kvf_rpc_server_address(server, 0));
    Kvferry__V1__GenerateRequest request = KVFERRY__V1__GENERATE_REQUEST__INIT;
    Kvferry__V1__ChatInput chat = KVFERRY__V1__CHAT_INPUT__INIT;
    Kvferry__V1__ChatMessage empty = KVFERRY__V1__CHAT_MESSAGE__INIT;
    chat.n_messages = EMPTY_MESSAGES;
    chat.messages = malloc(EMPTY_MESSAGES * sizeof *chat.messages);
    for (size_t i = 0; i < EMPTY_MESSAGES; i++) chat.messages[i] = &empty;
    request.input_case = KVFERRY__V1__GENERATE_REQUEST__INPUT_CHAT;
    request.chat = &chat;
    ProtobufCMessage *message;
    kvf_status status = kvf_rpc_unary(
        channel, &kvferry__v1__inference__descriptor, "Complete", &request.base, KVF_RPC_NO_DEADLINE, &message, &r);
    assert_int_equal(status, KVF_ERR_INVALID);
    free(chat.messages);
    kvf_rpc_channel_destroy(channel);
    kvf_rpc_server_shutdown(server, 0);
    fixture_stop(&f);
}

static void errors_carry_their_details(void **state) {
    fixture f;
    kvf_rpc_result r;
    fixture_start(&f, NULL);
    assert_int_equal(ask(&f, "fail", 60000, NULL, &r), KVF_ERR_INVALID);
    assert_int_equal(r.code, KVF_RPC_INVALID_ARGUMENT);
    assert_string_equal(r.message, "prompt has 9000 tokens\n100% \xc3\xbc ?");
    assert_string_equal(r.reason, "PROMPT_TOO_LONG");
    assert_string_equal(r.domain, "kvferry");
    assert_int_equal(r.metadata_count, 2);
    assert_string_equal(r.metadata[0].key, "limit");
    assert_string_equal(r.metadata[0].value, "8192");
    assert_string_equal(r.field, "text");
    assert_string_equal(r.field_text, "too long \xc3\xbc");
    assert_int_equal(r.retry_after_ms, 1500);
    fixture_stop(&f);
}

static void dropped_call_fails_instead_of_hanging(void **state) {
    fixture f;
    kvf_rpc_result r;
    fixture_start(&f, NULL);
    assert_int_equal(ask(&f, "drop", KVF_RPC_NO_DEADLINE, NULL, &r), KVF_ERR_INTERNAL);
    assert_int_equal(r.code, KVF_RPC_INTERNAL);
    assert_int_equal(r.reason[0], 0);
    fixture_stop(&f);
}

static void stream_of_10000_comes_in_order(void **state) {
    fixture f;
    fixture_start(&f, NULL);
    kvf_rpc_reader *reader = count_to(&f, 10000, 10, false, false);
    assert_int_equal(read_all(reader), 10000);
    assert_int_equal(kvf_rpc_reader_result(reader)->code, KVF_RPC_OK);
    kvf_rpc_reader_close(reader);
    fixture_stop(&f);
}

/* Field case GR-08. */
static void slow_reader_hits_the_limit_and_others_flow(void **state) {
    enum { LIMIT = 64 << 10, OTHERS = 9, MESSAGES = 2000 };
    fixture f;
    fixture_start(&f, &(kvf_rpc_server_opts){.stream_buffer_bytes_max = LIMIT});
    kvf_rpc_reader *slow = count_to(&f, 1000000, 1000, false, true), *others[OTHERS];
    for (int i = 0; i < OTHERS; i++) others[i] = count_to(&f, MESSAGES, 1000, false, false);
    for (int i = 0; i < OTHERS; i++) {
        assert_int_equal(read_all(others[i]), MESSAGES);
        assert_int_equal(kvf_rpc_reader_result(others[i])->code, KVF_RPC_OK);
        kvf_rpc_reader_close(others[i]);
    }
    assert_true(box_wait(&f.box, &f.released, OTHERS + 1)); /* the slow one ended without being read */
    assert_in_range(f.buffered_most, 1, LIMIT);
    assert_in_range(read_all(slow), 0, 999999);
    assert_int_equal(kvf_rpc_reader_result(slow)->code, KVF_RPC_RESOURCE_EXHAUSTED);
    assert_string_equal(kvf_rpc_reader_result(slow)->message, "slow reader");
    kvf_rpc_reader_close(slow);
    assert_int_equal(f.cancelled, 0); /* we ended it ourselves */
    fixture_stop(&f);
}

static void cancel_is_seen_once_and_pushes_are_gone(void **state) {
    fixture f;
    ProtobufCMessage *message;
    fixture_start(&f, NULL);
    kvf_rpc_reader *reader = count_to(&f, 0, 0, true, false);
    assert_int_equal(kvf_rpc_reader_next(reader, &message), KVF_OK);
    kvf_rpc_message_free(message);
    assert_true(box_wait(&f.box, &f.held_count, 1));
    assert_false(kvf_rpc_call_gone(f.held[0]));
    assert_int_equal(kvf_rpc_server_calls(f.server), 1);
    assert_string_equal(kvf_rpc_call_path(f.held[0]), "/kvf.test.v1.Echo/Count");
    assert_true(kvf_rpc_call_left_ms(f.held[0]) == UINT64_MAX);
    kvf_rpc_reader_close(reader);
    assert_true(box_wait(&f.box, &f.cancelled, 1));
    Kvf__Test__V1__Note note = KVF__TEST__V1__NOTE__INIT;
    assert_int_equal(kvf_rpc_stream_push(f.held[0], &note.base), KVF_ERR_GONE);
    assert_int_equal(kvf_rpc_stream_end(f.held[0]), KVF_ERR_GONE);
    assert_int_equal(kvf_rpc_fail(f.held[0], KVF_RPC_INTERNAL, NULL, "late"), KVF_ERR_GONE);
    assert_int_equal(kvf_rpc_abort(f.held[0], KVF_RPC_INTERNAL, "late"), KVF_ERR_GONE);
    assert_int_equal(f.released, 0); /* we still hold it */
    kvf_rpc_call_unref(f.held[0]);
    f.held_count = 0;
    assert_true(box_wait(&f.box, &f.released, 1));
    assert_int_equal(f.cancelled, 1);
    fixture_stop(&f);
}

static void deadline_ends_the_call_on_both_sides(void **state) {
    fixture f;
    kvf_rpc_result r;
    fixture_start(&f, NULL);
    assert_int_equal(ask(&f, "hold", 300, NULL, &r), KVF_ERR_DEADLINE);
    assert_int_equal(r.code, KVF_RPC_DEADLINE_EXCEEDED);
    assert_true(box_wait(&f.box, &f.held_count, 1));
    assert_in_range(f.left_ms, 0, 300);
    assert_true(box_wait(&f.box, &f.cancelled, 1));
    fixture_stop(&f);
}

static void unknown_methods_are_unimplemented(void **state) {
    fixture f;
    kvf_rpc_result r;
    ProtobufCMessage *message;
    Kvf__Test__V1__Note note = KVF__TEST__V1__NOTE__INIT;
    fixture_start(&f, NULL);
    for (int i = 0; i < 5; i++) { /* more than once: the catch-all is posted again */
        assert_int_equal(kvf_rpc_unary(f.channel, &kvf__test__v1__unserved__descriptor, "Never", &note.base,
                             KVF_RPC_NO_DEADLINE, &message, &r),
            KVF_ERR_UNSUPPORTED);
        assert_int_equal(r.code, KVF_RPC_UNIMPLEMENTED);
        assert_string_equal(r.message, "unknown method /kvf.test.v1.Unserved/Never");
    }
    assert_int_equal(kvf_rpc_unary(f.channel, echo, "Nothing", &note.base, 0, &message, &r), KVF_ERR_INVALID);
    fixture_stop(&f);
}

static void bad_and_too_long_messages_are_refused(void **state) {
    fixture f;
    kvf_rpc_result r;
    fixture_start(&f, &(kvf_rpc_server_opts){.message_bytes_max = 10000});
    Kvf__Test__V1__Note note = KVF__TEST__V1__NOTE__INIT;
    ProtobufCMessage *message;
    uint8_t *big = calloc(1, 20000);
    note.payload = kvf_proto_bytes(big, 20000);
    assert_int_equal(
        kvf_rpc_unary(f.channel, echo, "Say", &note.base, KVF_RPC_NO_DEADLINE, &message, &r), KVF_ERR_LIMIT);
    assert_int_equal(r.code, KVF_RPC_RESOURCE_EXHAUSTED);
    /* Field 2 is bytes here and a message there: 0xff is the start of no field. */
    Kvferry__V1__TokenLogprob wrong = KVFERRY__V1__TOKEN_LOGPROB__INIT;
    wrong.token_id = 7; /* varint where Note.text, a string, stands */
    kvf_status status = kvf_rpc_unary(f.channel, echo, "Say", &wrong.base, KVF_RPC_NO_DEADLINE, &message, &r);
    assert_int_equal(status, KVF_ERR_INVALID);
    assert_non_null(strstr(r.message, "kvf.test.v1.Note"));
    note.payload.len = 9000;
    assert_int_equal(kvf_rpc_unary(f.channel, echo, "Say", &note.base, KVF_RPC_NO_DEADLINE, &message, &r), KVF_OK);
    kvf_rpc_message_free(message);
    free(big);
    fixture_stop(&f);
}

static void nobody_there_is_unavailable(void **state) {
    fixture f;
    kvf_rpc_result r;
    Kvf__Test__V1__Note note = KVF__TEST__V1__NOTE__INIT;
    ProtobufCMessage *message;
    fixture_start(&f, NULL);
    kvf_rpc_server_shutdown(f.server, 0);
    f.server = NULL;
    kvf_status status = kvf_rpc_unary(f.channel, echo, "Say", &note.base, 60000, &message, &r);
    assert_int_equal(status, KVF_ERR_PEER_LOST);
    assert_int_equal(r.code, KVF_RPC_UNAVAILABLE);
    fixture_stop(&f);
}

/* No process there is told apart from a process that does not answer. */
static void nothing_listens_is_refused(void **state) {
    static const char *const addresses[] = {"127.0.0.1:%d", "[::1]:%d", "localhost:%d", "unix:/tmp/kvf-rpc-none-%d"};
    fixture f;
    kvf_rpc_result r;
    Kvf__Test__V1__Note note = KVF__TEST__V1__NOTE__INIT;
    ProtobufCMessage *message;
    fixture_start(&f, NULL);
    int port = kvf_rpc_server_port(f.server, 0); /* was bound until now */
    kvf_rpc_server_shutdown(f.server, 0);
    f.server = NULL;
    for (size_t i = 0; i < KVF_COUNT_OF(addresses); i++) {
        char address[64];
        snprintf(address, sizeof address, addresses[i], i == 3 ? (int)getpid() : port);
        kvf_rpc_channel *channel = fixture_channel(&f, address);
        assert_int_equal(kvf_rpc_unary(channel, echo, "Say", &note.base, 60000, &message, &r), KVF_ERR_PEER_LOST);
        if (!r.refused) fail_msg("%s: %s", address, r.message);
        kvf_rpc_channel_destroy(channel);
    }
    fixture_stop(&f);
}

static void addresses_are_reported_and_guarded(void **state) {
    fixture f;
    kvf_error err;
    char unix_address[256], twice[64];
    fixture_start(&f, NULL);
    const char *first = kvf_rpc_server_address(f.server, 0);
    snprintf(twice, sizeof twice, "127.0.0.1:%d", kvf_rpc_server_port(f.server, 0));
    assert_string_equal(first, twice);
    snprintf(unix_address, sizeof unix_address, "unix:/tmp/kvf-rpc-test-%d.sock", kvf_rpc_server_port(f.server, 0));
    kvf_rpc_method methods[3];
    const char *listen[] = {"127.0.0.1:0", unix_address};
    kvf_rpc_server_opts opts = {
        .listen = listen, .listen_count = 2, .methods = fixture_methods(&f, methods), .method_count = 3};
    kvf_rpc_server *second, *third = NULL;
    assert_int_equal(kvf_rpc_server_start(f.rt, &opts, &second, &err), KVF_OK);
    assert_string_equal(kvf_rpc_server_address(second, 1), unix_address);
    assert_int_equal(kvf_rpc_server_port(second, 1), 0);

    opts.listen = &first; /* both kinds of address refuse a second owner */
    opts.listen_count = 1;
    assert_int_equal(kvf_rpc_server_start(f.rt, &opts, &third, &err), KVF_ERR_BUSY);
    assert_non_null(strstr(err.message, first));
    opts.listen = &listen[1];
    assert_int_equal(kvf_rpc_server_start(f.rt, &opts, &third, &err), KVF_ERR_BUSY);

    kvf_rpc_channel_destroy(f.channel);
    f.channel = fixture_channel(&f, unix_address);
    assert_int_equal(ask(&f, "over unix", 60000, NULL, NULL), KVF_OK);
    assert_true(kvf_rpc_server_shutdown(second, 60000));
    assert_int_equal(kvf_rpc_server_start(f.rt, &opts, &third, &err), KVF_OK); /* free again */
    kvf_rpc_server_shutdown(third, 0);
    fixture_stop(&f);
}

static void ipv6_works_where_the_host_has_it(void **state) {
    fixture f;
    fixture_start(&f, NULL);
    kvf_rpc_method methods[3];
    const char *listen = "[::1]:0";
    kvf_rpc_server_opts opts = {
        .listen = &listen, .listen_count = 1, .methods = fixture_methods(&f, methods), .method_count = 3};
    kvf_rpc_server *six;
    kvf_error err;
    if (kvf_rpc_server_start(f.rt, &opts, &six, &err) == KVF_OK) {
        assert_memory_equal(kvf_rpc_server_address(six, 0), "[::1]:", 6);
        kvf_rpc_channel_destroy(f.channel);
        f.channel = fixture_channel(&f, kvf_rpc_server_address(six, 0));
        assert_int_equal(ask(&f, "six", 60000, NULL, NULL), KVF_OK);
        kvf_rpc_server_shutdown(six, 0);
    } else {
        print_message("no IPv6 loopback here: not tried\n");
    }
    fixture_stop(&f);
}

typedef struct {
    kvf_rpc_server *server;
    bool clean;
} shutdown_job;

static void *shut_down(void *self) {
    shutdown_job *job = self;
    job->clean = kvf_rpc_server_shutdown(job->server, 600000);
    return NULL;
}

static void shutdown_lets_running_streams_end(void **state) {
    enum { STREAMS = 5 };
    fixture f;
    ProtobufCMessage *message;
    pthread_t thread;
    fixture_start(&f, NULL);
    kvf_rpc_reader *readers[STREAMS];
    for (int i = 0; i < STREAMS; i++) readers[i] = count_to(&f, 0, 0, true, false);
    assert_true(box_wait(&f.box, &f.held_count, STREAMS));
    shutdown_job job = {.server = f.server};
    assert_int_equal(pthread_create(&thread, NULL, shut_down, &job), 0);
    for (int i = 0; i < STREAMS; i++) {
        Kvf__Test__V1__Note note = KVF__TEST__V1__NOTE__INIT;
        note.text = (char *)(uintptr_t) "last words";
        assert_int_equal(kvf_rpc_stream_push(f.held[i], &note.base), KVF_OK);
        assert_int_equal(kvf_rpc_stream_end(f.held[i]), KVF_OK);
    }
    for (int i = 0; i < STREAMS; i++) { /* calls made while the channel connects may start in any order */
        assert_int_equal(kvf_rpc_reader_next(readers[i], &message), KVF_OK);
        kvf_rpc_message_free(message);
        assert_int_equal(kvf_rpc_reader_next(readers[i], &message), KVF_OK);
        assert_string_equal(((Kvf__Test__V1__Note *)(void *)message)->text, "last words");
        kvf_rpc_message_free(message);
        assert_int_equal(kvf_rpc_reader_next(readers[i], &message), KVF_ERR_GONE);
        assert_int_equal(kvf_rpc_reader_result(readers[i])->code, KVF_RPC_OK);
        kvf_rpc_reader_close(readers[i]);
    }
    pthread_join(thread, NULL);
    assert_true(job.clean);
    assert_int_equal(f.cancelled, 0);
    f.server = NULL;
    fixture_stop(&f);
}

static void shutdown_cancels_the_late_and_a_new_server_starts(void **state) {
    enum { STREAMS = 5 };
    fixture f;
    fixture_start(&f, NULL);
    for (int round = 0; round < 3; round++) {
        kvf_rpc_reader *readers[STREAMS];
        for (int i = 0; i < STREAMS; i++) readers[i] = count_to(&f, 0, 0, true, false);
        assert_true(box_wait(&f.box, &f.held_count, STREAMS));
        assert_false(kvf_rpc_server_shutdown(f.server, 0));
        assert_int_equal(f.cancelled, STREAMS * (round + 1)); /* all before shutdown returned */
        for (int i = 0; i < STREAMS; i++) {
            ProtobufCMessage *message;
            while (kvf_rpc_reader_next(readers[i], &message) == KVF_OK) kvf_rpc_message_free(message);
            assert_int_equal(kvf_rpc_reader_result(readers[i])->code, KVF_RPC_UNAVAILABLE);
            kvf_rpc_reader_close(readers[i]);
            Kvf__Test__V1__Note note = KVF__TEST__V1__NOTE__INIT;
            assert_int_equal(kvf_rpc_stream_push(f.held[i], &note.base), KVF_ERR_GONE); /* outlives the server */
            kvf_rpc_call_unref(f.held[i]);
        }
        f.held_count = 0;
        kvf_rpc_channel_destroy(f.channel);
        fixture_serve(&f, "127.0.0.1:0", NULL);
        f.channel = fixture_channel(&f, kvf_rpc_server_address(f.server, 0));
        assert_int_equal(ask(&f, "again", 60000, NULL, NULL), KVF_OK);
    }
    fixture_stop(&f);
}

typedef struct {
    fixture *f;
    atomic_bool stop;
    atomic_uint answered, unavailable, other;
} caller;

static void *call_on_and_on(void *self) {
    caller *c = self;
    while (!atomic_load(&c->stop)) {
        kvf_rpc_result result;
        ask(c->f, "hello", 60000, NULL, &result);
        atomic_fetch_add(result.code == KVF_RPC_OK            ? &c->answered
                         : result.code == KVF_RPC_UNAVAILABLE ? &c->unavailable
                                                              : &c->other,
            1);
        if (result.code != KVF_RPC_OK && result.code != KVF_RPC_UNAVAILABLE)
            print_message("%s: %s\n", kvf_rpc_code_name(result.code), result.message);
        if (result.code == KVF_RPC_UNAVAILABLE) break;
    }
    return NULL;
}

/* Who meets the end of a server shall know that asking another one is right. */
static void calls_that_cross_a_shutdown_are_unavailable(void **state) {
    enum { CALLERS = 8, ROUNDS = 20 };
    fixture f;
    kvf_rpc_result result;
    fixture_start(&f, NULL);
    ask(&f, "cancel", 60000, NULL, &result);
    assert_int_equal(result.code, KVF_RPC_UNAVAILABLE);
    kvf_rpc_reader *reader = count_to(&f, 0, 0, true, false);
    kvf_rpc_reader_cancel(reader);
    read_all(reader);
    assert_int_equal(kvf_rpc_reader_result(reader)->code, KVF_RPC_CANCELLED); /* we asked for it */
    kvf_rpc_reader_close(reader);
    for (int round = 0; round < ROUNDS; round++) {
        caller c = {.f = &f};
        pthread_t threads[CALLERS];
        for (int i = 0; i < CALLERS; i++) assert_int_equal(pthread_create(&threads[i], NULL, call_on_and_on, &c), 0);
        while (atomic_load(&c.answered) < CALLERS) sched_yield();
        kvf_rpc_server_shutdown(f.server, 60000);
        for (int i = 0; i < CALLERS; i++) pthread_join(threads[i], NULL);
        assert_int_equal(c.unavailable, CALLERS);
        assert_int_equal(c.other, 0);
        kvf_rpc_channel_destroy(f.channel);
        fixture_serve(&f, "127.0.0.1:0", NULL);
        f.channel = fixture_channel(&f, kvf_rpc_server_address(f.server, 0));
    }
    fixture_stop(&f);
}

static void utf8_is_judged_by_the_table(void **state) {
    static const struct {
        const char *text;
        bool valid;
    } cases[] = {{"", true}, {"plain", true}, {"\xc3\xbc \xe2\x82\xac \xf0\x9f\x98\x80", true}, {"\xc0\x80", false},
        {"\xe0\x80\x80", false}, {"\xed\xa0\x80", false}, {"\xf4\x8f\xbf\xbf", true}, {"\xf4\x90\x80\x80", false},
        {"\x80", false}, {"\xc3", false}, {"a\xff", false}, {"\xf0\x9f\x98", false}, {"\xef\xbf\xbf", true}};
    for (size_t i = 0; i < KVF_COUNT_OF(cases); i++)
        assert_int_equal(kvf_utf8_valid(cases[i].text, strlen(cases[i].text), NULL), cases[i].valid);
    assert_true(kvf_utf8_valid("a\0b", 3, NULL));
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(unary_call_is_answered),
        cmocka_unit_test(inflated_message_is_refused),
        cmocka_unit_test(errors_carry_their_details),
        cmocka_unit_test(dropped_call_fails_instead_of_hanging),
        cmocka_unit_test(stream_of_10000_comes_in_order),
        cmocka_unit_test(slow_reader_hits_the_limit_and_others_flow),
        cmocka_unit_test(cancel_is_seen_once_and_pushes_are_gone),
        cmocka_unit_test(deadline_ends_the_call_on_both_sides),
        cmocka_unit_test(unknown_methods_are_unimplemented),
        cmocka_unit_test(bad_and_too_long_messages_are_refused),
        cmocka_unit_test(nobody_there_is_unavailable),
        cmocka_unit_test(nothing_listens_is_refused),
        cmocka_unit_test(addresses_are_reported_and_guarded),
        cmocka_unit_test(ipv6_works_where_the_host_has_it),
        cmocka_unit_test(shutdown_lets_running_streams_end),
        cmocka_unit_test(shutdown_cancels_the_late_and_a_new_server_starts),
        cmocka_unit_test(calls_that_cross_a_shutdown_are_unavailable),
        cmocka_unit_test(utf8_is_judged_by_the_table),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
