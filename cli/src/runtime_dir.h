/* runtime_dir.h - a private directory for the sockets of one `serve`, and the clearing away of those whose owner was
 * killed. The owner holds a lock on the file "lock" inside; a directory with such a file that nobody holds is left
 * over. */
#ifndef KVF_CLI_RUNTIME_DIR_H
#define KVF_CLI_RUNTIME_DIR_H
#include "kvf/base.h"

typedef struct {
    char path[96]; /* "" none */
    int lock;
} kvf_runtime_dir;
/* Under the first of $XDG_RUNTIME_DIR, $TMPDIR, /tmp where a socket's path stays short enough. False: none. */
bool kvf_runtime_dir_create(kvf_runtime_dir *d);
void kvf_runtime_dir_remove(kvf_runtime_dir *d);
#endif
