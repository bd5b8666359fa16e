/* ops/kernels/muon.h: a matrix made nearly orthogonal, as the optimizer Muon steps by.
 *
 * Five rounds of x = a x + (b s + c s^2) x, s = x x^T, of x divided by its Frobenius norm: an odd polynomial
 * of the singular values, which brings all of them near 1 (0.7 to 1.2) and leaves the singular vectors. Of a
 * matrix with more rows than columns s = x^T x stands on the right. In the device's type, over its products;
 * the bits of a matrix follow from that matrix alone.
 *
 * Source: Jordan et al., kellerjordan.github.io/posts/muon (the coefficients); torch.optim.Muon.
 */
#ifndef GR_OPS_KERNELS_MUON_H
#define GR_OPS_KERNELS_MUON_H

#include "ops/kernels/kernels.h"

/* Workspace for one matrix. */
uint64_t gr_muon_ws_bytes(const gr_kernels *k, uint32_t rows, uint32_t cols, unsigned threads);
/* x [rows, cols] in place. */
void gr_muon_orthogonalize(const gr_kernels *k, gr_queue *q, void *x, uint32_t rows, uint32_t cols, void *ws);
/* Operations that it takes. */
double gr_muon_flops(uint32_t rows, uint32_t cols);

/* Whether tensor t of a bucket is stepped so: a matrix of a layer. */
bool gr_muon_steps(const gr_model_shape *s, uint32_t bucket, const gr_tensor *t);

#endif
