/* runtime/comm/comm.h: communicators: groups of ranks, and what they send each other.
 *
 * One process is one rank; all ranks make the same calls in the same order. A communicator has calls of two
 * sorts. Those that take a queue are steps of a plan, on memory of the device: `mpi` (the CPU device) does
 * them at once, on the calling thread; one whose device runs work later (`nccl`) enqueues them, and they are
 * done when the queue has come so far. Those without a queue are of host memory, and return when they are
 * done.
 *
 * A call that waits for a rank that is dead, has stopped or hangs ends: ranks give rank 0 signs of life, and
 * it gives them its own (runtime/comm/watchdog.h). One that gives none for GR_COMM_SILENCE seconds, or that
 * stays where it is for too long, ends all of them, with one message that names it, its host and its step.
 *
 * Threads: one thread at a time calls a communicator. Of those that were
 * split from one another several threads may call each its own, if all ranks do so in the same order or the
 * calls are of `mpi`.
 */
#ifndef GR_RUNTIME_COMM_COMM_H
#define GR_RUNTIME_COMM_COMM_H

#include "runtime/device/device.h"

#define GR_COMM_SILENCE 30 /* seconds */

typedef struct gr_comm gr_comm;

/* How parts are put together, element by element. MAX of bytes is how a column that ranks have filled in
 * parts, the rest of it being zero, becomes whole everywhere: with its bits. */
typedef enum gr_comm_reduction {
    GR_COMM_SUM_F64,
    GR_COMM_MAX_U8,
    GR_COMM_MAX_U64,
    /* Activations: with the same bits on all ranks of the communicator. `mpi` adds in one binary tree over
     * the ranks in their order, in fp32, and rounds bf16 once; `nccl` in an order that the library fixes, and
     * bf16 may be rounded after each addition. */
    GR_COMM_SUM_F32,
    GR_COMM_SUM_BF16,
} gr_comm_reduction;

/* A buffer of n elements of a type, cut into parts of `part` elements: rank r's begins at r * part, and the
 * last ones may be short or empty. */
typedef struct gr_comm_parts {
    void *at;
    uint64_t n, part;
    uint32_t elem_bytes; /* 4, fp32; or 2, bf16 */
} gr_comm_parts;

/* What goes from each rank to each: in bytes, of every other rank, and of this one to itself, [ranks] each.
 * What is sent to several of them may be the same bytes. Ranks count alike: what one sends to another is what
 * that one receives of it. The two memories are apart, and begin at different addresses (Open MPI takes one
 * address for MPI_IN_PLACE). */
typedef struct gr_comm_exchange {
    const void *from;
    const uint64_t *from_at, *from_bytes;
    void *to;
    const uint64_t *to_at, *to_bytes;
    uint32_t unit; /* 1, 2, 4 or 8: all of these, on all ranks, are multiples of it */
} gr_comm_exchange;

typedef struct gr_comm_type {
    const char *name; /* "mpi", "nccl" */
    void (*close)(gr_comm *c);
    void (*abort)(gr_comm *c, int status);
    gr_status (*split)(gr_comm **out, gr_comm *c, uint32_t color, gr_diag *d);

    /* ---- of device memory ---- */
    /* Each rank's own part is there; all parts come. */
    gr_status (*all_gather)(gr_comm *c, gr_queue *q, const gr_comm_parts *whole, gr_diag *d);
    /* This rank's own part becomes the sum over all ranks; the others' are left undefined. Where staging is
     * given (room for ranks * part elements) sums are of one binary tree over the ranks in their order, in
     * fp32; else in an order that the library fixes. */
    gr_status (*reduce_scatter)(gr_comm *c, gr_queue *q, const gr_comm_parts *whole, void *staging,
                                gr_diag *d);
    /* bytes: whole elements. */
    gr_status (*all_reduce)(gr_comm *c, gr_queue *q, void *x, uint64_t bytes, gr_comm_reduction how,
                            gr_diag *d);
    /* The arrays may go when it returns. */
    gr_status (*all_to_all)(gr_comm *c, gr_queue *q, const gr_comm_exchange *e, gr_diag *d);
    gr_status (*send)(gr_comm *c, gr_queue *q, const void *x, uint64_t bytes, uint32_t to, gr_diag *d);
    gr_status (*recv)(gr_comm *c, gr_queue *q, void *x, uint64_t bytes, uint32_t from, gr_diag *d);
    /* Sends and receives between begin and end go on at once, where they are enqueued. NULL: each is done
     * when it returns. */
    gr_status (*group)(gr_comm *c, bool begins, gr_diag *d);

    /* ---- of host memory ---- */
    gr_status (*host_reduce)(gr_comm *c, void *x, uint64_t bytes, gr_comm_reduction how, gr_diag *d);
    gr_status (*broadcast)(gr_comm *c, void *x, uint64_t bytes, gr_diag *d); /* from rank 0 */
    gr_status (*barrier)(gr_comm *c, gr_diag *d);
    /* Messages: post leaves a copy of x for another rank and goes on; collect waits for the next message that
     * a rank has left for this one. *x: caller frees. */
    gr_status (*post)(gr_comm *c, const void *x, uint64_t bytes, uint32_t to, gr_diag *d);
    gr_status (*collect)(gr_comm *c, void **x, uint64_t *bytes, uint32_t from, gr_diag *d);
} gr_comm_type;

struct gr_comm {
    const gr_comm_type *type;
    uint32_t rank, ranks;
    uint32_t local, locals; /* of the ranks on this host */
    char host[64];          /* its name */
};

/* Whether this process is one of several that mpirun, srun or another launcher that speaks PMIx has started
 * together: by its environment, nothing is loaded. GR_E_INVALID where srun has started several that cannot
 * find each other. */
GR_NODISCARD gr_status gr_comm_started(bool *started, gr_diag *d);

/* A host's rank `local` of `locals` takes a CUDA device of its own: CUDA_VISIBLE_DEVICES has it first, which
 * is then device 0, and after it the others that were visible, or where all were those of the host's other
 * ranks. They stay visible because the driver lets copies into memory of a device that the process does not
 * see wait for kernels, as copies within its own device do. Nothing changes where the launcher has given
 * fewer devices than there are ranks before this one: it has given one to each. Before anything asks for
 * devices. Whether the devices of all the host's ranks are visible now, as far as the list says. */
bool gr_comm_take_device(uint32_t local, uint32_t locals);

/* The module that knows MPI, which gr_comm_open_mpi loads; caller frees. NULL: there is none. */
char *gr_comm_mpi_module(void);
/* Whether there is MPI to open. */
bool gr_comm_has_mpi(void);
/* LD_PRELOAD=... for an mpirun that is to listen on the loopback device alone (runtime/comm/loopback.c); the
 * caller frees it. NULL: the library is not beside the one that opens MPI. */
char *gr_comm_loopback_setting(void);

/* Join the ranks that were started together. MPI is loaded here, and not before: a machine without it runs
 * one rank. lost: told, on another thread, why all ranks are about to be ended. GR_E_FAILED where MPI cannot
 * be loaded or does not start. */
GR_NODISCARD gr_status gr_comm_open_mpi(gr_comm **out, void (*lost)(const char *message), gr_diag *d);

/* Join the same ranks by NCCL, for memory of the calling thread's current CUDA device; what is of host
 * memory, and signs of life, stay with `host`, which must outlive it. NCCL is loaded here (libnccl.so.2, 2.28
 * or later). arena: where what is moved lies, as large on every rank; of no bytes, nothing is registered.
 * GR_E_FAILED where NCCL cannot be loaded or started. There in builds with CUDA. */
GR_NODISCARD gr_status gr_comm_open_nccl(gr_comm **out, gr_comm *host, const gr_memory *arena, gr_diag *d);

/* Those of c's ranks that give the same color (at most INT32_MAX), ranked in c's order; all of c call it
 * together. What is split off is closed before c. Signs of life stay with all ranks: one that is lost ends
 * them all. c NULL, one rank: *out is NULL. GR_E_INVALID on all of them for a color that is too large. */
GR_NODISCARD gr_status gr_comm_split(gr_comm **out, gr_comm *c, uint32_t color, gr_diag *d);

/* Sums, gathers and scatters within a task want memory at the same place of the arena on all ranks: NCCL's
 * window is symmetric, and writes to this rank's place on the others. A plan says so of its entries, and not
 * of what a task lays out in one. So every rank keeps the places of the calls of a group. They are compared,
 * on every device, before the first call, the second, the fourth and so on, then before every
 * GR_TP_PLACES-th: ranks that differ end with an error that names the step of the first such call. */
#define GR_TP_PLACES 64
typedef struct gr_tp_places {
    uint64_t calls, compared;
    uint64_t at[GR_TP_PLACES]; /* of the calls since: bytes from the arena's beginning; outside: UINT64_MAX */
    struct {
        uint32_t iteration;
        const char *step;
    } of[GR_TP_PLACES];
} gr_tp_places;

/* Ranks that run a task together, while kernels of a queue work on it: a tensor-parallel group, of which each
 * has a shard of one layer (ops/model/tp.h); or a context group, which has the tokens of the same sequences
 * (runtime/comm/mesh.h); or holders, of which each has some of the experts. */
struct gr_tp_group {
    gr_comm *comm;
    gr_diag *d;
    gr_status failed; /* the first sum that was */
    gr_memory arena;  /* of the device, on this rank; of no bytes: places are not compared */
    gr_tp_places places;
};

/* x, a partial product on each rank of the queue's group, becomes their sum (or what else `how` says): an
 * all_reduce, in the queue's order. A failure is kept with the group: whoever set it looks there. */
void gr_tp_sum(gr_queue *q, void *x, uint64_t bytes, gr_comm_reduction how);
/* Bytes that the ranks of both groups of the queue have filled in parts, the rest of them zero, become whole.
 */
void gr_tp_share(gr_queue *q, void *x, uint64_t bytes);
/* From part r of `from` to rank r of the context group, and from each rank into its part of `to`: parts of so
 * many bytes each, side by side; likewise. unit: as in gr_comm_exchange. */
void gr_tp_exchange(gr_queue *q, const void *from, void *to, uint64_t bytes, uint32_t unit);
/* Parts of so many elements each, side by side at x, one of each rank of the group: each has its own, and
 * gets the others'; or each has a sum's part for every rank, and its own becomes the sum, the others
 * undefined, in fp32 in one order where staging is given (as gr_comm_type.reduce_scatter). */
void gr_tp_gather(gr_queue *q, void *x, uint64_t part, uint32_t elem_bytes);
void gr_tp_scatter(gr_queue *q, void *x, uint64_t part, uint32_t elem_bytes, void *staging);
/* Of the holders of experts: what each sends to each. Whether there is no failure so far: with one, nothing
 * is exchanged. Where their memory lies follows from the tokens that each has, so they send each other
 * messages alone: those may lie anywhere, and are not compared. */
bool gr_tp_send_rows(gr_queue *q, const gr_comm_exchange *e);
/* Of n bytes that are 0 or 1 on each holder: whether any has 1, which all of them learn. With a failure,
 * which is kept with the group, none has. */
void gr_tp_any(gr_queue *q, uint8_t *flags, uint32_t n);
/* The most ranks of such a group. */
#define GR_PEERS_MAX 64

/* NULL is fine: one rank. */
void gr_comm_close(gr_comm *c);
/* End all ranks, at once; this one too. c NULL: just this one. */
_Noreturn void gr_comm_abort(gr_comm *c, int status);

/* The largest of all ranks' values. c NULL: its own. */
GR_NODISCARD gr_status gr_comm_agree(gr_comm *c, uint64_t *value, gr_diag *d);
/* Whether all ranks give the same value; the same answer everywhere. */
GR_NODISCARD gr_status gr_comm_same(gr_comm *c, uint64_t value, bool *same, gr_diag *d);

/* Bytes of an element. */
static inline uint32_t gr_comm_unit(gr_comm_reduction how)
{
    return how == GR_COMM_MAX_U8 ? 1 : how == GR_COMM_SUM_BF16 ? 2 : how == GR_COMM_SUM_F32 ? 4 : 8;
}

static inline uint32_t gr_comm_rank(const gr_comm *c)
{
    return c ? c->rank : 0;
}

static inline uint32_t gr_comm_ranks(const gr_comm *c)
{
    return c ? c->ranks : 1;
}

#endif
