#include "scheduler/planner.h"

#include "ops/configs.h"
#include "ops/rollout.h"
#include "ops/summary.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <xxhash.h>

/* Defaults: enough rows to keep the matrix products busy, without more memory than that needs. */
enum { MICRO_TOKENS = 4096, CONCURRENT = 256, PREFILL_TOKENS = 512, PREFILL_MIN = 16, HEAD_ELEMS = 8 << 20 };

/* ---- open choices ----------------------------------------------------------------------------------------
 */

typedef enum knob_kind { KNOB_MICRO, KNOB_ROLLOUT, KNOB_HEAD, KNOB_RECOMPUTE } knob_kind;

typedef struct open_choice {
    knob_kind kind;
    const gr_node *node; /* NULL: all passes */
} open_choice;

typedef struct source {
    const gr_graph *g;
    const gr_plan_options *o;
    gr_pool *pool;
    gr_node *summary;
    gr_knob *knobs;
    open_choice *open;
    size_t n;
} source;

static bool is_op(const gr_node *n, const char *op)
{
    return !strcmp(n->op->name, op);
}

static uint32_t longest(const gr_node *n)
{
    return n->rows->bounds.prompt_tokens + n->rows->bounds.response_tokens;
}

static uint32_t fixed_micro_tokens(const gr_node *n)
{
    if (is_op(n, "logprob")) return ((const gr_logprob_cfg *)n->cfg)->micro_tokens;
    if (is_op(n, "update")) return ((const gr_update_cfg *)n->cfg)->micro_tokens;
    return 0;
}

static bool is_pass(const gr_node *n)
{
    return is_op(n, "logprob") || is_op(n, "update");
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

static void add_knob(source *s, knob_kind kind, const gr_node *n, uint32_t levels, const char *name)
{
    s->open[s->n] = (open_choice){kind, n};
    s->knobs[s->n++] = (gr_knob){.name = name, .n_levels = levels, .bits = kind == KNOB_MICRO};
}

static uint32_t micro_levels(const gr_graph *g)
{
    uint32_t levels = 0;
    for (size_t i = 0; i < g->n_nodes; i++)
        if (is_pass(g->nodes[i]) && !fixed_micro_tokens(g->nodes[i]))
            levels = GR_MAX(levels, 1 + halvings(MICRO_TOKENS, longest(g->nodes[i])));
    return levels;
}

static void find_knobs(source *s)
{
    const gr_graph *g = s->g;
    s->knobs = gr_pool_alloc(s->pool, (2 + g->n_nodes) * sizeof(*s->knobs));
    s->open = gr_pool_alloc(s->pool, (2 + g->n_nodes) * sizeof(*s->open));
    bool head = false;
    for (size_t i = 0; i < g->n_nodes; i++) {
        const gr_node *n = g->nodes[i];
        head = head || n->model;
        if (is_op(n, "generate"))
            add_knob(s, KNOB_ROLLOUT, n, 1 + halvings(CONCURRENT, 1),
                     gr_pool_printf(s->pool, "%s: KV pool", n->name));
        if (is_op(n, "update"))
            add_knob(s, KNOB_RECOMPUTE, n, 2, gr_pool_printf(s->pool, "%s: recomputation", n->name));
    }
    if (head) add_knob(s, KNOB_HEAD, NULL, 4, "head chunk");
    if (micro_levels(g) > 1) add_knob(s, KNOB_MICRO, NULL, micro_levels(g), "micro-batch tokens");
}

static uint32_t level_of(const source *s, const uint32_t *level, knob_kind kind, const gr_node *n)
{
    for (size_t i = 0; i < s->n; i++)
        if (s->open[i].kind == kind && (!s->open[i].node || s->open[i].node == n)) return level[i];
    return 0;
}

static void choose_rollout(const gr_node *n, uint32_t level, gr_choices *c)
{
    const gr_generate_cfg *cfg = n->cfg;
    uint32_t most = cfg->concurrent ? cfg->concurrent : CONCURRENT;
    c->concurrent = GR_MAX(GR_MIN(most, n->bounds.seqs) >> level, 1u);
    c->prefill_tokens = GR_MAX(PREFILL_TOKENS >> level, PREFILL_MIN);
    uint64_t blocks =
        cfg->kv_blocks ? cfg->kv_blocks : gr_rollout_blocks_max(&n->bounds, cfg->samples, c->concurrent);
    uint32_t least = gr_rollout_blocks_min(&n->bounds);
    if (!cfg->kv_blocks && c->concurrent == 1) blocks = least;
    c->kv_blocks = (uint32_t)GR_MIN(GR_MAX(blocks, (uint64_t)least), (uint64_t)UINT32_MAX - 1);
}

static gr_choices choose(const source *s, const uint32_t *level, const gr_node *n)
{
    gr_choices c = {.threads = s->o->threads};
    uint32_t vocab = n->model ? n->model->shape.vocab : 1;
    uint32_t rows = GR_MIN(GR_MAX((uint32_t)HEAD_ELEMS / vocab, 16u), 512u);
    c.head_rows = GR_MAX(rows >> (2 * level_of(s, level, KNOB_HEAD, n)), 1u);
    c.recompute = level_of(s, level, KNOB_RECOMPUTE, n) > 0 && is_op(n, "update");
    if (is_op(n, "generate")) choose_rollout(n, level_of(s, level, KNOB_ROLLOUT, n), &c);
    if (is_pass(n)) {
        uint32_t tokens = MICRO_TOKENS >> level_of(s, level, KNOB_MICRO, n);
        c.micro_tokens = fixed_micro_tokens(n) ? fixed_micro_tokens(n) : GR_MAX(tokens, longest(n));
    }
    return c;
}

static void describe(void *user, size_t knob, uint32_t level, gr_str *out)
{
    const source *s = user;
    uint32_t *levels = gr_calloc(s->n, sizeof(*levels));
    levels[knob] = level;
    const gr_node *n = s->open[knob].node;
    switch (s->open[knob].kind) {
    case KNOB_MICRO:
        gr_str_printf(out, "%u", MICRO_TOKENS >> level);
        break;
    case KNOB_HEAD:
        gr_str_printf(out, "1/%u of its rows", 1u << 2 * level);
        break;
    case KNOB_RECOMPUTE:
        gr_str_puts(out, level ? "every layer" : "none");
        break;
    case KNOB_ROLLOUT: {
        gr_choices c = choose(s, levels, n);
        gr_str_printf(out, "%u blocks, %u sequences at once", c.kv_blocks, c.concurrent);
        break;
    }
    }
    free(levels);
}

static gr_program *build(void *user, const uint32_t *level)
{
    const source *s = user;
    gr_program *p = gr_program_new();
    for (size_t i = 0; i <= s->g->n_nodes; i++) {
        const gr_node *n = i < s->g->n_nodes ? s->g->nodes[i] : s->summary;
        gr_choices how = choose(s, level, n);
        gr_program_node(p, n->name, n->op->lane, n->when.expr != NULL);
        n->op->declare(s->g, n, &how, s->o->kernels, p);
    }
    return p;
}

/* ---- the plan --------------------------------------------------------------------------------------------
 */

/* What fixes the bits: the graph, the device's arithmetic, and how updates are cut into micro-batches. */
static const char *numerics_of(const gr_planned *p, const gr_graph *g, const gr_plan_options *o,
                               const char *text)
{
    gr_str s = {0};
    gr_str_printf(&s, "%s\n%s\nranks 1\n%s", text, o->kernels->device, gr_kernels_cpu_numerics());
    for (size_t i = 0; i < g->n_nodes; i++)
        if (is_op(g->nodes[i], "update"))
            gr_str_printf(&s, "\n%s %u", g->nodes[i]->name, p->choices[i].micro_tokens);
    uint64_t hash = XXH3_64bits(s.text, s.len);
    gr_str_release(&s);
    return gr_pool_printf(p->plan->pool, "%016llx", (unsigned long long)hash);
}

static gr_planned *planned_new(const gr_graph *g, source *s)
{
    gr_planned *p = gr_calloc(1, sizeof(*p));
    p->pool = gr_pool_new();
    p->summary = gr_summary_node(g, p->pool);
    p->choices = gr_pool_alloc(p->pool, (g->n_nodes + 1) * sizeof(*p->choices));
    s->pool = p->pool;
    s->summary = p->summary;
    find_knobs(s);
    return p;
}

void gr_planned_free(gr_planned *p)
{
    if (!p) return;
    gr_plan_free(p->plan);
    gr_program_free(p->program);
    gr_pool_free(p->pool);
    free(p);
}

static void settle(gr_planned *p, const source *s, const uint32_t *level)
{
    for (size_t i = 0; i <= s->g->n_nodes; i++)
        p->choices[i] = choose(s, level, i < s->g->n_nodes ? s->g->nodes[i] : s->summary);
    p->program = build((void *)(uintptr_t)s, level);
}

static void name_plan(gr_planned *p, const source *s)
{
    gr_str text = {0};
    gr_graph_resolved(s->g, &text);
    p->plan->graph = gr_pool_strdup(p->plan->pool, s->g->name);
    p->plan->graph_text = gr_pool_strndup(p->plan->pool, text.text, text.len);
    p->plan->numerics = numerics_of(p, s->g, s->o, p->plan->graph_text);
    gr_str_release(&text);
}

static gr_status prove(gr_planned *p, gr_diag *d)
{
    gr_status st = gr_plan_verify(p->plan, p->program, d);
    if (st) return gr_diag_error(d, (gr_loc){0}, GR_E_FAILED, "the verifier refuses this plan");
    p->binding = gr_plan_bind(p->plan, p->program, p->pool);
    return GR_OK;
}

gr_status gr_plan_graph(gr_planned **out, const gr_graph *g, const gr_plan_options *o, gr_diag *d)
{
    source s = {.g = g, .o = o};
    gr_planned *p = planned_new(g, &s);
    gr_source from = {&s, s.knobs, s.n, build, describe};
    gr_schedule_options options = {
        .hardware = o->hardware,
        .policy = o->policy,
        .budget_bytes = o->budget_bytes ? o->budget_bytes : o->hardware.device_bytes,
        .host_budget_bytes = o->host_budget_bytes ? o->host_budget_bytes : o->hardware.host_bytes};
    uint32_t *level = gr_calloc(s.n, sizeof(*level));
    gr_status st = gr_schedule(&p->plan, level, &from, &options, d);
    if (p->plan) {
        settle(p, &s, level);
        name_plan(p, &s);
    }
    if (!st) st = prove(p, d);
    free(level);
    if (st && st != GR_E_NOFIT)
        gr_planned_free(p);
    else
        *out = p;
    return st;
}

/* The levels whose program has the plan's objects: the plan names the choices only by their sizes. */
static bool find_levels(const source *s, const gr_plan *plan, uint32_t *level, size_t knob)
{
    if (knob == s->n) {
        gr_program *p = build((void *)(uintptr_t)s, level);
        gr_diag quiet;
        gr_diag_init(&quiet);
        bool same = gr_plan_verify(plan, p, &quiet) == GR_OK;
        gr_diag_release(&quiet);
        gr_program_free(p);
        return same;
    }
    for (level[knob] = 0; level[knob] < s->knobs[knob].n_levels; level[knob]++)
        if (find_levels(s, plan, level, knob + 1)) return true;
    level[knob] = 0;
    return false;
}

gr_status gr_plan_adopt(gr_planned **out, gr_plan *plan, const gr_graph *g, const gr_plan_options *o,
                        gr_diag *d)
{
    source s = {.g = g, .o = o};
    gr_planned *p = planned_new(g, &s);
    uint32_t *level = gr_calloc(s.n, sizeof(*level));
    find_levels(&s, plan, level, 0); /* not found: level 0, and prove says what does not fit */
    settle(p, &s, level);
    p->plan = plan;
    gr_status st = prove(p, d);
    free(level);
    if (st) {
        p->plan = NULL; /* still the caller's */
        gr_planned_free(p);
        return GR_E_INVALID;
    }
    *out = p;
    return GR_OK;
}

const gr_node *gr_planned_node(const gr_planned *p, const gr_graph *g, const char *name)
{
    return strcmp(name, p->summary->name) ? gr_graph_node(g, name) : p->summary;
}
