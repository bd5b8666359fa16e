/* ops/base/op.h: what an op is: its keys and fields, its checks, its works, and what runs them.
 *
 * An op is one struct of facts and plain functions, one file each, listed in ops/registry.c. Everything else
 * derives from it: the loader fills the op's config by its key table, `graphrun ops` and `graphrun schema`
 * print it, the planner asks it to declare its works for given bounds, the executor asks it to run them.
 *
 * Life of a node: cfg filled by the loader -> check (names, levels, bounds) -> declare (any number of times,
 * for different choices) -> open (once a run) -> begin / run / more / end for every iteration -> close.
 */
#ifndef GR_OPS_BASE_OP_H
#define GR_OPS_BASE_OP_H

#include <string.h>

#include "graphs/graph/graph.h"
#include "memplan/plan/policy.h"
#include "memplan/plan/tasks.h"
#include "ops/kernels/kernels.h"
#include "ops/base/nodes.h"

/* ---- keys ------------------------------------------------------------------------------------------------
 */

typedef enum gr_key_kind {
    GR_KEY_BOOL,         /* bool */
    GR_KEY_UINT,         /* uint32_t, within [min, max]; or the word choices[0], which is UINT32_MAX */
    GR_KEY_NUMBER,       /* double, within [min, max] */
    GR_KEY_SCALAR,       /* gr_number: a number within [min, max], or an expression */
    GR_KEY_TEXT,         /* const char * */
    GR_KEY_PATH,         /* const char *: resolved against the graph file's folder */
    GR_KEY_ENUM,         /* int: index in choices */
    GR_KEY_TEXTS,        /* gr_texts: one text or a list of them */
    GR_KEY_UINTS,        /* gr_uints: one or a list */
    GR_KEY_NODE,         /* const gr_node *: a row maker (prompts, generate, sequences, ...) */
    GR_KEY_FIELD,        /* gr_field_ref: NODE.FIELD, a text field of data */
    GR_KEY_MODEL,        /* gr_model *: also stored in node->model */
    GR_KEY_SECOND_MODEL, /* gr_model *: also stored in node->second */
    GR_KEY_EXPR,         /* gr_expression: any level, unless the op's check says otherwise */
    GR_KEY_LOSS,         /* gr_loss_ref: parsed; compiled to gr_loss with the node's metrics by the loader */
    GR_KEY_VALUE,        /* const gr_value *: for the op's own check (rules) */
} gr_key_kind;

typedef struct gr_texts {
    const char *const *text;
    const gr_loc *at;
    size_t n;
} gr_texts;

static inline bool gr_texts_have(const gr_texts *t, const char *text)
{
    for (size_t i = 0; i < t->n; i++)
        if (!strcmp(t->text[i], text)) return true;
    return false;
}

typedef struct gr_uints {
    const uint32_t *value;
    size_t n;
} gr_uints;

typedef struct gr_field_ref {
    const gr_node *node;
    const char *field; /* data field, dotted paths allowed */
    gr_loc at;
} gr_field_ref;

typedef struct gr_loss_ref {
    gr_loss *loss;
    gr_loc at;
} gr_loss_ref;

/* One key of an op. The config struct has the value at offset and, for kinds that have no obvious absent
 * value, `fallback` (text as a user would write it; NULL: zeroed) is what an absent key means. */
typedef struct gr_key {
    const char *name;
    gr_key_kind kind;
    uint32_t offset;
    bool required;
    const char *fallback;
    double min, max;            /* both 0: any */
    const char *const *choices; /* ENUM: NULL-terminated; UINT: a word, or NULL */
    const char *doc;            /* one line, lower case, no full stop */
} gr_key;

/* A field that nodes of this op have. */
typedef struct gr_field {
    const char *name; /* first field of the table: the main one, the bare node name */
    gr_level level;
    gr_kind kind;
    gr_expr_dtype dtype;
    const char *doc;
} gr_field;

/* ---- planning --------------------------------------------------------------------------------------------
 */

/* What the planner chose for one node. */
typedef struct gr_choices {
    uint32_t micro_tokens;   /* bound of one micro-batch of a packed pass */
    uint32_t kv_blocks;      /* of a generate node's pool */
    uint32_t concurrent;     /* sequences decoded at once */
    uint32_t prefill_tokens; /* of one prefill call */
    uint32_t head_rows;      /* rows of one head chunk */
    uint32_t experts_again; /* where experts are divided over ranks, their first product is made again for the
                               backward pass, not kept */
    uint32_t expert_run;  /* tokens of a packed pass that go through a layer's experts at once; 0: of a model
                             without experts */
    uint32_t sharded;     /* many ranks: 1 where the model's weights are sharded (ops/parallel/sharding.h) */
    uint32_t shards;      /* of many: ranks that its shards are spread over; 0: all */
    uint32_t leaves;      /* canonical: those of a rank, see ops/parallel/sharding.h; else 0 */
    uint32_t recompute;   /* how many layers, from the first, keep only their input for backward */
    uint32_t whole_grads; /* of an update of many shards: 1 where whole gradients are summed on each rank, and
                             reduced once a mini-batch (ops/parallel/sharding.h) */
    uint32_t draft;       /* of a rollout: tokens that are drafted for a step, at most */
    uint32_t host_step;   /* of an update: 1 where the optimizer step of a bucket may be done on the host */
    unsigned threads;
} gr_choices;

/* One thing that may be chosen for a node, apart from all others. Level 0 is the best where everything fits;
 * each next one needs less memory. */
typedef struct gr_tunable {
    const char *name; /* as messages call it: "KV pool" */
    uint32_t n_levels;
    gr_level_bits bits;
    bool exact; /* of GR_BITS_SPARE: its levels have the same bits all the same */
    /* What a level makes of the node's choices, those of the tunables before this one in the op's list made
     * already. */
    void (*set)(const gr_node *n, const gr_kernels *k, uint32_t level, gr_choices *c);
    void (*describe)(const gr_node *n, uint32_t level, const gr_choices *c, gr_str *out); /* "256 blocks" */
} gr_tunable;

enum { GR_TUNABLES_MAX = 8 }; /* of a node */

/* ---- running ---------------------------------------------------------------------------------------------
 */

typedef struct gr_session gr_session;       /* ops/base/session.h */
typedef struct gr_state_file gr_state_file; /* runtime/io/state.h */
typedef struct gr_inputs gr_inputs;         /* runtime/io/inputs.h */

/* One execution of one work: pointers of its uses in declared order (NULL for GR_NONE). */
typedef struct gr_call {
    gr_session *session;
    const gr_node *node;
    void *state; /* from open */
    const gr_choices *how;
    const gr_placement *placed; /* the node's model; NULL: it has none */
    uint32_t kernel, arg;       /* as declared */
    void *const *ptr;
    uint32_t n_ptr;
    gr_lane lane; /* of its step: of a work that may be moved (gr_task_uses.host_with), where it is done */
    void *room;   /* of a collective: see gr_sharding_room_bytes */
    gr_queue *queue;
} gr_call;

typedef struct gr_op {
    const char *name;    /* the value of `op:` */
    const char *summary; /* one line */
    const char *doc;     /* a paragraph, or NULL */
    unsigned kernels;    /* gr_kernel_set: it runs on the devices that have all of these */
    gr_lane lane;        /* GR_LANE_COMPUTE or GR_LANE_HOST */
    bool logprob;        /* its main field is the log-prob of its model for its rows */
    bool makes_rows;     /* its values have rows of their own */
    bool narrows;        /* its rows are some of those of `of`, with groups of its own */
    bool joins;          /* its rows are those of `of` and others beside them, in the same groups */
    bool replays;        /* some of these others are rows of its own of earlier iterations (ops/replay.h) */
    bool generates;      /* it samples responses with its model */
    bool returns;        /* its expression is about prompts that were made of the rows of `of` */
    bool trains;         /* it changes its model */
    bool follows;        /* it makes its model follow another, the second (ops/copy.c) */
    bool passes;         /* it is one forward pass of its model over its rows (ops/forward.h) */
    bool scores;         /* its main field is a score of its rows: a validation reports it unasked */
    size_t cfg_bytes;
    const gr_key *keys;     /* ends with a NULL name */
    const gr_field *fields; /* ends with a NULL name */
    bool
        any_field; /* data: every other name that its field callback is asked for is a field of the records */
    /* Further fields, by the config; NULL: there is none of that name. The callback NULL: none at all. */
    const gr_field *(*field)(const gr_node *n, const char *name);

    /* After keys are filled and names resolved: what only the op knows to be wrong; sets node->bounds of row
     * makers. NULL: nothing. */
    void (*check)(gr_graph *g, gr_node *n, gr_diag *d);
    /* Level of the main field where it depends on the config (compute); NULL: from the table. */
    gr_level (*level)(const gr_node *n);
    gr_kind (*kind)(const gr_node *n); /* likewise number or bool */
    /* An op that trains: whether it makes one optimizer step an iteration; from the config alone. NULL: no.
     */
    bool (*one_step)(const gr_node *n);
    /* What may be chosen for a node [GR_TUNABLES_MAX]; returns how many. c: the default choice, or another
     * one. NULL: nothing. */
    size_t (*tunables)(const gr_graph *g, const gr_node *n, const gr_kernels *k, const gr_choices *c,
                       gr_tunable *out);
    /* The choice at its best for the device's sizes, luxuries apart: c has threads, leaves and how weights
     * are sharded already. NULL: nothing is chosen. */
    void (*default_choice)(const gr_node *n, const gr_kernels *k, gr_choices *c);
    /* What a plan says of what was chosen, a line each; NULL: nothing. */
    void (*note)(const gr_node *n, const gr_choices *c, gr_str *out);
    /* Whether a node can be run with choices that a file says. NULL: with any. */
    bool (*runs_with)(const gr_node *n, const gr_choices *c);
    /* What of a node these kernels do not do, and what to set instead, as an end of a sentence; NULL:
     * nothing. The callback NULL: nothing ever. */
    const char *(*unfit)(const gr_node *n, const gr_kernels *k);
    /* Objects and works for these choices. */
    void (*declare)(const gr_graph *g, const gr_node *n, const gr_choices *how, const gr_kernels *k,
                    gr_tasks *p);

    gr_status (*open)(gr_session *s, const gr_node *n, void **state, gr_diag *d); /* NULL: no state */
    void (*close)(void *state);
    /* Add what open has read, and what run will, under this owner. NULL: nothing. */
    gr_status (*inputs)(const void *state, const char *owner, gr_inputs *in, gr_diag *d);
    gr_status (*run)(const gr_call *c, gr_diag *d);
    bool (*more)(const gr_call *c, uint32_t trip); /* agreed loops */
    /* Loops that hold collectives: the trips that this rank needs for what is its own; all make as many as
     * the one that needs most, and go on when more says no. ptr[1]: the rows. NULL: all ranks decide alike.
     */
    uint32_t (*trips)(const gr_call *c);
    /* Of passes in stages (ops/parallel/stages.h): bytes that go to the next stage, or to the one before, in
     * this trip, and bytes that come from it; 0: nothing does. NULL: it has no such passes. */
    void (*sends)(const gr_call *c, bool next, uint64_t *goes, uint64_t *comes);
    /* Exact resume: add what must survive, and take it back. NULL: nothing. */
    void (*save)(void *state, const char *prefix, gr_state_file *out);
    gr_status (*load)(void *state, const char *prefix, const gr_state_file *in, gr_diag *d);
    /* The same of an object NODE.what without a model, of span KEEP and in the host pool: write it into the
     * folder of a checkpoint, each rank its own, and read it there; dir NULL: a run begins. */
    gr_status (*keep)(const void *state, const void *block, const char *dir, gr_diag *d);
    gr_status (*take_back)(void *state, void *block, const char *dir, gr_diag *d);
} gr_op;

#endif
