/* ops/logprob.c: the op `logprob`: log-probs (and head statistics) of a model for the tokens of a rollout. */
#include "ops/configs.h"
#include "ops/pass.h"

#define CFG(f) offsetof(gr_logprob_cfg, f)

/* clang-format off */
static const gr_key keys[] = {
    {"model", GR_KEY_MODEL, CFG(model), true, NULL, 0, 0, NULL, "the model asked"},
    {"of", GR_KEY_NODE, CFG(of), true, NULL, 0, 0, NULL, "the rows; their temperature applies"},
    {"micro_tokens", GR_KEY_UINT, CFG(micro_tokens), false, "0", 0, 1 << 24, NULL, "most tokens of one packed pass; 0: the planner's choice"},
    {0}};

static const gr_field fields[] = {
    {"logprob", GR_LEVEL_TOKEN, GR_KIND_NUMBER, GR_EXPR_F32, "log-prob of each response token"},
    {"entropy", GR_LEVEL_TOKEN, GR_KIND_NUMBER, GR_EXPR_F32, "entropy of the distribution each token was drawn from"},
    {"sum_p2", GR_LEVEL_TOKEN, GR_KIND_NUMBER, GR_EXPR_F32, "sum of squared probabilities over the vocabulary"},
    {0}};
/* clang-format on */
