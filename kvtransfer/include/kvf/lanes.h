/* kvf/lanes.h - pages in the memory of a device: what an endpoint needs to move them, and how it does.
 *
 * A lane carries the pages of one link beside the link's stream of frames, in batches that fill one staging slot each:
 *   stream    pages are packed into pinned host memory and travel as PAGE frames of the stream; the other side may be a
 *             CPU node. The other way, PAGE frames are gathered in pinned memory and unpacked together.
 *   cuda_ipc  the receiver's slots are mapped into the sender, which packs into them: the receiver alone writes its
 * pool nccl      a communicator of two ranks made when the link is made; a slot goes by one send and one receive, and a
 *             send is posted only when the peer has posted its receive
 * All device calls of a link are made by a thread of its own: one that never returns ends that link, not the others. */
#ifndef KVF_LANES_H
#define KVF_LANES_H
#include "kvf/cuda_api.h"

typedef enum { KVF_LANE_STREAM, KVF_LANE_IPC, KVF_LANE_NCCL } kvf_lane_kind;

/* Equal to kvf_cuda_page of kvf/cuda_pages.h. */
typedef struct {
    uint32_t block, layer;
    uint32_t seed; /* the checksum goes on from here: kvf_page_seed */
} kvf_page_at;

typedef struct {
    const kvf_cuda_api *cuda; /* kept, as everything here */
    const kvf_nccl_api *nccl; /* NULL: no "nccl" */
    bool ipc; /* "cuda_ipc" with peers of this host */
    uint32_t device;
    /* Page i of the list between the pool and slot + i * page_bytes, on `stream`, ordered after whatever has made the
     * page; crc[i] is the checksum of its bytes. pages and crc are pinned memory of the host. Nothing is waited for;
     * errors are the runtime's (cudaGetLastError). Called from any thread. */
    void (*pack)(
        void *self, const kvf_page_at *pages, uint32_t count, uint8_t *slot, uint32_t *crc, kvf_cuda_stream stream);
    void (*unpack)(
        void *self, const kvf_page_at *pages, uint32_t count, uint8_t *slot, uint32_t *crc, kvf_cuda_stream stream);
    void *self;
    uint32_t slots; /* of a link, 2 to 8; 0: 4 */
    uint64_t slot_bytes; /* rounded up to whole pages; 0: 8 MiB */
    uint32_t posts_max; /* sends, and receives, of NCCL under way at once in this process; 0: 4 */
    uint32_t comms_max; /* communicators of this process: for one more the longest idle is closed, with its link; where
                         * none is idle pages go over the stream. 0: 64 */
    kvf_time_ns idle_ns; /* after which the caller closes a communicator that carries nothing, with its link; the next
                          * hand-off calls again. 0: 5 min */
    kvf_time_ns setup_ns; /* to make a lane; 0: 10 s. Then the stream has to do */
    kvf_time_ns stall_ns; /* that one piece of device work may take; 0: 4 s. Then its link ends */
} kvf_page_device;
#endif
