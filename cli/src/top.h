/* top.h - what `kvferry top` shows: rates from one state of the cluster to the next, and a frame of text. Pure: no
 * clock, no terminal. */
#ifndef KVF_CLI_TOP_H
#define KVF_CLI_TOP_H
#include "buf.h"
#include "kvferry/v1/kvferry.pb-c.h"

enum { KVF_TOP_HISTORY = 60 };

typedef struct {
    uint32_t columns, rows; /* rows 0: as many as there are */
    bool colour, utf8;
} kvf_top_style;

/* Zero it to begin. */
typedef struct {
    uint32_t samples; /* states seen */
    kvf_time_ns at_ns;
    uint64_t pages, bytes, finished; /* totals of the last state */
    double pages_per_s, bytes_per_s, finished_per_s, decode_per_s, prefill_per_s;
    double ttft_s, tpot_s; /* estimates from node statistics; negative: nothing to tell */
    uint32_t history_count;
    double pages_history[KVF_TOP_HISTORY], decode_history[KVF_TOP_HISTORY]; /* newest last */
} kvf_top;

void kvf_top_update(kvf_top *t, const Kvferry__V1__ClusterState *state, kvf_time_ns now);
/* state: the one given last, or NULL; trouble: a line in its place or beside it, or NULL. Lines end with '\n' and are
 * never wider than style.columns. */
void kvf_top_render(const kvf_top *t, const Kvferry__V1__ClusterState *state, const char *address, const char *clock,
    const char *trouble, const kvf_top_style *style, kvf_buf *out);

/* The first `columns` characters of a line, escape sequences kept whole. */
void kvf_top_clip(kvf_buf *out, const char *line, uint32_t columns);
/* A bar of `width` cells: parts of `total`, each drawn with its glyph; a part above 0 gets a cell where there is room
 * for it. */
typedef struct {
    uint64_t count;
    const char *glyph, *colour; /* colour: an escape sequence or "" */
} kvf_top_part;
void kvf_top_bar(kvf_buf *out, const kvf_top_part *parts, uint32_t count, uint64_t total, uint32_t width);
#endif
