/* filters.c - the filters: value | name(arguments). */
#include "template_int.h"
#include <errno.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>

#define ARG(i) (&c->slot[i])
static bool given(const tm_value *v) { return v->kind != TM_MISSING; }
static bool done_str(tm_str *s, tm_value *out) {
    *out = tm_string(s);
    return s != NULL;
}
static bool done_list(tm_kind kind, tm_list *l, tm_value *out) {
    *out = (tm_value){.kind = (uint8_t)kind, .u.list = l};
    return true;
}

/* ---- text ---- */
static bool change_case(tm_run *r, tm_call *c, tm_case how, tm_value *out) {
    tm_str *s;
    return kvf_tm_to_str(r, &c->self, &s) && done_str(kvf_tm_str_case(r, s, how), out);
}
static bool f_upper(tm_run *r, tm_call *c, tm_value *out) { return change_case(r, c, TM_CASE_UPPER, out); }
static bool f_lower(tm_run *r, tm_call *c, tm_value *out) { return change_case(r, c, TM_CASE_LOWER, out); }
static bool f_title(tm_run *r, tm_call *c, tm_value *out) { return change_case(r, c, TM_CASE_WORDS, out); }
static bool f_capitalize(tm_run *r, tm_call *c, tm_value *out) { return change_case(r, c, TM_CASE_CAPITALIZE, out); }

static bool f_trim(tm_run *r, tm_call *c, tm_value *out) {
    tm_str *s, *chars = NULL;
    if (!kvf_tm_to_str(r, &c->self, &s) || (ARG(0)->kind > TM_NONE && !kvf_tm_to_str(r, ARG(0), &chars))) return false;
    return done_str(kvf_tm_str_strip(r, s, chars, true, true), out);
}

static bool f_replace(tm_run *r, tm_call *c, tm_value *out) {
    tm_str *s, *old, *with;
    int64_t count = -1;
    if (!kvf_tm_to_str(r, &c->self, &s) || !kvf_tm_to_str(r, ARG(0), &old) || !kvf_tm_to_str(r, ARG(1), &with))
        return false;
    kvf_tm_as_int(ARG(2), &count);
    return done_str(kvf_tm_str_replace(r, s, old, with, count), out);
}

static bool f_string(tm_run *r, tm_call *c, tm_value *out) {
    tm_str *s;
    return kvf_tm_to_str(r, &c->self, &s) && done_str(s, out);
}

static bool f_escape(tm_run *r, tm_call *c, tm_value *out) {
    static const char *const pairs[][2] = {
        {"&", "&amp;"}, {"<", "&lt;"}, {">", "&gt;"}, {"'", "&#39;"}, {"\"", "&#34;"}};
    tm_str *s;
    tm_buf b = {0};
    if (!kvf_tm_to_str(r, &c->self, &s) || !kvf_tm_charge(r, s->len / 16)) return false;
    for (size_t at = 0; at < s->len; at++) {
        const char *with = NULL;
        for (size_t i = 0; i < KVF_COUNT_OF(pairs); i++)
            if (s->data[at] == pairs[i][0][0]) with = pairs[i][1];
        uint8_t trusted = tm_str_trust(s, at);
        if (!(with ? kvf_tm_buf_text(r, &b, with, trusted) : kvf_tm_buf_add(r, &b, s->data + at, NULL, trusted, 1)))
            return false;
    }
    return done_str(kvf_tm_buf_finish(r, &b), out);
}

static bool f_indent(tm_run *r, tm_call *c, tm_value *out) {
    tm_str *s, *pad = NULL;
    int64_t width = 4;
    tm_buf b = {0};
    tm_list *lines = kvf_tm_list_new(r, 0, 1);
    if (!lines || !kvf_tm_to_str(r, &c->self, &s) || !kvf_tm_str_lines(r, s, false, lines)) return false;
    if (ARG(0)->kind == TM_STRING) {
        pad = ARG(0)->u.s;
    } else {
        tm_value blank = tm_string(kvf_tm_str_new(r, " ", 1, 1)), times, padding;
        if (!blank.u.s || (given(ARG(0)) && !kvf_tm_as_int(ARG(0), &width)))
            return kvf_tm_fail(r, KVF_ERR_FORMAT, "indent needs a width");
        times = tm_int(width, 1);
        if (!kvf_tm_arith(r, TM_OP_MUL, &blank, &times, &padding)) return false;
        pad = padding.u.s;
    }
    bool first = kvf_tm_truth(ARG(1)), blank = kvf_tm_truth(ARG(2));
    if (s->len && s->data[s->len - 1] == '\n') { /* a final newline keeps its empty line, as in the original */
        tm_value empty = tm_string(kvf_tm_str_new(r, "", 0, 1));
        if (!empty.u.s || !kvf_tm_list_add(r, lines, &empty)) return false;
    }
    for (uint32_t i = 0; i < lines->count; i++) {
        const tm_str *line = lines->items[i].u.s;
        bool padded = i ? blank || line->len : first;
        if ((i && !kvf_tm_buf_text(r, &b, "\n", tm_str_trust(s, 0))) || (padded && !kvf_tm_buf_str(r, &b, pad)) ||
            !kvf_tm_buf_str(r, &b, line))
            return false;
    }
    return done_str(kvf_tm_buf_finish(r, &b), out);
}

static bool f_format(tm_run *r, tm_call *c, tm_value *out) {
    tm_str *s, *text;
    return kvf_tm_to_str(r, &c->self, &s) && kvf_tm_str_format(r, s, c->pos, c->pos_count, &text) &&
           done_str(text, out);
}

static bool f_tojson(tm_run *r, tm_call *c, tm_value *out) {
    tm_buf b = {0};
    return kvf_tm_json(r, &b, &c->self, c, 0) && done_str(kvf_tm_buf_finish(r, &b), out);
}

/* ---- numbers ---- */
static bool f_int(tm_run *r, tm_call *c, tm_value *out) {
    tm_value otherwise = given(ARG(0)) ? *ARG(0) : tm_int(0, 1);
    int64_t base = 10, i;
    double f = NAN;
    char text[80], *end = text;
    *out = otherwise;
    kvf_tm_as_int(ARG(1), &base);
    uint8_t trusted = kvf_tm_trust_of(&c->self);
    if (c->self.kind == TM_UNDEFINED) return kvf_tm_fail(r, KVF_ERR_FORMAT, "an undefined value is no int");
    if (kvf_tm_as_int(&c->self, &i)) {
        *out = tm_int(i, trusted);
        return true;
    }
    if (c->self.kind == TM_STRING) {
        tm_str *s = kvf_tm_str_strip(r, c->self.u.s, NULL, true, true);
        if (!s) return false;
        if (s->len == 0 || s->len >= sizeof text) return true;
        memcpy(text, s->data, s->len);
        text[s->len] = 0;
        errno = 0;
        i = strtoll(text, &end, base >= 2 && base <= 36 ? (int)base : 10);
        if (*end == 0 && errno == 0) {
            *out = tm_int(i, trusted);
            return true;
        }
        f = strtod(text, &end);
        if (*end) f = NAN;
    } else if (c->self.kind == TM_FLOAT) {
        f = c->self.u.f;
    }
    if (f > -9.2e18 && f < 9.2e18) *out = tm_int((int64_t)f, trusted);
    return true;
}

static bool f_float(tm_run *r, tm_call *c, tm_value *out) {
    double f = 0;
    char text[80], *end = text;
    *out = given(ARG(0)) ? *ARG(0) : tm_float(0, 1);
    if (c->self.kind == TM_UNDEFINED) return kvf_tm_fail(r, KVF_ERR_FORMAT, "an undefined value is no float");
    bool ok = kvf_tm_as_float(&c->self, &f);
    if (c->self.kind == TM_STRING) {
        tm_str *s = kvf_tm_str_strip(r, c->self.u.s, NULL, true, true);
        if (!s) return false;
        if (s->len && s->len < sizeof text) {
            memcpy(text, s->data, s->len);
            text[s->len] = 0;
            f = strtod(text, &end);
            ok = *end == 0;
        }
    }
    if (ok) *out = tm_float(f, kvf_tm_trust_of(&c->self));
    return true;
}

static bool f_abs(tm_run *r, tm_call *c, tm_value *out) {
    int64_t i;
    *out = c->self;
    if (kvf_tm_as_int(&c->self, &i)) {
        if (i == INT64_MIN) return kvf_tm_fail(r, KVF_ERR_LIMIT, "a whole number is over 64 bits");
        *out = tm_int(i < 0 ? -i : i, c->self.trusted);
    } else if (c->self.kind == TM_FLOAT) {
        out->u.f = fabs(out->u.f);
    } else {
        return kvf_tm_fail(r, KVF_ERR_FORMAT, "abs needs a number, not %s", kvf_tm_type_name(&c->self));
    }
    return true;
}

static bool f_round(tm_run *r, tm_call *c, tm_value *out) {
    double f;
    int64_t precision = 0;
    char text[400];
    kvf_tm_as_int(ARG(0), &precision);
    if (!kvf_tm_as_float(&c->self, &f) || precision > 30 || precision < -30)
        return kvf_tm_fail(r, KVF_ERR_FORMAT, "round needs a number, and a precision from -30 to 30");
    int64_t whole;
    if (ARG(1)->kind <= TM_NONE && precision >= 0 && kvf_tm_as_int(&c->self, &whole)) { /* an int stays one */
        *out = tm_int(whole, c->self.trusted);
        return true;
    }
    double scale = pow(10, (double)precision);
    if (ARG(1)->kind == TM_STRING && tm_str_is(ARG(1)->u.s, "ceil")) {
        f = ceil(f * scale) / scale;
    } else if (ARG(1)->kind == TM_STRING && tm_str_is(ARG(1)->u.s, "floor")) {
        f = floor(f * scale) / scale;
    } else if (precision >= 0 && isfinite(f)) { /* printing rounds the exact value, half to even, as wanted here */
        snprintf(text, sizeof text, "%.*f", (int)precision, f);
        f = strtod(text, NULL);
    } else if (isfinite(f)) {
        f = rint(f * scale) / scale;
    }
    *out = tm_float(f, c->self.trusted);
    return true;
}

/* ---- any value ---- */
static bool f_default(tm_run *r, tm_call *c, tm_value *out) {
    bool replace = c->self.kind == TM_UNDEFINED || (kvf_tm_truth(ARG(1)) && !kvf_tm_truth(&c->self));
    if (!replace) {
        *out = c->self;
        return true;
    }
    if (!given(ARG(0))) return done_str(kvf_tm_str_new(r, "", 0, 1), out);
    *out = *ARG(0);
    return true;
}
static bool f_safe(tm_run *r, tm_call *c, tm_value *out) { return f_string(r, c, out); }
static bool f_length(tm_run *r, tm_call *c, tm_value *out) { return kvf_tm_length(r, &c->self, out); }
static bool f_attr(tm_run *r, tm_call *c, tm_value *out) {
    tm_str *name;
    return kvf_tm_to_str(r, ARG(0), &name) && kvf_tm_attr(r, &c->self, name, out);
}

/* ---- sequences ---- */
static bool iterate(tm_run *r, const tm_call *c, tm_list **l) {
    return kvf_tm_iterate(r, &c->self, l) && kvf_tm_charge(r, (*l)->count / 4);
}

static bool f_list(tm_run *r, tm_call *c, tm_value *out) {
    tm_list *l;
    return iterate(r, c, &l) && done_list(TM_LIST, l, out);
}
static bool f_first(tm_run *r, tm_call *c, tm_value *out) {
    tm_list *l;
    if (!iterate(r, c, &l)) return false;
    *out = l->count ? l->items[0] : tm_undefined(NULL);
    return true;
}
static bool f_last(tm_run *r, tm_call *c, tm_value *out) {
    tm_list *l;
    if (c->self.kind == TM_GENERATOR) return kvf_tm_fail(r, KVF_ERR_FORMAT, "last needs a list: use | list before it");
    if (!iterate(r, c, &l)) return false;
    *out = l->count ? l->items[l->count - 1] : tm_undefined(NULL);
    return true;
}

static bool f_reverse(tm_run *r, tm_call *c, tm_value *out) {
    tm_value none = tm_none(), step = tm_int(-1, 1);
    if (c->self.kind == TM_STRING) return kvf_tm_slice(r, &c->self, &none, &none, &step, out);
    tm_list *l, *turned;
    if (!iterate(r, c, &l) || !(turned = kvf_tm_list_new(r, l->count, l->trusted))) return false;
    for (uint32_t i = l->count; i-- > 0;) turned->items[turned->count++] = l->items[i];
    return done_list(TM_GENERATOR, turned, out);
}

/* What "attribute='a.b'" reads of an item; the item itself without one. */
static bool read_attribute(tm_run *r, const tm_value *item, const tm_value *attribute, tm_value *out) {
    *out = *item;
    if (attribute->kind == TM_INT) return kvf_tm_item(r, item, attribute, out);
    if (attribute->kind <= TM_NONE) return true;
    if (attribute->kind != TM_STRING) return kvf_tm_fail(r, KVF_ERR_FORMAT, "an attribute is named by a str");
    const tm_str *s = attribute->u.s;
    for (size_t from = 0, to; from <= s->len; from = to + 1) {
        const char *dot = memchr(s->data + from, '.', s->len - from);
        to = dot ? (size_t)(dot - s->data) : s->len;
        tm_str *part = kvf_tm_str_slice(r, s, from, to - from);
        if (!part) return false;
        tm_value key = tm_string(part), base = *out;
        int64_t n = 0;
        size_t digits = 0;
        while (digits < part->len && part->data[digits] >= '0' && part->data[digits] <= '9' && digits < 9)
            n = n * 10 + (part->data[digits++] - '0');
        if (digits && digits == part->len) key = tm_int(n, 1);
        if (!kvf_tm_item(r, &base, &key, out)) return false;
    }
    return true;
}

static bool fold_case(tm_run *r, tm_value *v) {
    if (v->kind != TM_STRING) return true;
    tm_str *s = kvf_tm_str_case(r, v->u.s, TM_CASE_LOWER);
    *v = tm_string(s);
    return s != NULL;
}

static bool sort_keys_of(tm_run *r, const tm_list *l, const tm_value *attribute, bool case_sensitive, tm_value **keys) {
    *keys = kvf_tm_take(r, (size_t)l->count * sizeof **keys + 1);
    if (!*keys) return false;
    for (uint32_t i = 0; i < l->count; i++)
        if (!read_attribute(r, &l->items[i], attribute, &(*keys)[i]) || (!case_sensitive && !fold_case(r, &(*keys)[i])))
            return false;
    return true;
}

/* Stable merge sort of item numbers by their keys; comparing may fail. */
static bool sort_numbers(tm_run *r, const tm_value *keys, uint32_t count, bool reverse, uint32_t **out) {
    uint32_t *a = kvf_tm_take(r, count * sizeof *a + 1), *b = kvf_tm_take(r, count * sizeof *b + 1);
    if (!a || !b) return false;
    for (uint32_t i = 0; i < count; i++) a[i] = i;
    for (uint32_t width = 1; width < count; width *= 2) {
        for (uint32_t from = 0; from < count; from += 2 * width) {
            uint32_t i = from, middle = KVF_MIN(from + width, count), j = middle,
                     end = KVF_MIN(from + 2 * width, count);
            for (uint32_t k = from; k < end; k++) {
                bool right = j < end;
                if (i < middle && j < end) {
                    const tm_value *x = &keys[a[i]], *y = &keys[a[j]];
                    if (!kvf_tm_less(r, reverse ? x : y, reverse ? y : x, &right)) return false;
                } else if (i < middle) {
                    right = false;
                }
                b[k] = right ? a[j++] : a[i++];
            }
        }
        uint32_t *swap = a;
        a = b;
        b = swap;
    }
    *out = a;
    return true;
}

static bool sorted_list(tm_run *r, const tm_list *l, const tm_value *keys, bool reverse, tm_value *out) {
    uint32_t *order;
    tm_list *sorted = kvf_tm_list_new(r, l->count, l->trusted);
    if (!sorted || !sort_numbers(r, keys, l->count, reverse, &order)) return false;
    for (uint32_t i = 0; i < l->count; i++) sorted->items[sorted->count++] = l->items[order[i]];
    return done_list(TM_LIST, sorted, out);
}

static bool f_sort(tm_run *r, tm_call *c, tm_value *out) { /* reverse case_sensitive attribute */
    tm_list *l;
    tm_value *keys;
    return iterate(r, c, &l) && sort_keys_of(r, l, ARG(2), kvf_tm_truth(ARG(1)), &keys) &&
           sorted_list(r, l, keys, kvf_tm_truth(ARG(0)), out);
}

static bool items_of(tm_run *r, const tm_dict *d, tm_list **out) {
    tm_list *l = kvf_tm_list_new(r, d->count, d->trusted);
    if (!l || !kvf_tm_charge(r, d->count)) return false;
    for (uint32_t i = 0; i < d->count; i++) {
        tm_list *pair = kvf_tm_list_new(r, 2, d->trusted);
        if (!pair || !kvf_tm_list_add(r, pair, &d->entries[i].key) || !kvf_tm_list_add(r, pair, &d->entries[i].value))
            return false;
        tm_value v = {.kind = TM_TUPLE, .u.list = pair};
        if (!kvf_tm_list_add(r, l, &v)) return false;
    }
    *out = l;
    return true;
}

static bool f_items(tm_run *r, tm_call *c, tm_value *out) {
    tm_list *l;
    if (c->self.kind == TM_UNDEFINED) return (l = kvf_tm_list_new(r, 0, 1)) && done_list(TM_GENERATOR, l, out);
    if (c->self.kind != TM_DICT)
        return kvf_tm_fail(r, KVF_ERR_FORMAT, "items needs a dict, not %s", kvf_tm_type_name(&c->self));
    return items_of(r, c->self.u.dict, &l) && done_list(TM_GENERATOR, l, out);
}

static bool f_dictsort(tm_run *r, tm_call *c, tm_value *out) { /* case_sensitive by reverse */
    tm_list *l;
    tm_value *keys, part = tm_int(ARG(1)->kind == TM_STRING && tm_str_is(ARG(1)->u.s, "value"), 1);
    if (c->self.kind != TM_DICT)
        return kvf_tm_fail(r, KVF_ERR_FORMAT, "dictsort needs a dict, not %s", kvf_tm_type_name(&c->self));
    return items_of(r, c->self.u.dict, &l) && sort_keys_of(r, l, &part, kvf_tm_truth(ARG(0)), &keys) &&
           sorted_list(r, l, keys, kvf_tm_truth(ARG(2)), out);
}

static bool f_unique(tm_run *r, tm_call *c, tm_value *out) { /* case_sensitive attribute */
    tm_list *l, *kept;
    tm_value *keys;
    tm_dict *seen = kvf_tm_dict_new(r, 1);
    if (!seen || !iterate(r, c, &l) || !sort_keys_of(r, l, ARG(1), kvf_tm_truth(ARG(0)), &keys) ||
        !(kept = kvf_tm_list_new(r, 0, l->trusted)))
        return false;
    for (uint32_t i = 0; i < l->count; i++) {
        tm_value known;
        if (!kvf_tm_dict_get(r, seen, &keys[i], &known)) return false;
        if (known.kind != TM_MISSING) continue;
        if (!kvf_tm_dict_set(r, seen, &keys[i], &keys[i]) || !kvf_tm_list_add(r, kept, &l->items[i])) return false;
    }
    return done_list(TM_GENERATOR, kept, out);
}

static bool extreme(tm_run *r, tm_call *c, bool greatest, tm_value *out) { /* case_sensitive attribute */
    tm_list *l;
    tm_value *keys;
    uint32_t best = 0;
    if (!iterate(r, c, &l) || !sort_keys_of(r, l, ARG(1), kvf_tm_truth(ARG(0)), &keys)) return false;
    for (uint32_t i = 1; i < l->count; i++) {
        bool better;
        if (!kvf_tm_less(r, greatest ? &keys[best] : &keys[i], greatest ? &keys[i] : &keys[best], &better))
            return false;
        if (better) best = i;
    }
    *out = l->count ? l->items[best] : tm_undefined(NULL);
    return true;
}
static bool f_max(tm_run *r, tm_call *c, tm_value *out) { return extreme(r, c, true, out); }
static bool f_min(tm_run *r, tm_call *c, tm_value *out) { return extreme(r, c, false, out); }

static bool f_sum(tm_run *r, tm_call *c, tm_value *out) { /* attribute start */
    tm_list *l;
    tm_value total = given(ARG(1)) ? *ARG(1) : tm_int(0, 1);
    if (!iterate(r, c, &l)) return false;
    for (uint32_t i = 0; i < l->count; i++) {
        tm_value v, sum;
        if (!read_attribute(r, &l->items[i], ARG(0), &v) || !kvf_tm_arith(r, TM_OP_ADD, &total, &v, &sum)) return false;
        total = sum;
    }
    *out = total;
    return true;
}

static bool f_join(tm_run *r, tm_call *c, tm_value *out) { /* d attribute */
    tm_list *l, *read;
    tm_str *glue = NULL, *text;
    if (!iterate(r, c, &l) || !(read = kvf_tm_list_new(r, l->count, 1))) return false;
    if (!(given(ARG(0)) ? kvf_tm_to_str(r, ARG(0), &glue) : (glue = kvf_tm_str_new(r, "", 0, 1)) != NULL)) return false;
    for (uint32_t i = 0; i < l->count; i++) {
        tm_value v;
        if (!read_attribute(r, &l->items[i], ARG(1), &v) || !kvf_tm_list_add(r, read, &v)) return false;
    }
    return kvf_tm_str_join(r, glue, read, true, &text) && done_str(text, out);
}

/* ---- map, select, reject: they take the name of another filter or test; what is false has no items for them, not even
 * None ---- */
static bool iterate_if_true(tm_run *r, const tm_call *c, tm_list **l) {
    if (kvf_tm_truth(&c->self)) return iterate(r, c, l);
    return (*l = kvf_tm_list_new(r, 0, kvf_tm_trust_of(&c->self))) != NULL;
}

static const tm_value *keyword(const tm_call *c, const char *name) {
    for (uint32_t i = 0; i < c->keyword_count; i++)
        if (tm_str_is(c->keywords[i].name, name)) return &c->keywords[i].value;
    return NULL;
}

static bool f_map(tm_run *r, tm_call *c, tm_value *out) {
    tm_list *l, *mapped;
    const tm_value *attribute = keyword(c, "attribute"), *otherwise = keyword(c, "default");
    if (!iterate_if_true(r, c, &l) || !(mapped = kvf_tm_list_new(r, l->count, l->trusted))) return false;
    const tm_builtin *filter = NULL;
    if (!attribute) {
        if (c->pos_count == 0 || c->pos[0].kind != TM_STRING)
            return kvf_tm_fail(r, KVF_ERR_FORMAT, "map needs a filter or an attribute");
        const tm_str *name = c->pos[0].u.s;
        filter = kvf_tm_filter_find(name->data, name->len);
        if (!filter)
            return kvf_tm_fail(
                r, KVF_ERR_FORMAT, "there is no filter '%.*s'", (int)KVF_MIN(name->len, 80u), name->data);
    }
    if (!kvf_tm_enter(r)) return false;
    for (uint32_t i = 0; i < l->count; i++) {
        tm_value v;
        if (!kvf_tm_charge(r, 1)) return false;
        if (filter) {
            tm_call one = {.self = l->items[i],
                .pos = c->pos + 1,
                .pos_count = c->pos_count - 1,
                .keywords = c->keywords,
                .keyword_count = c->keyword_count};
            if (!kvf_tm_call_builtin(r, filter, &one, &v)) return false;
        } else {
            if (!read_attribute(r, &l->items[i], attribute, &v)) return false;
            if (otherwise && v.kind == TM_UNDEFINED) v = *otherwise;
        }
        if (!kvf_tm_list_add(r, mapped, &v)) return false;
    }
    kvf_tm_leave(r);
    return done_list(TM_GENERATOR, mapped, out);
}

/* with_attribute: the first argument names what of the item is tested. Without a test: is it true? */
static bool select_items(tm_run *r, tm_call *c, bool with_attribute, bool keep, tm_value *out) {
    tm_list *l, *kept;
    uint32_t skip = with_attribute;
    const tm_builtin *test = NULL;
    if (c->pos_count < skip) return kvf_tm_fail(r, KVF_ERR_FORMAT, "an attribute is missing");
    if (!iterate_if_true(r, c, &l) || !(kept = kvf_tm_list_new(r, 0, l->trusted))) return false;
    if (c->pos_count > skip) {
        const tm_value *name = &c->pos[skip++];
        test = name->kind == TM_STRING ? kvf_tm_test_find(name->u.s->data, name->u.s->len) : NULL;
        if (!test) return kvf_tm_fail(r, KVF_ERR_FORMAT, "there is no such test");
    }
    if (!kvf_tm_enter(r)) return false;
    for (uint32_t i = 0; i < l->count; i++) {
        tm_value v = l->items[i], yes;
        if (!kvf_tm_charge(r, 1) || (with_attribute && !read_attribute(r, &l->items[i], &c->pos[0], &v))) return false;
        yes = v;
        if (test) {
            tm_call one = {.self = v,
                .pos = c->pos + skip,
                .pos_count = c->pos_count - skip,
                .keywords = c->keywords,
                .keyword_count = c->keyword_count};
            if (!kvf_tm_call_builtin(r, test, &one, &yes)) return false;
        }
        if (kvf_tm_truth(&yes) == keep && !kvf_tm_list_add(r, kept, &l->items[i])) return false;
    }
    kvf_tm_leave(r);
    return done_list(TM_GENERATOR, kept, out);
}
static bool f_select(tm_run *r, tm_call *c, tm_value *out) { return select_items(r, c, false, true, out); }
static bool f_reject(tm_run *r, tm_call *c, tm_value *out) { return select_items(r, c, false, false, out); }
static bool f_selectattr(tm_run *r, tm_call *c, tm_value *out) { return select_items(r, c, true, true, out); }
static bool f_rejectattr(tm_run *r, tm_call *c, tm_value *out) { return select_items(r, c, true, false, out); }

static const tm_builtin filters[] = {{"abs", "", 0, f_abs}, {"attr", "name", 1, f_attr},
    {"capitalize", "", 0, f_capitalize}, {"count", "", 0, f_length}, {"d", "default_value boolean", 0, f_default},
    {"default", "default_value boolean", 0, f_default}, {"dictsort", "case_sensitive by reverse", 0, f_dictsort},
    {"e", "", 0, f_escape}, {"escape", "", 0, f_escape}, {"first", "", 0, f_first}, {"float", "default", 0, f_float},
    {"format", NULL, 0, f_format}, {"indent", "width first blank", 0, f_indent}, {"int", "default base", 0, f_int},
    {"items", "", 0, f_items}, {"join", "d attribute", 0, f_join}, {"last", "", 0, f_last}, {"length", "", 0, f_length},
    {"list", "", 0, f_list}, {"lower", "", 0, f_lower}, {"map", NULL, 0, f_map},
    {"max", "case_sensitive attribute", 0, f_max}, {"min", "case_sensitive attribute", 0, f_min},
    {"reject", NULL, 0, f_reject}, {"rejectattr", NULL, 0, f_rejectattr}, {"replace", "old new count", 2, f_replace},
    {"reverse", "", 0, f_reverse}, {"round", "precision method", 0, f_round}, {"safe", "", 0, f_safe},
    {"select", NULL, 0, f_select}, {"selectattr", NULL, 0, f_selectattr},
    {"sort", "reverse case_sensitive attribute", 0, f_sort}, {"string", "", 0, f_string},
    {"sum", "attribute start", 0, f_sum}, {"title", "", 0, f_title},
    {"tojson", "ensure_ascii indent separators sort_keys", 0, f_tojson}, {"trim", "chars", 0, f_trim},
    {"unique", "case_sensitive attribute", 0, f_unique}, {"upper", "", 0, f_upper}};

const tm_builtin *kvf_tm_filter_find(const char *name, size_t len_bytes) {
    return kvf_tm_table_find(filters, KVF_COUNT_OF(filters), name, len_bytes);
}
