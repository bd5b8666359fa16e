/* ops/model/rope.c: angles of rotary position embeddings. */
#include "ops/model/rope.h"

#include <assert.h>
#include <math.h>

#define PI 3.14159265358979323846

static double llama3_scaled(const gr_rope_desc *d, double inv_freq)
{
    const double factor = d->factor, low = d->low_freq_factor;
    const double high = d->high_freq_factor, old = d->original_positions;
    const double wavelength = 2 * PI / inv_freq;
    if (wavelength < old / high) return inv_freq;
    if (wavelength > old / low) return inv_freq / factor;
    const double smooth = (old / wavelength - low) / (high - low);
    return (1 - smooth) * inv_freq / factor + smooth * inv_freq;
}

/* The index whose frequency turns so often within the positions the model was trained on. */
static double yarn_index(const gr_rope_desc *d, double turns)
{
    return d->dims * log(d->original_positions / (turns * 2 * PI)) / (2 * log(d->theta));
}

/* Below the ramp frequencies stay, above it they are divided by factor. */
static double yarn_scaled(const gr_rope_desc *d, uint32_t i, double inv_freq)
{
    double low = yarn_index(d, d->beta_fast), high = yarn_index(d, d->beta_slow);
    if (d->truncate) {
        low = floor(low);
        high = ceil(high);
    }
    low = GR_MAX(low, 0.0);
    high = GR_MIN(high, d->dims - 1.0);
    if (low == high) high += 0.001;
    const double ramp = GR_MIN(GR_MAX((i - low) / (high - low), 0.0), 1.0);
    return inv_freq / d->factor * ramp + inv_freq * (1 - ramp);
}

static double scaled(const gr_rope_desc *d, uint32_t i, double inv_freq)
{
    switch (d->type) {
    case GR_ROPE_LINEAR:
        return inv_freq / d->factor;
    case GR_ROPE_LLAMA3:
        return llama3_scaled(d, inv_freq);
    case GR_ROPE_YARN:
        return yarn_scaled(d, i, inv_freq);
    case GR_ROPE_LONG:
        return inv_freq / (double)d->stretch[d->far][i];
    case GR_ROPE_PROPORTIONAL:
        return i < floor(d->share * d->dims / 2) ? inv_freq / d->factor : 0;
    case GR_ROPE_NONE:
        return 0;
    case GR_ROPE_DEFAULT:
        break;
    }
    return inv_freq;
}

void gr_rope_init(gr_rope *r, const gr_rope_desc *d)
{
    assert(d->dims <= GR_HEAD_DIM_MAX && d->dims % 2 == 0);
    r->n = d->type == GR_ROPE_NONE ? 0 : d->dims / 2;
    r->factor = gr_rope_factor(d);
    for (uint32_t i = 0; i < r->n; i++)
        r->inv_freq[i] = (float)scaled(d, i, 1 / pow(d->theta, 2.0 * i / d->dims));
}

void gr_rope_angles(const gr_rope *r, uint32_t position, float *cosine, float *sine)
{
    for (uint32_t i = 0; i < r->n; i++) sincosf((float)position * r->inv_freq[i], &sine[i], &cosine[i]);
    for (uint32_t i = 0; r->factor != 1 && i < r->n; i++) {
        cosine[i] *= r->factor;
        sine[i] *= r->factor;
    }
}
