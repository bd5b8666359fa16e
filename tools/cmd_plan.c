/* graphrun plan, diff. */
#include "scheduler/search/meshes.h"
#include "tools/cmd.h"

#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "ops/train.h"
#include "ops/tunables.h"
#include "scheduler/report/diff.h"
#include "scheduler/report/draw.h"
#include "scheduler/report/report.h"
#include "runtime/base/visible.h"
#include "graphs/loader/load.h"

static void plan_text(const gr_plan *p, const gr_graph *g, const gr_args *a, gr_str *out)
{
    const char *format = a->format ? a->format : "table";
    if (!strcmp(format, "json"))
        gr_plan_write_json(p, out);
    else if (!strcmp(format, "csv"))
        gr_draw_csv(p, out);
    else if (!strcmp(format, "dot"))
        gr_draw_dot(p, g, out);
    else if (!strcmp(format, "svg"))
        gr_draw_svg(p, out);
    else if (!strcmp(format, "html"))
        gr_draw_html(p, g, out);
    else
        gr_plan_table(p, out, !a->out && isatty(STDOUT_FILENO));
}

/* Where cuts of an update are part of the bits, the planner would rather compute layers twice than cut
 * smaller. What that costs a sweep shows. */
static void hint(const gr_planned *p, const gr_node *n, gr_diag *d)
{
    const gr_choices *how = &p->choices[n->index];
    const uint32_t longest = gr_node_longest(n);
    const uint32_t now = (uint32_t)GR_MIN((uint64_t)how->micro_tokens, gr_train_open_tokens(n)),
                   least = GR_MAX(now / 4, longest);
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

int gr_cmd_plan(const gr_args *a, gr_diag *d)
{
    gr_graph *g = NULL;
    gr_plan_options o;
    gr_planned *p = NULL;
    if (a->sweep) return gr_cmd_sweep(a, d);
    if (a->explore) return gr_cmd_explore(a, d);
    gr_status st = gr_cmd_plan_options(&o, a, d);
    if (!st) st = gr_cmd_load(&g, a, a->operand[0], &o, d);
    if (!st) st = gr_plan_meshes(&p, g, &o, d);
    if (st == GR_E_NOFIT) gr_cmd_advise(g, a, a->operand[0], &o, d);
    if (!st) hints(p, d);
    int status = gr_exit_status_input(st);
    if (p) {
        gr_str text = {0};
        plan_text(p->plan, g, a, &text);
        if (gr_cmd_finish(&text, a->out, d) && !status) status = 1;
    }
    gr_planned_free(p);
    gr_graph_free(g);
    return status;
}

int gr_cmd_diff(const gr_args *a, gr_diag *d)
{
    gr_plan *p[2] = {NULL, NULL};
    gr_status st = GR_OK;
    for (int i = 0; i < 2; i++) {
        gr_status read = gr_plan_read_json(&p[i], a->operand[i], d);
        if (read) st = read;
    }
    int status = gr_exit_status_input(st);
    if (!st) {
        gr_str text = {0}, shown = {0};
        gr_plan_diff(p[0], p[1], &text);
        gr_str_visible(&shown, text.text, text.len, true); /* its names are those of files */
        gr_str_release(&text);
        status = gr_cmd_finish(&shown, NULL, d);
    }
    gr_plan_free(p[0]);
    gr_plan_free(p[1]);
    return status;
}
