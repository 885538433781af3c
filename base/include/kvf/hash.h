/* kvf/hash.h - the hashes we rely on, each by a library: XXH3 for names and lookups, CRC32C for pages, SHA-256 and HMAC
 * for identities and proofs. */
#ifndef KVF_HASH_H
#define KVF_HASH_H
#include "kvf/base.h"
#ifdef __cplusplus
extern "C" {
#endif

typedef struct {
    uint64_t lo, hi;
} kvf_hash128;
static inline bool kvf_hash128_equal(kvf_hash128 a, kvf_hash128 b) { return a.lo == b.lo && a.hi == b.hi; }

/* XXH3-128 seeded with `seed`. Same value on every machine. Not collision-proof against an adversary: whoever believes
 * a match compares contents too. */
kvf_hash128 kvf_hash128_of(const void *data, size_t len_bytes, uint64_t seed);
uint64_t kvf_hash64_of(const void *data, size_t len_bytes, uint64_t seed);

/* CRC-32C (Castagnoli, RFC 3720 B.4) continued from `crc`; start with 0. */
uint32_t kvf_crc32c(uint32_t crc, const void *data, size_t len_bytes);

void kvf_sha256(const void *data, size_t len_bytes, uint8_t out[32]);
void kvf_hmac_sha256(const void *key, size_t key_bytes, const void *data, size_t len_bytes, uint8_t out[32]);
/* Constant time. */
bool kvf_bytes_equal_secret(const void *a, const void *b, size_t len_bytes);
#ifdef __cplusplus
}
#endif
#endif
