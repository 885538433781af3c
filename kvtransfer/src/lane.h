/* lane.h - the device work of one link, on a thread of its own. The endpoint's thread gives orders and takes news; only
 * the lane's thread calls CUDA and NCCL (but for lane_rescue), so that a call that never returns holds nobody else up.
 *
 *   create -> open -> OPENED -> join -> JOINED -> start(slot, work) -> [POSTED] -> DONE ... -> close -> CLOSED -> ENDED
 *   any    -> FAILED once, and then only close is left
 * CLOSED: nothing of this lane touches pages or slots any more. ENDED: its thread is about to be over, free it.
 *
 * A slot's view belongs to the endpoint's thread while no work is under way in it. */
#ifndef KVF_XFER_LANE_H
#define KVF_XFER_LANE_H
#include "kvf/base.h"
#include "kvf/lanes.h"

#define LANE_SLOTS_MAX 8u
#define LANE_BYTES_MAX 128u

typedef struct lane lane;
typedef struct lane_pool
    lane_pool; /* staging memory: kept for the next lane, for cudaFree waits for the whole device */

typedef enum { LANE_PACK, LANE_SEND, LANE_RECV, LANE_LAND } lane_work;
typedef enum { LANE_OPENED, LANE_JOINED, LANE_POSTED, LANE_DONE, LANE_FAILED, LANE_CLOSED, LANE_ENDED } lane_news;
typedef struct {
    lane_news kind;
    uint32_t slot; /* POSTED, DONE */
    lane_work work; /* DONE */
    bool lost; /* FAILED: nothing works on this device any more in this process */
    char text[200]; /* FAILED */
    uint8_t bytes[LANE_BYTES_MAX]; /* OPENED: the receiver's memory handle, or the communicator's id */
    uint32_t len_bytes;
} lane_event;

typedef struct {
    kvf_page_at *pages; /* block UINT32_MAX: this place of the slot is not unpacked */
    uint32_t *crc;
    uint8_t *host; /* stream lanes: the slot's bytes */
    uint32_t count;
} lane_view;

/* bell: written to when there is news. */
lane_pool *lane_pool_create(
    const kvf_page_device *device, uint32_t page_bytes, uint32_t slots, uint32_t slot_pages, int bell);
void lane_pool_destroy(lane_pool *pool); /* every lane has been freed */

lane *lane_create(lane_pool *pool, kvf_lane_kind kind, bool sends); /* NULL: no memory, or no thread */
void lane_open(lane *l);
/* bytes: what the receiver's OPENED said; stride_bytes: of the receiver's slots. */
void lane_join(lane *l, const uint8_t *bytes, uint32_t len_bytes, uint64_t stride_bytes);
lane_view *lane_slot(lane *l, uint32_t slot);
void lane_start(lane *l, uint32_t slot, lane_work work);
bool lane_take(lane *l, lane_event *out);
void lane_close(lane *l);
/* Since when the oldest thing asked of it has been under way, and what it is; 0: nothing is. */
kvf_time_ns lane_since(lane *l, const char **what);
/* Its thread is stuck in a call: aborts the communicator from another one. Once. */
void lane_rescue(lane *l);
void lane_free(lane *l); /* after ENDED */
#endif
