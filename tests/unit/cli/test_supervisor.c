/* The supervisor with shell scripts for children: it runs in a process of its own; what it tells comes through pipes,
 * so that nothing here waits by time. A pipe that all children hold shows by its end that the last of them is gone. */
#include "cli_test.h"
#include "kvf/log.h"
#include "runtime_dir.h"
#include "supervisor.h"
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

typedef struct {
    pid_t pid; /* the supervisor */
    FILE *ready; /* its ready line */
    FILE *told; /* each on_ready: "INDEX LINE" */
    int alive; /* ends when all children are gone */
} rig;

static void tell(void *self, uint32_t child, const char *line) { dprintf(*(int *)self, "%u %s\n", child, line); }

static void quiet(void *self, kvf_log_level level, const char *component, const char *message) {}

/* scripts: of the children; the last one is the front. */
static void rig_start(rig *r, const char *const *scripts, uint32_t count) {
    int ready[2], told[2], alive[2];
    assert_int_equal(pipe2(ready, O_CLOEXEC), 0);
    assert_int_equal(pipe2(told, O_CLOEXEC), 0);
    assert_int_equal(pipe(alive), 0);
    fcntl(alive[0], F_SETFD, FD_CLOEXEC);
    fflush(NULL);
    r->pid = fork();
    assert_true(r->pid >= 0);
    if (r->pid == 0) {
        kvf_log_set_sink(quiet, NULL);
        close(ready[0]);
        close(told[0]);
        close(alive[0]);
        kvf_child children[4] = {{0}};
        for (uint32_t i = 0; i < count; i++) {
            children[i].name = i + 1 == count ? "front" : "back";
            children[i].stage = i + 1 == count ? 0 : 1;
            children[i].front = i + 1 == count;
            children[i].argv[0] = "sh";
            children[i].argv[1] = "-c";
            children[i].argv[2] = scripts[i];
        }
        kvf_supervisor_options o = {.program = "/bin/sh",
            .children = children,
            .count = count,
            .ready_fd = ready[1],
            .stop_limit_ns = 600 * KVF_NS_PER_S,
            .on_ready = tell,
            .self = &told[1]};
        _exit(kvf_supervisor_run(&o));
    }
    close(ready[1]);
    close(told[1]);
    close(alive[1]);
    r->ready = fdopen(ready[0], "r");
    r->told = fdopen(told[0], "r");
    r->alive = alive[0];
}

static int rig_wait(rig *r) {
    int status;
    assert_int_equal(waitpid(r->pid, &status, 0), r->pid);
    return WIFEXITED(status) ? WEXITSTATUS(status) : -WTERMSIG(status);
}

/* Blocks until every child is gone. */
static void rig_end(rig *r) {
    char byte;
    assert_int_equal(read(r->alive, &byte, 1), 0);
    close(r->alive);
    fclose(r->ready);
    fclose(r->told);
}

static pid_t next_ready(rig *r, uint32_t *index) {
    char line[256];
    int pid = 0;
    assert_non_null(fgets(line, sizeof line, r->told));
    assert_int_equal(sscanf(line, "%u ready pid=%d", index, &pid), 2);
    return pid;
}

#define STAYS "echo ready pid=$$; exec sleep 100000"
#define DEAF "trap '' TERM; echo ready pid=$$; exec sleep 100000"

static void starts_restarts_and_stops(void **state) {
    rig r;
    rig_start(&r, (const char *const[]){STAYS, STAYS}, 2);
    pid_t pids[2];
    uint32_t index;
    for (int i = 0; i < 2; i++) {
        pid_t pid = next_ready(&r, &index);
        pids[index] = pid;
    }
    char line[256], want[64];
    assert_non_null(fgets(line, sizeof line, r.ready));
    snprintf(want, sizeof want, "ready pid=%d\n", (int)pids[1]);
    assert_string_equal(line, want);
    for (uint32_t victim = 0; victim < 2; victim++) {
        assert_int_equal(kill(pids[victim], SIGKILL), 0);
        pid_t again = next_ready(&r, &index);
        assert_int_equal(index, victim);
        assert_true(again != pids[victim]);
        pids[victim] = again;
    }
    kill(r.pid, SIGTERM);
    assert_int_equal(rig_wait(&r), 0);
    assert_null(fgets(line, sizeof line, r.ready)); /* one ready line in its life */
    rig_end(&r);
}

static void a_start_that_fails_ends_all(void **state) {
    rig r;
    rig_start(&r, (const char *const[]){"exit 78", STAYS}, 2);
    assert_int_equal(rig_wait(&r), 78);
    rig_end(&r);
    rig_start(&r, (const char *const[]){STAYS, "echo other words; exit 1"}, 2);
    assert_int_equal(rig_wait(&r), 1);
    char line[64];
    assert_null(fgets(line, sizeof line, r.ready));
    rig_end(&r);
}

static void the_second_signal_kills(void **state) {
    rig r;
    uint32_t index;
    char line[256];
    rig_start(&r, (const char *const[]){DEAF, DEAF}, 2);
    next_ready(&r, &index);
    next_ready(&r, &index);
    assert_non_null(fgets(line, sizeof line, r.ready));
    kill(r.pid, SIGINT);
    kill(r.pid, SIGTERM); /* another one, so that both are delivered */
    assert_int_equal(rig_wait(&r), 1);
    rig_end(&r);
}

static void nobody_outlives_it(void **state) {
    rig r;
    uint32_t index;
    rig_start(&r, (const char *const[]){DEAF, STAYS, STAYS}, 3);
    for (int i = 0; i < 3; i++) next_ready(&r, &index);
    kill(r.pid, SIGKILL);
    assert_int_equal(rig_wait(&r), -SIGKILL);
    rig_end(&r);
}

/* A pipe whose ends stand above the descriptors that scripts use. */
static void pipe_high(int fds[2]) {
    int low[2];
    assert_int_equal(pipe2(low, O_CLOEXEC), 0);
    for (int i = 0; i < 2; i++) {
        fds[i] = fcntl(low[i], F_DUPFD_CLOEXEC, 20);
        assert_true(fds[i] >= 20);
        close(low[i]);
    }
}

static void front_stops_before_the_rest(void **state) {
    /* On TERM the front says so, waits for our word, says so again and ends; the back may be told only after that.
     * Descriptors 7 to 9 are for the scripts: whatever has a higher number /bin/sh cannot name. */
    int order[2], go[2], never[2];
    pipe_high(order);
    pipe_high(go);
    pipe_high(never);
    assert_int_equal(dup2(never[0], 7), 7);
    assert_int_equal(dup2(order[1], 8), 8);
    assert_int_equal(dup2(go[0], 9), 9);
    close(order[1]);
    rig r;
    uint32_t index;
    rig_start(&r,
        (const char *const[]){"trap 'echo back >&8; exit 0' TERM; echo ready pid=$$; read x <&7",
            "trap 'echo front >&8; read x <&9; echo front-end >&8; exit 0' TERM; echo ready pid=$$; read x <&7"},
        2);
    for (int i = 7; i <= 9; i++) close(i);
    next_ready(&r, &index);
    next_ready(&r, &index);
    kill(r.pid, SIGTERM);
    FILE *said = fdopen(order[0], "r");
    char line[64];
    assert_non_null(fgets(line, sizeof line, said));
    assert_string_equal(line, "front\n");
    assert_int_equal(write(go[1], "go\n", 3), 3);
    assert_non_null(fgets(line, sizeof line, said));
    assert_string_equal(line, "front-end\n");
    assert_non_null(fgets(line, sizeof line, said));
    assert_string_equal(line, "back\n");
    assert_int_equal(rig_wait(&r), 0);
    rig_end(&r);
    fclose(said);
    close(go[0]);
    close(go[1]);
    close(never[0]);
    close(never[1]);
}

static void left_over_directories_are_cleared(void **state) {
    char base[] = "/tmp/kvf-test-XXXXXX", path[128], socket_name[160];
    assert_non_null(mkdtemp(base));
    setenv("XDG_RUNTIME_DIR", base, 1);
    kvf_runtime_dir live, next;
    int told[2];
    assert_int_equal(pipe(told), 0);
    pid_t pid = fork();
    if (pid == 0) { /* makes one, and dies without a word */
        kvf_runtime_dir mine;
        if (kvf_runtime_dir_create(&mine)) dprintf(told[1], "%s", mine.path);
        snprintf(socket_name, sizeof socket_name, "%s/p0.sock", mine.path);
        close(open(socket_name, O_CREAT | O_WRONLY, 0600));
        _exit(0);
    }
    assert_int_equal(waitpid(pid, NULL, 0), pid);
    ssize_t n = read(told[0], path, sizeof path - 1);
    assert_true(n > 0);
    path[n] = 0;
    assert_int_equal(access(path, F_OK), 0);
    assert_true(kvf_runtime_dir_create(&live));
    assert_int_equal(access(path, F_OK), -1); /* the dead one's is gone */
    assert_true(kvf_runtime_dir_create(&next));
    assert_int_equal(access(live.path, F_OK), 0); /* the living one's is not */
    kvf_runtime_dir_remove(&live);
    kvf_runtime_dir_remove(&next);
    assert_int_equal(rmdir(base), 0); /* nothing is left */
    close(told[0]);
    close(told[1]);
}

static void backoff_doubles_and_resets(void **state) {
    kvf_time_ns wait = 0;
    static const uint64_t want_ms[] = {100, 200, 400, 800, 1600, 3200, 5000, 5000};
    for (size_t i = 0; i < KVF_COUNT_OF(want_ms); i++) {
        wait = kvf_supervisor_backoff(wait, false);
        assert_true(wait == want_ms[i] * KVF_NS_PER_MS);
    }
    assert_true(kvf_supervisor_backoff(wait, true) == 20 * KVF_NS_PER_MS);
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(starts_restarts_and_stops),
        cmocka_unit_test(a_start_that_fails_ends_all), cmocka_unit_test(the_second_signal_kills),
        cmocka_unit_test(nobody_outlives_it), cmocka_unit_test(front_stops_before_the_rest),
        cmocka_unit_test(left_over_directories_are_cleared), cmocka_unit_test(backoff_doubles_and_resets)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
