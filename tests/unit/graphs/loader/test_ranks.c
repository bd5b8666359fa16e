/* Plans for many ranks: what a rank holds, and that every plan runs in any interleaving of its lanes. */
#include "tests/unit/all_ways.h"
#include "ops/parallel/sharding.h"
#include "tests/unit/plan_edit.h"
#include "scheduler/report/view.h"
#include "scheduler/cost/cost.h"
#include "graphs/loader/load.h"

static const char *const graph_text =
    "graph: ranks\n"
    "%s"
    "models:\n"
    "  actor: {checkpoint: tests/golden/model/%s, train: {lr: 0.01}%s}\n"
    "  ref: {checkpoint: tests/golden/model/%s}\n"
    "nodes:\n"
    "  prompts: {op: prompts, file: none.jsonl, batch: 4, max_tokens: 3, template: '{q}'}\n"
    "  rollout: {op: generate, model: actor, prompts: prompts, samples: 2, max_tokens: 3, kv_blocks: 4}\n"
    "  reward: {op: reward, of: rollout, answer: prompts.a, rule: {extract: '(.)', compare: string}}\n"
    "  old: {op: logprob, model: actor, of: rollout}\n"
    "  ref_logprob: {op: logprob, model: ref, of: rollout}\n"
    "  update: {op: update, model: actor, of: rollout, mini_batch: 2%s, loss: \"%s\"}\n"
    "run: {steps: 2%s}\n";
static const char *const plain_loss = "token_mean(reward * (logprob - old) + ref_logprob * 0)";
static const char *const batch_loss =
    "token_mean(where(choose(logprob < 0, 2), 0, reward * logprob)) + token_mean(old + ref_logprob)";

typedef struct config {
    const char *model, *keys, *loss;
    uint32_t ranks;
    gr_policy policy;
    uint64_t budget;                /* 0: all there is */
    uint32_t hosts;                 /* 0: one */
    const char *top, *update, *run; /* further keys of the graph, its update and its run */
} config;

static gr_graph *load(const config *c)
{
    char *text = gr_printf(graph_text, c->top ? c->top : "", c->model, c->keys ? c->keys : "", c->model,
                           c->update ? c->update : "", c->loss ? c->loss : plain_loss, c->run ? c->run : "");
    gr_load_options o = {.need_shapes = true, .ranks = c->ranks, .hosts = c->hosts};
    gr_graph *g = NULL;
    gr_diag d;
    gr_diag_init(&d);
    gr_status st = gr_graph_parse(&g, text, strlen(text), "ranks.yaml", &o, &d);
    for (size_t i = 0; st && i < d.n; i++) print_message("%s\n", d.messages[i].text);
    assert_int_equal(st, GR_OK);
    gr_diag_release(&d);
    free(text);
    return g;
}

/* NULL: it does not fit. What comes out was proven. */
static gr_planned *plan(const config *c, const gr_graph *g)
{
    return plan_or_null(g, c->policy, c->budget, GR_MAX(c->hosts, 1u));
}

static uint64_t held(const gr_plan *p, const char *prefix, gr_place place)
{
    uint64_t sum = 0;
    for (uint32_t e = 0; e < p->n_ledger; e++)
        if (p->ledger[e].place == place && !strncmp(p->ledger[e].what, prefix, strlen(prefix)))
            sum += p->ledger[e].bytes;
    return sum;
}

static uint32_t count(const gr_plan *p, gr_step_kind kind, const char *part)
{
    uint32_t n = 0;
    for (uint32_t i = 0; i < p->paths[GR_PATH_STEADY].n; i++)
        n += p->paths[GR_PATH_STEADY].steps[i].kind == kind &&
             strstr(p->paths[GR_PATH_STEADY].steps[i].what, part);
    return n;
}

static void test_ranks_hold_shards_of_what_training_changes(void **state)
{
    (void)state;
    for (uint32_t ranks = 2; ranks <= 1024; ranks *= 2) {
        config c = {.model = "qwen3", .ranks = ranks};
        gr_graph *g = load(&c);
        gr_planned *p = plan(&c, g);
        assert_non_null(p);
        const gr_model *m = gr_graph_model(g, "actor");
        uint64_t state_bytes = 0, weights = 0;
        for (uint32_t b = 0; b < gr_model_buckets(&m->shape); b++) {
            uint64_t n = gr_bucket_elems(&m->shape, b);
            state_bytes += gr_align(gr_shard_elems(n, ranks) * 8, GR_ALIGN); /* two moments */
            weights += gr_align(n * 4, GR_ALIGN);
        }
        assert_int_equal(held(p->plan, "actor.state", GR_DEVICE), state_bytes);
        assert_int_equal(held(p->plan, "actor.params", GR_DEVICE), weights); /* whole, and no second copy */
        assert_int_equal(held(p->plan, "actor.rollout", GR_DEVICE), 0);
        assert_int_equal(gr_plan_ranks(p->plan), ranks);
        uint32_t buckets = gr_model_buckets(&m->shape);
        assert_int_equal(count(p->plan, GR_STEP_REDUCE, "update.reduce."), buckets);
        assert_int_equal(count(p->plan, GR_STEP_GATHER, "update.gather."), buckets);
        gr_planned_free(p);
        gr_graph_free(g);
    }
}

/* By hand: of 4 ranks each has two eighths, rounded up to 64 elements; of 3 a third; and the shards of 2
 * ranks begin where those of 4 do. */
static void test_shards_are_made_of_eighths(void **state)
{
    (void)state;
    assert_int_equal(gr_shard_elems(1000, 1), 1000);
    assert_int_equal(gr_shard_elems(1000, 4), 2 * 128);
    assert_int_equal(gr_shard_elems(1000, 2), 4 * 128);
    assert_int_equal(gr_shard_elems(1000, 3), 384);
    assert_int_equal(gr_shard_elems(1024, 16), 64);
    assert_int_equal(gr_shard_elems(1025, 16), 128);
    for (uint64_t n = 1; n < 3000; n += 37)
        for (uint32_t ranks = 2; ranks <= 16; ranks++) assert_true(gr_shard_elems(n, ranks) * ranks >= n);
}

/* A collective of a model's shards is done by their group, and the sum over replicas by these. */
static void check_groups(const gr_tasks *p, gr_comm_group shards)
{
    for (size_t i = 0; i < p->n_tasks; i++) {
        const char *what = p->task[i].what;
        if (strncmp(what, "update.", 7)) continue;
        const bool is_shards = strstr(what, "gather.") || strstr(what, "reduce.");
        assert_int_equal(p->task[i].comm.group, is_shards                  ? shards
                                                : strstr(what, ".across.") ? GR_GROUP_REPLICAS
                                                                           : GR_GROUP_ALL);
    }
}

/* By hand: where the trained model lies on ranks, how each part of it does, and which elements a rank has. */
static void test_parts_lie_as_their_model_is_placed(void **state)
{
    (void)state;
    static const struct placed_case {
        const char *keys;
        uint32_t ranks, hosts;
        gr_placement is;
        gr_spread moments, copy; /* the second of a layer */
    } cases[] = {
        {"", 1, 1, {GR_SPREAD_WHOLE, GR_GROUP_ALL, 1, 0}, GR_SPREAD_WHOLE, GR_SPREAD_WHOLE},
        {"", 4, 1, {GR_SPREAD_WHOLE, GR_GROUP_ALL, 4, 0}, GR_SPREAD_FLAT, GR_SPREAD_WHOLE},
        {", residency: {rollout_weights: keep}",
         4,
         1,
         {GR_SPREAD_FLAT, GR_GROUP_ALL, 4, 0},
         GR_SPREAD_FLAT,
         GR_SPREAD_WHOLE},
        {", shard: node", 6, 2, {GR_SPREAD_WHOLE, GR_GROUP_NODE, 3, 0}, GR_SPREAD_FLAT, GR_SPREAD_WHOLE},
        {", shard: node", 2, 2, {GR_SPREAD_WHOLE, GR_GROUP_NODE, 1, 0}, GR_SPREAD_WHOLE, GR_SPREAD_WHOLE},
        {", shard: node, gather: layer",
         4,
         2,
         {GR_SPREAD_FLAT, GR_GROUP_NODE, 2, 0},
         GR_SPREAD_FLAT,
         GR_SPREAD_WHOLE},
        {", tensor: 2", 4, 1, {GR_SPREAD_WHOLE, GR_GROUP_ALL, 4, 0}, GR_SPREAD_FLAT, GR_SPREAD_SLICED},
    };
    for (const struct placed_case *x = cases; x < cases + GR_LEN(cases); x++) {
        config c = {.model = "qwen3", .keys = x->keys, .ranks = x->ranks, .hosts = x->hosts};
        gr_graph *g = load(&c);
        gr_planned *p = plan(&c, g);
        assert_non_null(p);
        const gr_model *m = gr_graph_model(g, "actor");
        const gr_placement *at = gr_placed(p->tasks, m);
        assert_int_equal(at->weights, x->is.weights);
        assert_int_equal(at->group, x->is.group);
        assert_int_equal(at->shards, x->is.shards);
        assert_int_equal(gr_part_spread(p->tasks, m, GR_PART_PARAMS, 1), x->is.weights);
        assert_int_equal(gr_part_spread(p->tasks, m, GR_PART_STATE, 1), x->moments);
        assert_int_equal(gr_part_spread(p->tasks, m, GR_PART_GRADS, 1), x->moments);
        assert_int_equal(gr_part_spread(p->tasks, m, GR_PART_ROLLOUT, 1), x->copy);
        assert_int_equal(gr_part_spread(p->tasks, m, GR_PART_ROLLOUT, 0), GR_SPREAD_WHOLE);
        for (uint32_t b = 0; b < gr_model_buckets(&m->shape); b++) {
            uint64_t end = 0;
            for (uint32_t r = 0; r < x->ranks; r++) {
                const gr_shard own = gr_shard_at(at, m, b, r);
                assert_int_equal(own.first, r % x->is.shards ? end : 0);
                end = own.first + own.n;
                if ((r + 1) % x->is.shards == 0) assert_int_equal(end, gr_bucket_elems(&m->shape, b));
            }
        }
        check_groups(p->tasks, x->is.group);
        gr_planned_free(p);
        gr_graph_free(g);
    }
}

/* What a node makes of weights that may be left out, or in a loop, the next one makes again. */
static void test_what_is_made_of_weights_is_made_once(void **state)
{
    (void)state;
    gr_placement at = {.shards = 1};
    const gr_model m = {.index = 0};
    gr_tasks *p = gr_tasks_new();
    p->placed = &at;
    p->n_placed = 1;
    gr_tasks_node(p, "a", GR_LANE_COMPUTE, true);
    assert_false(gr_part_is_made(p, &m, GR_MADE_COPY));
    gr_tasks_node(p, "b", GR_LANE_COMPUTE, false);
    gr_tasks_loop(p, 0, 1, false, "loop");
    assert_false(gr_part_is_made(p, &m, GR_MADE_COPY));
    gr_tasks_run(p, 0, 0, NULL, 0, "inner");
    gr_tasks_end(p);
    assert_false(gr_part_is_made(p, &m, GR_MADE_COPY));
    assert_true(gr_part_is_made(p, &m, GR_MADE_COPY));
    assert_false(gr_part_is_made(p, &m, GR_MADE_FP8));
    gr_tasks_validate(p, 1); /* another path, whose steps are run apart from these */
    assert_false(gr_part_is_made(p, &m, GR_MADE_COPY));
    gr_tasks_free(p);
}

/* By hand: asked for a rollout copy of its own, each rank holds a shard of the weights, the copy, and what is
 * gathered for at most three works at a time; through `whole`, all of it at once before the copy is filled.
 */
static void test_a_rollout_copy_beside_the_shards(void **state)
{
    (void)state;
    static const char *const keys[] = {", residency: {rollout_weights: keep}",
                                       ", residency: {rollout_weights: keep}, gather: whole",
                                       ", residency: {rollout_weights: keep}, gather: layer"};
    for (int i = 0; i < 3; i++) {
        config c = {.model = "llama", .keys = keys[i], .ranks = 4};
        gr_graph *g = load(&c);
        gr_planned *p = plan(&c, g);
        assert_non_null(p);
        const gr_model *m = gr_graph_model(g, "actor");
        uint64_t shard = 0, whole = 0;
        uint32_t buckets = gr_model_buckets(&m->shape);
        for (uint32_t b = 0; b < buckets; b++) {
            uint64_t n = gr_bucket_elems(&m->shape, b);
            shard += gr_align(gr_shard_elems(n, 4) * 4, GR_ALIGN);
            whole += gr_align(n * 4, GR_ALIGN);
        }
        assert_int_equal(held(p->plan, "actor.params", GR_DEVICE), shard);
        assert_int_equal(held(p->plan, "actor.rollout", GR_DEVICE), whole);
        assert_int_equal(count(p->plan, GR_STEP_SYNC, "rollout.sync."), buckets);
        assert_int_equal(count(p->plan, GR_STEP_GATHER, "rollout.sync_gather."), i ? buckets : 0);
        const gr_path *path = &p->plan->paths[GR_PATH_STEADY];
        uint64_t live = 0, extra = 0;
        for (uint32_t s = 0; s < path->n; s++) {
            if (path->steps[s].kind != GR_STEP_SYNC) continue;
            uint64_t gathered = 0;
            for (uint32_t e = 0; e < p->plan->n_ledger; e++)
                if (strstr(p->plan->ledger[e].what, "sync_gathered") && gr_entry_live(&p->plan->ledger[e], s))
                    gathered += p->plan->ledger[e].bytes;
            extra = GR_MAX(extra, gathered);
            live = GR_MAX(live, path->steps[s].resident_bytes);
        }
        uint64_t largest = gr_align(gr_bucket_elems(&m->shape, 1) * 4, GR_ALIGN);
        for (uint32_t b = 0; b < buckets; b++)
            largest = GR_MAX(largest, gr_align(gr_bucket_elems(&m->shape, b) * 4, GR_ALIGN));
        assert_int_equal(extra, i == 0 ? 0 : i == 1 ? whole : largest);
        gr_planned_free(p);
        gr_graph_free(g);
    }
}

/* The first step of a kind and name; NULL. */
static const gr_step *step_of(const gr_plan *p, gr_step_kind kind, const char *what)
{
    for (uint32_t i = 0; i < p->paths[GR_PATH_STEADY].n; i++) {
        const gr_step *s = &p->paths[GR_PATH_STEADY].steps[i];
        if (s->kind == kind && !strcmp(s->what, what)) return s;
    }
    return NULL;
}

/* By hand: on H nodes of D ranks each has what D ranks have, and what D ranks receive; gradients are summed
 * over nodes once a mini-batch, behind its micro-batches, of which a rank receives twice what is not its own.
 */
static void test_nodes_are_replicas_of_each_other(void **state)
{
    (void)state;
    static const uint32_t shapes[][2] = {{2, 2}, {2, 1}, {3, 2}, {4, 3}, {2, 8}, {8, 4}};
    for (size_t i = 0; i < GR_LEN(shapes); i++) {
        uint32_t hosts = shapes[i][0], devices = shapes[i][1];
        config c = {.model = "qwen3", .keys = ", shard: node", .ranks = hosts * devices, .hosts = hosts},
               alone = {.model = "qwen3", .ranks = devices};
        gr_graph *g = load(&c), *one = load(&alone);
        gr_planned *p = plan(&c, g), *q = plan(&alone, one);
        assert_non_null(p);
        assert_non_null(q);
        assert_int_equal(held(p->plan, "actor.", GR_DEVICE), held(q->plan, "actor.", GR_DEVICE));
        const gr_model *m = gr_graph_model(g, "actor");
        uint32_t buckets = gr_model_buckets(&m->shape);
        assert_int_equal(count(p->plan, GR_STEP_REDUCE, "update.reduce."), devices > 1 ? buckets : 0);
        assert_int_equal(count(p->plan, GR_STEP_GATHER, "update.gather."), devices > 1 ? buckets : 0);
        assert_int_equal(count(p->plan, GR_STEP_REDUCE, "update.across."), buckets);
        assert_int_equal(count(q->plan, GR_STEP_REDUCE, "update.across."), 0);
        assert_int_equal(count(p->plan, GR_STEP_REDUCE, "update.reduce_norm"), devices > 1);
        const gr_step *steps = p->plan->paths[GR_PATH_STEADY].steps,
                      *micro = step_of(p->plan, GR_STEP_LOOP, "update.micro_batches"),
                      *mini = step_of(p->plan, GR_STEP_LOOP, "update.mini_batches");
        for (uint32_t b = 0; b < buckets; b++) {
            char what[64];
            snprintf(what, sizeof(what), "update.across.%u", b);
            const gr_step *s = step_of(p->plan, GR_STEP_REDUCE, what);
            uint64_t shard = gr_align(gr_shard_elems(gr_bucket_elems(&m->shape, b), devices) * 4, GR_ALIGN);
            assert_int_equal(s->bytes, 2 * shard * (hosts - 1) / hosts);
            assert_true(s - steps > micro->body_last && s - steps < mini->body_last);
            snprintf(what, sizeof(what), "update.reduce.%u", b);
            s = step_of(p->plan, GR_STEP_REDUCE, what);
            if (s) assert_int_equal(s->bytes, step_of(q->plan, GR_STEP_REDUCE, what)->bytes);
        }
        gr_planned_free(q);
        gr_planned_free(p);
        gr_graph_free(one);
        gr_graph_free(g);
    }
}

/* What the plan chose for a node; 0: nothing. */
static uint64_t setting(const gr_plan *p, const char *node, const char *name)
{
    for (uint32_t i = 0; i < p->n_settings; i++)
        if (!strcmp(p->settings[i].name, name) && !strcmp(p->settings[i].node, node))
            return p->settings[i].value;
    return 0;
}

/* How many ranks the plan has a node's model spread over; 0: all. */
static uint64_t shards_in(const gr_plan *p, const char *node)
{
    return setting(p, node, "shards");
}

/* Bytes of whole gradients at a step. */
static uint64_t whole_at(const gr_plan *p, uint32_t step)
{
    uint64_t bytes = 0;
    for (uint32_t e = 0; e < p->n_ledger; e++)
        if (!strncmp(p->ledger[e].what, "update.full_grads.", 18) && gr_entry_live(&p->ledger[e], step))
            bytes += p->ledger[e].bytes;
    return bytes;
}

/* Steps of a loop's body that are for many ranks. */
static uint32_t collectives_in(const gr_plan *p, const gr_step *loop)
{
    const gr_step *steps = p->paths[GR_PATH_STEADY].steps;
    uint32_t n = 0;
    for (const gr_step *s = loop + 1; s <= steps + loop->body_last; s++)
        n += s->kind != GR_STEP_LOOP && s->kind != GR_STEP_RUN && gr_step_is_task(s->kind);
    return n;
}

/* Two micro-batches or more of two sequences of six tokens each: all of a mini-batch's gradients lie whole
 * through them, by hand four bytes an element, and are reduced in the last, none of them in the loop of
 * the others, whose trips the ranks then need not agree on. */
static void test_gradients_are_reduced_once_where_there_is_room(void **state)
{
    (void)state;
    static const char *const models[] = {"qwen3", "qwen2"};
    for (size_t i = 0; i < 2 * GR_LEN(models); i++) {
        config c = {.model = models[i / 2],
                    .ranks = 4 / (1 + i % 2),
                    .update = ", micro_tokens: 6",
                    .keys = i == 3 ? ", residency: {rollout_weights: keep}" : NULL,
                    .loss = i == 1 ? batch_loss : NULL};
        if (c.ranks == 4) c.hosts = 2, c.keys = ", shard: node";
        gr_graph *g = load(&c);
        gr_planned *p = plan(&c, g);
        assert_non_null(p);
        assert_int_equal(setting(p->plan, "update", "whole_grads"), 1);
        const gr_step *steps = p->plan->paths[GR_PATH_STEADY].steps,
                      *micro = step_of(p->plan, GR_STEP_LOOP, "update.micro_batches"),
                      *mini = step_of(p->plan, GR_STEP_LOOP, "update.mini_batches");
        const gr_model *m = gr_graph_model(g, "actor");
        uint64_t whole = 0, gathers = c.keys && c.hosts < 2;
        for (uint32_t b = 0; b < gr_model_buckets(&m->shape); b++) {
            char what[64];
            snprintf(what, sizeof(what), "update.reduce.%u", b);
            const gr_step *s = step_of(p->plan, GR_STEP_REDUCE, what);
            assert_true(s - steps > micro->body_last && s - steps < mini->body_last);
            whole += gr_align(gr_bucket_elems(&m->shape, b) * 4, GR_ALIGN);
        }
        for (uint32_t s = (uint32_t)(micro - steps); s <= micro->body_last; s++)
            assert_int_equal(whole_at(p->plan, s), whole);
        assert_int_equal(collectives_in(p->plan, micro) > 0, gathers);
        assert_int_equal(count(p->plan, GR_STEP_AGREE, "update.micro_batches"), gathers);
        gr_planned_free(p);
        gr_graph_free(g);
    }
}

/* In the plan's time the bucket of a layer is reduced behind the work that completes it, and while the layer
 * below has its backward pass. */
static void test_whole_gradients_are_reduced_beside_the_last_backward_pass(void **state)
{
    (void)state;
    config c = {.model = "qwen3", .ranks = 4, .update = ", micro_tokens: 6"};
    gr_graph *g = load(&c);
    gr_kernels kernels = gr_kernels_cpu;
    kernels.chained = false; /* a device that has others for its reductions */
    gr_plan_options o = {.kernels = &kernels, .hardware = machine(), .hosts = g->hosts, .threads = 1};
    o.hardware.flops = 1e9; /* a layer takes longer than its reduction */
    o.hardware.reduce_share = 0.5;
    gr_planned *p = NULL;
    assert_int_equal(gr_plan_graph(&p, g, &o, NULL), GR_OK);
    assert_int_equal(setting(p->plan, "update", "whole_grads"), 1);
    gr_view *v = gr_view_new(p->plan);
    const gr_step *steps = p->plan->paths[GR_PATH_STEADY].steps;
    const uint32_t layers = gr_graph_model(g, "actor")->shape.layers;
    assert_true(layers > 1);
    for (uint32_t l = layers; l-- > 1;) {
        char above[64], below[64], what[64];
        snprintf(above, sizeof(above), "update.last_backward.%u", l);
        snprintf(below, sizeof(below), "update.last_backward.%u", l - 1);
        snprintf(what, sizeof(what), "update.reduce.%u", 1 + l);
        const size_t made = (size_t)(step_of(p->plan, GR_STEP_RUN, above) - steps),
                     beside = (size_t)(step_of(p->plan, GR_STEP_RUN, below) - steps),
                     sum = (size_t)(step_of(p->plan, GR_STEP_REDUCE, what) - steps);
        assert_true(v->begin[sum] >= v->end[made]);
        assert_true(v->end[sum] < v->end[beside]);
    }
    gr_view_free(v);
    gr_planned_free(p);
    gr_graph_free(g);
}

/* One micro-batch has one reduction either way, and it is hidden; one rank has none; canonical sums have
 * their own order; where bits are to be kept no budget has a say in them; and where a link takes no time
 * nothing is won. */
static void test_gradients_are_reduced_in_each_micro_batch_otherwise(void **state)
{
    (void)state;
    const config kinds[] = {
        {.model = "qwen3", .ranks = 2},
        {.model = "qwen3", .ranks = 1, .update = ", micro_tokens: 6"},
        {.model = "qwen3", .ranks = 2, .hosts = 2, .keys = ", shard: node", .update = ", micro_tokens: 6"},
        {.model = "qwen3", .ranks = 2, .update = ", micro_tokens: 6", .top = "canonical: true\n"},
        {.model = "qwen3", .ranks = 2, .update = ", micro_tokens: 6", .run = ", bits: keep"},
    };
    for (size_t i = 0; i < GR_LEN(kinds); i++) {
        gr_graph *g = load(&kinds[i]);
        gr_planned *p = plan(&kinds[i], g);
        assert_non_null(p);
        assert_int_equal(setting(p->plan, "update", "whole_grads"), 0);
        assert_int_equal(strstr(p->plan->notes, "gradients") != NULL, 0);
        gr_planned_free(p);
        gr_graph_free(g);
    }
}

/* Under budgets from all there is to nothing: never beside recomputation or sharded weights, given up for
 * those first; the bits are those of the form, and what the notes say. */
static void test_whole_gradients_are_the_first_that_a_budget_takes(void **state)
{
    (void)state;
    config c = {.model = "qwen3", .ranks = 2, .update = ", micro_tokens: 6"}, keep = c;
    keep.run = ", bits: keep";
    gr_graph *g = load(&c), *kept = load(&keep);
    gr_planned *whole = plan(&c, g), *each = plan(&keep, kept);
    assert_string_not_equal(whole->plan->numerics, each->plan->numerics);
    uint32_t n[2] = {0, 0}, plain = 0;
    const uint64_t part = getenv("GR_SLOW") ? 50 : 15;
    for (uint64_t budget = whole->plan->peak_bytes;; budget -= budget / part) {
        gr_planned *p = plan_or_null(g, GR_POLICY_AUTO, budget, 1);
        if (!p) break;
        const bool is_whole = setting(p->plan, "update", "whole_grads"),
                   beside = setting(p->plan, "update", "recompute") || setting(p->plan, "update", "sharded");
        n[is_whole]++;
        plain += !is_whole && !beside;
        assert_false(is_whole && beside);
        assert_int_equal(is_whole,
                         !strstr(p->plan->notes, "update: gradients: reduced in each micro-batch, to "
                                                 "fit the budget (changes the bits of results)"));
        assert_string_equal(p->plan->numerics, (is_whole ? whole : each)->plan->numerics);
        gr_planned_free(p);
    }
    print_message("%u plans with whole gradients, %u without, %u of these with nothing else cut\n", n[1],
                  n[0], plain);
    assert_true(n[1] > 1 && n[0] > 0);
    gr_planned_free(whole);
    gr_planned_free(each);
    gr_graph_free(g);
    gr_graph_free(kept);
}

static gr_planned *plan_on(const gr_graph *g, const gr_hardware *hw, uint64_t budget, gr_status want)
{
    gr_plan_options o = {
        .kernels = &gr_kernels_cpu, .hardware = *hw, .budget_bytes = budget, .hosts = g->hosts, .threads = 1};
    gr_planned *p = NULL;
    assert_int_equal(gr_plan_graph(&p, g, &o, NULL), want);
    return p;
}

/* Seconds of reductions, of all trips that are expected. */
static double reducing(const gr_tasks *g, const gr_hardware *hw)
{
    double sum = 0;
    for (uint32_t w = 0; w < g->n_tasks; w++) {
        if (g->task[w].kind != GR_STEP_REDUCE) continue;
        double times = 1;
        for (uint32_t l = 0; l < w; l++)
            if (g->task[l].loop.body_last != GR_NONE && g->task[l].loop.body_last >= w)
                times *= g->task[l].loop.trips_expected;
        sum += times * (double)gr_task_ns(&g->task[w], hw) / 1e9;
    }
    return sum;
}

/* They are hidden behind the backward pass, which is slower for it by the part of the device that they hold.
 */
static void test_reductions_take_time_from_what_runs_beside_them(void **state)
{
    (void)state;
    config c = {.model = "qwen3", .ranks = 2};
    gr_graph *g = load(&c);
    gr_hardware hiding = machine();
    hiding.flops = 1e9; /* a slow device: what is not hidden is the end of the last pass */
    gr_hardware holding = hiding;
    holding.reduce_share = 0.25;
    gr_planned *hidden = plan_on(g, &hiding, 0, GR_OK), *held_up = plan_on(g, &holding, 0, GR_OK);
    const double all = reducing(hidden->tasks, &hiding),
                 lost = (double)(held_up->plan->ns - hidden->plan->ns) / 1e9;
    print_message("%.6f s of %.6f s of reductions lost\n", lost, all);
    assert_true(all > 0 && all < (double)hidden->plan->ns / 1e9);
    assert_true(lost > 0.05 * all && lost < 0.2501 * all); /* what ends a trip is waited for anyway */
    gr_planned_free(hidden);
    gr_planned_free(held_up);
    gr_graph_free(g);
}

/* How many steps of the backward pass wait for the reduction of a layer that stands right before them. */
static uint32_t held_up(const gr_path *path, uint32_t layers)
{
    uint32_t n = 0, reduction = GR_NONE, bucket;
    for (uint32_t i = 0; i < path->n; i++) {
        const gr_step *s = &path->steps[i];
        if (sscanf(s->what, "update.reduce.%u", &bucket) == 1 && bucket && bucket <= layers) reduction = i;
        if (s->lane != GR_LANE_COMPUTE || reduction == GR_NONE) continue;
        for (uint32_t k = 0; k < s->n_after; k++)
            n += s->after[k] == reduction && strstr(s->what, "update.backward.");
        reduction = GR_NONE;
    }
    return n;
}

/* What a layer's reduction uses is not given to the next layer's backward pass, which would wait for it. */
static void test_the_backward_pass_goes_on_beside_reductions(void **state)
{
    (void)state;
    config c = {.model = "qwen3", .ranks = 4};
    gr_graph *g = load(&c);
    gr_kernels kernels = gr_kernels_cpu;
    kernels.chained = false; /* a device that has others for its reductions */
    gr_plan_options o = {.kernels = &kernels, .hardware = machine(), .hosts = g->hosts, .threads = 1};
    const uint32_t layers = gr_graph_model(g, "actor")->shape.layers;
    uint64_t most = 0;
    for (uint64_t tenths = 10; tenths >= 8; tenths--) {
        gr_planned *p = NULL;
        o.budget_bytes = most * tenths / 10; /* 0: all there is */
        assert_int_equal(gr_plan_graph(&p, g, &o, NULL), GR_OK);
        if (!most) most = p->plan->peak_bytes;
        assert_int_equal(held_up(&p->plan->paths[GR_PATH_STEADY], layers), 0);
        gr_planned_free(p);
    }
    gr_graph_free(g);
}

/* The planner's choice: by the time of collectives, if half a device holds what is kept; and over all ranks,
 * which changes bits, where nothing else fits. */
static void test_nodes_are_chosen_by_topology_and_given_up_for_a_budget(void **state)
{
    (void)state;
    config c = {.model = "qwen3", .ranks = 8, .hosts = 2};
    gr_graph *g = load(&c);
    gr_hardware slow = machine(), fast = machine(), small = machine();
    slow.link = 1e9, slow.network = 1e6, slow.collective_ns = 1000;
    fast.link = 1e9, fast.network = 1e9, fast.collective_ns = 1000;
    small = slow;
    gr_planned *node = plan_on(g, &slow, 0, GR_OK), *all = plan_on(g, &fast, 0, GR_OK);
    assert_int_equal(shards_in(node->plan, "update"), 4);
    assert_int_equal(shards_in(all->plan, "update"), 0);
    assert_string_not_equal(node->plan->numerics, all->plan->numerics);
    assert_true(count(node->plan, GR_STEP_REDUCE, "across") && !count(all->plan, GR_STEP_REDUCE, "across"));

    /* half of it is less than weights, gradients and state of a node's shards */
    uint64_t kept = held(node->plan, "actor.", GR_DEVICE) + held(node->plan, "ref.", GR_DEVICE);
    small.device_bytes = small.host_bytes = kept / 2;
    gr_planned *less = plan_on(g, &small, slow.device_bytes, GR_OK);
    assert_int_equal(shards_in(less->plan, "update"), 0);

    /* budgets from what it took to nothing: over the node's ranks as long as that fits, then over all of them
     */
    uint32_t over_all = 0, over_node = 0;
    for (uint64_t budget = node->plan->peak_bytes;; budget -= budget / 64) {
        gr_plan_options o = {.kernels = &gr_kernels_cpu,
                             .hardware = slow,
                             .budget_bytes = budget,
                             .quick = true,
                             .host_budget_bytes = node->plan->host_bytes,
                             .hosts = 2,
                             .threads = 1};
        gr_planned *p = NULL;
        gr_status st = gr_plan_graph(&p, g, &o, NULL);
        if (!st && !shards_in(p->plan, "update")) {
            over_all++;
            assert_non_null(strstr(p->plan->notes, "actor: shards: on each of 8 ranks"));
            assert_non_null(strstr(p->plan->notes, "(changes the bits of results)"));
            assert_string_not_equal(p->plan->numerics, node->plan->numerics);
        } else if (!st) {
            over_node++;
            assert_int_equal(over_all, 0);
        }
        gr_planned_free(p);
        if (st) break;
    }
    print_message("%u budgets over the node's ranks, %u over all\n", over_node, over_all);
    assert_true(over_node > 0 && over_all > 0);
    gr_planned_free(less);
    gr_planned_free(all);
    gr_planned_free(node);
    gr_graph_free(g);
}

/* Over links that carry as much between hosts as within: all ranks, as long as they are few; of many each
 * collective takes as long as its steps, and a plan longer for it. */
static void test_nodes_are_chosen_when_ranks_are_many(void **state)
{
    (void)state;
    gr_hardware hw = machine();
    hw.link = 1e9, hw.network = 1e9, hw.collective_ns = 1000;
    hw.cluster = (gr_cluster){
        .adapters = 4,
        .n_protocols = 1,
        .protocols = {{.ring_share = 1, .tree_share = 1, .ring_ns = {100, 1000}, .tree_ns = {100, 1000}}}};
    uint64_t before = 0;
    for (uint32_t ranks = 8; ranks <= 4096; ranks *= 8) {
        config c = {.model = "qwen3", .ranks = ranks, .hosts = ranks / 4};
        gr_graph *g = load(&c);
        gr_planned *p = plan_on(g, &hw, 0, GR_OK);
        assert_int_equal(shards_in(p->plan, "update"), ranks < 64 ? 0 : 4);
        assert_true(p->plan->ns > before);
        before = p->plan->ns;
        gr_planned_free(p);
        gr_graph_free(g);
    }
}

static void test_plans_of_ranks_run_in_any_interleaving(void **state)
{
    (void)state;
    static const char *const models[] = {"llama", "qwen2", "qwen3"};
    static const char *const keys[] = {
        NULL, ", residency: {rollout_weights: keep}, gather: whole",
        ", residency: {rollout_weights: every_node, params: transition}, gather: layer",
        ", residency: {rollout_weights: transition}, shard: node"};
    uint32_t plans = 0;
    const int next = getenv("GR_SLOW") ? 2 : GR_N_POLICIES; /* or each policy with some of the keys */
    for (int i = 0; i < 3; i++)
        for (int k = 0; k < (i == 1 ? 4 : 3); k++)
            for (int policy = (i + k) % next; policy < GR_N_POLICIES; policy += next) {
                config c = {.model = models[i],
                            .keys = keys[k],
                            .loss = i == 1 ? batch_loss : NULL,
                            .ranks = 2u << (i + k),
                            .hosts = k < 3 ? 1 : 4,
                            .policy = (gr_policy)policy};
                gr_graph *g = load(&c);
                run_all_ways(g, c.policy, c.budget, GR_MAX(c.hosts, 1u), c.model, &plans);
                gr_graph_free(g);
            }
    for (int policy = 0; policy < GR_N_POLICIES; policy += 2) { /* gradients that are reduced once */
        config c = {.model = models[policy % 3], .ranks = 2, .update = ", micro_tokens: 6"};
        gr_graph *g = load(&c);
        run_all_ways(g, (gr_policy)policy, 0, 1, c.model, &plans);
        gr_graph_free(g);
    }
    print_message("%u plans\n", plans);
    assert_true(plans > (getenv("GR_SLOW") ? 25 : 15));
}

/* Gradients that are reduced once may not be before the last backward pass has added to them; and what reads
 * the sums may not begin before they have ended. Some of these waits stand for others: where bytes are taken
 * that a later reduction frees. */
static void refuse_without_any_wait(const gr_planned *p)
{
    const gr_path *path = &p->plan->paths[GR_PATH_STEADY];
    assert_int_equal(setting(p->plan, "update", "whole_grads"), 1);
    uint32_t tried = 0;
    for (uint32_t i = 0; i < path->n; i++) {
        if (strncmp(path->steps[i].what, "update.reduce.", 14)) continue;
        gr_plan *early = copy_plan(p->plan);
        early->paths[GR_PATH_STEADY].steps[i].n_after = 0;
        assert_false(accepted(early, p->tasks, NULL));
        gr_plan_free(early);
        tried++;
    }
    assert_true(tried > 2);
    gr_plan *bad = copy_plan(p->plan);
    for (uint32_t i = 0; i < path->n; i++)
        if (!strncmp(path->steps[i].what, "update.norm.", 12))
            bad->paths[GR_PATH_STEADY].steps[i].n_after = 0;
    assert_false(accepted(bad, p->tasks, NULL));
    gr_plan_free(bad);
}

/* What reads a sum over nodes may not begin before it has ended. */
static void refuse_without_waits(const gr_planned *p)
{
    const gr_path *path = &p->plan->paths[GR_PATH_STEADY];
    uint32_t tried = 0, sums = count(p->plan, GR_STEP_REDUCE, "update.across.");
    for (uint32_t i = 0; i < path->n && sums; i++) {
        if (strncmp(path->steps[i].what, "update.norm.", 12)) continue;
        gr_plan *bad = copy_plan(p->plan);
        bad->paths[GR_PATH_STEADY].steps[i].n_after = 0;
        assert_false(accepted(bad, p->tasks, NULL));
        gr_plan_free(bad);
        tried++;
    }
    assert_int_equal(tried, sums);
}

static void refuse_mutants(const config *c)
{
    gr_graph *g = load(c);
    gr_planned *p = plan(c, g);
    assert_non_null(p);
    uint32_t tried = 0;
    for (uint32_t i = 0; i < p->plan->paths[GR_PATH_STEADY].n; i++) {
        gr_step_kind kind = p->plan->paths[GR_PATH_STEADY].steps[i].kind;
        if (kind == GR_STEP_RUN || !gr_step_is_task(kind) || kind == GR_STEP_LOOP) continue;
        for (int how = 0; how < 4; how++) {
            gr_plan *bad = copy_plan(p->plan);
            gr_step *s = &bad->paths[GR_PATH_STEADY].steps[i];
            if (how == 0) delete_step(bad, GR_PATH_STEADY, i);
            if (how == 1) s->lane = GR_LANE_COMPUTE;
            if (how == 2) s->bytes += GR_ALIGN;
            if (how == 3) s->kind = kind == GR_STEP_GATHER ? GR_STEP_SYNC : GR_STEP_GATHER;
            assert_false(accepted(bad, p->tasks, NULL));
            gr_plan_free(bad);
            tried++;
        }
    }
    assert_true(tried > 40);
    refuse_without_waits(p);
    if (c->update) refuse_without_any_wait(p);
    gr_plan *bad = copy_plan(p->plan);
    bad->ranks = "0-7";
    gr_str why = {0};
    assert_false(accepted(bad, p->tasks, &why));
    assert_non_null(strstr(why.text, "'ranks'"));
    gr_str_release(&why);
    gr_plan_free(bad);
    gr_planned_free(p);
    gr_graph_free(g);
}

/* Every collective of a plan, taken away, sent on another lane, of other bytes, or put before its neighbour.
 */
static void test_a_collective_that_not_all_ranks_come_to_is_refused(void **state)
{
    (void)state;
    config kinds[] = {{.model = "qwen3", .keys = ", gather: layer", .ranks = 4},
                      {.model = "qwen3", .keys = ", shard: node", .ranks = 4, .hosts = 2},
                      {.model = "llama", .keys = ", shard: node", .ranks = 2, .hosts = 2},
                      {.model = "qwen3", .ranks = 2, .update = ", micro_tokens: 6"}};
    for (size_t k = 0; k < GR_LEN(kinds); k++) refuse_mutants(&kinds[k]);
}

/* An op that opens a loop of data-dependent trips without an agreement, and puts a collective inside. */
static void test_a_collective_needs_trips_that_ranks_agreed_on(void **state)
{
    (void)state;
    for (int agreed = 0; agreed < 2; agreed++) {
        gr_tasks *g = gr_tasks_new();
        g->ranks = 2;
        gr_tasks_node(g, "node", GR_LANE_COMPUTE, false);
        uint32_t sum = gr_tasks_temp(g, GR_CAT_COMM, 256, "sum");
        gr_tasks_run(g, 0, 0, (gr_use[]){{sum, GR_WRITE}}, 1, "begin");
        gr_sharding_loop(g, 0, 3, agreed, GR_NONE, "loop");
        gr_tasks_run(g, 0, 0, (gr_use[]){{sum, GR_UPDATE}}, 1, "work");
        gr_sharding_total(g, sum, 1, "total");
        gr_tasks_end(g);
        gr_plan *p = still_plan(g, "0-1");
        gr_str why = {0};
        assert_int_equal(accepted(p, g, &why), agreed);
        assert_int_equal(why.len > 0 && strstr(why.text, "on whose trips the ranks do not agree") != NULL,
                         !agreed);
        gr_str_release(&why);
        gr_plan_free(p);
        gr_tasks_free(g);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_ranks_hold_shards_of_what_training_changes),
        cmocka_unit_test(test_shards_are_made_of_eighths),
        cmocka_unit_test(test_parts_lie_as_their_model_is_placed),
        cmocka_unit_test(test_what_is_made_of_weights_is_made_once),
        cmocka_unit_test(test_a_rollout_copy_beside_the_shards),
        cmocka_unit_test(test_nodes_are_replicas_of_each_other),
        cmocka_unit_test(test_reductions_take_time_from_what_runs_beside_them),
        cmocka_unit_test(test_the_backward_pass_goes_on_beside_reductions),
        cmocka_unit_test(test_nodes_are_chosen_by_topology_and_given_up_for_a_budget),
        cmocka_unit_test(test_nodes_are_chosen_when_ranks_are_many),
        cmocka_unit_test(test_gradients_are_reduced_once_where_there_is_room),
        cmocka_unit_test(test_whole_gradients_are_reduced_beside_the_last_backward_pass),
        cmocka_unit_test(test_gradients_are_reduced_in_each_micro_batch_otherwise),
        cmocka_unit_test(test_whole_gradients_are_the_first_that_a_budget_takes),
        cmocka_unit_test(test_plans_of_ranks_run_in_any_interleaving),
        cmocka_unit_test(test_a_collective_that_not_all_ranks_come_to_is_refused),
        cmocka_unit_test(test_a_collective_needs_trips_that_ranks_agreed_on),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
