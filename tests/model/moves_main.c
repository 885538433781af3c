/* kvferry-moves ARGS: kvferry-sim ARGS over the same cores, but each move of a state machine is counted. Prints how
 * often every entry of every table was used. Exit 1 when the run fails, or when an entry that has no excuse below was
 * never used. */
#include "tables.h"
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>

typedef unsigned long long counts[STATES_MAX][STATES_MAX];
static counts *seen; /* by machine; shared with the processes that the simulator forks */

void kvf_move_seen(kvf_machine machine, unsigned from, unsigned to) {
    __atomic_fetch_add(&seen[machine][from][to], 1, __ATOMIC_RELAXED);
}

static const struct {
    kvf_machine machine;
    const char *from, *to, *why;
} excused[] = {
    {MACHINE_GRANT, "OFFERED", "LOST", "rare: 16 times in 2000 seeds"},
    {MACHINE_GRANT, "OPEN", "OPEN", "rare: 29 times in 2000 seeds"},
    {MACHINE_HANDOFF, "OPENING", "OPENING",
        "the node core waits for the end of a link before it takes the next (test_tx)"},
    {MACHINE_HANDOFF, "MOVING", "OPENING", "the same"},
    {MACHINE_HANDOFF, "COMMITTING", "OPENING", "the same"},
    {MACHINE_LEG, "NONE", "HELD", "rare (router's random test)"},
    {MACHINE_LEG, "DECODING", "RESERVING", "rare: seen in 5000 seeds"},
    {MACHINE_LEG, "GRANTED", "DECODING", "rare: not in 5000 seeds (router's random test)"},
    {MACHINE_LEG, "QUEUED", "HELD", "rare: not in 400 seeds (router's random test)"},
    {MACHINE_LEG, "QUEUED", "NONE", "rare: not in 400 seeds (router's random test)"},
    {MACHINE_LEG, "GRANTED", "HELD", "rare: seen in 1000 seeds"},
    {MACHINE_LEG, "GRANTED", "WAITING", "rare: not in 5000 seeds (router's random test)"},
};

static const char *excuse(kvf_machine machine, const char *from, const char *to) {
    for (size_t i = 0; i < sizeof excused / sizeof *excused; i++)
        if (excused[i].machine == machine && !strcmp(excused[i].from, from) && !strcmp(excused[i].to, to))
            return excused[i].why;
    return NULL;
}

int main(int argc, char **argv) {
    seen = mmap(NULL, MACHINES * sizeof *seen, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    if (seen == MAP_FAILED) return 1;
    int rc = kvf_sim_main(argc, argv);
    if (rc) return rc;
    unsigned entries = 0, used = 0, missed = 0;
    for (unsigned m = 0; m < MACHINES; m++) {
        const table *t = &tables[m];
        for (unsigned i = 0; i < t->moves_count; i++) {
            const table_move *e = &t->moves[i];
            unsigned long long times = seen[m][e->from][e->to];
            const char *why = times ? NULL : excuse((kvf_machine)m, t->states[e->from], t->states[e->to]);
            printf("%-9s %-10s -> %-10s %-40s %llu%s%s\n", t->name, t->states[e->from], t->states[e->to], e->event,
                times,
                times ? ""
                : why ? " never: "
                      : " NEVER, and no excuse",
                why ? why : "");
            entries++;
            used += times > 0;
            missed += !times && !why;
        }
    }
    printf("%u of %u entries of the tables used by the simulator\n", used, entries);
    return missed ? 1 : 0;
}
