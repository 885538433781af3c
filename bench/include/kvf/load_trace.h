/* kvf/load_trace.h - recorded workloads: when requests came, how long they were, which prefixes they shared.
 *
 *   azure     CSV; the first line names the columns, of which TIMESTAMP ("2023-11-16 18:17:03.9799600", a zone may
 *             follow), ContextTokens and GeneratedTokens are read, in whatever order
 *   mooncake  one JSON object per line: timestamp (ms), input_length, output_length, hash_ids (one per 512 prompt
 *             tokens or part of them; equal ids: equal tokens); other members are skipped
 *
 * A line that cannot be used is an error "FILE:LINE: FIELD: what", and nothing of the file is. Empty lines are none.
 * Times may not go backwards. */
#ifndef KVF_LOAD_TRACE_H
#define KVF_LOAD_TRACE_H
#include "kvf/base.h"
#ifdef __cplusplus
extern "C" {
#endif

enum { KVF_LOAD_HASH_TOKENS = 512, KVF_LOAD_TOKENS_MAX = 1 << 24 };

typedef struct {
    uint64_t at_ns; /* since the first row */
    uint32_t input, output; /* tokens, 1 to KVF_LOAD_TOKENS_MAX */
    size_t hash_first; /* of kvf_load_trace.hashes; input / 512 of them, rounded up, when it has any */
} kvf_load_row;

typedef enum { KVF_LOAD_AZURE, KVF_LOAD_MOONCAKE } kvf_load_format;
typedef struct {
    kvf_load_format format;
    kvf_load_row *rows; /* owned */
    size_t count; /* at least 1 */
    uint64_t *hashes; /* owned; NULL: azure */
    size_t hashes_count;
    uint32_t input_max, output_max, total_max; /* total: of input and output of one row */
} kvf_load_trace;

/* name: of the file, in errors. rows_max: as many rows as are wanted, 0: all; lines after them are not looked at. */
kvf_status kvf_load_trace_parse(
    const char *name, const char *text, size_t len_bytes, size_t rows_max, kvf_load_trace *out, kvf_error *err);
void kvf_load_trace_fini(kvf_load_trace *t);

#ifdef __cplusplus
}
#endif
#endif
