/* trace_int.h - between the files of the trace reader: one line of text and where it stands. */
#ifndef KVF_TRACE_INT_H
#define KVF_TRACE_INT_H
#include "kvf/load_trace.h"

typedef struct {
    const char *name;
    uint64_t line; /* from 1 */
    const char *at, *end; /* what is left of it, without its end */
    kvf_error *err;
} trace_line;

/* KVF_ERR_FORMAT, "NAME:LINE: FIELD: what". */
kvf_status trace_fail(const trace_line *l, const char *field, const char *fmt, ...) KVF_PRINTF(3, 4);
/* The text of a value as an error shows it: cut, and without control characters. */
const char *trace_shown(const char *from, const char *to, char out[48]);

/* Which columns hold what; -1 not met. */
typedef struct {
    int time, input, output, count;
} trace_columns;
kvf_status trace_azure_header(trace_line *l, trace_columns *columns);
/* at_ns: since 1970 */
kvf_status trace_azure_row(trace_line *l, const trace_columns *columns, kvf_load_row *row);

typedef struct {
    uint64_t *at;
    size_t count, room;
} trace_hashes;
/* at_ns: as the file counts; ids are added to hashes */
kvf_status trace_mooncake_row(trace_line *l, kvf_load_row *row, trace_hashes *hashes);
#endif
