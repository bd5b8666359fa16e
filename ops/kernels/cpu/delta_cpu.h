/* ops/kernels/cpu/delta_cpu.h: what the two files of the gated delta rule share. Formulas:
 * ops/kernels/delta.h.
 */
#ifndef GR_OPS_KERNELS_CPU_DELTA_CPU_H
#define GR_OPS_KERNELS_CPU_DELTA_CPU_H

#include "ops/kernels/cpu/cpu.h"
#include "ops/kernels/delta.h"

/* What a pass makes of its rows before the recurrence. */
typedef struct gr_delta_rows {
    float *taps, *ones; /* [conv, channels]: weights a tap; [channels] */
    float *conv;        /* [T, channels] before silu */
    float *qkv;         /* [T, channels] after silu, q and k normalised */
    float *rate, *beta; /* [T, value_heads]; rate: log of decay */
} gr_delta_rows;
void gr_delta_lay_out(gr_workspace *c, const gr_delta_desc *d, uint32_t tokens, gr_delta_rows *r);
void gr_delta_rows_run(gr_queue *q, const gr_delta_call *c, const gr_delta_rows *r);
/* 1 / |x| */
float gr_delta_inverse(const gr_simd *v, const float *x, uint32_t n);

/* One token of one head. */
typedef struct gr_delta_step {
    const gr_simd *v;
    uint32_t dk, dv;
    const float *q, *k, *value;
    float decay, beta;
} gr_delta_step;
gr_delta_step gr_delta_step_at(const gr_delta_desc *d, const gr_delta_rows *r, size_t t, uint32_t head);
void gr_delta_decay(const gr_delta_step *s, float *state);
/* u [dv] = beta (v - S^T k); S += k u^T. */
void gr_delta_write(const gr_delta_step *s, float *state, float *u);
/* out [dv] = S^T x, x [dk]. */
void gr_delta_read(const gr_delta_step *s, const float *state, const float *x, float *out);

uint64_t gr_delta_back_bytes(const gr_delta_desc *d, const gr_pass_bounds *b);
void gr_delta_back(gr_queue *q, const gr_delta_call *c, const void *mixed, const void *dout, void *din,
                   const gr_delta_grads *grads);

#endif
