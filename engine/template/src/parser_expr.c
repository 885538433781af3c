/* parser_expr.c - expressions, loosest first: a if b else c; or; and; not; comparisons; + -; ~; * / // %; **; unary -
 * +; postfix .name [item] (call); filters and tests. As in Jinja2, "is" and "|" bind tighter than arithmetic, and **
 * joins to the left. Chains of equal rank become one node with many items, so that long concatenations are not deep. */
#include "template_int.h"

static bool parse_or(tm_compiler *c, tm_node **out);
static bool parse_unary(tm_compiler *c, bool with_filters, tm_node **out);

typedef bool (*parse_fn)(tm_compiler *c, tm_node **out);

/* items joined by any of `ops`, as one node of `kind`; just the item when there is one. */
static bool parse_chain(tm_compiler *c, parse_fn item, tm_node_kind kind, const uint8_t *ops, tm_node **out) {
    tm_node *left, *chain = NULL;
    if (!item(c, &left)) return false;
    for (;;) {
        const tm_token *t = kvf_tm_peek(c);
        if (t->kind != TM_T_OP || !t->op || !strchr((const char *)ops, t->op)) break;
        if (!chain) {
            chain = kvf_tm_node_new(c, kind);
            if (!chain || !kvf_tm_node_add(c, chain, left, TM_OP_NONE)) return false;
        }
        tm_op op = (tm_op)t->op;
        c->at++;
        tm_node *right;
        if (!item(c, &right) || !kvf_tm_node_add(c, chain, right, op)) return false;
    }
    *out = chain ? chain : left;
    return true;
}

static bool parse_factor(tm_compiler *c, tm_node **out) { return parse_unary(c, true, out); }
static bool parse_pow(tm_compiler *c, tm_node **out) {
    return parse_chain(c, parse_factor, TM_N_CHAIN, (const uint8_t[]){TM_OP_POW, 0}, out);
}
static bool parse_product(tm_compiler *c, tm_node **out) {
    static const uint8_t ops[] = {TM_OP_MUL, TM_OP_DIV, TM_OP_FLOORDIV, TM_OP_MOD, 0};
    return parse_chain(c, parse_pow, TM_N_CHAIN, ops, out);
}
static bool parse_concat(tm_compiler *c, tm_node **out) {
    return parse_chain(c, parse_product, TM_N_CONCAT, (const uint8_t[]){TM_OP_TILDE, 0}, out);
}
static bool parse_sum(tm_compiler *c, tm_node **out) {
    return parse_chain(c, parse_concat, TM_N_CHAIN, (const uint8_t[]){TM_OP_ADD, TM_OP_SUB, 0}, out);
}

static tm_op compare_op(tm_compiler *c) { /* and moves over it */
    const tm_token *t = kvf_tm_peek(c);
    if (t->kind == TM_T_OP && t->op >= TM_OP_EQ && t->op <= TM_OP_GE) {
        c->at++;
        return (tm_op)t->op;
    }
    if (kvf_tm_skip_name(c, "in")) return TM_OP_IN;
    if (kvf_tm_is_name(c, "not") && t[1].kind == TM_T_NAME && tm_str_is(&t[1].text, "in")) {
        c->at += 2;
        return TM_OP_NOT_IN;
    }
    return TM_OP_NONE;
}

static bool parse_compare(tm_compiler *c, tm_node **out) {
    tm_node *left, *node = NULL;
    if (!parse_sum(c, &left)) return false;
    for (tm_op op; (op = compare_op(c)) != TM_OP_NONE;) {
        if (!node) {
            node = kvf_tm_node_new(c, TM_N_COMPARE);
            if (!node || !kvf_tm_node_add(c, node, left, TM_OP_NONE)) return false;
        }
        tm_node *right;
        if (!parse_sum(c, &right) || !kvf_tm_node_add(c, node, right, op)) return false;
    }
    *out = node ? node : left;
    return true;
}

static bool parse_not(tm_compiler *c, tm_node **out) {
    if (!kvf_tm_is_name(c, "not")) return parse_compare(c, out);
    tm_node *n = kvf_tm_node_new(c, TM_N_NOT);
    if (!n || !kvf_tm_enter_nesting(c)) return false;
    c->at++;
    if (!parse_not(c, &n->a)) return false;
    c->depth--;
    *out = n;
    return true;
}

static bool parse_logic(tm_compiler *c, const char *word, parse_fn item, tm_node_kind kind, tm_node **out) {
    tm_node *left, *node = NULL;
    if (!item(c, &left)) return false;
    while (kvf_tm_skip_name(c, word)) {
        if (!node) {
            node = kvf_tm_node_new(c, kind);
            if (!node || !kvf_tm_node_add(c, node, left, TM_OP_NONE)) return false;
        }
        tm_node *right;
        if (!item(c, &right) || !kvf_tm_node_add(c, node, right, TM_OP_NONE)) return false;
    }
    *out = node ? node : left;
    return true;
}
static bool parse_and(tm_compiler *c, tm_node **out) { return parse_logic(c, "and", parse_not, TM_N_AND, out); }
static bool parse_or(tm_compiler *c, tm_node **out) { return parse_logic(c, "or", parse_and, TM_N_OR, out); }

bool kvf_tm_parse_expression(tm_compiler *c, bool with_condition, tm_node **out) {
    tm_node *value;
    if (!kvf_tm_enter_nesting(c) || !parse_or(c, &value)) return false;
    uint32_t conditions = 0;
    while (with_condition && kvf_tm_is_name(c, "if")) {
        tm_node *n = kvf_tm_node_new(c, TM_N_COND);
        c->at++;
        if (!n || (++conditions > TM_NESTING_MAX && !kvf_tm_unexpected(c, "fewer conditions"))) return false;
        n->a = value;
        if (!parse_or(c, &n->b)) return false;
        if (kvf_tm_skip_name(c, "else") && !kvf_tm_parse_expression(c, true, &n->c)) return false;
        value = n;
    }
    c->depth--;
    *out = value;
    return true;
}

static bool tuple_ends(const tm_compiler *c) {
    const tm_token *t = kvf_tm_peek(c);
    return t->kind == TM_T_VAR_END || t->kind == TM_T_BLOCK_END || kvf_tm_is_op(c, TM_OP_RPAREN) ||
           kvf_tm_is_name(c, "in") || kvf_tm_is_name(c, "recursive") || kvf_tm_is_op(c, TM_OP_ASSIGN);
}

/* "a", or "a, b" and "a," as a tuple. */
bool kvf_tm_parse_tuple(tm_compiler *c, bool with_condition, tm_node **out) {
    tm_node *first, *tuple = NULL;
    if (!kvf_tm_parse_expression(c, with_condition, &first)) return false;
    while (kvf_tm_skip_op(c, TM_OP_COMMA)) {
        if (!tuple) {
            tuple = kvf_tm_node_new(c, TM_N_TUPLE);
            if (!tuple || !kvf_tm_node_add(c, tuple, first, TM_OP_NONE)) return false;
        }
        if (tuple_ends(c)) break;
        tm_node *item;
        if (!kvf_tm_parse_expression(c, with_condition, &item) || !kvf_tm_node_add(c, tuple, item, TM_OP_NONE))
            return false;
    }
    *out = tuple ? tuple : first;
    return true;
}

static bool parse_unary(tm_compiler *c, bool with_filters, tm_node **out) {
    tm_node *n;
    bool negative = kvf_tm_is_op(c, TM_OP_SUB);
    if (negative || kvf_tm_is_op(c, TM_OP_ADD)) {
        n = kvf_tm_node_new(c, negative ? TM_N_NEG : TM_N_POS);
        c->at++;
        if (!n || !kvf_tm_enter_nesting(c) || !parse_unary(c, false, &n->a)) return false;
        c->depth--;
    } else if (!kvf_tm_parse_primary(c, &n)) {
        return false;
    }
    if (!kvf_tm_parse_postfix(c, n, &n)) return false;
    if (with_filters && !kvf_tm_parse_filters(c, n, false, &n)) return false;
    *out = n;
    return true;
}

static bool parse_list(tm_compiler *c, tm_node **out) {
    tm_node *n = kvf_tm_node_new(c, TM_N_LIST);
    if (!n) return false;
    while (!kvf_tm_skip_op(c, TM_OP_RBRACKET)) {
        tm_node *item;
        if (n->count && !kvf_tm_expect_op(c, TM_OP_COMMA, "',' or ']'")) return false;
        if (kvf_tm_skip_op(c, TM_OP_RBRACKET)) break;
        if (!kvf_tm_parse_expression(c, true, &item) || !kvf_tm_node_add(c, n, item, TM_OP_NONE)) return false;
    }
    *out = n;
    return true;
}

static bool parse_dict(tm_compiler *c, tm_node **out) {
    tm_node *n = kvf_tm_node_new(c, TM_N_DICT);
    if (!n) return false;
    while (!kvf_tm_skip_op(c, TM_OP_RBRACE)) {
        tm_node *key, *value;
        if (n->count && !kvf_tm_expect_op(c, TM_OP_COMMA, "',' or '}'")) return false;
        if (kvf_tm_skip_op(c, TM_OP_RBRACE)) break;
        if (!kvf_tm_parse_expression(c, true, &key) || !kvf_tm_expect_op(c, TM_OP_COLON, "':'") ||
            !kvf_tm_parse_expression(c, true, &value) || !kvf_tm_node_add(c, n, key, TM_OP_NONE) ||
            !kvf_tm_node_add(c, n, value, TM_OP_NONE))
            return false;
    }
    *out = n;
    return true;
}

static bool parse_parenthesis(tm_compiler *c, tm_node **out) {
    if (kvf_tm_skip_op(c, TM_OP_RPAREN)) {
        *out = kvf_tm_node_new(c, TM_N_TUPLE);
        return *out != NULL;
    }
    return kvf_tm_parse_tuple(c, true, out) && kvf_tm_expect_op(c, TM_OP_RPAREN, "')'");
}

static bool parse_name(tm_compiler *c, const tm_token *t, tm_node **out) {
    static const char words[][6] = {"true", "True", "false", "False", "none", "None"};
    tm_node *n = kvf_tm_node_new(c, TM_N_NAME);
    if (!n) return false;
    n->name = kvf_tm_intern(c, t->text.data, t->text.len);
    for (size_t i = 0; i < KVF_COUNT_OF(words); i++)
        if (tm_str_is(&t->text, words[i])) {
            n->kind = TM_N_CONST;
            n->value = i < 4 ? tm_bool(i < 2) : tm_none();
        }
    *out = n;
    return n->name != NULL;
}

static bool parse_string(tm_compiler *c, tm_node **out) { /* adjacent strings are one */
    tm_node *n = kvf_tm_node_new(c, TM_N_CONST);
    tm_str *s = n ? kvf_tm_pool_take(c->pool, sizeof *s) : NULL;
    if (!s) return false;
    *s = kvf_tm_peek(c)[-1].text;
    while (kvf_tm_peek(c)->kind == TM_T_STRING) {
        const tm_str *more = &kvf_tm_peek(c)->text;
        char *joined = kvf_tm_pool_take(c->pool, (size_t)s->len + more->len);
        if (!joined) return kvf_tm_unexpected(c, "a smaller template");
        memcpy(joined, s->data, s->len);
        memcpy(joined + s->len, more->data, more->len);
        s->data = joined;
        s->len += more->len;
        c->at++;
    }
    n->value = tm_string(s);
    *out = n;
    return true;
}

bool kvf_tm_parse_primary(tm_compiler *c, tm_node **out) {
    const tm_token *t = kvf_tm_peek(c);
    bool ok = false;
    if (!kvf_tm_enter_nesting(c)) return false;
    c->at++;
    if (t->kind == TM_T_NAME) {
        ok = parse_name(c, t, out);
    } else if (t->kind == TM_T_STRING) {
        ok = parse_string(c, out);
    } else if (t->kind == TM_T_INT || t->kind == TM_T_FLOAT) {
        *out = kvf_tm_node_new(c, TM_N_CONST);
        if (*out) (*out)->value = t->kind == TM_T_INT ? tm_int(t->i, 1) : tm_float(t->f, 1);
        ok = *out != NULL;
    } else if (t->kind == TM_T_OP && t->op == TM_OP_LPAREN) {
        ok = parse_parenthesis(c, out);
    } else if (t->kind == TM_T_OP && t->op == TM_OP_LBRACKET) {
        ok = parse_list(c, out);
    } else if (t->kind == TM_T_OP && t->op == TM_OP_LBRACE) {
        ok = parse_dict(c, out);
    } else {
        c->at--;
        return kvf_tm_unexpected(c, "an expression");
    }
    c->depth--;
    return ok;
}

static bool parse_attribute(tm_compiler *c, tm_node *base, tm_node **out) {
    const tm_token *t = kvf_tm_peek(c);
    tm_node *n = kvf_tm_node_new(c, t->kind == TM_T_INT ? TM_N_ITEM : TM_N_ATTR);
    if (!n) return false;
    n->a = base;
    *out = n;
    if (t->kind != TM_T_INT) return kvf_tm_expect_name(c, &n->name);
    n->b = kvf_tm_node_new(c, TM_N_CONST);
    if (!n->b) return false;
    n->b->value = tm_int(t->i, 1);
    c->at++;
    return true;
}

static bool parse_subscript(tm_compiler *c, tm_node *base, tm_node **out) {
    tm_node *n = kvf_tm_node_new(c, TM_N_ITEM);
    if (!n) return false;
    n->a = base;
    *out = n;
    if (!kvf_tm_is_op(c, TM_OP_COLON)) {
        if (!kvf_tm_parse_expression(c, true, &n->b)) return false;
        if (kvf_tm_skip_op(c, TM_OP_RBRACKET)) return true;
    }
    n->kind = TM_N_SLICE;
    if (!kvf_tm_expect_op(c, TM_OP_COLON, "':' or ']'")) return false;
    if (!kvf_tm_is_op(c, TM_OP_COLON) && !kvf_tm_is_op(c, TM_OP_RBRACKET) && !kvf_tm_parse_expression(c, true, &n->c))
        return false;
    if (kvf_tm_skip_op(c, TM_OP_COLON) && !kvf_tm_is_op(c, TM_OP_RBRACKET) && !kvf_tm_parse_expression(c, true, &n->d))
        return false;
    return kvf_tm_expect_op(c, TM_OP_RBRACKET, "']'");
}

/* Arguments behind an opening parenthesis that has been consumed. */
bool kvf_tm_parse_call_args(tm_compiler *c, tm_node *call) {
    bool keywords = false;
    for (bool first = true; !kvf_tm_skip_op(c, TM_OP_RPAREN); first = false) {
        if (!first && !kvf_tm_expect_op(c, TM_OP_COMMA, "',' or ')'")) return false;
        if (kvf_tm_skip_op(c, TM_OP_RPAREN)) return true;
        const tm_token *t = kvf_tm_peek(c);
        tm_node *item = NULL;
        if (kvf_tm_is_op(c, TM_OP_MUL) || kvf_tm_is_op(c, TM_OP_POW)) {
            item = kvf_tm_node_new(c, t->op == TM_OP_MUL ? TM_N_STAR : TM_N_STARSTAR);
            keywords = keywords || t->op == TM_OP_POW;
            c->at++;
        } else if (t->kind == TM_T_NAME && t[1].kind == TM_T_OP && t[1].op == TM_OP_ASSIGN) {
            item = kvf_tm_node_new(c, TM_N_KEYWORD);
            keywords = true;
            if (!item || !kvf_tm_expect_name(c, &item->name)) return false;
            c->at++;
        } else if (keywords) {
            return kvf_tm_unexpected(c, "name=value after the first such argument");
        }
        tm_node *value;
        if (!kvf_tm_parse_expression(c, true, &value)) return false;
        if (item) item->a = value;
        if (!kvf_tm_node_add(c, call, item ? item : value, TM_OP_NONE)) return false;
    }
    return true;
}

bool kvf_tm_parse_postfix(tm_compiler *c, tm_node *base, tm_node **out) {
    for (;;) {
        if (kvf_tm_skip_op(c, TM_OP_DOT)) {
            if (!parse_attribute(c, base, &base)) return false;
        } else if (kvf_tm_skip_op(c, TM_OP_LBRACKET)) {
            if (!parse_subscript(c, base, &base)) return false;
        } else if (kvf_tm_skip_op(c, TM_OP_LPAREN)) {
            tm_node *call = kvf_tm_node_new(c, TM_N_CALL);
            if (!call) return false;
            call->a = base;
            if (!kvf_tm_parse_call_args(c, call)) return false;
            base = call;
        } else {
            *out = base;
            return true;
        }
    }
}

static bool parse_filter(tm_compiler *c, tm_node *base, tm_node **out) {
    const tm_token *at = kvf_tm_peek(c);
    tm_node *n = kvf_tm_node_new(c, TM_N_FILTER);
    if (!n || !kvf_tm_expect_name(c, &n->name)) return false;
    n->a = base;
    n->builtin = kvf_tm_filter_find(n->name->data, n->name->len);
    if (!n->builtin)
        return kvf_tm_compile_fail(
            c, at->line, at->column, "there is no filter '%.*s'", (int)n->name->len, n->name->data);
    *out = n;
    return !kvf_tm_skip_op(c, TM_OP_LPAREN) || kvf_tm_parse_call_args(c, n);
}

static bool test_takes_argument(const tm_compiler *c) {
    static const char ends[][6] = {"else", "or", "and", "if", "is", "not", "in"};
    const tm_token *t = kvf_tm_peek(c);
    if (t->kind == TM_T_NAME)
        for (size_t i = 0; i < KVF_COUNT_OF(ends); i++)
            if (tm_str_is(&t->text, ends[i])) return false;
    return t->kind == TM_T_NAME || t->kind == TM_T_STRING || t->kind == TM_T_INT || t->kind == TM_T_FLOAT ||
           kvf_tm_is_op(c, TM_OP_LBRACKET) || kvf_tm_is_op(c, TM_OP_LBRACE);
}

static bool parse_test(tm_compiler *c, tm_node *base, tm_node **out) {
    tm_node *n = kvf_tm_node_new(c, TM_N_TEST), *arg;
    if (!n) return false;
    n->a = base;
    n->negated = kvf_tm_skip_name(c, "not");
    const tm_token *at = kvf_tm_peek(c);
    if (!kvf_tm_expect_name(c, &n->name)) return false;
    n->builtin = kvf_tm_test_find(n->name->data, n->name->len);
    if (!n->builtin)
        return kvf_tm_compile_fail(
            c, at->line, at->column, "there is no test '%.*s'", (int)n->name->len, n->name->data);
    *out = n;
    if (kvf_tm_skip_op(c, TM_OP_LPAREN)) return kvf_tm_parse_call_args(c, n);
    if (!test_takes_argument(c)) return true;
    return kvf_tm_parse_primary(c, &arg) && kvf_tm_parse_postfix(c, arg, &arg) &&
           kvf_tm_node_add(c, n, arg, TM_OP_NONE);
}

/* leading_name: the first filter stands without "|" ({% filter upper %}). */
bool kvf_tm_parse_filters(tm_compiler *c, tm_node *base, bool leading_name, tm_node **out) {
    for (;;) {
        if (leading_name || kvf_tm_skip_op(c, TM_OP_PIPE)) {
            leading_name = false;
            if (!parse_filter(c, base, &base)) return false;
        } else if (kvf_tm_skip_name(c, "is")) {
            if (!parse_test(c, base, &base)) return false;
        } else if (kvf_tm_skip_op(c, TM_OP_LPAREN)) {
            tm_node *call = kvf_tm_node_new(c, TM_N_CALL);
            if (!call) return false;
            call->a = base;
            if (!kvf_tm_parse_call_args(c, call)) return false;
            base = call;
        } else {
            *out = base;
            return true;
        }
    }
}
