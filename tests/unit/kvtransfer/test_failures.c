/* Each allocation of ours and of libevent fails in turn while two endpoints pair, ship a page and part: no crash, no
 * leak (the sanitizer build tells), no descriptor left, and whoever is told anything is told once. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>
#include "kvf/endpoint.h"
#include "kvf/log.h"
#include "kvf/transport.h"
#include "counting_node.h"
#include "loop.h"
#include "stores.h"

static long countdown = -1; /* -1: nothing fails */
static long allocations;
static bool fails_now(void) {
    allocations++;
    return countdown >= 0 && countdown-- == 0;
}

void *__real_malloc(size_t n);
void *__real_calloc(size_t n, size_t size);
void *__wrap_malloc(size_t n);
void *__wrap_calloc(size_t n, size_t size);
void *__wrap_malloc(size_t n) { return fails_now() ? NULL : __real_malloc(n); }
void *__wrap_calloc(size_t n, size_t size) { return fails_now() ? NULL : __real_calloc(n, size); }
static void *ev_malloc(size_t n) { return fails_now() ? NULL : __real_malloc(n); }
static void *ev_realloc(void *p, size_t n) { return fails_now() ? NULL : realloc(p, n); }

static kvf_tls_store *tls;

static bool one_life(struct event_base *base, kvf_loopback *hub, const char *kind) {
    node p = {0}, d = {0};
    kvf_endpoint *pe = NULL, *de = NULL;
    kvf_endpoint_options o = {.base = base,
        .node = "p1",
        .epoch = 1,
        .identity = &counting_model,
        .listen_tcp = "127.0.0.1:0",
        .tls = strcmp(kind, "tls") == 0 ? tls : NULL,
        .listen_shm = true,
        .ring_bytes = 1 << 17,
        .connect_timeout_ns = KVF_NS_PER_S,
        .heartbeat_ns = KVF_NS_PER_S,
        .peer_timeout_ns = KVF_NS_PER_S,
        .callbacks = counting(&p),
        .loopback = hub};
    kvf_error err;
    kvf_status status = kvf_endpoint_create(&o, &pe, &err);
    o.node = "d1";
    o.epoch = 2;
    o.callbacks.self = &d;
    if (status == KVF_OK) status = kvf_endpoint_create(&o, &de, &err);
    kvf_link_id link;
    if (status == KVF_OK)
        status = kvf_endpoint_connect(pe, "d1", 2, strcmp(kind, "loopback") ? kvf_endpoint_address(de) : "loopback:d1",
            strcmp(kind, "shm") ? "" : kvf_endpoint_local_address(de), kvf_os_host_id(), &link);
    /* TLS needs more rounds than others, and its own memory does not fail here. */
    kvf_time_ns until = kvf_os_now_ns() + KVF_NS_PER_S;
    loop_rounds(base, 20);
    while (status == KVF_OK && countdown < 0 && !(p.ups && d.ups) && !p.downs && kvf_os_now_ns() < until)
        event_base_loop(base, EVLOOP_NONBLOCK);
    static const uint8_t page[64] = {7};
    const kvf_page_header h = {.grant = 1, .len_bytes = 64};
    uint32_t crc;
    if (p.ups) (void)kvf_endpoint_send_page(pe, link, &h, page, &crc);
    loop_rounds(base, 10);
    kvf_endpoint_destroy(pe);
    loop_rounds(base, 10);
    kvf_endpoint_destroy(de);
    assert_in_range(p.ups, 0, 1);
    assert_in_range(p.downs, 0, 1);
    assert_in_range(d.ups, 0, 1);
    assert_in_range(d.downs, 0, 1);
    assert_true(p.downs == 0 || status == KVF_OK);
    return d.pages == 1;
}

static void each_allocation_fails_in_turn(void **state) {
    static const char *const kinds[] = {"loopback", "shm", "tcp", "tls"};
    for (int k = 0; k < 4; k++) {
        struct event_base *base = event_base_new();
        kvf_loopback *hub = kvf_loopback_create();
        assert_true(one_life(base, hub, kinds[k])); /* and the tables of the base have grown to their size */
        int before = open_descriptors();
        allocations = 0;
        assert_true(one_life(base, hub, kinds[k]));
        long total = allocations;
        assert_in_range(total, 10, 1000);
        int survived = 0;
        for (long n = 0; n < total; n++) {
            countdown = n;
            survived += one_life(base, hub, kinds[k]);
            countdown = -1;
            loop_rounds(base, 5);
            assert_int_equal(open_descriptors(), before);
        }
        assert_true(survived < total); /* some failures did matter */
        assert_true(one_life(base, hub, kinds[k]));
        kvf_loopback_destroy(hub);
        event_base_free(base);
    }
}

static void no_log(int severity, const char *message) {}

int main(void) {
    kvf_log_set_level(KVF_LOG_ERROR);
    event_set_mem_functions(ev_malloc, ev_realloc, free);
    event_set_log_callback(no_log);
    const struct CMUnitTest tests[] = {cmocka_unit_test(each_allocation_fails_in_turn)};
    one_store store;
    one_store_open(&store, "DNS:p1,DNS:d1");
    tls = store.tls;
    int status = cmocka_run_group_tests(tests, NULL, NULL);
    one_store_close(&store);
    return status;
}
