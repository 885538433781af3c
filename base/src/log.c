#include "kvf/log.h"
#include <errno.h>
#include <pthread.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <time.h>
#include <unistd.h>

static atomic_int log_level_max = KVF_LOG_INFO;
static pthread_mutex_t log_lock = PTHREAD_MUTEX_INITIALIZER; /* guards all below */
static kvf_log_sink_fn log_sink;
static void *log_sink_self;
static char log_node[64];
static uint64_t log_lost; /* lines since the last one that was written */
static int log_errno; /* why */
static bool log_torn; /* a part of a line is out: the next one begins on a line of its own */

static const char *const level_names[] = {"error", "warn", "info", "debug"};

void kvf_log_set_level(kvf_log_level level_max) { atomic_store(&log_level_max, (int)level_max); }
kvf_log_level kvf_log_get_level(void) { return (kvf_log_level)atomic_load(&log_level_max); }

bool kvf_log_level_parse(const char *name, kvf_log_level *level) {
    for (size_t i = 0; i < KVF_COUNT_OF(level_names); i++) {
        if (strcmp(name, level_names[i]) == 0) {
            *level = (kvf_log_level)i;
            return true;
        }
    }
    return false;
}

void kvf_log_set_sink(kvf_log_sink_fn sink, void *self) {
    pthread_mutex_lock(&log_lock);
    log_sink = sink;
    log_sink_self = self;
    pthread_mutex_unlock(&log_lock);
}

void kvf_log_set_node(const char *node) {
    pthread_mutex_lock(&log_lock);
    snprintf(log_node, sizeof log_node, "%s", node);
    pthread_mutex_unlock(&log_lock);
}

static size_t json_escape(char *out, size_t out_bytes, const char *in) {
    size_t n = 0;
    for (; *in && n + 7 < out_bytes; in++) {
        unsigned char c = (unsigned char)*in;
        if (c == '"' || c == '\\') {
            out[n++] = '\\';
            out[n++] = (char)c;
        } else if (c < 0x20) {
            n += (size_t)snprintf(out + n, out_bytes - n, "\\u%04x", c);
        } else {
            out[n++] = (char)c;
        }
    }
    out[n] = 0;
    return n;
}

static size_t format_line(
    char *line, size_t line_bytes, kvf_log_level level, const char *component, const char *message) {
    static const char *const colours[] = {"\033[31m", "\033[33m", "", "\033[2m"};
    struct timespec ts;
    struct tm tm;
    char stamp[40], escaped[2100];
    clock_gettime(CLOCK_REALTIME, &ts);
    gmtime_r(&ts.tv_sec, &tm);
    strftime(stamp, sizeof stamp, "%Y-%m-%dT%H:%M:%S", &tm);
    int n;
    if (isatty(STDERR_FILENO)) {
        bool colour = getenv("NO_COLOR") == NULL;
        n = snprintf(line, line_bytes, "%s%s.%03ld %-5s %-9s %s%s%s%s\n", colour ? colours[level] : "", stamp + 11,
            ts.tv_nsec / 1000000, level_names[level], component, log_node[0] ? log_node : "", log_node[0] ? ": " : "",
            message, colour ? "\033[0m" : "");
    } else {
        json_escape(escaped, sizeof escaped, message);
        n = snprintf(line, line_bytes,
            "{\"ts\":\"%s.%06ldZ\",\"level\":\"%s\",\"component\":\"%s\",\"node\":\"%s\",\"msg\":\"%s\"}\n", stamp,
            ts.tv_nsec / 1000, level_names[level], component, log_node, escaped);
    }
    return (size_t)KVF_MIN(n, (int)line_bytes - 1);
}

/* false: not, or not whole. */
static bool write_whole(const char *line, size_t len_bytes) {
    size_t done = 0;
    while (done < len_bytes) {
        ssize_t n = write(STDERR_FILENO, line + done, len_bytes - done);
        if (n < 0 && errno == EINTR) continue;
        if (n <= 0) {
            log_errno = n < 0 ? errno : EIO;
            if (done > 0) log_torn = true;
            return false;
        }
        done += (size_t)n;
    }
    return true;
}

/* A full disk or closed pipe under the log must not stop the service: the line is lost, counted, and told of as soon as
 * lines can be written again. */
static void write_stderr(kvf_log_level level, const char *component, const char *message) {
    char line[2600], lost[160];
    bool fine = !log_torn || write_whole("\n", 1);
    if (fine) log_torn = false;
    if (fine && log_lost > 0) {
        snprintf(lost, sizeof lost, "%llu log lines before this one could not be written: %s",
            (unsigned long long)log_lost, strerror(log_errno));
        fine = write_whole(line, format_line(line, sizeof line, KVF_LOG_WARN, "log", lost));
        if (fine) log_lost = 0;
    }
    if (!fine || !write_whole(line, format_line(line, sizeof line, level, component, message))) log_lost++;
}

uint64_t kvf_log_lost(void) {
    pthread_mutex_lock(&log_lock);
    uint64_t lost = log_lost;
    pthread_mutex_unlock(&log_lock);
    return lost;
}

void kvf_log(kvf_log_level level, const char *component, const char *fmt, ...) {
    if ((int)level > atomic_load_explicit(&log_level_max, memory_order_relaxed)) return;
    char message[2000];
    va_list ap;
    va_start(ap, fmt);
    vsnprintf(message, sizeof message, fmt, ap);
    va_end(ap);
    pthread_mutex_lock(&log_lock);
    if (log_sink)
        log_sink(log_sink_self, level, component, message);
    else
        write_stderr(level, component, message);
    pthread_mutex_unlock(&log_lock);
}
