/* A page connection that crawls or spoils bytes: its pair of nodes is avoided, requests go on over others with the same
 * answers, and the pair is used again when the connection is well. One prefill node, two decode nodes; what goes to d0
 * passes a relay of this test (d0 listens on 127.0.0.1 and tells others 127.0.0.2). */
#include "parts.h"
#include <arpa/inet.h>
#include <errno.h>
#include <netinet/in.h>
#include <poll.h>
#include <pthread.h>
#include <stdatomic.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

/* ---- the relay ---- */

typedef enum { PASS, CRAWL, SPOIL } mode;
enum { PAIRS_MAX = 16, CRAWL_BYTES = 512, CRAWL_MS = 20, SPOIL_EVERY = 50000 };

typedef struct {
    int listener;
    struct sockaddr_in to;
    pthread_t thread;
    atomic_int mode;
    atomic_bool stop;
    atomic_uint connections, spoilt;
    struct {
        int fd[2]; /* [0] the caller, who sends pages */
    } pairs[PAIRS_MAX];
    size_t count, passed;
} relay;

static void relay_take(relay *r) {
    int in = accept4(r->listener, NULL, NULL, SOCK_CLOEXEC), out = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    if (in < 0 || out < 0 || r->count == PAIRS_MAX || connect(out, (struct sockaddr *)&r->to, sizeof r->to) != 0) {
        if (in >= 0) close(in);
        if (out >= 0) close(out);
        return;
    }
    r->pairs[r->count].fd[0] = in;
    r->pairs[r->count++].fd[1] = out;
    atomic_fetch_add(&r->connections, 1);
}

static void relay_spoil(relay *r, uint8_t *bytes, size_t count) {
    for (size_t i = 0; i < count; i++)
        if (++r->passed % SPOIL_EVERY == 0) {
            bytes[i] ^= 0x10;
            atomic_fetch_add(&r->spoilt, 1);
        }
}

/* false: this pair is over. */
static bool relay_move(relay *r, int from, int to, bool pages) {
    static uint8_t bytes[16384];
    mode m = pages ? (mode)atomic_load(&r->mode) : PASS;
    ssize_t got = recv(from, bytes, m == CRAWL ? CRAWL_BYTES : sizeof bytes, MSG_DONTWAIT);
    if (got < 0) return errno == EAGAIN || errno == EINTR;
    if (got == 0) return false;
    if (m == SPOIL) relay_spoil(r, bytes, (size_t)got);
    if (m == CRAWL) poll(NULL, 0, CRAWL_MS);
    return send(to, bytes, (size_t)got, MSG_NOSIGNAL) == got;
}

static void relay_drop(relay *r, size_t i) {
    close(r->pairs[i].fd[0]);
    close(r->pairs[i].fd[1]);
    r->pairs[i] = r->pairs[--r->count];
}

static void *relay_run(void *self) {
    relay *r = self;
    while (!atomic_load(&r->stop)) {
        struct pollfd p[1 + 2 * PAIRS_MAX] = {{.fd = r->listener, .events = POLLIN}};
        for (size_t i = 0; i < 2 * r->count; i++)
            p[1 + i] = (struct pollfd){.fd = r->pairs[i / 2].fd[i % 2], .events = POLLIN};
        size_t count = r->count;
        poll(p, 1 + 2 * count, 50);
        for (size_t i = count; i-- > 0;)
            for (size_t side = 0; side < 2; side++)
                if (p[1 + 2 * i + side].revents &&
                    !relay_move(r, r->pairs[i].fd[side], r->pairs[i].fd[!side], side == 0)) {
                    relay_drop(r, i);
                    break;
                }
        if (p[0].revents) relay_take(r);
    }
    while (r->count) relay_drop(r, r->count - 1);
    close(r->listener);
    return NULL;
}

static void relay_open(relay *r, const char *host, uint16_t port, const char *to) {
    struct sockaddr_in a = {.sin_family = AF_INET, .sin_port = htons(port)};
    int on = 1;
    r->to = a;
    assert_int_equal(inet_pton(AF_INET, host, &a.sin_addr), 1);
    assert_int_equal(inet_pton(AF_INET, to, &r->to.sin_addr), 1);
    r->listener = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    assert_true(r->listener >= 0);
    setsockopt(r->listener, SOL_SOCKET, SO_REUSEADDR, &on, sizeof on);
    assert_int_equal(bind(r->listener, (struct sockaddr *)&a, sizeof a), 0);
    assert_int_equal(listen(r->listener, 16), 0);
    assert_int_equal(pthread_create(&r->thread, NULL, relay_run, r), 0);
}

static void relay_close(relay *r) {
    atomic_store(&r->stop, true);
    pthread_join(r->thread, NULL);
}

/* ---- the cluster ---- */

enum { KINDS = 12, LENGTH = 500, OUTPUT = 12 };

typedef struct {
    e2e_parts k;
    relay r;
    uint32_t ids[KINDS][LENGTH];
    e2e_ask ask[KINDS];
    e2e_answer want[KINDS];
    uint64_t seed; /* of salts: nothing is cached from the round before */
    uint64_t moved_before;
} links;

static uint64_t pages_to(links *l, const char *decode) {
    Kvferry__V1__ClusterState *s = e2e_state(&l->k.router[0]);
    uint64_t pages = 0;
    for (size_t i = 0; i < s->n_pairs; i++)
        if (kvf_proto_text_equal(s->pairs[i]->decode_node, decode)) pages += s->pairs[i]->pages_moved;
    kvf_rpc_message_free(&s->base);
    return pages;
}

/* One round of all kinds, four at a time, under a salt of its own; all end well and as on a quiet cluster. How many
 * attempts were needed. */
static uint64_t one_round(links *l) {
    e2e_answer got[KINDS];
    char salt[24];
    uint64_t attempts = 0;
    snprintf(salt, sizeof salt, "salt %llu", (unsigned long long)++l->seed);
    for (size_t i = 0; i < KINDS; i++) l->ask[i].salt = salt;
    e2e_crowd(&l->k.router[0], l->ask, got, KINDS, 4);
    for (size_t i = 0; i < KINDS; i++) {
        if (got[i].result.code != KVF_RPC_OK) fail_msg("request %zu: %s", i, got[i].result.message);
        if (l->want[i].finished && !e2e_same(&got[i], &l->want[i])) fail_msg("request %zu differs", i);
        attempts += got[i].attempts;
        if (l->want[i].finished)
            e2e_answer_free(&got[i]);
        else
            l->want[i] = got[i];
    }
    return attempts;
}

static bool d0_is_used_again(void *self) {
    links *l = self;
    one_round(l);
    return pages_to(l, "d0") > l->moved_before + 100;
}

static uint16_t transfer_port(links *l) {
    char *log = e2e_read_file(e2e_part_find(&l->k, "d0")->process.log);
    char *at = log ? strstr(log, "transfer tcp:127.0.0.2:") : NULL;
    if (!at) fail_msg("d0 does not tell 127.0.0.2");
    uint16_t port = (uint16_t)atoi(at + strlen("transfer tcp:127.0.0.2:"));
    free(log);
    return port;
}

static void bad_link(mode m, const char *what) {
    static links l;
    memset(&l, 0, sizeof l);
    e2e_parts *k = &l.k;
    uint64_t r = 80;
    k->model = E2E_TINY("llama-mha");
    k->node_args[0] = "--transports=tcp";
    k->node_args[1] = "--kv-memory=32MiB";
    k->router_args[0] = "--disaggregate-min-tokens=64";
    k->router_args[1] = "--transfer-stall=700ms";
    k->node[1].env = "KVFERRY_NODE_ADVERTISE=127.0.0.2"; /* d0 */
    e2e_parts_start(k, 1, 2, 1);
    relay_open(&l.r, "127.0.0.2", transfer_port(&l), "127.0.0.1");
    for (size_t i = 0; i < KINDS; i++) {
        for (size_t t = 0; t < LENGTH; t++) l.ids[i][t] = (uint32_t)(e2e_random(&r) % 256);
        e2e_ask_ids(&l.ask[i], l.ids[i], LENGTH, OUTPUT);
        l.ask[i].logprobs = true;
    }
    uint64_t before = one_round(&l);
    assert_true(pages_to(&l, "d0") > 0 && pages_to(&l, "d1") > 0 && l.r.connections > 0);
    atomic_store(&l.r.mode, m);
    uint64_t moved[2] = {pages_to(&l, "d0"), pages_to(&l, "d1")};
    uint64_t bad = one_round(&l) + one_round(&l) + one_round(&l);
    moved[0] = pages_to(&l, "d0") - moved[0];
    moved[1] = pages_to(&l, "d1") - moved[1];
    print_message(
        "%s: %d requests well, %llu attempts (%llu of %d before), pages %llu to d0, %llu to d1, %u bytes spoilt\n",
        what, 3 * KINDS, (unsigned long long)bad, (unsigned long long)before, KINDS, (unsigned long long)moved[0],
        (unsigned long long)moved[1], l.r.spoilt);
    assert_true(moved[1] > 3 * moved[0]);
    if (m == SPOIL) assert_true(l.r.spoilt > 0);
    atomic_store(&l.r.mode, PASS);
    l.moved_before = pages_to(&l, "d0");
    e2e_until("the link is used again", d0_is_used_again, &l);
    e2e_assert_clean(&k->router[0]);
    for (size_t i = 0; i < KINDS; i++) e2e_answer_free(&l.want[i]);
    e2e_parts_stop(k);
    relay_close(&l.r);
}

static void crawling_link(void **state) { bad_link(CRAWL, "crawling"); }
static void spoiling_link(void **state) { bad_link(SPOIL, "spoiling"); }

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(crawling_link), cmocka_unit_test(spoiling_link)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
