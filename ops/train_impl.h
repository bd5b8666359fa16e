/* ops/train_impl.h: what ops/train.c and ops/train_declare.c share. */
#ifndef GR_OPS_TRAIN_IMPL_H
#define GR_OPS_TRAIN_IMPL_H

#include "ops/base/configs.h"
#include "ops/env.h"
#include "ops/loss_device.h"
#include "ops/parallel/stages.h"
#include "ops/pass.h"
#include "ops/base/states.h"
#include "ops/tally.h"
#include "ops/train.h"

enum {
    TRAIN_LOOP_MINI,
    TRAIN_LOOP_MICRO,
    TRAIN_LOOP_BUT_LAST, /* whole gradients: micro-batches but for the last, which stands behind it */
    TRAIN_LOOP_STAGES,   /* micro-batches through the stages of a pipeline (ops/parallel/stages.h) */
    TRAIN_ZERO,
    TRAIN_PREPARE,
    TRAIN_PACK,
    TRAIN_EMBED,
    TRAIN_PER_LAYER, /* embeddings of each layer, where the model has them */
    TRAIN_FORWARD,
    TRAIN_HEAD_FORWARD,
    TRAIN_ADJOINT,
    TRAIN_HEAD,
    TRAIN_RECOMPUTE,
    TRAIN_BACKWARD,
    TRAIN_PER_LAYER_BACKWARD,
    TRAIN_EMBED_BACKWARD,
    TRAIN_CLEAR, /* this and the next three: canonical */
    TRAIN_LEAF,
    TRAIN_FOLD,
    TRAIN_SUM,
    TRAIN_NORM,
    TRAIN_CLIP, /* of many shards; one does it with the last bucket's norm */
    TRAIN_MIX,  /* this and the next: of muon */
    TRAIN_ORTHOGONALIZE,
    TRAIN_STEP,
    TRAIN_FINISH,
    TRAIN_TALLY_CLEAR, /* this and the next: of models with experts */
    TRAIN_TALLY,
    TRAIN_PULL,         /* of a balance loss */
    TRAIN_STAGES_BEGIN, /* this and the next: of a pipeline */
    TRAIN_PACK_BACK,
};

/* Operands of its works: their places among the uses that ops/train_declare.c declares, and among the
 * pointers that ops/train.c is given. Behind those of prepare, adjoint, head and finish come the columns of
 * the loss. */
enum { ZERO_GRADS, N_ZERO };
enum {
    LOSS_MINI, /* prepare, adjoint, finish */
    LOSS_STORE,
    LOSS_WS,
    LOSS_CURRENT, /* this and the next five: a value a token of the mini-batch */
    LOSS_ENTROPY,
    LOSS_DIVERGENCE,
    LOSS_D_CURRENT,
    LOSS_D_ENTROPY,
    LOSS_D_DIVERGENCE,
    LOSS_DATA,
    LOSS_DATA_HOST,
    N_LOSS,
    LOSS_VALUES = N_LOSS, /* this and the next: finish */
    LOSS_BACK,
    N_FINISH,
};
enum { PACK_ROWS, PACK_PACKED, PACK_STAGING, PACK_ROUTES, PACK_DIFFERS, N_PACK };
enum {
    EMBED_WEIGHTS,
    EMBED_PACKED,
    EMBED_X,
    EMBED_WS,      /* of parts of the vocabulary */
    EMBED_X_COMES, /* this and the next two: of ranks in a ring */
    EMBED_DX_COMES,
    EMBED_DX,
    N_EMBED
};
enum {
    LAYER_WEIGHTS,
    LAYER_PACKED,
    LAYER_X,
    LAYER_IN,
    LAYER_ACTS,
    LAYER_WS,
    LAYER_CARRIED, /* what layers hand on beside x (ops/kernels/carried.h); GR_NONE */
    N_RECOMPUTE,
    LAYER_TALLY = N_RECOMPUTE,
    LAYER_DIFFERS,
    N_LAYER
};
enum {
    HEAD_NORM,  /* the last bucket */
    HEAD_EMBED, /* where the output matrix is tied */
    HEAD_PACKED,
    HEAD_X,
    HEAD_WS,
    HEAD_CURRENT,
    HEAD_ENTROPY,
    HEAD_DX,
    HEAD_GRAD_NORM,
    HEAD_GRAD_EMBED,
    HEAD_D_CURRENT,
    HEAD_D_ENTROPY,
    HEAD_STORE,
    HEAD_MINI,
    HEAD_LOSS_WS,
    HEAD_DATA,
    HEAD_DATA_HOST,
    HEAD_TEACHER, /* this and the next five: of a teacher; its output matrix's bucket */
    HEAD_STATES,
    HEAD_STATES_CHUNK,
    HEAD_TAUGHT,
    HEAD_DIVERGENCE,
    HEAD_D_DIVERGENCE,
    N_HEAD,
};
enum {
    BACK_WEIGHTS,
    BACK_PACKED,
    BACK_IN,
    BACK_ACTS,
    BACK_DX,
    BACK_GRADS,
    BACK_WS,
    BACK_PULL,
    BACK_ADAPTERS,
    BACK_CARRIED, /* this and the next: what layers hand on, and d loss / d it; GR_NONE */
    BACK_D_CARRIED,
    N_BACK
};
enum { PER_LAYER_WEIGHTS, PER_LAYER_PACKED, PER_LAYER_X, PER_LAYER_WS, PER_LAYER_CARRIED, N_PER_LAYER };
enum {
    PER_LAYER_BACK_WEIGHTS,
    PER_LAYER_BACK_PACKED,
    PER_LAYER_BACK_IN, /* of the first layer: the embeddings */
    PER_LAYER_BACK_DX,
    PER_LAYER_BACK_GRADS,
    PER_LAYER_BACK_WS,
    PER_LAYER_BACK_D_CARRIED,
    N_PER_LAYER_BACK
};
enum { EMBED_BACK_PACKED, EMBED_BACK_DX, EMBED_BACK_GRADS, EMBED_BACK_WS, N_EMBED_BACK };
enum { CLEAR_TREE, N_CLEAR };
enum { CLEAR_TALLY, N_CLEAR_TALLY };
enum { PULL_TALLY, PULL_OUT, N_PULL };
enum { LEAF_GRADS, LEAF_ROWS, N_LEAF };
enum { FOLD_GRADS, FOLD_TREE, N_FOLD };
enum { SUM_LEAVES, SUM_GRADS, N_SUM };
enum { NORM_GRADS, NORM_SUMS, N_NORM };
enum { CLIP_SUMS, N_CLIP };
enum { STEP_WEIGHTS, STEP_GRADS, STEP_STATE, STEP_NORM, STEP_TALLY, STEP_MUON, N_STEP };
enum { ORTHOGONALIZE_X, ORTHOGONALIZE_WS, N_ORTHOGONALIZE };

/* How an update is cut. */
typedef struct gr_train_shape {
    uint32_t groups, seqs, mini_batches; /* of one mini-batch; how many there are */
    uint32_t own_seqs;                   /* of a mini-batch, a rank's part, or a leaf */
    gr_balance_bounds most;              /* of a mini-batch, that a rank has, or a leaf */
    gr_micro_bounds micro;
    gr_loss_class role;
    gr_expr_bounds loss, range; /* the mini-batch; one adjoint call */
} gr_train_shape;
gr_train_shape gr_train_shape_of(const gr_node *n, const gr_choices *how);

/* Of a pipeline: what a stage keeps of micro-batches on their way, as many side by side as the first stage
 * has (gr_stages_held), so many bytes each; of the last stage fewer are in use. Elsewhere one, of which there
 * is one anyway. */
typedef struct gr_train_kept {
    uint32_t places;
    uint64_t in, acts; /* a layer's input; its activations */
} gr_train_kept;
gr_train_kept gr_train_kept_of(const gr_node *n, const gr_choices *how, const gr_kernels *k);

/* Columns and rows that the loss and the metrics read. Release with gr_env_reads_release. */
void gr_train_reads(gr_env_reads *r, const gr_graph *g, const gr_node *n);

/* What of them goes to a device that evaluates losses; r: from gr_train_reads, kept alive. Release it. */
gr_loss_inputs gr_train_inputs(const gr_env_reads *r, const gr_graph *g, const gr_train_shape *shape);
void gr_train_inputs_release(gr_loss_inputs *in);

/* Whether the loss has a derivative by a fresh value; *place: which one of gr_loss_current (may be NULL). */
bool gr_train_current(const gr_graph *g, const gr_node *n, const char *field, size_t *place);

/* The first and the last bucket that an update changes something of. */
uint32_t gr_train_first(const gr_model *m);
uint32_t gr_train_last(const gr_model *m);

/* An update has two fresh values: logprob and entropy; with a teacher a third, divergence; with a value head,
 * value alone. */
static inline bool gr_train_is_value(const gr_node *n)
{
    return n->model->shape.head == GR_HEAD_VALUE;
}

static inline const char *gr_train_main(const gr_node *n)
{
    return gr_train_is_value(n) ? "value" : "logprob";
}

#endif
