/* Dropped frames: counted for each link, told at most once a second. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>
#include <stdlib.h>
#include "drops.h"

static void a_flood_is_told_once_a_second_and_counted_whole(void **state) {
    drops *d = calloc(1, sizeof *d);
    const char *peer;
    assert_non_null(d);
    drops_link_up(d, 0x103, "p1");
    drops_link_up(d, 0x104, "p2");
    assert_int_equal(drops_add(d, 5, 0x103, &peer), 1);
    assert_string_equal(peer, "p1");
    for (int i = 0; i < 1000; i++) assert_int_equal(drops_add(d, 6, 0x103, &peer), 0);
    assert_int_equal(drops_add(d, 6, 0x104, &peer), 1); /* another peer is not silenced by the first one */
    assert_string_equal(peer, "p2");
    assert_int_equal(drops_add(d, 5 + DROPS_QUIET_NS, 0x103, &peer), 1001);
    assert_int_equal(drops_link_down(d, 0x103), 1002);
    drops_link_up(d, 0x203, "p3"); /* the slot has a new link */
    assert_int_equal(drops_link_down(d, 0x103), 0);
    assert_int_equal(drops_add(d, 7, 0x203, &peer), 1);
    assert_string_equal(peer, "p3");
    assert_int_equal(drops_link_down(d, 0x203), 1);
    free(d);
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(a_flood_is_told_once_a_second_and_counted_whole)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
