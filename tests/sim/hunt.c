#include "hunt.h"
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/time.h>
#include <sys/wait.h>
#include <unistd.h>

#define SECONDS_A_RUN 20 /* of CPU: a core that does not return */

static sim world;
static plan planned;

void hunt_break_at(uint64_t event_number) { world.break_at = event_number; }

static bool run_plan(sim *s, const plan *p) {
    setitimer(ITIMER_VIRTUAL, &(struct itimerval){.it_value = {.tv_sec = SECONDS_A_RUN}}, NULL);
    bool ok = sim_run(s, p);
    setitimer(ITIMER_VIRTUAL, &(struct itimerval){0}, NULL);
    return ok;
}

static void add_counts(sim_counts *to, const sim_counts *from) {
    uint64_t *a = (uint64_t *)to;
    const uint64_t *b = (const uint64_t *)from; /* nothing but counters */
    for (size_t i = 0; i < sizeof *to / sizeof *a; i++) a[i] += b[i];
}

bool hunt_one(sim *s, uint64_t seed, bool faults, hunt_result *out) {
    plan_of_seed(&planned, seed, faults);
    bool ok = run_plan(s, &planned);
    add_counts(&out->counts, &s->count);
    out->seeds++;
    out->trace += kvf_rng_mix(s->trace ^ kvf_rng_mix(seed));
    if (ok) return true;
    if (out->failures < HUNT_FAILURES_MAX) {
        hunt_failure *f = &out->failure[out->failures];
        f->seed = seed;
        snprintf(f->text, sizeof f->text, "%s", sim_failure());
    }
    out->failures++;
    return false;
}

/* ------------------------------------------------------------------ over processes */

typedef struct {
    uint64_t seed; /* at work on; for a worker that dies */
    hunt_result result;
} worker;

typedef struct {
    volatile bool stop;
    worker workers[HUNT_JOBS_MAX];
} shared;

static void work(const hunt_options *o, shared *all, uint32_t job) {
    worker *w = &all->workers[job];
    for (uint64_t i = job; i < o->seeds && !all->stop; i += o->jobs) {
        w->seed = o->from + i;
        if (!hunt_one(&world, w->seed, o->faults, &w->result) && !o->keep_going) all->stop = true;
    }
}

static void merge(hunt_result *to, const hunt_result *from) {
    add_counts(&to->counts, &from->counts);
    to->seeds += from->seeds;
    to->trace += from->trace;
    for (uint32_t i = 0; i < KVF_MIN(from->failures, HUNT_FAILURES_MAX); i++)
        if (to->failures + i < HUNT_FAILURES_MAX) to->failure[to->failures + i] = from->failure[i];
    to->failures += from->failures;
}

void hunt(const hunt_options *o, hunt_result *out) {
    memset(out, 0, sizeof *out);
    KVF_ASSERT(o->jobs >= 1 && o->jobs <= HUNT_JOBS_MAX);
    shared *all = mmap(NULL, sizeof *all, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    KVF_ASSERT(all != MAP_FAILED);
    pid_t pids[HUNT_JOBS_MAX];
    fflush(NULL);
    world.verbose = o->verbose;
    if (o->jobs == 1) work(o, all, 0);
    for (uint32_t i = 0; o->jobs > 1 && i < o->jobs; i++) {
        pids[i] = fork();
        KVF_ASSERT(pids[i] >= 0);
        if (pids[i] > 0) continue;
        work(o, all, i);
        fflush(NULL);
        _exit(0);
    }
    for (uint32_t i = 0; i < o->jobs; i++) {
        hunt_result *r = &all->workers[i].result;
        int status = 0;
        if (o->jobs > 1) waitpid(pids[i], &status, 0);
        if (status != 0 && r->failures < HUNT_FAILURES_MAX) {
            hunt_failure *f = &r->failure[r->failures++];
            f->seed = all->workers[i].seed;
            snprintf(f->text, sizeof f->text, "seed %" PRIu64 ": the process dies (status %d)", f->seed, status);
        }
        merge(out, r);
    }
    munmap(all, sizeof *all);
}

/* ------------------------------------------------------------------ reports */

static void print_faults(const sim_counts *c) {
    const char *comma = "";
    printf("faults:");
    for (uint32_t i = 0; i < FAULT_KINDS; i++) {
        printf("%s %" PRIu64 " %s", comma, c->faults[i], plan_fault_name(i));
        comma = ",";
    }
    printf("\n        %" PRIu64 " pages corrupted, %" PRIu64 " torn and %" PRIu64 " altered of %" PRIu64 ", %" PRIu64
           " messages repeated, %" PRIu64 " forged, %" PRIu64 " late frames of cut links, %" PRIu64
           " events after a thaw, %" PRIu64 " old processes stopped\n",
        c->pages_corrupted, c->pages_torn, c->pages_altered, c->pages_moved, c->repeated, c->forged, c->frames_late,
        c->thawed_late, c->superseded);
}

void hunt_report(const hunt_options *o, const hunt_result *r, double wall_s) {
    const sim_counts *c = &r->counts;
    struct rusage self, children;
    getrusage(RUSAGE_SELF, &self);
    getrusage(RUSAGE_CHILDREN, &children);
    double cpu_s = 0;
    const struct timeval *parts[] = {&self.ru_utime, &self.ru_stime, &children.ru_utime, &children.ru_stime};
    for (size_t i = 0; i < KVF_COUNT_OF(parts); i++)
        cpu_s += (double)parts[i]->tv_sec + 1e-6 * (double)parts[i]->tv_usec;
    printf("%" PRIu64 " seeds from %" PRIu64 "%s, trace %016" PRIx64 "\n", r->seeds, o->from,
        o->faults ? "" : " without faults", r->trace);
    printf("requests: %" PRIu64 " finished, %" PRIu64 " cancelled, %" PRIu64 " failed, %" PRIu64
           " refused at the door, %" PRIu64 " lost with their router; %" PRIu64 " tokens, all as undisturbed\n",
        c->finished, c->cancelled, c->failed, c->refused, c->lost_with_router, c->tokens);
    print_faults(c);
    printf("checked: %" PRIu64 " events, %" PRIu64 " audits, %" PRIu64 " cached positions, %" PRIu64 " named pages\n",
        c->events, c->audits, c->checked_positions, c->checked_pages);
    printf("%.2f simulated hours, %.0f events a second of CPU; %.1f s on %u jobs, %.1f s of CPU\n",
        (double)c->sim_ns / 3.6e12, (double)c->events / cpu_s, wall_s, o->jobs, cpu_s);
}

/* ------------------------------------------------------------------ cutting down, and playing again */

static bool still_fails(void *self, const plan *p) { return !run_plan(self, p); }

int hunt_shrink(uint64_t seed, bool faults, const char *out_path) {
    static plan p;
    plan_of_seed(&p, seed, faults);
    if (run_plan(&world, &p)) {
        printf("seed %" PRIu64 " passes\n", seed);
        return 1;
    }
    uint32_t requests = p.requests, fault_count = p.faults, asked = plan_shrink(&p, still_fails, &world);
    if (run_plan(&world, &p)) return 1;
    FILE *out = out_path ? fopen(out_path, "w") : stdout;
    if (!out) {
        perror(out_path);
        return 1;
    }
    fprintf(out, "# seed %" PRIu64 ": %u of %u requests and %u of %u faults are left, after %u runs\n# %s\n", seed,
        p.requests, requests, p.faults, fault_count, asked, sim_failure());
    plan_print(&p, out);
    if (out_path && fclose(out) != 0) return 1;
    if (out_path)
        printf("seed %" PRIu64 ": %u requests and %u faults are left, in %s\n", seed, p.requests, p.faults, out_path);
    return 0;
}

int hunt_script(const char *path, bool verbose, uint64_t break_at) {
    char text[160];
    FILE *in = fopen(path, "r");
    if (!in) {
        perror(path);
        return 64;
    }
    bool read = plan_read(&planned, in, text);
    fclose(in);
    if (!read) {
        fprintf(stderr, "%s: %s\n", path, text);
        return 64;
    }
    world.verbose = verbose;
    world.break_at = break_at;
    bool ok = run_plan(&world, &planned);
    printf("%s: %s, %" PRIu64 " events, trace %016" PRIx64 "\n", path, ok ? "passes" : "FAILS", world.event_number,
        world.trace);
    if (!ok) printf("FAILED %s\n", sim_failure());
    return ok ? 0 : 1;
}
