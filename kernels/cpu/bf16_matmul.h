/* b_matrix over tiles of the source, which defines before: B_ROWS, the most rows of a tile; B_AHEAD, how many bytes
 * before their use weights are asked for; b_tile(ROWS, PANELS, ...), ROWS rows (B_ROWS, or 4, 2, 1 where fewer) against
 * PANELS panels (2 or 1). */
#ifndef KVF_BF16_MATMUL_H
#define KVF_BF16_MATMUL_H

/* One tile of rows asks a little ahead; with several, the second asks for the next pair. */
LANES_INLINE void b_pair(const kvf_packed *w, const kvf_rows *x, uint32_t row, uint32_t rows, uint32_t panel,
    uint32_t first_panel, const kvf_product *out) {
    uint32_t r = 0;
    for (; r + B_ROWS <= rows; r += B_ROWS)
        b_tile(B_ROWS, 2, w, x, row + r, panel, first_panel, r,
            rows < 2 * B_ROWS ? B_AHEAD
            : r == B_ROWS     ? w->pair_bytes
                              : 0,
            out);
    if (B_ROWS > 4)
        for (; r + 4 <= rows; r += 4) b_tile(4, 2, w, x, row + r, panel, first_panel, r, r == 0 ? B_AHEAD : 0, out);
    if (rows - r >= 2) {
        b_tile(2, 2, w, x, row + r, panel, first_panel, r, r == 0 ? B_AHEAD : 0, out);
        r += 2;
    }
    if (r < rows) b_tile(1, 2, w, x, row + r, panel, first_panel, r, r == 0 ? B_AHEAD : 0, out);
}

static void b_matrix(const kvf_packed *w, const kvf_rows *x, uint32_t row, uint32_t rows, uint32_t panel,
    uint32_t panels, const kvf_product *out) {
    uint32_t end = panel + panels;
    for (uint32_t p = panel; p < end;) {
        if (p % 2 == 0 && p + 2 <= end) {
            b_pair(w, x, row, rows, p, panel, out);
            p += 2;
            continue;
        }
        for (uint32_t r = 0; r < rows; r++) b_tile(1, 1, w, x, row + r, p, panel, r, 0, out);
        p++;
    }
}
#endif
