/* ops/kernels/cpu/kernels_cpu.c: the table of the CPU device. */
#include <string.h>

#include "ops/kernels/cpu/cpu.h"

uint64_t gr_cpu_kv_block_bytes(const gr_model_shape *s)
{
    return gr_align(gr_kv_block_floats(s) * sizeof(float), 256);
}

void gr_cpu_kv_copy(gr_queue *q, const gr_model_shape *s, void *kv, const uint32_t *src, const uint32_t *dst,
                    uint32_t n)
{
    (void)q;
    const uint64_t bytes = gr_cpu_kv_block_bytes(s);
    for (uint32_t i = 0; i < n; i++)
        if (src[i] != dst[i]) memcpy((char *)kv + dst[i] * bytes, (char *)kv + src[i] * bytes, bytes);
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

static const char *numerics(void)
{
    return "cpu-fma";
}

const gr_kernels gr_kernels_cpu = {
    .device = "cpu",
    .dtype = GR_F32,
    .columns = GR_DEVICE,
    .invariant = true,
    .chained = true,
    .attention_cost = 1,
    .sizes = {.micro_tokens = 4096,
              .concurrent = 256,
              .prefill_tokens = 512,
              .head_elems = 8 << 20,
              .head_rows = 512,
              .head_step = 1},
    .numerics = numerics,
    .acts_bytes = gr_cpu_acts_bytes,
    .layer_ws_bytes = gr_cpu_layer_ws_bytes,
    .extend_ws_bytes = gr_cpu_extend_ws_bytes,
    .head_ws_bytes = gr_cpu_head_ws_bytes,
    .value_ws_bytes = gr_cpu_value_ws_bytes,
    .kv_block_bytes = gr_cpu_kv_block_bytes,
    .embed_forward = gr_cpu_embed_forward,
    .embed_ws_bytes = gr_cpu_embed_ws_bytes,
    .embed_backward = gr_cpu_embed_backward,
    .layer_forward = gr_cpu_layer_forward,
    .layer_backward = gr_cpu_layer_backward,
    .head_forward = gr_cpu_head_forward,
    .head_backward = gr_cpu_head_backward,
    .value_forward = gr_cpu_value_forward,
    .value_backward = gr_cpu_value_backward,
    .layer_extend = gr_cpu_layer_extend,
    .kv_copy = gr_cpu_kv_copy,
    .head_sample = gr_cpu_head_sample,
    .zero = gr_cpu_zero,
    .copy = copy,
    .copy_rows = copy_rows,
    .add = gr_cpu_add,
    .sum_squares_ws_bytes = gr_cpu_sum_squares_ws_bytes,
    .sum_squares = gr_cpu_sum_squares,
    .checksum = gr_host_checksum,
    .adamw = gr_cpu_adamw,
};
