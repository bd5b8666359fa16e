/* ops/value.c: the ops `value` and `score`: what a model's value head says of the rows of a rollout, for each
 * response token (a critic), or once, at the last token (a reward model).
 *
 * The value of a response token is the head's output at the position that predicts it: of what is still to
 * come, before the token is known. A score sees the whole of prompt and response, the stop id included.
 */
#include "ops/forward.h"
#include "ops/parallel/sharding.h"

#define CFG(f) GR_FORWARD_CFG(f)

/* clang-format off */
static const gr_key value_keys[] = {
    {"model", GR_KEY_MODEL, CFG(model), true, NULL, 0, 0, NULL, "the critic: a model with a value head"},
    {"of", GR_KEY_NODE, CFG(of), true, NULL, 0, 0, NULL, "the rows"},
    {"micro_tokens", GR_KEY_UINT, CFG(micro_tokens), false, "0", 0, 1 << 24, NULL, "most tokens of one packed pass; 0: the planner's choice"},
    {0}};

static const gr_key score_keys[] = {
    {"model", GR_KEY_MODEL, CFG(model), true, NULL, 0, 0, NULL, "the reward model: one with a value head, and the tokenizer of the rows"},
    {"of", GR_KEY_NODE, CFG(of), true, NULL, 0, 0, NULL, "the rows to score"},
    {"micro_tokens", GR_KEY_UINT, CFG(micro_tokens), false, "0", 0, 1 << 24, NULL, "most tokens of one packed pass; 0: the planner's choice"},
    {0}};

static const gr_field value_fields[] = {
    {"value", GR_LEVEL_TOKEN, GR_KIND_NUMBER, GR_EXPR_F32, "value of each response token, predicted at the position before it"}, {0}};

static const gr_field score_fields[] = {
    {"score", GR_LEVEL_SEQ, GR_KIND_NUMBER, GR_EXPR_F32, "score of prompt and response, at the last token"}, {0}};
/* clang-format on */

enum { HEAD_LAST, HEAD_PACKED, HEAD_X, HEAD_WS, HEAD_OUT, N_HEAD }; /* operands; the last bucket */

static void check_value(gr_graph *g, gr_node *n, gr_diag *d)
{
    gr_check_head(n, GR_HEAD_VALUE, d);
    gr_check_micro_tokens(n, ((const gr_logprob_cfg *)n->cfg)->micro_tokens, &n->rows->bounds, d);
    gr_graph_column(g, n, NULL); /* the head writes it, whoever reads it */
}

static void declare_value(const gr_graph *g, const gr_node *n, const gr_choices *how, const gr_kernels *k,
                          gr_tasks *p)
{
    const gr_model_shape *s = &n->model->shape;
    uint32_t out = gr_column_object(p, gr_node_column(n, NULL));
    gr_forward f = gr_forward_declare(g, n, how, k, p, &out, 1);
    uint32_t last = gr_forward_last(n, k, p);
    uint32_t ws =
        gr_tasks_temp(p, GR_CAT_WORKSPACE, k->value_ws_bytes(s, how->head_rows, how->threads), "value_ws");
    gr_task *head = gr_tasks_run(p, GR_FORWARD_HEAD, 0,
                                 (gr_use[]){[HEAD_LAST] = {last, GR_READ},
                                            [HEAD_PACKED] = {f.packed, GR_READ},
                                            [HEAD_X] = {f.x, GR_READ},
                                            [HEAD_WS] = {ws, GR_WRITE},
                                            [HEAD_OUT] = {out, GR_UPDATE | GR_BY_QUEUE}},
                                 N_HEAD, "head");
    gr_head_cost(head, k, s, f.cost.rows, 1);
    gr_forward_head_cost(head, n);
    gr_forward_end(n, p, &f, &out, 1);
}

static gr_status open_value(gr_session *s, const gr_node *n, void **state, gr_diag *d)
{
    (void)d;
    *state = gr_forward_open(s, n, false);
    return GR_OK;
}

static gr_status open_score(gr_session *s, const gr_node *n, void **state, gr_diag *d)
{
    (void)d;
    *state = gr_forward_open(s, n, true);
    return GR_OK;
}

static void run_head(const gr_call *c, const gr_pass *pass)
{
    const gr_model_shape *s = &c->node->model->shape;
    gr_micro_bounds b = gr_forward_bounds(c->node, c->how);
    gr_micro pack = gr_micro_at(c->ptr[HEAD_PACKED], &b);
    gr_value_head head = gr_value_head_at(c->session->kernels, s, c->ptr[HEAD_LAST]);
    float *out = c->ptr[HEAD_OUT];
    for (gr_chunk h = {0}; gr_pass_chunk(pass, c->how->head_rows, &h);)
        c->session->kernels->value_forward(c->queue, s, &head, c->ptr[HEAD_X], pack.row + h.row, h.n,
                                           out + h.at, c->ptr[HEAD_WS]);
}

static gr_status run_value(const gr_call *c, gr_diag *d)
{
    if (c->kernel != GR_FORWARD_HEAD) return gr_forward_run(c, d);
    if (gr_forward_has_head(c)) run_head(c, c->state);
    return GR_OK;
}

const gr_op gr_op_value = {
    .name = "value",
    .passes = true,
    .summary = "values of a critic for the tokens of a rollout",
    .kernels = GR_KERNELS_FORWARD | GR_KERNELS_VALUE_HEAD,
    .lane = GR_LANE_COMPUTE,
    .cfg_bytes = sizeof(gr_logprob_cfg),
    .keys = value_keys,
    .fields = value_fields,
    .check = check_value,
    .tunables = gr_forward_tunables,
    .default_choice = gr_forward_default_choice,
    .runs_with = gr_forward_runs_with,
    .declare = declare_value,
    .open = open_value,
    .close = gr_forward_close,
    .run = run_value,
    .more = gr_forward_more,
    .trips = gr_forward_trips,
    .sends = gr_forward_sends,
};

const gr_op gr_op_score = {
    .name = "score",
    .passes = true,
    .summary = "scores of a reward model for the sequences of a rollout",
    .doc = "The output of a sequence-classification checkpoint at the last token of prompt and response. The "
           "model reads the ids as they were sampled, so it needs the policy's tokenizer.",
    .kernels = GR_KERNELS_FORWARD | GR_KERNELS_VALUE_HEAD,
    .lane = GR_LANE_COMPUTE,
    .scores = true,
    .cfg_bytes = sizeof(gr_logprob_cfg),
    .keys = score_keys,
    .fields = score_fields,
    .check = check_value,
    .tunables = gr_forward_tunables,
    .default_choice = gr_forward_default_choice,
    .runs_with = gr_forward_runs_with,
    .declare = declare_value,
    .open = open_score,
    .close = gr_forward_close,
    .run = run_value,
    .more = gr_forward_more,
    .trips = gr_forward_trips,
    .sends = gr_forward_sends,
};
