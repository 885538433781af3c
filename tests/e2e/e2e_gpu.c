/* Nodes whose pages lie in device memory: the device engine and every lane of pages, in real processes, on the fake
 * CUDA runtime, the fake NCCL and the emulated kernels (tests/cuda). Tokens are those of the golden texts wherever the
 * two best logits are clearly apart. */
#include "parts.h"
#include <jansson.h>
#include <math.h>
#include <string.h>

#define PLUGIN "--plugin=" KVF_FAKE_CUDA_FOLDER "/libkvferry-cuda.so"
enum { LONG_PROMPT = 48 };
/* Where the two best logits are closer, rounding may choose: of f16, of weights, keys and values in fp8. */
static const double gap_f16 = 0.05, gap_fp8 = 0.3;

static size_t read_ids(const json_t *array, uint32_t *ids) {
    for (size_t i = 0; i < json_array_size(array); i++) ids[i] = (uint32_t)json_integer_value(json_array_get(array, i));
    return json_array_size(array);
}

/* Asks for what follows `count` ids; how many of the golden tokens came before the first that is a toss-up. */
static size_t compare_from(e2e_cluster *c, const uint32_t *ids, size_t count, size_t out, const json_t *gaps,
    double clear_gap, Kvferry__V1__Disaggregate dis) {
    e2e_ask a;
    e2e_ask_ids(&a, ids, count, (uint32_t)out);
    a.dis = dis;
    e2e_answer got;
    e2e_gen_ok(c, &a, &got);
    assert_int_equal(got.choice[0].ids_count, out);
    size_t i = 0, first = json_array_size(gaps) - out;
    for (; i < out && json_real_value(json_array_get(gaps, first + i)) > clear_gap; i++)
        if (got.choice[0].ids[i] != ids[count + i])
            fail_msg("after %zu tokens: token %zu is %u, not %u", count, i, got.choice[0].ids[i], ids[count + i]);
    if (dis == E2E_ALWAYS && count >= LONG_PROMPT && first == 0) assert_true(got.pages_moved > 0 || got.usage_cached);
    e2e_answer_free(&got);
    return i;
}

/* Beyond a toss-up it is asked again, after the golden token. */
static uint32_t compare(e2e_cluster *c, const json_t *golden, double clear_gap, Kvferry__V1__Disaggregate dis) {
    const json_t *prompt = json_object_get(golden, "ids"), *greedy = json_object_get(golden, "greedy"),
                 *gaps = json_object_get(golden, "gap");
    uint32_t *ids = calloc(json_array_size(prompt) + json_array_size(greedy) + 1, sizeof *ids), compared = 0;
    assert_non_null(ids);
    size_t count = read_ids(prompt, ids), out = read_ids(greedy, ids + count);
    for (size_t at = 0, same; at < out; at += same + 1) {
        same = compare_from(c, ids, count + at, out - at, gaps, clear_gap, dis);
        compared += (uint32_t)same;
    }
    free(ids);
    return compared;
}

static uint64_t pages_moved(e2e_cluster *c) {
    Kvferry__V1__ClusterState *s = e2e_state(c);
    uint64_t pages = 0;
    for (size_t i = 0; i < s->n_pairs; i++) pages += s->pairs[i]->pages_moved;
    kvf_rpc_message_free(&s->base);
    return pages;
}

/* The golden prompts of up to `longest` tokens: the emulator takes its time. */
static uint32_t compare_all(e2e_cluster *c, double clear_gap, Kvferry__V1__Disaggregate dis, size_t longest) {
    json_t *golden = json_load_file(KVF_SOURCE_DIR "/tests/golden/tiny/llama.json", 0, NULL);
    assert_non_null(golden);
    uint32_t compared = 0;
    for (size_t i = 0; i < json_array_size(golden); i++)
        if (json_array_size(json_object_get(json_array_get(golden, i), "ids")) <= longest)
            compared += compare(c, json_array_get(golden, i), clear_gap, dis);
    json_decref(golden);
    assert_true(compared > 0);
    return compared;
}

static uint32_t log_count(const e2e_process *p, const char *text) {
    char *log = e2e_read_file(p->log);
    uint32_t count = 0;
    for (const char *at = log; at && (at = strstr(at, text)); at++) count++;
    free(log);
    return count;
}
static bool log_says(const e2e_process *p, const char *text) { return log_count(p, text) > 0; }

/* What the cluster tells of the way from `prefill` to `decode`. "": no link is up. */
typedef struct {
    e2e_cluster *c;
    const char *prefill, *decode, *transport;
} way;
static bool goes_over(void *self) {
    const way *w = self;
    Kvferry__V1__ClusterState *s = e2e_state(w->c);
    bool so = false;
    for (size_t i = 0; i < s->n_pairs; i++) {
        const Kvferry__V1__PairStatus *p = s->pairs[i];
        so |= kvf_proto_text_equal(p->prefill_node, w->prefill) && kvf_proto_text_equal(p->decode_node, w->decode) &&
              kvf_proto_text_equal(p->transport, w->transport);
    }
    kvf_rpc_message_free(&s->base);
    return so;
}
static void wait_for_way(e2e_cluster *c, const char *prefill, const char *decode, const char *transport) {
    char what[96];
    snprintf(what, sizeof what, "%s to %s over \"%s\"", prefill, decode, transport);
    e2e_until(what, goes_over, &(way){c, prefill, decode, transport});
}

static void over(const char *transports, const char *lane, size_t longest, const char *kv_type) {
    bool fp8 = strcmp(kv_type, "fp8") == 0;
    double clear_gap = fp8 ? gap_fp8 : gap_f16;
    char list[64], up[64], type[64];
    const char *weights = fp8 ? "--weights=fp8" : NULL;
    snprintf(type, sizeof type, "--kv-type=%s", kv_type);
    snprintf(list, sizeof list, "--transports=%s", transports);
    snprintf(up, sizeof up, "over %s is up", lane);
    const char *args[] = {
        "--backend=cuda", PLUGIN, "--device-memory-percent=10", list, "--threads=1", type, weights, NULL};
    e2e_cluster c;
    e2e_start(&c, E2E_TINY("llama"), args);
    uint32_t shipped = compare_all(&c, clear_gap, E2E_ALWAYS, longest);
    printf("%s over %s: %u tokens after pages that moved, all as they should be\n", kv_type, lane, shipped);
    if (strcmp(lane, "nccl") == 0) /* without pages there is nothing of a lane in it: once for each type */
        printf("without: %u tokens\n", compare_all(&c, clear_gap, E2E_NEVER, longest));
    if (!log_says(&c.serve, up)) fail_msg("no link was made over %s", lane);
    wait_for_way(&c, "p0", "d0", lane);
    assert_true(log_says(&c.serve, fp8 ? "ready: cuda:0 Fake 0 (sm_90), fp8 weights, fp8 KV, v1-cuda-w8-kvfp8"
                                       : "ready: cuda:0 Fake 0 (sm_90), f16 weights, v1-cuda-f16-kvf16"));
    e2e_assert_clean(&c);
    e2e_stop(&c);
}

static void pages_over_cuda_ipc(void **state) { over("cuda_ipc,shm", "cuda_ipc", 100, "f16"); }
static void pages_over_nccl(void **state) { over("nccl,tcp", "nccl", 700, "f16"); }
static void pages_over_shm(void **state) { over("shm", "shm", 100, "f16"); }
static void pages_over_tcp(void **state) { over("tcp", "tcp", 100, "f16"); }
static void fp8_over_nccl(void **state) { over("nccl,tcp", "nccl", 100, "fp8"); }

/* What a device says of a prompt's own tokens is what the processor says, shipped or not; and of the tokens after it.
 */
static void scores_of(
    e2e_cluster *c, const uint32_t *ids, size_t count, Kvferry__V1__Disaggregate dis, e2e_answer *out) {
    e2e_ask a;
    e2e_ask_ids(&a, ids, count, 4);
    a.dis = dis;
    a.prompt_logprobs = a.logprobs = true;
    a.top_logprobs = 3;
    e2e_gen_ok(c, &a, out);
    assert_int_equal(out->prompt_logprobs_count, count - 1);
    assert_int_equal(out->choice[0].logprobs_count, 4);
    assert_int_equal(out->choice[0].tops, 4 * 3);
}

static void prompts_are_scored(void **state) {
    enum { COUNT = 75 };
    const char *device[] = {"--backend=cuda", PLUGIN, "--device-memory-percent=10", "--threads=1", NULL};
    const char *processor[] = {"--precision=exact", "--threads=1", NULL};
    uint32_t ids[COUNT];
    for (uint32_t i = 0; i < COUNT; i++) ids[i] = (i * 37 + i * i % 13 + 5) % 320;
    e2e_cluster c, d;
    e2e_answer want, got;
    e2e_start(&c, E2E_TINY("qwen3"), processor);
    scores_of(&c, ids, COUNT, E2E_NEVER, &want);
    e2e_stop(&c);
    e2e_start(&d, E2E_TINY("qwen3"), device);
    for (int shipped = 0; shipped < 2; shipped++) {
        scores_of(&d, ids, COUNT, shipped ? E2E_ALWAYS : E2E_NEVER, &got);
        assert_int_equal(got.pages_moved > 0, shipped);
        double most = 0;
        for (size_t i = 0; i + 1 < COUNT; i++)
            most = fmax(most, fabs((double)got.prompt_logprobs[i] - (double)want.prompt_logprobs[i]));
        printf("%s: logprobs of a prompt are off by %.3g at most\n", shipped ? "shipped" : "not shipped", most);
        assert_true(most <= 0.02);
        assert_int_equal(got.choice[0].ids[0], want.choice[0].ids[0]);
        assert_true(fabs((double)got.choice[0].logprobs[0] - (double)want.choice[0].logprobs[0]) <= 0.02);
        e2e_answer_free(&got);
    }
    e2e_answer_free(&want);
    e2e_assert_clean(&d);
    e2e_stop(&d);
}

/* Pages of two formats are never taken for each other, whatever the operator allows: the decode node computes prompts
 * itself, and the operator is told why. */
static void fp8_and_f16_do_not_pair(void **state) {
    e2e_parts k = {.model = E2E_TINY("llama"),
        .node_args = {"--backend=cuda", PLUGIN, "--unequal-numerics", "--device-memory-percent=10", "--threads=1"},
        .router_args = {"--unequal-numerics"}};
    k.node[0].env = "KVFERRY_ENGINE_KV_TYPE=fp8";
    e2e_parts_start(&k, 1, 1, 1);
    compare_all(&k.router[0], gap_f16, E2E_AUTO, 20);
    Kvferry__V1__ClusterState *s = e2e_state(&k.router[0]);
    bool told = false;
    for (size_t i = 0; i < s->n_pairs; i++) {
        const Kvferry__V1__PairStatus *p = s->pairs[i];
        told |= p->refused.len && memmem(p->refused.data, p->refused.len, "kv_type", 7);
        assert_int_equal(p->pages_moved, 0);
    }
    assert_true(told);
    kvf_rpc_message_free(&s->base);
    e2e_assert_clean(&k.router[0]);
    e2e_parts_stop(&k);
}

static void fp8_is_for_devices(void **state) {
    e2e_process p;
    const char *cpu[] = {"decode-node", "--model", E2E_TINY("llama"), "--kv-type=fp8", "--control=127.0.0.1:0", NULL};
    e2e_spawn(&p, cpu);
    assert_int_equal(e2e_process_wait(&p), 1);
    assert_true(log_says(&p, "engine.kv_type: fp8 is for engine.backend cuda"));
}

typedef struct {
    e2e_cluster *c;
    uint64_t before;
} moving;
static bool has_moved(void *self) {
    const moving *m = self;
    return pages_moved(m->c) > m->before;
}
/* One golden prompt, shipped though it was asked before; its tokens are the golden ones. */
static void ship_one(e2e_cluster *c) {
    json_t *golden = json_load_file(KVF_SOURCE_DIR "/tests/golden/tiny/llama.json", 0, NULL);
    assert_non_null(golden);
    const json_t *one = NULL;
    for (size_t i = 0; i < json_array_size(golden) && !one; i++) {
        size_t count = json_array_size(json_object_get(json_array_get(golden, i), "ids"));
        if (count >= LONG_PROMPT && count <= 100) one = json_array_get(golden, i);
    }
    assert_non_null(one);
    moving m = {c, pages_moved(c)};
    e2e_flush(c);
    assert_true(compare(c, one, gap_f16, E2E_ALWAYS) > 0);
    e2e_until("pages move", has_moved, &m);
    json_decref(golden);
}

typedef struct {
    const e2e_process *p;
    const char *text;
    uint32_t count;
} saying;
static bool has_said(void *self) {
    const saying *s = self;
    return log_count(s->p, s->text) >= s->count;
}
static void wait_for_saying(const e2e_process *p, const char *text, uint32_t count) {
    e2e_until(text, has_said, &(saying){p, text, count});
}
static const char *const closed_here = "is down: idle: communicator closed",
                         *const closed_there = "is down: idle: p0 gave its lane up: idle";

/* A pair's communicator is closed when nothing has gone over it for a second, and made again for the next request. */
static void idle_communicators_close_and_come_back(void **state) {
    enum { ROUNDS = 2 };
    e2e_parts k = {.model = E2E_TINY("llama"),
        .node_args = {"--backend=cuda", PLUGIN, "--device-memory-percent=10", "--threads=1", "--transports=nccl,tcp",
            "--node-heartbeat=100ms"},
        .node_env = "KVFERRY_TRANSFER_COMMUNICATOR_IDLE=1s"};
    e2e_parts_start(&k, 1, 1, 1);
    const e2e_process *p0 = &e2e_part_find(&k, "p0")->process, *d0 = &e2e_part_find(&k, "d0")->process;
    for (uint32_t round = 0, made = 0; round < ROUNDS; round++) {
        uint32_t before = made;
        ship_one(&k.router[0]);
        made = log_count(p0, "over nccl is up"); /* on a slow machine more than one */
        assert_true(made > before);
        wait_for_saying(p0, closed_here, made);
        wait_for_saying(d0, closed_there, made);
        wait_for_way(&k.router[0], "p0", "d0", "");
    }
    assert_false(log_says(p0, "over tcp is up"));
    e2e_assert_clean(&k.router[0]);
    e2e_parts_stop(&k);
}

typedef struct {
    e2e_cluster *c;
    const char *node;
    bool drains;
} draining;
static bool drains(void *self) {
    const draining *d = self;
    Kvferry__V1__ClusterState *s = e2e_state(d->c);
    const Kvferry__V1__NodeStatus *n = e2e_node(s, d->node);
    bool so = n && (n->state == KVFERRY__V1__NODE_STATE__NODE_STATE_DRAINING) == d->drains;
    kvf_rpc_message_free(&s->base);
    return so;
}
static void drain(e2e_cluster *c, const char *node, bool on) {
    Kvferry__V1__DrainRequest d = KVFERRY__V1__DRAIN_REQUEST__INIT;
    Kvferry__V1__UndrainRequest u = KVFERRY__V1__UNDRAIN_REQUEST__INIT;
    ProtobufCMessage *answer = NULL;
    d.node_id = u.node_id = kvf_proto_text(node);
    kvf_rpc_unary(c->admin, &kvferry__v1__cluster__descriptor, on ? "Drain" : "Undrain", on ? &d.base : &u.base,
        E2E_WAIT_MS, &answer, NULL);
    assert_non_null(answer);
    kvf_rpc_message_free(answer);
    e2e_until(on ? "a node drains" : "a node drains no more", drains, &(draining){c, node, on});
}

/* A node that may have one communicator, and two to send to: the idle one is closed for the other. */
static void communicators_are_few(void **state) {
    e2e_parts k = {.model = E2E_TINY("llama"),
        .node_args = {"--backend=cuda", PLUGIN, "--device-memory-percent=10", "--threads=1", "--transports=nccl,tcp",
            "--node-heartbeat=100ms"}};
    k.node[0].env = "KVFERRY_TRANSFER_COMMUNICATORS_MAX=1";
    e2e_parts_start(&k, 1, 2, 1);
    e2e_cluster *c = &k.router[0];
    const char *nodes[] = {"d0", "d1"};
    drain(c, "d1", true);
    for (uint32_t round = 0; round < 3; round++) {
        const char *to = nodes[round % 2], *other = nodes[1 - round % 2];
        ship_one(c);
        wait_for_way(c, "p0", to, "nccl");
        wait_for_way(c, "p0", other, "");
        drain(c, other, false);
        drain(c, to, true);
    }
    const e2e_process *p0 = &e2e_part_find(&k, "p0")->process;
    assert_int_equal(log_count(p0, "over nccl is up"), 3);
    assert_int_equal(log_count(p0, closed_here), 2);
    assert_false(log_says(p0, "over tcp is up"));
    drain(c, nodes[0], false);
    e2e_assert_clean(c);
    e2e_parts_stop(&k);
}

/* Prompts on a device, tokens on a processor, and the other way round. */
static void mixed(const char *first_backend, const char *second_backend) {
    e2e_parts k = {.model = E2E_TINY("llama"),
        .node_args = {PLUGIN, "--unequal-numerics", "--precision=exact", "--device-memory-percent=10", "--threads=1"},
        .router_args = {"--unequal-numerics"}};
    char env[2][64];
    snprintf(env[0], sizeof env[0], "KVFERRY_ENGINE_BACKEND=%s", first_backend);
    snprintf(env[1], sizeof env[1], "KVFERRY_ENGINE_BACKEND=%s", second_backend);
    k.node[0].env = env[0];
    k.node[1].env = env[1];
    e2e_parts_start(&k, 1, 1, 1);
    uint32_t compared = compare_all(&k.router[0], gap_f16, E2E_ALWAYS, 100);
    printf("%s to %s: %u tokens, all as they should be\n", first_backend, second_backend, compared);
    e2e_assert_clean(&k.router[0]);
    e2e_parts_stop(&k);
}
static void device_to_processor(void **state) { mixed("cuda", "cpu"); }
static void processor_to_device(void **state) { mixed("cpu", "cuda"); }

/* A device that breaks under its node: the process ends, the request goes on at the other one. */
static void a_device_breaks(void **state) {
    e2e_parts k = {.model = E2E_TINY("llama"),
        .node_args = {"--backend=cuda", PLUGIN, "--device-memory-percent=10", "--threads=1"}};
    e2e_parts_start(&k, 1, 2, 1);
    compare_all(&k.router[0], gap_f16, E2E_ALWAYS, 100);
    e2e_part *d0 = e2e_part_find(&k, "d0");
    e2e_part_kill(d0);
    d0->env = "KVF_FAKE_CUDA_FAULTS=kernel:300=sticky700"; /* beyond those of its start */
    e2e_part_start(&k, d0);
    e2e_parts_all_ready(&k);
    for (uint32_t round = 0; round < 6; round++) compare_all(&k.router[0], gap_f16, E2E_ALWAYS, 100);
    int status = e2e_process_wait(&d0->process);
    assert_int_equal(status, 1);
    assert_true(log_says(&d0->process, "the device answers nothing any more"));
    d0->env = NULL;
    e2e_part_start(&k, d0);
    e2e_parts_all_ready(&k);
    e2e_assert_clean(&k.router[0]);
    e2e_parts_stop(&k);
}

/* msg: "p0 epoch ... ready: ... 1234 blocks of 16 tokens ...": the pool of a node that is ready. */
static unsigned long blocks_of(const e2e_process *serve, const char *node) {
    char *log = e2e_read_file(serve->log), start[32], *at = log;
    snprintf(start, sizeof start, "\"%s epoch ", node);
    while ((at = strstr(at, start)) && !memmem(at, strcspn(at, "\n"), " ready: ", 8)) at++;
    assert_non_null(at);
    char *blocks = strstr(at, " blocks of 16");
    assert_non_null(blocks);
    while (blocks[-1] >= '0' && blocks[-1] <= '9') blocks--;
    unsigned long count = strtoul(blocks, NULL, 10);
    free(log);
    return count;
}

static void pools_of(const char *devices, const char *percents, unsigned long *prefill, unsigned long *decode) {
    const char *args[] = {"--backend=cuda", PLUGIN, devices, percents, "--threads=1", NULL};
    e2e_cluster c;
    e2e_start(&c, E2E_TINY("llama"), args);
    *prefill = blocks_of(&c.serve, "p0");
    *decode = blocks_of(&c.serve, "d0");
    e2e_stop(&c);
}

/* Each device has its share, and nodes on one device divide its. */
static void shares_of_devices(void **state) {
    unsigned long p, d, p1, d1;
    setenv("KVF_FAKE_CUDA_DEVICES", "2", 1);
    pools_of("--devices=0,1", "--device-memory-percent=8,2", &p, &d);
    pools_of("--devices=1", "--device-memory-percent=8", &p1, &d1);
    unsetenv("KVF_FAKE_CUDA_DEVICES");
    printf("shares of 8 and 2: %lu and %lu blocks; 8 for two nodes: %lu and %lu\n", p, d, p1, d1);
    assert_true(p / 4 == d && p1 == d1 && p / 2 == p1);
}

/* A kernel that never ends under a node's engine: the process ends, requests go on at the other one. */
static void a_kernel_never_ends(void **state) {
    e2e_parts k = {.model = E2E_TINY("llama"),
        .node_args = {"--backend=cuda", PLUGIN, "--device-memory-percent=10", "--threads=1", "--stall-limit=2s"}};
    k.node[1].env = "KVF_FAKE_CUDA_FAULTS=kernel:300=hang"; /* of d0, beyond those of its start */
    e2e_parts_start(&k, 1, 2, 1);
    e2e_part *d0 = e2e_part_find(&k, "d0");
    for (uint32_t round = 0; round < 12 && !log_says(&d0->process, "made no progress"); round++) ship_one(&k.router[0]);
    assert_int_equal(e2e_process_wait(&d0->process), 1);
    assert_true(log_says(&d0->process, "not serving: the engine thread has made no progress"));
    assert_true(log_says(&d0->process, "the device answers nothing any more (an engine step does not end)"));
    d0->env = NULL;
    e2e_part_start(&k, d0);
    e2e_parts_all_ready(&k);
    e2e_assert_clean(&k.router[0]);
    e2e_parts_stop(&k);
}

static void what_is_missing_is_said(void **state) {
    e2e_process p;
    const char *cuda[] = {"decode-node", "--model", E2E_TINY("llama"), "--backend=cuda", "--plugin=/nowhere/x.so",
        "--control=127.0.0.1:0", NULL};
    e2e_spawn(&p, cuda);
    assert_false(p.ready);
    assert_int_equal(e2e_process_wait(&p), 1);
    assert_true(log_says(&p, "no device code here: /nowhere/x.so"));
    const char *interface[] = {"decode-node", "--model", E2E_TINY("llama"), "--backend=cuda", PLUGIN,
        "--device-memory-percent=10", "--control=127.0.0.1:0", NULL};
    e2e_spawn_env(&p, interface, "NCCL_SOCKET_IFNAME==nowhere0");
    assert_true(p.ready);
    assert_true(log_says(&p, "pages do not go over NCCL: NCCL_SOCKET_IFNAME"));
    assert_true(log_says(&p, "names no network interface of this host ("));
    assert_int_equal(e2e_process_stop(&p), 0);
    const char *either[] = {"decode-node", "--model", E2E_TINY("llama"), "--backend=auto", "--plugin=/nowhere/x.so",
        "--control=127.0.0.1:0", NULL};
    e2e_spawn(&p, either);
    assert_true(p.ready);
    assert_true(log_says(&p, "backend cpu, for cuda cannot be used: no device code here"));
    assert_int_equal(e2e_process_stop(&p), 0);
}

int main(int argc, char **argv) {
    if (argc > 1) cmocka_set_test_filter(argv[1]); /* "*nccl" */
    setenv("LD_LIBRARY_PATH", KVF_FAKE_CUDA_FOLDER, 1); /* of every process started here */
    const struct CMUnitTest tests[] = {cmocka_unit_test(pages_over_cuda_ipc), cmocka_unit_test(pages_over_nccl),
        cmocka_unit_test(pages_over_shm), cmocka_unit_test(pages_over_tcp), cmocka_unit_test(prompts_are_scored),
        cmocka_unit_test(fp8_over_nccl), cmocka_unit_test(fp8_and_f16_do_not_pair),
        cmocka_unit_test(fp8_is_for_devices), cmocka_unit_test(idle_communicators_close_and_come_back),
        cmocka_unit_test(communicators_are_few), cmocka_unit_test(device_to_processor),
        cmocka_unit_test(processor_to_device), cmocka_unit_test(a_device_breaks), cmocka_unit_test(a_kernel_never_ends),
        cmocka_unit_test(shares_of_devices), cmocka_unit_test(what_is_missing_is_said)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
