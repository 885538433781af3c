/* Lines of a trace: which format, one reader per line, and what holds between lines. */
#include "trace_int.h"
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>

kvf_status trace_fail(const trace_line *l, const char *field, const char *fmt, ...) {
    char text[320];
    va_list ap;
    va_start(ap, fmt);
    vsnprintf(text, sizeof text, fmt, ap);
    va_end(ap);
    return kvf_fail(
        l->err, KVF_ERR_FORMAT, "%.120s:%llu: %.40s: %s", l->name, (unsigned long long)l->line, field, text);
}

const char *trace_shown(const char *from, const char *to, char out[48]) {
    size_t n = 0;
    for (; from < to && n < 40; from++) out[n++] = *from >= ' ' && *from < 127 ? *from : '?';
    if (from < to) {
        memcpy(out + n, "...", 3);
        n += 3;
    }
    out[n] = 0;
    return out;
}

typedef struct {
    trace_line line;
    trace_columns columns;
    trace_hashes hashes;
    kvf_load_trace *out;
    size_t room;
    uint64_t first_ns, last_ns;
} reader;

static kvf_status no_memory(const reader *r) {
    return kvf_fail(r->line.err, KVF_ERR_NO_MEMORY, "%.120s: no memory for this many rows", r->line.name);
}

static const char *time_field(const reader *r) { return r->out->format == KVF_LOAD_AZURE ? "TIMESTAMP" : "timestamp"; }

static kvf_status take_row(reader *r) {
    kvf_load_trace *t = r->out;
    if (t->count == r->room) {
        size_t room = r->room ? r->room * 2 : 256;
        kvf_load_row *larger = realloc(t->rows, room * sizeof *larger);
        if (!larger) return no_memory(r);
        t->rows = larger;
        r->room = room;
    }
    kvf_load_row *row = &t->rows[t->count];
    *row = (kvf_load_row){.hash_first = r->hashes.count};
    kvf_status status = t->format == KVF_LOAD_AZURE ? trace_azure_row(&r->line, &r->columns, row)
                                                    : trace_mooncake_row(&r->line, row, &r->hashes);
    if (status == KVF_ERR_NO_MEMORY) return no_memory(r);
    if (status != KVF_OK) return status;
    if (t->count == 0) r->first_ns = row->at_ns;
    if (t->count && row->at_ns < r->last_ns)
        return trace_fail(&r->line, time_field(r), "earlier than in the row before; rows must be in the order of time");
    r->last_ns = row->at_ns;
    row->at_ns -= r->first_ns;
    t->input_max = KVF_MAX(t->input_max, row->input);
    t->output_max = KVF_MAX(t->output_max, row->output);
    t->total_max = KVF_MAX(t->total_max, row->input + row->output);
    t->count++;
    return KVF_OK;
}

static bool next_line(const char **text, const char *end, trace_line *l) {
    while (*text < end) {
        const char *stop = memchr(*text, '\n', (size_t)(end - *text));
        l->line++;
        l->at = *text;
        l->end = stop ? stop : end;
        *text = stop ? stop + 1 : end;
        while (l->end > l->at && (l->end[-1] == '\r' || l->end[-1] == ' ' || l->end[-1] == '\t')) l->end--;
        if (l->end > l->at) return true;
    }
    return false;
}

static kvf_status read_all(reader *r, const char *text, const char *end, size_t rows_max) {
    if (!next_line(&text, end, &r->line)) return trace_fail(&r->line, "file", "it is empty");
    r->out->format = *r->line.at == '{' ? KVF_LOAD_MOONCAKE : KVF_LOAD_AZURE;
    if (r->out->format == KVF_LOAD_AZURE) {
        kvf_status status = trace_azure_header(&r->line, &r->columns);
        if (status != KVF_OK) return status;
        if (!next_line(&text, end, &r->line)) return trace_fail(&r->line, "file", "there is no row below the columns");
    }
    do {
        kvf_status status = take_row(r);
        if (status != KVF_OK) return status;
    } while ((rows_max == 0 || r->out->count < rows_max) && next_line(&text, end, &r->line));
    return KVF_OK;
}

kvf_status kvf_load_trace_parse(
    const char *name, const char *text, size_t len_bytes, size_t rows_max, kvf_load_trace *out, kvf_error *err) {
    kvf_load_trace t = {0};
    reader r = {.line = {.name = name, .err = err}, .out = &t};
    if (len_bytes >= 3 && memcmp(text, "\xef\xbb\xbf", 3) == 0) { /* what some editors put in front */
        text += 3;
        len_bytes -= 3;
    }
    kvf_status status = read_all(&r, text, text + len_bytes, rows_max);
    t.hashes = r.hashes.at;
    t.hashes_count = r.hashes.count;
    if (status != KVF_OK) {
        kvf_load_trace_fini(&t);
        return status;
    }
    *out = t;
    return KVF_OK;
}

void kvf_load_trace_fini(kvf_load_trace *t) {
    free(t->rows);
    free(t->hashes);
    *t = (kvf_load_trace){0};
}
