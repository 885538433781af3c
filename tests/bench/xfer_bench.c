/* xfer_bench - how fast pages move between two processes of this host: `xfer_bench [pages [page_bytes]]` prints GB/s
 * for shm, tcp and tls (TCP under TLS 1.3), CRC on both sides included, and tls as a share of tcp. `xfer_bench --crc
 * [pages [page_bytes]]` prints what checking costs beside copying: a plain copy from staging to a page, the same with
 * the CRC made over the copy, as the receiver does, and nanoseconds of CRC a page. A measuring aid, not a test: nothing
 * is asserted about the figures.
 *
 * The child sends one page over and over (its memory is warm, as a page just computed is); the parent copies each into
 * one of 64 pages. */
#include "certs.h"
#include "kvf/endpoint.h"
#include "kvf/log.h"
#include "kvf/os.h"
#include <event2/event.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

enum { TARGETS = 64 };
typedef struct {
    kvf_endpoint *e;
    struct event_base *base;
    kvf_link_id link;
    bool up, down, room;
    uint32_t page_bytes, pages, sent, bad, expected;
    uint8_t *memory;
    kvf_time_ns first_ns, last_ns;
} bench;

static void on_up(void *self, kvf_link_id link, const char *peer, uint64_t epoch, const uint8_t nonce[16],
    bool outgoing, const char *transport) {
    bench *b = self;
    b->link = link;
    b->up = b->room = true;
}
static void on_down(void *self, kvf_link_id link, const char *peer, kvf_status reason, const char *text) {
    bench *b = self;
    b->down = true;
    if (b->sent < b->expected && b->pages < b->expected) fprintf(stderr, "link down: %s\n", text);
    event_base_loopbreak(b->base);
}
static void on_frame(void *self, kvf_link_id link, const kvf_frame *f) {}
static kvf_page_verdict on_page(void *self, kvf_link_id link, const kvf_page_header *h, void **target, kvf_landing *l) {
    bench *b = self;
    if (b->pages == 0) b->first_ns = kvf_os_now_ns();
    *target = b->memory + (size_t)(h->block % TARGETS) * b->page_bytes;
    *l = (kvf_landing){.grant = h->grant};
    return KVF_PAGE_ACCEPT;
}
static void on_landed(void *self, kvf_link_id link, const kvf_landing *l, bool crc_ok) {
    bench *b = self;
    b->bad += !crc_ok;
    if (++b->pages < b->expected) return;
    b->last_ns = kvf_os_now_ns();
    event_base_loopbreak(b->base);
}
static void on_room(void *self, kvf_link_id link) { ((bench *)self)->room = true; }

static kvf_status bench_open(
    bench *b, const char *node, uint64_t epoch, kvf_tls_store *tls, uint32_t page_bytes, uint32_t pages) {
    *b = (bench){.base = event_base_new(), .page_bytes = page_bytes, .expected = pages};
    b->memory = calloc(TARGETS, page_bytes);
    kvf_identity model = {.wire_version = 1, .page_bytes = page_bytes, .numerics = "bench", .kv_type = "f16"};
    kvf_endpoint_options o = {.base = b->base,
        .node = node,
        .epoch = epoch,
        .identity = &model,
        .listen_tcp = "127.0.0.1:0",
        .tls = tls,
        .listen_shm = true,
        .connect_timeout_ns = 10 * KVF_NS_PER_S,
        .heartbeat_ns = KVF_NS_PER_S,
        .peer_timeout_ns = 60 * KVF_NS_PER_S,
        .callbacks = {b, on_up, on_down, on_frame, on_page, on_landed, on_room}};
    kvf_error err;
    kvf_status status = b->base && b->memory ? kvf_endpoint_create(&o, &b->e, &err) : KVF_ERR_NO_MEMORY;
    if (status != KVF_OK) fprintf(stderr, "%s\n", status == KVF_ERR_NO_MEMORY ? "no memory" : err.message);
    return status;
}

static int send_all(const char *address, const char *local, kvf_tls_store *tls, uint32_t pages, uint32_t page_bytes) {
    bench b;
    if (bench_open(&b, "p1", 11, tls, page_bytes, pages) != KVF_OK) return 1;
    for (size_t i = 0; i < (size_t)TARGETS * page_bytes; i++) b.memory[i] = (uint8_t)(i * 7);
    if (kvf_endpoint_connect(b.e, "d1", 22, address, local, kvf_os_host_id(), &b.link) != KVF_OK) return 1;
    for (uint32_t n = 0; n < pages && !b.down;) {
        event_base_loop(b.base, b.room ? EVLOOP_NONBLOCK : EVLOOP_ONCE);
        uint32_t crc;
        /* Bursts of 16, as a layer of a chunk becomes ready; one flush for each. */
        for (int burst = 0; b.up && b.room && burst < 16 && n < pages; burst++) {
            kvf_page_header h = {.grant = 1, .block = n, .len_bytes = page_bytes};
            b.room =
                kvf_endpoint_send_page(b.e, b.link, &h, b.memory + (size_t)(n % TARGETS) * page_bytes, &crc) == KVF_OK;
            n += b.room;
            b.sent = n;
        }
        kvf_endpoint_flush(b.e);
    }
    while (!b.down) event_base_loop(b.base, EVLOOP_ONCE); /* the receiver closes when it has everything */
    return 0;
}

/* Of both processes, the sender once it has been waited for. Unlike GB/s it says something on a busy machine too. */
static double cpu_seconds(void) {
    double total = 0;
    for (int who = RUSAGE_CHILDREN; who <= RUSAGE_SELF; who++) {
        struct rusage u;
        getrusage(who, &u);
        total +=
            (double)(u.ru_utime.tv_sec + u.ru_stime.tv_sec) + (double)(u.ru_utime.tv_usec + u.ru_stime.tv_usec) / 1e6;
    }
    return total;
}

typedef struct {
    double gb_per_s, cpu_per_gb; /* 0: it failed */
} figures;

static figures measure(const char *kind, kvf_tls_store *tls, uint32_t pages, uint32_t page_bytes) {
    double cpu_before = cpu_seconds();
    bench d;
    if (bench_open(&d, "d1", 22, tls, page_bytes, pages) != KVF_OK) return (figures){0};
    char address[KVF_ADDRESS_MAX], local[KVF_ADDRESS_MAX];
    snprintf(address, sizeof address, "%s", kvf_endpoint_address(d.e));
    snprintf(local, sizeof local, "%s", *kind == 's' ? kvf_endpoint_local_address(d.e) : "");
    fflush(stdout);
    pid_t child = fork();
    if (child == 0) _exit(send_all(address, local, tls, pages, page_bytes));
    event_base_dispatch(d.base);
    double seconds = (double)(d.last_ns - d.first_ns) / 1e9, bytes = (double)pages * page_bytes;
    bool fine = d.pages == pages && d.bad == 0;
    if (!fine) printf("%-4s failed: %u of %u pages, %u spoilt\n", kind, d.pages, pages, d.bad);
    kvf_endpoint_destroy(d.e);
    event_base_free(d.base);
    free(d.memory);
    int status = 1;
    waitpid(child, &status, 0);
    if (!fine || status != 0) return (figures){0};
    figures f = {bytes / seconds / 1e9, (cpu_seconds() - cpu_before) / (bytes / 1e9)};
    printf("%-4s %u pages of %u bytes: %.2f GB/s, %.0f pages/s, %.2f s of CPU per GB\n", kind, pages, page_bytes,
        f.gb_per_s, pages / seconds, f.cpu_per_gb);
    return f;
}

static kvf_tls_store *make_store(certs *c) {
    char cert[CERTS_PATH_MAX], key[CERTS_PATH_MAX], ca[CERTS_PATH_MAX];
    kvf_tls_store *store = NULL;
    kvf_error err = {0};
    certs_open(c);
    certs_authority(c, "ca");
    certs_simple(c, "ca", "node", "DNS:p1,DNS:d1");
    kvf_tls_files f = {certs_path(c, "node.pem", cert), certs_path(c, "node.key", key), certs_path(c, "ca.pem", ca)};
    if (kvf_tls_store_open(&f, &store, &err) != KVF_OK) fprintf(stderr, "%s\n", err.message);
    return store;
}

/* Nanoseconds a page of one pass over all pages: from a ring larger than the caches into scattered pages, as a hand-off
 * of a long prompt is. */
typedef enum { PASS_COPY, PASS_COPY_AND_CRC, PASS_CRC_COLD, PASS_CRC_WARM, PASSES } pass_kind;
static double pass(const uint8_t *ring, uint8_t *target, uint32_t pages, uint32_t page_bytes, pass_kind kind) {
    uint32_t sum = 0;
    kvf_time_ns start_ns = kvf_os_now_ns();
    for (uint32_t n = 0; n < pages; n++) {
        kvf_page_header h = {.grant = 1, .block = n, .len_bytes = page_bytes};
        const uint8_t *from = ring + (kind == PASS_CRC_WARM ? 0 : (size_t)n * page_bytes);
        uint8_t *page = target + (size_t)(n * 7919u % pages) * page_bytes;
        if (kind <= PASS_COPY_AND_CRC) memcpy(page, from, page_bytes);
        sum += kind == PASS_COPY ? page[n % page_bytes] : kvf_page_crc(&h, 22, kind == PASS_COPY_AND_CRC ? page : from);
    }
    double ns = (double)(kvf_os_now_ns() - start_ns) / pages;
    return sum == 1 ? ns + 1e-9 : ns; /* the sum is used, so that the work is not left out */
}
static int measure_crc(uint32_t pages, uint32_t page_bytes) {
    uint8_t *ring = malloc((size_t)pages * page_bytes), *target = calloc(pages, page_bytes);
    if (!ring || !target) {
        fprintf(stderr, "no memory\n");
        free(ring);
        free(target);
        return 1;
    }
    for (size_t i = 0; i < (size_t)pages * page_bytes; i++) ring[i] = (uint8_t)(i * 31 >> 3);
    double best[PASSES] = {0};
    for (int round = 0; round < 15; round++) /* in turn, so that all of them meet the same neighbours */
        for (int k = 0; k < PASSES; k++) {
            double ns = pass(ring, target, pages, page_bytes, (pass_kind)k);
            if (round == 0 || ns < best[k]) best[k] = ns;
        }
    printf(
        "crc %u pages of %u bytes: copy %.0f ns a page (%.1f GB/s), copy and crc %.0f ns, ratio %.2f; crc alone: from "
        "memory %.0f, from cache %.0f ns a page\n",
        pages, page_bytes, best[PASS_COPY], page_bytes / best[PASS_COPY], best[PASS_COPY_AND_CRC],
        best[PASS_COPY_AND_CRC] / best[PASS_COPY], best[PASS_CRC_COLD], best[PASS_CRC_WARM]);
    free(ring);
    free(target);
    return 0;
}

int main(int argc, char **argv) {
    bool crc = argc > 1 && strcmp(argv[1], "--crc") == 0;
    argc -= crc;
    argv += crc;
    uint32_t pages = argc > 1 ? (uint32_t)strtoul(argv[1], NULL, 10) : crc ? 1890 : 200000;
    uint32_t page_bytes = argc > 2 ? (uint32_t)strtoul(argv[2], NULL, 10) : 12288;
    if (pages == 0 || page_bytes == 0) {
        fprintf(stderr, "usage: xfer_bench [--crc] [pages [page_bytes]]\n");
        return 2;
    }
    if (crc) return measure_crc(pages, page_bytes);
    kvf_log_set_level(KVF_LOG_ERROR);
    certs folder;
    kvf_tls_store *store = make_store(&folder);
    figures shm = measure("shm", NULL, pages, page_bytes), tcp = measure("tcp", NULL, pages, page_bytes), tls = {0};
    if (store) tls = measure("tls", store, pages, page_bytes);
    if (tcp.gb_per_s > 0 && tls.gb_per_s > 0)
        printf("tls / tcp: %.2f of its GB/s, %.2f times its CPU\n", tls.gb_per_s / tcp.gb_per_s,
            tls.cpu_per_gb / tcp.cpu_per_gb);
    kvf_tls_store_close(store);
    certs_close(&folder);
    return shm.gb_per_s > 0 && tcp.gb_per_s > 0 && tls.gb_per_s > 0 ? 0 : 1;
}
