/* ops/train_impl.h: what ops/train.c and ops/train_declare.c share. */
#ifndef GR_OPS_TRAIN_IMPL_H
#define GR_OPS_TRAIN_IMPL_H

#include "ops/configs.h"
#include "ops/env.h"
#include "ops/loss_device.h"
#include "ops/pass.h"
#include "ops/train.h"

enum {
    TRAIN_LOOP_MINI,
    TRAIN_LOOP_MICRO,
    TRAIN_LOOP_BUT_LAST, /* whole gradients: micro-batches but for the last, which stands behind it */
    TRAIN_ZERO,
    TRAIN_PREPARE,
    TRAIN_PACK,
    TRAIN_EMBED,
    TRAIN_FORWARD,
    TRAIN_HEAD_FORWARD,
    TRAIN_ADJOINT,
    TRAIN_HEAD,
    TRAIN_RECOMPUTE,
    TRAIN_BACKWARD,
    TRAIN_EMBED_BACKWARD,
    TRAIN_CLEAR, /* this and the next three: canonical */
    TRAIN_LEAF,
    TRAIN_FOLD,
    TRAIN_SUM,
    TRAIN_NORM,
    TRAIN_CLIP, /* of many shards; one does it with the last bucket's norm */
    TRAIN_STEP,
    TRAIN_FINISH,
};

/* How an update is cut. */
typedef struct gr_train_shape {
    uint32_t groups, seqs, mini_batches; /* of one mini-batch; how many there are */
    uint32_t own_seqs;                   /* of a mini-batch, a rank's part, or a leaf */
    gr_deal_bounds most;                 /* of a mini-batch, that a rank has, or a leaf */
    gr_micro_bounds micro;
    gr_loss_class class;
    gr_expr_bounds loss, range; /* the mini-batch; one adjoint call */
} gr_train_shape;
gr_train_shape gr_train_shape_of(const gr_node *n, const gr_choices *how);

/* Columns and rows that the loss and the metrics read. Release with gr_env_reads_release. */
void gr_train_reads(gr_env_reads *r, const gr_graph *g, const gr_node *n);

/* What of them goes to a device that evaluates losses; r: from gr_train_reads, kept alive. Release it. */
gr_loss_inputs gr_train_inputs(const gr_env_reads *r, const gr_graph *g, const gr_train_shape *shape);
void gr_train_inputs_release(gr_loss_inputs *in);

/* Whether the loss has a derivative by a fresh value; *place: which one of gr_loss_fresh (may be NULL). */
bool gr_train_fresh(const gr_graph *g, const gr_node *n, const char *field, size_t *place);

/* An update has two fresh values: logprob and entropy; with a value head, value alone. */
static inline bool gr_train_is_value(const gr_node *n)
{
    return n->model->shape.head == GR_HEAD_VALUE;
}

static inline const char *gr_train_main(const gr_node *n)
{
    return gr_train_is_value(n) ? "value" : "logprob";
}

#endif
