/* parser.c - statements, and the token helpers that parser_expr.c uses too. Tags that would load other templates
 * (include, import, extends, block) do not exist here: a model file's template stands alone. */
#include "template_int.h"

static const char *const no_ends[] = {NULL};

const tm_token *kvf_tm_peek(const tm_compiler *c) { return &c->tokens[KVF_MIN(c->at, c->token_count - 1)]; }
bool kvf_tm_is_op(const tm_compiler *c, tm_op op) {
    const tm_token *t = kvf_tm_peek(c);
    return t->kind == TM_T_OP && t->op == op;
}
bool kvf_tm_is_name(const tm_compiler *c, const char *name) {
    const tm_token *t = kvf_tm_peek(c);
    return t->kind == TM_T_NAME && tm_str_is(&t->text, name);
}
bool kvf_tm_skip_op(tm_compiler *c, tm_op op) {
    bool yes = kvf_tm_is_op(c, op);
    c->at += yes;
    return yes;
}
bool kvf_tm_skip_name(tm_compiler *c, const char *name) {
    bool yes = kvf_tm_is_name(c, name);
    c->at += yes;
    return yes;
}

bool kvf_tm_unexpected(tm_compiler *c, const char *expected) {
    static const char *const kinds[] = {"the end of the template", "text", "'{{'", "'}}'", "'{%'", "'%}'", "a name",
        "a string", "a number", "a number", "an operator"};
    const tm_token *t = kvf_tm_peek(c);
    if (t->kind == TM_T_NAME)
        return kvf_tm_compile_fail(
            c, t->line, t->column, "expected %s, found '%.*s'", expected, (int)KVF_MIN(t->text.len, 60u), t->text.data);
    return kvf_tm_compile_fail(c, t->line, t->column, "expected %s, found %s", expected, kinds[t->kind]);
}
bool kvf_tm_expect_op(tm_compiler *c, tm_op op, const char *what) {
    return kvf_tm_skip_op(c, op) || kvf_tm_unexpected(c, what);
}

static bool expect_kind(tm_compiler *c, tm_token_kind kind, const char *what) {
    if (kvf_tm_peek(c)->kind != kind) return kvf_tm_unexpected(c, what);
    c->at++;
    return true;
}

bool kvf_tm_expect_name(tm_compiler *c, const tm_str **name) {
    const tm_token *t = kvf_tm_peek(c);
    if (!expect_kind(c, TM_T_NAME, "a name")) return false;
    *name = kvf_tm_intern(c, t->text.data, t->text.len);
    return *name != NULL;
}

bool kvf_tm_enter_nesting(tm_compiler *c) {
    const tm_token *t = kvf_tm_peek(c);
    if (c->depth == 2 * TM_NESTING_MAX) return kvf_tm_compile_fail(c, t->line, t->column, "template nests too deeply");
    c->depth++;
    return true;
}

static void *take(tm_compiler *c, size_t len_bytes) {
    void *p = kvf_tm_pool_take(c->pool, len_bytes);
    const tm_token *t = kvf_tm_peek(c);
    if (!p) kvf_tm_compile_fail(c, t->line, t->column, "template is too large");
    return p;
}

tm_node *kvf_tm_node_new(tm_compiler *c, tm_node_kind kind) {
    tm_node *n = take(c, sizeof *n);
    if (!n) return NULL;
    n->kind = (uint8_t)kind;
    n->line = kvf_tm_peek(c)->line;
    return n;
}

/* Lists double at powers of two, so that no capacity has to be stored. */
bool kvf_tm_node_add(tm_compiler *c, tm_node *n, tm_node *item, tm_op op) {
    if ((n->count & (n->count - 1)) == 0) {
        size_t cap = n->count ? (size_t)n->count * 2 : 1;
        tm_node **items = take(c, cap * sizeof *items);
        uint8_t *ops = items ? take(c, cap) : NULL;
        if (!ops) return false;
        if (n->count) memcpy(items, n->items, n->count * sizeof *items);
        if (n->count) memcpy(ops, n->ops, n->count);
        n->items = items;
        n->ops = ops;
    }
    n->ops[n->count] = (uint8_t)op;
    n->items[n->count++] = item;
    return true;
}

const tm_str *kvf_tm_intern(tm_compiler *c, const char *data, size_t len_bytes) {
    for (size_t i = 0; i < c->name_count; i++)
        if (c->names[i]->len == len_bytes && memcmp(c->names[i]->data, data, len_bytes) == 0) return c->names[i];
    if (c->name_count == c->name_cap) {
        size_t cap = c->name_cap ? c->name_cap * 2 : 32;
        tm_str **grown = take(c, cap * sizeof *grown);
        if (!grown) return NULL;
        if (c->name_count) memcpy(grown, c->names, c->name_count * sizeof *grown);
        c->names = grown;
        c->name_cap = cap;
    }
    tm_str *s = take(c, sizeof *s);
    char *copy = s ? take(c, len_bytes + 1) : NULL;
    if (!copy) return NULL;
    memcpy(copy, data, len_bytes);
    *s = (tm_str){.data = copy, .len = (uint32_t)len_bytes, .chars = TM_CHARS_UNKNOWN, .uniform = 1};
    return c->names[c->name_count++] = s;
}

/* ---- statements ---- */
static bool parse_body(tm_compiler *c, const char *const *ends, tm_node **out);

static bool end_block(tm_compiler *c) { return expect_kind(c, TM_T_BLOCK_END, "'%}'"); }

/* A name, ns.field, or several names. */
static bool parse_target(tm_compiler *c, bool fields, tm_node **out) {
    tm_node *first = kvf_tm_node_new(c, TM_N_NAME), *tuple = NULL;
    bool parenthesis = kvf_tm_skip_op(c, TM_OP_LPAREN);
    if (!first || !kvf_tm_expect_name(c, &first->name)) return false;
    if (fields && kvf_tm_skip_op(c, TM_OP_DOT)) {
        tm_node *field = kvf_tm_node_new(c, TM_N_ATTR);
        if (!field) return false;
        field->a = first;
        *out = field;
        return kvf_tm_expect_name(c, &field->name);
    }
    while (kvf_tm_skip_op(c, TM_OP_COMMA)) {
        if (!tuple) {
            tuple = kvf_tm_node_new(c, TM_N_TUPLE);
            if (!tuple || !kvf_tm_node_add(c, tuple, first, TM_OP_NONE)) return false;
        }
        if (kvf_tm_peek(c)->kind != TM_T_NAME || kvf_tm_is_name(c, "in")) break;
        tm_node *next = kvf_tm_node_new(c, TM_N_NAME);
        if (!next || !kvf_tm_expect_name(c, &next->name) || !kvf_tm_node_add(c, tuple, next, TM_OP_NONE)) return false;
    }
    *out = tuple ? tuple : first;
    return !parenthesis || kvf_tm_expect_op(c, TM_OP_RPAREN, "')'");
}

static bool parse_if(tm_compiler *c, tm_node **out) {
    static const char *const ends[] = {"elif", "else", "endif", NULL};
    static const char *const last[] = {"endif", NULL};
    tm_node *n = kvf_tm_node_new(c, TM_N_IF);
    if (!n) return false;
    do {
        tm_node *condition, *body;
        if (!kvf_tm_parse_tuple(c, false, &condition) || !end_block(c) || !parse_body(c, ends, &body) ||
            !kvf_tm_node_add(c, n, condition, TM_OP_NONE) || !kvf_tm_node_add(c, n, body, TM_OP_NONE))
            return false;
    } while (kvf_tm_skip_name(c, "elif"));
    if (kvf_tm_skip_name(c, "else") && (!end_block(c) || !parse_body(c, last, &n->a))) return false;
    c->at++; /* endif */
    *out = n;
    return end_block(c);
}

static bool parse_for(tm_compiler *c, tm_node **out) {
    static const char *const ends[] = {"else", "endfor", NULL};
    static const char *const last[] = {"endfor", NULL};
    tm_node *n = kvf_tm_node_new(c, TM_N_FOR);
    if (!n || !(n->name = kvf_tm_intern(c, "loop", 4)) || !parse_target(c, false, &n->a)) return false;
    if (!kvf_tm_skip_name(c, "in")) return kvf_tm_unexpected(c, "'in'");
    if (!kvf_tm_parse_tuple(c, false, &n->b)) return false;
    if (kvf_tm_skip_name(c, "if") && !kvf_tm_parse_expression(c, true, &n->c)) return false;
    n->recursive = kvf_tm_skip_name(c, "recursive");
    c->loop_depth++;
    if (!end_block(c) || !parse_body(c, ends, &n->d)) return false;
    c->loop_depth--;
    if (kvf_tm_skip_name(c, "else") && (!end_block(c) || !parse_body(c, last, &n->e))) return false;
    c->at++; /* endfor */
    *out = n;
    return end_block(c);
}

static bool parse_set(tm_compiler *c, tm_node **out) {
    static const char *const ends[] = {"endset", NULL};
    tm_node *n = kvf_tm_node_new(c, TM_N_SET);
    if (!n || !parse_target(c, true, &n->a)) return false;
    *out = n;
    if (kvf_tm_skip_op(c, TM_OP_ASSIGN)) return kvf_tm_parse_tuple(c, true, &n->b) && end_block(c);
    n->kind = TM_N_SETBLOCK;
    n->b = kvf_tm_node_new(c, TM_N_CAPTURED);
    if (!n->b || !kvf_tm_parse_filters(c, n->b, false, &n->b) || !end_block(c) || !parse_body(c, ends, &n->d))
        return false;
    c->at++;
    return end_block(c);
}

/* Parameters behind an opening parenthesis that has been consumed. */
static bool parse_parameters(tm_compiler *c, tm_node *n) {
    for (bool defaults = false; !kvf_tm_skip_op(c, TM_OP_RPAREN);) {
        if (n->count && !kvf_tm_expect_op(c, TM_OP_COMMA, "',' or ')'")) return false;
        if (n->count && kvf_tm_skip_op(c, TM_OP_RPAREN)) return true;
        tm_node *p = kvf_tm_node_new(c, TM_N_NAME);
        if (!p || !kvf_tm_expect_name(c, &p->name)) return false;
        if (kvf_tm_skip_op(c, TM_OP_ASSIGN)) {
            defaults = true;
            if (!kvf_tm_parse_expression(c, true, &p->a)) return false;
        } else if (defaults) {
            return kvf_tm_unexpected(c, "a default, as the parameter before has one");
        }
        if (!kvf_tm_node_add(c, n, p, TM_OP_NONE)) return false;
    }
    return true;
}

/* The body of a macro or call is a place of its own: break and continue do not reach out of it. */
static bool parse_own_body(tm_compiler *c, const char *const *ends, tm_node **out) {
    uint32_t loop_depth = c->loop_depth;
    c->loop_depth = 0;
    if (!end_block(c) || !parse_body(c, ends, out)) return false;
    c->loop_depth = loop_depth;
    c->at++;
    return end_block(c);
}

static bool parse_macro(tm_compiler *c, tm_node **out) {
    static const char *const ends[] = {"endmacro", NULL};
    tm_node *n = kvf_tm_node_new(c, TM_N_MACRO);
    if (!n || !kvf_tm_expect_name(c, &n->name) || !kvf_tm_expect_op(c, TM_OP_LPAREN, "'('") || !parse_parameters(c, n))
        return false;
    *out = n;
    n->e = kvf_tm_node_new(c, TM_N_NAME); /* what a call block hands in */
    if (!n->e || !(n->e->name = kvf_tm_intern(c, "caller", 6))) return false;
    return parse_own_body(c, ends, &n->d);
}

static bool parse_call(tm_compiler *c, tm_node **out) {
    static const char *const ends[] = {"endcall", NULL};
    tm_node *n = kvf_tm_node_new(c, TM_N_CALLBLOCK);
    if (!n || (kvf_tm_skip_op(c, TM_OP_LPAREN) && !parse_parameters(c, n))) return false;
    n->name = kvf_tm_intern(c, "caller", 6);
    if (!n->name || !kvf_tm_parse_expression(c, true, &n->a)) return false;
    if (n->a->kind != TM_N_CALL) return kvf_tm_unexpected(c, "a call");
    *out = n;
    return parse_own_body(c, ends, &n->d);
}

static bool parse_filter_block(tm_compiler *c, tm_node **out) {
    static const char *const ends[] = {"endfilter", NULL};
    tm_node *n = kvf_tm_node_new(c, TM_N_FILTERBLOCK);
    if (!n) return false;
    *out = n;
    n->b = kvf_tm_node_new(c, TM_N_CAPTURED);
    if (!n->b || !kvf_tm_parse_filters(c, n->b, true, &n->b) || !end_block(c) || !parse_body(c, ends, &n->d))
        return false;
    c->at++;
    return end_block(c);
}

static bool parse_with(tm_compiler *c, tm_node **out) {
    static const char *const ends[] = {"endwith", NULL};
    tm_node *n = kvf_tm_node_new(c, TM_N_WITH);
    if (!n) return false;
    while (kvf_tm_peek(c)->kind != TM_T_BLOCK_END) {
        tm_node *target, *value;
        if (n->count && !kvf_tm_expect_op(c, TM_OP_COMMA, "',' or '%}'")) return false;
        if (!parse_target(c, false, &target) || !kvf_tm_expect_op(c, TM_OP_ASSIGN, "'='") ||
            !kvf_tm_parse_expression(c, true, &value) || !kvf_tm_node_add(c, n, target, TM_OP_NONE) ||
            !kvf_tm_node_add(c, n, value, TM_OP_NONE))
            return false;
    }
    *out = n;
    if (!end_block(c) || !parse_body(c, ends, &n->d)) return false;
    c->at++;
    return end_block(c);
}

/* {% generation %} only marks the assistant's text for training: its body is printed. */
static bool parse_generation(tm_compiler *c, tm_node **out) {
    static const char *const ends[] = {"endgeneration", NULL};
    tm_node *n = kvf_tm_node_new(c, TM_N_WITH);
    if (!n) return false;
    *out = n;
    return parse_own_body(c, ends, &n->d);
}

static bool parse_jump(tm_compiler *c, tm_node_kind kind, tm_node **out) {
    if (c->loop_depth == 0) return kvf_tm_unexpected(c, "break and continue only inside a for block");
    *out = kvf_tm_node_new(c, kind);
    return *out && end_block(c);
}
static bool parse_break(tm_compiler *c, tm_node **out) { return parse_jump(c, TM_N_BREAK, out); }
static bool parse_continue(tm_compiler *c, tm_node **out) { return parse_jump(c, TM_N_CONTINUE, out); }

static const struct {
    const char *name;
    bool (*parse)(tm_compiler *c, tm_node **out);
} statements[] = {{"if", parse_if}, {"for", parse_for}, {"set", parse_set}, {"macro", parse_macro},
    {"call", parse_call}, {"filter", parse_filter_block}, {"with", parse_with}, {"generation", parse_generation},
    {"break", parse_break}, {"continue", parse_continue}};

static bool parse_statement(tm_compiler *c, tm_node **out) {
    if (!kvf_tm_enter_nesting(c)) return false;
    for (size_t i = 0; i < KVF_COUNT_OF(statements); i++) {
        if (!kvf_tm_skip_name(c, statements[i].name)) continue;
        if (!statements[i].parse(c, out)) return false;
        c->depth--;
        return true;
    }
    return kvf_tm_unexpected(
        c, "a tag that is known (if, for, set, macro, call, filter, with, generation, break, continue)");
}

static bool parse_print(tm_compiler *c, tm_node **out) {
    tm_node *n = kvf_tm_node_new(c, TM_N_PRINT);
    if (!n || !kvf_tm_parse_tuple(c, true, &n->a)) return false;
    *out = n;
    return expect_kind(c, TM_T_VAR_END, "'}}'");
}

static bool parse_text(tm_compiler *c, const tm_token *t, tm_node **out) {
    tm_node *n = kvf_tm_node_new(c, TM_N_TEXT);
    tm_str *s = n ? take(c, sizeof *s) : NULL;
    if (!s) return false;
    *s = t->text;
    n->value = tm_string(s);
    *out = n;
    return true;
}

/* Statements until a tag named in `ends`, which is left as the next token; until the end of the template when there is
 * none. */
static bool parse_body(tm_compiler *c, const char *const *ends, tm_node **out) {
    const tm_token *opened = kvf_tm_peek(c);
    tm_node *seq = kvf_tm_node_new(c, TM_N_SEQ), *n = NULL;
    if (!seq) return false;
    for (;;) {
        const tm_token *t = kvf_tm_peek(c);
        if (t->kind == TM_T_EOF) {
            *out = seq;
            if (!ends[0]) return true;
            return kvf_tm_compile_fail(c, t->line, t->column,
                "the block whose body starts in line %u is not closed: expected '%s'", opened->line, ends[0]);
        }
        c->at++;
        bool ok = false;
        if (t->kind == TM_T_DATA) {
            ok = parse_text(c, t, &n);
        } else if (t->kind == TM_T_VAR_BEGIN) {
            ok = parse_print(c, &n);
        } else if (t->kind == TM_T_BLOCK_BEGIN) {
            for (const char *const *e = ends; *e; e++)
                if (kvf_tm_is_name(c, *e)) {
                    *out = seq;
                    return true;
                }
            ok = parse_statement(c, &n);
        }
        if (!ok || !kvf_tm_node_add(c, seq, n, TM_OP_NONE)) return ok ? false : kvf_tm_unexpected(c, "a statement");
    }
}

bool kvf_tm_parse(tm_compiler *c, tm_node **root) { return parse_body(c, no_ends, root); }
