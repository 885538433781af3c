/* strings.c - operations on text that filters and methods share. Each carries the mark of every byte with it; a byte
 * that an operation makes from another (upper case) has the other's mark. */
#include "template_int.h"
#include <stdio.h>
#include <utf8proc.h>

static uint32_t map_case(uint32_t cp, bool upper, bool title) {
    if (cp < 0x80) {
        if (upper) return cp >= 'a' && cp <= 'z' ? cp - 32 : cp;
        return cp >= 'A' && cp <= 'Z' ? cp + 32 : cp;
    }
    utf8proc_int32_t c = (utf8proc_int32_t)cp;
    return (uint32_t)(upper ? (title ? utf8proc_totitle(c) : utf8proc_toupper(c)) : utf8proc_tolower(c));
}

static bool is_cased(uint32_t cp) {
    utf8proc_category_t k = utf8proc_category((utf8proc_int32_t)cp);
    return k == UTF8PROC_CATEGORY_LU || k == UTF8PROC_CATEGORY_LL || k == UTF8PROC_CATEGORY_LT;
}

/* Does a word of the title filter start behind this character? */
static bool breaks_word(uint32_t cp) { return kvf_tm_is_space(cp) || (cp < 0x80 && cp && strchr("-({[<", (char)cp)); }

tm_str *kvf_tm_str_case(tm_run *r, const tm_str *s, tm_case how) {
    tm_buf b = {0};
    bool starts = true;
    if (!kvf_tm_charge(r, s->len / 32)) return NULL;
    for (size_t at = 0, n; at < s->len; at += n) {
        uint32_t cp = 0;
        char text[4];
        n = kvf_tm_utf8_decode(s->data + at, s->len - at, &cp);
        KVF_ASSERT(n);
        bool first = starts && how >= TM_CASE_TITLE;
        bool upper = how == TM_CASE_UPPER || first;
        size_t len;
        if (cp == 0xdf && upper) { /* the one common letter whose upper case is two */
            len = 2;
            memcpy(text, first ? "Ss" : "SS", 2);
        } else {
            len = kvf_tm_utf8_encode(map_case(cp, upper, first), text);
        }
        if (!kvf_tm_buf_add(r, &b, text, NULL, tm_str_trust(s, at), len)) return NULL;
        starts = how == TM_CASE_TITLE ? !is_cased(cp) : how == TM_CASE_WORDS ? breaks_word(cp) : false;
    }
    return kvf_tm_buf_finish(r, &b);
}

static bool strip_this(const tm_str *chars, const char *at, size_t n, uint32_t cp) {
    if (!chars) return kvf_tm_is_space(cp);
    for (size_t i = 0; i + n <= chars->len; i++)
        if (memcmp(chars->data + i, at, n) == 0) return true; /* UTF-8: a whole character matches only at a character */
    return false;
}

tm_str *kvf_tm_str_strip(tm_run *r, const tm_str *s, const tm_str *chars, bool left, bool right) {
    size_t from = 0, to = s->len;
    uint32_t cp = 0;
    while (left && from < to) {
        size_t n = kvf_tm_utf8_decode(s->data + from, to - from, &cp);
        if (!strip_this(chars, s->data + from, n, cp)) break;
        from += n;
    }
    while (right && to > from) {
        size_t start = to - 1;
        while (start > from && ((uint8_t)s->data[start] & 0xc0) == 0x80) start--;
        size_t n = kvf_tm_utf8_decode(s->data + start, to - start, &cp);
        if (!strip_this(chars, s->data + start, n, cp)) break;
        to = start;
    }
    if (!kvf_tm_charge(r, (s->len - (to - from)) / 64 * (chars ? chars->len / 8 + 1 : 1))) return NULL;
    return kvf_tm_str_slice(r, s, from, to - from);
}

bool kvf_tm_str_find(tm_run *r, const tm_str *s, const tm_str *what, size_t from, size_t *at) {
    *at = SIZE_MAX;
    if (from > s->len) return true;
    if (!kvf_tm_charge(r, (s->len - from) / 256)) return false;
    if (what->len == 0) {
        *at = from;
        return true;
    }
    const char *p = memmem(s->data + from, s->len - from, what->data, what->len);
    if (p) *at = (size_t)(p - s->data);
    return true;
}

/* An empty `old` stands before every character and at the end. */
static bool replace_empty(tm_run *r, tm_buf *b, const tm_str *s, const tm_str *with, int64_t count_max) {
    size_t at = 0;
    for (; count_max != 0; count_max--) {
        size_t n = at < s->len ? 1 : 0;
        while (n && at + n < s->len && ((uint8_t)s->data[at + n] & 0xc0) == 0x80) n++;
        if (!kvf_tm_charge(r, 1) || !kvf_tm_buf_str(r, b, with) ||
            !kvf_tm_buf_add(r, b, s->data + at, s->mask ? s->mask + at : NULL, s->uniform, n))
            return false;
        at += n;
        if (n == 0) return true;
    }
    return kvf_tm_buf_add(r, b, s->data + at, s->mask ? s->mask + at : NULL, s->uniform, s->len - at);
}

/* count_max below 0: all. */
tm_str *kvf_tm_str_replace(tm_run *r, tm_str *s, const tm_str *old, const tm_str *with, int64_t count_max) {
    tm_buf b = {0};
    size_t from = 0, at = 0;
    if (old->len == 0) return replace_empty(r, &b, s, with, count_max) ? kvf_tm_buf_finish(r, &b) : NULL;
    if (!kvf_tm_charge(r, s->len / 256)) return NULL;
    for (; count_max != 0; count_max--) {
        const char *p = memmem(s->data + from, s->len - from, old->data, old->len);
        if (!p) break;
        at = (size_t)(p - s->data);
        if (!kvf_tm_charge(r, 1) ||
            !kvf_tm_buf_add(r, &b, s->data + from, s->mask ? s->mask + from : NULL, s->uniform, at - from) ||
            !kvf_tm_buf_str(r, &b, with))
            return NULL;
        from = at + old->len;
    }
    if (from == 0) return s;
    if (!kvf_tm_buf_add(r, &b, s->data + from, s->mask ? s->mask + from : NULL, s->uniform, s->len - from)) return NULL;
    return kvf_tm_buf_finish(r, &b);
}

static bool add_slice(tm_run *r, const tm_str *s, size_t from, size_t to, tm_list *out) {
    tm_str *part = kvf_tm_str_slice(r, s, from, to - from);
    tm_value v = tm_string(part);
    return part && kvf_tm_charge(r, 1) && kvf_tm_list_add(r, out, &v);
}

bool kvf_tm_str_lines(tm_run *r, const tm_str *s, bool keep_ends, tm_list *out) {
    size_t from = 0;
    for (size_t at = 0, n; at < s->len; at += n) {
        uint32_t cp = 0;
        n = kvf_tm_utf8_decode(s->data + at, s->len - at, &cp);
        bool ends = (cp >= 10 && cp <= 13) || (cp >= 0x1c && cp <= 0x1e) || cp == 0x85 || cp == 0x2028 || cp == 0x2029;
        if (!ends) continue;
        if (cp == '\r' && at + 1 < s->len && s->data[at + 1] == '\n') n = 2;
        if (!add_slice(r, s, from, keep_ends ? at + n : at, out)) return false;
        from = at + n;
    }
    return (from == s->len || add_slice(r, s, from, s->len, out)) && kvf_tm_charge(r, s->len / 64);
}

/* convert: other values are printed (the join filter); otherwise only text is taken (the join method). */
bool kvf_tm_str_join(tm_run *r, const tm_str *glue, const tm_list *items, bool convert, tm_str **out) {
    tm_buf b = {0};
    for (uint32_t i = 0; i < items->count; i++) {
        const tm_value *v = &items->items[i];
        if (!convert && v->kind != TM_STRING)
            return kvf_tm_fail(r, KVF_ERR_FORMAT, "join() needs str items, not %s", kvf_tm_type_name(v));
        if (!kvf_tm_charge(r, 1) || (i && !kvf_tm_buf_str(r, &b, glue)) || !kvf_tm_print(r, &b, v)) return false;
    }
    *out = kvf_tm_buf_finish(r, &b);
    return *out != NULL;
}

/* One %-conversion: s, r, d, i, f or x with optional 0 flag, width and precision. */
static bool format_one(tm_run *r, tm_buf *b, const char *spec, size_t spec_len, const tm_value *v) {
    char conversion = spec[spec_len - 1], copy[24], text[400];
    int64_t i = 0;
    double f = 0;
    bool plain = spec_len == 1;
    if (conversion == 's' || conversion == 'r') {
        if (!plain) return kvf_tm_fail(r, KVF_ERR_FORMAT, "width of %%s is not supported");
        return conversion == 's' ? kvf_tm_print(r, b, v) : kvf_tm_repr(r, b, v);
    }
    for (size_t k = 0, digits = 0; k < spec_len; k++) { /* a width is memory and time: two digits will do */
        digits = spec[k] >= '0' && spec[k] <= '9' ? digits + 1 : 0;
        if (digits > 2 || spec_len > 12) return kvf_tm_fail(r, KVF_ERR_FORMAT, "a conversion is too wide");
    }
    bool is_int = conversion == 'd' || conversion == 'i' || conversion == 'x';
    if (is_int && v->kind == TM_FLOAT && v->u.f > -9e18 && v->u.f < 9e18 && conversion != 'x')
        i = (int64_t)v->u.f;
    else if (is_int ? !kvf_tm_as_int(v, &i) : !kvf_tm_as_float(v, &f))
        return kvf_tm_fail(r, KVF_ERR_FORMAT, "%%%c needs a number, not %s", conversion, kvf_tm_type_name(v));
    snprintf(copy, sizeof copy, "%%%.*s%s%c", (int)spec_len - 1, spec, is_int ? "ll" : "", conversion);
#pragma GCC diagnostic push
#pragma GCC diagnostic ignored "-Wformat-nonliteral"
    int n = is_int ? snprintf(text, sizeof text, copy, (long long)i) : snprintf(text, sizeof text, copy, f);
#pragma GCC diagnostic pop
    if (n < 0 || (size_t)n >= sizeof text) return kvf_tm_fail(r, KVF_ERR_FORMAT, "a formatted number is too long");
    return kvf_tm_buf_text(r, b, text, v->trusted);
}

bool kvf_tm_str_format(tm_run *r, const tm_str *fmt, const tm_value *args, uint32_t count, tm_str **out) {
    tm_buf b = {0};
    uint32_t used = 0;
    for (size_t at = 0; at < fmt->len; at++) {
        if (fmt->data[at] != '%') {
            if (!kvf_tm_buf_add(r, &b, fmt->data + at, NULL, tm_str_trust(fmt, at), 1)) return false;
            continue;
        }
        size_t start = ++at;
        while (at < fmt->len && fmt->data[at] && strchr("0123456789.-+ ", fmt->data[at])) at++;
        if (at >= fmt->len || !fmt->data[at] || !strchr("srdifx%", fmt->data[at]))
            return kvf_tm_fail(r, KVF_ERR_FORMAT, "a conversion in a format is not supported");
        if (fmt->data[at] == '%') {
            if (!kvf_tm_buf_text(r, &b, "%", tm_str_trust(fmt, at))) return false;
        } else if (used == count) {
            return kvf_tm_fail(r, KVF_ERR_FORMAT, "not enough arguments for a format");
        } else if (!format_one(r, &b, fmt->data + start, at - start + 1, &args[used++])) {
            return false;
        }
        if (!kvf_tm_charge(r, 1)) return false;
    }
    if (used < count) return kvf_tm_fail(r, KVF_ERR_FORMAT, "not all arguments of a format were used");
    *out = kvf_tm_buf_finish(r, &b);
    return *out != NULL;
}
