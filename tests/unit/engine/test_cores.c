/* Cores that are shared out: lists of numbers, lending and its ends (the owner is back, the borrower gives back, or
 * dies), and pools that compute on cores which come and go: every task once, none on a core whose owner has work. */
#include "pool.h"
#include <setjmp.h>
#include <stdarg.h>
#include <cmocka.h>
#include <sched.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/wait.h>
#include <unistd.h>

typedef struct {
    char path[64], own[2][16];
    cpu_set_t set; /* both */
    kvf_cores *a, *b; /* a has the first core, b the second; each may borrow the other's */
} fixture;

static int two_cores(void **state) {
    fixture *f = calloc(1, sizeof *f);
    kvf_host_cores host;
    strcpy(f->path, "/tmp/kvf-cores-XXXXXX");
    int fd = mkstemp(f->path);
    assert_true(fd >= 0 && ftruncate(fd, KVF_CORES_FILE_BYTES) == 0);
    close(fd);
    *state = f;
    if (!kvf_host_cores_read(&host) || host.count < 2) return 0;
    CPU_ZERO(&f->set);
    for (int i = 0; i < 2; i++) {
        CPU_SET(host.cpu[i], &f->set);
        snprintf(f->own[i], sizeof f->own[i], "%u", host.cpu[i]);
    }
    assert_int_equal(sched_setaffinity(0, sizeof f->set, &f->set), 0);
    assert_int_equal(kvf_cores_open(f->own[0], f->path, &f->a, NULL), KVF_OK);
    assert_int_equal(kvf_cores_open(f->own[1], f->path, &f->b, NULL), KVF_OK);
    return 0;
}
static int done(void **state) {
    fixture *f = *state;
    kvf_cores_close(f->a);
    kvf_cores_close(f->b);
    unlink(f->path);
    free(f);
    return 0;
}
#define NEEDS_TWO_CORES(f)                                                                                             \
    if (!(f)->a) {                                                                                                     \
        print_message("one core, or a quota: nothing can be lent\n");                                                  \
        skip();                                                                                                        \
    }

static void lists(void **state) {
    static const struct {
        uint16_t cores[6];
        uint32_t count;
        const char *text;
    } rows[] = {{{0}, 1, "0"}, {{0, 1, 2, 3}, 4, "0-3"}, {{2, 4, 5, 9}, 4, "2,4-5,9"}, {{0}, 0, ""}};
    for (size_t i = 0; i < KVF_COUNT_OF(rows); i++) {
        char text[64];
        kvf_cores_text(rows[i].cores, rows[i].count, text, sizeof text);
        assert_string_equal(text, rows[i].text);
    }
    static const char *const bad[] = {"", "a", "1,", ",1", "3-1", "1-", "1 2", "-1", "1024", "99999999999", "0-1024"};
    for (size_t i = 0; i < KVF_COUNT_OF(bad); i++) {
        kvf_cores *c = NULL;
        assert_int_equal(kvf_cores_open(bad[i], NULL, &c, NULL), KVF_ERR_INVALID);
    }
    kvf_cores *c = NULL;
    assert_int_equal(kvf_cores_open("0", "/nowhere/cores", &c, NULL), KVF_ERR_IO);
    assert_int_equal(kvf_cores_open("0", "/dev/null", &c, NULL), KVF_ERR_INVALID);
}

static void alone(void **state) {
    fixture *f = *state;
    kvf_cores *c = NULL;
    NEEDS_TWO_CORES(f);
    assert_int_equal(kvf_cores_open(f->own[1], NULL, &c, NULL), KVF_OK);
    assert_int_equal(kvf_cores_own(c), 1);
    assert_int_equal(kvf_cores_all(c), 1); /* nobody lends */
    kvf_cores_begin(c);
    kvf_cores_end(c);
    kvf_cores_close(c);
}

static void an_idle_core_is_lent(void **state) {
    fixture *f = *state;
    NEEDS_TWO_CORES(f);
    assert_int_equal(kvf_cores_own(f->a), 1);
    assert_int_equal(kvf_cores_all(f->a), 2);
    assert_true(kvf_cores_may_use(f->a, 1) && kvf_cores_take(f->a, 1));
    kvf_cores_begin(f->b); /* never waits for who has it */
    assert_false(kvf_cores_may_use(f->a, 1));
    assert_false(kvf_cores_take(f->a, 1));
    kvf_cores_give_back(f->a, 1);
    kvf_cores_end(f->b);
    assert_true(kvf_cores_may_use(f->b, 0));
    while (!kvf_cores_may_use(f->a, 1)) sched_yield(); /* a moment after the step */
    assert_true(kvf_cores_take(f->a, 1));
    kvf_cores_give_back(f->a, 1);
}

/* A process that dies in a step lends again when it is back; the core that a dead one has borrowed is free again. */
static void deaths(void **state) {
    fixture *f = *state;
    NEEDS_TWO_CORES(f);
    int up[2], down[2];
    char byte = 0;
    assert_true(pipe(up) == 0 && pipe(down) == 0);
    pid_t child = fork();
    if (child == 0) {
        kvf_cores *b = NULL, *third = NULL;
        bool ok = kvf_cores_open(f->own[1], f->path, &b, NULL) == KVF_OK;
        ok = ok && kvf_cores_open(f->own[0], f->path, &third, NULL) == KVF_OK && kvf_cores_take(third, 1);
        byte = ok;
        _exit(write(up[1], &byte, 1) == 1 && read(down[0], &byte, 1) == 1 ? 0 : 1);
    }
    assert_int_equal(read(up[0], &byte, 1), 1);
    assert_int_equal(byte, 1);
    kvf_cores_begin(f->a);
    assert_false(kvf_cores_may_use(f->a, 1)); /* the child has it, and lives */
    assert_false(kvf_cores_take(f->a, 1));
    assert_int_equal(write(down[1], &byte, 1), 1);
    assert_int_equal(waitpid(child, NULL, 0), child);
    kvf_cores_begin(f->a);
    assert_true(kvf_cores_take(f->a, 1));
    kvf_cores_give_back(f->a, 1);
    kvf_cores_begin(f->b); /* "dies" here */
    assert_false(kvf_cores_may_use(f->a, 1));
    kvf_cores *again = NULL;
    assert_int_equal(kvf_cores_open(f->own[1], f->path, &again, NULL), KVF_OK);
    assert_true(kvf_cores_may_use(f->a, 1));
    kvf_cores_close(again);
    for (int i = 0; i < 2; i++) close(up[i]), close(down[i]);
}

enum { TASKS = 400 };
typedef struct {
    fixture *f;
    _Atomic uint32_t done[TASKS];
    _Atomic uint32_t borrowed; /* tasks on the other's core */
    bool owner_returns;
} record;
static void note(void *context, uint32_t task, uint32_t thread) {
    record *r = context;
    atomic_fetch_add(&r->done[task], 1);
    for (volatile uint32_t i = 0; i < 2000; i++) {
    } /* long enough for others to take part */
    if (thread == 0) return;
    atomic_fetch_add(&r->borrowed, 1);
    if (r->owner_returns) kvf_cores_begin(r->f->b);
}
static uint32_t run(kvf_pool *p, fixture *f, bool owner_returns) {
    record *r = calloc(1, sizeof *r);
    r->f = f;
    r->owner_returns = owner_returns;
    kvf_pool_begin(p);
    kvf_pool_run(p, note, r, TASKS);
    kvf_pool_end(p);
    for (uint32_t i = 0; i < TASKS; i++) assert_int_equal(atomic_load(&r->done[i]), 1);
    uint32_t borrowed = atomic_load(&r->borrowed);
    free(r);
    return borrowed;
}

static void pools_leave_borrowed_cores(void **state) {
    fixture *f = *state;
    NEEDS_TWO_CORES(f);
    kvf_pool *p = NULL;
    assert_int_equal(kvf_pool_create(2, f->a, &p), KVF_OK);
    for (int round = 0; round < 5; round++) {
        kvf_cores_begin(f->b);
        assert_int_equal(run(p, f, false), 0);
        kvf_cores_end(f->b);
        while (run(p, f, false) == 0) {
        } /* lent again, in the end */
        uint32_t last;
        while ((last = run(p, f, true)) == 0) {
        }
        assert_int_equal(last, 1); /* the owner came back during that task */
        kvf_cores_end(f->b);
    }
    while (kvf_pool_sleepers(p) < 1) sched_yield();
    while (!kvf_cores_may_use(f->a, 1)) sched_yield();
    pid_t child = fork(); /* who sleeps has nothing: another process gets it */
    if (child == 0) {
        kvf_cores *c = NULL;
        sched_setaffinity(0, sizeof f->set, &f->set); /* the pool has bound its first thread */
        _exit(kvf_cores_open(f->own[0], f->path, &c, NULL) == KVF_OK && kvf_cores_take(c, 1) ? 0 : 1);
    }
    int status = -1;
    assert_int_equal(waitpid(child, &status, 0), child);
    assert_int_equal(status, 0);
    kvf_pool_destroy(p);
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test_setup_teardown(lists, two_cores, done),
        cmocka_unit_test_setup_teardown(alone, two_cores, done),
        cmocka_unit_test_setup_teardown(an_idle_core_is_lent, two_cores, done),
        cmocka_unit_test_setup_teardown(deaths, two_cores, done),
        cmocka_unit_test_setup_teardown(pools_leave_borrowed_cores, two_cores, done)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
