/* ops/kernels/cuda/latent.c: latent attention on CUDA, from its kernels. */
#include "ops/kernels/cuda/latent.h"

#include "ops/kernels/cuda/context.h"
#include "ops/kernels/cuda/latent_impl.h"

static uint32_t longest_of(const gr_tokens *b)
{
    uint32_t most = b->longest;
    for (uint32_t i = 0; b->host_offset && i < b->n_seqs; i++)
        most = GR_MAX(most, b->host_offset[i + 1] - b->host_offset[i]);
    return most;
}

static gr_cu_latent problem_of(const gr_latent_call *c)
{
    const gr_latent_desc *d = c->d;
    const gr_tokens *b = c->b;
    return (gr_cu_latent){.heads = d->heads,
                          .nope = d->nope_dim,
                          .rope = d->rope_dim,
                          .v = d->v_dim,
                          .rank = d->kv_rank,
                          .n_tokens = b->n,
                          .n_seqs = b->n_seqs,
                          .longest = longest_of(b),
                          .scale = d->scale,
                          .offset = b->offset,
                          .cached = b->cached,
                          .length = b->decode ? b->decode->length : NULL,
                          .table = b->state ? b->block_table : NULL,
                          .table_stride = b->table_stride};
}

void gr_cuda_latent_rotate(gr_queue *q, const gr_latent_call *c, const gr_latent_part *p, bool back)
{
    const gr_rope_desc *r = &c->d->rope;
    const gr_cu_latent_rope call = {.x = p->x,
                                    .ld = p->ld,
                                    .heads = p->n,
                                    .stride = p->stride,
                                    .dims = c->d->rope_dim,
                                    .frequency = gr_cu_frequencies(q, r, c->d->rope_dim),
                                    .position = c->b->position + c->first,
                                    .factor = gr_rope_factor(r),
                                    .sign = back ? -1 : 1,
                                    .interleaved = c->d->interleaved};
    if (call.frequency) gr_cu_latent_rotate(q->stream, &call, c->b->n);
}

void gr_cuda_latent_store(gr_queue *q, const gr_latent_call *c, const void *rows)
{
    gr_cu_latent_store(q->stream, rows, c->b->slot, c->b->n, gr_latent_row(c->d), c->b->state);
}

/* ---- absorbed -------------------------------------------------------------------------------------------
 */

void gr_cuda_latent_absorb(gr_queue *q, const gr_latent_call *c, const void *queries, void *wide)
{
    const gr_latent_desc *d = c->d;
    const gr_cu_latent l = problem_of(c);
    const gr_cu_latent_product p = {.heads = d->heads,
                                    .m = c->b->n,
                                    .n = d->kv_rank,
                                    .k = d->nope_dim,
                                    .a = queries,
                                    .b = c->kv,
                                    .c = wide,
                                    .a_ld = (uint64_t)d->heads * gr_latent_head(d),
                                    .b_ld = d->kv_rank,
                                    .c_ld = (uint64_t)d->heads * gr_latent_row(d),
                                    .a_head = gr_latent_head(d),
                                    .b_head = (uint64_t)gr_latent_kv(d) * d->kv_rank,
                                    .c_head = gr_latent_row(d)};
    gr_cu_latent_products(q->stream, &p);
    gr_cu_latent_widen(q->stream, &l, queries, wide);
}

void gr_cuda_latent_attend(gr_queue *q, const gr_latent_call *c, const void *wide, const void *rows,
                           void *mixed)
{
    const gr_cu_latent l = problem_of(c);
    gr_cu_latent_attention(q->stream, &l, wide, c->b->state ? c->b->state : rows, mixed);
}

void gr_cuda_latent_emit(gr_queue *q, const gr_latent_call *c, const void *mixed, void *out)
{
    const gr_latent_desc *d = c->d;
    const gr_cu_latent_product p = {.heads = d->heads,
                                    .m = c->b->n,
                                    .n = d->v_dim,
                                    .k = d->kv_rank,
                                    .a = mixed,
                                    .b = (const gr_bf16 *)c->kv + (uint64_t)d->nope_dim * d->kv_rank,
                                    .c = out,
                                    .a_ld = (uint64_t)d->heads * d->kv_rank,
                                    .b_ld = d->kv_rank,
                                    .c_ld = (uint64_t)d->heads * d->v_dim,
                                    .a_head = d->kv_rank,
                                    .b_head = (uint64_t)gr_latent_kv(d) * d->kv_rank,
                                    .c_head = d->v_dim,
                                    .turned = true};
    gr_cu_latent_products(q->stream, &p);
}

/* ---- expanded -------------------------------------------------------------------------------------------
 */

void gr_cuda_latent_expand(gr_queue *q, const gr_latent_call *c, const void *queries, const void *kv,
                           const gr_latent_part *key, void *qkv)
{
    const gr_cu_latent l = problem_of(c);
    gr_cu_latent_expand(q->stream, &l, queries, kv, key->x, key->ld, qkv);
}

void gr_cuda_latent_expand_backward(gr_queue *q, const gr_latent_call *c, const void *dqkv, void *d_q,
                                    void *d_kv, const gr_latent_part *d_key)
{
    const gr_cu_latent l = problem_of(c);
    gr_cu_latent_expand_backward(q->stream, &l, dqkv, d_q, d_kv, d_key->x, d_key->ld);
}
