#include "runtime/comm.h"

#include <stdlib.h>
#include <unistd.h>

static uint64_t number_of(const char *name)
{
    const char *text = getenv(name);
    return text ? strtoull(text, NULL, 10) : 0;
}

gr_status gr_comm_started(bool *started, gr_diag *d)
{
    bool alone = number_of("OMPI_COMM_WORLD_SIZE") == 1;
    *started = !alone && (getenv("OMPI_COMM_WORLD_SIZE") || getenv("PMIX_RANK") || getenv("PMI_RANK"));
    uint64_t tasks = number_of("SLURM_STEP_NUM_TASKS");
    if (*started || alone || tasks < 2 || getenv("OMPI_COMM_WORLD_SIZE")) return GR_OK;
    return gr_diag_error(d, (gr_loc){0}, GR_E_INVALID,
                         "srun has started %llu tasks that cannot find each other: give it --mpi=pmix",
                         (unsigned long long)tasks);
}

gr_status gr_comm_split(gr_comm **out, gr_comm *c, uint32_t color, gr_diag *d)
{
    uint64_t largest = color;
    gr_status st = gr_comm_agree(c, &largest, d);
    *out = NULL;
    if (st || !c) return st;
    if (largest > INT32_MAX)
        return gr_diag_error(d, (gr_loc){0}, GR_E_INVALID, "color %llu of a communicator is above %d",
                             (unsigned long long)largest, INT32_MAX);
    return c->type->split(out, c, color, d);
}

void gr_comm_close(gr_comm *c)
{
    if (c) c->type->close(c);
}

void gr_peers_sum(gr_queue *q, void *x, uint64_t bytes, gr_comm_reduction how)
{
    gr_peers *p = q->peers;
    if (!p->failed) p->failed = p->comm->type->all_reduce(p->comm, q, x, bytes, how, p->d);
}

void gr_comm_abort(gr_comm *c, int status)
{
    if (c) c->type->abort(c, status);
    _exit(status);
}

gr_status gr_comm_agree(gr_comm *c, uint64_t *value, gr_diag *d)
{
    return c ? c->type->host_reduce(c, value, sizeof(*value), GR_COMM_MAX_U64, d) : GR_OK;
}

gr_status gr_comm_same(gr_comm *c, uint64_t value, bool *same, gr_diag *d)
{
    uint64_t both[2] = {value, ~value}; /* the largest, and the complement of the least */
    gr_status st = c ? c->type->host_reduce(c, both, sizeof(both), GR_COMM_MAX_U64, d) : GR_OK;
    *same = both[0] == ~both[1];
    return st;
}
