/* Hooks for end-to-end tests, off unless the environment has KVFERRY_TEST_HOOKS: words with a space between them.
 *
 *   poison=ID          the process aborts when its engine computes this token of a prompt, in the step's end: a request
 * that kills step_ms=N          an engine step takes so much longer: moments inside of a request become wide enough to
 * hit hang_core=FILE     the core thread hangs while this file exists hang_engine=FILE   the engine thread hangs, in a
 * step, while this file exists */
#include "hooks.h"
#include "kvf/log.h"
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static void read_word(hooks *h, const char *word) {
    unsigned long long number;
    if (sscanf(word, "poison=%llu", &number) == 1) {
        h->poisoned = true;
        h->poison = (uint32_t)number;
    } else if (sscanf(word, "step_ms=%llu", &number) == 1) {
        h->step_ms = number;
    } else if (sscanf(word, "hang_core=%107s", h->hang_core) != 1 &&
               sscanf(word, "hang_engine=%107s", h->hang_engine) != 1) {
        kvf_log(KVF_LOG_WARN, "node", "KVFERRY_TEST_HOOKS: \"%.100s\" is no hook", word);
    }
}

void hooks_read(hooks *out) {
    *out = (hooks){0};
    const char *text = getenv("KVFERRY_TEST_HOOKS");
    if (!text || !*text) return;
    kvf_log(KVF_LOG_WARN, "node", "hooks for tests are on: %.200s", text);
    char word[160];
    for (int used; sscanf(text, " %159s%n", word, &used) == 1; text += used) read_word(out, word);
}

void hooks_hang(const char *file) {
    while (file[0] && access(file, F_OK) == 0) usleep(5000);
}

bool hooks_poisonous(const hooks *h, const uint32_t *tokens, uint32_t count) {
    for (uint32_t i = 0; h->poisoned && i < count; i++)
        if (tokens[i] == h->poison) return true;
    return false;
}
