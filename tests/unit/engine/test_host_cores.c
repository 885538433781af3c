/* How nodes divide the cores of hosts that are told in a folder like the system's: by number, by hardware threads that
 * are counted last or side by side, over packages and dies; no core to two nodes, all to somebody. */
#include "kvf/cores.h"
#include <setjmp.h>
#include <stdarg.h>
#include <cmocka.h>
#include <ftw.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

typedef struct {
    int package, die, core; /* of a cpu; -1: the system does not say */
} at;

static void tell(const char *sys, uint32_t cpu, const char *name, int value) {
    char path[256];
    if (value < 0) return;
    snprintf(path, sizeof path, "%s/cpu%u/topology/%s", sys, cpu, name);
    FILE *f = fopen(path, "w");
    assert_non_null(f);
    fprintf(f, "%d\n", value);
    fclose(f);
}
static int forget(const char *path, const struct stat *st, int kind, struct FTW *where) { return remove(path); }

static void host_of(kvf_host_cores *h, const at *places, uint32_t count) {
    char sys[] = "/tmp/kvf-host-XXXXXX", path[256];
    assert_non_null(mkdtemp(sys));
    *h = (kvf_host_cores){.count = count};
    for (uint32_t cpu = 0; cpu < count; cpu++) {
        h->cpu[cpu] = (uint16_t)cpu;
        snprintf(path, sizeof path, "%s/cpu%u", sys, cpu);
        assert_int_equal(mkdir(path, 0700), 0);
        strcat(path, "/topology");
        assert_int_equal(mkdir(path, 0700), 0);
        tell(sys, cpu, "physical_package_id", places[cpu].package);
        tell(sys, cpu, "die_id", places[cpu].die);
        tell(sys, cpu, "core_id", places[cpu].core);
    }
    kvf_host_cores_place(h, sys);
    assert_int_equal(nftw(sys, forget, 8, FTW_DEPTH | FTW_PHYS), 0);
}

static void expect(const kvf_host_cores *h, const char *const *texts, uint32_t nodes) {
    uint32_t all = 0;
    for (uint32_t i = 0; i < nodes; i++) {
        uint16_t cpus[KVF_CORES_MAX];
        char text[256];
        uint32_t count = kvf_host_cores_share(h, i, nodes, cpus);
        kvf_cores_text(cpus, count, text, sizeof text);
        assert_string_equal(text, texts[i]);
        all += count;
    }
    assert_int_equal(all, h->count);
}
#define EXPECT(h, nodes, ...) expect((h), (const char *const[]){__VA_ARGS__}, (nodes))

static void one_thread_a_core(void **state) {
    static const at plain[8] = {{0, 0, 0}, {0, 0, 1}, {0, 0, 2}, {0, 0, 3}, {0, 0, 4}, {0, 0, 5}, {0, 0, 6}, {0, 0, 7}};
    kvf_host_cores h;
    host_of(&h, plain, 2);
    EXPECT(&h, 1, "0-1");
    EXPECT(&h, 2, "0", "1");
    host_of(&h, plain, 4);
    EXPECT(&h, 2, "0-1", "2-3");
    EXPECT(&h, 3, "0", "1", "2-3");
    host_of(&h, plain, 8);
    EXPECT(&h, 2, "0-3", "4-7");
    EXPECT(&h, 4, "0-1", "2-3", "4-5", "6-7");
}

static void threads_of_a_core_stay_together(void **state) {
    static const at last[8] = {{0, 0, 0}, {0, 0, 1}, {0, 0, 2}, {0, 0, 3}, {0, 0, 0}, {0, 0, 1}, {0, 0, 2}, {0, 0, 3}};
    static const at beside[8] = {
        {0, 0, 0}, {0, 0, 0}, {0, 0, 1}, {0, 0, 1}, {0, 0, 8}, {0, 0, 8}, {0, 0, 9}, {0, 0, 9}};
    kvf_host_cores h;
    host_of(&h, last, 8);
    EXPECT(&h, 2, "0-1,4-5", "2-3,6-7");
    EXPECT(&h, 3, "0,4", "1,5", "2-3,6-7");
    EXPECT(&h, 5, "0", "1,4", "5", "2,6", "3,7"); /* fewer cores than nodes */
    host_of(&h, beside, 8);
    EXPECT(&h, 2, "0-3", "4-7");
    EXPECT(&h, 3, "0-1", "2-3", "4-7");
    host_of(&h, beside, 2); /* two threads of one core: all there is to divide */
    EXPECT(&h, 2, "0", "1");
}

static void packages_and_dies_come_first(void **state) {
    static const at packages[8] = {
        {0, 0, 0}, {1, 0, 0}, {0, 0, 1}, {1, 0, 1}, {0, 0, 2}, {1, 0, 2}, {0, 0, 3}, {1, 0, 3}};
    static const at dies[4] = {{0, 1, 0}, {0, 0, 0}, {0, 1, 1}, {0, 0, 1}};
    kvf_host_cores h;
    host_of(&h, packages, 8);
    EXPECT(&h, 2, "0,2,4,6", "1,3,5,7");
    host_of(&h, dies, 4);
    EXPECT(&h, 2, "1,3", "0,2");
}

static void a_system_that_says_nothing(void **state) {
    static const at silent[4] = {{-1, -1, -1}, {-1, -1, -1}, {-1, -1, -1}, {-1, -1, -1}};
    kvf_host_cores h;
    host_of(&h, silent, 4);
    EXPECT(&h, 2, "0-1", "2-3");
    assert_int_equal(h.core[3], 3);
}

/* Every second cpu, as one of two packages has them where numbers go back and forth; and the longest list there is. */
static void long_lists_are_whole(void **state) {
    uint16_t cpus[KVF_CORES_MAX];
    char text[KVF_CORES_TEXT_MAX];
    for (uint32_t step = 2; step <= 3; step++) {
        uint32_t count = 0;
        for (uint32_t cpu = 0; cpu < KVF_CORES_MAX; cpu++)
            if (step == 2 ? cpu % 2 == 0 : cpu % 3 != 2) cpus[count++] = (uint16_t)cpu;
        kvf_cores_text(cpus, count, text, sizeof text);
        const char *last = strrchr(text, ',');
        assert_non_null(last);
        assert_string_equal(last, step == 2 ? ",1022" : ",1023");
        kvf_cores *c = NULL;
        kvf_error err = {0};
        kvf_status status = kvf_cores_open(text, NULL, &c, &err); /* read back: whole, though not all cpus are here */
        assert_true(status == KVF_OK || strstr(err.message, "is not one this process may use"));
        kvf_cores_close(c);
    }
}

static void this_host(void **state) {
    kvf_host_cores h;
    if (!kvf_host_cores_read(&h)) {
        print_message("a quota: nothing is divided\n");
        skip();
    }
    for (uint32_t i = 0; i < h.count; i++)
        for (uint32_t j = 0; j < i; j++) assert_true(h.cpu[i] != h.cpu[j] && h.core[j] <= h.core[i]);
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(one_thread_a_core),
        cmocka_unit_test(threads_of_a_core_stay_together), cmocka_unit_test(packages_and_dies_come_first),
        cmocka_unit_test(a_system_that_says_nothing), cmocka_unit_test(long_lists_are_whole),
        cmocka_unit_test(this_host)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
