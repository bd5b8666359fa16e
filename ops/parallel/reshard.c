/* ops/parallel/reshard.c: from flat shards to tensor-parallel shards of layers: who sends which pieces to
 * whom. */
#include "ops/parallel/reshard.h"

#include "ops/parallel/parts.h"

#include <stdlib.h>

/* Elements of the whole bucket. */
typedef struct shard_span {
    uint64_t first, end;
} shard_span;

typedef struct blocks {
    gr_tp_block at[GR_TP_BLOCKS_MAX];
    size_t n;
} blocks;

static blocks blocks_of(const gr_reshard *r, uint32_t place)
{
    blocks b;
    b.n = gr_tp_blocks(r->shape, r->cut, place, r->bucket, b.at);
    return b;
}

static uint32_t parts_of(const gr_reshard *r)
{
    return gr_slicing_parts(r->cut);
}

static uint64_t shard_elems(const gr_model_shape *s, uint32_t bucket, uint32_t ranks)
{
    return gr_shard_elems(gr_bucket_elems(s, bucket), ranks);
}

/* A flat shard is packed once for each tensor-parallel shard; only what several of these have goes out more
 * than once: what all have; and, of those along both width and experts, what is cut along the smaller. */
static uint64_t out_room(const gr_model_shape *s, gr_slicing cut, uint32_t bucket, uint32_t ranks)
{
    const uint64_t shard = shard_elems(s, bucket, ranks);
    const uint32_t parts = gr_slicing_parts(cut), both = GR_MIN(cut.width, cut.experts),
                   copies = both > 1 ? parts / both : 1;
    return copies * shard + (parts - copies) * GR_MIN(shard, gr_tp_common(s, cut, bucket));
}

uint64_t gr_reshard_room(const gr_model_shape *s, gr_slicing cut, uint32_t bucket, uint32_t ranks)
{
    const gr_model_shape tp = gr_tp_shape(s, cut);
    return out_room(s, cut, bucket, ranks) + gr_bucket_elems(&tp, bucket);
}

/* Pieces between the layout of a bucket and one after another in a buffer. */
typedef struct move {
    const gr_reshard *r;
    char *packed; /* where the next piece goes, or comes from */
    uint64_t size;
} move;

static void pack_piece(move *m, const gr_tp_block *p, const char *shard, uint64_t first)
{
    m->r->k->copy_rows(m->r->q, m->packed, p->n * m->size, shard + (p->from - first) * m->size,
                       p->from_stride * m->size, p->n * m->size, p->count);
    m->packed += p->n * p->count * m->size;
}

static void unpack_piece(move *m, const gr_tp_block *p, char *tp)
{
    m->r->k->copy_rows(m->r->q, tp + p->to * m->size, p->to_stride * m->size, m->packed, p->n * m->size,
                       p->n * m->size, p->count);
    m->packed += p->n * p->count * m->size;
}

void gr_reshard_pack(const gr_reshard *r, const void *shard, void *buffer, gr_reshard_part *out)
{
    const uint64_t part = shard_elems(r->shape, r->bucket, r->ranks), first = r->rank * part;
    move m = {r, buffer, gr_dtype_size(r->k->dtype)};
    for (uint32_t place = 0; place < parts_of(r); place++) {
        const blocks b = blocks_of(r, place);
        gr_tp_block piece[3];
        out[place].at = (uint64_t)(m.packed - (char *)buffer) / m.size;
        for (size_t i = 0; i < b.n; i++)
            for (size_t k = 0, n = gr_tp_cut(&b.at[i], first, first + part, piece); k < n; k++)
                pack_piece(&m, &piece[k], shard, first);
        out[place].n = (uint64_t)(m.packed - (char *)buffer) / m.size - out[place].at;
    }
}

void gr_reshard_expect(const gr_reshard *r, gr_reshard_part *in)
{
    const uint64_t part = shard_elems(r->shape, r->bucket, r->ranks);
    const blocks b = blocks_of(r, r->rank % parts_of(r));
    uint64_t at = out_room(r->shape, r->cut, r->bucket, r->ranks);
    for (uint32_t from = 0; from < r->ranks; from++) {
        in[from] = (gr_reshard_part){at, gr_tp_count(b.at, b.n, from * part, (from + 1) * part)};
        at += in[from].n;
    }
}

/* Tensors begin at aligned places, and what is between them is zero. */
static void zero_gaps(const gr_reshard *r, const blocks *b, char *tp)
{
    const gr_model_shape shape = gr_tp_shape(r->shape, r->cut);
    const uint64_t size = gr_dtype_size(r->k->dtype);
    for (size_t i = 0; i < b->n; i++) {
        const uint64_t end = b->at[i].to + b->at[i].n * b->at[i].count,
                       next = i + 1 < b->n ? b->at[i + 1].to : gr_bucket_elems(&shape, r->bucket);
        if (next > end) r->k->zero(r->q, tp + end * size, (next - end) * size);
    }
}

void gr_reshard_unpack(const gr_reshard *r, const gr_reshard_part *in, const void *buffer, void *tp)
{
    const uint64_t part = shard_elems(r->shape, r->bucket, r->ranks), size = gr_dtype_size(r->k->dtype);
    const blocks b = blocks_of(r, r->rank % parts_of(r));
    for (uint32_t from = 0; from < r->ranks; from++) {
        move m = {r, (char *)(uintptr_t)buffer + in[from].at * size, size};
        gr_tp_block piece[3];
        for (size_t i = 0; i < b.n; i++)
            for (size_t k = 0, n = gr_tp_cut(&b.at[i], from * part, (from + 1) * part, piece); k < n; k++)
                unpack_piece(&m, &piece[k], tp);
    }
    zero_gaps(r, &b, tp);
}

uint64_t gr_reshard_room_bytes(uint32_t ranks, uint32_t parts)
{
    return ((uint64_t)ranks + parts) * sizeof(gr_reshard_part) + 4ull * ranks * sizeof(uint64_t);
}

gr_status gr_reshard_run(const gr_reshard *r, gr_comm *c, const void *shard, void *tp, void *buffer,
                         void *room, gr_diag *d)
{
    const uint64_t size = gr_dtype_size(r->k->dtype);
    gr_reshard_part *in = room, *out = in + r->ranks;
    uint64_t *at = (uint64_t *)(out + parts_of(r)), *bytes = at + r->ranks, *to = bytes + r->ranks,
             *comes = to + r->ranks;
    gr_reshard_pack(r, shard, buffer, out);
    gr_reshard_expect(r, in);
    for (uint32_t i = 0; i < r->ranks; i++) {
        at[i] = out[i % parts_of(r)].at * size;
        bytes[i] = out[i % parts_of(r)].n * size;
        to[i] = (in[i].at - in[0].at) * size;
        comes[i] = in[i].n * size;
    }
    const gr_comm_exchange e = {buffer, at,    bytes,         (char *)buffer + in[0].at * size,
                                to,     comes, (uint32_t)size};
    gr_status st = c->type->all_to_all(c, r->q, &e, d);
    if (!st) gr_reshard_unpack(r, in, buffer, tp);
    return st;
}

/* ---- back ------------------------------------------------------------------------------------------------
 */

static shard_span shard_range(const gr_reshard *r, uint32_t rank)
{
    const uint64_t part = shard_elems(r->shape, r->bucket, r->ranks);
    return (shard_span){rank * part, (rank + 1) * part};
}

/* What of a slice lies in a rank's flat shard. */
static uint64_t share_of(const gr_reshard *r, uint32_t place, uint32_t rank)
{
    const blocks b = blocks_of(r, place);
    const shard_span in = shard_range(r, rank);
    return gr_tp_count(b.at, b.n, in.first, in.end);
}

static uint64_t slice_elems(const gr_model_shape *s, gr_slicing cut, uint32_t bucket)
{
    const gr_model_shape tp = gr_tp_shape(s, cut);
    return gr_bucket_elems(&tp, bucket);
}

uint64_t gr_reshard_back_room(const gr_model_shape *s, gr_slicing cut, uint32_t bucket, uint32_t ranks)
{
    const uint64_t in = ranks / gr_slicing_parts(cut) * out_room(s, cut, bucket, ranks);
    return slice_elems(s, cut, bucket) + in + shard_elems(s, bucket, ranks);
}

/* This rank's slice, in the order of the flat shards that its pieces are for. */
static void pack_slice(const gr_reshard *r, uint64_t size, const char *tp, char *buffer)
{
    const blocks b = blocks_of(r, r->rank % parts_of(r));
    for (uint32_t to = 0; to < r->ranks; to++) {
        const shard_span in = shard_range(r, to);
        gr_tp_block piece[3];
        for (size_t i = 0; i < b.n; i++)
            for (size_t k = 0, n = gr_tp_cut(&b.at[i], in.first, in.end, piece); k < n; k++) {
                const gr_tp_block *p = &piece[k];
                r->k->copy_rows(r->q, buffer, p->n * size, tp + p->to * size, p->to_stride * size,
                                p->n * size, p->count);
                buffer += p->n * p->count * size;
            }
    }
}

static void add_runs(const gr_reshard *r, gr_dtype type, const gr_tp_block *p, const char *packed, char *to)
{
    const uint64_t size = gr_dtype_size(type);
    const bool dense = p->count == 1 || p->from_stride == p->n;
    for (uint64_t i = 0, n = dense ? 1 : p->count; i < n; i++)
        r->k->add(r->q, to + i * p->from_stride * size, packed + i * p->n * size, type,
                  dense ? p->n * p->count : p->n);
}

/* The sum of a slice's pieces into the shard's: what another slice has brought already is added to. */
static void unpack_sum(const gr_reshard *r, gr_dtype type, uint32_t place, const char *packed, char *sum)
{
    const uint64_t size = gr_dtype_size(type);
    const shard_span in = shard_range(r, r->rank);
    const blocks b = blocks_of(r, place);
    for (size_t i = 0; i < b.n; i++) {
        gr_tp_block piece[3];
        for (size_t k = 0, n = gr_tp_cut(&b.at[i], in.first, in.end, piece); k < n; k++) {
            const gr_tp_block *p = &piece[k];
            char *to = sum + (p->from - in.first) * size;
            if (p->several)
                add_runs(r, type, p, packed, to);
            else
                r->k->copy_rows(r->q, to, p->from_stride * size, packed, p->n * size, p->n * size, p->count);
            packed += p->n * p->count * size;
        }
    }
}

/* Neighbours of a slice first, then neighbouring sums: into the first one's. at: where each rank's begins. */
static void add_slices(const gr_reshard *r, gr_dtype type, const uint64_t *at, char *in)
{
    for (uint32_t place = 0; place < parts_of(r); place++) {
        const uint64_t n = share_of(r, place, r->rank);
        for (uint32_t step = parts_of(r); step < r->ranks; step *= 2)
            for (uint32_t i = place; n && i + step < r->ranks; i += 2 * step)
                r->k->add(r->q, in + at[i], in + at[i + step], type, n);
    }
}

gr_status gr_reshard_back(const gr_reshard *r, gr_comm *c, gr_dtype type, const void *tp, void *shard,
                          void *buffer, void *room, gr_diag *d)
{
    const uint64_t size = gr_dtype_size(type), part = shard_elems(r->shape, r->bucket, r->ranks),
                   first = GR_MIN(r->rank * part, gr_bucket_elems(r->shape, r->bucket)),
                   own = GR_MIN(part, gr_bucket_elems(r->shape, r->bucket) - first);
    uint64_t *at = room, *bytes = at + r->ranks, *to = bytes + r->ranks, *comes = to + r->ranks;
    char *in = (char *)buffer + slice_elems(r->shape, r->cut, r->bucket) * size;
    uint64_t goes = 0, came = 0;
    for (uint32_t i = 0; i < r->ranks; i++) {
        at[i] = goes, to[i] = came;
        goes += bytes[i] = share_of(r, r->rank % parts_of(r), i) * size;
        came += comes[i] = share_of(r, i % parts_of(r), r->rank) * size;
    }
    pack_slice(r, size, tp, buffer);
    const gr_comm_exchange e = {buffer, at, bytes, in, to, comes, (uint32_t)size};
    gr_status st = c->type->all_to_all(c, r->q, &e, d);
    if (st || !own) return st;
    char *sum = in + came;
    add_slices(r, type, to, in);
    r->k->zero(r->q, sum, part * size);
    for (uint32_t place = 0; place < parts_of(r); place++) unpack_sum(r, type, place, in + to[place], sum);
    r->k->add(r->q, shard, sum, type, own);
    return GR_OK;
}

void gr_reshard_local(const gr_reshard *r, const void *whole, void *tp)
{
    const uint64_t size = gr_dtype_size(r->k->dtype);
    const blocks b = blocks_of(r, r->rank % parts_of(r));
    for (size_t i = 0; i < b.n; i++)
        r->k->copy_rows(r->q, (char *)tp + b.at[i].to * size, b.at[i].to_stride * size,
                        (const char *)whole + b.at[i].from * size, b.at[i].from_stride * size,
                        b.at[i].n * size, b.at[i].count);
    zero_gaps(r, &b, tp);
}

void gr_reshard_place(const gr_reshard *r, gr_dtype type, const void *tp, void *whole)
{
    const uint64_t size = gr_dtype_size(type);
    const blocks b = blocks_of(r, r->rank % parts_of(r));
    r->k->zero(r->q, whole, gr_bucket_elems(r->shape, r->bucket) * size);
    for (size_t i = 0; i < b.n; i++)
        r->k->copy_rows(r->q, (char *)whole + b.at[i].from * size, b.at[i].from_stride * size,
                        (const char *)tp + b.at[i].to * size, b.at[i].to_stride * size, b.at[i].n * size,
                        b.at[i].count);
}
