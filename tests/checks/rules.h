/* rules.h - what the tree promises about its sources, one function for each promise. */
#ifndef KVF_CHECK_RULES_H
#define KVF_CHECK_RULES_H
#include "source.h"

/* Says where and what, counts it. */
void complain(const source *s, int line, const char *rule, const char *fmt, ...) __attribute__((format(printf, 4, 5)));

bool is_core(const char *path); /* a pure core: no socket, clock, thread, random, malloc, floating point */
void rule_core(const source *s); /* of files for which is_core holds */
void rule_layers(const source *s); /* gRPC, device and network headers only where they belong */
void rule_words(const source *s); /* no absolute path of one machine, no marker for work left over */

/* Sizes: what exceeds a limit must be in the allow list, whose entries must all be needed and may only shrink. */
bool allow_load(const char *path);
void rule_size(const source *s);
void allow_check_used(void);
#endif
