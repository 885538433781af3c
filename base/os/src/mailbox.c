/* A mutex and a ring: contention is a few messages per engine step, so nothing cleverer pays. The descriptor is written
 * on every change from empty to not empty, and drained by the taker when it finds the ring empty. */
#include "kvf/os.h"
#include <errno.h>
#include <pthread.h>
#include <stdlib.h>
#include <sys/eventfd.h>
#include <unistd.h>

struct kvf_mailbox {
    pthread_mutex_t lock;
    int fd;
    uint32_t capacity, head, count;
    void *ring[];
};

kvf_status kvf_mailbox_create(uint32_t capacity, kvf_mailbox **out) {
    KVF_ASSERT(capacity > 0);
    kvf_mailbox *m = calloc(1, sizeof *m + sizeof(void *) * capacity);
    if (!m) return KVF_ERR_NO_MEMORY;
    m->fd = eventfd(0, EFD_NONBLOCK | EFD_CLOEXEC);
    if (m->fd < 0) {
        free(m);
        return KVF_ERR_IO;
    }
    m->capacity = capacity;
    pthread_mutex_init(&m->lock, NULL);
    *out = m;
    return KVF_OK;
}

void kvf_mailbox_destroy(kvf_mailbox *m) {
    if (!m) return;
    close(m->fd);
    pthread_mutex_destroy(&m->lock);
    free(m);
}

int kvf_mailbox_fd(const kvf_mailbox *m) { return m->fd; }

static void signal_fd(int fd) {
    uint64_t one = 1;
    ssize_t n;
    do n = write(fd, &one, sizeof one);
    while (n < 0 && errno == EINTR); /* EAGAIN: the counter is already readable */
}

kvf_status kvf_mailbox_put(kvf_mailbox *m, void *message) {
    KVF_ASSERT(message != NULL);
    kvf_status status = KVF_AGAIN;
    pthread_mutex_lock(&m->lock);
    if (m->count < m->capacity) {
        m->ring[(m->head + m->count) % m->capacity] = message;
        if (m->count++ == 0) signal_fd(m->fd);
        status = KVF_OK;
    }
    pthread_mutex_unlock(&m->lock);
    return status;
}

void *kvf_mailbox_take(kvf_mailbox *m) {
    void *message = NULL;
    pthread_mutex_lock(&m->lock);
    if (m->count > 0) {
        message = m->ring[m->head];
        m->head = (m->head + 1) % m->capacity;
        if (--m->count == 0) {
            m->head = 0; /* an empty ring begins again: few messages at a time touch few of its pages */
            uint64_t drained;
            ssize_t n = read(m->fd, &drained, sizeof drained);
            (void)n;
        }
    }
    pthread_mutex_unlock(&m->lock);
    return message;
}
