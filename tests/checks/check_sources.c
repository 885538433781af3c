/* check_sources - the promises of the tree about its sources, checked. Names of files come on standard input, one a
 * line, relative to the current directory; each broken promise is printed as "path:line: rule: what". Exit status 1 if
 * there was one, 2 if it could not check.
 *
 *   list_sources.sh | check_sources allow.txt
 *
 * Files that are no text are passed over; C files get all rules, others the rule about words. */
#include "rules.h"
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static int complaints;

void complain(const source *s, int line, const char *rule, const char *fmt, ...) {
    va_list args;
    printf("%s:%d: %s: ", s->path, line, rule);
    va_start(args, fmt);
    vprintf(fmt, args);
    va_end(args);
    printf("\n");
    complaints++;
}

static void check_file(const source *s) {
    rule_words(s);
    if (!source_is_c(s->path)) return;
    rule_layers(s);
    rule_size(s);
    if (is_core(s->path)) rule_core(s);
}

int main(int argc, char **argv) {
    if (argc != 2 || !allow_load(argv[1])) {
        fprintf(stderr, "usage: check_sources <allow list> < list of files\n");
        return 2;
    }
    char path[1024];
    int files = 0, cores = 0;
    while (fgets(path, sizeof path, stdin)) {
        path[strcspn(path, "\n")] = 0;
        source s;
        if (!source_load(&s, path)) continue;
        check_file(&s);
        files++;
        cores += is_core(path);
        source_free(&s);
    }
    allow_check_used();
    printf("%d files, %d of them of pure cores, %d complaints\n", files, cores, complaints);
    if (files == 0) return 2;
    return complaints ? 1 : 0;
}
