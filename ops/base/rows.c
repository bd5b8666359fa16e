/* ops/base/rows.c: row sets: layout of a batch's rows, their columns, which are a rank's. */
#include "ops/base/rows.h"

#include "ops/kernels/workspace.h"
#include "ops/base/configs.h"
#include "ops/base/session.h"

#include <assert.h>
#include <stdio.h>
#include <string.h>

static void layout_kept(gr_workspace *c, const gr_rows_bounds *b, gr_rows *r)
{
    r->version = gr_workspace_bytes(c, (uint64_t)b->seqs * b->response_tokens * sizeof(*r->version));
    r->place = gr_workspace_bytes(c, b->groups * sizeof(*r->place));
    r->born = gr_workspace_bytes(c, b->groups * sizeof(*r->born));
    r->done = gr_workspace_bytes(c, b->groups * sizeof(*r->done));
    r->order = gr_workspace_bytes(c, b->groups * sizeof(*r->order));
    r->finished = gr_workspace_bytes(c, b->seqs);
    r->left = gr_workspace_bytes(c, b->groups * sizeof(*r->left));
    if (b->turns) r->turn = gr_workspace_bytes(c, b->seqs * sizeof(*r->turn));
}

static gr_rows layout(gr_workspace *c, const gr_rows_bounds *b)
{
    gr_rows r = {.stride = b->prompt_tokens + b->response_tokens, .turns = b->turns, .measures = b->measures};
    if (b->kept) r.kept = gr_workspace_bytes(c, sizeof(*r.kept)); /* where it is found whatever the bounds */
    r.n_groups = gr_workspace_bytes(c, sizeof(*r.n_groups));
    r.n_seqs = gr_workspace_bytes(c, sizeof(*r.n_seqs));
    r.record = gr_workspace_bytes(c, b->groups * sizeof(*r.record));
    r.group = gr_workspace_bytes(c, b->seqs * sizeof(*r.group));
    r.prompt_len = gr_workspace_bytes(c, b->seqs * sizeof(*r.prompt_len));
    r.response_len = gr_workspace_bytes(c, b->seqs * sizeof(*r.response_len));
    r.token_offset = gr_workspace_bytes(c, (b->seqs + 1ull) * sizeof(*r.token_offset));
    r.truncated = gr_workspace_bytes(c, b->seqs);
    r.ended = gr_workspace_bytes(c, b->seqs);
    r.ids = gr_workspace_bytes(c, (uint64_t)b->seqs * r.stride * sizeof(*r.ids));
    r.logprob = gr_workspace_floats(c, (uint64_t)b->seqs * b->response_tokens);
    if (b->masked) r.counts = gr_workspace_bytes(c, (uint64_t)b->seqs * b->response_tokens);
    if (b->kept) layout_kept(c, b, &r);
    if (!b->turns) return r;
    const uint64_t turns = (uint64_t)b->seqs * b->turns;
    r.stopped = gr_workspace_bytes(c, b->seqs);
    r.n_turns = gr_workspace_bytes(c, b->seqs * sizeof(*r.n_turns));
    r.turn_end = gr_workspace_bytes(c, turns * sizeof(*r.turn_end));
    r.turn_reward = gr_workspace_floats(c, turns);
    r.measure = gr_workspace_floats(c, (uint64_t)b->seqs * b->measures);
    return r;
}

uint32_t gr_rows_sampled(const gr_rows *r, uint32_t seq)
{
    if (!r->turns) return r->response_len[seq];
    uint32_t n = 0;
    for (uint32_t t = r->token_offset[seq]; t < r->token_offset[seq + 1]; t++) n += gr_rows_counts(r, t);
    return n;
}

void gr_rows_copy_turns(const gr_rows *from, uint32_t seq, gr_rows *to, uint32_t at)
{
    const size_t turns = to->turns, of = seq * turns, measures = to->measures;
    if (!turns) return;
    to->stopped[at] = from->stopped[seq];
    to->n_turns[at] = from->n_turns[seq];
    memcpy(to->turn_end + at * turns, from->turn_end + of, turns * sizeof(*to->turn_end));
    memcpy(to->turn_reward + at * turns, from->turn_reward + of, turns * sizeof(*to->turn_reward));
    if (measures)
        memcpy(to->measure + at * measures, from->measure + seq * measures, measures * sizeof(*to->measure));
}

void gr_rows_check(const gr_node *n, gr_diag *d)
{
    const gr_rows_bounds *b = &n->bounds;
    if ((uint64_t)b->seqs * b->response_tokens > UINT32_MAX)
        gr_diag_error(
            d, n->at, GR_E_INVALID,
            "%u sequences of up to %u response tokens are more than %u tokens: a smaller batch fits", b->seqs,
            b->response_tokens, UINT32_MAX);
}

uint64_t gr_rows_bytes(const gr_rows_bounds *b)
{
    gr_workspace c = {0};
    layout(&c, b);
    return c.used;
}

gr_rows gr_rows_at(void *block, const gr_rows_bounds *b)
{
    gr_workspace c = {.base = block};
    return layout(&c, b);
}

uint32_t gr_rows_add_group(gr_rows *r, uint32_t record)
{
    uint32_t group = (*r->n_groups)++;
    r->record[group] = record;
    return group;
}

uint32_t gr_rows_add_seq(gr_rows *r, uint32_t group, const gr_seq_ids *ids)
{
    uint32_t seq = (*r->n_seqs)++;
    int32_t *to = r->ids + (size_t)seq * r->stride;
    r->group[seq] = group;
    r->prompt_len[seq] = ids->n_prompt;
    r->response_len[seq] = ids->n_response;
    r->token_offset[seq + 1] = r->token_offset[seq] + ids->n_response;
    r->truncated[seq] = r->ended[seq] = 0;
    memcpy(to, ids->prompt, ids->n_prompt * sizeof(*to));
    if (ids->n_response) memcpy(to + ids->n_prompt, ids->response, ids->n_response * sizeof(*to));
    return seq;
}

uint32_t gr_rows_append(gr_rows *to, uint32_t longest, const gr_rows *from, uint32_t from_longest,
                        uint32_t seq)
{
    const int32_t *all = gr_rows_ids(from, seq);
    const gr_seq_ids ids = {all, all + from->prompt_len[seq], from->prompt_len[seq], from->response_len[seq]};
    const uint32_t at = gr_rows_add_seq(to, *to->n_groups - 1, &ids), n = ids.n_response;
    to->truncated[at] = from->truncated[seq];
    to->ended[at] = from->ended[seq];
    gr_rows_copy_turns(from, seq, to, at);
    memcpy(to->logprob + (size_t)at * longest, from->logprob + (size_t)seq * from_longest,
           n * sizeof(*to->logprob));
    if (from->counts) memcpy(to->counts + to->token_offset[at], from->counts + from->token_offset[seq], n);
    return at;
}

static uint32_t first_seq(const gr_rows *r, uint32_t group)
{
    uint32_t low = 0, high = *r->n_seqs; /* of those before low, all are of earlier groups */
    while (low < high) {
        uint32_t middle = low + (high - low) / 2;
        if (r->group[middle] < group)
            low = middle + 1;
        else
            high = middle;
    }
    return low;
}

gr_rows_part gr_rows_balance(const gr_rows *r, uint32_t from, uint32_t to, uint32_t which, uint32_t parts)
{
    uint64_t n = to - from;
    gr_rows_part p = {.group = from + (uint32_t)(n * which / parts),
                      .group_end = from + (uint32_t)(n * (which + 1) / parts)};
    p.seq = first_seq(r, p.group);
    p.seq_end = first_seq(r, p.group_end);
    return p;
}

gr_rows_part gr_rows_own(const gr_session *s, const gr_rows *r, uint32_t from, uint32_t to)
{
    return gr_rows_balance(r, from, to, s->rank, s->ranks);
}

gr_rows_part gr_rows_task(const gr_session *s, const gr_node *n, const gr_rows *r, uint32_t from, uint32_t to)
{
    return gr_rows_balance(r, from, to, s->rank / n->placement.parts, s->ranks / n->placement.parts);
}

gr_seqs gr_seqs_new(uint32_t cap)
{
    return (gr_seqs){.seq = gr_calloc(GR_MAX(cap, 1u), sizeof(uint32_t)), .cap = cap};
}

void gr_seqs_range(gr_seqs *s, uint32_t first, uint32_t end)
{
    assert(end - first <= s->cap);
    s->n = 0;
    for (uint32_t seq = first; seq < end; seq++) s->seq[s->n++] = seq;
}

uint32_t gr_rows_object(gr_tasks *p, const gr_node *rows)
{
    char name[128];
    snprintf(name, sizeof(name), "%s.rows", rows->name);
    gr_object o = {.name = name,
                   .category = GR_CAT_COLUMNS,
                   .span = GR_SPAN_TEMP,
                   .place = GR_HOST,
                   .bytes = gr_rows_bytes(&rows->bounds),
                   .bucket = GR_NONE};
    return gr_tasks_object(p, &o);
}

/* The turn of each token: an environment's tokens are of the turn behind them. */
static void turn_column(const gr_rows *r, int32_t *out)
{
    for (uint32_t seq = 0; seq < *r->n_seqs; seq++)
        for (uint32_t j = 0, turn = 0; j < r->response_len[seq]; j++) {
            while (r->turns && turn < r->n_turns[seq] && r->turn_end[(size_t)seq * r->turns + turn] <= j)
                turn++;
            out[r->token_offset[seq] + j] = (int32_t)turn;
        }
}

static void model_column(const gr_rows *r, uint8_t *out)
{
    for (uint32_t t = 0; t < r->token_offset[*r->n_seqs]; t++) out[t] = gr_rows_counts(r, t);
}

static void token_column(const gr_rows *r, const gr_column *c, void *out)
{
    if (c->of_rows == GR_ROWS_MODEL) model_column(r, out);
    if (c->of_rows == GR_ROWS_TURN) turn_column(r, out);
    if (c->of_rows == GR_ROWS_MODEL || c->of_rows == GR_ROWS_TURN) return;
    size_t responses = c->rows->bounds.response_tokens;
    for (uint32_t seq = 0; seq < *r->n_seqs; seq++)
        for (uint32_t j = 0; j < r->response_len[seq]; j++) {
            size_t at = r->token_offset[seq] + j;
            if (c->of_rows == GR_ROWS_VERSION)
                ((int32_t *)out)[at] = r->version[seq * responses + j];
            else if (c->of_rows == GR_ROWS_LOGPROB)
                ((float *)out)[at] = r->logprob[seq * responses + j];
            else
                ((int32_t *)out)[at] =
                    c->of_rows == GR_ROWS_TOKEN ? gr_rows_ids(r, seq)[r->prompt_len[seq] + j] : (int32_t)j;
        }
}

static uint32_t measure_of(const gr_column *c)
{
    const gr_node *maker = gr_rows_maker(c->rows);
    const gr_texts *names = &((const gr_generate_cfg *)maker->cfg)->environment.metrics;
    uint32_t i = 0;
    while (i < names->n && strcmp(names->text[i], c->field)) i++;
    return i;
}

/* A number a sequence that only conversations have. */
static bool conversation_column(const gr_rows *r, const gr_column *c, void *out)
{
    const bool stopped = c->of_rows == GR_ROWS_STOPPED, turns = c->of_rows == GR_ROWS_TURNS,
               measure = c->of_rows == GR_ROWS_NONE;
    const uint32_t which = measure ? measure_of(c) : 0;
    for (uint32_t i = 0; i < *r->n_seqs; i++) {
        if (measure) ((float *)out)[i] = r->measure[(size_t)i * r->measures + which];
        if (stopped)
            ((int32_t *)out)[i] = r->turns          ? r->stopped[i]
                                  : r->truncated[i] ? GR_STOPPED_TOKENS
                                                    : GR_STOPPED_DONE;
        if (turns) ((int32_t *)out)[i] = r->turns ? (int32_t)r->n_turns[i] : 1;
    }
    return stopped || turns || measure;
}

void gr_rows_column(const gr_rows *r, const gr_column *c, void *out)
{
    if (c->level == GR_LEVEL_TOKEN) {
        token_column(r, c, out);
        return;
    }
    if (conversation_column(r, c, out)) return;
    const bool prompt = c->level == GR_LEVEL_GROUP;
    for (uint32_t i = 0; i < *r->n_seqs; i++) {
        if (c->of_rows == GR_ROWS_TRUNCATED)
            ((uint8_t *)out)[i] = r->truncated[i];
        else if (c->of_rows == GR_ROWS_SECOND)
            ((uint8_t *)out)[i] = i > 0 && r->group[i] == r->group[i - 1];
        else
            ((int32_t *)out)[i] = (int32_t)(prompt ? r->prompt_len[i] : gr_rows_sampled(r, i));
    }
}

uint64_t gr_dtype_bytes(gr_expr_dtype t)
{
    return t == GR_EXPR_F64 ? 8 : t == GR_EXPR_U8 ? 1 : 4;
}

uint64_t gr_column_bytes(const gr_column *c)
{
    uint64_t n = 1;
    const gr_rows_bounds *b = c->rows ? &c->rows->bounds : NULL;
    if (c->level == GR_LEVEL_GROUP) n = b->groups;
    if (c->level == GR_LEVEL_SEQ) n = b->seqs;
    if (c->level == GR_LEVEL_TOKEN) n = (uint64_t)b->seqs * b->response_tokens;
    return n * gr_dtype_bytes(c->dtype);
}

uint32_t gr_column_object(gr_tasks *p, const gr_column *c)
{
    if (!c->node || c->current) return GR_NONE;
    gr_object o = {.name = c->name,
                   .category = GR_CAT_COLUMNS,
                   .span = GR_SPAN_TEMP,
                   .place = p->values,
                   .bytes = gr_column_bytes(c),
                   .bucket = GR_NONE};
    return gr_tasks_object(p, &o);
}

float gr_rows_inv_temperature(const gr_session *s, const gr_node *rows)
{
    rows = gr_rows_maker(rows);
    if (!rows->op->generates) return 1;
    const float t = (float)gr_session_number(s, &((const gr_generate_cfg *)rows->cfg)->temperature);
    return t > 0 ? 1 / t : 1; /* in the steps that sampling takes: the bits are the same */
}
