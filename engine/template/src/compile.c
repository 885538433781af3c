/* compile.c - kvf_template_compile: checks the source, normalises line ends, lexes, parses. */
#include "template_int.h"
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>

/* A model file's template is a few KiB; the tree costs about fifty times its text. */
enum { SOURCE_MAX_BYTES = 1024 * 1024, TREE_MAX_BYTES = 256 * 1024 * 1024 };

bool kvf_tm_compile_fail(tm_compiler *c, uint32_t line, uint32_t column, const char *fmt, ...) {
    if (c->status != KVF_OK) return false;
    char text[400];
    va_list args;
    va_start(args, fmt);
    vsnprintf(text, sizeof text, fmt, args);
    va_end(args);
    if (c->pool->no_memory)
        c->status = kvf_fail(c->err, KVF_ERR_NO_MEMORY, "no memory for the chat template");
    else
        c->status = kvf_fail(c->err, KVF_ERR_FORMAT, "chat template line %u, column %u: %s", line, column, text);
    return false;
}

static bool is_utf8(const char *data, size_t len_bytes, size_t *bad_at) {
    uint32_t cp;
    for (size_t at = 0, n; at < len_bytes; at += n) {
        n = kvf_tm_utf8_decode(data + at, len_bytes - at, &cp);
        *bad_at = at;
        if (!n || cp == 0) return false;
    }
    return true;
}

/* \r\n and \r become \n; one newline at the very end goes. */
static size_t normalise(const char *source, size_t len_bytes, char *out) {
    size_t n = 0;
    for (size_t i = 0; i < len_bytes; i++) {
        if (source[i] != '\r')
            out[n++] = source[i];
        else if (i + 1 == len_bytes || source[i + 1] != '\n')
            out[n++] = '\n';
    }
    return n && out[n - 1] == '\n' ? n - 1 : n;
}

kvf_status kvf_template_compile(const char *source, size_t len_bytes, kvf_template **out, kvf_error *err) {
    size_t bad_at = 0;
    if (len_bytes > SOURCE_MAX_BYTES)
        return kvf_fail(
            err, KVF_ERR_LIMIT, "chat template has %zu bytes, at most %d are taken", len_bytes, SOURCE_MAX_BYTES);
    if (!is_utf8(source, len_bytes, &bad_at))
        return kvf_fail(err, KVF_ERR_FORMAT, "chat template is not UTF-8 text at byte %zu", bad_at);
    kvf_template *t = calloc(1, sizeof *t);
    if (!t) return kvf_fail(err, KVF_ERR_NO_MEMORY, "no memory for the chat template");
    t->pool.max_bytes = TREE_MAX_BYTES;
    char *text = kvf_tm_pool_take(&t->pool, len_bytes + 1);
    tm_compiler c = {.pool = &t->pool, .err = err, .source = text};
    if (!text) {
        c.status = kvf_fail(err, KVF_ERR_NO_MEMORY, "no memory for the chat template");
        goto undo_template;
    }
    c.len = normalise(source, len_bytes, text);
    if (!kvf_tm_lex(&c) || !kvf_tm_parse(&c, &t->root)) goto undo_template;
    *out = t;
    return KVF_OK;

undo_template:
    KVF_ASSERT(c.status != KVF_OK);
    kvf_template_destroy(t);
    return c.status;
}

void kvf_template_destroy(kvf_template *t) {
    if (!t) return;
    kvf_tm_pool_free(&t->pool);
    free(t);
}
