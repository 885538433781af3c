/* rows.h - what a bench says: a line for people and one for programs. C++. */
#ifndef KVF_GPU_CHECK_ROWS_H
#define KVF_GPU_CHECK_ROWS_H

/* json: a file that gets a line for each row, or NULL. */
void rows_begin(const char *json);
void rows_add(const char *name, double value, const char *unit); /* for the record */
/* bar: what the value must reach (at_least) or stay under. */
void rows_judge(const char *name, double value, const char *unit, double bar, bool at_least);
void rows_skip(const char *name, const char *reason);
/* How many bars were missed. */
int rows_end(void);
#endif
