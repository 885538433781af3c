/* retype.h - a tiny model with its f16 matrices in another format: the same file, its tensors rewritten in place. */
#ifndef TEST_RETYPE_H
#define TEST_RETYPE_H
#include "kvf/quant.h"

/* type: BF16 or Q8_0. huge: the tensor whose last value becomes a million, which f16 does not have; NULL: none. The
 * file is made under `out`, a template of mkstemp. Fails the running test on an error. */
void retype_model(const char *in, char *out, kvf_dtype type, const char *huge);
#endif
