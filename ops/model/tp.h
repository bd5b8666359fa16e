/* ops/model/tp.h: a model cut for tensor or expert parallelism, and how weights get into a slice.
 *
 * Along its width: of so many ranks side by side each has a slice of every layer: some of the heads and of
 * their keys and values, and a part of the feed-forward network's width. The projections into these (q, k, v,
 * gate, up, and biases) are cut by rows, those out of them (o, down) by columns; norms are whole on each
 * rank, and biases of o and down, which the first rank adds. Of the gated delta rule key heads and the value
 * heads on them are cut, with the channels of its convolution, their gates and their decay. So a slice is a
 * model of a shape of its own, with a layout of its own (ops/model/model.h), whose o and down give partial
 * products: their sum over the ranks is the layer's. The embedding and the output matrix are whole, too, or
 * cut by rows, over the same ranks: each has a part of the vocabulary (ops/kernels/head.h).
 *
 * By experts: each has some of the experts of every layer whole, and all else. Layers without experts are
 * whole on each rank. Along both, of which one number divides the other: of slice i of the larger number the
 * width is that of slice i modulo parts, and likewise the experts; experts are not cut along their width, nor
 * is a shared one.
 *
 * Where an element of a slice lies in the whole bucket follows from the two layouts: a block of runs for each
 * tensor. A flat shard of the bucket holds at most three pieces of a block, so that what one rank has for
 * another is a short list that both know.
 *
 * Sources of the cuts: Shoeybi et al., Megatron-LM, arXiv:1909.08053, section 3; Lepikhin et al., GShard,
 * arXiv:2006.16668, section 3.
 */
#ifndef GR_OPS_MODEL_TP_H
#define GR_OPS_MODEL_TP_H

#include "ops/model/model.h"

/* The most ranks that a model is cut for. */
#define GR_TP_MAX 64

/* Into how many parts a model is cut: along its width, and its experts; 1 or 0: it is not.
 * vocab: as many as width, where the vocabulary is cut, too. */
typedef struct gr_slicing {
    uint32_t width, experts, vocab;
} gr_slicing;

static inline uint32_t gr_slicing_parts(gr_slicing c)
{
    return GR_MAX(GR_MAX(c.width, c.experts), 1u);
}

/* What of a shape does not come out even, "8 heads"; NULL: it can be cut so. Along both: of its width alone.
 * buf: for the text. */
const char *gr_tp_uneven(const gr_model_shape *s, gr_slicing cut, char buf[48]);

/* The shape of one of the parts (s itself, of one). */
gr_model_shape gr_tp_shape(const gr_model_shape *s, gr_slicing cut);

/* Whether a bucket's slice is another than the whole: a layer's is, of experts that of a layer with them; of
 * a vocabulary the embedding's, and the last one where it has the output matrix. */
bool gr_tp_is_cut(const gr_model_shape *s, gr_slicing cut, uint32_t bucket);

/* `count` runs of n elements each: in the whole bucket at from, from + from_stride, ...; in the slice at to,
 * to + to_stride, ... */
typedef struct gr_tp_block {
    uint64_t from, to, n, count, from_stride, to_stride;
    bool common;  /* every slice has it */
    bool several; /* others do, or all */
} gr_tp_block;

#define GR_TP_BLOCKS_MAX GR_BUCKET_TENSORS_MAX
/* The blocks of slice `place` of a bucket, by where they begin in the whole one, which is their order in the
 * slice, too. Elements of the slice between its tensors, which are zero, are in none of them. */
size_t gr_tp_blocks(const gr_model_shape *s, gr_slicing cut, uint32_t place, uint32_t bucket,
                    gr_tp_block out[GR_TP_BLOCKS_MAX]);

/* What of a block lies in elements [first, end) of the whole bucket: up to three blocks, in their order. */
size_t gr_tp_cut(const gr_tp_block *b, uint64_t first, uint64_t end, gr_tp_block out[3]);

/* How many elements of these blocks do. */
uint64_t gr_tp_count(const gr_tp_block *b, size_t n, uint64_t first, uint64_t end);

/* Elements of a bucket that every slice has: norms, or all but experts; of a bucket that is not cut all. */
uint64_t gr_tp_common(const gr_model_shape *s, gr_slicing cut, uint32_t bucket);

#endif
