#include "kvf/stop.h"
#include <inttypes.h>

/* A node is a prefix of some stop. Children are a list: a node has at most as many as there are stops. */
typedef struct {
    uint32_t first_child, next_sibling; /* 0: none; node 0 is the empty prefix */
    uint32_t fail; /* longest proper suffix that is a node */
    uint32_t found; /* longest stop that ends here, index + 1; 0: none */
    uint16_t depth;
    uint16_t found_bytes;
    uint8_t byte;
} stop_node;

struct kvf_stop_set {
    uint32_t nodes_count, longest_bytes;
    bool include_stop;
    stop_node nodes[];
};

/* Where the text of a token begins, for those whose text may still be held back. */
typedef struct {
    uint64_t offset;
    uint32_t position;
} stop_mark;

struct kvf_stop_stream {
    const kvf_stop_set *set;
    uint32_t node; /* its depth is the number of bytes held back */
    bool matched;
    uint64_t seen; /* bytes of text so far */
    uint32_t held_bytes, marks_count, marks_max;
    stop_mark *marks;
    uint8_t *held, *out; /* longest_bytes each */
};

kvf_status kvf_stop_check(const kvf_span *stops, uint32_t count, kvf_error *err) {
    if (count > KVF_STOP_STRINGS_MAX)
        return kvf_fail(err, KVF_ERR_INVALID, "%" PRIu32 " stop strings, the limit is %d", count, KVF_STOP_STRINGS_MAX);
    for (uint32_t i = 0; i < count; i++) {
        if (stops[i].len_bytes == 0) return kvf_fail(err, KVF_ERR_INVALID, "stop string %" PRIu32 " is empty", i);
        if (stops[i].len_bytes > KVF_STOP_BYTES_MAX)
            return kvf_fail(err, KVF_ERR_INVALID, "stop string %" PRIu32 " has %zu bytes, the limit is %d", i,
                stops[i].len_bytes, KVF_STOP_BYTES_MAX);
    }
    return KVF_OK;
}

/* ---- the set ---- */

static size_t nodes_max(const kvf_span *stops, uint32_t count) {
    size_t nodes = 1;
    for (uint32_t i = 0; i < count; i++) nodes += stops[i].len_bytes;
    return nodes;
}

size_t kvf_stop_set_size(const kvf_span *stops, uint32_t count) {
    /* And a queue of nodes, for making the links; one number each. */
    return sizeof(kvf_stop_set) + nodes_max(stops, count) * (sizeof(stop_node) + sizeof(uint32_t));
}

static uint32_t child_of(const kvf_stop_set *set, uint32_t node, uint8_t byte) {
    uint32_t child = set->nodes[node].first_child;
    while (child && set->nodes[child].byte != byte) child = set->nodes[child].next_sibling;
    return child;
}

static uint32_t step(const kvf_stop_set *set, uint32_t node, uint8_t byte) {
    for (;;) {
        uint32_t child = child_of(set, node, byte);
        if (child || node == 0) return child;
        node = set->nodes[node].fail;
    }
}

static void add_stop(kvf_stop_set *set, kvf_span stop, uint32_t index) {
    const uint8_t *bytes = stop.data;
    uint32_t node = 0;
    for (size_t i = 0; i < stop.len_bytes; i++) {
        uint32_t child = child_of(set, node, bytes[i]);
        if (!child) {
            child = set->nodes_count++;
            set->nodes[child] = (stop_node){.byte = bytes[i], .next_sibling = set->nodes[node].first_child};
            set->nodes[child].depth = (uint16_t)(i + 1);
            set->nodes[node].first_child = child;
        }
        node = child;
    }
    if (set->nodes[node].found) return; /* said twice: the first counts */
    set->nodes[node].found = index + 1;
    set->nodes[node].found_bytes = (uint16_t)stop.len_bytes;
}

/* By rising depth, so that the link of a shorter prefix is there when it is asked. */
static void make_links(kvf_stop_set *set, uint32_t *queue) {
    uint32_t head = 0, tail = 0;
    queue[tail++] = 0;
    while (head < tail) {
        uint32_t node = queue[head++];
        for (uint32_t child = set->nodes[node].first_child; child; child = set->nodes[child].next_sibling) {
            stop_node *c = &set->nodes[child];
            c->fail = node ? step(set, set->nodes[node].fail, c->byte) : 0;
            if (!c->found) {
                c->found = set->nodes[c->fail].found;
                c->found_bytes = set->nodes[c->fail].found_bytes;
            }
            queue[tail++] = child;
        }
    }
    KVF_ASSERT(tail == set->nodes_count);
}

kvf_stop_set *kvf_stop_set_init(void *memory, const kvf_span *stops, uint32_t count, bool include_stop) {
    KVF_ASSERT(kvf_stop_check(stops, count, NULL) == KVF_OK);
    kvf_stop_set *set = memory;
    *set = (kvf_stop_set){.nodes_count = 1, .include_stop = include_stop};
    set->nodes[0] = (stop_node){0};
    for (uint32_t i = 0; i < count; i++) {
        add_stop(set, stops[i], i);
        set->longest_bytes = KVF_MAX(set->longest_bytes, (uint32_t)stops[i].len_bytes);
    }
    make_links(set, (uint32_t *)(set->nodes + nodes_max(stops, count)));
    return set;
}

/* ---- the stream ---- */

size_t kvf_stop_stream_size(const kvf_stop_set *set) {
    return sizeof(kvf_stop_stream) + (set->longest_bytes + 1) * sizeof(stop_mark) + 2 * (size_t)set->longest_bytes;
}

kvf_stop_stream *kvf_stop_stream_init(void *memory, const kvf_stop_set *set) {
    kvf_stop_stream *s = memory;
    *s = (kvf_stop_stream){.set = set, .marks_max = set->longest_bytes + 1};
    s->marks = (stop_mark *)(s + 1);
    s->held = (uint8_t *)(s->marks + s->marks_max);
    s->out = s->held + set->longest_bytes;
    return s;
}

/* Forgets the tokens whose text lies before `offset`. */
static void marks_trim(kvf_stop_stream *s, uint64_t offset, uint64_t end) {
    uint32_t gone = 0;
    while (gone < s->marks_count) {
        uint64_t next = gone + 1 < s->marks_count ? s->marks[gone + 1].offset : end;
        if (next > offset) break;
        gone++;
    }
    s->marks_count -= gone;
    memmove(s->marks, s->marks + gone, s->marks_count * sizeof *s->marks);
}

/* Of what was held and `text` together, all up to `offset` goes out, and the rest of `text` up to seen is held. */
static void divide(kvf_stop_stream *s, kvf_span text, uint64_t offset, kvf_stop_out *out) {
    uint64_t begin = s->seen - text.len_bytes - s->held_bytes;
    KVF_ASSERT(offset >= begin && offset <= s->seen);
    size_t emit_bytes = (size_t)(offset - begin), from_held = KVF_MIN(emit_bytes, s->held_bytes);
    memcpy(s->out, s->held, from_held);
    out->emit[0] = (kvf_span){s->out, from_held};
    out->emit[1] = (kvf_span){text.data, emit_bytes - from_held};
    memmove(s->held, s->held + from_held, s->held_bytes - from_held);
    s->held_bytes -= (uint32_t)from_held;
}

static void hold(kvf_stop_stream *s, kvf_span text, size_t emitted_bytes) {
    size_t rest = text.len_bytes - emitted_bytes;
    KVF_ASSERT(s->held_bytes + rest <= s->set->longest_bytes);
    if (rest) memcpy(s->held + s->held_bytes, (const uint8_t *)text.data + emitted_bytes, rest);
    s->held_bytes += (uint32_t)rest;
}

void kvf_stop_feed(kvf_stop_stream *s, uint32_t position, kvf_span text, kvf_stop_out *out) {
    KVF_ASSERT(!s->matched);
    const kvf_stop_set *set = s->set;
    const uint8_t *bytes = text.data;
    uint64_t before = s->seen;
    *out = (kvf_stop_out){.end_position = position + 1, .cut_position = position + 1};
    if (text.len_bytes == 0) return;
    KVF_ASSERT(s->marks_count < s->marks_max); /* each token that is held has a byte of its own held */
    s->marks[s->marks_count++] = (stop_mark){before, position};
    for (size_t i = 0; i < text.len_bytes; i++) {
        s->node = step(set, s->node, bytes[i]);
        const stop_node *n = &set->nodes[s->node];
        if (!n->found) continue;
        s->seen = before + i + 1;
        uint64_t cut = set->include_stop ? s->seen : s->seen - n->found_bytes;
        divide(s, (kvf_span){bytes, i + 1}, cut, out);
        marks_trim(s, cut, s->seen + (i + 1 < text.len_bytes)); /* bytes after the match are not emitted either */
        out->cut_position = s->marks_count ? s->marks[0].position : position + 1;
        out->matched = s->matched = true;
        out->stop = n->found - 1;
        s->held_bytes = 0;
        return;
    }
    s->seen = before + text.len_bytes;
    divide(s, text, s->seen - set->nodes[s->node].depth, out);
    hold(s, text, out->emit[1].len_bytes);
    marks_trim(s, s->seen - s->held_bytes, s->seen);
}

void kvf_stop_flush(kvf_stop_stream *s, kvf_stop_out *out) {
    *out = (kvf_stop_out){0};
    if (s->matched) return;
    memcpy(s->out, s->held, s->held_bytes);
    out->emit[0] = (kvf_span){s->out, s->held_bytes};
    s->held_bytes = s->marks_count = 0;
    s->node = 0;
}
