/* kinds.h - requests of every kind that a failure could spoil, and clients that ask them until they are told to stop.
 * The answers are compared with those of the undisturbed cluster: ids, text, log-probabilities bit by bit, ends, usage.
 */
#ifndef KVF_E2E_KINDS_H
#define KVF_E2E_KINDS_H
#include "harness.h"
#include <pthread.h>
#include <stdatomic.h>

enum { E2E_KINDS = 16, E2E_KIND_TOKENS = 640 };

typedef struct {
    uint32_t ids[E2E_KINDS][E2E_KIND_TOKENS];
    e2e_ask ask[E2E_KINDS];
    e2e_answer want[E2E_KINDS];
} e2e_kinds;

void e2e_kinds_make(e2e_kinds *k, e2e_cluster *undisturbed); /* asks each once */
void e2e_kinds_free(e2e_kinds *k);
bool e2e_kind_same(const e2e_answer *want, const e2e_answer *got); /* e2e_same and the usage */

typedef struct {
    const e2e_kinds *kinds;
    e2e_cluster *c;
    uint64_t seed;
    pthread_t threads[16];
    uint32_t count;
    atomic_bool stop;
    atomic_uint started, done, failed, differ, retried;
    pthread_mutex_t lock;
    char first[700]; /* what went wrong first; under lock */
} e2e_clients;

void e2e_clients_start(e2e_clients *t, const e2e_kinds *kinds, e2e_cluster *c, uint32_t count, uint64_t seed);
void e2e_clients_stop(e2e_clients *t); /* lets each finish its request */
/* Stops them, prints the counts; fails the test where one answer failed or differed. */
void e2e_clients_all_well(e2e_clients *t, const char *what);

#endif
