/* ops/model/fp8.h: layers whose projections are in FP8, and how a bucket of them lies in memory.
 *
 * A projection w [out, in] is E4M3 values beside one fp32 scale for each block of 128 x 128; what a product
 * is given, x [t, in], is made E4M3 as it comes, with one scale for each row's 128 values:
 *
 *     s = m / 448, q = E4M3(v (448 / m)), v' = q s      m: the largest |v| of the block, at least 2^-100
 *     y[t, o] = sum over k of x'[t, k] w'[o, k], in fp32
 *
 * A product for the gradient of x has dy in the place of x, whose blocks are of 128 outputs. The gradient of
 * w is of x and dy as they are, or (gr_model_shape.fp8_gradients) of both rounded in blocks of 128 tokens,
 * counted from the call's first one: of x with one scale for 128 columns, of dy with one for each column. A
 * NaN or an infinity of a block makes NaN of what it is multiplied into.
 *
 * In a bucket of the form FP8 the tensors of a layer stand in the order of gr_tensor_slot, each at a multiple
 * of 256 bytes: of a projection its values and then its scales, row by row of blocks, rows of
 * gr_fp8_scale_ld scales; norms and biases as they are. Only layers have the form: embedding, final norm and
 * head stay as they are.
 *
 * Source: DeepSeek-V3, arXiv:2412.19437, section 3.3.2 (blocks and tiles of 128).
 * Threads: all functions are pure.
 */
#ifndef GR_OPS_MODEL_FP8_H
#define GR_OPS_MODEL_FP8_H

#include "ops/model/model.h"

#define GR_FP8_BLOCK 128

/* A tensor of a bucket of this form, in bytes from its start. */
typedef struct gr_fp8_tensor {
    uint64_t at, bytes;
    uint64_t scales; /* UINT64_MAX: it is no projection, but of the device's type */
    uint32_t rows, cols;
} gr_fp8_tensor;

/* size: bytes of the device's type. false: this model does not have it. */
bool gr_fp8_tensor_at(const gr_model_shape *s, uint32_t bucket, gr_tensor_slot slot, uint64_t size,
                      gr_fp8_tensor *out);
/* Of a layer's bucket, with what aligns it. */
uint64_t gr_fp8_bucket_bytes(const gr_model_shape *s, uint32_t bucket, uint64_t size);

/* Blocks of 128 that n values make. */
static inline uint32_t gr_fp8_blocks(uint32_t n)
{
    return (n + GR_FP8_BLOCK - 1) / GR_FP8_BLOCK;
}

/* From one row of a projection's scales to the next: a multiple of 4, as products on the device read them. */
static inline uint32_t gr_fp8_scale_ld(uint32_t cols)
{
    return (gr_fp8_blocks(cols) + 3) / 4 * 4;
}

/* The scale of a block whose largest value is m, and what its values are multiplied by. */
typedef struct gr_fp8_scale {
    float scale, inverse;
} gr_fp8_scale;
gr_fp8_scale gr_fp8_scale_of(float m);

/* What of a model has no such form, as a text; NULL: nothing. */
const char *gr_fp8_unfit(const gr_model_shape *s);

#endif
