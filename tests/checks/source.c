#include "source.h"
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

bool path_starts(const char *path, const char *prefix) { return strncmp(path, prefix, strlen(prefix)) == 0; }

bool source_is_c(const char *path) {
    const char *dot = strrchr(path, '.');
    return dot && (strcmp(dot, ".c") == 0 || strcmp(dot, ".h") == 0);
}

static void blank(char *code, size_t from, size_t to) {
    for (size_t i = from; i < to; i++)
        if (code[i] != '\n') code[i] = ' ';
}

static size_t comment_end(const char *t, size_t at, size_t length) {
    if (t[at + 1] == '*') {
        const char *end = strstr(t + at + 2, "*/");
        return end ? (size_t)(end - t) + 2 : length;
    }
    while (at < length && (t[at] != '\n' || t[at - 1] == '\\')) at++;
    return at;
}

/* Behind the closing quote, or at the end of the line when it is missing. */
static size_t literal_end(const char *t, size_t at, size_t length) {
    char quote = t[at++];
    while (at < length && t[at] != quote && t[at] != '\n') at += t[at] == '\\' && at + 1 < length ? 2 : 1;
    return at < length ? at + 1 : length;
}

/* A quote between two digits or letters separates digits; C11 has none, but a check must not lose its way in one. */
static void strip(source *s) {
    for (size_t i = 0; i < s->length;) {
        char c = s->text[i], next = s->text[i + 1];
        size_t end = i + 1;
        if (c == '/' && (next == '*' || next == '/')) {
            end = comment_end(s->text, i, s->length);
            blank(s->code, i, end);
        } else if (c == '"' || c == '\'') {
            end = literal_end(s->text, i, s->length);
            if (end > i + 2) blank(s->code, i + 1, end - 1);
        }
        i = end;
    }
}

bool source_load(source *s, const char *path) {
    *s = (source){.path = path};
    FILE *f = fopen(path, "rb");
    if (!f) return false;
    size_t room = 1 << 16, got;
    s->text = malloc(room + 2);
    while (s->text && (got = fread(s->text + s->length, 1, room - s->length, f)) > 0) {
        s->length += got;
        if (s->length < room) continue;
        room *= 2;
        char *grown = realloc(s->text, room + 2);
        if (!grown) free(s->text);
        s->text = grown;
    }
    fclose(f);
    if (!s->text) return false;
    s->text[s->length] = s->text[s->length + 1] = 0;
    s->code = malloc(s->length + 2);
    if (!s->code || memchr(s->text, 0, s->length)) {
        source_free(s);
        return false;
    }
    memcpy(s->code, s->text, s->length + 2);
    for (size_t i = 0; i < s->length; i++) s->lines += s->text[i] == '\n';
    if (source_is_c(path)) strip(s);
    return true;
}

void source_free(source *s) {
    free(s->text);
    free(s->code);
    s->text = s->code = NULL;
}
