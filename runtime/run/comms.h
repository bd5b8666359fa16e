/* runtime/run/comms.h: the communicators of a run: one for each set of its ranks that does something
 * together.
 *
 * All ranks of a run, those of a role (memplan/plan/plan.h), those of a role's node, those of one place in
 * all of its nodes, and those that run a task together: neighbours, who have the slices of a layer
 * (ops/model/tp.h) or the tokens of the same sequences. The first two are there twice: for memory of the
 * host, and for memory of the device, which may be the same communicator.
 *
 * Ownership: `all` is the caller's and must outlive the rest. All ranks make these calls together. Threads:
 * runtime/comm/comm.h; each lane has communicators of its own, or is the only one that runs.
 */
#ifndef GR_RUNTIME_RUN_COMMS_H
#define GR_RUNTIME_RUN_COMMS_H

#include "graphs/graph/graph.h"
#include "memplan/plan/tasks.h"
#include "runtime/comm/comm.h"

/* Ranks that run tasks together: this rank's group of those that are so far from each other. */
typedef struct gr_run_peers {
    gr_tp_group group;
    uint32_t stride;
} gr_run_peers;

typedef struct gr_comms {
    gr_comm *all, *own;               /* of the run and of the role, for memory of the host; NULL: one rank */
    gr_comm *all_device, *own_device; /* the same for memory of the device */
    gr_comm *node, *replicas;         /* of the role; NULL: its nodes are no replicas of each other */
    gr_run_peers *peers;              /* [n_peers] one for each kind of group that tasks name */
    size_t n_peers;
} gr_comms;

/* Those for memory of the host. g: as this rank's role sees it. Whatever comes back, close it. */
GR_NODISCARD gr_status gr_comms_open(gr_comms *c, const gr_graph *g, gr_comm *all, gr_diag *d);
/* Then those for memory of a device ("cpu", "cuda"), where the role's program has its arena. */
GR_NODISCARD gr_status gr_comms_open_device(gr_comms *c, const gr_graph *g, const gr_tasks *p,
                                            const char *device, const gr_memory *arena, gr_diag *d);
/* together: all ranks do so. A rank that leaves alone only forgets them, because closing waits for the
 * others. */
void gr_comms_close(gr_comms *c, bool together);

/* Who takes part in a collective of the role, on memory of the device. */
gr_comm *gr_comms_group(const gr_comms *c, gr_comm_group group);
/* Who runs a task together along an axis of its mesh; NULL: each rank is alone there. */
gr_tp_group *gr_comms_peers(const gr_comms *c, const gr_mesh *mesh, gr_axis axis);

#endif
