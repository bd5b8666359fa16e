/* memplan/plan/policy.h: what may be asked about where a model's state is kept, and about bits. */
#ifndef GR_MEMPLAN_PLAN_POLICY_H
#define GR_MEMPLAN_PLAN_POLICY_H

#define GR_POLICY_MAP(X)        \
    X(AUTO, "auto")             \
    X(KEEP, "keep")             \
    X(TRANSITION, "transition") \
    X(EVERY_NODE, "every_node") \
    X(HOST, "host")

/* auto        the planner's choice: the least predicted time under the budget
 * keep        on the device always
 * transition  on the device until a rollout that does not use it begins; loaded again by the first use after
 * every_node  loaded before each node that uses it, off the device after it
 * host        of optimizer alone: in the host pool always, and the step is done there */
typedef enum gr_policy {
#define X(name, text) GR_POLICY_##name,
    GR_POLICY_MAP(X)
#undef X
        GR_N_POLICIES
} gr_policy;

/* Of a model. A KV pool is of the model that generates with it. */
#define GR_RESOURCE_MAP(X)                \
    X(PARAMS, "params")                   \
    X(OPTIMIZER, "optimizer")             \
    X(GRADIENTS, "gradients")             \
    X(ROLLOUT_WEIGHTS, "rollout_weights") \
    X(KV, "kv")
typedef enum gr_resource {
#define X(name, text) GR_RESOURCE_##name,
    GR_RESOURCE_MAP(X)
#undef X
        GR_N_RESOURCES
} gr_resource;

/* When what changes the bits of results may be chosen: `bits` of a run. */
#define GR_BITS_RULE_MAP(X) \
    X(FIT, "fit")           \
    X(KEEP, "keep")         \
    X(PREFER, "prefer")     \
    X(ANY, "any")
typedef enum gr_bits_rule {
#define X(name, text) GR_BITS_##name,
    GR_BITS_RULE_MAP(X)
#undef X
} gr_bits_rule;

/* Whether levels of what a planner chooses differ in the bits of results, and what follows from that. */
typedef enum gr_level_bits {
    GR_BITS_SAME,
    GR_BITS_DIFFER, /* the first level is left only where nothing fits with it */
    /* They differ, but no level has the better ones: the first is a luxury, taken where it makes the plan
     * faster, and tried with the first levels alone of all choices that keep the bits. */
    GR_BITS_SPARE,
} gr_level_bits;

#endif
