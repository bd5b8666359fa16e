/* runtime/run/comms.c: the groups that a run has: all ranks, a role, a host, those of one place in all
 * hosts. */
#include "runtime/run/comms.h"

#include <stdlib.h>
#include <string.h>

gr_status gr_comms_open(gr_comms *c, const gr_graph *g, gr_comm *all, gr_diag *d)
{
    *c = (gr_comms){.all = all, .own = all};
    return gr_graph_one_role(g) ? GR_OK : gr_comm_split(&c->own, all, g->view, d);
}

/* The CPU device's memory is the host's. */
static gr_status join_devices(gr_comms *c, bool one_role, const char *device, const gr_memory *arena,
                              gr_diag *d)
{
    gr_status st = GR_OK;
    c->own_device = c->own;
    c->all_device = c->all;
#ifdef GR_CUDA
    bool cuda = !strcmp(device, "cuda");
    if (cuda && gr_comm_ranks(c->own) > 1) st = gr_comm_open_nccl(&c->own_device, c->own, arena, d);
    if (cuda && !one_role && !st) st = gr_comm_open_nccl(&c->all_device, c->all, &(gr_memory){0}, d);
#else
    (void)one_role, (void)device, (void)arena, (void)d;
#endif
    return st;
}

/* Where models are whole in each node, ranks are counted through the nodes. */
static gr_status split_nodes(gr_comms *c, uint32_t node_ranks, gr_diag *d)
{
    const uint32_t rank = gr_comm_rank(c->own);
    if (!node_ranks) return GR_OK;
    gr_status st = gr_comm_split(&c->node, c->own_device, rank / node_ranks, d);
    return st ? st : gr_comm_split(&c->replicas, c->own_device, rank % node_ranks, d);
}

/* Along an axis of a task's mesh: ranks that are so far from each other, and so many, are one group, whatever
 * they share. */
static gr_status split_along(gr_comms *c, const gr_mesh *mesh, gr_axis axis, const gr_memory *arena,
                             gr_diag *d)
{
    if (gr_mesh_size(mesh, axis) < 2 || gr_comms_peers(c, mesh, axis)) return GR_OK;
    c->peers = gr_realloc(c->peers, (c->n_peers + 1) * sizeof(*c->peers));
    gr_run_peers *p = &c->peers[c->n_peers];
    *p = (gr_run_peers){.stride = gr_mesh_stride(mesh, axis), .group.arena = *arena};
    gr_status st =
        gr_comm_split(&p->group.comm, c->own_device, gr_mesh_group(mesh, gr_comm_rank(c->own), axis), d);
    if (!st) c->n_peers++;
    return st;
}

static gr_status split_peers(gr_comms *c, const gr_tasks *p, const gr_memory *arena, gr_diag *d)
{
    gr_status st = GR_OK;
    for (size_t i = 0; i < p->n_tasks; i++)
        for (int axis = 0; axis < GR_AXIS_PIPELINE && !st; axis++) /* stages have no group of their own */
            st = split_along(c, &p->task[i].comm.mesh, (gr_axis)axis, arena, d);
    return st;
}

gr_status gr_comms_open_device(gr_comms *c, const gr_graph *g, const gr_tasks *p, const char *device,
                               const gr_memory *arena, gr_diag *d)
{
    gr_status st = join_devices(c, gr_graph_one_role(g), device, arena, d);
    if (!st) st = split_nodes(c, p->node_ranks, d);
    if (!st) st = split_peers(c, p, arena, d);
    return st;
}

/* What was split off, before what it was split from. */
static void leave(gr_comms *c)
{
    for (size_t i = 0; i < c->n_peers; i++) gr_comm_close(c->peers[i].group.comm);
    if (c->all_device != c->all) gr_comm_close(c->all_device);
    gr_comm_close(c->replicas);
    gr_comm_close(c->node);
    if (c->own_device != c->own) gr_comm_close(c->own_device);
    if (c->own != c->all) gr_comm_close(c->own);
}

void gr_comms_close(gr_comms *c, bool together)
{
    if (together) leave(c);
    free(c->peers);
    *c = (gr_comms){0};
}

gr_comm *gr_comms_group(const gr_comms *c, gr_comm_group group)
{
    return group == GR_GROUP_NODE ? c->node : group == GR_GROUP_REPLICAS ? c->replicas : c->own_device;
}

gr_tp_group *gr_comms_peers(const gr_comms *c, const gr_mesh *mesh, gr_axis axis)
{
    for (size_t i = 0; i < c->n_peers; i++)
        if (c->peers[i].group.comm->ranks == gr_mesh_size(mesh, axis) &&
            c->peers[i].stride == gr_mesh_stride(mesh, axis))
            return &c->peers[i].group;
    return NULL;
}
