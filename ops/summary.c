/* ops/summary.c: the end of an iteration and of a validation: metrics, states, samples. */
#include "ops/summary.h"

#include "graphs/expr/expr_apply.h"
#include "ops/base/configs.h"
#include "ops/data.h"
#include "ops/env.h"
#include "ops/replay.h"
#include "ops/base/session.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

enum { KERNEL_SUMMARY };

static bool generates(const gr_node *n)
{
    return n->op->generates;
}

static bool trains(const gr_node *n)
{
    return n->op->trains;
}

static bool asks_logprob(const gr_node *n)
{
    return n->op->logprob && !gr_node_other_prompts(n);
}

static bool scores_by_rule(const gr_node *n)
{
    return n->op->scores && !n->op->passes;
}

static bool scores_by_model(const gr_node *n)
{
    return n->op->scores && n->op->passes;
}

/* Of nodes that every iteration runs, but for updates, which may wait for their time. */
static const gr_node *first_of(const gr_graph *g, bool (*is)(const gr_node *), const gr_node *rows,
                               const gr_model *model, bool same)
{
    for (size_t i = 0; i < g->n_nodes; i++) {
        const gr_node *n = g->nodes[i];
        if (!is(n) || n->timing.every || (n->timing.when.expr && !n->op->trains) || (rows && n->rows != rows))
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
 * out are those that they were, so that a reward may be of either. chosen: so it is with rows that are some
 * of the sequences. */
static const gr_node *rows_to_look_at(const gr_graph *g, const gr_node *rows, bool chosen)
{
    const gr_node *found = rows;
    for (const gr_node *n = rows; n && n->op->narrows && !n->timing.refills; n = n->of->rows) {
        const gr_select_cfg *c = n->cfg;
        const bool partial = c->resample.expr || (chosen && c->sequences.expr);
        if (partial || (c->tokens.expr && found == n && !reward_of(g, n))) found = n->of->rows;
    }
    return found;
}

/* What a loss reads of these rows, or of rows that were drawn from them: there what they were drawn from. */
static size_t loss_values(const gr_graph *g, const gr_node *update, const gr_node *rows,
                          const gr_column **out)
{
    const gr_loss *loss = update ? ((const gr_update_cfg *)update->cfg)->loss.loss : NULL;
    gr_env_reads r;
    size_t n = 0;
    gr_env_reads_init(&r);
    if (loss) gr_env_reads_add_loss(&r, g, loss);
    for (size_t i = 0; i < r.n; i++) {
        const gr_column *c = g->columns[r.columns[i]];
        while (c->from && c->rows != rows) c = c->from;
        const bool of_groups = c->level == GR_LEVEL_GROUP && c->rows == rows->groups;
        if (of_groups || (c->rows == rows && c->level != GR_LEVEL_POSITION)) out[n++] = c;
    }
    gr_env_reads_release(&r);
    return n;
}

static const gr_column *advantage_of(const gr_graph *g, const gr_subject *s)
{
    const gr_column **values = gr_calloc(g->n_columns + 1, sizeof(*values)), *found = NULL;
    for (size_t i = loss_values(g, s->update, s->scored, values); i-- > 0;)
        if (strstr(values[i]->name, "advantage")) found = values[i];
    free(values);
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
    s.rows = rows_to_look_at(g, s.update ? s.update->rows : rollout, false);
    if (!s.rows) return s;
    s.scored = rows_to_look_at(g, s.update ? s.update->rows : rollout, true);
    s.reward = reward_of(g, s.scored);
    if (!s.update) return s;
    s.advantage = advantage_of(g, &s);
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
    for (size_t i = 0; i < g->n_record_state; i++) {
        gr_env_reads_add(r, g, g->record_state[i].next);
        gr_env_reads_add_rows(r, g->record_state[i].node);
    }
    for (size_t i = 0; i < g->n_nodes; i++)
        for (size_t j = 0; j < metrics_at_end(g->nodes[i], false); j++)
            gr_env_reads_add(r, g, g->nodes[i]->results.metrics[j].expr);
    gr_subject s = gr_graph_subject(g);
    if (s.rows) gr_env_reads_add_rows(r, s.rows);
    if (s.scored) gr_env_reads_add_rows(r, s.scored);
    gr_env_reads_add_column(r, g, s.reward);
    gr_env_reads_add_column(r, g, main_column(s.policy_logprob));
    gr_env_reads_add_column(r, g, main_column(s.ref_logprob));
    if (g->run.samples || g->run.keep_all) gr_env_reads_add_column(r, g, s.advantage);
    if (!g->run.keep_all || !s.scored) return;
    const gr_column **values = gr_calloc(g->n_columns + 1, sizeof(*values));
    for (size_t i = loss_values(g, s.update, s.scored, values); i-- > 0;)
        gr_env_reads_add_column(r, g, values[i]);
    free(values);
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

static uint64_t kept_bytes(const gr_record_state *s)
{
    const gr_rows_bounds *b = &s->node->bounds;
    return gr_align((s->node->op->replays ? b->seqs : b->groups) * sizeof(float), 16);
}

static uint64_t ws_bytes(const gr_env_reads *r, const gr_graph *g)
{
    gr_expr_bounds b = gr_env_bounds(r);
    uint64_t most = metrics_bytes(r, g, false);
    for (size_t i = 0; i < g->n_log; i++) most = GR_MAX(most, gr_expr_bytes(g->log[i].expr, b));
    for (size_t i = 0; i < g->n_state; i++) most = GR_MAX(most, gr_expr_bytes(g->state[i].next, b));
    for (size_t i = 0; i < g->n_record_state; i++) /* and what it gives */
        most = GR_MAX(most, kept_bytes(&g->record_state[i]) + gr_expr_bytes(g->record_state[i].next, b));
    return most;
}

enum { SUMMARY_WS, N_SUMMARY }; /* operands; behind them what is read, and then the stores of replays */

static size_t declare_stores(const gr_graph *g, gr_tasks *p, gr_use *out)
{
    size_t n = 0;
    for (size_t i = 0; i < g->n_record_state; i++)
        if (g->record_state[i].node->op->replays)
            out[n++] = (gr_use){gr_replay_object(p, g->record_state[i].node), GR_UPDATE};
    return n;
}

static void declare_task(const gr_graph *g, const gr_env_reads *r, uint64_t bytes, bool stores, gr_tasks *p)
{
    gr_use *uses = gr_arena_alloc(p->arena, (N_SUMMARY + gr_env_uses(r) + g->n_record_state) * sizeof(*uses));
    uses[SUMMARY_WS] = (gr_use){gr_tasks_value(p, GR_CAT_WORKSPACE, bytes, "ws"), GR_WRITE};
    size_t n_uses = N_SUMMARY + gr_env_declare(r, g, p, uses + N_SUMMARY);
    if (stores) n_uses += declare_stores(g, p, uses + n_uses);
    gr_tasks_waits(gr_tasks_run(p, KERNEL_SUMMARY, 0, uses, n_uses, "summary"));
}

static void declare_summary(const gr_graph *g, const gr_node *n, const gr_choices *how, const gr_kernels *k,
                            gr_tasks *p)
{
    (void)n;
    (void)how;
    (void)k;
    gr_env_reads r;
    collect(&r, g);
    declare_task(g, &r, ws_bytes(&r, g), true, p);
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
    declare_task(g, &r, metrics_bytes(&r, g, true), false, p);
    gr_env_reads_release(&r);
}

/* ---- opened ----------------------------------------------------------------------------------------------
 */

/* What is said of a rollout's rows. */
typedef struct rows_metrics {
    uint32_t response_tokens, truncated, tokens;
} rows_metrics;

/* A number that is evaluated at the end; node: skipped with it, NULL: never. */
typedef struct asked {
    const gr_node *node;
    const gr_expr *expr;
    uint32_t metric;
} asked;

/* A validation's rollout or score. */
typedef struct validated {
    const gr_node *node;
    rows_metrics rows;      /* of a rollout */
    const gr_column *score; /* NULL: it is none */
    uint32_t metric;        /* of the score */
} validated;

typedef struct summary_state {
    gr_session *session;
    const gr_node *node;
    gr_env_reads reads;
    gr_env env;
    gr_arena *memory; /* of the lists */
    asked *log, *metrics;
    size_t n_metrics;
    uint32_t *state; /* [states] metrics */
    gr_subject about;
    const gr_column *policy, *ref;
    gr_shown shown;
    gr_shown_column *values; /* [shown.n_values] */
    rows_metrics rows;
    uint32_t reward, kl;
    validated *validated;
    size_t n_validated;
} summary_state;

/* prefix: NODE. of a validation's rollout, or nothing. */
static rows_metrics name_rows(const summary_state *t, const char *prefix)
{
    return (rows_metrics){.response_tokens =
                              gr_session_name(t->session, t->node, "%sresponse_tokens_mean", prefix),
                          .truncated = gr_session_name(t->session, t->node, "%struncated_fraction", prefix),
                          .tokens = gr_session_name(t->session, t->node, "%stokens", prefix)};
}

static void list_metrics(summary_state *t, bool validation)
{
    const gr_graph *g = t->session->graph;
    size_t n = 0;
    for (size_t i = 0; i < g->n_nodes; i++) n += metrics_at_end(g->nodes[i], validation);
    t->metrics = gr_arena_alloc(t->memory, (n + 1) * sizeof(*t->metrics));
    for (size_t i = 0; i < g->n_nodes; i++)
        for (size_t j = 0; j < metrics_at_end(g->nodes[i], validation); j++) {
            const gr_named_expression *m = &g->nodes[i]->results.metrics[j];
            t->metrics[t->n_metrics++] =
                (asked){g->nodes[i], m->expr,
                        gr_session_name(t->session, t->node, "%s.%s", g->nodes[i]->name, m->name)};
        }
}

static void list_log_and_state(summary_state *t)
{
    gr_session *s = t->session;
    const gr_graph *g = s->graph;
    t->log = gr_arena_alloc(t->memory, (g->n_log + 1) * sizeof(*t->log));
    t->state = gr_arena_alloc(t->memory, (g->n_state + 1) * sizeof(*t->state));
    for (size_t i = 0; i < g->n_log; i++)
        t->log[i] = (asked){NULL, g->log[i].expr, gr_session_name(s, t->node, "%s", g->log[i].name)};
    for (size_t i = 0; i < g->n_state; i++)
        t->state[i] = gr_session_name(s, t->node, "state.%s", g->state[i].name);
}

static void list_values(summary_state *t)
{
    const gr_graph *g = t->session->graph;
    const gr_column **values = gr_arena_alloc(t->memory, (g->n_columns + 1) * sizeof(*values));
    const size_t n = loss_values(g, t->about.update, t->about.scored, values);
    t->values = gr_arena_alloc(t->memory, (n + 1) * sizeof(*t->values));
    for (size_t i = 0; i < n; i++) t->values[i].column = values[i];
    t->shown.n_values = n;
}

static void list_validated(summary_state *t)
{
    const gr_graph *g = t->session->graph;
    t->validated = gr_arena_alloc(t->memory, (g->n_nodes + 1) * sizeof(*t->validated));
    for (size_t i = 0; i < g->n_nodes; i++) {
        const gr_node *n = g->nodes[i];
        validated v = {.node = n, .score = score_column(n)};
        if (!is_rollout(n) && !v.score) continue;
        if (is_rollout(n)) v.rows = name_rows(t, gr_arena_printf(t->memory, "%s.", n->name));
        if (v.score) v.metric = gr_session_name(t->session, t->node, "%s", n->name);
        t->validated[t->n_validated++] = v;
    }
}

static summary_state *summary_new(gr_session *s, const gr_node *n,
                                  void (*collect_reads)(gr_env_reads *r, const gr_graph *g))
{
    summary_state *t = gr_calloc(1, sizeof(*t));
    *t = (summary_state){.session = s, .node = n, .memory = gr_arena_new()};
    collect_reads(&t->reads, s->graph);
    gr_env_open(&t->env, &t->reads, s, n);
    return t;
}

static gr_status open_summary(gr_session *s, const gr_node *n, void **state, gr_diag *d)
{
    (void)d;
    summary_state *t = summary_new(s, n, collect);
    t->about = gr_graph_subject(s->graph);
    t->policy = main_column(t->about.policy_logprob);
    t->ref = main_column(t->about.ref_logprob);
    if (s->graph->run.keep_all && t->about.scored) list_values(t);
    t->rows = name_rows(t, "");
    t->reward = gr_session_name(s, n, "reward_mean");
    t->kl = gr_session_name(s, n, "kl");
    list_log_and_state(t);
    list_metrics(t, false);
    *state = t;
    return GR_OK;
}

static gr_status open_validation(gr_session *s, const gr_node *n, void **state, gr_diag *d)
{
    (void)d;
    summary_state *t = summary_new(s, n, collect_validation);
    list_validated(t);
    list_metrics(t, true);
    *state = t;
    return GR_OK;
}

static void close_summary(void *state)
{
    summary_state *t = state;
    gr_env_close(&t->env);
    gr_env_reads_release(&t->reads);
    gr_arena_free(t->memory);
    free(t);
}

/* ---- running ---------------------------------------------------------------------------------------------
 */

/* Whether a sequence is one of this iteration's; those that a replay brings again say nothing of the policy.
 */
static bool is_new(const gr_session *s, const gr_node *node, uint32_t seq)
{
    return !node->op->replays || gr_replay_is_new(s->state[node->index], seq);
}

static void summarize_rows(gr_session *s, const gr_node *node, const gr_rows *rows, const rows_metrics *m)
{
    double tokens = 0, truncated = 0, all = 0, n = 0;
    for (uint32_t i = 0; i < *rows->n_seqs; i++) {
        all += rows->response_len[i] + rows->prompt_len[i];
        if (!is_new(s, node, i)) continue;
        tokens += gr_rows_sampled(rows, i);
        truncated += rows->truncated[i];
        n++;
    }
    gr_session_metric(s, m->response_tokens, tokens / GR_MAX(n, 1.0));
    gr_session_metric(s, m->truncated, truncated / GR_MAX(n, 1.0));
    gr_session_metric(s, m->tokens, all);
}

double gr_shown_at(const gr_shown *s, const gr_shown_column *c, uint32_t seq, uint32_t token)
{
    const gr_level level = c->column ? c->column->level : GR_LEVEL_SCALAR;
    if (!c->data || level == GR_LEVEL_SCALAR) return NAN;
    const uint32_t at = level == GR_LEVEL_TOKEN ? token : level == GR_LEVEL_SEQ ? seq : s->rows->group[seq];
    return gr_expr_load(c->data, c->column->dtype, at);
}

double gr_shown_number(const gr_shown *s, const gr_shown_column *c, uint32_t seq, bool mean)
{
    if (!c->column || c->column->level != GR_LEVEL_TOKEN) return gr_shown_at(s, c, seq, 0);
    double sum = 0;
    uint32_t n = 0;
    for (uint32_t t = s->rows->token_offset[seq]; t < s->rows->token_offset[seq + 1]; t++) {
        if (!gr_rows_counts(s->rows, t)) continue;
        sum += gr_shown_at(s, c, seq, t);
        n++;
    }
    return mean ? sum / n : sum; /* the mean of none is NaN */
}

static double mean_score(const gr_session *session, const gr_node *node, const gr_rows *rows,
                         const gr_column *c, const void *data)
{
    const gr_shown s = {.rows = rows, .reward = {c, data}};
    double sum = 0, n = 0;
    for (uint32_t i = 0; i < *rows->n_seqs; i++) {
        if (!is_new(session, node, i)) continue;
        sum += gr_shown_number(&s, &s.reward, i, false);
        n++;
    }
    return sum / GR_MAX(n, 1.0);
}

/* Mean over tokens of the k3 estimator, exp(x) - x - 1 with x = ref - policy (Schulman, "Approximating KL
 * divergence"). policy NULL: log-probs as they were sampled. */
static double mean_kl(const gr_node *node, const gr_rows *rows, const float *policy, const float *ref)
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
    return sum / GR_MAX(n, 1u);
}

static const void *column_data(const gr_env *e, const gr_column *c)
{
    return c ? e->columns[c->id].data : NULL;
}

/* What a node that `when` left out would have written is of an earlier iteration, or of nobody. */
static gr_shown_column shown_column(const summary_state *t, const gr_column *c)
{
    const bool left_out = c && t->session->skipped[c->node->index];
    return (gr_shown_column){c, left_out ? NULL : column_data(&t->env, c)};
}

static gr_status show_samples(summary_state *t, const gr_rows *rows, gr_team *team, gr_diag *d)
{
    gr_session *s = t->session;
    const uint32_t n = GR_MIN(s->graph->run.samples, *rows->n_groups),
                   step = GR_MAX(*rows->n_groups / GR_MAX(n, 1u), 1u);
    t->shown.node = t->about.scored;
    t->shown.rows = rows;
    t->shown.reward = shown_column(t, t->about.reward);
    t->shown.advantage = shown_column(t, s->sample || s->keep ? t->about.advantage : NULL);
    for (size_t i = 0; i < t->shown.n_values; i++) t->values[i] = shown_column(t, t->values[i].column);
    t->shown.values = t->values;
    for (uint32_t i = 0, seq = 0; s->sample && i < n; i++) {
        while (seq < *rows->n_seqs && rows->group[seq] < i * step) seq++;
        s->sample(s, &t->shown, seq);
    }
    return s->keep ? s->keep(s, &t->shown, team, d) : GR_OK;
}

static double evaluate_one(summary_state *t, const gr_expr *x, void *ws)
{
    gr_env_turn_to(&t->env, x);
    return gr_expr_scalar(x, &t->env.env, ws);
}

static void evaluate_all(summary_state *t, const asked *list, size_t n, void *ws)
{
    for (size_t i = 0; i < n; i++)
        if (!list[i].node || !t->session->skipped[list[i].node->index])
            gr_session_metric(t->session, list[i].metric, evaluate_one(t, list[i].expr, ws));
}

/* All `next` see the old values. */
static void step_states(summary_state *t, void *ws)
{
    gr_session *s = t->session;
    const gr_graph *g = s->graph;
    for (size_t i = 0; i < g->n_state; i++) {
        s->next_state[i] = evaluate_one(t, g->state[i].next, ws);
        gr_session_metric(s, t->state[i], s->scalars[g->state[i].column]);
    }
}

/* What the records that were drawn keep from here on. One that would keep no number keeps what it has. */
static void keep_numbers(gr_session *s, uint32_t which, const gr_rows *rows, const float *next)
{
    const gr_record_state *r = &s->graph->record_state[which];
    uint32_t bad = 0;
    for (uint32_t g = 0; g < *rows->n_groups; g++) {
        if (isfinite(next[g])) gr_data_keep(s->state[r->node->index], which, rows->record[g], next[g]);
        bad += !isfinite(next[g]);
    }
    if (bad)
        gr_session_note(s, "'next' of '%s.%s' is no number for %u record%s, which keep what they had",
                        r->node->name, r->name, bad, bad == 1 ? "" : "s");
}

/* What is kept from one iteration to the next, of records and of replays; store: the next replay's. */
static void step_records(summary_state *t, void *ws, void *const *store)
{
    gr_session *s = t->session;
    for (uint32_t i = 0; i < s->graph->n_record_state; i++) {
        const gr_record_state *r = &s->graph->record_state[i];
        const bool replays = r->node->op->replays;
        const gr_rows *rows = &t->env.blocks[r->node->index];
        float *next = ws;
        void *block = replays ? *store++ : NULL;
        if (s->skipped[r->node->index]) continue;
        gr_env_turn_to(&t->env, r->next);
        t->env.env.n_groups = *rows->n_groups; /* also of what reads nothing of them */
        gr_expr_eval(r->next, &t->env.env, replays ? GR_LEVEL_SEQ : GR_LEVEL_GROUP,
                     replays ? (int)r->node->index : -1, next, (char *)ws + kept_bytes(r));
        if (replays)
            gr_replay_keep(s->state[r->node->index], block, rows, next);
        else
            keep_numbers(s, i, rows, next);
    }
}

static gr_status summarize_subject(summary_state *t, gr_team *team, gr_diag *d)
{
    gr_session *s = t->session;
    const gr_subject *about = &t->about;
    const gr_rows *rows = &t->env.blocks[about->rows->index], *scored = &t->env.blocks[about->scored->index];
    const float *reward = column_data(&t->env, about->reward), *policy = column_data(&t->env, t->policy),
                *ref = column_data(&t->env, t->ref);
    summarize_rows(s, about->scored, scored, &t->rows);
    if (reward) gr_session_metric(s, t->reward, mean_score(s, about->scored, scored, about->reward, reward));
    if (ref && (policy || gr_rows_maker(about->rows)->op->generates))
        gr_session_metric(s, t->kl, mean_kl(about->rows, rows, policy, ref));
    return show_samples(t, scored, team, d);
}

static gr_status run_summary(const gr_call *c, gr_diag *d)
{
    gr_status st = gr_queue_finish(c->queue, d); /* the columns it reads */
    if (st) return st;
    summary_state *t = c->state;
    gr_env_begin(&t->env, c->ptr + N_SUMMARY);
    if (t->about.rows && !t->session->skipped[t->about.rows->index])
        st = summarize_subject(t, c->queue->team, d);
    if (st) return st;
    evaluate_all(t, t->log, t->session->graph->n_log, c->ptr[SUMMARY_WS]);
    evaluate_all(t, t->metrics, t->n_metrics, c->ptr[SUMMARY_WS]);
    step_states(t, c->ptr[SUMMARY_WS]);
    step_records(t, c->ptr[SUMMARY_WS], c->ptr + N_SUMMARY + gr_env_uses(&t->reads));
    return GR_OK;
}

static void summarize_validated(summary_state *t, const validated *v)
{
    gr_session *s = t->session;
    if (is_rollout(v->node)) summarize_rows(s, v->node, &t->env.blocks[v->node->index], &v->rows);
    if (v->score)
        gr_session_metric(s, v->metric,
                          mean_score(s, v->score->rows, &t->env.blocks[v->score->rows->index], v->score,
                                     column_data(&t->env, v->score)));
}

static gr_status run_validation(const gr_call *c, gr_diag *d)
{
    gr_status st = gr_queue_finish(c->queue, d); /* the columns it reads */
    if (st) return st;
    summary_state *t = c->state;
    gr_env_begin(&t->env, c->ptr + N_SUMMARY);
    for (size_t i = 0; i < t->n_validated; i++)
        if (!t->session->skipped[t->validated[i].node->index]) summarize_validated(t, &t->validated[i]);
    evaluate_all(t, t->metrics, t->n_metrics, c->ptr[SUMMARY_WS]);
    return GR_OK;
}

static const gr_op summary = {
    .name = "summary",
    .summary = "log, state and metrics at the end of an iteration",
    .lane = GR_LANE_COMPUTE,
    .declare = declare_summary,
    .open = open_summary,
    .close = close_summary,
    .run = run_summary,
};

static const gr_op validation_summary = {
    .name = "summary",
    .summary = "metrics at the end of a validation",
    .lane = GR_LANE_COMPUTE,
    .declare = declare_validation,
    .open = open_validation,
    .close = close_summary,
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
                   .op = validation ? &validation_summary : &summary,
                   .timing = {.every = validation}};
    return n;
}
