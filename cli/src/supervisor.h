/* supervisor.h - runs a few child processes and nothing else: starts them, waits until each has said "ready", starts
 * again what dies, ends them in order. Single-threaded and without gRPC, so that forking is safe.
 *
 *   child:  STARTING --ready line--> RUNNING --exit--> WAITING (backoff) --> STARTING
 *   The front starts when all others have been ready; when it is ready too, its line goes to `ready_fd`, once.
 *   An exit (not a death by signal) before that: the run fails with the child's status.
 *   INT, TERM or HUP: TERM to the children of stage 0; when they are gone, to stage 1. A second one, or stop_limit_ns:
 * KILL.
 *
 * A child never outlives this process (PR_SET_PDEATHSIG), is its direct child, and has a process group of its own, so
 * that a Ctrl-C of the terminal reaches only the parent. Its stderr is the parent's; its stdout is a pipe to the
 * parent, its stdin /dev/null. */
#ifndef KVF_CLI_SUPERVISOR_H
#define KVF_CLI_SUPERVISOR_H
#include "kvf/base.h"

#define KVF_CHILD_ARGS_MAX 160
typedef struct {
    const char *name; /* for the log: "p0" */
    uint32_t stage; /* of stopping: 0 first */
    bool front; /* its ready line is ours */
    const char *argv[KVF_CHILD_ARGS_MAX]; /* NULL-terminated; argv[0] is only a name */
} kvf_child;

typedef struct {
    const char *program; /* "/proc/self/exe" */
    kvf_child *children; /* borrowed; on_ready may change argv for later starts */
    uint32_t count;
    int ready_fd; /* where the front's ready line goes */
    kvf_time_ns stop_limit_ns; /* of each stage */
    void (*on_ready)(void *self, uint32_t child, const char *line); /* each time a child says so; may be NULL */
    void *self;
} kvf_supervisor_options;

/* Exit status of the whole: 0 after a clean stop. */
int kvf_supervisor_run(const kvf_supervisor_options *options);

/* Wait before starting a child again. One that had been ready is wanted back at once (loading paces it anyway); one
 * that dies before it is ready will most likely do so again: 100 ms doubling to 5 s. */
kvf_time_ns kvf_supervisor_backoff(kvf_time_ns previous_ns, bool was_ready);
#endif
