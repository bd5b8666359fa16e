/* scheduler/search/meshes.c: meshes that models may be trained on, planned one after another. */
#include "scheduler/search/meshes.h"

#include "graphs/loader/parallel.h"
#include "graphs/loader/tensor.h"
#include "ops/model/tp.h"
#include "ops/parallel/stages.h"
#include "runtime/comm/comm.h"

#include <stdlib.h>
#include <string.h>

/* SHORT: they are compared by so small a part of a search, all together by ALL_SHORT times a whole one,
 * about. Of the best WHOLE, as far as they are CLOSE (a part of their time), whole searches are made, until
 * these have taken one of ALL_WHOLE parts of the work of one. SLACK: what a search may win over all resident
 * with the first levels, as a part of its time. BEHIND: what is slower than the best by such a part of its
 * time is given up. PAYS: rollouts whose experts are divided are chosen where an iteration takes less than so
 * many hundredths: on two GPUs one took 1.23 of the time of whole copies and was predicted 0.88. */
enum {
    MESHES_MAX = 256,
    CHUNKS_MAX = 4,
    NEAREST = 5,
    SHORT = 16,
    ALL_SHORT = 4,
    WHOLE = 3,
    ALL_WHOLE = 2,
    CLOSE = 25,
    SLACK = 50,
    BEHIND = 10,
    PAYS = 75
};

typedef struct candidate {
    gr_mesh mesh;
    uint64_t ns, peak;
    uint64_t least; /* its time where memory has no end */
    bool resident;  /* all is, and fits: that is its time, about */
    bool later;     /* else, where half as many ranks to a sequence take no longer in memory without an end */
} candidate;

bool gr_meshes_open(const gr_graph *g)
{
    for (size_t i = 0; i < g->n_models && g->ranks > 1; i++)
        if (g->models[i]->sharding.mesh_auto) return true;
    return false;
}

/* Those of one kind of sharing sequences, with experts whole and in all ways divided. */
static size_t with_experts(const gr_graph *g, const gr_model *m, gr_mesh mesh, candidate *out, size_t room)
{
    size_t n = 0;
    for (uint32_t experts = 1; experts <= GR_PEERS_MAX && n < room; experts *= 2) {
        mesh.size[GR_AXIS_EXPERT] = experts;
        if (!gr_mesh_any(&mesh) || gr_mesh_serves(g, m, &mesh)) out[n++] = (candidate){.mesh = mesh};
    }
    return n;
}

/* Whether a chunk has fewer layers than if there were one less of them; what would be left to wait for behind
 * the first few is little. */
static bool chunks_pay(const gr_model *m, uint32_t stages, uint32_t chunks)
{
    const uint32_t layers = m->shape.layers, before = stages * (chunks - 1), now = stages * chunks;
    return chunks < 2 || (layers + now - 1) / now < (layers + before - 1) / before;
}

/* Stages, each of so many ranks with slices, and in chunks. */
static size_t in_stages(const gr_graph *g, const gr_model *m, uint32_t tensor, candidate *out, size_t room)
{
    size_t n = 0;
    for (uint32_t stages = 2; stages <= GR_PEERS_MAX; stages *= 2)
        for (uint32_t chunks = 1; chunks <= CHUNKS_MAX && n < room; chunks++) {
            const gr_mesh mesh = {.size = {[GR_AXIS_TENSOR] = tensor, [GR_AXIS_PIPELINE] = stages},
                                  .chunks = chunks};
            if (chunks_pay(m, stages, chunks) && gr_mesh_serves(g, m, &mesh))
                out[n++] = (candidate){.mesh = mesh};
        }
    return n;
}

/* In powers of two along each axis; one rank to a sequence, with all experts, is always one of them. */
static size_t candidates_of(const gr_graph *g, const gr_model *m, candidate out[MESHES_MAX])
{
    size_t n = 0;
    for (uint32_t tensor = 1; tensor <= GR_PEERS_MAX; tensor *= 2) {
        for (uint32_t context = 1; context * tensor <= GR_PEERS_MAX; context *= 2) {
            const gr_mesh mesh = {.size = {[GR_AXIS_TENSOR] = tensor, [GR_AXIS_CONTEXT] = context}};
            n += with_experts(g, m, mesh, out + n, MESHES_MAX - n);
        }
        n += in_stages(g, m, tensor, out + n, MESHES_MAX - n);
    }
    return n;
}

/* The most of all roles' peaks. */
static uint64_t peak_of(const gr_plan *p)
{
    uint64_t most = 0;
    for (uint32_t c = 0; c <= p->n_more; c++) most = GR_MAX(most, gr_plan_role(p, c)->peak_bytes);
    return most;
}

/* Its plan, from which its time and memory are; NULL: it does not fit. */
static gr_planned *plan_on(gr_graph *g, const gr_model *m, const gr_plan_options *how, candidate *c)
{
    gr_planned *p = NULL;
    gr_graph_set_mesh(g, m->index, &c->mesh);
    if (gr_plan_graph(&p, g, how, NULL) == GR_OK) {
        c->ns = p->plan->ns;
        c->peak = peak_of(p->plan);
        return p;
    }
    gr_planned_free(p);
    return NULL;
}

static bool measure(gr_graph *g, const gr_model *m, const gr_plan_options *how, candidate *c)
{
    gr_planned *p = plan_on(g, m, how, c);
    const bool fits = p != NULL;
    gr_planned_free(p);
    return fits;
}

static int faster(const void *a, const void *b)
{
    const candidate *x = a, *y = b;
    return x->ns != y->ns ? (x->ns < y->ns ? -1 : 1) : memcmp(&x->mesh, &y->mesh, sizeof(x->mesh));
}

static void put_mesh(gr_str *s, const gr_mesh *m)
{
    bool any = false;
    for (int a = 0; a < GR_N_AXES; a++) {
        if (gr_mesh_size(m, (gr_axis)a) < 2) continue;
        gr_str_printf(s, "%s%s %u", any ? ", " : "", gr_axis_str((gr_axis)a), gr_mesh_size(m, (gr_axis)a));
        any = true;
    }
    if (gr_mesh_chunks(m) > 1) gr_str_printf(s, ", chunks %u", gr_mesh_chunks(m));
    if (!any) gr_str_puts(s, "none");
}

static void put_time(gr_str *s, const candidate *c)
{
    char peak[32];
    gr_str_printf(s, " (%.4g s an iteration, peak %s)", (double)c->ns * 1e-9, gr_bytes_format(c->peak, peak));
}

/* c: of those that fit, so many, the fastest first. may: of how many it is not seen that they cannot. */
static void tell(const gr_model *m, const candidate *c, size_t near, size_t may, size_t tried, gr_diag *d)
{
    gr_str s = {0};
    put_mesh(&s, &c[0].mesh);
    put_time(&s, &c[0]);
    for (size_t i = 1; i < GR_MIN(near, (size_t)NEAREST); i++) {
        gr_str_puts(&s, i > 1 ? "; " : "; then ");
        put_mesh(&s, &c[i].mesh);
        put_time(&s, &c[i]);
    }
    gr_diag_note(d, m->sharding.mesh_at[0],
                 "model '%s': of %zu meshes of ranks %zu may fit, the fastest is chosen: %s", m->name, tried,
                 may, s.text);
    gr_str_release(&s);
}

/* Whether heads of keys are copied, so that more ranks to a sequence send more. */
static bool copies_keys(const gr_model *m, const gr_mesh *mesh)
{
    const uint32_t ranks = gr_mesh_size(mesh, GR_AXIS_CONTEXT) * gr_mesh_size(mesh, GR_AXIS_TENSOR);
    bool any = false;
    for (uint32_t i = 0; i < m->shape.n_kinds; i++) {
        const gr_layer_desc *d = &m->shape.kinds[i];
        any = any || gr_layer_cut_values(d, ranks) > gr_layer_cut_values(d, 1);
    }
    return any;
}

/* Of those that may fit, the same mesh with a part of the ranks to a sequence; NULL: it cannot. */
static const candidate *fewer(const candidate *c, size_t n, const gr_mesh *mesh, uint32_t part)
{
    gr_mesh want = *mesh;
    want.size[GR_AXIS_CONTEXT] /= part;
    for (size_t i = 0; i < n; i++)
        if (want.size[GR_AXIS_CONTEXT] && !memcmp(&c[i].mesh, &want, sizeof(want))) return &c[i];
    return NULL;
}

/* Beyond the heads of keys twice as many ranks to a sequence are not tried where the last doubling did not
 * pay: c[0, n) are those tried so far that may fit. */
static bool is_far(const gr_model *m, const candidate *c, size_t n, const gr_mesh *mesh)
{
    gr_mesh half_mesh = *mesh;
    half_mesh.size[GR_AXIS_CONTEXT] /= 2;
    if (!half_mesh.size[GR_AXIS_CONTEXT] || !copies_keys(m, mesh)) return false;
    const candidate *half = fewer(c, n, mesh, 2), *fourth = fewer(c, n, mesh, 4);
    return half ? fourth && half->least > fourth->least : is_far(m, c, n, &half_mesh);
}

static int by_least(const void *a, const void *b)
{
    const candidate *x = a, *y = b;
    if (x->later != y->later) return x->later ? 1 : -1;
    return x->least != y->least ? (x->least < y->least ? -1 : 1)
                                : memcmp(&x->mesh, &y->mesh, sizeof(x->mesh));
}

/* Of n those that are not far and may fit, with the least that they could take; *n becomes how many were
 * looked at. */
static size_t sift(gr_graph *g, const gr_model *m, const gr_plan_options *o, candidate *c, size_t *n)
{
    const uint64_t room = o->budget_bytes ? o->budget_bytes : o->hardware.device_bytes;
    size_t may = 0, tried = 0;
    for (size_t i = 0; i < *n; i++) {
        candidate next = c[i];
        gr_outlook x;
        if (is_far(m, c, may, &next.mesh)) continue;
        tried++;
        gr_graph_set_mesh(g, m->index, &next.mesh); /* from here on it is not open */
        if (gr_plan_outlook(&x, g, o) || x.hopeless) continue;
        next.least = x.ns;
        const candidate *half = fewer(c, may, &next.mesh, 2);
        next.resident = x.bytes <= room;
        next.later = !next.resident && half && half->least <= next.least;
        c[may++] = next;
    }
    *n = tried;
    return may;
}

/* Whether it may come to be faster than another. */
static bool may_beat(const candidate *c, const candidate *other)
{
    return c->least - c->least / SLACK <= other->ns;
}

static bool is_of(const candidate *c, const gr_mesh *mesh)
{
    return !memcmp(&c->mesh, mesh, sizeof(*mesh));
}

/* Compare them so, those that can be the fastest, until the searches have taken what they may together and
 * anything fits; how many do. *plan becomes that of the first of them. */
static size_t compare_nearest(gr_graph *g, const gr_model *m, const gr_plan_options *o, candidate *c,
                              size_t n, gr_planned **plan)
{
    size_t fit = 0;
    uint64_t spent = 0;
    gr_plan_options how = *o;
    how.spent = &spent;
    for (size_t i = 0; i < n && !(fit && spent > ALL_SHORT * GR_SEARCH_WORK); i++) {
        if (fit >= NEAREST && !may_beat(&c[i], &c[c[i].resident ? NEAREST - 1 : 0])) continue;
        candidate tried = c[i];
        gr_planned *p = plan_on(g, m, &how, &tried);
        if (!p) continue;
        c[fit++] = tried;
        qsort(c, fit, sizeof(*c), faster);
        how.beat_ns = fit < NEAREST ? 0 : c[0].ns + c[0].ns / BEHIND;
        const bool first = is_of(&c[0], &tried.mesh);
        gr_planned_free(first ? *plan : p);
        if (first) *plan = p;
    }
    return fit;
}

/* The first of them that fits, roughly. */
static size_t first_that_fits(gr_graph *g, const gr_model *m, const gr_plan_options *o, candidate *c,
                              size_t n)
{
    for (size_t i = 0; i < n; i++) {
        if (!measure(g, m, o, &c[i])) continue;
        c[0] = c[i];
        return 1;
    }
    return 0;
}

/* The first of n, and those of the others that may still be faster: until that has taken what it may, and as
 * long as one was faster in short than the best is. The plan of the one that then is the fastest, and first.
 */
static gr_planned *compare_best(gr_graph *g, const gr_model *m, const gr_plan_options *o, candidate *c,
                                size_t n)
{
    gr_planned *plan = NULL;
    gr_plan_options how = *o;
    uint64_t spent = 0;
    candidate best = c[0];
    how.spent = &spent;
    for (size_t i = 0; i < n; i++) {
        if (i && spent >= GR_SEARCH_WORK / ALL_WHOLE && c[i].ns >= best.ns) break;
        if (i && !may_beat(&c[i], &best)) continue;
        gr_planned *p = plan_on(g, m, &how, &c[i]);
        const bool first = p && (!plan || faster(&c[i], &best) < 0);
        if (first) best = c[i];
        gr_planned_free(first ? plan : p);
        if (first) plan = p;
        how.beat_ns = best.ns + best.ns / SLACK;
    }
    for (size_t i = 0; i < n; i++) /* a sketch says less than a plan */
        if (!is_of(&c[i], &best.mesh)) c[i].ns = GR_MAX(c[i].ns, best.ns + 1);
    return plan;
}

/* How many of the first take nearly as long as the first of all. */
static size_t close_to_first(const candidate *c, size_t n)
{
    size_t k = 1;
    while (k < n && c[k].ns - c[k].ns / CLOSE <= c[0].ns) k++;
    return k;
}

/* Meshes as they were compared. */
typedef struct choice {
    candidate c[MESHES_MAX]; /* the fastest of those that fit, as far as was looked, first */
    size_t n, may, fit;      /* how many were looked at; may fit; do */
    gr_planned *plan;        /* of the first, as plans are made; NULL: none is made yet */
} choice;

/* What may fit, and the least that it could take; then better of what may be among the best by that. Where it
 * is only asked what fits, the first of them. */
static void compare(gr_graph *g, const gr_model *m, const gr_plan_options *o, choice *x)
{
    gr_plan_options how = *o;
    x->n = candidates_of(g, m, x->c);
    x->plan = NULL;
    how.sketch = true;
    x->may = sift(g, m, &how, x->c, &x->n);
    qsort(x->c, x->may, sizeof(*x->c), by_least);
    how.hurry = o->quick ? o->hurry : GR_MAX(o->hurry, (uint32_t)SHORT);
    x->fit = o->quick ? first_that_fits(g, m, &how, x->c, x->may)
                      : compare_nearest(g, m, &how, x->c, x->may, &x->plan);
    if (how.hurry == o->hurry) return; /* else they have not been made as plans are */
    gr_planned_free(x->plan);
    x->plan = NULL;
}

/* Then the best as plans are made. Its mesh is the graph's from then on; where nothing fits, none: the plan
 * says what is missing. What was chosen, ns 0: nothing fits. */
static candidate choose(gr_graph *g, const gr_model *m, const gr_plan_options *o, choice *x, gr_diag *d)
{
    gr_plan_options how = *o;
    how.sketch = true;
    if (x->fit && !o->quick && o->hurry < SHORT) {
        x->plan = compare_best(g, m, &how, x->c, close_to_first(x->c, GR_MIN(x->fit, (size_t)WHOLE)));
        qsort(x->c, x->fit, sizeof(*x->c), faster);
    }
    const candidate best = x->fit ? x->c[0] : (candidate){.mesh = {.size = {0}}};
    gr_graph_set_mesh(g, m->index, &best.mesh);
    if (x->fit && d) tell(m, x->c, x->fit, x->may, x->n, d);
    return best;
}

/* ---- experts of rollouts --------------------------------------------------------------------------------
 */

/* By twos: the most ranks that a file may divide them over, below n; 1: it may not, or says it itself. */
static uint32_t divided_below(gr_graph *g, const gr_model *m, uint32_t n)
{
    if (!gr_rollout_is_open(m) || !gr_model_routers(&m->shape, m->shape.layers).n) return 1;
    for (n /= 2; n > 1; n /= 2)
        if (gr_rollout_divides(g, m->index, n)) return n;
    return 1;
}

/* On the mesh that it has; hurry: as of gr_plan_options. ns: 0 where it does not fit. */
static candidate measure_divided(gr_graph *g, const gr_model *m, const gr_plan_options *o, uint32_t n,
                                 uint32_t hurry)
{
    gr_plan_options how = *o;
    candidate c = {.mesh = m->sharding.mesh};
    how.sketch = true;
    how.hurry = hurry;
    gr_graph_divide_rollout(g, m->index, n);
    measure(g, m, &how, &c);
    return c;
}

/* The best of so many ranks and fewer, roughly; returns how many, 1: none fits. *best: where it has a time,
 * that of the most. */
static uint32_t best_division(gr_graph *g, const gr_model *m, const gr_plan_options *o, uint32_t most,
                              candidate *best)
{
    uint32_t best_n = best->ns ? most : 1;
    for (uint32_t n = best->ns ? divided_below(g, m, most) : most; n > 1; n = divided_below(g, m, n)) {
        const candidate c = measure_divided(g, m, o, n, GR_MAX(o->hurry, (uint32_t)SHORT));
        if (!c.ns || (best_n > 1 && c.ns >= best->ns)) continue;
        *best = c;
        best_n = n;
    }
    return best_n;
}

/* Whether it takes so much less than whole copies; of them ns 0: they fit on no mesh. */
static bool pays(const candidate *c, const candidate *whole)
{
    return c->ns && (!whole->ns || c->ns < whole->ns / 100 * PAYS);
}

static void tell_divided(const gr_model *m, const candidate *whole, const candidate *c, uint32_t n,
                         gr_diag *d)
{
    gr_str s = {0};
    gr_str_printf(&s, "expert: %u", n);
    put_time(&s, c);
    gr_str_puts(&s, "; whole copies");
    if (whole->ns)
        put_time(&s, whole);
    else
        gr_str_puts(&s, " do not fit");
    gr_diag_note(d, m->sharding.mesh_at[0], "model '%s': experts of its rollouts are divided over ranks: %s",
                 m->name, s.text);
    gr_str_release(&s);
}

/* The same where whole copies fit on no mesh: one is looked for with the most ranks, roughly, and again with
 * the number that is the fastest there, for what rollouts leave of the memory says which mesh is. */
static gr_planned *choose_divided(gr_graph *g, const gr_model *m, const gr_plan_options *o, uint32_t most,
                                  gr_diag *d)
{
    choice x;
    compare(g, m, o, &x);
    candidate best = x.fit ? x.c[0] : (candidate){.ns = 0};
    gr_graph_set_mesh(g, m->index, &best.mesh);
    const uint32_t n = best.ns ? best_division(g, m, o, most, &best) : 1;
    gr_graph_divide_rollout(g, m->index, n);
    if (n < 2) return NULL;
    if (n < most) {
        gr_planned_free(x.plan);
        const gr_mesh mesh = best.mesh;
        compare(g, m, o, &x);
        if (!x.fit) x.c[x.fit++] = (candidate){.mesh = mesh, .ns = best.ns, .peak = best.peak};
    }
    best = choose(g, m, o, &x, d);
    if (d) tell_divided(m, &(candidate){.ns = 0}, &best, n, d);
    return x.plan;
}

/* The fastest number of ranks for the experts of its rollouts, where that pays. whole: the best with whole
 * copies of them. Its plan; NULL: none is made yet. */
static gr_planned *divide(gr_graph *g, const gr_model *m, const gr_plan_options *o, const candidate *whole,
                          uint32_t most, gr_diag *d)
{
    candidate best = {.ns = 0};
    gr_graph_divide_rollout(g, m->index, most);
    if (!whole->ns) return choose_divided(g, m, o, most, d);
    uint32_t n = best_division(g, m, o, most, &best);
    if (n > 1 && best.ns < whole->ns) best = measure_divided(g, m, o, n, o->hurry);
    if (!pays(&best, whole)) n = 1;
    gr_graph_divide_rollout(g, m->index, n);
    if (n > 1 && d) tell_divided(m, whole, &best, n, d);
    return NULL;
}

/* A sketch serves as the plan where no model behind it was given another mesh since. */
gr_status gr_plan_meshes(gr_planned **out, gr_graph *g, const gr_plan_options *o, gr_diag *d)
{
    gr_planned *plan = NULL;
    for (size_t i = 0; i < g->n_models && gr_meshes_open(g); i++) {
        const gr_model *m = g->models[i];
        choice x;
        if (!m->sharding.mesh_auto) continue;
        gr_planned_free(plan);
        compare(g, m, o, &x);
        const candidate best = choose(g, m, o, &x, d);
        plan = x.plan;
        const uint32_t most = o->quick ? 1 : divided_below(g, m, 2 * GR_TP_MAX); /* as it is */
        if (most < 2) continue;
        gr_planned_free(plan);
        plan = divide(g, m, o, &best, most, d);
    }
    if (!plan) return gr_plan_graph(out, g, o, d);
    const gr_status st = o->sketch ? GR_OK : gr_plan_sketched(plan, g, o, d);
    if (!st)
        *out = plan;
    else
        gr_planned_free(plan);
    return st;
}
