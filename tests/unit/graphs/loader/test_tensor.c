/* Plans of models in slices: what a rank holds and what reaches it, that every plan runs in any interleaving
 * of its lanes, and what is refused. */
#include "tests/unit/all_ways.h"
#include "ops/parallel/reshard.h"
#include "ops/parallel/sharding.h"
#include "tests/unit/plan_edit.h"
#include "tests/unit/parsed.h"
#include "scheduler/cost/cost.h"

static const char *const config_text =
    "{\"model_type\": \"%s\", \"vocab_size\": 64, \"hidden_size\": 24, \"num_hidden_layers\": 3, "
    "\"rms_norm_eps\": 1e-06,"
    "\"max_position_embeddings\": 256, \"eos_token_id\": 2, \"intermediate_size\": 40, "
    "\"num_attention_heads\": 8,"
    "\"num_key_value_heads\": 4, \"head_dim\": 6, \"rope_theta\": 10000.0, \"tie_word_embeddings\": %s}";
static const char *const graph_text =
    "graph: slices\n"
    "models:\n"
    "  actor: {checkpoint: %s, train: {lr: 0.01}%s}\n"
    "  ref: {checkpoint: %s}\n"
    "nodes:\n"
    "  prompts: {op: prompts, file: none.jsonl, batch: 8, max_tokens: 3, template: '{q}'}\n"
    "  rollout: {op: generate, model: actor, prompts: prompts, samples: 2, max_tokens: 3, kv_blocks: 4%s}\n"
    "  reward: {op: reward, of: rollout, answer: prompts.a, rule: {extract: '(.)', compare: string}}\n"
    "  old: {op: logprob, model: actor, of: rollout%s}\n"
    "  ref_logprob: {op: logprob, model: ref, of: rollout}\n"
    "  update: {op: update, model: actor, of: rollout, mini_batch: 4, loss: \"token_mean(reward * (logprob - "
    "old) + "
    "ref_logprob * 0)\"}\n"
    "run: {steps: 2}\n%s";

typedef struct config {
    const char *type, *model, *rollout, *old, *more;
    bool untied;
    uint32_t ranks, hosts;
    gr_policy policy;
    uint64_t budget; /* 0: all there is */
} config;

static const char *or_none(const char *text)
{
    return text ? text : "";
}

static gr_status try_load(gr_graph **g, const config *c, gr_diag *d)
{
    char *described = gr_printf(config_text, c->type ? c->type : "qwen3", c->untied ? "false" : "true"),
         *path = put_config(described);
    char *text = gr_printf(graph_text, path, or_none(c->model), path, or_none(c->rollout), or_none(c->old),
                           or_none(c->more));
    free(described);
    free(path);
    return parse_text(g, text, c->ranks, c->hosts, d);
}

static gr_graph *load(const config *c)
{
    gr_graph *g = NULL;
    gr_diag d;
    gr_diag_init(&d);
    assert_loaded(try_load(&g, c, &d), &d);
    return g;
}

static gr_planned *plan(const config *c, const gr_graph *g)
{
    return plan_or_null(g, c->policy, c->budget, GR_MAX(c->hosts, 1u));
}

static uint64_t held(const gr_plan *p, const char *prefix)
{
    uint64_t sum = 0;
    for (uint32_t e = 0; e < p->n_ledger; e++)
        if (p->ledger[e].place == GR_DEVICE && !strncmp(p->ledger[e].what, prefix, strlen(prefix)))
            sum += p->ledger[e].bytes;
    return sum;
}

static const gr_step *step_named(const gr_plan *p, const char *what)
{
    for (uint32_t i = 0; i < p->paths[GR_PATH_STEADY].n; i++)
        if (!strcmp(p->paths[GR_PATH_STEADY].steps[i].what, what)) return &p->paths[GR_PATH_STEADY].steps[i];
    return NULL;
}

static uint64_t bytes_of(uint64_t elems)
{
    return gr_align(elems * sizeof(float), GR_ALIGN);
}

/* By hand, of a layer of hidden 24, 8 heads of 6 on 4 KV heads, width 40: q 48 x 24, k and v 24 x 24, o 24 x
 * 48, gate, up, down 40 x 24, each rounded up to 64 elements where a tensor ends, and all to 4096; two norms
 * of 24, and two of 6 for q and k. */
static uint64_t layer_elems(uint64_t parts)
{
    const uint64_t n[] = {
        24, (48 + 2 * 24) * 24 / parts, 6, 6, 24 * 48 / parts, 24, 2 * 40 * 24 / parts, 40 * 24 / parts};
    uint64_t sum = 0;
    for (size_t i = 0; i < GR_LEN(n); i++) sum += gr_align(n[i], 64);
    return gr_align(sum, 4096);
}

static void test_a_rank_holds_its_slices(void **state)
{
    (void)state;
    for (uint32_t parts = 1; parts <= 4; parts *= 2) {
        char *keys = gr_printf(", tensor: %u, residency: {rollout_weights: keep}", parts);
        config c = {.model = keys, .ranks = 4};
        gr_graph *g = load(&c);
        gr_planned *p = plan(&c, g);
        assert_non_null(p);
        const uint64_t embed = 4096, last = 4096; /* of 64 x 24, and the final norm */
        assert_int_equal(held(p->plan, "actor.rollout."),
                         bytes_of(embed) + bytes_of(last) + 3 * bytes_of(layer_elems(parts)));
        /* keys and values of 4 blocks of 16 positions, in 3 layers; of a head 16 wide on this device */
        assert_int_equal(held(p->plan, "rollout.kv"), 4 * 3 * (4 / parts) * 2 * 16 * 16 * sizeof(float));
        const gr_step *s = step_named(p->plan, "rollout.sync.1");
        assert_non_null(s);
        assert_int_equal(s->bytes,
                         layer_elems(parts) * sizeof(float) * 3 / 4); /* three of four are others' */
        const uint64_t out = gr_shard_elems(layer_elems(1), 4) + (parts - 1) * (2 * 24 + 2 * 6);
        assert_int_equal(held(p->plan, "rollout.exchange.2"),
                         parts > 1 ? bytes_of(out + layer_elems(parts)) : 0);
        gr_planned_free(p);
        gr_graph_free(g);
        free(keys);
    }
}

/* Beside whole weights, the embedding and the last bucket are the same bytes; layers are cut on the rank. */
static void test_what_is_the_same_bytes_is_held_once(void **state)
{
    (void)state;
    config c = {.model = ", tensor: 2", .ranks = 4};
    gr_graph *g = load(&c);
    gr_planned *p = plan(&c, g);
    assert_non_null(p);
    assert_int_equal(held(p->plan, "actor.params."), 2 * bytes_of(4096) + 3 * bytes_of(layer_elems(1)));
    assert_int_equal(held(p->plan, "actor.rollout."), 3 * bytes_of(layer_elems(2)));
    assert_null(step_named(p->plan, "rollout.sync.0"));
    assert_int_equal(step_named(p->plan, "rollout.sync.1")->bytes, 0);
    assert_null(step_named(p->plan, "rollout.exchange.1"));
    gr_planned_free(p);
    gr_graph_free(g);
}

/* The older copy lives on, in slices. */
static void test_an_older_copy_is_in_slices(void **state)
{
    (void)state;
    config c = {
        .model = ", tensor: 2, residency: {rollout_weights: keep}", .rollout = ", lag: 1", .ranks = 4};
    gr_graph *g = load(&c);
    gr_planned *p = plan(&c, g);
    assert_non_null(p);
    assert_int_equal(held(p->plan, "actor.lagged."), 2 * bytes_of(4096) + 3 * bytes_of(layer_elems(2)));
    assert_int_equal(held(p->plan, "actor.rollout."), 0);
    assert_int_equal(step_named(p->plan, "rollout.lag.1")->bytes, layer_elems(2) * sizeof(float) * 3 / 4);
    gr_planned_free(p);
    gr_graph_free(g);
}

static char *json_of(const config *c)
{
    gr_graph *g = load(c);
    gr_planned *p = plan(c, g);
    gr_str text = {0};
    assert_non_null(p);
    gr_plan_write_json(p->plan, &text);
    gr_planned_free(p);
    gr_graph_free(g);
    return text.text;
}

/* One rank has all slices; a degree of 1 is none. */
static void test_where_nothing_is_cut_plans_are_the_same(void **state)
{
    (void)state;
    config none = {.ranks = 4}, one = {.ranks = 4, .model = ", tensor: 1"};
    char *a = json_of(&none), *b = json_of(&one);
    assert_string_equal(a, b);
    free(a), free(b);
    config alone = {.ranks = 1}, cut = {.ranks = 1, .model = ", tensor: 4"};
    gr_graph *g = load(&alone), *h = load(&cut);
    gr_planned *p = plan(&alone, g), *q = plan(&cut, h);
    assert_string_equal(p->plan->numerics, q->plan->numerics);
    assert_int_equal(p->plan->peak_bytes, q->plan->peak_bytes);
    gr_planned_free(p), gr_planned_free(q);
    gr_graph_free(g), gr_graph_free(h);
    config two = {.ranks = 4, .model = ", tensor: 2"};
    g = load(&none), h = load(&two);
    p = plan(&none, g), q = plan(&two, h);
    assert_string_not_equal(p->plan->numerics, q->plan->numerics);
    gr_planned_free(p), gr_planned_free(q);
    gr_graph_free(g), gr_graph_free(h);
}

/* Sums are in the time of a step: two a layer, of all its tokens. */
static void test_sums_take_time(void **state)
{
    (void)state;
    config c = {.model = ", tensor: 4", .ranks = 4};
    gr_graph *g = load(&c);
    gr_planned *p = plan(&c, g);
    gr_hardware hw = machine();
    uint32_t found = 0;
    for (size_t i = 0; i < p->tasks->n_tasks; i++) {
        gr_task w = p->tasks->task[i];
        if (strcmp(w.what, "rollout.layer.1")) continue;
        found++;
        assert_int_equal(w.comm.peers, 4);
        const uint64_t with = gr_task_ns(&w, &hw),
                       least = 2 * hw.sum_ns + (uint64_t)(1e9 * w.comm.summed / hw.link);
        const double tokens =
            w.cost.flops / (2 * 24 * 6 * (2 * 2 + 2 * 1) + 6 * 24 * 10); /* of products with the slice */
        assert_close(w.comm.summed, 2 * tokens * 24 * 4 * 2 * 3 / 4, 0, 1e-9);
        w.comm.sums = w.comm.summed = 0;
        assert_close((double)(with - gr_task_ns(&w, &hw)), (double)least, 2, 0);
    }
    assert_int_equal(found, 1);
    gr_planned_free(p);
    gr_graph_free(g);
}

static const char *const keys[] = {
    ", tensor: 2", ", tensor: 4, residency: {rollout_weights: keep}, shard: node",
    ", tensor: 2, residency: {rollout_weights: every_node, params: transition}, gather: layer",
    ", tensor: 4, residency: {rollout_weights: keep}, gather: whole"};

static void test_plans_of_slices_run_in_any_interleaving(void **state)
{
    (void)state;
    uint32_t plans = 0;
    const int next = getenv("GR_SLOW") ? 2 : GR_N_POLICIES;
    for (int k = 0; k < 4; k++)
        for (int policy = k % next; policy < GR_N_POLICIES; policy += next) {
            config c = {.model = keys[k],
                        .rollout = k > 1 ? ", lag: 1" : NULL,
                        .old = k % 2 ? ", weights: rollout" : NULL,
                        .untied = k > 1,
                        .hosts = k == 1 ? 2 : 0,
                        .ranks = 4u << k,
                        .policy = (gr_policy)policy};
            gr_graph *g = load(&c);
            run_all_ways(g, c.policy, c.budget, GR_MAX(c.hosts, 1u), or_none(c.model), &plans);
            gr_graph_free(g);
        }
    print_message("%u plans\n", plans);
    assert_true(plans > (getenv("GR_SLOW") ? 10u : 5u));
}

/* The steps that fill slices, taken away, on another lane, of other bytes, of another kind, without the
 * exchange's buffer or into one that is too small; and steps with sums on a lane of their own. */
static void test_a_slice_that_is_not_filled_is_refused(void **state)
{
    (void)state;
    uint32_t tried = 0;
    for (int k = 0; k < 4; k++) {
        config c = {.model = keys[k], .old = ", weights: rollout", .ranks = 8};
        gr_graph *g = load(&c);
        gr_planned *p = plan(&c, g);
        assert_non_null(p);
        for (uint32_t i = 0; i < p->plan->paths[GR_PATH_STEADY].n; i++) {
            const gr_step *own = &p->plan->paths[GR_PATH_STEADY].steps[i];
            const bool sums = own->kind == GR_STEP_RUN && own->node && strstr(own->what, ".layer.") &&
                              strncmp(own->what, "ref", 3);
            if (own->kind != GR_STEP_SYNC && !sums) continue;
            for (int how = 0; how < 6; how++) {
                gr_plan *bad = copy_plan(p->plan);
                gr_step *s = &bad->paths[GR_PATH_STEADY].steps[i];
                if (how == 0) delete_step(bad, GR_PATH_STEADY, i);
                if (how == 1) s->lane = sums ? GR_LANE_COMM : GR_LANE_COMPUTE;
                if (how == 2) s->bytes += sums ? 0 : GR_ALIGN;
                if (how == 3) s->kind = GR_STEP_GATHER;
                if (how == 4) s->n_writes--;
                if (how == 5) bad->ledger[s->writes[s->n_writes - 1]].bytes -= GR_ALIGN;
                if (!(sums && how == 2)) {
                    assert_false(accepted(bad, p->tasks, NULL));
                    tried++;
                }
                gr_plan_free(bad);
            }
        }
        gr_planned_free(p);
        gr_graph_free(g);
    }
    assert_true(tried > 100);
}

/* What a program itself gets wrong: peers that the ranks are not, or in a loop whose trips a rank counts
 * alone. */
static void test_peers_come_to_their_sums(void **state)
{
    (void)state;
    for (int how = 0; how < 3; how++) {
        gr_tasks *g = gr_tasks_new();
        g->ranks = how == 1 ? 6 : 4;
        gr_tasks_node(g, "around", GR_LANE_COMPUTE, false);
        uint32_t x = gr_tasks_temp(g, GR_CAT_ACTIVATIONS, 256, "x");
        gr_tasks_run(g, 0, 0, (gr_use[]){{x, GR_WRITE}}, 1, "begin");
        gr_tasks_loop(g, 0, 3, true, "loop");
        gr_tasks_run(g, 0, 0, (gr_use[]){{x, GR_UPDATE}}, 1, "trip");
        if (how < 2) gr_tasks_end(g);
        gr_tasks_node(g, "node", GR_LANE_COMPUTE, false);
        gr_tasks_run(g, 0, 0, (gr_use[]){{x, GR_UPDATE}}, 1, "layer")->comm.peers = 4;
        if (how == 2) gr_tasks_end(g);
        gr_plan *p = still_plan(g, how == 1 ? "0-5" : "0-3");
        gr_str why = {0};
        assert_int_equal(accepted(p, g, &why), how == 0);
        if (how == 1) assert_non_null(strstr(why.text, "of 4 ranks together, which 6 ranks are not"));
        if (how == 2) assert_non_null(strstr(why.text, "on whose trips the ranks do not agree"));
        gr_str_release(&why);
        gr_plan_free(p);
        gr_tasks_free(g);
    }
}

/* What cannot be is said with its place: models are in line 3, the rollout in line 7. */
static void test_what_is_refused(void **state)
{
    (void)state;
    static const struct {
        config c;
        uint32_t line;
        const char *text; /* NULL: it is fine */
    } cases[] = {
        {{.model = ", tensor: 2", .ranks = 2}, 0, NULL},
        {{.model = ", tensor: 4", .ranks = 2}, 3, "'tensor: 4' does not divide the 2 ranks of a host"},
        {{.model = ", tensor: 2", .ranks = 3}, 3, "'tensor: 2' does not divide the 3 ranks of a host"},
        {{.model = ", tensor: 4", .ranks = 8, .hosts = 4},
         3,
         "'tensor: 4' does not divide the 2 ranks of a host"},
        {{.model = ", tensor: 4", .ranks = 8, .hosts = 2}, 0, NULL},
        {{.model = ", tensor: 3", .ranks = 3}, 3, "'tensor: 3' does not divide its 8 heads"},
        {{.model = ", tensor: 8", .ranks = 8}, 3, "'tensor: 8' does not divide its 4 KV heads"},
        {{.model = ", tensor: 0", .ranks = 2}, 3, "'tensor' must be a whole number from 1 to 64"},
        {{.model = ", tensor: two", .ranks = 2}, 3, "'tensor' must be a whole number from 1 to 64"},
        {{.model = ", tensor: 2", .rollout = ", lag: 1", .ranks = 2}, 0, NULL},
        {{.model = ", tensor: 2", .ranks = 2, .more = "canonical: true\n"},
         3,
         "and canonical do not go together"},
        {{.model = ", tensor: 2", .ranks = 2, .more = "strict: true\n"}, 3, "and strict do not go together"},
        {{.old = ", weights: other", .ranks = 2}, 9, "'weights'"},
        {{.model = ", tensor: 2, pool: a",
          .ranks = 4,
          .rollout = ", pool: b",
          .old = ", pool: b",
          .more = "pools: {a: {share: 1}, b: {share: 1}}\n"},
         9,
         "'old' asks model 'actor', which another pool trains and which its ranks have in slices"},
        {{.model = ", tensor: 2, pool: a",
          .ranks = 6,
          .rollout = ", pool: b",
          .more = "pools: {a: {ranks: 3}, b: {share: 1}}\n"},
         3,
         "cannot group ranks 3-5, which run 'rollout'"},
        {{.model = ", tensor: 2, pool: a",
          .old = ", pool: b",
          .ranks = 4,
          .more = "pools: {a: {at: '0,2'}, b: {share: 1}}\n"},
         3,
         "cannot group ranks 0,2, which run 'rollout'"},
    };
    for (size_t i = 0; i < GR_LEN(cases); i++) {
        gr_graph *g = NULL;
        gr_diag d;
        gr_diag_init(&d);
        gr_status st = try_load(&g, &cases[i].c, &d);
        bool found = false;
        for (size_t k = 0; k < d.n; k++)
            found = found || (cases[i].text && strstr(d.messages[k].text, cases[i].text) &&
                              d.messages[k].at.line == cases[i].line);
        if (cases[i].text ? !found || !st : st != GR_OK)
            fail_msg("case %zu: %s", i, d.n ? d.messages[0].text : "nothing is said");
        gr_diag_release(&d);
        gr_graph_free(g);
    }
}

/* Ranks that others train for get whole layers, a buffer's worth at a time, and keep their slices; what is
 * not cut comes straight into the copy. Both roles are proven together. */
static void test_shards_of_what_another_pool_trains(void **state)
{
    (void)state;
    config c = {.model = ", tensor: 2, pool: a",
                .rollout = ", pool: b",
                .old = ", pool: b, weights: rollout",
                .more = "pools: {a: {share: 1}, b: {share: 2}}\n",
                .ranks = 6};
    gr_graph *g = load(&c);
    gr_planned *p = plan(&c, g);
    assert_non_null(p);
    assert_int_equal(p->plan->n_more, 1);
    const gr_plan *rollout = p->plan->more[0];
    assert_string_equal(rollout->ranks, "2-5");
    assert_int_equal(held(rollout, "actor.rollout."), 2 * bytes_of(4096) + 3 * bytes_of(layer_elems(2)));
    assert_int_equal(held(rollout, "rollout.received.2"), bytes_of(layer_elems(1)));
    assert_int_equal(held(rollout, "rollout.received.0"), 0);
    assert_int_equal(held(p->plan, "actor.rollout."), 0);
    const gr_step *sync = step_named(rollout, "rollout.sync.2"),
                  *recv = step_named(rollout, "rollout.from.0.rollout.received.2");
    assert_non_null(sync);
    assert_non_null(recv);
    assert_int_equal(sync->bytes, 0);
    assert_int_equal(recv->bytes, 4 * layer_elems(1) * sizeof(float)); /* of four receivers */
    const gr_tasks *tasks[] = {p->tasks, p->more[0]->tasks};
    for (int how = 0; how < 2; how++) {
        gr_plan *bad = copy_plan(p->plan);
        gr_path *path = &bad->more[0]->paths[GR_PATH_STEADY];
        for (uint32_t i = 0; i < path->n; i++) {
            if (strcmp(path->steps[i].what, how ? recv->what : sync->what)) continue;
            delete_step(bad->more[0], GR_PATH_STEADY, i);
            break;
        }
        gr_diag d;
        gr_diag_init(&d);
        assert_int_equal(gr_plan_verify_all(bad, tasks, &d), GR_E_INVALID);
        gr_diag_release(&d);
        gr_plan_free(bad);
    }
    gr_planned_free(p);
    gr_graph_free(g);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_a_rank_holds_its_slices),
        cmocka_unit_test(test_what_is_the_same_bytes_is_held_once),
        cmocka_unit_test(test_an_older_copy_is_in_slices),
        cmocka_unit_test(test_where_nothing_is_cut_plans_are_the_same),
        cmocka_unit_test(test_sums_take_time),
        cmocka_unit_test(test_plans_of_slices_run_in_any_interleaving),
        cmocka_unit_test(test_a_slice_that_is_not_filled_is_refused),
        cmocka_unit_test(test_peers_come_to_their_sums),
        cmocka_unit_test(test_shards_of_what_another_pool_trains),
        cmocka_unit_test(test_what_is_refused),
    };
    return cmocka_run_group_tests(tests, make_folder, remove_folder);
}
