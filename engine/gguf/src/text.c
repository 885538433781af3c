/* Text from files made fit for a terminal, a log line and a protobuf string. */
#include "gguf_int.h"
#include <utf8proc.h>

static bool is_printable(utf8proc_int32_t c) {
    switch (utf8proc_category(c)) {
    case UTF8PROC_CATEGORY_CC:
    case UTF8PROC_CATEGORY_CF:
    case UTF8PROC_CATEGORY_CS:
    case UTF8PROC_CATEGORY_CO:
    case UTF8PROC_CATEGORY_CN:
    case UTF8PROC_CATEGORY_ZL:
    case UTF8PROC_CATEGORY_ZP: return false;
    default: return true;
    }
}

const char *gguf_printable(kvf_span text, char *out, size_t out_bytes) {
    KVF_ASSERT(out_bytes >= 8);
    const uint8_t *p = text.data;
    size_t left = text.len_bytes, used = 0;
    while (left > 0) {
        utf8proc_int32_t c;
        utf8proc_ssize_t step = utf8proc_iterate(p, (utf8proc_ssize_t)KVF_MIN(left, (size_t)4), &c);
        bool good = step > 0 && is_printable(c);
        size_t take = step > 0 ? (size_t)step : 1, put = good ? take : 1;
        /* Room is kept for the dots and the NUL while more text follows. */
        if (used + put + (take < left ? 4u : 1u) > out_bytes) {
            memcpy(out + used, "...", 3);
            used += 3;
            break;
        }
        if (good)
            memcpy(out + used, p, take);
        else
            out[used] = '?';
        used += put;
        p += take;
        left -= take;
    }
    out[used] = 0;
    return out;
}
