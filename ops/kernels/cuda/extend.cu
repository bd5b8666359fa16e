/* ops/kernels/cuda/extend.cu: attention of new tokens to keys in the paged pool, for prefill. See flash.cuh.
 */
#include "ops/kernels/cuda/flash.cuh"
#include "ops/kernels/cuda/launch.h"

void gr_cu_extend_attention(cudaStream_t st, const gr_cu_paged *p, const gr_bf16 *qkv, const uint32_t *offset,
                            const uint32_t *cached, uint32_t n_seqs, uint32_t n_tokens, uint32_t longest,
                            gr_bf16 *out)
{
    gr_flash::problem a = gr_flash::paged_problem(p, qkv);
    a.offset = offset;
    a.cached = cached;
    if (longest > n_tokens) longest = n_tokens;
    if (p->heads.kv_fp8)
        gr_flash::run_forward<gr_flash::PAGED_FP8>(st, a, n_seqs, longest, out, NULL);
    else
        gr_flash::run_forward<gr_flash::PAGED>(st, a, n_seqs, longest, out, NULL);
}
