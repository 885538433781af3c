/* Included before every source of the cores under kvferry-sim-mutants: which planted fault is switched on. */
#ifndef KVF_SIM_MUTANT_VARS_H
#define KVF_SIM_MUTANT_VARS_H
extern int sim_mutant_kvcache, sim_mutant_xfer, sim_mutant_node, sim_mutant_router;
#endif
