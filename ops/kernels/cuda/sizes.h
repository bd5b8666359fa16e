/* ops/kernels/cuda/sizes.h: how much workspace attention on a CUDA device takes, and how a batch is cut so
 * that it does.
 *
 * Pure functions of shapes and bounds: they need neither CUDA nor cuDNN, so that plans are made on any
 * machine. The device code cuts batches by gr_cu_attention_cut and checks what cuDNN asks against these
 * sizes.
 *
 * cuDNN's deterministic backward keeps dP, batch * heads * longest^2 bf16 values. So backward goes through a
 * batch in runs of consecutive sequences, each of at most GR_CU_ATTENTION_RUN_BYTES; where one sequence alone
 * is over it, it goes in parts of its heads. Batch and length are rounded up to few sizes, because each pair
 * is a plan that cuDNN compiles (about half a second).
 */
#ifndef GR_OPS_KERNELS_CUDA_SIZES_H
#define GR_OPS_KERNELS_CUDA_SIZES_H

#include <stdbool.h>
#include <stdint.h>

/* 1 GiB is still 2,000 tiles of 128 x 128 heads and rows at 1,024 tokens: the chip is full. */
#define GR_CU_ATTENTION_RUN_BYTES (UINT64_C(1) << 30)
#define GR_CU_ATTENTION_BATCH_MAX 4096

typedef struct gr_cu_attention_shape {
    uint32_t heads, kv_heads,
        head_dim;       /* head_dim: a multiple of 8, at most 512; heads: a multiple of kv_heads */
    bool deterministic; /* of backward; false: sums with atomics, faster, and no dP is kept */
} gr_cu_attention_shape;

/* Whether cuDNN has attention of such heads; of others ops/kernels/cuda/attention_simple.h has. */
static inline bool gr_cu_attention_fuses(const gr_cu_attention_shape *s)
{
    return s->head_dim <= 256;
}

/* One call, or kv_heads(shape) / kv_heads calls: sequences [first, first + n) as `batch` of at most `longest`
 * tokens. */
typedef struct gr_cu_attention_run {
    uint32_t first, n, batch, longest;
    uint32_t kv_heads; /* of one call */
} gr_cu_attention_run;

/* The run that begins at sequence `first` < n_seqs of a packed batch, offset [n_seqs + 1]. */
gr_cu_attention_run gr_cu_attention_cut(const gr_cu_attention_shape *s, const uint32_t *offset,
                                        uint32_t first, uint32_t n_seqs, bool backward);

/* What cuDNN may ask for one call of a run. */
uint64_t gr_cu_attention_cudnn_bytes(const gr_cu_attention_shape *s, const gr_cu_attention_run *r,
                                     bool backward);
/* What one call of a run takes beside it: [batch, heads, longest] fp32 row sums of dO * O, and where backward
 * is not deterministic the fp32 dQ. */
uint64_t gr_cu_attention_delta_bytes(const gr_cu_attention_shape *s, const gr_cu_attention_run *r);
uint64_t gr_cu_attention_dq_bytes(const gr_cu_attention_shape *s, const gr_cu_attention_run *r);
/* Lengths and offsets of a run of this batch. */
uint64_t gr_cu_attention_index_bytes(uint32_t batch);

/* Upper bound for every batch within these bounds, and never less for larger ones. 256-byte alignment. */
uint64_t gr_cu_attention_ws_bytes(const gr_cu_attention_shape *s, uint32_t tokens, uint32_t seqs,
                                  uint32_t longest, bool backward);
/* What it takes beside that where sequences share their beginning. */
uint64_t gr_cu_attention_prefix_bytes(const gr_cu_attention_shape *s, uint32_t longest, bool backward);
/* Softmax statistics that backward needs of forward: fp32 [tokens, heads]. */
uint64_t gr_cu_attention_stats_bytes(const gr_cu_attention_shape *s, uint32_t tokens);

#endif
