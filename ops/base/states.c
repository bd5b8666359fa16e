/* ops/base/states.c: whose hidden states an update reads, and where they lie. */
#include "ops/base/states.h"

#include "ops/base/configs.h"

#include <stdio.h>

const gr_node *gr_node_teacher(const gr_node *n)
{
    return n->op && n->op->trains ? ((const gr_update_cfg *)n->cfg)->teacher : NULL;
}

bool gr_node_teaches(const gr_graph *g, const gr_node *n)
{
    bool teaches = false;
    for (size_t i = 0; i < g->n_nodes; i++) {
        const gr_node *teacher = gr_node_teacher(g->nodes[i]);
        teaches = teaches || (teacher && teacher->index == n->index);
    }
    return teaches;
}

bool gr_model_in_lesson(const gr_graph *g, const gr_model *m)
{
    bool in = false;
    for (size_t i = 0; i < g->n_nodes; i++) {
        const gr_node *n = g->nodes[i], *teacher = gr_node_teacher(n);
        in = in || (teacher && (n->model->index == m->index || teacher->model->index == m->index));
    }
    return in;
}

uint64_t gr_states_row_bytes(const gr_kernels *k, const gr_node *n)
{
    return n->model->shape.hidden * gr_dtype_size(k->dtype);
}

uint64_t gr_states_bytes(const gr_kernels *k, const gr_node *n)
{
    return (uint64_t)n->bounds.seqs * n->bounds.response_tokens * gr_states_row_bytes(k, n);
}

uint32_t gr_states_object(gr_tasks *p, const gr_kernels *k, const gr_node *n)
{
    char name[128];
    snprintf(name, sizeof(name), "%s.states", n->name);
    const gr_object o = {.name = name,
                         .category = GR_CAT_COLUMNS,
                         .span = GR_SPAN_TEMP,
                         .place = p->values,
                         .bytes = gr_states_bytes(k, n),
                         .bucket = GR_NONE};
    return gr_tasks_object(p, &o);
}
