/* crc.c - kvf_crc32c by the definition, for machines without the library that base uses. */
#include "kvf/hash.h"

uint32_t kvf_crc32c(uint32_t crc, const void *data, size_t len_bytes) {
    const uint8_t *p = data;
    crc = ~crc;
    for (size_t i = 0; i < len_bytes; i++) {
        crc ^= p[i];
        for (int bit = 0; bit < 8; bit++) crc = crc >> 1 ^ (0x82F63B78u & (0u - (crc & 1)));
    }
    return ~crc;
}
