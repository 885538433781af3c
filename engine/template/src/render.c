/* render.c - kvf_template_render, its budgets, and the functions that every template has. */
#include "template_int.h"
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <time.h>

/* What a render may take beside its output: values made on the way are not freed one by one. */
enum { MEMORY_PER_OUTPUT = 8, MEMORY_BASE_BYTES = 8 * 1024 * 1024, RANGE_MAX = 100000, EXCEPTION_MAX_BYTES = 400 };

/* ---- budgets and failure ---- */
bool kvf_tm_fail(tm_run *r, kvf_status status, const char *fmt, ...) {
    if (r->status != KVF_OK) return false;
    char text[450];
    va_list args;
    va_start(args, fmt);
    vsnprintf(text, sizeof text, fmt, args);
    va_end(args);
    if (r->pool.no_memory) /* whatever it is called where it was missed */
        r->status = kvf_fail(r->err, KVF_ERR_NO_MEMORY, "no memory for the chat template");
    else
        r->status = kvf_fail(r->err, status, "chat template line %u: %s", r->line, text);
    return false;
}

bool kvf_tm_charge(tm_run *r, uint64_t steps) {
    if (steps > r->limits.steps_max - r->steps)
        return kvf_tm_fail(
            r, KVF_ERR_LIMIT, "the template took more than %llu steps", (unsigned long long)r->limits.steps_max);
    r->steps += steps;
    return true;
}

bool kvf_tm_enter(tm_run *r) {
    if (r->depth == r->limits.depth_max)
        return kvf_tm_fail(r, KVF_ERR_LIMIT, "the template nests deeper than %u", r->limits.depth_max);
    if (!kvf_tm_charge(r, 1)) return false;
    r->depth++;
    return true;
}

void *kvf_tm_take(tm_run *r, size_t len_bytes) {
    void *p = kvf_tm_pool_take(&r->pool, len_bytes);
    if (!p) kvf_tm_fail(r, KVF_ERR_LIMIT, "the template needs more than %zu bytes of memory", r->pool.max_bytes);
    return p;
}

/* ---- functions ---- */
static bool fn_raise(tm_run *r, tm_call *c, tm_value *out) {
    tm_str *s;
    if (!kvf_tm_to_str(r, &c->slot[0], &s)) return false;
    uint32_t n = KVF_MIN(s->len, (uint32_t)EXCEPTION_MAX_BYTES);
    while (n > 0 && n < s->len && ((uint8_t)s->data[n] & 0xc0) == 0x80) n--; /* whole characters */
    return kvf_tm_fail(r, KVF_ERR_INVALID, "%.*s", (int)n, s->data);
}

static bool fn_strftime_now(
    tm_run *r, tm_call *c, tm_value *out) { /* UTC: a cluster has one clock text, whatever the host's zone */
    tm_str *s;
    char format[128], text[256];
    struct tm parts;
    time_t now = (time_t)r->now_unix;
    if (!kvf_tm_to_str(r, &c->slot[0], &s)) return false;
    if (s->len >= sizeof format || memchr(s->data, 0, s->len) || !gmtime_r(&now, &parts))
        return kvf_tm_fail(r, KVF_ERR_FORMAT, "strftime_now does not take this format");
    memcpy(format, s->data, s->len);
    format[s->len] = 0;
#pragma GCC diagnostic push
#pragma GCC diagnostic ignored "-Wformat-nonliteral"
    size_t n = strftime(text, sizeof text, format, &parts);
#pragma GCC diagnostic pop
    char *copy = kvf_tm_take(r, n + 1);
    if (!copy) return false;
    memcpy(copy, text, n);
    *out = tm_string(kvf_tm_str_new(r, copy, n, kvf_tm_trust_of(&c->slot[0])));
    return out->u.s != NULL;
}

static bool fn_range(tm_run *r, tm_call *c, tm_value *out) {
    int64_t from = 0, to = 0, step = 1;
    uint8_t trusted = 1;
    for (int i = 0; i < 3; i++) {
        int64_t ignored;
        if (c->slot[i].kind == TM_MISSING) continue;
        if (!kvf_tm_as_int(&c->slot[i], &ignored))
            return kvf_tm_fail(r, KVF_ERR_FORMAT, "range needs int, not %s", kvf_tm_type_name(&c->slot[i]));
        trusted = trusted && c->slot[i].trusted;
    }
    kvf_tm_as_int(&c->slot[0], c->slot[1].kind == TM_MISSING ? &to : &from);
    kvf_tm_as_int(&c->slot[1], &to);
    kvf_tm_as_int(&c->slot[2], &step);
    if (step == 0) return kvf_tm_fail(r, KVF_ERR_FORMAT, "the step of range is 0");
    uint64_t span =
        step > 0 ? (to > from ? (uint64_t)to - (uint64_t)from : 0) : (from > to ? (uint64_t)from - (uint64_t)to : 0);
    uint64_t width = step > 0 ? (uint64_t)step : 0 - (uint64_t)step, count = span / width + (span % width != 0);
    if (count > RANGE_MAX) return kvf_tm_fail(r, KVF_ERR_LIMIT, "range is longer than %d", RANGE_MAX);
    tm_list *l = kvf_tm_list_new(r, (uint32_t)count, trusted);
    if (!l || !kvf_tm_charge(r, count / 8)) return false;
    for (uint64_t i = 0; i < count; i++) {
        tm_value v = tm_int((int64_t)((uint64_t)from + i * (uint64_t)step), trusted);
        if (!kvf_tm_list_add(r, l, &v)) return false;
    }
    *out = (tm_value){.kind = TM_LIST, .trusted = trusted, .u.list = l};
    return true;
}

static bool new_dict(tm_run *r, tm_call *c, tm_kind kind, tm_value *out) {
    tm_dict *d = kvf_tm_dict_new(r, 1);
    if (!d) return false;
    for (uint32_t p = 0; p < c->pos_count; p++) {
        if (c->pos[p].kind != TM_DICT)
            return kvf_tm_fail(r, KVF_ERR_FORMAT, "dict and namespace take dicts and name=value");
        const tm_dict *from = c->pos[p].u.dict;
        d->trusted = d->trusted && from->trusted;
        for (uint32_t i = 0; i < from->count; i++)
            if (!kvf_tm_dict_set(r, d, &from->entries[i].key, &from->entries[i].value)) return false;
    }
    for (uint32_t i = 0; i < c->keyword_count; i++) {
        tm_str *name = kvf_tm_str_slice(r, c->keywords[i].name, 0, c->keywords[i].name->len);
        tm_value key = tm_string(name);
        if (!name || !kvf_tm_dict_set(r, d, &key, &c->keywords[i].value)) return false;
    }
    *out = (tm_value){.kind = (uint8_t)kind, .trusted = 1, .u.dict = d};
    return true;
}
static bool fn_namespace(tm_run *r, tm_call *c, tm_value *out) { return new_dict(r, c, TM_NAMESPACE, out); }
static bool fn_dict(tm_run *r, tm_call *c, tm_value *out) { return new_dict(r, c, TM_DICT, out); }

static const tm_builtin functions[] = {{"dict", NULL, 0, fn_dict}, {"namespace", NULL, 0, fn_namespace},
    {"raise_exception", "message", 1, fn_raise}, {"range", "start stop step", 1, fn_range},
    {"strftime_now", "format", 1, fn_strftime_now}};

const tm_builtin *kvf_tm_function_find(const char *name, size_t len_bytes) {
    return kvf_tm_table_find(functions, KVF_COUNT_OF(functions), name, len_bytes);
}

/* Tables are sorted by name. */
const tm_builtin *kvf_tm_table_find(const tm_builtin *table, size_t count, const char *name, size_t len_bytes) {
    size_t low = 0, high = count;
    while (low < high) {
        size_t middle = (low + high) / 2, n = strlen(table[middle].name);
        int order = memcmp(table[middle].name, name, KVF_MIN(n, len_bytes));
        if (order == 0) order = (n > len_bytes) - (n < len_bytes);
        if (order == 0) return &table[middle];
        if (order < 0)
            low = middle + 1;
        else
            high = middle;
    }
    return NULL;
}

/* ---- render ---- */
void kvf_template_limits_default(kvf_template_limits *limits) {
    *limits = (kvf_template_limits){.steps_max = 1000000, .depth_max = 100, .output_max = 16 * 1024 * 1024};
}

static bool load_vars(tm_run *r, const json_t *j, uint8_t trusted, tm_dict **out) {
    tm_value v;
    if (!j) return (*out = kvf_tm_dict_new(r, trusted)) != NULL;
    if (!json_is_object(j)) return kvf_tm_fail(r, KVF_ERR_INVALID, "variables must be a JSON object");
    if (!kvf_tm_from_json(r, j, trusted, &v)) return false;
    *out = v.u.dict;
    return true;
}

kvf_status kvf_template_render(const kvf_template *t, const json_t *vars, const json_t *trusted_vars, int64_t now_unix,
    const kvf_template_limits *limits, kvf_template_output *out, kvf_error *err) {
    tm_run r = {.now_unix = now_unix, .err = err, .line = 1};
    tm_buf output = {.heap = true};
    tm_flow flow = TM_FLOW_NORMAL;
    kvf_template_limits_default(&r.limits);
    if (limits) r.limits = *limits;
    r.limits.output_max = KVF_MIN(r.limits.output_max, (size_t)1 << 30);
    r.pool.max_bytes = r.limits.output_max * MEMORY_PER_OUTPUT + MEMORY_BASE_BYTES;
    r.out = &output;
    bool ok = load_vars(&r, vars, 0, &r.vars) && load_vars(&r, trusted_vars, 1, &r.trusted_vars);
    tm_frame *top = ok ? kvf_tm_frame_new(&r, NULL) : NULL;
    ok = top && kvf_tm_exec(&r, t->root, top, &flow);
    if (ok && output.len + 1 > output.cap) { /* room for the NUL, and text even when nothing was printed */
        char *grown = realloc(output.data, output.len + 1);
        uint8_t *mask = grown ? realloc(output.mask, output.len + 1) : NULL;
        if (grown) output.data = grown;
        if (mask) output.mask = mask;
        ok = mask || kvf_tm_fail(&r, KVF_ERR_NO_MEMORY, "out of memory");
    }
    if (ok) {
        output.data[output.len] = 0;
        *out = (kvf_template_output){.text = output.data, .len_bytes = output.len, .trusted = output.mask};
    } else {
        KVF_ASSERT(r.status != KVF_OK);
        free(output.data);
        free(output.mask);
    }
    kvf_tm_pool_free(&r.pool);
    return r.status;
}

void kvf_template_output_free(kvf_template_output *out) {
    free(out->text);
    free(out->trusted);
    *out = (kvf_template_output){0};
}
