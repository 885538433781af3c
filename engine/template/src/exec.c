/* exec.c - statements, loops, macros.
 *
 * Scopes: a loop iteration, a macro call, a call block and a with block have a frame of their own; if and set blocks do
 * not. A name is looked up outwards; set writes into the innermost frame, so a loop cannot change a variable outside it
 * (namespaces can). */
#include "template_int.h"

typedef struct {
    tm_buf buf, *outer;
} capture;

static void capture_begin(tm_run *r, capture *c) {
    *c = (capture){.outer = r->out};
    r->out = &c->buf;
}
static tm_str *capture_end(tm_run *r, capture *c, bool ok) {
    r->out = c->outer;
    return ok ? kvf_tm_buf_finish(r, &c->buf) : NULL;
}

static bool assign(tm_run *r, const tm_node *target, tm_frame *f, const tm_value *value) {
    if (target->kind == TM_N_NAME) return kvf_tm_frame_set(r, f, target->name, value);
    if (target->kind == TM_N_ATTR) {
        tm_value object;
        if (!kvf_tm_eval(r, target->a, f, &object)) return false;
        if (object.kind != TM_NAMESPACE)
            return kvf_tm_fail(
                r, KVF_ERR_FORMAT, "only fields of a namespace can be set, not of %s", kvf_tm_type_name(&object));
        tm_str *name = kvf_tm_str_slice(r, target->name, 0, target->name->len);
        tm_value key = tm_string(name);
        return name && kvf_tm_dict_set(r, object.u.dict, &key, value);
    }
    tm_list *l;
    KVF_ASSERT(target->kind == TM_N_TUPLE);
    if (!kvf_tm_iterate(r, value, &l)) return false;
    if (l->count != target->count)
        return kvf_tm_fail(r, KVF_ERR_FORMAT, "%u names cannot take %u values", target->count, l->count);
    for (uint32_t i = 0; i < l->count; i++)
        if (!assign(r, target->items[i], f, &l->items[i])) return false;
    return true;
}

/* ---- loops ---- */
static bool filter_items(tm_run *r, const tm_node *n, tm_frame *outer, tm_list **items) {
    tm_list *kept = kvf_tm_list_new(r, 0, (*items)->trusted);
    tm_frame *f = kvf_tm_frame_new(r, outer);
    if (!kept || !f) return false;
    for (uint32_t i = 0; i < (*items)->count; i++) {
        tm_value test;
        if (!assign(r, n->a, f, &(*items)->items[i]) || !kvf_tm_eval(r, n->c, f, &test)) return false;
        if (kvf_tm_truth(&test) && !kvf_tm_list_add(r, kept, &(*items)->items[i])) return false;
    }
    *items = kept;
    return true;
}

bool kvf_tm_loop_run(
    tm_run *r, const tm_node *n, tm_frame *outer, const tm_value *iterable, uint32_t depth, tm_flow *flow) {
    tm_list *items;
    r->line = n->line;
    if (!kvf_tm_enter(r)) return false;
    if (!kvf_tm_iterate(r, iterable, &items) || (n->c && !filter_items(r, n, outer, &items))) return false;
    if (items->count == 0 && n->e) {
        tm_frame *f = kvf_tm_frame_new(r, outer);
        if (!f || !kvf_tm_exec(r, n->e, f, flow)) return false;
        kvf_tm_leave(r);
        return true;
    }
    tm_loop *loop = kvf_tm_take(r, sizeof *loop);
    if (!loop) return false;
    *loop = (tm_loop){.node = n, .frame = outer, .items = items, .depth = depth, .changed = {.kind = TM_MISSING}};
    tm_value self = {.kind = TM_LOOP, .trusted = 1, .u.loop = loop};
    tm_frame *f = NULL;
    for (uint32_t i = 0; i < items->count; i++) {
        if (!f || f->captured) f = kvf_tm_frame_new(r, outer);
        if (!f) return false;
        f->count = 0;
        loop->index = i;
        r->line = n->line;
        if (!kvf_tm_charge(r, 1) || !kvf_tm_frame_set(r, f, n->name, &self) || !assign(r, n->a, f, &items->items[i]))
            return false;
        tm_flow inner = TM_FLOW_NORMAL;
        if (!kvf_tm_exec(r, n->d, f, &inner)) return false;
        if (inner == TM_FLOW_BREAK) break;
    }
    kvf_tm_leave(r);
    return true;
}

static bool exec_for(tm_run *r, const tm_node *n, tm_frame *f, tm_flow *flow) {
    tm_value iterable;
    return kvf_tm_eval(r, n->b, f, &iterable) && kvf_tm_loop_run(r, n, f, &iterable, 0, flow);
}

static bool exec_if(tm_run *r, const tm_node *n, tm_frame *f, tm_flow *flow) {
    for (uint32_t i = 0; i < n->count; i += 2) {
        tm_value test;
        if (!kvf_tm_eval(r, n->items[i], f, &test)) return false;
        if (kvf_tm_truth(&test)) return kvf_tm_exec(r, n->items[i + 1], f, flow);
    }
    return !n->a || kvf_tm_exec(r, n->a, f, flow);
}

/* ---- captured text ---- */
static bool captured_text(
    tm_run *r, const tm_node *n, tm_frame *f, tm_value *out) { /* body through the filters of n->b */
    capture c;
    tm_flow flow = TM_FLOW_NORMAL;
    tm_frame *inner = kvf_tm_frame_new(r, f);
    if (!inner) return false;
    capture_begin(r, &c);
    tm_str *text = capture_end(r, &c, kvf_tm_exec(r, n->d, inner, &flow)), *saved = r->captured;
    if (!text) return false;
    r->captured = text;
    bool ok = kvf_tm_eval(r, n->b, f, out);
    r->captured = saved;
    return ok;
}

static bool exec_set_block(tm_run *r, const tm_node *n, tm_frame *f) {
    tm_value v;
    return captured_text(r, n, f, &v) && assign(r, n->a, f, &v);
}

static bool exec_filter_block(tm_run *r, const tm_node *n, tm_frame *f) {
    tm_value v;
    return captured_text(r, n, f, &v) && kvf_tm_print(r, r->out, &v);
}

/* ---- macros ---- */
static bool make_macro(tm_run *r, const tm_node *n, tm_frame *f, tm_value *out) {
    tm_macro *m = kvf_tm_take(r, sizeof *m);
    if (!m) return false;
    *m = (tm_macro){.node = n, .frame = f};
    for (tm_frame *up = f; up && !up->captured; up = up->parent) up->captured = true;
    *out = (tm_value){.kind = TM_MACRO, .trusted = 1, .u.macro = m};
    return true;
}

static const tm_value *keyword_find(const tm_call *c, const tm_str *name) {
    for (uint32_t i = 0; i < c->keyword_count; i++)
        if (kvf_tm_str_equal(c->keywords[i].name, name)) return &c->keywords[i].value;
    return NULL;
}

static bool bind_parameters(tm_run *r, const tm_node *n, const tm_call *c, tm_frame *f) {
    uint32_t taken = 0;
    for (uint32_t i = 0; i < n->count; i++) {
        const tm_node *p = n->items[i];
        const tm_value *keyword = keyword_find(c, p->name);
        tm_value v;
        taken += keyword != NULL;
        if (keyword && i < c->pos_count)
            return kvf_tm_fail(
                r, KVF_ERR_FORMAT, "argument '%.*s' is given twice", (int)KVF_MIN(p->name->len, 80u), p->name->data);
        if (i < c->pos_count)
            v = c->pos[i];
        else if (keyword)
            v = *keyword;
        else if (p->a) {
            if (!kvf_tm_eval(r, p->a, f, &v)) return false;
        } else {
            tm_str *what = kvf_tm_str_slice(r, p->name, 0, p->name->len);
            if (!what) return false;
            v = tm_undefined(what);
        }
        if (!kvf_tm_frame_set(r, f, p->name, &v)) return false;
    }
    const tm_value *caller = n->kind == TM_N_MACRO ? keyword_find(c, n->e->name) : NULL;
    if (c->pos_count > n->count || taken + (caller != NULL) < c->keyword_count)
        return kvf_tm_fail(
            r, KVF_ERR_FORMAT, "'%.*s' does not take these arguments", (int)KVF_MIN(n->name->len, 80u), n->name->data);
    return !caller || kvf_tm_frame_set(r, f, n->e->name, caller);
}

bool kvf_tm_call_macro(tm_run *r, const tm_macro *m, tm_call *c, tm_value *out) {
    const tm_node *n = m->node;
    tm_frame *f = kvf_tm_frame_new(r, m->frame);
    if (!f || !bind_parameters(r, n, c, f)) return false;
    capture text;
    tm_flow flow = TM_FLOW_NORMAL;
    capture_begin(r, &text);
    *out = tm_string(capture_end(r, &text, kvf_tm_exec(r, n->d, f, &flow)));
    return out->u.s != NULL;
}

static bool exec_macro(tm_run *r, const tm_node *n, tm_frame *f) {
    tm_value macro;
    return make_macro(r, n, f, &macro) && kvf_tm_frame_set(r, f, n->name, &macro);
}

static bool exec_call_block(tm_run *r, const tm_node *n, tm_frame *f) {
    tm_value callee, caller, result;
    tm_call c = {0};
    if (!make_macro(r, n, f, &caller) || !kvf_tm_eval(r, n->a->a, f, &callee) || !kvf_tm_eval_args(r, n->a, f, &c))
        return false;
    tm_keyword *keywords = kvf_tm_take(r, ((size_t)c.keyword_count + 1) * sizeof *keywords);
    if (!keywords) return false;
    if (c.keyword_count) memcpy(keywords, c.keywords, c.keyword_count * sizeof *keywords);
    keywords[c.keyword_count] = (tm_keyword){.name = n->name, .value = caller};
    c.keywords = keywords;
    c.keyword_count++;
    r->line = n->line;
    return kvf_tm_call_value(r, &callee, &c, &result) && kvf_tm_print(r, r->out, &result);
}

static bool exec_with(tm_run *r, const tm_node *n, tm_frame *f, tm_flow *flow) {
    tm_frame *inner = kvf_tm_frame_new(r, f);
    if (!inner) return false;
    for (uint32_t i = 0; i < n->count; i += 2) {
        tm_value v;
        if (!kvf_tm_eval(r, n->items[i + 1], f, &v) || !assign(r, n->items[i], inner, &v)) return false;
    }
    return kvf_tm_exec(r, n->d, inner, flow);
}

static bool exec_node(tm_run *r, const tm_node *n, tm_frame *f, tm_flow *flow) {
    tm_value v;
    switch (n->kind) {
    case TM_N_SEQ:
        for (uint32_t i = 0; i < n->count && *flow == TM_FLOW_NORMAL; i++)
            if (!kvf_tm_exec(r, n->items[i], f, flow)) return false;
        return true;
    case TM_N_TEXT: return kvf_tm_buf_str(r, r->out, n->value.u.s);
    case TM_N_PRINT: return kvf_tm_eval(r, n->a, f, &v) && kvf_tm_print(r, r->out, &v);
    case TM_N_IF: return exec_if(r, n, f, flow);
    case TM_N_FOR: return exec_for(r, n, f, flow);
    case TM_N_SET: return kvf_tm_eval(r, n->b, f, &v) && assign(r, n->a, f, &v);
    case TM_N_SETBLOCK: return exec_set_block(r, n, f);
    case TM_N_FILTERBLOCK: return exec_filter_block(r, n, f);
    case TM_N_MACRO: return exec_macro(r, n, f);
    case TM_N_CALLBLOCK: return exec_call_block(r, n, f);
    case TM_N_WITH: return exec_with(r, n, f, flow);
    case TM_N_BREAK: *flow = TM_FLOW_BREAK; return true;
    case TM_N_CONTINUE: *flow = TM_FLOW_CONTINUE; return true;
    default: KVF_ASSERT(!"not a statement"); return false;
    }
}

bool kvf_tm_exec(tm_run *r, const tm_node *n, tm_frame *f, tm_flow *flow) {
    if (!kvf_tm_enter(r)) return false;
    r->line = n->line;
    bool ok = exec_node(r, n, f, flow);
    kvf_tm_leave(r);
    return ok;
}
