/* ops/kernels/divergence.h: how far a row's distribution p is from a teacher's t, over all ids of the
 * vocabulary.
 *
 * forward: KL(t || p), the sum of t (log t - log p); reverse: KL(p || t); of a mixture m = beta t + (1 -
 * beta) p, beta KL(t || m) + (1 - beta) KL(p || m), the generalised Jensen-Shannon divergence.
 *
 * Source: Agarwal et al., arXiv:2306.13649, section 2.
 */
#ifndef GR_OPS_KERNELS_DIVERGENCE_H
#define GR_OPS_KERNELS_DIVERGENCE_H

typedef enum gr_divergence { GR_REVERSE_KL, GR_FORWARD_KL, GR_JSD } gr_divergence;

#endif
