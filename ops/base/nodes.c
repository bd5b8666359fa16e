/* ops/base/nodes.c: what a node's op says of its columns and rows. */
#include "ops/base/nodes.h"

#include "ops/base/configs.h"

#include <stdlib.h>
#include <string.h>

/* ---- columns ------------------------------------------------------------------------------------------- */

const gr_field *gr_field_find(const gr_node *n, const char *name)
{
    const gr_op *op = n->op;
    for (const gr_field *f = op->fields; f && f->name; f++)
        if (!name || !strcmp(f->name, name)) return f;
    return name && op->field ? op->field(n, name) : NULL;
}

gr_column *gr_graph_add_column(gr_graph *g, gr_column c)
{
    gr_column *new = gr_arena_alloc(g->arena, sizeof(*new));
    *new = c;
    new->id = (uint32_t)g->n_columns;
    GR_PUSH(g->columns, g->n_columns, g->cap_columns, new);
    return new;
}

const gr_column *gr_node_column(const gr_node *n, const char *field)
{
    const gr_field *main_field = n->op->fields;
    if (field && main_field && main_field->name && !strcmp(field, main_field->name)) field = NULL;
    for (size_t i = 0; i < n->results.n_columns; i++) {
        const char *f = n->results.columns[i]->field;
        if (field ? f && !strcmp(f, field) : !f) return n->results.columns[i];
    }
    return NULL;
}

void gr_node_add_column(gr_graph *g, gr_node *n, const gr_column *c)
{
    const gr_column **columns = gr_arena_alloc(g->arena, (n->results.n_columns + 1) * sizeof(*columns));
    if (n->results.n_columns) memcpy(columns, n->results.columns, n->results.n_columns * sizeof(*columns));
    columns[n->results.n_columns++] = c;
    n->results.columns = columns;
}

static gr_rows_field field_of_rows(const gr_op *op, const gr_field *f)
{
    static const char *const names[] = {
        [GR_ROWS_TOKEN] = "token",         [GR_ROWS_LOGPROB] = "logprob",   [GR_ROWS_LENGTH] = "length",
        [GR_ROWS_TRUNCATED] = "truncated", [GR_ROWS_POSITION] = "position", [GR_ROWS_SECOND] = "second",
        [GR_ROWS_MODEL] = "model",         [GR_ROWS_TURN] = "turn",         [GR_ROWS_STOPPED] = "stopped",
        [GR_ROWS_TURNS] = "turns",         [GR_ROWS_VERSION] = "version"};
    bool own = false;
    for (const gr_field *o = op->fields; op->makes_rows && o->name; o++) own = own || o == f;
    gr_rows_field found = GR_ROWS_NONE;
    for (int i = GR_ROWS_TOKEN; own && i < (int)GR_LEN(names); i++)
        if (!strcmp(f->name, names[i])) found = (gr_rows_field)i;
    return found;
}

const gr_column *gr_graph_column(gr_graph *g, const gr_node *n, const char *field)
{
    const gr_field *f = gr_field_find(n, field);
    const gr_column *there = f ? gr_node_column(n, field) : NULL;
    if (!f || there) return there;
    bool is_main = f == n->op->fields;
    gr_column c = {
        .node = n, .level = f->level, .kind = f->kind, .dtype = f->dtype, .of_rows = field_of_rows(n->op, f)};
    c.field = is_main ? NULL : gr_arena_strdup(g->arena, field);
    c.name = is_main ? n->name : gr_arena_printf(g->arena, "%s.%s", n->name, field);
    if (is_main && n->op->level) c.level = n->op->level(n);
    if (is_main && n->op->kind) c.kind = n->op->kind(n);
    c.rows = c.level == GR_LEVEL_SCALAR ? NULL : c.level == GR_LEVEL_GROUP ? n->groups : n->rows;
    gr_column *new = gr_graph_add_column(g, c);
    gr_node_add_column(g, (gr_node *)n, new); /* ours while loading */
    return new;
}

/* ---- rows ---------------------------------------------------------------------------------------------- */

const gr_node *gr_rows_maker(const gr_node *rows)
{
    while (rows->op->narrows || rows->op->joins) rows = rows->of->rows;
    return rows;
}

bool gr_rows_joined(const gr_node *rows)
{
    while (rows->op->narrows && !rows->op->joins) rows = rows->of->rows;
    return rows->op->joins;
}

bool gr_rows_split(const gr_node *rows)
{
    const gr_rows_bounds *made = &gr_rows_maker(rows)->bounds;
    return rows->bounds.seqs == rows->bounds.groups && made->seqs != made->groups;
}

const gr_node *gr_groups_maker(const gr_node *groups)
{
    while (groups->op->narrows || groups->op->generates) groups = groups->of->groups;
    return groups;
}

bool gr_reads_rollout(const gr_node *n)
{
    if (n->op->generates) return true;
    return n->op->logprob && ((const gr_logprob_cfg *)n->cfg)->weights == GR_WEIGHTS_ROLLOUT;
}

bool gr_node_fp8(const gr_node *n)
{
    const gr_precision *p = &n->model->precision;
    return gr_reads_rollout(n) ? p->rollout : p->train;
}
