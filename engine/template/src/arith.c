/* arith.c - + - * / // % ** as Python does them on int (64 bits here: more is an error), float, str, list and tuple. */
#include "template_int.h"
#include <math.h>

static bool fail_types(tm_run *r, const char *op, const tm_value *a, const tm_value *b) {
    const tm_value *u = a->kind == TM_UNDEFINED ? a : b->kind == TM_UNDEFINED ? b : NULL;
    if (u && u->u.s)
        return kvf_tm_fail(r, KVF_ERR_FORMAT, "'%.*s' is undefined", (int)KVF_MIN(u->u.s->len, 80u), u->u.s->data);
    return kvf_tm_fail(r, KVF_ERR_FORMAT, "%s %s %s is not possible", kvf_tm_type_name(a), op, kvf_tm_type_name(b));
}
static bool fail_overflow(tm_run *r) { return kvf_tm_fail(r, KVF_ERR_LIMIT, "a whole number is over 64 bits"); }
static bool fail_zero(tm_run *r) { return kvf_tm_fail(r, KVF_ERR_FORMAT, "division by zero"); }

static bool power(tm_run *r, int64_t base, int64_t exponent, uint8_t trusted, tm_value *out) {
    int64_t result = 1;
    if (exponent < 0) {
        if (base == 0) return fail_zero(r);
        *out = tm_float(pow((double)base, (double)exponent), trusted);
        return true;
    }
    while (exponent) {
        if ((exponent & 1) && __builtin_mul_overflow(result, base, &result)) return fail_overflow(r);
        exponent >>= 1;
        if (exponent && __builtin_mul_overflow(base, base, &base)) return fail_overflow(r);
    }
    *out = tm_int(result, trusted);
    return true;
}

static bool int_arith(tm_run *r, tm_op op, int64_t a, int64_t b, uint8_t trusted, tm_value *out) {
    int64_t v = 0;
    bool over = false;
    switch (op) {
    case TM_OP_ADD: over = __builtin_add_overflow(a, b, &v); break;
    case TM_OP_SUB: over = __builtin_sub_overflow(a, b, &v); break;
    case TM_OP_MUL: over = __builtin_mul_overflow(a, b, &v); break;
    case TM_OP_DIV:
        if (b == 0) return fail_zero(r);
        *out = tm_float((double)a / (double)b, trusted);
        return true;
    case TM_OP_FLOORDIV:
    case TM_OP_MOD:
        if (b == 0) return fail_zero(r);
        if (b == -1) { /* the one quotient that may overflow */
            over = op == TM_OP_FLOORDIV && __builtin_sub_overflow((int64_t)0, a, &v);
        } else {
            int64_t q = a / b, m = a % b;
            bool down = m != 0 && (m < 0) != (b < 0);
            v = op == TM_OP_FLOORDIV ? q - down : m + (down ? b : 0);
        }
        break;
    default: return power(r, a, b, trusted, out);
    }
    if (over) return fail_overflow(r);
    *out = tm_int(v, trusted);
    return true;
}

static bool float_arith(tm_run *r, tm_op op, double a, double b, uint8_t trusted, tm_value *out) {
    double v = 0, m;
    if (b == 0 && (op == TM_OP_DIV || op == TM_OP_FLOORDIV || op == TM_OP_MOD)) return fail_zero(r);
    switch (op) {
    case TM_OP_ADD: v = a + b; break;
    case TM_OP_SUB: v = a - b; break;
    case TM_OP_MUL: v = a * b; break;
    case TM_OP_DIV: v = a / b; break;
    case TM_OP_FLOORDIV: v = floor(a / b); break;
    case TM_OP_MOD:
        m = fmod(a, b);
        v = m != 0 && (m < 0) != (b < 0) ? m + b : m;
        break;
    default: v = pow(a, b);
    }
    *out = tm_float(v, trusted);
    return true;
}

static bool add_lists(tm_run *r, const tm_value *a, const tm_value *b, tm_value *out) {
    const tm_list *x = a->u.list, *y = b->u.list;
    tm_list *l = kvf_tm_list_new(r, x->count + y->count, x->trusted && y->trusted);
    if (!l || !kvf_tm_charge(r, ((uint64_t)x->count + y->count) / 16)) return false;
    if (x->count) memcpy(l->items, x->items, x->count * sizeof *l->items);
    if (y->count) memcpy(l->items + x->count, y->items, y->count * sizeof *l->items);
    l->count = x->count + y->count;
    *out = *a;
    out->u.list = l;
    return true;
}

static bool repeat(tm_run *r, const tm_value *v, int64_t times, tm_value *out) {
    times = KVF_MAX(times, 0);
    size_t unit = v->kind == TM_STRING ? v->u.s->len : v->u.list->count * sizeof(tm_value);
    if (unit && (uint64_t)times > r->limits.output_max / unit)
        return kvf_tm_fail(r, KVF_ERR_LIMIT, "a repeated value is over %zu bytes", r->limits.output_max);
    if (unit == 0) times = 0;
    if (!kvf_tm_charge(r, (uint64_t)times / 16)) return false;
    if (v->kind == TM_STRING) {
        tm_buf b = {0};
        for (int64_t i = 0; i < times; i++)
            if (!kvf_tm_buf_str(r, &b, v->u.s)) return false;
        *out = tm_string(kvf_tm_buf_finish(r, &b));
        return out->u.s != NULL;
    }
    tm_list *l = kvf_tm_list_new(r, (uint32_t)times * v->u.list->count, v->u.list->trusted);
    if (!l) return false;
    for (int64_t i = 0; i < times; i++)
        for (uint32_t k = 0; k < v->u.list->count; k++) l->items[l->count++] = v->u.list->items[k];
    *out = *v;
    out->u.list = l;
    return true;
}

static bool is_repeatable(const tm_value *v) {
    return v->kind == TM_STRING || v->kind == TM_LIST || v->kind == TM_TUPLE;
}

static bool format_operator(tm_run *r, const tm_value *a, const tm_value *b, tm_value *out) {
    tm_str *s;
    bool tuple = b->kind == TM_TUPLE;
    if (!kvf_tm_str_format(r, a->u.s, tuple ? b->u.list->items : b, tuple ? b->u.list->count : 1, &s)) return false;
    *out = tm_string(s);
    return true;
}

bool kvf_tm_arith(tm_run *r, tm_op op, const tm_value *a, const tm_value *b, tm_value *out) {
    static const char *const names[] = {"", "+", "-", "*", "/", "//", "%", "**"};
    uint8_t trusted = a->trusted && b->trusted;
    int64_t i, j;
    double x, y;
    if (kvf_tm_as_int(a, &i) && kvf_tm_as_int(b, &j)) return int_arith(r, op, i, j, trusted, out);
    if (kvf_tm_as_float(a, &x) && kvf_tm_as_float(b, &y)) return float_arith(r, op, x, y, trusted, out);
    if (op == TM_OP_ADD && a->kind == TM_STRING && b->kind == TM_STRING) {
        *out = tm_string(kvf_tm_str_concat(r, a->u.s, b->u.s));
        return out->u.s != NULL;
    }
    if (op == TM_OP_ADD && a->kind == b->kind && (a->kind == TM_LIST || a->kind == TM_TUPLE))
        return add_lists(r, a, b, out);
    if (op == TM_OP_MUL && is_repeatable(a) && kvf_tm_as_int(b, &j)) return repeat(r, a, j, out);
    if (op == TM_OP_MUL && is_repeatable(b) && kvf_tm_as_int(a, &i)) return repeat(r, b, i, out);
    if (op == TM_OP_MOD && a->kind == TM_STRING) return format_operator(r, a, b, out);
    return fail_types(r, names[op], a, b);
}
