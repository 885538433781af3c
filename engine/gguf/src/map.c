/* The one place of this module that speaks to the operating system: a regular file mapped read-only and shared, so that
 * every process that opens it uses the same pages of the page cache. A file that is shortened while mapped kills its
 * readers with SIGBUS; model files are replaced by rename, never written in place. */
#include "gguf_int.h"
#include <errno.h>
#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

kvf_status gguf_map(const char *path, void **at, size_t *len_bytes, kvf_error *err) {
    /* O_NONBLOCK: a named pipe given as a model must not hang the open. */
    int fd = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK);
    if (fd < 0)
        return kvf_fail(
            err, errno == ENOENT ? KVF_ERR_NOT_FOUND : KVF_ERR_IO, "%.200s: cannot open: %s", path, strerror(errno));
    kvf_status status = KVF_OK;
    struct stat st;
    if (fstat(fd, &st) != 0) {
        status = kvf_fail(err, KVF_ERR_IO, "%.200s: cannot stat: %s", path, strerror(errno));
        goto undo_open;
    }
    if (!S_ISREG(st.st_mode)) {
        status = kvf_fail(err, KVF_ERR_INVALID, "%.200s: not a regular file", path);
        goto undo_open;
    }
    if (st.st_size == 0) {
        status = kvf_fail(err, KVF_ERR_FORMAT, "%.200s: file is empty", path);
        goto undo_open;
    }
    void *mapped = mmap(NULL, (size_t)st.st_size, PROT_READ, MAP_SHARED, fd, 0);
    if (mapped == MAP_FAILED) {
        status = kvf_fail(
            err, KVF_ERR_IO, "%.200s: cannot map %lld bytes: %s", path, (long long)st.st_size, strerror(errno));
        goto undo_open;
    }
    *at = mapped;
    *len_bytes = (size_t)st.st_size;
undo_open:
    close(fd);
    return status;
}

void gguf_unmap(void *at, size_t len_bytes) { munmap(at, len_bytes); }
