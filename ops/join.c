/* ops/join.c: the op `join`: rows, and beside each group's sequences what its record says that a response
 * could be.
 *
 * The groups stay those of the rows, and in them the sequences of the rows come first. So statistics of a
 * group are over both, and a value of the prompts is one of the new rows, too.
 */
#include "ops/base/configs.h"
#include "ops/base/rows.h"
#include "ops/base/session.h"
#include "ops/data.h"
#include "ops/encode.h"

#include <stdlib.h>
#include <string.h>

typedef struct join_cfg {
    const gr_node *of;
    gr_texts responses;
    uint32_t max_tokens;
    bool eos;
    int too_long;
} join_cfg;

enum { TOO_LONG_ERROR, TOO_LONG_DROP };
static const char *const too_long[] = {"error", "drop", NULL};

#define CFG(f) offsetof(join_cfg, f)

/* clang-format off */
static const gr_key keys[] = {
    {"of", GR_KEY_NODE, CFG(of), true, NULL, 0, 0, NULL, "the rows"},
    {"responses", GR_KEY_TEXTS, CFG(responses), true, NULL, 0, 0, NULL, "text with {field}s of the record, or several: each is one more response to the prompt; where it is empty there is none"},
    {"max_tokens", GR_KEY_UINT, CFG(max_tokens), true, NULL, 1, 1 << 20, NULL, "most tokens of one, the stop id included"},
    {"eos", GR_KEY_BOOL, CFG(eos), false, "true", 0, 0, NULL, "end each with the checkpoint's first stop id"},
    {"too_long", GR_KEY_ENUM, CFG(too_long), false, "error", 0, 0, too_long, "what becomes of one with too many tokens"},
    {0}};

static const gr_field fields[] = {
    {"token", GR_LEVEL_TOKEN, GR_KIND_NUMBER, GR_EXPR_I32, "id of each response token"},
    {"source", GR_LEVEL_SEQ, GR_KIND_NUMBER, GR_EXPR_I32, "where a sequence is from: 0 the rows, 1 the first of 'responses', and so on"},
    {"logprob", GR_LEVEL_TOKEN, GR_KIND_NUMBER, GR_EXPR_F32, "log-prob of each token as it was sampled; 0 where it was not"},
    {"length", GR_LEVEL_SEQ, GR_KIND_NUMBER, GR_EXPR_I32, "response tokens, the stop id included"},
    {"truncated", GR_LEVEL_SEQ, GR_KIND_BOOL, GR_EXPR_U8, "whether max_tokens cut the response"},
    {"position", GR_LEVEL_TOKEN, GR_KIND_NUMBER, GR_EXPR_I32, "index of each token in its response, from 0"},
    {"model", GR_LEVEL_TOKEN, GR_KIND_BOOL, GR_EXPR_U8, "whether the token counts: an environment said the others"},
    {"turn", GR_LEVEL_TOKEN, GR_KIND_NUMBER, GR_EXPR_I32, "the turn that each token is of, from 0"},
    {"stopped", GR_LEVEL_SEQ, GR_KIND_NUMBER, GR_EXPR_I32, "why a conversation ended: 0 done, 1 turns, 2 tokens, 3 time, 4 error"},
    {"turns", GR_LEVEL_SEQ, GR_KIND_NUMBER, GR_EXPR_I32, "turns that the model had"},
    {0}};
/* clang-format on */

static void check_join(gr_graph *g, gr_node *n, gr_diag *d)
{
    (void)g;
    const join_cfg *c = n->cfg;
    const gr_node *maker = gr_rows_maker(c->of->rows);
    n->bounds = c->of->rows->bounds;
    n->bounds.kept = false;
    n->bounds.measures = 0;
    n->bounds.seqs += n->bounds.groups * (uint32_t)c->responses.n;
    n->bounds.response_tokens = GR_MAX(n->bounds.response_tokens, c->max_tokens);
    if (!c->responses.n)
        gr_diag_error(d, n->at, GR_E_INVALID, "'responses' is empty: there is nothing to join to '%s'",
                      c->of->name);
    if (maker->op->generates && ((const gr_generate_cfg *)maker->cfg)->serve.host)
        gr_diag_error(d, n->at, GR_E_INVALID,
                      "rows that harnesses made ('serve' of '%s') have no prompt that another response could "
                      "answer",
                      maker->name);
    if (maker->op->generates && ((const gr_generate_cfg *)maker->cfg)->environment.opens)
        gr_diag_error(
            d, n->at, GR_E_INVALID,
            "the environment of '%s' opens each conversation otherwise ('opens'): a response of the "
            "record has no prompt that is its own",
            maker->name);
    if (gr_rows_split(c->of->rows))
        gr_diag_error(d, n->at, GR_E_INVALID,
                      "every row that '%s' draws is a group of its own: join before the draw", c->of->name);
    gr_rows_check(n, d);
}

enum { JOIN_FROM, JOIN_ROWS, N_JOIN }; /* operands; behind them the node's columns */

static void declare_join(const gr_graph *g, const gr_node *n, const gr_choices *how, const gr_kernels *k,
                         gr_tasks *p)
{
    (void)g, (void)how, (void)k;
    gr_use *uses = gr_arena_alloc(p->arena, (N_JOIN + n->results.n_columns) * sizeof(*uses));
    uses[JOIN_FROM] = (gr_use){gr_rows_object(p, n->of->rows), GR_READ};
    uses[JOIN_ROWS] = (gr_use){gr_rows_object(p, n), GR_WRITE};
    for (size_t i = 0; i < n->results.n_columns; i++)
        uses[N_JOIN + i] = (gr_use){gr_column_object(p, n->results.columns[i]), GR_WRITE};
    gr_tasks_run(p, 0, 0, uses, N_JOIN + n->results.n_columns, "join")->uses.by_code = true;
}

/* ---- running ---------------------------------------------------------------------------------------------
 */

typedef struct join_state {
    gr_session *session;
    const gr_node *node;
    const void *data;     /* of the records */
    gr_encoder **encoder; /* [responses] */
    uint32_t *source;     /* [seqs] */
    gr_ids ids;           /* of one response */
    uint64_t dropped;     /* in this iteration */
    uint32_t dropped_metric;
} join_state;

/* The node that drew the records of these groups. */
static const gr_node *drawn_by(const gr_node *groups)
{
    groups = gr_groups_maker(groups);
    while (groups->of) groups = gr_groups_maker(groups->of->groups);
    return groups;
}

/* The ids of a response, into t->ids; none: the record has none, or one that is too long and left out. */
static gr_status encode(join_state *t, uint32_t record, size_t which, gr_diag *d)
{
    const join_cfg *c = t->node->cfg;
    const gr_model_shape *s = &gr_session_model(t->session, t->node)->shape;
    const gr_loc at = gr_data_at(t->data, record);
    json_t *row = NULL;
    t->ids.n = 0;
    gr_status st = gr_data_record(t->data, record, &row, d);
    if (!st) st = gr_encoder_run(t->encoder[which], row, at, &t->ids, d);
    if (!st && t->ids.n && c->eos && s->n_eos) GR_PUSH(t->ids.id, t->ids.n, t->ids.cap, s->eos[0]);
    json_decref(row);
    if (st || t->ids.n <= c->max_tokens) return st;
    if (c->too_long == TOO_LONG_ERROR)
        return gr_diag_error(
            d, at, GR_E_INVALID,
            "a response of %zu tokens, but node '%s' allows %u (too_long: drop leaves such ones "
            "out)",
            t->ids.n, t->node->name, c->max_tokens);
    t->ids.n = 0;
    t->dropped++;
    return GR_OK;
}

/* Every record once, before anything runs. */
static gr_status check_records(join_state *t, gr_diag *d)
{
    enum { MOST_ERRORS = 5 };
    const size_t n = gr_data_records(t->data), responses = ((const join_cfg *)t->node->cfg)->responses.n;
    size_t bad = 0;
    for (size_t i = 0; i < n * responses && bad < MOST_ERRORS; i++)
        bad += encode(t, (uint32_t)(i / responses), i % responses, d) != GR_OK;
    t->dropped = 0;
    return bad ? GR_E_INVALID : GR_OK;
}

static gr_status open_encoders(join_state *t, gr_diag *d)
{
    const gr_texts *texts = &((const join_cfg *)t->node->cfg)->responses;
    json_t *first = NULL;
    gr_status st = gr_data_records(t->data) ? gr_data_record(t->data, 0, &first, d) : GR_OK;
    for (size_t i = 0; i < texts->n && !st; i++) {
        const gr_encoder_config c = {.tokenizer = gr_session_tokenizer(t->session, t->node),
                                     .text = texts->text[i],
                                     .at = texts->at[i],
                                     .response = true};
        st = gr_encoder_new(&t->encoder[i], &c, d);
        if (!st && first) st = gr_encoder_check(t->encoder[i], first, d);
    }
    json_decref(first);
    return st;
}

static void close_join(void *state)
{
    join_state *t = state;
    if (!t) return;
    for (size_t i = 0; i < ((const join_cfg *)t->node->cfg)->responses.n; i++) gr_encoder_free(t->encoder[i]);
    free(t->encoder);
    free(t->source);
    free(t->ids.id);
    free(t);
}

static gr_status open_join(gr_session *s, const gr_node *n, void **state, gr_diag *d)
{
    join_state *t = gr_calloc(1, sizeof(*t));
    *t = (join_state){.session = s,
                      .node = n,
                      .data = s->state[drawn_by(n->of->groups)->index],
                      .encoder = gr_calloc(((const join_cfg *)n->cfg)->responses.n + 1, sizeof(*t->encoder)),
                      .source = gr_calloc(n->bounds.seqs, sizeof(*t->source)),
                      .dropped_metric = gr_session_name(s, n, "%s.dropped", n->name)};
    *state = t;
    gr_status st = open_encoders(t, d);
    return st ? st : check_records(t, d);
}

/* A sequence of the rows, with all that is known of it. */
static void add_row(join_state *t, const gr_rows *from, uint32_t seq, gr_rows *to)
{
    const uint32_t of = t->node->of->rows->bounds.response_tokens;
    t->source[gr_rows_append(to, t->node->bounds.response_tokens, from, of, seq)] = 0;
}

/* One of the record's responses to the prompt of sequence `like`: of one turn, and nobody was asked. */
static void add_response(join_state *t, const gr_rows *from, uint32_t like, uint32_t source, gr_rows *to)
{
    const gr_seq_ids ids = {gr_rows_ids(from, like), t->ids.id, from->prompt_len[like], (uint32_t)t->ids.n};
    const uint32_t at = gr_rows_add_seq(to, from->group[like], &ids), turns = to->turns,
                   longest = t->node->bounds.response_tokens;
    t->source[at] = source;
    if (to->counts) memset(to->counts + to->token_offset[at], 1, ids.n_response);
    to->ended[at] =
        ((const join_cfg *)t->node->cfg)->eos && gr_session_model(t->session, t->node)->shape.n_eos > 0;
    memset(to->logprob + (size_t)at * longest, 0, ids.n_response * sizeof(*to->logprob));
    if (!turns) return;
    to->stopped[at] = GR_STOPPED_DONE;
    to->n_turns[at] = 1;
    memset(to->turn_end + (size_t)at * turns, 0, turns * sizeof(*to->turn_end));
    memset(to->turn_reward + (size_t)at * turns, 0, turns * sizeof(*to->turn_reward));
    to->turn_end[(size_t)at * turns] = ids.n_response;
}

static gr_status join(join_state *t, const gr_rows *from, gr_rows *to, gr_diag *d)
{
    const size_t responses = ((const join_cfg *)t->node->cfg)->responses.n;
    gr_status st = GR_OK;
    *to->n_groups = *to->n_seqs = to->token_offset[0] = 0;
    for (uint32_t g = 0, seq = 0; g < *from->n_groups && !st; g++) {
        const uint32_t first = seq;
        gr_rows_add_group(to, from->record[g]);
        for (; seq < *from->n_seqs && from->group[seq] == g; seq++) add_row(t, from, seq, to);
        for (size_t i = 0; i < responses && !st && seq > first; i++) {
            st = encode(t, from->record[g], i, d);
            if (!st && t->ids.n) add_response(t, from, first, 1 + (uint32_t)i, to);
        }
    }
    return st;
}

static gr_status run_join(const gr_call *c, gr_diag *d)
{
    join_state *t = c->state;
    const gr_node *n = c->node;
    const gr_rows from = gr_rows_at(c->ptr[JOIN_FROM], &n->of->rows->bounds);
    gr_rows to = gr_rows_at(c->ptr[JOIN_ROWS], &n->bounds);
    t->dropped = 0;
    const gr_status st = join(t, &from, &to, d);
    for (size_t i = 0; i < n->results.n_columns && !st; i++) {
        const gr_column *column = n->results.columns[i];
        if (column->of_rows == GR_ROWS_NONE)
            memcpy(c->ptr[N_JOIN + i], t->source, *to.n_seqs * sizeof(*t->source));
        else
            gr_rows_column(&to, column, c->ptr[N_JOIN + i]);
    }
    if (t->dropped) gr_session_metric(t->session, t->dropped_metric, (double)t->dropped);
    return st;
}

const gr_op gr_op_join = {
    .name = "join",
    .summary = "rows, and responses of their records beside them",
    .doc =
        "Puts demonstrations and responses that were sampled into the same groups. NODE.source says which a "
        "sequence is. Rewards, log-probs and updates of these rows are about both.",
    .lane = GR_LANE_COMPUTE,
    .makes_rows = true,
    .joins = true,
    .cfg_bytes = sizeof(join_cfg),
    .keys = keys,
    .fields = fields,
    .check = check_join,
    .declare = declare_join,
    .open = open_join,
    .close = close_join,
    .run = run_join,
};
