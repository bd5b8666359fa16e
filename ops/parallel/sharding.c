/* ops/parallel/sharding.c: collectives of ops over ranks: declared, and run. */
#include "ops/parallel/sharding.h"

#include "ops/parallel/reshard.h"
#include "ops/parallel/stages.h"
#include "ops/base/session.h"

#include <stdio.h>
#include <string.h>

/* What passes read; of adapters that are sent it is made here, as where they are trained. */
static bool sharded(const gr_tasks *p, const gr_model *m)
{
    return gr_part_spread(p, m, GR_PART_PARAMS, 0) == GR_SPREAD_FLAT;
}

static bool away(const gr_tasks *p, const gr_model *m)
{
    return gr_part_spread(p, m, GR_PART_PARAMS, 0) == GR_SPREAD_AWAY;
}

/* Bytes a rank receives where every rank ends with all of `bytes`, or with its reduced part of them. */
static double moved(uint32_t ranks, uint64_t bytes)
{
    return (double)bytes * (ranks - 1) / ranks;
}

/* What a collective does, its kernel; arg: the bucket, or of a total how many doubles. */
enum {
    SHARDING_GATHER, /* a shard into a whole bucket */
    SHARDING_STEPPED,
    SHARDING_REDUCE,     /* onto what the shard has */
    SHARDING_REDUCE_ALL, /* in its place */
    SHARDING_REPLICAS,
    SHARDING_COPY,    /* of a bucket that is whole already */
    SHARDING_TP,      /* of one, what a tensor-parallel shard has of it */
    SHARDING_RESHARD, /* flat shards into tensor-parallel shards */
    /* The same for a training pass that is on a mesh; and back, as REDUCE and REDUCE_ALL. */
    SHARDING_PASS_TP,
    SHARDING_PASS_RESHARD,
    SHARDING_BACK,
    SHARDING_BACK_ALL,
    SHARDING_TOTAL,
    SHARDING_SHARE,
};

/* Operands: their positions among a task's uses, and among the pointers that the task is run with. */
enum { GATHER_SHARD, GATHER_WHOLE, N_GATHER };
enum {
    SYNC_FROM,
    SYNC_COPY,
    SYNC_EXCHANGE,
    N_SYNC
}; /* copy, tensor-parallel shard, reshard; without exchange where there is none */
enum { REDUCE_WHOLE, REDUCE_SHARD, REDUCE_STAGING, N_REDUCE };
enum { ALL, N_ALL }; /* one object: across, stepped, total, share */

gr_task *gr_sharding_collective(gr_tasks *p, const gr_model *m, gr_step_kind kind, uint32_t kernel,
                                uint32_t arg, uint64_t bytes, const gr_use *uses, size_t n, const char *what)
{
    gr_task *w = gr_tasks_run(p, kernel, arg, uses, n, "%s", what);
    w->kind = kind;
    w->lane = GR_LANE_COMM;
    w->comm.moved = bytes;
    if (m) w->comm.group = gr_placed(p, m)->group;
    return w;
}

/* One among the ranks that have a model's shards, of bytes that all of them have together. */
static gr_task *of_shards(gr_tasks *p, const gr_model *m, gr_step_kind kind, uint32_t kernel, uint32_t bucket,
                          uint64_t bytes, const gr_use *uses, size_t n, const char *what)
{
    return gr_sharding_collective(p, m, kind, kernel, bucket, (uint64_t)moved(gr_placed(p, m)->shards, bytes),
                                  uses, n, what);
}

/* One after which every rank has all of an object. */
static gr_task *to_all(gr_task *w, const gr_object *o)
{
    w->comm.form = o->place == GR_HOST ? GR_FORM_HOST_REDUCE : GR_FORM_ALL_REDUCE;
    return w;
}

static void named(char out[64], const char *pass, const char *kind, uint32_t bucket)
{
    snprintf(out, 64, "%s%s.%u", pass, kind, bucket);
}

/* Whether a training pass reads a slice of a bucket: of layers, on a mesh with an axis tensor or expert. */
static bool is_cut(const gr_model *m, uint32_t bucket)
{
    return gr_tp_is_cut(&m->shape, m->sharding.train, bucket);
}

bool gr_sharding_gathers(const gr_tasks *p, const gr_model *m)
{
    return sharded(p, m) || gr_slicing_parts(m->sharding.train) > 1;
}

/* Of what a pass reads of a bucket, and of what it has gradients of. */
static uint64_t pass_elems(const gr_model *m, uint32_t bucket)
{
    return gr_bucket_elems(is_cut(m, bucket) ? &m->sharding.train_slice : &m->shape, bucket);
}

static uint64_t grad_elems(const gr_model *m, uint32_t bucket)
{
    return gr_model_has_lora(m) ? gr_bucket_elems(gr_model_trains(m), bucket) : pass_elems(m, bucket);
}

static uint32_t gathered(gr_tasks *p, const gr_kernels *k, const gr_model *m, const char *pass,
                         uint32_t bucket)
{
    return gr_tasks_temp(p, GR_CAT_COMM, pass_elems(m, bucket) * gr_dtype_size(k->dtype), "%sgathered.%u",
                         pass, bucket);
}

uint32_t gr_sharding_params(gr_tasks *p, const gr_kernels *k, const gr_model *m, const char *pass,
                            uint32_t bucket)
{
    if (sharded(p, m) || is_cut(m, bucket)) return gathered(p, k, m, pass, bucket);
    return gr_model_object(p, k, m, away(p, m) ? GR_PART_ROLLOUT : GR_PART_PARAMS, bucket);
}

/* Fill the slice that a pass reads: from flat shards, through a buffer, or from what is whole here. */
static void gather_slice(gr_tasks *p, const gr_kernels *k, const gr_model *m, const char *pass,
                         uint32_t bucket)
{
    const bool shards = sharded(p, m);
    const uint32_t size = (uint32_t)gr_dtype_size(k->dtype);
    const uint64_t bytes = pass_elems(m, bucket) * size;
    uint32_t exchange = GR_NONE;
    char what[64];
    if (shards)
        exchange = gr_tasks_temp(
            p, GR_CAT_COMM,
            gr_reshard_room(&m->shape, m->sharding.train, bucket, gr_placed(p, m)->shards) * size,
            "%sexchange.%u", pass, bucket);
    named(what, pass, shards ? "gather" : "slice", bucket); /* the other is of what was stepped */
    of_shards(
        p, m, GR_STEP_GATHER, shards ? SHARDING_PASS_RESHARD : SHARDING_PASS_TP, bucket, shards ? bytes : 0,
        (gr_use[]){
            [SYNC_FROM] = {gr_model_object(p, k, m, away(p, m) ? GR_PART_ROLLOUT : GR_PART_PARAMS, bucket),
                           GR_READ},
            [SYNC_COPY] = {gathered(p, k, m, pass, bucket), GR_WRITE},
            [SYNC_EXCHANGE] = {exchange, GR_WRITE}},
        shards ? N_SYNC : SYNC_EXCHANGE, what)
        ->cost.bytes = (shards ? 4.0 : 2.0) * (double)bytes;
}

void gr_sharding_gather(gr_tasks *p, const gr_kernels *k, const gr_model *m, const char *pass,
                        uint32_t bucket)
{
    char what[64];
    if (bucket >= gr_model_buckets(&m->shape)) return;
    if (is_cut(m, bucket)) gather_slice(p, k, m, pass, bucket);
    if (!sharded(p, m) || is_cut(m, bucket)) return;
    named(what, pass, "gather", bucket);
    of_shards(p, m, GR_STEP_GATHER, SHARDING_GATHER, bucket, gr_part_bytes(k, m, GR_PART_PARAMS, bucket),
              (gr_use[]){[GATHER_SHARD] = {gr_model_object(p, k, m, GR_PART_PARAMS, bucket), GR_READ},
                         [GATHER_WHOLE] = {gathered(p, k, m, pass, bucket), GR_WRITE}},
              N_GATHER, what);
}

/* Whether a bucket of the rollout's copy is a part: a slice of a layer, or some of its experts. */
static bool sliced(const gr_tasks *p, const gr_model *m, uint32_t bucket)
{
    return gr_part_spread(p, m, GR_PART_ROLLOUT, bucket) == GR_SPREAD_SLICED;
}

/* Whether the current node reads older weights of it: those that never change have none. */
static bool lags(const gr_tasks *p, const gr_model *m)
{
    return p->lagged && m->update;
}

uint32_t gr_sharding_rollout(gr_tasks *p, const gr_kernels *k, const gr_model *m, uint32_t bucket)
{
    bool copy = sharded(p, m) || away(p, m) || sliced(p, m, bucket);
    return gr_model_object(p, k, m,
                           lags(p, m) ? GR_PART_LAGGED
                           : copy     ? GR_PART_ROLLOUT
                                      : GR_PART_PARAMS,
                           bucket);
}

/* What fills one bucket of a copy, the rollout's or the lagging one, from one that is whole here, or from
 * flat shards; those for a tensor-parallel shard are moved through a buffer. */
static void sync_bucket(gr_tasks *p, const gr_kernels *k, const gr_model *m, gr_model_part copy, uint32_t b,
                        uint32_t from, bool whole)
{
    const bool tp = sliced(p, m, b);
    const uint64_t bytes = gr_part_bytes(k, m, copy, b);
    uint32_t exchange = GR_NONE;
    char what[64];
    if (tp && !whole)
        exchange = gr_tasks_temp(p, GR_CAT_COMM,
                                 gr_reshard_room(&m->shape, m->sharding.rollout, b, gr_placed(p, m)->shards) *
                                     gr_dtype_size(k->dtype),
                                 "exchange.%u", b);
    named(what, "", copy == GR_PART_LAGGED ? "lag" : "sync", b);
    of_shards(p, m, GR_STEP_SYNC,
              tp      ? whole ? SHARDING_TP : SHARDING_RESHARD
              : whole ? SHARDING_COPY
                      : SHARDING_GATHER,
              b, whole ? 0 : bytes,
              (gr_use[]){[SYNC_FROM] = {from, GR_READ},
                         [SYNC_COPY] = {gr_model_object(p, k, m, copy, b), GR_WRITE},
                         [SYNC_EXCHANGE] = {exchange, GR_WRITE}},
              exchange == GR_NONE ? SYNC_EXCHANGE : N_SYNC, what);
    if (whole || tp) p->task[p->n_tasks - 1].cost.bytes = (whole ? 2.0 : 4.0) * (double)bytes;
}

uint32_t gr_sharding_received(gr_tasks *p, const gr_kernels *k, const gr_model *m, gr_model_part copy,
                              uint32_t bucket)
{
    if (!sliced(p, m, bucket)) return gr_model_object(p, k, m, copy, bucket);
    gr_object o = {.name = gr_arena_printf(p->arena, "%s.received.%u", p->node, bucket),
                   .category = GR_CAT_ROLLOUT,
                   .span = GR_SPAN_TEMP,
                   .place = GR_DEVICE,
                   .bytes = gr_part_bytes(k, m, GR_PART_PARAMS, bucket),
                   .model = m->name,
                   .bucket = bucket};
    return gr_tasks_object(p, &o);
}

void gr_sharding_cut(gr_tasks *p, const gr_kernels *k, const gr_model *m, gr_model_part copy, uint32_t bucket)
{
    if (sliced(p, m, bucket))
        sync_bucket(p, k, m, copy, bucket, gr_sharding_received(p, k, m, copy, bucket), true);
}

/* Straight into the rollout's weights; or, where the graph asks for it, through a gathered copy: of all
 * buckets before the first is synced, or of one at a time. */
void gr_sharding_sync(gr_tasks *p, const gr_kernels *k, const gr_model *m)
{
    uint32_t n = gr_model_buckets(&m->shape);
    const bool shards = sharded(p, m), through = shards && m->sharding.gather != GR_GATHER_DIRECT;
    if (away(p, m) || (!shards && gr_slicing_parts(m->sharding.rollout) < 2) || lags(p, m) ||
        gr_part_is_made(p, m, GR_MADE_COPY))
        return;
    for (uint32_t b = 0; b < n && shards && m->sharding.gather == GR_GATHER_WHOLE; b++)
        gr_sharding_gather(p, k, m, "sync_", b);
    for (uint32_t b = 0; b < n; b++) {
        if (!shards && !sliced(p, m, b)) continue; /* the same bytes */
        if (shards && m->sharding.gather == GR_GATHER_LAYER) gr_sharding_gather(p, k, m, "sync_", b);
        sync_bucket(p, k, m, GR_PART_ROLLOUT, b,
                    through ? gathered(p, k, m, "sync_", b) : gr_model_object(p, k, m, GR_PART_PARAMS, b),
                    through || !shards);
    }
}

void gr_sharding_older(gr_tasks *p, const gr_kernels *k, const gr_model *m)
{
    char what[64];
    for (uint32_t b = 0; b < gr_model_buckets(&m->shape); b++) {
        uint64_t bytes = gr_part_bytes(k, m, GR_PART_PARAMS, b);
        if (sliced(p, m, b)) {
            sync_bucket(p, k, m, GR_PART_LAGGED, b, gr_model_object(p, k, m, GR_PART_PARAMS, b),
                        !sharded(p, m));
            continue;
        }
        named(what, "", "lag", b);
        of_shards(p, m, GR_STEP_SYNC, sharded(p, m) ? SHARDING_GATHER : SHARDING_COPY, b,
                  sharded(p, m) ? bytes : 0,
                  (gr_use[]){[SYNC_FROM] = {gr_model_object(p, k, m, GR_PART_PARAMS, b), GR_READ},
                             [SYNC_COPY] = {gr_model_object(p, k, m, GR_PART_LAGGED, b), GR_WRITE}},
                  SYNC_EXCHANGE, what);
        p->task[p->n_tasks - 1].cost.bytes = 2.0 * (double)bytes;
    }
}

uint32_t gr_sharding_whole(gr_tasks *p, const gr_kernels *k, const gr_model *m, uint32_t bucket)
{
    (void)k;
    return gr_tasks_temp(p, GR_CAT_GRADIENTS, grad_elems(m, bucket) * gr_dtype_size(m->train.grads),
                         "full_grads.%u", bucket);
}

gr_use gr_sharding_grads(gr_tasks *p, const gr_kernels *k, const gr_model *m, uint32_t bucket, bool first)
{
    if (p->leaves) return (gr_use){gr_sharding_whole(p, k, m, bucket), GR_UPDATE};
    if (gr_placed(p, m)->shards < 2)
        return (gr_use){gr_model_object(p, k, m, GR_PART_GRADS, bucket), GR_UPDATE};
    return (gr_use){gr_sharding_whole(p, k, m, bucket), first ? GR_WRITE : GR_UPDATE};
}

uint32_t gr_sharding_tree(gr_tasks *p, const gr_kernels *k, const gr_model *m, uint32_t bucket)
{
    uint64_t levels = (uint64_t)__builtin_ctz(p->leaves), bytes = gr_part_bytes(k, m, GR_PART_GRADS, bucket);
    return levels ? gr_tasks_temp(p, GR_CAT_GRADIENTS, levels * bytes, "fold.%u", bucket) : GR_NONE;
}

/* Where sums have one order: the shards of all ranks, side by side. Of slices what is exchanged. */
static uint32_t reduce_room(gr_tasks *p, const gr_kernels *k, const gr_model *m, uint32_t bucket)
{
    const uint32_t shards = gr_placed(p, m)->shards;
    if (is_cut(m, bucket))
        return gr_tasks_temp(p, GR_CAT_COMM,
                             gr_reshard_back_room(&m->shape, m->sharding.train, bucket, shards) *
                                 gr_dtype_size(m->train.grads),
                             "shards.%u", bucket);
    const uint64_t parts = shards * gr_shard_elems(grad_elems(m, bucket), shards);
    return k->chained ? gr_tasks_temp(p, GR_CAT_COMM, parts * sizeof(float), "shards.%u", bucket) : GR_NONE;
}

/* Those of layers run beside the backward pass; on the CPU device they are its processors' work as well.
 * Those of the head and of the embedding would keep much more than a layer's. */
void gr_sharding_reduce(gr_tasks *p, const gr_kernels *k, const gr_model *m, uint32_t bucket, bool all)
{
    char what[64];
    uint32_t shards = gr_placed(p, m)->shards;
    if (shards < 2) return;
    const bool cut = is_cut(m, bucket);
    named(what, "", "reduce", bucket);
    gr_task *w = of_shards(p, m, GR_STEP_REDUCE,
                           cut   ? all ? SHARDING_BACK_ALL : SHARDING_BACK
                           : all ? SHARDING_REDUCE_ALL
                                 : SHARDING_REDUCE,
                           bucket, grad_elems(m, bucket) * gr_dtype_size(m->train.grads),
                           (gr_use[]){[REDUCE_WHOLE] = {gr_sharding_whole(p, k, m, bucket), GR_UPDATE},
                                      [REDUCE_SHARD] = {gr_model_object(p, k, m, GR_PART_GRADS, bucket),
                                                        all ? GR_WRITE : GR_UPDATE},
                                      [REDUCE_STAGING] = {reduce_room(p, k, m, bucket), GR_WRITE}},
                           N_REDUCE, what);
    w->comm.beside = !k->chained && bucket && bucket <= m->shape.layers;
    if (cut) w->cost.bytes = 4.0 * (double)w->comm.moved;
}

/* A rank receives the others' sums, and then the sum of all, of what is not its own to add: twice as much as
 * it does of a reduction. */
void gr_sharding_replicas(gr_tasks *p, const gr_kernels *k, const gr_model *m, uint32_t bucket)
{
    char what[64];
    if (gr_placed(p, m)->group != GR_GROUP_NODE) return;
    uint32_t grads = gr_model_object(p, k, m, GR_PART_GRADS, bucket);
    named(what, "", "across", bucket);
    to_all(gr_sharding_collective(
               p, NULL, GR_STEP_REDUCE, SHARDING_REPLICAS, bucket,
               (uint64_t)(2 * moved(p->ranks / gr_placed(p, m)->shards, p->objects[grads].bytes)),
               (gr_use[]){[ALL] = {grads, GR_UPDATE}}, N_ALL, what),
           &p->objects[grads])
        ->comm.group = GR_GROUP_REPLICAS;
}

void gr_sharding_stepped(gr_tasks *p, const gr_kernels *k, const gr_model *m, uint32_t bucket)
{
    char what[64];
    const gr_model_part part = gr_part_stepped(m);
    gr_placed(p, m)->made = 0; /* what generates from here on has the new weights */
    if (gr_placed(p, m)->shards < 2 || sharded(p, m)) return;
    named(what, "", "gather", bucket);
    of_shards(p, m, GR_STEP_GATHER, SHARDING_STEPPED, bucket, gr_part_bytes(k, m, part, bucket),
              (gr_use[]){[ALL] = {gr_model_object(p, k, m, part, bucket), GR_UPDATE}}, N_ALL, what);
}

void gr_sharding_unite(gr_tasks *p, const gr_kernels *k, const gr_model *m, uint32_t object, uint32_t bucket)
{
    char what[64];
    if (gr_placed(p, m)->shards < 2) return;
    named(what, "", "unite", bucket);
    of_shards(p, m, GR_STEP_GATHER, SHARDING_STEPPED, bucket, gr_part_bytes(k, m, gr_part_stepped(m), bucket),
              (gr_use[]){[ALL] = {object, GR_UPDATE}}, N_ALL, what);
}

void gr_sharding_total(gr_tasks *p, uint32_t object, uint32_t n, const char *what)
{
    if (p->ranks < 2) return;
    to_all(gr_sharding_collective(p, NULL, GR_STEP_REDUCE, SHARDING_TOTAL, n, n * sizeof(double),
                                  (gr_use[]){[ALL] = {object, GR_UPDATE}}, N_ALL, what),
           &p->objects[object]);
}

void gr_sharding_share(gr_tasks *p, uint32_t object)
{
    if (p->ranks < 2 || object == GR_NONE) return;
    const gr_object *o = &p->objects[object];
    size_t node = strlen(p->node);
    bool own = !strncmp(o->name, p->node, node) && o->name[node] == '.';
    char *what = gr_arena_printf(p->arena, "share%s%s", own ? "." : "", own ? o->name + node + 1 : "");
    const uint64_t bytes = (uint64_t)moved(p->ranks, o->bytes);
    const bool on_host = o->place == GR_HOST;
    gr_task *w = to_all(gr_sharding_collective(p, NULL, GR_STEP_GATHER, SHARDING_SHARE, 0, bytes,
                                               (gr_use[]){[ALL] = {object, GR_UPDATE}}, N_ALL, what),
                        &p->objects[object]);
    if (on_host) gr_tasks_waits(w);
}

gr_task *gr_sharding_loop(gr_tasks *p, uint32_t kernel, uint32_t trips_max, bool collectives, uint32_t rows,
                          const char *what)
{
    if (p->ranks < 2 || !collectives) return gr_tasks_loop(p, kernel, trips_max, true, what);
    uint32_t trips = gr_tasks_host(p, GR_CAT_COMM, sizeof(uint32_t), "%s.trips", what);
    char *agree = gr_arena_printf(p->arena, "%s.agree", what);
    to_all(gr_sharding_collective(
               p, NULL, GR_STEP_AGREE, kernel, 0, sizeof(uint32_t),
               (gr_use[]){[GR_AGREE_TRIPS] = {trips, GR_WRITE}, [GR_AGREE_ROWS] = {rows, GR_READ}},
               rows == GR_NONE ? GR_AGREE_ROWS : GR_N_AGREE, agree),
           &p->objects[trips])
        ->uses.by_code = true;
    gr_task *w = gr_tasks_loop(p, kernel, trips_max, true, what);
    w->uses.list = gr_arena_alloc(p->arena, sizeof(*w->uses.list));
    w->uses.list[GR_AGREE_TRIPS] = (gr_use){trips, GR_READ};
    w->uses.n = 1;
    return w;
}

/* ---- running ------------------------------------------------------------------------------------------- */

gr_shard gr_shard_of(const gr_call *c, uint32_t bucket)
{
    return gr_shard_at(c->placed, c->node->model, bucket, c->session->rank);
}

static gr_comm_parts parts_of(const gr_call *c, void *whole, gr_dtype type)
{
    uint64_t n = gr_bucket_elems(gr_model_trains(c->node->model), c->arg);
    return (gr_comm_parts){whole, n, gr_shard_elems(n, c->placed->shards), (uint32_t)gr_dtype_size(type)};
}

static void copy(gr_queue *q, void *to, const void *from, uint64_t bytes)
{
    if (q->device)
        q->device->type->copy(q, to, from, bytes);
    else
        memcpy(to, from, bytes);
}

static gr_status run_gather(const gr_call *c, gr_comm *comm, gr_diag *d)
{
    const gr_kernels *k = c->session->kernels;
    gr_shard own = gr_shard_of(c, c->arg);
    gr_comm_parts whole = parts_of(c, c->ptr[GATHER_WHOLE], k->dtype);
    if (own.n)
        copy(c->queue, (char *)whole.at + own.first * whole.elem_bytes, c->ptr[GATHER_SHARD],
             own.n * whole.elem_bytes);
    return comm->type->all_gather(comm, c->queue, &whole, d);
}

/* The ranks' sum, onto what the shard has of the micro-batches before; of all of them at once there is none.
 */
static gr_status run_reduce(const gr_call *c, gr_comm *comm, const gr_comm_parts *whole, gr_diag *d)
{
    const gr_kernels *k = c->session->kernels;
    gr_shard own = gr_shard_of(c, c->arg);
    if (c->kernel == SHARDING_REDUCE_ALL) k->zero(c->queue, c->ptr[REDUCE_SHARD], own.n * whole->elem_bytes);
    gr_status st = comm->type->reduce_scatter(comm, c->queue, whole, c->ptr[REDUCE_STAGING], d);
    if (!st && own.n)
        k->add(c->queue, c->ptr[REDUCE_SHARD], (char *)whole->at + own.first * whole->elem_bytes,
               c->node->model->train.grads, own.n);
    return st;
}

static gr_status run_replicas(const gr_call *c, gr_comm *comm, gr_diag *d)
{
    gr_dtype type = c->node->model->train.grads;
    return comm->type->all_reduce(comm, c->queue, c->ptr[ALL], gr_shard_of(c, c->arg).n * gr_dtype_size(type),
                                  type == GR_F32 ? GR_COMM_SUM_F32 : GR_COMM_SUM_BF16, d);
}

static gr_status run_agree(const gr_call *c, gr_comm *host, gr_diag *d)
{
    uint64_t trips = c->node->op->trips ? c->node->op->trips(c) : 0;
    gr_status st = gr_comm_agree(host, &trips, d);
    *(uint32_t *)c->ptr[GR_AGREE_TRIPS] = (uint32_t)trips;
    return st;
}

static gr_status run_share(const gr_call *c, const gr_object *o, gr_comm *device, gr_comm *host, gr_diag *d)
{
    if (o->place == GR_DEVICE)
        return device->type->all_reduce(device, c->queue, c->ptr[ALL], o->bytes, GR_COMM_MAX_U8, d);
    gr_status st = gr_queue_finish(c->queue, d); /* what wrote it */
    return st ? st : host->type->host_reduce(host, c->ptr[ALL], o->bytes, GR_COMM_MAX_U8, d);
}

uint64_t gr_sharding_room_bytes(const gr_tasks *p, const gr_task *w, const gr_model *m)
{
    const bool moves = w->kind == GR_STEP_SYNC || w->kind == GR_STEP_GATHER || w->kind == GR_STEP_REDUCE ||
                       w->kind == GR_STEP_EXCHANGE;
    if (!moves || !m) return 0;
    switch (w->kernel) {
    case GR_PIECE_GATHER:
    case GR_PIECE_REDUCE:
    case GR_STAGE_RING:
        return 4ull * p->ranks * sizeof(uint64_t);
    case SHARDING_RESHARD:
        return gr_reshard_room_bytes(p->ranks, gr_slicing_parts(m->sharding.rollout));
    case SHARDING_PASS_RESHARD:
    case SHARDING_BACK:
    case SHARDING_BACK_ALL:
        return gr_reshard_room_bytes(p->ranks, gr_slicing_parts(m->sharding.train));
    default:
        return 0;
    }
}

static gr_reshard reshard_of(const gr_call *c, gr_slicing cut)
{
    const uint32_t shards = c->placed->shards;
    return (gr_reshard){.shape = &c->node->model->shape,
                        .cut = cut,
                        .bucket = c->arg,
                        .rank = c->session->rank % shards,
                        .ranks = shards,
                        .k = c->session->kernels,
                        .q = c->queue};
}

gr_status gr_sharding_run(const gr_call *c, const gr_tasks *p, const gr_task *w, gr_comm *device,
                          gr_comm *host, gr_diag *d)
{
    const gr_kernels *k = c->session->kernels;
    const gr_model *m = c->node->model; /* NULL: what moves is no model's */
    const gr_reshard reshard = m ? reshard_of(c, m->sharding.rollout) : (gr_reshard){0},
                     pass = m ? reshard_of(c, m->sharding.train) : (gr_reshard){0};
    if (w->kind == GR_STEP_AGREE) return run_agree(c, host, d);
    switch (c->kernel) {
    case SHARDING_GATHER:
        return run_gather(c, device, d);
    case SHARDING_STEPPED: {
        gr_comm_parts whole = parts_of(c, c->ptr[ALL], k->dtype);
        return device->type->all_gather(device, c->queue, &whole, d);
    }
    case SHARDING_REDUCE:
    case SHARDING_REDUCE_ALL: {
        gr_comm_parts whole = parts_of(c, c->ptr[REDUCE_WHOLE], c->node->model->train.grads);
        return run_reduce(c, device, &whole, d);
    }
    case SHARDING_REPLICAS:
        return run_replicas(c, device, d);
    case SHARDING_COPY:
        copy(c->queue, c->ptr[SYNC_COPY], c->ptr[SYNC_FROM],
             gr_bucket_elems(&c->node->model->shape, c->arg) * gr_dtype_size(k->dtype));
        return GR_OK;
    case SHARDING_TP:
        gr_reshard_local(&reshard, c->ptr[SYNC_FROM], c->ptr[SYNC_COPY]);
        return GR_OK;
    case SHARDING_RESHARD:
        return gr_reshard_run(&reshard, device, c->ptr[SYNC_FROM], c->ptr[SYNC_COPY], c->ptr[SYNC_EXCHANGE],
                              c->room, d);
    case SHARDING_PASS_TP:
        gr_reshard_local(&pass, c->ptr[SYNC_FROM], c->ptr[SYNC_COPY]);
        return GR_OK;
    case SHARDING_PASS_RESHARD:
        return gr_reshard_run(&pass, device, c->ptr[SYNC_FROM], c->ptr[SYNC_COPY], c->ptr[SYNC_EXCHANGE],
                              c->room, d);
    case SHARDING_BACK:
    case SHARDING_BACK_ALL:
        if (c->kernel == SHARDING_BACK_ALL)
            k->zero(c->queue, c->ptr[REDUCE_SHARD], gr_shard_of(c, c->arg).n * gr_dtype_size(m->train.grads));
        return gr_reshard_back(&pass, device, m->train.grads, c->ptr[REDUCE_WHOLE], c->ptr[REDUCE_SHARD],
                               c->ptr[REDUCE_STAGING], c->room, d);
    case GR_PIECE_GATHER:
        return gr_piece_gather_run(c, device, d);
    case GR_PIECE_ADAPTERS:
        gr_piece_adapters_run(c);
        return GR_OK;
    case GR_PIECE_REDUCE:
        return gr_piece_reduce_run(c, device, d);
    case GR_STAGE_EXCHANGE:
        return gr_stage_exchange_run(c, w, device, d);
    case GR_STAGE_RING:
        return gr_stage_ring_run(c, device, d);
    case SHARDING_TOTAL:
        return device->type->all_reduce(device, c->queue, c->ptr[ALL], c->arg * sizeof(double),
                                        GR_COMM_SUM_F64, d);
    default:
        return run_share(c, &p->objects[w->uses.list[ALL].object], device, host, d);
    }
}
