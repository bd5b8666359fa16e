/* scheduler/search/policy.c: residency policies by name, and what each asks. */
#include "scheduler/search/policy.h"

#include <string.h>

#define X(name, text) text,
static const char *const policies[] = {GR_POLICY_MAP(X)};
static const char *const resources[] = {GR_RESOURCE_MAP(X)};
#undef X

gr_policy gr_policy_find(const char *name)
{
    gr_policy p = GR_POLICY_AUTO;
    while (p < GR_N_POLICIES && strcmp(policies[p], name)) p++;
    return p;
}

/* Of two resources that training holds. */
static void yield_transition(const gr_model *m, gr_policy *p, gr_resource to, gr_resource from, gr_diag *d)
{
    if (p[to] != GR_POLICY_EVERY_NODE || p[from] != GR_POLICY_TRANSITION) return;
    p[from] = GR_POLICY_KEEP;
    gr_diag_warn(
        d, m->residency.at,
        "model '%s': 'every_node' of %s makes room at every node, so the 'transition' of %s yields: it "
        "is kept",
        m->name, resources[to], resources[from]);
}

gr_rule *gr_rules_of(const gr_graph *g, gr_policy all, gr_arena *arena, size_t *n, gr_diag *d)
{
    static const struct {
        gr_category category;
        gr_resource resource;
    } of[] = {{GR_CAT_WEIGHTS, GR_RESOURCE_PARAMS},
              {GR_CAT_OPTIMIZER, GR_RESOURCE_OPTIMIZER},
              {GR_CAT_GRADIENTS, GR_RESOURCE_GRADIENTS},
              {GR_CAT_ROLLOUT, GR_RESOURCE_ROLLOUT_WEIGHTS},
              {GR_CAT_KV, GR_RESOURCE_KV}};
    gr_rule *rules = gr_arena_alloc(arena, (g->n_models + 1) * GR_LEN(of) * sizeof(*rules));
    *n = 0;
    for (size_t i = 0; i < g->n_models; i++) {
        const gr_model *m = g->models[i];
        gr_policy p[GR_N_RESOURCES];
        for (int r = 0; r < GR_N_RESOURCES; r++)
            p[r] = m->residency.policy[r] < 0 ? all : (gr_policy)m->residency.policy[r];
        yield_transition(m, p, GR_RESOURCE_PARAMS, GR_RESOURCE_OPTIMIZER, d);
        yield_transition(m, p, GR_RESOURCE_OPTIMIZER, GR_RESOURCE_PARAMS, d);
        for (size_t k = 0; k < GR_LEN(of); k++)
            if (p[of[k].resource] != all)
                rules[(*n)++] = (gr_rule){m->name, of[k].category, p[of[k].resource]};
    }
    return rules;
}
