/* kvf/base.h - the words every module shares: status, error text, time, spans, assertions, little-endian access.
 * Nothing here allocates, blocks or reads a clock. */
#ifndef KVF_BASE_H
#define KVF_BASE_H
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#ifdef __cplusplus
extern "C" {
#endif

#if defined(__GNUC__)
#define KVF_PRINTF(fmt, args) __attribute__((format(printf, fmt, args)))
#define KVF_NORETURN __attribute__((noreturn))
#else
#define KVF_PRINTF(fmt, args)
#define KVF_NORETURN
#endif

/* One list makes enum, names and texts. OK is 0, back-pressure is positive, errors are negative and grouped by the
 * largest thing that is lost: the call (-1..), the transfer (-20..), the peer (-40..), the process (-60..). */
#define KVF_STATUS_LIST(X)                                                                                             \
    X(KVF_OK, 0, "ok")                                                                                                 \
    X(KVF_AGAIN, 1, "no room now, try again when something has drained")                                               \
    X(KVF_ERR_INVALID, -1, "invalid argument")                                                                         \
    X(KVF_ERR_NOT_FOUND, -2, "not found")                                                                              \
    X(KVF_ERR_UNSUPPORTED, -3, "not supported")                                                                        \
    X(KVF_ERR_FORMAT, -4, "malformed data")                                                                            \
    X(KVF_ERR_NO_ROOM, -5, "does not fit")                                                                             \
    X(KVF_ERR_BUSY, -6, "busy")                                                                                        \
    X(KVF_ERR_STALE, -7, "stale attempt, epoch or generation")                                                         \
    X(KVF_ERR_CANCELLED, -8, "cancelled")                                                                              \
    X(KVF_ERR_DEADLINE, -9, "deadline exceeded")                                                                       \
    X(KVF_ERR_LIMIT, -10, "a limit was reached")                                                                       \
    X(KVF_ERR_GONE, -20, "the other side no longer knows this transfer")                                               \
    X(KVF_ERR_CORRUPT, -21, "checksum does not match")                                                                 \
    X(KVF_ERR_PEER_LOST, -40, "peer lost")                                                                             \
    X(KVF_ERR_MISMATCH, -41, "identities differ")                                                                      \
    X(KVF_ERR_AUTH, -42, "peer could not prove who it is")                                                             \
    X(KVF_ERR_NO_MEMORY, -60, "out of memory")                                                                         \
    X(KVF_ERR_IO, -61, "input/output error")                                                                           \
    X(KVF_ERR_INTERNAL, -62, "internal error")

typedef enum {
#define KVF_STATUS_ENUM(name, value, text) name = value,
    KVF_STATUS_LIST(KVF_STATUS_ENUM)
#undef KVF_STATUS_ENUM
} kvf_status;

const char *kvf_status_name(kvf_status status); /* "KVF_ERR_STALE" */
const char *kvf_status_text(kvf_status status); /* "stale attempt, epoch or generation" */

/* Text for people, made where a failure is first decided; only files, config, CLI and RPC edges carry it. */
typedef struct {
    kvf_status status;
    char message[512]; /* always NUL-terminated; cut, never overrun */
} kvf_error;
/* Fills err (may be NULL) and returns status, so that a function can end with `return kvf_fail(err, ...)`. */
kvf_status kvf_fail(kvf_error *err, kvf_status status, const char *fmt, ...) KVF_PRINTF(3, 4);

/* Nanoseconds of a monotonic clock, as handed in by a shell. Durations cross hosts, timestamps never do. */
typedef uint64_t kvf_time_ns;
#define KVF_TIME_NEVER UINT64_MAX
#define KVF_NS_PER_US 1000ull
#define KVF_NS_PER_MS 1000000ull
#define KVF_NS_PER_S 1000000000ull

typedef struct {
    const void *data;
    size_t len_bytes;
} kvf_span; /* borrowed bytes */

/* Assertions stay in release: a broken invariant of ours stops the process rather than spoil a page. */
KVF_NORETURN void kvf_assert_failed(const char *expression, const char *file, int line);
#define KVF_ASSERT(x) ((x) ? (void)0 : kvf_assert_failed(#x, __FILE__, __LINE__))
#ifdef KVF_SLOW_CHECKS
#define KVF_SLOW_ASSERT(x) KVF_ASSERT(x)
#else
#define KVF_SLOW_ASSERT(x) ((void)0)
#endif

/* Told of each move of a state machine by the function that makes it; only a test build listens
 * (tests/model/moves_seen.h). */
#ifndef KVF_MOVE_SEEN
#define KVF_MOVE_SEEN(machine, from, to) ((void)0)
#endif

#define KVF_COUNT_OF(array) (sizeof(array) / sizeof((array)[0]))
#define KVF_MIN(a, b) ((a) < (b) ? (a) : (b))
#define KVF_MAX(a, b) ((a) > (b) ? (a) : (b))

static inline uint64_t kvf_align_up(uint64_t value, uint64_t align_pow2) {
    return (value + align_pow2 - 1) & ~(align_pow2 - 1);
}
static inline uint64_t kvf_div_up(uint64_t a, uint64_t b) { return (a + b - 1) / b; }

/* Wire and file formats are little-endian whatever the machine is. */
static inline uint16_t kvf_get_le16(const void *p) {
    const uint8_t *b = (const uint8_t *)p;
    return (uint16_t)(b[0] | b[1] << 8);
}
static inline uint32_t kvf_get_le32(const void *p) {
    const uint8_t *b = (const uint8_t *)p;
    return (uint32_t)b[0] | (uint32_t)b[1] << 8 | (uint32_t)b[2] << 16 | (uint32_t)b[3] << 24;
}
static inline uint64_t kvf_get_le64(const void *p) {
    return (uint64_t)kvf_get_le32(p) | (uint64_t)kvf_get_le32((const uint8_t *)p + 4) << 32;
}
static inline void kvf_put_le16(void *p, uint16_t v) {
    uint8_t *b = (uint8_t *)p;
    b[0] = (uint8_t)v;
    b[1] = (uint8_t)(v >> 8);
}
static inline void kvf_put_le32(void *p, uint32_t v) {
    uint8_t *b = (uint8_t *)p;
    b[0] = (uint8_t)v;
    b[1] = (uint8_t)(v >> 8);
    b[2] = (uint8_t)(v >> 16);
    b[3] = (uint8_t)(v >> 24);
}
static inline void kvf_put_le64(void *p, uint64_t v) {
    kvf_put_le32(p, (uint32_t)v);
    kvf_put_le32((uint8_t *)p + 4, (uint32_t)(v >> 32));
}

#ifdef __cplusplus
}
#endif
#endif
