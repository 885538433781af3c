#include "args.h"
#include "units.h"
#include <errno.h>
#include <math.h>
#include <stdlib.h>

/* Edit distance where two neighbours that changed places count once: the commonest slip. Words here are option names,
 * so fixed rows are enough. */
static uint32_t distance(const char *a, const char *b) {
    enum { MAX = 48 };
    size_t n = strlen(a), m = strlen(b);
    if (n >= MAX || m >= MAX) return MAX;
    uint32_t rows[3][MAX]; /* of a's prefixes of length i - 2, i - 1 and i, in turn */
    for (size_t j = 0; j <= m; j++) rows[0][j] = (uint32_t)j;
    for (size_t i = 1; i <= n; i++) {
        uint32_t *now = rows[i % 3], *last = rows[(i + 2) % 3], *before = rows[(i + 1) % 3];
        now[0] = (uint32_t)i;
        for (size_t j = 1; j <= m; j++) {
            uint32_t change = last[j - 1] + (a[i - 1] != b[j - 1]);
            now[j] = KVF_MIN(KVF_MIN(last[j], now[j - 1]) + 1, change);
            bool swapped = i > 1 && j > 1 && a[i - 1] == b[j - 2] && a[i - 2] == b[j - 1];
            if (swapped) now[j] = KVF_MIN(now[j], before[j - 2] + 1);
        }
    }
    return rows[n % 3][m];
}

const char *kvf_nearest(const char *word, const char *const *candidates, size_t count) {
    const char *best = NULL;
    uint32_t best_distance = (uint32_t)strlen(word) / 3 + 2; /* further away it is a guess, not a help */
    for (size_t i = 0; i < count; i++) {
        uint32_t d = distance(word, candidates[i]);
        bool starts = strlen(word) >= 3 && strncmp(word, candidates[i], strlen(word)) == 0;
        if (starts) d = 1;
        if (d < best_distance) {
            best_distance = d;
            best = candidates[i];
        }
    }
    return best;
}

static kvf_status unknown(const kvf_command *c, const char *name, kvf_error *err) {
    const char *names[65];
    size_t count = 0;
    for (size_t i = 0; i < c->rows_count; i++)
        if (!c->rows[i].hidden) names[count++] = c->rows[i].name;
    names[count++] = "help";
    const char *near = kvf_nearest(name, names, count);
    if (near) return kvf_fail(err, KVF_ERR_INVALID, "unknown option --%s (did you mean --%s?)", name, near);
    return kvf_fail(err, KVF_ERR_INVALID, "unknown option --%s", name);
}

static kvf_status parse_integer(const kvf_arg *row, const char *text, double lowest, double highest, double *out) {
    char *end;
    errno = 0;
    double min = row->min == 0 && row->max == 0 ? lowest : row->min;
    double max = row->min == 0 && row->max == 0 ? highest : row->max;
    long long v = strtoll(text, &end, 10);
    if (end == text || *end || errno || (double)v < min || (double)v > max) return KVF_ERR_INVALID;
    *out = (double)v;
    return KVF_OK;
}

static kvf_status bad_number(const kvf_arg *row, const char *from, const char *text, const char *kind, kvf_error *err) {
    if (row->min == 0 && row->max == 0) return kvf_fail(err, KVF_ERR_INVALID, "%s: \"%s\" is not %s", from, text, kind);
    return kvf_fail(
        err, KVF_ERR_INVALID, "%s: \"%s\" is not %s from %.15g to %.15g", from, text, kind, row->min, row->max);
}

static kvf_status store_choice(const kvf_arg *row, const char *from, const char *text, uint32_t *out, kvf_error *err) {
    uint32_t index = 0;
    size_t len = strlen(text);
    for (const char *at = row->value;; index++) {
        size_t word = strcspn(at, "|");
        if (word == len && strncmp(at, text, len) == 0) {
            *out = index;
            return KVF_OK;
        }
        if (!at[word]) break;
        at += word + 1;
    }
    return kvf_fail(err, KVF_ERR_INVALID, "%s: \"%s\" is not one of %s", from, text, row->value);
}

static kvf_status store(const kvf_arg *row, const char *from, const char *text, void *options, kvf_error *err) {
    void *at = (char *)options + row->offset;
    double v;
    switch (row->kind) {
    case KVF_ARG_FLAG: {
        bool yes = !strcmp(text, "1") || !strcmp(text, "true") || !strcmp(text, "yes");
        if (!yes && strcmp(text, "0") && strcmp(text, "false") && strcmp(text, "no"))
            return kvf_fail(err, KVF_ERR_INVALID, "%s: \"%s\" is not true or false", from, text);
        *(bool *)at = yes;
        return KVF_OK;
    }
    case KVF_ARG_TEXT: *(const char **)at = text; return KVF_OK;
    case KVF_ARG_TEXTS: {
        kvf_arg_texts *list = at;
        if (list->count == KVF_ARG_TEXTS_MAX)
            return kvf_fail(err, KVF_ERR_INVALID, "%s: more than %d of them", from, KVF_ARG_TEXTS_MAX);
        list->text[list->count++] = text;
        return KVF_OK;
    }
    case KVF_ARG_U32:
        if (parse_integer(row, text, 0, UINT32_MAX, &v) != KVF_OK)
            return bad_number(row, from, text, "a whole number", err);
        *(uint32_t *)at = (uint32_t)v;
        return KVF_OK;
    case KVF_ARG_I32:
        if (parse_integer(row, text, INT32_MIN, INT32_MAX, &v) != KVF_OK)
            return bad_number(row, from, text, "a whole number", err);
        *(int32_t *)at = (int32_t)v;
        return KVF_OK;
    case KVF_ARG_U64: {
        char *end;
        errno = 0;
        unsigned long long u = strtoull(text, &end, 0);
        if (end == text || *end || errno || strchr(text, '-'))
            return kvf_fail(err, KVF_ERR_INVALID, "%s: \"%s\" is not a whole number below 2^64", from, text);
        *(uint64_t *)at = u;
        return KVF_OK;
    }
    case KVF_ARG_F64: {
        char *end;
        v = strtod(text, &end);
        bool limited = row->min != 0 || row->max != 0;
        if (end == text || *end || !isfinite(v) || (limited && (v < row->min || v > row->max)))
            return bad_number(row, from, text, "a number", err);
        *(double *)at = v;
        return KVF_OK;
    }
    case KVF_ARG_SIZE: return kvf_units_parse_size(from, text, at, err);
    case KVF_ARG_DURATION: return kvf_units_parse_duration(from, text, at, err);
    case KVF_ARG_RATE: return kvf_units_parse_rate(from, text, at, err);
    case KVF_ARG_CHOICE: return store_choice(row, from, text, at, err);
    }
    return KVF_ERR_INTERNAL;
}

static const kvf_arg *find_row(const kvf_command *c, const char *name, size_t len) {
    for (size_t i = 0; i < c->rows_count; i++)
        if (strlen(c->rows[i].name) == len && strncmp(c->rows[i].name, name, len) == 0) return &c->rows[i];
    return NULL;
}
static const kvf_arg *find_letter(const kvf_command *c, char letter) {
    for (size_t i = 0; i < c->rows_count; i++)
        if (c->rows[i].letter == letter) return &c->rows[i];
    return NULL;
}

typedef struct {
    const kvf_command *command;
    int argc, at;
    char *const *argv;
    void *options;
    kvf_args *args;
    const char **help;
    kvf_error *err;
} parser;

static kvf_status take(parser *p, const kvf_arg *row, const char *shown, const char *value) {
    if (!value && row->kind == KVF_ARG_FLAG) value = "true";
    if (!value) {
        const char *next = p->at + 1 < p->argc ? p->argv[p->at + 1] : NULL;
        if (!next || strncmp(next, "--", 2) == 0)
            return kvf_fail(p->err, KVF_ERR_INVALID, "%s needs a value: %s %s", shown, shown, row->value);
        value = next;
        p->at++;
    }
    kvf_status status = store(row, shown, value, p->options, p->err);
    if (status == KVF_OK) p->args->given |= 1ull << (row - p->command->rows);
    return status;
}

static kvf_status long_option(parser *p, const char *text) {
    size_t len = strcspn(text, "=");
    const char *value = text[len] ? text + len + 1 : NULL;
    char shown[64];
    snprintf(shown, sizeof shown, "--%.*s", (int)KVF_MIN(len, (size_t)50), text);
    if (len == 4 && strncmp(text, "help", 4) == 0) {
        *p->help = value ? value : "";
        return KVF_OK;
    }
    const kvf_arg *row = find_row(p->command, text, len);
    if (row) return take(p, row, shown, value);
    if (len > 3 && !value && strncmp(text, "no-", 3) == 0) {
        row = find_row(p->command, text + 3, len - 3);
        if (row && row->kind == KVF_ARG_FLAG) return take(p, row, shown, "false");
    }
    if (p->command->other) {
        bool took_next = false;
        const char *next = p->at + 1 < p->argc ? p->argv[p->at + 1] : NULL;
        kvf_status status = p->command->other(p->options, shown + 2, value, next, &took_next, p->err);
        p->at += took_next;
        if (status != KVF_ERR_NOT_FOUND) return status;
        if (p->err && p->err->message[0]) return KVF_ERR_INVALID;
    }
    return unknown(p->command, shown + 2, p->err);
}

static kvf_status short_option(parser *p, const char *text) {
    if (text[0] == 'h' && !text[1]) {
        *p->help = "";
        return KVF_OK;
    }
    const kvf_arg *row = find_letter(p->command, text[0]);
    if (!row) return kvf_fail(p->err, KVF_ERR_INVALID, "unknown option -%c", text[0]);
    char shown[3] = {'-', text[0], 0};
    if (row->kind == KVF_ARG_FLAG && text[1]) return kvf_fail(p->err, KVF_ERR_INVALID, "%s takes no value", shown);
    return take(p, row, shown, text[1] ? text + 1 : NULL);
}

static kvf_status from_environment(const kvf_command *c, void *options, kvf_args *args, kvf_error *err) {
    for (size_t i = 0; i < c->rows_count; i++) {
        const kvf_arg *row = &c->rows[i];
        const char *text = row->env ? getenv(row->env) : NULL;
        if (!text || !*text) continue;
        char from[64];
        snprintf(from, sizeof from, "environment %s", row->env);
        kvf_status status = store(row, from, text, options, err);
        if (status != KVF_OK) return status;
        args->given |= 1ull << i;
    }
    return KVF_OK;
}

static kvf_status check_positional(const kvf_command *c, const kvf_args *args, kvf_error *err) {
    if (args->positional_count < c->positional_min)
        return kvf_fail(err, KVF_ERR_INVALID, "missing argument: kvferry %s %s", c->name, c->positional);
    if (args->positional_count > c->positional_max && c->positional_max == 0)
        return kvf_fail(err, KVF_ERR_INVALID, "unexpected argument \"%.80s\"", args->positional[0]);
    if (args->positional_count > c->positional_max)
        return kvf_fail(err, KVF_ERR_INVALID,
            "too many arguments from \"%.80s\" on: kvferry %s %s (quote text with spaces)",
            args->positional[c->positional_max], c->name, c->positional);
    return KVF_OK;
}

kvf_status kvf_args_parse(const kvf_command *command, int argc, char *const *argv, void *options, kvf_args *args,
    const char **help, kvf_error *err) {
    KVF_ASSERT(command->rows_count <= 64);
    *args = (kvf_args){0};
    *help = NULL;
    args->positional = calloc((size_t)argc + 1, sizeof *args->positional);
    if (!args->positional) return kvf_fail(err, KVF_ERR_NO_MEMORY, "out of memory");
    /* An environment value that is wrong must not hide the help text. */
    kvf_error env_error = {0};
    kvf_status env_status = from_environment(command, options, args, &env_error);
    parser p = {command, argc, 0, argv, options, args, help, err};
    kvf_status status = KVF_OK;
    bool options_over = false;
    for (; p.at < argc && status == KVF_OK && !*help; p.at++) {
        const char *text = argv[p.at];
        if (options_over || text[0] != '-' || !text[1])
            args->positional[args->positional_count++] = text;
        else if (text[1] == '-' && !text[2])
            options_over = true;
        else
            status = text[1] == '-' ? long_option(&p, text + 2) : short_option(&p, text + 1);
    }
    if (*help || status != KVF_OK) return status;
    if (env_status != KVF_OK) {
        if (err) *err = env_error;
        return env_status;
    }
    return check_positional(command, args, err);
}

void kvf_args_fini(kvf_args *args) {
    free((void *)args->positional);
    args->positional = NULL;
}

bool kvf_args_given(const kvf_command *command, const kvf_args *args, const char *name) {
    const kvf_arg *row = find_row(command, name, strlen(name));
    KVF_ASSERT(row != NULL);
    return args->given >> (row - command->rows) & 1;
}

static bool row_wanted(const kvf_arg *row, const char *word) {
    return !row->hidden && (!*word || !strcmp(word, "all") || strstr(row->name, word) || strstr(row->help, word));
}

/* Help text may hold newlines: later lines are indented below the first. */
static void print_row(const kvf_arg *row, FILE *out) {
    char left[80];
    int n = snprintf(left, sizeof left, "  %c%c%s--%s", row->letter ? '-' : ' ', row->letter ? row->letter : ' ',
        row->letter ? ", " : "  ", row->name);
    if (row->kind != KVF_ARG_FLAG && n > 0 && (size_t)n < sizeof left)
        snprintf(left + n, sizeof left - (size_t)n, " %s", row->value);
    fprintf(out, strlen(left) < 34 ? "%-34s" : "%s\n%34s", left, "");
    for (const char *at = row->help; *at;) {
        size_t len = strcspn(at, "\n");
        fprintf(out, "%.*s", (int)len, at);
        at += len;
        if (*at == '\n') {
            fprintf(out, "\n%34s", "");
            at++;
        }
    }
    if (row->env) fprintf(out, " [%s]", row->env);
    fputc('\n', out);
}

void kvf_args_print_help(const kvf_command *c, const char *word, FILE *out) {
    fprintf(out, "kvferry %s%s%s%s\n  %s\n", c->name, c->rows_count ? " [options]" : "", *c->positional ? " " : "",
        c->positional, c->summary);
    if (c->about && !*word) fprintf(out, "\n%s\n", c->about);
    fputc('\n', out);
    uint32_t shown = 0;
    for (size_t i = 0; i < c->rows_count; i++) {
        if (!row_wanted(&c->rows[i], word)) continue;
        print_row(&c->rows[i], out);
        shown++;
    }
    if (c->other_help) {
        c->other_help(word, out);
        shown++;
    }
    if (!shown && *word) fprintf(out, "  no option mentions \"%s\"\n", word);
    if (!*word) fprintf(out, "  %-32s%s\n", "-h, --help[=WORD]", "this text, or the options that mention WORD");
}
