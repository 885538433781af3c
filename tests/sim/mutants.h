/* Planted mistakes: kvferry-sim-mutants is built over cores in which each can be switched on. */
#ifndef KVF_SIM_MUTANTS_H
#define KVF_SIM_MUTANTS_H
#include "hunt.h"

bool mutant_choose(const char *name); /* "node.3"; false: there is none, or this build has none */
int mutants_hunt(const hunt_options *o, uint32_t ranges, bool quick);
#endif
