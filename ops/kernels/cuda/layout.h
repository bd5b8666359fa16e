/* ops/kernels/cuda/layout.h: how the CUDA kernels cut their buffers; sizes without a device, for the planner.
 *
 * A function that carves also tells the size (ops/kernels/lay out.h). T rows each, bf16 unless said
 * otherwise.
 */
#ifndef GR_OPS_KERNELS_CUDA_LAYOUT_H
#define GR_OPS_KERNELS_CUDA_LAYOUT_H

#include "ops/kernels/workspace.h"
#include "ops/kernels/cuda/launch.h"
#include "ops/kernels/cuda/sizes.h"
#include "ops/kernels/kernels.h"

static inline uint32_t gr_cu_qkv_width(const gr_model_shape *s)
{
    return (s->heads + 2 * s->kv_heads) * s->head_dim;
}

/* What a layer keeps for its backward pass beside its input; all else is computed again. */
typedef struct gr_cu_acts {
    gr_bf16 *qkv;     /* [W] after RoPE; with q and k norm: before them */
    gr_bf16 *o;       /* [heads D] */
    float *stats;     /* [heads] of attention's softmax */
    gr_bf16 *mid;     /* [H] after attention's residual */
    gr_bf16 *gate_up; /* [2 I] */
} gr_cu_acts;
/* deterministic: of its backward. */
gr_cu_attention_shape gr_cu_attention_shape_of(const gr_model_shape *s, bool deterministic);

void gr_cu_acts_layout(gr_workspace *c, const gr_model_shape *s, const gr_pass_bounds *b, gr_cu_acts *a);

typedef struct gr_cu_layer_ws {
    void *gemm, *attend;
    uint64_t attend_bytes;
    gr_bf16 *y;      /* [H] a norm's output */
    gr_bf16 *qkv;    /* [W] rotated, where acts have them raw */
    gr_bf16 *h;      /* [I] */
    gr_cu_acts acts; /* where they are not kept */
} gr_cu_layer_ws;
void gr_cu_layer_layout(gr_workspace *c, const gr_model_shape *s, const gr_pass_bounds *b, bool keep,
                        gr_cu_layer_ws *w);

typedef struct gr_cu_back_ws {
    void *gemm, *attend, *sums;
    uint64_t attend_bytes;
    gr_bf16 *y, *dy;       /* [H] a norm's output again; d loss / d it */
    gr_bf16 *qkv, *dqkv;   /* [W] */
    gr_bf16 *h, *dh, *dgu; /* [I], [I], [2 I] */
    gr_bf16 *d_o;          /* [heads D] */
} gr_cu_back_ws;
void gr_cu_back_layout(gr_workspace *c, const gr_model_shape *s, const gr_pass_bounds *b, bool deterministic,
                       gr_cu_back_ws *w);

typedef struct gr_cu_extend_ws {
    void *gemm;
    gr_bf16 *y, *qkv, *o, *gate_up, *h;
} gr_cu_extend_ws;
void gr_cu_extend_layout(gr_workspace *c, const gr_model_shape *s, uint32_t tokens, gr_cu_extend_ws *w);

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

#endif
