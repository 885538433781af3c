/* rows.h - what a bench says: a line for people and one for programs. */
#ifndef KVF_GPU_CHECK_ROWS_H
#define KVF_GPU_CHECK_ROWS_H
#include <stdbool.h>
#ifdef __cplusplus
extern "C" {
#endif

/* json: a file that a line is added to for each row, or NULL. */
void rows_begin(const char *json);
void rows_add(const char *name, double value, const char *unit); /* for the record */
/* bar: what the value must reach (at_least) or stay under. */
void rows_judge(const char *name, double value, const char *unit, double bar, bool at_least);
void rows_skip(const char *name, const char *reason);
void rows_wrong(const char *name, const char *reason);
/* How many bars were missed. */
int rows_end(void);
#ifdef __cplusplus
}
#endif
#endif
