/* ops/base/configs.h: the config structs that the ops' key tables fill, for the ops that read each other's.
 *
 * What a key means is written once, in the op's table. Strings and arrays belong to the graph.
 */
#ifndef GR_OPS_BASE_CONFIGS_H
#define GR_OPS_BASE_CONFIGS_H

#include "ops/base/op.h"

#include <string.h>

typedef enum gr_too_long { GR_TOO_LONG_ERROR, GR_TOO_LONG_DROP, GR_TOO_LONG_TRUNCATE_LEFT } gr_too_long;

/* What `prompts` and `sequences` share: where records come from and how they become tokens. */
typedef struct gr_data_cfg {
    const gr_node *of; /* prompts: the rows that they are made of; NULL: of records */
    const char *file, *command;
    gr_model *model; /* sequences: whose tokenizer; NULL: of the reader */
    uint32_t batch;
    bool shuffle;
    const char *curriculum; /* field to order records by; NULL */
    bool descending;
    const gr_value *state; /* what each record keeps, as written: gr_graph.record_state has it */
    const char *template;  /* of the prompt; "chat": the checkpoint's own around messages */
    const char *messages;
    const char *system;     /* with a chat template: the system message; NULL: none */
    const gr_value *args;   /* and its further variables, a map */
    const gr_value *tools;  /* a list, or the text "{field}" */
    const char *tools_file; /* a JSON file with the list */
    const char *date;       /* YEAR-MONTH-DAY; NULL: gr_default_date */
    uint32_t max_tokens;    /* of a prompt */
    int too_long;           /* gr_too_long */
    const char *response;   /* sequences: template of the response */
    const char *pair;       /* sequences: of a second one; NULL: none */
    uint32_t max_response_tokens;
    bool eos;              /* sequences: append the first stop id to the response */
    gr_texts token_fields; /* sequences: fields with a number for each response token */
    bool ids;              /* sequences: prompt, response and pair are one {field} each, with ids */
} gr_data_cfg;

/* What answers a rollout's turns; set by the op's check from the map `environment`. */
typedef struct gr_environment_cfg {
    const char *command, *http, *function; /* of which one is there, but with a replay */
    gr_loc at;
    uint32_t workers, in_flight, retries;
    double timeout; /* seconds for one answer */
    gr_texts metrics;
    const char *record, *replay; /* resolved paths; NULL */
    bool opens;                  /* what answers a start may stand in the place of the prompt */
} gr_environment_cfg;

/* Where a rollout is called from outside; set by the op's check from the map `serve`. */
typedef struct gr_serve_cfg {
    const char *host; /* NULL: it is not */
    const char *token, *name;
    uint32_t port, calls;
    uint64_t body; /* bytes */
    bool open;     /* who calls begins sessions, and it goes on until it is asked to stop */
} gr_serve_cfg;

/* What is drafted in a rollout (ops/drafts.h); set by the op's check from the map `speculate`. */
typedef struct gr_speculate_cfg {
    uint32_t tokens; /* of a draft, at most; 0: nothing is drafted */
    int from;        /* gr_draft_from */
    uint32_t match;  /* tokens that must be the same before a draft */
    double rate;     /* of drafted tokens that the planner expects to be sampled */
    bool always;     /* also where the planner expects no gain */
} gr_speculate_cfg;
typedef enum gr_draft_from { GR_DRAFT_NGRAM, GR_DRAFT_GROUP, GR_DRAFT_MTP } gr_draft_from;

typedef struct gr_generate_cfg {
    gr_model *model;
    const gr_node *prompts;
    uint32_t samples, max_tokens, top_k;
    gr_number temperature;
    double top_p;
    gr_texts stop;
    gr_uints stop_ids;
    bool ignore_eos;
    uint32_t kv_blocks, concurrent; /* 0: the planner's choice */
    uint32_t turns, max_context;
    const gr_value *answers; /* `environment`, as written; NULL: every response is one turn */
    gr_environment_cfg environment;
    const gr_value *endpoint; /* `serve`, as written; NULL */
    gr_serve_cfg serve;
    const gr_value *drafts; /* `speculate`, as written; NULL */
    gr_speculate_cfg speculate;
    uint32_t lag;     /* iterations by which its weights are older than the iteration's */
    double over;      /* prompts in work for each that an iteration trains on; 1: no more than these */
    int partial;      /* gr_partial: what becomes of the others */
    uint32_t max_lag; /* with `over`: no token that is trained on is older; 0: lag + 1 */
} gr_generate_cfg;

typedef enum gr_partial { GR_PARTIAL_KEEP, GR_PARTIAL_DROP } gr_partial;

/* Whether a node is a rollout that uses the weights of the iteration before. */
static inline bool gr_node_lags(const gr_node *n)
{
    return n->op->generates && ((const gr_generate_cfg *)n->cfg)->lag;
}

/* Whether it is a rollout that has more prompts in work than an iteration trains on, so that which of them
 * end first decides what is trained on; and one that keeps rows from one iteration to the next
 * (ops/rollout_kept.h). */
static inline bool gr_node_races(const gr_node *n)
{
    return n->op->generates && ((const gr_generate_cfg *)n->cfg)->over > 1;
}

static inline bool gr_node_keeps(const gr_node *n)
{
    return gr_node_races(n) || (n->op->generates && ((const gr_generate_cfg *)n->cfg)->lag > 1);
}

typedef struct gr_reward_cfg {
    const gr_node *of;
    gr_field_ref answer;
    const gr_value *rule, *rules;
    const char *command, *http; /* http: a URL */
    const char *function;       /* of the program that runs the graph */
    uint32_t workers, in_flight;
    double timeout;
    int level;        /* 0: sequence, 1: token */
    const char *from; /* "environment", or NULL */
    gr_texts names;
} gr_reward_cfg;

/* Whether a command or a server outside scores for a node, or answers its turns. */
static inline bool gr_node_asks(const gr_node *n)
{
    if (n->op->generates) {
        const gr_environment_cfg *e = &((const gr_generate_cfg *)n->cfg)->environment;
        return e->command || e->http;
    }
    const gr_reward_cfg *c = strcmp(n->op->name, "reward") ? NULL : n->cfg;
    return c && (c->command || c->http);
}

typedef struct gr_logprob_cfg {
    gr_model *model;
    const gr_node *of;
    uint32_t micro_tokens;
    int weights;            /* logprob: GR_WEIGHTS_PARAMS or GR_WEIGHTS_ROLLOUT */
    int replay;             /* logprob: gr_replay of ops/base/routes.h */
    const gr_node *prompts; /* logprob: made of its rows, in the place of theirs; NULL */
} gr_logprob_cfg;

/* The prompts that a log-prob node puts in the place of its rows' own; NULL: none. */
static inline const gr_node *gr_node_other_prompts(const gr_node *n)
{
    return n->op->logprob && n->op->passes ? ((const gr_logprob_cfg *)n->cfg)->prompts : NULL;
}

enum { GR_WEIGHTS_PARAMS, GR_WEIGHTS_ROLLOUT };

typedef struct gr_compute_cfg {
    const gr_node *of;
    gr_expression expr;
} gr_compute_cfg;

typedef struct gr_update_cfg {
    gr_model *model;
    const gr_node *of;
    gr_loss_ref loss;
    uint32_t mini_batch, epochs, micro_tokens;
    uint32_t mini_batches; /* of the whole batch; set by the op's check */
    bool balance;
    uint32_t share_prompts; /* 0, 1: each response reads its own */
    const gr_node *teacher; /* a log-prob node of its rows, whose distributions it is compared with; NULL */
    int divergence;         /* gr_divergence, from it */
    double beta;            /* of GR_JSD */
    int replay;             /* gr_replay of ops/base/routes.h */
    double router_aux_loss_coef, router_bias_update_rate; /* 0: none */
} gr_update_cfg;

typedef struct gr_copy_cfg {
    gr_model *from, *to;
    gr_number decay;
} gr_copy_cfg;

typedef struct gr_select_cfg {
    const gr_node *of;
    gr_expression groups, sequences, tokens, resample; /* one of them */
    const gr_value *refill;
    uint32_t until, rounds; /* of refill; until 0: none */
    bool keep_short;
} gr_select_cfg;

#endif
