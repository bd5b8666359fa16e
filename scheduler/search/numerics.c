/* scheduler/search/numerics.c: what fixes the bits of a run. */
#include "ops/base/configs.h"
#include "ops/tunables.h"
#include "scheduler/search/planner_parts.h"
#include "graphs/loader/print.h"

#include <string.h>

#include <xxhash.h>

/* A step on the host has other bits where it is not the device's own kernel. */
bool gr_host_step_changes_bits(const gr_kernels *k)
{
    return k->optim_step != gr_kernels_cpu.optim_step;
}

static bool lr_depends_on_steps(const gr_graph *g)
{
    for (size_t i = 0; i < g->n_models; i++)
        if (g->models[i]->trained && g->models[i]->train.schedule != GR_LR_CONSTANT) return true;
    return false;
}

/* The graph without its validations, which change nothing, and without its pools. */
static gr_graph without_validation(const gr_graph *g, gr_arena *arena)
{
    gr_graph same = *g;
    gr_node *nodes = gr_arena_alloc(arena, (g->n_nodes + 1) * sizeof(*nodes));
    same.nodes = gr_arena_alloc(arena, (g->n_nodes + 1) * sizeof(*same.nodes));
    same.n_nodes = same.n_pools = 0;
    for (size_t i = 0; i < g->n_nodes; i++) {
        if (g->nodes[i]->timing.every) continue;
        nodes[i] = *g->nodes[i];
        nodes[i].placement.pool = NULL;
        same.nodes[same.n_nodes++] = &nodes[i];
    }
    return same;
}

/* invariant: the kernels are. */
static gr_model **without_residency(const gr_graph *g, bool invariant, gr_arena *arena)
{
    gr_model **out = gr_arena_alloc(arena, (g->n_models + 1) * sizeof(*out)),
             *models = gr_arena_alloc(arena, (g->n_models + 1) * sizeof(*models));
    for (size_t i = 0; i < g->n_models; i++) {
        models[i] = *g->models[i];
        for (int r = 0; r < GR_N_RESOURCES; r++) models[i].residency.policy[r] = -1;
        models[i].sharding.gather = GR_GATHER_DIRECT;
        models[i].sharding.over = GR_SHARD_AUTO;
        if (invariant || g->ranks < 2) models[i].sharding.expert = 1; /* a token has the same bits anywhere */
        models[i].sharding.mesh.chunks = 1;              /* each gradient is summed in the same order */
        if (g->ranks < 2) models[i].sharding.tensor = 1; /* it has no effect */
        if (g->ranks < 2)
            models[i].sharding.mesh = (gr_mesh){.size = {1}}, models[i].sharding.mesh_auto = false;
        models[i].pool = NULL;
        out[i] = &models[i];
    }
    return out;
}

/* What a layer has that the plain line of put_shape does not say. */
static bool is_plain(const gr_layer_desc *d)
{
    const gr_attention_desc *a = &d->attention;
    gr_layer_desc plain = gr_layer_plain(a->heads, a->kv_heads, a->head_dim, d->dense.inner);
    plain.norm_eps = d->norm_eps;
    plain.attention.qkv_bias = a->qkv_bias;
    plain.attention.qk_norm = a->qk_norm == GR_QK_NORM_HEAD ? a->qk_norm : GR_QK_NORM_NONE;
    if (a->rope.type == GR_ROPE_DEFAULT || a->rope.type == GR_ROPE_LLAMA3) plain.attention.rope = a->rope;
    plain.attention.rope.dims = a->head_dim;
    return gr_layer_same(&plain, d);
}

/* What a model is, whatever folder it lies in; but its weights. */
static void put_shape(gr_str *s, const gr_model_shape *m)
{
    const gr_layer_desc *d = gr_layer(m, 0);
    const gr_attention_desc *a = &d->attention;
    gr_str_printf(s, "\n%s %u %u %u %u %u %u %u", m->model_type, m->vocab, m->hidden, d->dense.inner,
                  m->layers, a->heads, a->kv_heads, a->head_dim);
    gr_str_printf(s, " %.9g %.17g %d%d%d%d%d", (double)m->norm_eps, a->rope.theta, m->head, m->value_bias,
                  m->tied, a->qkv_bias, a->qk_norm == GR_QK_NORM_HEAD);
    if (a->rope.type == GR_ROPE_LLAMA3)
        gr_str_printf(s, " %.17g %.17g %.17g %u", a->rope.factor, a->rope.low_freq_factor,
                      a->rope.high_freq_factor, a->rope.original_positions);
    for (uint32_t i = 0; i < m->n_eos; i++) gr_str_printf(s, " eos %d", m->eos[i]);
    if (m->n_kinds == 1 && is_plain(d) && m->embed_scale == 1 && m->residual_scale == 1 &&
        m->logit_scale == 1 && m->logit_softcap == 0 && !m->norm_plus_one)
        return;
    gr_str_printf(s, " scales %.9g %.9g %.9g %.9g %d", (double)m->embed_scale, (double)m->residual_scale,
                  (double)m->logit_scale, (double)m->logit_softcap, m->norm_plus_one);
    if (m->per_layer.vocab) gr_str_printf(s, " per_layer %u %u", m->per_layer.vocab, m->per_layer.width);
    for (uint32_t i = 0; i < m->n_kinds; i++) gr_layer_describe(&m->kinds[i], s);
    for (uint32_t l = 0; l < m->layers; l++) gr_str_printf(s, " %u", m->kind_of[l]);
}

/* What fixes the bits: the graph, its models' shapes, the device's arithmetic, the ranks, and of what the
 * planner chooses the cuts of passes where they matter. Of files it has the names: nothing is read for it,
 * and a run in another folder is the same; that a resumed run has the same data is checked apart
 * (ops/data.c). How long it runs and what it writes do not count, unless the learning rate follows the number
 * of iterations. */
const char *gr_numerics(const gr_graph *g, const gr_choices *choices, const gr_plan_options *o,
                        gr_arena *arena)
{
    gr_graph same = without_validation(g, arena);
    gr_str s = {0};
    bool keep_length = lr_depends_on_steps(g) || g->columns[g->column_progress]->read;
    same.run.checkpoint_every = same.run.checkpoint_keep = same.run.samples = 0;
    same.run.keep_all = false;
    same.run.checkpoint_last = true;
    same.run.best = NULL;
    same.run.stop.text = NULL;
    same.models = without_residency(g, o->kernels->invariant, arena);
    same.run.bits = GR_BITS_FIT;
    same.run.timeout = GR_RUN_TIMEOUT;
    same.run.stop_after_skipped = GR_STOP_AFTER_SKIPPED;
    same.run.check = GR_CHECK_EVERY;
    same.strict = same.nondeterministic = false; /* the kernels' own name says it, where they differ */
    if (!keep_length) same.run.steps = same.run.epochs = 0;
    gr_graph_resolved(&same, GR_PATHS_NAME, &s);
    for (size_t i = 0; i < g->n_models; i++) put_shape(&s, &g->models[i]->shape);
    gr_str_printf(&s, "\n%s %s ranks %u", o->kernels->device, o->kernels->numerics(),
                  g->canonical ? 0 : g->ranks);
    if (g->ranks > 1 && !g->canonical) gr_str_puts(&s, " dealt by length");
    for (size_t i = 0; i < g->n_nodes; i++) {
        const gr_choices *c = &choices[i];
        if (g->nodes[i]->timing.every) continue;
        if (c->shards && g->nodes[i]->op->trains && !g->canonical)
            gr_str_printf(&s, " in shards of %u", c->shards);
        if (g->n_roles > 1) gr_str_printf(&s, " on %u", g->roles[g->nodes[i]->placement.role].n);
        if (gr_cuts_change_bits(g, g->nodes[i], o->kernels)) gr_str_printf(&s, " even %u", c->micro_tokens);
        if ((!o->kernels->invariant || gr_node_races(g->nodes[i])) && g->nodes[i]->model)
            gr_str_printf(&s, " %u %u %u", c->kv_blocks, c->concurrent, c->prefill_tokens);
        if ((!o->kernels->invariant || gr_node_races(g->nodes[i])) && c->draft)
            gr_str_printf(&s, " drafts of %u", c->draft);
        if (gr_head_changes_bits(g->nodes[i], o->kernels)) gr_str_printf(&s, " %u", c->head_rows);
        if (gr_experts_change_bits(g->nodes[i], o->kernels)) gr_str_printf(&s, " runs of %u", c->expert_run);
        if (c->whole_grads) gr_str_puts(&s, " whole gradients");
        if (c->host_step && gr_host_step_changes_bits(o->kernels)) gr_str_puts(&s, " host step");
    }
    uint64_t hash = XXH3_64bits(s.text, s.len);
    gr_str_release(&s);
    return gr_arena_printf(arena, "%016llx", (unsigned long long)hash);
}
