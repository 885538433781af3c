/* The emulator itself: what it lets through is right, and what breaks CUDA's rules is stopped with its reason. */
#include "cuda_test.h"
#include "port.h"
#include <csignal>
#include <string>
#include <sys/wait.h>
#include <unistd.h>

/* Runs `body` in a process of its own; the reason the emulator gave, or "" when it came to the end. */
template <class F> static std::string reason_of(F body) {
    int ends[2];
    assert_int_equal(pipe(ends), 0);
    pid_t pid = fork();
    if (pid == 0) {
        signal(SIGABRT, SIG_DFL);
        dup2(ends[1], STDERR_FILENO);
        body();
        _exit(0);
    }
    close(ends[1]);
    std::string text;
    char part[512];
    for (ssize_t n; (n = read(ends[0], part, sizeof part)) > 0;) text.append(part, (size_t)n);
    close(ends[0]);
    int status;
    assert_int_equal(waitpid(pid, &status, 0), pid);
    if (WIFEXITED(status) && WEXITSTATUS(status) == 0) return "";
    assert_true(WIFSIGNALED(status) && WTERMSIG(status) == SIGABRT);
    return text.substr(0, text.find('\n'));
}
#define assert_stops(reason, body)                                                                                     \
    do {                                                                                                               \
        std::string said = reason_of(body);                                                                            \
        if (said.find(reason) == std::string::npos) fail_msg("expected \"%s\", got \"%s\"", reason, said.c_str());     \
    } while (0)

/* ---- wrong kernels ---- */

static __global__ void different_barriers(int *) {
    if (threadIdx.x < 16)
        __syncthreads();
    else
        __syncthreads();
}
static __global__ void ends_early(int *) {
    if (threadIdx.x == 3) return;
    __syncthreads();
}
static __global__ void shuffles_with_the_absent(int *out) {
    if (threadIdx.x < 8) out[threadIdx.x] = __shfl_sync(0xFFu, (int)threadIdx.x, 12);
}
static __global__ void waits_for_the_absent(int *out) {
    if (threadIdx.x < 8) out[threadIdx.x] = __shfl_sync(KVF_WARP_ALL, (int)threadIdx.x, 0);
}
static __global__ void not_in_its_mask(int *out) {
    if (threadIdx.x == 9) __syncwarp(0xFF);
}
static __global__ void copies_misaligned(int *out) {
    kvf_copy_async16(out + 1, out + 4, 16);
    kvf_copy_commit();
    kvf_copy_wait<0>();
}
static __global__ void forgets_its_copies(int *out) {
    kvf_copy_async16(out, out + 4, 16);
    kvf_copy_commit();
}
static __global__ void reads_unwritten(int *out) {
    KVF_SHARED(int, shared);
    out[threadIdx.x] = shared[threadIdx.x];
}

template <class K> static void run(K kernel, int *memory) {
    KVF_LAUNCH(kernel, dim3(1), dim3(32), 128, nullptr, memory); /* arguments by value, as on the device */
}

static void broken_rules_are_named(void **state) {
    alignas(16) int words[64] = {0};
    int *memory = words;
    assert_stops("wait at different __syncthreads", [&] { run(different_barriers, memory); });
    assert_stops("ended while others wait", [&] { run(ends_early, memory); });
    assert_stops("reads a lane outside its mask", [&] { run(shuffles_with_the_absent, memory); });
    assert_stops("no thread can go on", [&] { run(waits_for_the_absent, memory); });
    assert_stops("whose mask leaves it out", [&] { run(not_in_its_mask, memory); });
    assert_stops("cp.async: misaligned", [&] { run(copies_misaligned, memory); });
    assert_stops("copies that nobody waited for", [&] { run(forgets_its_copies, memory); });
    assert_stops("launch of 1 x 1 x 1 blocks of 2048",
        [&] { KVF_LAUNCH(reads_unwritten, dim3(1), dim3(2048), 0, nullptr, memory); });
    assert_string_equal(reason_of([&] { run(reads_unwritten, memory); }).c_str(), "");
}

static void unwritten_shared_memory_is_poison(void **state) {
    int out[32] = {0};
    run(reads_unwritten, out);
    for (int v : out) assert_int_equal(v, -1);
}

/* ---- right ones ---- */

static __global__ void lanes(int *out) {
    int lane = threadIdx.x;
    out[lane] = __shfl_xor_sync(KVF_WARP_ALL, lane, 5);
    out[32 + lane] = __shfl_up_sync(KVF_WARP_ALL, lane, 3);
    out[64 + lane] = __shfl_down_sync(KVF_WARP_ALL, lane, 3, 8);
    out[96 + lane] = (int)__ballot_sync(KVF_WARP_ALL, lane % 3 == 0);
    out[128 + lane] = __syncthreads_count(lane < 7);
}

static void lanes_exchange(void **state) {
    in_all_orders([] {
        std::vector<int> result(160);
        int *out = result.data();
        KVF_LAUNCH(lanes, dim3(1), dim3(32), 0, nullptr, out);
        for (int i = 0; i < 32; i++) {
            assert_int_equal(out[i], i ^ 5);
            assert_int_equal(out[32 + i], i < 3 ? i : i - 3);
            assert_int_equal(out[64 + i], i % 8 < 5 ? i + 3 : i);
            assert_int_equal((unsigned)out[96 + i], 0x49249249u);
            assert_int_equal(out[128 + i], 7);
        }
    });
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(broken_rules_are_named),
        cmocka_unit_test(unwritten_shared_memory_is_poison),
        cmocka_unit_test(lanes_exchange),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
