#include "buf.h"
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>

static void reserve(kvf_buf *b, size_t more_bytes) {
    if (b->len_bytes + more_bytes + 1 <= b->room_bytes) return;
    size_t room = KVF_MAX(b->room_bytes * 2, b->len_bytes + more_bytes + 1);
    room = KVF_MAX(room, (size_t)256);
    char *text = realloc(b->text, room);
    if (!text) {
        fputs("kvferry: out of memory\n", stderr);
        exit(1);
    }
    b->text = text;
    b->room_bytes = room;
}

void kvf_buf_fini(kvf_buf *b) {
    free(b->text);
    *b = (kvf_buf){0};
}

void kvf_buf_add(kvf_buf *b, const void *data, size_t len_bytes) {
    reserve(b, len_bytes);
    if (len_bytes) memcpy(b->text + b->len_bytes, data, len_bytes);
    b->len_bytes += len_bytes;
    b->text[b->len_bytes] = 0;
}
void kvf_buf_puts(kvf_buf *b, const char *text) { kvf_buf_add(b, text, strlen(text)); }
void kvf_buf_putc(kvf_buf *b, char c) { kvf_buf_add(b, &c, 1); }
void kvf_buf_repeat(kvf_buf *b, const char *text, uint32_t times) {
    for (uint32_t i = 0; i < times; i++) kvf_buf_puts(b, text);
}

void kvf_buf_printf(kvf_buf *b, const char *fmt, ...) {
    va_list ap;
    va_start(ap, fmt);
    int n = vsnprintf(NULL, 0, fmt, ap);
    va_end(ap);
    if (n <= 0) return;
    reserve(b, (size_t)n);
    va_start(ap, fmt);
    vsnprintf(b->text + b->len_bytes, (size_t)n + 1, fmt, ap);
    va_end(ap);
    b->len_bytes += (size_t)n;
}
