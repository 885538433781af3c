#include "term.h"
#include <stdlib.h>
#include <strings.h>
#include <sys/ioctl.h>
#include <unistd.h>

bool kvf_term_is(FILE *f) { return isatty(fileno(f)) == 1; }

bool kvf_term_colour(FILE *f) {
    const char *no = getenv("NO_COLOR"), *term = getenv("TERM");
    return kvf_term_is(f) && !(no && *no) && !(term && strcmp(term, "dumb") == 0);
}

bool kvf_term_utf8(void) {
    static const char *const names[] = {"LC_ALL", "LC_CTYPE", "LANG"};
    for (size_t i = 0; i < KVF_COUNT_OF(names); i++) {
        const char *v = getenv(names[i]);
        if (v && *v) return strcasestr(v, "utf-8") || strcasestr(v, "utf8");
    }
    return false;
}

void kvf_term_size(uint32_t *columns, uint32_t *rows) {
    struct winsize w;
    bool known = ioctl(STDOUT_FILENO, TIOCGWINSZ, &w) == 0 && w.ws_col > 0 && w.ws_row > 0;
    *columns = known ? w.ws_col : 80;
    *rows = known ? w.ws_row : 24;
}

void kvf_term_clean(kvf_buf *out, const void *text, size_t len_bytes) {
    const unsigned char *at = text;
    for (size_t i = 0; i < len_bytes; i++) {
        if ((at[i] < 0x20 && at[i] != '\n' && at[i] != '\t') || at[i] == 0x7F) continue;
        /* U+0080 to U+009F are control characters of their own; text arrives as whole characters. */
        if (at[i] == 0xC2 && i + 1 < len_bytes && at[i + 1] < 0xA0) {
            i++;
            continue;
        }
        kvf_buf_putc(out, (char)at[i]);
    }
}
