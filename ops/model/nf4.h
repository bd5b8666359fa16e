/* ops/model/nf4.h: layers whose matrices are kept in 4 bits, as QLoRA keeps the frozen weights beneath
 * adapters: NF4 with scales that are quantised again.
 *
 * Each matrix of a checkpoint (q and k apart, though passes read them as one) is cut, row after row, into
 * blocks of 64:
 *
 *     m = the largest |w| of a block, c = the nearest of 16 values to w / m      4 bits each
 *     o = the mean of m over the matrix; of 256 blocks each: n = the largest |m - o|,
 *     d = the nearest of 256 values to (m - o) / n                              8 bits each
 *     w' = value(c) m', m' = value(d) n + o                                     in fp32
 *
 * That is 4.127 bits a weight. The 16 values are quantiles of a normal distribution, the 256 those of the
 * dynamic form of 8 bits. Two codes lie in a byte, the first in its upper half. Norms and biases are fp32.
 *
 * In a bucket of the form the checkpoint's tensors stand one after another, each at a multiple of 64 bytes:
 * codes, 8-bit scales, the fp32 scales of these, the mean. Only layers have the form.
 *
 * Source: Dettmers et al., QLoRA, arXiv:2305.14314; codes and scales are those of bitsandbytes'
 * quantize_4bit(blocksize=64, compress_statistics=True, quant_type="nf4"), but that a mean is summed in
 * double.
 * Threads: functions with a team use it; the others are pure.
 */
#ifndef GR_OPS_MODEL_NF4_H
#define GR_OPS_MODEL_NF4_H

#include "ops/model/model.h"
#include "runtime/base/threads.h"

#define GR_NF4_BLOCK  64
#define GR_NF4_BLOCKS 256 /* blocks whose scales have one scale */

/* One matrix. Addresses are into a bucket of the form. */
typedef struct gr_nf4 {
    uint64_t n;     /* weights */
    uint8_t *codes; /* [(n + 1) / 2] */
    uint8_t *small; /* [blocks] codes of scales */
    float *scales;  /* [blocks / 256, rounded up] */
    float *mean;
} gr_nf4;

/* Where the parts of a matrix of n weights lie from an address on; *bytes: all of them. */
gr_nf4 gr_nf4_at(void *at, uint64_t n, uint64_t *bytes);

/* What codes stand for: of weights, and of blocks' scales. */
typedef struct gr_nf4_values {
    float weight[16], scale[256];
} gr_nf4_values;
void gr_nf4_values_of(gr_nf4_values *out);

/* w [n] becomes codes and scales; and these weights. A NaN or an infinity makes NaN of the whole matrix. */
void gr_nf4_close(gr_team *team, const gr_nf4 *to, const float *w);
void gr_nf4_open(gr_team *team, const gr_nf4 *from, float *w);

/* Where a tensor of a layer's bucket lies. */
typedef struct gr_nf4_part {
    uint64_t at, bytes; /* in the form, from its start */
    uint64_t first, n;  /* among the elements of weights */
    uint64_t zeros;     /* elements behind it that are no tensor's */
    bool matrix;        /* else it is fp32 */
} gr_nf4_part;
#define GR_NF4_PARTS_MAX 24

/* All of them, in the order of memory, which is one in both; returns how many. */
size_t gr_nf4_parts(const gr_model_shape *s, uint32_t bucket, gr_nf4_part out[GR_NF4_PARTS_MAX]);

/* The same of all of a layer's bucket, in fp32. */
uint64_t gr_nf4_bucket_bytes(const gr_model_shape *s, uint32_t bucket);
void gr_nf4_close_bucket(gr_team *team, const gr_model_shape *s, uint32_t bucket, const float *w, void *to);
void gr_nf4_open_bucket(gr_team *team, const gr_model_shape *s, uint32_t bucket, const void *from, float *w);

#endif
