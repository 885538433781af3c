/* The fake NCCL: two ranks in two threads, and in two processes where one dies. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>
#include "fake_test.h"
#include "kvf/os.h"
#include <pthread.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

static kvf_cuda_api cuda;
static kvf_nccl_api nccl;
enum { BYTES = 3 << 20 };

typedef struct {
    kvf_nccl_comm comm;
    kvf_cuda_stream stream;
    uint8_t *device;
    int rank;
} side;

static int setup(void **state) {
    fake_cuda_reset();
    fake_open(&cuda, &nccl);
    return 0;
}
static int teardown(void **state) {
    fake_cuda_reset();
    kvf_nccl_unload(&nccl);
    kvf_cuda_unload(&cuda);
    return 0;
}

static int settle(side *s, int result) {
    while (result == KVF_NCCL_IN_PROGRESS) {
        usleep(200);
        int error = nccl.async_error(s->comm, &result);
        if (error) return error;
    }
    return result;
}
static int join(side *s, const kvf_nccl_id *id, int rank, bool blocking) {
    kvf_nccl_config config = KVF_NCCL_CONFIG;
    config.blocking = blocking;
    config.ctas_max = 4;
    s->rank = rank;
    if (cuda.stream_create(&s->stream, KVF_CUDA_STREAM_NON_BLOCKING, 0)) return -1;
    if (cuda.memory_take((void **)&s->device, BYTES)) return -1;
    return nccl.init(&s->comm, 2, *id, rank, &config);
}
static void pair(side sides[2]) {
    kvf_nccl_id id;
    assert_int_equal(nccl.id(&id), 0);
    memset(sides, 0, 2 * sizeof *sides);
    for (int r = 0; r < 2; r++) assert_int_equal(join(&sides[r], &id, r, false), KVF_NCCL_IN_PROGRESS);
    for (int r = 0; r < 2; r++) assert_int_equal(settle(&sides[r], KVF_NCCL_IN_PROGRESS), 0);
}
/* All communicators go before any memory does: cudaFree waits for every stream of the device. */
static void leave(side *sides, int count, bool abort) {
    for (int i = 0; i < count; i++)
        assert_int_equal(abort ? nccl.abort(sides[i].comm) : nccl.destroy(sides[i].comm), 0);
    for (int i = 0; i < count; i++) {
        assert_int_equal(cuda.stream_synchronize(sides[i].stream), 0);
        cuda.memory_give(sides[i].device);
        cuda.stream_destroy(sides[i].stream);
    }
}
static void fill(const side *s, uint8_t seed) {
    uint8_t *host = malloc(BYTES);
    for (size_t i = 0; i < BYTES; i++) host[i] = (uint8_t)(i * seed + (i >> 9));
    assert_int_equal(cuda.copy(s->device, host, BYTES, KVF_CUDA_HOST_TO_DEVICE), 0);
    free(host);
}
static void check(const side *s, uint8_t seed) {
    uint8_t *host = malloc(BYTES);
    assert_int_equal(cuda.copy(host, s->device, BYTES, KVF_CUDA_DEVICE_TO_HOST), 0);
    for (size_t i = 0; i < BYTES; i++)
        if (host[i] != (uint8_t)(i * seed + (i >> 9))) fail_msg("byte %zu", i);
    free(host);
}

static void bytes_go_from_rank_to_rank(void **state) {
    side s[2];
    pair(s);
    for (uint8_t seed = 1; seed < 6; seed++) {
        fill(&s[0], seed);
        assert_int_equal(
            nccl.send(s[0].device, BYTES, KVF_NCCL_BYTES, 1, s[0].comm, s[0].stream), KVF_NCCL_IN_PROGRESS);
        assert_int_equal(settle(&s[0], KVF_NCCL_IN_PROGRESS), 0);
        assert_int_equal(cuda.stream_query(s[0].stream), KVF_CUDA_NOT_READY); /* nobody receives yet */
        assert_int_equal(
            nccl.recv(s[1].device, BYTES, KVF_NCCL_BYTES, 0, s[1].comm, s[1].stream), KVF_NCCL_IN_PROGRESS);
        assert_int_equal(settle(&s[1], KVF_NCCL_IN_PROGRESS), 0);
        assert_int_equal(cuda.stream_synchronize(s[1].stream), 0);
        check(&s[1], seed);
    }
    /* Both ways in one group each: what would be a deadlock one after the other. */
    for (int r = 0; r < 2; r++) {
        assert_int_equal(nccl.group_begin(), 0);
        assert_int_equal(nccl.send(s[r].device, 1000, KVF_NCCL_BYTES, 1 - r, s[r].comm, s[r].stream), 0);
        assert_int_equal(nccl.recv(s[r].device + 2000, 1000, KVF_NCCL_BYTES, 1 - r, s[r].comm, s[r].stream), 0);
        assert_int_equal(nccl.group_end(), KVF_NCCL_IN_PROGRESS);
    }
    for (int r = 0; r < 2; r++) assert_int_equal(settle(&s[r], KVF_NCCL_IN_PROGRESS), 0);
    for (int r = 0; r < 2; r++) assert_int_equal(cuda.stream_synchronize(s[r].stream), 0);
    leave(s, 2, false);
    fake_cuda_counts c;
    fake_cuda_count(&c);
    assert_int_equal(c.comms + c.streams + c.allocations, 0);
    assert_int_equal(c.sends, 7);
    assert_int_equal(c.recvs, 7);
}

static void misuse_is_answered(void **state) {
    side s[2];
    pair(s);
    uint8_t host[16];
    assert_int_equal(nccl.send(host, 16, KVF_NCCL_BYTES, 1, s[0].comm, s[0].stream), KVF_NCCL_INVALID_ARGUMENT);
    assert_int_equal(nccl.send(s[0].device, 16, KVF_NCCL_BYTES, 0, s[0].comm, s[0].stream), KVF_NCCL_INVALID_USAGE);
    assert_int_equal(nccl.group_end(), KVF_NCCL_INVALID_USAGE);
    /* Before the last group has settled. */
    assert_int_equal(nccl.recv(s[0].device, 16, KVF_NCCL_BYTES, 1, s[0].comm, s[0].stream), KVF_NCCL_IN_PROGRESS);
    int again = nccl.recv(s[0].device, 16, KVF_NCCL_BYTES, 1, s[0].comm, s[0].stream);
    assert_true(again == KVF_NCCL_INVALID_ARGUMENT || again == KVF_NCCL_IN_PROGRESS); /* it may have been quick */
    /* A group with one bad call launches nothing. */
    nccl.group_begin();
    assert_int_equal(nccl.send(s[1].device, 16, KVF_NCCL_BYTES, 0, s[1].comm, s[1].stream), 0);
    assert_int_equal(nccl.send(host, 16, KVF_NCCL_BYTES, 0, s[1].comm, s[1].stream), KVF_NCCL_INVALID_ARGUMENT);
    assert_int_equal(nccl.group_end(), KVF_NCCL_INVALID_ARGUMENT);
    assert_int_equal(cuda.stream_synchronize(s[1].stream), 0);
    leave(s, 2, true);
}

static void sizes_that_differ_are_told(void **state) {
    side s[2];
    pair(s);
    nccl.recv(s[1].device, 1000, KVF_NCCL_BYTES, 0, s[1].comm, s[1].stream);
    nccl.send(s[0].device, 999, KVF_NCCL_BYTES, 1, s[0].comm, s[0].stream);
    int result = KVF_NCCL_OK;
    while (result == KVF_NCCL_OK || result == KVF_NCCL_IN_PROGRESS) {
        usleep(500);
        assert_int_equal(nccl.async_error(s[1].comm, &result), 0);
    }
    assert_int_equal(result, KVF_NCCL_INVALID_USAGE);
    assert_int_equal(cuda.stream_query(s[1].stream), KVF_CUDA_NOT_READY); /* it spins */
    leave(s, 2, true);
}

static void an_abort_ends_what_waits_for_nobody(void **state) {
    kvf_nccl_id id;
    side s[2];
    assert_int_equal(nccl.id(&id), 0);
    memset(s, 0, sizeof s);
    assert_int_equal(join(&s[0], &id, 0, false), KVF_NCCL_IN_PROGRESS); /* rank 1 never comes */
    leave(s, 1, true);
    pair(s);
    nccl.recv(s[1].device, 1000, KVF_NCCL_BYTES, 0, s[1].comm, s[1].stream);
    leave(s, 2, true);
}

static void planted_faults_reach_it(void **state) {
    side s[2];
    pair(s);
    fake_cuda_fault("ncclSend", 2, FAKE_FAIL, KVF_NCCL_SYSTEM_ERROR);
    nccl.recv(s[1].device, 10, KVF_NCCL_BYTES, 0, s[1].comm, s[1].stream);
    assert_int_equal(settle(&s[0], nccl.send(s[0].device, 10, KVF_NCCL_BYTES, 1, s[0].comm, s[0].stream)), 0);
    assert_int_equal(nccl.send(s[0].device, 10, KVF_NCCL_BYTES, 1, s[0].comm, s[0].stream), KVF_NCCL_SYSTEM_ERROR);
    assert_int_equal(settle(&s[1], KVF_NCCL_IN_PROGRESS), 0);
    cuda.stream_synchronize(s[1].stream);
    leave(s, 2, true);
}

/* The peer is another process and is killed while this side's receive is posted: nothing tells, until it is aborted. */
static void a_killed_peer_is_ended_by_abort(void **state) {
    int pipes[2];
    kvf_nccl_id id;
    assert_int_equal(nccl.id(&id), 0);
    assert_int_equal(pipe(pipes), 0);
    fflush(NULL);
    pid_t child = fork();
    if (child == 0) {
        side s = {0};
        if (join(&s, &id, 0, true) || write(pipes[1], "x", 1) != 1) _exit(1);
        nccl.send(s.device, 100, KVF_NCCL_BYTES, 1, s.comm, s.stream);
        for (;;) pause();
    }
    side s = {0};
    assert_int_equal(join(&s, &id, 1, true), 0);
    char x;
    assert_int_equal(read(pipes[0], &x, 1), 1);
    nccl.recv(s.device, 100, KVF_NCCL_BYTES, 0, s.comm, s.stream);
    assert_int_equal(cuda.stream_synchronize(s.stream), 0);
    nccl.recv(s.device, 100, KVF_NCCL_BYTES, 0, s.comm, s.stream);
    kill(child, SIGKILL);
    waitpid(child, NULL, 0);
    usleep(20000);
    int result = KVF_NCCL_OK;
    nccl.async_error(s.comm, &result);
    assert_int_equal(result, KVF_NCCL_OK);
    assert_int_equal(cuda.stream_query(s.stream), KVF_CUDA_NOT_READY);
    leave(&s, 1, true);
    close(pipes[0]);
    close(pipes[1]);
}

int main(void) {
#define TEST(name) cmocka_unit_test_setup_teardown(name, setup, teardown)
    const struct CMUnitTest tests[] = {
        TEST(a_killed_peer_is_ended_by_abort),
        TEST(bytes_go_from_rank_to_rank),
        TEST(misuse_is_answered),
        TEST(sizes_that_differ_are_told),
        TEST(an_abort_ends_what_waits_for_nobody),
        TEST(planted_faults_reach_it),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
