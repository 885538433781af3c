#include "kvf/hash.h"
#include <isa-l/crc.h>
#include <openssl/crypto.h>
#include <openssl/evp.h>
#include <openssl/hmac.h>
#define XXH_INLINE_ALL
#include <xxhash.h>

kvf_hash128 kvf_hash128_of(const void *data, size_t len_bytes, uint64_t seed) {
    XXH128_hash_t h = XXH3_128bits_withSeed(data, len_bytes, seed);
    return (kvf_hash128){.lo = h.low64, .hi = h.high64};
}

uint64_t kvf_hash64_of(const void *data, size_t len_bytes, uint64_t seed) {
    return XXH3_64bits_withSeed(data, len_bytes, seed);
}

uint32_t kvf_crc32c(uint32_t crc, const void *data, size_t len_bytes) {
    /* isa-l takes an int length and works on the inverted register. */
    const uint8_t *p = data;
    while (len_bytes > 0) {
        int part = (int)KVF_MIN(len_bytes, (size_t)1 << 30);
        crc = ~crc32_iscsi((unsigned char *)(uintptr_t)p, part, ~crc);
        p += part;
        len_bytes -= (size_t)part;
    }
    return crc;
}

void kvf_sha256(const void *data, size_t len_bytes, uint8_t out[32]) {
    unsigned len = 32;
    KVF_ASSERT(EVP_Digest(data, len_bytes, out, &len, EVP_sha256(), NULL) == 1);
}

void kvf_hmac_sha256(const void *key, size_t key_bytes, const void *data, size_t len_bytes, uint8_t out[32]) {
    unsigned len = 32;
    KVF_ASSERT(HMAC(EVP_sha256(), key, (int)key_bytes, data, len_bytes, out, &len) != NULL);
}

bool kvf_bytes_equal_secret(const void *a, const void *b, size_t len_bytes) {
    return CRYPTO_memcmp(a, b, len_bytes) == 0;
}
