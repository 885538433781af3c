#include "supervisor.h"
#include "kvf/log.h"
#include "kvf/os.h"
#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/prctl.h>
#include <sys/signalfd.h>
#include <sys/wait.h>
#include <unistd.h>

enum { CHILDREN_MAX = 64, LINE_MAX_BYTES = 1024, STAGES = 2, EXEC_FAILED = 127 };

typedef enum { STARTING, RUNNING, WAITING, GONE } state;
typedef struct {
    state state;
    pid_t pid;
    int out; /* read end of its stdout, -1: closed */
    bool was_ready; /* at least once */
    kvf_time_ns started_ns, backoff_ns, restart_ns;
    char line[LINE_MAX_BYTES];
    size_t line_bytes;
} slot;

typedef struct {
    const kvf_supervisor_options *o;
    slot slots[CHILDREN_MAX];
    int signals;
    sigset_t mask_before;
    bool announced, stopping, killed;
    uint32_t stage;
    kvf_time_ns kill_ns; /* while stopping: then no more patience */
    char ready_line[LINE_MAX_BYTES];
    int exit_status;
} supervisor;

kvf_time_ns kvf_supervisor_backoff(kvf_time_ns previous_ns, bool was_ready) {
    if (was_ready) return 20 * KVF_NS_PER_MS;
    return KVF_MIN(KVF_MAX(previous_ns * 2, 100 * KVF_NS_PER_MS), 5 * KVF_NS_PER_S);
}

/* Between fork and exec: only what is safe there. */
static void become_child(const supervisor *s, const kvf_child *c, int out, pid_t parent) {
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    if (getppid() != parent) _exit(1); /* it died before we asked to be told */
    setpgid(0, 0);
    signal(SIGTTOU, SIG_IGN); /* a group in the background may still log to the terminal */
    int null = open("/dev/null", O_RDONLY);
    if (null >= 0) dup2(null, STDIN_FILENO);
    dup2(out, STDOUT_FILENO);
    sigprocmask(SIG_SETMASK, &s->mask_before, NULL);
    execv(s->o->program, (char *const *)(uintptr_t)c->argv);
    _exit(EXEC_FAILED);
}

static kvf_status start(supervisor *s, uint32_t i) {
    const kvf_child *c = &s->o->children[i];
    slot *k = &s->slots[i];
    int pipe_fds[2];
    if (pipe2(pipe_fds, O_CLOEXEC | O_NONBLOCK) != 0) return KVF_ERR_IO;
    fcntl(pipe_fds[1], F_SETFL, 0); /* the child writes as to any pipe */
    pid_t parent = getpid(), pid = fork();
    if (pid == 0) become_child(s, c, pipe_fds[1], parent);
    close(pipe_fds[1]);
    if (pid < 0) {
        close(pipe_fds[0]);
        return KVF_ERR_IO;
    }
    k->state = STARTING;
    k->pid = pid;
    k->out = pipe_fds[0];
    k->line_bytes = 0;
    k->started_ns = kvf_os_now_ns();
    return KVF_OK;
}

static void wait_and_restart(supervisor *s, uint32_t i, kvf_time_ns now) {
    slot *k = &s->slots[i];
    k->backoff_ns = kvf_supervisor_backoff(k->backoff_ns, k->state == RUNNING);
    k->restart_ns = now + k->backoff_ns;
    k->state = WAITING;
}

static void begin_stage(supervisor *s, uint32_t stage) {
    s->stage = stage;
    s->kill_ns = kvf_os_now_ns() + s->o->stop_limit_ns;
    for (uint32_t i = 0; i < s->o->count; i++) {
        slot *k = &s->slots[i];
        if (s->o->children[i].stage != stage) continue;
        if (k->state == STARTING || k->state == RUNNING)
            kill(k->pid, SIGTERM);
        else
            k->state = GONE;
    }
}

static void kill_all(supervisor *s) {
    s->killed = true;
    for (uint32_t i = 0; i < s->o->count; i++) {
        slot *k = &s->slots[i];
        if (k->state == STARTING || k->state == RUNNING)
            kill(k->pid, SIGKILL);
        else
            k->state = GONE;
    }
}

static void begin_stop(supervisor *s) {
    if (s->stopping) return;
    s->stopping = true;
    begin_stage(s, 0);
}

static void fail(supervisor *s, int exit_status) {
    if (s->exit_status == 0) s->exit_status = exit_status;
    s->stopping = true;
    kill_all(s); /* nothing was served yet: nothing to drain */
}

/* Of the front, or of all others. */
static bool ready(const supervisor *s, bool front) {
    for (uint32_t i = 0; i < s->o->count; i++)
        if (s->o->children[i].front == front && s->slots[i].state != RUNNING) return false;
    return true;
}

/* The front has waited for the others: it would only log that they do not answer. */
static void release_front(supervisor *s) {
    for (uint32_t i = 0; i < s->o->count; i++)
        if (s->slots[i].state == WAITING && s->slots[i].restart_ns == KVF_TIME_NEVER) s->slots[i].restart_ns = 0;
}

static void take_line(supervisor *s, uint32_t i, const char *line) {
    slot *k = &s->slots[i];
    if (strncmp(line, "ready", 5) != 0 || k->state != STARTING) return;
    k->state = RUNNING;
    if (k->was_ready) kvf_log(KVF_LOG_INFO, "serve", "%s is back (pid %d)", s->o->children[i].name, (int)k->pid);
    k->was_ready = true;
    if (s->o->on_ready) s->o->on_ready(s->o->self, i, line);
    if (s->o->children[i].front && !s->announced) snprintf(s->ready_line, sizeof s->ready_line, "%s\n", line);
    if (s->announced || s->stopping || !ready(s, false)) return;
    release_front(s);
    if (!ready(s, true)) return;
    s->announced = true;
    size_t len = strlen(s->ready_line);
    if (write(s->o->ready_fd, s->ready_line, len) != (ssize_t)len)
        kvf_log(KVF_LOG_WARN, "serve", "stdout cannot be written: %s", strerror(errno));
}

static void read_out(supervisor *s, uint32_t i) {
    slot *k = &s->slots[i];
    for (;;) {
        char part[512];
        ssize_t n = read(k->out, part, sizeof part);
        if (n < 0 && errno == EINTR) continue;
        if (n < 0) return;
        if (n == 0) {
            close(k->out);
            k->out = -1;
            return;
        }
        for (ssize_t at = 0; at < n; at++) {
            if (part[at] == '\n') {
                k->line[k->line_bytes] = 0;
                k->line_bytes = 0;
                take_line(s, i, k->line);
            } else if (k->line_bytes + 1 < sizeof k->line) {
                k->line[k->line_bytes++] = part[at];
            }
        }
    }
}

static void log_end(const supervisor *s, uint32_t i, int wait_status) {
    const slot *k = &s->slots[i];
    const char *name = s->o->children[i].name;
    if (WIFSIGNALED(wait_status))
        kvf_log(KVF_LOG_WARN, "serve", "%s (pid %d) died by signal %d (%s)", name, (int)k->pid, WTERMSIG(wait_status),
            strsignal(WTERMSIG(wait_status)));
    else if (WEXITSTATUS(wait_status) != 0)
        kvf_log(KVF_LOG_WARN, "serve", "%s (pid %d) ended with status %d", name, (int)k->pid, WEXITSTATUS(wait_status));
    else if (!s->stopping)
        kvf_log(KVF_LOG_WARN, "serve", "%s (pid %d) ended", name, (int)k->pid);
}

static void child_ended(supervisor *s, uint32_t i, int wait_status) {
    slot *k = &s->slots[i];
    if (k->out >= 0) {
        read_out(s, i); /* what it said last */
        if (k->out >= 0) close(k->out);
        k->out = -1;
    }
    if (!s->killed) log_end(s, i, wait_status);
    if (s->stopping) {
        /* A TERM that came before it could take it in hand is a clean end too. */
        bool clean = WIFEXITED(wait_status) ? WEXITSTATUS(wait_status) == 0 : WTERMSIG(wait_status) == SIGTERM;
        if (!s->killed && !clean) s->exit_status = 1;
        k->state = GONE;
        return;
    }
    if (WIFEXITED(wait_status) && !s->announced && !k->was_ready) {
        int status = WEXITSTATUS(wait_status);
        k->state = GONE;
        fail(s, status == 0 || status == EXEC_FAILED ? 1 : status);
        return;
    }
    wait_and_restart(s, i, kvf_os_now_ns());
}

static void reap(supervisor *s) {
    int wait_status;
    pid_t pid;
    while ((pid = waitpid(-1, &wait_status, WNOHANG)) > 0) {
        for (uint32_t i = 0; i < s->o->count; i++)
            if (s->slots[i].pid == pid && (s->slots[i].state == STARTING || s->slots[i].state == RUNNING))
                child_ended(s, i, wait_status);
    }
}

static void take_signals(supervisor *s) {
    struct signalfd_siginfo info;
    while (read(s->signals, &info, sizeof info) == (ssize_t)sizeof info) {
        if (info.ssi_signo == SIGCHLD) continue; /* reaped after every wake-up */
        if (!s->stopping) {
            kvf_log(KVF_LOG_INFO, "serve", "stopping: running requests may finish (once more: stop now)");
            begin_stop(s);
        } else if (!s->killed) {
            kvf_log(KVF_LOG_WARN, "serve", "stopping now");
            s->exit_status = 1;
            kill_all(s);
        }
    }
}

/* What is due; the time of the next such thing. */
static kvf_time_ns act_on_time(supervisor *s) {
    kvf_time_ns now = kvf_os_now_ns(), next = KVF_TIME_NEVER;
    if (s->stopping && !s->killed) {
        if (now >= s->kill_ns) {
            kvf_log(KVF_LOG_WARN, "serve", "children did not stop in time");
            s->exit_status = 1;
            kill_all(s);
        } else {
            next = s->kill_ns;
        }
    }
    for (uint32_t i = 0; i < s->o->count && !s->stopping; i++) {
        slot *k = &s->slots[i];
        if (k->state != WAITING) continue;
        if (now >= k->restart_ns && start(s, i) != KVF_OK) {
            kvf_log(KVF_LOG_ERROR, "serve", "cannot start %s: %s", s->o->children[i].name, strerror(errno));
            wait_and_restart(s, i, now);
        }
        if (k->state == WAITING) next = KVF_MIN(next, k->restart_ns);
    }
    return next;
}

static bool stage_gone(const supervisor *s, uint32_t stage) {
    for (uint32_t i = 0; i < s->o->count; i++)
        if (s->o->children[i].stage == stage && s->slots[i].state != GONE) return false;
    return true;
}

/* True: all is over. */
static bool advance_stop(supervisor *s) {
    if (!s->stopping) return false;
    while (s->stage < STAGES && stage_gone(s, s->stage)) {
        if (s->stage + 1 == STAGES) return true;
        begin_stage(s, s->stage + 1);
    }
    return false;
}

static void wait_for_events(supervisor *s, kvf_time_ns until) {
    struct pollfd fds[CHILDREN_MAX + 1];
    uint32_t of[CHILDREN_MAX + 1], count = 1;
    fds[0] = (struct pollfd){s->signals, POLLIN, 0};
    for (uint32_t i = 0; i < s->o->count; i++) {
        if (s->slots[i].out < 0) continue;
        fds[count] = (struct pollfd){s->slots[i].out, POLLIN, 0};
        of[count++] = i;
    }
    kvf_time_ns now = kvf_os_now_ns();
    int timeout = until == KVF_TIME_NEVER ? -1
                  : until <= now          ? 0
                                          : (int)KVF_MIN(kvf_div_up(until - now, KVF_NS_PER_MS), 60000ull);
    if (poll(fds, count, timeout) <= 0) return;
    for (uint32_t f = 1; f < count; f++)
        if (fds[f].revents) read_out(s, of[f]);
    if (fds[0].revents) take_signals(s);
}

int kvf_supervisor_run(const kvf_supervisor_options *options) {
    KVF_ASSERT(options->count > 0 && options->count <= CHILDREN_MAX);
    supervisor *s = calloc(1, sizeof *s);
    if (!s) return 1;
    s->o = options;
    for (uint32_t i = 0; i < options->count; i++) s->slots[i].out = -1;
    sigset_t set;
    sigemptyset(&set);
    sigaddset(&set, SIGCHLD);
    sigaddset(&set, SIGINT);
    sigaddset(&set, SIGTERM);
    sigaddset(&set, SIGHUP);
    sigprocmask(SIG_BLOCK, &set, &s->mask_before);
    s->signals = signalfd(-1, &set, SFD_CLOEXEC | SFD_NONBLOCK);
    if (s->signals < 0) {
        s->exit_status = 1;
        goto undo_mask;
    }
    bool alone = true;
    for (uint32_t i = 0; i < options->count; i++) alone &= options->children[i].front;
    for (uint32_t i = 0; i < options->count && !s->stopping; i++) {
        if (options->children[i].front && !alone) {
            s->slots[i].state = WAITING;
            s->slots[i].restart_ns = KVF_TIME_NEVER;
            continue;
        }
        if (start(s, i) == KVF_OK) continue;
        kvf_log(KVF_LOG_ERROR, "serve", "cannot start %s: %s", options->children[i].name, strerror(errno));
        for (uint32_t k = i; k < options->count; k++) s->slots[k].state = GONE;
        fail(s, 1);
    }
    for (;;) {
        kvf_time_ns next = act_on_time(s);
        if (advance_stop(s)) break;
        wait_for_events(s, next);
        reap(s);
    }
    close(s->signals);
undo_mask:
    sigprocmask(SIG_SETMASK, &s->mask_before, NULL);
    int status = s->exit_status;
    free(s);
    return status;
}
