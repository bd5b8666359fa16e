/* ops/kernels/cuda/sample.cu: the next token of each row, as ops/kernels/cpu/sample_cpu.c draws it: greedy,
 * or by inverting the cumulative distribution of softmax(logits / T) at a uniform number of 53 bits, over ids
 * in order; after top-k and top-p, over what is kept from the most probable on (equal logits: lower ids
 * first).
 *
 * Two kernels. The first reads the logits once, a warp for each tile of 1024 of each row, and leaves each
 * tile's maximum and sum: bound by memory. The second is a block a row: it merges the tiles, finds the tile
 * of the draw, and reads that one again. Only truncated rows read the logits two or three times more (see
 * below).
 */
#include "ops/kernels/cuda/softmax.cuh"

enum { BLOCK = 512, WARPS = BLOCK / GR_WARP, TILE_BLOCK = 256 };

/* ---- tiles
 * --------------------------------------------------------------------------------------------------- */

GR_DEVICE float inverse(float temperature)
{
    return temperature > 0 ? __frcp_rn(temperature) : 1;
}

GR_DEVICE float scale_of(float temperature) /* c of ops/kernels/cuda/softmax.cuh */
{
    return __fmul_rn(inverse(temperature), GR_LOG2_E);
}

template <bool VECTOR>
GR_KERNEL void __launch_bounds__(TILE_BLOCK)
    tiles_kernel(const float *__restrict__ logits, const gr_cu_sampling *__restrict__ how,
                 gr_tile_sums *__restrict__ tiles, uint32_t n_tiles, uint32_t V)
{
    const uint32_t tile = blockIdx.x * (TILE_BLOCK / GR_WARP) + threadIdx.x / GR_WARP, row = blockIdx.y;
    if (tile >= n_tiles) return;
    float z[GR_TILE_EACH];
    gr_tile_load<VECTOR>(logits + (size_t)row * V, V, tile, z);
    const gr_tile_sums s = gr_tile_sum<false>(z, scale_of(how->temperature));
    if (threadIdx.x % GR_WARP == 0) tiles[(size_t)row * n_tiles + tile] = s;
}

/* ---- one row
 * ------------------------------------------------------------------------------------------------- */

struct row {
    const float *logits;
    uint32_t V;
    const gr_tile_sums *tile;
    uint32_t n_tiles;
    gr_cu_sampling how;
    float c; /* log2(e) / temperature */
    double uniform;
};

/* Philox 4x32-10 (Salmon et al., SC'11) as gr_philox of runtime/base/base.c; the counter is {sequence, token,
 * 0, 0}. */
GR_DEVICE double uniform_of(const gr_cu_sampling &how, const uint32_t draw[2])
{
    const uint64_t key = how.seed ^ (how.stream * 0x9E3779B97F4A7C15ull + 0xD1B54A32D192ED03ull);
    uint32_t k0 = (uint32_t)key, k1 = (uint32_t)(key >> 32), c0 = draw[0], c1 = draw[1], c2 = 0, c3 = 0;
#pragma unroll
    for (int i = 0; i < 10; i++) {
        const uint32_t n0 = __umulhi(0xCD9E8D57u, c2) ^ c1 ^ k0, n2 = __umulhi(0xD2511F53u, c0) ^ c3 ^ k1;
        c1 = 0xCD9E8D57u * c2;
        c3 = 0xD2511F53u * c0;
        c0 = n0;
        c2 = n2;
        k0 += 0x9E3779B9u;
        k1 += 0xBB67AE85u;
    }
    return ((double)(c0 >> 5) * 0x1p26 + (double)(c1 >> 6) + 0.5) * 0x1p-53;
}

/* Sums of all threads up to and with this one, and the total. Between two calls the block meets at a barrier.
 */
template <typename X> GR_DEVICE X scan(X x, X *total)
{
    __shared__ X part[WARPS];
    const uint32_t lane = threadIdx.x % GR_WARP, warp = threadIdx.x / GR_WARP;
#pragma unroll
    for (uint32_t o = 1; o < GR_WARP; o *= 2) {
        const X before = __shfl_up_sync(GR_ALL, x, o);
        if (lane >= o) x += before;
    }
    if (lane == GR_WARP - 1) part[warp] = x;
    __syncthreads();
    X all = 0, before = 0;
    for (uint32_t i = 0; i < WARPS; i++) {
        if (i == warp) before = all;
        all += part[i];
    }
    __syncthreads();
    *total = all;
    return before + x;
}

/* Smallest value of any thread. */
GR_DEVICE uint32_t block_min(uint32_t x)
{
    __shared__ uint32_t least;
    if (!threadIdx.x) least = UINT32_MAX;
    __syncthreads();
    atomicMin(&least, x);
    __syncthreads();
    x = least;
    __syncthreads();
    return x;
}

/* The row's largest logit; minus infinity where none is a number. */
GR_DEVICE float row_max(const row &r)
{
    float max = -INFINITY;
    for (uint32_t i = threadIdx.x % GR_WARP; i < r.n_tiles; i += GR_WARP) max = fmaxf(max, r.tile[i].max);
    return gr_warp_max(max);
}

/* The lowest id of the largest logit; 0 where none is a number. */
GR_DEVICE uint32_t draw_greedy(const row &r)
{
    const float max = row_max(r);
    uint32_t tile = UINT32_MAX, id = UINT32_MAX;
    for (uint32_t i = threadIdx.x; i < r.n_tiles && tile == UINT32_MAX; i += BLOCK)
        if (r.tile[i].max == max) tile = i;
    tile = block_min(tile);
    if (tile == UINT32_MAX) return 0;
    for (uint32_t i = threadIdx.x; i < GR_TILE && tile * GR_TILE + i < r.V && id == UINT32_MAX; i += BLOCK)
        if (r.logits[tile * GR_TILE + i] == max) id = tile * GR_TILE + i;
    id = block_min(id);
    return id == UINT32_MAX ? 0 : id;
}

/* ---- a draw from the whole row
 * ------------------------------------------------------------------------------- */

struct found {
    uint32_t index;
    double before; /* sum of the weights before it */
};

/* The first of n weights that takes the sum, which begins at `before`, beyond at; the last one of any weight
 * where rounding leaves none. */
template <typename W> GR_DEVICE found search(uint32_t n, double before, double at, W weight_of)
{
    __shared__ double before_found;
    found f = {0, before};
    for (uint32_t from = 0; from < n; from += BLOCK) {
        const uint32_t i = from + threadIdx.x;
        const double w = i < n ? weight_of(i) : 0;
        double total;
        const double sum = before + scan(w, &total);
        const uint32_t index = block_min(w > 0 && sum > at ? i : UINT32_MAX);
        if (index != UINT32_MAX) {
            if (i == index) before_found = sum - w;
            __syncthreads();
            return {index, before_found};
        }
        const uint32_t heavy = ~block_min(w > 0 ? ~i : UINT32_MAX); /* highest index of any weight, or 0 */
        if (heavy > f.index) f = {heavy, before};
        before += total;
    }
    return f;
}

GR_DEVICE uint32_t draw_full(const row &r, const gr_row_sums &sums)
{
    const auto tile_weight = [&](uint32_t i) {
        return (double)r.tile[i].sum * (double)gr_exp2(gr_scaled_max(r.tile[i].max, r.c) - sums.y_max);
    };
    double all = 0, total;
    for (uint32_t from = 0; from < r.n_tiles; from += BLOCK) {
        const uint32_t i = from + threadIdx.x;
        scan(i < r.n_tiles ? tile_weight(i) : 0, &total);
        all += total;
    }
    const double at = r.uniform * all;
    const found tile = search(r.n_tiles, 0, at, tile_weight);
    const uint32_t first = tile.index * GR_TILE, n = r.V - first < GR_TILE ? r.V - first : GR_TILE;
    const found one = search(n, tile.before, at, [&](uint32_t i) {
        return (double)gr_exp2(__fmaf_rn(r.logits[first + i], r.c, -sums.y_max));
    });
    return first + one.index;
}

/* ---- a draw from a truncated row
 * ------------------------------------------------------------------------------- Top-k, top-p and the draw
 * itself each ask for one place in the order (logit descending, id ascending): the first at which the count,
 * or the weight, of all up to it reaches a target. A histogram of counts and weights over the distance to the
 * largest logit, in steps of 1/128, says for all three in which step the place is; the step's logits, a few
 * hundred of them, are then gathered and sorted. Where a step has too many (logits that are nearly all alike)
 * the place is found digit by digit instead (12, 10 and 10 bits of a key that orders like the scaled logit),
 * with a histogram for each digit. Weights e^(z - max) are integers of 2^-44, so that their sums are exact
 * and do not depend on the order of the atomics: V times 2^44 stays below 2^64 for V up to 2^20.
 */

enum { DIGIT_0 = 12, DIGIT = 10, BINS_0 = 1 << DIGIT_0, BINS = 1 << DIGIT };

enum { LIST = 2048 };

struct histograms { /* in shared memory */
    unsigned long long weight_0[BINS_0], weight[BINS], list[LIST];
    uint32_t count_0[BINS_0], count[BINS], n_list;
};

struct place {
    uint32_t key;
    uint64_t count, weight; /* of all with a larger key */
};

/* Orders as z does; one key for both zeros. */
GR_DEVICE uint32_t key_of(float z)
{
    const uint32_t bits = __float_as_uint(__fadd_rn(z, 0.0f));
    return bits & 0x80000000u ? ~bits : bits | 0x80000000u;
}

GR_DEVICE float logit_of(uint32_t key)
{
    return __uint_as_float(key & 0x80000000u ? key & 0x7fffffffu : ~key);
}

GR_DEVICE uint64_t weight_of(float z, float max)
{
    const float w = gr_exp2((z - max) * GR_LOG2_E);
    return w > 0 ? __float2ull_rn(w * 0x1p44f) : 0; /* 0 for what is not a number too */
}

/* f(id, z) of all logits, scaled; warp w of the block has ids [w, w + 1) * share(V), in ascending order. */
GR_DEVICE uint32_t share(uint32_t V)
{
    return (V + WARPS * 4 * GR_WARP - 1) / (WARPS * 4 * GR_WARP) * 4 * GR_WARP;
}

template <typename F> GR_DEVICE void for_each(const row &r, F f)
{
    const float inv = inverse(r.how.temperature);
    const uint32_t first = threadIdx.x / GR_WARP * share(r.V), lane = threadIdx.x % GR_WARP;
    const uint32_t end = first + share(r.V) < r.V ? first + share(r.V) : r.V;
    if (r.V % 4 == 0) {
#pragma unroll 4
        for (uint32_t i = first + 4 * lane; i < end; i += 4 * GR_WARP) {
            const float4 v = *(const float4 *)(r.logits + i);
            f(i, __fmul_rn(v.x, inv));
            f(i + 1, __fmul_rn(v.y, inv));
            f(i + 2, __fmul_rn(v.z, inv));
            f(i + 3, __fmul_rn(v.w, inv));
        }
    } else {
#pragma unroll 4
        for (uint32_t i = first + lane; i < end; i += GR_WARP) f(i, __fmul_rn(r.logits[i], inv));
    }
}

/* Shared memory adds 32 bits at once, 64 bits only by trying: so a sum goes in halves, with a carry. */
GR_DEVICE void add_weight(unsigned long long *sum, uint64_t w)
{
    uint32_t *half = (uint32_t *)sum;
    const uint32_t low = (uint32_t)w;
    const uint32_t high = (uint32_t)(w >> 32) + (low > UINT32_MAX - atomicAdd(half, low));
    if (high) atomicAdd(half + 1, high);
}

/* Logits whose key begins with `prefix` (all bits above `shift` + the digit's), by their next digit. */
template <int WIDTH>
GR_DEVICE void fill(const row &r, float max, uint32_t prefix, uint32_t shift, uint32_t *count,
                    unsigned long long *weight)
{
    for (uint32_t i = threadIdx.x; i < 1u << WIDTH; i += BLOCK) count[i] = 0, weight[i] = 0;
    __syncthreads();
    for_each(r, [&](uint32_t, float z) {
        const uint32_t key = key_of(z);
        if ((uint64_t)key >> (shift + WIDTH) != prefix)
            return; /* 64 bits: the first digit has nothing above it */
        const uint32_t bin = key >> shift & ((1u << WIDTH) - 1);
        const uint64_t w = weight_of(z, max);
        atomicAdd(&count[bin], 1u);
        if (w) add_weight(&weight[bin], w);
    });
    __syncthreads();
}

/* The bin, from the highest down, at which count or weight reaches target; p gains what lies above it. */
template <bool BY_COUNT, int WIDTH>
GR_DEVICE uint32_t pick(const uint32_t *count, const unsigned long long *weight, uint64_t target, place *p)
{
    enum { EACH = (1 << WIDTH) / BLOCK };
    __shared__ uint32_t bin;
    __shared__ uint64_t above[2];
    const uint32_t top = (1u << WIDTH) - 1 - threadIdx.x * EACH;
    uint64_t mine[2] = {0, 0}, total;
    for (uint32_t i = 0; i < EACH; i++) mine[0] += count[top - i], mine[1] += weight[top - i];
    uint64_t at[2] = {scan(mine[0], &total) - mine[0], scan(mine[1], &total) - mine[1]};
    if (!threadIdx.x) bin = 0, above[0] = above[1] = 0;
    __syncthreads();
    for (uint32_t i = 0; i < EACH; i++) {
        const uint64_t next[2] = {at[0] + count[top - i], at[1] + weight[top - i]};
        if (at[!BY_COUNT] < target && next[!BY_COUNT] >= target)
            bin = top - i, above[0] = at[0], above[1] = at[1];
        at[0] = next[0], at[1] = next[1];
    }
    __syncthreads();
    p->count += above[0];
    p->weight += above[1];
    const uint32_t found = bin;
    __syncthreads();
    return found;
}

/* 1 <= target <= the sum over the row. The first digit's histogram is there. */
template <bool BY_COUNT> GR_DEVICE place descend(const row &r, float max, histograms *h, uint64_t target)
{
    place p = {0, 0, 0};
    p.key = pick<BY_COUNT, DIGIT_0>(h->count_0, h->weight_0, target, &p);
#pragma unroll
    for (uint32_t shift = DIGIT; shift != (uint32_t)-DIGIT; shift -= DIGIT) {
        fill<DIGIT>(r, max, p.key, shift, h->count, h->weight);
        const uint64_t left = target - (BY_COUNT ? p.count : p.weight);
        p.key = p.key << DIGIT | pick<BY_COUNT, DIGIT>(h->count, h->weight, left, &p);
    }
    return p;
}

/* The id of logit j (from 0, in order of ids) of those that have this key. */
GR_DEVICE uint32_t locate(const row &r, uint32_t key, uint64_t j)
{
    __shared__ uint32_t found;
    uint32_t mine = 0, total;
    for_each(r, [&](uint32_t, float z) { mine += key_of(z) == key; });
    const uint32_t up_to = scan(mine, &total), lane = threadIdx.x % GR_WARP;
    uint32_t before =
        __shfl_sync(GR_ALL, up_to - mine, 0); /* in the warps before this one, whose ids are lower */
    const uint32_t behind = __shfl_sync(GR_ALL, up_to, GR_WARP - 1);
    if (!threadIdx.x) found = 0;
    __syncthreads();
    if (before <= j && j < behind) { /* one warp looks again, 32 ids at a time */
        const uint32_t first = threadIdx.x / GR_WARP * share(r.V);
        const float inv = inverse(r.how.temperature);
        for (uint32_t i = first; before <= j; i += GR_WARP) {
            const bool same = i + lane < r.V && key_of(__fmul_rn(r.logits[i + lane], inv)) == key;
            const uint32_t lanes = __ballot_sync(GR_ALL, same);
            if (same && before + __popc(lanes & ((1u << lane) - 1)) == j) found = i + lane;
            before += (uint32_t)__popc(lanes);
        }
    }
    __syncthreads();
    return found;
}

GR_DEVICE uint64_t bounded(double x, uint64_t most)
{
    const uint64_t n = x > 1 ? (uint64_t)x : 1;
    return n < most ? n : most;
}

/* How many of weight w, at least 1, take the sum from before to target. */
GR_DEVICE uint64_t steps(uint64_t before, uint64_t target, uint64_t w)
{
    return (target - before + w - 1) / w;
}

/* Digit by digit. */
GR_DEVICE uint32_t draw_by_digits(const row &r, histograms *h)
{
    const gr_cu_sampling &how = r.how;
    const float max = __fmul_rn(row_max(r), inverse(how.temperature));
    fill<DIGIT_0>(r, max, 0, 32 - DIGIT_0, h->count_0, h->weight_0);
    uint64_t kept, mine = 0; /* weight of what is kept */
    for (uint32_t i = threadIdx.x; i < BINS_0; i += BLOCK) mine += h->weight_0[i];
    scan(mine, &kept);
    if (!kept) return draw_greedy(r);   /* infinite logits */
    if (how.top_k && how.top_k < r.V) { /* and what equals the k-th */
        const place k = descend<true>(r, max, h, how.top_k);
        kept = k.weight;
        const uint64_t w = weight_of(logit_of(k.key), max);
        /* the last digit's histogram is still there */
        kept += w * h->count[k.key & (BINS - 1)];
    }
    if (how.top_p < 1) { /* until the weight reaches top_p of it; at least one */
        const uint64_t target = bounded(ceil((double)how.top_p * (double)kept), kept);
        const place p = descend<false>(r, max, h, target);
        const uint64_t w = weight_of(logit_of(p.key), max);
        kept = p.weight + w * steps(p.weight, target, w);
    }
    const uint64_t target =
        bounded(floor(r.uniform * (double)kept) + 1, kept); /* the first beyond uniform * kept */
    const place d = descend<false>(r, max, h, target);
    return locate(r, d.key, steps(d.weight, target, weight_of(logit_of(d.key), max)) - 1);
}

/* The step of a logit's distance to the largest, counted from the last one: steps order as logits do. */
GR_DEVICE uint32_t step_of(float z, float max)
{
    const float steps = (max - z) * 128;
    return BINS_0 - 1 - (steps >= BINS_0 - 1 ? BINS_0 - 1 : (uint32_t)steps);
}

GR_DEVICE void fill_steps(const row &r, float max, histograms *h)
{
    for (uint32_t i = threadIdx.x; i < BINS_0; i += BLOCK) h->count_0[i] = 0, h->weight_0[i] = 0;
    __syncthreads();
    for_each(r, [&](uint32_t, float z) {
        const uint32_t step = step_of(z, max);
        const uint64_t w = weight_of(z, max);
        atomicAdd(&h->count_0[step], 1u);
        if (w) add_weight(&h->weight_0[step], w);
    });
    __syncthreads();
}

/* Whether a step has more logits than the list takes. All have read it before any goes on, and clears it. */
GR_DEVICE bool too_many(const histograms *h, uint32_t step)
{
    const bool many = h->count_0[step] > LIST;
    __syncthreads();
    return many;
}

/* An entry of the list: orders as (key descending, id ascending). */
GR_DEVICE unsigned long long entry_of(float z, uint32_t id)
{
    return (unsigned long long)~key_of(z) << 32 | id;
}

GR_DEVICE uint64_t entry_weight(unsigned long long entry, float max)
{
    return weight_of(logit_of(~(uint32_t)(entry >> 32)), max);
}

/* The logits of one step into the list, sorted (Batcher's bitonic sort); there are at most LIST. */
GR_DEVICE void gather(const row &r, float max, uint32_t step, histograms *h)
{
    if (!threadIdx.x) h->n_list = 0;
    __syncthreads();
    for_each(r, [&](uint32_t id, float z) {
        if (step_of(z, max) == step) h->list[atomicAdd(&h->n_list, 1u)] = entry_of(z, id);
    });
    __syncthreads();
    uint32_t size = 1;
    while (size < h->n_list) size *= 2;
    for (uint32_t i = h->n_list + threadIdx.x; i < size; i += BLOCK) h->list[i] = ~0ull;
    __syncthreads();
    for (uint32_t run = 2; run <= size; run *= 2)
        for (uint32_t apart = run / 2; apart; apart /= 2) {
            for (uint32_t i = threadIdx.x; i < size / 2; i += BLOCK) {
                const uint32_t low = i / apart * 2 * apart + i % apart, high = low + apart;
                const unsigned long long x = h->list[low], y = h->list[high];
                if ((x > y) != ((low & run) != 0)) h->list[low] = y, h->list[high] = x;
            }
            __syncthreads();
        }
}

/* Of the list's entries up to and with the first at which `before` and their weights reach target: its place;
 * *reached: the weight then. */
GR_DEVICE uint32_t reach(const histograms *h, float max, uint64_t before, uint64_t target, uint64_t *reached)
{
    enum { EACH = LIST / BLOCK };
    __shared__ uint32_t place;
    __shared__ uint64_t there;
    const uint32_t first = threadIdx.x * EACH;
    uint64_t mine = 0, total;
    for (uint32_t i = first; i < first + EACH && i < h->n_list; i++) mine += entry_weight(h->list[i], max);
    uint64_t at = before + scan(mine, &total) - mine;
    if (!threadIdx.x) place = 0, there = before;
    __syncthreads();
    for (uint32_t i = first; i < first + EACH && i < h->n_list; i++) {
        const uint64_t next = at + entry_weight(h->list[i], max);
        if (at < target && next >= target) place = i, there = next;
        at = next;
    }
    __syncthreads();
    *reached = there;
    const uint32_t found = place;
    __syncthreads();
    return found;
}

/* Weight of the list's entries whose key is not below that of entry i. */
GR_DEVICE uint64_t weight_down_to(const histograms *h, float max, uint32_t i)
{
    uint64_t mine = 0, total;
    for (uint32_t k = threadIdx.x; k < h->n_list; k += BLOCK)
        if (h->list[k] >> 32 <= h->list[i] >> 32) mine += entry_weight(h->list[k], max);
    scan(mine, &total);
    return total;
}

GR_DEVICE uint32_t draw_truncated(const row &r, histograms *h)
{
    const gr_cu_sampling &how = r.how;
    const float max = __fmul_rn(row_max(r), inverse(how.temperature));
    fill_steps(r, max, h);
    uint64_t kept, mine = 0; /* weight of what is kept */
    for (uint32_t i = threadIdx.x; i < BINS_0; i += BLOCK) mine += h->weight_0[i];
    scan(mine, &kept);
    if (!kept) return draw_greedy(r);   /* infinite logits */
    if (how.top_k && how.top_k < r.V) { /* and what equals the k-th */
        place k = {0, 0, 0};
        k.key = pick<true, DIGIT_0>(h->count_0, h->weight_0, how.top_k, &k);
        if (too_many(h, k.key)) return draw_by_digits(r, h);
        gather(r, max, k.key, h);
        kept = k.weight + weight_down_to(h, max, (uint32_t)(how.top_k - k.count - 1));
    }
    if (how.top_p < 1) { /* until the weight reaches top_p of it; at least one */
        const uint64_t target = bounded(ceil((double)how.top_p * (double)kept), kept);
        place p = {0, 0, 0};
        p.key = pick<false, DIGIT_0>(h->count_0, h->weight_0, target, &p);
        if (too_many(h, p.key)) return draw_by_digits(r, h);
        gather(r, max, p.key, h);
        reach(h, max, p.weight, target, &kept);
    }
    const uint64_t target =
        bounded(floor(r.uniform * (double)kept) + 1, kept); /* the first beyond uniform * kept */
    place d = {0, 0, 0};
    d.key = pick<false, DIGIT_0>(h->count_0, h->weight_0, target, &d);
    if (too_many(h, d.key)) return draw_by_digits(r, h);
    gather(r, max, d.key, h);
    return (uint32_t)h->list[reach(h, max, d.weight, target, &kept)];
}

/* ---- */

GR_KERNEL void __launch_bounds__(BLOCK, 2)
    draw_kernel(const float *__restrict__ logits, const gr_cu_sampling *__restrict__ how,
                const uint32_t (*__restrict__ draw)[2], const gr_tile_sums *__restrict__ tiles,
                uint32_t n_tiles, uint32_t V, int32_t *__restrict__ id, float *__restrict__ logprob)
{
    extern __shared__ histograms shared[];
    __shared__ gr_row_sums sums;
    const uint32_t at = blockIdx.x;
    const row r = {
        logits + (size_t)at * V,   V, tiles + (size_t)at * n_tiles, n_tiles, *how, scale_of(how->temperature),
        uniform_of(*how, draw[at])};
    if (threadIdx.x < GR_WARP) {
        const gr_row_sums s = gr_tiles_merge<false>(r.tile, n_tiles, r.c);
        if (!threadIdx.x) sums = s;
    }
    __syncthreads();
    const bool truncated = r.how.top_p < 1 || (r.how.top_k && r.how.top_k < V);
    const uint32_t drawn = !(r.how.temperature > 0) ? draw_greedy(r)
                           : truncated              ? draw_truncated(r, shared)
                                                    : draw_full(r, sums);
    if (threadIdx.x) return;
    id[at] = (int32_t)drawn;
    logprob[at] = gr_row_logprob(sums, r.logits[drawn], r.c);
}

extern "C" void gr_cu_sample(cudaStream_t st, const float *logits, const gr_cu_sampling *how,
                             const uint32_t (*draw)[2], int32_t *id, float *logprob, uint32_t n, uint32_t V,
                             void *ws)
{
    if (!n) return;
    assert(n <= 65535 && V <= 1u << 20);
    gr_tile_sums *tiles = (gr_tile_sums *)ws;
    const uint32_t n_tiles = gr_ceil_div(V, GR_TILE);
    const dim3 grid(gr_ceil_div(n_tiles, TILE_BLOCK / GR_WARP), n);
    if (V % 4)
        tiles_kernel<false><<<grid, TILE_BLOCK, 0, st>>>(logits, how, tiles, n_tiles, V);
    else
        tiles_kernel<true><<<grid, TILE_BLOCK, 0, st>>>(logits, how, tiles, n_tiles, V);
    cudaFuncSetAttribute(draw_kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, sizeof(histograms));
    draw_kernel<<<n, BLOCK, sizeof(histograms), st>>>(logits, how, draw, tiles, n_tiles, V, id, logprob);
}
