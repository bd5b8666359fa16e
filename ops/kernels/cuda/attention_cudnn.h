/* ops/kernels/cuda/attention_cudnn.h: the two graphs of fused attention that cuDNN knows by their pattern.
 *
 * Packed sequences are ragged tensors: B sequences of at most S tokens each, of which sequence b has
 * length[b] (0 is fine) and begins `offset` elements into its tensor. Queries, keys and values lie in one row
 * of `width` elements per token; so do their gradients. Causal, top left: query i sees keys 0 .. i of its
 * sequence. Or, `prefix`: queries that see all of other keys, whose lengths and places are others than
 * theirs.
 *
 * Source: the graphs, the order of their operations and the rule for the deterministic backward are those of
 * cudnn-frontend (include/cudnn_frontend/node/scaled_dot_product_flash_attention.h, softmax.h,
 * diagonal_band_mask.h at 3929da2), which cuDNN matches as patterns: do not reorder operations.
 */
#ifndef GR_OPS_KERNELS_CUDA_ATTENTION_CUDNN_H
#define GR_OPS_KERNELS_CUDA_ATTENTION_CUDNN_H

#include "ops/kernels/cuda/cudnn_graph.h"

typedef struct gr_cudnn_attention {
    int64_t batch, longest;  /* B, S */
    int64_t heads, kv_heads, /* of this call, which may be a part of the model's */
        head_dim, width, o_width;
    int64_t stats_width; /* statistics of a token: the model's heads */
    bool backward, deterministic;
    bool prefix; /* not causal: keys are not those of the queries' tokens */
} gr_cudnn_attention;

/* Tensors of a call, by uid. [n + 1] offsets are int32 elements; lengths int32 [B]. */
typedef enum gr_cudnn_attention_uid {
    GR_ATT_Q = 1, /* bf16, offset ROWS; K and V too */
    GR_ATT_K,
    GR_ATT_V,
    GR_ATT_O,     /* bf16, offset O_ROWS; dO too */
    GR_ATT_STATS, /* fp32 log-sum-exp, offset STATS_ROWS */
    GR_ATT_LENGTH,
    GR_ATT_ROWS,
    GR_ATT_O_ROWS,
    GR_ATT_STATS_ROWS,
    GR_ATT_SCALE, /* host floats */
    GR_ATT_MINUS_INF,
    GR_ATT_MINUS_INF_2, /* causal alone */
    GR_ATT_KV_LENGTH,   /* this and the next: of keys, values and their gradients, where prefix */
    GR_ATT_KV_ROWS,
    GR_ATT_FORWARD_END,
    GR_ATT_ONE = GR_ATT_FORWARD_END,
    GR_ATT_DO,
    GR_ATT_DQ, /* bf16, offset ROWS; dK and dV too */
    GR_ATT_DK,
    GR_ATT_DV,
    GR_ATT_DELTA, /* fp32 [B, heads, S], ours to provide */
    GR_ATT_BACKWARD_END,
    GR_ATT_DQ_SUM = GR_ATT_BACKWARD_END, /* fp32 [B, heads, S, D], where not deterministic */
    GR_ATT_END
} gr_cudnn_attention_uid;

/* handle, device: as gr_cudnn_graph_init. */
GR_NODISCARD gr_status gr_cudnn_attention_plan(gr_cudnn_plan *out, const gr_cudnn_attention *a,
                                               cudnnHandle_t handle, gr_cudnn_desc device, gr_diag *d);

#endif
