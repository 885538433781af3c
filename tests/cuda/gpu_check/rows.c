#include "rows.h"
#include <stdio.h>
#include <stdlib.h>

static FILE *json;
static int missed;

void rows_begin(const char *path) {
    if (!path) return;
    json = fopen(path, "a");
    /* Whole lines at once: who is ended in the middle has told what it knew. */
    if (json && setvbuf(json, NULL, _IOLBF, BUFSIZ) == 0) return;
    perror(path);
    exit(1);
}

static void line(const char *name, double value, const char *unit, const char *rest) {
    printf("  %-56s %12.4g %-8s %s\n", name, value, unit, rest);
    fflush(stdout);
}

void rows_add(const char *name, double value, const char *unit) {
    line(name, value, unit, "");
    if (json) fprintf(json, "{\"name\":\"%s\",\"value\":%.6g,\"unit\":\"%s\"}\n", name, value, unit);
}

void rows_judge(const char *name, double value, const char *unit, double bar, bool at_least) {
    bool reached = at_least ? value >= bar : value <= bar;
    char rest[64];
    snprintf(rest, sizeof rest, "%s (bar: %s %g)", reached ? "ok" : "MISSED", at_least ? ">=" : "<=", bar);
    line(name, value, unit, rest);
    if (json)
        fprintf(json, "{\"name\":\"%s\",\"value\":%.6g,\"unit\":\"%s\",\"bar\":%g,\"at_least\":%s,\"reached\":%s}\n",
            name, value, unit, bar, at_least ? "true" : "false", reached ? "true" : "false");
    missed += !reached;
}

/* Texts of libraries may hold anything. */
static void write_text(const char *name, const char *key, const char *text) {
    if (!json) return;
    fprintf(json, "{\"name\":\"%s\",\"%s\":\"", name, key);
    for (; *text; text++) {
        bool plain = (unsigned char)*text >= ' ' && *text != '"' && *text != '\\';
        fputc(plain ? *text : ' ', json);
    }
    fprintf(json, "\"}\n");
}

void rows_skip(const char *name, const char *reason) {
    printf("  %-56s skipped: %s\n", name, reason);
    write_text(name, "skipped", reason);
}

void rows_wrong(const char *name, const char *reason) {
    printf("  %-56s WRONG: %s\n", name, reason);
    write_text(name, "wrong", reason);
}

int rows_end(void) {
    if (json) fclose(json);
    return missed;
}
