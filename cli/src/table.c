#include "table.h"
#include <stdio.h>
#include <stdlib.h>

uint32_t kvf_text_width(const char *text) {
    uint32_t n = 0;
    for (; *text; text++) {
        if (*text == '\033' && text[1] == '[') {
            text += 2;
            while (*text && !((*text >= 'A' && *text <= 'Z') || (*text >= 'a' && *text <= 'z'))) text++;
            if (!*text) break;
            continue;
        }
        n += ((unsigned char)*text & 0xC0) != 0x80;
    }
    return n;
}

static char *copy(const char *text) {
    char *out = strdup(text);
    if (out) return out;
    fputs("kvferry: out of memory\n", stderr);
    exit(1);
}

void kvf_table_init(kvf_table *t, const char *const *heads) {
    *t = (kvf_table){0};
    const char *cells[KVF_TABLE_COLUMNS_MAX];
    for (; heads[t->columns]; t->columns++) {
        KVF_ASSERT(t->columns < KVF_TABLE_COLUMNS_MAX);
        t->right[t->columns] = heads[t->columns][0] == '>';
        cells[t->columns] = heads[t->columns] + (t->right[t->columns] ? 1 : 0);
    }
    kvf_table_row(t, cells);
}

void kvf_table_row(kvf_table *t, const char *const *cells) {
    char **grown = realloc(t->cells, (size_t)(t->rows + 1) * t->columns * sizeof *grown);
    if (!grown) {
        fputs("kvferry: out of memory\n", stderr);
        exit(1);
    }
    t->cells = grown;
    for (uint32_t c = 0; c < t->columns; c++) t->cells[t->rows * t->columns + c] = copy(cells[c]);
    t->rows++;
}

void kvf_table_write(const kvf_table *t, kvf_buf *out) {
    uint32_t width[KVF_TABLE_COLUMNS_MAX] = {0};
    for (uint32_t i = 0; i < t->rows * t->columns; i++) {
        uint32_t w = kvf_text_width(t->cells[i]);
        width[i % t->columns] = KVF_MAX(width[i % t->columns], w);
    }
    for (uint32_t r = 0; r < t->rows; r++) {
        for (uint32_t c = 0; c < t->columns; c++) {
            const char *cell = t->cells[r * t->columns + c];
            uint32_t pad = width[c] - kvf_text_width(cell);
            if (t->right[c]) kvf_buf_repeat(out, " ", pad);
            kvf_buf_puts(out, cell);
            if (c + 1 == t->columns) break;
            if (!t->right[c]) kvf_buf_repeat(out, " ", pad);
            kvf_buf_puts(out, "  ");
        }
        while (out->len_bytes && out->text[out->len_bytes - 1] == ' ') out->text[--out->len_bytes] = 0;
        kvf_buf_putc(out, '\n');
    }
}

void kvf_table_fini(kvf_table *t) {
    for (uint32_t i = 0; i < t->rows * t->columns; i++) free(t->cells[i]);
    free(t->cells);
    *t = (kvf_table){0};
}
