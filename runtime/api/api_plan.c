/* runtime/api/api_plan.c: plans as objects. */
#include "runtime/api/api_parts.h"

#include <stdlib.h>

#include "graphs/loader/load.h"
#include "scheduler/report/report.h"

struct graphrun_plan {
    gr_request q;
    graphrun_log *log;
    gr_status st;
    gr_plan_options o;
    gr_graph *g;
    gr_planned *p;
    gr_str json, table;
};

static void make(void *user)
{
    graphrun_plan *p = user;
    gr_diag d;
    gr_diag_init(&d);
    p->st = gr_request_plan(&p->p, &p->g, &p->o, &p->q, &d);
    if (p->p) gr_plan_write_json(p->p->plan, &p->json);
    if (p->p) gr_plan_table(p->p->plan, &p->table, false);
    gr_api_take_messages(p->log, &d);
}

graphrun_status graphrun_plan_new(graphrun_plan **out, const graphrun_ask *given, graphrun_log *l)
{
    graphrun_ask a;
    *out = NULL;
    graphrun_status st = gr_api_read_ask(&a, given, l);
    graphrun_plan *p = st ? NULL : calloc(1, sizeof(*p));
    if (!p) return st ? st : GRAPHRUN_E_NOMEM;
    p->q = gr_api_request(&a);
    p->q.grows = true;
    p->log = l;
    st = gr_api_do(make, p);
    if (st) return st;
    st = (graphrun_status)p->st;
    if (p->p)
        *out = p;
    else
        graphrun_plan_free(p);
    return st;
}

void graphrun_plan_free(graphrun_plan *p)
{
    if (!p) return;
    gr_planned_free(p->p);
    gr_graph_free(p->g);
    gr_str_release(&p->json);
    gr_str_release(&p->table);
    free(p);
}

const char *graphrun_plan_json(const graphrun_plan *p)
{
    return p->json.text;
}

const char *graphrun_plan_table(const graphrun_plan *p)
{
    return p->table.text;
}

uint32_t graphrun_plan_roles(const graphrun_plan *p)
{
    return p->p->plan->n_more + 1;
}

graphrun_plan_facts graphrun_plan_of(const graphrun_plan *of, uint32_t role)
{
    const gr_plan *all = of->p->plan;
    if (role > all->n_more) return (graphrun_plan_facts){0};
    const gr_plan *p = gr_plan_role(all, role);
    return (graphrun_plan_facts){.graph = all->graph,
                                 .hardware = all->hardware,
                                 .device = p->device,
                                 .numerics = all->numerics,
                                 .ranks = p->ranks,
                                 .fits = p->fits,
                                 .ns = all->ns,
                                 .peak_bytes = p->peak_bytes,
                                 .budget_bytes = p->budget_bytes,
                                 .arena_bytes = p->arena_bytes,
                                 .overhead_bytes = p->overhead_bytes,
                                 .host_bytes = p->host_bytes,
                                 .peak_step = p->peak_step,
                                 .n_steps = p->paths[GR_PATH_STEADY].n,
                                 .n_all_steps = gr_plan_steps(p),
                                 .n_entries = p->n_ledger};
}

graphrun_step graphrun_plan_step(const graphrun_plan *of, uint32_t role, uint32_t i)
{
    const gr_plan *p = role <= of->p->plan->n_more ? gr_plan_role(of->p->plan, role) : NULL;
    if (!p || i >= gr_plan_steps(p)) return (graphrun_step){0};
    const gr_step *s = gr_plan_step(p, i);
    return (graphrun_step){.what = s->what,
                           .node = s->node,
                           .kind = gr_step_kind_str(s->kind),
                           .lane = gr_lane_str(s->lane),
                           .bytes = s->bytes,
                           .resident_bytes = s->resident_bytes,
                           .ns = s->ns};
}

graphrun_entry graphrun_plan_entry(const graphrun_plan *of, uint32_t role, uint32_t i)
{
    const gr_plan *p = role <= of->p->plan->n_more ? gr_plan_role(of->p->plan, role) : NULL;
    if (!p || i >= p->n_ledger) return (graphrun_entry){0};
    const gr_entry *e = &p->ledger[i];
    return (graphrun_entry){.what = e->what,
                            .category = gr_category_str(e->category),
                            .on_device = e->place == GR_DEVICE,
                            .bytes = e->bytes,
                            .offset = e->offset,
                            .first = e->first,
                            .last = e->last};
}
