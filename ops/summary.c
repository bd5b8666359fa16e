/* ops/summary.c: the end of an iteration and of a validation: metrics, states, samples. */
#include "ops/summary.h"

#include "ops/base/configs.h"
#include "ops/env.h"
#include "ops/base/session.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

enum { KERNEL_SUMMARY };

static bool generates(const gr_op *op)
{
    return op->generates;
}

static bool trains(const gr_op *op)
{
    return op->trains;
}

static bool asks_logprob(const gr_op *op)
{
    return op->logprob;
}

static bool scores_by_rule(const gr_op *op)
{
    return op->scores && !op->passes;
}

static bool scores_by_model(const gr_op *op)
{
    return op->scores && op->passes;
}

/* Of nodes that every iteration runs, but for updates, which may wait for their time. */
static const gr_node *first_of(const gr_graph *g, bool (*is)(const gr_op *), const gr_node *rows,
                               const gr_model *model, bool same)
{
    for (size_t i = 0; i < g->n_nodes; i++) {
        const gr_node *n = g->nodes[i];
        if (!is(n->op) || n->timing.every || (n->timing.when.expr && !n->op->trains) ||
            (rows && n->rows != rows))
            continue;
        if (!model || (n->model == model) == same) return n;
    }
    return NULL;
}

/* The score of these rows: a reward's own, or what a select has narrowed of one; else a reward model's. */
static const gr_column *reward_of(const gr_graph *g, const gr_node *rows)
{
    const gr_node *n = first_of(g, scores_by_rule, rows, NULL, true);
    if (!n) n = first_of(g, scores_by_model, rows, NULL, true);
    if (n) return gr_node_column(n, NULL);
    for (size_t i = 0; i < rows->results.n_columns; i++) {
        const gr_column *c = rows->results.columns[i], *own = c;
        while (own->from) own = own->from;
        if (own != c && own->node->op->scores && !own->field) return c;
    }
    return NULL;
}

/* Rows that were drawn by weight say what is trained on, not how good the responses are: then the rows that
 * they were drawn from are looked at, as far as the iteration's end has them. Rows of which tokens were left
 * out are those that they were, so that a reward may be of either. */
static const gr_node *rows_to_look_at(const gr_graph *g, const gr_node *rows)
{
    const gr_node *found = rows;
    for (const gr_node *n = rows; n && n->op->narrows && !n->timing.refills; n = n->of->rows) {
        const gr_select_cfg *c = n->cfg;
        if (c->resample.expr || (c->tokens.expr && found == n && !reward_of(g, n))) found = n->of->rows;
    }
    return found;
}

gr_subject gr_graph_subject(const gr_graph *g)
{
    gr_subject s = {0};
    const gr_node *rollout = first_of(g, generates, NULL, NULL, true);
    if (rollout) s.update = first_of(g, trains, rollout, rollout->model, true);
    if (rollout && !s.update) /* its rows may be selected ones */
        s.update = first_of(g, trains, NULL, rollout->model, true);
    if (!s.update) s.update = first_of(g, trains, NULL, NULL, true);
    s.rows = rows_to_look_at(g, s.update ? s.update->rows : rollout);
    if (!s.rows) return s;
    s.reward = reward_of(g, s.rows);
    if (!s.update) return s;
    s.policy_logprob = first_of(g, asks_logprob, s.rows, s.update->model, true);
    s.ref_logprob = first_of(g, asks_logprob, s.rows, s.update->model, false);
    return s;
}

bool gr_is_validation_score(const char *metric)
{
    static const char *const others[] = {".tokens", ".response_tokens_mean", ".truncated_fraction",
                                         ".dropped", ".over_match_limit"};
    size_t n = strlen(metric);
    bool score = !strncmp(metric, GR_VALIDATION, strlen(GR_VALIDATION)) &&
                 strncmp(metric, GR_VALIDATION "seconds", strlen(GR_VALIDATION "seconds"));
    for (size_t i = 0; i < GR_LEN(others); i++) {
        size_t m = strlen(others[i]);
        score = score && (n < m || strcmp(metric + n - m, others[i]));
    }
    return score;
}

static const gr_column *main_column(const gr_node *n)
{
    return n ? gr_node_column(n, NULL) : NULL;
}

/* Metrics that are evaluated at the end of an iteration, or of a validation. */
static size_t metrics_at_end(const gr_node *n, bool validation)
{
    return n->op->trains || (n->timing.every != 0) != validation ? 0 : n->results.n_metrics;
}

static const gr_column *score_column(const gr_node *n)
{
    return n->timing.every && n->op->scores ? gr_node_column(n, NULL) : NULL;
}

static bool is_rollout(const gr_node *n)
{
    return n->timing.every && n->op->generates;
}

/* Everything it reads, in one set. */
static void collect_validation(gr_env_reads *r, const gr_graph *g)
{
    gr_env_reads_init(r);
    for (size_t i = 0; i < g->n_nodes; i++) {
        const gr_node *n = g->nodes[i];
        for (size_t j = 0; j < metrics_at_end(n, true); j++)
            gr_env_reads_add(r, g, n->results.metrics[j].expr);
        if (is_rollout(n)) gr_env_reads_add_rows(r, n);
        gr_env_reads_add_column(r, g, score_column(n));
    }
}

static void collect(gr_env_reads *r, const gr_graph *g)
{
    gr_env_reads_init(r);
    for (size_t i = 0; i < g->n_log; i++) gr_env_reads_add(r, g, g->log[i].expr);
    for (size_t i = 0; i < g->n_state; i++) gr_env_reads_add(r, g, g->state[i].next);
    for (size_t i = 0; i < g->n_nodes; i++)
        for (size_t j = 0; j < metrics_at_end(g->nodes[i], false); j++)
            gr_env_reads_add(r, g, g->nodes[i]->results.metrics[j].expr);
    gr_subject s = gr_graph_subject(g);
    if (s.rows) gr_env_reads_add_rows(r, s.rows);
    gr_env_reads_add_column(r, g, s.reward);
    gr_env_reads_add_column(r, g, main_column(s.policy_logprob));
    gr_env_reads_add_column(r, g, main_column(s.ref_logprob));
}

static uint64_t metrics_bytes(const gr_env_reads *r, const gr_graph *g, bool validation)
{
    gr_expr_bounds b = gr_env_bounds(r);
    uint64_t most = 0;
    for (size_t i = 0; i < g->n_nodes; i++)
        for (size_t j = 0; j < metrics_at_end(g->nodes[i], validation); j++)
            most = GR_MAX(most, gr_expr_bytes(g->nodes[i]->results.metrics[j].expr, b));
    return most;
}

static uint64_t ws_bytes(const gr_env_reads *r, const gr_graph *g)
{
    gr_expr_bounds b = gr_env_bounds(r);
    uint64_t most = metrics_bytes(r, g, false);
    for (size_t i = 0; i < g->n_log; i++) most = GR_MAX(most, gr_expr_bytes(g->log[i].expr, b));
    for (size_t i = 0; i < g->n_state; i++) most = GR_MAX(most, gr_expr_bytes(g->state[i].next, b));
    return most;
}

enum { SUMMARY_WS, N_SUMMARY }; /* operands; behind them what is read */

static void declare_task(const gr_graph *g, const gr_env_reads *r, uint64_t bytes, gr_tasks *p)
{
    gr_use *uses = gr_arena_alloc(p->arena, (N_SUMMARY + gr_env_uses(r)) * sizeof(*uses));
    uses[SUMMARY_WS] = (gr_use){gr_tasks_value(p, GR_CAT_WORKSPACE, bytes, "ws"), GR_WRITE};
    size_t n_uses = N_SUMMARY + gr_env_declare(r, g, p, uses + N_SUMMARY);
    gr_tasks_waits(gr_tasks_run(p, KERNEL_SUMMARY, 0, uses, n_uses, "summary"));
}

static void declare(const gr_graph *g, const gr_node *n, const gr_choices *how, const gr_kernels *k,
                    gr_tasks *p)
{
    (void)n;
    (void)how;
    (void)k;
    gr_env_reads r;
    collect(&r, g);
    declare_task(g, &r, ws_bytes(&r, g), p);
    gr_env_reads_release(&r);
}

static void declare_validation(const gr_graph *g, const gr_node *n, const gr_choices *how,
                               const gr_kernels *k, gr_tasks *p)
{
    (void)n;
    (void)how;
    (void)k;
    gr_env_reads r;
    collect_validation(&r, g);
    declare_task(g, &r, metrics_bytes(&r, g, true), p);
    gr_env_reads_release(&r);
}

/* ---- running ---------------------------------------------------------------------------------------------
 */

/* prefix: NODE. of a validation's rollout, or nothing. */
static void summarize_rows(gr_session *s, const gr_rows *rows, const char *prefix)
{
    double tokens = 0, truncated = 0, all = 0, n = GR_MAX(*rows->n_seqs, 1u);
    for (uint32_t i = 0; i < *rows->n_seqs; i++) {
        tokens += rows->response_len[i];
        all += rows->response_len[i] + rows->prompt_len[i];
        truncated += rows->truncated[i];
    }
    gr_session_metric(s, tokens / n, "%sresponse_tokens_mean", prefix);
    gr_session_metric(s, truncated / n, "%struncated_fraction", prefix);
    gr_session_metric(s, all, "%stokens", prefix);
}

/* A sequence's score: of a dense reward, the sum over its tokens. */
static double score_of(const gr_rows *rows, const gr_column *c, const float *data, uint32_t seq)
{
    if (c->level == GR_LEVEL_SEQ) return data[seq];
    double sum = 0;
    for (uint32_t t = rows->token_offset[seq]; t < rows->token_offset[seq + 1]; t++)
        if (gr_rows_counts(rows, t)) sum += data[t];
    return sum;
}

static double mean_score(const gr_rows *rows, const gr_column *c, const float *data)
{
    double sum = 0;
    for (uint32_t i = 0; i < *rows->n_seqs; i++) sum += score_of(rows, c, data, i);
    return sum / GR_MAX(*rows->n_seqs, 1u);
}

/* Mean over tokens of the k3 estimator, exp(x) - x - 1 with x = ref - policy (Schulman, "Approximating KL
 * divergence"). policy NULL: log-probs as they were sampled. */
static void summarize_kl(gr_session *s, const gr_node *node, const gr_rows *rows, const float *policy,
                         const float *ref)
{
    double sum = 0;
    uint32_t n = 0;
    for (uint32_t seq = 0; seq < *rows->n_seqs; seq++)
        for (uint32_t j = 0; j < rows->response_len[seq]; j++) {
            uint32_t t = rows->token_offset[seq] + j;
            if (!gr_rows_counts(rows, t)) continue;
            double own = policy ? policy[t] : rows->logprob[(size_t)seq * node->bounds.response_tokens + j];
            double x = ref[t] - own;
            sum += exp(x) - x - 1;
            n++;
        }
    gr_session_metric(s, sum / GR_MAX(n, 1u), "kl");
}

static const float *column_data(const gr_env *e, const gr_session *s, const gr_column *c)
{
    for (size_t i = 0; c && i < s->graph->n_columns; i++)
        if (s->graph->columns[i] == c) return e->columns[i].data;
    return NULL;
}

static void keep_samples(gr_session *s, const gr_subject *about, const gr_rows *rows, const float *reward)
{
    if (!s->sample) return;
    uint32_t n = GR_MIN(s->graph->run.samples, *rows->n_groups),
             step = GR_MAX(*rows->n_groups / GR_MAX(n, 1u), 1u);
    for (uint32_t i = 0, seq = 0; i < n; i++) {
        while (seq < *rows->n_seqs && rows->group[seq] < i * step) seq++;
        double score = reward ? score_of(rows, about->reward, reward, seq) : NAN;
        s->sample(s, about->rows, rows, seq, score);
    }
}

static double evaluate_one(const gr_session *s, gr_env *e, const gr_expr *x, void *ws)
{
    gr_env_turn_to(e, s->graph, x);
    return gr_expr_scalar(x, &e->env, ws);
}

static void evaluate_metrics(gr_session *s, gr_env *e, bool validation, void *ws)
{
    for (size_t i = 0; i < s->graph->n_nodes; i++) {
        const gr_node *n = s->graph->nodes[i];
        for (size_t j = 0; !s->skipped[i] && j < metrics_at_end(n, validation); j++)
            gr_session_metric(s, evaluate_one(s, e, n->results.metrics[j].expr, ws), "%s.%s", n->name,
                              n->results.metrics[j].name);
    }
}

static void evaluate(gr_session *s, gr_env *e, void *ws)
{
    const gr_graph *g = s->graph;
    for (size_t i = 0; i < g->n_log; i++)
        gr_session_metric(s, evaluate_one(s, e, g->log[i].expr, ws), "%s", g->log[i].name);
    evaluate_metrics(s, e, false, ws);
    for (size_t i = 0; i < g->n_state; i++) { /* all `next` see the old values */
        s->next_state[i] = evaluate_one(s, e, g->state[i].next, ws);
        gr_session_metric(s, s->scalars[g->state[i].column], "state.%s", g->state[i].name);
    }
}

static gr_status run(const gr_call *c, gr_diag *d)
{
    gr_status st = gr_queue_finish(c->queue, d); /* the columns it reads */
    if (st) return st;
    gr_session *s = c->session;
    gr_env_reads r;
    gr_env e;
    collect(&r, s->graph);
    gr_env_init(&e, &r, s, c->node, c->ptr + N_SUMMARY);
    gr_subject about = gr_graph_subject(s->graph);
    const float *reward = column_data(&e, s, about.reward);
    const float *policy = column_data(&e, s, main_column(about.policy_logprob)),
                *ref = column_data(&e, s, main_column(about.ref_logprob));
    if (about.rows && !s->skipped[about.rows->index]) {
        const gr_rows *rows = &e.blocks[about.rows->index];
        summarize_rows(s, rows, "");
        if (reward) gr_session_metric(s, mean_score(rows, about.reward, reward), "reward_mean");
        if (ref && (policy || gr_rows_maker(about.rows)->op->generates))
            summarize_kl(s, about.rows, rows, policy, ref);
        keep_samples(s, &about, rows, reward);
    }
    evaluate(s, &e, c->ptr[SUMMARY_WS]);
    gr_env_release(&e);
    gr_env_reads_release(&r);
    return GR_OK;
}

static void summarize_node(gr_session *s, const gr_env *e, const gr_node *n)
{
    const gr_column *score = score_column(n);
    if (is_rollout(n)) {
        char *prefix = gr_printf("%s.", n->name);
        summarize_rows(s, &e->blocks[n->index], prefix);
        free(prefix);
    }
    if (score)
        gr_session_metric(s, mean_score(&e->blocks[score->rows->index], score, column_data(e, s, score)),
                          "%s", n->name);
}

static gr_status run_validation(const gr_call *c, gr_diag *d)
{
    gr_status st = gr_queue_finish(c->queue, d); /* the columns it reads */
    if (st) return st;
    gr_session *s = c->session;
    gr_env_reads r;
    gr_env e;
    collect_validation(&r, s->graph);
    gr_env_init(&e, &r, s, c->node, c->ptr + N_SUMMARY);
    for (size_t i = 0; i < s->graph->n_nodes; i++)
        if (!s->skipped[i]) summarize_node(s, &e, s->graph->nodes[i]);
    evaluate_metrics(s, &e, true, c->ptr[SUMMARY_WS]);
    gr_env_release(&e);
    gr_env_reads_release(&r);
    return GR_OK;
}

static const gr_op summary = {
    .name = "summary",
    .summary = "log, state and metrics at the end of an iteration",
    .lane = GR_LANE_COMPUTE,
    .declare = declare,
    .run = run,
};

static const gr_op validation_summary = {
    .name = "summary",
    .summary = "metrics at the end of a validation",
    .lane = GR_LANE_COMPUTE,
    .declare = declare_validation,
    .run = run_validation,
};

gr_node *gr_summary_node(const gr_graph *g, bool validation, gr_arena *arena)
{
    bool any = !validation;
    for (size_t i = 0; i < g->n_nodes; i++) any = any || g->nodes[i]->timing.every;
    if (!any) return NULL;
    gr_node *n = gr_arena_alloc(arena, sizeof(*n));
    *n = (gr_node){.name = validation ? "end of validation" : "iteration",
                   .index = (uint32_t)g->n_nodes + validation,
                   .op = validation ? &validation_summary : &summary};
    return n;
}
