/* runtime/api/request_advice.c: what would fit, where a plan does not: changes of the graph, found by
 * planning with them. */
#include "runtime/api/request.h"

#include <stdlib.h>
#include <string.h>

#include "ops/base/op.h"
#include "ops/model/tp.h"
#include "scheduler/search/schedule.h"
#include "graphs/loader/load.h"
#include "scheduler/search/meshes.h"

/* A change is priced by so small a part of a search (gr_plan_options.hurry); of those that cost least so
 * many. */
enum { MAX_PLANS = 32, SHOWN = 3, PRICED = 4, PRICE = 16, MAX_RANKS = 1024 };

/* Keys that sizes follow from, and how small they may become. Of those that are the planner's choice at 0,
 * that is the change: it costs no result. */
static const struct lever {
    const char *key;
    uint32_t least;
} levers[] = {{"max_tokens", 16}, {"max_prompt_tokens", 16}, {"samples", 2},   {"batch", 1},
              {"mini_batch", 1},  {"micro_tokens", 0},       {"kv_blocks", 0}, {"concurrent", 0}};

typedef struct change {
    char *set;            /* "nodes.rollout.samples=4"; NULL: none */
    char *ranks;          /* NULL: as they are */
    const char *hardware; /* NULL: as it is */
    char *was;            /* "8" */
    uint32_t halvings;    /* 0: to the planner's choice */
    uint64_t ns;
} change;

typedef struct advice {
    const gr_request *q;
    const gr_plan_options *o;
    unsigned plans; /* made so far */
    change *found;
    size_t n, cap;
} advice;

static char *set_text(const gr_node *n, const gr_key *k, uint32_t value)
{
    return gr_printf("nodes.%s.%s=%u", n->name, k->name, value);
}

/* Options of the command with other ranks or other hardware. */
static gr_status options_with(gr_plan_options *o, gr_request *with, const change *c, gr_diag *d)
{
    if (c->ranks) with->ranks = c->ranks;
    if (c->hardware) {
        with->hardware = c->hardware;
        with->budget = with->host_budget = 0; /* what it has */
    }
    return c->ranks || c->hardware ? gr_request_options(o, with, d) : GR_OK;
}

/* Predicted time with a change; 0: it does not fit, or is no graph. priced: by a search that is about as good
 * as a plan's; else it is asked whether it fits. */
static uint64_t plan_with(const advice *v, const change *c, bool priced)
{
    gr_request with = *v->q;
    gr_plan_options o = *v->o;
    gr_graph *g = NULL;
    gr_planned *p = NULL;
    gr_diag ignored;
    with.set = gr_calloc(v->q->n_set + 1, sizeof(*with.set));
    if (v->q->n_set) memcpy(with.set, v->q->set, v->q->n_set * sizeof(*with.set));
    if (c->set) with.set[with.n_set++] = c->set;
    gr_diag_init(&ignored);
    bool fits = !options_with(&o, &with, c, &ignored);
    o.sketch = true;
    o.quick = !priced;
    o.hurry = priced ? PRICE : 0;
    fits = fits && !gr_request_load(&g, &with, &o, &ignored) && !gr_plan_meshes(&p, g, &o, &ignored);
    uint64_t ns = fits ? GR_MAX(p->plan->ns, (uint64_t)1) : 0;
    gr_diag_release(&ignored);
    gr_planned_free(p);
    gr_graph_free(g);
    free(with.set);
    return ns;
}

/* The same of one more --set, of so many ranks or on other hardware, so often. */
static uint64_t time_with(advice *v, char *set, char *ranks, const char *hardware)
{
    const change c = {.set = set, .ranks = ranks, .hardware = hardware};
    return v->plans++ < MAX_PLANS ? plan_with(v, &c, false) : 0;
}

static uint64_t time_at(advice *v, const gr_node *n, const gr_key *k, uint32_t value)
{
    char *set = set_text(n, k, value);
    uint64_t ns = time_with(v, set, NULL, NULL);
    free(set);
    return ns;
}

/* Takes what texts there are. */
static void add_change(advice *v, change c)
{
    GR_PUSH(v->found, v->n, v->cap, c);
}

/* The fewest halvings of a key with which the graph fits. What fits with more is taken to go on fitting. */
static void try_lever(advice *v, const gr_node *n, const gr_key *k, uint32_t least, uint32_t was)
{
    uint32_t most = 0, too_few = 0;
    while (least && was >> (most + 1) >= least) most++;
    if ((least && !most) || !was) return;
    uint64_t ns = time_at(v, n, k, least ? was >> most : 0), now;
    if (!ns) return;
    while (most - too_few > 1) {
        uint32_t middle = (most + too_few) / 2;
        now = time_at(v, n, k, was >> middle);
        if (now) ns = now;
        *(now ? &most : &too_few) = middle;
    }
    add_change(v, (change){.set = set_text(n, k, least ? was >> most : 0),
                           .was = gr_printf("%u", was),
                           .halvings = most,
                           .ns = ns});
}

/* The fewest doublings of the ranks: of a plan, for it is made on any machine. */
static void try_ranks(advice *v, const gr_graph *g)
{
    for (uint32_t n = 1; g->ranks << n <= MAX_RANKS; n++) {
        char *ranks = v->o->hosts > 1 ? gr_printf("%ux%u", v->o->hosts << n, g->ranks / v->o->hosts)
                                      : gr_printf("%u", g->ranks << n);
        uint64_t ns = time_with(v, NULL, ranks, NULL);
        if (ns) {
            add_change(v,
                       (change){.ranks = ranks, .was = gr_printf("%u", g->ranks), .halvings = n, .ns = ns});
            return;
        }
        free(ranks);
    }
}

/* The machine with the least memory, of those known by name, that has enough of it. */
static void try_hardware(advice *v)
{
    const gr_hardware *now = &v->o->hardware, *best = NULL, *h;
    uint64_t ns = 0;
    for (size_t i = 0; (h = gr_hardware_known(i)); i++) {
        if (strcmp(h->device, now->device) || h->device_bytes <= now->device_bytes) continue;
        if (best && h->device_bytes >= best->device_bytes) continue;
        uint64_t with = time_with(v, NULL, NULL, h->name);
        if (with) best = h, ns = with;
    }
    if (best)
        add_change(v, (change){.hardware = best->name, .was = gr_strdup(now->name), .halvings = 1, .ns = ns});
}

/* What a model's training state is made of, in fewer bits. */
static void try_types(advice *v, const gr_graph *g)
{
    static const char *const types[][3] = {{"master", "split", "fp32"},
                                           {"grads", "bf16", "fp32"},
                                           {"moments", "bf16", "fp32"},
                                           {"moments", "int8", "fp32"},
                                           {"master", "none", "fp32"}};
    for (size_t i = 0; i < g->n_models; i++) {
        const gr_train *t = &g->models[i]->train;
        const bool copy = t->master == GR_MASTER_F32, moments = t->moments == GR_F32,
                   wide[] = {copy, t->grads == GR_F32, moments, moments, copy};
        for (size_t k = 0; k < GR_LEN(types) && g->models[i]->trained && v->o->kernels->dtype != GR_F32;
             k++) {
            char *set = gr_printf("models.%s.train.%s=%s", g->models[i]->name, types[k][0], types[k][1]);
            uint64_t ns = wide[k] ? time_with(v, set, NULL, NULL) : 0;
            if (ns)
                add_change(v, (change){.set = set, .was = gr_strdup(types[k][2]), .halvings = 1, .ns = ns});
            else
                free(set);
        }
    }
}

/* So often twice as many ranks as now, by `tensor` or `expert`. */
static void try_sharers(advice *v, const gr_graph *g, const gr_model *m, const char *key, uint32_t now)
{
    for (uint32_t n = 1; now << n <= GR_MIN(g->ranks, (uint32_t)GR_TP_MAX); n++) {
        char *set = gr_printf("models.%s.%s=%u", m->name, key, now << n);
        uint64_t ns = time_with(v, set, NULL, NULL);
        if (ns)
            add_change(v, (change){.set = set, .was = gr_printf("%u", now), .halvings = n, .ns = ns});
        else
            free(set);
    }
}

/* A rollout over twice as many ranks, and so on: each is one change, for the more there are, the more of a KV
 * pool has room. */
static void try_rollouts(advice *v, const gr_graph *g)
{
    for (size_t i = 0; i < g->n_models && g->ranks > 1; i++) {
        const gr_model *m = g->models[i];
        bool generates = false;
        for (size_t k = 0; k < g->n_nodes; k++)
            generates = generates || (g->nodes[k]->model == m && g->nodes[k]->op->generates);
        if (generates) try_sharers(v, g, m, "tensor", m->sharding.tensor);
        if (generates && gr_model_routers(&m->shape, m->shape.layers).n)
            try_sharers(v, g, m, "expert", m->sharding.expert);
    }
}

static void try_node(advice *v, const gr_node *n)
{
    for (const gr_key *k = n->op->keys; k->name; k++)
        for (size_t i = 0; i < GR_LEN(levers); i++)
            if (k->kind == GR_KEY_UINT && !strcmp(k->name, levers[i].key))
                try_lever(v, n, k, levers[i].least,
                          *(const uint32_t *)(const void *)((const char *)n->cfg + k->offset));
}

/* The smaller change first, then the faster iteration. */
static int by_cost(const void *a, const void *b)
{
    const change *x = a, *y = b;
    if (x->halvings != y->halvings) return x->halvings < y->halvings ? -1 : 1;
    if (x->ns != y->ns) return x->ns < y->ns ? -1 : 1;
    const int sets = strcmp(x->set ? x->set : "", y->set ? y->set : "");
    return sets ? sets : strcmp(x->ranks ? x->ranks : "", y->ranks ? y->ranks : "");
}

/* A quick search says what fits; what it takes is said after a longer one. */
static void price(advice *v)
{
    qsort(v->found, v->n, sizeof(*v->found), by_cost);
    v->n = GR_MIN(v->n, (size_t)PRICED);
    for (size_t i = 0; i < v->n;
         i++) { /* that has fitted; so it does, though a part of a search may miss it */
        const uint64_t ns = plan_with(v, &v->found[i], true);
        if (ns) v->found[i].ns = ns;
    }
    qsort(v->found, v->n, sizeof(*v->found), by_cost);
}

static void say(const change *c, gr_diag *d)
{
    char *what = gr_printf("%s %s instead of %s",
                           c->ranks      ? "--ranks"
                           : c->hardware ? "--hardware"
                                         : "--set",
                           c->ranks      ? c->ranks
                           : c->hardware ? c->hardware
                                         : c->set,
                           c->was);
    gr_note_fits(d, what, c->ns);
    free(what);
}

void gr_request_advise(const gr_graph *g, const gr_request *q, const gr_plan_options *o, gr_diag *d)
{
    advice v = {.q = q, .o = o};
    if (q->grows) {
        try_ranks(&v, g);
        try_hardware(&v);
    }
    try_rollouts(&v, g);
    try_types(&v, g);
    for (size_t i = 0; i < g->n_nodes; i++) try_node(&v, g->nodes[i]);
    const size_t all = v.n;
    if (v.n) price(&v);
    for (size_t i = 0; i < v.n && i < SHOWN; i++) say(&v.found[i], d);
    for (size_t i = 0; i < all; i++) {
        free(v.found[i].set);
        free(v.found[i].ranks);
        free(v.found[i].was);
    }
    free(v.found);
}
