/* Sessions: the client side with callbacks. argv[1]: the echo server program, to be killed. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>
#include <arpa/inet.h>
#include <signal.h>
#include <spawn.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>
#include "fixture.h"

static const ProtobufCServiceDescriptor *const echo = &kvf__test__v1__echo__descriptor;
static const char *server_program;

enum { WRITERS = 4, PER_WRITER = 2000 };

typedef struct {
    signal_box box;
    uint32_t messages, closed, released, writable;
    bool out_of_order;
    uint64_t next[WRITERS + 1]; /* by sender: the writers of the client, then the server's own */
    kvf_rpc_result result;
} peer;

static void on_message(kvf_rpc_session *session, void *user, const ProtobufCMessage *message) {
    peer *p = user;
    const Kvf__Test__V1__Note *note = (const void *)message;
    size_t who = *note->text ? (size_t)atoi(note->text) : 0;
    pthread_mutex_lock(&p->box.lock);
    if (p->next[who]++ != note->number) p->out_of_order = true;
    pthread_mutex_unlock(&p->box.lock);
    box_add(&p->box, &p->messages, 1);
}

static void on_writable(kvf_rpc_session *session, void *user) {
    box_add(&((peer *)user)->box, &((peer *)user)->writable, 1);
}

static void on_closed(kvf_rpc_session *session, void *user, const kvf_rpc_result *result) {
    peer *p = user;
    pthread_mutex_lock(&p->box.lock); /* sessions of several loops share one peer */
    p->result = *result;
    pthread_mutex_unlock(&p->box.lock);
    box_add(&p->box, &p->closed, 1);
}

static void on_release(void *user) { box_add(&((peer *)user)->box, &((peer *)user)->released, 1); }

static const kvf_rpc_session_ops ops = {
    .on_message = on_message, .on_writable = on_writable, .on_closed = on_closed, .on_release = on_release};

static void push_all(kvf_rpc_session *session, kvf_rpc_call *call, size_t who) {
    char text[16];
    snprintf(text, sizeof text, "%zu", who);
    for (uint64_t i = 0; i < PER_WRITER;) {
        Kvf__Test__V1__Note note = KVF__TEST__V1__NOTE__INIT;
        note.text = text;
        note.number = i;
        kvf_status status = session ? kvf_rpc_session_push(session, &note.base) : kvf_rpc_stream_push(call, &note.base);
        if (status == KVF_AGAIN) {
            sched_yield();
            continue;
        }
        KVF_ASSERT(status == KVF_OK);
        i++;
    }
}

typedef struct {
    kvf_rpc_session *session;
    kvf_rpc_call *call;
    size_t who;
} writer;

static void *write_thread(void *self) {
    writer *w = self;
    push_all(w->session, w->call, w->who);
    return NULL;
}

static void both_sides_push_from_other_threads(void **state) {
    fixture f;
    peer p = {0};
    box_init(&p.box);
    fixture_start(&f, &(kvf_rpc_server_opts){.stream_buffer_bytes_max = 64 << 20}); /* the echo must not be refused */
    kvf_rpc_session *session;
    assert_int_equal(kvf_rpc_session_open(f.channel, echo, "Talk", KVF_RPC_NO_DEADLINE, &ops, &p, &session), KVF_OK);
    Kvf__Test__V1__Note note = KVF__TEST__V1__NOTE__INIT;
    note.text = (char *)(uintptr_t) "hold";
    assert_int_equal(kvf_rpc_session_push(session, &note.base), KVF_OK);
    assert_true(box_wait(&f.box, &f.held_count, 1));

    pthread_t threads[WRITERS + 1];
    writer writers[WRITERS + 1];
    for (size_t i = 0; i <= WRITERS; i++) {
        writers[i] = (writer){.session = i < WRITERS ? session : NULL, .call = f.held[0], .who = i};
        assert_int_equal(pthread_create(&threads[i], NULL, write_thread, &writers[i]), 0);
    }
    for (size_t i = 0; i <= WRITERS; i++) pthread_join(threads[i], NULL);
    kvf_rpc_session_half_close(session);
    assert_int_equal(kvf_rpc_session_push(session, &note.base), KVF_ERR_GONE);
    assert_true(box_wait(&p.box, &p.closed, 1));
    assert_int_equal(p.result.code, KVF_RPC_OK);
    assert_int_equal(p.messages, (WRITERS + 1) * PER_WRITER); /* echoes, and the server's own */
    assert_false(p.out_of_order);
    assert_int_equal(f.half_closed, 1);
    assert_int_equal(f.cancelled, 0);
    assert_int_equal(p.released, 0);
    kvf_rpc_session_unref(session);
    assert_true(box_wait(&p.box, &p.released, 1));
    fixture_stop(&f);
    assert_int_equal(p.closed, 1);
    box_fini(&p.box);
}

static void calls_200_at_a_time(void **state) {
    enum { CALLS = 200 };
    fixture f;
    peer p = {0};
    box_init(&p.box);
    fixture_start(&f, NULL);
    Kvf__Test__V1__Note note = KVF__TEST__V1__NOTE__INIT;
    note.text = (char *)(uintptr_t) "hold";
    for (int i = 0; i < CALLS; i++) {
        kvf_rpc_session *session;
        assert_int_equal(kvf_rpc_session_open(f.channel, echo, "Say", KVF_RPC_NO_DEADLINE, &ops, &p, &session), KVF_OK);
        assert_int_equal(kvf_rpc_session_push(session, &note.base), KVF_OK);
        kvf_rpc_session_half_close(session);
        kvf_rpc_session_unref(session); /* the library holds it until it is over */
    }
    assert_true(box_wait(&f.box, &f.held_count, CALLS));
    assert_int_equal(kvf_rpc_server_calls(f.server), CALLS);
    assert_int_equal(kvf_rpc_runtime_calls(f.rt), CALLS);
    note.text = (char *)(uintptr_t) "0";
    for (uint32_t i = 0; i < CALLS; i++) {
        note.number = i;
        assert_int_equal(kvf_rpc_reply(f.held[i], &note.base), KVF_OK);
    }
    assert_true(box_wait(&p.box, &p.released, CALLS));
    assert_int_equal(p.closed, CALLS);
    assert_int_equal(p.messages, CALLS);
    assert_int_equal(p.result.code, KVF_RPC_OK);
    assert_int_equal(kvf_rpc_runtime_calls(f.rt), 0);
    fixture_stop(&f);
    box_fini(&p.box);
}

static void cancel_closes_once(void **state) {
    fixture f;
    peer p = {0};
    box_init(&p.box);
    fixture_start(&f, NULL);
    kvf_rpc_session *session;
    Kvf__Test__V1__Note note = KVF__TEST__V1__NOTE__INIT;
    assert_int_equal(kvf_rpc_session_open(f.channel, echo, "Talk", KVF_RPC_NO_DEADLINE, &ops, &p, &session), KVF_OK);
    assert_int_equal(kvf_rpc_session_push(session, &note.base), KVF_OK);
    assert_true(box_wait(&p.box, &p.messages, 1));
    kvf_rpc_session_cancel(session);
    kvf_rpc_session_cancel(session);
    assert_true(box_wait(&p.box, &p.closed, 1));
    assert_int_equal(p.result.code, KVF_RPC_CANCELLED);
    assert_int_equal(kvf_rpc_session_push(session, &note.base), KVF_ERR_GONE);
    assert_int_equal(kvf_rpc_session_buffered_bytes(session), 0);
    kvf_rpc_session_unref(session);
    assert_true(box_wait(&p.box, &p.released, 1));
    assert_true(box_wait(&f.box, &f.released, 1));
    fixture_stop(&f);
    assert_int_equal(p.closed, 1);
    box_fini(&p.box);
}

static void refused_when_the_peer_takes_nothing(void **state) {
    fixture f;
    peer p = {0};
    box_init(&p.box);
    fixture_start(&f, NULL);
    /* A listener that never says a word: the channel stays connecting. */
    int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    struct sockaddr_in at = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    socklen_t at_bytes = sizeof at;
    assert_int_equal(bind(fd, (struct sockaddr *)&at, sizeof at), 0);
    assert_int_equal(listen(fd, 4), 0);
    assert_int_equal(getsockname(fd, (struct sockaddr *)&at, &at_bytes), 0);
    char address[64];
    snprintf(address, sizeof address, "127.0.0.1:%d", ntohs(at.sin_port));
    kvf_rpc_channel_opts channel_opts = {.address = address, .stream_buffer_bytes_max = 1000};
    kvf_rpc_channel *channel;
    assert_int_equal(kvf_rpc_channel_create(f.rt, &channel_opts, &channel), KVF_OK);
    kvf_rpc_session *session;
    assert_int_equal(kvf_rpc_session_open(channel, echo, "Talk", KVF_RPC_NO_DEADLINE, &ops, &p, &session), KVF_OK);
    Kvf__Test__V1__Note note = KVF__TEST__V1__NOTE__INIT;
    char text[301];
    memset(text, 'x', 300);
    text[300] = 0;
    note.text = text;
    kvf_status status = KVF_OK;
    for (int i = 0; i < 3; i++) assert_int_equal(kvf_rpc_session_push(session, &note.base), KVF_OK);
    status = kvf_rpc_session_push(session, &note.base);
    assert_int_equal(status, KVF_AGAIN);
    assert_in_range(kvf_rpc_session_buffered_bytes(session), 900, 1000);
    kvf_rpc_session_cancel(session);
    assert_true(box_wait(&p.box, &p.closed, 1));
    kvf_rpc_session_unref(session);
    kvf_rpc_channel_destroy(channel);
    close(fd);
    fixture_stop(&f);
    assert_int_equal(p.released, 1);
    box_fini(&p.box);
}

static void unknown_method_opens_nothing(void **state) {
    fixture f;
    kvf_rpc_session *session;
    fixture_start(&f, NULL);
    assert_int_equal(
        kvf_rpc_session_open(f.channel, echo, "Nope", KVF_RPC_NO_DEADLINE, &ops, NULL, &session), KVF_ERR_INVALID);
    fixture_stop(&f);
}

static void runtime_ends_what_still_runs(void **state) {
    fixture f;
    peer p = {0};
    box_init(&p.box);
    fixture_start(&f, NULL);
    for (int i = 0; i < 10; i++) {
        kvf_rpc_session *session;
        assert_int_equal(
            kvf_rpc_session_open(f.channel, echo, "Talk", KVF_RPC_NO_DEADLINE, &ops, &p, &session), KVF_OK);
        kvf_rpc_session_unref(session);
    }
    fixture_stop(&f);
    assert_int_equal(p.closed, 10);
    assert_int_equal(p.released, 10);
    box_fini(&p.box);
}

static pid_t spawn_server(char *address, size_t address_bytes, int *stdin_fd) {
    int in[2], out[2];
    pid_t pid;
    posix_spawn_file_actions_t actions;
    assert_int_equal(pipe(in), 0);
    assert_int_equal(pipe(out), 0);
    posix_spawn_file_actions_init(&actions);
    posix_spawn_file_actions_adddup2(&actions, in[0], 0);
    posix_spawn_file_actions_adddup2(&actions, out[1], 1);
    posix_spawn_file_actions_addclose(&actions, in[1]);
    posix_spawn_file_actions_addclose(&actions, out[0]);
    char *argv[] = {(char *)(uintptr_t)server_program, NULL};
    extern char **environ;
    assert_int_equal(posix_spawn(&pid, server_program, &actions, NULL, argv, environ), 0);
    posix_spawn_file_actions_destroy(&actions);
    close(in[0]);
    close(out[1]);
    FILE *said = fdopen(out[0], "r");
    char line[256] = "";
    assert_non_null(fgets(line, sizeof line, said));
    assert_memory_equal(line, "ready ", 6);
    line[strcspn(line, "\n")] = 0;
    snprintf(address, address_bytes, "%s", line + 6);
    fclose(said);
    *stdin_fd = in[1];
    return pid;
}

static void killed_server_closes_with_unavailable(void **state) {
    fixture f;
    peer p = {0};
    char address[250];
    int stdin_fd;
    box_init(&p.box);
    fixture_start(&f, NULL);
    pid_t pid = spawn_server(address, sizeof address, &stdin_fd);
    kvf_rpc_channel *channel = fixture_channel(&f, address);
    kvf_rpc_session *session;
    assert_int_equal(kvf_rpc_session_open(channel, echo, "Talk", KVF_RPC_NO_DEADLINE, &ops, &p, &session), KVF_OK);
    Kvf__Test__V1__Note note = KVF__TEST__V1__NOTE__INIT;
    assert_int_equal(kvf_rpc_session_push(session, &note.base), KVF_OK);
    assert_true(box_wait(&p.box, &p.messages, 1)); /* mid-stream */
    assert_int_equal(kill(pid, SIGKILL), 0);
    assert_int_equal(waitpid(pid, NULL, 0), pid);
    assert_true(box_wait(&p.box, &p.closed, 1));
    assert_int_equal(p.result.code, KVF_RPC_UNAVAILABLE);
    kvf_rpc_session_unref(session);
    kvf_rpc_channel_destroy(channel);
    close(stdin_fd);
    fixture_stop(&f);
    assert_int_equal(p.closed, 1);
    box_fini(&p.box);
}

int main(int argc, char **argv) {
    if (argc < 2) return 2;
    server_program = argv[1];
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(both_sides_push_from_other_threads),
        cmocka_unit_test(calls_200_at_a_time),
        cmocka_unit_test(cancel_closes_once),
        cmocka_unit_test(refused_when_the_peer_takes_nothing),
        cmocka_unit_test(unknown_method_opens_nothing),
        cmocka_unit_test(runtime_ends_what_still_runs),
        cmocka_unit_test(killed_server_closes_with_unavailable),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
