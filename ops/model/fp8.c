/* ops/model/fp8.c: the layout of buckets whose projections are in FP8, and their scales. */
#include "ops/model/fp8.h"

#include "runtime/base/half.h"

#define FP8_ALIGN 256 /* bytes */
#define SMALLEST  0x1p-100f

static bool is_projection(gr_tensor_slot slot)
{
    return slot == GR_T_QKV || slot == GR_T_O || slot == GR_T_GATE_UP || slot == GR_T_DOWN;
}

static uint64_t scale_bytes(uint64_t rows, uint64_t cols)
{
    return (uint64_t)gr_fp8_blocks((uint32_t)rows) * gr_fp8_scale_ld((uint32_t)cols) * sizeof(float);
}

/* Of a slot, with what aligns it; *values: of them the first. 0: there is none. */
static uint64_t slot_bytes(const gr_model_shape *s, uint32_t bucket, gr_tensor_slot slot, uint64_t size,
                           gr_fp8_tensor *t)
{
    uint64_t rows, cols;
    if (!gr_tensor_dims(s, bucket, slot, &rows, &cols)) return 0;
    const uint64_t n = rows * GR_MAX(cols, (uint64_t)1);
    *t = (gr_fp8_tensor){.rows = (uint32_t)rows, .cols = (uint32_t)cols, .scales = UINT64_MAX};
    t->bytes = is_projection(slot) ? n : n * size;
    if (!is_projection(slot)) return gr_align(t->bytes, FP8_ALIGN);
    t->scales = gr_align(t->bytes, FP8_ALIGN);
    return t->scales + gr_align(scale_bytes(rows, cols), FP8_ALIGN);
}

bool gr_fp8_tensor_at(const gr_model_shape *s, uint32_t bucket, gr_tensor_slot slot, uint64_t size,
                      gr_fp8_tensor *out)
{
    gr_fp8_tensor t;
    uint64_t at = 0;
    for (gr_tensor_slot before = GR_T_MIXER_NORM; before < slot; before++)
        at += slot_bytes(s, bucket, before, size, &t);
    if (!slot_bytes(s, bucket, slot, size, out)) return false;
    out->at = at;
    if (out->scales != UINT64_MAX) out->scales += at;
    return true;
}

uint64_t gr_fp8_bucket_bytes(const gr_model_shape *s, uint32_t bucket, uint64_t size)
{
    gr_fp8_tensor t;
    uint64_t bytes = 0;
    for (gr_tensor_slot slot = GR_T_MIXER_NORM; slot <= GR_T_MLP_AFTER; slot++)
        bytes += slot_bytes(s, bucket, slot, size, &t);
    return bytes;
}

gr_fp8_scale gr_fp8_scale_of(float m)
{
    const float most = m < SMALLEST ? SMALLEST : m;
    return (gr_fp8_scale){most / GR_E4M3_MAX, GR_E4M3_MAX / most};
}

const char *gr_fp8_unfit(const gr_model_shape *s)
{
    for (uint32_t kind = 0; kind < s->n_kinds; kind++) {
        if (s->kinds[kind].mixer == GR_MIXER_LATENT) return "latent attention";
        if (s->kinds[kind].mixer == GR_MIXER_DELTA) return "a gated delta rule";
        if (s->kinds[kind].mlp == GR_MLP_EXPERTS) return "mixtures of experts";
        if (gr_layer_carries(&s->kinds[kind])) return gr_layer_carries(&s->kinds[kind]);
    }
    return NULL;
}
