/* Processes: start, ready line, end, and what /proc says of them. */
#include "harness.h"
#include <ctype.h>
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <spawn.h>
#include <string.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

extern char **environ;

uint64_t e2e_now_ns(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (uint64_t)t.tv_sec * 1000000000u + (uint64_t)t.tv_nsec;
}

void e2e_pause(void) { nanosleep(&(struct timespec){.tv_nsec = 20000000}, NULL); }

void e2e_until(const char *what, e2e_until_fn so, void *self) {
    uint64_t end = e2e_now_ns() + (uint64_t)E2E_WAIT_MS * 1000000u;
    while (!so(self)) {
        if (e2e_now_ns() > end) fail_msg("waited too long: %s", what);
        e2e_pause();
    }
}

uint64_t e2e_random(uint64_t *state) {
    uint64_t z = *state += 0x9e3779b97f4a7c15u;
    z = (z ^ z >> 30) * 0xbf58476d1ce4e5b9u;
    z = (z ^ z >> 27) * 0x94d049bb133111ebu;
    return z ^ z >> 31;
}

void e2e_need_file(const char *path, const char *what) {
    if (access(path, R_OK) == 0) return;
    printf("skipped: no %s (%s)\n", what, path);
    exit(E2E_SKIP);
}

char *e2e_read_file(const char *path) {
    FILE *f = fopen(path, "rb");
    if (!f) return NULL;
    size_t used = 0, room = 1 << 16, got;
    char *text = malloc(room);
    while (text && (got = fread(text + used, 1, room - used - 1, f)) > 0) {
        used += got;
        if (used + 1 < room) continue;
        char *larger = realloc(text, room *= 2);
        if (!larger) break;
        text = larger;
    }
    fclose(f);
    if (text) text[used] = 0;
    return text;
}

/* A failed test leaves its cluster behind: ended with the program, and the end of its log shown. */
static pid_t alive[64];
static char alive_logs[64][64];

static void forget(pid_t pid) {
    for (size_t i = 0; i < KVF_COUNT_OF(alive); i++)
        if (alive[i] == pid) alive[i] = 0;
}

static void end_all(void) {
    for (size_t i = 0; i < KVF_COUNT_OF(alive); i++) {
        if (alive[i] <= 0) continue;
        printf("left behind: process %d, its log is %s\n", (int)alive[i], alive_logs[i]);
        kill(alive[i], SIGTERM);
        kill(alive[i], SIGTERM); /* the second means: now */
        kill(alive[i], SIGCONT); /* a frozen one hears nothing else */
        waitpid(alive[i], NULL, 0);
    }
}

static void remember(const e2e_process *p) {
    static bool registered;
    if (!registered) atexit(end_all);
    registered = true;
    for (size_t i = 0; i < KVF_COUNT_OF(alive); i++) {
        if (alive[i]) continue;
        memcpy(alive_logs[i], p->log, sizeof p->log);
        alive[i] = p->pid;
        return;
    }
}

static const char *program(void) {
    const char *path = getenv("KVFERRY");
    if (path && access(path, X_OK) == 0) return path;
    printf("skipped: KVFERRY does not name the program\n");
    exit(E2E_SKIP);
}

/* Our environment and one more variable, which goes first so that it is the one found. Freed by the caller. */
static char **environment(const char *more) {
    size_t count = 0, at = 0;
    while (environ[count]) count++;
    char **out = calloc(count + 2, sizeof *out);
    assert_non_null(out);
    if (more) out[at++] = (char *)(uintptr_t)more;
    memcpy(out + at, environ, count * sizeof *out);
    return out;
}

static int spawn(e2e_process *p, const char *const *argv, const char *env) {
    const char *full[E2E_ARGS_MAX + 2] = {program()};
    size_t count = 1;
    while (argv[count - 1]) {
        assert_true(count <= E2E_ARGS_MAX);
        full[count] = argv[count - 1];
        count++;
    }
    *p = (e2e_process){.pid = -1};
    snprintf(p->log, sizeof p->log, "/tmp/kvf-e2e-XXXXXX");
    int log = mkstemp(p->log), out[2];
    assert_true(log >= 0);
    assert_int_equal(pipe2(out, O_CLOEXEC), 0);
    posix_spawn_file_actions_t actions;
    posix_spawn_file_actions_init(&actions);
    posix_spawn_file_actions_addopen(&actions, 0, "/dev/null", O_RDONLY, 0);
    posix_spawn_file_actions_adddup2(&actions, out[1], 1);
    posix_spawn_file_actions_adddup2(&actions, log, 2);
    posix_spawnattr_t attributes;
    sigset_t none;
    sigemptyset(&none);
    posix_spawnattr_init(&attributes);
    posix_spawnattr_setflags(&attributes, POSIX_SPAWN_SETSIGMASK);
    posix_spawnattr_setsigmask(&attributes, &none);
    char **envp = environment(env);
    int error = posix_spawn(&p->pid, full[0], &actions, &attributes, (char *const *)(uintptr_t)full, envp);
    free(envp);
    posix_spawn_file_actions_destroy(&actions);
    posix_spawnattr_destroy(&attributes);
    close(out[1]);
    close(log);
    assert_int_equal(error, 0);
    remember(p);
    return out[0];
}

static void word(const char *line, const char *key, char *out, size_t room) {
    const char *at = strstr(line, key);
    out[0] = 0;
    if (at) snprintf(out, room, "%.*s", (int)strcspn(at + strlen(key), " \n"), at + strlen(key));
}

static void parse(e2e_process *p) {
    const char *line = strncmp(p->out, "ready", 5) == 0 ? p->out : strstr(p->out, "\nready");
    if (!line || !strchr(line + 1, '\n')) return;
    p->ready = true;
    word(line, " grpc=", p->grpc, sizeof p->grpc);
    word(line, " admin=", p->admin, sizeof p->admin);
    word(line, " control=", p->control, sizeof p->control);
}

void e2e_spawn(e2e_process *p, const char *const *argv) { e2e_spawn_env(p, argv, NULL); }

void e2e_spawn_env(e2e_process *p, const char *const *argv, const char *env) {
    int out = spawn(p, argv, env);
    size_t used = 0;
    uint64_t end = e2e_now_ns() + (uint64_t)E2E_WAIT_MS * 1000000u;
    while (!p->ready && used + 1 < sizeof p->out) {
        struct pollfd ready = {.fd = out, .events = POLLIN};
        if (poll(&ready, 1, 1000) <= 0) {
            if (e2e_now_ns() > end) break;
            continue;
        }
        ssize_t got = read(out, p->out + used, sizeof p->out - 1 - used);
        if (got <= 0) break;
        p->out[used += (size_t)got] = 0;
        parse(p);
    }
    close(out);
}

void e2e_spawn_nowait(e2e_process *p, const char *const *argv) { close(spawn(p, argv, NULL)); }

int e2e_process_wait(e2e_process *p) {
    int status = 0;
    uint64_t end = e2e_now_ns() + (uint64_t)E2E_WAIT_MS * 1000000u;
    while (waitpid(p->pid, &status, WNOHANG) == 0) {
        if (e2e_now_ns() > end) {
            kill(p->pid, SIGKILL);
            waitpid(p->pid, &status, 0);
            print_message("%s did not end\n", p->log);
            break;
        }
        e2e_pause();
    }
    forget(p->pid);
    p->pid = -1;
    return WIFEXITED(status) ? WEXITSTATUS(status) : 256 + WTERMSIG(status);
}

int e2e_process_stop(e2e_process *p) {
    if (p->pid <= 0) return 0;
    kill(p->pid, SIGTERM);
    int status = e2e_process_wait(p);
    if (status == 0) unlink(p->log);
    return status;
}

/* ---- /proc ---- */

static bool stat_of(pid_t pid, pid_t *parent) {
    char path[64], text[512];
    snprintf(path, sizeof path, "/proc/%d/stat", (int)pid);
    FILE *f = fopen(path, "r");
    if (!f) return false;
    size_t got = fread(text, 1, sizeof text - 1, f);
    fclose(f);
    text[got] = 0;
    const char *after = strrchr(text, ')');
    int ppid;
    char state;
    if (!after || sscanf(after + 1, " %c %d", &state, &ppid) != 2 || state == 'Z') return false;
    *parent = ppid;
    return true;
}

static bool has_role(pid_t pid, const char *role) {
    char path[64], text[4096];
    snprintf(path, sizeof path, "/proc/%d/cmdline", (int)pid);
    FILE *f = fopen(path, "r");
    if (!f) return false;
    size_t got = fread(text, 1, sizeof text - 1, f);
    fclose(f);
    text[got] = 0;
    size_t first = strlen(text) + 1;
    return first < got && strcmp(text + first, role) == 0;
}

size_t e2e_children(e2e_cluster *c, const char *role, pid_t *out, size_t max) {
    DIR *d = opendir("/proc");
    assert_non_null(d);
    size_t count = 0;
    for (struct dirent *e; (e = readdir(d));) {
        pid_t pid = (pid_t)atoi(e->d_name), parent;
        if (pid <= 0 || !stat_of(pid, &parent) || parent != c->serve.pid) continue;
        if (role && !has_role(pid, role)) continue;
        if (count < max) out[count++] = pid;
    }
    closedir(d);
    return count;
}

uint64_t e2e_anon_kib(pid_t pid) {
    char path[64], line[256];
    snprintf(path, sizeof path, "/proc/%d/status", (int)pid);
    FILE *f = fopen(path, "r");
    unsigned long long kib = 0;
    while (f && fgets(line, sizeof line, f))
        if (sscanf(line, "RssAnon: %llu", &kib) == 1) break;
    if (f) fclose(f);
    return kib;
}

bool e2e_maps_shared(pid_t pid, const char *file) {
    char path[64], line[512];
    bool found = false, ours = false;
    unsigned long long dirty = 0, kib;
    snprintf(path, sizeof path, "/proc/%d/smaps", (int)pid);
    FILE *f = fopen(path, "r");
    while (f && fgets(line, sizeof line, f)) {
        if (isxdigit((unsigned char)line[0]) && strchr(line, '-')) {
            ours = strstr(line, file) != NULL;
            if (!ours) continue;
            found = true;
            if (strchr(line, ' ')[2] == 'w') dirty++; /* "START-END rw.." */
        } else if (ours && sscanf(line, "Private_Dirty: %llu", &kib) == 1) {
            dirty += kib;
        }
    }
    if (f) fclose(f);
    return found && dirty == 0;
}

uint64_t e2e_fds(pid_t pid) {
    char path[64];
    uint64_t count = 0;
    snprintf(path, sizeof path, "/proc/%d/fd", (int)pid);
    DIR *d = opendir(path);
    for (struct dirent *e; d && (e = readdir(d));) count += isdigit((unsigned char)e->d_name[0]) != 0;
    if (d) closedir(d);
    return count;
}

void e2e_usage(e2e_cluster *c, uint64_t *anon_kib, uint64_t *fds) {
    pid_t pids[64];
    size_t count = e2e_children(c, NULL, pids, 63);
    pids[count++] = c->serve.pid;
    *anon_kib = *fds = 0;
    for (size_t i = 0; i < count; i++) {
        *anon_kib += e2e_anon_kib(pids[i]);
        *fds += e2e_fds(pids[i]);
    }
}
