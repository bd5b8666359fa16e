/* ops/kernels/cuda/experts.h: device kernels of mixtures of experts, as plain C functions that launch them.
 * What they compute stands in ops/kernels/experts.h, whose letters are used here: T tokens, E experts, k of
 * them a token, R = T k rows, H hidden, I inner; H and I are multiples of 8. Else as
 * ops/kernels/cuda/launch.h says: only enqueued, the same bits every time, nothing sized by what the router
 * chose.
 */
#ifndef GR_OPS_KERNELS_CUDA_EXPERTS_H
#define GR_OPS_KERNELS_CUDA_EXPERTS_H

#include "ops/kernels/cuda/launch.h"
#include "ops/kernels/cuda/parts.h"

#ifdef __cplusplus
extern "C" {
#endif

#define GR_CU_EXPERTS_MAX 512
#define GR_CU_CHOICES_MAX 32
#define GR_CU_SORT_TOKENS 64 /* of a block that counts and places choices */

/* ---- router ---- */

typedef struct gr_cu_router {
    uint32_t count, top_k, groups, top_groups;
    bool sigmoid, over_chosen; /* scores; weights are divided by the sum of the chosen ones */
    float scale;
} gr_cu_router;
/* logits [T, E] += bias [E] */
void gr_cu_router_bias(cudaStream_t st, float *logits, const gr_bf16 *bias, uint32_t T, uint32_t E);
/* Products of a router whose E is no multiple of 8: x [T, H], w [E, H]. Logits are fp32; d_logits [T, E]; dx
 * [T, H] = or += (add) d_logits w; grad [E, H] += d_logits^T x; gr_cu_few_sums: grad [E] += the columns of
 * d_logits. */
typedef struct gr_cu_few {
    uint32_t T, H, E;
    const gr_bf16 *x, *w;
} gr_cu_few;
static inline uint64_t gr_cu_few_ws(uint32_t T, uint32_t H, uint32_t E)
{
    return UINT64_C(4) * gr_few_strips(T, H, E) * E * H;
}
void gr_cu_few_logits(cudaStream_t st, const gr_cu_few *p, float *logits);
void gr_cu_few_dx(cudaStream_t st, const gr_cu_few *p, const gr_bf16 *d_logits, bool add, gr_bf16 *dx);
void gr_cu_few_dw(cudaStream_t st, const gr_cu_few *p, const gr_bf16 *d_logits, void *grad, gr_cu_dtype type,
                  void *ws);
void gr_cu_few_sums(cudaStream_t st, const gr_cu_few *p, const gr_bf16 *d_logits, void *grad,
                    gr_cu_dtype type);
/* expert, weight [T, k]; selection [E, 4], whose sums are meant, or NULL; given [T, k] or NULL. */
void gr_cu_route(cudaStream_t st, const gr_cu_router *r, const float *logits, const gr_bf16 *selection,
                 const uint16_t *given, uint32_t T, uint16_t *expert, float *weight);
/* d_logits [T, E] from d_weight [T, k]. */
void gr_cu_route_backward(cudaStream_t st, const gr_cu_router *r, const float *logits, const uint16_t *expert,
                          const float *d_weight, uint32_t T, gr_bf16 *d_logits);
/* weight [T, k] = plain [T, k] times each choice's expert's number, of scale [E]. */
void gr_cu_scale_choices(cudaStream_t st, uint32_t k, uint32_t T, const uint16_t *expert,
                         const gr_bf16 *scale, const float *plain, float *weight);
/* grad [E] += the sum over an expert's choices of d_weight [T, k] times plain. */
void gr_cu_scale_choices_sums(cudaStream_t st, uint32_t E, uint32_t k, uint32_t T, const uint16_t *expert,
                              const float *plain, const float *d_weight, void *grad, gr_cu_dtype type);

/* ---- counting: as gr_experts_ops (ops/kernels/experts.h) says ---- */

void gr_cu_experts_compare(cudaStream_t st, uint32_t k, uint32_t T, const uint16_t *expert,
                           const uint16_t *recorded, double *tokens, double *compared, double *differ,
                           uint32_t *differs);
void gr_cu_experts_count(cudaStream_t st, uint32_t E, uint32_t k, uint32_t T, const uint16_t *expert,
                         double *load);
void gr_cu_experts_shares(cudaStream_t st, uint32_t E, uint32_t T, const float *logits, double *share);
void gr_cu_experts_pull(cudaStream_t st, uint32_t routers, uint32_t E, uint32_t k, double coefficient,
                        const double *load, float *pull);
void gr_cu_experts_balance_backward(cudaStream_t st, uint32_t E, uint32_t T, const float *logits,
                                    const float *pull, gr_bf16 *d_logits);

/* ---- dispatch and combine ---- */

typedef struct gr_cu_dispatch {
    uint32_t *first;  /* [E + 1] */
    uint32_t *row;    /* [T, k] */
    uint32_t *choice; /* [R] */
} gr_cu_dispatch;
/* Counts of each block of GR_CU_SORT_TOKENS tokens. */
static inline uint64_t gr_cu_dispatch_ws(uint32_t E, uint32_t T)
{
    return UINT64_C(4) * E * ((T + GR_CU_SORT_TOKENS - UINT64_C(1)) / GR_CU_SORT_TOKENS);
}
void gr_cu_dispatch_rows(cudaStream_t st, uint32_t E, uint32_t k, uint32_t T, const uint16_t *expert,
                         const gr_cu_dispatch *to, void *ws);
/* rows [R, H] = x[choice / k] */
void gr_cu_gather_rows(cudaStream_t st, const uint32_t *choice, uint32_t k, uint32_t R, uint32_t H,
                       const gr_bf16 *x, gr_bf16 *rows);
/* y [T, H] = base (NULL: 0) + the sum over j of scale weight[t, j] (NULL: scale) rows[row[t, j]], in the
 * order of j. */
void gr_cu_combine_rows(cudaStream_t st, const uint32_t *row, uint32_t k, uint32_t T, uint32_t H,
                        const gr_bf16 *rows, const float *weight, const gr_bf16 *base, float scale,
                        gr_bf16 *y);
/* row_expert [R] = expert[choice] % held; row_weight [R] = weight[choice], where weight is not NULL. */
void gr_cu_choice_rows(cudaStream_t st, const uint32_t *choice, uint32_t R, uint32_t held,
                       const uint16_t *expert, const float *weight, uint16_t *row_expert, float *row_weight);
/* to[choice] = rows [R] */
void gr_cu_choice_back(cudaStream_t st, const uint32_t *choice, uint32_t R, const float *rows, float *to);

/* ---- activation ---- */

typedef enum gr_cu_activation { GR_CU_SILU, GR_CU_GELU_TANH, GR_CU_SWIGLU_OAI } gr_cu_activation;
typedef struct gr_cu_expert_act {
    gr_cu_activation act;
    float limit; /* of GR_CU_SWIGLU_OAI */
    uint32_t rows, inner;
} gr_cu_expert_act;
void gr_cu_experts_act(cudaStream_t st, const gr_cu_expert_act *a, const gr_bf16 *gate_up, gr_bf16 *h);
/* weighted == dh is fine. base [R] or NULL. choice NULL: weights are 1 and have no gradient. */
void gr_cu_experts_act_backward(cudaStream_t st, const gr_cu_expert_act *a, const uint32_t *choice,
                                const float *weight, const float *base, const gr_bf16 *gate_up,
                                const gr_bf16 *dh, gr_bf16 *d_gate_up, gr_bf16 *weighted, float *d_weight);
/* dot [R] = dy [R, H] . bias_e [H] */
void gr_cu_experts_bias_dot(cudaStream_t st, const uint32_t *first, uint32_t E, uint32_t R, uint32_t H,
                            const gr_bf16 *dy, const gr_bf16 *bias, float *dot);
/* grad_e [cols] += the sum over the rows of e, in their order, of weight[choice] (NULL: 1) dy [R, cols]. */
void gr_cu_experts_bias_backward(cudaStream_t st, const gr_cu_dispatch *d, uint32_t E, uint32_t cols,
                                 const gr_bf16 *dy, const float *weight, void *grad, gr_cu_dtype grad_type);

/* ---- products of groups of rows: Hopper's tensor cores ---- */

typedef enum gr_cu_experts_form {
    GR_CU_EXPERTS_Y,  /* d [R, out] = a [R, in] w_e^T + bias_e; b: w [E, out, in] */
    GR_CU_EXPERTS_DX, /* d [R, in] = a [R, out] w_e;            b: w */
    GR_CU_EXPERTS_DW, /* d_e [out, in] += a^T b over the rows of e; a [R, out], b [R, in] */
} gr_cu_experts_form;
typedef struct gr_cu_experts_product {
    gr_cu_experts_form form;
    uint32_t experts, rows, in, out;
    const uint32_t *first; /* [E + 1], of which first[E] is at most rows */
    const gr_bf16 *a, *b;
    const gr_bf16 *bias; /* [E, out] of GR_CU_EXPERTS_Y, or NULL */
    void *d;
    gr_cu_dtype type; /* of d, of GR_CU_EXPERTS_DW; else it is bf16 */
} gr_cu_experts_product;
/* Each element is one chain of the same instructions over its terms, wherever its tile lies: the bits of a
 * row of _Y and _DX follow from that row and its expert alone. Each expert's weights are read once for every
 * 256 rows that it has (every 512 columns of them for what is left), so few rows cost the reading of the
 * experts they touch. false: not launched; the device is no Hopper GPU, in or out is no multiple of 8, or
 * CUDA's last error says why. */
bool gr_cu_experts_product_run(cudaStream_t st, const gr_cu_experts_product *p);

#ifdef __cplusplus
}
#endif

#endif
