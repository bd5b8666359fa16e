/* ops/model/scales.h: tensors that a checkpoint has in FP8, as values of E4M3 beside scales: NAME, and
 * NAME_scale_inv with one number for each block of 128 x 128 (of the last two dimensions; blocks at the ends
 * may be less), or one for all of it. A weight is their product, in fp32.
 *
 * Threads: a gr_scales does not change once it is read. Source: DeepSeek-V3, arXiv:2412.19437, section 3.3.2,
 * and inference/kernel.py of its repository; Hugging Face transformers 5, finegrained_fp8.py.
 */
#ifndef GR_OPS_MODEL_SCALES_H
#define GR_OPS_MODEL_SCALES_H

#include "runtime/io/safetensors.h"

#define GR_SCALES_BLOCK 128

typedef struct gr_scales {
    float *value;        /* [depth, blocks of rows, blocks of cols], or one; owned */
    uint64_t rows, cols; /* of the tensor's last two dimensions */
    bool one;
} gr_scales;

/* The name of a tensor's scales; the caller frees it. */
char *gr_scales_name(const char *name);

/* Check that a tensor is there in E4M3 of this shape, with scales that fit; returns it, or NULL with a
 * message. */
const gr_st_tensor *gr_scales_want(const gr_safetensors *s, const char *name, const uint64_t *dims, size_t n,
                                   gr_diag *d);

/* Those of a tensor that was wanted so. */
GR_NODISCARD gr_status gr_scales_read(gr_scales *out, const gr_safetensors *s, const gr_st_tensor *t,
                                      gr_diag *d);
void gr_scales_release(gr_scales *s);

/* x: elements [first, first + n) of the tensor as they are; becomes weights. */
void gr_scales_apply(const gr_scales *s, uint64_t first, uint64_t n, float *x);

#endif
