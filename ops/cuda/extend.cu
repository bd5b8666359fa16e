/* ops/cuda/extend.cu: attention of new tokens to keys in the paged pool, for prefill. See flash.cuh. */
#include "ops/cuda/flash.cuh"
#include "ops/cuda/launch.h"

void gr_cu_extend_attention(cudaStream_t st, const gr_cu_paged *p, const gr_bf16 *qkv, const uint32_t *offset,
                            const uint32_t *cached, uint32_t n_seqs, uint32_t n_tokens, uint32_t longest, gr_bf16 *out)
{
    gr_flash::problem a = {};
    a.qkv = qkv;
    a.offset = offset;
    a.cached = cached;
    a.kv = p->kv;
    a.table = p->table;
    a.table_stride = p->table_stride;
    a.heads = p->heads.heads;
    a.kv_heads = p->heads.kv_heads;
    a.d = p->heads.head_dim;
    a.scale = 1 / sqrtf((float)a.d);
    gr_flash::run_forward<true>(st, a, n_seqs, longest < n_tokens ? longest : n_tokens, out, NULL);
}
