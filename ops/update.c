/* ops/update.c: table of the op `update`; how it runs is ops/train.c. */
#include "ops/base/configs.h"
#include "ops/pass.h"
#include "ops/train.h"

#include <stdlib.h>

#define CFG(f) offsetof(gr_update_cfg, f)

/* clang-format off */
static const gr_key keys[] = {
    {"model", GR_KEY_MODEL, CFG(model), true, NULL, 0, 0, NULL, "the model trained; it has train: settings"},
    {"of", GR_KEY_NODE, CFG(of), true, NULL, 0, 0, NULL, "the rows trained on"},
    {"loss", GR_KEY_LOSS, CFG(loss), true, NULL, 0, 0, NULL, "a scalar expression of the current logprob and entropy (of a critic: value), which it is differentiated by, and of columns, which are constant"},
    {"mini_batch", GR_KEY_UINT, CFG(mini_batch), false, "0", 0, 1 << 20, NULL, "prompts of one optimizer step; must divide the batch; 0: all"},
    {"epochs", GR_KEY_UINT, CFG(epochs), false, "1", 1, 1000, NULL, "times that the batch is trained on"},
    {"micro_tokens", GR_KEY_UINT, CFG(micro_tokens), false, "0", 0, 1 << 24, NULL, "most tokens of one packed pass; 0: the planner's choice"},
    {"balance", GR_KEY_BOOL, CFG(balance), false, "false", 0, 0, NULL, "passes over these rows, also those of other nodes, take the longest sequences first"},
    {0}};
/* clang-format on */

static const gr_field fields[] = {{0}};

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
    if (!n->model->trained)
        gr_diag_error(d, n->at, GR_E_INVALID, "model '%s' has no 'train' settings, but node '%s' updates it",
                      n->model->name, n->name);
    gr_check_micro_tokens(n, c->micro_tokens, &c->of->rows->bounds, d);
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
    .tunables = gr_train_tunables,
    .default_choice = gr_train_default_choice,
    .runs_with = gr_train_runs_with,
    .declare = gr_train_declare,
    .open = gr_train_open,
    .close = gr_train_close,
    .run = gr_train_run,
    .more = gr_train_more,
    .trips = gr_train_trips,
    .save = gr_train_save,
    .load = gr_train_load,
};
