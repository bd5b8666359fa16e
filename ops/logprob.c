/* ops/logprob.c: the op `logprob`: log-probs (and head statistics) of a model for the tokens of a rollout. */
#include "ops/forward.h"
#include "ops/parallel/sharding.h"
#include "ops/base/routes.h"
#include "ops/base/rows.h"
#include "ops/base/states.h"

#include <string.h>

#define CFG(f) GR_FORWARD_CFG(f)

static const char *const weights[] = {"params", "rollout", NULL};

/* clang-format off */
static const gr_key keys[] = {
    {"model", GR_KEY_MODEL, CFG(model), true, NULL, 0, 0, NULL, "the model that is evaluated"},
    {"of", GR_KEY_NODE, CFG(of), true, NULL, 0, 0, NULL, "the rows; their temperature applies"},
    {"micro_tokens", GR_KEY_UINT, CFG(micro_tokens), false, "0", 0, 1 << 24, NULL, "most tokens of one packed pass; 0: the planner's choice"},
    {"weights", GR_KEY_ENUM, CFG(weights), false, "params", 0, 0, weights, "which copy of the weights is used: params, the one that trains; rollout, the one that generates, which may be tensor-parallel"},
    {"replay", GR_KEY_ENUM, CFG(replay), false, NULL, 0, 0, gr_replay_names, "the experts of tokens, of a model that has any: rollout, those that the rollout chose; compare, those that the routers choose here, compared with the rollout's in the metrics; default: those that the routers choose here"},
    {"prompts", GR_KEY_NODE, CFG(prompts), false, NULL, 0, 0, NULL, "prompts that were made of these rows (op prompts with of): the same responses, each behind its own of these in the place of the prompt that it answers"},
    {0}};

static const gr_field fields[] = {
    {"logprob", GR_LEVEL_TOKEN, GR_KIND_NUMBER, GR_EXPR_F32, "log-prob of each response token"},
    {"entropy", GR_LEVEL_TOKEN, GR_KIND_NUMBER, GR_EXPR_F32, "entropy of the distribution each token was drawn from"},
    {"sum_p2", GR_LEVEL_TOKEN, GR_KIND_NUMBER, GR_EXPR_F32, "sum of squared probabilities over the vocabulary"},
    {0}};
/* clang-format on */

/* A model that samples behind these prompts has them as its own tokens. */
static const gr_node *read_by_other(const gr_graph *g, const gr_node *prompts, const gr_model *m)
{
    for (size_t i = 0; i < g->n_nodes; i++) {
        const gr_node *n = g->nodes[i];
        if (!n->op->generates || n->of != prompts || !m || n->model == m) continue;
        const char *own = n->model->files.folder, *theirs = m->files.folder;
        if (own && theirs && strcmp(own, theirs) != 0)
            return n; /* of a model that is not here it is not known */
    }
    return NULL;
}

/* The rows as the pass sees them: behind prompts that may be longer. */
static void set_bounds(gr_node *n, const gr_node *prompts, gr_loc at, gr_diag *d)
{
    n->bounds = (gr_rows_bounds){.groups = n->bounds.groups,
                                 .seqs = n->bounds.seqs,
                                 .prompt_tokens = prompts->bounds.prompt_tokens,
                                 .response_tokens = n->bounds.response_tokens};
    const uint64_t most = (uint64_t)n->bounds.prompt_tokens + n->bounds.response_tokens;
    if (n->model->shape.max_positions && most > n->model->shape.max_positions)
        gr_diag_error(d, at, GR_E_INVALID,
                      "a sequence may have %u tokens of '%s' and %u of a response, but model '%s' has %u "
                      "positions",
                      n->bounds.prompt_tokens, prompts->name, n->bounds.response_tokens, n->model->name,
                      n->model->shape.max_positions);
}

static void check_prompts(const gr_graph *g, const gr_node *n, const gr_node *prompts, gr_diag *d)
{
    const gr_loc at = gr_value_get(n->value, "prompts")->at;
    const gr_node *maker = gr_rows_maker(n->rows), *other = read_by_other(g, prompts, maker->model);
    if (!prompts->of || prompts->of->rows != n->rows)
        gr_diag_error(d, at, GR_E_INVALID,
                      "'prompts' must be made of the rows of '%s', one for each of them (op prompts with of: "
                      "%s), and '%s' is not",
                      n->of->name, n->of->name, prompts->name);
    else if (maker->op->generates && ((const gr_generate_cfg *)maker->cfg)->serve.host)
        gr_diag_error(d, at, GR_E_INVALID,
                      "'prompts': of rows that harnesses made ('serve' of '%s') only the first token is a "
                      "prompt: there is none to put another in the place of",
                      maker->name);
    else if (other)
        gr_diag_error(
            d, at, GR_E_INVALID,
            "'%s' has tokens of model '%s', which '%s' samples with, and the responses have those of "
            "'%s': give one of them prompts of its own",
            prompts->name, other->model->name, other->name, maker->model->name);
    if (((const gr_logprob_cfg *)n->cfg)->replay)
        gr_diag_error(
            d, at, GR_E_INVALID,
            "'replay' has the experts that were chosen behind the rows' own prompts: it does not go "
            "with 'prompts'");
}

static void check_logprob(gr_graph *g, gr_node *n, gr_diag *d)
{
    const gr_logprob_cfg *c = n->cfg;
    gr_check_head(n, GR_HEAD_LM, d);
    if (c->prompts) {
        check_prompts(g, n, c->prompts, d);
        set_bounds(n, c->prompts, gr_value_get(n->value, "prompts")->at, d);
    }
    gr_check_micro_tokens(n, c->micro_tokens, &n->bounds, d);
    gr_check_replay(n, d);
}

/* Operands of the head. */
enum {
    HEAD_NORM,  /* the last bucket */
    HEAD_EMBED, /* where the output matrix is tied */
    HEAD_PACKED,
    HEAD_X,
    HEAD_WS,
    HEAD_LOGPROB,
    HEAD_ENTROPY,
    HEAD_SUM_P2,
    HEAD_SCRATCH, /* of log-probs that nobody reads */
    HEAD_STATES,  /* this and the next: of a teacher */
    HEAD_STATES_CHUNK,
    N_HEAD,
};
enum { CLEAR_STATES, N_CLEAR };

/* The column of one head statistic, GR_NONE where nobody reads it. logprob is always computed. */
static uint32_t stat_object(const gr_node *n, const char *field, gr_tasks *p)
{
    const gr_column *c = gr_node_column(n, field);
    return c ? gr_column_object(p, c) : GR_NONE;
}

/* Of a teacher, what its update reads, which ranks fill together. */
static uint32_t declare_states(const gr_node *n, const gr_kernels *k, gr_tasks *p)
{
    const uint32_t states = gr_states_object(p, k, n);
    gr_task *t =
        gr_tasks_run(p, GR_FORWARD_CLEAR, 0, (gr_use[]){[CLEAR_STATES] = {states, GR_WRITE | GR_BY_QUEUE}},
                     N_CLEAR, "clear_states");
    if (p->ranks > 1) t->cost.bytes = (double)gr_states_bytes(k, n);
    return states;
}

static void declare_logprob(const gr_graph *g, const gr_node *n, const gr_choices *how, const gr_kernels *k,
                            gr_tasks *p)
{
    const gr_model_shape *s = gr_node_shape(n);
    const uint32_t out[] = {stat_object(n, "logprob", p), stat_object(n, "entropy", p),
                            stat_object(n, "sum_p2", p)};
    const bool teaches = gr_node_teaches(g, n);
    const uint32_t states = teaches ? declare_states(n, k, p) : GR_NONE;
    gr_forward f = gr_forward_declare(g, n, how, k, p, out, GR_LEN(out));
    const uint32_t slices = gr_node_vocab_parts(n);
    uint32_t head_ws = gr_tasks_temp(
        p, GR_CAT_WORKSPACE,
        slices > 1 ? gr_head_slices_ws_bytes(k, s, slices, how->head_rows, GR_HEAD_LOGPROB, how->threads)
                   : k->head_ws_bytes(s, how->head_rows, GR_HEAD_LOGPROB, how->threads),
        "head_ws");
    uint32_t scratch = GR_NONE;
    if (out[0] == GR_NONE && slices < 2)
        scratch = gr_tasks_temp(p, GR_CAT_WORKSPACE, how->head_rows * sizeof(float), "logprob_chunk");
    const uint32_t chunk = teaches ? gr_tasks_temp(p, GR_CAT_WORKSPACE,
                                                   how->head_rows * gr_states_row_bytes(k, n), "states_chunk")
                                   : GR_NONE;
    uint32_t norm = gr_forward_last(n, k, p);
    uint32_t lm = s->tied ? gr_forward_weights(n, k, p, 0) : GR_NONE;
    gr_task *head = gr_tasks_run(p, GR_FORWARD_HEAD, 0,
                                 (gr_use[]){[HEAD_NORM] = {norm, GR_READ},
                                            [HEAD_EMBED] = {lm, GR_READ},
                                            [HEAD_PACKED] = {f.packed, GR_READ},
                                            [HEAD_X] = {f.x, GR_READ},
                                            [HEAD_WS] = {head_ws, GR_WRITE},
                                            [HEAD_LOGPROB] = {out[0], GR_UPDATE | GR_BY_QUEUE},
                                            [HEAD_ENTROPY] = {out[1], GR_UPDATE | GR_BY_QUEUE},
                                            [HEAD_SUM_P2] = {out[2], GR_UPDATE | GR_BY_QUEUE},
                                            [HEAD_SCRATCH] = {scratch, GR_WRITE},
                                            [HEAD_STATES] = {states, GR_UPDATE | GR_BY_QUEUE},
                                            [HEAD_STATES_CHUNK] = {chunk, GR_WRITE}},
                                 N_HEAD, "head");
    const double rows = f.cost.rows * slices / gr_node_cut(n) / n->placement.parts; /* of all slices */
    gr_head_cost(head, k, s, rows, 1);
    gr_head_exchange_cost(head, k, n, rows, how->head_rows, false);
    gr_forward_head_cost(head, n);
    gr_forward_end(n, p, &f, out, GR_LEN(out));
    gr_sharding_share(p, states);
}

static gr_status open_logprob(gr_session *s, const gr_node *n, void **state, gr_diag *d)
{
    (void)d;
    *state = gr_forward_open(s, n, false);
    return GR_OK;
}

/* Of ranks that have the same hidden states, each asks the head about its part of the rows. */
static void run_head(const gr_call *c, const gr_pass *pass, const gr_micro *pack)
{
    const gr_kernels *k = c->session->kernels;
    const gr_model_shape *s = gr_node_shape(c->node);
    const uint64_t parts = c->node->placement.parts, place = c->session->rank % parts, n = pass->n_rows;
    const void *norm = c->ptr[HEAD_NORM], *lm = gr_head_matrix(k, s, c->ptr[HEAD_EMBED], norm);
    float *logprob = c->ptr[HEAD_LOGPROB], *entropy = c->ptr[HEAD_ENTROPY], *sum_p2 = c->ptr[HEAD_SUM_P2];
    const uint32_t end = (uint32_t)(n * (place + 1) / parts);
    for (gr_chunk h = {.row = (uint32_t)(n * place / parts)};
         gr_pass_chunk(pass, c->how->head_rows, &h) && h.row < end;) {
        gr_head_rows rows = gr_pass_rows(pack, h.row, GR_MIN(h.n, end - h.row),
                                         gr_rows_inv_temperature(c->session, c->node->rows), false);
        gr_head_stats out = {.logprob = logprob ? logprob + h.at : c->ptr[HEAD_SCRATCH],
                             .entropy = entropy ? entropy + h.at : NULL,
                             .sum_p2 = sum_p2 ? sum_p2 + h.at : NULL};
        k->head_forward(c->queue, s, norm, lm, c->ptr[HEAD_X], &rows, &out, c->ptr[HEAD_WS]);
    }
}

static void copy_run(const gr_call *c, void *column, const gr_chunk *run, const float *from)
{
    if (column) c->session->kernels->copy(c->queue, (float *)column + run->at, from, run->n * sizeof(*from));
}

/* The same where each rank has a part of the vocabulary. */
static void run_head_parts(const gr_call *c, const gr_pass *pass, const gr_micro_bounds *b,
                           const gr_micro *pack)
{
    const gr_kernels *k = c->session->kernels;
    const gr_model_shape *s = gr_node_shape(c->node);
    const void *norm = c->ptr[HEAD_NORM];
    const gr_head_call head = {.k = k,
                               .q = c->queue,
                               .s = s,
                               .slices = b->slices,
                               .most = c->how->head_rows,
                               .threads = c->how->threads,
                               .use = GR_HEAD_LOGPROB,
                               .norm = norm,
                               .lm = gr_head_matrix(k, s, c->ptr[HEAD_EMBED], norm),
                               .x = c->ptr[HEAD_X],
                               .ws = c->ptr[HEAD_WS]};
    const float inv_temperature = gr_rows_inv_temperature(c->session, c->node->rows);
    for (gr_window w = {0}; gr_pass_window(pass, c->how->head_rows, &w);) {
        const gr_head_window at = gr_pass_head(b, pack, &w, inv_temperature);
        const gr_head_stats own = gr_head_slices_forward(&head, &at).stats;
        for (gr_chunk run = {.row = w.first}; gr_pass_run(pass, &w, &run);) {
            copy_run(c, c->ptr[HEAD_LOGPROB], &run, own.logprob + (run.row - w.first));
            copy_run(c, c->ptr[HEAD_ENTROPY], &run, own.entropy + (run.row - w.first));
            copy_run(c, c->ptr[HEAD_SUM_P2], &run, own.sum_p2 + (run.row - w.first));
        }
    }
}

/* One rank writes all of them. */
static void clear_states(const gr_call *c)
{
    const gr_kernels *k = c->session->kernels;
    if (c->session->ranks > 1) k->zero(c->queue, c->ptr[CLEAR_STATES], gr_states_bytes(k, c->node));
}

/* What the head reads of its rows, token by token of the batch. */
static void keep_states(const gr_call *c, const gr_pass *pass, const gr_micro *pack)
{
    const gr_kernels *k = c->session->kernels;
    const gr_model_shape *s = gr_node_shape(c->node);
    const uint64_t row = gr_states_row_bytes(k, c->node);
    void *chunk = c->ptr[HEAD_STATES_CHUNK];
    for (gr_chunk h = {0}; gr_pass_chunk(pass, c->how->head_rows, &h);) {
        k->head->hidden(c->queue, s, c->ptr[HEAD_NORM], c->ptr[HEAD_X], pack->row + h.row, h.n, chunk);
        k->copy(c->queue, (char *)c->ptr[HEAD_STATES] + h.at * row, chunk, h.n * row);
    }
}

static gr_status run_logprob(const gr_call *c, gr_diag *d)
{
    if (c->kernel == GR_FORWARD_CLEAR) {
        clear_states(c);
        return GR_OK;
    }
    if (c->kernel != GR_FORWARD_HEAD) return gr_forward_run(c, d);
    gr_micro_bounds b = gr_forward_bounds(c->node, c->how);
    gr_micro pack = gr_micro_at(c->ptr[HEAD_PACKED], &b);
    if (!gr_forward_has_head(c)) return GR_OK;
    if (b.slices)
        run_head_parts(c, c->state, &b, &pack);
    else
        run_head(c, c->state, &pack);
    if (c->ptr[HEAD_STATES]) keep_states(c, c->state, &pack);
    return GR_OK;
}

const gr_op gr_op_logprob = {
    .name = "logprob",
    .summary = "log-probs of a model for the tokens of a rollout",
    .kernels = GR_KERNELS_FORWARD | GR_KERNELS_LM_HEAD,
    .lane = GR_LANE_COMPUTE,
    .logprob = true,
    .passes = true,
    .cfg_bytes = sizeof(gr_logprob_cfg),
    .keys = keys,
    .fields = fields,
    .check = check_logprob,
    .tunables = gr_forward_tunables,
    .default_choice = gr_forward_default_choice,
    .runs_with = gr_forward_runs_with,
    .declare = declare_logprob,
    .open = open_logprob,
    .close = gr_forward_close,
    .run = run_logprob,
    .more = gr_forward_more,
    .trips = gr_forward_trips,
    .sends = gr_forward_sends,
};
