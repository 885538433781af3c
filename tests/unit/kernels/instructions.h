/* The parts of test_instructions: what is counted (instruction_cases.c) and how (instruction_count.c). */
#ifndef KVF_TEST_INSTRUCTIONS_H
#define KVF_TEST_INSTRUCTIONS_H
#include "kvf/kernels.h"

/* One call of a table's operation with a fixed shape. `units`: multiply-adds, bytes of KV, or values that it takes. */
typedef struct instruction_data instruction_data;
typedef struct {
    const char *name, *unit;
    uint64_t units;
    void (*call)(const kvf_kernel_ops *ops, instruction_data *data);
} instruction_case;

extern const instruction_case instruction_cases[];
extern const uint32_t instruction_cases_count;
instruction_data *instruction_data_make(void); /* NULL: no memory. Freed by the end of the process. */

/* Instructions of one call. False where they cannot be counted, with the reason printed. */
bool instruction_count(const kvf_kernel_ops *ops, const instruction_case *c, instruction_data *data, uint64_t *result);
#endif
