/* ops/kernels/cuda/latent_layout.c: sizes of latent attention on CUDA, and its table. */
#include "ops/kernels/cuda/latent.h"
#include "ops/kernels/cuda/latent_impl.h"

static uint64_t ws_bytes(const gr_latent_desc *d, const gr_pass_bounds *b, gr_layer_use use)
{
    (void)d, (void)b, (void)use;
    return 0;
}

static uint64_t block_bytes(const gr_latent_desc *d)
{
    return gr_align((uint64_t)GR_KV_BLOCK * gr_latent_row(d) * sizeof(uint16_t), 256);
}

static const char *unfit(const gr_latent_desc *d)
{
    if ((d->q_rank | d->kv_rank | d->nope_dim | d->rope_dim | d->v_dim) % 8)
        return "latent attention with sizes that are no multiple of 8";
    if (d->kv_rank > GR_CU_LATENT_RANK) return "latents of more than 512";
    return d->rope_dim > GR_CU_LATENT_ROPE ? "latent attention of which more than 64 of a head are rotated"
                                           : NULL;
}

#ifdef GR_CUDA
#define RUNS(name) .name = gr_cuda_latent_##name
#else
#define RUNS(name) .name = NULL
#endif

const gr_latent_ops gr_latent_cuda = {.ws_bytes = ws_bytes,
                                      .block_bytes = block_bytes,
                                      .unfit = unfit,
                                      RUNS(rotate),
                                      RUNS(absorb),
                                      RUNS(store),
                                      RUNS(attend),
                                      RUNS(emit),
                                      RUNS(expand),
                                      RUNS(expand_backward)};
