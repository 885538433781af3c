/* The audit must see damage: each case spoils one field of a healthy pool and expects the audit to name it. */
#include "kv_fixture.h"
#include "kvcache_int.h"

typedef struct {
    const char *what;
    void (*damage)(kvf_kv *kv, kv_block *held, kv_block *leaf, kv_block *filling);
    const char *names; /* part of the message */
} damage_case;

static void pins_without_count(kvf_kv *kv, kv_block *held, kv_block *leaf, kv_block *filling) { leaf->pins = 1; }
static void use_without_count(kvf_kv *kv, kv_block *held, kv_block *leaf, kv_block *filling) { held->uses = 1; }
static void nobody_holds_it(kvf_kv *kv, kv_block *held, kv_block *leaf, kv_block *filling) { filling->pins = 0; }
static void booked_too_much(kvf_kv *kv, kv_block *held, kv_block *leaf, kv_block *filling) { kv->counts.booked = 99; }
static void a_token_changed(kvf_kv *kv, kv_block *held, kv_block *leaf, kv_block *filling) { leaf->tokens[15]++; }
static void free_is_off(kvf_kv *kv, kv_block *held, kv_block *leaf, kv_block *filling) { kv->counts.free--; }
static void free_list_loops(kvf_kv *kv, kv_block *held, kv_block *leaf, kv_block *filling) {
    kv->blocks[kv->free_top].list_next = kv->free_top;
}
static void lru_loops(kvf_kv *kv, kv_block *held, kv_block *leaf, kv_block *filling) {
    leaf->list_next = (uint32_t)(leaf - kv->blocks);
}
static void lru_in_wrong_order(kvf_kv *kv, kv_block *held, kv_block *leaf, kv_block *filling) {
    uint32_t a = kv->lru_first, b = kv->lru_last;
    kv->lru_first = b;
    kv->lru_last = a;
    kv->blocks[b].list_prev = kv->blocks[a].list_next = KVF_KV_NO_BLOCK;
    kv->blocks[b].list_next = a;
    kv->blocks[a].list_prev = b;
}
static void children_are_off(kvf_kv *kv, kv_block *held, kv_block *leaf, kv_block *filling) { held->children++; }
static void not_in_its_bucket(kvf_kv *kv, kv_block *held, kv_block *leaf, kv_block *filling) {
    kv->buckets[leaf->name.lo & kv->bucket_mask] = KVF_KV_NO_BLOCK;
}
static void parent_is_nowhere(kvf_kv *kv, kv_block *held, kv_block *leaf, kv_block *filling) { leaf->parent = 1000; }
static void sealed_with_a_hole(kvf_kv *kv, kv_block *held, kv_block *leaf, kv_block *filling) { held->filled = 15; }
static void filling_has_a_name(kvf_kv *kv, kv_block *held, kv_block *leaf, kv_block *filling) {
    filling->indexed = true;
}
static void slots_are_off(kvf_kv *kv, kv_block *held, kv_block *leaf, kv_block *filling) { filling->filled = 3; }

static const damage_case cases[] = {
    {"pins without count", pins_without_count, "held"},
    {"use without count", use_without_count, "in use"},
    {"nobody holds it", nobody_holds_it, "nobody's"},
    {"booked too much", booked_too_much, "below zero"},
    {"a token changed", a_token_changed, "name"},
    {"free is off", free_is_off, "free"},
    {"free list loops", free_list_loops, "free list"},
    {"evictable list loops", lru_loops, "evictable list"},
    {"evictable list in wrong order", lru_in_wrong_order, "evicted after its parent"},
    {"children are off", children_are_off, "children"},
    {"not in its bucket", not_in_its_bucket, "bucket"},
    {"parent is nowhere", parent_is_nowhere, "parent 1000"},
    {"sealed with a hole", sealed_with_a_hole, "15 tokens"},
    {"filling has a name", filling_has_a_name, "indexed while filling"},
    {"slots are off", slots_are_off, "empty slots"},
};

static void every_damage_is_found_and_named(void **state) {
    for (size_t i = 0; i < KVF_COUNT_OF(cases); i++) {
        kvf_kv *kv = pool_new(8, 8);
        kvf_block_id c[2], h, f = take_one(kv);
        chain_new(kv, 0, 2, c);
        chain_unpin(kv, c, 2);
        h = seal_under(kv, take_one(kv), KVF_BLOCK_NONE, 500);
        pool_check(kv);
        cases[i].damage(kv, &kv->blocks[h.index], &kv->blocks[c[1].index], &kv->blocks[f.index]);
        kvf_error err;
        assert_int_equal(kvf_kv_audit(kv, &err), KVF_ERR_INTERNAL);
        if (!strstr(err.message, cases[i].names)) fail_msg("%s: audit says \"%s\"", cases[i].what, err.message);
        assert_int_equal(kvf_kv_audit(kv, NULL), KVF_ERR_INTERNAL);
        free(kv);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(every_damage_is_found_and_named)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
