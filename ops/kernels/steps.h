/* ops/kernels/steps.h: decode steps whose state lives on the device, in chunks that the host follows.
 *
 * The device keeps for each slot the token to feed, its position, its table of blocks and its draws. A step
 * runs the model over all slots, samples, reports each slot's token, and makes slots empty whose sequence has
 * ended (a stop id, or max_tokens). The host gives orders between chunks of a fixed number of steps and reads
 * a chunk's report while the next one runs:
 *
 *     trip t:   report(t - 2)   wait for chunk t - 2 and read its tokens; chunk t - 1 keeps the device busy
 *               input(t)        which slots begin, end or move; which slots share a prompt
 *               change(t)       enqueue that
 *               run(t)          enqueue chunk t and the copy of its report
 *
 * What the host does at trip t follows from the reports up to t - 2 alone, never from time: so runs repeat. A
 * slot whose sequence ended in chunk t - 2 stands empty in chunk t - 1 and may be used again in chunk t. A
 * sequence that the host ends (a stop text) runs on in chunk t - 1; the host drops those tokens. So when the
 * host knows of the last token, a chunk and orders behind it are still queued: the host's memory that begin
 * was given is free once the queue has finished.
 *
 * Drafts (ops/drafts.h): a slot has rows, 1 + drafts.tokens of them. Row 0 is the token to feed, the others
 * what the device looks up at the beginning of each step in texts that it keeps; rows without a draft are
 * empty. The model takes every row for a slot of its own, with the table of the row's slot. A step's tokens
 * are those sampled behind row 0 and behind each row whose token was the one sampled before it. Where layers
 * have states of one size, a slot has as many places as rows: the state behind each row is left in another,
 * and the slot goes on from that behind the last of the step's tokens that was fed.
 *
 * Or the layer of the checkpoint that predicts a further token drafts (ops/model/ahead.h), in passes behind
 * each step. The first reads the hidden states of all of the step's rows, each beside the token that was
 * sampled behind it, before it is known which of these count: what it keeps of others is written again by
 * the next step. Of each slot's last token that counts it gives the first draft. Each further pass has one
 * row a slot, beside the draft before.
 *
 * Threads: one thread, the queue's.
 */
#ifndef GR_OPS_KERNELS_STEPS_H
#define GR_OPS_KERNELS_STEPS_H

#include "ops/kernels/kernels.h"
#include "ops/kernels/slots.h"

/* Tokens are looked up by the rules of gr_draft (ops/drafts.h), or drafted by a layer. */
typedef struct gr_steps_drafts {
    uint32_t tokens;  /* of a step of a slot, at most; 0: nothing is drafted, and the rest is not read */
    uint32_t match;   /* that must be the same before a draft */
    uint32_t seqs;    /* texts that are kept: gr_slot_change.text is one of them */
    uint32_t samples; /* so many texts that follow each other are looked up in for each other; 1: none are */
    bool
        ahead; /* the shape's layer that predicts a further token drafts: match, seqs, samples are not read */
} gr_steps_drafts;

typedef struct gr_steps_bounds {
    uint32_t slots;      /* sequences decoded at once */
    uint32_t stride;     /* blocks of a slot's table */
    uint32_t window_at;  /* of these, see gr_extend */
    uint32_t max_length; /* keys of a sequence, at most */
    uint32_t chunk;      /* steps of a chunk */
    uint32_t stop_ids;
    uint32_t choices; /* of a token's experts, where they are recorded; 0: they are not */
    bool states;      /* layers have states of one size (gr_layer_slot_bytes) */
    gr_steps_drafts drafts;
} gr_steps_bounds;

static inline uint32_t gr_steps_rows(const gr_steps_bounds *b)
{
    return b->slots * (1 + b->drafts.tokens);
}

/* Whether texts are kept, to look up in. */
static inline bool gr_steps_look_up(const gr_steps_bounds *b)
{
    return b->drafts.tokens && !b->drafts.ahead;
}

/* What holds for all sequences of one rollout. */
typedef struct gr_steps_rules {
    gr_sampling sampling;
    uint32_t max_tokens;
    const int32_t *stop; /* [n_stop] ids that end a sequence */
    uint32_t n_stop;
} gr_steps_rules;

/* Host arrays for the orders of one trip. */
typedef struct gr_steps_input {
    gr_slot_change *change; /* [slots]; no slot is named by two of them, whether as slot or as from */
    uint32_t *table;        /* [slots, stride] row i: of change i where it sets */
    uint32_t *held;   /* [slots, 1 + drafts] row i: of change i where it sets, the place of its state, then
                         those that it may be left in, which are its own; NULL without states */
    int32_t *text;    /* [slots, max_length] row i: of change i where it sets, its tokens up to position; NULL
                         where nothing is looked up */
    uint32_t *member; /* [rows] of the slots that take part in the chunk (before its n) all rows, one slot's
                         behind each other, no others: row r of slot s is s (1 + drafts) + r */
    uint32_t
        *group_first; /* [slots + 1]: group g's rows are member[group_first[g]] .. [group_first[g + 1] - 1] */
    uint32_t *shared; /* [slots] first keys that the slots of a group share, a multiple of GR_KV_BLOCK */
} gr_steps_input;

typedef struct gr_steps_report {
    const int32_t *id;       /* [chunk, rows] what was sampled behind each row, a slot's tokens first; then
                                GR_STEPS_REJECTED: it was drafted, and is not; GR_STEPS_EMPTY: nothing was fed */
    const float *logprob;    /* [chunk, rows] */
    const uint16_t *choices; /* [chunk, rows choices]: in each step those of a pass of as many tokens as
                                rows took part (ops/kernels/routing.h); NULL: not recorded */
} gr_steps_report;

/* What a model step draws from and writes to; arrays on the device. */
typedef struct gr_steps_draw {
    uint32_t n;
    const uint32_t *row; /* [n] the rows of the step that are sampled behind */
    const gr_sampling *how;
    const uint32_t (*draw)[2]; /* [n] */
    int32_t *id;               /* [n] */
    float *logprob;            /* [n] */
} gr_steps_draw;

/* Enqueue one step of the model: embed, layers, head, sampling. May be captured and run again: what it
 * enqueues follows from e->n_seqs and the key of the chunk alone. */
typedef void gr_model_step(void *user, gr_queue *q, const gr_extend *e, const gr_steps_draw *d);

/* Enqueue a pass of the layer that drafts, as a step of the model; e->ids: the token behind each one whose
 * hidden state it reads. from [n_seqs]: the rows of the pass before that it goes on from; NULL: it is the
 * first, and reads what the model's step gave, row by row. */
typedef void gr_ahead_step(void *user, gr_queue *q, const gr_extend *e, const uint32_t *from,
                           const gr_steps_draw *d);

typedef struct gr_steps_chunk {
    uint32_t n; /* slots before this one take part */
    gr_model_step *step;
    gr_ahead_step *ahead; /* where drafts.ahead */
    void *user;
    uint64_t key; /* of all addresses that the step uses: where it changes, nothing captured is used again */
    /* Ranks run its steps together, and the host is asked in each of them: nothing is captured, and all steps
     * of the chunk are run, with n 0 of no tokens. */
    bool together;
} gr_steps_chunk;

/* Blocks of layers that follow each other in the pool, or their states of one size. */
typedef struct gr_steps_blocks {
    void *kv;
    uint32_t layers;
    uint64_t layer_bytes, block_bytes;
} gr_steps_blocks;

typedef struct gr_steps gr_steps;

typedef struct gr_steps_ops {
    /* Memory that begin is given, on the device and on the host (pinned where that means something). */
    uint64_t (*device_bytes)(const gr_model_shape *s, const gr_steps_bounds *b);
    uint64_t (*host_bytes)(const gr_model_shape *s, const gr_steps_bounds *b);
    gr_status (*open)(gr_steps **out, const gr_model_shape *s, const gr_steps_bounds *b, gr_diag *d);
    void (*close)(gr_steps *s); /* NULL is fine */
    /* A rollout begins, all slots empty; trips count from 0. */
    gr_status (*begin)(gr_steps *s, gr_queue *q, void *device, void *host, const gr_steps_rules *r,
                       gr_diag *d);
    gr_steps_input (*input)(gr_steps *s, uint32_t trip);
    /* input's first n_changes changes and n_groups groups hold from the next chunk on. */
    void (*change)(gr_steps *s, gr_queue *q, uint32_t trip, uint32_t n_changes, uint32_t n_groups);
    /* Copy block src[i] to dst[i] in each of these layers' parts; src and dst [n] on the device. */
    void (*copy)(gr_steps *s, gr_queue *q, const gr_steps_blocks *b, const uint32_t *src, const uint32_t *dst,
                 uint32_t n);
    void (*run)(gr_steps *s, gr_queue *q, uint32_t trip,
                const gr_steps_chunk *c); /* n 0: nothing, unless together */
    /* Wait for the chunk; what it points to holds until change(trip + 2). A failure of the device is told
     * here. */
    gr_status (*report)(gr_steps *s, uint32_t trip, gr_steps_report *out, gr_diag *d);
} gr_steps_ops;

extern const gr_steps_ops gr_steps_cuda; /* without CUDA: its sizes alone */

#endif
