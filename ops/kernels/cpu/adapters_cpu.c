/* ops/kernels/cpu/adapters_cpu.c: adapters on the CPU device: merged into weights, and their gradients, each
 * a chain of additions over tokens in order.
 */
#include "ops/kernels/cpu/adapters_cpu.h"

#include <assert.h>
#include <string.h>

#include "ops/kernels/cpu/cpu.h"
#include "ops/kernels/workspace.h"
#include "ops/model/nf4.h"

/* ---- merged -------------------------------------------------------------------------------------------- */

typedef struct merge_ws {
    float *a; /* [rank, in] scale a */
    void *gemm;
} merge_ws;

static gr_gemm_job merge_job(uint32_t rows, uint32_t in, uint32_t rank)
{
    return (gr_gemm_job){.m = rows, .n = in, .k = rank, .ldc = in, .add = true};
}

static void merge_layout(gr_workspace *c, const gr_gemm_job *job, unsigned threads, merge_ws *w)
{
    w->a = gr_workspace_floats(c, job->k * job->n);
    w->gemm = gr_workspace_bytes(c, gr_gemm_ws_bytes(job, threads));
}

uint64_t gr_cpu_merge_ws_bytes(uint32_t rows, uint32_t in, uint32_t rank, unsigned threads)
{
    const gr_gemm_job job = merge_job(rows, in, rank);
    gr_workspace c = {0};
    merge_ws w;
    merge_layout(&c, &job, threads, &w);
    return c.used;
}

void gr_cpu_merge(gr_queue *q, const gr_merge *m, void *ws)
{
    gr_gemm_job job = merge_job(m->rows, m->in, m->rank);
    gr_workspace c = {.base = ws};
    merge_ws w;
    merge_layout(&c, &job, gr_team_size(q->team), &w);
    gr_cpu_scale(q, m->a, m->scale, (uint64_t)m->rank * m->in, w.a);
    if (m->out != m->w) memcpy(m->out, m->w, (size_t)m->rows * m->in * sizeof(float));
    job.a = (gr_mat){m->b, m->rank, false};
    job.b = (gr_mat){w.a, m->in, false};
    job.c = m->out;
    gr_gemm(q, &job, w.gemm);
}

void gr_cpu_open(gr_queue *q, const gr_model_shape *s, uint32_t bucket, const void *from, void *w)
{
    gr_nf4_open_bucket(q->team, s, bucket, from, w);
}

/* ---- gradients ----------------------------------------------------------------------------------------- */

typedef struct back_ws {
    float *u, *v; /* [t, count rank] scale x a^T, scale dy b */
    void *gemm;
} back_ws;

/* Its products; that of one adapter, i, and those of all together. */
typedef struct back_jobs {
    gr_gemm_job u, v, to_b, to_a;
} back_jobs;

static back_jobs jobs_of(const gr_adapters_back *b, uint32_t i)
{
    const gr_adapter *a = &b->list[i];
    const size_t all = (size_t)b->count * b->rank;
    return (back_jobs){
        .u = {.m = b->t, .n = all, .k = a->in, .b = {.transposed = true}, .ldc = all},
        .v = {.m = b->t, .n = b->rank, .k = a->rows, .ldc = all},
        .to_b =
            {.m = a->rows, .n = b->rank, .k = b->t, .a = {.transposed = true}, .ldc = b->rank, .add = true},
        .to_a = {.m = all, .n = a->in, .k = b->t, .a = {.transposed = true}, .ldc = a->in, .add = true}};
}

static void back_layout(gr_workspace *c, const gr_adapters_back *b, unsigned threads, back_ws *w)
{
    const uint64_t all = (uint64_t)b->t * b->count * b->rank;
    uint64_t most = 0;
    for (uint32_t i = 0; i < b->count; i++) {
        const back_jobs j = jobs_of(b, i);
        most = GR_MAX(most, GR_MAX(gr_gemm_ws_bytes(&j.u, threads), gr_gemm_ws_bytes(&j.v, threads)));
        most = GR_MAX(most, GR_MAX(gr_gemm_ws_bytes(&j.to_b, threads), gr_gemm_ws_bytes(&j.to_a, threads)));
    }
    w->u = gr_workspace_floats(c, all);
    w->v = gr_workspace_floats(c, all);
    w->gemm = gr_workspace_bytes(c, most);
}

uint64_t gr_cpu_adapters_back_ws_bytes(const gr_adapters_back *b, unsigned threads)
{
    gr_workspace c = {0};
    back_ws w;
    back_layout(&c, b, threads, &w);
    return c.used;
}

/* scale x a^T of all, and scale dy b of each. */
static void narrow(gr_queue *q, const gr_adapters_back *b, const back_ws *w)
{
    const uint64_t n = (uint64_t)b->t * b->count * b->rank;
    const float *bucket = b->bucket, *dy = b->dy;
    back_jobs j = jobs_of(b, 0);
    j.u.a = (gr_mat){b->x, b->list->in, false};
    j.u.b = (gr_mat){bucket + b->list->a, b->list->in, true};
    j.u.c = w->u;
    gr_gemm(q, &j.u, w->gemm);
    for (uint32_t i = 0; i < b->count; i++) {
        const gr_adapter *a = &b->list[i];
        j = jobs_of(b, i);
        j.v.a = (gr_mat){dy + a->row, a->slot_rows, false};
        j.v.b = (gr_mat){bucket + a->b, b->rank, false};
        j.v.c = w->v + (size_t)i * b->rank;
        gr_gemm(q, &j.v, w->gemm);
    }
    gr_cpu_scale(q, w->u, b->scale, n, w->u);
    gr_cpu_scale(q, w->v, b->scale, n, w->v);
}

void gr_cpu_adapters_back(gr_queue *q, const gr_adapters_back *b, void *ws)
{
    gr_workspace c = {.base = ws};
    back_ws w;
    float *grad = b->grad;
    const size_t all = (size_t)b->count * b->rank;
    assert(b->grads == GR_F32);
    back_layout(&c, b, gr_team_size(q->team), &w);
    narrow(q, b, &w);
    for (uint32_t i = 0; i < b->count; i++) {
        const gr_adapter *a = &b->list[i];
        gr_gemm_job j = jobs_of(b, i).to_b;
        j.a = (gr_mat){(const float *)b->dy + a->row, a->slot_rows, true};
        j.b = (gr_mat){w.u + (size_t)i * b->rank, all, false};
        j.c = grad + a->b;
        gr_gemm(q, &j, w.gemm);
    }
    gr_gemm_job j = jobs_of(b, 0).to_a;
    j.a = (gr_mat){w.v, all, true};
    j.b = (gr_mat){b->x, b->list->in, false};
    j.c = grad + b->list->a;
    gr_gemm(q, &j, w.gemm);
}
