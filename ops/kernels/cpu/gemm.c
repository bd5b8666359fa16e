/* ops/kernels/cpu/gemm.c: see ops/kernels/cpu/gemm.h. */
#include "ops/kernels/cpu/gemm.h"

#include <string.h>

enum {
    MC = 240,              /* rows of A packed at a time: a multiple of GR_MR, at most GR_LDA */
    NC = 512,              /* columns of B packed at a time */
    THIN = 64,             /* rows of A up to which B^T is read in place */
    B_FLOATS = GR_KC * NC, /* of B, or of few rows of A */
};

/* Floats of one thread's packed operands: no more than the product has. */
typedef struct layout {
    bool thin;
    size_t a, b, c; /* c: of one panel of 32 columns, where the last is no whole vector */
} layout;

static layout layout_of(const gr_gemm_job *g)
{
    const size_t mc = GR_MIN(g->m, (size_t)MC), kc = GR_MIN(g->k, (size_t)GR_KC);
    if (g->m <= THIN && !g->a.transposed && g->b.transposed)
        return (layout){.thin = true, .b = GR_MIN(g->k * gr_align(g->m, 16), (size_t)B_FLOATS)};
    return (layout){.a = (mc + GR_MR - 1) / GR_MR * GR_MR * GR_LDA,
                    .b = kc * gr_align(GR_MIN(g->n, (size_t)NC), 32),
                    .c = g->n % 16 ? mc * 32 : 0};
}

static uint64_t thread_floats(const gr_gemm_job *g)
{
    const layout l = layout_of(g);
    return gr_align(l.a + l.b + l.c, 64);
}

uint64_t gr_gemm_ws_bytes(const gr_gemm_job *job, unsigned threads)
{
    gr_gemm_job few = *job; /* fewer rows may take the other way */
    few.m = GR_MIN(job->m, (size_t)THIN);
    return threads * GR_MAX(thread_floats(job), thread_floats(&few)) * sizeof(float);
}

static const float *mat_at(const gr_mat *x, size_t i, size_t j)
{
    return x->transposed ? x->p + j * x->ld + i : x->p + i * x->ld + j;
}

struct part { /* of C, for one thread */
    size_t m0, m1, n0, n1;
    float *a, *b, *c;
};

/* A [mc, kc] as mm_rows reads it. */
static void pack_a(const gr_gemm_job *g, size_t i0, size_t k0, size_t mc, size_t kc, float *a)
{
    const float *src = mat_at(&g->a, i0, k0);
    if (g->a.transposed) {
        g->simd->transpose(src, g->a.ld, kc, mc, a, GR_LDA);
        return;
    }
    for (size_t i = 0; i < mc; i++) memcpy(a + i * GR_LDA, src + i * g->a.ld, kc * sizeof(*a));
}

/* B [kc, nc] in panels of 32 columns, each [kc, 32]. */
static void pack_b(const gr_gemm_job *g, size_t k0, size_t j0, size_t kc, size_t nc, float *b)
{
    const float *src = mat_at(&g->b, k0, j0);
    if (g->b.transposed) {
        for (size_t j = 0; j < nc; j += 32)
            g->simd->transpose(src + j * g->b.ld, g->b.ld, GR_MIN(nc - j, 32), kc, b + j * kc, 32);
        return;
    }
    for (size_t p = 0; p < kc; p++)
        for (size_t j = 0; j < nc; j += 32) {
            const size_t cols = GR_MIN(nc - j, 32);
            float *to = b + j * kc + p * 32;
            memcpy(to, src + p * g->b.ld + j, cols * sizeof(*b));
            memset(to + cols, 0, (32 - cols) * sizeof(*b));
        }
}

static void copy_block(float *dst, size_t ldd, const float *src, size_t lds, size_t rows, size_t cols)
{
    for (size_t i = 0; i < rows; i++) memcpy(dst + i * ldd, src + i * lds, cols * sizeof(*dst));
}

/* Packed A [mc, kc] times packed B [kc, nc]. The last columns, where they are no whole vector, go through a
 * buffer. */
static void macro_tile(const gr_gemm_job *g, size_t i0, size_t j0, size_t mc, size_t nc, size_t kc, bool add,
                       const struct part *w)
{
    for (size_t j = 0; j < nc; j += 32) {
        const size_t cols = GR_MIN(nc - j, 32);
        const float *b = w->b + j * kc;
        float *c = g->c + i0 * g->ldc + j0 + j;
        gr_mm t = {mc, kc, w->a, b, cols > 16 ? b + 16 : NULL, 32, c, g->ldc, add};
        if (cols % 16) {
            t.c = w->c;
            t.ldc = 32;
            if (add) copy_block(w->c, 32, c, g->ldc, mc, cols);
        }
        g->simd->mm_rows(&t);
        if (cols % 16) copy_block(c, g->ldc, w->c, 32, mc, cols);
    }
}

static void gemm_part(const gr_gemm_job *g, const struct part *w)
{
    for (size_t j = w->n0; j < w->n1; j += NC) {
        const size_t nc = GR_MIN(w->n1 - j, (size_t)NC);
        for (size_t p = 0; p < g->k; p += GR_KC) {
            const size_t kc = GR_MIN(g->k - p, (size_t)GR_KC);
            pack_b(g, p, j, kc, nc, w->b);
            for (size_t i = w->m0; i < w->m1; i += MC) {
                const size_t mc = GR_MIN(w->m1 - i, (size_t)MC);
                pack_a(g, i, p, mc, kc, w->a);
                macro_tile(g, i, j, mc, nc, kc, g->add || p, w);
            }
        }
    }
}

/* Few rows: A^T is packed, B^T read in place. */
static void thin_part(const gr_gemm_job *g, const struct part *w)
{
    const size_t ld = gr_align(g->m, 16), kb = B_FLOATS / ld, n = w->n1 - w->n0;
    for (size_t p = 0; n && p < g->k; p += kb) {
        const size_t kc = GR_MIN(g->k - p, kb);
        g->simd->transpose(g->a.p + p, g->a.ld, g->m, kc, w->b, ld);
        g->simd->mm_thin(n, g->m, kc, g->b.p + w->n0 * g->b.ld + p, g->b.ld, w->b, ld, g->c + w->n0, g->ldc,
                         g->add || p);
    }
}

struct run {
    const gr_gemm_job *g;
    float *ws;
    layout l;
    unsigned rows; /* the team as a grid: rows x size / rows */
};

static void run_rank(void *arg, unsigned rank, unsigned size)
{
    const struct run *r = arg;
    const gr_gemm_job *g = r->g;
    const unsigned cols = size / r->rows;
    uint64_t m0, m1, n0, n1;
    gr_team_range(g->m, GR_MR, rank / cols, r->rows, &m0, &m1);
    gr_team_range(g->n, 32, rank % cols, cols, &n0, &n1);
    float *ws = r->ws + rank * thread_floats(g);
    struct part w = {m0, m1, n0, n1, ws, ws + r->l.a, ws + r->l.a + r->l.b};
    if (r->l.thin)
        thin_part(g, &w);
    else if (m1 > m0)
        gemm_part(g, &w);
}

/* Threads over rows of C: what makes the longest sum of a part's sides the shortest, as all of A's part and
 * all of B's is packed by each thread. */
static unsigned grid_rows(size_t m, size_t n, unsigned size)
{
    unsigned best = 1;
    for (unsigned r = 2; r <= size; r++)
        if (size % r == 0 && m / r + n / (size / r) < m / best + n / (size / best)) best = r;
    return best;
}

void gr_gemm(gr_queue *q, const gr_gemm_job *job, void *ws)
{
    gr_gemm_job g = *job;
    if (!g.simd) g.simd = gr_simd_best();
    struct run r = {.g = &g, .ws = ws, .l = layout_of(&g)};
    r.rows = r.l.thin ? 1 : grid_rows(g.m, g.n, gr_team_size(q->team));
    gr_team_run(q->team, run_rank, &r);
}
