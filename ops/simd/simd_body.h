/* ops/simd/simd_body.h: the functions of ops/simd/simd.h in terms of ops/simd/vec16.h. Included once by each
 * of simd_avx512.c, simd_avx2.c and simd_portable.c, which define GR_VEC, SIMD and MR, NV        rows and
 * 16-column vectors of the tile that mm_rows and mm_cols keep in registers THIN_MR       rows of the tile of
 * mm_thin MR divides GR_MR.
 */
#include "ops/simd/vec16.h"
#include "runtime/base/half.h"
#include "runtime/base/philox.h"

/* ---- matrices ------------------------------------------------------------------------------------------ */

/* One tile. mr, nv, rs and cs are constants at every call, so that the loops over them unroll and c stays in
 * registers. */
INLINE void tile(const unsigned mr, const unsigned nv, const size_t rs, const size_t cs, const gr_mm *t,
                 const float *a, float *c, size_t rows)
{
    v16 acc[MR][NV];
    UNROLL
    for (unsigned i = 0; i < mr; i++) {
        UNROLL
        for (unsigned v = 0; v < nv; v++)
            acc[i][v] = t->add && i < rows ? v_load(c + i * t->ldc + 16 * v) : v_set(0);
    }
    const float *b0 = t->b0, *b1 = t->b1;
    const size_t ldb = t->ldb;
    for (size_t p = t->k; p; p--) {
        v16 x[NV];
        x[0] = v_load(b0);
        if (nv > 1) x[NV - 1] = v_load(b1);
        UNROLL
        for (unsigned i = 0; i < mr; i++) {
            v16 s = v_set(a[i * rs]);
            UNROLL
            for (unsigned v = 0; v < nv; v++) acc[i][v] = v_fma(s, x[v], acc[i][v]);
        }
        a += cs;
        b0 += ldb;
        if (nv > 1) b1 += ldb;
    }
    UNROLL
    for (unsigned i = 0; i < mr; i++) {
        if (i < rows) {
            UNROLL
            for (unsigned v = 0; v < nv; v++) v_store(c + i * t->ldc + 16 * v, acc[i][v]);
        }
    }
}

INLINE void tiles(const unsigned nv, const size_t rs, const size_t cs, const gr_mm *t, float *c)
{
    size_t i = 0;
    for (; i + MR <= t->m; i += MR) tile(MR, nv, rs, cs, t, t->a + i * rs, c + i * t->ldc, MR);
    size_t rows = t->m - i;
    if (rows > 2 * MR / 3)
        tile(MR, nv, rs, cs, t, t->a + i * rs, c + i * t->ldc, rows);
    else if (rows > MR / 3)
        tile(2 * MR / 3, nv, rs, cs, t, t->a + i * rs, c + i * t->ldc, rows);
    else if (rows)
        tile(MR / 3, nv, rs, cs, t, t->a + i * rs, c + i * t->ldc, rows);
}

INLINE void mm(const size_t rs, const size_t cs, const gr_mm *t)
{
    if (NV > 1 && t->b1) {
        tiles(NV, rs, cs, t, t->c);
        return;
    }
    tiles(1, rs, cs, t, t->c);
    if (t->b1) {
        gr_mm right = *t;
        right.b0 = t->b1;
        tiles(1, rs, cs, &right, t->c + 16);
    }
}

static void mm_rows(const gr_mm *t)
{
    mm(GR_LDA, 1, t);
}

static void mm_cols(const gr_mm *t)
{
    mm(1, GR_LDA, t);
}

INLINE void thin_tile(const unsigned mr, const unsigned nv, size_t m, size_t k, const float *w, size_t ldw,
                      const float *xt, size_t ldx, float *c, size_t ldc, bool add)
{
    v16 acc[THIN_MR][NV];
    float out[THIN_MR][16 * NV];
    for (size_t i = 0; add && i < mr; i++)
        for (size_t j = 0; j < m; j++) out[i][j] = c[j * ldc + i];
    UNROLL
    for (unsigned i = 0; i < mr; i++) {
        UNROLL
        for (unsigned v = 0; v < nv; v++) acc[i][v] = add ? v_load_n(out[i] + 16 * v, m - 16 * v) : v_set(0);
    }
    for (size_t p = 0; p < k; p++) {
        v16 x[NV];
        x[0] = v_load(xt + p * ldx);
        if (nv > 1) x[NV - 1] = v_load(xt + p * ldx + 16);
        UNROLL
        for (unsigned i = 0; i < mr; i++) {
            v16 s = v_set(w[i * ldw + p]);
            UNROLL
            for (unsigned v = 0; v < nv; v++) acc[i][v] = v_fma(s, x[v], acc[i][v]);
        }
    }
    UNROLL
    for (unsigned i = 0; i < mr; i++) {
        UNROLL
        for (unsigned v = 0; v < nv; v++) v_store(out[i] + 16 * v, acc[i][v]);
    }
    for (size_t j = 0; j < m; j++)
        for (unsigned i = 0; i < mr; i++) c[j * ldc + i] = out[i][j];
}

static void mm_thin(size_t n, size_t m, size_t k, const float *w, size_t ldw, const float *xt, size_t ldx,
                    float *c, size_t ldc, bool add)
{
    for (size_t i = 0; i < n;) {
        const bool full = i + THIN_MR <= n;
        for (size_t j = 0; j < m;) {
            const size_t left = m - j, cols = left > 16 && NV > 1 ? GR_MIN(left, 32) : GR_MIN(left, 16);
            const float *wi = w + i * ldw, *xj = xt + j;
            float *cij = c + j * ldc + i;
            if (full && cols > 16)
                thin_tile(THIN_MR, NV, cols, k, wi, ldw, xj, ldx, cij, ldc, add);
            else if (full)
                thin_tile(THIN_MR, 1, cols, k, wi, ldw, xj, ldx, cij, ldc, add);
            else if (cols > 16)
                thin_tile(1, NV, cols, k, wi, ldw, xj, ldx, cij, ldc, add);
            else
                thin_tile(1, 1, cols, k, wi, ldw, xj, ldx, cij, ldc, add);
            j += cols;
        }
        i += full ? THIN_MR : 1;
    }
}

#if GR_VEC == 512
/* 16 x 16 by four rounds of exchanging ever larger parts of rows. */
INLINE void transpose_block(const float *src, size_t lds, float *dst, size_t ldd)
{
    __m512 r[16], t[16];
    UNROLL
    for (int i = 0; i < 16; i++) r[i] = _mm512_loadu_ps(src + (size_t)i * lds);
    UNROLL
    for (int i = 0; i < 16; i += 2) {
        t[i] = _mm512_unpacklo_ps(r[i], r[i + 1]);
        t[i + 1] = _mm512_unpackhi_ps(r[i], r[i + 1]);
    }
    UNROLL
    for (int i = 0; i < 16; i += 4) {
        r[i] = _mm512_shuffle_ps(t[i], t[i + 2], 0x44);
        r[i + 1] = _mm512_shuffle_ps(t[i], t[i + 2], 0xee);
        r[i + 2] = _mm512_shuffle_ps(t[i + 1], t[i + 3], 0x44);
        r[i + 3] = _mm512_shuffle_ps(t[i + 1], t[i + 3], 0xee);
    }
    UNROLL
    for (int i = 0; i < 4; i++) {
        t[i] = _mm512_shuffle_f32x4(r[i], r[i + 4], 0x88);
        t[i + 4] = _mm512_shuffle_f32x4(r[i], r[i + 4], 0xdd);
        t[i + 8] = _mm512_shuffle_f32x4(r[i + 8], r[i + 12], 0x88);
        t[i + 12] = _mm512_shuffle_f32x4(r[i + 8], r[i + 12], 0xdd);
    }
    UNROLL
    for (int i = 0; i < 4; i++) {
        _mm512_storeu_ps(dst + (size_t)i * ldd, _mm512_shuffle_f32x4(t[i], t[i + 8], 0x88));
        _mm512_storeu_ps(dst + (size_t)(i + 8) * ldd, _mm512_shuffle_f32x4(t[i], t[i + 8], 0xdd));
        _mm512_storeu_ps(dst + (size_t)(i + 4) * ldd, _mm512_shuffle_f32x4(t[i + 4], t[i + 12], 0x88));
        _mm512_storeu_ps(dst + (size_t)(i + 12) * ldd, _mm512_shuffle_f32x4(t[i + 4], t[i + 12], 0xdd));
    }
}
#else
INLINE void transpose_block(const float *src, size_t lds, float *dst, size_t ldd)
{
    for (size_t j = 0; j < 16; j++)
        for (size_t i = 0; i < 16; i++) dst[j * ldd + i] = src[i * lds + j];
}
#endif

static void transpose(const float *src, size_t lds, size_t rows, size_t cols, float *dst, size_t ldd)
{
    for (size_t i = 0; i < rows; i += 16) {
        const size_t n = GR_MIN(rows - i, 16);
        size_t j = 0;
        if (n == 16)
            for (; j + 16 <= cols; j += 16) transpose_block(src + i * lds + j, lds, dst + j * ldd + i, ldd);
        for (; j < cols; j++)
            for (size_t r = 0; r < 16; r++) dst[j * ldd + i + r] = r < n ? src[(i + r) * lds + j] : 0;
    }
}

/* ---- rows ---------------------------------------------------------------------------------------------- */

#define EACH16(i, n) for (size_t i = 0; i < (n); i += 16)

static void add(float *y, const float *x, size_t n)
{
    EACH16(i, n)
    v_store_n(y + i, v_add(v_load_n(y + i, n - i), v_load_n(x + i, n - i)), n - i);
}

static void scale(float *y, const float *x, float a, size_t n)
{
    EACH16(i, n)
    v_store_n(y + i, v_mul(v_load_n(x + i, n - i), v_set(a)), n - i);
}

static void axpy(float *y, const float *x, float a, size_t n)
{
    EACH16(i, n)
    v_store_n(y + i, v_fma(v_set(a), v_load_n(x + i, n - i), v_load_n(y + i, n - i)), n - i);
}

static void mul(float *y, const float *x, size_t n)
{
    EACH16(i, n)
    v_store_n(y + i, v_mul(v_load_n(y + i, n - i), v_load_n(x + i, n - i)), n - i);
}

static float dot(const float *x, const float *y, size_t n)
{
    v16 s = v_set(0);
    EACH16(i, n)
    s = v_fma(v_load_n(x + i, n - i), v_load_n(y + i, n - i), s);
    return v_sum(s);
}

static float dot3(const float *x, const float *y, const float *z, size_t n)
{
    v16 s = v_set(0);
    EACH16(i, n)
    s = v_fma(v_mul(v_load_n(x + i, n - i), v_load_n(y + i, n - i)), v_load_n(z + i, n - i), s);
    return v_sum(s);
}

static void mul_axpy(float *g, const float *x, const float *y, float a, size_t n)
{
    EACH16(i, n)
    {
        v16 ax = v_mul(v_set(a), v_load_n(x + i, n - i));
        v_store_n(g + i, v_fma(ax, v_load_n(y + i, n - i), v_load_n(g + i, n - i)), n - i);
    }
}

static void rms_apply(float *y, const float *x, const float *w, float inv, size_t n)
{
    EACH16(i, n)
    v_store_n(y + i, v_mul(v_mul(v_load_n(x + i, n - i), v_set(inv)), v_load_n(w + i, n - i)), n - i);
}

static void rms_back(float *dx, const float *base, const float *dy, const float *x, const float *w, float inv,
                     float c, size_t n)
{
    EACH16(i, n)
    {
        v16 g = v_mul(v_set(inv), v_mul(v_load_n(dy + i, n - i), v_load_n(w + i, n - i)));
        g = v_fma(v_set(-c), v_load_n(x + i, n - i), g);
        if (base) g = v_add(v_load_n(base + i, n - i), g);
        v_store_n(dx + i, g, n - i);
    }
}

INLINE v16 sigmoid(v16 x)
{
    return v_div(v_set(1), v_add(v_set(1), v_exp(v_sub(v_set(0), x))));
}

static void silu_mul(float *y, const float *g, const float *u, size_t n)
{
    EACH16(i, n)
    {
        v16 a = v_load_n(g + i, n - i);
        v_store_n(y + i, v_mul(v_mul(a, sigmoid(a)), v_load_n(u + i, n - i)), n - i);
    }
}

static void silu_mul_back(float *dg, float *du, const float *dy, const float *g, const float *u, size_t n)
{
    EACH16(i, n)
    {
        v16 a = v_load_n(g + i, n - i), d = v_load_n(dy + i, n - i), s = sigmoid(a), y = v_mul(a, s);
        v16 slope = v_fma(y, v_sub(v_set(1), s), s); /* s + a s (1 - s) */
        v16 da = v_mul(v_mul(d, v_load_n(u + i, n - i)), slope);
        v_store_n(du + i, v_mul(d, y), n - i);
        v_store_n(dg + i, da, n - i);
    }
}

static void rotate(float *a, float *b, const float *c, const float *s, float sign, size_t n)
{
    EACH16(i, n)
    {
        v16 x = v_load_n(a + i, n - i), y = v_load_n(b + i, n - i);
        v16 co = v_load_n(c + i, n - i), si = v_mul(v_set(sign), v_load_n(s + i, n - i));
        v_store_n(a + i, v_sub(v_mul(x, co), v_mul(y, si)), n - i);
        v_store_n(b + i, v_add(v_mul(y, co), v_mul(x, si)), n - i);
    }
}

/* ---- softmax ------------------------------------------------------------------------------------------- */

static float max(const float *x, size_t n)
{
    v16 m = v_set(-INFINITY);
    EACH16(i, n)
    m = v_max(v_first(v_load_n(x + i, n - i), n - i, -INFINITY), m);
    return v_max_lane(m);
}

static void exp_sum(float *x, float shift, float lanes[16], size_t n)
{
    v16 s = v_load(lanes);
    EACH16(i, n)
    {
        v16 e = v_exp(v_sub(v_load_n(x + i, n - i), v_set(shift)));
        v_store_n(x + i, e, n - i);
        s = v_add(s, v_first(e, n - i, 0));
    }
    v_store(lanes, s);
}

static void softmax_sums(const float *z, float shift, size_t n, double sums[3], double *block)
{
    double s = 0, sz = 0, s2 = 0;
    for (size_t from = 0; from < n; from += 1024) {
        const size_t len = GR_MIN(n - from, 1024);
        v16 a = v_set(0), b = v_set(0), c = v_set(0);
        EACH16(i, len)
        {
            v16 d = v_sub(v_load_n(z + from + i, len - i), v_set(shift));
            v16 e = v_first(v_exp(d), len - i, 0);
            a = v_add(a, e);
            b = v_fma(e, v_max(v_set(-1000), d), b); /* a logit of minus infinity: 0, not 0 times it */
            c = v_fma(e, e, c);
        }
        const double sum = (double)v_sum(a);
        if (block) block[from / 1024] = sum;
        s += sum;
        sz += (double)v_sum(b);
        s2 += (double)v_sum(c);
    }
    sums[0] = s;
    sums[1] = sz;
    sums[2] = s2;
}

static void softmax_back(float *z, float lse, float entropy, float d_logprob, float d_entropy, float inv_t,
                         size_t n)
{
    EACH16(i, n)
    {
        v16 logp = v_max(v_set(-1000), v_sub(v_load_n(z + i, n - i), v_set(lse))), p = v_exp(logp);
        v16 d = v_fma(v_set(-d_entropy), v_add(logp, v_set(entropy)), v_set(-d_logprob));
        v_store_n(z + i, v_mul(v_set(inv_t), v_mul(p, d)), n - i);
    }
}

static void attend_back(float *p, float *ds, float lse, float delta, size_t n, size_t n_all)
{
    EACH16(i, n_all)
    {
        const size_t live = n > i ? n - i : 0;
        v16 e = v_first(v_exp(v_sub(v_load(p + i), v_set(lse))), live, 0);
        v16 d = v_first(v_mul(e, v_sub(v_load(ds + i), v_set(delta))), live, 0);
        v_store(p + i, e);
        v_store(ds + i, d);
    }
}

/* tanh x = 2 sigmoid(2 x) - 1: errors are some 1e-7 of 1, which times cap is what a score's own rounding is.
 */
static void softcap(float *x, float *slope, float cap, size_t n)
{
    EACH16(i, n)
    {
        v16 t = v_fma(v_set(2), sigmoid(v_mul(v_load_n(x + i, n - i), v_set(2 / cap))), v_set(-1));
        v_store_n(x + i, v_mul(v_set(cap), t), n - i);
        if (slope) v_store_n(slope + i, v_fma(v_sub(v_set(0), t), t, v_set(1)), n - i);
    }
}

/* ---- flat arrays --------------------------------------------------------------------------------------- */

static double sum_squares(const float *x, size_t n)
{
    double lane[16] = {0}, s = 0;
    size_t i = 0;
    for (; i + 16 <= n; i += 16) {
        UNROLL
        for (size_t j = 0; j < 16; j++) lane[j] += (double)x[i + j] * (double)x[i + j];
    }
    for (size_t j = 0; i + j < n; j++) lane[j] += (double)x[i + j] * (double)x[i + j];
    for (size_t j = 0; j < 16; j++) s += lane[j];
    return s;
}

static void adamw(const gr_optim_consts *k, float *w, const float *g, float *m, float *v, size_t n)
{
    const v16 b1 = v_set(k->b1), beta2 = v_set(k->beta2), b2 = v_set(k->b2);
    EACH16(i, n)
    {
        v16 gi = v_mul(v_load_n(g + i, n - i), v_set(k->grad_scale));
        v16 mi = v_load_n(m + i, n - i), wi = v_mul(v_load_n(w + i, n - i), v_set(k->keep));
        mi = v_fma(v_sub(gi, mi), b1, mi);
        v16 vi = v_fma(v_mul(b2, gi), gi, v_mul(v_load_n(v + i, n - i), beta2));
        v16 below = v_fma(v_sqrt(vi), v_set(k->inv_sqrt_bc2), v_set(k->eps));
        v_store_n(m + i, mi, n - i);
        v_store_n(v + i, vi, n - i);
        v_store_n(w + i, v_sub(wi, v_div(v_mul(v_set(k->step_size), mi), below)), n - i);
    }
}

static void lion(const gr_optim_consts *k, float *w, const float *g, float *m, size_t n)
{
    const v16 zero = v_set(0), one = v_set(1), b1 = v_set(k->b1), b2 = v_set(k->b2);
    EACH16(i, n)
    {
        v16 gi = v_mul(v_load_n(g + i, n - i), v_set(k->grad_scale)), mi = v_load_n(m + i, n - i);
        v16 wi = v_mul(v_load_n(w + i, n - i), v_set(k->keep)), off = v_sub(gi, mi);
        v16 c = v_add(mi, v_mul(off, b1));
        v16 sign = v_less(zero, c, one, v_less(c, zero, v_set(-1), zero));
        v_store_n(m + i, v_add(mi, v_mul(off, b2)), n - i);
        v_store_n(w + i, v_sub(wi, v_mul(v_set(k->step_size), sign)), n - i);
    }
}

static void sgd(const gr_optim_consts *k, float *w, const float *g, float *m, size_t n)
{
    EACH16(i, n)
    {
        v16 wi = v_load_n(w + i, n - i), gi = v_mul(v_load_n(g + i, n - i), v_set(k->grad_scale));
        v16 mi =
            v_add(v_mul(v_load_n(m + i, n - i), v_set(k->momentum)), v_add(gi, v_mul(wi, v_set(k->decay))));
        v_store_n(m + i, mi, n - i);
        v_store_n(w + i, v_sub(wi, v_mul(v_set(k->step_size), mi)), n - i);
    }
}

#include "ops/simd/normal_body.h"

#include "ops/simd/moments_body.h"

const gr_simd SIMD = {
    .name = SIMD_NAME,
    .mm_rows = mm_rows,
    .mm_cols = mm_cols,
    .mm_thin = mm_thin,
    .transpose = transpose,
    .add = add,
    .scale = scale,
    .axpy = axpy,
    .mul = mul,
    .dot = dot,
    .rms_apply = rms_apply,
    .rms_back = rms_back,
    .dot3 = dot3,
    .mul_axpy = mul_axpy,
    .silu_mul = silu_mul,
    .silu_mul_back = silu_mul_back,
    .rotate = rotate,
    .max = max,
    .exp_sum = exp_sum,
    .softmax_sums = softmax_sums,
    .softmax_back = softmax_back,
    .attend_back = attend_back,
    .softcap = softcap,
    .sum_squares = sum_squares,
    .normals = normals,
    .adamw = adamw,
    .lion = lion,
    .sgd = sgd,
    .moments_widen = moments_widen,
    .moments_narrow = moments_narrow,
    .halves_join = halves_join,
    .halves_split = halves_split,
};
