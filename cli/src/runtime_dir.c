#include "runtime_dir.h"
#include <dirent.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#define PREFIX "kvferry-"

/* It lies flat: sockets and lock files. The lock goes last, so that a sweep cut short can be repeated. */
static void remove_flat(const char *path) {
    DIR *dir = opendir(path);
    if (!dir) return;
    for (struct dirent *e; (e = readdir(dir));)
        if (e->d_name[0] != '.' && strcmp(e->d_name, "lock") != 0) unlinkat(dirfd(dir), e->d_name, 0);
    unlinkat(dirfd(dir), "lock", 0);
    closedir(dir);
    rmdir(path);
}

/* The lock file of `path`, locked; -1: not there, or held by a living owner. */
static int take_lock(const char *path, int flags) {
    char name[160];
    snprintf(name, sizeof name, "%s/lock", path);
    int fd = open(name, O_RDWR | O_CLOEXEC | O_NOFOLLOW | flags, 0600);
    if (fd >= 0 && flock(fd, LOCK_EX | LOCK_NB) != 0) {
        close(fd);
        fd = -1;
    }
    return fd;
}

static void sweep(const char *base) {
    DIR *dir = opendir(base);
    if (!dir) return;
    for (struct dirent *e; (e = readdir(dir));) {
        char path[128];
        struct stat st;
        if (strncmp(e->d_name, PREFIX, sizeof PREFIX - 1) != 0) continue;
        if (snprintf(path, sizeof path, "%s/%s", base, e->d_name) >= (int)sizeof path) continue;
        if (lstat(path, &st) != 0 || !S_ISDIR(st.st_mode) || st.st_uid != geteuid()) continue;
        int lock = take_lock(path, 0);
        if (lock < 0) continue;
        remove_flat(path);
        close(lock);
    }
    closedir(dir);
}

bool kvf_runtime_dir_create(kvf_runtime_dir *d) {
    const char *candidates[] = {getenv("XDG_RUNTIME_DIR"), getenv("TMPDIR"), "/tmp"};
    for (size_t i = 0; i < KVF_COUNT_OF(candidates); i++) {
        const char *base = candidates[i];
        /* A socket's address holds 107 bytes: "/p31.sock" and the lock beside it must fit. */
        if (!base || base[0] != '/' || strlen(base) > sizeof d->path - 24) continue;
        sweep(base);
        snprintf(d->path, sizeof d->path, "%s/" PREFIX "XXXXXX", base);
        if (!mkdtemp(d->path)) continue;
        d->lock = take_lock(d->path, O_CREAT);
        if (d->lock >= 0) return true;
        rmdir(d->path);
    }
    d->path[0] = 0;
    d->lock = -1;
    return false;
}

void kvf_runtime_dir_remove(kvf_runtime_dir *d) {
    if (!d->path[0]) return;
    remove_flat(d->path);
    close(d->lock);
    d->path[0] = 0;
}
