/* One step of a decoder-only transformer over rows (tokens) of any number of sequences, readable from the bottom up.
 *
 * Per layer: norm, q k v; bias, norms, rotation, keys and values into pages; attention; o; norm, gate, up, swiglu;
 * down. Each line of kvf_forward is a phase: its tasks write to disjoint places and every task computes what it would
 * compute alone, so threads, batch and chunks leave no trace in the bits. A row's logits depend on its own row and on
 * pages only. */
#include "engine_int.h"

enum { PAIRS_A_TASK_MAX = 8, ROWS_A_TASK = 240, ROWS_A_GRAIN = 8, FEW_ROWS = 48 };

/* Pairs of panels in one task. With few rows a step reads weights from memory, and long straight reads are faster; with
 * many it computes, and small tasks balance better. */
static uint32_t pairs_a_task(const kvf_engine *e, uint32_t pairs, uint32_t rows) {
    if (rows > FEW_ROWS) return 1;
    uint32_t share = pairs / (kvf_pool_threads(e->pool) * 3);
    return share < 1 ? 1 : share > PAIRS_A_TASK_MAX ? PAIRS_A_TASK_MAX : share;
}

static kvf_rows rows_of(const kvf_activations *a) {
    return (kvf_rows){.f32 = a->f32,
        .f32_stride = (size_t)a->groups * KVF_GROUP,
        .q = a->q,
        .scale = a->scale,
        .bf16 = a->bf16,
        .groups = a->groups};
}

static void *scratch_of(kvf_engine *e, uint32_t thread) { return e->scratch + thread * e->scratch_bytes; }

/* Rows phases: `fn` for each row; a few rows are not worth waking anybody. */
typedef struct {
    kvf_engine *e;
    uint32_t rows, layer;
    const float *weight;
    const float *x; /* rows to norm */
    kvf_activations *to;
    void (*fn)(void *job, uint32_t row, uint32_t thread);
} rows_job;

static void rows_task(void *context, uint32_t task, uint32_t thread) {
    rows_job *job = context;
    uint32_t end = KVF_MIN((task + 1) * ROWS_A_GRAIN, job->rows);
    for (uint32_t row = task * ROWS_A_GRAIN; row < end; row++) job->fn(job, row, thread);
}
static void each_row(rows_job *job) {
    kvf_pool_run(job->e->pool, rows_task, job, (uint32_t)kvf_div_up(job->rows, ROWS_A_GRAIN));
}

static void embed_row(void *context, uint32_t row, uint32_t thread) {
    kvf_engine *e = ((rows_job *)context)->e;
    const kvf_gguf_tensor *t = e->m->spec.embedding;
    const kvf_dtype_info *info = kvf_dtype_find(t->type);
    size_t row_bytes = (size_t)(t->dims[0] / info->block_values) * info->block_bytes;
    const uint8_t *src = (const uint8_t *)t->data + e->rows[row].token * row_bytes;
    kvf_dequant_row(t->type, src, e->x + (size_t)row * e->m->spec.hidden, e->m->spec.hidden);
    kvf_rope_angles(e->m->rope_frequency, e->m->spec.rope_dims / 2, e->rows[row].position,
        e->cos_sin + (size_t)row * e->m->spec.rope_dims);
}

/* Norm of a row into the forms its products need. */
static void norm_row(void *context, uint32_t row, uint32_t thread) {
    rows_job *job = context;
    const kvf_model *m = job->e->m;
    kvf_activations *to = job->to;
    size_t at = (size_t)row * to->groups;
    float *y = to->need.f32 ? to->f32 + at * KVF_GROUP : scratch_of(job->e, thread);
    m->ops->rms_norm(job->x + (size_t)row * m->spec.hidden, job->weight, m->spec.rms_eps, m->spec.hidden, y);
    if (to->need.q) m->ops->quantise(y, m->spec.hidden, to->q + at * KVF_GROUP, to->scale + at);
    if (to->need.bf16) m->ops->round_bf16(y, m->spec.hidden, to->bf16 + at * KVF_GROUP);
}
static void norm(kvf_engine *e, const float *x, const float *weight, uint32_t rows, kvf_activations *to) {
    each_row(&(rows_job){.e = e, .rows = rows, .weight = weight, .x = x, .to = to, .fn = norm_row});
}

/* Products: up to three matrices over one input. A task is some panels of one of them by some rows. */
typedef struct {
    const kvf_packed *w;
    kvf_product out; /* whole result */
} product;
typedef struct {
    kvf_engine *e;
    const kvf_activations *in;
    uint32_t rows, row_tasks, pairs, products_count; /* pairs: of one task */
    product products[3];
} products_job;

static uint32_t pair_tasks(const products_job *job, const kvf_packed *w) {
    return (uint32_t)kvf_div_up(w->pairs, job->pairs);
}

static void multiply(const kvf_engine *e, const kvf_packed *w, const kvf_rows *x, uint32_t row, uint32_t rows,
    uint32_t panel, uint32_t panels, const kvf_product *out) {
    const kvf_kernel_ops *ops = e->m->ops;
    bool fast = e->m->precision == KVF_PRECISION_FAST;
    if (fast && kvf_pack_is_quantised(w->kind))
        ops->matmul_q(w, x, row, rows, panel, panels, out);
    else if (fast && w->kind == KVF_PACK_BF16)
        ops->matmul_b(w, x, row, rows, panel, panels, out);
    else
        ops->matmul_f(w, x, row, rows, panel, panels, out);
}

static void products_task(void *context, uint32_t task, uint32_t thread) {
    const products_job *job = context;
    const product *p = job->products;
    uint32_t row = task % job->row_tasks * ROWS_A_TASK, panel = task / job->row_tasks;
    for (; panel >= pair_tasks(job, p->w); p++) panel -= pair_tasks(job, p->w);
    panel *= 2 * job->pairs;
    kvf_product out = p->out;
    out.y += row * out.stride + (size_t)panel * KVF_PANEL;
    kvf_rows x = rows_of(job->in);
    multiply(job->e, p->w, &x, row, KVF_MIN(job->rows - row, (uint32_t)ROWS_A_TASK), panel,
        KVF_MIN(p->w->panels - panel, 2 * job->pairs), &out);
}
static void run_products(products_job *job) {
    job->row_tasks = (uint32_t)kvf_div_up(job->rows, ROWS_A_TASK);
    uint32_t tasks = 0, pairs = 0;
    for (uint32_t i = 0; i < job->products_count; i++) pairs += job->products[i].w->pairs;
    job->pairs = pairs_a_task(job->e, pairs, job->rows);
    for (uint32_t i = 0; i < job->products_count; i++) tasks += pair_tasks(job, job->products[i].w) * job->row_tasks;
    kvf_pool_run(job->e->pool, products_task, job, tasks);
}

static void project_qkv(kvf_engine *e, const kvf_layer_weights *w) {
    const kvf_model_spec *s = &e->m->spec;
    size_t q = (size_t)s->heads * s->head_dim, kv = (size_t)s->kv_heads * s->head_dim, stride = q + 2 * kv;
    run_products(&(products_job){.e = e,
        .in = &e->hidden_in,
        .rows = e->rows_count,
        .products_count = 3,
        .products = {{&w->q, {e->qkv, stride, false}}, {&w->k, {e->qkv + q, stride, false}},
            {&w->v, {e->qkv + q + kv, stride, false}}}});
}
static void project_add(kvf_engine *e, const kvf_packed *w, const kvf_activations *in) {
    run_products(&(products_job){.e = e,
        .in = in,
        .rows = e->rows_count,
        .products_count = 1,
        .products = {{w, {e->x, e->m->spec.hidden, true}}}});
}

/* Bias, head norms, rotation; then K and V, rounded, into the row's slot of its page. */
static void finish_row(void *context, uint32_t row, uint32_t thread) {
    rows_job *job = context;
    kvf_engine *e = job->e;
    const kvf_model_spec *s = &e->m->spec;
    const kvf_kernel_ops *ops = e->m->ops;
    const kvf_layer_weights *w = &e->m->layer[job->layer];
    uint32_t q_count = s->heads * s->head_dim, kv_count = s->kv_heads * s->head_dim;
    float *q = e->qkv + (size_t)row * (q_count + 2 * kv_count), *k = q + q_count, *v = k + kv_count;
    if (w->q_bias) ops->add(q, w->q_bias, q_count);
    if (w->k_bias) ops->add(k, w->k_bias, kv_count);
    if (w->v_bias) ops->add(v, w->v_bias, kv_count);
    for (uint32_t h = 0; w->q_norm && h < s->heads; h++)
        ops->rms_norm(q + h * s->head_dim, w->q_norm, s->rms_eps, s->head_dim, q + h * s->head_dim);
    for (uint32_t h = 0; w->k_norm && h < s->kv_heads; h++)
        ops->rms_norm(k + h * s->head_dim, w->k_norm, s->rms_eps, s->head_dim, k + h * s->head_dim);
    bool halves = s->rope_style == KVF_ROPE_HALVES;
    const float *cos_sin = e->cos_sin + (size_t)row * s->rope_dims;
    ops->rope(q, s->heads, s->head_dim, cos_sin, s->rope_dims / 2, halves);
    ops->rope(k, s->kv_heads, s->head_dim, cos_sin, s->rope_dims / 2, halves);

    uint8_t *page = kvf_engine_page(e, job->layer, e->rows[row].block);
    size_t head_bytes = e->page_bytes / 2 / s->kv_heads, slot_bytes = head_bytes / KVF_BLOCK_TOKENS;
    uint8_t *slot = page + e->rows[row].position % KVF_BLOCK_TOKENS * slot_bytes;
    for (uint32_t h = 0; h < s->kv_heads; h++) {
        ops->store_cells(k + h * s->head_dim, s->head_dim, e->cell, slot + h * head_bytes);
        ops->store_cells(v + h * s->head_dim, s->head_dim, e->cell, slot + (s->kv_heads + h) * head_bytes);
    }
}

/* Attention: a task is one tile of tokens by one key head; late tiles are the longest and go first. */
typedef struct {
    kvf_engine *e;
    uint32_t layer;
    bool quantise; /* a key head's part of a row is whole groups, so the task can round it too */
    float scale;
} attention_job;

static void take_heads(kvf_engine *e, uint32_t row, uint32_t first, uint32_t count) {
    kvf_activations *to = &e->heads_in;
    size_t width = (size_t)e->m->spec.heads * e->m->spec.head_dim, at = (size_t)row * to->groups;
    const float *from = e->heads + row * width + first;
    if (to->need.f32) memcpy(to->f32 + at * KVF_GROUP + first, from, count * sizeof(float));
    if (to->need.q)
        e->m->ops->quantise(from, count, to->q + at * KVF_GROUP + first, to->scale + at + first / KVF_GROUP);
    at = at * KVF_GROUP + first;
    if (to->need.bf16) e->m->ops->round_bf16(to->f32 + at, count, to->bf16 + at);
}

static void attention_task(void *context, uint32_t task, uint32_t thread) {
    const attention_job *job = context;
    kvf_engine *e = job->e;
    const kvf_model_spec *s = &e->m->spec;
    const kvf_tile *tile = &e->tiles[e->tiles_count - 1 - task / s->kv_heads];
    const kvf_engine_run *run = &e->step->runs[tile->run];
    const kvf_attention_token *each = tile->shared > 0 ? e->gathered + tile->first : NULL;
    uint32_t row = each ? 0 : tile->row; /* a gathered token names its own */
    uint32_t kv_head = task % s->kv_heads, group = s->heads / s->kv_heads, first = kv_head * group * s->head_dim;
    size_t width = (size_t)s->heads * s->head_dim, stride = width + 2 * (size_t)s->kv_heads * s->head_dim;
    kvf_attention a = {.q = e->qkv + row * stride + first,
        .q_stride = stride,
        .out = e->heads + row * width + first,
        .out_stride = width,
        .pages = kvf_engine_page(e, job->layer, 0),
        .page_bytes = e->page_bytes,
        .blocks = run->blocks,
        .position = each ? 0 : run->position + tile->first,
        .tokens = tile->tokens,
        .each = each,
        .shared = tile->shared,
        .kv_head = kv_head,
        .kv_heads = s->kv_heads,
        .group = group,
        .head_dim = s->head_dim,
        .scale = job->scale,
        .cell = e->cell,
        .scratch = scratch_of(e, thread)};
    e->m->ops->attention(&a);
    for (uint32_t i = 0; job->quantise && i < tile->tokens; i++)
        take_heads(e, each ? each[i].row : row + i, first, group * s->head_dim);
}

static void take_row(void *context, uint32_t row, uint32_t thread) {
    kvf_engine *e = ((rows_job *)context)->e;
    take_heads(e, row, 0, e->m->spec.heads * e->m->spec.head_dim);
}

static void attend(kvf_engine *e, uint32_t layer) {
    const kvf_model_spec *s = &e->m->spec;
    attention_job job = {.e = e,
        .layer = layer,
        .quantise = s->heads / s->kv_heads * s->head_dim % KVF_GROUP == 0,
        .scale = e->score_scale};
    kvf_pool_run(e->pool, attention_task, &job, e->tiles_count * s->kv_heads);
    atomic_fetch_add_explicit(&e->kv_read_bytes, e->tile_pages * e->page_bytes, memory_order_relaxed);
    if (!job.quantise) each_row(&(rows_job){.e = e, .rows = e->rows_count, .fn = take_row});
}

/* Gate and up: a task makes 32 values (two panels of each) of some rows, applies swiglu while they are in cache, and
 * rounds them: 32 values are exactly one group. */
typedef struct {
    kvf_engine *e;
    const kvf_layer_weights *w;
    uint32_t row_tasks, pairs; /* pairs: of one task */
} ffn_job;

static void ffn_tile(const ffn_job *job, uint32_t pair, uint32_t row, uint32_t rows, float *scratch) {
    kvf_engine *e = job->e;
    kvf_activations *to = &e->ffn_in;
    const kvf_kernel_ops *ops = e->m->ops;
    float *gate = scratch, *up = gate + KVF_FFN_ROWS * KVF_GROUP;
    uint32_t panel = pair * 2, panels = KVF_MIN(job->w->gate.panels - panel, 2u);
    uint32_t valid = KVF_MIN(e->m->spec.ffn - pair * KVF_GROUP, (uint32_t)KVF_GROUP);
    kvf_rows x = rows_of(&e->hidden_in);
    multiply(e, &job->w->gate, &x, row, rows, panel, panels, &(kvf_product){gate, KVF_GROUP, false});
    multiply(e, &job->w->up, &x, row, rows, panel, panels, &(kvf_product){up, KVF_GROUP, false});
    for (uint32_t r = 0; valid < KVF_GROUP && r < rows; r++) {
        memset(gate + r * KVF_GROUP + valid, 0, (KVF_GROUP - valid) * sizeof(float));
        memset(up + r * KVF_GROUP + valid, 0, (KVF_GROUP - valid) * sizeof(float));
    }
    ops->swiglu(gate, up, rows * KVF_GROUP);
    size_t at = (size_t)row * to->groups + pair;
    for (uint32_t r = 0; to->need.f32 && r < rows; r++)
        memcpy(to->f32 + (at + (size_t)r * to->groups) * KVF_GROUP, gate + r * KVF_GROUP, KVF_GROUP * sizeof(float));
    for (uint32_t r = 0; to->need.bf16 && r < rows; r++) {
        size_t value = (at + (size_t)r * to->groups) * KVF_GROUP;
        ops->round_bf16(to->f32 + value, KVF_GROUP, to->bf16 + value);
    }
    if (!to->need.q) return;
    kvf_group_scale *scale =
        (kvf_group_scale *)(void *)up; /* `up` is used; one scale a row and then the codes fit in it */
    int8_t *q = (int8_t *)(scale + KVF_FFN_ROWS);
    ops->quantise(gate, rows * KVF_GROUP, q, scale);
    for (uint32_t r = 0; r < rows; r++) {
        memcpy(to->q + (at + (size_t)r * to->groups) * KVF_GROUP, q + r * KVF_GROUP, KVF_GROUP);
        to->scale[at + (size_t)r * to->groups] = scale[r];
    }
}

static void ffn_task(void *context, uint32_t task, uint32_t thread) {
    const ffn_job *job = context;
    uint32_t first = task % job->row_tasks * ROWS_A_TASK, end = KVF_MIN(first + ROWS_A_TASK, job->e->rows_count);
    uint32_t pair = task / job->row_tasks * job->pairs, pair_end = KVF_MIN(pair + job->pairs, job->w->gate.pairs);
    for (; pair < pair_end; pair++)
        for (uint32_t row = first; row < end; row += KVF_FFN_ROWS)
            ffn_tile(job, pair, row, KVF_MIN(end - row, (uint32_t)KVF_FFN_ROWS), scratch_of(job->e, thread));
}
static void gate_and_up(kvf_engine *e, const kvf_layer_weights *w) {
    ffn_job job = {.e = e, .w = w, .row_tasks = (uint32_t)kvf_div_up(e->rows_count, ROWS_A_TASK)};
    job.pairs = pairs_a_task(e, w->gate.pairs, e->rows_count);
    kvf_pool_run(e->pool, ffn_task, &job, (uint32_t)kvf_div_up(w->gate.pairs, job.pairs) * job.row_tasks);
}

/* After the last layer's keys and values are stored, only rows whose logits are wanted matter: they move to the front,
 * and the step goes on with them alone. */
static void keep_wanted_rows(kvf_engine *e) {
    const kvf_model_spec *s = &e->m->spec;
    size_t x_width = s->hidden, qkv_width = ((size_t)s->heads + 2 * s->kv_heads) * s->head_dim;
    uint32_t from = 0, kept = 0;
    for (uint32_t r = 0; r < e->step->runs_count; r++) {
        const kvf_engine_run *run = &e->step->runs[r];
        uint32_t skip = run->count - run->logit_rows;
        memmove(e->x + kept * x_width, e->x + (from + skip) * x_width, run->logit_rows * x_width * sizeof(float));
        memmove(
            e->qkv + kept * qkv_width, e->qkv + (from + skip) * qkv_width, run->logit_rows * qkv_width * sizeof(float));
        from += run->count;
        kept += run->logit_rows;
    }
    e->rows_count = kept;
    kvf_lay_tiles(e, true);
}

static void logits(kvf_engine *e) {
    const kvf_model *m = e->m;
    norm(e, e->x, m->output_norm, e->rows_count, &e->head_in);
    run_products(&(products_job){.e = e,
        .in = &e->head_in,
        .rows = e->rows_count,
        .products_count = 1,
        .products = {{&m->head, {e->step->logits, m->spec.vocab, false}}}});
}

static void watch(kvf_engine *e, uint32_t layer) {
    if (e->watch) e->watch(e->watch_self, layer, e->x, e->rows_count);
}

void kvf_forward(kvf_engine *e) {
    const kvf_model *m = e->m;
    each_row(&(rows_job){.e = e, .rows = e->rows_count, .fn = embed_row});
    watch(e, 0);
    for (uint32_t layer = 0; layer < m->spec.layers; layer++) {
        const kvf_layer_weights *w = &m->layer[layer];
        norm(e, e->x, w->attn_norm, e->rows_count, &e->hidden_in);
        project_qkv(e, w);
        each_row(&(rows_job){.e = e, .rows = e->rows_count, .layer = layer, .fn = finish_row});
        if (e->step->on_layer) e->step->on_layer(e->step->self, layer);
        if (layer + 1 == m->spec.layers) keep_wanted_rows(e);
        if (e->rows_count == 0) return;
        attend(e, layer);
        project_add(e, &w->o, &e->heads_in);
        norm(e, e->x, w->ffn_norm, e->rows_count, &e->hidden_in);
        gate_and_up(e, w);
        project_add(e, &w->down, &e->ffn_in);
        watch(e, layer + 1);
    }
    logits(e);
}
