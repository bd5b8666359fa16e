/* runtime/comm/mesh.c: coordinates and groups of ranks. */
#include "runtime/comm/mesh.h"

const char *gr_axis_str(gr_axis axis)
{
    static const char *const names[] = {
        [GR_AXIS_TENSOR] = "tensor", [GR_AXIS_CONTEXT] = "context", [GR_AXIS_DATA] = "data"};
    return names[axis];
}

uint32_t gr_mesh_stride(const gr_mesh *m, gr_axis axis)
{
    uint32_t n = 1;
    for (int a = 0; a < (int)axis; a++) n *= gr_mesh_size(m, (gr_axis)a);
    return n;
}

uint32_t gr_mesh_ranks(const gr_mesh *m)
{
    return gr_mesh_stride(m, GR_AXIS_DATA);
}

uint32_t gr_mesh_place(const gr_mesh *m, uint32_t rank, gr_axis axis)
{
    const uint32_t at = rank / gr_mesh_stride(m, axis);
    return axis == GR_AXIS_DATA ? at : at % gr_mesh_size(m, axis);
}

uint32_t gr_mesh_group(const gr_mesh *m, uint32_t rank, gr_axis axis)
{
    return rank - gr_mesh_place(m, rank, axis) * gr_mesh_stride(m, axis);
}
