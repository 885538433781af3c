/* methods.c - methods of text, dictionaries, lists and loops, as Python names them. None changes its object. */
#include "template_int.h"
#include <utf8proc.h>

#define ARG(i) (&c->slot[i])
static bool done_str(tm_str *s, tm_value *out) {
    *out = tm_string(s);
    return s != NULL;
}

/* The text of an argument, NULL where it was not given or is None. */
static bool text_arg(tm_run *r, const tm_value *v, tm_str **out) {
    *out = NULL;
    if (v->kind == TM_MISSING || v->kind == TM_NONE) return true;
    if (v->kind != TM_STRING) return kvf_tm_fail(r, KVF_ERR_FORMAT, "a str is needed, not %s", kvf_tm_type_name(v));
    *out = v->u.s;
    return true;
}

static bool strip(tm_run *r, tm_call *c, bool left, bool right, tm_value *out) {
    tm_str *chars;
    return text_arg(r, ARG(0), &chars) && done_str(kvf_tm_str_strip(r, c->self.u.s, chars, left, right), out);
}
static bool s_strip(tm_run *r, tm_call *c, tm_value *out) { return strip(r, c, true, true, out); }
static bool s_lstrip(tm_run *r, tm_call *c, tm_value *out) { return strip(r, c, true, false, out); }
static bool s_rstrip(tm_run *r, tm_call *c, tm_value *out) { return strip(r, c, false, true, out); }

static bool s_upper(tm_run *r, tm_call *c, tm_value *out) {
    return done_str(kvf_tm_str_case(r, c->self.u.s, TM_CASE_UPPER), out);
}
static bool s_lower(tm_run *r, tm_call *c, tm_value *out) {
    return done_str(kvf_tm_str_case(r, c->self.u.s, TM_CASE_LOWER), out);
}
static bool s_title(tm_run *r, tm_call *c, tm_value *out) {
    return done_str(kvf_tm_str_case(r, c->self.u.s, TM_CASE_TITLE), out);
}
static bool s_capitalize(tm_run *r, tm_call *c, tm_value *out) {
    return done_str(kvf_tm_str_case(r, c->self.u.s, TM_CASE_CAPITALIZE), out);
}

/* ---- split ---- */
static bool add_part(tm_run *r, tm_list *l, const tm_str *s, size_t from, size_t to) {
    tm_str *part = kvf_tm_str_slice(r, s, from, to - from);
    tm_value v = tm_string(part);
    return part && kvf_tm_charge(r, 1) && kvf_tm_list_add(r, l, &v);
}

static size_t space_len(const tm_str *s, size_t at) {
    uint32_t cp = 0;
    size_t n = kvf_tm_utf8_decode(s->data + at, s->len - at, &cp);
    return kvf_tm_is_space(cp) ? n : 0;
}

static bool split_space(tm_run *r, const tm_str *s, int64_t splits, tm_list *l) {
    size_t at = 0, n;
    for (;;) {
        while (at < s->len && (n = space_len(s, at)) != 0) at += n;
        if (at == s->len) return true;
        size_t from = at;
        if (splits-- == 0) return add_part(r, l, s, from, s->len);
        while (at < s->len && !space_len(s, at)) at++;
        if (!add_part(r, l, s, from, at)) return false;
    }
}

static bool split_at(tm_run *r, const tm_str *s, const tm_str *separator, int64_t splits, tm_list *l) {
    size_t from = 0, at;
    for (; splits != 0; splits--) {
        if (!kvf_tm_str_find(r, s, separator, from, &at)) return false;
        if (at == SIZE_MAX) break;
        if (!add_part(r, l, s, from, at)) return false;
        from = at + separator->len;
    }
    return add_part(r, l, s, from, s->len);
}

static bool s_split(tm_run *r, tm_call *c, tm_value *out) {
    tm_str *separator;
    int64_t splits = -1;
    tm_list *l = kvf_tm_list_new(r, 0, kvf_tm_trust_of(&c->self));
    if (!l || !text_arg(r, ARG(0), &separator) || !kvf_tm_charge(r, c->self.u.s->len / 64)) return false;
    kvf_tm_as_int(ARG(1), &splits);
    if (separator && separator->len == 0)
        return kvf_tm_fail(r, KVF_ERR_FORMAT, "split needs a separator that is not empty");
    *out = (tm_value){.kind = TM_LIST, .u.list = l};
    return separator ? split_at(r, c->self.u.s, separator, splits, l) : split_space(r, c->self.u.s, splits, l);
}

static size_t find_last(const tm_str *s, const tm_str *what, size_t from, size_t end) { /* SIZE_MAX: absent */
    for (size_t at = end; at >= from + what->len; at--)
        if (memcmp(s->data + at - what->len, what->data, what->len) == 0) return at - what->len;
    return SIZE_MAX;
}

/* Like split, but counts its splits from the end. */
static bool s_rsplit(tm_run *r, tm_call *c, tm_value *out) {
    tm_str *separator, *s = c->self.u.s;
    int64_t splits = -1;
    kvf_tm_as_int(ARG(1), &splits);
    if (!text_arg(r, ARG(0), &separator)) return false;
    if (splits < 0) return s_split(r, c, out);
    if (!separator || separator->len == 0)
        return kvf_tm_fail(r, KVF_ERR_FORMAT, "rsplit with a limit needs a separator");
    tm_list *turned = kvf_tm_list_new(r, 0, 1), *l;
    size_t end = s->len, at;
    if (!turned || !kvf_tm_charge(r, s->len / 16)) return false;
    for (; splits > 0 && (at = find_last(s, separator, 0, end)) != SIZE_MAX; splits--, end = at)
        if (!add_part(r, turned, s, at + separator->len, end)) return false;
    if (!add_part(r, turned, s, 0, end) || !(l = kvf_tm_list_new(r, turned->count, kvf_tm_trust_of(&c->self))))
        return false;
    for (uint32_t i = turned->count; i-- > 0;) l->items[l->count++] = turned->items[i];
    *out = (tm_value){.kind = TM_LIST, .u.list = l};
    return true;
}

static bool s_splitlines(tm_run *r, tm_call *c, tm_value *out) {
    tm_list *l = kvf_tm_list_new(r, 0, kvf_tm_trust_of(&c->self));
    if (!l || !kvf_tm_str_lines(r, c->self.u.s, kvf_tm_truth(ARG(0)), l)) return false;
    *out = (tm_value){.kind = TM_LIST, .u.list = l};
    return true;
}

static bool cut_in_three(tm_run *r, tm_call *c, bool last, tm_value *out) {
    tm_str *s = c->self.u.s, *separator;
    size_t at;
    tm_list *l = kvf_tm_list_new(r, 3, 1);
    if (!l || !text_arg(r, ARG(0), &separator)) return false;
    if (!separator || separator->len == 0)
        return kvf_tm_fail(r, KVF_ERR_FORMAT, "partition needs a separator that is not empty");
    if (!kvf_tm_str_find(r, s, separator, 0, &at) || !kvf_tm_charge(r, last ? s->len / 16 : 0)) return false;
    if (last && at != SIZE_MAX) at = find_last(s, separator, 0, s->len);
    size_t a = at == SIZE_MAX ? (last ? 0 : s->len) : at, b = at == SIZE_MAX ? a : at + separator->len;
    *out = (tm_value){.kind = TM_TUPLE, .trusted = 1, .u.list = l};
    return add_part(r, l, s, 0, a) && add_part(r, l, s, a, b) && add_part(r, l, s, b, s->len);
}
static bool s_partition(tm_run *r, tm_call *c, tm_value *out) { return cut_in_three(r, c, false, out); }
static bool s_rpartition(tm_run *r, tm_call *c, tm_value *out) { return cut_in_three(r, c, true, out); }

/* ---- looking into text ---- */

/* The part [start, end) that the arguments from slot `first` on name. */
static bool window(tm_run *r, tm_call *c, int first, tm_value *part, size_t *offset) {
    tm_value none = tm_none(), *from = ARG(first), *to = ARG(first + 1);
    *part = c->self;
    *offset = 0;
    if (from->kind == TM_MISSING && to->kind == TM_MISSING) return true;
    if (!kvf_tm_slice(
            r, &c->self, from->kind == TM_MISSING ? &none : from, to->kind == TM_MISSING ? &none : to, &none, part))
        return false;
    if (part->u.s->len) *offset = (size_t)(part->u.s->data - c->self.u.s->data);
    return true;
}

static bool fits_at(const tm_str *s, const tm_str *what, bool end) {
    return what->len <= s->len && memcmp(s->data + (end ? s->len - what->len : 0), what->data, what->len) == 0;
}

static bool has_affix(tm_run *r, tm_call *c, bool end, tm_value *out) {
    tm_value part;
    size_t offset;
    const tm_value *what = ARG(0);
    bool yes = false;
    if (!window(r, c, 1, &part, &offset)) return false;
    uint32_t count = what->kind == TM_TUPLE ? what->u.list->count : 1;
    for (uint32_t i = 0; i < count; i++) {
        tm_str *s;
        if (!text_arg(r, what->kind == TM_TUPLE ? &what->u.list->items[i] : what, &s)) return false;
        if (!s) return kvf_tm_fail(r, KVF_ERR_FORMAT, "a str is needed, not None");
        yes = yes || fits_at(part.u.s, s, end);
    }
    *out = tm_bool(yes);
    return true;
}
static bool s_startswith(tm_run *r, tm_call *c, tm_value *out) { return has_affix(r, c, false, out); }
static bool s_endswith(tm_run *r, tm_call *c, tm_value *out) { return has_affix(r, c, true, out); }

static bool remove_affix(tm_run *r, tm_call *c, bool end, tm_value *out) {
    tm_str *s = c->self.u.s, *what;
    if (!text_arg(r, ARG(0), &what)) return false;
    if (!what || !fits_at(s, what, end)) return done_str(s, out);
    return done_str(kvf_tm_str_slice(r, s, end ? 0 : what->len, s->len - what->len), out);
}
static bool s_removeprefix(tm_run *r, tm_call *c, tm_value *out) { return remove_affix(r, c, false, out); }
static bool s_removesuffix(tm_run *r, tm_call *c, tm_value *out) { return remove_affix(r, c, true, out); }

static bool locate(tm_run *r, tm_call *c, bool last, bool must, tm_value *out) {
    tm_value part;
    tm_str *what, *s = c->self.u.s;
    size_t offset, at;
    if (!text_arg(r, ARG(0), &what) || !window(r, c, 1, &part, &offset)) return false;
    if (!what) return kvf_tm_fail(r, KVF_ERR_FORMAT, "a str is needed, not None");
    if (!kvf_tm_str_find(r, part.u.s, what, 0, &at)) return false;
    if (last && at != SIZE_MAX) at = find_last(part.u.s, what, 0, part.u.s->len);
    if (!kvf_tm_charge(r, s->len / (last ? 16 : 256))) return false;
    if (at == SIZE_MAX && must) return kvf_tm_fail(r, KVF_ERR_FORMAT, "substring not found");
    int64_t chars = -1;
    if (at != SIZE_MAX) {
        tm_str before = {.data = s->data, .len = (uint32_t)(offset + at), .chars = TM_CHARS_UNKNOWN};
        chars = kvf_tm_str_chars(&before);
    }
    *out = tm_int(chars, kvf_tm_trust_of(&c->self));
    return true;
}
static bool s_find(tm_run *r, tm_call *c, tm_value *out) { return locate(r, c, false, false, out); }
static bool s_rfind(tm_run *r, tm_call *c, tm_value *out) { return locate(r, c, true, false, out); }
static bool s_index(tm_run *r, tm_call *c, tm_value *out) { return locate(r, c, false, true, out); }
static bool s_rindex(tm_run *r, tm_call *c, tm_value *out) { return locate(r, c, true, true, out); }

static bool s_count(tm_run *r, tm_call *c, tm_value *out) {
    tm_value part;
    tm_str *what;
    size_t offset, at = 0;
    int64_t n = 0;
    if (!text_arg(r, ARG(0), &what) || !window(r, c, 1, &part, &offset)) return false;
    if (!what) return kvf_tm_fail(r, KVF_ERR_FORMAT, "a str is needed, not None");
    if (what->len == 0) {
        n = (int64_t)kvf_tm_str_chars(part.u.s) + 1;
    } else {
        if (!kvf_tm_charge(r, part.u.s->len / 64)) return false;
        const char *p, *data = part.u.s->data;
        while ((p = memmem(data + at, part.u.s->len - at, what->data, what->len)) != NULL) {
            at = (size_t)(p - data) + what->len;
            n++;
        }
    }
    *out = tm_int(n, kvf_tm_trust_of(&c->self));
    return true;
}

static bool s_replace(tm_run *r, tm_call *c, tm_value *out) {
    tm_str *old, *with;
    int64_t count = -1;
    if (!text_arg(r, ARG(0), &old) || !text_arg(r, ARG(1), &with)) return false;
    if (!old || !with) return kvf_tm_fail(r, KVF_ERR_FORMAT, "replace needs str, not None");
    kvf_tm_as_int(ARG(2), &count);
    return done_str(kvf_tm_str_replace(r, c->self.u.s, old, with, count), out);
}

static bool s_join(tm_run *r, tm_call *c, tm_value *out) {
    tm_list *l;
    tm_str *text;
    return kvf_tm_iterate(r, ARG(0), &l) && kvf_tm_str_join(r, c->self.u.s, l, false, &text) && done_str(text, out);
}

/* "{}", "{0}" and "{name}" without conversions; "{{" and "}}" are braces. Attributes of arguments are out of reach. */
static bool s_format(tm_run *r, tm_call *c, tm_value *out) {
    const tm_str *s = c->self.u.s;
    tm_buf b = {0};
    uint32_t next = 0;
    for (size_t at = 0; at < s->len; at++) {
        char ch = s->data[at];
        bool twice = at + 1 < s->len && s->data[at + 1] == ch;
        if ((ch != '{' && ch != '}') || twice) {
            at += (ch == '{' || ch == '}') && twice;
            if (!kvf_tm_buf_add(r, &b, &ch, NULL, tm_str_trust(s, at), 1)) return false;
            continue;
        }
        const char *close = ch == '{' ? memchr(s->data + at, '}', s->len - at) : NULL;
        if (!close) return kvf_tm_fail(r, KVF_ERR_FORMAT, "a brace in a format is alone");
        const char *name = s->data + at + 1;
        size_t n = (size_t)(close - name);
        const tm_value *v = NULL;
        if (n == 0 && next < c->pos_count) v = &c->pos[next++];
        if (n == 1 && name[0] >= '0' && name[0] <= '9' && (uint32_t)(name[0] - '0') < c->pos_count)
            v = &c->pos[name[0] - '0'];
        for (uint32_t i = 0; i < c->keyword_count; i++)
            if (c->keywords[i].name->len == n && memcmp(c->keywords[i].name->data, name, n) == 0)
                v = &c->keywords[i].value;
        if (!v)
            return kvf_tm_fail(r, KVF_ERR_FORMAT, "a field of a format has no argument, or asks for more than text");
        if (!kvf_tm_print(r, &b, v) || !kvf_tm_charge(r, 1)) return false;
        at += n + 1;
    }
    return done_str(kvf_tm_buf_finish(r, &b), out);
}

/* ---- questions about all characters ---- */
typedef enum { ALL_DIGIT, ALL_ALPHA, ALL_ALNUM, ALL_SPACE } all_kind;
static bool every(tm_run *r, tm_call *c, all_kind kind, tm_value *out) {
    const tm_str *s = c->self.u.s;
    bool yes = s->len > 0;
    for (size_t at = 0, n; yes && at < s->len; at += n) {
        uint32_t cp = 0;
        n = kvf_tm_utf8_decode(s->data + at, s->len - at, &cp);
        utf8proc_category_t k = utf8proc_category((utf8proc_int32_t)cp);
        bool digit = k == UTF8PROC_CATEGORY_ND, alpha = k >= UTF8PROC_CATEGORY_LU && k <= UTF8PROC_CATEGORY_LO;
        yes = kind == ALL_DIGIT   ? digit
              : kind == ALL_ALPHA ? alpha
              : kind == ALL_ALNUM ? digit || alpha
                                  : kvf_tm_is_space(cp);
    }
    *out = tm_bool(yes);
    return kvf_tm_charge(r, s->len / 64);
}
static bool s_isdigit(tm_run *r, tm_call *c, tm_value *out) { return every(r, c, ALL_DIGIT, out); }
static bool s_isalpha(tm_run *r, tm_call *c, tm_value *out) { return every(r, c, ALL_ALPHA, out); }
static bool s_isalnum(tm_run *r, tm_call *c, tm_value *out) { return every(r, c, ALL_ALNUM, out); }
static bool s_isspace(tm_run *r, tm_call *c, tm_value *out) { return every(r, c, ALL_SPACE, out); }

static bool one_case(tm_run *r, tm_call *c, tm_case how, tm_value *out) {
    tm_case other = how == TM_CASE_UPPER ? TM_CASE_LOWER : TM_CASE_UPPER;
    tm_str *same = kvf_tm_str_case(r, c->self.u.s, how), *changed = kvf_tm_str_case(r, c->self.u.s, other);
    if (!same || !changed) return false;
    *out = tm_bool(kvf_tm_str_equal(same, c->self.u.s) && !kvf_tm_str_equal(changed, c->self.u.s));
    return true;
}
static bool s_isupper(tm_run *r, tm_call *c, tm_value *out) { return one_case(r, c, TM_CASE_UPPER, out); }
static bool s_islower(tm_run *r, tm_call *c, tm_value *out) { return one_case(r, c, TM_CASE_LOWER, out); }

/* ---- dictionaries ---- */
static bool d_get(tm_run *r, tm_call *c, tm_value *out) {
    if (!kvf_tm_dict_get(r, c->self.u.dict, ARG(0), out)) return false;
    if (out->kind == TM_MISSING) *out = ARG(1)->kind == TM_MISSING ? tm_none() : *ARG(1);
    return true;
}

static bool d_view(tm_run *r, tm_call *c, bool keys, bool values, tm_value *out) {
    const tm_dict *d = c->self.u.dict;
    tm_list *l = kvf_tm_list_new(r, d->count, d->trusted);
    if (!l || !kvf_tm_charge(r, d->count / 4)) return false;
    for (uint32_t i = 0; i < d->count; i++) {
        tm_value v = keys ? d->entries[i].key : d->entries[i].value;
        if (keys && values) {
            tm_list *pair = kvf_tm_list_new(r, 2, d->trusted);
            if (!pair || !kvf_tm_list_add(r, pair, &d->entries[i].key) ||
                !kvf_tm_list_add(r, pair, &d->entries[i].value))
                return false;
            v = (tm_value){.kind = TM_TUPLE, .u.list = pair};
        }
        if (!kvf_tm_list_add(r, l, &v)) return false;
    }
    *out = (tm_value){.kind = TM_VIEW, .u.list = l};
    return true;
}
static bool d_keys(tm_run *r, tm_call *c, tm_value *out) { return d_view(r, c, true, false, out); }
static bool d_values(tm_run *r, tm_call *c, tm_value *out) { return d_view(r, c, false, true, out); }
static bool d_items(tm_run *r, tm_call *c, tm_value *out) { return d_view(r, c, true, true, out); }
static bool d_copy(tm_run *r, tm_call *c, tm_value *out) { /* nothing changes, so the same will do */
    *out = c->self;
    return true;
}

/* ---- lists ---- */
static bool l_index(tm_run *r, tm_call *c, tm_value *out) {
    const tm_list *l = c->self.u.list;
    for (uint32_t i = 0; i < l->count; i++) {
        bool same;
        if (!kvf_tm_equal(r, &l->items[i], ARG(0), &same)) return false;
        if (same) {
            *out = tm_int(i, 1);
            return true;
        }
    }
    return kvf_tm_fail(r, KVF_ERR_FORMAT, "the value is not in the list");
}

static bool l_count(tm_run *r, tm_call *c, tm_value *out) {
    const tm_list *l = c->self.u.list;
    int64_t n = 0;
    for (uint32_t i = 0; i < l->count; i++) {
        bool same;
        if (!kvf_tm_equal(r, &l->items[i], ARG(0), &same)) return false;
        n += same;
    }
    *out = tm_int(n, l->trusted);
    return true;
}

/* ---- loops ---- */
static bool loop_cycle(tm_run *r, tm_call *c, tm_value *out) {
    if (c->pos_count == 0) return kvf_tm_fail(r, KVF_ERR_FORMAT, "loop.cycle needs values");
    *out = c->pos[c->self.u.loop->index % c->pos_count];
    return true;
}

static bool loop_changed(tm_run *r, tm_call *c, tm_value *out) {
    tm_loop *l = c->self.u.loop;
    tm_list *now = kvf_tm_list_new(r, c->pos_count, 1);
    bool same = false;
    if (!now) return false;
    for (uint32_t i = 0; i < c->pos_count; i++)
        if (!kvf_tm_list_add(r, now, &c->pos[i])) return false;
    tm_value v = {.kind = TM_TUPLE, .trusted = 1, .u.list = now};
    if (l->changed.kind != TM_MISSING && !kvf_tm_equal(r, &l->changed, &v, &same)) return false;
    l->changed = v;
    *out = tm_bool(!same);
    return true;
}

static const tm_builtin of_str[] = {{"capitalize", "", 0, s_capitalize}, {"casefold", "", 0, s_lower},
    {"count", "sub start end", 1, s_count}, {"endswith", "suffix start end", 1, s_endswith},
    {"find", "sub start end", 1, s_find}, {"format", NULL, 0, s_format}, {"index", "sub start end", 1, s_index},
    {"isalnum", "", 0, s_isalnum}, {"isalpha", "", 0, s_isalpha}, {"isdecimal", "", 0, s_isdigit},
    {"isdigit", "", 0, s_isdigit}, {"islower", "", 0, s_islower}, {"isnumeric", "", 0, s_isdigit},
    {"isspace", "", 0, s_isspace}, {"isupper", "", 0, s_isupper}, {"join", "iterable", 1, s_join},
    {"lower", "", 0, s_lower}, {"lstrip", "chars", 0, s_lstrip}, {"partition", "sep", 1, s_partition},
    {"removeprefix", "prefix", 1, s_removeprefix}, {"removesuffix", "suffix", 1, s_removesuffix},
    {"replace", "old new count", 2, s_replace}, {"rfind", "sub start end", 1, s_rfind},
    {"rindex", "sub start end", 1, s_rindex}, {"rpartition", "sep", 1, s_rpartition},
    {"rsplit", "sep maxsplit", 0, s_rsplit}, {"rstrip", "chars", 0, s_rstrip}, {"split", "sep maxsplit", 0, s_split},
    {"splitlines", "keepends", 0, s_splitlines}, {"startswith", "prefix start end", 1, s_startswith},
    {"strip", "chars", 0, s_strip}, {"title", "", 0, s_title}, {"upper", "", 0, s_upper}};
static const tm_builtin of_dict[] = {{"copy", "", 0, d_copy}, {"get", "key default", 1, d_get},
    {"items", "", 0, d_items}, {"keys", "", 0, d_keys}, {"values", "", 0, d_values}};
static const tm_builtin of_list[] = {
    {"copy", "", 0, d_copy}, {"count", "value", 1, l_count}, {"index", "value", 1, l_index}};
static const tm_builtin of_loop[] = {{"changed", NULL, 0, loop_changed}, {"cycle", NULL, 0, loop_cycle}};

const tm_builtin *kvf_tm_method_find(tm_kind kind, const char *name, size_t len_bytes) {
    switch (kind) {
    case TM_STRING: return kvf_tm_table_find(of_str, KVF_COUNT_OF(of_str), name, len_bytes);
    case TM_DICT: return kvf_tm_table_find(of_dict, KVF_COUNT_OF(of_dict), name, len_bytes);
    case TM_LIST: return kvf_tm_table_find(of_list, KVF_COUNT_OF(of_list), name, len_bytes);
    case TM_TUPLE: return kvf_tm_table_find(of_list + 1, KVF_COUNT_OF(of_list) - 1, name, len_bytes);
    case TM_LOOP: return kvf_tm_table_find(of_loop, KVF_COUNT_OF(of_loop), name, len_bytes);
    default: return NULL;
    }
}
