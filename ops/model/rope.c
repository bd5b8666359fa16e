/* ops/model/rope.c: angles of rotary position embeddings. */
#include "ops/model/rope.h"

#include <assert.h>
#include <math.h>

static double llama3_scaled(const gr_model_shape *s, double inv_freq)
{
    const double factor = s->rope_scaling.factor, low = s->rope_scaling.low_freq_factor;
    const double high = s->rope_scaling.high_freq_factor, old = s->rope_scaling.original_positions;
    const double wavelength = 2 * 3.14159265358979323846 / inv_freq;
    if (wavelength < old / high) return inv_freq;
    if (wavelength > old / low) return inv_freq / factor;
    const double smooth = (old / wavelength - low) / (high - low);
    return (1 - smooth) * inv_freq / factor + smooth * inv_freq;
}

void gr_rope_init(gr_rope *r, const gr_model_shape *s)
{
    assert(s->head_dim <= GR_HEAD_DIM_MAX && s->head_dim % 2 == 0);
    r->n = s->head_dim / 2;
    for (uint32_t i = 0; i < r->n; i++) {
        const double f = 1 / pow(s->rope_theta, 2.0 * i / s->head_dim);
        r->inv_freq[i] = (float)(s->rope_scaling.on ? llama3_scaled(s, f) : f);
    }
}

void gr_rope_angles(const gr_rope *r, uint32_t position, float *cosine, float *sine)
{
    for (uint32_t i = 0; i < r->n; i++) sincosf((float)position * r->inv_freq[i], &sine[i], &cosine[i]);
}
