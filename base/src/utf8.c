/* utf8.c - well-formedness of UTF-8, decided byte by byte so that a stream and a whole text agree. */
#include "kvf/utf8.h"

#define REPLACEMENT 0xFFFDu

/* Length of the sequence a lead byte opens (0: it opens none) and the range its second byte must lie in: the range is
 * what keeps out overlong forms, surrogates and everything above U+10FFFF. */
static uint32_t lead_length(uint8_t lead, uint8_t *second_min, uint8_t *second_max) {
    *second_min = 0x80;
    *second_max = 0xBF;
    if (lead < 0x80) return 1;
    if (lead < 0xC2) return 0;
    if (lead < 0xE0) return 2;
    if (lead < 0xF0) {
        if (lead == 0xE0) *second_min = 0xA0;
        if (lead == 0xED) *second_max = 0x9F;
        return 3;
    }
    if (lead > 0xF4) return 0;
    if (lead == 0xF0) *second_min = 0x90;
    if (lead == 0xF4) *second_max = 0x8F;
    return 4;
}

kvf_utf8_step kvf_utf8_step_at(const uint8_t *bytes, size_t count_bytes) {
    static const uint8_t lead_bits[5] = {0, 0x7F, 0x1F, 0x0F, 0x07};
    KVF_ASSERT(count_bytes > 0);
    uint8_t low, high;
    uint32_t length = lead_length(bytes[0], &low, &high);
    if (length == 0) return (kvf_utf8_step){KVF_UTF8_BAD, 1, REPLACEMENT};
    uint32_t code_point = bytes[0] & lead_bits[length];
    for (uint32_t i = 1; i < length; i++) {
        if (i == count_bytes) return (kvf_utf8_step){KVF_UTF8_CUT, i, REPLACEMENT};
        if (bytes[i] < low || bytes[i] > high) return (kvf_utf8_step){KVF_UTF8_BAD, i, REPLACEMENT};
        code_point = code_point << 6 | (bytes[i] & 0x3Fu);
        low = 0x80;
        high = 0xBF;
    }
    return (kvf_utf8_step){KVF_UTF8_WHOLE, length, code_point};
}

bool kvf_utf8_valid(const void *text, size_t len_bytes, size_t *bad_at) {
    const uint8_t *bytes = text;
    for (size_t at = 0; at < len_bytes;) {
        kvf_utf8_step step = kvf_utf8_step_at(bytes + at, len_bytes - at);
        if (step.kind != KVF_UTF8_WHOLE) {
            if (bad_at) *bad_at = at;
            return false;
        }
        at += step.len_bytes;
    }
    return true;
}
