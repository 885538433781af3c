/* A Unix socket path has one server: bind(2) by gRPC takes a path over silently, so the path is guarded by a lock file.
 */
#include "rpc_int.h"
#include <errno.h>
#include <fcntl.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

kvf_status rpc_unix_lock(const char *lock_path, int *fd) {
    for (;;) {
        int got = open(lock_path, O_RDWR | O_CREAT | O_CLOEXEC, 0600);
        if (got < 0) return KVF_ERR_IO;
        if (flock(got, LOCK_EX | LOCK_NB) != 0) {
            kvf_status status = errno == EWOULDBLOCK ? KVF_ERR_BUSY : KVF_ERR_IO;
            close(got);
            return status;
        }
        /* The last holder unlinks while it holds: a lock on a file that is no longer at the path is worth nothing. */
        struct stat mine, there;
        if (fstat(got, &mine) == 0 && stat(lock_path, &there) == 0 && mine.st_ino == there.st_ino &&
            mine.st_dev == there.st_dev) {
            *fd = got;
            return KVF_OK;
        }
        close(got);
    }
}

void rpc_unix_unlock(const char *lock_path, int fd) {
    unlink(lock_path);
    close(fd);
}
