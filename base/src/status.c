#include "kvf/base.h"
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>

const char *kvf_status_name(kvf_status status) {
    switch (status) {
#define KVF_STATUS_NAME(name, value, text)                                                                             \
    case name: return #name;
        KVF_STATUS_LIST(KVF_STATUS_NAME)
#undef KVF_STATUS_NAME
    }
    return "KVF_UNKNOWN_STATUS";
}

const char *kvf_status_text(kvf_status status) {
    switch (status) {
#define KVF_STATUS_TEXT(name, value, text)                                                                             \
    case name: return text;
        KVF_STATUS_LIST(KVF_STATUS_TEXT)
#undef KVF_STATUS_TEXT
    }
    return "unknown status";
}

kvf_status kvf_fail(kvf_error *err, kvf_status status, const char *fmt, ...) {
    if (err) {
        va_list ap;
        va_start(ap, fmt);
        err->status = status;
        vsnprintf(err->message, sizeof err->message, fmt, ap);
        va_end(ap);
    }
    return status;
}

void kvf_assert_failed(const char *expression, const char *file, int line) {
    fprintf(stderr, "kvferry: assertion failed: %s at %s:%d\n", expression, file, line);
    abort();
}
