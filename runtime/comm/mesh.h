/* runtime/comm/mesh.h: ranks as a mesh with named axes, and which of them form a group along an axis.
 *
 * A rank's number is its place on the mesh, counted along the first axis first: ranks that talk most are
 * neighbours. What the named axes leave is the axis `data`, the last: ranks with sequences of their own.
 *
 *   tensor: ranks that have the slices of the same layers (ops/model/tp.h);
 *   context: ranks that have the tokens of the same sequences, as many each;
 *   expert: ranks that have each a part of the experts of every layer. It is folded onto the other axes:
 *   neighbours, whatever sequences, tokens and slices they have;
 *   pipeline: ranks that have the stages of a model (ops/parallel/stages.h), and the same sequences. Those of
 *   one stage, which share a sequence's tokens or have its experts, are neighbours.
 */
#ifndef GR_RUNTIME_COMM_MESH_H
#define GR_RUNTIME_COMM_MESH_H

#include <stdbool.h>
#include <stdint.h>

typedef enum gr_axis {
    GR_AXIS_TENSOR,
    GR_AXIS_CONTEXT,
    GR_AXIS_EXPERT,
    GR_AXIS_PIPELINE,
    GR_N_AXES,
    GR_AXIS_DATA = GR_N_AXES
} gr_axis;

/* How many ranks side by side each named axis has; 0 counts as 1. */
typedef struct gr_mesh {
    uint32_t size[GR_N_AXES];
    uint32_t chunks; /* groups of layers that a rank of the axis `pipeline` has; 0 counts as 1 */
} gr_mesh;

/* "context" */
const char *gr_axis_str(gr_axis axis);

static inline uint32_t gr_mesh_size(const gr_mesh *m, gr_axis axis)
{
    return m->size[axis] ? m->size[axis] : 1;
}

/* Of several the ranks of the axis are a ring, through which a micro-batch goes as often. */
static inline uint32_t gr_mesh_chunks(const gr_mesh *m)
{
    return m->chunks ? m->chunks : 1;
}

/* Ranks that work on the same sequences: the named axes but `expert`. */
uint32_t gr_mesh_ranks(const gr_mesh *m);
/* Ranks side by side that have whole groups of every named axis: as many, or a multiple, are a mesh. */
uint32_t gr_mesh_block(const gr_mesh *m);
/* Of these, ranks of one stage: each has a part of the tokens. */
uint32_t gr_mesh_sharers(const gr_mesh *m);
/* Whether ranks do anything together along a named axis. */
bool gr_mesh_any(const gr_mesh *m);
/* A rank's coordinate along an axis; of GR_AXIS_DATA, which of the sequences are its. */
uint32_t gr_mesh_place(const gr_mesh *m, uint32_t rank, gr_axis axis);
/* How far neighbours along an axis are from each other. */
uint32_t gr_mesh_stride(const gr_mesh *m, gr_axis axis);
/* A number that the ranks of its group along a named axis have in common, and no others. */
uint32_t gr_mesh_group(const gr_mesh *m, uint32_t rank, gr_axis axis);

#endif
