/* table.h - rows of text in aligned columns. Widths count characters, not bytes. */
#ifndef KVF_CLI_TABLE_H
#define KVF_CLI_TABLE_H
#include "buf.h"

#define KVF_TABLE_COLUMNS_MAX 16
typedef struct {
    uint32_t columns, rows;
    bool right[KVF_TABLE_COLUMNS_MAX];
    char **cells; /* owned [rows][columns]; row 0 is the head */
} kvf_table;
/* heads: NULL-terminated; a head that starts with '>' is aligned right. */
void kvf_table_init(kvf_table *t, const char *const *heads);
void kvf_table_row(kvf_table *t, const char *const *cells); /* `columns` of them, copied */
void kvf_table_write(const kvf_table *t, kvf_buf *out);
void kvf_table_fini(kvf_table *t);

uint32_t kvf_text_width(const char *text); /* characters of UTF-8, escape sequences not counted */
#endif
