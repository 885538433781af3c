/* fake_memory.c - device memory: one sparse memory file, given out first fit in whole system pages, so that another
 * process can map any piece of it. A page without access lies behind every allocation; the bytes between an
 * allocation's end and its last page are poisoned for AddressSanitizer. */
#include "fake_int.h"
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <unistd.h>
#if defined(__has_feature)
#if __has_feature(address_sanitizer)
#define FAKE_ASAN 1
#endif
#endif
#if defined(__SANITIZE_ADDRESS__) || defined(FAKE_ASAN)
#include <sanitizer/asan_interface.h>
#else
#define ASAN_POISON_MEMORY_REGION(p, n) ((void)(p), (void)(n))
#define ASAN_UNPOISON_MEMORY_REGION(p, n) ((void)(p), (void)(n))
#endif

#define ARENA_BYTES (64ull << 30) /* of addresses */
#define ROUND 4096ull

typedef struct block block;
struct block {
    block *next; /* by place */
    uint64_t at, len_bytes, room_bytes; /* room: whole system pages, and the one without access */
    int device;
};
typedef struct opened opened;
struct opened {
    opened *next;
    uint8_t *map;
    size_t len_bytes;
};
static struct {
    int fd;
    uint8_t *map;
    block *first;
    opened *foreign;
} arena = {.fd = -1};

typedef struct {
    uint64_t magic, at, len_bytes;
    int32_t pid, fd;
} handle_bytes;
#define MAGIC 0x6b76662d69706331ull

/* Under the lock, as all that follows. */
static bool arena_open(void) {
    if (arena.map) return true;
    arena.fd = memfd_create("fake-gpu", MFD_CLOEXEC);
    if (arena.fd < 0 || ftruncate(arena.fd, (off_t)ARENA_BYTES)) return false;
    void *map = mmap(NULL, ARENA_BYTES, PROT_NONE, MAP_SHARED | MAP_NORESERVE, arena.fd, 0);
    if (map == MAP_FAILED) return false;
    arena.map = map;
    return true;
}

static block *block_take(size_t len_bytes) {
    uint64_t room = (len_bytes + ROUND - 1) / ROUND * ROUND + ROUND;
    block **link = &arena.first;
    uint64_t at = 0;
    for (; *link && (*link)->at - at < room; link = &(*link)->next) at = (*link)->at + (*link)->room_bytes;
    if (at + room > ARENA_BYTES) return NULL;
    block *b = calloc(1, sizeof *b);
    if (!b) return NULL;
    *b = (block){.next = *link, .at = at, .len_bytes = len_bytes, .room_bytes = room, .device = fake_device_now()};
    if (mprotect(arena.map + at, room - ROUND, PROT_READ | PROT_WRITE)) {
        free(b);
        return NULL;
    }
    *link = b;
    memset(arena.map + at, 0xFF, room - ROUND);
    ASAN_POISON_MEMORY_REGION(arena.map + at + len_bytes, room - ROUND - len_bytes);
    return b;
}

static void block_give(block **link) {
    block *b = *link;
    *link = b->next;
    ASAN_UNPOISON_MEMORY_REGION(arena.map + b->at, b->room_bytes);
    /* What others have mapped of it stays mapped, and reads as zero: the owner is gone. */
    (void)fallocate(arena.fd, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, (off_t)b->at, (off_t)b->room_bytes);
    (void)mprotect(arena.map + b->at, b->room_bytes, PROT_NONE);
    free(b);
}

static block **block_at(const void *memory) {
    block **link = &arena.first;
    while (*link && arena.map + (*link)->at != memory) link = &(*link)->next;
    return link;
}

/* In an allocation that begins at or before p. */
static block *block_around(const uint8_t *p, size_t len_bytes) {
    for (block *b = arena.first; b; b = b->next) {
        const uint8_t *base = arena.map + b->at;
        if (p >= base && p < base + b->len_bytes) return len_bytes <= b->len_bytes - (size_t)(p - base) ? b : NULL;
    }
    return NULL;
}

bool fake_is_device(const void *p, size_t len_bytes) {
    pthread_mutex_lock(&fake_lock);
    bool found = block_around(p, len_bytes) != NULL;
    for (opened *o = arena.foreign; o && !found; o = o->next) {
        const uint8_t *at = p;
        found = at >= o->map && at < o->map + o->len_bytes && len_bytes <= o->len_bytes - (size_t)(at - o->map);
    }
    pthread_mutex_unlock(&fake_lock);
    return found;
}

/* ---------------------------------------------------------------- calls */
static uint64_t in_use(int device) {
    uint64_t bytes = 0;
    for (block *b = arena.first; b; b = b->next)
        if (b->device == device) bytes += b->room_bytes - ROUND;
    return bytes;
}

int cudaMalloc(void **out, size_t len_bytes) {
    FAKE_ENTER();
    if (len_bytes == 0) {
        *out = NULL;
        return 0;
    }
    fake_cuda_settings s;
    fake_cuda_get(&s);
    pthread_mutex_lock(&fake_lock);
    block *b = NULL;
    if (arena_open() && len_bytes <= s.memory_bytes && in_use(fake_device_now()) + len_bytes <= s.memory_bytes)
        b = block_take(len_bytes);
    if (b) {
        *out = arena.map + b->at;
        fake_counted.allocations++;
        fake_counted.memory_bytes += len_bytes;
    }
    pthread_mutex_unlock(&fake_lock);
    return b ? 0 : fake_answer(KVF_CUDA_OUT_OF_MEMORY);
}

static void wait_as_free_does(void) {
    fake_cuda_settings s;
    fake_cuda_get(&s);
    if (!s.free_at_once) fake_wait_device();
}

int cudaFree(void *memory) {
    FAKE_ENTER_TO_GIVE();
    if (!memory) return fault_;
    wait_as_free_does();
    pthread_mutex_lock(&fake_lock);
    block **link = block_at(memory);
    bool found = *link != NULL;
    if (found) {
        fake_counted.allocations--;
        fake_counted.memory_bytes -= (*link)->len_bytes;
        block_give(link);
    }
    pthread_mutex_unlock(&fake_lock);
    return found ? fault_ : fake_answer(KVF_CUDA_INVALID_VALUE);
}

int cudaMemGetInfo(size_t *free_bytes, size_t *total_bytes) {
    FAKE_ENTER();
    fake_cuda_settings s;
    fake_cuda_get(&s);
    pthread_mutex_lock(&fake_lock);
    *free_bytes = s.memory_bytes - in_use(fake_device_now());
    *total_bytes = s.memory_bytes;
    pthread_mutex_unlock(&fake_lock);
    return 0;
}

int cudaHostAlloc(void **out, size_t len_bytes, unsigned flags) {
    FAKE_ENTER();
    (void)flags;
    void *p = NULL;
    if (posix_memalign(&p, 4096, len_bytes ? len_bytes : 1)) return fake_answer(KVF_CUDA_OUT_OF_MEMORY);
    memset(p, 0xFF, len_bytes);
    *out = p;
    FAKE_COUNT(host_allocations, 1);
    return 0;
}
int cudaFreeHost(void *memory) {
    FAKE_ENTER_TO_GIVE();
    if (!memory) return fault_;
    free(memory);
    FAKE_COUNT(host_allocations, -1u);
    return fault_;
}
int cudaHostRegister(void *memory, size_t len_bytes, unsigned flags) {
    FAKE_ENTER();
    (void)flags;
    return memory && len_bytes ? 0 : fake_answer(KVF_CUDA_INVALID_VALUE);
}
int cudaHostUnregister(void *memory) {
    FAKE_ENTER();
    return memory ? 0 : fake_answer(KVF_CUDA_INVALID_VALUE);
}

/* ---------------------------------------------------------------- between processes */
int cudaIpcGetMemHandle(kvf_cuda_ipc_handle *out, void *memory) {
    FAKE_ENTER();
    pthread_mutex_lock(&fake_lock);
    const block *b = block_around(memory, 1); /* an address inside gives the handle of the whole, as on a device */
    handle_bytes h = {0};
    if (b) h = (handle_bytes){MAGIC, b->at, b->len_bytes, (int32_t)getpid(), arena.fd};
    pthread_mutex_unlock(&fake_lock);
    if (!b) return fake_answer(KVF_CUDA_INVALID_VALUE);
    memset(out, 0, sizeof *out);
    memcpy(out->bytes, &h, sizeof h);
    return 0;
}

int cudaIpcOpenMemHandle(void **out, kvf_cuda_ipc_handle handle, unsigned flags) {
    FAKE_ENTER();
    handle_bytes h;
    memcpy(&h, handle.bytes, sizeof h);
    if (h.magic != MAGIC || flags != KVF_CUDA_IPC_LAZY_PEER) return fake_answer(KVF_CUDA_INVALID_VALUE);
    char path[64];
    snprintf(path, sizeof path, "/proc/%d/fd/%d", h.pid, h.fd);
    int fd = open(path, O_RDWR | O_CLOEXEC);
    opened *o = calloc(1, sizeof *o);
    void *map = MAP_FAILED;
    if (fd >= 0) map = mmap(NULL, h.len_bytes, PROT_READ | PROT_WRITE, MAP_SHARED, fd, (off_t)h.at);
    if (fd >= 0) close(fd);
    if (!o || map == MAP_FAILED) {
        free(o);
        return fake_answer(KVF_CUDA_MAP_FAILED);
    }
    *o = (opened){.map = map, .len_bytes = h.len_bytes};
    pthread_mutex_lock(&fake_lock);
    o->next = arena.foreign;
    arena.foreign = o;
    fake_counted.opened_handles++;
    pthread_mutex_unlock(&fake_lock);
    *out = map;
    return 0;
}

int cudaIpcCloseMemHandle(void *memory) {
    FAKE_ENTER_TO_GIVE();
    wait_as_free_does();
    pthread_mutex_lock(&fake_lock);
    opened **link = &arena.foreign, *o;
    while (*link && (*link)->map != memory) link = &(*link)->next;
    o = *link;
    if (o) {
        *link = o->next;
        fake_counted.opened_handles--;
    }
    pthread_mutex_unlock(&fake_lock);
    if (!o) return fake_answer(KVF_CUDA_INVALID_VALUE);
    munmap(o->map, o->len_bytes);
    free(o);
    return fault_;
}
