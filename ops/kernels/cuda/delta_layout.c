/* ops/kernels/cuda/delta_layout.c: sizes of the gated delta rule on CUDA, and its table. */
#include "ops/kernels/cuda/delta_impl.h"

static gr_bf16 *halves(gr_workspace *w, uint64_t n)
{
    return gr_workspace_bytes(w, n * sizeof(gr_bf16));
}

uint64_t gr_cu_delta_parts(uint32_t tokens, uint32_t channels, uint32_t conv, uint32_t heads, uint32_t dv)
{
    const uint64_t of_conv = ((uint64_t)tokens + GR_CU_DELTA_CONV_ROWS - 1) / GR_CU_DELTA_CONV_ROWS;
    const uint64_t of_norm = ((uint64_t)tokens * heads + GR_CU_DELTA_NORM_ROWS - 1) / GR_CU_DELTA_NORM_ROWS;
    return GR_MAX(of_conv * channels * conv, of_norm * dv);
}

void gr_cu_delta_lay_out(gr_workspace *w, const gr_delta_desc *d, uint32_t tokens, uint32_t seqs,
                         gr_cu_delta *a, gr_cu_delta_back *b)
{
    const uint64_t t = tokens, gates = t * d->value_heads, keys = gates * d->key_dim,
                   values = gates * d->value_dim,
                   chunks = (uint64_t)gr_cu_delta_chunks(tokens, seqs) * d->value_heads,
                   states = chunks * d->key_dim * d->value_dim;
    a->qkv = halves(w, t * gr_delta_channels(d));
    a->rate = gr_workspace_floats(w, gates);
    a->beta = gr_workspace_floats(w, gates);
    a->sums = gr_workspace_floats(w, chunks * GR_CU_DELTA_CHUNK);
    if (!b) {
        a->w = halves(w, keys);
        a->u = a->mixed = halves(w, values);
        return;
    }
    b->states = halves(w, states);
    b->d_states = halves(w, states);
    b->inverse = halves(w, chunks * GR_CU_DELTA_CHUNK * GR_CU_DELTA_CHUNK);
    a->u = halves(w, values);
    b->d_mixed = halves(w, values);
    b->dq = halves(w, keys);
    a->w = b->dk = halves(w, keys);
    b->dv = halves(w, values);
    b->d_rate = gr_workspace_floats(w, gates);
    b->d_beta = gr_workspace_floats(w, gates);
    b->d_conv = halves(w, t * gr_delta_channels(d));
    b->parts = gr_workspace_floats(
        w, gr_cu_delta_parts(tokens, gr_delta_channels(d), d->conv, d->value_heads, d->value_dim));
}

static uint64_t ws_bytes(const gr_delta_desc *d, const gr_pass_bounds *b, gr_layer_use use)
{
    gr_workspace w = {0};
    gr_cu_delta a;
    gr_cu_delta_back back;
    gr_cu_delta_lay_out(&w, d, b->tokens, b->seqs, &a, use == GR_LAYER_BACKWARD ? &back : NULL);
    return w.used;
}

static const char *unfit(const gr_delta_desc *d)
{
    if (d->conv < 1 || d->conv > GR_DELTA_CONV_MAX) return "a convolution of more than 8 taps";
    if (!d->key_heads || d->value_heads % d->key_heads)
        return "value heads that are no multiple of key heads";
    if (d->key_dim % 8 || d->value_dim % 8) return "heads that are no multiple of 8";
    if (d->key_dim > GR_DELTA_DIM_MAX || d->value_dim > GR_DELTA_DIM_MAX) return "heads of more than 128";
    return d->value_heads % 4 ? "value heads that are no multiple of 4" : NULL;
}

#ifdef GR_CUDA
#define RUNS(name) .name = gr_cuda_delta_##name
#else
#define RUNS(name) .name = NULL
#endif

const gr_delta_ops gr_delta_cuda = {.ws_bytes = ws_bytes, .unfit = unfit, RUNS(forward), RUNS(backward)};
