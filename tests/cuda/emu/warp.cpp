/* What the lanes of a warp do together, and asynchronous copies: by the PTX manual's tables of which lane holds what.
 */
#include "emu.h"
#include <cstring>
#include <cuda_bf16.h>
#include <cuda_fp16.h>

namespace kvf_emu {

/* ---- shuffles, votes ---- */

struct shuffled {
    uint64_t in, out;
    int lane;
};

KVF_EMU_PLAIN static void shuffle_all(void *args[32], unsigned mask) {
    for (int i = 0; i < 32; i++) {
        if (!(mask >> i & 1)) continue;
        shuffled *s = (shuffled *)args[i];
        if (!(mask >> s->lane & 1)) stop("a shuffle reads a lane outside its mask");
        s->out = ((shuffled *)args[s->lane])->in;
    }
}

KVF_EMU_PLAIN uint64_t shuffle(unsigned mask, uint64_t value, int lane, const void *site) {
    shuffled s = {value, 0, lane & 31};
    with_warp(mask, SHUFFLE, shuffle_all, &s, site);
    return s.out;
}

struct vote {
    int predicate;
    unsigned out;
};

KVF_EMU_PLAIN static void vote_all(void *args[32], unsigned mask) {
    unsigned result = 0;
    for (int i = 0; i < 32; i++)
        if (mask >> i & 1 && ((vote *)args[i])->predicate) result |= 1u << i;
    for (int i = 0; i < 32; i++)
        if (mask >> i & 1) ((vote *)args[i])->out = result;
}

KVF_EMU_PLAIN unsigned ballot(unsigned mask, int predicate, const void *site) {
    vote v = {predicate, 0};
    with_warp(mask, BALLOT, vote_all, &v, site);
    return v.out;
}

/* ---- mma.sync.aligned.m16n8k16.row.col.f32.{f16,bf16}.{f16,bf16}.f32 ---- */

struct product {
    float *d;
    const uint32_t *a, *b;
    bool bf16;
};

KVF_EMU_PLAIN static float half_of(const product *p, uint32_t pair, int high) {
    uint16_t bits = (uint16_t)(high ? pair >> 16 : pair);
    if (p->bf16) {
        uint32_t wide = (uint32_t)bits << 16;
        float f;
        memcpy(&f, &wide, sizeof f);
        return f;
    }
    __half_raw raw;
    raw.x = bits;
    return __half2float(__half(raw));
}

KVF_EMU_PLAIN static void product_all(void *args[32], unsigned mask) {
    float a[16][16], b[16][8];
    if (mask != 0xFFFFFFFFu) stop("mma needs all lanes of the warp");
    for (int lane = 0; lane < 32; lane++) {
        const product *p = (const product *)args[lane];
        int row = lane >> 2, column = (lane & 3) * 2;
        for (int h = 0; h < 2; h++) {
            a[row][column + h] = half_of(p, p->a[0], h);
            a[row + 8][column + h] = half_of(p, p->a[1], h);
            a[row][column + 8 + h] = half_of(p, p->a[2], h);
            a[row + 8][column + 8 + h] = half_of(p, p->a[3], h);
            b[column + h][row] = half_of(p, p->b[0], h);
            b[column + 8 + h][row] = half_of(p, p->b[1], h);
        }
    }
    for (int lane = 0; lane < 32; lane++) {
        product *p = (product *)args[lane];
        int row = lane >> 2, column = (lane & 3) * 2;
        for (int i = 0; i < 4; i++) {
            float sum = p->d[i];
            for (int k = 0; k < 16; k++) sum += a[row + 8 * (i >> 1)][k] * b[k][column + (i & 1)];
            p->d[i] = sum;
        }
    }
}

KVF_EMU_PLAIN void matrix_product(float *d, const uint32_t *a, const uint32_t *b, bool bf16, const void *site) {
    product p = {d, a, b, bf16};
    with_warp(0xFFFFFFFFu, MATRIX_PRODUCT, product_all, &p, site);
}

/* ---- ldmatrix.sync.aligned.m8n8.x{1,2,4}[.trans].shared.b16: lane 8*m + r gives the address of row r of matrix m ----
 */

struct matrix_load {
    uint32_t *r;
    const void *row;
    int count;
    bool transposed;
};

KVF_EMU_PLAIN static void load_all(void *args[32], unsigned mask) {
    if (mask != 0xFFFFFFFFu) stop("ldmatrix needs all lanes of the warp");
    for (int lane = 0; lane < 32; lane++) {
        matrix_load *l = (matrix_load *)args[lane];
        for (int m = 0; m < l->count; m++) {
            uint32_t pair = 0;
            for (int h = 0; h < 2; h++) {
                int row = lane >> 2, column = (lane & 3) * 2 + h;
                if (l->transposed) {
                    row = (lane & 3) * 2 + h;
                    column = lane >> 2;
                }
                const uint16_t *values = (const uint16_t *)((matrix_load *)args[m * 8 + row])->row;
                pair |= (uint32_t)values[column] << (16 * h);
            }
            l->r[m] = pair;
        }
    }
}

/* Seen by the sanitizers as this lane's read of its row: load_all itself is not. */
static void touch_row(const void *row) {
    volatile uint16_t seen;
    for (int i = 0; i < 8; i++) seen = ((const uint16_t *)row)[i];
    (void)seen;
}

void load_matrix(uint32_t *r, const void *row, int count, bool transposed, const void *site) {
    if (now.self->lane < count * 8) {
        if ((uintptr_t)row & 15) stop("ldmatrix: a row is not aligned to 16 bytes");
        touch_row(row);
    }
    matrix_load l = {r, row, count, transposed};
    with_warp(0xFFFFFFFFu, LOAD_MATRIX, load_all, &l, site);
}

/* ---- cp.async ---- */

static void do_copy(const copy *c) {
    if (c->from_bytes) memcpy(c->to, c->from, (size_t)c->from_bytes);
    if (c->from_bytes < c->bytes) memset((char *)c->to + c->from_bytes, 0, (size_t)(c->bytes - c->from_bytes));
}

void copy_async(void *to, const void *from, int bytes, int from_bytes) {
    thread *t = now.self;
    copy c = {to, from, bytes, from_bytes};
    if (((uintptr_t)to | (uintptr_t)from) & (uintptr_t)(bytes - 1)) stop("cp.async: misaligned");
    if (from_bytes < 0 || from_bytes > bytes) stop("cp.async: source bytes out of range");
    if (t->copies_count == (int)(sizeof t->copies / sizeof t->copies[0])) stop("cp.async: more copies than we keep");
    if (now.copies_early) do_copy(&c);
    t->copies[t->copies_count++] = c;
}

void copy_commit(void) {
    thread *t = now.self;
    if (t->groups_count == (int)(sizeof t->groups / sizeof t->groups[0])) stop("cp.async: more groups than we keep");
    t->groups[t->groups_count++] = t->copies_count;
}

void copy_wait(int keep_groups) {
    thread *t = now.self;
    int groups = t->groups_count - keep_groups;
    if (groups <= 0) return;
    int done = t->groups[groups - 1];
    if (!now.copies_early)
        for (int i = 0; i < done; i++) do_copy(&t->copies[i]);
    memmove(t->copies, t->copies + done, (size_t)(t->copies_count - done) * sizeof t->copies[0]);
    for (int i = 0; i < keep_groups && groups + i < t->groups_count; i++) t->groups[i] = t->groups[groups + i] - done;
    t->copies_count -= done;
    t->groups_count = keep_groups;
}

} // namespace kvf_emu
