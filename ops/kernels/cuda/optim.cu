/* ops/kernels/cuda/optim.cu: optimizers, sums of squares, rounding to bf16: flat arrays, each read and
 * written once. A thread takes four elements at a time (16 bytes of fp32, 8 of bf16), twice, so that
 * neighbours touch neighbouring bytes in every array and all loads are in flight before the first use. Bound
 * by memory.
 */
#include "ops/kernels/checksum.h"
#include "ops/kernels/cuda/device.cuh"
#include "ops/simd/moments.h"

enum { BLOCK = 256, EACH = 4, TIMES = 2, TILE = BLOCK * EACH * TIMES /* elements of a block */ };

/* ---- optimizers
 * ------------------------------------------------------------------------------------------------- */

struct optim { /* constants, rounded to fp32 once they are computed, as ops/kernels/cpu/optim_cpu.c does */
    float keep, b1, beta2, b2, momentum, decay, step_size, inv_sqrt_bc2, eps, grad_scale;
};

/* Weights that are their own master. */
struct own_master {
    gr_bf16 *w;
    __device__ __forceinline__ void load4(uint64_t i, float (&f)[4]) const
    {
        gr_load4(w, i, f);
    }
    __device__ __forceinline__ void store4(uint64_t i, const float (&f)[4]) const
    {
        gr_store4(w, i, f);
    }
    __device__ __forceinline__ float get(uint64_t i) const
    {
        return gr_get(w + i);
    }
    __device__ __forceinline__ void put(uint64_t i, float x) const
    {
        gr_put(w + i, x);
    }
};

/* An fp32 copy beside them. */
struct copied_master {
    gr_bf16 *w;
    float *master;
    __device__ __forceinline__ void load4(uint64_t i, float (&f)[4]) const
    {
        gr_load4(master, i, f);
    }
    __device__ __forceinline__ void store4(uint64_t i, const float (&f)[4]) const
    {
        gr_store4(master, i, f);
        gr_store4(w, i, f);
    }
    __device__ __forceinline__ float get(uint64_t i) const
    {
        return master[i];
    }
    __device__ __forceinline__ void put(uint64_t i, float x) const
    {
        master[i] = x;
        gr_put(w + i, x);
    }
};

/* The low 16 bits beside them: gr_f32_join, gr_f32_high and gr_f32_low of runtime/base/half.h. */
struct split_master {
    gr_bf16 *w;
    uint16_t *low;
    static __device__ __forceinline__ float join(uint32_t high, uint32_t lower)
    {
        return __uint_as_float((high << 16) + lower - (lower & 0x8000u) * 2);
    }
    static __device__ __forceinline__ uint32_t bits_of(float x)
    {
        const uint32_t bits = __float_as_uint(x);
        return (bits & 0x7fffffffu) > 0x7f800000u ? 0x7fc00000u : bits;
    }
    __device__ __forceinline__ void load4(uint64_t i, float (&f)[4]) const
    {
        const uint2 h = *(const uint2 *)(w + i), l = *(const uint2 *)(low + i);
        f[0] = join(h.x & 0xffff, l.x & 0xffff), f[1] = join(h.x >> 16, l.x >> 16);
        f[2] = join(h.y & 0xffff, l.y & 0xffff), f[3] = join(h.y >> 16, l.y >> 16);
    }
    __device__ __forceinline__ void store4(uint64_t i, const float (&f)[4]) const
    {
        uint32_t h[4], l[4];
#pragma unroll
        for (int e = 0; e < 4; e++) {
            const uint32_t bits = bits_of(f[e]);
            h[e] = bits + 0x8000u, l[e] = bits & 0xffff;
        }
        *(uint2 *)(w + i) = make_uint2(h[0] >> 16 | (h[1] & 0xffff0000u), h[2] >> 16 | (h[3] & 0xffff0000u));
        *(uint2 *)(low + i) = make_uint2(l[0] | l[1] << 16, l[2] | l[3] << 16);
    }
    __device__ __forceinline__ float get(uint64_t i) const
    {
        return join(w[i], low[i]);
    }
    __device__ __forceinline__ void put(uint64_t i, float x) const
    {
        const uint32_t bits = bits_of(x);
        w[i] = (gr_bf16)((bits + 0x8000u) >> 16);
        low[i] = (uint16_t)bits;
    }
};

template <typename G, typename M, typename W> struct optim_arrays {
    W w;
    const G *g;
    M *m, *v; /* v: of optimizers with two moments */
    uint64_t n;
};

/* Loshchilov and Hutter, arXiv:1711.05101, in the order of torch.optim.AdamW. */
struct adamw {
    static constexpr bool two = true;
    static __device__ __forceinline__ void element(const optim &k, float &w, float g, float &m, float &v)
    {
        g *= k.grad_scale;
        m = fmaf(g - m, k.b1, m);
        v = fmaf(k.b2 * g, g, v * k.beta2);
        const float below = fmaf(sqrtf(v), k.inv_sqrt_bc2, k.eps);
        w = w * k.keep - k.step_size * m / below;
    }
};

/* Chen et al., arXiv:2302.06675. Rounded as on the CPU, where a sign would otherwise differ. */
struct lion {
    static constexpr bool two = false;
    static __device__ __forceinline__ void element(const optim &k, float &w, float g, float &m, float &)
    {
        const float off = __fsub_rn(__fmul_rn(g, k.grad_scale), m);
        const float c = __fadd_rn(m, __fmul_rn(off, k.b1)), sign = c > 0 ? 1.0f : c < 0 ? -1.0f : 0.0f;
        m = __fadd_rn(m, __fmul_rn(off, k.b2));
        w = __fsub_rn(__fmul_rn(w, k.keep), __fmul_rn(k.step_size, sign));
    }
};

/* torch.optim.SGD with momentum: weight decay is part of the gradient. */
struct sgd {
    static constexpr bool two = false;
    static __device__ __forceinline__ void element(const optim &k, float &w, float g, float &m, float &)
    {
        g = __fadd_rn(__fmul_rn(g, k.grad_scale), __fmul_rn(w, k.decay));
        m = __fadd_rn(__fmul_rn(m, k.momentum), g);
        w = __fsub_rn(w, __fmul_rn(k.step_size, m));
    }
};

template <typename O, typename G, typename M, typename W>
GR_KERNEL void __launch_bounds__(BLOCK) optim_kernel(const optim k, const optim_arrays<G, M, W> a)
{
    const uint64_t first = (uint64_t)blockIdx.x * TILE + threadIdx.x * EACH;
    float w[TIMES][EACH], g[TIMES][EACH], m[TIMES][EACH], v[TIMES][EACH];
#pragma unroll
    for (int j = 0; j < TIMES; j++) {
        const uint64_t i = first + j * BLOCK * EACH;
        if (i + EACH > a.n) continue;
        gr_load4(a.g, i, g[j]);
        gr_load4(a.m, i, m[j]);
        if (O::two) gr_load4(a.v, i, v[j]);
        a.w.load4(i, w[j]);
    }
#pragma unroll
    for (int j = 0; j < TIMES; j++) {
        const uint64_t i = first + j * BLOCK * EACH;
        if (i + EACH > a.n) continue;
#pragma unroll
        for (int e = 0; e < EACH; e++) O::element(k, w[j][e], g[j][e], m[j][e], v[j][e]);
        gr_store4(a.m, i, m[j]);
        if (O::two) gr_store4(a.v, i, v[j]);
        a.w.store4(i, w[j]);
    }
    if (blockIdx.x + 1 < gridDim.x) return;
    const uint64_t i = a.n / EACH * EACH + threadIdx.x; /* what is left of the last four */
    if (i >= a.n) return;
    float wi = a.w.get(i), mi = gr_get(a.m + i), vi = 0;
    if (O::two) vi = gr_get(a.v + i);
    O::element(k, wi, gr_get(a.g + i), mi, vi);
    gr_put(a.m + i, mi);
    if (O::two) gr_put(a.v + i, vi);
    a.w.put(i, wi);
}

/* ---- moments of 8 bits (ops/simd/moments.h) ----------------------------------------------------------- */

/* A thread has so many elements of a block of moments, and a quarter of a warp has a block: the more in a
 * thread, the fewer exchanges, and inverses of scales, for each. */
enum { EIGHT = 8, BLOCK_LANES = GR_MOMENT_BLOCK / EIGHT };

struct codes { /* of one moment; whole blocks */
    uint2 *eight;
    float *scale;
};

template <typename G, typename W> struct optim8_arrays {
    W w;
    const G *g;
    codes m, v; /* v: of optimizers with two moments */
    uint64_t n, first;
    uint32_t key;
};

/* How one moment and the other are coded: what is scaled of a value, and its code. */
struct first_moment {
    GR_DEVICE float least()
    {
        return GR_MOMENT_M_LEAST;
    }
    GR_DEVICE float size(float m)
    {
        return fabsf(m);
    }
    GR_DEVICE uint32_t code(float m, float, float scale, float inverse, uint32_t chance)
    {
        return (uint32_t)gr_moment_m_code(m, scale, inverse, chance) & 0xff;
    }
    GR_DEVICE float value(uint32_t code, float scale)
    {
        return gr_moment_m((int8_t)code, scale);
    }
};

struct second_moment {
    GR_DEVICE float least()
    {
        return GR_MOMENT_V_LEAST;
    }
    GR_DEVICE float size(float v)
    {
        return sqrtf(v);
    }
    GR_DEVICE uint32_t code(float, float root, float scale, float inverse, uint32_t chance)
    {
        return gr_moment_v_code(root, scale, inverse, chance);
    }
    GR_DEVICE float value(uint32_t code, float scale)
    {
        return gr_moment_v(code, scale);
    }
};

/* The largest of a block, by its bits: of numbers that are not negative these have the same order, and NaN is
 * above all. */
GR_DEVICE float block_scale(const float (&x)[EIGHT], float least)
{
    uint32_t most = __float_as_uint(least);
#pragma unroll
    for (int e = 0; e < EIGHT; e++) most = max(most, __float_as_uint(x[e]));
#pragma unroll
    for (int lane = BLOCK_LANES / 2; lane; lane /= 2) most = max(most, __shfl_xor_sync(GR_ALL, most, lane));
    return __uint_as_float(most);
}

template <typename K> GR_DEVICE void load_codes(const codes &c, uint64_t i, float (&x)[EIGHT])
{
    const uint2 eight = c.eight[i / EIGHT];
    const float scale = c.scale[i / GR_MOMENT_BLOCK];
#pragma unroll
    for (int e = 0; e < EIGHT; e++) x[e] = K::value((e < 4 ? eight.x : eight.y) >> 8 * (e % 4) & 0xff, scale);
}

/* All lanes call it; `there`: those whose block is. */
template <typename K>
GR_DEVICE void store_codes(const codes &c, uint64_t i, bool there, const float (&x)[EIGHT],
                           const uint32_t (&chance)[EIGHT])
{
    float size[EIGHT];
    uint32_t half[2] = {0, 0};
#pragma unroll
    for (int e = 0; e < EIGHT; e++) size[e] = K::size(x[e]);
    const float scale = block_scale(size, K::least()), inverse = gr_moment_inverse(scale);
#pragma unroll
    for (int e = 0; e < EIGHT; e++)
        half[e / 4] |= K::code(x[e], size[e], scale, inverse, chance[e]) << 8 * (e % 4);
    if (!there) return;
    c.eight[i / EIGHT] = make_uint2(half[0], half[1]);
    if (i % GR_MOMENT_BLOCK == 0) c.scale[i / GR_MOMENT_BLOCK] = scale;
}

/* Elements from i on. whole: all of them are there, and nothing is asked for each. */
template <typename O, typename G, typename W, bool whole>
GR_DEVICE void step8(const optim &k, const optim8_arrays<G, W> &a, uint64_t i)
{
    const uint64_t end = (a.n + GR_MOMENT_BLOCK - 1) / GR_MOMENT_BLOCK * GR_MOMENT_BLOCK;
    const bool there = whole || i < end;
    const uint32_t key = gr_moment_key(a.key, a.first + i), first = (uint32_t)(a.first + i);
    float w[2][4] = {{0}}, g[2][4] = {{0}}, m[EIGHT] = {0}, v[EIGHT] = {0};
    uint32_t chance[EIGHT];
    if (there) load_codes<first_moment>(a.m, i, m);
    if (there && O::two) load_codes<second_moment>(a.v, i, v);
#pragma unroll
    for (int h = 0; h < 2; h++) {
        if (!whole) continue;
        gr_load4(a.g, i + 4 * h, g[h]);
        a.w.load4(i + 4 * h, w[h]);
    }
#pragma unroll
    for (int e = 0; e < EIGHT; e++) {
        float &we = w[e / 4][e % 4], &ge = g[e / 4][e % 4];
        const bool is = whole || i + e < a.n;
        chance[e] = gr_moment_mix((first + e) ^ key);
        if (!whole && is) ge = gr_get(a.g + i + e), we = a.w.get(i + e);
        if (is) O::element(k, we, ge, m[e], v[e]);
        if (!is) m[e] = v[e] = 0;
        if (!whole && is) a.w.put(i + e, we);
    }
#pragma unroll
    for (int h = 0; h < 2; h++)
        if (whole) a.w.store4(i + 4 * h, w[h]);
    store_codes<first_moment>(a.m, i, there, m, chance);
    if (O::two) store_codes<second_moment>(a.v, i, there, v, chance);
}

/* All of a warp go through all of it, for they share scales. */
template <typename O, typename G, typename W>
GR_KERNEL void __launch_bounds__(BLOCK) optim8_kernel(const optim k, const optim8_arrays<G, W> a)
{
    const uint64_t tile = (uint64_t)blockIdx.x * BLOCK * EIGHT, i = tile + threadIdx.x * EIGHT;
    if (tile + BLOCK * EIGHT <= a.n)
        step8<O, G, W, true>(k, a, i);
    else
        step8<O, G, W, false>(k, a, i);
}

/* What a step is of, whatever its optimizer. */
struct optim_call {
    cudaStream_t st;
    optim k;
    gr_cu_optim_range r;
};

template <typename O, typename G, typename M, typename W>
static void launch_with(const optim_call &c, const W &w)
{
    const optim_arrays<G, M, W> a = {w, (const G *)c.r.g, (M *)c.r.m, (M *)c.r.v, c.r.n};
    optim_kernel<O, G, M, W><<<gr_ceil_div(c.r.n, TILE), BLOCK, 0, c.st>>>(c.k, a);
}

template <typename O, typename G, typename M> static void launch_optim(const optim_call &c)
{
    if (c.r.low)
        launch_with<O, G, M>(c, split_master{c.r.w, c.r.low});
    else if (c.r.master)
        launch_with<O, G, M>(c, copied_master{c.r.w, c.r.master});
    else
        launch_with<O, G, M>(c, own_master{c.r.w});
}

template <typename O, typename G, typename W> static void launch8_with(const optim_call &c, const W &w)
{
    const gr_cu_optim_range &r = c.r;
    const optim8_arrays<G, W> a = {
        w, (const G *)r.g, {(uint2 *)r.m, r.m_scale}, {(uint2 *)r.v, r.v_scale}, r.n, r.first, r.chance};
    optim8_kernel<O, G, W><<<gr_ceil_div(r.n, BLOCK * EIGHT), BLOCK, 0, c.st>>>(c.k, a);
}

template <typename O, typename G> static void launch8(const optim_call &c)
{
    if (c.r.low)
        launch8_with<O, G>(c, split_master{c.r.w, c.r.low});
    else if (c.r.master)
        launch8_with<O, G>(c, copied_master{c.r.w, c.r.master});
    else
        launch8_with<O, G>(c, own_master{c.r.w});
}

template <typename O> static void launch_of(const optim_call &c)
{
    if (c.r.m_scale && c.r.grads == GR_CU_F32)
        launch8<O, float>(c);
    else if (c.r.m_scale)
        launch8<O, gr_bf16>(c);
    else if (c.r.grads == GR_CU_F32 && c.r.moments == GR_CU_F32)
        launch_optim<O, float, float>(c);
    else if (c.r.grads == GR_CU_F32)
        launch_optim<O, float, gr_bf16>(c);
    else if (c.r.moments == GR_CU_F32)
        launch_optim<O, gr_bf16, float>(c);
    else
        launch_optim<O, gr_bf16, gr_bf16>(c);
}

extern "C" void gr_cu_optim_step(cudaStream_t st, const gr_cu_optim *how, const gr_cu_optim_range *r)
{
    if (!r->n) return;
    const optim k = {.keep = (float)(1 - how->lr * how->weight_decay),
                     .b1 = (float)(1 - how->beta1),
                     .beta2 = (float)how->beta2,
                     .b2 = (float)(1 - how->beta2),
                     .momentum = (float)how->beta1,
                     .decay = (float)how->weight_decay,
                     .step_size = (float)(how->lr / how->correction1),
                     .inv_sqrt_bc2 = (float)(1 / sqrt(how->correction2)),
                     .eps = (float)how->eps,
                     .grad_scale = how->grad_scale};
    const optim_call c = {st, k, *r};
    if (how->kind == GR_CU_LION)
        launch_of<lion>(c);
    else if (how->kind == GR_CU_SGD)
        launch_of<sgd>(c);
    else
        launch_of<adamw>(c);
}

/* ---- sum of squares
 * ------------------------------------------------------------------------------------------ Blocks take
 * strips whose length depends on n alone, and leave a sum each; one block adds these. All in double. */

enum { SUM_BLOCKS = GR_SUM_BLOCKS, SUM_VECS = 4 /* of EACH elements, in flight for each thread */ };

/* For thread 0. */
GR_DEVICE double block_sum(double x)
{
    __shared__ double part[BLOCK];
    part[threadIdx.x] = x;
    for (uint32_t o = BLOCK / 2; o; o /= 2) {
        __syncthreads();
        if (threadIdx.x < o) part[threadIdx.x] += part[threadIdx.x + o];
    }
    return part[0];
}

template <typename X>
GR_KERNEL void __launch_bounds__(BLOCK)
    squares_kernel(const X *__restrict__ x, uint64_t n, uint64_t strip, double *sums)
{
    const uint64_t first = blockIdx.x * strip,
                   end = first + strip < n ? first + strip : n; /* strip: a multiple of EACH */
    double sum[EACH] = {0};
    uint64_t i = first + threadIdx.x * EACH;
    for (; i + (SUM_VECS - 1) * BLOCK * EACH + EACH <= end; i += SUM_VECS * BLOCK * EACH) {
        float v[SUM_VECS][EACH];
#pragma unroll
        for (int j = 0; j < SUM_VECS; j++) gr_load4(x, i + j * BLOCK * EACH, v[j]);
#pragma unroll
        for (int j = 0; j < SUM_VECS; j++)
#pragma unroll
            for (int e = 0; e < EACH; e++) sum[e] = fma((double)v[j][e], (double)v[j][e], sum[e]);
    }
    for (; i < end; i += BLOCK * EACH)
        for (uint64_t e = i; e < i + EACH && e < end; e++) {
            const double v = (double)gr_get(x + e);
            sum[0] = fma(v, v, sum[0]);
        }
    const double total = block_sum((sum[0] + sum[1]) + (sum[2] + sum[3]));
    if (!threadIdx.x) sums[blockIdx.x] = total;
}

GR_KERNEL void __launch_bounds__(BLOCK)
    add_sums_kernel(const double *__restrict__ sums, uint32_t n, double *out)
{
    double sum = 0;
    for (uint32_t i = threadIdx.x; i < n; i += BLOCK) sum += sums[i];
    const double total = block_sum(sum);
    if (!threadIdx.x) *out = total;
}

extern "C" void gr_cu_sum_squares(cudaStream_t st, const void *x, gr_cu_dtype type, uint64_t n, double *out,
                                  void *ws)
{
    double *sums = (double *)ws;
    const uint64_t whole = SUM_VECS * BLOCK * EACH, strip = (n / SUM_BLOCKS + whole) / whole * whole;
    const uint32_t grid = gr_ceil_div(n, strip);
    if (grid && type == GR_CU_F32)
        squares_kernel<<<grid, BLOCK, 0, st>>>((const float *)x, n, strip, sums);
    else if (grid)
        squares_kernel<<<grid, BLOCK, 0, st>>>((const gr_bf16 *)x, n, strip, sums);
    add_sums_kernel<<<1, BLOCK, 0, st>>>(sums, grid, out);
}

/* ---- checksum
 * ------------------------------------------------------------------------------------------------ A block
 * leaves the sum of every GR_CHECKSUM_PARTS-th tile of pairs of words, 16 bytes a load, several in flight for
 * each thread. Integers: the order is of no account. Bound by memory. */

enum { PAIRS = 4 /* in flight */ };

/* For thread 0. */
GR_DEVICE uint64_t block_total(uint64_t x)
{
    __shared__ uint64_t part[BLOCK];
    part[threadIdx.x] = x;
    for (uint32_t o = BLOCK / 2; o; o /= 2) {
        __syncthreads();
        if (threadIdx.x < o) part[threadIdx.x] += part[threadIdx.x + o];
    }
    return part[0];
}

/* Bytes that fill no pair. */
GR_DEVICE uint64_t last_words(const uint8_t *x, uint64_t bytes)
{
    uint64_t sum = 0;
    for (uint64_t at = bytes / 16 * 16; at < bytes; at += 8) {
        uint64_t word = 0;
        for (uint64_t b = at; b < at + 8 && b < bytes; b++) word |= (uint64_t)x[b] << 8 * (b - at);
        sum += gr_checksum_word(at / 8, word);
    }
    return sum;
}

GR_KERNEL void __launch_bounds__(BLOCK)
    checksum_kernel(const ulonglong2 *__restrict__ x, uint64_t bytes, uint64_t *parts)
{
    const uint64_t pairs = bytes / 16, step = (uint64_t)GR_CHECKSUM_PARTS * BLOCK;
    uint64_t sum = 0;
    for (uint64_t first = (uint64_t)blockIdx.x * BLOCK + threadIdx.x; first < pairs; first += PAIRS * step) {
        ulonglong2 v[PAIRS];
#pragma unroll
        for (int j = 0; j < PAIRS; j++)
            if (first + j * step < pairs) v[j] = x[first + j * step];
#pragma unroll
        for (int j = 0; j < PAIRS; j++) {
            const uint64_t i = first + j * step;
            if (i < pairs) sum += gr_checksum_word(2 * i, v[j].x) + gr_checksum_word(2 * i + 1, v[j].y);
        }
    }
    if (!blockIdx.x && !threadIdx.x) sum += last_words((const uint8_t *)x, bytes);
    const uint64_t total = block_total(sum);
    if (!threadIdx.x) parts[blockIdx.x] = total;
}

extern "C" void gr_cu_checksum(cudaStream_t st, const void *x, uint64_t bytes, uint64_t *parts)
{
    checksum_kernel<<<GR_CHECKSUM_PARTS, BLOCK, 0, st>>>((const ulonglong2 *)x, bytes, parts);
}

/* ---- addition
 * ------------------------------------------------------------------------------------------------ */

/* A block takes a tile, a thread four neighbours at a time: 16 bytes of fp32 a load. Bound by memory. */
template <typename T>
GR_KERNEL void __launch_bounds__(BLOCK) plus_kernel(T *to, const T *__restrict__ from, uint64_t n)
{
    const uint64_t i = ((uint64_t)blockIdx.x * BLOCK + threadIdx.x) * 4;
    for (uint64_t k = i; k < n && k < i + 4; k++) gr_put(to + k, gr_get(to + k) + gr_get(from + k));
}

/* Of bf16 in whole vectors of 16 bytes: two a thread, half the array apart, so that both loads are in flight.
 */
GR_KERNEL void __launch_bounds__(BLOCK)
    plus_vectors_kernel(uint4 *to, const uint4 *__restrict__ from, uint64_t n)
{
    const uint64_t half = (n + 1) / 2, i = (uint64_t)blockIdx.x * BLOCK + threadIdx.x;
    const uint64_t at[2] = {i, i + half};
    uint4 a[2], b[2];
    if (i >= half) return;
#pragma unroll
    for (int j = 0; j < 2; j++)
        if (at[j] < n) {
            a[j] = to[at[j]];
            b[j] = from[at[j]];
        }
#pragma unroll
    for (int j = 0; j < 2; j++)
        if (at[j] < n) {
            float x[8], y[8];
            gr_unpack(a[j], x);
            gr_unpack(b[j], y);
#pragma unroll
            for (int e = 0; e < 8; e++) x[e] += y[e];
            to[at[j]] = gr_pack(x);
        }
}

GR_KERNEL void __launch_bounds__(BLOCK) scale_kernel(const uint4 *x, float scale, uint4 *y, uint64_t n)
{
    const uint64_t i = (uint64_t)blockIdx.x * BLOCK + threadIdx.x;
    if (i >= n) return;
    float a[8];
    gr_unpack(x[i], a);
#pragma unroll
    for (int e = 0; e < 8; e++) a[e] *= scale;
    y[i] = gr_pack(a);
}

extern "C" void gr_cu_scale(cudaStream_t st, const gr_bf16 *x, float scale, gr_bf16 *y, uint64_t n)
{
    assert(n % 8 == 0);
    if (n)
        scale_kernel<<<gr_ceil_div(n / 8, BLOCK), BLOCK, 0, st>>>((const uint4 *)x, scale, (uint4 *)y, n / 8);
}

GR_KERNEL void __launch_bounds__(BLOCK) scale_by_kernel(uint4 *x, const gr_bf16 *by, uint64_t n)
{
    const uint64_t i = (uint64_t)blockIdx.x * BLOCK + threadIdx.x;
    if (i >= n) return;
    const float scale = gr_float(*by);
    float a[8];
    gr_unpack(x[i], a);
#pragma unroll
    for (int e = 0; e < 8; e++) a[e] *= scale;
    x[i] = gr_pack(a);
}

extern "C" void gr_cu_scale_by(cudaStream_t st, gr_bf16 *x, const gr_bf16 *by, uint64_t n)
{
    assert(n % 8 == 0);
    if (n) scale_by_kernel<<<gr_ceil_div(n / 8, BLOCK), BLOCK, 0, st>>>((uint4 *)x, by, n / 8);
}

extern "C" void gr_cu_add(cudaStream_t st, void *to, const void *from, gr_cu_dtype type, uint64_t n)
{
    const uint32_t grid = gr_ceil_div(n, (uint64_t)BLOCK * 4);
    if (!n) return;
    const bool vectors = n % 8 == 0 && (((uintptr_t)to | (uintptr_t)from) % sizeof(uint4)) == 0;
    if (type == GR_CU_BF16 && vectors)
        plus_vectors_kernel<<<gr_ceil_div(n / 8, (uint64_t)BLOCK * 2), BLOCK, 0, st>>>(
            (uint4 *)to, (const uint4 *)from, n / 8);
    else if (type == GR_CU_F32)
        plus_kernel<<<grid, BLOCK, 0, st>>>((float *)to, (const float *)from, n);
    else
        plus_kernel<<<grid, BLOCK, 0, st>>>((gr_bf16 *)to, (const gr_bf16 *)from, n);
}

/* A thread four neighbours at a time, as above. Nothing is contracted: the bits are the CPU's. */
GR_KERNEL void __launch_bounds__(BLOCK)
    blend_kernel(gr_bf16 *__restrict__ to, float *__restrict__ master, const gr_bf16 *__restrict__ from,
                 float decay, float share, uint64_t n)
{
    const uint64_t i = ((uint64_t)blockIdx.x * BLOCK + threadIdx.x) * 4;
    for (uint64_t k = i; k < n && k < i + 4; k++) {
        const float x = __fadd_rn(__fmul_rn(decay, master ? master[k] : gr_get(to + k)),
                                  __fmul_rn(share, gr_get(from + k)));
        if (master) master[k] = x;
        gr_put(to + k, x);
    }
}

extern "C" void gr_cu_blend(cudaStream_t st, gr_bf16 *to, float *master, const gr_bf16 *from, float decay,
                            float share, uint64_t n)
{
    const uint32_t grid = gr_ceil_div(n, (uint64_t)BLOCK * 4);
    if (n) blend_kernel<<<grid, BLOCK, 0, st>>>(to, master, from, decay, share, n);
}

/* ---- muon ------------------------------------------------------------------------------------------------
 */

GR_KERNEL void __launch_bounds__(BLOCK) unit_kernel(gr_bf16 *x, uint64_t n, const double *squares)
{
    const float scale = (float)(1 / fmax(sqrt(*squares), 1e-7));
    const uint64_t i = (uint64_t)blockIdx.x * BLOCK + threadIdx.x;
    if (i < n) gr_put(x + i, gr_get(x + i) * scale);
}

extern "C" void gr_cu_to_unit(cudaStream_t st, gr_bf16 *x, uint64_t n, const double *squares)
{
    if (n) unit_kernel<<<(uint32_t)gr_ceil_div(n, (uint64_t)BLOCK), BLOCK, 0, st>>>(x, n, squares);
}

template <typename G>
GR_KERNEL void __launch_bounds__(BLOCK)
    mix_kernel(const G *__restrict__ from, float grad_scale, float mu, float *m, gr_bf16 *u, uint64_t n)
{
    const uint64_t i = (uint64_t)blockIdx.x * BLOCK + threadIdx.x;
    if (i >= n) return;
    const float g = gr_get(from + i) * grad_scale, mean = fmaf(1 - mu, g - m[i], m[i]);
    m[i] = mean;
    gr_put(u + i, fmaf(mu, mean - g, g));
}

extern "C" void gr_cu_muon_mix(cudaStream_t st, const void *g, gr_cu_dtype grads, float grad_scale, float mu,
                               float *m, gr_bf16 *u, uint64_t n)
{
    const uint32_t grid = (uint32_t)gr_ceil_div(n, (uint64_t)BLOCK);
    if (n && grads == GR_CU_BF16)
        mix_kernel<<<grid, BLOCK, 0, st>>>((const gr_bf16 *)g, grad_scale, mu, m, u, n);
    else if (n)
        mix_kernel<<<grid, BLOCK, 0, st>>>((const float *)g, grad_scale, mu, m, u, n);
}

/* ---- rounding
 * ------------------------------------------------------------------------------------------------ */

enum { ROUND_TIMES = 4, ROUND_TILE = BLOCK * EACH * ROUND_TIMES };

GR_KERNEL void __launch_bounds__(BLOCK)
    round_kernel(const float *__restrict__ from, gr_bf16 *__restrict__ to, uint64_t n)
{
    const uint64_t first = (uint64_t)blockIdx.x * ROUND_TILE + threadIdx.x * EACH;
    float x[ROUND_TIMES][EACH];
#pragma unroll
    for (int j = 0; j < ROUND_TIMES; j++) {
        const uint64_t i = first + j * BLOCK * EACH;
        if (i + EACH <= n) gr_load4(from, i, x[j]);
    }
#pragma unroll
    for (int j = 0; j < ROUND_TIMES; j++) {
        const uint64_t i = first + j * BLOCK * EACH;
        if (i + EACH <= n)
            gr_store4(to, i, x[j]);
        else
            for (uint64_t e = i; e < n; e++) to[e] = gr_round(from[e]);
    }
}

extern "C" void gr_cu_round(cudaStream_t st, const float *from, gr_bf16 *to, uint64_t n)
{
    if (!n) return;
    round_kernel<<<gr_ceil_div(n, ROUND_TILE), BLOCK, 0, st>>>(from, to, n);
}
