/* tests.c - the tests: value is name(arguments). */
#include "template_int.h"
#include <math.h>

#define TEST(name, expression)                                                                                         \
    static bool name(tm_run *r, tm_call *c, tm_value *out) {                                                           \
        const tm_value *v = &c->self;                                                                                  \
        *out = tm_bool(expression);                                                                                    \
        return true;                                                                                                   \
    }
TEST(t_defined, v->kind != TM_UNDEFINED)
TEST(t_undefined, v->kind == TM_UNDEFINED)
TEST(t_none, v->kind == TM_NONE)
TEST(t_boolean, v->kind == TM_BOOL)
TEST(t_true, v->kind == TM_BOOL && v->u.b)
TEST(t_false, v->kind == TM_BOOL && !v->u.b)
TEST(t_integer, v->kind == TM_INT)
TEST(t_float, v->kind == TM_FLOAT)
TEST(t_number, tm_is_number(v))
TEST(t_string, v->kind == TM_STRING)
TEST(t_mapping, v->kind == TM_DICT)
TEST(t_iterable, tm_is_listlike(v) || v->kind == TM_STRING || v->kind == TM_DICT || v->kind == TM_UNDEFINED)
TEST(t_sequence,
    v->kind == TM_LIST || v->kind == TM_TUPLE || v->kind == TM_STRING || v->kind == TM_DICT || v->kind == TM_UNDEFINED)
TEST(t_callable, v->kind == TM_MACRO || v->kind == TM_FUNCTION || v->kind == TM_METHOD || v->kind == TM_LOOP)
TEST(t_escaped, false && v)
#undef TEST

static bool divides(tm_run *r, const tm_value *v, int64_t by, int64_t rest, tm_value *out) {
    tm_value divisor = tm_int(by, 1), remainder, want = tm_int(rest, 1);
    bool yes;
    if (!kvf_tm_arith(r, TM_OP_MOD, v, &divisor, &remainder) || !kvf_tm_equal(r, &remainder, &want, &yes)) return false;
    *out = tm_bool(yes);
    return true;
}
static bool t_even(tm_run *r, tm_call *c, tm_value *out) { return divides(r, &c->self, 2, 0, out); }
static bool t_odd(tm_run *r, tm_call *c, tm_value *out) { return divides(r, &c->self, 2, 1, out); }
static bool t_divisibleby(tm_run *r, tm_call *c, tm_value *out) {
    int64_t by;
    if (!kvf_tm_as_int(&c->slot[0], &by)) return kvf_tm_fail(r, KVF_ERR_FORMAT, "divisibleby needs an int");
    return divides(r, &c->self, by, 0, out);
}

static bool same_case(tm_run *r, const tm_value *v, tm_case how, tm_value *out) {
    tm_str *s, *changed;
    if (!kvf_tm_to_str(r, v, &s) || !(changed = kvf_tm_str_case(r, s, how))) return false;
    tm_str *other = kvf_tm_str_case(r, s, how == TM_CASE_UPPER ? TM_CASE_LOWER : TM_CASE_UPPER);
    if (!other) return false;
    *out = tm_bool(kvf_tm_str_equal(s, changed) && !kvf_tm_str_equal(s, other));
    return true;
}
static bool t_lower(tm_run *r, tm_call *c, tm_value *out) { return same_case(r, &c->self, TM_CASE_LOWER, out); }
static bool t_upper(tm_run *r, tm_call *c, tm_value *out) { return same_case(r, &c->self, TM_CASE_UPPER, out); }

static bool t_eq(tm_run *r, tm_call *c, tm_value *out) {
    bool yes;
    if (!kvf_tm_equal(r, &c->self, &c->slot[0], &yes)) return false;
    *out = tm_bool(yes);
    return true;
}
static bool t_ne(tm_run *r, tm_call *c, tm_value *out) {
    if (!t_eq(r, c, out)) return false;
    out->u.b = !out->u.b;
    return true;
}
static bool t_lt(tm_run *r, tm_call *c, tm_value *out) {
    bool yes;
    if (!kvf_tm_less(r, &c->self, &c->slot[0], &yes)) return false;
    *out = tm_bool(yes);
    return true;
}
static bool t_gt(tm_run *r, tm_call *c, tm_value *out) {
    bool yes;
    if (!kvf_tm_less(r, &c->slot[0], &c->self, &yes)) return false;
    *out = tm_bool(yes);
    return true;
}
static bool t_le(tm_run *r, tm_call *c, tm_value *out) {
    bool less, same;
    if (!kvf_tm_less(r, &c->self, &c->slot[0], &less) || !kvf_tm_equal(r, &c->self, &c->slot[0], &same)) return false;
    *out = tm_bool(less || same);
    return true;
}
static bool t_ge(tm_run *r, tm_call *c, tm_value *out) {
    bool less, same;
    if (!kvf_tm_less(r, &c->slot[0], &c->self, &less) || !kvf_tm_equal(r, &c->self, &c->slot[0], &same)) return false;
    *out = tm_bool(less || same);
    return true;
}
static bool t_in(tm_run *r, tm_call *c, tm_value *out) {
    bool yes;
    if (!kvf_tm_contains(r, &c->slot[0], &c->self, &yes)) return false;
    *out = tm_bool(yes);
    return true;
}
static bool t_sameas(tm_run *r, tm_call *c, tm_value *out) {
    const tm_value *a = &c->self, *b = &c->slot[0];
    bool yes = a->kind == b->kind;
    if (yes && (a->kind == TM_LIST || a->kind == TM_DICT))
        yes = a->u.list == b->u.list;
    else if (yes && !kvf_tm_equal(r, a, b, &yes))
        return false;
    *out = tm_bool(yes);
    return true;
}
static bool name_of(tm_run *r, const tm_value *v, tm_str **name) { return kvf_tm_to_str(r, v, name); }
static bool t_filter(tm_run *r, tm_call *c, tm_value *out) {
    tm_str *name;
    if (!name_of(r, &c->self, &name)) return false;
    *out = tm_bool(kvf_tm_filter_find(name->data, name->len) != NULL);
    return true;
}
static bool t_test(tm_run *r, tm_call *c, tm_value *out) {
    tm_str *name;
    if (!name_of(r, &c->self, &name)) return false;
    *out = tm_bool(kvf_tm_test_find(name->data, name->len) != NULL);
    return true;
}

static const tm_builtin tests[] = {{"!=", "other", 1, t_ne}, {"<", "other", 1, t_lt}, {"<=", "other", 1, t_le},
    {"==", "other", 1, t_eq}, {">", "other", 1, t_gt}, {">=", "other", 1, t_ge}, {"boolean", "", 0, t_boolean},
    {"callable", "", 0, t_callable}, {"defined", "", 0, t_defined}, {"divisibleby", "num", 1, t_divisibleby},
    {"eq", "other", 1, t_eq}, {"equalto", "other", 1, t_eq}, {"escaped", "", 0, t_escaped}, {"even", "", 0, t_even},
    {"false", "", 0, t_false}, {"filter", "", 0, t_filter}, {"float", "", 0, t_float}, {"ge", "other", 1, t_ge},
    {"greaterthan", "other", 1, t_gt}, {"gt", "other", 1, t_gt}, {"in", "seq", 1, t_in}, {"integer", "", 0, t_integer},
    {"iterable", "", 0, t_iterable}, {"le", "other", 1, t_le}, {"lessthan", "other", 1, t_lt},
    {"lower", "", 0, t_lower}, {"lt", "other", 1, t_lt}, {"mapping", "", 0, t_mapping}, {"ne", "other", 1, t_ne},
    {"none", "", 0, t_none}, {"number", "", 0, t_number}, {"odd", "", 0, t_odd}, {"sameas", "other", 1, t_sameas},
    {"sequence", "", 0, t_sequence}, {"string", "", 0, t_string}, {"test", "", 0, t_test}, {"true", "", 0, t_true},
    {"undefined", "", 0, t_undefined}, {"upper", "", 0, t_upper}};

const tm_builtin *kvf_tm_test_find(const char *name, size_t len_bytes) {
    return kvf_tm_table_find(tests, KVF_COUNT_OF(tests), name, len_bytes);
}
