/* The thread pool: every task once, whatever the threads, run after run, also with more threads than cores and after
 * sleeping. */
#include "pool.h"
#include <setjmp.h>
#include <stdarg.h>
#include <cmocka.h>
#include <sched.h>
#include <stdatomic.h>
#include <stdlib.h>

enum { TASKS_MAX = 300 };
typedef struct {
    _Atomic uint32_t done[TASKS_MAX];
    _Atomic uint32_t thread_max;
} record;

static void note_task(void *context, uint32_t task, uint32_t thread) {
    record *r = context;
    atomic_fetch_add(&r->done[task], 1);
    if (thread > atomic_load(&r->thread_max)) atomic_store(&r->thread_max, thread);
}

static void every_task_once(void **state) {
    static const uint32_t threads[] = {1, 2, 3, 8};
    for (size_t t = 0; t < KVF_COUNT_OF(threads); t++) {
        kvf_pool *p = NULL;
        assert_int_equal(kvf_pool_create(threads[t], NULL, &p), KVF_OK);
        assert_int_equal(kvf_pool_threads(p), threads[t]);
        for (uint32_t run = 0; run < 3000; run++) {
            uint32_t tasks = run * 13 % TASKS_MAX;
            record *r = calloc(1, sizeof *r);
            kvf_pool_run(p, note_task, r, tasks);
            for (uint32_t i = 0; i < TASKS_MAX; i++) assert_int_equal(atomic_load(&r->done[i]), i < tasks);
            assert_true(atomic_load(&r->thread_max) < threads[t]);
            free(r);
        }
        kvf_pool_destroy(p);
    }
}

/* Idle workers go to sleep, and wake for the next run. (One that never slept would hang this test.) */
static void idle_workers_sleep(void **state) {
    kvf_pool *p = NULL;
    record *r = calloc(1, sizeof *r);
    assert_int_equal(kvf_pool_create(4, NULL, &p), KVF_OK);
    for (uint32_t run = 1; run <= 3; run++) {
        kvf_pool_run(p, note_task, r, 100);
        while (kvf_pool_sleepers(p) < 3) sched_yield();
        for (uint32_t i = 0; i < 100; i++) assert_int_equal(atomic_load(&r->done[i]), run);
    }
    kvf_pool_destroy(p);
    free(r);
}

static void never_used(void **state) {
    kvf_pool *p = NULL;
    assert_int_equal(kvf_pool_create(3, NULL, &p), KVF_OK);
    kvf_pool_destroy(p);
    kvf_pool_destroy(NULL);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_task_once), cmocka_unit_test(idle_workers_sleep), cmocka_unit_test(never_used)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
