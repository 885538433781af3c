/* The CPU backend does what every backend must do. */
#include "backend_cases.h"
#include <setjmp.h>
#include <stdarg.h>
#include <cmocka.h>

static const char *const names[] = {"llama", "llama-mha", "llama3-rope", "mistral-wide-head", "qwen2", "qwen3"};
static const backend_under_test cpu = {.open = kvf_backend_open_cpu};

static void golden_tokens(void **state) { backend_gives_golden_tokens(&cpu, names, KVF_COUNT_OF(names)); }
static void batches_change_nothing(void **state) { backend_batches_change_nothing(&cpu); }
static void scores(void **state) { backend_scores_agree_with_the_cpu(&cpu); }
static void copies(void **state) { backend_copies_a_part_of_a_block(&cpu); }
static void refusals(void **state) { backend_refuses_what_it_cannot(&cpu); }

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(golden_tokens), cmocka_unit_test(batches_change_nothing),
        cmocka_unit_test(scores), cmocka_unit_test(copies), cmocka_unit_test(refusals)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
