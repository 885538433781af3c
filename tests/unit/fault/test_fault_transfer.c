/* Endpoints and transports with each call of ours and of libevent's constructors failing in turn while two of them are
 * made, pair, ship a page and an answer, and part. Whoever is told anything is told once; what is not delivered is told
 * as a link that is down; the same two endpoints work again afterwards. (test_failures.c fails libevent's own memory.)
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>
#include "fault.h"
#include "kvf/endpoint.h"
#include "kvf/log.h"
#include "../kvtransfer/counting_node.h"
#include "../kvtransfer/loop.h"

typedef struct {
    struct event_base *base;
    struct event *wake;
    bool shm;
    node p, d;
    kvf_endpoint *pe, *de;
} pair;

/* With a waker that was made before anything may fail; a run that hangs is killed by fault.c. */
#define WAIT(x, condition)                                                                                             \
    while (!(condition)) event_base_loop((x)->base, EVLOOP_ONCE)

static pair *pair_new(bool shm) {
    static const struct timeval period = {.tv_usec = 20000};
    pair *x = calloc(1, sizeof *x);
    x->base = event_base_new();
    x->shm = shm;
    x->wake = event_new(x->base, -1, EV_PERSIST, loop_wake, NULL);
    event_add(x->wake, &period);
    return x;
}
static void pair_free(pair *x) {
    kvf_endpoint_destroy(x->pe);
    kvf_endpoint_destroy(x->de);
    loop_rounds(x->base, 10);
    event_free(x->wake);
    event_base_free(x->base);
    free(x);
}

static kvf_status make(pair *x, const char *name, uint64_t epoch, node *n, kvf_endpoint **out, kvf_error *err) {
    kvf_endpoint_options o = {.base = x->base,
        .node = name,
        .epoch = epoch,
        .identity = &counting_model,
        .listen_tcp = "127.0.0.1:0",
        .listen_shm = true,
        .ring_bytes = 1 << 17,
        .connect_timeout_ns = KVF_NS_PER_S / 4,
        .heartbeat_ns = KVF_NS_PER_S / 8,
        .peer_timeout_ns = KVF_NS_PER_S,
        .callbacks = counting(n)};
    return kvf_endpoint_create(&o, out, err);
}

static kvf_status ship(pair *x) {
    static const uint8_t page[64] = {7};
    kvf_link_id link;
    uint32_t crc;
    x->p.ups = x->p.downs = x->d.ups = x->d.downs = x->p.frames = x->d.pages = 0;
    kvf_status status = kvf_endpoint_connect(x->pe, "d1", 2, kvf_endpoint_address(x->de),
        x->shm ? kvf_endpoint_local_address(x->de) : "", kvf_os_host_id(), &link);
    if (status != KVF_OK) return status;
    WAIT(x, x->p.ups || x->p.downs);
    if (x->p.downs) return x->p.reason;
    status = kvf_endpoint_send_page(x->pe, link, &(kvf_page_header){.grant = 1, .len_bytes = 64}, page, &crc);
    if (status == KVF_OK) {
        kvf_endpoint_flush(x->pe);
        WAIT(x, x->d.pages || x->p.downs || x->d.downs);
    }
    if (x->d.pages && !x->d.downs) {
        status = kvf_endpoint_send_frame(x->de, x->d.link, &(kvf_frame){.kind = KVF_FRAME_RENEW});
        kvf_endpoint_flush(x->de);
        WAIT(x, x->p.frames || x->p.downs);
    }
    assert_in_range(x->p.ups, 0, 1);
    assert_in_range(x->p.downs, 0, 1);
    bool whole = x->d.pages == 1 && x->p.frames > 0;
    if (!x->p.downs) kvf_endpoint_close(x->pe, link);
    WAIT(x, x->d.downs == x->d.ups);
    return whole ? KVF_OK : status != KVF_OK ? status : x->p.downs ? x->p.reason : KVF_ERR_PEER_LOST;
}

/* Made, used and dropped while calls fail. */
static kvf_status one_life(void *self, kvf_error *err) {
    pair *x = self;
    kvf_status status = make(x, "p1", 1, &x->p, &x->pe, err);
    if (status == KVF_OK) status = make(x, "d1", 2, &x->d, &x->de, err);
    if (status == KVF_OK) status = ship(x);
    kvf_endpoint_destroy(x->pe);
    loop_rounds(x->base, 10);
    kvf_endpoint_destroy(x->de);
    loop_rounds(x->base, 10);
    x->pe = x->de = NULL;
    return status;
}

/* Endpoints that stay: only one life of a link meets the failure, and the next link works. */
static kvf_status one_link(void *self, kvf_error *err) {
    pair *x = self;
    (void)err;
    kvf_status status = ship(x);
    loop_rounds(x->base, 10);
    return status;
}

static void lives(void **state) {
    (void)state;
    for (int shm = 0; shm < 2; shm++) {
        pair *x = pair_new(shm);
        fault_each(&(fault_scenario){.name = shm ? "shm, endpoints" : "tcp, endpoints",
            .run = one_life,
            .self = x,
            .input_may_be_blamed = shm}); /* a ring whose seals cannot be read is not believed */
        pair_free(x);
    }
}

static void links(void **state) {
    (void)state;
    for (int shm = 0; shm < 2; shm++) {
        pair *x = pair_new(shm);
        kvf_error err;
        assert_int_equal(make(x, "p1", 1, &x->p, &x->pe, &err), KVF_OK);
        assert_int_equal(make(x, "d1", 2, &x->d, &x->de, &err), KVF_OK);
        fault_each(&(fault_scenario){
            .name = shm ? "shm, a link" : "tcp, a link", .run = one_link, .self = x, .input_may_be_blamed = shm});
        pair_free(x);
    }
}

int main(void) {
    kvf_log_set_level(KVF_LOG_ERROR);
    const struct CMUnitTest tests[] = {cmocka_unit_test(lives), cmocka_unit_test(links)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
