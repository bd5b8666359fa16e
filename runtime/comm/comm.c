/* runtime/comm/comm.c: what holds of any group of ranks: agreement, splitting, ends. */
#include "runtime/comm/comm.h"

#include "runtime/comm/watchdog.h"

#include <assert.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
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

/* The i-th name of a list, or where there is no list i itself. */
static void device_name(char name[64], const char *seen, uint32_t i)
{
    snprintf(name, 64, "%u", i);
    for (; seen && i; i--) seen += strcspn(seen, ",") + 1;
    if (seen) snprintf(name, 64, "%.*s", (int)strcspn(seen, ","), seen);
}

bool gr_comm_take_device(uint32_t local, uint32_t locals)
{
    const char *seen = getenv("CUDA_VISIBLE_DEVICES");
    gr_str devices = {0};
    char name[64];
    uint32_t n = seen && *seen;
    for (const char *s = seen; s && *s; s++) n += *s == ',';
    if (!seen) n = locals; /* CUDA takes a list up to its first device that is not there */
    if (local >= n) return locals < 2;
    device_name(name, seen, local);
    gr_str_printf(&devices, "%s", name);
    for (uint32_t i = 0; i < n; i++) {
        device_name(name, seen, i);
        if (i != local) gr_str_printf(&devices, ",%s", name);
    }
    gr_setenv("CUDA_VISIBLE_DEVICES", devices.text, true);
    gr_str_release(&devices);
    return n >= locals;
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

/* The first of the n latest calls that did not lie at one place on all ranks; n: they all did. */
static gr_status first_apart(const gr_tp_group *p, uint32_t n, uint32_t *first)
{
    uint64_t both[2 * GR_TP_PLACES]; /* the largest, and the complements of the least */
    for (uint32_t i = 0; i < n; i++) both[i] = p->places.at[i], both[n + i] = ~p->places.at[i];
    gr_status st = p->comm->type->host_reduce(p->comm, both, 2 * n * sizeof(*both), GR_COMM_MAX_U64, p->d);
    for (*first = 0; *first < n && both[*first] == ~both[n + *first];) ++*first;
    return st;
}

static gr_status compare_places(gr_tp_group *p)
{
    gr_tp_places *t = &p->places;
    const uint32_t n = (uint32_t)(t->calls - t->compared);
    uint32_t i;
    gr_status st = first_apart(p, n, &i);
    t->compared = t->calls;
    if (st || i == n) return st;
    return gr_diag_error(p->d, (gr_loc){0}, GR_E_FAILED,
                         "iteration %u, step '%s': its %u ranks add or gather on memory at different places "
                         "of their arenas, here at byte %llu: a fault of graphrun",
                         t->of[i].iteration, t->of[i].step, p->comm->ranks, (unsigned long long)t->at[i]);
}

/* Whether the call may be made: all ranks answer alike. */
static bool same_place(gr_tp_group *p, const gr_queue *q, const void *x)
{
    gr_tp_places *t = &p->places;
    const uint64_t i = t->calls - t->compared;
    if (p->failed || !p->arena.bytes) return !p->failed;
    const uintptr_t at = (uintptr_t)x - (uintptr_t)p->arena.base;
    t->at[i] = at < p->arena.bytes ? at : UINT64_MAX;
    gr_watchdog_where(&t->of[i].iteration, &t->of[i].step);
    if (q->at.step) t->of[i].step = q->at.step; /* other lanes begin steps, too */
    t->calls++;
    if (t->calls % GR_TP_PLACES == 0 || (t->calls & (t->calls - 1)) == 0) p->failed = compare_places(p);
    return !p->failed;
}

static void reduce_over(gr_tp_group *p, gr_queue *q, void *x, uint64_t bytes, gr_comm_reduction how)
{
    if (same_place(p, q, x)) p->failed = p->comm->type->all_reduce(p->comm, q, x, bytes, how, p->d);
}

void gr_tp_sum(gr_queue *q, void *x, uint64_t bytes, gr_comm_reduction how)
{
    reduce_over(q->peers, q, x, bytes, how);
}

void gr_tp_share(gr_queue *q, void *x, uint64_t bytes)
{
    if (q->peers) reduce_over(q->peers, q, x, bytes, GR_COMM_MAX_U8);
    if (q->sharers) reduce_over(q->sharers, q, x, bytes, GR_COMM_MAX_U8);
}

void gr_tp_exchange(gr_queue *q, const void *from, void *to, uint64_t bytes, uint32_t unit)
{
    gr_tp_group *p = q->sharers;
    const uint32_t ranks = p->comm->ranks;
    uint64_t at[GR_PEERS_MAX], each[GR_PEERS_MAX];
    assert(ranks <= GR_PEERS_MAX);
    for (uint32_t r = 0; r < ranks; r++) {
        at[r] = r * bytes;
        each[r] = bytes;
    }
    const gr_comm_exchange e = {from, at, each, to, at, each, unit};
    if (!p->failed) p->failed = p->comm->type->all_to_all(p->comm, q, &e, p->d);
}

void gr_tp_gather(gr_queue *q, void *x, uint64_t part, uint32_t elem_bytes)
{
    gr_tp_group *p = q->peers;
    const gr_comm_parts whole = {x, p->comm->ranks * part, part, elem_bytes};
    if (same_place(p, q, x)) p->failed = p->comm->type->all_gather(p->comm, q, &whole, p->d);
}

void gr_tp_scatter(gr_queue *q, void *x, uint64_t part, uint32_t elem_bytes, void *staging)
{
    gr_tp_group *p = q->peers;
    const gr_comm_parts whole = {x, p->comm->ranks * part, part, elem_bytes};
    if (same_place(p, q, x)) p->failed = p->comm->type->reduce_scatter(p->comm, q, &whole, staging, p->d);
}

bool gr_tp_send_rows(gr_queue *q, const gr_comm_exchange *e)
{
    gr_tp_group *p = q->holders;
    if (!p->failed) p->failed = p->comm->type->all_to_all(p->comm, q, e, p->d);
    return !p->failed;
}

void gr_tp_any(gr_queue *q, uint8_t *flags, uint32_t n)
{
    gr_tp_group *p = q->holders;
    if (!p->failed) p->failed = p->comm->type->host_reduce(p->comm, flags, n, GR_COMM_MAX_U8, p->d);
    if (p->failed) memset(flags, 0, n);
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
