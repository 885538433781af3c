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

/* c[16][8] = a[16][16] * b[8][16]^T, and through the transposing load c2 = a * bt[16][8]. */
static __global__ void tile(float *c, const __half *a, const __half *b, const __half *bt) {
    KVF_SHARED(__half, shared);
    __half *sa = shared, *sb = sa + 16 * 24, *st = sb + 16 * 24;
    int lane = threadIdx.x;
    for (int i = lane; i < 256; i += 32) {
        sa[i / 16 * 24 + i % 16] = a[i];
        sb[i / 16 * 24 + i % 16] = b[i];
        st[i / 16 * 24 + i % 16] = bt[i];
    }
    __syncwarp();
    uint32_t ra[4], rb[4], rt[4];
    float d[2][4] = {}, t[2][4] = {};
    kvf_load_matrix_x4(ra, sa + lane % 16 * 24 + lane / 16 * 8);
    kvf_load_matrix_x4(rb, sb + (lane % 8 + lane / 16 * 8) * 24 + lane / 8 % 2 * 8);
    kvf_load_matrix_x4_trans(rt, st + lane % 16 * 24 + lane / 16 * 8);
    for (int n = 0; n < 2; n++) {
        kvf_mma_f16(d[n], ra, rb + 2 * n);
        kvf_mma_f16(t[n], ra, rt + 2 * n);
    }
    for (int n = 0; n < 2; n++) {
        for (int i = 0; i < 4; i++) {
            int at = (lane / 4 + 8 * (i / 2)) * 16 + n * 8 + (lane & 3) * 2 + (i & 1);
            c[at] = d[n][i];
            c[256 + at] = t[n][i];
        }
    }
}

static void matrices_multiply(void **state) {
    in_all_orders([] {
        maker m;
        halves a = make_halves(m, 256), b = make_halves(m, 256), bt(256);
        for (int i = 0; i < 16; i++)
            for (int k = 0; k < 16; k++) bt[k * 16 + i] = b[i * 16 + k];
        std::vector<float> result(512);
        float *c = result.data();
        KVF_LAUNCH(tile, dim3(1), dim3(32), 3 * 16 * 24 * sizeof(__half), nullptr, c, (const __half *)a.data(),
            (const __half *)b.data(), (const __half *)bt.data());
        for (int i = 0; i < 16; i++) {
            for (int j = 0; j < 16; j++) {
                double want = 0;
                for (int k = 0; k < 16; k++) want += (double)float_of(a[i * 16 + k]) * float_of(b[j * 16 + k]);
                assert_true(std::fabs(c[i * 16 + j] - want) < 1e-5);
                assert_true(c[256 + i * 16 + j] == c[i * 16 + j]);
            }
        }
    });
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(broken_rules_are_named),
        cmocka_unit_test(unwritten_shared_memory_is_poison),
        cmocka_unit_test(lanes_exchange),
        cmocka_unit_test(matrices_multiply),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
