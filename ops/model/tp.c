/* ops/model/tp.c: the shape of a rank's slice of a model, and what of each bucket it has. */
#include "ops/model/tp.h"

#include <assert.h>
#include <stdio.h>

/* What of a layer is not cut into so many parts. */
static const char *layer_uneven(const gr_layer_desc *d, gr_slicing by, char buf[48])
{
    const uint32_t parts = by.width;
    const bool whole = by.experts > 1; /* experts are */
    const struct {
        uint32_t n;
        const char *what;
    } cut[] = {{d->attention.heads, "heads"},
               {d->attention.kv_heads, "KV heads"},
               {d->latent.heads, "heads"},
               {d->delta.key_heads, "key heads of the gated delta rule"},
               {d->dense.inner, "columns of the feed-forward network"},
               {whole ? 0 : d->experts.inner, "columns of an expert"},
               {whole ? 0 : d->experts.shared_inner, "columns of a shared expert"}};
    for (size_t i = 0; i < GR_LEN(cut); i++) {
        if (cut[i].n % parts == 0) continue;
        snprintf(buf, 48, "%u %s", cut[i].n, cut[i].what);
        return buf;
    }
    if (d->attention.qk_norm == GR_QK_NORM_WHOLE) return "norms over all heads of q and k";
    return NULL;
}

/* Experts of a layer have neighbours in its checkpoint order on one rank. */
static const char *experts_uneven(const gr_model_shape *s, uint32_t parts, char buf[48])
{
    uint32_t n = 0;
    for (uint32_t i = 0; i < s->n_kinds; i++) {
        const gr_experts_desc *e = &s->kinds[i].experts;
        if (s->kinds[i].mlp != GR_MLP_EXPERTS) continue;
        n++;
        if (e->count % parts == 0) continue;
        snprintf(buf, 48, "%u experts", e->count);
        return buf;
    }
    return n ? NULL : "layers, which have no experts";
}

const char *gr_tp_uneven(const gr_model_shape *s, gr_slicing cut, char buf[48])
{
    const char *uneven = NULL;
    for (uint32_t i = 0; i < s->n_kinds && gr_slicing_parts(cut) > 1; i++) {
        if (gr_layer_is_beside(&s->kinds[i])) return "experts beside a dense MLP";
        if (gr_layer_carries(&s->kinds[i])) return gr_layer_carries(&s->kinds[i]);
    }
    for (uint32_t i = 0; i < s->n_kinds && !uneven && cut.width > 1; i++)
        uneven = layer_uneven(&s->kinds[i], cut, buf);
    return cut.width < 2 && cut.experts > 1 ? experts_uneven(s, cut.experts, buf) : uneven;
}

static void cut_width(gr_model_shape *s, gr_slicing by)
{
    const uint32_t parts = by.width;
    s->parts = parts;
    for (uint32_t i = 0; i < s->n_kinds; i++) {
        gr_layer_desc *d = &s->kinds[i];
        d->attention.heads /= parts;
        d->attention.kv_heads /= parts;
        d->latent.heads /= parts;
        d->delta.key_heads /= parts;
        d->delta.value_heads /= parts;
        d->dense.inner /= parts;
        if (by.experts > 1) continue;
        d->experts.inner /= parts;
        d->experts.shared_inner /= parts;
    }
}

gr_model_shape gr_tp_shape(const gr_model_shape *s, gr_slicing cut)
{
    gr_model_shape slice = *s;
    if (cut.width > 1) cut_width(&slice, cut);
    if (cut.vocab > 1) slice.vocab /= cut.vocab;
    for (uint32_t i = 0; i < slice.n_kinds && cut.experts > 1; i++)
        if (slice.kinds[i].mlp == GR_MLP_EXPERTS) slice.kinds[i].experts.holders = cut.experts;
    return slice;
}

bool gr_tp_is_cut(const gr_model_shape *s, gr_slicing cut, uint32_t bucket)
{
    const bool ends = !bucket || bucket > s->layers;
    if (ends) return cut.vocab > 1 && (!bucket || (s->head == GR_HEAD_LM && !s->tied));
    return cut.width > 1 || (cut.experts > 1 && gr_layer(s, bucket - 1)->mlp == GR_MLP_EXPERTS);
}

/* A tensor of the whole bucket and of the slice's: of fewer rows, of fewer columns, or the same. */
static gr_tp_block block_of(const gr_tensor *whole, const gr_tensor *slice, uint32_t place)
{
    const uint64_t cols = whole->cols ? whole->cols : 1, part = slice->cols ? slice->cols : 1;
    if (part < cols)
        return (gr_tp_block){.from = whole->offset + place * part,
                             .to = slice->offset,
                             .n = part,
                             .count = whole->rows,
                             .from_stride = cols,
                             .to_stride = part};
    const uint64_t n = slice->rows * cols, from = slice->rows < whole->rows ? place * n : 0;
    return (gr_tp_block){.from = whole->offset + from,
                         .to = slice->offset,
                         .n = n,
                         .count = 1,
                         .from_stride = n,
                         .to_stride = n};
}

/* What of a tensor is cut for itself. */
static size_t kinds_of_rows(const gr_tensor *t, gr_tensor out[3])
{
    const uint32_t rows[] = {t->keys ? t->keys : t->rows, t->keys, t->rows - 2 * t->keys};
    const size_t n = t->keys ? 3 : 1;
    uint64_t at = t->offset;
    for (size_t i = 0; i < n; i++) {
        out[i] = *t;
        out[i].rows = rows[i];
        out[i].offset = at;
        at += rows[i] * (uint64_t)GR_MAX(t->cols, 1u);
    }
    return n;
}

/* Which of the parts has an expert; from 1. */
static uint32_t holder_of(const gr_model_shape *s, gr_slicing cut, uint32_t bucket, uint32_t expert)
{
    return (expert - 1) / (gr_layer(s, bucket - 1)->experts.count / cut.experts);
}

/* Whether every slice has it; divided: experts are. */
static bool is_common(const gr_tensor *whole, const gr_tensor *slice, bool divided)
{
    return !divided && whole->rows == slice->rows && whole->cols == slice->cols;
}

size_t gr_tp_blocks(const gr_model_shape *s, gr_slicing cut, uint32_t place, uint32_t bucket,
                    gr_tp_block out[GR_TP_BLOCKS_MAX])
{
    const gr_model_shape shape = gr_tp_shape(s, cut);
    gr_tensor whole[GR_BUCKET_TENSORS_MAX], slice[GR_BUCKET_TENSORS_MAX];
    const size_t n = gr_bucket_ranges(s, bucket, whole), held = gr_bucket_ranges(&shape, bucket, slice);
    size_t k = 0;
    const uint32_t parts = gr_slicing_parts(cut), width = GR_MAX(cut.width, 1u), by = GR_MAX(cut.experts, 1u);
    assert(place < parts && parts % width == 0 && parts % by == 0);
    for (size_t i = 0, t = 0; i < n && t < held; i++) {
        const bool divided = whole[i].expert && cut.experts > 1;
        gr_tensor from[3], to[3];
        if (divided && holder_of(s, cut, bucket, whole[i].expert) != place % by) continue;
        kinds_of_rows(&slice[t++], to);
        for (size_t j = 0, kinds = kinds_of_rows(&whole[i], from); j < kinds; j++, k++) {
            out[k] = block_of(&from[j], &to[j], place % width);
            out[k].common = is_common(&from[j], &to[j], divided);
            out[k].several = out[k].common || parts > (divided ? by : width);
        }
    }
    return k;
}

/* Elements [skip, skip + n) of runs [first, first + count). */
static gr_tp_block runs_of(const gr_tp_block *b, uint64_t first, uint64_t count, uint64_t skip, uint64_t n)
{
    gr_tp_block piece = *b;
    piece.from += first * b->from_stride + skip;
    piece.to += first * b->to_stride + skip;
    piece.n = n;
    piece.count = count;
    return piece;
}

size_t gr_tp_cut(const gr_tp_block *b, uint64_t first, uint64_t end, gr_tp_block out[3])
{
    const uint64_t span = (b->count - 1) * b->from_stride + b->n;
    const uint64_t low = first > b->from ? first - b->from : 0,
                   high = end > b->from ? GR_MIN(end - b->from, span) : 0;
    if (low >= high) return 0;
    /* from element `begin` of run i up to element `stop` of run j, where a run ends at n at most */
    uint64_t i = low / b->from_stride, begin = GR_MIN(low % b->from_stride, b->n);
    const uint64_t j = high / b->from_stride, stop = GR_MIN(high % b->from_stride, b->n);
    size_t n = 0;
    if (i == j) {
        if (begin < stop) out[n++] = runs_of(b, i, 1, begin, stop - begin);
        return n;
    }
    if (begin) {
        if (begin < b->n) out[n++] = runs_of(b, i, 1, begin, b->n - begin);
        i++;
    }
    if (i < j) out[n++] = runs_of(b, i, j - i, 0, b->n);
    if (stop) out[n++] = runs_of(b, j, 1, 0, stop);
    return n;
}

uint64_t gr_tp_count(const gr_tp_block *b, size_t n, uint64_t first, uint64_t end)
{
    uint64_t sum = 0;
    gr_tp_block piece[3];
    for (size_t i = 0; i < n; i++)
        for (size_t k = gr_tp_cut(&b[i], first, end, piece); k-- > 0;) sum += piece[k].n * piece[k].count;
    return sum;
}

uint64_t gr_tp_common(const gr_model_shape *s, gr_slicing cut, uint32_t bucket)
{
    const gr_model_shape shape = gr_tp_shape(s, cut);
    gr_tensor whole[GR_BUCKET_TENSORS_MAX], slice[GR_BUCKET_TENSORS_MAX];
    const size_t n = gr_bucket_samples(s, bucket, whole), held = gr_bucket_samples(&shape, bucket, slice);
    uint64_t sum = 0;
    assert(held == n); /* every slice has an expert */
    for (size_t i = 0; i < n; i++) {
        gr_tensor from[3], to[3];
        const uint64_t times = gr_sample_stands(s, bucket, &whole[i]);
        kinds_of_rows(&slice[i], to);
        for (size_t j = kinds_of_rows(&whole[i], from); j-- > 0;)
            if (is_common(&from[j], &to[j], whole[i].expert && cut.experts > 1))
                sum += times * from[j].rows * GR_MAX(from[j].cols, 1u);
    }
    return sum;
}
