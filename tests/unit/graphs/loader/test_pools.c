/* Pools of ranks: which ranks they are, who runs where, what crosses, and that plans of several roles are
 * proven: each role run in any interleaving of its lanes, and broken ones refused. */
#include "tests/unit/plan_edit.h"
#include "ops/parallel/parts.h"
#include "scheduler/search/roles.h"
#include "tests/unit/planned.h"
#include "tests/unit/simulate.h"
#include "graphs/loader/load.h"

static const char *const graph_text =
    "graph: pools\n"
    "pools: {%s}\n"
    "models:\n"
    "  actor: {checkpoint: tests/golden/model/qwen3, train: {lr: 0.01}, pool: train}\n"
    "  critic: {checkpoint: tests/golden/model/qwen3, head: value, train: {lr: 0.01}, pool: critic}\n"
    "  ref: {checkpoint: tests/golden/model/qwen3, pool: ref}\n"
    "nodes:\n"
    "  prompts: {op: prompts, file: none.jsonl, batch: 4, max_tokens: 3, template: '{q}'}\n"
    "  rollout: {op: generate, model: actor, prompts: prompts, samples: 2, max_tokens: 3, pool: rollout%s}\n"
    "  reward: {op: reward, of: rollout, answer: prompts.a, rule: {extract: '(.)', compare: string}}\n"
    "  old: {op: logprob, model: actor, of: rollout}\n"
    "  ref_logprob: {op: logprob, model: ref, of: rollout}\n"
    "  values: {op: value, model: critic, of: rollout}\n"
    "  returns: {op: compute, expr: suffix_sum(at_last(reward) - 0.1 * (old - ref_logprob))}\n"
    "  advantage: {op: compute, expr: returns - values}\n"
    "  update_critic: {op: update, model: critic, of: rollout, mini_batch: 2, "
    "loss: token_mean((value - returns)^2)}\n"
    "  update: {op: update, model: actor, of: rollout, mini_batch: 2, "
    "loss: token_mean(advantage * exp(logprob - old))}\n"
    "%s"
    "run: {steps: 2}\n";

static const char *const validation =
    "  vp: {op: prompts, file: none.jsonl, batch: 2, max_tokens: 3, template: '{q}', every: 2}\n"
    "  vr: {op: generate, model: actor, prompts: vp, max_tokens: 3, pool: rollout}\n"
    "  vs: {op: reward, of: vr, answer: vp.a, rule: {extract: '(.)', compare: string}}\n"
    "  vl: {op: logprob, model: ref, of: vr, metrics: {m: token_mean(vl)}}\n"
    "state: {price: {init: 0.1, next: price + batch_mean(seq_mean(old - ref_logprob))}}\n";

static const char *const colocated =
    "train: {share: 1}, rollout: {with: train}, ref: {with: train}, critic: {with: train}";
static const char *const split =
    "train: {share: 2}, rollout: {share: 2}, ref: {ranks: 1}, critic: {ranks: 2}";
static const char *const pairs =
    "train: {share: 1}, rollout: {share: 1}, ref: {with: rollout}, critic: {with: train}";

typedef struct setup {
    const char *pools, *lag, *more;
    uint32_t ranks, hosts;
    uint64_t budget;
    gr_policy policy;
} setup;

/* NULL: refused, with the messages in why. */
static gr_graph *load(const setup *s, gr_str *why)
{
    char *text = gr_printf(graph_text, s->pools, s->lag ? s->lag : "", s->more ? s->more : "");
    gr_load_options o = {.need_shapes = true, .ranks = s->ranks, .hosts = s->hosts};
    gr_graph *g = NULL;
    gr_diag d;
    gr_diag_init(&d);
    (void)!gr_graph_parse(&g, text, strlen(text), "pools.yaml", &o, &d);
    for (size_t i = 0; i < d.n && !g; i++) {
        if (why)
            gr_str_printf(why, "%s\n", d.messages[i].text);
        else
            print_message("%s\n", d.messages[i].text);
    }
    gr_diag_release(&d);
    free(text);
    return g;
}

/* NULL: it does not fit. What comes out was proven. */
static gr_planned *plan(const setup *s, const gr_graph *g)
{
    return plan_or_null(g, s->policy, s->budget, s->hosts);
}

static const gr_planned *role_of(const gr_planned *p, uint32_t c)
{
    return c ? p->more[c - 1] : p;
}

static bool proven(const gr_plan *plan, const gr_planned *p, gr_str *why)
{
    const gr_tasks *tasks[8];
    gr_diag d;
    gr_diag_init(&d);
    for (uint32_t c = 0; c <= p->n_more; c++) tasks[c] = role_of(p, c)->tasks;
    bool ok = gr_plan_verify_all(plan, tasks, &d) == GR_OK;
    if (why) why->len = 0;
    for (size_t i = 0; why && i < d.n; i++) gr_str_printf(why, "%s\n", d.messages[i].text);
    gr_diag_release(&d);
    return ok;
}

/* ---- ranks ----------------------------------------------------------------------------------------------
 */

static void test_pools_take_their_ranks(void **state)
{
    (void)state;
    static const struct {
        const char *pools;
        uint32_t ranks, hosts;
        const char *roles; /* by role; behind /, the ranks of a node, of several that are even */
    } cases[] = {
        {"train: {share: 1}, rollout: {share: 1}, ref: {with: train}, critic: {with: ref}", 8, 1, "0-3 4-7"},
        {"train: {share: 3}, rollout: {share: 1}, ref: {with: train}, critic: {with: ref}", 8, 1, "0-5 6-7"},
        {"rollout: {share: 1}, train: {ranks: 3}, ref: {with: train}, critic: {with: ref}", 8, 1, "0-2 3-7"},
        {"train: {share: 1}, rollout: {at: \"0,5-6\"}, ref: {with: train}, critic: {with: ref}", 8, 1,
         "0,5-6 1-4,7"},
        {"train: {at: 4-7}, rollout: {at: 0-3}, ref: {at: 4-7}, critic: {with: rollout}", 8, 1, "0-3 4-7"},
        {"train: {ranks: 2x2}, rollout: {share: 1}, ref: {with: train}, critic: {with: ref}", 8, 2,
         "0-1,4-5/2 2-3,6-7/2"},
        {"train: {at: \"0,4\"}, rollout: {share: 1}, ref: {with: train}, critic: {with: ref}", 8, 2,
         "0,4/1 1-3,5-7/3"},
        {"train: {at: \"0-2,4\"}, rollout: {share: 1}, ref: {with: train}, critic: {with: ref}", 8, 2,
         "0-2,4 3,5-7"},
        /* a rank of each host is gone: the first host with three left is the second */
        {"train: {at: \"0-1\"}, rollout: {share: 1}, ref: {ranks: 3, same_node: true}, critic: {with: train}",
         8, 2, "0-1 2-3,7 4-6"},
        {"train: {share: 1}, rollout: {share: 1, same_node: true}, ref: {with: train}, critic: {ranks: 1}", 8,
         2, "0 1-3 4-7"},
        {"train: {ranks: 2}, rollout: {ranks: 4}, ref: {with: train}, critic: {share: 9}", 1, 1, "0"},
    };
    for (size_t i = 0; i < GR_LEN(cases); i++) {
        setup s = {.pools = cases[i].pools, .ranks = cases[i].ranks, .hosts = cases[i].hosts};
        gr_graph *g = load(&s, NULL);
        gr_str text = {0};
        assert_non_null(g);
        for (size_t c = 0; c < g->n_roles; c++) {
            gr_str_printf(&text, "%s%s", c ? " " : "", g->roles[c].text);
            if (g->roles[c].node) gr_str_printf(&text, "/%u", g->roles[c].node);
        }
        assert_string_equal(text.text, cases[i].roles);
        gr_str_release(&text);
        gr_graph_free(g);
    }
}

static void test_pools_that_cannot_be_are_refused(void **state)
{
    (void)state;
    static const struct {
        const char *pools;
        uint32_t ranks, hosts;
        const char *why;
    } cases[] = {
        {"train: {at: 0-8}, rollout: {with: train}, ref: {with: train}, critic: {with: train}", 8, 1,
         "pool 'train' has rank 8, which does not exist: there are 8, from 0"},
        {"train: {at: 0-4}, rollout: {at: 4-7}, ref: {with: train}, critic: {with: train}", 8, 1,
         "pool 'rollout' and pool 'train' both have rank 4, but are not the same ranks"},
        {"train: {at: 3-1}, rollout: {with: train}, ref: {with: train}, critic: {with: train}", 8, 1,
         "pool 'train' has ranks '3-1', which are no list"},
        {"train: {ranks: 5}, rollout: {ranks: 4}, ref: {with: train}, critic: {with: train}", 8, 1,
         "pool 'rollout' needs 4 ranks; of 8 there are 3 free"},
        {"train: {ranks: 2x4}, rollout: {share: 1}, ref: {with: train}, critic: {with: train}", 8, 1,
         "pool 'train' needs 4 ranks on each of 2 hosts; 1 of 1 hosts have so many free"},
        {"train: {ranks: 5, same_node: true}, rollout: {share: 1}, ref: {with: train}, critic: {with: train}",
         8, 2, "pool 'train' needs 5 ranks of one host; no host of 4 devices has so many free"},
        {"train: {at: 3-4, same_node: true}, rollout: {share: 1}, ref: {with: train}, critic: {with: train}",
         8, 2, "pool 'train' has ranks of several hosts, though 'same_node'"},
        {"train: {share: 1}, rollout: {share: 9}, ref: {with: train}, critic: {with: train}", 4, 1,
         "pool 'train' has 1 of 10 shares of 4 ranks, which is none"},
        {"train: {ranks: 2}, rollout: {ranks: 1}, ref: {with: train}, critic: {with: train}", 4, 1,
         "1 of 4 ranks are in no pool, such as rank 3"},
        {"train: {share: 1, models: 2}, rollout: {with: train}, ref: {with: train}, critic: {share: 1, "
         "models: 1}, "
         "x: {with: train, models: 1}",
         4, 1, "the ranks of pool 'x' hold 2 models (actor, ref), and 'models' allows 1"},
        {"train: {share: 1}, rollout: {with: train}, ref: {with: train}, critic: {with: train}, spare: "
         "{ranks: 1}",
         4, 1, "no node of an iteration runs on the ranks of pool 'spare'"},
    };
    for (size_t i = 0; i < GR_LEN(cases); i++) {
        setup s = {.pools = cases[i].pools, .ranks = cases[i].ranks, .hosts = cases[i].hosts};
        gr_str why = {0};
        gr_graph *g = load(&s, &why);
        if (g || !strstr(why.text, cases[i].why))
            fail_msg("%s: not '%s' but '%s'", cases[i].pools, cases[i].why, why.text ? why.text : "nothing");
        gr_str_release(&why);
    }
}

static void test_nodes_run_beside_what_they_read(void **state)
{
    (void)state;
    static const char *const want[][2] = {
        {"prompts", "rollout"}, {"rollout", "rollout"}, {"reward", "rollout"},       {"old", "train"},
        {"ref_logprob", "ref"}, {"values", "critic"},   {"returns", "ref"},          {"advantage", "ref"},
        {"update", "train"},    {"vp", "rollout"},      {"update_critic", "critic"}, {"vs", "rollout"},
    };
    setup s = {.pools = split, .ranks = 7, .more = validation};
    gr_graph *g = load(&s, NULL);
    assert_non_null(g);
    assert_int_equal(g->n_roles, 4);
    for (size_t i = 0; i < GR_LEN(want); i++) {
        const gr_node *n = gr_graph_node(g, want[i][0]);
        const char *on = n->placement.pool->name;
        /* what reads two pools' values is beside the later node */
        if (!strcmp(want[i][0], "advantage"))
            assert_true(!strcmp(on, "ref") || !strcmp(on, "critic"));
        else if (strcmp(on, want[i][1]))
            fail_msg("%s runs on %s", want[i][0], on);
    }
    /* each role sees its own part of the batch */
    for (size_t c = 0; c < g->n_roles; c++) {
        assert_int_equal(g->views[c]->ranks, g->roles[c].n);
        assert_int_equal(g->views[c]->n_nodes, g->n_nodes);
    }
    gr_graph_free(g);
}

/* ---- plans ----------------------------------------------------------------------------------------------
 */

static uint64_t held(const gr_plan *p, const char *part)
{
    uint64_t sum = 0;
    for (uint32_t e = 0; e < p->n_ledger; e++)
        if (strstr(p->ledger[e].what, part)) sum += p->ledger[e].bytes;
    return sum;
}

static uint64_t moved_by(const gr_plan *p, gr_step_kind kind, const char *part)
{
    uint64_t sum = 0;
    for (uint32_t i = 0; i < p->paths[GR_PATH_STEADY].n; i++) {
        const gr_step *s = &p->paths[GR_PATH_STEADY].steps[i];
        if (s->kind == kind && strstr(s->what, part)) sum += s->bytes;
    }
    return sum;
}

static uint64_t weights_of(const gr_graph *g, const char *model)
{
    const gr_model *m = gr_graph_model(g, model);
    uint64_t sum = 0;
    for (uint32_t b = 0; b < gr_model_buckets(&m->shape); b++) sum += gr_bucket_elems(&m->shape, b) * 4;
    return sum;
}

/* By hand: ref 1 rank, critic 2, train 2 and rollout 2 of the 4 left; every receiving rank gets all weights.
 */
static void test_each_role_holds_its_own_and_weights_cross_once(void **state)
{
    (void)state;
    setup s = {.pools = split, .ranks = 7};
    gr_graph *g = load(&s, NULL);
    gr_planned *p = plan(&s, g);
    assert_non_null(p);
    assert_int_equal(p->plan->n_more, 3);
    const gr_plan *ref = p->plan, *critic = gr_plan_role(p->plan, 1), *train = gr_plan_role(p->plan, 2),
                  *rollout = gr_plan_role(p->plan, 3);
    assert_string_equal(ref->ranks, "0");
    assert_string_equal(critic->ranks, "1-2");
    assert_string_equal(train->pools, "train");
    assert_string_equal(rollout->pools, "rollout");
    assert_int_equal(gr_plan_all_ranks(p->plan), 7);
    assert_true(held(train, "actor.state") > 0 && held(critic, "critic.state") > 0);
    assert_int_equal(held(ref, ".state") + held(rollout, ".state") + held(train, "critic."), 0);
    assert_int_equal(held(critic, "actor.") + held(rollout, "actor.params") + held(ref, "actor."), 0);
    assert_true(held(ref, "ref.params") > 0 && held(rollout, "actor.rollout") > 0);
    for (uint32_t c = 0; c <= p->n_more; c++)
        assert_int_equal(gr_placed(role_of(p, c)->tasks, gr_graph_model(g, "actor"))->weights,
                         c == 2 ? GR_SPREAD_WHOLE : GR_SPREAD_AWAY);
    assert_int_equal(moved_by(train, GR_STEP_SEND, "actor.params"), 2 * weights_of(g, "actor"));
    assert_int_equal(moved_by(rollout, GR_STEP_RECV, "actor.rollout"), 2 * weights_of(g, "actor"));
    assert_int_equal(moved_by(critic, GR_STEP_SEND, "critic.params"), 0);
    /* the rows go to all three others, values and log-probs to where they are read */
    assert_true(moved_by(rollout, GR_STEP_SEND, "to.0.rollout.rows") > 0);
    assert_true(moved_by(rollout, GR_STEP_SEND, "to.1.rollout.rows") > 0);
    assert_true(moved_by(rollout, GR_STEP_SEND, "to.2.rollout.rows") > 0);
    assert_int_equal(moved_by(critic, GR_STEP_RECV, "ref_logprob"), 0); /* `returns` read it, beside it */
    assert_true(moved_by(critic, GR_STEP_RECV, "returns") > 0);
    gr_planned_free(p);
    gr_graph_free(g);
}

/* Any interleaving of the lanes of any role, under several budgets and policies. */
static void test_plans_of_roles_run_in_any_interleaving(void **state)
{
    (void)state;
    static const char *const pools[] = {colocated, split, pairs};
    uint32_t plans = 0;
    const int next = getenv("GR_SLOW") ? 2 : GR_N_POLICIES;
    for (size_t i = 0; i < GR_LEN(pools); i++)
        for (int lag = 0; lag < 2; lag++)
            for (int policy = (int)(2 * i + (size_t)lag) % next; policy < GR_N_POLICIES; policy += next) {
                setup s = {.pools = pools[i],
                           .lag = lag ? ", lag: 1" : NULL,
                           .more = policy ? validation : NULL,
                           .ranks = 7 + (uint32_t)policy,
                           .policy = (gr_policy)policy};
                gr_graph *g = load(&s, NULL);
                for (int tight = 0; tight < 2; tight++) {
                    gr_planned *p = plan(&s, g);
                    if (!p) break;
                    for (uint32_t c = 0; c <= p->n_more; c++) {
                        char what[128];
                        const char *why =
                            simulate(role_of(p, c)->plan, role_of(p, c)->tasks, plans + c, NULL, false, what);
                        if (why) fail_msg("%s, role %u: %s: %s", s.pools, c, why, what);
                    }
                    plans++;
                    s.budget = machine().overhead_bytes +
                               (gr_plan_peak(p->plan) - machine().overhead_bytes) * 95 / 100;
                    gr_planned_free(p);
                }
                gr_graph_free(g);
            }
    print_message("%u plans\n", plans);
    assert_true(plans > (getenv("GR_SLOW") ? 12 : 8));
}

/* With `lag` the rollout of the next iteration and the training of this one run at once: two copies of the
 * weights, and the time of the slower pool instead of their sum. */
static void test_lag_overlaps_rollout_and_training(void **state)
{
    (void)state;
    uint64_t ns[2], own[2];
    const char *numerics[2];
    gr_planned *kept[2];
    gr_graph *graphs[2];
    for (int lag = 0; lag < 2; lag++) {
        setup s = {.pools = pairs, .lag = lag ? ", lag: 1" : NULL, .ranks = 4};
        graphs[lag] = load(&s, NULL);
        gr_planned *p = kept[lag] = plan(&s, graphs[lag]);
        assert_non_null(p);
        ns[lag] = p->plan->ns;
        own[lag] = GR_MAX(p->plan->own_ns, p->plan->more[0]->own_ns);
        numerics[lag] = p->plan->numerics;
        const char *copy = lag ? "actor.lagged." : "actor.rollout.";
        assert_true(held(p->plan, "actor.params.") > 0 && held(p->plan->more[0], copy) > 0);
    }
    assert_true(ns[1] < ns[0]);
    assert_true(ns[1] >= own[1] && ns[1] < own[1] + own[1] / 20);
    assert_true(ns[0] > own[0]);
    assert_string_not_equal(numerics[0], numerics[1]);
    for (int lag = 0; lag < 2; lag++) {
        gr_planned_free(kept[lag]);
        gr_graph_free(graphs[lag]);
    }
}

/* On one role both copies lie side by side, on one rank too, and the older one is saved. */
static void test_lag_on_one_role_keeps_both_copies(void **state)
{
    (void)state;
    for (uint32_t ranks = 1; ranks < 5; ranks += 3) {
        setup s = {.pools = colocated, .lag = ", lag: 1", .ranks = ranks};
        gr_graph *g = load(&s, NULL);
        gr_planned *p = plan(&s, g);
        assert_non_null(p);
        assert_int_equal(p->plan->n_more, 0);
        assert_int_equal(held(p->plan, "actor.lagged."), held(p->plan, "actor.params."));
        uint32_t saved = 0;
        const gr_path *checkpoint = &p->plan->paths[GR_PATH_CHECKPOINT];
        for (uint32_t i = 0; i < checkpoint->n; i++)
            saved += strstr(checkpoint->steps[i].what, ".lagged.") != NULL;
        assert_int_equal(saved, gr_model_buckets(&gr_graph_model(g, "actor")->shape));
        gr_planned_free(p);
        gr_graph_free(g);
    }
}

/* ---- mutants --------------------------------------------------------------------------------------------
 */

static gr_step *transfer(gr_plan *p, uint32_t *seed, gr_step_kind kind, uint32_t *role)
{
    for (;;) {
        *seed = *seed * 1664525 + 1013904223;
        *role = (*seed >> 8) % (p->n_more + 1);
        gr_path *path = &gr_plan_role(p, *role)->paths[GR_PATH_STEADY];
        gr_step *s = &path->steps[(*seed >> 16) % path->n];
        if (s->kind == kind) return s;
    }
}

static void test_broken_transfers_are_refused(void **state)
{
    (void)state;
    setup s = {.pools = split, .ranks = 7, .more = validation};
    gr_graph *g = load(&s, NULL);
    gr_planned *p = plan(&s, g);
    assert_non_null(p);
    gr_str why = {0};
    uint32_t seed = 1, tried = 0;
    for (int i = 0; i < 160; i++) {
        gr_plan *bad = copy_plan(p->plan);
        uint32_t role;
        int how = i % 8;
        gr_step *x = transfer(bad, &seed, how < 4 && how != 1 ? GR_STEP_RECV : GR_STEP_SEND, &role);
        gr_plan *own = gr_plan_role(bad, role);
        gr_path *path = &own->paths[GR_PATH_STEADY];
        uint32_t at = (uint32_t)(x - path->steps);
        const char *rule = NULL;
        if (how == 0) x->meets.step++, rule = "crossings";
        if (how == 1) x->bytes += GR_ALIGN, rule = "collectives";
        if (how == 2) x->meets.role = (x->meets.role + 1) % 4, rule = "crossings";
        if (how == 3) x->kind = GR_STEP_SEND;
        if (how == 4) x->lane = GR_LANE_H2D;
        if (how == 5) delete_step(own, GR_PATH_STEADY, at);
        if (how == 6) double_step(own, GR_PATH_STEADY, at);
        if (how == 7) swap_steps(own, GR_PATH_STEADY, at, at + 1 < path->n ? at + 1 : at - 1);
        bool ok = proven(bad, p, &why);
        if (ok) fail_msg("mutant %d of role %u step %u is accepted", how, role, at);
        if (rule && !strstr(why.text, rule))
            fail_msg("mutant %d: not because of '%s': %s", how, rule, why.text);
        gr_plan_free(bad);
        tried++;
    }
    gr_plan *bad = copy_plan(p->plan);
    assert_true(proven(bad, p, NULL)); /* read back as written */
    bad->more[0]->ranks = "1,3";
    assert_false(proven(bad, p, &why));
    assert_non_null(strstr(why.text, "'ranks'"));
    gr_plan_free(bad);
    print_message("%u mutants\n", tried);
    gr_str_release(&why);
    gr_planned_free(p);
    gr_graph_free(g);
}

/* Deleted, doubled, swapped or shifted at random, anywhere in any role: what the verifier of all roles
 * lets through must still run in any interleaving, role by role. */
static void test_random_mutants_of_roles(void **state)
{
    (void)state;
    setup s = {.pools = pairs, .lag = ", lag: 1", .ranks = 4};
    gr_graph *g = load(&s, NULL);
    gr_planned *p = plan(&s, g);
    assert_non_null(p);
    uint32_t seed = 7, refused = 0, harmless = 0;
    const int mutants = getenv("GR_SLOW") ? 300 : 120;
    for (int i = 0; i < mutants; i++) {
        gr_plan *bad = copy_plan(p->plan);
        seed = seed * 1664525 + 1013904223;
        uint32_t role = (seed >> 9) % 2;
        gr_plan *own = gr_plan_role(bad, role);
        gr_path *path = &own->paths[GR_PATH_STEADY];
        uint32_t at = (seed >> 12) % (path->n - 1);
        gr_entry *e = &own->ledger[(seed >> 12) % own->n_ledger];
        if (i % 6 == 0) delete_step(own, GR_PATH_STEADY, at);
        if (i % 6 == 1) double_step(own, GR_PATH_STEADY, at);
        if (i % 6 == 2) swap_steps(own, GR_PATH_STEADY, at, at + 1);
        if (i % 6 == 3) e->offset += GR_ALIGN;
        if (i % 6 == 4) e->first = e->first ? e->first - 1 : 1;
        if (i % 6 == 5 && path->steps[at].n_after) path->steps[at].n_after--;
        if (!proven(bad, p, NULL)) {
            refused++;
        } else {
            char what[128];
            const char *why = simulate(own, role_of(p, role)->tasks, seed, NULL, false, what);
            if (why) fail_msg("mutant %d of role %u is accepted: %s: %s", i, role, why, what);
            harmless++;
        }
        gr_plan_free(bad);
    }
    print_message("%u refused, %u harmless\n", refused, harmless);
    assert_true(3 * refused > 2 * (uint32_t)mutants);
    gr_planned_free(p);
    gr_graph_free(g);
}

/* Two roles that send each other something, each its own first or both in one order. */
static gr_tasks *one_side(uint32_t self, bool first)
{
    gr_tasks *g = gr_tasks_new();
    uint32_t other = 1 - self;
    gr_tasks_node(g, "a", GR_LANE_COMPUTE, false);
    uint32_t mine = gr_tasks_temp(g, GR_CAT_COLUMNS, 256, "x%u", self),
             theirs = gr_tasks_temp(g, GR_CAT_COLUMNS, 256, "x%u", other);
    gr_tasks_run(g, 0, 0, (gr_use[]){{mine, GR_WRITE}}, 1, "make");
    for (int k = 0; k < 2; k++) {
        bool sends = first == (k == 0);
        gr_task *w = gr_tasks_run(g, 0, 0, (gr_use[]){{sends ? mine : theirs, sends ? GR_READ : GR_WRITE}}, 1,
                                  sends ? "to" : "from");
        w->kind = sends ? GR_STEP_SEND : GR_STEP_RECV;
        w->lane = GR_LANE_COMM;
        w->comm.peer = other;
        w->comm.channel = sends ? self : other;
        w->comm.moved = 256;
        w->comm.rate = 1e9;
    }
    gr_tasks_run(g, 0, 0, (gr_use[]){{theirs, GR_READ}}, 1, "read");
    return g;
}

static void test_roles_that_wait_for_each_other_are_refused(void **state)
{
    (void)state;
    for (int both = 0; both < 2; both++) {
        const gr_tasks *g[] = {one_side(0, true), one_side(1, both)};
        gr_plan *p = still_plan(g[0], "0"), *more = still_plan(g[1], "1");
        gr_diag d;
        gr_diag_init(&d);
        p->pools = more->pools = "x";
        p->more = gr_arena_alloc(p->arena, sizeof(*p->more));
        p->more[p->n_more++] = more;
        gr_roles_link(p, g);
        gr_status st = gr_plan_verify_all(p, g, &d);
        assert_int_equal(st, both ? GR_E_INVALID : GR_OK);
        if (both) assert_non_null(strstr(d.messages[0].text, "'circles'"));
        gr_diag_release(&d);
        gr_plan_free(p);
        gr_tasks_free((gr_tasks *)(uintptr_t)g[0]);
        gr_tasks_free((gr_tasks *)(uintptr_t)g[1]);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_pools_take_their_ranks),
        cmocka_unit_test(test_pools_that_cannot_be_are_refused),
        cmocka_unit_test(test_nodes_run_beside_what_they_read),
        cmocka_unit_test(test_each_role_holds_its_own_and_weights_cross_once),
        cmocka_unit_test(test_plans_of_roles_run_in_any_interleaving),
        cmocka_unit_test(test_lag_overlaps_rollout_and_training),
        cmocka_unit_test(test_lag_on_one_role_keeps_both_copies),
        cmocka_unit_test(test_broken_transfers_are_refused),
        cmocka_unit_test(test_random_mutants_of_roles),
        cmocka_unit_test(test_roles_that_wait_for_each_other_are_refused),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
