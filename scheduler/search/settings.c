/* scheduler/search/settings.c: the planner's choices as plans keep them, by name. */
#include "scheduler/search/planner_parts.h"

#include <stddef.h>
#include <string.h>

/* The choices by name, as plans keep them. */
static const struct choice_field {
    const char *name;
    size_t at;
} choice_fields[] = {
    {"micro_tokens", offsetof(gr_choices, micro_tokens)},
    {"kv_blocks", offsetof(gr_choices, kv_blocks)},
    {"concurrent", offsetof(gr_choices, concurrent)},
    {"prefill_tokens", offsetof(gr_choices, prefill_tokens)},
    {"head_rows", offsetof(gr_choices, head_rows)},
    {"expert_run", offsetof(gr_choices, expert_run)},
    {"experts_again", offsetof(gr_choices, experts_again)},
    {"recompute", offsetof(gr_choices, recompute)},
    {"draft", offsetof(gr_choices, draft)},
    {"whole_grads", offsetof(gr_choices, whole_grads)},
    {"sharded", offsetof(gr_choices, sharded)},
    {"shards", offsetof(gr_choices, shards)},
    {"host_step", offsetof(gr_choices, host_step)},
    {"leaves", offsetof(gr_choices, leaves)},
    {"threads", offsetof(gr_choices, threads)},
};

static uint32_t *choice_at(gr_choices *c, const struct choice_field *f)
{
    return (uint32_t *)(void *)((char *)c + f->at);
}

void gr_settings_write(gr_planned *p)
{
    gr_plan *plan = p->plan;
    const gr_graph *g = p->graph;
    plan->settings =
        gr_arena_alloc(plan->arena, g->n_nodes * GR_LEN(choice_fields) * sizeof(*plan->settings));
    for (size_t i = 0; i < g->n_nodes; i++)
        for (size_t f = 0; f < GR_LEN(choice_fields); f++) {
            uint32_t value = *choice_at(&p->choices[i], &choice_fields[f]);
            if (!g->nodes[i]->model || !value || !gr_node_runs(g, g->nodes[i])) continue;
            const char *node = gr_arena_strdup(plan->arena, g->nodes[i]->name);
            plan->settings[plan->n_settings++] = (gr_setting){node, choice_fields[f].name, value};
        }
}

static bool settings_serve(const gr_graph *g, const gr_node *n, const gr_choices *c)
{
    const bool trains = n->op->trains;
    if (!n->model) return true;
    if (c->shards && g->ranks % c->shards) return false;
    if (n->op->runs_with && !n->op->runs_with(n, c)) return false;
    return c->threads && c->sharded <= 1 && c->host_step <= trains && c->whole_grads <= trains;
}

/* The weights of a model lie in one way, and nodes are as large for all models. */
static bool settings_agree(const gr_graph *g, const gr_choices *c)
{
    for (size_t i = 0; i < g->n_nodes; i++)
        for (size_t j = 0; j < i; j++) {
            if (!g->nodes[i]->model || !g->nodes[j]->model ||
                g->nodes[i]->placement.role != g->nodes[j]->placement.role)
                continue;
            bool same = g->nodes[i]->model == g->nodes[j]->model;
            if (same && (c[i].sharded != c[j].sharded || c[i].shards != c[j].shards)) return false;
            if (c[i].shards && c[j].shards && c[i].shards != c[j].shards) return false;
        }
    return true;
}

gr_status gr_settings_read(gr_planned *p, const gr_plan *plan, const gr_graph *g, gr_diag *d)
{
    for (uint32_t i = 0; i < plan->n_settings; i++) {
        const gr_setting *s = &plan->settings[i];
        const gr_node *n = gr_graph_node(g, s->node);
        size_t f = 0;
        while (f < GR_LEN(choice_fields) && strcmp(choice_fields[f].name, s->name)) f++;
        if (!n || f == GR_LEN(choice_fields) || s->value > UINT32_MAX)
            return gr_diag_error(d, (gr_loc){0}, GR_E_INVALID,
                                 "the plan sets '%s' of '%s', which the graph does not have", s->name,
                                 s->node);
        *choice_at(&p->choices[n->index], &choice_fields[f]) = (uint32_t)s->value;
    }
    for (size_t i = 0; i < g->n_nodes; i++)
        if (gr_node_runs(g, g->nodes[i]) && !settings_serve(g, g->nodes[i], &p->choices[i]))
            return gr_diag_error(d, (gr_loc){0}, GR_E_INVALID,
                                 "the plan's settings of node '%s' are not enough to run it",
                                 g->nodes[i]->name);
    if (!settings_agree(g, p->choices))
        return gr_diag_error(d, (gr_loc){0}, GR_E_INVALID, "the plan's nodes shard a model in two ways");
    return GR_OK;
}
