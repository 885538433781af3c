/* fake_nccl.c - NCCL between processes or threads: a communicator's ranks meet on abstract Unix sockets named by the
 * unique id; a send hands its bytes over when the peer's receive has been posted and has reached the head of its
 * stream. The table in fake_cuda.h says where this differs from the real one.
 *
 * One connection per direction and pair of ranks: the sender connects. On it, for every transfer:
 *   sender: u32 magic, u32 0, u64 bytes    receiver: 'a' when its own receive has come up    sender: the bytes */
#include "fake_int.h"
#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/random.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <time.h>
#include <unistd.h>

KVF_NCCL_FUNCTIONS(FAKE_API KVF_CUDA_INT_PROTOTYPE)
KVF_NCCL_TEXTS(FAKE_API KVF_CUDA_TEXT_PROTOTYPE)

enum { RANKS_MAX = 8, PAUSE_MS = 2 };
#define MAGIC 0x4c43434eu

typedef struct kvf_nccl_comm_of comm;
struct kvf_nccl_comm_of {
    int ranks, rank;
    bool blocking;
    char name[40];
    int to[RANKS_MAX], from[RANKS_MAX]; /* descriptors */
    pthread_t greeter;
    bool greeted; /* the greeter has been joined */
    atomic_int async;
    atomic_bool aborted;
    pthread_mutex_t lock; /* the rest */
    pthread_cond_t moved;
    uint64_t tickets, turn; /* groups run one after another, in the order of their calls */
    uint32_t running;
};

typedef struct op op;
struct op {
    op *next;
    comm *c;
    kvf_cuda_stream stream;
    int peer;
    bool sends;
    char *bytes;
    uint64_t len_bytes, done_bytes;
    enum { HEAD, ACK, BYTES, DONE } at;
};
typedef struct {
    comm *c;
    kvf_cuda_stream stream;
    op *first, **end;
    uint64_t ticket;
} batch;
typedef struct {
    uint32_t magic, zero;
    uint64_t len_bytes;
} head;

static _Thread_local struct {
    int depth;
    op *first, **end;
    int error;
} group;

static void sleep_ms(long ms) { nanosleep(&(struct timespec){.tv_nsec = ms * 1000000}, NULL); }

static void set_async(comm *c, int from, int to) { atomic_compare_exchange_strong(&c->async, &from, to); }
static void fail(comm *c, int error) {
    set_async(c, KVF_NCCL_OK, error);
    set_async(c, KVF_NCCL_IN_PROGRESS, error);
}

/* ---------------------------------------------------------------- meeting */
static socklen_t address_of(const comm *c, int rank, struct sockaddr_un *a) {
    *a = (struct sockaddr_un){.sun_family = AF_UNIX};
    int n = snprintf(a->sun_path + 1, sizeof a->sun_path - 1, "fake-nccl-%s-%d", c->name, rank);
    return (socklen_t)(offsetof(struct sockaddr_un, sun_path) + 1 + (size_t)n);
}
static int socket_new(void) { return socket(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0); }

/* true: said hello. */
static bool call_peer(comm *c, int rank) {
    struct sockaddr_un a;
    socklen_t len = address_of(c, rank, &a);
    uint8_t me = (uint8_t)c->rank;
    int fd = socket_new();
    if (fd >= 0 && connect(fd, (struct sockaddr *)&a, len) == 0 && send(fd, &me, 1, MSG_NOSIGNAL) == 1) {
        c->to[rank] = fd;
        return true;
    }
    if (fd >= 0) close(fd);
    return false;
}
/* true: a peer said who it is. */
static bool hear_peer(comm *c, int listener) {
    int fd = accept4(listener, NULL, NULL, SOCK_CLOEXEC);
    uint8_t rank;
    if (fd < 0) return false;
    if (recv(fd, &rank, 1, 0) == 1 && rank < c->ranks && c->from[rank] < 0) {
        fcntl(fd, F_SETFL, O_NONBLOCK);
        c->from[rank] = fd;
        return true;
    }
    close(fd);
    return false;
}

static void *greet(void *self) {
    comm *c = self;
    struct sockaddr_un a;
    socklen_t len = address_of(c, c->rank, &a);
    int listener = socket_new();
    if (listener < 0 || bind(listener, (struct sockaddr *)&a, len) || listen(listener, RANKS_MAX)) {
        fail(c, KVF_NCCL_SYSTEM_ERROR);
    } else {
        int missing = 2 * (c->ranks - 1);
        while (missing && !atomic_load(&c->aborted)) {
            for (int r = 0; r < c->ranks; r++)
                if (r != c->rank && c->to[r] < 0) missing -= call_peer(c, r);
            while (hear_peer(c, listener)) missing--;
            if (missing) sleep_ms(PAUSE_MS);
        }
        if (!missing) set_async(c, KVF_NCCL_IN_PROGRESS, KVF_NCCL_OK);
    }
    if (listener >= 0) close(listener);
    return NULL;
}

int ncclGetVersion(int *version) {
    int fault = fake_enter_nccl(__func__);
    if (fault) return fault;
    fake_cuda_settings s;
    fake_cuda_get(&s);
    *version = s.nccl_number;
    return 0;
}
int ncclGetUniqueId(kvf_nccl_id *out) {
    int fault = fake_enter_nccl(__func__);
    if (fault) return fault;
    uint8_t random[16];
    if (getrandom(random, sizeof random, 0) != (ssize_t)sizeof random) return KVF_NCCL_SYSTEM_ERROR;
    memset(out, 0, sizeof *out);
    for (size_t i = 0; i < sizeof random; i++) snprintf(out->bytes + 2 * i, 3, "%02x", random[i]);
    return 0;
}
int ncclCommInitRankConfig(kvf_nccl_comm *out, int ranks, kvf_nccl_id id, int rank, kvf_nccl_config *config) {
    int fault = fake_enter_nccl(__func__);
    if (fault) return fault;
    if (ranks < 1 || ranks > RANKS_MAX || rank < 0 || rank >= ranks) return KVF_NCCL_INVALID_ARGUMENT;
    if (config && (config->magic != 0xcafebeef || config->size < sizeof *config)) return KVF_NCCL_INVALID_ARGUMENT;
    comm *c = calloc(1, sizeof *c);
    if (!c) return KVF_NCCL_SYSTEM_ERROR;
    c->ranks = ranks;
    c->rank = rank;
    c->blocking = !config || config->blocking != 0;
    memcpy(c->name, id.bytes, 32);
    for (int r = 0; r < RANKS_MAX; r++) c->to[r] = c->from[r] = -1;
    pthread_mutex_init(&c->lock, NULL);
    pthread_cond_init(&c->moved, NULL);
    int self[2];
    if (socketpair(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0, self)) abort();
    c->to[rank] = self[0];
    c->from[rank] = self[1];
    atomic_init(&c->async, KVF_NCCL_IN_PROGRESS);
    if (pthread_create(&c->greeter, NULL, greet, c)) abort();
    *out = c;
    FAKE_COUNT(comms, 1);
    if (!c->blocking) return KVF_NCCL_IN_PROGRESS;
    pthread_join(c->greeter, NULL);
    c->greeted = true;
    return atomic_load(&c->async);
}
int ncclCommGetAsyncError(kvf_nccl_comm c, int *result) {
    int fault = fake_enter_nccl(__func__);
    if (fault) return fault;
    *result = atomic_load(&c->async);
    return 0;
}

static int tear_down(comm *c) {
    if (!c->greeted) pthread_join(c->greeter, NULL);
    pthread_mutex_lock(&c->lock);
    while (c->running) pthread_cond_wait(&c->moved, &c->lock);
    pthread_mutex_unlock(&c->lock);
    for (int r = 0; r < RANKS_MAX; r++) {
        if (c->to[r] >= 0) close(c->to[r]);
        if (c->from[r] >= 0) close(c->from[r]);
    }
    pthread_mutex_destroy(&c->lock);
    pthread_cond_destroy(&c->moved);
    free(c);
    FAKE_COUNT(comms, -1u);
    return 0;
}
int ncclCommAbort(kvf_nccl_comm c) {
    int fault = fake_enter_nccl(__func__);
    if (fault) return fault;
    atomic_store(&c->aborted, true);
    return tear_down(c);
}
int ncclCommFinalize(kvf_nccl_comm c) {
    (void)c;
    return fake_enter_nccl(__func__);
}
int ncclCommDestroy(kvf_nccl_comm c) {
    int fault = fake_enter_nccl(__func__);
    return fault ? fault : tear_down(c);
}

/* ---------------------------------------------------------------- transfers, on their streams */
typedef enum { NOTHING, MOVED, PEER_GONE, WRONG } step;

static step judged(ssize_t n) {
    if (n > 0) return MOVED;
    return n < 0 && (errno == EAGAIN || errno == EINTR) ? NOTHING : PEER_GONE;
}

static step op_head(op *o, int fd) {
    head h = {MAGIC, 0, o->len_bytes};
    if (o->sends) {
        step s = judged(send(fd, &h, sizeof h, MSG_NOSIGNAL));
        if (s == MOVED) o->at = ACK;
        return s;
    }
    step s = judged(recv(fd, &h, sizeof h, 0));
    if (s != MOVED) return s;
    if (h.magic != MAGIC || h.len_bytes != o->len_bytes) return WRONG;
    o->at = ACK;
    return MOVED;
}
static step op_step(op *o) {
    int fd = o->sends ? o->c->to[o->peer] : o->c->from[o->peer];
    char ack = 'a';
    step s;
    switch (o->at) {
    case HEAD: return op_head(o, fd);
    case ACK:
        s = judged(o->sends ? recv(fd, &ack, 1, 0) : send(fd, &ack, 1, MSG_NOSIGNAL));
        if (s == MOVED) o->at = o->len_bytes ? BYTES : DONE;
        return s;
    case BYTES: {
        size_t left = (size_t)(o->len_bytes - o->done_bytes);
        ssize_t n = o->sends ? send(fd, o->bytes + o->done_bytes, left, MSG_NOSIGNAL)
                             : recv(fd, o->bytes + o->done_bytes, left, 0);
        if (n > 0) o->done_bytes += (uint64_t)n;
        if (o->done_bytes == o->len_bytes) o->at = DONE;
        return judged(n);
    }
    default: return NOTHING;
    }
}

/* Every direction of every pair goes on by itself; inside one, in order. */
static step batch_step(batch *b, bool *left) {
    uint32_t busy[2] = {0};
    step best = NOTHING;
    *left = false;
    for (op *o = b->first; o; o = o->next) {
        uint32_t bit = 1u << o->peer;
        if (o->at == DONE) continue;
        *left = true;
        if (busy[o->sends] & bit) continue;
        busy[o->sends] |= bit;
        step s = op_step(o);
        if (s > best) best = s;
    }
    return best;
}

static void batch_wait(const batch *b) {
    struct pollfd fds[2 * RANKS_MAX];
    nfds_t count = 0;
    for (const op *o = b->first; o && count < KVF_COUNT_OF(fds); o = o->next) {
        if (o->at == DONE) continue;
        bool writes = o->sends != (o->at == ACK);
        fds[count++] = (struct pollfd){
            .fd = o->sends ? o->c->to[o->peer] : o->c->from[o->peer], .events = writes ? POLLOUT : POLLIN};
    }
    poll(fds, count, PAUSE_MS);
}

static void batch_run(void *arg) {
    batch *b = arg;
    comm *c = b->c;
    pthread_mutex_lock(&c->lock);
    while (c->turn != b->ticket) pthread_cond_wait(&c->moved, &c->lock);
    pthread_mutex_unlock(&c->lock);
    bool left = true, dead = false;
    while (left && !atomic_load(&c->aborted)) {
        int async = atomic_load(&c->async);
        if (dead || (async != KVF_NCCL_OK && async != KVF_NCCL_IN_PROGRESS)) {
            sleep_ms(PAUSE_MS); /* a kernel that spins until it is aborted */
            continue;
        }
        step s = async == KVF_NCCL_OK ? batch_step(b, &left) : NOTHING;
        dead = s == PEER_GONE;
        if (s == WRONG) fail(c, KVF_NCCL_INVALID_USAGE);
        if (s == PEER_GONE && getenv("KVF_FAKE_NCCL_DEATH_IS_TOLD")) fail(c, KVF_NCCL_REMOTE_ERROR);
        if (left && s == NOTHING) batch_wait(b);
    }
    pthread_mutex_lock(&fake_lock);
    for (const op *o = b->first; o; o = o->next) {
        fake_counted.sends += o->sends && o->at == DONE;
        fake_counted.recvs += !o->sends && o->at == DONE;
    }
    pthread_mutex_unlock(&fake_lock);
}
/* Also of a batch that never ran: the device was broken. */
static void batch_drop(void *arg) {
    batch *b = arg;
    comm *c = b->c;
    for (op *o = b->first, *next; o; o = next) {
        next = o->next;
        free(o);
    }
    pthread_mutex_lock(&c->lock);
    c->turn = KVF_MAX(c->turn, b->ticket + 1);
    c->running--;
    pthread_cond_broadcast(&c->moved);
    pthread_mutex_unlock(&c->lock);
    free(b);
}

/* ---------------------------------------------------------------- groups */
static void comm_leave(comm *c) {
    pthread_mutex_lock(&c->lock);
    c->running--;
    pthread_cond_broadcast(&c->moved);
    pthread_mutex_unlock(&c->lock);
}

static void *launch_later(void *arg) {
    batch *b = arg;
    comm *c = b->c;
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    nanosleep(&(struct timespec){.tv_nsec = now.tv_nsec % 200000}, NULL);
    fake_queue(b->stream, "transfer", batch_run, batch_drop, b);
    set_async(c, KVF_NCCL_IN_PROGRESS, KVF_NCCL_OK); /* only now: whoever waits for it may record an event behind */
    comm_leave(c);
    return NULL;
}

static void batch_launch(batch *b) {
    comm *c = b->c;
    pthread_mutex_lock(&c->lock);
    b->ticket = c->tickets++;
    c->running += c->blocking ? 1 : 2; /* the batch, and who launches it */
    pthread_mutex_unlock(&c->lock);
    if (c->blocking) {
        fake_queue(b->stream, "transfer", batch_run, batch_drop, b);
        return;
    }
    pthread_t thread;
    set_async(c, KVF_NCCL_OK, KVF_NCCL_IN_PROGRESS);
    if (pthread_create(&thread, NULL, launch_later, b)) abort();
    pthread_detach(thread);
}

static void group_begin(void) {
    if (group.depth++ > 0) return;
    group.first = NULL;
    group.end = &group.first;
    group.error = 0;
}
int ncclGroupStart(void) {
    int fault = fake_enter_nccl(__func__);
    if (!fault) group_begin();
    return fault;
}

/* Sends of a rank to itself need receives of the same group. */
static bool self_sends_alone(const op *first) {
    int open = 0;
    for (const op *o = first; o; o = o->next)
        if (o->peer == o->c->rank) open += o->sends ? 1 : -1;
    return open != 0;
}

int ncclGroupEnd(void) {
    if (group.depth == 0) return KVF_NCCL_INVALID_USAGE;
    if (--group.depth > 0) return 0;
    int error = group.error;
    if (!error) error = fake_enter_nccl(__func__);
    if (!error && self_sends_alone(group.first)) error = KVF_NCCL_INVALID_USAGE;
    op *all = group.first;
    group.first = NULL;
    while (all) { /* one batch for each communicator and stream */
        batch *b = calloc(1, sizeof *b);
        if (!b) abort();
        *b = (batch){.c = all->c, .stream = all->stream};
        b->end = &b->first;
        for (op **link = &all; *link;) {
            op *o = *link;
            if (o->c != b->c || o->stream != b->stream) {
                link = &o->next;
                continue;
            }
            *link = o->next;
            o->next = NULL;
            *b->end = o;
            b->end = &o->next;
        }
        if (error > 0 && error != KVF_NCCL_IN_PROGRESS) { /* nothing of a spoiled group is launched */
            for (op *o = b->first, *next; o; o = next) {
                next = o->next;
                free(o);
            }
            free(b);
            continue;
        }
        if (!b->c->blocking) error = KVF_NCCL_IN_PROGRESS;
        batch_launch(b);
    }
    return error;
}

static int add(bool sends, void *bytes, size_t count, int type, int peer, comm *c, kvf_cuda_stream stream) {
    int error = fake_enter_nccl(sends ? "ncclSend" : "ncclRecv");
    bool alone = group.depth == 0;
    if (alone) group_begin();
    /* Not looked at when the call was made to fail: another thread may have aborted it while this one hung. */
    int async = error ? error : atomic_load(&c->async);
    if (!error && (type != KVF_NCCL_BYTES || peer < 0 || peer >= c->ranks)) error = KVF_NCCL_INVALID_ARGUMENT;
    if (!error && async == KVF_NCCL_IN_PROGRESS && !c->blocking) error = KVF_NCCL_INVALID_ARGUMENT;
    if (!error && async != KVF_NCCL_OK && async != KVF_NCCL_IN_PROGRESS) error = async;
    if (!error && !fake_is_device(bytes, count)) error = KVF_NCCL_INVALID_ARGUMENT;
    if (!error) {
        op *o = calloc(1, sizeof *o);
        if (!o) abort();
        *o = (op){.c = c, .stream = stream, .peer = peer, .sends = sends, .bytes = bytes, .len_bytes = count};
        *group.end = o;
        group.end = &o->next;
    } else if (!group.error) {
        group.error = error;
    }
    if (!alone) return error;
    return ncclGroupEnd();
}
int ncclSend(const void *from, size_t count, int type, int peer, kvf_nccl_comm c, kvf_cuda_stream stream) {
    return add(true, (void *)(uintptr_t)from, count, type, peer, c, stream);
}
int ncclRecv(void *to, size_t count, int type, int peer, kvf_nccl_comm c, kvf_cuda_stream stream) {
    return add(false, to, count, type, peer, c, stream);
}

const char *ncclGetErrorString(int result) {
    static const char *const texts[] = {"no error", "unhandled cuda error", "unhandled system error", "internal error",
        "invalid argument", "invalid usage", "remote process exited or there was a network error", "in progress"};
    return result >= 0 && result < (int)KVF_COUNT_OF(texts) ? texts[result] : "unknown result code";
}
const char *ncclGetLastError(kvf_nccl_comm c) {
    (void)c;
    return "";
}
