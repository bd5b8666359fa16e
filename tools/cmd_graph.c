/* graphrun check, verify, ops, schema; what commands on graphs share. */
#include "tools/cmd.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "runtime/base/limits.h"
#include "scheduler/search/policy.h"
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

gr_status gr_cmd_read_ranks(const char *text, uint32_t *hosts, uint32_t *ranks, gr_diag *d)
{
    unsigned h = 0, n = 1;
    int end = 0;
    bool cross = text && sscanf(text, "%9ux%9u%n", &h, &n, &end) == 2 && !text[end];
    bool plain = text && !cross && sscanf(text, "%9u%n", &n, &end) == 1 && !text[end];
    uint64_t all = cross ? (uint64_t)h * n : n;
    *hosts = cross ? h : 0;
    *ranks = (uint32_t)all;
    if (!text || ((cross || plain) && all > 0 && all <= 1u << 20)) return GR_OK;
    return gr_diag_error(
        d, (gr_loc){0}, GR_E_INVALID,
        "--ranks '%s': a number of ranks, or hosts by devices such as 2x8, up to 1048576 in all", text);
}

static gr_status count_hosts(gr_plan_options *o, const gr_args *a, gr_diag *d)
{
    uint32_t ranks;
    if (gr_cmd_read_ranks(a->ranks, &o->hosts, &ranks, d)) return GR_E_INVALID;
    if (!o->hosts) o->hosts = (ranks + o->hardware.devices - 1) / o->hardware.devices;
    if (ranks % o->hosts)
        return gr_diag_error(d, (gr_loc){0}, GR_E_INVALID,
                             "--ranks %u: hosts of '%s' have %u devices; say hosts by devices, such as %ux%u",
                             ranks, o->hardware.name, o->hardware.devices, o->hosts, o->hardware.devices);
    gr_hardware_share(&o->hardware, a->hardware, ranks / o->hosts);
    return GR_OK;
}

gr_status gr_cmd_load(gr_graph **g, const gr_args *a, const char *path, const gr_plan_options *plan,
                      gr_diag *d)
{
    const char **set = gr_calloc(a->n_set + 2, sizeof(*set));
    size_t n = 0;
    for (size_t i = 0; i < a->n_set; i++) set[n++] = a->set[i];
    char *steps = gr_printf("run.steps=%llu", (unsigned long long)a->steps);
    char *seed = gr_printf("run.seed=%llu", (unsigned long long)a->seed);
    if (a->has_steps) set[n++] = steps;
    if (a->has_seed) set[n++] = seed;
    gr_load_options o = {.set = set, .n_set = n, .need_shapes = plan != NULL, .run = a->resume};
    gr_status st = gr_cmd_read_ranks(a->ranks, &o.hosts, &o.ranks, d);
    if (plan) o.hosts = plan->hosts;
    if (!st) st = gr_graph_load(g, path, &o, d);
    free(set);
    free(steps);
    free(seed);
    return st;
}

/* What is asked for is there. Arena and host pool of the CPU device share the machine's memory. */
static gr_status check_budget(const gr_plan_options *o, gr_diag *d)
{
    const gr_hardware *hw = &o->hardware;
    uint64_t most = hw->device_bytes + (strcmp(hw->device, "cpu") ? 0 : hw->host_bytes);
    char asked[32], have[32];
    if (o->budget_bytes <= most) return GR_OK;
    return gr_diag_error(d, (gr_loc){0}, GR_E_INVALID, "--budget %s is more than the %s of '%s'",
                         gr_bytes_format(o->budget_bytes, asked), gr_bytes_format(most, have), hw->name);
}

gr_status gr_cmd_plan_options(gr_plan_options *o, const gr_args *a, gr_diag *d)
{
    *o = (gr_plan_options){
        .budget_bytes = a->budget, .host_budget_bytes = a->host_budget, .threads = gr_usable_cores()};
    if (a->policy) o->policy = gr_policy_find(a->policy); /* args.c knows the names */
    gr_status st = a->hardware ? gr_hardware_find(&o->hardware, a->hardware, d)
                               : gr_hardware_local(&o->hardware, a->device, d);
    if (st) return st;
    if (a->device && strcmp(a->device, o->hardware.device))
        return gr_diag_error(d, (gr_loc){0}, GR_E_INVALID, "--device %s does not go with --hardware %s",
                             a->device, o->hardware.name);
    o->kernels = gr_kernels_find(o->hardware.device);
    st = count_hosts(o, a, d);
    return st ? st : check_budget(o, d);
}

/* ---- check
 * -------------------------------------------------------------------------------------------------- */

size_t gr_cmd_files(const gr_graph *g, const char *run, gr_diag *d)
{
    size_t missing = 0;
    for (size_t i = 0; i < g->n_nodes; i++) {
        const gr_node *n = g->nodes[i];
        for (const gr_key *k = n->op->keys; k->name; k++) {
            if (k->kind != GR_KEY_PATH) continue;
            const char *path = *(const char *const *)(const void *)((const char *)n->cfg + k->offset);
            const gr_value *v = gr_value_get(n->value, k->name);
            if (!path || !v || gr_path_exists(path)) continue;
            missing++;
            if (!run) {
                gr_diag_warn(d, v->at, "'%s' of node '%s' is not here: '%s'", k->name, n->name, path);
                continue;
            }
            gr_diag_error(d, v->at, GR_E_INVALID, "'%s' of node '%s' is not here: '%s'", k->name, n->name,
                          path);
            gr_diag_note(d, v->at,
                         "if it lies elsewhere now: graphrun exec --resume %s --set nodes.%s.%s=FILE", run,
                         n->name, k->name);
        }
    }
    return missing;
}

static void put_found(const gr_graph *g, gr_str *out)
{
    gr_str_printf(out, "%s: no errors; nodes: %zu; models: ", g->name, g->n_nodes);
    for (size_t i = 0; i < g->n_models; i++)
        gr_str_printf(out, "%s%s%s", i ? ", " : "", g->models[i]->name,
                      g->models[i]->trained ? " (trained)" : "");
    if (!g->n_models) gr_str_puts(out, "none");
    gr_str_puts(out, "\n");
}

int gr_cmd_check(const gr_args *a, gr_diag *d)
{
    gr_graph *g = NULL;
    if (gr_cmd_load(&g, a, a->operand[0], NULL, d)) return 2;
    if (gr_plan_check(g, d)) {
        gr_graph_free(g);
        return 2;
    }
    gr_str text = {0};
    gr_cmd_files(g, NULL, d);
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
    gr_status st = gr_cmd_plan_options(&o, a, d);
    if (!st) st = gr_plan_read_json(&plan, a->operand[0], d);
    if (!st) how.ranks = gr_plan_all_ranks(plan);
    if (!st) how.hosts = plan->hosts;
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
