/* Rows of the Azure format. */
#include "trace_int.h"

typedef struct {
    const char *from, *to;
} cell;

/* The next cell of a line; *at NULL: there is none. Trace files quote nothing. */
static cell next_cell(const char **at, const char *end) {
    const char *comma = memchr(*at, ',', (size_t)(end - *at));
    cell c = {*at, comma ? comma : end};
    *at = comma ? comma + 1 : NULL;
    while (c.from < c.to && (*c.from == ' ' || *c.from == '\t')) c.from++;
    while (c.to > c.from && (c.to[-1] == ' ' || c.to[-1] == '\t')) c.to--;
    return c;
}

static bool is(cell c, const char *name) {
    return (size_t)(c.to - c.from) == strlen(name) && memcmp(c.from, name, strlen(name)) == 0;
}

kvf_status trace_azure_header(trace_line *l, trace_columns *columns) {
    char shown[48];
    *columns = (trace_columns){-1, -1, -1, 0};
    const struct {
        const char *name;
        int *column;
    } wanted[] = {
        {"TIMESTAMP", &columns->time}, {"ContextTokens", &columns->input}, {"GeneratedTokens", &columns->output}};
    for (const char *at = l->at; at; columns->count++) {
        cell c = next_cell(&at, l->end);
        for (size_t i = 0; i < KVF_COUNT_OF(wanted); i++) {
            if (!is(c, wanted[i].name)) continue;
            if (*wanted[i].column >= 0) return trace_fail(l, wanted[i].name, "the column is named twice");
            *wanted[i].column = columns->count;
        }
    }
    for (size_t i = 0; i < KVF_COUNT_OF(wanted); i++)
        if (*wanted[i].column < 0)
            return trace_fail(l, wanted[i].name,
                "no such column in \"%s\"; expected \"TIMESTAMP,ContextTokens,GeneratedTokens\", or a JSON object on "
                "each line",
                trace_shown(l->at, l->end, shown));
    return KVF_OK;
}

static kvf_status parse_tokens(const trace_line *l, const char *field, cell c, uint32_t *out) {
    char shown[48];
    uint64_t value = 0;
    bool digits = c.from < c.to;
    for (const char *p = c.from; p < c.to && digits; p++) {
        digits = *p >= '0' && *p <= '9';
        if (digits && value <= KVF_LOAD_TOKENS_MAX) value = value * 10 + (uint64_t)(*p - '0');
    }
    if (!digits || value < 1 || value > KVF_LOAD_TOKENS_MAX)
        return trace_fail(l, field, "\"%s\" is not a number of tokens from 1 to %d", trace_shown(c.from, c.to, shown),
            KVF_LOAD_TOKENS_MAX);
    *out = (uint32_t)value;
    return KVF_OK;
}

/* `digits` digits, then `after` (0: nothing is asked). */
static bool part(const char **at, const char *end, int digits, char after, uint32_t *out) {
    *out = 0;
    for (int i = 0; i < digits; i++, ++*at) {
        if (*at == end || **at < '0' || **at > '9') return false;
        *out = *out * 10 + (uint32_t)(**at - '0');
    }
    if (after == 0) return true;
    if (*at == end || **at != after) return false;
    ++*at;
    return true;
}

/* Days since 1970, so that ns fit; only differences count. Years begin in March here: the leap day is the last. */
static uint64_t days_since_1970(uint32_t year, uint32_t month, uint32_t day) {
    uint64_t y = year - (month <= 2), in_year = (153ull * (month > 2 ? month - 3 : month + 9) + 2) / 5 + day - 1;
    return y * 365 + y / 4 - y / 100 + y / 400 + in_year - 719468;
}

static bool fraction(const char **at, const char *end, uint64_t *ns) {
    uint64_t unit = KVF_NS_PER_S / 10;
    if (*at == end || **at != '.') return true;
    const char *first = ++*at;
    for (; *at < end && **at >= '0' && **at <= '9'; ++*at, unit /= 10) *ns += unit * (uint64_t)(**at - '0');
    return *at > first;
}

/* "", "Z" or "+hh:mm": what differs by zone is not looked at, since only differences count. */
static bool zone(const char *at, const char *end) {
    uint32_t ignored;
    if (at == end || (*at == 'Z' && at + 1 == end)) return true;
    if (*at != '+' && *at != '-') return false;
    at++;
    return part(&at, end, 2, ':', &ignored) && part(&at, end, 2, 0, &ignored) && at == end;
}

static bool parse_time(cell c, uint64_t *ns) {
    static const uint32_t days[] = {31, 29, 31, 30, 31, 30, 31, 31, 30, 31, 30, 31};
    uint32_t year, month, day, hour, minute, second;
    const char *at = c.from, *end = c.to;
    if (!part(&at, end, 4, '-', &year) || !part(&at, end, 2, '-', &month) || !part(&at, end, 2, 0, &day)) return false;
    if (at == end || (*at != ' ' && *at != 'T')) return false;
    at++;
    if (!part(&at, end, 2, ':', &hour) || !part(&at, end, 2, ':', &minute) || !part(&at, end, 2, 0, &second))
        return false;
    if (year < 1970 || year > 2200 || month < 1 || month > 12 || day < 1 || day > days[month - 1]) return false;
    if (hour > 23 || minute > 59 || second > 60) return false;
    uint64_t seconds = ((days_since_1970(year, month, day) * 24 + hour) * 60 + minute) * 60 + second;
    *ns = seconds * KVF_NS_PER_S;
    return fraction(&at, end, ns) && zone(at, end);
}

kvf_status trace_azure_row(trace_line *l, const trace_columns *columns, kvf_load_row *row) {
    char shown[48];
    cell time = {0}, input = {0}, output = {0};
    int column = 0;
    for (const char *at = l->at; at; column++) {
        cell c = next_cell(&at, l->end);
        if (column == columns->time) time = c;
        if (column == columns->input) input = c;
        if (column == columns->output) output = c;
    }
    if (column != columns->count) return trace_fail(l, "row", "%d cells under %d columns", column, columns->count);
    if (!parse_time(time, &row->at_ns))
        return trace_fail(l, "TIMESTAMP", "\"%s\" is not a time like 2023-11-16 18:17:03.9799600",
            trace_shown(time.from, time.to, shown));
    kvf_status status = parse_tokens(l, "ContextTokens", input, &row->input);
    return status == KVF_OK ? parse_tokens(l, "GeneratedTokens", output, &row->output) : status;
}
