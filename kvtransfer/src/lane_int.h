/* lane_int.h - what lane.c (orders, thread) and lane_work.c (calls) share. */
#ifndef KVF_XFER_LANE_INT_H
#define KVF_XFER_LANE_INT_H
#include "lane.h"
#include <pthread.h>

typedef struct lane_staging lane_staging;
struct lane_staging {
    lane_staging *next;
    /* Each may be missing: not needed yet, or there was no room for it. */
    uint8_t *device; /* [slots][slot_bytes] */
    uint8_t *host; /* the same, pinned */
    kvf_page_at *pages; /* [slots][slot_pages], pinned */
    uint32_t *crc;
};
struct lane_pool {
    const kvf_page_device *device;
    uint32_t page_bytes, slots, slot_pages;
    uint64_t slot_bytes;
    int bell;
    pthread_mutex_t lock;
    lane_staging *idle;
};

typedef enum { SLOT_IDLE, SLOT_QUEUED, SLOT_RUNNING } slot_state;
typedef struct {
    lane_view view;
    uint8_t *device;
    kvf_cuda_stream stream; /* of its packing and landing */
    kvf_cuda_event event;
    slot_state state;
    lane_work work;
    uint64_t turn; /* of the order */
    kvf_time_ns since_ns;
} lane_slot_of;

struct lane {
    lane_pool *pool;
    kvf_lane_kind kind;
    bool sends;
    pthread_t thread;
    pthread_mutex_t lock; /* all that follows, but what only the thread touches */
    pthread_cond_t moved;
    bool open_wanted, join_wanted, closing, broken, lost_told, rescued;
    bool woken; /* work has ended since the thread looked last */
    kvf_time_ns order_ns, closing_ns;
    uint8_t join_bytes[LANE_BYTES_MAX];
    uint64_t turns, stride_bytes;
    lane_slot_of slots[LANE_SLOTS_MAX];
    lane_event *news; /* ring */
    uint32_t news_first, news_count;
    const char *call; /* in which the thread is */
    kvf_time_ns call_ns;
    kvf_nccl_comm comm;
    bool comm_gone; /* being aborted, or aborted */
    bool rescuing; /* by a thread that is still at it */
    /* the thread's */
    lane_staging *staging;
    uint8_t *remote; /* the receiver's slots, mapped */
    kvf_cuda_stream stream; /* of sends and receives */
    bool streams_made;
};
#define LANE_NEWS_MAX 64u

/* Marks the call the thread is in: lane_since sees it. */
void lane_enter(lane *l, const char *call);
int lane_left(lane *l, int result);
#define LANE_CALL(l, name, call) (lane_enter((l), (name)), lane_left((l), (call)))
void lane_tell(lane *l, const lane_event *event);
bool lane_is_closing(lane *l);
void lane_fail(lane *l, const char *call, int error, bool nccl);

/* lane_work.c: on the lane's thread. false: lane_fail has been called, or the lane is closing. */
bool lane_do_open(lane *l);
bool lane_do_join(lane *l);
bool lane_do_work(lane *l, uint32_t slot);
/* Of a running slot: 0 done, KVF_CUDA_NOT_READY, or what went wrong. */
int lane_look(lane *l, uint32_t slot);
bool lane_look_at_comm(lane *l);
void lane_abort(lane *l); /* any thread, once */
void lane_drain(lane *l); /* until no stream of it runs */
void lane_release(lane *l);
void lane_nap(uint32_t us);
#endif
