/* Rows of the Mooncake format: one flat JSON object, read by hand so that an error can name the member and nothing is
 * copied. Members that are not ours may hold any JSON, to a depth of DEPTH_MAX. */
#include "trace_int.h"
#include <stdlib.h>

enum { DEPTH_MAX = 16 };

static void skip_space(trace_line *l) {
    while (l->at < l->end && (*l->at == ' ' || *l->at == '\t' || *l->at == '\r')) l->at++;
}
static bool take(trace_line *l, char c) {
    skip_space(l);
    if (l->at == l->end || *l->at != c) return false;
    l->at++;
    return true;
}

/* Past a string's end; escapes are stepped over, not looked into. */
static bool skip_string(trace_line *l, const char **from, const char **to) {
    if (!take(l, '"')) return false;
    for (*from = l->at; l->at < l->end; l->at++) {
        if (*l->at == '"') {
            *to = l->at++;
            return true;
        }
        if (*l->at == '\\' && ++l->at == l->end) return false;
    }
    return false;
}

static bool skip_word(trace_line *l) {
    const char *from = l->at;
    while (l->at < l->end && ((*l->at >= 'a' && *l->at <= 'z') || (*l->at >= '0' && *l->at <= '9') || *l->at == '+' ||
                                 *l->at == '-' || *l->at == '.' || *l->at == 'E'))
        l->at++;
    return l->at > from;
}

/* Any value. Brackets are counted and paired, what stands between them is only stepped over. */
static bool skip_value(trace_line *l) {
    char open[DEPTH_MAX];
    const char *from, *to;
    int depth = 0;
    do {
        skip_space(l);
        if (l->at == l->end) return false;
        char c = *l->at;
        if (c == '"') {
            if (!skip_string(l, &from, &to)) return false;
        } else if (c == '{' || c == '[') {
            if (depth == DEPTH_MAX) return false;
            open[depth++] = c;
            l->at++;
        } else if (c == '}' || c == ']') {
            if (depth == 0 || open[depth - 1] != (c == '}' ? '{' : '[')) return false;
            depth--;
            l->at++;
        } else if (depth && (c == ',' || c == ':')) {
            l->at++;
        } else if (!skip_word(l)) {
            return false;
        }
    } while (depth);
    return true;
}

/* The text of the number that stands here, for errors. */
static const char *here(const trace_line *l, char out[48]) {
    const char *to = l->at;
    while (to < l->end && *to != ',' && *to != '}' && *to != ']') to++;
    return trace_shown(l->at, to, out);
}

static bool whole(trace_line *l, uint64_t *out) {
    const char *from = l->at;
    uint64_t value = 0;
    for (; l->at < l->end && *l->at >= '0' && *l->at <= '9'; l->at++) {
        uint64_t digit = (uint64_t)(*l->at - '0');
        if (value > (UINT64_MAX - digit) / 10) return false;
        value = value * 10 + digit;
    }
    if (l->at == from) return false;
    *out = value;
    return true;
}

static bool number_ends(const trace_line *l) {
    return l->at == l->end || *l->at == ',' || *l->at == '}' || *l->at == ']' || *l->at == ' ' || *l->at == '\t';
}

/* Milliseconds, with a fraction or none. */
static kvf_status take_time(trace_line *l, uint64_t *ns) {
    char shown[48];
    trace_line from = *l;
    uint64_t ms = 0, part = 0;
    const uint64_t ms_max = 200ull * 365 * 24 * 3600 * 1000;
    bool ok = whole(l, &ms) && ms <= ms_max;
    if (ok && l->at < l->end && *l->at == '.') {
        const char *first = ++l->at;
        uint64_t unit = KVF_NS_PER_MS / 10;
        for (; l->at < l->end && *l->at >= '0' && *l->at <= '9'; l->at++, unit /= 10)
            part += unit * (uint64_t)(*l->at - '0');
        ok = l->at > first;
    }
    if (!ok || !number_ends(l))
        return trace_fail(l, "timestamp", "\"%s\" is not a time in milliseconds", here(&from, shown));
    *ns = ms * KVF_NS_PER_MS + part;
    return KVF_OK;
}

static kvf_status take_tokens(trace_line *l, const char *field, uint32_t *out) {
    char shown[48];
    trace_line from = *l;
    uint64_t value = 0;
    if (!whole(l, &value) || !number_ends(l) || value < 1 || value > KVF_LOAD_TOKENS_MAX)
        return trace_fail(
            l, field, "\"%s\" is not a number of tokens from 1 to %d", here(&from, shown), KVF_LOAD_TOKENS_MAX);
    *out = (uint32_t)value;
    return KVF_OK;
}

static kvf_status add_hash(trace_hashes *h, uint64_t id) {
    if (h->count == h->room) {
        size_t room = h->room ? h->room * 2 : 1024;
        uint64_t *larger = realloc(h->at, room * sizeof *larger);
        if (!larger) return KVF_ERR_NO_MEMORY;
        h->at = larger;
        h->room = room;
    }
    h->at[h->count++] = id;
    return KVF_OK;
}

static kvf_status take_hashes(trace_line *l, trace_hashes *h) {
    char shown[48];
    if (!take(l, '[')) return trace_fail(l, "hash_ids", "\"%s\" is not a list", here(l, shown));
    if (take(l, ']')) return KVF_OK;
    do {
        uint64_t id;
        skip_space(l);
        trace_line from = *l;
        if (!whole(l, &id) || !number_ends(l))
            return trace_fail(l, "hash_ids", "\"%s\" is not an id, a whole number", here(&from, shown));
        if (add_hash(h, id) != KVF_OK) return KVF_ERR_NO_MEMORY;
    } while (take(l, ','));
    return take(l, ']') ? KVF_OK : trace_fail(l, "hash_ids", "the list has no end");
}

enum { TIME, INPUT, OUTPUT, HASHES, NAMES };
static const char *const names[NAMES] = {"timestamp", "input_length", "output_length", "hash_ids"};

static kvf_status take_member(trace_line *l, kvf_load_row *row, trace_hashes *hashes, bool seen[NAMES]) {
    const char *from, *to;
    char shown[48];
    if (!skip_string(l, &from, &to) || !take(l, ':')) return trace_fail(l, "row", "not a member \"name\": value");
    skip_space(l);
    int which = 0;
    while (which < NAMES &&
           ((size_t)(to - from) != strlen(names[which]) || memcmp(from, names[which], (size_t)(to - from)) != 0))
        which++;
    if (which == NAMES)
        return skip_value(l) ? KVF_OK : trace_fail(l, trace_shown(from, to, shown), "its value is not JSON");
    if (seen[which]) return trace_fail(l, names[which], "twice in one row");
    seen[which] = true;
    switch (which) {
    case TIME: return take_time(l, &row->at_ns);
    case INPUT: return take_tokens(l, names[which], &row->input);
    case OUTPUT: return take_tokens(l, names[which], &row->output);
    default: return take_hashes(l, hashes);
    }
}

kvf_status trace_mooncake_row(trace_line *l, kvf_load_row *row, trace_hashes *hashes) {
    bool seen[NAMES] = {false};
    size_t before = hashes->count;
    if (!take(l, '{')) return trace_fail(l, "row", "not a JSON object");
    if (!take(l, '}')) {
        do {
            kvf_status status = take_member(l, row, hashes, seen);
            if (status != KVF_OK) return status;
        } while (take(l, ','));
        if (!take(l, '}')) return trace_fail(l, "row", "the object has no end");
    }
    skip_space(l);
    if (l->at < l->end) return trace_fail(l, "row", "something follows the object");
    for (int i = 0; i < NAMES; i++)
        if (!seen[i]) return trace_fail(l, names[i], "missing");
    size_t ids = hashes->count - before, needed = kvf_div_up(row->input, KVF_LOAD_HASH_TOKENS);
    if (ids != needed)
        return trace_fail(l, "hash_ids", "%zu ids for %u prompt tokens; one for each %d or part of them makes %zu", ids,
            row->input, KVF_LOAD_HASH_TOKENS, needed);
    return KVF_OK;
}
