/* runtime/comm/mesh.c: coordinates and groups of ranks. */
#include "runtime/comm/mesh.h"

const char *gr_axis_str(gr_axis axis)
{
    static const char *const names[] = {
        [GR_AXIS_TENSOR] = "tensor",     [GR_AXIS_CONTEXT] = "context", [GR_AXIS_EXPERT] = "expert",
        [GR_AXIS_PIPELINE] = "pipeline", [GR_AXIS_DATA] = "data",
    };
    return names[axis];
}

/* Ranks of a stage that follow each other: those that share sequences, and as many of these groups as experts
 * are divided over. */
static uint32_t together(const gr_mesh *m)
{
    const uint32_t sharers = gr_mesh_sharers(m), experts = gr_mesh_size(m, GR_AXIS_EXPERT);
    uint32_t n = sharers;
    while (gr_mesh_size(m, GR_AXIS_PIPELINE) > 1 && n % experts) n += sharers;
    return n;
}

uint32_t gr_mesh_stride(const gr_mesh *m, gr_axis axis)
{
    const uint32_t tensor = gr_mesh_size(m, GR_AXIS_TENSOR), sharers = gr_mesh_sharers(m);
    switch (axis) {
    case GR_AXIS_TENSOR:
    case GR_AXIS_EXPERT:
        return 1;
    case GR_AXIS_PIPELINE:
        return together(m);
    case GR_AXIS_DATA:
        return sharers * gr_mesh_size(m, GR_AXIS_PIPELINE);
    default:
        return tensor;
    }
}

uint32_t gr_mesh_sharers(const gr_mesh *m)
{
    return gr_mesh_size(m, GR_AXIS_TENSOR) * gr_mesh_size(m, GR_AXIS_CONTEXT);
}

bool gr_mesh_any(const gr_mesh *m)
{
    for (int a = 0; a < GR_N_AXES; a++)
        if (gr_mesh_size(m, (gr_axis)a) > 1) return true;
    return false;
}

uint32_t gr_mesh_ranks(const gr_mesh *m)
{
    return gr_mesh_stride(m, GR_AXIS_DATA);
}

uint32_t gr_mesh_place(const gr_mesh *m, uint32_t rank, gr_axis axis)
{
    const uint32_t stage = together(m), sharers = gr_mesh_sharers(m);
    if (axis == GR_AXIS_DATA)
        return rank / (stage * gr_mesh_size(m, GR_AXIS_PIPELINE)) * (stage / sharers) +
               rank % stage / sharers;
    return rank / gr_mesh_stride(m, axis) % gr_mesh_size(m, axis);
}

uint32_t gr_mesh_block(const gr_mesh *m)
{
    return together(m) * gr_mesh_size(m, GR_AXIS_PIPELINE);
}

uint32_t gr_mesh_group(const gr_mesh *m, uint32_t rank, gr_axis axis)
{
    return rank - gr_mesh_place(m, rank, axis) * gr_mesh_stride(m, axis);
}
