/* ops/base/functions.h: functions of the program that runs a graph in its own process: they score responses
 * (`function:` of a reward) and answer the turns of a conversation (`function:` of an environment).
 * runtime/api/graphrun.h gives them their form for other languages.
 *
 * Threads: a scoring function is called on the lane `host`, an answering one on a thread of its own, beside
 * the lanes; each by one thread at a time.
 */
#ifndef GR_OPS_BASE_FUNCTIONS_H
#define GR_OPS_BASE_FUNCTIONS_H

#include "ops/base/rows.h"
#include "ops/reward/caller.h"

/* A text with its length, and a NUL behind it. */
typedef struct gr_text {
    const char *text;
    size_t n;
} gr_text;

/* The responses that a function is to score; valid during the call. Arrays are the run's own. */
typedef struct gr_batch {
    const char *node;
    uint32_t step;  /* iteration */
    uint32_t first; /* of the rows: the first sequence that is scored here */
    uint32_t n;     /* sequences; n_tokens: their response tokens */
    uint32_t n_tokens;
    uint32_t longest; /* log-probs of a sequence, in rows->logprob */
    const gr_rows *rows;
    const gr_text *prompt, *response;
    const gr_text *answer; /* NULL: the node names none */
    const gr_text *record; /* as JSON */
    uint32_t n_names;      /* scores of a sequence; 0: one, or with per_token one for each response token */
    const char *const *names;
    bool per_token;
    double *scores; /* to be filled: [n], [n][n_names], or [n_tokens], packed. NaN at first */
} gr_batch;

typedef struct gr_function {
    const char *name;
    /* GR_OK, or a failure with its message in d. NULL: it does not score. */
    gr_status (*score)(void *user, const gr_batch *b, gr_diag *d);
    gr_answering *answer; /* messages of docs/ENVIRONMENTS.md. NULL: it does not answer */
    void *user;
} gr_function;

typedef struct gr_functions {
    const gr_function *of;
    size_t n;
    /* Told, on the compute lane, where an endpoint that is open listens (`serve: {open: true}`). NULL: nobody
     * asks. */
    void (*listens)(void *user, const char *url, const char *token);
    void *user;
} gr_functions;

/* The one of that name that answers, or that scores. GR_E_INVALID: there is none; at: where the graph names
 * it. f NULL: the program has none at all. */
GR_NODISCARD gr_status gr_function_find(const gr_function **out, const gr_functions *f, const char *name,
                                        bool answers, gr_loc at, gr_diag *d);

#endif
