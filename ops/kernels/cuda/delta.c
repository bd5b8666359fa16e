/* ops/kernels/cuda/delta.c: the gated delta rule on CUDA, from its kernels. */
#include "ops/kernels/cuda/context.h"
#include "ops/kernels/cuda/delta_impl.h"
#include "runtime/device/device_cuda.h"

gr_cu_delta gr_cu_delta_of(const gr_delta_call *c)
{
    const gr_delta_desc *d = &c->d;
    return (gr_cu_delta){.key_heads = d->key_heads,
                         .value_heads = d->value_heads,
                         .dk = d->key_dim,
                         .dv = d->value_dim,
                         .conv = d->conv,
                         .channels = gr_delta_channels(d),
                         .width = gr_delta_in(d),
                         .n_tokens = c->n_tokens,
                         .n_seqs = c->n_seqs / GR_MAX(c->each, 1u),
                         .each = GR_MAX(c->each, 1u),
                         .longest = c->longest,
                         .eps = c->eps,
                         .offset = c->offset,
                         .slot = c->slot,
                         .cached = c->cached,
                         .state = c->state,
                         .bf16 = d->bf16_state,
                         .slot_floats = gr_delta_state_bytes(d) / sizeof(float),
                         .tail_floats = gr_delta_tail(d),
                         .in = c->in,
                         .w_conv = c->conv,
                         .a_log = c->a_log,
                         .dt_bias = c->dt_bias,
                         .norm = c->norm};
}

static void chunked(gr_queue *q, const gr_cu_delta *a)
{
    gr_cu_delta_prepare(q->stream, a, NULL);
    gr_cu_delta_chunked(q->stream, a);
}

void gr_cuda_delta_forward(gr_queue *q, const gr_delta_call *c, void *out, void *mixed)
{
    gr_workspace w = {.base = c->ws};
    gr_cu_delta a = gr_cu_delta_of(c);
    if (!c->n_tokens) return;
    gr_cu_delta_lay_out(&w, &c->d, c->n_tokens, c->n_seqs, &a, NULL);
    if (mixed) a.u = a.mixed = mixed;
    const bool strict = gr_cu_context_of(q)->strict;
    if (!strict && c->state && c->longest == 1) {
        gr_cu_delta_decode_rows(q->stream, &a);
        gr_cu_delta_decode(q->stream, &a, out);
        return;
    }
    gr_cu_delta_rows(q->stream, &a);
    if (strict)
        gr_cu_delta_step(q->stream, &a);
    else
        chunked(q, &a);
    gr_cu_delta_norm(q->stream, &a, out);
}

void gr_cuda_delta_backward(gr_queue *q, const gr_delta_call *c, const void *mixed, const void *dout,
                            void *din, const gr_delta_grads *grads)
{
    gr_workspace w = {.base = c->ws};
    gr_cu_delta a = gr_cu_delta_of(c);
    gr_cu_delta_back b = {.dout = dout, .din = din};
    const gr_cu_dtype type = grads->type == GR_F32 ? GR_CU_F32 : GR_CU_BF16;
    if (!c->n_tokens) return;
    gr_cu_delta_lay_out(&w, &c->d, c->n_tokens, c->n_seqs, &a, &b);
    a.mixed = (gr_bf16 *)mixed;
    gr_cu_delta_rows(q->stream, &a);
    gr_cu_delta_prepare(q->stream, &a, b.inverse);
    gr_cu_delta_states(q->stream, &a, &b);
    gr_cu_delta_norm_backward(q->stream, &a, &b, grads->norm, type);
    gr_cu_delta_states_backward(q->stream, &a, &b);
    gr_cu_delta_chunked_backward(q->stream, &a, &b);
    gr_cu_delta_rows_backward(q->stream, &a, &b, grads->conv, grads->a_log, grads->dt_bias, type);
}
