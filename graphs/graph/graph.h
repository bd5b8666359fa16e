/* graphs/graph/graph.h: a graph file, read and checked: nodes, models, state, expressions, with their
 * locations in files.
 *
 *     file --gr_graph_load--> gr_graph --(ops/base/op.h: declare)--> gr_tasks --scheduler--> plan
 *
 * Loading does everything that needs no data: YAML, `use:`, `--set`, parameters, keys against each op's
 * table, names, row sets, levels, expressions, model configs, bounds. It reports every error of the file at
 * once, each with file, line and column, and warnings (dead nodes, settings that train nothing). What
 * LANGUAGE.md has and this version has not built is refused by name.
 *
 * Ownership: everything belongs to the graph's arena. Threads: a loaded graph does not change.
 */
#ifndef GR_GRAPHS_GRAPH_GRAPH_H
#define GR_GRAPHS_GRAPH_GRAPH_H

#include <jansson.h>

#include "graphs/expr/expr.h"
#include "graphs/expr/loss.h"
#include "memplan/plan/policy.h"
#include "ops/kernels/optim.h"
#include "ops/model/tp.h"
#include "runtime/base/index.h"
#include "runtime/comm/mesh.h"

typedef struct gr_graph gr_graph;
typedef struct gr_node gr_node;
typedef struct gr_model gr_model;
struct gr_op;

/* ---- values: YAML as read, every one with its place ------------------------------------------------------
 */

typedef enum gr_value_kind { GR_VALUE_NULL, GR_VALUE_SCALAR, GR_VALUE_LIST, GR_VALUE_MAP } gr_value_kind;

typedef struct gr_value {
    gr_value_kind kind;
    gr_loc at;                    /* scalars: the first character of the text (inside the quotes or block) */
    const char *text;             /* scalar; in a loaded graph parameters are replaced, but in expressions */
    bool quoted, block;           /* scalar: quoted or block style: never null, bool or number by itself */
    bool broken;                  /* an error was reported for it: say no more */
    unsigned indent;              /* block scalar: columns before its text, for places inside it */
    const struct gr_pair *pairs;  /* map, in file order */
    const struct gr_value *items; /* list */
    size_t n;
} gr_value;

typedef struct gr_pair {
    const char *key;
    gr_loc at;
    gr_value value;
} gr_pair;

const gr_value *gr_value_get(const gr_value *map, const char *key); /* NULL: not there */
/* As JSON; plain scalars as YAML means them: null, true, false, whole numbers, numbers; else texts.
 * json_decref it. */
json_t *gr_value_json(const gr_value *v);

/* ---- expressions in the graph ----------------------------------------------------------------------------
 */

/* A checked expression of a node, a state or the log. NULL expr: the key was absent. */
typedef struct gr_expression {
    gr_expr *expr;
    gr_loc at;
} gr_expression;

typedef struct gr_named_expression {
    const char *name;
    gr_loc at;
    gr_expr *expr;
} gr_named_expression;

/* A number that may be an expression over what an iteration begins with: step, epoch, progress, states. Its
 * value is known when the iteration begins (gr_session_number); sizes never depend on it. */
typedef struct gr_number {
    double value;     /* where it is no expression; else any that it may have */
    uint32_t changes; /* place among gr_graph.changing, from 1; 0: it is no expression */
    const char *text; /* of the expression */
} gr_number;

/* Such an expression. */
typedef struct gr_changing {
    const char *key; /* for messages */
    gr_loc at;
    gr_expr *expr;
    double min, max; /* beyond which the run ends */
} gr_changing;

/* run: {stop: ...}: over metrics of an iteration, states, step and progress. Column ids of the expression are
 * places among names. */
typedef struct gr_stop {
    gr_expr *expr; /* NULL: none */
    const char *text;
    gr_loc at;
    const char **names; /* of metrics.jsonl, but for the first two */
    size_t n_names;
} gr_stop;
enum { GR_STOP_STEP, GR_STOP_PROGRESS };

/* ---- columns: fields of nodes that somebody reads --------------------------------------------------------
 */

/* Expressions name columns by id: the index in gr_graph.columns. Scalars that change by the iteration are
 * columns too: step, epoch, progress, and each state value. */
typedef struct gr_column gr_column;

/* What of the rows themselves a column holds. */
typedef enum gr_rows_field {
    GR_ROWS_NONE, /* it is computed, or of a record */
    GR_ROWS_TOKEN,
    GR_ROWS_LOGPROB,
    GR_ROWS_LENGTH,
    GR_ROWS_TRUNCATED,
    GR_ROWS_POSITION,
    GR_ROWS_SECOND,
    GR_ROWS_MODEL,
    GR_ROWS_TURN,
    GR_ROWS_STOPPED,
    GR_ROWS_TURNS,
    GR_ROWS_VERSION
} gr_rows_field;

struct gr_column {
    const char *name;    /* "rollout.length", "advantage", "state.beta", "step" */
    const gr_node *node; /* NULL for scalars of the iteration */
    const char *field;   /* of the node; NULL: its main field */
    gr_level level;
    gr_kind kind;
    const gr_node
        *rows; /* the node whose rows it has; NULL at scalar level; at group level: prompts-like node */
    gr_expr_dtype dtype;
    gr_rows_field of_rows;
    uint32_t id;           /* its place among the graph's columns */
    bool current;          /* logprob, entropy, value inside an update */
    bool read;             /* by an expression that is evaluated; only those of the iteration need not be */
    const gr_column *from; /* of a select: the column of its parent's rows that this one narrows */
};

/* ---- models ----------------------------------------------------------------------------------------------
 */

typedef enum gr_schedule_kind { GR_LR_CONSTANT, GR_LR_LINEAR, GR_LR_COSINE } gr_schedule_kind;

/* train: {groups: ...}: settings of tensors whose checkpoint name a pattern matches. */
typedef struct gr_train_group {
    const char *tensors;
    gr_number lr;
    double weight_decay;
    bool has_lr, has_decay; /* else the model's */
} gr_train_group;

/* What is kept beside weights of bf16, so that steps smaller than their last bit are not lost: nothing; a
 * copy in fp32; or the bits of it that the weights lack (runtime/base/half.h). */
typedef enum gr_master { GR_MASTER_NONE, GR_MASTER_F32, GR_MASTER_SPLIT } gr_master;

typedef struct gr_train { /* models: NAME: train: */
    gr_optim_kind optimizer;
    gr_loc at; /* where it is said */
    gr_number lr;
    double beta1, beta2, eps, weight_decay, grad_clip; /* grad_clip 0: none */
    double momentum;                                   /* of SGD, whose beta1 it is, and of MUON */
    gr_schedule_kind schedule; /* linear, cosine: from lr to min_lr_ratio * lr at the last iteration */
    double min_lr_ratio;
    uint32_t warmup;              /* iterations from 0 to lr */
    const gr_train_group *groups; /* the first that matches counts */
    size_t n_groups;
    /* [buckets][tensors of the bucket, as gr_bucket_ranges has them]: from 1; 0: none; NULL: no groups */
    const uint8_t *const *group_of;
    gr_dtype grads, moments;
    gr_master master; /* where weights have fewer bits than fp32 */
} gr_train;

/* models: NAME: train: lora:. What a graph calls one model is then two: a frozen one, whose weights others
 * may have in common, and adapters. */
typedef struct gr_lora {
    bool given; /* it is trained so; by --set, too, where `at` has no line */
    gr_loc at;
    gr_model_shape shape; /* of the adapters; its adapter.rank is 0: the model is trained whole */
    double alpha;
    const char *from; /* a folder in PEFT's form that the adapters begin as; NULL: they are drawn */
    gr_loc from_at;
    bool nf4; /* the layers of base are kept in NF4 (ops/model/nf4.h) */
    gr_loc base_at;
    const gr_model *base, *ends; /* the frozen models that its weights are of, and its last bucket */
} gr_lora;

/* models: NAME: gather:, how a rollout's own weights are filled where training's are sharded over ranks:
 * straight; through a gathered copy of all; of one bucket after another. */
typedef enum gr_gather { GR_GATHER_DIRECT, GR_GATHER_WHOLE, GR_GATHER_LAYER } gr_gather;

/* models: NAME: shard:, the ranks that a model is sharded over: the planner's choice; all; those of each
 * host, where the hosts are replicas of each other. */
typedef enum gr_shard_over { GR_SHARD_AUTO, GR_SHARD_ALL, GR_SHARD_NODE } gr_shard_over;

/* models: NAME: residency:. A gr_policy each; -1: not said, --policy holds. */
typedef struct gr_model_residency {
    int policy[GR_N_RESOURCES];
    gr_loc at;
} gr_model_residency;

/* Parts of a mini-batch whose gradients are summed apart where `canonical: true`; ranks divide it. */
#define GR_LEAVES 8

/* ---- pools -----------------------------------------------------------------------------------------------
 */

/* pools: NAME: a named set of ranks, as written. Of ranks, at, share and with one is given. */
typedef struct gr_ranks_pool {
    const char *name;
    gr_loc at;
    uint32_t hosts, devices;          /* ranks: so many devices of so many hosts; hosts 0: so many anywhere */
    const char *list;                 /* at: "0-3,8-11" */
    uint32_t share;                   /* its part of what the others leave */
    const struct gr_ranks_pool *with; /* the same ranks as another */
    bool same_node;                   /* all on one host */
    uint32_t models;                  /* at most so many a rank; 0: any number */
    uint32_t role;                    /* of ranks: index in gr_graph.roles */
} gr_ranks_pool;

/* Ranks that do the same: those of a pool, and of the pools that share them. */
typedef struct gr_ranks_role {
    const char *text; /* "0-3,8" */
    uint32_t *ranks;  /* rising */
    uint32_t n, hosts, first_host;
    uint32_t node; /* of several hosts that have as many each: those of one, side by side; else 0 */
} gr_ranks_role;

/* Where its weights come from. */
typedef struct gr_model_files {
    const char *checkpoint; /* resolved path: a folder in Hugging Face form, or a config.json */
    gr_loc at;
    const char *folder; /* where its tokenizer is: the checkpoint, or the folder of a bare config.json */
    bool random;        /* a bare config.json: weights from the seed */
} gr_model_files;

/* How its weights are cut over ranks: in training, and for rollouts. */
typedef struct gr_model_sharding {
    gr_shard_over over;
    gr_gather gather;
    uint32_t tensor; /* ranks that its copy for rollouts is cut for, as written; 1: it is whole */
    gr_loc tensor_at;
    uint32_t expert; /* ranks that its experts are divided over in that copy, as written; 1: they are not */
    gr_loc expert_at;
    gr_slicing rollout; /* of both the same of the ranks that the graph is for: one alone has it whole */
    gr_mesh mesh;       /* `parallel:` its training passes, as written */
    gr_loc mesh_at[GR_N_AXES];
    bool mesh_auto;             /* `parallel: auto`: the planner chooses it */
    gr_slicing train;           /* along its axes tensor and expert, of the ranks that the graph is for */
    gr_model_shape train_slice; /* the shape of one of these parts */
    gr_model_shape slice;       /* the shape of one of the rollout's parts (ops/model/tp.h) */
} gr_model_sharding;

/* models: NAME: precision:, what the products of its layers compute in: those of rollouts, and those of
 * log-prob passes and updates; and in what rollouts keep keys and values, and states. */
typedef struct gr_precision {
    bool rollout, train, kv; /* in FP8; else in the device's type */
    bool gradients;          /* of updates, those of weights, too */
    bool bf16_state;         /* of the gated delta rule, in rollouts; else fp32 */
    gr_loc at;
    gr_model_shape shape;    /* the model's, of a pass in FP8 */
    gr_model_shape kv_shape; /* the same of a rollout, where kv holds */
} gr_precision;

#define GR_MODELS_MAX 64 /* sets of models are bits of 64 */

struct gr_model {
    const char *name;
    gr_loc at;
    uint32_t index;
    gr_model_files files;
    gr_model_shape shape;
    bool value_head; /* `head: value`: one is put on where the checkpoint has an output matrix */
    bool head_known; /* shape.head holds: config.json was there, or the file says it */
    bool trained;    /* has train:, or follows */
    bool implied;    /* nobody wrote it: the frozen one beneath adapters, or a layer that drafts */
    gr_train train;
    gr_lora lora;
    gr_precision precision;
    const gr_node *update;  /* the node that trains it, or makes it follow; NULL */
    const gr_node *follows; /* an op `copy` that writes it: it has a master, no moments, no `train:`; NULL */
    gr_model_residency residency;
    gr_model_sharding sharding;
    const gr_ranks_pool *pool; /* where it is trained, and where its nodes run; NULL: the graph has none */
    gr_loc pool_at;
};

static inline bool gr_model_has_lora(const gr_model *m)
{
    return m->lora.shape.adapter.rank != 0;
}

/* Moments of each of its elements. */
static inline uint32_t gr_model_moments(const gr_model *m)
{
    return m->follows ? 0 : gr_optim_moments(m->train.optimizer);
}

/* The shape of what an update changes: gradients, moments and masters have its buckets. */
static inline const gr_model_shape *gr_model_trains(const gr_model *m)
{
    return gr_model_has_lora(m) ? &m->lora.shape : &m->shape;
}

/* ---- nodes -----------------------------------------------------------------------------------------------
 */

/* Bounds that sizes are computed from; all 0 for nodes without rows. */
typedef struct gr_rows_bounds {
    uint32_t groups, seqs;
    uint32_t prompt_tokens, response_tokens; /* of one sequence */
    bool masked;                             /* some response tokens do not count: a select left them out, or
                                                an environment said them */
    uint32_t turns, measures; /* of conversations: the model's turns, and numbers that the environment gives
                                 of each; turns 0: there is no environment */
    bool kept; /* of a rollout that keeps rows from one iteration to the next: each token has its version, and
                  each group its place */
} gr_rows_bounds;

/* Which ranks run a node, and how much of it one of them has. */
typedef struct gr_node_placement {
    const gr_ranks_pool *pool; /* whose ranks run it; NULL: the graph has no pools */
    gr_loc at;                 /* where its own `pool:` is written */
    uint32_t role;             /* of these ranks; of an iteration's end GR_NONE where all run it */
    uint32_t ranks;            /* that work on it together */
    gr_rows_bounds share;      /* of bounds, what one of them generates, passes and scores, at most */
    uint32_t parts;            /* ranks of the tensor-parallel group that runs it; 1: each computes alone */
    gr_rows_bounds task;       /* of its rows' bounds, what these have together, at most; share, where each is
                                  alone */
    gr_mesh mesh; /* of training passes: how ranks share each sequence; theirs, too, is task. Of what reads
                     the rollout's copy: which ranks have its experts */
} gr_node_placement;

/* When it runs. */
typedef struct gr_node_timing {
    gr_expression when;         /* over step, epoch, progress and states */
    bool new_version;           /* `after:` an update of its model: reads the new weights */
    bool refills;               /* a select that repeats nodes until it has enough */
    const gr_node *repeated_by; /* the select that repeats it; NULL: it runs once an iteration */
    uint32_t every;             /* of a validation: it runs after every so many iterations; 0: it is none */
    bool before;                /* a validation: also before the first iteration */
} gr_node_timing;

/* What of it somebody looks at. */
typedef struct gr_node_results {
    gr_named_expression *metrics;
    size_t n_metrics;
    const gr_column **columns; /* its fields that somebody reads, or that are logged */
    size_t n_columns;
} gr_node_results;

struct gr_node {
    const char *name;
    gr_loc at;
    uint32_t index; /* place in gr_graph.nodes, which is a topological order: file order among ready ones */
    const struct gr_op *op;
    void *cfg;              /* the op's config struct, filled by its key table */
    const gr_value *value;  /* as written */
    gr_model *model;        /* `model:`; NULL */
    gr_model *second;       /* another one that it reads; of a rollout the layer that drafts; NULL */
    const gr_node *of;      /* `of:` or `prompts:`: what this node's rows come from; NULL */
    const gr_node *rows;    /* the node whose rows its values have: itself for row makers, else of->rows */
    const gr_node *groups;  /* the node whose rows are the groups: prompts or sequences; NULL */
    gr_rows_bounds bounds;  /* of `rows` */
    gr_rows_bounds work;    /* of a rollout that keeps rows: of all that it works on; else no groups */
    const gr_node **inputs; /* every node it reads, `after:` included */
    size_t n_inputs;
    const gr_node *stands_for; /* of a log-prob node that is left out: the rollout whose own it is; NULL */
    uint32_t shares; /* of a pass of training: responses that read the prompt they have in common together, at
                        most; 0: each reads its own */
    gr_node_placement placement;
    gr_node_timing timing;
    gr_node_results results;
};

/* ---- the graph -------------------------------------------------------------------------------------------
 */

typedef struct gr_state_value {
    const char *name;
    gr_loc at;
    double init;
    gr_expr *next;
    uint32_t column; /* id of the old value */
} gr_state_value;

/* A number that is kept for each record of a prompts or sequences node (its `state:`), and is a field of it;
 * or which sequences a `replay` keeps (its `keep:`). */
typedef struct gr_record_state {
    const char *name; /* the field */
    const gr_node *node;
    gr_loc at;
    double init;
    gr_expr *next; /* a number a prompt, at the iteration's end: of the records that were drawn in it; of a
                      replay a number a sequence of its rows */
} gr_record_state;

/* token("TEXT") of an expression: a scalar column that holds its id, filled in when tokenizers are open. */
typedef struct gr_token_value {
    const char *text;
    gr_loc at; /* of an expression that has it */
    uint32_t column;
} gr_token_value;

/* What happens to a run, for `on:`. */
#define GR_EVENT_MAP(X)         \
    X(CHECKPOINT, "checkpoint") \
    X(BEST, "best")             \
    X(STOP, "stop")             \
    X(FAILURE, "failure")
typedef enum gr_event {
#define X(name, text) GR_EVENT_##name,
    GR_EVENT_MAP(X)
#undef X
        GR_N_EVENTS
} gr_event;

/* on: {EVENT: COMMAND}; of several commands there are several. */
typedef struct gr_hook {
    gr_event event;
    const char *command;
    gr_loc at;
} gr_hook;

/* log: {wandb: {project: NAME}}: a tracker that is told of the run. */
typedef struct gr_sink {
    const char *name;
    const gr_value *settings; /* the map, with parameters put in */
    gr_loc at;
} gr_sink;

/* Defaults of run: {timeout, stop_after_skipped, check}, which have no part in the bits. */
#define GR_RUN_TIMEOUT        600
#define GR_STOP_AFTER_SKIPPED 20
#define GR_CHECK_EVERY        100
#define GR_RUN_SAMPLES        4

typedef struct gr_run_settings {
    uint32_t steps;                             /* 0: use epochs */
    uint32_t epochs;                            /* both 0 in the file: one epoch, said at the start */
    uint32_t checkpoint_every, checkpoint_keep; /* 0: only at the end; 0: all */
    bool checkpoint_last;                       /* false: none where the last iteration was reached */
    const char *best;                           /* metric that says which checkpoint stays for good; NULL */
    gr_loc best_at;
    bool best_is_least;
    gr_stop stop;
    uint64_t seed;
    uint32_t samples; /* lines of samples.jsonl an iteration */
    bool keep_all;    /* every response of the iteration is kept */
    uint32_t timeout; /* seconds that ranks wait for one that stays where it is; 0: for ever */
    uint32_t
        stop_after_skipped; /* optimizer steps in a row that train nothing before the run ends; 0: never */
    uint32_t check;         /* iterations from one comparison of what ranks hold alike to the next; 0: none */
    gr_bits_rule bits;      /* when what changes results may be chosen */
} gr_run_settings;

struct gr_graph {
    gr_arena *arena;
    struct gr_source *source; /* the file's values and syntax trees, private to graphs/ */
    const char *name, *path;
    gr_model **models;
    size_t n_models;
    gr_node **nodes; /* topological order; dead nodes are left out (and warned about) */
    size_t n_nodes;
    gr_index by_name; /* of nodes */
    gr_column **columns;
    size_t n_columns, cap_columns;
    uint32_t column_step, column_epoch, column_progress;
    gr_state_value *state;
    size_t n_state;
    gr_record_state *record_state;
    size_t n_record_state;
    gr_token_value *tokens;
    size_t n_tokens;
    gr_changing *changing;
    size_t n_changing;
    gr_named_expression *log; /* evaluated at the iteration's end */
    size_t n_log;
    gr_sink *sinks;
    size_t n_sinks;
    gr_hook *hooks;
    size_t n_hooks;
    double hook_timeout; /* seconds that one of them may take */
    gr_run_settings run;
    bool canonical;        /* `canonical: true`: the same bits on any number of ranks, see GR_LEAVES */
    bool strict;           /* `strict: true`: rollout, log-prob and update give a token the same bits */
    bool nondeterministic; /* `deterministic: false`: sums of gradients need no fixed order */
    uint32_t ranks;        /* that shares are for; where there are views, theirs are */
    uint32_t hosts;        /* that all ranks are on */
    gr_ranks_pool *pools;
    size_t n_pools;
    gr_ranks_role *roles; /* by their first rank; [1] where all ranks do the same */
    size_t n_roles;
    /* The graph as each role of several sees it: with the shares of its ranks, and their number. Theirs are
     * the names, nodes and columns of this one, in the same order, and they belong to it. NULL: one role. */
    gr_graph **views;
    uint32_t view; /* of a view: its role */
};

const gr_node *gr_graph_node(const gr_graph *g, const char *name);   /* NULL */
const gr_model *gr_graph_model(const gr_graph *g, const char *name); /* NULL */
/* Whether all ranks do the same. */
static inline bool gr_graph_one_role(const gr_graph *g)
{
    return g->n_roles < 2;
}
/* Whether the ranks that see the graph so run the node. */
static inline bool gr_node_runs(const gr_graph *g, const gr_node *n)
{
    return gr_graph_one_role(g) || n->placement.role == g->view || n->placement.role == UINT32_MAX;
}
#endif
