/* kvf/cores.h - which cores a process computes on where several of a host share them out. Each has cores of its own; a
 * core whose owner is idle is lent to one other process, which leaves it within one task of a step after the owner has
 * work again. So two pools never compute on one core for longer than a task, and no core stands still while somebody
 * has work.
 *
 * The processes share a file of KVF_CORES_FILE_BYTES zeros. For each core it holds until when its owner is busy, and
 * who has borrowed it. Nobody waits for a word of it: a process that dies busy only stops lending until it starts
 * again, one that dies with a borrowed core is found gone by the next who wants it. */
#ifndef KVF_CORES_H
#define KVF_CORES_H
#include "kvf/host_cores.h"

#define KVF_CORES_FILE_BYTES (KVF_CORES_MAX * 64)

typedef struct kvf_cores kvf_cores;
/* own: "0-3,8", cores that this process may use. shared: the file, or NULL: nothing is lent. */
kvf_status kvf_cores_open(const char *own, const char *shared, kvf_cores **out, kvf_error *err);
void kvf_cores_close(kvf_cores *c); /* NULL is fine; after the pools that use it */
uint32_t kvf_cores_own(const kvf_cores *c); /* how many */
uint32_t kvf_cores_all(const kvf_cores *c); /* and those it may borrow; at most 64 */

/* What follows is for the pool. Thread 0 .. own-1 compute on own cores, the others on one borrowed core each. */
void kvf_cores_bind(const kvf_cores *c, uint32_t thread); /* the calling thread, as far as the system lets it */
void kvf_cores_begin(kvf_cores *c); /* a step: own cores are wanted */
void kvf_cores_end(kvf_cores *c); /* they are lent again soon: steps often follow each other */
bool kvf_cores_may_use(const kvf_cores *c, uint32_t thread); /* own, or idle and nobody else has it */
bool kvf_cores_take(kvf_cores *c, uint32_t thread); /* borrows; false: another was quicker, or the owner is back */
void kvf_cores_give_back(kvf_cores *c, uint32_t thread);
#endif
