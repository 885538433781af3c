/* Random messages that a correct peer could send, for the property test and the seeds of the fuzzer. Memory lives until
 * the next call. */
#ifndef WIRE_RANDOM_H
#define WIRE_RANDOM_H
#include "kvf/msg.h"
#include "kvf/rng.h"

void wire_random_rmsg(kvf_rng *rng, kvf_r_kind kind, kvf_rmsg *out);
void wire_random_nmsg(kvf_rng *rng, kvf_n_kind kind, kvf_nmsg *out);
#endif
