/* A whole router process against fake nodes. */
#include "cluster.h"

static void text_streams(void **state) {
    (void)state;
    cluster c;
    cluster_start(&c, NULL);
    ask a;
    ask_init(&a, "prompt", FAKE_SEED(FAKE_SCRIPT, 0));
    answer *got = generate(&c, &a, KVF_RPC_OK);
    assert_int_equal(got->admitted, 1);
    assert_string_equal(got->text[0], "ABCDEFGHIJKLMNOPQRSTUVWXYZ");
    free(got);
    cluster_stop(&c);
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(text_streams)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
