#include "choice.h"
#include <stdlib.h>

void front_choice_fini(front_choice *c) {
    free(c->text);
    free(c->ids);
    free(c->samples);
    *c = (front_choice){0};
}

void front_choice_told(front_choice *c) { c->text_bytes = c->ids_count = c->samples_count = 0; }

/* ---- room: doubled, and kept for the next message ---- */

static bool grow(void **array, uint32_t *room, uint32_t need, size_t size) {
    if (need <= *room) return true;
    uint32_t more = KVF_MAX(need, KVF_MAX(*room * 2, 8u));
    void *grown = realloc(*array, size * more);
    if (!grown) return false;
    *array = grown;
    *room = more;
    return true;
}

static char *text_room(front_choice *c, size_t bytes) {
    size_t need = c->text_bytes + bytes;
    if (need > c->text_room) {
        size_t room = KVF_MAX(need, KVF_MAX(c->text_room * 2, (size_t)64));
        char *grown = realloc(c->text, room);
        if (!grown) return NULL;
        c->text = grown;
        c->text_room = room;
    }
    return c->text + c->text_bytes;
}
