/* table_check.c - the functions that move the state machines of the cores let through exactly what the tables allow.
 * Every pair of states is tried on each of the five: a move of the table is reported by the hook (moves_seen.h), any
 * other one stops at the assertion `lawful`. Either way the attempt ends there, before anything else is touched. */
#include "core_int.h"
#include "kvcache_int.h"
#include "node_int.h"
#include "router_int.h"
#include "tables.h"
#include <setjmp.h>
#include <stdio.h>

/* The enum of a block is written by hand, because its header is public: a state that only one side has does not
 * compile. */
#pragma GCC diagnostic error "-Wswitch"
static void same_states(kvf_block_state state) {
    switch (state) {
#define MOVE(from, to, event)
#define STATE(name)                                                                                                    \
    case KVF_BLOCK_##name:                                                                                             \
        return;
#include "block_moves.h"
#undef STATE
#undef MOVE
    }
}

static jmp_buf attempt;
enum { MOVED = 1, STOPPED, OTHER };

void kvf_move_seen(kvf_machine machine, unsigned from, unsigned to) {
    (void)machine, (void)from, (void)to;
    longjmp(attempt, MOVED);
}

KVF_NORETURN void __wrap_kvf_assert_failed(const char *expression, const char *file, int line);
KVF_NORETURN void __wrap_kvf_assert_failed(const char *expression, const char *file, int line) {
    bool law = !strncmp(expression, "lawful", 6);
    if (!law) fprintf(stderr, "%s:%d: %s\n", file, line, expression);
    longjmp(attempt, law ? STOPPED : OTHER);
}

static void move(kvf_machine machine, unsigned from, unsigned to) {
    static kvf_kv kv;
    kv_block block = {.state = (kvf_block_state)from};
    rx_grant grant = {.state = (rx_state)from};
    tx_handoff handoff = {.state = (tx_state)from};
    node_req request = {.state = (req_state)from};
    rt_seq seq = {.l.state = (rt_leg_state)from};
    switch (machine) {
    case MACHINE_BLOCK: kv_set_state(&kv, &block, (kvf_block_state)to); break;
    case MACHINE_GRANT: rx_set_state(&grant, (rx_state)to); break;
    case MACHINE_HANDOFF: tx_set_state(&handoff, (tx_state)to); break;
    case MACHINE_REQUEST: node_req_set_state(&request, (req_state)to); break;
    case MACHINE_LEG: rt_leg_set_state(NULL, &seq, (rt_leg_state)to); break;
    case MACHINES: break;
    }
}

static bool check(kvf_machine machine) {
    const table *t = &tables[machine];
    volatile bool fine = true;
    volatile unsigned moved = 0, stopped = 0;
    for (volatile unsigned from = 0; from < t->states_count; from++)
        for (volatile unsigned to = 0; to < t->states_count; to++) {
            int how = setjmp(attempt);
            if (how == 0) {
                move(machine, from, to);
                how = OTHER;
            }
            moved += how == MOVED;
            stopped += how == STOPPED;
            if (how == (table_has(t, from, to) ? MOVED : STOPPED)) continue;
            printf("%s: %s -> %s: C and the table differ\n", t->name, t->states[from], t->states[to]);
            fine = false;
        }
    printf("%s: %u states, %u moves let through, %u stopped\n", t->name, t->states_count, moved, stopped);
    return fine && moved == t->moves_count;
}

int main(void) {
    same_states(KVF_BLOCK_FREE);
    bool fine = true;
    for (unsigned i = 0; i < MACHINES; i++) fine &= check((kvf_machine)i);
    return fine ? 0 : 1;
}
