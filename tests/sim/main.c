/* kvferry-sim: hunts over seeds, replays one, cuts a failing one down to a script, plays a script.
 * docs/reliability.md, "The simulator". */
#include "hunt.h"
#include "mutants.h"
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <time.h>
#include <unistd.h>

typedef struct {
    hunt_options hunt;
    uint64_t break_at, shrink, ranges;
    bool shrinks, one, mutants, quick;
    const char *script, *out, *mutant, *print;
} options;

static int usage(void) {
    fputs("usage: kvferry-sim [--seeds N] [--from SEED] [--jobs N] [--no-faults] [--keep-going]\n"
          "       kvferry-sim --seed S [--verbose] [--break-at EVENT]   one seed; SIGTRAP before that event\n"
          "       kvferry-sim --shrink S [--out FILE]                   a small script that still fails\n"
          "       kvferry-sim --script FILE [--verbose] [--break-at EVENT]\n"
          "       kvferry-sim --print S                                 the script of a seed\n"
          "       kvferry-sim-mutants --mutants [--seeds N] [--ranges K] | --mutant NAME ...\n",
        stderr);
    return 64;
}

static bool number_option(options *o, const char *name, const char *value) {
    const struct {
        const char *name;
        uint64_t *to;
    } table[] = {{"--seeds", &o->hunt.seeds}, {"--from", &o->hunt.from}, {"--break-at", &o->break_at},
        {"--ranges", &o->ranges}, {"--seed", &o->hunt.from}, {"--shrink", &o->shrink}};
    char *end;
    if (!value) return false;
    uint64_t number = strtoull(value, &end, 10);
    if (*end || end == value) return false;
    if (strcmp(name, "--jobs") == 0 && number >= 1 && number <= HUNT_JOBS_MAX) {
        o->hunt.jobs = (uint32_t)number;
        return true;
    }
    o->one |= strcmp(name, "--seed") == 0;
    o->shrinks |= strcmp(name, "--shrink") == 0;
    for (size_t i = 0; i < KVF_COUNT_OF(table); i++)
        if (strcmp(table[i].name, name) == 0) {
            *table[i].to = number;
            return true;
        }
    return false;
}

static bool word_option(options *o, const char *name, const char *value) {
    const struct {
        const char *name;
        const char **to;
    } table[] = {{"--script", &o->script}, {"--out", &o->out}, {"--mutant", &o->mutant}, {"--print", &o->print}};
    for (size_t i = 0; value && i < KVF_COUNT_OF(table); i++)
        if (strcmp(table[i].name, name) == 0) {
            *table[i].to = value;
            return true;
        }
    return false;
}

static bool flag_option(options *o, const char *name) {
    const struct {
        const char *name;
        bool *to, value;
    } table[] = {{"--no-faults", &o->hunt.faults, false}, {"--keep-going", &o->hunt.keep_going, true},
        {"--verbose", &o->hunt.verbose, true}, {"--mutants", &o->mutants, true}, {"--quick", &o->quick, true}};
    for (size_t i = 0; i < KVF_COUNT_OF(table); i++)
        if (strcmp(table[i].name, name) == 0) {
            *table[i].to = table[i].value;
            return true;
        }
    return false;
}

static int run_hunt(const options *o) {
    static hunt_result r;
    struct timespec a, b;
    clock_gettime(CLOCK_MONOTONIC, &a);
    hunt(&o->hunt, &r);
    clock_gettime(CLOCK_MONOTONIC, &b);
    double wall = (double)(b.tv_sec - a.tv_sec) + (double)(b.tv_nsec - a.tv_nsec) * 1e-9;
    for (uint32_t i = 0; i < KVF_MIN(r.failures, HUNT_FAILURES_MAX); i++) printf("FAILED %s\n", r.failure[i].text);
    hunt_report(&o->hunt, &r, wall);
    if (r.failures == 0) return 0;
    const char *faults = o->hunt.faults ? "" : " --no-faults";
    printf(
        "%u seeds fail; replay: kvferry-sim --seed %" PRIu64 "%s --verbose\n", r.failures, r.failure[0].seed, faults);
    if (!o->one && !o->hunt.keep_going) hunt_shrink(r.failure[0].seed, o->hunt.faults, NULL);
    return 1;
}

static int print_plan(const options *o) {
    static plan p;
    plan_of_seed(&p, strtoull(o->print, NULL, 10), o->hunt.faults);
    plan_print(&p, stdout);
    return 0;
}

int main(int argc, char **argv) {
    long cores = sysconf(_SC_NPROCESSORS_ONLN);
    options o = {
        .hunt = {.from = 1, .seeds = 200, .jobs = cores > 1 ? (uint32_t)cores : 1, .faults = true}, .ranges = 5};
    if (o.hunt.jobs > HUNT_JOBS_MAX) o.hunt.jobs = HUNT_JOBS_MAX;
    for (int i = 1; i < argc; i++) {
        const char *value = i + 1 < argc ? argv[i + 1] : NULL;
        if (flag_option(&o, argv[i])) continue;
        if (!number_option(&o, argv[i], value) && !word_option(&o, argv[i], value)) return usage();
        i++;
    }
    if (o.mutant && !mutant_choose(o.mutant)) return usage();
    if (o.print) return print_plan(&o);
    if (o.script) return hunt_script(o.script, o.hunt.verbose, o.break_at);
    if (o.shrinks) return hunt_shrink(o.shrink, o.hunt.faults, o.out);
    if (o.mutants) return mutants_hunt(&o.hunt, (uint32_t)o.ranges, o.quick);
    if (o.one) {
        o.hunt.seeds = o.hunt.jobs = 1;
        hunt_break_at(o.break_at);
    }
    return run_hunt(&o);
}
