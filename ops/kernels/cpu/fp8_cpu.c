/* ops/kernels/cpu/fp8_cpu.c: products with weights in FP8 on the CPU device, which define them for every
 * device: both factors are rounded to E4M3 with their blocks' scales, made fp32 again and multiplied as any
 * others. Each row is rounded by itself, so batch invariance holds.
 *
 * Weights become fp32 again a panel of rows at a time: the workspace has one.
 */
#include "ops/kernels/cpu/cpu.h"
#include "ops/model/fp8.h"
#include "runtime/base/half.h"

#include <math.h>
#include <string.h>

enum { PANEL = 512 }; /* rows of weights that are fp32 at once: a multiple of GR_FP8_BLOCK */

/* The largest |x|, or NaN where there is one. */
static float largest(const float *x, size_t n, float most)
{
    for (size_t i = 0; i < n; i++) most = fabsf(x[i]) > most || isnan(x[i]) ? fabsf(x[i]) : most;
    return most;
}

/* ---- weights ------------------------------------------------------------------------------------------- */

static void quantize_block(const gr_quantize *c, uint32_t i, uint32_t j)
{
    const uint32_t r0 = i * GR_FP8_BLOCK, r1 = GR_MIN(r0 + GR_FP8_BLOCK, c->rows), c0 = j * GR_FP8_BLOCK,
                   n = GR_MIN((uint32_t)GR_FP8_BLOCK, c->cols - c0);
    const float *w = c->w;
    uint8_t *values = c->values;
    float most = 0;
    for (uint32_t r = r0; r < r1; r++) most = largest(w + (uint64_t)r * c->cols + c0, n, most);
    const gr_fp8_scale s = gr_fp8_scale_of(most);
    c->scales[(uint64_t)i * gr_fp8_scale_ld(c->cols) + j] = s.scale;
    for (uint32_t r = r0; r < r1; r++)
        for (uint32_t k = 0; k < n; k++) {
            const uint64_t at = (uint64_t)r * c->cols + c0 + k;
            values[at] = gr_f32_to_e4m3(w[at] * s.inverse);
        }
}

static void quantize_rank(void *arg, unsigned rank, unsigned size)
{
    const gr_quantize *c = arg;
    const uint32_t ld = gr_fp8_scale_ld(c->cols), blocks = gr_fp8_blocks(c->cols);
    uint64_t first, last;
    gr_team_range(gr_fp8_blocks(c->rows), 1, rank, size, &first, &last);
    for (uint32_t i = (uint32_t)first; i < last; i++) {
        memset(c->scales + (uint64_t)i * ld, 0, ld * sizeof(float));
        for (uint32_t j = 0; j < blocks; j++) quantize_block(c, i, j);
    }
}

void gr_cpu_quantize(gr_queue *q, const gr_quantize *c)
{
    gr_quantize job = *c;
    gr_team_run(q->team, quantize_rank, &job);
}

/* ---- products ------------------------------------------------------------------------------------------ */

/* What a product with weights [out, in] works in, of rows of `inner` values that are rounded. */
typedef struct fp8_ws {
    float *rounded; /* [t, inner] */
    float *panel;   /* [PANEL, in] */
    void *gemm;
} fp8_ws;

static fp8_ws layout(gr_workspace *c, uint64_t t, uint64_t inner, uint32_t in, uint32_t out, uint64_t gemm)
{
    fp8_ws w;
    w.rounded = gr_workspace_floats(c, t * inner);
    w.panel = gr_workspace_floats(c, (uint64_t)GR_MIN((uint32_t)PANEL, out) * in);
    w.gemm = gr_workspace_bytes(c, gemm);
    return w;
}

uint64_t gr_cpu_fp8_ws_bytes(uint32_t t, uint32_t in, uint32_t out, unsigned threads, bool backward)
{
    gr_workspace c = {0};
    layout(&c, t, backward ? out : in, in, out, gr_cpu_product_ws_bytes(t, in, out, threads, backward));
    return c.used;
}

typedef struct rows_job {
    const float *x;
    float *rounded;
    uint32_t t, cols;
} rows_job;

static void round_row(const float *x, float *rounded, uint32_t cols)
{
    for (uint32_t c0 = 0; c0 < cols; c0 += GR_FP8_BLOCK) {
        const uint32_t n = GR_MIN((uint32_t)GR_FP8_BLOCK, cols - c0);
        const gr_fp8_scale s = gr_fp8_scale_of(largest(x + c0, n, 0));
        for (uint32_t i = c0; i < c0 + n; i++)
            rounded[i] = gr_e4m3_to_f32(gr_f32_to_e4m3(x[i] * s.inverse)) * s.scale;
    }
}

static void rows_rank(void *arg, unsigned rank, unsigned size)
{
    const rows_job *j = arg;
    uint64_t first, last;
    gr_team_range(j->t, 1, rank, size, &first, &last);
    for (uint64_t t = first; t < last; t++) round_row(j->x + t * j->cols, j->rounded + t * j->cols, j->cols);
}

typedef struct panel_job {
    const gr_product *p;
    const float *values; /* [256] of E4M3 */
    float *panel;
    uint32_t first, n; /* rows of the weights */
} panel_job;

static void panel_rank(void *arg, unsigned rank, unsigned size)
{
    const panel_job *j = arg;
    const gr_product *p = j->p;
    uint64_t first, last;
    gr_team_range(j->n, 1, rank, size, &first, &last);
    for (uint64_t i = first; i < last; i++) {
        const uint64_t row = j->first + i;
        const uint8_t *w = (const uint8_t *)p->w + row * p->in;
        const float *scales = p->scales + row / GR_FP8_BLOCK * gr_fp8_scale_ld(p->in);
        float *to = j->panel + i * p->in;
        for (uint32_t k = 0; k < p->in; k++) to[k] = j->values[w[k]] * scales[k / GR_FP8_BLOCK];
    }
}

/* Rows of the product's weights from `first` on, in fp32; returns how many. */
static uint32_t open_panel(gr_queue *q, const gr_product *p, uint32_t first, float *panel)
{
    float values[256];
    for (unsigned i = 0; i < 256; i++) values[i] = gr_e4m3_to_f32((uint8_t)i);
    panel_job job = {p, values, panel, first, GR_MIN((uint32_t)PANEL, p->out - first)};
    gr_team_run(q->team, panel_rank, &job);
    return job.n;
}

static fp8_ws begin(gr_queue *q, const gr_product *p, const float *x, uint32_t inner, void *ws)
{
    gr_workspace c = {.base = ws};
    const fp8_ws w = layout(&c, p->t, inner, p->in, p->out, 0);
    rows_job rows = {x, w.rounded, p->t, inner};
    gr_team_run(q->team, rows_rank, &rows);
    return w;
}

void gr_cpu_fp8_product(gr_queue *q, const gr_product *p, void *y, void *ws)
{
    const fp8_ws w = begin(q, p, p->x, p->in, ws);
    for (uint32_t at = 0, n; at < p->out; at += n) {
        n = open_panel(q, p, at, w.panel);
        const gr_gemm_job g = {
            p->t,   n,     p->in, {w.rounded, p->in, false}, {w.panel, p->in, true}, (float *)y + at,
            p->out, false, NULL};
        gr_gemm(q, &g, w.gemm);
    }
}

/* The sum over outputs goes on from panel to panel, in one chain. */
void gr_cpu_fp8_product_dx(gr_queue *q, const gr_product *p, const void *dy, void *dx, void *ws)
{
    const fp8_ws w = begin(q, p, dy, p->out, ws);
    for (uint32_t at = 0, n; at < p->out; at += n) {
        n = open_panel(q, p, at, w.panel);
        const gr_gemm_job g = {
            p->t,  p->in,  n,   {w.rounded + at, p->out, false}, {w.panel, p->in, false}, dx,
            p->in, at > 0, NULL};
        gr_gemm(q, &g, w.gemm);
    }
}

/* ---- gradients of weights -------------------------------------------------------------------------------
 *
 * Both factors are rounded in blocks along what is summed over, the tokens of the call from its first on.
 */

typedef struct dw_ws {
    float *x, *dy; /* [t, in], [t, out] rounded */
    void *gemm;
} dw_ws;

static dw_ws dw_layout(gr_workspace *c, uint64_t t, uint32_t in, uint32_t out, uint64_t gemm)
{
    dw_ws w;
    w.x = gr_workspace_floats(c, t * in);
    w.dy = gr_workspace_floats(c, t * out);
    w.gemm = gr_workspace_bytes(c, gemm);
    return w;
}

uint64_t gr_cpu_fp8_dw_ws_bytes(uint32_t t, uint32_t in, uint32_t out, unsigned threads)
{
    gr_workspace c = {0};
    dw_layout(&c, t, in, out, gr_cpu_product_ws_bytes(t, in, out, threads, true));
    return c.used;
}

/* x [t, cols] in blocks of 128 tokens and `width` columns. */
typedef struct blocks_job {
    const float *x;
    float *rounded;
    uint32_t t, cols, width;
} blocks_job;

static void round_block(const blocks_job *j, uint32_t row, uint32_t col)
{
    const uint32_t end = GR_MIN(row + GR_FP8_BLOCK, j->t), n = GR_MIN(j->width, j->cols - col);
    float most = 0;
    for (uint32_t r = row; r < end; r++) most = largest(j->x + (uint64_t)r * j->cols + col, n, most);
    const gr_fp8_scale s = gr_fp8_scale_of(most);
    for (uint32_t r = row; r < end; r++)
        for (uint32_t c = col; c < col + n; c++) {
            const uint64_t at = (uint64_t)r * j->cols + c;
            j->rounded[at] = gr_e4m3_to_f32(gr_f32_to_e4m3(j->x[at] * s.inverse)) * s.scale;
        }
}

/* A rank has whole blocks of columns. */
static void blocks_rank(void *arg, unsigned rank, unsigned size)
{
    const blocks_job *j = arg;
    uint64_t first, last;
    gr_team_range(j->cols, GR_FP8_BLOCK, rank, size, &first, &last);
    for (uint32_t row = 0; row < j->t; row += GR_FP8_BLOCK)
        for (uint64_t col = first; col < last; col += j->width) round_block(j, row, (uint32_t)col);
}

void gr_cpu_fp8_product_dw(gr_queue *q, const gr_product *p, const void *dy, void *grad, void *ws)
{
    gr_workspace c = {.base = ws};
    const dw_ws w = dw_layout(&c, p->t, p->in, p->out, 0);
    blocks_job x = {p->x, w.x, p->t, p->in, GR_FP8_BLOCK}, rows = {dy, w.dy, p->t, p->out, 1};
    gr_team_run(q->team, blocks_rank, &x);
    gr_team_run(q->team, blocks_rank, &rows);
    const gr_gemm_job g = {p->out, p->in, p->t, {w.dy, p->out, true}, {w.x, p->in, false}, grad,
                           p->in,  true,  NULL};
    gr_gemm(q, &g, w.gemm);
}
