#include "top.h"
#include "cluster.h"
#include "table.h"
#include "units.h"
#include <stdio.h>

#define RESET "\033[0m"

enum { LEFT = 8 + 1 + 8 + 9 + 4 + 1 + 4 + 1, NARROW = 66 }; /* columns before the rate of a node; below: no rates */

static void push(double *history, uint32_t count, double v) {
    if (count == KVF_TOP_HISTORY) memmove(history, history + 1, (KVF_TOP_HISTORY - 1) * sizeof *history);
    history[KVF_MIN(count, (uint32_t)KVF_TOP_HISTORY - 1)] = v;
}

/* A total that fell belongs to a router or node that began anew: no rate across that. */
static double rate(uint64_t now, uint64_t before, double dt) {
    return dt > 0 && now >= before ? (double)(now - before) / dt : 0;
}

static void estimate_latency(kvf_top *t, const Kvferry__V1__ClusterState *state) {
    double running = 0, decode = 0, waiting = 0, prefill = 0;
    for (size_t i = 0; i < state->n_nodes; i++) {
        const Kvferry__V1__NodeStatus *n = state->nodes[i];
        decode += n->decode_tokens_per_s;
        prefill += n->prefill_tokens_per_s;
        waiting += (double)n->waiting_tokens;
        if (n->decode_tokens_per_s > 0) running += n->running;
    }
    t->decode_per_s = decode;
    t->prefill_per_s = prefill;
    t->tpot_s = decode > 0 && running > 0 ? running / decode : -1;
    t->ttft_s = prefill > 0 ? waiting / prefill : -1;
}

void kvf_top_update(kvf_top *t, const Kvferry__V1__ClusterState *state, kvf_time_ns now) {
    uint64_t pages = 0, bytes = 0;
    for (size_t i = 0; i < state->n_pairs; i++) {
        pages += state->pairs[i]->pages_moved;
        bytes += state->pairs[i]->bytes_moved;
    }
    double dt = t->samples ? (double)(now - t->at_ns) / 1e9 : 0;
    t->pages_per_s = rate(pages, t->pages, dt);
    t->bytes_per_s = rate(bytes, t->bytes, dt);
    t->finished_per_s = rate(state->requests_finished, t->finished, dt);
    estimate_latency(t, state);
    t->pages = pages;
    t->bytes = bytes;
    t->finished = state->requests_finished;
    t->at_ns = now;
    if (t->samples++) {
        push(t->pages_history, t->history_count, t->pages_per_s);
        push(t->decode_history, t->history_count, t->decode_per_s);
        t->history_count = KVF_MIN(t->history_count + 1, (uint32_t)KVF_TOP_HISTORY);
    }
}

void kvf_top_clip(kvf_buf *out, const char *line, uint32_t columns) {
    uint32_t width = 0;
    for (const char *at = line; *at;) {
        size_t len = 1;
        if (*at == '\033' && at[1] == '[') {
            len = 2 + strcspn(at + 2, "mKHJhl");
            len += at[len] != 0;
        } else {
            if (width == columns) {
                at++;
                continue; /* later escape sequences still count: they end a colour */
            }
            while (((unsigned char)at[len] & 0xC0) == 0x80) len++;
            width++;
        }
        kvf_buf_add(out, at, len);
        at += len;
    }
}

void kvf_top_bar(kvf_buf *out, const kvf_top_part *parts, uint32_t count, uint64_t total, uint32_t width) {
    uint32_t used = 0;
    for (uint32_t i = 0; i < count && total; i++) {
        uint32_t cells = (uint32_t)((double)parts[i].count / (double)total * width + 0.5);
        if (parts[i].count && cells == 0) cells = 1;
        cells = KVF_MIN(cells, width - used);
        if (!cells) continue;
        kvf_buf_puts(out, parts[i].colour);
        kvf_buf_repeat(out, parts[i].glyph, cells);
        if (*parts[i].colour) kvf_buf_puts(out, RESET);
        used += cells;
    }
    kvf_buf_repeat(out, " ", width - used);
}

static void sparkline(kvf_buf *out, const double *history, uint32_t count, uint32_t width, bool utf8) {
    static const char *const fine[] = {"\u2581", "\u2582", "\u2583", "\u2584", "\u2585", "\u2586", "\u2587", "\u2588"};
    static const char *const plain[] = {"_", ".", "-", "=", "+", "*", "%", "#"};
    double most = 0;
    uint32_t first = count > width ? count - width : 0;
    for (uint32_t i = first; i < count; i++) most = KVF_MAX(most, history[i]);
    for (uint32_t i = first; i < count; i++) {
        uint32_t level = most > 0 ? (uint32_t)(history[i] / most * 7 + 0.5) : 0;
        kvf_buf_puts(out, (utf8 ? fine : plain)[level]);
    }
}

typedef struct {
    const kvf_top_style *style;
    kvf_buf *out;
    uint32_t lines;
} frame;

/* One line of the frame; `line` is emptied. */
static void put_line(frame *f, kvf_buf *line) {
    if (f->style->rows == 0 || f->lines < f->style->rows) {
        kvf_top_clip(f->out, line->text ? line->text : "", f->style->columns);
        kvf_buf_putc(f->out, '\n');
        f->lines++;
    }
    line->len_bytes = 0;
    if (line->text) line->text[0] = 0;
}

static const char *paint(const frame *f, const char *code) { return f->style->colour ? code : ""; }

static void put_rates(frame *f, const kvf_top *t, kvf_buf *line) {
    char a[KVF_UNITS_TEXT], b[KVF_UNITS_TEXT], c[KVF_UNITS_TEXT];
    uint32_t width = f->style->columns > 100 ? 40 : f->style->columns > 60 ? 20 : 8;
    kvf_buf_printf(line, "requests/s %-7s ", kvf_units_count(t->finished_per_s, a));
    kvf_buf_printf(
        line, " ttft %s%-8s", t->ttft_s > 0 ? "~" : "", t->ttft_s > 0 ? kvf_units_seconds(t->ttft_s, b) : "-");
    kvf_buf_printf(
        line, " tpot %s%-8s", t->tpot_s > 0 ? "~" : "", t->tpot_s > 0 ? kvf_units_seconds(t->tpot_s, c) : "-");
    kvf_buf_printf(line, " prompt tokens/s %s", kvf_units_count(t->prefill_per_s, a));
    put_line(f, line);
    kvf_buf_printf(line, "tokens/s   %-7s  %s", kvf_units_count(t->decode_per_s, a), paint(f, "\033[32m"));
    sparkline(line, t->decode_history, t->history_count, width, f->style->utf8);
    kvf_buf_puts(line, paint(f, RESET));
    put_line(f, line);
    kvf_buf_printf(line, "pages/s    %-7s  %s", kvf_units_count(t->pages_per_s, a), paint(f, "\033[36m"));
    sparkline(line, t->pages_history, t->history_count, width, f->style->utf8);
    kvf_buf_printf(line, "%s  %s", paint(f, RESET), kvf_units_rate(t->bytes_per_s, b));
    put_line(f, line);
}

static void put_text(kvf_buf *line, ProtobufCBinaryData b, uint32_t width) {
    uint32_t n = 0;
    for (size_t i = 0; i < b.len && n < width; i++) {
        bool lead = (b.data[i] & 0xC0) != 0x80;
        kvf_buf_putc(line, b.data[i] < 0x20 || b.data[i] == 0x7F ? '?' : (char)b.data[i]);
        n += lead;
    }
    if (n < width) kvf_buf_repeat(line, " ", width - n);
}

static const char *state_colour(const frame *f, Kvferry__V1__NodeState state) {
    if (state == KVFERRY__V1__NODE_STATE__NODE_STATE_READY) return paint(f, "\033[32m");
    return paint(f, state == KVFERRY__V1__NODE_STATE__NODE_STATE_LOST ? "\033[31m" : "\033[33m");
}

static void put_node(frame *f, const Kvferry__V1__NodeStatus *n, kvf_buf *line) {
    static const Kvferry__V1__BlockCounts none = KVFERRY__V1__BLOCK_COUNTS__INIT;
    const Kvferry__V1__BlockCounts *b = n->blocks ? n->blocks : &none;
    bool fine = f->style->utf8;
    char a[KVF_UNITS_TEXT];
    put_text(line, n->id, 8);
    kvf_buf_printf(line, " %-8s%s%-9s%s%4u %4u ", kvf_cluster_role(n->role), state_colour(f, n->state),
        kvf_cluster_state(n->state), paint(f, RESET), n->running, n->waiting);
    double rate = n->role == KVFERRY__V1__ROLE__ROLE_PREFILL ? n->prefill_tokens_per_s : n->decode_tokens_per_s;
    bool narrow = f->style->columns < NARROW;
    if (!narrow) kvf_buf_printf(line, "%9s  ", kvf_units_count(rate, a));
    if (b->total == 0) { /* a router keeps no blocks */
        put_line(f, line);
        return;
    }
    uint32_t fixed = LEFT + 2 + 6 + (narrow ? 0 : 11); /* brackets, percentage, rate */
    uint32_t width = f->style->columns > fixed + 4 ? KVF_MIN(f->style->columns - fixed, 60u) : 4;
    uint64_t held = b->pinned > b->filling ? b->pinned - b->filling : 0, taken = b->free + b->pinned;
    uint64_t cached = b->total > taken ? b->total - taken : 0, booked = KVF_MIN(b->booked, b->free);
    const kvf_top_part parts[] = {
        {held, fine ? "\u2588" : "#", paint(f, "\033[32m")},
        {b->filling, fine ? "\u2593" : "+", paint(f, "\033[33m")},
        {cached, fine ? "\u2592" : "=", paint(f, "\033[34m")},
        {booked, fine ? "\u2591" : ":", paint(f, "\033[35m")},
    };
    kvf_buf_putc(line, '[');
    kvf_top_bar(line, parts, KVF_COUNT_OF(parts), b->total, width);
    kvf_buf_printf(
        line, "] %4.0f%%", b->total ? (double)(b->total - KVF_MIN(b->free, b->total)) * 100 / (double)b->total : 0);
    put_line(f, line);
}

static void put_pair(frame *f, const Kvferry__V1__PairStatus *p, kvf_buf *line) {
    char a[KVF_UNITS_TEXT], b[KVF_UNITS_TEXT];
    put_text(line, p->prefill_node, 8);
    kvf_buf_puts(line, f->style->utf8 ? " \u2192 " : "-> ");
    if (!f->style->utf8) kvf_buf_putc(line, ' ');
    put_text(line, p->decode_node, 8);
    put_text(line, p->transport, 6);
    kvf_buf_printf(line, " %10s pages %12s", kvf_units_count((double)p->pages_moved, a),
        kvf_units_bytes((double)p->bytes_moved, b));
    if (p->frames_rejected) kvf_buf_printf(line, "  %llu rejected", (unsigned long long)p->frames_rejected);
    if (p->refused.len) {
        kvf_buf_printf(line, "  %srefused: ", paint(f, "\033[31m"));
        put_text(line, p->refused, (uint32_t)KVF_MIN(p->refused.len, (size_t)200));
        kvf_buf_puts(line, paint(f, RESET));
    }
    put_line(f, line);
}

void kvf_top_render(const kvf_top *t, const Kvferry__V1__ClusterState *state, const char *address, const char *clock,
    const char *trouble, const kvf_top_style *style, kvf_buf *out) {
    frame f = {style, out, 0};
    kvf_buf line = {0};
    char a[KVF_UNITS_TEXT], b[KVF_UNITS_TEXT];
    kvf_buf_printf(&line, "%skvferry%s  %s  %s", paint(&f, "\033[1m"), paint(&f, RESET), address, clock);
    if (state)
        kvf_buf_printf(&line, "  queued %u  finished %s  failed %s", state->queued,
            kvf_units_count((double)state->requests_finished, a), kvf_units_count((double)state->requests_failed, b));
    put_line(&f, &line);
    if (trouble) {
        kvf_buf_printf(&line, "%s%s%s", paint(&f, "\033[31m"), trouble, paint(&f, RESET));
        put_line(&f, &line);
    }
    if (state) {
        put_rates(&f, t, &line);
        put_line(&f, &line);
        kvf_buf_printf(&line, "%sNODE     ROLE    STATE     RUN WAIT %sKV BLOCKS%s", paint(&f, "\033[2m"),
            style->columns < NARROW ? "" : " TOKENS/S  ", paint(&f, RESET));
        put_line(&f, &line);
        for (size_t i = 0; i < state->n_nodes; i++) put_node(&f, state->nodes[i], &line);
        kvf_buf_printf(&line, "%s%36s%s%s", paint(&f, "\033[2m"), "",
            style->utf8 ? "\u2588 held \u2593 filling \u2592 cached \u2591 booked"
                        : "# held + filling = cached : booked",
            paint(&f, RESET));
        put_line(&f, &line);
        if (state->n_pairs) put_line(&f, &line);
        for (size_t i = 0; i < state->n_pairs; i++) put_pair(&f, state->pairs[i], &line);
    }
    kvf_buf_fini(&line);
}
