/* The page of `bench serve`: tables and plots in SVG, styles inside, nothing fetched. */
#include "bench_report.h"
#include "kvf/rpc.h"
#include <math.h>
#include <stdio.h>

#define NS_PER_MS ((double)KVF_NS_PER_MS)
enum { WIDTH = 720, HEIGHT = 260, LEFT = 70, RIGHT = 20, TOP = 16, BOTTOM = 40, TICKS = 5 };

static void escape(kvf_buf *out, const char *text) {
    for (; *text; text++) {
        switch (*text) {
        case '<': kvf_buf_puts(out, "&lt;"); break;
        case '>': kvf_buf_puts(out, "&gt;"); break;
        case '&': kvf_buf_puts(out, "&amp;"); break;
        case '"': kvf_buf_puts(out, "&quot;"); break;
        default: kvf_buf_putc(out, *text);
        }
    }
}

/* 1, 2 or 5 times a power of ten, at least `value`. */
static double round_up(double value) {
    if (!(value > 0)) return 1;
    double power = pow(10, floor(log10(value))), digit = value / power;
    return power * (digit <= 1 ? 1 : digit <= 2 ? 2 : digit <= 5 ? 5 : 10);
}

static double x_of(double part) { return LEFT + part * (WIDTH - LEFT - RIGHT); }
static double y_of(double part) { return HEIGHT - BOTTOM - part * (HEIGHT - TOP - BOTTOM); }

static void begin_plot(kvf_buf *out, const char *title, const char *unit, double top) {
    kvf_buf_printf(
        out, "<h2>%s</h2>\n<svg viewBox=\"0 0 %d %d\" role=\"img\" aria-label=\"%s\">\n", title, WIDTH, HEIGHT, title);
    for (int i = 0; i <= TICKS; i++) {
        double part = (double)i / TICKS;
        kvf_buf_printf(out, "<line class=\"grid\" x1=\"%.1f\" x2=\"%.1f\" y1=\"%.1f\" y2=\"%.1f\"/>", x_of(0), x_of(1),
            y_of(part), y_of(part));
        kvf_buf_printf(
            out, "<text class=\"right\" x=\"%d\" y=\"%.1f\">%.4g</text>\n", LEFT - 6, y_of(part) + 4, top * part);
    }
    kvf_buf_printf(out, "<text x=\"%d\" y=\"12\">%s</text>\n", LEFT, unit);
}

static void x_label(kvf_buf *out, double part, const char *text) {
    kvf_buf_printf(
        out, "<text class=\"middle\" x=\"%.1f\" y=\"%d\">%s</text>\n", x_of(part), HEIGHT - BOTTOM + 18, text);
}

static void end_plot(kvf_buf *out, const char *x_title) {
    kvf_buf_printf(
        out, "<text class=\"middle\" x=\"%.1f\" y=\"%d\">%s</text>\n</svg>\n", x_of(0.5), HEIGHT - 6, x_title);
}

/* ---- percentiles: the axis is the number of nines, so that the tail has room ---- */

static void plot_percentiles(kvf_buf *out, const char *title, const kvf_hist *h, uint64_t limit_ns) {
    static const double marks[] = {0, 50, 90, 99, 99.9};
    enum { STEPS = 120 };
    const double nines = 3;
    double top = round_up(fmax(kvf_hist_percentile(h, 99.9), (double)limit_ns) / NS_PER_MS);
    begin_plot(out, title, "ms", top);
    for (size_t i = 0; i < KVF_COUNT_OF(marks); i++) {
        char text[16];
        snprintf(text, sizeof text, "%g %%", marks[i]);
        x_label(out, -log10(1 - marks[i] / 100) / nines, text);
    }
    if (limit_ns)
        kvf_buf_printf(out, "<line class=\"limit\" x1=\"%.1f\" x2=\"%.1f\" y1=\"%.1f\" y2=\"%.1f\"/>\n", x_of(0),
            x_of(1), y_of((double)limit_ns / NS_PER_MS / top), y_of((double)limit_ns / NS_PER_MS / top));
    kvf_buf_puts(out, "<polyline points=\"");
    for (int i = 0; h->count && i <= STEPS; i++) {
        double part = (double)i / STEPS, percent = 100 * (1 - pow(10, -nines * part));
        kvf_buf_printf(out, "%.1f,%.1f ", x_of(part), y_of(kvf_hist_percentile(h, percent) / NS_PER_MS / top));
    }
    kvf_buf_puts(out, "\"/>\n");
    end_plot(out, limit_ns ? "percentile (dashed: the limit)" : "percentile");
}

/* ---- over time ---- */

static void plot_series(kvf_buf *out, const char *title, const char *unit, const kvf_series *s) {
    double slot_s = (double)s->slot_ns / (double)KVF_NS_PER_S, top = 0;
    for (uint32_t i = 0; i < s->used; i++) top = fmax(top, s->slots[i] / slot_s);
    top = round_up(top);
    begin_plot(out, title, unit, top);
    for (int i = 0; i <= TICKS; i++) {
        char text[24];
        snprintf(text, sizeof text, "%.4g", slot_s * s->used * i / TICKS);
        x_label(out, (double)i / TICKS, text);
    }
    kvf_buf_puts(out, "<polyline points=\"");
    for (uint32_t i = 0; i < s->used; i++)
        kvf_buf_printf(out, "%.1f,%.1f %.1f,%.1f ", x_of((double)i / s->used), y_of(s->slots[i] / slot_s / top),
            x_of((double)(i + 1) / s->used), y_of(s->slots[i] / slot_s / top));
    kvf_buf_puts(out, "\"/>\n");
    end_plot(out, "seconds");
}

/* ---- search ---- */

static void plot_trials(kvf_buf *out, const kvf_bench_report *r) {
    double most = 0;
    for (uint32_t i = 0; i < r->trials_count; i++) most = fmax(most, r->trials[i].rate);
    most = round_up(most);
    begin_plot(out, "Inside the limits, by rate", "%", 100);
    for (int i = 0; i <= TICKS; i++) {
        char text[24];
        snprintf(text, sizeof text, "%.4g", most * i / TICKS);
        x_label(out, (double)i / TICKS, text);
    }
    kvf_buf_printf(out, "<line class=\"limit\" x1=\"%.1f\" x2=\"%.1f\" y1=\"%.1f\" y2=\"%.1f\"/>\n", x_of(0), x_of(1),
        y_of(r->share), y_of(r->share));
    for (uint32_t i = 0; i < r->trials_count; i++) {
        const kvf_bench_trial *t = &r->trials[i];
        kvf_buf_printf(out, "<circle class=\"%s\" cx=\"%.1f\" cy=\"%.1f\" r=\"5\"/>\n", t->passed ? "pass" : "fail",
            x_of(t->rate / most), y_of(t->counted ? (double)t->inside / (double)t->counted : 0));
    }
    end_plot(out, "requests per second (filled: holds; hollow: does not, at times cut short)");
}

/* ---- tables ---- */

static void row_text(kvf_buf *out, const char *name, const char *value) {
    kvf_buf_printf(out, "<tr><th>%s</th><td>", name);
    escape(out, value);
    kvf_buf_puts(out, "</td></tr>\n");
}

static void row_number(kvf_buf *out, const char *name, double value) {
    kvf_buf_printf(out, "<tr><th>%s</th><td>%.6g</td></tr>\n", name, value);
}

static void settings(kvf_buf *out, const kvf_bench_report *r) {
    const kvf_load_tally *t = r->tally;
    double d = t->duration_s > 0 ? t->duration_s : 1;
    kvf_buf_puts(out, "<table>\n");
    row_text(out, "router", r->router);
    row_text(out, "model", r->model);
    row_text(out, "workload", r->workload);
    row_text(out, "disaggregate", r->disaggregate);
    if (r->rate > 0) row_number(out, "requests per second, planned", r->rate);
    row_number(out, "seed", (double)r->plan->o.seed);
    row_number(out, "length scale", r->plan->scale);
    row_number(out, "cut to the context", r->plan->cut);
    row_number(out, "warm-up requests", r->warmup);
    row_number(out, "completed", (double)t->completed);
    row_number(out, "failed", (double)t->failed);
    row_number(out, "seconds", t->duration_s);
    row_number(out, "requests per second", (double)t->completed / d);
    row_number(out, "output tokens per second", (double)t->output_tokens / d);
    row_number(out, "requests per second inside the limits", (double)t->inside / d);
    if (r->searched) row_number(out, "goodput, requests per second", r->goodput);
    if (r->searched) row_number(out, "tolerance", r->tolerance);
    for (int code = 0; code < KVF_BENCH_CODES; code++)
        if (r->errors[code])
            row_number(out, code ? kvf_rpc_code_name((kvf_rpc_code)code) : "no token", (double)r->errors[code]);
    kvf_buf_puts(out, "</table>\n");
}

static void percentiles(kvf_buf *out, const kvf_load_tally *t) {
    static const double marks[] = {50, 90, 95, 99, 99.9};
    const struct {
        const char *name;
        const kvf_hist *h;
    } rows[] = {{"TTFT", &t->ttft}, {"TPOT", &t->tpot}, {"ITL", &t->itl}, {"E2E", &t->e2e}};
    kvf_buf_puts(out, "<table>\n<tr><th>ms</th><th>mean</th>");
    for (size_t k = 0; k < KVF_COUNT_OF(marks); k++) kvf_buf_printf(out, "<th>p%g</th>", marks[k]);
    kvf_buf_puts(out, "<th>max</th></tr>\n");
    for (size_t i = 0; i < KVF_COUNT_OF(rows); i++) {
        kvf_buf_printf(out, "<tr><th>%s</th><td>%.2f</td>", rows[i].name, kvf_hist_mean(rows[i].h) / NS_PER_MS);
        for (size_t k = 0; k < KVF_COUNT_OF(marks); k++)
            kvf_buf_printf(out, "<td>%.2f</td>", kvf_hist_percentile(rows[i].h, marks[k]) / NS_PER_MS);
        kvf_buf_printf(out, "<td>%.2f</td></tr>\n", (double)rows[i].h->max / NS_PER_MS);
    }
    kvf_buf_puts(out, "</table>\n");
}

void kvf_bench_report_html(const kvf_bench_report *r, kvf_buf *out) {
    kvf_buf_puts(out, "<!DOCTYPE html>\n<html lang=\"en\"><head><meta charset=\"utf-8\"/><title>kvferry bench serve ");
    escape(out, r->date);
    kvf_buf_puts(out, "</title>\n<style>\n"
                      "body{font:15px/1.4 sans-serif;max-width:760px;margin:2em auto;padding:0 1em;color:#222}\n"
                      "table{border-collapse:collapse;margin:1em 0}th,td{padding:.2em .8em;text-align:right;"
                      "border-bottom:1px solid #ddd}th:first-child{text-align:left}\n"
                      "svg{width:100%;height:auto}svg text{font-size:12px;fill:#555}.right{text-anchor:end}"
                      ".middle{text-anchor:middle}\n"
                      ".grid{stroke:#e4e4e4}.limit{stroke:#c33;stroke-dasharray:6 4}\n"
                      "polyline{fill:none;stroke:#1668b0;stroke-width:2}.pass{fill:#1668b0}"
                      ".fail{fill:none;stroke:#c33;stroke-width:2}\n"
                      "</style></head><body>\n<h1>kvferry bench serve</h1>\n<p>");
    escape(out, r->date);
    kvf_buf_puts(out, ". Latencies count from the time at which each request was due.</p>\n");
    settings(out, r);
    percentiles(out, r->tally);
    if (r->searched) plot_trials(out, r);
    plot_percentiles(out, "Time to first token", &r->tally->ttft, r->limits.ttft_ns);
    plot_percentiles(out, "Time per output token", &r->tally->tpot, r->limits.tpot_ns);
    plot_percentiles(out, "Gaps between tokens", &r->tally->itl, 0);
    plot_series(out, "Output over time", "tokens per second", &r->tally->tokens);
    plot_series(out, "Arrivals over time", "requests per second", &r->tally->arrivals);
    kvf_buf_puts(out, "</body></html>\n");
}
