/* buf.h - text that grows up to a limit, for output that is written in one piece. Running out of memory ends the
 * program: a command for people has nothing better to do. */
#ifndef KVF_CLI_BUF_H
#define KVF_CLI_BUF_H
#include "kvf/base.h"

typedef struct {
    char *text; /* NUL-terminated once something was added */
    size_t len_bytes, room_bytes;
} kvf_buf;
void kvf_buf_fini(kvf_buf *b);
void kvf_buf_add(kvf_buf *b, const void *data, size_t len_bytes);
void kvf_buf_puts(kvf_buf *b, const char *text);
void kvf_buf_putc(kvf_buf *b, char c);
void kvf_buf_printf(kvf_buf *b, const char *fmt, ...) KVF_PRINTF(2, 3);
void kvf_buf_repeat(kvf_buf *b, const char *text, uint32_t times);
#endif
