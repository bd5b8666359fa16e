/* ops/simd/simd.h: the inner loops of the CPU kernels, once for each instruction set; the best one is chosen
 * at run time. All sets give the same bits: every multiply-add is fused, every sum has one order (in k, or in
 * 16 lanes by index and then as v_sum of ops/simd/vec16.h does).
 *
 * Threads: all functions are pure; any thread may call them.
 */
#ifndef GR_OPS_SIMD_SIMD_H
#define GR_OPS_SIMD_SIMD_H

#include "ops/simd/moments.h"
#include "runtime/base/base.h"

/* Row stride in floats of the left operand of mm_rows and mm_cols. A constant, so that one register and an
 * offset address every row; not a power of two, so that rows lie in different cache sets. */
#define GR_LDA     272
#define GR_KC      256 /* terms at most in one call; columns of a score panel */
#define GR_NORMALS 256 /* made at once */
#define GR_MR      12  /* left operands are readable up to a multiple of this many rows */

typedef struct gr_mm { /* c [m, 16 or 32] = (add ? c : 0) + a b, each element one chain of fma over k */
    size_t m, k;
    const float *a;       /* mm_rows: a[i GR_LDA + p]; mm_cols: a[p GR_LDA + i] */
    const float *b0, *b1; /* b0[p ldb + 0..15] is columns 0..15, b1 the next 16, or NULL */
    size_t ldb;
    float *c;
    size_t ldc;
    bool add;
} gr_mm;

/* Of an optimizer (ops/kernels/kernels.h). */
typedef struct gr_optim_consts {
    float keep;            /* 1 - lr weight_decay */
    float b1, beta2, b2;   /* b1 = 1 - beta1, b2 = 1 - beta2 */
    float momentum, decay; /* SGD: beta1, weight_decay */
    float step_size;       /* lr; AdamW: over 1 - beta1^step */
    float inv_sqrt_bc2;    /* 1 / sqrt(1 - beta2^step) */
    float eps, grad_scale;
} gr_optim_consts;

typedef struct gr_simd {
    const char *name;

    /* ---- matrices ---- */
    void (*mm_rows)(const gr_mm *t);
    void (*mm_cols)(const gr_mm *t);
    /* c[j ldc + i] = (add ? itself : 0) + sum over p of w[i ldw + p] xt[p ldx + j], for i < n, j < m;
     * ldx a multiple of 16, at least m. For few m: w is read in place. */
    void (*mm_thin)(size_t n, size_t m, size_t k, const float *w, size_t ldw, const float *xt, size_t ldx,
                    float *c, size_t ldc, bool add);
    /* dst[j ldd + i] = src[i lds + j] for i < rows, j < cols, and 0 for i from rows to a multiple of 16. */
    void (*transpose)(const float *src, size_t lds, size_t rows, size_t cols, float *dst, size_t ldd);

    /* ---- rows of n floats ---- */
    void (*add)(float *y, const float *x, size_t n);                                  /* y += x */
    void (*scale)(float *y, const float *x, float a, size_t n);                       /* y = a x */
    void (*axpy)(float *y, const float *x, float a, size_t n);                        /* y += a x */
    void (*mul)(float *y, const float *x, size_t n);                                  /* y *= x */
    float (*dot)(const float *x, const float *y, size_t n);                           /* 16 lanes */
    void (*rms_apply)(float *y, const float *x, const float *w, float inv, size_t n); /* y = (x inv) w */
    /* dx = inv (dy w) - c x, plus base where not NULL */
    void (*rms_back)(float *dx, const float *base, const float *dy, const float *x, const float *w, float inv,
                     float c, size_t n);
    float (*dot3)(const float *x, const float *y, const float *z, size_t n);       /* sum of x y z */
    void (*mul_axpy)(float *g, const float *x, const float *y, float a, size_t n); /* g += (a x) y */
    void (*silu_mul)(float *y, const float *g, const float *u, size_t n);          /* y = silu(g) u */
    void (*silu_mul_back)(float *dg, float *du, const float *dy, const float *g, const float *u, size_t n);
    /* a, b [n]: (a, b) = (a c - b s, b c + a s): rotation by an angle a pair; sign -1 turns back */
    void (*rotate)(float *a, float *b, const float *c, const float *s, float sign, size_t n);

    /* ---- softmax ---- */
    float (*max)(const float *x, size_t n);
    /* x = exp(x - shift); adds the sum of lanes to lanes[16] */
    void (*exp_sum)(float *x, float shift, float lanes[16], size_t n);
    /* Sums over a row of logits z: of e = exp(z - shift), e (z - shift) and e^2, in double over blocks of
     * 1024; block, where not NULL, receives the sum of e of each block. */
    void (*softmax_sums)(const float *z, float shift, size_t n, double sums[3], double *block);
    /* z = inv_t (d_logprob (0 - p) - d_entropy p (log p + entropy)), p = exp(z - lse) */
    void (*softmax_back)(float *z, float lse, float entropy, float d_logprob, float d_entropy, float inv_t,
                         size_t n);
    /* p = exp(p - lse), ds = p (ds - delta), for i < n; 0 from n to n_all */
    void (*attend_back)(float *p, float *ds, float lse, float delta, size_t n, size_t n_all);
    /* x = cap tanh(x / cap); slope, where not NULL: the derivative */
    void (*softcap)(float *x, float *slope, float cap, size_t n);

    /* ---- flat arrays ---- */
    double (*sum_squares)(const float *x, size_t n);
    /* dst = std times standard normals: four of each counter from this one on, of a stream of a seed */
    void (*normals)(uint64_t seed, uint64_t stream, uint64_t counter, double std, float *dst);
    void (*adamw)(const gr_optim_consts *k, float *w, const float *g, float *m, float *v, size_t n);
    void (*lion)(const gr_optim_consts *k, float *w, const float *g, float *m, size_t n);
    void (*sgd)(const gr_optim_consts *k, float *w, const float *g, float *m, size_t n);
    /* Moments of 8 bits (ops/simd/moments.h), first ones or (root) second ones, from the begin of a block on.
     * codes and scales are whole blocks, x [n]. by NULL: to the nearest. */
    void (*moments_widen)(bool root, const void *codes, const float *scales, float *x, size_t n);
    void (*moments_narrow)(bool root, const float *x, size_t n, const gr_chance *by, void *codes,
                           float *scales);
    /* fp32 and the halves of runtime/base/half.h, [n] each. */
    void (*halves_join)(const uint16_t *high, const uint16_t *low, float *x, size_t n);
    void (*halves_split)(const float *x, uint16_t *high, uint16_t *low, size_t n);
} gr_simd;

/* The best set of this machine. */
const gr_simd *gr_simd_best(void);

/* The sets this machine can run, best first; returns how many. For tests. */
#define GR_SIMD_MAX 3
size_t gr_simd_all(const gr_simd *out[GR_SIMD_MAX]);

/* Sum of 16 lanes as everywhere else. */
static inline float gr_lanes_sum(const float lanes[16])
{
    float t[16];
    for (int i = 0; i < 16; i++) t[i] = lanes[i];
    for (int h = 8; h; h /= 2)
        for (int i = 0; i < h; i++) t[i] += t[i + h];
    return t[0];
}

#if defined(__x86_64__)
extern const gr_simd gr_simd_avx512, gr_simd_avx2;
#endif
extern const gr_simd gr_simd_portable;

#endif
