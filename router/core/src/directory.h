/* The router's directory: which node holds which block, by the block's name. Soft state: it follows the numbered events
 * of nodes and is rebuilt from their snapshots; once events have drained it equals the nodes' truth (I8), as long as
 * names found room.
 *
 * `places` is a hash table with linear probing, at most half full: 1 + the index of an entry, 0 where there is none. A
 * name that nobody holds leaves it (by shifting back, no tombstones). Entries are dense, those given back are taken
 * first: only the small table is touched all over, and it is so from the start. */
#ifndef KVF_ROUTER_DIRECTORY_H
#define KVF_ROUTER_DIRECTORY_H
#include "kvf/arena.h"
#include "kvf/hash.h"

#define RT_DIRECTORY_NODES 64

typedef struct {
    kvf_hash128 name;
    uint64_t nodes; /* bit per node; 0: free, and name.lo is 1 + the next free entry */
    uint64_t seen; /* bit per node whose running snapshot has named it */
} rt_dir_entry;

typedef struct {
    uint32_t *places;
    rt_dir_entry *entries; /* [0, entries_end) are or were in use */
    uint32_t places_mask, entries_end, entries_free, count, count_max; /* entries_free: 1 + the first; 0: none */
    uint64_t dropped; /* names that found no room, over all */
    uint64_t incomplete; /* nodes of which a name found no room since their last snapshot or clear */
    uint64_t held[RT_DIRECTORY_NODES]; /* names per node */
    uint32_t missing[RT_DIRECTORY_NODES]; /* of the running snapshot: named there, not known here */
} rt_directory;

typedef struct {
    uint32_t missing, extra;
} rt_dir_difference;

void rt_directory_layout(rt_directory *d, kvf_arena *arena, uint32_t entries_max);
uint64_t rt_directory_find(const rt_directory *d, kvf_hash128 name); /* bits of the nodes that hold it */
void rt_directory_add(rt_directory *d, uint32_t node, kvf_hash128 name);
void rt_directory_remove(rt_directory *d, uint32_t node, kvf_hash128 name);
void rt_directory_clear(rt_directory *d, uint32_t node);

/* A snapshot replaces what is known of a node and tells how the two differed. */
void rt_directory_snapshot_begin(rt_directory *d, uint32_t node);
void rt_directory_snapshot_name(rt_directory *d, uint32_t node, kvf_hash128 name);
rt_dir_difference rt_directory_snapshot_end(rt_directory *d, uint32_t node);
#endif
