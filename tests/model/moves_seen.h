/* Forced into the cores of the tests in this folder: each set_state says which move it makes, after it has found it
 * lawful. */
#ifndef KVF_MOVES_SEEN_H
#define KVF_MOVES_SEEN_H
typedef enum { MACHINE_BLOCK, MACHINE_GRANT, MACHINE_HANDOFF, MACHINE_REQUEST, MACHINE_LEG, MACHINES } kvf_machine;
void kvf_move_seen(kvf_machine machine, unsigned from, unsigned to);
#define KVF_MOVE_SEEN(machine, from, to) kvf_move_seen(MACHINE_##machine, (unsigned)(from), (unsigned)(to))
int kvf_sim_main(int argc, char **argv); /* the simulator's main, renamed (moves_main.c) */
#endif
