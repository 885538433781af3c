/* fault_event.c - libevent's constructors, for tests that link it: see fault.h. */
#include "fault.h"
#include <event2/event.h>
#include <event2/listener.h>

struct event *__real_event_new(struct event_base *b, evutil_socket_t fd, short what, event_callback_fn fn, void *self);
struct event *__wrap_event_new(struct event_base *b, evutil_socket_t fd, short what, event_callback_fn fn, void *self);
struct event *__wrap_event_new(struct event_base *b, evutil_socket_t fd, short what, event_callback_fn fn, void *self) {
    return fault_hits("event_new") ? NULL : __real_event_new(b, fd, what, fn, self);
}
int __real_event_add(struct event *e, const struct timeval *tv);
int __wrap_event_add(struct event *e, const struct timeval *tv);
int __wrap_event_add(struct event *e, const struct timeval *tv) {
    return fault_hits("event_add") ? -1 : __real_event_add(e, tv);
}
struct event_base *__real_event_base_new(void);
struct event_base *__wrap_event_base_new(void);
struct event_base *__wrap_event_base_new(void) {
    return fault_hits("event_base_new") ? NULL : __real_event_base_new();
}
struct evconnlistener *__real_evconnlistener_new(
    struct event_base *b, evconnlistener_cb cb, void *self, unsigned flags, int backlog, evutil_socket_t fd);
struct evconnlistener *__wrap_evconnlistener_new(
    struct event_base *b, evconnlistener_cb cb, void *self, unsigned flags, int backlog, evutil_socket_t fd);
struct evconnlistener *__wrap_evconnlistener_new(
    struct event_base *b, evconnlistener_cb cb, void *self, unsigned flags, int backlog, evutil_socket_t fd) {
    return fault_hits("evconnlistener_new") ? NULL : __real_evconnlistener_new(b, cb, self, flags, backlog, fd);
}
