/* fault.h - calls of ours that fail on purpose: memory, files, sockets, events, threads, one at a time.
 *
 * The linker's --wrap (CMake: kvf_fault_test) leads every such call made from objects of this tree, and none made
 * inside a shared library, through fault.c. While armed, the nth call fails with the errno it would have; the rest are
 * real. Memory taken while armed and not given back is known by name of the call, in every build. */
#ifndef KVF_TEST_FAULT_H
#define KVF_TEST_FAULT_H
#include "kvf/base.h"

typedef struct {
    const char *name; /* of the scenario, for messages */
    /* One life: makes, uses and drops its objects; the status is what a caller would hear. */
    kvf_status (*run)(void *self, kvf_error *err);
    void *self;
    bool all_threads; /* else only calls of the thread that arms */
    bool no_repeat; /* skip the second pass, in which every later call fails too */
    bool keeps; /* what stays (a server) may hold what it took meanwhile; the sanitizer build looks for leaks */
    bool input_may_be_blamed; /* a refusal may be INVALID, FORMAT or MISMATCH */
} fault_scenario;

/* Runs it whole, then once for each call k with that call failing, then with every call from k on failing. Each run
 * must end with KVF_OK or a status that names the want, hold no memory or descriptor, and leave a process in which the
 * whole run works. A run that hangs is killed with its name and k. */
void fault_each(const fault_scenario *s);

/* For tests that arm by themselves. nth 0: only counts. */
typedef enum { FAULT_ONCE, FAULT_FROM_THERE_ON } fault_mode;
void fault_arm(uint64_t nth, fault_mode mode, bool all_threads);
uint64_t fault_disarm(void); /* calls seen since */
const char *fault_last(void); /* name of the call that failed first, "" when none did */
size_t fault_held(char *text, size_t text_bytes); /* blocks taken while armed and still held */
bool fault_hits(const char *call); /* for wrappers in other files */
#endif
