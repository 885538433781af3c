/* Anonymous maps for packed weights, pages and workspace. */
#include "engine_int.h"
#include <sys/mman.h>

kvf_status kvf_memory_map(size_t len_bytes, bool huge_pages, void **out) {
    void *at = mmap(NULL, len_bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (at == MAP_FAILED) return KVF_ERR_NO_MEMORY;
#if defined(MADV_HUGEPAGE)
    if (huge_pages) (void)madvise(at, len_bytes, MADV_HUGEPAGE); /* only a hint */
#endif
    *out = at;
    return KVF_OK;
}

void kvf_memory_unmap(void *memory, size_t len_bytes) {
    if (memory) munmap(memory, len_bytes);
}
