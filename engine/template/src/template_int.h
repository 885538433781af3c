/* template_int.h - what the parts of the template interpreter share.
 *
 * Source -> tokens (lexer.c) -> tree (parser.c, parser_expr.c) -> text (exec.c, eval.c), with values (value.c, text.c),
 * filters, tests, methods and functions as tables of builtins.
 *
 * Invariants
 * 1. Every string is valid UTF-8; strings, lists, tuples and dictionaries never change after they were made (a template
 * cannot mutate; only a namespace's fields are assigned). So slices share bytes.
 * 2. Every byte of a string is trusted or not (tm_str_trust); an operation copies the mark with the byte, what an
 * operation adds itself carries the mark of what it was made from.
 * 3. All memory of a compile or render is in one pool with a maximum; nothing is freed before the pool is.
 * 4. Every recursion goes through kvf_tm_enter; every loop over data charges steps.
 * 5. A function that returns false has put the reason into run->err; the first reason stays. */
#ifndef KVF_TEMPLATE_INT_H
#define KVF_TEMPLATE_INT_H
#include "kvf/template.h"

/* ---- pool ---- */
typedef struct tm_chunk tm_chunk;
typedef struct {
    tm_chunk *chunks; /* owned */
    uint8_t *at, *end;
    size_t used_bytes, max_bytes;
    bool no_memory; /* the system refused, not the maximum */
} tm_pool;
void *kvf_tm_pool_take(
    tm_pool *pool, size_t len_bytes); /* zeroed, aligned to 16; NULL: over the maximum or out of memory */
void kvf_tm_pool_free(tm_pool *pool);

/* ---- values ---- */
typedef enum {
    TM_MISSING, /* an argument that was not given; never seen by templates */
    TM_UNDEFINED,
    TM_NONE,
    TM_BOOL,
    TM_INT,
    TM_FLOAT,
    TM_STRING,
    TM_LIST,
    TM_TUPLE,
    TM_GENERATOR, /* result of map, select, ...: a list that is only good for iterating */
    TM_VIEW, /* result of keys(), values(), items() */
    TM_DICT,
    TM_NAMESPACE,
    TM_MACRO,
    TM_FUNCTION,
    TM_METHOD,
    TM_LOOP,
} tm_kind;

typedef struct {
    char *data;
    uint8_t *mask;
    size_t len, cap;
    bool heap; /* data and mask are malloc'd and owned by whoever holds the buffer; otherwise they are in the pool */
} tm_buf;

typedef struct {
    const char *data; /* in the pool, in the template, or borrowed from the caller's JSON */
    const uint8_t *mask; /* NULL: every byte is `uniform` */
    uint32_t len;
    uint32_t chars; /* code points, TM_CHARS_UNKNOWN until counted */
    tm_buf *buf; /* room behind data where this string may grow in place, or NULL */
    uint8_t uniform;
} tm_str;
#define TM_CHARS_UNKNOWN UINT32_MAX

typedef struct tm_list tm_list;
typedef struct tm_dict tm_dict;
typedef struct tm_macro tm_macro;
typedef struct tm_method tm_method;
typedef struct tm_loop tm_loop;
typedef struct tm_builtin tm_builtin;
typedef struct tm_node tm_node;
typedef struct tm_frame tm_frame;
typedef struct tm_run tm_run;

typedef struct {
    uint8_t kind; /* tm_kind */
    uint8_t trusted; /* numbers and the like: the mark of their text */
    uint8_t refused; /* TM_UNDEFINED: the sandbox hid it */
    union {
        bool b;
        int64_t i;
        double f;
        tm_str *s; /* TM_STRING; TM_UNDEFINED: what was looked for, or NULL */
        tm_list *list;
        tm_dict *dict;
        tm_macro *macro;
        tm_method *method;
        tm_loop *loop;
        const tm_builtin *function;
    } u;
} tm_value;

struct tm_list {
    tm_value *items;
    uint32_t count, cap;
    uint8_t trusted; /* the mark of its brackets and commas when it is printed */
};

typedef struct {
    tm_value key, value;
    uint64_t hash;
} tm_entry;
struct tm_dict { /* in order of insertion */
    tm_entry *entries;
    uint32_t count, cap;
    uint32_t *index; /* open addressing, entry number + 1; NULL while the dictionary is small */
    uint32_t index_cap;
    uint8_t trusted;
};

struct tm_method {
    const tm_builtin *builtin;
    tm_value self;
};
struct tm_macro {
    const tm_node *node; /* TM_N_MACRO or TM_N_CALLBLOCK */
    tm_frame *frame; /* where it was defined */
};
struct tm_loop {
    const tm_node *node;
    tm_frame *frame;
    tm_list *items;
    uint32_t index;
    uint32_t depth;
    tm_value changed;
};

/* ---- calls ---- */
#define TM_SLOTS 5
typedef struct {
    const tm_str *name;
    tm_value value;
} tm_keyword;
typedef struct {
    tm_value self; /* what the filter, test or method is applied to */
    tm_value *pos;
    tm_keyword *keywords;
    uint32_t pos_count, keyword_count;
    tm_value slot[TM_SLOTS]; /* arguments by the builtin's parameter list; kind TM_MISSING where not given */
} tm_call;
typedef bool (*tm_fn)(tm_run *r, tm_call *c, tm_value *out);
struct tm_builtin {
    const char *name;
    const char *params; /* names separated by spaces; NULL: the function reads pos and keywords itself */
    uint32_t required;
    tm_fn fn;
};
const tm_builtin *kvf_tm_filter_find(const char *name, size_t len_bytes);
const tm_builtin *kvf_tm_test_find(const char *name, size_t len_bytes);
const tm_builtin *kvf_tm_function_find(const char *name, size_t len_bytes);
const tm_builtin *kvf_tm_method_find(tm_kind kind, const char *name, size_t len_bytes);
bool kvf_tm_call_builtin(tm_run *r, const tm_builtin *b, tm_call *c, tm_value *out); /* binds slots, then calls */
const tm_builtin *kvf_tm_table_find(const tm_builtin *table, size_t count, const char *name, size_t len_bytes);

/* ---- tree ---- */
typedef enum {
    TM_N_CONST,
    TM_N_NAME,
    TM_N_LIST,
    TM_N_TUPLE,
    TM_N_DICT, /* items: key, value, key, value */
    TM_N_ATTR, /* a.name */
    TM_N_ITEM, /* a[b] */
    TM_N_SLICE, /* a[b:c:d] */
    TM_N_CALL, /* a(items) */
    TM_N_FILTER,
    TM_N_TEST,
    TM_N_KEYWORD, /* name=a, in argument lists */
    TM_N_STAR, /* *a */
    TM_N_STARSTAR, /* **a */
    TM_N_NOT,
    TM_N_NEG,
    TM_N_POS,
    TM_N_AND,
    TM_N_OR,
    TM_N_CHAIN, /* items joined by ops, left to right */
    TM_N_CONCAT,
    TM_N_COMPARE,
    TM_N_COND, /* a if b else c */
    TM_N_SEQ,
    TM_N_TEXT,
    TM_N_PRINT,
    TM_N_IF, /* items: condition, body, condition, body, ...; a: else body */
    TM_N_FOR, /* name: "loop"; a: target, b: iterable, c: condition, d: body, e: else body */
    TM_N_SET, /* a: target, b: value */
    TM_N_SETBLOCK, /* a: target, b: chain of filters over TM_N_CAPTURED, d: body */
    TM_N_CAPTURED,
    TM_N_MACRO, /* items: parameters (TM_N_NAME, a: default); d: body; e: the name "caller" */
    TM_N_CALLBLOCK, /* items: parameters; a: the call; d: body */
    TM_N_FILTERBLOCK,
    TM_N_WITH, /* items: target, value, ...; d: body */
    TM_N_BREAK,
    TM_N_CONTINUE,
} tm_node_kind;

typedef enum { /* operators of chains and comparisons; also token codes */
    TM_OP_NONE,
    TM_OP_ADD,
    TM_OP_SUB,
    TM_OP_MUL,
    TM_OP_DIV,
    TM_OP_FLOORDIV,
    TM_OP_MOD,
    TM_OP_POW,
    TM_OP_TILDE,
    TM_OP_EQ,
    TM_OP_NE,
    TM_OP_LT,
    TM_OP_LE,
    TM_OP_GT,
    TM_OP_GE,
    TM_OP_IN,
    TM_OP_NOT_IN,
    TM_OP_ASSIGN,
    TM_OP_DOT,
    TM_OP_COLON,
    TM_OP_PIPE,
    TM_OP_COMMA,
    TM_OP_SEMICOLON,
    TM_OP_LPAREN,
    TM_OP_RPAREN,
    TM_OP_LBRACKET,
    TM_OP_RBRACKET,
    TM_OP_LBRACE,
    TM_OP_RBRACE,
} tm_op;

struct tm_node {
    uint8_t kind;
    bool recursive; /* TM_N_FOR */
    bool negated; /* TM_N_TEST */
    uint32_t line;
    uint32_t count;
    tm_value value; /* TM_N_CONST, TM_N_TEXT */
    const tm_str *name; /* interned: equal names are equal pointers */
    const tm_builtin *builtin;
    tm_node **items;
    uint8_t *ops;
    tm_node *a, *b, *c, *d, *e;
};

/* ---- tokens ---- */
typedef enum {
    TM_T_EOF,
    TM_T_DATA,
    TM_T_VAR_BEGIN,
    TM_T_VAR_END,
    TM_T_BLOCK_BEGIN,
    TM_T_BLOCK_END,
    TM_T_NAME,
    TM_T_STRING,
    TM_T_INT,
    TM_T_FLOAT,
    TM_T_OP,
} tm_token_kind;
typedef struct {
    uint8_t kind;
    uint8_t op; /* tm_op */
    uint32_t line, column;
    tm_str text; /* DATA, STRING (unescaped), NAME */
    int64_t i;
    double f;
} tm_token;

typedef struct {
    tm_pool *pool;
    kvf_error *err;
    kvf_status status; /* set with the first failure */
    const char *source;
    size_t len;
    tm_token *tokens;
    size_t token_count, token_cap;
    /* parser */
    size_t at;
    uint32_t depth, loop_depth;
    tm_str **names;
    size_t name_count, name_cap;
} tm_compiler;
bool kvf_tm_lex(tm_compiler *c);
bool kvf_tm_parse(tm_compiler *c, tm_node **root);
bool kvf_tm_compile_fail(tm_compiler *c, uint32_t line, uint32_t column, const char *fmt, ...) KVF_PRINTF(4, 5);
/* parser_expr.c and parser.c share these. */
#define TM_NESTING_MAX 100
bool kvf_tm_parse_expression(tm_compiler *c, bool with_condition, tm_node **out);
bool kvf_tm_parse_tuple(tm_compiler *c, bool with_condition, tm_node **out);
bool kvf_tm_parse_call_args(tm_compiler *c, tm_node *call);
bool kvf_tm_parse_filters(tm_compiler *c, tm_node *base, bool leading_name, tm_node **out);
bool kvf_tm_parse_postfix(tm_compiler *c, tm_node *base, tm_node **out);
bool kvf_tm_parse_primary(tm_compiler *c, tm_node **out);
const tm_token *kvf_tm_peek(const tm_compiler *c);
bool kvf_tm_is_op(const tm_compiler *c, tm_op op);
bool kvf_tm_is_name(const tm_compiler *c, const char *name);
bool kvf_tm_skip_op(tm_compiler *c, tm_op op);
bool kvf_tm_skip_name(tm_compiler *c, const char *name);
bool kvf_tm_expect_op(tm_compiler *c, tm_op op, const char *what);
bool kvf_tm_expect_name(tm_compiler *c, const tm_str **name);
bool kvf_tm_unexpected(tm_compiler *c, const char *expected);
bool kvf_tm_enter_nesting(tm_compiler *c);
tm_node *kvf_tm_node_new(tm_compiler *c, tm_node_kind kind);
bool kvf_tm_node_add(tm_compiler *c, tm_node *n, tm_node *item, tm_op op);
const tm_str *kvf_tm_intern(tm_compiler *c, const char *data, size_t len_bytes);

struct kvf_template {
    tm_pool pool;
    tm_node *root;
};

/* ---- run ---- */
typedef enum { TM_FLOW_NORMAL, TM_FLOW_BREAK, TM_FLOW_CONTINUE } tm_flow;
typedef struct {
    const tm_str *name;
    tm_value value;
} tm_var;
struct tm_frame {
    tm_frame *parent;
    tm_var *vars;
    uint32_t count, cap;
    bool captured; /* a macro refers to it: must not be reused */
};
struct tm_run {
    tm_pool pool;
    kvf_template_limits limits;
    uint64_t steps;
    uint32_t depth;
    uint32_t line;
    tm_buf *out;
    tm_dict *vars, *trusted_vars;
    tm_str *captured; /* what TM_N_CAPTURED stands for */
    int64_t now_unix;
    kvf_status status;
    kvf_error *err;
};
bool kvf_tm_fail(tm_run *r, kvf_status status, const char *fmt, ...) KVF_PRINTF(3, 4);
bool kvf_tm_charge(tm_run *r, uint64_t steps);
bool kvf_tm_enter(tm_run *r); /* one level deeper and one step; pair with kvf_tm_leave when true */
static inline void kvf_tm_leave(tm_run *r) { r->depth--; }
void *kvf_tm_take(tm_run *r, size_t len_bytes); /* NULL: failed, reason set */

bool kvf_tm_exec(tm_run *r, const tm_node *n, tm_frame *f, tm_flow *flow);
bool kvf_tm_eval(tm_run *r, const tm_node *n, tm_frame *f, tm_value *out);
bool kvf_tm_call_value(tm_run *r, const tm_value *callee, tm_call *c, tm_value *out);
bool kvf_tm_call_macro(tm_run *r, const tm_macro *m, tm_call *c, tm_value *out);
bool kvf_tm_loop_run(
    tm_run *r, const tm_node *n, tm_frame *outer, const tm_value *iterable, uint32_t depth, tm_flow *flow);
bool kvf_tm_eval_args(tm_run *r, const tm_node *n, tm_frame *f, tm_call *c);
tm_frame *kvf_tm_frame_new(tm_run *r, tm_frame *parent);
bool kvf_tm_frame_set(tm_run *r, tm_frame *f, const tm_str *name, const tm_value *value);
const tm_value *kvf_tm_frame_get(const tm_frame *f, const tm_str *name);

/* ---- value.c ---- */
static inline tm_value tm_none(void) { return (tm_value){.kind = TM_NONE, .trusted = 1}; }
static inline tm_value tm_bool(bool b) { return (tm_value){.kind = TM_BOOL, .trusted = 1, .u.b = b}; }
static inline tm_value tm_int(int64_t i, uint8_t trusted) {
    return (tm_value){.kind = TM_INT, .trusted = trusted, .u.i = i};
}
static inline tm_value tm_float(double f, uint8_t trusted) {
    return (tm_value){.kind = TM_FLOAT, .trusted = trusted, .u.f = f};
}
static inline tm_value tm_undefined(tm_str *what) {
    return (tm_value){.kind = TM_UNDEFINED, .trusted = 1, .u.s = what};
}
static inline tm_value tm_string(tm_str *s) { return (tm_value){.kind = TM_STRING, .u.s = s}; }
static inline bool tm_is_listlike(const tm_value *v) { return v->kind >= TM_LIST && v->kind <= TM_VIEW; }
static inline bool tm_is_number(const tm_value *v) { return v->kind >= TM_BOOL && v->kind <= TM_FLOAT; }

const char *kvf_tm_type_name(const tm_value *v);
bool kvf_tm_truth(const tm_value *v);
uint8_t kvf_tm_trust_of(const tm_value *v); /* of a whole value: all bytes, the number, the brackets */
bool kvf_tm_equal(tm_run *r, const tm_value *a, const tm_value *b, bool *out);
bool kvf_tm_less(tm_run *r, const tm_value *a, const tm_value *b, bool *out); /* fails on values without an order */
bool kvf_tm_contains(tm_run *r, const tm_value *in, const tm_value *item, bool *out);
tm_list *kvf_tm_list_new(tm_run *r, uint32_t cap, uint8_t trusted);
bool kvf_tm_list_add(tm_run *r, tm_list *list, const tm_value *v);
tm_dict *kvf_tm_dict_new(tm_run *r, uint8_t trusted);
bool kvf_tm_dict_set(tm_run *r, tm_dict *d, const tm_value *key, const tm_value *value);
bool kvf_tm_dict_get(tm_run *r, const tm_dict *d, const tm_value *key, tm_value *out); /* TM_MISSING when absent */
bool kvf_tm_iterate(tm_run *r, const tm_value *v, tm_list **out); /* fails on what cannot be iterated */
bool kvf_tm_length(tm_run *r, const tm_value *v, tm_value *out);
bool kvf_tm_attr(tm_run *r, const tm_value *v, const tm_str *name, tm_value *out); /* v.name */
bool kvf_tm_item(tm_run *r, const tm_value *v, const tm_value *key, tm_value *out); /* v[key] */
bool kvf_tm_slice(
    tm_run *r, const tm_value *v, const tm_value *from, const tm_value *to, const tm_value *step, tm_value *out);
bool kvf_tm_from_json(tm_run *r, const json_t *j, uint8_t trusted, tm_value *out);
bool kvf_tm_as_int(const tm_value *v, int64_t *out);
bool kvf_tm_as_float(const tm_value *v, double *out);
bool kvf_tm_arith(tm_run *r, tm_op op, const tm_value *a, const tm_value *b, tm_value *out); /* arith.c */

/* ---- text.c ---- */
static inline uint8_t tm_str_trust(const tm_str *s, size_t at) { return s->mask ? s->mask[at] : s->uniform; }
static inline bool tm_str_is(const tm_str *s, const char *text) {
    return s->len == strlen(text) && memcmp(s->data, text, s->len) == 0;
}
bool kvf_tm_str_equal(const tm_str *a, const tm_str *b);
tm_str *kvf_tm_str_new(tm_run *r, const char *data, size_t len_bytes, uint8_t trusted); /* data is not copied */
tm_str *kvf_tm_str_slice(tm_run *r, const tm_str *s, size_t from, size_t len_bytes); /* bytes; shares them */
tm_str *kvf_tm_str_concat(tm_run *r, tm_str *a, const tm_str *b);
uint32_t kvf_tm_str_chars(tm_str *s);
size_t kvf_tm_str_offset(tm_str *s, size_t char_index); /* byte where the character starts; len at the end */
size_t kvf_tm_utf8_decode(const char *data, size_t len_bytes, uint32_t *cp); /* length of the character; 0: invalid */
size_t kvf_tm_utf8_encode(uint32_t cp, char out[4]);
bool kvf_tm_is_space(uint32_t cp);
bool kvf_tm_buf_add(tm_run *r, tm_buf *b, const char *data, const uint8_t *mask, uint8_t uniform, size_t len_bytes);
bool kvf_tm_buf_text(tm_run *r, tm_buf *b, const char *text, uint8_t trusted);
bool kvf_tm_buf_str(tm_run *r, tm_buf *b, const tm_str *s);
tm_str *kvf_tm_buf_finish(tm_run *r, tm_buf *b);
bool kvf_tm_print(tm_run *r, tm_buf *b, const tm_value *v); /* as {{ v }} prints it */
bool kvf_tm_repr(tm_run *r, tm_buf *b, const tm_value *v); /* as it stands inside a printed list */
bool kvf_tm_to_str(tm_run *r, const tm_value *v, tm_str **out);
bool kvf_tm_json(tm_run *r, tm_buf *b, const tm_value *v, tm_call *options, uint32_t level);
size_t kvf_tm_float_text(double f, char out[40]);

/* ---- string operations that filters and methods share (strings.c) ---- */
typedef enum { TM_CASE_UPPER, TM_CASE_LOWER, TM_CASE_TITLE, TM_CASE_CAPITALIZE, TM_CASE_WORDS } tm_case;
tm_str *kvf_tm_str_case(tm_run *r, const tm_str *s, tm_case how);
tm_str *kvf_tm_str_strip(tm_run *r, const tm_str *s, const tm_str *chars, bool left, bool right);
tm_str *kvf_tm_str_replace(tm_run *r, tm_str *s, const tm_str *old, const tm_str *with, int64_t count_max);
bool kvf_tm_str_lines(tm_run *r, const tm_str *s, bool keep_ends, tm_list *out);
bool kvf_tm_str_find(tm_run *r, const tm_str *s, const tm_str *what, size_t from, size_t *at); /* at SIZE_MAX: absent */
bool kvf_tm_str_join(tm_run *r, const tm_str *glue, const tm_list *items, bool convert, tm_str **out);
bool kvf_tm_str_format(tm_run *r, const tm_str *fmt, const tm_value *args, uint32_t count, tm_str **out);
#endif
