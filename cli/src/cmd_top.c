/* top: a live view of a cluster in the terminal. q leaves, space pauses. The terminal is given back as it was, whatever
 * ends it. */
#include "cmd.h"
#include "kvf/os.h"
#include "term.h"
#include "top.h"
#include <poll.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <termios.h>
#include <time.h>
#include <unistd.h>

typedef struct {
    const char *admin;
    kvf_client_tls tls;
    uint64_t interval_ns;
    bool once, json;
} options;

typedef struct {
    const options *o;
    kvf_client *client;
    kvf_top top;
    ProtobufCMessage *state; /* the newest, owned */
    char trouble[600];
    bool paused;
} view;

static kvf_rpc_result refresh(view *v) {
    Kvferry__V1__GetClusterRequest r = KVFERRY__V1__GET_CLUSTER_REQUEST__INIT;
    kvf_rpc_result result = {0};
    ProtobufCMessage *m =
        kvf_client_try(v->client, &kvferry__v1__cluster__descriptor, "GetCluster", &r.base, 3000, &result);
    if (!m) {
        snprintf(v->trouble, sizeof v->trouble, "no answer: %.500s", result.message);
        return result;
    }
    v->trouble[0] = 0;
    kvf_rpc_message_free(v->state);
    v->state = m;
    kvf_top_update(&v->top, (const void *)m, kvf_os_now_ns());
    return result;
}

static void render(const view *v, const kvf_top_style *style, kvf_buf *out) {
    char clock[32];
    time_t now = time(NULL);
    struct tm tm;
    strftime(clock, sizeof clock, "%H:%M:%S", localtime_r(&now, &tm));
    kvf_top_render(&v->top, (const void *)v->state, v->o->admin, clock, v->trouble[0] ? v->trouble : NULL, style, out);
    if (v->paused) kvf_buf_puts(out, "(paused)\n");
}

/* Twice, so that rates have something to be rates of. */
static int run_once(view *v) {
    for (int i = 0; i < 2; i++) {
        kvf_rpc_result result = refresh(v);
        if (!v->state || v->trouble[0]) return kvf_client_report(v->client, &result);
        struct pollfd interrupt = {kvf_client_interrupt_fd(v->client), POLLIN, 0};
        if (i == 0 && !v->o->json) poll(&interrupt, 1, (int)KVF_MIN(v->o->interval_ns / KVF_NS_PER_MS, (uint64_t)1000));
        if (v->o->json) break;
    }
    if (v->o->json) {
        kvf_cmd_print_json(v->state);
        return KVF_EXIT_OK;
    }
    kvf_top_style style = {.utf8 = kvf_term_utf8(), .colour = kvf_term_colour(stdout)};
    uint32_t rows;
    kvf_term_size(&style.columns, &rows);
    kvf_buf out = {0};
    render(v, &style, &out);
    fwrite(out.text, 1, out.len_bytes, stdout);
    kvf_buf_fini(&out);
    return KVF_EXIT_OK;
}

static void draw(const view *v) {
    kvf_top_style style = {.utf8 = kvf_term_utf8(), .colour = kvf_term_colour(stdout)};
    kvf_term_size(&style.columns, &style.rows); /* asked anew each time: a resize needs nothing more */
    if (style.rows > 1) style.rows--;
    kvf_buf text = {0}, out = {0};
    render(v, &style, &text);
    kvf_buf_puts(&out, "\033[H");
    for (char *at = text.text, *line; (line = strsep(&at, "\n"));)
        if (at) kvf_buf_printf(&out, "%s\033[K\n", line); /* overwriting, not clearing, does not flicker */
    kvf_buf_puts(&out, "\033[J");
    fwrite(out.text, 1, out.len_bytes, stdout);
    fflush(stdout);
    kvf_buf_fini(&text);
    kvf_buf_fini(&out);
}

/* Waits for a key, an interrupt, a change of size or the next refresh. False: leave. */
static bool wait_key(view *v, kvf_time_ns until) {
    uint32_t columns, rows, now_columns, now_rows;
    kvf_term_size(&columns, &rows);
    for (;;) {
        kvf_time_ns now = kvf_os_now_ns();
        if (now >= until) return true;
        struct pollfd fds[2] = {{STDIN_FILENO, POLLIN, 0}, {kvf_client_interrupt_fd(v->client), POLLIN, 0}};
        int n = poll(fds, 2, (int)KVF_MIN((until - now) / KVF_NS_PER_MS + 1, (uint64_t)200));
        kvf_term_size(&now_columns, &now_rows);
        if (columns != now_columns || rows != now_rows) {
            draw(v);
            columns = now_columns;
            rows = now_rows;
        }
        if (n <= 0) continue;
        if (fds[1].revents) return false;
        char key;
        if (read(STDIN_FILENO, &key, 1) != 1 || key == 'q' || key == 'Q') return false;
        if (key == ' ') {
            v->paused = !v->paused;
            draw(v);
        }
    }
}

static int run_live(view *v) {
    struct termios before, raw;
    if (tcgetattr(STDIN_FILENO, &before) != 0) return run_once(v);
    raw = before;
    raw.c_lflag &= (tcflag_t) ~(ICANON | ECHO);
    raw.c_cc[VMIN] = 1;
    raw.c_cc[VTIME] = 0;
    kvf_rpc_result result = refresh(v);
    if (!v->state) return kvf_client_report(v->client, &result); /* nobody there: no screen for that */
    tcsetattr(STDIN_FILENO, TCSANOW, &raw);
    fputs("\033[?1049h\033[?25l", stdout); /* the other screen, no cursor */
    do {
        if (!v->paused) refresh(v);
        draw(v);
    } while (wait_key(v, kvf_os_now_ns() + v->o->interval_ns));
    fputs("\033[?25h\033[?1049l", stdout);
    fflush(stdout);
    tcsetattr(STDIN_FILENO, TCSANOW, &before);
    return KVF_EXIT_OK;
}

static int run(const kvf_command *command, const void *opts, const kvf_args *args) {
    const options *o = opts;
    int status;
    view v = {.o = o, .client = kvf_client_open(o->admin, &o->tls, &status)};
    if (!v.client) return status;
    bool live = !o->once && !o->json && kvf_term_is(stdout) && isatty(STDIN_FILENO) == 1;
    status = live ? run_live(&v) : run_once(&v);
    kvf_rpc_message_free(v.state);
    kvf_client_close(v.client);
    return status;
}

#define AT(f) offsetof(options, f)
static const kvf_arg rows[] = {
    {"router", 'r', KVF_ARG_TEXT, "HOST:PORT", "the router's admin address (default " KVF_CLI_ADMIN ")", AT(admin), 0,
        0, "KVFERRY_ADMIN", false},
    KVF_CLIENT_TLS_ROWS(options, tls),
    {"interval", 'i', KVF_ARG_DURATION, "TIME", "between refreshes (default 1s)", AT(interval_ns), 0, 0, NULL, false},
    {"once", 0, KVF_ARG_FLAG, "", "print one frame", AT(once), 0, 0, NULL, false},
    {"json", 0, KVF_ARG_FLAG, "", "the state of the cluster as one line of JSON", AT(json), 0, 0, NULL, false},
};
static const options defaults = {.admin = KVF_CLI_ADMIN, .interval_ns = KVF_NS_PER_S};
const kvf_command kvf_cmd_top = {
    .name = "top",
    .positional = "",
    .summary = "a live view: nodes, queue, KV blocks, pages per second, TTFT and TPOT",
    .about = "  q leaves, space pauses. Not on a terminal: one frame. NO_COLOR is honoured.\n"
             "  ttft and tpot are estimates from what nodes report: prompt tokens that wait over the prefill rate, "
             "sequences over the\n"
             "  decode rate. `kvferry complete --stats` measures a request.",
    .rows = rows,
    .rows_count = KVF_COUNT_OF(rows),
    .options_bytes = sizeof(options),
    .defaults = &defaults,
    .run = run,
};
