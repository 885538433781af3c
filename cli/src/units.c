#include "units.h"
#include <math.h>
#include <stdio.h>
#include <stdlib.h>

/* A number and what follows it; false: no number, negative or not finite. */
static bool split(const char *text, double *value, const char **unit) {
    char *end;
    if (!((*text >= '0' && *text <= '9') || *text == '.')) return false;
    if (text[0] == '0' && (text[1] == 'x' || text[1] == 'X')) return false; /* strtod reads more than people write */
    *value = strtod(text, &end);
    while (*end == ' ') end++;
    *unit = end;
    return end != text && isfinite(*value);
}

static int prefix_power(char c) {
    switch (c) {
    case 'k':
    case 'K': return 1;
    case 'M': return 2;
    case 'G': return 3;
    case 'T': return 4;
    default: return 0;
    }
}

/* Factor of a unit of bytes: "", "B", "KiB", "Ki", "K", "KB" and so on; 0: none of them. */
static double byte_factor(const char *unit) {
    if (!*unit || !strcmp(unit, "B")) return 1;
    int power = prefix_power(*unit++);
    if (!power) return 0;
    if (!*unit || !strcmp(unit, "i") || !strcmp(unit, "iB")) return pow(1024, power);
    return !strcmp(unit, "B") ? pow(1000, power) : 0;
}

kvf_status kvf_units_parse_size(const char *from, const char *text, uint64_t *bytes, kvf_error *err) {
    double value = 0;
    const char *unit = "";
    double factor = split(text, &value, &unit) ? byte_factor(unit) : 0;
    if (factor == 0 || value * factor >= 9.2e18)
        return kvf_fail(err, KVF_ERR_INVALID, "%s: \"%s\" is not a size: a number with KiB, MiB or GiB", from, text);
    *bytes = (uint64_t)(value * factor);
    return KVF_OK;
}

kvf_status kvf_units_parse_duration(const char *from, const char *text, uint64_t *ns, kvf_error *err) {
    static const struct {
        const char *name;
        double ns;
    } units[] = {{"ns", 1}, {"us", 1e3}, {"ms", 1e6}, {"s", 1e9}, {"m", 60e9}, {"min", 60e9}, {"h", 3600e9}};
    double value = 0;
    const char *unit = "";
    if (split(text, &value, &unit)) {
        for (size_t i = 0; i < KVF_COUNT_OF(units); i++) {
            if (strcmp(unit, units[i].name) != 0 || value * units[i].ns >= 9.2e18) continue;
            *ns = (uint64_t)(value * units[i].ns);
            return KVF_OK;
        }
    }
    return kvf_fail(err, KVF_ERR_INVALID, "%s: \"%s\" is not a duration: a number with ms, s, m or h", from, text);
}

static double rate_factor(const char *unit) {
    char word[16];
    size_t len = strlen(unit);
    if (len >= sizeof word) return 0;
    memcpy(word, unit, len + 1);
    if (len > 2 && !strcmp(word + len - 2, "/s"))
        word[len - 2] = 0;
    else if (len > 2 && !strcmp(word + len - 2, "ps"))
        word[len - 2] = 0;
    else
        return 0;
    int power = prefix_power(*word);
    const char *base = power ? word + 1 : word;
    if (!strcmp(base, "b") || !strcmp(base, "bit")) return pow(1000, power) / 8;
    return strchr(word, 'B') ? byte_factor(word) : 0;
}

kvf_status kvf_units_parse_rate(const char *from, const char *text, double *bytes_per_s, kvf_error *err) {
    double value = 0;
    const char *unit = "";
    double factor = split(text, &value, &unit) ? rate_factor(unit) : 0;
    if (factor == 0 || value <= 0)
        return kvf_fail(err, KVF_ERR_INVALID, "%s: \"%s\" is not a rate: like 100Gbit/s or 12GB/s", from, text);
    *bytes_per_s = value * factor;
    return KVF_OK;
}

/* Three digits are what a person takes in: 4.00, 40.0, 400; whole where it is whole. */
static void three_digits(double v, const char *unit, char *out) {
    int decimals = v == floor(v) ? 0 : v < 9.995 ? 2 : v < 99.95 ? 1 : 0;
    snprintf(out, KVF_UNITS_TEXT, "%.*f %s", decimals, v, unit);
}

const char *kvf_units_bytes(double bytes, char *out) {
    static const char *const names[] = {"B", "KiB", "MiB", "GiB", "TiB", "PiB"};
    size_t i = 0;
    for (; bytes >= 1024 && i + 1 < KVF_COUNT_OF(names); i++) bytes /= 1024;
    three_digits(bytes, names[i], out);
    return out;
}

const char *kvf_units_rate(double bytes_per_s, char *out) {
    static const char *const names[] = {"B/s", "kB/s", "MB/s", "GB/s", "TB/s"};
    size_t i = 0;
    for (; bytes_per_s >= 1000 && i + 1 < KVF_COUNT_OF(names); i++) bytes_per_s /= 1000;
    three_digits(bytes_per_s, names[i], out);
    return out;
}

const char *kvf_units_seconds(double s, char *out) {
    if (!isfinite(s))
        snprintf(out, KVF_UNITS_TEXT, "-");
    else if (s < 1e-3)
        three_digits(s * 1e6, "us", out);
    else if (s < 1)
        three_digits(s * 1e3, "ms", out);
    else
        three_digits(s, "s", out);
    return out;
}

const char *kvf_units_count(double count, char *out) {
    if (count >= 1e9) {
        three_digits(count / 1e9, "G", out);
    } else if (count >= 1e7) {
        three_digits(count / 1e6, "M", out);
    } else if (count >= 10000) {
        uint64_t n = (uint64_t)count;
        if (n >= 1000000)
            snprintf(out, KVF_UNITS_TEXT, "%u,%03u,%03u", (unsigned)(n / 1000000), (unsigned)(n / 1000 % 1000),
                (unsigned)(n % 1000));
        else
            snprintf(out, KVF_UNITS_TEXT, "%u,%03u", (unsigned)(n / 1000), (unsigned)(n % 1000));
    } else {
        snprintf(out, KVF_UNITS_TEXT, "%.*f", count == floor(count) || count >= 100 ? 0 : 1, count);
    }
    return out;
}
