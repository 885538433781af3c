/* inbox.h - what other threads have for the core thread, in order. Items are parts of their senders' objects, so that
 * putting one never fails: a cancelled call or a closed session is never lost. Senders of bulk look at the count first.
 */
#ifndef FRONT_INBOX_H
#define FRONT_INBOX_H
#include "kvf/base.h"
#include <pthread.h>

typedef struct inbox_item inbox_item;
struct inbox_item {
    inbox_item *next;
    void (*run)(inbox_item *item, void *shell); /* core thread; takes the item */
    void (*drop)(inbox_item *item); /* instead of run, when the core is gone */
};

typedef struct {
    pthread_mutex_t lock;
    inbox_item *head, *tail;
    uint32_t count;
    int fd; /* readable while not empty */
} inbox;
kvf_status front_inbox_init(inbox *b);
void front_inbox_fini(inbox *b); /* drops what is inside */
void front_inbox_put(inbox *b, inbox_item *item); /* any thread */
uint32_t front_inbox_count(inbox *b);
inbox_item *front_inbox_take_all(inbox *b); /* a list in order; NULL: empty */
#endif
