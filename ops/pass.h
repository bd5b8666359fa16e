/* ops/pass.h: packed passes of a model over the rows of a batch, a micro-batch at a time.
 *
 * What `logprob` and `update` share: how a rank's sequences (ops/parallel/balance.h) are cut into
 * micro-batches, the packed arrays on the device, and the works of a forward pass.
 *
 * Sequences are taken in their order or, where an update of the rows says `balance: true`, from the longest
 * to the shortest, where those of one length keep theirs. A sequence is in one micro-batch; there are as few
 * micro-batches as the bound of tokens allows, and of so many the fullest has as few tokens as can be. Which
 * sequence follows which does not depend on the bound: so neither do the sums over them.
 *
 * Responses may share their prompt (`share_prompts` of an update of the rows). Sequences of a group that
 * follow each other and have the same prompt, so many at most, are a unit, which is in one micro-batch whole.
 * All but the prompt's last token come once, as a part of their own, in front of the parts of the responses.
 * Each of these begins with the prompt's last token: it predicts the first of the response, so each row of
 * the head has a token of its own. Which sequences are a unit follows from the rows and their dealing to
 * ranks, never from bounds. Without that a sequence is a unit and one part.
 *
 * Ranks of a context group (runtime/comm/mesh.h) take the same micro-batches, and each has as many of the
 * tokens: its hidden states and its rows of the head are of these. Where they do not come out even, a last
 * sequence of padding is added, which no row asks about.
 */
#ifndef GR_OPS_PASS_H
#define GR_OPS_PASS_H

#include "ops/parallel/balance.h"
#include "ops/parallel/parts.h"
#include "ops/parallel/stages.h"
#include "ops/base/session.h"
#include "ops/kernels/head.h"

/* Bounds of one micro-batch, and how many there can be. */
typedef struct gr_micro_bounds {
    uint32_t tokens, seqs;
    uint32_t rows, own_rows; /* response tokens; and those that one rank's tokens predict */
    uint32_t trips;
    uint32_t cut;    /* ranks that its tokens are cut over; 1: they are not */
    uint32_t routes; /* recorded choices of a token that come with it; 0: none */
    uint32_t slices; /* neighbours among these ranks that have each a part of the vocabulary; 0: none */
    uint32_t vocab;  /* ids of a part */
    uint32_t shares; /* responses of a unit at most; 0: each reads its own prompt. seqs counts parts */
} gr_micro_bounds;
/* most: that ranks of one context group have of the pass; cut: how many they are. */
gr_micro_bounds gr_micro_bounds_of(const gr_rows_bounds *b, const gr_balance_bounds *most,
                                   uint32_t micro_tokens, uint32_t cut);
/* That so many responses share a prompt (gr_node_shares). */
void gr_micro_set_shares(gr_micro_bounds *b, uint32_t shares);
/* The parts of the vocabulary that a node's passes have. */
void gr_micro_set_parts(gr_micro_bounds *b, const gr_node *n);
/* Tokens that one rank has of so many: all have as many, the last of them may be padding. */
static inline uint32_t gr_micro_own(const gr_micro_bounds *b, uint32_t tokens)
{
    return (tokens + b->cut - 1) / b->cut;
}

/* Where a pass stands. Host side; the arrays are in the device object `packed`. */
typedef struct gr_pass {
    bool last;             /* the head is asked at each sequence's last token: one row a sequence */
    bool longest_first;    /* see above */
    gr_seqs seqs;          /* of this pass, as they are taken */
    gr_seqs own;           /* those that are this rank's: the next pass is over them */
    gr_seqs counted;       /* of a pass that is only counted */
    gr_balancer *balancer; /* who says which are; owned, NULL: not there yet */
    /* The same for trips that are agreed on: another lane's thread counts them, also while a pass begins. */
    gr_seqs asked;
    gr_balancer *asked_balancer;
    uint32_t next;             /* place among them of the next micro-batch's first */
    uint32_t place;            /* of this rank in its context group */
    uint32_t n_seqs, n_tokens; /* the current micro-batch: its parts, and their tokens */
    uint32_t n_own;            /* this rank's tokens of it: all, where they are not cut */
    uint32_t n_rows;           /* its rows of the head */
    uint32_t most_rows;        /* the most that one of its neighbours with the vocabulary has, itself too */
    uint32_t *offset;          /* [n_seqs + 2] of its packed tokens; the padding's end is last */
    uint32_t *prefix;          /* [n_seqs + 1] the part that a part goes on from; its own: none */
    struct gr_pass_part {
        uint32_t seq, row, at; /* a sequence; its first row of the head; which of the batch's this is */
        uint32_t first, n;     /* the batch's rows of the sequence, whichever rank's they are */
        uint32_t from;         /* the sequence's token that it begins with */
    } * part;                  /* [n_seqs + 1] behind the last one: rows */
    uint32_t limit;            /* most tokens of a micro-batch, see above; 0: not known yet */
    uint32_t trips;            /* begun of its loop, of ranks in a ring; and what they do in this one */
    gr_stage_flow flow;
    struct gr_tally_state
        *tally; /* of its model's routers (ops/tally.h), owned by who opened the pass; NULL */
} gr_pass;

/* The packed arrays of a micro-batch on the device. */
typedef struct gr_micro {
    int32_t *ids;      /* [tokens] of this rank */
    int32_t *position; /* [tokens] of all, in its sequence */
    uint32_t *offset;  /* [seqs + 1] */
    uint32_t *prefix;  /* [seqs] see gr_packed; NULL: none has one */
    uint32_t *row; /* [own_rows] which of its tokens predicts each response token; or each sequence's last */
    int32_t *target; /* [own_rows] */
    uint16_t
        *routes; /* [tokens, routes] choices of its tokens, as ops/kernels/routing.h has them; NULL: none */
    /* Where ranks have parts of the vocabulary, as ops/kernels/head.h wants them: [slices tokens], and
     * [slices][own_rows]; NULL: they have not. */
    int32_t *part_ids, *part_target;
} gr_micro;
uint64_t gr_micro_bytes(const gr_micro_bounds *b);
gr_micro gr_micro_at(void *block, const gr_micro_bounds *b);

/* For so many sequences at most. */
void gr_pass_open(gr_pass *p, uint32_t seqs);
/* Over these sequences; the list is copied. p->last and p->longest_first are kept. */
void gr_pass_begin(gr_pass *p, const gr_seqs *seqs);
void gr_pass_release(gr_pass *p);
bool gr_pass_more(const gr_pass *p);
/* Take the next micro-batch and write its arrays; an empty one where there are no more sequences. staging:
 * host memory of gr_micro_bytes.
 */
void gr_pass_next(gr_pass *p, const gr_rows *rows, const gr_micro_bounds *b, gr_queue *q, void *packed,
                  void *staging);

/* Of ranks in a ring (ops/parallel/stages.h), before that: another trip has begun, and gr_pass_next is to
 * take the micro-batch of the rank's next unit, which may be one that has been there. back: the way of
 * gradients. false: it has none yet. Elsewhere nothing, true. */
bool gr_pass_turn(gr_pass *p, const gr_node *n, uint32_t rank, bool back);
/* This rank's tokens of what goes to the next stage, and of what comes from the one before; back: the other
 * way. */
uint32_t gr_pass_goes(const gr_pass *p, const gr_node *n);
uint32_t gr_pass_comes(const gr_pass *p, const gr_node *n, uint32_t rank, bool back);

/* How many micro-batches these sequences take, cut as p cuts; p stays where it is. */
uint32_t gr_pass_count(gr_pass *p, const gr_rows *rows, const gr_micro_bounds *b, const gr_seqs *seqs);

/* Whether passes over these rows take the longest first: an update of them asks for it (`balance`). */
bool gr_rows_longest_first(const gr_graph *g, const gr_node *rows);

/* Rows of the head that follow each other in the micro-batch and in the batch's columns alike: [row, row +
 * n), of which the first is row `at` of the batch. Begin with {0}; at most `most` at a time, and in all
 * n_rows. false: that was all. */
typedef struct gr_chunk {
    uint32_t row, n, at;
} gr_chunk;
bool gr_pass_chunk(const gr_pass *p, uint32_t most, gr_chunk *c);
/* Rows of the head that neighbours with parts of the vocabulary have together: [first, first + n) are this
 * rank's, maybe none, and each of them has `each` at most. Begin with {0}; at most `most` at a time. false:
 * that was all of all of them. */
typedef struct gr_window {
    uint32_t first, n, each;
} gr_window;
bool gr_pass_window(const gr_pass *p, uint32_t most, gr_window *w);
/* Of them those that follow each other in the batch's columns. Begin with {.row = w->first}. */
bool gr_pass_run(const gr_pass *p, const gr_window *w, gr_chunk *c);
/* The same of whole sequences, whichever rank has their rows: n rows of the batch from `at` on; row counts
 * sequences. */
bool gr_pass_whole(const gr_pass *p, gr_chunk *c);

gr_packed gr_pass_packed(const gr_pass *p, const gr_micro_bounds *b, const gr_micro *k);
gr_embed_call gr_pass_embed(const gr_pass *p, const gr_micro_bounds *b, const gr_micro *k);
gr_head_window gr_pass_head(const gr_micro_bounds *b, const gr_micro *k, const gr_window *w,
                            float inv_temperature);
/* Head rows [first, first + n) of the micro-batch; keep: see gr_head_rows. */
gr_head_rows gr_pass_rows(const gr_micro *k, uint32_t first, uint32_t n, float inv_temperature, bool keep);

/* The parts of a value head, in the last bucket, or in the gradients of one. */
gr_value_head gr_value_head_at(const gr_kernels *k, const gr_model_shape *s, const void *norm_bucket);
gr_value_grads gr_value_grads_at(const gr_model_shape *s, void *norm_bucket, gr_dtype grads);

/* The output matrix: in the embedding's bucket where tied (embed not NULL), else after the final norm. */
const void *gr_head_matrix(const gr_kernels *k, const gr_model_shape *s, const void *embed,
                           const void *norm_bucket);

/* The node's model has this head; where it does not, or is not known to, see gr_model.head_known. */
void gr_check_head(const gr_node *n, gr_head head, gr_diag *d);

/* A sequence that can be longer than a micro-batch is refused. micro_tokens 0: the planner's choice. */
void gr_check_micro_tokens(const gr_node *n, uint32_t micro_tokens, const gr_rows_bounds *b, gr_diag *d);

/* ---- declaring ----------------------------------------------------------------------------------------- */

/* How many ranks a node's tokens are cut over; and how many parts its sequences have, one for each group of
 * such ranks. */
static inline uint32_t gr_node_cut(const gr_node *n)
{
    return gr_mesh_sharers(&n->placement.mesh);
}
static inline uint32_t gr_node_parts(const gr_node *n)
{
    return GR_MAX(n->placement.ranks / gr_mesh_ranks(&n->placement.mesh), 1u);
}

/* Responses that share a prompt in a node's passes, as many as there are at most; 0: none does. */
uint32_t gr_node_shares(const gr_node *n);

/* The shape that a node's kernels work with: its model's, or a slice's. */
const gr_model_shape *gr_node_shape(const gr_node *n);

/* How many neighbours have each a part of the vocabulary in a node's passes; 1: each has it whole. */
uint32_t gr_node_vocab_parts(const gr_node *n);

/* Bytes of hidden states of so many tokens. */
uint64_t gr_hidden_bytes(const gr_kernels *k, const gr_model_shape *s, uint64_t tokens);
/* An object for what layers hand on beside them (ops/kernels/carried.h), of so many tokens; GR_NONE: nothing.
 */
uint32_t gr_carried_object(gr_tasks *p, const gr_kernels *k, const gr_model_shape *s, uint64_t tokens,
                           bool packed, const char *pass, const char *what);
/* Whether layer l is the first that writes to it, so that it is not there before. */
bool gr_carried_begins(const gr_model_shape *s, uint32_t l);

/* Costs for the cost model: what is expected of `seqs` sequences of full length, as they are cut. */
typedef struct gr_micro_cost {
    uint32_t trips;
    double tokens, rows; /* of one micro-batch, the mean of them */
    double length;       /* twice the keys that a token sees on average */
} gr_micro_cost;
gr_micro_cost gr_micro_cost_of(const gr_micro_bounds *m, const gr_rows_bounds *b, uint32_t seqs);

/* Arithmetic and memory traffic of one layer forward but for experts, and of the head over some rows; set on
 * w times `times`. tokens: a rank's.
 */
void gr_layer_cost(gr_task *w, const gr_kernels *k, const gr_model_shape *s, uint32_t layer, double tokens,
                   double length, double times);
/* What a layer's experts take, where it has some: they are no part of gr_layer_cost. Tokens go through them
 * in runs of so many (0: gr_experts_run's), each of which reads the weights of the experts that it touches,
 * and backward reads and writes their gradients. grad_size: bytes of an element of these; 0: forward. */
void gr_experts_price(gr_task *w, const gr_kernels *k, const gr_model_shape *s, uint32_t layer, double tokens,
                      uint32_t run, uint64_t grad_size);
/* Of a micro-batch of so many tokens, those that go through a rank's layers of experts: of its context part,
 * or, where experts are divided, its own. */
double gr_expert_tokens(const gr_node *n, double tokens);
/* And where the first product of divided experts is made again for a backward pass over so many tokens, after
 * that. */
void gr_experts_price_again(gr_task *w, const gr_kernels *k, const gr_model_shape *s, uint32_t layer,
                            double tokens);
/* The same of a layer of a training pass on a mesh of ranks, and what it exchanges with them. tokens: of all
 * ranks that share them; times: 1 forward, 2 backward. */
void gr_layer_mesh_cost(gr_task *w, const gr_kernels *k, const gr_node *n, uint32_t layer, double tokens,
                        double length, double times);
/* Of embeddings of each layer; times: 1 forward, 2 backward, where the product is made once more. */
void gr_per_layer_cost(gr_task *w, const gr_kernels *k, const gr_model_shape *s, double tokens, double times);
void gr_head_cost(gr_task *w, const gr_kernels *k, const gr_model_shape *s, double rows, double times);
/* What neighbours with parts of the vocabulary exchange, beside that: of so many rows of all of them, in
 * windows of head_rows each; and of the tokens of an embedding. */
void gr_head_exchange_cost(gr_task *w, const gr_kernels *k, const gr_node *n, double rows, uint32_t head_rows,
                           bool backward);
void gr_embed_exchange_cost(gr_task *w, const gr_kernels *k, const gr_node *n, double tokens);
/* The same again, so many times in all. */
void gr_cost_times(gr_task *w, double times);
/* What layers of another kind add to a work of several; rows and lengths are the part's. */
void gr_cost_add(gr_task *w, const gr_task *part);

gr_pass_bounds gr_pass_bounds_of(const gr_micro_bounds *b, const gr_rows_bounds *rows, const gr_choices *how);

#endif
