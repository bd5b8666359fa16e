/* ops/model/rope.h: rotary embedding (arXiv:2104.09864) in the layout of transformers (rotate_half: the pair
 * of i is i + D / 2).
 */
#ifndef GR_OPS_MODEL_ROPE_H
#define GR_OPS_MODEL_ROPE_H

#include "ops/model/layer.h"

typedef struct gr_rope {
    uint32_t n;   /* dims / 2; 0: nothing is rotated */
    float factor; /* on cosines and sines */
    float inv_freq[GR_HEAD_DIM_MAX / 2];
} gr_rope;

/* Of a description: the factor on cosines and sines. */
static inline float gr_rope_factor(const gr_rope_desc *d)
{
    return d->type == GR_ROPE_YARN || d->type == GR_ROPE_LONG ? (float)d->attention : 1;
}

/* Computed in double, then rounded. */
void gr_rope_init(gr_rope *r, const gr_rope_desc *d);
void gr_rope_angles(const gr_rope *r, uint32_t position, float *cosine, float *sine); /* [n] each */

#endif
