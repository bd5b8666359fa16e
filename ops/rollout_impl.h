/* ops/rollout_impl.h: what the two forms of `generate` share: groups, samples and their blocks, and what was
 * sampled.
 *
 * ops/rollout.c feeds the device step by step; ops/rollout_steps.c gives it orders for chunks of steps, where
 * the device keeps their state (ops/kernels/steps.h). Both admit groups in order and reserve a sample's
 * longest response.
 */
#ifndef GR_OPS_ROLLOUT_IMPL_H
#define GR_OPS_ROLLOUT_IMPL_H

#include "ops/base/configs.h"
#include "ops/drafts.h"
#include "ops/kernels/layer.h"
#include "ops/pass.h"
#include "ops/rollout.h"
#include "ops/rollout_kept.h"
#include "ops/base/rows.h"
#include "ops/base/session.h"
#include "ops/serve/serve.h"
#include "runtime/comm/comm.h"

enum {
    ROLLOUT_BEGIN,
    ROLLOUT_LOOP,
    ROLLOUT_PLAN,
    ROLLOUT_EMBED,
    ROLLOUT_PER_LAYER, /* embeddings of each layer, where the model has them */
    ROLLOUT_LAYER,
    ROLLOUT_SAMPLE,
    ROLLOUT_AHEAD_ENTER, /* this and the next two: a layer that predicts a further token; arg: the pass */
    ROLLOUT_AHEAD_LAYER,
    ROLLOUT_AHEAD_HEAD,
    ROLLOUT_PREFILL, /* this and the next: where the device keeps the state */
    ROLLOUT_DECODE,
    ROLLOUT_FINISH,
    ROLLOUT_TAKE /* of one that keeps rows */
};

/* Operands of works that both forms have. Behind those of finish come the node's columns. */
enum { BEGIN_PROMPTS, BEGIN_ROWS, BEGIN_KV, BEGIN_ROUTES, N_BEGIN };
enum { FINISH_ROWS, FINISH_ROUTES, N_FINISH };
enum { TAKE_QUEUE, TAKE_ROWS, N_TAKE };

/* Whether each conversation has a prompt of its own, which its environment may say, in its own blocks. */
static inline bool gr_rollout_opens(const gr_node *n)
{
    return ((const gr_generate_cfg *)n->cfg)->environment.opens;
}

/* Rows as the pool holds them: what a group shares, and what each of its sequences has of its own behind it.
 * A prompt that is not shared is the sequence's own but for its first token. */
static inline gr_rows_bounds gr_rollout_pooled(const gr_node *n, gr_rows_bounds b)
{
    if (!gr_rollout_opens(n)) return b;
    b.response_tokens += b.prompt_tokens - 1;
    b.prompt_tokens = 1;
    return b;
}

/* Of the rows that it works on, those of one iteration of many, for the cost model: what is kept is sampled
 * once. A prompt that is not shared is read for each of its sequences.
 */
static inline gr_rows_bounds gr_rollout_steady(const gr_node *n)
{
    const gr_generate_cfg *cfg = n->cfg;
    gr_rows_bounds b = n->placement.task;
    if (n->work.groups) {
        const uint32_t waiting = (GR_MAX(cfg->lag, 1u) - 1) * n->bounds.groups,
                       new = cfg->partial == GR_PARTIAL_DROP ? n->work.groups - waiting : n->bounds.groups;
        b.groups = (uint32_t)(((uint64_t)b.groups * new + n->work.groups - 1) / n->work.groups);
        b.seqs = b.groups * cfg->samples;
    }
    if (gr_rollout_opens(n)) b.groups = b.seqs;
    return b;
}

/* ---- blocks ----------------------------------------------------------------------------------------------
 */

static inline uint32_t gr_blocks_of(uint32_t tokens)
{
    return (tokens + GR_KV_BLOCK - 1) / GR_KV_BLOCK;
}

/* What a sample needs of blocks that come again. */
static inline uint32_t gr_ring_blocks(gr_ring ring, uint32_t own)
{
    return ring.blocks ? GR_MIN(own, ring.first + ring.blocks) : own;
}

/* Which of them own block i is. */
static inline uint32_t gr_ring_at(gr_ring ring, uint32_t i)
{
    return i < ring.first ? i : ring.first + (i - ring.first) % ring.blocks;
}

gr_ring gr_rollout_ring(const gr_node *n, const gr_choices *how, const gr_kernels *k);
/* Blocks of layers with a window; 0: they have those of all. */
uint32_t gr_rollout_window_blocks(const gr_node *n, const gr_choices *how, const gr_kernels *k);

/* Prompts that have slots of their own. */
static inline uint32_t gr_rollout_prompt_slots(const gr_kernels *k)
{
    return k->steps ? 2 : 1;
}

/* What the state of all layers has room for. Slots: one of each running sample, and one of the prompt that is
 * being read or whose samples wait; where several prompts are read at once, another of the next one. Behind
 * these, of each sample as many as tokens are drafted: its state behind each token of a step. 0: every
 * layer's state is paged. */
static inline gr_state_room gr_rollout_room(const gr_node *n, const gr_choices *how, const gr_kernels *k)
{
    const uint32_t samples = GR_MIN(how->concurrent, n->placement.task.seqs);
    const uint32_t prompts = gr_rollout_prompt_slots(k), each = 1 + how->draft;
    const uint32_t slots = gr_layers_have_slots(k, gr_node_shape(n)) ? samples * each + prompts : 0;
    return (gr_state_room){how->kv_blocks, slots, gr_rollout_window_blocks(n, how, k)};
}

/* Shared blocks of a prompt: all its tokens but the last. */
static inline uint32_t gr_prompt_blocks(uint32_t prompt)
{
    return gr_blocks_of(prompt - 1);
}

/* Full shared blocks: a sample's own blocks begin behind them. */
static inline uint32_t gr_full_blocks(uint32_t prompt)
{
    return (prompt - 1) / GR_KV_BLOCK;
}

/* Own blocks of a sample with its longest response; the last sampled token is never fed back. */
static inline uint32_t gr_own_blocks(uint32_t prompt, uint32_t response)
{
    return gr_blocks_of(prompt + response - 1) - gr_full_blocks(prompt);
}

/* ---- state -----------------------------------------------------------------------------------------------
 */

typedef struct gr_step_bounds {
    uint32_t tokens, seqs, samples;
    uint32_t rows; /* tokens of a step that are sampled behind, where the device is fed step by step */
    uint32_t
        stride; /* of tables: blocks of all layers; behind them, where there is a ring, of those with a */
    uint32_t window_at; /* window, from this column on; 0: there is none */
    gr_ring ring;
    uint32_t slots;      /* states of one size; 0: none */
    uint32_t choices;    /* of a token's experts, where they are recorded; 0: they are not */
    uint32_t expert_run; /* as of gr_pass_bounds */
} gr_step_bounds;

typedef struct gr_rollout_slot { /* a running sample */
    uint32_t seq, group;
    uint32_t cached;
    int32_t next; /* the token to feed */
    bool waits;   /* for what an environment answers */
    bool alone;   /* its prompt, too, is in blocks of its own: that of its group may be gone */
    uint32_t n_own;
    uint32_t *table; /* [stride] */
    uint32_t held;   /* the place of its state of one size, where there are any */
    uint32_t
        *spare; /* [most drafted] places where that is left behind each token of a step but the last; where
                   the device keeps the state of slots, it alone knows which of all of these is which */
    uint32_t row,
        n_draft; /* of the current step: the first of its rows, and how many of its tokens are drafted */
    uint32_t fed_at, fed; /* of it: where its first token stands, and how many are not thrown away */
    int32_t *ahead;       /* [most drafted] what the layer that predicts a further token drafts, */
    uint32_t n_ahead;     /* for its next step, */
    uint32_t wants_ahead; /* and how many of these it is to */
    gr_draft_record drafts;
} gr_rollout_slot;

typedef struct gr_rollout_group {
    uint32_t prompt;            /* tokens that its samples share */
    uint32_t cached;            /* of prompt - 1 */
    uint32_t admitted, running; /* samples */
    bool begun;                 /* it has its blocks */
    uint32_t *table;            /* [stride] of its prompt's blocks */
    uint32_t held;              /* the place of its prompt's state of one size, where there are any */
} gr_rollout_group;

/* Blocks that nobody has. */
typedef struct gr_free_blocks {
    uint32_t *block, n, cap;
} gr_free_blocks;

/* Blocks that samples go on in, copied from their prompts'. */
typedef struct gr_block_copies {
    uint32_t *from, *to; /* [samples] */
} gr_block_copies;

/* How an iteration's decoding went, of this rank: metrics of conversations, whose pace their environments
 * set. */
typedef struct gr_rollout_pace {
    uint64_t steps, width;       /* decode steps; slots that they computed, of all steps together */
    uint64_t read;               /* tokens of prompts and answers that were read into the pool */
    uint64_t stalled_ns;         /* nothing ran: all waited for their environments */
    uint64_t answer_ns, answers; /* from each message to the taking of its answer */
} gr_rollout_pace;

/* What is left to do: sequences that have not ended, and in this trip prompts to read and steps to run; 0 or
 * 1. */
typedef struct gr_rollout_left {
    uint8_t more, reads, runs;
} gr_rollout_left;

typedef struct gr_rollout {
    gr_session *session;
    const gr_node *node;
    const gr_generate_cfg *cfg;
    gr_step_bounds bounds;
    gr_rollout_slot *slots;
    uint32_t *tables;            /* all slots' */
    uint32_t n_slots, n_running; /* in use; of these the first, that sample (step by step) */
    uint32_t longest;            /* response tokens of a sequence, at most */
    uint32_t room;               /* tokens of a sequence behind what its group shares, at most */
    gr_rows_bounds work;         /* of the rows that it works on */
    gr_rollout_group *groups;
    uint32_t *group_tables; /* all groups' */
    uint32_t *to_admit;     /* groups of this rank, in the order in which they are admitted */
    uint32_t n_groups;      /* of these */
    uint32_t current;       /* the one that is being admitted, in that order */
    uint32_t trip;          /* of the iteration, from 0 */
    gr_rollout_left left;   /* of this rank; where experts are divided of any that has some of them */
    gr_exchanges exchanges; /* of these, in the iteration so far */
    uint32_t expert_trips;  /* their metric */
    gr_free_blocks pool[2]; /* of all layers, and of those with a window, where these have others */
    uint32_t finished, n_seqs;
    uint32_t n_left;          /* that have left their slots, and wait for the answer to their last turn */
    uint32_t *again, n_again; /* of these, sequences that begin anew and want slots, in order */
    gr_rollout_pace pace;
    uint64_t tokens, spared;      /* sampled so far; those of max_tokens that finished ones did not need */
    uint32_t n_tokens, n_prefill; /* of the current step */
    uint32_t prefill_seq, prefill_at; /* whose tokens these are, and the first of them */
    const uint32_t *prefill_table;    /* of its blocks */
    uint32_t *spares;                 /* all slots' */
    int32_t *aheads;
    struct {
        uint32_t n_tokens, n_seqs, n_rows;
    } ahead;                 /* of the current pass of the layer that predicts a further token */
    gr_block_copies copy[2]; /* as pool */
    uint32_t n_copies;
    uint32_t *held_from, *held_to, n_held; /* states of one size, of samples that begin */
    int32_t *out_id;                       /* [bounds.rows] */
    float *out_logprob;
    uint32_t n_rows;          /* of the current step */
    int32_t *fed;             /* [bounds.rows] the tokens that they are behind */
    gr_draft_source *sources; /* [samples]; NULL: nothing is drafted */
    struct {
        uint64_t steps, drafts, drafted,
            accepted; /* steps of a sequence; drafts of at least one token, their tokens */
        uint32_t length, drafted_metric, accepted_metric, per_step;
    } draft;
    uint16_t *out_choices;          /* of the step, where they are recorded */
    gr_str tail;                    /* of a response, where it may hold a stop text */
    struct gr_turns *turns;         /* where an environment answers; else NULL */
    struct gr_kept *kept;           /* where rows are kept (ops/rollout_kept.h); else NULL */
    struct gr_rollout_steps *steps; /* where the device keeps the state of steps; else NULL */
} gr_rollout;

/* ---- rollout.c -------------------------------------------------------------------------------------------
 */

/* The weights of a bucket that its steps read. */
uint32_t gr_rollout_weights(gr_tasks *p, const gr_node *n, const gr_kernels *k, uint32_t bucket);
uint32_t gr_rollout_kv_object(gr_tasks *p, const gr_node *n, const gr_choices *how, const gr_kernels *k);
/* Rows of a step that the head is computed of at once; where the device keeps the state, all of a slot's. */
static inline uint32_t gr_rollout_head_rows(const gr_choices *how, const gr_kernels *k)
{
    return how->head_rows * (k->steps ? 1 + how->draft : 1);
}
uint32_t gr_rollout_head_ws(gr_tasks *p, const gr_node *n, const gr_choices *how, const gr_kernels *k);
void gr_rollout_declare_finish(const gr_node *n, uint32_t worked, uint32_t routes, gr_tasks *p);
/* The object of the rows that it works on: its own rows, or the queue. */
uint32_t gr_rollout_worked(gr_tasks *p, const gr_node *n);
static inline const gr_rows_bounds *gr_rollout_work(const gr_node *n)
{
    return n->work.groups ? &n->work : &n->bounds;
}
/* Choices of a token that are recorded; 0: none are. */
uint32_t gr_rollout_choices(const gr_graph *g, const gr_node *n);

/* Tokens of a step that go through experts at once where these are divided: all ranks that have them say the
 * same. 0: they are not. */
uint32_t gr_rollout_expert_run(const gr_node *n, uint32_t tokens);
/* The task in which ranks that have each a part of the experts agree on what any of them has left. */
void gr_rollout_meet(gr_task *w, const gr_node *n);
/* That; own: what this one has. */
void gr_rollout_agree(gr_rollout *r, gr_queue *q, gr_rollout_left own);
/* Whether this rank has sequences that have not ended; of rows that are kept, too few that have. */
bool gr_rollout_has_more(const gr_rollout *r);

/* Whether so many blocks of prompts, and own ones of samples with so many, are free. */
bool gr_rollout_fits(const gr_rollout *r, uint64_t shared, uint64_t samples, uint32_t own);
/* The first n columns of a table, and as many of its part for layers with a window. */
void gr_rollout_copy_table(const gr_rollout *r, uint32_t *to, const uint32_t *from, uint32_t n);

/* A prompt that was drawn becomes group g, of sequences without a token so far. */
void gr_rollout_put_prompt(gr_rollout *r, const gr_rows *prompts, uint32_t prompt, gr_rows *rows, uint32_t g);
/* Take the blocks of its prompt; false: they, and those of one sample, are not free. */
bool gr_rollout_begin_group(gr_rollout *r, gr_rollout_group *g);
/* The next sample of a group into s, whose own blocks are free; adds to the copies. */
void gr_rollout_place(gr_rollout *r, gr_rollout_slot *s, gr_rollout_group *g, const gr_rows *rows);
/* Of the sequences that have left their slots and begin anew, the first for which there are blocks, by its
 * place among them, or GR_NONE; and that one into s. */
uint32_t gr_rollout_next_again(const gr_rollout *r, const gr_rows *rows);
void gr_rollout_place_again(gr_rollout *r, gr_rollout_slot *s, uint32_t which, const gr_rows *rows);
/* Whether a sample that was placed runs at once: it waits for nobody, and has nothing to be read before. */
bool gr_rollout_is_new(const gr_rollout_slot *s, const gr_rows *rows);
/* The blocks of a sample that is in its slot no more, and of its group's prompt with the last one. */
void gr_rollout_give_back(gr_rollout *r, const gr_rollout_slot *s);
/* Returns whether the sample has ended; of a conversation, whether its turn has. */
bool gr_rollout_add_token(gr_rollout *r, gr_rollout_slot *s, gr_rows *rows, int32_t id, float logprob);
bool gr_rollout_is_stop_id(const gr_rollout *r, int32_t id);
gr_sampling gr_rollout_sampling(const gr_call *c, const gr_rollout *r);
/* The group that is being admitted; NULL: all are. */
static inline gr_rollout_group *gr_rollout_current(const gr_rollout *r)
{
    return r->current < r->n_groups ? &r->groups[r->to_admit[r->current]] : NULL;
}
/* A sequence has ended: it counts as finished, and who listens is told. */
void gr_rollout_finished(gr_rollout *r, const gr_rows *rows, uint32_t seq);

/* Tokens of a sequence so far. */
static inline uint32_t gr_rollout_length(const gr_rows *rows, uint32_t seq)
{
    return rows->prompt_len[seq] + rows->response_len[seq];
}

/* ---- rollout_turns.c -------------------------------------------------------------------------------------
 *
 * A conversation keeps its slot and its blocks from its first token to its last. Between the model's turns it
 * waits; when the environment has answered, what it said is read into the pool behind what is there.
 */

gr_status gr_turns_open(gr_rollout *r, gr_diag *d);
void gr_turns_close(gr_rollout *r);
gr_status gr_turns_inputs(const gr_rollout *r, const char *owner, gr_inputs *in, gr_diag *d);
/* An iteration begins; and conversations of sequences [first, end). */
void gr_turns_begin(gr_rollout *r, gr_rows *rows);
void gr_turns_clear(gr_rollout *r, gr_rows *rows, uint32_t first, uint32_t end);
/* One that is kept is over, whatever it waits for; and to and from the words of a file. */
void gr_turns_drop(gr_rollout *r, uint32_t seq);
void gr_turns_save(const gr_rollout *r, const gr_rows *rows);
void gr_turns_restore(gr_rollout *r, const gr_rows *rows);
/* A sample has its slot: its environment is asked to start. */
void gr_turns_start(gr_rollout *r, gr_rollout_slot *s, const gr_rows *rows);
/* The response tokens at which the turn of a sequence is cut. */
uint32_t gr_turns_limit(const gr_rollout *r, uint32_t seq);
/* A turn has its last token: the environment is asked to answer. True: whatever it says, nothing is sampled
 * behind it, and the conversation leaves its slot (n_left). */
GR_NODISCARD bool gr_turns_step(gr_rollout *r, gr_rollout_slot *s, gr_rows *rows);
/* Take what has been answered. peers: the ranks that run it together, which all take the same; NULL: this one
 * alone. end is called of each conversation that has ended; the others' slots wait no
 * more, and their rows have what was said. */
gr_status gr_turns_take(gr_rollout *r, gr_rows *rows, gr_comm *peers,
                        void (*end)(gr_rollout *r, gr_rows *rows, uint32_t seq), gr_diag *d);
/* The task in which ranks that run conversations together meet, to take what was answered. */
void gr_turns_meet(gr_task *w, const gr_node *n);
static inline gr_comm *gr_turns_peers(const gr_call *c)
{
    return c->queue->peers ? c->queue->peers->comm : NULL;
}
/* Wait until something is to be taken. */
gr_status gr_turns_wait(gr_rollout *r, const gr_rows *rows, gr_diag *d);
/* The rows are whole. */
gr_status gr_turns_report(const gr_rollout *r, const gr_rows *rows, gr_diag *d);
/* What the draws of a row's tokens are made of: its number, or that of its session where one follows another
 * in it. */
uint32_t gr_turns_draws(const gr_rollout *r, uint32_t seq);
/* How many times the loop may turn for conversations beyond what their tokens take. */
uint64_t gr_turns_trips(const gr_node *n);
/* And for reading prompts once more, where conversations begin anew that have left their slots. */
uint64_t gr_turns_rereads(const gr_node *n, const gr_choices *how);
/* How often the tokens of a conversation may be sampled: tries. */
static inline uint32_t gr_turns_tries(const gr_node *n)
{
    return n->bounds.turns ? 1 + ((const gr_generate_cfg *)n->cfg)->environment.retries : 1;
}

/* ---- rollout_served.c ------------------------------------------------------------------------------------
 */

struct gr_served;
/* *out: gr_served_close, also on failure. */
gr_status gr_served_open(struct gr_served **out, const gr_rollout *r, gr_diag *d);
void gr_served_close(struct gr_served *s); /* NULL is fine */
/* An iteration begins. s NULL is fine. */
void gr_served_begin(struct gr_served *s, const gr_rollout *r);
/* It listens: whoever asks for that is told so. s NULL is fine. */
void gr_served_listens(const struct gr_served *s, const gr_rollout *r);
gr_serve *gr_served_by(const struct gr_served *s);                 /* NULL: of NULL */
const gr_chat_template *gr_served_chat(const struct gr_served *s); /* NULL: there is none */
/* Why a session whose harness has ended it did so. */
gr_stopped gr_served_stopped(const gr_rows *rows, uint32_t seq, gr_serve_end_reason refused);

/* ---- rollout_kept.c -------------------------------------------------------------------------------------
 */

void gr_kept_open(gr_rollout *r);
void gr_kept_close(gr_rollout *r);
/* An iteration begins: the rank's prompts get their places, and r->to_admit those that are not complete. */
void gr_kept_begin(gr_rollout *r, const gr_rows *prompts, gr_rows *rows);
void gr_kept_ended(gr_rollout *r, const gr_rows *rows, uint32_t seq);
/* Whether the iteration has what it needs. */
bool gr_kept_is_enough(const gr_rollout *r);
/* Its rows, of the queue. */
void gr_kept_take(gr_rollout *r, gr_rows *queue, gr_rows *rows);
/* What it took and left, of all ranks. */
void gr_kept_report(const gr_rollout *r, const gr_rows *rows);
/* The iteration whose weights it samples with. */
uint32_t gr_rollout_version(const gr_rollout *r);

/* Arrays of one model step on the device. */
typedef struct gr_step_arrays {
    int32_t *ids;
    uint32_t *offset, *cached, *table, *row;
    uint32_t *held, *held_after; /* NULL: no layer's state is of one size; and of the second, nothing is
                                    drafted */
    uint32_t (*draw)[2];
    int32_t *out_id;
    float *out_logprob;
    uint16_t *choices; /* of the step's tokens; NULL: they are not recorded */
} gr_step_arrays;
gr_step_arrays gr_rollout_arrays_at(void *block, const gr_step_bounds *b);
/* What of them a step has. */
typedef struct gr_step_size {
    uint32_t tokens, seqs, rows;
} gr_step_size;
void gr_rollout_write_arrays(const gr_rollout *r, gr_queue *q, const gr_step_arrays *to,
                             const gr_step_arrays *from, gr_step_size n);

/* ---- rollout_ahead.c
 * ---------------------------------------------------------------------------------------
 *
 * Drafts of the layer of the checkpoint that predicts a further token (ops/model/ahead.h): n->second.
 */

/* Whether it drafts in a plan. */
static inline bool gr_rollout_ahead(const gr_node *n, const gr_choices *how)
{
    return how->draft && ((const gr_generate_cfg *)n->cfg)->speculate.from == GR_DRAFT_MTP;
}
enum { GR_AHEAD_ENTER, GR_AHEAD_LAYER, GR_AHEAD_NORM }; /* its buckets */
/* Keys and values, in bytes, which stand behind the model's own state; 0: it does not draft. */
uint64_t gr_rollout_ahead_kv(const gr_node *n, const gr_choices *how, const gr_kernels *k);
/* The blocks that samples go on in. kv: the whole state. */
void gr_rollout_ahead_copy(const gr_call *c, const gr_rollout *r, void *kv);

/* Objects of the step that it goes on from, and what of it each trip has on average. */
typedef struct gr_ahead_objects {
    uint32_t step, staging, x, kv, hidden;
    uint32_t tokens;              /* of a step, at most */
    double fed, running, context; /* tokens that are not thrown away, prompts' included; samples; as of
                                     rollout_cost */
} gr_ahead_objects;
/* [tokens, H]: from which hidden states of the step it goes on; GR_NONE: it does not draft. */
uint32_t gr_rollout_ahead_hidden(gr_tasks *p, const gr_node *n, const gr_choices *how, const gr_kernels *k,
                                 uint32_t tokens);
/* A bucket of its weights; GR_NONE as above. */
uint32_t gr_rollout_ahead_weights(gr_tasks *p, const gr_node *n, const gr_choices *how, const gr_kernels *k,
                                  uint32_t bucket);
/* Of any part of a pass, in bytes; 0 as above. */
uint64_t gr_rollout_ahead_ws(const gr_node *n, const gr_choices *how, const gr_kernels *k,
                             const gr_pass_bounds *b);
/* To w: a pass of so many tokens before the head, so many times; length: keys as of gr_layer_cost. */
void gr_rollout_ahead_cost(gr_task *w, const gr_node *n, const gr_kernels *k, double tokens, double length,
                           double times);
/* Its part of the state kv, and its norm in that bucket. */
void *gr_rollout_ahead_state(const gr_call *c, void *kv);
const void *gr_rollout_ahead_norm(const gr_call *c, const void *bucket);
void gr_rollout_declare_ahead(const gr_node *n, const gr_choices *how, const gr_kernels *k, gr_tasks *p,
                              const gr_ahead_objects *o);

/* What the first pass reads of the step that was sampled; pointers of its task. */
typedef struct gr_ahead_begin {
    const void *norm, *x; /* the model's last norm; [tokens, H] of the step */
    void *hidden, *step, *staging;
} gr_ahead_begin;
void gr_rollout_begin_ahead(const gr_call *c, gr_rollout *r, const gr_rows *rows, const gr_ahead_begin *b);
void gr_rollout_run_ahead(const gr_call *c, gr_rollout *r);
/* How many tokens may be drafted behind the one that is sampled next in any case. */
uint32_t gr_rollout_draft_room(const gr_rollout *r, const gr_rollout_slot *s, const gr_rows *rows);

/* ---- rollout_steps.c -------------------------------------------------------------------------------------
 */

void gr_rollout_steps_declare(const gr_graph *g, const gr_node *n, const gr_choices *how, const gr_kernels *k,
                              gr_tasks *p);
gr_status gr_rollout_steps_begin(const gr_call *c, gr_rollout *r, gr_diag *d);
gr_status gr_rollout_steps_run(const gr_call *c, gr_rollout *r, gr_diag *d);
void gr_rollout_steps_close(gr_rollout *r);

#endif
