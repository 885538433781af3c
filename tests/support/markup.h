/* markup.h - whether a page of HTML is closed in itself: tags pair up, and nothing is fetched from anywhere. */
#ifndef KVF_TEST_MARKUP_H
#define KVF_TEST_MARKUP_H
#include <ctype.h>
#include <stdio.h>
#include <string.h>

/* NULL: well. Otherwise what is wrong, in why[200]. Knows no comments and no script: the pages have none. */
static inline const char *markup_wrong(const char *page, char why[200]) {
    static const char *const outside[] = {"http:", "https:", "src=", "href=", "url(", "@import", "<script", "<link"};
    char open[32][24];
    int depth = 0;
    for (size_t i = 0; i < sizeof outside / sizeof *outside; i++)
        if (strstr(page, outside[i])) {
            snprintf(why, 200, "the page holds \"%s\"", outside[i]);
            return why;
        }
    for (const char *at = page; (at = strchr(at, '<')); at++) {
        const char *end = strchr(at, '>');
        char name[24] = "";
        bool closes = at[1] == '/';
        const char *from = at + 1 + closes;
        size_t len = 0;
        while (len < sizeof name - 1 && isalnum((unsigned char)from[len])) {
            name[len] = from[len];
            len++;
        }
        if (at[1] == '!') continue;
        bool ok = end && len > 0;
        if (ok && closes)
            ok = depth > 0 && strcmp(open[--depth], name) == 0;
        else if (ok && end[-1] != '/') {
            ok = depth < 32;
            if (ok) memcpy(open[depth++], name, sizeof name);
        }
        if (ok) continue;
        snprintf(
            why, 200, "at byte %zu: \"%.40s\", inside <%.20s>", (size_t)(at - page), at, depth ? open[depth - 1] : "");
        return why;
    }
    if (depth) snprintf(why, 200, "<%.20s> has no end", open[depth - 1]);
    return depth ? why : NULL;
}
#endif
