/* graphrun plan, diff. */
#include "tools/cmd.h"

#include <stdio.h>
#include <string.h>
#include <unistd.h>

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
        gr_draw_svg(p, g, out);
    else if (!strcmp(format, "html"))
        gr_draw_html(p, g, out);
    else
        gr_plan_table(p, out, !a->ask.out && isatty(STDOUT_FILENO));
}

int gr_cmd_plan(const gr_args *a, gr_diag *d)
{
    gr_graph *g = NULL;
    gr_plan_options o;
    gr_planned *p = NULL;
    gr_request q = a->ask;
    q.grows = true;
    if (a->sweep) return gr_cmd_sweep(a, d);
    if (a->explore) return gr_cmd_explore(a, d);
    int status = gr_exit_status_input(gr_request_plan(&p, &g, &o, &q, d));
    if (p) {
        gr_str text = {0};
        plan_text(p->plan, g, a, &text);
        if (gr_cmd_finish(&text, a->ask.out, d) && !status) status = 1;
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
