/* Every planted fault is hunted over several ranges of seeds that do not meet; the report says the median number of
 * seeds it takes to find it. */
#include "mutants.h"
#include "mutant_vars.h"
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#define RANGES_MAX 9
#define RANGE_STRIDE 1000003 /* first seeds of the ranges lie so far apart */

int sim_mutant_kvcache, sim_mutant_xfer, sim_mutant_node, sim_mutant_router;

typedef struct {
    const char *core;
    int *chosen;
    int number;
    uint32_t quick; /* seeds that are enough in the first range, with room; 0: not seen by this simulator */
    const char *what; /* and, for one that is not seen, why */
} mutant;

static const mutant mutants[] = {
#include "mutants_list.h"
};

/* Mistakes that change nothing while another door stands behind them: that one is opened too. */
static const struct {
    int *chosen, number, *door, opens;
} doors[] = {{&sim_mutant_kvcache, 3, &sim_mutant_node, 7}, {&sim_mutant_kvcache, 8, &sim_mutant_node, 2},
    {&sim_mutant_router, 1, &sim_mutant_node, 21}, {&sim_mutant_router, 18, &sim_mutant_node, 21},
    {&sim_mutant_router, 19, &sim_mutant_node, 21}, {&sim_mutant_node, 21, &sim_mutant_router, 19}};

static void choose(const mutant *m, bool on) {
    *m->chosen = on ? m->number : 0;
    for (size_t i = 0; i < KVF_COUNT_OF(doors); i++)
        if (doors[i].chosen == m->chosen && doors[i].number == m->number) *doors[i].door = on ? doors[i].opens : 0;
}

static const mutant *find(const char *name) {
    for (size_t i = 0; i < KVF_COUNT_OF(mutants); i++) {
        char full[32];
        snprintf(full, sizeof full, "%s.%d", mutants[i].core, mutants[i].number);
        if (strcmp(full, name) == 0) return &mutants[i];
    }
    return NULL;
}

bool mutant_choose(const char *name) {
    const mutant *m = find(name);
    if (m) choose(m, true);
    return m != NULL;
}

/* ------------------------------------------------------------------ the hunt */

typedef struct {
    uint32_t found_after; /* seeds; 0: not found */
    char how[160];
} finding;

typedef struct {
    volatile uint32_t next; /* task to take */
    finding findings[KVF_COUNT_OF(mutants)][RANGES_MAX];
} shared;

static sim world;

static void hunt_range(const mutant *m, uint32_t range, uint64_t seeds, finding *out) {
    static hunt_result r;
    choose(m, true);
    for (uint64_t i = 0; i < seeds && out->found_after == 0; i++) {
        r.failures = 0;
        if (hunt_one(&world, 1 + (uint64_t)range * RANGE_STRIDE + i, true, &r)) continue;
        out->found_after = (uint32_t)i + 1;
        const char *text = r.failure[0].text, *after = strstr(text, ": ");
        snprintf(out->how, sizeof out->how, "%.159s", after ? after + 2 : text);
    }
    choose(m, false);
}

static void take_tasks(shared *all, const hunt_options *o, uint32_t ranges, bool quick) {
    for (;;) {
        uint32_t task = __atomic_fetch_add(&all->next, 1, __ATOMIC_RELAXED), at = task / ranges;
        if (at >= KVF_COUNT_OF(mutants)) return;
        const mutant *m = &mutants[at];
        if (quick && m->quick == 0) continue;
        hunt_range(m, task % ranges, quick ? m->quick : o->seeds, &all->findings[at][task % ranges]);
    }
}

static int compare(const void *a, const void *b) {
    uint32_t x = *(const uint32_t *)a, y = *(const uint32_t *)b;
    return x < y ? -1 : x > y;
}

/* Ranges without a finding count as more than all seeds. */
static uint32_t median(const finding *f, uint32_t ranges, uint32_t *found) {
    uint32_t sorted[RANGES_MAX];
    *found = 0;
    for (uint32_t i = 0; i < ranges; i++) {
        sorted[i] = f[i].found_after ? f[i].found_after : UINT32_MAX;
        *found += f[i].found_after != 0;
    }
    qsort(sorted, ranges, sizeof *sorted, compare);
    return sorted[ranges / 2];
}

/* false: not found where it should be. */
static bool print_line(const mutant *m, const finding *f, uint32_t ranges, uint64_t seeds) {
    uint32_t found, middle = median(f, ranges, &found);
    const char *how = "";
    for (uint32_t i = 0; i < ranges && !*how; i++) how = f[i].how;
    char number[32] = "-", name[32];
    if (middle != UINT32_MAX) snprintf(number, sizeof number, "%u", middle);
    snprintf(name, sizeof name, "%s.%d", m->core, m->number);
    const char *verdict = found ? "" : m->quick ? " NOT FOUND" : " (not seen here)";
    printf("%-11s median %6s of %u ranges, found in %u%s  %s%s%s\n", name, number, ranges, found, verdict, m->what,
        *how ? "  <- " : "", how);
    (void)seeds;
    return found > 0 || m->quick == 0;
}

static bool is_pair(const mutant *m) {
    for (size_t i = 0; i < KVF_COUNT_OF(doors); i++)
        if (doors[i].chosen == m->chosen && doors[i].number == m->number) return true;
    return false;
}

/* How many should have been found and were not. */
static uint32_t print_all(const shared *all, const hunt_options *o, uint32_t ranges, bool quick) {
    uint32_t missed = 0, found = 0, everywhere = 0, pairs = 0, left_out = 0;
    for (size_t i = 0; i < KVF_COUNT_OF(mutants); i++) {
        uint32_t in;
        if (quick && mutants[i].quick == 0) {
            left_out++;
            continue;
        }
        missed += !print_line(&mutants[i], all->findings[i], ranges, o->seeds);
        (void)median(all->findings[i], ranges, &in);
        found += in > 0;
        everywhere += in == ranges;
        pairs += in > 0 && is_pair(&mutants[i]);
    }
    printf("%zu mistakes are planted: %u found (%u of them as pairs, %u in each range), %u not found, %u not hunted\n",
        KVF_COUNT_OF(mutants), found, pairs, everywhere, (uint32_t)KVF_COUNT_OF(mutants) - found - left_out, left_out);
    return missed;
}

int mutants_hunt(const hunt_options *o, uint32_t ranges, bool quick) {
    if (quick) ranges = 1;
    if (ranges < 1 || ranges > RANGES_MAX) return 64;
    shared *all = mmap(NULL, sizeof *all, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    KVF_ASSERT(all != MAP_FAILED);
    pid_t pids[HUNT_JOBS_MAX];
    fflush(NULL);
    for (uint32_t i = 0; i < o->jobs; i++) {
        pids[i] = fork();
        KVF_ASSERT(pids[i] >= 0);
        if (pids[i] > 0) continue;
        take_tasks(all, o, ranges, quick);
        _exit(0);
    }
    uint32_t died = 0;
    for (uint32_t i = 0; i < o->jobs; i++) {
        int status;
        waitpid(pids[i], &status, 0);
        died += status != 0;
    }
    uint32_t missed = print_all(all, o, ranges, quick);
    return died || missed ? 1 : 0;
}
