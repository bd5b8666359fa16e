/* scheduler/search/claims.c: what a plan's file says beside its steps, held against graph and hardware. */
#include "scheduler/cost/cost.h"
#include "scheduler/search/planner_parts.h"
#include "scheduler/search/timeline.h"

#include <inttypes.h>
#include <string.h>

/* The hardware that a plan says it is for. */
typedef struct claimed {
    gr_hardware hw;
    bool named; /* a profile, which is the same everywhere; else the machine at hand */
    bool known; /* false: neither */
} claimed;

static claimed hardware_of(const gr_plan *plan, const gr_plan_options *o)
{
    claimed c = {.hw = o->hardware, .known = !strcmp(o->hardware.name, plan->hardware)};
    c.named = gr_hardware_profile(&c.hw, plan->hardware);
    c.known |= c.named;
    return c;
}

/* The least that a plan may count beside the arena. On a CPU it follows from the cores, of which a plan does
 * not say how many: that of one. */
static uint64_t least_overhead(const gr_planned *p, const claimed *c, gr_adoption why)
{
    if (!strcmp(p->plan->device, "cpu")) return gr_hardware_cpu_overhead(1);
    if (!c->known && (why != GR_ADOPT_TO_RUN || strcmp(c->hw.device, p->plan->device))) return 1;
    const gr_tenant tenant = gr_tenant_of(p->tasks, p->plan->host_bytes);
    return gr_hardware_overhead(&c->hw, &tenant);
}

/* The memory beside the arena, which the verifier of steps takes as it is said: of a profile what that says;
 * of the machine at hand, which may have been measured anew, no less; of one that is not known some, or,
 * where it is to run, what the machine at hand takes. */
static gr_status check_overhead(const gr_planned *p, const claimed *c, gr_adoption why, gr_diag *d)
{
    const uint64_t takes = least_overhead(p, c, why), says = p->plan->overhead_bytes;
    char said[32], needed[32];
    if (c->named && why != GR_ADOPT_OWN ? says == takes : says >= takes) return GR_OK;
    return gr_diag_error(d, (gr_loc){0}, GR_E_INVALID,
                         "the plan counts %s (%" PRIu64 ") beside the arena, where hardware '%s' takes %s "
                         "(%" PRIu64 ")",
                         gr_bytes_format(says, said), says, c->known ? p->plan->hardware : c->hw.name,
                         gr_bytes_format(takes, needed), takes);
}

/* One step of a task as the hardware takes it. */
static uint64_t step_ns(const gr_step *s, const gr_task *w, const gr_hardware *hw)
{
    const bool moved = s->lane == GR_LANE_HOST && w->lane != GR_LANE_HOST;
    return moved ? gr_task_host_ns(w, hw) : gr_task_ns(w, hw);
}

/* The seconds of each task. Those of loops and copies follow from what runs beside them; the plan of one role
 * may run on other hosts than it was made for. */
static gr_status check_step_times(const gr_planned *p, const gr_hardware *hw, gr_diag *d)
{
    const gr_plan *plan = p->plan;
    for (uint32_t i = 0; i < gr_plan_steps(plan); i++) {
        const gr_step *s = gr_plan_step(plan, i);
        const gr_task *w = p->binding[i].task;
        if (!w || s->kind == GR_STEP_LOOP) continue;
        if (gr_graph_one_role(p->graph) && (w->comm.moved || w->comm.rate > 0)) continue;
        const uint64_t ns = step_ns(s, w, hw);
        if (s->ns != ns)
            return gr_diag_error(d, (gr_loc){0}, GR_E_INVALID,
                                 "the plan says that step %u '%s' takes %.9f s, hardware '%s' takes %.9f s",
                                 i, s->what, (double)s->ns * 1e-9, plan->hardware, (double)ns * 1e-9);
    }
    return GR_OK;
}

/* What the lane `compute` may lose to reductions on another, which no step's time has. */
static uint64_t most_lost(const gr_planned *p, const gr_hardware *hw)
{
    const gr_path *steady = &p->plan->paths[GR_PATH_STEADY];
    uint64_t sum = 0;
    for (uint32_t i = 0; i < steady->n; i++) {
        const gr_task *w = p->binding[i].task;
        if (!w) continue;
        uint64_t lost = gr_task_lost_ns(w, hw);
        for (uint32_t k = 0; k < i && lost; k++)
            if (steady->steps[k].kind == GR_STEP_LOOP && steady->steps[k].body_last >= i)
                lost *= GR_MAX(p->binding[k].task->loop.trips_expected, 1u);
        sum += lost;
    }
    return sum;
}

/* The seconds of an iteration: of several roles as they wait for each other, of one as its steps do. */
static gr_status check_seconds(const gr_planned *p, const gr_hardware *hw, gr_diag *d)
{
    const gr_plan *plan = p->plan;
    const uint64_t least = p->n_more ? gr_roles_ns(plan) : gr_timeline_waits_ns(plan),
                   most = p->n_more ? least : gr_timeline_late_ns(plan) + most_lost(p, hw);
    if (least <= plan->ns && plan->ns <= most) return GR_OK;
    return gr_diag_error(d, (gr_loc){0}, GR_E_INVALID,
                         "the plan says that an iteration takes %.9f s, its steps take %.9f s",
                         (double)plan->ns * 1e-9, (double)least * 1e-9);
}

gr_status gr_check_claims(const gr_planned *p, const gr_plan_options *o, gr_adoption why, gr_diag *d)
{
    gr_status st = GR_OK;
    for (uint32_t c = 0; c <= p->n_more && !st; c++) {
        const gr_planned *role = gr_planned_role(p, c);
        const claimed of = hardware_of(role->plan, o);
        st = check_overhead(role, &of, why, d);
        if (!st && !c && !of.known && why == GR_ADOPT_TO_PROVE)
            gr_diag_note(
                d, (gr_loc){0},
                "hardware '%s' is not known here: memory beside the arena and seconds are as the plan "
                "says",
                role->plan->hardware);
        if (st || !of.named || why == GR_ADOPT_OWN) continue;
        gr_plan_options there = *o;
        there.hardware = of.hw;
        const gr_hardware between = gr_plan_hardware(&there, role->graph);
        st = check_step_times(role, &between, d);
        if (!st && !c) st = check_seconds(p, &between, d);
    }
    return st;
}

/* The hash of what fixes the bits, where the plan's own graph is the one at hand. */
gr_status gr_check_numerics(const gr_planned *p, const char *said, const char *of_graph, gr_diag *d)
{
    const gr_plan *plan = p->plan;
    if (strcmp(of_graph, plan->graph_text) || !strcmp(said, plan->numerics)) return GR_OK;
    return gr_diag_error(d, (gr_loc){0}, GR_E_INVALID,
                         "the plan says numerics %s, those of its graph and choices are %s", said,
                         plan->numerics);
}
