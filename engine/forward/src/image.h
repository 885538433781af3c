/* The image of packed weights: memory of this process, or a file that the processes of a host map together. */
#ifndef KVF_ENGINE_IMAGE_H
#define KVF_ENGINE_IMAGE_H
#include "kvf/base.h"

typedef struct {
    uint8_t *data; /* aligned to 64 */
    size_t data_bytes;
    bool filled; /* it came from the cache and is read-only */
    bool shared; /* a file's pages; else this process's own */
    uint8_t *map;
    size_t map_bytes;
    int lock_fd; /* held from a miss to kvf_image_publish; else -1 */
    uint64_t weights_hash[2];
    char path[512], temporary[512]; /* of the file being made; empty where there is none */
} kvf_image;

/* Finds the image of these weights in `folder`, or makes room for it there; without a folder, or where the folder
 * cannot be used, room in private memory. A file that is not whole and unharmed is made anew. When !filled the caller
 * packs into `data` and then publishes. */
kvf_status kvf_image_open(const char *folder, const uint64_t weights_hash[2], size_t data_bytes, kvf_image *out);
/* The image is complete: read-only from now on, and where it is a file, others find it. */
void kvf_image_publish(kvf_image *i);
void kvf_image_close(kvf_image *i); /* zeroed memory is fine */
#endif
