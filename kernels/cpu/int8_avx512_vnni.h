/* 8-bit products of AVX-512 with VNNI: four products of unsigned codes and signed activations summed into 32 bits by
 * one instruction, without saturation. Byte codes stay offset by 128; the sum starts at -128 * sum(x), which takes the
 * offset out exactly. */
#ifndef KVF_INT8_AVX512_VNNI_H
#define KVF_INT8_AVX512_VNNI_H

enum { Q_ROWS = 6, Q_AHEAD = 32768 };
#define Q_PANELS_OF(rows) 2
#define DOT4_NIBBLES(acc, codes, x) _mm512_dpbusd_epi32((acc), (codes), (x))
#define NIBBLES_END(acc) (acc)
#define LOAD_BYTES(p) i16_load(p)
#define BYTES_START(neg_128) i16_set1(neg_128)
#define DOT4_BYTES(acc, codes, x) DOT4_NIBBLES(acc, codes, x)
#include "int8_x86.h"
#endif
