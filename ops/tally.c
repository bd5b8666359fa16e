/* ops/tally.c: counts of the routers of a node's passes: their objects, their way to the host, their metrics.
 */
#include "ops/tally.h"

#include "ops/base/configs.h"
#include "ops/base/routes.h"
#include "ops/parallel/sharding.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

struct gr_tally_state {
    gr_session *session;
    const gr_node *node;
    bool compares;
    gr_routers all;
    uint64_t n;  /* values of a tally */
    double *sum; /* [n] */
    gr_balance_loss balance;
    double balance_loss; /* of so many mini-batches together */
    uint32_t takes;
    bool divided; /* experts are */
    gr_exchanges exchanges;
    struct {
        uint32_t trips, load, entropy, dead, balance, agreement, tokens, least;
    } metrics;
};

static gr_routers routers_of(const gr_node *n)
{
    return gr_model_routers(&n->model->shape, n->model->shape.layers);
}

uint32_t gr_tally_routes(const gr_node *n)
{
    return gr_node_replay(n) == GR_REPLAY_NONE ? 0 : routers_of(n).choices;
}

gr_balance_loss gr_tally_balance(const gr_node *n)
{
    const gr_model_shape *s = &n->model->shape;
    const double coefficient = n->op->trains ? ((const gr_update_cfg *)n->cfg)->router_aux_loss_coef : 0;
    gr_balance_loss b = {.coefficient = coefficient};
    for (uint32_t kind = 0; kind < s->n_kinds; kind++) {
        if (s->kinds[kind].mlp != GR_MLP_EXPERTS) continue;
        b.experts = s->kinds[kind].experts.count;
        b.top_k = s->kinds[kind].experts.top_k;
    }
    b.routers = routers_of(n).n;
    return b;
}

/* ---- declaring ------------------------------------------------------------------------------------------
 */

gr_tally_objects gr_tally_declare(gr_tasks *p, const gr_node *n, const gr_micro_bounds *b)
{
    const gr_routers all = routers_of(n);
    const uint64_t bytes = gr_tally_values(all) * sizeof(double);
    gr_tally_objects o = {GR_NONE, GR_NONE, GR_NONE};
    if (!all.n) return o;
    o.tally = gr_tasks_temp(p, GR_CAT_WORKSPACE, bytes, "tally");
    o.back = gr_tasks_host(p, GR_CAT_WORKSPACE, bytes, "tally_back");
    if (b->routes) o.differs = gr_tasks_temp(p, GR_CAT_WORKSPACE, b->tokens * sizeof(uint32_t), "differs");
    return o;
}

void gr_tally_declare_take(gr_tasks *p, const gr_node *n, const gr_tally_objects *o, uint32_t kernel)
{
    if (o->tally == GR_NONE) return;
    gr_sharding_total(p, o->tally, (uint32_t)gr_tally_values(routers_of(n)), "total_tally");
    gr_tasks_waits(gr_tasks_run(
        p, kernel, 0, (gr_use[]){[TAKE_TALLY] = {o->tally, GR_READ}, [TAKE_BACK] = {o->back, GR_WRITE}},
        N_TAKE, "take_tally"));
}

/* ---- running --------------------------------------------------------------------------------------------
 */

gr_tally_state *gr_tally_open(gr_session *s, const gr_node *n)
{
    const gr_routers all = routers_of(n);
    const char *name = n->name;
    if (!all.n) return NULL;
    gr_tally_state *t = gr_calloc(1, sizeof(*t));
    *t = (gr_tally_state){.session = s,
                          .node = n,
                          .compares = gr_node_replay(n) != GR_REPLAY_NONE,
                          .all = all,
                          .divided = gr_mesh_size(&n->placement.mesh, GR_AXIS_EXPERT) > 1,
                          .n = gr_tally_values(all)};
    t->sum = gr_calloc(t->n, sizeof(*t->sum));
    t->balance = gr_tally_balance(n);
    if (t->balance.coefficient > 0) t->metrics.balance = gr_session_name(s, n, "%s.balance_loss", name);
    if (t->divided) t->metrics.trips = gr_session_name(s, n, "%s.expert_trips", name);
    t->metrics.load = gr_session_name(s, n, "%s.expert_load", name);
    t->metrics.entropy = gr_session_name(s, n, "%s.expert_entropy", name);
    t->metrics.dead = gr_session_name(s, n, "%s.experts_dead", name);
    if (!t->compares) return t;
    t->metrics.agreement = gr_session_name(s, n, "%s.routing_agreement", name);
    t->metrics.tokens = gr_session_name(s, n, "%s.routing_agreement_tokens", name);
    t->metrics.least = gr_session_name(s, n, "%s.routing_agreement_least", name);
    return t;
}

void gr_tally_close(gr_tally_state *t)
{
    if (!t) return;
    free(t->sum);
    free(t);
}

void gr_tally_clear(const gr_call *c, void *tally)
{
    if (tally)
        c->session->kernels->zero(c->queue, tally, gr_tally_values(routers_of(c->node)) * sizeof(double));
}

void gr_tally_begin_pass(const gr_call *c, void *differs, uint32_t tokens)
{
    if (differs) c->session->kernels->zero(c->queue, differs, tokens * sizeof(uint32_t));
}

/* Of ranks that a pass is cut over, the last ones' parts end in tokens that are nobody's. Ranks that have
 * slices of experts see the tokens of all of these, which are neighbours. */
static uint32_t padding_of(const gr_node *n, const gr_pass *p)
{
    const bool divided = gr_mesh_size(&n->placement.mesh, GR_AXIS_EXPERT) > 1;
    const uint32_t parts = divided ? 1 : gr_mesh_size(&n->placement.mesh, GR_AXIS_TENSOR);
    const uint32_t first = p->place / parts * parts * p->n_own, end = first + parts * p->n_own;
    return end - GR_MIN(end, GR_MAX(first, p->n_tokens));
}

gr_routing gr_tally_routing(const gr_node *n, const gr_pass *p, const gr_micro *k, void *tally, void *differs)
{
    return (gr_routing){.recorded = k->routes,
                        .follow = gr_node_replay(n) == GR_REPLAY_ROLLOUT,
                        .tally = tally,
                        .differs = differs,
                        .padding = padding_of(n, p),
                        .exchanges = p->tally ? &p->tally->exchanges : NULL,
                        .shares = tally && gr_tally_balance(n).coefficient > 0};
}

gr_status gr_tally_take(const gr_call *c, gr_tally_state *t, gr_diag *d)
{
    double *taken = c->ptr[TAKE_BACK];
    const gr_tally at = gr_tally_at(taken, t->all, (gr_routers){0});
    gr_device_read(c->queue, c->ptr[TAKE_BACK], c->ptr[TAKE_TALLY], t->n * sizeof(*taken));
    const gr_status st = gr_queue_finish(c->queue, d);
    for (uint64_t i = 0; !st && i < t->n; i++) t->sum[i] += taken[i];
    if (!st && t->balance.coefficient > 0)
        t->balance_loss += gr_balance_value(&t->balance, at.load, at.share);
    t->takes++;
    return st;
}

/* ---- metrics --------------------------------------------------------------------------------------------
 */

/* Loads of one layer. */
typedef struct spread {
    double most, entropy; /* over the mean, and over the most that there can be */
    uint32_t dead;
} spread;

static spread spread_of(const double *load, uint32_t n)
{
    spread s = {.entropy = 1};
    double sum = 0, entropy = 0;
    for (uint32_t e = 0; e < n; e++) sum += load[e];
    for (uint32_t e = 0; e < n; e++) {
        s.dead += load[e] == 0;
        s.most = fmax(s.most, load[e] * n / sum);
        if (load[e] > 0) entropy -= load[e] / sum * log(load[e] / sum);
    }
    if (n > 1) s.entropy = entropy / log(n);
    return s;
}

static void report_loads(const gr_tally_state *t)
{
    const gr_model_shape *shape = &t->node->model->shape;
    spread worst = {.entropy = 1};
    for (uint32_t l = 0; l < shape->layers; l++) {
        const gr_layer_desc *d = gr_layer(shape, l);
        if (d->mlp != GR_MLP_EXPERTS) continue;
        const gr_tally at = gr_tally_at(t->sum, t->all, gr_model_routers(shape, l));
        const spread s = spread_of(at.load, d->experts.count);
        worst.most = fmax(worst.most, s.most);
        worst.entropy = fmin(worst.entropy, s.entropy);
        worst.dead += s.dead;
    }
    gr_session_metric(t->session, t->metrics.load, worst.most);
    gr_session_metric(t->session, t->metrics.entropy, worst.entropy);
    gr_session_metric(t->session, t->metrics.dead, worst.dead);
}

static void report_agreement(const gr_tally_state *t)
{
    const gr_tally at = gr_tally_at(t->sum, t->all, (gr_routers){0});
    double compared = 0, differ = 0, least = 1;
    for (uint32_t i = 0; i < t->all.n; i++) {
        compared += at.compared[i];
        differ += at.differ[i];
        if (at.compared[i] > 0) least = fmin(least, 1 - at.differ[i] / at.compared[i]);
    }
    if (compared == 0) return;
    gr_session_metric(t->session, t->metrics.agreement, 1 - differ / compared);
    gr_session_metric(t->session, t->metrics.tokens, 1 - *at.tokens / at.compared[0]);
    gr_session_metric(t->session, t->metrics.least, least);
}

static bool is_empty(const gr_tally_state *t)
{
    const double *load = gr_tally_at(t->sum, t->all, (gr_routers){0}).load;
    for (uint32_t e = 0; e < t->all.experts; e++)
        if (load[e] > 0) return false;
    return true;
}

void gr_tally_report(gr_tally_state *t)
{
    if (!t) return;
    if (!is_empty(t)) report_loads(t);
    if (t->compares) report_agreement(t);
    if (t->balance.coefficient > 0)
        gr_session_metric(t->session, t->metrics.balance, t->balance_loss / GR_MAX(t->takes, 1u));
    if (t->divided && t->exchanges.runs)
        gr_session_metric(t->session, t->metrics.trips,
                          (double)t->exchanges.trips / (double)t->exchanges.runs);
    t->exchanges = (gr_exchanges){0};
    t->balance_loss = t->takes = 0;
    memset(t->sum, 0, t->n * sizeof(*t->sum));
}
