/* Attention of one tile over sixteen lanes; included after tuned.h. Per split of 256 positions:
 *   scores: keys of two pages are turned (a lane is a position), then every row of the tile runs its chain over d;
 *   weights: largest score, exp, sum in sixteen lanes; slots behind a row's own position get weight 0, are never used;
 *   values: a lane is a dimension; a chain over positions, for some rows at a time against the same values;
 *   fold: onto what earlier splits gave.
 * A gathered tile takes positions that its tokens share with all rows at once, then the rest of the split token by
 * token. Chains go on where they stopped, so the bits do not show it. */
#ifndef KVF_TUNED_ATTENTION_H
#define KVF_TUNED_ATTENTION_H

typedef struct {
    const kvf_attention *a;
    size_t width; /* head_dim rounded up to lanes */
    float *keys, *queries, *weights, *parts, *state;
    uint32_t rows;
} tile;

/* Row r of the tile is head r % group of token r / group; it sees positions up to its own. */
LANES_INLINE uint32_t row_position(const kvf_attention *a, uint32_t row) { return a->position + row / a->group; }
LANES_INLINE float *row_out(const kvf_attention *a, uint32_t row) {
    return a->out + row / a->group * a->out_stride + (size_t)(row % a->group) * a->head_dim;
}
/* Rows of the page that holds the position. */
LANES_INLINE const uint8_t *cells_of(kvf_cell cell, const kvf_attention *a, uint32_t position, bool values) {
    size_t head = a->kv_head + (values ? a->kv_heads : 0);
    return a->pages + a->blocks[position / KVF_PAGE_TOKENS] * a->page_bytes +
           head * KVF_PAGE_TOKENS * kvf_cell_row_bytes(cell, a->head_dim);
}
/* Sixteen cells of a row from d on, a multiple of 16; n: how many there are, the rest becomes 0. */
LANES_INLINE v16 load_cells(kvf_cell cell, const uint8_t *row, size_t d, uint32_t head_dim, uint32_t n) {
    if (cell == KVF_CELL_F16) return n >= 16 ? v16_load_half(row + 2 * d) : v16_load_half_n(row + 2 * d, n);
    if (cell == KVF_CELL_Q8) {
        v16 scale = v16_set1_half(row + head_dim + d / KVF_GROUP * 2);
        return v16_mul(scale, n >= 16 ? v16_load_i8(row + d) : v16_load_i8_n(row + d, n));
    }
    const float *wide = (const float *)(const void *)(row + 4 * d);
    return n >= 16 ? v16_load(wide) : v16_load_n(wide, n);
}

/* Queries: tiles of SCORE_ROWS rows, [d][row]; the last tile is as narrow as the rows left. */
static void turn_queries(const tile *t) {
    const kvf_attention *a = t->a;
    for (uint32_t r = 0; r < t->rows; r++) {
        uint32_t first = r / SCORE_ROWS * SCORE_ROWS, height = KVF_MIN(t->rows - first, (uint32_t)SCORE_ROWS);
        uint32_t token = r / a->group, at_row = a->each ? a->each[token].row : token;
        const float *q = a->q + at_row * a->q_stride + (size_t)(r % a->group) * a->head_dim;
        float *at = t->queries + first * t->width + (r - first);
        for (uint32_t d = 0; d < a->head_dim; d++) at[(size_t)d * height] = q[d];
    }
}

/* One page of keys into lanes [first, first+16) of keys[d][KVF_ATTENTION_KEYS]. */
LANES_INLINE void turn_page(kvf_cell cell, const tile *t, uint32_t position, uint32_t first) {
    const uint32_t dims = t->a->head_dim;
    const uint8_t *cells = cells_of(cell, t->a, position, false);
    const size_t row_bytes = kvf_cell_row_bytes(cell, dims);
    for (uint32_t d = 0; d < dims; d += 16) {
        v16 r[16];
        UNROLL for (uint32_t i = 0; i < 16; i++) r[i] = load_cells(cell, cells + i * row_bytes, d, dims, dims - d);
        v16_transpose(r);
        UNROLL for (uint32_t i = 0; i < 16; i++) v16_store(t->keys + (d + i) * KVF_ATTENTION_KEYS + first, r[i]);
    }
}

LANES_INLINE void score_rows(
    const int ROWS, const int PAGES, const tile *t, uint32_t row, uint32_t column, const float *keys) {
    v16 acc[SCORE_ROWS][SCORE_PAGES];
    UNROLL for (int r = 0; r < ROWS; r++) UNROLL for (int p = 0; p < PAGES; p++) acc[r][p] = v16_zero();
    const float *q = t->queries + row * t->width;
    for (uint32_t d = 0; d < t->a->head_dim; d++, q += ROWS, keys += KVF_ATTENTION_KEYS) {
        v16 key[SCORE_PAGES];
        UNROLL for (int p = 0; p < PAGES; p++) key[p] = v16_load(keys + 16 * p);
        UNROLL for (int r = 0; r < ROWS; r++) UNROLL for (int p = 0; p < PAGES; p++) acc[r][p] =
            v16_fma(v16_set1(q[r]), key[p], acc[r][p]);
    }
    v16 scale = v16_set1(t->a->scale);
    float *to = t->weights + (size_t)row * KVF_ATTENTION_SPLIT + column;
    UNROLL for (int r = 0; r < ROWS; r++) UNROLL for (int p = 0; p < PAGES; p++)
        v16_store(to + r * KVF_ATTENTION_SPLIT + 16 * p, v16_mul(acc[r][p], scale));
}

LANES_INLINE void score_all_rows(
    const int PAGES, const tile *t, uint32_t first_row, uint32_t column, const float *keys) {
    uint32_t row =
        first_row / SCORE_ROWS * SCORE_ROWS; /* a whole tile: scores of rows that do not see the page are unused */
    for (; row + SCORE_ROWS <= t->rows; row += SCORE_ROWS) score_rows(SCORE_ROWS, PAGES, t, row, column, keys);
    switch (t->rows - row) {
    case 1: score_rows(1, PAGES, t, row, column, keys); break;
    case 2: score_rows(2, PAGES, t, row, column, keys); break;
    case 3: score_rows(3, PAGES, t, row, column, keys); break;
#if KVF_SCORE_ROWS > 4
    case 4: score_rows(4, PAGES, t, row, column, keys); break;
    case 5: score_rows(5, PAGES, t, row, column, keys); break;
    case 6: score_rows(6, PAGES, t, row, column, keys); break;
    case 7: score_rows(7, PAGES, t, row, column, keys); break;
#endif
    default: break;
    }
}

/* Pages lie scattered, so nobody but us knows what comes next: keys of the pages after these, and values of these. */
LANES_INLINE void prefetch_pages(kvf_cell cell, const kvf_attention *a, uint32_t position, uint32_t end) {
    size_t bytes = KVF_PAGE_TOKENS * kvf_cell_row_bytes(cell, a->head_dim);
    for (uint32_t i = 0; i < KVF_ATTENTION_KEYS / KVF_PAGE_TOKENS; i++, position += KVF_PAGE_TOKENS) {
        uint32_t next = position + KVF_ATTENTION_KEYS;
        const uint8_t *keys = next < end ? cells_of(cell, a, next, false) : NULL;
        const uint8_t *values = position < end ? cells_of(cell, a, position, true) : NULL;
        for (size_t line = 0; keys && line < bytes; line += 64) lanes_prefetch(keys + line);
        for (size_t line = 0; values && line < bytes; line += 64) lanes_prefetch(values + line);
    }
}

LANES_INLINE void turn_pages(kvf_cell cell, const tile *t, uint32_t position, uint32_t pages, uint32_t end) {
    prefetch_pages(cell, t->a, position, end);
    for (uint32_t i = 0; i < pages; i++) turn_page(cell, t, position + i * 16, i * 16);
}

/* Scores of every row that sees them, positions [from, end) of the split at `begin`. */
static void score_split(const tile *t, uint32_t begin, uint32_t from, uint32_t end) {
    const kvf_attention *a = t->a;
    for (uint32_t at = from; at < end; at += KVF_ATTENTION_KEYS) {
        uint32_t pages = end - at > KVF_PAGE_TOKENS ? 2 : 1;
        switch (a->cell) {
        case KVF_CELL_F16: turn_pages(KVF_CELL_F16, t, at, pages, end); break;
        case KVF_CELL_F32: turn_pages(KVF_CELL_F32, t, at, pages, end); break;
        case KVF_CELL_Q8: turn_pages(KVF_CELL_Q8, t, at, pages, end); break;
        }
        uint32_t first_row = at > a->position ? (at - a->position) * a->group : 0;
        if (pages == 2 && SCORE_PAGES == 2) {
            score_all_rows(SCORE_PAGES, t, first_row, at - begin, t->keys);
            continue;
        }
        for (uint32_t i = 0; i < pages; i++) score_all_rows(1, t, first_row, at - begin + i * 16, t->keys + i * 16);
    }
}

/* Scores of one row become weights, zero up to the next multiple of 16. */
static void weigh_row(float *weights, uint32_t count, float *largest_out, float *sum_out) {
    v16 lowest = v16_set1(-INFINITY), largest = lowest, sum = v16_zero();
    uint32_t i = 0;
    for (; i + 16 <= count; i += 16) largest = v16_max(largest, v16_load(weights + i));
    if (i < count) largest = v16_max(largest, v16_first_or(v16_load(weights + i), count - i, lowest));
    float most = v16_largest(largest);
    v16 shift = v16_set1(most);
    for (i = 0; i < count; i += 16) {
        v16 w = v16_exp(v16_sub(v16_load(weights + i), shift));
        if (count - i < 16) w = v16_first_or(w, count - i, v16_zero());
        v16_store(weights + i, w);
        sum = v16_add(sum, w);
    }
    *largest_out = most;
    *sum_out = v16_sum(sum);
}

/* Positions [from, to) of the split at `begin`, onto VECTORS*16 dimensions from d of ROWS rows; n: dimensions that
 * exist. */
LANES_INLINE void value_rows(kvf_cell cell, const int ROWS, const int VECTORS, const tile *t, uint32_t begin,
    uint32_t from, uint32_t to, uint32_t row, uint32_t d, uint32_t n) {
    const kvf_attention *a = t->a;
    const size_t row_bytes = kvf_cell_row_bytes(cell, a->head_dim);
    v16 acc[VALUE_ROWS][VALUE_VECTORS];
    float *part = t->parts + row * t->width + d;
    UNROLL for (int r = 0; r < ROWS; r++) UNROLL for (int c = 0; c < VECTORS; c++) acc[r][c] =
        from ? v16_load(part + r * t->width + 16 * c) : v16_zero();
    const float *weights = t->weights + (size_t)row * KVF_ATTENTION_SPLIT;
    while (from < to) {
        const uint8_t *cell_row = cells_of(cell, a, begin + from, true) + from % KVF_PAGE_TOKENS * row_bytes;
        uint32_t stop = KVF_MIN(to, (from / KVF_PAGE_TOKENS + 1) * KVF_PAGE_TOKENS);
        for (; from < stop; from++, cell_row += row_bytes) {
            v16 value[VALUE_VECTORS];
            UNROLL for (int c = 0; c < VECTORS; c++) value[c] =
                load_cells(cell, cell_row, d + 16 * (size_t)c, a->head_dim, n);
            UNROLL for (int r = 0; r < ROWS; r++) {
                v16 w = v16_set1(weights[r * KVF_ATTENTION_SPLIT + from]);
                UNROLL for (int c = 0; c < VECTORS; c++) acc[r][c] = v16_fma(w, value[c], acc[r][c]);
            }
        }
    }
    UNROLL for (int r = 0; r < ROWS; r++) UNROLL for (int c = 0; c < VECTORS; c++)
        v16_store(part + r * t->width + 16 * c, acc[r][c]);
}

/* Where a call stands in a split: positions [from, to) behind `begin`, dimensions from d on of which n exist. */
typedef struct {
    uint32_t begin, from, to, d, n;
} value_place;

/* Rows together as far as all of them see, then each one's own last positions. */
LANES_INLINE void value_tile(
    kvf_cell cell, const int ROWS, const int VECTORS, const tile *t, const value_place *at, uint32_t row) {
    const uint32_t begin = at->begin, d = at->d, n = at->n;
    uint32_t common = KVF_MIN(row_position(t->a, row) + 1 - begin, at->to);
    value_rows(cell, ROWS, VECTORS, t, begin, at->from, common, row, d, n);
    for (int r = 1; r < ROWS; r++) {
        uint32_t own = KVF_MIN(row_position(t->a, row + (uint32_t)r) + 1 - begin, at->to);
        if (own > common) value_rows(cell, 1, VECTORS, t, begin, common, own, row + (uint32_t)r, d, n);
    }
}

LANES_INLINE void value_columns(kvf_cell cell, const int VECTORS, const tile *t, const value_place *at, uint32_t row) {
    for (; row + VALUE_ROWS <= t->rows; row += VALUE_ROWS) value_tile(cell, VALUE_ROWS, VECTORS, t, at, row);
    for (; row + 3 <= t->rows; row += 3) value_tile(cell, 3, VECTORS, t, at, row);
    for (; row < t->rows; row++) value_tile(cell, 1, VECTORS, t, at, row);
}

LANES_INLINE void value_dimensions(kvf_cell cell, const tile *t, value_place at, uint32_t first_row) {
    uint32_t dims = t->a->head_dim;
    for (; at.d + 16 * VALUE_VECTORS <= dims; at.d += 16 * VALUE_VECTORS)
        value_columns(cell, VALUE_VECTORS, t, &at, first_row);
    for (; at.d < dims; at.d += 16) {
        at.n = KVF_MIN(dims - at.d, 16u);
        value_columns(cell, 1, t, &at, first_row);
    }
}
/* Positions [from, to) of a split, onto what the rows have of it so far. */
static void value_split(const tile *t, uint32_t begin, uint32_t from, uint32_t to, uint32_t first_row) {
    value_place at = {.begin = begin, .from = from, .to = to, .n = 16};
    switch (t->a->cell) {
    case KVF_CELL_F16: value_dimensions(KVF_CELL_F16, t, at, first_row); break;
    case KVF_CELL_F32: value_dimensions(KVF_CELL_F32, t, at, first_row); break;
    case KVF_CELL_Q8: value_dimensions(KVF_CELL_Q8, t, at, first_row); break;
    }
}

/* Unnormalised values of one split joined with those of the splits before it. */
static void fold_row(const tile *t, uint32_t row, bool first) {
    uint32_t dims = t->a->head_dim;
    float *state = t->state + (size_t)row * KVF_ATTENTION_STATE, *out = row_out(t->a, row);
    float largest = state[2], sum = state[3];
    const float *part = t->parts + row * t->width;
    if (first) {
        memcpy(out, part, dims * sizeof *out);
        state[0] = largest;
        state[1] = sum;
        return;
    }
    float both = state[0] > largest ? state[0] : largest, factors[16] = {state[0] - both, largest - both};
    v16_store(factors, v16_exp(v16_load(factors)));
    v16 old_part = v16_set1(factors[0]), new_part = v16_set1(factors[1]);
    for (uint32_t d = 0; d < dims; d += 16) {
        v16 old = v16_mul(v16_load_n(out + d, dims - d), old_part);
        v16_store_n(out + d, v16_fma(v16_load_n(part + d, dims - d), new_part, old), dims - d);
    }
    state[0] = both;
    state[1] = fmaf(sum, factors[1], state[1] * factors[0]);
}

/* Weights of every row that sees something of the split. */
static void weigh_split(const tile *t, uint32_t begin, uint32_t first_row) {
    for (uint32_t r = first_row; r < t->rows; r++) {
        uint32_t count = KVF_MIN(row_position(t->a, r) + 1 - begin, (uint32_t)KVF_ATTENTION_SPLIT);
        float *state = t->state + (size_t)r * KVF_ATTENTION_STATE;
        weigh_row(t->weights + (size_t)r * KVF_ATTENTION_SPLIT, count, &state[2], &state[3]);
    }
}

static void normalise(const tile *t) {
    for (uint32_t r = 0; r < t->rows; r++) {
        float inverse = 1.0f / t->state[(size_t)r * KVF_ATTENTION_STATE + 1], *out = row_out(t->a, r);
        for (uint32_t d = 0; d < t->a->head_dim; d++) out[d] *= inverse;
    }
}

static void attention_run(const tile *t) {
    const kvf_attention *a = t->a;
    turn_queries(t);
    uint32_t last = a->position + a->tokens; /* behind the last position anybody sees */
    for (uint32_t begin = 0; begin < last; begin += KVF_ATTENTION_SPLIT) {
        uint32_t first_row = begin > a->position ? (begin - a->position) * a->group : 0;
        score_split(t, begin, begin, KVF_MIN(begin + KVF_ATTENTION_SPLIT, last));
        weigh_split(t, begin, first_row);
        value_split(t, begin, 0, KVF_ATTENTION_SPLIT, first_row);
        for (uint32_t r = first_row; r < t->rows; r++) fold_row(t, r, begin == 0);
    }
    normalise(t);
}

/* Token i of a gathered tile as a tile of its own, over its part of the same scratch. */
typedef struct {
    kvf_attention a;
    tile t;
} own_tile;
static void own_tile_of(const tile *all, float *own_queries, uint32_t i, own_tile *own) {
    const kvf_attention *a = all->a;
    const kvf_attention_token *token = &a->each[i];
    uint32_t row = i * a->group;
    own->a = *a;
    own->a.each = NULL;
    own->a.q += token->row * a->q_stride;
    own->a.out += token->row * a->out_stride;
    own->a.blocks = token->blocks;
    own->a.position = token->position;
    own->a.tokens = 1;
    own->t = *all;
    own->t.a = &own->a;
    own->t.rows = a->group;
    own->t.queries = own_queries + row * all->width;
    own->t.weights += (size_t)row * KVF_ATTENTION_SPLIT;
    own->t.parts += row * all->width;
    own->t.state += (size_t)row * KVF_ATTENTION_STATE;
}

/* One split of a gathered tile; false where it lies behind every token. */
static bool gathered_split(const tile *all, float *own_queries, uint32_t begin) {
    const kvf_attention *a = all->a;
    uint32_t shared = a->shared > begin ? KVF_MIN(a->shared - begin, (uint32_t)KVF_ATTENTION_SPLIT) : 0;
    bool any = false;
    own_tile own;
    score_split(all, begin, begin, begin + shared);
    for (uint32_t i = 0; i < a->tokens; i++) {
        if (a->each[i].position < begin) continue;
        any = true;
        own_tile_of(all, own_queries, i, &own);
        score_split(&own.t, begin, begin + shared, KVF_MIN(begin + KVF_ATTENTION_SPLIT, own.a.position + 1));
        weigh_split(&own.t, begin, 0);
    }
    if (shared > 0) value_split(all, begin, 0, shared, 0);
    for (uint32_t i = 0; i < a->tokens; i++) {
        if (a->each[i].position < begin) continue;
        own_tile_of(all, own_queries, i, &own);
        value_split(&own.t, begin, shared, KVF_ATTENTION_SPLIT, 0);
        for (uint32_t r = 0; r < own.t.rows; r++) fold_row(&own.t, r, begin == 0);
    }
    return any;
}

static void attention_gathered(const tile *t, float *own_queries) {
    kvf_attention together = *t->a; /* as if all stood behind what they share: then every row sees all of it */
    together.position = together.shared;
    tile all = *t;
    all.a = &together;
    own_tile own;
    turn_queries(&all);
    for (uint32_t i = 0; i < together.tokens; i++) {
        own_tile_of(&all, own_queries, i, &own);
        turn_queries(&own.t);
    }
    for (uint32_t begin = 0; gathered_split(&all, own_queries, begin); begin += KVF_ATTENTION_SPLIT) {
    }
    for (uint32_t i = 0; i < together.tokens; i++) {
        own_tile_of(&all, own_queries, i, &own);
        normalise(&own.t);
    }
}

static void attention(const kvf_attention *a) {
    tile t = {.a = a, .width = kvf_attention_width(a->head_dim), .keys = a->scratch, .rows = a->tokens * a->group};
    t.queries = t.keys + kvf_attention_keys_floats(a->head_dim);
    float *own_queries = t.queries + t.rows * t.width;
    t.weights = own_queries + t.rows * t.width;
    t.parts = t.weights + (size_t)t.rows * KVF_ATTENTION_SPLIT;
    t.state = t.parts + t.rows * t.width;
    if (a->each)
        attention_gathered(&t, own_queries);
    else
        attention_run(&t);
}
#endif
