/* ops/kernels/cpu/kernels_cpu.c: the table of the CPU device. */
#include <string.h>

#include "ops/kernels/cpu/adapters_cpu.h"
#include "ops/kernels/cpu/cpu.h"
#include "ops/kernels/delta.h"
#include "ops/kernels/experts.h"
#include "ops/kernels/cpu/head_cpu.h"
#include "ops/kernels/latent.h"

static uint64_t kv_block_bytes(const gr_attention_desc *d)
{
    return gr_kv_block_bytes(d);
}

static void copy_blocks(gr_queue *q, void *blocks, uint64_t bytes, const uint32_t *src, const uint32_t *dst,
                        uint32_t n)
{
    (void)q;
    for (uint32_t i = 0; i < n; i++)
        if (src[i] != dst[i]) memcpy((char *)blocks + dst[i] * bytes, (char *)blocks + src[i] * bytes, bytes);
}

static void copy(gr_queue *q, void *to, const void *from, uint64_t bytes)
{
    (void)q;
    memcpy(to, from, bytes);
}

static void copy_rows(gr_queue *q, void *to, uint64_t to_stride, const void *from, uint64_t from_stride,
                      uint64_t row_bytes, uint64_t n)
{
    (void)q;
    for (uint64_t i = 0; i < n; i++)
        memcpy((char *)to + i * to_stride, (const char *)from + i * from_stride, row_bytes);
}

static void gather(gr_queue *q, const void *x, const uint32_t *row, uint32_t n, uint32_t width, void *y)
{
    const uint64_t bytes = width * sizeof(float);
    (void)q;
    for (uint32_t i = 0; i < n; i++) memcpy((char *)y + i * bytes, (const char *)x + row[i] * bytes, bytes);
}

static const char *numerics(void)
{
    return "cpu-fma";
}

static const gr_layer_ops layer = {
    .keeps_rotated = true,
    .turns = true,
    .extends_packed = true,
    .acts = 1 << GR_ACT_SILU | 1 << GR_ACT_GELU_TANH | 1 << GR_ACT_SWIGLU_OAI,
    .norm = gr_cpu_norm,
    .norm_add = gr_cpu_norm_add,
    .norm_backward = gr_cpu_norm_backward,
    .product_ws_bytes = gr_cpu_product_ws_bytes,
    .fp8_ws_bytes = gr_cpu_fp8_ws_bytes,
    .fp8_dw_ws_bytes = gr_cpu_fp8_dw_ws_bytes,
    .has_fp8 = true,
    .quantize = gr_cpu_quantize,
    .product = gr_cpu_product,
    .product_add = gr_cpu_product_add,
    .product_dx = gr_cpu_product_dx,
    .product_dw = gr_cpu_product_dw,
    .merge_ws_bytes = gr_cpu_merge_ws_bytes,
    .merge = gr_cpu_merge,
    .has_nf4 = true,
    .open = gr_cpu_open,
    .adapters_back_ws_bytes = gr_cpu_adapters_back_ws_bytes,
    .adapters_back = gr_cpu_adapters_back,
    .scale = gr_cpu_scale,
    .scale_by = gr_cpu_scale_by,
    .column_sums = gr_cpu_column_sums,
    .rotate = gr_cpu_rotate,
    .rotate_backward = gr_cpu_rotate_backward,
    .back_ws_bytes = gr_cpu_back_ws_bytes,
    .attend_ws_bytes = gr_cpu_attend_ws_bytes,
    .kv_block_bytes = kv_block_bytes,
    .attend = gr_cpu_attend,
    .attend_backward = gr_cpu_attend_backward,
    .gate = gr_cpu_gate,
    .gate_backward = gr_cpu_gate_backward,
    .activate = gr_cpu_activate,
    .activate_backward = gr_cpu_activate_backward,
    .delta = &gr_delta_cpu,
    .latent = &gr_latent_cpu,
    .experts = &gr_experts_cpu,
};

const gr_kernels gr_kernels_cpu = {
    .device = "cpu",
    .dtype = GR_F32,
    .columns = GR_DEVICE,
    .invariant = true,
    .rings = true,
    .chained = true,
    .attention_cost = 1,
    .sizes = {.micro_tokens = 4096,
              .concurrent = 256,
              .prefill_tokens = 512,
              .head_elems = 8 << 20,
              .head_rows = 512,
              .head_step = 1},
    .numerics = numerics,
    .head_ws_bytes = gr_cpu_head_ws_bytes,
    .value_ws_bytes = gr_cpu_value_ws_bytes,
    .embed_forward = gr_cpu_embed_forward,
    .embed_ws_bytes = gr_cpu_embed_ws_bytes,
    .embed_backward = gr_cpu_embed_backward,
    .head_forward = gr_cpu_head_forward,
    .head_backward = gr_cpu_head_backward,
    .teach_ws_bytes = gr_cpu_teach_ws_bytes,
    .teach = gr_cpu_teach,
    .head = &gr_head_cpu,
    .value_forward = gr_cpu_value_forward,
    .value_backward = gr_cpu_value_backward,
    .layer = &layer,
    .copy_blocks = copy_blocks,
    .head_sample = gr_cpu_head_sample,
    .zero = gr_cpu_zero,
    .copy = copy,
    .copy_rows = copy_rows,
    .gather = gather,
    .add = gr_cpu_add,
    .blend = gr_cpu_blend,
    .sum_squares_ws_bytes = gr_cpu_sum_squares_ws_bytes,
    .sum_squares = gr_cpu_sum_squares,
    .to_unit = gr_cpu_to_unit,
    .muon_mix = gr_cpu_muon_mix,
    .checksum = gr_host_checksum,
    .optim_step = gr_cpu_optim_step,
};
