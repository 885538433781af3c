/* proxy.c - one thread, one poll set, made anew for each round: there are at most a few hundred descriptors.
 *
 * A pipe (one direction of a connection) holds at most one piece. A piece is read only when the one before it has left,
 * and leaves when its time has come: delay and rate are both nothing but that time. */
#include "proxy.h"
#include "harness.h"
#include <arpa/inet.h>
#include <errno.h>
#include <poll.h>
#include <pthread.h>
#include <string.h>
#include <sys/eventfd.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

enum { JOINTS_MAX = 512, PIECE_BYTES = 16384 };

typedef struct {
    uint8_t bytes[PIECE_BYTES];
    size_t from, to;
    uint64_t due_ns;
    bool ended, shut; /* the source says no more; the sink was told */
} pipe_;

typedef struct {
    int fd[2]; /* 0: who called, 1: the target; -1: this place is free */
    uint32_t lane;
    pipe_ way[2]; /* way[i] reads fd[i] */
    uint64_t flip_left;
} joint;

typedef struct {
    int fd;
    uint16_t port;
    char target[PROXY_ADDRESS_MAX];
    proxy_weather weather;
} lane_;

struct proxy {
    pthread_mutex_t lock; /* over all below but bell and thread */
    pthread_t thread;
    int bell;
    bool stop;
    lane_ lanes[PROXY_LANES_MAX];
    uint32_t lane_count;
    joint joints[JOINTS_MAX];
    uint64_t bytes, flips, cuts, random;
};

static void ring(proxy *p) {
    uint64_t one = 1;
    ssize_t n = write(p->bell, &one, sizeof one);
    (void)n; /* full means rung */
}

static void joint_close(joint *j, bool reset) {
    struct linger now = {.l_onoff = 1};
    for (int i = 0; i < 2; i++) {
        if (j->fd[i] < 0) continue;
        if (reset) setsockopt(j->fd[i], SOL_SOCKET, SO_LINGER, &now, sizeof now);
        close(j->fd[i]);
        j->fd[i] = -1;
    }
}

static int call_target(const char *target) {
    struct sockaddr_un un = {.sun_family = AF_UNIX};
    struct sockaddr_in in = {.sin_family = AF_INET};
    bool local = strncmp(target, "unix:", 5) == 0;
    int fd = socket(local ? AF_UNIX : AF_INET, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0), failed;
    if (fd < 0) return -1;
    if (local) {
        snprintf(un.sun_path, sizeof un.sun_path, "%s", target + 5);
        failed = connect(fd, (struct sockaddr *)&un, sizeof un);
    } else {
        in.sin_port = htons((uint16_t)atoi(strrchr(target, ':') + 1));
        in.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
        failed = connect(fd, (struct sockaddr *)&in, sizeof in);
    }
    if (!failed || errno == EINPROGRESS) return fd;
    close(fd);
    return -1;
}

static void lane_accept(proxy *p, uint32_t index) {
    int fd = accept4(p->lanes[index].fd, NULL, NULL, SOCK_NONBLOCK | SOCK_CLOEXEC);
    if (fd < 0) return;
    for (size_t i = 0; i < JOINTS_MAX; i++) {
        joint *j = &p->joints[i];
        if (j->fd[0] >= 0 || j->fd[1] >= 0) continue;
        *j = (joint){.fd = {fd, call_target(p->lanes[index].target)}, .lane = index};
        if (j->fd[1] < 0) joint_close(j, true);
        return;
    }
    close(fd);
}

static void corrupt(proxy *p, joint *j, pipe_ *w, uint64_t every) {
    if (j->flip_left == 0 || j->flip_left > every) j->flip_left = 1 + e2e_random(&p->random) % every;
    size_t count = w->to - w->from;
    if (j->flip_left > count) {
        j->flip_left -= count;
        return;
    }
    w->bytes[w->from + j->flip_left - 1] ^= (uint8_t)(1u << e2e_random(&p->random) % 8);
    j->flip_left = every;
    p->flips++;
}

static void pipe_fill(proxy *p, joint *j, int side, uint64_t now) {
    pipe_ *w = &j->way[side];
    const proxy_weather *weather = &p->lanes[j->lane].weather;
    ssize_t n = recv(j->fd[side], w->bytes, sizeof w->bytes, 0);
    if (n < 0 && (errno == EAGAIN || errno == EINTR)) return;
    if (n < 0) {
        joint_close(j, true);
        return;
    }
    if (n == 0) {
        w->ended = true;
        return;
    }
    w->from = 0;
    w->to = (size_t)n;
    w->due_ns = now + weather->delay_ns;
    if (weather->bytes_per_s) w->due_ns += (uint64_t)n * 1000000000u / weather->bytes_per_s;
    p->bytes += (uint64_t)n;
    if (weather->flip_bytes && side == 0) corrupt(p, j, w, weather->flip_bytes);
}

static void pipe_drain(joint *j, int side) {
    pipe_ *w = &j->way[side];
    int sink = j->fd[1 - side];
    if (w->from < w->to) {
        ssize_t n = send(sink, w->bytes + w->from, w->to - w->from, MSG_NOSIGNAL);
        if (n < 0 && (errno == EAGAIN || errno == EINTR)) return;
        if (n < 0) {
            joint_close(j, true);
            return;
        }
        w->from += (size_t)n;
    }
    if (w->from == w->to && w->ended && !w->shut) {
        shutdown(sink, SHUT_WR);
        w->shut = true;
    }
    if (j->way[0].shut && j->way[1].shut) joint_close(j, false);
}

typedef struct {
    struct pollfd fds[1 + PROXY_LANES_MAX + 2 * JOINTS_MAX];
    uint32_t what[1 + PROXY_LANES_MAX + 2 * JOINTS_MAX]; /* lane, or joint * 2 + side */
    uint32_t lanes, count;
    int wait_ms;
} round_;

/* Which events each side of a joint waits for; a piece whose time has not come shortens the wait. */
static void joint_watch(proxy *p, joint *j, uint32_t index, uint64_t now, round_ *r) {
    if (j->fd[0] < 0 || p->lanes[j->lane].weather.hold) return;
    short events[2] = {0, 0};
    for (int side = 0; side < 2; side++) {
        pipe_ *w = &j->way[side];
        bool full = w->from < w->to;
        if (!full && !w->ended) events[side] |= POLLIN;
        if (!full && (!w->ended || w->shut)) continue;
        if (!full || w->due_ns <= now)
            events[1 - side] |= POLLOUT;
        else
            r->wait_ms = KVF_MIN(r->wait_ms, (int)((w->due_ns - now) / 1000000u) + 1);
    }
    for (int side = 0; side < 2; side++) {
        if (!events[side]) continue;
        r->what[r->count] = index * 2 + (uint32_t)side;
        r->fds[r->count++] = (struct pollfd){.fd = j->fd[side], .events = events[side]};
    }
}

static void round_make(proxy *p, round_ *r) {
    uint64_t now = e2e_now_ns();
    r->wait_ms = 1000;
    r->count = 0;
    r->fds[r->count++] = (struct pollfd){.fd = p->bell, .events = POLLIN};
    for (uint32_t i = 0; i < p->lane_count; i++) {
        r->what[r->count] = i;
        r->fds[r->count++] = (struct pollfd){.fd = p->lanes[i].fd, .events = POLLIN};
    }
    r->lanes = r->count;
    for (uint32_t i = 0; i < JOINTS_MAX; i++) joint_watch(p, &p->joints[i], i, now, r);
}

static void round_serve(proxy *p, const round_ *r) {
    uint64_t now = e2e_now_ns();
    for (uint32_t i = 1; i < r->lanes; i++)
        if (r->fds[i].revents) lane_accept(p, r->what[i]);
    for (uint32_t i = r->lanes; i < r->count; i++) {
        joint *j = &p->joints[r->what[i] / 2];
        int side = (int)(r->what[i] % 2);
        short got = r->fds[i].revents;
        if (!got || j->fd[side] != r->fds[i].fd) continue; /* cut, or cut and taken again, since the poll */
        if (got & POLLOUT) pipe_drain(j, 1 - side);
        if (j->fd[side] >= 0 && (got & (POLLIN | POLLHUP | POLLERR)) && (r->fds[i].events & POLLIN))
            pipe_fill(p, j, side, now);
        else if (j->fd[side] >= 0 && (got & POLLERR))
            joint_close(j, true);
    }
}

static void *serve(void *self) {
    proxy *p = self;
    round_ *r = calloc(1, sizeof *r);
    pthread_mutex_lock(&p->lock);
    while (r && !p->stop) {
        round_make(p, r);
        pthread_mutex_unlock(&p->lock);
        poll(r->fds, r->count, r->wait_ms);
        if (r->fds[0].revents) {
            uint64_t count;
            ssize_t n = read(p->bell, &count, sizeof count);
            (void)n;
        }
        pthread_mutex_lock(&p->lock);
        round_serve(p, r);
    }
    for (size_t i = 0; i < JOINTS_MAX; i++) joint_close(&p->joints[i], true);
    pthread_mutex_unlock(&p->lock);
    free(r);
    return NULL;
}

proxy *proxy_create(void) {
    proxy *p = calloc(1, sizeof *p);
    assert_non_null(p);
    pthread_mutex_init(&p->lock, NULL);
    for (size_t i = 0; i < JOINTS_MAX; i++) p->joints[i].fd[0] = p->joints[i].fd[1] = -1;
    p->bell = eventfd(0, EFD_NONBLOCK | EFD_CLOEXEC);
    assert_true(p->bell >= 0);
    assert_int_equal(pthread_create(&p->thread, NULL, serve, p), 0);
    return p;
}

void proxy_destroy(proxy *p) {
    pthread_mutex_lock(&p->lock);
    p->stop = true;
    pthread_mutex_unlock(&p->lock);
    ring(p);
    pthread_join(p->thread, NULL);
    for (uint32_t i = 0; i < p->lane_count; i++) close(p->lanes[i].fd);
    close(p->bell);
    pthread_mutex_destroy(&p->lock);
    free(p);
}

bool proxy_lane(proxy *p, const char *host, uint16_t port, const char *target, uint32_t *lane) {
    struct sockaddr_in in = {.sin_family = AF_INET, .sin_port = htons(port)};
    socklen_t bytes = sizeof in;
    int one = 1, fd = socket(AF_INET, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);
    assert_true(fd >= 0 && inet_pton(AF_INET, host, &in.sin_addr) == 1);
    setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &one, sizeof one);
    if (bind(fd, (struct sockaddr *)&in, sizeof in) != 0 || listen(fd, 128) != 0) {
        close(fd);
        return false;
    }
    assert_int_equal(getsockname(fd, (struct sockaddr *)&in, &bytes), 0);
    pthread_mutex_lock(&p->lock);
    assert_true(p->lane_count < PROXY_LANES_MAX);
    *lane = p->lane_count++;
    p->lanes[*lane] = (lane_){.fd = fd, .port = ntohs(in.sin_port)};
    snprintf(p->lanes[*lane].target, PROXY_ADDRESS_MAX, "%s", target);
    pthread_mutex_unlock(&p->lock);
    ring(p);
    return true;
}

void proxy_retarget(proxy *p, uint32_t lane, const char *target) {
    pthread_mutex_lock(&p->lock);
    snprintf(p->lanes[lane].target, PROXY_ADDRESS_MAX, "%s", target);
    pthread_mutex_unlock(&p->lock);
}

uint16_t proxy_port(proxy *p, uint32_t lane) { return p->lanes[lane].port; }

void proxy_set(proxy *p, uint32_t lane, const proxy_weather *weather) {
    pthread_mutex_lock(&p->lock);
    p->lanes[lane].weather = *weather;
    pthread_mutex_unlock(&p->lock);
    ring(p);
}

uint32_t proxy_cut(proxy *p, uint32_t lane) {
    uint32_t count = 0;
    pthread_mutex_lock(&p->lock);
    for (size_t i = 0; i < JOINTS_MAX; i++) {
        if (p->joints[i].fd[0] < 0 || p->joints[i].lane != lane) continue;
        joint_close(&p->joints[i], true);
        count++;
    }
    p->cuts += count;
    pthread_mutex_unlock(&p->lock);
    ring(p);
    return count;
}

void proxy_totals(proxy *p, uint64_t *bytes, uint64_t *flips, uint64_t *cuts) {
    pthread_mutex_lock(&p->lock);
    *bytes = p->bytes;
    *flips = p->flips;
    *cuts = p->cuts;
    pthread_mutex_unlock(&p->lock);
}
