/* lexer.c - template source to tokens.
 *
 * Text outside tags is a DATA token, already without the white space that tags remove:
 *   "-" at the start of a tag removes all white space before it, "-" at its end all behind it;
 *   block and comment tags also remove the blanks of their line before them (lstrip_blocks) and one newline behind them
 *   (trim_blocks), unless "+" says otherwise. Expressions {{ }} remove nothing of themselves.
 * Line ends were normalised to \n and one final newline removed before (compile.c). Inside a tag, brackets are counted,
 * so that
 * "}}" inside a dictionary does not end it. */
#include "template_int.h"
#include <errno.h>
#include <math.h>
#include <stdlib.h>

typedef struct {
    tm_compiler *c;
    const char *src;
    size_t len, pos;
    uint32_t line;
    size_t line_start;
    size_t line_at; /* how far lines have been counted */
} lexer;

static void count_lines(lexer *x, size_t to) {
    for (; x->line_at < to; x->line_at++)
        if (x->src[x->line_at] == '\n') {
            x->line++;
            x->line_start = x->line_at + 1;
        }
}

static bool at_text(const lexer *x, size_t at, const char *text) {
    size_t n = strlen(text);
    return at + n <= x->len && memcmp(x->src + at, text, n) == 0;
}

static bool fail_at(lexer *x, size_t at, const char *what) {
    count_lines(x, at);
    return kvf_tm_compile_fail(x->c, x->line, (uint32_t)(at - x->line_start + 1), "%s", what);
}

static tm_token *token_add(lexer *x, tm_token_kind kind, size_t at) {
    tm_compiler *c = x->c;
    if (c->token_count == c->token_cap) {
        size_t cap = c->token_cap ? c->token_cap * 2 : 64;
        tm_token *grown = kvf_tm_pool_take(c->pool, cap * sizeof *grown);
        if (!grown) {
            fail_at(x, at, "template is too large");
            return NULL;
        }
        if (c->token_count) memcpy(grown, c->tokens, c->token_count * sizeof *grown);
        c->tokens = grown;
        c->token_cap = cap;
    }
    count_lines(x, at);
    tm_token *t = &c->tokens[c->token_count++];
    *t = (tm_token){.kind = (uint8_t)kind, .line = x->line, .column = (uint32_t)(at - x->line_start + 1)};
    return t;
}

static size_t space_at(const lexer *x, size_t at) { /* length of the white space character at `at`, 0: none */
    uint32_t cp;
    if (at >= x->len) return 0;
    size_t n = kvf_tm_utf8_decode(x->src + at, x->len - at, &cp);
    return n && kvf_tm_is_space(cp) ? n : 0;
}

static size_t skip_space(const lexer *x, size_t at) {
    for (size_t n; (n = space_at(x, at)) != 0;) at += n;
    return at;
}

static size_t strip_right(const lexer *x, size_t from, size_t to) {
    while (to > from) {
        size_t start = to - 1;
        while (start > from && ((uint8_t)x->src[start] & 0xc0) == 0x80) start--;
        if (space_at(x, start) != to - start) break;
        to = start;
    }
    return to;
}

/* lstrip_blocks: when only blanks stand between the start of the line and the tag, they go. */
static size_t strip_line(const lexer *x, size_t from, size_t to) {
    size_t start = to;
    while (start > from && x->src[start - 1] != '\n') start--;
    bool line_starts = start > from || from == 0 || x->src[from - 1] == '\n';
    if (!line_starts) return to;
    return strip_right(x, start, to) == start ? start : to;
}

static bool data_add(lexer *x, size_t from, size_t to) {
    if (to == from) return true;
    tm_token *t = token_add(x, TM_T_DATA, from);
    if (!t) return false;
    t->text = (tm_str){.data = x->src + from, .len = (uint32_t)(to - from), .chars = TM_CHARS_UNKNOWN, .uniform = 1};
    return true;
}

/* The text before a tag that opens at `to`; `sign` is the tag's "-" or "+", `block` is false for {{ }}. */
static bool data_before(lexer *x, size_t from, size_t to, char sign, bool block) {
    size_t end = to;
    if (sign == '-')
        end = strip_right(x, from, to);
    else if (sign != '+' && block)
        end = strip_line(x, from, to);
    return data_add(x, from, end);
}

/* Is the end of a block tag ("%}", "-%}", "+%}") at `at`? Moves over it and what it removes. */
static bool tag_end(const lexer *x, size_t *at, const char *close, bool block) {
    size_t p = *at;
    char sign = 0;
    if (p < x->len && (x->src[p] == '-' || (block && x->src[p] == '+'))) sign = x->src[p++];
    if (!at_text(x, p, close)) return false;
    p += 2;
    if (sign == '-')
        p = skip_space(x, p);
    else if (sign == 0 && block && p < x->len && x->src[p] == '\n')
        p++;
    *at = p;
    return true;
}

static size_t escape_number(const lexer *x, size_t at, size_t digits, int base, uint32_t *out) {
    uint32_t v = 0;
    size_t n = 0;
    for (; n < digits && at + n < x->len; n++) {
        char ch = x->src[at + n];
        int d = ch >= '0' && ch <= '9'   ? ch - '0'
                : ch >= 'a' && ch <= 'f' ? ch - 'a' + 10
                : ch >= 'A' && ch <= 'F' ? ch - 'A' + 10
                                         : 99;
        if (d >= base) break;
        v = v * (uint32_t)base + (uint32_t)d;
    }
    *out = v;
    return n;
}

/* One escape after a backslash at `at`; writes its bytes and returns its length, 0 after a failure. */
static size_t unescape(lexer *x, size_t at, char *out, size_t *out_len) {
    static const char names[] = "abfnrtv\\'\"", values[] = "\a\b\f\n\r\t\v\\'\"";
    char ch = x->src[at];
    const char *known = ch ? strchr(names, ch) : NULL;
    if (known) {
        out[(*out_len)++] = values[known - names];
        return 1;
    }
    if (ch == '\n') return 1; /* line continuation */
    size_t digits = ch == 'x' ? 2 : ch == 'u' ? 4 : ch == 'U' ? 8 : 0;
    uint32_t cp, low;
    size_t used;
    if (digits) {
        if (escape_number(x, at + 1, digits, 16, &cp) != digits) return fail_at(x, at, "bad escape in string"), 0;
        used = digits + 1;
        if (cp >= 0xd800 && cp < 0xdc00 && at_text(x, at + used, "\\u") &&
            escape_number(x, at + used + 2, 4, 16, &low) == 4 && low >= 0xdc00 && low < 0xe000) {
            cp = 0x10000 + ((cp - 0xd800) << 10) + (low - 0xdc00);
            used += 6;
        }
        if (cp > 0x10ffff || (cp >= 0xd800 && cp < 0xe000)) return fail_at(x, at, "escape is not a character"), 0;
    } else if (ch >= '0' && ch <= '7') {
        used = escape_number(x, at, 3, 8, &cp);
    } else { /* an unknown escape stays as it is */
        out[(*out_len)++] = '\\';
        return SIZE_MAX;
    }
    *out_len += kvf_tm_utf8_encode(cp, out + *out_len);
    return used;
}

static bool lex_string(lexer *x) {
    char quote = x->src[x->pos];
    size_t at = x->pos + 1, end = at;
    while (end < x->len && x->src[end] != quote) end += x->src[end] == '\\' ? 2 : 1;
    if (end >= x->len) return fail_at(x, x->pos, "string is not closed");
    tm_token *t = token_add(x, TM_T_STRING, x->pos);
    char *text = t ? kvf_tm_pool_take(x->c->pool, end - at + 1) : NULL;
    if (!text) return fail_at(x, x->pos, "template is too large");
    size_t n = 0;
    while (at < end) {
        if (x->src[at] != '\\') {
            text[n++] = x->src[at++];
            continue;
        }
        size_t used = unescape(x, at + 1, text, &n);
        if (!used) return false;
        at += used == SIZE_MAX ? 1 : used + 1;
    }
    t->text = (tm_str){.data = text, .len = (uint32_t)n, .chars = TM_CHARS_UNKNOWN, .uniform = 1};
    x->pos = end + 1;
    return true;
}

static bool is_digit(char ch) { return ch >= '0' && ch <= '9'; }

static size_t skip_digits(const lexer *x, size_t at, char *copy, size_t *n) { /* digits with single _ between them */
    while (
        at < x->len && (is_digit(x->src[at]) || (x->src[at] == '_' && at + 1 < x->len && is_digit(x->src[at + 1])))) {
        if (x->src[at] != '_' && *n < 60) copy[(*n)++] = x->src[at];
        at++;
    }
    return at;
}

static bool lex_number(lexer *x) {
    char copy[64];
    size_t n = 0, at = x->pos;
    bool after_dot = x->pos > 0 && x->src[x->pos - 1] == '.';
    tm_token *t = token_add(x, TM_T_INT, at);
    if (!t) return false;
    int base = 10;
    if (at_text(x, at, "0x") || at_text(x, at, "0X")) base = 16;
    if (at_text(x, at, "0o") || at_text(x, at, "0O")) base = 8;
    if (at_text(x, at, "0b") || at_text(x, at, "0B")) base = 2;
    errno = 0;
    if (base != 10) {
        uint32_t v = 0;
        size_t used = escape_number(x, at + 2, 7, base, &v);
        if (!used) return fail_at(x, at, "number without digits");
        t->i = v;
        x->pos = at + 2 + used;
        return true;
    }
    at = skip_digits(x, at, copy, &n);
    bool real = false;
    if (!after_dot && at + 1 < x->len && x->src[at] == '.' && is_digit(x->src[at + 1])) {
        copy[n++] = '.';
        at = skip_digits(x, at + 1, copy, &n);
        real = true;
    }
    size_t e = at + 1;
    if (!after_dot && at < x->len && (x->src[at] == 'e' || x->src[at] == 'E')) {
        if (e < x->len && (x->src[e] == '+' || x->src[e] == '-')) e++;
        if (e < x->len && is_digit(x->src[e])) {
            copy[n++] = 'e';
            if (e == at + 2) copy[n++] = x->src[at + 1];
            at = skip_digits(x, e, copy, &n);
            real = true;
        }
    }
    if (n >= 60) return fail_at(x, x->pos, "number is too long");
    copy[n] = 0;
    t->kind = real ? TM_T_FLOAT : TM_T_INT;
    if (real)
        t->f = strtod(copy, NULL);
    else
        t->i = strtoll(copy, NULL, 10);
    if (errno == ERANGE && !real) return fail_at(x, x->pos, "number is too large");
    x->pos = at;
    return true;
}

static bool is_name_byte(char ch) {
    return (ch >= 'a' && ch <= 'z') || (ch >= 'A' && ch <= 'Z') || ch == '_' || is_digit(ch) || ((uint8_t)ch >= 0x80);
}

static const struct {
    char text[3];
    uint8_t op;
} operators[] = {{"//", TM_OP_FLOORDIV}, {"**", TM_OP_POW}, {"==", TM_OP_EQ}, {"!=", TM_OP_NE}, {"<=", TM_OP_LE},
    {">=", TM_OP_GE}, {"+", TM_OP_ADD}, {"-", TM_OP_SUB}, {"*", TM_OP_MUL}, {"/", TM_OP_DIV}, {"%", TM_OP_MOD},
    {"~", TM_OP_TILDE}, {"<", TM_OP_LT}, {">", TM_OP_GT}, {"=", TM_OP_ASSIGN}, {".", TM_OP_DOT}, {":", TM_OP_COLON},
    {"|", TM_OP_PIPE}, {",", TM_OP_COMMA}, {";", TM_OP_SEMICOLON}, {"(", TM_OP_LPAREN}, {")", TM_OP_RPAREN},
    {"[", TM_OP_LBRACKET}, {"]", TM_OP_RBRACKET}, {"{", TM_OP_LBRACE}, {"}", TM_OP_RBRACE}};

/* The bracket stack is a string of the closing brackets that are due. */
static bool lex_operator(lexer *x, char *due, uint32_t *depth) {
    for (size_t i = 0; i < KVF_COUNT_OF(operators); i++) {
        if (!at_text(x, x->pos, operators[i].text)) continue;
        uint8_t op = operators[i].op;
        if (op == TM_OP_LPAREN || op == TM_OP_LBRACKET || op == TM_OP_LBRACE) {
            if (*depth == TM_NESTING_MAX) return fail_at(x, x->pos, "brackets nest too deeply");
            due[(*depth)++] = (char)(op + 1);
        }
        if (op == TM_OP_RPAREN || op == TM_OP_RBRACKET || op == TM_OP_RBRACE)
            if (*depth == 0 || due[--*depth] != (char)op) return fail_at(x, x->pos, "bracket does not match");
        tm_token *t = token_add(x, TM_T_OP, x->pos);
        if (!t) return false;
        t->op = op;
        x->pos += strlen(operators[i].text);
        return true;
    }
    return fail_at(x, x->pos, "unexpected character in a tag");
}

static bool lex_name(lexer *x) {
    size_t at = x->pos;
    while (at < x->len && is_name_byte(x->src[at]) && !space_at(x, at)) at++;
    tm_token *t = token_add(x, TM_T_NAME, x->pos);
    if (!t) return false;
    t->text =
        (tm_str){.data = x->src + x->pos, .len = (uint32_t)(at - x->pos), .chars = TM_CHARS_UNKNOWN, .uniform = 1};
    x->pos = at;
    return true;
}

/* Tokens of a tag whose opening has been consumed, through its end. */
static bool lex_tag(lexer *x, bool block, size_t opened_at) {
    char due[TM_NESTING_MAX];
    uint32_t depth = 0;
    if (!token_add(x, block ? TM_T_BLOCK_BEGIN : TM_T_VAR_BEGIN, opened_at)) return false;
    for (;;) {
        size_t end = x->pos;
        if (depth == 0 && tag_end(x, &end, block ? "%}" : "}}", block)) {
            if (!token_add(x, block ? TM_T_BLOCK_END : TM_T_VAR_END, x->pos)) return false;
            x->pos = end;
            return true;
        }
        if (x->pos >= x->len) return fail_at(x, opened_at, "tag is not closed");
        size_t space = space_at(x, x->pos);
        char ch = x->src[x->pos];
        if (space)
            x->pos += space;
        else if (ch == '"' || ch == '\'' ? !lex_string(x)
                 : is_digit(ch)          ? !lex_number(x)
                 : is_name_byte(ch)      ? !lex_name(x)
                                         : !lex_operator(x, due, &depth))
            return false;
    }
}

static bool lex_comment(lexer *x, size_t opened_at) {
    for (size_t at = x->pos; at + 2 <= x->len; at++) {
        size_t end = at;
        if (tag_end(x, &end, "#}", true)) {
            x->pos = end;
            return true;
        }
    }
    return fail_at(x, opened_at, "comment is not closed");
}

/* After "{% raw %}": everything is text until "{% endraw %}". */
static bool lex_raw(lexer *x, size_t opened_at) {
    size_t from = x->pos;
    for (size_t at = from; at + 2 <= x->len; at++) {
        if (!at_text(x, at, "{%")) continue;
        size_t p = at + 2;
        char sign = p < x->len && (x->src[p] == '-' || x->src[p] == '+') ? x->src[p++] : 0;
        p = skip_space(x, p);
        if (!at_text(x, p, "endraw")) continue;
        p = skip_space(x, p + 6);
        if (!tag_end(x, &p, "%}", true)) continue;
        if (!data_before(x, from, at, sign, true)) return false;
        x->pos = p;
        return true;
    }
    return fail_at(x, opened_at, "raw block is not closed");
}

static bool raw_begins(const lexer *x, size_t at, size_t *end) {
    size_t p = skip_space(x, at);
    if (!at_text(x, p, "raw")) return false;
    p = skip_space(x, p + 3);
    bool strip = p < x->len && x->src[p] == '-';
    if (!at_text(x, p + strip, "%}")) return false;
    *end = strip ? skip_space(x, p + 3) : p + 2;
    return true;
}

static size_t find_tag(const lexer *x, size_t at) {
    for (; at + 1 < x->len; at++) {
        const char *brace = memchr(x->src + at, '{', x->len - 1 - at);
        if (!brace) break;
        at = (size_t)(brace - x->src);
        if (brace[1] == '{' || brace[1] == '%' || brace[1] == '#') return at;
    }
    return x->len;
}

bool kvf_tm_lex(tm_compiler *c) {
    lexer x = {.c = c, .src = c->source, .len = c->len, .line = 1};
    while (x.pos < x.len) {
        size_t from = x.pos, at = find_tag(&x, from);
        if (at == x.len) {
            if (!data_add(&x, from, at)) return false;
            x.pos = at;
            break;
        }
        char kind = x.src[at + 1];
        size_t p = at + 2, raw_end;
        char sign = p < x.len && (x.src[p] == '-' || x.src[p] == '+') ? x.src[p++] : 0;
        if (!data_before(&x, from, at, sign, kind != '{')) return false;
        x.pos = p;
        if (kind == '#') {
            if (!lex_comment(&x, at)) return false;
        } else if (kind == '%' && raw_begins(&x, p, &raw_end)) {
            x.pos = raw_end;
            if (!lex_raw(&x, at)) return false;
        } else if (!lex_tag(&x, kind == '%', at)) {
            return false;
        }
    }
    return token_add(&x, TM_T_EOF, x.len) != NULL;
}
