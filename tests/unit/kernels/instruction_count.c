/* Counts instructions by the processor's trap flag: every instruction raises SIGTRAP, whose handler counts. That works
 * without counters in hardware, which virtual machines seldom have, and for every instruction set, which valgrind does
 * not (no AVX-512). The instructions that set and clear the flag are counted once with nothing between and taken off.
 */
#include "instructions.h"
#include <signal.h>
#include <stdio.h>

#if defined(__x86_64__)
static volatile sig_atomic_t steps;

static void on_step(int signal) { steps++; }

#define SET_TRAP_FLAG() __asm__ volatile("pushfq\n\torq $0x100, (%%rsp)\n\tpopfq" ::: "memory", "cc")
#define CLEAR_TRAP_FLAG() __asm__ volatile("pushfq\n\tandq $~0x100, (%%rsp)\n\tpopfq" ::: "memory", "cc")

static uint64_t count(void (*call)(const kvf_kernel_ops *ops, instruction_data *data), const kvf_kernel_ops *ops,
    instruction_data *data) {
    steps = 0;
    SET_TRAP_FLAG();
    call(ops, data);
    CLEAR_TRAP_FLAG();
    return (uint64_t)steps;
}

static void nothing(const kvf_kernel_ops *ops, instruction_data *data) {}

bool instruction_count(const kvf_kernel_ops *ops, const instruction_case *c, instruction_data *data, uint64_t *result) {
    struct sigaction step = {.sa_handler = on_step, .sa_flags = SA_NODEFER}, before;
    if (sigaction(SIGTRAP, &step, &before) != 0) return false;
    uint64_t empty = count(nothing, ops, data);
    c->call(ops, data); /* the first call binds symbols */
    *result = count(c->call, ops, data) - empty;
    sigaction(SIGTRAP, &before, NULL);
    if (empty > 0) return true;
    printf("skipped: this machine does not step (the trap flag does nothing)\n");
    return false;
}
#else
bool instruction_count(const kvf_kernel_ops *ops, const instruction_case *c, instruction_data *data, uint64_t *result) {
    printf("skipped: counting instructions needs the trap flag of x86-64\n");
    return false;
}
#endif
