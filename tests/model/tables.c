#include "tables.h"
#include "core_int.h"
#include "node_int.h"
#include "router_int.h"

#define STATE(name)
#define MOVE(from, to, event) {KVF_BLOCK_##from, KVF_BLOCK_##to, #event},
static const table_move block_moves[] = {
#include "block_moves.h"
};
#undef MOVE
#define MOVE(from, to, event) {RX_##from, RX_##to, #event},
static const table_move grant_moves[] = {
#include "grant_moves.h"
};
#undef MOVE
#define MOVE(from, to, event) {TX_##from, TX_##to, #event},
static const table_move handoff_moves[] = {
#include "handoff_moves.h"
};
#undef MOVE
#define MOVE(from, to, event) {REQ_##from, REQ_##to, #event},
static const table_move request_moves[] = {
#include "request_moves.h"
};
#undef MOVE
#define MOVE(from, to, event) {RT_LEG_##from, RT_LEG_##to, #event},
static const table_move leg_moves[] = {
#include "leg_moves.h"
};
#undef STATE
#undef MOVE

#define MOVE(from, to, event)
#define STATE(name) #name,
#define MOVES(list) list, (unsigned)KVF_COUNT_OF(list)
const table tables[MACHINES] = {
    [MACHINE_BLOCK] = {"block",
        {
#include "block_moves.h"
        },
        KVF_BLOCK_SEALED + 1, MOVES(block_moves)},
    [MACHINE_GRANT] = {"grant",
        {
#include "grant_moves.h"
        },
        RX_LOST + 1, MOVES(grant_moves)},
    [MACHINE_HANDOFF] = {"hand-off",
        {
#include "handoff_moves.h"
        },
        TX_ENDING + 1, MOVES(handoff_moves)},
    [MACHINE_REQUEST] = {"request",
        {
#include "request_moves.h"
        },
        REQ_SHIP + 1, MOVES(request_moves)},
    [MACHINE_LEG] = {"leg",
        {
#include "leg_moves.h"
        },
        RT_LEG_DECODING + 1, MOVES(leg_moves)},
};

bool table_has(const table *t, unsigned from, unsigned to) {
    for (unsigned i = 0; i < t->moves_count; i++)
        if (t->moves[i].from == from && t->moves[i].to == to) return true;
    return false;
}
