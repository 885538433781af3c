/* The event ring: event `number` stands at number mod events_max until events_max younger ones have come. Names are
 * recorded when they enter and leave the index; a reader that fell behind takes a snapshot instead. */
#include "kvcache_int.h"

void kv_event_add(kvf_kv *kv, bool stored, kvf_hash128 name) {
    uint64_t number = kv->event_next++;
    kv->events[number & (kv->events_max - 1)] = (kvf_kv_event){.number = number, .stored = stored, .name = name};
}

uint64_t kvf_kv_event_next(const kvf_kv *kv) { return kv->event_next; }

bool kvf_kv_event_at(const kvf_kv *kv, uint64_t number, kvf_kv_event *out) {
    if (number == 0 || number >= kv->event_next || kv->event_next - number > kv->events_max) return false;
    *out = kv->events[number & (kv->events_max - 1)];
    KVF_ASSERT(out->number == number);
    return true;
}
