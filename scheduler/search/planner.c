/* scheduler/search/planner.c: plans of a graph: of all roles, joined and proven. */
#include "scheduler/search/planner.h"

#include "ops/kernels/layer.h"
#include "ops/summary.h"
#include "scheduler/search/planner_parts.h"
#include "scheduler/search/policy.h"
#include "scheduler/search/timeline.h"
#include "graphs/loader/print.h"

#include <stdlib.h>
#include <string.h>

/* The ends of an iteration and of a validation are where most of what they read is: beside the update that
 * metrics are about, and beside the last node of the validation. Where there is state, each role ends the
 * iteration itself, for the next one reads what follows. */
static void place_ends(gr_planned *p, const gr_graph *g)
{
    const gr_node *update = gr_graph_subject(g).update;
    p->summary->placement.role = g->n_state && g->n_roles > 1 ? GR_NONE : update ? update->placement.role : 0;
    for (size_t i = 0; p->validation && i < g->n_nodes; i++)
        if (g->nodes[i]->timing.every) p->validation->placement.role = g->nodes[i]->placement.role;
}

static gr_planned *planned_new(const gr_graph *g, const gr_kernels *k)
{
    gr_planned *p = gr_calloc(1, sizeof(*p));
    p->kernels = k;
    p->arena = gr_arena_new();
    p->graph = g;
    p->summary = gr_summary_node(g, false, p->arena);
    p->validation = gr_summary_node(g, true, p->arena);
    p->choices = gr_arena_alloc(p->arena, gr_n_choices(g) * sizeof(*p->choices));
    place_ends(p, g);
    return p;
}

void gr_planned_free(gr_planned *p)
{
    if (!p) return;
    for (uint32_t c = 0; c < p->n_more; c++) {
        p->more[c]->plan = NULL; /* the first one's plan holds it */
        gr_planned_free(p->more[c]);
    }
    gr_plan_free(p->plan);
    gr_tasks_free(p->tasks);
    gr_arena_free(p->arena);
    free(p);
}

/* The planner's choices stand in the resolved graph as comments: a later plan of it may choose again. */
static void add_choices(const gr_graph *g, const gr_choices *choices, gr_str *out)
{
    gr_str_puts(out, "# chosen by the planner\n");
    for (size_t i = 0; i < g->n_nodes; i++) {
        const gr_choices *c = &choices[i];
        const char *name = g->nodes[i]->name;
        if (g->nodes[i]->op->generates)
            gr_str_printf(out, "#   %s: kv_blocks %u, concurrent %u\n", name, c->kv_blocks, c->concurrent);
        if (gr_node_is_pass(g->nodes[i]))
            gr_str_printf(out, "#   %s: micro_tokens %u\n", name, c->micro_tokens);
    }
}

/* The pools of a role, "train, ref". */
static const char *pools_of(const gr_graph *g, uint32_t role, gr_arena *arena)
{
    gr_str s = {0};
    for (size_t i = 0; i < g->n_pools && g->n_roles > 1; i++)
        if (g->pools[i].role == role) gr_str_printf(&s, "%s%s", s.len ? ", " : "", g->pools[i].name);
    const char *text = gr_arena_strdup(arena, s.text ? s.text : "");
    gr_str_release(&s);
    return text;
}

/* What the plans of all roles say alike; choices: of every node those of its role. */
static void name_plan(gr_planned *p, const gr_graph *g, const gr_plan_options *o)
{
    gr_plan *plan = p->plan;
    gr_choices *choices = gr_calloc(gr_n_choices(g), sizeof(*choices));
    gr_str text = {0};
    for (size_t i = 0; i < g->n_nodes; i++)
        choices[i] = gr_planned_role(p, g->nodes[i]->placement.role)->choices[i];
    gr_graph_resolved(g, GR_PATHS_WHOLE, &text);
    add_choices(g, choices, &text);
    plan->graph = gr_arena_strdup(plan->arena, g->name);
    plan->graph_text = gr_arena_strndup(plan->arena, text.text, text.len);
    plan->numerics = gr_numerics(g, choices, o, plan->arena);
    for (uint32_t c = 0; c <= p->n_more; c++) {
        gr_plan *own = gr_planned_role(p, c)->plan;
        own->ranks = gr_arena_strdup(own->arena, g->roles[c].text);
        own->pools = pools_of(g, c, own->arena);
        own->hosts = p->n_more || g->hosts > 1 ? g->hosts : 0;
        own->graph = plan->graph;
        own->graph_text = plan->graph_text;
        own->numerics = plan->numerics;
    }
    gr_str_release(&text);
    free(choices);
}

/* programs [roles] */
static const gr_tasks **programs_of(const gr_planned *p)
{
    const gr_tasks **g = gr_calloc(p->n_more + 1, sizeof(*g));
    for (uint32_t c = 0; c <= p->n_more; c++) g[c] = gr_planned_role(p, c)->tasks;
    return g;
}

static gr_status prove(gr_planned *p, gr_diag *d)
{
    const gr_tasks **tasks = programs_of(p);
    gr_status st = gr_plan_verify_all(p->plan, tasks, d);
    free(tasks);
    for (uint32_t c = 0; c <= p->n_more && !st; c++) {
        gr_planned *own = gr_planned_role(p, c);
        own->binding = gr_plan_bind(own->plan, own->tasks, own->arena);
    }
    return st;
}

/* ---- what cannot be planned ---------------------------------------------------------------------------- */

/* What an op asks of a device is there. */
static gr_status check_ops(const gr_graph *g, const gr_kernels *k, gr_diag *d)
{
    gr_status st = GR_OK;
    for (size_t i = 0; i < g->n_nodes; i++) {
        const gr_node *n = g->nodes[i];
        unsigned lacks = n->op->kernels & ~gr_kernels_sets(k);
        const char *unfit = n->op->unfit ? n->op->unfit(n, k) : NULL;
        gr_str what = {0};
        if (unfit)
            st = gr_diag_error(d, n->at, GR_E_INVALID, "node '%s': on the %s device %s", n->name, k->device,
                               unfit);
        if (!lacks) continue;
        gr_kernel_sets_name(lacks, &what);
        st = gr_diag_error(d, n->at, GR_E_INVALID,
                           "node '%s': op '%s' does not run on the %s device, which has no kernels for %s",
                           n->name, n->op->name, k->device, what.text);
        gr_str_release(&what);
    }
    return st;
}

/* That has not run on a CUDA device: it takes four. For who tries it, and for plans that nobody runs, the
 * environment lifts this. */
static bool stages_of_experts_refused(const gr_model *m, const gr_kernels *k)
{
    return m->sharding.train.experts > 1 && gr_mesh_size(&m->sharding.mesh, GR_AXIS_PIPELINE) > 1 &&
           k->queued && !getenv("GRAPHRUN_TRY_EXPERTS");
}

/* What the device's kernels are not made for, of the heads that each of the ranks has which a sequence is cut
 * over; NULL where it is not cut. */
static const char *cut_unfit(const gr_graph *g, const gr_model *m, const gr_kernels *k,
                             char buf[GR_UNFIT_MAX])
{
    const uint32_t ranks = g->ranks > 1 ? gr_mesh_size(&m->sharding.mesh, GR_AXIS_CONTEXT) : 1;
    gr_model_shape s = gr_slicing_parts(m->sharding.train) > 1 ? m->sharding.train_slice : m->shape;
    for (uint32_t i = 0; i < s.n_kinds; i++) {
        s.kinds[i].attention = gr_attention_cut(&s.kinds[i].attention, ranks);
        s.kinds[i].delta = gr_delta_cut(&s.kinds[i].delta, ranks);
    }
    return ranks > 1 ? gr_layers_unfit(k, &s, buf) : NULL;
}

/* The same of a model, of its slices, and of such heads. */
static gr_status check_shape(const gr_graph *g, const gr_model *m, const gr_kernels *k, gr_diag *d)
{
    char buf[GR_UNFIT_MAX];
    if (stages_of_experts_refused(m, k))
        return gr_diag_error(
            d, m->sharding.mesh_at[GR_AXIS_EXPERT], GR_E_INVALID,
            "model '%s': 'expert: %u' beside 'pipeline: %u' has not run on CUDA devices yet: "
            "it is for the CPU device; 'tensor' and 'context' go with divided experts on both",
            m->name, m->sharding.train.experts, gr_mesh_size(&m->sharding.mesh, GR_AXIS_PIPELINE));
    const char *unfit = gr_layers_unfit(k, &m->shape, buf);
    bool slice =
        !unfit && (gr_slicing_parts(m->sharding.rollout) > 1 || gr_slicing_parts(m->sharding.train) > 1);
    if (!unfit && (m->precision.rollout || m->precision.train))
        unfit = gr_layers_unfit(k, &m->precision.shape, buf);
    if (!unfit && m->precision.kv) unfit = gr_layers_unfit(k, &m->precision.kv_shape, buf);
    if (slice) unfit = gr_layers_unfit(k, &m->sharding.slice, buf);
    if (slice && !unfit) unfit = gr_layers_unfit(k, &m->sharding.train_slice, buf);
    const char *where = slice ? ", in slices," : "";
    if (!unfit) {
        unfit = cut_unfit(g, m, k, buf);
        where = ", on each of the ranks that a sequence is cut over,";
    }
    if (!unfit) return GR_OK;
    return gr_diag_error(d, m->at, GR_E_INVALID, "model '%s' has%s %s: the %s device has no kernels for it",
                         m->name, where, unfit, k->device);
}

/* A device whose weights are fp32 trains in fp32; one may have no kernels for value heads. */
static gr_status check_models(const gr_graph *g, const gr_kernels *k, gr_diag *d)
{
    gr_status st = GR_OK;
    for (size_t i = 0; i < g->n_models; i++) {
        const gr_model *m = g->models[i];
        gr_status shape = check_shape(g, m, k, d);
        st = shape ? shape : st;
        if (m->shape.head == GR_HEAD_VALUE && !(gr_kernels_sets(k) & GR_KERNELS_VALUE_HEAD))
            st = gr_diag_error(d, m->at, GR_E_INVALID,
                               "model '%s' has a value head: the %s device has none in this version", m->name,
                               k->device);
        if (!m->trained || k->dtype != GR_F32 || (m->train.grads == GR_F32 && m->train.moments != GR_BF16))
            continue;
        st =
            gr_diag_error(d, m->at, GR_E_INVALID,
                          "model '%s': %s: bf16 needs a device of bf16 weights; the %s device trains in fp32",
                          m->name, m->train.grads == GR_F32 ? "moments" : "grads", k->device);
    }
    return st;
}

static gr_status check_shards(const gr_graph *g, gr_diag *d)
{
    gr_status st = GR_OK;
    for (size_t i = 0; i < g->n_models; i++)
        if (g->models[i]->sharding.over == GR_SHARD_NODE && gr_model_is_sent(g, g->models[i]))
            st = gr_diag_error(d, g->models[i]->at, GR_E_INVALID,
                               "model '%s': 'shard: node' is not for a model whose weights other pools read",
                               g->models[i]->name);
    return st;
}

gr_status gr_plan_check(const gr_graph *g, gr_diag *d)
{
    gr_status st = check_shards(g, d);
    if (g->canonical && g->n_roles > 1)
        st = gr_diag_error(d, (gr_loc){0}, GR_E_INVALID,
                           "canonical is for ranks that do the same, not for pools");
    else if (g->canonical && GR_LEAVES % g->ranks)
        st = gr_diag_error(d, (gr_loc){0}, GR_E_INVALID, "canonical is for 1, 2, 4 or 8 ranks, not for %u",
                           g->ranks);
    return st;
}

static gr_status check_device(const gr_graph *g, const gr_kernels *k, gr_diag *d)
{
    gr_status ops = check_ops(g, k, d), models = check_models(g, k, d); /* all errors are reported */
    gr_status graph = gr_plan_check(g, d), st = ops ? ops : models ? models : graph;
    if (!g->canonical) return st;
    if (!k->chained)
        st = gr_diag_error(
            d, (gr_loc){0}, GR_E_INVALID,
            "canonical needs kernels whose results do not depend on the batch: those of the CPU "
            "device do not, those of the %s device do",
            k->device);
    return st;
}

/* ---- roles of ranks ---------------------------------------------------------------------------------- */

static gr_schedule_options schedule_options(const gr_plan_options *o, const gr_graph *view)
{
    return (gr_schedule_options){
        .hardware = gr_plan_hardware(o, view),
        .policy = o->policy,
        .bits = view->run.bits,
        .quick = o->quick,
        .hurry = o->hurry,
        .beat_ns = o->beat_ns,
        .spent = o->spent,
        .parts = (uint32_t)GR_MAX(view->n_roles, (size_t)1) * (gr_traffic_orders(view) > 1 ? 2 : 1),
        .budget_bytes = o->budget_bytes ? o->budget_bytes : o->hardware.device_bytes,
        .disk_budget_bytes = o->disk_budget_bytes,
        .host_budget_bytes = o->host_budget_bytes ? o->host_budget_bytes : o->hardware.host_bytes};
}

/* The graph as a role sees it. */
static const gr_graph *view_of(const gr_graph *g, uint32_t role)
{
    return g->views ? g->views[role] : g;
}

static gr_planned *planned_all(const gr_graph *g, const gr_kernels *k)
{
    gr_planned *p = planned_new(view_of(g, 0), k);
    uint32_t n = (uint32_t)g->n_roles;
    p->more = gr_arena_alloc(p->arena, n * sizeof(*p->more));
    while (p->n_more + 1 < n) {
        p->more[p->n_more] = planned_new(view_of(g, p->n_more + 1), k);
        p->n_more++;
    }
    return p;
}

/* What crosses between roles, and the programs of all nodes that it was found from. */
typedef struct transfers {
    gr_traffic *traffic; /* NULL: nothing does */
    gr_tasks **whole;
    gr_node *ends[2];
    size_t n;
} transfers;

/* With the first levels of all knobs: what crosses has no part in them. */
static gr_tasks *whole_tasks(const gr_planned *p, const gr_plan_options *o)
{
    gr_arena *arena = gr_arena_new();
    const gr_tasks_source from = gr_knobs_source(gr_knobs_new(p, o, NULL, arena));
    uint32_t *level = gr_calloc(from.n_knobs + 1, sizeof(*level));
    gr_tasks *whole = from.build(from.user, level);
    free(level);
    gr_arena_free(arena);
    return whole;
}

static transfers find_transfers(const gr_planned *p, const gr_graph *g, const gr_plan_options *o,
                                uint32_t order)
{
    transfers c = {.n = g->n_roles, .ends = {p->summary, p->validation}};
    if (g->n_roles < 2 && !gr_graph_lags(g)) return c;
    c.whole = gr_calloc(c.n, sizeof(*c.whole));
    for (uint32_t k = 0; k < c.n; k++) c.whole[k] = whole_tasks(gr_planned_role(p, k), o);
    c.traffic = gr_traffic_new(g, c.ends, (const gr_tasks *const *)c.whole, &o->hardware, order);
    return c;
}

static void transfers_release(transfers *c)
{
    gr_traffic_free(c->traffic);
    for (size_t k = 0; c->whole && k < c->n; k++) gr_tasks_free(c->whole[k]);
    free(c->whole);
}

/* What ops say of what was chosen for them. */
static void add_notes(gr_planned *p)
{
    gr_str notes = {0};
    gr_str_puts(&notes, p->plan->notes);
    for (size_t i = 0; i < p->graph->n_nodes; i++) {
        const gr_node *n = p->graph->nodes[i];
        if (n->op->note && gr_node_runs(p->graph, n)) n->op->note(n, &p->choices[i], &notes);
    }
    p->plan->notes = gr_arena_strdup(p->plan->arena, notes.text ? notes.text : "");
    gr_str_release(&notes);
}

static gr_status plan_role(gr_planned *p, const gr_plan_options *o, const gr_traffic *traffic,
                           const gr_rule *rules, size_t n_rules, gr_diag *d)
{
    gr_knobs *knobs = gr_knobs_new(p, o, traffic, p->arena);
    const gr_tasks_source from = gr_knobs_source(knobs);
    gr_schedule_options options = schedule_options(o, p->graph);
    options.rules = rules;
    options.n_rules = n_rules;
    uint32_t *level = gr_calloc(from.n_knobs + 1, sizeof(*level));
    gr_status st = gr_schedule(&p->plan, level, &from, &options, d);
    gr_knobs_choose(knobs, level, p->choices);
    p->tasks = from.build(from.user, level);
    gr_settings_write(p);
    add_notes(p);
    free(level);
    const gr_graph *g = p->graph;
    if (st && g->n_roles > 1)
        gr_diag_note(d, (gr_loc){0}, "on a rank of pool %s, ranks %s", pools_of(g, g->view, p->arena),
                     g->roles[g->view].text);
    return st;
}

/* Settings, notes and reasons of all roles are the plan's. */
static void join_settings(gr_planned *p)
{
    gr_plan *plan = p->plan;
    gr_setting *all = NULL;
    size_t n = 0, cap = 0;
    gr_str notes = {0}, reasons = {0};
    for (uint32_t c = 0; c <= p->n_more; c++) {
        const gr_plan *own = gr_planned_role(p, c)->plan;
        for (uint32_t i = 0; i < own->n_settings; i++) GR_PUSH(all, n, cap, own->settings[i]);
        gr_str_puts(&notes, own->notes);
        gr_str_puts(&reasons, own->reasons);
    }
    plan->settings = gr_arena_alloc(plan->arena, (n + 1) * sizeof(*all));
    if (n) memcpy(plan->settings, all, n * sizeof(*all));
    plan->n_settings = (uint32_t)n;
    plan->notes = gr_arena_strdup(plan->arena, notes.text ? notes.text : "");
    plan->reasons = gr_arena_strdup(plan->arena, reasons.text ? reasons.text : "");
    for (uint32_t c = 1; c <= p->n_more; c++) {
        gr_plan *own = gr_planned_role(p, c)->plan;
        own->settings = plan->settings;
        own->n_settings = plan->n_settings;
        own->notes = plan->notes;
        own->reasons = plan->reasons;
    }
    gr_str_release(&notes);
    gr_str_release(&reasons);
    free(all);
}

/* The time of a plan by itself was predicted before its offsets were known; the time of several roles
 * follows from all waits anyway. */
static void join_plans(gr_planned *p)
{
    gr_plan *plan = p->plan;
    const uint64_t waits = p->n_more ? 0 : gr_timeline_waits_ns(plan);
    plan->ns = GR_MAX(plan->ns, waits);
    for (uint32_t c = 0; c <= p->n_more; c++)
        gr_planned_role(p, c)->plan->own_ns = gr_planned_role(p, c)->plan->ns;
    if (!p->n_more) return;
    plan->more = gr_arena_alloc(plan->arena, p->n_more * sizeof(*plan->more));
    for (uint32_t c = 0; c < p->n_more; c++) plan->more[plan->n_more++] = p->more[c]->plan;
    join_settings(p);
    const gr_tasks **tasks = programs_of(p);
    gr_roles_link(plan, tasks);
    free(tasks);
}

/* Of several roles: the budgets with which all of them fit. */
static void note_budgets(const gr_planned *p, const gr_plan_options *o, gr_diag *d)
{
    const gr_schedule_options options = schedule_options(o, p->graph);
    uint64_t device = 0, host = 0;
    for (uint32_t c = 0; c <= p->n_more; c++) {
        device = GR_MAX(device, gr_planned_role(p, c)->plan->peak_bytes);
        host = GR_MAX(host, gr_planned_role(p, c)->plan->host_bytes);
    }
    gr_note_budgets(d, &options, device, host);
}

/* The plans of all roles, not proven yet. GR_OK or GR_E_NOFIT. */
static gr_planned *plan_in_order(const gr_graph *g, const gr_plan_options *o, uint32_t order, gr_status *st,
                                 gr_diag *d)
{
    gr_planned *p = planned_all(g, o->kernels);
    transfers across = find_transfers(p, g, o, order);
    size_t n_rules;
    gr_rule *rules = gr_rules_of(g, o->policy, p->arena, &n_rules, d);
    *st = GR_OK;
    for (uint32_t c = 0; c <= p->n_more; c++) {
        gr_status own = plan_role(gr_planned_role(p, c), o, across.traffic, rules, n_rules, d);
        *st = *st ? *st : own;
    }
    transfers_release(&across);
    if (*st && p->n_more) note_budgets(p, o, d);
    for (uint32_t c = 0; c <= p->n_more; c++) gr_planned_role(p, c)->plan->order = order;
    join_plans(p);
    return p;
}

/* The faster of two, of which either may be NULL. */
static gr_planned *faster_of(gr_planned *a, gr_planned *b)
{
    const bool second = b && (!a || b->plan->ns < a->plan->ns);
    gr_planned_free(second ? a : b);
    return second ? b : a;
}

/* The search's work is of two parts for each role: one for all orders together, one for the best. */
static gr_plan_options share_of(const gr_plan_options *o, uint32_t part)
{
    gr_plan_options share = *o;
    share.hurry = GR_MAX(o->hurry, 1u) * part;
    return share;
}

/* All orders alike, where the first fits: what needs least memory needs it in each. */
static gr_planned *plan_orders(const gr_graph *g, const gr_plan_options *o, gr_status *st, gr_diag *d)
{
    gr_planned *p = plan_in_order(g, o, 0, st, d);
    for (uint32_t order = 1; !*st && order < gr_traffic_orders(g); order++) {
        gr_status own;
        gr_planned *other = plan_in_order(g, o, order, &own, NULL);
        if (own) gr_planned_free(other), other = NULL;
        p = faster_of(p, other);
    }
    return p;
}

/* Orders are compared by a short search; the best is searched once more, longer, and taken where that finds
 * something faster, which it nearly always does. */
static gr_planned *plan_best(const gr_graph *g, const gr_plan_options *o, gr_status *st, gr_diag *d)
{
    enum { SHORT = 4 }; /* or all orders together would take most of the time */
    const uint32_t orders = gr_traffic_orders(g);
    const gr_plan_options each = share_of(o, GR_MAX(orders / 2, 1u)),
                          brief = share_of(o, GR_MAX(orders, (uint32_t)SHORT));
    if (orders == 1 || o->quick) return plan_orders(g, &each, st, d);
    gr_planned *p = plan_orders(g, &brief, st, NULL);
    if (*st) {
        gr_planned_free(p);
        return plan_orders(g, &each, st, d);
    }
    gr_status own;
    gr_planned *longer = plan_in_order(g, o, p->plan->order, &own, NULL);
    if (own) gr_planned_free(longer), longer = NULL;
    p = faster_of(p, longer);
    size_t n_rules;
    gr_rules_of(g, o->policy, p->arena, &n_rules, d); /* says what it warns of, once */
    return p;
}

static gr_status prove_own(gr_planned *p, gr_diag *d)
{
    if (!prove(p, d)) return GR_OK;
    return gr_diag_error(d, (gr_loc){0}, GR_E_FAILED,
                         "the verifier refuses a plan of our own making: please report it");
}

gr_status gr_plan_sketched(gr_planned *p, const gr_graph *g, const gr_plan_options *o, gr_diag *d)
{
    size_t n_rules;
    gr_rules_of(g, o->policy, p->arena, &n_rules,
                d); /* says what it warns of: a sketch had nobody to say it to */
    return prove_own(p, d);
}

gr_status gr_plan_graph(gr_planned **out, const gr_graph *g, const gr_plan_options *device, gr_diag *d)
{
    gr_plan_options asked = *device, *o = &asked;
    gr_status st;
    asked.kernels = gr_kernels_as(device->kernels, g->strict, !g->nondeterministic);
    if (check_device(g, o->kernels, d)) return GR_E_INVALID;
    gr_planned *p = plan_best(g, o, &st, d);
    name_plan(p, g, o);
    if (!st && !o->sketch) st = prove_own(p, d);
    if (st && st != GR_E_NOFIT)
        gr_planned_free(p);
    else
        *out = p;
    return st;
}

static gr_outlook outlook_of(const gr_planned *p, const gr_plan_options *o, const gr_traffic *traffic,
                             const gr_rule *rules, size_t n_rules)
{
    gr_arena *arena = gr_arena_new();
    const gr_tasks_source from = gr_knobs_source(gr_knobs_new(p, o, traffic, arena));
    gr_schedule_options options = schedule_options(o, p->graph);
    options.rules = rules;
    options.n_rules = n_rules;
    const gr_outlook x = gr_schedule_outlook(&from, &options);
    gr_arena_free(arena);
    return x;
}

gr_status gr_plan_outlook(gr_outlook *out, const gr_graph *g, const gr_plan_options *device)
{
    gr_plan_options own = *device, *o = &own;
    own.kernels = gr_kernels_as(device->kernels, g->strict, !g->nondeterministic);
    *out = (gr_outlook){0};
    if (check_device(g, o->kernels, NULL)) return GR_E_INVALID;
    gr_planned *p = planned_all(g, o->kernels);
    transfers across = find_transfers(p, g, o, 0);
    size_t n_rules;
    const gr_rule *rules = gr_rules_of(g, o->policy, p->arena, &n_rules, NULL);
    for (uint32_t c = 0; c <= p->n_more; c++) {
        const gr_outlook x = outlook_of(gr_planned_role(p, c), o, across.traffic, rules, n_rules);
        out->ns = GR_MAX(out->ns, x.ns);
        out->bytes = GR_MAX(out->bytes, x.bytes);
        out->hopeless |= x.hopeless;
    }
    transfers_release(&across);
    gr_planned_free(p);
    return GR_OK;
}

/* The plan is for the roles that the graph has. */
static gr_status check_roles(const gr_plan *plan, const gr_graph *g, gr_diag *d)
{
    if (gr_plan_all_ranks(plan) != g->ranks)
        return gr_diag_error(d, (gr_loc){0}, GR_E_INVALID, "the plan is for ranks %s%s, not for %u",
                             plan->ranks, plan->n_more ? " and other roles" : "", g->ranks);
    if (plan->n_more && plan->hosts != g->hosts)
        return gr_diag_error(d, (gr_loc){0}, GR_E_INVALID, "the plan is for %u hosts, not for %u",
                             plan->hosts, g->hosts);
    for (uint32_t c = 0; c < GR_MAX(plan->n_more + 1, g->n_roles); c++) {
        const char *theirs = c <= plan->n_more ? gr_plan_role(plan, c)->ranks : "none",
                   *ours = c < g->n_roles ? g->roles[c].text : "none";
        if (strcmp(theirs, ours))
            return gr_diag_error(d, (gr_loc){0}, GR_E_INVALID,
                                 "role %u of the plan is of ranks %s, that of the graph's pools of ranks %s",
                                 c, theirs, ours);
    }
    return GR_OK;
}

/* A plan that was made to show what is missing. */
static gr_status check_fits(const gr_plan *plan, gr_diag *d)
{
    char need[32], have[32];
    for (uint32_t c = 0; c <= plan->n_more; c++) {
        const gr_plan *p = gr_plan_role(plan, c);
        if (p->fits) continue;
        bool device = p->peak_bytes > plan->budget_bytes;
        if (!device && p->host_bytes <= plan->host_budget_bytes)
            continue; /* a disk's: the verifier says so */
        return gr_diag_error(d, (gr_loc){0}, GR_E_NOFIT,
                             "the plan does not fit, and says so: it needs %s of %s memory, its budget is %s",
                             gr_bytes_format(device ? p->peak_bytes : p->host_bytes, need),
                             device ? "device" : "host",
                             gr_bytes_format(device ? plan->budget_bytes : plan->host_budget_bytes, have));
    }
    return GR_OK;
}

gr_status gr_plan_adopt(gr_planned **out, gr_plan *plan, const gr_graph *g, const gr_plan_options *device,
                        gr_adoption why, gr_diag *d)
{
    gr_plan_options own = *device, *o = &own;
    const char *text = plan->graph_text, *numerics = plan->numerics;
    own.kernels = gr_kernels_find(plan->device);
    if (!own.kernels)
        return gr_diag_error(d, (gr_loc){0}, GR_E_INVALID,
                             "the plan is for a device '%s', of which nothing is known", plan->device);
    own.kernels = gr_kernels_as(own.kernels, g->strict, !g->nondeterministic);
    gr_hardware_profile(&own.hardware, plan->hardware); /* else the machine at hand stands for it */
    if (check_device(g, o->kernels, d) || check_roles(plan, g, d)) return GR_E_INVALID;
    gr_status st = check_fits(plan, d);
    if (st) return st;
    gr_planned *p = planned_all(g, o->kernels);
    for (uint32_t c = 0; c <= p->n_more && !st; c++)
        st = gr_settings_read(gr_planned_role(p, c), plan, view_of(g, c), d);
    if (!st) {
        transfers across = find_transfers(p, g, o, plan->order);
        for (uint32_t c = 0; c <= p->n_more; c++) {
            gr_planned *k = gr_planned_role(p, c);
            k->tasks = gr_lower(view_of(g, c), o->kernels, k->choices, k, across.traffic);
            k->plan = gr_plan_role(plan, c);
        }
        transfers_release(&across);
        st = prove(p, d);
    }
    if (!st) st = gr_check_claims(p, device, why, d);
    if (!st) name_plan(p, g, o); /* what runs is g, which may differ in what needs no other memory */
    if (!st && why != GR_ADOPT_OWN) st = gr_check_numerics(p, numerics, text, d);
    if (!st) {
        *out = p;
        return GR_OK;
    }
    p->plan = NULL; /* still the caller's */
    gr_planned_free(p);
    return gr_diag_error(d, (gr_loc){0}, GR_E_INVALID, "this plan is not a plan of graph '%s'", g->name);
}

const gr_node *gr_planned_node(const gr_planned *p, const gr_graph *g, const char *name)
{
    if (!strcmp(name, p->summary->name)) return p->summary;
    return p->validation && !strcmp(name, p->validation->name) ? p->validation : gr_graph_node(g, name);
}
