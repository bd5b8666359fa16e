/* scheduler/search/knobs.c: what may be chosen for a role of ranks, and what that makes of its nodes. */
#include "scheduler/search/planner_parts.h"

#include "ops/parallel/parts.h"
#include "scheduler/search/transfers.h"
#include "scheduler/cost/cost.h"

#include <stdlib.h>
#include <string.h>

typedef enum knob_kind {
    KNOB_NODE,      /* a tunable of a node */
    KNOB_SHARD,     /* whether a model's weights are sharded */
    KNOB_REACH,     /* whether a trained model's shards are over the ranks of a node, or over all */
    KNOB_HOST_STEP, /* whether it is allowed: which buckets' steps are done there is a matter of residency */
} knob_kind;

typedef struct open_choice {
    knob_kind kind;
    gr_tunable tunable;    /* of KNOB_NODE */
    const gr_node *node;   /* of KNOB_NODE */
    const gr_model *model; /* of the others */
} open_choice;

struct gr_knobs {
    const gr_graph *g; /* as the role sees it */
    const gr_plan_options *o;
    gr_arena *arena;
    const gr_planned *p;
    const gr_traffic *traffic; /* NULL: programs are of all nodes, and nothing crosses */
    gr_knob *knobs;
    open_choice *open; /* [n] what each knob is about */
    size_t n;
    uint64_t grouped; /* bits by model: trained, and better off with shards over the ranks of a node */
};

/* No graph has more: those of its nodes, three for a model. */
static size_t max_knobs(const gr_graph *g)
{
    return GR_TUNABLES_MAX * g->n_nodes + 3 * g->n_models;
}

/* ---- what a model is to the ranks of a role ----------------------------------------------------------- */

/* The optimizer step is to be done on the host. */
static bool host_step_is_asked_for(const gr_model *m)
{
    return m->residency.policy[GR_RESOURCE_OPTIMIZER] == GR_POLICY_HOST;
}

/* A rollout's copy of its own, or a way to fill it, is asked for: the weights that train are sharded then; or
 * they are stepped on the host, which has the shard alone. */
static bool copy_is_asked_for(const gr_model *m)
{
    return m->sharding.gather != GR_GATHER_DIRECT ||
           m->residency.policy[GR_RESOURCE_ROLLOUT_WEIGHTS] > GR_POLICY_AUTO || host_step_is_asked_for(m);
}

/* Whether its weights are merged with adapters, or into those of one that has them, or made FP8: all of these
 * are whole. */
static bool is_merged(const gr_graph *g, const gr_model *m)
{
    bool merged = gr_model_has_lora(m) || m->precision.rollout || m->precision.train;
    for (size_t i = 0; i < g->n_models; i++)
        merged = merged || g->models[i]->lora.base == m || g->models[i]->lora.ends == m;
    return merged;
}

static gr_policy policy_of_optimizer(const gr_knobs *s, const gr_model *m)
{
    int own = m->residency.policy[GR_RESOURCE_OPTIMIZER];
    return own < 0 ? s->o->policy : (gr_policy)own;
}

/* Its weights are sent to other ranks: from shards over all that train it, or whole. */
bool gr_model_is_sent(const gr_graph *g, const gr_model *m)
{
    for (size_t i = 0; i < g->n_nodes && m->update; i++)
        if (g->nodes[i]->model == m && g->nodes[i]->placement.role != m->update->placement.role) return true;
    return false;
}

static bool is_used(const gr_graph *g, const gr_model *m)
{
    for (size_t i = 0; i < g->n_nodes; i++)
        if (g->nodes[i]->model == m && gr_node_runs(g, g->nodes[i])) return true;
    return false;
}

static bool is_trained(const gr_graph *g, const gr_model *m)
{
    for (size_t i = 0; i < g->n_nodes; i++)
        if (g->nodes[i]->model == m && g->nodes[i]->op->trains) return true;
    return false;
}

/* Ranks of a node, of several; 0: there is one, or they are uneven. */
static uint32_t node_ranks(const gr_graph *g)
{
    return g->roles[g->n_roles > 1 ? g->view : 0].node;
}

/* ---- what a level of each knob means ------------------------------------------------------------------- */

/* Which knob is a tunable of a node; NULL: it is not open. */
static const open_choice *knob_of(const gr_knobs *s, const gr_node *n, const gr_tunable *t)
{
    for (size_t i = 0; i < s->n; i++)
        if (s->open[i].kind == KNOB_NODE && s->open[i].node == n && !strcmp(s->open[i].tunable.name, t->name))
            return &s->open[i];
    return NULL;
}

/* The level of a choice about a model; 0 where it is not open. */
static uint32_t level_about(const gr_knobs *s, const uint32_t *level, knob_kind kind, const gr_model *m)
{
    for (size_t i = 0; i < s->n; i++)
        if (s->open[i].kind == kind && s->open[i].model == m) return level[i];
    return 0;
}

static bool is_sharded(const gr_knobs *s, const uint32_t *level, const gr_model *m)
{
    if (level_about(s, level, KNOB_SHARD, m)) return true;
    return s->g->ranks > 1 && copy_is_asked_for(m) && !gr_model_is_away(s->g, m) && !is_merged(s->g, m);
}

/* How many ranks its shards are spread over; 0: all. */
static uint32_t shards_of(const gr_knobs *s, const uint32_t *level, const gr_model *m)
{
    const uint32_t node = node_ranks(s->g);
    if (m->follows) m = m->follows->second; /* they have the same elements */
    if (!node || m->sharding.over == GR_SHARD_ALL || gr_model_is_sent(s->g, m)) return 0;
    if (m->sharding.over == GR_SHARD_NODE) return node;
    if (gr_mesh_size(&m->sharding.mesh, GR_AXIS_PIPELINE) > 1) return 0; /* stages are of all ranks */
    if (is_trained(s->g, m))
        return s->grouped >> m->index & 1 && !level_about(s, level, KNOB_REACH, m) ? node : 0;
    return level_about(s, level, KNOB_SHARD, m) == 1 && node > 1 ? node : 0;
}

/* Of ranks, the step of one has its shard of everything. */
static bool may_step_on_host(const gr_knobs *s, const uint32_t *level, const gr_model *m)
{
    if (s->g->ranks > 1 && !is_sharded(s, level, m)) return false;
    if (m->train.optimizer == GR_OPTIM_MUON) return false; /* its products are the device's */
    if (host_step_is_asked_for(m) || !gr_host_step_changes_bits(s->o->kernels)) return true;
    return level_about(s, level, KNOB_HOST_STEP, m) > 0;
}

/* A validation's rollout follows the first of the iterations: their pools need not be chosen apart. */
static const gr_node *pacemaker(const gr_graph *g, const gr_node *n)
{
    for (size_t i = 0; n->timing.every && n->op->generates && i < g->n_nodes; i++)
        if (g->nodes[i]->op->generates && !g->nodes[i]->timing.every && gr_node_runs(g, g->nodes[i]))
            return g->nodes[i];
    return n;
}

/* Of its tunables those whose knobs are open are set by them. */
static void tune(const gr_knobs *s, const uint32_t *level, const gr_node *n, gr_choices *c)
{
    const gr_kernels *k = s->o->kernels;
    gr_tunable list[GR_TUNABLES_MAX];
    const size_t count = n->op->tunables(s->g, n, k, c, list);
    for (size_t i = 0; i < count; i++) {
        const open_choice *knob = knob_of(s, pacemaker(s->g, n), &list[i]);
        if (knob || list[i].bits != GR_BITS_SPARE) list[i].set(n, k, knob ? level[knob - s->open] : 0, c);
    }
}

static gr_choices choose(const gr_knobs *s, const uint32_t *level, const gr_node *n)
{
    gr_choices c = {.threads = s->o->threads, .leaves = s->g->canonical ? GR_LEAVES / s->g->ranks : 0};
    if (n->model) {
        c.sharded = is_sharded(s, level, n->model);
        c.shards = shards_of(s, level, n->model);
    }
    if (n->op->trains) c.host_step = may_step_on_host(s, level, n->model);
    if (n->op->default_choice) n->op->default_choice(n, s->o->kernels, &c);
    if (n->op->tunables) tune(s, level, n, &c);
    return c;
}

static void describe(void *user, size_t knob, uint32_t level, gr_str *out)
{
    const gr_knobs *s = user;
    const open_choice *open = &s->open[knob];
    uint32_t *levels = gr_calloc(s->n, sizeof(*levels));
    levels[knob] = level;
    switch (open->kind) {
    case KNOB_NODE: {
        const gr_choices c = choose(s, levels, open->node);
        open->tunable.describe(open->node, level, &c, out);
        break;
    }
    case KNOB_HOST_STEP:
        gr_str_puts(out, "on the host where that saves time");
        break;
    case KNOB_SHARD: {
        const uint32_t shards = shards_of(s, levels, open->model);
        gr_str_printf(out, "a shard on each of %u ranks, gathered bucket by bucket",
                      shards ? shards : s->g->ranks);
        break;
    }
    case KNOB_REACH:
        gr_str_printf(out, "on each of %u ranks, not on those of every host anew", s->g->ranks);
        break;
    }
    free(levels);
}

void gr_knobs_choose(const gr_knobs *s, const uint32_t *level, gr_choices *how)
{
    for (size_t i = 0; i < gr_n_choices(s->g); i++)
        how[i] = choose(s, level, i < s->g->n_nodes ? s->g->nodes[i] : s->p->summary);
}

static gr_tasks *build(void *user, const uint32_t *level)
{
    const gr_knobs *s = user;
    gr_choices *how = gr_calloc(gr_n_choices(s->g), sizeof(*how));
    gr_knobs_choose(s, level, how);
    gr_tasks *p = gr_lower(s->g, s->o->kernels, how, s->p, s->traffic);
    free(how);
    return p;
}

/* ---- shards over the ranks of a node ------------------------------------------------------------------- */

gr_hardware gr_plan_hardware(const gr_plan_options *o, const gr_graph *view)
{
    const uint32_t hosts = gr_graph_one_role(view) ? o->hosts : view->roles[view->view].hosts;
    return gr_hardware_for(&o->hardware, hosts, view->ranks);
}

/* Time of all collectives of an iteration. */
static double collective_seconds(const gr_tasks *p, const gr_hardware *hw)
{
    double sum = 0, times[GR_LEN(p->loops) + 1] = {1};
    uint32_t end[GR_LEN(p->loops) + 1], depth = 0;
    for (uint32_t w = 0; w < gr_tasks_steady(p); w++) {
        const gr_task *task = &p->task[w];
        while (depth && w > end[depth]) depth--;
        if (task->comm.moved) sum += times[depth] * 1e-9 * (double)gr_task_ns(task, hw);
        if (task->loop.body_last == GR_NONE) continue;
        depth++;
        end[depth] = task->loop.body_last;
        times[depth] = times[depth - 1] * task->loop.trips_expected;
    }
    return sum;
}

/* What a rank keeps of a model at least: weights and, trained, gradients and state. */
static uint64_t kept_bytes(const gr_graph *g, const gr_kernels *k, const gr_model *m, uint32_t shards)
{
    static const gr_model_part parts[] = {GR_PART_PARAMS, GR_PART_STATE, GR_PART_GRADS};
    const size_t n = is_trained(g, m) ? GR_LEN(parts) : m->follows ? 2 : 1;
    uint64_t bytes = 0;
    for (uint32_t b = 0; b < gr_model_buckets(&m->shape); b++)
        for (size_t i = 0; i < n; i++) {
            const gr_model_part part = i || !gr_bucket_is_closed(m, b) ? parts[i] : GR_PART_NF4;
            bytes += gr_part_bytes(k, m, part, b) / shards;
        }
    return bytes;
}

/* Of trained models, those for which shards over the ranks of a node are predicted to take less time in
 * collectives, as long as what is kept takes half of a device at most. This follows from graph and hardware
 * alone, never from a budget, for it is part of what fixes the bits. */
static void prefer_nodes(gr_knobs *s)
{
    const gr_graph *g = s->g;
    const gr_hardware hw = gr_plan_hardware(s->o, g);
    uint32_t node = node_ranks(g), *level = gr_calloc(max_knobs(g), sizeof(*level));
    uint64_t kept = 0, preferred = 0;
    for (size_t i = 0; i < g->n_models && node; i++)
        if (is_used(g, g->models[i])) kept += kept_bytes(g, s->o->kernels, g->models[i], node);
    for (size_t i = 0; i < g->n_models && node && kept <= hw.device_bytes / 2; i++) {
        double seconds[2];
        const gr_model *m = g->models[i];
        if (!is_used(g, m) || !is_trained(g, m) || gr_model_is_sent(g, m) ||
            m->sharding.over != GR_SHARD_AUTO)
            continue;
        for (int over_node = 0; over_node < 2; over_node++) {
            s->grouped = over_node ? 1ULL << m->index : 0;
            gr_tasks *p = build(s, level);
            seconds[over_node] = collective_seconds(p, &hw);
            gr_tasks_free(p);
        }
        if (seconds[1] < seconds[0]) preferred |= 1ULL << m->index;
    }
    s->grouped = preferred;
    free(level);
}

/* ---- luxuries: gradients that are reduced once a mini-batch, drafts
 * -------------------------------------------- */

/* Predicted time of a program of which everything is resident. */
static uint64_t resident_ns(const gr_tasks *p, const gr_hardware *hw)
{
    gr_analysis *f = gr_analysis_new(p, hw);
    gr_transfers l = {0};
    gr_choice *all = gr_calloc(f->n_groups + 1, sizeof(*all));
    for (uint32_t i = 0; i < f->n_groups; i++) all[i].parts = GR_PARTS;
    gr_transfers_make(&l, f, all, 1);
    const uint64_t ns = l.ns;
    free(all);
    gr_transfers_release(&l);
    gr_analysis_free(f);
    return ns;
}

/* Of a node by itself, with a level of a luxury. */
static uint64_t node_ns(const gr_knobs *s, const gr_node *n, const gr_tunable *luxury, uint32_t level,
                        gr_choices *how)
{
    const gr_hardware hw = gr_plan_hardware(s->o, s->g);
    luxury->set(n, s->o->kernels, level, &how[n->index]);
    gr_tasks *p = gr_lower_node(s->g, s->o->kernels, how, n);
    const uint64_t ns = resident_ns(p, &hw);
    gr_tasks_free(p);
    return ns;
}

/* Whether a node is predicted to be faster with its luxury. */
static bool is_worth_it(const gr_knobs *s, const gr_node *n, const gr_tunable *luxury)
{
    uint32_t *level = gr_calloc(max_knobs(s->g), sizeof(*level));
    gr_choices *how = gr_calloc(gr_n_choices(s->g), sizeof(*how));
    gr_knobs_choose(s, level, how);
    const bool faster = node_ns(s, n, luxury, 0, how) < node_ns(s, n, luxury, 1, how);
    free(how);
    free(level);
    return faster;
}

/* ---- which knobs there are ----------------------------------------------------------------------------- */

static void add_knob(gr_knobs *s, const open_choice *open, uint32_t levels, gr_level_bits bits,
                     const char *name)
{
    if (levels < 2) return;
    s->open[s->n] = *open;
    s->knobs[s->n++] = (gr_knob){.name = name, .n_levels = levels, .bits = bits};
}

static void add_model_knob(gr_knobs *s, knob_kind kind, const gr_model *m, uint32_t levels, bool bits,
                           const char *what)
{
    add_knob(s, &(open_choice){.kind = kind, .model = m}, levels, bits ? GR_BITS_DIFFER : GR_BITS_SAME,
             gr_arena_printf(s->arena, "%s: %s", m->name, what));
}

static void add_tunable(gr_knobs *s, const gr_node *n, const gr_tunable *t)
{
    add_knob(s, &(open_choice){.kind = KNOB_NODE, .tunable = *t, .node = n}, t->n_levels, t->bits,
             gr_arena_printf(s->arena, "%s: %s", n->name, t->name));
}

/* Levels: whole on every rank; a shard on each; and where nodes are to choose, of an untrained model, first
 * on each of a node, then on each of all. */
static void add_shards(gr_knobs *s)
{
    for (size_t i = 0; i < s->g->n_models && s->g->ranks > 1; i++) {
        const gr_model *m = s->g->models[i];
        if (!is_used(s->g, m) || gr_model_is_away(s->g, m) || copy_is_asked_for(m) || is_merged(s->g, m))
            continue;
        bool nodes =
            node_ranks(s->g) > 1 && !is_trained(s->g, m) && !m->follows && m->sharding.over == GR_SHARD_AUTO;
        add_model_knob(s, KNOB_SHARD, m, nodes ? 3 : 2, false, "weights");
    }
}

/* Where bits do not change, a step may always be done on the host. */
static void add_host_steps(gr_knobs *s)
{
    for (size_t i = 0; i < s->g->n_models && gr_host_step_changes_bits(s->o->kernels); i++) {
        const gr_model *m = s->g->models[i];
        if (!is_trained(s->g, m) || policy_of_optimizer(s, m) != GR_POLICY_AUTO) continue;
        if (m->train.optimizer == GR_OPTIM_MUON) continue;
        add_model_knob(s, KNOB_HOST_STEP, m, 2, true, "optimizer step");
    }
}

/* Over all ranks there is less on each. */
static void add_nodes(gr_knobs *s)
{
    for (size_t i = 0; i < s->g->n_models; i++) {
        const gr_model *m = s->g->models[i];
        if (!(s->grouped >> m->index & 1) || m->sharding.over != GR_SHARD_AUTO) continue;
        add_model_knob(s, KNOB_REACH, m, 2, !s->g->canonical, "shards");
    }
}

/* What is predicted to be faster takes memory, and may have other bits: where these are to be kept, no budget
 * may have a say in it, and it is left out. */
static bool is_wanted(const gr_knobs *s, const gr_node *n, const gr_tunable *t)
{
    if (t->bits != GR_BITS_SPARE) return true;
    return (t->exact || s->g->run.bits != GR_BITS_KEEP) && is_worth_it(s, n, t);
}

static void add_tunables_of(gr_knobs *s, const gr_node *n, bool luxuries)
{
    uint32_t *first = gr_calloc(max_knobs(s->g), sizeof(*first));
    gr_tunable list[GR_TUNABLES_MAX];
    const gr_choices c = choose(s, first, n);
    const size_t count = n->op->tunables(s->g, n, s->o->kernels, &c, list);
    for (size_t i = 0; i < count; i++)
        if ((list[i].bits == GR_BITS_SPARE) == luxuries && is_wanted(s, n, &list[i]))
            add_tunable(s, n, &list[i]);
    free(first);
}

static void add_tunables(gr_knobs *s, bool luxuries)
{
    for (size_t i = 0; i < s->g->n_nodes; i++) {
        const gr_node *n = s->g->nodes[i];
        if (gr_node_runs(s->g, n) && n->op->tunables && pacemaker(s->g, n) == n)
            add_tunables_of(s, n, luxuries);
    }
}

static void find_knobs(gr_knobs *s)
{
    s->knobs = gr_arena_alloc(s->arena, max_knobs(s->g) * sizeof(*s->knobs));
    s->open = gr_arena_alloc(s->arena, max_knobs(s->g) * sizeof(*s->open));
    prefer_nodes(s);
    add_tunables(s, false);
    add_shards(s);
    add_nodes(s);
    add_host_steps(s);
    add_tunables(s, true);
}

gr_knobs *gr_knobs_new(const gr_planned *p, const gr_plan_options *o, const gr_traffic *traffic,
                       gr_arena *arena)
{
    gr_knobs *s = gr_arena_alloc(arena, sizeof(*s));
    *s = (gr_knobs){.g = p->graph, .o = o, .arena = arena, .p = p, .traffic = traffic};
    find_knobs(s);
    return s;
}

gr_tasks_source gr_knobs_source(gr_knobs *s)
{
    return (gr_tasks_source){s, s->knobs, s->n, build, describe};
}
