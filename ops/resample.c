/* ops/resample.c: rows drawn by weight, with replacement. */
#include "ops/resample.h"

#include <math.h>

uint32_t gr_resample_wrong(const float *weight, uint32_t n)
{
    uint32_t i = 0;
    while (i < n && isfinite(weight[i]) && weight[i] >= 0) i++;
    return i;
}

static double uniform(const gr_resample_key *key, uint32_t draw)
{
    const uint32_t counter[4] = {key->step, key->round, draw, 0};
    uint32_t out[4];
    gr_philox(key->seed, key->stream, counter, out);
    return ((double)((uint64_t)out[0] << 20 | out[1] >> 12) + 0.5) * 0x1p-52;
}

/* The first sum above x, which is below the last: never one of weight 0, whose sum is that before it. */
static uint32_t first_above(const double *sums, uint32_t n, double x)
{
    uint32_t low = 0, high = n - 1;
    while (low < high) {
        uint32_t middle = low + (high - low) / 2;
        if (sums[middle] > x)
            high = middle;
        else
            low = middle + 1;
    }
    return low;
}

bool gr_resample(uint32_t *drawn, const float *weight, uint32_t n, const gr_resample_key *key, double *sums)
{
    double sum = 0;
    for (uint32_t i = 0; i < n; i++) sums[i] = sum += (double)weight[i];
    if (!n) return true;
    if (!(sum > 0)) return false;
    double below = nextafter(sum, 0); /* a product that rounds up to the sum is no draw behind the last row */
    for (uint32_t i = 0; i < n; i++) {
        double x = uniform(key, i) * sum;
        drawn[i] = first_above(sums, n, x < sum ? x : below);
    }
    return true;
}
