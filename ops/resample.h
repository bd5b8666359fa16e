/* ops/resample.h: rows drawn by weight, with replacement.
 *
 * A draw is a function of its key and its number alone: the same on every rank, after a resume, and whatever
 * else was drawn.
 */
#ifndef GR_OPS_RESAMPLE_H
#define GR_OPS_RESAMPLE_H

#include "runtime/base/base.h"

typedef struct gr_resample_key {
    uint64_t seed, stream; /* of the run; of the node */
    uint32_t step, round;
} gr_resample_key;

/* The first of n weights that is none: negative, infinite or no number; n: all are weights. */
uint32_t gr_resample_wrong(const float *weight, uint32_t n);

/* drawn [n]: n draws of n, each i with probability weight[i] over their sum. sums [n]: workspace, in double.
 * false: n > 0, and all weights are 0. The weights are as gr_resample_wrong asks. */
bool gr_resample(uint32_t *drawn, const float *weight, uint32_t n, const gr_resample_key *key, double *sums);

#endif
