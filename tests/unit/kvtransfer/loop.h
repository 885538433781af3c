/* loop.h - drives an event base until something is true; a test that waits too long fails instead of hanging. */
#ifndef KVF_TEST_LOOP_H
#define KVF_TEST_LOOP_H
#include "kvf/os.h"
#include <dirent.h>
#include <event2/event.h>
#include <stdio.h>
#include <stdlib.h>

#define LOOP_PATIENCE_NS (60 * KVF_NS_PER_S)
static inline void loop_wake(evutil_socket_t fd, short what, void *self) {
    (void)fd;
    (void)what;
    (void)self;
}
#define LOOP_UNTIL(base, condition)                                                                                    \
    do {                                                                                                               \
        kvf_time_ns until_ns = kvf_os_now_ns() + LOOP_PATIENCE_NS;                                                     \
        struct event *wake = event_new(base, -1, EV_PERSIST, loop_wake, NULL);                                         \
        struct timeval period = {.tv_usec = 50000};                                                                    \
        event_add(wake, &period);                                                                                      \
        while (!(condition)) {                                                                                         \
            if (kvf_os_now_ns() > until_ns) {                                                                          \
                fprintf(stderr, "%s:%d: never came true: %s\n", __FILE__, __LINE__, #condition);                       \
                exit(1);                                                                                               \
            }                                                                                                          \
            event_base_loop(base, EVLOOP_ONCE);                                                                        \
        }                                                                                                              \
        event_free(wake);                                                                                              \
    } while (0)
/* Everything that is due now, without waiting. */
static inline void loop_rounds(struct event_base *base, int rounds) {
    for (int i = 0; i < rounds; i++) event_base_loop(base, EVLOOP_NONBLOCK);
}

static inline int open_descriptors(void) {
    int n = 0;
    DIR *d = opendir("/proc/self/fd");
    while (d && readdir(d)) n++;
    if (d) closedir(d);
    return n;
}
#endif
