/* ops/model/scales.c: weights in FP8 of checkpoints are widened. */
#include "ops/model/scales.h"

#include <stdlib.h>

char *gr_scales_name(const char *name)
{
    return gr_printf("%s_scale_inv", name);
}

static uint64_t blocks_of(uint64_t n)
{
    return (n + GR_SCALES_BLOCK - 1) / GR_SCALES_BLOCK;
}

static bool is_one(const gr_st_tensor *t)
{
    return !t->n_dims || (t->n_dims == 1 && t->dims[0] == 1);
}

/* The shape of scales by blocks. */
static void scale_dims(const uint64_t *dims, size_t n, uint64_t out[3])
{
    for (size_t i = 0; i < n; i++) out[i] = i + 2 < n ? dims[i] : blocks_of(dims[i]);
}

const gr_st_tensor *gr_scales_want(const gr_safetensors *s, const char *name, const uint64_t *dims, size_t n,
                                   gr_diag *d)
{
    const gr_st_tensor *t = gr_safetensors_want_e4m3(s, name, dims, n, d);
    char *of = gr_scales_name(name);
    const gr_st_tensor *scales = gr_safetensors_find(s, of);
    uint64_t blocks[3];
    bool fine = t && scales && n >= 2;
    if (fine) {
        scale_dims(dims, n, blocks);
        fine = gr_safetensors_want_shape(s, of, blocks, is_one(scales) ? scales->n_dims : n, d) != NULL;
    } else if (t) {
        gr_diag_error(d, (gr_loc){t->file, 0, 0}, GR_E_INVALID,
                      n < 2 ? "tensor '%s' is F8_E4M3, but is no matrix"
                            : "tensor '%s' is F8_E4M3, but there is no '%s'",
                      name, of);
    }
    free(of);
    return fine ? t : NULL;
}

gr_status gr_scales_read(gr_scales *out, const gr_safetensors *s, const gr_st_tensor *t, gr_diag *d)
{
    char *name = gr_scales_name(t->name);
    const gr_st_tensor *scales = gr_safetensors_find(s, name);
    uint64_t n = 1;
    for (uint32_t i = 0; i < scales->n_dims; i++) n *= scales->dims[i];
    *out = (gr_scales){.value = gr_malloc(n * sizeof(float)),
                       .rows = t->dims[t->n_dims - 2],
                       .cols = t->dims[t->n_dims - 1],
                       .one = is_one(scales)};
    free(name);
    return gr_safetensors_read_elems(s, scales, 0, n, out->value, d);
}

void gr_scales_release(gr_scales *s)
{
    free(s->value);
    *s = (gr_scales){0};
}

static float scale_at(const gr_scales *s, uint64_t row, uint64_t col)
{
    const uint64_t block = row / s->rows * blocks_of(s->rows) + row % s->rows / GR_SCALES_BLOCK;
    return s->value[s->one ? 0 : block * blocks_of(s->cols) + col / GR_SCALES_BLOCK];
}

void gr_scales_apply(const gr_scales *s, uint64_t first, uint64_t n, float *x)
{
    for (uint64_t i = 0, some; i < n; i += some) {
        const uint64_t col = (first + i) % s->cols,
                       left = GR_MIN(GR_SCALES_BLOCK - col % GR_SCALES_BLOCK, s->cols - col);
        const float scale = scale_at(s, (first + i) / s->cols, col);
        some = GR_MIN(left, n - i);
        for (uint64_t k = i; k < i + some; k++) x[k] *= scale;
    }
}
