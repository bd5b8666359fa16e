/* ops/kernels/experts.h: mixtures of experts: what a layer of them asks of a device (gr_layer_ops.experts).
 *
 * Letters: T tokens, E experts, k of them for each token (top_k), R = T k rows, H hidden, I an expert's inner
 * size. A *choice* is a token's j-th expert, numbered t k + j; a *row* is a choice's place once choices are
 * sorted by expert, and by token within an expert. Nothing is dropped and nothing is padded: R rows hold
 * every routing there is, so a buffer of R rows is the bound, whichever experts the router likes. A caller
 * with less memory goes through its tokens in runs of at most gr_experts_run tokens: all of a token's choices
 * are in its run, so its sum is whole, and as runs follow each other in the order of tokens, gradients of
 * weights are summed in the order in which one run would.
 *
 * Weights of experts are fused: gate_up [E, 2 I, H] (gate's rows of an expert, then up's), down [E, H, I].
 *
 * Logits, scores and weights of choices are fp32 on every device; rows have the device's type. All pointers
 * are device pointers; nothing is allocated, and no sizes depend on what the router chose, so that calls can
 * be captured. The bits of a token's result follow from the token and the weights alone, on every device:
 * each element of a product is one chain over its terms, choices are compared by value and then by index, and
 * a token's experts are summed in the order of its choices. Gradients of weights: sums over rows in their
 * order.
 *
 * Sources: Shazeer et al., arXiv:1701.06538; the sigmoid router with a bias that selects and groups:
 * DeepSeek-AI, arXiv:2412.19437; grouped products without capacity: Gale et al., arXiv:2211.15841; the
 * modelling code of Hugging Face transformers 5 for qwen3_moe, gpt_oss and deepseek_v3.
 */
#ifndef GR_OPS_KERNELS_EXPERTS_H
#define GR_OPS_KERNELS_EXPERTS_H

#include "ops/kernels/workspace.h"
#include "ops/kernels/kernels.h"
#include "ops/kernels/routing.h"
#include "ops/model/layer.h"

#define GR_EXPERT_RUN 8192 /* tokens that keep a device busy, so that weights are not read too often */

/* Where choices go. */
typedef struct gr_dispatch {
    uint32_t *first;  /* [E + 1] first row of each expert; first[E] = R */
    uint32_t *row;    /* [T, k] the row of a choice */
    uint32_t *choice; /* [R] the choice of a row; its token is choice / k */
} gr_dispatch;

/* x [T, H] times w [E, H], transposed; w NULL: zeros. */
typedef struct gr_router_product {
    uint32_t T, H, E;
    const void *x, *w;
} gr_router_product;

/* What the rows of each expert are multiplied by. */
typedef struct gr_expert_product {
    uint32_t experts, rows, in, out;
    const uint32_t *first; /* [experts + 1] */
    const void *w;         /* [experts, out, in] */
} gr_expert_product;

/* An expert's gate and up, and what they make. */
typedef struct gr_expert_act {
    gr_activation act;
    float limit; /* of GR_ACT_SWIGLU_OAI */
    uint32_t rows, inner;
} gr_expert_act;

static inline void gr_dispatch_layout(gr_workspace *c, uint32_t E, uint32_t k, uint32_t T, gr_dispatch *d)
{
    const uint64_t rows = (uint64_t)T * k;
    d->first = gr_workspace_bytes(c, (E + UINT64_C(1)) * sizeof(*d->first));
    d->row = gr_workspace_bytes(c, rows * sizeof(*d->row));
    d->choice = gr_workspace_bytes(c, rows * sizeof(*d->choice));
}

/* A balance loss: its coefficient, and what it is over. Source: Fedus et al., arXiv:2101.03961, as
 * load_balancing_loss_func of Hugging Face transformers has it. */
typedef struct gr_balance_loss {
    uint32_t routers, experts, top_k;
    double coefficient;
} gr_balance_loss;

/* Its value, without the coefficient, of load and share [routers, experts] of a tally; 0 of no tokens. */
double gr_balance_value(const gr_balance_loss *b, const double *load, const double *share);

typedef struct gr_experts_ops {
    /* What of a description it is not made for, as a text; NULL: nothing. No function: it is for all. */
    const char *(*unfit)(const gr_experts_desc *e);

    /* ---- router ---- */
    /* logits [T, E] = x [T, H] w [E, H]^T + bias [E] (NULL: none), in fp32 from the product on. */
    void (*logits)(gr_queue *q, const gr_router_product *p, const void *bias, float *logits, void *ws);
    /* dx [T, H] = or += (add) d_logits [T, E] w; grad [E, H] (NULL: none) += d_logits^T x, grad_bias (NULL:
     * none) += its columns.
     */
    void (*logits_backward)(gr_queue *q, const gr_router_product *p, const void *d_logits, bool add, void *dx,
                            void *grad, void *grad_bias, gr_dtype grads, void *ws);
    uint64_t (*logits_ws_bytes)(uint32_t T, uint32_t H, uint32_t E, unsigned threads, bool backward);
    /* expert [T, k] and weight [T, k] of each token, best first. Scores are softmax(logits), of all experts
     * or (softmax_after, or normalize) of the chosen ones, or sigmoid(logits). Chosen are the experts with
     * the highest score + selection (NULL: 0), equal ones by the lower index, among those of the
     * top_groups groups whose best two add up to most. given [T, k], where not NULL: the choice was made
     * elsewhere and is copied to expert; then the weights alone are computed, but for a token whose first one
     * is GR_NO_EXPERT. Logits that are not numbers are above all others, and make weights that are none.
     * selection [E, GR_SELECTION_PARTS]: sums. */
    void (*route)(gr_queue *q, const gr_experts_desc *e, const float *logits, const void *selection,
                  const uint16_t *given, uint32_t T, uint16_t *expert, float *weight);
    /* d_logits [T, E] of the device's type, from d_weight [T, k]; which experts are chosen has no gradient.
     */
    void (*route_backward)(gr_queue *q, const gr_experts_desc *e, const float *logits, const uint16_t *expert,
                           const float *d_weight, uint32_t T, void *d_logits);

    /* weight [T, k] = plain [T, k] times each choice's expert's number, of scale [E]. */
    void (*scale_choices)(gr_queue *q, uint32_t k, uint32_t T, const uint16_t *expert, const void *scale,
                          const float *plain, float *weight);
    /* d_weight [T, k] in place, from the gradient of weight to that of plain; grad [E] (NULL: none) += its
     * part, in an order that sizes decide. */
    void (*scale_choices_backward)(gr_queue *q, uint32_t E, uint32_t k, uint32_t T, const uint16_t *expert,
                                   const void *scale, const float *plain, float *d_weight, void *grad,
                                   gr_dtype grads);

    /* ---- counting, into a tally (ops/kernels/routing.h) ---- */
    /* Of the T tokens that have experts recorded [T, k], how many there are, and how many whose experts
     * [T, k] are others, in whatever order; differs becomes 1 for these, and those for which it was 0 are
     * added to t->tokens. */
    void (*compare)(gr_queue *q, uint32_t k, uint32_t T, const uint16_t *expert, const uint16_t *recorded,
                    const gr_tally *t, uint32_t *differs);
    /* load [E] += how many of the choices [T, k] each expert has. */
    void (*count)(gr_queue *q, uint32_t E, uint32_t k, uint32_t T, const uint16_t *expert, double *load);
    /* share [E] += softmax(logits [T, E]), token by token. */
    void (*shares)(gr_queue *q, uint32_t E, uint32_t T, const float *logits, double *share);
    /* pull [E] of the balance loss c E sum over experts e of f_e P_e, over all tokens of all routers, N of
     * them: f_e the choices of e over N, whose sum is k, and P_e the mean of softmax(logits)_e. A token's
     * loss is the sum of pull softmax(logits). load [routers, E], each with k choices a token. */
    void (*pull)(gr_queue *q, const gr_balance_loss *b, const double *load, float *pull);
    /* bias [n, GR_SELECTION_PARTS], of experts from `first` on, += rate for each with less load [E] than the
     * mean, -= rate for each with more (arXiv:2412.19437). NULL: not built. */
    void (*rebalance)(gr_queue *q, uint32_t E, const double *load, uint32_t first, uint32_t n, float rate,
                      void *bias);
    /* d_logits [T, E] += the gradient of the sum over experts and tokens of pull [E] softmax(logits). */
    void (*balance_backward)(gr_queue *q, uint32_t E, uint32_t T, const float *logits, const float *pull,
                             void *d_logits);

    /* ---- dispatch and combine ---- */
    uint64_t (*dispatch_ws_bytes)(uint32_t E, uint32_t k, uint32_t T);
    void (*dispatch)(gr_queue *q, uint32_t E, uint32_t k, uint32_t T, const uint16_t *expert,
                     const gr_dispatch *to, void *ws);
    /* rows [R, H] = x [T, H] of each row's token. */
    void (*gather)(gr_queue *q, const gr_dispatch *d, uint32_t k, uint32_t T, uint32_t H, const void *x,
                   void *rows);
    /* y [T, H] = base (NULL: 0) + scale times the sum over a token's choices of weight [T, k] (NULL: 1) times
     * its row. y == base is fine. Also the backward of gather, without weights. */
    void (*combine)(gr_queue *q, const gr_dispatch *d, uint32_t k, uint32_t T, uint32_t H, const void *rows,
                    const float *weight, const void *base, float scale, void *y);
    /* Of each of R rows, what its choice has in [T, k]: its expert, counted among `held` that follow each
     * other, to row_expert [R]; its weight (NULL: not asked) to row_weight [R]. */
    void (*choice_rows)(gr_queue *q, const gr_dispatch *d, uint32_t R, uint32_t held, const uint16_t *expert,
                        const float *weight, uint16_t *row_expert, float *row_weight);
    /* to [T, k] = rows [R], each at its choice. */
    void (*choice_back)(gr_queue *q, const gr_dispatch *d, uint32_t R, const float *rows, float *to);

    /* ---- products of groups of rows ---- */
    uint64_t (*product_ws_bytes)(uint32_t rows, uint32_t in, uint32_t out, unsigned threads, bool backward);
    /* y [R, out] = x [R, in] w_e^T + bias_e [E, out] (NULL: none), e the row's expert. */
    void (*product)(gr_queue *q, const gr_expert_product *p, const void *x, const void *bias, void *y,
                    void *ws);
    /* dx [R, in] = dy [R, out] w_e */
    void (*product_dx)(gr_queue *q, const gr_expert_product *p, const void *dy, void *dx, void *ws);
    /* grad [E, out, in]: grad_e += dy^T x over the rows of e; those of an expert without rows are not
     * touched. w is not read. */
    void (*product_dw)(gr_queue *q, const gr_expert_product *p, const void *dy, const void *x, void *grad,
                       gr_dtype grads, void *ws);
    /* grad [E, cols]: grad_e += the sum over the rows of e of weight [T, k] (NULL: 1) times dy [R, cols]. */
    void (*bias_backward)(gr_queue *q, const gr_dispatch *d, uint32_t E, uint32_t cols, const void *dy,
                          const float *weight, void *grad, gr_dtype grads);

    /* ---- activation ---- */
    /* h [R, I] of gate_up [R, 2 I]. */
    void (*activate)(gr_queue *q, const gr_expert_act *a, const void *gate_up, void *h);
    /* Of y = weight (h down^T + bias): dh [R, I] is what an unweighted dy gives to h. From it follow
     * d_gate_up [R, 2 I] and d_weight [T, k] = base [R] (NULL: 0; of a bias, dy . bias) + dh . h; weighted
     * [R, I] = weight h is what down's gradient wants beside dy. weighted == dh is fine. d NULL: a dense
     * MLP's rows, whose weights are 1 and have no gradient; weight, base and d_weight are not read. */
    void (*activate_backward)(gr_queue *q, const gr_expert_act *a, const gr_dispatch *d, const float *weight,
                              const float *base, const void *gate_up, const void *dh, void *d_gate_up,
                              void *weighted, float *d_weight);
    /* dot [R] = dy [R, H] . bias_e [E, H] of each row: base of activate_backward where down has a bias. */
    void (*bias_dot)(gr_queue *q, const gr_dispatch *d, uint32_t E, uint32_t R, uint32_t H, const void *dy,
                     const void *bias, float *dot);
} gr_experts_ops;

/* In a build without CUDA, sizes alone. */
extern const gr_experts_ops gr_experts_cpu, gr_experts_cuda;

/* ---- the MLP of a layer of experts, over those: ops/kernels/experts.c ------------------------------------
 */

/* Its weights; biases are NULL where the description has none. */
typedef struct gr_experts_weights {
    const void *router, *router_bias;   /* [E, H], [E]; router NULL: all logits are 0 */
    const void *selection;              /* [E, GR_SELECTION_PARTS]: sums; has no gradient */
    const void *gate_up, *gate_up_bias; /* [E, 2 I, H], [E, 2 I] */
    const void *down, *down_bias;       /* [E, H, I], [E, H] */
    const void *expert_scale;           /* [E] */
} gr_experts_weights;

/* Where their gradients are added; NULL: not those. */
typedef struct gr_experts_grads {
    gr_dtype type;
    void *router, *router_bias, *gate_up, *gate_up_bias, *down, *down_bias, *expert_scale;
} gr_experts_grads;

/* What backward needs beside x. */
typedef struct gr_experts_acts {
    float *logits;    /* [T, E] */
    uint16_t *expert; /* [T, k] */
    float *weight;    /* [T, k] */
    float *plain;     /* [T, k] weights before their experts' numbers, where these have some; else NULL */
    void *gate_up;    /* [R, 2 I], run by run; where experts are divided, of each run's first trip */
} gr_experts_acts;

/* What a forward call adds to a tally. */
typedef struct gr_experts_count {
    gr_tally tally;
    const uint16_t *recorded; /* [T, k] what the router's choice is compared with; NULL: nothing */
    uint32_t *differs;        /* [T] */
    bool shares;
} gr_experts_count;

/* One call: T tokens of the normalised input x [T, H]. Runs of `run` tokens, gr_experts_run(T) or less: it
 * sizes the workspace, and changes no bits of y, nor where sums are chained (ops/kernels/kernels.h) of
 * gradients.
 *
 * Where e->holders says that experts are divided over ranks, all of the queue's holders make the call, be it
 * with no tokens (ops/kernels/experts_cut.c). Bits of y are the same; sums of gradients have another order.
 */
typedef struct gr_experts_call {
    const gr_experts_ops *ops;
    const gr_kernels *k; /* where experts are divided */
    const gr_experts_desc *e;
    gr_dtype type; /* of values: the device's */
    uint32_t T, H, run;
    bool again;    /* where experts are divided, the first product is made again backward, not kept */
    uint32_t most; /* where experts are divided: tokens of a run on any rank, at most; run is that or T */
    float scale;   /* of what is added to base */
    const void *x;
    const void *router_x;  /* [T, H] what the router reads; NULL: x. Not where experts are divided */
    void *d_router;        /* of a backward call: d loss / d it */
    const uint16_t *given; /* [T, k] experts chosen elsewhere; NULL: the router chooses */
    uint16_t *record;      /* [T, k] where those chosen go, of a call that keeps nothing; NULL: nowhere */
    const gr_experts_count *count; /* NULL: nothing is counted */
    const float *pull;             /* [E] of balance_backward; NULL: none */
    uint32_t padding;              /* tokens at the end that nobody counts, and that nothing balances */
    gr_exchanges *exchanges;       /* of gr_routing */
    gr_experts_weights w;
    void *products; /* of products: gr_experts_products_bytes */
} gr_experts_call;

/* Of so many of the call's tokens. */
void gr_experts_acts_layout(gr_workspace *m, const gr_experts_call *c, uint32_t T, gr_experts_acts *a);
uint64_t gr_experts_products_bytes(const gr_experts_call *c, unsigned threads, bool backward);
uint64_t gr_experts_ws_bytes(const gr_experts_call *c, gr_layer_use use);
/* y [T, H] = base (NULL: 0) + scale times the experts' sum; y == base is fine. keep: NULL, or what
 * gr_experts_backward reads (use GR_LAYER_KEEP). */
void gr_experts_forward(gr_queue *q, const gr_experts_call *c, const void *base, void *y,
                        const gr_experts_acts *keep, void *ws);
/* dx [T, H] = or += (add) what dy [T, H], the gradient of the experts' sum (scale times that of y), gives to
 * x; dx != dy. */
void gr_experts_backward(gr_queue *q, const gr_experts_call *c, const gr_experts_acts *kept, const void *dy,
                         bool add, void *dx, const gr_experts_grads *grads, void *ws);

/* Where experts are divided: rows that one rank sends another in a trip, at most, of runs of so many tokens:
 * half as many again as there are where experts are chosen evenly. */
static inline uint32_t gr_experts_slot(const gr_experts_desc *e, uint32_t most)
{
    const uint64_t rows = (uint64_t)most * e->top_k;
    return (uint32_t)GR_MIN(rows, gr_align((3 * rows + 2 * e->holders - 1) / (2 * e->holders), 8));
}

/* Tokens of each run of a pass of so many, the last one shorter; most: 0 where nothing else is said. */
static inline uint32_t gr_experts_run(uint32_t tokens, uint32_t most)
{
    return GR_MIN(tokens, most ? most : GR_EXPERT_RUN);
}

#endif
