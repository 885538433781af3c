/* Which network interfaces NCCL may use (field case OP-06). */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>
#include "interfaces.h"

static void wishes_are_read_as_nccl_reads_them(void **state) {
    static const struct {
        const char *wish, *name;
        bool may;
    } cases[] = {{"eth", "eth0", true}, {"eth", "veth1", false}, {"=eth0", "eth0", true}, {"=eth0", "eth01", false},
        {"=eth0,ib1", "ib1", true}, {"=eth0,ib", "ib1", false}, {"ib,eth", "eth3", true}, {"^lo,veth", "lo", false},
        {"^lo,veth", "veth7", false}, {"^lo,veth", "eth0", true}, {"^=docker0", "docker0", false},
        {"^=docker0", "docker01", true}, {"", "eth0", false}, {",", "eth0", false}, {"^", "eth0", true}};
    for (size_t i = 0; i < KVF_COUNT_OF(cases); i++)
        if (interfaces_match(cases[i].wish, cases[i].name) != cases[i].may)
            fail_msg("\"%s\", %s", cases[i].wish, cases[i].name);
}

static void a_wrong_name_is_told_with_those_that_there_are(void **state) {
    char names[64];
    kvf_error err;
    if (interfaces_of("=lo", names, sizeof names, &err) != KVF_OK) {
        print_message("no loopback interface here\n");
        skip();
    }
    assert_string_equal(names, "lo");
    assert_int_equal(interfaces_of("=nowhere0", names, sizeof names, &err), KVF_ERR_NOT_FOUND);
    assert_non_null(strstr(err.message, "NCCL_SOCKET_IFNAME \"=nowhere0\""));
    assert_non_null(strstr(err.message, "lo"));
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(wishes_are_read_as_nccl_reads_them),
        cmocka_unit_test(a_wrong_name_is_told_with_those_that_there_are)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
