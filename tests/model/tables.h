/* tables.h - the five tables as data: names of states, moves by number. */
#ifndef KVF_MODEL_TABLES_H
#define KVF_MODEL_TABLES_H
#include "moves_seen.h"
#include <stdbool.h>
#include <stddef.h>

enum { STATES_MAX = 8 };
typedef struct {
    unsigned from, to;
    const char *event;
} table_move;
typedef struct {
    const char *name;
    const char *states[STATES_MAX];
    unsigned states_count;
    const table_move *moves;
    unsigned moves_count;
} table;
extern const table tables[MACHINES];
bool table_has(const table *t, unsigned from, unsigned to);
#endif
