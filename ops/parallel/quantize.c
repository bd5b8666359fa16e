/* ops/parallel/quantize.c: layers' projections made FP8, bucket by bucket. */
#include "ops/parallel/quantize.h"

#include "ops/base/session.h"
#include "ops/kernels/layer_ops.h"
#include "ops/model/fp8.h"
#include "ops/parallel/sharding.h"

enum { QUANTIZE_FROM, QUANTIZE_TO, N_QUANTIZE };

/* ---- declared ------------------------------------------------------------------------------------------ */

static bool is_layer(const gr_model *m, uint32_t bucket)
{
    return bucket > 0 && bucket <= m->shape.layers;
}

/* Whether what the node reads is not what other passes of the iteration read. */
static bool is_apart(const gr_tasks *p, bool rollout)
{
    return rollout && p->lagged;
}

static uint32_t source(gr_tasks *p, const gr_kernels *k, const gr_model *m, bool rollout, uint32_t bucket)
{
    return rollout ? gr_sharding_rollout(p, k, m, bucket) : gr_sharding_params(p, k, m, "", bucket);
}

uint32_t gr_quantize_object(gr_tasks *p, const gr_kernels *k, const gr_model *m, bool rollout,
                            uint32_t bucket)
{
    if (!is_layer(m, bucket)) return source(p, k, m, rollout, bucket);
    const char *apart = p->validate != GR_NONE ? "validate_" : is_apart(p, rollout) ? "lagged_" : "";
    const gr_object o = {.name = gr_arena_printf(p->arena, "%s.%sfp8.%u", m->name, apart, bucket),
                         .category = GR_CAT_WEIGHTS,
                         .span = GR_SPAN_SCRATCH,
                         .place = GR_DEVICE,
                         .bytes = gr_fp8_bucket_bytes(&m->shape, bucket, gr_dtype_size(k->dtype)),
                         .bucket = bucket};
    return gr_tasks_object(p, &o);
}

/* Each tensor of a layer is rounded, or copied, by a kernel. */
static double launches_of(const gr_model_shape *s, uint32_t bucket, uint64_t size)
{
    gr_fp8_tensor t;
    double n = 0;
    for (gr_tensor_slot slot = GR_T_MIXER_NORM; slot <= GR_T_MLP_AFTER; slot++)
        n += gr_fp8_tensor_at(s, bucket, slot, size, &t);
    return n;
}

void gr_quantize_declare(gr_tasks *p, const gr_kernels *k, const gr_model *m, bool rollout)
{
    if (!is_apart(p, rollout) && gr_part_is_made(p, m, GR_MADE_FP8)) return;
    const uint64_t size = gr_dtype_size(k->dtype);
    for (uint32_t b = 1; b <= m->shape.layers; b++) {
        gr_task *t =
            gr_tasks_run(p, GR_QUANTIZE_KERNEL, b,
                         (gr_use[]){[QUANTIZE_FROM] = {source(p, k, m, rollout, b), GR_READ},
                                    [QUANTIZE_TO] = {gr_quantize_object(p, k, m, rollout, b), GR_WRITE}},
                         N_QUANTIZE, "quantize.%u", b);
        t->cost.bytes =
            (double)(gr_part_bytes(k, m, GR_PART_PARAMS, b) + gr_fp8_bucket_bytes(&m->shape, b, size));
        t->cost.launches = launches_of(&m->shape, b, size);
    }
}

/* ---- run ----------------------------------------------------------------------------------------------- */

void gr_quantize_run(const gr_call *c)
{
    const gr_kernels *k = c->session->kernels;
    const gr_model_shape *s = &c->node->model->shape;
    const uint64_t size = gr_dtype_size(k->dtype);
    const char *from = c->ptr[QUANTIZE_FROM];
    char *to = c->ptr[QUANTIZE_TO];
    gr_fp8_tensor t;
    for (gr_tensor_slot slot = GR_T_MIXER_NORM; slot <= GR_T_MLP_AFTER; slot++) {
        if (!gr_fp8_tensor_at(s, c->arg, slot, size, &t)) continue;
        const void *w = from + gr_tensor_offset(s, c->arg, slot) * size;
        if (t.scales == UINT64_MAX)
            k->copy(c->queue, to + t.at, w, t.bytes);
        else
            k->layer->quantize(
                c->queue, &(gr_quantize){t.rows, t.cols, w, to + t.at, (float *)(void *)(to + t.scales)});
    }
}
