/* mma_tile.cu - one tile by ldmatrix and mma.sync, straight and through the transposing load: whether lanes hold what
 * the kernels believe they hold. The first thing to run on a GPU that nobody has seen. */
#include "mma_tile.h"
#include "port.h"

enum { STRIDE = 24 /* halves of a row in shared memory */ };

/* c = a * b^T for a[16][16], b[16][16]; c[256..] the same through bt, which holds b^T. */
template <bool BF16> static __global__ void tile(float *c, const uint16_t *a, const uint16_t *b, const uint16_t *bt) {
    KVF_SHARED(uint16_t, shared);
    uint16_t *sa = shared, *sb = sa + 16 * STRIDE, *st = sb + 16 * STRIDE;
    int lane = threadIdx.x;
    for (int i = lane; i < 256; i += 32) {
        sa[i / 16 * STRIDE + i % 16] = a[i];
        sb[i / 16 * STRIDE + i % 16] = b[i];
        st[i / 16 * STRIDE + i % 16] = bt[i];
    }
    __syncwarp();
    uint32_t ra[4], rb[4], rt[4];
    float d[2][4] = {}, t[2][4] = {};
    kvf_load_matrix_x4(ra, sa + lane % 16 * STRIDE + lane / 16 * 8);
    kvf_load_matrix_x4(rb, sb + (lane % 8 + lane / 16 * 8) * STRIDE + lane / 8 % 2 * 8);
    kvf_load_matrix_x4_trans(rt, st + lane % 16 * STRIDE + lane / 16 * 8);
    for (int n = 0; n < 2; n++) {
        if (BF16) {
            kvf_mma_bf16(d[n], ra, rb + 2 * n);
            kvf_mma_bf16(t[n], ra, rt + 2 * n);
        } else {
            kvf_mma_f16(d[n], ra, rb + 2 * n);
            kvf_mma_f16(t[n], ra, rt + 2 * n);
        }
    }
    for (int n = 0; n < 2; n++) {
        for (int i = 0; i < 4; i++) {
            int at = (lane / 4 + 8 * (i / 2)) * 16 + n * 8 + (lane & 3) * 2 + (i & 1);
            c[at] = d[n][i];
            c[256 + at] = t[n][i];
        }
    }
}

void mma_tile(float *c, const uint16_t *a, const uint16_t *b, const uint16_t *bt, int bf16) {
    const size_t shared = 3 * 16 * STRIDE * sizeof(uint16_t);
    if (bf16)
        KVF_LAUNCH(tile<true>, dim3(1), dim3(32), shared, NULL, c, a, b, bt);
    else
        KVF_LAUNCH(tile<false>, dim3(1), dim3(32), shared, NULL, c, a, b, bt);
}

/* out[0..31]: lanes through an asynchronous copy of which the last 16 bytes are filled with zeros. */
static __global__ void copies(uint32_t *out, const uint32_t *in) {
    KVF_SHARED(uint32_t, shared);
    int lane = threadIdx.x;
    if (lane < 8) kvf_copy_async16(shared + 4 * lane, in + 4 * lane, lane < 7 ? 16 : 4);
    kvf_copy_commit();
    kvf_copy_wait<0>();
    __syncwarp();
    out[lane] = shared[lane ^ 1];
}
void mma_copies(uint32_t *out, const uint32_t *in) {
    KVF_LAUNCH(copies, dim3(1), dim3(32), 32 * sizeof(uint32_t), NULL, out, in);
}
