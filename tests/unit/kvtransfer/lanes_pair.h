/* lanes_pair.h - two nodes of one process with their pages on the fake device, and one hand-off between them at a time.
 */
#ifndef KVF_TEST_LANES_PAIR_H
#define KVF_TEST_LANES_PAIR_H
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>
#include "handoff.h"
#include "kvf/log.h"
#include "kvf/rng.h"
#include "kvf/transport.h"
#include "loop.h"
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

enum { LAYERS = 4, PAGE_BYTES = 4096, POOL = 64, BLOCKS = 16, SLOTS = 3, SLOT_PAGES = 8, PAGES = BLOCKS * LAYERS };
static const kvf_identity model = {
    .wire_version = 1, .layers = LAYERS, .page_bytes = PAGE_BYTES, .kv_type = "f16", .numerics = "t"};
static const uint8_t secret[16] = {4, 2};

/* Two nodes of one process, and one hand-off between them at a time. */
typedef struct {
    struct event_base *base;
    const char *kind; /* "cuda_ipc", "nccl", "shm", "tcp" */
    uint32_t slots, comms_max;
    kvf_time_ns idle_ns;
    char names[2][16];
    handoff_node p, d;
    test_device devices[2];
    kvf_tx_id tx;
    uint64_t grant, serial;
    kvf_block_id source[BLOCKS], landed[BLOCKS];
    uint32_t landed_count, bad, downs_at_end;
    bool ended, committed, lost, patient;
    kvf_status result;
} pair;

static inline void fill(uint8_t *page, uint64_t seed, uint32_t block, uint32_t layer) {
    for (uint32_t i = 0; i < PAGE_BYTES; i += 8) kvf_put_le64(page + i, kvf_rng_at(seed, block * LAYERS + layer, i));
}
static inline void on_rx(void *self, const kvf_rx_act *a) {
    pair *t = self;
    static uint8_t want[PAGE_BYTES];
    if (a->kind != KVF_RX_COMMITTED) {
        t->lost = true;
        return;
    }
    t->committed = true;
    t->landed_count = a->blocks_count;
    for (uint32_t b = 0; b < a->blocks_count; b++) {
        t->landed[b] = a->blocks[b];
        for (uint32_t l = 0; l < LAYERS; l++) {
            fill(want, t->serial, a->logical[b], l);
            t->bad += memcmp(want, handoff_page(&t->d, a->blocks[b], l), PAGE_BYTES) != 0;
        }
    }
}
static inline void on_tx_end(void *self, const kvf_tx_act *a) {
    pair *t = self;
    t->ended = true;
    t->downs_at_end = t->p.downs;
    t->result = a->result;
    for (uint32_t b = BLOCKS; b-- > 0;) kvf_kv_unpin(t->p.kv, t->source[b]);
}

static inline kvf_endpoint_options options_of(pair *t, const char *node, uint64_t epoch) {
    return (kvf_endpoint_options){.base = t->base,
        .node = node,
        .epoch = epoch,
        .identity = &model,
        .listen_tcp = "127.0.0.1:0",
        .listen_shm = true,
        .connect_timeout_ns = 20 * KVF_NS_PER_S,
        .heartbeat_ns = 10 * KVF_NS_PER_MS,
        .peer_timeout_ns = 60 * KVF_NS_PER_S};
}
static inline bool is(const pair *t, const char *kind) { return strcmp(t->kind, kind) == 0; }
static inline test_device *device_of(pair *t, int side) {
    test_device *d = &t->devices[side];
    test_device_open(d, is(t, "cuda_ipc"), is(t, "nccl"));
    d->pages.slots = t->slots;
    d->pages.comms_max = t->comms_max;
    d->pages.idle_ns = t->idle_ns;
    d->pages.slot_bytes = SLOT_PAGES * PAGE_BYTES;
    d->pages.stall_ns = (t->patient ? 10000 : 200) * KVF_NS_PER_MS;
    d->pages.setup_ns = (t->patient ? 20000 : 400) * KVF_NS_PER_MS;
    return d;
}
static inline void node_open(pair *t, int side, uint64_t epoch, kvf_time_ns relink_ns) {
    handoff_node *n = side ? &t->d : &t->p;
    kvf_error err;
    n->device = device_of(t, side);
    n->self = t;
    n->on_rx = on_rx;
    n->on_tx_end = on_tx_end;
    kvf_endpoint_options o = options_of(t, t->names[side], epoch);
    if (handoff_open(n, &o, POOL, BLOCKS, t->slots * SLOT_PAGES, relink_ns, &err) != KVF_OK)
        fail_msg("%s", err.message);
    assert_int_equal(kvf_endpoint_pages_held(n->e), t->slots * SLOT_PAGES);
}
static inline void pair_open_as(pair *t, int index) {
    snprintf(t->names[0], sizeof t->names[0], "p%d", index);
    snprintf(t->names[1], sizeof t->names[1], "d%d", index);
    node_open(t, 0, 11, 30 * KVF_NS_PER_S);
    node_open(t, 1, 22, 0);
}
static inline void pair_open_slots(pair *t, const char *kind, struct event_base *base, int index, uint32_t slots) {
    *t = (pair){.base = base, .kind = kind, .slots = slots};
    pair_open_as(t, index);
}
static inline void pair_open(pair *t, const char *kind, struct event_base *base, int index) {
    pair_open_slots(t, kind, base, index, SLOTS);
}
static inline void dial(pair *from, pair *to) {
    kvf_link_id link;
    bool near = is(to, "cuda_ipc") || is(to, "shm");
    assert_int_equal(kvf_endpoint_connect(from->p.e, to->names[1], 22, kvf_endpoint_address(to->d.e),
                         near ? kvf_endpoint_local_address(to->d.e) : "", kvf_os_host_id(), &link),
        KVF_OK);
}
static inline void pair_dial(pair *t) { dial(t, t); }
static inline void pair_link(pair *t) {
    pair_dial(t);
    LOOP_UNTIL(t->base, t->p.link != KVF_LINK_NONE);
}
static inline void audit(const pair *t) {
    kvf_error err;
    if (kvf_kv_audit(t->p.kv, &err) || kvf_kv_audit(t->d.kv, &err) || kvf_rx_audit(t->d.rx, &err) ||
        kvf_tx_audit(t->p.tx, &err))
        fail_msg("%s", err.message);
}
static inline uint32_t free_blocks(const handoff_node *n) {
    kvf_kv_counts k;
    kvf_kv_count(n->kv, &k);
    return k.free;
}
static inline void offer(pair *t) {
    uint32_t missing[BLOCKS];
    for (uint32_t b = 0; b < BLOCKS; b++) missing[b] = b;
    t->serial++;
    t->ended = t->committed = t->lost = false;
    assert_int_equal(kvf_kv_book(t->d.kv, BLOCKS), KVF_OK);
    assert_int_equal(
        kvf_rx_offer(t->d.rx, kvf_os_now_ns(), (kvf_request_id){1, t->serial}, 1, secret, missing, BLOCKS, &t->grant),
        KVF_OK);
}
static inline void send_from(pair *t) {
    uint32_t missing[BLOCKS];
    for (uint32_t b = 0; b < BLOCKS; b++) missing[b] = b;
    assert_int_equal(kvf_tx_start(t->p.tx, kvf_os_now_ns(), (kvf_request_id){1, t->serial}, 1, t->grant, secret,
                         missing, BLOCKS, &t->tx),
        KVF_OK);
    assert_int_equal(kvf_kv_book(t->p.kv, BLOCKS), KVF_OK);
    for (uint32_t b = 0; b < BLOCKS; b++) {
        assert_int_equal(kvf_kv_take(t->p.kv, &t->source[b]), KVF_OK);
        kvf_tx_set_block(t->p.tx, t->tx, b, t->source[b]);
    }
    kvf_tx_set_link(t->p.tx, kvf_os_now_ns(), t->tx, t->p.link, t->p.nonces[t->p.link & 0xff]);
}
/* A few blocks at a time, with turns of the loop between them. */
static inline void compute_layer(pair *t, uint32_t l) {
    for (uint32_t b = 0; b < BLOCKS; b++) fill(handoff_page(&t->p, t->source[b], l), t->serial, b, l);
    for (uint32_t b = 0; b < BLOCKS; b += 4) {
        kvf_tx_pages_ready(t->p.tx, t->tx, b, 4, l);
        handoff_pump(&t->p);
        loop_rounds(t->base, 2);
    }
}
static inline void compute(pair *t) {
    for (uint32_t l = 0; l < LAYERS; l++) compute_layer(t, l);
    kvf_tx_finish(t->p.tx, kvf_os_now_ns(), t->tx, (kvf_span){"first", 5});
    handoff_pump(&t->p);
}
static inline void ship_begin(pair *t) {
    offer(t);
    send_from(t);
    compute(t);
}
static inline void ship_end(pair *t) {
    LOOP_UNTIL(t->base, t->ended);
    assert_int_equal(t->result, KVF_OK);
    assert_true(t->committed);
    assert_int_equal(t->bad, 0);
    audit(t);
    for (uint32_t b = t->landed_count; b-- > 0;) kvf_kv_unpin(t->d.kv, t->landed[b]);
    assert_int_equal(free_blocks(&t->p), POOL);
    assert_int_equal(free_blocks(&t->d), POOL);
}
/* The link has gone in the middle: a new one, and the hand-off goes on. */
static inline void ship_again(pair *t) {
    LOOP_UNTIL(t->base, t->p.link == KVF_LINK_NONE);
    pair_link(t);
    kvf_tx_set_link(t->p.tx, kvf_os_now_ns(), t->tx, t->p.link, t->p.nonces[t->p.link & 0xff]);
    handoff_pump(&t->p);
}
static inline void pair_close(pair *t) {
    handoff_close(&t->p);
    handoff_close(&t->d);
}

static inline int clean(void **state) {
    fake_cuda_reset();
    return 0;
}
static inline int clean_end(void **state) {
    fake_cuda_counts c;
    fake_cuda_reset();
    fake_cuda_count(&c);
    if (c.comms + c.allocations + c.host_allocations + c.streams + c.events + c.opened_handles == 0) return 0;
    print_error("left: %u comms, %u + %u allocations, %u streams, %u events, %u handles\n", c.comms, c.allocations,
        c.host_allocations, c.streams, c.events, c.opened_handles);
    return -1;
}

/* ---- a sender that is a process of its own: main with "child" as its first argument ---- */
/* argv: kind, address, local address, grant, serial. Sends the pages and ends well, or is killed on the way. */
static inline int child_main(char **argv) {
    static pair t;
    t = (pair){.base = event_base_new(), .kind = argv[2], .slots = SLOTS, .serial = strtoull(argv[6], NULL, 10)};
    snprintf(t.names[0], sizeof t.names[0], "p1");
    node_open(&t, 0, 100 + t.serial, 0);
    fake_cuda_settings s;
    fake_cuda_get(&s);
    s.free_at_once = false;
    fake_cuda_set(&s);
    t.grant = strtoull(argv[5], NULL, 10);
    kvf_link_id link;
    if (kvf_endpoint_connect(t.p.e, "d1", 22, argv[3], argv[4], kvf_os_host_id(), &link) != KVF_OK) return 2;
    LOOP_UNTIL(t.base, t.p.link != KVF_LINK_NONE || t.p.downs);
    if (t.p.downs) return 3;
    send_from(&t);
    compute(&t);
    LOOP_UNTIL(t.base, t.ended);
    handoff_close(&t.p);
    event_base_free(t.base);
    return t.result == KVF_OK ? 0 : 4;
}
static inline pid_t child_start(pair *t, const char *faults) {
    char grant[24], serial[24];
    bool near = is(t, "cuda_ipc") || is(t, "shm");
    snprintf(grant, sizeof grant, "%llu", (unsigned long long)t->grant);
    snprintf(serial, sizeof serial, "%llu", (unsigned long long)t->serial);
    const char *local = near ? kvf_endpoint_local_address(t->d.e) : "";
    fflush(NULL);
    pid_t child = fork();
    assert_true(child >= 0);
    if (child == 0) {
        if (faults) setenv("KVF_FAKE_CUDA_FAULTS", faults, 1);
        execl("/proc/self/exe", "test_lanes", "child", t->kind, kvf_endpoint_address(t->d.e), local, grant, serial,
            (char *)NULL);
        _exit(9);
    }
    return child;
}
static inline int child_end(pair *t, pid_t child) {
    int status = 0;
    pid_t done = 0;
    LOOP_UNTIL(t->base, (done = waitpid(child, &status, WNOHANG)) == child);
    return status;
}

/* Lost devices are expected here. */
static inline void say_nothing(void *self, kvf_log_level level, const char *component, const char *message) {
    (void)self;
    (void)level;
    (void)component;
    (void)message;
}
#endif
