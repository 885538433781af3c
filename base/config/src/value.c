/* value.c - texts to values: numbers, sizes, durations, addresses; ranges; and what may have been meant. */
#include "config_int.h"
#include <errno.h>
#include <math.h>
#include <stdlib.h>

typedef struct {
    const char *name;
    uint64_t factor;
} unit;
static const unit size_units[] = {{"TiB", 1ull << 40}, {"GiB", 1ull << 30}, {"MiB", 1ull << 20}, {"KiB", 1ull << 10},
    {"TB", 1000000000000ull}, {"GB", 1000000000ull}, {"MB", 1000000ull}, {"kB", 1000ull}, {"B", 1}};
static const unit duration_units[] = {{"h", 3600 * KVF_NS_PER_S}, {"m", 60 * KVF_NS_PER_S}, {"s", KVF_NS_PER_S},
    {"ms", KVF_NS_PER_MS}, {"us", KVF_NS_PER_US}, {"ns", 1}};

static const char *digits(const char *text, uint64_t *out) { /* end of the digits; NULL: none, or too large */
    uint64_t v = 0;
    const char *p = text;
    for (; *p >= '0' && *p <= '9'; p++)
        if (__builtin_mul_overflow(v, 10u, &v) || __builtin_add_overflow(v, (uint64_t)(*p - '0'), &v)) return NULL;
    *out = v;
    return p == text ? NULL : p;
}

static bool with_unit(const char *text, const unit *units, size_t count, bool bare, uint64_t *out) {
    uint64_t v;
    const char *p = digits(text, &v);
    if (!p) return false;
    *out = v;
    if (!*p) return bare || v == 0;
    for (size_t i = 0; i < count; i++)
        if (strcmp(p, units[i].name) == 0) return !__builtin_mul_overflow(v, units[i].factor, out);
    return false;
}

bool kvf_config_address_valid(const char *text) {
    uint64_t port;
    if (strncmp(text, "unix:/", 6) == 0) return text[6] != 0 && strlen(text) < 108;
    const char *colon = strrchr(text, ':');
    if (!colon || colon == text || colon - text > 255) return false;
    if (text[0] == '[') {
        if (colon[-1] != ']' || colon - text < 4) return false;
        for (const char *p = text + 1; p < colon - 1; p++)
            if (!strchr("0123456789abcdefABCDEF:.%", *p) && !strchr(text, '%')) return false;
    } else {
        for (const char *p = text; p < colon; p++) /* a second colon is an address of IPv6 that lacks its brackets */
            if (*p == ':' || *p == '/' || *p == '[' || *p == ']' || (unsigned char)*p <= ' ') return false;
    }
    const char *end = digits(colon + 1, &port);
    return end && !*end && port <= 65535;
}

static bool has_word(const char *words, const char *word) {
    size_t n = strlen(word);
    for (const char *p = words; n && p && *p; p += strcspn(p, " "), p += *p == ' ')
        if (strncmp(p, word, n) == 0 && (p[n] == ' ' || p[n] == 0)) return true;
    return false;
}

const char *kvf_config_expected(const kvf_config_key *k, char *b, size_t n) {
    switch (k->type) {
    case KVF_CONFIG_STRING: snprintf(b, n, "a text"); break;
    case KVF_CONFIG_ADDRESS: snprintf(b, n, "an address like 127.0.0.1:7000, [::1]:7000 or unix:/path"); break;
    case KVF_CONFIG_ENUM: snprintf(b, n, "one of: %s", k->choices); break;
    case KVF_CONFIG_BOOL: snprintf(b, n, "true or false"); break;
    case KVF_CONFIG_U32:
    case KVF_CONFIG_U64: snprintf(b, n, "a whole number"); break;
    case KVF_CONFIG_SIZE: snprintf(b, n, "a size like 4096, 64KiB, 512MiB or 2GiB"); break;
    case KVF_CONFIG_DURATION: snprintf(b, n, "a duration like 250ms, 3s or 5m"); break;
    case KVF_CONFIG_DOUBLE: snprintf(b, n, "a number"); break;
    case KVF_CONFIG_U32S: snprintf(b, n, "a whole number, or a list of them"); break;
    case KVF_CONFIG_STRINGS: snprintf(b, n, k->choices ? "a list of: %s" : "a list of texts", k->choices); break;
    case KVF_CONFIG_MAPS: snprintf(b, n, "a list of maps"); break;
    }
    return b;
}

static void write_number(const kvf_config_key *k, uint64_t v, char *b, size_t n) {
    const unit *units = k->type == KVF_CONFIG_SIZE ? size_units : duration_units;
    size_t count = k->type == KVF_CONFIG_SIZE ? 4 : KVF_COUNT_OF(duration_units);
    for (size_t i = 0; v && (k->type == KVF_CONFIG_SIZE || k->type == KVF_CONFIG_DURATION) && i < count; i++)
        if (v % units[i].factor == 0) {
            snprintf(b, n, "%llu%s", (unsigned long long)(v / units[i].factor), units[i].name);
            return;
        }
    snprintf(b, n, "%llu", (unsigned long long)v);
}

static bool in_range(const kvf_config_key *k, uint64_t v, char *why, size_t n) {
    char low[40], high[40];
    uint64_t max = k->max ? k->max : k->type == KVF_CONFIG_U32 || k->type == KVF_CONFIG_U32S ? UINT32_MAX : UINT64_MAX;
    if (v >= k->min && v <= max) return true;
    write_number(k, k->min, low, sizeof low);
    write_number(k, max, high, sizeof high);
    snprintf(why, n, "out of range, expected %s to %s", low, high);
    return false;
}

static bool parse_choice(const kvf_config_key *k, const char *text, char *why, size_t n) {
    char near[64];
    if (has_word(k->choices, text)) return true;
    const char *meant = kvf_config_nearest(k->choices, text, near, sizeof near);
    snprintf(why, n, "'%.60s' is not known, expected one of: %s%s%s%s", text, k->choices,
        meant ? ", did you mean '" : "", meant ? meant : "", meant ? "'?" : "");
    return false;
}

static bool parse_double(const kvf_config_key *k, const char *text, double *out, char *why, size_t n) {
    char *end;
    errno = 0;
    double v = strtod(text, &end);
    if (end == text || *end || !isfinite(v) || strchr(text, 'x') || strchr(text, 'X')) return false;
    if (k->double_min != k->double_max && (v < k->double_min || v > k->double_max)) {
        snprintf(why, n, "out of range, expected %g to %g", k->double_min, k->double_max);
        return false;
    }
    *out = v;
    return true;
}

bool kvf_config_parse(const kvf_config_key *k, const char *text, uint64_t *number, double *real, char *why, size_t n) {
    char expected[600];
    const char *end;
    bool ok = false;
    why[0] = 0;
    switch (k->type) {
    case KVF_CONFIG_STRING: ok = true; break;
    case KVF_CONFIG_ADDRESS: ok = kvf_config_address_valid(text); break;
    case KVF_CONFIG_ENUM: ok = parse_choice(k, text, why, n); break;
    case KVF_CONFIG_STRINGS: ok = !k->choices || parse_choice(k, text, why, n); break;
    case KVF_CONFIG_BOOL:
        *number = strcmp(text, "true") == 0;
        ok = *number || strcmp(text, "false") == 0;
        break;
    case KVF_CONFIG_U32S: /* an item of it */
    case KVF_CONFIG_U32:
    case KVF_CONFIG_U64: ok = (end = digits(text, number)) && !*end && in_range(k, *number, why, n); break;
    case KVF_CONFIG_SIZE:
        ok = with_unit(text, size_units, KVF_COUNT_OF(size_units), true, number) && in_range(k, *number, why, n);
        break;
    case KVF_CONFIG_DURATION:
        ok = with_unit(text, duration_units, KVF_COUNT_OF(duration_units), false, number) &&
             in_range(k, *number, why, n);
        break;
    case KVF_CONFIG_DOUBLE: ok = parse_double(k, text, real, why, n); break;
    case KVF_CONFIG_MAPS: snprintf(why, n, "can only be set in a file"); break;
    }
    if (!ok && !why[0])
        snprintf(why, n, "'%.60s' is not valid, expected %s", text, kvf_config_expected(k, expected, sizeof expected));
    return ok;
}

bool kvf_config_count_fits(const kvf_config_key *k, size_t count, char *why, size_t n) {
    bool numbers = k->type == KVF_CONFIG_U32S; /* their min and max are of each */
    uint64_t min = numbers ? 1 : k->min, max = numbers ? 0 : k->max;
    if (count >= min && (max == 0 || count <= max)) return true;
    if (numbers)
        snprintf(why, n, "has no items, expected at least one");
    else
        snprintf(
            why, n, "has %zu items, expected %llu to %llu", count, (unsigned long long)min, (unsigned long long)max);
    return false;
}

/* Edits (insert, delete, replace, swap neighbours count 1) between two short words. */
unsigned kvf_config_distance(const char *a, const char *b) {
    enum { WORD_MAX = 63 };
    unsigned rows[3][WORD_MAX + 1];
    size_t la = strlen(a), lb = strlen(b);
    if (la > WORD_MAX || lb > WORD_MAX) return UINT32_MAX;
    for (size_t j = 0; j <= lb; j++) rows[0][j] = (unsigned)j;
    for (size_t i = 1; i <= la; i++) {
        unsigned *row = rows[i % 3], *above = rows[(i + 2) % 3], *above2 = rows[(i + 1) % 3];
        row[0] = (unsigned)i;
        for (size_t j = 1; j <= lb; j++) {
            unsigned best = above[j - 1] + (a[i - 1] != b[j - 1]);
            best = KVF_MIN(best, above[j] + 1);
            best = KVF_MIN(best, row[j - 1] + 1);
            if (i > 1 && j > 1 && a[i - 1] == b[j - 2] && a[i - 2] == b[j - 1]) best = KVF_MIN(best, above2[j - 2] + 1);
            row[j] = best;
        }
    }
    return rows[la % 3][lb];
}

const char *kvf_config_nearest(const char *words, const char *text, char *b, size_t size) {
    unsigned best = 1 + (unsigned)KVF_MAX(strlen(text) / 4, (size_t)2);
    bool found = false;
    char word[64];
    for (const char *p = words; p && *p; p += *p == ' ') {
        size_t n = strcspn(p, " ");
        if (n < sizeof word) {
            memcpy(word, p, n);
            word[n] = 0;
            unsigned d = kvf_config_distance(word, text);
            if (d < best) {
                best = d;
                found = true;
                snprintf(b, size, "%s", word);
            }
        }
        p += n;
    }
    return found ? b : NULL;
}
