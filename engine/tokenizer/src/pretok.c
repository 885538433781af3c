/* pretok.c - the splitters. Each function is one alternative of an expression, tried in the order the expression has
 * them.
 *
 * gpt-2:      's|'t|'re|'ve|'m|'ll|'d | ?\p{L}+ | ?\p{N}+ | ?[^\s\p{L}\p{N}]+ | \s+(?!\S) | \s+
 * smollm:     every \p{N} on its own, then gpt-2 inside what lies between (a number is the end of the text there)
 * llama-bpe:  (?i:'s|'t|'re|'ve|'m|'ll|'d) | [^\r\n\p{L}\p{N}]?\p{L}+ | \p{N}{1,3} | ?[^\s\p{L}\p{N}]+[\r\n]* |
 * \s*[\r\n]+ | \s+(?!\S) | \s+ qwen2:      as llama-bpe, with \p{N} in place of \p{N}{1,3} (blanks around the bars are
 * for reading; " ?" begins with a real space.) */
#include "pretok.h"
#include "kvf/utf8.h"
#include <utf8proc.h>

static const struct {
    const char *name;
    kvf_pretok_family family;
} pretok_names[] = {
    /* The first name of a family is the one it is shown by; the rest are other names of the same expression. */
    {"gpt-2", KVF_PRETOK_GPT2},
    {"default", KVF_PRETOK_GPT2},
    {"phi-2", KVF_PRETOK_GPT2},
    {"olmo", KVF_PRETOK_GPT2},
    {"smollm", KVF_PRETOK_SMOLLM},
    {"starcoder", KVF_PRETOK_SMOLLM},
    {"refact", KVF_PRETOK_SMOLLM},
    {"codeshell", KVF_PRETOK_SMOLLM},
    {"llama-bpe", KVF_PRETOK_LLAMA3},
    {"llama3", KVF_PRETOK_LLAMA3},
    {"llama-v3", KVF_PRETOK_LLAMA3},
    {"falcon3", KVF_PRETOK_LLAMA3},
    {"qwen2", KVF_PRETOK_QWEN2},
    {"deepseek-r1-qwen", KVF_PRETOK_QWEN2},
};

bool kvf_pretok_find(const char *name, size_t len_bytes, kvf_pretok_family *out) {
    for (size_t i = 0; i < KVF_COUNT_OF(pretok_names); i++) {
        if (strlen(pretok_names[i].name) != len_bytes || memcmp(pretok_names[i].name, name, len_bytes) != 0) continue;
        *out = pretok_names[i].family;
        return true;
    }
    return false;
}

const char *kvf_pretok_name(kvf_pretok_family family) {
    size_t i = 0;
    while (pretok_names[i].family != family) i++;
    return pretok_names[i].name;
}

/* White_Space of Unicode. U+180E left that set in Unicode 6.3; some libraries' \s still has it, the models' ones do
 * not. */
static bool is_space(uint32_t cp) {
    return (cp >= 0x09 && cp <= 0x0D) || cp == 0x20 || cp == 0x85 || cp == 0xA0 || cp == 0x1680 ||
           (cp >= 0x2000 && cp <= 0x200A) || cp == 0x2028 || cp == 0x2029 || cp == 0x202F || cp == 0x205F ||
           cp == 0x3000;
}

static kvf_char_class classify(uint32_t cp) {
    if (is_space(cp)) return KVF_CHAR_SPACE;
    switch (utf8proc_category((utf8proc_int32_t)cp)) {
    case UTF8PROC_CATEGORY_LU:
    case UTF8PROC_CATEGORY_LL:
    case UTF8PROC_CATEGORY_LT:
    case UTF8PROC_CATEGORY_LM:
    case UTF8PROC_CATEGORY_LO: return KVF_CHAR_LETTER;
    case UTF8PROC_CATEGORY_ND:
    case UTF8PROC_CATEGORY_NL:
    case UTF8PROC_CATEGORY_NO: return KVF_CHAR_NUMBER;
    default: return KVF_CHAR_OTHER;
    }
}

void kvf_char_table_fill(uint8_t table[KVF_CHAR_TABLE_SIZE]) {
    for (uint32_t cp = 0; cp < KVF_CHAR_TABLE_SIZE; cp++) table[cp] = (uint8_t)classify(cp);
}

typedef struct {
    kvf_char_class class;
    uint32_t len_bytes;
} unit;

static unit unit_at(kvf_pretok *p, size_t at) {
    if (at >= p->len_bytes) return (unit){KVF_CHAR_END, 0};
    p->steps++;
    uint8_t byte = p->text[at];
    if (byte < 0x80) return (unit){(kvf_char_class)p->table[byte], 1};
    kvf_utf8_step step = kvf_utf8_step_at(p->text + at, p->len_bytes - at);
    kvf_char_class class =
        step.code_point < KVF_CHAR_TABLE_SIZE ? (kvf_char_class)p->table[step.code_point] : classify(step.code_point);
    return (unit){class, step.len_bytes};
}

/* As unit_at, but in smollm a number ends the text: it has been cut out before gpt-2's expression sees anything. */
static unit inner_at(kvf_pretok *p, size_t at) {
    unit u = unit_at(p, at);
    if (p->family == KVF_PRETOK_SMOLLM && u.class == KVF_CHAR_NUMBER) u.class = KVF_CHAR_END;
    return u;
}

static size_t run_end(kvf_pretok *p, size_t at, kvf_char_class class) {
    for (unit u = inner_at(p, at); u.class == class; u = inner_at(p, at)) at += u.len_bytes;
    return at;
}

static bool is_newline(uint8_t byte) { return byte == '\n' || byte == '\r'; }

static uint8_t byte_at(const kvf_pretok *p, size_t at) { return at < p->len_bytes ? p->text[at] : 0; }

/* 's|'t|'re|'ve|'m|'ll|'d at an apostrophe: end of the match, or `at` for none. */
static size_t contraction_end(const kvf_pretok *p, size_t at, bool any_case) {
    if (p->text[at] != '\'') return at;
    uint8_t a = byte_at(p, at + 1), b = byte_at(p, at + 2);
    /* Folding case reaches one letter outside ASCII: U+017F, long s. */
    if (any_case && a == 0xC5 && b == 0xBF) return at + 3;
    if (any_case && a >= 'A' && a <= 'Z') a |= 0x20;
    if (any_case && b >= 'A' && b <= 'Z') b |= 0x20;
    if (a == 's' || a == 't' || a == 'm' || a == 'd') return at + 2;
    if ((a == 'r' && b == 'e') || (a == 'v' && b == 'e') || (a == 'l' && b == 'l')) return at + 3;
    return at;
}

/* \s+(?!\S)|\s+ at a space: the whole run where it ends the text, else all but its last character, which stays with
 * what follows; a single one is taken as it is. */
static size_t space_end(kvf_pretok *p, size_t at) {
    size_t last = at, end = at;
    unit u = inner_at(p, at);
    for (; u.class == KVF_CHAR_SPACE; u = inner_at(p, end)) {
        last = end;
        end += u.len_bytes;
    }
    return u.class == KVF_CHAR_END || last == at ? end : last;
}

static size_t gpt2_next(kvf_pretok *p, size_t at) {
    size_t end = contraction_end(p, at, false);
    if (end > at) return end;
    unit first = inner_at(p, at);
    if (first.class == KVF_CHAR_END) return at + first.len_bytes; /* smollm: one number on its own */
    if (first.class != KVF_CHAR_SPACE) return run_end(p, at, first.class);
    if (p->text[at] == ' ') {
        unit second = inner_at(p, at + 1);
        if (second.class != KVF_CHAR_SPACE && second.class != KVF_CHAR_END) return run_end(p, at + 1, second.class);
    }
    return space_end(p, at);
}

/* \s*[\r\n]+ at a space: up to the last line break of the run, or `at` where the run has none. */
static size_t newline_end(kvf_pretok *p, size_t at) {
    size_t end = at;
    for (unit u = unit_at(p, at); u.class == KVF_CHAR_SPACE; u = unit_at(p, at)) {
        bool newline = is_newline(p->text[at]);
        at += u.len_bytes;
        if (newline) end = at;
    }
    return end;
}

static size_t llama3_next(kvf_pretok *p, size_t at, uint32_t digits_max) {
    size_t end = contraction_end(p, at, true);
    if (end > at) return end;
    unit first = unit_at(p, at);
    if (first.class == KVF_CHAR_LETTER) return run_end(p, at, KVF_CHAR_LETTER);
    if (first.class == KVF_CHAR_NUMBER) {
        end = at;
        for (unit u = first; u.class == KVF_CHAR_NUMBER && digits_max > 0; digits_max--, u = unit_at(p, end))
            end += u.len_bytes;
        return end;
    }
    unit second = unit_at(p, at + first.len_bytes);
    if (second.class == KVF_CHAR_LETTER && !is_newline(p->text[at]))
        return run_end(p, at + first.len_bytes, KVF_CHAR_LETTER);
    if (first.class == KVF_CHAR_OTHER || (p->text[at] == ' ' && second.class == KVF_CHAR_OTHER)) {
        end = run_end(p, at + first.len_bytes, KVF_CHAR_OTHER);
        while (end < p->len_bytes && is_newline(p->text[end])) end++;
        return end;
    }
    end = newline_end(p, at);
    return end > at ? end : space_end(p, at);
}

size_t kvf_pretok_next(kvf_pretok *p, size_t at) {
    KVF_ASSERT(at < p->len_bytes);
    size_t end = at;
    switch (p->family) {
    case KVF_PRETOK_GPT2:
    case KVF_PRETOK_SMOLLM: end = gpt2_next(p, at); break;
    case KVF_PRETOK_LLAMA3: end = llama3_next(p, at, 3); break;
    case KVF_PRETOK_QWEN2: end = llama3_next(p, at, 1); break;
    }
    KVF_ASSERT(end > at && end <= p->len_bytes);
    return end;
}
