/* What goes wrong with devices: peers that die at every point, calls that never return, errors of either library, lanes
 * that cannot be made, peers that do not keep to the slots, an end in the middle. And what holding pages back promises:
 * few transfers. */
#include "lanes_pair.h"

/* ---------------------------------------------------------------- few transfers */
static void a_handoff_takes_few_transfers_however_its_layers_come(void **state) {
    static const char *const kinds[] = {"nccl", "cuda_ipc"};
    for (int i = 0; i < 2; i++) {
        struct event_base *base = event_base_new();
        pair t;
        fake_cuda_counts before, after;
        /* So many slots that nothing is gathered for want of one. */
        pair_open_slots(&t, kinds[i], base, 1, 8);
        pair_link(&t);
        assert_string_equal(t.p.transport, kinds[i]);
        for (int n = 0; n < 5; n++) {
            fake_cuda_count(&before);
            ship_begin(&t);
            ship_end(&t);
            fake_cuda_count(&after);
            uint64_t transfers = i == 0 ? after.sends - before.sends : (after.kernels - before.kernels) / 2;
            assert_in_range(transfers, 1, (PAGES + SLOT_PAGES - 1) / SLOT_PAGES + 2);
        }
        pair_close(&t);
        event_base_free(base);
    }
}

/* ---------------------------------------------------------------- idle communicators */
static uint32_t comms(void) {
    fake_cuda_counts c;
    fake_cuda_count(&c);
    return c.comms;
}
static void an_idle_communicator_is_closed_and_made_again(void **state) {
    struct event_base *base = event_base_new();
    pair t = {.base = base, .kind = "nccl", .slots = SLOTS, .patient = true, .idle_ns = 150 * KVF_NS_PER_MS};
    pair_open_as(&t, 1);
    for (uint32_t n = 1; n <= 3; n++) {
        pair_link(&t);
        assert_string_equal(t.p.transport, "nccl");
        assert_int_equal(comms(), 2);
        ship_begin(&t);
        ship_end(&t);
        LOOP_UNTIL(base, t.p.link == KVF_LINK_NONE && t.d.downs == n && comms() == 0);
        assert_int_equal(t.p.downs, n);
        assert_int_equal(t.p.reason, KVF_ERR_GONE);
        assert_int_equal(t.d.reason, KVF_ERR_GONE);
        assert_string_equal(t.p.lost, "");
        assert_string_equal(t.d.lost, "");
    }
    pair_close(&t);
    event_base_free(base);
}
static void a_handoff_that_computes_keeps_its_communicator(void **state) {
    struct event_base *base = event_base_new();
    pair t = {.base = base, .kind = "nccl", .slots = SLOTS, .patient = true, .idle_ns = 50 * KVF_NS_PER_MS};
    pair_open_as(&t, 1);
    pair_link(&t);
    offer(&t);
    send_from(&t);
    handoff_pump(&t.p);
    for (uint32_t l = 0; l < LAYERS; l++) {
        kvf_time_ns until = kvf_os_now_ns() + 150 * KVF_NS_PER_MS; /* of computing */
        LOOP_UNTIL(base, kvf_os_now_ns() > until);
        compute_layer(&t, l);
    }
    kvf_tx_finish(t.p.tx, kvf_os_now_ns(), t.tx, (kvf_span){"first", 5});
    handoff_pump(&t.p);
    ship_end(&t);
    assert_int_equal(t.downs_at_end, 0);
    pair_close(&t);
    event_base_free(base);
}
static void link_to(pair *from, pair *to) {
    dial(from, to);
    LOOP_UNTIL(to->base, from->p.link != KVF_LINK_NONE);
}
/* Three callers of one node that may have two communicators. */
static void the_longest_idle_goes_when_there_are_too_many(void **state) {
    struct event_base *base = event_base_new();
    pair t[3];
    for (int i = 0; i < 3; i++) {
        t[i] = (pair){.base = base, .kind = "nccl", .slots = SLOTS, .patient = true, .comms_max = i == 0 ? 2 : 0};
        pair_open_as(&t[i], i + 1);
    }
    pair_link(&t[0]);
    link_to(&t[1], &t[0]);
    assert_string_equal(t[1].p.transport, "nccl");
    ship_begin(&t[0]); /* the second one is idle for longer from now on */
    ship_end(&t[0]);
    link_to(&t[2], &t[0]);
    assert_string_equal(t[2].p.transport, "nccl");
    LOOP_UNTIL(base, t[1].p.link == KVF_LINK_NONE);
    assert_int_equal(t[1].p.reason, KVF_ERR_GONE);
    assert_int_equal(t[0].p.downs, 0);
    for (int i = 2; i >= 0; i--) pair_close(&t[i]);
    event_base_free(base);
}
static void where_none_is_idle_pages_go_over_the_stream(void **state) {
    struct event_base *base = event_base_new();
    pair a = {.base = base, .kind = "nccl", .slots = SLOTS, .patient = true, .comms_max = 1};
    pair b = {.base = base, .kind = "nccl", .slots = SLOTS, .patient = true};
    pair_open_as(&a, 1);
    pair_open_as(&b, 2);
    pair_link(&a);
    offer(&a);
    send_from(&a);
    handoff_pump(&a.p);
    LOOP_UNTIL(base, kvf_rx_uses(a.d.rx, a.d.incoming));
    link_to(&b, &a);
    assert_string_equal(b.p.transport, "tcp");
    assert_int_equal(a.p.downs, 0);
    compute(&a);
    ship_end(&a);
    kvf_endpoint_close(b.p.e, b.p.link);
    b.p.link = KVF_LINK_NONE;
    link_to(&b, &a);
    assert_string_equal(b.p.transport, "nccl");
    LOOP_UNTIL(base, a.p.link == KVF_LINK_NONE);
    pair_close(&b);
    pair_close(&a);
    event_base_free(base);
}
/* The receiver closes what it takes for idle, while the sender is about to post: at every layer. */
static void a_peer_that_closes_as_the_other_posts_costs_a_link_and_no_more(void **state) {
    uint32_t cuts = 0;
    for (uint32_t at = 0; at < 2 * LAYERS; at++) {
        struct event_base *base = event_base_new();
        pair a = {.base = base, .kind = "nccl", .slots = SLOTS, .patient = true, .comms_max = 1};
        pair b = {.base = base, .kind = "nccl", .slots = SLOTS, .patient = true};
        pair_open_as(&a, 1);
        pair_open_as(&b, 2);
        a.d.hides_use = true;
        pair_link(&a);
        offer(&a);
        send_from(&a);
        for (uint32_t l = 0; l < LAYERS; l++) {
            if (at / 2 == l) dial(&b, &a);
            if (at / 2 == l && at % 2) LOOP_UNTIL(base, b.p.link != KVF_LINK_NONE || b.p.downs);
            compute_layer(&a, l);
        }
        kvf_tx_finish(a.p.tx, kvf_os_now_ns(), a.tx, (kvf_span){"first", 5});
        handoff_pump(&a.p);
        LOOP_UNTIL(base, a.ended || a.p.link == KVF_LINK_NONE);
        cuts += !a.ended;
        if (!a.ended) ship_again(&a);
        ship_end(&a);
        assert_string_equal(a.p.lost, "");
        assert_string_equal(a.d.lost, "");
        pair_close(&b);
        pair_close(&a);
        event_base_free(base);
    }
    assert_true(cuts > 0);
}

/* ---------------------------------------------------------------- lanes that cannot be made */
static void a_lane_that_cannot_be_made_leaves_the_stream(void **state) {
    static const struct {
        const char *kind, *call;
        uint32_t nth;
        fake_fault_kind how;
    } faults[] = {{"nccl", "ncclGetUniqueId", 1, FAKE_FAIL}, {"nccl", "ncclCommInitRankConfig", 1, FAKE_FAIL},
        {"nccl", "ncclCommInitRankConfig", 2, FAKE_FAIL}, {"nccl", "ncclSend", 1, FAKE_FAIL},
        {"nccl", "ncclRecv", 2, FAKE_FAIL}, {"nccl", "ncclGroupEnd", 1, FAKE_FAIL},
        {"nccl", "ncclCommGetAsyncError", 2, FAKE_FAIL}, {"cuda_ipc", "cudaIpcGetMemHandle", 1, FAKE_FAIL},
        {"cuda_ipc", "cudaIpcOpenMemHandle", 1, FAKE_FAIL}, {"nccl", "cudaStreamCreateWithPriority", 3, FAKE_FAIL}};
    for (size_t i = 0; i < KVF_COUNT_OF(faults); i++) {
        struct event_base *base = event_base_new();
        pair t;
        pair_open(&t, faults[i].kind, base, 1);
        fake_cuda_fault(faults[i].call, faults[i].nth, faults[i].how, KVF_NCCL_INTERNAL_ERROR);
        pair_link(&t);
        if (strcmp(t.p.transport, faults[i].kind) == 0) fail_msg("%s did not fail", faults[i].call);
        ship_begin(&t);
        ship_end(&t);
        assert_string_equal(t.p.lost, "");
        assert_string_equal(t.d.lost, "");
        pair_close(&t);
        event_base_free(base);
        fake_cuda_reset();
    }
}
static void without_staging_there_is_no_link(void **state) {
    struct event_base *base = event_base_new();
    pair t;
    pair_open(&t, "tcp", base, 1);
    fake_cuda_fault("cudaMalloc", 1, FAKE_FAIL, KVF_CUDA_OUT_OF_MEMORY);
    pair_dial(&t);
    LOOP_UNTIL(base, t.p.downs + t.d.downs > 0);
    LOOP_UNTIL(base, t.p.link == KVF_LINK_NONE);
    pair_close(&t);
    event_base_free(base);
}

/* ---------------------------------------------------------------- errors in the middle */
static void errors_in_the_middle_end_the_link_and_the_next_one_goes_on(void **state) {
    static const struct {
        const char *kind, *call;
        uint32_t nth; /* after the lane was made */
        int error;
    } faults[] = {{"nccl", "ncclSend", 1, KVF_NCCL_SYSTEM_ERROR}, {"nccl", "ncclSend", 3, KVF_NCCL_INTERNAL_ERROR},
        {"nccl", "ncclRecv", 2, KVF_NCCL_INTERNAL_ERROR}, {"nccl", "ncclGroupEnd", 4, KVF_NCCL_SYSTEM_ERROR},
        {"nccl", "ncclCommGetAsyncError", 5, KVF_NCCL_REMOTE_ERROR}, {"nccl", "cudaEventRecord", 2, 400},
        {"nccl", "cudaLaunchHostFunc", 5, 1}, {"cuda_ipc", "cudaLaunchKernel", 3, 1},
        {"cuda_ipc", "cudaEventQuery", 2, 400}, {"shm", "cudaMemcpyAsync", 2, 1}, {"tcp", "cudaLaunchKernel", 4, 1}};
    for (size_t i = 0; i < KVF_COUNT_OF(faults); i++) {
        struct event_base *base = event_base_new();
        pair t;
        pair_open(&t, faults[i].kind, base, 1);
        pair_link(&t);
        fake_cuda_fault(faults[i].call, faults[i].nth, FAKE_FAIL, faults[i].error);
        ship_begin(&t);
        ship_again(&t);
        ship_end(&t);
        assert_string_equal(t.p.lost, "");
        assert_string_equal(t.d.lost, "");
        pair_close(&t);
        event_base_free(base);
        fake_cuda_reset();
    }
}
static void a_sticky_error_is_told_as_a_lost_device(void **state) {
    static const struct {
        const char *kind, *what;
        uint32_t nth;
    } faults[] = {{"nccl", "kernel", 2}, {"cuda_ipc", "kernel", 1}, {"tcp", "copy", 3}, {"nccl", "cudaEventQuery", 3}};
    for (size_t i = 0; i < KVF_COUNT_OF(faults); i++) {
        struct event_base *base = event_base_new();
        pair t;
        pair_open(&t, faults[i].kind, base, 1);
        pair_link(&t);
        fake_cuda_fault(faults[i].what, faults[i].nth, FAKE_STICKY, KVF_CUDA_ILLEGAL_ADDRESS);
        ship_begin(&t);
        LOOP_UNTIL(base, t.p.lost[0] || t.d.lost[0]);
        assert_non_null(strstr(t.p.lost[0] ? t.p.lost : t.d.lost, "illegal memory access"));
        fake_cuda_reset(); /* the process would end; here what is left is cleared away */
        LOOP_UNTIL(base, t.p.link == KVF_LINK_NONE);
        pair_close(&t);
        event_base_free(base);
    }
}

/* ---------------------------------------------------------------- calls that never return */
static void what_never_returns_ends_its_pair_and_no_other(void **state) {
    static const struct {
        const char *kind, *what;
        uint32_t nth;
    } faults[] = {{"nccl", "ncclSend", 2}, {"nccl", "ncclRecv", 1}, {"nccl", "ncclGroupEnd", 2},
        {"nccl", "transfer", 3}, {"nccl", "kernel", 2}, {"nccl", "cudaEventRecord", 3}, {"cuda_ipc", "kernel", 1},
        {"cuda_ipc", "cudaEventQuery", 2}, {"shm", "copy", 2}, {"nccl", "ncclCommGetAsyncError", 3}};
    for (size_t i = 0; i < KVF_COUNT_OF(faults); i++) {
        struct event_base *base = event_base_new();
        pair a, b;
        pair_open(&a, faults[i].kind, base, 1);
        pair_open(&b, faults[i].kind, base, 2);
        pair_link(&a);
        pair_link(&b);
        fake_cuda_fault(faults[i].what, faults[i].nth, FAKE_HANG, 0);
        ship_begin(&a);
        LOOP_UNTIL(base, fake_cuda_hanging() == 1);
        for (int n = 0; n < 3; n++) {
            ship_begin(&b);
            ship_end(&b);
        }
        LOOP_UNTIL(base, a.p.link == KVF_LINK_NONE && (a.p.lost[0] || a.d.lost[0]));
        assert_int_equal(fake_cuda_hanging(), 1); /* nothing but the deadline has helped */
        ship_begin(&b);
        ship_end(&b);
        assert_string_equal(b.p.lost, "");
        assert_string_equal(b.d.lost, "");
        assert_int_equal(b.p.downs + b.d.downs, 0);
        fake_cuda_release();
        ship_again(
            &a); /* a process would have ended; that pages were kept until the device gave them back shows here */
        ship_end(&a);
        pair_close(&a);
        pair_close(&b);
        event_base_free(base);
        fake_cuda_reset();
    }
}
static void a_setup_that_never_returns_leaves_the_stream(void **state) {
    static const char *const calls[] = {"ncclCommInitRankConfig", "ncclGroupEnd", "cudaMalloc"};
    for (size_t i = 0; i < KVF_COUNT_OF(calls); i++) {
        struct event_base *base = event_base_new();
        pair t;
        pair_open(&t, "nccl", base, 1);
        fake_cuda_fault(calls[i], 1, FAKE_HANG, 0);
        pair_link(&t);
        assert_string_equal(t.p.transport, "tcp");
        ship_begin(&t);
        ship_end(&t);
        LOOP_UNTIL(base, t.p.lost[0] || t.d.lost[0]); /* the call is still in there: somebody must know */
        fake_cuda_release();
        pair_close(&t);
        event_base_free(base);
        fake_cuda_reset();
    }
}

/* ---------------------------------------------------------------- an end in the middle */
static void an_end_in_the_middle_leaves_nothing(void **state) {
    static const char *const kinds[] = {"nccl", "cuda_ipc", "shm"};
    fake_cuda_settings s;
    for (int i = 0; i < 18; i++) {
        struct event_base *base = event_base_new();
        pair t;
        fake_cuda_get(&s);
        s.delay_us = 500;
        fake_cuda_set(&s);
        pair_open(&t, kinds[i % 3], base, 1);
        pair_link(&t);
        ship_begin(&t);
        loop_rounds(base, i);
        pair_close(&t); /* endpoints, device memory, libraries */
        event_base_free(base);
        assert_int_equal(clean_end(NULL), 0);
    }
}

/* ---------------------------------------------------------------- a peer that does not keep to the rules */
typedef struct {
    kvf_conn *conn;
    kvf_transport_env env;
    int opened, down;
    kvf_cuda_stream stream;
    kvf_nccl_comm comm;
    uint8_t *memory;
    const test_device *device;
} stranger;
static void s_open(void *self) { ((stranger *)self)->opened++; }
static void s_down(void *self, kvf_status reason, const char *text) {
    (void)reason;
    (void)text;
    ((stranger *)self)->down++;
}
static void s_ignore(void *self) { (void)self; }
static void stranger_say(stranger *s, const kvf_frame *f) {
    uint8_t bytes[KVF_FRAME_BYTES_MAX];
    size_t len = kvf_frame_encode(f, bytes, sizeof bytes);
    assert_true(len > 0);
    s->conn->ops->put(s->conn, bytes, len);
    s->conn->ops->flush(s->conn);
}
/* The next frame that is not a heartbeat; false: the link is over. */
static bool stranger_hear(stranger *s, struct event_base *base, uint8_t bytes[KVF_FRAME_BYTES_MAX], kvf_frame *out) {
    static kvf_page_name names[KVF_FRAME_MISSING_MAX];
    for (;;) {
        kvf_frame_kind kind;
        uint32_t whole = 0;
        LOOP_UNTIL(base, s->down || s->conn->ops->ready(s->conn) >= KVF_FRAME_HEAD_BYTES);
        if (s->conn->ops->ready(s->conn) < KVF_FRAME_HEAD_BYTES) return false;
        s->conn->ops->peek(s->conn, 0, bytes, KVF_FRAME_HEAD_BYTES);
        assert_int_equal(kvf_frame_measure(bytes, PAGE_BYTES, &kind, &whole), KVF_OK);
        LOOP_UNTIL(base, s->conn->ops->ready(s->conn) >= whole);
        s->conn->ops->peek(s->conn, 0, bytes, whole);
        s->conn->ops->consume(s->conn, whole);
        assert_int_equal(kvf_frame_decode((kvf_span){bytes, whole}, names, out), KVF_OK);
        if (kind != KVF_FRAME_RENEW) return true;
    }
}
static void stranger_settle(stranger *s, int result) {
    while (result == KVF_NCCL_IN_PROGRESS) {
        usleep(200);
        assert_int_equal(s->device->nccl.async_error(s->comm, &result), 0);
    }
    assert_int_equal(result, 0);
}
/* Pairs with d over NCCL by its own means, so that it can do anything afterwards. */
static void stranger_pair(stranger *s, pair *t) {
    static uint8_t bytes[KVF_FRAME_BYTES_MAX];
    kvf_error err;
    kvf_frame f;
    *s = (stranger){.env = {.base = t->base, .staging_bytes = 1 << 17}, .device = &t->devices[0]};
    const kvf_nccl_api *nccl = &s->device->nccl;
    const char *address = strchr(kvf_endpoint_address(t->d.e), ':') + 1;
    if (kvf_transport_tcp.dial(&s->env, address, &s->conn, &err) != KVF_OK) fail_msg("%s", err.message);
    s->conn->events = (kvf_conn_events){
        .self = s, .on_open = s_open, .on_down = s_down, .on_readable = s_ignore, .on_room = s_ignore};
    LOOP_UNTIL(t->base, s->opened);
    stranger_say(s, &(kvf_frame){.kind = KVF_FRAME_HELLO,
                        .hello = {.node = "p9",
                            .epoch = 99,
                            .peer = "d1",
                            .peer_epoch = 22,
                            .generation = 1,
                            .lanes = 1u << KVF_LANE_NCCL,
                            .identity = model}});
    assert_true(stranger_hear(s, t->base, bytes, &f) && f.kind == KVF_FRAME_WELCOME);
    assert_int_equal(f.welcome.lanes, 1u << KVF_LANE_NCCL);
    assert_true(stranger_hear(s, t->base, bytes, &f) && f.kind == KVF_FRAME_LANE && f.lane.step == KVF_LANE_OFFER);
    assert_int_equal(f.lane.slots, SLOTS);
    assert_int_equal(f.lane.slot_pages, SLOT_PAGES);
    kvf_nccl_id id;
    kvf_nccl_config config = KVF_NCCL_CONFIG;
    config.blocking = 0;
    memcpy(&id, f.lane.bytes.data, sizeof id);
    assert_int_equal(s->device->cuda.stream_create(&s->stream, 1, 0), 0);
    assert_int_equal(s->device->cuda.memory_take((void **)&s->memory, SLOT_PAGES * PAGE_BYTES), 0);
    stranger_settle(s, nccl->init(&s->comm, 2, id, 0, &config));
    nccl->group_begin();
    nccl->send(s->memory, 16, KVF_NCCL_BYTES, 1, s->comm, s->stream);
    nccl->recv(s->memory + 16, 16, KVF_NCCL_BYTES, 1, s->comm, s->stream);
    stranger_settle(s, nccl->group_end());
    assert_int_equal(s->device->cuda.stream_synchronize(s->stream), 0);
    stranger_say(s, &(kvf_frame){.kind = KVF_FRAME_LANE,
                        .lane = {.step = KVF_LANE_READY, .slots = SLOTS, .slot_pages = SLOT_PAGES}});
    assert_true(stranger_hear(s, t->base, bytes, &f) && f.kind == KVF_FRAME_LANE && f.lane.step == KVF_LANE_READY);
}
static void stranger_close(stranger *s) {
    s->conn->ops->close(s->conn);
    assert_int_equal(s->device->nccl.abort(s->comm), 0);
    assert_int_equal(s->device->cuda.stream_synchronize(s->stream), 0);
    s->device->cuda.stream_destroy(s->stream);
    s->device->cuda.memory_give(s->memory);
}
static void stranger_batch(stranger *s, uint32_t seq, uint32_t count) {
    static uint8_t pages[KVF_FRAME_BATCH_MAX * KVF_FRAME_BATCH_PAGE_BYTES];
    for (uint32_t i = 0; i < count; i++)
        kvf_batch_page_put(
            pages + i * KVF_FRAME_BATCH_PAGE_BYTES, &(kvf_page_header){.grant = 7, .block = i, .layer = 0});
    stranger_say(s, &(kvf_frame){.kind = KVF_FRAME_BATCH, .batch = {seq, count, pages}});
}
static void slots_that_are_overrun_and_sizes_that_differ_end_the_link(void **state) {
    static uint8_t bytes[KVF_FRAME_BYTES_MAX];
    for (int how = 0; how < 5; how++) {
        struct event_base *base = event_base_new();
        pair t;
        stranger s;
        kvf_frame f;
        pair_open(&t, "nccl", base, 1);
        stranger_pair(&s, &t);
        switch (how) {
        case 0: stranger_batch(&s, 1, 1); break; /* not the next one */
        case 1: stranger_batch(&s, 0, SLOT_PAGES + 1); break; /* longer than a slot */
        case 2: /* more than there are slots */
            for (uint32_t seq = 0; seq <= SLOTS; seq++) stranger_batch(&s, seq, 1);
            break;
        case 3: stranger_say(&s, &(kvf_frame){.kind = KVF_FRAME_SLOT, .slot = {0, KVF_SLOT_FREE}}); break;
        default: /* three pages for four */
            stranger_batch(&s, 0, 4);
            assert_true(stranger_hear(&s, base, bytes, &f) && f.kind == KVF_FRAME_SLOT && f.slot.seq == 0);
            assert_int_equal(f.slot.news, KVF_SLOT_POST);
            (void)s.device->nccl.send(s.memory, 3 * PAGE_BYTES, KVF_NCCL_BYTES, 1, s.comm, s.stream);
        }
        LOOP_UNTIL(base, t.d.downs == 1);
        assert_int_equal(t.d.reason, how < 4 ? KVF_ERR_FORMAT : KVF_ERR_IO);
        assert_string_equal(t.d.lost, "");
        stranger_close(&s);
        loop_rounds(base, 20);
        pair_close(&t);
        event_base_free(base);
    }
}
/* Whoever posts nothing after its BATCH: the receive is aborted in time, and nothing is lost by it. */
static void a_send_that_never_comes_is_given_up(void **state) {
    struct event_base *base = event_base_new();
    pair t;
    stranger s;
    pair_open(&t, "nccl", base, 1);
    stranger_pair(&s, &t);
    stranger_batch(&s, 0, 4);
    LOOP_UNTIL(base, t.d.downs == 1);
    assert_int_equal(t.d.reason, KVF_ERR_DEADLINE);
    stranger_close(&s);
    pair_link(&t);
    ship_begin(&t);
    ship_end(&t);
    assert_string_equal(t.d.lost, "");
    pair_close(&t);
    event_base_free(base);
}

/* ---------------------------------------------------------------- a peer that dies */
static void a_peer_that_dies_anywhere_costs_its_link_only(void **state) {
    static const struct {
        const char *kind, *faults;
    } deaths[] = {{"nccl", "cudaMalloc:2=die"}, {"nccl", "ncclCommInitRankConfig:1=die"},
        {"nccl", "ncclGroupEnd:1=die"}, {"nccl", "transfer:1=die"}, {"nccl", "kernel:1=die"}, {"nccl", "kernel:3=die"},
        {"nccl", "ncclSend:2=die"}, {"nccl", "ncclSend:4=die"}, {"nccl", "transfer:2=die"}, {"nccl", "transfer:5=die"},
        {"nccl", "cudaEventQuery:9=die"}, {"cuda_ipc", "cudaIpcOpenMemHandle:1=die"}, {"cuda_ipc", "kernel:1=die"},
        {"cuda_ipc", "kernel:5=die"}, {"cuda_ipc", "cudaEventRecord:2=die"}, {"shm", "copy:1=die"},
        {"tcp", "copy:4=die"}};
    for (size_t i = 0; i < KVF_COUNT_OF(deaths); i++) {
        struct event_base *base = event_base_new();
        pair t = {.base = base, .kind = deaths[i].kind, .slots = SLOTS, .names = {"p1", "d1"}};
        node_open(&t, 1, 22, 0);
        offer(&t);
        int status = child_end(&t, child_start(&t, deaths[i].faults));
        if (!WIFSIGNALED(status) || WTERMSIG(status) != SIGKILL) fail_msg("%s: status %d", deaths[i].faults, status);
        LOOP_UNTIL(base, t.d.downs == 1);
        uint32_t spent = 0;
        if (!t.lost) (void)kvf_rx_revoke(t.d.rx, kvf_os_now_ns(), t.grant, KVF_ERR_PEER_LOST, &spent);
        kvf_kv_unbook(t.d.kv, BLOCKS - spent);
        LOOP_UNTIL(base, free_blocks(&t.d) == POOL); /* whatever the dead one had under way is over */
        assert_string_equal(t.d.lost, "");
        offer(&t);
        status = child_end(&t, child_start(&t, NULL));
        if (status) fail_msg("after %s: status %d", deaths[i].faults, status);
        assert_true(t.committed);
        assert_int_equal(t.bad, 0);
        for (uint32_t b = t.landed_count; b-- > 0;) kvf_kv_unpin(t.d.kv, t.landed[b]);
        assert_int_equal(free_blocks(&t.d), POOL);
        handoff_close(&t.d);
        event_base_free(base);
    }
}

int main(int argc, char **argv) {
    kvf_log_set_sink(say_nothing, NULL);
    if (argc == 7 && strcmp(argv[1], "child") == 0) return child_main(argv);
#define TEST(name) cmocka_unit_test_setup_teardown(name, clean, clean_end)
    const struct CMUnitTest tests[] = {
        TEST(a_handoff_takes_few_transfers_however_its_layers_come),
        TEST(an_idle_communicator_is_closed_and_made_again),
        TEST(a_handoff_that_computes_keeps_its_communicator),
        TEST(the_longest_idle_goes_when_there_are_too_many),
        TEST(where_none_is_idle_pages_go_over_the_stream),
        TEST(a_peer_that_closes_as_the_other_posts_costs_a_link_and_no_more),
        TEST(a_lane_that_cannot_be_made_leaves_the_stream),
        TEST(without_staging_there_is_no_link),
        TEST(errors_in_the_middle_end_the_link_and_the_next_one_goes_on),
        TEST(a_sticky_error_is_told_as_a_lost_device),
        TEST(what_never_returns_ends_its_pair_and_no_other),
        TEST(a_setup_that_never_returns_leaves_the_stream),
        TEST(an_end_in_the_middle_leaves_nothing),
        TEST(slots_that_are_overrun_and_sizes_that_differ_end_the_link),
        TEST(a_send_that_never_comes_is_given_up),
        TEST(a_peer_that_dies_anywhere_costs_its_link_only),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
