/* graphrun.h: graphrun in a program of yours: check a graph, plan it, run it iteration by iteration.
 *
 *     cc example.c $(pkg-config --cflags --libs graphrun)
 *
 * It is the command-line program without its command line: what is asked for (graphrun_ask) has the same
 * settings, a run writes the same directory, and has the same bits. Messages call settings as the program
 * does (--budget). Runs of several ranks are started by the program, and refused here; plans are made of any.
 *
 * Errors. No call ends the process, prints, or touches signals. What can fail returns a graphrun_status and
 * adds to a graphrun_log, which the caller makes and may be NULL: errors, warnings and notes, with their
 * places in the graph file. Where memory runs out GRAPHRUN_E_NOMEM is returned; what the call or the run had
 * taken is then lost to the process, and the run's folder stays locked until it ends.
 *
 * Ownership. What a call makes the caller frees, with the function named beside it; NULL is fine there. Texts
 * and arrays that are handed out belong to what they were asked of, and last as long as it, unless it says
 * less. What is handed in is read during the call alone, but functions and watches are used until the run is
 * closed.
 *
 * Threads. Any thread may call; one object is used by one thread at a time, except for graphrun_run_stop,
 * which any thread and a callback may call. Work is done on threads of the library, which block all signals.
 * There is one run at a time in a process. Functions and watches are called on threads of the run, while the
 * caller waits in graphrun_run_next; they may call nothing of this header but graphrun_fail, graphrun_reply
 * and graphrun_run_stop.
 *
 * Versions. GRAPHRUN_API counts changes that a caller must know of; the library's soname has the same number.
 * Structs that a caller fills begin with their size, and grow at the end: fill in sizeof, and zero the rest.
 *
 * Commands that a graph names (rewards, data) are started by the program graphrun: the one named by
 * GRAPHRUN_PROGRAM in the environment, else the one installed with the library.
 */
#ifndef GRAPHRUN_H
#define GRAPHRUN_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

#define GRAPHRUN_API    1
#define GRAPHRUN_EXPORT __attribute__((visibility("default")))

/* GRAPHRUN_API of the library. */
GRAPHRUN_EXPORT uint32_t graphrun_api(void);
/* What `graphrun --version` prints: version, devices, compiler. */
GRAPHRUN_EXPORT const char *graphrun_version(void);

typedef enum graphrun_status {
    GRAPHRUN_OK,
    GRAPHRUN_E_NOMEM,
    GRAPHRUN_E_INVALID, /* the graph or the settings are wrong */
    GRAPHRUN_E_IO,
    GRAPHRUN_E_NOFIT,  /* no plan fits the budget */
    GRAPHRUN_E_FAILED, /* while running */
    GRAPHRUN_E_STOPPED,
    GRAPHRUN_E_DIVERGED /* the run trains nothing any more */
} graphrun_status;
GRAPHRUN_EXPORT const char *graphrun_status_text(graphrun_status s);

/* ---- messages --------------------------------------------------------------------------------------------
 */

typedef enum graphrun_severity { GRAPHRUN_ERROR, GRAPHRUN_WARNING, GRAPHRUN_NOTE } graphrun_severity;

typedef struct graphrun_message {
    graphrun_severity severity;
    const char *file;   /* NULL: no place */
    unsigned line, col; /* from 1; 0: none */
    const char *text;
    const char *whole; /* "file:line:col: error: text", in one line */
} graphrun_message;

typedef struct graphrun_log graphrun_log;
GRAPHRUN_EXPORT graphrun_log *graphrun_log_new(void); /* NULL: out of memory */
GRAPHRUN_EXPORT void graphrun_log_free(graphrun_log *l);
GRAPHRUN_EXPORT size_t graphrun_log_count(const graphrun_log *l);
GRAPHRUN_EXPORT const graphrun_message *graphrun_log_at(const graphrun_log *l,
                                                        size_t i); /* NULL: there is none */
GRAPHRUN_EXPORT void graphrun_log_clear(graphrun_log *l);

/* ---- functions of the caller ------------------------------------------------------------------------------
 */

typedef struct graphrun_text {
    const char *bytes; /* UTF-8 where the model wrote it; a NUL behind them */
    size_t n;
} graphrun_text;

/* The rows of a batch, where they lie: valid during the call that shows them, and not to be written. */
typedef struct graphrun_rows {
    uint32_t n;                   /* sequences */
    uint32_t n_tokens;            /* response tokens of all of them */
    uint32_t stride;              /* ids of a sequence: prompt, then response */
    uint32_t longest;             /* log-probs of a sequence */
    const uint32_t *group;        /* [n] the prompt that each answers, not decreasing */
    const uint32_t *prompt_len;   /* [n] */
    const uint32_t *response_len; /* [n] */
    const uint32_t *token_offset; /* [n + 1]: values of tokens are packed, from the first of token_offset */
    const uint8_t *truncated;     /* [n] cut at max_tokens */
    const int32_t *ids;           /* [n, stride] */
    const float *logprob;         /* [n, longest] of each sampled token, as sampled */
} graphrun_rows;

/* Responses to be scored. */
typedef struct graphrun_batch {
    const char *node;
    uint32_t step; /* the iteration, from 1 */
    graphrun_rows rows;
    const graphrun_text *prompt, *response; /* [rows.n] */
    const graphrun_text *answer;            /* [rows.n]; NULL: the node has no `answer` */
    const graphrun_text *record;            /* [rows.n] the record of the data, as JSON */
    const char *const *names;               /* [n_names] of the node's `names` */
    uint32_t n_names;
    bool per_token; /* `level: token` */
    /* To be filled: [n]; or [n][n_names]; or [n_tokens], packed. A score that is not set fails the run. */
    double *scores;
} graphrun_batch;

/* Of a call of a function: say why it fails, which ends the run with this message; or what it replies. */
typedef struct graphrun_call graphrun_call;
GRAPHRUN_EXPORT void graphrun_fail(graphrun_call *c, const char *message);
GRAPHRUN_EXPORT void graphrun_reply(graphrun_call *c, const char *bytes, size_t n);

typedef struct graphrun_function {
    const char *name; /* `function:` of a reward, or of an environment */
    /* Score a batch: once an iteration, on the run's lane `host`. NULL: it does not. */
    void (*score)(void *user, const graphrun_batch *b, graphrun_call *c);
    /* Answer the turns of conversations: `requests` is a JSON list of messages (docs/ENVIRONMENTS.md), the
     * reply a list with one to each but those of type end. Called on a thread of its own. NULL: it does not.
     */
    void (*answer)(void *user, const char *requests, size_t n, graphrun_call *c);
    void *user;
} graphrun_function;

/* ---- what a node has computed -----------------------------------------------------------------------------
 */

typedef enum graphrun_type { GRAPHRUN_F32, GRAPHRUN_F64, GRAPHRUN_I32, GRAPHRUN_U8 } graphrun_type;
typedef enum graphrun_level {
    GRAPHRUN_SCALAR, /* one value */
    GRAPHRUN_GROUP,  /* one a prompt */
    GRAPHRUN_SEQUENCE,
    GRAPHRUN_TOKEN /* of responses, packed */
} graphrun_level;

typedef struct graphrun_column {
    const char *name; /* "advantage", "rollout.logprob" */
    graphrun_type type;
    graphrun_level level;
    const void *data; /* [n], where it lies: valid during the call, and not to be written */
    size_t n;
} graphrun_column;

typedef struct graphrun_seen {
    const char *node;
    uint32_t step;
    const graphrun_rows *rows; /* NULL: the node has none */
    const graphrun_column *column;
    size_t n;
} graphrun_seen;

/* Look at what a node has read and written, behind its last step in each iteration; on its lane. What lies in
 * the memory of a GPU is left out. */
typedef struct graphrun_watch {
    const char *node;
    void (*saw)(void *user, const graphrun_seen *s, graphrun_call *c);
    void *user;
} graphrun_watch;

/* ---- what is asked for ------------------------------------------------------------------------------------
 */

typedef struct graphrun_ask {
    size_t size;       /* sizeof(graphrun_ask) */
    const char *graph; /* a file; of a text, what messages call it, and whose folder paths in it begin at */
    const char *text;  /* the graph, YAML or JSON, in place of the file's; NULL: none */
    size_t text_bytes;
    const char *const *set; /* "key=value", as --set */
    size_t n_set;
    const char *ranks, *device, *hardware, *policy; /* as the options; NULL: not given */
    uint64_t budget, host_budget;                   /* bytes; 0: all that there is */
    /* Of a run: */
    const char *out;    /* run directory; NULL: runs/NAME-TIME */
    const char *plan;   /* file of a plan to run; NULL: it is made */
    const char *resume; /* RUN, RUN@STEP or RUN@best; the graph may then be left out */
    bool replan, accept_changes, check_memory;
    bool progress; /* print lines for people to standard output */
    bool has_seed;
    uint64_t seed;
    uint64_t steps; /* last step; 0: the graph's */
    uint64_t until; /* stop behind this one; 0: none */
    const graphrun_function *functions;
    size_t n_functions;
    const graphrun_watch *watches;
    size_t n_watches;
} graphrun_ask;

/* ---- check
 * ------------------------------------------------------------------------------------------------- */

/* GRAPHRUN_OK, or all errors of the graph in l; warnings in either case. */
GRAPHRUN_EXPORT graphrun_status graphrun_check(const graphrun_ask *a, graphrun_log *l);

/* ---- plan
 * -------------------------------------------------------------------------------------------------- */

typedef struct graphrun_plan graphrun_plan;

/* *out is made also where nothing fits (GRAPHRUN_E_NOFIT): the smallest plan; NULL with other errors. */
GRAPHRUN_EXPORT graphrun_status graphrun_plan_new(graphrun_plan **out, const graphrun_ask *a,
                                                  graphrun_log *l);
GRAPHRUN_EXPORT void graphrun_plan_free(graphrun_plan *p);
GRAPHRUN_EXPORT const char *graphrun_plan_json(const graphrun_plan *p);  /* as plan --format json */
GRAPHRUN_EXPORT const char *graphrun_plan_table(const graphrun_plan *p); /* as plan prints it */

/* Ranks that do different things have a plan each, from 0 on; with one kind there is one. */
GRAPHRUN_EXPORT uint32_t graphrun_plan_roles(const graphrun_plan *p);

typedef struct graphrun_plan_facts {
    const char *graph, *hardware, *device, *numerics, *ranks;
    bool fits;
    uint64_t ns; /* predicted, one iteration */
    uint64_t peak_bytes, budget_bytes, arena_bytes, overhead_bytes, host_bytes;
    uint32_t peak_step;
    uint32_t n_steps; /* of the iteration; behind them those of a validation, up to n_all_steps */
    uint32_t n_all_steps;
    uint32_t n_entries; /* of the ledger */
} graphrun_plan_facts;
GRAPHRUN_EXPORT graphrun_plan_facts graphrun_plan_of(const graphrun_plan *p, uint32_t role);

typedef struct graphrun_step {
    const char *what, *node, *kind, *lane; /* node NULL: nobody's */
    uint64_t bytes;                        /* moved */
    uint64_t resident_bytes, ns;           /* on the device during it; predicted */
} graphrun_step;
GRAPHRUN_EXPORT graphrun_step graphrun_plan_step(const graphrun_plan *p, uint32_t role, uint32_t i);

typedef struct graphrun_entry {
    const char *what, *category;
    bool on_device; /* or in the host pool */
    uint64_t bytes, offset;
    uint32_t first, last; /* steps, both included; last < first: round the end of the iteration */
} graphrun_entry;
GRAPHRUN_EXPORT graphrun_entry graphrun_plan_entry(const graphrun_plan *p, uint32_t role, uint32_t i);

/* ---- run
 * --------------------------------------------------------------------------------------------------- */

typedef struct graphrun_run graphrun_run;

typedef struct graphrun_number {
    const char *name; /* as in metrics.jsonl */
    double value;     /* NaN: null there */
} graphrun_number;

typedef struct graphrun_iteration {
    uint32_t step, steps; /* step 0: a validation before the first iteration */
    const graphrun_number *number;
    size_t n;
} graphrun_iteration;

/* Check, plan, and make ready: nothing has run yet. */
GRAPHRUN_EXPORT graphrun_status graphrun_run_new(graphrun_run **out, const graphrun_ask *a, graphrun_log *l);

/* Run one iteration. *out: valid until the next call; NULL: the run has ended, by its last iteration or
 * because it was stopped, with its checkpoint. Between two calls nothing runs. After a failure what was
 * written stays, and every further call returns the failure. */
GRAPHRUN_EXPORT graphrun_status graphrun_run_next(graphrun_run *r, const graphrun_iteration **out,
                                                  graphrun_log *l);

/* Have it end behind the iteration that runs, or that was the last, with a checkpoint, as Ctrl-C does. */
GRAPHRUN_EXPORT void graphrun_run_stop(graphrun_run *r);

/* Give a value of the graph's `state:` another number, with which the next iteration begins; checkpoints keep
 * it. Between two calls of graphrun_run_next. GRAPHRUN_E_INVALID: there is no state of that name. */
GRAPHRUN_EXPORT graphrun_status graphrun_run_set(graphrun_run *r, const char *state, double value,
                                                 graphrun_log *l);

GRAPHRUN_EXPORT const char *graphrun_run_out(const graphrun_run *r); /* its directory */

/* Stop it where it has not ended, wait for that, and free it. Its failure, where next has not told it. */
GRAPHRUN_EXPORT graphrun_status graphrun_run_free(graphrun_run *r, graphrun_log *l);

#ifdef __cplusplus
}
#endif

#endif
