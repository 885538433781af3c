/* Which mistakes are planted: MUTANT=n, or MUTANT=n+m for two at once. Included by the C that Spin makes of the
 * models. */
#include <stdlib.h>
static unsigned long long planted;
static int from_env(const char *name, int otherwise) {
    const char *text = getenv(name);
    return text ? atoi(text) : otherwise;
}
__attribute__((constructor)) static void plant(void) {
    const char *text = getenv("MUTANT");
    for (char *end; text && *text; text = *end ? end + 1 : end) planted |= 1ull << strtol(text, &end, 10);
    planted &= ~1ull;
}
