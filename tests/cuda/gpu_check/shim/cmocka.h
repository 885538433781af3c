/* cmocka.h - as much of cmocka as the tests of device kernels use, for machines that have a GPU and nothing else. A
 * program begins by looking for a GPU: without one it says so and exits 77. C++. */
#ifndef KVF_GPU_CHECK_CMOCKA_H
#define KVF_GPU_CHECK_CMOCKA_H
#include <errno.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

extern "C" void gpu_check_begin(void); /* device.cpp */

/* One line for each test in the file that KVF_GPU_CHECK_TESTS names. */
static const char *gpu_check_test;
static inline void gpu_check_tell(bool passed) {
    const char *path = getenv("KVF_GPU_CHECK_TESTS");
    FILE *f = path && gpu_check_test ? fopen(path, "a") : NULL;
    if (!f) return;
    fprintf(f, "{\"check\":\"%s\",\"test\":\"%s\",\"passed\":%s}\n", program_invocation_short_name, gpu_check_test,
        passed ? "true" : "false");
    fclose(f);
}

#define fail_msg(...)                                                                                                  \
    do {                                                                                                               \
        fprintf(stderr, "%s:%d: ", __FILE__, __LINE__);                                                                \
        fprintf(stderr, __VA_ARGS__);                                                                                  \
        fprintf(stderr, "\n");                                                                                         \
        gpu_check_tell(false);                                                                                         \
        exit(1);                                                                                                       \
    } while (0)
#define assert_true(x)                                                                                                 \
    do {                                                                                                               \
        if (!(x)) fail_msg("not true: %s", #x);                                                                        \
    } while (0)
#define assert_int_equal(a, b)                                                                                         \
    do {                                                                                                               \
        long long a_ = (long long)(a), b_ = (long long)(b);                                                            \
        if (a_ != b_) fail_msg("%s is %lld, not %lld", #a, a_, b_);                                                    \
    } while (0)
#define assert_int_not_equal(a, b) assert_true((long long)(a) != (long long)(b))
#define assert_memory_equal(a, b, n) assert_true(memcmp((a), (b), (n)) == 0)

struct CMUnitTest {
    const char *name;
    void (*run)(void **state);
};
#define cmocka_unit_test(f)                                                                                            \
    { #f, f }
#define cmocka_run_group_tests(tests, setup, teardown) gpu_check_run(tests, sizeof tests / sizeof *tests)
static inline int gpu_check_run(const struct CMUnitTest *tests, size_t count) {
    void *state = NULL;
    gpu_check_begin();
    for (size_t i = 0; i < count; i++) {
        gpu_check_test = tests[i].name;
        tests[i].run(&state);
        printf("    %s\n", tests[i].name);
        gpu_check_tell(true);
    }
    return 0;
}
#endif
