/* runtime/run/record.c: the record of an iteration, and how it travels between ranks. */
#include "runtime/run/record.h"

#include "ops/scorer.h"
#include "runtime/io/metrics.h"

#include <stdlib.h>
#include <string.h>

gr_record *gr_record_new(size_t n_nodes)
{
    gr_record *r = gr_calloc(1, sizeof(*r));
    r->n_nodes = n_nodes;
    r->node_ns = gr_calloc(n_nodes + 1, sizeof(*r->node_ns));
    return r;
}

static void drop_samples(gr_record *r)
{
    for (size_t i = 0; i < r->n_samples; i++) {
        gr_str_release(&r->samples[i].prompt);
        gr_str_release(&r->samples[i].response);
        gr_str_release(&r->samples[i].segments);
    }
    free(r->samples);
    r->samples = NULL;
    r->n_samples = r->cap_samples = 0;
}

void gr_record_free(gr_record *r)
{
    if (!r) return;
    drop_samples(r);
    gr_str_release(&r->notes);
    gr_str_release(&r->state);
    free(r->metrics);
    free(r->node_ns);
    free(r);
}

void gr_record_take_measures(gr_record *r, gr_session *s)
{
    r->n_metrics = 0;
    for (size_t i = 0; i < s->n_metrics; i++)
        GR_PUSH(r->metrics, r->n_metrics, r->cap_metrics, s->metrics[i]);
    s->n_metrics = 0;
    gr_str_release(&r->notes);
    r->notes = s->notes;
    s->notes = (gr_str){0};
}

/* Whose a token is. What failed is nobody's: none of it counts. */
static bool is_models(const gr_rows *rows, uint32_t seq, uint32_t token)
{
    return gr_rows_counts(rows, rows->token_offset[seq] + token);
}

void gr_record_segments(const gr_tokenizer *t, const gr_rows *rows, uint32_t seq, bool tokens, gr_str *out)
{
    const int32_t *ids = gr_rows_ids(rows, seq) + rows->prompt_len[seq];
    gr_str text = {0};
    gr_str_putc(out, '[');
    for (uint32_t from = 0, to; from < rows->response_len[seq]; from = to) {
        const bool model = is_models(rows, seq, from);
        text.len = 0;
        for (to = from; to < rows->response_len[seq] && is_models(rows, seq, to) == model; to++)
            (void)gr_tokenizer_append(t, ids[to], false, &text);
        gr_str_printf(out, "%s{\"by\": \"%s\", ", from ? ", " : "", model ? "model" : "environment");
        if (tokens) gr_str_printf(out, "\"tokens\": %u, ", to - from);
        gr_str_puts(out, "\"text\": ");
        gr_json_add_text(out, text.text ? text.text : "", text.len);
        gr_str_putc(out, '}');
    }
    gr_str_putc(out, ']');
    gr_str_release(&text);
}

void gr_record_sample(gr_session *s, const gr_shown *what, uint32_t seq)
{
    gr_record *r = s->user;
    const gr_node *node = what->node;
    const gr_rows *rows = what->rows;
    gr_sample x = {.seq = seq,
                   .has_advantage = what->advantage.column,
                   .score = gr_shown_number(what, &what->reward, seq, false),
                   .advantage = gr_shown_number(what, &what->advantage, seq, true)};
    gr_tokenizer_decode(gr_session_tokenizer(s, node), gr_rows_ids(rows, seq), rows->prompt_len[seq], false,
                        &x.prompt);
    gr_response_text(s, node, rows, seq, &x.response, NULL);
    if (rows->turns) gr_record_segments(gr_session_tokenizer(s, node), rows, seq, false, &x.segments);
    GR_PUSH(r->samples, r->n_samples, r->cap_samples, x);
}

const struct gr_metric *gr_record_find(const gr_record *r, const char *name)
{
    for (size_t i = 0; i < r->n_metrics; i++)
        if (!strcmp(r->metrics[i].name, name)) return &r->metrics[i];
    return NULL;
}

static void merge_metric(gr_record *r, const struct gr_metric *m)
{
    struct gr_metric *own = (struct gr_metric *)(uintptr_t)gr_record_find(r, m->name);
    if (!own)
        GR_PUSH(r->metrics, r->n_metrics, r->cap_metrics, *m);
    else if (!strcmp(m->name, GR_VALIDATION "seconds"))
        own->value = GR_MAX(own->value, m->value);
}

void gr_record_merge(gr_record *r, gr_record *from)
{
    r->asked_to_stop = r->asked_to_stop || from->asked_to_stop;
    r->peak_bytes = GR_MAX(r->peak_bytes, from->peak_bytes);
    for (size_t i = 0; i < r->n_nodes; i++) r->node_ns[i] = GR_MAX(r->node_ns[i], from->node_ns[i]);
    for (size_t i = 0; i < from->n_metrics; i++) merge_metric(r, &from->metrics[i]);
    gr_str_add(&r->notes, from->notes.text, from->notes.len);
    if (r->n_samples) return;
    drop_samples(r);
    r->samples = from->samples;
    r->n_samples = from->n_samples;
    r->cap_samples = from->cap_samples;
    from->samples = NULL;
    from->n_samples = from->cap_samples = 0;
}

/* ---- as bytes --------------------------------------------------------------------------------------------
 */

static void pack_u64(gr_str *out, uint64_t x)
{
    gr_str_add(out, (const char *)&x, sizeof(x));
}

static void pack_text(gr_str *out, const char *bytes, size_t n)
{
    pack_u64(out, n);
    if (n) gr_str_add(out, bytes, n);
}

void gr_record_pack(const gr_record *r, gr_str *out)
{
    const uint64_t head[] = {r->step,    r->asked_to_stop, r->ns,       r->peak_bytes,
                             r->n_nodes, r->n_metrics,     r->n_samples};
    for (size_t i = 0; i < GR_LEN(head); i++) pack_u64(out, head[i]);
    if (r->n_nodes) gr_str_add(out, (const char *)r->node_ns, r->n_nodes * sizeof(*r->node_ns));
    for (size_t i = 0; i < r->n_metrics; i++) {
        const struct gr_metric *m = &r->metrics[i];
        pack_text(out, m->name, strlen(m->name));
        gr_str_add(out, (const char *)&m->value, sizeof(m->value));
    }
    for (size_t i = 0; i < r->n_samples; i++) {
        const gr_sample *s = &r->samples[i];
        pack_u64(out, s->seq);
        pack_text(out, s->prompt.text, s->prompt.len);
        pack_text(out, s->response.text, s->response.len);
        pack_text(out, s->segments.text, s->segments.len);
        gr_str_add(out, (const char *)&s->score, sizeof(s->score));
        pack_u64(out, s->has_advantage);
        gr_str_add(out, (const char *)&s->advantage, sizeof(s->advantage));
    }
    pack_text(out, r->notes.text, r->notes.len);
    pack_text(out, r->state.text, r->state.len);
}

typedef struct reader {
    const char *at;
    uint64_t left;
    bool bad; /* more was asked for than there is */
} reader;

static void take_bytes(reader *f, void *to, uint64_t n)
{
    f->bad = f->bad || n > f->left;
    if (f->bad) {
        memset(to, 0, n);
        return;
    }
    memcpy(to, f->at, n);
    f->at += n;
    f->left -= n;
}

static uint64_t take_u64(reader *f)
{
    uint64_t x;
    take_bytes(f, &x, sizeof(x));
    return x;
}

static void take_text(reader *f, gr_str *to)
{
    uint64_t n = take_u64(f);
    f->bad = f->bad || n > f->left;
    if (f->bad) return;
    gr_str_add(to, f->at, n);
    f->at += n;
    f->left -= n;
}

static void take_metric(reader *f, gr_record *r)
{
    struct gr_metric m = {0};
    uint64_t n = take_u64(f);
    f->bad = f->bad || n >= sizeof(m.name);
    if (f->bad) return;
    take_bytes(f, m.name, n);
    take_bytes(f, &m.value, sizeof(m.value));
    GR_PUSH(r->metrics, r->n_metrics, r->cap_metrics, m);
}

static void take_sample(reader *f, gr_record *r)
{
    gr_sample s = {.seq = (uint32_t)take_u64(f)};
    take_text(f, &s.prompt);
    take_text(f, &s.response);
    take_text(f, &s.segments);
    take_bytes(f, &s.score, sizeof(s.score));
    s.has_advantage = take_u64(f);
    take_bytes(f, &s.advantage, sizeof(s.advantage));
    GR_PUSH(r->samples, r->n_samples, r->cap_samples, s);
}

gr_status gr_record_unpack(gr_record **out, const void *bytes, uint64_t n, size_t n_nodes, gr_diag *d)
{
    reader f = {.at = bytes, .left = n};
    gr_record *r = gr_record_new(n_nodes);
    r->step = (uint32_t)take_u64(&f);
    r->asked_to_stop = take_u64(&f);
    r->ns = take_u64(&f);
    r->peak_bytes = take_u64(&f);
    f.bad = f.bad || take_u64(&f) != n_nodes;
    uint64_t n_metrics = take_u64(&f), n_samples = take_u64(&f);
    if (!f.bad) take_bytes(&f, r->node_ns, n_nodes * sizeof(*r->node_ns));
    for (uint64_t i = 0; i < n_metrics && !f.bad; i++) take_metric(&f, r);
    for (uint64_t i = 0; i < n_samples && !f.bad; i++) take_sample(&f, r);
    take_text(&f, &r->notes);
    take_text(&f, &r->state);
    if (!f.bad && !f.left) {
        *out = r;
        return GR_OK;
    }
    gr_record_free(r);
    return gr_diag_error(d, (gr_loc){0}, GR_E_FAILED, "another role of ranks sent what is no record");
}
