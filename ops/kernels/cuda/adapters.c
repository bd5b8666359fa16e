/* ops/kernels/cuda/adapters.c: adapters on CUDA: merged into weights by one product each, whose fp32 sum with
 * the weights is rounded once; frozen weights in NF4, opened a tensor at a time; and adapters' gradients, by
 * products of which one side is the rank.
 */
#include "ops/kernels/cuda/adapters.h"

#include "ops/kernels/cuda/adapters_layout.h"
#include "ops/kernels/cuda/context.h"
#include "ops/model/nf4.h"

static void open_part(gr_queue *q, const gr_nf4_part *p, const gr_nf4_values *v, const char *from, gr_bf16 *w)
{
    uint64_t bytes;
    const gr_nf4 m = gr_nf4_at((char *)(uintptr_t)from + p->at, p->n, &bytes);
    if (p->matrix)
        gr_cu_nf4_open(q->stream, &(gr_cu_nf4){m.codes, m.small, m.scales, m.mean, v->weight, v->scale, p->n},
                       p->zeros, w + p->first);
    else
        gr_cu_nf4_vector(q->stream, (const float *)(const void *)(from + p->at), p->n, p->zeros,
                         w + p->first);
}

void gr_cuda_open(gr_queue *q, const gr_model_shape *s, uint32_t bucket, const void *from, void *w)
{
    gr_nf4_part part[GR_NF4_PARTS_MAX];
    gr_nf4_values values;
    const size_t n = gr_nf4_parts(s, bucket, part);
    gr_nf4_values_of(&values);
    for (size_t i = 0; i < n; i++) open_part(q, &part[i], &values, from, w);
}

void gr_cuda_merge(gr_queue *q, const gr_merge *c, void *ws)
{
    gr_cu_product(q,
                  &(gr_cu_gemm_call){.form = GR_CU_GEMM_NN,
                                     .m = c->rows,
                                     .n = c->in,
                                     .k = c->rank,
                                     .a = c->b,
                                     .b = c->a,
                                     .lda = c->rank,
                                     .ldb = c->in,
                                     .ldd = c->in,
                                     .d = c->out,
                                     .type = GR_CU_BF16,
                                     .c = c->w,
                                     .ldc = c->in,
                                     .scale = c->scale},
                  ws);
}

/* u [t, count rank] = scale x a^T of all, and v, of each scale dy b. */
static void narrow(gr_queue *q, const gr_adapters_back *c, const gr_cu_adapters_ws *w)
{
    const gr_bf16 *bucket = c->bucket;
    const uint32_t all = c->count * c->rank;
    gr_cu_product(q,
                  &(gr_cu_gemm_call){.form = GR_CU_GEMM_NT,
                                     .m = c->t,
                                     .n = all,
                                     .k = c->list->in,
                                     .a = c->x,
                                     .b = bucket + c->list->a,
                                     .lda = c->list->in,
                                     .ldb = c->list->in,
                                     .ldd = all,
                                     .d = w->u,
                                     .type = GR_CU_BF16,
                                     .scale = c->scale},
                  w->gemm);
    for (const gr_adapter *a = c->list; a < c->list + c->count; a++)
        gr_cu_product(q,
                      &(gr_cu_gemm_call){.form = GR_CU_GEMM_NN,
                                         .m = c->t,
                                         .n = c->rank,
                                         .k = a->rows,
                                         .a = (const gr_bf16 *)c->dy + a->row,
                                         .b = bucket + a->b,
                                         .lda = a->slot_rows,
                                         .ldb = c->rank,
                                         .ldd = all,
                                         .d = w->v + (uint64_t)a->index * c->rank,
                                         .type = GR_CU_BF16,
                                         .scale = c->scale},
                      w->gemm);
}

/* grad [out, in] += dy [t, out]^T x [t, in], with rows of any length. */
static void add_gradient(gr_queue *q, const gr_adapters_back *c, const gr_bf16 *dy, uint64_t ldy,
                         uint32_t out, const gr_bf16 *x, uint64_t ldx, uint32_t in, uint64_t at, void *ws)
{
    void *grad = (char *)c->grad + at * gr_dtype_size(c->grads);
    gr_cu_product(q,
                  &(gr_cu_gemm_call){.form = GR_CU_GEMM_TN,
                                     .m = out,
                                     .n = in,
                                     .k = c->t,
                                     .a = dy,
                                     .b = x,
                                     .lda = ldy,
                                     .ldb = ldx,
                                     .ldd = in,
                                     .d = grad,
                                     .type = gr_cu_type(c->grads),
                                     .c = grad,
                                     .ldc = in},
                  ws);
}

void gr_cuda_adapters_back(gr_queue *q, const gr_adapters_back *c, void *ws)
{
    gr_workspace at = {.base = ws};
    gr_cu_adapters_ws w;
    const uint32_t all = c->count * c->rank;
    gr_cu_adapters_layout(&at, c->t, all, &w);
    narrow(q, c, &w);
    for (const gr_adapter *a = c->list; a < c->list + c->count; a++)
        add_gradient(q, c, (const gr_bf16 *)c->dy + a->row, a->slot_rows, a->rows,
                     w.u + (uint64_t)a->index * c->rank, all, c->rank, a->b, w.gemm);
    add_gradient(q, c, w.v, all, all, c->x, c->list->in, c->list->in, c->list->a, w.gemm);
}
