/* ops/pass.c: packed passes: micro-batches, their arrays, the head's parts, costs. */
#include "ops/pass.h"

#include "ops/kernels/carried.h"
#include "ops/kernels/experts.h"
#include "ops/kernels/workspace.h"
#include "ops/base/configs.h"
#include "ops/model/fp8.h"

#include <assert.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

gr_micro_bounds gr_micro_bounds_of(const gr_rows_bounds *b, const gr_balance_bounds *most,
                                   uint32_t micro_tokens, uint32_t cut)
{
    gr_micro_bounds m = {.cut = cut};
    m.tokens = (uint32_t)GR_MIN((uint64_t)micro_tokens, most->tokens);
    m.seqs = GR_MIN(most->seqs,
                    GR_MAX(m.tokens / 2, 1u)); /* a sequence has a prompt and a response token at least */
    m.rows = (uint32_t)GR_MIN((uint64_t)m.tokens * b->response_tokens / (b->response_tokens + 1ull),
                              (uint64_t)m.seqs * b->response_tokens);
    m.own_rows = GR_MIN(m.rows, gr_micro_own(&m, m.tokens));
    /* as few as can be, so that two neighbours together exceed the bound, else they would be one */
    m.trips = (uint32_t)GR_MIN((uint64_t)most->seqs, 2 * most->tokens / m.tokens + 1);
    return m;
}

/* A unit of several sequences has one part more than these. */
void gr_micro_set_shares(gr_micro_bounds *b, uint32_t shares)
{
    if (!shares) return;
    b->shares = shares;
    b->seqs += b->seqs / 2;
}

uint32_t gr_node_shares(const gr_node *n)
{
    const gr_rows_bounds *b = &n->bounds;
    const uint32_t each = (b->seqs + GR_MAX(b->groups, 1u) - 1) / GR_MAX(b->groups, 1u),
                   shares = GR_MIN(n->shares, each);
    return shares > 1 ? shares : 0;
}

gr_pass_bounds gr_pass_bounds_of(const gr_micro_bounds *b, const gr_rows_bounds *rows, const gr_choices *how)
{
    return (gr_pass_bounds){.tokens = gr_micro_own(b, b->tokens),
                            .seqs = b->seqs + (b->cut > 1),
                            .length = rows->prompt_tokens + rows->response_tokens,
                            .threads = how->threads,
                            .cut = b->cut,
                            .shared = b->shares > 1,
                            .experts_again = how->experts_again,
                            .expert_run = how->expert_run};
}

static gr_micro layout(gr_workspace *c, const gr_micro_bounds *b)
{
    gr_micro m;
    const uint64_t own = gr_micro_own(b, b->tokens);
    m.ids = gr_workspace_bytes(c, own * sizeof(*m.ids));
    m.position = gr_workspace_bytes(c, own * b->cut * sizeof(*m.position));
    m.offset = gr_workspace_bytes(c, (b->seqs + (b->cut > 1) + 1ull) * sizeof(*m.offset));
    m.prefix = b->shares ? gr_workspace_bytes(c, (b->seqs + (b->cut > 1)) * sizeof(*m.prefix)) : NULL;
    m.row = gr_workspace_bytes(c, b->own_rows * sizeof(*m.row));
    m.target = gr_workspace_bytes(c, b->own_rows * sizeof(*m.target));
    m.routes = b->routes ? gr_workspace_bytes(c, own * b->routes * sizeof(*m.routes)) : NULL;
    m.part_ids = m.part_target = NULL;
    if (!b->slices) return m;
    m.part_ids = gr_workspace_bytes(c, b->slices * own * sizeof(*m.part_ids));
    m.part_target = gr_workspace_bytes(c, (uint64_t)b->slices * b->own_rows * sizeof(*m.part_target));
    return m;
}

uint64_t gr_micro_bytes(const gr_micro_bounds *b)
{
    gr_workspace c = {0};
    layout(&c, b);
    return c.used;
}

gr_micro gr_micro_at(void *block, const gr_micro_bounds *b)
{
    gr_workspace c = {.base = block};
    return layout(&c, b);
}

void gr_pass_open(gr_pass *p, uint32_t seqs)
{
    p->seqs = gr_seqs_new(seqs);
    p->own = gr_seqs_new(seqs);
    p->counted = gr_seqs_new(seqs);
    p->asked = gr_seqs_new(seqs);
    const size_t parts = seqs + seqs / 2; /* see gr_micro_set_shares */
    p->offset = gr_calloc(parts + 2, sizeof(*p->offset));
    p->prefix = gr_calloc(parts + 1, sizeof(*p->prefix));
    p->part = gr_calloc(parts + 1, sizeof(*p->part));
}

static void copy_seqs(gr_seqs *to, const gr_seqs *from)
{
    assert(from->n <= to->cap);
    to->n = from->n;
    memcpy(to->seq, from->seq, from->n * sizeof(*to->seq));
}

void gr_pass_begin(gr_pass *p, const gr_seqs *seqs)
{
    p->next = p->n_seqs = p->n_tokens = p->n_own = p->n_rows = p->limit = p->trips = 0;
    p->flow = (gr_stage_flow){0};
    copy_seqs(&p->seqs, seqs);
}

void gr_pass_release(gr_pass *p)
{
    free(p->offset);
    free(p->prefix);
    free(p->part);
    free(p->seqs.seq);
    free(p->own.seq);
    free(p->counted.seq);
    gr_balancer_free(p->balancer);
    free(p->asked.seq);
    gr_balancer_free(p->asked_balancer);
}

bool gr_pass_more(const gr_pass *p)
{
    return p->next < p->seqs.n;
}

static uint32_t seq_tokens(const gr_rows *r, uint32_t seq)
{
    return r->prompt_len[seq] + r->response_len[seq];
}

/* ---- order and bound ----------------------------------------------------------------------------------- */

bool gr_rows_longest_first(const gr_graph *g, const gr_node *rows)
{
    for (size_t i = 0; i < g->n_nodes; i++)
        if (g->nodes[i]->op->trains && g->nodes[i]->rows == rows &&
            ((const gr_update_cfg *)g->nodes[i]->cfg)->balance)
            return true;
    return false;
}

static int by_length(const void *a, const void *b, void *rows)
{
    uint32_t x = *(const uint32_t *)a, y = *(const uint32_t *)b, m = seq_tokens(rows, x),
             n = seq_tokens(rows, y);
    return m != n ? (m < n ? 1 : -1) : (x > y) - (x < y);
}

static void order(const gr_pass *p, const gr_rows *rows, gr_seqs *seqs)
{
    if (p->longest_first) qsort_r(seqs->seq, seqs->n, sizeof(*seqs->seq), by_length, (void *)(uintptr_t)rows);
}

/* Sequences that are taken together. */
typedef struct unit {
    uint32_t n, before, tokens; /* how many; tokens that come once for all of them; tokens in all */
} unit;

static bool same_prompt(const gr_rows *r, uint32_t a, uint32_t b)
{
    return r->group[a] == r->group[b] && r->prompt_len[a] == r->prompt_len[b] &&
           !memcmp(gr_rows_ids(r, a), gr_rows_ids(r, b), r->prompt_len[a] * sizeof(int32_t));
}

/* The one that begins at place i of the list. */
static unit unit_at(const gr_seqs *seqs, uint32_t i, const gr_rows *rows, uint32_t shares)
{
    const uint32_t first = seqs->seq[i];
    unit u = {1, 0, seq_tokens(rows, first)};
    if (rows->prompt_len[first] < 2) return u;
    for (; u.n < shares && i + u.n < seqs->n && same_prompt(rows, first, seqs->seq[i + u.n]); u.n++) {
        u.before = rows->prompt_len[first] - 1;
        u.tokens += seq_tokens(rows, seqs->seq[i + u.n]) - u.before;
    }
    return u;
}

static uint32_t unit_parts(const unit *u)
{
    return u->n + (u->before > 0);
}

/* Micro-batches that sequences take in their order, at most so many tokens each. */
static uint32_t count_cuts(const gr_seqs *seqs, const gr_rows *rows, const gr_micro_bounds *b,
                           uint32_t tokens)
{
    uint32_t cuts = 0, n_parts = 0, n_tokens = 0;
    for (uint32_t i = 0; i < seqs->n;) {
        const unit u = unit_at(seqs, i, rows, b->shares);
        if (!cuts || n_parts + unit_parts(&u) > b->seqs || n_tokens + u.tokens > tokens) {
            cuts++;
            n_parts = n_tokens = 0;
        }
        n_parts += unit_parts(&u);
        n_tokens += u.tokens;
        i += u.n;
    }
    return cuts;
}

static uint32_t largest_unit(const gr_seqs *seqs, const gr_rows *rows, uint32_t shares)
{
    uint32_t most = 0;
    for (uint32_t i = 0; i < seqs->n;) {
        const unit u = unit_at(seqs, i, rows, shares);
        most = GR_MAX(most, u.tokens);
        i += u.n;
    }
    return most;
}

/* The least bound that takes no more micro-batches than the one given. */
static uint32_t least_bound(const gr_pass *p, const gr_rows *rows, const gr_micro_bounds *b)
{
    uint32_t low = largest_unit(&p->seqs, rows, b->shares), high = b->tokens;
    const uint32_t cuts = count_cuts(&p->seqs, rows, b, high);
    while (low < high) {
        uint32_t middle = low + (high - low) / 2;
        if (count_cuts(&p->seqs, rows, b, middle) > cuts)
            low = middle + 1;
        else
            high = middle;
    }
    return high;
}

/* ---- one micro-batch ------------------------------------------------------------------------------------
 */

/* Tokens [from, end) of a sequence, behind those of another part, or of none: its own. */
static void take_part(gr_pass *p, uint32_t seq, uint32_t from, uint32_t end, uint32_t prefix)
{
    p->part[p->n_seqs].seq = seq;
    p->part[p->n_seqs].from = from;
    p->prefix[p->n_seqs] = prefix;
    p->offset[p->n_seqs++] = p->n_tokens;
    p->n_tokens += end - from;
}

static void take_unit(gr_pass *p, const gr_rows *rows, const unit *u)
{
    const uint32_t *seq = p->seqs.seq + p->next, before = p->n_seqs;
    if (u->before) take_part(p, seq[0], 0, u->before, before);
    for (uint32_t i = 0; i < u->n; i++)
        take_part(p, seq[i], u->before, seq_tokens(rows, seq[i]), u->before ? before : p->n_seqs);
    p->next += u->n;
}

static void take_seqs(gr_pass *p, const gr_rows *rows, const gr_micro_bounds *b)
{
    p->n_seqs = p->n_tokens = 0;
    while (p->next < p->seqs.n) {
        const unit u = unit_at(&p->seqs, p->next, rows, b->shares);
        if (p->n_seqs + unit_parts(&u) > b->seqs || p->n_tokens + u.tokens > p->limit) break;
        take_unit(p, rows, &u);
    }
    p->n_own = gr_micro_own(b, p->n_tokens);
    p->offset[p->n_seqs] = p->n_tokens;
    p->offset[p->n_seqs + 1] = p->n_own * b->cut;
    p->prefix[p->n_seqs] = p->n_seqs;
}

/* The tokens of part i that a rank of the context group has: [first, end) of its sequence. */
static void tokens_of(const gr_pass *p, uint32_t place, uint32_t i, uint32_t *first, uint32_t *end)
{
    const uint32_t from = p->offset[i], to = p->offset[i + 1], own = place * p->n_own;
    *first = GR_MIN(GR_MAX(own, from), to) - from + p->part[i].from;
    *end = GR_MIN(GR_MAX(own + p->n_own, from), to) - from + p->part[i].from;
}

static void own_tokens(const gr_pass *p, uint32_t i, uint32_t *first, uint32_t *end)
{
    tokens_of(p, p->place, i, first, end);
}

/* Response token j of a sequence is predicted by the token before it. Where the last tokens are asked, there
 * is a row of each last one. */
static void take_rows(gr_pass *p, const gr_rows *rows)
{
    p->n_rows = p->most_rows = 0;
    for (uint32_t i = 0; i < p->n_seqs; i++) {
        struct gr_pass_part *part = &p->part[i];
        const uint32_t prompt = rows->prompt_len[part->seq], n = seq_tokens(rows, part->seq);
        uint32_t first, end;
        own_tokens(p, i, &first, &end);
        const uint32_t from = GR_MAX(first + 1, prompt), to = GR_MIN(end + 1, n); /* they predict these */
        part->row = p->n_rows;
        part->first = rows->token_offset[part->seq];
        part->n = p->offset[i + 1] - p->offset[i] == n - part->from ? rows->response_len[part->seq] : 0;
        part->at = p->last ? part->seq : rows->token_offset[part->seq] + (from - prompt);
        p->n_rows += p->last ? first < end && end == n : from < to ? to - from : 0;
    }
    p->part[p->n_seqs] = (struct gr_pass_part){.row = p->n_rows};
}

static void fill_rows(const gr_pass *p, const gr_rows *rows, uint32_t i, gr_micro *k)
{
    const uint32_t seq = p->part[i].seq, n = seq_tokens(rows, seq),
                   count = p->part[i + 1].row - p->part[i].row,
                   token = p->offset[i] - p->part[i].from -
                           p->place * p->n_own, /* of its first; may be another rank's: wraps */
        from = p->last ? n - 1 : rows->prompt_len[seq] + p->part[i].at - rows->token_offset[seq] - 1;
    for (uint32_t j = 0; j < count; j++) {
        k->row[p->part[i].row + j] = token + from + j;
        if (!p->last) k->target[p->part[i].row + j] = gr_rows_ids(rows, seq)[from + j + 1];
    }
}

static void fill(const gr_pass *p, const gr_rows *rows, gr_micro *k)
{
    uint32_t n_ids = 0;
    for (uint32_t i = 0; i < p->n_seqs; i++) {
        const uint32_t seq = p->part[i].seq, n = p->offset[i + 1] - p->offset[i];
        uint32_t first, end;
        own_tokens(p, i, &first, &end);
        memcpy(k->ids + n_ids, gr_rows_ids(rows, seq) + first, (end - first) * sizeof(*k->ids));
        n_ids += end - first;
        for (uint32_t j = 0; j < n; j++) k->position[p->offset[i] + j] = (int32_t)(p->part[i].from + j);
        fill_rows(p, rows, i, k);
    }
    for (; n_ids < p->n_own; n_ids++) k->ids[n_ids] = 0;
    for (uint32_t j = p->n_tokens, end = p->offset[p->n_seqs + 1]; j < end; j++)
        k->position[j] = (int32_t)(j - p->n_tokens);
}

/* Sequences of the packed arrays: padding is one more. */
static uint32_t packed_seqs(const gr_pass *p)
{
    return p->n_seqs + (p->offset[p->n_seqs + 1] > p->n_tokens);
}

/* Of token `at` of this rank's. */
static void no_experts(const gr_pass *p, const gr_routes *r, uint32_t at, uint16_t *out)
{
    for (uint32_t l = 0; l < r->shape->layers; l++) {
        const uint64_t before = gr_model_routers(r->shape, l).choices,
                       k = gr_layer(r->shape, l)->experts.top_k;
        for (uint64_t j = 0; j < k; j++) out[before * p->n_own + at * k + j] = GR_NO_EXPERT;
    }
}

/* The last token of a sequence was sampled and not fed: it has none. */
static void fill_routes(const gr_pass *p, const gr_rows *rows, const gr_micro *k)
{
    const gr_routes *r = &rows->routes;
    uint32_t at = 0;
    for (uint32_t i = 0; i < p->n_seqs; i++) {
        const uint32_t seq = p->part[i].seq, fed = seq_tokens(rows, seq) - 1;
        uint32_t first, end;
        own_tokens(p, i, &first, &end);
        const uint32_t count = GR_MIN(end, fed) - GR_MIN(first, fed);
        gr_routes_read(r, &(gr_routed_pass){p->n_own, at, seq, first, count}, k->routes);
        at += end - first;
        if (end > fed && first < end) no_experts(p, r, at - 1, k->routes);
    }
    for (; at < p->n_own; at++) no_experts(p, r, at, k->routes); /* padding */
}

/* ---- parts of the vocabulary ------------------------------------------------------------------------------
 */

static uint32_t first_neighbour(const gr_pass *p, const gr_micro_bounds *b)
{
    return p->place / b->slices * b->slices;
}

/* The response tokens of sequence i that a rank's tokens predict: their ids, and how many. */
static uint32_t targets_of(const gr_pass *p, const gr_rows *rows, uint32_t place, uint32_t i,
                           const int32_t **ids)
{
    const uint32_t seq = p->part[i].seq, n = seq_tokens(rows, seq);
    uint32_t first, end;
    tokens_of(p, place, i, &first, &end);
    const uint32_t from = GR_MAX(first + 1, rows->prompt_len[seq]), to = GR_MIN(end + 1, n);
    *ids = gr_rows_ids(rows, seq) + from;
    return first < end && from < to ? to - from : 0;
}

/* Rows of the head that neighbours have; each asks for as many as the most of them. */
static void count_rows(gr_pass *p, const gr_rows *rows, const gr_micro_bounds *b)
{
    const int32_t *ids;
    for (uint32_t k = 0; k < b->slices; k++) {
        uint32_t n = 0;
        for (uint32_t i = 0; i < p->n_seqs; i++) n += targets_of(p, rows, first_neighbour(p, b) + k, i, &ids);
        p->most_rows = GR_MAX(p->most_rows, n);
    }
}

/* Relative to this rank's first one. */
static int32_t part_id(const gr_pass *p, const gr_micro_bounds *b, int32_t id)
{
    const int64_t at = id - (int64_t)(p->place % b->slices) * b->vocab;
    return at >= 0 && at < b->vocab ? (int32_t)at : -1;
}

static void fill_part_target(const gr_pass *p, const gr_rows *rows, const gr_micro_bounds *b, gr_micro *k)
{
    for (uint32_t r = 0; r < b->slices; r++) {
        int32_t *to = k->part_target + (uint64_t)r * b->own_rows, *end = to + b->own_rows;
        for (uint32_t i = 0; i < p->n_seqs; i++) {
            const int32_t *ids;
            const uint32_t n = targets_of(p, rows, first_neighbour(p, b) + r, i, &ids);
            for (uint32_t j = 0; j < n; j++) *to++ = part_id(p, b, ids[j]);
        }
        while (to < end) *to++ = -1;
    }
}

static const int32_t *ids_of(const gr_pass *p, const gr_rows *rows, uint32_t i)
{
    return gr_rows_ids(rows, p->part[i].seq) + p->part[i].from;
}

/* Of neighbours, whose tokens follow each other; padding is token 0. */
static void fill_part_ids(const gr_pass *p, const gr_rows *rows, const gr_micro_bounds *b, gr_micro *k)
{
    const uint32_t low = first_neighbour(p, b) * p->n_own, high = low + b->slices * p->n_own;
    for (uint32_t i = 0, at = low; at < high; i++) {
        const bool there = i < p->n_seqs;
        const uint32_t from = there ? p->offset[i] : p->n_tokens, end = there ? p->offset[i + 1] : high;
        for (; at < GR_MIN(end, high); at++)
            k->part_ids[at - low] = part_id(p, b, there ? ids_of(p, rows, i)[at - from] : 0);
    }
}

static void write_parts(const gr_pass *p, const gr_rows *rows, const gr_micro_bounds *b, gr_queue *q,
                        const gr_micro *device, gr_micro *host)
{
    fill_part_ids(p, rows, b, host);
    gr_device_write(q, device->part_ids, host->part_ids,
                    (uint64_t)b->slices * p->n_own * sizeof(*host->part_ids));
    if (p->last) return;
    fill_part_target(p, rows, b, host);
    gr_device_write(q, device->part_target, host->part_target,
                    (uint64_t)b->slices * b->own_rows * sizeof(*host->part_target));
}

static void cut(gr_pass *p, const gr_rows *rows, const gr_micro_bounds *b)
{
    if (!p->limit && p->seqs.n) {
        order(p, rows, &p->seqs);
        p->limit = least_bound(p, rows, b);
    }
    take_seqs(p, rows, b);
    take_rows(p, rows);
    if (b->slices) count_rows(p, rows, b);
}

/* A pass is cut by the least bound of tokens that makes as few micro-batches as the one given. */
uint32_t gr_pass_count(gr_pass *p, const gr_rows *rows, const gr_micro_bounds *b, const gr_seqs *seqs)
{
    copy_seqs(&p->counted, seqs);
    order(p, rows, &p->counted);
    return count_cuts(&p->counted, rows, b, b->tokens);
}

void gr_pass_next(gr_pass *p, const gr_rows *rows, const gr_micro_bounds *b, gr_queue *q, void *packed,
                  void *staging)
{
    cut(p, rows, b);
    gr_micro host = gr_micro_at(staging, b), device = gr_micro_at(packed, b);
    const uint32_t n_seqs = packed_seqs(p);
    fill(p, rows, &host);
    memcpy(host.offset, p->offset, (n_seqs + 1) * sizeof(*p->offset));
    gr_device_write(q, device.ids, host.ids, p->n_own * sizeof(*host.ids));
    gr_device_write(q, device.position, host.position, p->offset[n_seqs] * sizeof(*host.position));
    gr_device_write(q, device.offset, host.offset, (n_seqs + 1) * sizeof(*host.offset));
    if (b->shares) memcpy(host.prefix, p->prefix, n_seqs * sizeof(*p->prefix));
    if (b->shares) gr_device_write(q, device.prefix, host.prefix, n_seqs * sizeof(*host.prefix));
    gr_device_write(q, device.row, host.row, p->n_rows * sizeof(*host.row));
    if (!p->last) gr_device_write(q, device.target, host.target, p->n_rows * sizeof(*host.target));
    if (b->slices) write_parts(p, rows, b, q, &device, &host);
    if (!b->routes) return;
    fill_routes(p, rows, &host);
    gr_device_write(q, device.routes, host.routes, (uint64_t)p->n_own * b->routes * sizeof(*host.routes));
}

bool gr_pass_turn(gr_pass *p, const gr_node *n, uint32_t rank, bool back)
{
    const gr_stages s = gr_stages_of(n);
    if (s.chunks < 2) return true;
    gr_stage_flow_next(&p->flow, &s, gr_stage_of(n, rank), p->trips++, back, &p->next, p->n_own);
    return p->flow.works;
}

uint32_t gr_pass_goes(const gr_pass *p, const gr_node *n)
{
    return gr_node_interleaves(n) ? p->flow.out : p->n_own;
}

uint32_t gr_pass_comes(const gr_pass *p, const gr_node *n, uint32_t rank, bool back)
{
    const gr_stages s = gr_stages_of(n);
    const uint32_t at = gr_stage_of(n, rank);
    const bool begins = back ? gr_stage_flow_last(&p->flow, &s, at) : gr_stage_flow_first(&p->flow, &s, at);
    return s.chunks < 2 || (p->flow.works && !begins) ? p->n_own : 0;
}

/* The sequence that a row of the head is of: the last one that begins there or before, and has rows. */
static uint32_t part_of(const gr_pass *p, uint32_t row)
{
    uint32_t low = 0, high = p->n_seqs; /* part[low].row <= row < part[high].row */
    while (high - low > 1) {
        uint32_t middle = low + (high - low) / 2;
        if (p->part[middle].row <= row)
            low = middle;
        else
            high = middle;
    }
    return low;
}

bool gr_pass_chunk(const gr_pass *p, uint32_t most, gr_chunk *c)
{
    uint32_t row = c->row + c->n;
    if (row >= p->n_rows) return false;
    uint32_t i = part_of(p, row), at = p->part[i].at + (row - p->part[i].row), end = p->part[i + 1].row;
    for (i++; i < p->n_seqs && end - row < most && p->part[i].at == at + (end - row); i++)
        end = p->part[i + 1].row;
    *c = (gr_chunk){row, GR_MIN(most, end - row), at};
    return true;
}

bool gr_pass_window(const gr_pass *p, uint32_t most, gr_window *w)
{
    const uint32_t first = w->first + w->each;
    if (first >= p->most_rows) return false;
    w->first = first;
    w->each = GR_MIN(most, p->most_rows - first);
    w->n = p->n_rows > first ? GR_MIN(p->n_rows - first, w->each) : 0;
    return true;
}

bool gr_pass_run(const gr_pass *p, const gr_window *w, gr_chunk *c)
{
    const uint32_t row = c->row + c->n, end = w->first + w->n;
    return row < end && gr_pass_chunk(p, end - row, c);
}

bool gr_pass_whole(const gr_pass *p, gr_chunk *c)
{
    uint32_t i = c->row;
    c->at = p->part[i].first;
    for (c->n = 0; i < p->n_seqs && p->part[i].first == c->at + c->n; i++) c->n += p->part[i].n;
    const bool more = i > c->row;
    c->row = i;
    return more;
}

gr_packed gr_pass_packed(const gr_pass *p, const gr_micro_bounds *b, const gr_micro *k)
{
    return (gr_packed){.n_tokens = p->n_own,
                       .n_seqs = packed_seqs(p),
                       .ids = k->ids,
                       .offset = k->offset,
                       .host_offset = p->offset,
                       .prefix = k->prefix,
                       .host_prefix = k->prefix ? p->prefix : NULL,
                       .position = k->position,
                       .cut = b->cut};
}

gr_embed_call gr_pass_embed(const gr_pass *p, const gr_micro_bounds *b, const gr_micro *k)
{
    return (gr_embed_call){
        .slices = b->slices, .tokens = p->n_own, .most = gr_micro_own(b, b->tokens), .ids = k->part_ids};
}

gr_head_window gr_pass_head(const gr_micro_bounds *b, const gr_micro *k, const gr_window *w,
                            float inv_temperature)
{
    return (gr_head_window){.n = w->n,
                            .each = w->each,
                            .row = k->row + w->first,
                            .target = k->part_target + w->first,
                            .stride = b->own_rows,
                            .inv_temperature = inv_temperature};
}

gr_head_rows gr_pass_rows(const gr_micro *k, uint32_t first, uint32_t n, float inv_temperature, bool keep)
{
    return (gr_head_rows){.n = n,
                          .row = k->row + first,
                          .target = k->target + first,
                          .inv_temperature = inv_temperature,
                          .keep = keep};
}

uint64_t gr_hidden_bytes(const gr_kernels *k, const gr_model_shape *s, uint64_t tokens)
{
    return tokens * s->hidden * gr_dtype_size(k->dtype);
}

uint32_t gr_carried_object(gr_tasks *p, const gr_kernels *k, const gr_model_shape *s, uint64_t tokens,
                           bool packed, const char *pass, const char *what)
{
    const uint64_t bytes = gr_carried_bytes(k, s, tokens, packed);
    return bytes ? gr_tasks_temp(p, GR_CAT_ACTIVATIONS, bytes, "%s%s", pass, what) : GR_NONE;
}

bool gr_carried_begins(const gr_model_shape *s, uint32_t l)
{
    return l == 0 && !s->per_layer.vocab;
}

const gr_model_shape *gr_node_shape(const gr_node *n)
{
    if (gr_reads_rollout(n) && n->model->precision.kv) return &n->model->precision.kv_shape;
    if (gr_node_fp8(n)) return &n->model->precision.shape;
    if (gr_reads_rollout(n) && gr_slicing_parts(n->model->sharding.rollout) > 1)
        return &n->model->sharding.slice;
    return gr_mesh_any(&n->placement.mesh) ? &n->model->sharding.train_slice : &n->model->shape;
}

uint32_t gr_node_vocab_parts(const gr_node *n)
{
    const uint32_t part = gr_node_shape(n)->vocab;
    return part ? n->model->shape.vocab / part : 1;
}

void gr_micro_set_parts(gr_micro_bounds *b, const gr_node *n)
{
    if (gr_node_vocab_parts(n) < 2) return;
    b->slices = gr_node_vocab_parts(n);
    b->vocab = gr_node_shape(n)->vocab;
}

/* Tokens of a sequence of full length, as its unit has them on average. */
static double length_of(const gr_micro_bounds *m, const gr_rows_bounds *b)
{
    const double length = (double)b->prompt_tokens + b->response_tokens;
    return m->shares ? length - (double)(b->prompt_tokens - 1) * (m->shares - 1) / m->shares : length;
}

/* Twice the keys that a token of such a unit sees on average. */
static double seen_of(const gr_micro_bounds *m, const gr_rows_bounds *b)
{
    const double length = (double)b->prompt_tokens + b->response_tokens, once = b->prompt_tokens - 1.0,
                 own = length - once, n = m->shares;
    return m->shares ? (once * once + n * own * (2 * once + own)) / (once + n * own) : length;
}

gr_micro_cost gr_micro_cost_of(const gr_micro_bounds *m, const gr_rows_bounds *b, uint32_t seqs)
{
    const uint32_t together = GR_MAX(m->shares, 1u);
    const double length = length_of(m, b);
    const uint32_t each = GR_MAX((uint32_t)(m->tokens / (length * together)) * together, 1u),
                   trips = GR_MAX((seqs + each - 1) / each, 1u);
    return (gr_micro_cost){trips, seqs * length / trips, (double)seqs * b->response_tokens / trips,
                           seen_of(m, b)};
}

/* Multiply-adds of a query and a key that it sees, for a head and halved: of latent attention with values
 * filled up to the width of keys, or absorbed (ops/kernels/latent.h). */
static double head_width(const gr_layer_desc *d, bool absorbed)
{
    const gr_latent_desc *l = &d->latent;
    if (d->mixer != GR_MIXER_LATENT) return d->attention.head_dim;
    return absorbed ? l->kv_rank + 0.5 * l->rope_dim : gr_latent_head(l);
}

/* Values of the gated delta rule that go to memory and back for a token: what it is given, the convolution's
 * output, and its own before and behind its norm. */
static double delta_values(const gr_layer_desc *d)
{
    const gr_delta_desc *e = &d->delta;
    if (d->mixer != GR_MIXER_DELTA) return 0;
    return 2.0 * (gr_delta_in(e) + gr_delta_channels(e)) + 4.0 * gr_delta_out(e);
}

/* And the rule itself, the convolution, gates and norms around it: bench_delta on an H200, 32,768 tokens of
 * 4,096 values each, forward 2.69 ms and back 8.98 (docs/PERFORMANCE.md), as the elements that memory moves
 * in that time. */
static double delta_beside(const gr_layer_desc *d, bool backward)
{
    return d->mixer == GR_MIXER_DELTA ? (backward ? 140.0 : 42.0) * gr_delta_out(&d->delta) : 0;
}

/* Of all experts of a layer, the shared one among them. */
static double experts_elems(const gr_layer_desc *d, double hidden)
{
    const gr_experts_desc *e = &d->experts;
    return d->mlp == GR_MLP_EXPERTS ? 3.0 * hidden * ((double)gr_experts_held(e) * e->inner + e->shared_inner)
                                    : 0;
}

/* What goes into a layer's products in FP8 is rounded as it is made (gr_layer_ops.norm_round and the like),
 * but for attention's output behind a gate or of heads that are no blocks. That of packed passes is not
 * either, which is nothing beside their rows. Back, gradients of what products gave are rounded by
 * themselves, and for gradients of weights both factors. */
enum { FP8_LAUNCHES_BACK = 4, FP8_GRADIENT_LAUNCHES = 8 };

static double roundings(const gr_model_shape *s, const gr_attention_desc *a, bool backward)
{
    if (!s->fp8) return 0;
    if (backward) return FP8_LAUNCHES_BACK + (s->fp8_gradients ? FP8_GRADIENT_LAUNCHES : 0);
    return a->gate || a->head_dim % GR_FP8_BLOCK;
}

void gr_layer_cost(gr_task *w, const gr_kernels *k, const gr_model_shape *s, uint32_t layer, double tokens,
                   double length, double times)
{
    const gr_layer_desc *d = gr_layer(s, layer);
    const uint32_t inner = d->dense.inner;
    const double apart = 3.0 * s->hidden * (gr_layer_inner(d) - inner); /* gr_experts_price has it */
    const double projections = 2.0 * ((double)gr_layer_token_macs(d, s->hidden) - apart);
    double weights = (double)gr_bucket_elems(s, 1 + layer) - experts_elems(d, s->hidden),
           activations = tokens * (8.0 * s->hidden + 4.0 * inner + delta_values(d));
    if (s->fp8)
        weights = (double)gr_fp8_bucket_bytes(s, 1 + layer, gr_dtype_size(k->dtype)) /
                  (double)gr_dtype_size(k->dtype);
    w->cost.flops = times * tokens * projections;
    w->cost.fp8 = !s->fp8                          ? 0
                  : times > 1 && !s->fp8_gradients ? w->cost.flops / 2 /* gradients of weights are not */
                                                   : w->cost.flops;
    w->cost.attention = times * tokens * 2.0 * gr_layer_keys(d, length) *
                        (d->mixer == GR_MIXER_LATENT ? d->latent.heads : d->attention.heads) *
                        head_width(d, k->invariant && times <= 1) * (times > 1 ? 1 : k->attention_cost);
    w->cost.length = (uint32_t)GR_MAX(lround(length), 1);
    w->cost.rows = (uint32_t)GR_MAX(lround(tokens), 1);
    w->cost.width = s->hidden;
    w->cost.backward = times > 1;
    w->cost.unordered = k->unordered;
    w->cost.bytes = times * (double)gr_dtype_size(k->dtype) * (weights + activations);
    w->cost.moved = tokens * (double)gr_dtype_size(k->dtype) * delta_beside(d, times > 1);
    w->cost.launches = roundings(s, &d->attention, times > 1);
    if (s->parts < 2) return;
    w->comm.peers = s->parts;
    w->comm.mesh = (gr_mesh){.size = {[GR_AXIS_TENSOR] = s->parts}};
    w->comm.sums = 2;
    w->comm.summed = 2 * tokens * s->hidden * (double)gr_dtype_size(k->dtype) * 2 * (s->parts - 1) / s->parts;
}

/* Kernels: the router, its choice, three that sort, a gather, two products around an activation, the sum;
 * and back: sorting, two gathers, an activation, four products, two of the router's and what it is given, the
 * sum. */
enum { EXPERT_LAUNCHES = 10, EXPERT_LAUNCHES_BACK = 14 };

static void times_experts(gr_experts_cost *c, double times)
{
    double *const all[] = {&c->products, &c->gradients, &c->weights, &c->sums, &c->moved, &c->launches};
    for (size_t i = 0; i < GR_LEN(all); i++) *all[i] *= times;
}

/* So many tokens at once through experts of which each goes to some. */
typedef struct mixture {
    double count, top_k, inner, hidden, tokens, size, grad_size; /* of elements; grad_size 0: forward */
    double holders; /* each with tokens of its own, and with count experts of as many times more; 1: alone */
} mixture;

/* Experts that get a token: each token leaves each of them out with the same chance. */
static double touched(const mixture *m)
{
    return m->count * (1 - pow(1 - m->top_k / (m->count * m->holders), m->tokens * m->holders));
}

/* What holders do more: rows that came are sorted and put back into their order; backward they come again.
 */
static void add_exchange(gr_experts_cost *c, const mixture *m)
{
    const bool back = m->grad_size > 0;
    const double rows = m->tokens * m->top_k;
    if (m->holders < 2) return;
    c->moved += m->size * rows * (back ? 6 : 4) * m->hidden;
    c->launches += back ? EXPERT_LAUNCHES_BACK : EXPERT_LAUNCHES;
}

static void add_mixture(gr_experts_cost *c, const mixture *m)
{
    const bool back = m->grad_size > 0;
    const double rows = m->tokens * m->top_k, flops = 6 * rows * m->hidden * m->inner,
                 elems = 3 * touched(m) * m->hidden * m->inner;
    c->products += flops;
    c->gradients += back ? flops : 0;
    c->weights += elems * m->size;
    c->sums += 2 * elems * m->grad_size;
    c->moved += m->size * (back ? rows * (3 * m->hidden + 6 * m->inner) + 4 * m->tokens * m->hidden
                                : rows * (2 * m->hidden + 3 * m->inner) + 3 * m->tokens * m->hidden);
    c->launches += back ? EXPERT_LAUNCHES_BACK : EXPERT_LAUNCHES;
}

void gr_experts_price(gr_task *w, const gr_kernels *k, const gr_model_shape *s, uint32_t layer, double tokens,
                      uint32_t run, uint64_t grad_size)
{
    const gr_layer_desc *d = gr_layer(s, layer);
    const gr_experts_desc *e = &d->experts;
    const double runs = ceil(fmax(tokens, 1) / (run ? run : GR_EXPERT_RUN)),
                 size = (double)gr_dtype_size(k->dtype);
    if (d->mlp != GR_MLP_EXPERTS) return;
    const mixture chosen = {gr_experts_held(e), e->top_k, e->inner,          s->hidden,
                            tokens / runs,      size,     (double)grad_size, GR_MAX(e->holders, 1u)},
                  shared = {1, 1, e->shared_inner, s->hidden, tokens / runs, size, (double)grad_size, 1};
    gr_experts_cost *c = &w->cost.experts;
    *c = (gr_experts_cost){.rows = chosen.tokens * chosen.top_k / touched(&chosen),
                           .width = (uint32_t)lround(sqrt((double)s->hidden * e->inner))};
    add_mixture(c, &chosen);
    add_exchange(c, &chosen);
    if (e->shared_inner) add_mixture(c, &shared);
    times_experts(c, runs);
}

void gr_experts_price_again(gr_task *w, const gr_kernels *k, const gr_model_shape *s, uint32_t layer,
                            double tokens)
{
    const gr_experts_desc *e = &gr_layer(s, layer)->experts;
    const double rows = tokens * e->top_k, size = (double)gr_dtype_size(k->dtype);
    gr_experts_cost *c = &w->cost.experts;
    c->products += 4 * rows * s->hidden * e->inner;
    c->weights += c->weights * 2 / 3;
    c->moved += size * rows * (2 * s->hidden + 2 * e->inner);
    c->launches += 2;
}

double gr_expert_tokens(const gr_node *n, double tokens)
{
    const gr_mesh *m = &n->placement.mesh;
    const bool divided = gr_mesh_size(m, GR_AXIS_EXPERT) > 1;
    return tokens / (divided ? gr_mesh_sharers(m) : gr_mesh_size(m, GR_AXIS_CONTEXT));
}

/* Ranks send each other all but their own part of what a mixer's heads read and give; back likewise. */
static void context_cost(gr_task *w, const gr_kernels *k, const gr_layer_desc *d, uint32_t cut, double tokens)
{
    const double values = (double)gr_layer_cut_values(d, cut);
    w->comm.sums += 2;
    w->comm.summed += tokens / cut * values * (double)gr_dtype_size(k->dtype) * (cut - 1) / cut;
}

/* Each half gathers what it reads, and scatters the sum of what it gives; back it gathers twice. Divided
 * experts are not among them. */
static void tensor_cost(gr_task *w, const gr_kernels *k, const gr_layer_desc *d, uint32_t hidden,
                        uint32_t parts, double tokens, bool backward)
{
    const double each = (backward ? 3 : 2) * (d->experts.holders ? 1 : 2);
    w->comm.sums += each;
    w->comm.summed += each * tokens * hidden * (double)gr_dtype_size(k->dtype) * (parts - 1) / parts;
}

/* Rows of the choices whose experts are elsewhere go there and come back; backward, two go and one comes
 * back, and the first product is made again. */
static void expert_cost(gr_task *w, const gr_kernels *k, const gr_layer_desc *d, uint32_t hidden,
                        double tokens, bool backward)
{
    const gr_experts_desc *e = &d->experts;
    const double rows = tokens * e->top_k;
    if (!e->holders) return;
    w->comm.sums += backward ? 7 : 4;
    w->comm.exchanged +=
        (backward ? 3 : 2) * rows * hidden * (double)gr_dtype_size(k->dtype) * (e->holders - 1) / e->holders;
}

void gr_layer_mesh_cost(gr_task *w, const gr_kernels *k, const gr_node *n, uint32_t layer, double tokens,
                        double length, double times)
{
    const gr_mesh *m = &n->placement.mesh;
    const gr_model_shape *s = gr_node_shape(n);
    const uint32_t cut = gr_mesh_size(m, GR_AXIS_CONTEXT), parts = gr_mesh_size(m, GR_AXIS_TENSOR);
    gr_layer_cost(w, k, s, layer, tokens / cut, length, times);
    if (!gr_mesh_any(m)) return;
    w->comm.mesh = *m;
    w->comm.mesh.size[GR_AXIS_PIPELINE] = 1; /* stages meet in exchanges of their own */
    w->comm.mesh.size[GR_AXIS_EXPERT] = GR_MAX(gr_layer(s, layer)->experts.holders, 1u);
    w->comm.peers = gr_node_cut(n) > 1 ? gr_node_cut(n) : w->comm.mesh.size[GR_AXIS_EXPERT];
    w->comm.sums = w->comm.summed = 0; /* of a slice they were for a sum of whole rows */
    if (cut > 1) context_cost(w, k, gr_layer(s, layer), cut, tokens);
    if (parts > 1) tensor_cost(w, k, gr_layer(s, layer), s->hidden, parts, tokens / cut, times > 1);
    expert_cost(w, k, gr_layer(s, layer), s->hidden, gr_expert_tokens(n, tokens), times > 1);
}

void gr_per_layer_cost(gr_task *w, const gr_kernels *k, const gr_model_shape *s, double tokens, double times)
{
    const double all = gr_model_per_layer(s), projection = all * s->hidden, products = times > 1 ? 3 : 1;
    w->cost.flops = products * 2 * tokens * projection;
    w->cost.bytes = (double)gr_dtype_size(k->dtype) * (products * projection + times * 6 * tokens * all);
    w->cost.rows = (uint32_t)GR_MAX(lround(tokens), 1);
    w->cost.width = s->hidden;
    w->cost.backward = times > 1;
}

void gr_head_cost(gr_task *w, const gr_kernels *k, const gr_model_shape *s, double rows, double times)
{
    double outputs = s->head == GR_HEAD_VALUE ? 1 : s->vocab;
    w->cost.head = times * 2.0 * rows * s->hidden * outputs;
    w->cost.logits = s->head == GR_HEAD_VALUE ? 0 : (times > 1 ? 2 : 1) * rows * outputs;
    w->cost.rows = (uint32_t)GR_MAX(lround(rows), 1);
    w->cost.width = s->hidden;
    w->cost.backward = times > 1;
    w->cost.bytes =
        times * ((double)gr_dtype_size(k->dtype) * s->hidden * outputs + sizeof(float) * 2 * rows * outputs);
}

static void among_slices(gr_task *w, uint32_t slices, double sums, double bytes)
{
    w->comm.sums += sums;
    w->comm.summed += bytes * (slices - 1) / slices;
    if (w->comm.peers) return;
    w->comm.peers = slices;
    w->comm.mesh = (gr_mesh){.size = {[GR_AXIS_TENSOR] = slices}};
}

/* Hidden states are gathered, and what is known of each row in each part; back what the loss says of each
 * row, and the gradients of hidden states are scattered. */
void gr_head_exchange_cost(gr_task *w, const gr_kernels *k, const gr_node *n, double rows, uint32_t head_rows,
                           bool backward)
{
    const uint32_t slices = gr_node_vocab_parts(n);
    const double windows = ceil(fmax(rows / slices, 1) / head_rows),
                 states = rows * n->model->shape.hidden * (double)gr_dtype_size(k->dtype),
                 numbers = rows * slices * GR_HEAD_PART * sizeof(float);
    if (slices < 2) return;
    among_slices(w, slices, 2 * windows, states + numbers);
    if (backward) among_slices(w, slices, 2 * windows, states + rows * sizeof(float));
}

void gr_embed_exchange_cost(gr_task *w, const gr_kernels *k, const gr_node *n, double tokens)
{
    const uint32_t slices = gr_node_vocab_parts(n);
    const double states = tokens * n->model->shape.hidden * (double)gr_dtype_size(k->dtype);
    if (slices < 2) return;
    among_slices(w, slices, 1, states);
    w->cost.bytes += 2 * states;
}

void gr_cost_times(gr_task *w, double times)
{
    double *const all[] = {&w->cost.flops,  &w->cost.fp8,       &w->cost.bytes,  &w->cost.attention,
                           &w->cost.kv,     &w->cost.head,      &w->cost.logits, &w->comm.sums,
                           &w->comm.summed, &w->comm.exchanged, &w->cost.moved,  &w->cost.launches};
    for (size_t i = 0; i < GR_LEN(all); i++) *all[i] *= times;
    times_experts(&w->cost.experts, times);
}

static void add_experts(gr_experts_cost *to, const gr_experts_cost *part)
{
    if (!(part->rows > 0)) return;
    to->products += part->products;
    to->gradients += part->gradients;
    to->weights += part->weights;
    to->sums += part->sums;
    to->moved += part->moved;
    to->launches += part->launches;
    to->rows = part->rows;
    to->width = part->width;
}

void gr_cost_add(gr_task *w, const gr_task *part)
{
    w->cost.flops += part->cost.flops;
    w->cost.fp8 += part->cost.fp8;
    w->cost.bytes += part->cost.bytes;
    w->cost.attention += part->cost.attention;
    w->cost.kv += part->cost.kv;
    w->cost.moved += part->cost.moved;
    w->cost.launches += part->cost.launches;
    add_experts(&w->cost.experts, &part->cost.experts);
    w->comm.sums += part->comm.sums;
    w->comm.summed += part->comm.summed;
    w->comm.exchanged += part->comm.exchanged;
    w->cost.length = part->cost.length;
    w->cost.rows = part->cost.rows;
    w->cost.width = part->cost.width;
    w->comm.peers = part->comm.peers;
    w->comm.mesh = part->comm.mesh;
}

gr_value_head gr_value_head_at(const gr_kernels *k, const gr_model_shape *s, const void *norm_bucket)
{
    const char *last = norm_bucket;
    uint64_t bias = gr_tensor_offset(s, s->layers + 1, GR_T_VALUE_BIAS), size = gr_dtype_size(k->dtype);
    return (gr_value_head){.norm = last + size * gr_tensor_offset(s, s->layers + 1, GR_T_NORM),
                           .weight = last + size * gr_tensor_offset(s, s->layers + 1, GR_T_VALUE),
                           .bias = bias == UINT64_MAX ? NULL : last + size * bias};
}

gr_value_grads gr_value_grads_at(const gr_model_shape *s, void *norm_bucket, gr_dtype grads)
{
    char *last = norm_bucket;
    const uint64_t norm = gr_tensor_offset(s, s->layers + 1, GR_T_NORM),
                   bias = gr_tensor_offset(s, s->layers + 1, GR_T_VALUE_BIAS), size = gr_dtype_size(grads);
    return (gr_value_grads){.type = grads,
                            .norm = norm == UINT64_MAX ? NULL : last + size * norm,
                            .weight = last + size * gr_tensor_offset(s, s->layers + 1, GR_T_VALUE),
                            .bias = bias == UINT64_MAX ? NULL : last + size * bias};
}

const void *gr_head_matrix(const gr_kernels *k, const gr_model_shape *s, const void *embed,
                           const void *norm_bucket)
{
    uint64_t offset;
    gr_model_head_bucket(s, &offset);
    return (const char *)(s->tied ? embed : norm_bucket) + offset * gr_dtype_size(k->dtype);
}

static gr_loc model_at(const gr_node *n)
{
    const gr_value *v = gr_value_get(n->value, "model");
    return v ? v->at : n->at;
}

void gr_check_head(const gr_node *n, gr_head head, gr_diag *d)
{
    const gr_model *m = n->model;
    if (!m->head_known || m->shape.head == head) return;
    if (head == GR_HEAD_VALUE)
        gr_diag_error(
            d, model_at(n), GR_E_INVALID,
            "model '%s' has no value head, which op %s asks: 'head: value' among its keys gives it one",
            m->name, n->op->name);
    else
        gr_diag_error(d, model_at(n), GR_E_INVALID,
                      "model '%s' has a value head and no output matrix: op %s cannot ask it for tokens",
                      m->name, n->op->name);
}

void gr_check_micro_tokens(const gr_node *n, uint32_t micro_tokens, const gr_rows_bounds *b, gr_diag *d)
{
    uint32_t longest = b->prompt_tokens + b->response_tokens;
    if (micro_tokens && micro_tokens < longest)
        gr_diag_error(d, n->at, GR_E_INVALID, "micro_tokens: %u, but a sequence may have %u tokens",
                      micro_tokens, longest);
}
