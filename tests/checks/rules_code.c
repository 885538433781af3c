/* What cores and layers may include and call. Core: the folders and files below; a core's own headers are part of it.
 * System headers and calls are an allow list, since what may creep in cannot be listed; calls to other modules are
 * checked by the linker's symbols (symbols.sh). */
#include "rules.h"
#include <ctype.h>
#include <stdio.h>
#include <string.h>

static const char *const core_paths[] = {"kvcache/src/", "kvcache/include/", "kvtransfer/src/core_",
    "kvtransfer/include/kvf/xfer.h", "kvtransfer/include/kvf/frame.h", "router/core/", "node/core/",
    "prefill-node/src/plan.c", "prefill-node/include/kvf/prefill_plan.h", "decode-node/src/plan.c",
    "decode-node/include/kvf/decode_plan.h", NULL};

/* stdio.h for snprintf alone, into memory of the core's own; what else it declares is banned below. */
static const char *const core_system_headers[] = {"stdbool.h", "stddef.h", "stdint.h", "string.h", "limits.h",
    "inttypes.h", "stdalign.h", "stdarg.h", "stdio.h", NULL};

/* Ours that belong to shells. */
static const char *const core_banned_headers[] = {"kvf/os.h", "kvf/mailbox.h", "kvf/rpc.h", "kvf/tls.h", NULL};

static const char *const core_banned_words[] = {"float", "double", "_Float16", "_Thread_local", "_Atomic", NULL};

/* "send" and "accept" are also good names for functions of our own: checks-symbols finds the library's. */
static const char *const core_banned_calls[] = {"malloc", "calloc", "realloc", "reallocarray", "free", "aligned_alloc",
    "posix_memalign", "alloca", "strdup", "strndup", "asprintf", "mmap", "munmap", "socket", "connect", "bind",
    "listen", "sendto", "sendmsg", "recv", "recvfrom", "recvmsg", "read", "write", "open", "close",
    "poll", "select", "epoll_wait", "time", "clock", "clock_gettime", "gettimeofday", "sleep", "usleep", "nanosleep",
    "rand", "srand", "random", "srandom", "drand48", "getrandom", "arc4random", "getenv", "fopen", "printf", "fprintf",
    "puts", "qsort", "exit", "abort", "fork", "signal", NULL};
static const char *const core_banned_prefixes[] = {
    "pthread_", "thrd_", "mtx_", "cnd_", "atomic_", "epoll_", "kvf_os_", NULL};

typedef struct {
    const char *header; /* beginning of what is between the quotes or brackets */
    const char *what;
    const char *paths[8]; /* where it may be included */
} layer;
static const layer layers[] = {
    {"grpc/", "gRPC", {"rpc/", "tests/unit/rpc/"}},
    {"cuda", "device", {"kernels/cuda/", "kvtransfer/gpu/", "tests/cuda/"}},
    {"nccl", "device", {"kernels/cuda/", "kvtransfer/gpu/", "tests/cuda/"}},
    {"nvml", "device", {"kernels/cuda/", "kvtransfer/gpu/"}},
    {"openssl/ssl.h", "TLS", {"base/tls/", "kvtransfer/src/tls.c", "tests/"}},
    {"sys/socket.h", "network", {"base/os/", "kvtransfer/", "rpc/", "cli/", "tests/"}},
    {"netinet/", "network", {"base/os/", "kvtransfer/", "rpc/", "cli/", "tests/"}},
    {"arpa/", "network", {"base/os/", "kvtransfer/", "rpc/", "cli/", "tests/"}},
    {"netdb.h", "network", {"base/os/", "kvtransfer/", "rpc/", "cli/", "tests/"}},
};

static bool in_list(const char *const *list, const char *word, size_t length) {
    for (; *list; list++)
        if (strlen(*list) == length && memcmp(*list, word, length) == 0) return true;
    return false;
}

static bool starts_with_any(const char *const *list, const char *word) {
    for (; *list; list++)
        if (strncmp(word, *list, strlen(*list)) == 0) return true;
    return false;
}

bool is_core(const char *path) { return source_is_c(path) && starts_with_any(core_paths, path); }

/* Includes: read from the text, since the code view has blanked the names in quotes. */

static bool include_at(const source *s, size_t line_start, char *name, size_t name_max, bool *system) {
    const char *c = s->code + line_start + strspn(s->code + line_start, " \t");
    if (*c++ != '#') return false;
    c += strspn(c, " \t");
    if (strncmp(c, "include", 7) != 0) return false;
    c += 7;
    c += strspn(c, " \t");
    if (*c != '<' && *c != '"') return false;
    *system = *c == '<';
    const char *from = s->text + (c - s->code) + 1;
    size_t length = strcspn(from, *system ? ">\n" : "\"\n");
    if (length >= name_max) return false;
    memcpy(name, from, length);
    name[length] = 0;
    return true;
}

static void check_core_include(const source *s, int line, const char *name, bool system) {
    if (system ? !in_list(core_system_headers, name, strlen(name)) : in_list(core_banned_headers, name, strlen(name)))
        complain(s, line, "core", "a pure core may not include %s", name);
}

static void check_layer_include(const source *s, int line, const char *name) {
    if (strstr(name, ".pb-c.h")) return; /* messages of well-known services, not the library */
    for (size_t i = 0; i < sizeof layers / sizeof layers[0]; i++) {
        if (strncmp(name, layers[i].header, strlen(layers[i].header)) != 0) continue;
        if (!starts_with_any(layers[i].paths, s->path))
            complain(s, line, "layers", "%s header %s", layers[i].what, name);
    }
}

static void each_include(const source *s, bool core) {
    int line = 1;
    for (size_t at = 0; at < s->length; line++) {
        char name[256];
        bool system;
        if (include_at(s, at, name, sizeof name, &system)) {
            if (core)
                check_core_include(s, line, name, system);
            else
                check_layer_include(s, line, name);
        }
        const char *end = strchr(s->code + at, '\n');
        if (!end) break;
        at = (size_t)(end - s->code) + 1;
    }
}

void rule_layers(const source *s) { each_include(s, false); }

/* Words and calls */

static bool is_word_char(char c) { return isalnum((unsigned char)c) || c == '_'; }

/* A member of that name is fine: x.free, x->send(...). */
static bool is_member(const source *s, size_t at) {
    while (at > 0 && isspace((unsigned char)s->code[at - 1])) at--;
    return at > 0 && (s->code[at - 1] == '.' || (at > 1 && s->code[at - 1] == '>' && s->code[at - 2] == '-'));
}

static void check_core_word(const source *s, int line, size_t at, size_t length) {
    const char *word = s->code + at, *after = word + length + strspn(word + length, " \t\n");
    if (in_list(core_banned_words, word, length))
        complain(s, line, "core", "a pure core has no %.*s", (int)length, word);
    if (starts_with_any(core_banned_prefixes, word))
        complain(s, line, "core", "a pure core has no %.*s", (int)length, word);
    if (*after == '(' && in_list(core_banned_calls, word, length) && !is_member(s, at))
        complain(s, line, "core", "a pure core does not call %.*s", (int)length, word);
}

/* 1.5, .5, 1e9, 0x1p3; hexadecimal integers may hold an e. */
static bool is_floating(const char *number, size_t length) {
    bool hex = length > 1 && number[0] == '0' && (number[1] | 32) == 'x';
    for (size_t i = 0; i < length; i++)
        if (number[i] == '.' || (hex ? (number[i] | 32) == 'p' : (number[i] | 32) == 'e')) return true;
    return false;
}

void rule_core(const source *s) {
    each_include(s, true);
    int line = 1;
    for (size_t i = 0; i < s->length;) {
        const char *c = s->code + i;
        size_t length = 1;
        if (*c == '\n') line++;
        bool fraction = *c == '.' && isdigit((unsigned char)c[1]);
        if (isdigit((unsigned char)*c) || fraction) {
            while (is_word_char(c[length]) || c[length] == '.') length++;
            if (is_floating(c, length))
                complain(s, line, "core", "a pure core has no number like %.*s", (int)length, c);
        } else if (is_word_char(*c)) {
            while (is_word_char(c[length])) length++;
            check_core_word(s, line, i, length);
        }
        i += length;
    }
}
