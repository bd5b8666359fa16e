/* What is replicated over ranks, from how weights are spread. */
#include "ops/alike.h"

bool gr_alike_of(gr_alike *out, const gr_tasks *p, const gr_graph *g, const gr_kernels *k, uint32_t object,
                 uint32_t rank)
{
    const gr_object *o = &p->objects[object];
    const gr_model *m = o->model ? gr_graph_model(g, o->model) : NULL;
    *out = (gr_alike){0};
    if (p->ranks < 2 || !m) return false;
    if (o->category == GR_CAT_ROLLOUT) {
        if (gr_part_spread(p, m, GR_PART_ROLLOUT, o->bucket) == GR_SPREAD_SLICED) return false;
        const bool received = gr_model_has_lora(m); /* adapters */
        out->bytes = gr_part_bytes(k, m, received ? GR_PART_ADAPTERS : GR_PART_ROLLOUT, o->bucket);
        return true;
    }
    if (o->category != GR_CAT_WEIGHTS) return false;
    const bool keeps = o->span == GR_SPAN_KEEP; /* else it is made of what is kept */
    const gr_model_part part = keeps ? gr_part_kept(m, o->bucket) : GR_PART_PARAMS;
    out->written = m->trained && keeps;
    out->bytes = gr_part_bytes(k, m, part, o->bucket);
    if (gr_part_spread(p, m, part, o->bucket) != GR_SPREAD_FLAT) return true;
    const gr_placement *at = gr_placed(p, m); /* replicas have the same shards */
    out->bytes = gr_shard_at(at, m, o->bucket, rank).n * (out->bytes / gr_bucket_elems(&m->shape, o->bucket));
    out->group = rank % at->shards;
    return at->group == GR_GROUP_NODE;
}

uint64_t gr_alike_room(const gr_tasks *p, const gr_graph *g, const gr_kernels *k)
{
    gr_alike a;
    uint64_t n = 0;
    for (uint32_t i = 0; i < p->n_objects && g->run.check && k->queued; i++)
        n += gr_alike_of(&a, p, g, k, i, 0);
    return gr_align(n * GR_CHECKSUM_PARTS * sizeof(uint64_t), GR_ALIGN);
}
