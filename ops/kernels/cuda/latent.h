/* ops/kernels/cuda/latent.h: the kernels of latent attention on CUDA (letters and forms:
 * ops/kernels/latent.h).
 *
 * Dimensions are multiples of 8, R at most GR_CU_LATENT_RANK and P at most GR_CU_LATENT_ROPE. Row-major bf16,
 * pointers aligned to 16 bytes. Each only enqueues and is safe under capture; no result depends on what else
 * is in the batch, and no sum has an order left to chance.
 */
#ifndef GR_OPS_KERNELS_CUDA_LATENT_H
#define GR_OPS_KERNELS_CUDA_LATENT_H

#include "ops/kernels/cuda/launch.h"

#ifdef __cplusplus
extern "C" {
#endif

enum { GR_CU_LATENT_RANK = 512, GR_CU_LATENT_ROPE = 64 };

typedef struct gr_cu_latent {
    uint32_t heads, nope, rope, v, rank;
    uint32_t n_tokens, n_seqs, longest; /* longest: bound of the new tokens of one sequence */
    float scale;
    const uint32_t *offset; /* [n_seqs + 1] */
    const uint32_t *cached; /* [n_seqs] tokens before; NULL: none */
    const uint32_t *length; /* [n_seqs] one new token each: keys, that one included; 0: none, its out is zero.
                               NULL: cached counts */
    const uint32_t *table;  /* [n_seqs, table_stride] blocks; NULL: rows are packed, [n_tokens, R + P] */
    uint32_t table_stride;
} gr_cu_latent;

/* Parts of rows that are rotated, in place: head h of token t at x + t ld + h stride. */
typedef struct gr_cu_latent_rope {
    gr_bf16 *x;
    uint32_t ld, heads, stride, dims;
    const float *frequency; /* [dims / 2] */
    const int32_t *position;
    float factor, sign; /* sign -1: back */
    bool interleaved;
} gr_cu_latent_rope;
void gr_cu_latent_rotate(cudaStream_t st, const gr_cu_latent_rope *r, uint32_t n_tokens);

/* rows [T, width] to pool + slot[t] width; slot UINT32_MAX: not stored. */
void gr_cu_latent_store(cudaStream_t st, const gr_bf16 *rows, const uint32_t *slot, uint32_t n_tokens,
                        uint32_t width, gr_bf16 *pool);

/* For each of so many heads c_h [m, n] = a_h [m, k] times b_h, which is [n, k] where turned, else [k, n];
 * head h of a begins at a + h a_head, and so on; ld: between rows. Sums go in the order of k. */
typedef struct gr_cu_latent_product {
    uint32_t heads, m, n, k;
    const gr_bf16 *a, *b;
    gr_bf16 *c;
    uint64_t a_ld, b_ld, c_ld, a_head, b_head, c_head;
    bool turned;
} gr_cu_latent_product;
void gr_cu_latent_products(cudaStream_t st, const gr_cu_latent_product *p);

/* The parts of queries that are rotated to theirs in wide [T, N (R + P)]. */
void gr_cu_latent_widen(cudaStream_t st, const gr_cu_latent *l, const gr_bf16 *queries, gr_bf16 *wide);

/* mixed [T, N R] of wide [T, N (R + P)]; rows: packed ones, or the pool. */
void gr_cu_latent_attention(cudaStream_t st, const gr_cu_latent *l, const gr_bf16 *wide, const gr_bf16 *rows,
                            gr_bf16 *mixed);

/* qkv [T, 3 N D] of queries [T, N D], kv [T, N (A + V)] and key [T, P], rows of key ld apart; and back, where
 * key is the sum over heads in their order. */
void gr_cu_latent_expand(cudaStream_t st, const gr_cu_latent *l, const gr_bf16 *queries, const gr_bf16 *kv,
                         const gr_bf16 *key, uint32_t ld, gr_bf16 *qkv);
void gr_cu_latent_expand_backward(cudaStream_t st, const gr_cu_latent *l, const gr_bf16 *dqkv,
                                  gr_bf16 *queries, gr_bf16 *kv, gr_bf16 *key, uint32_t ld);

#ifdef __cplusplus
}
#endif

#endif
