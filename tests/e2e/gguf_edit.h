/* gguf_edit.h - a tiny model with another chat template or BOS flag: everything but these two keys is copied as it
 * stands. */
#ifndef KVF_E2E_GGUF_EDIT_H
#define KVF_E2E_GGUF_EDIT_H

/* template: NULL: without one. add_bos: 0, 1, or -1: without the key. Fails the running test on an IO error. */
void gguf_edit(const char *in, const char *out, const char *template, int add_bos);

#endif
