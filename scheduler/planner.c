#include "scheduler/planner.h"

#include "ops/configs.h"
#include "ops/forward.h"
#include "ops/rollout.h"
#include "ops/select.h"
#include "ops/summary.h"
#include "ops/train.h"
#include "scheduler/classes.h"
#include "scheduler/policy.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <xxhash.h>

enum { PREFILL_MIN = 16, RECOMPUTE_PARTS = 4 };

/* ---- open choices ----------------------------------------------------------------------------------------
 */

typedef enum knob_kind {
    KNOB_MICRO,
    KNOB_ROLLOUT,
    KNOB_HEAD,
    KNOB_RECOMPUTE,
    KNOB_SHARD,
    KNOB_NODE,      /* whether a trained model's shards are over the ranks of a node, or over all */
    KNOB_HOST_STEP, /* whether it is allowed: which buckets' steps are done there is a matter of residency */
} knob_kind;

typedef struct open_choice {
    knob_kind kind;
    const gr_node *node;   /* NULL: all passes */
    const gr_model *model; /* of KNOB_SHARD, KNOB_NODE and KNOB_HOST_STEP */
} open_choice;

typedef struct source {
    const gr_graph *g;
    const gr_plan_options *o;
    gr_pool *pool;
    const gr_planned *p;
    const gr_traffic *traffic;
    gr_knob *knobs;
    open_choice *open;
    size_t n;
    uint64_t grouped; /* bits by model: trained, and better off with shards over the ranks of a node */
} source;

static bool is_op(const gr_node *n, const char *op)
{
    return !strcmp(n->op->name, op);
}

static uint32_t longest(const gr_node *n)
{
    return n->rows->bounds.prompt_tokens + n->rows->bounds.response_tokens;
}

/* Passes forward over rows, all with one config. */
static bool is_forward(const gr_node *n)
{
    return is_op(n, "logprob") || is_op(n, "value") || is_op(n, "score");
}

static uint32_t fixed_micro_tokens(const gr_node *n)
{
    if (is_forward(n)) return ((const gr_logprob_cfg *)n->cfg)->micro_tokens;
    if (is_op(n, "update")) return ((const gr_update_cfg *)n->cfg)->micro_tokens;
    return 0;
}

static bool is_pass(const gr_node *n)
{
    return is_forward(n) || is_op(n, "update");
}

/* Whether the ranks that a plan is for run it. */
static bool runs_here(const gr_graph *g, const gr_node *n)
{
    return gr_node_runs(g, n);
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

/* Where the kernels are batch-invariant, passes are cut where the planner chooses without a change of bits;
 * those of an update where every gradient is one chain of additions in the order of tokens. But a tied
 * embedding gets those of the head and of the embedding, by turns a pass; and many ranks add theirs a
 * micro-batch at a time. */
static bool cuts_change_bits(const gr_graph *g, const gr_node *n, const gr_kernels *k)
{
    if (!is_op(n, "update")) return is_forward(n) && !k->invariant;
    return !k->chained || n->model->shape.tied || g->ranks > 1 || g->canonical;
}

/* The same of the rows that the head takes at a time, whose gradients are one product. */
static bool head_changes_bits(const gr_node *n, const gr_kernels *k)
{
    return is_op(n, "update") ? !k->chained : n->model && !k->invariant;
}

static void add_knob(source *s, knob_kind kind, const gr_node *n, uint32_t levels, bool bits,
                     const char *name)
{
    s->open[s->n] = (open_choice){kind, n, NULL};
    s->knobs[s->n++] = (gr_knob){.name = name, .n_levels = levels, .bits = bits};
}

/* The optimizer step is to be done on the host. */
static bool host_step_is_asked_for(const gr_model *m)
{
    return m->residency.policy[GR_RESOURCE_OPTIMIZER] == GR_POLICY_HOST;
}

/* A step on the host has other bits where it is not the device's own kernel. */
static bool host_step_changes_bits(const gr_kernels *k)
{
    return k->adamw != gr_kernels_cpu.adamw;
}

/* A rollout's copy of its own, or a way to fill it, is asked for: the weights that train are sharded then; or
 * they are stepped on the host, which has the shard alone. */
static bool copy_is_asked_for(const gr_model *m)
{
    return m->gather != GR_GATHER_DIRECT ||
           m->residency.policy[GR_RESOURCE_ROLLOUT_WEIGHTS] > GR_POLICY_AUTO || host_step_is_asked_for(m);
}

static gr_policy policy_of_optimizer(const source *s, const gr_model *m)
{
    int own = m->residency.policy[GR_RESOURCE_OPTIMIZER];
    return own < 0 ? s->o->policy : (gr_policy)own;
}

/* Its weights are sent to other ranks: from shards over all that train it, or whole. */
static bool is_sent(const gr_graph *g, const gr_model *m)
{
    for (size_t i = 0; i < g->n_nodes && m->update; i++)
        if (g->nodes[i]->model == m && g->nodes[i]->class != m->update->class) return true;
    return false;
}

static bool is_used(const gr_graph *g, const gr_model *m)
{
    for (size_t i = 0; i < g->n_nodes; i++)
        if (g->nodes[i]->model == m && runs_here(g, g->nodes[i])) return true;
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
        if (g->nodes[i]->model == m && is_op(g->nodes[i], "update")) return true;
    return false;
}

/* Ranks of a node, of several; 0: there is one, or they are uneven. */
static uint32_t node_ranks(const gr_graph *g)
{
    return g->classes[g->n_classes > 1 ? g->view : 0].node;
}

/* Levels: whole on every rank; a shard on each; and where nodes are to choose, of an untrained model, first
 * on each of a node, then on each of all. */
static void add_shards(source *s)
{
    for (size_t i = 0; i < s->g->n_models && s->g->ranks > 1; i++) {
        const gr_model *m = s->g->models[i];
        if (!is_used(s->g, m) || is_remote(s->g, m) || copy_is_asked_for(m)) continue;
        bool nodes = node_ranks(s->g) > 1 && !is_trained(s->g, m) && m->shard == GR_SHARD_AUTO;
        add_knob(s, KNOB_SHARD, NULL, nodes ? 3 : 2, false, gr_pool_printf(s->pool, "%s: weights", m->name));
        s->open[s->n - 1].model = m;
    }
}

/* Where bits do not change, a step may always be done on the host. */
static void add_host_steps(source *s)
{
    for (size_t i = 0; i < s->g->n_models && host_step_changes_bits(s->o->kernels); i++) {
        const gr_model *m = s->g->models[i];
        if (!is_trained(s->g, m) || policy_of_optimizer(s, m) != GR_POLICY_AUTO) continue;
        add_knob(s, KNOB_HOST_STEP, NULL, 2, true, gr_pool_printf(s->pool, "%s: optimizer step", m->name));
        s->open[s->n - 1].model = m;
    }
}

/* Over all ranks there is less on each. */
static void add_nodes(source *s)
{
    for (size_t i = 0; i < s->g->n_models; i++) {
        const gr_model *m = s->g->models[i];
        if (!(s->grouped >> m->index & 1) || m->shard != GR_SHARD_AUTO) continue;
        add_knob(s, KNOB_NODE, NULL, 2, !s->g->canonical, gr_pool_printf(s->pool, "%s: shards", m->name));
        s->open[s->n - 1].model = m;
    }
}

static uint32_t micro_levels(const gr_graph *g, const gr_kernels *k)
{
    uint32_t levels = 0;
    for (size_t i = 0; i < g->n_nodes; i++)
        if (is_pass(g->nodes[i]) && runs_here(g, g->nodes[i]) && !fixed_micro_tokens(g->nodes[i]))
            levels = GR_MAX(levels, 1 + halvings(k->sizes.micro_tokens, longest(g->nodes[i])));
    return levels;
}

/* A validation's rollout follows the first of the iterations: their pools need not be chosen apart. */
static const gr_node *pacemaker(const gr_graph *g, const gr_node *n)
{
    for (size_t i = 0; n->every && i < g->n_nodes; i++)
        if (is_op(g->nodes[i], "generate") && !g->nodes[i]->every && runs_here(g, g->nodes[i]))
            return g->nodes[i];
    return n;
}

static bool sets_pace(const gr_graph *g, const gr_node *n)
{
    return pacemaker(g, n) == n;
}

static void prefer_nodes(source *s);

static void find_knobs(source *s)
{
    const gr_graph *g = s->g;
    const gr_kernels *k = s->o->kernels;
    s->knobs = gr_pool_alloc(s->pool, (2 + g->n_nodes + 3 * g->n_models) * sizeof(*s->knobs));
    s->open = gr_pool_alloc(s->pool, (2 + g->n_nodes + 3 * g->n_models) * sizeof(*s->open));
    bool head = false, head_bits = false;
    prefer_nodes(s);
    for (size_t i = 0; i < g->n_nodes; i++) {
        const gr_node *n = g->nodes[i];
        if (!runs_here(g, n)) continue;
        head = head || n->model;
        head_bits = head_bits || head_changes_bits(n, k);
        if (is_op(n, "generate") && sets_pace(g, n))
            add_knob(s, KNOB_ROLLOUT, n, 1 + halvings(k->sizes.concurrent * n->parts, 1), !k->invariant,
                     gr_pool_printf(s->pool, "%s: KV pool", n->name));
        if (is_op(n, "update"))
            add_knob(s, KNOB_RECOMPUTE, n, 1 + RECOMPUTE_PARTS, false,
                     gr_pool_printf(s->pool, "%s: recomputation", n->name));
    }
    add_shards(s);
    add_nodes(s);
    add_host_steps(s);
    if (head) add_knob(s, KNOB_HEAD, NULL, 4, head_bits, "head chunk");
    if (micro_levels(g, k) < 2) return;
    bool bits = false;
    for (size_t i = 0; i < g->n_nodes; i++)
        bits = bits || (runs_here(g, g->nodes[i]) && cuts_change_bits(g, g->nodes[i], k) &&
                        !fixed_micro_tokens(g->nodes[i]));
    add_knob(s, KNOB_MICRO, NULL, micro_levels(g, k), bits, "micro-batch tokens");
}

static uint32_t level_of(const source *s, const uint32_t *level, knob_kind kind, const gr_node *n)
{
    for (size_t i = 0; i < s->n; i++)
        if (s->open[i].kind == kind && (!s->open[i].node || s->open[i].node == n)) return level[i];
    return 0;
}

/* The level of a choice about a model; 0 where it is not open. */
static uint32_t level_about(const source *s, const uint32_t *level, knob_kind kind, const gr_model *m)
{
    for (size_t i = 0; i < s->n; i++)
        if (s->open[i].kind == kind && s->open[i].model == m) return level[i];
    return 0;
}

static bool is_sharded(const source *s, const uint32_t *level, const gr_model *m)
{
    if (level_about(s, level, KNOB_SHARD, m)) return true;
    return s->g->ranks > 1 && copy_is_asked_for(m) && !is_remote(s->g, m);
}

/* How many ranks its shards are spread over; 0: all. */
static uint32_t shards_of(const source *s, const uint32_t *level, const gr_model *m)
{
    uint32_t node = node_ranks(s->g);
    if (!node || m->shard == GR_SHARD_ALL || is_sent(s->g, m)) return 0;
    if (m->shard == GR_SHARD_NODE) return node;
    if (is_trained(s->g, m))
        return s->grouped >> m->index & 1 && !level_about(s, level, KNOB_NODE, m) ? node : 0;
    return level_about(s, level, KNOB_SHARD, m) == 1 && node > 1 ? node : 0;
}

/* Of ranks, the step of one has its shard of everything. */
static bool may_step_on_host(const source *s, const uint32_t *level, const gr_model *m)
{
    if (s->g->ranks > 1 && !is_sharded(s, level, m)) return false;
    if (host_step_is_asked_for(m) || !host_step_changes_bits(s->o->kernels)) return true;
    return level_about(s, level, KNOB_HOST_STEP, m) > 0;
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
    if (is_op(n, "generate")) rows = GR_MIN(c->concurrent, n->task.seqs);
    if (is_op(n, "update")) rows = gr_train_rows(n, c);
    if (is_forward(n)) rows = gr_forward_bounds(n, c).rows;
    return GR_MAX(rows, 1u);
}

static uint32_t usual_head_rows(const gr_node *n, const gr_pass_sizes *sizes)
{
    const uint32_t vocab = n->model ? n->model->shape.vocab : 1;
    uint32_t rows = sizes->head_rows;
    if (!sizes->head_sums || !is_forward(n)) rows = GR_MIN(rows, GR_MAX(sizes->head_elems / vocab, 16u));
    return rows > sizes->head_step ? rows - rows % sizes->head_step : rows;
}

static gr_choices choose(const source *s, const uint32_t *level, const gr_node *n)
{
    gr_choices c = {.threads = s->o->threads, .leaves = s->g->canonical ? GR_LEAVES / s->g->ranks : 0};
    const gr_pass_sizes *sizes = &s->o->kernels->sizes;
    if (n->model) {
        c.sharded = is_sharded(s, level, n->model);
        c.shards = shards_of(s, level, n->model);
    }
    if (is_op(n, "update")) {
        c.recompute = recomputed_layers(n, level_of(s, level, KNOB_RECOMPUTE, n));
        c.host_step = may_step_on_host(s, level, n->model);
    }
    if (is_op(n, "generate"))
        choose_rollout(n, sizes, s->o->kernels->steps != NULL,
                       level_of(s, level, KNOB_ROLLOUT, pacemaker(s->g, n)), &c);
    if (is_pass(n)) {
        uint32_t tokens = sizes->micro_tokens >> level_of(s, level, KNOB_MICRO, n);
        c.micro_tokens = fixed_micro_tokens(n) ? fixed_micro_tokens(n) : GR_MAX(tokens, longest(n));
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
        if (is_pass(g->nodes[i]) && runs_here(g, g->nodes[i]) && !fixed_micro_tokens(g->nodes[i]))
            n = g->nodes[i];
    return GR_MAX(k->sizes.micro_tokens >> level, longest(n));
}

static void describe(void *user, size_t knob, uint32_t level, gr_str *out)
{
    const source *s = user;
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

/* A program while its nodes are declared, unit by unit (scheduler/classes.h). */
typedef struct assembly {
    const gr_graph *g;
    const gr_kernels *k;
    const gr_choices *how;
    const gr_traffic *traffic; /* NULL: of all nodes, and nothing crosses */
    gr_program *p;
    size_t crossed;
} assembly;

static void declare(assembly *a, const gr_node *n)
{
    gr_program_node(a->p, n->name, n->op->lane, gr_node_optional(a->g, n));
    a->p->lagged = is_op(n, "generate") && ((const gr_generate_cfg *)n->cfg)->lag;
    n->op->declare(a->g, n, &a->how[n->index], a->k, a->p);
}

static void begin_rounds(const assembly *a, const gr_node *select)
{
    gr_program_node(a->p, select->name, select->op->lane, false);
    gr_select_begin_rounds(a->g, select, a->p);
}

static void declare_unit(assembly *a, const gr_node *n)
{
    if (a->traffic && !runs_here(a->g, n)) return;
    gr_traffic_declare(a->traffic, a->g, a->p, a->k, n, &a->crossed);
    if (n->refills) begin_rounds(a, n);
    for (size_t i = 0; n->refills && i < n->index; i++)
        if (a->g->nodes[i]->repeated_by == n) declare(a, a->g->nodes[i]);
    declare(a, n);
    if (n->refills) gr_program_end(a->p);
}

/* The nodes of an iteration, or those of validations; nothing before a select waits for what it repeats. */
static void declare_nodes(assembly *a, bool validation, const gr_node *end)
{
    for (size_t i = 0; i < a->g->n_nodes; i++) {
        const gr_node *n = a->g->nodes[i];
        if ((n->every != 0) == validation && !n->repeated_by) declare_unit(a, n);
    }
    declare_unit(a, end);
    gr_traffic_declare(a->traffic, a->g, a->p, a->k, end, &a->crossed); /* where others run the end */
}

/* One for each number of slices that models are cut into. */
static uint32_t count_groups(const gr_graph *g)
{
    uint32_t n = 0;
    for (size_t i = 0; i < g->n_models; i++) {
        bool known = g->models[i]->parts < 2;
        for (size_t j = 0; j < i; j++) known = known || g->models[j]->parts == g->models[i]->parts;
        n += !known;
    }
    return n;
}

static gr_program *build_program(const gr_graph *g, const gr_kernels *k, const gr_choices *how,
                                 const gr_planned *of, const gr_traffic *traffic)
{
    gr_program *p = gr_program_new();
    assembly a = {.g = g, .k = k, .how = how, .traffic = traffic, .p = p};
    uint32_t every = UINT32_MAX;
    p->values = k->columns;
    p->ranks = g->ranks;
    p->leaves = g->canonical ? GR_LEAVES / g->ranks : 0;
    p->groups = count_groups(g);
    if (traffic) p->remote = gr_traffic_remote(g, g->view);
    if (g->n_classes > 1) p->groups = 1; /* what crosses does by a communicator of all ranks */
    for (size_t i = 0; i < g->n_nodes; i++) {
        if (how[i].sharded) p->sharded |= 1ULL << g->nodes[i]->model->index;
        if (!how[i].shards) continue;
        p->grouped |= 1ULL << g->nodes[i]->model->index;
        p->node_ranks = how[i].shards;
    }
    if (p->node_ranks) p->groups += 1 + (p->node_ranks > 1); /* across nodes, and of a node */
    declare_nodes(&a, false, of->summary);
    if (!of->validation) return p;
    for (size_t i = 0; i < g->n_nodes; i++)
        if (g->nodes[i]->every) every = GR_MIN(every, g->nodes[i]->every);
    gr_program_validate(p, every);
    declare_nodes(&a, true, of->validation);
    if (p->validate < p->n_works) return p;
    p->validate = GR_NONE; /* ranks that have no part in validations */
    p->validate_every = 0;
    return p;
}

/* Of the graph's nodes, and of the two summaries. */
static size_t n_choices(const gr_graph *g)
{
    return g->n_nodes + 2;
}

static void choose_all(const source *s, const uint32_t *level, gr_choices *how)
{
    for (size_t i = 0; i < n_choices(s->g); i++)
        how[i] = choose(s, level, i < s->g->n_nodes ? s->g->nodes[i] : s->p->summary);
}

static gr_program *build(void *user, const uint32_t *level)
{
    const source *s = user;
    gr_choices *how = gr_calloc(n_choices(s->g), sizeof(*how));
    choose_all(s, level, how);
    gr_program *p = build_program(s->g, s->o->kernels, how, s->p, s->traffic);
    free(how);
    return p;
}

static gr_schedule_options schedule_options(const gr_plan_options *o, const gr_graph *view)
{
    uint32_t hosts = view->n_classes > 1 ? view->classes[view->view].hosts : o->hosts;
    gr_schedule_options s = {.hardware = o->hardware,
                             .policy = o->policy,
                             .keep_bits = view->run.keep_bits,
                             .quick = o->quick,
                             .budget_bytes = o->budget_bytes ? o->budget_bytes : o->hardware.device_bytes,
                             .host_budget_bytes =
                                 o->host_budget_bytes ? o->host_budget_bytes : o->hardware.host_bytes};
    s.hardware.near = o->hardware.link;
    s.hardware.link = gr_hardware_link(&o->hardware, hosts, view->ranks);
    return s;
}

/* ---- shards over the ranks of a node ---------------------------------------------------------------------
 */

/* Time of all collectives of an iteration. */
static double collective_seconds(const gr_program *p, const gr_hardware *hw)
{
    double sum = 0, times[GR_LEN(p->loops) + 1] = {1};
    uint32_t end[GR_LEN(p->loops) + 1], depth = 0;
    for (uint32_t w = 0; w < gr_program_steady(p); w++) {
        const gr_work *work = &p->works[w];
        while (depth && w > end[depth]) depth--;
        if (work->moved) sum += times[depth] * 1e-9 * (double)gr_work_ns(work, hw);
        if (work->body_last == GR_NONE) continue;
        depth++;
        end[depth] = work->body_last;
        times[depth] = times[depth - 1] * work->trips_expected;
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
static void prefer_nodes(source *s)
{
    const gr_graph *g = s->g;
    const gr_hardware hw = schedule_options(s->o, g).hardware;
    uint32_t node = node_ranks(g), *level = gr_calloc(2 + g->n_nodes + 3 * g->n_models, sizeof(*level));
    uint64_t kept = 0, preferred = 0;
    for (size_t i = 0; i < g->n_models && node; i++)
        if (is_used(g, g->models[i])) kept += kept_bytes(g, s->o->kernels, g->models[i], node);
    for (size_t i = 0; i < g->n_models && node && kept <= hw.device_bytes / 2; i++) {
        double seconds[2];
        const gr_model *m = g->models[i];
        if (!is_used(g, m) || !is_trained(g, m) || is_sent(g, m) || m->shard != GR_SHARD_AUTO) continue;
        for (int over_node = 0; over_node < 2; over_node++) {
            s->grouped = over_node ? 1ULL << m->index : 0;
            gr_program *p = build(s, level);
            seconds[over_node] = collective_seconds(p, &hw);
            gr_program_free(p);
        }
        if (seconds[1] < seconds[0]) preferred |= 1ULL << m->index;
    }
    s->grouped = preferred;
    free(level);
}

/* ---- the plan --------------------------------------------------------------------------------------------
 */

static bool lr_depends_on_steps(const gr_graph *g)
{
    for (size_t i = 0; i < g->n_models; i++)
        if (g->models[i]->trained && g->models[i]->train.schedule != GR_LR_CONSTANT) return true;
    return false;
}

/* The graph without its validations, which change nothing, and without its pools. */
static gr_graph without_validation(const gr_graph *g, gr_pool *pool)
{
    gr_graph same = *g;
    gr_node *nodes = gr_pool_alloc(pool, (g->n_nodes + 1) * sizeof(*nodes));
    same.nodes = gr_pool_alloc(pool, (g->n_nodes + 1) * sizeof(*same.nodes));
    same.n_nodes = same.n_pools = 0;
    for (size_t i = 0; i < g->n_nodes; i++) {
        if (g->nodes[i]->every) continue;
        nodes[i] = *g->nodes[i];
        nodes[i].pool = NULL;
        same.nodes[same.n_nodes++] = &nodes[i];
    }
    return same;
}

static gr_model **without_residency(const gr_graph *g, gr_pool *pool)
{
    gr_model **out = gr_pool_alloc(pool, (g->n_models + 1) * sizeof(*out)),
             *models = gr_pool_alloc(pool, (g->n_models + 1) * sizeof(*models));
    for (size_t i = 0; i < g->n_models; i++) {
        models[i] = *g->models[i];
        for (int r = 0; r < GR_N_RESOURCES; r++) models[i].residency.policy[r] = -1;
        models[i].gather = GR_GATHER_DIRECT;
        models[i].shard = GR_SHARD_AUTO;
        if (g->ranks < 2) models[i].tensor = 1; /* it has no effect */
        models[i].pool = NULL;
        out[i] = &models[i];
    }
    return out;
}

/* What fixes the bits: the graph, the device's arithmetic, the ranks, and of what the planner chooses the
 * cuts of passes where they matter. How long it runs and what it writes do not, unless the learning rate
 * follows the number of iterations. */
static const char *numerics_of(const gr_graph *g, const gr_choices *choices, const gr_plan_options *o,
                               gr_pool *pool)
{
    gr_graph same = without_validation(g, pool);
    gr_str s = {0};
    bool keep_length = lr_depends_on_steps(g);
    same.run.checkpoint_every = same.run.checkpoint_keep = same.run.samples = 0;
    same.run.checkpoint_last = true;
    same.run.best = NULL;
    same.models = without_residency(g, pool);
    same.run.keep_bits = false;
    same.strict = same.loose = false; /* the kernels' own name says it, where they differ */
    gr_graph_resolved(&same, &s);
    keep_length = keep_length || strstr(s.text, "progress");
    s.len = 0;
    if (!keep_length) same.run.steps = same.run.epochs = 0;
    gr_graph_resolved(&same, &s);
    gr_str_printf(&s, "\n%s %s ranks %u", o->kernels->device, o->kernels->numerics(),
                  g->canonical ? 0 : g->ranks);
    if (g->ranks > 1 && !g->canonical) gr_str_puts(&s, " dealt by length");
    for (size_t i = 0; i < g->n_nodes; i++) {
        const gr_choices *c = &choices[i];
        if (g->nodes[i]->every) continue;
        if (c->shards && is_op(g->nodes[i], "update") && !g->canonical)
            gr_str_printf(&s, " in shards of %u", c->shards);
        if (g->n_classes > 1) gr_str_printf(&s, " on %u", g->classes[g->nodes[i]->class].n);
        if (cuts_change_bits(g, g->nodes[i], o->kernels)) gr_str_printf(&s, " %u", c->micro_tokens);
        if (!o->kernels->invariant && g->nodes[i]->model)
            gr_str_printf(&s, " %u %u %u", c->kv_blocks, c->concurrent, c->prefill_tokens);
        if (head_changes_bits(g->nodes[i], o->kernels)) gr_str_printf(&s, " %u", c->head_rows);
        if (c->host_step && host_step_changes_bits(o->kernels)) gr_str_puts(&s, " host step");
    }
    uint64_t hash = XXH3_64bits(s.text, s.len);
    gr_str_release(&s);
    return gr_pool_printf(pool, "%016llx", (unsigned long long)hash);
}

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
    {"recompute", offsetof(gr_choices, recompute)},
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

static void write_settings(gr_planned *p, const source *s)
{
    gr_plan *plan = p->plan;
    plan->settings =
        gr_pool_alloc(plan->pool, s->g->n_nodes * GR_LEN(choice_fields) * sizeof(*plan->settings));
    for (size_t i = 0; i < s->g->n_nodes; i++)
        for (size_t f = 0; f < GR_LEN(choice_fields); f++) {
            uint32_t value = *choice_at(&p->choices[i], &choice_fields[f]);
            if (!s->g->nodes[i]->model || !value || !runs_here(s->g, s->g->nodes[i])) continue;
            const char *node = gr_pool_strdup(plan->pool, s->g->nodes[i]->name);
            plan->settings[plan->n_settings++] = (gr_setting){node, choice_fields[f].name, value};
        }
}

/* A pass takes at least one sequence, a pool holds at least one. */
static bool settings_serve(const gr_graph *g, const gr_node *n, const gr_choices *c)
{
    if (!n->model) return true;
    if (c->shards && g->ranks % c->shards) return false;
    if (is_pass(n) && c->micro_tokens < longest(n)) return false;
    if (is_op(n, "generate") &&
        (c->kv_blocks < gr_rollout_blocks_min(&n->bounds) || !c->concurrent || !c->prefill_tokens))
        return false;
    return c->threads && c->head_rows && c->sharded <= 1 && c->host_step <= is_op(n, "update");
}

/* The weights of a model lie in one way, and nodes are as large for all models. */
static bool settings_agree(const gr_graph *g, const gr_choices *c)
{
    for (size_t i = 0; i < g->n_nodes; i++)
        for (size_t j = 0; j < i; j++) {
            if (!g->nodes[i]->model || !g->nodes[j]->model || g->nodes[i]->class != g->nodes[j]->class)
                continue;
            bool same = g->nodes[i]->model == g->nodes[j]->model;
            if (same && (c[i].sharded != c[j].sharded || c[i].shards != c[j].shards)) return false;
            if (c[i].shards && c[j].shards && c[i].shards != c[j].shards) return false;
        }
    return true;
}

static gr_status read_settings(gr_planned *p, const gr_plan *plan, const gr_graph *g, gr_diag *d)
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
        if (runs_here(g, g->nodes[i]) && !settings_serve(g, g->nodes[i], &p->choices[i]))
            return gr_diag_error(d, (gr_loc){0}, GR_E_INVALID,
                                 "the plan's settings of node '%s' are not enough to run it",
                                 g->nodes[i]->name);
    if (!settings_agree(g, p->choices))
        return gr_diag_error(d, (gr_loc){0}, GR_E_INVALID, "the plan's nodes shard a model in two ways");
    return GR_OK;
}

/* The ends of an iteration and of a validation are where most of what they read is: beside the update that
 * metrics are about, and beside the last node of the validation. Where there is state, each class ends the
 * iteration itself, for the next one reads what follows. */
static void place_ends(gr_planned *p, const gr_graph *g)
{
    const gr_node *update = gr_graph_subject(g).update;
    p->summary->class = g->n_state && g->n_classes > 1 ? GR_NONE : update ? update->class : 0;
    for (size_t i = 0; p->validation && i < g->n_nodes; i++)
        if (g->nodes[i]->every) p->validation->class = g->nodes[i]->class;
}

static gr_planned *planned_new(const gr_graph *g, const gr_kernels *k)
{
    gr_planned *p = gr_calloc(1, sizeof(*p));
    p->kernels = k;
    p->pool = gr_pool_new();
    p->graph = g;
    p->summary = gr_summary_node(g, false, p->pool);
    p->validation = gr_summary_node(g, true, p->pool);
    p->choices = gr_pool_alloc(p->pool, n_choices(g) * sizeof(*p->choices));
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
    gr_program_free(p->program);
    gr_pool_free(p->pool);
    free(p);
}

static gr_planned *planned_class(const gr_planned *p, uint32_t c)
{
    return c ? p->more[c - 1] : (gr_planned *)(uintptr_t)p;
}

/* The planner's choices stand in the resolved graph as comments: a later plan of it may choose again. */
static void add_choices(const gr_graph *g, const gr_choices *choices, gr_str *out)
{
    gr_str_puts(out, "# chosen by the planner\n");
    for (size_t i = 0; i < g->n_nodes; i++) {
        const gr_choices *c = &choices[i];
        const char *name = g->nodes[i]->name;
        if (is_op(g->nodes[i], "generate"))
            gr_str_printf(out, "#   %s: kv_blocks %u, concurrent %u\n", name, c->kv_blocks, c->concurrent);
        if (is_pass(g->nodes[i])) gr_str_printf(out, "#   %s: micro_tokens %u\n", name, c->micro_tokens);
    }
}

/* The pools of a class, "train, ref". */
static const char *pools_of(const gr_graph *g, uint32_t class, gr_pool *pool)
{
    gr_str s = {0};
    for (size_t i = 0; i < g->n_pools && g->n_classes > 1; i++)
        if (g->pools[i].class == class) gr_str_printf(&s, "%s%s", s.len ? ", " : "", g->pools[i].name);
    const char *text = gr_pool_strdup(pool, s.text ? s.text : "");
    gr_str_release(&s);
    return text;
}

/* What the plans of all classes say alike; choices: of every node those of its class. */
static void name_plan(gr_planned *p, const gr_graph *g, const gr_plan_options *o)
{
    gr_plan *plan = p->plan;
    gr_choices *choices = gr_calloc(n_choices(g), sizeof(*choices));
    gr_str text = {0};
    for (size_t i = 0; i < g->n_nodes; i++) choices[i] = planned_class(p, g->nodes[i]->class)->choices[i];
    gr_graph_resolved(g, &text);
    add_choices(g, choices, &text);
    plan->graph = gr_pool_strdup(plan->pool, g->name);
    plan->graph_text = gr_pool_strndup(plan->pool, text.text, text.len);
    plan->numerics = numerics_of(g, choices, o, plan->pool);
    for (uint32_t c = 0; c <= p->n_more; c++) {
        gr_plan *own = planned_class(p, c)->plan;
        own->ranks = gr_pool_strdup(own->pool, g->classes[c].text);
        own->pools = pools_of(g, c, own->pool);
        own->hosts = p->n_more ? g->hosts : 0;
        own->graph = plan->graph;
        own->graph_text = plan->graph_text;
        own->numerics = plan->numerics;
    }
    gr_str_release(&text);
    free(choices);
}

/* programs [classes] */
static const gr_program **programs_of(const gr_planned *p)
{
    const gr_program **g = gr_calloc(p->n_more + 1, sizeof(*g));
    for (uint32_t c = 0; c <= p->n_more; c++) g[c] = planned_class(p, c)->program;
    return g;
}

static gr_status prove(gr_planned *p, gr_diag *d)
{
    const gr_program **programs = programs_of(p);
    gr_status st = gr_plan_verify_all(p->plan, programs, d);
    free(programs);
    for (uint32_t c = 0; c <= p->n_more && !st; c++) {
        gr_planned *own = planned_class(p, c);
        own->binding = gr_plan_bind(own->plan, own->program, own->pool);
    }
    return st;
}

/* What an op asks of a device is there. */
static gr_status check_ops(const gr_graph *g, const gr_kernels *k, gr_diag *d)
{
    gr_status st = GR_OK;
    for (size_t i = 0; i < g->n_nodes; i++) {
        const gr_node *n = g->nodes[i];
        unsigned lacks = n->op->kernels & ~gr_kernels_sets(k);
        gr_str what = {0};
        if (!lacks) continue;
        gr_kernel_sets_name(lacks, &what);
        st = gr_diag_error(d, n->at, GR_E_INVALID,
                           "node '%s': op '%s' does not run on the %s device, which has no kernels for %s",
                           n->name, n->op->name, k->device, what.text);
        gr_str_release(&what);
    }
    return st;
}

/* What the device's kernels are not made for, of a model or of its slices. */
static gr_status check_shape(const gr_model *m, const gr_kernels *k, gr_diag *d)
{
    char buf[GR_UNFIT_MAX];
    const char *unfit = k->unfit ? k->unfit(&m->shape, buf) : NULL;
    bool slice = !unfit && k->unfit && m->parts > 1;
    if (slice) unfit = k->unfit(&m->slice, buf);
    if (!unfit) return GR_OK;
    return gr_diag_error(d, m->at, GR_E_INVALID, "model '%s' has%s %s: the %s device has no kernels for it",
                         m->name, slice ? ", in slices," : "", unfit, k->device);
}

/* A device whose weights are fp32 trains in fp32; one may have no kernels for value heads. */
static gr_status check_models(const gr_graph *g, const gr_kernels *k, gr_diag *d)
{
    gr_status st = GR_OK;
    for (size_t i = 0; i < g->n_models; i++) {
        const gr_model *m = g->models[i];
        gr_status shape = check_shape(m, k, d);
        st = shape ? shape : st;
        if (m->shape.head == GR_HEAD_VALUE && !(gr_kernels_sets(k) & GR_KERNELS_VALUE_HEAD))
            st = gr_diag_error(d, m->at, GR_E_INVALID,
                               "model '%s' has a value head: the %s device has none in this version", m->name,
                               k->device);
        if (!m->trained || k->dtype != GR_F32 || (m->train.grads == GR_F32 && m->train.moments == GR_F32))
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
        if (g->models[i]->shard == GR_SHARD_NODE && is_sent(g, g->models[i]))
            st = gr_diag_error(d, g->models[i]->at, GR_E_INVALID,
                               "model '%s': 'shard: node' is not for a model whose weights other pools read",
                               g->models[i]->name);
    return st;
}

static gr_status check_device(const gr_graph *g, const gr_kernels *k, gr_diag *d)
{
    gr_status ops = check_ops(g, k, d), models = check_models(g, k, d); /* all errors are reported */
    gr_status shards = check_shards(g, d), st = ops ? ops : models ? models : shards;
    if (!g->canonical) return st;
    if (!k->chained)
        st = gr_diag_error(
            d, (gr_loc){0}, GR_E_INVALID,
            "canonical needs kernels whose results do not depend on the batch: those of the CPU "
            "device do not, those of the %s device do",
            k->device);
    if (GR_LEAVES % g->ranks || g->n_classes > 1)
        st = gr_diag_error(d, (gr_loc){0}, GR_E_INVALID,
                           "canonical is for 1, 2, 4 or 8 ranks that do the same, not for %u", g->ranks);
    return st;
}

/* ---- classes of ranks ------------------------------------------------------------------------------------
 */

/* The graph as a class sees it. */
static const gr_graph *view_of(const gr_graph *g, uint32_t class)
{
    return g->views ? g->views[class] : g;
}

static gr_planned *planned_all(const gr_graph *g, const gr_kernels *k)
{
    gr_planned *p = planned_new(view_of(g, 0), k);
    uint32_t n = (uint32_t)g->n_classes;
    p->more = gr_pool_alloc(p->pool, n * sizeof(*p->more));
    while (p->n_more + 1 < n) {
        p->more[p->n_more] = planned_new(view_of(g, p->n_more + 1), k);
        p->n_more++;
    }
    return p;
}

/* What crosses between classes, and the programs of all nodes that it was found from. */
typedef struct crossings {
    gr_traffic *traffic; /* NULL: nothing does */
    gr_program **whole;
    gr_node *ends[2];
    size_t n;
} crossings;

/* With the first levels of all knobs: what crosses has no part in them. */
static gr_program *whole_program(const gr_planned *p, const gr_plan_options *o)
{
    gr_pool *pool = gr_pool_new();
    source s = {.g = p->graph, .o = o, .pool = pool, .p = p};
    find_knobs(&s);
    uint32_t *level = gr_calloc(s.n + 1, sizeof(*level));
    gr_program *whole = build(&s, level);
    free(level);
    gr_pool_free(pool);
    return whole;
}

static crossings find_crossings(const gr_planned *p, const gr_graph *g, const gr_plan_options *o,
                                uint32_t order)
{
    crossings c = {.n = g->n_classes, .ends = {p->summary, p->validation}};
    if (g->n_classes < 2 && !gr_graph_lags(g)) return c;
    c.whole = gr_calloc(c.n, sizeof(*c.whole));
    for (uint32_t k = 0; k < c.n; k++) c.whole[k] = whole_program(planned_class(p, k), o);
    c.traffic = gr_traffic_new(g, c.ends, (const gr_program *const *)c.whole, &o->hardware, order);
    return c;
}

static void crossings_release(crossings *c)
{
    gr_traffic_free(c->traffic);
    for (size_t k = 0; c->whole && k < c->n; k++) gr_program_free(c->whole[k]);
    free(c->whole);
}

static gr_status plan_class(gr_planned *p, const gr_plan_options *o, const gr_traffic *traffic,
                            const gr_rule *rules, size_t n_rules, gr_diag *d)
{
    source s = {.g = p->graph, .o = o, .pool = p->pool, .p = p, .traffic = traffic};
    find_knobs(&s);
    gr_source from = {&s, s.knobs, s.n, build, describe};
    gr_schedule_options options = schedule_options(o, p->graph);
    options.rules = rules;
    options.n_rules = n_rules;
    uint32_t *level = gr_calloc(s.n + 1, sizeof(*level));
    gr_status st = gr_schedule(&p->plan, level, &from, &options, d);
    choose_all(&s, level, p->choices);
    p->program = build(&s, level);
    write_settings(p, &s);
    free(level);
    const gr_graph *g = p->graph;
    if (st && g->n_classes > 1)
        gr_diag_note(d, (gr_loc){0}, "on a rank of pool %s, ranks %s", pools_of(g, g->view, p->pool),
                     g->classes[g->view].text);
    return st;
}

/* Settings and notes of all classes are the plan's. */
static void join_settings(gr_planned *p)
{
    gr_plan *plan = p->plan;
    gr_setting *all = NULL;
    size_t n = 0, cap = 0;
    gr_str notes = {0};
    for (uint32_t c = 0; c <= p->n_more; c++) {
        const gr_plan *own = planned_class(p, c)->plan;
        for (uint32_t i = 0; i < own->n_settings; i++) GR_PUSH(all, n, cap, own->settings[i]);
        gr_str_puts(&notes, own->notes);
    }
    plan->settings = gr_pool_alloc(plan->pool, (n + 1) * sizeof(*all));
    if (n) memcpy(plan->settings, all, n * sizeof(*all));
    plan->n_settings = (uint32_t)n;
    plan->notes = gr_pool_strdup(plan->pool, notes.text ? notes.text : "");
    for (uint32_t c = 1; c <= p->n_more; c++) {
        gr_plan *own = planned_class(p, c)->plan;
        own->settings = plan->settings;
        own->n_settings = plan->n_settings;
        own->notes = plan->notes;
    }
    gr_str_release(&notes);
    free(all);
}

static void join_plans(gr_planned *p)
{
    gr_plan *plan = p->plan;
    for (uint32_t c = 0; c <= p->n_more; c++)
        planned_class(p, c)->plan->own_ns = planned_class(p, c)->plan->ns;
    if (!p->n_more) return;
    plan->more = gr_pool_alloc(plan->pool, p->n_more * sizeof(*plan->more));
    for (uint32_t c = 0; c < p->n_more; c++) plan->more[plan->n_more++] = p->more[c]->plan;
    join_settings(p);
    const gr_program **programs = programs_of(p);
    gr_classes_link(plan, programs);
    free(programs);
}

/* The plans of all classes, not proven yet. GR_OK or GR_E_NOFIT. */
static gr_planned *plan_in_order(const gr_graph *g, const gr_plan_options *o, uint32_t order, gr_status *st,
                                 gr_diag *d)
{
    gr_planned *p = planned_all(g, o->kernels);
    crossings across = find_crossings(p, g, o, order);
    size_t n_rules;
    gr_rule *rules = gr_rules_of(g, o->policy, p->pool, &n_rules, d);
    *st = GR_OK;
    for (uint32_t c = 0; c <= p->n_more; c++) {
        gr_status own = plan_class(planned_class(p, c), o, across.traffic, rules, n_rules, d);
        *st = *st ? *st : own;
    }
    crossings_release(&across);
    for (uint32_t c = 0; c <= p->n_more; c++) planned_class(p, c)->plan->order = order;
    join_plans(p);
    return p;
}

gr_status gr_plan_graph(gr_planned **out, const gr_graph *g, const gr_plan_options *device, gr_diag *d)
{
    gr_plan_options asked = *device, *o = &asked;
    gr_status st;
    asked.kernels = gr_kernels_as(device->kernels, g->strict, !g->loose);
    if (check_device(g, o->kernels, d)) return GR_E_INVALID;
    gr_planned *p = plan_in_order(g, o, 0, &st, d);
    for (uint32_t order = 1; !st && order < gr_traffic_orders(g); order++) {
        gr_status own;
        gr_planned *other = plan_in_order(g, o, order, &own, NULL);
        bool better = !own && other->plan->ns < p->plan->ns;
        gr_planned_free(better ? p : other);
        if (better) p = other;
    }
    name_plan(p, g, o);
    if (!st && prove(p, d))
        st = gr_diag_error(d, (gr_loc){0}, GR_E_FAILED,
                           "the verifier refuses a plan of our own making: please report it");
    if (st && st != GR_E_NOFIT)
        gr_planned_free(p);
    else
        *out = p;
    return st;
}

/* The plan is for the classes that the graph has. */
static gr_status check_classes(const gr_plan *plan, const gr_graph *g, gr_diag *d)
{
    if (gr_plan_all_ranks(plan) != g->ranks)
        return gr_diag_error(d, (gr_loc){0}, GR_E_INVALID, "the plan is for ranks %s%s, not for %u",
                             plan->ranks, plan->n_more ? " and other classes" : "", g->ranks);
    for (uint32_t c = 0; c < GR_MAX(plan->n_more + 1, g->n_classes); c++) {
        const char *theirs = c <= plan->n_more ? gr_plan_class(plan, c)->ranks : "none",
                   *ours = c < g->n_classes ? g->classes[c].text : "none";
        if (strcmp(theirs, ours))
            return gr_diag_error(d, (gr_loc){0}, GR_E_INVALID,
                                 "class %u of the plan is of ranks %s, that of the graph's pools of ranks %s",
                                 c, theirs, ours);
    }
    return GR_OK;
}

gr_status gr_plan_adopt(gr_planned **out, gr_plan *plan, const gr_graph *g, const gr_plan_options *o,
                        gr_diag *d)
{
    gr_plan_options own = *o;
    own.kernels = gr_kernels_find(plan->device);
    if (!own.kernels)
        return gr_diag_error(d, (gr_loc){0}, GR_E_INVALID,
                             "the plan is for a device '%s', of which nothing is known", plan->device);
    own.kernels = gr_kernels_as(own.kernels, g->strict, !g->loose);
    o = &own;
    if (check_device(g, o->kernels, d) || check_classes(plan, g, d)) return GR_E_INVALID;
    gr_planned *p = planned_all(g, o->kernels);
    gr_status st = GR_OK;
    for (uint32_t c = 0; c <= p->n_more && !st; c++)
        st = read_settings(planned_class(p, c), plan, view_of(g, c), d);
    if (!st) {
        crossings across = find_crossings(p, g, o, plan->order);
        for (uint32_t c = 0; c <= p->n_more; c++) {
            gr_planned *k = planned_class(p, c);
            k->program = build_program(view_of(g, c), o->kernels, k->choices, k, across.traffic);
            k->plan = gr_plan_class(plan, c);
        }
        crossings_release(&across);
        st = prove(p, d);
    }
    if (!st) {
        name_plan(p, g, o); /* what runs is g, which may differ in what needs no other memory */
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
