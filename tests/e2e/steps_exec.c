/* tests/e2e/steps_exec.c: `graphrun exec` on the CPU device with a host form of ops/kernels/steps.h.
 *
 * usage: [GR_PREFILL=N] steps_exec GRAPH OUT [KEY=VALUE ...]
 * N: tokens of prompts that are read at once.
 * The CPU device is batch-invariant: so a run whose rollout goes by chunks of steps must have the bits of one
 * that goes step by step. What the host orders is checked on the way; a wrong order ends the program.
 */
#include <assert.h>
#include <stdio.h>
#include <stdlib.h>

#include "ops/drafts.h"
#include "ops/kernels/workspace.h"
#include "ops/kernels/steps.h"
#include "tests/e2e/exec_with.h"

struct gr_steps {
    gr_steps_bounds b;
    gr_model_shape shape;
    gr_steps_rules rules;
    gr_slot_change *slot;   /* [slots] what each one runs; from GR_SLOT_CLEAR: nothing */
    uint32_t *table, *held; /* held: the place of each slot's state, where there are any */
    gr_steps_input input[2];
    int32_t *report_id[2];
    float *report_logprob[2];
    uint16_t *report_choices[2];
    /* where tokens are drafted */
    int32_t *text;           /* [seqs, max_length] */
    uint32_t *said, *prompt; /* [seqs] tokens of a text, and those that others do not draft */
    gr_draft_record *drafts; /* [slots] */
    gr_draft_source *sources;
    int32_t *ahead; /* [slots, tokens] drafts of a layer for the next step; below 0: none */
    /* of one step, rows of slots that run side by side */
    int32_t *ids, *drawn;
    uint32_t *live, *offset, *cached, *tables, *row, *places; /* live: which rows they are */
    uint32_t (*draw)[2];
    float *logprob;
    uint16_t *choices; /* of experts, where they are recorded */
    unsigned long long steps, slots_run, slots_live, moves, clears;
};

static uint32_t each(const gr_steps *s)
{
    return 1 + s->b.drafts.tokens;
}

static int32_t *ahead_of(const gr_steps *s, uint32_t slot)
{
    return s->ahead + (size_t)slot * s->b.drafts.tokens;
}

static void layout_device(gr_workspace *c, gr_steps *s)
{
    const uint64_t n = gr_steps_rows(&s->b), word = sizeof(uint32_t),
                   texts = gr_steps_look_up(&s->b) ? s->b.drafts.seqs : 0;
    s->slot = gr_workspace_bytes(c, s->b.slots * sizeof(*s->slot));
    s->table = gr_workspace_bytes(c, s->b.slots * s->b.stride * word);
    s->held = gr_workspace_bytes(c, s->b.slots * word);
    s->text = gr_workspace_bytes(c, texts * s->b.max_length * word);
    s->said = gr_workspace_bytes(c, texts * word);
    s->prompt = gr_workspace_bytes(c, texts * word);
    s->drafts = gr_workspace_bytes(c, s->b.slots * sizeof(*s->drafts));
    s->sources = gr_workspace_bytes(c, (texts + 1) * sizeof(*s->sources));
    s->ahead = gr_workspace_bytes(c, s->b.slots * s->b.drafts.tokens * word);
    s->places = gr_workspace_bytes(c, n * word);
    s->ids = gr_workspace_bytes(c, n * word);
    s->drawn = gr_workspace_bytes(c, n * word);
    s->live = gr_workspace_bytes(c, n * word);
    s->offset = gr_workspace_bytes(c, (n + 1) * word);
    s->cached = gr_workspace_bytes(c, n * word);
    s->tables = gr_workspace_bytes(c, n * s->b.stride * word);
    s->row = gr_workspace_bytes(c, n * word);
    s->draw = gr_workspace_bytes(c, n * sizeof(*s->draw));
    s->logprob = gr_workspace_bytes(c, n * word);
    s->choices = gr_workspace_bytes(c, n * s->b.choices * sizeof(*s->choices));
}

static void layout_host(gr_workspace *c, gr_steps *s)
{
    const uint64_t n = s->b.slots, rows = gr_steps_rows(&s->b), word = sizeof(uint32_t);
    for (int i = 0; i < 2; i++) {
        s->input[i].change = gr_workspace_bytes(c, n * sizeof(gr_slot_change));
        s->input[i].table = gr_workspace_bytes(c, n * s->b.stride * word);
        s->input[i].held = s->b.states ? gr_workspace_bytes(c, n * word) : NULL;
        s->input[i].text = gr_steps_look_up(&s->b) ? gr_workspace_bytes(c, n * s->b.max_length * word) : NULL;
        s->input[i].member = gr_workspace_bytes(c, rows * word);
        s->input[i].group_first = gr_workspace_bytes(c, (n + 1) * word);
        s->input[i].shared = gr_workspace_bytes(c, n * word);
        s->report_id[i] = gr_workspace_bytes(c, rows * s->b.chunk * word);
        s->report_logprob[i] = gr_workspace_bytes(c, rows * s->b.chunk * word);
        s->report_choices[i] = gr_workspace_bytes(c, rows * s->b.chunk * s->b.choices * sizeof(uint16_t));
    }
}

static uint64_t device_bytes(const gr_model_shape *m, const gr_steps_bounds *b)
{
    (void)m;
    gr_steps s = {.b = *b};
    gr_workspace c = {0};
    layout_device(&c, &s);
    return c.used;
}

static uint64_t host_bytes(const gr_model_shape *m, const gr_steps_bounds *b)
{
    (void)m;
    gr_steps s = {.b = *b};
    gr_workspace c = {0};
    layout_host(&c, &s);
    return c.used;
}

static gr_status open_steps(gr_steps **out, const gr_model_shape *m, const gr_steps_bounds *b, gr_diag *d)
{
    (void)d;
    *out = gr_calloc(1, sizeof(**out));
    (*out)->shape = *m;
    (*out)->b = *b;
    return GR_OK;
}

static void close_steps(gr_steps *s)
{
    if (!s) return;
    printf("%llu steps, %llu slots run, %llu of them live, %llu moves, %llu clears\n", s->steps, s->slots_run,
           s->slots_live, s->moves, s->clears);
    free(s);
}

static gr_status begin(gr_steps *s, gr_queue *q, void *device, void *host, const gr_steps_rules *r,
                       gr_diag *d)
{
    (void)q;
    (void)d;
    gr_workspace on_device = {.base = device}, on_host = {.base = host};
    layout_device(&on_device, s);
    layout_host(&on_host, s);
    s->rules = *r;
    for (uint32_t i = 0; i < s->b.slots; i++) s->slot[i].from = GR_SLOT_CLEAR;
    for (uint32_t i = 0; i < gr_steps_rows(&s->b); i++) s->row[i] = i;
    for (uint32_t i = 0; gr_steps_look_up(&s->b) && i < s->b.drafts.seqs; i++) s->said[i] = 0;
    return GR_OK;
}

static gr_steps_input input(gr_steps *s, uint32_t trip)
{
    return s->input[trip % 2];
}

/* Every running slot is in one group, whose slots begin with the same blocks. */
static void check_groups(const gr_steps *s, const gr_steps_input *in, uint32_t n_groups)
{
    uint32_t *seen = gr_calloc(s->b.slots, sizeof(*seen));
    for (uint32_t g = 0; g < n_groups; g++)
        for (uint32_t i = in->group_first[g]; i < in->group_first[g + 1]; i++) {
            const uint32_t at = in->member[i] / each(s), first = in->member[in->group_first[g]] / each(s);
            assert(in->member[i] % each(s) == i % each(s));
            const size_t stride = s->b.stride;
            seen[at]++;
            assert(in->shared[g] % GR_KV_BLOCK == 0);
            if (s->slot[at].from == GR_SLOT_CLEAR || s->slot[first].from == GR_SLOT_CLEAR) continue;
            assert(in->shared[g] <= s->slot[at].position);
            assert(!memcmp(s->table + at * stride, s->table + first * stride,
                           in->shared[g] / GR_KV_BLOCK * sizeof(*s->table)));
        }
    for (uint32_t i = 0; i < s->b.slots; i++) {
        assert(seen[i] == 0 || seen[i] == each(s));
        assert(seen[i] || s->slot[i].from == GR_SLOT_CLEAR);
    }
    free(seen);
}

/* No state is that of two running slots. */
static void check_places(const gr_steps *s)
{
    bool *taken = gr_calloc(s->b.slots, sizeof(*taken));
    for (uint32_t i = 0; i < s->b.slots; i++) {
        if (s->slot[i].from == GR_SLOT_CLEAR) continue;
        assert(s->held[i] < s->b.slots && !taken[s->held[i]]);
        taken[s->held[i]] = true;
    }
    free(taken);
}

static void set_text(gr_steps *s, const gr_slot_change *c, const int32_t *text)
{
    assert(c->text < s->b.drafts.seqs && c->position < s->b.max_length && text[c->position] == c->id);
    memcpy(s->text + (size_t)c->text * s->b.max_length, text, (c->position + 1) * sizeof(*text));
    s->said[c->text] = c->position + 1;
    s->prompt[c->text] = c->prompt;
}

static void change(gr_steps *s, gr_queue *q, uint32_t trip, uint32_t n_changes, uint32_t n_groups)
{
    (void)q;
    const gr_steps_input *in = &s->input[trip % 2];
    const size_t row = s->b.stride * sizeof(*s->table);
    uint32_t *named = gr_calloc(s->b.slots, sizeof(*named));
    for (uint32_t i = 0; i < n_changes; i++) {
        const gr_slot_change *c = &in->change[i];
        named[c->slot]++;
        char *table = (char *)s->table + c->slot * row;
        if (c->from == GR_SLOT_SET) {
            memcpy(table, (char *)in->table + i * row, row);
            s->slot[c->slot] = *c;
            s->drafts[c->slot] = (gr_draft_record){0};
            for (uint32_t k = 0; k < s->b.drafts.tokens; k++) ahead_of(s, c->slot)[k] = -1;
            if (in->text) set_text(s, c, in->text + (size_t)i * s->b.max_length);
            if (in->held) s->held[c->slot] = in->held[i];
        } else if (c->from == GR_SLOT_CLEAR) {
            s->slot[c->slot] = *c;
            s->clears++;
        } else {
            named[c->from]++;
            memcpy(table, (char *)s->table + c->from * row, row);
            s->slot[c->slot] = s->slot[c->from];
            s->held[c->slot] = s->held[c->from];
            s->drafts[c->slot] = s->drafts[c->from];
            memcpy(ahead_of(s, c->slot), ahead_of(s, c->from), s->b.drafts.tokens * sizeof(*s->ahead));
            s->slot[c->from].from = GR_SLOT_CLEAR;
            s->moves++;
        }
    }
    for (uint32_t i = 0; i < s->b.slots; i++) assert(named[i] <= 1);
    free(named);
    if (in->held) check_places(s);
    check_groups(s, in, n_groups);
}

static gr_draft_source text_at(const gr_steps *s, uint32_t text, uint32_t from)
{
    return (gr_draft_source){s->text + (size_t)text * s->b.max_length, from, s->said[text]};
}

/* What follows a slot's token, to out; returns how many. */
static uint32_t draft(gr_steps *s, uint32_t slot, int32_t *out)
{
    const gr_steps_drafts *how = &s->b.drafts;
    const gr_slot_change *c = &s->slot[slot];
    const uint32_t room = s->rules.max_tokens - c->token - 1;
    uint32_t n = 1;
    if (!how->tokens || !room || !gr_draft_now(&s->drafts[slot])) return 0;
    if (how->ahead) {
        for (n = 0; n < GR_MIN(how->tokens, room) && ahead_of(s, slot)[n] >= 0; n++)
            out[n] = ahead_of(s, slot)[n];
        return n;
    }
    assert(s->said[c->text] == c->position + 1);
    s->sources[0] = text_at(s, c->text, 1);
    for (uint32_t k = 0, first = c->text - c->text % how->samples; k < how->samples; k++)
        if (first + k != c->text) s->sources[n++] = text_at(s, first + k, s->prompt[first + k]);
    return gr_draft(s->sources, n, how->match, GR_MIN(how->tokens, room), out);
}

/* A token that was sampled in a slot; whether it is its last. */
static bool add_token(gr_steps *s, gr_slot_change *c, int32_t id)
{
    c->id = id;
    c->position++;
    if (gr_steps_look_up(&s->b)) {
        s->text[(size_t)c->text * s->b.max_length + c->position] = id;
        s->said[c->text] = c->position + 1;
    }
    bool last = ++c->token == s->rules.max_tokens;
    for (uint32_t k = 0; k < s->rules.n_stop; k++) last = last || c->id == s->rules.stop[k];
    return last;
}

/* The rows of one slot, from `at` of those that ran, into the report; returns how many they are. *on: the
 * last whose token counts. */
static uint32_t advance(gr_steps *s, uint32_t at, uint32_t live, int32_t *id, float *logprob, uint32_t *on)
{
    const uint32_t slot = s->live[at] / each(s);
    uint32_t rows = 0, taken = 0;
    bool last = false;
    while (at + rows < live && s->live[at + rows] / each(s) == slot)
        id[s->live[at + rows++]] = GR_STEPS_REJECTED;
    do {
        id[s->live[at + taken]] = s->drawn[at + taken];
        logprob[s->live[at + taken]] = s->logprob[at + taken];
        last = add_token(s, &s->slot[slot], s->drawn[at + taken]);
        taken++;
    } while (!last && taken < rows && s->ids[at + taken] == s->drawn[at + taken - 1]);
    gr_draft_went(&s->drafts[slot], rows - 1, taken - 1);
    if (last) s->slot[slot].from = GR_SLOT_CLEAR;
    *on = at + taken - 1;
    return rows;
}

/* From the tokens that ran to the rows that took part, router by router. */
static void report_choices(const gr_steps *s, uint32_t live, uint32_t n, uint16_t *report)
{
    for (uint32_t l = 0; l < s->shape.layers; l++) {
        const size_t before = gr_model_routers(&s->shape, l).choices,
                     k = gr_layer(&s->shape, l)->experts.top_k;
        for (uint32_t i = 0; i < live; i++)
            memcpy(report + before * n + s->live[i] * k, s->choices + before * live + i * k,
                   k * sizeof(*report));
    }
}

/* One more token to run, of row `row`. */
static void feed(gr_steps *s, uint32_t at, uint32_t slot, uint32_t row, int32_t id)
{
    const gr_slot_change *c = &s->slot[slot];
    s->live[at] = slot * each(s) + row;
    s->ids[at] = id;
    s->offset[at] = at;
    s->cached[at] = c->position + row;
    s->places[at] = s->held[slot];
    s->draw[at][0] = c->sequence;
    s->draw[at][1] = c->token + row;
    memcpy(s->tables + (size_t)at * s->b.stride, s->table + (size_t)slot * s->b.stride,
           s->b.stride * sizeof(*s->table));
}

/* A pass of the layer that drafts, of n tokens as they are fed; what it gives behind each of n_on rows. */
static void pass_ahead(gr_steps *s, gr_queue *q, const gr_steps_chunk *k, uint32_t n, const uint32_t *from,
                       const uint32_t *on, uint32_t n_on)
{
    const gr_sampling best = {.top_p = 1};
    const gr_extend e = {.n_tokens = n,
                         .n_seqs = n,
                         .ids = s->ids,
                         .offset = s->offset,
                         .cached = s->cached,
                         .block_table = s->tables,
                         .table_stride = s->b.stride};
    const gr_steps_draw d = {n_on, on, &best, (const uint32_t(*)[2])s->draw, s->drawn, s->logprob};
    s->offset[n] = n;
    k->ahead(k->user, q, &e, from, &d);
}

/* Whether what a further pass drafts for a slot may be sampled. */
static bool goes_on(const gr_steps *s, uint32_t slot, uint32_t pass)
{
    const gr_slot_change *c = &s->slot[slot];
    return c->from != GR_SLOT_CLEAR && c->token + 1 + pass < s->rules.max_tokens;
}

/* Drafts for the next step behind one whose `live` rows ran; on: the rows that n slots go on from. */
static void run_ahead(gr_steps *s, gr_queue *q, const gr_steps_chunk *k, uint32_t live, uint32_t *on,
                      uint32_t n)
{
    uint32_t *slot = gr_calloc(n, sizeof(*slot));
    for (uint32_t i = 0; i < n; i++) slot[i] = s->live[on[i]] / each(s);
    memcpy(s->ids, s->drawn, live * sizeof(*s->ids));
    pass_ahead(s, q, k, live, NULL, on, n);
    for (uint32_t pass = 1;; pass++) {
        const uint32_t before = n;
        for (uint32_t i = 0; i < n; i++) ahead_of(s, slot[i])[pass - 1] = s->drawn[i];
        if (pass == s->b.drafts.tokens) break;
        n = 0;
        for (uint32_t i = 0; i < before; i++) {
            if (!goes_on(s, slot[i], pass)) continue;
            slot[n] = slot[i];
            on[n] = pass == 1 ? on[i] : i;
            feed(s, n, slot[n], pass - 1, ahead_of(s, slot[n])[pass - 1]);
            n++;
        }
        if (!n) break;
        pass_ahead(s, q, k, n, on, s->row, n);
    }
    free(slot);
}

static void one_step(gr_steps *s, gr_queue *q, const gr_steps_chunk *k, int32_t *id, float *logprob,
                     uint16_t *choices)
{
    int32_t drafts[GR_DRAFT_MOST];
    uint32_t live = 0;
    for (uint32_t i = 0; i < k->n * each(s); i++) id[i] = GR_STEPS_EMPTY;
    for (uint32_t i = 0; i < k->n; i++) {
        if (s->slot[i].from == GR_SLOT_CLEAR) continue;
        const uint32_t n = draft(s, i, drafts);
        feed(s, live++, i, 0, s->slot[i].id);
        for (uint32_t r = 0; r < n; r++) feed(s, live++, i, 1 + r, drafts[r]);
        s->slots_live++;
    }
    for (uint32_t i = k->n; i < s->b.slots; i++) assert(s->slot[i].from == GR_SLOT_CLEAR);
    s->steps++;
    s->slots_run += k->n;
    s->offset[live] = live;
    const gr_routing routing = {.record = s->choices};
    const gr_extend e = {.n_tokens = live,
                         .n_seqs = live,
                         .ids = s->ids,
                         .offset = s->offset,
                         .cached = s->cached,
                         .block_table = s->tables,
                         .table_stride = s->b.stride,
                         .window_at = s->b.window_at,
                         .held = s->b.states ? s->places : NULL,
                         .routing = s->b.choices ? &routing : NULL};
    const gr_steps_draw d = {live,     s->row,    &s->rules.sampling, (const uint32_t(*)[2])s->draw,
                             s->drawn, s->logprob};
    if (live || k->together) k->step(k->user, q, &e, &d);
    if (s->b.choices) report_choices(s, live, k->n * each(s), choices);
    uint32_t *on = gr_calloc(live, sizeof(*on)), n_on = 0;
    for (uint32_t at = 0; at < live;) at += advance(s, at, live, id, logprob, &on[n_on++]);
    if (s->b.drafts.ahead && live) run_ahead(s, q, k, live, on, n_on);
    free(on);
}

static void copy(gr_steps *s, gr_queue *q, const gr_steps_blocks *b, const uint32_t *src, const uint32_t *dst,
                 uint32_t n)
{
    (void)s;
    for (uint32_t l = 0; l < b->layers; l++)
        gr_kernels_cpu.copy_blocks(q, (char *)b->kv + l * b->layer_bytes, b->block_bytes, src, dst, n);
}

static void run(gr_steps *s, gr_queue *q, uint32_t trip, const gr_steps_chunk *c)
{
    const uint32_t which = trip % 2;
    const size_t rows = gr_steps_rows(&s->b);
    for (uint32_t i = 0; (c->n || c->together) && i < s->b.chunk; i++)
        one_step(s, q, c, s->report_id[which] + i * rows, s->report_logprob[which] + i * rows,
                 s->report_choices[which] + i * rows * s->b.choices);
}

static gr_status report(gr_steps *s, uint32_t trip, gr_steps_report *out, gr_diag *d)
{
    (void)d;
    const uint32_t which = trip % 2;
    *out = (gr_steps_report){s->report_id[which], s->report_logprob[which], s->report_choices[which]};
    return GR_OK;
}

static const gr_steps_ops steps_on_host = {device_bytes, host_bytes, open_steps, close_steps, begin,
                                           input,        change,     copy,       run,         report};

int main(int argc, char **argv)
{
    gr_kernels k = gr_kernels_cpu;
    const char *prefill = getenv("GR_PREFILL");
    k.steps = &steps_on_host;
    if (prefill) k.sizes.prefill_tokens = (uint32_t)atoi(prefill);
    return exec_with(&k, argc, argv);
}
