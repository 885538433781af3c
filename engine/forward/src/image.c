/* A cache of packed weights: one file for each model, FOLDER/<hash of the weights>-<version>.kvfpack, mapped read-only
 * by every process, so that a host holds its pages once and a later start packs nothing.
 *
 * File: a header of 4,096 bytes (little-endian: "KVFPACK1", version u32, header bytes u32, image bytes u64, hash of the
 * weights 2 x u64, XXH3-128 of the image 2 x u64, XXH3-64 of all that u64, zeros), then the image.
 *
 * A file is made under a name of its own and renamed when it is complete, so nobody sees half of one; its maker maps
 * the same pages. Makers take turns by a lock, so that the second finds what the first made. What is mapped is believed
 * only after length, owner, header and checksum were looked at. Any trouble ends in private memory, never in a failed
 * start. */
#include "image.h"
#include "engine_int.h"
#include "kvf/hash.h"
#include "kvf/os.h"
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/file.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

enum { HEADER_BYTES = 4096, HEADER_USED = 64, VERSION = 1 }; /* VERSION: packed kinds, order of tensors, header */
static const char magic[8] = {'K', 'V', 'F', 'P', 'A', 'C', 'K', '1'};
static const kvf_time_ns lock_patience_ns = 20ull * 1000 * 1000 * 1000;

static void make_header(const kvf_image *i, uint8_t out[HEADER_USED]) {
    kvf_hash128 sum = kvf_hash128_of(i->data, i->data_bytes, VERSION);
    memcpy(out, magic, sizeof magic);
    kvf_put_le32(out + 8, VERSION);
    kvf_put_le32(out + 12, HEADER_BYTES);
    kvf_put_le64(out + 16, i->data_bytes);
    kvf_put_le64(out + 24, i->weights_hash[0]);
    kvf_put_le64(out + 32, i->weights_hash[1]);
    kvf_put_le64(out + 40, sum.lo);
    kvf_put_le64(out + 48, sum.hi);
    kvf_put_le64(out + 56, kvf_hash64_of(out, 56, VERSION));
}

static void use_map(kvf_image *i, uint8_t *map) {
    i->map = map;
    i->map_bytes = HEADER_BYTES + i->data_bytes;
    i->data = map + HEADER_BYTES;
    i->shared = true;
}

/* True and mapped where the file is whole, ours, and says what it must. */
static bool load(kvf_image *i) {
    int fd = open(i->path, O_RDONLY | O_CLOEXEC | O_NOFOLLOW);
    if (fd < 0) return false;
    struct stat st;
    size_t bytes = HEADER_BYTES + i->data_bytes;
    bool ours = fstat(fd, &st) == 0 && S_ISREG(st.st_mode) && st.st_uid == geteuid() && (st.st_mode & 022) == 0 &&
                (uint64_t)st.st_size == bytes;
    void *map = ours ? mmap(NULL, bytes, PROT_READ, MAP_SHARED, fd, 0) : MAP_FAILED;
    close(fd);
    if (map == MAP_FAILED) return false;
    use_map(i, map);
    uint8_t want[HEADER_USED];
    make_header(i, want);
    if (memcmp(map, want, sizeof want) == 0) {
        i->filled = true;
        return true;
    }
    munmap(map, bytes);
    i->map = NULL;
    i->shared = false;
    return false;
}

static bool make_folder(const char *folder) {
    if (mkdir(folder, 0700) == 0 || errno == EEXIST) return true;
    char parent[sizeof((kvf_image *)0)->path];
    snprintf(parent, sizeof parent, "%s", folder);
    char *slash = strrchr(parent, '/');
    if (errno != ENOENT || !slash || slash == parent) return false;
    *slash = '\0';
    return (mkdir(parent, 0700) == 0 || errno == EEXIST) && (mkdir(folder, 0700) == 0 || errno == EEXIST);
}

/* A maker that was stopped must not stop others: after a while they do without the cache. */
static bool take_lock(kvf_image *i) {
    char name[sizeof i->path + 8];
    snprintf(name, sizeof name, "%s.lock", i->path);
    i->lock_fd = open(name, O_RDWR | O_CREAT | O_CLOEXEC | O_NOFOLLOW, 0600);
    if (i->lock_fd < 0) return false;
    kvf_time_ns until = kvf_os_now_ns() + lock_patience_ns;
    while (flock(i->lock_fd, LOCK_EX | LOCK_NB) != 0) {
        if ((errno != EWOULDBLOCK && errno != EINTR) || kvf_os_now_ns() > until) return false;
        nanosleep(&(struct timespec){.tv_nsec = 2000000}, NULL);
    }
    return true;
}

/* Room in a new file. Its blocks are taken now: a full disk must be an error here, not a signal while packing. */
static bool make_room(kvf_image *i) {
    int length = snprintf(i->temporary, sizeof i->temporary, "%s.new", i->path);
    if (length < 0 || (size_t)length >= sizeof i->temporary) goto failed;
    unlink(i->temporary); /* we hold the lock: it is what a maker left that died */
    int fd = open(i->temporary, O_RDWR | O_CREAT | O_EXCL | O_CLOEXEC | O_NOFOLLOW, 0600);
    if (fd < 0) goto failed;
    size_t bytes = HEADER_BYTES + i->data_bytes;
    bool room = posix_fallocate(fd, 0, (off_t)bytes) == 0;
    void *map = room ? mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0) : MAP_FAILED;
    close(fd);
    if (map != MAP_FAILED) {
        use_map(i, map);
        return true;
    }
    unlink(i->temporary);
failed:
    i->temporary[0] = '\0';
    return false;
}

static void unlock(kvf_image *i) {
    if (i->lock_fd >= 0) close(i->lock_fd);
    i->lock_fd = -1;
}

static bool open_in(kvf_image *i, const char *folder) {
    int length = snprintf(i->path, sizeof i->path, "%s/%016llx%016llx-%d.kvfpack", folder,
        (unsigned long long)i->weights_hash[1], (unsigned long long)i->weights_hash[0], VERSION);
    if (length < 0 || (size_t)length >= sizeof i->path) return false;
    if (load(i)) return true;
    if (make_folder(folder) && take_lock(i)) {
        if (load(i)) { /* the one before us in the line made it */
            unlock(i);
            return true;
        }
        if (make_room(i)) return true;
    }
    unlock(i);
    return false;
}

kvf_status kvf_image_open(const char *folder, const uint64_t weights_hash[2], size_t data_bytes, kvf_image *out) {
    *out = (kvf_image){.data_bytes = data_bytes, .lock_fd = -1, .weights_hash = {weights_hash[0], weights_hash[1]}};
    if (folder && *folder && open_in(out, folder)) return KVF_OK;
    void *map;
    kvf_status status = kvf_memory_map(data_bytes, true, &map);
    if (status != KVF_OK) return status;
    out->map = out->data = map;
    out->map_bytes = data_bytes;
    return KVF_OK;
}

void kvf_image_publish(kvf_image *i) {
    if (i->temporary[0]) {
        uint8_t header[HEADER_USED];
        make_header(i, header);
        memcpy(i->map, header, sizeof header);
        /* Where the rename fails the pages are still ours to use, only nobody finds them. */
        if (chmod(i->temporary, 0400) != 0 || rename(i->temporary, i->path) != 0) unlink(i->temporary);
        i->temporary[0] = '\0';
    }
    (void)mprotect(i->map, i->map_bytes, PROT_READ); /* a guard, not a need */
    unlock(i);
}

void kvf_image_close(kvf_image *i) {
    if (!i->map) return;
    if (i->temporary[0]) unlink(i->temporary);
    unlock(i);
    munmap(i->map, i->map_bytes);
    i->map = NULL;
}
