/* ops/kernels/cpu/head_cpu.h: the workspace of a chunk of head rows, shared by log-prob and sampling. */
#ifndef GR_OPS_KERNELS_CPU_HEAD_CPU_H
#define GR_OPS_KERNELS_CPU_HEAD_CPU_H

#include "ops/kernels/cpu/cpu.h"
#include "ops/kernels/head.h"

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

extern const gr_head_ops gr_head_cpu; /* ops/kernels/cpu/head_part_cpu.c */

/* What of head_cpu.c a part of the vocabulary takes, too. hidden [n, H]; inv [n] the norm's factors. */
void gr_head_norm(gr_queue *q, const gr_model_shape *s, const float *norm, const float *x,
                  const uint32_t *row, uint32_t n, float *hidden, float *inv);
/* Logits [n, V] of hidden, scaled. */
void gr_head_product(gr_queue *q, const gr_model_shape *s, const float *lm, const float *hidden, uint32_t n,
                     float inv_temperature, float *logits, void *gemm);
/* Logits become d loss / d them. */
typedef struct gr_head_adjoint {
    const int32_t *target; /* below 0: it is not here */
    const float *lse, *entropy, *d_logprob, *d_entropy;
    const float *slope, *d_divergence; /* as of gr_head_rows */
    float inv_temperature;
} gr_head_adjoint;
void gr_head_logits_back(gr_queue *q, const gr_model_shape *s, const gr_head_adjoint *a, uint32_t n,
                         float *logits);
void gr_head_norm_back(gr_queue *q, const gr_model_shape *s, const float *norm, const float *x,
                       const uint32_t *row, uint32_t n, const float *inv, const float *d_hidden, float *dx,
                       float *grad_norm);

#endif
