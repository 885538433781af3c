/* The cores as they are shipped: nothing is planted. */
#include "mutants.h"
#include <stdio.h>

bool mutant_choose(const char *name) {
    (void)name;
    return false;
}

int mutants_hunt(const hunt_options *o, uint32_t ranges, bool quick) {
    (void)o, (void)ranges, (void)quick;
    fputs("nothing is planted in this build: see kvferry-sim-mutants\n", stderr);
    return 64;
}
