/* eval.c - expressions, names and calls. */
#include "template_int.h"

/* ---- names ---- */
tm_frame *kvf_tm_frame_new(tm_run *r, tm_frame *parent) {
    tm_frame *f = kvf_tm_take(r, sizeof *f);
    if (f) f->parent = parent;
    return f;
}

bool kvf_tm_frame_set(tm_run *r, tm_frame *f, const tm_str *name, const tm_value *value) {
    for (uint32_t i = 0; i < f->count; i++)
        if (f->vars[i].name == name) {
            f->vars[i].value = *value;
            return true;
        }
    if (f->count == f->cap) {
        uint32_t cap = f->cap ? f->cap * 2 : 4;
        tm_var *grown = kvf_tm_take(r, cap * sizeof *grown);
        if (!grown) return false;
        if (f->count) memcpy(grown, f->vars, f->count * sizeof *grown);
        f->vars = grown;
        f->cap = cap;
    }
    f->vars[f->count++] = (tm_var){.name = name, .value = *value};
    return true;
}

const tm_value *kvf_tm_frame_get(const tm_frame *f, const tm_str *name) {
    for (; f; f = f->parent)
        for (uint32_t i = 0; i < f->count; i++)
            if (f->vars[i].name == name) return &f->vars[i].value;
    return NULL;
}

static bool eval_name(tm_run *r, const tm_node *n, const tm_frame *f, tm_value *out) {
    const tm_value *v = kvf_tm_frame_get(f, n->name);
    if (v) {
        *out = *v;
        return true;
    }
    tm_str copy = *n->name;
    tm_value key = tm_string(&copy);
    if (!kvf_tm_dict_get(r, r->trusted_vars, &key, out)) return false;
    if (out->kind != TM_MISSING) return true;
    if (!kvf_tm_dict_get(r, r->vars, &key, out)) return false;
    if (out->kind != TM_MISSING) return true;
    const tm_builtin *b = kvf_tm_function_find(n->name->data, n->name->len);
    if (b) {
        *out = (tm_value){.kind = TM_FUNCTION, .trusted = 1, .u.function = b};
        return true;
    }
    tm_str *what = kvf_tm_take(r, sizeof *what);
    if (what) *what = *n->name;
    *out = tm_undefined(what);
    return what != NULL;
}

/* ---- calls ---- */
static bool count_args(tm_run *r, const tm_node *n, tm_call *c) {
    c->pos = n->count ? kvf_tm_take(r, n->count * sizeof *c->pos) : NULL;
    c->keywords = n->count ? kvf_tm_take(r, n->count * sizeof *c->keywords) : NULL;
    return !n->count || (c->pos && c->keywords);
}

static bool spread_list(tm_run *r, const tm_value *v, uint32_t room, tm_call *c) {
    tm_list *l;
    if (!kvf_tm_iterate(r, v, &l)) return false;
    tm_value *grown = kvf_tm_take(r, ((size_t)c->pos_count + l->count + room) * sizeof *grown);
    if (!grown) return false;
    if (c->pos_count) memcpy(grown, c->pos, c->pos_count * sizeof *grown);
    if (l->count) memcpy(grown + c->pos_count, l->items, l->count * sizeof *grown);
    c->pos = grown;
    c->pos_count += l->count;
    return true;
}

static bool spread_dict(tm_run *r, const tm_value *v, uint32_t room, tm_call *c) {
    if (v->kind != TM_DICT) return kvf_tm_fail(r, KVF_ERR_FORMAT, "** needs a dict, not %s", kvf_tm_type_name(v));
    const tm_dict *d = v->u.dict;
    tm_keyword *grown = kvf_tm_take(r, ((size_t)c->keyword_count + d->count + room) * sizeof *grown);
    if (!grown) return false;
    if (c->keyword_count) memcpy(grown, c->keywords, c->keyword_count * sizeof *grown);
    for (uint32_t i = 0; i < d->count; i++) {
        if (d->entries[i].key.kind != TM_STRING) return kvf_tm_fail(r, KVF_ERR_FORMAT, "names of arguments are str");
        grown[c->keyword_count + i] = (tm_keyword){.name = d->entries[i].key.u.s, .value = d->entries[i].value};
    }
    c->keywords = grown;
    c->keyword_count += d->count;
    return true;
}

bool kvf_tm_eval_args(tm_run *r, const tm_node *n, tm_frame *f, tm_call *c) {
    if (!count_args(r, n, c)) return false;
    for (uint32_t i = 0; i < n->count; i++) {
        const tm_node *a = n->items[i];
        tm_value v;
        bool plain = a->kind != TM_N_KEYWORD && a->kind != TM_N_STAR && a->kind != TM_N_STARSTAR;
        if (!kvf_tm_eval(r, plain ? a : a->a, f, &v)) return false;
        if (plain)
            c->pos[c->pos_count++] = v;
        else if (a->kind == TM_N_KEYWORD)
            c->keywords[c->keyword_count++] = (tm_keyword){.name = a->name, .value = v};
        else if (!(a->kind == TM_N_STAR ? spread_list : spread_dict)(r, &v, n->count - i, c))
            return false;
    }
    return true;
}

static bool bind_keyword(tm_run *r, const tm_builtin *b, const tm_keyword *k, tm_call *c) {
    const char *p = b->params;
    for (uint32_t i = 0; *p; i++) {
        size_t n = strcspn(p, " ");
        if (n == k->name->len && memcmp(p, k->name->data, n) == 0) {
            if (c->slot[i].kind != TM_MISSING) break;
            c->slot[i] = k->value;
            return true;
        }
        p += n + (p[n] == ' ');
    }
    return kvf_tm_fail(
        r, KVF_ERR_FORMAT, "%s has no free argument '%.*s'", b->name, (int)KVF_MIN(k->name->len, 80u), k->name->data);
}

bool kvf_tm_call_builtin(tm_run *r, const tm_builtin *b, tm_call *c, tm_value *out) {
    if (!b->params) return b->fn(r, c, out);
    uint32_t count = b->params[0] != 0;
    for (const char *p = b->params; *p; p++) count += *p == ' ';
    KVF_ASSERT(count <= TM_SLOTS);
    if (c->pos_count > count)
        return kvf_tm_fail(r, KVF_ERR_FORMAT, "%s takes at most %u arguments, not %u", b->name, count, c->pos_count);
    for (uint32_t i = 0; i < TM_SLOTS; i++) c->slot[i] = i < c->pos_count ? c->pos[i] : (tm_value){.kind = TM_MISSING};
    for (uint32_t i = 0; i < c->keyword_count; i++)
        if (!bind_keyword(r, b, &c->keywords[i], c)) return false;
    for (uint32_t i = 0; i < b->required; i++)
        if (c->slot[i].kind == TM_MISSING)
            return kvf_tm_fail(r, KVF_ERR_FORMAT, "%s needs %u arguments", b->name, b->required);
    return b->fn(r, c, out);
}

bool kvf_tm_call_value(tm_run *r, const tm_value *callee, tm_call *c, tm_value *out) {
    const tm_str *s = callee->u.s;
    tm_flow flow = TM_FLOW_NORMAL;
    switch (callee->kind) {
    case TM_FUNCTION: return kvf_tm_call_builtin(r, callee->u.function, c, out);
    case TM_METHOD: c->self = callee->u.method->self; return kvf_tm_call_builtin(r, callee->u.method->builtin, c, out);
    case TM_MACRO: return kvf_tm_call_macro(r, callee->u.macro, c, out);
    case TM_LOOP: {
        const tm_loop *l = callee->u.loop;
        tm_buf b = {0}, *outer = r->out;
        if (!l->node->recursive || c->pos_count != 1)
            return kvf_tm_fail(r, KVF_ERR_FORMAT, "this loop is not recursive");
        r->out = &b;
        bool ok = kvf_tm_loop_run(r, l->node, l->frame, &c->pos[0], l->depth + 1, &flow);
        r->out = outer;
        *out = tm_string(ok ? kvf_tm_buf_finish(r, &b) : NULL);
        return out->u.s != NULL;
    }
    case TM_UNDEFINED:
        if (!s) return kvf_tm_fail(r, KVF_ERR_FORMAT, "an undefined value cannot be called");
        return kvf_tm_fail(r, KVF_ERR_FORMAT, callee->refused ? "the sandbox refuses '%.*s'" : "'%.*s' is undefined",
            (int)KVF_MIN(s->len, 80u), s->data);
    default: return kvf_tm_fail(r, KVF_ERR_FORMAT, "%s cannot be called", kvf_tm_type_name(callee));
    }
}

static bool eval_call(tm_run *r, const tm_node *n, tm_frame *f, tm_value *out) {
    tm_call c = {0};
    tm_value callee;
    if (!kvf_tm_eval(r, n->a, f, &callee) || !kvf_tm_eval_args(r, n, f, &c)) return false;
    r->line = n->line;
    bool ok = kvf_tm_call_value(r, &callee, &c, out);
    r->line = n->line;
    return ok;
}

static bool eval_filter(tm_run *r, const tm_node *n, tm_frame *f, tm_value *out) {
    tm_call c = {0};
    if (!kvf_tm_eval(r, n->a, f, &c.self) || !kvf_tm_eval_args(r, n, f, &c)) return false;
    r->line = n->line;
    if (!kvf_tm_call_builtin(r, n->builtin, &c, out)) return false;
    if (n->kind == TM_N_TEST && n->negated) *out = tm_bool(!kvf_tm_truth(out));
    return true;
}

/* ---- literals and operators ---- */
static bool eval_list(tm_run *r, const tm_node *n, tm_frame *f, tm_value *out) {
    tm_list *l = kvf_tm_list_new(r, n->count, 1);
    if (!l) return false;
    for (uint32_t i = 0; i < n->count; i++) {
        tm_value v;
        if (!kvf_tm_eval(r, n->items[i], f, &v) || !kvf_tm_list_add(r, l, &v)) return false;
    }
    *out = (tm_value){.kind = n->kind == TM_N_LIST ? TM_LIST : TM_TUPLE, .trusted = 1, .u.list = l};
    return true;
}

static bool eval_dict(tm_run *r, const tm_node *n, tm_frame *f, tm_value *out) {
    tm_dict *d = kvf_tm_dict_new(r, 1);
    if (!d) return false;
    for (uint32_t i = 0; i < n->count; i += 2) {
        tm_value key, value;
        if (!kvf_tm_eval(r, n->items[i], f, &key) || !kvf_tm_eval(r, n->items[i + 1], f, &value)) return false;
        r->line = n->line;
        if (!kvf_tm_dict_set(r, d, &key, &value)) return false;
    }
    *out = (tm_value){.kind = TM_DICT, .trusted = 1, .u.dict = d};
    return true;
}

static bool eval_chain(tm_run *r, const tm_node *n, tm_frame *f, tm_value *out) {
    if (!kvf_tm_eval(r, n->items[0], f, out)) return false;
    for (uint32_t i = 1; i < n->count; i++) {
        tm_value left = *out, right;
        if (!kvf_tm_eval(r, n->items[i], f, &right)) return false;
        r->line = n->line;
        if (!kvf_tm_arith(r, (tm_op)n->ops[i], &left, &right, out)) return false;
    }
    return true;
}

static bool eval_concat(tm_run *r, const tm_node *n, tm_frame *f, tm_value *out) {
    tm_str *all = NULL;
    for (uint32_t i = 0; i < n->count; i++) {
        tm_value v;
        tm_str *s;
        if (!kvf_tm_eval(r, n->items[i], f, &v) || !kvf_tm_to_str(r, &v, &s)) return false;
        all = all ? kvf_tm_str_concat(r, all, s) : s;
        if (!all) return false;
    }
    *out = tm_string(all);
    return true;
}

static bool compare(tm_run *r, tm_op op, const tm_value *a, const tm_value *b, bool *yes) {
    bool ok = true, turn = false;
    switch (op) {
    case TM_OP_EQ: return kvf_tm_equal(r, a, b, yes);
    case TM_OP_NE: ok = kvf_tm_equal(r, a, b, yes), turn = true; break;
    case TM_OP_IN: return kvf_tm_contains(r, b, a, yes);
    case TM_OP_NOT_IN: ok = kvf_tm_contains(r, b, a, yes), turn = true; break;
    case TM_OP_LT: return kvf_tm_less(r, a, b, yes);
    case TM_OP_GT: return kvf_tm_less(r, b, a, yes);
    default: { /* <= is "less or equal", not "not greater": they differ for NaN */
        bool same;
        ok = kvf_tm_less(r, op == TM_OP_LE ? a : b, op == TM_OP_LE ? b : a, yes) && kvf_tm_equal(r, a, b, &same);
        if (ok) *yes = *yes || same;
    }
    }
    if (turn) *yes = !*yes;
    return ok;
}

static bool eval_compare(tm_run *r, const tm_node *n, tm_frame *f, tm_value *out) {
    tm_value left, right;
    bool yes = true;
    if (!kvf_tm_eval(r, n->items[0], f, &left)) return false;
    for (uint32_t i = 1; yes && i < n->count; i++, left = right) {
        if (!kvf_tm_eval(r, n->items[i], f, &right)) return false;
        r->line = n->line;
        if (!compare(r, (tm_op)n->ops[i], &left, &right, &yes)) return false;
    }
    *out = tm_bool(yes);
    return true;
}

static bool eval_logic(tm_run *r, const tm_node *n, tm_frame *f, tm_value *out) {
    for (uint32_t i = 0; i < n->count; i++) {
        if (!kvf_tm_eval(r, n->items[i], f, out)) return false;
        if (kvf_tm_truth(out) == (n->kind == TM_N_OR)) break;
    }
    return true;
}

static bool eval_unary(tm_run *r, const tm_node *n, tm_frame *f, tm_value *out) {
    tm_value v, zero = tm_int(0, 1);
    if (!kvf_tm_eval(r, n->a, f, &v)) return false;
    if (n->kind == TM_N_NOT) {
        *out = tm_bool(!kvf_tm_truth(&v));
        return true;
    }
    r->line = n->line;
    if (n->kind == TM_N_NEG && v.kind == TM_FLOAT) {
        *out = tm_float(-v.u.f, v.trusted);
        return true;
    }
    return kvf_tm_arith(r, n->kind == TM_N_NEG ? TM_OP_SUB : TM_OP_ADD, &zero, &v, out);
}

static bool eval_item(tm_run *r, const tm_node *n, tm_frame *f, tm_value *out) {
    tm_value base, key;
    if (!kvf_tm_eval(r, n->a, f, &base)) return false;
    if (n->kind == TM_N_ATTR) {
        r->line = n->line;
        return kvf_tm_attr(r, &base, n->name, out);
    }
    if (!kvf_tm_eval(r, n->b, f, &key)) return false;
    r->line = n->line;
    return kvf_tm_item(r, &base, &key, out);
}

static bool eval_slice(tm_run *r, const tm_node *n, tm_frame *f, tm_value *out) {
    tm_value base, from = tm_none(), to = tm_none(), step = tm_none();
    if (!kvf_tm_eval(r, n->a, f, &base) || (n->b && !kvf_tm_eval(r, n->b, f, &from)) ||
        (n->c && !kvf_tm_eval(r, n->c, f, &to)) || (n->d && !kvf_tm_eval(r, n->d, f, &step)))
        return false;
    r->line = n->line;
    return kvf_tm_slice(r, &base, &from, &to, &step, out);
}

static bool eval_condition(tm_run *r, const tm_node *n, tm_frame *f, tm_value *out) {
    tm_value test;
    if (!kvf_tm_eval(r, n->b, f, &test)) return false;
    if (kvf_tm_truth(&test)) return kvf_tm_eval(r, n->a, f, out);
    if (n->c) return kvf_tm_eval(r, n->c, f, out);
    *out = tm_undefined(NULL);
    return true;
}

static bool eval_node(tm_run *r, const tm_node *n, tm_frame *f, tm_value *out) {
    switch (n->kind) {
    case TM_N_CONST: *out = n->value; return true;
    case TM_N_CAPTURED: *out = tm_string(r->captured); return true;
    case TM_N_NAME: return eval_name(r, n, f, out);
    case TM_N_LIST:
    case TM_N_TUPLE: return eval_list(r, n, f, out);
    case TM_N_DICT: return eval_dict(r, n, f, out);
    case TM_N_ATTR:
    case TM_N_ITEM: return eval_item(r, n, f, out);
    case TM_N_SLICE: return eval_slice(r, n, f, out);
    case TM_N_CALL: return eval_call(r, n, f, out);
    case TM_N_FILTER:
    case TM_N_TEST: return eval_filter(r, n, f, out);
    case TM_N_NOT:
    case TM_N_NEG:
    case TM_N_POS: return eval_unary(r, n, f, out);
    case TM_N_AND:
    case TM_N_OR: return eval_logic(r, n, f, out);
    case TM_N_CHAIN: return eval_chain(r, n, f, out);
    case TM_N_CONCAT: return eval_concat(r, n, f, out);
    case TM_N_COMPARE: return eval_compare(r, n, f, out);
    case TM_N_COND: return eval_condition(r, n, f, out);
    default: KVF_ASSERT(!"not an expression"); return false;
    }
}

bool kvf_tm_eval(tm_run *r, const tm_node *n, tm_frame *f, tm_value *out) {
    if (!kvf_tm_enter(r)) return false;
    r->line = n->line;
    bool ok = eval_node(r, n, f, out);
    kvf_tm_leave(r);
    return ok;
}
