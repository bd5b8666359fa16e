/* ops/rollout_steps.c: `generate` where the device keeps the state of decode steps (ops/kernels/steps.h).
 *
 * A trip: the host reads the report of the chunk before the last one, gives back what has ended, admits
 * prompts and samples, and enqueues the prompts' tokens in one packed pass, copies of the blocks that samples
 * go on in, and the next chunk. So the device always has a chunk to run while the host decides.
 */
#include "ops/rollout_impl.h"

#include "ops/kernels/ahead.h"
#include "ops/kernels/carried.h"
#include "ops/kernels/workspace.h"
#include "ops/pass.h"
#include "ops/parallel/sharding.h"
#include "ops/tunables.h"
#include "ops/kernels/steps.h"

#include <stdlib.h>

#define NEVER UINT32_MAX
enum {
    CHUNK = 8,      /* steps; a slot stands empty for one or two chunks between two sequences */
    UNCAPTURED = 12 /* kernels of a layer beside its experts, in a step that is not captured */
};

/* Packed tokens of prompts, and blocks and states to copy behind them; on the device, and twice on the host.
 */
typedef struct prefill_arrays {
    int32_t *ids, *position;
    int32_t *next; /* the tokens behind them, where a layer drafts; else NULL */
    uint32_t *slot, *offset, *cached, *table, *copy_from, *copy_to;
    uint32_t *window_slot, *window_from, *window_to; /* as slot and copy_*; NULL: there is no ring */
    uint32_t *held, *held_from,
        *held_to; /* states of one size, [prompts] and [slots]; NULL: there are none */
} prefill_arrays;

struct gr_rollout_steps {
    gr_steps *steps;
    const gr_steps_ops *ops;
    uint32_t trip;
    uint32_t
        *at[2]; /* [slots] by trip modulo 2: the sequence that a slot had in that trip's chunk, or GR_NONE */
    uint32_t n[2];     /* slots that took part */
    uint32_t *slot_of; /* [seqs] of a running sequence; GR_NONE: it does not run */
    bool *stale;       /* [slots] empty here, but the device may still run what was in it */
    uint32_t *since; /* [slots] the trip in which its sequence began, or its turn; NEVER: the device is not to
                        run it, as it waits for an environment or for what that said to be read */
    uint32_t longest_text;                 /* of the orders' texts */
    uint64_t *order;                       /* [slots] group, then slot, of the running ones */
    uint32_t n_tokens, n_prompts, longest; /* of this trip's prefill */
    uint32_t own_prompts;                  /* prompts whose states had places of their own so far */
    prefill_arrays host, device;           /* of this trip */
    /* by trip modulo 2: whose tokens a trip's prefill read, where their choices of experts are recorded */
    struct read_tokens {
        gr_routed_pass *part; /* [slots + 1] */
        uint32_t n, n_tokens;
    } read[2];
};

/* ---- declaring -------------------------------------------------------------------------------------------
 */

/* Texts of all sequences are kept: those of samples that have ended serve the last ones. */
static gr_steps_drafts drafts_of(const gr_node *n, const gr_choices *how)
{
    const gr_generate_cfg *cfg = n->cfg;
    return (gr_steps_drafts){.tokens = how->draft,
                             .ahead = gr_rollout_ahead(n, how),
                             .match = cfg->speculate.match,
                             .seqs = gr_rollout_work(n)->seqs,
                             .samples = cfg->speculate.from == GR_DRAFT_GROUP ? cfg->samples : 1};
}

static gr_steps_bounds steps_bounds(const gr_node *n, const gr_choices *how, const gr_kernels *k,
                                    uint32_t choices)
{
    const uint32_t longest = n->bounds.prompt_tokens + n->bounds.response_tokens,
                   blocks = gr_blocks_of(longest);
    const bool ring = gr_rollout_ring(n, how, k).blocks;
    return (gr_steps_bounds){.slots = GR_MIN(how->concurrent, n->placement.task.seqs),
                             .stride = ring ? 2 * blocks : blocks,
                             .window_at = ring ? blocks : 0,
                             .max_length = longest,
                             .chunk = CHUNK,
                             .stop_ids = gr_rollout_stop_ids(n).n,
                             .states = gr_layers_have_slots(k, gr_node_shape(n)),
                             .choices = choices,
                             .drafts = drafts_of(n, how)};
}

/* Prompts of one prefill: one goes on from the trip before, others begin only where a slot is free. */
static prefill_arrays layout(gr_workspace *c, const gr_steps_bounds *b, const gr_choices *how)
{
    const uint64_t tokens = how->prefill_tokens, prompts = b->slots + 1ull, word = sizeof(uint32_t);
    prefill_arrays a = {0};
    a.ids = gr_workspace_bytes(c, tokens * word);
    a.position = gr_workspace_bytes(c, tokens * word);
    a.next = b->drafts.ahead ? gr_workspace_bytes(c, tokens * word) : NULL;
    a.slot = gr_workspace_bytes(c, tokens * word);
    a.offset = gr_workspace_bytes(c, (prompts + 1) * word);
    a.cached = gr_workspace_bytes(c, prompts * word);
    a.table = gr_workspace_bytes(c, prompts * b->stride * word);
    a.copy_from = gr_workspace_bytes(c, b->slots * word);
    a.copy_to = gr_workspace_bytes(c, b->slots * word);
    if (b->window_at) {
        a.window_slot = gr_workspace_bytes(c, tokens * word);
        a.window_from = gr_workspace_bytes(c, b->slots * word);
        a.window_to = gr_workspace_bytes(c, b->slots * word);
    }
    if (!b->states) return a;
    a.held = gr_workspace_bytes(c, prompts * word);
    a.held_from = gr_workspace_bytes(c, b->slots * word);
    a.held_to = gr_workspace_bytes(c, b->slots * word);
    return a;
}

static uint64_t prefill_bytes(const gr_steps_bounds *b, const gr_choices *how)
{
    gr_workspace c = {0};
    layout(&c, b, how);
    return c.used;
}

static prefill_arrays arrays_at(void *block, const gr_steps_bounds *b, const gr_choices *how, uint32_t which)
{
    gr_workspace c = {.base = (char *)block + which * prefill_bytes(b, how)};
    return layout(&c, b, how);
}

static uint32_t chunks_of(uint32_t tokens)
{
    return (tokens + CHUNK - 1) / CHUNK;
}

/* Steps that the longest response is expected to take. */
static uint32_t steps_expected(const gr_node *n, const gr_choices *how)
{
    const double yield = gr_drafts_yield(how->draft, ((const gr_generate_cfg *)n->cfg)->speculate.rate);
    return (uint32_t)(gr_rollout_steady(n).response_tokens / yield + 0.999);
}

static uint32_t trips_max(const gr_node *n, const gr_choices *how)
{
    const gr_rows_bounds b = gr_rollout_pooled(n, n->bounds);
    const uint64_t prefill =
        n->placement.task.groups * (uint64_t)(b.prompt_tokens / how->prefill_tokens + 1) +
        (n->bounds.kept ? n->placement.task.seqs * (b.response_tokens / how->prefill_tokens + 2ull) : 0);
    const uint64_t reads = b.response_tokens - n->bounds.response_tokens; /* of prompts that are not shared */
    const uint64_t trips = n->placement.task.seqs *
                               (chunks_of(n->bounds.response_tokens) + 2ull +
                                (reads + how->prefill_tokens - 1) / how->prefill_tokens) *
                               gr_turns_tries(n) +
                           prefill +
                           4 * gr_turns_trips(n) +    /* a turn's last chunk, and two until the host knows */
                           gr_experts_are_divided(n); /* in the last, none has anything left */
    return (uint32_t)GR_MIN(trips + gr_turns_rereads(n, how), (uint64_t)UINT32_MAX - 1);
}

/* Sequences that run at once. */
static uint64_t at_once_of(const gr_node *n, const gr_choices *how)
{
    const gr_rows_bounds b = gr_rollout_pooled(n, n->bounds);
    const uint64_t own = gr_own_blocks(b.prompt_tokens, b.response_tokens);
    return GR_MAX(GR_MIN((uint64_t)how->concurrent, how->kv_blocks / own), (uint64_t)1);
}

/* How often all slots that there are blocks for are filled. */
static uint64_t waves_of(const gr_node *n, const gr_choices *how)
{
    const uint64_t at_once = at_once_of(n, how);
    return (gr_rollout_steady(n).seqs + at_once - 1) / at_once;
}

/* A trip reads so many tokens of prompts: how many trips after the first slots the last ones begin, and end.
 * Later waves follow slot by slot. */
static uint64_t late_of(const gr_node *n, const gr_choices *how)
{
    const gr_rows_bounds steady = gr_rollout_steady(n), *b = &steady;
    const uint64_t slots = GR_MIN(at_once_of(n, how), (uint64_t)b->seqs),
                   groups = b->groups * slots / GR_MAX(b->seqs, 1u);
    const uint64_t tokens = GR_MAX(groups, (uint64_t)1) * b->prompt_tokens;
    return tokens ? (tokens - 1) / GR_MAX(how->prefill_tokens, 1u) : 0;
}

static uint32_t trips_expected(const gr_node *n, const gr_choices *how)
{
    const uint64_t chunks = chunks_of(steps_expected(n, how)) + 2ull,
                   trips = waves_of(n, how) * chunks + late_of(n, how);
    return (uint32_t)GR_MIN(trips, (uint64_t)trips_max(n, how));
}

/* How many slots take part where the last one in use is n - 1: few sizes, as each is captured once. */
static uint32_t rounded(uint32_t n, uint32_t slots)
{
    uint32_t size = 1;
    while (size < n) size += size < 8 ? size : size & (size - 1) ? size / 3 : size / 2;
    return n ? GR_MIN(size, slots) : 0;
}

static uint32_t count_sizes(uint32_t slots)
{
    uint32_t n = 0;
    for (uint32_t size = 0; size < slots; size = rounded(size + 1, slots)) n++;
    return n;
}

static uint32_t tokens_at_once(const gr_steps_bounds *b, const gr_choices *how)
{
    return GR_MAX(gr_steps_rows(b), how->prefill_tokens);
}

/* Operands of begin, behind those that both forms have; of plan; and of prefill and decode, which have all of
 * the model's buckets before them. */
enum { BEGIN_SLOTS = N_BEGIN, BEGIN_ORDERS, BEGIN_STAGING, N_BEGIN_STEPS };
enum { PLAN_ROWS, PLAN_SLOTS, PLAN_ORDERS, PLAN_PACKED, PLAN_STAGING, PLAN_ROUTES, PLAN_CHOICES, N_PLAN };
enum {
    USE_KV,
    USE_PACKED,
    USE_X,
    USE_WS,
    USE_CARRIED,
    USE_HIDDEN, /* this and the next three: of the layer that drafts, where there is one */
    USE_AHEAD_ENTER,
    USE_AHEAD_LAYER,
    USE_AHEAD_NORM,
    USE_HEAD_WS, /* this and the next two: decode */
    USE_SLOTS,
    USE_ORDERS,
    N_DECODE,
    USE_CHOICES = USE_HEAD_WS, /* this and the next: prefill, where its choices are recorded: on the device,
                                  and on the host twice */
    USE_CHOICES_BACK,
    N_PREFILL
};

static uint64_t choices_bytes(const gr_steps_bounds *b, const gr_choices *how)
{
    return (uint64_t)how->prefill_tokens * b->choices * sizeof(uint16_t);
}

/* Every bucket of the model, read, then the other uses. */
static gr_task *model_work(const gr_node *n, const gr_kernels *k, gr_tasks *p, uint32_t kernel,
                           const gr_use *more, uint32_t n_more, const char *what)
{
    const uint32_t buckets = gr_model_buckets(&n->model->shape);
    gr_use *uses = gr_arena_alloc(p->arena, (buckets + n_more) * sizeof(*uses));
    for (uint32_t b = 0; b < buckets; b++) uses[b] = (gr_use){gr_rollout_weights(p, n, k, b), GR_READ};
    memcpy(uses + buckets, more, n_more * sizeof(*uses));
    return gr_tasks_run(p, kernel, 0, uses, buckets + n_more, "%s", what);
}

/* Of layers of several kinds, some of which exchange rows of experts. */
static void set_mesh(gr_task *w, const gr_node *n)
{
    if (!gr_experts_are_divided(n)) return;
    w->comm.mesh = n->placement.mesh;
    w->comm.peers = gr_mesh_size(&w->comm.mesh, GR_AXIS_EXPERT);
}

/* What embeddings of each layer cost before the layers, of so many tokens, so many times. */
static void add_per_layer(gr_task *w, const gr_kernels *k, const gr_model_shape *s, double tokens,
                          double times)
{
    gr_task own = {0};
    if (!s->per_layer.vocab) return;
    gr_per_layer_cost(&own, k, s, tokens, 1);
    gr_cost_times(&own, times);
    gr_cost_add(w, &own);
}

/* Prompts are read in few trips, many tokens at once: the average of a trip. */
static void set_prefill_cost(gr_task *w, const gr_node *n, const gr_choices *how, const gr_kernels *k)
{
    const gr_model_shape *s = gr_node_shape(n);
    const gr_rows_bounds steady = gr_rollout_steady(n), *b = &steady;
    const double prompts = (double)b->groups * b->prompt_tokens,
                 tokens = GR_MIN(how->prefill_tokens, prompts);
    add_per_layer(w, k, s, tokens, prompts / tokens / trips_expected(n, how));
    for (uint32_t kind = 0, first = 0; kind < s->n_kinds; kind++) {
        gr_task layers = {0};
        const uint32_t alike = gr_model_layers_of(s, kind, &first);
        gr_layer_mesh_cost(&layers, k, n, first, tokens, b->prompt_tokens, 1);
        gr_experts_price(&layers, k, s, first, tokens, 0, 0);
        gr_cost_times(&layers, alike * prompts / tokens / trips_expected(n, how));
        gr_cost_add(w, &layers);
    }
    if (gr_rollout_ahead(n, how))
        gr_rollout_ahead_cost(w, n, k, tokens, b->prompt_tokens, prompts / tokens / trips_expected(n, how));
    set_mesh(w, n);
}

/* A step of few rows takes as long as weights take to come. Rates are of layers with half as many heads of
 * keys and values and an MLP three times as wide, 12 times the square of their width; one of other
 * proportions is as wide as such a layer with as many weights. Experts have rates of their own. */
static uint32_t width_of(const gr_model_shape *s, uint32_t layer, double row_flops)
{
    const bool experts = gr_layer(s, layer)->mlp == GR_MLP_EXPERTS;
    return experts ? s->hidden : (uint32_t)GR_MAX(lround(sqrt(row_flops / 2 / 12)), 1);
}

/* To w: what a layer drafts behind each of so many steps of so many slots; keys: read of a slot. */
static void add_ahead_cost(gr_task *w, const gr_node *n, const gr_choices *how, const gr_kernels *k,
                           double steps, double slots, double keys)
{
    const gr_rows_bounds b = gr_rollout_steady(n);
    const double length = b.prompt_tokens + b.response_tokens / 2.0;
    gr_task head = {0};
    gr_head_cost(&head, k, gr_node_shape(n), slots, 1);
    gr_cost_times(&head, steps * how->draft);
    gr_rollout_ahead_cost(w, n, k, slots * (1 + how->draft), length, steps);
    gr_rollout_ahead_cost(w, n, k, slots, length, steps * (how->draft - 1));
    w->cost.head += head.cost.head;
    w->cost.logits += head.cost.logits;
    w->cost.bytes += head.cost.bytes;
    w->cost.kv += steps * how->draft * slots * keys * (double)gr_layer_block_bytes(k, &n->second->shape, 0) /
                  GR_KV_BLOCK;
}

/* The average of a trip where every response runs to its end, in as many slots as there are blocks for;
 * prompts' keys are read once a group, a slot's own ones once for all of its rows, states of one size are
 * read, and written behind each row. */
static void set_decode_cost(gr_task *w, const gr_node *n, const gr_choices *how, const gr_kernels *k)
{
    const gr_model_shape *s = gr_node_shape(n);
    const gr_generate_cfg *cfg = n->cfg;
    const gr_rows_bounds steady = gr_rollout_steady(n), *b = &steady;
    const double sharing = gr_rollout_opens(n) ? 1 : cfg->samples,
                 keys = b->prompt_tokens / sharing + b->response_tokens / 2.0;
    const double waves = (double)waves_of(n, how);
    const double busy = waves * (chunks_of(steps_expected(n, how)) + 2.0) - 2; /* the last ends when done */
    const double chunks = busy + (double)late_of(n, how), slots = b->seqs / waves * busy / chunks;
    const double steps = CHUNK * chunks / trips_expected(n, how), rows = slots * (1 + how->draft);
    gr_task head = {0};
    gr_head_cost(&head, k, s, rows, 1);
    gr_cost_times(&head, steps);
    add_per_layer(w, k, s, rows, steps);
    if (gr_rollout_ahead(n, how)) add_ahead_cost(w, n, how, k, steps, slots, keys);
    for (uint32_t kind = 0, first = 0; kind < s->n_kinds; kind++) {
        gr_task layers = {0};
        const uint32_t alike = gr_model_layers_of(s, kind, &first);
        const double seen = gr_layer_keys(gr_layer(s, first), 2 * keys) / 2;
        gr_layer_mesh_cost(&layers, k, n, first, rows, b->prompt_tokens + b->response_tokens / 2.0, 1);
        layers.cost.width = width_of(s, first, layers.cost.flops / rows);
        gr_experts_price(&layers, k, s, first, rows, 0, 0);
        gr_cost_times(&layers, alike * steps);
        layers.cost.kv =
            alike * steps * slots *
            (seen * (double)gr_layer_block_bytes(k, s, gr_model_keys_of(s, first)) / GR_KV_BLOCK +
             (2.0 + how->draft) * (double)gr_layer_slot_bytes(k, s, first));
        gr_cost_add(w, &layers);
    }
    w->cost.head += head.cost.head;
    w->cost.logits += head.cost.logits;
    w->cost.bytes += head.cost.bytes;
    w->cost.paged = true;
    set_mesh(w, n);
    if (gr_experts_are_divided(n)) w->cost.launches += UNCAPTURED * steps * s->layers;
}

void gr_rollout_steps_declare(const gr_graph *g, const gr_node *n, const gr_choices *how, const gr_kernels *k,
                              gr_tasks *p)
{
    const gr_model_shape *s = gr_node_shape(n);
    const gr_steps_bounds b = steps_bounds(n, how, k, gr_rollout_choices(g, n));
    const uint32_t rows = gr_steps_rows(&b), tokens = tokens_at_once(&b, how);
    gr_pass_bounds pass = {.tokens = tokens,
                           .seqs = rows + 1,
                           .length = b.max_length,
                           .threads = how->threads,
                           .expert_run = gr_rollout_expert_run(n, tokens)};
    const gr_use_mode begins = n->work.groups ? GR_UPDATE : GR_WRITE;
    uint32_t worked = gr_rollout_worked(p, n), prompts = gr_rows_object(p, n->of);
    uint32_t kv = gr_rollout_kv_object(p, n, how, k);
    uint32_t slots = gr_tasks_temp(p, GR_CAT_WORKSPACE, k->steps->device_bytes(s, &b), "slots");
    uint32_t orders = gr_tasks_host(p, GR_CAT_WORKSPACE, k->steps->host_bytes(s, &b), "orders");
    uint32_t packed = gr_tasks_temp(p, GR_CAT_WORKSPACE, prefill_bytes(&b, how), "packed");
    uint32_t staging = gr_tasks_host(p, GR_CAT_WORKSPACE, 2 * prefill_bytes(&b, how), "staging");
    uint32_t x = gr_tasks_temp(p, GR_CAT_ACTIVATIONS, gr_hidden_bytes(k, s, tokens), "x");
    uint32_t ws = gr_tasks_temp(p, GR_CAT_WORKSPACE,
                                GR_MAX(GR_MAX(gr_layers_ws_bytes(k, s, &pass, GR_LAYER_EXTEND),
                                              gr_per_layer_ws_bytes(k, s, tokens, how->threads, false)),
                                       gr_rollout_ahead_ws(n, how, k, &pass)),
                                "ws");
    const uint32_t carried = gr_carried_object(p, k, s, tokens, false, "", "carried");
    uint32_t head_ws = gr_rollout_head_ws(p, n, how, k);
    const uint32_t hidden = gr_rollout_ahead_hidden(p, n, how, k, tokens),
                   enter = gr_rollout_ahead_weights(p, n, how, k, GR_AHEAD_ENTER),
                   ahead = gr_rollout_ahead_weights(p, n, how, k, GR_AHEAD_LAYER),
                   norm = gr_rollout_ahead_weights(p, n, how, k, GR_AHEAD_NORM);
    uint32_t routes = gr_routes_object(p, g, n), choices = GR_NONE, choices_back = GR_NONE;
    if (b.choices) {
        choices = gr_tasks_temp(p, GR_CAT_WORKSPACE, choices_bytes(&b, how), "prefill_choices");
        choices_back = gr_tasks_host(p, GR_CAT_WORKSPACE, 2 * choices_bytes(&b, how), "prefill_choices_back");
    }

    gr_tasks_run(p, ROLLOUT_BEGIN, 0,
                 (gr_use[]){[BEGIN_PROMPTS] = {prompts, GR_READ | GR_BY_CODE},
                            [BEGIN_ROWS] = {worked, begins | GR_BY_CODE},
                            [BEGIN_KV] = {kv, GR_WRITE},
                            [BEGIN_ROUTES] = {routes, GR_WRITE | GR_BY_CODE},
                            [BEGIN_SLOTS] = {slots, GR_WRITE},
                            [BEGIN_ORDERS] = {orders, GR_WRITE | GR_BY_TURNS},
                            [BEGIN_STAGING] = {staging, GR_WRITE | GR_BY_TURNS}},
                 N_BEGIN_STEPS, "begin");
    gr_tasks_loop(p, ROLLOUT_LOOP, trips_max(n, how), true, "chunks")->loop.trips_expected =
        trips_expected(n, how);
    gr_task *plan = gr_tasks_run(p, ROLLOUT_PLAN, 0,
                                 (gr_use[]){[PLAN_ROWS] = {worked, GR_UPDATE | GR_BY_CODE},
                                            [PLAN_SLOTS] = {slots, GR_UPDATE},
                                            [PLAN_ORDERS] = {orders, GR_UPDATE | GR_BY_TURNS},
                                            [PLAN_PACKED] = {packed, GR_WRITE},
                                            [PLAN_STAGING] = {staging, GR_UPDATE | GR_BY_TURNS},
                                            [PLAN_ROUTES] = {routes, GR_UPDATE | GR_BY_CODE},
                                            [PLAN_CHOICES] = {choices_back, GR_UPDATE | GR_BY_TURNS}},
                                 N_PLAN, "plan");
    gr_turns_meet(plan, n);
    gr_rollout_meet(plan, n);
    gr_task *prefill = model_work(n, k, p, ROLLOUT_PREFILL,
                                  (gr_use[]){[USE_KV] = {kv, GR_UPDATE},
                                             [USE_PACKED] = {packed, GR_READ},
                                             [USE_X] = {x, GR_WRITE},
                                             [USE_WS] = {ws, GR_WRITE},
                                             [USE_CARRIED] = {carried, GR_WRITE},
                                             [USE_HIDDEN] = {hidden, GR_WRITE},
                                             [USE_AHEAD_ENTER] = {enter, GR_READ},
                                             [USE_AHEAD_LAYER] = {ahead, GR_READ},
                                             [USE_AHEAD_NORM] = {GR_NONE, GR_READ},
                                             [USE_CHOICES] = {choices, GR_WRITE},
                                             [USE_CHOICES_BACK] = {choices_back, GR_UPDATE | GR_BY_TURNS}},
                                  N_PREFILL, "prefill");
    const size_t prefill_index = (size_t)(prefill - p->task);
    gr_task *decode = model_work(n, k, p, ROLLOUT_DECODE,
                                 (gr_use[]){[USE_KV] = {kv, GR_UPDATE},
                                            [USE_PACKED] = {packed, GR_READ},
                                            [USE_X] = {x, GR_WRITE},
                                            [USE_WS] = {ws, GR_WRITE},
                                            [USE_CARRIED] = {carried, GR_WRITE},
                                            [USE_HIDDEN] = {hidden, GR_WRITE},
                                            [USE_AHEAD_ENTER] = {enter, GR_READ},
                                            [USE_AHEAD_LAYER] = {ahead, GR_READ},
                                            [USE_AHEAD_NORM] = {norm, GR_READ},
                                            [USE_HEAD_WS] = {head_ws, GR_WRITE},
                                            [USE_SLOTS] = {slots, GR_UPDATE},
                                            [USE_ORDERS] = {orders, GR_UPDATE | GR_BY_TURNS}},
                                 N_DECODE, "decode");
    set_decode_cost(decode, n, how, k);
    set_prefill_cost(&p->task[prefill_index], n, how, k);
    if (!gr_experts_are_divided(n))
        p->captured +=
            count_sizes(b.slots) * (s->layers + (s->per_layer.vocab > 0) + (b.drafts.ahead ? how->draft : 0));
    gr_tasks_end(p);
    gr_rollout_declare_finish(n, worked, routes, p);
}

/* ---- beginning -------------------------------------------------------------------------------------------
 */

static struct gr_rollout_steps *take_state(gr_rollout *r, const gr_steps_ops *ops)
{
    const uint32_t slots = r->bounds.samples;
    struct gr_rollout_steps *s = gr_calloc(1, sizeof(*s));
    s->ops = ops;
    for (int i = 0; i < 2; i++) {
        s->at[i] = gr_calloc(slots, sizeof(*s->at[i]));
        s->read[i].part = gr_calloc(slots + 1ull, sizeof(*s->read[i].part));
    }
    s->slot_of = gr_calloc(r->work.seqs, sizeof(*s->slot_of));
    s->stale = gr_calloc(slots, sizeof(*s->stale));
    s->since = gr_calloc(slots, sizeof(*s->since));
    s->order = gr_calloc(slots, sizeof(*s->order));
    return s;
}

void gr_rollout_steps_close(gr_rollout *r)
{
    struct gr_rollout_steps *s = r->steps;
    if (!s) return;
    s->ops->close(s->steps);
    for (int i = 0; i < 2; i++) {
        free(s->at[i]);
        free(s->read[i].part);
    }
    free(s->slot_of);
    free(s->stale);
    free(s->since);
    free(s->order);
    free(s);
}

gr_status gr_rollout_steps_begin(const gr_call *c, gr_rollout *r, gr_diag *d)
{
    const gr_model_shape *shape = gr_node_shape(r->node);
    const gr_steps_ops *ops = c->session->kernels->steps;
    const gr_steps_bounds b = steps_bounds(r->node, c->how, c->session->kernels, r->bounds.choices);
    if (!r->steps) r->steps = take_state(r, ops);
    struct gr_rollout_steps *s = r->steps;
    if (!s->steps) {
        const gr_status st = ops->open(&s->steps, shape, &b, d);
        if (st) return st;
    }
    s->longest_text = b.max_length;
    s->trip = s->own_prompts = s->read[0].n = s->read[1].n = 0;
    for (uint32_t i = 0; i < b.slots; i++) {
        r->slots[i].seq = GR_NONE;
        s->stale[i] = false;
    }
    for (uint32_t i = 0; i < r->work.seqs; i++) s->slot_of[i] = GR_NONE;
    const gr_stop_ids stop = gr_rollout_stop_ids(r->node);
    const gr_steps_rules rules = {
        .sampling = gr_rollout_sampling(c, r), .max_tokens = r->longest, .stop = stop.id, .n_stop = stop.n};
    return ops->begin(s->steps, c->queue, c->ptr[BEGIN_SLOTS], c->ptr[BEGIN_ORDERS], &rules, d);
}

/* ---- what a chunk has brought ----------------------------------------------------------------------------
 */

static void end_sequence(gr_rollout *r, gr_rows *rows, uint32_t seq)
{
    struct gr_rollout_steps *s = r->steps;
    const uint32_t at = s->slot_of[seq];
    s->stale[at] = !rows->ended[seq] && !rows->truncated[seq]; /* a stop text: the device does not know */
    s->slot_of[seq] = GR_NONE;
    gr_rollout_give_back(r, &r->slots[at]);
    r->slots[at].seq = GR_NONE;
    gr_rollout_finished(r, rows, seq);
}

/* The device knows that it has ended by a stop id, or by its tokens. */
static void end_turn(gr_rollout *r, gr_rows *rows, uint32_t seq)
{
    struct gr_rollout_steps *s = r->steps;
    const uint32_t at = s->slot_of[seq];
    s->stale[at] = !rows->ended[seq] && rows->response_len[seq] < r->longest;
    s->since[at] = NEVER;
    if (!gr_turns_step(r, &r->slots[at], rows)) return;
    s->slot_of[seq] = GR_NONE;
    gr_rollout_give_back(r, &r->slots[at]);
    r->slots[at].seq = GR_NONE;
}

static void end_conversation(gr_rollout *r, gr_rows *rows, uint32_t seq)
{
    struct gr_rollout_steps *s = r->steps;
    const uint32_t at = s->slot_of[seq];
    s->slot_of[seq] = GR_NONE;
    gr_rollout_give_back(r, &r->slots[at]);
    r->slots[at].seq = GR_NONE;
    gr_rollout_finished(r, rows, seq);
}

/* Those of the token that a step of the last chunk but one fed. */
static void record_fed(const gr_rollout *r, const gr_rows *rows, const gr_routed_pass *fed,
                       const gr_steps_report *report, uint32_t step)
{
    const uint64_t of_step = (uint64_t)r->bounds.rows * r->bounds.choices;
    if (r->bounds.choices) gr_routes_record(&rows->routes, fed, report->choices + step * of_step);
}

/* What a step drafted for a slot, of id [each], which is not empty. */
static void count_drafts(gr_rollout *r, const int32_t *id, uint32_t each)
{
    uint32_t drafted = 0, accepted = 0;
    for (uint32_t k = 1; k < each; k++) {
        drafted += id[k] != GR_STEPS_EMPTY;
        accepted += id[k] >= 0;
    }
    r->draft.steps++;
    r->draft.drafts += drafted > 0;
    r->draft.drafted += drafted;
    r->draft.accepted += accepted;
}

/* Of one step, from its first row on; returns whether the sequence, or its turn, has ended. */
static bool take_step(gr_rollout *r, gr_rows *rows, uint32_t seq, const gr_steps_report *report,
                      uint32_t step, uint32_t first)
{
    const struct gr_rollout_steps *s = r->steps;
    const uint32_t each = r->bounds.rows / r->bounds.samples;
    const size_t at = (size_t)step * r->bounds.rows + first;
    for (uint32_t k = 0; k < each && report->id[at + k] >= 0; k++) {
        const gr_routed_pass fed = {s->n[s->trip % 2] * each, first + k, seq,
                                    gr_rollout_length(rows, seq) - 1, 1};
        record_fed(r, rows, &fed, report, step);
        if (gr_rollout_add_token(r, &r->slots[s->slot_of[seq]], rows, report->id[at + k],
                                 report->logprob[at + k]))
            return true;
    }
    return false;
}

/* Tokens of a sequence from one slot of a report, until it ends. */
static void take_tokens(gr_rollout *r, gr_rows *rows, uint32_t seq, const gr_steps_report *report,
                        uint32_t slot)
{
    const uint32_t each = r->bounds.rows / r->bounds.samples, first = slot * each;
    for (uint32_t i = 0; i < CHUNK; i++) {
        const int32_t *id = report->id + (size_t)i * r->bounds.rows + first;
        if (*id == GR_STEPS_EMPTY) return;
        count_drafts(r, id, each);
        if (!take_step(r, rows, seq, report, i, first)) continue;
        (r->turns ? end_turn : end_sequence)(r, rows, seq);
        return;
    }
}

/* Of the prefill before the last one; choices: of all its tokens, on the host. */
static void record_read(const struct read_tokens *read, const gr_rows *rows, const uint16_t *choices)
{
    for (uint32_t i = 0; i < read->n; i++) {
        gr_routed_pass p = read->part[i];
        p.n = read->n_tokens;
        gr_routes_record(&rows->routes, &p, choices);
    }
}

static gr_status read_report(gr_rollout *r, gr_rows *rows, const uint16_t *choices, gr_diag *d)
{
    struct gr_rollout_steps *s = r->steps;
    const uint32_t which = s->trip % 2;
    gr_steps_report report;
    const gr_status st = s->ops->report(s->steps, s->trip - 2, &report, d);
    if (!st && choices) record_read(&s->read[which], rows, choices);
    for (uint32_t i = 0; !st && i < s->n[which]; i++) {
        const uint32_t seq = s->at[which][i];
        const bool runs = seq != GR_NONE && s->slot_of[seq] != GR_NONE &&
                          s->since[s->slot_of[seq]] <= s->trip - 2; /* NEVER is in no chunk */
        if (runs) take_tokens(r, rows, seq, &report, i);
    }
    return st;
}

/* ---- what comes next -------------------------------------------------------------------------------------
 */

static uint32_t free_slot(const gr_rollout *r, uint32_t from)
{
    while (from < r->bounds.samples && r->slots[from].seq != GR_NONE) from++;
    return from;
}

static uint32_t last_slot(const gr_rollout *r)
{
    uint32_t n = r->bounds.samples;
    while (n > 0 && r->slots[n - 1].seq == GR_NONE) n--;
    return n;
}

/* Of its state, and those that it may be left in. */
static void put_places(const gr_rollout *r, const gr_rollout_slot *slot, uint32_t *to)
{
    const uint32_t each = r->bounds.rows / r->bounds.samples;
    to[0] = slot->held;
    for (uint32_t k = 1; k < each; k++) to[k] = slot->spare[k - 1];
}

/* The device runs it from here on. */
static void set_slot(gr_rollout *r, const gr_rows *rows, uint32_t at, const gr_steps_input *in,
                     uint32_t *n_changes)
{
    struct gr_rollout_steps *s = r->steps;
    const gr_rollout_slot *slot = &r->slots[at];
    s->stale[at] = false;
    s->since[at] = s->trip;
    const uint32_t stride = r->bounds.stride;
    memcpy(in->table + (size_t)*n_changes * stride, slot->table, stride * sizeof(*slot->table));
    if (in->held) put_places(r, slot, in->held + (size_t)*n_changes * (r->bounds.rows / r->bounds.samples));
    const uint32_t tokens = gr_rollout_length(rows, slot->seq);
    if (in->text)
        memcpy(in->text + (size_t)*n_changes * s->longest_text, gr_rows_ids(rows, slot->seq),
               tokens * sizeof(*in->text));
    in->change[(*n_changes)++] =
        (gr_slot_change){.slot = at,
                         .from = GR_SLOT_SET,
                         .id = slot->next,
                         .position = tokens - 1,
                         .sequence = r->turns ? gr_turns_draws(r, slot->seq) : slot->seq,
                         .token = rows->response_len[slot->seq],
                         .text = slot->seq,
                         .prompt = rows->prompt_len[slot->seq]};
}

static void place(gr_rollout *r, gr_rollout_group *g, const gr_rows *rows, uint32_t at,
                  const gr_steps_input *in, uint32_t *n_changes)
{
    gr_rollout_place(r, &r->slots[at], g, rows);
    r->steps->slot_of[r->slots[at].seq] = at;
    r->steps->since[at] = NEVER;
    if (gr_rollout_is_new(&r->slots[at], rows)) set_slot(r, rows, at, in, n_changes);
}

/* Where in the pool the keys of a position go. */
static uint32_t place_of(const uint32_t *table, uint32_t position)
{
    return table[position / GR_KV_BLOCK] * GR_KV_BLOCK + position % GR_KV_BLOCK;
}

/* Tokens [*cached, end) of sequence seq, which has another one behind them, into the packed arrays, as many
 * as there is room for; false: not all of them have been given. */
static bool prefill(gr_rollout *r, const gr_rows *rows, uint32_t seq, const uint32_t *table, uint32_t held,
                    uint32_t *cached, uint32_t end, const gr_choices *how)
{
    struct gr_rollout_steps *s = r->steps;
    struct read_tokens *read = &s->read[s->trip % 2];
    const int32_t *ids = gr_rows_ids(rows, seq);
    const prefill_arrays *a = &s->host;
    const uint32_t n = GR_MIN(end - *cached, how->prefill_tokens - s->n_tokens);
    if (!n) return *cached == end;
    read->part[read->n++] = (gr_routed_pass){.at = s->n_tokens, .seq = seq, .first = *cached, .count = n};
    for (uint32_t i = 0; i < n; i++) {
        const uint32_t position = *cached + i, at = s->n_tokens + i;
        a->ids[at] = ids[position];
        a->position[at] = (int32_t)position;
        if (a->next) a->next[at] = ids[position + 1];
        a->slot[at] = place_of(table, position);
        if (a->window_slot) a->window_slot[at] = place_of(table + r->bounds.window_at, position);
    }
    a->cached[s->n_prompts] = *cached;
    if (a->held) a->held[s->n_prompts] = held;
    gr_rollout_copy_table(r, a->table + (size_t)s->n_prompts * r->bounds.stride, table, gr_blocks_of(end));
    s->n_tokens += n;
    a->offset[++s->n_prompts] = s->n_tokens;
    s->longest = GR_MAX(s->longest, n);
    *cached += n;
    return *cached == end;
}

static bool prefill_group(gr_rollout *r, gr_rollout_group *g, const gr_rows *rows, const gr_choices *how)
{
    const uint32_t first = (uint32_t)(g - r->groups) * r->cfg->samples;
    return prefill(r, rows, first, g->table, g->held, &g->cached, g->prompt - 1, how);
}

/* From there on, one that the device does not run: it is free, or waits. */
static uint32_t resting_slot(const gr_rollout *r, uint32_t from)
{
    while (r->slots[from].seq != GR_NONE && r->steps->since[from] != NEVER) from++;
    return from;
}

/* Two of which the device runs neither. */
static void swap_resting(gr_rollout *r, uint32_t a, uint32_t b)
{
    struct gr_rollout_steps *s = r->steps;
    const gr_rollout_slot slot = r->slots[a]; /* tables are swapped */
    const uint32_t since = s->since[a];
    r->slots[a] = r->slots[b];
    s->since[a] = s->since[b];
    r->slots[b] = slot;
    s->since[b] = since;
    if (r->slots[a].seq != GR_NONE) s->slot_of[r->slots[a].seq] = a;
    if (r->slots[b].seq != GR_NONE) s->slot_of[r->slots[b].seq] = b;
}

/* Conversations whose environment has answered: what it said is read, and the model goes on, in the first
 * slot in which none does: so steps are as small as those that run allow. */
static uint32_t wake(gr_rollout *r, const gr_rows *rows, const gr_choices *how, const gr_steps_input *in)
{
    uint32_t n_changes = 0, to = 0;
    for (uint32_t at = 0; at < r->bounds.samples; at++) {
        if (r->slots[at].seq == GR_NONE || r->slots[at].waits || r->steps->since[at] != NEVER) continue;
        to = r->turns ? resting_slot(r, to) : at;
        if (to != at) swap_resting(r, at, to);
        gr_rollout_slot *slot = &r->slots[to];
        const uint32_t last = gr_rollout_length(rows, slot->seq) - 1;
        slot->next = gr_rows_ids(rows, slot->seq)[last];
        if (!prefill(r, rows, slot->seq, slot->table, slot->held, &slot->cached, last, how)) break;
        set_slot(r, rows, to, in, &n_changes);
    }
    return n_changes;
}

/* Whether all of a group that begins runs from this trip on: then its prompt is read in the place of its
 * first sample, and needs none of its own. */
static bool runs_at_once(const gr_rollout *r, const gr_rollout_group *g, const gr_choices *how)
{
    const uint32_t own = gr_own_blocks(g->prompt, r->room), samples = r->cfg->samples;
    uint32_t free_slots = 0;
    for (uint32_t i = 0; i < r->bounds.samples; i++) free_slots += r->slots[i].seq == GR_NONE;
    return g->prompt - 1 <= how->prefill_tokens - r->steps->n_tokens && samples <= free_slots &&
           gr_rollout_fits(r, 0, samples, own);
}

/* Where the state of a prompt goes that begins to be read. Those with places of their own take turns: while
 * the next one begins, the one before is still copied to its last samples. */
static void place_prompt(gr_rollout *r, gr_rollout_group *g, const gr_rollout_slot *first,
                         const gr_choices *how)
{
    if (!r->bounds.slots) return;
    if (runs_at_once(r, g, how))
        g->held = first->held;
    else
        g->held = r->bounds.samples + (r->steps->own_prompts++ & 1);
}

/* Those that begin anew come before others, unless nothing else would give back what they lack. False: they
 * wait for that. */
static bool place_again(gr_rollout *r, const gr_rows *rows)
{
    for (uint32_t at, i;
         (at = free_slot(r, 0)) < r->bounds.samples && (i = gr_rollout_next_again(r, rows)) != GR_NONE;) {
        gr_rollout_place_again(r, &r->slots[at], i, rows);
        r->steps->slot_of[r->slots[at].seq] = at;
        r->steps->since[at] = NEVER;
    }
    return !r->n_again || !last_slot(r);
}

/* Groups in order, as far as slots, blocks and tokens of the prefill go. */
static uint32_t admit(gr_rollout *r, const gr_rows *rows, const gr_choices *how, const gr_steps_input *in,
                      uint32_t n_changes)
{
    if (!place_again(r, rows)) return n_changes;
    uint32_t at = free_slot(r, 0);
    for (gr_rollout_group *g; (g = gr_rollout_current(r)); r->current++) {
        const uint32_t own = gr_own_blocks(g->prompt, r->room);
        if (!g->begun) {
            if (at == r->bounds.samples || !gr_rollout_begin_group(r, g)) return n_changes;
            place_prompt(r, g, &r->slots[at], how);
        }
        if (!prefill_group(r, g, rows, how)) return n_changes;
        for (; g->admitted < r->cfg->samples; at = free_slot(r, at)) {
            if (at == r->bounds.samples || !gr_rollout_fits(r, 0, 1, own)) return n_changes;
            place(r, g, rows, at, in, &n_changes);
        }
    }
    return n_changes;
}

/* The slots that may have something to run: a sequence that has had steps for its longest response has ended,
 * though its report is still to come. */
static uint32_t last_running(const gr_rollout *r)
{
    const struct gr_rollout_steps *s = r->steps;
    uint32_t n = last_slot(r);
    while (n > 0 && (r->slots[n - 1].seq == GR_NONE || s->since[n - 1] == NEVER ||
                     (uint64_t)(s->trip - s->since[n - 1]) * CHUNK >= r->longest))
        n--;
    return n;
}

static void move_slot(gr_rollout *r, uint32_t from, uint32_t to)
{
    struct gr_rollout_steps *s = r->steps;
    gr_rollout_slot *a = &r->slots[from], *b = &r->slots[to], t = *b; /* tables are swapped */
    *b = *a;
    *a = t;
    s->slot_of[b->seq] = to;
    if (a->seq != GR_NONE) s->slot_of[a->seq] = from;
    s->stale[to] = false;
    s->since[to] = s->since[from];
    s->since[from] = NEVER;
}

/* Whether a slot takes its place among those that move together: a conversation that waits does not. */
static bool moves(const gr_rollout *r, uint32_t at)
{
    return r->slots[at].seq != GR_NONE && !(r->turns && r->steps->since[at] == NEVER);
}

/* When no more samples come, the rest move together, where that makes a step smaller. */
static uint32_t compact(gr_rollout *r, const gr_steps_input *in)
{
    const uint32_t slots = r->bounds.samples;
    uint32_t live = 0, n_changes = 0, to = 0;
    for (uint32_t i = 0; i < slots; i++) live += moves(r, i);
    const uint32_t size = rounded(live, slots);
    for (uint32_t from = last_slot(r); from-- > size;) {
        if (!moves(r, from)) continue;
        while (moves(r, to)) to++;
        move_slot(r, from, to);
        in->change[n_changes++] = (gr_slot_change){.slot = to, .from = from};
    }
    return n_changes;
}

static uint32_t clear_stale(gr_rollout *r, const gr_steps_input *in, uint32_t n_changes)
{
    struct gr_rollout_steps *s = r->steps;
    for (uint32_t i = 0; i < r->bounds.samples; i++) {
        if (s->stale[i]) in->change[n_changes++] = (gr_slot_change){.slot = i, .from = GR_SLOT_CLEAR};
        s->stale[i] = false;
    }
    return n_changes;
}

static int by_order(const void *a, const void *b)
{
    const uint64_t x = *(const uint64_t *)a, y = *(const uint64_t *)b;
    return (x > y) - (x < y);
}

/* Which of the first n_slots slots read the same prompt, with all rows of each. Those behind them take no
 * part in the chunk, whose arrays end there. */
static uint32_t list_groups(gr_rollout *r, const gr_steps_input *in, uint32_t n_slots)
{
    const uint32_t each = r->bounds.rows / r->bounds.samples;
    uint64_t *order = r->steps->order;
    uint32_t n = 0, n_groups = 0, last = GR_NONE;
    for (uint32_t i = 0; i < n_slots; i++) {
        const gr_rollout_slot *s = &r->slots[i];
        const uint64_t group = s->alone ? r->work.groups + (uint64_t)i : s->group;
        if (s->seq != GR_NONE) order[n++] = group << 32 | i;
    }
    qsort(order, n, sizeof(*order), by_order);
    for (uint32_t i = 0; i < n; i++) {
        const uint32_t g = (uint32_t)(order[i] >> 32);
        for (uint32_t k = 0; k < each; k++) in->member[i * each + k] = (uint32_t)order[i] * each + k;
        if (g == last) continue;
        in->shared[n_groups] = g < r->work.groups ? gr_full_blocks(r->groups[g].prompt) * GR_KV_BLOCK : 0;
        in->group_first[n_groups++] = i * each;
        last = g;
    }
    in->group_first[n_groups] = n * each;
    return n_groups;
}

static void write_words(const gr_call *c, uint32_t *to, uint32_t *staged, const uint32_t *from, uint32_t n)
{
    if (!n) return;
    memcpy(staged, from, n * sizeof(*from));
    c->session->kernels->copy(c->queue, to, staged, n * sizeof(*from));
}

static void write_prefill(gr_rollout *r, const gr_call *c)
{
    const struct gr_rollout_steps *s = r->steps;
    const gr_kernels *k = c->session->kernels;
    const prefill_arrays *to = &s->device, *from = &s->host;
    const uint64_t word = sizeof(uint32_t), tokens = s->n_tokens * word, prompts = s->n_prompts * word;
    if (tokens) {
        k->copy(c->queue, to->ids, from->ids, tokens);
        k->copy(c->queue, to->position, from->position, tokens);
        if (to->next) k->copy(c->queue, to->next, from->next, tokens);
        k->copy(c->queue, to->slot, from->slot, tokens);
        if (to->window_slot) k->copy(c->queue, to->window_slot, from->window_slot, tokens);
        k->copy(c->queue, to->offset, from->offset, prompts + word);
        k->copy(c->queue, to->cached, from->cached, prompts);
        if (to->held) k->copy(c->queue, to->held, from->held, prompts);
        k->copy(c->queue, to->table, from->table, prompts * r->bounds.stride);
    }
    write_words(c, to->copy_from, from->copy_from, r->copy[0].from, r->n_copies);
    write_words(c, to->copy_to, from->copy_to, r->copy[0].to, r->n_copies);
    if (to->window_slot) {
        write_words(c, to->window_from, from->window_from, r->copy[1].from, r->n_copies);
        write_words(c, to->window_to, from->window_to, r->copy[1].to, r->n_copies);
    }
    write_words(c, to->held_from, from->held_from, r->held_from, r->n_held);
    write_words(c, to->held_to, from->held_to, r->held_to, r->n_held);
}

/* Where every conversation waits and nothing is to be read, the next answer. */
static gr_status wait_for_turns(gr_rollout *r, const gr_rows *rows, uint32_t n_changes, gr_diag *d)
{
    bool waits = r->n_left, runs = n_changes || r->steps->n_tokens;
    for (uint32_t i = 0; i < r->bounds.samples; i++) {
        waits = waits || r->slots[i].seq != GR_NONE;
        runs = runs || (r->slots[i].seq != GR_NONE && !r->slots[i].waits);
    }
    return waits && !runs ? gr_turns_wait(r, rows, d) : GR_OK;
}

/* Where the choices of this trip's prefill go; NULL: they are not recorded. */
static uint16_t *choices_at(const gr_call *c, const gr_rollout *r, void *block)
{
    const gr_steps_bounds b = steps_bounds(r->node, c->how, c->session->kernels, r->bounds.choices);
    return block ? (uint16_t *)((char *)block + r->steps->trip % 2 * choices_bytes(&b, c->how)) : NULL;
}

/* The next chunk and what is read before it, of its own sequences. */
static gr_status plan_own(const gr_call *c, gr_rollout *r, gr_rows *rows, gr_diag *d)
{
    struct gr_rollout_steps *s = r->steps;
    const uint32_t which = s->trip % 2, slots = r->bounds.samples;
    const gr_steps_input in = s->ops->input(s->steps, s->trip);
    uint32_t n_changes = r->turns || r->kept ? wake(r, rows, c->how, &in) : 0;
    n_changes = admit(r, rows, c->how, &in, n_changes);
    if (r->turns) n_changes = clear_stale(r, &in, n_changes); /* no slot is moved and cleared */
    if (!n_changes && r->current == r->n_groups) n_changes = compact(r, &in);
    if (!r->turns) n_changes = clear_stale(r, &in, n_changes);
    s->n[which] = rounded(last_running(r), slots);
    const uint32_t n_groups = list_groups(r, &in, s->n[which]);
    s->ops->change(s->steps, c->queue, s->trip, n_changes, n_groups);
    write_prefill(r, c);
    for (uint32_t i = 0; i < slots; i++) s->at[which][i] = r->slots[i].seq;
    s->read[which].n_tokens = s->n_tokens;
    r->pace.steps += s->n[which] ? CHUNK : 0;
    r->pace.width += (uint64_t)CHUNK * s->n[which];
    r->pace.read += s->n_tokens;
    return r->turns ? wait_for_turns(r, rows, n_changes, d) : GR_OK;
}

/* What the chunk before the last one gave. */
static gr_status take_report(const gr_call *c, gr_rollout *r, gr_rows *rows, gr_diag *d)
{
    const bool waits = r->steps->trip > 1 && gr_rollout_has_more(r);
    gr_status st = waits ? read_report(r, rows, choices_at(c, r, c->ptr[PLAN_CHOICES]), d) : GR_OK;
    if (!st && r->turns) st = gr_turns_take(r, rows, gr_turns_peers(c), end_conversation, d);
    return st;
}

/* Its last trips are of other ranks, whose rows its experts may have. */
static gr_status run_plan(const gr_call *c, gr_rollout *r, gr_diag *d)
{
    struct gr_rollout_steps *s = r->steps;
    const gr_steps_bounds b = steps_bounds(r->node, c->how, c->session->kernels, r->bounds.choices);
    gr_rows rows = gr_rows_at(c->ptr[PLAN_ROWS], &r->work);
    if (b.choices) rows.routes = gr_routes_at(c->ptr[PLAN_ROUTES], r->node);
    s->device = arrays_at(c->ptr[PLAN_PACKED], &b, c->how, 0);
    s->host = arrays_at(c->ptr[PLAN_STAGING], &b, c->how, s->trip % 2);
    gr_status st = take_report(c, r, &rows, d);
    if (st) return st;
    gr_session_finished(r->session, r->node, &rows, GR_NONE);
    s->n_tokens = s->n_prompts = s->longest = s->host.offset[0] = r->n_copies = r->n_held = 0;
    s->read[s->trip % 2].n = s->n[s->trip % 2] = 0;
    r->trip++;
    if (gr_rollout_has_more(r) || !gr_experts_are_divided(r->node)) st = plan_own(c, r, &rows, d);
    gr_rollout_agree(r, c->queue,
                     (gr_rollout_left){.more = gr_rollout_has_more(r),
                                       .reads = s->n_tokens > 0,
                                       .runs = s->n[s->trip % 2] > 0});
    return st;
}

/* ---- running ---------------------------------------------------------------------------------------------
 */

static const void *bucket(const gr_call *c, uint32_t which)
{
    return c->ptr[which];
}

static void *use(const gr_call *c, uint32_t which)
{
    return c->ptr[gr_model_buckets(&c->node->model->shape) + which];
}

/* e, with what is said of experts that ranks have parts of. routing: filled in. */
static gr_extend divided(const gr_call *c, const gr_extend *e, gr_routing *routing)
{
    gr_rollout *r = c->state;
    const gr_steps_bounds b = steps_bounds(c->node, c->how, c->session->kernels, r->bounds.choices);
    gr_extend own = *e;
    *routing = e->routing ? *e->routing : (gr_routing){0};
    routing->exchanges = &r->exchanges;
    own.routing = routing;
    own.expert_run = gr_rollout_expert_run(c->node, tokens_at_once(&b, c->how));
    return own;
}

/* Embeddings, and those of each layer. */
static void embed(const gr_call *c, gr_queue *q, const gr_extend *e, const uint32_t *host_offset)
{
    const gr_kernels *k = c->session->kernels;
    const gr_model_shape *s = gr_node_shape(c->node);
    const gr_packed b = {.n_tokens = e->n_tokens,
                         .n_seqs = e->n_seqs,
                         .ids = e->ids,
                         .offset = e->offset,
                         .host_offset = host_offset,
                         .carried = use(c, USE_CARRIED)};
    if (!e->n_tokens) return;
    k->embed_forward(q, s, bucket(c, 0), &b, use(c, USE_X));
    if (s->per_layer.vocab)
        gr_per_layer_forward(k, q, s, bucket(c, gr_model_per_layer_bucket(s)), &b, use(c, USE_X),
                             use(c, USE_WS));
}

/* A layer that takes keys and values has the state of the one that it takes them of. */
static void run_layers(const gr_call *c, gr_queue *q, const gr_extend *e, const uint32_t *host_offset)
{
    const gr_kernels *k = c->session->kernels;
    const gr_model_shape *s = gr_node_shape(c->node);
    const gr_state_room room = gr_rollout_room(c->node, c->how, k);
    gr_routing routing;
    gr_extend own = gr_experts_are_divided(c->node) ? divided(c, e, &routing) : *e;
    own.carried = use(c, USE_CARRIED);
    embed(c, q, e, host_offset);
    for (uint32_t l = 0; l < s->layers; l++)
        gr_layer_extend(k, q, s, l, bucket(c, 1 + l), &own, use(c, USE_X),
                        (char *)use(c, USE_KV) + gr_layer_state_at(k, s, gr_model_keys_of(s, l), room),
                        use(c, USE_WS));
}

static const void *last_norm(const gr_call *c)
{
    const gr_model_shape *s = gr_node_shape(c->node);
    return (const char *)bucket(c, 1 + s->layers) +
           gr_tensor_offset(s, 1 + s->layers, GR_T_NORM) * gr_dtype_size(c->session->kernels->dtype);
}

/* The layer that drafts reads tokens e, each beside the hidden state before it: what the model gave of as
 * many, or the rows `from` of what the layer itself did. */
static void run_ahead(const gr_call *c, gr_queue *q, const gr_extend *e, const uint32_t *from)
{
    const gr_kernels *k = c->session->kernels;
    const gr_model_shape *s = &c->node->second->shape;
    const gr_packed b = {.n_tokens = e->n_tokens, .n_seqs = e->n_seqs, .ids = e->ids, .offset = e->offset};
    void *x = use(c, USE_X), *hidden = use(c, USE_HIDDEN), *ws = use(c, USE_WS);
    if (from)
        gr_ahead_again(k, q, s, gr_rollout_ahead_norm(c, use(c, USE_AHEAD_NORM)), x, from, e->n_tokens,
                       hidden);
    else
        gr_ahead_norm(k, q, s, last_norm(c), x, e->n_tokens, hidden);
    gr_ahead_enter(&(gr_ahead_call){k, q, s, bucket(c, 0), use(c, USE_AHEAD_ENTER), &b, hidden, ws}, x);
    gr_layer_extend(k, q, s, 0, use(c, USE_AHEAD_LAYER), e, x, gr_rollout_ahead_state(c, use(c, USE_KV)), ws);
}

static void run_prefill(const gr_call *c, const gr_rollout *r)
{
    const struct gr_rollout_steps *s = r->steps;
    const prefill_arrays *a = &s->device;
    if (!r->left.reads) return;
    const gr_routing routing = {.record = use(c, USE_CHOICES)};
    gr_extend e = {.n_tokens = s->n_tokens,
                   .n_seqs = s->n_prompts,
                   .ids = a->ids,
                   .offset = a->offset,
                   .cached = a->cached,
                   .block_table = a->table,
                   .table_stride = r->bounds.stride,
                   .position = a->position,
                   .window_at = r->bounds.window_at,
                   .slot = a->slot,
                   .window_slot = a->window_slot,
                   .longest = s->longest,
                   .held = a->held,
                   .routing = r->bounds.choices ? &routing : NULL};
    run_layers(c, c->queue, &e, s->host.offset);
    if (a->next && s->n_tokens) {
        e.ids = a->next;
        e.window_at = 0;
        e.held = NULL;
        e.routing = NULL;
        run_ahead(c, c->queue, &e, NULL);
    }
    if (r->bounds.choices && s->n_tokens)
        c->session->kernels->copy(c->queue, choices_at(c, r, use(c, USE_CHOICES_BACK)), use(c, USE_CHOICES),
                                  (uint64_t)s->n_tokens * r->bounds.choices * sizeof(uint16_t));
}

static void sample_rows(const gr_call *c, gr_queue *q, const void *norm, const gr_steps_draw *d)
{
    const gr_kernels *k = c->session->kernels;
    const gr_model_shape *s = gr_node_shape(c->node);
    const void *head = gr_head_matrix(k, s, bucket(c, 0), bucket(c, 1 + s->layers));
    const uint32_t rows = gr_rollout_head_rows(c->how, k);
    for (uint32_t i = 0; i < d->n; i += rows)
        k->head_sample(q, s, norm, head, use(c, USE_X), d->row + i, GR_MIN(rows, d->n - i), d->how,
                       d->draw + i, d->id + i, d->logprob + i, use(c, USE_HEAD_WS));
}

static void model_step(void *user, gr_queue *q, const gr_extend *e, const gr_steps_draw *d)
{
    run_layers(user, q, e, NULL);
    sample_rows(user, q, last_norm(user), d);
}

static void ahead_step(void *user, gr_queue *q, const gr_extend *e, const uint32_t *from,
                       const gr_steps_draw *d)
{
    run_ahead(user, q, e, from);
    sample_rows(user, q, gr_rollout_ahead_norm(user, use(user, USE_AHEAD_NORM)), d);
}

/* Of the addresses that a step uses (FNV-1a). */
static uint64_t key_of(const gr_call *c)
{
    uint64_t key = 14695981039346656037ull;
    for (uint32_t i = 0; i < c->n_ptr; i++) key = (key ^ (uint64_t)(uintptr_t)c->ptr[i]) * 1099511628211ull;
    return key;
}

/* Whether a layer's blocks or states are copied as another's are. */
static bool copied_alike(const gr_rollout *r, const gr_kernels *k, const gr_model_shape *s, uint32_t a,
                         uint32_t b)
{
    return gr_layer_block_bytes(k, s, a) == gr_layer_block_bytes(k, s, b) &&
           gr_layer_slot_bytes(k, s, a) == gr_layer_slot_bytes(k, s, b) &&
           (!r->bounds.window_at || gr_layer_has_window(s, a) == gr_layer_has_window(s, b));
}

/* Blocks or states of every layer; those that follow each other and are copied alike at once. */
static void copy_states(const gr_call *c, const gr_rollout *r)
{
    const gr_kernels *k = c->session->kernels;
    const gr_model_shape *s = gr_node_shape(c->node);
    const gr_state_room room = gr_rollout_room(c->node, c->how, k);
    const prefill_arrays *a = &r->steps->device;
    for (uint32_t l = 0, n; l < s->layers; l += n) {
        const uint64_t block = gr_layer_block_bytes(k, s, l), slot = gr_layer_slot_bytes(k, s, l),
                       at = gr_layer_state_at(k, s, l, room);
        const bool ring = r->bounds.window_at && gr_layer_has_window(s, l);
        const uint32_t *from = ring ? a->window_from : a->copy_from, *to = ring ? a->window_to : a->copy_to;
        for (n = 1; l + n < s->layers && copied_alike(r, k, s, l, l + n);) n++;
        if (!block && !slot) continue; /* of keys that other layers have */
        const gr_steps_blocks all = {.kv = (char *)use(c, USE_KV) + at,
                                     .layers = n,
                                     .layer_bytes = gr_layer_state_at(k, s, l + 1, room) - at,
                                     .block_bytes = block + slot};
        r->steps->ops->copy(r->steps->steps, c->queue, &all, block ? from : a->held_from,
                            block ? to : a->held_to, block ? r->n_copies : r->n_held);
    }
    if (!gr_rollout_ahead(c->node, c->how)) return;
    const gr_steps_blocks ahead = {.kv = gr_rollout_ahead_state(c, use(c, USE_KV)),
                                   .layers = 1,
                                   .block_bytes = gr_layer_block_bytes(k, &c->node->second->shape, 0)};
    r->steps->ops->copy(r->steps->steps, c->queue, &ahead, a->copy_from, a->copy_to, r->n_copies);
}

static void run_decode(const gr_call *c, gr_rollout *r)
{
    struct gr_rollout_steps *s = r->steps;
    if (r->n_copies || r->n_held) copy_states(c, r);
    const gr_steps_chunk chunk = {.n = s->n[s->trip % 2],
                                  .step = model_step,
                                  .ahead = ahead_step,
                                  .user = (void *)c,
                                  .key = key_of(c),
                                  .together = gr_experts_are_divided(c->node) && r->left.runs};
    s->ops->run(s->steps, c->queue, s->trip, &chunk);
    s->trip++;
}

gr_status gr_rollout_steps_run(const gr_call *c, gr_rollout *r, gr_diag *d)
{
    if (c->kernel == ROLLOUT_PLAN) return run_plan(c, r, d);
    if (c->kernel == ROLLOUT_PREFILL) run_prefill(c, r);
    if (c->kernel == ROLLOUT_DECODE) run_decode(c, r);
    return GR_OK;
}
