/* ops/kernels/cpu/sample_cpu.c: the next token of each row: greedy, or a draw from softmax(logits / T), after
 * top-k and then top-p as transformers' TopKLogitsWarper and TopPLogitsWarper have them.
 *
 * The draw inverts the cumulative distribution at a uniform number of 53 bits: over ids in order, or, where
 * truncated, over what is kept from the most probable on (equal logits: lower ids first).
 */
#include <math.h>
#include <string.h>

#include "ops/kernels/cpu/head_cpu.h"

enum { BLOCK = 1024 }; /* of softmax_sums */

struct sample {
    const gr_model_shape *s;
    const gr_simd *v;
    const gr_head_ws *w;
    const gr_sampling *how;
    const uint32_t (*draw)[2];
    uint32_t n;
    int32_t *id;
    float *logprob;
};

static double uniform(const struct sample *l, uint32_t row)
{
    uint32_t out[4];
    gr_philox(l->how->seed, l->how->stream, (uint32_t[4]){l->draw[row][0], l->draw[row][1], 0, 0}, out);
    return ((double)(out[0] >> 5) * 0x1p26 + (double)(out[1] >> 6) + 0.5) * 0x1p-53;
}

static uint32_t draw_greedy(const float *z, uint32_t n, float max)
{
    for (uint32_t i = 0; i < n; i++)
        if (z[i] == max) return i;
    return 0; /* only where no logit is a number */
}

/* The first id whose cumulative weight exceeds at; the last one of any weight where rounding leaves none. */
static uint32_t draw_full(const gr_simd *v, const float *z, uint32_t n, float max, const double *block,
                          double at)
{
    double before = 0;
    uint32_t chosen = 0, last = 0;
    for (; chosen < n && !(before + block[chosen / BLOCK] > at); chosen += BLOCK) {
        before += block[chosen / BLOCK];
        if (block[chosen / BLOCK] > 0) last = chosen;
    }
    if (chosen >= n) chosen = last;
    const uint32_t len = GR_MIN(n - chosen, (uint32_t)BLOCK);
    float e[BLOCK], lanes[16] = {0};
    memcpy(e, z + chosen, len * sizeof(*e));
    v->exp_sum(e, max, lanes, len);
    last = 0;
    for (uint32_t i = 0; i < len; i++) {
        before += (double)e[i];
        if (before > at) return chosen + i;
        if (e[i] > 0) last = i;
    }
    return chosen + last;
}

/* ---- truncated ----------------------------------------------------------------------------------------- */

static bool better(const float *z, uint32_t a, uint32_t b)
{
    return z[a] > z[b] || (z[a] == z[b] && a < b);
}

static void sift_down(const float *z, uint32_t *heap, uint32_t n, uint32_t i)
{
    for (;;) {
        uint32_t best = 2 * i + 1;
        if (best >= n) return;
        if (best + 1 < n && better(z, heap[best + 1], heap[best])) best++;
        if (!better(z, heap[best], heap[i])) return;
        const uint32_t t = heap[i];
        heap[i] = heap[best];
        heap[best] = t;
        i = best;
    }
}

/* Move the best id of heap[0, n) to heap[n - 1]; returns it. */
static uint32_t pop(const float *z, uint32_t *heap, uint32_t n)
{
    const uint32_t best = heap[0];
    heap[0] = heap[n - 1];
    heap[n - 1] = best;
    sift_down(z, heap, n - 1, 0);
    return best;
}

static double weight(const float *z, uint32_t id, float max)
{
    return exp((double)z[id] - (double)max);
}

/* Keeps ids at the end of heap, the most probable last; returns how many and their weight. */
static uint32_t truncate(const gr_sampling *how, const float *z, uint32_t n, float max, double sum,
                         uint32_t *heap, double *kept_weight)
{
    for (uint32_t i = 0; i < n; i++) heap[i] = i;
    for (uint32_t i = n / 2; i--;) sift_down(z, heap, n, i);
    uint32_t kept = 0;
    double total = 0;
    if (how->top_k && how->top_k < n) { /* and what equals the k-th */
        while (kept < n && (kept < how->top_k || z[heap[0]] == z[heap[n - kept]])) {
            total += weight(z, pop(z, heap, n - kept), max);
            kept++;
        }
        sum = total;
    }
    if (how->top_p < 1) { /* until the weight of what is kept reaches top_p; at least one */
        const uint32_t most = how->top_k && how->top_k < n ? kept : n;
        uint32_t p = 0;
        for (total = 0; p < most && (!p || total < (double)how->top_p * sum); p++)
            total += weight(z, p < kept ? heap[n - 1 - p] : pop(z, heap, n - p), max);
        kept = p;
    }
    *kept_weight = total;
    return kept;
}

static uint32_t draw_truncated(const gr_sampling *how, const float *z, uint32_t n, float max, double sum,
                               uint32_t *heap, double u)
{
    double total, before = 0;
    const uint32_t kept = truncate(how, z, n, max, sum, heap, &total);
    for (uint32_t i = 0; i < kept; i++) {
        before += weight(z, heap[n - 1 - i], max);
        if (before > u * total) return heap[n - 1 - i];
    }
    return heap[n - kept];
}

/* ---- rows ---------------------------------------------------------------------------------------------- */

static void sample_row(const struct sample *l, uint32_t i, uint32_t *heap, double *block)
{
    const gr_sampling *how = l->how;
    const uint32_t n = l->s->vocab;
    const float *z = l->w->logits + (size_t)i * n, max = l->v->max(z, n);
    double sums[3];
    l->v->softmax_sums(z, max, n, sums, block);
    uint32_t id;
    if (!(how->temperature > 0))
        id = draw_greedy(z, n, max);
    else if (gr_sampling_use(how, n) == GR_HEAD_TRUNCATE)
        id = draw_truncated(how, z, n, max, sums[0], heap, uniform(l, i));
    else
        id = draw_full(l->v, z, n, max, block, uniform(l, i) * sums[0]);
    l->id[i] = (int32_t)id;
    l->logprob[i] = (float)((double)z[id] - max - log(sums[0]));
}

static void sample_rank(void *arg, unsigned rank, unsigned size)
{
    const struct sample *l = arg;
    const size_t n = l->s->vocab;
    uint64_t first, last;
    gr_team_range(l->n, 1, rank, size, &first, &last);
    for (uint32_t i = (uint32_t)first; i < last; i++)
        sample_row(l, i, l->w->heap + rank * n, l->w->block + rank * (n / BLOCK + 1));
}

void gr_cpu_head_sample(gr_queue *q, const gr_model_shape *s, const void *norm, const void *lm, const void *x,
                        const uint32_t *row, uint32_t n, const gr_sampling *how, const uint32_t (*draw)[2],
                        int32_t *id, float *logprob, void *ws)
{
    if (!n) return;
    gr_workspace c = {.base = ws};
    gr_head_ws w;
    gr_head_ws_layout(&c, s, n, gr_sampling_use(how, s->vocab), gr_team_size(q->team), &w);
    gr_head_logits(q, s, norm, lm, x, row, n, how->temperature > 0 ? 1 / how->temperature : 1, &w);
    struct sample l = {s, gr_simd_best(), &w, how, draw, n, id, logprob};
    gr_team_run(q->team, sample_rank, &l);
}
