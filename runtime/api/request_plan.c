/* runtime/api/request_plan.c: the plan that is asked for, and where a run with it begins. */
#include "runtime/api/request.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>

#include "graphs/loader/load.h"
#include "ops/model/checkpoint.h"
#include "ops/train.h"
#include "ops/tunables.h"
#include "runtime/base/files.h"
#include "runtime/io/manifest.h"
#include "scheduler/search/meshes.h"

/* ---- a new plan -----------------------------------------------------------------------------------------
 */

/* Where cuts of an update are part of the bits, the planner would rather compute layers twice than cut
 * smaller. What that costs a sweep shows. */
static void hint(const gr_planned *p, const gr_node *n, gr_diag *d)
{
    const gr_choices *how = &p->choices[n->index];
    const uint32_t together = gr_node_together(n);
    const uint32_t now = (uint32_t)GR_MIN((uint64_t)how->micro_tokens, gr_train_open_tokens(n)),
                   least = GR_MAX(now / 4, together);
    if (!how->recompute || least >= now || !gr_cuts_change_bits(p->graph, n, p->kernels)) return;
    gr_diag_note(
        d, (gr_loc){0},
        "%u of %u layers of '%s' are computed twice, for want of memory: smaller micro-batches may be "
        "faster (other bits); --sweep nodes.%s.micro_tokens=%u..%u:4 shows it",
        how->recompute, n->model->shape.layers, n->name, n->name, least, now);
}

static void hints(const gr_planned *all, gr_diag *d)
{
    for (uint32_t c = 0; c <= all->n_more; c++) {
        const gr_planned *p = gr_planned_role(all, c);
        for (size_t i = 0; i < p->graph->n_nodes; i++)
            if (p->graph->nodes[i]->op->trains && p->graph->nodes[i]->placement.role == c)
                hint(p, p->graph->nodes[i], d);
    }
}

gr_status gr_request_plan(gr_planned **p, gr_graph **g, gr_plan_options *o, const gr_request *q, gr_diag *d)
{
    gr_status st = gr_request_options(o, q, d);
    if (!st) st = gr_request_load(g, q, o, d);
    if (!st) st = gr_plan_meshes(p, *g, o, d);
    if (st == GR_E_NOFIT) gr_request_advise(*g, q, o, d);
    if (!st) hints(*p, d);
    return st;
}

/* ---- a plan to run --------------------------------------------------------------------------------------
 */

/* A folder that nobody has: runs of one graph may begin in the same second, so that it is made here. What
 * cannot be made is said by who opens it. */
char *gr_request_new_out(const gr_graph *g)
{
    char when[32];
    time_t now = time(NULL);
    struct tm tm;
    strftime(when, sizeof(when), "%Y%m%d-%H%M%S", localtime_r(&now, &tm));
    char *name = gr_printf("runs/%s-%s", g->name, when), *path;
    for (char *c = strchr(name, '/') + 1; *c; c++) *c = *c == '/' ? '_' : *c; /* one folder, below runs */
    path = gr_strdup(name);
    (void)mkdir("runs", 0777);
    for (unsigned i = 2; mkdir(path, 0777) && errno == EEXIST; i++) {
        free(path);
        path = gr_printf("%s-%u", name, i);
    }
    free(name);
    return path;
}

char *gr_request_own_plan(const gr_request *q)
{
    bool asked = q->replan || q->budget || q->host_budget || q->policy || q->plan;
    char *path = q->resume && !asked ? gr_printf("%s/plan.json", q->resume) : NULL;
    if (!path || gr_path_exists(path)) return path;
    free(path);
    return NULL;
}

/* Where models are sharded over the ranks of a node, nodes are as many and as large now as in the plan. */
static bool has_its_nodes(const gr_plan *p, const gr_graph *g, uint32_t hosts)
{
    for (size_t m = 0; m < g->n_models; m++)
        if (g->models[m]->sharding.over == GR_SHARD_NODE && GR_MAX(p->hosts, 1u) != GR_MAX(hosts, 1u))
            return false;
    for (uint32_t i = 0; i < p->n_settings; i++) {
        const gr_node *n = gr_graph_node(g, p->settings[i].node);
        if (n && !strcmp(p->settings[i].name, "shards") &&
            g->roles[n->placement.role].node != p->settings[i].value)
            return false;
    }
    return true;
}

/* Whether the plan is for the roles of ranks that the graph has now. */
static bool is_placed_alike(const gr_plan *plan, const gr_graph *g)
{
    bool alike = plan->n_more + 1 == g->n_roles && gr_plan_all_ranks(plan) == g->ranks;
    for (uint32_t c = 0; alike && c < g->n_roles; c++)
        alike = !strcmp(gr_plan_role(plan, c)->ranks, g->roles[c].text);
    return alike;
}

/* Its reason is the verifier's: a note to what to do. */
static gr_status adopt_own(gr_planned **p, gr_plan *plan, const char *path, const gr_graph *g,
                           const gr_plan_options *o, gr_diag *d)
{
    gr_diag why;
    gr_diag_init(&why);
    gr_status st = gr_plan_adopt(p, plan, g, o, GR_ADOPT_OWN, &why);
    if (st)
        gr_diag_error(
            d, (gr_loc){.file = path}, st,
            "the run's plan does not serve its graph as it is now set: --replan makes one that does");
    if (st && why.n) gr_diag_note(d, (gr_loc){.file = path}, "%s", why.messages[0].text);
    gr_diag_release(&why);
    return st;
}

static gr_status plan_to_run(gr_planned **p, gr_graph *g, const gr_request *q, const gr_plan_options *o,
                             gr_diag *d)
{
    char *own = gr_request_own_plan(q);
    const char *path = q->plan ? q->plan : own;
    gr_plan *plan = NULL;
    gr_status st =
        q->plan && gr_meshes_open(g)
            ? gr_diag_error(d, (gr_loc){0}, GR_E_INVALID,
                            "%s is of a mesh of ranks that was chosen: 'parallel: auto' does not go "
                            "with a plan that is read, write what it chose",
                            q->plan)
            : GR_OK;
    if (!st && path) st = gr_plan_read_json(&plan, path, d);
    if (!st && own && (!is_placed_alike(plan, g) || !has_its_nodes(plan, g, o->hosts))) {
        gr_plan_free(plan);
        plan = NULL;
    }
    if (!st && plan)
        st = own ? adopt_own(p, plan, own, g, o, d) : gr_plan_adopt(p, plan, g, o, GR_ADOPT_TO_RUN, d);
    if (st) gr_plan_free(plan);
    if (!st && !plan) st = gr_plan_meshes(p, g, o, d);
    free(own);
    return st;
}

static gr_status check_resume(gr_prepared *x, const gr_request *q, gr_diag *d)
{
    const char *wrong = !q->resume ? NULL : q->out ? "--out" : q->has_seed ? "--seed" : NULL;
    if (wrong)
        return gr_diag_error(d, (gr_loc){0}, GR_E_INVALID,
                             "%s does not go with --resume: the run has its own", wrong);
    char *graph = q->resume ? gr_printf("%s/graph.yaml", q->resume) : NULL;
    char *manifest = q->resume ? gr_printf("%s/" GR_MANIFEST, q->resume) : NULL;
    gr_status st = GR_OK;
    if (graph && (!gr_path_exists(graph) || gr_path_exists(manifest)))
        st = gr_diag_error(d, (gr_loc){0}, GR_E_INVALID,
                           "no run in '%s': %s '%s'; --resume takes the folder of a run, and goes on from "
                           "its last checkpoint",
                           q->resume, gr_path_exists(graph) ? "it is a checkpoint, with" : "there is no",
                           gr_path_exists(graph) ? manifest : graph);
    free(manifest);
    free(graph);
    x->has_step = q->at != NULL;
    return st || !q->at ? st : gr_checkpoint_step(&x->step, q->resume, q->at, d);
}

/* The host looks at every byte. */
static gr_status check_device(const gr_prepared *x, const gr_request *q, gr_diag *d)
{
    if (!q->check_memory || !strcmp(x->p->plan->device, "cpu")) return GR_OK;
    return gr_diag_error(d, (gr_loc){0}, GR_E_INVALID, "--check-memory is of the CPU device: --device cpu");
}

/* A plan that keeps something on a disk says how much: of a file, or of the run that goes on. */
static gr_status take_disk(gr_prepared *x, const gr_request *q, gr_diag *d)
{
    uint64_t has, needs = 0;
    char need[32], have[32];
    gr_status st = gr_request_disk(&x->disk, &has, q, d);
    for (uint32_t c = 0; c <= x->p->n_more; c++)
        needs = GR_MAX(needs, gr_planned_role(x->p, c)->plan->disk_bytes);
    if (st || needs <= has) return st;
    return gr_diag_error(
        d, (gr_loc){0}, GR_E_INVALID,
        "the plan keeps %s (%llu) on a disk, and --disk %s: give it a folder and as many bytes",
        gr_bytes_format(needs, need), (unsigned long long)needs,
        has ? gr_bytes_format(has, have) : "is not given");
}

gr_status gr_request_prepare(gr_prepared *x, const gr_request *given, gr_diag *d)
{
    gr_request q = *given;
    *x = (gr_prepared){.graph_path = q.graph ? gr_strdup(q.graph) : gr_printf("%s/graph.yaml", q.resume)};
    q.graph = x->graph_path;
    gr_status st = check_resume(x, &q, d);
    if (!st) st = gr_request_options(&x->o, &q, d);
    if (!st) st = gr_request_load(&x->g, &q, &x->o, d);
    if (!st && q.resume && gr_request_files(x->g, q.resume, d)) st = GR_E_INVALID;
    if (!st) st = plan_to_run(&x->p, x->g, &q, &x->o, d);
    if (!st) st = check_device(x, &q, d);
    if (!st) st = take_disk(x, &q, d);
    if (st == GR_E_NOFIT && !q.resume && !q.plan && !q.follows) gr_request_advise(x->g, &q, &x->o, d);
    if (st) return st;
    x->out = q.resume ? gr_strdup(q.resume) : q.out ? gr_strdup(q.out) : NULL;
    if (!x->out) x->out = q.follows ? gr_strdup("") : gr_request_new_out(x->g); /* the others are told */
    return GR_OK;
}

void gr_prepared_release(gr_prepared *x)
{
    gr_planned_free(x->p);
    gr_graph_free(x->g);
    free(x->graph_path);
    free(x->out);
    free(x->disk);
    *x = (gr_prepared){0};
}
