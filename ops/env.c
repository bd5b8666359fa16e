/* ops/env.c: what expressions read while they run: columns, rows, slices of them by mini-batch. */
#include "ops/env.h"

#include <stdlib.h>

void gr_env_reads_init(gr_env_reads *r)
{
    *r = (gr_env_reads){0};
}

void gr_env_reads_release(gr_env_reads *r)
{
    free(r->columns);
    free(r->rows);
}

void gr_env_reads_add_rows(gr_env_reads *r, const gr_node *rows)
{
    for (size_t i = 0; i < r->n_rows; i++)
        if (r->rows[i] == rows) return;
    GR_PUSH(r->rows, r->n_rows, r->cap_rows, rows);
}

static void add_column(gr_env_reads *r, const gr_column *c, uint32_t id)
{
    for (size_t i = 0; i < r->n; i++)
        if (r->columns[i] == id) return;
    GR_PUSH(r->columns, r->n, r->cap, id);
    if (c->rows) gr_env_reads_add_rows(r, c->rows);
}

static void add_ids(gr_env_reads *r, const gr_graph *g, const int *ids, size_t n)
{
    for (size_t i = 0; i < n; i++)
        if (!g->columns[ids[i]]->current) add_column(r, g->columns[ids[i]], (uint32_t)ids[i]);
}

void gr_env_reads_add(gr_env_reads *r, const gr_graph *g, const gr_expr *e)
{
    size_t n;
    const int *ids = gr_expr_reads(e, &n);
    add_ids(r, g, ids, n);
    if (gr_expr_rows_id(e) >= 0) gr_env_reads_add_rows(r, g->nodes[gr_expr_rows_id(e)]);
    const int *rows = gr_expr_row_sets(e, &n);
    for (size_t i = 0; i < n; i++) gr_env_reads_add_rows(r, g->nodes[rows[i]]);
}

void gr_env_reads_add_loss(gr_env_reads *r, const gr_graph *g, const gr_loss *l)
{
    for (gr_loss_stage stage = GR_LOSS_PREPARE; stage <= GR_LOSS_VALUE; stage++) {
        size_t n;
        const int *ids = gr_loss_reads(l, stage, &n);
        add_ids(r, g, ids, n);
    }
}

void gr_env_reads_add_column(gr_env_reads *r, const gr_graph *g, const gr_column *c)
{
    for (size_t i = 0; c && i < g->n_columns; i++)
        if (g->columns[i] == c) add_column(r, c, (uint32_t)i);
}

size_t gr_env_uses(const gr_env_reads *r)
{
    return r->n + r->n_rows;
}

size_t gr_env_declare(const gr_env_reads *r, const gr_graph *g, gr_tasks *p, gr_use *out)
{
    size_t n = 0;
    for (size_t i = 0; i < r->n_rows; i++) out[n++] = (gr_use){gr_rows_object(p, r->rows[i]), GR_READ};
    for (size_t i = 0; i < r->n; i++)
        out[n++] = (gr_use){gr_column_object(p, g->columns[r->columns[i]]), GR_READ};
    return n;
}

gr_expr_bounds gr_env_bounds(const gr_env_reads *r)
{
    gr_expr_bounds b = {1, 1, 1};
    for (size_t i = 0; i < r->n_rows; i++) {
        const gr_rows_bounds *rows = &r->rows[i]->bounds;
        b.groups = GR_MAX(b.groups, rows->groups);
        b.seqs = GR_MAX(b.seqs, rows->seqs);
        b.tokens = GR_MAX(b.tokens, rows->seqs * rows->response_tokens);
    }
    return b;
}

void gr_env_open(gr_env *e, const gr_env_reads *r, const gr_session *s, const gr_node *n)
{
    const gr_graph *g = s->graph;
    *e = (gr_env){.reads = r,
                  .session = s,
                  .rows = gr_calloc(g->n_nodes, sizeof(*e->rows)),
                  .columns = gr_calloc(g->n_columns, sizeof(*e->columns)),
                  .blocks = gr_calloc(g->n_nodes, sizeof(*e->blocks))};
    e->env =
        (gr_expr_env){.rows = e->rows, .columns = e->columns, .seed = s->seed, .node = gr_stream(n->name)};
}

static void begin_rows(gr_env *e, const gr_node *maker, void *block)
{
    gr_rows *b = &e->blocks[maker->index];
    *b = gr_rows_at(block, &maker->bounds);
    e->rows[maker->index] =
        (gr_expr_rows){.n_seqs = *b->n_seqs, .group = b->group, .offset = b->token_offset, .mask = b->counts};
    e->env.n_groups = *b->n_groups;
}

void gr_env_begin(gr_env *e, void *const *ptr)
{
    const gr_env_reads *r = e->reads;
    const gr_session *s = e->session;
    e->env.step = s->step;
    e->env.round = s->round;
    e->env.epoch = 0;
    for (size_t i = 0; i < r->n_rows; i++) begin_rows(e, r->rows[i], *ptr++);
    for (size_t i = 0; i < r->n; i++) {
        const gr_column *c = s->graph->columns[r->columns[i]];
        const void *data = c->node ? *ptr : &s->scalars[r->columns[i]];
        e->columns[r->columns[i]] = (gr_expr_column){data, c->node ? c->dtype : GR_EXPR_F64};
        ptr++;
    }
}

void gr_env_turn_to(gr_env *e, const gr_expr *x)
{
    size_t n;
    const gr_graph *g = e->session->graph;
    const int *ids = gr_expr_reads(x, &n);
    for (size_t i = 0; i < n; i++)
        if (g->columns[ids[i]]->rows) e->env.n_groups = *e->blocks[g->columns[ids[i]]->rows->index].n_groups;
    const int *rows = gr_expr_row_sets(x, &n);
    for (size_t i = 0; i < n; i++) e->env.n_groups = *e->blocks[rows[i]].n_groups;
}

uint64_t gr_env_narrow_bytes(const gr_env_reads *r)
{
    uint64_t n = 0;
    for (size_t i = 0; i < r->n_rows; i++) n += 2 * (uint64_t)r->rows[i]->bounds.seqs + 1;
    return n * sizeof(uint32_t);
}

/* Sequences of groups [first, end), counted from the first of each; returns the memory behind. */
static uint32_t *slice_rows(gr_expr_rows *rows, uint32_t first, uint32_t end, uint32_t *memory)
{
    uint32_t seq = 0, n = 0;
    while (seq < rows->n_seqs && rows->group[seq] < first) seq++;
    while (seq + n < rows->n_seqs && rows->group[seq + n] < end) n++;
    uint32_t *group = memory, *offset = group + n;
    for (uint32_t i = 0; i < n; i++) group[i] = rows->group[seq + i] - first;
    for (uint32_t i = 0; i <= n; i++) offset[i] = rows->offset[seq + i] - rows->offset[seq];
    const uint8_t *mask = rows->mask ? rows->mask + rows->offset[seq] : NULL;
    *rows = (gr_expr_rows){.n_seqs = n, .group = group, .offset = offset, .mask = mask, .first_seq = seq};
    return offset + n + 1;
}

void gr_env_narrow(gr_env *e, uint32_t first, uint32_t end, void *memory)
{
    const gr_env_reads *r = e->reads;
    for (size_t i = 0; i < r->n_rows; i++)
        memory = slice_rows(&e->rows[r->rows[i]->index], first, end, memory);
    for (size_t i = 0; i < r->n; i++) {
        const gr_column *c = e->session->graph->columns[r->columns[i]];
        gr_expr_column *data = &e->columns[r->columns[i]];
        if (!c->rows) continue;
        uint32_t seq = c->level == GR_LEVEL_GROUP ? 0 : e->rows[c->rows->index].first_seq, skip = first;
        if (c->level == GR_LEVEL_SEQ) skip = seq;
        if (c->level == GR_LEVEL_TOKEN) skip = e->blocks[c->rows->index].token_offset[seq];
        data->data = (const char *)data->data + skip * gr_dtype_bytes(data->dtype);
    }
    e->env.n_groups = end - first;
}

void gr_env_close(gr_env *e)
{
    free(e->rows);
    free(e->columns);
    free(e->blocks);
}
