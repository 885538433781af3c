/* matmul_q: q_matrix of an 8-bit header for each kind it knows, so that the kind is a constant inside. */
#ifndef KVF_INT8_KINDS_H
#define KVF_INT8_KINDS_H

static void matmul_q(const kvf_packed *w, const kvf_rows *x, uint32_t row, uint32_t rows, uint32_t panel,
    uint32_t panels, const kvf_product *out) {
    switch (w->kind) {
    case KVF_PACK_Q4: q_matrix(KVF_PACK_Q4, w, x, row, rows, panel, panels, out); break;
    case KVF_PACK_Q4F: q_matrix(KVF_PACK_Q4F, w, x, row, rows, panel, panels, out); break;
    case KVF_PACK_Q8: q_matrix(KVF_PACK_Q8, w, x, row, rows, panel, panels, out); break;
    case KVF_PACK_Q8G: q_matrix(KVF_PACK_Q8G, w, x, row, rows, panel, panels, out); break;
    case KVF_PACK_Q8M: q_matrix(KVF_PACK_Q8M, w, x, row, rows, panel, panels, out); break;
    default: KVF_ASSERT(!"this kind has no 8-bit product");
    }
}
#endif
