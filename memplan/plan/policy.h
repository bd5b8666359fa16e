/* memplan/plan/policy.h: what may be asked about where a model's state is kept. */
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

#endif
