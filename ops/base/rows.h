/* ops/base/rows.h: the rows of a batch: which tokens each sequence has, and which prompt it answers.
 *
 * One block of host memory, an object of the plan named "NODE.rows", sized by the node's bounds; a gr_rows is
 * a view of such a block. Token-level columns are packed: those of sequence s are [token_offset[s],
 * token_offset[s + 1]), one for each response token. Data nodes that only hold prompts have sequences without
 * response.
 */
#ifndef GR_OPS_BASE_ROWS_H
#define GR_OPS_BASE_ROWS_H

#include "ops/base/routes.h"

/* What a rank's rollout leaves behind: groups that it keeps, and those of them that are not complete; groups
 * that it drops; sequences that have not ended, of both, and their tokens so far. */
/* What the rows of a file are: those of another graph, or of other ranks, are not taken for these. */
typedef struct gr_rows_kept {
    char magic[16];
    gr_rows_bounds bounds;
    uint32_t rank, ranks, step;
} gr_rows_kept;

typedef enum gr_left {
    GR_LEFT_KEPT,
    GR_LEFT_PARTIAL,
    GR_LEFT_DROPPED,
    GR_LEFT_SEQS,
    GR_LEFT_TOKENS,
    GR_N_LEFT
} gr_left;

/* Of a conversation: ops/rollout_turns.c. */
typedef enum gr_turn_word {
    GR_TURN_BEGIN,
    GR_TURN_NUMBER,
    GR_TURN_TRY,
    GR_TURN_LAST,
    GR_TURN_ASKED,
    GR_N_TURN
} gr_turn_word;

typedef struct gr_rows {
    uint32_t *n_groups, *n_seqs;
    uint32_t *record;       /* [groups] row of the data source */
    uint32_t *group;        /* [seqs], non-decreasing */
    uint32_t *prompt_len;   /* [seqs], >= 1 */
    uint32_t *response_len; /* [seqs] */
    uint32_t *token_offset; /* [seqs + 1] */
    uint8_t *truncated;     /* [seqs] the response was cut at max_tokens */
    uint8_t *ended;         /* [seqs] the last token is a stop id */
    int32_t *ids;           /* [seqs, stride]: prompt, then response */
    float *logprob;         /* [seqs, response_tokens]: of each sampled token, as sampled */
    uint8_t *counts;        /* [tokens], packed: 0 where a select left the token out, or an environment said
                               it; NULL: all count */
    uint8_t *stopped;       /* [seqs] gr_stopped; this and the rest: NULL where no environment answers */
    uint32_t *n_turns;      /* [seqs] turns that the model had */
    uint32_t *turn_end;     /* [seqs, turns] response tokens up to the end of each */
    float *turn_reward;     /* [seqs, turns] what the environment gave for each */
    float *measure;         /* [seqs, measures] */
    /* Of rows that a rollout keeps (ops/rollout_kept.h); NULL: of others. */
    gr_rows_kept *kept;    /* what they are, where they are in a file */
    int32_t *version;      /* [seqs, response_tokens]: the iteration whose weights sampled each token */
    uint32_t *place;       /* [groups] its number among all that are in work */
    uint32_t *born, *done; /* [groups] the iterations in which it began, and was complete; 0: not so far */
    uint32_t *order;       /* [groups] the trip of that iteration */
    uint8_t *finished;     /* [seqs] */
    uint32_t (*left)[GR_N_LEFT]; /* [groups] what each rank left behind, at the first group that it took */
    uint32_t (*turn)[GR_N_TURN]; /* [seqs] where a conversation is, while it is in a file */
    uint32_t stride, turns, measures;
    gr_routes routes; /* a block of its own, set by who has it */
} gr_rows;

/* Why a conversation ended: rollout.stopped. */
typedef enum gr_stopped {
    GR_STOPPED_DONE,   /* the environment said so */
    GR_STOPPED_TURNS,  /* the model had all its turns */
    GR_STOPPED_TOKENS, /* a turn was cut, or there was no room for another */
    GR_STOPPED_TIME,   /* this and the next: it failed, and none of its tokens counts */
    GR_STOPPED_ERROR,
} gr_stopped;

/* Response tokens of a sequence that its model sampled. */
uint32_t gr_rows_sampled(const gr_rows *r, uint32_t seq);

/* Copy what an environment said of a sequence to one of other rows; nothing where it said nothing. */
void gr_rows_copy_turns(const gr_rows *from, uint32_t seq, gr_rows *to, uint32_t at);

/* Refuse bounds that 32 bits cannot count: tokens of all responses together. */
void gr_rows_check(const gr_node *n, gr_diag *d);

uint64_t gr_rows_bytes(const gr_rows_bounds *b);
gr_rows gr_rows_at(void *block, const gr_rows_bounds *b);

static inline const int32_t *gr_rows_ids(const gr_rows *r, uint32_t seq)
{
    return r->ids + (size_t)seq * r->stride;
}

/* Append a group of a record of the data; its number. */
uint32_t gr_rows_add_group(gr_rows *r, uint32_t record);

/* The ids of a sequence: its prompt, and behind it its response. */
typedef struct gr_seq_ids {
    const int32_t *prompt, *response;
    uint32_t n_prompt, n_response;
} gr_seq_ids;
/* Append a sequence of a group; its number. It is neither cut nor ended, and has no log-probs. */
uint32_t gr_rows_add_seq(gr_rows *r, uint32_t group, const gr_seq_ids *ids);

/* Of groups [from, to), those that this rank works on, dealt to ranks in their order and as evenly as they
 * go; and their sequences. */
typedef struct gr_rows_part {
    uint32_t group, group_end, seq, seq_end;
} gr_rows_part;
gr_rows_part gr_rows_own(const gr_session *s, const gr_rows *r, uint32_t from, uint32_t to);
/* The same for a node that several ranks work on together (gr_node_placement.parts): theirs, whichever of
 * them it is.
 */
gr_rows_part gr_rows_task(const gr_session *s, const gr_node *n, const gr_rows *r, uint32_t from,
                          uint32_t to);
/* The same for part `which` of `parts`. */
gr_rows_part gr_rows_balance(const gr_rows *r, uint32_t from, uint32_t to, uint32_t which, uint32_t parts);

static inline bool gr_rows_counts(const gr_rows *r, uint32_t token)
{
    return !r->counts || r->counts[token];
}

/* A list of sequences, in rising order, with room for so many; release with free(seq). */
typedef struct gr_seqs {
    uint32_t *seq, n, cap;
} gr_seqs;
gr_seqs gr_seqs_new(uint32_t cap);
/* Make it [first, end). */
void gr_seqs_range(gr_seqs *s, uint32_t first, uint32_t end);

/* Append a sequence of other rows, with all that is known of it, to the last group; its number. `longest`:
 * most response tokens of each, as in their bounds. */
uint32_t gr_rows_append(gr_rows *to, uint32_t longest, const gr_rows *from, uint32_t from_longest,
                        uint32_t seq);

/* Fill a column (host-visible memory) with a field that follows from the rows: token, logprob, length,
 * truncated, position. */
void gr_rows_column(const gr_rows *r, const gr_column *c, void *out);

/* The object of a row maker's block, added on first use. */
uint32_t gr_rows_object(gr_tasks *p, const gr_node *rows);

/* The device object of a column, GR_NONE for scalars of the iteration and fresh values. */
uint32_t gr_column_object(gr_tasks *p, const gr_column *c);

uint64_t gr_dtype_bytes(gr_expr_dtype t);

/* Bytes of a column at the bounds of its rows. */
uint64_t gr_column_bytes(const gr_column *c);

/* Log-probs are of logits times this: 1 / temperature of the rollout that made the rows; 1 for data and
 * greedy. */
float gr_rows_inv_temperature(const gr_session *s, const gr_node *rows);

#endif
