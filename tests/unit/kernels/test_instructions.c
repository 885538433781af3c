/* Instructions that the inner kernels take, against budgets: a check of speed that does not depend on time, machine or
 * neighbours. It knows nothing of caches and latencies; it finds loops that spill, stopped unrolling, lost a vector
 * path or do work twice.
 *
 *   test_instructions BUDGETS             fails where a kernel takes more than 3 % over its budget (too slow) or 10 %
 * under it (the budget is stale: lower it) test_instructions --print             prints a budget file
 *
 * Budget file: lines `family kernel instructions-per-1000-units`; `#` starts a comment. A budget belongs to a compiler:
 * the file's line `compiler gcc N` says to which, and with another one the test is skipped. */
#include "instructions.h"
#include <stdio.h>
#include <stdlib.h>

#define ABOVE 1.03
#define BELOW 0.90
enum { EXIT_SKIPPED = 77 };

#if defined(__clang__) || !defined(__GNUC__)
#define COMPILER_GCC 0
#else
#define COMPILER_GCC __GNUC__
#endif

typedef struct {
    char *text; /* the budget file */
    uint32_t found, failures;
} budgets;

static double per_1000(const instruction_case *c, uint64_t count) { return (double)count * 1000 / (double)c->units; }

static char *read_text(const char *path) {
    FILE *f = fopen(path, "r");
    char *text = f ? calloc(1, 1 << 16) : NULL;
    if (text && fread(text, 1, (1 << 16) - 1, f) == 0) {
        free(text);
        text = NULL;
    }
    if (f) fclose(f);
    return text;
}

/* The rest of the line that starts with `start`, or NULL. */
static const char *find_line(const char *text, const char *start) {
    size_t length = strlen(start);
    for (const char *at = text; at; at = strchr(at, '\n')) {
        at += *at == '\n';
        if (strncmp(at, start, length) == 0) return at + length;
    }
    return NULL;
}

static bool within(const instruction_case *c, const char *family, double measured, double budget, bool quiet) {
    if (measured > budget * ABOVE) {
        if (!quiet)
            printf("%s %s is too slow: %.1f instructions per 1000 %ss, budget %.1f\n", family, c->name, measured,
                c->unit, budget);
        return false;
    }
    if (measured < budget * BELOW) {
        if (!quiet)
            printf("%s %s is faster than its budget: %.1f instructions per 1000 %ss, budget %.1f; lower the budget\n",
                family, c->name, measured, c->unit, budget);
        return false;
    }
    return true;
}

/* Returns the budget. */
static double check_case(budgets *b, const char *family, const instruction_case *c, uint64_t count) {
    char start[96];
    snprintf(start, sizeof start, "%s %s ", family, c->name);
    const char *line = find_line(b->text, start);
    double budget = line ? strtod(line, NULL) : 0;
    printf("%-12s %-18s %8.1f of %8.1f\n", family, c->name, per_1000(c, count), budget);
    if (!line) printf("%s %s has no budget\n", family, c->name);
    b->found += line != NULL;
    if (!line || !within(c, family, per_1000(c, count), budget, false)) b->failures++;
    return budget;
}

/* What a kernel must not become: the work done twice. */
static void twice(const kvf_kernel_ops *ops, instruction_data *data) {
    instruction_cases[0].call(ops, data);
    instruction_cases[0].call(ops, data);
}

static bool check_planted(budgets *b, const kvf_kernel_ops *ops, instruction_data *data, double budget) {
    instruction_case planted = instruction_cases[0];
    uint64_t count;
    planted.call = twice;
    if (!instruction_count(ops, &planted, data, &count)) return false;
    if (within(&planted, ops->name, per_1000(&planted, count), budget, true)) {
        printf("%s %s called twice went unnoticed\n", ops->name, planted.name);
        b->failures++;
    }
    return true;
}

/* `b` NULL: print. False: cannot be counted. */
static bool count_family(budgets *b, const kvf_kernel_ops *ops, instruction_data *data) {
    double first = 0;
    for (uint32_t i = 0; i < instruction_cases_count; i++) {
        const instruction_case *c = &instruction_cases[i];
        uint64_t count;
        if (!instruction_count(ops, c, data, &count)) return false;
        double budget = b ? check_case(b, ops->name, c, count) : 0;
        if (!b) printf("%s %s %.1f\n", ops->name, c->name, per_1000(c, count));
        if (i == 0) first = budget;
    }
    return !b || check_planted(b, ops, data, first);
}

/* Every family this machine runs but `ref`, which is slow on purpose. */
static bool count_families(budgets *b) {
    const kvf_kernel_ops *list[KVF_KERNELS_MAX];
    size_t families = kvf_kernels_list(list) - 1;
    instruction_data *data = instruction_data_make();
    if (!data || families == 0) {
        printf("skipped: no %s\n", data ? "kernels but the plain C ones run here" : "memory");
        return false;
    }
    for (size_t f = 0; f < families; f++) {
        if (b && strcmp(list[f]->name, "avx-vnni") == 0 && !find_line(b->text, "avx-vnni ")) {
            printf("avx-vnni: not counted, no budgets yet (written on a machine that has it)\n");
            continue;
        }
        if (!count_family(b, list[f], data)) return false;
    }
    return true;
}

int main(int argc, char **argv) {
    if (argc == 2 && strcmp(argv[1], "--print") == 0) {
        printf("compiler gcc %d\n", COMPILER_GCC);
        return count_families(NULL) ? 0 : EXIT_SKIPPED;
    }
    budgets b = {.text = argc == 2 ? read_text(argv[1]) : NULL};
    const char *compiler = b.text ? find_line(b.text, "compiler gcc ") : NULL;
    if (!compiler) {
        printf("no budgets, or not which compiler they are for\n");
        return 1;
    }
    if (atoi(compiler) != COMPILER_GCC) {
        printf("skipped: the budgets are for gcc %d\n", atoi(compiler));
        return EXIT_SKIPPED;
    }
    if (!count_families(&b)) return EXIT_SKIPPED;
    printf("%u budgets, %u failures\n", b.found, b.failures);
    free(b.text);
    return b.failures ? 1 : 0;
}
