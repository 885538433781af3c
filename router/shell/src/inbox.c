#include "inbox.h"
#include <errno.h>
#include <sys/eventfd.h>
#include <unistd.h>

kvf_status front_inbox_init(inbox *b) {
    *b = (inbox){.fd = eventfd(0, EFD_NONBLOCK | EFD_CLOEXEC)};
    if (b->fd < 0) return KVF_ERR_IO;
    pthread_mutex_init(&b->lock, NULL);
    return KVF_OK;
}

void front_inbox_fini(inbox *b) {
    if (b->fd < 0) return;
    for (inbox_item *item = front_inbox_take_all(b); item;) {
        inbox_item *next = item->next;
        item->drop(item);
        item = next;
    }
    close(b->fd);
    pthread_mutex_destroy(&b->lock);
    b->fd = -1;
}

void front_inbox_put(inbox *b, inbox_item *item) {
    item->next = NULL;
    pthread_mutex_lock(&b->lock);
    bool wake = !b->head;
    if (b->tail)
        b->tail->next = item;
    else
        b->head = item;
    b->tail = item;
    b->count++;
    if (wake) {
        uint64_t one = 1;
        ssize_t n;
        do n = write(b->fd, &one, sizeof one);
        while (n < 0 && errno == EINTR);
    }
    pthread_mutex_unlock(&b->lock);
}

uint32_t front_inbox_count(inbox *b) {
    pthread_mutex_lock(&b->lock);
    uint32_t count = b->count;
    pthread_mutex_unlock(&b->lock);
    return count;
}

inbox_item *front_inbox_take_all(inbox *b) {
    pthread_mutex_lock(&b->lock);
    inbox_item *list = b->head;
    b->head = b->tail = NULL;
    b->count = 0;
    uint64_t drained;
    ssize_t n = read(b->fd, &drained, sizeof drained);
    (void)n;
    pthread_mutex_unlock(&b->lock);
    return list;
}
