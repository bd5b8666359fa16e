/* ops/parallel/stages.c: stages of a model: how layers are cut, what each rank gathers and reduces of them,
 * and the messages between neighbours. */
#include "ops/parallel/stages.h"

#include "ops/base/session.h"
#include "ops/model/fp8.h"
#include "ops/parallel/quantize.h"
#include "ops/parallel/reshard.h"
#include "ops/parallel/sharding.h"

/* ---- the cut --------------------------------------------------------------------------------------------
 */

/* Multiply-adds of a token, of sequences of full length. */
static double layer_macs(const gr_node *n, uint32_t layer)
{
    const gr_model_shape *s = &n->model->shape;
    const gr_layer_desc *d = gr_layer(s, layer);
    const double length = (double)n->bounds.prompt_tokens + n->bounds.response_tokens;
    return (double)gr_layer_token_macs(d, s->hidden) +
           (double)gr_layer_pair_macs(d) * gr_layer_keys(d, length) / 2;
}

/* Of response tokens alone the head is asked. */
static double head_macs(const gr_node *n)
{
    const gr_model_shape *s = &n->model->shape;
    const double response = n->bounds.response_tokens, prompt = n->bounds.prompt_tokens;
    return s->head == GR_HEAD_VALUE ? s->hidden
                                    : (double)s->vocab * s->hidden * response / (prompt + response);
}

/* Layers in their order, to each stage as many as stay below a bound, one at least. Whether all find a place.
 */
static bool cut_below(const gr_node *n, double bound, gr_stages *s)
{
    const uint32_t layers = n->model->shape.layers;
    uint32_t l = 0;
    for (uint32_t stage = 0; stage < s->n; stage++) {
        const uint32_t behind = s->n - 1 - stage;
        double sum = behind ? 0 : head_macs(n);
        s->first[stage] = l;
        do sum += layer_macs(n, l++);
        while (l + behind < layers && (!behind || sum + layer_macs(n, l) <= bound));
        if (sum > bound) return false;
    }
    s->first[s->n] = l;
    return l == layers;
}

static void count_slots(gr_stages *s)
{
    s->slots = 0;
    for (uint32_t i = 0; i < s->n; i++) s->slots = GR_MAX(s->slots, s->first[i + 1] - s->first[i]);
    s->pieces = s->slots + 1 + s->tied;
}

gr_stages gr_stages_of(const gr_node *n)
{
    enum { HALVINGS = 40 };
    const gr_model_shape *shape = &n->model->shape;
    const uint32_t ranks = gr_mesh_size(&n->placement.mesh, GR_AXIS_PIPELINE),
                   chunks = gr_node_interleaves(n) ? gr_mesh_chunks(&n->placement.mesh) : 1;
    gr_stages s = {.n = ranks * chunks, .ranks = ranks, .chunks = chunks, .tied = shape->tied}, best = s;
    double low = 0, high = head_macs(n);
    for (uint32_t l = 0; l < shape->layers && s.n > 1; l++) high += layer_macs(n, l);
    best.first[best.n] = shape->layers;
    for (int i = 0; i < HALVINGS && s.n > 1; i++) {
        const double bound = i ? (low + high) / 2 : high; /* the first one is kept by every cut */
        if (cut_below(n, bound, &s))
            high = bound, best = s;
        else
            low = bound;
    }
    count_slots(&best);
    return best;
}

uint32_t gr_stage_of(const gr_node *n, uint32_t rank)
{
    return gr_mesh_place(&n->placement.mesh, rank, GR_AXIS_PIPELINE);
}

uint32_t gr_stage_layer(const gr_stages *s, uint32_t stage, uint32_t slot)
{
    return slot < s->first[stage + 1] - s->first[stage] ? s->first[stage] + slot : GR_NONE;
}

uint32_t gr_stage_slowest(const gr_stages *s, const gr_model_shape *shape, uint32_t slot)
{
    uint32_t slowest = GR_NONE;
    for (uint32_t stage = 0; stage < s->n; stage++) {
        const uint32_t l = gr_stage_layer(s, stage, slot);
        if (l == GR_NONE) continue;
        if (slowest == GR_NONE || gr_layer_token_macs(gr_layer(shape, l), shape->hidden) >
                                      gr_layer_token_macs(gr_layer(shape, slowest), shape->hidden))
            slowest = l;
    }
    return slowest;
}

static double slots_macs(const gr_stages *s, const gr_node *n)
{
    double sum = 0;
    for (uint32_t i = 0; i < s->slots; i++) sum += layer_macs(n, gr_stage_slowest(s, &n->model->shape, i));
    return sum;
}

/* Of a trip, there and back, a third: what takes the slowest rank; of stages what their layers take. Backward
 * a layer takes twice as long; the head is all on the way there. */
static double slowest_macs(const gr_stages *s, const double *layers, double head, uint32_t trip)
{
    double most = 0;
    for (uint32_t rank = 0; rank < s->ranks; rank++) {
        const uint32_t there = (trip + s->n - rank) % s->n / s->ranks * s->ranks + rank,
                       turn = (trip + 2 + rank + s->n - s->ranks) % s->n / s->ranks,
                       back = (s->chunks - 1 - turn) * s->ranks + rank;
        most = GR_MAX(most, (layers[there] + 2 * layers[back]) / 3 + (there + 1 == s->n ? head : 0));
    }
    return most;
}

/* Of the trips of a round the mean: chunks that are longer than others meet shorter ones. */
static double trip_macs(const gr_stages *s, const gr_node *n)
{
    const uint32_t trips = s->chunks > 1 ? s->n : 1;
    double layers[GR_STAGES_MAX] = {0}, sum = 0;
    for (uint32_t stage = 0; stage < s->n; stage++)
        for (uint32_t l = s->first[stage]; l < s->first[stage + 1]; l++) layers[stage] += layer_macs(n, l);
    for (uint32_t trip = 0; trip < trips; trip++) sum += slowest_macs(s, layers, head_macs(n), trip);
    return sum / trips;
}

double gr_stages_head(const gr_stages *s, const gr_node *n)
{
    return GR_MIN(GR_MAX(trip_macs(s, n) - slots_macs(s, n), 0.0) / head_macs(n), 1.0);
}

double gr_stages_layers(const gr_stages *s, const gr_node *n)
{
    return s->chunks > 1 ? GR_MIN(trip_macs(s, n) / slots_macs(s, n), 1.0) : 1.0;
}

uint32_t gr_stage_bucket(const gr_stages *s, const gr_model_shape *shape, uint32_t stage, uint32_t piece)
{
    const bool is_last = stage + 1 == s->n;
    if (piece > s->slots) return is_last ? 1 + shape->layers : GR_NONE;
    if (piece) {
        const uint32_t layer = gr_stage_layer(s, stage, piece - 1);
        return layer == GR_NONE ? GR_NONE : 1 + layer;
    }
    if (!stage) return 0;
    return !is_last ? GR_NONE : s->tied ? 0 : 1 + shape->layers;
}

uint64_t gr_piece_elems(const gr_stages *s, const gr_model_shape *shape, uint32_t piece)
{
    uint64_t most = 0;
    for (uint32_t stage = 0; stage < s->n; stage++) {
        const uint32_t b = gr_stage_bucket(s, shape, stage, piece);
        if (b != GR_NONE) most = GR_MAX(most, gr_bucket_elems(shape, b));
    }
    return most;
}

uint64_t gr_piece_grad_elems(const gr_stages *s, const gr_node *n, uint32_t piece)
{
    const gr_model *m = n->model;
    return gr_piece_elems(s, gr_model_has_lora(m) ? gr_model_trains(m) : &m->sharding.train_slice, piece);
}

/* ---- the flow of units ----------------------------------------------------------------------------------
 */

/* Units of so many micro-batches, the last with tokens and those before it. */
static uint32_t units(const gr_stages *s, uint32_t micro_batches)
{
    const uint32_t before = (micro_batches - 1) / s->ranks * s->ranks; /* in rounds that are full */
    return before * s->chunks + (s->chunks - 1) * s->ranks + micro_batches - before;
}

uint32_t gr_stages_trips(const gr_stages *s, uint32_t micro_batches, bool back)
{
    if (!micro_batches) return 0;
    if (s->chunks > 1) return units(s, micro_batches) + s->ranks - 1 + (back ? s->n - 1 : 0);
    return micro_batches + (back ? s->n - 1 : 0);
}

uint32_t gr_stages_full_trips(const gr_stages *s, uint32_t micro_batches)
{
    return (s->chunks > 1 && micro_batches ? units(s, micro_batches) : micro_batches) + s->ranks - 1;
}

uint32_t gr_stages_held(const gr_stages *s, uint32_t micro_batches)
{
    if (s->chunks < 2) return s->n;
    return GR_MIN(s->n + s->ranks - 1, s->chunks * GR_MAX(micro_batches, 1u));
}

void gr_stage_flow_next(gr_stage_flow *f, const gr_stages *s, uint32_t rank, uint32_t trip, bool back,
                        uint32_t *next, uint32_t own)
{
    const uint32_t behind = back ? s->n - 1 + s->ranks - 1 - rank : rank, of_round = (trip - behind) % s->n,
                   round = (trip - behind) / s->n;
    f->sent = f->works && !(back ? gr_stage_flow_first(f, s, rank) : gr_stage_flow_last(f, s, rank));
    f->out = f->sent ? own : 0;
    if (trip < behind) return;
    if (!of_round) f->begin = *next;
    if (of_round % s->ranks == 0) *next = f->begin;
    f->works = true;
    f->chunk = back ? s->chunks - 1 - of_round / s->ranks : of_round / s->ranks;
    f->unit = round * s->n + f->chunk * s->ranks + of_round % s->ranks;
    f->micro = round * s->ranks + of_round % s->ranks;
}

bool gr_stage_flow_first(const gr_stage_flow *f, const gr_stages *s, uint32_t rank)
{
    (void)s;
    return !rank && !f->chunk;
}

bool gr_stage_flow_last(const gr_stage_flow *f, const gr_stages *s, uint32_t rank)
{
    return rank + 1 == s->ranks && f->chunk + 1 == s->chunks;
}

/* ---- declaring ------------------------------------------------------------------------------------------
 */

/* Operands: of a gather, of what takes adapters, and of a reduction; behind them the buckets that stages have
 * as the piece, each once. */
enum { PIECE_WEIGHTS, PIECE_WHOLE, N_PIECE };
enum { TAKE_ADAPTERS, N_TAKE };
enum { REDUCE_GRADS, REDUCE_WHOLE, REDUCE_STAGING, N_REDUCE };
enum {
    EXCHANGE_X,
    EXCHANGE_DX,
    EXCHANGE_CUT,
    EXCHANGE_BACK,
    N_EXCHANGE,
    RING_X = N_EXCHANGE, /* this and the next: what comes around a ring */
    RING_DX,
    N_RING
};

typedef struct buckets {
    uint32_t at[GR_STAGES_MAX], n;
} buckets;

/* shape: with nothing of some buckets where it is that of adapters. */
static buckets buckets_of(const gr_stages *s, const gr_model_shape *shape, uint32_t piece)
{
    buckets all = {.n = 0};
    for (uint32_t stage = 0; stage < s->n; stage++) {
        const uint32_t b = gr_stage_bucket(s, shape, stage, piece);
        bool is_new = b != GR_NONE && gr_bucket_elems(shape, b);
        for (uint32_t i = 0; i < all.n; i++) is_new = is_new && all.at[i] != b;
        if (is_new) all.at[all.n++] = b;
    }
    return all;
}

/* Whether a rank has a slice of it. */
static bool is_cut(const gr_node *n, uint32_t bucket)
{
    return gr_tp_is_cut(&n->model->shape, n->model->sharding.train, bucket);
}

static bool any_cut(const gr_node *n, const buckets *all)
{
    for (uint32_t i = 0; i < all->n; i++)
        if (is_cut(n, all->at[i])) return true;
    return false;
}

/* What a rank has of a piece. */
static const gr_model_shape *slice_of(const gr_node *n)
{
    return &n->model->sharding.train_slice;
}

/* Of a bucket's weights, as passes read them. */
static uint64_t weights_bytes(const gr_kernels *k, const gr_node *n, uint32_t bucket)
{
    const uint64_t size = gr_dtype_size(k->dtype);
    const bool is_layer = bucket && bucket <= n->model->shape.layers;
    return gr_node_fp8(n) && is_layer ? gr_fp8_bucket_bytes(&n->model->shape, bucket, size)
                                      : gr_bucket_elems(slice_of(n), bucket) * size;
}

uint64_t gr_piece_weights_apart(const gr_stages *s, const gr_kernels *k, const gr_node *n, uint32_t piece)
{
    uint64_t most = 0;
    for (uint32_t stage = 0; stage < s->n; stage++) {
        const uint32_t b = gr_stage_bucket(s, &n->model->shape, stage, piece);
        if (b != GR_NONE) most = GR_MAX(most, weights_bytes(k, n, b));
    }
    return gr_align(most, GR_ALIGN);
}

uint32_t gr_piece_weights(gr_tasks *p, const gr_kernels *k, const gr_node *n, const gr_stages *s,
                          uint32_t piece)
{
    return gr_tasks_temp(p, GR_CAT_COMM, gr_piece_chunks(s, piece) * gr_piece_weights_apart(s, k, n, piece),
                         "stage.%u", piece);
}

/* What a rank has of a bucket outside a pass. */
static uint32_t source(gr_tasks *p, const gr_kernels *k, const gr_node *n, uint32_t bucket)
{
    return gr_node_fp8(n) ? gr_quantize_object(p, k, n->model, false, bucket)
                          : gr_model_object(p, k, n->model, GR_PART_PARAMS, bucket);
}

void gr_piece_gather(gr_tasks *p, const gr_kernels *k, const gr_node *n, const gr_stages *s, uint32_t piece)
{
    const gr_model *m = n->model;
    const buckets all = buckets_of(s, &m->shape, piece);
    const gr_placement *at = gr_placed(p, m);
    const bool sharded = at->weights == GR_SPREAD_FLAT; /* ranks gather them from each other */
    const uint64_t size = gr_dtype_size(k->dtype), elems = gr_piece_elems(s, &m->shape, piece),
                   bytes = elems * size, all_chunks = gr_piece_chunks(s, piece) * bytes;
    gr_use uses[N_PIECE + GR_STAGES_MAX] = {
        [PIECE_WEIGHTS] = {gr_piece_weights(p, k, n, s, piece), GR_WRITE},
        [PIECE_WHOLE] = {sharded && any_cut(n, &all) ? gr_tasks_temp(p, GR_CAT_COMM, bytes, "whole.%u", piece)
                                                     : GR_NONE,
                         GR_WRITE}};
    for (uint32_t i = 0; i < all.n; i++) uses[N_PIECE + i] = (gr_use){source(p, k, n, all.at[i]), GR_READ};
    gr_task *w = gr_sharding_collective(
        p, m, GR_STEP_GATHER, GR_PIECE_GATHER, piece,
        sharded ? all_chunks * (at->shards - 1) / at->shards : 0, uses, N_PIECE + all.n,
        gr_arena_printf(p->arena, "%s.%u", sharded ? "gather" : "take", piece));
    w->cost.bytes = 2.0 * (double)all_chunks;
}

uint64_t gr_piece_adapters_apart(const gr_stages *s, const gr_kernels *k, const gr_node *n, uint32_t piece)
{
    return gr_align(gr_piece_elems(s, gr_model_trains(n->model), piece) * gr_dtype_size(k->dtype), GR_ALIGN);
}

uint32_t gr_piece_adapters(gr_tasks *p, const gr_kernels *k, const gr_node *n, const gr_stages *s,
                           uint32_t piece)
{
    return gr_tasks_temp(p, GR_CAT_COMM, gr_piece_chunks(s, piece) * gr_piece_adapters_apart(s, k, n, piece),
                         "stage_adapters.%u", piece);
}

void gr_piece_take_adapters(gr_tasks *p, const gr_kernels *k, const gr_node *n, const gr_stages *s,
                            uint32_t piece)
{
    const gr_model *m = n->model;
    const buckets all = buckets_of(s, gr_model_trains(m), piece);
    if (!gr_model_has_lora(m) || !all.n) return;
    gr_use uses[N_TAKE + GR_STAGES_MAX] = {
        [TAKE_ADAPTERS] = {gr_piece_adapters(p, k, n, s, piece), GR_WRITE}};
    for (uint32_t i = 0; i < all.n; i++)
        uses[N_TAKE + i] = (gr_use){gr_model_object(p, k, m, GR_PART_ADAPTERS, all.at[i]), GR_READ};
    gr_sharding_collective(p, NULL, GR_STEP_GATHER, GR_PIECE_ADAPTERS, piece, 0, uses, N_TAKE + all.n,
                           gr_arena_printf(p->arena, "take_adapters.%u", piece))
        ->cost.bytes = 2.0 * (double)p->objects[uses[TAKE_ADAPTERS].object].bytes;
}

uint64_t gr_piece_grads_apart(const gr_stages *s, const gr_node *n, uint32_t piece)
{
    return gr_align(gr_piece_grad_elems(s, n, piece) * gr_dtype_size(n->model->train.grads), GR_ALIGN);
}

uint32_t gr_piece_grads(gr_tasks *p, const gr_node *n, const gr_stages *s, uint32_t piece)
{
    const uint64_t bytes = gr_piece_chunks(s, piece) * gr_piece_grads_apart(s, n, piece);
    return bytes ? gr_tasks_temp(p, GR_CAT_GRADIENTS, bytes, "stage_grads.%u", piece) : GR_NONE;
}

/* Which chunk of a rank along the axis has a bucket as a piece; GR_NONE: none. */
static uint32_t chunk_with(const gr_stages *s, const gr_model_shape *shape, uint32_t at, uint32_t piece,
                           uint32_t bucket)
{
    for (uint32_t chunk = 0; chunk < s->chunks; chunk++)
        if (gr_stage_bucket(s, shape, chunk * s->ranks + at, piece) == bucket) return chunk;
    return GR_NONE;
}

/* Of ranks [first, end) those whose stages have a bucket as a piece. */
static uint32_t holders_among(const gr_node *n, const gr_stages *s, uint32_t piece, uint32_t bucket,
                              uint32_t first, uint32_t end)
{
    uint32_t count = 0;
    for (uint32_t rank = first; rank < end; rank++)
        count += chunk_with(s, &n->model->shape, gr_stage_of(n, rank), piece, bucket) != GR_NONE;
    return count;
}

/* Of ranks that have shards together: as many everywhere, where these have all stages; else the most of any
 * host. */
static uint32_t holders(const gr_node *n, const gr_stages *s, uint32_t piece, uint32_t bucket,
                        uint32_t shards)
{
    const uint32_t block = gr_mesh_block(&n->placement.mesh);
    uint32_t stages = 0, most = 0;
    for (uint32_t at = 0; at < s->ranks; at++)
        stages += chunk_with(s, &n->model->shape, at, piece, bucket) != GR_NONE;
    if (shards % block == 0) return stages * (shards / s->ranks);
    for (uint32_t first = 0; first < block; first += shards)
        most = GR_MAX(most, holders_among(n, s, piece, bucket, first, first + shards));
    return most;
}

void gr_piece_reduce(gr_tasks *p, const gr_kernels *k, const gr_node *n, const gr_stages *s, uint32_t piece)
{
    const gr_model *m = n->model;
    const gr_model_shape *shape = gr_model_trains(m);
    const buckets all = buckets_of(s, shape, piece);
    const uint32_t shards = gr_placed(p, m)->shards;
    const uint64_t size = gr_dtype_size(m->train.grads);
    uint64_t room = 0, moved = 0;
    gr_use uses[N_REDUCE + GR_STAGES_MAX] = {[REDUCE_GRADS] = {gr_piece_grads(p, n, s, piece), GR_UPDATE}};
    if (!all.n) return;
    for (uint32_t i = 0; i < all.n; i++) {
        const uint64_t part = gr_shard_elems(gr_bucket_elems(shape, all.at[i]), shards) * size,
                       comes = part * holders(n, s, piece, all.at[i], shards);
        room = GR_MAX(room, comes);
        moved += comes;
        uses[N_REDUCE + i] = (gr_use){gr_model_object(p, k, m, GR_PART_GRADS, all.at[i]), GR_WRITE};
    }
    uses[REDUCE_WHOLE] = (gr_use){any_cut(n, &all) ? gr_tasks_temp(p, GR_CAT_GRADIENTS,
                                                                   gr_piece_elems(s, &m->shape, piece) * size,
                                                                   "whole_grads.%u", piece)
                                                   : GR_NONE,
                                  GR_WRITE};
    uses[REDUCE_STAGING] = (gr_use){gr_tasks_temp(p, GR_CAT_COMM, room, "shards.%u", piece), GR_WRITE};
    gr_task *w = gr_sharding_collective(p, m, GR_STEP_REDUCE, GR_PIECE_REDUCE, piece, moved, uses,
                                        N_REDUCE + all.n, gr_arena_printf(p->arena, "reduce.%u", piece));
    w->cost.bytes = 3.0 * (double)moved;
}

void gr_stage_exchange(gr_tasks *p, const gr_node *n, bool next, const gr_stage_messages *m, const char *what)
{
    gr_task *w = gr_sharding_collective(p, NULL, GR_STEP_EXCHANGE, GR_STAGE_EXCHANGE, 0, m->bytes,
                                        (gr_use[]){[EXCHANGE_X] = {m->x, next ? GR_READ : GR_WRITE},
                                                   [EXCHANGE_DX] = {m->dx, next ? GR_UPDATE : GR_READ},
                                                   [EXCHANGE_CUT] = {m->cut, GR_READ},
                                                   [EXCHANGE_BACK] = {m->back, GR_READ}},
                                        N_EXCHANGE, what);
    w->comm.mesh = n->placement.mesh;
    w->comm.to_next = next;
}

void gr_stage_ring(gr_tasks *p, const gr_node *n, const gr_ring_messages *m, const char *what)
{
    const uint64_t ways = m->dx == GR_NONE ? 1 : 2;
    gr_sharding_collective(p, NULL, GR_STEP_EXCHANGE, GR_STAGE_RING, 0, ways * m->go.bytes,
                           (gr_use[]){[EXCHANGE_X] = {m->go.x, GR_READ},
                                      [EXCHANGE_DX] = {m->go.dx, GR_READ},
                                      [EXCHANGE_CUT] = {m->go.cut, GR_READ},
                                      [EXCHANGE_BACK] = {m->go.back, GR_READ},
                                      [RING_X] = {m->x, GR_UPDATE},
                                      [RING_DX] = {m->dx, GR_UPDATE}},
                           N_RING, what)
        ->comm.mesh = n->placement.mesh;
}

/* ---- running --------------------------------------------------------------------------------------------
 */

/* A piece, as this rank sees it. */
typedef struct piece {
    gr_stages stages;
    const gr_node *n;
    const gr_model_shape *shape;           /* of the weights, or of what is trained */
    uint32_t at, rank, ranks, first;       /* among the ranks with shards, and which of all is their first */
    uint32_t along;                        /* this rank's place along the axis */
    uint64_t *from_at, *from, *to_at, *to; /* of an exchange, [ranks] */
} piece;

static piece piece_of(const gr_call *c, const gr_model_shape *shape)
{
    const uint32_t shards = c->placed->shards, own = c->session->rank % shards;
    piece p = {.stages = gr_stages_of(c->node),
               .n = c->node,
               .shape = shape,
               .at = c->arg,
               .rank = own,
               .ranks = shards,
               .first = c->session->rank - own,
               .from_at = c->room};
    p.along = gr_stage_of(c->node, c->session->rank);
    p.from = p.from_at + p.ranks;
    p.to_at = p.from + p.ranks;
    p.to = p.to_at + p.ranks;
    return p;
}

static bool has(const piece *p, uint32_t rank, uint32_t bucket)
{
    const uint32_t along = gr_stage_of(p->n, p->first + rank);
    return chunk_with(&p->stages, p->shape, along, p->at, bucket) != GR_NONE;
}

/* Of this rank's chunks, where the one with a bucket has it in an object with so many bytes for each; NULL:
 * none has. */
static void *own_part(const piece *p, uint32_t bucket, void *object, uint64_t apart)
{
    const uint32_t chunk = chunk_with(&p->stages, p->shape, p->along, p->at, bucket);
    if (chunk == GR_NONE) return NULL;
    return (char *)object + (gr_piece_chunks(&p->stages, p->at) > 1 ? chunk * apart : 0);
}

/* Elements of a rank's flat shard of a bucket, and where they begin. */
static uint64_t shard_of(const piece *p, uint32_t bucket, uint32_t rank, uint64_t *first)
{
    const uint64_t n = gr_bucket_elems(p->shape, bucket), part = gr_shard_elems(n, p->ranks);
    *first = GR_MIN(rank * part, n);
    return GR_MIN(part, n - *first);
}

static gr_reshard slicing_of(const gr_call *c, uint32_t bucket)
{
    return (gr_reshard){&c->node->model->shape,
                        c->node->model->sharding.train,
                        bucket,
                        c->session->rank,
                        c->session->ranks,
                        c->session->kernels,
                        c->queue};
}

/* A bucket's shards, of all ranks, to those that have it as the piece; whole NULL: not to this one. */
static gr_status gather_bucket(const gr_call *c, piece *p, gr_comm *comm, uint32_t bucket, const void *shard,
                               void *whole, gr_diag *d)
{
    const uint32_t size = (uint32_t)gr_dtype_size(c->session->kernels->dtype);
    uint64_t first;
    const uint64_t own = shard_of(p, bucket, p->rank, &first) * size;
    for (uint32_t r = 0; r < p->ranks; r++) {
        const uint64_t n = shard_of(p, bucket, r, &first) * size;
        p->from_at[r] = 0;
        p->from[r] = has(p, r, bucket) ? own : 0;
        p->to_at[r] = first * size;
        p->to[r] = whole ? n : 0;
    }
    const gr_comm_exchange e = {shard, p->from_at, p->from, whole, p->to_at, p->to, size};
    return comm->type->all_to_all(comm, c->queue, &e, d);
}

static void take_whole(const gr_call *c, uint32_t bucket, const void *whole, void *weights)
{
    const gr_kernels *k = c->session->kernels;
    const gr_reshard r = slicing_of(c, bucket);
    if (is_cut(c->node, bucket))
        gr_reshard_local(&r, whole, weights);
    else
        k->copy(c->queue, weights, whole, weights_bytes(k, c->node, bucket));
}

gr_status gr_piece_gather_run(const gr_call *c, gr_comm *comm, gr_diag *d)
{
    piece p = piece_of(c, &c->node->model->shape);
    const buckets all = buckets_of(&p.stages, p.shape, p.at);
    const bool sharded = c->placed->weights == GR_SPREAD_FLAT;
    const uint64_t apart = gr_piece_weights_apart(&p.stages, c->session->kernels, c->node, p.at);
    gr_status st = GR_OK;
    for (uint32_t i = 0; i < all.n && !st; i++) {
        const uint32_t b = all.at[i];
        const bool cut = is_cut(c->node, b);
        const void *from = c->ptr[N_PIECE + i];
        void *weights = own_part(&p, b, c->ptr[PIECE_WEIGHTS], apart);
        if (sharded)
            st = gather_bucket(c, &p, comm, b, from, weights && cut ? c->ptr[PIECE_WHOLE] : weights, d);
        if (st || !weights) continue;
        if (!sharded) take_whole(c, b, from, weights);
        if (sharded && cut) take_whole(c, b, c->ptr[PIECE_WHOLE], weights);
    }
    return st;
}

void gr_piece_adapters_run(const gr_call *c)
{
    const gr_kernels *k = c->session->kernels;
    const gr_model_shape *shape = gr_model_trains(c->node->model);
    const piece p = piece_of(c, shape);
    const buckets all = buckets_of(&p.stages, shape, p.at);
    const uint64_t apart = gr_piece_adapters_apart(&p.stages, k, c->node, p.at);
    for (uint32_t i = 0; i < all.n; i++) {
        void *adapters = own_part(&p, all.at[i], c->ptr[TAKE_ADAPTERS], apart);
        if (adapters)
            k->copy(c->queue, adapters, c->ptr[N_TAKE + i],
                    gr_bucket_elems(shape, all.at[i]) * gr_dtype_size(k->dtype));
    }
}

/* What ranks have summed up of a bucket goes to whose shards it is; grads NULL: this one has none. How many
 * have sent some. */
static gr_status send_gradients(const gr_call *c, piece *p, gr_comm *comm, uint32_t bucket, const void *grads,
                                uint32_t *senders, gr_diag *d)
{
    const uint32_t size = (uint32_t)gr_dtype_size(c->node->model->train.grads);
    uint64_t first;
    const uint64_t own = shard_of(p, bucket, p->rank, &first) * size;
    *senders = 0;
    for (uint32_t r = 0; r < p->ranks; r++) {
        const uint64_t n = shard_of(p, bucket, r, &first) * size;
        p->from_at[r] = first * size;
        p->from[r] = grads ? n : 0;
        p->to_at[r] = *senders * own;
        p->to[r] = has(p, r, bucket) ? own : 0;
        *senders += has(p, r, bucket);
    }
    const gr_comm_exchange e = {grads, p->from_at, p->from, c->ptr[REDUCE_STAGING], p->to_at, p->to, size};
    return comm->type->all_to_all(comm, c->queue, &e, d);
}

/* Neighbours first, then neighbouring sums; nothing where the stages that have it are on other hosts. */
static void add_up(const gr_call *c, uint32_t senders, uint64_t n, void *shard)
{
    const gr_kernels *k = c->session->kernels;
    const gr_dtype type = c->node->model->train.grads;
    const uint64_t bytes = n * gr_dtype_size(type);
    char *in = c->ptr[REDUCE_STAGING];
    if (!senders) {
        k->zero(c->queue, shard, bytes);
        return;
    }
    for (uint32_t step = 1; step < senders; step *= 2)
        for (uint32_t i = 0; i + step < senders; i += 2 * step)
            k->add(c->queue, in + i * bytes, in + (i + step) * bytes, type, n);
    k->copy(c->queue, shard, in, bytes);
}

static gr_status reduce_bucket(const gr_call *c, piece *p, gr_comm *comm, uint32_t bucket, void *shard,
                               gr_diag *d)
{
    const bool cut = is_cut(c->node, bucket);
    const gr_dtype type = c->node->model->train.grads;
    const gr_reshard r = slicing_of(c, bucket);
    uint32_t senders;
    uint64_t first;
    const uint64_t own = shard_of(p, bucket, p->rank, &first);
    void *grads = own_part(p, bucket, c->ptr[REDUCE_GRADS], gr_piece_grads_apart(&p->stages, p->n, p->at));
    if (cut && grads) gr_reshard_place(&r, type, grads, c->ptr[REDUCE_WHOLE]);
    const gr_status st =
        send_gradients(c, p, comm, bucket, cut && grads ? c->ptr[REDUCE_WHOLE] : grads, &senders, d);
    if (!st && own) add_up(c, senders, own, shard);
    return st;
}

gr_status gr_piece_reduce_run(const gr_call *c, gr_comm *comm, gr_diag *d)
{
    piece p = piece_of(c, gr_model_trains(c->node->model));
    const buckets all = buckets_of(&p.stages, p.shape, p.at);
    gr_status st = GR_OK;
    for (uint32_t i = 0; i < all.n && !st; i++)
        st = reduce_bucket(c, &p, comm, all.at[i], c->ptr[N_REDUCE + i], d);
    return st;
}

/* Both ways at once, or where each message is done when the call returns, the earlier stage's first. */
static gr_status exchange(const gr_call *c, gr_comm *comm, bool next, uint32_t peer, gr_diag *d)
{
    const void *goes = c->ptr[next ? EXCHANGE_X : EXCHANGE_DX];
    void *comes = c->ptr[next ? EXCHANGE_DX : EXCHANGE_X];
    uint64_t out, in;
    c->node->op->sends(c, next, &out, &in);
    gr_status st = GR_OK;
    for (int turn = 0; turn < 2 && !st; turn++) {
        if ((turn == 0) == next)
            st = out ? comm->type->send(comm, c->queue, goes, out, peer, d) : GR_OK;
        else
            st = in ? comm->type->recv(comm, c->queue, comes, in, peer, d) : GR_OK;
    }
    return st;
}

gr_status gr_stage_exchange_run(const gr_call *c, const gr_task *w, gr_comm *comm, gr_diag *d)
{
    const gr_mesh *m = &c->node->placement.mesh;
    const uint32_t rank = c->session->rank, stride = gr_mesh_stride(m, GR_AXIS_PIPELINE),
                   stage = gr_stage_of(c->node, rank);
    const bool next = w->comm.to_next;
    if (next ? stage + 1 == gr_mesh_size(m, GR_AXIS_PIPELINE) : !stage) return GR_OK;
    gr_status st = comm->type->group ? comm->type->group(comm, true, d) : GR_OK;
    if (!st) st = exchange(c, comm, next, next ? rank + stride : rank - stride, d);
    if (!comm->type->group) return st;
    const gr_status ended = comm->type->group(comm, false, d);
    return st ? st : ended;
}

/* Ranks of the ring before this one and behind it. */
typedef struct neighbours {
    uint32_t before, next;
} neighbours;

static neighbours neighbours_of(const gr_node *n, uint32_t rank)
{
    const gr_mesh *m = &n->placement.mesh;
    const uint32_t ranks = gr_mesh_size(m, GR_AXIS_PIPELINE), stride = gr_mesh_stride(m, GR_AXIS_PIPELINE),
                   at = gr_stage_of(n, rank), first = rank - at * stride;
    return (neighbours){first + (at + ranks - 1) % ranks * stride, first + (at + 1) % ranks * stride};
}

/* One way around the ring, from all ranks to their neighbours at once. */
static gr_status shift(const gr_call *c, gr_comm *comm, bool next, const void *goes, void *comes, gr_diag *d)
{
    const neighbours at = neighbours_of(c->node, c->session->rank);
    const uint32_t size = (uint32_t)gr_dtype_size(c->session->kernels->dtype);
    uint64_t *places = c->room, *out = places + comm->ranks, *in = out + comm->ranks, to, from, other;
    memset(places, 0, 3 * comm->ranks * sizeof(*places));
    c->node->op->sends(c, next, &to, &other);
    c->node->op->sends(c, !next, &other, &from);
    out[next ? at.next : at.before] = to;
    in[next ? at.before : at.next] = from;
    const gr_comm_exchange e = {goes, places, out, comes, places, in, size};
    return comm->type->all_to_all(comm, c->queue, &e, d);
}

gr_status gr_stage_ring_run(const gr_call *c, gr_comm *comm, gr_diag *d)
{
    gr_status st = shift(c, comm, true, c->ptr[EXCHANGE_X], c->ptr[RING_X], d);
    if (!st && c->ptr[RING_DX]) st = shift(c, comm, false, c->ptr[EXCHANGE_DX], c->ptr[RING_DX], d);
    return st;
}
