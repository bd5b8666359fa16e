/* runtime/run/run_bind.c: what each step of an iteration takes, found once before the first one. */
#include "runtime/run/run_parts.h"

#include "ops/parallel/sharding.h"

/* Of a send or recv: whose weights its one use is of. */
static const gr_model *sent_model(const gr_running *r, const gr_task *w)
{
    const bool is_sent = w->kind == GR_STEP_SEND || w->kind == GR_STEP_RECV;
    const char *name = is_sent ? r->p->tasks->objects[w->uses.list[0].object].model : NULL;
    return name ? gr_graph_model(r->g, name) : NULL;
}

static void **addresses(const gr_running *r, const gr_binding *b, gr_arena *arena)
{
    const uint32_t n = b->task->uses.n;
    void **ptr = gr_arena_alloc(arena, (n + 1) * sizeof(*ptr));
    for (uint32_t u = 0; u < n; u++)
        if (b->entry[u] != GR_NONE) ptr[u] = gr_executor_address(r->executor, b->entry[u]);
    return ptr;
}

static void bind_task(gr_running *r, const gr_binding *b, gr_lane lane, gr_bound *out)
{
    const gr_task *w = b->task;
    const gr_node *n = out->node;
    out->task = w;
    out->model = sent_model(r, w);
    out->comm = gr_comms_group(&r->comms, w->comm.group);
    out->peers = gr_comms_peers(&r->comms, &w->comm.mesh, GR_AXIS_TENSOR);
    out->sharers = gr_comms_peers(&r->comms, &w->comm.mesh, GR_AXIS_CONTEXT);
    out->holders = gr_comms_peers(&r->comms, &w->comm.mesh, GR_AXIS_EXPERT);
    out->call =
        (gr_call){.session = &r->session,
                  .node = n,
                  .state = r->session.state[n->index],
                  .how = &r->p->choices[n->index],
                  .placed = n->model ? gr_placed(r->p->tasks, n->model) : NULL,
                  .kernel = w->kernel,
                  .arg = w->arg,
                  .ptr = addresses(r, b, r->memory),
                  .n_ptr = w->uses.n,
                  .lane = lane,
                  .room = gr_arena_alloc(r->memory, gr_sharding_room_bytes(r->p->tasks, w, n->model))};
}

void gr_run_bind(gr_running *r)
{
    const uint32_t n = gr_plan_steps(r->p->plan);
    r->bound = gr_arena_alloc(r->memory, (n + 1) * sizeof(*r->bound));
    for (uint32_t i = 0; i < n; i++) {
        const gr_step *s = gr_plan_step(r->p->plan, i);
        if (s->node) r->bound[i].node = gr_planned_node(r->p, r->g, s->node);
        if (r->p->binding[i].task) bind_task(r, &r->p->binding[i], s->lane, &r->bound[i]);
    }
}

const gr_bound *gr_run_bound(const gr_running *r, gr_path_id path, uint32_t step)
{
    const gr_path *steady = &r->p->plan->paths[GR_PATH_STEADY];
    if (path != GR_PATH_STEADY && path != GR_PATH_VALIDATE) return NULL;
    return &r->bound[path == GR_PATH_VALIDATE ? steady->n + step : step];
}
