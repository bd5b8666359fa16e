/* ops/kernels/cuda/steps_layout.c: layout of what decode steps keep on the device and on the host. */
#include "ops/kernels/cuda/steps_layout.h"

#include "ops/kernels/cuda/decode_sizes.h"
#include "ops/kernels/cuda/layout.h"
#include "ops/kernels/cuda/strict.h"

static uint32_t group_of(const gr_cu_heads *h)
{
    return h->heads / h->kv_heads;
}

/* A list says which rows of query heads read a piece of keys, so it is of one number of them. */
static void add_list(gr_cu_steps_model *m, const gr_cu_heads *h, uint32_t window)
{
    uint32_t i = 0;
    if (h->head_dim > GR_CU_DECODE_HEAD) return; /* ops/kernels/cuda/strict.h reads none */
    while (i < m->n_lists && (m->lists[i].window != window || group_of(&m->lists[i].heads) != group_of(h)))
        i++;
    if (i == m->n_lists) m->lists[m->n_lists++] = (gr_cu_steps_list){*h, window};
}

static void add_kind(gr_cu_steps_model *m, const gr_layer_desc *d)
{
    const gr_cu_heads h = gr_cu_heads_of(&d->attention);
    if (d->mixer != GR_MIXER_ATTENTION) return;
    m->heads[m->n_heads++] = h;
    add_list(m, &h, d->attention.window);
}

gr_cu_steps_model gr_cu_steps_model_of(const gr_model_shape *s)
{
    gr_cu_steps_model m = {0};
    for (uint32_t kind = 0; kind < s->n_kinds; kind++) add_kind(&m, &s->kinds[kind]);
    if (s->n_ahead) add_kind(&m, &s->ahead);
    return m;
}

/* Of the attention of one layer, strict or not: a plan does not know. */
static uint64_t attention_ws(const gr_cu_heads *h, uint32_t rows, uint32_t max_length)
{
    const uint64_t strict = gr_cu_strict_ws(h, rows, max_length);
    return h->head_dim > GR_CU_DECODE_HEAD ? strict
                                           : GR_MAX(gr_cu_decode_attention_ws(h, rows, max_length), strict);
}

uint64_t gr_cu_rules_bytes(const gr_steps_bounds *b)
{
    return sizeof(gr_cu_rules) + b->stop_ids * sizeof(int32_t);
}

static gr_cu_orders layout_orders(gr_workspace *c, const gr_steps_bounds *b)
{
    gr_cu_orders o;
    o.group_first = gr_workspace_bytes(c, (b->slots + 1ull) * sizeof(*o.group_first));
    o.shared = gr_workspace_bytes(c, b->slots * sizeof(*o.shared));
    o.member = gr_workspace_bytes(c, gr_steps_rows(b) * sizeof(*o.member));
    o.change = gr_workspace_bytes(c, b->slots * sizeof(*o.change));
    o.held = b->states ? gr_workspace_bytes(c, gr_steps_rows(b) * sizeof(*o.held)) : NULL;
    o.table = gr_workspace_bytes(c, (uint64_t)b->slots * b->stride * sizeof(*o.table));
    o.text = gr_steps_look_up(b) ? gr_workspace_bytes(c, (uint64_t)b->slots * b->max_length * sizeof(*o.text))
                                 : NULL;
    return o;
}

static gr_cu_texts layout_texts(gr_workspace *c, const gr_steps_bounds *b)
{
    const gr_steps_drafts *d = &b->drafts;
    const uint64_t words = d->seqs * sizeof(uint32_t), slots = b->slots * sizeof(uint32_t);
    if (!gr_steps_look_up(b)) return (gr_cu_texts){0};
    return (gr_cu_texts){.ids = gr_workspace_bytes(c, words * b->max_length),
                         .n = gr_workspace_bytes(c, words),
                         .prompt = gr_workspace_bytes(c, words),
                         .of = gr_workspace_bytes(c, slots),
                         .seqs = d->seqs,
                         .longest = b->max_length,
                         .samples = d->samples,
                         .match = d->match};
}

static gr_cu_ahead layout_ahead(gr_workspace *c, const gr_steps_bounds *b)
{
    const uint64_t slots = b->slots * sizeof(uint32_t);
    if (!b->drafts.tokens || !b->drafts.ahead) return (gr_cu_ahead){0};
    return (gr_cu_ahead){.drafted = gr_workspace_bytes(c, b->drafts.tokens * slots),
                         .last = gr_workspace_bytes(c, slots),
                         .position = gr_workspace_bytes(c, slots),
                         .kv_slot = gr_workspace_bytes(c, slots),
                         .length = gr_workspace_bytes(c, slots),
                         .member = gr_workspace_bytes(c, slots),
                         .group_first = gr_workspace_bytes(c, slots + sizeof(uint32_t)),
                         .logprob = gr_workspace_bytes(c, slots)};
}

void gr_cu_steps_layout_device(gr_workspace *c, const gr_cu_steps_model *m, const gr_steps_bounds *b,
                               gr_cu_steps_device *s)
{
    const uint32_t rows = gr_steps_rows(b);
    const uint64_t words = rows * sizeof(uint32_t);
    uint64_t attention = 0;
    s->orders = layout_orders(c, b);
    s->rules = gr_workspace_bytes(c, gr_cu_rules_bytes(b));
    s->row = gr_workspace_bytes(c, words + sizeof(uint32_t));
    s->offset = s->row;
    s->slots = (gr_cu_slots){
        .id = gr_workspace_bytes(c, words),
        .position = gr_workspace_bytes(c, words),
        .kv_slot = gr_workspace_bytes(c, words),
        .window_slot = b->window_at ? gr_workspace_bytes(c, words) : NULL,
        .length = gr_workspace_bytes(c, words),
        .held = b->states ? gr_workspace_bytes(c, words) : NULL,
        .places = b->states ? gr_workspace_bytes(c, words) : NULL,
        .table = gr_workspace_bytes(c, words * b->stride),
        .draw = gr_workspace_bytes(c, 2 * words),
        .drawn = gr_workspace_bytes(c, words),
        .logprob = gr_workspace_bytes(c, words),
        .step = gr_workspace_bytes(c, sizeof(uint32_t)),
        .report_id = gr_workspace_bytes(c, words * b->chunk),
        .report_logprob = gr_workspace_bytes(c, words * b->chunk),
        .slots = b->slots,
        .stride = b->stride,
        .window_at = b->window_at,
        .each = 1 + b->drafts.tokens,
        .rests = b->drafts.tokens ? gr_workspace_bytes(c, 2 * b->slots * sizeof(uint32_t)) : NULL,
        .texts = layout_texts(c, b),
        .ahead = layout_ahead(c, b)};
    const uint64_t choices = (uint64_t)rows * b->choices * sizeof(*s->choices);
    s->choices = choices ? gr_workspace_bytes(c, choices) : NULL;
    s->report_choices = choices ? gr_workspace_bytes(c, choices * b->chunk) : NULL;
    for (uint32_t i = 0; i < m->n_lists; i++)
        s->work[i] = gr_workspace_bytes(c, gr_cu_decode_work_bytes(&m->lists[i].heads, rows, b->max_length));
    for (uint32_t i = 0; i < m->n_heads; i++)
        attention = GR_MAX(attention, attention_ws(&m->heads[i], rows, b->max_length));
    s->ws = m->n_heads ? gr_workspace_bytes(c, attention) : NULL;
}

void gr_cu_steps_layout_host(gr_workspace *c, const gr_steps_bounds *b, gr_cu_steps_host *s)
{
    const uint32_t rows = gr_steps_rows(b);
    const uint64_t words = rows * sizeof(uint32_t);
    for (int i = 0; i < 2; i++) {
        s->orders[i] = layout_orders(c, b);
        s->report_id[i] = gr_workspace_bytes(c, words * b->chunk);
        s->report_logprob[i] = gr_workspace_bytes(c, words * b->chunk);
        s->report_choices[i] =
            b->choices ? gr_workspace_bytes(c, (uint64_t)rows * b->choices * sizeof(uint16_t) * b->chunk)
                       : NULL;
    }
    s->rules = gr_workspace_bytes(c, gr_cu_rules_bytes(b));
    s->count = gr_workspace_bytes(c, words + sizeof(uint32_t));
}

static uint64_t device_bytes(const gr_model_shape *shape, const gr_steps_bounds *b)
{
    const gr_cu_steps_model m = gr_cu_steps_model_of(shape);
    gr_cu_steps_device s;
    gr_workspace c = {0};
    gr_cu_steps_layout_device(&c, &m, b, &s);
    return c.used;
}

static uint64_t host_bytes(const gr_model_shape *shape, const gr_steps_bounds *b)
{
    (void)shape;
    gr_cu_steps_host s;
    gr_workspace c = {0};
    gr_cu_steps_layout_host(&c, b, &s);
    return c.used;
}

#ifdef GR_CUDA
#define RUNS(name) .name = gr_cuda_steps_##name
#else
#define RUNS(name) .name = NULL
#endif

const gr_steps_ops gr_steps_cuda = {.device_bytes = device_bytes,
                                    .host_bytes = host_bytes,
                                    RUNS(open),
                                    RUNS(close),
                                    RUNS(begin),
                                    RUNS(input),
                                    RUNS(change),
                                    RUNS(copy),
                                    RUNS(run),
                                    RUNS(report)};
