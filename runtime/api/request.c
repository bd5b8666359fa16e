/* runtime/api/request.c: the graph that is asked about, and what it is planned with. */
#include "runtime/api/request.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "graphs/loader/load.h"
#include "runtime/base/files.h"
#include "runtime/base/limits.h"
#include "scheduler/search/policy.h"

gr_status gr_request_ranks(const char *text, uint32_t *hosts, uint32_t *ranks, gr_diag *d)
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

gr_status gr_request_disk(char **folder, uint64_t *bytes, const gr_request *q, gr_diag *d)
{
    const char *size = q->disk ? strrchr(q->disk, ':') : NULL;
    *folder = NULL;
    *bytes = 0;
    if (!q->disk) return GR_OK;
    if (!size || size == q->disk || !gr_bytes_parse(size + 1, bytes) || !*bytes)
        return gr_diag_error(d, (gr_loc){0}, GR_E_INVALID,
                             "--disk '%s' must be a folder and a size, such as /nvme:500GiB", q->disk);
    *folder = gr_strndup(q->disk, (size_t)(size - q->disk));
    return GR_OK;
}

static gr_status count_hosts(gr_plan_options *o, const gr_request *q, gr_diag *d)
{
    uint32_t ranks;
    if (gr_request_ranks(q->ranks, &o->hosts, &ranks, d)) return GR_E_INVALID;
    if (!o->hosts) o->hosts = (ranks + o->hardware.devices - 1) / o->hardware.devices;
    if (ranks % o->hosts)
        return gr_diag_error(d, (gr_loc){0}, GR_E_INVALID,
                             "--ranks %u: hosts of '%s' have %u devices; say hosts by devices, such as %ux%u",
                             ranks, o->hardware.name, o->hardware.devices, o->hosts, o->hardware.devices);
    gr_hardware_share(&o->hardware, q->hardware, ranks / o->hosts);
    return GR_OK;
}

static gr_status read_graph(gr_graph **g, const gr_request *q, const gr_load_options *o, gr_diag *d)
{
    return q->text ? gr_graph_parse(g, q->text, q->text_bytes, q->graph, o, d)
                   : gr_graph_load(g, q->graph, o, d);
}

gr_status gr_request_load(gr_graph **g, const gr_request *q, const gr_plan_options *plan, gr_diag *d)
{
    const char **set = gr_calloc(q->n_set + 2, sizeof(*set));
    size_t n = 0;
    for (size_t i = 0; i < q->n_set; i++) set[n++] = q->set[i];
    char *steps = gr_printf("run.steps=%llu", (unsigned long long)q->steps);
    char *seed = gr_printf("run.seed=%llu", (unsigned long long)q->seed);
    if (q->has_steps) set[n++] = steps;
    if (q->has_seed) set[n++] = seed;
    gr_load_options o = {.set = set, .n_set = n, .need_shapes = plan != NULL, .run = q->resume};
    gr_status st = gr_request_ranks(q->ranks, &o.hosts, &o.ranks, d);
    if (plan) o.hosts = plan->hosts;
    if (!st) st = read_graph(g, q, &o, d);
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

gr_status gr_request_options(gr_plan_options *o, const gr_request *q, gr_diag *d)
{
    *o = (gr_plan_options){.budget_bytes = q->budget,
                           .host_budget_bytes = q->host_budget,
                           .threads = q->threads ? q->threads : gr_usable_cores()};
    if (q->policy) o->policy = gr_policy_find(q->policy); /* args.c knows the names */
    char *folder;
    gr_status st = gr_request_disk(&folder, &o->disk_budget_bytes, q, d);
    free(folder);
    if (st) return st;
    st = q->hardware ? gr_hardware_find(&o->hardware, q->hardware, d)
                     : gr_hardware_local(&o->hardware, q->device, d);
    if (st) return st;
    if (q->device && strcmp(q->device, o->hardware.device))
        return gr_diag_error(d, (gr_loc){0}, GR_E_INVALID, "--device %s does not go with --hardware %s",
                             q->device, o->hardware.name);
    o->kernels = gr_kernels_find(o->hardware.device);
    st = count_hosts(o, q, d);
    return st ? st : check_budget(o, d);
}

size_t gr_request_files(const gr_graph *g, const char *run, gr_diag *d)
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

gr_status gr_request_check(gr_graph **g, const gr_request *q, gr_diag *d)
{
    gr_graph *read = NULL;
    gr_status st = gr_request_load(&read, q, NULL, d);
    if (!st) st = gr_plan_check(read, d);
    if (st)
        gr_graph_free(read);
    else
        gr_request_files(*g = read, NULL, d);
    return st;
}
