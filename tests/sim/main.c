/* kvferry-sim [--seeds N] [--from SEED] [--seed S] [--no-faults] [--verbose]: hunts over seeds, or replays one. */
#include "sim.h"
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <time.h>

static sim world;

static int usage(void) {
    fprintf(stderr, "usage: kvferry-sim [--seeds N] [--from SEED] [--seed S] [--no-faults] [--verbose]\n");
    return 64;
}

int main(int argc, char **argv) {
    uint64_t seeds = 200, from = 1;
    bool faults = true, verbose = false;
    for (int i = 1; i < argc; i++) {
        bool more = i + 1 < argc;
        if (!strcmp(argv[i], "--seeds") && more)
            seeds = strtoull(argv[++i], NULL, 10);
        else if (!strcmp(argv[i], "--from") && more)
            from = strtoull(argv[++i], NULL, 10);
        else if (!strcmp(argv[i], "--seed") && more)
            from = strtoull(argv[++i], NULL, 10), seeds = 1;
        else if (!strcmp(argv[i], "--no-faults"))
            faults = false;
        else if (!strcmp(argv[i], "--verbose"))
            verbose = true;
        else
            return usage();
    }
    struct timespec a, b;
    clock_gettime(CLOCK_MONOTONIC, &a);
    uint64_t events = 0, sim_ns = 0, tokens = 0, pages = 0, finished = 0, failed = 0, cancelled = 0, crashes = 0,
             cuts = 0, blips = 0, corrupted = 0, checked = 0, hash = 0;
    for (uint64_t seed = from; seed < from + seeds; seed++) {
        if (!sim_run(&world, seed, faults, verbose)) {
            printf("FAILED %s\nreplay: kvferry-sim --seed %" PRIu64 "%s --verbose\n", sim_failure(), seed,
                faults ? "" : " --no-faults");
            return 1;
        }
        events += world.events, sim_ns += world.now, tokens += world.tokens, pages += world.pages_moved;
        finished += world.finished, failed += world.failed, cancelled += world.cancelled;
        crashes += world.crashes, cuts += world.cuts, blips += world.blips, corrupted += world.pages_corrupted;
        checked += world.checked_positions;
        hash = kvf_rng_mix(hash ^ world.trace_hash);
    }
    clock_gettime(CLOCK_MONOTONIC, &b);
    double wall = (double)(b.tv_sec - a.tv_sec) + (double)(b.tv_nsec - a.tv_nsec) * 1e-9;
    printf("%" PRIu64 " seeds from %" PRIu64 ", trace %016" PRIx64 "\n", seeds, from, hash);
    printf("requests: %" PRIu64 " finished, %" PRIu64 " cancelled, %" PRIu64 " failed; %" PRIu64
           " tokens, all as undisturbed\n",
        finished, cancelled, failed, tokens);
    printf("faults: %" PRIu64 " crashes, %" PRIu64 " links cut, %" PRIu64 " sessions lost, %" PRIu64 " of %" PRIu64
           " pages corrupted\n",
        crashes, cuts, blips, corrupted, pages);
    printf("%.2f simulated hours, %" PRIu64 " events (%.0f a second), %" PRIu64 " cached positions checked, %.1f s\n",
        (double)sim_ns / 3.6e12, events, (double)events / wall, checked, wall);
    return 0;
}
