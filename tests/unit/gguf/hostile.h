/* hostile.h - small files with one fault each (field case MF-01), and the word their refusal must hold. Used by the
 * test, and written out as the fuzzer's seed corpus (`test_gguf --write-corpus DIR`). */
#ifndef KVF_TEST_HOSTILE_H
#define KVF_TEST_HOSTILE_H
#include "gguf_writer.h"

typedef struct {
    const char *name;
    const char *word; /* in the message; NULL: the file is good */
    void (*make)(writer *w);
} hostile_case;

extern const hostile_case hostile_cases[];
extern const size_t hostile_cases_count;
#endif
