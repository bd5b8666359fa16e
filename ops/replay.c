/* ops/replay.c: the op `replay`: its store, which responses come again, and which are kept. */
#include "ops/replay.h"

#include "ops/base/configs.h"
#include "ops/base/session.h"
#include "ops/data.h"
#include "ops/kernels/workspace.h"
#include "runtime/base/files.h"

#include <assert.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

typedef struct replay_cfg {
    const gr_node *of;
    uint32_t samples, size, max_age;
    const gr_value *keep; /* as written: gr_graph.record_state has it */
} replay_cfg;

#define CFG(f) offsetof(replay_cfg, f)

/* clang-format off */
static const gr_key keys[] = {
    {"of", GR_KEY_NODE, CFG(of), true, NULL, 0, 0, NULL, "the rows of this iteration"},
    {"samples", GR_KEY_UINT, CFG(samples), true, NULL, 1, 1 << 16, NULL, "most sequences of earlier iterations beside a group, which are also the most that are kept of a record"},
    {"size", GR_KEY_UINT, CFG(size), true, NULL, 1, 1 << 24, NULL, "most sequences that are kept, of all records"},
    {"keep", GR_KEY_VALUE, CFG(keep), true, NULL, 0, 0, NULL, "expression, a number for each sequence of this node at the iteration's end: it is kept where that is above 0, and of too many those with the largest, of equal ones the newest"},
    {"max_age", GR_KEY_UINT, CFG(max_age), false, "0", 0, 1 << 30, NULL, "iterations after which a sequence does not come again; 0: any time"},
    {0}};

static const gr_field fields[] = {
    {"token", GR_LEVEL_TOKEN, GR_KIND_NUMBER, GR_EXPR_I32, "id of each response token"},
    {"age", GR_LEVEL_SEQ, GR_KIND_NUMBER, GR_EXPR_I32, "iterations since a sequence was one of the rows: 0 for those of this one"},
    {"logprob", GR_LEVEL_TOKEN, GR_KIND_NUMBER, GR_EXPR_F32, "log-prob of each token as it was sampled, by the policy of that time"},
    {"length", GR_LEVEL_SEQ, GR_KIND_NUMBER, GR_EXPR_I32, "response tokens, the stop id included"},
    {"truncated", GR_LEVEL_SEQ, GR_KIND_BOOL, GR_EXPR_U8, "whether max_tokens cut the response"},
    {"position", GR_LEVEL_TOKEN, GR_KIND_NUMBER, GR_EXPR_I32, "index of each token in its response, from 0"},
    {"model", GR_LEVEL_TOKEN, GR_KIND_BOOL, GR_EXPR_U8, "whether the token counts: an environment said the others"},
    {"turn", GR_LEVEL_TOKEN, GR_KIND_NUMBER, GR_EXPR_I32, "the turn that each token is of, from 0"},
    {"stopped", GR_LEVEL_SEQ, GR_KIND_NUMBER, GR_EXPR_I32, "why a conversation ended: 0 done, 1 turns, 2 tokens, 3 time, 4 error"},
    {"turns", GR_LEVEL_SEQ, GR_KIND_NUMBER, GR_EXPR_I32, "turns that the model had"},
    {0}};
/* clang-format on */

/* ---- checked ---------------------------------------------------------------------------------------------
 */

/* Of rows that the same model samples again, to the same prompt, at the same temperature. */
static void check_rows(const gr_node *n, const gr_node *of, gr_diag *d)
{
    const gr_node *maker = gr_rows_maker(of->rows), *drawn = gr_groups_maker(of->rows->groups);
    const gr_generate_cfg *g = maker->op->generates ? maker->cfg : NULL;
    if (!g)
        gr_diag_error(d, n->at, GR_E_INVALID,
                      "'%s' reads its rows from a file, where they come again by themselves: 'replay' is of "
                      "rows that a rollout samples",
                      maker->name);
    else if (g->serve.host)
        gr_diag_error(d, n->at, GR_E_INVALID,
                      "rows that harnesses made ('serve' of '%s') have no prompt that comes again",
                      maker->name);
    else if (g->temperature.changes)
        gr_diag_error(d, n->at, GR_E_INVALID,
                      "a 'temperature' that changes ('%s') does not go with 'replay': a token of an earlier "
                      "iteration was sampled at another one than log-probs are taken at",
                      maker->name);
    else if (drawn->of)
        gr_diag_error(d, n->at, GR_E_INVALID,
                      "the prompts of '%s' are made of the rows of '%s', and other ones each time: "
                      "'replay' is of prompts that are drawn",
                      drawn->name, drawn->of->name);
    else if (gr_rows_split(of->rows))
        gr_diag_error(d, n->at, GR_E_INVALID,
                      "every row that '%s' draws is a group of its own: replay before the draw", of->name);
}

static void check_replay(gr_graph *g, gr_node *n, gr_diag *d)
{
    (void)g;
    const replay_cfg *c = n->cfg;
    n->bounds = c->of->rows->bounds;
    n->bounds.kept = false;
    n->bounds.measures = 0;
    if ((uint64_t)n->bounds.groups * c->samples > 1u << 24)
        gr_diag_error(d, n->at, GR_E_INVALID,
                      "%u groups with %u sequences more each are more than %u: fewer 'samples' fit",
                      n->bounds.groups, c->samples, 1u << 24);
    n->bounds.seqs += n->bounds.groups * c->samples;
    check_rows(n, c->of, d);
    gr_rows_check(n, d);
}

/* ---- the store -------------------------------------------------------------------------------------------
 */

/* What a file is. Without gaps, which would be other bytes each time. */
typedef struct store_head {
    char magic[16];
    uint32_t size, prompt_tokens, response_tokens, masked, turns; /* bounds of its responses */
    uint32_t step;
    uint64_t data; /* whose records these are */
} store_head;
static_assert(sizeof(store_head) == 48, "store_head has gaps");

static const char magic[16] = "graphrun store1";

typedef struct store {
    store_head *head;
    uint32_t *born;   /* [size] iteration that sampled it; 0: the place is free */
    uint32_t *record; /* [size] */
    float *value;     /* [size] what `keep` said last, above 0 */
    gr_rows rows; /* [size], with prompts where has_prompts; masks lie as responses do, at response_tokens for
                     each */
} store;

/* Whether rows of a record have prompts of their own: an environment opens each. Else those of a group do. */
static bool has_prompts(const gr_node *n)
{
    return ((const gr_generate_cfg *)gr_rows_maker(n->of->rows)->cfg)->environment.opens;
}

static gr_rows_bounds store_bounds(const gr_node *n)
{
    gr_rows_bounds b = n->bounds;
    b.groups = 1;
    b.seqs = ((const replay_cfg *)n->cfg)->size;
    if (!has_prompts(n)) b.prompt_tokens = 0;
    return b;
}

static uint64_t layout(gr_workspace *c, const gr_node *n, store *s)
{
    const gr_rows_bounds b = store_bounds(n);
    s->head = gr_workspace_bytes(c, sizeof(*s->head));
    s->born = gr_workspace_bytes(c, b.seqs * sizeof(*s->born));
    s->record = gr_workspace_bytes(c, b.seqs * sizeof(*s->record));
    s->value = gr_workspace_floats(c, b.seqs);
    void *rows = gr_workspace_bytes(c, gr_rows_bytes(&b));
    if (rows) s->rows = gr_rows_at(rows, &b);
    return c->used;
}

static uint64_t store_bytes(const gr_node *n)
{
    gr_workspace c = {0};
    store s;
    return layout(&c, n, &s);
}

static store store_at(const gr_node *n, void *block)
{
    gr_workspace c = {.base = block};
    store s;
    layout(&c, n, &s);
    return s;
}

uint32_t gr_replay_object(gr_tasks *p, const gr_node *n)
{
    const gr_object o = {.name = gr_arena_printf(p->arena, "%s.store", n->name),
                         .category = GR_CAT_COLUMNS,
                         .span = GR_SPAN_KEEP,
                         .place = GR_HOST,
                         .bytes = store_bytes(n),
                         .bucket = GR_NONE};
    return gr_tasks_object(p, &o);
}

enum { REPLAY_STORE, REPLAY_FROM, REPLAY_ROWS, N_REPLAY }; /* operands; behind them the node's columns */

static void declare_replay(const gr_graph *g, const gr_node *n, const gr_choices *how, const gr_kernels *k,
                           gr_tasks *p)
{
    (void)g, (void)how, (void)k;
    gr_use *uses = gr_arena_alloc(p->arena, (N_REPLAY + n->results.n_columns) * sizeof(*uses));
    uses[REPLAY_STORE] = (gr_use){gr_replay_object(p, n), GR_READ};
    uses[REPLAY_FROM] = (gr_use){gr_rows_object(p, n->of), GR_READ};
    uses[REPLAY_ROWS] = (gr_use){gr_rows_object(p, n), GR_WRITE};
    for (size_t i = 0; i < n->results.n_columns; i++)
        uses[N_REPLAY + i] = (gr_use){gr_column_object(p, n->results.columns[i]), GR_WRITE};
    gr_tasks_run(p, 0, 0, uses, N_REPLAY + n->results.n_columns, "replay")->uses.by_code = true;
}

/* ---- opened ----------------------------------------------------------------------------------------------
 */

/* A sequence that may be kept. */
typedef struct candidate {
    float value;
    uint32_t born, record;
    uint32_t at; /* its place; of a new one its number among the rows */
    bool new;
} candidate;

typedef struct replay_state {
    gr_session *session;
    const gr_node *node;
    const void *data; /* of the records */
    uint32_t *place;  /* [seqs] of each sequence of the rows; GR_NONE: it was sampled now */
    int32_t *age;     /* [seqs] */
    candidate *list;  /* [size + seqs] */
    uint32_t replayed_metric, kept_metric;
} replay_state;

static gr_status open_replay(gr_session *s, const gr_node *n, void **state, gr_diag *d)
{
    (void)d;
    replay_state *t = gr_calloc(1, sizeof(*t));
    *t = (replay_state){.session = s,
                        .node = n,
                        .data = s->state[gr_groups_maker(n->of->groups)->index],
                        .place = gr_calloc(n->bounds.seqs, sizeof(*t->place)),
                        .age = gr_calloc(n->bounds.seqs, sizeof(*t->age)),
                        .list =
                            gr_calloc(n->bounds.seqs + ((const replay_cfg *)n->cfg)->size, sizeof(*t->list)),
                        .replayed_metric = gr_session_name(s, n, "%s.replayed", n->name),
                        .kept_metric = gr_session_name(s, n, "%s.kept", n->name)};
    *state = t;
    return GR_OK;
}

static void close_replay(void *state)
{
    replay_state *t = state;
    if (!t) return;
    free(t->place);
    free(t->age);
    free(t->list);
    free(t);
}

/* ---- what comes again ------------------------------------------------------------------------------------
 */

/* The larger value first; then the newer; then by number, what was there already before what is new. */
static int by_value(const void *a, const void *b)
{
    const candidate *x = a, *y = b;
    if (x->value != y->value) return x->value > y->value ? -1 : 1;
    if (x->born != y->born) return x->born > y->born ? -1 : 1;
    if (x->new != y->new) return x->new ? 1 : -1;
    return (x->at > y->at) - (x->at < y->at);
}

static int by_record(const void *a, const void *b)
{
    const candidate *x = a, *y = b;
    return x->record != y->record ? (x->record > y->record ? 1 : -1) : by_value(a, b);
}

static bool is_too_old(const replay_state *t, uint32_t born, uint32_t step)
{
    const uint32_t most = ((const replay_cfg *)t->node->cfg)->max_age;
    return most && step - born > most;
}

/* What the store has, into the list; returns how many. */
static uint32_t list_kept(const replay_state *t, const store *s, uint32_t step)
{
    uint32_t n = 0;
    for (uint32_t i = 0; i < ((const replay_cfg *)t->node->cfg)->size; i++)
        if (s->born[i] && !is_too_old(t, s->born[i], step))
            t->list[n++] = (candidate){s->value[i], s->born[i], s->record[i], i, false};
    return n;
}

/* The first of the list's n, by record, that is of this record or of a later one. */
static uint32_t first_of(const replay_state *t, uint32_t n, uint32_t record)
{
    uint32_t low = 0, high = n;
    while (low < high) {
        const uint32_t middle = low + (high - low) / 2;
        if (t->list[middle].record < record)
            low = middle + 1;
        else
            high = middle;
    }
    return low;
}

/* A response of the store, behind its own prompt or that of sequence `like`. */
static void add_kept(replay_state *t, const store *s, uint32_t place, const gr_rows *from, uint32_t like,
                     gr_rows *to)
{
    const size_t longest = t->node->bounds.response_tokens;
    const gr_rows *kept = &s->rows;
    const bool own = has_prompts(t->node);
    const uint32_t prompt = own ? kept->prompt_len[place] : 0;
    const gr_seq_ids ids = {own ? gr_rows_ids(kept, place) : gr_rows_ids(from, like),
                            gr_rows_ids(kept, place) + prompt, own ? prompt : from->prompt_len[like],
                            kept->response_len[place]};
    const uint32_t at = gr_rows_add_seq(to, from->group[like], &ids);
    to->truncated[at] = kept->truncated[place];
    to->ended[at] = kept->ended[place];
    memcpy(to->logprob + at * longest, kept->logprob + place * longest,
           ids.n_response * sizeof(*to->logprob));
    if (to->counts) memcpy(to->counts + to->token_offset[at], kept->counts + place * longest, ids.n_response);
    gr_rows_copy_turns(kept, place, to, at);
    t->place[at] = place;
    t->age[at] = (int32_t)(t->session->step - s->born[place]);
}

static void add_new(replay_state *t, const gr_rows *from, uint32_t seq, gr_rows *to)
{
    const uint32_t at =
        gr_rows_append(to, t->node->bounds.response_tokens, from, t->node->bounds.response_tokens, seq);
    t->place[at] = GR_NONE;
    t->age[at] = 0;
}

/* The rows of all groups; returns how many sequences came again. */
static uint32_t mix(replay_state *t, const store *s, const gr_rows *from, gr_rows *to)
{
    const uint32_t n = list_kept(t, s, t->session->step), most = ((const replay_cfg *)t->node->cfg)->samples;
    uint32_t again = 0;
    qsort(t->list, n, sizeof(*t->list), by_record);
    *to->n_groups = *to->n_seqs = to->token_offset[0] = 0;
    for (uint32_t g = 0, seq = 0; g < *from->n_groups; g++) {
        const uint32_t first = seq, record = from->record[g], kept = first_of(t, n, record);
        gr_rows_add_group(to, record);
        for (; seq < *from->n_seqs && from->group[seq] == g; seq++) add_new(t, from, seq, to);
        for (uint32_t i = kept; seq > first && i < n && i - kept < most && t->list[i].record == record;
             i++, again++)
            add_kept(t, s, t->list[i].at, from, first, to);
    }
    return again;
}

static gr_status run_replay(const gr_call *c, gr_diag *d)
{
    (void)d;
    replay_state *t = c->state;
    const gr_node *n = c->node;
    const store s = store_at(n, c->ptr[REPLAY_STORE]);
    const gr_rows from = gr_rows_at(c->ptr[REPLAY_FROM], &n->of->rows->bounds);
    gr_rows to = gr_rows_at(c->ptr[REPLAY_ROWS], &n->bounds);
    gr_session_metric(t->session, t->replayed_metric, mix(t, &s, &from, &to));
    for (size_t i = 0; i < n->results.n_columns; i++) {
        const gr_column *column = n->results.columns[i];
        if (column->of_rows == GR_ROWS_NONE)
            memcpy(c->ptr[N_REPLAY + i], t->age, *to.n_seqs * sizeof(*t->age));
        else
            gr_rows_column(&to, column, c->ptr[N_REPLAY + i]);
    }
    return GR_OK;
}

bool gr_replay_is_new(const void *state, uint32_t seq)
{
    return ((const replay_state *)state)->place[seq] == GR_NONE;
}

/* ---- what is kept ----------------------------------------------------------------------------------------
 */

/* What `keep` says of sequences that came again. */
static void rate_kept(const replay_state *t, store *s, const gr_rows *rows, const float *value)
{
    for (uint32_t seq = 0; seq < *rows->n_seqs; seq++) {
        const uint32_t place = t->place[seq];
        if (place == GR_NONE || !isfinite(value[seq])) continue;
        if (value[seq] > 0)
            s->value[place] = value[seq];
        else
            s->born[place] = 0;
    }
}

/* Of this iteration's, behind the n of the list; returns how many there are then. */
static uint32_t list_new(const replay_state *t, const gr_rows *rows, const float *value, uint32_t n)
{
    for (uint32_t seq = 0; seq < *rows->n_seqs; seq++)
        if (t->place[seq] == GR_NONE && isfinite(value[seq]) && value[seq] > 0)
            t->list[n++] =
                (candidate){value[seq], t->session->step, rows->record[rows->group[seq]], seq, true};
    return n;
}

/* Of the list's n those that stay, in front; returns how many. */
static uint32_t choose(const replay_state *t, uint32_t n)
{
    const replay_cfg *c = t->node->cfg;
    uint32_t stay = 0, of_record = 0;
    qsort(t->list, n, sizeof(*t->list), by_record);
    for (uint32_t i = 0; i < n; i++) {
        of_record = i && t->list[i].record == t->list[i - 1].record ? of_record + 1 : 0;
        if (of_record < c->samples) t->list[stay++] = t->list[i];
    }
    qsort(t->list, stay, sizeof(*t->list), by_value);
    return GR_MIN(stay, c->size);
}

static void put(const replay_state *t, store *s, uint32_t place, const gr_rows *rows, const candidate *c)
{
    const size_t longest = t->node->bounds.response_tokens, n = rows->response_len[c->at];
    gr_rows *to = &s->rows;
    s->born[place] = c->born;
    s->record[place] = c->record;
    s->value[place] = c->value;
    const uint32_t prompt = has_prompts(t->node) ? rows->prompt_len[c->at] : 0;
    to->prompt_len[place] = prompt;
    to->response_len[place] = (uint32_t)n;
    to->truncated[place] = rows->truncated[c->at];
    to->ended[place] = rows->ended[c->at];
    memcpy(to->ids + (size_t)place * to->stride, gr_rows_ids(rows, c->at) + rows->prompt_len[c->at] - prompt,
           (prompt + n) * sizeof(*to->ids));
    memcpy(to->logprob + place * longest, rows->logprob + c->at * longest, n * sizeof(*to->logprob));
    if (to->counts) memcpy(to->counts + place * longest, rows->counts + rows->token_offset[c->at], n);
    gr_rows_copy_turns(rows, c->at, to, place);
}

static void note_bad(const replay_state *t, const gr_rows *rows, const float *value)
{
    uint32_t bad = 0;
    for (uint32_t seq = 0; seq < *rows->n_seqs; seq++) bad += !isfinite(value[seq]);
    if (bad)
        gr_session_note(t->session, "'keep' of '%s' is no number for %u sequence%s, of which nothing changes",
                        t->node->name, bad, bad == 1 ? "" : "s");
}

void gr_replay_keep(void *state, void *block, const gr_rows *rows, const float *value)
{
    replay_state *t = state;
    store s = store_at(t->node, block);
    rate_kept(t, &s, rows, value);
    const uint32_t n = choose(t, list_new(t, rows, value, list_kept(t, &s, t->session->step + 1)));
    memset(s.born, 0, ((const replay_cfg *)t->node->cfg)->size * sizeof(*s.born));
    for (uint32_t i = 0; i < n; i++)
        if (!t->list[i].new) s.born[t->list[i].at] = t->list[i].born;
    for (uint32_t i = 0, place = 0; i < n; i++) {
        if (!t->list[i].new) continue;
        while (s.born[place]) place++;
        put(t, &s, place, rows, &t->list[i]);
    }
    s.head->step = t->session->step;
    note_bad(t, rows, value);
    gr_session_metric(t->session, t->kept_metric, n);
}

/* ---- files -----------------------------------------------------------------------------------------------
 */

static char *path_of(const replay_state *t, const char *dir)
{
    return gr_printf("%s/%s.store", dir, t->node->name);
}

/* All ranks have the same. */
static gr_status save(const void *state, const void *block, const char *dir, gr_diag *d)
{
    const replay_state *t = state;
    if (t->session->rank) return GR_OK;
    char *path = path_of(t, dir);
    const gr_status st = gr_file_write(path, block, store_bytes(t->node), d);
    free(path);
    return st;
}

static store_head head_of(const replay_state *t)
{
    const gr_rows_bounds b = store_bounds(t->node);
    store_head h = {.size = b.seqs,
                    .prompt_tokens = b.prompt_tokens,
                    .response_tokens = b.response_tokens,
                    .masked = b.masked,
                    .turns = b.turns,
                    .data = gr_data_hash(t->data)};
    memcpy(h.magic, magic, sizeof(magic));
    return h;
}

static bool same_bounds(const store_head *a, const store_head *b)
{
    return a->size == b->size && a->prompt_tokens == b->prompt_tokens &&
           a->response_tokens == b->response_tokens && a->masked == b->masked && a->turns == b->turns;
}

static bool is_sound_conversation(const gr_rows *rows, uint32_t at)
{
    bool sound = !rows->turns || (rows->n_turns[at] <= rows->turns && rows->stopped[at] <= GR_STOPPED_ERROR);
    for (uint32_t i = 0; sound && rows->turns && i < rows->n_turns[at]; i++)
        sound = rows->turn_end[(size_t)at * rows->turns + i] <= rows->response_len[at];
    return sound;
}

/* Of a file nothing is trusted: every number is used as an index. */
static bool is_sound(const replay_state *t, const store *s, uint32_t at)
{
    const uint32_t prompt = s->rows.prompt_len[at], n = s->rows.response_len[at],
                   vocab = gr_session_model(t->session, t->node)->shape.vocab;
    const int32_t *ids = gr_rows_ids(&s->rows, at);
    bool sound = s->born[at] <= s->head->step && s->record[at] < gr_data_records(t->data) &&
                 isfinite(s->value[at]) && s->value[at] > 0 && n <= t->node->bounds.response_tokens &&
                 prompt <= (has_prompts(t->node) ? t->node->bounds.prompt_tokens : 0) &&
                 (prompt || !has_prompts(t->node)) && is_sound_conversation(&s->rows, at);
    for (uint32_t i = 0; sound && i < prompt + n; i++) sound = ids[i] >= 0 && (uint32_t)ids[i] < vocab;
    return sound;
}

static gr_status check_store(const replay_state *t, const store *s, const char *path, gr_diag *d)
{
    const gr_loc at = {path, 0, 0};
    const store_head want = head_of(t);
    if (memcmp(s->head->magic, magic, sizeof(magic)))
        return gr_diag_error(d, at, GR_E_INVALID, "it holds no responses of a replay");
    if (!same_bounds(s->head, &want))
        return gr_diag_error(
            d, at, GR_E_INVALID,
            "'%s' kept responses of other bounds (size, max_tokens): go on with those, or begin "
            "a new run from the model of this checkpoint",
            t->node->name);
    bool sound = true;
    for (uint32_t i = 0; i < want.size && sound && s->head->data == want.data; i++)
        sound = !s->born[i] || is_sound(t, s, i);
    return sound ? GR_OK : gr_diag_error(d, at, GR_E_INVALID, "its responses are damaged");
}

static gr_status read_store(replay_state *t, void *block, const char *path, gr_diag *d)
{
    const uint64_t bytes = store_bytes(t->node);
    const store s = store_at(t->node, block);
    char *all = NULL;
    size_t n = 0;
    gr_status st = gr_file_read(path, 0, &all, &n, d);
    if (!st) memcpy(block, all, GR_MIN(n, bytes));
    free(all);
    if (!st) st = check_store(t, &s, path, d);
    if (st || s.head->data == head_of(t).data) return st;
    gr_diag_warn(d, t->node->at, "the data changed since the checkpoint: '%s' begins anew", t->node->name);
    memset(block, 0, bytes);
    return GR_OK;
}

static gr_status restore(void *state, void *block, const char *dir, gr_diag *d)
{
    replay_state *t = state;
    const store s = store_at(t->node, block);
    char *path = dir ? path_of(t, dir) : NULL;
    gr_status st = GR_OK;
    memset(block, 0, store_bytes(t->node));
    if (path && gr_path_exists(path)) st = read_store(t, block, path, d);
    const uint32_t step = s.head->step;
    *s.head = head_of(t);
    s.head->step = step;
    free(path);
    return st;
}

const gr_op gr_op_replay = {
    .name = "replay",
    .summary = "rows, and beside them responses that were sampled to the same prompts in earlier iterations",
    .doc = "Keeps responses from one iteration to the next, and puts them into the group of their record "
           "when it "
           "is drawn again. NODE.age says which they are, NODE.logprob what the policy of that time gave "
           "them. Rewards, log-probs and updates of these rows are about both.",
    .lane = GR_LANE_COMPUTE,
    .makes_rows = true,
    .joins = true,
    .replays = true,
    .cfg_bytes = sizeof(replay_cfg),
    .keys = keys,
    .fields = fields,
    .check = check_replay,
    .declare = declare_replay,
    .open = open_replay,
    .close = close_replay,
    .run = run_replay,
    .keep = save,
    .take_back = restore,
};
