/* ops/update.c: table of the op `update`; how it runs is ops/train.c. */
#include "ops/base/configs.h"
#include "ops/base/routes.h"
#include "ops/kernels/experts.h"
#include "ops/kernels/layer_ops.h"
#include "ops/pass.h"
#include "ops/train.h"

#include <stdlib.h>

#define CFG(f) offsetof(gr_update_cfg, f)

static const char *const divergences[] = {
    [GR_REVERSE_KL] = "reverse_kl", [GR_FORWARD_KL] = "forward_kl", [GR_JSD] = "jsd", NULL};

/* clang-format off */
static const gr_key keys[] = {
    {"model", GR_KEY_MODEL, CFG(model), true, NULL, 0, 0, NULL, "the model trained; it has train: settings"},
    {"of", GR_KEY_NODE, CFG(of), true, NULL, 0, 0, NULL, "the rows trained on"},
    {"loss", GR_KEY_LOSS, CFG(loss), true, NULL, 0, 0, NULL, "a scalar expression of the current logprob and entropy (with a teacher: divergence; of a critic: value), which it is differentiated by, and of columns, which are constant"},
    {"mini_batch", GR_KEY_UINT, CFG(mini_batch), false, "0", 0, 1 << 20, NULL, "prompts of one optimizer step; must divide the batch; 0: all"},
    {"epochs", GR_KEY_UINT, CFG(epochs), false, "1", 1, 1000, NULL, "times that the batch is trained on"},
    {"micro_tokens", GR_KEY_UINT, CFG(micro_tokens), false, "0", 0, 1 << 24, NULL, "most tokens of one packed pass; 0: the planner's choice"},
    {"balance", GR_KEY_BOOL, CFG(balance), false, "false", 0, 0, NULL, "passes over these rows, also those of other nodes, take the longest sequences first"},
    {"share_prompts", GR_KEY_UINT, CFG(share_prompts), false, "0", 0, 1 << 16, NULL, "passes over these rows, also those of other nodes, read a prompt once for so many of its responses at most; 0: once for each"},
    {"teacher", GR_KEY_NODE, CFG(teacher), false, NULL, 0, 0, NULL, "a logprob node of these rows: the loss can then read 'divergence', of each token how far the current distribution over the whole vocabulary is from that model's"},
    {"divergence", GR_KEY_ENUM, CFG(divergence), false, NULL, 0, 0, divergences, "reverse_kl (default): KL(student || teacher); forward_kl: KL(teacher || student); jsd: beta KL(teacher || m) + (1 - beta) KL(student || m), m = beta teacher + (1 - beta) student"},
    {"beta", GR_KEY_NUMBER, CFG(beta), false, NULL, 0, 1, NULL, "of jsd: the teacher's share of the mixture, above 0 and below 1; default: 0.5"},
    {"replay", GR_KEY_ENUM, CFG(replay), false, NULL, 0, 0, gr_replay_names, "the experts of tokens, of a model that has any: rollout, those that the rollout chose; compare, those that the routers choose here, compared with the rollout's in the metrics; default: those that the routers choose here"},
    {"router_aux_loss_coef", GR_KEY_NUMBER, CFG(router_aux_loss_coef), false, NULL, 0, 1e6, NULL, "of a model with experts: so many times the load-balancing loss of its routers, over all tokens of a mini-batch, is added to the loss; it takes one more forward pass; default: none"},
    {"router_bias_update_rate", GR_KEY_NUMBER, CFG(router_bias_update_rate), false, NULL, 0, 1e6, NULL, "of a model whose routers have a bias that only selects (deepseek_v3, glm4_moe): in each optimizer step the bias of an expert with less load than the mean rises by this, and of one with more falls; default: it stays"},
    {0}};
/* clang-format on */

static const gr_field fields[] = {{0}};

/* One description of all layers of experts; NULL: they differ, or there are none. */
static const gr_experts_desc *routers_alike(const gr_model_shape *s)
{
    const gr_experts_desc *first = NULL;
    for (uint32_t kind = 0; kind < s->n_kinds; kind++) {
        const gr_experts_desc *e = &s->kinds[kind].experts;
        if (s->kinds[kind].mlp != GR_MLP_EXPERTS) continue;
        if (first && (first->count != e->count || first->top_k != e->top_k)) return NULL;
        first = e;
    }
    return first;
}

static void check_balance(const gr_node *n, gr_diag *d)
{
    const gr_update_cfg *c = n->cfg;
    const gr_experts_desc *e = routers_alike(&n->model->shape);
    if (c->router_aux_loss_coef > 0 && (!e || e->router == GR_ROUTER_SIGMOID))
        gr_diag_error(d, gr_value_get(n->value, "router_aux_loss_coef")->at, GR_E_INVALID,
                      "'router_aux_loss_coef': model '%s' has %s", n->model->name,
                      e ? "routers whose scores are sigmoids: 'router_bias_update_rate' balances these"
                        : "no layers of experts, or such of different numbers of experts");
    if (c->router_bias_update_rate > 0 && (!e || !e->selection_bias))
        gr_diag_error(
            d, gr_value_get(n->value, "router_bias_update_rate")->at, GR_E_INVALID,
            "'router_bias_update_rate': model '%s' has no routers with a bias that selects experts; "
            "'router_aux_loss_coef' balances routers whose scores are a softmax",
            n->model->name);
}

/* With the divisors on either side. */
static void refuse_mini_batch(const gr_node *n, uint32_t mini_batch, uint32_t batch, gr_diag *d)
{
    uint32_t less = GR_MIN(mini_batch, batch), more = GR_MIN(mini_batch, batch);
    while (batch % less) less--;
    while (batch % more) more++;
    char * or = more != less ? gr_printf(" or %u", more) : gr_strdup("");
    gr_diag_error(d, gr_value_get(n->value, "mini_batch")->at, GR_E_INVALID,
                  "mini_batch: %u does not divide the batch of %u prompts; %u%s would", mini_batch, batch,
                  less, or);
    free(or);
}

/* Which of its keys a message is about. */
static gr_loc at_key(const gr_node *n, const char *key)
{
    const gr_value *v = gr_value_get(n->value, key);
    return v ? v->at : n->at;
}

static void check_teaching_model(const gr_node *n, const gr_node *teacher, gr_diag *d)
{
    const gr_model *m = teacher->model;
    const gr_loc at = at_key(n, "teacher");
    if (m == n->model)
        gr_diag_error(
            d, at, GR_E_INVALID,
            "'%s' has the model that '%s' trains, whose output matrix changes with each step: let another "
            "model have the same checkpoint, or follow it (op copy)",
            teacher->name, n->name);
    else if (m->trained && !m->follows)
        gr_diag_error(d, at, GR_E_INVALID,
                      "model '%s' of '%s' is trained itself: a teacher's weights must stay while '%s' learns",
                      m->name, teacher->name, n->name);
    else if (m->follows && (n->timing.new_version != teacher->timing.new_version))
        gr_diag_error(
            d, at, GR_E_INVALID,
            "'%s' and '%s' stand on two sides of '%s', which changes model '%s': give both the same 'after'",
            teacher->name, n->name, m->follows->name, m->name);
    else if (m->shape.vocab < n->model->shape.vocab)
        gr_diag_error(
            d, at, GR_E_INVALID,
            "model '%s' has %u ids, and its teacher '%s' %u: they must have one vocabulary (a teacher may "
            "have more at its end)",
            n->model->name, n->model->shape.vocab, m->name, m->shape.vocab);
}

static void check_teacher(gr_node *n, gr_diag *d)
{
    gr_update_cfg *c = n->cfg;
    if (!c->teacher) {
        static const char *const keys_of_it[] = {"divergence", "beta"};
        for (size_t i = 0; i < GR_LEN(keys_of_it); i++)
            if (gr_value_get(n->value, keys_of_it[i]))
                gr_diag_error(d, at_key(n, keys_of_it[i]), GR_E_INVALID,
                              "'%s' says how far a 'teacher' is, and '%s' has none", keys_of_it[i], n->name);
        return;
    }
    if (c->divergence != GR_JSD && gr_value_get(n->value, "beta"))
        gr_diag_error(d, at_key(n, "beta"), GR_E_INVALID, "'beta' is of 'divergence: jsd'");
    if (!gr_value_get(n->value, "beta")) c->beta = 0.5;
    if (c->divergence == GR_JSD && (c->beta <= 0 || c->beta >= 1))
        gr_diag_error(
            d, at_key(n, "beta"), GR_E_INVALID,
            "'beta' must be above 0 and below 1; the divergences at its ends are forward_kl and reverse_kl");
    if (n->model->shape.head == GR_HEAD_VALUE)
        gr_diag_error(d, at_key(n, "teacher"), GR_E_INVALID,
                      "model '%s' has a value head, and nothing to be taught", n->model->name);
    else if (c->teacher->of && c->teacher->rows != n->rows)
        gr_diag_error(d, at_key(n, "teacher"), GR_E_INVALID,
                      "'%s' is of the rows of '%s', and '%s' trains on those of '%s': give it 'of: %s'",
                      c->teacher->name, c->teacher->rows->name, n->name, n->rows->name, n->of->name);
    else if (c->teacher->model)
        check_teaching_model(n, c->teacher, d);
}

static bool is_plain(const gr_layer_desc *d)
{
    return d->mlp == GR_MLP_DENSE && d->mixer == GR_MIXER_ATTENTION;
}

/* What muon is not made of. */
static void check_muon(const gr_model *m, gr_diag *d)
{
    if (!m->trained || m->follows || m->train.optimizer != GR_OPTIM_MUON) return;
    bool plain = true;
    for (uint32_t kind = 0; kind < m->shape.n_kinds; kind++) plain = plain && is_plain(&m->shape.kinds[kind]);
    if (m->train.moments != GR_F32)
        gr_diag_error(d, m->train.at, GR_E_INVALID, "'muon' is made for 'moments: fp32'");
    if (gr_model_has_lora(m))
        gr_diag_error(
            d, m->train.at, GR_E_INVALID,
            "'muon' is made for the weights of layers, and model '%s' trains adapters: adamw, lion or sgd "
            "step these",
            m->name);
    else if (!plain)
        gr_diag_error(
            d, m->train.at, GR_E_INVALID,
            "'muon' is made for layers of attention and dense feed-forward networks, and model '%s' has "
            "others: adamw, lion or sgd step these",
            m->name);
    if (m->residency.policy[GR_RESOURCE_OPTIMIZER] == GR_POLICY_HOST)
        gr_diag_error(d, m->residency.at, GR_E_INVALID,
                      "'optimizer: host' does not go with 'muon', whose products are the device's");
}

static void check_update(gr_graph *g, gr_node *n, gr_diag *d)
{
    (void)g;
    gr_update_cfg *c = n->cfg;
    uint32_t batch = c->of->rows->bounds.groups;
    c->mini_batches = c->mini_batch ? batch / c->mini_batch : 1;
    if (c->mini_batch && batch % c->mini_batch && gr_rows_split(c->of->rows))
        gr_diag_error(d, n->at, GR_E_INVALID,
                      "mini_batch: %u does not divide the %u rows that '%s' draws, each a group of its own",
                      c->mini_batch, batch, c->of->rows->name);
    else if (c->mini_batch && batch % c->mini_batch)
        refuse_mini_batch(n, c->mini_batch, batch, d);
    if (n->model->follows)
        gr_diag_error(d, n->at, GR_E_INVALID, "node '%s' trains model '%s', which '%s' makes follow another",
                      n->name, n->model->name, n->model->follows->name);
    else if (!n->model->trained)
        gr_diag_error(d, n->at, GR_E_INVALID, "model '%s' has no 'train' settings, but node '%s' updates it",
                      n->model->name, n->name);
    if (gr_model_has_lora(n->model) && c->router_bias_update_rate > 0)
        gr_diag_error(
            d, n->at, GR_E_INVALID,
            "'router_bias_update_rate' moves a bias of model '%s', which is frozen beside its adapters",
            n->model->name);
    gr_check_micro_tokens(n, c->micro_tokens, &c->of->rows->bounds, d);
    gr_check_replay(n, d);
    check_teacher(n, d);
    check_muon(n->model, d);
    check_balance(n, d);
}

static const char *unfit(const gr_node *n, const gr_kernels *k)
{
    if (gr_model_has_lora(n->model) && k->dtype == GR_BF16 && n->model->lora.shape.adapter.rank % 8)
        return "the rank of adapters must be a multiple of 8 there, as rows of 16 bytes are";
    const bool follows = ((const gr_update_cfg *)n->cfg)->router_bias_update_rate > 0;
    return follows && !(k->layer->experts && k->layer->experts->rebalance)
               ? "'router_bias_update_rate' is made for the CPU device alone; without it the bias stays"
               : NULL;
}

static bool one_step(const gr_node *n)
{
    const gr_update_cfg *c = n->cfg;
    return !c->mini_batch && c->epochs == 1;
}

const gr_op gr_op_update = {
    .name = "update",
    .trains = true,
    .summary = "train a model on a loss expression",
    .doc = "Mini-batches are taken in the order of the rows; each is one optimizer step (AdamW, decoupled "
           "weight decay, clipping by the global norm). A step whose gradient norm is not finite is skipped "
           "and counted.",
    .kernels = GR_KERNELS_FORWARD | GR_KERNELS_BACKWARD,
    .lane = GR_LANE_COMPUTE,
    .cfg_bytes = sizeof(gr_update_cfg),
    .keys = keys,
    .fields = fields,
    .check = check_update,
    .one_step = one_step,
    .unfit = unfit,
    .tunables = gr_train_tunables,
    .default_choice = gr_train_default_choice,
    .runs_with = gr_train_runs_with,
    .declare = gr_train_declare,
    .open = gr_train_open,
    .close = gr_train_close,
    .run = gr_train_run,
    .more = gr_train_more,
    .trips = gr_train_trips,
    .sends = gr_train_sends,
    .save = gr_train_save,
    .load = gr_train_load,
};
