/* ops/kernels/experts_impl.h: what the two forms of a layer of experts share: all experts here
 * (ops/kernels/experts.c), or each rank with some of them (ops/kernels/experts_cut.c).
 */
#ifndef GR_OPS_KERNELS_EXPERTS_IMPL_H
#define GR_OPS_KERNELS_EXPERTS_IMPL_H

#include "ops/kernels/experts.h"

/* Workspaces of one run. */
typedef struct gr_experts_work {
    void *sort;
    gr_dispatch d;
    void *rows;           /* [R, H] a gather's, then a product's */
    void *h;              /* [R, I] the activation; backward: its gradient, then its weighted form */
    gr_experts_acts acts; /* forward, where they are not kept */
    void *d_gate_up;      /* backward: [R, 2 I] */
    float *d_weight;      /* [T, k] */
    void *d_logits;       /* [T, E] */
    float *dot;           /* [R], where down has a bias */
} gr_experts_work;

/* Tokens [first, first + T) of a call. */
typedef struct gr_experts_rows {
    gr_queue *q;
    const gr_experts_call *c;
    const gr_experts_work *w;
    uint32_t first, T, rows;
    const void *x, *router_x;
    gr_experts_acts acts;
    gr_expert_act act;
} gr_experts_rows;

static inline void *gr_experts_values(gr_workspace *c, gr_dtype type, uint64_t rows, uint64_t cols)
{
    return gr_workspace_bytes(c, rows * cols * gr_dtype_size(type));
}

/* Row `row` of x, of so many columns. */
static inline void *gr_experts_later(const gr_experts_call *c, const void *x, uint64_t row, uint64_t cols)
{
    return (char *)(uintptr_t)x + row * cols * gr_dtype_size(c->type);
}

/* Of what sorts T tokens; of products over as many rows as these have; of the router, backward. */
void gr_experts_sort_layout(gr_workspace *m, const gr_experts_call *c, uint32_t T, gr_experts_work *w);
void gr_experts_product_layout(gr_workspace *m, const gr_experts_call *c, uint32_t rows, bool backward,
                               gr_experts_work *w);
void gr_experts_router_layout(gr_workspace *m, const gr_experts_call *c, uint32_t T, gr_experts_work *w);

/* acts: of the call, or where they are not kept of any run; none from `first` on where the call has fewer. */
gr_experts_rows gr_experts_rows_of(gr_queue *q, const gr_experts_call *c, const gr_experts_work *w,
                                   uint32_t first, const gr_experts_acts *acts, bool kept);

/* The router chooses, and choices are counted. */
void gr_experts_route(const gr_experts_rows *r);
/* Choices become rows. */
void gr_experts_sort(const gr_experts_rows *r);
/* w->rows of each row's token of `from`. */
void gr_experts_gather(const gr_experts_rows *r, const void *from);
/* acts.gate_up from w->rows, then what the experts make of it into w->rows. */
void gr_experts_open(const gr_experts_rows *r);
void gr_experts_close(const gr_experts_rows *r);
/* From rows of dy in w->rows to those of dx, and gradients: of experts, and of choices' weights. */
void gr_experts_rows_back(const gr_experts_rows *r, const gr_experts_grads *g);
/* From the weights of choices to what the router read, and its gradients. */
void gr_experts_router_back(const gr_experts_rows *r, bool add, void *dx, const gr_experts_grads *g);

/* ---- where each rank has some of the experts ---- */
/* Rows whose first product is kept, of so many tokens: those that may arrive in a trip, of each run. */
uint64_t gr_experts_cut_kept(const gr_experts_call *c, uint32_t T);
uint64_t gr_experts_cut_bytes(const gr_experts_call *c, gr_layer_use use);
uint64_t gr_experts_cut_products_bytes(const gr_experts_call *c, unsigned threads, bool backward);
void gr_experts_cut_forward(gr_queue *q, const gr_experts_call *c, const void *base, void *y,
                            const gr_experts_acts *keep, void *ws);
void gr_experts_cut_backward(gr_queue *q, const gr_experts_call *c, const gr_experts_acts *kept,
                             const void *dy, bool add, void *dx, const gr_experts_grads *grads, void *ws);

#endif
