/* A peer process that spoils its own staging while we read it: over shm it writes at random into the mapped ring,
 * counters included, over tcp it turns bits of what it sends. Whatever we count as landed must be what it meant to
 * send; the rest ends in a failed checksum or with the link, and it calls again. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>
#include <inttypes.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>
#include "kvf/endpoint.h"
#include "kvf/log.h"
#include "kvf/rng.h"
#include "kvf/transport.h"
#include "loop.h"

enum { PAGE_BYTES = 12288, RING_BYTES = 1 << 19, BURST = 16, CAUGHT = 200, LANDED = 3000 };
static const kvf_identity model = {.wire_version = 1, .page_bytes = PAGE_BYTES, .numerics = "f", .kv_type = "f16"};

static struct {
    struct event_base *base;
    kvf_endpoint *e;
    uint8_t page[PAGE_BYTES];
    uint64_t landed, torn, lies, links_ended;
} d;

static void fill(uint8_t *page, uint32_t n) {
    for (uint32_t i = 0; i < PAGE_BYTES; i += 8) kvf_put_le64(page + i, kvf_rng_at(9, n, i));
}
static void on_up(void *self, kvf_link_id link, const char *peer, uint64_t epoch, const uint8_t nonce[16],
    bool outgoing, const char *transport) {}
static void on_down(void *self, kvf_link_id link, const char *peer, kvf_status reason, const char *text) {
    d.links_ended += reason == KVF_ERR_CORRUPT || reason == KVF_ERR_FORMAT;
}
static void on_frame(void *self, kvf_link_id link, const kvf_frame *f) {}
static kvf_page_verdict on_page(
    void *self, kvf_link_id link, const kvf_page_header *h, void **target, kvf_landing *landing) {
    if (h->len_bytes != PAGE_BYTES) return KVF_PAGE_BAD_LENGTH;
    *landing = (kvf_landing){.grant = h->grant, .block_logical = h->block, .crc = h->crc};
    *target = d.page;
    return KVF_PAGE_ACCEPT;
}
static void on_landed(void *self, kvf_link_id link, const kvf_landing *landing, bool crc_ok) {
    static uint8_t want[PAGE_BYTES];
    if (!crc_ok) {
        d.torn++;
        return;
    }
    fill(want, landing->block_logical);
    d.landed++;
    d.lies += memcmp(want, d.page, PAGE_BYTES) != 0;
}
static void on_room(void *self, kvf_link_id link) {}

/* ---------------------------------------------------------------- the peer */
typedef struct {
    kvf_conn *conn;
    bool open, down;
} peer;
static void p_open(void *self) { ((peer *)self)->open = true; }
static void p_down(void *self, kvf_status reason, const char *text) { ((peer *)self)->down = true; }
static void p_ignore(void *self) {}

/* The ring: the one writable memfd that this process has mapped. */
static bool find_ring(uint8_t **at, size_t *len_bytes) {
    FILE *maps = fopen("/proc/self/maps", "r");
    char line[512];
    bool found = false;
    while (maps && fgets(line, sizeof line, maps)) {
        uintptr_t from, to;
        if (!strstr(line, "memfd:") || sscanf(line, "%" SCNxPTR "-%" SCNxPTR " rw", &from, &to) != 2) continue;
        *at = (uint8_t *)from; /* NOLINT: an address is what the kernel prints */
        *len_bytes = to - from;
        found = true;
    }
    if (maps) fclose(maps);
    return found;
}
static void scribble(kvf_rng *rng, uint8_t *ring, size_t len_bytes) {
    if (kvf_rng_below(rng, 400) == 0) { /* its counters */
        ring[kvf_rng_below(rng, 256)] ^= (uint8_t)(1 + kvf_rng_below(rng, 255));
        return;
    }
    /* Mostly into the page that is being read now: the reader's counter stands in the ring (src/shm_ring.h). */
    size_t data_bytes = len_bytes - 4096, n = 1 + (size_t)kvf_rng_below(rng, 63);
    uint64_t near = kvf_get_le64(ring + 128) + KVF_FRAME_PAGE_BYTES + kvf_rng_below(rng, PAGE_BYTES);
    uint64_t at = kvf_rng_below(rng, 4) ? near : kvf_rng_below(rng, data_bytes);
    for (size_t i = 0; i < n; i++)
        ((volatile uint8_t *)ring)[4096 + ((at + i) & (RING_BYTES - 1))] = (uint8_t)kvf_rng_below(rng, 256);
}

static void call(
    peer *p, kvf_transport_env *env, const kvf_transport_ops *ops, const char *where, uint64_t generation) {
    kvf_frame hello = {.kind = KVF_FRAME_HELLO,
        .hello = {
            .node = "p1", .epoch = 11, .peer = "d1", .peer_epoch = 22, .generation = generation, .identity = model}};
    uint8_t bytes[512];
    kvf_error err;
    if (p->conn) p->conn->ops->close(p->conn);
    *p = (peer){0};
    if (ops->dial(env, where, &p->conn, &err) != KVF_OK) _exit(2);
    p->conn->events = (kvf_conn_events){p, p_open, p_ignore, p_ignore, p_down};
    while (!p->open && !p->down) event_base_loop(env->base, EVLOOP_ONCE);
    if (p->down) return;
    p->conn->ops->put(p->conn, bytes, kvf_frame_encode(&hello, bytes, sizeof bytes));
    p->conn->ops->flush(p->conn);
}

static void spoil_for_ever(const kvf_transport_ops *ops, const char *where) {
    static uint8_t bytes[KVF_FRAME_PAGE_BYTES + PAGE_BYTES];
    kvf_transport_env env = {.base = event_base_new(), .staging_bytes = RING_BYTES};
    kvf_rng rng = {4711, 0};
    peer p = {0};
    uint64_t generation = 0;
    uint8_t *ring = NULL;
    size_t ring_bytes = 0;
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    for (uint32_t n = 0;; n++) {
        if (!p.conn || p.down) {
            call(&p, &env, ops, where, ++generation);
            if (p.down) continue;
            if (ops == &kvf_transport_shm && !find_ring(&ring, &ring_bytes)) _exit(3);
        }
        kvf_frame f = {.kind = KVF_FRAME_PAGE, .page = {.grant = 1, .block = n, .len_bytes = PAGE_BYTES}};
        fill(bytes + KVF_FRAME_PAGE_BYTES, n);
        f.page.crc = kvf_page_crc(&f.page, 22, bytes + KVF_FRAME_PAGE_BYTES);
        kvf_frame_encode(&f, bytes, sizeof bytes);
        if (!ring && kvf_rng_below(&rng, 8) == 0)
            bytes[kvf_rng_below(&rng, sizeof bytes)] ^= (uint8_t)(1 << kvf_rng_below(&rng, 8));
        while (!p.down && p.conn->ops->room(p.conn) < sizeof bytes) {
            p.conn->ops->flush(p.conn);
            if (ring) scribble(&rng, ring, ring_bytes);
            event_base_loop(env.base, EVLOOP_NONBLOCK);
        }
        if (p.down) continue;
        p.conn->ops->put(p.conn, bytes, sizeof bytes);
        if (n % BURST == 0) {
            p.conn->ops->flush(p.conn);
            if (ring) scribble(&rng, ring, ring_bytes); /* while the other process reads */
            event_base_loop(env.base, EVLOOP_NONBLOCK);
        }
    }
}

static void run(const kvf_transport_ops *ops) {
    memset(&d, 0, sizeof d);
    d.base = event_base_new();
    kvf_error err;
    kvf_endpoint_options o = {.base = d.base,
        .node = "d1",
        .epoch = 22,
        .identity = &model,
        .listen_tcp = "127.0.0.1:0",
        .listen_shm = true,
        .ring_bytes = RING_BYTES,
        .connect_timeout_ns = 20 * KVF_NS_PER_S,
        .heartbeat_ns = KVF_NS_PER_S,
        .peer_timeout_ns = KVF_NS_PER_S, /* a spoilt counter may leave a link that says nothing more */
        .callbacks = {NULL, on_up, on_down, on_frame, on_page, on_landed, on_room}};
    if (kvf_endpoint_create(&o, &d.e, &err) != KVF_OK) fail_msg("%s", err.message);
    char where[KVF_ADDRESS_MAX];
    const char *address = ops == &kvf_transport_shm ? kvf_endpoint_local_address(d.e) : kvf_endpoint_address(d.e);
    snprintf(where, sizeof where, "%s", strchr(address, ':') + 1);
    pid_t child = fork();
    assert_true(child >= 0);
    if (child == 0) spoil_for_ever(ops, where);
    LOOP_UNTIL(d.base, d.torn + d.links_ended >= CAUGHT && d.torn > 0 && d.landed >= LANDED);
    kill(child, SIGKILL);
    int status = 0;
    waitpid(child, &status, 0);
    assert_true(WIFSIGNALED(status)); /* it had not given up before */
    print_message("%s: %" PRIu64 " pages landed, %" PRIu64 " torn, %" PRIu64 " links ended by a bad frame, %" PRIu64
                  " lies\n",
        ops->name, d.landed, d.torn, d.links_ended, d.lies);
    assert_int_equal(d.lies, 0);
    kvf_endpoint_destroy(d.e);
    event_base_free(d.base);
}

static void a_ring_that_its_owner_scribbles_on_spoils_no_page(void **state) { run(&kvf_transport_shm); }
static void a_stream_with_turned_bits_spoils_no_page(void **state) { run(&kvf_transport_tcp); }

int main(void) {
    kvf_log_set_level(KVF_LOG_ERROR);
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_ring_that_its_owner_scribbles_on_spoils_no_page),
        cmocka_unit_test(a_stream_with_turned_bits_spoils_no_page),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
