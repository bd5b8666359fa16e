/* tests/gpu/attach.h: a queue's context for programs that --own leaves without cuBLASLt's products.
 *
 * A device's own `attach` runs a small product of each form, and under racecheck and synccheck kernels of
 * cuBLASLt break off with an illegal access: no kernel after them would be followed.
 */
#ifndef GR_TESTS_GPU_ATTACH_H
#define GR_TESTS_GPU_ATTACH_H

#include "ops/kernels/cuda/context.h"
#include "ops/kernels/kernels.h"
#include "tests/gpu/check.h"

/* As k->attach; with --own nothing runs. A program ends where it fails. */
static inline void attach_queue(const gr_kernels *k, gr_queue *q)
{
    gr_diag d;
    gr_diag_init(&d);
    gr_status st;
    if (check_own) {
        gr_cu_context *x = q->context = gr_calloc(1, sizeof(*x));
        gr_diag_init(&x->d);
        x->strict = k == gr_kernels_cuda.strict;
        st = gr_cu_gemm_open(&x->gemm, &d);
        if (!st)
            st = gr_cu_attention_open(&x->attention,
                                      x->strict ? GR_CU_ATTENTION_STRICT : GR_CU_ATTENTION_AUTO, &d);
    } else {
        st = k->attach(q, &d);
    }
    expect_ok(st, &d, "attach");
    if (st) exit(1);
    gr_diag_release(&d);
}

#endif
