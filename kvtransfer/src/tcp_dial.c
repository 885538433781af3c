/* tcp_dial.c - see tcp_dial.h. */
#include "tcp_dial.h"
#include <errno.h>
#include <event2/dns.h>
#include <event2/event.h>
#include <event2/util.h>
#include <netdb.h>
#include <netinet/in.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/socket.h>
#include <unistd.h>

#define ADDRESSES_MAX 8
#define STEP_MS 250

typedef struct {
    struct tcp_dial *dial;
    struct sockaddr_storage address;
    socklen_t address_len;
    int fd;
    struct event *ev;
} attempt;
struct tcp_dial {
    kvf_transport_env *env;
    attempt attempts[ADDRESSES_MAX];
    uint32_t count, next, open;
    struct event *step;
    struct evdns_getaddrinfo_request *resolving;
    bool resolved, cancelled;
    char text[160];
    tcp_dial_fn done;
    void *self;
};

static void close_attempt(attempt *a) {
    if (a->ev) event_free(a->ev);
    if (a->fd >= 0) close(a->fd);
    if (a->fd >= 0) a->dial->open--;
    a->ev = NULL;
    a->fd = -1;
}

static void dial_free(tcp_dial *d) {
    for (uint32_t i = 0; i < d->count; i++) close_attempt(&d->attempts[i]);
    event_free(d->step);
    free(d);
}

static void dial_finish(tcp_dial *d, int fd) {
    tcp_dial_fn done = d->done;
    void *self = d->self;
    char text[sizeof d->text];
    memcpy(text, d->text, sizeof text);
    dial_free(d);
    done(self, fd, text);
}

static void attempt_failed(attempt *a, int error) {
    char host[64] = "?";
    getnameinfo((struct sockaddr *)&a->address, a->address_len, host, sizeof host, NULL, 0, NI_NUMERICHOST);
    snprintf(a->dial->text, sizeof a->dial->text, "connect to %s: %s", host, strerror(error));
    close_attempt(a);
}

static void on_connect(evutil_socket_t fd, short what, void *self);

static void start_attempt(tcp_dial *d) {
    attempt *a = &d->attempts[d->next++];
    a->fd = socket(a->address.ss_family, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);
    if (a->fd >= 0) d->open++;
    if (a->fd < 0 || (connect(a->fd, (struct sockaddr *)&a->address, a->address_len) && errno != EINPROGRESS)) {
        attempt_failed(a, errno);
        return;
    }
    a->ev = event_new(d->env->base, a->fd, EV_WRITE, on_connect, a);
    if (!a->ev || event_add(a->ev, NULL)) attempt_failed(a, ENOMEM);
}

/* Goes on with the next address; false: the dial is over. */
static bool go_on(tcp_dial *d) {
    while (d->next < d->count) {
        uint32_t open = d->open;
        start_attempt(d);
        if (d->open == open) continue; /* failed at once */
        struct timeval step = {.tv_usec = STEP_MS * 1000};
        if (event_add(d->step, &step) != 0) event_active(d->step, EV_TIMEOUT, 1); /* the next address at once */
        return true;
    }
    if (d->open > 0) return true;
    dial_finish(d, -1);
    return false;
}

static void on_connect(evutil_socket_t fd, short what, void *self) {
    (void)what;
    attempt *a = self;
    tcp_dial *d = a->dial;
    int error = 0;
    socklen_t len = sizeof error;
    if (getsockopt((int)fd, SOL_SOCKET, SO_ERROR, &error, &len)) error = errno;
    if (error) {
        attempt_failed(a, error);
        go_on(d);
        return;
    }
    event_free(a->ev);
    a->ev = NULL;
    a->fd = -1;
    d->open--;
    dial_finish(d, (int)fd);
}

static void on_step(evutil_socket_t fd, short what, void *self) {
    (void)fd;
    (void)what;
    tcp_dial *d = self;
    if (d->resolved) go_on(d);
}

static void on_resolved(int error, struct evutil_addrinfo *list, void *self) {
    tcp_dial *d = self;
    d->resolving = NULL;
    if (d->cancelled) {
        if (list) evutil_freeaddrinfo(list);
        dial_free(d);
        return;
    }
    d->resolved = true;
    if (error) snprintf(d->text, sizeof d->text, "name does not resolve: %s", evutil_gai_strerror(error));
    for (struct evutil_addrinfo *i = list; i && d->count < ADDRESSES_MAX; i = i->ai_next) {
        if (i->ai_addrlen > sizeof d->attempts[0].address) continue;
        attempt *a = &d->attempts[d->count++];
        *a = (attempt){.dial = d, .fd = -1, .address_len = (socklen_t)i->ai_addrlen};
        memcpy(&a->address, i->ai_addr, i->ai_addrlen);
    }
    if (list) evutil_freeaddrinfo(list);
    /* Resolving may have ended inside tcp_dial_start: results are told from the loop only. */
    event_active(d->step, EV_TIMEOUT, 1);
}

kvf_status tcp_dial_start(kvf_transport_env *env, const char *host, uint16_t port, tcp_dial_fn done, void *self,
    tcp_dial **out, kvf_error *err) {
    tcp_dial *d = calloc(1, sizeof *d);
    if (!d) return kvf_fail(err, KVF_ERR_NO_MEMORY, "no memory to connect");
    *d = (tcp_dial){.env = env, .done = done, .self = self};
    d->step = event_new(env->base, -1, 0, on_step, d);
    if (!d->step) {
        free(d);
        return kvf_fail(err, KVF_ERR_NO_MEMORY, "no memory to connect");
    }
    char service[8];
    snprintf(service, sizeof service, "%u", port);
    struct evutil_addrinfo hints = {.ai_family = AF_UNSPEC,
        .ai_socktype = SOCK_STREAM,
        .ai_protocol = IPPROTO_TCP,
        .ai_flags = EVUTIL_AI_NUMERICHOST};
    struct evutil_addrinfo *list = NULL;
    *out = d;
    if (evutil_getaddrinfo(host, service, &hints, &list) == 0) {
        on_resolved(0, list, d);
        return KVF_OK;
    }
    if (!env->resolver)
        env->resolver = evdns_base_new(env->base, EVDNS_BASE_INITIALIZE_NAMESERVERS | EVDNS_BASE_DISABLE_WHEN_INACTIVE);
    if (!env->resolver && (env->resolver = evdns_base_new(env->base, EVDNS_BASE_DISABLE_WHEN_INACTIVE)))
        evdns_base_load_hosts(env->resolver, "/etc/hosts");
    if (!env->resolver) {
        dial_free(d);
        return kvf_fail(err, KVF_ERR_IO, "no resolver for the name \"%s\"", host);
    }
    hints.ai_flags = 0;
    struct evdns_getaddrinfo_request *r = evdns_getaddrinfo(env->resolver, host, service, &hints, on_resolved, d);
    if (r) d->resolving = r; /* NULL: on_resolved has been called */
    return KVF_OK;
}

void tcp_dial_cancel(tcp_dial *d) {
    d->cancelled = true;
    if (d->resolving)
        evdns_getaddrinfo_cancel(d->resolving); /* on_resolved frees it */
    else
        dial_free(d);
}
