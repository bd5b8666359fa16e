/* ops/logprob.c: the op `logprob`: log-probs (and head statistics) of a model for the tokens of a rollout. */
#include "ops/configs.h"
#include "ops/pass.h"
#include "ops/spread.h"

#include <stdlib.h>

#define CFG(f) offsetof(gr_logprob_cfg, f)

/* clang-format off */
static const gr_key keys[] = {
    {"model", GR_KEY_MODEL, CFG(model), true, NULL, 0, 0, NULL, "the model asked"},
    {"of", GR_KEY_NODE, CFG(of), true, NULL, 0, 0, NULL, "the rows; their temperature applies"},
    {"micro_tokens", GR_KEY_UINT, CFG(micro_tokens), false, "0", 0, 1 << 24, NULL, "most tokens of one packed pass; 0: the planner's choice"},
    {0}};

static const gr_field fields[] = {
    {"logprob", GR_LEVEL_TOKEN, GR_KIND_NUMBER, GR_EXPR_F32, "log-prob of each response token"},
    {"entropy", GR_LEVEL_TOKEN, GR_KIND_NUMBER, GR_EXPR_F32, "entropy of the distribution each token was drawn from"},
    {"sum_p2", GR_LEVEL_TOKEN, GR_KIND_NUMBER, GR_EXPR_F32, "sum of squared probabilities over the vocabulary"},
    {0}};
/* clang-format on */

enum { KERNEL_BEGIN, KERNEL_LOOP, KERNEL_PACK, KERNEL_EMBED, KERNEL_LAYER, KERNEL_HEAD };

static void check(gr_graph *g, gr_node *n, gr_diag *d)
{
    (void)g;
    const gr_rows_bounds *b = &n->rows->bounds;
    gr_check_micro_tokens(n, ((const gr_logprob_cfg *)n->cfg)->micro_tokens, b, d);
}

/* The column of one head statistic, GR_NONE where nobody reads it. logprob is always computed. */
static uint32_t stat_object(const gr_node *n, const char *field, gr_program *p)
{
    const gr_column *c = gr_node_column(n, field);
    return c ? gr_column_object(p, c) : GR_NONE;
}

static void declare(const gr_graph *g, const gr_node *n, const gr_choices *how, const gr_kernels *k,
                    gr_program *p)
{
    (void)g;
    const gr_model *m = n->model;
    const gr_model_shape *s = &m->shape;
    const gr_rows_bounds *rows = &n->rows->bounds;
    gr_micro_bounds b = gr_micro_bounds_of(rows, rows->seqs, how->micro_tokens);
    gr_pass_bounds bounds = gr_pass_bounds_of(&b, rows, how);
    uint32_t block = gr_rows_object(p, n->rows);
    uint32_t packed = gr_program_temp(p, GR_CAT_WORKSPACE, gr_micro_bytes(&b), "packed");
    uint32_t staging = gr_program_host(p, GR_CAT_WORKSPACE, gr_micro_bytes(&b), "staging");
    uint32_t x = gr_program_temp(p, GR_CAT_ACTIVATIONS, gr_hidden_bytes(k, s, b.tokens), "x");
    uint32_t ws = gr_program_temp(p, GR_CAT_WORKSPACE, k->layer_ws_bytes(s, &bounds, false), "ws");
    uint32_t head_ws =
        gr_program_temp(p, GR_CAT_WORKSPACE, k->head_ws_bytes(s, how->head_rows, how->threads), "head_ws");
    uint32_t logprob = stat_object(n, "logprob", p), entropy = stat_object(n, "entropy", p);
    uint32_t sum_p2 = stat_object(n, "sum_p2", p), scratch = GR_NONE;
    if (logprob == GR_NONE)
        scratch = gr_program_temp(p, GR_CAT_WORKSPACE, how->head_rows * sizeof(float), "logprob_chunk");
    gr_micro_cost cost = gr_micro_cost_of(&b, rows, rows->seqs);

    gr_program_run(p, KERNEL_BEGIN, 0,
                   (gr_use[]){{block, GR_READ}, {logprob, GR_WRITE}, {entropy, GR_WRITE}, {sum_p2, GR_WRITE}},
                   4, "begin");
    gr_spread_loop(p, KERNEL_LOOP, b.trips, gr_spread_gathers(p, m), "micro_batches")->trips_expected =
        cost.trips;
    gr_program_run(p, KERNEL_PACK, 0, (gr_use[]){{block, GR_READ}, {packed, GR_WRITE}, {staging, GR_WRITE}},
                   3, "pack");
    gr_spread_gather(p, k, m, "", 0);
    gr_spread_gather(p, k, m, "", 1);
    gr_program_run(p, KERNEL_EMBED, 0,
                   (gr_use[]){{gr_spread_params(p, k, m, "", 0), GR_READ}, {packed, GR_READ}, {x, GR_WRITE}},
                   3, "embed");
    for (uint32_t l = 0; l < s->layers; l++) {
        gr_spread_gather(p, k, m, "", 2 + l); /* beside this layer */
        gr_layer_cost(gr_program_run(p, KERNEL_LAYER, l,
                                     (gr_use[]){{gr_spread_params(p, k, m, "", 1 + l), GR_READ},
                                                {packed, GR_READ},
                                                {x, GR_UPDATE},
                                                {ws, GR_WRITE}},
                                     4, "layer.%u", l),
                      k, s, cost.tokens, bounds.length, 1);
    }
    uint32_t norm = gr_spread_params(p, k, m, "", 1 + s->layers);
    uint32_t lm = s->tied ? gr_spread_params(p, k, m, "", 0) : GR_NONE;
    gr_head_cost(gr_program_run(p, KERNEL_HEAD, 0,
                                (gr_use[]){{norm, GR_READ},
                                           {lm, GR_READ},
                                           {packed, GR_READ},
                                           {x, GR_READ},
                                           {head_ws, GR_WRITE},
                                           {logprob, GR_UPDATE},
                                           {entropy, GR_UPDATE},
                                           {sum_p2, GR_UPDATE},
                                           {scratch, GR_WRITE}},
                                9, "head"),
                 k, s, cost.rows, 1);
    gr_program_end(p);
}

typedef struct logprob_state {
    gr_pass pass;
} logprob_state;

static gr_status open(gr_session *s, const gr_node *n, void **state, gr_diag *d)
{
    (void)s;
    (void)n;
    (void)d;
    *state = gr_calloc(1, sizeof(logprob_state));
    return GR_OK;
}

static void close(void *state)
{
    logprob_state *st = state;
    if (st) gr_pass_release(&st->pass);
    free(st);
}

static void zero_columns(const gr_call *c)
{
    uint64_t tokens = (uint64_t)c->node->rows->bounds.seqs * c->node->rows->bounds.response_tokens;
    for (uint32_t i = 1; i < c->n_ptr; i++)
        if (c->ptr[i]) c->session->kernels->zero(c->queue, c->ptr[i], tokens * sizeof(float));
}

static void run_head(const gr_call *c, const gr_pass *pass, const gr_micro *pack)
{
    const gr_kernels *k = c->session->kernels;
    const gr_model_shape *s = &c->node->model->shape;
    const void *norm = c->ptr[0], *lm = gr_head_matrix(k, s, c->ptr[1], c->ptr[0]);
    float *columns[3] = {c->ptr[5], c->ptr[6], c->ptr[7]};
    for (uint32_t first = 0; first < pass->n_rows; first += c->how->head_rows) {
        uint32_t n = GR_MIN(c->how->head_rows, pass->n_rows - first), at = pass->token + first;
        gr_head_rows rows = gr_pass_rows(pack, first, n, gr_rows_inv_temperature(c->node->rows));
        gr_head_stats out = {.logprob = columns[0] ? columns[0] + at : c->ptr[8],
                             .entropy = columns[1] ? columns[1] + at : NULL,
                             .sum_p2 = columns[2] ? columns[2] + at : NULL};
        k->head_forward(c->queue, s, norm, lm, c->ptr[3], &rows, &out, c->ptr[4]);
    }
}

static gr_status run(const gr_call *c, gr_diag *d)
{
    (void)d;
    logprob_state *st = c->state;
    const gr_kernels *k = c->session->kernels;
    const gr_model_shape *s = &c->node->model->shape;
    const gr_rows_bounds *bounds = &c->node->rows->bounds;
    gr_micro_bounds b = gr_micro_bounds_of(bounds, bounds->seqs, c->how->micro_tokens);
    if (c->kernel == KERNEL_BEGIN || c->kernel == KERNEL_PACK) {
        gr_rows rows = gr_rows_at(c->ptr[0], bounds);
        if (c->kernel == KERNEL_PACK) {
            gr_pass_next(&st->pass, &rows, &b, c->queue, c->ptr[1], c->ptr[2]);
        } else {
            gr_pass_begin(&st->pass, 0, *rows.n_seqs);
            zero_columns(c);
        }
        return GR_OK;
    }
    gr_micro pack = gr_micro_at(c->kernel == KERNEL_HEAD ? c->ptr[2] : c->ptr[1], &b);
    gr_packed packed = gr_pass_packed(&st->pass, &pack);
    if (c->kernel == KERNEL_EMBED) k->embed_forward(c->queue, s, c->ptr[0], &packed, c->ptr[2]);
    if (c->kernel == KERNEL_LAYER)
        k->layer_forward(c->queue, s, c->ptr[0], &packed, c->ptr[2], NULL, NULL, c->ptr[3]);
    if (c->kernel == KERNEL_HEAD) run_head(c, &st->pass, &pack);
    return GR_OK;
}

static bool more(const gr_call *c, uint32_t trip)
{
    (void)trip;
    return gr_pass_more(&((const logprob_state *)c->state)->pass);
}

const gr_op gr_op_logprob = {
    .name = "logprob",
    .summary = "log-probs of a model for the tokens of a rollout",
    .devices = "cpu",
    .lane = GR_LANE_COMPUTE,
    .logprob = true,
    .cfg_bytes = sizeof(gr_logprob_cfg),
    .keys = keys,
    .fields = fields,
    .check = check,
    .declare = declare,
    .open = open,
    .close = close,
    .run = run,
    .more = more,
};
