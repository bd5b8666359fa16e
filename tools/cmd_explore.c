/* graphrun plan --explore: other layouts of the same graph, and what each takes: seconds, bytes, bits.
 *
 * A layout is what a graph says of how its work is spread and cut, and the planner leaves as it is: tokens of
 * a micro-batch, slices of a rollout, over which ranks weights are sharded, on how many neighbours each
 * sequence is, in how many stages layers are. Neighbours of the graph's own are planned shortly, one change
 * each; then those with two, the best of each key; then the best with more, as long as that helps. The best
 * of all are planned in full. Counted, never timed. */
#include "tools/cmd.h"

#include <stdlib.h>
#include <string.h>

#include "graphs/loader/load.h"
#include "ops/model/tp.h"
#include "graphs/loader/parallel.h"
#include "graphs/loader/tensor.h"
#include "ops/train.h"
#include "scheduler/search/meshes.h"

enum { MOST_LOOKS = 24, MOST_WHOLE = 3, MOST_SETS = 4, MOST_KEYS = 4, SHORT = 16 };

/* What is set beside what the graph and --set say: a new way to lay out a graph is one more text. */
typedef struct layout {
    char *set[MOST_SETS]; /* "models.actor.tensor=2" */
    size_t n;
    bool looked, fits;
    uint64_t ns, peak;
    const char *numerics; /* of the explorer's arena */
} layout;

typedef struct explorer {
    const gr_args *a;
    const gr_graph *own; /* with the meshes that `auto` chose */
    const char *title;
    layout *all;
    size_t n, cap;
    gr_arena *arena;
} explorer;

static layout *add_layout(explorer *x, const layout *from, char *set)
{
    layout l = from ? *from : (layout){0};
    l.looked = l.fits = false;
    for (size_t i = 0; i < l.n; i++) l.set[i] = gr_strdup(l.set[i]);
    if (set) l.set[l.n++] = set;
    GR_PUSH(x->all, x->n, x->cap, l);
    return &x->all[x->n - 1];
}

/* Where the graph leaves a mesh to the planner, layouts have the one that it chose for the graph as it is;
 * and as many ranks for the experts of rollouts, where they say nothing of these. */
static void keep_meshes(const explorer *x, gr_graph *g)
{
    for (size_t i = 0; i < g->n_models; i++) {
        const gr_model *own = x->own->models[i];
        if (!g->models[i]->sharding.mesh_auto) continue;
        gr_graph_set_mesh(g, i, &own->sharding.mesh);
        if (gr_rollout_is_open(g->models[i])) gr_graph_divide_rollout(g, i, own->sharding.expert);
    }
}

/* Plan a layout; what is no graph, or not for this machine, does not fit. */
static void look(explorer *x, layout *l, uint32_t hurry)
{
    gr_args with = *x->a;
    gr_plan_options o;
    gr_graph *g = NULL;
    gr_planned *p = NULL;
    gr_diag ignored;
    with.ask.set = gr_calloc(x->a->ask.n_set + l->n + 1, sizeof(*with.ask.set));
    if (x->a->ask.n_set) memcpy(with.ask.set, x->a->ask.set, x->a->ask.n_set * sizeof(*with.ask.set));
    for (size_t i = 0; i < l->n; i++) with.ask.set[with.ask.n_set++] = l->set[i];
    gr_diag_init(&ignored);
    gr_status st = gr_request_options(&o, &with.ask, &ignored);
    o.hurry = hurry;
    o.sketch = true;
    if (!st) st = gr_request_load(&g, &with.ask, &o, &ignored);
    if (!st) keep_meshes(x, g);
    if (!st) st = gr_plan_graph(&p, g, &o, NULL);
    l->looked = true;
    l->fits = !st;
    if (p) {
        l->ns = p->plan->ns;
        l->peak = gr_plan_peak(p->plan);
        l->numerics = gr_arena_strdup(x->arena, p->plan->numerics);
    }
    gr_diag_release(&ignored);
    gr_planned_free(p);
    gr_graph_free(g);
    free(with.ask.set);
}

/* ---- neighbours ---------------------------------------------------------------------------------------- */

/* Micro-batches twice and four times as large, and half as large. */
static void add_micro(explorer *x, const gr_graph *g, const gr_planned *p)
{
    static const struct {
        uint32_t times, of;
    } sizes[] = {{2, 1}, {4, 1}, {1, 2}, {1, 4}};
    for (size_t s = 0; s < GR_LEN(sizes); s++)
        for (size_t i = 0; i < g->n_nodes; i++) {
            const gr_node *n = g->nodes[i];
            if (!n->op->trains) continue;
            const gr_planned *own = gr_planned_role(p, n->placement.role);
            const uint32_t now = own->choices[i].micro_tokens;
            add_layout(x, NULL,
                       gr_printf("nodes.%s.micro_tokens=%u", n->name, now / sizes[s].of * sizes[s].times));
        }
}

static bool generates(const gr_graph *g, const gr_model *m)
{
    for (size_t i = 0; i < g->n_nodes; i++)
        if (g->nodes[i]->model == m && g->nodes[i]->op->generates) return true;
    return false;
}

/* Rollouts over so many ranks, by `tensor` or `expert`, which now has `now`. */
static void add_sharers(explorer *x, const gr_graph *g, const gr_model *m, const char *key, uint32_t now)
{
    for (uint32_t n = 1; generates(g, m) && n <= GR_MIN(g->ranks, (uint32_t)GR_TP_MAX); n *= 2)
        if (n != now) add_layout(x, NULL, gr_printf("models.%s.%s=%u", m->name, key, n));
}

static bool has_experts(const gr_model *m)
{
    return gr_model_routers(&m->shape, m->shape.layers).n > 0;
}

static void add_rollouts(explorer *x, const gr_graph *g)
{
    for (size_t i = 0; i < g->n_models && g->ranks > 1; i++) {
        const gr_model *m = g->models[i];
        add_sharers(x, g, m, "tensor", m->sharding.tensor);
        if (has_experts(m)) add_sharers(x, g, m, "expert", m->sharding.expert);
    }
}

static void add_mesh(explorer *x, const gr_graph *g, const char *axis, uint32_t most)
{
    for (size_t i = 0; i < g->n_models; i++) {
        const bool has = strcmp(axis, "expert") != 0 || has_experts(g->models[i]);
        for (uint32_t n = 2; has && g->models[i]->trained && n <= GR_MIN(g->ranks, most); n *= 2)
            add_layout(x, NULL, gr_printf("models.%s.parallel.%s=%u", g->models[i]->name, axis, n));
    }
}

/* Chunks of so many stages; the stages are a change of their own, unless the graph has them. */
static void add_chunks_of(explorer *x, const gr_model *m, uint32_t stages)
{
    for (uint32_t chunks = 2; chunks <= 4; chunks *= 2) {
        layout *l = add_layout(x, NULL, gr_printf("models.%s.parallel.chunks=%u", m->name, chunks));
        if (gr_mesh_size(&m->sharding.mesh, GR_AXIS_PIPELINE) < 2)
            l->set[l->n++] = gr_printf("models.%s.parallel.pipeline=%u", m->name, stages);
    }
}

static void add_chunks(explorer *x, const gr_graph *g)
{
    for (size_t i = 0; i < g->n_models; i++) {
        const gr_model *m = g->models[i];
        const uint32_t now = gr_mesh_size(&m->sharding.mesh, GR_AXIS_PIPELINE);
        if (!m->trained) continue;
        if (now > 1) add_chunks_of(x, m, now);
        for (uint32_t stages = 2; now < 2 && stages <= GR_MIN(g->ranks, 4u); stages *= 2)
            add_chunks_of(x, m, stages);
    }
}

static void add_shards(explorer *x, const gr_graph *g, const gr_plan_options *o)
{
    static const char *const over[] = {"all", "node"};
    for (size_t i = 0; i < g->n_models; i++)
        for (size_t k = 0; k < GR_LEN(over) && o->hosts > 1 && g->models[i]->trained; k++)
            add_layout(x, NULL, gr_printf("models.%s.shard=%s", g->models[i]->name, over[k]));
}

/* ---- which are shown ----------------------------------------------------------------------------------- */

/* What fits first; then the faster. */
static int by_time(const void *a, const void *b)
{
    const layout *x = a, *y = b;
    if (x->fits != y->fits) return x->fits ? -1 : 1;
    if (!x->fits) return x->looked != y->looked ? (x->looked ? -1 : 1) : 0;
    if (x->ns != y->ns) return x->ns < y->ns ? -1 : 1;
    return x->peak < y->peak ? -1 : x->peak > y->peak;
}

/* Two changes of different keys. */
static bool can_join(const layout *a, const layout *b)
{
    for (size_t i = 0; i < a->n; i++)
        for (size_t k = 0; k < b->n; k++) {
            const size_t len = strcspn(a->set[i], "=");
            if (!strncmp(a->set[i], b->set[k], len + 1)) return false;
        }
    return a->n + b->n <= MOST_SETS;
}

/* Of a layout and each of others (their changes are of one key each, the best of it) both together. */
static void join_each(explorer *x, size_t with, const size_t *others, size_t n)
{
    for (size_t i = 0; i < n; i++) {
        const layout *a = &x->all[with], *b = &x->all[others[i]];
        if (others[i] == with || !a->fits || !b->fits || !can_join(a, b)) continue;
        layout *both = add_layout(x, a, NULL);
        b = &x->all[others[i]];
        for (size_t s = 0; s < b->n; s++) both->set[both->n++] = gr_strdup(b->set[s]);
    }
}

/* Of the first n, which are sorted, the best of each key. */
static size_t best_of_keys(const explorer *x, size_t n, size_t *best)
{
    size_t found = 0;
    for (size_t i = 0; i < n && found < MOST_KEYS; i++) {
        bool known = !x->all[i].fits;
        for (size_t k = 0; k < found; k++) known = known || !can_join(&x->all[best[k]], &x->all[i]);
        if (!known) best[found++] = i;
    }
    return found;
}

static size_t fastest_of(const explorer *x, size_t begin)
{
    size_t best = begin;
    for (size_t i = begin + 1; i < x->n; i++)
        if (by_time(&x->all[i], &x->all[best]) < 0) best = i;
    return best;
}

/* Those with two changes, each the best of its key: one may be worth nothing without the other. Then the
 * fastest of them with a third, and a fourth, as long as that is faster. The first n have one and are sorted.
 */
static void add_joined(explorer *x, size_t n)
{
    size_t best[MOST_KEYS], begin = x->n;
    const size_t keys = best_of_keys(x, n, best);
    for (size_t k = 0; k < keys; k++) join_each(x, best[k], best + k + 1, keys - k - 1);
    while (x->n > begin) {
        for (size_t i = begin; i < x->n; i++) look(x, &x->all[i], SHORT);
        const size_t fastest = fastest_of(x, begin);
        if (!x->all[fastest].fits || fastest_of(x, 0) < begin) break;
        begin = x->n;
        join_each(x, fastest, best, keys);
    }
}

static void put_layout(gr_str *out, const layout *l, const layout *own)
{
    char bytes[32];
    gr_str time = {0};
    gr_time_put(&time, l->ns);
    gr_str_printf(out, "%12s %12s  %-5s ", time.text, gr_bytes_format(l->peak, bytes),
                  !own->numerics || !strcmp(own->numerics, l->numerics) ? "same" : "other");
    for (size_t i = 0; i < l->n; i++) gr_str_printf(out, " --set %s", l->set[i]);
    gr_str_puts(out, l->n ? "\n" : " as it is\n");
    gr_str_release(&time);
}

/* Those that no other beats in time, bytes and bits. */
static bool is_beaten(const explorer *x, const layout *own, size_t at, size_t n)
{
    const layout *l = &x->all[at];
    const bool same = !strcmp(l->numerics, own->numerics);
    for (size_t i = 0; i < n; i++) {
        const layout *o = &x->all[i];
        if (i == at || !o->fits || o->ns > l->ns || o->peak > l->peak) continue;
        if (same && strcmp(o->numerics, own->numerics)) continue;
        if (o->ns < l->ns || o->peak < l->peak || i < at) return true;
    }
    return false;
}

static void show(explorer *x, const layout *own, size_t n, gr_str *out)
{
    gr_str_printf(out, "%s: layouts that no other beats\n\n%12s %12s  %-5s  %s\n", x->title, "iteration",
                  "peak", "bits", "layout");
    if (own->fits) put_layout(out, own, own);
    for (size_t i = 0; i < n; i++)
        if (x->all[i].fits && !is_beaten(x, own, i, n)) put_layout(out, &x->all[i], own);
    if (!own->fits) gr_str_puts(out, "As it is, it does not fit.\n");
}

/* Layouts with one change, then those with more; the best first. */
static void look_around(explorer *x, const gr_graph *g, const gr_planned *p, const gr_plan_options *o)
{
    add_rollouts(x, g);
    add_micro(x, g, p);
    add_shards(x, g, o);
    add_mesh(x, g, "context", 4);
    add_mesh(x, g, "expert", GR_TP_MAX);
    add_mesh(x, g, "pipeline", 8);
    add_chunks(x, g);
    for (size_t i = 0; i < x->n && i < MOST_LOOKS; i++) look(x, &x->all[i], SHORT);
    if (x->n) qsort(x->all, x->n, sizeof(*x->all), by_time);
    add_joined(x, x->n);
    if (x->n) qsort(x->all, x->n, sizeof(*x->all), by_time);
}

/* Around what the graph says itself. Returns GR_OK where anything fits. */
static gr_status explore(explorer *x, const gr_graph *g, const gr_planned *p, const gr_plan_options *o,
                         bool fits, gr_str *out)
{
    const layout own = {.looked = true,
                        .fits = fits,
                        .ns = p->plan->ns,
                        .peak = gr_plan_peak(p->plan),
                        .numerics = gr_arena_strdup(x->arena, p->plan->numerics)};
    x->title = gr_arena_printf(x->arena, "%s on %s", p->plan->graph, p->plan->hardware);
    look_around(x, g, p, o);
    const size_t n = GR_MIN(x->n, (size_t)MOST_WHOLE);
    gr_status st = fits ? GR_OK : GR_E_NOFIT;
    for (size_t i = 0; i < n && x->all[i].fits; i++) {
        look(x, &x->all[i], 1);
        if (x->all[i].fits) st = GR_OK;
    }
    if (n) qsort(x->all, n, sizeof(*x->all), by_time);
    show(x, &own, n, out);
    return st;
}

static void release(explorer *x)
{
    for (size_t i = 0; i < x->n; i++)
        for (size_t k = 0; k < x->all[i].n; k++) free(x->all[i].set[k]);
    free(x->all);
    gr_arena_free(x->arena);
}

int gr_cmd_explore(const gr_args *a, gr_diag *d)
{
    explorer x = {.a = a, .arena = gr_arena_new()};
    gr_plan_options o;
    gr_graph *g = NULL;
    gr_planned *p = NULL;
    gr_str text = {0};
    gr_status st = gr_request_options(&o, &a->ask, d);
    if (!st) st = gr_request_load(&g, &a->ask, &o, d);
    if (!st) st = gr_plan_meshes(&p, g, &o, d);
    x.own = g;
    if (p) st = explore(&x, g, p, &o, !st, &text);
    if (st == GR_E_NOFIT)
        st = gr_diag_error(d, (gr_loc){0}, st, "neither the graph as it is nor any of its layouts fits");
    int status = gr_exit_status_input(st);
    if (p && gr_cmd_finish(&text, a->ask.out, d) && !status) status = 1;
    release(&x);
    gr_planned_free(p);
    gr_graph_free(g);
    return status;
}
