/* The pool against its plain model: many virtual sequences, extra pins, uses, flushes and wrong ids, chosen by a seed.
 * After every operation all counts must be equal, and every 16th the whole state, the audit and a router's view built
 * from events alone.
 *
 *   test_kvcache-property [first seed] [seeds] [operations of each]
 *
 * In every other run names are weak (all equal): whatever is still told apart then is told apart by comparing contents.
 */
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>
#include "kv_model.h"
#include "kvf/rng.h"

enum { SEQS = 8, EXTRAS = 4, ROOTS = 3, SYMBOLS = 3, EVENTS = 8, DIRECTORY = 64 };

typedef struct {
    bool active;
    uint32_t root, length, blocks, booked; /* length: blocks it will have in the end */
    uint8_t path[MODEL_DEPTH];
    kvf_block_id id[MODEL_DEPTH];
} seq;

typedef struct {
    uint64_t seed, op;
    kvf_rng rng;
    kvf_kv *kv;
    model m;
    seq seqs[SEQS];
    kvf_block_id pins[EXTRAS], uses[EXTRAS];
    uint32_t pin_count, use_count, extra_booked;
    kvf_hash128 roots[ROOTS];
    kvf_hash128 directory[DIRECTORY]; /* a router's: names told by events */
    uint32_t directory_count;
    uint64_t event_seen;
    uint64_t snapshots, agains;
    bool weak;
} world;

static uint64_t name_mask = UINT64_MAX;

kvf_hash128 __real_kvf_hash128_of(const void *data, size_t len_bytes, uint64_t seed);
kvf_hash128 __wrap_kvf_hash128_of(const void *data, size_t len_bytes, uint64_t seed);
kvf_hash128 __wrap_kvf_hash128_of(const void *data, size_t len_bytes, uint64_t seed) {
    kvf_hash128 h = __real_kvf_hash128_of(data, len_bytes, seed);
    return (kvf_hash128){.lo = h.lo & name_mask, .hi = h.hi & name_mask};
}

#define MUST(condition)                                                                                                \
    do {                                                                                                               \
        if (!(condition)) fail(w, #condition, __LINE__);                                                               \
    } while (0)
static void fail(const world *w, const char *what, int line) {
    printf(
        "seed %llu, operation %llu, line %d: %s\n", (unsigned long long)w->seed, (unsigned long long)w->op, line, what);
    exit(1);
}
/* An assertion of the library counts as a failed test, not as a crash (ctest's WILL_FAIL tells them apart). */
static void on_abort(int sig) { _exit(2); }

static uint32_t below(world *w, uint32_t bound) { return (uint32_t)kvf_rng_below(&w->rng, bound); }

/* Symbols differ in one token, at a place of their own. */
static void tokens_of(uint8_t symbol, uint32_t *tokens) {
    for (uint32_t i = 0; i < 16; i++) tokens[i] = 7;
    tokens[(symbol * 15u) % 16] = 100u + symbol;
}

/* What must hold after every operation */

static void check_counts(world *w) {
    kvf_kv_counts real, plain;
    kvf_kv_count(w->kv, &real);
    model_count(&w->m, &plain);
    MUST(real.total == plain.total);
    MUST(real.free == plain.free);
    MUST(real.filling == plain.filling);
    MUST(real.sealed == plain.sealed);
    MUST(real.pinned == plain.pinned);
    MUST(real.in_use == plain.in_use);
    MUST(real.evictable == plain.evictable);
    MUST(real.booked == plain.booked);
    MUST(real.evictions == plain.evictions);
    MUST(real.hits == plain.hits && real.misses == plain.misses);
    MUST(real.duplicates_dropped == plain.duplicates_dropped);
    MUST(real.slots_empty == plain.slots_empty);
    MUST(kvf_kv_room(w->kv) >= 0);
}

static kvf_hash128 name_of(const world *w, const model_block *b) {
    kvf_hash128 name = w->roots[b->root];
    for (uint32_t i = 0; i < b->depth; i++) {
        uint32_t tokens[16];
        tokens_of(b->path[i], tokens);
        name = kvf_kv_next(name, tokens);
    }
    return name;
}

static void check_blocks(world *w) {
    for (uint32_t i = 0; i < w->m.blocks; i++) {
        const model_block *b = &w->m.at[i];
        kvf_block_info info, found;
        MUST(kvf_kv_block_at(w->kv, i, &info));
        MUST(info.id.index == i && info.id.generation == b->generation);
        MUST(info.state == b->state && info.pins == b->pins && info.uses == b->uses);
        MUST(info.tokens == b->filled && info.indexed == b->indexed);
        if (!b->indexed) continue;
        MUST(kvf_hash128_equal(info.name, name_of(w, b)));
        MUST(kvf_kv_block_find(w->kv, info.name, &found));
        MUST(w->weak || kvf_block_id_equal(found.id, info.id));
    }
    kvf_block_info none;
    MUST(!kvf_kv_block_at(w->kv, w->m.blocks, &none));
    kvf_error err;
    if (kvf_kv_audit(w->kv, &err)) fail(w, err.message, __LINE__);
}

/* What a router does: apply events in order, or start again from a snapshot when they have left the ring. */
static void directory_catch_up(world *w) {
    kvf_kv_event event;
    uint64_t next = kvf_kv_event_next(w->kv);
    MUST(!kvf_kv_event_at(w->kv, next, &event));
    if (w->event_seen < next && !kvf_kv_event_at(w->kv, w->event_seen, &event)) {
        w->directory_count = 0;
        w->snapshots++;
        for (uint32_t i = 0; i < w->m.blocks; i++) {
            kvf_block_info info;
            MUST(kvf_kv_block_at(w->kv, i, &info));
            if (info.indexed) w->directory[w->directory_count++] = info.name;
        }
        w->event_seen = next;
    }
    for (; w->event_seen < next; w->event_seen++) {
        MUST(kvf_kv_event_at(w->kv, w->event_seen, &event) && event.number == w->event_seen);
        uint32_t i = 0;
        while (i < w->directory_count && !kvf_hash128_equal(w->directory[i], event.name)) i++;
        MUST(event.stored ? (w->weak || i == w->directory_count) : i < w->directory_count);
        if (event.stored)
            w->directory[w->directory_count++] = event.name;
        else
            w->directory[i] = w->directory[--w->directory_count];
        MUST(w->directory_count < DIRECTORY);
    }
    uint32_t indexed = 0;
    for (uint32_t i = 0; i < w->m.blocks; i++) indexed += w->m.at[i].indexed;
    MUST(w->directory_count == indexed);
}

/* Pairs of calls: the pool's and the model's */

static kvf_status pin(world *w, kvf_block_id id) {
    uint32_t cost = kvf_kv_pin_cost(w->kv, &id, 1);
    int64_t room = kvf_kv_room(w->kv);
    kvf_status status = kvf_kv_pin(w->kv, id);
    MUST(status == model_pin(&w->m, id));
    MUST(kvf_kv_room(w->kv) == room - (status == KVF_OK ? cost : 0));
    w->agains += status == KVF_AGAIN;
    return status;
}
static void unpin(world *w, kvf_block_id id) {
    kvf_kv_unpin(w->kv, id);
    model_unpin(&w->m, id);
}
static kvf_status book(world *w, uint32_t blocks) {
    kvf_status status = kvf_kv_book(w->kv, blocks);
    MUST(status == model_book(&w->m, blocks));
    w->agains += status == KVF_AGAIN;
    return status;
}
static void unbook(world *w, uint32_t blocks) {
    kvf_kv_unbook(w->kv, blocks);
    model_unbook(&w->m, blocks);
}
static kvf_status seal(
    world *w, kvf_block_id id, uint32_t root, kvf_block_id parent, uint8_t symbol, kvf_block_id *now) {
    uint32_t tokens[16];
    tokens_of(symbol, tokens);
    kvf_block_id plain;
    kvf_status status = kvf_kv_seal(w->kv, id, w->roots[root], parent, tokens, now);
    MUST(status == model_seal(&w->m, id, root, parent, symbol, &plain));
    MUST(status < 0 || kvf_block_id_equal(*now, plain));
    w->agains += status == KVF_AGAIN;
    return status;
}
static kvf_status take(world *w, kvf_block_id *id) {
    bool free_choice;
    kvf_block_id victim;
    kvf_status status = kvf_kv_take(w->kv, id), plain = model_take(&w->m, &free_choice, &victim);
    MUST(status == plain);
    if (status) return status;
    if (free_choice) {
        MUST(id->index < w->m.blocks && w->m.at[id->index].state == KVF_BLOCK_FREE);
        MUST(w->m.at[id->index].generation == id->generation);
    } else {
        MUST(kvf_block_id_equal(*id, victim));
    }
    model_took(&w->m, *id);
    return KVF_OK;
}

/* Sequences */

static void seq_let_go(world *w, seq *s) {
    uint32_t order = below(w, 3); /* tail first, head first, any */
    while (s->blocks > 0) {
        uint32_t i = order == 0 ? s->blocks - 1 : order == 1 ? 0 : below(w, s->blocks);
        unpin(w, s->id[i]);
        for (uint32_t j = i; j + 1 < s->blocks; j++) s->id[j] = s->id[j + 1];
        s->blocks--;
    }
    unbook(w, s->booked);
    *s = (seq){0};
}

static void seq_start(world *w, seq *s) {
    kvf_block_id real[MODEL_DEPTH], plain[MODEL_DEPTH];
    uint32_t tokens[16 * MODEL_DEPTH];
    *s = (seq){.active = true, .root = below(w, ROOTS), .length = 1 + below(w, MODEL_DEPTH - 1)};
    for (uint32_t i = 0; i < s->length; i++) {
        s->path[i] = (uint8_t)below(w, SYMBOLS);
        tokens_of(s->path[i], tokens + 16 * (size_t)i);
    }
    uint32_t asked = below(w, s->length + 1);
    uint32_t n = kvf_kv_match(w->kv, w->roots[s->root], tokens, asked, real);
    MUST(n == model_match(&w->m, s->root, s->path, asked, plain));
    for (uint32_t i = 0; i < n; i++) MUST(kvf_block_id_equal(real[i], plain[i]));
    uint32_t cost = kvf_kv_pin_cost(w->kv, real, n);
    bool fits = kvf_kv_room(w->kv) >= (int64_t)cost + (s->length - n);
    kvf_status status = KVF_OK;
    for (uint32_t i = 0; i < n && status == KVF_OK; i++)
        if ((status = pin(w, real[i])) == KVF_OK) s->id[s->blocks++] = real[i];
    if (status == KVF_OK) {
        status = book(w, s->length - n);
        MUST((status == KVF_OK) == fits);
        if (status == KVF_OK) s->booked = s->length - n;
    } else {
        MUST(!fits && status == KVF_AGAIN);
    }
    if (status) seq_let_go(w, s);
}

/* One step of a sequence: tokens into the block being filled, its sealing, or the next block. */
static void seq_step(world *w, seq *s) {
    kvf_block_id last = s->blocks ? s->id[s->blocks - 1] : KVF_BLOCK_NONE;
    const model_block *b = s->blocks ? &w->m.at[last.index] : NULL;
    if (b && b->state == KVF_BLOCK_FILLING && b->filled < 16) {
        uint32_t tokens = below(w, 2) ? 16 : below(w, 16); /* smaller than before: must change nothing */
        kvf_kv_set_filled(w->kv, last, tokens);
        model_set_filled(&w->m, last, tokens);
    } else if (b && b->state == KVF_BLOCK_FILLING) {
        kvf_block_id parent = s->blocks > 1 ? s->id[s->blocks - 2] : KVF_BLOCK_NONE;
        MUST(seal(w, last, s->root, parent, s->path[s->blocks - 1], &s->id[s->blocks - 1]) >= 0);
    } else if (s->booked > 0) {
        MUST(take(w, &s->id[s->blocks]) == KVF_OK);
        s->blocks++;
        s->booked--;
    } else {
        MUST(s->blocks == s->length);
        if (below(w, 3) == 0) seq_let_go(w, s);
    }
}

static void seq_op(world *w) {
    seq *s = &w->seqs[below(w, SEQS)];
    if (!s->active)
        seq_start(w, s);
    else if (below(w, 40) == 0)
        seq_let_go(w, s); /* cancelled or preempted anywhere */
    else
        seq_step(w, s);
}

/* Everything else that touches blocks */

static kvf_block_id any_block(world *w) {
    uint32_t i = below(w, w->m.blocks);
    return (kvf_block_id){i, w->m.at[i].generation};
}

static void extra_pin_op(world *w) {
    if (w->pin_count > 0 && (w->pin_count == EXTRAS || below(w, 2))) {
        uint32_t i = below(w, w->pin_count);
        unpin(w, w->pins[i]);
        w->pins[i] = w->pins[--w->pin_count];
    } else {
        kvf_block_id id = any_block(w);
        if (pin(w, id) == KVF_OK) w->pins[w->pin_count++] = id;
    }
}

static void use_op(world *w) {
    if (w->use_count > 0 && (w->use_count == EXTRAS || below(w, 2))) {
        uint32_t i = below(w, w->use_count);
        kvf_kv_use_end(w->kv, w->uses[i]);
        model_use_end(&w->m, w->uses[i]);
        w->uses[i] = w->uses[--w->use_count];
    } else {
        kvf_block_id id = any_block(w);
        kvf_status status = kvf_kv_use_begin(w->kv, id);
        MUST(status == model_use_begin(&w->m, id));
        if (status == KVF_OK) w->uses[w->use_count++] = id;
    }
}

/* Ids of another life, of no block, and calls in states that do not allow them. */
static void wrong_op(world *w) {
    kvf_block_id id = any_block(w), now, parent = below(w, 2) ? any_block(w) : KVF_BLOCK_NONE;
    switch (below(w, 4)) {
    case 0: id.generation--; break;
    case 1: id.generation++; break;
    case 2: id.index += w->m.blocks; break;
    default: break;
    }
    if (!model_live(&w->m, id)) {
        MUST(kvf_kv_pin(w->kv, id) == KVF_ERR_STALE);
        MUST(kvf_kv_use_begin(w->kv, id) == KVF_ERR_STALE);
        MUST(kvf_kv_pin_cost(w->kv, &id, 1) == 0);
        MUST(kvf_kv_seal(w->kv, id, w->roots[0], parent, (uint32_t[16]){0}, &now) == KVF_ERR_STALE);
    } else if (w->m.at[id.index].state == KVF_BLOCK_SEALED || w->m.at[id.index].pins == 0) {
        MUST(seal(w, id, 0, parent, 0, &now) == KVF_ERR_INVALID);
    }
}

static void book_op(world *w) {
    if (w->extra_booked > 0 && (w->extra_booked > 4 || below(w, 2))) {
        uint32_t n = 1 + below(w, w->extra_booked);
        unbook(w, n);
        w->extra_booked -= n;
    } else if (below(w, 4) == 0) {
        MUST(book(w, UINT32_MAX) == KVF_AGAIN);
    } else {
        uint32_t n = below(w, 4);
        if (book(w, n) == KVF_OK) w->extra_booked += n;
    }
}

static void one_op(world *w) {
    uint32_t dice = below(w, 1000);
    if (dice < 700)
        seq_op(w);
    else if (dice < 780)
        extra_pin_op(w);
    else if (dice < 900)
        use_op(w);
    else if (dice < 940)
        wrong_op(w);
    else if (dice < 995)
        book_op(w);
    else
        MUST(kvf_kv_flush(w->kv) == model_flush(&w->m));
}

/* At rest nothing is pinned, in use or booked, and the pool is whole (I6). */
static void come_to_rest(world *w) {
    for (uint32_t i = 0; i < SEQS; i++)
        if (w->seqs[i].active) seq_let_go(w, &w->seqs[i]);
    while (w->pin_count > 0) unpin(w, w->pins[--w->pin_count]);
    while (w->use_count > 0) {
        kvf_kv_use_end(w->kv, w->uses[--w->use_count]);
        model_use_end(&w->m, w->uses[w->use_count]);
    }
    unbook(w, w->extra_booked);
    kvf_kv_counts c;
    kvf_kv_count(w->kv, &c);
    MUST(c.pinned == 0 && c.in_use == 0 && c.booked == 0 && c.filling == 0);
    MUST(c.free + c.evictable == c.total);
    check_counts(w);
    check_blocks(w);
}

static void run(uint64_t seed, uint64_t ops, kvf_kv_counts *sum, uint64_t *agains, uint64_t *snapshots) {
    static world room;
    world *w = &room;
    memset(w, 0, sizeof *w);
    w->seed = seed;
    w->rng.seed = seed;
    w->weak = seed % 2 == 0;
    w->event_seen = 1;
    name_mask = w->weak ? 0 : UINT64_MAX;
    kvf_kv_config config = {.blocks = 6 + below(w, MODEL_BLOCKS - 5), .events_max = EVENTS};
    size_t size = kvf_align_up(kvf_kv_size(&config), 64);
    void *memory = aligned_alloc(64, size);
    MUST(memory);
    memset(memory, 0, size);
    w->kv = kvf_kv_init(memory, &config);
    model_init(&w->m, config.blocks);
    for (uint32_t i = 0; i < ROOTS; i++)
        w->roots[i] = kvf_kv_root((kvf_span){"m", 1}, (kvf_span){"n", 1}, (kvf_span){&i, 4});
    for (w->op = 0; w->op < ops; w->op++) {
        one_op(w);
        check_counts(w);
        if (w->op % 16 != 0) continue;
        check_blocks(w);
        if (below(w, 3) > 0) directory_catch_up(w);
    }
    come_to_rest(w);
    kvf_kv_counts c;
    kvf_kv_count(w->kv, &c);
    sum->evictions += c.evictions;
    sum->hits += c.hits;
    sum->duplicates_dropped += c.duplicates_dropped;
    *agains += w->agains;
    *snapshots += w->snapshots;
    free(memory);
}

int main(int argc, char **argv) {
    uint64_t first = argc > 1 ? strtoull(argv[1], NULL, 0) : 1, seeds = argc > 2 ? strtoull(argv[2], NULL, 0) : 40;
    uint64_t ops = argc > 3 ? strtoull(argv[3], NULL, 0) : 6000, agains = 0, snapshots = 0;
    kvf_kv_counts sum = {0};
    signal(SIGABRT, on_abort);
    for (uint64_t seed = first; seed < first + seeds; seed++) run(seed, ops, &sum, &agains, &snapshots);
    printf("%llu operations: %llu evictions, %llu hits, %llu twins dropped, %llu refused for room, %llu snapshots\n",
        (unsigned long long)(seeds * ops), (unsigned long long)sum.evictions, (unsigned long long)sum.hits,
        (unsigned long long)sum.duplicates_dropped, (unsigned long long)agains, (unsigned long long)snapshots);
    /* A run in which nothing happened proves nothing. */
    bool lively = sum.evictions && sum.hits && sum.duplicates_dropped && agains && snapshots;
    return seeds * ops < 10000 || lively ? 0 : 1;
}
