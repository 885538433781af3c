/* kvf/log.h - one line per fact: lower case, exact cause, ids always ("req 7f03.12 attempt 2 blk 7.3").
 * Text with colour on a terminal, JSON lines otherwise ("ts", "level", "component", "msg"). Lines go to stderr, or to a
 * sink that the process (or a test) sets. Any thread may log; a line is written whole. Cores do not log: their shells
 * do. */
#ifndef KVF_LOG_H
#define KVF_LOG_H
#include "kvf/base.h"
#ifdef __cplusplus
extern "C" {
#endif
typedef enum { KVF_LOG_ERROR, KVF_LOG_WARN, KVF_LOG_INFO, KVF_LOG_DEBUG } kvf_log_level;
typedef void (*kvf_log_sink_fn)(void *self, kvf_log_level level, const char *component, const char *message);

void kvf_log_set_level(kvf_log_level level_max);
kvf_log_level kvf_log_get_level(void);
bool kvf_log_level_parse(const char *name, kvf_log_level *level); /* "error", "warn", "info", "debug" */
void kvf_log_set_sink(kvf_log_sink_fn sink, void *self); /* NULL: stderr again */
void kvf_log_set_node(const char *node); /* kept (copied); added to every line */
uint64_t kvf_log_lost(void); /* lines that stderr did not take, until one has been written that tells of them */
void kvf_log(kvf_log_level level, const char *component, const char *fmt, ...) KVF_PRINTF(3, 4);
#ifdef __cplusplus
}
#endif
#endif
