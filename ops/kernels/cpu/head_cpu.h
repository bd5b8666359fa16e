/* ops/kernels/cpu/head_cpu.h: the workspace of a chunk of head rows, shared by log-prob and sampling. */
#ifndef GR_OPS_KERNELS_CPU_HEAD_CPU_H
#define GR_OPS_KERNELS_CPU_HEAD_CPU_H

#include "ops/kernels/cpu/cpu.h"

typedef struct gr_head_ws {
    float *logits;        /* [n, V], scaled by the inverse temperature once gr_head_logits returns */
    float *row, *drow;    /* [n, H]: final norm's output, and d loss / d it */
    float *inv;           /* [n]: its factors */
    float *lse, *entropy; /* [n] */
    uint32_t *heap;       /* [threads, V] */
    double *block;        /* [threads, V / 1024 + 1] */
    void *gemm;
} gr_head_ws;

/* What head_forward leaves for head_backward lies at the same place for both. */
void gr_head_ws_layout(gr_workspace *c, const gr_model_shape *s, uint32_t n, gr_head_use use,
                       unsigned threads, gr_head_ws *w);
void gr_head_logits(gr_queue *q, const gr_model_shape *s, const float *norm, const float *lm, const float *x,
                    const uint32_t *row, uint32_t n, float inv_temperature, const gr_head_ws *w);

#endif
