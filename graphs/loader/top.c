/* graphs/loader/top.c: the keys beside `nodes`: models, state, run, log. */
#include "graphs/loader/loader.h"

#include "ops/model/tp.h"
#include "runtime/base/visible.h"

#include <ctype.h>
#include <math.h>
#include <string.h>

const char *const gr_top_keys[] = {"graph",  "doc",           "params",    "use", "functions", "pools",
                                   "models", "nodes",         "state",     "run", "log",       "on",
                                   "strict", "deterministic", "canonical", NULL};
const char *const gr_model_keys[] = {"checkpoint", "head",   "train",  "precision", "residency", "gather",
                                     "shard",      "tensor", "expert", "parallel",  "pool",      NULL};

/* ---- tables ----------------------------------------------------------------------------------------------
 */

static const char *const optimizers[] = {"adamw", "lion", "sgd", "muon", NULL}; /* as gr_optim_kind */
static const char *const dtypes[] = {"fp32", "bf16", NULL};                     /* as gr_dtype */
static const char *const moment_types[] = {"fp32", "bf16", "int8", NULL};       /* as gr_dtype */
static const char *const masters[] = {"none", "fp32", "split", NULL};           /* as gr_master */
static const char *const all[] = {"all", NULL};
static const char *const best_is[] = {"max", "min", NULL};
static const char *const schedules[] = {"constant", "linear", "cosine", NULL};

typedef struct train_cfg {
    gr_train train;
    int optimizer, schedule, grads, moments, master;
    const gr_value *betas, *groups, *lora;
} train_cfg;

typedef struct run_cfg {
    uint32_t steps, epochs, seed, samples, timeout, stop_after_skipped, check;
    const gr_value *checkpoint;
    const char *stop;
    int bits;
} run_cfg;

typedef struct checkpoint_cfg {
    uint32_t every, keep;
    const char *best;
    int best_is;
    bool last;
} checkpoint_cfg;

typedef struct on_cfg {
    gr_texts command[GR_N_EVENTS];
    double timeout;
} on_cfg;

#define X(name, text) text,
static const char *const bits[] = {GR_BITS_RULE_MAP(X) NULL};
#undef X
#define X(name, text) text,
static const char *const state_policies[] = {GR_POLICY_MAP(X) NULL};
#undef X
static const char *const policies[] = {"auto", "keep", "transition", "every_node", NULL}; /* as gr_policy */

#define TRAIN(f) offsetof(train_cfg, train.f)
#define AT(r)    offsetof(gr_model_residency, policy[GR_RESOURCE_##r])
#define RUN(f)   offsetof(run_cfg, f)
#define ON(e)    offsetof(on_cfg, command[GR_EVENT_##e])

/* clang-format off */
const gr_key gr_train_keys[] = {
    {"optimizer", GR_KEY_ENUM, offsetof(train_cfg, optimizer), false, "adamw", 0, 0, optimizers, "adamw: weight decay is not part of the gradient; lion: the sign of a moving mean, one moment; sgd: with momentum, one moment, weight decay is part of the gradient; muon: momentum made orthogonal, of the matrices of layers, and adamw for all other tensors, by one lr"},
    {"lr", GR_KEY_SCALAR, TRAIN(lr), true, NULL, 0, 1, NULL, "learning rate"},
    {"betas", GR_KEY_VALUE, offsetof(train_cfg, betas), false, NULL, 0, 0, NULL, "two numbers, the decay of the two moments; default [0.9, 0.999], of lion [0.9, 0.99]"},
    {"momentum", GR_KEY_NUMBER, TRAIN(momentum), false, NULL, 0, 0.9999999, NULL, "of sgd (default 0.9) and of muon (default 0.95)"},
    {"eps", GR_KEY_NUMBER, TRAIN(eps), false, "1e-8", 0, 1, NULL, "of adamw and muon: added to the root of the second moment"},
    {"weight_decay", GR_KEY_NUMBER, TRAIN(weight_decay), false, "0.01", 0, 1, NULL, "weight decay of matrices; multiplied by the learning rate"},
    {"grad_clip", GR_KEY_NUMBER, TRAIN(grad_clip), false, "1.0", 0, INFINITY, NULL, "largest norm of the whole gradient; 0: no limit"},
    {"schedule", GR_KEY_ENUM, offsetof(train_cfg, schedule), false, "constant", 0, 0, schedules, "how the learning rate falls, by iterations"},
    {"warmup", GR_KEY_UINT, TRAIN(warmup), false, "0", 0, 0, NULL, "iterations from 0 to lr"},
    {"min_lr_ratio", GR_KEY_NUMBER, TRAIN(min_lr_ratio), false, "0", 0, 1, NULL, "the last learning rate of linear and cosine, as a fraction of lr"},
    {"groups", GR_KEY_VALUE, offsetof(train_cfg, groups), false, NULL, 0, 0, NULL, "[{tensors: pattern, lr: ..., weight_decay: ...}]: settings of tensors whose name in the checkpoint the pattern matches, the first that does"},
    {"grads", GR_KEY_ENUM, offsetof(train_cfg, grads), false, "fp32", 0, 0, dtypes, "type in which the gradients of micro-batches are added up"},
    {"moments", GR_KEY_ENUM, offsetof(train_cfg, moments), false, "fp32", 0, 0, moment_types, "type of the optimizer's moments; int8: 8 bits, with a scale for each 64"},
    {"master", GR_KEY_ENUM, offsetof(train_cfg, master), false, "fp32", 0, 0, masters, "what is kept beside bf16 weights: fp32, a copy; split, the 16 bits that they lack of it, the same master in half the memory; on the CPU device weights are fp32 and need no master"},
    {"lora", GR_KEY_VALUE, offsetof(train_cfg, lora), false, NULL, 0, 0, NULL, "train low-rank adapters alone, beside frozen weights; see below"},
    {0}};

const gr_key gr_residency_keys[] = {
    {"params", GR_KEY_ENUM, AT(PARAMS), false, NULL, 0, 0, policies, "its weights, as training and log-probs use them; default: --policy"},
    {"optimizer", GR_KEY_ENUM, AT(OPTIMIZER), false, NULL, 0, 0, state_policies, "moments, and the master weights where there are any; host: they stay in host memory, and the optimizer step runs there"},
    {"gradients", GR_KEY_ENUM, AT(GRADIENTS), false, NULL, 0, 0, policies, "the gradients of one optimizer step"},
    {"rollout_weights", GR_KEY_ENUM, AT(ROLLOUT_WEIGHTS), false, NULL, 0, 0, policies, "the copy that generates, where it is a copy of its own"},
    {"kv", GR_KEY_ENUM, AT(KV), false, NULL, 0, 0, policies, "the KV cache"},
    {0}};

const gr_key gr_run_keys[] = {
    {"steps", GR_KEY_UINT, RUN(steps), false, NULL, 1, UINT32_MAX, NULL, "iterations in all"},
    {"epochs", GR_KEY_UINT, RUN(epochs), false, NULL, 1, UINT32_MAX, NULL, "passes over the data, instead of steps"},
    {"seed", GR_KEY_UINT, RUN(seed), false, "0", 0, 0, NULL, "seed of every random draw"},
    {"checkpoint", GR_KEY_VALUE, RUN(checkpoint), false, NULL, 0, 0, NULL, "{every: iterations, keep: how many, best: metric, best_is: max or min, last: false}"},
    {"bits", GR_KEY_ENUM, RUN(bits), false, "fit", 0, 0, bits,
     "when a choice that changes the bits of results is made: keep, never; fit, where nothing fits without; prefer, where it saves 5 % of the time, too; any, where it saves time"},
    {"stop", GR_KEY_TEXT, RUN(stop), false, NULL, 0, 0, NULL, "the run ends after an iteration in which this holds: an expression over metrics, states, step and progress"},
    {"samples", GR_KEY_UINT, RUN(samples), false, "4", 0, 1 << 20, all, "lines of samples.jsonl an iteration; all: every response too, with ids and log-probs, in RUN/samples"},
    {"stop_after_skipped", GR_KEY_UINT, RUN(stop_after_skipped), false, "20", 0, UINT32_MAX, NULL, "the run ends, with status 1, after so many optimizer steps in a row whose gradients are not finite, or iterations in a row with a state that is not; 0: never"},
    {"timeout", GR_KEY_UINT, RUN(timeout), false, "600", 0, 86400, NULL, "seconds after which a rank that stays in one step while others wait counts as hanging, and the run ends; 0: never"},
    {"check", GR_KEY_UINT, RUN(check), false, "100", 0, UINT32_MAX, NULL, "every so many iterations ranks compare what they hold in common, above all weights; where they differ the run ends; 0: never"},
    {0}};

const gr_key gr_on_keys[] = {
    {"checkpoint", GR_KEY_TEXTS, ON(CHECKPOINT), false, NULL, 0, 0, NULL, "a shell command, or several in a list, to run behind each checkpoint; $1 is the event, $2 the iteration, $3 the checkpoint's folder"},
    {"best", GR_KEY_TEXTS, ON(BEST), false, NULL, 0, 0, NULL, "the same where the checkpoint is the best so far"},
    {"stop", GR_KEY_TEXTS, ON(STOP), false, NULL, 0, 0, NULL, "the same when the run has ended, by its last iteration or because it was stopped; $3 is its folder"},
    {"failure", GR_KEY_TEXTS, ON(FAILURE), false, NULL, 0, 0, NULL, "the same when it has failed; $4 is the message"},
    {"timeout", GR_KEY_NUMBER, offsetof(on_cfg, timeout), false, "300", 0.001, 86400, NULL, "seconds that a command may take before it is ended"},
    {0}};

const gr_key gr_checkpoint_keys[] = {
    {"every", GR_KEY_UINT, offsetof(checkpoint_cfg, every), false, NULL, 1, UINT32_MAX, NULL, "iterations from one checkpoint to the next; default: only the last"},
    {"keep", GR_KEY_UINT, offsetof(checkpoint_cfg, keep), false, NULL, 1, UINT32_MAX, NULL, "how many of the newest checkpoints stay; default: all"},
    {"best", GR_KEY_TEXT, offsetof(checkpoint_cfg, best), false, NULL, 0, 0, NULL, "a metric of metrics.jsonl, such as val.NODE: where it is better than ever before, a checkpoint is written, and stays until there is a better one"},
    {"best_is", GR_KEY_ENUM, offsetof(checkpoint_cfg, best_is), false, "max", 0, 0, best_is, "whether the largest or the smallest is the best"},
    {"last", GR_KEY_BOOL, offsetof(checkpoint_cfg, last), false, "true", 0, 0, NULL, "write one after the last iteration too; a run that is stopped earlier writes one in any case"},
    {0}};

static const gr_key canonical_key[] = {
    {"canonical", GR_KEY_BOOL, 0, false, NULL, 0, 0, NULL, "the same bits on 1, 2, 4 and 8 ranks of the CPU device"}, {0}};
static const gr_key strict_key[] = {
    {"strict", GR_KEY_BOOL, 0, false, NULL, 0, 0, NULL, "rollout, log-prob and update give a token the same bits"}, {0}};
static const gr_key deterministic_key[] = {
    {"deterministic", GR_KEY_BOOL, 0, false, NULL, 0, 0, NULL, "false: sums of gradients need no fixed order, so a repetition may have other bits"}, {0}};
/* clang-format on */

/* ---- names -----------------------------------------------------------------------------------------------
 */

bool gr_name_formed(gr_loader *l, const char *what, const char *name, gr_loc at)
{
    enum { LONGEST = 40 }; /* names of metrics, files and ledger entries are made of several */
    bool form = isalpha((unsigned char)*name) || *name == '_';
    for (const char *p = name; *p; p++) form = form && (isalnum((unsigned char)*p) || *p == '_');
    if (!form)
        gr_diag_error(l->d, at, GR_E_INVALID, "%s '%s': a name is letters, digits and _, not a digit first",
                      what, name);
    else if (strlen(name) > LONGEST)
        gr_diag_error(l->d, at, GR_E_INVALID, "%s '%s': a name has at most %d characters", what, name,
                      LONGEST);
    return form;
}

bool gr_name_allowed(gr_loader *l, const char *what, const char *name, gr_loc at)
{
    static const char *const words[] = {"logprob", "entropy",  "value",    "divergence", "step",
                                        "epoch",   "progress", "and",      "or",         "not",
                                        "true",    "false",    "iteration"};
    bool reserved = false;
    size_t n;
    const gr_expr_function *f = gr_expr_functions(&n);
    if (!gr_name_formed(l, what, name, at)) return false;
    for (size_t i = 0; i < GR_LEN(words); i++) reserved = reserved || !strcmp(words[i], name);
    for (size_t i = 0; i < n; i++) reserved = reserved || !strcmp(f[i].name, name);
    if (reserved)
        gr_diag_error(l->d, at, GR_E_INVALID, "%s cannot be called '%s': expressions use that name", what,
                      name);
    return !reserved;
}

static const gr_value *map_at(gr_loader *l, const char *key)
{
    const gr_value *v = gr_value_get(&l->g->source->root, key);
    if (!v || v->kind == GR_VALUE_NULL || v->broken) return NULL;
    return gr_value_is_map(l, key, v) ? v : NULL;
}

/* ---- models ----------------------------------------------------------------------------------------------
 */

static void read_betas(gr_loader *l, const gr_value *v, gr_train *t)
{
    t->beta1 = 0.9;
    t->beta2 = t->optimizer == GR_OPTIM_LION ? 0.99 : 0.999;
    if (!v) return;
    bool ok = v->kind == GR_VALUE_LIST && v->n == 2 && gr_value_number(&v->items[0], &t->beta1) &&
              gr_value_number(&v->items[1], &t->beta2);
    ok = ok && t->beta1 >= 0 && (float)t->beta1 < 1 && t->beta2 >= 0 && (float)t->beta2 < 1;
    if (!ok) /* by one less their powers, in float32, steps are divided */
        gr_diag_error(l->d, v->at, GR_E_INVALID,
                      "'betas' must be two numbers from 0 to 0.9999999, such as [0.9, 0.999]");
}

static void warn_of_no_effect(gr_loader *l, const gr_value *map, const char *key, const char *why)
{
    const gr_value *v = gr_value_get(map, key);
    if (v) gr_diag_warn(l->d, v->at, "'%s' has no effect with %s", key, why);
}

static void warn_of_settings(gr_loader *l, const gr_value *v, const gr_train *t)
{
    const char *with = gr_arena_printf(l->arena, "optimizer %s", optimizers[t->optimizer]);
    if (t->schedule == GR_LR_CONSTANT) warn_of_no_effect(l, v, "min_lr_ratio", "schedule constant");
    const bool muon = t->optimizer == GR_OPTIM_MUON;
    if (t->optimizer != GR_OPTIM_ADAMW && !muon) warn_of_no_effect(l, v, "eps", with);
    if (t->optimizer != GR_OPTIM_SGD && !muon) warn_of_no_effect(l, v, "momentum", with);
    if (t->optimizer == GR_OPTIM_SGD) warn_of_no_effect(l, v, "betas", with);
}

static void read_momentum(const gr_value *v, gr_train *t)
{
    if (!gr_value_get(v, "momentum")) t->momentum = t->optimizer == GR_OPTIM_MUON ? 0.95 : 0.9;
    if (t->optimizer == GR_OPTIM_SGD) t->beta1 = t->momentum;
}

static void read_train(gr_loader *l, const gr_value *v, gr_model *m)
{
    train_cfg cfg = {.train.beta1 = 0};
    m->trained = true;
    if (v->broken || !gr_value_is_map(l, "train", v)) return;
    gr_keys_read(l, v, v->at, "train", gr_train_keys, NULL, &cfg, NULL);
    m->train = cfg.train;
    m->train.optimizer = (gr_optim_kind)cfg.optimizer;
    m->train.schedule = (gr_schedule_kind)cfg.schedule;
    m->train.grads = (gr_dtype)cfg.grads;
    m->train.moments = (gr_dtype)cfg.moments;
    m->train.master = (gr_master)cfg.master;
    if (m->train.optimizer != GR_OPTIM_SGD) read_betas(l, cfg.betas, &m->train);
    read_momentum(v, &m->train);
    m->train.at = gr_value_get(v, "optimizer") ? gr_value_get(v, "optimizer")->at : v->at;
    if (cfg.groups) gr_read_groups(l, cfg.groups, m);
    if (cfg.lora) gr_read_lora(l, cfg.lora, m);
    warn_of_settings(l, v, &m->train);
}

static void read_head(gr_loader *l, const gr_value *v, gr_model *m)
{
    const char *head = gr_value_text(l, "head", v);
    m->value_head = head && !strcmp(head, "value");
    if (head && !m->value_head)
        gr_diag_error(l->d, v->at, GR_E_INVALID,
                      "'head' must be value, not '%s'; without it a model has the head of its checkpoint",
                      head);
}

static void read_residency(gr_loader *l, const gr_value *v, gr_model *m)
{
    m->residency.at = v->at;
    if (!v->broken && gr_value_is_map(l, "residency", v))
        gr_keys_read(l, v, v->at, "residency", gr_residency_keys, NULL, &m->residency, NULL);
}

static void read_gather(gr_loader *l, const gr_value *v, gr_model *m)
{
    const char *text = v->kind == GR_VALUE_SCALAR ? v->text : NULL;
    if (text && !strcmp(text, "whole"))
        m->sharding.gather = GR_GATHER_WHOLE;
    else if (text && !strcmp(text, "layer"))
        m->sharding.gather = GR_GATHER_LAYER;
    else if (!v->broken && !(text && !strcmp(text, "direct")))
        gr_diag_error(l->d, v->at, GR_E_INVALID, "'gather' must be direct, whole or layer");
}

static void read_shard(gr_loader *l, const gr_value *v, gr_model *m)
{
    const char *text = v->kind == GR_VALUE_SCALAR ? v->text : NULL;
    if (text && !strcmp(text, "all"))
        m->sharding.over = GR_SHARD_ALL;
    else if (text && !strcmp(text, "node"))
        m->sharding.over = GR_SHARD_NODE;
    else if (!v->broken && !(text && !strcmp(text, "auto")))
        gr_diag_error(l->d, v->at, GR_E_INVALID, "'shard' must be auto, all or node");
}

/* `tensor:` or `expert:` of a model: ranks that share the copy which generates. */
static void read_sharers(gr_loader *l, const char *key, const gr_value *v, uint32_t *ranks, gr_loc *at)
{
    double n = 0;
    if (v->broken) return;
    *at = v->at;
    if (gr_value_number(v, &n) && n >= 1 && n <= GR_TP_MAX && n == (uint32_t)n)
        *ranks = (uint32_t)n;
    else
        gr_diag_error(l->d, v->at, GR_E_INVALID,
                      "'%s' must be a whole number from 1 to %d: ranks that share a copy", key, GR_TP_MAX);
}

static void read_model(gr_loader *l, const gr_pair *p)
{
    gr_model *m = gr_arena_alloc(l->arena, sizeof(*m));
    *m = (gr_model){.name = p->key,
                    .at = p->at,
                    .index = (uint32_t)l->g->n_models,
                    .sharding = {.tensor = 1, .expert = 1, .rollout = {1, 1, 1}}};
    l->g->models[l->g->n_models++] = m;
    for (int r = 0; r < GR_N_RESOURCES; r++) m->residency.policy[r] = -1;
    gr_name_formed(l, "a model", p->key, p->at);
    if (p->value.broken || !gr_value_is_map(l, p->key, &p->value)) return;
    const char *what = gr_arena_printf(l->arena, "model '%s'", p->key);
    const gr_value *checkpoint = gr_value_get(&p->value, "checkpoint"),
                   *head = gr_value_get(&p->value, "head"), *train = gr_value_get(&p->value, "train"),
                   *residency = gr_value_get(&p->value, "residency"),
                   *precision = gr_value_get(&p->value, "precision"),
                   *gather = gr_value_get(&p->value, "gather"), *shard = gr_value_get(&p->value, "shard"),
                   *tensor = gr_value_get(&p->value, "tensor"), *expert = gr_value_get(&p->value, "expert"),
                   *parallel = gr_value_get(&p->value, "parallel"), *pool = gr_value_get(&p->value, "pool");
    for (size_t i = 0; i < p->value.n; i++) {
        const gr_value *v = &p->value.pairs[i].value;
        if (v != checkpoint && v != head && v != train && v != residency && v != gather && v != shard &&
            v != tensor && v != expert && v != parallel && v != pool && v != precision)
            gr_unknown_key(l, &p->value.pairs[i], what, NULL, gr_model_keys);
    }
    if (!checkpoint)
        gr_diag_error(l->d, p->at, GR_E_INVALID,
                      "%s needs 'checkpoint': a folder in Hugging Face form, or a config.json", what);
    else if (!checkpoint->broken)
        m->files.checkpoint = gr_value_text(l, "checkpoint", checkpoint);
    m->files.at = checkpoint ? checkpoint->at : p->at;
    if (head) read_head(l, head, m);
    if (train) read_train(l, train, m);
    if (precision) gr_read_precision(l, precision, m);
    if (residency) read_residency(l, residency, m);
    if (gather) read_gather(l, gather, m);
    if (shard) read_shard(l, shard, m);
    if (tensor) read_sharers(l, "tensor", tensor, &m->sharding.tensor, &m->sharding.tensor_at);
    if (expert) read_sharers(l, "expert", expert, &m->sharding.expert, &m->sharding.expert_at);
    if (parallel) gr_read_parallel(l, parallel, m);
    if (pool) m->pool = gr_pool_named(l, pool);
    if (pool) m->pool_at = pool->at;
}

void gr_read_models(gr_loader *l)
{
    const gr_value *v = map_at(l, "models");
    if (v && v->n > GR_MODELS_MAX) {
        gr_diag_error(l->d, v->at, GR_E_INVALID, "more than %d models", GR_MODELS_MAX);
        return;
    }
    l->g->models = gr_arena_alloc(l->arena, (v ? 2 * v->n : 0) * sizeof(gr_model *)); /* bases, too */
    for (size_t i = 0; v && i < v->n; i++) read_model(l, &v->pairs[i]);
}

/* ---- state, log, run -------------------------------------------------------------------------------------
 */

static void read_state(gr_loader *l)
{
    static const char *const keys[] = {"init", "next", NULL};
    const gr_value *v = map_at(l, "state");
    l->g->state = gr_arena_alloc(l->arena, (v ? v->n : 0) * sizeof(gr_state_value));
    for (size_t i = 0; v && i < v->n; i++) {
        const gr_pair *p = &v->pairs[i];
        gr_state_value *s = &l->g->state[l->g->n_state++];
        *s = (gr_state_value){.name = p->key, .at = p->at};
        gr_name_allowed(l, "a state", p->key, p->at);
        if (p->value.broken || !gr_value_is_map(l, p->key, &p->value)) continue;
        const gr_value *init = gr_value_get(&p->value, "init"), *next = gr_value_get(&p->value, "next");
        for (size_t j = 0; j < p->value.n; j++)
            if (&p->value.pairs[j].value != init && &p->value.pairs[j].value != next)
                gr_unknown_key(l, &p->value.pairs[j], gr_arena_printf(l->arena, "state '%s'", p->key), NULL,
                               keys);
        if (!init || !next)
            gr_diag_error(l->d, p->at, GR_E_INVALID, "state '%s' needs '%s'", p->key, init ? "next" : "init");
        if (init && !init->broken && !gr_value_number(init, &s->init))
            gr_diag_error(l->d, init->at, GR_E_INVALID, "'init' must be a number");
        gr_formula *f = next ? gr_formula_read(l, GR_ROLE_STATE, p->key, next, NULL) : NULL;
        if (f) s->next = f->expr;
    }
}

static const char *const trackers[] = {"wandb", "mlflow"};

static void read_sink(gr_loader *l, const gr_pair *p)
{
    bool known = false;
    for (size_t i = 0; i < GR_LEN(trackers); i++) known = known || !strcmp(p->key, trackers[i]);
    if (!known) {
        const char *near = gr_near(p->key, trackers, GR_LEN(trackers));
        gr_diag_error(l->d, p->at, GR_E_INVALID,
                      "'%s' of 'log' is a map: so are wandb and mlflow%s%s%s; a number is an expression",
                      p->key, near ? "; did you mean '" : "", near ? near : "", near ? "'?" : "");
        return;
    }
    l->g->sinks[l->g->n_sinks++] = (gr_sink){p->key, &p->value, p->at};
}

static void read_log(gr_loader *l)
{
    const gr_value *v = map_at(l, "log");
    l->g->log = gr_arena_alloc(l->arena, (v ? v->n : 0) * sizeof(gr_named_expression));
    l->g->sinks = gr_arena_alloc(l->arena, (v ? v->n : 0) * sizeof(gr_sink));
    for (size_t i = 0; v && i < v->n; i++) {
        if (v->pairs[i].value.kind == GR_VALUE_MAP) {
            read_sink(l, &v->pairs[i]);
            continue;
        }
        const gr_formula *f = gr_formula_read(l, GR_ROLE_LOG, v->pairs[i].key, &v->pairs[i].value, NULL);
        if (f) l->g->log[l->g->n_log++] = (gr_named_expression){v->pairs[i].key, v->pairs[i].at, f->expr};
    }
}

static bool is_set(const gr_loader *l, const char *name_and_equals)
{
    for (size_t i = 0; l->o && i < l->o->n_set; i++)
        if (!strncmp(l->o->set[i], name_and_equals, strlen(name_and_equals))) return true;
    return false;
}

static void read_run(gr_loader *l)
{
    static const gr_value none = {.kind = GR_VALUE_MAP};
    const gr_value *v = map_at(l, "run");
    run_cfg run = {0};
    checkpoint_cfg checkpoint = {.last = true};
    gr_keys_read(l, v ? v : &none, v ? v->at : (gr_loc){0}, "run", gr_run_keys, NULL, &run, NULL);
    if (run.checkpoint && run.checkpoint->kind == GR_VALUE_SCALAR && !run.checkpoint->broken)
        gr_diag_error(l->d, run.checkpoint->at, GR_E_INVALID,
                      "'checkpoint' must be a map such as {every: 20, keep: 2}, not '%s'",
                      run.checkpoint->text);
    else if (run.checkpoint && gr_value_is_map(l, "checkpoint", run.checkpoint))
        gr_keys_read(l, run.checkpoint, run.checkpoint->at, "run: checkpoint", gr_checkpoint_keys, NULL,
                     &checkpoint, NULL);
    if (run.steps && run.epochs && is_set(l, "run.steps=") != is_set(l, "run.epochs="))
        *(is_set(l, "run.steps=") ? &run.epochs : &run.steps) = 0; /* the command line's wins */
    if (run.steps && run.epochs)
        gr_diag_error(l->d, gr_value_get(v, "epochs")->at, GR_E_INVALID,
                      "'steps' and 'epochs': give one of the two");
    if (run.checkpoint && !checkpoint.best)
        warn_of_no_effect(l, run.checkpoint, "best_is", "no 'best' beside it");
    const gr_value *best = checkpoint.best ? gr_value_get(run.checkpoint, "best") : NULL;
    l->g->run = (gr_run_settings){.steps = run.steps,
                                  .epochs = run.epochs,
                                  .checkpoint_every = checkpoint.every,
                                  .checkpoint_keep = checkpoint.keep,
                                  .checkpoint_last = checkpoint.last,
                                  .best = checkpoint.best,
                                  .best_at = best ? best->at : (gr_loc){0},
                                  .best_is_least = checkpoint.best_is == 1,
                                  .stop = {.text = run.stop},
                                  .seed = run.seed,
                                  .samples = run.samples == UINT32_MAX ? GR_RUN_SAMPLES : run.samples,
                                  .keep_all = run.samples == UINT32_MAX,
                                  .timeout = run.timeout,
                                  .stop_after_skipped = run.stop_after_skipped,
                                  .check = run.check,
                                  .bits = (gr_bits_rule)run.bits};
}

static void read_on(gr_loader *l)
{
    static const gr_value none = {.kind = GR_VALUE_MAP};
    const gr_value *v = map_at(l, "on");
    on_cfg on = {0};
    size_t n = 0;
    gr_keys_read(l, v ? v : &none, v ? v->at : (gr_loc){0}, "on", gr_on_keys, NULL, &on, NULL);
    for (int e = 0; e < GR_N_EVENTS; e++) n += on.command[e].n;
    l->g->hook_timeout = on.timeout;
    l->g->hooks = gr_arena_alloc(l->arena, n * sizeof(gr_hook));
    for (int e = 0; e < GR_N_EVENTS; e++)
        for (size_t i = 0; i < on.command[e].n; i++)
            l->g->hooks[l->g->n_hooks++] = (gr_hook){(gr_event)e, on.command[e].text[i], on.command[e].at[i]};
}

static void read_numerics(gr_loader *l, const gr_value *root)
{
    bool deterministic = true;
    gr_keys_pick(l, root, strict_key, &l->g->strict, NULL);
    gr_keys_pick(l, root, canonical_key, &l->g->canonical, NULL);
    gr_keys_pick(l, root, deterministic_key, &deterministic, NULL);
    l->g->nondeterministic = !deterministic;
}

/* ---- the top ---------------------------------------------------------------------------------------------
 */

static void check_keys(gr_loader *l, const gr_value *root)
{
    for (size_t i = 0; i < root->n; i++) {
        const char *const *k = gr_top_keys;
        while (*k && strcmp(*k, root->pairs[i].key)) k++;
        if (!*k) gr_unknown_key(l, &root->pairs[i], "the file", NULL, gr_top_keys);
    }
}

/* It stands in lines of progress, tables and the names of folders. */
static void check_name(gr_loader *l, const gr_value *v)
{
    const char *name = l->g->name = gr_value_text(l, "graph", v);
    gr_str shown = {0};
    if (!name) return;
    gr_str_visible(&shown, name, strlen(name), false);
    if (shown.len && strcmp(shown.text, name) != 0)
        gr_diag_error(l->d, v->at, GR_E_INVALID, "the graph's name '%s' has characters that are not shown",
                      name);
    gr_str_release(&shown);
}

void gr_read_top(gr_loader *l)
{
    const gr_value *root = &l->g->source->root, *name = gr_value_get(root, "graph"),
                   *doc = gr_value_get(root, "doc");
    check_keys(l, root);
    if (!name && !l->d->n_errors) /* else perhaps a file that could not be used has it */
        gr_diag_error(l->d, (gr_loc){l->g->path, 1, 1}, GR_E_INVALID, "a graph file needs 'graph': its name");
    if (name) check_name(l, name);
    if (doc) gr_value_text(l, "doc", doc);
    for (size_t i = 0; i < l->g->source->n_params; i++) {
        const gr_param *p = &l->g->source->params[i];
        gr_name_formed(l, "a parameter", p->name, p->at);
    }
    read_state(l);
    read_log(l);
    read_on(l);
    read_run(l);
    read_numerics(l, root);
}
