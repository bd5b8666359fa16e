/* ops/parallel/reshard.c: from flat shards to tensor-parallel shards of layers: who sends which pieces to
 * whom. */
#include "ops/parallel/reshard.h"

#include "ops/parallel/parts.h"

#include <stdlib.h>

typedef struct blocks {
    gr_tp_block at[GR_TP_BLOCKS_MAX];
    size_t n;
} blocks;

static blocks blocks_of(const gr_reshard *r, uint32_t place)
{
    blocks b;
    b.n = gr_tp_blocks(r->shape, r->parts, place, r->bucket, b.at);
    return b;
}

static uint64_t shard_elems(const gr_model_shape *s, uint32_t bucket, uint32_t ranks)
{
    return gr_shard_elems(gr_bucket_elems(s, bucket), ranks);
}

/* A flat shard is packed once for each tensor-parallel shard; only what all of these have goes out more than
 * once. */
static uint64_t out_room(const gr_model_shape *s, uint32_t parts, uint32_t bucket, uint32_t ranks)
{
    const uint64_t shard = shard_elems(s, bucket, ranks);
    return shard + (parts - 1) * GR_MIN(shard, gr_tp_common(s, parts, bucket));
}

uint64_t gr_reshard_room(const gr_model_shape *s, uint32_t parts, uint32_t bucket, uint32_t ranks)
{
    const gr_model_shape tp = gr_tp_shape(s, parts);
    return out_room(s, parts, bucket, ranks) + gr_bucket_elems(&tp, bucket);
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
    for (uint32_t place = 0; place < r->parts; place++) {
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
    const blocks b = blocks_of(r, r->rank % r->parts);
    uint64_t at = out_room(r->shape, r->parts, r->bucket, r->ranks);
    for (uint32_t from = 0; from < r->ranks; from++) {
        in[from] = (gr_reshard_part){at, gr_tp_count(b.at, b.n, from * part, (from + 1) * part)};
        at += in[from].n;
    }
}

/* Tensors begin at aligned places, and what is between them is zero. */
static void zero_gaps(const gr_reshard *r, const blocks *b, char *tp)
{
    const gr_model_shape shape = gr_tp_shape(r->shape, r->parts);
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
    const blocks b = blocks_of(r, r->rank % r->parts);
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
    uint64_t *at = (uint64_t *)(out + r->parts), *bytes = at + r->ranks, *to = bytes + r->ranks,
             *comes = to + r->ranks;
    gr_reshard_pack(r, shard, buffer, out);
    gr_reshard_expect(r, in);
    for (uint32_t i = 0; i < r->ranks; i++) {
        at[i] = out[i % r->parts].at * size;
        bytes[i] = out[i % r->parts].n * size;
        to[i] = (in[i].at - in[0].at) * size;
        comes[i] = in[i].n * size;
    }
    const gr_comm_exchange e = {buffer, at,    bytes,         (char *)buffer + in[0].at * size,
                                to,     comes, (uint32_t)size};
    gr_status st = c->type->all_to_all(c, r->q, &e, d);
    if (!st) gr_reshard_unpack(r, in, buffer, tp);
    return st;
}

void gr_reshard_local(const gr_reshard *r, const void *whole, void *tp)
{
    const uint64_t size = gr_dtype_size(r->k->dtype);
    const blocks b = blocks_of(r, r->rank % r->parts);
    for (size_t i = 0; i < b.n; i++)
        r->k->copy_rows(r->q, (char *)tp + b.at[i].to * size, b.at[i].to_stride * size,
                        (const char *)whole + b.at[i].from * size, b.at[i].from_stride * size,
                        b.at[i].n * size, b.at[i].count);
    zero_gaps(r, &b, tp);
}
