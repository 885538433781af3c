#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>
#include <fcntl.h>
#include <poll.h>
#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/resource.h>
#include <unistd.h>
#include "kvf/arena.h"
#include "kvf/hash.h"
#include "kvf/log.h"
#include "kvf/os.h"
#include "kvf/rng.h"

static void crc32c_matches_the_rfc_vectors(void **state) {
    uint8_t zeros[32] = {0}, ones[32], up[32];
    memset(ones, 0xff, sizeof ones);
    for (int i = 0; i < 32; i++) up[i] = (uint8_t)i;
    assert_int_equal(kvf_crc32c(0, zeros, 32), 0x8a9136aa);
    assert_int_equal(kvf_crc32c(0, ones, 32), 0x62a8ab43);
    assert_int_equal(kvf_crc32c(0, up, 32), 0x46dd794e);
    assert_int_equal(kvf_crc32c(kvf_crc32c(0, up, 13), up + 13, 19), 0x46dd794e);
}

static void sha256_and_hmac_match_published_vectors(void **state) {
    static const uint8_t abc[4] = {0xba, 0x78, 0x16, 0xbf};
    static const uint8_t jefe[4] = {0x5b, 0xdc, 0xc1, 0x46}; /* RFC 4231 case 2 */
    uint8_t out[32];
    kvf_sha256("abc", 3, out);
    assert_memory_equal(out, abc, 4);
    kvf_hmac_sha256("Jefe", 4, "what do ya want for nothing?", 28, out);
    assert_memory_equal(out, jefe, 4);
}

static void random_numbers_depend_on_all_three_inputs(void **state) {
    uint64_t a = kvf_rng_at(7, 0, 100);
    assert_true(a == kvf_rng_at(7, 0, 100));
    assert_true(a != kvf_rng_at(8, 0, 100));
    assert_true(a != kvf_rng_at(7, 1, 100));
    assert_true(a != kvf_rng_at(7, 0, 101));
    /* No stream is a shifted copy of another: 4 seeds x 4 streams x 1,000 counters, all different. */
    static uint64_t seen[16000];
    size_t n = 0;
    for (uint64_t s = 0; s < 4; s++)
        for (uint64_t c = 0; c < 4; c++)
            for (uint64_t p = 0; p < 1000; p++) seen[n++] = kvf_rng_at(s, c, p);
    uint64_t bits = 0;
    for (size_t i = 0; i < n; i++) bits += (uint64_t)__builtin_popcountll(seen[i]);
    assert_in_range(bits, 31 * n, 33 * n);
    for (size_t i = 1; i < n; i++) assert_true(seen[i] != seen[0]);
}

static void arena_measures_then_lays_out_the_same(void **state) {
    kvf_arena measure = {0};
    (void)KVF_ARENA_NEW(&measure, char, 3);
    (void)KVF_ARENA_NEW(&measure, uint64_t, 2);
    assert_int_equal(measure.used_bytes, 8 + 16);
    _Alignas(64) uint8_t memory[64];
    kvf_arena real = {.base = memory, .size_bytes = measure.used_bytes};
    char *c = KVF_ARENA_NEW(&real, char, 3);
    uint64_t *u = KVF_ARENA_NEW(&real, uint64_t, 2);
    assert_ptr_equal(c, memory);
    assert_ptr_equal(u, memory + 8);
    assert_int_equal(u[1], 0);
}

static void *put_thousand(void *mailbox) {
    for (uintptr_t i = 1; i <= 1000; i++)
        while (kvf_mailbox_put(mailbox, (void *)i) == KVF_AGAIN) sched_yield();
    return NULL;
}

static void mailbox_wakes_keeps_order_and_refuses_when_full(void **state) {
    kvf_mailbox *m;
    assert_int_equal(kvf_mailbox_create(4, &m), KVF_OK);
    struct pollfd p = {.fd = kvf_mailbox_fd(m), .events = POLLIN};
    assert_int_equal(poll(&p, 1, 0), 0);
    for (uintptr_t i = 1; i <= 4; i++) assert_int_equal(kvf_mailbox_put(m, (void *)i), KVF_OK);
    assert_int_equal(kvf_mailbox_put(m, (void *)5), KVF_AGAIN);
    assert_int_equal(poll(&p, 1, 0), 1);
    for (uintptr_t i = 1; i <= 4; i++) assert_int_equal((uintptr_t)kvf_mailbox_take(m), i);
    assert_null(kvf_mailbox_take(m));
    assert_int_equal(poll(&p, 1, 0), 0);
    pthread_t t;
    pthread_create(&t, NULL, put_thousand, m);
    for (uintptr_t next = 1; next <= 1000;) {
        poll(&p, 1, 1000);
        void *got;
        while ((got = kvf_mailbox_take(m))) assert_int_equal((uintptr_t)got, next++);
    }
    pthread_join(t, NULL);
    kvf_mailbox_destroy(m);
}

/* A ring that walked through all of its memory would look like a leak for as long as that takes. */
static void mailbox_touches_what_it_needs(void **state) {
#ifdef __SANITIZE_THREAD__
    skip(); /* its shadow counts as ours */
#endif
    enum { CAPACITY = 65536 };
    uint64_t before, after, rss;
    uint32_t fds;
    kvf_mailbox *m;
    assert_int_equal(kvf_mailbox_create(CAPACITY, &m), KVF_OK);
    kvf_os_usage(&before, &rss, &fds);
    for (uintptr_t i = 1; i <= 2 * CAPACITY; i++) {
        assert_int_equal(kvf_mailbox_put(m, (void *)i), KVF_OK);
        assert_int_equal((uintptr_t)kvf_mailbox_take(m), i);
    }
    kvf_os_usage(&after, &rss, &fds);
    assert_true(after < before + CAPACITY * sizeof(void *) / 2);
    kvf_mailbox_destroy(m);
}

static char logged[256];
static void keep_line(void *self, kvf_log_level level, const char *component, const char *message) {
    snprintf(logged, sizeof logged, "%d %s %s", (int)level, component, message);
}

static void log_goes_to_the_sink_and_honours_the_level(void **state) {
    kvf_log_level level;
    assert_false(kvf_log_level_parse("loud", &level));
    assert_true(kvf_log_level_parse("debug", &level));
    kvf_log_set_sink(keep_line, NULL);
    kvf_log(KVF_LOG_INFO, "test", "req %d", 7);
    assert_string_equal(logged, "2 test req 7");
    kvf_log(KVF_LOG_DEBUG, "test", "unseen");
    assert_string_equal(logged, "2 test req 7");
    kvf_log_set_sink(NULL, NULL);
}

/* A disk that is full in the middle of a line: the service goes on, later it says how many lines are missing. */
static void log_lines_that_cannot_be_written_are_counted_and_told(void **state) {
    char path[] = "/tmp/kvf-log.XXXXXX", text[4096];
    int file = mkstemp(path), before = dup(STDERR_FILENO), full = open("/dev/full", O_WRONLY | O_CLOEXEC);
    struct rlimit limit;
    assert_true(file >= 0 && before >= 0 && full >= 0);
    signal(SIGXFSZ, SIG_IGN);
    getrlimit(RLIMIT_FSIZE, &limit);
    dup2(file, STDERR_FILENO);
    kvf_log(KVF_LOG_INFO, "test", "first");
    struct rlimit small = {.rlim_cur = (rlim_t)lseek(file, 0, SEEK_END) + 20, .rlim_max = limit.rlim_max};
    setrlimit(RLIMIT_FSIZE, &small);
    for (int i = 0; i < 3; i++) kvf_log(KVF_LOG_INFO, "test", "unseen");
    uint64_t lost_at_limit = kvf_log_lost();
    dup2(full, STDERR_FILENO);
    for (int i = 0; i < 4; i++) kvf_log(KVF_LOG_INFO, "test", "unseen");
    uint64_t lost_in_all = kvf_log_lost();
    setrlimit(RLIMIT_FSIZE, &limit);
    dup2(file, STDERR_FILENO);
    kvf_log(KVF_LOG_INFO, "test", "last");
    uint64_t lost_then = kvf_log_lost();
    dup2(before, STDERR_FILENO);
    ssize_t n = pread(file, text, sizeof text - 1, 0);
    text[n > 0 ? n : 0] = 0;
    assert_int_equal(lost_at_limit, 3);
    assert_int_equal(lost_in_all, 7);
    assert_int_equal(lost_then, 0);
    char *second = strchr(text, '\n') + 1, *third = strchr(second, '\n') + 1, *fourth = strchr(third, '\n') + 1;
    assert_int_equal(third - second, 20 + 1); /* what there was room for, and the line's end */
    assert_non_null(strstr(third, "7 log lines before this one could not be written: "));
    assert_true(strstr(third, "7 log lines") < fourth);
    assert_non_null(strstr(fourth, "\"msg\":\"last\"}\n"));
    assert_int_equal(strchr(fourth, '\n')[1], 0);
    close(file);
    close(before);
    close(full);
    unlink(path);
}

static void errors_carry_status_and_are_cut_not_overrun(void **state) {
    kvf_error e;
    char longest[1000];
    memset(longest, 'x', sizeof longest - 1);
    longest[sizeof longest - 1] = 0;
    assert_int_equal(kvf_fail(&e, KVF_ERR_STALE, "%s", longest), KVF_ERR_STALE);
    assert_int_equal(strlen(e.message), sizeof e.message - 1);
    assert_string_equal(kvf_status_name(KVF_ERR_STALE), "KVF_ERR_STALE");
    assert_string_equal(kvf_status_text((kvf_status)12345), "unknown status");
}

static void host_facts_are_sane(void **state) {
    uint64_t anon, rss;
    uint32_t fds;
    assert_true(kvf_os_cpu_count() >= 1);
    assert_true(kvf_os_host_id() == kvf_os_host_id());
    kvf_os_usage(&anon, &rss, &fds);
    assert_true(rss >= anon && rss > 0);
    assert_in_range(fds, 3, 200);
    assert_true(kvf_os_random_u64() != kvf_os_random_u64());
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(crc32c_matches_the_rfc_vectors),
        cmocka_unit_test(sha256_and_hmac_match_published_vectors),
        cmocka_unit_test(random_numbers_depend_on_all_three_inputs),
        cmocka_unit_test(arena_measures_then_lays_out_the_same),
        cmocka_unit_test(mailbox_wakes_keeps_order_and_refuses_when_full),
        cmocka_unit_test(mailbox_touches_what_it_needs),
        cmocka_unit_test(log_goes_to_the_sink_and_honours_the_level),
        cmocka_unit_test(log_lines_that_cannot_be_written_are_counted_and_told),
        cmocka_unit_test(errors_carry_status_and_are_cut_not_overrun),
        cmocka_unit_test(host_facts_are_sane),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
