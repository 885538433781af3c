/* value.c - lists, dictionaries, comparison, iteration, attributes and items of values; values made from JSON. */
#include "template_int.h"
#include "kvf/hash.h"
#include <math.h>

const char *kvf_tm_type_name(const tm_value *v) {
    static const char *const names[] = {"nothing", "undefined", "None", "bool", "int", "float", "str", "list", "tuple",
        "generator", "view", "dict", "namespace", "macro", "function", "method", "loop"};
    return names[v->kind];
}

bool kvf_tm_truth(const tm_value *v) {
    switch (v->kind) {
    case TM_MISSING:
    case TM_UNDEFINED:
    case TM_NONE: return false;
    case TM_BOOL: return v->u.b;
    case TM_INT: return v->u.i != 0;
    case TM_FLOAT: return v->u.f != 0;
    case TM_STRING: return v->u.s->len != 0;
    case TM_LIST:
    case TM_TUPLE:
    case TM_VIEW: return v->u.list->count != 0;
    case TM_DICT: return v->u.dict->count != 0;
    default: return true;
    }
}

uint8_t kvf_tm_trust_of(const tm_value *v) {
    switch (v->kind) {
    case TM_STRING: return v->u.s->mask ? v->u.s->len == 0 || !memchr(v->u.s->mask, 0, v->u.s->len) : v->u.s->uniform;
    case TM_LIST:
    case TM_TUPLE:
    case TM_GENERATOR:
    case TM_VIEW: return v->u.list->trusted;
    case TM_DICT: return v->u.dict->trusted;
    case TM_NONE:
    case TM_BOOL:
    case TM_INT:
    case TM_FLOAT: return v->trusted;
    default: return 1;
    }
}

bool kvf_tm_as_int(const tm_value *v, int64_t *out) {
    if (v->kind != TM_INT && v->kind != TM_BOOL) return false;
    *out = v->kind == TM_INT ? v->u.i : v->u.b;
    return true;
}
bool kvf_tm_as_float(const tm_value *v, double *out) {
    int64_t i;
    if (v->kind == TM_FLOAT)
        *out = v->u.f;
    else if (kvf_tm_as_int(v, &i))
        *out = (double)i;
    else
        return false;
    return true;
}

/* ---- comparison ---- */
static bool equal_lists(tm_run *r, const tm_list *a, const tm_list *b, bool *out) {
    *out = a->count == b->count;
    for (uint32_t i = 0; *out && i < a->count; i++)
        if (!kvf_tm_equal(r, &a->items[i], &b->items[i], out)) return false;
    return true;
}
static bool equal_dicts(tm_run *r, const tm_dict *a, const tm_dict *b, bool *out) {
    *out = a->count == b->count;
    for (uint32_t i = 0; *out && i < a->count; i++) {
        tm_value other;
        if (!kvf_tm_dict_get(r, b, &a->entries[i].key, &other)) return false;
        *out = other.kind != TM_MISSING;
        if (*out && !kvf_tm_equal(r, &a->entries[i].value, &other, out)) return false;
    }
    return true;
}

bool kvf_tm_equal(tm_run *r, const tm_value *a, const tm_value *b, bool *out) {
    double x, y;
    *out = false;
    if (!kvf_tm_enter(r)) return false;
    bool ok = true;
    if (tm_is_number(a) && tm_is_number(b)) {
        int64_t i, j;
        if (kvf_tm_as_int(a, &i) && kvf_tm_as_int(b, &j))
            *out = i == j;
        else
            *out = kvf_tm_as_float(a, &x) && kvf_tm_as_float(b, &y) && x == y;
    } else if (a->kind != b->kind) {
        *out = false;
    } else if (a->kind == TM_STRING) {
        *out = kvf_tm_str_equal(a->u.s, b->u.s);
        ok = a->u.s->len != b->u.s->len || kvf_tm_charge(r, a->u.s->len / 256);
    } else if (tm_is_listlike(a) && a->kind != TM_GENERATOR) {
        ok = equal_lists(r, a->u.list, b->u.list, out);
    } else if (a->kind == TM_DICT) {
        ok = equal_dicts(r, a->u.dict, b->u.dict, out);
    } else {
        *out = a->kind == TM_NONE || a->kind == TM_UNDEFINED || a->u.list == b->u.list;
    }
    kvf_tm_leave(r);
    return ok;
}

bool kvf_tm_less(tm_run *r, const tm_value *a, const tm_value *b, bool *out) {
    if (!kvf_tm_enter(r)) return false;
    bool ok = true;
    double x, y;
    int64_t i, j;
    if (kvf_tm_as_int(a, &i) && kvf_tm_as_int(b, &j)) {
        *out = i < j;
    } else if (kvf_tm_as_float(a, &x) && kvf_tm_as_float(b, &y)) {
        *out = x < y;
    } else if (a->kind == TM_STRING && b->kind == TM_STRING) { /* UTF-8 sorts like code points */
        const tm_str *s = a->u.s, *t = b->u.s;
        int order = memcmp(s->data, t->data, KVF_MIN(s->len, t->len));
        *out = order ? order < 0 : s->len < t->len;
        ok = kvf_tm_charge(r, KVF_MIN(s->len, t->len) / 256);
    } else if ((a->kind == TM_LIST || a->kind == TM_TUPLE) && a->kind == b->kind) {
        const tm_list *s = a->u.list, *t = b->u.list;
        uint32_t k = 0;
        bool same = true;
        while (
            ok && k < KVF_MIN(s->count, t->count) && (ok = kvf_tm_equal(r, &s->items[k], &t->items[k], &same)) && same)
            k++;
        if (ok && k < KVF_MIN(s->count, t->count))
            ok = kvf_tm_less(r, &s->items[k], &t->items[k], out);
        else
            *out = s->count < t->count;
    } else {
        ok = kvf_tm_fail(r, KVF_ERR_FORMAT, "%s and %s have no order", kvf_tm_type_name(a), kvf_tm_type_name(b));
    }
    kvf_tm_leave(r);
    return ok;
}

bool kvf_tm_contains(tm_run *r, const tm_value *in, const tm_value *item, bool *out) {
    *out = false;
    if (in->kind == TM_STRING) {
        size_t at;
        if (item->kind != TM_STRING)
            return kvf_tm_fail(r, KVF_ERR_FORMAT, "'in' a str needs a str, not %s", kvf_tm_type_name(item));
        if (!kvf_tm_str_find(r, in->u.s, item->u.s, 0, &at)) return false;
        *out = at != SIZE_MAX;
        return true;
    }
    if (in->kind == TM_DICT) {
        tm_value found;
        if (!kvf_tm_dict_get(r, in->u.dict, item, &found)) return false;
        *out = found.kind != TM_MISSING;
        return true;
    }
    if (in->kind == TM_UNDEFINED) return true;
    if (!tm_is_listlike(in)) return kvf_tm_fail(r, KVF_ERR_FORMAT, "nothing can be 'in' %s", kvf_tm_type_name(in));
    for (uint32_t i = 0; !*out && i < in->u.list->count; i++)
        if (!kvf_tm_equal(r, &in->u.list->items[i], item, out)) return false;
    return true;
}

/* ---- lists ---- */
tm_list *kvf_tm_list_new(tm_run *r, uint32_t cap, uint8_t trusted) {
    tm_list *l = kvf_tm_take(r, sizeof *l);
    if (!l) return NULL;
    l->trusted = trusted;
    if (cap && !(l->items = kvf_tm_take(r, cap * sizeof *l->items))) return NULL;
    l->cap = cap;
    return l;
}

bool kvf_tm_list_add(tm_run *r, tm_list *l, const tm_value *v) {
    if (l->count == l->cap) {
        uint32_t cap = l->cap ? l->cap * 2 : 4;
        tm_value *grown = kvf_tm_take(r, cap * sizeof *grown);
        if (!grown) return false;
        if (l->count) memcpy(grown, l->items, l->count * sizeof *grown);
        l->items = grown;
        l->cap = cap;
    }
    l->items[l->count++] = *v;
    return true;
}

/* ---- dictionaries ---- */
enum { INDEX_FROM = 8 };

tm_dict *kvf_tm_dict_new(tm_run *r, uint8_t trusted) {
    tm_dict *d = kvf_tm_take(r, sizeof *d);
    if (d) d->trusted = trusted;
    return d;
}

/* Equal keys hash equally: 1, 1.0 and true are one key. */
static bool hash_key(tm_run *r, const tm_value *key, uint64_t *hash) {
    int64_t i;
    if (key->kind == TM_STRING) {
        *hash = kvf_hash64_of(key->u.s->data, key->u.s->len, 0);
        return kvf_tm_charge(r, key->u.s->len / 256);
    }
    if (!kvf_tm_as_int(key, &i)) {
        if (key->kind == TM_FLOAT && key->u.f >= -9e15 && key->u.f <= 9e15 && key->u.f == floor(key->u.f))
            i = (int64_t)key->u.f;
        else if (key->kind == TM_FLOAT)
            memcpy(&i, &key->u.f, sizeof i);
        else if (key->kind == TM_NONE || key->kind == TM_UNDEFINED)
            i = INT64_MIN;
        else
            return kvf_tm_fail(r, KVF_ERR_FORMAT, "%s cannot be a key", kvf_tm_type_name(key));
    }
    *hash = (uint64_t)i * 0x9e3779b97f4a7c15ull;
    return true;
}

static bool find_entry(tm_run *r, const tm_dict *d, const tm_value *key, uint64_t hash, uint32_t *at) {
    bool same = false;
    *at = UINT32_MAX;
    if (!d->index) {
        for (uint32_t i = 0; i < d->count; i++) {
            if (d->entries[i].hash != hash) continue;
            if (!kvf_tm_equal(r, &d->entries[i].key, key, &same)) return false;
            if (same) *at = i;
        }
        return true;
    }
    for (uint32_t slot = (uint32_t)(hash >> 32) & (d->index_cap - 1); d->index[slot];
         slot = (slot + 1) & (d->index_cap - 1)) {
        uint32_t i = d->index[slot] - 1;
        if (d->entries[i].hash != hash) {
            if (!kvf_tm_charge(r, 1)) return false;
            continue;
        }
        if (!kvf_tm_equal(r, &d->entries[i].key, key, &same)) return false;
        if (same) {
            *at = i;
            return true;
        }
    }
    return true;
}

static void index_put(tm_dict *d, uint32_t entry) {
    uint32_t slot = (uint32_t)(d->entries[entry].hash >> 32) & (d->index_cap - 1);
    while (d->index[slot]) slot = (slot + 1) & (d->index_cap - 1);
    d->index[slot] = entry + 1;
}

static bool dict_grow(tm_run *r, tm_dict *d) {
    uint32_t cap = d->cap ? d->cap * 2 : 4;
    tm_entry *grown = kvf_tm_take(r, cap * sizeof *grown);
    if (!grown) return false;
    if (d->count) memcpy(grown, d->entries, d->count * sizeof *grown);
    d->entries = grown;
    d->cap = cap;
    if (cap <= INDEX_FROM) return true;
    if (!(d->index = kvf_tm_take(r, cap * 2 * sizeof *d->index))) return false;
    d->index_cap = cap * 2;
    for (uint32_t i = 0; i < d->count; i++) index_put(d, i);
    return true;
}

bool kvf_tm_dict_set(tm_run *r, tm_dict *d, const tm_value *key, const tm_value *value) {
    uint64_t hash = 0;
    uint32_t at;
    if (!hash_key(r, key, &hash) || !find_entry(r, d, key, hash, &at)) return false;
    if (at != UINT32_MAX) {
        d->entries[at].value = *value;
        return true;
    }
    if (d->count == d->cap && !dict_grow(r, d)) return false;
    d->entries[d->count] = (tm_entry){.key = *key, .value = *value, .hash = hash};
    if (d->index) index_put(d, d->count);
    d->count++;
    return true;
}

bool kvf_tm_dict_get(tm_run *r, const tm_dict *d, const tm_value *key, tm_value *out) {
    uint64_t hash = 0;
    uint32_t at;
    if (!hash_key(r, key, &hash) || !find_entry(r, d, key, hash, &at)) return false;
    *out = at == UINT32_MAX ? (tm_value){.kind = TM_MISSING} : d->entries[at].value;
    return true;
}

/* ---- iteration ---- */
static bool iterate_str(tm_run *r, tm_str *s, tm_list **out) {
    tm_list *l = kvf_tm_list_new(r, kvf_tm_str_chars(s), 1);
    if (!l || !kvf_tm_charge(r, s->len / 16)) return false;
    for (size_t at = 0, n; at < s->len; at += n) {
        for (n = 1; at + n < s->len && ((uint8_t)s->data[at + n] & 0xc0) == 0x80; n++) {
        }
        tm_str *one = kvf_tm_str_slice(r, s, at, n);
        tm_value v = tm_string(one);
        if (!one || !kvf_tm_list_add(r, l, &v)) return false;
    }
    *out = l;
    return true;
}

bool kvf_tm_iterate(tm_run *r, const tm_value *v, tm_list **out) {
    if (tm_is_listlike(v)) {
        *out = v->u.list;
        return true;
    }
    if (v->kind == TM_STRING) return iterate_str(r, v->u.s, out);
    if (v->kind != TM_DICT && v->kind != TM_UNDEFINED)
        return kvf_tm_fail(r, KVF_ERR_FORMAT, "%s cannot be iterated", kvf_tm_type_name(v));
    uint32_t count = v->kind == TM_DICT ? v->u.dict->count : 0;
    tm_list *l = kvf_tm_list_new(r, count, kvf_tm_trust_of(v));
    if (!l || !kvf_tm_charge(r, count / 16)) return false;
    for (uint32_t i = 0; i < count; i++)
        if (!kvf_tm_list_add(r, l, &v->u.dict->entries[i].key)) return false;
    *out = l;
    return true;
}

bool kvf_tm_length(tm_run *r, const tm_value *v, tm_value *out) {
    uint32_t n = 0;
    if (v->kind == TM_STRING)
        n = kvf_tm_str_chars(v->u.s);
    else if (v->kind == TM_DICT)
        n = v->u.dict->count;
    else if (tm_is_listlike(v) && v->kind != TM_GENERATOR)
        n = v->u.list->count;
    else if (v->kind != TM_UNDEFINED)
        return kvf_tm_fail(r, KVF_ERR_FORMAT, "%s has no length", kvf_tm_type_name(v));
    *out = tm_int(n, kvf_tm_trust_of(v));
    return v->kind != TM_STRING || kvf_tm_charge(r, v->u.s->len / 1024);
}

/* ---- attributes and items ---- */
static bool undefined_name(tm_run *r, const tm_str *name, bool refused, tm_value *out) {
    tm_str *copy = kvf_tm_take(r, sizeof *copy);
    if (!copy) return false;
    *copy = *name;
    *out = tm_undefined(copy);
    out->refused = refused;
    return true;
}

static bool fail_undefined(tm_run *r, const tm_value *v) {
    const tm_str *s = v->u.s;
    if (!s) return kvf_tm_fail(r, KVF_ERR_FORMAT, "a value is undefined");
    return kvf_tm_fail(r, KVF_ERR_FORMAT, v->refused ? "access to '%.*s' is refused" : "'%.*s' is undefined",
        (int)KVF_MIN(s->len, 80u), s->data);
}

/* The methods that would change a value exist in the language and are refused by its sandbox. */
static bool is_mutation(tm_kind kind, const tm_str *name) {
    static const char *const of_list[] = {"append", "clear", "pop", "reverse", "insert", "sort", "extend", "remove"};
    static const char *const of_dict[] = {"clear", "pop", "popitem", "setdefault", "update"};
    size_t count = kind == TM_LIST ? KVF_COUNT_OF(of_list) : kind == TM_DICT ? KVF_COUNT_OF(of_dict) : 0;
    for (size_t i = 0; i < count; i++)
        if (tm_str_is(name, kind == TM_LIST ? of_list[i] : of_dict[i])) return true;
    return false;
}

static bool loop_attr(tm_run *r, const tm_loop *l, const tm_str *name, tm_value *out) {
    int64_t i = l->index, n = l->items->count;
    const struct {
        const char *name;
        tm_value value;
    } fields[] = {{"index", tm_int(i + 1, 1)}, {"index0", tm_int(i, 1)}, {"revindex", tm_int(n - i, 1)},
        {"revindex0", tm_int(n - i - 1, 1)}, {"first", tm_bool(i == 0)}, {"last", tm_bool(i + 1 == n)},
        {"length", tm_int(n, 1)}, {"depth", tm_int((int64_t)l->depth + 1, 1)}, {"depth0", tm_int(l->depth, 1)},
        {"previtem", i > 0 ? l->items->items[i - 1] : tm_undefined(NULL)},
        {"nextitem", i + 1 < n ? l->items->items[i + 1] : tm_undefined(NULL)}};
    for (size_t k = 0; k < KVF_COUNT_OF(fields); k++)
        if (tm_str_is(name, fields[k].name)) {
            *out = fields[k].value;
            return true;
        }
    out->kind = TM_MISSING;
    return true;
}

/* Methods, and fields of namespaces and loops: what getattr() would find. TM_MISSING when there is none. */
static bool own_attr(tm_run *r, const tm_value *v, const tm_str *name, tm_value *out) {
    out->kind = TM_MISSING;
    const tm_builtin *b = kvf_tm_method_find((tm_kind)v->kind, name->data, name->len);
    if (b) {
        tm_method *m = kvf_tm_take(r, sizeof *m);
        if (!m) return false;
        *m = (tm_method){.builtin = b, .self = *v};
        *out = (tm_value){.kind = TM_METHOD, .u.method = m};
        return true;
    }
    if (v->kind == TM_LOOP) return loop_attr(r, v->u.loop, name, out);
    if (v->kind == TM_NAMESPACE) {
        tm_str key = *name;
        tm_value k = tm_string(&key);
        return kvf_tm_dict_get(r, v->u.dict, &k, out);
    }
    if (v->kind == TM_MACRO && tm_str_is(name, "name")) {
        tm_str *s = kvf_tm_str_slice(r, v->u.macro->node->name, 0, v->u.macro->node->name->len);
        *out = tm_string(s);
        return s != NULL;
    }
    return true;
}

bool kvf_tm_attr(tm_run *r, const tm_value *v, const tm_str *name, tm_value *out) {
    if (v->kind == TM_UNDEFINED) return fail_undefined(r, v);
    bool hidden = name->len > 0 && name->data[0] == '_';
    if (is_mutation((tm_kind)v->kind, name)) hidden = true;
    if (!hidden) {
        if (!own_attr(r, v, name, out)) return false;
        if (out->kind != TM_MISSING) return true;
    }
    if (v->kind == TM_DICT) {
        tm_str key = *name;
        tm_value k = tm_string(&key);
        if (!kvf_tm_dict_get(r, v->u.dict, &k, out)) return false;
        if (out->kind != TM_MISSING) return true;
    }
    return undefined_name(r, name, hidden, out);
}

bool kvf_tm_item(tm_run *r, const tm_value *v, const tm_value *key, tm_value *out) {
    int64_t i;
    if (v->kind == TM_UNDEFINED) return fail_undefined(r, v);
    out->kind = TM_MISSING;
    if (v->kind == TM_DICT) {
        if (!kvf_tm_dict_get(r, v->u.dict, key, out)) return false;
    } else if ((v->kind == TM_LIST || v->kind == TM_TUPLE) && kvf_tm_as_int(key, &i)) {
        if (i < 0) i += v->u.list->count;
        if (i >= 0 && i < v->u.list->count) *out = v->u.list->items[i];
    } else if (v->kind == TM_STRING && kvf_tm_as_int(key, &i)) {
        tm_str *s = v->u.s;
        int64_t n = kvf_tm_str_chars(s);
        if (i < 0) i += n;
        if (i >= 0 && i < n) {
            size_t at = kvf_tm_str_offset(s, (size_t)i), end = kvf_tm_str_offset(s, (size_t)i + 1);
            tm_str *one = kvf_tm_str_slice(r, s, at, end - at);
            if (!one || !kvf_tm_charge(r, n == s->len ? 0 : s->len / 256)) return false;
            *out = tm_string(one);
        }
    } else if (key->kind == TM_STRING) {
        return kvf_tm_attr(r, v, key->u.s, out);
    }
    if (out->kind != TM_MISSING) return true;
    if (key->kind == TM_STRING) return kvf_tm_attr(r, v, key->u.s, out);
    *out = tm_undefined(NULL);
    return true;
}

/* Python's slice.indices: where to start, the step, and how many items. */
static bool slice_bounds(tm_run *r, int64_t n, const tm_value *from, const tm_value *to, const tm_value *step,
    int64_t *start, int64_t *stride, int64_t *count) {
    int64_t a, b, s = 1;
    const tm_value *parts[] = {from, to, step};
    for (int i = 0; i < 3; i++)
        if (parts[i]->kind > TM_NONE && parts[i]->kind != TM_INT && parts[i]->kind != TM_BOOL)
            return kvf_tm_fail(r, KVF_ERR_FORMAT, "a slice needs int, not %s", kvf_tm_type_name(parts[i]));
    if (kvf_tm_as_int(step, &s) && s == 0) return kvf_tm_fail(r, KVF_ERR_FORMAT, "the step of a slice is 0");
    s = KVF_MAX(KVF_MIN(s, INT32_MAX), -INT32_MAX);
    int64_t low = s > 0 ? 0 : -1, high = s > 0 ? n : n - 1;
    a = s > 0 ? 0 : n - 1;
    if (kvf_tm_as_int(from, &a)) a = a < 0 ? KVF_MAX(a + n, low) : KVF_MIN(a, high);
    b = s > 0 ? n : -1;
    if (kvf_tm_as_int(to, &b)) b = b < 0 ? KVF_MAX(b + n, low) : KVF_MIN(b, high);
    int64_t span = s > 0 ? b - a : a - b, width = s > 0 ? s : -s;
    *start = a;
    *stride = s;
    *count = span > 0 ? (span + width - 1) / width : 0;
    return true;
}

bool kvf_tm_slice(
    tm_run *r, const tm_value *v, const tm_value *from, const tm_value *to, const tm_value *step, tm_value *out) {
    int64_t start, stride, count;
    if (v->kind == TM_UNDEFINED) return fail_undefined(r, v);
    if (v->kind == TM_STRING) {
        tm_str *s = v->u.s;
        if (!slice_bounds(r, kvf_tm_str_chars(s), from, to, step, &start, &stride, &count)) return false;
        if (stride == 1 || count == 0) {
            size_t at = count ? kvf_tm_str_offset(s, (size_t)start) : 0;
            size_t end = count ? kvf_tm_str_offset(s, (size_t)(start + count)) : 0;
            tm_str *part = kvf_tm_str_slice(r, s, at, end - at);
            *out = tm_string(part);
            return part && kvf_tm_charge(r, s->len / 1024);
        }
        tm_list *chars;
        tm_buf b = {0};
        if (!iterate_str(r, s, &chars)) return false;
        for (int64_t i = 0; i < count; i++)
            if (!kvf_tm_buf_str(r, &b, chars->items[start + i * stride].u.s)) return false;
        *out = tm_string(kvf_tm_buf_finish(r, &b));
        return out->u.s != NULL;
    }
    if (v->kind != TM_LIST && v->kind != TM_TUPLE) {
        *out = tm_undefined(NULL);
        return true;
    }
    if (!slice_bounds(r, v->u.list->count, from, to, step, &start, &stride, &count)) return false;
    tm_list *l = kvf_tm_list_new(r, (uint32_t)count, v->u.list->trusted);
    if (!l || !kvf_tm_charge(r, (uint64_t)count / 16)) return false;
    for (int64_t i = 0; i < count; i++)
        if (!kvf_tm_list_add(r, l, &v->u.list->items[start + i * stride])) return false;
    *out = *v;
    out->u.list = l;
    return true;
}

/* ---- JSON in ---- */
static bool str_from(tm_run *r, const char *data, size_t len_bytes, uint8_t trusted, tm_value *out) {
    tm_str *s = kvf_tm_str_new(r, data, len_bytes, trusted);
    *out = tm_string(s);
    return s != NULL;
}

static bool dict_from(tm_run *r, const json_t *j, uint8_t trusted, tm_value *out) {
    tm_dict *d = kvf_tm_dict_new(r, trusted);
    if (!d) return false;
    json_t *object = (json_t *)(uintptr_t)j; /* jansson's iterators want it so; nothing is changed */
    for (void *it = json_object_iter(object); it; it = json_object_iter_next(object, it)) {
        tm_value key, value;
        const char *name = json_object_iter_key(it);
        if (!str_from(r, name, strlen(name), trusted, &key) ||
            !kvf_tm_from_json(r, json_object_iter_value(it), trusted, &value) || !kvf_tm_dict_set(r, d, &key, &value))
            return false;
    }
    *out = (tm_value){.kind = TM_DICT, .u.dict = d};
    return true;
}

static bool list_from(tm_run *r, const json_t *j, uint8_t trusted, tm_value *out) {
    size_t n = json_array_size(j);
    tm_list *l = kvf_tm_list_new(r, (uint32_t)n, trusted);
    if (!l) return false;
    for (size_t i = 0; i < n; i++) {
        tm_value item;
        if (!kvf_tm_from_json(r, json_array_get(j, i), trusted, &item) || !kvf_tm_list_add(r, l, &item)) return false;
    }
    *out = (tm_value){.kind = TM_LIST, .u.list = l};
    return true;
}

bool kvf_tm_from_json(tm_run *r, const json_t *j, uint8_t trusted, tm_value *out) {
    if (!kvf_tm_enter(r)) return false;
    bool ok = true;
    switch (json_typeof(j)) {
    case JSON_OBJECT: ok = dict_from(r, j, trusted, out); break;
    case JSON_ARRAY: ok = list_from(r, j, trusted, out); break;
    case JSON_STRING: ok = str_from(r, json_string_value(j), json_string_length(j), trusted, out); break;
    case JSON_INTEGER: *out = tm_int(json_integer_value(j), trusted); break;
    case JSON_REAL: *out = tm_float(json_real_value(j), trusted); break;
    case JSON_TRUE: *out = tm_bool(true); break;
    case JSON_FALSE: *out = tm_bool(false); break;
    case JSON_NULL: *out = tm_none(); break;
    }
    if (ok && out->kind >= TM_NONE && out->kind <= TM_FLOAT) out->trusted = trusted;
    kvf_tm_leave(r);
    return ok;
}
