/* term.h - what a stream can show: terminal or not, colour, UTF-8, size. */
#ifndef KVF_CLI_TERM_H
#define KVF_CLI_TERM_H
#include "buf.h"
#include <stdio.h>

bool kvf_term_is(FILE *f);
bool kvf_term_colour(FILE *f); /* a terminal, NO_COLOR unset, TERM not "dumb" */
bool kvf_term_utf8(void); /* by LC_ALL, LC_CTYPE, LANG, as the C library would choose */
void kvf_term_size(uint32_t *columns, uint32_t *rows); /* of stdout; 80 x 24 where unknown */

/* Text that came from a model or a peer, for a terminal: control characters other than newline and tab are dropped, so
 * that it cannot move the cursor, set titles or write to the clipboard. */
void kvf_term_clean(kvf_buf *out, const void *text, size_t len_bytes);
#endif
