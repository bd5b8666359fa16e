/* ops/tunables.c: micro-batches and rows of the head, as levels that a planner may choose among. */
#include "ops/tunables.h"

#include "ops/kernels/experts.h"
#include "ops/pass.h"

enum { HEAD_LEVELS = 4, HEAD_ROWS_MIN = 16 };

uint32_t gr_halvings(uint32_t from, uint32_t to)
{
    uint32_t n = 0;
    while (from > to) {
        from /= 2;
        n++;
    }
    return n;
}

uint32_t gr_node_longest(const gr_node *n)
{
    return n->bounds.prompt_tokens + n->bounds.response_tokens;
}

uint32_t gr_node_together(const gr_node *n)
{
    const gr_rows_bounds *b = &n->bounds;
    const uint32_t shares = gr_node_shares(n);
    const uint64_t most = b->prompt_tokens - 1 + (uint64_t)shares * (b->response_tokens + 1ull);
    return shares ? (uint32_t)GR_MIN(most, UINT32_MAX) : gr_node_longest(n);
}

/* Where the kernels are batch-invariant, passes are cut where the planner chooses without a change of bits;
 * those of an update where every gradient is one chain of additions in the order of tokens. But a tied
 * embedding gets those of the head and of the embedding, by turns a pass; many ranks add theirs a
 * micro-batch at a time; and gradients in FP8 round blocks of a pass's tokens. */
bool gr_cuts_change_bits(const gr_graph *g, const gr_node *n, const gr_kernels *k)
{
    if (!n->op->trains) return n->op->passes && !k->invariant;
    return !k->chained || n->model->shape.tied || g->ranks > 1 || g->canonical ||
           n->model->precision.gradients;
}

/* The same of the rows that the head takes at a time, whose gradients are one product. */
bool gr_head_changes_bits(const gr_node *n, const gr_kernels *k)
{
    return n->op->trains ? !k->chained : n->model && !k->invariant;
}

/* Halvings of the usual number that all the tokens of a pass would fit into anyway. */
static uint32_t idle_halvings(uint32_t usual, uint64_t all)
{
    uint32_t n = 0;
    while (usual >> (n + 1) >= all && usual >> (n + 1)) n++;
    return n;
}

enum { FULL_STAGES = 8, SMALLEST_PART = 4 };

/* Of ranks that share them, as many each. Stages of a pipeline stand idle for as many micro-batches as there
 * are stages but one: so that these are few of all, they are cut smaller, down to a fourth. all: tokens of
 * the pass. */
static uint32_t usual_tokens(const gr_node *n, const gr_kernels *k, uint64_t all)
{
    const uint32_t usual = k->sizes.micro_tokens * gr_mesh_sharers(&n->placement.mesh),
                   stages = gr_mesh_size(&n->placement.mesh, GR_AXIS_PIPELINE);
    if (stages < 2) return usual;
    return (uint32_t)GR_MIN(usual, GR_MAX(usual / SMALLEST_PART, all / (FULL_STAGES * stages)));
}

void gr_micro_set(const gr_node *n, const gr_kernels *k, uint32_t level, uint64_t all, gr_choices *c)
{
    const uint32_t usual = usual_tokens(n, k, all), halvings = level ? idle_halvings(usual, all) + level : 0;
    c->micro_tokens = GR_MAX(usual >> halvings, gr_node_together(n));
}

static void describe_micro(const gr_node *n, uint32_t level, const gr_choices *c, gr_str *out)
{
    (void)n, (void)level;
    gr_str_printf(out, "%u", c->micro_tokens);
}

gr_tunable gr_micro_tunable(const gr_graph *g, const gr_node *n, const gr_kernels *k, uint64_t all,
                            gr_tunable_set *set)
{
    const uint32_t usual = usual_tokens(n, k, all), halvings = gr_halvings(usual, gr_node_together(n)),
                   idle = idle_halvings(usual, all);
    return (gr_tunable){.name = "micro-batch tokens",
                        .n_levels = 1 + (halvings > idle ? halvings - idle : 0),
                        .bits = gr_cuts_change_bits(g, n, k) ? GR_BITS_DIFFER : GR_BITS_SAME,
                        .set = set,
                        .describe = describe_micro};
}

/* ---- experts ---- */

enum { EXPERT_RUN_MIN = 64 };

static bool has_experts(const gr_node *n)
{
    return n->model && gr_model_routers(&n->model->shape, n->model->shape.layers).n > 0;
}

bool gr_experts_are_divided(const gr_node *n)
{
    return has_experts(n) && gr_mesh_size(&n->placement.mesh, GR_AXIS_EXPERT) > 1;
}

static void set_again(const gr_node *n, const gr_kernels *k, uint32_t level, gr_choices *c)
{
    (void)n, (void)k;
    c->experts_again = level;
}

static void describe_again(const gr_node *n, uint32_t level, const gr_choices *c, gr_str *out)
{
    (void)n, (void)c;
    gr_str_puts(out, level ? "made again" : "kept");
}

size_t gr_experts_kept_tunable(const gr_node *n, gr_tunable *out)
{
    if (!gr_experts_are_divided(n)) return 0;
    *out = (gr_tunable){
        .name = "experts' first products", .n_levels = 2, .set = set_again, .describe = describe_again};
    return 1;
}

/* Holders of experts add up the gradients of what comes in a run before those of the next. */
bool gr_experts_change_bits(const gr_node *n, const gr_kernels *k)
{
    return has_experts(n) && n->op->trains && (!k->chained || gr_experts_are_divided(n));
}

void gr_experts_set(const gr_node *n, const gr_kernels *k, uint32_t level, gr_choices *c)
{
    const uint32_t most = GR_MIN(c->micro_tokens, (uint32_t)GR_EXPERT_RUN);
    (void)k;
    c->expert_run = has_experts(n) ? GR_MAX(most >> level, GR_MIN(most, (uint32_t)EXPERT_RUN_MIN)) : 0;
}

static void describe_experts(const gr_node *n, uint32_t level, const gr_choices *c, gr_str *out)
{
    (void)n, (void)level;
    gr_str_printf(out, "%u", c->expert_run);
}

size_t gr_experts_tunable(const gr_node *n, const gr_kernels *k, gr_tunable *out)
{
    if (!has_experts(n)) return 0;
    *out = (gr_tunable){.name = "expert tokens at once",
                        .n_levels = 1 + gr_halvings(GR_EXPERT_RUN, EXPERT_RUN_MIN),
                        .bits = gr_experts_change_bits(n, k) ? GR_BITS_DIFFER : GR_BITS_SAME,
                        .set = gr_experts_set,
                        .describe = describe_experts};
    return 1;
}

static uint32_t usual_head_rows(const gr_node *n, const gr_pass_sizes *sizes)
{
    const uint32_t vocab = n->model ? n->model->shape.vocab : 1;
    uint32_t rows = sizes->head_rows;
    if (!sizes->head_sums || !n->op->passes)
        rows = GR_MIN(rows, GR_MAX(sizes->head_elems / vocab, (uint32_t)HEAD_ROWS_MIN));
    return rows > sizes->head_step ? rows - rows % sizes->head_step : rows;
}

void gr_head_set(const gr_node *n, const gr_kernels *k, uint32_t level, uint32_t rows, gr_choices *c)
{
    c->head_rows = GR_MAX(GR_MIN(usual_head_rows(n, &k->sizes), GR_MAX(rows, 1u)) >> 2 * level, 1u);
}

static void describe_head(const gr_node *n, uint32_t level, const gr_choices *c, gr_str *out)
{
    (void)n, (void)level;
    gr_str_printf(out, "%u rows", c->head_rows);
}

gr_tunable gr_head_tunable(const gr_node *n, const gr_kernels *k, gr_tunable_set *set)
{
    return (gr_tunable){.name = "head chunk",
                        .n_levels = HEAD_LEVELS,
                        .bits = gr_head_changes_bits(n, k) ? GR_BITS_DIFFER : GR_BITS_SAME,
                        .set = set,
                        .describe = describe_head};
}
