/* ops/rollout.c: `generate` step by step: admission, the KV pool, sampling. */
#include "ops/rollout_impl.h"

#include "ops/kernels/carried.h"
#include "ops/kernels/experts.h"
#include "ops/kernels/workspace.h"
#include "ops/pass.h"
#include "ops/parallel/merge.h"
#include "ops/parallel/quantize.h"
#include "ops/parallel/sharding.h"
#include "ops/tunables.h"
#include "runtime/io/progress.h"

#include <stdlib.h>

/* ---- blocks ----------------------------------------------------------------------------------------------
 */

uint32_t gr_rollout_blocks_min(const gr_rows_bounds *b, gr_ring ring)
{
    uint32_t most = 0; /* not monotonous in the prompt's length: a tail block is there or not */
    for (uint32_t cut = 0; cut < GR_KV_BLOCK && cut < b->prompt_tokens; cut++) {
        const uint32_t prompt = b->prompt_tokens - cut, own = gr_own_blocks(prompt, b->response_tokens);
        most = GR_MAX(most, gr_prompt_blocks(prompt) + gr_ring_blocks(ring, own));
    }
    return most;
}

uint64_t gr_rollout_blocks_max(const gr_rows_bounds *b, uint32_t samples, uint32_t concurrent, gr_ring ring)
{
    uint64_t at_once = (concurrent + samples - 1) / samples + 2; /* one beginning, one ending in between */
    uint64_t groups = GR_MIN((uint64_t)b->groups, at_once), most = 0;
    for (uint32_t cut = 0; cut < GR_KV_BLOCK && cut < b->prompt_tokens; cut++) {
        const uint32_t prompt = b->prompt_tokens - cut, own = gr_own_blocks(prompt, b->response_tokens);
        most = GR_MAX(most,
                      groups * gr_prompt_blocks(prompt) + concurrent * (uint64_t)gr_ring_blocks(ring, own));
    }
    return most;
}

static uint32_t widest_window(const gr_model_shape *s)
{
    uint32_t most = 0;
    for (uint32_t l = 0; l < s->layers; l++)
        if (gr_layer_has_window(s, l)) most = GR_MAX(most, gr_layer(s, l)->attention.window);
    return most;
}

/* Conversations from outside, which may go back to any token of theirs. */
static bool serves(const gr_node *n)
{
    return ((const gr_generate_cfg *)n->cfg)->serve.host;
}

/* What is read at once, and the window before its first token: of positions that come again, so many are
 * there whatever block the first is in. What an environment said, or a sample had before, is read many tokens
 * at once. A conversation that is tried again begins behind its prompt, whose last tokens are in the first of
 * its own blocks: that one does not come again. */
gr_ring gr_rollout_ring(const gr_node *n, const gr_choices *how, const gr_kernels *k)
{
    const bool many = n->bounds.turns || n->bounds.kept;
    const uint64_t window = widest_window(gr_node_shape(n)),
                   fed = GR_MAX(many ? how->prefill_tokens : 1, 1 + how->draft),
                   span = window ? window - 1 + fed : 0, first = gr_turns_tries(n) > 1,
                   blocks = (span + GR_KV_BLOCK - 1) / GR_KV_BLOCK;
    const uint64_t own = gr_rollout_pooled(n, n->bounds).response_tokens / GR_KV_BLOCK + 2; /* at most */
    if (!k->rings || !window || first + blocks >= own || serves(n)) return (gr_ring){0};
    return (gr_ring){(uint32_t)first, (uint32_t)blocks};
}

/* The part of what can ever be used that the other layers have. */
uint32_t gr_rollout_window_blocks(const gr_node *n, const gr_choices *how, const gr_kernels *k)
{
    const gr_ring ring = gr_rollout_ring(n, how, k);
    const uint32_t samples = ((const gr_generate_cfg *)n->cfg)->samples;
    if (!ring.blocks) return 0;
    const gr_rows_bounds one = gr_rollout_pooled(n, n->bounds), b = gr_rollout_pooled(n, n->placement.task);
    const uint64_t least = gr_rollout_blocks_min(&one, ring),
                   most = gr_rollout_blocks_max(&b, samples, how->concurrent, ring),
                   all = gr_rollout_blocks_max(&b, samples, how->concurrent, (gr_ring){0});
    const uint64_t part = (most * GR_MIN((uint64_t)how->kv_blocks, all) + all - 1) / GR_MAX(all, UINT64_C(1));
    return (uint32_t)GR_MIN(GR_MAX(part, least), (uint64_t)UINT32_MAX - 1);
}

/* ---- what may be chosen -------------------------------------------------------------------------------- */

enum { PREFILL_MIN = 16, POOL_PARTS = 8 };

/* Sequences that could be decoded at once. */
static uint32_t most_at_once(const gr_node *n, const gr_kernels *k)
{
    const uint32_t given = ((const gr_generate_cfg *)n->cfg)->concurrent;
    return GR_MIN(given ? given : k->sizes.concurrent * n->placement.parts, n->placement.task.seqs);
}

/* Prompts are read many at a time where the device keeps the state of decode steps; else one by one. */
static uint32_t most_prefill(const gr_node *n, const gr_kernels *k)
{
    const uint32_t prompt = GR_MAX(n->bounds.prompt_tokens, 2u) - 1; /* the last token begins the decoding */
    const gr_rows_bounds *b = &n->placement.task;
    const uint32_t n_prompts = gr_rollout_opens(n) ? b->seqs : b->groups;
    const uint64_t said = n->bounds.turns ? n->bounds.response_tokens : 0; /* by an environment, at once */
    const uint64_t prompts = k->steps ? (uint64_t)prompt * GR_MAX(n_prompts, 1u) : prompt;
    return (uint32_t)GR_MIN((uint64_t)k->sizes.prefill_tokens, GR_MAX(prompts, said));
}

static void set_at_once(const gr_node *n, const gr_kernels *k, uint32_t level, gr_choices *c)
{
    c->concurrent = GR_MAX(most_at_once(n, k) >> level, 1u);
}

/* Parts of what so many sequences can ever use. */
static void set_pool(const gr_node *n, const gr_kernels *k, uint32_t level, gr_choices *c)
{
    const gr_generate_cfg *cfg = n->cfg;
    const gr_ring none = {0};
    const gr_rows_bounds one = gr_rollout_pooled(n, n->bounds), all = gr_rollout_pooled(n, n->placement.task);
    const uint64_t least = gr_rollout_blocks_min(&one, none),
                   most = c->concurrent == 1 ? least
                                             : gr_rollout_blocks_max(&all, cfg->samples, c->concurrent, none),
                   blocks = cfg->kv_blocks ? cfg->kv_blocks : most * (POOL_PARTS - level) / POOL_PARTS;
    (void)k;
    c->kv_blocks = (uint32_t)GR_MIN(GR_MAX(blocks, least), (uint64_t)UINT32_MAX - 1);
}

static void set_prefill(const gr_node *n, const gr_kernels *k, uint32_t level, gr_choices *c)
{
    c->prefill_tokens =
        GR_MAX(most_prefill(n, k) >> level, GR_MIN(most_prefill(n, k), (uint32_t)PREFILL_MIN));
}

static void describe_at_once(const gr_node *n, uint32_t level, const gr_choices *c, gr_str *out)
{
    (void)n, (void)level;
    gr_str_printf(out, "%u", c->concurrent);
}

static void describe_pool(const gr_node *n, uint32_t level, const gr_choices *c, gr_str *out)
{
    (void)n, (void)level;
    gr_str_printf(out, "%u blocks", c->kv_blocks);
}

static void describe_prefill(const gr_node *n, uint32_t level, const gr_choices *c, gr_str *out)
{
    (void)n, (void)level;
    gr_str_printf(out, "%u", c->prefill_tokens);
}

static void set_head(const gr_node *n, const gr_kernels *k, uint32_t level, gr_choices *c)
{
    gr_head_set(n, k, level, GR_MIN(c->concurrent, n->placement.task.seqs), c);
}

static void set_draft(const gr_node *n, const gr_kernels *k, uint32_t level, gr_choices *c)
{
    (void)k;
    c->draft = level ? 0 : ((const gr_generate_cfg *)n->cfg)->speculate.tokens;
}

static void describe_draft(const gr_node *n, uint32_t level, const gr_choices *c, gr_str *out)
{
    (void)n, (void)level;
    gr_str_printf(out, "%u", c->draft);
}

size_t gr_rollout_tunables(const gr_graph *g, const gr_node *n, const gr_kernels *k, const gr_choices *c,
                           gr_tunable *out)
{
    const gr_level_bits bits = k->invariant && !gr_node_races(n) ? GR_BITS_SAME : GR_BITS_DIFFER;
    size_t count = 0;
    (void)g, (void)c;
    out[count++] = (gr_tunable){.name = "sequences at once",
                                .n_levels = 1 + gr_halvings(most_at_once(n, k), 1),
                                .bits = bits,
                                .set = set_at_once,
                                .describe = describe_at_once};
    out[count++] = (gr_tunable){.name = "KV pool",
                                .n_levels = ((const gr_generate_cfg *)n->cfg)->kv_blocks ? 1 : POOL_PARTS,
                                .bits = bits,
                                .set = set_pool,
                                .describe = describe_pool};
    out[count++] = (gr_tunable){.name = "prompt tokens at once",
                                .n_levels = 1 + gr_halvings(most_prefill(n, k), PREFILL_MIN),
                                .bits = bits,
                                .set = set_prefill,
                                .describe = describe_prefill};
    out[count++] = gr_head_tunable(n, k, set_head);
    const gr_speculate_cfg *drafts = &((const gr_generate_cfg *)n->cfg)->speculate;
    if (drafts->tokens && !drafts->always)
        out[count++] = (gr_tunable){.name = "drafted tokens",
                                    .n_levels = 2,
                                    .bits = GR_BITS_SPARE,
                                    .exact = bits == GR_BITS_SAME,
                                    .set = set_draft,
                                    .describe = describe_draft};
    return count;
}

void gr_rollout_default_choice(const gr_node *n, const gr_kernels *k, gr_choices *c)
{
    set_at_once(n, k, 0, c);
    set_pool(n, k, 0, c);
    set_prefill(n, k, 0, c);
    set_head(n, k, 0, c);
    set_draft(n, k, !((const gr_generate_cfg *)n->cfg)->speculate.always, c);
}

bool gr_rollout_runs_with(const gr_node *n, const gr_choices *c)
{
    const gr_rows_bounds one = gr_rollout_pooled(n, n->bounds);
    return c->kv_blocks >= gr_rollout_blocks_min(&one, (gr_ring){0}) && c->concurrent && c->prefill_tokens &&
           c->head_rows && c->draft <= ((const gr_generate_cfg *)n->cfg)->speculate.tokens;
}

/* ---- declaring -------------------------------------------------------------------------------------------
 */

uint32_t gr_rollout_choices(const gr_graph *g, const gr_node *n)
{
    const gr_model_shape *s = &n->model->shape;
    return gr_rows_routed(g, n) ? gr_model_routers(s, s->layers).choices : 0;
}

static gr_step_bounds bounds_of(const gr_graph *g, const gr_node *n, const gr_choices *how,
                                const gr_kernels *k)
{
    const gr_generate_cfg *cfg = n->cfg;
    const uint32_t slots = GR_MIN(how->concurrent, n->placement.task.seqs);
    /* while a prompt is read, none of its own samples run; while an answer is, or what a sample had before,
     * all others may */
    const bool alone = n->bounds.turns || n->bounds.kept;
    const uint32_t others =
        n->placement.task.seqs - GR_MIN(n->placement.task.seqs, alone ? 1u : cfg->samples);
    const gr_ring ring = gr_rollout_ring(n, how, k);
    const uint32_t blocks = gr_blocks_of(n->bounds.prompt_tokens + n->bounds.response_tokens);
    const uint32_t each = 1 + how->draft,
                   tokens = GR_MAX(slots * each, GR_MIN(slots, others) * each + how->prefill_tokens);
    return (gr_step_bounds){.tokens = tokens,
                            .seqs = slots + 1,
                            .samples = slots,
                            .rows = slots * each,
                            .slots = gr_rollout_room(n, how, k).slots,
                            .choices = gr_rollout_choices(g, n),
                            .expert_run = gr_rollout_expert_run(n, tokens),
                            .stride = ring.blocks ? 2 * blocks : blocks,
                            .window_at = ring.blocks ? blocks : 0,
                            .ring = ring};
}

uint32_t gr_rollout_expert_run(const gr_node *n, uint32_t tokens)
{
    return gr_experts_are_divided(n) ? GR_MIN(tokens, (uint32_t)GR_EXPERT_RUN) : 0;
}

void gr_rollout_meet(gr_task *w, const gr_node *n)
{
    if (!gr_experts_are_divided(n)) return;
    w->comm.mesh = n->placement.mesh;
    w->comm.peers = gr_mesh_size(&w->comm.mesh, GR_AXIS_EXPERT);
    w->comm.sums = 1;
    w->comm.agrees = true;
}

static gr_step_arrays layout(gr_workspace *c, const gr_step_bounds *b)
{
    gr_step_arrays a = {0};
    a.ids = gr_workspace_bytes(c, b->tokens * sizeof(*a.ids));
    a.offset = gr_workspace_bytes(c, (b->seqs + 1ull) * sizeof(*a.offset));
    a.cached = gr_workspace_bytes(c, b->seqs * sizeof(*a.cached));
    a.table = gr_workspace_bytes(c, (uint64_t)b->seqs * b->stride * sizeof(*a.table));
    a.row = gr_workspace_bytes(c, b->rows * sizeof(*a.row));
    if (b->slots) a.held = gr_workspace_bytes(c, b->seqs * sizeof(*a.held));
    if (b->slots && b->rows > b->samples)
        a.held_after = gr_workspace_bytes(c, b->tokens * sizeof(*a.held_after));
    a.draw = gr_workspace_bytes(c, b->rows * sizeof(*a.draw));
    a.out_id = gr_workspace_bytes(c, b->rows * sizeof(*a.out_id));
    a.out_logprob = gr_workspace_floats(c, b->rows);
    if (b->choices) a.choices = gr_workspace_bytes(c, (uint64_t)b->tokens * b->choices * sizeof(*a.choices));
    return a;
}

static uint64_t arrays_bytes(const gr_step_bounds *b)
{
    gr_workspace c = {0};
    layout(&c, b);
    return c.used;
}

gr_step_arrays gr_rollout_arrays_at(void *block, const gr_step_bounds *b)
{
    gr_workspace c = {.base = block};
    return layout(&c, b);
}

uint32_t gr_rollout_weights(gr_tasks *p, const gr_node *n, const gr_kernels *k, uint32_t bucket)
{
    return gr_node_fp8(n) ? gr_quantize_object(p, k, n->model, true, bucket)
                          : gr_sharding_rollout(p, k, n->model, bucket);
}

uint32_t gr_rollout_kv_object(gr_tasks *p, const gr_node *n, const gr_choices *how, const gr_kernels *k)
{
    const gr_model_shape *s = gr_node_shape(n);
    gr_object o = {.name = gr_arena_printf(p->arena, "%s.kv", n->name),
                   .category = GR_CAT_KV,
                   .span = GR_SPAN_SCRATCH,
                   .place = GR_DEVICE,
                   .bytes = gr_layer_state_at(k, s, s->layers, gr_rollout_room(n, how, k)) +
                            gr_rollout_ahead_kv(n, how, k),
                   .model = n->model->name,
                   .bucket = GR_NONE};
    return gr_tasks_object(p, &o);
}

/* With any temperature that it may have, where that changes. */
static gr_sampling sampling_of(const gr_generate_cfg *c)
{
    return (gr_sampling){
        .temperature = (float)c->temperature.value, .top_p = (float)c->top_p, .top_k = c->top_k};
}

uint32_t gr_rollout_head_ws(gr_tasks *p, const gr_node *n, const gr_choices *how, const gr_kernels *k)
{
    const gr_model_shape *s = gr_node_shape(n);
    const gr_sampling sampling = sampling_of(n->cfg);
    return gr_tasks_temp(
        p, GR_CAT_WORKSPACE,
        k->head_ws_bytes(s, gr_rollout_head_rows(how, k), gr_sampling_use(&sampling, s->vocab), how->threads),
        "head_ws");
}

static uint32_t trips_max(const gr_node *n, const gr_choices *how)
{
    const gr_rows_bounds b = gr_rollout_pooled(n, n->bounds);
    const uint64_t read = b.prompt_tokens / how->prefill_tokens + 1,
                   had = n->bounds.kept ? b.response_tokens / how->prefill_tokens + 1 : 0;
    uint64_t prefill = n->placement.task.groups * read + n->placement.task.seqs * had;
    uint64_t trips = (uint64_t)n->placement.task.seqs * b.response_tokens * gr_turns_tries(n) + prefill +
                     gr_turns_trips(n) + gr_turns_rereads(n, how) +
                     gr_experts_are_divided(n); /* in the last, none has anything left */
    return (uint32_t)GR_MIN(trips, (uint64_t)UINT32_MAX - 1);
}

/* What the loop is expected to do, every response running to its end. A group is admitted when its prompt is
 * in the pool, and one prompt is read at a time: either that or the slots are what there is too little of. */
typedef struct rollout_cost {
    uint32_t trips;
    double tokens, samples, context; /* of a trip on average; context: keys that a token attends to */
    double running, sampled;         /* sequences that sample; tokens of theirs that are not thrown away */
} rollout_cost;

static rollout_cost cost_of(const gr_node *n, const gr_choices *how)
{
    const gr_rows_bounds steady = gr_rollout_steady(n), *b = &steady;
    const gr_rows_bounds pooled = gr_rollout_pooled(n, steady);
    uint64_t own = gr_own_blocks(pooled.prompt_tokens, pooled.response_tokens);
    uint64_t at_once = GR_MAX(GR_MIN((uint64_t)how->concurrent, how->kv_blocks / own), (uint64_t)1);
    uint64_t waves = (b->seqs + at_once - 1) / at_once;
    uint64_t chunks = (b->prompt_tokens - 1 + (uint64_t)how->prefill_tokens - 1) / how->prefill_tokens;
    const gr_generate_cfg *cfg = n->cfg;
    const double yield = gr_drafts_yield(how->draft, cfg->speculate.rate);
    const uint64_t steps = (uint64_t)(b->response_tokens / yield + 0.999);
    uint64_t trips = GR_MAX(b->groups * chunks + steps, waves * steps + chunks);
    trips = GR_MIN(trips, (uint64_t)trips_max(n, how));
    double prompts = (double)b->groups * (b->prompt_tokens - 1),
           samples = (double)b->seqs * b->response_tokens * (1 + how->draft) / yield;
    double first = b->prompt_tokens / 2.0, later = b->prompt_tokens + b->response_tokens / 2.0;
    return (rollout_cost){.trips = (uint32_t)trips,
                          .tokens = (prompts + samples) / (double)trips,
                          .samples = samples / (double)trips,
                          .running = samples / (1 + how->draft) / (double)trips,
                          .sampled = samples / (1 + how->draft) * yield / (double)trips,
                          .context = (prompts * first + samples * later) / (prompts + samples)};
}

/* Operands, where the device is fed step by step. */
enum { PLAN_ROWS, PLAN_STEP, PLAN_STAGING, PLAN_KV, N_PLAN };
enum { /* a layer, embed, embeddings of each layer */
       STEP_WEIGHTS,
       STEP_ARRAYS,
       STEP_X,
       N_EMBED,
       STEP_WS = N_EMBED,
       STEP_CARRIED, /* what layers hand on beside x; GR_NONE */
       N_PER_LAYER,
       STEP_KV = N_PER_LAYER,
       N_STEP
};
enum {
    SAMPLE_NORM,
    SAMPLE_EMBED,
    SAMPLE_ARRAYS,
    SAMPLE_X,
    SAMPLE_WS,
    SAMPLE_ROWS,
    SAMPLE_ROUTES,
    SAMPLE_HIDDEN, /* this and the next: where a layer that predicts a further token goes on */
    SAMPLE_STAGING,
    N_SAMPLE
};

uint32_t gr_rollout_worked(gr_tasks *p, const gr_node *n)
{
    if (!n->work.groups) return gr_rows_object(p, n);
    const gr_object o = {.name = gr_arena_printf(p->arena, "%s.queue", n->name),
                         .category = GR_CAT_COLUMNS,
                         .span = GR_SPAN_KEEP,
                         .place = GR_HOST,
                         .bytes = gr_rows_bytes(&n->work),
                         .bucket = GR_NONE};
    return gr_tasks_object(p, &o);
}

void gr_rollout_declare_finish(const gr_node *n, uint32_t worked, uint32_t routes, gr_tasks *p)
{
    const uint32_t rows = gr_rows_object(p, n);
    if (rows != worked)
        gr_tasks_waits(gr_tasks_run(
            p, ROLLOUT_TAKE, 0,
            (gr_use[]){[TAKE_QUEUE] = {worked, GR_UPDATE}, [TAKE_ROWS] = {rows, GR_WRITE}}, N_TAKE, "take"));
    gr_use *uses = gr_arena_alloc(p->arena, (N_FINISH + n->results.n_columns) * sizeof(*uses));
    uses[FINISH_ROWS] = (gr_use){rows, GR_UPDATE};
    uses[FINISH_ROUTES] = (gr_use){routes, GR_UPDATE};
    for (size_t i = 0; i < n->results.n_columns; i++)
        uses[N_FINISH + i] = (gr_use){gr_column_object(p, n->results.columns[i]), GR_WRITE};
    gr_sharding_share(p, rows);
    gr_sharding_share(p, routes);
    gr_tasks_waits(gr_tasks_run(p, ROLLOUT_FINISH, 0, uses, N_FINISH + n->results.n_columns, "finish"));
}

typedef struct step_objects {
    uint32_t step, x, carried;
} step_objects;

/* Embeddings of each layer, of a step's tokens. */
static void declare_per_layer(const gr_node *n, const gr_choices *how, const gr_kernels *k, gr_tasks *p,
                              const step_objects *o, const gr_step_bounds *b, double tokens)
{
    const gr_model_shape *s = gr_node_shape(n);
    const uint32_t ws = gr_tasks_temp(
        p, GR_CAT_WORKSPACE, gr_per_layer_ws_bytes(k, s, b->tokens, how->threads, false), "per_layer_ws");
    gr_task *task = gr_tasks_run(
        p, ROLLOUT_PER_LAYER, 0,
        (gr_use[]){[STEP_WEIGHTS] = {gr_rollout_weights(p, n, k, gr_model_per_layer_bucket(s)), GR_READ},
                   [STEP_ARRAYS] = {o->step, GR_READ},
                   [STEP_X] = {o->x, GR_READ},
                   [STEP_WS] = {ws, GR_WRITE},
                   [STEP_CARRIED] = {o->carried, GR_WRITE}},
        N_PER_LAYER, "per_layer");
    gr_per_layer_cost(task, k, s, tokens, 1);
}

void gr_rollout_declare(const gr_graph *g, const gr_node *n, const gr_choices *how, const gr_kernels *k,
                        gr_tasks *p)
{
    gr_merge_declare(p, k, n->model, how->threads);
    gr_sharding_sync(p, k, n->model);
    if (gr_rollout_ahead(n, how)) gr_sharding_sync(p, k, n->second);
    if (gr_node_fp8(n)) gr_quantize_declare(p, k, n->model, true);
    p->rollout = true; /* from here on the device is the rollout's */
    if (k->steps) {
        gr_rollout_steps_declare(g, n, how, k, p);
        return;
    }
    const gr_model_shape *s = gr_node_shape(n);
    gr_step_bounds b = bounds_of(g, n, how, k);
    gr_pass_bounds pass = {.tokens = b.tokens,
                           .seqs = b.seqs,
                           .length = n->bounds.prompt_tokens + n->bounds.response_tokens,
                           .threads = how->threads,
                           .expert_run = b.expert_run};
    const gr_use_mode begins = n->work.groups ? GR_UPDATE : GR_WRITE;
    uint32_t rows = gr_rollout_worked(p, n), prompts = gr_rows_object(p, n->of),
             routes = gr_routes_object(p, g, n);
    uint32_t kv = gr_rollout_kv_object(p, n, how, k);
    uint32_t step = gr_tasks_temp(p, GR_CAT_WORKSPACE, arrays_bytes(&b), "step");
    uint32_t staging = gr_tasks_host(p, GR_CAT_WORKSPACE, arrays_bytes(&b), "staging");
    uint32_t x = gr_tasks_temp(p, GR_CAT_ACTIVATIONS, gr_hidden_bytes(k, s, b.tokens), "x");
    const uint32_t carried = gr_carried_object(p, k, s, b.tokens, false, "", "carried");
    uint32_t ws = gr_tasks_temp(p, GR_CAT_WORKSPACE, gr_layers_ws_bytes(k, s, &pass, GR_LAYER_EXTEND), "ws");
    uint32_t head_ws = gr_rollout_head_ws(p, n, how, k);
    const uint32_t hidden = gr_rollout_ahead_hidden(p, n, how, k, b.tokens);

    gr_tasks_run(p, ROLLOUT_BEGIN, 0,
                 (gr_use[]){[BEGIN_PROMPTS] = {prompts, GR_READ},
                            [BEGIN_ROWS] = {rows, begins},
                            [BEGIN_KV] = {kv, GR_WRITE},
                            [BEGIN_ROUTES] = {routes, GR_WRITE}},
                 N_BEGIN, "begin");
    const rollout_cost cost = cost_of(n, how);
    gr_tasks_loop(p, ROLLOUT_LOOP, trips_max(n, how), true, "tokens")->loop.trips_expected = cost.trips;
    gr_task *plan = gr_tasks_run(p, ROLLOUT_PLAN, 0,
                                 (gr_use[]){[PLAN_ROWS] = {rows, n->bounds.turns ? GR_UPDATE : GR_READ},
                                            [PLAN_STEP] = {step, GR_WRITE},
                                            [PLAN_STAGING] = {staging, GR_WRITE},
                                            [PLAN_KV] = {kv, GR_UPDATE}},
                                 N_PLAN, "plan");
    gr_turns_meet(plan, n);
    gr_rollout_meet(plan, n);
    gr_tasks_run(p, ROLLOUT_EMBED, 0,
                 (gr_use[]){[STEP_WEIGHTS] = {gr_rollout_weights(p, n, k, 0), GR_READ},
                            [STEP_ARRAYS] = {step, GR_READ},
                            [STEP_X] = {x, GR_WRITE}},
                 N_EMBED, "embed");
    if (s->per_layer.vocab)
        declare_per_layer(n, how, k, p, &(step_objects){step, x, carried}, &b, cost.tokens);
    for (uint32_t l = 0; l < s->layers; l++) {
        gr_task *w = gr_tasks_run(p, ROLLOUT_LAYER, l,
                                  (gr_use[]){[STEP_WEIGHTS] = {gr_rollout_weights(p, n, k, 1 + l), GR_READ},
                                             [STEP_ARRAYS] = {step, b.choices ? GR_UPDATE : GR_READ},
                                             [STEP_X] = {x, GR_UPDATE},
                                             [STEP_KV] = {kv, GR_UPDATE},
                                             [STEP_WS] = {ws, GR_WRITE},
                                             [STEP_CARRIED] = {carried, GR_READ}},
                                  N_STEP, "layer.%u", l);
        gr_layer_mesh_cost(w, k, n, l, cost.tokens, 2 * cost.context, 1);
        gr_experts_price(w, k, s, l, cost.tokens, b.expert_run, 0);
        w->cost.paged = true;
    }
    gr_head_cost(
        gr_tasks_run(
            p, ROLLOUT_SAMPLE, 0,
            (gr_use[]){[SAMPLE_NORM] = {gr_rollout_weights(p, n, k, 1 + s->layers), GR_READ},
                       [SAMPLE_EMBED] = {s->tied ? gr_rollout_weights(p, n, k, 0) : GR_NONE, GR_READ},
                       [SAMPLE_ARRAYS] = {step, GR_UPDATE},
                       [SAMPLE_X] = {x, GR_READ},
                       [SAMPLE_WS] = {head_ws, GR_WRITE},
                       [SAMPLE_ROWS] = {rows, GR_UPDATE},
                       [SAMPLE_ROUTES] = {routes, GR_UPDATE},
                       [SAMPLE_HIDDEN] = {hidden, GR_WRITE},
                       [SAMPLE_STAGING] = {hidden == GR_NONE ? GR_NONE : staging, GR_UPDATE}},
            N_SAMPLE, "sample"),
        k, s, cost.samples, 1);
    if (hidden != GR_NONE)
        gr_rollout_declare_ahead(n, how, k, p,
                                 &(gr_ahead_objects){.step = step,
                                                     .staging = staging,
                                                     .x = x,
                                                     .kv = kv,
                                                     .hidden = hidden,
                                                     .tokens = b.tokens,
                                                     .fed = cost.tokens - cost.samples + cost.sampled,
                                                     .running = cost.running,
                                                     .context = cost.context});
    gr_tasks_end(p);
    gr_rollout_declare_finish(n, rows, routes, p);
}

/* ---- running ---------------------------------------------------------------------------------------------
 */

/* What metrics.jsonl has of drafts. */
static void name_metrics(gr_rollout *r)
{
    const char *name = r->node->name;
    r->draft.drafted_metric = gr_session_name(r->session, r->node, "%s.drafted", name);
    r->draft.accepted_metric = gr_session_name(r->session, r->node, "%s.accepted", name);
    r->draft.length = gr_session_name(r->session, r->node, "%s.accepted_length", name);
    r->draft.per_step = gr_session_name(r->session, r->node, "%s.tokens_per_step", name);
}

gr_status gr_rollout_open(gr_session *s, const gr_node *n, void **state, gr_diag *d)
{
    gr_rollout *r = gr_calloc(1, sizeof(*r));
    *r = (gr_rollout){.session = s,
                      .node = n,
                      .cfg = n->cfg,
                      .work = *gr_rollout_work(n),
                      .longest = n->bounds.response_tokens,
                      .room = gr_rollout_pooled(n, n->bounds).response_tokens};
    r->groups = gr_calloc(r->work.groups, sizeof(*r->groups));
    r->to_admit = gr_calloc(r->work.groups, sizeof(*r->to_admit));
    if (n->bounds.turns) r->again = gr_calloc(r->work.seqs, sizeof(*r->again));
    if (n->bounds.kept) gr_kept_open(r);
    if (r->cfg->speculate.tokens) name_metrics(r);
    if (gr_experts_are_divided(n)) r->expert_trips = gr_session_name(s, n, "%s.expert_trips", n->name);
    *state = r;
    return n->bounds.turns ? gr_turns_open(r, d) : GR_OK;
}

gr_status gr_rollout_inputs(const void *state, const char *owner, gr_inputs *in, gr_diag *d)
{
    const gr_rollout *r = state;
    return r->turns ? gr_turns_inputs(r, owner, in, d) : GR_OK;
}

void gr_rollout_close(void *state)
{
    gr_rollout *r = state;
    if (!r) return;
    gr_rollout_steps_close(r);
    gr_turns_close(r);
    gr_kept_close(r);
    free(r->to_admit);
    free(r->again);
    free(r->tables);
    free(r->spares);
    free(r->aheads);
    free(r->group_tables);
    free(r->slots);
    free(r->groups);
    for (int i = 0; i < 2; i++) {
        free(r->pool[i].block);
        free(r->copy[i].from);
    }
    free(r->held_from);
    free(r->out_id);
    free(r->out_logprob);
    free(r->fed);
    free(r->sources);
    free(r->out_choices);
    gr_str_release(&r->tail);
    free(r);
}

/* What each slot has of drafts; places of states behind those of samples and of the prompt. */
static void take_draft_arrays(gr_rollout *r, const gr_choices *how)
{
    const uint32_t samples = r->bounds.samples, n = samples * how->draft,
                   first = samples + gr_rollout_prompt_slots(r->session->kernels);
    if (r->bounds.slots && n) r->spares = gr_calloc(n, sizeof(*r->spares));
    if (gr_rollout_ahead(r->node, how)) r->aheads = gr_calloc(n, sizeof(*r->aheads));
    for (uint32_t i = 0; r->spares && i < n; i++) r->spares[i] = first + i;
    for (uint32_t i = 0; i < samples; i++) {
        if (r->spares) r->slots[i].spare = r->spares + (size_t)i * how->draft;
        if (r->aheads) r->slots[i].ahead = r->aheads + (size_t)i * how->draft;
    }
}

/* Host arrays whose sizes follow from the planner's choices: taken at the first iteration, then kept. */
static void take_arrays(gr_rollout *r, const gr_choices *how)
{
    if (r->slots) return;
    r->bounds = bounds_of(r->session->graph, r->node, how, r->session->kernels);
    r->slots = gr_calloc(r->bounds.samples, sizeof(*r->slots));
    r->tables = gr_calloc((size_t)r->bounds.samples * r->bounds.stride, sizeof(*r->tables));
    for (uint32_t i = 0; i < r->bounds.samples; i++)
        r->slots[i] = (gr_rollout_slot){.table = r->tables + (size_t)i * r->bounds.stride, .held = i};
    take_draft_arrays(r, how);
    r->group_tables = gr_calloc((size_t)r->work.groups * r->bounds.stride, sizeof(*r->group_tables));
    r->pool[0].cap = how->kv_blocks;
    r->pool[1].cap = gr_rollout_window_blocks(r->node, how, r->session->kernels);
    for (int i = 0; i < 2; i++) {
        r->pool[i].block = gr_calloc(r->pool[i].cap, sizeof(*r->pool[i].block));
        r->copy[i].from = gr_calloc(2 * (size_t)r->bounds.samples, sizeof(*r->copy[i].from));
        r->copy[i].to = r->copy[i].from + r->bounds.samples;
    }
    r->held_from = gr_calloc(2 * (size_t)r->bounds.slots, sizeof(*r->held_from));
    r->held_to = r->held_from + r->bounds.slots;
    r->out_id = gr_calloc(r->bounds.rows, sizeof(*r->out_id));
    r->out_logprob = gr_calloc(r->bounds.rows, sizeof(*r->out_logprob));
    r->fed = gr_calloc(r->bounds.rows, sizeof(*r->fed));
    if (how->draft && r->cfg->speculate.from != GR_DRAFT_MTP)
        r->sources = gr_calloc(r->cfg->samples, sizeof(*r->sources));
    if (r->bounds.choices)
        r->out_choices = gr_calloc((size_t)r->bounds.tokens * r->bounds.choices, sizeof(*r->out_choices));
}

static void free_all(gr_free_blocks *f)
{
    f->n = f->cap;
    for (uint32_t i = 0; i < f->n; i++) f->block[i] = f->n - 1 - i;
}

void gr_rollout_put_prompt(gr_rollout *r, const gr_rows *prompts, uint32_t prompt, gr_rows *rows, uint32_t g)
{
    const uint32_t samples = r->cfg->samples, tokens = r->cfg->serve.host ? 1 : prompts->prompt_len[prompt];
    rows->record[g] = prompts->record[prompt];
    for (uint32_t seq = g * samples; seq < (g + 1) * samples; seq++) {
        rows->group[seq] = g;
        rows->prompt_len[seq] = tokens;
        rows->response_len[seq] = 0;
        rows->truncated[seq] = rows->ended[seq] = 0;
        memcpy(rows->ids + (size_t)seq * rows->stride, gr_rows_ids(prompts, prompt),
               tokens * sizeof(int32_t));
    }
}

/* All rows are of this iteration's prompts. */
static void begin_rows(gr_rollout *r, const gr_rows *prompts, gr_rows *rows)
{
    const uint32_t n_groups = *prompts->n_groups, samples = r->cfg->samples;
    const gr_rows_part own = gr_rows_task(r->session, r->node, prompts, 0, n_groups);
    for (uint32_t g = own.group; g < own.group_end; g++) r->to_admit[r->n_groups++] = g;
    r->n_seqs = r->n_groups * samples;
    if (r->session->ranks > 1) /* what the others will add to */
        memset(rows->n_groups, 0, gr_rows_bytes(&r->node->bounds));
    *rows->n_groups = n_groups;
    *rows->n_seqs = n_groups * samples;
    /* those of other ranks they put themselves, as an environment may have changed them when all come
     * together
     */
    for (uint32_t g = own.group; g < own.group_end; g++) gr_rollout_put_prompt(r, prompts, g, rows, g);
    if (r->turns) gr_turns_clear(r, rows, 0, r->node->bounds.seqs);
}

static void begin(gr_rollout *r, const gr_rows *prompts, gr_rows *rows, const gr_choices *how)
{
    take_arrays(r, how);
    r->current = r->n_groups = r->n_seqs = r->trip = 0;
    r->finished = r->n_slots = r->n_running = r->n_left = r->n_again = 0;
    r->tokens = r->spared = 0;
    r->left = (gr_rollout_left){.more = true};
    r->exchanges = (gr_exchanges){0};
    r->pace = (gr_rollout_pace){0};
    r->draft.steps = r->draft.drafts = r->draft.drafted = r->draft.accepted = 0;
    for (int i = 0; i < 2; i++) free_all(&r->pool[i]);
    if (r->turns) gr_turns_begin(r, rows);
    if (r->kept)
        gr_kept_begin(r, prompts, rows);
    else
        begin_rows(r, prompts, rows);
    for (uint32_t g = 0; g < *rows->n_groups; g++)
        r->groups[g] = (gr_rollout_group){
            .prompt = gr_rollout_opens(r->node) ? 1 : rows->prompt_len[g * r->cfg->samples],
            .held = r->bounds.samples,
            .table = r->group_tables + (size_t)g * r->bounds.stride};
}

static void take_blocks(gr_free_blocks *f, uint32_t *to, uint32_t n)
{
    for (uint32_t i = 0; i < n; i++) to[i] = f->block[--f->n];
}

static void give_blocks(gr_free_blocks *f, const uint32_t *from, uint32_t n)
{
    for (uint32_t i = 0; i < n; i++) f->block[f->n++] = from[i];
}

bool gr_rollout_fits(const gr_rollout *r, uint64_t shared, uint64_t samples, uint32_t own)
{
    const gr_step_bounds *b = &r->bounds;
    if (r->pool[0].n < shared + samples * own) return false;
    return !b->window_at || r->pool[1].n >= shared + samples * gr_ring_blocks(b->ring, own);
}

void gr_rollout_copy_table(const gr_rollout *r, uint32_t *to, const uint32_t *from, uint32_t n)
{
    const uint32_t at = r->bounds.window_at;
    memcpy(to, from, n * sizeof(*to));
    if (at) memcpy(to + at, from + at, n * sizeof(*to));
}

bool gr_rollout_begin_group(gr_rollout *r, gr_rollout_group *g)
{
    const uint32_t need = gr_prompt_blocks(g->prompt), at = r->bounds.window_at;
    if (!gr_rollout_fits(r, need, 1, gr_own_blocks(g->prompt, r->room))) return false;
    take_blocks(&r->pool[0], g->table, need);
    if (at) take_blocks(&r->pool[1], g->table + at, need);
    g->begun = true;
    return true;
}

/* A sample's own blocks, from this column on; those of layers with a window come again. */
static void take_own(gr_rollout *r, gr_rollout_slot *s, uint32_t from)
{
    const gr_step_bounds *b = &r->bounds;
    uint32_t *ring = s->table + b->window_at + from;
    take_blocks(&r->pool[0], s->table + from, s->n_own);
    if (!b->window_at) return;
    const uint32_t n = gr_ring_blocks(b->ring, s->n_own);
    take_blocks(&r->pool[1], ring, n);
    for (uint32_t i = n; i < s->n_own; i++) ring[i] = ring[gr_ring_at(b->ring, i)];
}

static void copy_block(gr_rollout *r, const gr_rollout_group *g, const gr_rollout_slot *s, uint32_t column)
{
    for (uint32_t i = 0; i <= (r->bounds.window_at > 0); i++) {
        const uint32_t at = column + i * r->bounds.window_at;
        r->copy[i].from[r->n_copies] = g->table[at];
        r->copy[i].to[r->n_copies] = s->table[at];
    }
    r->n_copies++;
}

/* Samples of a group that is kept have ended before. */
static void skip_finished(const gr_rollout *r, gr_rollout_group *g, const gr_rows *rows)
{
    const uint32_t first = (uint32_t)(g - r->groups) * r->cfg->samples;
    while (rows->finished && g->admitted < r->cfg->samples && rows->finished[first + g->admitted])
        g->admitted++;
}

/* A sequence into s, which waits or goes on from `cached` on. */
static void put(gr_rollout *r, gr_rollout_slot *s, uint32_t seq, const gr_rows *rows)
{
    s->seq = seq;
    s->waits = false;
    s->drafts = (gr_draft_record){0};
    s->n_ahead = s->fed = 0;
    s->next = gr_rows_ids(rows, seq)[s->cached];
    if (r->turns) gr_turns_start(r, s, rows);
}

/* What a sample of a group goes on from: the blocks and the state of its prompt. */
static void share_prompt(gr_rollout *r, gr_rollout_slot *s, const gr_rollout_group *g)
{
    const uint32_t shared = gr_full_blocks(g->prompt);
    s->alone = false;
    s->cached = g->prompt - 1;
    s->n_own = gr_own_blocks(g->prompt, r->room);
    gr_rollout_copy_table(r, s->table, g->table, shared);
    take_own(r, s, shared);
    if (gr_prompt_blocks(g->prompt) > shared) /* the last shared block is not full: it goes on in a copy */
        copy_block(r, g, s, shared);
    if (r->bounds.slots && g->held != s->held) { /* it goes on from its prompt's state */
        r->held_from[r->n_held] = g->held;
        r->held_to[r->n_held++] = s->held;
    }
}

void gr_rollout_place(gr_rollout *r, gr_rollout_slot *s, gr_rollout_group *g, const gr_rows *rows)
{
    skip_finished(r, g, rows);
    s->group = (uint32_t)(g - r->groups);
    share_prompt(r, s, g);
    g->running++;
    put(r, s, s->group * r->cfg->samples + g->admitted++, rows);
    skip_finished(r, g, rows);
}

/* Own blocks of a sequence whose prompt is read into them, too. */
static uint32_t blocks_alone(const gr_rollout *r, uint32_t seq, const gr_rows *rows)
{
    return gr_own_blocks(1, r->groups[rows->group[seq]].prompt - 1 + r->room);
}

uint32_t gr_rollout_next_again(const gr_rollout *r, const gr_rows *rows)
{
    for (uint32_t i = 0; i < r->n_again; i++)
        if (gr_rollout_fits(r, 0, 1, blocks_alone(r, r->again[i], rows))) return i;
    return GR_NONE;
}

void gr_rollout_place_again(gr_rollout *r, gr_rollout_slot *s, uint32_t which, const gr_rows *rows)
{
    const uint32_t seq = r->again[which];
    memmove(r->again + which, r->again + which + 1, (--r->n_again - which) * sizeof(*r->again));
    s->group = rows->group[seq];
    s->alone = true;
    s->cached = 0;
    s->n_own = blocks_alone(r, seq, rows);
    take_own(r, s, 0);
    put(r, s, seq, rows);
}

bool gr_rollout_is_new(const gr_rollout_slot *s, const gr_rows *rows)
{
    return !s->waits && s->cached + 1 == gr_rollout_length(rows, s->seq);
}

static void swap_slots(gr_rollout *r, uint32_t a, uint32_t b)
{
    const gr_rollout_slot t = r->slots[a]; /* tables are swapped, not lost */
    r->slots[a] = r->slots[b];
    r->slots[b] = t;
}

static bool admit_sample(gr_rollout *r, gr_rollout_group *g, const gr_rows *rows)
{
    if (r->n_slots == r->bounds.samples || !gr_rollout_fits(r, 0, 1, gr_own_blocks(g->prompt, r->room)))
        return false;
    gr_rollout_slot *s = &r->slots[r->n_slots++];
    gr_rollout_place(r, s, g, rows);
    if (gr_rollout_is_new(s, rows)) swap_slots(r, r->n_slots - 1, r->n_running++);
    return true;
}

/* Those that begin anew come before others, unless nothing else would give back what they lack. False: they
 * wait for that. */
static bool admit_again(gr_rollout *r, const gr_rows *rows)
{
    for (uint32_t i; r->n_slots < r->bounds.samples && (i = gr_rollout_next_again(r, rows)) != GR_NONE;)
        gr_rollout_place_again(r, &r->slots[r->n_slots++], i, rows);
    return !r->n_again || !r->n_slots;
}

static void admit(gr_rollout *r, const gr_rows *rows)
{
    r->n_copies = r->n_held = 0;
    if (!admit_again(r, rows)) return;
    for (gr_rollout_group *g; (g = gr_rollout_current(r));) {
        if (!g->begun && !gr_rollout_begin_group(r, g)) return;
        if (g->cached < g->prompt - 1) return;
        while (g->admitted < r->cfg->samples)
            if (!admit_sample(r, g, rows)) return;
        r->current++;
    }
}

/* Samples whose environment has answered run on, once all but their last token is in the pool. */
static void wake(gr_rollout *r, const gr_rows *rows)
{
    for (uint32_t i = r->n_running; i < r->n_slots; i++) {
        gr_rollout_slot *s = &r->slots[i];
        const uint32_t last = gr_rollout_length(rows, s->seq) - 1;
        if (s->waits || s->cached < last) continue;
        s->next = gr_rows_ids(rows, s->seq)[last];
        swap_slots(r, i, r->n_running++);
    }
}

/* Tokens to read into the pool: of an answer, else of the current prompt. */
typedef struct unread {
    uint32_t seq, *cached, end; /* up to end, from *cached on */
    uint32_t held;              /* the place of its state of one size */
    const uint32_t *table;
} unread;

static bool find_unread(gr_rollout *r, const gr_rows *rows, unread *u)
{
    for (uint32_t i = r->n_running; i < r->n_slots; i++) {
        gr_rollout_slot *s = &r->slots[i];
        *u = (unread){s->seq, &s->cached, gr_rollout_length(rows, s->seq) - 1, s->held, s->table};
        if (!s->waits) return true;
    }
    gr_rollout_group *g = gr_rollout_current(r);
    if (!g || !g->begun || g->cached == g->prompt - 1) return false;
    *u = (unread){r->to_admit[r->current] * r->cfg->samples, &g->cached, g->prompt - 1, g->held, g->table};
    return true;
}

uint32_t gr_rollout_draft_room(const gr_rollout *r, const gr_rollout_slot *s, const gr_rows *rows)
{
    const uint32_t limit = r->turns ? gr_turns_limit(r, s->seq) : r->longest;
    return limit - rows->response_len[s->seq] - 1;
}

/* What was drafted for it already. */
static uint32_t take_ahead(gr_rollout_slot *s, uint32_t room, int32_t *out)
{
    const uint32_t n = GR_MIN(s->n_ahead, room);
    for (uint32_t i = 0; i < n; i++) out[i] = s->ahead[i];
    s->n_ahead = 0;
    return n;
}

/* What is likely to follow in a sequence: at most what its longest response, or its turn, has room for behind
 * the token that is sampled in any case. Returns how many tokens. */
static uint32_t draft(gr_rollout *r, gr_rollout_slot *s, const gr_rows *rows, uint32_t tokens, int32_t *out)
{
    const gr_speculate_cfg *how = &r->cfg->speculate;
    const uint32_t room = gr_rollout_draft_room(r, s, rows), first = s->group * r->cfg->samples;
    uint32_t n = 1;
    if (how->from == GR_DRAFT_MTP) return take_ahead(s, room, out);
    if (!tokens || !room || !gr_draft_now(&s->drafts)) return 0;
    r->sources[0] = (gr_draft_source){gr_rows_ids(rows, s->seq), 1, gr_rollout_length(rows, s->seq)};
    for (uint32_t seq = first; how->from == GR_DRAFT_GROUP && seq < first + r->cfg->samples; seq++)
        if (seq != s->seq)
            r->sources[n++] = (gr_draft_source){gr_rows_ids(rows, seq), rows->prompt_len[seq],
                                                gr_rollout_length(rows, seq)};
    return gr_draft(r->sources, n, how->match, GR_MIN(tokens, room), out);
}

/* The rows of a running sample: its last token, and what is drafted behind it. */
static void plan_sample(gr_rollout *r, uint32_t i, const gr_rows *rows, uint32_t tokens, gr_step_arrays *a)
{
    gr_rollout_slot *s = &r->slots[i];
    const uint32_t at = r->n_rows, draws = r->turns ? gr_turns_draws(r, s->seq) : s->seq;
    s->row = at;
    r->fed[at] = s->next;
    s->n_draft = draft(r, s, rows, tokens, r->fed + at + 1);
    r->n_rows += 1 + s->n_draft;
    a->offset[i] = at;
    a->cached[i] = s->cached;
    if (a->held) a->held[i] = s->held;
    for (uint32_t k = at; k < r->n_rows; k++) {
        if (a->held_after) a->held_after[k] = k + 1 < r->n_rows ? s->spare[k - at] : UINT32_MAX;
        a->ids[k] = r->fed[k];
        a->row[k] = k;
        a->draw[k][0] = draws;
        a->draw[k][1] = rows->response_len[s->seq] + k - at;
    }
}

/* Tokens of this step: one for each running sample and what is drafted, then the next part of an answer or a
 * prompt. */
static void plan(gr_rollout *r, const gr_rows *rows, const gr_choices *how, gr_step_arrays *a)
{
    uint32_t stride = r->bounds.stride, n = r->n_running;
    r->n_rows = 0;
    for (uint32_t i = n; i < r->n_slots; i++) r->slots[i].fed = 0;
    for (uint32_t i = 0; i < n; i++) {
        plan_sample(r, i, rows, how->draft, a);
        memcpy(a->table + (size_t)i * stride, r->slots[i].table, stride * sizeof(*a->table));
    }
    a->offset[n] = r->n_tokens = r->n_rows;
    r->n_prefill = 0;
    unread u;
    if (!find_unread(r, rows, &u)) return;
    r->n_prefill = GR_MIN(how->prefill_tokens, u.end - *u.cached);
    r->prefill_seq = u.seq;
    r->prefill_at = *u.cached;
    r->prefill_table = u.table;
    for (uint32_t k = r->n_rows; a->held_after && k < r->n_rows + r->n_prefill; k++)
        a->held_after[k] = UINT32_MAX;
    memcpy(a->ids + r->n_rows, gr_rows_ids(rows, u.seq) + *u.cached, r->n_prefill * sizeof(*a->ids));
    a->cached[n] = *u.cached;
    if (a->held) a->held[n] = u.held;
    gr_rollout_copy_table(r, a->table + (size_t)n * stride, u.table, gr_blocks_of(u.end));
    r->n_tokens = a->offset[n + 1] = r->n_rows + r->n_prefill;
    *u.cached += r->n_prefill;
}

void gr_rollout_write_arrays(const gr_rollout *r, gr_queue *q, const gr_step_arrays *to,
                             const gr_step_arrays *from, gr_step_size n)
{
    gr_device_write(q, to->ids, from->ids, n.tokens * sizeof(*to->ids));
    gr_device_write(q, to->offset, from->offset, (n.seqs + 1) * sizeof(*to->offset));
    gr_device_write(q, to->cached, from->cached, n.seqs * sizeof(*to->cached));
    gr_device_write(q, to->table, from->table, (uint64_t)n.seqs * r->bounds.stride * sizeof(*to->table));
    gr_device_write(q, to->row, from->row, n.rows * sizeof(*to->row));
    if (to->held) gr_device_write(q, to->held, from->held, n.seqs * sizeof(*to->held));
    if (to->held_after)
        gr_device_write(q, to->held_after, from->held_after, n.tokens * sizeof(*to->held_after));
    gr_device_write(q, to->draw, from->draw, n.rows * sizeof(*to->draw));
}

/* Of the layer whose keys and values it attends to. */
static void *state_at(const gr_call *c, uint32_t operand, uint32_t layer)
{
    const gr_model_shape *s = gr_node_shape(c->node);
    const gr_kernels *k = c->session->kernels;
    return (char *)c->ptr[operand] +
           gr_layer_state_at(k, s, gr_model_keys_of(s, layer), gr_rollout_room(c->node, c->how, k));
}

/* The blocks and the states that samples which begin have from their prompts. */
static void copy_states(const gr_call *c, const gr_rollout *r)
{
    const gr_kernels *k = c->session->kernels;
    const gr_model_shape *s = gr_node_shape(c->node);
    for (uint32_t l = 0; (r->n_copies || r->n_held) && l < s->layers; l++) {
        void *state = state_at(c, PLAN_KV, l);
        const gr_block_copies *copy = &r->copy[r->bounds.window_at && gr_layer_has_window(s, l)];
        if (r->n_copies) gr_layer_copy_blocks(k, c->queue, s, l, state, copy->from, copy->to, r->n_copies);
        if (r->n_held) gr_layer_copy_slots(k, c->queue, s, l, state, r->held_from, r->held_to, r->n_held);
    }
    gr_rollout_ahead_copy(c, r, c->ptr[PLAN_KV]);
}

void gr_rollout_agree(gr_rollout *r, gr_queue *q, gr_rollout_left own)
{
    uint8_t flags[] = {own.more, own.reads, own.runs};
    if (q->holders) gr_tp_any(q, flags, GR_LEN(flags));
    r->left = (gr_rollout_left){flags[0], flags[1], flags[2]};
}

bool gr_rollout_has_more(const gr_rollout *r)
{
    return r->kept ? !gr_kept_is_enough(r) : r->finished < r->n_seqs;
}

static void end_conversation(gr_rollout *r, gr_rows *rows, uint32_t seq);

/* A step of its own sequences. */
static gr_status plan_own(const gr_call *c, gr_rollout *r, gr_rows *rows, gr_diag *d)
{
    gr_step_arrays device = gr_rollout_arrays_at(c->ptr[PLAN_STEP], &r->bounds),
                   host = gr_rollout_arrays_at(c->ptr[PLAN_STAGING], &r->bounds);
    admit(r, rows);
    wake(r, rows);
    plan(r, rows, c->how, &host);
    r->pace.steps += r->n_running > 0;
    r->pace.width += r->n_running;
    r->pace.read += r->n_prefill;
    gr_rollout_write_arrays(r, c->queue, &device, &host,
                            (gr_step_size){r->n_tokens, r->n_running + (r->n_prefill > 0), r->n_rows});
    copy_states(c, r);
    const bool waits = r->n_slots || r->n_left;
    return !r->n_tokens && waits ? gr_turns_wait(r, rows, d) : GR_OK; /* there is nothing else to do */
}

/* Its last trips are of other ranks, whose rows its experts may have. */
static gr_status run_plan(const gr_call *c, gr_rollout *r, gr_diag *d)
{
    gr_rows rows = gr_rows_at(c->ptr[PLAN_ROWS], &r->work);
    gr_status st = r->turns ? gr_turns_take(r, &rows, gr_turns_peers(c), end_conversation, d) : GR_OK;
    if (st) return st;
    r->trip++;
    gr_session_finished(r->session, r->node, &rows, GR_NONE);
    if (gr_rollout_has_more(r))
        st = plan_own(c, r, &rows, d);
    else
        r->n_tokens = 0;
    gr_rollout_agree(r, c->queue, (gr_rollout_left){.more = gr_rollout_has_more(r), .runs = r->n_tokens > 0});
    return st;
}

/* routing: where choices are recorded and exchanges counted, filled in here. */
static gr_extend extend_of(gr_rollout *r, const gr_step_arrays *a, gr_routing *routing)
{
    *routing = (gr_routing){.record = a->choices, .exchanges = &r->exchanges};
    return (gr_extend){.n_tokens = r->n_tokens,
                       .n_seqs = r->n_running + (r->n_prefill > 0),
                       .ids = a->ids,
                       .offset = a->offset,
                       .cached = a->cached,
                       .block_table = a->table,
                       .table_stride = r->bounds.stride,
                       .window_at = r->bounds.window_at,
                       .held = a->held,
                       .held_after = a->held_after,
                       .routing = a->choices || r->bounds.expert_run ? routing : NULL,
                       .expert_run = r->bounds.expert_run};
}

/* ---- what was sampled ------------------------------------------------------------------------------------
 */

gr_stop_ids gr_rollout_stop_ids(const gr_node *n)
{
    const gr_generate_cfg *c = n->cfg;
    const gr_model_shape *s = gr_node_shape(n);
    if (c->stop_ids.n) return (gr_stop_ids){(const int32_t *)c->stop_ids.value, (uint32_t)c->stop_ids.n};
    return (gr_stop_ids){s->eos, c->ignore_eos ? 0 : s->n_eos};
}

bool gr_rollout_is_stop_id(const gr_rollout *r, int32_t id)
{
    const gr_stop_ids stop = gr_rollout_stop_ids(r->node);
    for (uint32_t i = 0; i < stop.n; i++)
        if (id == stop.id[i]) return true;
    return false;
}

/* Whether the last token completes a stop text: only as many tokens are decoded as can hold one. Ids that
 * the tokenizer does not have are empty, and a NUL is a byte like others. */
static bool ends_in_stop_text(gr_rollout *r, const int32_t *response, uint32_t n)
{
    const gr_texts *stop = &r->cfg->stop;
    const gr_tokenizer *t = gr_session_tokenizer(r->session, r->node);
    size_t longest = 0, len = 0, last = 0;
    for (size_t i = 0; i < stop->n; i++) longest = GR_MAX(longest, strlen(stop->text[i]));
    if (!longest) return false;
    uint32_t first = n;
    while (first > 0 && len < last + longest - 1 + (first == n)) {
        r->tail.len = 0;
        (void)gr_tokenizer_append(t, response[--first], false, &r->tail);
        if (first + 1 == n) last = r->tail.len;
        len += r->tail.len;
    }
    r->tail.len = 0;
    for (uint32_t i = first; i < n; i++) (void)gr_tokenizer_append(t, response[i], false, &r->tail);
    bool found = false;
    for (size_t i = 0; i < stop->n && r->tail.len; i++)
        found = found || memmem(r->tail.text, r->tail.len, stop->text[i], strlen(stop->text[i]));
    return found;
}

/* A group's prompt is needed while one of its samples reads it, or is to come. */
static void give_back_prompt(gr_rollout *r, gr_rollout_group *g)
{
    const uint32_t at = r->bounds.window_at, prompt = gr_prompt_blocks(g->prompt);
    if (--g->running || g->admitted < r->cfg->samples) return;
    give_blocks(&r->pool[0], g->table, prompt);
    if (at) give_blocks(&r->pool[1], g->table + at, prompt);
}

void gr_rollout_give_back(gr_rollout *r, const gr_rollout_slot *s)
{
    gr_rollout_group *g = &r->groups[s->group];
    const uint32_t shared = s->alone ? 0 : gr_full_blocks(g->prompt), at = r->bounds.window_at;
    give_blocks(&r->pool[0], s->table + shared, s->n_own);
    if (at) give_blocks(&r->pool[1], s->table + at + shared, gr_ring_blocks(r->bounds.ring, s->n_own));
    if (!s->alone) give_back_prompt(r, g);
}

/* One that runs, out of those that do. */
static void set_aside(gr_rollout *r, uint32_t i)
{
    swap_slots(r, i, --r->n_running);
}

/* One that does not run. */
static void end_sample(gr_rollout *r, uint32_t i)
{
    gr_rollout_give_back(r, &r->slots[i]);
    swap_slots(r, i, --r->n_slots);
}

static void end_conversation(gr_rollout *r, gr_rows *rows, uint32_t seq)
{
    uint32_t i = r->n_running;
    while (r->slots[i].seq != seq) i++;
    gr_rollout_finished(r, rows, seq);
    end_sample(r, i);
}

void gr_rollout_finished(gr_rollout *r, const gr_rows *rows, uint32_t seq)
{
    r->finished++;
    if (r->kept) gr_kept_ended(r, rows, seq);
    gr_session_finished(r->session, r->node, rows, seq);
}

bool gr_rollout_add_token(gr_rollout *r, gr_rollout_slot *s, gr_rows *rows, int32_t id, float logprob)
{
    uint32_t n = rows->response_len[s->seq]++;
    int32_t *response = rows->ids + (size_t)s->seq * rows->stride + rows->prompt_len[s->seq];
    response[n] = id;
    rows->logprob[(size_t)s->seq * r->node->bounds.response_tokens + n] = logprob;
    if (rows->version) rows->version[(size_t)s->seq * r->longest + n] = (int32_t)gr_rollout_version(r);
    s->cached++;
    s->next = id;
    r->tokens++;
    if (r->turns) rows->counts[(size_t)s->seq * r->longest + n] = 1; /* packed when the rows are whole */
    rows->ended[s->seq] = gr_rollout_is_stop_id(r, id);
    if (rows->ended[s->seq] || ends_in_stop_text(r, response, n + 1)) {
        r->spared += r->turns ? 0 : r->longest - (n + 1);
        return true;
    }
    rows->truncated[s->seq] = n + 1 == (r->turns ? gr_turns_limit(r, s->seq) : r->longest);
    return rows->truncated[s->seq];
}

gr_sampling gr_rollout_sampling(const gr_call *c, const gr_rollout *r)
{
    gr_sampling how = sampling_of(r->cfg);
    how.temperature = (float)gr_session_number(c->session, &r->cfg->temperature);
    how.seed = c->session->seed;
    how.stream = gr_stream(c->node->name) + c->session->step + ((uint64_t)c->session->round << 32);
    return how;
}

static const void *last_norm(const gr_call *c)
{
    const gr_model_shape *s = gr_node_shape(c->node);
    return (const char *)c->ptr[SAMPLE_NORM] +
           gr_tensor_offset(s, 1 + s->layers, GR_T_NORM) * gr_dtype_size(c->session->kernels->dtype);
}

static void sample_chunk(const gr_call *c, const gr_rollout *r, const gr_step_arrays *a, uint32_t first,
                         uint32_t n)
{
    const gr_model_shape *s = gr_node_shape(c->node);
    const gr_kernels *k = c->session->kernels;
    const gr_sampling how = gr_rollout_sampling(c, r);
    k->head_sample(c->queue, s, last_norm(c), gr_head_matrix(k, s, c->ptr[SAMPLE_EMBED], c->ptr[SAMPLE_NORM]),
                   c->ptr[SAMPLE_X], a->row + first, n, &how, (const uint32_t(*)[2])(a->draw + first),
                   a->out_id + first, a->out_logprob + first, c->ptr[SAMPLE_WS]);
}

/* Those of the step's tokens that a running sample fed and has: of which it sampled `added` behind. */
static void record_sample(const gr_call *c, const gr_rollout *r, const gr_rollout_slot *s, uint32_t first,
                          uint32_t added)
{
    const gr_routes routes = gr_routes_at(c->ptr[SAMPLE_ROUTES], c->node);
    gr_routes_record(&routes, &(gr_routed_pass){r->n_tokens, s->row, s->seq, first, added}, r->out_choices);
}

static void read_choices(const gr_call *c, const gr_rollout *r, const gr_step_arrays *a)
{
    const gr_routes routes = gr_routes_at(c->ptr[SAMPLE_ROUTES], c->node);
    const uint32_t n = r->n_tokens;
    gr_device_read(c->queue, r->out_choices, a->choices,
                   (uint64_t)n * r->bounds.choices * sizeof(*a->choices));
    if (r->n_prefill)
        gr_routes_record(&routes,
                         &(gr_routed_pass){n, r->n_rows, r->prefill_seq, r->prefill_at, r->n_prefill},
                         r->out_choices);
}

/* A running sample, or its turn, has ended; a conversation that goes on waits in its slot. */
static void end_running(gr_rollout *r, gr_rows *rows, uint32_t i)
{
    const bool leaves = r->turns && gr_turns_step(r, &r->slots[i], rows);
    if (!r->turns) gr_rollout_finished(r, rows, r->slots[i].seq);
    set_aside(r, i);
    if (!r->turns || leaves) end_sample(r, r->n_running);
}

/* The sampled tokens of a running sample, up to the first that was not drafted. Returns whether it has ended.
 */
static bool take_sampled(const gr_call *c, gr_rollout *r, gr_rollout_slot *s, gr_rows *rows)
{
    const uint32_t begin = gr_rollout_length(rows, s->seq) - 1;
    uint32_t added = 0;
    bool ended;
    do {
        const uint32_t at = s->row + added++;
        ended = gr_rollout_add_token(r, s, rows, r->out_id[at], r->out_logprob[at]);
    } while (!ended && added <= s->n_draft && s->next == r->fed[s->row + added]);
    s->fed_at = begin;
    s->fed = added;
    if (r->spares && added <= s->n_draft) { /* its state is that behind the last token that counts */
        const uint32_t place = s->held;
        s->held = s->spare[added - 1];
        s->spare[added - 1] = place;
    }
    if (r->bounds.choices) record_sample(c, r, s, begin, added);
    gr_draft_went(&s->drafts, s->n_draft, added - 1);
    r->draft.steps++;
    r->draft.drafts += s->n_draft > 0;
    r->draft.drafted += s->n_draft;
    r->draft.accepted += added - 1;
    return ended;
}

static void run_sample(const gr_call *c, gr_rollout *r)
{
    gr_rows rows = gr_rows_at(c->ptr[SAMPLE_ROWS], &r->work);
    gr_step_arrays a = gr_rollout_arrays_at(c->ptr[SAMPLE_ARRAYS], &r->bounds);
    const uint32_t n = r->n_rows;
    for (uint32_t first = 0; first < n; first += c->how->head_rows)
        sample_chunk(c, r, &a, first, GR_MIN(c->how->head_rows, n - first));
    if (r->bounds.choices) read_choices(c, r, &a);
    gr_device_read(c->queue, r->out_id, a.out_id, n * sizeof(*r->out_id));
    gr_device_read(c->queue, r->out_logprob, a.out_logprob, n * sizeof(*r->out_logprob));
    for (uint32_t i = r->n_running; i-- > 0;) /* from the end: ending one moves the last into its place */
        if (take_sampled(c, r, &r->slots[i], &rows)) end_running(r, &rows, i);
    if (gr_rollout_ahead(c->node, c->how))
        gr_rollout_begin_ahead(c, r, &rows,
                               &(gr_ahead_begin){.norm = last_norm(c),
                                                 .x = c->ptr[SAMPLE_X],
                                                 .hidden = c->ptr[SAMPLE_HIDDEN],
                                                 .step = c->ptr[SAMPLE_ARRAYS],
                                                 .staging = c->ptr[SAMPLE_STAGING]});
}

/* Of this rank's sequences: what was drafted, what of it was sampled, of a draft on average, and tokens of a
 * sequence's step. */
static void report_drafts(const gr_rollout *r)
{
    const double steps = (double)r->draft.steps, drafts = (double)r->draft.drafts,
                 accepted = (double)r->draft.accepted;
    gr_session_metric(r->session, r->draft.drafted_metric, (double)r->draft.drafted);
    gr_session_metric(r->session, r->draft.accepted_metric, accepted);
    if (drafts > 0) gr_session_metric(r->session, r->draft.length, accepted / drafts);
    if (steps > 0) gr_session_metric(r->session, r->draft.per_step, (steps + accepted) / steps);
}

static void report_exchanges(const gr_rollout *r)
{
    if (r->exchanges.runs)
        gr_session_metric(r->session, r->expert_trips,
                          (double)r->exchanges.trips / (double)r->exchanges.runs);
}

/* What was kept a sequence at a time, as its tokens are. */
static void pack_counts(gr_rows *rows, uint32_t longest)
{
    for (uint32_t i = 0; i < *rows->n_seqs; i++)
        memmove(rows->counts + rows->token_offset[i], rows->counts + (size_t)i * longest,
                rows->response_len[i]);
}

/* A prompt is read once for all its samples: all but its last token, which each of them fed. */
static void spread_choices(const gr_call *c, const gr_rows *rows)
{
    const uint32_t samples = ((const gr_generate_cfg *)c->node->cfg)->samples;
    const gr_routes routes = gr_routes_at(c->ptr[FINISH_ROUTES], c->node);
    for (uint32_t i = 0; i < *rows->n_seqs && !gr_rollout_opens(c->node); i++)
        if (i % samples) gr_routes_copy(&routes, i - i % samples, &routes, i, rows->prompt_len[i] - 1);
}

/* Rows that are not kept have one version. */
static void fill_column(const gr_rollout *r, const gr_rows *rows, const gr_column *column, void *out)
{
    if (column->of_rows != GR_ROWS_VERSION || rows->version) {
        gr_rows_column(rows, column, out);
        return;
    }
    for (uint32_t i = 0; i < rows->token_offset[*rows->n_seqs]; i++)
        ((int32_t *)out)[i] = (int32_t)gr_rollout_version(r);
}

static gr_status run_finish(const gr_call *c, gr_diag *d)
{
    const gr_node *n = c->node;
    gr_rows rows = gr_rows_at(c->ptr[FINISH_ROWS], &n->bounds);
    rows.token_offset[0] = 0;
    for (uint32_t i = 0; i < *rows.n_seqs; i++)
        rows.token_offset[i + 1] = rows.token_offset[i] + rows.response_len[i];
    if (n->bounds.turns) pack_counts(&rows, n->bounds.response_tokens);
    if (c->ptr[FINISH_ROUTES]) spread_choices(c, &rows);
    for (size_t i = 0; i < n->results.n_columns; i++)
        if (c->ptr[N_FINISH + i]) fill_column(c->state, &rows, n->results.columns[i], c->ptr[N_FINISH + i]);
    if (n->bounds.kept) gr_kept_report(c->state, &rows);
    if (((const gr_generate_cfg *)n->cfg)->speculate.tokens) report_drafts(c->state);
    if (gr_experts_are_divided(n)) report_exchanges(c->state);
    return n->bounds.turns ? gr_turns_report(c->state, &rows, d) : GR_OK;
}

/* The device may be in a chunk behind what is taken. */
static gr_status run_take(const gr_call *c, gr_rollout *r, gr_diag *d)
{
    const gr_status st = gr_queue_finish(c->queue, d);
    gr_rows queue = gr_rows_at(c->ptr[TAKE_QUEUE], &r->work),
            rows = gr_rows_at(c->ptr[TAKE_ROWS], &c->node->bounds);
    if (!st) gr_kept_take(r, &queue, &rows);
    return st;
}

/* The embeddings of a step's tokens, those of each layer, or a layer. */
static void run_step(const gr_call *c, gr_rollout *r)
{
    const gr_kernels *k = c->session->kernels;
    const gr_model_shape *s = gr_node_shape(c->node);
    gr_step_arrays a = gr_rollout_arrays_at(c->ptr[STEP_ARRAYS], &r->bounds);
    gr_routing routing;
    gr_extend e = extend_of(r, &a, &routing);
    gr_packed b = {.n_tokens = e.n_tokens, .n_seqs = e.n_seqs, .ids = e.ids, .offset = e.offset};
    if (c->kernel == ROLLOUT_EMBED) {
        k->embed_forward(c->queue, s, c->ptr[STEP_WEIGHTS], &b, c->ptr[STEP_X]);
        return;
    }
    b.carried = e.carried = c->ptr[STEP_CARRIED];
    if (c->kernel == ROLLOUT_PER_LAYER)
        gr_per_layer_forward(k, c->queue, s, c->ptr[STEP_WEIGHTS], &b, c->ptr[STEP_X], c->ptr[STEP_WS]);
    else
        gr_layer_extend(k, c->queue, s, c->arg, c->ptr[STEP_WEIGHTS], &e, c->ptr[STEP_X],
                        state_at(c, STEP_KV, c->arg), c->ptr[STEP_WS]);
}

gr_status gr_rollout_run(const gr_call *c, gr_diag *d)
{
    gr_rollout *r = c->state;
    const gr_kernels *k = c->session->kernels;
    if (c->kernel == ROLLOUT_TAKE) return run_take(c, r, d);
    if (k->steps && c->kernel != ROLLOUT_BEGIN && c->kernel != ROLLOUT_FINISH)
        return gr_rollout_steps_run(c, r, d);
    if (c->kernel == ROLLOUT_BEGIN) {
        gr_rows prompts = gr_rows_at(c->ptr[BEGIN_PROMPTS], &c->node->of->bounds);
        gr_rows rows = gr_rows_at(c->ptr[BEGIN_ROWS], &r->work);
        begin(r, &prompts, &rows, c->how);
        if (c->ptr[BEGIN_ROUTES] && r->session->ranks > 1) /* as of the rows */
            memset(c->ptr[BEGIN_ROUTES], 0, gr_routes_bytes(c->node));
        if (k->steps) return gr_rollout_steps_begin(c, r, d);
    } else if (c->kernel == ROLLOUT_PLAN) {
        return run_plan(c, r, d);
    } else if (!r->n_tokens && c->kernel != ROLLOUT_FINISH) {
        /* all wait for their environments, or it is for the tokens of ranks with other experts */
        if (c->kernel == ROLLOUT_LAYER && r->left.runs) run_step(c, r);
    } else if (c->kernel == ROLLOUT_EMBED || c->kernel == ROLLOUT_PER_LAYER || c->kernel == ROLLOUT_LAYER) {
        run_step(c, r);
    } else if (c->kernel == ROLLOUT_SAMPLE) {
        run_sample(c, r);
    } else if (c->kernel == ROLLOUT_AHEAD_ENTER || c->kernel == ROLLOUT_AHEAD_LAYER ||
               c->kernel == ROLLOUT_AHEAD_HEAD) {
        gr_rollout_run_ahead(c, r);
    } else if (c->kernel == ROLLOUT_FINISH) {
        /* the device may be in a chunk behind the last token: its report, and orders that it has yet to read,
         * lie where from here on others write at once */
        const gr_status st = gr_queue_finish(c->queue, d);
        if (st) return st;
        return run_finish(c, d);
    }
    return GR_OK;
}

bool gr_rollout_more(const gr_call *c, uint32_t trip)
{
    (void)trip;
    const gr_rollout *r = c->state;
    gr_progress_at(r->session->progress, r->node->name, r->tokens,
                   (uint64_t)r->n_seqs * r->longest - r->spared, "tokens");
    return gr_experts_are_divided(r->node) ? r->left.more : gr_rollout_has_more(r);
}
