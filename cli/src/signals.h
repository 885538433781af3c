/* signals.h - INT, TERM and HUP as calls on a thread of their own, so that what they do may take locks.
 * Start, or block, before any other thread: every thread made later has them blocked, and only this one takes them. */
#ifndef KVF_CLI_SIGNALS_H
#define KVF_CLI_SIGNALS_H
#include "kvf/base.h"

typedef struct kvf_signals kvf_signals;
/* times: 1 for the first signal since start (or the last kvf_signals_reset), 2 for the second... */
typedef void (*kvf_signals_fn)(void *self, int signal, uint32_t times);
/* For what makes threads before it can be stopped: signals that arrive meanwhile are taken up at the start. */
void kvf_signals_block(void);
kvf_status kvf_signals_start(kvf_signals_fn fn, void *self, kvf_signals **out);
void kvf_signals_reset(kvf_signals *s); /* the next one counts as the first */
void kvf_signals_stop(kvf_signals *s); /* joins; the signals stay blocked */
/* Ends the process the way the signal would have, for "twice: stop now". */
KVF_NORETURN void kvf_signals_die(int signal);
#endif
