/* ops/kernels/optim.h: the optimizers that kernels step with, by name. */
#ifndef GR_OPS_KERNELS_OPTIM_H
#define GR_OPS_KERNELS_OPTIM_H

#include "ops/model/model.h"
#include "ops/simd/moments.h"

/* Optimizers, of gradients g:
 * ADAMW  with decoupled weight decay (Loshchilov and Hutter, arXiv:1711.05101), as torch.optim.AdamW:
 *        w -= lr * wd * w, then w -= lr * m_hat / (sqrt(v_hat) + eps)
 * LION   (Chen et al., arXiv:2302.06675, algorithm 2): w -= lr * wd * w, then w -= lr * sign(beta1 m + (1 -
 *        beta1) g), then m = beta2 m + (1 - beta2) g; sign(0) is 0
 * MUON   (Jordan et al., kellerjordan.github.io/posts/muon; Liu et al., arXiv:2502.16982), of the matrices of
 *        layers: m += (1 - mu) (g - m), u = g + mu (m - g), o = u made orthogonal (ops/kernels/muon.h), w -=
 * lr
 *        * wd * w, then w -= lr * 0.2 sqrt(the larger side) * o, as torch.optim.Muon with "match_rms_adamw";
 *        of all other tensors ADAMW
 * SGD    as torch.optim.SGD with momentum beta1: g += wd * w, m = beta1 m + g, w -= lr * m */
typedef enum gr_optim_kind { GR_OPTIM_ADAMW, GR_OPTIM_LION, GR_OPTIM_SGD, GR_OPTIM_MUON } gr_optim_kind;

static inline const char *gr_optim_name(gr_optim_kind kind)
{
    static const char *const names[] = {"adamw", "lion", "sgd", "muon"};
    return names[kind];
}

/* Moments that it keeps of each element. Of a matrix that MUON steps the second has no meaning between steps.
 */
static inline uint32_t gr_optim_moments(gr_optim_kind kind)
{
    return kind == GR_OPTIM_ADAMW || kind == GR_OPTIM_MUON ? 2 : 1;
}

/* Bytes of a moment of n elements, n a multiple of 64: of int8 codes, then the scales of their blocks. */
static inline uint64_t gr_moment_bytes(gr_dtype type, uint64_t n)
{
    return n * gr_dtype_size(type) + (type == GR_I8 ? n / GR_MOMENT_BLOCK * sizeof(float) : 0);
}

/* Of a moment of n elements at p: its element i, a multiple of 64, and the scale of that one's block, or
 * NULL.
 */
static inline void *gr_moment_at(char *p, gr_dtype type, uint64_t i)
{
    return p + i * gr_dtype_size(type);
}

static inline float *gr_moment_scale(char *p, gr_dtype type, uint64_t n, uint64_t i)
{
    return type == GR_I8 ? (float *)(void *)(p + n) + i / GR_MOMENT_BLOCK : NULL;
}

#endif
