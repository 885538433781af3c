/* other_plugin.c - device code of another version of this program. */
#include "kvf/cuda_plugin.h"

const kvf_cuda_plugin_table *kvf_cuda_plugin(uint32_t abi) {
    (void)abi;
    return NULL;
}
