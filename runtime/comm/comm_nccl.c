/* runtime/comm/comm_nccl.c: communicators over NCCL, for memory of CUDA devices (runtime/comm/comm.h).
 *
 * Operations are enqueued on the queue's stream and in place in the arena; nothing waits here. NCCL finds the
 * other ranks by an id that rank 0 makes and the host's communicator carries. Its library is loaded at run
 * time, so that one rank needs none.
 *
 * The arena is registered as a window: so the ranks of a host gather by their copy engines, which take no
 * multiprocessor from the kernels beside them (NCCL 2.28, zero-CTA policy), and add straight from each
 * other's memory. A group that is split off has buffers and a window of its own, so that what it does may run
 * beside what the others do. One rank by itself has nothing to do.
 *
 * Parts that do not fill the buffer evenly are moved rank by rank, as one group: a gather as broadcasts of
 * each rank's part, a reduction as one to each rank.
 */
#include "runtime/comm/comm.h"

#include "runtime/comm/watchdog.h"

#include <assert.h>
#include <cuda_runtime_api.h>
#include <dlfcn.h>
#include <nccl.h>
#include <stdlib.h>
#include <string.h>

#define CALL_MAP(X)         \
    X(GetVersion)           \
    X(GetUniqueId)          \
    X(CommInitRankConfig)   \
    X(CommWindowRegister)   \
    X(CommWindowDeregister) \
    X(CommGetAsyncError)    \
    X(CommDestroy)          \
    X(CommSplit)            \
    X(GetErrorString)       \
    X(AllGather)            \
    X(ReduceScatter)        \
    X(AllReduce)            \
    X(Broadcast)            \
    X(Reduce)               \
    X(Send)                 \
    X(Recv)                 \
    X(GroupStart)           \
    X(GroupEnd)

typedef struct calls {
#define X(name) __typeof__(nccl##name) *name;
    CALL_MAP(X)
#undef X
} calls;

typedef struct nccl_comm {
    gr_comm c;
    gr_comm *host;
    calls call;
    ncclComm_t comm;     /* NULL: of one rank, split off */
    bool group;          /* split off: host, too, is its own */
    gr_memory arena;     /* of no bytes: nothing is to be registered */
    ncclWindow_t window; /* NULL: the arena is not registered */
} nccl_comm;

static nccl_comm *nccl_of(gr_comm *c)
{
    return (nccl_comm *)(void *)c; /* its first member */
}

static gr_status failed(const nccl_comm *n, ncclResult_t e, const char *what, gr_diag *d)
{
    uint32_t iteration;
    const char *step;
    if (e == ncclSuccess && n->comm) { /* of what was enqueued before */
        ncclResult_t asked = n->call.CommGetAsyncError(n->comm, &e);
        if (asked) e = asked;
    }
    if (e == ncclSuccess) return GR_OK;
    gr_watchdog_where(&iteration, &step);
    return gr_diag_error(d, (gr_loc){0}, GR_E_FAILED, "iteration %u, step '%s': %s: %s", iteration, step,
                         what, n->call.GetErrorString(e));
}

/* ---- device memory ---------------------------------------------------------------------------------------
 */

static ncclDataType_t type_of(const gr_comm_parts *p)
{
    return p->elem_bytes == 2 ? ncclBfloat16 : ncclFloat32;
}

/* Rank r's part: where it is, and how many elements. */
static char *part_at(const gr_comm_parts *p, uint32_t r, uint64_t *n)
{
    uint64_t first = GR_MIN(r * p->part, p->n);
    *n = GR_MIN(p->part, p->n - first);
    return (char *)p->at + first * p->elem_bytes;
}

static bool is_even(const gr_comm *c, const gr_comm_parts *p)
{
    return p->part * c->ranks == p->n;
}

static gr_status all_gather(gr_comm *c, gr_queue *q, const gr_comm_parts *p, gr_diag *d)
{
    nccl_comm *n = nccl_of(c);
    uint64_t elems;
    char *own = part_at(p, c->rank, &elems);
    if (!n->comm) return GR_OK;
    if (is_even(c, p))
        return failed(n, n->call.AllGather(own, p->at, elems, type_of(p), n->comm, q->stream),
                      "ncclAllGather", d);
    ncclResult_t e = n->call.GroupStart();
    for (uint32_t r = 0; r < c->ranks && e == ncclSuccess; r++) {
        char *at = part_at(p, r, &elems);
        if (elems) e = n->call.Broadcast(at, at, elems, type_of(p), (int)r, n->comm, q->stream);
    }
    ncclResult_t ended = n->call.GroupEnd();
    return failed(n, e ? e : ended, "ncclBroadcast", d);
}

static gr_status reduce_scatter(gr_comm *c, gr_queue *q, const gr_comm_parts *p, void *staging, gr_diag *d)
{
    nccl_comm *n = nccl_of(c);
    uint64_t elems;
    char *own = part_at(p, c->rank, &elems);
    (void)staging;
    if (!n->comm) return GR_OK;
    if (is_even(c, p))
        return failed(n, n->call.ReduceScatter(p->at, own, elems, type_of(p), ncclSum, n->comm, q->stream),
                      "ncclReduceScatter", d);
    ncclResult_t e = n->call.GroupStart();
    for (uint32_t r = 0; r < c->ranks && e == ncclSuccess; r++) {
        char *at = part_at(p, r, &elems);
        if (elems) e = n->call.Reduce(at, at, elems, type_of(p), ncclSum, (int)r, n->comm, q->stream);
    }
    ncclResult_t ended = n->call.GroupEnd();
    return failed(n, e ? e : ended, "ncclReduce", d);
}

static gr_status all_reduce(gr_comm *c, gr_queue *q, void *x, uint64_t bytes, gr_comm_reduction how,
                            gr_diag *d)
{
    static const struct {
        ncclDataType_t type;
        ncclRedOp_t op;
    } kinds[] = {[GR_COMM_SUM_F64] = {ncclFloat64, ncclSum},
                 [GR_COMM_MAX_U8] = {ncclUint8, ncclMax},
                 [GR_COMM_MAX_U64] = {ncclUint64, ncclMax},
                 [GR_COMM_SUM_F32] = {ncclFloat32, ncclSum},
                 [GR_COMM_SUM_BF16] = {ncclBfloat16, ncclSum}};
    nccl_comm *n = nccl_of(c);
    const uint32_t unit = gr_comm_unit(how);
    assert(bytes % unit == 0);
    if (!n->comm) return GR_OK;
    return failed(n,
                  n->call.AllReduce(x, x, bytes / unit, kinds[how].type, kinds[how].op, n->comm, q->stream),
                  "ncclAllReduce", d);
}

/* Its own part is copied where it does not lie already. */
static ncclResult_t exchange(const nccl_comm *n, gr_queue *q, const gr_comm_exchange *e, uint32_t r)
{
    const char *from = (const char *)e->from + e->from_at[r];
    char *to = (char *)e->to + e->to_at[r];
    ncclResult_t sent = ncclSuccess, received = ncclSuccess;
    if (r == n->c.rank) {
        if (from == to || !e->to_bytes[r]) return ncclSuccess;
        return cudaMemcpyAsync(to, from, e->to_bytes[r], cudaMemcpyDefault, q->stream) == cudaSuccess
                   ? ncclSuccess
                   : ncclUnhandledCudaError;
    }
    if (e->from_bytes[r]) sent = n->call.Send(from, e->from_bytes[r], ncclUint8, (int)r, n->comm, q->stream);
    if (e->to_bytes[r]) received = n->call.Recv(to, e->to_bytes[r], ncclUint8, (int)r, n->comm, q->stream);
    return sent ? sent : received;
}

static gr_status all_to_all(gr_comm *c, gr_queue *q, const gr_comm_exchange *e, gr_diag *d)
{
    nccl_comm *n = nccl_of(c);
    ncclResult_t error = n->call.GroupStart();
    for (uint32_t r = 0; r < c->ranks && error == ncclSuccess; r++) error = exchange(n, q, e, r);
    ncclResult_t ended = n->call.GroupEnd();
    return failed(n, error ? error : ended, "ncclSend, ncclRecv", d);
}

static gr_status send_to(gr_comm *c, gr_queue *q, const void *x, uint64_t bytes, uint32_t to, gr_diag *d)
{
    nccl_comm *n = nccl_of(c);
    return failed(n, n->call.Send(x, bytes, ncclUint8, (int)to, n->comm, q->stream), "ncclSend", d);
}

static gr_status recv_from(gr_comm *c, gr_queue *q, void *x, uint64_t bytes, uint32_t from, gr_diag *d)
{
    nccl_comm *n = nccl_of(c);
    return failed(n, n->call.Recv(x, bytes, ncclUint8, (int)from, n->comm, q->stream), "ncclRecv", d);
}

static gr_status group(gr_comm *c, bool begins, gr_diag *d)
{
    nccl_comm *n = nccl_of(c);
    return begins ? failed(n, n->call.GroupStart(), "ncclGroupStart", d)
                  : failed(n, n->call.GroupEnd(), "ncclGroupEnd", d);
}

/* ---- host memory -----------------------------------------------------------------------------------------
 */

static gr_status host_reduce(gr_comm *c, void *x, uint64_t bytes, gr_comm_reduction how, gr_diag *d)
{
    gr_comm *host = nccl_of(c)->host;
    return host->type->host_reduce(host, x, bytes, how, d);
}

static gr_status broadcast(gr_comm *c, void *x, uint64_t bytes, gr_diag *d)
{
    gr_comm *host = nccl_of(c)->host;
    return host->type->broadcast(host, x, bytes, d);
}

static gr_status barrier(gr_comm *c, gr_diag *d)
{
    gr_comm *host = nccl_of(c)->host;
    return host->type->barrier(host, d);
}

static gr_status post(gr_comm *c, const void *x, uint64_t bytes, uint32_t to, gr_diag *d)
{
    gr_comm *host = nccl_of(c)->host;
    return host->type->post(host, x, bytes, to, d);
}

static gr_status collect(gr_comm *c, void **x, uint64_t *bytes, uint32_t from, gr_diag *d)
{
    gr_comm *host = nccl_of(c)->host;
    return host->type->collect(host, x, bytes, from, d);
}

/* ---- opening ---------------------------------------------------------------------------------------------
 */

static void close_comm(gr_comm *c)
{
    nccl_comm *n = nccl_of(c);
    if (n->window) n->call.CommWindowDeregister(n->comm, n->window);
    if (n->comm) n->call.CommDestroy(n->comm);
    if (n->group) gr_comm_close(n->host);
    free(n); /* the library stays */
}

static void abort_comm(gr_comm *c, int status)
{
    gr_comm *host = nccl_of(c)->host;
    host->type->abort(host, status);
}

static gr_status split(gr_comm **out, gr_comm *c, uint32_t color, gr_diag *d);

static const gr_comm_type nccl_type = {
    .name = "nccl",
    .close = close_comm,
    .abort = abort_comm,
    .split = split,
    .all_gather = all_gather,
    .reduce_scatter = reduce_scatter,
    .all_reduce = all_reduce,
    .all_to_all = all_to_all,
    .send = send_to,
    .recv = recv_from,
    .group = group,
    .host_reduce = host_reduce,
    .broadcast = broadcast,
    .barrier = barrier,
    .post = post,
    .collect = collect,
};

/* Sums over a window begin with as few multiprocessors as NCCL thinks enough, 8 on an H200: they add at 200
 * GB/s of what its links carry, with 16 at 308, and sums of a decode step take 15 us in place of 20; more
 * bring little (docs/PERFORMANCE.md, "Two GPUs"). Gathers are copies all the same. A communicator's own
 * minCTAs is not taken alone (NCCL 2.28: "invalid argument"). */
#define SUM_CTAS "16"

/* Before 2.29, NCCL forgets where the peers' memory is for collectives (not windows') of a buffer that a
 * message was sent from or to before, and writes at an offset from address 0 (src/transport/p2p.cc,
 * ipcRegisterBuffer: devPeerRmtAddrs is taken, and not filled). Without registered buffers such collectives
 * and messages go through NCCL's own; windows do not need them. */
#define FIRST_TO_REMEMBER 22900

static void set_up(const calls *call)
{
    int version = 0;
    gr_setenv("NCCL_SYM_CTAS", SUM_CTAS, false);
    if (call->GetVersion(&version) != ncclSuccess || version < FIRST_TO_REMEMBER)
        gr_setenv("NCCL_LOCAL_REGISTER", "0", true);
}

static gr_status load(calls *to, gr_diag *d)
{
    static const struct {
        const char *name;
        size_t at;
    } wanted[] = {
#define X(name) {"nccl" #name, offsetof(calls, name)},
        CALL_MAP(X)
#undef X
    };
    void *library = dlopen("libnccl.so.2", RTLD_NOW | RTLD_LOCAL);
    if (!library)
        return gr_diag_error(d, (gr_loc){0}, GR_E_FAILED, "several ranks on CUDA devices need NCCL: %s",
                             dlerror());
    for (size_t i = 0; i < GR_LEN(wanted); i++) {
        void *call = dlsym(library, wanted[i].name);
        if (!call)
            return gr_diag_error(d, (gr_loc){0}, GR_E_FAILED, "this NCCL lacks %s: 2.28 is needed",
                                 wanted[i].name);
        memcpy((char *)to + wanted[i].at, &call, sizeof(call)); /* a function's address, found as data */
    }
    set_up(to);
    return GR_OK;
}

static nccl_comm *comm_of(gr_comm *host, const calls *call, gr_memory arena)
{
    nccl_comm *n = gr_calloc(1, sizeof(*n));
    n->c = *host;
    n->c.type = &nccl_type;
    n->host = host;
    n->call = *call;
    n->arena = arena;
    return n;
}

static ncclConfig_t config_of(void)
{
    ncclConfig_t config = NCCL_CONFIG_INITIALIZER;
    config.CTAPolicy = NCCL_CTA_POLICY_ZERO;
    return config;
}

static gr_status join(nccl_comm *n, gr_diag *d)
{
    ncclUniqueId id = {{0}};
    ncclResult_t e = n->c.rank ? ncclSuccess : n->call.GetUniqueId(&id);
    gr_status st = failed(n, e, "ncclGetUniqueId", d);
    gr_status told = n->host->type->broadcast(n->host, &id, sizeof(id), d);
    if (st || told) return st ? st : told;
    ncclConfig_t config = config_of();
    e = n->call.CommInitRankConfig(&n->comm, (int)n->c.ranks, id, (int)n->c.rank, &config);
    return failed(n, e, "ncclCommInitRankConfig", d);
}

/* Where memory of one device cannot be mapped for another there are no windows, and NCCL copies through
 * buffers of its own. All ranks do the same. */
static gr_status register_arena(nccl_comm *n, gr_diag *d)
{
    uint64_t none =
        !n->arena.bytes || n->call.CommWindowRegister(n->comm, n->arena.base, n->arena.bytes, &n->window,
                                                      NCCL_WIN_COLL_SYMMETRIC) != ncclSuccess;
    gr_status st = gr_comm_agree(n->host, &none, d);
    if (st || !none || !n->window) return st;
    n->call.CommWindowDeregister(n->comm, n->window);
    n->window = NULL;
    return GR_OK;
}

static gr_status split(gr_comm **out, gr_comm *c, uint32_t color, gr_diag *d)
{
    nccl_comm *of = nccl_of(c);
    gr_comm *host = NULL;
    gr_status st = gr_comm_split(&host, of->host, color, d);
    if (st) return st;
    nccl_comm *n = comm_of(host, &of->call, of->arena);
    ncclConfig_t config = config_of();
    n->group = true;
    const int by = host->ranks > 1 ? (int)color : NCCL_SPLIT_NOCOLOR;
    if (of->comm)
        st =
            failed(of, of->call.CommSplit(of->comm, by, (int)c->rank, &n->comm, &config), "ncclCommSplit", d);
    if (!st && n->comm) st = register_arena(n, d);
    if (st)
        close_comm(&n->c);
    else
        *out = &n->c;
    return st;
}

gr_status gr_comm_open_nccl(gr_comm **out, gr_comm *host, const gr_memory *arena, gr_diag *d)
{
    calls call;
    gr_status st = load(&call, d);
    if (st) return st;
    nccl_comm *n = comm_of(host, &call, *arena);
    st = join(n, d);
    if (!st) st = register_arena(n, d);
    if (st)
        close_comm(&n->c);
    else
        *out = &n->c;
    return st;
}
