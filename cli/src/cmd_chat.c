/* chat: one question, or a conversation. In a conversation Ctrl-C ends the answer, Ctrl-D (or /exit) the conversation.
 */
#include "cmd.h"
#include "generate.h"
#include "kvf/proto.h"
#include "term.h"
#include <errno.h>
#include <poll.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

typedef struct {
    kvf_generate_options g;
    const char *system;
} options;

typedef struct {
    char *role, *content; /* owned */
    size_t content_bytes;
} turn;

typedef struct {
    turn *turns; /* owned */
    size_t count, room;
} history;

static void history_add(history *h, const char *role, const char *content, size_t len) {
    if (h->count == h->room) {
        h->room = KVF_MAX(h->room * 2, (size_t)8);
        turn *grown = realloc(h->turns, h->room * sizeof *grown);
        KVF_ASSERT(grown != NULL);
        h->turns = grown;
    }
    kvf_buf text = {0};
    kvf_buf_add(&text, content, len);
    h->turns[h->count++] = (turn){strdup(role), text.text, len};
}
static void history_drop_last(history *h) {
    h->count--;
    free(h->turns[h->count].role);
    free(h->turns[h->count].content);
}
static void history_reset(history *h, const char *system) {
    while (h->count) history_drop_last(h);
    if (system) history_add(h, "system", system, strlen(system));
}

typedef struct {
    const kvf_command *command;
    const options *o;
    const kvf_args *args;
    kvf_client *client;
    history history;
} session;

static ProtobufCMessage *unary_answer(session *s, const kvf_generate_request *r, int *status) {
    return kvf_client_call(s->client, &kvferry__v1__inference__descriptor, "Complete", &r->request.base,
        kvf_generate_deadline_ms(&s->o->g), status);
}

/* Asks with the history as it is; the answer is printed and added to it. */
static int ask(session *s) {
    kvf_generate_request r;
    kvf_generate_request_init(&r, s->command, &s->o->g, s->args);
    size_t n = s->history.count;
    Kvferry__V1__ChatMessage *messages = calloc(n, sizeof *messages);
    Kvferry__V1__ChatMessage **list = calloc(n, sizeof *list);
    KVF_ASSERT(messages && list);
    for (size_t i = 0; i < n; i++) {
        kvferry__v1__chat_message__init(&messages[i]);
        messages[i].role = kvf_proto_text(s->history.turns[i].role);
        messages[i].content = kvf_proto_bytes(s->history.turns[i].content, s->history.turns[i].content_bytes);
        list[i] = &messages[i];
    }
    kvferry__v1__chat_input__init(&r.chat);
    r.chat.n_messages = n;
    r.chat.messages = list;
    r.request.input_case = KVFERRY__V1__GENERATE_REQUEST__INPUT_CHAT;
    r.request.chat = &r.chat;
    int status = KVF_EXIT_OK;
    if (s->o->g.json) {
        ProtobufCMessage *answer = unary_answer(s, &r, &status);
        const Kvferry__V1__CompleteResponse *said = (const void *)answer;
        if (said) kvf_cmd_print_json(answer);
        if (said && said->n_completions)
            history_add(&s->history, "assistant", (const char *)said->completions[0]->text.data,
                said->completions[0]->text.len);
        kvf_rpc_message_free(answer);
        goto done;
    }
    kvf_buf text = {0};
    kvf_rpc_result result;
    kvf_generate_run run = {.keep = &text, .logprobs = r.output.logprobs};
    if (kvf_generate_stream(s->client, &r, kvf_generate_deadline_ms(&s->o->g), &run, &result) != KVF_OK)
        status = kvf_client_report(s->client, &result);
    /* What was said before a cancel stays said: the next turn refers to it. */
    if (text.len_bytes) history_add(&s->history, "assistant", text.text, text.len_bytes);
    kvf_buf_fini(&text);
    if (status == KVF_EXIT_OK && s->o->g.stats) {
        kvf_buf line = {0};
        kvf_generate_stats(&run, &line);
        fprintf(stderr, "%s\n", line.text);
        kvf_buf_fini(&line);
    }
done:
    free(messages);
    free(list);
    return status;
}

/* A line of the keyboard. false: end of input. An interrupt gives an empty line. */
static bool read_line(session *s, kvf_buf *pending, kvf_buf *line) {
    line->len_bytes = 0;
    kvf_buf_puts(line, "");
    for (;;) {
        char *newline = pending->len_bytes ? memchr(pending->text, '\n', pending->len_bytes) : NULL;
        if (newline) {
            size_t len = (size_t)(newline - pending->text);
            kvf_buf_add(line, pending->text, len);
            memmove(pending->text, newline + 1, pending->len_bytes - len - 1);
            pending->len_bytes -= len + 1;
            return true;
        }
        struct pollfd fds[2] = {{STDIN_FILENO, POLLIN, 0}, {kvf_client_interrupt_fd(s->client), POLLIN, 0}};
        if (poll(fds, 2, -1) < 0 && errno != EINTR) return false;
        if (fds[1].revents) return true;
        char part[4096];
        ssize_t n = read(STDIN_FILENO, part, sizeof part);
        if (n < 0 && (errno == EINTR || errno == EAGAIN)) continue;
        if (n <= 0) {
            if (!pending->len_bytes) return false;
            kvf_buf_add(line, pending->text, pending->len_bytes); /* the last line had no end */
            pending->len_bytes = 0;
            return true;
        }
        kvf_buf_add(pending, part, (size_t)n);
    }
}

/* false: leave. */
static bool command_line(session *s, const char *line) {
    if (!strcmp(line, "/exit") || !strcmp(line, "/quit")) return false;
    if (!strcmp(line, "/reset")) {
        history_reset(&s->history, s->o->system);
        fputs("(the conversation begins anew)\n", stderr);
    } else {
        fprintf(stderr, "%s/reset begins anew, /exit (or Ctrl-D) ends, Ctrl-C stops an answer\n",
            strcmp(line, "/help") ? "no such command; " : "");
    }
    return true;
}

static int converse(session *s) {
    bool person = isatty(STDIN_FILENO) == 1;
    kvf_buf pending = {0}, line = {0};
    int status = KVF_EXIT_OK;
    if (person) fputs("/help says what there is; Ctrl-D ends\n", stderr);
    for (;;) {
        if (person) {
            fputs("> ", stdout);
            fflush(stdout);
        }
        if (!read_line(s, &pending, &line)) break;
        if (kvf_client_interrupted(s->client)) {
            if (!person) {
                status = KVF_EXIT_FAILED;
                break;
            }
            fputs("\n(Ctrl-D or /exit ends)\n", stderr);
            kvf_client_reset(s->client);
            continue;
        }
        if (line.len_bytes == 0) continue;
        if (line.text[0] == '/') {
            if (!command_line(s, line.text)) break;
            continue;
        }
        history_add(&s->history, "user", line.text, line.len_bytes);
        size_t before = s->history.count;
        status = ask(s);
        if (s->history.count == before)
            history_drop_last(&s->history); /* nothing was said: the question is open again */
        if (kvf_client_interrupted(s->client)) {
            if (!person) break;
            kvf_client_reset(s->client);
            status = KVF_EXIT_OK;
        } else if (status != KVF_EXIT_OK && !person) {
            break;
        }
    }
    if (person) putchar('\n');
    kvf_buf_fini(&pending);
    kvf_buf_fini(&line);
    return person ? KVF_EXIT_OK : status;
}

static int run(const kvf_command *command, const void *opts, const kvf_args *args) {
    const options *o = opts;
    int status;
    size_t len = 0;
    char *prompt = NULL;
    if (args->positional_count && !(prompt = kvf_cmd_text(args->positional[0], &len))) return KVF_EXIT_FAILED;
    session s = {command, o, args, kvf_client_open(o->g.router, &o->g.tls, &status), {0}};
    if (s.client) {
        history_reset(&s.history, o->system);
        if (prompt) history_add(&s.history, "user", prompt, len);
        status = prompt ? ask(&s) : converse(&s);
        history_reset(&s.history, NULL);
        free(s.history.turns);
    }
    kvf_client_close(s.client);
    free(prompt);
    return status;
}

static const kvf_arg rows[] = {
    KVF_GENERATE_ROWS(options, g),
    {"system", 0, KVF_ARG_TEXT, "TEXT", "a system message before the conversation", offsetof(options, system), 0, 0,
        NULL, false},
};
static const options defaults = {.g = KVF_GENERATE_DEFAULTS};
const kvf_command kvf_cmd_chat = {
    .name = "chat",
    .positional = "[PROMPT]",
    .positional_max = 1,
    .summary = "ask a question (- reads it from stdin), or hold a conversation",
    .about = "  Without PROMPT: a conversation. Ctrl-C stops an answer, /reset begins anew, /exit or Ctrl-D ends.",
    .rows = rows,
    .rows_count = KVF_COUNT_OF(rows),
    .options_bytes = sizeof(options),
    .defaults = &defaults,
    .run = run,
};
