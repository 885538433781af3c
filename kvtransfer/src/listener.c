#include "listener.h"
#include <event2/event.h>
#include <stdlib.h>
#include <unistd.h>

/* No descriptor left: stop asking for a while instead of spinning over the waiting connection. */
static void on_accept_error(struct evconnlistener *l, void *self) {
    sock_listener *t = self;
    evconnlistener_disable(l);
    struct timeval pause = {.tv_usec = 100000};
    if (event_add(t->resume, &pause) != 0) event_active(t->resume, EV_TIMEOUT, 1);
}
static void on_resume(evutil_socket_t fd, short what, void *self) {
    (void)fd;
    (void)what;
    evconnlistener_enable(((sock_listener *)self)->listener);
}

sock_listener *sock_listen(kvf_transport_env *env, const kvf_transport_ops *ops, int fd, evconnlistener_cb on_accept,
    kvf_accept_fn accept, void *self) {
    sock_listener *t = calloc(1, sizeof *t);
    if (!t) {
        close(fd);
        errno = ENOMEM;
        return NULL;
    }
    *t = (sock_listener){.base.ops = ops, .env = env, .accept = accept, .self = self};
    t->resume = event_new(env->base, -1, 0, on_resume, t);
    t->listener = evconnlistener_new(env->base, on_accept, t, LEV_OPT_CLOSE_ON_FREE | LEV_OPT_CLOSE_ON_EXEC, 64, fd);
    int error = errno;
    if (!t->listener) close(fd);
    if (t->listener && t->resume) {
        evconnlistener_set_error_cb(t->listener, on_accept_error);
        return t;
    }
    sock_unlisten(&t->base);
    errno = error;
    return NULL;
}

void sock_unlisten(kvf_listener *l) {
    sock_listener *t = (sock_listener *)(void *)l;
    if (t->listener) evconnlistener_free(t->listener);
    if (t->resume) event_free(t->resume);
    free(t);
}
