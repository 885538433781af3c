/* kvf/rng.h - counter-based random numbers: value = f(seed, stream, counter), no state.
 * The same (seed, choice, position) gives the same number on every machine, in any order, after any failure; that is
 * what lets a request go on elsewhere with the same tokens. Mixing: two rounds of the 64-bit finaliser of
 * MurmurHash3/SplitMix64 (Steele et al., "Fast splittable pseudorandom number generators", 2014) over a keyed counter.
 * Not for secrets. */
#ifndef KVF_RNG_H
#define KVF_RNG_H
#include <stdint.h>

static inline uint64_t kvf_rng_mix(uint64_t z) {
    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9ull;
    z = (z ^ (z >> 27)) * 0x94d049bb133111ebull;
    return z ^ (z >> 31);
}

static inline uint64_t kvf_rng_at(uint64_t seed, uint64_t stream, uint64_t counter) {
    uint64_t key = kvf_rng_mix(seed + 0x9e3779b97f4a7c15ull);
    key = kvf_rng_mix(key ^ (stream * 0xd1342543de82ef95ull + 0x632be59bd9b4e019ull));
    return kvf_rng_mix(key + (counter + 1) * 0x9e3779b97f4a7c15ull);
}

/* A walking generator for simulators and load generators: the counter is the caller's. */
typedef struct {
    uint64_t seed, counter;
} kvf_rng;
static inline uint64_t kvf_rng_next(kvf_rng *r) { return kvf_rng_at(r->seed, 0, r->counter++); }
__extension__ typedef unsigned __int128 kvf_rng_u128;
static inline uint64_t kvf_rng_below(kvf_rng *r, uint64_t bound) { /* bound > 0; the bias of 2^-64*bound is accepted */
    return (uint64_t)(((kvf_rng_u128)kvf_rng_next(r) * bound) >> 64);
}
#endif
