/* kvf/quant.h - the number formats of model files: sizes and exact conversion to f32.
 * Type numbers are those of the GGUF file format. Conversion follows each format's published layout bit for bit and is
 * the oracle for every packed kernel. Pure functions; any thread. */
#ifndef KVF_QUANT_H
#define KVF_QUANT_H
#include "kvf/base.h"
#ifdef __cplusplus
extern "C" {
#endif

typedef enum {
    KVF_DTYPE_F32 = 0,
    KVF_DTYPE_F16 = 1,
    KVF_DTYPE_Q4_0 = 2,
    KVF_DTYPE_Q4_1 = 3,
    KVF_DTYPE_Q5_0 = 6,
    KVF_DTYPE_Q5_1 = 7,
    KVF_DTYPE_Q8_0 = 8,
    KVF_DTYPE_Q2_K = 10,
    KVF_DTYPE_Q3_K = 11,
    KVF_DTYPE_Q4_K = 12,
    KVF_DTYPE_Q5_K = 13,
    KVF_DTYPE_Q6_K = 14,
    KVF_DTYPE_IQ4_NL = 20,
    KVF_DTYPE_IQ4_XS = 23,
    KVF_DTYPE_BF16 = 30,
    KVF_DTYPE_MXFP4 = 39
} kvf_dtype;

typedef struct {
    const char *name; /* "Q4_1" */
    uint32_t block_values; /* values in one block, 1 for plain types */
    uint32_t block_bytes;
} kvf_dtype_info;

/* NULL: a type this program does not read. */
const kvf_dtype_info *kvf_dtype_find(uint32_t type);
/* "Q5_K", or "type 77" written into buffer for an unknown one. */
const char *kvf_dtype_name(uint32_t type, char buffer[16]);

/* Converts `count` values (a multiple of the type's block_values) at src to f32. */
void kvf_dequant_row(kvf_dtype type, const void *src, float *dst, size_t count);

/* IEEE half <-> single, round to nearest even; NaN stays NaN, overflow becomes infinity. Bit-equal on every machine. */
float kvf_f16_to_f32(uint16_t h);
uint16_t kvf_f32_to_f16(float f);
#ifdef __cplusplus
}
#endif
#endif
