/* ops/rollout_kept.c: rows that a rollout keeps: places, what is enough, what is taken, files of checkpoints.
 */
#include "ops/rollout_kept.h"

#include "ops/data.h"
#include "ops/rollout_impl.h"
#include "runtime/base/files.h"

#include <assert.h>
#include <errno.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static const char magic[16] = "graphrun kept 1";

struct gr_kept {
    uint32_t batch;             /* groups that an iteration trains on, of all ranks */
    uint32_t first, end;        /* places of this rank's */
    uint32_t at, take;          /* of the batch, the first that is this rank's, and how many */
    uint32_t enough;            /* complete ones that end an iteration */
    uint32_t complete, overdue; /* so far; overdue: not complete, and to be waited for */
    bool begun;                 /* the places have been filled once */
    struct {
        uint32_t kept, partial, dropped, resumed, taken_length, left_length, staleness, staleness_max;
    } metrics;
};

/* ---- what the keys say ----------------------------------------------------------------------------------
 */

static gr_loc key_at(const gr_node *n, const char *key)
{
    const gr_value *v = gr_value_get(n->value, key);
    return v ? v->at : n->at;
}

static uint32_t ahead_of(const gr_generate_cfg *c)
{
    return GR_MAX(c->lag, 1u) - 1;
}

static uint32_t batch_of(const gr_node *n)
{
    return ((const gr_data_cfg *)((const gr_generate_cfg *)n->cfg)->prompts->cfg)->batch;
}

/* Keys without the one that gives them a meaning. */
static void check_alone(const gr_node *n, const gr_generate_cfg *c, gr_diag *d)
{
    static const char *const keys[] = {"partial", "max_lag"};
    for (size_t i = 0; i < GR_LEN(keys) && !gr_value_get(n->value, "over"); i++)
        if (gr_value_get(n->value, keys[i]))
            gr_diag_error(d, key_at(n, keys[i]), GR_E_INVALID,
                          "'%s' goes with 'over: 1.25', which has more prompts in work than an iteration "
                          "trains on",
                          keys[i]);
    if (c->partial == GR_PARTIAL_DROP && c->max_lag)
        gr_diag_error(d, key_at(n, "max_lag"), GR_E_INVALID,
                      "'max_lag' goes with 'partial: keep': what is dropped does not grow old");
    else if (c->max_lag && c->max_lag <= c->lag)
        gr_diag_error(d, key_at(n, "max_lag"), GR_E_INVALID,
                      "max_lag: %u leaves no time to what is kept: with 'lag: %u' it is at least %u",
                      c->max_lag, c->lag, c->lag + 1);
}

/* What needs all rows of an iteration's prompts, and no others. */
static void check_others(const gr_graph *g, const gr_node *n, gr_diag *d)
{
    const gr_generate_cfg *c = n->cfg;
    const gr_loc at = key_at(n, c->over > 1 ? "over" : "lag");
    if (n->timing.every)
        gr_diag_error(d, at, GR_E_INVALID, "'over' has no place in a validation, which asks all its prompts");
    if (n->timing.when.expr)
        gr_diag_error(d, at, GR_E_INVALID,
                      "'over' and 'lag' do not go with 'when': rows are kept in every iteration");
    if (c->temperature.changes)
        gr_diag_error(
            d, key_at(n, "temperature"), GR_E_INVALID,
            "a 'temperature' that changes does not go with 'over', nor with a 'lag' above 1: a token that "
            "was kept was sampled at another one than log-probs are taken at");
    if (g->canonical)
        gr_diag_error(d, at, GR_E_INVALID,
                      "'over', and 'lag' above 1, do not go with canonical: true: each rank takes of its own "
                      "prompts those that are complete first");
    for (size_t i = 0; i < g->n_nodes; i++) {
        const gr_node *m = g->nodes[i];
        if (m != n && m->of == c->prompts && m->op && m->op->makes_rows)
            gr_diag_error(
                d, m->at, GR_E_INVALID,
                "'%s' has the prompts of '%s', which keeps some from one iteration to the next: give "
                "'%s' a 'prompts' node of its own",
                m->name, n->name, m->name);
    }
}

/* Its prompts are as many as there are places, at most; what follows it has groups of its own. */
static void set_bounds(gr_node *n)
{
    const gr_generate_cfg *c = n->cfg;
    const uint32_t batch = batch_of(n);
    gr_rows_bounds *prompts = &((gr_node *)(uintptr_t)c->prompts)->bounds; /* ours while loading */
    n->groups = n;
    n->bounds.kept = true;
    n->work = n->bounds;
    n->work.groups = ahead_of(c) * batch + (uint32_t)ceil(c->over * batch - 1e-6); /* 1.1 * 10 is 11 */
    n->work.seqs = n->work.groups * c->samples;
    prompts->groups = prompts->seqs = n->work.groups;
}

/* Of all rows in work. */
static void check_size(const gr_node *n, gr_diag *d)
{
    const gr_rows_bounds *b = &n->work;
    if ((uint64_t)b->groups * b->seqs / b->groups > 1u << 24 ||
        (uint64_t)b->seqs * b->response_tokens > UINT32_MAX)
        gr_diag_error(
            d, n->at, GR_E_INVALID,
            "'%s' has %u prompts in work, of up to %u tokens each with their samples, which are more than "
            "%u sequences or %u tokens: a smaller batch, 'over' or 'lag' fits",
            n->name, b->groups, b->response_tokens, 1u << 24, UINT32_MAX);
}

void gr_kept_check(const gr_graph *g, gr_node *n, gr_diag *d)
{
    const gr_generate_cfg *c = n->cfg;
    const size_t before = d->n_errors;
    check_alone(n, c, d);
    if (!gr_node_keeps(n)) return;
    check_others(g, n, d);
    if (((const gr_data_cfg *)c->prompts->cfg)->of)
        gr_diag_error(d, key_at(n, "prompts"), GR_E_INVALID,
                      "rows are kept of prompts that are drawn: '%s' makes its own of the rows of '%s'",
                      c->prompts->name, c->prompts->of->name);
    if (d->n_errors > before) return;
    set_bounds(n);
    check_size(n, d);
}

const gr_node *gr_kept_of(const gr_graph *g, const gr_node *prompts)
{
    for (size_t i = 0; i < g->n_nodes; i++)
        if (gr_node_keeps(g->nodes[i]) && g->nodes[i]->of->index == prompts->index) return g->nodes[i];
    return NULL;
}

/* ---- opening --------------------------------------------------------------------------------------------
 */

static uint32_t part_of(uint32_t n, uint32_t which, uint32_t parts)
{
    return (uint32_t)((uint64_t)n * which / parts);
}

static void name_metrics(struct gr_kept *k, gr_session *s, const gr_node *n)
{
    k->metrics.kept = gr_session_name(s, n, "%s.kept_groups", n->name);
    k->metrics.partial = gr_session_name(s, n, "%s.partial_groups", n->name);
    k->metrics.dropped = gr_session_name(s, n, "%s.dropped_groups", n->name);
    k->metrics.resumed = gr_session_name(s, n, "%s.resumed_groups", n->name);
    k->metrics.taken_length = gr_session_name(s, n, "%s.taken_length", n->name);
    k->metrics.left_length = gr_session_name(s, n, "%s.left_length", n->name);
    k->metrics.staleness = gr_session_name(s, n, "%s.staleness", n->name);
    k->metrics.staleness_max = gr_session_name(s, n, "%s.staleness_max", n->name);
}

void gr_kept_open(gr_rollout *r)
{
    r->kept = gr_calloc(1, sizeof(*r->kept));
    r->kept->batch = r->node->bounds.groups;
    name_metrics(r->kept, r->session, r->node);
}

/* What of it is this rank's. */
static void find_own(gr_rollout *r)
{
    struct gr_kept *k = r->kept;
    const gr_session *s = r->session;
    const uint32_t together = r->node->placement.parts, which = s->rank / together, of = s->ranks / together;
    const uint32_t enough = (ahead_of(r->cfg) + 1) * k->batch;
    k->first = part_of(r->work.groups, which, of);
    k->end = part_of(r->work.groups, which + 1, of);
    k->at = part_of(k->batch, which, of);
    k->take = part_of(k->batch, which + 1, of) - k->at;
    k->enough = part_of(enough, which + 1, of) - part_of(enough, which, of);
    assert(k->enough <= k->end - k->first); /* the batch is a multiple of the ranks */
}

void gr_kept_close(gr_rollout *r)
{
    free(r->kept);
}

static bool drops(const gr_rollout *r)
{
    return r->cfg->partial == GR_PARTIAL_DROP;
}

uint32_t gr_kept_wanted(const void *state)
{
    const gr_rollout *r = state;
    if (!r->kept->begun) return r->work.groups;
    return drops(r) ? r->work.groups - ahead_of(r->cfg) * r->kept->batch : r->kept->batch;
}

/* ---- an iteration ---------------------------------------------------------------------------------------
 */

static uint32_t version_in(const gr_rollout *r, uint32_t step)
{
    const uint32_t older = r->cfg->lag ? 1 : 0;
    return step > older ? step - older : 1;
}

uint32_t gr_rollout_version(const gr_rollout *r)
{
    return version_in(r, r->session->step);
}

/* Whether it would be too old in the next iteration. */
static bool is_overdue(const gr_rollout *r, const gr_rows *rows, uint32_t g)
{
    const uint32_t most = r->cfg->max_lag ? r->cfg->max_lag : r->cfg->lag + 1;
    return !drops(r) && r->session->step + 1 - version_in(r, rows->born[g]) > most;
}

static void fill_place(gr_rollout *r, const gr_rows *prompts, uint32_t prompt, gr_rows *rows, uint32_t g)
{
    const uint32_t samples = r->cfg->samples;
    gr_rollout_put_prompt(r, prompts, prompt, rows, g);
    rows->born[g] = r->session->step;
    rows->done[g] = rows->order[g] = 0;
    memset(rows->finished + (size_t)g * samples, 0, samples);
    if (r->turns) gr_turns_clear(r, rows, g * samples, (g + 1) * samples);
}

/* The oldest first; of these the one that was complete first. */
static int by_age(const void *a, const void *b, void *rows)
{
    const gr_rows *r = rows;
    const uint32_t x = *(const uint32_t *)a, y = *(const uint32_t *)b;
    if (r->born[x] != r->born[y]) return r->born[x] < r->born[y] ? -1 : 1;
    if (r->done[x] != r->done[y]) return r->done[x] < r->done[y] ? -1 : 1;
    if (r->order[x] != r->order[y]) return r->order[x] < r->order[y] ? -1 : 1;
    return (x > y) - (x < y);
}

/* Groups of this rank that are complete, or are not. Returns how many. */
static uint32_t list(const gr_rollout *r, gr_rows *rows, bool complete, uint32_t *out)
{
    uint32_t n = 0;
    for (uint32_t g = r->kept->first; g < r->kept->end; g++)
        if (rows->born[g] && complete == (rows->done[g] != 0)) out[n++] = g;
    qsort_r(out, n, sizeof(*out), by_age, rows);
    return n;
}

static uint32_t count_unfinished(const gr_rollout *r, const gr_rows *rows, uint32_t g)
{
    const uint32_t samples = r->cfg->samples;
    uint32_t n = 0;
    for (uint32_t seq = g * samples; seq < (g + 1) * samples; seq++) n += !rows->finished[seq];
    return n;
}

/* The rank's part of what was drawn, one for each of its free places. */
static void fill_places(gr_rollout *r, const gr_rows *prompts, gr_rows *rows)
{
    const struct gr_kept *k = r->kept;
    gr_rows_part own = gr_rows_task(r->session, r->node, prompts, 0, *prompts->n_groups);
    for (uint32_t g = k->first; g < k->end; g++)
        if (!rows->born[g]) fill_place(r, prompts, own.group++, rows, g);
    assert(own.group == own.group_end);
}

void gr_kept_begin(gr_rollout *r, const gr_rows *prompts, gr_rows *rows)
{
    struct gr_kept *k = r->kept;
    const uint32_t samples = r->cfg->samples;
    find_own(r);
    *rows->n_groups = r->work.groups;
    *rows->n_seqs = r->work.seqs;
    for (uint32_t g = 0; g < r->work.groups; g++) rows->place[g] = g;
    for (uint32_t seq = 0; seq < r->work.seqs; seq++) rows->group[seq] = seq / samples;
    fill_places(r, prompts, rows);
    k->begun = true;
    k->overdue = 0;
    k->complete = list(r, rows, true, r->to_admit);
    r->n_groups = list(r, rows, false, r->to_admit);
    for (uint32_t i = 0; i < r->n_groups; i++) {
        k->overdue += is_overdue(r, rows, r->to_admit[i]);
        r->n_seqs += count_unfinished(r, rows, r->to_admit[i]);
    }
}

void gr_kept_ended(gr_rollout *r, const gr_rows *rows, uint32_t seq)
{
    const uint32_t g = rows->group[seq];
    rows->finished[seq] = 1;
    if (count_unfinished(r, rows, g)) return;
    rows->done[g] = r->session->step;
    rows->order[g] = gr_node_races(r->node) ? r->trip : 0; /* else all are taken, in their order */
    r->kept->complete++;
    r->kept->overdue -= is_overdue(r, rows, g);
}

bool gr_kept_is_enough(const gr_rollout *r)
{
    return r->kept->complete >= r->kept->enough && !r->kept->overdue;
}

static gr_rows_kept head_of(const gr_rollout *r)
{
    gr_rows_kept head = {
        .bounds = r->work, .rank = r->session->rank, .ranks = r->session->ranks, .step = r->session->step};
    memcpy(head.magic, magic, sizeof(magic));
    return head;
}

/* ---- what is taken --------------------------------------------------------------------------------------
 */

static void copy_tokens(const gr_rollout *r, const gr_rows *from, uint32_t seq, gr_rows *to, uint32_t at)
{
    const size_t n = from->response_len[seq], source = (size_t)seq * r->longest,
                 target = (size_t)at * r->longest;
    memcpy(to->ids + (size_t)at * to->stride, gr_rows_ids(from, seq),
           (from->prompt_len[seq] + n) * sizeof(*to->ids));
    memcpy(to->logprob + target, from->logprob + source, n * sizeof(*to->logprob));
    memcpy(to->version + target, from->version + source, n * sizeof(*to->version));
    if (from->counts)
        memcpy(to->counts + target, from->counts + source, n); /* packed when the rows are whole */
}

static void copy_seq(const gr_rollout *r, const gr_rows *from, uint32_t seq, gr_rows *to, uint32_t at)
{
    to->group[at] = at / r->cfg->samples;
    to->prompt_len[at] = from->prompt_len[seq];
    to->response_len[at] = from->response_len[seq];
    to->truncated[at] = from->truncated[seq];
    to->ended[at] = from->ended[seq];
    to->finished[at] = 1;
    copy_tokens(r, from, seq, to, at);
    gr_rows_copy_turns(from, seq, to, at);
}

/* Group g of the queue becomes group `at` of the rows; its place is free. */
static void take_group(const gr_rollout *r, gr_rows *queue, uint32_t g, gr_rows *rows, uint32_t at)
{
    const uint32_t samples = r->cfg->samples;
    rows->record[at] = queue->record[g];
    rows->place[at] = g;
    rows->born[at] = queue->born[g];
    rows->done[at] = queue->done[g];
    rows->order[at] = queue->order[g];
    for (uint32_t j = 0; j < samples; j++) copy_seq(r, queue, g * samples + j, rows, at * samples + j);
    queue->born[g] = 0;
}

static void drop_group(gr_rollout *r, gr_rows *queue, uint32_t g)
{
    const uint32_t samples = r->cfg->samples;
    for (uint32_t seq = g * samples; r->turns && seq < (g + 1) * samples; seq++) gr_turns_drop(r, seq);
    queue->born[g] = 0;
}

static void count_left(const gr_rollout *r, const gr_rows *queue, uint32_t g, uint32_t *left)
{
    const uint32_t samples = r->cfg->samples;
    for (uint32_t seq = g * samples; seq < (g + 1) * samples; seq++) {
        left[GR_LEFT_SEQS] += !queue->finished[seq];
        left[GR_LEFT_TOKENS] += queue->finished[seq] ? 0 : queue->response_len[seq];
    }
}

/* What is not taken: kept, or dropped; of complete ones as many stay as wait with `lag`. */
static void leave(gr_rollout *r, gr_rows *queue, uint32_t *left)
{
    const struct gr_kept *k = r->kept;
    const uint32_t n_partial = list(r, queue, false, r->to_admit), wait = k->enough - k->take;
    for (uint32_t i = 0; i < n_partial; i++) {
        count_left(r, queue, r->to_admit[i], left);
        if (drops(r)) drop_group(r, queue, r->to_admit[i]);
    }
    const uint32_t n = list(r, queue, true, r->to_admit);
    const uint32_t stay = drops(r) ? GR_MIN(n, wait) : n;
    for (uint32_t i = stay; i < n; i++) drop_group(r, queue, r->to_admit[i]);
    left[GR_LEFT_DROPPED] = n - stay + (drops(r) ? n_partial : 0);
    left[GR_LEFT_PARTIAL] = drops(r) ? 0 : n_partial;
    left[GR_LEFT_KEPT] = stay + left[GR_LEFT_PARTIAL];
}

void gr_kept_take(gr_rollout *r, gr_rows *queue, gr_rows *rows)
{
    const struct gr_kept *k = r->kept;
    memset(rows->kept, 0, gr_rows_bytes(&r->node->bounds)); /* others add to it */
    *rows->n_groups = k->batch;
    *rows->n_seqs = r->node->bounds.seqs;
    const uint32_t n = list(r, queue, true, r->to_admit);
    assert(n >= k->take);
    (void)n;
    for (uint32_t i = 0; i < k->take; i++) take_group(r, queue, r->to_admit[i], rows, k->at + i);
    leave(r, queue, rows->left[k->at]);
    *queue->kept = head_of(r); /* as a checkpoint behind this iteration has it */
    if (r->turns) gr_turns_save(r, queue);
}

/* Of all ranks; where several work on the same rows, they have said the same. */
static void sum_left(const gr_rows *rows, double sum[GR_N_LEFT])
{
    for (uint32_t g = 0; g < *rows->n_groups; g++)
        for (int i = 0; i < GR_N_LEFT; i++) sum[i] += rows->left[g][i];
}

static void report_age(const gr_rollout *r, const gr_rows *rows)
{
    double sum = 0, most = 0, n = 0, tokens = 0;
    for (uint32_t seq = 0; seq < *rows->n_seqs; seq++) {
        tokens += gr_rows_sampled(rows, seq);
        for (uint32_t i = 0; i < rows->response_len[seq]; i++) {
            if (!gr_rows_counts(rows, rows->token_offset[seq] + i)) continue;
            const double age = r->session->step - (double)rows->version[(size_t)seq * r->longest + i];
            sum += age;
            most = GR_MAX(most, age);
            n++;
        }
    }
    gr_session_metric(r->session, r->kept->metrics.staleness, sum / GR_MAX(n, 1));
    gr_session_metric(r->session, r->kept->metrics.staleness_max, most);
    gr_session_metric(r->session, r->kept->metrics.taken_length, tokens / GR_MAX(*rows->n_seqs, 1u));
}

void gr_kept_report(const gr_rollout *r, const gr_rows *rows)
{
    const struct gr_kept *k = r->kept;
    double left[GR_N_LEFT] = {0}, resumed = 0;
    sum_left(rows, left);
    for (uint32_t g = 0; g < *rows->n_groups; g++) resumed += rows->born[g] < r->session->step;
    gr_session_metric(r->session, k->metrics.kept, left[GR_LEFT_KEPT]);
    gr_session_metric(r->session, k->metrics.partial, left[GR_LEFT_PARTIAL]);
    gr_session_metric(r->session, k->metrics.dropped, left[GR_LEFT_DROPPED]);
    gr_session_metric(r->session, k->metrics.resumed, resumed);
    if (left[GR_LEFT_SEQS] > 0)
        gr_session_metric(r->session, k->metrics.left_length, left[GR_LEFT_TOKENS] / left[GR_LEFT_SEQS]);
    report_age(r, rows);
}

/* ---- files ----------------------------------------------------------------------------------------------
 */

static char *path_of(const gr_rollout *r, const char *dir)
{
    return gr_printf("%s/%s.queue.%u", dir, r->node->name, r->session->rank);
}

gr_status gr_kept_save(const void *state, const void *block, const char *dir, gr_diag *d)
{
    const gr_rollout *r = state;
    char *path = path_of(r, dir);
    const gr_status st = gr_file_write(path, block, gr_rows_bytes(&r->work), d);
    free(path);
    return st;
}

static bool same_bounds(const gr_rows_bounds *a, const gr_rows_bounds *b)
{
    return a->groups == b->groups && a->seqs == b->seqs && a->prompt_tokens == b->prompt_tokens &&
           a->response_tokens == b->response_tokens && a->masked == b->masked && a->turns == b->turns &&
           a->measures == b->measures && a->kept == b->kept;
}

/* Of a file nothing is trusted: every number is used as an index. */
static bool are_ids(const gr_rollout *r, const gr_rows *rows, uint32_t seq)
{
    const uint32_t n = gr_rollout_length(rows, seq);
    const int32_t *ids = gr_rows_ids(rows, seq), vocab = (int32_t)r->node->model->shape.vocab;
    bool sound = true;
    for (uint32_t i = 0; i < n && sound; i++) sound = ids[i] >= 0 && ids[i] < vocab;
    return sound;
}

static bool is_sound_conversation(const gr_rows *rows, uint32_t seq)
{
    const uint32_t *ends = rows->turn_end + (size_t)seq * rows->turns, *at = rows->turn[seq];
    if (rows->n_turns[seq] > rows->turns || at[GR_TURN_NUMBER] >= rows->turns) return false;
    bool sound = at[GR_TURN_BEGIN] <= rows->response_len[seq] && rows->stopped[seq] <= GR_STOPPED_ERROR;
    for (uint32_t t = 0; t < rows->n_turns[seq]; t++) sound = sound && ends[t] <= rows->response_len[seq];
    return sound;
}

static bool is_sound_group(const gr_rollout *r, const gr_rows *rows, uint32_t g)
{
    const uint32_t samples = r->cfg->samples;
    const size_t records = gr_data_records(r->session->state[r->node->of->index]);
    uint32_t unfinished = 0;
    for (uint32_t seq = g * samples; seq < (g + 1) * samples; seq++) unfinished += rows->finished[seq] != 1;
    bool sound = (unfinished == 0) == (rows->done[g] != 0) && rows->born[g] <= rows->kept->step &&
                 rows->done[g] <= rows->kept->step && rows->record[g] < records;
    for (uint32_t seq = g * samples; sound && seq < (g + 1) * samples; seq++) {
        const uint32_t prompt = rows->prompt_len[seq];
        const bool alike = prompt == rows->prompt_len[g * samples] || gr_rollout_opens(r->node);
        sound = prompt >= 1 && prompt <= r->work.prompt_tokens && alike &&
                rows->response_len[seq] <= r->longest && rows->finished[seq] <= 1 && are_ids(r, rows, seq) &&
                (!rows->turns || is_sound_conversation(rows, seq));
    }
    return sound;
}

/* As many places of this rank's are free as prompts will come for them. */
static bool is_sound(gr_rollout *r, const gr_rows *rows)
{
    const struct gr_kept *k = r->kept;
    uint32_t n_free = 0;
    bool sound = true;
    find_own(r);
    for (uint32_t g = 0; g < r->work.groups && sound; g++)
        sound = !rows->born[g] || (g >= k->first && g < k->end && is_sound_group(r, rows, g));
    for (uint32_t g = k->first; g < k->end; g++) n_free += !rows->born[g];
    return sound && n_free == (drops(r) ? k->end - k->first - (k->enough - k->take) : k->take);
}

static gr_status check_file(gr_rollout *r, const gr_rows *rows, const char *path, gr_diag *d)
{
    const gr_rows_kept *k = rows->kept;
    const gr_loc at = {path, 0, 0};
    if (memcmp(k->magic, magic, sizeof(magic)))
        return gr_diag_error(d, at, GR_E_INVALID, "it holds no rows of a rollout");
    if (k->ranks != r->session->ranks || k->rank != r->session->rank)
        return gr_diag_error(
            d, at, GR_E_INVALID,
            "'%s' kept its rows on %u ranks, which each have their own: go on with as many, not %u",
            r->node->name, k->ranks, r->session->ranks);
    if (!same_bounds(&k->bounds, &r->work))
        return gr_diag_error(
            d, at, GR_E_INVALID,
            "'%s' kept rows of other bounds (batch, samples, max_tokens, over, lag): go on with "
            "those, or begin a new run from the model of this checkpoint",
            r->node->name);
    return is_sound(r, rows) ? GR_OK : gr_diag_error(d, at, GR_E_INVALID, "its rows are damaged");
}

static gr_status read_block(int fd, void *block, size_t bytes, const char *path, gr_diag *d)
{
    size_t n = 0;
    for (ssize_t got = 1; n < bytes && got; n += (size_t)got)
        if ((got = read(fd, (char *)block + n, bytes - n)) < 0)
            return gr_diag_error(d, (gr_loc){path, 0, 0}, GR_E_IO, "cannot read it: %s", strerror(errno));
    return GR_OK;
}

gr_status gr_kept_restore(void *state, void *block, const char *dir, gr_diag *d)
{
    gr_rollout *r = state;
    const size_t bytes = gr_rows_bytes(&r->work);
    const gr_rows rows = gr_rows_at(block, &r->work);
    memset(block, 0, bytes);
    char *path = dir ? path_of(r, dir) : NULL;
    gr_status st = GR_OK;
    int fd = -1;
    if (path && gr_path_exists(path)) st = gr_file_open(&fd, path, d);
    if (fd >= 0) {
        st = read_block(fd, block, bytes, path, d);
        close(fd);
        if (!st) st = check_file(r, &rows, path, d);
        if (!st && r->turns) gr_turns_restore(r, &rows);
        r->kept->begun = !st;
    }
    free(path);
    return st;
}
