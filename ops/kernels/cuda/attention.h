/* ops/kernels/cuda/attention.h: attention of packed sequences, forward and backward, in bf16.
 *
 * Layouts, row-major: qkv [T, W], W = (heads + 2 kv_heads) D, a row being the token's query heads, then key
 * heads, then value heads; o [T, heads D]; stats fp32 [T, heads], the log of each row's denominator;
 * gradients dqkv [T, W] and dout [T, heads D]. What scores are: ops/kernels/scores.h. Tokens of sequence i
 * are [offset[i], offset[i + 1]), and see what stands before them in it; sequences of length 0 and 1 are
 * fine. Rows beyond offset[n_seqs] are not touched.
 *
 * cuDNN's fused attention does it on Hopper and later, by plans that are built once for each bucket of batch
 * and length (sizes.h) and kept; attention_simple.h does it elsewhere. Which of them is decided when the
 * object is opened, by the device alone; windows, softcap and heads wider than 256 are attention_simple.h's
 * wherever they are, and sinks are added to what cuDNN leaves. deterministic in the shape: the same batch
 * gives the same bits.
 *
 * Threads: a gr_cu_attention belongs to one thread at a time, and its workspace to one stream order. Calls
 * whose plans are built already (gr_cu_attention_prepare) only enqueue and are safe under stream capture.
 */
#ifndef GR_OPS_KERNELS_CUDA_ATTENTION_H
#define GR_OPS_KERNELS_CUDA_ATTENTION_H

#include "ops/kernels/cuda/launch.h"
#include "ops/kernels/cuda/sizes.h"
#include "runtime/base/base.h"

typedef struct gr_cu_attention gr_cu_attention;

typedef enum gr_cu_attention_kind {
    GR_CU_ATTENTION_AUTO, /* what the device takes */
    GR_CU_ATTENTION_CUDNN,
    GR_CU_ATTENTION_SIMPLE, /* bits of a row that do not depend on the batch, and are those of prefill */
    GR_CU_ATTENTION_STRICT, /* forward is SIMPLE's, backward AUTO's */
} gr_cu_attention_kind;

typedef struct gr_cu_sequences {
    uint32_t n_seqs;
    const uint32_t *offset;        /* [n_seqs + 1] on the host, from 0; read during the call */
    const uint32_t *device_offset; /* the same on the device */
    /* [n_seqs] on the host and on the device: sequences that share their beginning (gr_packed of
     * ops/kernels/kernels.h). NULL: none does. Scores have no window then. */
    const uint32_t *prefix, *device_prefix;
} gr_cu_sequences;

/* Where the gradient of sinks is added. */
typedef struct gr_cu_sink_grads {
    void *grad; /* [heads] */
    gr_cu_dtype type;
} gr_cu_sink_grads;

/* For the current device. */
GR_NODISCARD gr_status gr_cu_attention_open(gr_cu_attention **out, gr_cu_attention_kind kind, gr_diag *d);
void gr_cu_attention_close(gr_cu_attention *a); /* NULL is fine */

/* Which kernels run, for benchmarks: "cudnn 91900", "simple", or "simple, cudnn 91900" where forward's are
 * others than backward's. */
const char *gr_cu_attention_name(const gr_cu_attention *a);

/* Build the plans that a batch of these sequences needs (about half a second each), and run nothing. */
GR_NODISCARD gr_status gr_cu_attention_prepare(gr_cu_attention *a, const gr_cu_attention_shape *s,
                                               const gr_scores *scores, const gr_cu_sequences *b,
                                               bool backward, gr_diag *d);

/* ws: gr_cu_attention_ws_bytes of bounds that hold the batch, aligned to 256; ws_bytes is checked. stats may
 * be NULL where no backward follows only with the simple kernels; cuDNN always writes them. sinks: NULL where
 * scores have none. GR_E_FAILED with cuDNN's call, status and the shape. */
GR_NODISCARD gr_status gr_cu_attention_forward(gr_cu_attention *a, cudaStream_t st,
                                               const gr_cu_attention_shape *s, const gr_scores *scores,
                                               const gr_cu_sequences *b, const gr_bf16 *qkv, gr_bf16 *o,
                                               float *stats, void *ws, uint64_t ws_bytes, gr_diag *d);
GR_NODISCARD gr_status gr_cu_attention_backward(gr_cu_attention *a, cudaStream_t st,
                                                const gr_cu_attention_shape *s, const gr_scores *scores,
                                                const gr_cu_sequences *b, const gr_bf16 *qkv,
                                                const gr_bf16 *o, const float *stats, const gr_bf16 *dout,
                                                gr_bf16 *dqkv, const gr_cu_sink_grads *sinks, void *ws,
                                                uint64_t ws_bytes, gr_diag *d);

#endif
