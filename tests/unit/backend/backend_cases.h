/* What every backend must do, whatever computes: run by test_backend_cpu and by the CUDA backend on its fakes. */
#ifndef TEST_BACKEND_CASES_H
#define TEST_BACKEND_CASES_H
#include "kvf/backend.h"

typedef kvf_status (*backend_open_fn)(const kvf_backend_options *options, kvf_backend **out, kvf_error *err);
typedef struct {
    backend_open_fn open;
    kvf_kv_type kv_type;
    kvf_weights weights;
    double clear_gap; /* where the two best logits are closer, rounding may choose */
    double logprob_tolerance; /* of a score against the CPU's exact precision */
} backend_under_test;

/* Each fails the running cmocka test at the first difference. `b` is what state points at. */
void backend_gives_golden_tokens(const backend_under_test *b, const char *const *names, size_t names_count);
void backend_batches_change_nothing(const backend_under_test *b);
void backend_scores_agree_with_the_cpu(const backend_under_test *b);
/* The model at `path`: scores of a prompt computed at once and token by token are those of the CPU's exact precision
 * within the tolerance, and so are the best tokens where the gap is clear. Its last token is not used. */
void backend_agrees_with_the_cpu_over(const backend_under_test *b, const char *path);
/* A prompt of 200 tokens in one step, and in steps of 60: scores within `tolerance` of each other. */
void backend_scores_whole_or_in_parts(const backend_under_test *b, double tolerance);
void backend_copies_a_part_of_a_block(const backend_under_test *b);
void backend_refuses_what_it_cannot(const backend_under_test *b);
#endif
