/* ops/kernels/cuda/layout.h: how the CUDA kernels cut their buffers; sizes without a device, for the planner.
 *
 * A function that carves also tells the size (ops/kernels/workspace.h). T rows each, bf16 unless said
 * otherwise.
 */
#ifndef GR_OPS_KERNELS_CUDA_LAYOUT_H
#define GR_OPS_KERNELS_CUDA_LAYOUT_H

#include "ops/kernels/workspace.h"
#include "ops/kernels/cuda/launch.h"
#include "ops/kernels/cuda/sizes.h"
#include "ops/kernels/kernels.h"

/* Heads without the table of frequencies: attention does not rotate. */
static inline gr_cu_heads gr_cu_heads_of(const gr_attention_desc *d)
{
    return (gr_cu_heads){
        .heads = d->heads, .kv_heads = d->kv_heads, .head_dim = d->head_dim, .kv_fp8 = d->kv_fp8};
}

/* deterministic: of its backward. */
gr_cu_attention_shape gr_cu_attention_shape_of(const gr_attention_desc *d, bool deterministic);

/* Where statistics alone are asked for, at most so many rows of logits are there at a time (on devices that
 * need them at all). Products of logits for statistics always take so many rows: the bits are the same
 * whether logits are kept or not. */
#define GR_CU_HEAD_ROWS 256
typedef struct gr_cu_head_ws { /* n rows; what the use does not need is empty */
    void *gemm, *sums, *sample;
    gr_cu_sampling *how;
    gr_bf16 *hidden, *d_hidden;   /* [H] the final norm's output; d loss / d it */
    float *logits;                /* [V]; of GR_HEAD_LOGPROB GR_CU_HEAD_ROWS rows at most */
    float *lse, *entropy, *logit; /* one each; logit: the target's */
    void *part;                   /* sums of tiles of logits: gr_cu_head_part_bytes */
} gr_cu_head_ws;
void gr_cu_head_layout(gr_workspace *c, const gr_model_shape *s, uint32_t n, gr_head_use use,
                       gr_cu_head_ws *w);

#define GR_CU_FP8_FOUR 4 /* rows, of which cuBLASLt wants whole multiples */

/* Of a product with weights [out, in] in FP8 (ops/kernels/cuda/fp8.c). */
typedef struct gr_cu_fp8_ws {
    void *gemm;
    uint8_t *values; /* of the rows that are rounded: [t, in], or backward [t, out] */
    float *scales;   /* theirs */
    gr_bf16 *last;   /* what the last rows give: [GR_CU_FP8_FOUR, out], or backward of `in` columns */
    uint8_t *turned; /* backward: W^T, and its scales */
    float *turned_scales;
} gr_cu_fp8_ws;
void gr_cu_fp8_layout(gr_workspace *c, uint32_t t, uint32_t in, uint32_t out, bool backward, gr_cu_fp8_ws *w);

/* Of a product for the gradient of weights [out, in] in FP8: both factors turned, T = gr_cu_fp8_tokens(t).
 * Where the product for the gradient of rows goes before, its workspace lies where x is afterwards. */
typedef struct gr_cu_fp8_dw_ws {
    void *gemm;
    uint8_t *dy, *x;             /* [out, T], [in, T] */
    float *dy_scales, *x_scales; /* [T / 128, out], [blocks(in), gr_fp8_scale_ld(T)] */
} gr_cu_fp8_dw_ws;
void gr_cu_fp8_dw_layout(gr_workspace *c, uint32_t t, uint32_t in, uint32_t out, gr_cu_fp8_dw_ws *w);
uint64_t gr_cu_fp8_dw_ws_bytes(uint32_t t, uint32_t in, uint32_t out, unsigned threads);
/* Tokens, with those of zeros that fill up the last block. */
uint32_t gr_cu_fp8_tokens(uint32_t t);

typedef struct gr_cu_teach_ws { /* n rows beside a teacher's */
    float *slope;               /* [n, V] */
    void *gemm;
} gr_cu_teach_ws;
void gr_cu_teach_layout(gr_workspace *c, const gr_model_shape *s, uint32_t n, gr_cu_teach_ws *w);

/* The same of a part of the vocabulary (ops/kernels/head.h), whose hidden states are the caller's. own: rows
 * of the final norm's backward pass. */
typedef struct gr_cu_part_ws {
    void *gemm, *sums;
    float *logits, *logit;
    void *part;
} gr_cu_part_ws;
void gr_cu_part_layout(gr_workspace *c, const gr_model_shape *s, uint32_t n, uint32_t own, gr_head_use use,
                       gr_cu_part_ws *w);

#endif
