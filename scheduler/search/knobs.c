/* scheduler/search/knobs.c: what may be chosen for a role of ranks, and what that makes of its nodes. */
#include "scheduler/search/planner_parts.h"

#include "ops/base/configs.h"
#include "ops/forward.h"
#include "ops/rollout.h"
#include "ops/train.h"
#include "scheduler/search/transfers.h"

#include <stdlib.h>

enum { PREFILL_MIN = 16, RECOMPUTE_PARTS = 4 };

typedef enum knob_kind {
    KNOB_MICRO,
    KNOB_ROLLOUT,
    KNOB_HEAD,
    KNOB_RECOMPUTE,
    KNOB_GRADS, /* whether an update's gradients are summed whole on each rank, and reduced once */
    KNOB_SHARD,
    KNOB_NODE,      /* whether a trained model's shards are over the ranks of a node, or over all */
    KNOB_HOST_STEP, /* whether it is allowed: which buckets' steps are done there is a matter of residency */
} knob_kind;

typedef struct open_choice {
    knob_kind kind;
    const gr_node *node;   /* NULL: all passes */
    const gr_model *model; /* of KNOB_SHARD, KNOB_NODE and KNOB_HOST_STEP */
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

static uint32_t fixed_micro_tokens(const gr_node *n)
{
    if (n->op->passes) return ((const gr_logprob_cfg *)n->cfg)->micro_tokens;
    if (n->op->trains) return ((const gr_update_cfg *)n->cfg)->micro_tokens;
    return 0;
}

/* No graph has more: two for each update, one for any other node, three for a model. */
static size_t max_knobs(const gr_graph *g)
{
    return 2 + 2 * g->n_nodes + 3 * g->n_models;
}

/* Halvings until at most `to` is left. */
static uint32_t halvings(uint32_t from, uint32_t to)
{
    uint32_t n = 0;
    while (from > to) {
        from /= 2;
        n++;
    }
    return n;
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
    return m->gather != GR_GATHER_DIRECT ||
           m->residency.policy[GR_RESOURCE_ROLLOUT_WEIGHTS] > GR_POLICY_AUTO || host_step_is_asked_for(m);
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
        if (g->nodes[i]->model == m && g->nodes[i]->role != m->update->role) return true;
    return false;
}

static bool is_used(const gr_graph *g, const gr_model *m)
{
    for (size_t i = 0; i < g->n_nodes; i++)
        if (g->nodes[i]->model == m && gr_node_runs(g, g->nodes[i])) return true;
    return false;
}

/* Its weights are sent from the ranks that train it. */
static bool is_remote(const gr_graph *g, const gr_model *m)
{
    return gr_traffic_remote(g, g->view) >> m->index & 1;
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

static uint32_t level_of(const gr_knobs *s, const uint32_t *level, knob_kind kind, const gr_node *n)
{
    for (size_t i = 0; i < s->n; i++)
        if (s->open[i].kind == kind && (!s->open[i].node || s->open[i].node == n)) return level[i];
    return 0;
}

static bool is_open(const gr_knobs *s, knob_kind kind, const gr_node *n)
{
    for (size_t i = 0; i < s->n; i++)
        if (s->open[i].kind == kind && s->open[i].node == n) return true;
    return false;
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
    return s->g->ranks > 1 && copy_is_asked_for(m) && !is_remote(s->g, m);
}

/* How many ranks its shards are spread over; 0: all. */
static uint32_t shards_of(const gr_knobs *s, const uint32_t *level, const gr_model *m)
{
    uint32_t node = node_ranks(s->g);
    if (!node || m->shard == GR_SHARD_ALL || gr_model_is_sent(s->g, m)) return 0;
    if (m->shard == GR_SHARD_NODE) return node;
    if (is_trained(s->g, m))
        return s->grouped >> m->index & 1 && !level_about(s, level, KNOB_NODE, m) ? node : 0;
    return level_about(s, level, KNOB_SHARD, m) == 1 && node > 1 ? node : 0;
}

/* Of ranks, the step of one has its shard of everything. */
static bool may_step_on_host(const gr_knobs *s, const uint32_t *level, const gr_model *m)
{
    if (s->g->ranks > 1 && !is_sharded(s, level, m)) return false;
    if (host_step_is_asked_for(m) || !gr_host_step_changes_bits(s->o->kernels)) return true;
    return level_about(s, level, KNOB_HOST_STEP, m) > 0;
}

/* A validation's rollout follows the first of the iterations: their pools need not be chosen apart. */
static const gr_node *pacemaker(const gr_graph *g, const gr_node *n)
{
    for (size_t i = 0; n->every && i < g->n_nodes; i++)
        if (g->nodes[i]->op->generates && !g->nodes[i]->every && gr_node_runs(g, g->nodes[i]))
            return g->nodes[i];
    return n;
}

static uint32_t recomputed_layers(const gr_node *n, uint32_t level)
{
    return (n->model->shape.layers * level + RECOMPUTE_PARTS - 1) / RECOMPUTE_PARTS;
}

/* all: prompts are read many at a time, where the device keeps the state of decode steps; else one by one. */
static void choose_rollout(const gr_node *n, const gr_pass_sizes *sizes, bool all, uint32_t level,
                           gr_choices *c)
{
    const gr_generate_cfg *cfg = n->cfg;
    uint32_t most = cfg->concurrent ? cfg->concurrent : sizes->concurrent * n->parts;
    c->concurrent = GR_MAX(GR_MIN(most, n->task.seqs) >> level, 1u);
    uint32_t prompt = GR_MAX(n->bounds.prompt_tokens, 2u) - 1; /* the last token begins the decoding */
    uint64_t prompts = all ? (uint64_t)prompt * GR_MAX(n->task.groups, 1u) : prompt;
    c->prefill_tokens =
        (uint32_t)GR_MIN(GR_MAX(sizes->prefill_tokens >> level, (uint32_t)PREFILL_MIN), prompts);
    uint64_t blocks =
        cfg->kv_blocks ? cfg->kv_blocks : gr_rollout_blocks_max(&n->task, cfg->samples, c->concurrent);
    uint32_t least = gr_rollout_blocks_min(&n->bounds);
    if (!cfg->kv_blocks && c->concurrent == 1) blocks = least;
    c->kv_blocks = (uint32_t)GR_MIN(GR_MAX(blocks, (uint64_t)least), (uint64_t)UINT32_MAX - 1);
}

/* Rows that a head is ever asked about at once, the other choices made. */
static uint32_t most_head_rows(const gr_node *n, const gr_choices *c)
{
    uint32_t rows = UINT32_MAX;
    if (n->op->generates) rows = GR_MIN(c->concurrent, n->task.seqs);
    if (n->op->trains) rows = gr_train_rows(n, c);
    if (n->op->passes) rows = gr_forward_bounds(n, c).rows;
    return GR_MAX(rows, 1u);
}

static uint32_t usual_head_rows(const gr_node *n, const gr_pass_sizes *sizes)
{
    const uint32_t vocab = n->model ? n->model->shape.vocab : 1;
    uint32_t rows = sizes->head_rows;
    if (!sizes->head_sums || !n->op->passes) rows = GR_MIN(rows, GR_MAX(sizes->head_elems / vocab, 16u));
    return rows > sizes->head_step ? rows - rows % sizes->head_step : rows;
}

static gr_choices choose(const gr_knobs *s, const uint32_t *level, const gr_node *n)
{
    gr_choices c = {.threads = s->o->threads, .leaves = s->g->canonical ? GR_LEAVES / s->g->ranks : 0};
    const gr_pass_sizes *sizes = &s->o->kernels->sizes;
    if (n->model) {
        c.sharded = is_sharded(s, level, n->model);
        c.shards = shards_of(s, level, n->model);
    }
    if (n->op->trains) {
        c.recompute = recomputed_layers(n, level_of(s, level, KNOB_RECOMPUTE, n));
        c.host_step = may_step_on_host(s, level, n->model);
        c.whole_grads = is_open(s, KNOB_GRADS, n) && c.shards != 1 && !level_of(s, level, KNOB_GRADS, n);
    }
    if (n->op->generates)
        choose_rollout(n, sizes, s->o->kernels->steps != NULL,
                       level_of(s, level, KNOB_ROLLOUT, pacemaker(s->g, n)), &c);
    if (gr_node_is_pass(n)) {
        uint32_t tokens = sizes->micro_tokens >> level_of(s, level, KNOB_MICRO, n);
        c.micro_tokens = fixed_micro_tokens(n) ? fixed_micro_tokens(n) : GR_MAX(tokens, gr_node_longest(n));
    }
    const uint32_t rows = GR_MIN(usual_head_rows(n, sizes), most_head_rows(n, &c));
    c.head_rows = GR_MAX(rows >> (2 * level_of(s, level, KNOB_HEAD, n)), 1u);
    return c;
}

/* Of the first pass whose cuts are open: a micro-batch holds its longest sequence. */
static uint32_t chosen_micro_tokens(const gr_graph *g, const gr_kernels *k, uint32_t level)
{
    const gr_node *n = NULL;
    for (size_t i = g->n_nodes; i-- > 0;)
        if (gr_node_is_pass(g->nodes[i]) && gr_node_runs(g, g->nodes[i]) && !fixed_micro_tokens(g->nodes[i]))
            n = g->nodes[i];
    return GR_MAX(k->sizes.micro_tokens >> level, gr_node_longest(n));
}

static void describe(void *user, size_t knob, uint32_t level, gr_str *out)
{
    const gr_knobs *s = user;
    uint32_t *levels = gr_calloc(s->n, sizeof(*levels));
    levels[knob] = level;
    const gr_node *n = s->open[knob].node;
    switch (s->open[knob].kind) {
    case KNOB_MICRO:
        gr_str_printf(out, "%u", chosen_micro_tokens(s->g, s->o->kernels, level));
        break;
    case KNOB_HEAD:
        gr_str_printf(out, "1/%u of its rows", 1u << 2 * level);
        break;
    case KNOB_RECOMPUTE:
        gr_str_printf(out, "%u of %u layers", recomputed_layers(n, level), n->model->shape.layers);
        break;
    case KNOB_GRADS:
        gr_str_puts(out, "reduced in each micro-batch");
        break;
    case KNOB_HOST_STEP:
        gr_str_puts(out, "on the host where that saves time");
        break;
    case KNOB_SHARD:
        gr_str_printf(out, "a shard on each of %u ranks, gathered bucket by bucket",
                      shards_of(s, levels, s->open[knob].model) ? shards_of(s, levels, s->open[knob].model)
                                                                : s->g->ranks);
        break;
    case KNOB_NODE:
        gr_str_printf(out, "on each of %u ranks, not on those of every host anew", s->g->ranks);
        break;
    case KNOB_ROLLOUT: {
        gr_choices c = choose(s, levels, n);
        gr_str_printf(out, "%u blocks, %u sequences at once", c.kv_blocks, c.concurrent);
        break;
    }
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
    gr_hardware hw = o->hardware;
    uint32_t hosts = gr_graph_one_role(view) ? o->hosts : view->roles[view->view].hosts;
    hw.near = o->hardware.link;
    hw.link = gr_hardware_link(&o->hardware, hosts, view->ranks);
    hw.copy = gr_hardware_copy(&o->hardware, GR_MAX(view->ranks / GR_MAX(hosts, 1u), 1u));
    return hw;
}

/* Time of all collectives of an iteration. */
static double collective_seconds(const gr_tasks *p, const gr_hardware *hw)
{
    double sum = 0, times[GR_LEN(p->loops) + 1] = {1};
    uint32_t end[GR_LEN(p->loops) + 1], depth = 0;
    for (uint32_t w = 0; w < gr_tasks_steady(p); w++) {
        const gr_task *task = &p->task[w];
        while (depth && w > end[depth]) depth--;
        if (task->moved) sum += times[depth] * 1e-9 * (double)gr_task_ns(task, hw);
        if (task->body_last == GR_NONE) continue;
        depth++;
        end[depth] = task->body_last;
        times[depth] = times[depth - 1] * task->trips_expected;
    }
    return sum;
}

/* What a rank keeps of a model at least: weights and, trained, gradients and state. */
static uint64_t kept_bytes(const gr_graph *g, const gr_kernels *k, const gr_model *m, uint32_t shards)
{
    static const gr_model_part parts[] = {GR_PART_PARAMS, GR_PART_GRADS, GR_PART_STATE};
    uint64_t bytes = 0;
    for (uint32_t b = 0; b < gr_model_buckets(&m->shape); b++)
        for (size_t i = 0; i < (is_trained(g, m) ? GR_LEN(parts) : 1); i++)
            bytes += gr_part_bytes(k, m, parts[i], b) / shards;
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
        if (!is_used(g, m) || !is_trained(g, m) || gr_model_is_sent(g, m) || m->shard != GR_SHARD_AUTO)
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

/* ---- gradients that are reduced once a mini-batch ------------------------------------------------------ */

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

/* Of an update by itself, in one of the two forms. */
static uint64_t update_ns(const gr_knobs *s, const gr_node *n, gr_choices *how, bool whole)
{
    const gr_hardware hw = gr_plan_hardware(s->o, s->g);
    how[n->index].whole_grads = whole;
    gr_tasks *p = gr_lower_node(s->g, s->o->kernels, how, n);
    const uint64_t ns = resident_ns(p, &hw);
    gr_tasks_free(p);
    return ns;
}

/* Whether an update is predicted to be faster where each rank sums whole gradients, and reduces them beside
 * the last of its micro-batches: else there is a reduction of each bucket beside every one, which takes of
 * their time. Canonical sums have an order of their own. */
static bool whole_is_faster(const gr_knobs *s, const gr_node *n)
{
    const gr_graph *g = s->g;
    if (!n->op->trains || g->ranks < 2 || g->canonical) return false;
    uint32_t *level = gr_calloc(max_knobs(g), sizeof(*level));
    gr_choices *how = gr_calloc(gr_n_choices(g), sizeof(*how));
    gr_knobs_choose(s, level, how);
    const gr_choices *own = &how[n->index];
    bool faster = own->shards != 1 && gr_train_micro_batches(n, own) > 1 &&
                  update_ns(s, n, how, true) < update_ns(s, n, how, false);
    free(how);
    free(level);
    return faster;
}

/* ---- which knobs there are ----------------------------------------------------------------------------- */

static void add_knob(gr_knobs *s, knob_kind kind, const gr_node *n, uint32_t levels, bool bits,
                     const char *name)
{
    s->open[s->n] = (open_choice){kind, n, NULL};
    s->knobs[s->n++] =
        (gr_knob){.name = name, .n_levels = levels, .bits = bits ? GR_BITS_DIFFER : GR_BITS_SAME};
}

/* Levels: whole on every rank; a shard on each; and where nodes are to choose, of an untrained model, first
 * on each of a node, then on each of all. */
static void add_shards(gr_knobs *s)
{
    for (size_t i = 0; i < s->g->n_models && s->g->ranks > 1; i++) {
        const gr_model *m = s->g->models[i];
        if (!is_used(s->g, m) || is_remote(s->g, m) || copy_is_asked_for(m)) continue;
        bool nodes = node_ranks(s->g) > 1 && !is_trained(s->g, m) && m->shard == GR_SHARD_AUTO;
        add_knob(s, KNOB_SHARD, NULL, nodes ? 3 : 2, false,
                 gr_arena_printf(s->arena, "%s: weights", m->name));
        s->open[s->n - 1].model = m;
    }
}

/* Where bits do not change, a step may always be done on the host. */
static void add_host_steps(gr_knobs *s)
{
    for (size_t i = 0; i < s->g->n_models && gr_host_step_changes_bits(s->o->kernels); i++) {
        const gr_model *m = s->g->models[i];
        if (!is_trained(s->g, m) || policy_of_optimizer(s, m) != GR_POLICY_AUTO) continue;
        add_knob(s, KNOB_HOST_STEP, NULL, 2, true, gr_arena_printf(s->arena, "%s: optimizer step", m->name));
        s->open[s->n - 1].model = m;
    }
}

/* Over all ranks there is less on each. */
static void add_nodes(gr_knobs *s)
{
    for (size_t i = 0; i < s->g->n_models; i++) {
        const gr_model *m = s->g->models[i];
        if (!(s->grouped >> m->index & 1) || m->shard != GR_SHARD_AUTO) continue;
        add_knob(s, KNOB_NODE, NULL, 2, !s->g->canonical, gr_arena_printf(s->arena, "%s: shards", m->name));
        s->open[s->n - 1].model = m;
    }
}

/* What is predicted to be faster takes memory, and has other bits: where these are to be kept, no budget may
 * have a say in it, and gradients are reduced in the form that fits them all. */
static void add_grads(gr_knobs *s)
{
    const gr_graph *g = s->g;
    for (size_t i = 0; i < g->n_nodes && !g->run.keep_bits; i++) {
        if (!gr_node_runs(g, g->nodes[i]) || !whole_is_faster(s, g->nodes[i])) continue;
        add_knob(s, KNOB_GRADS, g->nodes[i], 2, true,
                 gr_arena_printf(s->arena, "%s: gradients", g->nodes[i]->name));
        s->knobs[s->n - 1].bits = GR_BITS_SPARE;
    }
}

static uint32_t micro_levels(const gr_graph *g, const gr_kernels *k)
{
    uint32_t levels = 0;
    for (size_t i = 0; i < g->n_nodes; i++)
        if (gr_node_is_pass(g->nodes[i]) && gr_node_runs(g, g->nodes[i]) && !fixed_micro_tokens(g->nodes[i]))
            levels = GR_MAX(levels, 1 + halvings(k->sizes.micro_tokens, gr_node_longest(g->nodes[i])));
    return levels;
}

static bool sets_pace(const gr_graph *g, const gr_node *n)
{
    return pacemaker(g, n) == n;
}

static void find_knobs(gr_knobs *s)
{
    const gr_graph *g = s->g;
    const gr_kernels *k = s->o->kernels;
    s->knobs = gr_arena_alloc(s->arena, max_knobs(g) * sizeof(*s->knobs));
    s->open = gr_arena_alloc(s->arena, max_knobs(g) * sizeof(*s->open));
    bool head = false, head_bits = false;
    prefer_nodes(s);
    for (size_t i = 0; i < g->n_nodes; i++) {
        const gr_node *n = g->nodes[i];
        if (!gr_node_runs(g, n)) continue;
        head = head || n->model;
        head_bits = head_bits || gr_head_changes_bits(n, k);
        if (n->op->generates && sets_pace(g, n))
            add_knob(s, KNOB_ROLLOUT, n, 1 + halvings(k->sizes.concurrent * n->parts, 1), !k->invariant,
                     gr_arena_printf(s->arena, "%s: KV pool", n->name));
        if (n->op->trains)
            add_knob(s, KNOB_RECOMPUTE, n, 1 + RECOMPUTE_PARTS, false,
                     gr_arena_printf(s->arena, "%s: recomputation", n->name));
    }
    add_shards(s);
    add_nodes(s);
    add_host_steps(s);
    add_grads(s);
    if (head) add_knob(s, KNOB_HEAD, NULL, 4, head_bits, "head chunk");
    if (micro_levels(g, k) < 2) return;
    bool bits = false;
    for (size_t i = 0; i < g->n_nodes; i++)
        bits = bits || (gr_node_runs(g, g->nodes[i]) && gr_cuts_change_bits(g, g->nodes[i], k) &&
                        !fixed_micro_tokens(g->nodes[i]));
    add_knob(s, KNOB_MICRO, NULL, micro_levels(g, k), bits, "micro-batch tokens");
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
