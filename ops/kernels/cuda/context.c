/* ops/kernels/cuda/context.c: what the CUDA kernels keep with a queue: handles, tables, the first failure. */
#include "ops/kernels/cuda/context.h"

#include <cuda_runtime_api.h>
#include <stdlib.h>
#include <string.h>

void gr_cu_note(gr_queue *q, gr_status st)
{
    gr_cu_context *x = gr_cu_context_of(q);
    if (!x->failed) x->failed = st;
}

/* ---- context --------------------------------------------------------------------------------------------
 */

void gr_cuda_detach(gr_queue *q)
{
    gr_cu_context *x = q->context;
    if (!x) return;
    gr_cu_gemm_close(x->gemm);
    gr_cu_attention_close(x->attention);
    for (uint32_t i = 0; i < x->n_ropes; i++) cudaFree(x->ropes[i].device);
    gr_diag_release(&x->d);
    free(x);
    q->context = NULL;
}

/* A small product of each form: the library and its first kernels are loaded now, so that what the device has
 * in use after this is what it takes. */
static gr_status load_products(gr_cu_context *x, gr_queue *q, gr_diag *d)
{
    enum { N = 256 };
    void *ws = NULL;
    gr_bf16 *a = NULL;
    cudaError_t e = cudaMalloc(&ws, GR_CU_GEMM_WS_BYTES + 2 * N * N * sizeof(float));
    if (e == cudaSuccess) {
        a = (gr_bf16 *)((char *)ws + GR_CU_GEMM_WS_BYTES);
        e = cudaMemsetAsync(a, 0, 2 * N * N * sizeof(float), q->stream);
    }
    gr_status st = GR_OK;
    for (int form = 0; form < 3 && e == cudaSuccess && !st; form++)
        st = gr_cu_gemm_run(x->gemm, q->stream,
                            &(gr_cu_gemm_call){.form = (gr_cu_gemm_form)form,
                                               .m = N,
                                               .n = N,
                                               .k = N,
                                               .a = a,
                                               .b = a,
                                               .lda = N,
                                               .ldb = N,
                                               .ldd = N,
                                               .d = (float *)(void *)a + N * N,
                                               .type = form == GR_CU_GEMM_TN ? GR_CU_F32 : GR_CU_BF16},
                            ws, d);
    if (e == cudaSuccess) e = cudaStreamSynchronize(q->stream);
    cudaFree(ws);
    if (e == cudaSuccess || st) return st;
    return gr_diag_error(d, (gr_loc){0}, e == cudaErrorMemoryAllocation ? GR_E_NOMEM : GR_E_FAILED,
                         "loading cuBLASLt: %s", cudaGetErrorString(e));
}

static gr_status attach(gr_queue *q, bool strict, bool nondeterministic, gr_diag *d)
{
    gr_cu_context *x = q->context = gr_calloc(1, sizeof(*x));
    gr_diag_init(&x->d);
    x->strict = strict;
    x->nondeterministic = nondeterministic;
    gr_status st = gr_cu_gemm_open(&x->gemm, d);
    if (!st)
        st = gr_cu_attention_open(&x->attention, strict ? GR_CU_ATTENTION_STRICT : GR_CU_ATTENTION_AUTO, d);
    if (!st) st = load_products(x, q, d);
    if (st) gr_cuda_detach(q);
    return st;
}

gr_status gr_cuda_attach(gr_queue *q, gr_diag *d)
{
    return attach(q, false, false, d);
}

gr_status gr_cuda_attach_strict(gr_queue *q, gr_diag *d)
{
    return attach(q, true, false, d);
}

gr_status gr_cuda_attach_nondeterministic(gr_queue *q, gr_diag *d)
{
    return attach(q, false, true, d);
}

gr_status gr_cuda_attach_strict_nondeterministic(gr_queue *q, gr_diag *d)
{
    return attach(q, true, true, d);
}

gr_status gr_cuda_check(gr_queue *q, gr_diag *d)
{
    gr_cu_context *x = q->context;
    gr_status st = x ? x->failed : GR_OK;
    if (!st) return GR_OK;
    for (size_t i = 0; i < x->d.n; i++)
        if (x->d.messages[i].severity == GR_ERROR)
            gr_diag_error(d, (gr_loc){0}, st, "%s", x->d.messages[i].text);
    gr_diag_release(&x->d);
    gr_diag_init(&x->d);
    x->failed = GR_OK;
    return st;
}

const float *gr_cu_frequencies(gr_queue *q, const gr_rope_desc *d, uint32_t head_dim)
{
    gr_cu_context *x = gr_cu_context_of(q);
    gr_rope r = {0};
    gr_rope_init(&r, d);
    r.n = head_dim / 2;
    for (uint32_t i = 0; i < x->n_ropes; i++)
        if (x->ropes[i].n == r.n && !memcmp(x->ropes[i].inv_freq, r.inv_freq, r.n * sizeof(float)))
            return x->ropes[i].device;
    if (x->n_ropes == GR_CU_ROPES_MAX) {
        gr_cu_note(q, gr_diag_error(&x->d, (gr_loc){0}, GR_E_FAILED, "more than %d kinds of rotary positions",
                                    GR_CU_ROPES_MAX));
        return NULL;
    }
    gr_cu_rope *made = &x->ropes[x->n_ropes];
    made->n = r.n;
    memcpy(made->inv_freq, r.inv_freq, r.n * sizeof(float));
    void *at = NULL;
    cudaError_t e = cudaMalloc(&at, r.n * sizeof(float));
    if (e == cudaSuccess) e = cudaMemcpy(at, r.inv_freq, r.n * sizeof(float), cudaMemcpyHostToDevice);
    if (e == cudaSuccess) e = cudaStreamSynchronize(cudaStreamLegacy); /* for which no queue waits */
    if (e != cudaSuccess) {
        gr_cu_note(q,
                   gr_diag_error(&x->d, (gr_loc){0}, GR_E_FAILED, "RoPE's table: %s", cudaGetErrorString(e)));
        cudaFree(at);
        return NULL;
    }
    made->device = at;
    x->n_ropes++;
    return at;
}
