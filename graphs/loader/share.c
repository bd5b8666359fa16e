/* graphs/loader/share.c: `share_prompts` of an update: passes over its rows read a prompt once for several of
 * its responses. */
#include "graphs/loader/loader.h"
#include "ops/base/configs.h"
#include "ops/pass.h"
#include "ops/tunables.h"

static const gr_update_cfg *cfg_of(const gr_node *n)
{
    return n->op->trains ? n->cfg : NULL;
}

static gr_loc key_at(const gr_node *update)
{
    return gr_value_get(update->value, "share_prompts")->at;
}

static const char *model_unfit(const gr_model_shape *s)
{
    const char *why = NULL;
    for (uint32_t i = 0; i < s->n_kinds && !why; i++) why = gr_layer_unshared(&s->kinds[i]);
    return why;
}

/* A key of the update that says something else of what comes together or is counted. */
static const char *key_against(const gr_update_cfg *c)
{
    if (c->balance) return "balance";
    if (c->router_aux_loss_coef > 0) return "router_aux_loss_coef";
    return c->router_bias_update_rate > 0 ? "router_bias_update_rate" : NULL;
}

static void check_update(gr_loader *l, const gr_node *update)
{
    const char *other = key_against(cfg_of(update));
    if (!other) return;
    gr_diag_error(l->d, key_at(update), GR_E_INVALID,
                  "'share_prompts' of '%s' and '%s' do not go together: %s", update->name, other,
                  cfg_of(update)->balance
                      ? "the longest sequences first tears the responses of a prompt apart"
                      : "the loads of experts would count a prompt once, not once for "
                        "each of its responses");
}

static uint32_t micro_tokens_of(const gr_node *n)
{
    return cfg_of(n) ? cfg_of(n)->micro_tokens : ((const gr_logprob_cfg *)n->cfg)->micro_tokens;
}

/* What comes together is in one micro-batch. */
static void check_room(gr_loader *l, const gr_node *n)
{
    const uint32_t given = micro_tokens_of(n), least = gr_node_together(n);
    if (given && given < least)
        gr_diag_error(
            l->d, gr_value_get(n->value, "micro_tokens")->at, GR_E_INVALID,
            "micro_tokens: %u, but a prompt and the %u responses that share it ('share_prompts') may "
            "have %u tokens",
            given, gr_node_shares(n), least);
}

/* A pass over the rows of an update. */
static void share(gr_loader *l, gr_node *n, const gr_node *update)
{
    const uint32_t shares = cfg_of(update)->share_prompts;
    const char *unfit = model_unfit(&n->model->shape);
    if (unfit)
        gr_diag_error(l->d, key_at(update), GR_E_INVALID,
                      "'share_prompts' of '%s': model '%s' of '%s' has %s, which read each sequence from its "
                      "beginning: leave the key out",
                      update->name, n->model->name, n->name, unfit);
    else if (cfg_of(n) && cfg_of(n)->share_prompts != shares)
        gr_diag_error(l->d, key_at(update), GR_E_INVALID,
                      "'share_prompts' is about all passes over the rows of '%s': give '%s' the same",
                      n->rows->name, n->name);
    n->shares = shares;
    check_room(l, n);
}

static bool is_pass(const gr_node *n)
{
    return n->model && (n->op->trains || n->op->passes);
}

void gr_share_prompts(gr_loader *l)
{
    for (size_t i = 0; i < l->g->n_nodes; i++) {
        const gr_node *update = l->g->nodes[i];
        if (!cfg_of(update) || cfg_of(update)->share_prompts < 2) continue;
        check_update(l, update);
        for (size_t k = 0; k < l->g->n_nodes; k++)
            if (is_pass(l->g->nodes[k]) && l->g->nodes[k]->rows == update->rows)
                share(l, l->g->nodes[k], update);
    }
}
