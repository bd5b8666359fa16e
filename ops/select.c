/* ops/select.c: the op `select`: some of the rows of another node, rows drawn from them by weight, or all of
 * them with fewer tokens that count; with the columns that its readers name.
 *
 * Rows are copied, so that the memory behind them is that of what is kept. With `refill` the nodes back to
 * the data run again and again (the planner puts them in a loop), and each round's rows are added behind
 * those that are there, until there are enough groups; what the last round has beyond them is dropped.
 *
 * `resample` draws with replacement, as many as there are: draw i is the first row whose cumulative weight,
 * in the order of the rows and in double, is above u_i times their sum; u_i is a function of the run's seed,
 * the node, the iteration and i. Every rank has all columns and draws the same.
 */
#include "ops/select.h"

#include "ops/base/configs.h"
#include "ops/env.h"
#include "ops/resample.h"
#include "ops/parallel/sharding.h"
#include "ops/base/session.h"

#include <stdlib.h>
#include <string.h>

#define CFG(f) offsetof(gr_select_cfg, f)

/* clang-format off */
static const gr_key keys[] = {
    {"of", GR_KEY_NODE, CFG(of), true, NULL, 0, 0, NULL, "the rows to select from"},
    {"groups", GR_KEY_EXPR, CFG(groups), false, NULL, 0, 0, NULL, "which groups stay: a condition on prompts"},
    {"sequences", GR_KEY_EXPR, CFG(sequences), false, NULL, 0, 0, NULL, "which sequences stay: a condition on sequences; a group that keeps none is left out"},
    {"tokens", GR_KEY_EXPR, CFG(tokens), false, NULL, 0, 0, NULL, "which response tokens count: a condition on tokens; all rows stay"},
    {"resample", GR_KEY_EXPR, CFG(resample), false, NULL, 0, 0, NULL, "draw as many rows, with replacement, by weight: a number a sequence, or a number a prompt, which draws whole groups"},
    {"refill", GR_KEY_VALUE, CFG(refill), false, NULL, 0, 0, NULL, "{until, rounds, short: error|keep}: draw again until this many groups stayed, in at most so many rounds"},
    {0}};

static const gr_field fields[] = {
    {"token", GR_LEVEL_TOKEN, GR_KIND_NUMBER, GR_EXPR_I32, "id of each response token"},
    {"length", GR_LEVEL_SEQ, GR_KIND_NUMBER, GR_EXPR_I32, "response tokens, the stop id included"},
    {"truncated", GR_LEVEL_SEQ, GR_KIND_BOOL, GR_EXPR_U8, "whether max_tokens cut the response"},
    {"position", GR_LEVEL_TOKEN, GR_KIND_NUMBER, GR_EXPR_I32, "index of each token in its response, from 0"},
    {"model", GR_LEVEL_TOKEN, GR_KIND_BOOL, GR_EXPR_U8, "whether the token counts: the model sampled it, and no select left it out"},
    {"turn", GR_LEVEL_TOKEN, GR_KIND_NUMBER, GR_EXPR_I32, "the model's turn that each token is of, from 0"},
    {"stopped", GR_LEVEL_SEQ, GR_KIND_NUMBER, GR_EXPR_I32, "why a conversation ended: 0 done, 1 turns, 2 tokens, 3 time, 4 error"},
    {"turns", GR_LEVEL_SEQ, GR_KIND_NUMBER, GR_EXPR_I32, "turns that the model had"},
    {0}};
/* clang-format on */

/* ---- checks ----------------------------------------------------------------------------------------------
 */

static void read_count(uint32_t *out, const gr_pair *p, uint32_t most, gr_diag *d)
{
    const char *text = p->value.text;
    char *end = NULL;
    unsigned long x = text && *text != '-' ? strtoul(text, &end, 10) : 0;
    if (end && end != text && !*end && x >= 1 && x <= most)
        *out = (uint32_t)x;
    else
        gr_diag_error(d, p->value.at, GR_E_INVALID, "'%s' must be a whole number from 1 to %u", p->key, most);
}

static void read_refill(gr_select_cfg *c, gr_node *n, gr_diag *d)
{
    const gr_value *v = c->refill;
    c->until = c->rounds = 0;
    size_t before = d->n_errors;
    for (size_t i = 0; v->kind == GR_VALUE_MAP && i < v->n; i++) {
        const gr_pair *p = &v->pairs[i];
        const char *text = p->value.kind == GR_VALUE_SCALAR ? p->value.text : "";
        if (!strcmp(p->key, "until"))
            read_count(&c->until, p, 1 << 20, d);
        else if (!strcmp(p->key, "rounds"))
            read_count(&c->rounds, p, 1 << 20, d);
        else if (strcmp(p->key, "short"))
            gr_diag_error(d, p->at, GR_E_INVALID, "unknown key '%s' in refill; it has until, rounds, short",
                          p->key);
        else if (strcmp(text, "error") && strcmp(text, "keep"))
            gr_diag_error(d, p->value.at, GR_E_INVALID, "'short' must be one of error, keep, not '%s'", text);
        else
            c->keep_short = !strcmp(text, "keep");
    }
    if (d->n_errors == before && (!c->until || !c->rounds))
        gr_diag_error(d, v->at, GR_E_INVALID,
                      "'refill' is a map with 'until', the prompts wanted, and 'rounds', the most draws");
    n->timing.refills = true;
}

/* What the select is asked for: the one of its four keys that is there. */
static const gr_expression *asked(const gr_select_cfg *c)
{
    const gr_expression *all[] = {&c->groups, &c->sequences, &c->tokens, &c->resample};
    for (size_t i = 0; i < GR_LEN(all); i++)
        if (all[i]->expr) return all[i];
    return NULL;
}

/* The level it is evaluated at. */
static gr_level level_of(const gr_select_cfg *c)
{
    if (c->tokens.expr) return GR_LEVEL_TOKEN;
    bool groups = c->groups.expr || (c->resample.expr && gr_expr_level(c->resample.expr) == GR_LEVEL_GROUP);
    return groups ? GR_LEVEL_GROUP : GR_LEVEL_SEQ;
}

static void check_condition(const gr_expression *e, const char *key, gr_level finest, const char *example,
                            gr_diag *d)
{
    if (!e->expr) return;
    gr_level level = gr_expr_level(e->expr);
    if (gr_expr_kind(e->expr) != GR_KIND_BOOL)
        gr_diag_error(d, e->at, GR_E_INVALID, "'%s' must be a condition, such as %s", key, example);
    else if (level > finest)
        gr_diag_error(d, e->at, GR_E_INVALID, "'%s' must be one condition a %s, not one a %s", key,
                      gr_level_str(finest), gr_level_str(level));
}

static void check_weight(const gr_expression *e, gr_diag *d)
{
    gr_level level = e->expr ? gr_expr_level(e->expr) : GR_LEVEL_SEQ;
    if (level > GR_LEVEL_SEQ)
        gr_diag_error(d, e->at, GR_E_INVALID,
                      "'resample' must be one weight a sequence, or a prompt, not one a %s",
                      gr_level_str(level));
}

static void check_refill(gr_select_cfg *c, gr_node *n, gr_diag *d)
{
    if (c->tokens.expr || c->resample.expr) {
        gr_diag_error(
            d, c->refill->at, GR_E_INVALID,
            "'refill' draws prompts until enough are kept: it goes with 'groups' or 'sequences', not "
            "with '%s', which drops none",
            c->tokens.expr ? "tokens" : "resample");
        return;
    }
    read_refill(c, n, d);
    uint64_t seqs = (uint64_t)c->until * (n->bounds.seqs / GR_MAX(n->bounds.groups, 1u));
    if (seqs > 1u << 24)
        gr_diag_error(d, c->refill->at, GR_E_INVALID, "%u prompts of %u samples are more than %u sequences",
                      c->until, n->bounds.seqs / n->bounds.groups, 1u << 24);
    n->bounds.groups = c->until;
    n->bounds.seqs = (uint32_t)GR_MIN(seqs, (uint64_t)1 << 24);
    gr_rows_check(n, d);
}

static void check_select(gr_graph *g, gr_node *n, gr_diag *d)
{
    (void)g;
    gr_select_cfg *c = n->cfg;
    size_t keys_there = 0;
    for (const gr_key *k = keys; k->name; k++)
        keys_there += k->kind == GR_KEY_EXPR && ((gr_expression *)((char *)c + k->offset))->expr != NULL;
    n->bounds = c->of->rows->bounds;
    n->bounds.kept = false;
    if (keys_there != 1) {
        gr_diag_error(d, n->at, GR_E_INVALID,
                      "node '%s' needs one of 'groups', 'sequences', 'tokens' and 'resample'", n->name);
        return;
    }
    check_condition(&c->groups, "groups", GR_LEVEL_GROUP, "group_std(reward) > 0", d);
    check_condition(&c->sequences, "sequences", GR_LEVEL_SEQ, "not rollout.truncated", d);
    check_condition(&c->tokens, "tokens", GR_LEVEL_TOKEN, "rollout.position < 100", d);
    check_weight(&c->resample, d);
    if (c->resample.expr && level_of(c) == GR_LEVEL_SEQ) n->bounds.groups = n->bounds.seqs;
    n->bounds.masked = n->bounds.masked || c->tokens.expr;
    if (c->refill) check_refill(c, n, d);
}

/* ---- declaring -------------------------------------------------------------------------------------------
 */

enum { KERNEL_BEGIN, KERNEL_ROUNDS, KERNEL_KEEP };

static void reads_of(gr_env_reads *r, const gr_graph *g, const gr_node *n)
{
    gr_env_reads_init(r);
    gr_env_reads_add_rows(r, n->of->rows);
    gr_env_reads_add(r, g, asked(n->cfg)->expr);
    for (size_t i = 0; i < n->results.n_columns; i++)
        gr_env_reads_add_column(r, g, n->results.columns[i]->from);
}

/* Operands: the rows, the node's columns, and of keep these; then what the expression reads. */
enum { OWN_ROWS, OWN_ROUTES, OWN_COLUMNS };
enum { KEEP_VERDICT, KEEP_WS, KEEP_SUMS, KEEP_ROUTES, N_KEEP }; /* routes: of the parent's rows */

static void use_own(gr_use *uses, const gr_graph *g, const gr_node *n, gr_use_mode mode, gr_tasks *p)
{
    uses[OWN_ROWS] = (gr_use){gr_rows_object(p, n), mode};
    uses[OWN_ROUTES] = (gr_use){gr_routes_object(p, g, n), mode};
    for (size_t i = 0; i < n->results.n_columns; i++)
        uses[OWN_COLUMNS + i] = (gr_use){gr_column_object(p, n->results.columns[i]), mode};
}

void gr_select_begin_rounds(const gr_graph *g, const gr_node *n, gr_tasks *p)
{
    gr_use *uses = gr_arena_alloc(p->arena, (OWN_COLUMNS + n->results.n_columns) * sizeof(*uses));
    use_own(uses, g, n, GR_WRITE, p);
    gr_tasks_waits(gr_tasks_run(p, KERNEL_BEGIN, 0, uses, OWN_COLUMNS + n->results.n_columns, "begin"));
    uint32_t rounds = ((const gr_select_cfg *)n->cfg)->rounds;
    gr_sharding_loop(p, KERNEL_ROUNDS, rounds, true, GR_NONE, "rounds")->loop.trips_expected = 1;
}

/* What each group, sequence or token of the parent's rows is worth: 0 or 1, or a weight. */
static uint64_t verdict_bytes(const gr_node *n)
{
    const gr_rows_bounds *b = &n->of->rows->bounds;
    gr_level level = level_of(n->cfg);
    uint64_t each = level == GR_LEVEL_TOKEN ? b->response_tokens : 1;
    return (level == GR_LEVEL_GROUP ? b->groups : b->seqs * each) * sizeof(float);
}

static uint64_t sums_bytes(const gr_node *n)
{
    const gr_select_cfg *c = n->cfg;
    return c->resample.expr ? verdict_bytes(n) / sizeof(float) * sizeof(double) : 0;
}

static void declare_select(const gr_graph *g, const gr_node *n, const gr_choices *how, const gr_kernels *k,
                           gr_tasks *p)
{
    (void)how;
    (void)k;
    gr_env_reads r;
    reads_of(&r, g, n);
    size_t own = OWN_COLUMNS + n->results.n_columns;
    gr_use *uses = gr_arena_alloc(p->arena, (own + N_KEEP + gr_env_uses(&r)) * sizeof(*uses));
    uint64_t ws = gr_expr_bytes(asked(n->cfg)->expr, gr_env_bounds(&r)), sums = sums_bytes(n);
    use_own(uses, g, n, n->timing.refills ? GR_UPDATE : GR_WRITE, p);
    uses[own + KEEP_VERDICT] =
        (gr_use){gr_tasks_value(p, GR_CAT_WORKSPACE, verdict_bytes(n), "verdict"), GR_WRITE};
    uses[own + KEEP_WS] = (gr_use){gr_tasks_value(p, GR_CAT_WORKSPACE, ws, "ws"), GR_WRITE};
    uses[own + KEEP_SUMS] =
        (gr_use){sums ? gr_tasks_value(p, GR_CAT_WORKSPACE, sums, "sums") : GR_NONE, GR_WRITE};
    uses[own + KEEP_ROUTES] =
        (gr_use){uses[OWN_ROUTES].object != GR_NONE ? gr_routes_object(p, g, n->of->rows) : GR_NONE, GR_READ};
    size_t n_uses = own + N_KEEP + gr_env_declare(&r, g, p, uses + own + N_KEEP);
    gr_tasks_waits(gr_tasks_run(p, KERNEL_KEEP, 0, uses, n_uses, "keep"));
    gr_env_reads_release(&r);
}

/* ---- running ---------------------------------------------------------------------------------------------
 */

typedef struct select_state {
    gr_session *session;
    const gr_node *node;
    /* What this round adds: groups of the parent's rows; sequences of theirs, and which of these groups each
     * is in. A group that is drawn twice is here twice. */
    uint32_t *group, *seq, *in;
    uint32_t n_group, n_seq;
    gr_resample_key key;
    uint64_t seen; /* groups, of all rounds of this iteration */
    bool enough;
    gr_env_reads reads;
    gr_env env;
    struct {
        uint32_t distinct, tokens, prompts, drawn, rounds;
    } metrics;
} select_state;

static void name_metrics(select_state *t, gr_session *s, const gr_node *n)
{
    t->metrics.distinct = gr_session_name(s, n, "%s.distinct", n->name);
    t->metrics.tokens = gr_session_name(s, n, "%s.tokens", n->name);
    t->metrics.prompts = gr_session_name(s, n, "%s.prompts", n->name);
    t->metrics.drawn = gr_session_name(s, n, "%s.drawn", n->name);
    t->metrics.rounds = gr_session_name(s, n, "%s.rounds", n->name);
}

static gr_status open_select(gr_session *s, const gr_node *n, void **state, gr_diag *d)
{
    (void)d;
    select_state *t = gr_calloc(1, sizeof(*t));
    const gr_rows_bounds *b = &n->of->rows->bounds;
    *t = (select_state){.session = s, .node = n};
    char *stream = gr_printf("%s/resample", n->name); /* apart from the draws of its expression */
    t->key = (gr_resample_key){.seed = s->seed, .stream = gr_stream(stream)};
    free(stream);
    t->group = gr_calloc(GR_MAX(b->groups, n->bounds.groups), sizeof(*t->group));
    t->seq = gr_calloc(b->seqs, sizeof(*t->seq));
    t->in = gr_calloc(b->seqs, sizeof(*t->in));
    reads_of(&t->reads, s->graph, n);
    gr_env_open(&t->env, &t->reads, s, n);
    name_metrics(t, s, n);
    *state = t;
    return GR_OK;
}

static void close_select(void *state)
{
    select_state *t = state;
    free(t->group);
    free(t->seq);
    free(t->in);
    gr_env_close(&t->env);
    gr_env_reads_release(&t->reads);
    free(t);
}

static void begin(select_state *t, gr_rows *to)
{
    *to->n_groups = *to->n_seqs = 0;
    to->token_offset[0] = 0;
    t->seen = 0;
    t->enough = false;
}

/* Which of the parent's rows are added: whole groups in their order, as far as there is room. verdict NULL:
 * all. */
static void choose(select_state *t, const gr_rows *from, const gr_rows *to, const float *verdict)
{
    bool whole = level_of(t->node->cfg) == GR_LEVEL_GROUP;
    for (uint32_t s = 0; s < *from->n_seqs; s++) {
        uint32_t g = from->group[s];
        if (verdict && verdict[whole ? g : s] == 0) continue;
        if (!t->n_group || t->group[t->n_group - 1] != g) {
            if (*to->n_groups + t->n_group == t->node->bounds.groups) return;
            t->group[t->n_group++] = g;
        }
        t->seq[t->n_seq] = s;
        t->in[t->n_seq++] = t->n_group - 1;
    }
}

/* Of rows drawn, those that are different. weight: is written over. */
static uint32_t count_distinct(const uint32_t *drawn, uint32_t n, float *weight)
{
    uint32_t distinct = 0;
    for (uint32_t i = 0; i < n; i++) {
        distinct += weight[drawn[i]] >= 0;
        weight[drawn[i]] = -1;
    }
    return distinct;
}

/* Each draw makes a group of its own: of one sequence, or of all of the group that was drawn. */
static gr_status draw(select_state *t, const gr_rows *from, float *weight, double *sums, gr_diag *d)
{
    const gr_select_cfg *c = t->node->cfg;
    bool whole = level_of(c) == GR_LEVEL_GROUP;
    uint32_t n = whole ? *from->n_groups : *from->n_seqs, wrong = gr_resample_wrong(weight, n);
    if (wrong < n)
        return gr_diag_error(d, c->resample.at, GR_E_FAILED,
                             "node '%s': the weight of %s %u of %u is %g; weights are finite, and 0 or more",
                             t->node->name, whole ? "prompt" : "sequence", wrong + 1, n,
                             (double)weight[wrong]);
    t->key.step = t->session->step;
    t->key.round = t->session->round;
    if (!gr_resample(t->group, weight, n, &t->key, sums))
        return gr_diag_error(d, c->resample.at, GR_E_FAILED,
                             "node '%s': all %u weights are 0, so that nothing can be drawn", t->node->name,
                             n);
    gr_session_metric(t->session, t->metrics.distinct, count_distinct(t->group, n, weight));
    for (t->n_group = 0; t->n_group < n; t->n_group++) {
        uint32_t x = t->group[t->n_group], first = x, end = x + 1;
        if (whole) {
            gr_rows_part all = gr_rows_balance(from, x, x + 1, 0, 1);
            first = all.seq;
            end = all.seq_end;
        } else {
            t->group[t->n_group] = from->group[x];
        }
        for (uint32_t s = first; s < end; s++) {
            t->seq[t->n_seq] = s;
            t->in[t->n_seq++] = t->n_group;
        }
    }
    return GR_OK;
}

static void add_seq(const select_state *t, const gr_rows *from, gr_rows *to, uint32_t s, uint32_t group)
{
    const int32_t *from_ids = gr_rows_ids(from, s);
    const gr_seq_ids ids = {from_ids, from_ids + from->prompt_len[s], from->prompt_len[s],
                            from->response_len[s]};
    uint32_t at = gr_rows_add_seq(to, group, &ids), n = t->node->bounds.response_tokens;
    to->truncated[at] = from->truncated[s];
    to->ended[at] = from->ended[s];
    gr_rows_copy_turns(from, s, to, at);
    memcpy(to->logprob + (size_t)at * n, from->logprob + (size_t)s * n,
           from->response_len[s] * sizeof(*to->logprob));
    if (to->routes.data) gr_routes_copy(&from->routes, s, &to->routes, at, ids.n_prompt + ids.n_response);
    if (from->counts)
        memcpy(to->counts + to->token_offset[at], from->counts + from->token_offset[s],
               from->response_len[s]);
}

static void add_rows(const select_state *t, const gr_rows *from, gr_rows *to)
{
    uint32_t groups = *to->n_groups;
    for (uint32_t i = 0; i < t->n_group; i++) gr_rows_add_group(to, from->record[t->group[i]]);
    for (uint32_t i = 0; i < t->n_seq; i++) add_seq(t, from, to, t->seq[i], groups + t->in[i]);
}

/* A token that did not count before has verdict 0. */
static void count_tokens(const select_state *t, gr_rows *to, const float *verdict)
{
    uint32_t n = to->token_offset[*to->n_seqs], counted = 0;
    for (uint32_t i = 0; i < n; i++) counted += to->counts[i] = verdict[i] != 0;
    gr_session_metric(t->session, t->metrics.tokens, counted);
}

/* Add the chosen elements of a parent's column behind those that are there; to: the rows with them. */
static void add_elements(const select_state *t, const gr_column *c, const gr_rows *from, const gr_rows *to,
                         const char *in, char *out)
{
    size_t bytes = gr_dtype_bytes(c->dtype), seqs = *to->n_seqs - t->n_seq,
           groups = *to->n_groups - t->n_group;
    if (c->level == GR_LEVEL_GROUP)
        for (uint32_t i = 0; i < t->n_group; i++)
            memcpy(out + (groups + i) * bytes, in + t->group[i] * bytes, bytes);
    for (uint32_t i = 0; i < t->n_seq && c->level != GR_LEVEL_GROUP; i++) {
        uint32_t s = t->seq[i];
        if (c->level == GR_LEVEL_SEQ)
            memcpy(out + (seqs + i) * bytes, in + s * bytes, bytes);
        else
            memcpy(out + to->token_offset[seqs + i] * bytes, in + from->token_offset[s] * bytes,
                   from->response_len[s] * bytes);
    }
}

static void add_columns(const gr_call *c, const gr_env *e, const gr_rows *from, const gr_rows *to)
{
    for (size_t i = 0; i < c->node->results.n_columns; i++) {
        const gr_column *own = c->node->results.columns[i];
        if (!own->from) {
            gr_rows_column(to, own, c->ptr[OWN_COLUMNS + i]);
            continue;
        }
        add_elements(c->state, own, from, to, e->columns[own->from->id].data, c->ptr[OWN_COLUMNS + i]);
    }
}

static void report_kept(const select_state *t, const gr_rows *to)
{
    gr_session_metric(t->session, t->metrics.prompts, *to->n_groups);
    gr_session_metric(t->session, t->metrics.drawn, (double)t->seen);
}

/* After a round: whether another follows, and what is said when there is none. */
static gr_status end_round(select_state *t, const gr_rows *to, gr_diag *d)
{
    gr_session *s = t->session;
    const gr_select_cfg *c = t->node->cfg;
    uint32_t rounds = s->round + 1;
    if (*to->n_groups != c->until && rounds != c->rounds) {
        s->round++;
        return GR_OK;
    }
    s->round = 0;
    t->enough = true;
    report_kept(t, to);
    gr_session_metric(s, t->metrics.rounds, rounds);
    if (*to->n_groups == c->until || c->keep_short) return GR_OK;
    return gr_diag_error(
        d, t->node->at, GR_E_FAILED,
        "node '%s' kept %u of the %u prompts wanted, of %llu drawn in %u rounds (short: keep "
        "goes on with fewer)",
        t->node->name, *to->n_groups, c->until, (unsigned long long)t->seen, rounds);
}

/* What the round adds to the rows; e: the parent's values, with the verdict about them. */
static gr_status add_round(const gr_call *c, const gr_env *e, gr_rows *to, float *verdict, double *sums,
                           gr_diag *d)
{
    select_state *t = c->state;
    const gr_select_cfg *cfg = c->node->cfg;
    gr_rows *from = &t->env.blocks[c->node->of->rows->index];
    if (c->ptr[OWN_ROUTES])
        from->routes =
            gr_routes_at(c->ptr[OWN_COLUMNS + c->node->results.n_columns + KEEP_ROUTES], c->node->of->rows);
    t->n_group = t->n_seq = 0;
    if (cfg->resample.expr) {
        gr_status st = draw(t, from, verdict, sums, d);
        if (st) return st;
    } else {
        choose(t, from, to, cfg->tokens.expr ? NULL : verdict);
    }
    add_rows(t, from, to);
    if (cfg->tokens.expr) count_tokens(t, to, verdict);
    add_columns(c, e, from, to);
    t->seen += *from->n_groups;
    if (c->node->timing.refills) return end_round(t, to, d);
    if (!cfg->tokens.expr && !cfg->resample.expr) report_kept(t, to);
    return GR_OK;
}

static gr_status keep(const gr_call *c, gr_rows *to, gr_diag *d)
{
    select_state *t = c->state;
    size_t own = OWN_COLUMNS + c->node->results.n_columns;
    float *verdict = c->ptr[own + KEEP_VERDICT];
    gr_level level = level_of(c->node->cfg);
    gr_env_begin(&t->env, c->ptr + own + N_KEEP);
    gr_expr_eval(asked(c->node->cfg)->expr, &t->env.env, level,
                 level == GR_LEVEL_GROUP ? -1 : (int)c->node->of->rows->index, verdict,
                 c->ptr[own + KEEP_WS]);
    return add_round(c, &t->env, to, verdict, c->ptr[own + KEEP_SUMS], d);
}

static gr_status run_select(const gr_call *c, gr_diag *d)
{
    gr_status finished = gr_queue_finish(c->queue, d); /* the columns it reads */
    if (finished) return finished;
    gr_rows to = gr_rows_at(c->ptr[OWN_ROWS], &c->node->bounds);
    if (c->ptr[OWN_ROUTES]) to.routes = gr_routes_at(c->ptr[OWN_ROUTES], c->node);
    if (c->kernel == KERNEL_BEGIN || !c->node->timing.refills) begin(c->state, &to);
    return c->kernel == KERNEL_BEGIN ? GR_OK : keep(c, &to, d);
}

static bool more_select(const gr_call *c, uint32_t trip)
{
    (void)trip;
    return !((const select_state *)c->state)->enough;
}

const gr_op gr_op_select = {
    .name = "select",
    .summary = "some rows of another node, rows drawn from them by weight, or fewer tokens that count",
    .doc =
        "Makes new rows from those of another node. In an expression about the new rows, a value of the old "
        "rows, or of their prompts, means the part that was kept. A row that is drawn several times is there "
        "as often, each time as a group of its own. With refill, all nodes from the data to here run again "
        "in "
        "each round; other nodes read them through this node.",
    .lane = GR_LANE_COMPUTE,
    .makes_rows = true,
    .narrows = true,
    .cfg_bytes = sizeof(gr_select_cfg),
    .keys = keys,
    .fields = fields,
    .check = check_select,
    .declare = declare_select,
    .open = open_select,
    .close = close_select,
    .run = run_select,
    .more = more_select,
};
