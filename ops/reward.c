/* ops/reward.c: the op `reward`: score responses with rules, or with a command's worker processes.
 *
 * It runs on the host lane, beside the passes that do not read it; a command's workers begin while responses
 * are still being generated.
 */
#include "ops/base/configs.h"
#include "ops/data.h"
#include "ops/base/rows.h"
#include "ops/reward/http_command.h"
#include "ops/scorer.h"
#include "ops/parallel/sharding.h"
#include "ops/base/session.h"

#include <string.h>

#define CFG(f) offsetof(gr_reward_cfg, f)

static const char *const levels[] = {"sequence", "token", NULL};

/* clang-format off */
static const gr_key keys[] = {
    {"of", GR_KEY_NODE, CFG(of), true, NULL, 0, 0, NULL, "the rows to score"},
    {"answer", GR_KEY_FIELD, CFG(answer), false, NULL, 0, 0, NULL, "field with the right answer: prompts.FIELD"},
    {"rule", GR_KEY_VALUE, CFG(rule), false, NULL, 0, 0, NULL, "exact, prefix, gsm8k, boxed or math; or {extract, answer_extract, take: first|last, tail, strip, compare: string|number|math|prefix}"},
    {"rules", GR_KEY_VALUE, CFG(rules), false, NULL, 0, 0, NULL, "{by: FIELD, VALUE: rule, ...}: a rule for each value of a field of the record"},
    {"command", GR_KEY_TEXT, CFG(command), false, NULL, 0, 0, NULL, "a shell command: reads a JSON object a line, prints {\"id\", \"score\"} a line"},
    {"http", GR_KEY_TEXT, CFG(http), false, NULL, 0, 0, NULL, "the URL of a server that is sent what a command would read, and answers with a score"},
    {"function", GR_KEY_TEXT, CFG(function), false, NULL, 0, 0, NULL, "the name of a function that the program which runs the graph gives it (Python, C): called once with all responses"},
    {"workers", GR_KEY_UINT, CFG(workers), false, "1", 1, 1024, NULL, "processes of the command"},
    {"in_flight", GR_KEY_UINT, CFG(in_flight), false, NULL, 1, 65536, NULL, "requests that a process of the command, or the server, may hold at once; more than 1: each has the ids of its tokens, too; default 1, of a server 64"},
    {"timeout", GR_KEY_NUMBER, CFG(timeout), false, "60", 0.001, 86400, NULL, "seconds that one sequence may take"},
    {"from", GR_KEY_TEXT, CFG(from), false, NULL, 0, 0, NULL, "environment: the score is what the environment of the rollout gave; level: token puts each turn's on its last token"},
    {"level", GR_KEY_ENUM, CFG(level), false, "sequence", 0, 0, levels, "one number a sequence, or one a token"},
    {"names", GR_KEY_TEXTS, CFG(names), false, NULL, 0, 0, NULL, "the command prints an object with these numbers; each is a field reward.NAME"},
    {0}};
/* clang-format on */

static const gr_field fields[] = {
    {"reward", GR_LEVEL_SEQ, GR_KIND_NUMBER, GR_EXPR_F32, "the score; with names: their sum"}, {0}};

static gr_level level_reward(const gr_node *n)
{
    return ((const gr_reward_cfg *)n->cfg)->level ? GR_LEVEL_TOKEN : GR_LEVEL_SEQ;
}

static const gr_field *named(const gr_node *n, const char *field)
{
    static const gr_field one = {"", GR_LEVEL_SEQ, GR_KIND_NUMBER, GR_EXPR_F32, "one of several results"};
    const gr_texts *names = &((const gr_reward_cfg *)n->cfg)->names;
    return gr_texts_have(names, field) ? &one : NULL;
}

/* At their defaults they stand in every resolved graph. */
static void check_asking(const gr_node *n, const gr_reward_cfg *c, gr_diag *d)
{
    const char *wrong = c->workers != 1    ? "workers"
                        : c->in_flight     ? "in_flight"
                        : c->timeout != 60 ? "timeout"
                                           : NULL;
    if (c->function && wrong)
        gr_diag_error(d, gr_value_get(n->value, wrong)->at, GR_E_INVALID,
                      "'%s' goes with 'command': a function is called once, with all responses", wrong);
    else if (!c->command && !c->http && wrong)
        gr_diag_error(d, gr_value_get(n->value, wrong)->at, GR_E_INVALID,
                      "'%s' goes with 'command' or 'http': %s", wrong,
                      c->from ? "the environment has its own" : "a rule asks nobody");
}

/* A rule reads what the model said: of conversations whose tokens were selected that is not known any more.
 */
static void check_turns(const gr_node *n, const gr_reward_cfg *c, gr_diag *d)
{
    if ((!c->rule && !c->rules) || !n->rows->bounds.turns) return;
    for (const gr_node *r = n->rows; r->op->narrows; r = r->of->rows)
        if (gr_value_get(r->value, "tokens"))
            gr_diag_error(
                d, n->at, GR_E_INVALID,
                "a rule reads what the model said, and '%s' has left out tokens of conversations: score "
                "the rows that it selects from, '%s'",
                r->name, r->of->name);
}

static void check_reward(gr_graph *g, gr_node *n, gr_diag *d)
{
    const gr_reward_cfg *c = n->cfg;
    int ways = !!c->rule + !!c->rules + !!c->command + !!c->http + !!c->function + !!c->from;
    const char *bad = c->http ? gr_http_url_error(c->http) : NULL;
    if (ways != 1)
        gr_diag_error(d, n->at, GR_E_INVALID,
                      "node '%s' needs one of 'rule', 'rules', 'command', 'http', 'function' and "
                      "'from: environment'",
                      n->name);
    else if (c->from && strcmp(c->from, "environment"))
        gr_diag_error(d, gr_value_get(n->value, "from")->at, GR_E_INVALID,
                      "'from' must be environment, not '%s'; what a rule or a command gives needs no 'from'",
                      c->from);
    else if (c->from && !n->rows->bounds.turns)
        gr_diag_error(d, gr_value_get(n->value, "from")->at, GR_E_INVALID,
                      "'from: environment': no environment answers the turns of '%s'",
                      gr_rows_maker(n->rows)->name);
    if (bad)
        gr_diag_error(d, gr_value_get(n->value, "http")->at, GR_E_INVALID, "'http': %s is no URL: %s",
                      c->http, bad);
    if (c->http && c->workers != 1)
        gr_diag_error(d, gr_value_get(n->value, "workers")->at, GR_E_INVALID,
                      "'workers' goes with 'command': one process asks the server");
    check_asking(n, c, d);
    check_turns(n, c, d);
    if (c->names.n && !c->command && !c->http && !c->function)
        gr_diag_error(d, c->names.at[0], GR_E_INVALID, "'names' goes with 'command', 'http' or 'function'");
    if (c->names.n && c->level)
        gr_diag_error(d, c->names.at[0], GR_E_INVALID, "'names' goes with level: sequence");
    gr_scorer_check(n, d);
    gr_graph_column(g, n, NULL); /* reward_mean is reported, whoever else reads it */
}

enum { SCORE_ROWS, SCORE_GROUPS, N_SCORE }; /* operands; behind them the node's columns */

static void declare_reward(const gr_graph *g, const gr_node *n, const gr_choices *how, const gr_kernels *k,
                           gr_tasks *p)
{
    (void)g;
    (void)how;
    (void)k;
    gr_use *uses = gr_arena_alloc(p->arena, (N_SCORE + n->results.n_columns) * sizeof(*uses));
    uses[SCORE_ROWS] = (gr_use){gr_rows_object(p, n->rows), GR_READ};
    uses[SCORE_GROUPS] = (gr_use){GR_NONE, GR_READ};
    if (n->groups && n->groups != n->rows)
        uses[SCORE_GROUPS] = (gr_use){gr_rows_object(p, n->groups), GR_READ};
    for (size_t i = 0; i < n->results.n_columns; i++)
        uses[N_SCORE + i] = (gr_use){gr_column_object(p, n->results.columns[i]), GR_WRITE};
    gr_tasks_run(p, 0, 0, uses, N_SCORE + n->results.n_columns, "score");
    for (size_t i = 0; i < n->results.n_columns; i++) gr_sharding_share(p, uses[N_SCORE + i].object);
}

static gr_status run_reward(const gr_call *call, gr_diag *d)
{
    const gr_node *n = call->node;
    gr_rows rows = gr_rows_at(call->ptr[SCORE_ROWS], &n->rows->bounds);
    gr_scores out = {
        .n_columns = n->results.n_columns, .columns = n->results.columns, .data = call->ptr + N_SCORE};
    for (size_t i = 0; i < n->results.n_columns && call->session->ranks > 1;
         i++) /* what the others will add to */
        memset(call->ptr[N_SCORE + i], 0, gr_column_bytes(n->results.columns[i]));
    return gr_scorer_run(call->state, &rows, &out, d);
}

static gr_status open_reward(gr_session *s, const gr_node *n, void **state, gr_diag *d)
{
    gr_scorer *scorer = NULL;
    gr_status st = gr_scorer_new(&scorer, s, n, d);
    *state = scorer;
    return st;
}

static void close_reward(void *state)
{
    gr_scorer_free(state);
}

static gr_status inputs_reward(const void *state, const char *owner, gr_inputs *in, gr_diag *d)
{
    return gr_scorer_inputs(state, owner, in, d);
}

const gr_op gr_op_reward = {
    .name = "reward",
    .summary = "score responses by rules, by a command or by a function",
    .lane = GR_LANE_HOST,
    .scores = true,
    .cfg_bytes = sizeof(gr_reward_cfg),
    .keys = keys,
    .fields = fields,
    .field = named,
    .check = check_reward,
    .level = level_reward,
    .declare = declare_reward,
    .open = open_reward,
    .close = close_reward,
    .inputs = inputs_reward,
    .run = run_reward,
};
