/* ops/kernels/cuda/layout.c: sizes and workspace layouts of passes on CUDA, also where CUDA is not built. */
#include "ops/kernels/cuda/layout.h"

#include "ops/kernels/cuda/gemm.h"
#include "ops/kernels/cuda/layer.h"
#include "ops/kernels/cuda/model.h"
#include "ops/kernels/cuda/parts.h"
#include "ops/kernels/cuda/strict.h"
#include "ops/model/fp8.h"

#include <stdio.h>

static gr_bf16 *halves(gr_workspace *c, uint64_t rows, uint64_t cols)
{
    return gr_workspace_bytes(c, rows * cols * sizeof(gr_bf16));
}

gr_cu_attention_shape gr_cu_attention_shape_of(const gr_attention_desc *d, bool deterministic)
{
    return (gr_cu_attention_shape){d->heads, d->kv_heads, d->head_dim, deterministic};
}

static uint64_t logits_rows(uint32_t n, gr_head_use use)
{
    return use == GR_HEAD_LOGPROB ? GR_MIN(n, GR_CU_HEAD_ROWS) : n;
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
    w->logits = gr_workspace_floats(c, logits_rows(n, use) * s->vocab);
    w->lse = gr_workspace_floats(c, stats);
    w->entropy = gr_workspace_floats(c, stats);
    w->logit = gr_workspace_floats(c, stats);
    w->part = gr_workspace_bytes(c, gr_cu_head_part_bytes(stats, s->vocab));
}

void gr_cu_teach_layout(gr_workspace *c, const gr_model_shape *s, uint32_t n, gr_cu_teach_ws *w)
{
    w->slope = gr_workspace_floats(c, (uint64_t)n * s->vocab);
    w->gemm = gr_workspace_bytes(c, GR_CU_GEMM_WS_BYTES);
}

void gr_cu_part_layout(gr_workspace *c, const gr_model_shape *s, uint32_t n, uint32_t own, gr_head_use use,
                       gr_cu_part_ws *w)
{
    w->gemm = gr_workspace_bytes(c, GR_CU_GEMM_WS_BYTES);
    w->sums = gr_workspace_bytes(c, own ? gr_cu_rmsnorm_backward_ws(own, s->hidden) : 0);
    w->logits = gr_workspace_floats(c, logits_rows(n, use) * s->vocab);
    w->logit = gr_workspace_floats(c, n);
    w->part = gr_workspace_bytes(c, gr_cu_head_part_bytes(n, s->vocab));
}

/* ---- sizes of the table ---- */

uint64_t gr_cu_product_ws_bytes(uint32_t t, uint32_t in, uint32_t out, unsigned threads, bool backward)
{
    (void)t, (void)in, (void)out, (void)threads, (void)backward;
    return GR_CU_GEMM_WS_BYTES;
}

void gr_cu_fp8_layout(gr_workspace *c, uint32_t t, uint32_t in, uint32_t out, bool backward, gr_cu_fp8_ws *w)
{
    const uint32_t inner = backward ? out : in;
    const uint64_t rows = GR_MAX(t, (uint32_t)GR_CU_FP8_FOUR);
    w->gemm = gr_workspace_bytes(c, GR_CU_GEMM_WS_BYTES);
    w->values = gr_workspace_bytes(c, rows * inner);
    w->scales = gr_workspace_floats(c, rows * gr_fp8_blocks(inner));
    w->last = halves(c, GR_CU_FP8_FOUR, backward ? in : out);
    w->turned = gr_workspace_bytes(c, backward ? (uint64_t)in * out : 0);
    w->turned_scales =
        gr_workspace_floats(c, backward ? (uint64_t)gr_fp8_blocks(in) * gr_fp8_scale_ld(out) : 0);
}

uint64_t gr_cu_fp8_ws_bytes(uint32_t t, uint32_t in, uint32_t out, unsigned threads, bool backward)
{
    gr_workspace c = {0};
    gr_cu_fp8_ws w;
    (void)threads;
    gr_cu_fp8_layout(&c, t, in, out, backward, &w);
    return c.used;
}

uint32_t gr_cu_fp8_tokens(uint32_t t)
{
    return gr_fp8_blocks(t) * GR_FP8_BLOCK;
}

static void dw_dy(gr_workspace *c, uint32_t t, uint32_t out, gr_cu_fp8_dw_ws *w)
{
    w->gemm = gr_workspace_bytes(c, GR_CU_GEMM_WS_BYTES);
    w->dy = gr_workspace_bytes(c, (uint64_t)gr_cu_fp8_tokens(t) * out);
    w->dy_scales = gr_workspace_floats(c, (uint64_t)gr_fp8_blocks(t) * out);
}

void gr_cu_fp8_dw_layout(gr_workspace *c, uint32_t t, uint32_t in, uint32_t out, gr_cu_fp8_dw_ws *w)
{
    const uint32_t tokens = gr_cu_fp8_tokens(t);
    dw_dy(c, t, out, w);
    w->x = gr_workspace_bytes(c, (uint64_t)tokens * in);
    w->x_scales = gr_workspace_floats(c, (uint64_t)gr_fp8_blocks(in) * gr_fp8_scale_ld(tokens));
}

uint64_t gr_cu_fp8_dw_ws_bytes(uint32_t t, uint32_t in, uint32_t out, unsigned threads)
{
    gr_workspace all = {0}, dy = {0};
    gr_cu_fp8_dw_ws w;
    gr_cu_fp8_dw_layout(&all, t, in, out, &w);
    dw_dy(&dy, t, out, &w);
    return GR_MAX(all.used, dy.used + gr_cu_fp8_ws_bytes(t, in, out, threads, true));
}

uint64_t gr_cu_back_ws_bytes(const gr_layer_desc *d, uint32_t hidden, uint32_t tokens)
{
    gr_cu_heads heads = gr_cu_heads_of(&d->attention);
    const gr_attention_desc *a = &d->attention;
    uint64_t sums = gr_cu_rmsnorm_backward_ws(tokens, hidden);
    if (d->mixer == GR_MIXER_LATENT)
        return GR_MAX(sums,
                      GR_MAX(gr_cu_rmsnorm_backward_ws(tokens, d->latent.q_rank ? d->latent.q_rank : hidden),
                             gr_cu_rmsnorm_backward_ws(tokens, d->latent.kv_rank)));
    if (d->mixer != GR_MIXER_ATTENTION || !a->heads) return sums; /* norms alone */
    if (a->qk_norm == GR_QK_NORM_WHOLE)
        sums = GR_MAX(sums, gr_cu_rmsnorm_backward_ws(tokens, a->heads * a->head_dim));
    if (a->keys == GR_KEYS_TAKEN) heads.kv_heads = 0; /* fewer heads may leave more parts each */
    sums = GR_MAX(sums, gr_cu_qk_rope_backward_ws(&heads, tokens));
    if (a->o_bias) sums = GR_MAX(sums, gr_cu_column_sums_ws(tokens, hidden));
    return GR_MAX(sums, gr_cu_column_sums_ws(tokens, gr_qkv_rows(a)));
}

static uint64_t attend_ws_bytes(const gr_attention_desc *d, const gr_pass_bounds *b, gr_layer_use use,
                                bool deterministic)
{
    const bool backward = use == GR_LAYER_BACKWARD;
    const gr_cu_attention_shape s = gr_cu_attention_shape_of(d, !backward || deterministic);
    if (use == GR_LAYER_EXTEND) return 0; /* decode steps have their own (ops/kernels/steps.h) */
    return gr_cu_attention_ws_bytes(&s, b->tokens, b->seqs, b->length, backward) +
           (b->shared ? gr_cu_attention_prefix_bytes(&s, b->length, backward) : 0);
}

uint64_t gr_cu_attend_ws_bytes(const gr_attention_desc *d, const gr_pass_bounds *b, gr_layer_use use)
{
    return attend_ws_bytes(d, b, use, true);
}

uint64_t gr_cu_attend_ws_bytes_loose(const gr_attention_desc *d, const gr_pass_bounds *b, gr_layer_use use)
{
    return attend_ws_bytes(d, b, use, false);
}

uint64_t gr_cu_head_ws_bytes(const gr_model_shape *s, uint32_t chunk_rows, gr_head_use use, unsigned threads)
{
    gr_workspace c = {0};
    gr_cu_head_ws w;
    (void)threads;
    gr_cu_head_layout(&c, s, chunk_rows, use, &w);
    return c.used;
}

uint64_t gr_cu_teach_ws_bytes(const gr_model_shape *s, const gr_model_shape *teacher, uint32_t chunk_rows,
                              unsigned threads)
{
    gr_workspace c = {0};
    gr_cu_teach_ws w;
    (void)teacher, (void)threads;
    gr_cu_teach_layout(&c, s, chunk_rows, &w);
    return c.used;
}

uint64_t gr_cu_part_ws_bytes(const gr_model_shape *s, uint32_t n, uint32_t own, gr_head_use use,
                             unsigned threads)
{
    gr_workspace c = {0};
    gr_cu_part_ws w;
    (void)threads;
    gr_cu_part_layout(&c, s, n, own, use, &w);
    return c.used;
}

uint64_t gr_cu_value_ws_bytes(const gr_model_shape *s, uint32_t chunk_rows, unsigned threads)
{
    (void)threads;
    return gr_cu_value_ws(chunk_rows, s->hidden);
}

uint64_t gr_cu_kv_block_bytes(const gr_attention_desc *d)
{
    const gr_cu_heads h = gr_cu_heads_of(d);
    return gr_cu_kv_block(&h);
}

const char *gr_cu_attend_unfit(const gr_attention_desc *d)
{
    const uint32_t vector = gr_rope_width(d->head_dim), half = d->rope.dims / 2;
    if (d->head_dim > GR_CU_DECODE_HEAD && d->head_dim % 16)
        return "heads wider than 256 whose size is no multiple of 16";
    if (d->kv_fp8 && d->head_dim > GR_CU_DECODE_HEAD)
        return "heads wider than 256, whose keys and values are not kept in FP8";
    if (d->kv_fp8 && d->head_dim % 16)
        return "heads whose size is no multiple of 16, of which keys and values in FP8 cannot be read: leave "
               "'kv' out of 'precision'";
    if (d->value_norm && d->qk_norm != GR_QK_NORM_HEAD)
        return "a norm of values without norms of the heads of q and k";
    if (d->gate && d->qk_norm == GR_QK_NORM_WHOLE) return "norms over all heads of q beside an output gate";
    if (d->rope.type == GR_ROPE_NONE || (half % vector == 0 && d->head_dim / 2 % vector == 0)) return NULL;
    return d->rope.dims == d->head_dim ? NULL : "an odd part of each head rotated";
}

/* Rows are read in vectors of 16 bytes; kernels of norms, rope, attention and sampling hold so much at most.
 */
enum { ROW_MAX = 8 * GR_NORM_VECS * 1024, VOCAB_MAX = 1 << 20 };

static const char *size_unfit(const char *what, uint32_t n, uint32_t of, uint32_t most,
                              char buf[GR_UNFIT_MAX])
{
    if (n % of == 0 && n <= most) return NULL;
    const bool large = n > most;
    snprintf(buf, GR_UNFIT_MAX, "%s of %u, which %s %u", what, n,
             large ? "is more than" : "is no multiple of", large ? most : of);
    return buf;
}

static const char *layer_unfit(const gr_layer_desc *d, uint32_t vector, char buf[GR_UNFIT_MAX])
{
    const char *why = size_unfit("heads", d->attention.head_dim, vector, GR_HEAD_DIM_MAX, buf);
    if (!why) why = size_unfit("a feed-forward network", d->dense.inner, vector, UINT32_MAX, buf);
    return why ? why : size_unfit("embeddings of each layer", d->per_layer, vector, ROW_MAX, buf);
}

const char *gr_cu_unfit(const gr_model_shape *s, char buf[GR_UNFIT_MAX])
{
    const uint32_t vector = s->fp8 ? 16 : 8;
    const char *why = size_unfit("hidden states", s->hidden, vector, ROW_MAX, buf);
    for (uint32_t i = 0; i < s->n_kinds && !why; i++) why = layer_unfit(&s->kinds[i], vector, buf);
    if (!why && s->head == GR_HEAD_LM) why = size_unfit("a vocabulary", s->vocab, 1, VOCAB_MAX, buf);
    return why;
}
