/* What is replicated over ranks, from how weights are spread. */
#include "ops/alike.h"

/* A shard, which the ranks of the same place in other nodes have, too. */
static bool of_shard(gr_alike *out, const gr_tasks *p, const gr_model *m, uint64_t elems, uint64_t elem_bytes,
                     uint32_t rank)
{
    const uint32_t shards = gr_tasks_shards(p, m->index);
    const uint64_t part = gr_shard_elems(elems, shards), first = GR_MIN(rank % shards * part, elems);
    out->group = rank % shards;
    out->bytes = GR_MIN(part, elems - first) * elem_bytes;
    return shards < p->ranks;
}

static bool is_sharded(const gr_tasks *p, const gr_model *m)
{
    return gr_tasks_shards(p, m->index) > 1 && p->sharded >> m->index & 1;
}

static bool is_slice(const gr_model *m, uint32_t bucket)
{
    return gr_tp_is_cut(&m->shape, m->sharding.rollout, bucket);
}

bool gr_alike_of(gr_alike *out, const gr_tasks *p, const gr_graph *g, const gr_kernels *k, uint32_t object,
                 uint32_t rank)
{
    const gr_object *o = &p->objects[object];
    const gr_model *m = o->model ? gr_graph_model(g, o->model) : NULL;
    *out = (gr_alike){0};
    if (p->ranks < 2 || !m) return false;
    if (o->category == GR_CAT_ROLLOUT) {
        const bool received = gr_model_has_lora(m) && !is_slice(m, o->bucket); /* adapters */
        out->bytes = gr_part_bytes(k, m, received ? GR_PART_ADAPTERS : GR_PART_ROLLOUT, o->bucket);
        return !is_slice(m, o->bucket);
    }
    if (o->category != GR_CAT_WEIGHTS) return false;
    const bool keeps = o->span == GR_SPAN_KEEP; /* else it is made of what is kept */
    const gr_model_part part = keeps ? gr_part_kept(m, o->bucket) : GR_PART_PARAMS;
    out->written = m->trained && keeps;
    out->bytes = gr_part_bytes(k, m, part, o->bucket);
    if (!is_sharded(p, m)) return true;
    const uint64_t elems = gr_bucket_elems(&m->shape, o->bucket);
    return of_shard(out, p, m, elems, out->bytes / elems, rank);
}

uint64_t gr_alike_room(const gr_tasks *p, const gr_graph *g, const gr_kernels *k)
{
    gr_alike a;
    uint64_t n = 0;
    for (uint32_t i = 0; i < p->n_objects && g->run.check && k->queued; i++)
        n += gr_alike_of(&a, p, g, k, i, 0);
    return gr_align(n * GR_CHECKSUM_PARTS * sizeof(uint64_t), GR_ALIGN);
}
