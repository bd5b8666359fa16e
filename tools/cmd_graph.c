/* graphrun check, verify, ops, schema; what commands on graphs share. */
#include "tools/cmd.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "runtime/base/files.h"
#include "graphs/loader/load.h"
#include "graphs/loader/print.h"
#include "graphs/loader/schema.h"

/* ---- shared
 * ------------------------------------------------------------------------------------------------- */

int gr_cmd_finish(gr_str *s, const char *path, gr_diag *d)
{
    gr_status st = GR_OK;
    if (path)
        st = gr_file_write(path, s->text ? s->text : "", s->len, d);
    else
        fwrite(s->text ? s->text : "", 1, s->len, stdout);
    gr_str_release(s);
    return st ? 1 : 0;
}

/* ---- check
 * -------------------------------------------------------------------------------------------------- */

static void put_found(const gr_graph *g, gr_str *out)
{
    gr_str_printf(out, "%s: no errors; nodes: %zu; models: ", g->name, g->n_nodes);
    for (size_t i = 0; i < g->n_models; i++) {
        const gr_model *m = g->models[i];
        if (!m->implied) /* these stand behind all others */
            gr_str_printf(out, "%s%s%s", i ? ", " : "", m->name,
                          gr_model_has_lora(m) ? " (trained by adapters)"
                          : m->follows         ? " (follows another)"
                          : m->trained         ? " (trained)"
                                               : "");
    }
    if (!g->n_models) gr_str_puts(out, "none");
    gr_str_puts(out, "\n");
}

int gr_cmd_check(const gr_args *a, gr_diag *d)
{
    gr_graph *g = NULL;
    if (gr_request_check(&g, &a->ask, d)) return 2;
    gr_str text = {0};
    if (a->explain)
        gr_graph_explain(g, &text);
    else
        put_found(g, &text);
    gr_graph_free(g);
    return gr_cmd_finish(&text, NULL, d);
}

int gr_cmd_ops(const gr_args *a, gr_diag *d)
{
    (void)a;
    gr_str text = {0};
    gr_graph_ops(&text);
    return gr_cmd_finish(&text, NULL, d);
}

int gr_cmd_schema(const gr_args *a, gr_diag *d)
{
    (void)a;
    gr_str text = {0};
    gr_graph_schema(&text);
    return gr_cmd_finish(&text, NULL, d);
}

/* ---- verify
 * ------------------------------------------------------------------------------------------------- */

static void print_proven(const gr_plan *plan, const char *path)
{
    uint32_t steps = 0, entries = 0;
    for (uint32_t c = 0; c <= plan->n_more; c++) {
        steps += gr_plan_role(plan, c)->paths[GR_PATH_STEADY].n;
        entries += gr_plan_role(plan, c)->n_ledger;
    }
    printf("%s: proven: ", path);
    if (plan->n_more) printf("%u roles of ranks, ", plan->n_more + 1);
    printf("%u steps, %u ledger entries, peak %llu bytes\n", steps, entries,
           (unsigned long long)gr_plan_peak(plan));
}

int gr_cmd_verify(const gr_args *a, gr_diag *d)
{
    gr_plan *plan = NULL;
    gr_graph *g = NULL;
    gr_planned *p = NULL;
    gr_plan_options o;
    gr_load_options how = {.need_shapes = true};
    gr_status st = gr_request_options(&o, &a->ask, d);
    if (!st) st = gr_plan_read_json(&plan, a->operand[0], d);
    if (!st) how.ranks = gr_plan_all_ranks(plan);
    if (!st) how.hosts = plan->hosts;
    if (!st && plan->hosts)
        o.hosts = plan->hosts; /* what ranks exchange within a layer takes its time there */
    if (!st) st = gr_graph_parse(&g, plan->graph_text, strlen(plan->graph_text), a->operand[0], &how, d);
    if (!st) st = gr_plan_adopt(&p, plan, g, &o, GR_ADOPT_TO_PROVE, d);
    if (st && st != GR_E_NOFIT && plan)
        (void)gr_diag_error(d, (gr_loc){.file = a->operand[0]}, st, "not proven");
    if (!st) print_proven(plan, a->operand[0]);
    if (p)
        gr_planned_free(p);
    else
        gr_plan_free(plan);
    gr_graph_free(g);
    return gr_exit_status_input(st);
}
