/* ops/kernels/optim.h: the optimizers that kernels step with, by name. */
#ifndef GR_OPS_KERNELS_OPTIM_H
#define GR_OPS_KERNELS_OPTIM_H

#include <stdint.h>

/* Optimizers, of gradients g:
 * ADAMW  with decoupled weight decay (Loshchilov and Hutter, arXiv:1711.05101), as torch.optim.AdamW:
 *        w -= lr * wd * w, then w -= lr * m_hat / (sqrt(v_hat) + eps)
 * LION   (Chen et al., arXiv:2302.06675, algorithm 2): w -= lr * wd * w, then w -= lr * sign(beta1 m + (1 -
 *        beta1) g), then m = beta2 m + (1 - beta2) g; sign(0) is 0
 * SGD    as torch.optim.SGD with momentum beta1: g += wd * w, m = beta1 m + g, w -= lr * m */
typedef enum gr_optim_kind { GR_OPTIM_ADAMW, GR_OPTIM_LION, GR_OPTIM_SGD } gr_optim_kind;

/* Moments that it keeps of each element. */
static inline uint32_t gr_optim_moments(gr_optim_kind kind)
{
    return kind == GR_OPTIM_ADAMW ? 2 : 1;
}

#endif
