#include "directory.h"

void rt_directory_layout(rt_directory *d, kvf_arena *arena, uint32_t entries_max) {
    uint32_t places = 16;
    while (places / 2 < entries_max) places *= 2;
    *d = (rt_directory){.places_mask = places - 1, .count_max = entries_max};
    d->places = KVF_ARENA_NEW(arena, uint32_t, places);
    d->entries = KVF_ARENA_NEW(arena, rt_dir_entry, entries_max);
    if (d->places) memset(d->places, 0, sizeof *d->places * places); /* names fall anywhere: touched at once */
}

static uint32_t home(const rt_directory *d, kvf_hash128 name) { return (uint32_t)name.lo & d->places_mask; }

/* The place of `name`, or the free place where it would go. */
static uint32_t place_of(const rt_directory *d, kvf_hash128 name) {
    uint32_t at = home(d, name);
    while (d->places[at] && !kvf_hash128_equal(d->entries[d->places[at] - 1].name, name))
        at = (at + 1) & d->places_mask;
    return at;
}

/* NULL: nobody holds it. */
static rt_dir_entry *entry_of(const rt_directory *d, kvf_hash128 name) {
    uint32_t place = d->places[place_of(d, name)];
    return place ? &d->entries[place - 1] : NULL;
}

static rt_dir_entry *take_entry(rt_directory *d, kvf_hash128 name) {
    uint32_t index = d->entries_free ? d->entries_free - 1 : d->entries_end++;
    rt_dir_entry *e = &d->entries[index];
    if (d->entries_free) d->entries_free = (uint32_t)e->name.lo;
    *e = (rt_dir_entry){.name = name};
    d->places[place_of(d, name)] = index + 1;
    d->count++;
    return e;
}

static void free_place(rt_directory *d, uint32_t hole) {
    for (uint32_t at = hole;;) {
        at = (at + 1) & d->places_mask;
        if (!d->places[at]) break;
        uint32_t want = home(d, d->entries[d->places[at] - 1].name);
        /* An entry may move back only as far as its home. */
        if (((at - want) & d->places_mask) < ((at - hole) & d->places_mask)) continue;
        d->places[hole] = d->places[at];
        hole = at;
    }
    d->places[hole] = 0;
}

static void free_entry(rt_directory *d, rt_dir_entry *e) {
    free_place(d, place_of(d, e->name));
    *e = (rt_dir_entry){.name = {.lo = d->entries_free}};
    d->entries_free = (uint32_t)(e - d->entries) + 1;
    KVF_ASSERT(d->count > 0);
    d->count--;
}

static void drop_bit(rt_directory *d, rt_dir_entry *e, uint32_t node) {
    KVF_ASSERT(d->held[node] > 0);
    d->held[node]--;
    e->nodes &= ~(1ull << node);
    e->seen &= ~(1ull << node);
    if (!e->nodes) free_entry(d, e);
}

uint64_t rt_directory_find(const rt_directory *d, kvf_hash128 name) {
    const rt_dir_entry *e = entry_of(d, name);
    return e ? e->nodes : 0;
}

/* NULL: it found no room. */
static rt_dir_entry *add(rt_directory *d, uint32_t node, kvf_hash128 name) {
    rt_dir_entry *e = entry_of(d, name);
    if (!e && d->count >= d->count_max) {
        d->dropped++;
        d->incomplete |= 1ull << node;
        return NULL;
    }
    if (!e) e = take_entry(d, name);
    if (!(e->nodes >> node & 1)) d->held[node]++;
    e->nodes |= 1ull << node;
    return e;
}

void rt_directory_add(rt_directory *d, uint32_t node, kvf_hash128 name) {
    KVF_ASSERT(node < RT_DIRECTORY_NODES);
    add(d, node, name);
}

void rt_directory_remove(rt_directory *d, uint32_t node, kvf_hash128 name) {
    KVF_ASSERT(node < RT_DIRECTORY_NODES);
    rt_dir_entry *e = entry_of(d, name);
    if (e && e->nodes >> node & 1) drop_bit(d, e, node);
}

void rt_directory_clear(rt_directory *d, uint32_t node) {
    KVF_ASSERT(node < RT_DIRECTORY_NODES);
    d->incomplete &= ~(1ull << node);
    for (uint32_t i = 0; i < d->entries_end && d->held[node]; i++)
        if (d->entries[i].nodes >> node & 1) drop_bit(d, &d->entries[i], node);
    KVF_ASSERT(d->held[node] == 0);
}

void rt_directory_snapshot_begin(rt_directory *d, uint32_t node) {
    KVF_ASSERT(node < RT_DIRECTORY_NODES);
    d->missing[node] = 0;
    d->incomplete &= ~(1ull << node);
    for (uint32_t i = 0; i < d->entries_end; i++) d->entries[i].seen &= ~(1ull << node);
}

void rt_directory_snapshot_name(rt_directory *d, uint32_t node, kvf_hash128 name) {
    uint64_t before = d->held[node];
    rt_dir_entry *e = add(d, node, name);
    if (!e) return;
    if (d->held[node] > before) d->missing[node]++;
    e->seen |= 1ull << node;
}

rt_dir_difference rt_directory_snapshot_end(rt_directory *d, uint32_t node) {
    rt_dir_difference difference = {.missing = d->missing[node]};
    uint64_t bit = 1ull << node;
    for (uint32_t i = 0; i < d->entries_end; i++) {
        rt_dir_entry *e = &d->entries[i];
        if ((e->nodes & bit) && !(e->seen & bit)) {
            difference.extra++;
            drop_bit(d, e, node);
        }
        e->seen &= ~bit;
    }
    return difference;
}
