/* ops/kernels/cuda/layout.c: sizes and workspace layouts of passes on CUDA, also where CUDA is not built. */
#include "ops/kernels/cuda/layout.h"

#include "ops/kernels/cuda/gemm.h"
#include "ops/kernels/cuda/model.h"
#include "ops/kernels/cuda/parts.h"

#include <stdio.h>

static gr_bf16 *halves(gr_workspace *c, uint64_t rows, uint64_t cols)
{
    return gr_workspace_bytes(c, rows * cols * sizeof(gr_bf16));
}

static gr_cu_heads heads_of(const gr_model_shape *s)
{
    return (gr_cu_heads){.heads = s->heads, .kv_heads = s->kv_heads, .head_dim = s->head_dim};
}

gr_cu_attention_shape gr_cu_attention_shape_of(const gr_model_shape *s, bool deterministic)
{
    return (gr_cu_attention_shape){s->heads, s->kv_heads, s->head_dim, deterministic};
}

void gr_cu_acts_layout(gr_workspace *c, const gr_model_shape *s, const gr_pass_bounds *b, gr_cu_acts *a)
{
    const gr_cu_attention_shape attention = gr_cu_attention_shape_of(s, true);
    a->qkv = halves(c, b->tokens, gr_cu_qkv_width(s));
    a->o = halves(c, b->tokens, (uint64_t)s->heads * s->head_dim);
    a->stats = gr_workspace_bytes(c, gr_cu_attention_stats_bytes(&attention, b->tokens));
    a->mid = halves(c, b->tokens, s->hidden);
    a->gate_up = halves(c, b->tokens, 2 * (uint64_t)s->inter);
}

void gr_cu_layer_layout(gr_workspace *c, const gr_model_shape *s, const gr_pass_bounds *b, bool keep,
                        gr_cu_layer_ws *w)
{
    const gr_cu_attention_shape attention = gr_cu_attention_shape_of(s, true);
    w->gemm = gr_workspace_bytes(c, GR_CU_GEMM_WS_BYTES);
    w->attend_bytes = gr_cu_attention_ws_bytes(&attention, b->tokens, b->seqs, b->length, false);
    w->attend = gr_workspace_bytes(c, w->attend_bytes);
    w->y = halves(c, b->tokens, s->hidden);
    w->qkv = halves(c, s->qk_norm ? b->tokens : 0, gr_cu_qkv_width(s));
    w->h = halves(c, b->tokens, s->inter);
    if (!keep) gr_cu_acts_layout(c, s, b, &w->acts);
}

void gr_cu_back_layout(gr_workspace *c, const gr_model_shape *s, const gr_pass_bounds *b, bool deterministic,
                       gr_cu_back_ws *w)
{
    const gr_cu_attention_shape attention = gr_cu_attention_shape_of(s, deterministic);
    const gr_cu_heads heads = heads_of(s);
    const uint32_t width = gr_cu_qkv_width(s);
    uint64_t sums = gr_cu_rmsnorm_backward_ws(b->tokens, s->hidden);
    sums = GR_MAX(sums, gr_cu_qk_rope_backward_ws(&heads, b->tokens));
    sums = GR_MAX(sums, gr_cu_column_sums_ws(b->tokens, width));
    w->gemm = gr_workspace_bytes(c, GR_CU_GEMM_WS_BYTES);
    w->attend_bytes = gr_cu_attention_ws_bytes(&attention, b->tokens, b->seqs, b->length, true);
    w->attend = gr_workspace_bytes(c, w->attend_bytes);
    w->sums = gr_workspace_bytes(c, sums);
    w->y = halves(c, b->tokens, s->hidden);
    w->dy = halves(c, b->tokens, s->hidden);
    w->qkv = halves(c, s->qk_norm ? b->tokens : 0, width);
    w->dqkv = halves(c, b->tokens, width);
    w->h = halves(c, b->tokens, s->inter);
    w->dh = halves(c, b->tokens, s->inter);
    w->dgu = halves(c, b->tokens, 2 * (uint64_t)s->inter);
    w->d_o = halves(c, b->tokens, (uint64_t)s->heads * s->head_dim);
}

void gr_cu_extend_layout(gr_workspace *c, const gr_model_shape *s, uint32_t tokens, gr_cu_extend_ws *w)
{
    w->gemm = gr_workspace_bytes(c, GR_CU_GEMM_WS_BYTES);
    w->y = halves(c, tokens, s->hidden);
    w->qkv = halves(c, tokens, gr_cu_qkv_width(s));
    w->o = halves(c, tokens, (uint64_t)s->heads * s->head_dim);
    w->gate_up = halves(c, tokens, 2 * (uint64_t)s->inter);
    w->h = halves(c, tokens, s->inter);
}

void gr_cu_head_layout(gr_workspace *c, const gr_model_shape *s, uint32_t n, gr_head_use use,
                       gr_cu_head_ws *w)
{
    const bool samples = use == GR_HEAD_SAMPLE || use == GR_HEAD_TRUNCATE;
    const uint32_t back = use == GR_HEAD_GRADIENT ? n : 0, stats = samples ? 0 : n;
    w->gemm = gr_workspace_bytes(c, GR_CU_GEMM_WS_BYTES);
    w->sums = gr_workspace_bytes(c, back ? gr_cu_rmsnorm_backward_ws(back, s->hidden) : 0);
    w->sample = gr_workspace_bytes(c, samples ? gr_cu_sample_ws(n, s->vocab) : 0);
    w->how = gr_workspace_bytes(c, samples ? sizeof(*w->how) : 0);
    w->hidden = halves(c, n, s->hidden);
    w->d_hidden = halves(c, back, s->hidden);
    w->logits = gr_workspace_floats(c, (uint64_t)(use == GR_HEAD_LOGPROB ? GR_MIN(n, GR_CU_HEAD_ROWS) : n) *
                                           s->vocab);
    w->lse = gr_workspace_floats(c, stats);
    w->entropy = gr_workspace_floats(c, stats);
    w->logit = gr_workspace_floats(c, stats);
    w->part = gr_workspace_bytes(c, gr_cu_head_part_bytes(stats, s->vocab));
}

/* ---- sizes of the table ---- */

uint64_t gr_cu_acts_bytes(const gr_model_shape *s, const gr_pass_bounds *b)
{
    gr_workspace c = {0};
    gr_cu_acts a;
    gr_cu_acts_layout(&c, s, b, &a);
    return c.used;
}

static uint64_t layer_ws_bytes(const gr_model_shape *s, const gr_pass_bounds *b, gr_layer_use use,
                               bool deterministic)
{
    gr_workspace c = {0};
    gr_cu_layer_ws forward;
    gr_cu_back_ws back;
    if (use == GR_LAYER_BACKWARD)
        gr_cu_back_layout(&c, s, b, deterministic, &back);
    else
        gr_cu_layer_layout(&c, s, b, false, &forward);
    return c.used;
}

uint64_t gr_cu_layer_ws_bytes(const gr_model_shape *s, const gr_pass_bounds *b, gr_layer_use use)
{
    return layer_ws_bytes(s, b, use, true);
}

uint64_t gr_cu_layer_ws_bytes_nondeterministic(const gr_model_shape *s, const gr_pass_bounds *b,
                                               gr_layer_use use)
{
    return layer_ws_bytes(s, b, use, false);
}

uint64_t gr_cu_extend_ws_bytes(const gr_model_shape *s, const gr_pass_bounds *b)
{
    gr_workspace c = {0};
    gr_cu_extend_ws w;
    gr_cu_extend_layout(&c, s, b->tokens, &w);
    return c.used;
}

uint64_t gr_cu_head_ws_bytes(const gr_model_shape *s, uint32_t chunk_rows, gr_head_use use, unsigned threads)
{
    gr_workspace c = {0};
    gr_cu_head_ws w;
    (void)threads;
    gr_cu_head_layout(&c, s, chunk_rows, use, &w);
    return c.used;
}

uint64_t gr_cu_value_ws_bytes(const gr_model_shape *s, uint32_t chunk_rows, unsigned threads)
{
    (void)threads;
    return gr_cu_value_ws(chunk_rows, s->hidden);
}

uint64_t gr_cu_kv_block_bytes(const gr_model_shape *s)
{
    return 2ull * GR_KV_BLOCK * s->kv_heads * s->head_dim * sizeof(gr_bf16);
}

/* Rows are read in vectors of 16 bytes; kernels of norms, rope, attention and sampling hold so much at most.
 */
const char *gr_cu_unfit(const gr_model_shape *s, char buf[GR_UNFIT_MAX])
{
    enum { VECTOR = 8, HEAD_MAX = 256, HIDDEN_MAX = 8 * GR_NORM_VECS * 1024, VOCAB_MAX = 1 << 20 };
    const struct {
        const char *what;
        uint32_t n, of, most;
    } sizes[] = {
        {"hidden states", s->hidden, VECTOR, HIDDEN_MAX},
        {"heads", s->head_dim, VECTOR, HEAD_MAX},
        {"a feed-forward network", s->inter, VECTOR, UINT32_MAX},
        {"a vocabulary", s->head == GR_HEAD_VALUE ? 0 : s->vocab, 1, VOCAB_MAX},
    };
    for (size_t i = 0; i < GR_LEN(sizes); i++) {
        if (sizes[i].n % sizes[i].of == 0 && sizes[i].n <= sizes[i].most) continue;
        bool large = sizes[i].n > sizes[i].most;
        snprintf(buf, GR_UNFIT_MAX, "%s of %u, which %s %u", sizes[i].what, sizes[i].n,
                 large ? "is more than" : "is no multiple of", large ? sizes[i].most : sizes[i].of);
        return buf;
    }
    return NULL;
}
