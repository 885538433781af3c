#include "directory.h"

void rt_directory_layout(rt_directory *d, kvf_arena *arena, uint32_t entries_max) {
    uint32_t places = 16;
    while (places / 2 < entries_max) places *= 2;
    *d = (rt_directory){.places_mask = places - 1, .count_max = entries_max};
    d->entries = KVF_ARENA_NEW(arena, rt_dir_entry, places);
}

static uint32_t home(const rt_directory *d, kvf_hash128 name) { return (uint32_t)name.lo & d->places_mask; }

/* The place of `name`, or the free place where it would go. */
static uint32_t place_of(const rt_directory *d, kvf_hash128 name) {
    uint32_t at = home(d, name);
    while (d->entries[at].nodes && !kvf_hash128_equal(d->entries[at].name, name)) at = (at + 1) & d->places_mask;
    return at;
}

static void free_place(rt_directory *d, uint32_t hole) {
    for (uint32_t at = hole;;) {
        at = (at + 1) & d->places_mask;
        if (!d->entries[at].nodes) break;
        uint32_t want = home(d, d->entries[at].name);
        /* An entry may move back only as far as its home. */
        if (((at - want) & d->places_mask) < ((at - hole) & d->places_mask)) continue;
        d->entries[hole] = d->entries[at];
        hole = at;
    }
    d->entries[hole] = (rt_dir_entry){0};
    KVF_ASSERT(d->count > 0);
    d->count--;
}

static void drop_bit(rt_directory *d, uint32_t at, uint32_t node) {
    KVF_ASSERT(d->held[node] > 0);
    d->held[node]--;
    d->entries[at].nodes &= ~(1ull << node);
    d->entries[at].seen &= ~(1ull << node);
    if (!d->entries[at].nodes) free_place(d, at);
}

uint64_t rt_directory_find(const rt_directory *d, kvf_hash128 name) { return d->entries[place_of(d, name)].nodes; }

void rt_directory_add(rt_directory *d, uint32_t node, kvf_hash128 name) {
    KVF_ASSERT(node < RT_DIRECTORY_NODES);
    uint32_t at = place_of(d, name);
    if (!d->entries[at].nodes) {
        if (d->count >= d->count_max) {
            d->dropped++;
            d->incomplete |= 1ull << node;
            return;
        }
        d->entries[at] = (rt_dir_entry){.name = name};
        d->count++;
    }
    if (!(d->entries[at].nodes >> node & 1)) d->held[node]++;
    d->entries[at].nodes |= 1ull << node;
}

void rt_directory_remove(rt_directory *d, uint32_t node, kvf_hash128 name) {
    KVF_ASSERT(node < RT_DIRECTORY_NODES);
    uint32_t at = place_of(d, name);
    if (d->entries[at].nodes >> node & 1) drop_bit(d, at, node);
}

void rt_directory_clear(rt_directory *d, uint32_t node) {
    KVF_ASSERT(node < RT_DIRECTORY_NODES);
    d->incomplete &= ~(1ull << node);
    /* Freeing a place may shift a later entry into it: look at the same place again. */
    for (uint32_t at = 0; at <= d->places_mask && d->held[node];)
        if (d->entries[at].nodes >> node & 1)
            drop_bit(d, at, node);
        else
            at++;
    KVF_ASSERT(d->held[node] == 0);
}

void rt_directory_snapshot_begin(rt_directory *d, uint32_t node) {
    KVF_ASSERT(node < RT_DIRECTORY_NODES);
    d->missing[node] = 0;
    d->incomplete &= ~(1ull << node);
    for (uint32_t at = 0; at <= d->places_mask; at++)
        if (d->entries[at].seen) d->entries[at].seen &= ~(1ull << node);
}

void rt_directory_snapshot_name(rt_directory *d, uint32_t node, kvf_hash128 name) {
    uint64_t before = d->held[node];
    rt_directory_add(d, node, name);
    uint32_t at = place_of(d, name);
    if (!d->entries[at].nodes) return; /* found no room */
    if (d->held[node] > before) d->missing[node]++;
    d->entries[at].seen |= 1ull << node;
}

rt_dir_difference rt_directory_snapshot_end(rt_directory *d, uint32_t node) {
    rt_dir_difference difference = {.missing = d->missing[node]};
    uint64_t bit = 1ull << node;
    for (uint32_t at = 0; at <= d->places_mask;) {
        const rt_dir_entry *e = &d->entries[at];
        if (!(e->nodes & bit) || (e->seen & bit)) {
            at++;
            continue;
        }
        difference.extra++;
        drop_bit(d, at, node);
    }
    /* Only now: a place freed near the end may take an entry from the start of the table, which is then looked at
     * again. */
    for (uint32_t at = 0; at <= d->places_mask; at++)
        if (d->entries[at].seen & bit) d->entries[at].seen &= ~bit;
    return difference;
}
