/* text.c - UTF-8, strings with their marks, buffers, and how values are printed: str(), repr() and JSON as Python does
 * them. */
#include "template_int.h"
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <utf8proc.h>

size_t kvf_tm_utf8_decode(const char *data, size_t len_bytes, uint32_t *cp) {
    static const uint32_t least[5] = {0, 0, 0x80, 0x800, 0x10000};
    const uint8_t *p = (const uint8_t *)data;
    if (len_bytes == 0) return 0;
    size_t n = p[0] < 0x80 ? 1 : (p[0] & 0xe0) == 0xc0 ? 2 : (p[0] & 0xf0) == 0xe0 ? 3 : (p[0] & 0xf8) == 0xf0 ? 4 : 0;
    if (n == 0 || n > len_bytes) return 0;
    uint32_t v = n == 1 ? p[0] : p[0] & (0x7fu >> n);
    for (size_t i = 1; i < n; i++) {
        if ((p[i] & 0xc0) != 0x80) return 0;
        v = v << 6 | (p[i] & 0x3f);
    }
    if (v < least[n] || v > 0x10ffff || (v >= 0xd800 && v < 0xe000)) return 0;
    *cp = v;
    return n;
}

size_t kvf_tm_utf8_encode(uint32_t cp, char out[4]) {
    if (cp < 0x80) {
        out[0] = (char)cp;
        return 1;
    }
    size_t n = cp < 0x800 ? 2 : cp < 0x10000 ? 3 : 4;
    for (size_t i = n; i-- > 1; cp >>= 6) out[i] = (char)(0x80 | (cp & 0x3f));
    out[0] = (char)((0xf00u >> n & 0xf0) | cp);
    return n;
}

bool kvf_tm_is_space(uint32_t cp) { /* what Python's str.isspace says */
    return (cp >= 9 && cp <= 13) || (cp >= 0x1c && cp <= 0x20) || cp == 0x85 || cp == 0xa0 || cp == 0x1680 ||
           (cp >= 0x2000 && cp <= 0x200a) || cp == 0x2028 || cp == 0x2029 || cp == 0x202f || cp == 0x205f ||
           cp == 0x3000;
}

bool kvf_tm_str_equal(const tm_str *a, const tm_str *b) {
    return a == b || (a->len == b->len && memcmp(a->data, b->data, a->len) == 0);
}

tm_str *kvf_tm_str_new(tm_run *r, const char *data, size_t len_bytes, uint8_t trusted) {
    if (len_bytes > r->limits.output_max) {
        kvf_tm_fail(r, KVF_ERR_LIMIT, "a string has more than %zu bytes", r->limits.output_max);
        return NULL;
    }
    tm_str *s = kvf_tm_take(r, sizeof *s);
    if (s) *s = (tm_str){.data = data, .len = (uint32_t)len_bytes, .chars = TM_CHARS_UNKNOWN, .uniform = trusted};
    return s;
}

tm_str *kvf_tm_str_slice(tm_run *r, const tm_str *s, size_t from, size_t len_bytes) {
    tm_str *out = kvf_tm_take(r, sizeof *out);
    if (!out) return NULL;
    *out = (tm_str){.data = s->data + from,
        .mask = s->mask ? s->mask + from : NULL,
        .len = (uint32_t)len_bytes,
        .chars = s->chars == s->len ? (uint32_t)len_bytes : TM_CHARS_UNKNOWN,
        .uniform = s->uniform};
    return out;
}

/* a + b. When a is the end of a buffer with room behind it, b is put there: text that grows in a loop is copied once,
 * not each time. */
tm_str *kvf_tm_str_concat(tm_run *r, tm_str *a, const tm_str *b) {
    if (b->len == 0) return a;
    tm_buf *buf = a->buf;
    size_t len = (size_t)a->len + b->len;
    if (!buf || a->data != buf->data || a->len != buf->len || len > buf->cap) {
        buf = kvf_tm_take(r, sizeof *buf);
        if (!buf || !kvf_tm_buf_str(r, buf, a)) return NULL;
    }
    if (!kvf_tm_buf_str(r, buf, b)) return NULL;
    tm_str *s = kvf_tm_take(r, sizeof *s);
    if (s)
        *s =
            (tm_str){.data = buf->data, .mask = buf->mask, .len = (uint32_t)len, .chars = TM_CHARS_UNKNOWN, .buf = buf};
    return s;
}

uint32_t kvf_tm_str_chars(tm_str *s) {
    if (s->chars == TM_CHARS_UNKNOWN) {
        uint32_t n = 0;
        for (uint32_t i = 0; i < s->len; i++) n += ((uint8_t)s->data[i] & 0xc0) != 0x80;
        s->chars = n;
    }
    return s->chars;
}

size_t kvf_tm_str_offset(tm_str *s, size_t char_index) {
    uint32_t chars = kvf_tm_str_chars(s);
    if (char_index >= chars) return s->len;
    if (chars == s->len) return char_index;
    size_t at = 0;
    for (;; at++)
        if (((uint8_t)s->data[at] & 0xc0) != 0x80 && char_index-- == 0) return at;
}

/* ---- buffers ---- */
static bool buf_grow(tm_run *r, tm_buf *b, size_t need) {
    if (need > r->limits.output_max)
        return kvf_tm_fail(r, KVF_ERR_LIMIT, "output is over %zu bytes", r->limits.output_max);
    size_t cap = KVF_MAX(b->cap * 2, (size_t)128);
    cap = KVF_MAX(KVF_MIN(cap, r->limits.output_max), need);
    char *data = b->heap ? realloc(b->data, cap) : kvf_tm_take(r, cap);
    if (data && b->heap) b->data = data;
    uint8_t *mask = !data ? NULL : b->heap ? realloc(b->mask, cap) : kvf_tm_take(r, cap);
    if (!mask) return kvf_tm_fail(r, KVF_ERR_NO_MEMORY, "out of memory");
    if (!b->heap && b->len) {
        memcpy(data, b->data, b->len);
        memcpy(mask, b->mask, b->len);
    }
    b->data = data;
    b->mask = mask;
    b->cap = cap;
    return true;
}

bool kvf_tm_buf_add(tm_run *r, tm_buf *b, const char *data, const uint8_t *mask, uint8_t uniform, size_t len_bytes) {
    if (len_bytes == 0) return true;
    if (len_bytes > b->cap - b->len && !buf_grow(r, b, b->len + len_bytes)) return false;
    memcpy(b->data + b->len, data, len_bytes);
    if (mask)
        memcpy(b->mask + b->len, mask, len_bytes);
    else
        memset(b->mask + b->len, uniform, len_bytes);
    b->len += len_bytes;
    return true;
}
bool kvf_tm_buf_text(tm_run *r, tm_buf *b, const char *text, uint8_t trusted) {
    return kvf_tm_buf_add(r, b, text, NULL, trusted, strlen(text));
}
bool kvf_tm_buf_str(tm_run *r, tm_buf *b, const tm_str *s) {
    return kvf_tm_buf_add(r, b, s->data, s->mask, s->uniform, s->len);
}

tm_str *kvf_tm_buf_finish(tm_run *r, tm_buf *b) {
    KVF_ASSERT(!b->heap);
    tm_str *s = kvf_tm_str_new(r, b->data ? b->data : "", b->len, 1);
    if (s) s->mask = b->mask;
    return s;
}

/* ---- printing ---- */

/* As Python's repr of a float: the fewest digits that read back as the same number. */
size_t kvf_tm_float_text(double f, char out[40]) {
    if (isnan(f)) return (size_t)snprintf(out, 40, "nan");
    if (isinf(f)) return (size_t)snprintf(out, 40, f < 0 ? "-inf" : "inf");
    char e[40];
    int precision = 0;
    do snprintf(e, sizeof e, "%.*e", precision, f);
    while (strtod(e, NULL) != f && ++precision < 17);
    int exponent = atoi(strchr(e, 'e') + 1);
    if (exponent >= -4 && exponent < 16) return (size_t)snprintf(out, 40, "%.*f", KVF_MAX(precision - exponent, 1), f);
    return (size_t)snprintf(out, 40, "%s", e);
}

static bool printable(uint32_t cp) {
    switch (utf8proc_category((utf8proc_int32_t)cp)) {
    case UTF8PROC_CATEGORY_CN:
    case UTF8PROC_CATEGORY_CC:
    case UTF8PROC_CATEGORY_CF:
    case UTF8PROC_CATEGORY_CS:
    case UTF8PROC_CATEGORY_CO:
    case UTF8PROC_CATEGORY_ZL:
    case UTF8PROC_CATEGORY_ZP: return false;
    case UTF8PROC_CATEGORY_ZS: return cp == ' ';
    default: return true;
    }
}

static bool repr_str(tm_run *r, tm_buf *b, const tm_str *s) {
    char quote = memchr(s->data, '\'', s->len) && !memchr(s->data, '"', s->len) ? '"' : '\'', text[16];
    uint8_t around = s->len ? tm_str_trust(s, 0) : s->uniform;
    if (!kvf_tm_buf_add(r, b, &quote, NULL, around, 1)) return false;
    for (size_t at = 0, n; at < s->len; at += n) {
        uint32_t cp = 0;
        n = kvf_tm_utf8_decode(s->data + at, s->len - at, &cp);
        KVF_ASSERT(n);
        const char *known = cp == '\n' ? "\\n" : cp == '\r' ? "\\r" : cp == '\t' ? "\\t" : cp == '\\' ? "\\\\" : NULL;
        if (cp == (uint8_t)quote)
            snprintf(text, sizeof text, "\\%c", quote);
        else if (known)
            snprintf(text, sizeof text, "%s", known);
        else if (!printable(cp))
            snprintf(text, sizeof text, cp < 0x100 ? "\\x%02x" : cp < 0x10000 ? "\\u%04x" : "\\U%08x", cp);
        else
            memcpy(text, s->data + at, n), text[n] = 0;
        if (!kvf_tm_buf_text(r, b, text, tm_str_trust(s, at))) return false;
    }
    return kvf_tm_buf_add(r, b, &quote, NULL, around, 1);
}

static bool repr_items(tm_run *r, tm_buf *b, const tm_value *v) {
    const tm_list *l = v->u.list;
    bool tuple = v->kind == TM_TUPLE;
    if (v->kind == TM_VIEW && !kvf_tm_buf_text(r, b, "dict_view(", l->trusted)) return false;
    if (!kvf_tm_buf_text(r, b, tuple ? "(" : "[", l->trusted)) return false;
    for (uint32_t i = 0; i < l->count; i++)
        if ((i && !kvf_tm_buf_text(r, b, ", ", l->trusted)) || !kvf_tm_repr(r, b, &l->items[i])) return false;
    return kvf_tm_buf_text(r, b, tuple ? (l->count == 1 ? ",)" : ")") : v->kind == TM_VIEW ? "])" : "]", l->trusted);
}

static bool repr_dict(tm_run *r, tm_buf *b, const tm_dict *d) {
    if (!kvf_tm_buf_text(r, b, "{", d->trusted)) return false;
    for (uint32_t i = 0; i < d->count; i++)
        if ((i && !kvf_tm_buf_text(r, b, ", ", d->trusted)) || !kvf_tm_repr(r, b, &d->entries[i].key) ||
            !kvf_tm_buf_text(r, b, ": ", d->trusted) || !kvf_tm_repr(r, b, &d->entries[i].value))
            return false;
    return kvf_tm_buf_text(r, b, "}", d->trusted);
}

bool kvf_tm_repr(tm_run *r, tm_buf *b, const tm_value *v) {
    char text[40];
    if (!kvf_tm_enter(r)) return false;
    bool ok = false;
    switch (v->kind) {
    case TM_UNDEFINED: ok = kvf_tm_buf_text(r, b, "Undefined", v->trusted); break;
    case TM_NONE: ok = kvf_tm_buf_text(r, b, "None", v->trusted); break;
    case TM_BOOL: ok = kvf_tm_buf_text(r, b, v->u.b ? "True" : "False", v->trusted); break;
    case TM_INT:
        snprintf(text, sizeof text, "%lld", (long long)v->u.i);
        ok = kvf_tm_buf_text(r, b, text, v->trusted);
        break;
    case TM_FLOAT: ok = kvf_tm_buf_add(r, b, text, NULL, v->trusted, kvf_tm_float_text(v->u.f, text)); break;
    case TM_STRING: ok = repr_str(r, b, v->u.s); break;
    case TM_LIST:
    case TM_TUPLE:
    case TM_VIEW: ok = repr_items(r, b, v); break;
    case TM_DICT: ok = repr_dict(r, b, v->u.dict); break;
    case TM_NAMESPACE: ok = kvf_tm_buf_text(r, b, "<Namespace>", 1); break;
    default: ok = kvf_tm_fail(r, KVF_ERR_FORMAT, "%s cannot be printed", kvf_tm_type_name(v));
    }
    kvf_tm_leave(r);
    return ok;
}

bool kvf_tm_print(tm_run *r, tm_buf *b, const tm_value *v) {
    if (v->kind == TM_STRING) return kvf_tm_buf_str(r, b, v->u.s);
    if (v->kind == TM_UNDEFINED) return true;
    return kvf_tm_repr(r, b, v);
}

bool kvf_tm_to_str(tm_run *r, const tm_value *v, tm_str **out) {
    if (v->kind == TM_STRING) {
        *out = v->u.s;
        return true;
    }
    tm_buf b = {0};
    if (!kvf_tm_print(r, &b, v)) return false;
    *out = kvf_tm_buf_finish(r, &b);
    return *out != NULL;
}

/* ---- JSON, as json.dumps(ensure_ascii=False) writes it ---- */
typedef enum { OPT_ASCII, OPT_INDENT, OPT_SEPARATORS, OPT_SORT } json_option;

static bool json_str(tm_run *r, tm_buf *b, const tm_str *s, bool ascii) {
    static const char codes[] = "\"\\\n\r\t\b\f", letters[] = "\"\\nrtbf";
    uint8_t around = s->len ? tm_str_trust(s, 0) : s->uniform;
    char text[16];
    if (!kvf_tm_buf_add(r, b, "\"", NULL, around, 1)) return false;
    size_t plain = 0, at = 0;
    while (at < s->len) {
        uint32_t cp = (uint8_t)s->data[at];
        size_t n = 1;
        if (cp >= 0x80) n = kvf_tm_utf8_decode(s->data + at, s->len - at, &cp);
        const char *known = cp && cp < 0x80 ? strchr(codes, (char)cp) : NULL;
        if (!known && cp >= 0x20 && (cp < 0x7f || cp == 0x7f || !ascii)) {
            at += n;
            continue;
        }
        if (known)
            snprintf(text, sizeof text, "\\%c", letters[known - codes]);
        else if (cp < 0x10000)
            snprintf(text, sizeof text, "\\u%04x", cp);
        else
            snprintf(text, sizeof text, "\\u%04x\\u%04x", 0xd800 + ((cp - 0x10000) >> 10),
                0xdc00 + ((cp - 0x10000) & 0x3ff));
        if (!kvf_tm_buf_add(r, b, s->data + plain, s->mask ? s->mask + plain : NULL, s->uniform, at - plain) ||
            !kvf_tm_buf_text(r, b, text, tm_str_trust(s, at)))
            return false;
        at += n;
        plain = at;
    }
    return kvf_tm_buf_add(r, b, s->data + plain, s->mask ? s->mask + plain : NULL, s->uniform, s->len - plain) &&
           kvf_tm_buf_add(r, b, "\"", NULL, around, 1);
}

/* The separator after an item (or the opening or closing line break), with the indentation of `level`. */
static bool json_break(tm_run *r, tm_buf *b, tm_call *o, const char *separator, uint32_t level, uint8_t trusted) {
    const tm_value *indent = &o->slot[OPT_INDENT];
    bool indented = indent->kind == TM_INT || indent->kind == TM_BOOL || indent->kind == TM_STRING;
    if (*separator == ',') {
        const tm_value *sep = &o->slot[OPT_SEPARATORS];
        if (tm_is_listlike(sep) && sep->u.list->count == 2 && sep->u.list->items[0].kind == TM_STRING) {
            if (!kvf_tm_buf_str(r, b, sep->u.list->items[0].u.s)) return false;
        } else if (!kvf_tm_buf_text(r, b, indented ? "," : ", ", trusted)) {
            return false;
        }
    }
    if (!indented) return true;
    if (!kvf_tm_buf_text(r, b, "\n", trusted)) return false;
    int64_t width = 0;
    if (indent->kind != TM_STRING) kvf_tm_as_int(indent, &width);
    for (uint32_t i = 0; i < level; i++) {
        if (indent->kind == TM_STRING && !kvf_tm_buf_str(r, b, indent->u.s)) return false;
        if (!kvf_tm_charge(r, (uint64_t)KVF_MAX(width, 0) / 64 + 1)) return false;
        for (int64_t k = 0; k < width; k++)
            if (!kvf_tm_buf_text(r, b, " ", trusted)) return false;
    }
    return true;
}

static bool json_list(tm_run *r, tm_buf *b, const tm_list *l, tm_call *o, uint32_t level) {
    if (l->count == 0) return kvf_tm_buf_text(r, b, "[]", l->trusted);
    if (!kvf_tm_buf_text(r, b, "[", l->trusted)) return false;
    for (uint32_t i = 0; i < l->count; i++)
        if (!json_break(r, b, o, i ? "," : "", level + 1, l->trusted) || !kvf_tm_json(r, b, &l->items[i], o, level + 1))
            return false;
    return json_break(r, b, o, "", level, l->trusted) && kvf_tm_buf_text(r, b, "]", l->trusted);
}

static int by_key(const void *a, const void *b) {
    const tm_str *x = ((const tm_entry *)a)->key.u.s, *y = ((const tm_entry *)b)->key.u.s;
    int order = memcmp(x->data, y->data, KVF_MIN(x->len, y->len));
    return order ? order : (x->len > y->len) - (x->len < y->len);
}

static bool json_key(tm_run *r, tm_buf *b, const tm_value *key, tm_call *o) {
    if (key->kind == TM_STRING) return json_str(r, b, key->u.s, kvf_tm_truth(&o->slot[OPT_ASCII]));
    if (!tm_is_number(key) && key->kind != TM_NONE)
        return kvf_tm_fail(r, KVF_ERR_FORMAT, "%s cannot be a key in JSON", kvf_tm_type_name(key));
    return kvf_tm_buf_text(r, b, "\"", key->trusted) && kvf_tm_json(r, b, key, o, 0) &&
           kvf_tm_buf_text(r, b, "\"", key->trusted);
}

static bool json_dict(tm_run *r, tm_buf *b, const tm_dict *d, tm_call *o, uint32_t level) {
    if (d->count == 0) return kvf_tm_buf_text(r, b, "{}", d->trusted);
    const tm_entry *entries = d->entries;
    if (kvf_tm_truth(&o->slot[OPT_SORT])) {
        tm_entry *sorted = kvf_tm_take(r, d->count * sizeof *sorted);
        if (!sorted || !kvf_tm_charge(r, d->count)) return false;
        for (uint32_t i = 0; i < d->count; i++) {
            if (d->entries[i].key.kind != TM_STRING)
                return kvf_tm_fail(r, KVF_ERR_FORMAT, "only text keys can be sorted");
            sorted[i] = d->entries[i];
        }
        qsort(sorted, d->count, sizeof *sorted, by_key);
        entries = sorted;
    }
    const tm_value *sep = &o->slot[OPT_SEPARATORS];
    bool own = tm_is_listlike(sep) && sep->u.list->count == 2 && sep->u.list->items[1].kind == TM_STRING;
    if (!kvf_tm_buf_text(r, b, "{", d->trusted)) return false;
    for (uint32_t i = 0; i < d->count; i++)
        if (!json_break(r, b, o, i ? "," : "", level + 1, d->trusted) || !json_key(r, b, &entries[i].key, o) ||
            !(own ? kvf_tm_buf_str(r, b, sep->u.list->items[1].u.s) : kvf_tm_buf_text(r, b, ": ", d->trusted)) ||
            !kvf_tm_json(r, b, &entries[i].value, o, level + 1))
            return false;
    return json_break(r, b, o, "", level, d->trusted) && kvf_tm_buf_text(r, b, "}", d->trusted);
}

bool kvf_tm_json(tm_run *r, tm_buf *b, const tm_value *v, tm_call *o, uint32_t level) {
    if (!kvf_tm_enter(r)) return false;
    bool ok = false;
    switch (v->kind) {
    case TM_NONE: ok = kvf_tm_buf_text(r, b, "null", v->trusted); break;
    case TM_BOOL: ok = kvf_tm_buf_text(r, b, v->u.b ? "true" : "false", v->trusted); break;
    case TM_FLOAT:
        if (isnan(v->u.f))
            ok = kvf_tm_buf_text(r, b, "NaN", v->trusted);
        else if (isinf(v->u.f))
            ok = kvf_tm_buf_text(r, b, v->u.f < 0 ? "-Infinity" : "Infinity", v->trusted);
        else
            ok = kvf_tm_repr(r, b, v);
        break;
    case TM_INT: ok = kvf_tm_repr(r, b, v); break;
    case TM_STRING: ok = json_str(r, b, v->u.s, kvf_tm_truth(&o->slot[OPT_ASCII])); break;
    case TM_LIST:
    case TM_TUPLE: ok = json_list(r, b, v->u.list, o, level); break;
    case TM_DICT: ok = json_dict(r, b, v->u.dict, o, level); break;
    default: ok = kvf_tm_fail(r, KVF_ERR_FORMAT, "%s cannot be written as JSON", kvf_tm_type_name(v));
    }
    kvf_tm_leave(r);
    return ok;
}
