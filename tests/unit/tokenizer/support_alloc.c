/* support_alloc.c - malloc, calloc and realloc that count and, when told, fail. Tests are single-threaded where they
 * use it. */
#include <malloc.h>
#include <stddef.h>
#include <stdint.h>

size_t alloc_now_bytes, alloc_peak_bytes;
uint64_t alloc_calls, alloc_fail_at;

void *__real_malloc(size_t size);
void *__real_calloc(size_t count, size_t size);
void *__real_realloc(void *old, size_t size);
void __real_free(void *p);
void *__wrap_malloc(size_t size);
void *__wrap_calloc(size_t count, size_t size);
void *__wrap_realloc(void *old, size_t size);
void __wrap_free(void *p);

static int fails(void) { return ++alloc_calls == alloc_fail_at; }

static void *grew(void *p) {
    if (p) alloc_now_bytes += malloc_usable_size(p);
    if (alloc_now_bytes > alloc_peak_bytes) alloc_peak_bytes = alloc_now_bytes;
    return p;
}

static void shrank(void *p) {
    size_t bytes = p ? malloc_usable_size(p) : 0;
    alloc_now_bytes = alloc_now_bytes > bytes ? alloc_now_bytes - bytes : 0;
}

void *__wrap_malloc(size_t size) { return fails() ? NULL : grew(__real_malloc(size)); }

void *__wrap_calloc(size_t count, size_t size) { return fails() ? NULL : grew(__real_calloc(count, size)); }

void *__wrap_realloc(void *old, size_t size) {
    if (fails()) return NULL;
    size_t before = old ? malloc_usable_size(old) : 0;
    void *p = __real_realloc(old, size);
    if (!p) return NULL;
    alloc_now_bytes = alloc_now_bytes > before ? alloc_now_bytes - before : 0;
    return grew(p);
}

void __wrap_free(void *p) {
    shrank(p);
    __real_free(p);
}
