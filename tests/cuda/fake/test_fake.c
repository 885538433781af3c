/* The fake CUDA runtime does what its table says; the loader of kvf/cuda_api.h names what is missing. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>
#include "fake_test.h"
#include "kvf/os.h"
#include <pthread.h>
#include <semaphore.h>
#include <sys/wait.h>
#include <unistd.h>

static kvf_cuda_api cuda;
enum { BYTES = 100000 };

static int setup(void **state) {
    fake_cuda_reset();
    fake_open(&cuda, NULL);
    return 0;
}
static int teardown(void **state) {
    fake_cuda_reset();
    (void)cuda.last_error();
    kvf_cuda_unload(&cuda);
    return 0;
}
static kvf_cuda_stream stream_new(void) {
    kvf_cuda_stream s;
    assert_int_equal(cuda.stream_create(&s, KVF_CUDA_STREAM_NON_BLOCKING, 0), 0);
    return s;
}
static uint8_t *memory_new(size_t len_bytes) {
    void *p = NULL;
    assert_int_equal(cuda.memory_take(&p, len_bytes), 0);
    return p;
}

/* ---------------------------------------------------------------- what is missing */
static void refused(const kvf_cuda_libraries *libraries, const char *why) {
    kvf_cuda_api api;
    kvf_error err = {0};
    assert_int_equal(kvf_cuda_load(libraries, &api, &err), KVF_ERR_UNSUPPORTED);
    if (!strstr(err.message, why)) fail_msg("\"%s\" should say \"%s\"", err.message, why);
}
static void each_thing_that_is_missing_is_named(void **state) {
    kvf_cuda_libraries l = fake_libraries;
    l.driver = "libno-such-driver.so.1";
    refused(&l, "no NVIDIA driver here: libno-such-driver.so.1");
    l = fake_libraries;
    l.runtime = "libno-such-runtime.so.13";
    refused(&l, "no CUDA runtime here: libno-such-runtime.so.13");
    l.runtime = "libc.so.6"; /* a library without those functions */
    refused(&l, "the CUDA runtime is too old: it has no cudaRuntimeGetVersion");
    fake_cuda_settings usual, s;
    fake_cuda_get(&usual);
    s = usual;
    s.devices = 0;
    fake_cuda_set(&s);
    refused(&fake_libraries, "no GPU");
    s = usual;
    s.driver_number = 11040;
    fake_cuda_set(&s);
    refused(&fake_libraries, "the NVIDIA driver is too old: it serves CUDA 11.4, the runtime is 13.0");
    s.driver_number = 0; /* as without a driver */
    fake_cuda_set(&s);
    refused(&fake_libraries, "too old");
    s.driver_number = s.runtime_number = 11080;
    fake_cuda_set(&s);
    refused(&fake_libraries, "CUDA runtime 11.8: versions 12 to 13 are known here");
    s = usual;
    s.runtime_number = 12040;
    s.driver_number = 12020; /* older, of the same major version */
    fake_cuda_set(&s);
    kvf_cuda_api api;
    kvf_error err = {0};
    assert_int_equal(kvf_cuda_load(&fake_libraries, &api, &err), KVF_OK);
    kvf_cuda_unload(&api);
    fake_cuda_set(&usual);
    fake_cuda_fault("cudaDeviceGetAttribute", 1, FAKE_FAIL, KVF_CUDA_OUT_OF_MEMORY);
    refused(&fake_libraries, "GPU 0: cudaDeviceGetAttribute: out of memory (cudaErrorMemoryAllocation)");
    kvf_nccl_api nccl;
    l.nccl = "libno-such-nccl.so";
    assert_int_equal(kvf_nccl_load(&l, &nccl, &err), KVF_ERR_UNSUPPORTED);
    assert_non_null(strstr(err.message, "no NCCL here"));
    static const struct {
        int number;
        const char *name;
    } old[] = {{21003, "NCCL 2.10 is too old: 2.18"}, {2708, "NCCL 2.7 is too old: 2.18"}};
    for (size_t i = 0; i < KVF_COUNT_OF(old); i++) {
        s = usual;
        s.nccl_number = old[i].number;
        fake_cuda_set(&s);
        assert_int_equal(kvf_nccl_load(&fake_libraries, &nccl, &err), KVF_ERR_UNSUPPORTED);
        if (!strstr(err.message, old[i].name)) fail_msg("\"%s\" should say \"%s\"", err.message, old[i].name);
    }
    s = usual;
    s.init_error = 304; /* the operating system refuses */
    fake_cuda_set(&s);
    refused(&fake_libraries, "the NVIDIA driver does not start: error 304 (may this process open /dev/nvidia*?)");
    fake_cuda_set(&usual);
}
static void devices_are_listed_and_old_ones_refused(void **state) {
    fake_cuda_settings s;
    fake_cuda_get(&s);
    s.devices = 2;
    s.capability = 75;
    fake_cuda_set(&s);
    kvf_cuda_api api;
    kvf_error err = {0};
    fake_cuda_counts before, after;
    fake_cuda_count(&before);
    assert_int_equal(kvf_cuda_load(&fake_libraries, &api, &err), KVF_OK);
    fake_cuda_count(&after);
    assert_int_equal(after.contexts, before.contexts); /* looking takes nothing of a device */
    assert_int_equal(api.devices_count, 2);
    char found[256];
    assert_string_equal(kvf_cuda_found(&api, found, sizeof found),
        "CUDA runtime 13.0, driver 13.0, GPU 0 Fake 0 (sm_75, 1 GiB), GPU 1 Fake 1 (sm_75, 1 GiB)");
    kvf_cuda_found(&api, found, 40);
    assert_string_equal(found, "CUDA runtime 13.0, driver 13.0, GPU 0 F");
    assert_string_equal(api.devices[1].name, "Fake 1");
    assert_int_equal(api.devices[1].capability, 75);
    assert_int_equal(api.devices[1].total_bytes, s.memory_bytes);
    assert_int_equal(kvf_cuda_usable(&api, 1, &err), KVF_ERR_UNSUPPORTED);
    assert_string_equal(err.message, "GPU 1 (Fake 1) is sm_75, sm_80 or later is needed");
    assert_int_equal(kvf_cuda_usable(&api, 2, &err), KVF_ERR_NOT_FOUND);
    kvf_cuda_unload(&api);
    assert_int_equal(kvf_cuda_usable(&cuda, 0, &err), KVF_OK);
}

/* ---------------------------------------------------------------- memory and streams */
static void a_stream_keeps_its_order_and_events_join_two(void **state) {
    fake_cuda_settings s;
    fake_cuda_get(&s);
    s.delay_us = 300;
    fake_cuda_set(&s);
    kvf_cuda_stream a = stream_new(), b = stream_new();
    kvf_cuda_event e;
    assert_int_equal(cuda.event_create(&e, KVF_CUDA_EVENT_NO_TIMING), 0);
    uint8_t *device = memory_new(BYTES), *host, *back;
    assert_int_equal(cuda.host_take((void **)&host, BYTES, 0), 0);
    assert_int_equal(cuda.host_take((void **)&back, BYTES, 0), 0);
    assert_int_equal(device[0], 0xFF); /* what was never written is seen */
    for (int round = 1; round <= 20; round++) {
        memset(host, round, BYTES);
        assert_int_equal(cuda.fill_async(device, 0, BYTES, a), 0);
        assert_int_equal(cuda.copy_async(device, host, BYTES, KVF_CUDA_HOST_TO_DEVICE, a), 0);
        assert_int_equal(cuda.event_record(e, a), 0);
        assert_int_equal(cuda.stream_wait(b, e, 0), 0);
        assert_int_equal(cuda.copy_async(back, device, BYTES, KVF_CUDA_DEVICE_TO_HOST, b), 0);
        assert_int_equal(cuda.stream_synchronize(b), 0);
        assert_int_equal(cuda.event_query(e), 0);
        assert_memory_equal(back, host, BYTES);
    }
    assert_int_equal(cuda.stream_query(a), 0);
    assert_int_equal(cuda.memory_give(device), 0);
    assert_int_equal(cuda.host_give(host), 0);
    assert_int_equal(cuda.host_give(back), 0);
    assert_int_equal(cuda.event_destroy(e), 0);
    assert_int_equal(cuda.stream_destroy(a), 0);
    assert_int_equal(cuda.stream_destroy(b), 0);
    fake_cuda_counts c;
    fake_cuda_count(&c);
    assert_int_equal(c.allocations + c.host_allocations + c.streams + c.events, 0);
    assert_int_equal(c.memory_bytes, 0);
}
static void memory_ends_and_copies_outside_it_are_refused(void **state) {
    fake_cuda_settings s;
    fake_cuda_get(&s);
    s.memory_bytes = 1 << 20;
    fake_cuda_set(&s);
    uint8_t *a = memory_new(600 << 10), host[16] = {0};
    void *b = &s;
    assert_int_equal(cuda.memory_take(&b, 600 << 10), KVF_CUDA_OUT_OF_MEMORY);
    assert_ptr_equal(b, &s);
    assert_int_equal(cuda.last_error(), KVF_CUDA_OUT_OF_MEMORY);
    assert_int_equal(cuda.last_error(), 0);
    size_t free_bytes, total_bytes;
    assert_int_equal(cuda.memory_info(&free_bytes, &total_bytes), 0);
    assert_int_equal(total_bytes, 1 << 20);
    assert_int_equal(free_bytes, 424 << 10);
    assert_int_equal(cuda.copy(a, host, 16, KVF_CUDA_HOST_TO_DEVICE), 0);
    assert_int_equal(cuda.copy(a + (600 << 10) - 8, host, 16, KVF_CUDA_HOST_TO_DEVICE), KVF_CUDA_INVALID_VALUE);
    assert_int_equal(cuda.copy(host, host, 16, KVF_CUDA_HOST_TO_DEVICE), KVF_CUDA_INVALID_VALUE);
    assert_int_equal(cuda.copy(a, host, 16, KVF_CUDA_DEVICE_TO_DEVICE), KVF_CUDA_INVALID_VALUE);
    assert_int_equal(cuda.memory_give(a + 256), KVF_CUDA_INVALID_VALUE);
    assert_int_equal(cuda.memory_give(a), 0);
    assert_int_equal(cuda.memory_give(a), KVF_CUDA_INVALID_VALUE);
    assert_int_equal(cuda.copy(a, host, 16, KVF_CUDA_HOST_TO_DEVICE), KVF_CUDA_INVALID_VALUE);
}

/* ---------------------------------------------------------------- graphs */
typedef struct {
    uint32_t *at;
    uint32_t add;
    bool *dropped;
} adding;
static void add_run(void *arg) { *((adding *)arg)->at = *((adding *)arg)->at * 3 + ((adding *)arg)->add; }
static void add_drop(void *arg) {
    *((adding *)arg)->dropped = true;
    free(arg);
}
static void add(kvf_cuda_stream s, uint32_t *at, uint32_t by, bool *dropped) {
    adding *a = malloc(sizeof *a);
    *a = (adding){at, by, dropped};
    assert_int_equal(fake_cuda_enqueue(s, add_run, add_drop, a), 0);
}
static void a_captured_graph_is_done_again(void **state) {
    kvf_cuda_stream a = stream_new(), b = stream_new();
    kvf_cuda_event fork, join;
    cuda.event_create(&fork, 0);
    cuda.event_create(&join, 0);
    uint32_t x = 1;
    bool dropped[3] = {false};
    kvf_cuda_graph graph;
    kvf_cuda_graph_exec exec;
    assert_int_equal(cuda.capture_begin(a, KVF_CUDA_CAPTURE_THREAD_LOCAL), 0);
    add(a, &x, 1, &dropped[0]);
    assert_int_equal(cuda.event_record(fork, a), 0);
    assert_int_equal(cuda.stream_wait(b, fork, 0), 0);
    add(b, &x, 2, &dropped[1]);
    assert_int_equal(cuda.event_record(join, b), 0);
    assert_int_equal(cuda.stream_wait(a, join, 0), 0);
    add(a, &x, 3, &dropped[2]);
    assert_int_equal(cuda.capture_end(a, &graph), 0);
    assert_int_equal(x, 1); /* nothing was done */
    assert_int_equal(cuda.graph_instantiate(&exec, graph, 0), 0);
    uint32_t want = x;
    for (int i = 0; i < 3; i++) {
        assert_int_equal(cuda.graph_launch(exec, b), 0);
        want = ((want * 3 + 1) * 3 + 2) * 3 + 3;
    }
    assert_int_equal(cuda.stream_synchronize(b), 0);
    assert_int_equal(x, want);
    assert_int_equal(cuda.graph_destroy(graph), 0);
    assert_false(dropped[0]);
    assert_int_equal(cuda.graph_launch(exec, a), 0);
    assert_int_equal(cuda.graph_exec_destroy(exec), 0); /* while it may run */
    cuda.stream_synchronize(a);
    cuda.device_synchronize();
    cuda.stream_destroy(a);
    cuda.stream_destroy(b);
    cuda.event_destroy(fork);
    cuda.event_destroy(join);
}
static void what_a_capture_forbids_spoils_it(void **state) {
    kvf_cuda_stream a = stream_new(), b = stream_new();
    kvf_cuda_event e;
    kvf_cuda_graph graph = NULL;
    uint32_t x = 0;
    bool dropped = false;
    cuda.event_create(&e, 0);
    cuda.capture_begin(a, 0);
    assert_int_equal(cuda.stream_synchronize(a), KVF_CUDA_CAPTURE_UNSUPPORTED);
    assert_int_equal(cuda.capture_end(a, &graph), KVF_CUDA_CAPTURE_INVALIDATED);
    cuda.capture_begin(a, 0);
    cuda.event_record(e, a);
    cuda.stream_wait(b, e, 0);
    add(b, &x, 1, &dropped);
    assert_int_equal(cuda.capture_end(a, &graph), KVF_CUDA_CAPTURE_UNJOINED);
    assert_true(dropped);
    cuda.event_destroy(e);
    cuda.event_create(&e, 0);
    cuda.event_record(e, b);
    cuda.capture_begin(a, 0);
    assert_int_equal(cuda.stream_wait(a, e, 0), KVF_CUDA_CAPTURE_ISOLATION);
    assert_int_equal(cuda.capture_end(a, &graph), KVF_CUDA_CAPTURE_INVALIDATED);
    assert_int_equal(cuda.capture_begin(NULL, 0), KVF_CUDA_CAPTURE_UNSUPPORTED);
    cuda.event_destroy(e);
    cuda.stream_destroy(a);
    cuda.stream_destroy(b);
    assert_int_equal(x, 0);
}

/* ---------------------------------------------------------------- faults */
static void the_nth_call_fails_once(void **state) {
    fake_cuda_fault("cudaMalloc", 2, FAKE_FAIL, KVF_CUDA_OUT_OF_MEMORY);
    void *a, *b;
    assert_int_equal(cuda.memory_take(&a, 100), 0);
    assert_int_equal(cuda.memory_take(&b, 100), KVF_CUDA_OUT_OF_MEMORY);
    assert_int_equal(cuda.memory_take(&b, 100), 0);
    cuda.memory_give(a);
    cuda.memory_give(b);
}
static void a_sticky_error_answers_everything(void **state) {
    kvf_cuda_stream s = stream_new();
    uint8_t *device = memory_new(64), host[64] = {1};
    fake_cuda_fault("copy", 2, FAKE_STICKY, KVF_CUDA_ILLEGAL_ADDRESS);
    assert_int_equal(cuda.copy_async(device, host, 64, KVF_CUDA_HOST_TO_DEVICE, s), 0);
    assert_int_equal(cuda.copy_async(device, host, 64, KVF_CUDA_HOST_TO_DEVICE, s), 0);
    assert_int_equal(cuda.stream_synchronize(s), KVF_CUDA_ILLEGAL_ADDRESS);
    void *p;
    assert_int_equal(cuda.memory_take(&p, 1), KVF_CUDA_ILLEGAL_ADDRESS);
    assert_int_equal(cuda.stream_query(s), KVF_CUDA_ILLEGAL_ADDRESS);
    assert_int_equal(cuda.last_error(), KVF_CUDA_ILLEGAL_ADDRESS);
    assert_int_equal(cuda.last_error(), KVF_CUDA_ILLEGAL_ADDRESS);
    assert_true(kvf_cuda_is_sticky(KVF_CUDA_ILLEGAL_ADDRESS) && !kvf_cuda_is_sticky(KVF_CUDA_OUT_OF_MEMORY));
    int version = 0;
    assert_int_equal(cuda.runtime_version(&version), 0);
    assert_string_equal(kvf_cuda_text(&cuda, "cudaMalloc", 700),
        "cudaMalloc: an illegal memory access was encountered (cudaErrorIllegalAddress)");
    fake_cuda_reset();
    cuda.memory_give(device);
    cuda.stream_destroy(s);
}
static void *synchronize(void *arg) { return (void *)(intptr_t)cuda.stream_synchronize(arg); }
static void calls_and_kernels_that_never_return_are_let_go(void **state) {
    kvf_cuda_stream s = stream_new();
    uint8_t *device = memory_new(64), host[64] = {1};
    fake_cuda_fault("copy", 1, FAKE_HANG, 0);
    assert_int_equal(cuda.copy_async(device, host, 64, KVF_CUDA_HOST_TO_DEVICE, s), 0);
    pthread_t t;
    void *answer = NULL;
    pthread_create(&t, NULL, synchronize, s);
    while (fake_cuda_hanging() == 0) usleep(1000);
    assert_int_equal(cuda.stream_query(s), KVF_CUDA_NOT_READY);
    fake_cuda_release();
    pthread_join(t, &answer);
    assert_null(answer);
    fake_cuda_fault("cudaStreamSynchronize", 1, FAKE_HANG, 0);
    pthread_create(&t, NULL, synchronize, s);
    while (fake_cuda_hanging() == 0) usleep(1000);
    fake_cuda_release();
    pthread_join(t, &answer);
    assert_int_equal((int)(intptr_t)answer, KVF_CUDA_UNKNOWN);
    cuda.memory_give(device);
    cuda.stream_destroy(s);
}
static void faults_come_from_the_environment(void **state) {
    setenv("KVF_FAKE_CUDA_FAULTS", "cudaMalloc:1=2,cudaFree:1=sticky,kernel:3=hang", 1);
    setenv("KVF_FAKE_CUDA_MEMORY", "8192", 1);
    fake_cuda_reset();
    unsetenv("KVF_FAKE_CUDA_FAULTS");
    unsetenv("KVF_FAKE_CUDA_MEMORY");
    void *p = NULL;
    assert_int_equal(cuda.memory_take(&p, 1), KVF_CUDA_OUT_OF_MEMORY);
    assert_int_equal(cuda.memory_take(&p, 10000), KVF_CUDA_OUT_OF_MEMORY);
    assert_int_equal(cuda.memory_take(&p, 1), 0);
    assert_int_equal(cuda.memory_give(p), KVF_CUDA_ILLEGAL_ADDRESS);
    assert_int_equal(cuda.device_synchronize(), KVF_CUDA_ILLEGAL_ADDRESS);
    fake_cuda_reset();
    cuda.memory_give(p);
}

/* ---------------------------------------------------------------- two processes */
static int other_process(int in) { /* writes what it finds plus one */
    kvf_cuda_ipc_handle h;
    uint8_t *p;
    if (read(in, &h, sizeof h) != (ssize_t)sizeof h) return 2;
    if (cuda.ipc_open((void **)&p, h, KVF_CUDA_IPC_LAZY_PEER)) return 3;
    uint8_t host[64];
    if (cuda.copy(host, p + 5000, 64, KVF_CUDA_DEVICE_TO_HOST)) return 4;
    for (int i = 0; i < 64; i++) host[i]++;
    if (cuda.copy(p + 5000, host, 64, KVF_CUDA_HOST_TO_DEVICE)) return 5;
    if (cuda.copy(p + 20000 - 32, host, 64, KVF_CUDA_HOST_TO_DEVICE) != KVF_CUDA_INVALID_VALUE) return 6;
    if (cuda.ipc_close(p) || cuda.ipc_close(p) != KVF_CUDA_INVALID_VALUE) return 7;
    return 0;
}
static void memory_is_shared_with_another_process(void **state) {
    int pipes[2];
    assert_int_equal(pipe(pipes), 0);
    fflush(NULL);
    pid_t child = fork(); /* before any thread of this test */
    if (child == 0) {
        close(pipes[1]);
        _exit(other_process(pipes[0]));
    }
    uint8_t *device = memory_new(20000), host[64];
    for (int i = 0; i < 64; i++) host[i] = (uint8_t)i;
    assert_int_equal(cuda.copy(device + 5000, host, 64, KVF_CUDA_HOST_TO_DEVICE), 0);
    kvf_cuda_ipc_handle h;
    assert_int_equal(cuda.ipc_export(&h, device + 5000), 0); /* the handle is of the whole */
    assert_int_equal(write(pipes[1], &h, sizeof h), sizeof h);
    int status;
    waitpid(child, &status, 0);
    assert_int_equal(status, 0);
    assert_int_equal(cuda.copy(host, device + 5000, 64, KVF_CUDA_DEVICE_TO_HOST), 0);
    for (int i = 0; i < 64; i++) assert_int_equal(host[i], i + 1);
    cuda.memory_give(device);
    assert_int_equal(cuda.ipc_export(&h, device), KVF_CUDA_INVALID_VALUE);
    memset(&h, 7, sizeof h);
    void *p = NULL;
    assert_int_equal(cuda.ipc_open(&p, h, KVF_CUDA_IPC_LAZY_PEER), KVF_CUDA_INVALID_VALUE);
    close(pipes[0]);
    close(pipes[1]);
}

int main(void) {
#define TEST(name) cmocka_unit_test_setup_teardown(name, setup, teardown)
    const struct CMUnitTest tests[] = {
        TEST(memory_is_shared_with_another_process),
        TEST(each_thing_that_is_missing_is_named),
        TEST(devices_are_listed_and_old_ones_refused),
        TEST(a_stream_keeps_its_order_and_events_join_two),
        TEST(memory_ends_and_copies_outside_it_are_refused),
        TEST(a_captured_graph_is_done_again),
        TEST(what_a_capture_forbids_spoils_it),
        TEST(the_nth_call_fails_once),
        TEST(a_sticky_error_answers_everything),
        TEST(calls_and_kernels_that_never_return_are_let_go),
        TEST(faults_come_from_the_environment),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
