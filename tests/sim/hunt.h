/* Many plans, over several processes. */
#ifndef KVF_SIM_HUNT_H
#define KVF_SIM_HUNT_H
#include "sim.h"

#define HUNT_JOBS_MAX 64
#define HUNT_FAILURES_MAX 8

typedef struct {
    uint64_t from, seeds;
    uint32_t jobs;
    bool faults, keep_going, verbose;
} hunt_options;

typedef struct {
    uint64_t seed;
    char text[400];
} hunt_failure;

typedef struct {
    sim_counts counts;
    uint64_t seeds, trace; /* trace: a sum, so that the number of jobs does not matter */
    hunt_failure failure[HUNT_FAILURES_MAX];
    uint32_t failures;
} hunt_result;

void hunt_break_at(uint64_t event_number); /* of the next runs */
bool hunt_one(sim *s, uint64_t seed, bool faults, hunt_result *out); /* false: it fails */
void hunt(const hunt_options *o, hunt_result *out);
void hunt_report(const hunt_options *o, const hunt_result *r, double wall_s);
int hunt_shrink(uint64_t seed, bool faults, const char *out_path);
int hunt_script(const char *path, bool verbose, uint64_t break_at);
#endif
