/* table_check.c - the tables of the model against C.
 * Compile time: every enum of a state machine has exactly the states of its table (a switch without default over each).
 * Run time: a random walk over the block pool; every change of a block's state must be a move of tables/block.h, and
 * every move of it must have been seen. */
#include "core_int.h"
#include "kvf/kvcache.h"
#include "kvf/rng.h"
#include "node_int.h"
#include "router_int.h"
#include <stdio.h>
#include <stdlib.h>

#pragma GCC diagnostic error "-Wswitch"
#define MOVE(from, to, event)
#define STATE(name)                                                                                                    \
    case KVF_BLOCK_##name: return #name;
static const char *block_name(kvf_block_state state) {
    switch (state) {
#include "tables/block.h"
    }
    return "?";
}
#undef STATE
#define STATE(name)                                                                                                    \
    case RX_##name: return #name;
static const char *grant_name(rx_state state) {
    switch (state) {
#include "tables/grant.h"
    }
    return "?";
}
#undef STATE
#define STATE(name)                                                                                                    \
    case TX_##name: return #name;
static const char *handoff_name(tx_state state) {
    switch (state) {
#include "tables/handoff.h"
    }
    return "?";
}
#undef STATE
#define STATE(name)                                                                                                    \
    case REQ_##name: return #name;
static const char *request_name(req_state state) {
    switch (state) {
#include "tables/request.h"
    }
    return "?";
}
#undef STATE
#define STATE(name)                                                                                                    \
    case RT_LEG_##name: return #name;
static const char *leg_name(rt_leg_state state) {
    switch (state) {
#include "tables/leg.h"
    }
    return "?";
}
#undef STATE
#undef MOVE

typedef struct {
    kvf_block_state from, to;
    const char *event;
    unsigned seen;
} block_move;
#define STATE(name)
#define MOVE(from, to, event) {KVF_BLOCK_##from, KVF_BLOCK_##to, #event, 0},
static block_move moves[] = {
#include "tables/block.h"
};
#undef STATE
#undef MOVE

enum { BLOCKS = 8, STEPS = 200000 };

static bool see(kvf_block_state from, kvf_block_state to) {
    for (size_t i = 0; i < KVF_COUNT_OF(moves); i++)
        if (moves[i].from == from && moves[i].to == to) {
            moves[i].seen++;
            return true;
        }
    fprintf(stderr, "block: %s -> %s is no move of the table\n", block_name(from), block_name(to));
    return false;
}

/* A block that was freed and taken again inside one call has gone through FREE: its generation says so. */
static bool compare(const kvf_kv *kv, kvf_block_info before[BLOCKS]) {
    bool fine = true;
    for (uint32_t i = 0; i < BLOCKS; i++) {
        kvf_block_info now;
        kvf_kv_block_at(kv, i, &now);
        bool freed = now.id.generation != before[i].id.generation;
        if (freed) fine &= see(before[i].state, KVF_BLOCK_FREE);
        kvf_block_state from = freed ? KVF_BLOCK_FREE : before[i].state;
        if (now.state != from) fine &= see(from, now.state);
        before[i] = now;
    }
    return fine;
}

static uint64_t lcg(uint64_t *state) {
    *state = *state * 6364136223846793005u + 1442695040888963407u;
    return *state >> 33;
}

static void act(kvf_kv *kv, uint64_t *random, kvf_block_id held[BLOCKS], uint32_t *count) {
    kvf_hash128 root = kvf_kv_root((kvf_span){"m", 1}, (kvf_span){"n", 1}, (kvf_span){"", 0});
    uint32_t pick = *count ? (uint32_t)(lcg(random) % *count) : 0;
    kvf_block_id id;
    switch (lcg(random) % 5) {
    case 0:
    case 1:
        if (*count == BLOCKS || kvf_kv_book(kv, 1) != KVF_OK) return;
        if (kvf_kv_take(kv, &id) == KVF_OK)
            held[(*count)++] = id;
        else
            kvf_kv_unbook(kv, 1);
        return;
    case 2: {
        uint32_t tokens[KVF_KV_BLOCK_TOKENS] = {(uint32_t)(lcg(random) % 6)};
        if (*count && kvf_kv_seal(kv, held[pick], root, KVF_BLOCK_NONE, tokens, &id) == KVF_OK) held[pick] = id;
        return;
    }
    case 3:
        if (*count == 0) return;
        kvf_kv_unpin(kv, held[pick]);
        held[pick] = held[--*count];
        return;
    default:
        if (lcg(random) % 50 == 0) kvf_kv_flush(kv);
    }
}

int main(void) {
    kvf_kv_config config = {.blocks = BLOCKS, .events_max = 64};
    size_t size = (kvf_kv_size(&config) + 63) / 64 * 64;
    void *memory = aligned_alloc(64, size);
    if (!memory) return 1;
    memset(memory, 0, size);
    kvf_kv *kv = kvf_kv_init(memory, &config);
    kvf_block_info before[BLOCKS];
    for (uint32_t i = 0; i < BLOCKS; i++) kvf_kv_block_at(kv, i, &before[i]);
    kvf_block_id held[BLOCKS];
    uint32_t count = 0;
    uint64_t random = 1;
    bool fine = true;
    for (uint32_t i = 0; i < STEPS && fine; i++) {
        act(kv, &random, held, &count);
        fine = compare(kv, before);
    }
    for (size_t i = 0; i < KVF_COUNT_OF(moves); i++) {
        printf("block: %s -> %s (%s) seen %u times\n", block_name(moves[i].from), block_name(moves[i].to),
            moves[i].event, moves[i].seen);
        if (!moves[i].seen) fine = false;
    }
    printf("the states of block, grant (%s...), hand-off (%s...), request (%s...) and leg (%s...) are those of C\n",
        grant_name(RX_OFFERED), handoff_name(TX_WAITING), request_name(REQ_QUEUED), leg_name(RT_LEG_WAITING));
    free(memory);
    return fine ? 0 : 1;
}
