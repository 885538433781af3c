#include "kvf/request_text.h"
#include <inttypes.h>
#include <stdio.h>

void kvf_request_id_format(kvf_request_id id, char out[KVF_REQUEST_TEXT_MAX]) {
    snprintf(out, KVF_REQUEST_TEXT_MAX, "%016" PRIx64 "-%" PRIu64, id.router_epoch, id.counter);
}

static bool parse_hex(const char *text, uint64_t *out) {
    uint64_t value = 0;
    for (int i = 0; i < 16; i++) {
        char c = text[i];
        uint64_t digit;
        if (c >= '0' && c <= '9')
            digit = (uint64_t)(c - '0');
        else if (c >= 'a' && c <= 'f')
            digit = (uint64_t)(c - 'a') + 10;
        else
            return false;
        value = value << 4 | digit;
    }
    *out = value;
    return true;
}

bool kvf_request_id_parse(const char *text, size_t len_bytes, kvf_request_id *out) {
    if (len_bytes < 18 || len_bytes > 37 || text[16] != '-' || text[17] == '0') return false;
    kvf_request_id id = {0, 0};
    if (!parse_hex(text, &id.router_epoch)) return false;
    for (size_t i = 17; i < len_bytes; i++) {
        if (text[i] < '0' || text[i] > '9') return false;
        uint64_t digit = (uint64_t)(text[i] - '0');
        if (id.counter > (UINT64_MAX - digit) / 10) return false;
        id.counter = id.counter * 10 + digit;
    }
    *out = id;
    return true;
}

void kvf_hash_format(kvf_hash128 hash, char out[KVF_HASH_TEXT_MAX]) {
    snprintf(out, KVF_HASH_TEXT_MAX, "%016" PRIx64 "%016" PRIx64, hash.hi, hash.lo);
}

bool kvf_hash_parse(const char *text, size_t len_bytes, kvf_hash128 *out) {
    return len_bytes == 32 && parse_hex(text, &out->hi) && parse_hex(text + 16, &out->lo);
}
