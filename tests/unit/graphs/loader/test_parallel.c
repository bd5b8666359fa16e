/* Plans of models whose training passes are on a mesh of ranks: what a rank holds and exchanges, that every
 * plan runs in any interleaving of its lanes, and what is refused. Changed plans are test_mutants.c's. */
#include "tests/unit/all_ways.h"
#include "tests/unit/mesh_fixture.h"
#include "tests/unit/plan_edit.h"
#include "scheduler/cost/cost.h"
#include "ops/parallel/stages.h"
#include "scheduler/search/meshes.h"
#include "graphs/loader/tensor.h"

static uint64_t entry_bytes(const gr_plan *p, const char *what)
{
    for (uint32_t e = 0; e < p->n_ledger; e++)
        if (!strcmp(p->ledger[e].what, what)) return p->ledger[e].bytes;
    return 0;
}

static const gr_task *task_named(const gr_tasks *p, const char *what)
{
    for (size_t i = 0; i < p->n_tasks; i++)
        if (!strcmp(p->task[i].what, what)) return &p->task[i];
    return NULL;
}

/* Hidden states of its tokens alone; shards and gradients as ever; and who meets whom, by hand: of 16 KV and
 * 8 query heads of 8 in rows of (8 + 2 * 4) * 8 = 128 values, and 64 that come back. */
static void test_a_rank_holds_its_tokens(void **state)
{
    (void)state;
    const char *const keys[] = {"", ", parallel: {context: 2}", ", parallel: {context: 4}",
                                ", parallel: {context: 8}"};
    for (uint32_t i = 0; i < GR_LEN(keys); i++) {
        config c = {.model = keys[i], .ranks = i < 3 ? 4 : 8};
        const uint32_t cut = 1u << i;
        gr_graph *g = load(&c);
        gr_planned *p = plan(&c, g);
        assert_int_equal(entry_bytes(p->plan, "update.x"), 128 / cut * 32 * sizeof(float));
        assert_int_equal(entry_bytes(p->plan, "old.x"), 128 / cut * 32 * sizeof(float));
        assert_int_equal(entry_bytes(p->plan, "update.full_grads.1"), /* whole layers */
                         gr_align(gr_bucket_elems(&g->models[0]->shape, 1) * sizeof(float), GR_ALIGN));
        const gr_task *layer = task_named(p->tasks, "update.forward.1"),
                      *back = task_named(p->tasks, "update.backward.1"),
                      *other = task_named(p->tasks, "ref_logprob.layer.1");
        assert_int_equal(layer->comm.peers, cut > 1 ? cut : 0);
        assert_int_equal(back->comm.peers, cut > 1 ? cut : 0);
        assert_int_equal(other->comm.peers, 0);
        if (cut > 1) {
            const double tokens = 128.0 / cut; /* two sequences of 64 fill a micro-batch */
            assert_int_equal(gr_mesh_size(&layer->comm.mesh, GR_AXIS_CONTEXT), cut);
            const double row = cut > 4 ? 64 + 2 * 2 * 32 : 128; /* keys and values go to two ranks */
            assert_close(layer->comm.summed, tokens * (row + 64) * 4 * (cut - 1) / cut, 0, 1e-9);
        }
        assert_int_equal(p->tasks->groups, cut > 1);
        assert_int_equal(p->tasks->messages, cut - 1); /* its group's */
        gr_planned_free(p);
        gr_graph_free(g);
    }
}

/* Half of the 512 rows of the embedding and of the output matrix, which has a norm before it, and of their
 * gradients. The 128 tokens of both go through the one, their 80 rows through the other: by hand, of hidden
 * states gathered and scattered, of five numbers a row and part, and of what the loss says of a row. */
static void check_vocabulary(const gr_planned *p, const gr_model *m)
{
    const uint64_t half = 512 / 2 * 32 * sizeof(float), last = half + 4096 * sizeof(float);
    const gr_task *embed = task_named(p->tasks, "update.embed"),
                  *back = task_named(p->tasks, "update.embed_backward"),
                  *head = task_named(p->tasks, "update.head"), *old = task_named(p->tasks, "old.head");
    assert_int_equal(m->sharding.train_slice.vocab, 256);
    assert_int_equal(entry_bytes(p->plan, "update.gathered.0"), gr_align(half, GR_ALIGN));
    assert_int_equal(entry_bytes(p->plan, "update.full_grads.0"), gr_align(half, GR_ALIGN));
    assert_int_equal(entry_bytes(p->plan, "update.gathered.4"), gr_align(last, GR_ALIGN));
    assert_int_equal(entry_bytes(p->plan, "update.full_grads.4"), gr_align(last, GR_ALIGN));
    assert_int_equal(gr_mesh_size(&embed->comm.mesh, GR_AXIS_TENSOR), 2);
    assert_close(embed->comm.summed, 128.0 * 32 * 4 / 2, 0, 1e-9);
    assert_close(back->comm.summed, 128.0 * 32 * 4 / 2, 0, 1e-9);
    assert_close(head->comm.summed, 80.0 * (2 * 32 * 4 + 2 * 5 * 4 + 4) / 2, 0, 1e-9);
    assert_close(old->comm.summed, 80.0 * (32 * 4 + 2 * 5 * 4) / 2, 0, 1e-9);
}

/* Slices of layers, and of their gradients, beside shards of all that training keeps; and what goes into them
 * and comes back, by hand: a layer of hidden 32, 8 heads of 8 on 4 KV heads, width 48 has q, k and v of 128 x
 * 32, o of 32 x 64, gate, up and down of 48 x 32, cut by two; and two norms of 32, two of 8. */
static void test_a_rank_holds_its_slices(void **state)
{
    (void)state;
    const char *const keys[] = {", parallel: {tensor: 2}",
                                ", parallel: {tensor: 2}, residency: {rollout_weights: keep}"};
    for (uint32_t i = 0; i < GR_LEN(keys); i++) {
        config c = {.model = keys[i], .ranks = 4};
        gr_graph *g = load(&c);
        gr_planned *p = plan(&c, g);
        const gr_model *m = g->models[0];
        const uint64_t slice = gr_bucket_elems(&m->sharding.train_slice, 1),
                       whole = gr_bucket_elems(&m->shape, 1),
                       n[] = {32, 128 * 32 / 2, 8, 8, 32 * 64 / 2, 32, 2 * 48 * 32 / 2, 48 * 32 / 2};
        uint64_t sum = 0;
        for (size_t k = 0; k < GR_LEN(n); k++) sum += gr_align(n[k], 64);
        assert_int_equal(slice, gr_align(sum, 4096));
        assert_true(slice < whole);
        assert_int_equal(entry_bytes(p->plan, "update.x"), 128 / 2 * 32 * sizeof(float));
        assert_int_equal(entry_bytes(p->plan, "update.gathered.2"),
                         gr_align(slice * sizeof(float), GR_ALIGN));
        assert_int_equal(entry_bytes(p->plan, "update.full_grads.2"),
                         gr_align(slice * sizeof(float), GR_ALIGN));
        const gr_task *gather = task_named(p->tasks, i ? "update.gather.2" : "update.slice.2"),
                      *reduce = task_named(p->tasks, "update.reduce.2"),
                      *layer = task_named(p->tasks, "update.forward.1"),
                      *back = task_named(p->tasks, "update.backward.1");
        assert_int_equal(gather->comm.moved, i ? slice * sizeof(float) * 3 / 4 : 0); /* else it is cut here */
        assert_int_equal(reduce->comm.moved, slice * sizeof(float) * 3 / 4);
        assert_int_equal(gr_mesh_size(&layer->comm.mesh, GR_AXIS_TENSOR), 2);
        assert_int_equal(layer->comm.peers, 2);
        assert_close(layer->comm.summed, 4 * 128.0 * 32 * 4 / 2, 0, 1e-9);
        assert_close(back->comm.summed, 6 * 128.0 * 32 * 4 / 2, 0, 1e-9);
        assert_int_equal(p->tasks->groups, 1);
        assert_int_equal(p->tasks->messages, 3); /* parts of buckets, from all ranks */
        check_vocabulary(p, m);
        gr_planned_free(p);
        gr_graph_free(g);
    }
}

/* Its experts and all else of a layer, and of their gradients; who sends what to whom, by hand: two choices
 * of 128 tokens, of which half are elsewhere, go there and come back. */
static void test_a_rank_holds_its_experts(void **state)
{
    (void)state;
    for (uint32_t holders = 2; holders <= 4; holders += 2) {
        char key[64];
        snprintf(key, sizeof(key), ", parallel: {expert: %u}, residency: {rollout_weights: keep}", holders);
        config c = {.model = key, .ranks = 4, .experts = true};
        gr_graph *g = load(&c);
        gr_planned *p = plan(&c, g);
        const uint64_t
            slice = gr_bucket_elems(&g->models[0]->sharding.train_slice, 1),
            n[] = {
                32, 128 * 32, 8, 8, 32 * 64, 32, 12 * 32, 12 / holders * 2 * 40 * 32, 12 / holders * 32 * 40};
        uint64_t sum = 0;
        for (size_t k = 0; k < GR_LEN(n); k++) sum += gr_align(n[k], 64);
        assert_int_equal(slice, gr_align(sum, 4096));
        assert_int_equal(entry_bytes(p->plan, "update.x"), 128 * 32 * sizeof(float)); /* of its own tokens */
        assert_int_equal(entry_bytes(p->plan, "update.gathered.2"),
                         gr_align(slice * sizeof(float), GR_ALIGN));
        assert_int_equal(entry_bytes(p->plan, "update.full_grads.2"),
                         gr_align(slice * sizeof(float), GR_ALIGN));
        assert_int_equal(task_named(p->tasks, "update.gather.2")->comm.moved, slice * sizeof(float) * 3 / 4);
        const gr_task *layer = task_named(p->tasks, "update.forward.1"),
                      *back = task_named(p->tasks, "update.backward.1");
        const double rows = 2 * 128.0 * (holders - 1) / holders;
        assert_int_equal(gr_mesh_size(&layer->comm.mesh, GR_AXIS_EXPERT), holders);
        assert_int_equal(layer->comm.peers, holders);
        assert_close(layer->comm.exchanged, 2 * rows * 32 * 4, 0, 1e-9);
        assert_close(back->comm.exchanged, 3 * rows * 32 * 4, 0, 1e-9);
        assert_close(layer->comm.summed, 0, 0, 1e-9);
        assert_int_equal(p->tasks->groups, 1);
        assert_int_equal(p->tasks->messages, 3 + holders - 1);
        gr_planned_free(p);
        gr_graph_free(g);
    }
}

/* Of the copy that generates: experts in parts, all else whole, as many keys and values as without; each trip
 * begins with what the holders agree on, and a layer's rows go to them and back. */
static void test_a_rank_holds_its_experts_of_a_rollout(void **state)
{
    (void)state;
    double exchanged[2];
    uint64_t kv[2];
    for (uint32_t i = 0; i < 2; i++) {
        const uint32_t holders = i ? 4 : 2;
        char key[64];
        snprintf(key, sizeof(key), ", expert: %u, residency: {rollout_weights: keep}", holders);
        config c = {.model = key, .ranks = 4, .experts = true};
        gr_graph *g = load(&c);
        gr_planned *p = plan(&c, g);
        const uint64_t n[] = {
            32, 128 * 32, 8, 8, 32 * 64, 32, 12 * 32, 12 / holders * 2 * 40 * 32, 12 / holders * 32 * 40};
        uint64_t part = 0;
        for (size_t k = 0; k < GR_LEN(n); k++) part += gr_align(n[k], 64);
        part = gr_align(part, 4096);
        assert_int_equal(entry_bytes(p->plan, "actor.rollout.2"), gr_align(part * sizeof(float), GR_ALIGN));
        assert_int_equal(entry_bytes(p->plan, "actor.rollout.0"), 4096 * sizeof(float));
        assert_int_equal(task_named(p->tasks, "rollout.sync.2")->comm.moved, part * sizeof(float) * 3 / 4);
        const gr_task *meet = task_named(p->tasks, "rollout.plan"),
                      *layer = task_named(p->tasks, "rollout.layer.1"),
                      *update = task_named(p->tasks, "update.forward.1");
        assert_true(meet->comm.agrees);
        assert_int_equal(gr_mesh_size(&meet->comm.mesh, GR_AXIS_EXPERT), holders);
        assert_int_equal(gr_mesh_size(&layer->comm.mesh, GR_AXIS_EXPERT), holders);
        assert_int_equal(layer->comm.peers, holders);
        assert_int_equal(update->comm.peers, 0); /* training has them whole */
        assert_int_equal(p->tasks->groups, 1);
        assert_int_equal(p->tasks->messages, 3 + holders - 1);
        exchanged[i] = layer->comm.exchanged;
        kv[i] = entry_bytes(p->plan, "rollout.kv");
        gr_planned_free(p);
        gr_graph_free(g);
    }
    assert_close(exchanged[1], exchanged[0] * (3.0 / 4) / (1.0 / 2), 0, 1e-9);
    assert_int_equal(kv[0],
                     8 * 3 * 4 * 2 * 16 * 16 * sizeof(float)); /* blocks, layers, heads; 16 wide here */
    assert_int_equal(kv[1], kv[0]);
}

static char *numerics_of(const char *model, const gr_kernels *k)
{
    const config c = {.model = model, .ranks = 2, .experts = true};
    const gr_plan_options o = {.kernels = k, .hardware = machine(), .hosts = 1, .threads = 1};
    gr_graph *g = load(&c);
    gr_planned *p = NULL;
    assert_int_equal(gr_plan_graph(&p, g, &o, NULL), GR_OK);
    char *numerics = gr_strdup(p->plan->numerics);
    gr_planned_free(p);
    gr_graph_free(g);
    return numerics;
}

/* Where a row's bits do not depend on its batch, and only there. */
static void test_divided_experts_of_a_rollout_are_the_same_bits(void **state)
{
    (void)state;
    gr_kernels kernels = gr_kernels_cpu;
    for (int invariant = 0; invariant < 2; invariant++) {
        kernels.invariant = invariant;
        char *whole = numerics_of("", &kernels), *divided = numerics_of(", expert: 2", &kernels);
        assert_int_equal(!strcmp(whole, divided), invariant);
        free(whole);
        free(divided);
    }
}

/* A node with a loop whose trips ranks count for themselves; before or behind the exchanges in it, or not at
 * all, so many holders agree on them. */
static bool holders_meet(uint32_t first, uint32_t last)
{
    const uint32_t holders[] = {first, 2, last};
    gr_tasks *g = gr_tasks_new();
    g->ranks = 4;
    gr_tasks_node(g, "node", GR_LANE_COMPUTE, false);
    const uint32_t x = gr_tasks_temp(g, GR_CAT_ACTIVATIONS, 256, "x");
    gr_tasks_run(g, 0, 0, (gr_use[]){{x, GR_WRITE}}, 1, "begin");
    gr_tasks_loop(g, 0, 3, true, "loop");
    for (uint32_t i = 0; i < GR_LEN(holders); i++) {
        gr_task *w = gr_tasks_run(g, 0, 0, (gr_use[]){{x, GR_UPDATE}}, 1, "step.%u", i);
        if (!holders[i]) continue;
        w->comm.peers = w->comm.mesh.size[GR_AXIS_EXPERT] = holders[i];
        w->comm.agrees = i != 1;
    }
    gr_tasks_end(g);
    gr_plan *p = still_plan(g, "0-3");
    gr_str why = {0};
    const bool met = accepted(p, g, &why);
    assert_true(met || strstr(why.text, "on whose trips the ranks do not agree"));
    gr_str_release(&why);
    gr_plan_free(p);
    gr_tasks_free(g);
    return met;
}

static void test_holders_agree_before_they_exchange(void **state)
{
    (void)state;
    assert_true(holders_meet(2, 0));
    assert_false(holders_meet(0, 0));
    assert_false(holders_meet(0, 2));
    assert_false(holders_meet(4, 0)); /* others */
}

/* Two ranks that have slices and experts in common are one communicator, through which experts' rows go all
 * the same: memory for messages with the other, beside that for parts of buckets from all three. */
static void test_experts_in_the_group_of_slices_send_messages(void **state)
{
    (void)state;
    config c = {.model = ", parallel: {tensor: 2, expert: 2}", .ranks = 4, .experts = true};
    gr_graph *g = load(&c);
    gr_planned *p = plan(&c, g);
    assert_int_equal(p->tasks->groups, 1);
    assert_int_equal(p->tasks->messages, 3 + 1);
    gr_planned_free(p);
    gr_graph_free(g);
}

/* The layers of a stage, and what micro-batches on their way leave there: of three layers of 128 x 32 + 64 x
 * 32 + 3 x 48 x 32 weights beside a head of 64 x 32, the first of two stages has two. */
static void test_a_rank_holds_its_stage(void **state)
{
    (void)state;
    const char *const keys[] = {", parallel: {pipeline: 2}", ", parallel: {pipeline: 3}",
                                ", parallel: {pipeline: 2}, residency: {rollout_weights: keep}"};
    for (uint32_t i = 0; i < GR_LEN(keys); i++) {
        const uint32_t stages = i == 1 ? 3 : 2, ranks = 2 * stages;
        config c = {.model = keys[i], .ranks = ranks};
        gr_graph *g = load(&c);
        gr_planned *p = plan(&c, g);
        const gr_stages s = gr_stages_of(gr_graph_node(g, "update"));
        const uint64_t hidden = 128 * 32 * sizeof(float),
                       layer = gr_bucket_elems(&g->models[0]->shape, 1) * sizeof(float);
        const gr_task *next = task_named(p->tasks, "update.next"), *loop;
        loop = task_named(p->tasks, "update.micro_batches");
        assert_int_equal(s.n, stages);
        assert_int_equal(s.slots, stages == 2 ? 2 : 1);
        assert_int_equal(s.first[1], stages == 2 ? 2 : 1);
        assert_int_equal(entry_bytes(p->plan, "update.in.0"), stages * hidden); /* of the first stage */
        assert_int_equal(entry_bytes(p->plan, "update.in.1"), stages == 2 ? stages * hidden : 0);
        assert_int_equal(entry_bytes(p->plan, "update.in.2"), 0);
        assert_int_equal(entry_bytes(p->plan, "update.stage.1"), gr_align(layer, GR_ALIGN));
        assert_int_equal(entry_bytes(p->plan, "update.stage_grads.1"), gr_align(layer, GR_ALIGN));
        assert_int_equal(task_named(p->tasks, i == 2 ? "update.gather.1" : "update.take.1")->comm.moved,
                         i == 2 ? layer * (ranks - 1) / ranks : 0);
        assert_int_equal(next->kind, GR_STEP_EXCHANGE);
        assert_int_equal(next->comm.moved, hidden);
        assert_true(next->comm.to_next && !task_named(p->tasks, "update.before")->comm.to_next);
        /* 8 sequences of 64 tokens, two to a micro-batch, and the way through the other stages */
        assert_int_equal(loop->loop.trips_expected, 4 + stages - 1);
        assert_int_equal(task_named(p->tasks, "old.micro_batches")->loop.trips_expected, 4 + stages - 1);
        assert_int_equal(p->tasks->groups, 0); /* stages meet in the communicator of all ranks */
        assert_int_equal(p->tasks->messages, ranks - 1);
        gr_planned_free(p);
        gr_graph_free(g);
    }
}

/* Six layers in four stages on two ranks: slots of two layers for each chunk, one exchange a trip around the
 * ring, of all ranks; the first rank holds five units, of one micro-batch in one chunk. Fewer trips' time
 * than without chunks, for few micro-batches; and the same bits. */
static void test_a_rank_holds_its_chunks(void **state)
{
    (void)state;
    const char *const keys[] = {", parallel: {pipeline: 2}", ", parallel: {pipeline: 2, chunks: 2}",
                                ", parallel: {pipeline: 2, chunks: 3}"};
    const char *numerics = NULL;
    gr_planned *all[GR_LEN(keys)];
    gr_graph *graphs[GR_LEN(keys)];
    for (uint32_t i = 0; i < GR_LEN(keys); i++) {
        config c = {.model = keys[i], .ranks = 4, .deep = true};
        gr_graph *g = graphs[i] = load(&c);
        gr_planned *p = all[i] = plan(&c, g);
        const gr_stages s = gr_stages_of(gr_graph_node(g, "update"));
        const uint32_t chunks = i + 1, slots = s.slots;
        const uint64_t hidden = 128 * 32 * sizeof(float),
                       layer = gr_bucket_elems(&g->models[0]->shape, 1) * sizeof(float);
        const gr_task *around = task_named(p->tasks, "update.around");
        assert_int_equal(s.n, 2 * chunks);
        assert_int_equal(s.ranks, 2);
        assert_int_equal(s.first[s.n], 6);
        if (numerics) assert_string_equal(p->plan->numerics, numerics);
        numerics = p->plan->numerics;
        if (!i) continue;
        assert_int_equal(slots, 3 - i); /* six layers beside a head that takes as long as one: 1 or 2 each */
        assert_int_equal(gr_stage_layer(&s, 2, 0), s.first[2]); /* the first rank's second chunk */
        assert_int_equal(entry_bytes(p->plan, "update.stage.1"), chunks * gr_align(layer, GR_ALIGN));
        assert_int_equal(entry_bytes(p->plan, "update.stage_grads.1"), chunks * gr_align(layer, GR_ALIGN));
        assert_int_equal(entry_bytes(p->plan, "update.stage.0"),
                         gr_align(gr_piece_elems(&s, &g->models[0]->shape, 0) * sizeof(float), GR_ALIGN));
        assert_int_equal(entry_bytes(p->plan, "update.in.0"), (2 * chunks + 1) * hidden);
        assert_int_equal(around->kind, GR_STEP_EXCHANGE);
        assert_int_equal(around->comm.moved, 2 * hidden);
        assert_int_equal(task_named(p->tasks, "old.around")->comm.moved, hidden);
        assert_null(task_named(p->tasks, "update.next"));
        /* 8 sequences of 64 tokens, two to a micro-batch: four units of each chunk, and one more trip */
        assert_int_equal(task_named(p->tasks, "update.micro_batches")->loop.trips_expected, 4 * chunks + 1);
        assert_int_equal(task_named(p->tasks, "old.micro_batches")->loop.trips_expected, 4 * chunks + 1);
        assert_int_equal(p->tasks->groups, 0);
    }
    for (uint32_t i = 0; i < GR_LEN(keys); i++) {
        gr_planned_free(all[i]);
        gr_graph_free(graphs[i]);
    }
}

/* Four micro-batches in two stages of four layers' time, where one waits for a fifth, or in four of two
 * layers' and a ninth: 18 layers' time, not 20. */
static void test_chunks_wait_less(void **state)
{
    (void)state;
    uint64_t ns[2];
    for (uint32_t i = 0; i < 2; i++) {
        config c = {.model = i ? ", parallel: {pipeline: 2, chunks: 2}" : ", parallel: {pipeline: 2}",
                    .ranks = 2,
                    .deep = true};
        gr_graph *g = load(&c);
        gr_hardware hw = machine();
        hw.flops = 1e8;
        gr_planned *p = NULL;
        const gr_plan_options o = {.kernels = &gr_kernels_cpu, .hardware = hw, .hosts = 1, .threads = 1};
        assert_int_equal(gr_plan_graph(&p, g, &o, NULL), GR_OK);
        ns[i] = p->plan->ns;
        gr_planned_free(p);
        gr_graph_free(g);
    }
    assert_true(ns[1] < ns[0]);
}

/* A group that leaves its host pays the adapters' rate. */
static void groups_over_hosts(const char *mesh, bool experts)
{
    uint64_t ns[2];
    for (uint32_t i = 0; i < 2; i++) {
        config c = {.model = mesh, .ranks = 8, .hosts = i ? 4 : 1, .experts = experts};
        gr_graph *g = load(&c);
        gr_planned *p = plan(&c, g);
        gr_hardware hw = machine();
        hw.link = 1e9, hw.network = 1e8;
        hw = gr_hardware_for(&hw, c.hosts, c.ranks);
        ns[i] = gr_task_ns(task_named(p->tasks, "update.forward.1"), &hw);
        gr_planned_free(p);
        gr_graph_free(g);
    }
    assert_true(ns[1] > ns[0]);
}

static void test_groups_over_hosts_take_longer(void **state)
{
    (void)state;
    groups_over_hosts(", parallel: {context: 4}", false);
    groups_over_hosts(", parallel: {expert: 4}", true);
}

static const char *const meshes[] = {
    ", parallel: {context: 2}",
    ", parallel: {context: 4}",
    ", parallel: {context: 2}, tensor: 4",
    ", parallel: {context: 2}, residency: {rollout_weights: keep}",
    ", parallel: {tensor: 2, context: 2}",
    ", parallel: {tensor: 2}, residency: {rollout_weights: keep}",
    ", parallel: {expert: 2}, residency: {rollout_weights: keep}",
    ", parallel: {tensor: 2, context: 2, expert: 4}, tensor: 2",
    ", parallel: {pipeline: 2}",
    ", parallel: {pipeline: 2, chunks: 2}",
    ", parallel: {tensor: 2, pipeline: 2}, residency: {rollout_weights: keep}",
    ", expert: 2, parallel: {expert: 4}, residency: {rollout_weights: keep}",
    ", expert: 4"};
static bool has_experts(const char *mesh)
{
    return strstr(mesh, "expert:");
}

static void test_every_plan_runs_in_any_order(void **state)
{
    (void)state;
    uint32_t plans = 0;
    const int next = getenv("GR_SLOW") ? 2 : GR_N_POLICIES;
    for (uint32_t k = 0; k < GR_LEN(meshes); k++)
        for (int policy = (int)k % next; policy < GR_N_POLICIES;
             policy += has_experts(meshes[k]) || strstr(meshes[k], "pipeline") ? GR_N_POLICIES : next) {
            config c = {.model = meshes[k],
                        .loss = k % 2 ? by_sequence : by_token,
                        .ranks = 4,
                        .experts = has_experts(meshes[k]),
                        .deep = strstr(meshes[k], "chunks") != NULL};
            gr_graph *g = load(&c);
            run_all_ways(g, (gr_policy)policy, 0, 1, meshes[k], &plans);
            gr_graph_free(g);
        }
    print_message("%u plans\n", plans);
    assert_true(plans > 10);
}

/* What a program itself gets wrong: a stage that waits for the next before it has taken what the one before
 * sends, that does so twice, or alone; and stages that ranks are not. */
static void test_stages_take_turns(void **state)
{
    (void)state;
    enum { BEFORE, NEXT, END };
    static const struct {
        int turns[5];
        uint32_t stages;
        const char *wrong;
        uint32_t chunks;
    } cases[] = {{{BEFORE, NEXT, END}, 2, NULL, 0},
                 {{BEFORE, NEXT, BEFORE, NEXT, END}, 4, NULL, 0},
                 {{NEXT, BEFORE, END}, 2, "out of turn", 0},
                 {{BEFORE, BEFORE, NEXT, END}, 2, "out of turn", 0},
                 {{BEFORE, NEXT, NEXT, END}, 2, "out of turn", 0},
                 {{BEFORE, END}, 2, "no exchange with the next stage comes", 0},
                 {{BEFORE, NEXT, END}, 3, "is of 3 stages of 1 ranks, which 4 ranks are not", 0},
                 {{BEFORE, NEXT, END}, 1, "is of 1 stages", 0},
                 {{BEFORE, BEFORE, END}, 2, NULL, 2},
                 {{BEFORE, END}, 4, NULL, 2},
                 {{NEXT, END}, 2, "out of turn", 2},
                 {{BEFORE, END}, 3, "is of 3 stages of 1 ranks, which 4 ranks are not", 2}};
    for (size_t i = 0; i < GR_LEN(cases); i++) {
        gr_tasks *g = gr_tasks_new();
        g->ranks = 4;
        gr_tasks_node(g, "node", GR_LANE_COMPUTE, false);
        const uint32_t x = gr_tasks_temp(g, GR_CAT_COMM, 256, "x");
        gr_tasks_run(g, 0, 0, (gr_use[]){{x, GR_WRITE}}, 1, "begin");
        for (int k = 0; cases[i].turns[k] != END; k++) {
            gr_task *w = gr_tasks_run(g, 0, 0, (gr_use[]){{x, GR_UPDATE}}, 1, "turn.%d", k);
            w->kind = GR_STEP_EXCHANGE;
            w->lane = GR_LANE_COMM;
            w->comm.to_next = cases[i].turns[k] == NEXT;
            w->comm.mesh =
                (gr_mesh){.size = {[GR_AXIS_PIPELINE] = cases[i].stages}, .chunks = cases[i].chunks};
        }
        gr_plan *p = still_plan(g, "0-3");
        gr_str why = {0};
        assert_int_equal(accepted(p, g, &why), !cases[i].wrong);
        assert_true(!cases[i].wrong || strstr(why.text, cases[i].wrong));
        gr_str_release(&why);
        gr_plan_free(p);
        gr_tasks_free(g);
    }
}

static bool is_of_eight(const char *mesh)
{
    return strstr(mesh, "context: 8") || strstr(mesh, "tensor: 2, context: 4") ||
           strstr(mesh, "tensor: 4, context: 2") || strstr(mesh, "4, pipe");
}

/* What `auto` kept of its comparison is proven and bound, and what is planned of the graph with that mesh. */
static void assert_as_planned(const gr_graph *g, const gr_planned *p, const gr_plan_options *o)
{
    gr_planned *again = NULL;
    gr_str kept = {0}, made = {0};
    assert_int_equal(gr_plan_graph(&again, g, o, NULL), GR_OK);
    assert_non_null(p->binding);
    gr_plan_write_json(p->plan, &kept);
    gr_plan_write_json(again->plan, &made);
    assert_string_equal(kept.text, made.text);
    gr_str_release(&kept);
    gr_str_release(&made);
    gr_planned_free(again);
}

/* `auto` takes the mesh whose plan is the fastest of all that a file could say, and the graph says so then.
 */
static void auto_is_fastest(bool experts, bool deep)
{
    static const char *const all[] = {"",
                                      ", parallel: {context: 2}",
                                      ", parallel: {context: 4}",
                                      ", parallel: {context: 8}",
                                      ", parallel: {tensor: 2}",
                                      ", parallel: {tensor: 4}",
                                      ", parallel: {tensor: 2, context: 2}",
                                      ", parallel: {tensor: 2, context: 4}",
                                      ", parallel: {tensor: 4, context: 2}",
                                      ", parallel: {pipeline: 2}",
                                      ", parallel: {tensor: 2, pipeline: 2}",
                                      ", parallel: {tensor: 4, pipeline: 2}",
                                      ", parallel: {pipeline: 4}",
                                      ", parallel: {pipeline: 2, chunks: 2}",
                                      ", parallel: {pipeline: 2, chunks: 3}",
                                      ", parallel: {tensor: 2, pipeline: 2, chunks: 2}",
                                      ", parallel: {tensor: 2, pipeline: 2, chunks: 3}",
                                      ", parallel: {expert: 2}",
                                      ", parallel: {expert: 4}",
                                      ", parallel: {context: 2, expert: 2}",
                                      ", parallel: {context: 2, expert: 4}",
                                      ", parallel: {context: 4, expert: 2}",
                                      ", parallel: {context: 4, expert: 4}",
                                      ", parallel: {tensor: 2, expert: 2}",
                                      ", parallel: {tensor: 2, expert: 4}",
                                      ", parallel: {tensor: 4, expert: 2}",
                                      ", parallel: {tensor: 4, expert: 4}",
                                      ", parallel: {tensor: 2, context: 2, expert: 2}",
                                      ", parallel: {tensor: 2, context: 2, expert: 4}"};
    const uint32_t first = getenv("GR_SLOW") || !(experts || deep) ? 1 : 4, most = experts || deep ? 4 : 16,
                   times = getenv("GR_SLOW") || first > 1
                               ? 4
                               : 16; /* the meshes of 4 are those of experts, too */
    for (uint32_t ranks = first; ranks <= most; ranks *= times) {
        uint64_t best = UINT64_MAX;
        for (size_t i = 0; i < GR_LEN(all) && (i == 0 || ranks > 1); i++) {
            config c = {.model = all[i], .ranks = ranks, .experts = experts, .deep = deep};
            if (!deep && (strstr(all[i], "chunks") || strstr(all[i], "pipeline: 4"))) continue;
            if ((has_experts(all[i]) && !experts) || (is_of_eight(all[i]) && ranks < 8)) continue;
            gr_graph *g = load(&c);
            gr_planned *p = plan(&c, g);
            best = GR_MIN(best, p->plan->ns);
            gr_planned_free(p);
            gr_graph_free(g);
        }
        config c = {.model = ", parallel: auto", .ranks = ranks, .experts = experts, .deep = deep};
        gr_graph *g = load(&c);
        gr_planned *p = NULL;
        const gr_plan_options o = {
            .kernels = &gr_kernels_cpu, .hardware = machine(), .hosts = 1, .threads = 1};
        assert_int_equal(gr_meshes_open(g), ranks > 1);
        assert_int_equal(gr_plan_meshes(&p, g, &o, NULL), GR_OK);
        assert_false(gr_meshes_open(g));
        assert_int_equal(p->plan->ns, best);
        assert_as_planned(g, p, &o);
        gr_planned_free(p);
        gr_graph_free(g);
    }
}

/* Of 12 meshes of 8 ranks, by hand: 1, 2, 4 and 8 ranks to a sequence; 1, 2 and 4 with two slices each, 1 and
 * 2 with four; and two stages of 1, 2 and 4 slices. With 4 KV heads three of them copy keys: 8 ranks, 2
 * slices of 4, 4 of 2. The first is left out, as 4 ranks take longer than 2 here; so is the second; the third
 * has no fourth to tell. */
static void test_auto_stops_where_doubling_does_not_pay(void **state)
{
    (void)state;
    config c = {.model = ", parallel: auto", .ranks = 8};
    gr_graph *g = load(&c);
    gr_planned *p = NULL;
    gr_diag d;
    const gr_plan_options o = {.kernels = &gr_kernels_cpu, .hardware = machine(), .hosts = 1, .threads = 1};
    gr_diag_init(&d);
    assert_int_equal(gr_plan_meshes(&p, g, &o, &d), GR_OK);
    assert_non_null(strstr(d.messages[0].text, "of 10 meshes of ranks 10 may fit"));
    gr_planned_free(p);
    gr_graph_free(g);
    gr_diag_release(&d);
}

static void test_auto_takes_the_fastest_mesh(void **state)
{
    (void)state;
    auto_is_fastest(false, false);
    auto_is_fastest(true, false);
    auto_is_fastest(false, true);
    config c = {.model = ", parallel: auto", .ranks = 8, .more = "canonical: true\n"};
    gr_graph *g = load(&c);
    gr_planned *p = NULL;
    const gr_plan_options o = {.kernels = &gr_kernels_cpu, .hardware = machine(), .hosts = 1, .threads = 1};
    assert_int_equal(gr_plan_meshes(&p, g, &o, NULL), GR_OK);
    assert_int_equal(gr_mesh_ranks(&g->models[0]->sharding.mesh), 1);
    gr_planned_free(p);
    gr_graph_free(g);
}

/* A graph of a pool of ranks that train, which no mesh divides, and of two that generate. */
static config pools_of_experts(const char *model, const char *rollout)
{
    return (config){.model = model,
                    .rollout = rollout,
                    .more = "pools: {a: {ranks: 5}, b: {ranks: 2}}\n",
                    .ranks = 7,
                    .experts = true,
                    .many = true};
}

/* As it is planned with its choices. */
typedef struct division {
    uint32_t ranks; /* that experts of rollouts are divided over; 0: nothing fits */
    uint64_t ns, peak;
    char said[512]; /* last */
} division;

static division division_of(const char *model, uint64_t budget)
{
    config c = pools_of_experts(model, ", pool: b");
    const gr_plan_options o = {.kernels = &gr_kernels_cpu,
                               .hardware = machine(),
                               .hosts = 1,
                               .threads = 1,
                               .budget_bytes = budget,
                               .hurry = 8};
    gr_graph *g = load(&c);
    gr_planned *p = NULL;
    gr_diag d;
    division x = {0};
    gr_diag_init(&d);
    if (gr_plan_meshes(&p, g, &o, &d) == GR_OK)
        x = (division){g->models[0]->sharding.expert, p->plan->ns, gr_plan_peak(p->plan), ""};
    if (d.n) snprintf(x.said, sizeof(x.said), "%s", d.messages[d.n - 1].text);
    assert_int_equal(g->views[1]->models[0]->sharding.rollout.experts, GR_MAX(x.ranks, 1u));
    gr_diag_release(&d);
    gr_planned_free(p);
    gr_graph_free(g);
    return x;
}

enum { TIGHT = 29 << 19 }; /* nine layers of 96 experts are 13.1 MiB, a pool of keys beside them 0.6 */

/* Where whole copies take no longer they stay, and the plan is that of a file that says so. Where they do not
 * fit, or have to be moved in and out, experts are divided. */
static void test_auto_divides_experts_of_rollouts(void **state)
{
    (void)state;
    const division open = division_of(", parallel: auto", 0),
                   whole = division_of(", expert: 1, parallel: auto", 0),
                   kept = division_of(", residency: {rollout_weights: keep}, parallel: auto", TIGHT),
                   moved = division_of(", parallel: auto", TIGHT);
    assert_int_equal(open.ranks, 1);
    assert_int_equal(whole.ranks, 1);
    assert_true(open.ns == whole.ns && open.peak == whole.peak);
    assert_int_equal(kept.ranks, 2);
    assert_true(kept.peak <= TIGHT);
    assert_non_null(strstr(kept.said, "divided over ranks: expert: 2"));
    assert_non_null(strstr(kept.said, "whole copies do not fit"));
    assert_int_equal(moved.ranks, 2);
    assert_null(strstr(moved.said, "do not fit"));
}

/* What a file may not say, or says itself, is not tried. */
static void test_what_is_refused_beside_divided_experts_is_not_tried(void **state)
{
    (void)state;
    static const struct {
        const char *model, *rollout;
        bool divides, open;
    } cases[] = {
        {"", ", pool: b", true, true},
        {", expert: 1", ", pool: b", true, false},
        {", tensor: 1", ", pool: b", true, false},
        {", tensor: 2", ", pool: b", false, false},
        {"", ", pool: b, turns: 2, max_context: 64, environment: {command: cat}", false, true},
        {", precision: {kv: fp8}", ", pool: b", false, true},
    };
    for (size_t i = 0; i < GR_LEN(cases); i++) {
        config c = pools_of_experts(cases[i].model, cases[i].rollout);
        gr_graph *g = load(&c);
        const uint32_t expert = g->models[0]->sharding.expert;
        assert_int_equal(gr_rollout_divides(g, 0, 2), cases[i].divides);
        assert_int_equal(gr_rollout_is_open(g->models[0]), cases[i].open);
        assert_false(gr_rollout_divides(g, 0, 4)); /* ranks that generate are two */
        assert_false(gr_rollout_divides(g, 1, 2)); /* `ref` makes no rollouts */
        assert_int_equal(g->models[0]->sharding.expert, expert);
        gr_graph_free(g);
    }
}

/* text NULL: it is fine. */
static void check_refused(const config *c, const char *text, uint32_t line)
{
    gr_graph *g = NULL;
    gr_diag d;
    gr_diag_init(&d);
    const gr_status st = try_load(&g, c, &d);
    bool found = false;
    for (size_t k = 0; k < d.n; k++)
        found = found || (text && strstr(d.messages[k].text, text) && d.messages[k].at.line == line);
    if (text ? !found || !st : st != GR_OK)
        fail_msg("'%s' of '%s' and '%s' on %u ranks: %s", text ? text : "nothing", c->model ? c->model : "",
                 c->rollout ? c->rollout : "", c->ranks, d.n ? d.messages[0].text : "nothing is said");
    gr_diag_release(&d);
    gr_graph_free(g);
}

/* The rollout is in line 7. */
static void test_rollouts_that_cannot_go_in_step_are_refused(void **state)
{
    (void)state;
    const config talks = {.model = ", expert: 2",
                          .rollout = ", turns: 2, max_context: 64, environment: {command: cat}",
                          .ranks = 2,
                          .experts = true};
    check_refused(&talks, "'environment' is not built for a model whose experts are divided in rollouts", 7);
}

/* Models are in line 3. */
static void test_what_is_refused(void **state)
{
    (void)state;
    static const struct {
        config c;
        const char *text; /* NULL: it is fine */
    } cases[] = {
        {{.model = ", parallel: {context: 2}", .ranks = 2}, NULL},
        {{.model = ", parallel: {context: 4}", .ranks = 8, .hosts = 4}, NULL},
        {{.model = ", parallel: {context: 2}", .ranks = 2, .more = "strict: true\n"}, NULL},
        {{.model = ", parallel: {}", .ranks = 2}, NULL},
        {{.model = ", parallel: auto", .ranks = 2}, NULL},
        {{.model = ", parallel: always", .ranks = 2}, "'parallel' must be a map"},
        {{.model = ", parallel: {tensor: 4}", .ranks = 8, .hosts = 2}, NULL},
        {{.model = ", parallel: {tensor: 4}, tensor: 2", .ranks = 8}, NULL},
        {{.model = ", parallel: {tensor: 4}", .ranks = 8, .hosts = 4},
         "'tensor: 4' does not divide the ranks of a host"},
        {{.model = ", parallel: {tensor: 3}", .ranks = 3}, "'tensor: 3' does not divide its 8 heads"},
        {{.model = ", parallel: {tensor: 2, context: 2}", .ranks = 4}, NULL},
        {{.model = ", parallel: {tensor: 2, context: 4}", .ranks = 8}, NULL},
        {{.model = ", parallel: {tensor: 2, context: 8}", .ranks = 16},
         "'context: 8' times tensor does not divide its 8 heads"},
        {{.model = ", parallel: {tensor: 2, context: 2}", .ranks = 6},
         "'tensor: 2' does not divide the 6 ranks"},
        {{.model = ", parallel: {tensor: 2}", .ranks = 2, .more = "strict: true\n"},
         "and strict do not go together"},
        {{.model = ", parallel: {tensor: 2}", .ranks = 2, .more = "canonical: true\n"},
         "and canonical do not go together"},
        {{.model = ", parallel: {context: 4}", .ranks = 2}, "'context: 4' does not divide the 2 ranks"},
        {{.model = ", parallel: {context: 3}", .ranks = 3}, "'context: 3' does not divide its 8 heads"},
        {{.model = ", parallel: {context: 8}", .ranks = 8}, NULL},
        {{.model = ", parallel: {context: 16}", .ranks = 16}, "'context: 16' does not divide its 8 heads"},
        {{.model = ", parallel: {context: 65}", .ranks = 2}, "'context' must be a whole number from 1 to 64"},
        {{.model = ", parallel: {ring: 2}", .ranks = 2}, "unknown key 'ring'"},
        {{.model = ", parallel: {pipeline: 3}", .ranks = 6}, NULL},
        {{.model = ", parallel: {tensor: 2, context: 2, pipeline: 2}", .ranks = 8}, NULL},
        {{.model = ", parallel: {pipeline: 2}", .ranks = 2, .more = "strict: true\n"}, NULL},
        {{.model = ", parallel: {pipeline: 4}", .ranks = 4}, "'pipeline: 4' is more than its 3 layers"},
        {{.model = ", parallel: {pipeline: 2, chunks: 3}", .ranks = 4, .deep = true}, NULL},
        {{.model = ", parallel: {pipeline: 2, chunks: 1}", .ranks = 2}, NULL},
        {{.model = ", parallel: {pipeline: 2, chunks: 2}", .ranks = 2},
         "'pipeline: 2' times 'chunks: 2' is more than its 3 layers"},
        {{.model = ", parallel: {chunks: 2}", .ranks = 2, .deep = true},
         "'pipeline: 1' does not go with 'chunks: 2': they are of the ranks that have stages"},
        {{.model = ", parallel: {pipeline: 2, chunks: 65}", .ranks = 2},
         "'chunks' must be a whole number from 1 to 64"},
        {{.model = ", parallel: {pipeline: 2, chunks: 2}",
          .ranks = 2,
          .more = "canonical: true\n",
          .deep = true},
         "and canonical do not go together"},
        {{.model = ", parallel: {pipeline: 2}", .ranks = 3}, "'pipeline: 2' does not divide the 3 ranks"},
        {{.model = ", parallel: {pipeline: 2}", .ranks = 2, .more = "canonical: true\n"},
         "and canonical do not go together"},
        {{.model = ", parallel: {pipeline: 2}, shard: node", .ranks = 4, .hosts = 2}, NULL},
        {{.model = ", parallel: {pipeline: 2}, shard: node", .ranks = 4, .hosts = 4}, NULL},
        {{.model = ", parallel: {pipeline: 2}, shard: node", .ranks = 6, .hosts = 2},
         "'pipeline: 2' beside 'shard: node': the 3 ranks of a host are no multiple of the 2"},
        {{.model = ", parallel: {pipeline: 2, expert: 2}", .ranks = 4, .experts = true}, NULL},
        {{.model = ", parallel: {pipeline: 2, expert: 4}", .ranks = 4, .experts = true},
         "'expert: 4' does not divide the 4 ranks"},
        {{.model = ", parallel: {expert: 4}", .ranks = 8, .hosts = 4, .experts = true}, NULL},
        {{.model = ", parallel: {expert: 2}", .ranks = 2, .more = "strict: true\n", .experts = true}, NULL},
        {{.model = ", parallel: {expert: 2}", .ranks = 2, .more = "canonical: true\n", .experts = true},
         "and canonical do not go together"},
        {{.model = ", parallel: {expert: 2}", .ranks = 2},
         "'expert: 2' does not divide its layers, which have no experts"},
        {{.model = ", parallel: {expert: 8}", .ranks = 8, .experts = true},
         "'expert: 8' does not divide its 12 experts"},
        {{.model = ", parallel: {expert: 4}", .ranks = 2, .experts = true},
         "'expert: 4' does not divide the 2 ranks"},
        {{.model = ", parallel: {tensor: 2, expert: 4}", .ranks = 4, .experts = true}, NULL},
        {{.model = ", parallel: {tensor: 4, expert: 6}", .ranks = 12, .experts = true},
         "'expert: 6' does not go with 'tensor: 4': one must divide the other"},
        {{.model = ", parallel: {expert: 4}, shard: node", .ranks = 4, .hosts = 2, .experts = true},
         "'expert: 4' does not divide the ranks of a host"},
        {{.model = ", parallel: 2", .ranks = 2}, "'parallel' must be"},
        {{.model = ", expert: 4", .ranks = 4, .experts = true}, NULL},
        {{.model = ", expert: 4", .ranks = 1, .experts = true}, NULL},
        {{.model = ", expert: 2, parallel: {expert: 4}", .ranks = 4, .experts = true}, NULL},
        {{.model = ", expert: 2", .ranks = 2, .more = "strict: true\n", .experts = true}, NULL},
        {{.model = ", expert: 2", .ranks = 2, .more = "canonical: true\n", .experts = true}, NULL},
        {{.model = ", expert: 0", .ranks = 2, .experts = true},
         "'expert' must be a whole number from 1 to 64"},
        {{.model = ", expert: 2", .ranks = 2},
         "'expert: 2' does not divide its layers, which have no experts"},
        {{.model = ", expert: 8", .ranks = 8, .experts = true}, "'expert: 8' does not divide its 12 experts"},
        {{.model = ", expert: 4", .ranks = 6, .experts = true},
         "'expert: 4' does not divide the 6 ranks of a host"},
        {{.model = ", expert: 4", .ranks = 4, .hosts = 2, .experts = true},
         "'expert: 4' does not divide the 2 ranks of a host"},
        {{.model = ", expert: 2, tensor: 2", .ranks = 4, .experts = true},
         "'expert: 2' does not go with 'tensor'"},
        {{.model = ", expert: 2, pool: a",
          .rollout = ", pool: b",
          .ranks = 5,
          .more = "pools: {a: {ranks: 2}, b: {share: 1}}\n",
          .experts = true},
         "cannot group ranks 2-4, which run 'rollout'"},
        {{.model = ", parallel: {context: 2}", .ranks = 2, .more = "canonical: true\n"},
         "and canonical do not go together"},
        {{.model = ", parallel: {context: 2}, pool: a",
          .rollout = ", pool: b",
          .ranks = 5,
          .more = "pools: {a: {ranks: 3}, b: {share: 1}}\n"},
         "'context: 2' does not divide the 3 ranks 0-2, which run 'old'"},
    };
    for (size_t i = 0; i < GR_LEN(cases); i++) check_refused(&cases[i].c, cases[i].text, 3);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_a_rank_holds_its_tokens),
        cmocka_unit_test(test_a_rank_holds_its_slices),
        cmocka_unit_test(test_a_rank_holds_its_experts),
        cmocka_unit_test(test_a_rank_holds_its_experts_of_a_rollout),
        cmocka_unit_test(test_divided_experts_of_a_rollout_are_the_same_bits),
        cmocka_unit_test(test_holders_agree_before_they_exchange),
        cmocka_unit_test(test_experts_in_the_group_of_slices_send_messages),
        cmocka_unit_test(test_a_rank_holds_its_stage),
        cmocka_unit_test(test_a_rank_holds_its_chunks),
        cmocka_unit_test(test_chunks_wait_less),
        cmocka_unit_test(test_groups_over_hosts_take_longer),
        cmocka_unit_test(test_every_plan_runs_in_any_order),
        cmocka_unit_test(test_stages_take_turns),
        cmocka_unit_test(test_auto_takes_the_fastest_mesh),
        cmocka_unit_test(test_auto_stops_where_doubling_does_not_pay),
        cmocka_unit_test(test_auto_divides_experts_of_rollouts),
        cmocka_unit_test(test_what_is_refused_beside_divided_experts_is_not_tried),
        cmocka_unit_test(test_rollouts_that_cannot_go_in_step_are_refused),
        cmocka_unit_test(test_what_is_refused),
    };
    return cmocka_run_group_tests(tests, make_folder, remove_folder);
}
