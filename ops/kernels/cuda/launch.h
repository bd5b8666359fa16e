/* ops/kernels/cuda/launch.h: the device kernels of the CUDA path, as plain C functions that launch them.
 *
 * Letters as in ops/model/model.h: T tokens, H hidden, I intermediate, V vocabulary, D head_dim; W = (heads +
 * 2 kv_heads) D is the width of a row of q, k and v. Matrices are row-major. All pointers are device
 * pointers, aligned to 16 bytes or better; H, I, D and V need not be powers of two, but H, I and D are
 * multiples of 8. bf16 values travel as gr_bf16; arithmetic, statistics and sums are fp32 (or fp64 where
 * said).
 *
 * Every function only enqueues on its stream: no allocation, no synchronisation, safe under stream capture. A
 * failed launch shows in cudaGetLastError, which the caller checks at the end of its step. Results are
 * deterministic: no floating-point atomics, a fixed order of every sum that depends on the sizes alone.
 */
#ifndef GR_OPS_KERNELS_CUDA_LAUNCH_H
#define GR_OPS_KERNELS_CUDA_LAUNCH_H

#include <stdbool.h>
#include <stdint.h>

#include "ops/kernels/divergence.h"
#include "ops/kernels/scores.h"
#include "ops/kernels/slots.h"

#ifdef __cplusplus
extern "C" {
#endif

typedef struct CUstream_st *cudaStream_t; /* as driver_types.h has it: this header needs no CUDA */

typedef uint16_t gr_bf16;

typedef enum gr_cu_dtype { GR_CU_F32, GR_CU_BF16 } gr_cu_dtype;

/* What rotary embedding needs, from gr_model_shape. Frequencies are computed on the host in double and stored
 * as a table of float [D / 2] on the device; angles, cosines and sines are fp32 of position * frequency. */
typedef struct gr_cu_heads {
    uint32_t heads, kv_heads, head_dim;
    const float *frequency; /* [D / 2], device; zeros behind those that are rotated */
    float eps;              /* of q_norm and k_norm */
    float one;              /* their factors are one + weight: 0, or 1 */
    float factor;           /* on cosines and sines; 0: 1 */
    uint32_t rotated;       /* of a head, the first elements; 0: D */
    uint32_t raw_ld;        /* between rows of raw; 0: W */
    bool kv_fp8;            /* the pool's keys and values are in FP8; then D is a multiple of 16 */
    bool value_norm;        /* values have a norm as well, without a weight; q and k have theirs then */
} gr_cu_heads;

/* ---- embedding ------------------------------------------------------------------------------------------
 */

/* x [T, H] = scale times rows of embed [V, H]. */
void gr_cu_embed(cudaStream_t st, const gr_bf16 *embed, const int32_t *ids, float scale, gr_bf16 *x,
                 uint32_t T, uint32_t H);
/* grad [V, H] += scale dx [T, H] by id; the tokens of one id are summed in order. */
uint64_t gr_cu_embed_backward_ws(uint32_t T);
void gr_cu_embed_backward(cudaStream_t st, const int32_t *ids, const gr_bf16 *dx, float scale, void *grad,
                          gr_cu_dtype grad_type, uint32_t T, uint32_t H, void *ws);

/* ---- RMSNorm --------------------------------------------------------------------------------------------
 */

/* Rows of H values, ld apart in x and in all that has its shape. */
typedef struct gr_cu_norm {
    const gr_bf16 *x;
    const uint32_t *row; /* [n] which rows of x; NULL: all in order */
    uint32_t ld;         /* H, where rows are dense */
    const gr_bf16 *w;    /* [H] */
    float one;           /* the factor is one + w: 0, or 1 */
    uint32_t n, H;
    float eps;
} gr_cu_norm;

/* y [n, H] = x[row[i]] / rms * (one + w). y == x is fine without row. c: host memory, read during the call,
 * here and below. */
void gr_cu_rmsnorm(cudaStream_t st, const gr_cu_norm *c, gr_bf16 *y);
/* y = add + that; y == add is fine. */
void gr_cu_rmsnorm_add(cudaStream_t st, const gr_cu_norm *c, const gr_bf16 *add, gr_bf16 *y);
/* dx[row[i]] (+)= the part of dy [n, H] that comes through x; add: whether dx holds a gradient already, else
 * it is written, and dx == dy is fine without row. grad_w [H] += its part, where not NULL. rows of `row` are
 * distinct. */
uint64_t gr_cu_rmsnorm_backward_ws(uint32_t n, uint32_t H);
void gr_cu_rmsnorm_backward(cudaStream_t st, const gr_cu_norm *c, const gr_bf16 *dy, gr_bf16 *dx, bool add,
                            void *grad_w, gr_cu_dtype grad_type, void *ws);

/* ---- q, k and v -----------------------------------------------------------------------------------------
 */

/* From raw [T, W] to out [T, W]: q and k normalised per head where q_norm, k_norm [D] are not NULL (RMSNorm
 * over D), then rotated (the halves form of Hugging Face: pairs are (i, i + D/2)); v copied, or normalised
 * (value_norm). raw == out is fine. position [T]. D is at most 512, beyond 256 a multiple of 16. kv_heads 0:
 * of queries alone, here and below. */
void gr_cu_qk_rope(cudaStream_t st, const gr_cu_heads *h, const gr_bf16 *raw, const gr_bf16 *q_norm,
                   const gr_bf16 *k_norm, const int32_t *position, gr_bf16 *out, uint32_t T);
/* The same, and k and v go into the paged pool of this layer as well (layout: see gr_cu_paged). slot [T]:
 * block * GR_KV_BLOCK + place within it; UINT32_MAX: not stored. */
void gr_cu_qk_rope_store(cudaStream_t st, const gr_cu_heads *h, const gr_bf16 *raw, const gr_bf16 *q_norm,
                         const gr_bf16 *k_norm, const int32_t *position, const uint32_t *slot, gr_bf16 *out,
                         void *kv, uint32_t T);
/* d [T, W] in place: from the gradient of gr_cu_qk_rope's output to that of raw. grad_q_norm, grad_k_norm [D]
 * += their parts where not NULL. */
uint64_t gr_cu_qk_rope_backward_ws(const gr_cu_heads *h, uint32_t T);
void gr_cu_qk_rope_backward(cudaStream_t st, const gr_cu_heads *h, const gr_bf16 *raw, const gr_bf16 *q_norm,
                            const gr_bf16 *k_norm, const int32_t *position, gr_bf16 *d, void *grad_q_norm,
                            void *grad_k_norm, gr_cu_dtype grad_type, uint32_t T, void *ws);
/* grad [cols] += sums of the columns of d [T, cols]: of biases. */
uint64_t gr_cu_column_sums_ws(uint32_t T, uint32_t cols);
void gr_cu_column_sums(cudaStream_t st, const gr_bf16 *d, void *grad, gr_cu_dtype grad_type, uint32_t T,
                       uint32_t cols, void *ws);

/* ---- gated activations
 * ---------------------------------------------------------------------------------------------
 */

/* h [T, I] = silu(gate) * up, of gate_up [T, 2 I]: gate, then up, in each row. gelu: gelu (by its form with
 * tanh) in the place of silu. */
void gr_cu_swiglu(cudaStream_t st, const gr_bf16 *gate_up, bool gelu, gr_bf16 *h, uint32_t T, uint32_t I);
/* The same straight from x [m, H] and gate_up's weights [2 I, H], gate's rows first, in fp32 until h. fuses:
 * whether this device can, and has enough to do with it. false of the second: not launched. */
bool gr_cu_swiglu_fuses(const gr_bf16 *gate_up, uint32_t m, uint32_t H, uint32_t I);
bool gr_cu_swiglu_product(cudaStream_t st, const gr_bf16 *x, const gr_bf16 *gate_up, gr_bf16 *h, uint32_t m,
                          uint32_t H, uint32_t I);
/* d_gate_up [T, 2 I] from dh [T, I]; h [T, I] is computed again (its matrix gradient wants it). */
void gr_cu_swiglu_backward(cudaStream_t st, const gr_bf16 *gate_up, const gr_bf16 *dh, bool gelu,
                           gr_bf16 *d_gate_up, gr_bf16 *h, uint32_t T, uint32_t I);

/* y [T, n] = x sigmoid(g), g in rows of ld; and back: dx, and dg in rows of ld. y == x and dx == dy are fine;
 * n and ld are multiples of 8. */
void gr_cu_gate(cudaStream_t st, uint32_t T, uint32_t n, const gr_bf16 *x, const gr_bf16 *g, uint32_t ld,
                gr_bf16 *y);
void gr_cu_gate_backward(cudaStream_t st, uint32_t T, uint32_t n, const gr_bf16 *x, const gr_bf16 *g,
                         uint32_t ld, const gr_bf16 *dy, gr_bf16 *dx, gr_bf16 *dg);

/* ---- weights in NF4 -------------------------------------------------------------------------------------
 */

/* A matrix of n weights in the form of ops/model/nf4.h. */
typedef struct gr_cu_nf4 {
    const uint8_t *codes;              /* [(n + 1) / 2], readable to a multiple of 4, and aligned to it */
    const uint8_t *small;              /* [blocks of 64] */
    const float *scales, *mean;        /* [blocks / 256, rounded up], [1] */
    const float *weight_of, *scale_of; /* [16], [256]: what codes stand for; host memory, read during the
                                          call */
    uint64_t n;
} gr_cu_nf4;

/* w [n + zeros] = what the codes stand for, in fp32, rounded; then zeros. Bound by writing w. */
void gr_cu_nf4_open(cudaStream_t st, const gr_cu_nf4 *c, uint64_t zeros, gr_bf16 *w);
/* The same of a vector x [n], which is fp32 there. */
void gr_cu_nf4_vector(cudaStream_t st, const float *x, uint64_t n, uint64_t zeros, gr_bf16 *w);

/* ---- head -----------------------------------------------------------------------------------------------
 */

/* Of logits [n, V] fp32, multiplied by inv_temperature first: log-prob of target, entropy, sum of squared
 * probabilities (each [n] or NULL) and lse [n] (log-sum-exp of the scaled logits; never NULL). One pass over
 * logits.
 */
void gr_cu_head_stats(cudaStream_t st, const float *logits, const int32_t *target, float inv_temperature,
                      uint32_t n, uint32_t V, float *logprob, float *entropy, float *sum_p2, float *lse);
/* The head's product with those statistics, for a device whose tensor cores can be asked for both (Hopper):
 * logits are summed up in registers, GR_CU_HEAD_IDS of a row at a time, and go to memory only where `logits`
 * is not NULL. The bits of a row follow from that row alone, and are the same with and without logits. */
#define GR_CU_HEAD_IDS 256
typedef struct gr_cu_head_rows {
    const gr_bf16 *x, *lm; /* [n, H], [V, H] */
    const int32_t *target; /* [n] */
    float inv_temperature;
    uint32_t n, V, H;
    void *part;    /* gr_cu_head_part_bytes: sums of each tile of a row */
    float *logit;  /* [n] of the target */
    float *logits; /* [n, V] or NULL */
} gr_cu_head_rows;
/* Whether this device can, for these weights. */
bool gr_cu_head_fuses(const gr_bf16 *lm, uint32_t H);
static inline uint64_t gr_cu_head_part_bytes(uint32_t n, uint32_t V)
{
    return UINT64_C(16) * n * ((V + UINT64_C(255)) / GR_CU_HEAD_IDS);
}
/* false: not launched, CUDA's last error says why where it knows. */
bool gr_cu_head_product(cudaStream_t st, const gr_cu_head_rows *r);
/* Then: the rest of gr_cu_head_stats. */
void gr_cu_head_merge(cudaStream_t st, const gr_cu_head_rows *r, float *logprob, float *entropy,
                      float *sum_p2, float *lse);
/* Where logits are those of a part of the vocabulary (ops/kernels/head.h), target relative to its first id,
 * below 0 where it is elsewhere: in place of both of the above, part [n, GR_HEAD_PART]: the scaled maximum
 * and the sums of gr_tile_sums, base 2, and the target's logit. Then, from part [slices, n, GR_HEAD_PART],
 * what gr_cu_head_stats gives. */
void gr_cu_head_part_stats(cudaStream_t st, const float *logits, const int32_t *target, float inv_temperature,
                           uint32_t n, uint32_t V, float *part);
void gr_cu_head_part_merge(cudaStream_t st, const gr_cu_head_rows *r, float *part);
void gr_cu_head_join(cudaStream_t st, const float *part, uint32_t slices, uint32_t n, float inv_temperature,
                     float *logprob, float *entropy, float *sum_p2, float *lse);
/* In place: each row of logits becomes, in bf16, d loss / d logits (unscaled logits: inv_temperature is
 * applied), row i at byte i * 4 V, so that its leading dimension is 2 V. d_entropy and entropy may be NULL.
 * cap: what gr_cu_head_cap was given, 0: it was not asked. */
typedef struct gr_cu_head_adjoint {
    const int32_t *target;                                    /* [n] */
    const float *lse, *entropy, *d_logprob, *d_entropy;       /* [n] */
    const float *slope /* [n, V] */, *d_divergence /* [n] */; /* as of gr_head_rows */
    float inv_temperature, cap;
    uint32_t n, V;
} gr_cu_head_adjoint;
void gr_cu_head_dlogits(cudaStream_t st, float *logits, const gr_cu_head_adjoint *a);
/* taught [n, V], a teacher's logits, become the slope of the divergence [n] of the student's rows from it, by
 * the student's logits scaled by inv_temperature; lse [n]: the student's. */
typedef struct gr_cu_teach_call {
    const float *logits, *lse;
    float *taught, *divergence;
    gr_divergence kind;
    float beta, inv_temperature;
    uint32_t n, V;
} gr_cu_teach_call;
void gr_cu_teach(cudaStream_t st, const gr_cu_teach_call *c);
/* Of n logits z in place: cap tanh(z / cap). */
void gr_cu_head_cap(cudaStream_t st, float *logits, float cap, uint64_t n);

/* A value head, and where its gradients are added; bias may be NULL in both. */
typedef struct gr_cu_value_head {
    const gr_bf16 *norm, *weight; /* [H] */
    const gr_bf16 *bias;          /* [1] */
    float one;                    /* the norm's factor is one + its weight: 0, or 1 */
} gr_cu_value_head;
typedef struct gr_cu_value_grads {
    gr_cu_dtype type;
    void *norm, *weight, *bias;
} gr_cu_value_grads;
/* value [n] = sum over h of x[row[i]][h] / rms * (one + norm[h]) * weight[h], + bias, all in fp32. The bits
 * of a row follow from the row alone. head: host memory, read during the call. */
uint64_t gr_cu_value_ws(uint32_t n, uint32_t H);
void gr_cu_value(cudaStream_t st, const gr_bf16 *x, const uint32_t *row, const gr_cu_value_head *head,
                 float *value, uint32_t n, uint32_t H, float eps, void *ws);
/* After gr_cu_value with the same rows and ws: dx[row[i]] is written, grad is added to. d_value [n]. Rows of
 * `row` are distinct. */
void gr_cu_value_backward(cudaStream_t st, const gr_bf16 *x, const uint32_t *row,
                          const gr_cu_value_head *head, const float *d_value, gr_bf16 *dx,
                          const gr_cu_value_grads *grad, uint32_t n, uint32_t H, void *ws);

/* How the next token is drawn; as gr_sampling of ops/kernels/kernels.h. */
typedef struct gr_cu_sampling {
    float temperature, top_p;
    uint32_t top_k;
    uint64_t seed, stream;
} gr_cu_sampling;
/* One id for each row of logits [n, V], as ops/kernels/cpu/sample_cpu.c draws it from the same logits (but
 * for rounding): greedy (ties to the lowest id) where temperature is 0, else by inverting the cumulative
 * distribution of what top-k and top-p leave of softmax(logits / T) at the uniform number of (seed, stream,
 * draw[i] = {sequence, token}), which does not depend on the batch. logprob: of the drawn id under
 * log-softmax(logits / T) without truncation (T 0 counts as 1), to the bit what gr_cu_head_stats gives for
 * it. how is a device pointer, so that captured graphs follow it. n up to 65535, V up to 2^20. */
uint64_t gr_cu_sample_ws(uint32_t n, uint32_t V);
void gr_cu_sample(cudaStream_t st, const float *logits, const gr_cu_sampling *how, const uint32_t (*draw)[2],
                  int32_t *id, float *logprob, uint32_t n, uint32_t V, void *ws);

/* ---- optimizer ------------------------------------------------------------------------------------------
 */

typedef enum gr_cu_optim_kind { GR_CU_ADAMW, GR_CU_LION, GR_CU_SGD } gr_cu_optim_kind; /* as gr_optim_kind */
typedef struct gr_cu_optim {                    /* as gr_optim; decay 0 where weight decay does not apply */
    double lr, beta1, beta2, eps, weight_decay; /* double: 1 - beta2 has few digits left in a float */
    double correction1, correction2;            /* 1 - beta^step; 1 of those without correction */
    float grad_scale;
    gr_cu_optim_kind kind;
} gr_cu_optim;
typedef struct gr_cu_optim_range { /* as gr_optim_range, [n] each, from a multiple of 64 elements on */
    gr_bf16 *w;
    const void *g;
    float *master; /* NULL: w itself, or with low */
    uint16_t *low; /* NULL: none; else w and this are the master, as gr_f32_join of runtime/base/half.h */
    void *m, *v;
    gr_cu_dtype grads, moments;
    uint64_t n;
    /* m_scale not NULL: moments are int8 (ops/simd/moments.h), and moments above says nothing */
    float *m_scale, *v_scale;
    uint32_t chance;
    uint64_t first; /* the number of the first element, for chance */
} gr_cu_optim_range;
/* One pass over all of them. how, r: host memory, read during the call. */
void gr_cu_optim_step(cudaStream_t st, const gr_cu_optim *how, const gr_cu_optim_range *r);
/* x [n] bf16 divided by the root of *squares, or by 1e-7 where that is less. */
void gr_cu_to_unit(cudaStream_t st, gr_bf16 *x, uint64_t n, const double *squares);
/* m += (1 - mu) (g - m), u = g + mu (m - g), of gradients scaled by grad_scale. */
void gr_cu_muon_mix(cudaStream_t st, const void *g, gr_cu_dtype grads, float grad_scale, float mu, float *m,
                    gr_bf16 *u, uint64_t n);
/* y [n] = scale x [n], bf16; y == x is fine. n a multiple of 8. */
void gr_cu_scale(cudaStream_t st, const gr_bf16 *x, float scale, gr_bf16 *y, uint64_t n);
/* x [n] times the number at `by`, in place. n a multiple of 8. */
void gr_cu_scale_by(cudaStream_t st, gr_bf16 *x, const gr_bf16 *by, uint64_t n);
/* to [n] += from [n], both of one type. */
void gr_cu_add(cudaStream_t st, void *to, const void *from, gr_cu_dtype type, uint64_t n);
/* master [n] = decay master + share from, to [n] its rounding; master NULL: to is its own. */
void gr_cu_blend(cudaStream_t st, gr_bf16 *to, float *master, const gr_bf16 *from, float decay, float share,
                 uint64_t n);
/* *out = sum of squares in double. */
uint64_t gr_cu_sum_squares_ws(void);
void gr_cu_sum_squares(cudaStream_t st, const void *x, gr_cu_dtype type, uint64_t n, double *out, void *ws);
/* parts [GR_CHECKSUM_PARTS], of the device or pinned: their sum is the checksum of the bytes
 * (ops/kernels/checksum.h). */
void gr_cu_checksum(cudaStream_t st, const void *x, uint64_t bytes, uint64_t *parts);
/* bf16 from fp32, round to nearest even. */
void gr_cu_round(cudaStream_t st, const float *from, gr_bf16 *to, uint64_t n);

/* ---- losses ----------------------------------------------------------------------------------------------
 */

/* One pass of a compiled expression, c->n > 0 (graphs/expr/code.h). c: host memory, read during the call. */
struct gr_code_call;
void gr_cu_code_run(cudaStream_t st, const struct gr_code_call *c);

/* ---- rollout: the paged pool -----------------------------------------------------------------------------
 */

/* One layer's part of the pool: blocks of GR_KV_BLOCK (16) tokens, one behind the other; a block is K
 * [kv_heads, 16, D], then V [kv_heads, 16, D], bf16. In FP8 both are E4M3, and behind them stand fp32 scales
 * [kv_heads] [of K, of V] [16]: of a position's head, values and scales as ops/model/fp8.h has them. A key or
 * value that is not finite has a scale that is no number. */
static inline uint64_t gr_cu_kv_half_bytes(const gr_cu_heads *h)
{
    return UINT64_C(16) * h->kv_heads * h->head_dim * (h->kv_fp8 ? 1 : sizeof(gr_bf16));
}

static inline uint64_t gr_cu_kv_block(const gr_cu_heads *h)
{
    return 2 * gr_cu_kv_half_bytes(h) + (h->kv_fp8 ? UINT64_C(2) * 16 * sizeof(float) * h->kv_heads : 0);
}

typedef struct gr_cu_paged {
    gr_cu_heads heads;
    const void *kv;
    const uint32_t *table; /* [seqs, table_stride] block of each 16 positions */
    uint32_t table_stride;
    gr_scores scores; /* sinks: device */
} gr_cu_paged;

/* New tokens of several sequences attend to all keys of their sequence before and including themselves, which
 * are in the pool already (gr_cu_qk_rope_store ran). qkv [n_tokens, W]: rotated q is read. out [n_tokens,
 * heads D]. offset [n_seqs + 1] of the new tokens, cached [n_seqs] tokens before them. longest: bound of the
 * new tokens of one sequence. For prefill. */
void gr_cu_extend_attention(cudaStream_t st, const gr_cu_paged *p, const gr_bf16 *qkv, const uint32_t *offset,
                            const uint32_t *cached, uint32_t n_seqs, uint32_t n_tokens, uint32_t longest,
                            gr_bf16 *out);

/* One new token for each of n slots, with keys of a prompt that several slots share read once for all of
 * them. length[i]: keys of slot i, the new one included (0: the slot is empty, its out is zero and its table
 * is not read). The slots of group g are member[i], i in [group_first[g], group_first[g + 1]): each slot in
 * one group at most, those in none are taken as empty; groups may be empty, and of any size. They share the
 * first shared[g] keys (a multiple of 16, less than each length that is not 0), which lie in the same blocks
 * of each one's table. Keys are cut into pieces of a fixed size, not a fixed count, and the pieces' partial
 * results are combined in order: the bits of a slot follow from its own keys, length and shared alone,
 * whatever else is in the batch. max_length: bound of length; n, n_groups and max_length size the launch
 * (graphs are captured for them). */
typedef struct gr_cu_decode {
    const uint32_t *length;      /* [n] */
    const uint32_t *member;      /* [group_first[n_groups]] */
    const uint32_t *group_first; /* [n_groups + 1] */
    const uint32_t *shared;      /* [n_groups] */
    uint32_t n, n_groups;
    uint32_t max_length;
    uint32_t each; /* so many slots of a group that follow each other are rows of one: they have the same
                      blocks, of which the first ones' lengths differ by at most a few; 0: as 1 */
} gr_cu_decode;
/* Once a step, before its first layer: the list of what is to be read, from lengths, groups and tables as
 * they are on the device. All layers of the step with this window (0: none), heads / kv_heads and kv_fp8 use
 * it; with a window, the blocks that it does not reach are not read, and none is shared. Bytes of work and
 * ws: ops/kernels/cuda/decode_sizes.h. */
void gr_cu_decode_plan(cudaStream_t st, const gr_cu_heads *h, const gr_cu_decode *d, uint32_t window,
                       const uint32_t *table, uint32_t table_stride, void *work);
/* qkv [n, W], out [n, heads D]. work: from gr_cu_decode_plan with the same d and p->scores.window; ws:
 * scratch of this call. */
void gr_cu_decode_attention(cudaStream_t st, const gr_cu_paged *p, const gr_cu_decode *d, const gr_bf16 *qkv,
                            gr_bf16 *out, const void *work, void *ws);

/* Few slots, n at most 16, none of which are rows of one: norms and rotation of q and k, their and v's write
 * into the pool, and attention, in one. Old keys are read before the kernel in front has ended. */
typedef struct gr_cu_decode_fused {
    gr_cu_heads heads;
    const gr_bf16 *qkv, *q_norm, *k_norm; /* [n, W] as the product gave it; norms NULL: none */
    const int32_t *position;              /* [n] */
    const uint32_t *slot,
        *length;           /* [n] where the new key goes, and the keys with it; 0: empty, out is zero */
    const uint32_t *table; /* [n, table_stride] */
    uint32_t table_stride, n;
    gr_bf16 *kv, *out; /* out [n, heads D]; kv: not in FP8 */
} gr_cu_decode_fused;
bool gr_cu_decode_fuses(const gr_cu_heads *h, const gr_scores *s, uint32_t n);
void gr_cu_decode_fused_run(cudaStream_t st, const gr_cu_decode_fused *p, float scale);

/* ---- products of a decode step ---------------------------------------------------------------------------
 */

/* y [t, out] = scale x [t, in] w [out, in]^T + bias + add, t at most 16: of the steps of a rollout, where
 * nothing that w holds is written by the kernel in front (it is read before that has ended). norm: x's rows
 * are normed: x times its factors, rounded to bf16, is multiplied, and the result has 1 / root mean square.
 * activate: w is gate's rows, then up's, and y [t, out / 2] = silu(gate) * up, without bias and add. Sums
 * have an order that follows from t, in, out and the device. */
typedef struct gr_cu_decode_product {
    const gr_bf16 *x, *w;
    gr_bf16 *y;                /* add == y is fine */
    float *logits;             /* instead of y; or NULL */
    const gr_bf16 *bias, *add; /* [out], [t, out], or NULL */
    const gr_bf16 *norm;       /* [in] or NULL; its factors are one + norm */
    float scale, eps, one;
    uint32_t t, in, out, ld; /* ld: between rows of y, logits and add */
    bool activate;
} gr_cu_decode_product;
bool gr_cu_decode_product_takes(const gr_bf16 *w, uint32_t t, uint32_t in, uint32_t out);
void gr_cu_decode_product_run(cudaStream_t st, const gr_cu_decode_product *p);

/* ---- copies ---------------------------------------------------------------------------------------------
 */

/* Copy blocks src[i] to dst[i], for all layers: layer l's part begins at l * layer_bytes. Both sizes are
 * multiples of 16. */
void gr_cu_kv_copy(cudaStream_t st, void *kv, uint32_t layers, uint64_t layer_bytes, uint64_t block_bytes,
                   const uint32_t *src, const uint32_t *dst, uint32_t n);

/* ---- rollout: state of the slots --------------------------------------------------------------------------
 */

/* What ends a sequence, beside stop ids. */
typedef struct gr_cu_ending {
    uint32_t max_tokens, n_stop;
} gr_cu_ending;
/* Texts that tokens are looked up in (ops/drafts.h). */
typedef struct gr_cu_texts {
    int32_t *ids;     /* [seqs, longest]; NULL: there are none */
    uint32_t *n;      /* [seqs] tokens so far; 0: nothing is known of it */
    uint32_t *prompt; /* [seqs] its first tokens, which others do not draft */
    uint32_t *of;     /* [slots] */
    uint32_t seqs, longest, samples, match;
} gr_cu_texts;

/* What a layer drafts that predicts a further token, and the step of a pass behind the first, which has one
 * row a slot. */
typedef struct gr_cu_ahead {
    int32_t *drafted; /* [each - 1, slots] for the next step; below 0: nothing. NULL: it is no layer */
    uint32_t *last;   /* [slots] the row whose token the slot goes on from */
    int32_t *position;
    uint32_t *kv_slot, *length;
    uint32_t *member, *group_first; /* as of gr_cu_decode, of slots */
    float *logprob;                 /* of what is drafted, which nobody reads */
} gr_cu_ahead;

/* What decode steps read and write without the host; all on the device. Slot s has the rows from s each on
 * (ops/kernels/steps.h). */
typedef struct gr_cu_slots {
    int32_t *id;           /* [rows] the token to feed */
    int32_t *position;     /* [rows] its position */
    uint32_t *kv_slot;     /* [rows] where its keys go: block * 16 + place; UINT32_MAX: the row is empty */
    uint32_t *window_slot; /* as kv_slot, by the table from column window_at on; NULL: there is none */
    uint32_t *length;      /* [rows] keys, the new one included; 0: the row is empty */
    uint32_t *held; /* [rows] where its state of one size is left; UINT32_MAX: empty. NULL: no such states */
    uint32_t *places; /* [rows] of a slot, as many places of states as it has rows: that of its state is the
                         first one's, between two steps. NULL as held */
    uint32_t *table;  /* [rows, stride] */
    uint32_t (*draw)[2]; /* [rows] sequence, and which of its tokens is drawn next */
    int32_t *drawn;      /* [rows] what was sampled, and its log-prob */
    float *logprob;      /* [rows] */
    uint32_t *step;      /* [1] steps of the chunk so far */
    int32_t *report_id;  /* [chunk, rows] see gr_steps_report */
    float *report_logprob;
    const gr_cu_ending *ending;
    const int32_t *stop; /* [ending->n_stop] ids that end a sequence */
    uint32_t slots, stride, window_at;
    uint32_t each;        /* rows of a slot; where there are more than one, */
    uint32_t (*rests)[2]; /* [slots] drafts in a row that gave nothing, and steps to rest; */
    gr_cu_texts texts;    /* this, */
    gr_cu_ahead ahead;    /* or this */
} gr_cu_slots;

/* All slots become empty. */
void gr_cu_slots_clear(cudaStream_t st, const gr_cu_slots *s);
/* A chunk begins, with n changes; row i of table [n, stride], of text [n, longest] where tokens are looked
 * up, and entry i of held where slots have it, belong to change i where it sets. No slot is named by two
 * changes, whether as slot or as from. */
void gr_cu_slots_change(cudaStream_t st, const gr_cu_slots *s, const gr_slot_change *change,
                        const uint32_t *table, const uint32_t *held, const int32_t *text, uint32_t n);
/* A step begins, where tokens are drafted: for the slots before n, what is likely to follow goes to the rows
 * behind the first; the others become empty. Bound by reading the texts once for each slot. */
void gr_cu_slots_draft(cudaStream_t st, const gr_cu_slots *s, uint32_t n);
/* After sampling, before the slots advance: ahead.last. */
void gr_cu_slots_last(cudaStream_t st, const gr_cu_slots *s, uint32_t n);
/* After they have: the step of pass `pass` > 0 of a layer that drafts. A slot that ends before what the pass
 * gives is empty. member and group_first: the step's, by rows. */
void gr_cu_slots_ahead(cudaStream_t st, const gr_cu_slots *s, uint32_t n, uint32_t pass,
                       const uint32_t *member, const uint32_t *group_first);
/* After sampling, for the slots before n: report the tokens; empty the slot where one was the last, else make
 * the last one the next to feed. */
void gr_cu_slots_advance(cudaStream_t st, const gr_cu_slots *s, uint32_t n);
/* Before that: report the step's n choices of experts, of at most `most`; report [chunk, most]. */
void gr_cu_slots_choices(cudaStream_t st, const gr_cu_slots *s, const uint16_t *choices, uint32_t n,
                         uint32_t most, uint16_t *report);

#ifdef __cplusplus
}
#endif

#endif
