/* ops/forward.h: a forward pass of a model over all rows of a batch: what logprob, value and score share.
 *
 * declare puts up: begin, and a loop over micro-batches of pack, embed and the layers; the op adds its head
 * (kernel GR_FORWARD_HEAD), which reads the hidden states x, and ends the loop with gr_forward_end. Of many
 * ranks each does its own sequences, and then all have the columns of all. The bounds of its sequences are
 * the node's own (gr_node.bounds), which are those of its rows but for other prompts (gr_node_other_prompts).
 */
#ifndef GR_OPS_FORWARD_H
#define GR_OPS_FORWARD_H

#include "ops/base/configs.h"
#include "ops/pass.h"
#include "ops/tally.h"

enum {
    GR_FORWARD_BEGIN,
    GR_FORWARD_LOOP,
    GR_FORWARD_PACK,
    GR_FORWARD_EMBED,
    GR_FORWARD_PER_LAYER, /* embeddings of each layer, where the model has them */
    GR_FORWARD_LAYER,
    GR_FORWARD_HEAD,
    GR_FORWARD_TALLY,
    GR_FORWARD_CLEAR, /* of a teacher: states that other ranks will fill */
    GR_FORWARD_PUT,   /* other prompts in the place of the rows' own */
};

/* Operands of these works: their places among uses and pointers. Behind those of begin come the columns that
 * the head writes. */
enum { GR_FORWARD_PUT_ROWS, GR_FORWARD_PUT_PROMPTS, GR_FORWARD_PUT_OUT, GR_N_FORWARD_PUT };
enum { GR_FORWARD_BEGIN_ROWS, GR_FORWARD_BEGIN_TALLY, GR_FORWARD_BEGIN_X, GR_N_FORWARD_BEGIN };
enum {
    GR_FORWARD_PACK_ROWS,
    GR_FORWARD_PACK_PACKED,
    GR_FORWARD_PACK_STAGING,
    GR_FORWARD_PACK_ROUTES, /* this and the next: where experts are compared */
    GR_FORWARD_PACK_DIFFERS,
    GR_N_FORWARD_PACK
};
enum {
    GR_FORWARD_WEIGHTS,
    GR_FORWARD_PACKED,
    GR_FORWARD_X,
    GR_FORWARD_WS,      /* of embed: where ranks have parts of the vocabulary */
    GR_FORWARD_CARRIED, /* of embeddings of each layer, and of layers: what these hand on */
    GR_N_FORWARD_PER_LAYER,
    GR_FORWARD_LAYER_TALLY = GR_N_FORWARD_PER_LAYER,
    GR_FORWARD_LAYER_DIFFERS,
    GR_N_FORWARD_LAYER,
    GR_FORWARD_COME = GR_FORWARD_WS + 1, /* of embed: what has come around a ring */
    GR_N_FORWARD_EMBED
};

/* The keys of these ops; an op's table ends with them. */
#define GR_FORWARD_CFG(f) offsetof(gr_logprob_cfg, f)

/* Objects that the head's work reads, and what is expected of a micro-batch. */
typedef struct gr_forward {
    uint32_t packed, x, carried; /* carried: GR_NONE where layers hand on nothing but x */
    gr_micro_cost cost;
    gr_tally_objects tally;
} gr_forward;

/* out: columns that begin fills with zeros and the head writes; GR_NONE: not read by anybody. */
gr_forward gr_forward_declare(const gr_graph *g, const gr_node *n, const gr_choices *how, const gr_kernels *k,
                              gr_tasks *p, const uint32_t *out, size_t n_out);

/* The weights that a work of it reads: those gathered for it, or the rollout's. Of a pipeline, a piece's
 * (ops/parallel/stages.h). */
uint32_t gr_forward_weights(const gr_node *n, const gr_kernels *k, gr_tasks *p, uint32_t bucket);

/* End the loop; the columns become whole on every rank. */
void gr_forward_end(const gr_node *n, gr_tasks *p, const gr_forward *f, const uint32_t *out, size_t n_out);

/* State of the node: where the pass stands. last: see gr_pass. */
gr_pass *gr_forward_open(gr_session *s, const gr_node *n, bool last);
void gr_forward_close(void *state); /* NULL is fine */

/* Every kernel but the head. A token that the model does not have is an error. */
gr_status gr_forward_run(const gr_call *c, gr_diag *d);
bool gr_forward_more(const gr_call *c, uint32_t trip);
uint32_t gr_forward_trips(const gr_call *c);
void gr_forward_sends(const gr_call *c, bool next, uint64_t *goes, uint64_t *comes);
/* Whether this rank asks the head: of a pipeline's, those of the last stage; in a ring, of the unit there. */
bool gr_forward_has_head(const gr_call *c);
/* Of the head, for the cost model, what comes to the slowest stage's time. */
void gr_forward_head_cost(gr_task *w, const gr_node *n);
/* The weights of the last bucket, and of a tied embedding. */
uint32_t gr_forward_last(const gr_node *n, const gr_kernels *k, gr_tasks *p);

/* What may be chosen, see gr_op. */
size_t gr_forward_tunables(const gr_graph *g, const gr_node *n, const gr_kernels *k, const gr_choices *c,
                           gr_tunable *out);
void gr_forward_default_choice(const gr_node *n, const gr_kernels *k, gr_choices *c);
bool gr_forward_runs_with(const gr_node *n, const gr_choices *c);

/* Bounds of the micro-batches of this node. */
gr_micro_bounds gr_forward_bounds(const gr_node *n, const gr_choices *how);

#endif
