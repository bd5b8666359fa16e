/* scheduler/search/meshes.c: meshes that models may be trained on, planned one after another. */
#include "scheduler/search/meshes.h"

#include "graphs/loader/parallel.h"
#include "graphs/loader/tensor.h"
#include "ops/model/tp.h"
#include "ops/parallel/stages.h"
#include "runtime/comm/comm.h"

#include <stdlib.h>
#include <string.h>

/* SHORT: those that fit are compared by so small a part of a search; of the best WHOLE, by all of it. SLACK:
 * what a search may win over all resident with the first levels, as a part of its time. PAYS: rollouts whose
 * experts are divided are chosen where an iteration takes less than so many hundredths: on two GPUs one took
 * 1.23 of the time of whole copies and was predicted 0.88. ROOMY: memory that holds everything. */
enum { MESHES_MAX = 256, CHUNKS_MAX = 4, NEAREST = 5, SHORT = 16, WHOLE = 3, SLACK = 50, PAYS = 75 };
#define ROOMY (UINT64_C(1) << 50)

typedef struct candidate {
    gr_mesh mesh;
    uint64_t ns, peak;
    uint64_t least; /* its time where memory has no end */
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
    gr_graph_set_mesh(g, m->index, &c->mesh); /* from here on it is not open */
    if (gr_plan_graph(&p, g, how, NULL) == GR_OK) {
        *c = (candidate){c->mesh, p->plan->ns, peak_of(p->plan), c->least};
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

/* c: of those that fit, so many, the fastest first. */
static void tell(const gr_model *m, const candidate *c, size_t near, size_t fit, size_t tried, gr_diag *d)
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
                 "model '%s': of %zu meshes of ranks %zu fit, the fastest is chosen: %s", m->name, tried, fit,
                 s.text);
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

/* Of those that fit, the same mesh with a part of the ranks to a sequence; NULL: it does not fit. */
static const candidate *fewer(const candidate *c, size_t n, const gr_mesh *mesh, uint32_t part)
{
    gr_mesh want = *mesh;
    want.size[GR_AXIS_CONTEXT] /= part;
    for (size_t i = 0; i < n; i++)
        if (want.size[GR_AXIS_CONTEXT] && !memcmp(&c[i].mesh, &want, sizeof(want))) return &c[i];
    return NULL;
}

/* Beyond the heads of keys twice as many ranks to a sequence are not tried where the last doubling did not
 * pay: c[0, n) are those tried so far that fit. */
static bool is_far(const gr_model *m, const candidate *c, size_t n, const gr_mesh *mesh)
{
    gr_mesh half_mesh = *mesh;
    half_mesh.size[GR_AXIS_CONTEXT] /= 2;
    if (!half_mesh.size[GR_AXIS_CONTEXT] || !copies_keys(m, mesh)) return false;
    const candidate *half = fewer(c, n, mesh, 2), *fourth = fewer(c, n, mesh, 4);
    return half ? fourth && half->ns >= fourth->ns : is_far(m, c, n, &half_mesh);
}

static int by_least(const void *a, const void *b)
{
    const candidate *x = a, *y = b;
    return x->least != y->least ? (x->least < y->least ? -1 : 1)
                                : memcmp(&x->mesh, &y->mesh, sizeof(x->mesh));
}

/* Its time in memory without an end; whether it fits, which is looked for where that plan does not. */
static bool measure_least(gr_graph *g, const gr_model *m, const gr_plan_options *how, candidate *c)
{
    gr_plan_options roomy = *how;
    roomy.budget_bytes = ROOMY;
    const bool any = measure(g, m, &roomy, c);
    if (any) c->least = c->ns;
    const uint64_t room = how->budget_bytes ? how->budget_bytes : how->hardware.device_bytes;
    return (any && c->peak <= room) || measure(g, m, how, c);
}

/* Whether it fits, and then its time and memory. */
typedef bool measuring(gr_graph *g, const gr_model *m, const gr_plan_options *how, candidate *c);

/* Of n those that are not far and fit; *n becomes how many were tried. */
static size_t sift(gr_graph *g, const gr_model *m, const gr_plan_options *how, measuring *measured,
                   candidate *c, size_t *n)
{
    size_t fit = 0, tried = 0;
    for (size_t i = 0; i < *n; i++) {
        candidate next = c[i];
        if (is_far(m, c, fit, &next.mesh)) continue;
        tried++;
        if (measured(g, m, how, &next)) c[fit++] = next;
    }
    *n = tried;
    return fit;
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

/* Compare them so, until none that is left can be among those that are told of; how many were looked at.
 * *plan becomes that of the first of them. */
static size_t compare_nearest(gr_graph *g, const gr_model *m, const gr_plan_options *how, candidate *c,
                              size_t n, gr_planned **plan)
{
    size_t fit = 0;
    for (size_t i = 0; i < n && (fit < NEAREST || may_beat(&c[i], &c[NEAREST - 1])); i++) {
        candidate tried = c[i];
        gr_planned *p = plan_on(g, m, how, &tried);
        if (!p) continue;
        c[fit++] = tried;
        qsort(c, fit, sizeof(*c), faster);
        const bool first = is_of(&c[0], &tried.mesh);
        gr_planned_free(first ? *plan : p);
        if (first) *plan = p;
    }
    return fit;
}

/* The first of n, and those of the others that may still be faster. The plan of the one that then is, as far
 * as there is one. */
static gr_planned *compare_best(gr_graph *g, const gr_model *m, const gr_plan_options *how, candidate *c,
                                size_t n)
{
    gr_planned *plan = NULL;
    size_t best = 0;
    for (size_t i = 0; i < n; i++) {
        if (i && !may_beat(&c[i], &c[best])) continue;
        gr_planned *p = plan_on(g, m, how, &c[i]);
        const bool first = !i || faster(&c[i], &c[best]) < 0;
        if (first) best = i;
        gr_planned_free(first ? plan : p);
        if (first) plan = p;
    }
    const gr_mesh mesh = c[best].mesh;
    qsort(c, n, sizeof(*c), faster);
    if (is_of(&c[0], &mesh)) return plan;
    gr_planned_free(plan); /* one that was not looked at again comes first */
    return NULL;
}

/* What fits at all, and the least that it could take: roughly; then better of what may be among the best by
 * that; then as plans are made. *best: what was chosen, ns 0: nothing fits. The sketch of it as one of these,
 * or NULL: none is made yet. */
static gr_planned *choose(gr_graph *g, const gr_model *m, const gr_plan_options *o, candidate *best,
                          gr_diag *d)
{
    gr_planned *plan = NULL;
    candidate c[MESHES_MAX];
    gr_plan_options how = *o;
    size_t n = candidates_of(g, m, c);
    how.sketch = true;
    how.quick = true;
    const size_t fit = sift(g, m, &how, o->quick ? measure : measure_least, c, &n);
    size_t near = fit;
    qsort(c, fit, sizeof(*c), o->quick ? faster : by_least);
    if (!o->quick) {
        how.quick = false;
        how.hurry = GR_MAX(o->hurry, (uint32_t)SHORT);
        near = compare_nearest(g, m, &how, c, fit, &plan);
        if (how.hurry > o->hurry) { /* else they have been made as plans are */
            gr_planned_free(plan);
            how.hurry = o->hurry;
            plan = compare_best(g, m, &how, c, GR_MIN(near, (size_t)WHOLE));
        }
    }
    /* where nothing fits, the plan says what is missing */
    *best = near ? c[0] : (candidate){.mesh = {.size = {0}}};
    gr_graph_set_mesh(g, m->index, &best->mesh);
    if (near && d) tell(m, c, near, fit, n, d);
    return plan;
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
    for (uint32_t n = most; n > 1; n = divided_below(g, m, n)) {
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

/* The fastest number of ranks for the experts of its rollouts, where that pays. whole: the best with whole
 * copies of them. Whether any was tried: sketches made before are of no use then. */
static bool divide(gr_graph *g, const gr_model *m, const gr_plan_options *o, const candidate *whole,
                   gr_diag *d)
{
    const uint32_t most = divided_below(g, m, 2 * GR_TP_MAX);
    uint32_t n = 1;
    candidate best = {.ns = 0};
    if (most < 2) return false;
    gr_graph_divide_rollout(g, m->index, most);
    if (!whole->ns) gr_planned_free(choose(g, m, o, &best, d));
    if (whole->ns || best.ns) n = best_division(g, m, o, most, &best);
    if (n > 1 && whole->ns && best.ns < whole->ns) best = measure_divided(g, m, o, n, o->hurry);
    if (!pays(&best, whole)) n = 1;
    gr_graph_divide_rollout(g, m->index, n);
    if (n > 1 && d) tell_divided(m, whole, &best, n, d);
    return true;
}

/* A sketch serves as the plan where no model behind it was given another mesh since. */
gr_status gr_plan_meshes(gr_planned **out, gr_graph *g, const gr_plan_options *o, gr_diag *d)
{
    gr_planned *plan = NULL;
    for (size_t i = 0; i < g->n_models && gr_meshes_open(g); i++) {
        const gr_model *m = g->models[i];
        candidate best;
        if (!m->sharding.mesh_auto) continue;
        gr_planned_free(plan);
        plan = choose(g, m, o, &best, d);
        if (o->quick || !divide(g, m, o, &best, d)) continue; /* quick: it is asked what fits as it is */
        gr_planned_free(plan);
        plan = NULL;
    }
    if (!plan) return gr_plan_graph(out, g, o, d);
    const gr_status st = o->sketch ? GR_OK : gr_plan_sketched(plan, g, o, d);
    if (!st)
        *out = plan;
    else
        gr_planned_free(plan);
    return st;
}
