/* graphs/loader/loader.h: the parts of the loader; private to graphs/.
 *
 *     yaml.c   text -> gr_value          source.c  use:, params, --set, $name
 *     keys.c   values against key tables top.c     models, state, run, log
 *     nodes.c  nodes, references         order.c   edges, order, liveness
 *     scope.c  names, columns            alias.c   log-probs that need no pass of their own
 *     validate.c what runs between iterations
 *     refill.c what a select repeats            functions.c  functions: of the file
 *     pools.c  sets of ranks, and who runs where
 *     load.c   the whole, in order; expressions
 *
 * Every part reports what it finds and goes on; what follows from a reported error is marked `bad` and stays
 * silent.
 */
#ifndef GR_GRAPHS_LOADER_LOADER_H
#define GR_GRAPHS_LOADER_LOADER_H

#include "graphs/graph/graph.h"
#include "ops/base/op.h"
#include "runtime/base/index.h"
#include "graphs/loader/load.h"

enum { GR_YAML_DEPTH = 64, GR_YAML_VALUES = 200000, GR_FILE_LIMIT = 4 << 20, GR_NODES_MAX = 10000 };

/* ---- the file --------------------------------------------------------------------------------------------
 */

/* One document. file must outlive pool. GR_E_INVALID: every error is in d, *out untouched. */
GR_NODISCARD gr_status gr_yaml_parse(gr_value *out, gr_arena *arena, const char *text, size_t n,
                                     const char *file, gr_diag *d);

typedef struct gr_param {
    const char *name;
    gr_loc at;
    gr_value value;
    bool used, in_expressions;
    bool replaced;       /* also by what it stands for, in a key or in another parameter */
    unsigned char state; /* 0: as written, 1: being replaced, 2: done */
} gr_param;

typedef enum gr_formula_use {
    GR_ROLE_VALUE,
    GR_ROLE_WHEN,
    GR_ROLE_LOSS,
    GR_ROLE_METRIC,
    GR_ROLE_STATE,
    GR_ROLE_LOG,
    GR_ROLE_NUMBER, /* of a key that wants a number */
    GR_ROLE_RECORD  /* what a record keeps next, or which sequences a replay keeps */
} gr_formula_use;

/* One expression of the file, whatever it is for. */
typedef struct gr_formula {
    gr_formula_use role;
    gr_expr *expr; /* freed with the graph */
    const char *text;
    gr_loc at;
    const char *key; /* for messages: "expr", or the name of the metric, the state or the line of the log */
    struct gr_unresolved *owner; /* NULL: state, log; lives while loading */
    const char *name_of_owner;
    const gr_node *records; /* GR_ROLE_RECORD: whose they are */
    bool in_loss;           /* a metric that was compiled with its loss */
    gr_loss_ref *loss;      /* GR_ROLE_LOSS: where the result goes */
} gr_formula;

/* What stays beside a graph: for printing it again, and for its own clean-up. */
typedef struct gr_source {
    gr_value root; /* merged and replaced */
    gr_param *params;
    size_t n_params;
    gr_formula **formulas;
    size_t n_formulas, cap_formulas;
    gr_loss **losses;
    size_t n_losses, cap_losses, cap_tokens, cap_changing, cap_record_state;
    gr_expr_custom *functions;
    size_t n_functions;
    gr_node **aliases; /* left out, though an update names them (alias.c) */
    size_t *alias_at;  /* how many of the graph's nodes come before each */
    size_t n_aliases;
} gr_source;

/* ---- the loader ------------------------------------------------------------------------------------------
 */

typedef enum gr_why { GR_WHY_READS, GR_WHY_AFTER, GR_WHY_VERSION } gr_why;

typedef struct gr_edge { /* `from` comes before the draft that has the edge */
    struct gr_unresolved *from;
    gr_why why;
    gr_loc at;
} gr_edge;

/* A node while it is being read. */
typedef struct gr_unresolved {
    gr_node *node;
    const gr_value *map;
    gr_edge *edges;
    size_t n_edges, cap_edges;
    gr_formula **formulas;
    size_t n_formulas, cap_formulas;
    struct gr_unresolved
        *alias;   /* its value is the logprob of this update's pass, or of this rollout (alias.c) */
    bool updates; /* an op with a loss trains its model */
    bool writes;  /* it does, or makes it follow another */
    bool bad;     /* what it reads or computes is not known */
    bool unsure;  /* some value of it or of what it reads is wrong: no bounds to check */
    bool live, placed;
    size_t place;   /* in the file */
    size_t waiting; /* edges from drafts that are not placed */
    size_t n_live_columns;
    int mark; /* of walks over the edges */
} gr_unresolved;

typedef struct gr_loader {
    gr_graph *g;
    gr_arena *arena;
    gr_diag *d;
    const gr_load_options *o;
    gr_unresolved **unresolved; /* file order */
    size_t n_unresolved;
    gr_index by_name; /* of drafts */
    struct gr_names { /* that expressions may mean, in an update and elsewhere; filled where first asked for
                       */
        const char **name;
        size_t n;
    } names[2];
    gr_unresolved **order;
    size_t n_order;
} gr_loader;

/* source.c: the file at path with what it uses, --set applied and parameters replaced, into g->source. */
GR_NODISCARD gr_status gr_source_read(gr_loader *l, const char *text, size_t n, const char *path);
gr_param *gr_param_find(const gr_source *s, const char *name);
/* An expression, or a map of them, with the values of those parameters that keys have, too, in their places:
 * a parameter that stayed would, set anew, change the expressions and not the keys. */
gr_value gr_source_put_in(const gr_source *s, gr_arena *arena, const gr_value *exprs);
/* A value, no expression, as a file has it that reads back as this: with its dollars (see LANGUAGE.md). */
gr_value gr_source_as_written(gr_arena *arena, const gr_value *v);
/* A path as written at `at`, seen from here: relative ones belong to the folder of their file. */
const char *gr_path_from(gr_arena *arena, gr_loc at, const char *path);

/* keys.c */
extern const gr_key gr_train_keys[], gr_residency_keys[], gr_parallel_keys[], gr_run_keys[],
    gr_checkpoint_keys[], gr_lora_keys[], gr_on_keys[], gr_precision_keys[];
extern const gr_key gr_validate_keys[];   /* every, before: of any node; in gr_node */
extern const char *const gr_node_keys[];  /* the keys of every node, NULL-terminated */
extern const char *const gr_top_keys[];   /* of the file */
extern const char *const gr_model_keys[]; /* of a model */
/* Fill cfg from a map by a table; other keys in `also` are somebody else's. what: "op 'generate'". */
void gr_keys_read(gr_loader *l, const gr_value *map, gr_loc at, const char *what, const gr_key *keys,
                  const char *const *also, void *cfg, gr_unresolved *owner);
/* The same for those keys of the table that the map has; it may have others. */
void gr_keys_pick(gr_loader *l, const gr_value *map, const gr_key *keys, void *cfg, gr_unresolved *owner);
bool gr_value_number(const gr_value *v, double *out);
bool gr_value_is_map(gr_loader *l, const char *key, const gr_value *v);      /* false: reported */
const char *gr_value_text(gr_loader *l, const char *key, const gr_value *v); /* NULL: reported */
void gr_unknown_key(gr_loader *l, const gr_pair *p, const char *what, const gr_key *keys,
                    const char *const *also);

/* top.c */
void gr_read_top(gr_loader *l);
void gr_read_models(gr_loader *l);
/* Whether it is a name, of letters, digits and _; and one that a node or a state may have, for expressions
 * use it. Reported where not. */
bool gr_name_formed(gr_loader *l, const char *what, const char *name, gr_loc at);
bool gr_name_allowed(gr_loader *l, const char *what, const char *name, gr_loc at);

/* pools.c: `pools:` into g->pools, and the ranks they get into g->roles. */
extern const gr_key gr_pool_keys[];
void gr_read_pools(gr_loader *l);
/* The pool that `pool:` of a model or node names; NULL: reported. */
const gr_ranks_pool *gr_pool_named(gr_loader *l, const gr_value *v);
/* The pool of every node that does not say it; what cannot be so is reported. After gr_order. */
void gr_map_pools(gr_loader *l);

/* precision.c: `precision:` of a model; checked when shapes are known. */
void gr_read_precision(gr_loader *l, const gr_value *v, gr_model *m);
/* Which of two lists of longrope holds. */
void gr_find_positions(gr_loader *l);
/* Shapes of models whose rollouts keep states in bf16. */
void gr_find_states(gr_loader *l);
void gr_check_precision(gr_loader *l);

/* lora.c: `lora:` of a model's training. What is frozen beneath it is found or added after
 * gr_find_checkpoints; what is not built is refused after gr_map_pools. */
void gr_read_lora(gr_loader *l, const gr_value *v, gr_model *m);
void gr_find_bases(gr_loader *l);
void gr_check_lora(gr_loader *l);

/* parallel.c: `parallel:` of a model; refuses what ranks cannot be or models do not allow, after
 * gr_map_pools. Whether ranks share the sequences of a node as its model says: it is a pass of training. */
void gr_read_parallel(gr_loader *l, const gr_value *v, gr_model *m);
void gr_check_parallel(gr_loader *l);
bool gr_node_trains_parallel(const gr_node *n);

/* tensor.c: refuses models cut for ranks that do not come out even; after gr_map_pools. Then, when g->ranks
 * and g->view are set, what each node's ranks have together: parts, share and task; whole: a graph of several
 * roles, which nobody runs but by their views. */
void gr_check_tensor(gr_loader *l);
/* Of rollouts that keep rows: whether their ranks have as many each. */
void gr_check_kept(gr_loader *l);
void gr_set_shares(gr_graph *g, bool whole);

/* roles.c: g->views, where there are several roles; when all else of g is done. They share what does not
 * differ by role, and belong to g. */
void gr_copy_for_roles(gr_graph *g);

/* functions.c: `functions:` into g->source. */
void gr_read_functions(gr_loader *l);

/* checkpoint.c: m->checkpoint, m->random and the shape of every model. */
void gr_find_checkpoints(gr_loader *l);
/* The folder of a model's adapters: path, where it is one, or of this model in a run's step directory, also
 * as RUN@STEP or RUN@best; else path. */
const char *gr_adapters_folder(gr_arena *arena, const char *path, const char *model);

/* groups.c: `groups:` of a model's `train:`; and which tensors they are of, when its shape is known. */
extern const gr_key gr_group_keys[];
void gr_read_groups(gr_loader *l, const gr_value *v, gr_model *m);
void gr_find_groups(gr_loader *l);

/* records.c: `state:` of a node whose rows are records; refuses where it cannot be kept, after
 * gr_find_repeated. */
void gr_read_record_state(gr_loader *l, gr_unresolved *dr);
void gr_check_record_state(gr_loader *l);

/* nodes.c */
void gr_read_nodes(gr_loader *l);
gr_unresolved *gr_unresolved_find(const gr_loader *l, const char *name);
/* Of a name in an expression, "rollout.length". */
gr_unresolved *gr_unresolved_named(const gr_loader *l, const char *name);
gr_unresolved *gr_draft_of(const gr_loader *l, const gr_node *n);
void gr_draft_edge(gr_unresolved *to, gr_unresolved *from, gr_why why, gr_loc at);
/* The node of a reference, with an edge; NULL: reported (and owner is bad) or itself bad. */
gr_unresolved *gr_draft_ref(gr_loader *l, gr_unresolved *owner, const char *key, const char *name, gr_loc at,
                            gr_why why);
bool gr_node_has_seqs(const gr_node *n); /* a maker of sequences */
gr_formula *gr_formula_read(gr_loader *l, gr_formula_use role, const char *key, const gr_value *v,
                            gr_unresolved *owner);

/* validate.c: which nodes run on validations: those with `every`, and what reads them. */
void gr_find_validation(gr_loader *l);
/* Whether a formula beside the nodes reads one; reported where it does. */
bool gr_reads_validation(gr_loader *l, const gr_formula *f, const gr_node *from);

/* order.c: edges of names and versions; g->nodes in order. Dead ones follow the live in l->order. */
void gr_order(gr_loader *l);
void gr_find_aliases(gr_loader *l);
gr_unresolved *
gr_unresolved_meant(gr_unresolved *dr); /* the rollout that a name stands for, else dr; NULL: NULL */
void gr_order_warn(gr_loader *l); /* of nodes and models that nobody reads; an error where all are dead */

/* scope.c */
typedef struct gr_scope_user {
    gr_loader *l;
    const gr_formula *formula;
} gr_scope_user;
void gr_scope_columns(gr_loader *l); /* step, epoch, progress, state */
gr_expr_scope gr_scope(gr_scope_user *u);
/* Ids of the columns that a compiled formula reads, ascending: a loss those of its metrics too, which have
 * none of their own. Owned by f. */
const int *gr_formula_reads(const gr_formula *f, size_t *n);
/* The node whose rows a formula is about: what a select asks of its parent's rows, all else of its own. NULL:
 * not known, or none. */
const gr_node *gr_formula_rows(const gr_formula *f);
/* Whether all that a formula names can be had; reported where that is the graph's matter, not the
 * expression's. */
bool gr_scope_check(gr_loader *l, const gr_formula *f);

/* share.c: which passes read a prompt once for several of its responses (`share_prompts` of an update);
 * refuses what cannot. */
void gr_share_prompts(gr_loader *l);

/* best.c: refuses a metric for the best checkpoint that the run will not have. */
void gr_check_best(gr_loader *l);
/* And `run: {stop: ...}`, compiled over those that it will have. After all else. */
void gr_read_stop(gr_loader *l);

/* refill.c: what each select repeats: repeated_by; refuses what cannot be. */
void gr_find_repeated(gr_loader *l);

/* print.c */
void gr_str_quoted(gr_str *out, const char *text); /* as a double-quoted YAML (and JSON) scalar */

#endif
