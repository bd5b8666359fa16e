/* ops/kernels/cuda/sizes.c: sizes of attention on CUDA, also where CUDA is not built. */
#include "ops/kernels/cuda/sizes.h"

#include "runtime/base/base.h"

#define ALIGN 256

static uint32_t batch_bucket(uint32_t n)
{
    uint32_t b = 1;
    while (b < n) b *= 2;
    return b;
}

/* 128, 256, 384, 512, 768, 1024, 1536, ... */
static uint32_t length_bucket(uint32_t n)
{
    uint32_t s = 128;
    while (s < n) {
        if (s >= 256 && s + s / 2 >= n) return s + s / 2;
        s *= 2;
    }
    return s;
}

/* cuDNN 9.14 and 9.19 ask 256 bytes a sequence and a few KiB. */
static uint64_t cudnn_slack(uint32_t batch)
{
    return (UINT64_C(64) << 10) + UINT64_C(512) * batch;
}

static uint64_t call_heads(const gr_cu_attention_shape *s, const gr_cu_attention_run *r)
{
    return (uint64_t)r->kv_heads * (s->heads / s->kv_heads);
}

static uint64_t call_rows(const gr_cu_attention_shape *s, const gr_cu_attention_run *r)
{
    return (uint64_t)r->batch * r->longest * call_heads(s, r);
}

/* Bytes of backward that a row (one head of one token, padding included) brings with it. */
static uint64_t cudnn_row_bytes(const gr_cu_attention_shape *s, uint32_t longest)
{
    const uint64_t dp = s->deterministic ? UINT64_C(2) * longest : 0;
    const uint64_t each_head =
        s->heads == s->kv_heads ? 0 : UINT64_C(4) * s->head_dim; /* dK and dV before their sum */
    return dp + each_head;
}

static uint64_t row_bytes(const gr_cu_attention_shape *s, uint32_t longest)
{
    return cudnn_row_bytes(s, longest) + 4 + (s->deterministic ? 0 : UINT64_C(4) * s->head_dim);
}

uint64_t gr_cu_attention_cudnn_bytes(const gr_cu_attention_shape *s, const gr_cu_attention_run *r,
                                     bool backward)
{
    return (backward ? call_rows(s, r) * cudnn_row_bytes(s, r->longest) : 0) + cudnn_slack(r->batch);
}

uint64_t gr_cu_attention_delta_bytes(const gr_cu_attention_shape *s, const gr_cu_attention_run *r)
{
    return gr_align(call_rows(s, r) * 4, ALIGN);
}

uint64_t gr_cu_attention_dq_bytes(const gr_cu_attention_shape *s, const gr_cu_attention_run *r)
{
    return s->deterministic ? 0 : gr_align(call_rows(s, r) * 4 * s->head_dim, ALIGN);
}

uint64_t gr_cu_attention_index_bytes(uint32_t batch)
{
    return 4 * gr_align((batch + UINT64_C(1)) * 4, ALIGN);
}

/* What all rows of one call may take. Grows with tokens and with longest, so that a plan made for bounds
 * holds for every batch within them: a run of few long sequences is padded to at most twice its tokens and
 * one length more. */
static uint64_t run_limit(const gr_cu_attention_shape *s, uint64_t tokens, uint32_t longest)
{
    const uint32_t length = length_bucket(longest);
    const uint64_t all = (2 * tokens + length) * s->heads * row_bytes(s, length);
    const uint64_t least = (uint64_t)length * (s->heads / s->kv_heads) * row_bytes(s, length);
    return GR_MAX(GR_MIN(all, GR_CU_ATTENTION_RUN_BYTES), least);
}

static bool fits(const gr_cu_attention_shape *s, const gr_cu_attention_run *r, uint64_t tokens,
                 uint64_t limit, bool backward)
{
    const uint64_t width = (uint64_t)(s->heads + 2 * s->kv_heads) * s->head_dim;
    if (r->batch > GR_CU_ATTENTION_BATCH_MAX || tokens * width > INT32_MAX)
        return false; /* offsets are int32 */
    return !backward || call_rows(s, r) * row_bytes(s, r->longest) <= limit;
}

static uint32_t longest_of(const uint32_t *offset, uint32_t n_seqs)
{
    uint32_t longest = 0;
    for (uint32_t i = 0; i < n_seqs; i++) longest = GR_MAX(longest, offset[i + 1] - offset[i]);
    return longest;
}

gr_cu_attention_run gr_cu_attention_cut(const gr_cu_attention_shape *s, const uint32_t *offset,
                                        uint32_t first, uint32_t n_seqs, bool backward)
{
    const uint64_t limit =
        backward ? run_limit(s, offset[n_seqs] - offset[0], longest_of(offset, n_seqs)) : 0;
    gr_cu_attention_run r = {.first = first, .kv_heads = s->kv_heads};
    uint32_t longest = 0;
    while (first + r.n < n_seqs) {
        const uint32_t end = offset[first + r.n + 1], more = GR_MAX(longest, end - offset[first + r.n]);
        const gr_cu_attention_run next = {first, r.n + 1, batch_bucket(r.n + 1), length_bucket(more),
                                          s->kv_heads};
        if (r.n > 0 && !fits(s, &next, end - offset[first], limit, backward)) break;
        r = next;
        longest = more;
    }
    while (r.kv_heads > 1 && !fits(s, &r, 0, limit, backward)) { /* then it is one sequence */
        r.kv_heads--;
        while (s->kv_heads % r.kv_heads) r.kv_heads--;
    }
    return r;
}

uint64_t gr_cu_attention_stats_bytes(const gr_cu_attention_shape *s, uint32_t tokens)
{
    return UINT64_C(4) * tokens * s->heads;
}

uint64_t gr_cu_attention_prefix_bytes(const gr_cu_attention_shape *s, uint32_t longest, bool backward)
{
    const uint64_t heads = s->heads, width = (heads + 2 * s->kv_heads) * s->head_dim,
                   row = backward ? 2 * width * 2 : heads * s->head_dim * 2 + heads * 4;
    if (!gr_cu_attention_fuses(s)) return 0;
    return gr_cu_attention_index_bytes(1) / 2 + longest * row + 2 * ALIGN;
}

uint64_t gr_cu_attention_ws_bytes(const gr_cu_attention_shape *s, uint32_t tokens, uint32_t seqs,
                                  uint32_t longest, bool backward)
{
    const uint32_t batch = GR_MIN(batch_bucket(GR_MAX(seqs, 1)), GR_CU_ATTENTION_BATCH_MAX);
    const uint64_t fixed = cudnn_slack(batch) + gr_cu_attention_index_bytes(batch) + 4 * ALIGN,
                   simple = gr_cu_attention_stats_bytes(s, tokens); /* delta of attention_simple.h */
    if (!gr_cu_attention_fuses(s)) return backward ? simple : 0;
    if (!backward) return fixed;
    return fixed + GR_MAX(run_limit(s, tokens, longest), simple);
}
