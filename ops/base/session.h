/* ops/base/session.h: what a running graph offers its ops.
 *
 * Threads: ops on the host lane run beside those of the compute lane; everything here may be called from
 * both.
 */
#ifndef GR_OPS_BASE_SESSION_H
#define GR_OPS_BASE_SESSION_H

#include "graphs/graph/graph.h"
#include "ops/kernels/kernels.h"
#include "ops/text/tokenizer.h"

#define GR_VALIDATION "val." /* what names of a validation's metrics begin with */

typedef struct gr_session gr_session;
struct gr_comm;
struct gr_rows;
struct gr_shown;
struct gr_session {
    const gr_graph *graph;
    const gr_kernels *kernels;
    uint64_t seed;
    uint32_t rank, ranks; /* of those that run the graph together; 0 and 1 */
    uint32_t step, steps; /* this iteration, from 1; the last one's number; 0: before the first */
    uint32_t round;       /* of the nodes that a select repeats, from 0; 0 outside them */
    double *scalars; /* by column id: token ids; step, epoch, progress and state values of this iteration */
    void **state;    /* by node index: what the op's open returned; those added come last */
    const gr_node *added[2];
    struct gr_progress *progress; /* told how far nodes are (runtime/io/progress.h); NULL: nobody asks */
    bool *skipped;                /* by node index, as state: `when:` switches it off in this iteration */
    gr_tokenizer **tokenizer;     /* by model index */
    struct gr_metric_name *metric_names; /* in the order in which they were named */
    size_t n_metric_names, cap_metric_names;
    struct gr_metric *metrics; /* of this iteration, in the order in which they came */
    size_t n_metrics;
    gr_str notes; /* of this iteration, a line each */
    struct gr_listener *listeners;
    size_t n_listeners, cap_listeners;
    double *numbers;    /* by place in gr_graph.changing: of this iteration */
    double *next_state; /* by state index: what the iteration's end computed */
    /* Called for each row to be kept as a sample, and for all of an iteration (ops/summary.h); NULL: none. */
    void (*sample)(gr_session *s, const struct gr_shown *what, uint32_t seq);
    gr_status (*keep)(gr_session *s, const struct gr_shown *what, struct gr_team *team, gr_diag *d);
    const struct gr_functions *functions; /* of the program that runs it; NULL: none */
    const struct gr_inputs *inputs;       /* what was read, complete before anything runs; NULL: not known */
    void *user;                           /* of sample: the gr_record of this iteration */
    const char *keep_dir;                 /* of keep: the folder that it writes into */
};

/* Who wants to know of finished sequences, see gr_session_listen. */
struct gr_listener {
    const gr_node *rows, *node; /* whose rows; who listens */
    void (*finished)(void *user, const struct gr_rows *rows, uint32_t seq);
    void *user;
};

struct gr_metric {
    char name[96];
    uint32_t of; /* whose it is, as gr_session_name numbers them */
    double value;
};

struct gr_metric_name {
    char text[96];
    size_t
        at; /* among those of this iteration, where it was given: it may be past them, or another's place */
};

/* Tokenizers of the models that make rows, and every node's state, of one of these ranks (NULL: there are no
 * others). On failure close it all the same. */
GR_NODISCARD gr_status gr_session_open(gr_session *s, const gr_graph *g, const gr_kernels *k,
                                       const struct gr_comm *ranks, const struct gr_functions *functions,
                                       gr_diag *d);
/* A node that is none of the graph's, numbered behind them: one that ends iterations or validations
 * (ops/summary.h). Once for each, before anything runs. */
GR_NODISCARD gr_status gr_session_add(gr_session *s, const gr_node *n, gr_diag *d);
void gr_session_close(gr_session *s);

/* Whether a validation's node runs behind this iteration; step 0: before the first. False for others. */
bool gr_node_is_due(const gr_node *n, uint32_t step);
bool gr_validation_is_due(const gr_graph *g, uint32_t step); /* one of them */

/* Have finished called, on the compute lane, as soon as a sequence of rows has its last token: before the
 * other rows are final, and before the plan's own step that reads them. Not while node, who listens, is
 * skipped. It is called with seq GR_NONE, too, while the others go on, so that what waits for answers can ask
 * for more. */
void gr_session_listen(gr_session *s, const gr_node *rows, const gr_node *node,
                       void (*finished)(void *user, const struct gr_rows *rows, uint32_t seq), void *user);
void gr_session_finished(const gr_session *s, const gr_node *node, const struct gr_rows *rows, uint32_t seq);
/* Whether anybody listens to these rows in this iteration. */
bool gr_session_is_heard(const gr_session *s, const gr_node *node);

/* What the iteration's numbers that are expressions are, from its scalars; GR_E_INVALID: one is no number, or
 * beyond what its key allows. When the iteration begins. */
GR_NODISCARD gr_status gr_session_begin(gr_session *s, gr_diag *d);
static inline double gr_session_number(const gr_session *s, const gr_number *n)
{
    return n->changes ? s->numbers[n->changes - 1] : n->value;
}
/* A scalar expression over the iteration's scalars alone. */
double gr_session_scalar(const gr_session *s, const gr_expr *e);

/* Name a number of metrics.jsonl that a node gives, once, when the node opens; of a validation's node it is
 * called val.NAME. The same name is the same number. */
GR_PRINTF(3, 4) uint32_t gr_session_name(gr_session *s, const gr_node *n, const char *fmt, ...);
/* Record it for this iteration; given twice it keeps the last value. NaN prints as null. */
void gr_session_metric(gr_session *s, uint32_t metric, double value);

/* Warn of what the iteration was like, in one line; it is said when the iteration has ended. */
GR_PRINTF(2, 3) void gr_session_note(gr_session *s, const char *fmt, ...);

/* The model, and its tokenizer, that a node's rows are made for. */
const gr_model *gr_session_model(const gr_session *s, const gr_node *rows);
const gr_tokenizer *gr_session_tokenizer(const gr_session *s, const gr_node *rows);

#endif
