/* ops/parallel/parts.c: sizes of a model's parts and of ranks' shards of them, and their objects. */
#include "ops/parallel/parts.h"

#include "ops/model/nf4.h"

#include <stdio.h>

bool gr_bucket_is_trained(const gr_model *m, uint32_t bucket)
{
    return gr_bucket_elems(gr_model_trains(m), bucket) > 0;
}

bool gr_bucket_is_merged(const gr_model *m, uint32_t bucket)
{
    return gr_model_has_lora(m) && gr_bucket_is_trained(m, bucket);
}

bool gr_bucket_is_closed(const gr_model *m, uint32_t bucket)
{
    return m->shape.nf4 && !gr_model_has_lora(m) && bucket > 0 && bucket <= m->shape.layers;
}

gr_model_part gr_part_kept(const gr_model *m, uint32_t bucket)
{
    return gr_bucket_is_closed(m, bucket) ? GR_PART_NF4 : gr_part_stepped(m);
}

const gr_model *gr_bucket_base(const gr_model *m, uint32_t bucket)
{
    if (!gr_model_has_lora(m)) return m;
    return bucket == m->shape.layers + 1 ? m->lora.ends : m->lora.base;
}

gr_state_bytes gr_state_bytes_of(const gr_kernels *k, const gr_model *m, uint32_t bucket, uint32_t ranks)
{
    static const uint64_t master[] = {
        [GR_MASTER_NONE] = 0, [GR_MASTER_F32] = sizeof(float), [GR_MASTER_SPLIT] = sizeof(uint16_t)};
    const uint64_t n = gr_shard_elems(gr_bucket_elems(gr_model_trains(m), bucket), ranks);
    const gr_master form = k->master ? m->train.master : GR_MASTER_NONE;
    return (gr_state_bytes){.form = form,
                            .master = n * master[form],
                            .moment = gr_moment_bytes(m->train.moments, n),
                            .moments = gr_model_moments(m)};
}

static uint64_t state_bytes(const gr_kernels *k, const gr_model *m, uint32_t bucket, uint32_t ranks)
{
    const gr_state_bytes s = gr_state_bytes_of(k, m, bucket, ranks);
    return s.master + s.moments * s.moment;
}

uint64_t gr_part_bytes(const gr_kernels *k, const gr_model *m, gr_model_part part, uint32_t bucket)
{
    switch (part) {
    case GR_PART_ROLLOUT:
    case GR_PART_LAGGED:
        return gr_bucket_elems(&m->sharding.slice, bucket) * gr_dtype_size(k->dtype);
    case GR_PART_PARAMS:
        return gr_bucket_elems(&m->shape, bucket) * gr_dtype_size(k->dtype);
    case GR_PART_ADAPTERS:
        return gr_bucket_elems(gr_model_trains(m), bucket) * gr_dtype_size(k->dtype);
    case GR_PART_GRADS:
        return gr_bucket_elems(gr_model_trains(m), bucket) * gr_dtype_size(m->train.grads);
    case GR_PART_NF4:
        return gr_nf4_bucket_bytes(&m->shape, bucket);
    case GR_PART_STATE:
        break;
    }
    return state_bytes(k, m, bucket, 1);
}

uint64_t gr_shard_elems(uint64_t n, uint32_t ranks)
{
    uint32_t pieces = ranks < 8 && 8 % ranks == 0 ? 8 : ranks;
    return ranks < 2 ? n : ((n + pieces - 1) / pieces + 63) / 64 * 64 * (pieces / ranks);
}

gr_shard gr_shard_at(const gr_placement *at, const gr_model *m, uint32_t bucket, uint32_t rank)
{
    const uint64_t n = gr_bucket_elems(gr_model_trains(m), bucket), part = gr_shard_elems(n, at->shards),
                   first = GR_MIN(rank % at->shards * part, n);
    return (gr_shard){first, GR_MIN(part, n - first)};
}

gr_spread gr_part_spread(const gr_tasks *p, const gr_model *m, gr_model_part part, uint32_t bucket)
{
    const gr_placement *at = gr_placed(p, m);
    switch (part) {
    case GR_PART_GRADS:
    case GR_PART_STATE:
        return at->shards > 1 ? GR_SPREAD_FLAT : GR_SPREAD_WHOLE;
    case GR_PART_ROLLOUT:
    case GR_PART_LAGGED:
        return gr_tp_is_cut(&m->shape, m->sharding.rollout, bucket) ? GR_SPREAD_SLICED : GR_SPREAD_WHOLE;
    default: /* what weights are made of what is kept, is whole */
        return part == gr_part_stepped(m) ? at->weights : GR_SPREAD_WHOLE;
    }
}

bool gr_part_is_made(gr_tasks *p, const gr_model *m, unsigned what)
{
    gr_placement *at = gr_placed(p, m);
    const bool made = at->made & what;
    if (!p->optional && !p->depth) at->made |= what;
    return made;
}

/* Of a part that is sent here there is a whole one. */
static uint64_t own_bytes(const gr_tasks *p, const gr_kernels *k, const gr_model *m, gr_model_part part,
                          uint32_t bucket)
{
    const uint64_t elems = gr_bucket_elems(gr_model_trains(m), bucket),
                   bytes = gr_part_bytes(k, m, part, bucket);
    const uint32_t shards = gr_placed(p, m)->shards;
    if (gr_part_spread(p, m, part, bucket) != GR_SPREAD_FLAT) return bytes;
    return part == GR_PART_STATE ? state_bytes(k, m, bucket, shards)
                                 : gr_shard_elems(elems, shards) * (bytes / elems);
}

uint32_t gr_model_object(gr_tasks *p, const gr_kernels *k, const gr_model *m, gr_model_part part,
                         uint32_t bucket)
{
    static const char *const names[] = {"params", "grads", "state", "rollout", "lagged", "adapters", "nf4"};
    static const gr_category categories[] = {GR_CAT_WEIGHTS, GR_CAT_GRADIENTS, GR_CAT_OPTIMIZER,
                                             GR_CAT_ROLLOUT, GR_CAT_ROLLOUT,   GR_CAT_WEIGHTS,
                                             GR_CAT_WEIGHTS};
    char name[128];
    if (part == GR_PART_PARAMS && gr_model_has_lora(m) && !gr_bucket_is_merged(m, bucket))
        return gr_model_object(p, k, gr_bucket_base(m, bucket), part, bucket);
    const bool made = part == GR_PART_PARAMS && (gr_model_has_lora(m) || gr_bucket_is_closed(m, bucket)),
               copy = part == GR_PART_ROLLOUT,
               away =
                   part == GR_PART_ADAPTERS && gr_placed(p, m)->weights == GR_SPREAD_AWAY; /* received anew */
    bool apart = (copy || made || away) && p->validate != GR_NONE; /* contents do not cross to that path */
    snprintf(name, sizeof(name), "%s.%s%s.%u", m->name, apart ? "validate_" : "",
             away ? "received" : names[part], bucket);
    const uint32_t known = gr_tasks_find(p, name);
    if (known != GR_NONE) return known;
    const bool split = part == GR_PART_STATE && gr_state_bytes_of(k, m, bucket, 1).form == GR_MASTER_SPLIT;
    const uint32_t upper = split ? gr_model_object(p, k, m, gr_part_stepped(m), bucket) : GR_NONE;
    gr_object o = {.name = name,
                   .category = away ? GR_CAT_ROLLOUT : categories[part],
                   .span = part == GR_PART_GRADS || copy || made || away ? GR_SPAN_SCRATCH : GR_SPAN_KEEP,
                   .place = GR_DEVICE,
                   .bytes = own_bytes(p, k, m, part, bucket),
                   .model = m->name,
                   .bucket = bucket,
                   .saved_with = split ? upper + 1 : 0};
    return gr_tasks_object(p, &o);
}
