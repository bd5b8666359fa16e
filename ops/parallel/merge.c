/* ops/parallel/merge.c: adapters merged into a copy of frozen weights, and these opened where they are kept
 * in 4 bits, bucket by bucket. */
#include "ops/parallel/merge.h"

#include "ops/base/session.h"
#include "ops/kernels/layer_ops.h"
#include "ops/model/adapters.h"
#include "ops/model/nf4.h"

enum { MERGE_BASE, MERGE_ADAPTERS, MERGE_PARAMS, MERGE_WS, N_MERGE };

/* ---- declared ------------------------------------------------------------------------------------------ */

static size_t adapters_of(const gr_model *m, uint32_t bucket, gr_adapter a[GR_N_TARGETS])
{
    return gr_model_has_lora(m) ? gr_adapters_of(&m->shape, &m->lora.shape, bucket, a) : 0;
}

/* Of layers in 4 bits each tensor is opened first, and targets are read and written once more. */
static void add_open_cost(gr_task *w, const gr_kernels *k, const gr_model *m, uint32_t bucket,
                          const gr_adapter *a, size_t n)
{
    gr_nf4_part part[GR_NF4_PARTS_MAX];
    if (!gr_bucket_is_closed(gr_bucket_base(m, bucket), bucket)) return;
    w->cost.launches += (double)gr_nf4_parts(&m->shape, bucket, part);
    for (size_t i = 0; i < n; i++)
        w->cost.bytes += 2.0 * a[i].rows * a[i].in * (double)gr_dtype_size(k->dtype);
}

/* Each weight is read and written; of a target there is a product over the rank. */
static void set_cost(gr_task *w, const gr_kernels *k, const gr_model *m, uint32_t bucket)
{
    gr_adapter a[GR_N_TARGETS];
    const size_t n = adapters_of(m, bucket, a);
    const gr_model *base = gr_bucket_base(m, bucket);
    for (size_t i = 0; i < n; i++) w->cost.flops += 2.0 * a[i].rows * a[i].in * m->lora.shape.adapter.rank;
    w->cost.bytes = (double)(gr_part_bytes(k, base, gr_part_kept(base, bucket), bucket) +
                             gr_part_bytes(k, m, GR_PART_PARAMS, bucket));
    w->cost.launches = (double)GR_MAX(n, (size_t)1);
    w->cost.width = m->shape.hidden;
    add_open_cost(w, k, m, bucket, a, n);
}

static uint64_t ws_bytes(const gr_kernels *k, const gr_model *m, uint32_t bucket, unsigned threads)
{
    gr_adapter a[GR_N_TARGETS];
    const size_t n = adapters_of(m, bucket, a);
    uint64_t most = 0;
    for (size_t i = 0; i < n; i++)
        most =
            GR_MAX(most, k->layer->merge_ws_bytes(a[i].rows, a[i].in, m->lora.shape.adapter.rank, threads));
    return most;
}

static void declare_one(gr_tasks *p, const gr_kernels *k, const gr_model *m, uint32_t b, unsigned threads)
{
    const bool merges = gr_bucket_is_merged(m, b);
    const gr_model *base = gr_bucket_base(m, b);
    if (!merges && !gr_bucket_is_closed(m, b)) return;
    const uint64_t ws = ws_bytes(k, m, b, threads);
    set_cost(
        gr_tasks_run(
            p, GR_MERGE_KERNEL, b,
            (gr_use[]){[MERGE_BASE] = {gr_model_object(p, k, base, gr_part_kept(base, b), b), GR_READ},
                       [MERGE_ADAPTERS] = {merges ? gr_model_object(p, k, m, GR_PART_ADAPTERS, b) : GR_NONE,
                                           GR_READ},
                       [MERGE_PARAMS] = {gr_model_object(p, k, m, GR_PART_PARAMS, b), GR_WRITE},
                       [MERGE_WS] = {ws ? gr_tasks_temp(p, GR_CAT_WORKSPACE, ws, "merge_ws.%u", b) : GR_NONE,
                                     GR_WRITE}},
            N_MERGE, merges ? "merge.%u" : "open.%u", b),
        k, m, b);
}

void gr_merge_declare(gr_tasks *p, const gr_kernels *k, const gr_model *m, unsigned threads)
{
    if ((!gr_model_has_lora(m) && !m->shape.nf4) || gr_part_is_made(p, m, GR_MADE_MERGED)) return;
    for (uint32_t b = 0; b < gr_model_buckets(&m->shape); b++) declare_one(p, k, m, b, threads);
}

void gr_merge_open(gr_tasks *p, const gr_kernels *k, const gr_model *m, uint32_t bucket)
{
    if (!gr_bucket_is_closed(m, bucket)) return;
    gr_placed(p, m)->made &= ~(unsigned)GR_MADE_MERGED;
    declare_one(p, k, m, bucket, 1);
}

/* ---- run ----------------------------------------------------------------------------------------------- */

static char *at(void *bucket, uint64_t elems, const gr_kernels *k)
{
    return (char *)bucket + elems * gr_dtype_size(k->dtype);
}

static void copy_range(const gr_call *c, uint64_t first, uint64_t end)
{
    const gr_kernels *k = c->session->kernels;
    if (first < end)
        k->copy(c->queue, at(c->ptr[MERGE_PARAMS], first, k), at(c->ptr[MERGE_BASE], first, k),
                (end - first) * gr_dtype_size(k->dtype));
}

static void merge_one(const gr_call *c, const gr_adapter *a, const void *base)
{
    const gr_kernels *k = c->session->kernels;
    const gr_adapter_desc *d = &c->node->model->lora.shape.adapter;
    const gr_merge m = {.rows = a->rows,
                        .in = a->in,
                        .rank = d->rank,
                        .scale = d->scale,
                        .w = (const char *)base + a->w * gr_dtype_size(k->dtype),
                        .a = at(c->ptr[MERGE_ADAPTERS], a->a, k),
                        .b = at(c->ptr[MERGE_ADAPTERS], a->b, k),
                        .out = at(c->ptr[MERGE_PARAMS], a->w, k)};
    k->layer->merge(c->queue, &m, c->ptr[MERGE_WS]);
}

/* A value head is what was trained; all else of its bucket is as it was. */
static void copy_head(const gr_call *c)
{
    const gr_kernels *k = c->session->kernels;
    const gr_model *m = c->node->model;
    for (gr_tensor_slot slot = GR_T_VALUE; slot <= GR_T_VALUE_BIAS; slot++) {
        const uint64_t from = gr_tensor_offset(&m->lora.shape, c->arg, slot),
                       to = gr_tensor_offset(&m->shape, c->arg, slot);
        if (from == UINT64_MAX) continue;
        const uint64_t n = slot == GR_T_VALUE ? m->shape.hidden : 1;
        k->copy(c->queue, at(c->ptr[MERGE_PARAMS], to, k), at(c->ptr[MERGE_ADAPTERS], from, k),
                n * gr_dtype_size(k->dtype));
    }
}

/* Opened where the merged weights lie, and merged in place. */
static void run_closed(const gr_call *c, const gr_adapter *a, size_t n)
{
    c->session->kernels->layer->open(c->queue, &c->node->model->shape, c->arg, c->ptr[MERGE_BASE],
                                     c->ptr[MERGE_PARAMS]);
    for (size_t i = 0; i < n; i++) merge_one(c, &a[i], c->ptr[MERGE_PARAMS]);
}

/* In the order of memory: what no adapter changes is copied between. */
void gr_merge_run(const gr_call *c)
{
    const gr_model *m = c->node->model;
    gr_adapter a[GR_N_TARGETS];
    const size_t n = adapters_of(m, c->arg, a);
    uint64_t done = 0;
    if (gr_bucket_is_closed(gr_bucket_base(m, c->arg), c->arg)) {
        run_closed(c, a, n);
        return;
    }
    for (size_t i = 0; i < n; i++) {
        copy_range(c, done, a[i].w);
        merge_one(c, &a[i], c->ptr[MERGE_BASE]);
        done = a[i].w + (uint64_t)a[i].rows * a[i].in;
    }
    copy_range(c, done, gr_bucket_elems(&m->shape, c->arg));
    if (c->arg > m->shape.layers) copy_head(c);
}
