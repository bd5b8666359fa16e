/* ops/generate.c: table of the op `generate`; how it runs is ops/rollout.c. */
#include "ops/base/configs.h"
#include "ops/drafts.h"
#include "ops/environment_keys.h"
#include "ops/kernels/layer.h"
#include "ops/pass.h"
#include "ops/rollout.h"
#include "ops/serve_keys.h"
#include "ops/rollout_kept.h"
#include "ops/base/rows.h"

#include <string.h>

#define CFG(f) offsetof(gr_generate_cfg, f)

static const char *const partials[] = {"keep", "drop", NULL};

/* clang-format off */
static const gr_key keys[] = {
    {"model", GR_KEY_MODEL, CFG(model), true, NULL, 0, 0, NULL, "the model that samples"},
    {"prompts", GR_KEY_NODE, CFG(prompts), true, NULL, 0, 0, NULL, "the prompts; each is a group"},
    {"samples", GR_KEY_UINT, CFG(samples), false, "1", 1, 65536, NULL, "responses a prompt"},
    {"max_tokens", GR_KEY_UINT, CFG(max_tokens), true, NULL, 1, 1 << 20, NULL, "most tokens of a response, or of each turn"},
    {"turns", GR_KEY_UINT, CFG(turns), false, NULL, 1, 1024, NULL, "with environment: the model's turns in a conversation, at most; default 1"},
    {"max_context", GR_KEY_UINT, CFG(max_context), false, NULL, 1, 1 << 22, NULL, "with environment: most tokens of a conversation, prompt and answers included; behind the prompt it has this less the most tokens of a prompt"},
    {"environment", GR_KEY_VALUE, CFG(answers), false, NULL, 0, 0, NULL, "{command, http or function, workers, in_flight, timeout, retries, metrics, record, replay, opens}: who answers the model's turns (docs/ENVIRONMENTS.md)"},
    {"serve", GR_KEY_VALUE, CFG(endpoint), false, NULL, 0, 0, NULL, "with environment: {port, host, token, name, calls, body}: its processes are harnesses, which call the rollout over HTTP for each turn (docs/ENVIRONMENTS.md); alone, with open: true, an endpoint for whoever calls, as of graphrun serve"},
    {"speculate", GR_KEY_VALUE, CFG(drafts), false, NULL, 0, 0, NULL, "{tokens, from, match, rate, always}: tokens are drafted, by looking up what was said before or by the layer of the checkpoint that predicts a further token, and sampled many in a step; the ids stay the same"},
    {"temperature", GR_KEY_SCALAR, CFG(temperature), false, "1", 0, 100, NULL, "sampling temperature; 0 is greedy; an expression must stay above 0"},
    {"top_p", GR_KEY_NUMBER, CFG(top_p), false, "1", 1e-6, 1, NULL, "sample from the fewest tokens of this much probability; 1 is off"},
    {"top_k", GR_KEY_UINT, CFG(top_k), false, "0", 0, 1 << 24, NULL, "sample from this many most likely tokens; 0 is off"},
    {"stop", GR_KEY_TEXTS, CFG(stop), false, NULL, 0, 0, NULL, "texts that end a response; rewards do not see them"},
    {"stop_ids", GR_KEY_UINTS, CFG(stop_ids), false, NULL, 0, 0, NULL, "token ids that end a response; default: the checkpoint's EOS ids"},
    {"ignore_eos", GR_KEY_BOOL, CFG(ignore_eos), false, "false", 0, 0, NULL, "the checkpoint's EOS ids end no response: unless stop_ids or stop ends it, each has max_tokens"},
    {"kv_blocks", GR_KEY_UINT, CFG(kv_blocks), false, "0", 0, 1 << 30, NULL, "blocks of 16 tokens in the KV cache; 0: the planner's choice"},
    {"concurrent", GR_KEY_UINT, CFG(concurrent), false, "0", 0, 1 << 20, NULL, "most sequences decoded at once; 0: the planner's choice"},
    {"lag", GR_KEY_UINT, CFG(lag), false, "0", 0, 8, NULL, "1: sample with the weights of the iteration before, so that sampling and training can run at the same time; n: train on what was sampled n - 1 iterations before that"},
    {"over", GR_KEY_NUMBER, CFG(over), false, "1", 1, 2, NULL, "prompts in work for each that an iteration trains on: it takes the first complete groups"},
    {"partial", GR_KEY_ENUM, CFG(partial), false, "keep", 0, 0, partials, "with over: what becomes of the other groups: they go on in the next iteration, or are dropped"},
    {"max_lag", GR_KEY_UINT, CFG(max_lag), false, "0", 0, 16, NULL, "with over: no token that is trained on was sampled with weights older than so many iterations; 0: lag + 1"},
    {0}};

static const gr_field fields[] = {
    {"token", GR_LEVEL_TOKEN, GR_KIND_NUMBER, GR_EXPR_I32, "id of each response token"},
    {"logprob", GR_LEVEL_TOKEN, GR_KIND_NUMBER, GR_EXPR_F32, "log-prob of each token as it was sampled, before top_p and top_k"},
    {"length", GR_LEVEL_SEQ, GR_KIND_NUMBER, GR_EXPR_I32, "response tokens, the stop id included"},
    {"truncated", GR_LEVEL_SEQ, GR_KIND_BOOL, GR_EXPR_U8, "whether max_tokens cut the response"},
    {"position", GR_LEVEL_TOKEN, GR_KIND_NUMBER, GR_EXPR_I32, "index of each token in its response, from 0"},
    {"model", GR_LEVEL_TOKEN, GR_KIND_BOOL, GR_EXPR_U8, "whether the model sampled the token: the others, said by an environment, count nowhere"},
    {"turn", GR_LEVEL_TOKEN, GR_KIND_NUMBER, GR_EXPR_I32, "the model's turn that each token is of, from 0; what an environment says is of the turn behind it"},
    {"stopped", GR_LEVEL_SEQ, GR_KIND_NUMBER, GR_EXPR_I32, "why a conversation ended: 0 done, 1 turns, 2 tokens, 3 time, 4 error"},
    {"turns", GR_LEVEL_SEQ, GR_KIND_NUMBER, GR_EXPR_I32, "turns that the model had"},
    {"version", GR_LEVEL_TOKEN, GR_KIND_NUMBER, GR_EXPR_I32, "the iteration whose weights sampled the token: step - rollout.version is its age"},
    {0}};
/* clang-format on */

/* A number that the environment gives of each conversation. */
static const gr_field *measured(const gr_node *n, const char *field)
{
    static const gr_field one = {"", GR_LEVEL_SEQ, GR_KIND_NUMBER, GR_EXPR_F32,
                                 "a metric of the environment"};
    const gr_texts *names = &((const gr_generate_cfg *)n->cfg)->environment.metrics;
    return gr_texts_have(names, field) ? &one : NULL;
}

/* Weights of the iteration before are other ones only where training changes them. */
static void check_lag(const gr_node *n, gr_diag *d)
{
    const gr_value *v = gr_value_get(n->value, "lag");
    const gr_loc at = v ? v->at : n->at;
    if (n->timing.every)
        gr_diag_error(d, at, GR_E_INVALID,
                      "'lag' has no place in a validation, which asks the newest weights");
    else if (n->timing.when.expr)
        gr_diag_error(d, at, GR_E_INVALID,
                      "'lag' does not go with 'when': the older weights follow every iteration");
    else if (!n->model->update)
        gr_diag_error(d, at, GR_E_INVALID, "'lag': model '%s' is never trained, so it has no older weights",
                      n->model->name);
    else if (n->model->follows)
        gr_diag_error(d, at, GR_E_INVALID,
                      "'lag': model '%s' follows another, by '%s'; older weights are kept of models that are "
                      "trained",
                      n->model->name, n->model->follows->name);
    else if (n->timing.new_version)
        gr_diag_error(d, at, GR_E_INVALID,
                      "'lag' asks for older weights of model '%s', 'after' for newer ones", n->model->name);
}

static const char *answers_file(const gr_node *n)
{
    const gr_generate_cfg *c = n->cfg;
    return c->environment.record ? c->environment.record : c->environment.replay;
}

/* Answers that two rollouts record in one file could not be told apart. */
static void check_answers_file(const gr_graph *g, const gr_node *n, gr_diag *d)
{
    const char *file = answers_file(n);
    for (size_t i = 0; file && i < g->n_nodes; i++) {
        const gr_node *m = g->nodes[i];
        const char *other = m != n && m->op == n->op ? answers_file(m) : NULL;
        if (other && !strcmp(other, file))
            gr_diag_error(d, n->at, GR_E_INVALID,
                          "'%s' and '%s' have one file of answers, '%s': each needs its own", m->name,
                          n->name, file);
    }
}

/* A conversation that is tried again goes on from its prompt's state, of which there is no copy where a
 * layer's state is of one size. */
static void check_turns(const gr_node *n, const gr_generate_cfg *c, gr_diag *d)
{
    const gr_model_shape *s = &n->model->shape;
    for (uint32_t kind = 0; kind < s->n_kinds; kind++) {
        if (gr_layer_state(&s->kinds[kind]) == GR_STATE_PAGED) continue;
        gr_diag_error(d, c->environment.at, GR_E_INVALID,
                      "'environment': conversations are not supported of model '%s', which has layers of the "
                      "gated delta rule",
                      n->model->name);
        return;
    }
}

/* It never comes to its end by itself. */
static void check_open(const gr_graph *g, const gr_generate_cfg *c, gr_diag *d)
{
    for (size_t i = 0; i < g->n_nodes; i++)
        if (g->nodes[i]->op->trains)
            gr_diag_error(d, c->endpoint->at, GR_E_INVALID,
                          "'open' of 'serve' goes on until it is asked to stop: '%s' would never train",
                          g->nodes[i]->name);
}

static void check_generate(gr_graph *g, gr_node *n, gr_diag *d)
{
    gr_check_head(n, GR_HEAD_LM, d);
    gr_generate_cfg *c = n->cfg;
    if (c->lag) check_lag(n, d);
    if (c->temperature.changes) g->changing[c->temperature.changes - 1].min = 1e-6;
    if (c->temperature.value > 0 &&
        c->temperature.value < 1e-6) /* its inverse must be a number that logits can bear */
        gr_diag_error(d, gr_value_get(n->value, "temperature")->at, GR_E_INVALID,
                      "'temperature' must be 0, which is greedy, or at least 1e-6");
    if (c->temperature.value == 0 && c->samples > 1)
        gr_diag_warn(d, gr_value_get(n->value, "temperature")->at,
                     "temperature 0 is greedy: the %u samples of a prompt are all the same", c->samples);
    const gr_rows_bounds *b = &c->prompts->bounds;
    n->work = (gr_rows_bounds){0};
    n->bounds = (gr_rows_bounds){.groups = b->groups,
                                 .seqs = b->groups * c->samples,
                                 .prompt_tokens = b->prompt_tokens,
                                 .response_tokens = c->max_tokens};
    const bool served = gr_serve_read(c, n, d), answered = gr_environment_read(c, n, g->arena, d);
    if (served && c->serve.open) check_open(g, c, d);
    gr_drafts_read(g, n, d);
    if (answered) {
        check_turns(n, c, d);
        if (served) n->bounds.prompt_tokens = 1; /* a session brings its own: its first token stands for it */
        n->bounds.response_tokens = c->max_context - n->bounds.prompt_tokens;
        n->bounds.masked = true;
        n->bounds.turns = GR_MAX(c->turns, 1u);
        n->bounds.measures = (uint32_t)c->environment.metrics.n;
        check_answers_file(g, n, d);
    }
    if ((uint64_t)b->groups * c->samples > 1u << 24)
        gr_diag_error(d, n->at, GR_E_INVALID, "%u prompts of %u samples are more than %u sequences",
                      b->groups, c->samples, 1u << 24);
    else
        gr_rows_check(n, d);
    gr_kept_check(g, n, d);
    if (n->model->shape.max_positions &&
        (uint64_t)n->bounds.prompt_tokens + n->bounds.response_tokens > n->model->shape.max_positions)
        gr_diag_error(d, n->at, GR_E_INVALID,
                      "a sequence may have %u prompt and %u response tokens, but model '%s' has %u positions",
                      n->bounds.prompt_tokens, n->bounds.response_tokens, n->model->name,
                      n->model->shape.max_positions);
}

static const char *unfit(const gr_node *n, const gr_kernels *k)
{
    const gr_speculate_cfg *s = &((const gr_generate_cfg *)n->cfg)->speculate;
    if (k->steps && n->bounds.turns && n->placement.parts > 1)
        return "'environment' with a model in slices ('tensor') has not run so far; leave one of them out";
    if (s->tokens && s->from == GR_DRAFT_MTP && n->placement.parts > 1)
        return "'speculate' with 'from: mtp' is not built for a model in slices ('tensor'); leave one of "
               "them out";
    return NULL;
}

static void note(const gr_node *n, const gr_choices *c, gr_str *out)
{
    if (((const gr_generate_cfg *)n->cfg)->speculate.tokens && !c->draft)
        gr_str_printf(
            out,
            "%s: nothing is drafted: it is predicted to save no time ('always: true' of 'speculate' "
            "drafts all the same)\n",
            n->name);
}

const gr_op gr_op_generate = {
    .name = "generate",
    .summary = "sample responses",
    .doc = "Continuous batching over a paged KV cache, of any size that holds one full sequence. A response "
           "ends with its stop id, or is cut at max_tokens and marked truncated.",
    .kernels = GR_KERNELS_FORWARD | GR_KERNELS_LM_HEAD | GR_KERNELS_ROLLOUT,
    .lane = GR_LANE_COMPUTE,
    .makes_rows = true,
    .generates = true,
    .cfg_bytes = sizeof(gr_generate_cfg),
    .keys = keys,
    .fields = fields,
    .field = measured,
    .check = check_generate,
    .tunables = gr_rollout_tunables,
    .default_choice = gr_rollout_default_choice,
    .runs_with = gr_rollout_runs_with,
    .note = note,
    .unfit = unfit,
    .declare = gr_rollout_declare,
    .open = gr_rollout_open,
    .close = gr_rollout_close,
    .inputs = gr_rollout_inputs,
    .run = gr_rollout_run,
    .more = gr_rollout_more,
    .keep = gr_kept_save,
    .take_back = gr_kept_restore,
};
