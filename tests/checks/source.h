/* source.h - one source file as the rules see it: its text, and its code alone (comments and the insides of literals
 * blanked, line for line, column for column). */
#ifndef KVF_CHECK_SOURCE_H
#define KVF_CHECK_SOURCE_H
#include <stdbool.h>
#include <stddef.h>

typedef struct {
    const char *path; /* relative to the tree, '/' between parts; borrowed */
    char *text; /* whole file, NUL at the end; owned */
    char *code; /* same length; owned */
    size_t length;
    int lines;
} source;

bool source_load(source *s, const char *path); /* false: cannot be read, or holds a NUL byte (not a text) */
void source_free(source *s);
bool source_is_c(const char *path); /* .c or .h */
bool path_starts(const char *path, const char *prefix);
#endif
