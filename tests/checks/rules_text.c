/* Words that must not be committed, and sizes. */
#include "rules.h"
#include <ctype.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { FUNCTION_LINES_MAX = 100, FILE_LINES_MAX = 900, COLUMNS_MAX = 120, ALLOW_MAX = 200 };

/* Written in two parts, since this file is checked as well. */
static const char *const words[] = {"TO"
                                    "DO",
    "FIX"
    "ME",
    "XX"
    "X",
    NULL};
static const char *const machine_paths[] = {"/wo"
                                            "rk/",
    "/ro"
    "ot/",
    NULL};

static int line_of(const source *s, const char *at) {
    int line = 1;
    for (const char *c = s->text; c < at; c++) line += *c == '\n';
    return line;
}

static bool is_word_char(char c) { return isalnum((unsigned char)c) || c == '_'; }

void rule_words(const source *s) {
    for (size_t i = 0; words[i]; i++)
        for (const char *at = s->text; (at = strstr(at, words[i])); at++)
            if ((at == s->text || !is_word_char(at[-1])) && !is_word_char(at[strlen(words[i])]))
                complain(s, line_of(s, at), "words", "%s: do it or file an issue", words[i]);
    for (size_t i = 0; machine_paths[i]; i++)
        for (const char *at = s->text; (at = strstr(at, machine_paths[i])); at++)
            if (at == s->text || !(is_word_char(at[-1]) || strchr("}.*-~", at[-1])))
                complain(s, line_of(s, at), "words", "%s: a path of one machine", machine_paths[i]);
}

/* The allow list: "function path name lines", "file path - lines", "columns path - lines" (how many are too long). The
 * first two are exact, so that the list shrinks with the code; the third is a ceiling, since any formatting changes it.
 */

typedef struct {
    char kind[16], path[256], name[128];
    int limit;
    bool used;
} allowance;
static allowance allowed[ALLOW_MAX];
static size_t allowed_count;

bool allow_load(const char *path) {
    FILE *f = fopen(path, "r");
    if (!f) return false;
    char line[512];
    bool ok = true;
    while (ok && fgets(line, sizeof line, f)) {
        if (line[0] == '#' || line[strspn(line, " \t\n")] == 0) continue;
        allowance *a = &allowed[allowed_count];
        ok =
            allowed_count < ALLOW_MAX && sscanf(line, "%15s %255s %127s %d", a->kind, a->path, a->name, &a->limit) == 4;
        allowed_count += ok;
    }
    fclose(f);
    return ok;
}

static void too_large(const source *s, int line, const char *kind, const char *name, int value, int limit) {
    for (size_t i = 0; i < allowed_count; i++) {
        allowance *a = &allowed[i];
        if (strcmp(a->kind, kind) || strcmp(a->path, s->path) || strcmp(a->name, name)) continue;
        a->used = true;
        bool ceiling = strcmp(kind, "columns") == 0;
        if (value == a->limit || (ceiling && value < a->limit)) return;
        complain(s, line, "size", "%s %s: %d, the allow list says %d: %s", kind, name, value, a->limit,
            value < a->limit ? "lower it there" : "it may only shrink");
        return;
    }
    complain(s, line, "size", "%s %s: %d, the limit is %d", kind, name, value, limit);
}

void allow_check_used(void) {
    for (size_t i = 0; i < allowed_count; i++) {
        source s = {.path = allowed[i].path};
        if (!allowed[i].used && strcmp(allowed[i].kind, "columns") != 0)
            complain(&s, 0, "size", "%s %s: no longer too large, take it off the allow list", allowed[i].kind,
                allowed[i].name);
    }
}

/* Columns are characters: continuation bytes of UTF-8 do not count. */
static int columns(const char *from, const char *to) {
    int n = 0;
    for (; from < to; from++) n += ((unsigned char)*from & 0xc0) != 0x80;
    return n;
}

/* The name before the parameter list that ends before `brace`; blank for a macro that hides it. */
static void function_name(const char *code, size_t brace, char *name, size_t name_max) {
    size_t at = brace;
    int depth = 0;
    while (at > 0) {
        char c = code[--at];
        depth += (c == ')') - (c == '(');
        if (c == '(' && depth == 0) break;
    }
    while (at > 0 && isspace((unsigned char)code[at - 1])) at--;
    size_t end = at;
    while (at > 0 && is_word_char(code[at - 1])) at--;
    size_t length = end - at < name_max - 1 ? end - at : name_max - 1;
    memcpy(name, code + at, length);
    name[length] = 0;
    if (length == 0) strcpy(name, "?");
}

/* A function begins with a '{' after ')' outside of every brace and ends, as clang-format writes it, with the next '}'
 * in the first column. Looking for that column instead of counting braces keeps #if branches with odd braces from
 * hiding the rest of a file. */
static void each_function(const source *s) {
    int line = 1, started = 0;
    size_t brace = 0;
    char before = 0; /* last character that is not blank, outside of functions */
    bool directive = false;
    for (size_t i = 0; i < s->length; i++) {
        char c = s->code[i];
        bool line_start = i == 0 || s->code[i - 1] == '\n';
        if (line_start && !directive) directive = c == '#';
        if (c == '\n') {
            line++;
            if (directive && (i == 0 || s->code[i - 1] != '\\')) directive = false;
            continue;
        }
        if (directive) continue;
        if (started && c == '}' && line_start) {
            char name[128];
            function_name(s->code, brace, name, sizeof name);
            if (line - started + 1 > FUNCTION_LINES_MAX)
                too_large(s, started, "function", name, line - started + 1, FUNCTION_LINES_MAX);
            started = 0;
        } else if (!started && c == '{' && before == ')') {
            started = line;
            brace = i;
        }
        if (!isspace((unsigned char)c)) before = c;
    }
}

void rule_size(const source *s) {
    if (s->lines > FILE_LINES_MAX) too_large(s, 1, "file", "-", s->lines, FILE_LINES_MAX);
    int line = 1, long_lines = 0, first = 0;
    for (const char *at = s->text; *at; line++) {
        const char *end = at + strcspn(at, "\n");
        if (columns(at, end) > COLUMNS_MAX && ++long_lines == 1) first = line;
        at = *end ? end + 1 : end;
    }
    if (long_lines > 0) too_large(s, first, "columns", "-", long_lines, 0);
    each_function(s);
}
