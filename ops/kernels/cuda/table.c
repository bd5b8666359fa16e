/* ops/kernels/cuda/table.c: the kernels of the CUDA device; without CUDA, its sizes alone. */
#include "ops/kernels/cuda/launch.h"
#include "ops/kernels/delta.h"
#include "ops/kernels/experts.h"
#include "ops/kernels/latent.h"
#include "ops/kernels/cuda/adapters.h"
#include "ops/kernels/cuda/adapters_layout.h"
#include "ops/kernels/cuda/layer.h"
#include "ops/kernels/cuda/layout.h"
#include "ops/kernels/cuda/model.h"
#include "ops/kernels/steps.h"

/* Versions and the type of GPU are part of a run's own record: a plan is made where neither is known. */
static const char *numerics(void)
{
    return "cuda-5";
}

static const char *numerics_strict(void)
{
    return "cuda-3 strict";
}

static const char *numerics_nondeterministic(void)
{
    return "cuda-5 loose";
}

static const char *numerics_strict_nondeterministic(void)
{
    return "cuda-3 strict loose";
}

#ifdef GR_CUDA
#define RUNS(name)       .name = gr_cuda_##name
#define RUNS_AS(name, f) .name = gr_cuda_##f
#else
#define RUNS(name)       .name = NULL
#define RUNS_AS(name, f) .name = NULL
#endif

/* Workspaces do not take turns but where tokens are cut: what a plan counts would change with them. */
#define LAYER                                                                                                \
    .acts = 1 << GR_ACT_SILU | 1 << GR_ACT_GELU_TANH | 1 << GR_ACT_SWIGLU_OAI,                               \
    .attend_unfit = gr_cu_attend_unfit, .product_ws_bytes = gr_cu_product_ws_bytes,                          \
    .fp8_ws_bytes = gr_cu_fp8_ws_bytes, .fp8_dw_ws_bytes = gr_cu_fp8_dw_ws_bytes, .has_fp8 = true,           \
    RUNS(quantize), .back_ws_bytes = gr_cu_back_ws_bytes, .kv_block_bytes = gr_cu_kv_block_bytes,            \
    RUNS(norm), RUNS(norm_add), RUNS(norm_round), RUNS(norm_backward), RUNS(product_norms), RUNS(product),   \
    RUNS(product_add), RUNS(product_activate), RUNS(activate_round), .merge_ws_bytes = gr_cu_merge_ws_bytes, \
    .adapters_back_ws_bytes = gr_cu_adapters_back_ws_bytes, RUNS(merge), .has_nf4 = true, RUNS(open),        \
    RUNS(adapters_back), RUNS(product_dx), RUNS(product_dw), RUNS(product_back), RUNS(scale),                \
    RUNS(scale_by), RUNS_AS(copy_rows, copy_activations), RUNS(column_sums), RUNS(rotate),                   \
    RUNS(rotate_attend), RUNS(rotate_backward), RUNS(gate), RUNS(gate_backward), RUNS(attend),               \
    RUNS(attend_round), RUNS(attend_backward), RUNS(activate), RUNS(activate_backward),                      \
    .experts = &gr_experts_cuda, .delta = &gr_delta_cuda, .latent = &gr_latent_cuda

static const gr_layer_ops layer = {LAYER, .attend_ws_bytes = gr_cu_attend_ws_bytes};
static const gr_layer_ops layer_loose = {LAYER, .attend_ws_bytes = gr_cu_attend_ws_bytes_loose};

static const gr_head_ops head = {
    .part_ws_bytes = gr_cu_part_ws_bytes,
    RUNS_AS(hidden, head_hidden),
    RUNS_AS(part, head_part),
    RUNS_AS(join, head_join),
    RUNS_AS(part_backward, head_part_backward),
    RUNS_AS(hidden_backward, head_hidden_backward),
};

/* What the four have in common. A queue knows by attach which of them it is for. */
#define ALL                                                                                               \
    .device = "cuda", .dtype = GR_BF16, .master = true, .columns = GR_HOST, .queued = true,               \
    .sizes = {.micro_tokens = 16384,                                                                      \
              .concurrent = 256,                                                                          \
              .prefill_tokens = 4096,                                                                     \
              .head_elems = 128 << 20,                                                                    \
              .head_rows = 4096,                                                                          \
              .head_step = 256,                                                                           \
              .head_sums = true},                                                                         \
    .head_ws_bytes = gr_cu_head_ws_bytes, .value_ws_bytes = gr_cu_value_ws_bytes,                         \
    .embed_ws_bytes = gr_cu_embed_backward_ws, .sum_squares_ws_bytes = gr_cu_sum_squares_ws,              \
    .unfit = gr_cu_unfit, RUNS(detach), RUNS(check), RUNS(embed_forward), RUNS(embed_backward),           \
    RUNS(head_forward), RUNS(head_backward), .head = &head, RUNS(teach),                                  \
    .teach_ws_bytes = gr_cu_teach_ws_bytes, RUNS(value_forward), RUNS(value_backward), RUNS(copy_blocks), \
    RUNS(head_sample), RUNS(zero), RUNS(copy), RUNS(copy_rows), RUNS(gather), RUNS(add), RUNS(blend),     \
    RUNS(sum_squares), RUNS(to_unit), RUNS(muon_mix), RUNS(optim_step), RUNS(checksum), .losses = true,   \
    RUNS(code_run), .steps = &gr_steps_cuda, .rings = true

/* Measured: docs/PERFORMANCE.md, "What strict costs". */
#define STRICT_ATTENTION 2.2

static const gr_kernels strict_nondeterministic = {
    ALL,
    .attention_cost = STRICT_ATTENTION,
    .invariant = true,
    .unordered = true,
    .numerics = numerics_strict_nondeterministic,
    .layer = &layer_loose,
    RUNS_AS(attach, attach_strict_nondeterministic),
};

static const gr_kernels nondeterministic = {
    ALL,
    .attention_cost = 1,
    .unordered = true,
    .strict = &strict_nondeterministic,
    .numerics = numerics_nondeterministic,
    .layer = &layer_loose,
    RUNS_AS(attach, attach_nondeterministic),
};

static const gr_kernels strict = {
    ALL,
    .attention_cost = STRICT_ATTENTION,
    .invariant = true,
    .nondeterministic = &strict_nondeterministic,
    .numerics = numerics_strict,
    .layer = &layer,
    RUNS_AS(attach, attach_strict),
};

const gr_kernels gr_kernels_cuda = {
    ALL,
    .attention_cost = 1,
    .strict = &strict,
    .nondeterministic = &nondeterministic,
    .numerics = numerics,
    .layer = &layer,
    RUNS(attach),
};
