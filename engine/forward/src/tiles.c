/* How the rows of a step are cut into attention tiles.
 *
 * A run's rows are consecutive tokens and become tiles of their own. Runs of one row (decoding) whose first pages are
 * the same blocks are gathered: one tile reads the pages they share once for all of them. A row's bits do not depend on
 * the tile it is in, so this is free to choose. */
#include "engine_int.h"

enum { SHARED_PAGES_MIN = 4 }; /* below this a gathered tile saves nothing worth its second copy of the queries */

static uint32_t pages_of(uint32_t positions) { return (uint32_t)kvf_div_up(positions, KVF_BLOCK_TOKENS); }

static void lay_run(kvf_engine *e, uint32_t index, uint32_t first, uint32_t row) {
    const kvf_engine_run *run = &e->step->runs[index];
    uint32_t most = kvf_tile_tokens(&e->m->spec);
    for (uint32_t i = first; i < run->count; i += most) {
        uint32_t tokens = KVF_MIN(most, run->count - i);
        e->tiles[e->tiles_count++] = (kvf_tile){.run = index, .first = i, .tokens = tokens, .row = row + i - first};
        e->tile_pages += pages_of(run->position + i + tokens);
    }
}

/* Whole pages in front of both rows that are the same blocks. */
static uint32_t common_pages(const kvf_engine *e, const kvf_lone_run *a, const kvf_lone_run *b) {
    const uint32_t *x = e->step->runs[a->run].blocks, *y = e->step->runs[b->run].blocks;
    uint32_t most = KVF_MIN(a->position, b->position) / KVF_BLOCK_TOKENS, i = 0;
    while (i < most && x[i] == y[i]) i++;
    return i;
}

/* The first `members` lone runs, which share `pages`, in tiles as large as scratch allows. */
static void gather(kvf_engine *e, uint32_t members, uint32_t pages) {
    uint32_t most = kvf_tile_tokens(&e->m->spec);
    for (uint32_t i = 0; i < members; i += most) {
        uint32_t tokens = KVF_MIN(most, members - i);
        e->tiles[e->tiles_count++] = (kvf_tile){
            .run = e->lone[i].run, .first = e->gathered_count, .tokens = tokens, .shared = pages * KVF_BLOCK_TOKENS};
        e->tile_pages += pages;
        for (uint32_t k = i; k < i + tokens; k++) {
            const kvf_lone_run *l = &e->lone[k];
            e->gathered[e->gathered_count++] =
                (kvf_attention_token){.blocks = e->step->runs[l->run].blocks, .position = l->position, .row = l->row};
            e->tile_pages += pages_of(l->position + 1) - pages;
        }
    }
}

/* Moves lone runs that go with the first one to the front; their number, and the pages they all share. Companions that
 * share much are not held back by one that shares little: those below half of the best wait for a tile of their own. */
static uint32_t find_companions(kvf_engine *e, uint32_t count, uint32_t *pages) {
    uint32_t best = 0, members = 1;
    for (uint32_t i = 1; i < count; i++) {
        e->lone[i].common = common_pages(e, &e->lone[0], &e->lone[i]);
        best = KVF_MAX(best, e->lone[i].common);
    }
    *pages = best;
    for (uint32_t i = 1; i < count && best >= SHARED_PAGES_MIN; i++) {
        kvf_lone_run l = e->lone[i];
        if (l.common < SHARED_PAGES_MIN || l.common * 2 < best) continue;
        e->lone[i] = e->lone[members];
        e->lone[members++] = l;
        *pages = KVF_MIN(*pages, l.common);
    }
    return members;
}

static void lay_lone(kvf_engine *e, uint32_t count) {
    kvf_lone_run *all = e->lone;
    while (count > 0) {
        uint32_t pages, members = find_companions(e, count, &pages);
        if (members > 1)
            gather(e, members, pages);
        else
            lay_run(e, e->lone[0].run, e->step->runs[e->lone[0].run].count - 1, e->lone[0].row);
        e->lone += members;
        count -= members;
    }
    e->lone = all;
}

void kvf_lay_tiles(kvf_engine *e, bool only_wanted) {
    uint32_t row = 0, lone = 0;
    e->tiles_count = e->gathered_count = 0;
    e->tile_pages = 0;
    for (uint32_t r = 0; r < e->step->runs_count; r++) {
        const kvf_engine_run *run = &e->step->runs[r];
        uint32_t rows = only_wanted ? run->logit_rows : run->count;
        if (rows == 1)
            e->lone[lone++] = (kvf_lone_run){.run = r, .row = row, .position = run->position + run->count - 1};
        else
            lay_run(e, r, run->count - rows, row);
        row += rows;
    }
    lay_lone(e, lone);
}
